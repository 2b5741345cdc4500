//! The part of a log that is on disk (`repl-backlog-disk-size`). This module decides what is
//! written, read back and dropped. A thread of the server does the work on files.
//!
//! ```text
//! offset   start of the log                                           end
//!            ├──────────── on disk ───────────┤
//!                           ├──────────────── in memory ───────────────┤
//!                                             ├ unwritten ┤
//!                                                         ├─ backlog ──┤
//! ```
//!
//! Bytes that are older than the part of the backlog that is kept in memory are *spilled*: written
//! to disk, in order and without gaps. A spilled chunk is removed from memory once all readers have
//! passed it, or once more than [`LAG_IN_MEMORY_BYTES`] follow it. A reader whose next bytes are no
//! longer in memory receives them from the disk: the thread reads some bytes ahead, and then the
//! reader is woken. So no worker waits for the disk.
//!
//! | limit | what happens beyond it |
//! | --- | --- |
//! | [`SpillLimits::bytes_max`] | the oldest bytes on disk are dropped. Readers that need them are cut off |
//! | [`SpillLimits::unwritten_bytes_max`] | the disk is too slow, so spilling fails |
//! | the bound of a reader | the reader is cut off. Only bytes that are not in the log yet count |
//!
//! After a failure, everything on disk is dropped, and the log works as without a disk. After
//! [`RETRY`], or when [`SpillLimits::bytes_max`] is changed, spilling starts again.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pantala_base::SharedBytes;

use super::place::{Place, State};
use super::{Chunk, DeferredWork, Log, ReaderId, Wake};
use crate::effect::piece::Piece;

/// Maximum lag, in bytes, of readers that read from memory. The bytes of readers that are further
/// behind are removed from memory once they are on disk.
pub(crate) const LAG_IN_MEMORY_BYTES: u64 = 16 * 1024 * 1024;

/// Minimum number of bytes for which the thread is woken to write.
const WRITE_BYTES_MIN: u64 = 256 * 1024;

/// A write task takes further chunks until it has at least this number of bytes.
const WRITE_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// If the unwritten bytes exceed [`SpillLimits::unwritten_bytes_max`] divided by this number, the
/// thread writes before it reads. So even a thread that gets little CPU time keeps up with the
/// writes.
const URGENT_PART: u64 = 8;

/// Maximum length of a read, bytes.
const READ_BYTES_MAX: u64 = 256 * 1024;

/// Time after a failure until spilling starts again.
const RETRY: Duration = Duration::from_secs(60);

/// Limits of spilling.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpillLimits {
    /// Maximum number of bytes on disk; 0: nothing is spilled.
    pub bytes_max: u64,
    /// Maximum number of bytes older than the backlog that wait to be written.
    pub unwritten_bytes_max: u64,
}

/// Work on files. The thread must do one task after the other.
#[derive(Debug)]
pub struct SpillTask {
    /// The number of the content on disk. It changes when the content is dropped.
    pub generation: u64,
    /// The work.
    pub kind: SpillTaskKind,
}

