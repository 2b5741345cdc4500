//! Wakes a loop from another thread.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};

/// A handle by which any thread wakes the `poll` of one loop: a Linux eventfd.
///
/// If the doorbell rings while the loop is awake, the next `poll` reports [`crate::Event::Woken`],
/// so no ring is lost. Each ring costs a system call (about half a microsecond, or more if it wakes
/// a thread). Callers should therefore ring only if the worker sleeps.
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

    /// Wakes the loop's `poll`. A signal handler may call this function, because it only writes to
    /// a non-blocking descriptor.
    pub fn ring(&self) {
        // Fails only if the counter is full. The loops never reset the counter, but 2^64 - 2 rings
        // take centuries.
        let _ = rustix::io::write(&*self.descriptor, &1_u64.to_ne_bytes());
    }

    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}
