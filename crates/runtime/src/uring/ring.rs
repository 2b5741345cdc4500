//! The submission queue and the completion queue. This module copes with a full submission queue,
//! interrupted waits, and overflow of the completion queue.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use io_uring::types::{SubmitArgs, Timespec};
use io_uring::{EnterFlags, IoUring, cqueue, squeue};
use rustix::io::Errno;

use crate::accept::WAIT_MAX;

/// Capacity of the submission queue. If a turn (one iteration of the loop) submits more, it needs
/// another system call.
const SUBMISSIONS: u32 = 256;
/// Capacity of the completion queue. The kernel keeps further completions in a slower list.
const COMPLETIONS: u32 = 4096;

/// Time after which a wait for several completions ends if there is at least one completion, µs.
const PATIENCE_US: u32 = 100;

pub(super) struct Ring {
    ring: IoUring,
    /// Submissions that did not fit even after a submit, because the kernel was short of memory.
    backlog: VecDeque<squeue::Entry>,
}

impl Ring {
    pub(super) fn new() -> io::Result<Self> {
        let ring = IoUring::builder()
            .setup_cqsize(COMPLETIONS)
            .setup_submit_all()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_coop_taskrun()
            .setup_taskrun_flag()
            .build(SUBMISSIONS)?;
        Ok(Ring { ring, backlog: VecDeque::new() })
    }

    pub(super) fn io_uring(&self) -> &IoUring {
        &self.ring
    }

    /// Returns whether [`enter`](Self::enter) can wait for more than one completion (Linux 6.12).
    /// Older kernels have no limit like [`PATIENCE_US`], and would wait for all of these
    /// completions until the timeout.
    pub(super) fn waits_for_several(&self) -> bool {
        self.ring.params().is_feature_min_timeout()
    }

    /// Queues an operation. The next [`enter`](Self::enter) submits it.
    ///
    /// # Safety
    /// The memory that the entry names must stay valid and unshared until the operation's last
    /// completion has been read. (The descriptor should stay open too. Otherwise the operation may
    /// use another file, which is wrong but not unsafe.)
    pub(super) unsafe fn push(&mut self, entry: squeue::Entry) {
        if !self.backlog.is_empty() {
            self.backlog.push_back(entry);
            return;
        }
        // SAFETY: by the caller's promise.
        if unsafe { self.ring.submission().push(&entry) }.is_ok() {
            return;
        }
        let _ = self.ring.submit();
        // SAFETY: by the caller's promise.
        if unsafe { self.ring.submission().push(&entry) }.is_err() {
            self.backlog.push_back(entry);
        }
    }

    fn push_backlog(&mut self) {
        while let Some(entry) = self.backlog.front() {
            // SAFETY: promised by the caller of the `push` that queued the entry.
            if unsafe { self.ring.submission().push(entry) }.is_err() {
                return;
            }
            self.backlog.pop_front();
        }
    }

    /// Submits all queued operations. Waits until `want` completions are available, `timeout` has
    /// passed, or a signal was handled. If `want` is more than one, the wait also ends when
    /// [`PATIENCE_US`] have passed and at least one completion is available.
    pub(super) fn enter(&mut self, want: u32, timeout: Option<Duration>) -> io::Result<()> {
        self.push_backlog();
        let submission = self.ring.submission();
        let count = submission.len() as u32;
        let no_wait = timeout == Some(Duration::ZERO);
        if no_wait && count == 0 && !submission.taskrun() && !submission.cq_overflow() {
            return Ok(());
        }
        drop(submission);
        let want = if no_wait || !self.backlog.is_empty() { 0 } else { want };
        let time = timeout.map(|timeout| Timespec::from(timeout.min(WAIT_MAX)));
        let mut arguments = SubmitArgs::new();
        if want > 1 {
            arguments = arguments.min_wait_usec(PATIENCE_US);
        }
        if let Some(time) = &time {
            arguments = arguments.timespec(time);
        }
        // Without GETEVENTS the kernel would neither run deferred work nor move overflowed
        // completions to the queue.
        let flags = EnterFlags::GETEVENTS | EnterFlags::EXT_ARG;
        // SAFETY: the argument is the structure that EXT_ARG requires, and outlives the call
        // together with the time that it names.
        let entered = unsafe { self.ring.submitter().enter(count, want, flags.bits(), Some(&arguments)) };
        match entered.map_err(|error| Errno::from_io_error(&error).ok_or(error)) {
            Ok(_) => Ok(()),
            // The timeout has passed, a signal arrived, or the kernel accepts no submissions until
            // completions are read or memory is free. The next call continues.
            Err(Ok(Errno::TIME | Errno::INTR | Errno::BUSY | Errno::AGAIN)) => Ok(()),
            Err(Ok(error)) => Err(error.into()),
            Err(Err(error)) => Err(error),
        }
    }

    /// Returns the first available completion. New ones arrive only during [`enter`](Self::enter).
    #[inline]
    pub(super) fn next_completion(&mut self) -> Option<cqueue::Entry> {
        self.ring.completion().next()
    }
}
