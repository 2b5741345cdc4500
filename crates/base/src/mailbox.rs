//! Intrusive lock-free queues: many producers, one consumer at a time.
//!
//! Each of Pantala's two kinds of queues is one atomic word. The word is null, a *mark*, or the top
//! of a linked stack of nodes. The consumer swaps the whole stack out and reverses it, so that it
//! receives the nodes in arrival order.
//!
//! * [`Mailbox`]: messages for a worker. The mark means that the worker sleeps. So the
//!   compare-and-swap that delivers a message also shows the sender whether it must wake the
//!   worker. To wake the worker, the sender writes to its *doorbell*, an eventfd.
//! * `pantala_engine::ownership::Gate`: the word that shows whether a shard is held, and that
//!   queues the requests for the shard. The gate uses [`Node`] and [`Chain`].
//!
//! The queues have no bound of their own. A gate holds only requests (commands that wait for the
//! shard). A connection has only a few requests in flight (see `pantala_engine::request`), so
//! `maxclients` bounds the length of each gate's queue. A mailbox also carries messages such as
//! publications. The mailbox's worker takes all messages in each turn (one iteration of the
//! worker's event loop). The queues are linked lists rather than rings, because a full ring would
//! need an overflow path.

use std::marker::PhantomData;

use crate::sync::{AtomicPtr, Ordering};

/// A queue element: a link and a value. The sender allocates the node, the receiver frees it.
pub struct Node<T> {
    next: *mut Node<T>,
    /// The payload.
    pub value: T,
}

// SAFETY: `next` is only a link, used by the owner of the node (a Box, or a Chain) alone, so moving
// a node to another thread moves only its value.
unsafe impl<T: Send> Send for Node<T> {}

impl<T> Node<T> {
    /// Returns an unlinked node.
    pub fn new(value: T) -> Box<Self> {
        Box::new(Node { next: std::ptr::null_mut(), value })
    }
}

/// Nodes in arrival order, owned by the consumer.
pub struct Chain<T> {
    first: *mut Node<T>,
}

// SAFETY: a Chain owns its nodes outright (they were swapped out of the shared word), so it may
// move between threads whenever the values may.
unsafe impl<T: Send> Send for Chain<T> {}

impl<T> Chain<T> {
    /// Returns a chain without nodes.
    pub fn empty() -> Self {
        Chain { first: std::ptr::null_mut() }
    }

    /// Takes ownership of a stack of nodes and reverses it into arrival order.
    ///
    /// # Safety
    /// `top` must be null or the top of a list of nodes that nothing else can reach, each made by
    /// [`Node::new`] and leaked with [`Box::into_raw`].
    pub unsafe fn from_stack(mut top: *mut Node<T>) -> Self {
        let mut first = std::ptr::null_mut();
        while !top.is_null() {
            // SAFETY: by the caller's promise `top` is a live node that nothing else can reach.
            let below = unsafe { std::mem::replace(&mut (*top).next, first) };
            first = top;
            top = below;
        }
        Chain { first }
    }

    /// Returns whether no node is left.
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
        // SAFETY: the chain owns its nodes, each made by Box::into_raw; this one is unlinked before
        // it is returned.
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

/// Returns a mark that can't be the address of a node, because nodes are aligned to more than one
/// byte.
pub fn mark<T>() -> *mut Node<T> {
    std::ptr::without_provenance_mut(1)
}

/// Pushes `node` onto the stack in `word`, where null and [`mark`] both mean an empty stack.
/// Returns the previous word. With `stop_at_null`, a null word stays unchanged, and the node is
/// returned as the error.
///
/// The successful exchange is a release, so a thread that swaps the node out with an acquire sees
/// the node's contents. The exchange is also an acquire: if the previous word was written with a
/// release, the caller sees the stores that the writer of that word had made before.
pub fn push<T>(
    word: &AtomicPtr<Node<T>>,
    node: Box<Node<T>>,
    stop_at_null: bool,
) -> Result<*mut Node<T>, Box<Node<T>>> {
    let raw = Box::into_raw(node);
    let mut current = word.load(Ordering::Relaxed);
    loop {
        if stop_at_null && current.is_null() {
            // SAFETY: the node wasn't published, so it is still the box taken apart above.
            return Err(unsafe { Box::from_raw(raw) });
        }
        let below = if current == mark() { std::ptr::null_mut() } else { current };
        // SAFETY: the node isn't published yet, so this function still owns it.
        unsafe { (*raw).next = below };
        match word.compare_exchange_weak(current, raw, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(before) => return Ok(before),
            Err(now) => current = now,
        }
    }
}

/// Messages for one worker, from any thread.
///
/// If there are no messages, the word is null while the worker is awake, and [`mark`] while the
/// worker sleeps. Otherwise the word is a stack of messages. The worker is then awake, or the
/// sender of the first message is waking it.
pub struct Mailbox<T> {
    word: AtomicPtr<Node<T>>,
    values: PhantomData<*mut Node<T>>,
}

// SAFETY: a mailbox owns the nodes linked to it, and passes each node to one thread. Threads never
// share the values in these nodes. So a mailbox may be moved between threads, and shared by
// threads, if `T` is `Send`.
unsafe impl<T: Send> Send for Mailbox<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Mailbox<T> {}

impl<T> Mailbox<T> {
    /// Returns an empty mailbox of a worker that is awake.
    pub fn new() -> Self {
        Mailbox { word: AtomicPtr::new(std::ptr::null_mut()), values: PhantomData }
    }

