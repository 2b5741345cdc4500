//! Full syncs: one snapshot for all replicas that wait for one.
//!
//! 1. A worker that holds all shards starts a snapshot.
//! 2. The snapshot's thread waits until the snapshot's offset in the stream is known. It gives each
//!    replica a reader of the stream that starts at this offset. The replicas' workers send
//!    `+FULLRESYNC`.
//! 3. The snapshot's thread appends the bytes of the snapshot to a feed. The replicas' workers read
//!    the feed and send the bytes.
//! 4. After the end of the feed, the replicas' workers send the stream.
//!
//! A *feed* ([`SharedFeed`]) keeps the snapshot's bytes until all its replicas have read them. A
//! snapshot is first written to an unnamed file in two cases: `repl-diskless-sync` is off, or a
//! replica can't find the end of a snapshot of unknown length. A separate thread then reads this
//! file into the feed.
//!
//! If both servers permit it, a direct snapshot travels over several connections ([`flows`]).
//! Replicas with different numbers of flows do not share a snapshot.
//!
//! The slowest replica limits the speed of the feed. A replica is disconnected if it reads nothing
//! for the time `repl-timeout`.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use pantala_engine::effect::log::{Ahead, Start};
use pantala_engine::effect::{Reader, Which};
use pantala_engine::faults::{self, Fault};
use pantala_engine::whole::Whole;
use pantala_replication::{Filter, FlowForm, Framing, Replica, ReplicaState};

use super::flows::{self, FlowSync, FlowWriter};
use super::shared_feed::{LOOK, SharedFeed};
use super::{Link, Phase};
use crate::host::Server;
use crate::replication::Replication;
use crate::replication::unnamed::unnamed_file;
use crate::snapshot::{self, Consumer, Failure, JournalStart, NotStarted, Purpose, Record, Section, Written};

/// Size of a chunk that is read from a file, bytes.
const CHUNK_BYTES: usize = 256 * 1024;

/// Makes replicas read a feed from its start. `framing` is that of a snapshot with a single flow.
fn send_to(server: &Server, feed: &Arc<SharedFeed>, links: &[Arc<Link>], framing: &Framing) {
    for link in links {
        begin_bulk(server, link, feed, framing, None);
    }
}

/// Makes replicas read a feed with several flows from its start.
fn send_flows_to(server: &Server, feed: &Arc<SharedFeed>, links: &[Arc<Link>], form: FlowForm) {
    for link in links {
        let Some(token) = flows::token(server) else {
            link.fail("the system provides no random bytes for a token");
            continue;
        };
        let sync = Arc::new(FlowSync::new(link, feed, token, form, server.monotonic_ms()));
        // The replica may request flows as soon as it has received the token.
        flows::announce(server, link.client, token, &sync);
        if !begin_bulk(server, link, feed, &sync.framing(), Some(&sync)) {
            sync.close(server);
        }
    }
}

/// Makes a replica read a feed from its start. Returns `false` if its connection has ended.
fn begin_bulk(
    server: &Server,
    link: &Arc<Link>,
    feed: &Arc<SharedFeed>,
    framing: &Framing,
    flows: Option<&Arc<FlowSync>>,
) -> bool {
    let mut part = link.part();
    if part.is_disconnected || matches!(part.phase, Phase::Failed(_)) {
        return false;
    }
    part.lines.extend_from_slice(&framing.header());
    let reader = feed.join(0, Arc::clone(&link.wake));
    part.phase = Phase::Bulk { feed: Arc::clone(feed), reader, trailer: framing.trailer().to_vec() };
    part.flows = flows.map(Arc::clone);
    drop(part);
    if let Some(replica) = server.replication().state().replicas.find(link.client) {
        replica.state = ReplicaState::SendBulk;
    }
    link.wake();
    true
}

/// The journal's reader that marks the snapshot's position in the stream.
#[derive(Default)]
struct Anchor {
    reader: Mutex<Option<Reader>>,
    started: Condvar,
}

