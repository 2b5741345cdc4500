//! The interface of the thread that keeps the older part of the stream on disk
//! ([`crate::effect::log::spill`]).

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use super::{Journal, Shared, Which, lock};
use crate::effect::log::spill::{SpillLimits, SpillSide, SpillTask};
use crate::effect::log::{DeferredWork, ReaderId, Wake};

/// The part of the stream that is on disk.
pub struct Spilling(Arc<Shared>);

impl Journal {
    /// Returns the part of the stream that is on disk.
    pub fn spilling(&self) -> Spilling {
        Spilling(Arc::clone(&self.shared))
    }
}

impl Spilling {
    fn change(&self, change: impl FnOnce(SpillSide<'_>) -> DeferredWork) {
        let aftermath = change(lock(&self.0.control).logs.of_mut(Which::Stream).spill_side());
        aftermath.settle();
    }

    /// Sets the limits of the part on disk.
    pub fn set_limits(&self, limits: SpillLimits) {
        self.change(|side| side.set_limits(limits));
    }

    /// Sets the callback that wakes the thread. The thread calls this before its first task.
    /// Nothing is written to disk before.
    pub fn set_thread(&self, wake: Wake) {
        lock(&self.0.control).logs.of_mut(Which::Stream).spill_side().set_thread(wake);
    }

    /// Returns the range of stream offsets that are on disk.
    pub fn on_disk(&self) -> Range<u64> {
        lock(&self.0.control).logs.of_mut(Which::Stream).spill_side().on_disk()
    }

    /// Returns the next task of the thread.
    ///
    /// # Errors
    /// There is no task now. The thread must wait for its wake, and at most for the time in the
    /// error.
    pub fn next_task(&self) -> Result<SpillTask, Option<Duration>> {
        lock(&self.0.control).logs.of_mut(Which::Stream).spill_side().next_task()
    }

    /// Records that everything on disk was dropped.
    pub fn note_cleared(&self) {
        self.change(|side| side.note_cleared());
    }

    /// Records that a write has ended. `on_disk` is the range of offsets that are now on disk.
    pub fn note_written(&self, generation: u64, on_disk: Range<u64>) {
        self.change(|side| side.note_written(generation, on_disk));
    }

    /// Records that a read for a reader has ended. `start` is the offset of the bytes.
    pub fn note_read(&self, generation: u64, reader: ReaderId, start: u64, bytes: Vec<u8>) {
        self.change(|side| side.note_read(generation, (reader, start), bytes));
    }

    /// Records that a task has failed. Everything on disk is dropped.
    pub fn note_failed(&self, generation: u64) {
        self.change(|side| side.note_failed(generation));
    }
}
