//! The merged stream in memory. The journal appends to it, and each reader reads it from its own
//! position.
//!
//! ```text
//! offset   start                                         end
//!            ├──── chunk ────┬── chunk ──┬──── chunk ────┬─ tail ─┤   ◄── append
//!                            ▲                      ▲             ▲
//!                        replica A              replica B      file
//! ```
//!
//! The offset of a byte never changes while the server runs. Chunks are immutable, and readers
//! share their memory. Short pieces are first collected in the tail, which is copied for each
//! reader.
//!
//! | kept | until |
//! | --- | --- |
//! | a chunk | all readers have passed it, and the backlog, if any, is full without it |
//! | the unread bytes of a reader | they exceed the reader's bound: the reader is cut off |
//!
//! So a slow reader uses memory up to its bound, and writers never wait for a reader. A reader may
//! start at any offset that is still in the log. [`crate::effect`] defines the other terms.
//!
//! The older part of the log may be on disk ([`spill`]).

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use pantala_base::{BufferPool, Outgoing, SharedBytes};

use crate::effect::piece::Piece;

mod ends;
mod place;
pub mod spill;

use ends::Ends;
pub(crate) use place::Place;
use place::{Owner, State};
use spill::{Extent, Spill, SpillSide};

/// Maximum length of the tail, bytes. A longer piece becomes a separate chunk, because sharing it
/// costs less than copying it.
pub(crate) const TAIL_BYTES_MAX: usize = 16 * 1024;

/// Number of a reader, unique for as long as the server runs.
pub type ReaderId = u64;

/// A callback that wakes a reader that has read everything. It is called when there is more to
/// read, when the reader was cut off, or when an eager reader must end the epoch. The caller is the
/// journal's thread, a worker or the owner of an eager reader, so the callback must be cheap and
/// must not read.
pub type Wake = Arc<dyn Fn() + Send + Sync>;

/// The eager reader that will end the epoch ([`Log::epoch_ender`]).
pub(crate) enum EpochEnder {
    /// No eager reader will do so soon.
    None,
    /// A reader that was already woken for it.
    Woken,
    /// A reader that the caller must wake.
    ToWake(Wake),
}

/// The point at which a reader starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// At the next end of an epoch, where no unit is partly recorded. The reader's stream starts
    /// with a `SELECT`.
    Now,
    /// At a cut: after all units with at most this stamp and before all others. The caller must
    /// hold all shards, and must have raised their clocks to this stamp.
    Cut(u64),
    /// At an offset that is still in the log. The reader knows which database is selected there.
    At(u64),
}

/// Error: the requested offset is not in the log. Contains the range of offsets in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotHeld(pub Range<u64>);

/// The reason why a reader was cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CutOff {
    /// Number of bytes that the reader was behind: unread bytes of the log, and bytes not yet
    /// appended. 0 if the log was reset to another stream. If bytes were spilled to disk, only one
    /// of the two counts: the unread bytes, if the log has dropped the reader's next bytes;
    /// otherwise the bytes not yet appended.
    pub lag_bytes: u64,
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
    /// The reader was cut off, so there is nothing more to read.
    CutOff(CutOff),
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
    /// Number of bytes at the end of the log that contain no effects ([`Piece::Control`]).
    control_bytes: u64,
    backlog_bytes: u64,
    places: Vec<Place>,
    last_id: ReaderId,
    /// Whether [`Log::restart`] leaves a gap of one offset.
    skips_offset: bool,
    /// Stamp below which all units are in the log.
    complete_before: u64,
    /// The ends of former epochs. Empty unless a backlog is kept.
    ends: Ends,
    /// Memory of chunks, including chunks that only readers still hold.
    chunk_bytes: Arc<AtomicU64>,
    /// The pool to which the memory of chunks returns.
    pool: Arc<BufferPool>,
    /// The part of the log that is on disk.
    spill: Spill,
}

/// Work to be done after the log is unlocked.
#[derive(Default)]
#[must_use]
pub(crate) struct DeferredWork {
    wakes: Vec<Wake>,
    freed: Vec<Chunk>,
}

impl DeferredWork {
    /// Adds the work of another log.
    pub(crate) fn add(&mut self, other: DeferredWork) {
        self.wakes.extend(other.wakes);
        self.freed.extend(other.freed);
    }

    /// Wakes readers and frees memory. Must be called without the logs' lock, which readers take.
    pub(crate) fn settle(self) {
        drop(self.freed);
        self.wakes.iter().for_each(|wake| wake());
    }
}

