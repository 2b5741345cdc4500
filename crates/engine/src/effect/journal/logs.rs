//! The two logs of the journal: the effects, which the append-only file reads, and the stream,
//! which replicas read. [`crate::effect`] defines epoch, unit, cut and the other terms.
//!
//! On a primary both logs contain the same units, and the stream also contains `PING`s and requests
//! for acknowledgements. On a replica the stream consists of the bytes of its primary, at the
//! primary's offsets ([`Journal::relay`](super::Journal::relay)), while the effects are the
//! replica's own units. So all servers of a chain use the same offsets, and a replica of a replica
//! can continue its stream at another one of them.
//!
//! ```text
//!                 hold, relay_from                      resume                epoch ends
//! Source::Own ────────────────────► Source::Relayed ──────────► Source::Joining ──────► Source::Own
//! ```

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use pantala_base::BufferPool;

use crate::effect::log::{DeferredWork, Log, NotHeld, ReaderId, Start, Wake};
use crate::effect::piece::Piece;

/// A log of the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// The effects of this server's commands.
    Effects,
    /// The bytes for replicas.
    Stream,
}

/// Origin of the stream's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    /// The units of this server.
    Own,
    /// The stream will consist of this server's units from the next end of an epoch, because no
    /// unit is partly recorded there. Until then it is as with `Relayed`. The value is `true` once
    /// the end of that epoch has started ([`Logs::note_epoch_ending`]).
    Joining(bool),
    /// The bytes of a primary.
    Relayed,
}

/// The two logs. See the head of this module.
pub(super) struct Logs {
    effects: Log,
    stream: Log,
    /// The pool to which the memory of both logs returns.
    pool: Arc<BufferPool>,
    source: Source,
    /// The reader that keeps the stream's backlog.
    keeper: Option<ReaderId>,
}

impl Logs {
    pub(super) fn new(pool: &Arc<BufferPool>) -> Self {
        Logs {
            effects: Log::new(pool),
            stream: Log::new(pool),
            pool: Arc::clone(pool),
            source: Source::Own,
            keeper: None,
        }
    }

    pub(super) fn of(&self, which: Which) -> &Log {
        match which {
            Which::Effects => &self.effects,
            Which::Stream => &self.stream,
        }
    }

    pub(super) fn of_mut(&mut self, which: Which) -> &mut Log {
        match which {
            Which::Effects => &mut self.effects,
            Which::Stream => &mut self.stream,
        }
    }

    /// Returns whether workers must record their units.
    pub(super) fn want_units(&self) -> bool {
        self.effects.is_wanted() || self.source != Source::Relayed && self.stream.is_wanted()
    }

    /// Returns whether periodic `PING`s must be appended to the stream. A relayed stream contains
    /// the primary's `PING`s.
    pub(super) fn need_pings(&self) -> bool {
        self.source == Source::Own && self.stream.has_readers()
    }

    /// Returns whether a reader or the stream waits for the end of an epoch. The reader will then
    /// start, and the stream will consist of this server's units again.
    pub(super) fn have_joining(&self) -> bool {
        self.effects.has_joining() || self.stream.has_joining() || matches!(self.source, Source::Joining(_))
    }

    /// Returns the earliest stamp of a cut at which a reader waits to start.
    pub(super) fn next_cut(&self) -> Option<u64> {
        self.effects.next_cut().into_iter().chain(self.stream.next_cut()).min()
    }

    /// Returns the range of offsets that are in the stream's log, in memory or on disk, and whether
    /// the stream is recorded.
    pub(super) fn held(&self) -> (Range<u64>, bool) {
        (self.stream.held(), self.stream.has_readers())
    }

    /// Adds a reader as [`Log::join`] does. While the stream is relayed, a reader that joins at a
    /// cut starts at the stream's end, because only [`Logs::relay`] adds to the stream.
    pub(super) fn join(
        &mut self,
        which: Which,
        start: Start,
        bytes_max: Arc<AtomicU64>,
        wake: Wake,
    ) -> Result<ReaderId, NotHeld> {
        let is_relayed = which == Which::Stream && self.source == Source::Relayed && self.stream.has_readers();
        let start = match start {
            Start::Cut(_) if is_relayed => Start::At(self.stream.held().end),
            start => start,
        };
        self.of_mut(which).join(start, bytes_max, wake)
    }

    /// Adds the reader that keeps the backlog. Returns false if there is one already.
    pub(super) fn keep(&mut self) -> bool {
        let is_new = self.keeper.is_none();
        if is_new {
            self.keeper = Some(self.stream.join_discarding());
        }
        is_new
    }

    /// Removes the reader that keeps the backlog.
    pub(super) fn stop_keeping(&mut self) -> DeferredWork {
        match self.keeper.take() {
            Some(id) => self.stream.leave(id),
            None => DeferredWork::default(),
        }
    }

