//! Received bytes in memory that an event loop lends: who parses them knows no event loop, and no socket.

/// Received bytes, in memory that a [`Lender`] lends until they are released. There is always at least one.
pub trait Lent {
    /// How many there are.
    fn len_bytes(&self) -> usize;
}

/// The owner of the memory into which bytes are received: an event loop.
pub trait Lender {
    /// A loan. Dropping one without releasing it leaks its share of the lender's memory.
    type Chunk: Lent;

    /// The bytes of a chunk of this lender.
    fn bytes(&self, chunk: &Self::Chunk) -> &[u8];

    /// The bytes of a chunk of this lender, to be changed in place.
    fn bytes_mut(&mut self, chunk: &Self::Chunk) -> &mut [u8];

    /// Bytes of the buffer in which the chunk lies that are behind it and that nothing was received into.
    fn room_behind(&self, chunk: &Self::Chunk) -> usize;

    /// Takes a chunk's memory back. Also of connections that were closed meanwhile.
    fn release(&mut self, chunk: Self::Chunk);
}
