//! Client-side caching: which client may hold a copy of which key, and the way of the news that a key has changed (`CLIENT TRACKING`).
//!
//! # Words
//!
//! | word | meaning |
//! | --- | --- |
//! | reader | a client that tracks, from `CLIENT TRACKING ON` to `OFF` ([`Reader`]) |
//! | tracked key | a key that a reader has read, with its readers ([`keys`]): by its name alone, as in Redis, whatever the database |
//! | pending | what a command has made invalid in a shard, until its reply is written |
//! | news | one thing for one connection to be told ([`News`]) |
//! | prefix | what the keys begin with that a client wants to hear of without having read them (`BCAST`) |
//!
//! # Who owns what
//!
//! | what | held by |
//! | --- | --- |
//! | the tracked keys | their shard: whoever runs a command on it notes what is read, and what is changed |
//! | who wants which prefix | the [`Tracking`] of the keyspace, behind a lock that writers only read |
//! | what a client has asked for | its session ([`SessionTracking`]) and, for others to see, its [`Reader`] |
//!
//! # Order
//!
//! A read is noted and a change is told while the key's shard is held, and mailboxes are in order. So a client that has got an old value hears
//! of the change after that value: the answer to a read that ran elsewhere was sent before the shard was given back, and the news of a
//! later change comes behind it. A connection whose answers are on their way gets no news before them. What a
//! command makes invalid is told after its own reply.
//!
//! What goes to the readers of a prefix is gathered for a turn of the writer's worker, and told before any reply of that turn leaves.
//!
//! # What it costs
//!
//! While nobody tracks: nothing beyond the word that events and `MONITOR` are looked up in. A tracked key takes about 60 bytes and
//! its length, each further reader of it 8 to 16 bytes; at most `tracking-table-max-keys` are kept.

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

/// The channel by which clients with RESP2 hear of what is told to others in their place.
pub const CHANNEL: &[u8] = b"__redis__:invalidate";

/// The client of a change that none has made: what expired, or was put out of a full table.
pub(crate) const NOBODY: u64 = 0;

/// Whose command changes something.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Changer {
    /// The client's id.
    pub(crate) client: u64,
    /// Its script or function calls the command.
    pub(crate) in_script: bool,
}

impl Changer {
    pub(crate) const NOBODY: Changer = Changer { client: NOBODY, in_script: false };

    /// Whose change it is to the readers of prefixes: as in Redis what a script changes is nobody's own there.
    fn to_prefixes(self) -> u64 {
        if self.in_script { NOBODY } else { self.client }
    }
}

impl From<&SessionView> for Changer {
    fn from(session: &SessionView) -> Self {
        Changer { client: session.client, in_script: session.in_script }
    }
}

/// A client that tracks. Shared by the keys that it has read.
pub struct Reader {
    client: Arc<Client>,
    /// Until `CLIENT TRACKING OFF`, or its end.
    is_live: AtomicBool,
    pub(crate) no_loop: AtomicBool,
    /// Whether `redirect` is set.
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

    /// Whether it still tracks.
    pub fn is_live(&self) -> bool {
        // Relaxed: its own worker, which clears it, looks again before anything is sent.
        self.is_live.load(Relaxed)
    }

    /// The client that tracks.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Where it is.
    pub(crate) fn listener(&self) -> Listener {
        listener(&self.client)
    }

    /// Whether it is to be told of what this client has changed.
    pub(crate) fn wants_news_of(&self, client: u64) -> bool {
        self.is_live() && !(client == self.client.id && self.no_loop.load(Relaxed))
    }

    pub(crate) fn set_redirect(&self, to: Option<Arc<Client>>) {
        self.redirects.store(to.is_some(), Relaxed);
        *self.redirect.lock().unwrap_or_else(PoisonError::into_inner) = to;
    }

