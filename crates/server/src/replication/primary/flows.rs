//! The connections of a replica that receive a snapshot's flows, in addition to the replica's link.
//!
//! Two Pantala servers with `repl-flows` send the snapshot of a full sync over several connections.
//! The link has flow 0, and the stream of changes. Each other flow has a connection of its own,
//! which belongs to the worker that has accepted it. The replica requests it with `PSYNC token
//! index FLOW`.
//!
//! Each flow is a complete RDB file with a part of the keys. Flow 0 also has the function libraries
//! and the auxiliary fields. Each part of the snapshot goes to the flow with the fewest unread
//! bytes.
//!
//! If the link or a connection of a flow is lost before all flows were sent, the full sync has
//! failed, and all its connections are closed.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pantala_base::Outgoing;
use pantala_base::number::parse_i64;
use pantala_engine::client::{Following, Host, Next, Session};
use pantala_engine::effect::log::Ahead;
use pantala_engine::keyspace::Keyspace;
use pantala_engine::message::Message;
use pantala_persistence::rdb::{Tail, head_of_part};
use pantala_replication::{FeedAhead, FlowError, FlowForm, Flows, Framing, MARK_BYTES, Mark, Wake, to_frames};

use super::shared_feed::{FlowReader, SharedFeed};
use super::{AnnouncedFlows, Link};
use crate::host::Server;

/// Bytes of randomness in a token, which has two digits for each.
const TOKEN_BYTES: usize = MARK_BYTES / 2;

/// Returns a random token from the system. Returns `None` if the system can't provide any.
pub(super) fn token(server: &Server) -> Option<Mark> {
    let mut random = [0; TOKEN_BYTES];
    let digit = |bits: u8| b"0123456789abcdef"[usize::from(bits & 15)];
    let digits =
        |random: [u8; TOKEN_BYTES]| std::array::from_fn(|at| digit(random[at / 2] >> if at % 2 == 0 { 4 } else { 0 }));
    server.fill_random(&mut random).then(|| digits(random))
}

struct State {
    flows: Flows,
    /// The readers of flows 1 and higher that have not sent everything.
    readers: Vec<Option<FlowReader>>,
    /// Whether the full sync has failed.
    is_closed: bool,
}

