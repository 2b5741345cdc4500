//! The longest turns (iterations of a worker's event loop), for `INFO workers`. Turns are timed
//! only while `latency-monitor-threshold` is not 0, because reading a thread's CPU time takes a
//! system call.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use pantala_base::Moment;

use crate::process::thread_cpu_us;

/// The longest turns of a worker since `CONFIG RESETSTAT`, without the wait for events. Turns are
/// timed only while `latency-monitor-threshold` is not 0.
#[derive(Debug, Default)]
pub struct LongestTurns {
    us: AtomicU64,
    cpu_us: AtomicU64,
}

impl LongestTurns {
    /// Records a turn that took `us` in total, and `cpu_us` of CPU time.
    pub fn record(&self, us: u64, cpu_us: u64) {
        for (longest, took) in [(&self.us, us), (&self.cpu_us, cpu_us)] {
            // Most turns are not the longest, so they cost only a load. Relaxed: the values are
            // only shown.
            if took > longest.load(Relaxed) {
                longest.fetch_max(took, Relaxed);
            }
        }
    }

    /// Returns the duration of the turn that took longest, µs.
    pub fn us(&self) -> u64 {
        self.us.load(Relaxed)
    }

    /// Returns the CPU time of the turn that took the most CPU time, µs. This turn may differ from
    /// the one that took longest.
    pub fn cpu_us(&self) -> u64 {
        self.cpu_us.load(Relaxed)
    }

    /// Forgets all turns so far (`CONFIG RESETSTAT`).
    pub fn reset(&self) {
        self.us.store(0, Relaxed);
        self.cpu_us.store(0, Relaxed);
    }
}

/// Times the worker's turns for `INFO workers`. The time of a turn does not include a wait for
/// events, but it includes a poll that does not wait.
#[derive(Default)]
pub struct TurnTimer {
    /// The current time and the CPU time of the thread in µs, both at the start of the turn. `None`
    /// if the turn is not timed or has ended.
    began: Option<(Moment, u64)>,
}

impl TurnTimer {
    /// Starts a turn, which is timed if `is_timed` is true.
    #[inline]
    pub fn begin(&mut self, is_timed: bool) {
        if is_timed {
            self.began = Some((Moment::now(), thread_cpu_us()));
        }
    }

    /// Ends the turn, and records it if it was timed.
    #[inline]
    pub fn end(&mut self, longest: &LongestTurns) {
        if let Some((began, cpu_us)) = self.began.take() {
            longest.record(began.elapsed().as_micros() as u64, thread_cpu_us() - cpu_us);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_time_and_the_longest_cpu_time_may_be_of_different_turns() {
        let longest = LongestTurns::default();
        for (us, cpu_us) in [(5, 1), (4, 2)] {
            longest.record(us, cpu_us);
        }
        assert_eq!((longest.us(), longest.cpu_us()), (5, 2));
        longest.reset();
        assert_eq!((longest.us(), longest.cpu_us()), (0, 0));
    }

    #[test]
    fn only_timed_turns_are_recorded_once_each() {
        let (longest, mut turn) = (LongestTurns::default(), TurnTimer::default());
        let mut pass = |is_timed| {
            turn.begin(is_timed);
            std::thread::sleep(std::time::Duration::from_millis(1));
            turn.end(&longest);
            let us = longest.us();
            longest.reset();
            turn.end(&longest);
            assert_eq!(longest.us(), 0, "the turn has ended before");
            us
        };
        assert_eq!(pass(false), 0);
        assert!(pass(true) >= 1_000);
    }
}
