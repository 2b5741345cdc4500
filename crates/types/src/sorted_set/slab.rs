//! A slab: nodes of one size, stored in chunks. Each node has a stable id. A tree stores its leaves
//! in one slab and its inner nodes in another.

/// A slab of nodes. A chunk holds `1 << BITS` nodes.
#[derive(Clone, Debug)]
pub(super) struct Slab<T, const BITS: u32> {
    chunks: Vec<Vec<T>>,
    free: Vec<u32>,
    /// Bytes of the chunks.
    bytes: usize,
}

/// Initial capacity of the first chunk, in nodes.
const FIRST_NODES: usize = 2;

impl<T: Clone, const BITS: u32> Slab<T, BITS> {
    pub(super) fn new() -> Self {
        Slab { chunks: Vec::new(), free: Vec::new(), bytes: 0 }
    }

    /// Returns the size of the slab's heap memory in bytes. Takes constant time.
    pub(super) fn allocated_bytes(&self) -> usize {
        self.bytes + self.chunks.capacity() * size_of::<Vec<T>>() + self.free.capacity() * size_of::<u32>()
    }

    /// Returns a copy without spare capacity.
    pub(super) fn copy(&self) -> Self {
        let mut copy = self.clone();
        copy.bytes = copy.chunks.iter().map(|chunk| chunk.capacity() * size_of::<T>()).sum();
        copy
    }

    #[inline]
    pub(super) fn get(&self, id: u32) -> &T {
        &self.chunks[(id >> BITS) as usize][id as usize % (1 << BITS)]
    }

    #[inline]
    pub(super) fn get_mut(&mut self, id: u32) -> &mut T {
        &mut self.chunks[(id >> BITS) as usize][id as usize % (1 << BITS)]
    }

    pub(super) fn add(&mut self, node: T) -> u32 {
        if let Some(id) = self.free.pop() {
            *self.get_mut(id) = node;
            return id;
        }
        let full = self.chunks.last().is_none_or(|chunk| chunk.len() == 1 << BITS);
        if full {
            // The first chunk grows with the set.
            let chunk = if self.chunks.is_empty() { Vec::new() } else { Vec::with_capacity(1 << BITS) };
            self.bytes += chunk.capacity() * size_of::<T>();
            self.chunks.push(chunk);
        }
        let number = self.chunks.len() - 1;
        let chunk = &mut self.chunks[number];
        let (len, before) = (chunk.len(), chunk.capacity());
        if len == before {
            let wanted = (len * 2).max(FIRST_NODES).min(1 << BITS);
            chunk.reserve_exact(wanted - len);
            self.bytes += (chunk.capacity() - before) * size_of::<T>();
        }
        chunk.push(node);
        (number << BITS | len) as u32
    }

    /// Frees a node. The node's memory is kept for the next node that is added.
    pub(super) fn remove(&mut self, id: u32) {
        self.free.push(id);
    }
}
