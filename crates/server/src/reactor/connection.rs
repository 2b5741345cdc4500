//! A connection with its socket.

use pantala_runtime::{Chunk, ConnId};

use super::tls::Layer;
use crate::process::Kind;

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
    /// The latest stamp of the units that its replies tell of; 0: none of them waits for a sync.
    pub unsynced: u64,
    /// It is in the list of connections whose replies wait.
    pub is_unsynced: bool,
    /// Encrypts it.
    pub tls: Option<Box<Layer>>,
}

impl<H> Socket<H> {
    /// Creates the record of a newly accepted socket.
    pub fn new(id: ConnId) -> Self {
        Socket {
            id,
            held: None,
            is_held: false,
            is_touched: false,
            is_listed: false,
            unsynced: 0,
            is_unsynced: false,
            tls: None,
        }
    }

    /// Returns the reactor's token for the connection, used in requests and messages.
    #[inline]
    pub fn token(&self) -> u64 {
        token(self.id)
    }
}

/// Returns how a message says what a socket's listener accepts.
#[inline]
pub fn via(kind: Kind) -> u32 {
    u32::from(kind == Kind::Tls)
}

/// Returns what the listener of a message accepts: with TLS, or (a Unix socket too) without.
#[inline]
pub fn kind_of(via: u32) -> Kind {
    if via == self::via(Kind::Tls) { Kind::Tls } else { Kind::Tcp }
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
