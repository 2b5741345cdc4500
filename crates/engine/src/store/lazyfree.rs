//! Frees large values and dictionaries in the background, so that no shard is held meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;

use crossbeam::channel::{Sender, unbounded};
use pantala_dict::Dict;
use pantala_types::Value;

/// Memory for the thread to free. The statistics count a value as one object, and a dictionary as
/// one object per key.
pub enum Garbage {
    /// A large value.
    Value(Value),
    /// A whole database of a shard.
    Dict(Dict<Value>),
}

#[derive(Default)]
struct Counters {
    pending: AtomicU64,
    freed: AtomicU64,
}

/// The background thread that frees objects.
pub struct LazyFree {
    sender: Option<Sender<(Garbage, u64)>>,
    counters: Arc<Counters>,
    thread: Option<JoinHandle<()>>,
}

impl LazyFree {
    pub(crate) fn start() -> Self {
        let counters = Arc::new(Counters::default());
        let (sender, receiver) = unbounded::<(Garbage, u64)>();
        let counted = counters.clone();
        let free_all = move || {
            for (garbage, objects) in receiver {
                drop(garbage);
                counted.pending.fetch_sub(objects, Relaxed);
                counted.freed.fetch_add(objects, Relaxed);
            }
        };
        // Without the thread, values are freed where they are dropped, which may be slow but is
        // correct. Loom's models create a keyspace for each interleaving, so they have no thread.
        let thread = if cfg!(loom) {
            None
        } else {
            std::thread::Builder::new().name("pantala-lazyfree".into()).spawn(free_all).ok()
        };
        LazyFree { sender: thread.is_some().then_some(sender), counters, thread }
    }

    pub(crate) fn send(&self, garbage: Garbage, objects: u64) {
        if let Some(sender) = &self.sender {
            self.counters.pending.fetch_add(objects, Relaxed);
            // If the thread has ended, the error contains the garbage, which is freed here.
            let _ = sender.send((garbage, objects));
        }
    }

    /// Returns the number of objects waiting to be freed.
    pub fn pending(&self) -> u64 {
        self.counters.pending.load(Relaxed)
    }

    /// Returns the number of objects freed so far.
    pub fn freed(&self) -> u64 {
        self.counters.freed.load(Relaxed)
    }

    /// Resets the number of freed objects (`CONFIG RESETSTAT`).
    pub fn reset(&self) {
        self.counters.freed.store(0, Relaxed);
    }
}

impl Drop for LazyFree {
    fn drop(&mut self) {
        drop(self.sender.take());
        if let Some(thread) = self.thread.take() {
            // The thread may have panicked in a destructor, which has been reported already.
            let _ = thread.join();
        }
    }
}
