//! Received bytes in memory that an event loop lends. Parsers access the bytes through these
//! traits, so that parsers don't depend on event loops and sockets.

/// Received bytes in memory lent by a [`Lender`] until they are released. Never empty.
pub trait Lent {
    /// Returns the number of bytes.
    fn len_bytes(&self) -> usize;
}

/// The owner of the receive buffers: an event loop.
pub trait Lender {
    /// Lent bytes. A chunk that is dropped without [`Lender::release`] leaks its part of the
    /// lender's memory.
    type Chunk: Lent;

    /// Returns the bytes of a chunk lent by this lender.
    fn bytes(&self, chunk: &Self::Chunk) -> &[u8];

    /// Returns the bytes of a chunk lent by this lender, mutably.
    fn bytes_mut(&mut self, chunk: &Self::Chunk) -> &mut [u8];

    /// Returns how many unused bytes follow the chunk in its buffer.
    fn room_after(&self, chunk: &Self::Chunk) -> usize;

    /// Releases a chunk. Valid even after the connection that received the bytes has been closed.
    fn release(&mut self, chunk: Self::Chunk);
}
