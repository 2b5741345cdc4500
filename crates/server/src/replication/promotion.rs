//! A replica becomes a primary: its stream continues that of its primary under another ID. Other
//! replicas that have come as far continue without a full sync.
//!
//! ```text
//! REPLICAOF NO ONE,        pantala-promotion
//! PSYNC … FAILOVER
//!   writes are held back ─► the link has ended: the last offset of the primary's stream is known
//!                           the stream is recorded from here on: offset = that of the log + base
//!                           writes run
//!                           connections that have sent PSYNC meanwhile get their replies
//! ```
//!
//! Writes are held back until the stream is recorded: what a client wrote before would be missing
//! in it.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use pantala_engine::client::Client;
use pantala_engine::effect::log::Start;
use pantala_engine::message::Message;
use pantala_replication::ReplId;

use super::Replication;
use super::primary::Asker;
use super::replica::shown;
use crate::host::Server;

/// How often the start of the stream is looked for.
const LOOK: Duration = Duration::from_micros(500);

/// Handles `PSYNC … FAILOVER` of the primary: takes its place.
///
/// # Errors
/// The server is not its replica: the error reply.
pub(super) fn take_over(server: &Server, id: &[u8], client: &Client) -> Result<(), &'static str> {
    let replication = server.replication();
    tracing::warn!("Failover request received for replid {}.", id.escape_ascii());
    if replication.replica.primary().is_none() {
        return Err("ERR PSYNC FAILOVER can't be sent to a master.");
    }
    if ReplId::parse(id).is_none() || ReplId::parse(id) != replication.replica.followed_id() {
        return Err("ERR PSYNC FAILOVER replid must match my replid.");
    }
    server.config().note_replica_of(None);
    replication.replica.change(server, None);
    tracing::info!("MASTER MODE enabled (failover request from '{}')", shown(client));
    Ok(())
}

/// Starts a promotion: holds back writes and requests for data. [`run`] must follow.
pub(super) fn begin(server: &Server) {
    server.replication().state().promotions += 1;
    hold_writes(server);
}

/// Continues the former primary's stream on a thread of its own, once the server has its role.
pub(super) fn run(server: &Server, term: u64) {
    let Some(shared) = server.replication().server() else { return end(server) };
    let run = move || {
        if let Some((id, offset)) = shared.replication().replica.ended_at(&shared, term) {
            continue_stream(&shared, id, offset);
            shared.replication().replica.forget_former(term);
        }
        end(&shared);
    };
    if let Err(error) = std::thread::Builder::new().name("pantala-promotion".into()).spawn(run) {
        tracing::warn!("Can't start a thread: {error}. Replicas need a full sync.");
        end(server);
    }
}

/// Defers a request for data while a promotion is in progress. Returns it if there is none.
pub(super) fn defer(replication: &Replication, asker: Asker) -> Option<Asker> {
    let mut state = replication.state();
    if state.promotions == 0 {
        return Some(asker);
    }
    state.deferred.push(asker);
    None
}

fn end(server: &Server) {
    let replication = server.replication();
    let deferred = {
        let mut state = replication.state();
        state.promotions -= 1;
        if state.promotions > 0 { Vec::new() } else { std::mem::take(&mut state.deferred) }
    };
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

/// Makes the stream of this server continue that of `id`, of which it has `offset` bytes.
fn continue_stream(server: &Server, id: ReplId, offset: u64) {
    let replication = server.replication();
    if replication.state().history.id() == id {
        // A failover was aborted, and the stream has stood still.
        let mut state = replication.state();
        let own = state.new_id();
        state.shift(own, offset);
        drop(state);
        return replication.drop_replicas("the history continues under another ID");
    }
    if !replication.state().replicas.is_empty() {
        return log_kept();
    }
    let Some(start) = record(server) else { return };
    let mut state = replication.state();
    if !state.replicas.is_empty() {
        // One that has asked before the promotion began.
        return log_kept();
    }
    // An ID that a replica may know stands for other offsets.
    let own = if state.has_backlog { state.new_id() } else { state.history.id() };
    state.history.change(id);
    state.shift(own, offset);
    state.has_backlog = true;
    state.alone_since_ms = Some(server.monotonic_ms());
    replication.rebase(start, offset);
}

fn log_kept() {
    tracing::info!("The stream of this server continues for its replicas: those of its former master need a full sync");
}

/// Records the stream. Returns its offset in the log from which on nothing is missing, and a
/// database is selected first.
fn record(server: &Server) -> Option<u64> {
    let keyspace = server.keyspace();
    let joined = keyspace
        .keep_journal(true)
        .and_then(|()| keyspace.read_journal(Start::Now, Arc::new(AtomicU64::new(u64::MAX)), Arc::new(|| {})));
    let reader = match joined {
        Ok(reader) => reader.ok()?,
        Err(error) => {
            tracing::warn!("Can't record the stream: {error}. Replicas need a full sync.");
            return None;
        }
    };
    let start = loop {
        match reader.position() {
            Some(start) => break Some(start),
            None if server.is_stopping() => break None,
            None => std::thread::sleep(LOOK),
        }
    };
    keyspace.leave_journal(&reader);
    start
}

/// Holds writes back, whatever clients do.
pub(super) fn hold_writes(server: &Server) {
    server.keyspace().tuning.hold_lasting_pause();
    look_at_pause(server);
}

/// Lets writes run again.
pub(super) fn release_writes(server: &Server) {
    server.keyspace().tuning.release_lasting_pause();
    look_at_pause(server);
}

/// Wakes the workers, which sleep until a pause is due to end.
fn look_at_pause(server: &Server) {
    server.keyspace().ports().iter().for_each(|port| port.send(Message::Reload));
}
