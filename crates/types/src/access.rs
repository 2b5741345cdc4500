//! The access word: 24 bits per dictionary entry that record when the entry was last read (LRU) or
//! how often it is read (LFU).
//!
//! `maxmemory-policy` selects LRU or LFU, as in Redis. The word itself doesn't record which of the
//! two it contains. All functions are pure: time and randomness are arguments. The engine writes
//! the word at each lookup and reads it for eviction and `OBJECT`.
//!
//! - LRU: the time of the last read in seconds, modulo 2^24 (194 days).
//! - LFU: the upper 16 bits are the time in minutes when the word was last written, modulo 2^16 (45
//!   days). The lower 8 bits are a logarithmic counter of reads.

/// Maximum access word.
pub const ACCESS_MAX: u32 = (1 << 24) - 1;

/// The LFU counter of a new entry: high enough that the entry isn't evicted before its first reads.
pub const LFU_INIT_VAL: u8 = 5;

/// Maximum number of minutes in an LFU word.
const LFU_MINUTES_MAX: u32 = (1 << 16) - 1;

/// Returns the LRU access word of an entry read at `now_ms` (Unix time in milliseconds).
#[inline]
#[must_use]
pub fn lru_clock(now_ms: u64) -> u32 {
    (now_ms / 1000) as u32 & ACCESS_MAX
}

/// Returns the seconds since the entry with this LRU access word was read (`OBJECT IDLETIME`),
/// `0..=ACCESS_MAX`.
///
/// The result is modulo 194 days. As in Redis, it is one second too small if the 24-bit clock has
/// wrapped since the read.
#[inline]
#[must_use]
pub fn idle_time_s(access: u32, now_ms: u64) -> u32 {
    let now = lru_clock(now_ms);
    let access = access & ACCESS_MAX;
    if now >= access { now - access } else { now + (ACCESS_MAX - access) }
}

/// Returns the access word of a new entry under LFU.
#[inline]
#[must_use]
pub fn lfu_new(now_ms: u64) -> u32 {
    lfu_word(now_ms, LFU_INIT_VAL)
}

/// Returns the LFU access word with this counter and the time `now_ms`.
#[inline]
#[must_use]
pub fn lfu_word(now_ms: u64, counter: u8) -> u32 {
    lfu_minutes(now_ms) << 8 | u32::from(counter)
}

/// Returns the LFU access word after one more read: applies [`lfu_decay`], then [`lfu_log_incr`].
#[inline]
#[must_use]
pub fn lfu_touch(access: u32, now_ms: u64, decay_time_min: u32, log_factor: u32, random: u32) -> u32 {
    lfu_word(now_ms, lfu_log_incr(lfu_decay(access, now_ms, decay_time_min), log_factor, random))
}

/// Returns the counter of an LFU access word after decay (`OBJECT FREQ`). The counter decreases by
/// one for each `decay_time_min` minutes since the word was written, down to 0. `decay_time_min` is
/// `lfu-decay-time`. A value of 0 disables decay.
#[inline]
#[must_use]
pub fn lfu_decay(access: u32, now_ms: u64, decay_time_min: u32) -> u8 {
    let counter = access as u8;
    let written = access >> 8 & LFU_MINUTES_MAX;
    let now = lfu_minutes(now_ms);
    let elapsed_min = if now >= written { now - written } else { LFU_MINUTES_MAX - written + now };
    match elapsed_min.checked_div(decay_time_min) {
        Some(periods) => counter.saturating_sub(u8::try_from(periods).unwrap_or(u8::MAX)),
        None => counter,
    }
}

/// Returns the counter after one more read. The counter grows by one with probability `1 /
/// ((counter - LFU_INIT_VAL) * log_factor + 1)`. At the default `lfu-log-factor` of 10, the maximum
/// of 255 means about a million reads. `random` is uniform over u32.
#[inline]
#[must_use]
pub fn lfu_log_incr(counter: u8, log_factor: u32, random: u32) -> u8 {
    if counter == u8::MAX {
        return counter;
    }
    let base = u64::from(counter.saturating_sub(LFU_INIT_VAL));
    let one_in = base * u64::from(log_factor) + 1;
    // Tests random / 2^32 < 1 / one_in without a division. The product can exceed 64 bits.
    if u128::from(random) * u128::from(one_in) < 1 << 32 { counter + 1 } else { counter }
}

