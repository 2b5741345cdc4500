//! Replaces the dataset by that of a primary. The link thread holds all shards during the load, and
//! the workers serve clients. Commands that need the dataset get `-LOADING`. A command that was
//! admitted before the load gets its shards before the load does (`dispatch/loading.rs`). Only a
//! script that must be rerun with all shards may get them after the load.

use std::io;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use pantala_engine::access::SessionView;
use pantala_engine::command::{Omission, Permit};
use pantala_engine::functions::RestorePolicy;
use pantala_engine::message::Message;
use pantala_engine::ownership::Ownership;
use pantala_engine::whole::Whole;
use pantala_resp::Version;
use pantala_types::rdb_value::Limits;

use super::incoming::Incoming;
use super::received::Received;
use super::socket::Socket;
use crate::aof;
use crate::config::replica::DisklessLoad;
use crate::host::Server;
use crate::snapshot::load as file;
use crate::snapshot::load::{Counts, Duty, Loaded};
use crate::snapshot::{loading, path_of};

/// The session with which the link thread accesses the dataset.
const SESSION: SessionView = SessionView {
    client: 0,
    db: 0,
    version: Version::Resp2,
    no_touch: true,
    of_primary: true,
    in_script: false,
    permit: Permit::new(0, true),
};

/// Interval between empty lines sent to the primary. The lines keep the primary from timing out a
/// replica that is loading.
const ALIVE_EVERY: Duration = Duration::from_secs(1);

/// The reason why a load does not start while a shutdown is pending.
const SHUTTING_DOWN: &str = "MASTER <-> REPLICA sync: the server is about to shut down";

/// Returns the limits on the values in a snapshot.
pub(super) fn limits(server: &Server) -> Limits {
    file::load_limits(server.keyspace().tuning.rdb_limits())
}

