//! A connection with its socket.

use pantala_runtime::{Chunk, ConnId};

/// A connection of a reactor. `H`: what the connection does with the shards that it has requested.
pub type Connection<H> = pantala_session::Connection<Chunk, Socket<H>>;

/// A connection's socket, and which lists of its reactor it is in.
pub struct Socket<H> {
    /// The loop's identifier for it.
    pub id: ConnId,
    /// What the connection does with the shards that it has requested.
    pub held: Option<H>,
    /// Receiving is paused until pending input has run.
    pub is_held: bool,
    /// It is in the list of connections whose turn is to be finished.
    pub is_touched: bool,
    /// It is in the list of connections that have only messages to be sent.
    pub is_listed: bool,
}

impl<H> Socket<H> {
    /// Creates the record of a newly accepted socket.
    pub fn new(id: ConnId) -> Self {
        Socket { id, held: None, is_held: false, is_touched: false, is_listed: false }
    }

    /// Returns the reactor's token for the connection, used in requests and messages.
    #[inline]
    pub fn token(&self) -> u64 {
        token(self.id)
    }
}

/// Returns a connection's identifier as one word.
#[inline]
pub fn token(id: ConnId) -> u64 {
    u64::from(id.generation()) << 32 | id.index() as u64
}

/// Returns the index, in its reactor's table, of the connection with a token.
#[inline]
pub fn index_of(token: u64) -> usize {
    (token & u64::from(u32::MAX)) as usize
}
