//! A sorted sequence in chunks: nodes of a stream, pending entries of a group and of a consumer.
//!
//! What comes to a stream comes at its end, and what is trimmed or acknowledged goes mostly from its front; both are constant
//! time here. A place in the middle is found by two binary searches, and a change there moves at most one chunk: about 20 ns.
//! A tree would give the same bounds with more memory per item and two cache misses more.

use std::collections::VecDeque;

use super::id::StreamId;

/// Most items of a chunk.
const CHUNK_ITEMS_MAX: usize = 64;
/// Two neighbours that hold no more than this together become one.
const MERGED_ITEMS_MAX: usize = CHUNK_ITEMS_MAX / 2;
/// The last chunk of an emptied sequence is kept when it has no more room than this: a queue is empty often.
const KEPT_ITEMS_MAX: usize = 16;

/// An item that is ordered by a stream id of its own, which doesn't change.
pub(super) trait Keyed {
    fn key(&self) -> StreamId;
}

impl Keyed for StreamId {
    #[inline]
    fn key(&self) -> StreamId {
        *self
    }
}

/// Where an item stands; valid until the next change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    chunk: usize,
    index: usize,
}

/// See the head of this module. No chunk is empty but for the only one.
#[derive(Debug)]
pub(super) struct Ordered<T> {
    chunks: VecDeque<Vec<T>>,
    len: usize,
    /// Bytes of all chunks and of the table of chunks.
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

    /// Bytes of heap, without what the items themselves point to.
    pub(super) fn allocated_bytes(&self) -> usize {
        self.bytes
    }

    #[inline]
    pub(super) fn first(&self) -> Option<&T> {
        self.chunks.front()?.first()
    }

    #[inline]
    pub(super) fn last(&self) -> Option<&T> {
        self.chunks.back()?.last()
    }

    #[inline]
    pub(super) fn last_mut(&mut self) -> Option<&mut T> {
        self.chunks.back_mut()?.last_mut()
    }

    pub(super) fn first_place(&self) -> Option<Place> {
        (self.len > 0).then_some(Place { chunk: 0, index: 0 })
    }

    pub(super) fn last_place(&self) -> Option<Place> {
        let chunk = self.chunks.len().checked_sub(1)?;
        Some(Place { chunk, index: self.chunks[chunk].len().checked_sub(1)? })
    }

    #[inline]
    pub(super) fn get(&self, place: Place) -> &T {
        &self.chunks[place.chunk][place.index]
    }

    /// The item at a place, to be changed in everything but its key.
    #[inline]
    pub(super) fn get_mut(&mut self, place: Place) -> &mut T {
        &mut self.chunks[place.chunk][place.index]
    }

    pub(super) fn next(&self, place: Place) -> Option<Place> {
        let Place { chunk, index } = place;
        if index + 1 < self.chunks[chunk].len() {
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
        Some(Place { chunk, index: self.chunks[chunk].len() - 1 })
    }

    /// The last item whose key is at most `key`.
    pub(super) fn floor(&self, key: StreamId) -> Option<Place> {
        if self.last()?.key() <= key {
            return self.last_place();
        }
        let chunk = self.chunks.partition_point(|chunk| chunk[0].key() <= key).checked_sub(1)?;
        let index = self.chunks[chunk].partition_point(|item| item.key() <= key) - 1;
        Some(Place { chunk, index })
    }

    /// The first item whose key is at least `key`.
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

    /// The item of a key.
    #[inline]
    pub(super) fn find(&self, key: StreamId) -> Option<Place> {
        // Queues ask for their oldest item most of the time.
        let first = self.first()?.key();
        if first >= key {
            return if first == key { self.first_place() } else { None };
        }
        self.floor(key).filter(|&place| self.get(place).key() == key)
    }

    /// All items from a place on.
    pub(super) fn iter_from(&self, place: Option<Place>) -> impl Iterator<Item = &T> {
        let start = place.unwrap_or(Place { chunk: self.chunks.len(), index: 0 });
        let chunks = self.chunks.iter().enumerate().skip(start.chunk);
        chunks.flat_map(move |(at, chunk)| chunk[if at == start.chunk { start.index } else { 0 }..].iter())
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.chunks.iter().flatten()
    }

    /// Adds an item. `Err`: there is one of that key already, there.
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
        if self.chunks.back().is_none_or(|chunk| chunk.len() == CHUNK_ITEMS_MAX) {
            self.insert_chunk(self.chunks.len(), Vec::new());
        }
        let at = self.chunks.len() - 1;
        let len = self.chunks[at].len();
        self.insert_in_chunk(at, len, item);
    }

