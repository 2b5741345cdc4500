//! The atomics and threads of concurrent code: the standard library's, or loom's under `--cfg
//! loom`, so that the model checker runs the production code.

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
