//! PFSELFTEST: checks on this machine that dense registers keep their values, that the dense
//! and the sparse form agree, and that estimates are close to the true count.

use super::registers::{self, DENSE_BYTES};
use super::{HEADER_BYTES, HyperLogLog, REGISTERS, Registers, add, empty, to_dense};
use pantala_base::random::Random;

/// Rounds of the test of dense registers.
const ROUNDS: usize = 100;
/// Number of elements that the test of estimates adds.
const ELEMENTS_MAX: u64 = 1_000_000;
/// Maximum error of an estimate, in standard errors.
const STANDARD_ERRORS_MAX: f64 = 6.0;

/// Runs the test with random numbers from `seed`.
///
/// # Errors
/// A description of the first mismatch.
pub fn self_test(seed: u64, sparse_bytes_max: u64) -> Result<(), String> {
    let mut random = Random::from_seed(seed);
    dense_registers(&mut random)?;
    estimates(&mut random, sparse_bytes_max)
}

/// Compares dense registers with plain bytes.
fn dense_registers(random: &mut Random) -> Result<(), String> {
    let mut dense = vec![0; DENSE_BYTES];
    let mut model = vec![0u8; REGISTERS];
    for _ in 0..ROUNDS {
        for (index, byte) in model.iter_mut().enumerate() {
            let value = random.next_u64() as u8 & 0x3f;
            let larger = value > *byte;
            *byte = value.max(*byte);
            if registers::raise(&mut dense, index, value) != larger {
                return Err(format!("Register {index} should have been raised: {larger}"));
            }
        }
        let mut unpacked = Registers::new();
        unpacked.raise_to_dense(&dense);
        if let Some(index) = (0..REGISTERS).find(|&index| unpacked.values()[index] != model[index]) {
            return Err(format!("Register {index} should be {} but is {}", model[index], unpacked.values()[index]));
        }
        dense.fill(0);
        model.fill(0);
    }
    Ok(())
}

/// Compares estimates with the true count, and the two forms with each other.
fn estimates(random: &mut Random, sparse_bytes_max: u64) -> Result<(), String> {
    let refused = |error| format!("{error:?}");
    let relative_error = 1.04 / (REGISTERS as f64).sqrt();
    let (mut sparse, mut dense) = (empty().map_err(|error| error.to_string())?, empty().map_err(|e| e.to_string())?);
    to_dense(&mut dense).map_err(refused)?;
    let salt = random.next_u64();
    let mut checkpoint = 1;
    for element in 1..=ELEMENTS_MAX {
        let bytes = (element ^ salt).to_le_bytes();
        add(&mut sparse, &bytes, sparse_bytes_max).map_err(refused)?;
        add(&mut dense, &bytes, sparse_bytes_max).map_err(refused)?;
        if element != checkpoint {
            continue;
        }
        checkpoint *= 10;
        let count = |string: &crate::RawString| HyperLogLog::of(string.as_bytes()).map(HyperLogLog::count);
        let (Some(Ok(first)), Some(Ok(second))) = (count(&sparse), count(&dense)) else {
            return Err(format!("corrupted after {element} elements"));
        };
        if first != second {
            return Err(format!("dense/sparse disagree after {element} elements: {second} and {first}"));
        }
        let off_max = (STANDARD_ERRORS_MAX * relative_error * element as f64).ceil();
        if first.abs_diff(element) as f64 > off_max {
            return Err(format!("Too big error. card:{element} abserr:{}", first.abs_diff(element)));
        }
    }
    debug_assert!(dense.len() == HEADER_BYTES + DENSE_BYTES);
    Ok(())
}
