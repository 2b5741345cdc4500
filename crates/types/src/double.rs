//! Parses `f64` by the rules of C's `strtod` with Redis's restrictions, for scores, weights and
//! coordinates.

use pantala_base::hexadecimal::{self, Fit, Hexadecimal};

/// Parses all of `text`: decimal, hexadecimal (`0x1.8p3`) or `inf`, with an optional sign.
///
/// Returns `None` where Redis replies "value is not a valid float": for any other text (including
/// NaN and blanks), on overflow, and on underflow to zero.
pub fn parse(text: &[u8]) -> Option<f64> {
    let (value, fit) = number(text)?;
    (fit != Fit::OutOfRange && !value.is_nan()).then_some(value)
}

/// Parses as [`parse`] does, but also returns `None` where C's `strtod` sets `ERANGE` for an
/// inexact subnormal result. Treats every decimal text with a subnormal result as inexact. (An
/// exact one would have some 750 digits.)
pub fn parse_without_underflow(text: &[u8]) -> Option<f64> {
    let (value, fit) = number(text)?;
    let is_in_range = fit == Fit::Exact || fit == Fit::Rounded && !value.is_subnormal();
    (is_in_range && !value.is_nan()).then_some(value)
}

/// Parses a bound of a range as a C string, which ends at the first zero byte. Accepts numbers,
/// leading blanks, an empty text (0), overflow (infinite) and underflow (0). Returns `None` for any
/// other text, including NaN.
pub fn parse_as_c(text: &[u8]) -> Option<f64> {
    let text = text.split(|&byte| byte == 0).next().unwrap_or_default();
    if text.is_empty() {
        return Some(0.0);
    }
    let start = text.iter().position(|byte| !matches!(byte, b' ' | b'\t'..=b'\r')).unwrap_or(text.len());
    let (value, _) = number(&text[start..])?;
    (!value.is_nan()).then_some(value)
}

/// Parses a number. Returns the number and its [`Fit`].
fn number(text: &[u8]) -> Option<(f64, Fit)> {
    // Fast path: most scores are short integers.
    if let Some(integer) = short_integer(text) {
        return Some((integer, Fit::Exact));
    }
    let (negative, unsigned) = match text {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        rest => (false, rest),
    };
    let (value, fit) = match unsigned {
        [b'0', b'x' | b'X', rest @ ..] => {
            let Hexadecimal { value, fit, len } = hexadecimal::read(rest)?;
            (len == rest.len()).then_some((value, fit))?
        }
        // The first byte must be a digit or a point, because Rust's `parse` would accept a second
        // sign, which C rejects.
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

/// Maximum number of digits of an integer that a double always holds exactly.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inexact_subnormals_underflow() {
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
    fn parses_as_strtod() {
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
