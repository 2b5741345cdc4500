//! Background snapshots to the file: `BGSAVE` and the `save` setting. This setting consists of
//! *save points*. A save point is a time and a number of changes, after which a snapshot starts.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use pantala_engine::access::Access;
use pantala_engine::tuning::refusal::Refusals;
use pantala_engine::whole::{self, Whole};

use super::background::{Consumer, Failure, NotStarted, Purpose, Record, Section, Written, start, with_all_shards};
use super::file::{Target, Unfinished};
use super::save::note_version;
use crate::config::Settings;
use crate::host::Server;

/// For this time after the start of a failed snapshot, neither a save point nor a scheduled
/// `BGSAVE` starts the next one, as in Redis.
const RETRY_AFTER_S: i64 = 5;

/// The error reply to `SAVE` and `BGSAVE` while a snapshot to the file or for replicas is running.
pub(super) const IN_PROGRESS: &str = "ERR Background save already in progress";

const OTHER_CHILD: &str = "ERR Another child process is active (AOF?): can't BGSAVE right now. Use BGSAVE SCHEDULE in \
                           order to schedule a BGSAVE whenever possible.";

/// Times and results of snapshots to the file (`INFO persistence`).
#[derive(Debug)]
pub struct Saves {
    /// When the last snapshot was saved, Unix time in s. If there was none, the start of the
    /// server.
    last_save_s: AtomicI64,
    /// The same in s of the monotonic clock, for the save points: the system's clock may have been
    /// set since then.
    saved_at_s: AtomicI64,
    /// When the server last tried to start a background snapshot, in s of the monotonic clock.
    tried_at_s: AtomicI64,
    /// Whether the last background snapshot failed.
    has_failed: AtomicBool,
    /// Duration of the last background snapshot, s; -1 if there was none.
    last_took_s: AtomicI64,
    /// Number of bytes that commands had to encode for the last background snapshot before they
    /// changed values.
    last_forced_bytes: AtomicU64,
    /// Number of changes since startup that the last saved snapshot contains.
    saved_changes: AtomicU64,
    /// Number of snapshots that `SAVE`, `BGSAVE` or a save point has started, as in Redis.
    count: AtomicU64,
    /// Whether a snapshot to the file is scheduled, because a `BGSAVE` could not run at once or
    /// because of a `FLUSHALL`.
    is_scheduled: AtomicBool,
    /// Whether a worker is acquiring the shards for a snapshot.
    is_requested: AtomicBool,
}

impl Saves {
    /// Creates the state of a server that starts at `now_ms`, Unix time.
    pub fn new(now_ms: i64) -> Self {
        Saves {
            last_save_s: AtomicI64::new(now_ms / 1000),
            saved_at_s: AtomicI64::new(0),
            tried_at_s: AtomicI64::new(0),
            has_failed: AtomicBool::new(false),
            last_took_s: AtomicI64::new(-1),
            last_forced_bytes: AtomicU64::new(0),
            saved_changes: AtomicU64::new(0),
            count: AtomicU64::new(0),
            is_scheduled: AtomicBool::new(false),
            is_requested: AtomicBool::new(false),
        }
    }

    /// Returns when the last snapshot was saved, Unix time in s. If there was none, returns the
    /// start of the server.
    pub fn last_save_s(&self) -> i64 {
        self.last_save_s.load(Relaxed)
    }

    /// Returns whether the last background snapshot failed.
    pub fn has_failed(&self) -> bool {
        self.has_failed.load(Relaxed)
    }

    /// Returns the duration of the last background snapshot, s, or -1 if there was none.
    pub fn last_took_s(&self) -> i64 {
        self.last_took_s.load(Relaxed)
    }

    /// Returns the number of bytes that commands had to encode for the last background snapshot
    /// before they changed values. A fork would have copied these values.
    pub fn last_forced_bytes(&self) -> u64 {
        self.last_forced_bytes.load(Relaxed)
    }

    /// Returns the number of snapshots that `SAVE`, `BGSAVE` or a save point has started.
    pub fn count(&self) -> u64 {
        self.count.load(Relaxed)
    }

    /// Returns the number of changes since startup that the last saved snapshot contains.
    pub(super) fn saved_changes(&self) -> u64 {
        self.saved_changes.load(Relaxed)
    }

