//! Decides which replies wait for the append-only file.
//!
//! 1. With `appendfsync always` or `CLIENT DURABILITY always`, a reply waits until all effects
//!    (propagated changes) that its commands have written or read are on disk.
//! 2. While the disk is slower than the writers, replies to commands that have written wait until
//!    the disk has caught up.
//!
//! Unwritten effects are kept in memory, so the second rule bounds memory usage. Redis blocks the
//! whole server while its disk is too slow; Pantala still answers reads.
//!
//! The gate is *shut* while one of the rules applies. A *stamp* is a number that gives the position
//! of effects in the order of commits. The stamp of a reply is the last stamp of the effects that
//! its commands have produced or seen. Under the first rule, a reply is sent once all effects up to
//! its stamp are on disk.

use std::sync::atomic::{AtomicU8, Ordering::Relaxed, Ordering::SeqCst};

use pantala_engine::client::Durability;
use pantala_engine::effect::Seen;

/// Size of unwritten effects above which replies to writes wait, bytes: 256 MiB.
pub const UNWRITTEN_BYTES_MAX: u64 = 256 * 1024 * 1024;

/// Size of unwritten effects at which the waiting replies are sent, bytes: 232 MiB. So once replies
/// wait, they wait until the disk has written at least 24 MiB. The memory of these 24 MiB is reused
/// ([`pantala_base::pool`]).
const CAUGHT_UP_BYTES: u64 = UNWRITTEN_BYTES_MAX - 24 * 1024 * 1024;

/// Bit: replies wait for syncs (`appendfsync always`).
const ALWAYS: u8 = 1 << 0;
/// Bit: the disk is behind the writers.
const BEHIND: u8 = 1 << 1;
/// Bit: the file is being written, so a disk that is behind will catch up. If this bit is 0, the
/// file is off, or writing has failed and the server rejects writes.
const WRITES: u8 = 1 << 2;

/// Bit: the file is on, and some clients ask for `CLIENT DURABILITY always`.
const ASKED: u8 = 1 << 3;
/// Bit: the stream of effects is kept for replicas, so connections note, for `WAIT`, the last
/// effect that their commands have produced or seen. No reply waits because of this bit. It is in
/// this byte because each command then tests all conditions with one load.
const STREAMED: u8 = 1 << 4;

/// While the disk is behind, replies with stamps below this one are sent. Only the replies to
/// commands that have written nothing have such a stamp, namely 0.
const NOTHING_WRITTEN: u64 = 1;

/// The conditions under which replies wait, as bits; see the head of this module.
#[derive(Default)]
pub struct Gate(AtomicU8);

impl Gate {
    /// Returns whether commands must note the effects that they have produced or seen. They must do
    /// so while the stream is kept for replicas, and while the file is written. While the file is
    /// written, the gate may shut between two commands of the same turn (an iteration of a worker's
    /// event loop). If the first of them had not noted its effect, this effect would be attributed
    /// to the second.
    #[inline]
    pub fn wants_notes(&self) -> bool {
        self.0.load(Relaxed) & (WRITES | ALWAYS | BEHIND | ASKED | STREAMED) != 0
    }

    /// Returns whether the stream of effects is kept for replicas.
    pub fn is_streamed(&self) -> bool {
        self.0.load(Relaxed) & STREAMED != 0
    }

    /// Sets whether the stream of effects is kept for replicas. Must be called before the first
    /// snapshot for replicas starts. Relaxed suffices, because the thread that starts the snapshot
    /// holds all shards and releases them after this call. So a thread that acquires a shard later
    /// sees the bit.
    pub fn set_streamed(&self, is_streamed: bool) {
        if is_streamed {
            self.0.fetch_or(STREAMED, Relaxed);
        } else {
            self.0.fetch_and(!STREAMED, Relaxed);
        }
    }

    /// Returns whether some replies wait.
    #[inline]
    pub fn is_shut(&self) -> bool {
        self.0.load(Relaxed) & (ALWAYS | BEHIND | ASKED) != 0
    }

