//! The units that a worker has committed and that are not merged yet. [`crate::effect`] defines the
//! terms.

use std::sync::Arc;

use pantala_base::BufferPool;
use pantala_base::pool::POOLED_BYTES_MIN;
use pantala_resp::Args;

use crate::effect::batch::{Batch, encode, encoded_bytes_max};

/// Capacity that an emptied part keeps, bytes: a few milliseconds of writes.
const KEPT_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Length in bytes for which a part of a segment is allocated, in addition to [`SPARE_BYTES`]. A
/// longer unit has a longer part. The sum of the two constants is the capacity of a pooled buffer.
pub(crate) const PART_BYTES: usize = 124 * 1024;

/// Capacity in bytes that a part, or a piece of the merged stream, has in addition to
/// [`PART_BYTES`]. This spare capacity is for the rest of the last unit, and for `SELECT`s.
pub(crate) const SPARE_BYTES: usize = 4 * 1024;

/// If a segment's only part has at least this length in bytes, the part is moved to another segment
/// instead of being copied.
const MOVED_BYTES_MIN: usize = 64 * 1024;

/// Number of units for which an emptied part keeps capacity: the number of short units that fit
/// into [`KEPT_BYTES_MAX`].
const KEPT_UNITS_MAX: usize = KEPT_BYTES_MAX / 64;

/// A unit of a stream. Takes 24 bytes in addition to its encoding.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StampedUnit {
    pub(crate) stamp: u64,
    /// End of the unit in [`Part::bytes`].
    pub(crate) end: usize,
    /// Database that must be selected before the unit.
    pub(crate) first_db: u32,
    /// Database that is selected after the unit.
    pub(crate) last_db: u32,
}

/// Consecutive units of a segment, in a buffer of their own.
#[derive(Debug, Default)]
pub(crate) struct Part {
    pub(crate) bytes: Vec<u8>,
    pub(crate) units: Vec<StampedUnit>,
}

impl Part {
    /// Returns the start of a unit in [`Part::bytes`].
    pub(crate) fn start_of(&self, unit: usize) -> usize {
        unit.checked_sub(1).map_or(0, |before| self.units[before].end)
    }

    fn end_unit(&mut self, stamp: u64, first_db: u32, last_db: u32) {
        self.units.push(StampedUnit { stamp, end: self.bytes.len(), first_db, last_db });
    }

    /// Appends all units of another part, whose stamps must be later.
    fn append(&mut self, other: &mut Part) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&other.bytes);
        self.units.extend(other.units.iter().map(|unit| StampedUnit { end: start + unit.end, ..*unit }));
        other.clear();
    }

    /// Splits off the first `units` units.
    fn split(&mut self, units: usize, pool: &BufferPool) -> Part {
        let bytes = self.start_of(units);
        let mut rest = pool.take(self.bytes.len());
        rest.extend_from_slice(&self.bytes[bytes..]);
        let rest_units =
            self.units[units..].iter().map(|unit| StampedUnit { end: unit.end - bytes, ..*unit }).collect();
        let mut first = std::mem::replace(self, Part { bytes: rest, units: rest_units });
        first.units.truncate(units);
        first.bytes.truncate(bytes);
        first
    }

    /// Removes all units. Keeps the capacity unless it is large.
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.units.clear();
        if self.bytes.capacity() > KEPT_BYTES_MAX {
            self.bytes = Vec::new();
        }
        if self.units.capacity() > KEPT_UNITS_MAX {
            self.units = Vec::new();
        }
    }
}

/// Units of one worker with ascending stamps, encoded as in the merged stream. A unit of several
/// effects is enclosed in `MULTI` and `EXEC`. Only the `SELECT` before a unit is missing. Merging
/// adds the `SELECT` if the preceding unit of the merged order has selected another database.
///
/// Memory is taken from the journal's pool, and returns to the pool when no log needs the merged
/// bytes any more. A segment that has become empty keeps one part for the next units.
#[derive(Debug, Default)]
pub(crate) struct Segment {
    /// A part without units is always the only part.
    pub(crate) parts: Vec<Part>,
    bytes: usize,
    /// Length in bytes of the units that were last moved to another segment. The next units are
    /// likely to need as much capacity.
    moved_bytes: usize,
}

impl Segment {
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Returns the length of all units in bytes.
    pub(crate) fn len_bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the part for the next `bytes` bytes. Only a short part grows. Growing a long part
    /// would cost page faults, because the allocator returns large blocks to the kernel.
    #[inline]
    fn part_for(&mut self, bytes: usize, pool: &BufferPool) -> &mut Part {
        let has_room = self.parts.last().is_some_and(|last| {
            let end = last.bytes.len() + bytes;
            end <= last.bytes.capacity() || end < POOLED_BYTES_MIN
        });
        if !has_room {
            self.add_part(bytes, pool);
        }
        self.parts.last_mut().expect("a part was added")
    }

