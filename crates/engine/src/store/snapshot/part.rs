//! The parts in which encoded entries reach the snapshot's thread.

/// Encoded entries of one database, or one large entry.
#[derive(Debug)]
pub struct Part {
    /// Encoded bytes.
    pub bytes: Vec<u8>,
    /// Further bytes of a large entry.
    pub more: Vec<Vec<u8>>,
    /// Number of entries.
    pub keys: u64,
}

impl Part {
    /// Returns the number of encoded bytes.
    pub(super) fn len(&self) -> u64 {
        (self.bytes.len() + self.more.iter().map(Vec::len).sum::<usize>()) as u64
    }
}

/// Result of waiting for a part.
#[derive(Debug)]
pub enum Next {
    /// A part.
    Part(Part),
    /// Nothing has arrived in time.
    Later,
    /// The snapshot has ended.
    End,
}