    /// Returns whether `appendfsync always` makes replies to clients with this `CLIENT DURABILITY`
    /// wait for syncs.
    pub fn awaits_syncs(&self, durability: Durability) -> bool {
        self.0.load(Relaxed) & ALWAYS != 0 && durability != Durability::EverySecond
    }

    /// Returns whether replies wait for the disk to catch up. Under `appendfsync always`, they wait
    /// for syncs instead, and this function returns `false`.
    pub fn is_behind(&self) -> bool {
        self.0.load(Relaxed) & (ALWAYS | BEHIND) == BEHIND
    }

    /// Returns the stamp that the reply to a client's commands waits for, or 0 if the reply need
    /// not wait. `seen` describes the effects that these commands have produced or seen.
    pub fn awaited(&self, seen: Seen, durability: Durability) -> u64 {
        let bits = self.0.load(Relaxed);
        let for_sync = match durability {
            Durability::Always => bits & (ALWAYS | ASKED) != 0,
            Durability::Default => bits & ALWAYS != 0,
            Durability::EverySecond => false,
        };
        let waits = for_sync || bits & BEHIND != 0 && seen.has_written();
        if waits { seen.stamp() } else { 0 }
    }

    /// Returns the stamp below which replies may be sent. `synced` must return the stamp below
    /// which all effects are on disk.
    pub fn open_below(&self, synced: impl FnOnce() -> u64) -> u64 {
        // SeqCst: see `Aof::await_sync`.
        match self.0.load(SeqCst) {
            bits if bits & (ALWAYS | ASKED) != 0 => synced(),
            bits if bits & BEHIND != 0 => NOTHING_WRITTEN,
            _ => u64::MAX,
        }
    }

    /// Sets whether the file is written, and whether replies wait for syncs. Returns whether some
    /// waiting replies may now be sent.
    pub fn set(&self, writes: bool, awaits_syncs: bool) -> bool {
        let set = |before: u8| {
            let others = ASKED | STREAMED;
            let kept = before & if writes { BEHIND | others } else { others };
            Some(kept | if writes { WRITES } else { 0 } | if awaits_syncs { ALWAYS } else { 0 })
        };
        let before = self.0.fetch_update(SeqCst, SeqCst, set).unwrap_or_else(|before| before);
        before & (ALWAYS | BEHIND) & !self.0.load(SeqCst) != 0
    }

    /// Sets whether any client asks for `CLIENT DURABILITY always`. Returns whether some waiting
    /// replies may now be sent.
    pub fn set_asked(&self, is_asked: bool) -> bool {
        let before = if is_asked { self.0.fetch_or(ASKED, SeqCst) } else { self.0.fetch_and(!ASKED, SeqCst) };
        before & ASKED != 0 && !is_asked
    }

    /// Returns whether replies wait for syncs only because clients ask for `CLIENT DURABILITY
    /// always`.
    pub fn is_asked(&self) -> bool {
        self.0.load(SeqCst) & (ALWAYS | ASKED) == ASKED
    }

    /// Notes that more than [`UNWRITTEN_BYTES_MAX`] bytes wait to be written.
    pub fn note_behind(&self) {
        if self.0.load(Relaxed) & (WRITES | BEHIND) == WRITES {
            // If another thread turns the file off at the same time, the bit `BEHIND` must stay 0.
            let set = |before: u8| (before & WRITES != 0).then_some(before | BEHIND);
            let _ = self.0.fetch_update(SeqCst, SeqCst, set);
        }
    }

