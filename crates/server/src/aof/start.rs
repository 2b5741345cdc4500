//! Turns the append-only file on and off: at startup, by `CONFIG SET appendonly`, and at exit.
//!
//! A *base* is a file with the dataset at one instant. An *increment* is a file with the effects
//! (propagated changes) since then.

use std::io;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use pantala_engine::access::SessionView;
use pantala_engine::client::{Client, Endpoint, Listener, Session, Shutdown};
use pantala_engine::effect::Which;
use pantala_engine::executor::Executor;
use pantala_engine::functions::{Functions, LibraryChange};
use pantala_engine::ownership::Ownership;
use pantala_engine::whole::Whole;
use pantala_persistence::aof::Writing;
use pantala_persistence::rdb::{Sink, write_dataset};

use super::directory::{Place, directory_of};
use super::inbox::{Inbox, Order};
use super::load::{self, Files, Target};
use super::rewrite::{self, collect, unbounded, waking};
use super::state::{State, lock};
use super::writer;
use crate::config::Settings;
use crate::host::Server;
use crate::process;
use crate::replication::end_local_waits;
use crate::snapshot::snapshot_header;

/// Number of attempts of [`restart`], as in Redis.
const RESTARTS_MAX: u32 = 10;
/// Time between two attempts of [`restart`], as in Redis.
const RESTART_AFTER: Duration = Duration::from_secs(1);

/// Returns whether there are files to load at startup.
pub fn has_files(server: &Server) -> bool {
    load::has_files(&server.config().settings())
}

/// Loads the files and starts the writer thread, at startup. `owned` must hold all shards.
///
/// # Errors
/// Returns the reason why the server must not continue, as text for the operator.
pub fn start(server: &Arc<Server>, owned: &mut Vec<Ownership>) -> Result<(), String> {
    let now_ms = server.now_ms();
    let client =
        Client::new(0, Listener::default(), -1, Endpoint::Unix(String::new()), Endpoint::Unix(String::new()), now_ms);
    let view = Session::new(Arc::new(client), server.keyspace().users()).view();
    // Worker 0 may already have another executor. The two don't conflict: worker 0 holds no shard
    // yet, and the commands in the files wake no client.
    let mut executor = Executor::new(server.keyspace(), 0);
    let files = load::load(server, &mut Target { executor: &mut executor, owned, view })?;
    let failed = |error: io::Error| format!("Can't open the append-only file: {error}");
    open(server, &mut server.keyspace().whole(owned, server.now_ms()), &files).map_err(failed)
}

/// Opens the last increment or creates the first files, and starts the writer thread.
fn open(server: &Arc<Server>, whole: &mut Whole<'_>, files: &Files) -> io::Result<()> {
    let aof = &server.snapshots().aof;
    let directory = directory_of(&server.config().settings());
    let is_empty = files.manifest.is_empty();
    let (mut place, opened) = Place::open(directory, &files.manifest, || empty_base(server, whole))?;
    if let (true, Some(base)) = (is_empty, place.manifest.base()) {
        tracing::info!("Creating AOF base file {} on server start", base.name.escape_ascii());
    }
    let doing = if opened.is_new { "Creating" } else { "Opening" };
    tracing::info!("{doing} AOF incr file {} on server start", opened.name.escape_ascii());
    collect(&mut place, server);
    let len = opened.len;
    aof.written.current_bytes.store(place.others_bytes + len, Relaxed);
    // `auto-aof-rewrite-percentage` compares the current size with the size after the last rewrite.
    // That size is unknown after a restart, so the size of the base is used instead. The first
    // rewrite may therefore start early, as in Redis.
    let base_bytes = if files.base_bytes > 0 { files.base_bytes } else { place.others_bytes };
    aof.written.base_bytes.store(base_bytes, Relaxed);
    aof.set_directory(Some(place.directory.clone()));
    *aof.place() = Some(place);
    let inbox = Arc::new(Inbox::default());
    let order = server.keyspace().journal().order_libraries();
    let reader = whole.cut_journal(&order, Which::Effects, unbounded(), waking(&inbox))?;
    drop(order);
    let handle = writer::start(server, inbox, reader, Writing::new(opened.file, len))?;
    aof.register(&mut lock(&aof.writer), handle);
    aof.set_state(server, State::On);
    Ok(())
}

/// Collects the text of a file in memory.
#[derive(Default)]
struct Text(Vec<u8>);

