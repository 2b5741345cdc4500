//! A growable byte string that preallocates as Redis's strings do. A failed allocation returns an
//! error instead of aborting the process.
//!
//! | contents (`tests/sizes.rs`) | | bytes |
//! | --- | --- | --- |
//! | a string of 10,000 bytes | after SET | 10032.0 |
//! | a string of 10,001 bytes | after APPEND of one | 20034.0 |
//!
//! A string that fits in one dictionary cell (4 KiB) together with its key is stored in the key's
//! dictionary entry instead. Inside the entry, the string takes as many bytes as its length, or 8
//! bytes if it is an integer.

use std::collections::TryReserveError;
use std::fmt;
use std::ops::Range;

/// Maximum spare capacity of a growing string, in bytes (1 MiB). A growing string whose new length
/// is less than this reserves twice the new length.
pub const PREALLOCATION_BYTES_MAX: usize = 1024 * 1024;

/// The allocator failed, or the size overflows. The value to grow is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfMemory;

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("insufficient memory")
    }
}

impl std::error::Error for OutOfMemory {}

impl From<TryReserveError> for OutOfMemory {
    fn from(_: TryReserveError) -> Self {
        OutOfMemory
    }
}

/// The bytes of a string outside its dictionary entry.
///
/// After SET, or SETRANGE of a missing key, the capacity is exactly the length. When APPEND or
/// SETRANGE exceeds the capacity, the capacity becomes twice the new length, or the new length plus
/// [`PREALLOCATION_BYTES_MAX`] if this is less. A string that grew once tends to grow again.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct RawString {
    bytes: Vec<u8>,
}

impl RawString {
    /// Returns a copy of `bytes` without spare capacity.
    ///
    /// # Errors
    /// [`OutOfMemory`] if the allocator fails.
    pub fn try_from_slice(bytes: &[u8]) -> Result<RawString, OutOfMemory> {
        let mut string = RawString::default();
        string.bytes.try_reserve_exact(bytes.len())?;
        string.bytes.extend_from_slice(bytes);
        Ok(string)
    }

    /// Returns `head` and `tail` concatenated, with spare capacity as after an APPEND.
    ///
    /// # Errors
    /// [`OutOfMemory`] if the allocator fails.
    pub fn try_concat(head: &[u8], tail: &[u8]) -> Result<RawString, OutOfMemory> {
        let mut string = RawString::default();
        string.try_grow_to(head.len().checked_add(tail.len()).ok_or(OutOfMemory)?)?;
        string.bytes.extend_from_slice(head);
        string.bytes.extend_from_slice(tail);
        Ok(string)
    }

