//! TLS handshakes that wait for a thread which signs for the workers.
//!
//! An RSA signature takes longer than all other work of a turn (iteration of a worker's event
//! loop). So with an RSA key, the worker hands the first step of a handshake, which contains the
//! signature, to one of `tls-handshake-threads` threads, and serves its other connections
//! meanwhile. If many clients connect at once, the queue is full and the workers sign too. So
//! handshakes can use all CPUs. After a HelloRetryRequest, the worker signs.
//!
//! [`crate::reactor`] starts the threads.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Maximum number of handshakes for each thread: the one that it performs, and those that wait.
const UNFINISHED_PER_THREAD: usize = 3;

/// A connection of a worker with a handshake that can continue.
pub struct Handshake {
    /// The worker.
    pub worker: u32,
    /// The connection's token in that worker.
    pub token: u64,
    /// The TLS state, which has kept the received bytes.
    pub tls: pantala_tls::Connection,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Handshake>,
    /// Number of handshakes that threads are performing.
    performing: usize,
    threads: usize,
}

/// The queue described at the head of this module.
#[derive(Default)]
pub struct HandshakeQueue {
    queue: Mutex<Queue>,
    /// Notified when a handshake has been added, or a thread must end.
    changed: Condvar,
    threads_max: AtomicUsize,
}

impl HandshakeQueue {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets `tls-handshake-threads`. Surplus threads end once they have no handshake to perform.
    pub fn set_threads_max(&self, threads_max: usize) {
        if self.threads_max.swap(threads_max, Relaxed) > threads_max {
            // A thread that has read the former maximum holds the lock until it waits.
            drop(self.lock());
            self.changed.notify_all();
        }
    }

    /// Returns whether threads perform handshakes.
    pub fn has_threads(&self) -> bool {
        self.threads_max.load(Relaxed) > 0
    }

    /// Adds a handshake to the queue. If there may be more threads, calls `start`, which must start
    /// a thread that calls [`Self::serve`]. Returns the handshake if the queue is full or there is
    /// no thread. The caller then performs it.
    pub fn push(&self, handshake: Handshake, start: impl FnOnce() -> io::Result<()>) -> Option<Handshake> {
        let mut queue = self.lock();
        if queue.threads < self.threads_max.load(Relaxed) {
            match start() {
                Ok(()) => queue.threads += 1,
                Err(error) => tracing::warn!("Can't start a thread for TLS handshakes: {error}"),
            }
        }
        if queue.waiting.len() + queue.performing >= queue.threads * UNFINISHED_PER_THREAD {
            return Some(handshake);
        }
        queue.waiting.push_back(handshake);
        drop(queue);
        self.changed.notify_one();
        None
    }

    /// Performs handshakes of the queue until the calling thread must end.
    pub fn serve(&self, mut perform: impl FnMut(Handshake)) {
        let mut queue = self.lock();
        loop {
            // A thread ends only if no handshake waits, because it may be the last one.
            if let Some(handshake) = queue.waiting.pop_front() {
                queue.performing += 1;
                drop(queue);
                perform(handshake);
                queue = self.lock();
                queue.performing -= 1;
            } else if queue.threads > self.threads_max.load(Relaxed) {
                queue.threads -= 1;
                return;
            } else {
                queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }
}