    /// Records that the end of an epoch starts.
    pub(super) fn note_epoch_ending(&mut self) {
        self.effects.note_epoch_ending();
        self.stream.note_epoch_ending();
        if self.source == Source::Joining(false) {
            self.source = Source::Joining(true);
        }
    }

    /// Returns the units to append to each of the two logs: the effects, and the stream.
    fn share(&self, units: Vec<Piece>) -> (Vec<Piece>, Vec<Piece>) {
        let is_streamed = self.source == Source::Own && self.stream.has_readers();
        match (self.effects.has_readers(), is_streamed) {
            (true, true) => units.into_iter().map(|piece| piece.into_two(&self.pool)).unzip(),
            (false, true) => (Vec::new(), units),
            _ => (units, Vec::new()),
        }
    }

    /// Appends the whole units of an epoch. Starts the readers that joined with [`Start::Now`]
    /// before [`Logs::note_epoch_ending`] was called for this epoch. If the stream was resumed
    /// before that call, the stream consists of this server's units from now on. Returns whether a
    /// reader or the stream has started.
    pub(super) fn append(&mut self, units: Vec<Piece>) -> (bool, DeferredWork) {
        let (units, streamed) = self.share(units);
        let (has_reader, mut aftermath) = self.effects.append(units);
        let (has_replica, of_stream) = self.stream.append(streamed);
        aftermath.add(of_stream);
        let resumes = self.source == Source::Joining(true);
        if resumes {
            self.source = Source::Own;
        }
        (has_reader | has_replica | resumes, aftermath)
    }

    /// Appends the whole units up to a cut, and starts the readers that wait for this cut.
    pub(super) fn append_to_cut(&mut self, units: Vec<Piece>, stamp: u64) -> DeferredWork {
        let (units, streamed) = self.share(units);
        let starts_stream = self.stream.next_cut() == Some(stamp);
        let mut aftermath = self.effects.append_to_cut(units, stamp);
        aftermath.add(self.stream.append_to_cut(streamed, stamp));
        if starts_stream && self.source != Source::Relayed {
            // All shards were held at the cut, so no unit is partly recorded.
            self.source = Source::Own;
        }
        aftermath
    }

    /// Appends a command that no worker has run to the stream, if the stream consists of this
    /// server's units.
    pub(super) fn append_own(&mut self, command: Piece) -> DeferredWork {
        match self.source {
            Source::Own => self.stream.append(vec![command]).1,
            Source::Joining(_) | Source::Relayed => DeferredWork::default(),
        }
    }

    /// Notes that all units with stamps below `before` are in the logs, as [`Log::complete`] does.
    /// Skips a stream that does not consist of this server's units.
    pub(super) fn complete(&mut self, before: u64) -> Vec<Wake> {
        let mut wakes = self.effects.complete(before);
        if self.source == Source::Own {
            wakes.extend(self.stream.complete(before));
        }
        wakes
    }

    /// Cuts off and warns readers as [`Log::cut_off`] does. A stream that does not consist of this
    /// server's units has no pending bytes.
    pub(super) fn cut_off(&mut self, pending_bytes: u64) {
        self.effects.cut_off(pending_bytes);
        self.stream.cut_off(if self.source == Source::Own { pending_bytes } else { 0 });
    }

    pub(super) fn free(&mut self) -> DeferredWork {
        let mut aftermath = self.effects.free();
        aftermath.add(self.stream.free());
        aftermath
    }

    /// Stops adding this server's units to the stream. Returns the offset of the stream's end.
    pub(super) fn hold(&mut self) -> u64 {
        self.source = Source::Relayed;
        self.stream.held().end
    }

    /// Makes the stream consist of a primary's bytes, starting at `offset`. Keeps the held bytes if
    /// they belong to the primary's stream (`is_same`) and end at `offset`. Otherwise drops them
    /// and cuts off their readers.
    pub(super) fn relay_from(&mut self, offset: u64, is_same: bool) -> DeferredWork {
        self.source = Source::Relayed;
        self.keep();
        let (held, is_recorded) = self.held();
        match is_same && is_recorded && held.end == offset {
            true => DeferredWork::default(),
            false => self.stream.reset(offset),
        }
    }

    /// Appends bytes of the primary.
    pub(super) fn relay(&mut self, bytes: Vec<u8>) -> DeferredWork {
        debug_assert_eq!(self.source, Source::Relayed, "the link has ended before the stream is resumed");
        match self.source {
            Source::Relayed => self.stream.append(vec![Piece::Own(bytes)]).1,
            Source::Own | Source::Joining(_) => DeferredWork::default(),
        }
    }

