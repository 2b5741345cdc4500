//! An unordered list of keys that active expiry visits one by one. A visit removes a key that no
//! longer belongs to the list, so changes and deletions of keys need not update the list.

use pantala_types::ThinBytes;
use pantala_types::table::{Table, has_room};

/// A list of keys. See the head of this module. A key uses 20 to 25 bytes in addition to its
/// length.
#[derive(Default)]
pub(crate) struct KeyList {
    keys: Option<Table<ThinBytes>>,
    /// Index at which the walk continues.
    next: usize,
}

impl KeyList {
    /// Adds a key. Returns `false` if the list contains it, or has no room.
    pub(crate) fn add(&mut self, key: &[u8]) -> bool {
        let keys = self.keys.get_or_insert_with(|| Table::with_capacity(1));
        let hash = keys.hash(key);
        let is_new = keys.find(hash, |listed| listed.as_slice() == key).is_none() && has_room(keys.len(), 1);
        if is_new {
            keys.insert(hash, ThinBytes::from_parts(&[key]));
        }
        is_new
    }

    /// Returns whether the list is empty.
    pub(crate) fn is_empty(&self) -> bool {
        self.keys.is_none()
    }

    /// Returns whether `is_met` holds for any key.
    pub(crate) fn any(&self, mut is_met: impl FnMut(&[u8]) -> bool) -> bool {
        self.keys.iter().any(|keys| (0..keys.len()).any(|at| is_met(keys.get(at).as_slice())))
    }

    /// Visits at most `most` keys. Removes the keys for which `keeps` returns `false`. Returns the
    /// number of removed keys.
    pub(crate) fn walk(&mut self, most: usize, mut keeps: impl FnMut(&[u8]) -> bool) -> usize {
        let Some(keys) = &mut self.keys else { return 0 };
        let mut removed = 0;
        for _ in 0..most.min(keys.len()) {
            if self.next >= keys.len() {
                self.next = 0;
            }
            if keeps(keys.get(self.next).as_slice()) {
                self.next += 1;
            } else {
                keys.remove(self.next);
                removed += 1;
            }
        }
        if keys.is_empty() {
            self.keys = None;
        }
        removed
    }
}
