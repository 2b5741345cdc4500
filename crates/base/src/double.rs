//! Doubles as Redis 7.0 prints them in replies: C's `%.17g`.
//!
//! Seventeen significant digits always read back as the same double, but often a shorter text
//! would suffice: 3.1 prints as `3.1000000000000001`. Redis 7.2 switched to the shortest text;
//! clients of 7.0 expect the long text.

use std::io::Write;

/// Significant digits.
const DIGITS: usize = 17;
/// Maximum length of the text in bytes: sign, point, digits, and either leading zeros or an
/// exponent of up to three digits with `e` and its sign.
pub const DOUBLE_LEN_MAX: usize = 1 + 1 + DIGITS + 6;
/// Integers below this magnitude are exact as doubles and print as integers.
const INTEGER_MAX: f64 = 9_007_199_254_740_992.0;

/// Writes `value` into `room` and returns the text: 1 to [`DOUBLE_LEN_MAX`] bytes. Special values
/// are `inf`, `-inf`, `nan` and `-nan`.
pub fn format_double(value: f64, room: &mut [u8; DOUBLE_LEN_MAX]) -> &[u8] {
    if value.is_nan() {
        return if value.is_sign_negative() { b"-nan" } else { b"nan" };
    }
    if value.is_infinite() {
        return if value < 0.0 { b"-inf" } else { b"inf" };
    }
    let len = if value == value.trunc() && value.abs() < INTEGER_MAX && (value != 0.0 || value.is_sign_positive()) {
        let mut decimal = crate::number::Decimal::new();
        let digits = decimal.format_i64(value as i64);
        room[..digits.len()].copy_from_slice(digits);
        digits.len()
    } else {
        general(value, room)
    };
    &room[..len]
}

/// Writes `value` as `%.17g` does: in scientific notation below 1e-4 and from 1e17, otherwise in
/// fixed notation, without trailing zeros. Returns the length.
fn general(value: f64, room: &mut [u8; DOUBLE_LEN_MAX]) -> usize {
    let (digits, exponent) = digits_and_exponent(value.abs());
    let significant = digits.iter().rposition(|&digit| digit != b'0').map_or(1, |last| last + 1);
    let digits = &digits[..significant];
    let mut text = Text { room, len: 0 };
    if value.is_sign_negative() {
        text.put(b"-");
    }
    if exponent < -4 || exponent >= DIGITS as i32 {
        text.put(&digits[..1]);
        if significant > 1 {
            text.put(b".");
            text.put(&digits[1..]);
        }
        text.put(if exponent < 0 { b"e-" } else { b"e+" });
        if exponent.abs() < 10 {
            text.put(b"0");
        }
        let mut decimal = crate::number::Decimal::new();
        text.put(decimal.format_u64(u64::from(exponent.unsigned_abs())));
    } else if exponent < 0 {
        text.put(b"0.");
        text.put(&b"000"[..(-exponent - 1) as usize]);
        text.put(digits);
    } else {
        let before_point = exponent as usize + 1;
        if significant <= before_point {
            text.put(digits);
            text.put(&[b'0'; DIGITS][..before_point - significant]);
        } else {
            text.put(&digits[..before_point]);
            text.put(b".");
            text.put(&digits[before_point..]);
        }
    }
    text.len
}

/// Returns the 17 significant digits of a finite, non-negative `value`, correctly rounded, and the
/// decimal exponent of the first digit.
fn digits_and_exponent(value: f64) -> ([u8; DIGITS], i32) {
    // `d.dddddddddddddddde-xxx`
    let mut room = [0u8; DIGITS + 8];
    let mut rest = &mut room[..];
    let written = write!(rest, "{value:.precision$e}", precision = DIGITS - 1);
    debug_assert!(written.is_ok(), "the buffer is too small for a double");
    let len = DIGITS + 8 - rest.len();
    let mut digits = [b'0'; DIGITS];
    digits[0] = room[0];
    digits[1..].copy_from_slice(&room[2..DIGITS + 1]);
    let exponent = room.get(DIGITS + 2..len).and_then(crate::number::parse_i64).unwrap_or(0);
    (digits, exponent as i32)
}

/// A text that grows in a fixed buffer. [`DOUBLE_LEN_MAX`] suffices for any double.
struct Text<'a> {
    room: &'a mut [u8; DOUBLE_LEN_MAX],
    len: usize,
}

impl Text<'_> {
    fn put(&mut self, bytes: &[u8]) {
        self.room[self.len..][..bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn format(value: f64) -> String {
        String::from_utf8(format_double(value, &mut [0; DOUBLE_LEN_MAX]).to_vec()).unwrap()
    }

    #[test]
    fn as_printf_prints() {
        // The expected texts are from glibc's `printf '%.17g'`.
        for (value, expected) in [
            (0.0, "0"),
            (-0.0, "-0"),
            (3.0, "3"),
            (3.1, "3.1000000000000001"),
            (-1.5, "-1.5"),
            (0.1, "0.10000000000000001"),
            (0.0001, "0.0001"),
            (0.00012345, "0.00012344999999999999"),
            (0.00001, "1.0000000000000001e-05"),
            (1e16, "10000000000000000"),
            (1e17, "1e+17"),
            (1.2345678901234568e17, "1.2345678901234568e+17"),
            (9.999999999999999e16, "99999999999999984"),
            (1e100, "1e+100"),
            (f64::MAX, "1.7976931348623157e+308"),
            (f64::MIN_POSITIVE, "2.2250738585072014e-308"),
            (5e-324, "4.9406564584124654e-324"),
            (-5e-324, "-4.9406564584124654e-324"),
            // A tie between two texts of 17 digits is rounded to the even one.
            (2f64.powi(50) + 0.25, "1125899906842624.2"),
            (2f64.powi(50) + 0.75, "1125899906842624.8"),
            (2f64.powi(53), "9007199254740992"),
            (f64::INFINITY, "inf"),
            (f64::NEG_INFINITY, "-inf"),
            (f64::NAN, "nan"),
            (-f64::NAN, "-nan"),
        ] {
            assert_eq!(format(value), expected, "{value:e}");
        }
    }

    #[test]
    fn every_text_reads_back() {
        let seed = 0xd0b1e;
        println!("seed {seed}");
        let mut random = crate::Random::from_seed(seed);
        for _ in 0..200_000 {
            let value = f64::from_bits(random.next_u64());
            let text = format(value);
            if value.is_nan() {
                continue;
            }
            assert_eq!(text.parse::<f64>().unwrap().to_bits(), value.to_bits(), "{text}");
            let few = (random.below(2_000_001) as f64 - 1_000_000.0) / 8.0;
            assert_eq!(format(few), few.to_string());
        }
    }
}
