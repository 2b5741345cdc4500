//! Formats a `LongDouble` for humans, like Redis's `ld2string`.

use super::big::Big;
use super::{DECIMALS_MAX, LongDouble, shift_right_rounded};

/// 10 to the power of the number of decimals.
const DECIMALS_SCALE: u64 = 10u64.pow(DECIMALS_MAX as u32);

impl LongDouble {
    /// Appends the number with at most [`DECIMALS_MAX`] decimals, without exponent, trailing zeros
    /// or trailing point, and without a sign on zero. Infinities are `inf` and `-inf`. Appends at
    /// most 4,934 characters.
    pub fn write_human(self, out: &mut Vec<u8>) {
        if self.is_infinite() {
            out.extend_from_slice(if self.negative { b"-inf" } else { b"inf" });
            return;
        }
        if self.exponent > 0 {
            self.write_sign(out);
            self.write_integer(out);
            return;
        }
        let (whole, decimals) = self.rounded_parts();
        if whole == 0 && decimals == 0 {
            out.push(b'0'); // Redis prints "-0" as "0".
            return;
        }
        self.write_sign(out);
        let mut buffer = itoa::Buffer::new();
        out.extend_from_slice(buffer.format(whole).as_bytes());
        if decimals != 0 {
            let digits = buffer.format(decimals).as_bytes();
            out.push(b'.');
            out.extend(std::iter::repeat_n(b'0', DECIMALS_MAX - digits.len()));
            let trailing_zeros = digits.iter().rev().take_while(|&&digit| digit == b'0').count();
            out.extend_from_slice(&digits[..digits.len() - trailing_zeros]);
        }
    }

    /// Formats as [`LongDouble::write_human`], into a new vector.
    #[must_use]
    pub fn to_human(self) -> Vec<u8> {
        let mut out = Vec::with_capacity(40);
        self.write_human(&mut out);
        out
    }

    fn write_sign(self, out: &mut Vec<u8>) {
        if self.negative {
            out.push(b'-');
        }
    }

    /// Writes a number with a positive exponent, which has no fraction.
    fn write_integer(self, out: &mut Vec<u8>) {
        if self.exponent <= 64 {
            let mut buffer = itoa::Buffer::new();
            out.extend_from_slice(buffer.format(u128::from(self.significand) << self.exponent).as_bytes());
        } else {
            Big::from_shifted(self.significand, self.exponent.unsigned_abs()).write_decimal(out);
        }
    }

    /// Splits a number whose exponent isn't positive. Returns the integer part, and the fraction in
    /// units of 10^-17, rounded to nearest, ties to even.
    fn rounded_parts(self) -> (u64, u64) {
        let bits = self.exponent.unsigned_abs();
        if bits == 0 {
            return (self.significand, 0);
        }
        let whole = self.significand.checked_shr(bits).unwrap_or(0);
        let fraction = self.significand - whole.checked_shl(bits).unwrap_or(0);
        // The product has at most 64 + 57 bits. Ties round to an even last decimal. The fraction
        // alone decides which decimal is even, because the scale is even.
        let scaled = u128::from(fraction) * u128::from(DECIMALS_SCALE);
        let decimals = shift_right_rounded(scaled, bits, false) as u64;
        if decimals == DECIMALS_SCALE { (whole + 1, 0) } else { (whole, decimals) }
    }
}