    /// Whom to tell in its place.
    pub(crate) fn redirect(&self) -> Option<Arc<Client>> {
        if !self.redirects.load(Relaxed) {
            return None;
        }
        self.redirect.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

pub(crate) fn listener(client: &Client) -> Listener {
    Listener { worker: client.worker, connection: client.connection.load(Relaxed) }
}

/// The name of a key.
pub type KeyName = Arc<[u8]>;

/// What is no longer what it was.
#[derive(Clone, Debug)]
pub enum Invalid {
    /// A key.
    Key(KeyName),
    /// Keys, in order.
    Keys(Arc<[KeyName]>),
    /// All there are.
    All,
}

impl Invalid {
    /// Whether it is the very same list, so that what was encoded for one can be sent for the other.
    pub fn is_same(&self, other: &Invalid) -> bool {
        match (self, other) {
            (Invalid::Key(one), Invalid::Key(other)) => Arc::ptr_eq(one, other),
            (Invalid::Keys(one), Invalid::Keys(other)) => Arc::ptr_eq(one, other),
            (Invalid::All, Invalid::All) => true,
            _ => false,
        }
    }
}

/// Something for one connection to be told.
pub struct News {
    /// The worker's token of the connection.
    pub connection: u64,
    /// Who reads.
    pub reader: Arc<Reader>,
    /// What it is about.
    pub subject: Subject,
}

/// What news are about.
pub enum Subject {
    /// Keys have changed.
    Invalid(Invalid),
    /// Keys have changed that another client reads.
    Redirected(Invalid),
    /// The client that is told in this one's place has gone.
    Broken,
}

/// Readers by the prefixes that they want to hear of.
#[derive(Default)]
pub(crate) struct Prefixes {
    readers: BTreeMap<Box<[u8]>, Vec<Arc<Reader>>>,
}

impl Prefixes {
    /// What is to be told of changed keys (with who has changed each one last): a list for each prefix, and for each reader that wants
    /// to hear nothing of its own.
    pub(crate) fn tell(&self, changed: &BTreeMap<KeyName, u64>, mut tell: impl FnMut(&Arc<Reader>, Invalid)) {
        for (prefix, readers) in &self.readers {
            let from = KeyName::from(&**prefix);
            let within = || changed.range(Arc::clone(&from)..).take_while(|(key, _)| key.starts_with(prefix));
            let all: Arc<[KeyName]> = within().map(|(key, _)| Arc::clone(key)).collect();
            if all.is_empty() {
                continue;
            }
            for reader in readers.iter().filter(|reader| reader.is_live()) {
                if !reader.no_loop.load(Relaxed) {
                    tell(reader, Invalid::Keys(Arc::clone(&all)));
                    continue;
                }
                let others = within().filter(|(_, origin)| **origin != reader.client.id);
                let others: Arc<[KeyName]> = others.map(|(key, _)| Arc::clone(key)).collect();
                if !others.is_empty() {
                    tell(reader, Invalid::Keys(others));
                }
            }
        }
    }
}

/// What is the same for all shards. See the head of this module.
#[derive(Default)]
pub struct Tracking {
    /// All that track.
    readers: Mutex<BTreeMap<u64, Arc<Reader>>>,
    prefixes: RwLock<Prefixes>,
    /// Tracked keys of all shards.
    keys: AtomicU64,
}

impl Tracking {
    /// How many clients track.
    pub fn clients(&self) -> usize {
        self.lock().len()
    }

    /// How many prefixes somebody wants to hear of.
    pub fn prefix_count(&self) -> usize {
        self.prefixes().readers.len()
    }

    /// Tracked keys of all shards together.
    pub(crate) fn keys(&self) -> u64 {
        self.keys.load(Relaxed)
    }

    /// Counts tracked keys that came, or went; how many there are now.
    pub(crate) fn count(&self, change: i64) -> u64 {
        // Relaxed: a sum that only a limit is held against.
        self.keys.fetch_add(change as u64, Relaxed).wrapping_add(change as u64)
    }

    /// Counts one tracked key less, if there are more than `keys_max`: who is told so puts one out, and so nobody puts out more than there are
    /// too many.
    pub(crate) fn claim_eviction(&self, keys_max: u64) -> bool {
        let less = |keys| (keys_max > 0 && keys > keys_max).then(|| keys - 1);
        self.keys.fetch_update(Relaxed, Relaxed, less).is_ok()
    }

    pub(crate) fn prefixes(&self) -> RwLockReadGuard<'_, Prefixes> {
        self.prefixes.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// All that track.
    pub(crate) fn readers(&self) -> Vec<Arc<Reader>> {
        self.lock().values().cloned().collect()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<u64, Arc<Reader>>> {
        // One insertion or removal at a time, never half of one.
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
