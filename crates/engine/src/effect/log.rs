//! The merged stream in memory. The journal's thread appends to it, and each reader reads it from
//! its own position.
//!
//! ```text
//! offset   start                                         end
//!            ├──── chunk ────┬── chunk ──┬──── chunk ────┬─ tail ─┤   ◄── append
//!                            ▲                      ▲             ▲
//!                        replica A              replica B      file
//! ```
//!
//! The offset of a byte never changes while the server runs. Chunks are immutable, and readers
//! share their memory. Short parts are first collected in the tail, which is copied for each
//! reader.
//!
//! | kept | until |
//! | --- | --- |
//! | a chunk | all readers have passed it, and the backlog, if any, is full without it |
//! | the unread bytes of a reader | they exceed the reader's bound: the reader is cut off |
//!
//! So a slow reader uses memory up to its bound, and writers never wait for it. A reader may start
//! at any offset that is still in the log.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use pantala_base::{Outgoing, SharedBytes};

/// Maximum length of the tail, bytes. A longer part becomes a separate chunk, because sharing it
/// costs less than copying it.
pub(crate) const TAIL_BYTES_MAX: usize = 16 * 1024;

/// Maximum number of epochs whose ends are known ([`Log::offset_behind`]).
const ENDS_MAX: usize = 1024;

/// By how much an end that stands for a forgotten one may be later, as a part of the time since
/// then: 1/16. Ends of years fit within [`ENDS_MAX`] so.
const LATENESS_RATIO: u64 = 16;

/// Number of a reader, unique for as long as the server runs.
pub(crate) type ReaderId = u64;

/// Called when a reader that had read everything has more to read or was cut off. The journal's
/// thread calls it, so it must be cheap and must not read.
pub type Wake = Arc<dyn Fn() + Send + Sync>;

/// The start of a reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// At the end of the next epoch, where no unit is partly recorded. From there the stream starts
    /// with a `SELECT`.
    Now,
    /// At a cut: after all units with at most this stamp and before all others. The caller must
    /// hold all shards, and must have raised their clocks to this stamp.
    Cut(u64),
    /// At an offset that is still in the log. The reader knows which database is selected there.
    At(u64),
}

/// Error: the requested offset is not in the log. Contains the range of offsets that are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotHeld(pub Range<u64>);

/// The reason why a reader was cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CutOff {
    /// Distance in bytes from the end of the stream.
    pub behind_bytes: u64,
    /// Maximum distance that was allowed.
    pub bytes_max: u64,
}

/// The state of the stream ahead of a reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ahead {
    /// The reader's start has not been reached.
    NotStarted,
    /// There is nothing to read now. The reader is woken when there is more.
    Nothing,
    /// There is more to read.
    More,
    /// There is nothing more to read, because the reader was too far behind.
    CutOff(CutOff),
}

/// The end of an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct End {
    /// All units with earlier stamps are in the log before `offset`.
    before: u64,
    offset: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The reader starts at the end of an epoch. `true`: the thread has already started to end that
    /// epoch. `false`: it is the next epoch that the thread starts to end.
    Joining(bool),
    /// The reader starts after the last unit with at most this stamp.
    Before(u64),
    /// The reader continues at this offset.
    At(u64),
    CutOff(CutOff),
}

/// The position and settings of a reader.
struct Place {
    id: ReaderId,
    state: State,
    /// Maximum number of bytes that the reader may be behind the end.
    bytes_max: Arc<AtomicU64>,
    wake: Wake,
    /// Whether the reader has read everything and must be woken.
    is_waiting: bool,
    /// Whether the reader discards everything immediately, and only keeps the stream recorded.
    discards: bool,
    /// Whether the reader is woken whenever the log is complete up to a later stamp, even without
    /// new bytes.
    is_eager: bool,
    /// A limit in bytes, and the callback for a reader that is further behind. It is called at the
    /// end of each epoch, and repeatedly while an epoch does not end.
    warning: Option<(u64, Wake)>,
}

impl Place {
    /// Warns if it is too far behind. Returns whether it is.
    fn warn(&self, behind_bytes: u64) -> bool {
        if let Some((bytes, warn)) = &self.warning
            && behind_bytes > *bytes
        {
            warn();
            return true;
        }
        false
    }
}

struct Chunk {
    start: u64,
    bytes: Arc<SharedBytes>,
}

impl Chunk {
    fn end(&self) -> u64 {
        self.start + self.bytes.len() as u64
    }
}

