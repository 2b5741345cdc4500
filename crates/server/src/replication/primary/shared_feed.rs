//! The feed of a full sync's snapshot. It consists of one [`Feed`] for each flow, under one lock,
//! because the writer waits for room in any of them.

use std::io;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pantala_base::Outgoing;
use pantala_replication::{Feed, FeedAhead, FeedReader, Wake};

use crate::host::Server;

/// Maximum number of bytes that a feed keeps for its slowest reader, in all flows together.
const FEED_BYTES_MAX: u64 = 8 * 1024 * 1024;

/// Interval at which a waiting thread checks whether the server stops.
pub(super) const LOOK: Duration = Duration::from_millis(100);

/// A reader of one flow of a feed.
#[derive(Clone, Copy, Debug)]
pub(super) struct FlowReader {
    flow: usize,
    reader: FeedReader,
}

struct State {
    flows: Vec<Feed>,
    /// The flow of the latest part.
    last: usize,
}

/// A feed whose writer blocks while the feed is full.
pub(super) struct SharedFeed {
    state: Mutex<State>,
    room: Condvar,
}

impl SharedFeed {
    /// Creates a feed with this number of flows.
    pub(super) fn new(flows: u32) -> Self {
        let bytes_max = FEED_BYTES_MAX / u64::from(flows);
        let flows = (0..flows).map(|_| Feed::new(bytes_max)).collect();
        SharedFeed { state: Mutex::new(State { flows, last: 0 }), room: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a reader of a flow. Must be called before any bytes are appended.
    pub(super) fn join(&self, flow: usize, wake: Wake) -> FlowReader {
        FlowReader { flow, reader: self.lock().flows[flow].join(wake) }
    }

    /// Does the same as [`Feed::read`], and wakes the writer.
    pub(super) fn read(&self, from: FlowReader, bytes: usize, into: &mut Vec<Outgoing>) -> FeedAhead {
        let ahead = self.lock().flows[from.flow].read(from.reader, bytes, into);
        self.room.notify_one();
        ahead
    }

    /// Does the same as [`Feed::leave`], and wakes the writer.
    pub(super) fn leave(&self, from: FlowReader) {
        self.lock().flows[from.flow].leave(from.reader);
        self.room.notify_one();
    }

    /// Waits until a flow has room. Returns the flow with the fewest unread bytes, for the next
    /// part. So a slow connection receives fewer parts than the others.
    pub(super) fn choose(&self, server: &Server) -> io::Result<usize> {
        let is_full = |state: &State| state.flows.iter().all(Feed::is_full);
        let mut state = self.wait_for_room(server, is_full)?;
        let count = state.flows.len();
        // Starts after the latest flow, so that equally fast flows take turns.
        let candidates = (1..=count).map(|step| (state.last + step) % count);
        let chosen = candidates.min_by_key(|flow| state.flows[*flow].unread_bytes());
        state.last = chosen.unwrap_or_default();
        Ok(state.last)
    }

    /// Waits until a flow has room, and appends a chunk.
    pub(super) fn push(&self, server: &Server, flow: usize, bytes: Vec<u8>) -> io::Result<()> {
        let mut state = self.wait_for_room(server, |state| state.flows[flow].is_full())?;
        let wakes = state.flows[flow].push(bytes);
        drop(state);
        wakes.iter().for_each(|wake| wake());
        Ok(())
    }

    /// Waits while the feed is full. Fails if the feed has no readers.
    fn wait_for_room(&self, server: &Server, is_full: impl Fn(&State) -> bool) -> io::Result<MutexGuard<'_, State>> {
        let has_readers = |state: &State| state.flows.iter().any(Feed::has_readers);
        let mut state = self.lock();
        while is_full(&state) && has_readers(&state) && !server.is_stopping() {
            state = self.room.wait_timeout(state, LOOK).unwrap_or_else(PoisonError::into_inner).0;
        }
        if !has_readers(&state) || server.is_stopping() {
            return Err(io::Error::new(io::ErrorKind::BrokenPipe, "no replica is left"));
        }
        Ok(state)
    }

    /// Ends all flows.
    pub(super) fn end(&self, is_complete: bool) {
        let wakes: Vec<Wake> = self.lock().flows.iter_mut().flat_map(|flow| flow.end(is_complete)).collect();
        wakes.iter().for_each(|wake| wake());
    }
}
