//! The kernel's counters of the current thread.

use std::mem::MaybeUninit;

/// Counters of a thread since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// How often the thread has slept (its voluntary context switches).
    pub sleeps: u64,
    /// CPU time in user and kernel mode, µs.
    pub cpu_us: u64,
}

/// Returns the counters of the calling thread. Costs a system call.
pub fn thread_usage() -> Usage {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the pointer is to memory of the structure's size, which lives through the call.
    let result = unsafe { libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr()) };
    // Can't fail: this request has existed since Linux 2.6.26, and the address is valid.
    debug_assert_eq!(result, 0);
    // SAFETY: the structure consists of integers, for which zeroed bytes are valid too.
    let usage = unsafe { usage.assume_init() };
    let us = |time: libc::timeval| time.tv_sec as u64 * 1_000_000 + time.tv_usec as u64;
    Usage { sleeps: usage.ru_nvcsw as u64, cpu_us: us(usage.ru_utime) + us(usage.ru_stime) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sleep_is_a_voluntary_switch() {
        let before = thread_usage();
        std::thread::sleep(std::time::Duration::from_millis(1));
        assert!(thread_usage().sleeps > before.sleeps);
    }

    #[test]
    fn work_takes_cpu_time() {
        let (before, mut sum) = (thread_usage(), 0u64);
        while thread_usage().cpu_us < before.cpu_us + 1_000 {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
        assert!(sum > 0);
    }
}
