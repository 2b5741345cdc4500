//! Replaces the dataset by that of a primary.
//!
//! The thread of the link holds all shards meanwhile, so the workers go on serving: commands that
//! need the dataset get `-LOADING`, or wait if they have been checked before.

use std::io::Write;
use std::net::TcpStream;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use pantala_engine::access::SessionView;
use pantala_engine::command::Permit;
use pantala_engine::functions::RestorePolicy;
use pantala_engine::message::Message;
use pantala_engine::ownership::Ownership;
use pantala_engine::tuning::refusal::Refusals;
use pantala_resp::Version;
use pantala_types::rdb_value::Limits;

use super::link::Received;
use crate::aof;
use crate::host::Server;
use crate::snapshot::load as file;
use crate::snapshot::load::Duty;

/// The session of the thread.
const SESSION: SessionView = SessionView {
    client: 0,
    db: 0,
    version: Version::Resp2,
    no_touch: true,
    of_primary: true,
    in_script: false,
    permit: Permit::new(0, true),
};

/// How often the primary is sent an empty line, so that it doesn't give up a replica that loads.
const ALIVE_EVERY: Duration = Duration::from_secs(1);

/// Returns the limits on values of a snapshot.
pub(super) fn limits(server: &Server) -> Limits {
    file::load_limits(server.keyspace().tuning.rdb_limits())
}

/// Loads a snapshot in place of the dataset. Returns the database that the stream has selected.
///
/// # Errors
/// The reason why it failed: the dataset is empty then. `None`: it isn't wanted any more, and the
/// dataset is as it was.
pub(super) fn load(
    server: &Server,
    term: u64,
    received: &mut Received,
    stream: &TcpStream,
) -> Result<u32, Option<String>> {
    let replica = &server.replication().replica;
    let tuning = &server.keyspace().tuning;
    tuning.set_refusals(Refusals::LOADING, true);
    let loaded = match replica.take_all(server) {
        None => Err(None),
        Some(mut owned) => {
            let loaded = if replica.term() == term {
                replica.forget();
                server.replication().start_history("the server follows another stream");
                let replaced = while_alive(stream, || replace(server, received, &mut owned)).map_err(Some);
                // The append-only file has effects on another dataset.
                aof::restart(server);
                replaced
            } else {
                Err(None)
            };
            server.port(server.facts().first_io_worker).send(Message::Release(owned));
            loaded
        }
    };
    tuning.set_refusals(Refusals::LOADING, false);
    loaded.map(|()| received.stream_db)
}

fn replace(server: &Server, received: &Received, owned: &mut [Ownership]) -> Result<(), String> {
    let (keyspace, began) = (server.keyspace(), Instant::now());
    let settings = server.config().settings();
    let mut access = keyspace.access(&SESSION, owned, server.now_ms());
    tracing::info!("MASTER <-> REPLICA sync: Flushing old data");
    access.flush(0..keyspace.databases(), settings.replica.flushes_lazily);
    tracing::info!("MASTER <-> REPLICA sync: Loading DB in memory");
    let mut loaded = file::load(server, &received.file, &mut access.whole(), Duty::Store)
        .and_then(|loaded| {
            file::restore_libraries(server, loaded.libraries, RestorePolicy::Flush).map(|()| loaded.counts)
        })
        .map_err(|error| format!("Failed trying to load the MASTER synchronization DB from disk: {error}"));
    if loaded.is_err() {
        // Part of a dataset is not served as if it were all.
        access.flush(0..keyspace.databases(), false);
    }
    access.whole().measure();
    // Nothing of this is an effect: replicas of this server are sent the whole dataset again.
    access.propagate_nothing();
    if let Ok(counts) = &mut loaded {
        server.snapshots().note_loaded(counts);
        tracing::info!("DB loaded from the master: {:.3} seconds", began.elapsed().as_secs_f64());
    }
    loaded.map(|_| ())
}

/// Runs `work`, and sends the primary empty lines meanwhile.
fn while_alive<R>(stream: &TcpStream, work: impl FnOnce() -> R) -> R {
    std::thread::scope(|scope| {
        let (over, is_over) = mpsc::channel::<()>();
        let keep = move || {
            while is_over.recv_timeout(ALIVE_EVERY) == Err(RecvTimeoutError::Timeout) {
                // A link that is lost is noticed when its stream is read.
                let mut stream = stream;
                let _ = stream.write_all(b"\n");
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