    #[cold]
    fn add_part(&mut self, bytes: usize, pool: &BufferPool) {
        if let Some(empty) = self.parts.pop_if(|last| last.units.is_empty()) {
            pool.give(empty.bytes);
        }
        // The first part is only as long as the units of an epoch are likely to be, so that a
        // stream with little traffic needs little memory.
        let likely_bytes = if self.parts.is_empty() { self.moved_bytes } else { usize::MAX };
        let buffer = pool.take(likely_bytes.min(PART_BYTES + SPARE_BYTES).max(bytes));
        self.parts.push(Part { bytes: buffer, units: Vec::new() });
    }

    /// Adds a unit of one effect, given as a command.
    fn push_args(&mut self, stamp: u64, db: u32, args: &Args<'_>, pool: &BufferPool) {
        match args.as_canonical() {
            Some(sent) => self.push_encoded(stamp, db, sent, pool),
            None => self.push_decoded(stamp, db, args, pool),
        }
    }

    /// Adds a unit of one effect, given as a command that must be encoded first. This is needed for
    /// inline commands. It is also needed for commands that were sent to another worker, because a
    /// request contains only decoded arguments.
    fn push_decoded(&mut self, stamp: u64, db: u32, args: &Args<'_>, pool: &BufferPool) {
        let part = self.part_for(encoded_bytes_max(args), pool);
        let before = part.bytes.len();
        encode(&mut part.bytes, args.len(), args.iter());
        part.end_unit(stamp, db, db);
        self.bytes += part.bytes.len() - before;
    }

    /// Adds a unit of one encoded effect.
    fn push_encoded(&mut self, stamp: u64, db: u32, bytes: &[u8], pool: &BufferPool) {
        let part = self.part_for(bytes.len(), pool);
        part.bytes.extend_from_slice(bytes);
        part.end_unit(stamp, db, db);
        self.bytes += bytes.len();
    }

    /// Adds the effects of a batch as one unit. The batch must not be empty.
    fn push(&mut self, stamp: u64, batch: &Batch, pool: &BufferPool) {
        let first_db = batch.effects[0].db;
        if let [effect] = batch.effects.as_slice() {
            return self.push_encoded(stamp, effect.db, &batch.bytes, pool);
        }
        let part = self.part_for(batch.bytes.len(), pool);
        let before = part.bytes.len();
        let (mut selected, mut start) = (first_db, 0);
        encode(&mut part.bytes, 1, std::iter::once(&b"MULTI"[..]));
        for effect in &batch.effects {
            select(&mut part.bytes, &mut selected, effect.db);
            part.bytes.extend_from_slice(&batch.bytes[start..effect.end]);
            start = effect.end;
        }
        encode(&mut part.bytes, 1, std::iter::once(&b"EXEC"[..]));
        part.end_unit(stamp, first_db, selected);
        self.bytes += part.bytes.len() - before;
    }

    /// Appends all units of another segment, whose stamps must be later. Memory is taken from
    /// `pool`.
    pub(crate) fn append(&mut self, other: &mut Segment, pool: &BufferPool) {
        if other.is_empty() {
            // The other segment may have an empty part, which would hide the units after it from
            // [`Segment::take_before`].
            return;
        }
        if self.is_empty() {
            // Swaps the segments, so that both keep their capacity. The emptied segment is filled
            // next.
            return std::mem::swap(self, other);
        }
        let bytes = std::mem::take(&mut other.bytes);
        self.bytes += bytes;
        match other.parts.as_mut_slice() {
            [only] if bytes < MOVED_BYTES_MIN => self.part_for(bytes, pool).append(only),
            _ => {
                other.moved_bytes = bytes;
                self.parts.append(&mut other.parts);
            }
        }
    }

    /// Removes the units with stamps below `stamp`, and returns them.
    pub(crate) fn take_before(&mut self, stamp: u64, pool: &BufferPool) -> Vec<Part> {
        let is_due = |part: &Part| part.units.last().is_some_and(|last| last.stamp < stamp);
        let due = if self.is_empty() { 0 } else { self.parts.iter().take_while(|part| is_due(part)).count() };
        let mut taken: Vec<Part> = self.parts.drain(..due).collect();
        if let Some(first) = self.parts.first_mut() {
            let units = first.units.partition_point(|unit| unit.stamp < stamp);
            if units > 0 {
                taken.push(first.split(units, pool));
            }
        }
        self.bytes -= taken.iter().map(|part| part.bytes.len()).sum::<usize>();
        taken
    }

