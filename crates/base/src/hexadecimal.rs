//! Hexadecimal floating-point numbers (`0x1.8p3`), as C's `strtod` reads them.

/// How the double differs from the number in the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fit {
    /// The double equals the number.
    Exact,
    /// The double is the nearest one, but not equal to the number.
    Rounded,
    /// The number overflowed, or underflowed to zero.
    OutOfRange,
}

/// A number at the start of a text.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hexadecimal {
    /// The nearest double, ties to even; infinite or 0 if out of range.
    pub value: f64,
    /// How the double differs from the number in the text.
    pub fit: Fit,
    /// Length of the number in the text, bytes.
    pub len: usize,
}

/// Mantissa bits of a double.
const MANTISSA_BITS: i64 = 53;
/// Exponent of the smallest subnormal double.
const EXPONENT_MIN: i64 = -1074;
/// Exponents saturate at this magnitude, far beyond overflow and underflow.
const EXPONENT_READ_MAX: i64 = 1 << 40;

/// Parses the number at the start of `text`, which follows `0x`: digits with at most one point, and
/// an optional power of two (`p-3`). Returns `None` if there is no digit. Digits that don't fit in
/// a 64-bit word affect only the exponent and the rounding.
pub fn read(text: &[u8]) -> Option<Hexadecimal> {
    let (mut mantissa, mut exponent, mut sticky) = (0u64, 0i64, false);
    let (mut any, mut point, mut len) = (false, false, 0);
    while let Some(&byte) = text.get(len) {
        if byte == b'.' && !point {
            point = true;
        } else if let Some(digit) = (byte as char).to_digit(16) {
            any = true;
            if mantissa >> 60 == 0 {
                mantissa = mantissa << 4 | u64::from(digit);
                exponent -= if point { 4 } else { 0 };
            } else {
                sticky |= digit != 0;
                exponent += if point { 0 } else { 4 };
            }
        } else {
            break;
        }
        len += 1;
    }
    if !any {
        return None;
    }
    if let Some((power, power_len)) = read_power(&text[len..]) {
        exponent += power;
        len += power_len;
    }
    let (value, fit) = if mantissa == 0 { (0.0, Fit::Exact) } else { rounded(mantissa, exponent, sticky) };
    Some(Hexadecimal { value, fit, len })
}

/// Parses the power of two at the start of a text (`p-3`). Returns the exponent and the length of
/// the power in the text.
fn read_power(text: &[u8]) -> Option<(i64, usize)> {
    let (b'p' | b'P', signed) = text.split_first()? else { return None };
    let (is_negative, unsigned) = match signed {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        rest => (false, rest),
    };
    let count = unsigned.iter().take_while(|byte| byte.is_ascii_digit()).count();
    if count == 0 {
        return None;
    }
    let digits = unsigned[..count].iter();
    let magnitude = digits.fold(0i64, |value, digit| (value * 10 + i64::from(digit - b'0')).min(EXPONENT_READ_MAX));
    Some((if is_negative { -magnitude } else { magnitude }, text.len() - unsigned.len() + count))
}

/// Rounds `mantissa * 2^exponent` to the nearest double, ties to even. With `sticky`, the number to
/// round is greater by a fraction of `2^exponent`.
fn rounded(mantissa: u64, exponent: i64, sticky: bool) -> (f64, Fit) {
    let bits = i64::from(u64::BITS - mantissa.leading_zeros());
    // The exponent of the lowest mantissa bit in a double of this magnitude.
    let lowest = (exponent + bits - MANTISSA_BITS).max(EXPONENT_MIN);
    let drop = lowest - exponent;
    let (kept, is_up, is_exact) = match drop {
        ..=0 => (mantissa, false, !sticky),
        1..=63 => {
            let rest = mantissa & ((1 << drop) - 1);
            let (kept, half) = (mantissa >> drop, 1u64 << (drop - 1));
            (kept, rest > half || (rest == half && (sticky || kept & 1 == 1)), rest == 0 && !sticky)
        }
        64 => (0, mantissa > 1 << 63 || (mantissa == 1 << 63 && sticky), false),
        _ => (0, false, false),
    };
    let kept = kept + u64::from(is_up);
    if kept == 0 {
        return (0.0, Fit::OutOfRange);
    }
    let place = if drop > 0 { lowest } else { exponent };
    if place + i64::from(u64::BITS - kept.leading_zeros()) > 1024 {
        return (f64::INFINITY, Fit::OutOfRange);
    }
    // The products are exact: `kept` was rounded to the bits of a double, and both factors are
    // powers of two.
    let half = place / 2;
    let value = (kept as f64) * 2f64.powi(half as i32) * 2f64.powi((place - half) as i32);
    (value, if is_exact { Fit::Exact } else { Fit::Rounded })
}