    /// Records the number of unwritten bytes. Returns whether the disk was behind and has now
    /// caught up.
    pub fn note_unwritten(&self, bytes: u64) -> bool {
        self.0.load(Relaxed) & BEHIND != 0
            && bytes <= CAUGHT_UP_BYTES
            && self.0.fetch_and(!BEHIND, SeqCst) & BEHIND != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WRITTEN: Seen = Seen::written(77);
    const READ: Seen = Seen::read(77);

    fn waits(gate: &Gate, seen: Seen) -> bool {
        gate.is_shut() && gate.awaited(seen, Durability::Default) >= gate.open_below(|| 50)
    }

    #[test]
    fn writes_wait_while_the_disk_is_behind() {
        let gate = Gate::default();
        gate.note_behind();
        assert!(!gate.is_shut() && !gate.wants_notes(), "the file is off");
        assert!(!gate.set(true, false));
        assert!(gate.wants_notes(), "the disk may fall behind");
        assert!(!gate.note_unwritten(0) && !waits(&gate, WRITTEN));
        gate.note_behind();
        assert!(gate.is_behind() && waits(&gate, WRITTEN) && !waits(&gate, READ));
        assert!(!gate.note_unwritten(CAUGHT_UP_BYTES + 1));
        assert!(waits(&gate, WRITTEN));
        assert!(gate.note_unwritten(CAUGHT_UP_BYTES));
        assert!(!gate.is_shut() && !waits(&gate, WRITTEN));
    }

    #[test]
    fn no_reply_waits_for_a_file_that_is_not_written() {
        let gate = Gate::default();
        gate.set(true, false);
        gate.note_behind();
        assert!(gate.set(false, false), "those that waited are sent");
        gate.note_behind();
        assert!(!gate.is_shut());
        gate.set(true, false);
        assert!(!gate.is_shut(), "it is not behind until it is found to be");
    }

    #[test]
    fn a_stream_for_replicas_wants_notes_and_holds_no_reply() {
        let gate = Gate::default();
        assert!(!gate.wants_notes());
        gate.set_streamed(true);
        assert!(gate.wants_notes() && gate.is_streamed() && !gate.is_shut() && !waits(&gate, WRITTEN));
        gate.set(true, true);
        assert!(gate.is_streamed() && gate.is_shut());
        gate.set_streamed(false);
        assert!(!gate.is_streamed() && gate.wants_notes() && gate.is_shut());
        gate.set(false, false);
        assert!(!gate.wants_notes());
    }

    #[test]
    fn with_always_reads_of_unsynced_effects_wait_too() {
        let gate = Gate::default();
        assert!(!gate.set(true, true));
        assert!(waits(&gate, WRITTEN) && waits(&gate, READ) && !gate.is_behind());
        gate.note_behind();
        assert!(!gate.is_behind() && !waits(&gate, Seen::written(49)), "syncs decide");
        assert!(gate.set(true, false), "those that only syncs held are sent");
        assert!(waits(&gate, WRITTEN) && !waits(&gate, READ));
    }

    #[test]
    fn clients_choose_when_their_replies_are_sent() {
        let gate = Gate::default();
        let waits = |seen: Seen, durability| gate.is_shut() && gate.awaited(seen, durability) >= gate.open_below(|| 50);
        let all = [Durability::Default, Durability::Always, Durability::EverySecond];
        gate.set(true, false);
        assert!(!gate.set_asked(true) && gate.is_asked());
        assert_eq!(all.map(|durability| waits(WRITTEN, durability)), [false, true, false]);
        assert_eq!(all.map(|durability| waits(READ, durability)), [false, true, false]);
        assert!(!waits(Seen::written(49), Durability::Always));
        gate.note_behind();
        assert_eq!(all.map(|durability| waits(WRITTEN, durability)), [true; 3], "the bound holds for all");
        assert_eq!(all.map(|durability| waits(READ, durability)), [false, true, false]);
        assert!(gate.set(false, false), "writing fails");
        assert_eq!(all.map(|durability| waits(WRITTEN, durability)), [false, true, false], "it is not on disk");
        gate.set(true, true);
        assert!(!gate.is_asked());
        assert_eq!(all.map(|durability| waits(WRITTEN, durability)), [true, true, false]);
        assert!(gate.set(true, false));
        assert!(gate.set_asked(false) && !gate.set_asked(false) && !gate.is_shut());
    }
}
