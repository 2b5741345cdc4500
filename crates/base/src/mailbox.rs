//! Intrusive lock-free queues: many producers, one consumer at a time.
//!
//! Both kinds that Pantala needs are one atomic word that is either a *mark* or the top of a linked stack of nodes; the
//! consumer swaps the whole stack out and reverses it, so that nodes come out in the order they went in.
//!
//! * [`Mailbox`]: messages for a worker. The mark says whether the worker sleeps, so that a sender learns from the same
//!   compare-and-swap that delivers its message whether it must ring the doorbell.
//! * `pantala_engine::ownership::Gate`: the owner word of a shard, built on [`Node`] and [`Chain`] from here.
//!
//! They need no bound of their own: a node is a request of a connection that waits for its answer, and a connection
//! has at most one (see `pantala_engine::request`), so `maxclients` bounds them. That is why they are linked lists and not
//! rings: a ring that can be full needs a second way for what does not fit.

use std::marker::PhantomData;

use crate::sync::{AtomicPtr, Ordering};

/// A queue element: a link and what it carries. Allocated by whoever sends, freed by whoever receives.
pub struct Node<T> {
    next: *mut Node<T>,
    /// What is carried.
    pub value: T,
}

// SAFETY: `next` is only a link; whoever owns the node (as a Box, or as part of a Chain) is the only one to use it, so
// moving a node to another thread moves no more than its value.
unsafe impl<T: Send> Send for Node<T> {}

impl<T> Node<T> {
    /// A node on its own.
    pub fn new(value: T) -> Box<Self> {
        Box::new(Node { next: std::ptr::null_mut(), value })
    }
}

/// Nodes in the order they were pushed, owned by the consumer.
pub struct Chain<T> {
    first: *mut Node<T>,
}

// SAFETY: a Chain owns its nodes outright (they were swapped out of the shared word), so it may move between threads
// whenever the values may.
unsafe impl<T: Send> Send for Chain<T> {}

impl<T> Chain<T> {
    /// No nodes.
    pub fn empty() -> Self {
        Chain { first: std::ptr::null_mut() }
    }

    /// Takes over a stack of nodes and reverses it into arrival order.
    ///
    /// # Safety
    /// `top` must be null or the top of a list of nodes, each made by [`Node::new`] and leaked with [`Box::into_raw`], that
    /// nobody else can reach any more.
    pub unsafe fn from_stack(mut top: *mut Node<T>) -> Self {
        let mut first = std::ptr::null_mut();
        while !top.is_null() {
            // SAFETY: by the caller's promise `top` is a live node that only we can reach.
            let below = unsafe { std::mem::replace(&mut (*top).next, first) };
            first = top;
            top = below;
        }
        Chain { first }
    }

    /// Whether no node is left.
    pub fn is_empty(&self) -> bool {
        self.first.is_null()
    }
}

impl<T> Iterator for Chain<T> {
    type Item = Box<Node<T>>;

    fn next(&mut self) -> Option<Box<Node<T>>> {
        if self.first.is_null() {
            return None;
        }
        // SAFETY: the chain owns its nodes, each of which came from Box::into_raw; it is unlinked before it is given out.
        let mut node = unsafe { Box::from_raw(self.first) };
        self.first = std::mem::replace(&mut node.next, std::ptr::null_mut());
        Some(node)
    }
}

impl<T> Drop for Chain<T> {
    fn drop(&mut self) {
        for node in self.by_ref() {
            drop(node);
        }
    }
}

/// A mark that can't be the address of a node: nodes are aligned to more than one byte.
pub fn mark<T>() -> *mut Node<T> {
    std::ptr::without_provenance_mut(1)
}

/// Pushes `node` onto the stack in `word`, where null and [`mark`] both mean "no nodes yet". Returns what stood there before.
/// `stop_at_null` gives the node back instead of pushing when the word is null.
///
/// The successful exchange is a release (the node's content happens before whoever swaps it out with an acquire) and an
/// acquire (what the previous state published is visible).
pub fn push<T>(
    word: &AtomicPtr<Node<T>>,
    node: Box<Node<T>>,
    stop_at_null: bool,
) -> Result<*mut Node<T>, Box<Node<T>>> {
    let raw = Box::into_raw(node);
    let mut current = word.load(Ordering::Relaxed);
    loop {
        if stop_at_null && current.is_null() {
            // SAFETY: the node was not published: it is still the box that we took apart above.
            return Err(unsafe { Box::from_raw(raw) });
        }
        let below = if current == mark() { std::ptr::null_mut() } else { current };
        // SAFETY: not published yet, so we still own it.
        unsafe { (*raw).next = below };
        match word.compare_exchange_weak(current, raw, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(before) => return Ok(before),
            Err(now) => current = now,
        }
    }
}

/// Messages for one worker, from any thread.
///
/// The word is null (awake, nothing waits), [`mark`] (asleep) or a stack of messages.
pub struct Mailbox<T> {
    word: AtomicPtr<Node<T>>,
    values: PhantomData<*mut Node<T>>,
}

// SAFETY: a mailbox owns the nodes that are linked to it and passes each to one thread: it moves values between threads and
// never shares them, so it may itself be moved and shared whenever the values may be moved.
unsafe impl<T: Send> Send for Mailbox<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Mailbox<T> {}

impl<T> Mailbox<T> {
    /// An empty mailbox of a worker that is awake.
    pub fn new() -> Self {
        Mailbox { word: AtomicPtr::new(std::ptr::null_mut()), values: PhantomData }
    }