impl Anchor {
    /// Waits until the journal's thread has reached the position of the snapshot. Returns the
    /// offset of this position.
    fn offset(&self, server: &Server) -> io::Result<u64> {
        let mut reader = self.reader.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(offset) = reader.as_ref().and_then(Reader::position) {
                return Ok(offset);
            }
            if let Some(reader) = reader.as_mut()
                && matches!(reader.read(0, &mut Vec::new()), Ahead::CutOff(_))
            {
                return Err(io::Error::other("the stream has left the snapshot behind"));
            }
            if server.is_stopping() {
                return Err(io::Error::other("the server is stopping"));
            }
            reader = self.started.wait_timeout(reader, LOOK).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// The destination of the snapshot's bytes.
enum Target {
    Direct(Arc<SharedFeed>),
    Flows(FlowWriter),
    File(File),
    /// A file in this directory, which the thread of the snapshot opens.
    Unopened(PathBuf),
}

impl Target {
    /// Returns the number of flows in which the snapshot is sent.
    fn flows(&self) -> u64 {
        if let Target::Flows(writer) = self { writer.form().count.into() } else { 1 }
    }

    /// Returns the feed of a snapshot that is sent directly.
    fn feed(&self) -> Option<&SharedFeed> {
        match self {
            Target::Direct(feed) => Some(feed),
            Target::Flows(writer) => Some(writer.feed()),
            Target::File(_) | Target::Unopened(_) => None,
        }
    }
}

/// The consumer of a full sync's snapshot.
struct FullSync {
    server: Arc<Server>,
    anchor: Arc<Anchor>,
    links: Vec<Arc<Link>>,
    target: Target,
    /// The database that the stream has selected at the snapshot's offset.
    stream_db: u32,
}

impl Replication {
    /// Starts a full sync if enough replicas have waited long enough for one.
    pub(in crate::replication) fn sync_if_due(&self, server: &Server) {
        let waiting = self.state().replicas.waiting(server.monotonic_ms());
        if waiting.is_empty() || !server.config().settings().primary.schedule.is_due(&waiting) {
            return;
        }
        if !self.is_syncing.swap(true, Relaxed) {
            snapshot::with_all_shards(server, Box::new(start));
        }
    }
}

/// Starts a full sync of the waiting replicas. Runs on a worker that holds all shards. So the
/// function opens no file: a disk that hangs would stop all workers.
fn start(server: &Server, whole: &mut Whole<'_>) {
    let replication = server.replication();
    let Some(shared) = replication.server() else { return };
    let Some(stream_db) = replication.replica.stream_db_at_rest() else {
        // The offset of the dataset is unknown: a link to the primary was established while the
        // shards were being acquired. `sync_if_due` retries.
        return replication.is_syncing.store(false, Relaxed);
    };
    let now_ms = server.monotonic_ms();
    let settings = server.config().settings();
    let (links, is_direct, filter, form) = {
        let mut state = replication.state();
        let waiting = state.replicas.waiting(now_ms);
        let waits = |replica: &&Replica| matches!(replica.state, ReplicaState::WaitStart(_));
        // The snapshot has the filter and the flows of the first waiting replica. Replicas with
        // others wait for the next full sync.
        let first = state.replicas.iter().find(waits);
        let filter = first.map_or(Filter::default(), |first| first.handshake.filter);
        let is_direct = settings.primary.schedule.is_direct(&waiting, filter.is_any());
        // A file is sent on one connection.
        let permitted = if is_direct { settings.primary.flows } else { FlowForm::SINGLE };
        let form = first.map_or(FlowForm::SINGLE, |first| first.handshake.flows(permitted));
        let is_waiting = |replica: &&Replica| {
            waits(replica) && replica.handshake.filter == filter && replica.handshake.flows(permitted) == form
        };
        let clients: Vec<u64> = state.replicas.iter().filter(is_waiting).map(|replica| replica.client).collect();
        for client in &clients {
            if let Some(replica) = state.replicas.find(*client) {
                replica.state = ReplicaState::WaitEnd;
            }
        }
        let links = state.links.iter().filter(|link| clients.contains(&link.client));
        (links.map(Arc::clone).collect::<Vec<_>>(), is_direct, filter, form)
    };
    let restore = |links: &[Arc<Link>]| {
        let mut state = server.replication().state();
        for link in links {
            if let Some(replica) = state.replicas.find(link.client) {
                replica.state = ReplicaState::WaitStart(now_ms);
            }
        }
        replication.is_syncing.store(false, Relaxed);
    };
    if links.is_empty() {
        return replication.is_syncing.store(false, Relaxed);
    }
    let target = match is_direct {
        true if form.count > 1 => {
            Target::Flows(FlowWriter::new(Arc::new(SharedFeed::new(form.count)), form, settings.rdb_checksum))
        }
        true => Target::Direct(Arc::new(SharedFeed::new(1))),
        false => Target::Unopened(settings.dir.clone()),
    };
    let anchor = Arc::new(Anchor::default());
    let started = Arc::clone(&anchor);
    let journal = JournalStart {
        which: Which::Stream,
        bytes_max: server.keyspace().journal().replica_bound(),
        wake: Arc::new(move || started.started.notify_all()),
    };
    let target_name = if is_direct { "replicas sockets" } else { "disk" };
    if form.count > 1 {
        let how = if form.is_compressed { "compressed flows" } else { "flows" };
        tracing::info!("Starting BGSAVE for SYNC with target: {target_name}, in {} {how}", form.count);
    } else {
        tracing::info!("Starting BGSAVE for SYNC with target: {target_name}");
    }
    let sync = FullSync { server: shared, anchor: Arc::clone(&anchor), links: links.clone(), target, stream_db };
    match snapshot::start_filtered(server, whole, Purpose::Replicas, filter, Some(journal), Box::new(sync)) {
        Ok(reader) => {
            *anchor.reader.lock().unwrap_or_else(PoisonError::into_inner) = reader;
            anchor.started.notify_all();
        }
        // `sync_if_due` retries a few times a second.
        Err(NotStarted::Running(_)) => restore(&links),
        Err(NotStarted::Thread(error)) => {
            tracing::warn!("Can't start a snapshot for replicas: {error}");
            restore(&links);
        }
    }
}

impl Consumer for FullSync {
    fn begin(&mut self) -> io::Result<Vec<(&'static str, String)>> {
        if let Target::Unopened(dir) = &self.target {
            faults::hold(Fault::StuckDisk);
            let file = unnamed_file(dir, "repl-snapshot").inspect_err(|error| {
                tracing::warn!("Can't open a temporary file for the synchronization of replicas: {error}");
            })?;
            self.target = Target::File(file);
        }
        let server = &*self.server;
        let start = self.anchor.offset(server)?;
        let id = server.replication().state().history.id();
        let lines = format!("+FULLRESYNC {id} {start}\r\n");
        for link in &self.links {
            let bound = server.keyspace().journal().replica_bound();
            let stream = server.keyspace().read_journal(Start::At(start), bound, Arc::clone(&link.wake))?;
            let stream = stream.map_err(|_| io::Error::other("the stream has left the snapshot behind"))?;
            let mut part = link.part();
            if part.is_disconnected {
                drop(part);
                server.keyspace().leave_journal(&stream);
                continue;
            }
            part.stream = Some(stream);
            if !link.is_old {
                part.lines.extend_from_slice(lines.as_bytes());
            }
            drop(part);
            link.wake();
        }
        server.replication().syncs.flows_sent.store(self.target.flows(), Relaxed);
        match &self.target {
            Target::Direct(feed) => {
                let id = server.replication().state().new_id();
                send_to(server, feed, &self.links, &Framing::mark(&id));
            }
            Target::Flows(writer) => send_flows_to(server, writer.feed(), &self.links, writer.form()),
            Target::File(_) | Target::Unopened(_) => {}
        }
        let db = self.stream_db.to_string();
        Ok(vec![("repl-stream-db", db), ("repl-id", id.to_string()), ("repl-offset", start.to_string())])
    }

    fn take(&mut self, section: Section, bytes: &mut Vec<u8>) -> io::Result<()> {
        match (&mut self.target, section) {
            (Target::Direct(feed), _) => feed.push(&self.server, 0, std::mem::take(bytes)),
            (Target::File(file), _) => file.write_all(bytes),
            (Target::Unopened(_), _) => Err(io::ErrorKind::NotFound.into()),
            (Target::Flows(writer), Section::Head) => writer.begin(&self.server, std::mem::take(bytes)),
            (Target::Flows(writer), Section::Part) => {
                writer.begin_part(&self.server)?;
                writer.write(&self.server, std::mem::take(bytes))
            }
            (Target::Flows(writer), Section::MoreOfPart) => writer.write(&self.server, std::mem::take(bytes)),
            (Target::Flows(writer), Section::Tail) => writer.end(&self.server),
        }
    }

    fn has_own_checksums(&self) -> bool {
        matches!(self.target, Target::Flows(_))
    }

    fn finished(self: Box<Self>, outcome: Result<Written, Failure>, _: Duration) -> Option<Record> {
        let FullSync { server, anchor, links, target, .. } = *self;
        if let Some(reader) = anchor.reader.lock().unwrap_or_else(PoisonError::into_inner).take() {
            server.keyspace().leave_journal(&reader);
        }
        match (outcome, target) {
            (Ok(written), Target::File(file)) => send_file(&server, file, written.bytes, &links),
            (Ok(_), target) => {
                tracing::info!("Background RDB transfer terminated with success");
                target.feed().iter().for_each(|feed| feed.end(true));
            }
            (Err(error), target) => {
                tracing::warn!("SYNC failed. BGSAVE child returned an error: {error}");
                target.feed().iter().for_each(|feed| feed.end(false));
                links.iter().for_each(|link| link.fail("its snapshot could not be written"));
            }
        }
        server.replication().is_syncing.store(false, Relaxed);
        None
    }
}

/// Sends a file to replicas, on a separate thread, so that the next snapshot need not wait for
/// them.
fn send_file(server: &Arc<Server>, mut file: File, file_bytes: u64, links: &[Arc<Link>]) {
    let feed = Arc::new(SharedFeed::new(1));
    send_to(server, &feed, links, &Framing::Length(file_bytes));
    let of_thread = (Arc::clone(&feed), Arc::clone(server));
    let run = move || {
        let (feed, server) = of_thread;
        let sent = file.rewind().and_then(|()| {
            loop {
                let mut chunk = vec![0; CHUNK_BYTES];
                let len = match file.read(&mut chunk) {
                    Ok(0) => return Ok(()),
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                    read => read?,
                };
                chunk.truncate(len);
                feed.push(&server, 0, chunk)?;
            }
        });
        if let Err(error) = &sent {
            tracing::warn!("Sending the snapshot to replicas ended: {error}");
        }
        feed.end(sent.is_ok());
    };
    if let Err(error) = std::thread::Builder::new().name("pantala-full-sync".into()).spawn(run) {
        tracing::warn!("Can't start a thread that sends the snapshot to replicas: {error}");
        feed.end(false);
    }
}
