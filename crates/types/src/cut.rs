//! The elements that a large collection had at one instant, read in pieces while the collection
//! changes: a *cut*.
//!
//! Each element that exists when the cut starts is *taken* once: by the reader, or by the first
//! change to the element, which keeps a copy for the reader. Elements that are added later count as
//! taken. So a change does a constant amount of work, regardless of the number of elements.
//!
//! A collection owns its cut, because only the collection knows which element a command changes.
//! Without a cut, a change tests one word. The collection numbers its elements by *slots*: indexes
//! or ids of records.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// A cut of a collection with elements of type `E`. `P` is the reader's position.
#[derive(Debug)]
pub(crate) struct Cut<E, P> {
    /// Bit `slot % 64` of word `slot / 64`: the element in this slot is taken.
    taken: Vec<u64>,
    /// Copies of elements that changed before the reader reached them.
    kept: Vec<E>,
    /// Number of elements that the reader has not received.
    left: usize,
    /// Where the reader continues.
    pub(crate) position: P,
}

impl<E, P> Cut<E, P> {
    /// Returns the cut of a collection of `len` elements, whose slots are less than `slots`.
    pub(crate) fn new(slots: usize, len: usize, position: P) -> Self {
        Cut { taken: vec![0; slots.div_ceil(BITS)], kept: Vec::new(), left: len, position }
    }

    /// Returns whether the element in a slot is taken.
    #[inline]
    pub(crate) fn is_taken(&self, slot: usize) -> bool {
        self.taken.get(slot / BITS).is_some_and(|word| word >> (slot % BITS) & 1 == 1)
    }

    /// Marks the element in a slot as taken. Returns whether it already was.
    pub(crate) fn take(&mut self, slot: usize) -> bool {
        if slot / BITS >= self.taken.len() {
            self.taken.resize(slot / BITS + 1, 0);
        }
        let word = &mut self.taken[slot / BITS];
        let bit = 1 << (slot % BITS);
        let was_taken = *word & bit != 0;
        *word |= bit;
        was_taken
    }

    /// Marks the element in a slot as not taken: an element that isn't has moved there.
    pub(crate) fn untake(&mut self, slot: usize) {
        if let Some(word) = self.taken.get_mut(slot / BITS) {
            *word &= !(1 << (slot % BITS));
        }
    }

    /// Takes the element in a slot before it changes: keeps a copy, unless the element is taken.
    pub(crate) fn keep(&mut self, slot: usize, copy: impl FnOnce() -> E) {
        if !self.take(slot) {
            self.kept.push(copy());
        }
    }

    /// Passes at most `most` kept copies to the reader. Returns their number.
    pub(crate) fn drain(&mut self, most: usize, mut read: impl FnMut(E)) -> usize {
        let count = most.min(self.kept.len());
        self.kept.drain(self.kept.len() - count..).for_each(&mut read);
        self.received(count);
        count
    }

    /// Counts elements that the reader has received.
    pub(crate) fn received(&mut self, count: usize) {
        debug_assert!(count <= self.left, "an element was read twice");
        self.left = self.left.saturating_sub(count);
    }

    /// Returns the state of a reader that has passed the last element if `is_at_end`.
    pub(crate) fn state(&self, is_at_end: bool) -> CutState {
        match (is_at_end && self.kept.is_empty(), self.left) {
            (false, _) => CutState::More,
            (true, 0) => CutState::Ended,
            (true, _) => CutState::Lost,
        }
    }
}

/// Number of bits of a word of [`Cut::taken`].
const BITS: usize = u64::BITS as usize;

/// The state of a cut after a piece of it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CutState {
    /// There are more elements.
    More,
    /// The reader has received all elements, and the cut has ended.
    Ended,
    /// The reader can't receive all elements: the collection has lost its cut. This is a bug.
    Lost,
}

/// The place in a collection for its cut. The lock lets a reader that shares the collection advance
/// the cut; a change has exclusive access and doesn't lock. A copy of the collection has no cut.
#[derive(Debug)]
pub(crate) struct CutCell<C>(Mutex<Option<Box<C>>>);

impl<C> Default for CutCell<C> {
    fn default() -> Self {
        CutCell(Mutex::new(None))
    }
}

impl<C> Clone for CutCell<C> {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl<C> CutCell<C> {
    /// Returns the cut, if one runs.
    #[inline]
    pub(crate) fn get_mut(&mut self) -> Option<&mut C> {
        // A panic of a reader leaves a cut that is still valid.
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner).as_deref_mut()
    }

    /// Starts, reads or ends a cut.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Option<Box<C>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads a piece of the cut, which ends if `read` returns anything but [`CutState::More`].
    pub(crate) fn read(&self, read: impl FnOnce(&mut C) -> CutState) -> CutState {
        let mut cut = self.lock();
        let state = cut.as_deref_mut().map_or(CutState::Lost, read);
        if state != CutState::More {
            *cut = None;
        }
        state
    }
}
