//! Reads the bytes to send to a replica, for the worker that owns the replica's connection.

use std::sync::Arc;

use pantala_base::Outgoing;
use pantala_engine::client::{Following, Next};
use pantala_engine::effect::log::Ahead;
use pantala_engine::keyspace::Keyspace;
use pantala_replication::{FeedAhead, ReplicaState};

use super::{Link, Part, Phase};
use crate::host::Server;

/// Interval between empty lines sent to a replica that waits for a snapshot, ms. Without them, the
/// replica would time out and close the connection.
const EMPTY_LINE_MS: i64 = 1000;

/// The source of the bytes for one replica.
pub(super) struct LinkReader {
    server: Arc<Server>,
    link: Arc<Link>,
    wants_no_stream: bool,
    /// When the replica last accepted bytes, or was sent a part of a snapshot or an empty line, in
    /// ms of the monotonic clock.
    sent_ms: i64,
    /// The size of the connection's output when it was last checked, bytes.
    pending_bytes: usize,
}

/// Enters the phase that follows the snapshot, once all bytes of the snapshot have been read.
/// Returns [`Next::End`] if the replica wants no stream.
fn after_bulk(part: &mut Part, wants_no_stream: bool, into: &mut Vec<Outgoing>) -> Option<Next> {
    let Phase::Bulk { feed, reader, trailer } = &mut part.phase else { return None };
    feed.leave(*reader);
    let waits = !trailer.is_empty();
    if waits {
        into.push(std::mem::take(trailer).into());
    }
    if wants_no_stream {
        part.phase = Phase::UntilAck;
        return Some(Next::End);
    }
    part.phase = if waits { Phase::UntilAck } else { Phase::Stream };
    None
}

impl LinkReader {
    pub(super) fn new(server: Arc<Server>, link: Arc<Link>, wants_no_stream: bool) -> Self {
        let sent_ms = server.monotonic_ms();
        LinkReader { server, link, wants_no_stream, sent_ms, pending_bytes: 0 }
    }

    fn read_stream(part: &mut Part, bytes: usize, into: &mut Vec<Outgoing>) -> Next {
        match &mut part.stream {
            Some(stream) => Next::Ahead(stream.read(bytes, into)),
            None => Next::Failed("its place in the stream is missing".to_owned()),
        }
    }
}

impl Following for LinkReader {
    fn read(&mut self, bytes: usize, into: &mut Vec<Outgoing>) -> Next {
        let link = Arc::clone(&self.link);
        let mut part = link.part();
        if !part.lines.is_empty() {
            into.push(std::mem::take(&mut part.lines).into());
        }
        let now_ms = self.server.monotonic_ms();
        let (feed, reader) = match &part.phase {
            Phase::Failed(why) => return Next::Failed(why.clone()),
            Phase::Stream => return Self::read_stream(&mut part, bytes, into),
            Phase::UntilAck => return Next::Ahead(Ahead::Nothing),
            Phase::Wait => {
                if now_ms - self.sent_ms >= EMPTY_LINE_MS {
                    self.sent_ms = now_ms;
                    into.push(b"\n".to_vec().into());
                }
                return Next::Ahead(Ahead::Nothing);
            }
            Phase::Bulk { feed, reader, .. } => (Arc::clone(feed), *reader),
        };
        let before = into.len();
        let ahead = feed.read(reader, bytes, into);
        // With flows, the next part of the snapshot may go to another flow.
        let is_idle = part.flows.is_some() && bytes > 0 && ahead == FeedAhead::Nothing;
        if into.len() > before || is_idle {
            self.sent_ms = now_ms;
        }
        match ahead {
            FeedAhead::More => return Next::Ahead(Ahead::More),
            FeedAhead::Nothing => return Next::Ahead(Ahead::Nothing),
            FeedAhead::Failed => return Next::Failed("the snapshot could not be written".to_owned()),
            FeedAhead::End => {}
        }
        let next = after_bulk(&mut part, self.wants_no_stream, into);
        let next = match (next, &part.phase) {
            (Some(end), _) => end,
            (None, Phase::Stream) => Self::read_stream(&mut part, bytes, into),
            (None, _) => Next::Ahead(Ahead::Nothing),
        };
        let flows = part.flows.clone();
        drop(part);
        if let Some(flows) = flows {
            flows.note_sent(&self.server, 0);
        } else if next == Next::End {
            tracing::info!("RDB transfer completed, rdb only replica ({}) should be disconnected asap", link.name);
        } else {
            self.server.replication().set_online(&self.server, link.client);
            tracing::info!("Synchronization with replica {} succeeded", link.name);
        }
        next
    }

    fn limited_bytes(&self) -> u64 {
        self.link.part().stream.as_ref().map_or(0, pantala_engine::effect::Reader::limited_bytes)
    }

    fn timed_out(&mut self, pending_bytes: usize) -> Option<String> {
        let timeout_ms = self.server.config().settings().primary.timeout_s as i64 * 1000;
        let now_ms = self.server.monotonic_ms();
        if std::mem::replace(&mut self.pending_bytes, pending_bytes) != pending_bytes {
            self.sent_ms = now_ms;
        }
        let (is_sent_bulk, flows) = {
            let part = self.link.part();
            (matches!(part.phase, Phase::Bulk { .. }), part.flows.clone())
        };
        if let Some(why) = flows.and_then(|flows| flows.timed_out(now_ms, timeout_ms)) {
            return Some(why);
        }
        if is_sent_bulk {
            let is_stuck = now_ms - self.sent_ms > timeout_ms;
            return is_stuck.then(|| format!("Disconnecting timedout replica (full sync): {}", self.link.name));
        }
        if self.link.is_old {
            return None;
        }
        let mut state = self.server.replication().state();
        let replica = state.replicas.find(self.link.client)?;
        let is_silent = replica.state == ReplicaState::Online && now_ms - replica.acked_ms > timeout_ms;
        is_silent.then(|| format!("Disconnecting timedout replica (streaming sync): {}", self.link.name))
    }

    fn leave(&mut self, keyspace: &Keyspace) {
        let (stream, phase, flows) = {
            let mut part = self.link.part();
            part.is_disconnected = true;
            (part.stream.take(), std::mem::replace(&mut part.phase, Phase::Wait), part.flows.take())
        };
        if let Some(flows) = flows {
            flows.close(&self.server);
        }
        if let Phase::Bulk { feed, reader, .. } = phase {
            feed.leave(reader);
        }
        if let Some(stream) = stream {
            keyspace.leave_journal(&stream);
        }
        self.server.replication().removed(&self.server, self.link.client);
        tracing::info!("Connection with replica {} lost.", self.link.name);
    }
}