impl Sink for Text {
    fn take(&mut self, chunk: &mut Vec<u8>) -> bool {
        self.0.append(chunk);
        true
    }
}

/// Returns the content of a base without keys, and whether this base is an RDB file.
fn empty_base(server: &Server, whole: &mut Whole<'_>) -> (Vec<u8>, bool) {
    let uses_rdb = server.config().settings().aof.uses_rdb;
    let mut text = Text::default();
    if uses_rdb {
        write_dataset(whole, &snapshot_header(server, true), &mut text);
    }
    (text.0, uses_rdb)
}

/// Syncs the files, so that they contain all effects committed so far. Then deletes all keys and
/// loads the files. `owned` must hold all shards.
///
/// The calling worker must count as asleep
/// ([`Journal::rest`](pantala_engine::effect::Journal::rest)). This is because the sync waits until
/// the journal ends its current epoch (a period of about a millisecond), and the journal waits for
/// each worker that is awake.
///
/// # Errors
/// Returns the error reply. If there are no files, or if the sync before the deletion has failed,
/// the dataset is unchanged.
pub fn reload<'k>(
    server: &Server,
    executor: &mut Executor<'k>,
    owned: &mut Vec<Ownership>,
    view: SessionView,
) -> Result<(), String> {
    const FAILED: &str = "ERR Error trying to load the AOF files, check server logs";
    // Even if the append-only file is off, `BGREWRITEAOF` may have written files.
    if server.snapshots().aof.state() == State::Off && !has_files(server) {
        return Err("ERR There is no append-only file".to_owned());
    }
    if !sync(server) {
        return Err(FAILED.to_owned());
    }
    let databases = 0..server.keyspace().databases();
    let empty = |executor: &mut Executor<'k>, owned: &mut Vec<Ownership>| {
        executor.runner().look(&view, owned, server.now_ms()).flush(databases.clone(), false);
    };
    // The effects of the load must not be propagated, because the files already contain them. So
    // they are collected in a unit (a group of effects that are propagated together), which is
    // abandoned below.
    executor.recorder().begin_unit(owned);
    empty(executor, owned);
    let cleared = server.flush(&LibraryChange::loaded());
    let loaded = load::load(server, &mut Target { executor, owned, view });
    if let Err(error) = &loaded {
        tracing::warn!("{error}");
        empty(executor, owned);
    }
    executor.recorder().abandon_unit(owned);
    match (cleared, loaded) {
        (Ok(()), Ok(_)) => {
            tracing::warn!("Append Only File loaded by DEBUG LOADAOF");
            Ok(())
        }
        _ => Err(FAILED.to_owned()),
    }
}

/// Checks that the append-only file can be turned on: creates the directory that the settings name
/// if it doesn't exist, reads its manifest, and checks that a file can be created in it. Called
/// before [`turn_on`]. Waits for the disk, so no worker may call this function.
///
/// # Errors
/// No file can be created, or the manifest is unreadable or invalid. The log has the reason, and
/// nothing that this function has created is left.
pub fn check_files(settings: &Settings) -> Result<(), &'static str> {
    let directory = directory_of(settings);
    let path = settings.dir.join(&settings.appenddirname);
    let existed = path.exists();
    let checked = rewrite::place_of(directory).and_then(|place| place.directory.check());
    checked.map_err(|error| {
        tracing::warn!("Can't open the append-only file: {error}");
        if !existed {
            // Fails if the directory was not created, or has files of another thread.
            let _ = std::fs::remove_dir(&path);
        }
        "Unable to turn on AOF. Check server logs."
    })
}

/// When the first rewrite of an append-only file that is turned on starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FirstRewrite {
    /// At once, or after the snapshot or the rewrite that is running.
    Now,
    /// Soon. For a transaction (`EXEC`), whose other commands must run first.
    Soon,
}

/// Turns the append-only file on: starts a rewrite. The snapshot of the rewrite becomes the base,
/// and the effects after the snapshot are written to an increment. Opens no file: the writer thread
/// does so when the rewrite has started.
pub fn turn_on(server: &Server, settings: &Settings, first: FirstRewrite) {
    let aof = &server.snapshots().aof;
    aof.set_directory(Some(directory_of(settings)));
    aof.set_state(server, State::AwaitsBase);
    let is_busy = server.snapshots().background.running().is_some() || aof.rewrites.is_running.load(Relaxed);
    if !is_busy && first == FirstRewrite::Now {
        return rewrite::request(server);
    }
    let why = if is_busy { "but there is already another background operation" } else { "during a transaction" };
    tracing::info!("AOF was enabled {why}. An AOF background was scheduled to start when possible.");
    aof.rewrites.is_scheduled.store(true, Relaxed);
}

