//! Rewrites the append-only file: a snapshot becomes the new base, and the files with earlier
//! effects are deleted.
//!
//! A *base* is a file with the dataset at one instant. An *increment* is a file with the effects
//! (propagated changes) since then. A *cut* is the point in the stream of effects at which the
//! snapshot of a rewrite starts.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::Release};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pantala_engine::effect::Which;
use pantala_engine::whole::Whole;
use pantala_persistence::aof::{CommandBase, Commands, NewBase, Writing, timestamp};
use pantala_persistence::temporary::{SYNC_EVERY_BYTES, TemporaryFile};

use super::directory::{Directory, Place};
use super::inbox::{Inbox, Order};
use super::state::{State, lock};
use super::writer;
use crate::disk::SystemDisk;
use crate::host::Server;
use crate::snapshot::{
    Consumer, Failure, JournalStart, NotStarted, Purpose, Record, Section, Written, start as start_snapshot,
    with_all_shards,
};

/// Number of failures in a row after which automatic and scheduled rewrites are delayed, as in
/// Redis.
const FAILURES_MAX: u64 = 3;
/// Maximum delay of a rewrite after failures, as in Redis.
const DELAY_MS_MAX: i64 = 60 * 60 * 1000;
/// Minimum delay of a rewrite after failures, as in Redis. Each further failure doubles the delay.
const DELAY_MS_MIN: i64 = 60 * 1000;
/// Minimum delay of a rewrite that must succeed before the server accepts writes again, ms. It
/// replaces [`DELAY_MS_MIN`], because such a rewrite is urgent.
const AWAITED_MS_MIN: i64 = 1000;
/// Delay of such a rewrite, as a multiple of the duration of the last rewrite.
const AWAITED_PER_TOOK: i64 = 4;

/// The reply of `BGREWRITEAOF` if a rewrite was started.
pub const STARTED: &str = "Background append only file rewriting started";
const SCHEDULED: &str = "Background append only file rewriting scheduled";
const IN_PROGRESS: &str = "ERR Background append only file rewriting already in progress";

/// A snapshot on disk that can become the base.
#[derive(Debug)]
pub struct Base {
    /// Temporary path of the file.
    pub path: PathBuf,
    /// Whether the base is an RDB file.
    pub is_rdb: bool,
    /// Size of the file, bytes.
    pub bytes: u64,
}