#[inline]
fn lfu_minutes(now_ms: u64) -> u32 {
    (now_ms / 60_000) as u32 & LFU_MINUTES_MAX
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Random;

    const NOW_MS: u64 = 1_700_000_000_123;

    #[test]
    fn idle_time_counts_seconds() {
        let access = lru_clock(NOW_MS);
        assert!(access <= ACCESS_MAX);
        assert_eq!(idle_time_s(access, NOW_MS), 0);
        assert_eq!(idle_time_s(access, NOW_MS + 876), 0);
        assert_eq!(idle_time_s(access, NOW_MS + 877), 1);
        assert_eq!(idle_time_s(access, NOW_MS + 3_600_000), 3600);
    }

    #[test]
    fn idle_time_survives_the_wrap_of_the_clock() {
        let wrap_ms = u64::from(ACCESS_MAX + 1) * 1000;
        let access = lru_clock(wrap_ms - 10_000);
        assert_eq!(access, ACCESS_MAX - 9);
        // After the clock wraps, the result is one second too small, as in Redis.
        assert_eq!(idle_time_s(access, wrap_ms + 5_000), 14);
    }

    #[test]
    fn lfu_decays_one_per_period() {
        let access = lfu_word(NOW_MS, 100);
        assert_eq!(lfu_decay(access, NOW_MS, 1), 100);
        assert_eq!(lfu_decay(access, NOW_MS + 10 * 60_000, 1), 90);
        assert_eq!(lfu_decay(access, NOW_MS + 10 * 60_000, 3), 97);
        assert_eq!(lfu_decay(access, NOW_MS + 1000 * 60_000, 1), 0);
        assert_eq!(lfu_decay(access, NOW_MS + 1000 * 60_000, 0), 100);
        // As in Redis, the elapsed time is one minute too small after the clock has wrapped, and 0
        // after 2^16 minutes.
        assert_eq!(lfu_decay(access, NOW_MS + 65_535 * 60_000, 65_534), 99);
        assert_eq!(lfu_decay(access, NOW_MS + 65_535 * 60_000, 65_535), 100);
        assert_eq!(lfu_decay(access, NOW_MS + 65_536 * 60_000, 1), 100);
    }

    #[test]
    fn lfu_word_keeps_its_parts_in_24_bits() {
        let access = lfu_touch(lfu_new(NOW_MS), NOW_MS + 60_000, 0, 10, u32::MAX);
        assert!(access <= ACCESS_MAX);
        // At the initial value the counter grows for any random number.
        assert_eq!(access as u8, LFU_INIT_VAL + 1);
        assert_eq!(lfu_decay(access, NOW_MS + 60_000, 1), LFU_INIT_VAL + 1);
    }

    #[test]
    fn log_increment_at_its_threshold() {
        assert_eq!(lfu_log_incr(255, 0, 0), 255);
        assert_eq!(lfu_log_incr(254, u32::MAX, 0), 255);
        assert_eq!(lfu_log_incr(254, u32::MAX, 1), 254);
        assert_eq!(lfu_log_incr(0, 10, u32::MAX), 1);
        // With counter 6 and factor 1 the probability is a half.
        assert_eq!(lfu_log_incr(6, 1, (1 << 31) - 1), 7);
        assert_eq!(lfu_log_incr(6, 1, 1 << 31), 6);
    }

    /// The expected counter is 5 + sqrt(2 × reads / factor). The bounds are five standard
    /// deviations away from it.
    #[test]
    fn counter_grows_logarithmically() {
        let mut random = Random::with_printed_seed("access");
        for (reads, low, high) in [(100, 6, 17), (1_000, 8, 30), (100_000, 110, 185), (1_500_000, 255, 255)] {
            let mut counter = LFU_INIT_VAL;
            for _ in 0..reads {
                counter = lfu_log_incr(counter, 10, random.next() as u32);
            }
            assert!((low..=high).contains(&counter), "{counter} after {reads} reads");
        }
    }
}
