//! The position of a reader in the log. [`crate::effect`] defines epoch, unit, stamp and the other
//! terms.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use pantala_base::{Outgoing, SharedBytes};

use super::{Ahead, CutOff, ReaderId, Wake};

/// While a reader has at least this number of unread bytes that were fetched from the disk, no
/// further read from the disk is started for it.
const FETCHED_BYTES_MAX: u64 = 1024 * 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// The reader starts at the next end of an epoch. The value is `true` once that end has started
    /// ([`Log::note_epoch_ending`]).
    Joining(bool),
    /// The reader starts after the last unit with at most this stamp.
    Before(u64),
    /// The reader continues at this offset.
    At(u64),
    CutOff(CutOff),
}

/// The state of the thread that owns an eager reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// The thread reads, or handles the bytes that it has read. It may take long until it can end
    /// an epoch.
    Busy,
    /// The thread sleeps, and must be woken to end the epoch.
    Sleeping,
    /// The thread was woken and will end the epoch.
    Woken,
}

/// The position and settings of a reader.
pub(crate) struct Place {
    pub(super) id: ReaderId,
    pub(super) state: State,
    /// Maximum number of bytes that the reader may be behind the end.
    pub(super) bytes_max: Arc<AtomicU64>,
    pub(super) wake: Wake,
    /// Whether the reader waits: it must be woken when there is more to read, or when it is cut
    /// off.
    pub(super) is_waiting: bool,
    /// Whether the reader discards everything ([`Log::join_discarding`]).
    pub(super) discards: bool,
    /// Whether a reader that has read everything is woken at the end of each epoch, even if the
    /// epoch added no bytes.
    pub(super) is_eager: bool,
    /// The state of an eager reader's owner.
    pub(super) owner: Owner,
    /// A lag in bytes, and a callback that is called repeatedly while the reader's lag is greater.
    /// The merging thread calls it at the end of each epoch and during a long epoch. Workers call
    /// it when they have handed over many bytes.
    pub(super) warning: Option<(u64, Wake)>,
    /// Bytes that were read from the disk and that the reader has not read. They start at the
    /// reader's position.
    fetched: VecDeque<Arc<SharedBytes>>,
    fetched_bytes: u64,
    /// Whether the reader needs more bytes from the disk.
    pub(super) needs_disk: bool,
}

impl Place {
    pub(super) fn new(id: ReaderId, state: State, bytes_max: Arc<AtomicU64>, wake: Wake, discards: bool) -> Self {
        Place {
            id,
            state,
            bytes_max,
            wake,
            is_waiting: true,
            discards,
            is_eager: false,
            owner: Owner::Busy,
            warning: None,
            fetched: VecDeque::new(),
            fetched_bytes: 0,
            needs_disk: false,
        }
    }

    /// Sets whether the reader is eager.
    pub(crate) fn set_eager(&mut self, is_eager: bool) {
        (self.is_eager, self.owner) = (is_eager, Owner::Busy);
    }

    /// Notes that the owner of an eager reader sleeps until the reader is woken. Returns `false`,
    /// and notes nothing, if there is more to read.
    pub(crate) fn note_sleeping(&mut self) -> bool {
        let may_sleep = self.is_eager && self.is_waiting;
        if may_sleep {
            self.owner = Owner::Sleeping;
        }
        may_sleep
    }

    /// Notes that the reader will read soon, so that it need not be woken when there is more to
    /// read.
    pub(crate) fn note_reading(&mut self) {
        (self.is_waiting, self.owner) = (false, Owner::Busy);
    }

    /// Returns whether the reader's owner neither sleeps nor was woken to end the epoch.
    pub(crate) fn is_busy(&self) -> bool {
        self.owner == Owner::Busy
    }

    /// Returns whether there is nothing to read.
    pub(crate) fn has_read_all(&self) -> bool {
        self.is_waiting
    }

    pub(super) fn start_at(&mut self, offset: u64) {
        self.state = State::At(offset);
    }

    /// Cuts off the reader, which is then woken.
    pub(super) fn cut_off(&mut self, why: CutOff) {
        self.state = State::CutOff(why);
        self.is_waiting = true;
        (self.fetched, self.fetched_bytes, self.needs_disk) = (VecDeque::new(), 0, false);
    }

    /// Returns the offset of the next byte that the reader needs from the log. The reader is at
    /// `position`.
    pub(super) fn next(&self, position: u64) -> u64 {
        position + self.fetched_bytes
    }

    pub(super) fn has_fetched(&self) -> bool {
        !self.fetched.is_empty()
    }

    /// Returns whether a waiting reader must be woken. The bytes in memory are those from
    /// `memory_start` to `end`.
    pub(super) fn has_events(&self, memory_start: u64, end: u64) -> bool {
        match self.state {
            State::Joining(_) | State::Before(_) => false,
            State::At(position) => self.has_fetched() || (memory_start..end).contains(&position),
            State::CutOff(_) => true,
        }
    }

    /// Moves fetched bytes to `into`, from `position` until at least `limit`. Returns the offset
    /// after these bytes.
    pub(super) fn read_fetched(&mut self, position: u64, limit: u64, into: &mut Vec<Outgoing>) -> u64 {
        let mut at = position;
        while at < limit
            && let Some(part) = self.fetched.pop_front()
        {
            at += part.len() as u64;
            self.fetched_bytes -= part.len() as u64;
            into.push(part.into());
        }
        at
    }

    /// Moves the reader to `position`. The bytes after the fetched ones are on disk. If the reader
    /// `wants` bytes, more bytes are read ahead. Returns the state of the stream.
    pub(super) fn await_disk(&mut self, position: u64, wants: bool) -> Ahead {
        self.state = State::At(position);
        self.needs_disk |= wants && self.fetched_bytes < FETCHED_BYTES_MAX;
        self.is_waiting = wants && !self.has_fetched();
        if self.is_waiting { Ahead::Nothing } else { Ahead::More }
    }

    /// Adds bytes from the disk, which follow the fetched ones.
    pub(super) fn add_fetched(&mut self, part: Arc<SharedBytes>) {
        self.fetched_bytes += part.len() as u64;
        self.fetched.push_back(part);
        self.needs_disk = self.fetched_bytes < FETCHED_BYTES_MAX;
    }

    /// Calls the warning if the reader is too far behind. Returns whether the warning was called.
    pub(super) fn warn(&self, lag_bytes: u64) -> bool {
        if let Some((bytes, warn)) = &self.warning
            && lag_bytes > *bytes
        {
            warn();
            return true;
        }
        false
    }
}
