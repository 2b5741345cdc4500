//! The link of a replica to its primary, as seen by the worker that owns the link's connection.
//!
//! An offset is a position in bytes in the primary's stream of commands. All commands before the
//! *applied* offset have run, and a partial resync continues there. The commands of a transaction
//! count as applied once its `EXEC` has run.
//!
//! The link *rests* while the server's own work, such as a snapshot, holds all shards. No command
//! of the stream runs then.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering::Relaxed};

/// Progress of a replica, for other threads.
#[derive(Debug, Default)]
pub struct Progress {
    /// Offset up to which the stream has been applied.
    pub applied: AtomicU64,
    /// Offset up to which the stream has been received.
    pub received: AtomicU64,
    /// Offset up to which the stream is known to be on disk here, in the append-only file.
    pub synced: AtomicU64,
    /// Number of the latest link ([`PrimaryLink::number`]).
    pub link: AtomicU64,
    /// Time at which bytes last arrived, Unix time in ms.
    pub received_ms: AtomicI64,
    /// Number of commands of the stream that failed.
    pub errors: AtomicU64,
    /// Whether the link rests. The dataset then contains exactly the commands before `applied`.
    pub is_resting: AtomicBool,
    /// The database that the stream has selected. Valid only while the link rests.
    pub db: AtomicU32,
}

/// The state of a sync of the append-only file that a report to the primary has requested
/// ([`PrimaryLink::syncing`]). A *report* sends the link's offset to the primary.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Syncing {
    /// No sync is requested.
    #[default]
    Idle,
    /// A sync is requested.
    Requested,
    /// A sync is requested, and a further report has become due since then.
    RequestedAgain,
    /// A sync has ended. The next report also sends the synced offset, and requests no sync.
    Ended,
}

/// The link. Belongs to the session of its connection.
#[derive(Debug)]
pub struct PrimaryLink {
    /// Number of the attempt that created the link. Later links have higher numbers.
    pub number: u64,
    received: u64,
    applied: u64,
    /// The last received bytes, which [`PrimaryLink::take_applied`] has not returned yet.
    unrelayed: Vec<u8>,
    /// Whether the link must rest before the next command of the stream, because the server's own
    /// work needs all shards.
    pub wants_rest: bool,
    /// Time at which the offset was last reported to the primary, Unix time in ms.
    acknowledged_ms: i64,
    /// Whether a report of the offset must be sent to the primary at the end of the worker's turn
    /// (iteration of its event loop).
    pub wants_ack: bool,
    /// The state of a sync of the append-only file. After the sync, a report sends the synced
    /// offset to the primary, whose `WAITAOF` commands wait for this offset.
    pub syncing: Syncing,
    is_broken: bool,
    progress: Arc<Progress>,
}

impl PrimaryLink {
    /// Returns a link that continues at `offset` and first sends this offset to the primary.
    pub fn new(number: u64, offset: u64, progress: Arc<Progress>) -> Self {
        progress.applied.store(offset, Relaxed);
        progress.received.store(offset, Relaxed);
        // The dataset may be a new one that the append-only file does not contain yet.
        progress.synced.store(0, Relaxed);
        progress.link.store(number, Relaxed);
        let (received, applied) = (offset, offset);
        PrimaryLink {
            number,
            received,
            applied,
            unrelayed: Vec::new(),
            wants_rest: false,
            acknowledged_ms: 0,
            wants_ack: true,
            syncing: Syncing::Idle,
            is_broken: false,
            progress,
        }
    }

    /// Counts received bytes of the stream, and keeps them until [`PrimaryLink::take_applied`]
    /// returns them.
    pub fn receive(&mut self, bytes: &[u8], now_ms: i64) {
        self.received += bytes.len() as u64;
        self.unrelayed.extend_from_slice(bytes);
        self.progress.received.store(self.received, Relaxed);
        self.progress.received_ms.store(now_ms, Relaxed);
    }

    /// Records that all received bytes except the last `pending` ones have been applied.
    pub fn apply_but(&mut self, pending: usize) {
        self.applied = self.received - pending as u64;
        self.progress.applied.store(self.applied, Relaxed);
    }

    /// Returns the bytes that have been applied since the last call, for the server's own replicas.
    pub fn take_applied(&mut self) -> Vec<u8> {
        let pending = (self.received - self.applied) as usize;
        let applied = self.unrelayed.len() - pending;
        if applied == 0 {
            return Vec::new();
        }
        let rest = self.unrelayed.split_off(applied);
        std::mem::replace(&mut self.unrelayed, rest)
    }

    /// Records that the link rests, with database `db` selected. `None`: the link no longer rests.
    pub fn rest(&self, db: Option<u32>) {
        self.progress.db.store(db.unwrap_or(0), Relaxed);
        self.progress.is_resting.store(db.is_some(), Relaxed);
    }

    /// Counts a command of the stream that has failed.
    pub fn count_error(&self) {
        self.progress.errors.fetch_add(1, Relaxed);
    }

    /// Returns the offset up to which the stream has been applied.
    pub fn applied(&self) -> u64 {
        self.applied
    }

    /// Records that the stream is invalid. The next link must not continue it.
    pub fn break_off(&mut self) {
        self.is_broken = true;
    }

    /// Returns the offset at which the next link may continue the stream, or `None` if it must not.
    pub fn continues_at(&self) -> Option<u64> {
        (!self.is_broken).then_some(self.applied)
    }

