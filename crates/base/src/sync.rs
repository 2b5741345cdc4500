//! The atomics and threads that concurrent code here uses: the standard library's, or loom's under `--cfg loom`, so that
//! the model checker can run the very same code through every interleaving.

#[cfg(loom)]
pub use loom::{
    sync::Arc,
    sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
    thread,
};

#[cfg(not(loom))]
pub use std::{
    sync::Arc,
    sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
    thread,
};