impl Base {
    /// Returns this base in the form that `Place::install` takes.
    pub fn described(&self) -> NewBase<'_> {
        NewBase { path: &self.path, is_rdb: self.is_rdb, bytes: self.bytes }
    }

    /// Deletes the file of a base that can't be installed.
    pub fn discard(&self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// The reason why a rewrite has ended without a new base.
#[derive(Debug)]
pub enum Unfinished {
    /// The rewrite was aborted, because the append-only file was turned off or the server stops.
    Aborted,
    /// The rewrite has failed, for this reason.
    Failed(String),
}

/// Runs `BGREWRITEAOF`. Returns the reply.
///
/// # Errors
/// The error reply.
pub fn run(server: &Server) -> Result<&'static str, &'static str> {
    let rewrites = &server.snapshots().aof.rewrites;
    if rewrites.is_running.load(Relaxed) {
        return Err(IN_PROGRESS);
    }
    if server.snapshots().background.running().is_some() {
        rewrites.is_scheduled.store(true, Relaxed);
        return Ok(SCHEDULED);
    }
    request(server);
    Ok(STARTED)
}

/// Starts a rewrite as soon as a worker holds all shards. Does nothing if a rewrite is running.
pub fn request(server: &Server) {
    let rewrites = &server.snapshots().aof.rewrites;
    if rewrites.is_running.swap(true, Relaxed) {
        return;
    }
    rewrites.since_ms.store(server.monotonic_ms(), Relaxed);
    // Release: a thread that sees this store also sees `is_running`.
    rewrites.is_scheduled.store(false, Release);
    with_all_shards(server, Box::new(start));
}

/// Starts a rewrite that must succeed before the server accepts writes again. If the rewrite must
/// wait because of failures ([`is_delayed`]), schedules it instead.
pub(super) fn request_awaited(server: &Server) {
    if is_delayed(server) {
        server.snapshots().aof.rewrites.is_scheduled.store(true, Relaxed);
    } else {
        request(server);
    }
}

/// Starts a rewrite if one is scheduled or if the files have grown enough. Worker 0 calls this
/// function several times a second.
pub fn rewrite_if_due(server: &Server) {
    let (aof, background) = (&server.snapshots().aof, &server.snapshots().background);
    if aof.rewrites.is_running.load(Relaxed) || background.running().is_some() {
        return;
    }
    if aof.rewrites.is_scheduled.load(Relaxed) {
        if !is_delayed(server) {
            request(server);
        }
        return;
    }
    let settings = server.config().settings().aof;
    let (current, base) = (aof.written.current_bytes.load(Relaxed), aof.written.base_bytes.load(Relaxed).max(1));
    if aof.state() != State::On || settings.rewrite_percentage == 0 || current <= settings.rewrite_min_bytes {
        return;
    }
    let growth = (u128::from(current) * 100 / u128::from(base)).saturating_sub(100);
    if growth >= u128::from(settings.rewrite_percentage) && !is_delayed(server) {
        tracing::info!("Starting automatic rewriting of AOF on {growth}% growth");
        request(server);
    }
}

/// Returns whether the next rewrite must wait because rewrites have failed repeatedly.
fn is_delayed(server: &Server) -> bool {
    let (rewrites, written) = (&server.snapshots().aof.rewrites, &server.snapshots().aof.written);
    let failed_ms = rewrites.failed_ms.load(Relaxed);
    let took_ms = failed_ms - rewrites.since_ms.load(Relaxed);
    let awaited_ms = written.awaits_base.load(Relaxed).then_some(took_ms);
    server.monotonic_ms() - failed_ms < delay_ms(rewrites.failures.load(Relaxed), awaited_ms)
}

/// Returns the delay of the next rewrite after `failures` consecutive failures, ms. If the server
/// rejects writes until a rewrite succeeds, `awaited_ms` is the duration of the last rewrite, ms.
/// Otherwise it is `None`.
fn delay_ms(failures: u64, awaited_ms: Option<i64>) -> i64 {
    match (failures.checked_sub(FAILURES_MAX), awaited_ms) {
        (None, _) => 0,
        (Some(_), Some(took_ms)) => (AWAITED_PER_TOOK * took_ms).max(AWAITED_MS_MIN),
        (Some(more), None) => (DELAY_MS_MIN << more.min(6)).min(DELAY_MS_MAX),
    }
}

/// Starts a rewrite on a worker that holds all shards. Until this function returns, no command that
/// needs a shard can run. So the function opens no file, and takes no lock that is held while a
/// file is opened.
fn start(server: &Server, whole: &mut Whole<'_>) {
    let Some(shared) = server.snapshots().background.server() else { return };
    let aof = &server.snapshots().aof;
    aof.rewrites.is_increment_failed.store(false, Relaxed);
    let mut handle = lock(&aof.writer);
    let inbox = handle.as_ref().map_or_else(Arc::default, |handle| Arc::clone(&handle.inbox));
    let started = Arc::new(Mutex::new(()));
    // This lock is held until the writer thread has received the cut. The thread of the snapshot
    // takes the lock before it ends the rewrite. So the rewrite can't end before the writer thread
    // knows of its cut.
    let starting = lock(&started);
    let uses_rdb = server.config().settings().aof.uses_rdb || whole.has_expiring_fields();
    let is_written = aof.state() != State::Off;
    let consumer = Rewriting::new(&shared, uses_rdb, is_written, Arc::clone(&inbox), Arc::clone(&started));
    let journal =
        is_written.then(|| JournalStart { which: Which::Effects, bytes_max: unbounded(), wake: waking(&inbox) });
    let reader = match start_snapshot(server, whole, Purpose::Rewrite, journal, Box::new(consumer)) {
        Ok(reader) => reader,
        Err(NotStarted::Running(_)) => {
            aof.rewrites.is_scheduled.store(true, Relaxed);
            // This store comes second, so that one of the two is always set.
            aof.rewrites.is_running.store(false, Release);
            return;
        }
        Err(NotStarted::Thread(error)) => return note_ended(server, &Err(Unfinished::Failed(error.to_string()))),
    };
    tracing::info!("Background append only file rewriting started");
    let Some(reader) = reader else { return };
    match &*handle {
        Some(_) => inbox.order(Order::Cut(reader)),
        None => match writer::start(&shared, inbox, reader, Writing::at_cut()) {
            Ok(begun) => aof.register(&mut handle, begun),
            Err(error) => {
                tracing::warn!("Can't write the append only file: {error}");
                fail(server);
            }
        },
    }
    drop(starting);
}

/// Ends the running rewrite because its increment can't be written.
pub(super) fn fail(server: &Server) {
    server.snapshots().aof.rewrites.is_increment_failed.store(true, Relaxed);
    server.snapshots().background.abort(|purpose| purpose == Purpose::Rewrite);
}

/// Returns the limit on the bytes that the writer thread may be behind. The limit is so high that
/// it is never reached: a slow disk may delay writes, but must not lose effects.
pub fn unbounded() -> Arc<AtomicU64> {
    Arc::new(AtomicU64::new(u64::MAX))
}

/// Returns a callback that wakes the thread that owns this inbox.
pub fn waking(inbox: &Arc<Inbox>) -> pantala_engine::effect::log::Wake {
    let inbox = Arc::clone(inbox);
    Arc::new(move || inbox.wake())
}

/// Records the end of a rewrite. After a success, deletes the files that the new base has replaced.
/// As in Redis, an aborted rewrite doesn't count as a failure, so the next rewrite isn't delayed.
pub fn note_ended(server: &Server, outcome: &Result<(), Unfinished>) {
    let (aof, now_ms) = (&server.snapshots().aof, server.monotonic_ms());
    let rewrites = &aof.rewrites;
    let took_ms = now_ms - rewrites.since_ms.load(Relaxed);
    rewrites.last_took_s.store(took_ms / 1000, Relaxed);
    rewrites.count.fetch_add(1, Relaxed);
    match outcome {
        Ok(()) => {
            tracing::info!("Background AOF rewrite finished successfully");
            rewrites.failures.store(0, Relaxed);
            if let Some(place) = aof.place().as_mut() {
                collect(place, server);
            }
            aof.written.base_bytes.store(aof.written.current_bytes.load(Relaxed), Relaxed);
        }
        Err(Unfinished::Aborted) => tracing::info!("Background AOF rewrite aborted"),
        Err(Unfinished::Failed(why)) => {
            tracing::warn!("Background AOF rewrite failed: {why}");
            rewrites.failures.fetch_add(1, Relaxed);
            rewrites.failed_ms.store(now_ms, Relaxed);
        }
    }
    // Until there is a base, the increment that is being written can't be loaded. So the rewrite is
    // retried.
    if outcome.is_err() && aof.state() == State::AwaitsBase {
        rewrites.is_scheduled.store(true, Relaxed);
    }
    rewrites.is_running.store(false, Relaxed);
}

/// Ends the rewrite whose snapshot has ended with `base`, which is not installed.
pub(super) fn abandon(server: &Server, base: &Result<Base, Unfinished>) {
    if let Ok(base) = base {
        base.discard();
    }
    note_ended(server, &Err(Unfinished::Aborted));
}

/// Deletes the files that a base has replaced, unless `aof-disable-auto-gc` is set.
pub(super) fn collect(place: &mut Place, server: &Server) {
    if place.manifest.history().is_empty() || server.config().settings().aof.keeps_history {
        return;
    }
    for listed in place.manifest.take_history() {
        let name = listed.name.escape_ascii();
        tracing::info!("Removing the history file {name} in the background");
        if let Err(error) = place.directory.remove(&listed.name) {
            tracing::warn!("Can't remove the file {name}: {error}");
        }
    }
    if let Err(error) = place.directory.write_manifest(&place.manifest) {
        tracing::warn!("Can't write the AOF manifest: {error}");
    }
}

/// The consumer of a snapshot that writes a base.
pub struct Rewriting {
    server: Arc<Server>,
    inbox: Arc<Inbox>,
    /// Locked by [`start`] until the writer thread has received the cut.
    started: Arc<Mutex<()>>,
    /// Whether the append-only file was on when the rewrite started. If so, the effects after the
    /// cut are written to an increment.
    has_cut: bool,
    /// The directory of the files.
    directory: Directory,
    /// The directory with its manifest, if the append-only file is off and was last written in
    /// another directory. The thread that wrote it there may still be ending, and uses the other
    /// manifest.
    place: Option<Place>,
    /// The file of the base, once the thread of the snapshot has opened it.
    file: Option<TemporaryFile<SystemDisk>>,
    /// Translates the snapshot to commands. `None` if the base is an RDB file.
    commands: Option<CommandBase>,
    /// Whether the file is also synced during the writing (`aof-rewrite-incremental-fsync`).
    syncs: bool,
}

impl Rewriting {
    fn new(server: &Arc<Server>, uses_rdb: bool, has_cut: bool, inbox: Arc<Inbox>, started: Arc<Mutex<()>>) -> Self {
        let settings = server.config().settings();
        let commands = (!uses_rdb).then(|| {
            let commands = Commands::new(server.keyspace().databases(), settings.proto_max_bulk_len_bytes);
            CommandBase::new(commands, annotated_s(server).map(timestamp), settings.aof.checksums)
        });
        let syncs = settings.aof.rewrite_incremental_fsync;
        Rewriting {
            server: Arc::clone(server),
            inbox,
            started,
            has_cut,
            directory: server.snapshots().aof.directory(&settings),
            place: None,
            file: None,
            commands,
            syncs,
        }
    }

    /// Returns the temporary path of the new base. It lies beside the directory of the files. If no
    /// writer thread reads the manifest, reads it.
    fn path(&mut self) -> io::Result<PathBuf> {
        let name = format!("temp-rewriteaof-bg-{}.aof", std::process::id());
        if !self.has_cut {
            let mut held = self.server.snapshots().aof.place();
            match &mut *held {
                None => *held = Some(place_of(self.directory.clone())?),
                Some(place) if place.directory.path() == self.directory.path() => {}
                Some(_) => self.place = Some(place_of(self.directory.clone())?),
            }
        }
        Ok(self.directory.beside(&name))
    }

    /// Writes the next bytes of the snapshot. `None` stands for its end.
    fn write(&mut self, bytes: Option<&[u8]>) -> io::Result<()> {
        let file = self.file.as_mut().ok_or(io::ErrorKind::NotFound)?;
        match (&mut self.commands, bytes) {
            (Some(commands), bytes) => commands.write(bytes, file),
            (None, Some(bytes)) => Ok(file.write(bytes)?),
            (None, None) => Ok(()),
        }
    }

    fn end(&mut self, outcome: Result<Written, Failure>) -> Result<Base, Unfinished> {
        let is_increment_failed = self.server.snapshots().aof.rewrites.is_increment_failed.load(Relaxed);
        outcome.map_err(|failure| match failure {
            Failure::Aborted if !is_increment_failed => Unfinished::Aborted,
            failure => Unfinished::Failed(failure.to_string()),
        })?;
        self.write(None).map_err(|error| Unfinished::Failed(error.to_string()))?;
        let mut file = self.file.take().ok_or_else(|| Unfinished::Failed("it was not opened".to_owned()))?;
        let bytes = file.sync().map_err(|failed| Unfinished::Failed(failed.to_string()))?;
        Ok(Base { path: file.keep(), is_rdb: self.commands.is_none(), bytes })
    }
}

impl Consumer for Rewriting {
    fn begin(&mut self) -> io::Result<Vec<(&'static str, String)>> {
        let sync_every = self.syncs.then_some(SYNC_EVERY_BYTES);
        self.file = Some(TemporaryFile::create(SystemDisk::AppendOnly, self.path()?, sync_every)?);
        Ok(Vec::new())
    }

    fn take(&mut self, _: Section, bytes: &mut Vec<u8>) -> io::Result<()> {
        let taken = std::mem::take(bytes);
        self.write(Some(&taken))
    }

    fn finished(mut self: Box<Self>, outcome: Result<Written, Failure>, _: Duration) -> Option<Record> {
        let ended = self.end(outcome);
        // After a failure, removes the file.
        drop(self.file.take());
        // Waits until the writer thread has received the cut.
        drop(lock(&self.started));
        let (server, aof) = (&self.server, &self.server.snapshots().aof);
        let handle = lock(&aof.writer);
        let is_written = aof.state() != State::Off;
        // `Order::Stop` is sent under the lock that `handle` holds. So if the writer thread is
        // still registered here, it has not received `Stop`, and will obey this order.
        if is_written && handle.as_ref().is_some_and(|handle| Arc::ptr_eq(&handle.inbox, &self.inbox)) {
            self.inbox.order(Order::Base(ended));
            return None;
        }
        drop(handle);
        let installed = ended.and_then(|base| {
            let mut held = aof.place();
            let installed = match (is_written, self.place.as_mut().or(held.as_mut())) {
                // `install` moves all increments to the history, whose files are deleted. If the
                // stream was cut, one increment has the effects after the cut and must stay. So the
                // base is installed only if there was no cut, and is deleted otherwise.
                (false, Some(place)) if !self.has_cut => {
                    place.install(base.described(), false, 0).map_err(|error| Unfinished::Failed(error.to_string()))
                }
                _ => Err(Unfinished::Aborted),
            };
            installed.inspect_err(|_| base.discard())
        });
        if let (Ok(()), Some(place)) = (&installed, &mut self.place) {
            collect(place, server);
        }
        note_ended(server, &installed);
        None
    }
}

/// Creates the directory if it doesn't exist, and reads its manifest.
///
/// # Errors
/// The directory can't be created, or its manifest can't be read or is invalid.
pub(super) fn place_of(directory: Directory) -> io::Result<Place> {
    directory.create()?;
    let manifest = directory.read_manifest().map_err(|unread| io::Error::other(format!("{unread:?}")))?;
    let others_bytes = manifest.to_load().map(|listed| directory.size_of(listed)).sum();
    Ok(Place { directory, manifest, others_bytes })
}

/// Returns the current Unix time in s if effects are to be annotated with it
/// (`aof-timestamp-enabled`).
pub(super) fn annotated_s(server: &Server) -> Option<i64> {
    server.snapshots().aof.options.writes_times.load(Relaxed).then(|| server.now_ms() / 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rewrites_that_writes_wait_for_are_tried_soon() {
        assert_eq!([0, 2, 3, 4, 100].map(|failures| delay_ms(failures, None)), [0, 0, 60_000, 120_000, 3_600_000]);
        assert_eq!([0, 2, 3, 4, 100].map(|failures| delay_ms(failures, Some(10))), [0, 0, 1000, 1000, 1000]);
        assert_eq!(delay_ms(100, Some(5000)), 20_000, "a large dataset is not written all the time");
    }
}
