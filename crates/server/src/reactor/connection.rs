//! A connection with its socket.

use pantala_runtime::{Chunk, ConnId};

/// A connection of a reactor. `H`: what the connection does with the shards that it has asked for.
pub type Connection<H> = pantala_session::Connection<Chunk, Socket<H>>;

/// A connection's socket, and where its reactor has listed it.
pub struct Socket<H> {
    /// The loop's name for it.
    pub id: ConnId,
    /// What the connection does with the shards that it has asked for.
    pub held: Option<H>,
    /// Nothing is received until what is pending has run.
    pub is_held: bool,
    /// It stands in the list of connections whose turn is to be finished.
    pub is_touched: bool,
    /// It stands in the list of connections that are to be sent messages.
    pub is_listed: bool,
}

impl<H> Socket<H> {
    /// A socket that has just been accepted.
    pub fn new(id: ConnId) -> Self {
        Socket { id, held: None, is_held: false, is_touched: false, is_listed: false }
    }

    /// The reactor's token for the connection in requests and messages.
    #[inline]
    pub fn token(&self) -> u64 {
        token(self.id)
    }
}

/// A connection's name as one word.
#[inline]
pub fn token(id: ConnId) -> u64 {
    u64::from(id.generation()) << 32 | id.index() as u64
}

/// Where the connection of a token stands in its reactor's table.
#[inline]
pub fn index_of(token: u64) -> usize {
    (token & u64::from(u32::MAX)) as usize
}
