//! Client-side caching (`CLIENT TRACKING`): the keys that each client may have cached, and the
//! invalidation of changed keys.
//!
//! # Words
//!
//! | word | meaning |
//! | --- | --- |
//! | reader | a client that tracks keys, from `CLIENT TRACKING ON` to `OFF` ([`Reader`]) |
//! | tracked key | the name of a key, and its readers ([`keys`]). As in Redis, the name stands for the keys of all databases |
//! | pending | invalidations that wait in the shard until their command has written its reply |
//! | notification | an event about keys for one connection ([`Notification`]) |
//! | prefix | the start of keys for which a client receives invalidations without reading them (`BCAST`) |
//!
//! # Ownership
//!
//! | data | place |
//! | --- | --- |
//! | the tracked keys | their shard: its owner tracks keys that are read, and invalidates changed keys |
//! | the readers of each prefix | the keyspace's [`Tracking`], behind a lock |
//! | a client's options | its session ([`SessionTracking`]); for other threads, its [`Reader`] |
//!
//! # Order
//!
//! Reads are tracked, and changed keys are invalidated, while the key's shard is held. Mailboxes
//! keep order. So a client receives the invalidation of a key after the reply with the old value.
//! If the read ran on another thread, that thread sent the reply before it released the shard. So
//! the invalidation of a later change follows the reply. A connection with replies in flight
//! receives its invalidations after those replies. If a client's own command invalidates a key that
//! the client tracks, the client receives the invalidation after the reply to this command.
//!
//! Invalidations by prefix are collected during a turn (iteration of the event loop) of the
//! writer's worker, and sent before any reply of that turn.
//!
//! # What it costs
//!
//! Without readers, tracking adds no work to a command, because the test for events and `MONITOR`
//! reads a word that also contains the bits for tracking. A tracked key uses about 60 bytes plus
//! its length, and 8 to 16 bytes for each further reader. At most `tracking-table-max-keys` keys
//! are tracked.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};

use crate::clients::client::Client;
use crate::command::SessionView;
use crate::events::pubsub::Listener;
use crate::tuning::Tuning;

pub(crate) mod keys;
mod session;

pub use session::{Options, SessionTracking};

/// Channel on which RESP2 clients receive invalidations that other clients redirect to them.
pub const CHANNEL: &[u8] = b"__redis__:invalidate";

/// Client ID of an invalidation that no client has caused, so that `NOLOOP` excludes no reader.
/// Used for keys evicted from the full table of tracked keys. For readers of prefixes, also used
/// for expired keys and for the changes of scripts.
pub(crate) const NOBODY: u64 = 0;

/// The client whose command makes a change.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Changer {
    /// ID of the client.
    pub(crate) client: u64,
    /// Whether the client's script or function calls the command.
    pub(crate) in_script: bool,
}

impl Changer {
    pub(crate) const NOBODY: Changer = Changer { client: NOBODY, in_script: false };

    /// Returns the ID of the client that readers of prefixes count as the maker of this change. As
    /// in Redis, this is [`NOBODY`] if a script makes the change.
    fn to_prefixes(self) -> u64 {
        if self.in_script { NOBODY } else { self.client }
    }
}

impl From<&SessionView> for Changer {
    fn from(session: &SessionView) -> Self {
        Changer { client: session.client, in_script: session.in_script }
    }
}

/// A client that tracks keys. All keys that the client has read refer to this value.
pub struct Reader {
    client: Arc<Client>,
    /// True until `CLIENT TRACKING OFF` or a disconnect.
    is_live: AtomicBool,
    /// `NOLOOP`: the client receives no invalidations of its own changes.
    pub(crate) no_loop: AtomicBool,
    /// Whether `redirect` contains a client. If not, the lock of `redirect` need not be taken.
    redirects: AtomicBool,
    redirect: Mutex<Option<Arc<Client>>>,
}