/// The full sync of one replica, with flows.
pub(super) struct FlowSync {
    link: Arc<Link>,
    feed: Arc<SharedFeed>,
    form: FlowForm,
    state: Mutex<State>,
    /// For each flow, the function that wakes the worker of its connection. `None` until the flow
    /// has a connection.
    wakes: Arc<Vec<Mutex<Option<Wake>>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No panic can leave these states invalid.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl FlowSync {
    /// Adds a replica's readers of all flows but the first to a feed.
    pub(super) fn new(link: &Arc<Link>, feed: &Arc<SharedFeed>, token: Mark, form: FlowForm, now_ms: i64) -> Self {
        let count = form.count;
        let wakes: Arc<Vec<Mutex<Option<Wake>>>> = Arc::new((0..count).map(|_| Mutex::default()).collect());
        let reader_of = |flow: usize| {
            let wakes = Arc::clone(&wakes);
            let wake = move || {
                let wake = lock(&wakes[flow]).clone();
                wake.iter().for_each(|wake| wake());
            };
            feed.join(flow, Arc::new(wake))
        };
        let readers = (0..count as usize).map(|flow| (flow > 0).then(|| reader_of(flow))).collect();
        let state = State { flows: Flows::new(token, count, now_ms), readers, is_closed: false };
        FlowSync { link: Arc::clone(link), feed: Arc::clone(feed), form, state: Mutex::new(state), wakes }
    }

    /// Returns the framing of flow 0.
    pub(super) fn framing(&self) -> Framing {
        Framing::Flows(*lock(&self.state).flows.token(), self.form)
    }

    /// Records that a whole flow was sent. Once all flows were sent, the replica is online.
    pub(super) fn note_sent(&self, server: &Server, index: usize) {
        let was_last = {
            let mut state = lock(&self.state);
            state.readers[index] = None;
            state.flows.note_sent(index)
        };
        if was_last {
            forget(server, self.link.client);
            server.replication().set_online(server, self.link.client);
            tracing::info!("Synchronization with replica {} succeeded ({} flows)", self.link.name, self.form.count);
        }
    }

    /// Returns why the full sync has failed, if the replica has not requested a flow in time.
    pub(super) fn timed_out(&self, now_ms: i64, timeout_ms: i64) -> Option<String> {
        let late = lock(&self.state).flows.late(now_ms, timeout_ms)?;
        Some(format!("Disconnecting timedout replica (flow {late} was not requested): {}", self.link.name))
    }

    /// Ends the full sync, because the link is closed. Closes the connections of flows that were
    /// not sent.
    pub(super) fn close(&self, server: &Server) {
        forget(server, self.link.client);
        let readers: Vec<FlowReader> = {
            let mut state = lock(&self.state);
            state.is_closed = true;
            state.readers.iter_mut().filter_map(Option::take).collect()
        };
        readers.into_iter().for_each(|reader| self.feed.leave(reader));
        for slot in self.wakes.iter() {
            let wake = lock(slot).take();
            wake.iter().for_each(|wake| wake());
        }
    }
}

/// Accepts requests for flows with this token. The flows belong to the full sync of the replica
/// with this client ID.
pub(super) fn announce(server: &Server, client: u64, token: Mark, flows: &Arc<FlowSync>) {
    server.replication().state().flows.push(AnnouncedFlows { client, token, flows: Arc::clone(flows) });
}

/// Returns the flows with this token.
fn with_token(server: &Server, token: &[u8]) -> Option<Arc<FlowSync>> {
    let state = server.replication().state();
    state.flows.iter().find(|announced| announced.token == token).map(|announced| Arc::clone(&announced.flows))
}

/// Accepts no more requests for the flows of a replica.
fn forget(server: &Server, client: u64) {
    server.replication().state().flows.retain(|announced| announced.client != client);
}

/// Runs `PSYNC token index FLOW`: the client becomes the connection of a flow.
///
/// # Errors
/// The token or the index is wrong. Contains the complete error reply.
pub(super) fn attach(server: &Server, session: &mut Session, token: &[u8], index: &[u8]) -> Result<(), &'static str> {
    let Some(shared) = server.replication().server() else { return Ok(()) };
    let index = parse_i64(index).ok_or("ERR value is not an integer or out of range")?;
    let sync = with_token(server, token).ok_or(FlowError::UnknownToken.text())?;
    let (index, reader) = {
        let mut state = lock(&sync.state);
        if state.is_closed {
            return Err(FlowError::UnknownToken.text());
        }
        let index = state.flows.attach(index).map_err(FlowError::text)?;
        (index, state.readers[index])
    };
    let Some(reader) = reader else { return Err(FlowError::Taken.text()) };
    let (listener, ports) = (session.listener(), Arc::clone(server.keyspace().ports()));
    let wake: Wake = Arc::new(move || ports[listener.worker as usize].send(Message::Effects(listener.connection)));
    *lock(&sync.wakes[index]) = Some(Arc::clone(&wake));
    let sent_ms = server.monotonic_ms();
    let following = FlowFollowing { server: shared, sync, index, reader, has_begun: false, sent_ms, pending_bytes: 0 };
    session.follow(Box::new(following));
    wake();
    Ok(())
}

/// The source of the bytes for the connection of a flow.
struct FlowFollowing {
    server: Arc<Server>,
    sync: Arc<FlowSync>,
    index: usize,
    reader: FlowReader,
    /// Whether the line before the flow was sent.
    has_begun: bool,
    /// When the connection last accepted bytes or had nothing to send, in ms of the monotonic
    /// clock.
    sent_ms: i64,
    /// The size of the connection's output when it was last checked, bytes.
    pending_bytes: usize,
}

