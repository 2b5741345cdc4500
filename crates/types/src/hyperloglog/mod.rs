//! HyperLogLog, a counter of distinct elements with a standard error of 0.81%. A HyperLogLog takes
//! 12 KiB and 16 bytes, or less in sparse form.
//!
//! A HyperLogLog is a string in Redis's format, byte for byte, so GET and SET can copy a
//! HyperLogLog between Redis and Pantala:
//!
//! ```text
//! HYLL   encoding   (3 unused)   cached count         registers
//! 4      1          3            8, little-endian     dense: 16,384 × 6 bits; sparse: runs
//! ```
//!
//! The top bit of the cached count marks the count as stale. 14 bits of an element's hash select a
//! register. The other 50 bits determine the element's value: one plus the number of their trailing
//! zeros. A register holds the maximum of its elements' values.
//!
//! | operation | cost |
//! | --- | --- |
//! | [`add`] to the dense form | a hash and a register |
//! | [`add`] to the sparse form | on average, a walk over half of the runs (1 or 2 bytes each) |
//! | [`HyperLogLog::count`] | 16,384 registers, and about 60 floating-point steps |
//!
//! | contents (`tests/sizes.rs`) | form | bytes |
//! | --- | --- | --- |
//! | 20 elements | sparse | 77.0 |
//! | 100,000 elements | dense | 12304.0 |

mod estimate;
mod registers;
mod selftest;
mod sparse;
#[cfg(test)]
mod tests;

pub use registers::Registers;
pub use selftest::self_test;

use crate::{OutOfMemory, RawString};
use registers::DENSE_BYTES;

/// Number of registers.
pub const REGISTERS: usize = 1 << INDEX_BITS;
/// Hash bits that select the register.
const INDEX_BITS: u32 = 14;
/// Hash bits that determine the value.
const VALUE_BITS: u32 = 64 - INDEX_BITS;
/// Bytes before the registers.
const HEADER_BYTES: usize = 16;
const MAGIC: &[u8; 4] = b"HYLL";
const ENCODING_AT: usize = 4;
const CACHE_AT: usize = 8;
/// Index of the byte that contains the stale bit of the cached count.
const STALE_AT: usize = 15;
/// The stale bit within the byte at [`STALE_AT`].
const STALE: u8 = 1 << 7;

/// The representation of the registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Form {
    /// Six bits per register.
    Dense = 0,
    /// Runs of equal registers: see `sparse`.
    Sparse = 1,
}

/// The runs of a sparse HyperLogLog don't add up to 16,384 registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Corrupted;

/// The reason why a change failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeError {
    /// See [`Corrupted`].
    Corrupted,
    /// The allocator failed.
    OutOfMemory,
}

impl From<Corrupted> for ChangeError {
    fn from(_: Corrupted) -> Self {
        ChangeError::Corrupted
    }
}

impl From<OutOfMemory> for ChangeError {
    fn from(_: OutOfMemory) -> Self {
        ChangeError::OutOfMemory
    }
}

/// A shared view of a string that is a HyperLogLog.
#[derive(Clone, Copy, Debug)]
pub struct HyperLogLog<'a> {
    bytes: &'a [u8],
    form: Form,
}

impl<'a> HyperLogLog<'a> {
    /// Checks the header and length of a string. Returns `None` if the string isn't a HyperLogLog.
    /// Doesn't check the runs of a sparse HyperLogLog, because the methods that walk the runs do.
    #[must_use]
    pub fn of(bytes: &'a [u8]) -> Option<Self> {
        if bytes.len() < HEADER_BYTES || !bytes.starts_with(MAGIC) {
            return None;
        }
        let form = match bytes[ENCODING_AT] {
            0 if bytes.len() == HEADER_BYTES + DENSE_BYTES => Form::Dense,
            1 => Form::Sparse,
            _ => return None,
        };
        Some(HyperLogLog { bytes, form })
    }

    /// Returns the representation of the registers.
    #[must_use]
    pub fn form(self) -> Form {
        self.form
    }

    fn body(self) -> &'a [u8] {
        &self.bytes[HEADER_BYTES..]
    }

    /// Returns the cached count, or `None` if the cached count is stale.
    #[must_use]
    pub fn cached_count(self) -> Option<u64> {
        let cache: [u8; 8] = std::array::from_fn(|at| self.bytes[CACHE_AT + at]);
        (cache[7] & STALE == 0).then_some(u64::from_le_bytes(cache))
    }

    /// Returns the approximate number of distinct elements.
    ///
    /// # Errors
    /// [`Corrupted`].
    pub fn count(self) -> Result<u64, Corrupted> {
        let histogram = match self.form {
            Form::Dense => registers::histogram(self.body()),
            Form::Sparse => sparse::histogram(self.body())?,
        };
        Ok(estimate::estimate(&histogram))
    }

    /// Sets each of `registers` to the maximum of its value and of the same register's value in
    /// this HyperLogLog.
    ///
    /// # Errors
    /// [`Corrupted`] if the sparse runs are invalid. Some registers may have been raised already.
    pub fn merge_into(self, registers: &mut Registers) -> Result<(), Corrupted> {
        match self.form {
            Form::Dense => {
                registers.raise_to_dense(self.body());
                Ok(())
            }
            Form::Sparse => sparse::merge_into(self.body(), registers),
        }
    }

    /// Returns the runs of the sparse form as PFDEBUG DECODE shows them, or `None` for the dense
    /// form.
    #[must_use]
    pub fn decode(self) -> Option<String> {
        (self.form == Form::Sparse).then(|| sparse::decode(self.body()))
    }
}