impl Log {
    pub(crate) fn new(pool: &Arc<BufferPool>) -> Self {
        Log {
            chunks: VecDeque::new(),
            tail: Vec::new(),
            end: 0,
            control_bytes: 0,
            backlog_bytes: 0,
            places: Vec::new(),
            last_id: 0,
            skips_offset: false,
            complete_before: 0,
            ends: Ends::default(),
            chunk_bytes: Arc::default(),
            pool: Arc::clone(pool),
            spill: Spill::default(),
        }
    }

    /// Returns the memory usage in bytes, including parts that only readers still use.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.chunk_bytes.load(Relaxed) + self.tail.len() as u64
    }

    /// Returns the range of offsets that are in the log, in memory or on disk.
    pub(crate) fn held(&self) -> Range<u64> {
        let start = self.extent().memory_start;
        self.spill.start().map_or(start, |on_disk| on_disk.min(start))..self.end
    }

    /// Sets the size of the backlog, bytes. The log keeps a backlog only while it has a discarding
    /// reader ([`Log::join_discarding`]).
    pub(crate) fn set_backlog(&mut self, bytes: u64) {
        self.backlog_bytes = bytes;
    }

    /// Returns whether the stream must be recorded, because there is a reader that is not cut off.
    pub(crate) fn is_wanted(&self) -> bool {
        self.places.iter().any(|place| !matches!(place.state, State::CutOff(_)))
    }

    /// Returns whether any reader has started. While there is a started reader, all units are
    /// appended, so the bytes in the log have no gap.
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

    /// Adds a reader that discards all bytes as soon as they are appended. The reader's presence
    /// makes the log record the stream and keep the backlog, even without other readers.
    pub(crate) fn join_discarding(&mut self) -> ReaderId {
        self.add(State::Joining(false), Arc::new(AtomicU64::new(u64::MAX)), Arc::new(|| {}), true)
    }

    fn add(&mut self, state: State, bytes_max: Arc<AtomicU64>, wake: Wake, discards: bool) -> ReaderId {
        self.last_id += 1;
        self.places.push(Place::new(self.last_id, state, bytes_max, wake, discards));
        self.last_id
    }

    /// Removes a reader.
    pub(crate) fn leave(&mut self, id: ReaderId) -> DeferredWork {
        self.places.retain(|place| place.id != id);
        self.free()
    }

    /// Returns the position and settings of a reader, if it has not left.
    pub(crate) fn place(&mut self, id: ReaderId) -> Option<&mut Place> {
        self.places.iter_mut().find(|place| place.id == id)
    }

    /// Sets a callback that is called while a reader is more than `bytes` behind. The log is then
    /// locked, so the callback must be cheap and take no lock.
    pub(crate) fn warn_beyond(&mut self, id: ReaderId, bytes: u64, warn: &Wake) {
        let place = self.places.iter_mut().find(|place| place.id == id);
        place.into_iter().for_each(|place| place.warning = Some((bytes, Arc::clone(warn))));
    }

    /// Returns which eager reader will end the epoch.
    pub(crate) fn epoch_ender(&mut self) -> EpochEnder {
        if self.places.iter().any(|place| place.owner == Owner::Woken) {
            return EpochEnder::Woken;
        }
        match self.places.iter_mut().find(|place| place.owner == Owner::Sleeping) {
            Some(place) => {
                place.owner = Owner::Woken;
                EpochEnder::ToWake(Arc::clone(&place.wake))
            }
            None => EpochEnder::None,
        }
    }

    /// Records that the log contains all units with stamps below `before`. Returns the wakes of
    /// eager readers that have read everything.
    pub(crate) fn complete(&mut self, before: u64) -> Vec<Wake> {
        self.complete_before = before;
        if self.is_kept() {
            self.ends.note(before, self.end - self.control_bytes);
        } else {
            self.ends.clear();
        }
        let waits = |place: &&mut Place| place.is_eager && place.is_waiting && matches!(place.state, State::At(_));
        let waiting = self.places.iter_mut().filter(waits);
        waiting
            .map(|place| {
                place.is_waiting = false;
                Arc::clone(&place.wake)
            })
            .collect()
    }

    /// Returns an offset that all units with stamps below `before` precede, but not the commands
    /// after them that change nothing: a replica may acknowledge those later. Returns `None` if
    /// some of these units may not be in the log yet. For an old stamp, the offset may be some
    /// epochs later than necessary.
    pub(crate) fn offset_after(&self, before: u64) -> Option<u64> {
        (before <= self.complete_before)
            .then(|| self.ends.offset_after(before).unwrap_or(self.end - self.control_bytes))
    }

    /// Returns whether the backlog is kept, because there is a discarding reader.
    fn is_kept(&self) -> bool {
        self.places.iter().any(|place| place.discards)
    }

    /// Returns the stamp below which a reader has read all units; `None` if it has more to read.
    pub(crate) fn read_before(&self, id: ReaderId) -> Option<u64> {
        (self.position(id)? == self.end).then_some(self.complete_before)
    }

    /// Records that the end of an epoch starts. The readers that have joined so far with
    /// [`Start::Now`] start at the end of this epoch.
    pub(crate) fn note_epoch_ending(&mut self) {
        for place in &mut self.places {
            if place.state == State::Joining(false) {
                place.state = State::Joining(true);
            }
        }
    }

    /// Appends the whole units of an epoch, a command of the journal itself, or bytes of a primary.
    /// Starts the readers that joined with [`Start::Now`] before the last call of
    /// [`Log::note_epoch_ending`]. Returns whether any reader started.
    pub(crate) fn append(&mut self, pieces: Vec<Piece>) -> (bool, DeferredWork) {
        self.append_and_start(pieces, |state| state == State::Joining(true))
    }

    /// Appends the whole units up to a cut, and starts the readers that wait for this cut.
    pub(crate) fn append_to_cut(&mut self, pieces: Vec<Piece>, stamp: u64) -> DeferredWork {
        self.append_and_start(pieces, |state| state == State::Before(stamp)).1
    }

    fn append_and_start(&mut self, pieces: Vec<Piece>, may_start: impl Fn(State) -> bool) -> (bool, DeferredWork) {
        // If no reader has started, the units are not needed: each reader will start after them.
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
            place.start_at(self.end);
            wakes.push(Arc::clone(&place.wake));
        }
        wakes
    }

    fn append_piece(&mut self, piece: Piece) {
        self.end += piece.len() as u64;
        let is_control = matches!(piece, Piece::Control(_));
        self.control_bytes = if is_control { self.control_bytes + piece.len() as u64 } else { 0 };
        let is_own = is_control || matches!(piece, Piece::Own(_));
        if is_own && self.tail.len() + piece.len() <= TAIL_BYTES_MAX {
            return self.tail.extend_from_slice(&piece);
        }
        let piece_start = self.end - piece.len() as u64;
        self.end_tail(piece_start);
        match is_own && piece.len() <= TAIL_BYTES_MAX {
            true => self.tail.extend_from_slice(&piece),
            false => self.push_chunk(piece_start, piece),
        }
    }

    fn end_tail(&mut self, end: u64) {
        if !self.tail.is_empty() {
            let tail = self.tail.clone();
            self.tail.clear();
            self.push_chunk(end - tail.len() as u64, Piece::Own(tail));
        }
    }

    fn push_chunk(&mut self, start: u64, piece: Piece) {
        debug_assert!(self.chunks.back().is_none_or(|last| last.end() == start), "a gap within the log");
        self.chunks.push_back(Chunk { start, bytes: piece.into_shared(&self.pool, &self.chunk_bytes) });
    }

    /// Sets the offset at which the stream starts.
    pub(crate) fn continue_at(&mut self, offset: u64) {
        assert!(self.places.is_empty() && self.chunks.is_empty(), "the log is already in use");
        self.skips_offset = false;
        self.end = offset;
    }

    /// Drops all bytes, because the bytes that are appended next will not be their continuation. No
    /// offset is reused.
    fn restart(&mut self) {
        self.chunks.clear();
        self.tail.clear();
        self.spill.clear();
        // Leaves a gap, so that no reader can continue where bytes were not recorded.
        self.end += u64::from(std::mem::replace(&mut self.skips_offset, true));
    }

    /// Drops everything, and continues at this offset of another stream. Cuts off all readers
    /// except those that discard.
    pub(crate) fn reset(&mut self, offset: u64) -> DeferredWork {
        let freed = self.chunks.drain(..).collect();
        self.tail.clear();
        self.ends.clear();
        self.spill.clear();
        (self.end, self.control_bytes) = (offset, 0);
        for place in &mut self.places {
            if place.discards {
                place.state = State::At(offset);
            } else {
                let bytes_max = place.bytes_max.load(Relaxed);
                place.cut_off(CutOff { lag_bytes: 0, bytes_max });
            }
        }
        let mut aftermath = self.free();
        aftermath.add(DeferredWork { wakes: Vec::new(), freed });
        aftermath
    }

    /// Cuts off readers that exceed their bound, and warns readers that are too far behind. Counts
    /// `pending_bytes` (recorded but not yet appended) as unread.
    pub(crate) fn cut_off(&mut self, pending_bytes: u64) {
        let (end, bound_min) = (self.end, self.spill.bound_min(self.extent()));
        for place in &mut self.places {
            let lag_bytes = match place.state {
                State::At(position) => pending_bytes + if bound_min.is_some() { 0 } else { end - position },
                State::Joining(_) | State::Before(_) => pending_bytes,
                State::CutOff(_) => continue,
            };
            place.warn(lag_bytes);
            let bytes_max = place.bytes_max.load(Relaxed).max(bound_min.unwrap_or(0));
            if lag_bytes > bytes_max {
                place.cut_off(CutOff { lag_bytes, bytes_max });
            }
        }
    }

    /// Warns started readers that are too far behind. Counts `pending_bytes` as unread. Returns the
    /// wakes of these readers, which the caller must call. A reader may have read everything by now
    /// and be asleep. It then notices the warning only when it is woken.
    #[must_use]
    pub(crate) fn warn(&self, pending_bytes: u64) -> Vec<Wake> {
        let is_behind = |place: &&Place| match place.state {
            State::At(position) => place.warn(self.end - position + pending_bytes),
            State::Joining(_) | State::Before(_) | State::CutOff(_) => false,
        };
        self.places.iter().filter(is_behind).map(|place| Arc::clone(&place.wake)).collect()
    }

    /// Removes chunks that neither a reader nor the backlog needs, or that are on disk. Cuts off
    /// readers whose next bytes are no longer in the log. Returns the removed chunks, and the wakes
    /// of readers that have something to read or were cut off.
    pub(crate) fn free(&mut self) -> DeferredWork {
        let mut aftermath = DeferredWork::default();
        let is_wanted = self.is_wanted();
        if !is_wanted {
            // No reader needs these bytes, and no reader can start within them later, because their
            // continuation is not recorded.
            self.tail = Vec::new();
            self.spill.clear();
        }
        let needed_from = if is_wanted { self.needed_from() } else { self.end };
        while let Some(first) = self.chunks.front()
            && first.end() <= needed_from
        {
            aftermath.freed.extend(self.chunks.pop_front());
        }
        let (held, memory_start, end) = (self.held(), self.extent().memory_start, self.end);
        for place in &mut self.places {
            if let State::At(position) = place.state
                && place.next(position) < held.start
            {
                place.cut_off(CutOff { lag_bytes: end - position, bytes_max: end - held.start });
            }
            if place.has_events(memory_start, end) && std::mem::take(&mut place.is_waiting) {
                aftermath.wakes.push(Arc::clone(&place.wake));
            }
        }
        aftermath.wakes.extend(self.spill_side().wake());
        aftermath
    }

    /// Returns the view of the log for the thread that keeps the part on disk.
    pub(crate) fn spill_side(&mut self) -> SpillSide<'_> {
        SpillSide::new(self)
    }

    /// Returns the offset from which bytes must stay in memory.
    fn needed_from(&mut self) -> u64 {
        let extent = self.extent();
        let next =
            |place: &Place| if let State::At(position) = place.state { Some(place.next(position)) } else { None };
        let needed_from = self.places.iter().filter_map(next).fold(extent.backlog_start, u64::min);
        self.spill.removable_before(extent, needed_from).unwrap_or(needed_from)
    }

    fn extent(&self) -> Extent {
        let is_kept = self.is_kept();
        let backlog_start = self.end.saturating_sub(if is_kept { self.backlog_bytes } else { 0 });
        let memory_start = self.chunks.front().map_or(self.end - self.tail.len() as u64, |chunk| chunk.start);
        Extent { memory_start, backlog_start, end: self.end, is_kept }
    }

    /// Appends unread parts of a reader's stream to `into` until these parts contain at least
    /// `bytes` bytes. Returns the state of the stream after the parts.
    pub(crate) fn read(&mut self, id: ReaderId, bytes: usize, into: &mut Vec<Outgoing>) -> Ahead {
        let memory_start = self.extent().memory_start;
        let Some(place) = self.places.iter_mut().find(|place| place.id == id) else { return Ahead::Nothing };
        place.owner = Owner::Busy;
        let position = match place.state {
            State::Joining(_) | State::Before(_) => return Ahead::NotStarted,
            State::CutOff(why) => return Ahead::CutOff(why),
            State::At(position) => position,
        };
        let limit = position.saturating_add(bytes as u64);
        let mut at = place.read_fetched(position, limit, into);
        if place.next(at) < memory_start {
            return place.await_disk(at, bytes > 0);
        }
        if place.has_fetched() {
            place.state = State::At(at);
            return Ahead::More;
        }
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
    pub(crate) fn lag_bytes(&self, id: ReaderId) -> u64 {
        self.position(id).map_or(0, |position| self.end - position)
    }

    /// Returns the number of unread bytes of a reader that count towards its limits.
    pub(crate) fn limited_bytes(&self, id: ReaderId) -> u64 {
        if self.spill.spills(self.extent()) { 0 } else { self.lag_bytes(id) }
    }
}

#[cfg(test)]
mod tests;
