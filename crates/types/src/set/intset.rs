//! A set of integers: a sorted array in which all integers have the same width, in the format of
//! Redis's intset.
//!
//! ```text
//! width       4 bytes: 2, 4 or 8, the size of each integer
//! count       4 bytes
//! integers    ascending
//! ```
//!
//! All fields are little-endian. The width is the smallest one that fits all integers ever added.
//! The width never shrinks. An empty set may have no bytes at all.

/// Bytes before the integers.
const HEADER_BYTES: usize = 8;

/// Returns the smallest width that fits an integer, in bytes.
fn width_of(value: i64) -> usize {
    if i16::try_from(value).is_ok() {
        2
    } else if i32::try_from(value).is_ok() {
        4
    } else {
        8
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).map_or(0, |word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]))
}

/// A shared view of an intset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IntSetRef<'a> {
    bytes: &'a [u8],
}

impl<'a> IntSetRef<'a> {
    /// Returns the intset with these bytes, which must come from an [`IntSet`] or from
    /// [`IntSetRef::as_bytes`].
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Self {
        IntSetRef { bytes }
    }

    /// Returns all bytes of the intset.
    pub fn as_bytes(self) -> &'a [u8] {
        self.bytes
    }

    #[inline]
    fn width(self) -> usize {
        word(self.bytes, 0) as usize
    }

    /// Returns the number of integers.
    #[inline]
    pub fn len(self) -> usize {
        word(self.bytes, 4) as usize
    }

    /// Returns whether there are no integers.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// Returns the integer at an index, which must be less than the length.
    #[inline]
    pub fn get(self, index: usize) -> i64 {
        let width = self.width();
        let at = HEADER_BYTES + index * width;
        let bytes = &self.bytes[at..at + width];
        match *bytes {
            [a, b] => i64::from(i16::from_le_bytes([a, b])),
            [a, b, c, d] => i64::from(i32::from_le_bytes([a, b, c, d])),
            _ => {
                let mut wide = [0; 8];
                wide.copy_from_slice(bytes);
                i64::from_le_bytes(wide)
            }
        }
    }

    /// Returns the index of an integer, or `Err` with the index at which to insert it.
    #[inline]
    fn search(self, value: i64) -> Result<usize, usize> {
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = (low + high) / 2;
            match self.get(middle).cmp(&value) {
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Greater => high = middle,
                std::cmp::Ordering::Equal => return Ok(middle),
            }
        }
        Err(low)
    }

    /// Returns whether the set contains an integer.
    #[inline]
    pub fn contains(self, value: i64) -> bool {
        self.search(value).is_ok()
    }

    /// Iterates over all integers, ascending.
    pub fn iter(self) -> impl Iterator<Item = i64> + 'a {
        (0..self.len()).map(move |index| self.get(index))
    }
}

/// An owned intset.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IntSet {
    bytes: Vec<u8>,
}

impl IntSet {
    /// Returns an empty set, which takes no memory.
    pub const fn new() -> Self {
        IntSet { bytes: Vec::new() }
    }

    /// Returns the intset with these bytes, like [`IntSetRef::new`].
    pub fn from_vec(bytes: Vec<u8>) -> Self {
        IntSet { bytes }
    }

    /// Checks bytes from an untrusted source. Returns `None` if the bytes aren't an intset of at
    /// least one integer, in strictly ascending order.
    pub fn try_from_bytes(bytes: &[u8]) -> Option<Self> {
        let (header, integers) = bytes.split_at_checked(HEADER_BYTES)?;
        let (width, len) = (word(header, 0) as usize, word(header, 4) as usize);
        if !matches!(width, 2 | 4 | 8) || len == 0 || len.checked_mul(width) != Some(integers.len()) {
            return None;
        }
        let set = IntSetRef::new(bytes);
        set.iter().is_sorted_by(|one, next| one < next).then(|| IntSet { bytes: bytes.to_vec() })
    }

    /// Returns the bytes of the intset, with their spare capacity.
    pub fn into_vec(self) -> Vec<u8> {
        self.bytes
    }