/// The kinds of [`SpillTask`].
#[derive(Debug)]
pub enum SpillTaskKind {
    /// Drop everything. The field has the number of bytes that waited to be written, if the disk
    /// was too slow.
    Clear(Option<u64>),
    /// Append the parts at offset `start`. Before that, drop the oldest bytes as necessary, so that
    /// at most `bytes_max` bytes are on disk. If nothing is on disk, the content starts here.
    Write {
        /// Offset of the first part.
        start: u64,
        /// Consecutive bytes of the log.
        parts: Vec<Arc<SharedBytes>>,
        /// Maximum number of bytes on disk.
        bytes_max: u64,
    },
    /// Read a range of offsets.
    Read {
        /// The reader that needs the bytes.
        reader: ReaderId,
        /// The offsets.
        range: Range<u64>,
        /// An empty buffer with enough capacity.
        buffer: Vec<u8>,
    },
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Mode {
    #[default]
    Working,
    /// Spilling failed at this time.
    Failed(Instant),
}

/// The state of spilling.
#[derive(Default)]
pub(super) struct Spill {
    limits: SpillLimits,
    mode: Mode,
    /// Offsets of the bytes on disk.
    on_disk: Range<u64>,
    generation: u64,
    /// Whether a task was started and has not ended.
    is_busy: bool,
    /// Whether the thread must drop everything.
    must_clear: bool,
    /// Whether [`SpillLimits::bytes_max`] has become lower than the number of bytes on disk.
    must_trim: bool,
    /// Number of unwritten bytes that do not count towards [`SpillLimits::unwritten_bytes_max`]:
    /// bytes that were already in memory when spilling started, and bytes that left the backlog all
    /// at once, because a large value was appended or the backlog was made smaller.
    uncounted_bytes: Option<u64>,
    /// Number of unwritten bytes when they were counted last.
    unwritten_bytes: u64,
    /// The number of unwritten bytes at which spilling failed because the disk was too slow.
    /// Cleared when the thread has received it.
    overflow_bytes: Option<u64>,
    /// Whether the last task was a write.
    has_written_last: bool,
    /// The reader of the last read.
    last_reader: ReaderId,
    /// Wakes the thread. `None` if there is no thread.
    wake: Option<Wake>,
    /// Whether the thread must be woken for the next task.
    is_idle: bool,
}

impl Spill {
    fn is_on(&self) -> bool {
        self.limits.bytes_max > 0 && self.mode == Mode::Working && self.wake.is_some()
    }

    /// Returns the offset of the first byte on disk.
    pub(super) fn start(&self) -> Option<u64> {
        (!self.on_disk.is_empty()).then_some(self.on_disk.start)
    }

    /// Drops everything on disk.
    pub(super) fn clear(&mut self) {
        if self.is_busy || !self.on_disk.is_empty() {
            self.generation += 1;
            self.must_clear = true;
        }
        self.on_disk = 0..0;
        self.must_trim = false;
        self.uncounted_bytes = None;
        self.unwritten_bytes = 0;
    }

    /// Records the number of bytes that wait to be written. Returns whether there are too many.
    fn note_unwritten(&mut self, bytes: u64) -> bool {
        let max = self.limits.unwritten_bytes_max;
        let uncounted_bytes = self.uncounted_bytes.get_or_insert(bytes);
        let added = bytes.saturating_sub(self.unwritten_bytes);
        // If the disk kept up until many bytes were added at once, it is not too slow.
        if added > max / 2 && self.unwritten_bytes <= max / 2 {
            *uncounted_bytes += added;
        }
        self.unwritten_bytes = bytes;
        *uncounted_bytes = bytes.min(*uncounted_bytes);
        bytes > max + *uncounted_bytes
    }

    fn fail(&mut self) {
        self.clear();
        self.mode = Mode::Failed(Instant::now());
    }
}

/// The offsets of a log that spilling depends on.
#[derive(Clone, Copy)]
pub(super) struct Extent {
    /// Offset of the first byte in memory.
    pub(super) memory_start: u64,
    /// Offset at which the backlog in memory starts.
    pub(super) backlog_start: u64,
    pub(super) end: u64,
    /// Whether the backlog is kept. Otherwise nothing is spilled.
    pub(super) is_kept: bool,
}

impl Spill {
    pub(super) fn spills(&self, extent: Extent) -> bool {
        self.is_on() && extent.is_kept
    }

    /// Returns the offset after the last byte that was written to disk. If nothing was, returns the
    /// offset at which the first write will start.
    fn written_end(&self, extent: Extent) -> u64 {
        if self.on_disk.is_empty() { extent.memory_start } else { self.on_disk.end }
    }

    /// Returns a minimum for the bounds of readers, if bytes are spilled. It replaces the bound of
    /// each reader whose own bound is smaller. While bytes are spilled, the bytes of the log do not
    /// count towards the bounds, because spilling limits their memory.
    pub(super) fn bound_min(&self, extent: Extent) -> Option<u64> {
        self.spills(extent).then_some(self.limits.unwritten_bytes_max)
    }

