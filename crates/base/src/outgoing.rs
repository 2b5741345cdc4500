//! Bytes to send, owned by one send or shared by several.

use std::ops::{Deref, Range};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::pool::PooledBuffer;

/// Memory of [`SharedBytes`].
#[derive(Debug)]
enum Memory {
    Own(Vec<u8>),
    /// A part of a buffer.
    Part(Arc<PooledBuffer>, Range<usize>),
}

/// Immutable bytes shared by several sends, on any event loop. A counter includes their length
/// until the last owner drops them.
#[derive(Debug)]
pub struct SharedBytes {
    memory: Memory,
    kept_bytes: Arc<AtomicU64>,
}

impl SharedBytes {
    /// Returns bytes to share. Adds their length to `kept_bytes` until they are dropped.
    ///
    /// # Panics
    /// If `bytes` is empty, because there are no empty sends.
    pub fn new(mut bytes: Vec<u8>, kept_bytes: &Arc<AtomicU64>) -> Arc<Self> {
        assert!(!bytes.is_empty(), "shared bytes are empty");
        // The bytes may live long, so they must not waste memory.
        bytes.shrink_to_fit();
        Self::count(Memory::Own(bytes), kept_bytes)
    }

    /// Returns a part of a buffer to share. Counts the part's length as [`SharedBytes::new`] does.
    ///
    /// # Panics
    /// If the part is empty, or not within the buffer.
    pub fn part(buffer: &Arc<PooledBuffer>, range: Range<usize>, kept_bytes: &Arc<AtomicU64>) -> Arc<Self> {
        assert!(!buffer[range.clone()].is_empty(), "shared bytes are empty");
        Self::count(Memory::Part(Arc::clone(buffer), range), kept_bytes)
    }

    fn count(memory: Memory, kept_bytes: &Arc<AtomicU64>) -> Arc<Self> {
        let shared = SharedBytes { memory, kept_bytes: Arc::clone(kept_bytes) };
        kept_bytes.fetch_add(shared.len() as u64, Relaxed);
        Arc::new(shared)
    }
}

impl Deref for SharedBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.memory {
            Memory::Own(bytes) => bytes,
            Memory::Part(buffer, range) => &buffer[range.clone()],
        }
    }
}

impl Drop for SharedBytes {
    fn drop(&mut self) {
        self.kept_bytes.fetch_sub(self.len() as u64, Relaxed);
    }
}

/// The bytes of one send.
#[derive(Debug)]
pub enum Outgoing {
    /// Bytes of this send alone.
    Own(Vec<u8>),
    /// Bytes shared with other sends.
    Shared(Arc<SharedBytes>),
}

impl From<Vec<u8>> for Outgoing {
    #[inline]
    fn from(bytes: Vec<u8>) -> Self {
        Outgoing::Own(bytes)
    }
}

impl From<Arc<SharedBytes>> for Outgoing {
    fn from(bytes: Arc<SharedBytes>) -> Self {
        Outgoing::Shared(bytes)
    }
}

impl Outgoing {
    /// Returns the bytes. The address of the bytes stays the same while `self` lives, even if
    /// `self` is moved.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        match self {
            Outgoing::Own(bytes) => bytes,
            Outgoing::Shared(bytes) => bytes,
        }
    }

    /// Returns the memory as an empty buffer, for reuse after the send. For shared bytes the buffer
    /// has no capacity.
    #[inline]
    pub fn into_buffer(self) -> Vec<u8> {
        match self {
            Outgoing::Own(mut buffer) => {
                buffer.clear();
                buffer
            }
            Outgoing::Shared(_) => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::{BufferPool, POOLED_BYTES_MIN};

    #[test]
    fn shared_bytes_are_counted_once_until_the_last_drop() {
        let kept_bytes = Arc::new(AtomicU64::new(0));
        let shared = SharedBytes::new(vec![7; 100], &kept_bytes);
        let sends: Vec<Outgoing> = (0..5).map(|_| Arc::clone(&shared).into()).collect();
        assert!(sends.iter().all(|send| send.bytes().as_ptr() == shared.as_ptr() && send.bytes() == [7; 100]));
        drop(shared);
        assert_eq!(kept_bytes.load(Relaxed), 100);
        assert!(sends.into_iter().all(|send| send.into_buffer().capacity() == 0));
        assert_eq!(kept_bytes.load(Relaxed), 0);
    }

    #[test]
    fn parts_count_their_own_bytes_and_return_the_buffer_with_the_last_of_them() {
        let (kept_bytes, pool) = (Arc::new(AtomicU64::new(0)), Arc::new(BufferPool::default()));
        let buffer = Arc::new(PooledBuffer::new(vec![3; POOLED_BYTES_MIN], &pool));
        let parts = [0..10, 10..30].map(|range| SharedBytes::part(&buffer, range, &kept_bytes));
        drop(buffer);
        assert_eq!((parts[1].len(), parts[1].as_ptr()), (20, parts[0][10..].as_ptr()));
        assert_eq!((kept_bytes.load(Relaxed), pool.spare_bytes()), (30, 0));
        drop(parts);
        assert_eq!((kept_bytes.load(Relaxed), pool.spare_bytes()), (0, POOLED_BYTES_MIN));
    }

    #[test]
    fn an_owned_buffer_is_returned_empty_with_its_memory() {
        let buffer = Outgoing::from(vec![1, 2, 3]).into_buffer();
        assert!(buffer.is_empty() && buffer.capacity() >= 3);
    }
}
