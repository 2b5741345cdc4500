//! Buffers that are reused, so that a steady stream of bytes needs no new memory from the kernel.
//!
//! The allocator returns a freed large block to the kernel after a moment. At the next allocation
//! the kernel must clear each page again. A pool keeps such blocks instead, up to a bound.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Minimum capacity of a pooled buffer, in bytes. The allocator reuses smaller blocks itself.
pub const POOLED_BYTES_MIN: usize = 64 * 1024;

/// Maximum sum of the capacities of a pool's buffers, in bytes.
const POOL_BYTES_MAX: usize = 32 * 1024 * 1024;

/// Length in bytes up to which the capacity of a new buffer is a power of two. With few different
/// capacities, a pooled buffer is more likely to fit the next request.
const ROUNDED_BYTES_MAX: usize = 1024 * 1024;

/// Maximum ratio of a pooled buffer's capacity to the requested number of bytes.
const EXCESS_MAX: usize = 2;

/// Empty buffers, from the least to the most recently returned.
#[derive(Debug, Default)]
struct Spare {
    buffers: VecDeque<Vec<u8>>,
    bytes: usize,
}

/// A pool of empty buffers. See the head of this module.
#[derive(Debug, Default)]
pub struct BufferPool(Mutex<Spare>);

impl BufferPool {
    fn spare(&self) -> MutexGuard<'_, Spare> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns an empty buffer for at least `bytes` bytes. The capacity of a pooled buffer is at
    /// most twice `bytes`.
    pub fn take(&self, bytes: usize) -> Vec<u8> {
        if bytes >= POOLED_BYTES_MIN {
            let mut spare = self.spare();
            let fits = |buffer: &Vec<u8>| (bytes..=bytes.saturating_mul(EXCESS_MAX)).contains(&buffer.capacity());
            // The most recently returned buffer is the most likely to be in a cache.
            let found = spare.buffers.iter().rposition(fits);
            if let Some(buffer) = found.and_then(|found| spare.buffers.remove(found)) {
                spare.bytes -= buffer.capacity();
                return buffer;
            }
            if bytes <= ROUNDED_BYTES_MAX {
                return Vec::with_capacity(bytes.next_power_of_two());
            }
        }
        Vec::with_capacity(bytes)
    }

    /// Keeps a buffer for later. Frees it if it is too small or too large to be pooled.
    pub fn give(&self, mut buffer: Vec<u8>) {
        if !(POOLED_BYTES_MIN..=POOL_BYTES_MAX).contains(&buffer.capacity()) {
            return;
        }
        buffer.clear();
        let mut freed = Vec::new();
        let mut spare = self.spare();
        spare.bytes += buffer.capacity();
        spare.buffers.push_back(buffer);
        while spare.bytes > POOL_BYTES_MAX {
            let oldest = spare.buffers.pop_front().unwrap_or_default();
            spare.bytes -= oldest.capacity();
            freed.push(oldest);
        }
        // Memory is freed without the lock.
        drop(spare);
    }

    /// Frees all buffers of the pool.
    pub fn clear(&self) {
        drop(std::mem::take(&mut *self.spare()));
    }

    /// Returns the sum of the capacities of the pool's buffers, in bytes.
    pub fn spare_bytes(&self) -> usize {
        self.spare().bytes
    }
}

/// A filled buffer. Returns to its pool when it is dropped.
#[derive(Debug)]
pub struct PooledBuffer {
    bytes: Vec<u8>,
    pool: Arc<BufferPool>,
}

impl PooledBuffer {
    /// Returns a buffer of `bytes` that returns to `pool` when it is dropped.
    pub fn new(bytes: Vec<u8>, pool: &Arc<BufferPool>) -> Self {
        PooledBuffer { bytes, pool: Arc::clone(pool) }
    }
}

impl std::ops::Deref for PooledBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for PooledBuffer {
    fn drop(&mut self) {
        self.pool.give(std::mem::take(&mut self.bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_buffer_is_taken_again_by_a_request_of_its_size() {
        let pool = Arc::new(BufferPool::default());
        let mut bytes = pool.take(POOLED_BYTES_MIN);
        bytes.push(7);
        let address = bytes.as_ptr();
        let buffer = PooledBuffer::new(bytes, &pool);
        assert_eq!((&buffer[..], pool.spare_bytes()), (&[7][..], 0));
        drop(buffer);
        assert_eq!(pool.spare_bytes(), POOLED_BYTES_MIN);
        let others = [POOLED_BYTES_MIN + 1, POOLED_BYTES_MIN / 4].map(|bytes| pool.take(bytes));
        assert!(others.iter().all(|buffer| buffer.as_ptr() != address), "too small or too large");
        let again = pool.take(POOLED_BYTES_MIN);
        assert_eq!((again.as_ptr(), again.len(), pool.spare_bytes()), (address, 0, 0));
    }

    #[test]
    fn a_pool_is_bounded_and_drops_what_was_returned_first() {
        let pool = BufferPool::default();
        let each = POOL_BYTES_MAX / 4;
        for extra in 0..5 {
            pool.give(Vec::with_capacity(each - extra));
        }
        assert_eq!(pool.spare_bytes(), 4 * each - (1 + 2 + 3 + 4));
        pool.give(Vec::with_capacity(POOL_BYTES_MAX + 1));
        pool.give(Vec::with_capacity(POOLED_BYTES_MIN - 1));
        assert_eq!(pool.spare_bytes(), 4 * each - (1 + 2 + 3 + 4));
        pool.clear();
        assert_eq!(pool.spare_bytes(), 0);
    }
}
