//! Waking a loop from another thread.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};

/// A handle with which any thread wakes one loop's `poll`: a Linux eventfd.
///
/// A ring while the loop is awake makes its next `poll` report [`crate::Event::Woken`], so no ring
/// is lost. Each ring costs a system call (about half a microsecond, more if it wakes a thread), so
/// callers should ring only for a sleeping worker.
#[derive(Clone, Debug)]
pub struct Doorbell {
    descriptor: Arc<OwnedFd>,
}

impl Doorbell {
    /// Creates a doorbell for one loop.
    ///
    /// # Errors
    /// If no descriptor or memory is left.
    pub fn new() -> io::Result<Doorbell> {
        let descriptor = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Doorbell { descriptor: Arc::new(descriptor) })
    }

    /// Wakes the loop's `poll`. A signal handler may call this, because it is one `write` to a
    /// non-blocking descriptor.
    pub fn ring(&self) {
        // Can fail only when the counter, which the loops never reset, is full: after 2^64 - 2
        // rings, which take centuries.
        let _ = rustix::io::write(&*self.descriptor, &1_u64.to_ne_bytes());
    }

    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}
