//! The promotion of a replica to a primary. The server's stream continues that of its former
//! primary under another ID. Other replicas continue without a full sync if the backlog has the
//! bytes that they lack.
//!
//! A *term* is a period during which this server follows the same primary, or none. A *history* is
//! the stream under one replication ID.
//!
//! A promotion starts with `REPLICAOF NO ONE` or `PSYNC … FAILOVER`:
//!
//! 1. Writes are held back.
//! 2. The thread `pantala-promotion` waits until the link has ended. The stream then has all bytes
//!    that were applied.
//! 3. The thread makes the stream continue with the server's own units, under another ID.
//! 4. The held writes run. Connections that have sent `PSYNC` meanwhile get their replies.
//!
//! Writes are held back until the stream consists of the server's own units (the effects of its own
//! commands). If a write ran earlier, the stream would lack the write's effects. As in Redis, the
//! server's replicas are disconnected. They learn the new ID when they attach again, and need no
//! full sync.

use std::io;
use std::time::Duration;

use pantala_engine::client::Client;
use pantala_engine::faults::{self, Fault};
use pantala_engine::message::Message;
use pantala_replication::ReplId;

use super::Replication;
use super::primary::Asker;
use super::replica::{RoleLock, shown};
use crate::host::Server;

/// Interval between checks of whether the stream has switched to the server's own units.
const LOOK: Duration = Duration::from_micros(500);
/// Time between two attempts to start the journal's thread.
const RETRY_AFTER: Duration = Duration::from_millis(100);

/// Runs `PSYNC … FAILOVER`, with which the primary asks this server to take over.
///
/// # Errors
/// Returns the error reply, if the server is no replica or follows another stream than `id`.
pub(super) fn take_over(server: &Server, id: &[u8], client: &Client) -> Result<(), &'static str> {
    tracing::warn!("Failover request received for replid {}.", id.escape_ascii());
    RoleLock::of(server).take_over(ReplId::parse(id))?;
    tracing::info!("MASTER MODE enabled (failover request from '{}')", shown(client));
    Ok(())
}

/// The promotions in progress.
#[derive(Debug, Default)]
pub(super) struct Promotions {
    /// Number of promotions in progress.
    pub(super) running: u32,
    /// The terms of the promotions whose threads couldn't be started yet.
    unstarted: Vec<u64>,
}

/// Starts a promotion: holds back writes and requests for data (`SYNC`, `PSYNC`). The caller must
/// then call [`run`].
pub(super) fn begin(server: &Server) {
    {
        let mut state = server.replication().state();
        state.promotions.running += 1;
        state.next_id = Some(state.new_id());
    }
    // The history of the former primary must end at the current end of the stream. A `PING` would
    // move this end.
    server.replication().update_pings(server);
    hold_writes(server);
}

/// Completes a promotion on a thread of its own: makes the stream consist of this server's own
/// units again. Called after the role has changed.
pub(super) fn run(server: &Server, term: u64) {
    if let Err(error) = start(server, term) {
        tracing::warn!("Can't start a thread: {error}. Writes wait for the promotion. Trying again.");
    }
}

/// Starts the threads of promotions that couldn't be started before. Worker 0 calls this a few
/// times a second.
pub(super) fn retry(server: &Server) {
    let unstarted = std::mem::take(&mut server.replication().state().promotions.unstarted);
    for term in unstarted {
        if start(server, term).is_ok() {
            tracing::info!("Started the thread of the promotion.");
        }
    }
}

/// Starts the thread of a promotion. If this fails, [`retry`] must try again, because writes are
/// held back until the promotion has ended.
fn start(server: &Server, term: u64) -> io::Result<()> {
    let Some(shared) = server.replication().server() else {
        end(server);
        return Ok(());
    };
    let run = move || {
        let replica = &shared.replication().replica;
        let is_own = replica.wait_for_end(&shared, term) && !is_unchanged(&shared) && resume(&shared, term);
        if is_own && replica.end_promotion(&shared, term) {
            // The replicas attach again and learn the new ID.
            shared.replication().drop_replicas("the history continues under another ID");
        }
        end(&shared);
    };
    let started = match faults::hits(Fault::NoThread) {
        true => Err(io::ErrorKind::WouldBlock.into()),
        false => std::thread::Builder::new().name("pantala-promotion".into()).spawn(run).map(drop),
    };
    if started.is_err() {
        server.replication().state().promotions.unstarted.push(term);
    }
    started
}

/// Defers a request for data if a promotion is in progress. Otherwise returns the request.
pub(super) fn defer(replication: &Replication, asker: Asker) -> Option<Asker> {
    let mut state = replication.state();
    if state.promotions.running == 0 {
        return Some(asker);
    }
    state.deferred.push(asker);
    None
}

/// Ends a promotion: releases the held writes, and attaches the replicas whose requests for data
/// were deferred.
fn end(server: &Server) {
    let replication = server.replication();
    let deferred = {
        let mut state = replication.state();
        state.promotions.running -= 1;
        if state.promotions.running > 0 { Vec::new() } else { std::mem::take(&mut state.deferred) }
    };
    replication.update_pings(server);
    release_writes(server);
    for asker in deferred {
        let link = asker.link();
        match replication.attach(server, asker) {
            Ok(()) => link.wake(),
            Err(error) => link.fail(&format!("the thread of the stream could not be started: {error}")),
        }
    }
    replication.sync_if_due(server);
}

/// Returns whether the server has followed no primary since it was last a primary itself. If so,
/// the stream still consists of the server's own units.
fn is_unchanged(server: &Server) -> bool {
    server.replication().replica.former().is_none() && server.keyspace().journal().has_own_stream()
}

/// Makes the stream consist of this server's own units, and waits for the switch. Returns `false`
/// if the role has changed meanwhile or the server stops.
fn resume(server: &Server, term: u64) -> bool {
    let (replica, journal) = (&server.replication().replica, server.keyspace().journal());
    loop {
        match replica.resume_stream(server, term) {
            Ok(true) => break,
            Ok(false) => return false,
            Err(_) if replica.term() != term || server.is_stopping() => return false,
            Err(error) => {
                tracing::warn!("Can't record the stream: {error}. Trying again.");
                std::thread::sleep(RETRY_AFTER);
            }
        }
    }
    while !journal.has_own_stream() {
        if replica.term() != term || server.is_stopping() {
            return false;
        }
        std::thread::sleep(LOOK);
    }
    true
}

/// Holds back writes until [`release_writes`]. This is independent of `CLIENT PAUSE`.
pub(super) fn hold_writes(server: &Server) {
    server.keyspace().tuning.hold_lasting_pause();
    wake_for_pause(server);
}

/// Releases the writes that [`hold_writes`] holds back.
pub(super) fn release_writes(server: &Server) {
    server.keyspace().tuning.release_lasting_pause();
    wake_for_pause(server);
}

/// Wakes the workers, so that they read the new end of the pause.
fn wake_for_pause(server: &Server) {
    server.keyspace().ports().iter().for_each(|port| port.send(Message::Reload));
}
