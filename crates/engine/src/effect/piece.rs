//! The pieces of which the merged stream is made. [`crate::effect`] defines unit, stream and log.

use std::ops::{Deref, Range};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use pantala_base::pool::POOLED_BYTES_MIN;
use pantala_base::{BufferPool, PooledBuffer, SharedBytes};

/// Bytes for a log: whole units of the merged stream, or bytes of a primary's stream. Dereferences
/// to the bytes.
#[derive(Debug)]
pub(crate) enum Piece {
    /// Bytes in a buffer of their own.
    Own(Vec<u8>),
    /// A range of a shared buffer. Either the buffer is the one in which a worker has recorded the
    /// units, or both logs of the journal share the piece.
    Part(Arc<PooledBuffer>, Range<usize>),
    /// A command that changes nothing (`PING`, a request for acknowledgements).
    Control(&'static [u8]),
}

impl Piece {
    /// Returns the piece. If its buffer is large enough for the pool but less than half full, moves
    /// the bytes to a shorter buffer.
    fn compact(self, pool: &BufferPool) -> Piece {
        match self {
            Piece::Own(bytes) if bytes.capacity() >= POOLED_BYTES_MIN && !is_worth_pooling(&bytes) => {
                let mut shorter = pool.take(bytes.len());
                shorter.extend_from_slice(&bytes);
                pool.give(bytes);
                Piece::Own(shorter)
            }
            piece => piece,
        }
    }

    /// Returns two pieces with the same bytes, for two logs. The pieces share their memory. Only a
    /// small piece is copied.
    pub(crate) fn into_two(self, pool: &Arc<BufferPool>) -> (Piece, Piece) {
        match self.compact(pool) {
            Piece::Own(bytes) if bytes.capacity() < POOLED_BYTES_MIN => (Piece::Own(bytes.clone()), Piece::Own(bytes)),
            Piece::Own(bytes) => {
                let range = 0..bytes.len();
                Piece::Part(Arc::new(PooledBuffer::new(bytes, pool)), range).into_two(pool)
            }
            Piece::Part(buffer, range) => (Piece::Part(Arc::clone(&buffer), range.clone()), Piece::Part(buffer, range)),
            Piece::Control(bytes) => (Piece::Control(bytes), Piece::Control(bytes)),
        }
    }

    /// Returns the bytes for readers. Adds the length of the bytes to `kept_bytes` until the bytes
    /// are dropped.
    pub(crate) fn into_shared(self, pool: &Arc<BufferPool>, kept_bytes: &Arc<AtomicU64>) -> Arc<SharedBytes> {
        match self.compact(pool) {
            Piece::Own(bytes) if is_worth_pooling(&bytes) => {
                let range = 0..bytes.len();
                SharedBytes::part(&Arc::new(PooledBuffer::new(bytes, pool)), range, kept_bytes)
            }
            Piece::Own(bytes) => SharedBytes::new(bytes, kept_bytes),
            Piece::Part(buffer, range) => SharedBytes::part(&buffer, range, kept_bytes),
            Piece::Control(bytes) => SharedBytes::new(bytes.to_vec(), kept_bytes),
        }
    }
}

impl Deref for Piece {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Piece::Own(bytes) => bytes,
            Piece::Part(buffer, range) => &buffer[range.clone()],
            Piece::Control(bytes) => bytes,
        }
    }
}

/// Returns whether a buffer is large enough for the pool, and at least half full. Readers and the
/// backlog may hold the buffer for a long time, and only the buffer's length counts towards their
/// bounds. So the buffer must have little unused capacity.
pub(crate) fn is_worth_pooling(bytes: &Vec<u8>) -> bool {
    bytes.capacity() >= POOLED_BYTES_MIN && bytes.len() >= bytes.capacity() / 2
}