/// Turns the append-only file off. The writer thread still writes the effects committed so far.
pub fn turn_off(server: &Server) {
    let aof = &server.snapshots().aof;
    aof.set_state(server, State::Off);
    aof.set_directory(None);
    aof.rewrites.is_scheduled.store(false, Relaxed);
    aof.set_write_error(server, 0);
    if aof.rewrites.is_running.load(Relaxed) {
        // The first words are Redis's, because tools and tests search the log for them. In Redis, a
        // rewrite is a child process.
        tracing::info!("Killing running AOF rewrite, which has no child process.");
    }
    server.snapshots().background.abort(|purpose| purpose == crate::snapshot::Purpose::Rewrite);
    aof.stop_writer();
    // A `WAITAOF` that starts from here on finds no writer thread, and ends by itself.
    end_local_waits(server);
}

/// Returns whether the server may exit. While the first base is being written, it may exit only
/// with `how.force`, because the files would lack the dataset.
pub fn allows_exit(server: &Server, how: Shutdown) -> bool {
    if server.snapshots().aof.state() != State::AwaitsBase {
        return true;
    }
    if how.force {
        tracing::warn!("Writing initial AOF. Exit anyway.");
    } else {
        tracing::warn!("Writing initial AOF, can't exit.");
        process::notify("STATUS=Writing initial AOF, can't exit.");
    }
    how.force
}

/// Writes and syncs the remaining effects. Called after the workers have ended.
pub fn end(server: &Server) {
    let aof = &server.snapshots().aof;
    let handle = lock(&aof.writer).take();
    if let Some(handle) = handle {
        tracing::info!("Calling fsync() on the AOF file.");
        handle.inbox.order(Order::Stop);
        handle.join();
        let error = aof.written.error.load(Relaxed);
        if error != 0 {
            let error = io::Error::from_raw_os_error(error);
            tracing::warn!("The append-only file lacks the last effects, which could not be written: {error}");
        }
    }
    // If the file was turned off shortly before, its writer may still be writing.
    aof.queue.wait_until_empty();
}

/// Waits until the writer thread has written and synced the effects committed so far. Returns
/// whether the sync succeeded. If no writer thread runs, returns `true` at once. A worker that
/// calls this must count as asleep, as for [`reload`].
fn sync(server: &Server) -> bool {
    let (sender, synced) = mpsc::channel();
    match &*lock(&server.snapshots().aof.writer) {
        Some(handle) => handle.inbox.order(Order::Sync(sender)),
        None => return true,
    }
    synced.recv().unwrap_or(false)
}

/// Turns the append-only file off and on again if `appendonly` is set, so that a new base is
/// written. Called after the dataset of a primary has replaced this server's dataset. As in Redis,
/// retries after failures, and exits the process after `RESTARTS_MAX` failed attempts. A replica
/// must not run without the file that its operator relies on.
pub fn restart(server: &Server) {
    server.snapshots().loading.set_reopening(true);
    reopen(server);
    server.snapshots().loading.set_reopening(false);
}

/// Does the work of [`restart`].
fn reopen(server: &Server) {
    if server.snapshots().aof.state() != State::Off {
        turn_off(server);
    }
    for attempt in 1..=RESTARTS_MAX {
        let is_wanted = |settings: &Settings| settings.aof.is_on && server.snapshots().aof.state() == State::Off;
        let settings = server.config().settings();
        let checked = if is_wanted(&settings) { check_files(&settings) } else { Ok(()) };
        // `CONFIG SET` must not turn the file on or off at the same time. It waits for this lock on
        // a worker, so no file is opened under the lock.
        let restarted = server.config().while_unchanged(|settings| {
            if is_wanted(settings) {
                checked?;
                turn_on(server, settings, FirstRewrite::Now);
            }
            Ok::<_, &str>(())
        });
        if restarted.is_ok() || server.is_stopping() {
            return;
        }
        tracing::warn!(
            "Failed enabling the AOF after successful master synchronization! Trying it again in one second. (attempt \
             {attempt} of {RESTARTS_MAX})"
        );
        std::thread::sleep(RESTART_AFTER);
    }
    tracing::error!(
        "FATAL: this replica instance finished the synchronization with its master, but the AOF can't be turned on. \
         Exiting now."
    );
    std::process::exit(1);
}