/// Returns an empty HyperLogLog in sparse form.
///
/// # Errors
/// [`OutOfMemory`] if the string can't be allocated.
pub fn empty() -> Result<RawString, OutOfMemory> {
    let mut bytes = [0; HEADER_BYTES + sparse::EMPTY.len()];
    bytes[..MAGIC.len()].copy_from_slice(MAGIC);
    bytes[ENCODING_AT] = Form::Sparse as u8;
    bytes[HEADER_BYTES..].copy_from_slice(&sparse::EMPTY);
    RawString::try_from_slice(&bytes)
}

/// Adds an element to `string`, which must be a HyperLogLog. Returns whether a register changed. If
/// a register changed, the cached count is marked as stale. A sparse HyperLogLog that would exceed
/// `sparse_bytes_max` becomes dense.
///
/// # Errors
/// [`ChangeError`], with nothing changed.
pub fn add(string: &mut RawString, element: &[u8], sparse_bytes_max: u64) -> Result<bool, ChangeError> {
    let (index, value) = register_and_value(element);
    raise(string, index, value, sparse_bytes_max)
}

/// Returns the index of the register that an element selects, and the element's value (1 to 51).
fn register_and_value(element: &[u8]) -> (usize, u8) {
    let hash = murmur_hash_64a(element);
    let index = hash as usize & (REGISTERS - 1);
    let rest = hash >> INDEX_BITS | 1 << VALUE_BITS;
    (index, rest.trailing_zeros() as u8 + 1)
}

/// Raises a register to `value`. Returns whether the register was smaller.
fn raise(string: &mut RawString, index: usize, value: u8, sparse_bytes_max: u64) -> Result<bool, ChangeError> {
    let changed = match string.as_bytes()[ENCODING_AT] {
        0 => registers::raise(&mut string.as_mut_bytes()[HEADER_BYTES..], index, value),
        _ => match sparse::raise(string, index, value, sparse_bytes_max)? {
            sparse::Raised::No => false,
            sparse::Raised::Yes => true,
            sparse::Raised::NeedsDense => {
                to_dense(string)?;
                registers::raise(&mut string.as_mut_bytes()[HEADER_BYTES..], index, value)
            }
        },
    };
    if changed {
        forget_count(string);
    }
    Ok(changed)
}

/// Converts a HyperLogLog to the dense form and keeps its cached count. Returns whether the
/// HyperLogLog was sparse.
///
/// # Errors
/// [`ChangeError`], with nothing changed.
pub fn to_dense(string: &mut RawString) -> Result<bool, ChangeError> {
    if string.as_bytes()[ENCODING_AT] == Form::Dense as u8 {
        return Ok(false);
    }
    let mut registers = Registers::new();
    sparse::merge_into(&string.as_bytes()[HEADER_BYTES..], &mut registers)?;
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(HEADER_BYTES + DENSE_BYTES).map_err(OutOfMemory::from)?;
    bytes.extend_from_slice(&string.as_bytes()[..HEADER_BYTES]);
    bytes[ENCODING_AT] = Form::Dense as u8;
    bytes.resize(HEADER_BYTES + DENSE_BYTES, 0);
    registers.pack(&mut bytes[HEADER_BYTES..]);
    *string = RawString::from(bytes);
    Ok(true)
}

/// Sets the registers of a HyperLogLog to `registers`, none of which may be less than the current
/// one. This is the last step of PFMERGE. The result is dense if `dense` is set, or if the sparse
/// form would exceed `sparse_bytes_max`.
///
/// # Errors
/// [`ChangeError`], with nothing changed.
pub fn store_merged(
    string: &mut RawString,
    registers: &Registers,
    dense: bool,
    sparse_bytes_max: u64,
) -> Result<(), ChangeError> {
    // Works on a copy, because a failure halfway must leave the string unchanged.
    let mut merged = string.try_clone()?;
    if dense {
        to_dense(&mut merged)?;
    }
    if merged.as_bytes()[ENCODING_AT] == Form::Dense as u8 {
        registers.pack(&mut merged.as_mut_bytes()[HEADER_BYTES..]);
    } else {
        for (index, value) in registers.non_zero() {
            raise(&mut merged, index, value, sparse_bytes_max)?;
        }
    }
    forget_count(&mut merged);
    *string = merged;
    Ok(())
}

/// Marks the cached count as stale.
pub fn forget_count(string: &mut RawString) {
    string.as_mut_bytes()[STALE_AT] |= STALE;
}

/// Stores the cached count.
pub fn remember_count(string: &mut RawString, count: u64) {
    string.as_mut_bytes()[CACHE_AT..HEADER_BYTES].copy_from_slice(&count.to_le_bytes());
}

/// The seed of the hash.
const HASH_SEED: u64 = 0xadc8_3b19;

/// Returns the hash of some bytes by Austin Appleby's MurmurHash64A over little-endian words, as in
/// Redis.
fn murmur_hash_64a(bytes: &[u8]) -> u64 {
    const FACTOR: u64 = 0xc6a4_a793_5bd1_e995;
    const SHIFT: u32 = 47;
    let mut hash = HASH_SEED ^ (bytes.len() as u64).wrapping_mul(FACTOR);
    let (words, tail) = bytes.as_chunks::<8>();
    for word in words {
        let word = u64::from_le_bytes(*word).wrapping_mul(FACTOR);
        let word = (word ^ word >> SHIFT).wrapping_mul(FACTOR);
        hash = (hash ^ word).wrapping_mul(FACTOR);
    }
    if !tail.is_empty() {
        let mut last = [0; 8];
        last[..tail.len()].copy_from_slice(tail);
        hash = (hash ^ u64::from_le_bytes(last)).wrapping_mul(FACTOR);
    }
    hash = (hash ^ hash >> SHIFT).wrapping_mul(FACTOR);
    hash ^ hash >> SHIFT
}
