//! Ownership of shards: the primitive behind inline execution, combining and commands on several
//! shards. A thread that holds a shard's [`Ownership`] may run code on the shard.
//!
//! Each shard has a [`Gate`], one atomic word:
//!
//! | word | meaning | transitions |
//! | --- | --- | --- |
//! | null | free | any thread: null → mark, and becomes the owner |
//! | mark | held, no waiters | owner frees (mark → null); any thread enqueues (mark → node) |
//! | node | held, requests wait (a stack) | any thread enqueues; owner takes all (node → mark) |
//!
//! The right to a shard is a value: [`Ownership`]. It cannot be copied, is created only where the
//! word changes from null to mark, and is consumed only where the word changes from mark to null.
//! In between it may move from thread to thread inside a request. So at most one `Ownership` of a
//! shard exists at any time, and its holder has exclusive access to the shard. This is the whole
//! argument for the `unsafe` in [`crate::shard::keyspace::ShardCell`].
//!
//! Freeing and enqueueing use the same word, so no wake-up can be lost: either the request finds
//! the word null and its thread becomes the owner, or the owner's exchange of mark for null fails
//! and the owner finds the request.
//!
//! Rejected: a spin lock beside a separate mailbox. It needs a sequentially consistent fence
//! between "push, then check whether the shard is free" and "free the shard, then check whether a
//! request was pushed", on the path of every command.

use std::marker::PhantomData;

use pantala_base::mailbox::{Chain, Node, mark, push};
use pantala_base::sync::{AtomicPtr, Ordering};

/// Identifies a gate: the number of its keyspace in the high bits, and the number of its shard in
/// the low bits, so that one comparison suffices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct GateId(u64);

/// The right to run code on one shard. See the head of this module.
#[must_use = "an ownership that is dropped leaves its shard held for ever"]
#[derive(Debug)]
pub struct Ownership {
    id: GateId,
}

impl Ownership {
    /// Returns the number of the shard.
    pub fn shard(&self) -> u32 {
        self.id.0 as u32
    }

    /// Returns the number of the keyspace in this process. An ownership gives no access to shards
    /// of another keyspace.
    pub(crate) fn keyspace(&self) -> u32 {
        (self.id.0 >> u32::BITS) as u32
    }
}

/// Result of an attempt to take a shard for a request.
pub(crate) enum Taken<T> {
    /// The shard was free. The caller now owns it, and gets the request back.
    Owner(Ownership, Box<Node<T>>),
    /// The shard was held. The request waits in the gate, and the owner will grant it the shard.
    Enqueued,
}

/// Result of an attempt to free a shard.
pub(crate) enum Freed<T> {
    /// The shard is free.
    Free,
    /// Requests had arrived. The caller still owns the shard, and must grant it to them in order of
    /// arrival.
    Waiters(Ownership, Chain<T>),
}

/// The word of a shard that holds its ownership and queue.
pub(crate) struct Gate<T> {
    word: AtomicPtr<Node<T>>,
    /// ID of the gate's ownerships.
    id: GateId,
    values: PhantomData<*mut Node<T>>,
}

// SAFETY: a gate owns the nodes linked to it and passes each to one thread. It moves values between
// threads and never shares them, so it can be moved and shared if the values can be moved.
unsafe impl<T: Send> Send for Gate<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Gate<T> {}

impl<T> Gate<T> {
    /// Returns the gate of a free shard.
    pub(crate) fn new(shard: u32, keyspace: u32) -> Self {
        let id = GateId(u64::from(keyspace) << u32::BITS | u64::from(shard));
        Gate { word: AtomicPtr::new(std::ptr::null_mut()), id, values: PhantomData }
    }

    /// Takes the shard if it is free.
    #[inline]
    pub(crate) fn try_take(&self) -> Option<Ownership> {
        // Acquire: the last owner's writes to the shard happened before its release of this word.
        match self.word.compare_exchange(std::ptr::null_mut(), mark(), Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => Some(Ownership { id: self.id }),
            Err(_) => None,
        }
    }

    /// Returns whether this gate created `ownership`.
    #[inline]
    pub(crate) fn is_of(&self, ownership: &Ownership) -> bool {
        self.id == ownership.id
    }

    /// Returns whether the shard is held at this moment. Only a hint for spinning.
    #[inline]
    pub(crate) fn is_held(&self) -> bool {
        !self.word.load(Ordering::Relaxed).is_null()
    }

    /// Takes the shard if it is free. Otherwise enqueues `request`.
    pub(crate) fn take_or_enqueue(&self, mut request: Box<Node<T>>) -> Taken<T> {
        loop {
            if let Some(ownership) = self.try_take() {
                return Taken::Owner(ownership, request);
            }
            match push(&self.word, request, true) {
                Ok(_) => return Taken::Enqueued,
                Err(back) => request = back,
            }
        }
    }

