//! The pieces of a large entry that is not completely encoded.
//!
//! The pieces stay in memory until the entry is complete. Then the snapshot's thread frees them. If
//! each piece had a block of its worker's heap, the memory would return to that heap. The worker
//! would then return it to the kernel in one turn (iteration of its event loop), which may take
//! many milliseconds. So the pieces of a long entry share buffers that are kernel mappings of their
//! own (`pantala_base::allocator`). The thread that frees such a buffer returns it to the kernel at
//! once. These mappings have no huge pages either, so a piece never waits until the kernel has
//! cleared 2 MiB.

use pantala_base::block::MAPPED_BYTES_MIN;

/// Minimum length of an entry whose next pieces share buffers. For a shorter entry, a mapping would
/// cost too much.
const SHARED_BYTES_MIN: u64 = 1024 * 1024;

/// A piece starts a new buffer if the current buffer has less room than this. A piece with a longer
/// element makes its buffer grow.
const ROOM_BYTES: usize = 64 * 1024;

/// The encoded pieces of an entry.
#[derive(Default)]
pub(super) struct Pieces {
    buffers: Vec<Vec<u8>>,
    bytes: u64,
}

impl Pieces {
    /// Creates the pieces of an entry, with its encoded head.
    pub(super) fn starting_with(head: Vec<u8>) -> Self {
        Pieces { bytes: head.len() as u64, buffers: vec![head] }
    }

    /// Returns the length of all pieces.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Adds the piece that `encode` appends to a buffer. Returns the result of `encode`.
    pub(super) fn append<T>(&mut self, encode: impl FnOnce(&mut Vec<u8>) -> T) -> T {
        let mut buffer = match self.buffers.pop_if(|last| last.capacity() - last.len() >= ROOM_BYTES) {
            Some(buffer) => buffer,
            None if self.bytes < SHARED_BYTES_MIN => Vec::new(),
            None => Vec::with_capacity(MAPPED_BYTES_MIN),
        };
        let before = buffer.len();
        let result = encode(&mut buffer);
        self.bytes += (buffer.len() - before) as u64;
        self.buffers.push(buffer);
        result
    }

    /// Returns the buffers with all pieces, in order.
    pub(super) fn into_buffers(self) -> Vec<Vec<u8>> {
        self.buffers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_of_a_long_entry_share_buffers() {
        const PIECE_BYTES: usize = 16 * 1024;
        const COUNT: usize = 2 * MAPPED_BYTES_MIN / PIECE_BYTES;
        let mut pieces = Pieces::starting_with(vec![255]);
        for number in 0..COUNT {
            pieces.append(|buffer| buffer.resize(buffer.len() + PIECE_BYTES, number as u8));
        }
        // An element that is longer than a buffer.
        pieces.append(|buffer| buffer.resize(buffer.len() + 2 * MAPPED_BYTES_MIN, 254));
        let bytes = 1 + COUNT * PIECE_BYTES + 2 * MAPPED_BYTES_MIN;
        assert_eq!(pieces.bytes(), bytes as u64);
        let buffers = pieces.into_buffers();
        let apart = 1 + SHARED_BYTES_MIN as usize / PIECE_BYTES;
        assert!((apart + 2..apart + 5).contains(&buffers.len()), "{}", buffers.len());
        let all = buffers.concat();
        assert_eq!((all.len(), all[0], all[bytes - 1]), (bytes, 255, 254));
        assert!(
            all[1..].chunks(PIECE_BYTES).take(COUNT).enumerate().all(|(at, piece)| piece == [at as u8; PIECE_BYTES])
        );
    }
}
