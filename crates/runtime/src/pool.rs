//! Receive buffers of the epoll backend.
//!
//! Small receives are packed into the *current* buffer. Once all its chunks are released, the
//! buffer is reused from its start. So a turn (one iteration of the loop) with 50 connections and
//! 300 bytes each touches 16 KB, which stay in the first-level cache. With 50 separate buffers, the
//! first bytes of all buffers would compete for the same few cache sets.

use crate::{Chunk, RECEIVE_BYTES_MAX};

/// Bytes of one buffer.
pub(crate) const BUFFER_BYTES: usize = 64 * 1024;
/// Minimum space offered to a receive, bytes.
const ROOM_BYTES_MIN: usize = 16 * 1024;
/// Maximum number of buffers of one loop (128 MB). Reached only if chunks are held beyond the turn,
/// or if many connections have full queues in one turn.
pub(crate) const BUFFERS_MAX: usize = 2048;
/// Maximum number of free buffers that keep their memory.
const FREE_BUFFERS_MAX: usize = 16;

struct Buffer {
    /// Empty while the buffer has no memory.
    bytes: Box<[u8]>,
    /// Number of bytes in use, from the start.
    filled: usize,
    /// Number of chunks that the caller holds.
    lent: u32,
}

pub(crate) struct Pool {
    buffers: Vec<Buffer>,
    /// Buffers with memory and without lent chunks, except the current one.
    free: Vec<u32>,
    /// Buffers without memory.
    hollow: Vec<u32>,
    /// The buffer that is being filled. When less than [`ROOM_BYTES_MIN`] of it is unused, another
    /// buffer becomes the current one.
    current: Option<u32>,
}

impl Pool {
    pub(crate) fn new() -> Self {
        Pool { buffers: Vec::new(), free: Vec::new(), hollow: Vec::new(), current: None }
    }

    /// Returns space for a receive, or `None` if the caller holds all buffers.
    pub(crate) fn room(&mut self) -> Option<&mut [u8]> {
        let current = self.current_with_room()?;
        let buffer = &mut self.buffers[current as usize];
        Some(&mut buffer.bytes[buffer.filled..])
    }

    fn current_with_room(&mut self) -> Option<u32> {
        if let Some(current) = self.current {
            let filled = self.buffers[current as usize].filled;
            if BUFFER_BYTES - filled >= ROOM_BYTES_MIN {
                return Some(current);
            }
            // The buffer becomes free when its last chunk is released. It has at least one lent
            // chunk, because otherwise `filled` would be 0.
            self.current = None;
        }
        let next = self.free.pop().or_else(|| self.refill()).or_else(|| self.grow())?;
        self.current = Some(next);
        Some(next)
    }

    fn refill(&mut self) -> Option<u32> {
        let index = self.hollow.pop()?;
        self.buffers[index as usize].bytes = vec![0; BUFFER_BYTES].into_boxed_slice();
        Some(index)
    }

    fn grow(&mut self) -> Option<u32> {
        if self.buffers.len() == BUFFERS_MAX {
            return None;
        }
        self.buffers.push(Buffer { bytes: vec![0; BUFFER_BYTES].into_boxed_slice(), filled: 0, lent: 0 });
        u32::try_from(self.buffers.len() - 1).ok()
    }

    /// Lends the first `len_bytes` of the space that the last call of `room` returned.
    pub(crate) fn lend(&mut self, len_bytes: usize) -> Chunk {
        let current = self.current.expect("room was asked for");
        let buffer = &mut self.buffers[current as usize];
        let start = buffer.filled;
        buffer.filled += len_bytes;
        assert!(
            len_bytes > 0 && len_bytes <= RECEIVE_BYTES_MAX && buffer.filled <= BUFFER_BYTES,
            "lent more than there was room for"
        );
        buffer.lent += 1;
        // Both values are at most BUFFER_BYTES.
        Chunk { buffer: current, start: start as u32, len_bytes: len_bytes as u32, lender: 0 }
    }

    #[inline]
    pub(crate) fn bytes(&self, chunk: &Chunk) -> &[u8] {
        let start = chunk.start as usize;
        &self.buffers[chunk.buffer as usize].bytes[start..start + chunk.len()]
    }

    /// Returns the number of unused bytes at the end of a chunk's buffer.
    pub(crate) fn room_after(&self, chunk: &Chunk) -> usize {
        BUFFER_BYTES - self.buffers[chunk.buffer as usize].filled
    }

    #[inline]
    pub(crate) fn bytes_mut(&mut self, chunk: &Chunk) -> &mut [u8] {
        let start = chunk.start as usize;
        &mut self.buffers[chunk.buffer as usize].bytes[start..start + chunk.len()]
    }

    pub(crate) fn release(&mut self, chunk: &Chunk) {
        let buffer = &mut self.buffers[chunk.buffer as usize];
        assert!(buffer.lent > 0, "a chunk of another loop was released");
        buffer.lent -= 1;
        if buffer.lent > 0 {
            return;
        }
        buffer.filled = 0;
        if self.current == Some(chunk.buffer) {
            return;
        }
        if self.free.len() < FREE_BUFFERS_MAX {
            self.free.push(chunk.buffer);
        } else {
            buffer.bytes = Box::default();
            self.hollow.push(chunk.buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_receives_share_a_buffer_that_starts_over() {
        let mut pool = Pool::new();
        let first = {
            pool.room().unwrap()[..3].copy_from_slice(b"abc");
            pool.lend(3)
        };
        let second = {
            pool.room().unwrap()[..2].copy_from_slice(b"de");
            pool.lend(2)
        };
        assert_eq!((pool.bytes(&first), pool.bytes(&second)), (&b"abc"[..], &b"de"[..]));
        assert_eq!(first.buffer, second.buffer);
        pool.bytes_mut(&first)[0] = b'x';
        assert_eq!(pool.bytes(&first), b"xbc");
        pool.release(&first);
        assert_eq!(pool.bytes(&second), b"de");
        pool.release(&second);
        assert_eq!(pool.room().unwrap().len(), BUFFER_BYTES);
        assert_eq!(pool.buffers.len(), 1);
    }

    #[test]
    fn holds_the_bound_and_recovers() {
        let mut pool = Pool::new();
        let mut held = Vec::new();
        while let Some(room) = pool.room() {
            let len_bytes = room.len();
            held.push(pool.lend(len_bytes));
        }
        assert_eq!(held.len(), BUFFERS_MAX);
        let last = held.pop().unwrap();
        pool.release(&last);
        assert!(pool.room().is_some(), "a released buffer is found again");
        for chunk in &held {
            pool.release(chunk);
        }
        let kept: usize = pool.buffers.iter().map(|buffer| buffer.bytes.len()).sum();
        assert!(kept <= (FREE_BUFFERS_MAX + 1) * BUFFER_BYTES, "{kept} bytes kept");
        assert!(pool.hollow.len() + pool.free.len() + 1 == BUFFERS_MAX);
    }
}