    /// Makes the stream consist of this server's units again, starting at the end of an epoch.
    pub(super) fn resume(&mut self) {
        if self.source == Source::Relayed {
            self.source = Source::Joining(false);
        }
    }

    /// Returns whether the stream consists of this server's units.
    pub(super) fn are_own(&self) -> bool {
        self.source == Source::Own
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;

    fn reader(logs: &mut Logs, which: Which, start: Start) -> ReaderId {
        logs.join(which, start, Arc::new(AtomicU64::new(u64::MAX)), Arc::new(|| {})).expect("it is held")
    }

    fn epoch(logs: &mut Logs, unit: &str) {
        logs.note_epoch_ending();
        logs.append(vec![Piece::Own(unit.as_bytes().to_vec())]).1.settle();
    }

    fn read(logs: &mut Logs, which: Which, id: ReaderId) -> String {
        let mut parts = Vec::new();
        let _ = logs.of_mut(which).read(id, usize::MAX, &mut parts);
        let bytes = parts.iter().flat_map(|part| part.bytes().to_vec()).collect();
        String::from_utf8(bytes).expect("text")
    }

    #[test]
    fn units_are_in_both_logs_and_pings_in_the_stream_only() {
        let mut logs = Logs::new(&Arc::default());
        let file = reader(&mut logs, Which::Effects, Start::Now);
        let replica = reader(&mut logs, Which::Stream, Start::Now);
        epoch(&mut logs, "early");
        epoch(&mut logs, "a");
        logs.append_own(Piece::Control(b"ping")).settle();
        epoch(&mut logs, "b");
        assert_eq!(read(&mut logs, Which::Effects, file), "ab");
        assert_eq!(read(&mut logs, Which::Stream, replica), "apingb");
    }

    #[test]
    fn a_promoted_replica_continues_behind_the_bytes_of_its_primary() {
        let mut logs = Logs::new(&Arc::default());
        logs.of_mut(Which::Stream).set_backlog(1000);
        let file = reader(&mut logs, Which::Effects, Start::Now);
        epoch(&mut logs, "early");
        logs.relay_from(100, false).settle();
        assert_eq!(logs.held(), (100..100, true));
        logs.relay(b"one".to_vec()).settle();
        epoch(&mut logs, "(one)");
        let at_cut = reader(&mut logs, Which::Stream, Start::Cut(7));
        assert_eq!(logs.of(Which::Stream).position(at_cut), Some(103), "the end of what was relayed");
        logs.relay(b"two".to_vec()).settle();
        logs.append_own(Piece::Control(b"ping")).settle();
        logs.resume();
        assert!(!logs.are_own() && logs.have_joining());
        epoch(&mut logs, "(two)");
        assert!(logs.are_own());
        epoch(&mut logs, "own");
        assert_eq!(logs.held(), (100..109, true));
        let behind = reader(&mut logs, Which::Stream, Start::At(101));
        assert_eq!(read(&mut logs, Which::Stream, behind), "netwoown");
        assert_eq!(read(&mut logs, Which::Stream, at_cut), "twoown");
        assert_eq!(read(&mut logs, Which::Effects, file), "(one)(two)own");
    }

    #[test]
    fn the_stream_of_another_history_cuts_off_its_readers() {
        let mut logs = Logs::new(&Arc::default());
        logs.relay_from(100, false).settle();
        logs.relay(b"one".to_vec()).settle();
        let replica = reader(&mut logs, Which::Stream, Start::At(100));
        logs.relay_from(103, true).settle();
        assert_eq!(logs.held(), (100..103, true), "the same stream goes on");
        logs.relay_from(103, false).settle();
        assert_eq!(logs.held(), (103..103, true));
        assert_eq!(logs.of(Which::Stream).position(replica), None);
        assert!(!logs.want_units(), "nothing reads the server's own units");
    }

    #[test]
    fn a_primary_that_becomes_a_replica_and_back_keeps_its_backlog() {
        let mut logs = Logs::new(&Arc::default());
        logs.of_mut(Which::Stream).set_backlog(1000);
        assert!(logs.keep() && !logs.keep());
        epoch(&mut logs, "early");
        let start = logs.held().0.end;
        epoch(&mut logs, "own");
        assert_eq!(logs.hold(), start + 3);
        epoch(&mut logs, "lost");
        logs.relay_from(start + 3, true).settle();
        logs.relay(b"relayed".to_vec()).settle();
        logs.resume();
        epoch(&mut logs, "lost");
        epoch(&mut logs, "own");
        let replica = reader(&mut logs, Which::Stream, Start::At(start));
        assert_eq!(read(&mut logs, Which::Stream, replica), "ownrelayedown");
        logs.stop_keeping().settle();
        logs.of_mut(Which::Stream).leave(replica).settle();
        assert!(!logs.held().1);
    }
}
