//! From text to `f64`, as C's `strtod` reads it and as Redis lets it pass.

/// The number that `text` is in full: decimal, hexadecimal (`0x1.8p3`) or `inf`, with an optional sign.
///
/// `None` where Redis says "value is not a valid float": anything else (also NaN and blanks), a number too large for the format, one so
/// small that it becomes zero.
pub fn parse(text: &[u8]) -> Option<f64> {
    let (value, fit) = number(text)?;
    (fit != Fit::OutOfRange && !value.is_nan()).then_some(value)
}

/// As [`parse`], and `None` too where C's `strtod` sets `ERANGE` though there is a value: a number so small that the format has fewer digits for it, and those don't hold it.
/// (One that is written in decimal and held all the same has some 750 digits; it is taken for one that isn't.)
pub fn parse_without_underflow(text: &[u8]) -> Option<f64> {
    let (value, fit) = number(text)?;
    let is_in_range = fit == Fit::Exact || fit == Fit::Rounded && !value.is_subnormal();
    (is_in_range && !value.is_nan()).then_some(value)
}

/// How a text's number and its double differ.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fit {
    Exact,
    /// By less than a half of the last digit; in decimal also where they don't.
    Rounded,
    /// It overflowed, or vanished.
    OutOfRange,
}

/// The number that a C string is, as bounds of ranges are read: blanks in front, nothing at all (0), and numbers out of range
/// (infinite, or 0) pass too. `None`: anything else, also NaN.
pub fn parse_as_c(text: &[u8]) -> Option<f64> {
    let text = text.split(|&byte| byte == 0).next().unwrap_or_default();
    if text.is_empty() {
        return Some(0.0);
    }
    let start = text.iter().position(|byte| !matches!(byte, b' ' | b'\t'..=b'\r')).unwrap_or(text.len());
    let (value, _) = number(&text[start..])?;
    (!value.is_nan()).then_some(value)
}

/// A number, and how it fits.
fn number(text: &[u8]) -> Option<(f64, Fit)> {
    // The usual score: a short integer.
    if let Some(integer) = short_integer(text) {
        return Some((integer, Fit::Exact));
    }
    let (negative, unsigned) = match text {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        rest => (false, rest),
    };
    let (value, fit) = match unsigned {
        [b'0', b'x' | b'X', rest @ ..] => hexadecimal(rest)?,
        // A second sign is none for C.
        [b'0'..=b'9' | b'.', ..] => {
            let value: f64 = std::str::from_utf8(unsigned).ok()?.parse().ok()?;
            let mantissa = unsigned.iter().take_while(|byte| !matches!(byte, b'e' | b'E'));
            let is_zero = mantissa.into_iter().all(|byte| matches!(byte, b'0' | b'.'));
            let is_in_range = value.is_finite() && (value != 0.0 || is_zero);
            (value, if is_in_range { Fit::Rounded } else { Fit::OutOfRange })
        }
        [b'i' | b'I', ..] if unsigned.eq_ignore_ascii_case(b"inf") || unsigned.eq_ignore_ascii_case(b"infinity") => {
            (f64::INFINITY, Fit::Exact)
        }
        _ => return None,
    };
    Some((if negative { -value } else { value }, fit))
}

/// Longest integer that a double always holds exactly, digits.
const SHORT_DIGITS_MAX: usize = 15;

#[inline]
fn short_integer(text: &[u8]) -> Option<f64> {
    if text.is_empty() || text.len() > SHORT_DIGITS_MAX {
        return None;
    }
    let mut value = 0u64;
    for byte in text {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        value = value * 10 + u64::from(digit);
    }
    Some(value as f64)
}

/// Bits of a double's mantissa.
const MANTISSA_BITS: i64 = 53;
/// Exponent of the smallest double's only bit.
const EXPONENT_MIN: i64 = -1074;
/// Exponents are read up to this magnitude: beyond, everything overflows or vanishes.
const EXPONENT_READ_MAX: i64 = 1 << 40;

