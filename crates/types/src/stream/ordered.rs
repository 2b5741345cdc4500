//! A sorted sequence in chunks. Such sequences hold the nodes of a stream, the pending entries of a
//! group, and the ids of a consumer's pending entries.
//!
//! Streams append at the end, and mostly trim and acknowledge at the front. Changes at either end
//! take constant time. Finding a place in the middle takes two binary searches. The first search
//! compares the bounds of chunks and reads no items. A change in the middle moves the items of at
//! most one chunk, which takes about 20 ns. A tree would have the same bounds, but take more memory
//! per item and two more cache misses.

use std::collections::VecDeque;

use super::id::StreamId;

/// Maximum number of items in a chunk.
const CHUNK_ITEMS_MAX: usize = 64;
/// Two adjacent chunks are merged if they have at most this many items in total.
const MERGED_ITEMS_MAX: usize = CHUNK_ITEMS_MAX / 2;
/// Maximum capacity, in items, of the chunk that an emptied sequence keeps. Queues are often empty.
/// Without a kept chunk, a queue would allocate a chunk for each item.
const KEPT_ITEMS_MAX: usize = 16;

/// An item that has a stream id as its key. The key never changes.
pub(super) trait Keyed {
    fn key(&self) -> StreamId;
}

impl Keyed for StreamId {
    #[inline]
    fn key(&self) -> StreamId {
        *self
    }
}

/// The position of an item, valid until the next change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    chunk: usize,
    index: usize,
}

/// Consecutive items.
#[derive(Clone, Debug)]
struct Chunk<T> {
    /// A lower bound of the keys in this chunk, greater than all keys in the preceding chunk.
    bound: StreamId,
    items: Vec<T>,
}

/// The sorted sequence described at the head of this module. A chunk is empty only if it is the
/// single chunk.
#[derive(Debug)]
pub(super) struct Ordered<T> {
    chunks: VecDeque<Chunk<T>>,
    len: usize,
    /// Heap memory of all chunks and of their table in bytes.
    bytes: usize,
}

impl<T> Default for Ordered<T> {
    fn default() -> Self {
        Ordered { chunks: VecDeque::new(), len: 0, bytes: 0 }
    }
}

impl<T: Keyed> Ordered<T> {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Returns the size of the heap memory in bytes, excluding the memory that items own.
    pub(super) fn allocated_bytes(&self) -> usize {
        self.bytes
    }

    #[inline]
    pub(super) fn first(&self) -> Option<&T> {
        self.chunks.front()?.items.first()
    }

    #[inline]
    pub(super) fn last(&self) -> Option<&T> {
        self.chunks.back()?.items.last()
    }

    #[inline]
    pub(super) fn last_mut(&mut self) -> Option<&mut T> {
        self.chunks.back_mut()?.items.last_mut()
    }

    pub(super) fn first_place(&self) -> Option<Place> {
        (self.len > 0).then_some(Place { chunk: 0, index: 0 })
    }

    pub(super) fn last_place(&self) -> Option<Place> {
        let chunk = self.chunks.len().checked_sub(1)?;
        Some(Place { chunk, index: self.chunks[chunk].items.len().checked_sub(1)? })
    }

    #[inline]
    pub(super) fn get(&self, place: Place) -> &T {
        &self.chunks[place.chunk].items[place.index]
    }

    /// Returns the item at a place. The caller must not change the item's key.
    #[inline]
    pub(super) fn get_mut(&mut self, place: Place) -> &mut T {
        &mut self.chunks[place.chunk].items[place.index]
    }

    pub(super) fn next(&self, place: Place) -> Option<Place> {
        let Place { chunk, index } = place;
        if index + 1 < self.chunks[chunk].items.len() {
            Some(Place { chunk, index: index + 1 })
        } else {
            (chunk + 1 < self.chunks.len()).then_some(Place { chunk: chunk + 1, index: 0 })
        }
    }

    pub(super) fn previous(&self, place: Place) -> Option<Place> {
        let Place { chunk, index } = place;
        if index > 0 {
            return Some(Place { chunk, index: index - 1 });
        }
        let chunk = chunk.checked_sub(1)?;
        Some(Place { chunk, index: self.chunks[chunk].items.len() - 1 })
    }

    /// Returns the place of the last item whose key is at most `key`.
    pub(super) fn floor(&self, key: StreamId) -> Option<Place> {
        if self.last()?.key() <= key {
            return self.last_place();
        }
        let Place { chunk, index } = self.place_above(key)?;
        match index.checked_sub(1) {
            Some(index) => Some(Place { chunk, index }),
            None => self.previous(Place { chunk, index }),
        }
    }

    /// Returns the place after the items whose keys are at most `key`, in the last chunk that may
    /// have such items. Returns `None` if no chunk may have such items.
    #[inline]
    fn place_above(&self, key: StreamId) -> Option<Place> {
        let chunk = self.chunks.partition_point(|chunk| chunk.bound <= key).checked_sub(1)?;
        Some(Place { chunk, index: self.chunks[chunk].items.partition_point(|item| item.key() <= key) })
    }

