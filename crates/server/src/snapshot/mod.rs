//! Snapshots: writes the dataset to an RDB file (`SAVE`, `BGSAVE`, the `save` setting, shutdown),
//! and loads the file at startup.
//!
//! | file | purpose |
//! | --- | --- |
//! | `background` | starts a snapshot for a consumer, such as a file or replicas |
//! | `pace` | pauses of the thread that writes, if it shares its CPU with a worker |
//! | `bgsave` | `BGSAVE`, and snapshots that the `save` setting starts |
//! | `save` | `SAVE` |
//! | `file` | the snapshot file, and the temporary file that replaces it |
//! | `load` | reads a file; several threads decode its entries |
//! | `loading` | the progress of a load, for `INFO` |
//! | `reload` | `DEBUG RELOAD` |
//! | `check` | `pantala check-rdb` |
//!
//! Threads that hold shards encode the entries of these shards. A separate thread writes the
//! encoded entries, because it may have to wait for the disk. `SAVE` holds all shards until the
//! last byte is written. Meanwhile no key can be read or changed, but other workers serve commands
//! without keys.

mod background;
mod bgsave;
mod check;
mod file;
pub mod load;
pub mod loading;
mod pace;
mod reload;
mod save;

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError, Weak};

use pantala_engine::access::Access;
use pantala_engine::client::Shutdown;
use pantala_engine::keyspace::Keyspace;
use pantala_engine::whole::{self as engine, Reload, Storage, Whole};

use crate::aof::{self, Aof};
use crate::config::Settings;
use crate::host::Server;
use crate::process;
pub use load::Counts;

pub use background::{
    Background, Consumer, Failure, Job, JournalStart, NotStarted, Purpose, Record, Running, Section, Written, start,
    start_filtered, with_all_shards,
};
pub use bgsave::{Saves, reject_writes_on_error, save_if_due};
pub use check::{Arguments, check_rdb, check_start};
pub use load::{Duty, LoadError, Loaded, has_snapshot, load, load_at_start, restore_libraries};
pub use loading::{Loading, Watched};
pub use save::snapshot_header;

/// State of the files that contain the dataset (`INFO persistence`).
pub struct Snapshots {
    /// The append-only file.
    pub aof: Aof,
    /// Background snapshots.
    pub background: Background,
    /// Progress of the running load.
    pub loading: Loading,
    /// Times and results of snapshots to the file.
    pub saves: Saves,
    /// Number of changes of function libraries. Snapshots contain the libraries too.
    other_changes: AtomicU64,
    /// Number of expired keys in the RDB file that was loaded last.
    keys_expired: AtomicU64,
    /// Number of keys loaded from this RDB file.
    keys_loaded: AtomicU64,
    /// Options of the last shutdown that was requested by a signal, or that had to wait for
    /// replicas or for the end of the link to the primary.
    shutdown_options: Mutex<Shutdown>,
}

impl Snapshots {
    /// Creates the state of a server that starts at `now_ms`, Unix time.
    pub fn new(now_ms: i64, workers: u32) -> Self {
        Snapshots {
            aof: Aof::new(workers),
            background: Background::default(),
            loading: Loading::default(),
            saves: Saves::new(now_ms),
            other_changes: AtomicU64::new(0),
            keys_expired: AtomicU64::new(0),
            keys_loaded: AtomicU64::new(0),
            shutdown_options: Mutex::default(),
        }
    }

    /// Returns two counts for the RDB file that was loaded last: keys loaded and keys expired.
    pub fn loaded(&self) -> (u64, u64) {
        (self.keys_loaded.load(Relaxed), self.keys_expired.load(Relaxed))
    }

    /// Returns the number of changes since the last snapshot (`rdb_changes_since_last_save`).
    pub fn unsaved_changes(&self, keyspace: &Keyspace) -> u64 {
        self.all_changes(keyspace).wrapping_sub(self.saves.saved_changes())
    }

    /// Sets the number that [`Snapshots::unsaved_changes`] returns.
    pub fn set_unsaved_changes(&self, keyspace: &Keyspace, changes: u64) {
        self.saves.set_saved_changes(self.all_changes(keyspace).wrapping_sub(changes));
    }

    fn all_changes(&self, keyspace: &Keyspace) -> u64 {
        keyspace.changes() + self.other_changes.load(Relaxed)
    }

    /// Records and logs the counts of a load.
    pub fn note_loaded(&self, counts: &Counts) {
        let (loaded, expired) = (counts.loaded.load(Relaxed), counts.expired.load(Relaxed));
        self.keys_loaded.store(loaded, Relaxed);
        self.keys_expired.store(expired, Relaxed);
        tracing::info!("Done loading RDB, keys loaded: {loaded}, keys expired: {expired}.");
    }

