//! Items with unique names: the groups of a stream, and the consumers of a group.
//!
//! ```text
//! slots    the items; an item's number is the index of its slot, stable while the item exists
//! order    chunks of numbers, ordered by name
//! ```
//!
//! A lookup takes two binary searches. An insertion or removal moves the numbers of at most one
//! chunk (1 KiB). A change that adds or removes a chunk also moves the later part of the table of
//! chunks. This table has 24 bytes per chunk, and a chunk usually has at least 32 items. An item
//! keeps its slot.

use std::ops::{Index, IndexMut};

/// Maximum length of a chunk, in numbers.
const CHUNK_MAX: usize = 256;
/// Two adjacent chunks are merged if they have at most this many numbers in total.
const MERGED_MAX: usize = CHUNK_MAX / 2;
/// The number that stands for no slot.
const NONE: u32 = u32::MAX;

/// An item with a name, which never changes.
pub(super) trait HasName {
    fn name(&self) -> &[u8];
}

#[derive(Clone, Debug)]
enum Slot<T> {
    Used(T),
    /// The slot is free. Contains the number of the next free slot.
    Free(u32),
}

/// The place of an item in the order by name.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    chunk: usize,
    index: usize,
}

/// Items ordered by name, as described at the head of this module.
#[derive(Debug)]
pub(super) struct Named<T> {
    slots: Vec<Slot<T>>,
    order: Vec<Vec<u32>>,
    /// Number of the first free slot.
    free: u32,
    len: u32,
    /// Heap memory of the chunks in bytes, as a running sum.
    chunk_bytes: usize,
}

impl<T> Default for Named<T> {
    fn default() -> Self {
        Named { slots: Vec::new(), order: Vec::new(), free: NONE, len: 0, chunk_bytes: 0 }
    }
}

impl<T: HasName> Named<T> {
    pub(super) fn len(&self) -> usize {
        self.len as usize
    }

    /// Returns the size of the heap memory in bytes, excluding the memory that items own.
    pub(super) fn allocated_bytes(&self) -> usize {
        self.slots.capacity() * size_of::<Slot<T>>() + self.order.capacity() * size_of::<Vec<u32>>() + self.chunk_bytes
    }

    pub(super) fn get(&self, number: u32) -> Option<&T> {
        match self.slots.get(number as usize) {
            Some(Slot::Used(item)) => Some(item),
            _ => None,
        }
    }

    pub(super) fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        match self.slots.get_mut(number as usize) {
            Some(Slot::Used(item)) => Some(item),
            _ => None,
        }
    }

    /// Iterates over the items, ordered by name.
    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.order.iter().flatten().map(|&number| &self[number])
    }

    /// Calls `change` with each item, in no particular order.
    pub(super) fn for_each_mut(&mut self, mut change: impl FnMut(&mut T)) {
        for slot in &mut self.slots {
            if let Slot::Used(item) = slot {
                change(item);
            }
        }
    }

    /// Returns the place of the item with a name. If there is no such item, returns `Err` with the
    /// place at which [`Self::insert`] must add the item.
    pub(super) fn search(&self, name: &[u8]) -> Result<Place, Place> {
        let after = self.order.partition_point(|chunk| chunk.first().is_some_and(|&first| self[first].name() <= name));
        let Some(chunk) = after.checked_sub(1) else { return Err(Place { chunk: 0, index: 0 }) };
        match self.order[chunk].binary_search_by(|&number| self[number].name().cmp(name)) {
            Ok(index) => Ok(Place { chunk, index }),
            Err(index) => Err(Place { chunk, index }),
        }
    }

    /// Returns the number of the item at a place.
    pub(super) fn number_at(&self, place: Place) -> u32 {
        self.order[place.chunk][place.index]
    }

    /// Returns the number of the item with a name.
    pub(super) fn number_of(&self, name: &[u8]) -> Option<u32> {
        self.search(name).ok().map(|place| self.number_at(place))
    }

    /// Adds an item at the place that [`Self::search`] returned for the item's name. Returns the
    /// item's number.
    pub(super) fn insert(&mut self, place: Place, item: T) -> u32 {
        let number = self.free;
        let number = match self.slots.get_mut(number as usize) {
            Some(slot) => {
                if let Slot::Free(next) = std::mem::replace(slot, Slot::Used(item)) {
                    self.free = next;
                }
                number
            }
            None => {
                self.slots.push(Slot::Used(item));
                (self.slots.len() - 1) as u32
            }
        };
        let Place { mut chunk, mut index } = place;
        if self.order.is_empty() {
            self.order.push(Vec::new());
        } else if self.order[chunk].len() == CHUNK_MAX {
            // The last chunk is not split for an item at its end, so that items added in order fill
            // their chunks.
            let is_last = chunk + 1 == self.order.len() && index == CHUNK_MAX;
            let upper = self.change_chunk(chunk, |numbers| if is_last { Vec::new() } else { split(numbers) });
            self.chunk_bytes += bytes_of(&upper);
            self.order.insert(chunk + 1, upper);
            let len = self.order[chunk].len();
            if index > len || is_last {
                chunk += 1;
                index -= len;
            }
        }
        self.change_chunk(chunk, |numbers| numbers.insert(index, number));
        self.len += 1;
        number
    }

    /// Removes an item and returns it.
    pub(super) fn remove(&mut self, place: Place) -> Option<T> {
        let Place { chunk, index } = place;
        let number = self.change_chunk(chunk, |numbers| numbers.remove(index));
        self.len -= 1;
        let len = self.order[chunk].len();
        let next = self.order.get(chunk + 1).map_or(CHUNK_MAX, Vec::len);
        if len == 0 {
            self.remove_chunk(chunk);
        } else if len < MERGED_MAX / 2 && len + next <= MERGED_MAX {
            let moved = self.remove_chunk(chunk + 1);
            self.change_chunk(chunk, |numbers| numbers.extend(moved));
        }
        let slot = self.slots.get_mut(number as usize)?;
        match std::mem::replace(slot, Slot::Free(self.free)) {
            Slot::Used(item) => {
                self.free = number;
                Some(item)
            }
            Slot::Free(_) => None,
        }
    }

    fn remove_chunk(&mut self, chunk: usize) -> Vec<u32> {
        let numbers = self.order.remove(chunk);
        self.chunk_bytes -= bytes_of(&numbers);
        numbers
    }

    /// Changes a chunk and updates the running sum.
    fn change_chunk<R>(&mut self, chunk: usize, change: impl FnOnce(&mut Vec<u32>) -> R) -> R {
        let numbers = &mut self.order[chunk];
        let before = bytes_of(numbers);
        let result = change(numbers);
        self.chunk_bytes = self.chunk_bytes + bytes_of(numbers) - before;
        result
    }
}