    /// Returns a shared view.
    #[inline]
    pub fn as_ref(&self) -> IntSetRef<'_> {
        IntSetRef { bytes: &self.bytes }
    }

    /// Returns the size of the heap memory in bytes.
    pub fn allocated_bytes(&self) -> usize {
        self.bytes.capacity()
    }

    /// Adds an integer. Returns whether the integer is new.
    pub fn insert(&mut self, value: i64) -> bool {
        let (width, wanted) = (self.as_ref().width(), width_of(value));
        if wanted > width {
            self.widen(wanted, value);
            return true;
        }
        let Err(index) = self.as_ref().search(value) else { return false };
        let (at, len) = (HEADER_BYTES + index * width, self.bytes.len());
        // Reserves exactly the needed bytes, because there are many small sets, and the allocator's
        // size classes leave spare capacity anyway.
        self.bytes.reserve_exact(width);
        self.bytes.resize(len + width, 0);
        self.bytes.copy_within(at..len, at + width);
        self.bytes[at..at + width].copy_from_slice(&value.to_le_bytes()[..width]);
        self.set_len(self.as_ref().len() + 1);
        true
    }

    /// Adds an integer that needs a larger width, and widens all other integers. The other integers
    /// fit in the smaller width, so the new integer is less or greater than all of them, and
    /// becomes the first or the last.
    #[cold]
    fn widen(&mut self, width: usize, value: i64) {
        let old = std::mem::take(&mut self.bytes);
        let old = IntSetRef::new(&old);
        self.bytes.reserve_exact(HEADER_BYTES + (old.len() + 1) * width);
        self.bytes.extend_from_slice(&(width as u32).to_le_bytes());
        self.bytes.extend_from_slice(&[0; 4]);
        let first = (value < 0).then_some(value);
        let last = (value >= 0).then_some(value);
        for value in first.into_iter().chain(old.iter()).chain(last) {
            self.bytes.extend_from_slice(&value.to_le_bytes()[..width]);
        }
        self.set_len(old.len() + 1);
    }

    /// Removes an integer. Returns whether the set contained the integer.
    pub fn remove(&mut self, value: i64) -> bool {
        let Ok(index) = self.as_ref().search(value) else { return false };
        let width = self.as_ref().width();
        let at = HEADER_BYTES + index * width;
        self.bytes.drain(at..at + width);
        self.set_len(self.as_ref().len() - 1);
        true
    }

    fn set_len(&mut self, len: usize) {
        self.bytes[4..HEADER_BYTES].copy_from_slice(&(len as u32).to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::testing::Random;

    #[test]
    fn random_changes_agree_with_a_sorted_set() {
        let mut random = Random::with_printed_seed("intset");
        for _ in 0..100 {
            let (mut set, mut model) = (IntSet::new(), BTreeSet::new());
            let narrow = random.below(64);
            for _ in 0..200 {
                let value = (random.next() as i64) >> random.below(64).max(narrow);
                if random.one_in(3) {
                    assert_eq!(set.remove(value), model.remove(&value));
                } else {
                    assert_eq!(set.insert(value), model.insert(value));
                }
                assert!(set.as_ref().iter().eq(model.iter().copied()));
                assert_eq!(set.as_ref().contains(value), model.contains(&value));
                assert_eq!(set.as_ref().is_empty(), model.is_empty());
            }
        }
    }

    /// The expected bytes come from `DUMP` of redis-server 7.0.15.
    #[test]
    fn bytes_equal_those_of_redis() {
        let mut set = IntSet::new();
        for value in [5, -1, 300] {
            assert!(set.insert(value));
        }
        assert_eq!(set.as_ref().as_bytes(), [2, 0, 0, 0, 3, 0, 0, 0, 0xff, 0xff, 5, 0, 0x2c, 1]);
        for (value, width) in [(i64::from(i16::MAX), 2), (32_768, 4), (i64::from(i32::MIN), 4), (i64::MIN, 8)] {
            set.insert(value);
            assert_eq!(set.as_ref().width(), width, "{value}");
        }
        assert!(set.as_ref().iter().eq([i64::MIN, i64::from(i32::MIN), -1, 5, 300, 32_767, 32_768]));
    }
}