    /// Counts a change of the function libraries.
    pub fn note_change(&self) {
        self.other_changes.fetch_add(1, Relaxed);
    }

    /// Returns the options that [`Snapshots::set_shutdown_options`] has recorded last.
    pub fn shutdown_options(&self) -> Shutdown {
        *self.shutdown_options.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records the options of a shutdown by a signal, or of a `SHUTDOWN` that waits for replicas or
    /// for the end of the link to the primary.
    pub fn set_shutdown_options(&self, how: Shutdown) {
        self.loading.note_shutdown();
        *self.shutdown_options.lock().unwrap_or_else(PoisonError::into_inner) = how;
    }
}

impl Server {
    /// Returns whether the server must save a snapshot before a shutdown with these options. While
    /// a load replaces the dataset, the server saves no snapshot, as in Redis.
    pub fn saves_before(&self, how: Shutdown) -> bool {
        let is_wanted = how.save || !how.no_save && !self.config().settings().save_points.is_empty();
        is_wanted && !how.abort && !self.snapshots().loading.is_incomplete()
    }
}

/// The reply to a `SHUTDOWN` that fails.
pub const SHUTDOWN_FAILED: &str = "ERR Errors trying to SHUTDOWN. Check logs.";
/// The log line for a shutdown that fails.
pub const SHUTDOWN_FAILED_LINE: &str = "Errors trying to shut down the server. Check the logs for more information.";
/// The log line for a shutdown by a signal that fails.
pub const SIGNAL_FAILED: &str =
    "Signal received but errors trying to shut down the server, check the logs for more information";

/// Saves before a shutdown. Returns whether the server may stop.
pub fn save_before_end(server: &Server, whole: &mut Whole<'_>, how: Shutdown) -> bool {
    if !aof::allows_exit(server, how) {
        return false;
    }
    tracing::info!("Saving the final RDB snapshot before exiting.");
    process::notify("STATUS=Saving the final RDB snapshot");
    // Libraries belong to no shard, so they could change even while all shards are held. From here
    // on, changes of libraries are rejected.
    let libraries = &server.scripting().libraries;
    libraries.set_final(true);
    // Aborts a running background snapshot, as Redis kills its child process. If the aborted
    // snapshot has already replaced the file, the file is replaced again below.
    let background = &server.snapshots().background;
    background.abort(|_| true);
    background.wait_until_finished(|purpose| purpose == Purpose::Save);
    if save::save(server, whole).is_ok() {
        return true;
    }
    libraries.set_final(how.force);
    if how.force {
        tracing::warn!("Error trying to save the DB. Exit anyway.");
    } else {
        tracing::warn!("Error trying to save the DB, can't exit.");
        process::notify("STATUS=Error trying to save the DB, can't exit.");
    }
    how.force
}

/// Returns the path of the snapshot file. The path is absolute, because `CONFIG SET dir` may change
/// the working directory. With an empty `dbfilename`, the path is empty: as in Redis, there is no
/// file to load, and saving fails.
pub fn path_of(settings: &Settings) -> PathBuf {
    if settings.dbfilename.as_os_str().is_empty() {
        return PathBuf::new();
    }
    settings.dir.join(&settings.dbfilename)
}

/// Access to a server's snapshot file, for commands that hold all shards.
pub struct Files(pub Weak<Server>);

impl Storage for Files {
    fn save(&self, whole: &mut Whole<'_>) -> Result<(), &'static str> {
        let server = self.0.upgrade().ok_or("ERR")?;
        let running = server.snapshots().background.running();
        if running.is_some_and(|running| running.purpose != Purpose::Rewrite) {
            return Err(bgsave::IN_PROGRESS);
        }
        server.snapshots().saves.note_started();
        save::save(&server, whole).map_err(|_| "ERR")
    }

    fn save_in_background(&self, access: &mut Access<'_>, schedules: bool) -> Result<engine::Background, &'static str> {
        bgsave::run(&*self.0.upgrade().ok_or("ERR")?, access, schedules)
    }

    fn note_flushed(&self, whole: &mut Whole<'_>) {
        if let Some(server) = self.0.upgrade() {
            bgsave::note_flushed(&server, whole);
        }
    }

    fn reload(&self, access: &mut Access<'_>, how: Reload) -> Result<(), String> {
        reload::reload(&*self.0.upgrade().ok_or("ERR the server is stopping")?, access, how)
    }
}
