//! Parses a `LongDouble`, like C's `strtold` with Redis's restrictions.

use super::big::Big;
use super::{LONG_DOUBLE_CHARS_MAX, LongDouble};

/// Exponents saturate at this value. A text of allowed length overflows or underflows at much
/// smaller exponents.
const EXPONENT_READ_MAX: i32 = 1_000_000;

/// Maximum of `point` in [`decimal`]. A number with a larger `point` is at least 10^4933 and thus
/// infinite (the largest finite number is about 1.19 × 10^4932).
const DECIMAL_POINT_MAX: i32 = 4_933;

/// Minimum of `point` in [`decimal`]. A number with a smaller `point` is less than 10^-4951 and
/// thus rounds to zero (half of the smallest number is about 1.82 × 10^-4951).
const DECIMAL_POINT_MIN: i32 = -4_950;

/// Maximum number of digits for 128-bit arithmetic. Numbers of this many digits fit in 64 bits.
const SHORT_DIGITS_MAX: usize = 19;

/// Maximum power of ten for 128-bit arithmetic: 5^27 is the last power of five below 2^63.
const SHORT_POWER_MAX: u32 = 27;

impl LongDouble {
    /// Parses all of `text`: decimal or hexadecimal (`0x1.8p3`), or `inf`, ignoring case, with an
    /// optional sign.
    ///
    /// Returns `None` where Redis replies "value is not a valid float": for any other text
    /// (including NaN, spaces, zero bytes), on overflow, on underflow to zero, and for texts of at
    /// least [`LONG_DOUBLE_CHARS_MAX`] characters.
    #[must_use]
    pub fn parse(text: &[u8]) -> Option<LongDouble> {
        if text.len() >= LONG_DOUBLE_CHARS_MAX {
            return None;
        }
        let (negative, unsigned) = match text {
            [b'-', rest @ ..] => (true, rest),
            [b'+', rest @ ..] => (false, rest),
            rest => (false, rest),
        };
        match unsigned {
            [b'0', b'x' | b'X', rest @ ..] => hexadecimal(negative, rest),
            [b'i' | b'I', ..] if is_infinity(unsigned) => Some(LongDouble::infinite(negative)),
            _ => decimal(negative, unsigned),
        }
    }
}

fn is_infinity(text: &[u8]) -> bool {
    text.eq_ignore_ascii_case(b"inf") || text.eq_ignore_ascii_case(b"infinity")
}

/// The digits of a mantissa before and after its point, with leading and trailing zeros, and the
/// text that follows the mantissa.
struct Mantissa<'a> {
    whole: &'a [u8],
    fraction: &'a [u8],
    rest: &'a [u8],
}

impl<'a> Mantissa<'a> {
    /// Splits `text` after its leading digits, which may contain one point. Returns `None` if there
    /// is no digit.
    fn split(text: &'a [u8], is_digit: impl Fn(&u8) -> bool) -> Option<Mantissa<'a>> {
        let digits_of = |text: &'a [u8]| text.split_at(text.iter().position(|b| !is_digit(b)).unwrap_or(text.len()));
        let (whole, rest) = digits_of(text);
        let (fraction, rest) = match rest {
            [b'.', rest @ ..] => digits_of(rest),
            rest => (&rest[..0], rest),
        };
        let any = !whole.is_empty() || !fraction.is_empty();
        any.then_some(Mantissa { whole, fraction, rest })
    }

    fn digits(&self) -> impl Iterator<Item = u8> + use<'a> {
        self.whole.iter().chain(self.fraction).copied()
    }
}

/// Parses an exponent that starts with `letter`. The result saturates at [`EXPONENT_READ_MAX`].
/// Returns 0 for an empty text, and `None` for a text that isn't an exponent.
fn exponent(text: &[u8], letter: u8) -> Option<i32> {
    let digits = match text {
        [] => return Some(0),
        [first, rest @ ..] if first.eq_ignore_ascii_case(&letter) => rest,
        _ => return None,
    };
    let (negative, digits) = match digits {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        rest => (false, rest),
    };
    if digits.is_empty() {
        return None;
    }
    let mut magnitude = 0i32;
    for &digit in digits {
        if !digit.is_ascii_digit() {
            return None;
        }
        magnitude = (magnitude * 10 + i32::from(digit - b'0')).min(EXPONENT_READ_MAX);
    }
    Some(if negative { -magnitude } else { magnitude })
}

