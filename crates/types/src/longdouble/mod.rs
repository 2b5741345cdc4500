//! The x87 80-bit `long double` in software, for INCRBYFLOAT and HINCRBYFLOAT.
//!
//! Redis uses the C compiler's `long double` for these commands. On x86-64 this is the 80-bit
//! extended format: 64 bits of significand, 15 of exponent. Redis's replies and stored values show
//! all these bits, so `f64` would differ after the sixteenth digit.
//!
//! This module has the operations of the two commands, on any processor: [`LongDouble::parse`]
//! (like `strtold`, with Redis's restrictions), [`LongDouble::checked_add`] and
//! [`LongDouble::write_human`] (like `"%.17Lf"`, trimmed). The result of each operation is
//! correctly rounded to nearest, ties to even.
//!
//! A number is `significand × 2^exponent` in canonical form: the top bit of the significand is set
//! unless the exponent is the minimum. With the minimum exponent the number may be zero or
//! subnormal. The functions compute usual numbers with 128-bit integers, and numbers with more than
//! 19 digits or large exponents with big integers.

mod big;
mod format;
mod parse;

/// Exponent of the last significand bit of the smallest numbers (2^-16445 is the smallest
/// subnormal).
const EXPONENT_MIN: i32 = -16_445;

/// Exponent of the last significand bit of the largest numbers, just below 2^16384.
const EXPONENT_MAX: i32 = 16_320;

/// The exponent that denotes an infinity. No finite number has it.
const EXPONENT_INFINITE: i32 = i32::MAX;

/// Texts of at least this length aren't numbers (Redis's `MAX_LONG_DOUBLE_CHARS`).
pub const LONG_DOUBLE_CHARS_MAX: usize = 5 * 1024;

/// Maximum number of decimals in the formatted text.
pub const DECIMALS_MAX: usize = 17;

/// An 80-bit extended number, finite or infinite, never NaN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LongDouble {
    negative: bool,
    exponent: i32,
    significand: u64,
}

impl LongDouble {
    /// Positive zero: the initial value of a missing key.
    pub const ZERO: LongDouble = LongDouble { negative: false, exponent: EXPONENT_MIN, significand: 0 };

    /// Returns whether the number is an infinity.
    #[must_use]
    pub fn is_infinite(self) -> bool {
        self.exponent == EXPONENT_INFINITE
    }

    /// Returns the sum, rounded to nearest, ties to even. Returns `None` if an operand is infinite
    /// or the sum reaches 2^16384, because INCRBYFLOAT and HINCRBYFLOAT reject these.
    #[must_use]
    pub fn checked_add(self, other: LongDouble) -> Option<LongDouble> {
        if self.is_infinite() || other.is_infinite() {
            return None;
        }
        // The magnitudes of canonical numbers are ordered by exponent, then by significand.
        let larger_first = (self.exponent, self.significand) >= (other.exponent, other.significand);
        let (large, small) = if larger_first { (self, other) } else { (other, self) };
        let sum = add_magnitudes(large, small);
        (!sum.is_infinite()).then_some(sum)
    }

    /// Converts a timeout in seconds to milliseconds, rounded up. As in C, the product is first
    /// rounded to this format. Returns `None` if the result is infinite or doesn't fit in an `i64`.
    #[must_use]
    pub fn seconds_to_ms(self) -> Option<i64> {
        if self.is_infinite() {
            return None;
        }
        let product = LongDouble::round(self.negative, u128::from(self.significand) * 1000, self.exponent, false);
        let LongDouble { negative, exponent, significand } = product;
        let magnitude = if product.is_infinite() || exponent > 0 && significand != 0 {
            return None; // At least 2^64: the significand's top bit is set.
        } else if significand == 0 {
            0
        } else {
            let below = exponent.unsigned_abs();
            let whole = significand.checked_shr(below).unwrap_or(0);
            let is_whole = whole.checked_shl(below).unwrap_or(0) == significand;
            // For negative numbers, up is towards zero.
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

    /// Returns the number nearest to `(mantissa + ε) × 2^exponent`, ties to even. Without `sticky`,
    /// ε is 0. With `sticky`, ε lies between 0 and 1, so it only breaks ties. The mantissa must
    /// then have more bits than a significand.
    fn round(negative: bool, mantissa: u128, exponent: i32, sticky: bool) -> LongDouble {
        if mantissa == 0 {
            return LongDouble::zero(negative);
        }
        let bits = 128 - mantissa.leading_zeros() as i32;
        debug_assert!(!sticky || bits > 64, "too few bits to round correctly");
        let last = (exponent + bits - 64).max(EXPONENT_MIN);
        let (mut significand, mut last) = match last - exponent {
            dropped @ 1.. => (shift_right_rounded(mantissa, dropped as u32, sticky), last),
            // Exact: `last` is chosen so that the left shift leaves at most 64 bits.
            kept => (mantissa << -kept, last),
        };
        if significand >> 64 != 0 {
            significand >>= 1; // Rounding carried into a 65th bit. The others are zero.
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
    /// Converts exactly: 64 bits of significand hold every `i64`.
    fn from(integer: i64) -> LongDouble {
        LongDouble::round(integer < 0, u128::from(integer.unsigned_abs()), 0, false)
    }
}

/// Adds two finite numbers. The first has the larger magnitude.
fn add_magnitudes(large: LongDouble, small: LongDouble) -> LongDouble {
    // With 63 spare bits, a sum or difference is exact unless bits of the smaller number are cut
    // off. If they are, the result has more than 64 bits, which `round` requires for a `sticky`
    // number.
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
    // If bits of the smaller number were cut off, the difference lies between this value and the
    // next lower one.
    LongDouble::round(large.negative, a - b - u128::from(sticky), exponent, sticky)
}

/// Returns `value / 2^bits` rounded to the nearest integer, ties to even. `sticky` means that the
/// true value is slightly larger.
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
