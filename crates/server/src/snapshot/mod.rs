//! Snapshots: the dataset in an RDB file, written by `SAVE` and at shutdown, loaded at the start.
//!
//! | file | what |
//! | --- | --- |
//! | `save` | writes a file beside the last one and replaces the last one with it |
//! | `load` | reads a file; several threads decode its entries |
//! | `reload` | `DEBUG RELOAD` |
//! | `check` | `pantala check-rdb` |
//!
//! The thread that holds the shards encodes; a thread of its own does what may wait for the disk.
//! `SAVE` holds all shards from its first key to its last byte: no key can be read or changed
//! meanwhile, commands without keys are served by the other workers.

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

pub use check::{Arguments, check_rdb, check_start};
pub use load::load_at_start;

/// State of snapshots (`INFO persistence`).
#[derive(Debug, Default)]
pub struct Snapshots {
    /// When the last one was saved, or the server started, unix time in s.
    last_save_s: AtomicI64,
    /// Changes of keys up to that time.
    saved_changes: AtomicU64,
    /// Changes of function libraries, which snapshots hold too.
    other_changes: AtomicU64,
    /// Snapshots since the start.
    saves: AtomicU64,
    /// Expired keys of the file that was loaded last.
    keys_expired: AtomicU64,
    /// Keys that were loaded from that file.
    keys_loaded: AtomicU64,
    /// Options of the shutdown that a signal started.
    ending: Mutex<Shutdown>,
}

impl Snapshots {
    /// Returns the state of a server that starts at `now_ms`, unix time.
    pub fn new(now_ms: i64) -> Self {
        Snapshots { last_save_s: AtomicI64::new(now_ms / 1000), ..Snapshots::default() }
    }

    /// Returns when the last snapshot was saved, or the server started: unix time in s.
    pub fn last_save_s(&self) -> i64 {
        self.last_save_s.load(Relaxed)
    }

    /// Returns the number of snapshots since the start.
    pub fn saves(&self) -> u64 {
        self.saves.load(Relaxed)
    }

    /// Returns how many keys of the file loaded last were loaded, and how many had expired.
    pub fn loaded(&self) -> (u64, u64) {
        (self.keys_loaded.load(Relaxed), self.keys_expired.load(Relaxed))
    }

    /// Returns the number of changes since the last snapshot (`rdb_changes_since_last_save`).
    pub fn unsaved_changes(&self, keyspace: &Keyspace) -> u64 {
        self.all_changes(keyspace).wrapping_sub(self.saved_changes.load(Relaxed))
    }

    /// Sets [`Snapshots::unsaved_changes`].
    fn set_unsaved_changes(&self, keyspace: &Keyspace, changes: u64) {
        self.saved_changes.store(self.all_changes(keyspace).wrapping_sub(changes), Relaxed);
    }

    fn all_changes(&self, keyspace: &Keyspace) -> u64 {
        keyspace.changes() + self.other_changes.load(Relaxed)
    }

    /// Records and logs the counts of a load.
    fn note_loaded(&self, counts: &Counts) {
        let (loaded, expired) = (counts.loaded.load(Relaxed), counts.expired.load(Relaxed));
        self.keys_loaded.store(loaded, Relaxed);
        self.keys_expired.store(expired, Relaxed);
        tracing::info!("Done loading RDB, keys loaded: {loaded}, keys expired: {expired}.");
    }

    /// Counts a change of the function libraries.
    pub fn note_change(&self) {
        self.other_changes.fetch_add(1, Relaxed);
    }

    /// Returns the options of the shutdown that a signal started.
    pub fn ending(&self) -> Shutdown {
        *self.ending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the options of the shutdown that a signal started.
    pub fn set_ending(&self, how: Shutdown) {
        *self.ending.lock().unwrap_or_else(PoisonError::into_inner) = how;
    }
}

impl Server {
    /// Returns whether the server saves a snapshot before such a shutdown.
    pub fn saves_before(&self, how: Shutdown) -> bool {
        !how.abort && (how.save || !how.no_save && !self.config().settings().save_points.is_empty())
    }
}

/// Saves before a shutdown. Returns whether the server may stop.
pub fn save_before_end(server: &Server, whole: &mut Whole<'_>, how: Shutdown) -> bool {
    tracing::info!("Saving the final RDB snapshot before exiting.");
    // Libraries belong to no shard: what all others wait for does not keep them from changing.
    let libraries = &server.scripting().libraries;
    libraries.set_final(true);
    if save::save(server, whole).is_ok() {
        return true;
    }
    libraries.set_final(how.force);
    if how.force {
        tracing::warn!("Error trying to save the DB. Exit anyway.");
    } else {
        tracing::warn!("Error trying to save the DB, can't exit.");
    }
    how.force
}

/// Returns the snapshot's path, absolute because `CONFIG SET dir` may move the process meanwhile.
fn path_of(settings: &Settings) -> PathBuf {
    settings.dir.join(&settings.dbfilename)
}

/// A server's snapshot file, for commands that hold all shards.
pub struct Files(pub Weak<Server>);

impl Storage for Files {
    fn save(&self, whole: &mut Whole<'_>) -> Result<(), SaveFailed> {
        save::save(&*self.0.upgrade().ok_or(SaveFailed)?, whole)
    }

    fn reload(&self, access: &mut Access<'_>, how: Reload) -> Result<(), String> {
        reload::reload(&*self.0.upgrade().ok_or("ERR the server is stopping")?, access, how)
    }
}