    /// Returns the place of the first item whose key is at least `key`.
    pub(super) fn ceil(&self, key: StreamId) -> Option<Place> {
        if self.first()?.key() >= key {
            return self.first_place();
        }
        match self.floor(key) {
            Some(place) if self.get(place).key() == key => Some(place),
            Some(place) => self.next(place),
            None => self.first_place(),
        }
    }

    /// Returns the place of the item with a key.
    #[inline]
    pub(super) fn find(&self, key: StreamId) -> Option<Place> {
        // Fast path: queues mostly look up their oldest item.
        let first = self.first()?.key();
        if first >= key {
            return if first == key { self.first_place() } else { None };
        }
        self.floor(key).filter(|&place| self.get(place).key() == key)
    }

    /// Iterates over the items, starting at a place.
    pub(super) fn iter_from(&self, place: Option<Place>) -> impl Iterator<Item = &T> {
        let start = place.unwrap_or(Place { chunk: self.chunks.len(), index: 0 });
        let chunks = self.chunks.iter().enumerate().skip(start.chunk);
        chunks.flat_map(move |(at, chunk)| chunk.items[if at == start.chunk { start.index } else { 0 }..].iter())
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.chunks.iter().flat_map(|chunk| &chunk.items)
    }

    /// Adds an item. If an item with the same key exists, returns `Err` with the existing item's
    /// place.
    #[inline]
    pub(super) fn insert(&mut self, item: T) -> Result<(), Place> {
        let key = item.key();
        if self.last().is_none_or(|last| last.key() < key) {
            self.push(item);
            return Ok(());
        }
        self.insert_within(item)
    }

    fn push(&mut self, item: T) {
        if self.chunks.back().is_none_or(|chunk| chunk.items.len() == CHUNK_ITEMS_MAX) {
            self.insert_chunk(self.chunks.len(), Chunk { bound: item.key(), items: Vec::new() });
        }
        let at = self.chunks.len() - 1;
        let len = self.chunks[at].items.len();
        self.insert_in_chunk(at, len, item);
    }

    fn insert_within(&mut self, item: T) -> Result<(), Place> {
        let key = item.key();
        let Place { mut chunk, mut index } = self.place_above(key).unwrap_or(Place { chunk: 0, index: 0 });
        if index > 0 && self.chunks[chunk].items[index - 1].key() == key {
            return Err(Place { chunk, index: index - 1 });
        }
        if self.chunks[chunk].items.len() == CHUNK_ITEMS_MAX {
            let mut upper = Vec::new();
            upper.reserve_exact(CHUNK_ITEMS_MAX);
            upper.extend(self.chunks[chunk].items.drain(CHUNK_ITEMS_MAX / 2..));
            self.insert_chunk(chunk + 1, Chunk { bound: upper[0].key(), items: upper });
            if index > CHUNK_ITEMS_MAX / 2 {
                chunk += 1;
                index -= CHUNK_ITEMS_MAX / 2;
            }
        }
        self.insert_in_chunk(chunk, index, item);
        Ok(())
    }

    fn insert_chunk(&mut self, at: usize, chunk: Chunk<T>) {
        let before = self.chunks.capacity();
        self.bytes += chunk.items.capacity() * size_of::<T>();
        self.chunks.insert(at, chunk);
        self.bytes += (self.chunks.capacity() - before) * size_of::<Chunk<T>>();
    }

    fn insert_in_chunk(&mut self, chunk: usize, index: usize, item: T) {
        let Chunk { bound, items } = &mut self.chunks[chunk];
        if items.is_empty() || item.key() < *bound {
            *bound = item.key();
        }
        if items.len() == items.capacity() {
            let more = items.len().clamp(1, CHUNK_ITEMS_MAX - items.len());
            let before = items.capacity();
            items.reserve_exact(more);
            self.bytes += (items.capacity() - before) * size_of::<T>();
        }
        items.insert(index, item);
        self.len += 1;
    }

    /// Removes an item and returns it.
    pub(super) fn remove(&mut self, place: Place) -> T {
        let items = &mut self.chunks[place.chunk].items;
        let item = items.remove(place.index);
        self.len -= 1;
        let (len, room) = (items.len(), items.capacity());
        if len == 0 {
            if self.chunks.len() > 1 || room > KEPT_ITEMS_MAX {
                self.remove_chunk(place.chunk);
            }
        } else if len < MERGED_ITEMS_MAX / 2 {
            self.merge(place.chunk);
        }
        item
    }

    fn remove_chunk(&mut self, at: usize) -> Vec<T> {
        let before = self.chunks.capacity();
        let items = self.chunks.remove(at).map(|chunk| chunk.items).unwrap_or_default();
        if self.chunks.len() < before / 4 {
            self.chunks.shrink_to(before / 2);
        }
        self.bytes -= (before - self.chunks.capacity()) * size_of::<Chunk<T>>();
        self.bytes -= items.capacity() * size_of::<T>();
        items
    }