    /// Records whether the last background snapshot failed.
    fn set_failed(&self, server: &Server, has_failed: bool) {
        self.has_failed.store(has_failed, Relaxed);
        reject_writes_on_error(server, &server.config().settings());
    }

    pub(super) fn set_saved_changes(&self, changes: u64) {
        self.saved_changes.store(changes, Relaxed);
    }

    /// Counts a snapshot that a command or a save point starts.
    pub(super) fn note_started(&self) {
        self.count.fetch_add(1, Relaxed);
    }

    /// Records that a snapshot with this number of changes since startup was saved.
    pub(super) fn note_saved(&self, server: &Server, changes: u64) {
        self.saved_changes.store(changes, Relaxed);
        self.last_save_s.store(server.now_ms() / 1000, Relaxed);
        self.saved_at_s.store(server.monotonic_ms() / 1000, Relaxed);
        self.set_failed(server, false);
    }
}

/// Makes the server reject writes if the last background snapshot failed and
/// `stop-writes-on-bgsave-error` is set. Otherwise makes it accept writes.
pub fn reject_writes_on_error(server: &Server, settings: &Settings) {
    let is_expected = settings.stop_writes_on_bgsave_error && !settings.save_points.is_empty();
    let is_unsaved = is_expected && server.snapshots().saves.has_failed();
    server.keyspace().tuning.set_refusals(Refusals::UNSAVED, is_unsaved);
}

/// Runs `BGSAVE`.
///
/// # Errors
/// Returns the error reply.
pub(super) fn run(
    server: &Server,
    access: &mut Access<'_>,
    schedules: bool,
) -> Result<whole::Background, &'static str> {
    let snapshots = server.snapshots();
    // A snapshot contains either all changes of a transaction or none, so it can't start within a
    // transaction.
    let is_in_exec = !access.may_block();
    match snapshots.background.running().map(|running| running.purpose) {
        Some(Purpose::Save | Purpose::Replicas) => return Err(IN_PROGRESS),
        Some(Purpose::Rewrite) if !schedules && !is_in_exec => return Err(OTHER_CHILD),
        None if !is_in_exec => {}
        _ => {
            snapshots.saves.is_scheduled.store(true, Relaxed);
            return Ok(whole::Background::Scheduled);
        }
    }
    match start_now(server, &mut access.whole()) {
        Ok(()) => Ok(whole::Background::Started),
        Err(NotStarted::Running(_)) => Err(IN_PROGRESS),
        Err(NotStarted::Thread(_)) => Err("ERR"),
    }
}

/// Does the part of `FLUSHALL` that concerns snapshots. As in Redis, aborts a running snapshot to
/// the file. If there are save points, also replaces the file by a file without keys. Without this,
/// the deleted keys would reappear after a crash. If a snapshot is still running, the replacement
/// is only scheduled, because the aborted snapshot may be about to rename its file.
pub(super) fn note_flushed(server: &Server, whole: &mut Whole<'_>) {
    let snapshots = server.snapshots();
    snapshots.background.abort(|purpose| purpose == Purpose::Save);
    if server.config().settings().save_points.is_empty() {
        return;
    }
    if snapshots.background.running().is_some() {
        snapshots.saves.is_scheduled.store(true, Relaxed);
    } else {
        // `save` logs a failure. Another snapshot then starts at the next save point.
        let _ = super::save::save(server, whole);
    }
}

fn start_now(server: &Server, whole: &mut Whole<'_>) -> Result<(), NotStarted> {
    let saves = &server.snapshots().saves;
    saves.tried_at_s.store(server.monotonic_ms() / 1000, Relaxed);
    let settings = server.config().settings();
    let shared =
        server.snapshots().background.server().ok_or_else(|| NotStarted::Thread(io::ErrorKind::Other.into()))?;
    let changes = server.snapshots().all_changes(server.keyspace());
    let place = server.replication().saved_position(server);
    let consumer = Saving { server: shared, changes, place, target: Target::of(&settings, 1), file: None };
    match start(server, whole, Purpose::Save, None, Box::new(consumer)) {
        Ok(_) => {
            saves.note_started();
            tracing::info!("Background saving started");
            Ok(())
        }
        Err(why) => {
            if let NotStarted::Thread(error) = &why {
                saves.note_started();
                tracing::warn!("Can't save in background: {error}");
                saves.set_failed(server, true);
            }
            Err(why)
        }
    }
}

