//! The x87 80-bit `long double`, in software: the numbers of INCRBYFLOAT and HINCRBYFLOAT.
//!
//! Redis computes these with the C compiler's `long double`, which on x86-64 is the 80-bit extended format: 64 bits of
//! significand, 15 of exponent. Its replies, and what it stores, show all of those bits, so `f64` would differ after the
//! sixteenth digit. This module has what the two commands need, on any processor: [`LongDouble::parse`] (as `strtold`,
//! with Redis's refusals), [`LongDouble::checked_add`] and [`LongDouble::write_human`] (as `"%.17Lf"`, trimmed), each
//! correctly rounded, to nearest and ties to even.
//!
//! A number is `significand × 2^exponent`, canonical: the significand's top bit is set unless the exponent is the smallest
//! (then it is zero or subnormal). Usual numbers take a path of 128-bit integers; only those of more than 19 digits or
//! of large exponents go through big integers.

mod big;
mod format;
mod parse;

/// Exponent of the last significand bit of the smallest numbers (2^-16445 is the smallest subnormal).
const EXPONENT_MIN: i32 = -16_445;

/// Exponent of the last significand bit of the largest numbers, just below 2^16384.
const EXPONENT_MAX: i32 = 16_320;

/// Stands for an infinity; no finite number has it.
const EXPONENT_INFINITE: i32 = i32::MAX;

/// Texts must be shorter than this to be numbers (Redis's `MAX_LONG_DOUBLE_CHARS`).
pub const LONG_DOUBLE_CHARS_MAX: usize = 5 * 1024;

/// Decimals shown before trailing zeros are dropped.
pub const DECIMALS_MAX: usize = 17;

/// An 80-bit extended number, finite or infinite, never NaN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LongDouble {
    negative: bool,
    exponent: i32,
    significand: u64,
}

impl LongDouble {
    /// Positive zero: what a missing key counts from.
    pub const ZERO: LongDouble = LongDouble { negative: false, exponent: EXPONENT_MIN, significand: 0 };

    /// Whether it is an infinity (the text `inf` is a number to Redis, though it can't be a result).
    #[must_use]
    pub fn is_infinite(self) -> bool {
        self.exponent == EXPONENT_INFINITE
    }

    /// The sum, rounded to nearest, ties to even. `None` when it is infinite or not a number (an infinite operand, or a
    /// sum of 2^16384 and more), which both commands refuse.
    #[must_use]
    pub fn checked_add(self, other: LongDouble) -> Option<LongDouble> {
        if self.is_infinite() || other.is_infinite() {
            return None;
        }
        // The canonical form orders magnitudes by exponent, then significand.
        let larger_first = (self.exponent, self.significand) >= (other.exponent, other.significand);
        let (large, small) = if larger_first { (self, other) } else { (other, self) };
        let sum = add_magnitudes(large, small);
        (!sum.is_infinite()).then_some(sum)
    }

    /// A number of seconds in milliseconds, rounded up, as a timeout is read: the product rounded to the format first, as
    /// the C compiler's is. `None`: it doesn't fit.
    #[must_use]
    pub fn seconds_to_ms(self) -> Option<i64> {
        if self.is_infinite() {
            return None;
        }
        let product = LongDouble::round(self.negative, u128::from(self.significand) * 1000, self.exponent, false);
        let LongDouble { negative, exponent, significand } = product;
        let magnitude = if product.is_infinite() || exponent > 0 && significand != 0 {
            return None; // 2^64 and more: the significand's top bit is set.
        } else if significand == 0 {
            0
        } else {
            let below = exponent.unsigned_abs();
            let whole = significand.checked_shr(below).unwrap_or(0);
            let is_whole = whole.checked_shl(below).unwrap_or(0) == significand;
            // Up is towards zero for negative numbers.
            i128::from(whole) + i128::from(!is_whole && !negative)
        };
        i64::try_from(if negative { -magnitude } else { magnitude }).ok()
    }

    const fn zero(negative: bool) -> LongDouble {
        LongDouble { negative, ..LongDouble::ZERO }
    }

    const fn infinite(negative: bool) -> LongDouble {
        LongDouble { negative, exponent: EXPONENT_INFINITE, significand: 0 }
    }

    /// The number nearest to `(mantissa + ε) × 2^exponent`, ties to even, where ε is 0, or with `sticky` something between
    /// 0 and 1 that only breaks ties. With `sticky`, the mantissa must have more bits than a significand.
    fn round(negative: bool, mantissa: u128, exponent: i32, sticky: bool) -> LongDouble {
        if mantissa == 0 {
            return LongDouble::zero(negative);
        }
        let bits = 128 - mantissa.leading_zeros() as i32;
        debug_assert!(!sticky || bits > 64, "too few bits to know how to round");
        let last = (exponent + bits - 64).max(EXPONENT_MIN);
        let (mut significand, mut last) = match last - exponent {
            dropped @ 1.. => (shift_right_rounded(mantissa, dropped as u32, sticky), last),
            // Exact: by the choice of `last`, the shift to the left leaves at most 64 bits.
            kept => (mantissa << -kept, last),
        };
        if significand >> 64 != 0 {
            significand >>= 1; // Rounding up carried into a 65th bit, so the others are zero.
            last += 1;
        }
        if significand == 0 {
            LongDouble::zero(negative)
        } else if last > EXPONENT_MAX {
            LongDouble::infinite(negative)
        } else {
            LongDouble { negative, exponent: last, significand: significand as u64 }
        }
    }
}

impl From<i64> for LongDouble {
    /// Exact: 64 bits of significand hold every integer.
    fn from(integer: i64) -> LongDouble {
        LongDouble::round(integer < 0, u128::from(integer.unsigned_abs()), 0, false)
    }
}

/// The sum of two finite numbers of which the first has the larger magnitude.
fn add_magnitudes(large: LongDouble, small: LongDouble) -> LongDouble {
    // 63 spare bits below: enough that a sum or difference is exact, or has more than 64 bits when something was cut off.
    const SPARE: u32 = 63;
    let a = u128::from(large.significand) << SPARE;
    let full = u128::from(small.significand) << SPARE;
    let distance = (large.exponent - small.exponent) as u32;
    let b = full.checked_shr(distance).unwrap_or(0);
    let sticky = b.checked_shl(distance).unwrap_or(0) != full;
    let exponent = large.exponent - SPARE as i32;
    if large.negative == small.negative {
        return LongDouble::round(large.negative, a + b, exponent, sticky);
    }
    if a == b && !sticky {
        return LongDouble::ZERO; // x - x is +0 when rounding to nearest.
    }
    // With a part of the small number cut off, the difference lies between this and the one below.
    LongDouble::round(large.negative, a - b - u128::from(sticky), exponent, sticky)
}

/// `value / 2^bits` to the nearest integer, ties to even; `sticky` says that the true value is a little larger.
fn shift_right_rounded(value: u128, bits: u32, sticky: bool) -> u128 {
    debug_assert!(bits > 0);
    if bits > 128 {
        return 0; // Less than a half.
    }
    let kept = value.checked_shr(bits).unwrap_or(0);
    let half = 1u128 << (bits - 1);
    let rest = value & (half | (half - 1));
    let up = rest > half || (rest == half && (sticky || kept & 1 == 1));
    kept + u128::from(up)
}

#[cfg(test)]
mod tests;