/// Replaces the dataset by a received snapshot, which consists of one or several flows. Returns the
/// database that the stream has selected at the snapshot's offset, which flow 0 states.
///
/// # Errors
/// Returns the reason why the load has failed. The dataset is then empty, unless a pending shutdown
/// has prevented the load. Returns `None` if the load is no longer wanted; the dataset is then
/// unchanged.
pub(super) fn load(
    server: &Server,
    term: u64,
    received: &mut [Received<'_>],
    socket: &mut Socket,
) -> Result<u32, Option<String>> {
    let mut owned = acquire_dataset(server, socket)?;
    if !server.replication().replica.begin_replacing(server) {
        release_dataset(server, owned);
        return Err(Some(SHUTTING_DOWN.to_owned()));
    }
    let loaded = forget(server, term).then(|| {
        while_alive(socket, || {
            let total_bytes = received.iter().map(Received::len_bytes).sum();
            server.snapshots().loading.note_total_bytes(total_bytes);
            let source = if received.iter().any(Received::is_in_memory) { "memory" } else { "disk" };
            let replaced = replace(server, &mut owned, source, |whole| {
                let sources = received.iter_mut().map(|part| Ok((Some(part.len_bytes()), part.reader()?)));
                let sources: io::Result<Vec<_>> = sources.collect();
                let sources = sources.map_err(|error| error.to_string())?;
                file::load_parts(server, sources, whole, Duty::Store).map_err(|error| error.to_string())
            });
            if !server.is_stopping() {
                delete_former_file(server);
                // The append-only file still contains the former dataset.
                aof::restart(server);
            }
            replaced
        })
    });
    release_dataset(server, owned);
    loaded.ok_or(None)?.map(|_| received[0].stream_db).map_err(Some)
}

/// The result of [`load_directly`].
pub(super) enum Direct {
    /// The snapshot was loaded. Contains the database that the stream has selected at the
    /// snapshot's offset.
    Loaded(u32),
    /// The snapshot must be received first ([`may_load_directly`]). Nothing was read from the link.
    NotEmpty,
}

/// Loads a snapshot while it arrives, if [`may_load_directly`] permits it.
///
/// # Errors
/// The same as for [`load`].
pub(super) fn load_directly(
    server: &Server,
    term: u64,
    incoming: &mut Incoming<'_, '_>,
) -> Result<Direct, Option<String>> {
    let mut owned = acquire_dataset(server, incoming.socket())?;
    let loaded = load_into_empty(server, term, incoming, &mut owned);
    release_dataset(server, owned);
    loaded
}

/// Does the work of [`load_directly`] for a caller that holds all shards.
fn load_into_empty(
    server: &Server,
    term: u64,
    incoming: &mut Incoming<'_, '_>,
    owned: &mut [Ownership],
) -> Result<Direct, Option<String>> {
    if !may_load_directly(server) {
        return Ok(Direct::NotEmpty);
    }
    if !server.replication().replica.begin_replacing(server) {
        return Err(Some(SHUTTING_DOWN.to_owned()));
    }
    if !forget(server, term) {
        return Err(None);
    }
    server.snapshots().loading.note_total_bytes(incoming.total_bytes().unwrap_or(0));
    let replaced = replace(server, owned, "socket", |whole| incoming.load(server, whole));
    if !server.is_stopping() {
        // Also needed after a failure, because the append-only file still contains the former
        // function libraries, which were deleted.
        while_alive(incoming.socket(), || aof::restart(server));
    }
    let counts = replaced.map_err(Some)?;
    Ok(Direct::Loaded(counts.stream_db().filter(|db| *db < server.keyspace().databases()).unwrap_or(0)))
}

/// Returns whether `repl-diskless-load` permits loading a snapshot while it arrives. The dataset
/// must have no keys and, with `swapdb`, no function libraries, because a failed load would destroy
/// them.
pub(super) fn may_load_directly(server: &Server) -> bool {
    let keyspace = server.keyspace();
    // Expired keys count, too.
    let has_keys = || (0..keyspace.databases()).any(|db| keyspace.database_size(db).0 > 0);
    let has_libraries = || server.scripting().libraries.table().libraries().len() > 0;
    match server.config().settings().replica.diskless_load {
        DisklessLoad::Disabled => false,
        DisklessLoad::OnEmptyDb => !has_keys(),
        DisklessLoad::Swapdb => !has_keys() && !has_libraries(),
    }
}

/// Starts a load and acquires all shards for it. Until [`release_dataset`], commands that need the
/// dataset get `-LOADING`. A script may hold a shard for long, so the function sends empty lines to
/// the primary while it waits.
///
/// # Errors
/// The server stops.
fn acquire_dataset(server: &Server, socket: &mut Socket) -> Result<Vec<Ownership>, Option<String>> {
    let replica = &server.replication().replica;
    replica.shards.want();
    loading::begin(server, false);
    match while_alive(socket, || replica.shards.take_all(server)) {
        Some(owned) => Ok(owned),
        None => {
            replica.shards.release();
            loading::end(server);
            Err(None)
        }
    }
}

/// Releases the shards and ends the load.
fn release_dataset(server: &Server, owned: Vec<Ownership>) {
    server.snapshots().loading.set_incomplete(false);
    server.replication().replica.shards.release();
    server.port(server.facts().first_io_worker).send(Message::Release(owned));
    loading::end(server);
}

/// Ends the former history (the stream under one replication ID). Returns `false` if `term` is
/// over. A term is a period during which the server follows the same primary.
fn forget(server: &Server, term: u64) -> bool {
    let is_current = server.replication().replica.forget(server, term);
    if is_current {
        server.replication().start_history("the server follows another stream");
    }
    is_current
}

/// Replaces the dataset by a snapshot, which `read` loads. `source` names the origin of the
/// snapshot in the log. After a failure, there are no keys and no function libraries.
fn replace(
    server: &Server,
    owned: &mut [Ownership],
    source: &str,
    read: impl FnOnce(&mut Whole<'_>) -> Result<Loaded, String>,
) -> Result<Counts, String> {
    let (keyspace, began) = (server.keyspace(), Instant::now());
    let settings = server.config().settings();
    let mut access = keyspace.access(&SESSION, owned, server.now_ms());
    tracing::info!("MASTER <-> REPLICA sync: Flushing old data");
    access.flush(0..keyspace.databases(), settings.replica.flushes_lazily);
    // Can't fail. Changes of libraries are rejected only by a shutdown that holds all shards, and
    // this thread holds them now.
    let _ = server.scripting().libraries.flush();
    tracing::info!("MASTER <-> REPLICA sync: Loading DB in memory");
    let loaded = read(&mut access.whole())
        .and_then(|Loaded { libraries, counts, .. }| {
            let restored = file::restore_libraries(server, libraries, RestorePolicy::Flush);
            restored.map(|()| counts).map_err(|error| error.to_string())
        })
        .map_err(|error| format!("Failed trying to load the MASTER synchronization DB from {source}: {error}"));
    if loaded.is_err() {
        // The dataset is incomplete and must not be served.
        access.flush(0..keyspace.databases(), settings.replica.flushes_lazily);
        server.snapshots().loading.note_failure();
    }
    access.whole().measure();
    // The load is not propagated, because the server's replicas were disconnected.
    access.propagate_nothing(Omission::Loaded);
    if let Ok(counts) = &loaded {
        server.snapshots().note_loaded(counts);
        tracing::info!("DB loaded from the master: {:.3} seconds", began.elapsed().as_secs_f64());
    }
    loaded
}

/// Deletes the server's own RDB file if `rdb-del-sync-files` is set and persistence is off (no save
/// points, no append-only file). As in Redis, the file is deleted even if the load has failed. The
/// received snapshot is in another file.
fn delete_former_file(server: &Server) {
    let settings = server.config().settings();
    let saves = !settings.save_points.is_empty() || server.snapshots().aof.state() != aof::State::Off;
    if !settings.replica.deletes_sync_files || saves {
        return;
    }
    let path = path_of(&settings);
    match std::fs::remove_file(&path) {
        Ok(()) => {
            // Redis's log line. Redis stores the received snapshot under this name.
            tracing::info!("Removing the RDB file obtained from the master. This replica has persistence disabled");
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => tracing::warn!("Can't remove the file {}: {error}", path.display()),
    }
}

/// Runs `work` while another thread sends empty lines to the primary.
fn while_alive<R>(socket: &mut Socket, work: impl FnOnce() -> R) -> R {
    std::thread::scope(|scope| {
        let (over, is_over) = mpsc::channel::<()>();
        let keep = move || {
            while is_over.recv_timeout(ALIVE_EVERY) == Err(RecvTimeoutError::Timeout) {
                // The result is ignored, because the next read detects a lost link.
                let _ = socket.write_all(b"\n");
            }
        };
        let thread = std::thread::Builder::new().name("pantala-replica-alive".into()).spawn_scoped(scope, keep);
        if let Err(error) = thread {
            tracing::warn!("Can't start a thread: {error}");
        }
        let done = work();
        drop(over);
        done
    })
}