    /// Returns the offset before which chunks may be removed from memory. Returns `None` if bytes
    /// are not spilled. `needed_from` is the offset before which chunks may be removed when bytes
    /// are not spilled. Ends spilling if the disk is too slow.
    pub(super) fn removable_before(&mut self, extent: Extent, needed_from: u64) -> Option<u64> {
        if !self.spills(extent) {
            self.clear();
            return None;
        }
        let written_end = self.written_end(extent);
        let unwritten_bytes = extent.backlog_start.saturating_sub(written_end);
        if self.note_unwritten(unwritten_bytes) {
            self.overflow_bytes = Some(unwritten_bytes);
            self.must_clear = true;
            self.fail();
            return None;
        }
        let old = extent.backlog_start.min(extent.end.saturating_sub(LAG_IN_MEMORY_BYTES));
        Some(needed_from.max(old).min(written_end))
    }
}

/// The thread's view of a log.
pub(crate) struct SpillSide<'l> {
    log: &'l mut Log,
    extent: Extent,
}

impl<'l> SpillSide<'l> {
    pub(super) fn new(log: &'l mut Log) -> Self {
        let extent = log.extent();
        SpillSide { log, extent }
    }

    /// Returns the offset after the last chunk that may be written.
    fn writable_end(&self) -> u64 {
        let old = self.log.chunks.partition_point(|chunk| chunk.end() <= self.extent.backlog_start);
        old.checked_sub(1).map_or(0, |last| self.log.chunks[last].end())
    }

    fn unwritten_bytes(&self) -> u64 {
        self.writable_end().saturating_sub(self.log.spill.written_end(self.extent))
    }

    fn must_write(&self) -> bool {
        self.log.spill.must_trim || self.unwritten_bytes() >= WRITE_BYTES_MIN
    }

    /// Returns the reader to read for: the next one after the reader of the last read.
    fn reader_of_disk(&self) -> Option<&Place> {
        let memory_start = self.extent.memory_start;
        let needs = |place: &&Place| {
            place.needs_disk && matches!(place.state, State::At(position) if place.next(position) < memory_start)
        };
        let is_later = |place: &&Place| place.id > self.log.spill.last_reader;
        let places = &self.log.places;
        places.iter().filter(needs).find(is_later).or_else(|| places.iter().find(needs))
    }

    /// Returns the wake of the thread if it waits and there is a task.
    pub(super) fn wake(self) -> Option<Wake> {
        let spill = &self.log.spill;
        let has_task = || {
            let has_work = || self.must_write() || self.reader_of_disk().is_some();
            spill.must_clear || spill.spills(self.extent) && has_work()
        };
        if !spill.is_idle || !has_task() {
            return None;
        }
        self.log.spill.is_idle = false;
        self.log.spill.wake.clone()
    }

    /// Returns the range of offsets on disk.
    pub(crate) fn on_disk(&self) -> Range<u64> {
        self.log.spill.on_disk.clone()
    }

    /// Sets the callback that wakes the thread. Called by the thread before its first task.
    pub(crate) fn set_thread(self, wake: Wake) {
        self.log.spill.wake = Some(wake);
    }

    /// Sets the limits. After a failure, a change of [`SpillLimits::bytes_max`] starts spilling
    /// again.
    pub(crate) fn set_limits(self, limits: SpillLimits) -> DeferredWork {
        let spill = &mut self.log.spill;
        if limits.bytes_max != spill.limits.bytes_max {
            spill.mode = Mode::Working;
            spill.must_trim = limits.bytes_max < spill.on_disk.end - spill.on_disk.start;
        }
        if limits.unwritten_bytes_max < spill.limits.unwritten_bytes_max {
            // Bytes that already wait to be written do not count towards the lower limit.
            spill.uncounted_bytes = None;
        }
        spill.limits = limits;
        let mut aftermath = self.log.free();
        // After a failure, the thread does not wait for a task, but for the end of [`RETRY`]. It
        // must see the changed limits now.
        aftermath.wakes.extend(self.log.spill.wake.clone());
        aftermath
    }

    /// Returns the next task of the thread. An error means that there is none now. The thread must
    /// then wait for its wake, and at most for the time in the error.
    pub(crate) fn next_task(mut self) -> Result<SpillTask, Option<Duration>> {
        let kind = self.next_task_kind()?;
        self.log.spill.is_busy = true;
        Ok(SpillTask { generation: self.log.spill.generation, kind })
    }

