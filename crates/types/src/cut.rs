//! A *cut*: the elements that a large collection had at one instant. A reader (the encoder of a
//! snapshot) receives them in pieces while the collection changes.
//!
//! Each element that exists when the cut starts is *taken* once, in one of two ways: the reader
//! receives it, or, before it changes for the first time, a copy is kept for the reader. Elements
//! that are added later count as taken. A change does a constant amount of work, regardless of the
//! number of elements, except in the middle of a list (`list::frozen`).
//!
//! A collection owns its cut, because only the collection knows which element a command changes.
//! While there is no cut, a change only tests a pointer. Each element has a *slot*, a number that
//! the collection assigns: an index or the id of a record.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// A cut of a collection with elements of type `E`. `P` is the reader's position.
#[derive(Debug)]
pub(crate) struct Cut<E, P> {
    /// One bit per slot, set if the element in the slot is taken. A block of bits is allocated when
    /// its first bit is set, so starting a cut writes only one pointer per 32,768 slots.
    taken: Vec<Option<Box<Block>>>,
    /// Copies of elements that changed before the reader reached them.
    kept: Vec<E>,
    /// Number of elements that the reader has not received.
    left: usize,
    /// The position at which the reader continues.
    pub(crate) position: P,
}

impl<E, P> Cut<E, P> {
    /// Returns the cut of a collection of `len` elements, whose slots are all below `slots`.
    pub(crate) fn new(slots: usize, len: usize, position: P) -> Self {
        Cut { taken: vec![None; slots.div_ceil(BLOCK_SLOTS)], kept: Vec::new(), left: len, position }
    }

    /// Returns whether the element in a slot is taken.
    #[inline]
    pub(crate) fn is_taken(&self, slot: usize) -> bool {
        let block = self.taken.get(slot / BLOCK_SLOTS).and_then(Option::as_deref);
        block.is_some_and(|block| block[slot % BLOCK_SLOTS / BITS] & bit(slot) != 0)
    }

    /// Marks the element in a slot as taken. Returns whether the element was taken already.
    pub(crate) fn take(&mut self, slot: usize) -> bool {
        if slot / BLOCK_SLOTS >= self.taken.len() {
            self.taken.resize(slot / BLOCK_SLOTS + 1, None);
        }
        let block = self.taken[slot / BLOCK_SLOTS].get_or_insert_with(|| Box::new([0; BLOCK_WORDS]));
        let word = &mut block[slot % BLOCK_SLOTS / BITS];
        let was_taken = *word & bit(slot) != 0;
        *word |= bit(slot);
        was_taken
    }

    /// Marks the element in a slot as not taken. Called when an element that is not taken moves
    /// into the slot of a removed element, which was taken.
    pub(crate) fn untake(&mut self, slot: usize) {
        if let Some(Some(block)) = self.taken.get_mut(slot / BLOCK_SLOTS) {
            block[slot % BLOCK_SLOTS / BITS] &= !bit(slot);
        }
    }

    /// Takes the element in a slot before the element changes: keeps a copy, unless the element is
    /// taken already.
    pub(crate) fn keep(&mut self, slot: usize, copy: impl FnOnce() -> E) {
        if !self.take(slot) {
            self.kept.push(copy());
        }
    }

    /// Passes kept copies to the reader until the budget is spent. `read` returns an element's
    /// length in bytes.
    pub(crate) fn drain(&mut self, budget: &mut Budget, mut read: impl FnMut(E) -> usize) {
        while !budget.is_spent()
            && let Some(element) = self.kept.pop()
        {
            budget.spend(read(element));
            self.received(1);
        }
    }

    /// Notes that the reader has received `count` more elements.
    pub(crate) fn received(&mut self, count: usize) {
        debug_assert!(count <= self.left, "an element was read twice");
        self.left = self.left.saturating_sub(count);
    }

    /// Returns the state of the cut. `is_at_end` is whether the reader's position is past the last
    /// element.
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
/// Number of words in a block of [`Cut::taken`]. A block takes 4 KiB.
const BLOCK_WORDS: usize = 512;
/// Number of slots of a block.
const BLOCK_SLOTS: usize = BLOCK_WORDS * BITS;

type Block = [u64; BLOCK_WORDS];

/// Returns the bit of a slot in its word.
fn bit(slot: usize) -> u64 {
    1 << (slot % BITS)
}

/// The maximum size of a piece of a cut. A piece ends with the element that reaches either maximum.
#[derive(Clone, Copy, Debug)]
pub struct PieceMax {
    /// Number of elements that the reader visits. For a list or stream, it is a number of nodes.
    pub elements: usize,
    /// Total size of the elements in bytes, before compression.
    pub bytes: usize,
}

/// The remaining size of a piece.
#[derive(Debug)]
pub(crate) struct Budget(PieceMax);

impl Budget {
    /// Returns the budget of a piece. A maximum of 0 counts as 1, so that each piece has an
    /// element.
    pub(crate) fn new(max: PieceMax) -> Self {
        Budget(PieceMax { elements: max.elements.max(1), bytes: max.bytes.max(1) })
    }

    /// Subtracts an element of this length. `bytes` is 0 for an element that was skipped.
    #[inline]
    pub(crate) fn spend(&mut self, bytes: usize) {
        self.0.elements = self.0.elements.saturating_sub(1);
        self.0.bytes = self.0.bytes.saturating_sub(bytes);
    }

    /// Returns whether the piece must end.
    #[inline]
    pub(crate) fn is_spent(&self) -> bool {
        self.0.elements == 0 || self.0.bytes == 0
    }
}

/// The state of a cut after a piece of it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CutState {
    /// There are more elements.
    More,
    /// The reader has received all elements, and the cut has ended.
    Ended,
    /// The reader can't receive all elements, because some are missing or the collection has no
    /// cut. This state indicates a bug.
    Lost,
}

/// Identifies a running cut. Cuts that run at the same time have different ids. The id stays the
/// same when the collection moves to another key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CutId(usize);

/// Holds the cut of a collection, if one runs. Because of the lock, a reader needs only a shared
/// reference to advance the cut. A change of the collection has a mutable reference and needs no
/// lock. A copy of the collection has no cut.
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
        // If a reader panicked while it held the lock, the cut is still valid.
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner).as_deref_mut()
    }

    /// Starts a cut.
    pub(crate) fn begin(&self, cut: C) {
        *self.lock() = Some(Box::new(cut));
    }

    /// Returns whether a cut runs.
    pub(crate) fn is_running(&self) -> bool {
        self.lock().is_some()
    }

    /// Returns the id of the cut, if one runs.
    pub(crate) fn id(&self) -> Option<CutId> {
        self.lock().as_deref().map(|cut| CutId(std::ptr::from_ref(cut).addr()))
    }

    /// Ends the cut, if one runs.
    pub(crate) fn end(&self) {
        *self.lock() = None;
    }

    fn lock(&self) -> MutexGuard<'_, Option<Box<C>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Passes the cut to `read`, which reads a piece. Ends the cut unless `read` returns
    /// [`CutState::More`]. Returns [`CutState::Lost`] if no cut runs.
    pub(crate) fn read(&self, read: impl FnOnce(&mut C) -> CutState) -> CutState {
        let mut cut = self.lock();
        let state = cut.as_deref_mut().map_or(CutState::Lost, read);
        if state != CutState::More {
            *cut = None;
        }
        state
    }
}