#[cfg(test)]
mod tests {
    use super::{Fit, Hexadecimal, read};
    use crate::Random;

    #[test]
    fn as_strtod_reads() {
        for (text, value, len) in [
            ("1p3", 8.0, 3),
            ("1.8P+1,", 3.0, 6),
            (".8", 0.5, 2),
            ("1.", 1.0, 2),
            ("1p", 1.0, 1),
            ("1p-", 1.0, 1),
            ("1p+x", 1.0, 1),
            ("1.2.3", 1.125, 3),
            ("fFg", 255.0, 2),
            ("0p99", 0.0, 4),
            ("1p-1074", f64::from_bits(1), 7),
            ("1p1023", 2f64.powi(1023), 6),
        ] {
            assert_eq!(read(text.as_bytes()), Some(Hexadecimal { value, fit: Fit::Exact, len }), "{text}");
        }
        for text in ["", "p1", ".p1", ".", "x1", "-1"] {
            assert_eq!(read(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn excess_digits_are_rounded_once() {
        for (text, value, fit) in [
            ("1.fffffffffffff8p3", 16.0, Fit::Rounded),
            ("1.fffffffffffff7p0", 1.999_999_999_999_999_8, Fit::Rounded),
            ("10000000000000800000000000000000000000001", 2f64.powi(160) + 2f64.powi(108), Fit::Rounded),
            ("10000000000000800000000000000000000000000", 2f64.powi(160), Fit::Rounded),
            // Rounding to 53 bits first would give a tie between the smallest double and the next
            // one.
            ("1.7fffffffffffffffp-1074", f64::from_bits(1), Fit::Rounded),
            ("1.8p-1074", f64::from_bits(2), Fit::Rounded),
            ("1p-1075", 0.0, Fit::OutOfRange),
            ("1.0000000000001p-1075", f64::from_bits(1), Fit::Rounded),
            ("1.fffffffffffffp1023", f64::MAX, Fit::Exact),
            ("1.fffffffffffff8p1023", f64::INFINITY, Fit::OutOfRange),
            ("1p99999999999999999999", f64::INFINITY, Fit::OutOfRange),
            ("1p-99999999999999999999", 0.0, Fit::OutOfRange),
        ] {
            assert_eq!(read(text.as_bytes()), Some(Hexadecimal { value, fit, len: text.len() }), "{text}");
        }
    }

    /// Every finite double, written with all its bits, reads back as the same double.
    #[test]
    fn numbers_read_back() {
        const NUMBERS: usize = 100_000;
        let seed = 20_261_123;
        let mut random = Random::from_seed(seed);
        for _ in 0..NUMBERS {
            let value = f64::from_bits(random.next_u64()).abs();
            if !value.is_finite() {
                continue;
            }
            let (bits, biased) = (value.to_bits() & ((1 << 52) - 1), value.to_bits() >> 52);
            let (whole, power) = if biased == 0 { (0, -1022) } else { (1, biased as i64 - 1023) };
            let text = format!("{whole}.{bits:013x}p{power}");
            let read = read(text.as_bytes()).map(|read| (read.value, read.fit));
            assert_eq!(read, Some((value, Fit::Exact)), "{text}, seed {seed}");
        }
    }
}