/// The merged stream in memory. See the head of this module.
pub(crate) struct Log {
    chunks: VecDeque<Chunk>,
    tail: Vec<u8>,
    /// Offset after the last byte.
    end: u64,
    backlog_bytes: u64,
    places: Vec<Place>,
    last_id: ReaderId,
    /// Whether [`Log::restart`] leaves a gap of one offset.
    skips_offset: bool,
    /// Stamp below which all units are in the log.
    complete_before: u64,
    /// The ends of former epochs while the backlog is kept, in order. If there are too many, some
    /// are forgotten: the next one stands for each.
    ends: VecDeque<End>,
    /// Memory of chunks, including chunks that only readers still hold.
    chunk_bytes: Arc<AtomicU64>,
}

/// Work to be done after the log is unlocked.
#[derive(Default)]
#[must_use]
pub(crate) struct DeferredWork {
    wakes: Vec<Wake>,
    freed: Vec<Chunk>,
}

impl DeferredWork {
    /// Adds the work that another log has left.
    pub(crate) fn add(&mut self, other: DeferredWork) {
        self.wakes.extend(other.wakes);
        self.freed.extend(other.freed);
    }

    /// Wakes readers and frees memory. Must be called without the lock, which workers take to read.
    pub(crate) fn settle(self) {
        drop(self.freed);
        self.wakes.iter().for_each(|wake| wake());
    }
}

impl Log {
    pub(crate) fn new() -> Self {
        Log {
            chunks: VecDeque::new(),
            tail: Vec::new(),
            end: 0,
            backlog_bytes: 0,
            places: Vec::new(),
            last_id: 0,
            skips_offset: true,
            complete_before: 0,
            ends: VecDeque::new(),
            chunk_bytes: Arc::default(),
        }
    }