fn decimal(negative: bool, text: &[u8]) -> Option<LongDouble> {
    let mantissa = Mantissa::split(text, u8::is_ascii_digit)?;
    let exponent = exponent(mantissa.rest, b'e')?;
    let len = mantissa.whole.len() + mantissa.fraction.len();
    let Some(leading_zeros) = mantissa.digits().position(|digit| digit != b'0') else {
        return Some(LongDouble::zero(negative));
    };
    let reversed = mantissa.fraction.iter().rev().chain(mantissa.whole.iter().rev());
    let trailing_zeros = reversed.take_while(|&&digit| digit == b'0').count();
    let count = len - leading_zeros - trailing_zeros;
    let digits = mantissa.digits().skip(leading_zeros).take(count);
    // The number is `digits × 10^power`, and less than 10^point. `power` and `point` don't
    // overflow, because the length of the text and `EXPONENT_READ_MAX` bound them.
    let power = exponent - mantissa.fraction.len() as i32 + trailing_zeros as i32;
    let point = power + count as i32;
    if !(DECIMAL_POINT_MIN..=DECIMAL_POINT_MAX).contains(&point) {
        return None;
    }
    let number = if count <= SHORT_DIGITS_MAX && power.unsigned_abs() <= SHORT_POWER_MAX {
        short_decimal(negative, digits, power)
    } else {
        long_decimal(negative, digits, power)
    };
    (!number.is_infinite() && number.significand != 0).then_some(number)
}

/// Returns `digits × 10^power`, computed with 128-bit integers.
pub(super) fn short_decimal(negative: bool, digits: impl Iterator<Item = u8>, power: i32) -> LongDouble {
    let digits = digits.fold(0u64, |value, digit| value * 10 + u64::from(digit - b'0'));
    let five = u128::from(5u64.pow(power.unsigned_abs()));
    if power >= 0 {
        return LongDouble::round(negative, u128::from(digits) * five, power, false);
    }
    // A dividend of 128 bits and a divisor of at most 63 bits result in a quotient of more than 64
    // bits.
    let shift = digits.leading_zeros() + 64;
    let dividend = u128::from(digits) << shift;
    let (quotient, remainder) = (dividend / five, dividend % five);
    LongDouble::round(negative, quotient, power - shift as i32, remainder != 0)
}

/// Returns `digits × 10^power`, computed with big integers.
pub(super) fn long_decimal(negative: bool, digits: impl Iterator<Item = u8>, power: i32) -> LongDouble {
    let mut digits = Big::from_digits(digits);
    if power >= 0 {
        digits.multiply_power_of_five(power.unsigned_abs());
        let (mantissa, shift, sticky) = digits.top();
        return LongDouble::round(negative, mantissa, power + shift as i32, sticky);
    }
    let mut divisor = Big::one();
    divisor.multiply_power_of_five(power.unsigned_abs());
    let (quotient, shift, sticky) = digits.divide(divisor);
    LongDouble::round(negative, quotient, power + shift, sticky)
}

/// Parses the text after `0x`.
fn hexadecimal(negative: bool, text: &[u8]) -> Option<LongDouble> {
    let mantissa = Mantissa::split(text, u8::is_ascii_hexdigit)?;
    let exponent = exponent(mantissa.rest, b'p')?;
    // The first 32 significant digits fit into `value`. Only the number of the further digits
    // matters, and whether any of them isn't zero.
    let (mut value, mut dropped, mut sticky) = (0u128, 0i32, false);
    for digit in mantissa.digits() {
        let digit = (digit as char).to_digit(16).unwrap_or(0);
        if value >> 124 == 0 {
            value = value << 4 | u128::from(digit);
        } else {
            dropped += 1;
            sticky |= digit != 0;
        }
    }
    if value == 0 {
        return Some(LongDouble::zero(negative));
    }
    let exponent = exponent + 4 * (dropped - mantissa.fraction.len() as i32);
    let number = LongDouble::round(negative, value, exponent, sticky);
    (!number.is_infinite() && number.significand != 0).then_some(number)
}