fn bytes_of(numbers: &Vec<u32>) -> usize {
    numbers.capacity() * size_of::<u32>()
}

/// Removes and returns the upper half of a full chunk, with capacity for a full chunk.
fn split(numbers: &mut Vec<u32>) -> Vec<u32> {
    let mut upper = Vec::with_capacity(CHUNK_MAX);
    upper.extend(numbers.drain(CHUNK_MAX / 2..));
    upper
}

impl<T: HasName> Index<u32> for Named<T> {
    type Output = T;

    /// # Panics
    /// If no item has this number.
    fn index(&self, number: u32) -> &T {
        self.get(number).expect("an item has this number")
    }
}

impl<T: HasName> IndexMut<u32> for Named<T> {
    fn index_mut(&mut self, number: u32) -> &mut T {
        self.get_mut(number).expect("an item has this number")
    }
}

impl<T: Clone> Clone for Named<T> {
    /// Returns a copy without spare capacity.
    fn clone(&self) -> Self {
        let order = self.order.clone();
        let chunk_bytes = order.iter().map(bytes_of).sum();
        Named { slots: self.slots.clone(), order, free: self.free, len: self.len, chunk_bytes }
    }
}

impl<T: HasName + PartialEq> PartialEq for Named<T> {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::testing::Random;

    impl HasName for Vec<u8> {
        fn name(&self) -> &[u8] {
            self
        }
    }

    fn add(named: &mut Named<Vec<u8>>, name: &[u8]) -> Option<u32> {
        named.search(name).err().map(|place| named.insert(place, name.to_vec()))
    }

    fn check(named: &Named<Vec<u8>>, model: &BTreeMap<Vec<u8>, u32>) {
        assert_eq!(named.len(), model.len());
        assert!(named.iter().eq(model.keys()));
        for (name, &number) in model {
            assert_eq!((named.number_of(name), &named[number]), (Some(number), name));
        }
        let chunks: usize = named.order.iter().map(bytes_of).sum();
        assert_eq!(named.chunk_bytes, chunks);
        assert!(named.order.iter().all(|chunk| (1..=CHUNK_MAX).contains(&chunk.len())));
    }

    #[test]
    fn random_changes_agree_with_a_map() {
        let mut random = Random::with_printed_seed("named items");
        for _ in 0..20 {
            let (mut named, mut model) = (Named::default(), BTreeMap::new());
            let names = random.pick(&[5, 3_000]);
            for _ in 0..6_000 {
                let name = random.below(names).to_string().into_bytes();
                // The number of items alternately rises and falls.
                if random.below(3) > model.len() as u64 / 500 % 3 {
                    let number = add(&mut named, &name);
                    assert_eq!(number.is_some(), !model.contains_key(&name));
                    if let Some(number) = number {
                        model.insert(name, number);
                    }
                } else if let Ok(place) = named.search(&name) {
                    assert_eq!(model.remove(&name), Some(named.number_at(place)));
                    assert_eq!(named.remove(place), Some(name));
                } else {
                    assert!(!model.contains_key(&name));
                }
            }
            check(&named, &model);
            check(&named.clone(), &model);
            assert!(named.slots.len() <= names as usize, "free slots are reused");
            for name in model.keys() {
                let place = named.search(name).unwrap();
                named.remove(place).unwrap();
            }
            check(&named, &BTreeMap::new());
        }
    }

    /// For ascending and descending insertion, the number of chunks stays small.
    #[test]
    fn chunks_bound_the_moves() {
        let name = |number: u32| format!("{number:09}").into_bytes();
        for descending in [false, true] {
            let mut named = Named::default();
            for number in 0..20_000 {
                add(&mut named, &name(if descending { 20_000 - number } else { number })).unwrap();
            }
            assert!(named.order.len() <= 20_000 / (CHUNK_MAX / 2) + 1, "{}", named.order.len());
        }
    }
}