    /// Returns the memory usage in bytes, including parts that only readers still use.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.chunk_bytes.load(Relaxed) + self.tail.len() as u64
    }

    /// Returns the range of offsets that are in the log.
    pub(crate) fn held(&self) -> Range<u64> {
        let start = self.chunks.front().map_or(self.end - self.tail.len() as u64, |chunk| chunk.start);
        start..self.end
    }

    /// Sets the size of the backlog, bytes. It is kept for later readers while there is a
    /// discarding reader.
    pub(crate) fn set_backlog(&mut self, bytes: u64) {
        self.backlog_bytes = bytes;
    }

    /// Returns whether the stream must be recorded, because there are readers that have started or
    /// will start.
    pub(crate) fn is_wanted(&self) -> bool {
        self.places.iter().any(|place| !matches!(place.state, State::CutOff(_)))
    }

    /// Returns whether readers have started. Since then the stream has no gap.
    pub(crate) fn has_readers(&self) -> bool {
        self.places.iter().any(|place| matches!(place.state, State::At(_)))
    }

    /// Returns whether readers wait to start.
    pub(crate) fn has_joining(&self) -> bool {
        self.places.iter().any(|place| matches!(place.state, State::Joining(_) | State::Before(_)))
    }

    /// Returns the earliest stamp of a cut at which a reader waits to start.
    pub(crate) fn next_cut(&self) -> Option<u64> {
        let cut = |place: &Place| if let State::Before(stamp) = place.state { Some(stamp) } else { None };
        self.places.iter().filter_map(cut).min()
    }

    /// Adds a reader.
    ///
    /// # Errors
    /// The start is not in the log.
    pub(crate) fn join(&mut self, start: Start, bytes_max: Arc<AtomicU64>, wake: Wake) -> Result<ReaderId, NotHeld> {
        let state = match start {
            Start::Now => State::Joining(false),
            Start::Cut(stamp) => State::Before(stamp),
            Start::At(offset) if self.has_readers() && (self.held().start..=self.end).contains(&offset) => {
                State::At(offset)
            }
            Start::At(_) => return Err(NotHeld(self.held())),
        };
        Ok(self.add(state, bytes_max, wake, false))
    }

    /// Adds a reader that discards everything as soon as it is appended. Because of this reader the
    /// stream is recorded, and its backlog kept, even without other readers.
    pub(crate) fn join_discarding(&mut self) -> ReaderId {
        self.add(State::Joining(false), Arc::new(AtomicU64::new(u64::MAX)), Arc::new(|| {}), true)
    }

    fn add(&mut self, state: State, bytes_max: Arc<AtomicU64>, wake: Wake, discards: bool) -> ReaderId {
        self.last_id += 1;
        self.places.push(Place {
            id: self.last_id,
            state,
            bytes_max,
            wake,
            is_waiting: true,
            discards,
            is_eager: false,
            warning: None,
        });
        self.last_id
    }

    /// Removes a reader.
    pub(crate) fn leave(&mut self, id: ReaderId) -> DeferredWork {
        self.places.retain(|place| place.id != id);
        self.free()
    }

    /// Sets whether a reader is eager. An eager reader is woken whenever the log is complete up to
    /// a later stamp.
    pub(crate) fn set_eager(&mut self, id: ReaderId, is_eager: bool) {
        self.places.iter_mut().filter(|place| place.id == id).for_each(|place| place.is_eager = is_eager);
    }

    /// Sets a callback that is called while a reader is more than `bytes` behind. It is called with
    /// the log locked, so it must be cheap and take no lock.
    pub(crate) fn warn_beyond(&mut self, id: ReaderId, bytes: u64, warn: &Wake) {
        let place = self.places.iter_mut().find(|place| place.id == id);
        place.into_iter().for_each(|place| place.warning = Some((bytes, Arc::clone(warn))));
    }

    /// Returns whether an eager reader has read everything.
    pub(crate) fn is_awaited(&self) -> bool {
        self.places.iter().any(|place| place.is_eager && place.is_waiting && matches!(place.state, State::At(_)))
    }

    /// Records that the log contains all units with stamps below `before`. Called after the units
    /// of an epoch were appended. Returns the wakes of eager readers that have read everything.
    pub(crate) fn complete(&mut self, before: u64) -> Vec<Wake> {
        self.complete_before = before;
        self.note_end(before);
        let waits = |place: &&mut Place| place.is_eager && place.is_waiting && matches!(place.state, State::At(_));
        let waiting = self.places.iter_mut().filter(waits);
        waiting
            .map(|place| {
                place.is_waiting = false;
                Arc::clone(&place.wake)
            })
            .collect()
    }

    fn note_end(&mut self, before: u64) {
        if !self.is_kept() {
            return self.ends.clear();
        }
        match self.ends.back_mut() {
            // Nothing was written in this epoch.
            Some(last) if last.offset == self.end => last.before = before,
            _ => self.ends.push_back(End { before, offset: self.end }),
        }
        if self.ends.len() > ENDS_MAX {
            self.thin_ends();
        }
    }

    /// Forgets ends that are close together, compared with how long ago they were.
    fn thin_ends(&mut self) {
        let newest = self.ends.back().map_or(0, |end| end.before);
        let following: Vec<u64> = self.ends.iter().skip(1).map(|end| end.before).collect();
        let (mut following, mut kept) = (following.into_iter(), 0);
        self.ends.retain(|end| {
            // Without this end, the following one stands for the epochs since the last one kept.
            let is_spare = following.next().is_some_and(|next| next - kept <= (newest - next) / LATENESS_RATIO);
            kept = if is_spare { kept } else { end.before };
            !is_spare
        });
        if self.ends.len() > ENDS_MAX {
            self.ends.pop_front();
        }
    }

    /// Returns an offset up to which the stream has all units with stamps below `before`; `None` if
    /// some may still be pending. If their epoch was long ago, the offset may be some epochs later
    /// than theirs.
    pub(crate) fn offset_behind(&self, before: u64) -> Option<u64> {
        if before > self.complete_before {
            return None;
        }
        let end = self.ends.get(self.ends.partition_point(|end| end.before < before));
        Some(end.map_or(self.end, |end| end.offset))
    }

    /// Returns whether the backlog is kept: only then a reader may start in it.
    fn is_kept(&self) -> bool {
        self.places.iter().any(|place| place.discards)
    }

    /// Returns a stamp if a reader has read all units with earlier stamps.
    pub(crate) fn read_before(&self, id: ReaderId) -> Option<u64> {
        (self.position(id)? == self.end).then_some(self.complete_before)
    }

    /// Records that the thread starts to end an epoch. Readers that have joined may start after it.
    pub(crate) fn note_epoch_ending(&mut self) {
        for place in &mut self.places {
            if place.state == State::Joining(false) {
                place.state = State::Joining(true);
            }
        }
    }

    /// Appends the whole units of an epoch, and starts the readers that joined before it ended.
    /// Returns whether any reader started.
    pub(crate) fn append(&mut self, pieces: Vec<Vec<u8>>) -> (bool, DeferredWork) {
        self.append_and_start(pieces, |state| state == State::Joining(true))
    }

    /// Appends the whole units up to a cut, and starts the readers that wait for this cut.
    pub(crate) fn append_to_cut(&mut self, pieces: Vec<Vec<u8>>, stamp: u64) -> DeferredWork {
        self.append_and_start(pieces, |state| state == State::Before(stamp)).1
    }

    fn append_and_start(&mut self, pieces: Vec<Vec<u8>>, may_start: impl Fn(State) -> bool) -> (bool, DeferredWork) {
        // Until a reader has started, the units are not needed, because a reader uses the stream
        // only from its start.
        if self.has_readers() {
            pieces.into_iter().for_each(|piece| self.append_piece(piece));
        }
        let started = self.start_readers(may_start);
        for place in self.places.iter_mut().filter(|place| place.discards) {
            if matches!(place.state, State::At(_)) {
                place.state = State::At(self.end);
            }
        }
        self.cut_off(0);
        let has_started = !started.is_empty();
        let mut aftermath = self.free();
        aftermath.wakes.extend(started);
        (has_started, aftermath)
    }

    /// Starts the readers that may start at the end of the log, and returns their wakes.
    fn start_readers(&mut self, may_start: impl Fn(State) -> bool) -> Vec<Wake> {
        if self.places.iter().any(|place| may_start(place.state)) && !self.has_readers() {
            self.restart();
        }
        let mut wakes = Vec::new();
        for place in self.places.iter_mut().filter(|place| may_start(place.state)) {
            place.state = State::At(self.end);
            wakes.push(Arc::clone(&place.wake));
        }
        wakes
    }

    fn append_piece(&mut self, piece: Vec<u8>) {
        self.end += piece.len() as u64;
        if self.tail.len() + piece.len() <= TAIL_BYTES_MAX {
            return self.tail.extend_from_slice(&piece);
        }
        let piece_start = self.end - piece.len() as u64;
        self.end_tail(piece_start);
        if piece.len() <= TAIL_BYTES_MAX {
            self.tail.extend_from_slice(&piece);
        } else {
            self.push_chunk(piece_start, piece);
        }
    }

    fn end_tail(&mut self, end: u64) {
        if !self.tail.is_empty() {
            let tail = self.tail.clone();
            self.tail.clear();
            self.push_chunk(end - tail.len() as u64, tail);
        }
    }

    fn push_chunk(&mut self, start: u64, bytes: Vec<u8>) {
        debug_assert!(self.chunks.back().is_none_or(|last| last.end() == start), "a gap within the log");
        self.chunks.push_back(Chunk { start, bytes: SharedBytes::new(bytes, &self.chunk_bytes) });
    }

    /// Sets the offset at which the stream starts.
    pub(crate) fn continue_at(&mut self, offset: u64) {
        assert!(self.places.is_empty() && self.chunks.is_empty(), "the log is already in use");
        self.skips_offset = false;
        self.end = offset;
    }

    /// Drops all bytes of the log, because later bytes will not follow them. No offset is reused.
    fn restart(&mut self) {
        self.chunks.clear();
        self.tail.clear();
        // Leaves a gap, so that no reader can continue where bytes were not recorded.
        self.end += u64::from(std::mem::replace(&mut self.skips_offset, true));
    }

    /// Drops everything, and continues at this offset of another stream. Cuts off the readers of
    /// the former one, except those that discard.
    pub(crate) fn reset(&mut self, offset: u64) -> DeferredWork {
        let freed = self.chunks.drain(..).collect();
        self.tail.clear();
        self.ends.clear();
        self.end = offset;
        for place in &mut self.places {
            if place.discards {
                place.state = State::At(offset);
            } else {
                let bytes_max = place.bytes_max.load(Relaxed);
                place.state = State::CutOff(CutOff { behind_bytes: 0, bytes_max });
                place.is_waiting = true;
            }
        }
        let mut aftermath = self.free();
        aftermath.add(DeferredWork { wakes: Vec::new(), freed });
        aftermath
    }

    /// Cuts off readers that are behind by more than their bound, and warns of others, given the
    /// bytes that are yet to be appended.
    pub(crate) fn cut_off(&mut self, pending_bytes: u64) {
        for place in &mut self.places {
            let behind_bytes = match place.state {
                State::At(position) => self.end - position + pending_bytes,
                State::Joining(_) | State::Before(_) => pending_bytes,
                State::CutOff(_) => continue,
            };
            place.warn(behind_bytes);
            let bytes_max = place.bytes_max.load(Relaxed);
            if behind_bytes > bytes_max {
                place.state = State::CutOff(CutOff { behind_bytes, bytes_max });
                place.is_waiting = true;
            }
        }
    }

    /// Warns of readers that are too far behind, given the bytes that may be yet to be appended.
    /// Returns the wakes of these readers. If those bytes were appended and read meanwhile, nothing
    /// else would make such a reader look at how far it is behind.
    #[must_use]
    pub(crate) fn warn(&self, pending_bytes: u64) -> Vec<Wake> {
        let is_behind = |place: &&Place| match place.state {
            State::At(position) => place.warn(self.end - position + pending_bytes),
            State::Joining(_) | State::Before(_) | State::CutOff(_) => false,
        };
        self.places.iter().filter(is_behind).map(|place| Arc::clone(&place.wake)).collect()
    }

    /// Frees chunks that neither a reader nor the backlog needs, and finds the readers to wake.
    pub(crate) fn free(&mut self) -> DeferredWork {
        let mut aftermath = DeferredWork::default();
        let mut needed_from = self.end.saturating_sub(if self.is_kept() { self.backlog_bytes } else { 0 });
        for place in &mut self.places {
            let has_pending_events = match place.state {
                State::Joining(_) | State::Before(_) => false,
                State::At(position) => {
                    needed_from = needed_from.min(position);
                    position < self.end
                }
                State::CutOff(_) => true,
            };
            if has_pending_events && std::mem::take(&mut place.is_waiting) {
                aftermath.wakes.push(Arc::clone(&place.wake));
            }
        }
        if !self.is_wanted() {
            // No reader can continue at this offset, because later units are not recorded.
            needed_from = self.end;
            self.tail = Vec::new();
        }
        while let Some(first) = self.chunks.front()
            && first.end() <= needed_from
        {
            aftermath.freed.extend(self.chunks.pop_front());
        }
        aftermath
    }

    /// Appends unread parts of a reader's stream to `into` until these parts contain at least
    /// `bytes` bytes. Returns the state of the stream after the parts.
    pub(crate) fn read(&mut self, id: ReaderId, bytes: usize, into: &mut Vec<Outgoing>) -> Ahead {
        let Some(place) = self.places.iter_mut().find(|place| place.id == id) else { return Ahead::Nothing };
        let position = match place.state {
            State::Joining(_) | State::Before(_) => return Ahead::NotStarted,
            State::CutOff(why) => return Ahead::CutOff(why),
            State::At(position) => position,
        };
        let (mut at, limit) = (position, position.saturating_add(bytes as u64));
        let first = self.chunks.partition_point(|chunk| chunk.end() <= at);
        for chunk in self.chunks.range(first..) {
            if at >= limit {
                break;
            }
            let skipped = (at - chunk.start) as usize;
            into.push(match skipped {
                0 => Arc::clone(&chunk.bytes).into(),
                _ => chunk.bytes[skipped..].to_vec().into(),
            });
            at = chunk.end();
        }
        let tail_start = self.end - self.tail.len() as u64;
        if at >= tail_start && at < limit && at < self.end {
            into.push(self.tail[(at - tail_start) as usize..].to_vec().into());
            at = self.end;
        }
        place.state = State::At(at);
        place.is_waiting = at == self.end;
        if place.is_waiting { Ahead::Nothing } else { Ahead::More }
    }

    /// Returns the offset at which a reader continues, once it has started.
    pub(crate) fn position(&self, id: ReaderId) -> Option<u64> {
        match self.places.iter().find(|place| place.id == id)?.state {
            State::At(position) => Some(position),
            State::Joining(_) | State::Before(_) | State::CutOff(_) => None,
        }
    }

    /// Returns the number of unread bytes of a reader.
    pub(crate) fn behind_bytes(&self, id: ReaderId) -> u64 {
        self.position(id).map_or(0, |position| self.end - position)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    /// Length of a chunk in these tests, too long for the tail.
    const CHUNK_BYTES: usize = TAIL_BYTES_MAX + 1;

    struct Watched {
        log: Log,
        wakes: Arc<AtomicUsize>,
        /// Bytes appended since the log was last restarted, and the offset of the first of them.
        written: Vec<u8>,
        start: u64,
    }

    impl Watched {
        fn new() -> Self {
            Watched { log: Log::new(), wakes: Arc::default(), written: Vec::new(), start: 0 }
        }

        fn join(&mut self, start: Start, bytes_max: u64) -> Result<ReaderId, NotHeld> {
            let wakes = Arc::clone(&self.wakes);
            let wake = Arc::new(move || _ = wakes.fetch_add(1, Relaxed));
            self.log.join(start, Arc::new(AtomicU64::new(bytes_max)), wake)
        }

        /// Ends an epoch in which `bytes` bytes were written.
        fn epoch(&mut self, bytes: usize) {
            let written: Vec<u8> = (0..bytes).map(|at| (self.written.len() + at) as u8).collect();
            self.log.note_epoch_ending();
            let pieces = if bytes == 0 { Vec::new() } else { vec![written.clone()] };
            let (has_started, aftermath) = self.log.append(pieces);
            aftermath.settle();
            if has_started && self.log.places.len() == 1 {
                (self.written, self.start) = (Vec::new(), self.log.end);
            } else {
                self.written.extend(written);
            }
        }

        fn started(&mut self, bytes_max: u64) -> ReaderId {
            let id = self.join(Start::Now, bytes_max).expect("now is always held");
            self.epoch(0);
            id
        }

        /// Reads at least `bytes` bytes, and checks that these bytes were written at the reader's
        /// offset.
        fn read(&mut self, id: ReaderId, bytes: usize) -> (usize, Ahead) {
            let position = self.log.position(id);
            let mut parts = Vec::new();
            let ahead = self.log.read(id, bytes, &mut parts);
            let read: Vec<u8> = parts.iter().flat_map(|part| part.bytes().to_vec()).collect();
            if let Some(position) = position {
                let from = (position - self.start) as usize;
                assert_eq!(read, self.written[from..from + read.len()]);
            }
            self.log.free().settle();
            (read.len(), ahead)
        }

        fn held(&self) -> usize {
            let held = self.log.held();
            (held.end - held.start) as usize
        }
    }

    #[test]
    fn each_reader_reads_all_bytes_from_its_own_position() {
        let mut log = Watched::new();
        let fast = log.started(u64::MAX);
        log.epoch(10);
        let slow = log.join(Start::Now, u64::MAX).expect("now");
        assert_eq!(log.read(slow, 1), (0, Ahead::NotStarted));
        log.epoch(5);
        assert_eq!(log.read(fast, usize::MAX), (15, Ahead::Nothing));
        // A reader does not receive bytes written in the epoch in which it joined.
        assert_eq!(log.read(slow, usize::MAX), (0, Ahead::Nothing));
        for _ in 0..4 {
            log.epoch(CHUNK_BYTES);
            log.epoch(7);
            assert_eq!(log.read(fast, usize::MAX), (CHUNK_BYTES + 7, Ahead::Nothing));
        }
        assert_eq!(log.read(slow, 1), (CHUNK_BYTES, Ahead::More));
        assert_eq!(log.read(slow, 8).1, Ahead::More);
        while log.read(slow, 1).1 == Ahead::More {}
        assert_eq!(log.log.position(slow), log.log.position(fast));
        assert!(log.held() <= TAIL_BYTES_MAX, "{}", log.held());
    }

    #[test]
    fn a_reader_starts_at_its_cut() {
        let mut log = Watched::new();
        let first = log.started(u64::MAX);
        let (late, early) = (log.join(Start::Cut(9), u64::MAX), log.join(Start::Cut(7), u64::MAX));
        let (late, early) = (late.expect("a cut is held"), early.expect("a cut is held"));
        // The end of an epoch before the cut does not start the reader.
        log.epoch(5);
        assert!(log.log.has_joining());
        assert_eq!(log.read(early, 1), (0, Ahead::NotStarted));
        for (cut, bytes, reader) in [(7, 3, early), (9, 4, late)] {
            assert_eq!(log.log.next_cut(), Some(cut));
            let written: Vec<u8> = (0..bytes).map(|at| (log.written.len() + at) as u8).collect();
            log.log.append_to_cut(vec![written.clone()], cut).settle();
            log.written.extend(written);
            assert_eq!(log.log.position(reader), Some(log.log.end));
        }
        assert_eq!((log.log.next_cut(), log.log.has_joining()), (None, false));
        log.epoch(2);
        assert_eq!(log.read(first, usize::MAX), (14, Ahead::Nothing));
        assert_eq!(log.read(early, usize::MAX), (6, Ahead::Nothing));
        assert_eq!(log.read(late, usize::MAX), (2, Ahead::Nothing));
    }

    #[test]
    fn a_reader_beyond_its_bound_is_cut_off_and_frees_its_chunks() {
        let mut log = Watched::new();
        let bound = 3 * CHUNK_BYTES as u64;
        let (slow, fast) = (log.started(bound), log.join(Start::Now, bound).expect("now"));
        log.epoch(0);
        for _ in 0..3 {
            log.epoch(CHUNK_BYTES);
            assert_eq!(log.read(fast, usize::MAX), (CHUNK_BYTES, Ahead::Nothing));
        }
        assert_eq!(log.held() as u64, bound);
        assert_eq!(log.log.behind_bytes(slow), bound);
        let wakes = log.wakes.load(Relaxed);
        log.epoch(1);
        let why = CutOff { behind_bytes: bound + 1, bytes_max: bound };
        assert_eq!(log.read(slow, usize::MAX), (0, Ahead::CutOff(why)));
        assert_eq!(log.read(fast, usize::MAX), (1, Ahead::Nothing));
        // Both readers were woken, the slow one although it was not waiting.
        assert_eq!(log.wakes.load(Relaxed), wakes + 2);
        assert!(log.held() <= TAIL_BYTES_MAX);
        assert!(log.log.chunk_bytes.load(Relaxed) <= TAIL_BYTES_MAX as u64);
    }

    #[test]
    fn the_warning_is_called_beyond_its_limit() {
        let mut log = Watched::new();
        let id = log.started(u64::MAX);
        let warnings = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&warnings);
        let warn: Wake = Arc::new(move || _ = counted.fetch_add(1, Relaxed));
        log.log.warn_beyond(id, 10, &warn);
        log.epoch(10);
        assert_eq!(warnings.load(Relaxed), 0);
        // Bytes that workers have handed over count.
        log.log.cut_off(1);
        assert_eq!(warnings.load(Relaxed), 1);
        log.epoch(1);
        assert_eq!(warnings.load(Relaxed), 2);
        assert_eq!(log.read(id, usize::MAX), (11, Ahead::Nothing));
        log.epoch(1);
        assert_eq!(warnings.load(Relaxed), 2);
    }

    /// A worker has counted bytes that the reader has read by the time of the warning.
    #[test]
    fn a_reader_that_is_warned_of_late_is_woken() {
        let mut watched = Watched::new();
        let id = watched.started(u64::MAX);
        let warned = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&warned);
        watched.log.warn_beyond(id, 100, &(Arc::new(move || _ = counter.fetch_add(1, Relaxed)) as Wake));
        watched.epoch(101);
        assert_eq!(watched.read(id, usize::MAX), (101, Ahead::Nothing));
        let (warnings, woken) = (warned.load(Relaxed), watched.wakes.load(Relaxed));
        assert!(watched.log.warn(100).is_empty(), "it is not too far behind");
        assert_eq!(warned.load(Relaxed), warnings);
        watched.log.warn(101).iter().for_each(|wake| wake());
        assert_eq!((warned.load(Relaxed), watched.wakes.load(Relaxed)), (warnings + 1, woken + 1));
    }

    #[test]
    fn the_ends_of_epochs_are_known_while_the_backlog_is_kept() {
        let mut watched = Watched::new();
        watched.started(u64::MAX);
        let _wakes = watched.log.complete(10);
        assert_eq!(watched.log.offset_behind(10), Some(watched.log.end), "none is known without a backlog");
        watched.log.join_discarding();
        watched.epoch(0);
        let start = watched.log.end;
        for (bytes, before) in [(5, 20), (0, 30), (7, 40)] {
            watched.epoch(bytes);
            let _wakes = watched.log.complete(before);
        }
        for (before, bytes) in [(0, 5), (20, 5), (21, 5), (30, 5), (31, 12), (40, 12)] {
            assert_eq!(watched.log.offset_behind(before), Some(start + bytes), "{before}");
        }
        assert_eq!(watched.log.offset_behind(41), None, "its epoch has not ended");
    }

    #[test]
    fn the_ends_of_many_epochs_need_bounded_memory() {
        let mut watched = Watched::new();
        watched.log.join_discarding();
        watched.epoch(0);
        let start = watched.log.end;
        for number in 1..=10 * ENDS_MAX as u64 {
            watched.epoch(1);
            let _wakes = watched.log.complete(number);
            assert!(watched.log.ends.len() <= ENDS_MAX);
            assert_eq!(watched.log.offset_behind(number), Some(start + number), "the last one is exact");
        }
        let last = 10 * ENDS_MAX as u64;
        for before in 1..=last {
            let offset = watched.log.offset_behind(before).expect("all epochs have ended");
            assert!(offset >= start + before, "{before}: the stream up to {offset} has its units");
            let late = offset - (start + before);
            assert!(late <= (last - before) / LATENESS_RATIO, "{before}: {late} epochs late");
        }
    }

    #[test]
    fn unmerged_bytes_count_against_the_bound() {
        let mut log = Watched::new();
        let started = log.started(100);
        log.epoch(40);
        let joining = log.join(Start::Now, 60).expect("now");
        log.log.cut_off(60);
        assert_eq!((log.read(started, 0).1, log.read(joining, 0).1), (Ahead::More, Ahead::NotStarted));
        log.log.cut_off(61);
        assert!(matches!(log.read(started, 0).1, Ahead::CutOff(_)));
        assert!(matches!(log.read(joining, 0).1, Ahead::CutOff(_)));
        assert!(!log.log.is_wanted());
    }

    #[test]
    fn a_reader_starts_at_an_older_offset_that_is_still_held() {
        let mut log = Watched::new();
        log.log.set_backlog(2 * CHUNK_BYTES as u64);
        let first = log.started(u64::MAX);
        log.log.join_discarding();
        let start = log.log.position(first).expect("it has started");
        for _ in 0..5 {
            log.epoch(CHUNK_BYTES);
            log.read(first, usize::MAX);
        }
        log.epoch(3);
        log.read(first, usize::MAX);
        let held = log.log.held();
        assert_eq!(held, start + 3 * CHUNK_BYTES as u64..start + 5 * CHUNK_BYTES as u64 + 3);
        for offset in [held.start, held.start + 1, held.end - 3 - CHUNK_BYTES as u64, held.end - 1, held.end] {
            let id = log.join(Start::At(offset), u64::MAX).expect("it is held");
            let (read, ahead) = log.read(id, usize::MAX);
            assert_eq!((read as u64, ahead), (held.end - offset, Ahead::Nothing));
            log.log.leave(id).settle();
        }
        for offset in [0, held.start - 1, held.end + 1] {
            assert_eq!(log.join(Start::At(offset), u64::MAX), Err(NotHeld(held.clone())));
        }
    }

    #[test]
    fn a_log_without_readers_is_empty_and_its_offsets_end() {
        let mut log = Watched::new();
        log.log.set_backlog(u64::MAX);
        let first = log.started(u64::MAX);
        log.epoch(CHUNK_BYTES);
        log.epoch(9);
        let end = log.log.held().end;
        log.log.leave(first).settle();
        assert_eq!((log.log.held(), log.log.chunk_bytes.load(Relaxed)), (end..end, 0));
        // Bytes that are written now are not recorded.
        assert!(log.join(Start::At(end), u64::MAX).is_err());
        log.epoch(30);
        let second = log.started(u64::MAX);
        assert!(log.join(Start::At(end), u64::MAX).is_err());
        assert_eq!(log.log.position(second), Some(end + 1));
    }

    #[test]
    fn a_discarding_reader_alone_keeps_the_backlog() {
        let mut log = Watched::new();
        log.log.set_backlog(CHUNK_BYTES as u64);
        let keeper = log.log.join_discarding();
        log.epoch(5);
        for _ in 0..4 {
            log.epoch(CHUNK_BYTES);
        }
        let held = log.log.held();
        assert_eq!(held.end - held.start, CHUNK_BYTES as u64);
        let late = log.join(Start::At(held.start), u64::MAX).expect("it is held");
        assert_eq!(log.read(late, usize::MAX), (CHUNK_BYTES, Ahead::Nothing));
        // A reader that doesn't discard keeps no backlog.
        log.log.leave(keeper).settle();
        assert_eq!(log.held(), 0);
        log.log.leave(late).settle();
    }

    #[test]
    fn a_reader_is_woken_once_until_it_has_read_everything() {
        let mut log = Watched::new();
        let id = log.started(u64::MAX);
        assert_eq!(log.wakes.load(Relaxed), 1, "it is woken for its start");
        for _ in 0..3 {
            log.epoch(1);
        }
        assert_eq!(log.wakes.load(Relaxed), 2);
        log.epoch(CHUNK_BYTES);
        assert_eq!(log.read(id, 1).1, Ahead::More);
        log.epoch(1);
        assert_eq!(log.wakes.load(Relaxed), 2);
        assert_eq!(log.read(id, usize::MAX).1, Ahead::Nothing);
        log.epoch(1);
        assert_eq!(log.wakes.load(Relaxed), 3);
    }
}