    fn insert_within(&mut self, item: T) -> Result<(), Place> {
        let key = item.key();
        let (mut chunk, mut index) = match self.floor(key) {
            None => (0, 0),
            Some(place) if self.get(place).key() == key => return Err(place),
            Some(place) => (place.chunk, place.index + 1),
        };
        if self.chunks[chunk].len() == CHUNK_ITEMS_MAX {
            let mut upper = Vec::new();
            upper.reserve_exact(CHUNK_ITEMS_MAX);
            upper.extend(self.chunks[chunk].drain(CHUNK_ITEMS_MAX / 2..));
            self.insert_chunk(chunk + 1, upper);
            if index > CHUNK_ITEMS_MAX / 2 {
                chunk += 1;
                index -= CHUNK_ITEMS_MAX / 2;
            }
        }
        self.insert_in_chunk(chunk, index, item);
        Ok(())
    }

    fn insert_chunk(&mut self, at: usize, chunk: Vec<T>) {
        let before = self.chunks.capacity();
        self.bytes += chunk.capacity() * size_of::<T>();
        self.chunks.insert(at, chunk);
        self.bytes += (self.chunks.capacity() - before) * size_of::<Vec<T>>();
    }

    fn insert_in_chunk(&mut self, chunk: usize, index: usize, item: T) {
        let chunk = &mut self.chunks[chunk];
        if chunk.len() == chunk.capacity() {
            let more = chunk.len().clamp(1, CHUNK_ITEMS_MAX - chunk.len());
            let before = chunk.capacity();
            chunk.reserve_exact(more);
            self.bytes += (chunk.capacity() - before) * size_of::<T>();
        }
        chunk.insert(index, item);
        self.len += 1;
    }

    /// Takes an item out.
    pub(super) fn remove(&mut self, place: Place) -> T {
        let chunk = &mut self.chunks[place.chunk];
        let item = chunk.remove(place.index);
        self.len -= 1;
        let (len, room) = (chunk.len(), chunk.capacity());
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
        let chunk = self.chunks.remove(at).unwrap_or_default();
        if self.chunks.len() < before / 4 {
            self.chunks.shrink_to(before / 2);
        }
        self.bytes -= (before - self.chunks.capacity()) * size_of::<Vec<T>>();
        self.bytes -= chunk.capacity() * size_of::<T>();
        chunk
    }

    /// Joins a small chunk with a neighbour that is small too, so that chunks don't stay behind nearly empty.
    fn merge(&mut self, at: usize) {
        let fits = |other: usize| {
            self.chunks.get(other).is_some_and(|chunk| chunk.len() + self.chunks[at].len() <= MERGED_ITEMS_MAX)
        };
        let (into, from) = if fits(at + 1) {
            (at, at + 1)
        } else if at > 0 && fits(at - 1) {
            (at - 1, at)
        } else {
            return;
        };
        let moved = self.remove_chunk(from);
        let chunk = &mut self.chunks[into];
        let before = chunk.capacity();
        chunk.reserve_exact(moved.len());
        chunk.extend(moved);
        self.bytes += (chunk.capacity() - before) * size_of::<T>();
    }
}

impl<T: PartialEq> PartialEq for Ordered<T> {
    fn eq(&self, other: &Self) -> bool {
        self.chunks.iter().flatten().eq(other.chunks.iter().flatten())
    }
}

impl<T: Eq> Eq for Ordered<T> {}

impl<T: Keyed + Clone> Clone for Ordered<T> {
    /// A copy without room to spare.
    fn clone(&self) -> Self {
        let mut copy = Ordered::default();
        let chunks: VecDeque<Vec<T>> = self.chunks.iter().filter(|chunk| !chunk.is_empty()).cloned().collect();
        let room: usize = chunks.iter().map(Vec::capacity).sum();
        copy.bytes = room * size_of::<T>() + chunks.capacity() * size_of::<Vec<T>>();
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
        let items: usize = ordered.chunks.iter().map(Vec::capacity).sum();
        items * size_of::<StreamId>() + ordered.chunks.capacity() * size_of::<Vec<StreamId>>()
    }

    fn check(ordered: &Ordered<StreamId>, model: &BTreeSet<StreamId>) {
        assert_eq!(ordered.len(), model.len());
        assert!(ordered.iter().eq(model.iter()));
        assert_eq!(ordered.allocated_bytes(), counted(ordered));
        assert!(ordered.chunks.len() <= 1 || ordered.chunks.iter().all(|chunk| !chunk.is_empty()));
        assert_eq!((ordered.first(), ordered.last()), (model.first(), model.last()));
    }

    #[test]
    fn random_changes_agree_with_a_plain_model() {
        let mut random = Random::announced("ordered");
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
                        // The oldest, as a queue is worked off.
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