    /// Delivers a message. Returns `true` if the worker sleeps and this message is the first since
    /// it fell asleep; the sender must then ring the worker's doorbell.
    #[must_use = "if this is `true`, the caller must ring the doorbell of the sleeping worker"]
    pub fn send(&self, message: Box<Node<T>>) -> bool {
        match push(&self.word, message, false) {
            Ok(before) => before == mark(),
            Err(_) => unreachable!("push fails only with `stop_at_null`"),
        }
    }

    /// Takes all messages, oldest first, and marks the worker awake. Only the worker itself may
    /// call it.
    pub fn receive(&self) -> Chain<T> {
        // Acquire: pairs with the release of each push. The swap reads the word of the last push.
        // That push belongs to the release sequence of every earlier push, because all pushes are
        // read-modify-write operations.
        let top = if self.word.load(Ordering::Relaxed).is_null() {
            return Chain::empty();
        } else {
            self.word.swap(std::ptr::null_mut(), Ordering::Acquire)
        };
        if top == mark() {
            return Chain::empty();
        }
        // SAFETY: the stack was swapped out of the word, so nothing else can reach it, and `push`
        // built it from leaked boxes.
        unsafe { Chain::from_stack(top) }
    }

    /// Marks the worker awake. Returns whether there are messages to [`receive`](Mailbox::receive).
    /// Only the worker itself may call it.
    #[inline]
    pub fn wake(&self) -> bool {
        // Relaxed: no message is read here. The exchange fails if a message arrived after the load.
        let word = self.word.load(Ordering::Relaxed);
        if word != mark() {
            return !word.is_null();
        }
        let awake = std::ptr::null_mut();
        self.word.compare_exchange(mark(), awake, Ordering::Relaxed, Ordering::Relaxed).is_err()
    }

    /// Marks the worker asleep unless messages are pending. Returns `false` if messages are
    /// pending; the worker must not sleep then. After success, the caller of the next [`send`] must
    /// ring the doorbell; [`receive`] and [`wake`](Mailbox::wake) mark the worker awake.
    ///
    /// [`send`]: Mailbox::send
    /// [`receive`]: Mailbox::receive
    pub fn try_sleep(&self) -> bool {
        // Relaxed: going to sleep publishes nothing. The exchange on this one word decides whether
        // a message arrived before the worker slept.
        self.word.compare_exchange(std::ptr::null_mut(), mark(), Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Returns whether the worker sleeps and has no messages. Another thread may change this at any
    /// time.
    pub fn is_asleep(&self) -> bool {
        self.word.load(Ordering::Relaxed) == mark()
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
        assert!(!mailbox.try_sleep(), "a message is pending");
        assert!(!mailbox.send(Node::new(2)));
        assert_eq!(mailbox.receive().map(|node| node.value).collect::<Vec<_>>(), [1, 2]);
        assert!(mailbox.try_sleep());
        assert!(mailbox.send(Node::new(3)), "the first message to a sleeping worker rings");
        assert!(!mailbox.send(Node::new(4)), "the second does not");
        assert_eq!(mailbox.receive().map(|node| node.value).collect::<Vec<_>>(), [3, 4]);
        assert!(mailbox.receive().is_empty());
    }

    #[test]
    fn dropping_frees_pending_messages() {
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

    /// A worker tries to sleep while two threads send. Every message is either received before the
    /// sleep or rings the doorbell.
    #[test]
    fn a_sleeping_receiver_misses_no_message() {
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
