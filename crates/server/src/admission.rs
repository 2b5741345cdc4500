//! Counts open connections. When `maxclients` is reached, closes unauthenticated connections to
//! make room for new ones.
//!
//! If unauthenticated connections were never closed, they could use up `maxclients` and keep out
//! all clients that know a password.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};

use pantala_engine::client::{Client, Host as _};

use crate::host::Server;

/// Minimum age of an unauthenticated connection that is closed to make room for a new one, ms. A
/// client that knows a password has sent it by then.
const UNAUTHENTICATED_AGE_MIN_MS: i64 = 1000;

/// Maximum number of connections that may be open in excess of `maxclients`, while older
/// connections are being closed to make room for them. They use file descriptors that are reserved
/// for purposes other than clients.
const EXCESS_MAX: u64 = 8;

/// Minimum time from a search for a connection to close that found none to the next search, ms.
/// Each search reads the list of all clients.
const SEARCH_INTERVAL_MS: i64 = 10;

/// The number of open connections.
#[derive(Default)]
pub struct Admission {
    open: AtomicU64,
    /// Time of the last search that found no connection to close, Unix time in ms. Read and written
    /// only by the worker that accepts connections.
    failed_search_ms: AtomicI64,
}

impl Admission {
    /// Returns the number of open connections.
    pub fn open(&self) -> u64 {
        self.open.load(Relaxed)
    }

    /// Counts a new connection. Returns the number of open connections.
    pub fn count(&self) -> u64 {
        self.open.fetch_add(1, Relaxed) + 1
    }

    /// Removes a connection from the count.
    pub fn uncount(&self) {
        self.open.fetch_sub(1, Relaxed);
    }

    /// Makes room for a new connection, if possible, by closing the oldest unauthenticated
    /// connection. `open` is the number of open connections, including the new one. Returns whether
    /// the new connection may stay.
    pub fn makes_room(&self, server: &Server, open: u64, maxclients: u32) -> bool {
        let now_ms = server.now_ms();
        if open > u64::from(maxclients) + EXCESS_MAX
            || !server.keyspace().users().requires_login()
            || (now_ms - self.failed_search_ms.load(Relaxed)).abs() < SEARCH_INTERVAL_MS
        {
            return false;
        }
        let Some(client) = oldest_unauthenticated(server, now_ms) else {
            self.failed_search_ms.store(now_ms, Relaxed);
            return false;
        };
        tracing::debug!("Closing a client that has not authenticated, to make room for a new client");
        server.kill(&client);
        true
    }
}

/// Returns the client that has been connected for longest without authenticating. Returns `None` if
/// no such client is older than [`UNAUTHENTICATED_AGE_MIN_MS`].
fn oldest_unauthenticated(server: &Server, now_ms: i64) -> Option<Arc<Client>> {
    server.keyspace().clients().first(|client| {
        let since_ms = client.unauthenticated_since_ms.load(Relaxed);
        since_ms != 0
            && !client.is_primary.load(Relaxed)
            && !client.killed.load(Relaxed)
            && now_ms - since_ms >= UNAUTHENTICATED_AGE_MIN_MS
    })
}
