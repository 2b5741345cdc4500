//! Returns the freed memory of all threads' heaps to the kernel, on request.
//!
//! Each thread has its own heap in the allocator, and only that thread can purge it. If a thread
//! may wait while its heap holds freed memory, it registers a [`ThreadHeap`]. [`request`]
//! increments the *generation*, the number of requests so far, and wakes these threads. Each thread
//! remembers the generation of its last purge, and purges its heap if the current generation
//! differs. Workers don't register: they receive purge requests in their mailboxes.
//!
//! A thread may free memory of another thread's heap after that heap was purged. The caller of
//! [`request`] therefore repeats the request a little later.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A function that wakes a thread.
type Wake = Arc<dyn Fn() + Send + Sync>;

/// The state of purge requests, and the threads to wake for each.
struct Purges {
    /// The number of requests so far.
    generation: AtomicU64,
    /// The registered threads: number and wake function.
    threads: Mutex<Vec<(u64, Wake)>>,
    /// The number of the most recently registered thread.
    last: AtomicU64,
}

static PURGES: Purges =
    Purges { generation: AtomicU64::new(0), threads: Mutex::new(Vec::new()), last: AtomicU64::new(0) };

fn threads() -> MutexGuard<'static, Vec<(u64, Wake)>> {
    PURGES.threads.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes each thread with a [`ThreadHeap`] purge its heap soon, including threads that are waiting.
pub fn request() {
    PURGES.generation.fetch_add(1, SeqCst);
    // Release the lock of `threads` before the calls. A wake function may take a lock that another
    // thread holds while it registers here.
    let wakes: Vec<Wake> = threads().iter().map(|(_, wake)| Arc::clone(wake)).collect();
    wakes.iter().for_each(|wake| wake());
}

/// The heap of the thread that has created this value. The thread purges it on request.
pub struct ThreadHeap {
    number: u64,
    /// The generation of the last purge.
    purged: u64,
}

impl ThreadHeap {
    /// Registers the calling thread. `wake` must make that thread call
    /// [`ThreadHeap::purge_if_requested`]; any thread may call `wake`. Before the thread waits, it
    /// must check [`ThreadHeap::is_requested`] under a lock, and `wake` must take the same lock.
    /// Otherwise a request could be lost.
    pub fn new(wake: impl Fn() + Send + Sync + 'static) -> Self {
        let number = PURGES.last.fetch_add(1, Relaxed) + 1;
        let purged = PURGES.generation.load(SeqCst);
        threads().push((number, Arc::new(wake)));
        ThreadHeap { number, purged }
    }

    /// Returns whether a purge was requested since the thread's last purge.
    #[inline]
    pub fn is_requested(&self) -> bool {
        PURGES.generation.load(SeqCst) != self.purged
    }

    /// Purges the heap if a purge was requested since the last purge. Returns whether the heap was
    /// purged. Only the thread that created this value may call it.
    #[inline]
    pub fn purge_if_requested(&mut self) -> bool {
        let generation = PURGES.generation.load(SeqCst);
        if generation == self.purged {
            return false;
        }
        self.purged = generation;
        #[cfg(not(miri))]
        crate::allocator::purge();
        true
    }
}

impl Drop for ThreadHeap {
    fn drop(&mut self) {
        threads().retain(|(number, _)| *number != self.number);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Condvar;
    use std::sync::mpsc::channel;

    use super::*;

    /// A thread that waits without a timeout purges once per request, and not otherwise.
    #[test]
    fn a_waiting_thread_purges_at_each_request() {
        let state = Arc::new((Mutex::new(false), Condvar::new()));
        let (purged, purges) = channel();
        let waiting = Arc::clone(&state);
        let thread = std::thread::spawn(move || {
            let (lock, condvar) = &*waiting;
            let of_wake = Arc::clone(&waiting);
            let mut heap = ThreadHeap::new(move || {
                let _is_ended = of_wake.0.lock();
                of_wake.1.notify_one();
            });
            assert!(!heap.purge_if_requested(), "nothing was requested since it registered");
            purged.send(()).expect("the test waits");
            let mut is_ended = lock.lock().expect("no panic");
            while !*is_ended {
                if heap.is_requested() {
                    drop(is_ended);
                    assert!(heap.purge_if_requested() && !heap.purge_if_requested());
                    purged.send(()).expect("the test waits");
                    is_ended = lock.lock().expect("no panic");
                } else {
                    is_ended = condvar.wait(is_ended).expect("no panic");
                }
            }
        });
        purges.recv().expect("it has registered");
        for _ in 0..3 {
            request();
            purges.recv().expect("the thread runs");
        }
        let registered = threads().len();
        *state.0.lock().expect("no panic") = true;
        state.1.notify_one();
        thread.join().expect("no panic");
        assert!(threads().len() < registered, "it is no longer woken");
    }
}
