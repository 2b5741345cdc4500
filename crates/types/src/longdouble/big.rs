//! Natural numbers of any size, with the operations that parsing and formatting need. Only numbers
//! with many digits or large exponents use them. Inputs have fewer than
//! [`super::LONG_DOUBLE_CHARS_MAX`] characters, so the numbers take less than 3 KiB and schoolbook
//! loops suffice.

use std::cmp::Ordering;

/// 5^27, the largest power of five that fits in a word.
const FIVE_TO_27: u64 = 7_450_580_596_923_828_125;

/// 10^19, the largest power of ten that fits in a word.
const TEN_TO_19: u64 = 10_000_000_000_000_000_000;

/// A natural number as words in little-endian order. The highest word is never 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Big {
    words: Vec<u64>,
}

impl Big {
    /// Returns the number with these decimal digits, each `b'0'..=b'9'`.
    pub(super) fn from_digits(digits: impl Iterator<Item = u8>) -> Big {
        let mut big = Big { words: Vec::new() };
        let (mut chunk, mut scale) = (0u64, 1u64);
        for digit in digits {
            chunk = chunk * 10 + u64::from(digit - b'0');
            scale *= 10;
            if scale == TEN_TO_19 {
                big.multiply_add(scale, chunk);
                (chunk, scale) = (0, 1);
            }
        }
        big.multiply_add(scale, chunk);
        big
    }

    /// Returns one.
    pub(super) fn one() -> Big {
        Big { words: vec![1] }
    }

    /// Returns `word << bits`.
    pub(super) fn from_shifted(word: u64, bits: u32) -> Big {
        let mut big = Big { words: Vec::new() };
        big.multiply_add(1, word);
        big.shift_left(bits);
        big
    }

    /// Returns the number of bits without leading zeros. Returns 0 for zero.
    pub(super) fn bits(&self) -> u32 {
        self.words.last().map_or(0, |top| self.words.len() as u32 * 64 - top.leading_zeros())
    }

    fn multiply_add(&mut self, factor: u64, addend: u64) {
        let mut carry = u128::from(addend);
        for word in &mut self.words {
            carry += u128::from(*word) * u128::from(factor);
            *word = carry as u64;
            carry >>= 64;
        }
        if carry != 0 {
            self.words.push(carry as u64);
        }
    }

    /// Multiplies by `5^exponent`.
    pub(super) fn multiply_power_of_five(&mut self, exponent: u32) {
        for _ in 0..exponent / 27 {
            self.multiply_add(FIVE_TO_27, 0);
        }
        self.multiply_add(5u64.pow(exponent % 27), 0);
    }

    /// Multiplies by `2^bits`.
    pub(super) fn shift_left(&mut self, bits: u32) {
        if self.words.is_empty() {
            return;
        }
        self.multiply_add(1 << (bits % 64), 0);
        let zeros = (bits / 64) as usize;
        self.words.splice(0..0, std::iter::repeat_n(0, zeros));
    }

    /// Doubles the number, like `shift_left(1)` but without moving words.
    fn double(&mut self) {
        self.multiply_add(2, 0);
    }

    fn subtract(&mut self, other: &Big) {
        let mut borrow = false;
        for (i, word) in self.words.iter_mut().enumerate() {
            let subtrahend = other.words.get(i).copied().unwrap_or(0);
            let (difference, borrow_a) = word.overflowing_sub(subtrahend);
            let (difference, borrow_b) = difference.overflowing_sub(u64::from(borrow));
            *word = difference;
            borrow = borrow_a | borrow_b;
        }
        debug_assert!(!borrow, "the subtrahend is larger");
        while self.words.last() == Some(&0) {
            self.words.pop();
        }
    }

    /// Returns the two highest words as `(mantissa, shift, sticky)`. The number equals `mantissa ×
    /// 2^shift`, or, if `sticky`, lies between this product and `(mantissa + 1) × 2^shift`.
    pub(super) fn top(&self) -> (u128, u32, bool) {
        let word = |i: usize| u128::from(self.words.get(i).copied().unwrap_or(0));
        let skipped = self.words.len().saturating_sub(2);
        // If words are skipped, the higher of the two words isn't 0, so the mantissa has at least
        // 65 bits, enough to round.
        let mantissa = word(skipped + 1) << 64 | word(skipped);
        (mantissa, skipped as u32 * 64, self.words[..skipped].iter().any(|&w| w != 0))
    }

    /// Returns the quotient `self / divisor` (neither zero) with at least 67 bits, as `(quotient,
    /// exponent, sticky)`. The true quotient equals `quotient × 2^exponent`, or, if `sticky`, lies
    /// between this product and `(quotient + 1) × 2^exponent`.
    pub(super) fn divide(mut self, mut divisor: Big) -> (u128, i32, bool) {
        const STEPS: u32 = 68;
        let shift = divisor.bits() as i32 - self.bits() as i32;
        match shift {
            0.. => self.shift_left(shift as u32),
            _ => divisor.shift_left(shift.unsigned_abs()),
        }
        // Dividend and divisor have the same number of bits now, so the quotient lies between a
        // half and two. Each step computes one bit.
        let mut quotient = 0u128;
        for _ in 0..STEPS {
            quotient <<= 1;
            if self.cmp(&divisor) != Ordering::Less {
                self.subtract(&divisor);
                quotient |= 1;
            }
            self.double();
        }
        (quotient, -shift - (STEPS as i32 - 1), !self.words.is_empty())
    }

    /// Appends the decimal digits to `out`. Appends nothing for zero.
    pub(super) fn write_decimal(mut self, out: &mut Vec<u8>) {
        let mut chunks = Vec::new();
        while !self.words.is_empty() {
            let mut remainder = 0u64;
            for word in self.words.iter_mut().rev() {
                let dividend = u128::from(remainder) << 64 | u128::from(*word);
                *word = (dividend / u128::from(TEN_TO_19)) as u64;
                // The remainder fits in 64 bits, so computing it modulo 2^64 suffices and saves a
                // second wide division.
                remainder = (dividend as u64).wrapping_sub(word.wrapping_mul(TEN_TO_19));
            }
            if self.words.last() == Some(&0) {
                self.words.pop();
            }
            chunks.push(remainder);
        }
        let mut buffer = itoa::Buffer::new();
        for (i, &chunk) in chunks.iter().rev().enumerate() {
            let digits = buffer.format(chunk).as_bytes();
            if i > 0 {
                out.extend(std::iter::repeat_n(b'0', 19 - digits.len()));
            }
            out.extend_from_slice(digits);
        }
    }
}

impl Ord for Big {
    fn cmp(&self, other: &Big) -> Ordering {
        let by_len = self.words.len().cmp(&other.words.len());
        by_len.then_with(|| self.words.iter().rev().cmp(other.words.iter().rev()))
    }
}

impl PartialOrd for Big {
    fn partial_cmp(&self, other: &Big) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
