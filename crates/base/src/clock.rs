//! Injected time: production reads the system's clocks, tests set the time.

use std::ops::Sub;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use rustix::time::{ClockId, Timespec, clock_gettime};

/// A source of time. A worker reads the clock once per turn (one iteration of its event loop) and
/// after slow work, not at each command.
pub trait Clock: Send + Sync {
    /// Returns the Unix time in microseconds. The time jumps forward or backward when the system
    /// clock is set.
    fn now_us(&self) -> i64;

    /// Returns nanoseconds since a fixed moment of this process. Never decreases.
    fn monotonic_ns(&self) -> u64;

    /// Returns the Unix time in milliseconds, the unit of expiry.
    #[inline]
    fn now_ms(&self) -> i64 {
        self.now_us().div_euclid(1_000)
    }
}

/// Nanoseconds per second.
const SECOND_NS: u64 = 1_000_000_000;
/// Microseconds per second.
const SECOND_US: i64 = 1_000_000;

/// A moment of the system's monotonic clock, in nanoseconds.
///
/// [`std::time::Instant`] stores seconds and nanoseconds separately, so the difference of two
/// instants takes some fifty instructions, and each turn of a worker's loop computes three
/// differences. The difference of two `Moment`s takes one subtraction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(u64);

impl Moment {
    /// Returns the current moment.
    #[inline]
    pub fn now() -> Self {
        let Timespec { tv_sec, tv_nsec } = clock_gettime(ClockId::Monotonic);
        // Nanoseconds since boot: 64 bits last for five centuries.
        Moment(tv_sec as u64 * SECOND_NS + tv_nsec as u64)
    }

    /// Returns the nanoseconds from `earlier` to this moment; 0 if `earlier` is the later one.
    #[inline]
    pub fn ns_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// Returns the time since this moment.
    #[inline]
    pub fn elapsed(self) -> Duration {
        Self::now() - self
    }
}

impl Sub for Moment {
    type Output = Duration;

    /// Returns the time from `earlier` to this moment; zero if `earlier` is the later one.
    #[inline]
    fn sub(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.ns_since(earlier))
    }
}

/// The sum of all jumps of [`jump_ms`], µs.
static JUMPED_US: AtomicI64 = AtomicI64::new(0);

/// Makes the Unix time of each [`SystemClock`] of this process jump, as if an administrator had set
/// the clock. A negative number of milliseconds sets it back. Has an effect only in builds with
/// debug assertions.
pub fn jump_ms(by_ms: i64) {
    // Relaxed: it doesn't matter if another thread sees the jump a moment later.
    JUMPED_US.fetch_add(by_ms.saturating_mul(1_000), Ordering::Relaxed);
}

/// The system's clocks.
#[derive(Clone, Debug)]
pub struct SystemClock {
    start: Moment,
}

impl SystemClock {
    /// Returns a clock whose monotonic time starts now.
    pub fn new() -> Self {
        Self { start: Moment::now() }
    }

    /// Returns the monotonic time of a moment, ns: the value of [`Clock::monotonic_ns`] at that
    /// moment.
    #[inline]
    pub fn monotonic_ns_of(&self, moment: Moment) -> u64 {
        moment.ns_since(self.start)
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    #[inline]
    fn now_us(&self) -> i64 {
        // A clock set before 1970 has a negative time.
        let Timespec { tv_sec, tv_nsec } = clock_gettime(ClockId::Realtime);
        let now_us = tv_sec.saturating_mul(SECOND_US).saturating_add(tv_nsec / 1_000);
        if cfg!(debug_assertions) { now_us.saturating_add(JUMPED_US.load(Ordering::Relaxed)) } else { now_us }
    }

    #[inline]
    fn monotonic_ns(&self) -> u64 {
        self.monotonic_ns_of(Moment::now())
    }
}

/// A clock for tests. Its time changes only when the test advances or sets it.
#[derive(Debug, Default)]
pub struct ManualClock {
    now_us: AtomicI64,
    monotonic_ns: AtomicU64,
}

impl ManualClock {
    /// Returns a clock at the Unix time `now_us` (in microseconds) and at monotonic time 0.
    pub fn new(now_us: i64) -> Self {
        Self { now_us: AtomicI64::new(now_us), monotonic_ns: AtomicU64::new(0) }
    }

    /// Advances the Unix time and the monotonic time by `by_us` microseconds.
    pub fn advance_us(&self, by_us: u64) {
        // Relaxed: a test that advances the clock from another thread does its own synchronization.
        let forward = i64::try_from(by_us).unwrap_or(i64::MAX);
        self.now_us.store(self.now_us().saturating_add(forward), Ordering::Relaxed);
        let ns = self.monotonic_ns().saturating_add(by_us.saturating_mul(1_000));
        self.monotonic_ns.store(ns, Ordering::Relaxed);
    }

    /// Sets the Unix time, as an administrator does; monotonic time is unaffected.
    pub fn set_us(&self, now_us: i64) {
        self.now_us.store(now_us, Ordering::Relaxed);
    }
}

impl Clock for ManualClock {
    fn now_us(&self) -> i64 {
        self.now_us.load(Ordering::Relaxed)
    }

    fn monotonic_ns(&self) -> u64 {
        self.monotonic_ns.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_clock_moves_forward() {
        let clock = SystemClock::new();
        let before = clock.monotonic_ns();
        std::thread::sleep(std::time::Duration::from_millis(2));
        assert!(clock.monotonic_ns() - before >= 2_000_000);
        let (earlier, later) = (Moment(5), Moment(7));
        assert_eq!([later - earlier, earlier - later], [Duration::from_nanos(2), Duration::ZERO]);
        assert_eq!([later.ns_since(earlier), earlier.ns_since(later)], [2, 0]);
        // The lower bound is 2020-01-01 in microseconds. A time in another unit would be out of
        // range.
        assert!(clock.now_us() > 1_577_836_800_000_000 && clock.now_us() < 1_577_836_800_000_000 * 10);
        assert_eq!(clock.now_ms() / 1_000_000, clock.now_us() / 1_000_000_000);
    }

    #[test]
    fn manual_clock_stands_still() {
        let clock = ManualClock::new(5_000);
        assert_eq!((clock.now_us(), clock.now_ms(), clock.monotonic_ns()), (5_000, 5, 0));
        clock.advance_us(1_500);
        assert_eq!((clock.now_us(), clock.now_ms(), clock.monotonic_ns()), (6_500, 6, 1_500_000));
        clock.set_us(-1);
        assert_eq!((clock.now_us(), clock.now_ms(), clock.monotonic_ns()), (-1, -1, 1_500_000));
    }
}