    /// Merges a small chunk with a small neighbor, so that nearly empty chunks don't accumulate.
    fn merge(&mut self, at: usize) {
        let fits = |other: usize| {
            let len = |chunk: &Chunk<T>| chunk.items.len();
            self.chunks.get(other).is_some_and(|chunk| len(chunk) + len(&self.chunks[at]) <= MERGED_ITEMS_MAX)
        };
        let (into, from) = if fits(at + 1) {
            (at, at + 1)
        } else if at > 0 && fits(at - 1) {
            (at - 1, at)
        } else {
            return;
        };
        let moved = self.remove_chunk(from);
        let items = &mut self.chunks[into].items;
        let before = items.capacity();
        items.reserve_exact(moved.len());
        items.extend(moved);
        self.bytes += (items.capacity() - before) * size_of::<T>();
    }
}

impl<T: Keyed + PartialEq> PartialEq for Ordered<T> {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl<T: Keyed + Eq> Eq for Ordered<T> {}

impl<T: Keyed + Clone> Clone for Ordered<T> {
    /// Returns a copy without spare capacity.
    fn clone(&self) -> Self {
        let mut copy = Ordered::default();
        let chunks: VecDeque<Chunk<T>> = self.chunks.iter().filter(|chunk| !chunk.items.is_empty()).cloned().collect();
        let room: usize = chunks.iter().map(|chunk| chunk.items.capacity()).sum();
        copy.bytes = room * size_of::<T>() + chunks.capacity() * size_of::<Chunk<T>>();
        copy.chunks = chunks;
        copy.len = self.len;
        copy
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::testing::Random;

    fn counted(ordered: &Ordered<StreamId>) -> usize {
        let items: usize = ordered.chunks.iter().map(|chunk| chunk.items.capacity()).sum();
        items * size_of::<StreamId>() + ordered.chunks.capacity() * size_of::<Chunk<StreamId>>()
    }

    fn check(ordered: &Ordered<StreamId>, model: &BTreeSet<StreamId>) {
        assert_eq!(ordered.len(), model.len());
        assert!(ordered.iter().eq(model.iter()));
        assert_eq!(ordered.allocated_bytes(), counted(ordered));
        assert!(ordered.chunks.len() <= 1 || ordered.chunks.iter().all(|chunk| !chunk.items.is_empty()));
        assert_eq!((ordered.first(), ordered.last()), (model.first(), model.last()));
        let mut before = None;
        for Chunk { bound, items } in ordered.chunks.iter().filter(|chunk| !chunk.items.is_empty()) {
            assert!(items[0] >= *bound && before.is_none_or(|before| before < *bound));
            before = items.last().copied();
        }
    }

    #[test]
    fn random_changes_agree_with_a_plain_model() {
        let mut random = Random::with_printed_seed("ordered");
        for round in 0..60 {
            let (mut ordered, mut model) = (Ordered::default(), BTreeSet::<StreamId>::new());
            let span = 1 + random.below(2_000);
            for step in 0..1_500 {
                let id = StreamId { ms: random.below(span), seq: random.below(2) };
                match random.below(if step < 900 { 10 } else { 3 } + 2) {
                    0 => {
                        let place = ordered.find(id);
                        assert_eq!(place.is_some(), model.remove(&id));
                        if let Some(place) = place {
                            assert_eq!(ordered.remove(place), id);
                        }
                    }
                    1 => {
                        // Removes the oldest item, as a consumer of a queue does.
                        if let Some(place) = ordered.first_place() {
                            assert_eq!(Some(ordered.remove(place)), model.pop_first());
                        }
                    }
                    2 if round % 2 == 0 => {
                        let next = model.last().map_or(0, |last| last.ms) + 1;
                        let id = StreamId { ms: next, seq: 0 };
                        assert!(ordered.insert(id).is_ok() && model.insert(id));
                    }
                    _ => match ordered.insert(id) {
                        Ok(()) => assert!(model.insert(id)),
                        Err(place) => assert_eq!(*ordered.get(place), id),
                    },
                }
                let probe = StreamId { ms: random.below(span), seq: 0 };
                assert_eq!(ordered.floor(probe).map(|at| ordered.get(at)), model.range(..=probe).next_back());
                assert_eq!(ordered.ceil(probe).map(|at| ordered.get(at)), model.range(probe..).next());
                assert!(ordered.iter_from(ordered.ceil(probe)).eq(model.range(probe..)));
                let back = ordered.ceil(probe).and_then(|at| ordered.previous(at)).map(|at| ordered.get(at));
                if ordered.ceil(probe).is_some() {
                    assert_eq!(back, model.range(..probe).next_back());
                }
            }
            check(&ordered, &model);
            check(&ordered.clone(), &model);
        }
    }

    #[test]
    fn an_emptied_queue_keeps_little() {
        let mut ordered = Ordered::default();
        for ms in 0..1_000 {
            ordered.insert(StreamId { ms, seq: 0 }).unwrap();
        }
        while let Some(place) = ordered.first_place() {
            ordered.remove(place);
        }
        check(&ordered, &BTreeSet::new());
        assert!(ordered.allocated_bytes() < 500, "{}", ordered.allocated_bytes());
        assert_eq!((ordered.first_place(), ordered.last_place()), (None, None));
        assert_eq!(ordered.floor(StreamId::MAX), None);
    }
}
