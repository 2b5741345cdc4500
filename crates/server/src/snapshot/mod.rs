//! Snapshots: the dataset in an RDB file, written by `SAVE` and at the end, read at the start.
//!
//! | file | what |
//! | --- | --- |
//! | `save` | a file is written beside the last one, and put in its place |
//! | `load` | a file is read, its entries are decoded by several threads |
//! | `reload` | `DEBUG RELOAD` |
//! | `check` | `pantala check-rdb` |
//!
//! The thread that holds the shards encodes; a thread of its own does what may wait for the disk. `SAVE` holds all shards from its
//! first key to its last byte: no key can be read or changed meanwhile, commands without keys are served by the other workers.

mod check;
mod load;
mod reload;
mod save;

use std::path::PathBuf;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError, Weak};

use pantala_engine::access::Access;
use pantala_engine::client::Shutdown;
use pantala_engine::keyspace::Keyspace;
use pantala_engine::whole::{Reload, SaveFailed, Storage, Whole};

use crate::config::Settings;
use crate::host::Server;
use load::Counts;

pub use check::{Arguments, check_rdb};
pub use load::load_at_start;

/// What is known of snapshots (`INFO persistence`).
#[derive(Debug, Default)]
pub struct Snapshots {
    /// When the last one was saved, or the server started, unix time in s.
    last_save_s: AtomicI64,
    /// Changes of keys as of then.
    saved_changes: AtomicU64,
    /// Changes of libraries of functions, which a snapshot has too.
    other_changes: AtomicU64,
    /// Snapshots since the start.
    saves: AtomicU64,
    /// Keys that the last file had and that had expired.
    keys_expired: AtomicU64,
    /// Keys that were loaded from it.
    keys_loaded: AtomicU64,
    /// How the server is to end when its shards are there, after a signal.
    ending: Mutex<Shutdown>,
}

impl Snapshots {
    /// Those of a server that starts, at a unix time in ms.
    pub fn new(now_ms: i64) -> Self {
        Snapshots { last_save_s: AtomicI64::new(now_ms / 1000), ..Snapshots::default() }
    }

    /// Returns when the last one was saved, unix time in s.
    pub fn last_save_s(&self) -> i64 {
        self.last_save_s.load(Relaxed)
    }

    /// Returns how many were saved since the start.
    pub fn saves(&self) -> u64 {
        self.saves.load(Relaxed)
    }

    /// Returns how many keys of the file loaded last were loaded, and how many had expired.
    pub fn loaded(&self) -> (u64, u64) {
        (self.keys_loaded.load(Relaxed), self.keys_expired.load(Relaxed))
    }

    /// Returns how many changes the last one doesn't have (`rdb_changes_since_last_save`).
    pub fn unsaved_changes(&self, keyspace: &Keyspace) -> u64 {
        self.all_changes(keyspace).wrapping_sub(self.saved_changes.load(Relaxed))
    }

    /// Has [`Snapshots::unsaved_changes`] be that many.
    fn set_unsaved_changes(&self, keyspace: &Keyspace, changes: u64) {
        self.saved_changes.store(self.all_changes(keyspace).wrapping_sub(changes), Relaxed);
    }

    fn all_changes(&self, keyspace: &Keyspace) -> u64 {
        keyspace.changes() + self.other_changes.load(Relaxed)
    }

    /// Remembers and logs what was loaded.
    fn note_loaded(&self, counts: &Counts) {
        let (loaded, expired) = (counts.loaded.load(Relaxed), counts.expired.load(Relaxed));
        self.keys_loaded.store(loaded, Relaxed);
        self.keys_expired.store(expired, Relaxed);
        tracing::info!("Done loading RDB, keys loaded: {loaded}, keys expired: {expired}.");
    }

    /// Notes a change of the libraries of functions.
    pub fn note_change(&self) {
        self.other_changes.fetch_add(1, Relaxed);
    }

    /// Returns how the server is to end after a signal.
    pub fn ending(&self) -> Shutdown {
        *self.ending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets how the server is to end after a signal.
    pub fn set_ending(&self, how: Shutdown) {
        *self.ending.lock().unwrap_or_else(PoisonError::into_inner) = how;
    }
}

impl Server {
    /// Returns whether the server saves before it ends so.
    pub fn saves_before(&self, how: Shutdown) -> bool {
        !how.abort && (how.save || !how.no_save && !self.config().settings().save_points.is_empty())
    }
}

/// Saves before the server ends. Returns whether it may end.
pub fn save_before_end(server: &Server, whole: &mut Whole<'_>, how: Shutdown) -> bool {
    tracing::info!("Saving the final RDB snapshot before exiting.");
    if save::save(server, whole).is_ok() {
        return true;
    }
    if how.force {
        tracing::warn!("Error trying to save the DB. Exit anyway.");
    } else {
        tracing::warn!("Error trying to save the DB, can't exit.");
    }
    how.force
}

/// Path of the snapshot: absolute, since `CONFIG SET dir` may move the process meanwhile.
fn path_of(settings: &Settings) -> PathBuf {
    settings.dir.join(&settings.dbfilename)
}

/// The files of a server, for commands that hold all shards.
pub struct Files(pub Weak<Server>);

impl Storage for Files {
    fn save(&self, whole: &mut Whole<'_>) -> Result<(), SaveFailed> {
        save::save(&*self.0.upgrade().ok_or(SaveFailed)?, whole)
    }

    fn reload(&self, access: &mut Access<'_>, how: Reload) -> Result<(), String> {
        reload::reload(&*self.0.upgrade().ok_or("ERR the server is stopping")?, access, how)
    }
}