    fn next_task_kind(&mut self) -> Result<SpillTaskKind, Option<Duration>> {
        let spill = &mut self.log.spill;
        if std::mem::take(&mut spill.must_clear) {
            return Ok(SpillTaskKind::Clear(spill.overflow_bytes.take()));
        }
        if let Mode::Failed(since) = spill.mode {
            let rest = RETRY.saturating_sub(since.elapsed());
            if !rest.is_zero() {
                return Err(Some(rest));
            }
            spill.mode = Mode::Working;
        }
        let spill_limits = spill.limits;
        let (must_write, reader) = match spill.spills(self.extent) {
            true => (self.must_write(), self.reader_of_disk()),
            false => (false, None),
        };
        // Reads and writes alternate, so that neither has to wait for long. But urgent writes come
        // before reads, because spilling fails if there are too many unwritten bytes.
        let is_urgent = self.unwritten_bytes() > spill_limits.unwritten_bytes_max / URGENT_PART;
        let reader = reader.filter(|_| !must_write || !is_urgent && self.log.spill.has_written_last);
        if let Some(place) = reader
            && let State::At(position) = place.state
        {
            let (reader, start) = (place.id, place.next(position));
            let spill = &mut self.log.spill;
            // Bytes from the start of the memory on need not be read from the disk.
            let range = start..self.extent.memory_start.min(start + READ_BYTES_MAX);
            (spill.has_written_last, spill.last_reader) = (false, reader);
            let buffer = self.log.pool.take((range.end - range.start) as usize);
            return Ok(SpillTaskKind::Read { reader, range, buffer });
        }
        let spill = &mut self.log.spill;
        if !must_write {
            spill.is_idle = true;
            return Err(None);
        }
        (spill.has_written_last, spill.must_trim) = (true, false);
        Ok(self.write_task())
    }

    fn write_task(&self) -> SpillTaskKind {
        let (chunks, spill) = (&self.log.chunks, &self.log.spill);
        let (start, writable_end) = (spill.written_end(self.extent), self.writable_end());
        let first = chunks.partition_point(|chunk| chunk.start < start);
        let is_taken = |chunk: &&Chunk| chunk.end() <= writable_end && chunk.start - start < WRITE_BYTES_MAX;
        let parts = chunks.range(first..).take_while(is_taken).map(|chunk| Arc::clone(&chunk.bytes)).collect();
        SpillTaskKind::Write { start, parts, bytes_max: spill.limits.bytes_max }
    }

    /// Ends a task. Returns whether its result is still valid.
    fn end_task(&mut self, generation: u64) -> bool {
        self.log.spill.is_busy = false;
        self.log.spill.generation == generation
    }

    /// Records that everything was dropped.
    pub(crate) fn note_cleared(self) -> DeferredWork {
        self.log.spill.is_busy = false;
        self.log.free()
    }

    /// Records that bytes were written. `on_disk` is the range of offsets that are now on disk.
    pub(crate) fn note_written(mut self, generation: u64, on_disk: Range<u64>) -> DeferredWork {
        if self.end_task(generation) {
            self.log.spill.on_disk = on_disk;
        }
        self.log.free()
    }

    /// Adds bytes that were read for a reader. `start` is their offset.
    pub(crate) fn note_read(
        mut self,
        generation: u64,
        (reader, start): (ReaderId, u64),
        bytes: Vec<u8>,
    ) -> DeferredWork {
        let is_valid = self.end_task(generation) && !bytes.is_empty();
        let is_next = |place: &&mut Place| {
            place.id == reader && matches!(place.state, State::At(position) if place.next(position) == start)
        };
        let (pool, chunk_bytes) = (&self.log.pool, &self.log.chunk_bytes);
        if let Some(place) = self.log.places.iter_mut().find(is_next)
            && is_valid
        {
            place.add_fetched(Piece::Own(bytes).into_shared(pool, chunk_bytes));
        }
        self.log.free()
    }

    /// Records that a task has failed. Drops everything on disk.
    pub(crate) fn note_failed(mut self, generation: u64) -> DeferredWork {
        // A failed task for the current content ends spilling. If the task was for former content,
        // that content was dropped already, and its failure does not matter.
        if self.log.spill.generation == generation {
            self.log.spill.fail();
        }
        self.end_task(generation);
        self.log.free()
    }
}

#[cfg(test)]
mod tests;
