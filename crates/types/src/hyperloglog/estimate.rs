//! Estimates the number of distinct elements from the histogram of registers. The method is Otmar
//! Ertl's improved estimator (arXiv:1702.01284), as in Redis.

use super::registers::Histogram;
use super::{REGISTERS, VALUE_BITS};

/// 1 / (2 ln 2).
const ALPHA_INFINITY: f64 = 0.721_347_520_444_481_7;

pub(super) fn estimate(histogram: &Histogram) -> u64 {
    let registers = REGISTERS as f64;
    let largest = VALUE_BITS as usize + 1;
    let mut z = registers * tau((registers - f64::from(histogram[largest])) / registers);
    for value in (1..=VALUE_BITS as usize).rev() {
        z += f64::from(histogram[value]);
        z *= 0.5;
    }
    z += registers * sigma(f64::from(histogram[0]) / registers);
    (ALPHA_INFINITY * registers * registers / z).round() as u64
}

/// Returns the correction for registers that are zero.
fn sigma(mut x: f64) -> f64 {
    if x == 1.0 {
        return f64::INFINITY;
    }
    let (mut y, mut z) = (1.0, x);
    loop {
        x *= x;
        let before = z;
        z += x * y;
        y += y;
        if before == z {
            return z;
        }
    }
}

/// Returns the correction for registers at their maximum.
fn tau(mut x: f64) -> f64 {
    if x == 0.0 || x == 1.0 {
        return 0.0;
    }
    let (mut y, mut z) = (1.0, 1.0 - x);
    loop {
        x = x.sqrt();
        let before = z;
        y *= 0.5;
        z -= (1.0 - x) * (1.0 - x) * y;
        if before == z {
            return z / 3.0;
        }
    }
}