    /// Returns whether the caller must request a sync of the append-only file, because a report to
    /// the primary is due. Updates the state of the sync.
    pub fn requests_sync(&mut self) -> bool {
        if !self.wants_ack {
            return false;
        }
        let (requests, next) = match self.syncing {
            Syncing::Idle => (self.progress.synced.load(Relaxed) < self.applied, Syncing::Requested),
            Syncing::Requested | Syncing::RequestedAgain => (false, Syncing::RequestedAgain),
            Syncing::Ended => (false, Syncing::Idle),
        };
        if requests || self.syncing != Syncing::Idle {
            self.syncing = next;
        }
        requests
    }

    /// Records that a requested sync has ended. This makes a report due.
    pub fn end_sync(&mut self) {
        self.syncing = if self.syncing == Syncing::RequestedAgain { Syncing::Idle } else { Syncing::Ended };
        self.wants_ack = true;
    }

    /// Returns the progress that other threads see.
    pub fn progress(&self) -> &Arc<Progress> {
        &self.progress
    }

    /// Returns the command that reports the applied offset to the primary, if a report is due.
    /// Reports are due at the start of the link, once a second, at the primary's request, and when
    /// a sync has ended. `synced` is the offset up to which the stream is on disk; `None`: there is
    /// no append-only file.
    pub fn acknowledge(&mut self, now_ms: i64, synced: Option<u64>) -> Option<Vec<u8>> {
        if !std::mem::take(&mut self.wants_ack) {
            return None;
        }
        self.acknowledged_ms = now_ms;
        let offset = self.applied.to_string();
        let ack = |args: u8| format!("*{args}\r\n$8\r\nREPLCONF\r\n$3\r\nACK\r\n${}\r\n{offset}\r\n", offset.len());
        let text = match synced {
            None => ack(3),
            Some(synced) => {
                let synced = synced.to_string();
                format!("{}$4\r\nFACK\r\n${}\r\n{synced}\r\n", ack(5), synced.len())
            }
        };
        Some(text.into_bytes())
    }

    /// Returns whether the last report was sent at least a second ago.
    pub fn is_ack_due(&self, now_ms: i64) -> bool {
        now_ms - self.acknowledged_ms >= 1000
    }
}

/// A link that a worker will take over.
#[derive(Debug)]
pub struct NewPrimary {
    /// Socket of the link.
    pub socket: OwnedFd,
    /// Bytes of the stream that were already read from the socket.
    pub rest: Vec<u8>,
    /// The database that the stream has selected.
    pub db: u32,
    /// The link.
    pub link: PrimaryLink,
    /// Whether the worker that receives this value must take over the link itself. Otherwise that
    /// worker chooses a worker for the link and sends this value to it.
    pub is_placed: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_link_continues_at_the_applied_offset() {
        let progress = Arc::new(Progress::default());
        let mut link = PrimaryLink::new(1, 1000, Arc::clone(&progress));
        let ack = |link: &mut PrimaryLink, now_ms| {
            link.acknowledge(now_ms, None).map(|ack| String::from_utf8(ack).expect("text"))
        };
        assert_eq!(ack(&mut link, 5000).expect("at once"), "*3\r\n$8\r\nREPLCONF\r\n$3\r\nACK\r\n$4\r\n1000\r\n");
        assert_eq!((ack(&mut link, 5000), link.is_ack_due(5999), link.is_ack_due(6000)), (None, false, true));
        link.receive(&[1; 120], 5500);
        assert!(link.take_applied().is_empty());
        link.apply_but(20);
        assert_eq!(link.take_applied(), [1; 100]);
        assert!(link.take_applied().is_empty());
        assert_eq!((link.applied(), progress.received.load(Relaxed)), (1100, 1120));
        assert_eq!(link.continues_at(), Some(1100));
        link.receive(&[2; 3], 5500);
        link.apply_but(0);
        assert_eq!(link.take_applied(), [&[1; 20][..], &[2; 3]].concat());
        assert_eq!(link.continues_at(), Some(1123));
        link.break_off();
        assert_eq!((link.applied(), link.continues_at()), (1123, None));
    }

    #[test]
    fn one_sync_is_requested_at_a_time() {
        let progress = Arc::new(Progress::default());
        let mut link = PrimaryLink::new(1, 10, Arc::clone(&progress));
        let report = |link: &mut PrimaryLink| {
            link.wants_ack = true;
            let requests = link.requests_sync();
            link.acknowledge(0, Some(progress.synced.load(Relaxed)));
            requests
        };
        assert!(report(&mut link));
        assert!(!link.requests_sync(), "no report is due");
        progress.synced.store(10, Relaxed);
        link.end_sync();
        assert!(!link.requests_sync() && link.syncing == Syncing::Idle);
        let text = link.acknowledge(0, Some(10)).expect("a report");
        assert!(text.ends_with(b"$3\r\nACK\r\n$2\r\n10\r\n$4\r\nFACK\r\n$2\r\n10\r\n"));
        assert!(!report(&mut link), "all of it is on disk");
        link.receive(&[1; 5], 0);
        link.apply_but(0);
        assert!(report(&mut link) && !report(&mut link));
        link.end_sync();
        assert!(link.requests_sync(), "a report was due in the meantime");
        assert_eq!(PrimaryLink::new(2, 10, Arc::clone(&progress)).progress().synced.load(Relaxed), 0);
    }
}
