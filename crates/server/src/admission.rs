//! Counts open connections, and makes room at `maxclients` for clients that may log in.
//!
//! Without this, clients that never authenticate could use up `maxclients` and keep out everyone
//! who knows a password.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};

use pantala_engine::client::{Client, Host as _};

use crate::host::Server;

/// Age at which an unauthenticated connection may be closed to make room for a new one, ms. A
/// client that has a password sends it within this time.
const UNAUTHENTICATED_AGE_MIN_MS: i64 = 1000;

/// Maximum number of connections above `maxclients`: connections that are being closed to make
/// room for others. The files for them are reserved.
const EXCESS_MAX: u64 = 8;

/// Minimum time between two searches that have found nothing, ms. A search reads the list of all
/// clients.
const SEARCH_INTERVAL_MS: i64 = 10;

/// The number of open connections.
#[derive(Default)]
pub struct Admission {
    open: AtomicU64,
    /// Time of the last search that has found nothing, Unix time in ms. Only the worker that
    /// accepts connections uses it.
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

    /// Returns whether a new connection may stay although it is the connection number `open` and
    /// only `maxclients` may be open. If so, the oldest unauthenticated connection is being closed.
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

/// Returns the client that has been connected for longest without authenticating, if that is long
/// enough.
fn oldest_unauthenticated(server: &Server, now_ms: i64) -> Option<Arc<Client>> {
    server.keyspace().clients().first(|client| {
        let since_ms = client.unauthenticated_since_ms.load(Relaxed);
        since_ms != 0
            && !client.is_primary.load(Relaxed)
            && !client.killed.load(Relaxed)
            && now_ms - since_ms >= UNAUTHENTICATED_AGE_MIN_MS
    })
}
