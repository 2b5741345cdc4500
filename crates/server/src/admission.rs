//! Counts open connections. When `maxclients` is reached, closes unauthenticated connections to
//! make room for new ones. A connection is unauthenticated until its client has logged in, if a
//! login is required, and until its TLS handshake is finished.
//!
//! If unauthenticated connections were never closed, they could use up `maxclients` and keep out
//! all clients that have a password or a certificate.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};

use pantala_engine::client::Client;
use pantala_engine::keyspace::Keyspace;

/// Minimum age at which an unauthenticated connection may be closed to make room for a new one, ms.
/// By this age, a client that knows the password has usually sent it.
const UNAUTHENTICATED_AGE_MIN_MS: i64 = 1000;

/// Maximum number of connections that may be open in excess of `maxclients`, while older
/// connections are being closed to make room for them. They use file descriptors that are reserved
/// for purposes other than clients.
const EXCESS_MAX: u64 = 8;

/// Minimum interval between a search that found no connection to close and the next search, ms.
/// Each search reads the list of all clients.
const SEARCH_INTERVAL_MS: i64 = 10;

/// The number of open connections.
#[derive(Default)]
pub struct Admission {
    open: AtomicU64,
    /// When the last search failed to find a connection to close, Unix time in ms. Read and written
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

    /// Returns the oldest unauthenticated client, if closing it makes room for a new connection.
    /// `open` is the number of open connections, including the new one.
    pub fn to_close(&self, keyspace: &Keyspace, now_ms: i64, open: u64, maxclients: u32) -> Option<Arc<Client>> {
        if open > u64::from(maxclients) + EXCESS_MAX
            || (now_ms - self.failed_search_ms.load(Relaxed)).abs() < SEARCH_INTERVAL_MS
        {
            return None;
        }
        let found = oldest_unauthenticated(keyspace, now_ms);
        if found.is_none() {
            self.failed_search_ms.store(now_ms, Relaxed);
        }
        found
    }
}

/// Returns the client that has been connected for longest without authenticating. Returns `None` if
/// no such client is older than [`UNAUTHENTICATED_AGE_MIN_MS`].
fn oldest_unauthenticated(keyspace: &Keyspace, now_ms: i64) -> Option<Arc<Client>> {
    let requires_login = keyspace.users().requires_login();
    keyspace.clients().first(|client| {
        let since_ms = match client.unauthenticated_since_ms.load(Relaxed) {
            since_ms if requires_login && since_ms != 0 => since_ms,
            _ if client.is_handshaking.load(Relaxed) => client.created_ms,
            _ => return false,
        };
        !client.is_primary.load(Relaxed)
            && !client.killed.load(Relaxed)
            && now_ms - since_ms >= UNAUTHENTICATED_AGE_MIN_MS
    })
}
