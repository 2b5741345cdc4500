//! A growable array that consists of chunks, so that growing never copies more than one chunk. A
//! [`crate::table`] consists of two such arrays.
//!
//! An array of up to 16 Ki elements grows by a quarter of its length, a longer array by whole
//! chunks. The capacity of all chunks is kept as a running sum, so the memory usage is known in
//! constant time.

/// Binary logarithm of [`CHUNK_LEN`].
const CHUNK_BITS: u32 = 12;
/// Number of elements in a full chunk.
const CHUNK_LEN: usize = 1 << CHUNK_BITS;
/// Initial capacity of the first chunk, in elements.
const FIRST_LEN: usize = 4;
/// A full array grows by its length divided by this. The growth ends at the end of the current
/// chunk at the latest.
const GROWTH_DIVISOR: usize = 4;

/// The array described at the head of this module. All chunks before the last nonempty one have
/// [`CHUNK_LEN`] elements. At most one empty chunk follows the last nonempty one.
#[derive(Debug)]
pub(crate) struct Chunked<T> {
    chunks: Vec<Vec<T>>,
    len: usize,
    /// Capacity of all chunks, in elements.
    capacity: usize,
}

impl<T> Chunked<T> {
    pub(crate) const fn new() -> Self {
        Chunked { chunks: Vec::new(), len: 0, capacity: 0 }
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns the size of the array's heap memory in bytes, excluding the memory that the elements
    /// own.
    #[inline]
    pub(crate) fn allocated_bytes(&self) -> usize {
        self.capacity * size_of::<T>() + self.chunks.capacity() * size_of::<Vec<T>>()
    }

    #[inline]
    pub(crate) fn get(&self, index: usize) -> &T {
        &self.chunks[index >> CHUNK_BITS][index & (CHUNK_LEN - 1)]
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, index: usize) -> &mut T {
        &mut self.chunks[index >> CHUNK_BITS][index & (CHUNK_LEN - 1)]
    }

    #[inline]
    pub(crate) fn push(&mut self, value: T) {
        let chunk = self.len >> CHUNK_BITS;
        if self.chunks.get(chunk).is_none_or(|chunk| chunk.len() == chunk.capacity()) {
            self.grow(chunk, (self.len / GROWTH_DIVISOR).max(FIRST_LEN));
        }
        self.chunks[chunk].push(value);
        self.len += 1;
    }

    /// Allocates capacity for a total of `len` elements, or only up to the end of the current chunk
    /// if that is less. Called before elements are added, if their number is known.
    pub(crate) fn reserve(&mut self, len: usize) {
        let chunk = self.len >> CHUNK_BITS;
        let have = self.chunks.get(chunk).map_or(0, Vec::capacity);
        let wanted = len.saturating_sub(chunk << CHUNK_BITS).min(CHUNK_LEN);
        if wanted > have {
            self.grow(chunk, wanted - (self.len & (CHUNK_LEN - 1)));
        }
    }

    #[cold]
    fn grow(&mut self, chunk: usize, by: usize) {
        if chunk == self.chunks.len() {
            self.chunks.push(Vec::new());
        }
        let chunk = &mut self.chunks[chunk];
        let before = chunk.capacity();
        chunk.reserve_exact(by.min(CHUNK_LEN - chunk.len()));
        self.capacity += chunk.capacity() - before;
    }

    /// Removes and returns the last element.
    pub(crate) fn pop(&mut self) -> Option<T> {
        let last = self.len.checked_sub(1)?;
        let value = self.chunks[last >> CHUNK_BITS].pop();
        self.len = last;
        self.shrink();
        value
    }

    /// Removes and returns the element at `index`. The last element moves to `index`.
    pub(crate) fn swap_remove(&mut self, index: usize) -> Option<T> {
        let last = self.pop()?;
        if index == self.len { Some(last) } else { Some(std::mem::replace(self.get_mut(index), last)) }
    }

    /// Releases unused memory, except for a reserve: otherwise alternating additions and removals
    /// at the end of a chunk would allocate each time. An empty chunk is kept while more than half
    /// of the chunk before it is used. If the array has a single chunk and less than a quarter of
    /// it is used, the chunk shrinks to twice the length of the array.
    fn shrink(&mut self) {
        let keep = (self.len + CHUNK_LEN / 2).div_ceil(CHUNK_LEN);
        if self.chunks.len() > keep {
            self.chunks.truncate(keep);
            self.capacity = self.chunks.iter().map(Vec::capacity).sum();
        }
        if let [only] = self.chunks.as_mut_slice()
            && only.capacity() > FIRST_LEN
            && only.len() < only.capacity() / 4
        {
            only.shrink_to((only.len() * 2).max(FIRST_LEN));
            self.capacity = only.capacity();
        }
    }

    /// Iterates over all elements in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.chunks.iter().flatten()
    }
}

impl<T: Clone> Clone for Chunked<T> {
    fn clone(&self) -> Self {
        let chunks: Vec<Vec<T>> = self.chunks.iter().filter(|chunk| !chunk.is_empty()).cloned().collect();
        let capacity = chunks.iter().map(Vec::capacity).sum();
        Chunked { chunks, len: self.len, capacity }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Random;

    fn check(array: &Chunked<u32>, model: &[u32]) {
        assert_eq!(array.len(), model.len());
        assert_eq!(array.capacity, array.chunks.iter().map(Vec::capacity).sum::<usize>());
        assert!(array.chunks.len() <= model.len() / CHUNK_LEN + 2);
    }

    #[test]
    fn random_changes_agree_with_a_vector() {
        let mut random = Random::with_printed_seed("chunked");
        let (mut array, mut model) = (Chunked::new(), Vec::new());
        for round in 0..12 {
            // Even rounds grow the array to several chunks. Odd rounds shrink the array, usually to
            // nothing.
            let grow = round % 2 == 0;
            for _ in 0..random.below(5 * CHUNK_LEN as u64) {
                if random.one_in(3) == grow && !model.is_empty() {
                    let index = random.below(model.len() as u64) as usize;
                    assert_eq!(array.swap_remove(index), Some(model.swap_remove(index)));
                } else {
                    let value = random.next() as u32;
                    array.push(value);
                    model.push(value);
                }
                check(&array, &model);
            }
            assert!(array.iter().eq(&model));
            assert!(array.clone().iter().eq(&model));
        }
        while let Some(value) = array.pop() {
            assert_eq!(Some(value), model.pop());
            check(&array, &model);
        }
        assert!(array.capacity <= FIRST_LEN, "{} left", array.capacity);
    }

    #[test]
    fn growing_allocates_a_quarter_ahead_and_reserve_exactly() {
        let mut array = Chunked::<u64>::new();
        for n in 0..3 * CHUNK_LEN as u64 {
            array.push(n);
            assert!(array.capacity <= (array.len() + array.len() / 4 + FIRST_LEN).max(array.len() + 1));
        }
        let mut array = Chunked::<u64>::new();
        array.reserve(1000);
        assert_eq!(array.capacity, 1000);
        array.reserve(10);
        assert_eq!(array.capacity, 1000);
    }
}