    /// Returns the bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the bytes for changes in place.
    #[must_use]
    pub fn as_mut_bytes(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// Returns the length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Returns whether there are no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Returns the size of the string's heap memory in bytes, including spare capacity and the
    /// bytes by which the allocator rounds up a large block.
    #[must_use]
    pub fn allocated_bytes(&self) -> usize {
        pantala_base::block_bytes(self.bytes.capacity())
    }

    /// Appends `tail` (APPEND).
    ///
    /// # Errors
    /// [`OutOfMemory`] if the allocator fails. The string is then unchanged.
    pub fn try_append(&mut self, tail: &[u8]) -> Result<(), OutOfMemory> {
        self.try_grow_to(self.len().checked_add(tail.len()).ok_or(OutOfMemory)?)?;
        self.bytes.extend_from_slice(tail);
        Ok(())
    }

    /// Overwrites the bytes starting at `offset` with `patch` (SETRANGE). Zero bytes fill a gap
    /// between the old end and `offset`. An empty patch changes nothing, at any offset.
    ///
    /// # Errors
    /// [`OutOfMemory`] if the allocator fails. The string is then unchanged.
    pub fn try_set_range(&mut self, offset: usize, patch: &[u8]) -> Result<(), OutOfMemory> {
        if patch.is_empty() {
            return Ok(());
        }
        let end = offset.checked_add(patch.len()).ok_or(OutOfMemory)?;
        if end > self.len() {
            if self.bytes.capacity() == 0 {
                // A new string is allocated in its exact size, as after SET. Redis preallocates
                // only for strings that grow.
                self.bytes.try_reserve_exact(end)?;
            }
            self.try_grow_to(end)?;
            self.bytes.resize(end, 0);
        }
        self.bytes[offset..end].copy_from_slice(patch);
        Ok(())
    }

    /// Replaces the bytes of a range, which must lie within the string, with `patch`. The following
    /// bytes move.
    ///
    /// # Errors
    /// [`OutOfMemory`] if the allocator fails. The string is then unchanged.
    pub fn try_splice(&mut self, range: Range<usize>, patch: &[u8]) -> Result<(), OutOfMemory> {
        let (len, Range { start, end }) = (self.len(), range);
        let new_end = start.checked_add(patch.len()).ok_or(OutOfMemory)?;
        let new_len = (len - end).checked_add(new_end).ok_or(OutOfMemory)?;
        if new_len > len {
            self.try_grow_to(new_len)?;
            self.bytes.resize(new_len, 0);
        }
        self.bytes.copy_within(end..len, new_end);
        self.bytes[start..new_end].copy_from_slice(patch);
        self.bytes.truncate(new_len);
        Ok(())
    }

    /// Returns a copy without spare capacity.
    ///
    /// # Errors
    /// [`OutOfMemory`] if the allocator fails.
    pub fn try_clone(&self) -> Result<RawString, OutOfMemory> {
        RawString::try_from_slice(&self.bytes)
    }

    /// Ensures a capacity of at least `len_bytes`. Preallocates like Redis if the buffer has to
    /// grow.
    fn try_grow_to(&mut self, len_bytes: usize) -> Result<(), OutOfMemory> {
        if len_bytes <= self.bytes.capacity() {
            return Ok(());
        }
        let room_bytes = len_bytes.min(PREALLOCATION_BYTES_MAX);
        let wanted_bytes = len_bytes.checked_add(room_bytes).ok_or(OutOfMemory)?;
        self.bytes.try_reserve_exact(wanted_bytes - self.len())?;
        Ok(())
    }
}

impl From<Vec<u8>> for RawString {
    /// Takes over the vector's buffer, including the spare capacity.
    fn from(bytes: Vec<u8>) -> Self {
        RawString { bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Random;

    const MIB: usize = 1024 * 1024;

    #[test]
    fn set_allocates_exactly_its_length() {
        let string = RawString::try_from_slice(&[7; 1000]).unwrap();
        assert_eq!((string.len(), string.allocated_bytes()), (1000, 1000));
        assert!(RawString::try_from_slice(b"").unwrap().is_empty());
    }

    #[test]
    fn append_doubles_below_the_bound_and_adds_the_bound_above() {
        for (len, expected) in
            [(100, 202), (MIB - 2, 2 * MIB - 2), (MIB - 1, 2 * MIB), (MIB, 2 * MIB + 1), (5 * MIB, 6 * MIB + 1)]
        {
            let mut string = RawString::try_from_slice(&vec![b'a'; len]).unwrap();
            string.try_append(b"b").unwrap();
            assert_eq!(string.len(), len + 1);
            assert_eq!(string.bytes.capacity(), expected, "appending to {len} bytes");
        }
    }

    #[test]
    fn a_new_string_has_no_spare_capacity() {
        for (offset, patch) in [(0, 100_000), (99_999, 1), (5 * MIB, 1)] {
            let mut string = RawString::default();
            string.try_set_range(offset, &vec![b'a'; patch]).unwrap();
            assert_eq!(string.bytes.capacity(), offset + patch);
        }
        let mut grown = RawString::try_from_slice(b"0123456789").unwrap();
        grown.try_set_range(99_999, b"a").unwrap();
        assert_eq!(grown.bytes.capacity(), 200_000);
        assert_eq!(grown.allocated_bytes(), 229_376, "a size class of the allocator");
    }

    #[test]
    fn append_within_the_capacity_keeps_the_buffer() {
        let mut string = RawString::try_concat(b"0123456789", b"abc").unwrap();
        assert_eq!(string.allocated_bytes(), 26);
        string.try_append(b"0123456789abc").unwrap();
        assert_eq!((string.len(), string.allocated_bytes()), (26, 26));
        string.try_append(b"!").unwrap();
        assert_eq!((string.len(), string.allocated_bytes()), (27, 54));
    }

    #[test]
    fn a_failed_allocation_is_an_error_and_changes_nothing() {
        let mut string = RawString::try_from_slice(b"kept").unwrap();
        assert_eq!(string.try_set_range(usize::MAX - 1, b"ab"), Err(OutOfMemory));
        assert_eq!(string.try_set_range(isize::MAX as usize, b"a"), Err(OutOfMemory));
        assert_eq!(string.try_set_range(1 << 60, b"a"), Err(OutOfMemory));
        assert_eq!(string.as_bytes(), b"kept");
        assert_eq!(string.allocated_bytes(), 4);
    }

    #[test]
    fn an_empty_patch_changes_nothing() {
        let mut string = RawString::try_from_slice(b"kept").unwrap();
        string.try_set_range(1000, b"").unwrap();
        assert_eq!(string.as_bytes(), b"kept");
    }

    #[test]
    fn splices_of_all_lengths() {
        for (range, patch, wanted) in [
            (0..0, "ab", "ab01234"),
            (1..3, "", "034"),
            (1..3, "xy", "0xy34"),
            (4..5, "xyz", "0123xyz"),
            (0..5, "", ""),
        ] {
            let mut string = RawString::try_from_slice(b"01234").unwrap();
            string.try_splice(range.clone(), patch.as_bytes()).unwrap();
            assert_eq!(string.as_bytes(), wanted.as_bytes(), "{range:?} {patch}");
        }
    }

    #[test]
    fn random_changes_agree_with_a_plain_model() {
        let mut random = Random::with_printed_seed("raw_string");
        for _ in 0..500 {
            let mut model = random.bytes(0, 200);
            let mut string = RawString::try_from_slice(&model).unwrap();
            for _ in 0..20 {
                let patch = random.bytes(0, 60);
                if random.below(2) == 0 {
                    string.try_append(&patch).unwrap();
                    model.extend_from_slice(&patch);
                } else {
                    let offset = random.below(300) as usize;
                    string.try_set_range(offset, &patch).unwrap();
                    for (i, &byte) in patch.iter().enumerate() {
                        if model.len() <= offset + i {
                            model.resize(offset + i + 1, 0);
                        }
                        model[offset + i] = byte;
                    }
                }
                assert_eq!(string.as_bytes(), model);
                assert!(string.allocated_bytes() >= model.len());
            }
        }
    }
}