/// Starts a snapshot if a save point is reached or a scheduled snapshot can run. Worker 0 calls
/// this function several times a second.
pub fn save_if_due(server: &Server) {
    let saves = &server.snapshots().saves;
    if !is_due(server, server.monotonic_ms() / 1000) || saves.is_requested.swap(true, Relaxed) {
        return;
    }
    with_all_shards(
        server,
        Box::new(|server, whole| {
            let saves = &server.snapshots().saves;
            saves.is_requested.store(false, Relaxed);
            // After a failure, the snapshot stays scheduled. `start_now` logs any failure other
            // than a running snapshot.
            if start_now(server, whole).is_ok() {
                saves.is_scheduled.store(false, Relaxed);
            }
        }),
    );
}

/// Returns whether to start a snapshot. `now_s` is the time in s of the monotonic clock.
fn is_due(server: &Server, now_s: i64) -> bool {
    let snapshots = server.snapshots();
    let saves = &snapshots.saves;
    if saves.has_failed() && now_s - saves.tried_at_s.load(Relaxed) <= RETRY_AFTER_S {
        return false;
    }
    if snapshots.background.running().is_some() || snapshots.loading.is_incomplete() {
        return false;
    }
    if saves.is_scheduled.load(Relaxed) {
        return true;
    }
    let passed_s = now_s - saves.saved_at_s.load(Relaxed);
    let settings = server.config().settings();
    let points = settings.save_points();
    // The number of changes is a sum over all partitions (parts of shards). It is computed only
    // once the shortest time of all save points has passed.
    let shortest_s = points.clone().map(|(seconds, _)| seconds).min();
    if shortest_s.is_none_or(|seconds| passed_s <= seconds) {
        return false;
    }
    let changes = snapshots.unsaved_changes(server.keyspace());
    for (seconds, least) in points {
        if changes >= least && passed_s > seconds {
            tracing::info!("{changes} changes in {seconds} seconds. Saving...");
            return true;
        }
    }
    false
}

/// The consumer that writes a background snapshot to the file.
struct Saving {
    server: Arc<Server>,
    /// Number of changes since startup that the snapshot contains.
    changes: u64,
    /// Auxiliary fields with the dataset's place in a replication history. Empty if the dataset has
    /// no such place.
    place: Vec<(&'static str, String)>,
    target: Target,
    file: Option<Unfinished>,
}

impl Consumer for Saving {
    fn begin(&mut self) -> io::Result<Vec<(&'static str, String)>> {
        self.file = Some(self.target.create()?);
        Ok(std::mem::take(&mut self.place))
    }

    fn take(&mut self, _: Section, bytes: &mut Vec<u8>) -> io::Result<()> {
        let file = self.file.as_mut().ok_or(io::ErrorKind::NotFound)?;
        Ok(file.write(bytes)?)
    }

    fn finished(self: Box<Self>, outcome: Result<Written, Failure>, took: Duration) -> Option<Record> {
        let Saving { server, changes, target, file, .. } = *self;
        // Until this method returns, `running` is this consumer's snapshot.
        let running = server.snapshots().background.running();
        let forced_bytes = running.map_or(0, |running| running.forced_bytes());
        let finished = outcome.and_then(|written| {
            let file = file.ok_or(Failure::Io(io::ErrorKind::NotFound.into()))?;
            file.replace(target.path()).map_err(|failed| Failure::Io(failed.into()))?;
            Ok(written)
        });
        match &finished {
            Ok(written) => {
                note_version(written.version);
                tracing::info!("DB saved on disk");
                tracing::info!("Background saving terminated with success");
            }
            Err(Failure::Aborted) => tracing::warn!("Background saving aborted"),
            Err(Failure::Io(error)) => {
                tracing::warn!("Write error saving DB on disk '{}': {error}", target.path().display());
                tracing::warn!("Background saving error");
            }
        }
        Some(Box::new(move || {
            let saves = &server.snapshots().saves;
            saves.last_took_s.store(took.as_secs() as i64, Relaxed);
            saves.last_forced_bytes.store(forced_bytes, Relaxed);
            match finished {
                Ok(_) => saves.note_saved(&server, changes),
                Err(Failure::Aborted) => {}
                Err(Failure::Io(_)) => saves.set_failed(&server, true),
            }
        }))
    }
}
