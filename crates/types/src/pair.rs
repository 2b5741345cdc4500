//! A field of a large hash with its value, in one heap block behind a one-word pointer.
//!
//! ```text
//! length of the field     encoded as in ThinBytes
//! field, value
//! ```

use crate::table::Item;
use crate::thin::{LEN_BYTES_MAX, ThinBytes, read_len, write_len};

/// A field with its value, in the layout described at the head of this module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair {
    bytes: ThinBytes,
}

impl Pair {
    /// Returns the pair of `field` and `value`.
    #[inline]
    pub fn new(field: &[u8], value: &[u8]) -> Self {
        let mut room = [0; LEN_BYTES_MAX];
        let head = write_len(field.len(), &mut room);
        Pair { bytes: ThinBytes::from_parts(&[&room[..head], field, value]) }
    }

    /// Returns the field.
    #[inline]
    pub fn field(&self) -> &[u8] {
        self.split().0
    }

    /// Returns the value.
    #[inline]
    pub fn value(&self) -> &[u8] {
        self.split().1
    }

    /// Returns field and value.
    #[inline]
    pub fn split(&self) -> (&[u8], &[u8]) {
        let bytes = self.bytes.as_slice();
        let (len, head) = read_len(bytes);
        bytes[head..].split_at(len)
    }

    /// Replaces the value, in place if the length stays the same.
    #[inline]
    pub fn set_value(&mut self, value: &[u8]) {
        let (field, old) = self.split();
        if old.len() == value.len() {
            let at = self.bytes.as_slice().len() - value.len();
            self.bytes.as_mut_slice()[at..].copy_from_slice(value);
        } else {
            *self = Pair::new(field, value);
        }
    }
}

impl Item for Pair {
    #[inline]
    fn allocated_bytes(&self) -> usize {
        self.bytes.allocated_bytes()
    }

    #[inline]
    fn prefetch(&self) {
        self.bytes.prefetch();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn field_and_value_round_trip() {
        for (field, value) in [(0, 0), (0, 5), (1, 0), (127, 3), (128, 128), (20_000, 1)] {
            let (field, value) = (vec![b'f'; field], vec![b'v'; value]);
            let mut pair = Pair::new(&field, &value);
            assert_eq!(pair.split(), (&field[..], &value[..]));
            for other in [vec![b'w'; value.len()], vec![b'x'; value.len() + 1], Vec::new()] {
                pair.set_value(&other);
                assert_eq!((pair.field(), pair.value()), (&field[..], &other[..]));
            }
        }
    }
}