    /// Keeps a merged part's capacity for the next units if the segment has no part. Otherwise
    /// returns the part's buffer to the pool.
    pub(crate) fn keep(&mut self, mut part: Part, pool: &BufferPool) {
        if self.parts.is_empty() {
            part.clear();
            self.parts.push(part);
        } else {
            pool.give(part.bytes);
        }
    }

    /// Frees the capacity of an empty segment.
    pub(crate) fn shrink(&mut self) {
        if self.is_empty() {
            *self = Segment::default();
        }
    }

    pub(crate) fn clear(&mut self) {
        self.bytes = 0;
        self.parts.truncate(1);
        self.parts.iter_mut().for_each(Part::clear);
    }
}

/// Appends `SELECT` unless the database is already selected.
#[inline]
pub(crate) fn select(bytes: &mut Vec<u8>, selected: &mut u32, db: u32) {
    if *selected != db {
        *selected = db;
        append_select(bytes, db);
    }
}

/// Appends `SELECT`.
#[cold]
pub(crate) fn append_select(bytes: &mut Vec<u8>, db: u32) {
    encode(bytes, 2, [&b"SELECT"[..], db.to_string().as_bytes()].into_iter());
}

/// The units that a reply depends on. While `appendfsync` is `always`, the reply is sent only when
/// these units are durable.
///
/// Contains a stamp and a bit in a single word, because every request carries this value. The stamp
/// is that of the latest unit on which the reply depends, because the reply's commands have made
/// the unit or have read its results. 0: there is no such unit. The bit is set if the commands have
/// made a unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen(u64);

impl Seen {
    /// A bit that no stamp reaches during the lifetime of a process.
    const HAS_WRITTEN: u64 = 1 << 63;

    /// Returns the value for commands that have made a unit.
    pub const fn written(stamp: u64) -> Self {
        Seen(stamp | Self::HAS_WRITTEN)
    }

    /// Returns the value for commands that have only read the results of a unit.
    pub const fn read(stamp: u64) -> Self {
        Seen(stamp)
    }

    /// Returns the latest stamp.
    pub fn stamp(self) -> u64 {
        self.0 & !Self::HAS_WRITTEN
    }

    /// Returns whether the commands have made a unit.
    pub fn has_written(self) -> bool {
        self.0 & Self::HAS_WRITTEN != 0
    }

    /// Sets the latest stamp.
    pub(crate) fn set_stamp(&mut self, stamp: u64) {
        self.0 = self.0 & Self::HAS_WRITTEN | stamp;
    }

    /// Clears the bit, and keeps the stamp.
    pub(crate) fn forget_writes(&mut self) {
        self.0 = self.stamp();
    }
}

/// A worker's stream: the units of the current turn, which are not handed over to the journal yet.
#[derive(Debug, Default)]
pub(crate) struct Stream {
    pub(crate) segment: Segment,
    /// Highest stamp that the worker has given to a unit or has seen.
    clock: u64,
    pool: Arc<BufferPool>,
}

impl Stream {
    /// Returns an empty stream that takes its memory from a pool.
    pub(crate) fn new(pool: &Arc<BufferPool>) -> Self {
        Stream { pool: Arc::clone(pool), ..Stream::default() }
    }

    pub(crate) fn clock(&self) -> u64 {
        self.clock
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.segment.is_empty()
    }

    /// Frees the capacity of an empty stream.
    pub(crate) fn shrink(&mut self) {
        self.segment.shrink();
    }

    /// Raises the stream's clock to at least `clock`, which this worker or one of its connections
    /// has seen.
    #[inline]
    pub(crate) fn observe(&mut self, clock: u64) {
        self.clock = self.clock.max(clock);
    }

    /// Adds a unit, which must not be empty. Its stamp must be later than the stream's clock.
    pub(crate) fn push(&mut self, stamp: u64, batch: &Batch) {
        self.advance(stamp);
        self.segment.push(stamp, batch, &self.pool);
    }

    /// Adds a unit of one effect: a command as the client sent it.
    pub(crate) fn push_args(&mut self, stamp: u64, db: u32, args: &Args<'_>) {
        self.advance(stamp);
        self.segment.push_args(stamp, db, args, &self.pool);
    }

    /// Adds each effect as a separate unit. Their stamps ascend, starting with `stamp`.
    pub(crate) fn push_each(&mut self, stamp: u64, batch: &Batch) {
        let mut start = 0;
        for (stamp, effect) in (stamp..).zip(&batch.effects) {
            self.advance(stamp);
            self.segment.push_encoded(stamp, effect.db, &batch.bytes[start..effect.end], &self.pool);
            start = effect.end;
        }
    }

    fn advance(&mut self, stamp: u64) {
        assert!(stamp > self.clock, "the stamps of a stream do not ascend");
        self.clock = stamp;
    }
}
