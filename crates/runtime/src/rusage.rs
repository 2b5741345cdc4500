//! The kernel's counters of the current thread.

use std::mem::MaybeUninit;

/// Returns how often the thread has slept since its start (its voluntary context switches). Costs a
/// system call.
pub(crate) fn voluntary_switches() -> u64 {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the pointer is to memory of the structure's size, which lives through the call.
    let result = unsafe { libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr()) };
    // Can't fail: this request has existed since Linux 2.6.26, and the address is valid.
    debug_assert_eq!(result, 0);
    // SAFETY: the structure consists of integers, for which zeroed bytes are valid too.
    let usage = unsafe { usage.assume_init() };
    u64::try_from(usage.ru_nvcsw).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sleep_is_a_voluntary_switch() {
        let before = voluntary_switches();
        std::thread::sleep(std::time::Duration::from_millis(1));
        assert!(voluntary_switches() > before);
    }
}
