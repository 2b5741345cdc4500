//! Ownership of shards. A thread that holds a shard's [`Ownership`] may run code on the shard.
//! Commands run with ownership in all cases: on the connection's worker, as a request on another
//! thread, and on several shards at once.
//!
//! Each shard has a [`Gate`], one atomic word:
//!
//! | word | meaning | transitions |
//! | --- | --- | --- |
//! | null | the shard is free | any thread may change null to the mark, and becomes the owner |
//! | mark | the shard is held, and no request waits | the owner frees the shard (mark → null); any thread enqueues a request (mark → node) |
//! | node | the shard is held, and requests wait: the word is the top of a stack of nodes | any thread enqueues a request (node → node); the owner takes all requests (node → mark) |
//!
//! The right to a shard is a value: [`Ownership`]. It cannot be copied, is created only where the
//! word changes from null to mark, and is consumed only where the word changes from mark to null.
//! Between these changes it may move from thread to thread inside a request. So at most one
//! `Ownership` of a shard exists at any time, and its holder has exclusive access to the shard. The
//! `unsafe` accesses to shards in [`crate::shard::keyspace`] rely only on this property.
//!
//! Freeing and enqueueing use the same word, so no wake-up can be lost. If a thread with a request
//! finds the word null, it becomes the owner. Otherwise it pushes its node. The owner's exchange of
//! mark for null then fails, and the owner finds the request.
//!
//! Rejected alternative: a spin lock and a separate mailbox. In that design a requester first
//! pushes its request, and then checks whether the shard is free. An owner first frees the shard,
//! and then checks whether a request was pushed. On both sides, the order of the two steps matters,
//! which needs a sequentially consistent fence in every command.

use std::marker::PhantomData;

use pantala_base::mailbox::{Chain, Node, mark, push};
use pantala_base::sync::{AtomicPtr, Ordering};

/// Identity of a gate: the number of its keyspace in the high bits, and the number of its shard in
/// the low bits. One comparison checks both.
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

    /// Returns the shard's keyspace, by its number in this process. An ownership gives no access to
    /// shards of another keyspace.
    pub(crate) fn keyspace(&self) -> u32 {
        (self.id.0 >> u32::BITS) as u32
    }
}

/// Result of an attempt to take a shard for a request.
pub(crate) enum Taken<T> {
    /// The shard was free. The caller now owns it. The request is returned.
    Owner(Ownership, Box<Node<T>>),
    /// The shard was held. The request waits in the gate, and the owner will grant it the shard.
    Enqueued,
}

/// Result of an attempt to free a shard.
pub(crate) enum Freed<T> {
    /// The shard is free.
    Free,
    /// Requests had arrived. The caller still owns the shard, and must grant it to these requests
    /// in order of arrival.
    Waiters(Ownership, Chain<T>),
}

/// The atomic word of a shard. It shows whether the shard is held, and refers to the queued
/// requests.
pub(crate) struct Gate<T> {
    word: AtomicPtr<Node<T>>,
    /// ID of the gate's ownerships.
    id: GateId,
    values: PhantomData<*mut Node<T>>,
}

// SAFETY: a gate owns the nodes linked to it, and passes each node to one thread. Threads never
// share the values in these nodes. So a gate may be moved between threads, and shared by threads,
// if `T` is `Send`.
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
        // Acquire: pairs with the release in `free`, so the new owner sees all that the last owner
        // did to the shard.
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

    /// Returns whether the shard is held at this moment. The answer may be outdated as soon as it
    /// is returned, so use it only to decide whether to spin.
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
                // The shard was freed between the two attempts. Tries again.
                Err(back) => request = back,
            }
        }
    }

    /// Frees the shard, unless requests have arrived.
    #[inline]
    pub(crate) fn free(&self, ownership: Ownership) -> Freed<T> {
        assert!(ownership.id == self.id, "another shard's ownership");
        // Release: the next owner sees everything that was done to the shard.
        match self.word.compare_exchange(mark(), std::ptr::null_mut(), Ordering::Release, Ordering::Relaxed) {
            Ok(_) => Freed::Free,
            Err(_) => self.collect(ownership),
        }
    }

    /// Takes the pending requests of a shard, which stays held. Returns `None` if there are none.
    pub(crate) fn waiting(&self, ownership: &Ownership) -> Option<Chain<T>> {
        assert!(ownership.id == self.id, "another shard's ownership");
        // Acquire: as in `collect`. The word is a mark again, so further requests may arrive.
        if self.word.load(Ordering::Relaxed) == mark() {
            return None;
        }
        let top = self.word.swap(mark(), Ordering::Acquire);
        // SAFETY: as in `collect`. `ownership` proves that the shard is held, so the word was not
        // null. The word was not the mark either, as checked above.
        Some(unsafe { Chain::from_stack(top) })
    }

    /// Takes the pending requests of a shard that could not be freed. The shard stays held.
    #[cold]
    fn collect(&self, ownership: Ownership) -> Freed<T> {
        // Acquire: pairs with the release of each push. No release is needed, because this owner
        // keeps the shard.
        let top = self.word.swap(mark(), Ordering::Acquire);
        debug_assert!(!top.is_null() && top != mark(), "another thread has freed or emptied the gate of a held shard");
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

    /// Two threads each enqueue a request while a third only tries to take the shard. Each request
    /// runs once, and no two run at the same time.
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
            let ownership = cell.gate.try_take().expect("all threads have finished");
            // SAFETY: as in `add`.
            assert_eq!(cell.value.with(|value| unsafe { *value }), expected);
            finish(&cell, ownership);
        });
    }
}
