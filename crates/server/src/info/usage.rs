//! CPU time of the process in user mode and in system mode.
//!
//! `/proc` has both times, but only in ticks of usually 10 ms. The sum of both is available in
//! nanoseconds, from a clock. This module divides the sum in the ratio of the ticks, so that the
//! results add up to the time of the clock.

use rustix::time::{ClockId, clock_gettime};

/// CPU time, µs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct CpuTime {
    pub(super) user_us: u64,
    pub(super) system_us: u64,
}

/// Returns the CPU time of all threads since the process started.
pub(super) fn process() -> CpuTime {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    let sum_us = u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0) / 1_000;
    split_in_proportion(sum_us, ticks("/proc/self/stat").unwrap_or((0, 0)))
}

/// Returns the CPU time of the initial thread, which starts the workers and waits for them.
pub(super) fn main_thread() -> CpuTime {
    let path = format!("/proc/self/task/{}/stat", std::process::id());
    let (user, system) = ticks(&path).unwrap_or((0, 0));
    let us_per_tick = 1_000_000 / rustix::param::clock_ticks_per_second().max(1);
    CpuTime { user_us: user * us_per_tick, system_us: system * us_per_tick }
}

fn split_in_proportion(sum_us: u64, (user, system): (u64, u64)) -> CpuTime {
    // Before the first tick the ratio is unknown, so the sum is halved.
    let user_us = match user + system {
        0 => sum_us / 2,
        ticks => u64::try_from(u128::from(sum_us) * u128::from(user) / u128::from(ticks)).unwrap_or(sum_us),
    };
    CpuTime { user_us, system_us: sum_us - user_us }
}

/// Returns the ticks in user mode and in system mode.
fn ticks(path: &str) -> Option<(u64, u64)> {
    parse_stat(&std::fs::read_to_string(path).ok()?)
}

/// Parses the fields `utime` and `stime` of a `stat` file, which are the 14th and 15th. The second
/// field is a name in parentheses. The name may itself contain blanks and parentheses.
fn parse_stat(text: &str) -> Option<(u64, u64)> {
    let (_, after_name) = text.rsplit_once(')')?;
    let mut fields = after_name.split_whitespace().skip(11);
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_fields_are_read_after_the_name() {
        let text = "7 (a ) b) S 1 2 3 4 5 6 7 8 9 10 321 123 0 0 20";
        assert_eq!(parse_stat(text), Some((321, 123)));
        assert_eq!(parse_stat("7 (a) S 1"), None);
        assert_eq!(parse_stat(""), None);
    }

    #[test]
    fn shares_add_up_to_the_sum() {
        assert_eq!(split_in_proportion(1_000, (3, 1)), CpuTime { user_us: 750, system_us: 250 });
        assert_eq!(split_in_proportion(1_001, (0, 0)), CpuTime { user_us: 500, system_us: 501 });
        assert_eq!(split_in_proportion(7, (1, 2)), CpuTime { user_us: 2, system_us: 5 });
    }

    #[test]
    fn time_passes_while_a_thread_works() {
        let before = process();
        let mut sum = 0u64;
        while process().user_us + process().system_us < before.user_us + before.system_us + 2_000 {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
        assert!(ticks("/proc/self/stat").is_some());
    }
}