    /// Delivers a message. `true`: the worker slept and this message is the first since, so the sender must ring its doorbell.
    #[must_use = "a sleeping worker must be woken"]
    pub fn send(&self, message: Box<Node<T>>) -> bool {
        match push(&self.word, message, false) {
            Ok(before) => before == mark(),
            Err(_) => unreachable!("push refuses only when told to"),
        }
    }

    /// Takes all messages, oldest first. Only the worker itself calls it; it also marks the worker awake.
    pub fn receive(&self) -> Chain<T> {
        // Acquire: pairs with the release of each push (the pushes below the top are in its release sequence, as every
        // one of them was a read-modify-write).
        let top = if self.word.load(Ordering::Relaxed).is_null() {
            return Chain::empty();
        } else {
            self.word.swap(std::ptr::null_mut(), Ordering::Acquire)
        };
        if top == mark() {
            return Chain::empty();
        }
        // SAFETY: swapped out of the word, so only we can reach the stack, and `push` built it from leaked boxes.
        unsafe { Chain::from_stack(top) }
    }

    /// Marks the worker awake, and returns whether there are messages to [`receive`](Mailbox::receive). Only the worker
    /// itself calls it.
    #[inline]
    pub fn wake(&self) -> bool {
        // Relaxed: no message is read here, and whether one came first is decided by the exchange on this one word.
        let word = self.word.load(Ordering::Relaxed);
        if word != mark() {
            return !word.is_null();
        }
        let awake = std::ptr::null_mut();
        self.word.compare_exchange(mark(), awake, Ordering::Relaxed, Ordering::Relaxed).is_err()
    }

    /// Announces that the worker is about to sleep. `false`: messages wait, it must not. Afterwards the next [`send`]
    /// asks its caller to ring; [`receive`] ends the sleep.
    ///
    /// [`send`]: Mailbox::send
    /// [`receive`]: Mailbox::receive
    pub fn try_sleep(&self) -> bool {
        // Relaxed is enough: nothing is published by going to sleep, and whether a message came before or after is
        // decided by the exchange itself, on this one word.
        self.word.compare_exchange(std::ptr::null_mut(), mark(), Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

impl<T> Default for Mailbox<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Drop for Mailbox<T> {
    fn drop(&mut self) {
        drop(self.receive());
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn messages_come_out_in_order_and_sleep_is_seen() {
        let mailbox = Mailbox::new();
        assert!(!mailbox.send(Node::new(1)));
        assert!(!mailbox.try_sleep(), "a message waits");
        assert!(!mailbox.send(Node::new(2)));
        assert_eq!(mailbox.receive().map(|node| node.value).collect::<Vec<_>>(), [1, 2]);
        assert!(mailbox.try_sleep());
        assert!(mailbox.send(Node::new(3)), "the first message to a sleeper rings");
        assert!(!mailbox.send(Node::new(4)), "the second does not");
        assert_eq!(mailbox.receive().map(|node| node.value).collect::<Vec<_>>(), [3, 4]);
        assert!(mailbox.receive().is_empty());
    }

    #[test]
    fn dropping_frees_what_waits() {
        let value = std::sync::Arc::new(());
        let mailbox = Mailbox::new();
        let _ = mailbox.send(Node::new(value.clone()));
        let _ = mailbox.send(Node::new(value.clone()));
        drop(mailbox);
        assert_eq!(std::sync::Arc::strong_count(&value), 1);
    }

    #[test]
    fn many_senders_one_receiver() {
        const SENDERS: usize = 4;
        const EACH: usize = if cfg!(miri) { 50 } else { 10_000 };
        let mailbox = Mailbox::new();
        let mut last = [None; SENDERS];
        let mut received = 0;
        std::thread::scope(|scope| {
            for sender in 0..SENDERS {
                let mailbox = &mailbox;
                scope.spawn(move || (0..EACH).for_each(|i| _ = mailbox.send(Node::new((sender, i)))));
            }
            while received < SENDERS * EACH {
                for node in mailbox.receive() {
                    let (sender, i) = node.value;
                    assert!(last[sender] < Some(i), "order of one sender");
                    last[sender] = Some(i);
                    received += 1;
                }
            }
        });
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::sync::{Arc, AtomicUsize, thread};

    /// A worker that sleeps only when its mailbox let it, and two senders: every message is either seen before the sleep or
    /// rings the doorbell.
    #[test]
    fn no_message_is_slept_through() {
        loom::model(|| {
            let mailbox = Arc::new(Mailbox::new());
            let rings = Arc::new(AtomicUsize::new(0));
            let senders: Vec<_> = (0..2)
                .map(|i| {
                    let (mailbox, rings) = (mailbox.clone(), rings.clone());
                    thread::spawn(move || {
                        if mailbox.send(Node::new(i)) {
                            rings.fetch_add(1, Ordering::Release);
                        }
                    })
                })
                .collect();
            let mut seen = mailbox.receive().count();
            let slept = mailbox.try_sleep();
            for sender in senders {
                sender.join().unwrap();
            }
            let rung = rings.load(Ordering::Acquire);
            let late = mailbox.receive().count();
            seen += late;
            assert_eq!(seen, 2);
            if slept && late > 0 {
                assert_eq!(rung, 1, "a sleeper with messages was woken exactly once");
            }
        });
    }
}
