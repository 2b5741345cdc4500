//! The units that a worker has committed and the journal's thread has not merged.

use pantala_resp::Args;

use crate::effect::batch::{Batch, encode, encode_args};

/// Capacity that an emptied segment keeps, bytes: a few milliseconds of writes.
const KEPT_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Number of units for which an emptied segment keeps capacity: the number of short units that fit
/// into [`KEPT_BYTES_MAX`].
const KEPT_UNITS_MAX: usize = KEPT_BYTES_MAX / 64;

/// A unit of a stream. Takes 32 bytes in addition to its encoding.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StampedUnit {
    pub(crate) stamp: u64,
    /// End of the unit in [`Segment::bytes`].
    pub(crate) end: usize,
    /// Database that must be selected before the unit.
    pub(crate) first_db: u32,
    /// Database that is selected after the unit.
    pub(crate) last_db: u32,
}

/// Units of one worker with ascending stamps, encoded as in the merged stream. Several effects of a
/// unit are enclosed in `MULTI` and `EXEC`. Only the `SELECT` before a unit is missing, because it
/// depends on the preceding unit of the merged order.
#[derive(Debug, Default)]
pub(crate) struct Segment {
    pub(crate) bytes: Vec<u8>,
    pub(crate) units: Vec<StampedUnit>,
}

impl Segment {
    pub(crate) fn is_empty(&self) -> bool {
        self.units.is_empty()
    }

    /// Adds a unit of one effect, given as a command.
    fn push_args(&mut self, stamp: u64, db: u32, args: &Args<'_>) {
        encode_args(&mut self.bytes, args);
        self.end_unit(stamp, db, db);
    }

    /// Adds a unit of one encoded effect.
    fn push_encoded(&mut self, stamp: u64, db: u32, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        self.end_unit(stamp, db, db);
    }

    /// Adds the effects of a batch as one unit. The batch must not be empty.
    fn push(&mut self, stamp: u64, batch: &Batch) {
        let first_db = batch.effects[0].db;
        if let [effect] = batch.effects.as_slice() {
            return self.push_encoded(stamp, effect.db, &batch.bytes);
        }
        let (mut selected, mut start) = (first_db, 0);
        encode(&mut self.bytes, 1, std::iter::once(&b"MULTI"[..]));
        for effect in &batch.effects {
            select(&mut self.bytes, &mut selected, effect.db);
            self.bytes.extend_from_slice(&batch.bytes[start..effect.end]);
            start = effect.end;
        }
        encode(&mut self.bytes, 1, std::iter::once(&b"EXEC"[..]));
        self.end_unit(stamp, first_db, selected);
    }

    fn end_unit(&mut self, stamp: u64, first_db: u32, last_db: u32) {
        self.units.push(StampedUnit { stamp, end: self.bytes.len(), first_db, last_db });
    }

    /// Appends all units of another segment, whose stamps must be later.
    pub(crate) fn append(&mut self, other: &mut Segment) {
        if self.is_empty() {
            // Swaps the segments, so that both keep their capacity. The emptied segment is filled
            // next.
            return std::mem::swap(self, other);
        }
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&other.bytes);
        self.units.extend(other.units.iter().map(|unit| StampedUnit { end: start + unit.end, ..*unit }));
        other.clear();
    }

    /// Returns the number of units with stamps below `stamp`, and their length in bytes.
    pub(crate) fn due_before(&self, stamp: u64) -> (usize, usize) {
        let due = match self.units.last() {
            Some(last) if last.stamp < stamp => self.units.len(),
            _ => self.units.partition_point(|unit| unit.stamp < stamp),
        };
        (due, self.start_of(due))
    }

    /// Returns the start of a unit in [`Segment::bytes`].
    pub(crate) fn start_of(&self, unit: usize) -> usize {
        unit.checked_sub(1).map_or(0, |before| self.units[before].end)
    }

    /// Removes the first `due` units.
    pub(crate) fn drop_first(&mut self, due: usize) {
        if due == self.units.len() {
            return self.clear();
        }
        let bytes = self.start_of(due);
        self.units.drain(..due);
        self.bytes.drain(..bytes);
        self.units.iter_mut().for_each(|unit| unit.end -= bytes);
    }

    /// Frees the capacity of an empty segment.
    pub(crate) fn shrink(&mut self) {
        if self.is_empty() {
            *self = Segment::default();
        }
    }

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

/// The units that a reply depends on. While `appendfsync` is `always`, the reply is not sent before
/// they are durable.
///
/// A single word, because every request carries it. It contains a stamp and a bit. The stamp is the
/// latest of the units that the commands have made or whose results they have read (0: none). The
/// bit is set if the commands have made a unit.
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
}

impl Stream {
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
        self.segment.push(stamp, batch);
    }

    /// Adds a unit of one effect: a command as the client sent it.
    pub(crate) fn push_args(&mut self, stamp: u64, db: u32, args: &Args<'_>) {
        self.advance(stamp);
        self.segment.push_args(stamp, db, args);
    }

    /// Adds each effect as a separate unit. Their stamps ascend, starting with `stamp`.
    pub(crate) fn push_each(&mut self, stamp: u64, batch: &Batch) {
        let mut start = 0;
        for (stamp, effect) in (stamp..).zip(&batch.effects) {
            self.advance(stamp);
            self.segment.push_encoded(stamp, effect.db, &batch.bytes[start..effect.end]);
            start = effect.end;
        }
    }

    fn advance(&mut self, stamp: u64) {
        assert!(stamp > self.clock, "the stamps of a stream do not ascend");
        self.clock = stamp;
    }
}