/// What follows `0x`. Digits that don't fit a word only round.
fn hexadecimal(text: &[u8]) -> Option<(f64, Fit)> {
    let (mut mantissa, mut exponent, mut sticky) = (0u64, 0i64, false);
    let (mut any, mut point, mut at) = (false, false, 0);
    while let Some(&byte) = text.get(at) {
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
        at += 1;
    }
    if !any {
        return None;
    }
    if let Some((b'p' | b'P', digits)) = text[at..].split_first() {
        exponent += binary_exponent(digits)?;
    } else if at < text.len() {
        return None;
    }
    if mantissa == 0 {
        return Some((0.0, Fit::Exact));
    }
    Some(rounded(mantissa, exponent, sticky))
}

fn binary_exponent(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        rest => (false, rest),
    };
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let magnitude =
        digits.iter().fold(0i64, |value, digit| (value * 10 + i64::from(digit - b'0')).min(EXPONENT_READ_MAX));
    Some(if negative { -magnitude } else { magnitude })
}

/// `mantissa * 2^exponent` (and a bit more, when `sticky`), rounded to the nearest double, half way to the even one.
fn rounded(mantissa: u64, exponent: i64, sticky: bool) -> (f64, Fit) {
    let bits = i64::from(u64::BITS - mantissa.leading_zeros());
    // The place of the lowest bit that a double of this size has.
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
    // `kept` is exact; so are both factors and, since it was rounded to the place already, their product.
    let half = place / 2;
    let value = (kept as f64) * 2f64.powi(half as i32) * 2f64.powi((place - half) as i32);
    (value, if is_exact { Fit::Exact } else { Fit::Rounded })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_small_for_all_its_digits_underflows() {
        for text in ["5e-324", "-1e-320", "0x1.8p-1074", "0x1.1p-1074", "2.2250738585072011e-308", "1e-400", "1e400"] {
            assert_eq!(parse_without_underflow(text.as_bytes()), None, "{text}");
        }
        for text in
            ["0x1p-1074", "0x1.8p-1073", "0x0.fffffffffffffp-1022", "2.2250738585072014e-308", "0", "0e-999", "1.5"]
        {
            assert_eq!(parse_without_underflow(text.as_bytes()), parse(text.as_bytes()), "{text}");
            assert!(parse(text.as_bytes()).is_some(), "{text}");
        }
    }

    #[test]
    fn as_strtod_reads() {
        for (text, value) in [
            ("0", 0.0),
            ("-0", -0.0),
            ("12", 12.0),
            ("007", 7.0),
            ("+1.5", 1.5),
            (".5", 0.5),
            ("5.", 5.0),
            ("1e3", 1000.0),
            ("1E-5", 0.00001),
            ("inf", f64::INFINITY),
            ("-Infinity", f64::NEG_INFINITY),
            ("0x10", 16.0),
            ("-0X1.8p1", -3.0),
            ("0x.8", 0.5),
            ("0x1p-1074", 5e-324),
            ("0x1.8p-1074", 1e-323),
            ("0x1.fffffffffffff8p0", 2.0),
            ("0x1.fffffffffffff7p0", 1.999_999_999_999_999_8),
            ("0x123456789abcdef01", 20_988_295_479_420_645_000.0),
            ("0x1.fffffffffffffp1023", f64::MAX),
            ("5e-324", 5e-324),
            ("123456789012345678", 123_456_789_012_345_680.0),
            ("0e999999", 0.0),
        ] {
            assert_eq!(parse(text.as_bytes()).map(f64::to_bits), Some(value.to_bits()), "{text}");
            assert_eq!(parse_as_c(text.as_bytes()), Some(value), "{text}");
        }
        for text in
            ["x", "1x", "1e", "e5", ".", "+", "--1", "+-1", "0x", "0xp1", "0x1p", "1 ", "nan", "-nan", "infinit"]
        {
            assert_eq!(parse(text.as_bytes()), None, "{text}");
            assert_eq!(parse_as_c(text.as_bytes()), None, "{text}");
        }
        for (text, value) in [
            ("", 0.0),
            (" 1", 1.0),
            ("\t\n2", 2.0),
            ("3\0x", 3.0),
            ("1e400", f64::INFINITY),
            ("-1e400", f64::NEG_INFINITY),
            ("0x1p1024", f64::INFINITY),
            ("1e-400", 0.0),
            ("0x1p-1080", 0.0),
        ] {
            assert_eq!(parse(text.as_bytes()), None, "{text}");
            assert_eq!(parse_as_c(text.as_bytes()), Some(value), "{text}");
        }
    }
}
