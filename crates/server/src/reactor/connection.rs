//! A connection's socket, and the tokens by which requests and messages refer to a connection.

use pantala_runtime::{Chunk, ConnId};

use super::tls::Layer;
use crate::process::Kind;

/// A connection of a reactor. `H` is the type of [`Socket::shard_work`].
pub type Connection<H> = pantala_session::Connection<Chunk, Socket<H>>;

/// A connection's socket, and the lists of the reactor that contain the connection.
pub struct Socket<H> {
    /// The event loop's identifier of the socket.
    pub id: ConnId,
    /// The work that runs on the shards that the connection has requested.
    pub shard_work: Option<H>,
    /// Whether receiving is paused until the commands in the pending input have run.
    pub is_receive_paused: bool,
    /// Whether the connection is to move to another worker.
    pub is_leaving: bool,
    /// Whether the connection is in the touched list: it took part in the turn, so its output is
    /// sent at the end of the turn.
    pub is_touched: bool,
    /// Whether the connection is in the listed list: it has only messages to send, or a deferred
    /// TLS handshake.
    pub is_listed: bool,
    /// The latest stamp (position in the journal) of the effects (changes) that the connection's
    /// pending replies reveal. It is 0 if no reply has to wait for a sync.
    pub unsynced: u64,
    /// Whether the connection is in the list of those whose replies wait for a sync.
    pub is_unsynced: bool,
    /// The TLS state of an encrypted connection.
    pub tls: Option<Box<Layer>>,
}

impl<H> Socket<H> {
    /// Creates the record of a newly accepted socket.
    pub fn new(id: ConnId) -> Self {
        Socket {
            id,
            shard_work: None,
            is_receive_paused: false,
            is_leaving: false,
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

/// Adds a connection to a table of connections by index. Returns its index.
pub(super) fn insert<H>(table: &mut Vec<Option<Connection<H>>>, connection: Connection<H>) -> u32 {
    let index = connection.socket.id.index();
    if index >= table.len() {
        table.resize_with(index + 1, || None);
    }
    debug_assert!(table[index].is_none(), "the loop has reused the index of an open connection");
    table[index] = Some(connection);
    index as u32
}

/// Encodes the kind of a listener as a number, for the message that hands a socket to a worker.
#[inline]
pub fn via(kind: Kind) -> u32 {
    u32::from(kind == Kind::Tls)
}

/// Decodes the kind of a listener from a message: TLS, or TCP, which stands for Unix sockets too.
#[inline]
pub fn kind_of(via: u32) -> Kind {
    if via == self::via(Kind::Tls) { Kind::Tls } else { Kind::Tcp }
}

/// Returns the token of a connection: the event loop's identifier as one word. If a later
/// connection gets the same index, its token differs.
#[inline]
pub fn token(id: ConnId) -> u64 {
    u64::from(id.generation()) << 32 | id.index() as u64
}

/// Returns the index, in its reactor's table, of the connection with a token.
#[inline]
pub fn index_of(token: u64) -> usize {
    (token & u64::from(u32::MAX)) as usize
}