impl Following for FlowFollowing {
    fn read(&mut self, bytes: usize, into: &mut Vec<Outgoing>) -> Next {
        let token = {
            let state = lock(&self.sync.state);
            if state.flows.is_sent(self.index) {
                return Next::End;
            }
            if state.is_closed {
                return Next::Failed(format!("the full sync of {} has ended", self.sync.link.name));
            }
            *state.flows.token()
        };
        let framing = Framing::Mark(token);
        if !std::mem::replace(&mut self.has_begun, true) {
            into.push(framing.header().into());
        }
        let before = into.len();
        let ahead = self.sync.feed.read(self.reader, bytes, into);
        // A flow without unread bytes is not stuck: the snapshot is slow, or its next part, which
        // may be a large value, goes to another flow.
        if into.len() > before || bytes > 0 && ahead == FeedAhead::Nothing {
            self.sent_ms = self.server.monotonic_ms();
        }
        match ahead {
            FeedAhead::More => Next::Ahead(Ahead::More),
            FeedAhead::Nothing => Next::Ahead(Ahead::Nothing),
            FeedAhead::Failed => Next::Failed("the snapshot could not be written".to_owned()),
            FeedAhead::End => {
                self.sync.feed.leave(self.reader);
                into.push(framing.trailer().to_vec().into());
                self.sync.note_sent(&self.server, self.index);
                Next::End
            }
        }
    }

    fn limited_bytes(&self) -> u64 {
        0
    }

    fn timed_out(&mut self, pending_bytes: usize) -> Option<String> {
        let timeout_ms = self.server.config().settings().primary.timeout_s as i64 * 1000;
        let now_ms = self.server.monotonic_ms();
        if std::mem::replace(&mut self.pending_bytes, pending_bytes) != pending_bytes {
            self.sent_ms = now_ms;
        }
        let is_stuck = now_ms - self.sent_ms > timeout_ms;
        let name = &self.sync.link.name;
        is_stuck.then(|| format!("Disconnecting timedout replica (flow {} of a full sync): {name}", self.index))
    }

    fn leave(&mut self, _: &Keyspace) {
        lock(&self.sync.wakes[self.index]).take();
        let is_lost = {
            let state = lock(&self.sync.state);
            !state.is_closed && !state.flows.is_sent(self.index)
        };
        if is_lost {
            self.sync.link.fail(&format!("flow {} of its full sync was lost", self.index));
        }
    }
}

/// Writes a snapshot to the flows of a feed. Each flow is a complete RDB file.
pub(super) struct FlowWriter {
    feed: Arc<SharedFeed>,
    /// The end of each flow's file.
    tails: Vec<Tail>,
    is_compressed: bool,
    /// The flow that receives the current part.
    current: usize,
}

impl FlowWriter {
    /// Starts a snapshot. The files have checksums if `checks` is true.
    pub(super) fn new(feed: Arc<SharedFeed>, form: FlowForm, checks: bool) -> Self {
        let FlowForm { count, is_compressed } = form;
        FlowWriter { feed, tails: vec![Tail::new(checks); count as usize], is_compressed, current: 0 }
    }

    /// Returns the form of the flows.
    pub(super) fn form(&self) -> FlowForm {
        FlowForm { count: self.tails.len() as u32, is_compressed: self.is_compressed }
    }

    /// Returns the feed.
    pub(super) fn feed(&self) -> &Arc<SharedFeed> {
        &self.feed
    }

    fn push(&mut self, server: &Server, flow: usize, bytes: Vec<u8>) -> std::io::Result<()> {
        self.tails[flow].add(&bytes);
        self.send(server, flow, bytes)
    }

    fn send(&self, server: &Server, flow: usize, bytes: Vec<u8>) -> std::io::Result<()> {
        self.feed.push(server, flow, if self.is_compressed { to_frames(&bytes) } else { bytes })
    }

    /// Writes the head of the snapshot to flow 0, and short heads to the other flows.
    pub(super) fn begin(&mut self, server: &Server, head: Vec<u8>) -> std::io::Result<()> {
        for flow in 1..self.tails.len() {
            self.push(server, flow, head_of_part(&head))?;
        }
        self.push(server, 0, head)
    }

    /// Starts a part.
    pub(super) fn begin_part(&mut self, server: &Server) -> std::io::Result<()> {
        self.current = self.feed.choose(server)?;
        Ok(())
    }

    /// Writes bytes of the part.
    pub(super) fn write(&mut self, server: &Server, bytes: Vec<u8>) -> std::io::Result<()> {
        self.push(server, self.current, bytes)
    }

    /// Writes the ends of all flows.
    pub(super) fn end(&mut self, server: &Server) -> std::io::Result<()> {
        for flow in 0..self.tails.len() {
            self.send(server, flow, self.tails[flow].to_bytes())?;
        }
        Ok(())
    }
}