impl Reader {
    pub(crate) fn new(client: &Arc<Client>) -> Self {
        Reader {
            client: Arc::clone(client),
            is_live: AtomicBool::new(true),
            no_loop: AtomicBool::new(false),
            redirects: AtomicBool::new(false),
            redirect: Mutex::new(None),
        }
    }

    /// Returns whether the client still tracks keys.
    pub fn is_live(&self) -> bool {
        // Relaxed: other threads may see an old value. The client's worker, which clears the flag,
        // checks it again before it sends an invalidation to the client.
        self.is_live.load(Relaxed)
    }

    /// Returns the client that tracks keys.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Returns the worker and connection of the client.
    pub(crate) fn listener(&self) -> Listener {
        self.client.listener()
    }

    /// Returns whether the reader receives invalidations of changes by `client`.
    pub(crate) fn wants_invalidations_by(&self, client: u64) -> bool {
        self.is_live() && !(client == self.client.id && self.no_loop.load(Relaxed))
    }

    pub(crate) fn set_redirect(&self, to: Option<Arc<Client>>) {
        if let Some(client) = &to {
            client.pin();
        }
        self.redirects.store(to.is_some(), Relaxed);
        *self.redirect.lock().unwrap_or_else(PoisonError::into_inner) = to;
    }

    /// Returns the client to which invalidations are redirected.
    pub fn redirect(&self) -> Option<Arc<Client>> {
        if !self.redirects.load(Relaxed) {
            return None;
        }
        self.redirect.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The name of a key, in any database.
pub type KeyName = Arc<[u8]>;

/// Invalidated keys.
#[derive(Clone, Debug)]
pub enum Invalid {
    /// One key.
    Key(KeyName),
    /// Several keys, sorted.
    Keys(Arc<[KeyName]>),
    /// All keys.
    All,
}

impl Invalid {
    /// Returns whether both values share the same list in memory, or both are [`Invalid::All`]. The
    /// encoding of one value can then be sent for both.
    pub fn is_same(&self, other: &Invalid) -> bool {
        match (self, other) {
            (Invalid::Key(one), Invalid::Key(other)) => Arc::ptr_eq(one, other),
            (Invalid::Keys(one), Invalid::Keys(other)) => Arc::ptr_eq(one, other),
            (Invalid::All, Invalid::All) => true,
            _ => false,
        }
    }
}

/// A notification for one connection.
pub struct Notification {
    /// Token of the connection in its worker.
    pub connection: u64,
    /// The client that tracks the keys. This client is the receiver, or redirects its invalidations
    /// to the receiver.
    pub reader: Arc<Reader>,
    /// The event.
    pub subject: Subject,
}

/// The event of a notification.
pub enum Subject {
    /// Keys have changed.
    Invalid(Invalid),
    /// Keys that another client tracks have changed. That client redirects its invalidations to the
    /// receiver.
    Redirected(Invalid),
    /// The receiver redirects its invalidations to a client that has disconnected.
    Broken,
}

/// Readers by prefix.
#[derive(Default)]
pub(crate) struct Prefixes {
    readers: BTreeMap<Box<[u8]>, Vec<Arc<Reader>>>,
}

impl Prefixes {
    /// Calls `invalidate` with each reader of a changed key and the keys to invalidate. The readers
    /// of a prefix share one list of keys, except that each `NOLOOP` reader gets its own. `changed`
    /// contains, for each key, the client that last changed it.
    pub(crate) fn invalidate(
        &self,
        changed: &BTreeMap<KeyName, u64>,
        mut invalidate: impl FnMut(&Arc<Reader>, Invalid),
    ) {
        for (prefix, readers) in &self.readers {
            let from = KeyName::from(&**prefix);
            let within = || changed.range(Arc::clone(&from)..).take_while(|(key, _)| key.starts_with(prefix));
            let all: Arc<[KeyName]> = within().map(|(key, _)| Arc::clone(key)).collect();
            if all.is_empty() {
                continue;
            }
            for reader in readers.iter().filter(|reader| reader.is_live()) {
                if !reader.no_loop.load(Relaxed) {
                    invalidate(reader, Invalid::Keys(Arc::clone(&all)));
                    continue;
                }
                let others = within().filter(|(_, origin)| **origin != reader.client.id);
                let others: Arc<[KeyName]> = others.map(|(key, _)| Arc::clone(key)).collect();
                if !others.is_empty() {
                    invalidate(reader, Invalid::Keys(others));
                }
            }
        }
    }
}

/// The state shared by all shards. See the head of this module.
#[derive(Default)]
pub struct Tracking {
    /// All readers by client ID.
    readers: Mutex<BTreeMap<u64, Arc<Reader>>>,
    prefixes: RwLock<Prefixes>,
    /// Number of tracked keys in all shards.
    keys: AtomicU64,
}

impl Tracking {
    /// Returns the number of clients that track keys.
    pub fn clients(&self) -> usize {
        self.lock().len()
    }

    /// Returns the number of prefixes with readers.
    pub fn prefix_count(&self) -> usize {
        self.prefixes().readers.len()
    }

    /// Returns the number of tracked keys of all shards.
    pub(crate) fn keys(&self) -> u64 {
        self.keys.load(Relaxed)
    }

    /// Adds `change` to the number of tracked keys. Returns the new number.
    pub(crate) fn count(&self, change: i64) -> u64 {
        // Relaxed: the sum is only compared with a limit.
        self.keys.fetch_add(change as u64, Relaxed).wrapping_add(change as u64)
    }

    /// Subtracts one from the number of tracked keys if there are more than `keys_max` (0: no
    /// limit). Returns whether one was subtracted. If so, the caller must evict a key. The number
    /// is decreased before the eviction, so that workers that evict at the same time do not evict
    /// more keys than necessary.
    pub(crate) fn claim_eviction(&self, keys_max: u64) -> bool {
        let less = |keys| (keys_max > 0 && keys > keys_max).then(|| keys - 1);
        self.keys.fetch_update(Relaxed, Relaxed, less).is_ok()
    }

    pub(crate) fn prefixes(&self) -> RwLockReadGuard<'_, Prefixes> {
        self.prefixes.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns all readers.
    pub(crate) fn readers(&self) -> Vec<Arc<Reader>> {
        self.lock().values().cloned().collect()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<u64, Arc<Reader>>> {
        // Each holder makes one insertion or removal, so a panic leaves the map valid.
        self.readers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn add(&self, tuning: &Tuning, reader: &Arc<Reader>) {
        let mut readers = self.lock();
        readers.insert(reader.client.id, Arc::clone(reader));
        tuning.set_tracks(true);
    }

    pub(crate) fn add_prefix(&self, tuning: &Tuning, reader: &Arc<Reader>, prefix: &[u8]) {
        let mut prefixes = self.prefixes.write().unwrap_or_else(PoisonError::into_inner);
        prefixes.readers.entry(prefix.into()).or_default().push(Arc::clone(reader));
        tuning.set_broadcasts(true);
    }

    pub(crate) fn remove(&self, tuning: &Tuning, reader: &Arc<Reader>, prefixes: &BTreeSet<Box<[u8]>>) {
        reader.is_live.store(false, Relaxed);
        if !prefixes.is_empty() {
            let mut all = self.prefixes.write().unwrap_or_else(PoisonError::into_inner);
            for prefix in prefixes {
                let Some(readers) = all.readers.get_mut(prefix) else { continue };
                readers.retain(|other| !Arc::ptr_eq(other, reader));
                if readers.is_empty() {
                    all.readers.remove(prefix);
                }
            }
            tuning.set_broadcasts(!all.readers.is_empty());
        }
        let mut readers = self.lock();
        readers.remove(&reader.client.id);
        tuning.set_tracks(!readers.is_empty());
    }
}

#[cfg(test)]
mod tests;