    /// Frees the shard, unless requests have arrived.
    #[inline]
    pub(crate) fn free(&self, ownership: Ownership) -> Freed<T> {
        assert!(ownership.id == self.id, "another shard's ownership");
        // Release: everything that was done to the shard is visible to the next owner.
        match self.word.compare_exchange(mark(), std::ptr::null_mut(), Ordering::Release, Ordering::Relaxed) {
            Ok(_) => Freed::Free,
            Err(_) => self.collect(ownership),
        }
    }

    /// Takes the pending requests of a shard that stays held.
    pub(crate) fn waiting(&self, ownership: &Ownership) -> Option<Chain<T>> {
        assert!(ownership.id == self.id, "another shard's ownership");
        // Acquire: as in `collect`. The mark stays, and further requests may arrive.
        if self.word.load(Ordering::Relaxed) == mark() {
            return None;
        }
        let top = self.word.swap(mark(), Ordering::Acquire);
        // SAFETY: as in `collect`. `ownership` proves that the shard is held, so the word was
        // neither null nor mark.
        Some(unsafe { Chain::from_stack(top) })
    }

    /// Takes all pending requests and keeps the shard.
    #[cold]
    fn collect(&self, ownership: Ownership) -> Freed<T> {
        // Acquire: pairs with the release of each push. No release is needed, because this owner
        // keeps the shard.
        let top = self.word.swap(mark(), Ordering::Acquire);
        debug_assert!(!top.is_null() && top != mark(), "only the owner frees, and it did not");
        // SAFETY: the stack was swapped out, so no other thread can reach it. `push` built it from
        // leaked boxes.
        Freed::Waiters(ownership, unsafe { Chain::from_stack(top) })
    }
}

impl<T> Drop for Gate<T> {
    fn drop(&mut self) {
        let top = self.word.swap(std::ptr::null_mut(), Ordering::Acquire);
        if !top.is_null() && top != mark() {
            // SAFETY: as in `collect`. `&mut self` excludes every other access to the gate.
            drop(unsafe { Chain::from_stack(top) });
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn held_shards_queue_requests_in_arrival_order() {
        let gate: Gate<u32> = Gate::new(7, 1);
        let ownership = gate.try_take().expect("free");
        assert_eq!(ownership.shard(), 7);
        assert!(gate.try_take().is_none());
        assert!(gate.is_held());
        for i in 0..3 {
            assert!(matches!(gate.take_or_enqueue(Node::new(i)), Taken::Enqueued));
        }
        let Freed::Waiters(ownership, waiters) = gate.free(ownership) else { panic!("requests wait") };
        assert_eq!(waiters.map(|node| node.value).collect::<Vec<_>>(), [0, 1, 2]);
        assert!(gate.waiting(&ownership).is_none());
        assert!(matches!(gate.take_or_enqueue(Node::new(3)), Taken::Enqueued));
        let waiting = gate.waiting(&ownership).expect("one waits");
        assert_eq!(waiting.map(|node| node.value).collect::<Vec<_>>(), [3]);
        assert!(matches!(gate.free(ownership), Freed::Free));
        assert!(matches!(gate.take_or_enqueue(Node::new(9)), Taken::Owner(..)));
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::thread;

    struct Cell {
        gate: Gate<u32>,
        /// Loom reports a data race if two threads access it at the same time, or if one does not
        /// see writes of the other.
        value: UnsafeCell<u32>,
    }

    fn add(cell: &Cell, amount: u32) {
        // SAFETY: called only by the owner of the gate, which is what loom checks.
        cell.value.with_mut(|value| unsafe { *value += amount });
    }

    fn finish(cell: &Cell, mut ownership: Ownership) {
        loop {
            match cell.gate.free(ownership) {
                Freed::Free => return,
                Freed::Waiters(still, waiters) => {
                    ownership = still;
                    waiters.for_each(|node| add(cell, node.value));
                }
            }
        }
    }

    /// Two threads each enqueue a request while a third only tries to take the shard. Every request
    /// runs once, and never two at the same time.
    #[test]
    fn every_request_runs_once_and_alone() {
        loom::model(|| {
            let cell = Arc::new(Cell { gate: Gate::new(0, 1), value: UnsafeCell::new(0) });
            let threads: Vec<_> = [1, 10]
                .into_iter()
                .map(|amount| {
                    let cell = cell.clone();
                    thread::spawn(move || match cell.gate.take_or_enqueue(Node::new(amount)) {
                        Taken::Owner(ownership, node) => {
                            add(&cell, node.value);
                            finish(&cell, ownership);
                        }
                        Taken::Enqueued => {}
                    })
                })
                .collect();
            let mut expected = 11;
            if let Some(ownership) = cell.gate.try_take() {
                add(&cell, 100);
                expected += 100;
                finish(&cell, ownership);
            }
            for thread in threads {
                thread.join().unwrap();
            }
            let ownership = cell.gate.try_take().expect("everyone has finished");
            // SAFETY: as in `add`.
            assert_eq!(cell.value.with(|value| unsafe { *value }), expected);
            finish(&cell, ownership);
        });
    }
}
