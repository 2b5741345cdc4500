//! `FAILOVER`: hands over the role of the primary to a replica, without losing a write.
//!
//! The *stream* consists of the effects (propagated changes) of this server's commands, which
//! replicas receive. A *unit* is the effects of one command or transaction in the stream. A
//! *history* is the stream under one replication ID. A *term* is a period during which this server
//! follows the same primary, or none.
//!
//! A failover has these steps:
//!
//! 1. The worker of the client that sends `FAILOVER` makes the server hold back writes.
//! 2. The thread `pantala-failover` waits until no write is in flight and a replica has
//!    acknowledged the whole stream. This replica is the *target*. The state is *waiting-for-sync*.
//! 3. This server becomes a replica of the target. The state is *failover-in-progress*. The link
//!    thread, `pantala-replica`, connects to the target and sends `PSYNC id offset FAILOVER`.
//! 4. If the target accepts, it becomes the primary, and this server rejects the held writes with
//!    `-READONLY`. If the target rejects the request, this server becomes a primary again and runs
//!    the held writes. In both cases, the state is *no-failover* again.
//!
//! `FAILOVER ABORT` ends a failover in any state. The timeout of the command applies only in the
//! state waiting-for-sync. When it expires, the failover is aborted or, with `FORCE`, enters the
//! next state. In failover-in-progress, the server retries until it has sent `PSYNC` to the target,
//! as in Redis. So while the target can't be reached, only `FAILOVER ABORT` ends the failover.
//! After the server has sent `PSYNC`, a rejection, a lost connection or a timeout aborts the
//! failover.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pantala_engine::client::Failover as Wanted;
use pantala_replication::ReplicaState;

use super::Replication;
use super::primary::quiesce;
use super::promotion::{hold_writes, release_writes};
use super::replica::{Address, Known, RoleLock};
use crate::host::Server;

/// Interval at which acknowledgements are checked.
const LOOK: Duration = Duration::from_millis(2);

/// The state of a failover. [`Stage::name`] returns Redis's name for the state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    /// There is no failover.
    #[default]
    None,
    /// The server waits until the target has acknowledged the whole stream.
    WaitForSync,
    /// The server asks the target to take over.
    InProgress,
}

/// The current failover, if any, and the number of the last one.
#[derive(Debug, Default)]
struct Failover {
    stage: Stage,
    /// The number of the last failover, which may still be running.
    number: u64,
    target: Option<Address>,
}

impl Stage {
    fn name(self) -> &'static str {
        match self {
            Stage::None => "no-failover",
            Stage::WaitForSync => "waiting-for-sync",
            Stage::InProgress => "failover-in-progress",
        }
    }
}

/// The thread of a failover.
struct Run {
    server: Arc<Server>,
    number: u64,
    until: Option<Instant>,
    is_forced: bool,
}

/// The state of this server's last failover.
#[derive(Debug, Default)]
pub struct Failovers(Mutex<Failover>);

impl Failovers {
    fn lock(&self) -> MutexGuard<'_, Failover> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the state of the failover, for `INFO`.
    pub fn state(&self) -> &'static str {
        self.lock().stage.name()
    }

    /// Returns whether a failover is running.
    pub fn is_running(&self) -> bool {
        self.lock().stage != Stage::None
    }

    /// Returns the number of the current failover if its state is [`Stage::InProgress`].
    pub(super) fn in_progress(&self) -> Option<u64> {
        let failover = self.lock();
        (failover.stage == Stage::InProgress).then_some(failover.number)
    }

    fn shown_target(&self) -> String {
        let target = self.lock().target.clone();
        target.map_or_else(String::new, |Address { host, port }| format!(" to {host}:{port}"))
    }

    /// Enters [`Stage::InProgress`] with `target`, unless the failover was aborted. Returns whether
    /// the state was entered.
    fn enter_progress(&self, number: u64, target: &Address) -> bool {
        let mut failover = self.lock();
        let is_current = failover.stage == Stage::WaitForSync && failover.number == number;
        if is_current {
            failover.stage = Stage::InProgress;
            failover.target = Some(target.clone());
        }
        is_current
    }
}

/// Starts a failover. Returns the complete error reply if it can't be started.
pub(super) fn start(server: &Server, wanted: &Wanted<'_>) -> Result<(), String> {
    let replication = server.replication();
    // Prevents a `REPLICAOF` between the checks and the start.
    let role = RoleLock::of(server);
    if replication.failovers.is_running() {
        return Err("ERR FAILOVER already in progress.".to_owned());
    }
    if replication.replica.primary().is_some() {
        return Err("ERR FAILOVER is not valid when server is a replica.".to_owned());
    }
    let target = target_of(replication, wanted)?;
    let Some(shared) = replication.server() else { return Err("ERR the server is stopping".to_owned()) };
    let number = {
        let mut failover = replication.failovers.lock();
        if failover.stage != Stage::None {
            return Err("ERR FAILOVER already in progress.".to_owned());
        }
        failover.stage = Stage::WaitForSync;
        failover.number += 1;
        failover.target = target;
        failover.number
    };
    // This must be called while the role lock is held, which an abort acquires too. Otherwise an
    // abort could release the writes before they are held back, and nothing would release them
    // later.
    hold_writes(server);
    drop(role);
    tracing::info!("FAILOVER requested{}.", replication.failovers.shown_target());
    replication.update_pings(server);
    let timeout = Duration::from_millis(wanted.timeout_ms.unsigned_abs());
    let until = (wanted.timeout_ms > 0).then(|| Instant::now() + timeout);
    let run = Run { server: shared, number, until, is_forced: wanted.is_forced };
    let thread = std::thread::Builder::new().name("pantala-failover".into());
    if let Err(error) = thread.spawn(move || run.run()) {
        end(server, number);
        return Err(format!("ERR the thread of the failover could not be started: {error}"));
    }
    Ok(())
}

/// Returns the target that the command names, if any. An error is the complete error reply.
fn target_of(replication: &Replication, wanted: &Wanted<'_>) -> Result<Option<Address>, String> {
    let state = replication.state();
    if state.replicas.is_empty() {
        return Err("ERR FAILOVER requires connected replicas.".to_owned());
    }
    let Some((host, port)) = wanted.target else {
        return match wanted.is_forced {
            true => Err(FORCE_NEEDS.to_owned()),
            false => Ok(None),
        };
    };
    if wanted.is_forced && wanted.timeout_ms == 0 {
        return Err(FORCE_NEEDS.to_owned());
    }
    let is_named = |address: &str, of: i64| address.as_bytes().eq_ignore_ascii_case(host) && of == port;
    let replica = state.replicas.iter().find(|it| is_named(&it.address(), it.handshake.port));
    match replica.map(|replica| replica.state) {
        None => Err("ERR FAILOVER target HOST and PORT is not a replica.".to_owned()),
        Some(ReplicaState::Online) => {
            let port = u16::try_from(port).map_err(|_| "ERR Invalid master port".to_owned())?;
            Ok(Some(Address { host: String::from_utf8_lossy(host).into_owned(), port }))
        }
        Some(_) => Err("ERR FAILOVER target replica is not online.".to_owned()),
    }
}

/// Aborts the failover with this number, or any failover if `number` is `None`. Afterwards, the
/// server is a primary.
pub(super) fn abort(server: &Server, number: Option<u64>, why: &str) {
    let replication = server.replication();
    // The failover's thread holds this lock while it enters [`Stage::InProgress`] and makes the
    // server follow the target. So if the state is `InProgress` here, the server follows the
    // target, and must become a primary again.
    let role = RoleLock::of(server);
    let (stage, number) = {
        let failover = replication.failovers.lock();
        if failover.stage == Stage::None || number.is_some_and(|number| number != failover.number) {
            return;
        }
        (failover.stage, failover.number)
    };
    tracing::info!("Aborting failover{} while in state {}: {why}", replication.failovers.shown_target(), stage.name());
    if stage == Stage::InProgress {
        role.change(None);
    }
    end(server, number);
}

/// Ends a failover that its target has accepted. Does nothing if it was aborted before.
pub(super) fn succeed(server: &Server, number: u64) {
    // Excludes a concurrent abort, which takes this lock too. After an earlier abort, `end` does
    // nothing. A later abort finds no failover.
    let _role = RoleLock::of(server);
    end(server, number);
}

/// Ends a failover and releases the held writes. If the server has become a replica, it rejects
/// these writes.
fn end(server: &Server, number: u64) {
    let replication = server.replication();
    {
        let mut failover = replication.failovers.lock();
        if failover.stage == Stage::None || failover.number != number {
            return;
        }
        (failover.stage, failover.target) = (Stage::None, None);
    }
    release_writes(server);
    replication.update_pings(server);
}

const FORCE_NEEDS: &str = "ERR FAILOVER with force option requires both a timeout and target HOST and IP.";

/// The outcome of waiting in [`Stage::WaitForSync`].
enum Reached {
    Done,
    TimedOut,
    Aborted,
}

impl Run {
    fn replication(&self) -> &Replication {
        self.server.replication()
    }

    fn run(self) {
        let (server, replication) = (&*self.server, self.replication());
        let quiet = self.quiesce();
        let is_quiet = matches!(quiet, Reached::Done);
        let reached = if is_quiet { self.wait_for_replica() } else { (quiet, None) };
        let target = match reached {
            (Reached::Aborted, _) => return,
            (Reached::Done, Some(target)) => {
                tracing::info!("Failover target {}:{} is synced, failing over.", target.host, target.port);
                target
            }
            (Reached::TimedOut, _) | (Reached::Done, None) => {
                let target = replication.failovers.lock().target.clone();
                let Some(target) = target.filter(|_| self.is_forced) else {
                    let why = "Replica never caught up before timeout";
                    return abort(server, Some(self.number), why);
                };
                tracing::info!("Failover to {}:{} time out exceeded, failing over.", target.host, target.port);
                target
            }
        };
        let role = RoleLock::of(server);
        if !replication.failovers.enter_progress(self.number, &target) {
            return;
        }
        // As a replica, this server will ask the target to continue the stream from the end of this
        // server's own stream. If a forced failover didn't wait until no write is in flight, this
        // end is unknown, because such a write still extends the stream.
        let known = is_quiet.then(|| Known::at(replication.state().history.id(), hold_stream(server)));
        role.hand_over(target, known);
    }

    fn is_over(&self) -> Option<Reached> {
        let failover = self.replication().failovers.lock();
        if failover.stage != Stage::WaitForSync || failover.number != self.number || self.server.is_stopping() {
            return Some(Reached::Aborted);
        }
        self.until.is_some_and(|until| Instant::now() >= until).then_some(Reached::TimedOut)
    }

    /// Waits until no write is in flight and the stream contains the effects of all writes.
    fn quiesce(&self) -> Reached {
        let (sender, receiver) = mpsc::channel();
        // `true`: also asks the replicas for acknowledgements (`REPLCONF GETACK`).
        quiesce(&self.server, true, move |_| _ = sender.send(()));
        loop {
            match receiver.recv_timeout(LOOK) {
                Ok(()) => return Reached::Done,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Reached::Aborted,
            }
            if let Some(over) = self.is_over() {
                return over;
            }
        }
    }

    /// Waits until the target, or any replica if the command named no target, has acknowledged the
    /// whole stream. Returns the address of this replica.
    fn wait_for_replica(&self) -> (Reached, Option<Address>) {
        loop {
            if let Some(over) = self.is_over() {
                return (over, None);
            }
            let end = self.replication().held(&self.server).0.end;
            let wanted = self.replication().failovers.lock().target.clone();
            let found = {
                let state = self.replication().state();
                let mut synced = state.replicas.iter().filter(|replica| {
                    replica.state == ReplicaState::Online && replica.acked == end && replica.handshake.port != 0
                });
                synced.find_map(|replica| {
                    let address =
                        Address { host: replica.address(), port: u16::try_from(replica.handshake.port).ok()? };
                    let is_same = |wanted: &Address| {
                        wanted.port == address.port && wanted.host.eq_ignore_ascii_case(&address.host)
                    };
                    wanted.as_ref().is_none_or(is_same).then_some(address)
                })
            };
            if found.is_some() {
                return (Reached::Done, found);
            }
            std::thread::sleep(LOOK);
        }
    }
}

/// Stops adding this server's units to the stream. Returns the end of the stream.
fn hold_stream(server: &Server) -> u64 {
    server.keyspace().journal().hold_stream(&server.keyspace().tuning)
}

/// Waits until no write is in flight, stops adding units to this server's stream, and records the
/// stream's end. Called when this server becomes a replica. If its new primary was one of its
/// replicas, the server can continue from the recorded end without a full sync. Returns the end, or
/// `None` if the primary has changed meanwhile, the server stops, or the journal doesn't record the
/// stream.
pub(super) fn own_end(server: &Arc<Server>, term: u64) -> Option<Known> {
    let replication = server.replication();
    let replica = &replication.replica;
    if !replication.state().has_backlog {
        replica.record_own_end(term, || None);
        return None;
    }
    let (sender, receiver) = mpsc::channel();
    // `false`: does not ask the replicas for acknowledgements. The request would extend the stream
    // by bytes that the new primary has not received, so the new primary could not continue the
    // stream from the recorded end.
    quiesce(server, false, move |_| _ = sender.send(()));
    while receiver.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
        if replica.term() != term || server.is_stopping() {
            return None;
        }
    }
    let (held, is_recorded) = replication.held(server);
    let place = {
        // The target of a failover was attached to this server until now, so it knows the history
        // by its current ID.
        let is_failover = replication.failovers.is_running();
        let state = replication.state();
        match state.history.second() {
            _ if !is_recorded || !state.has_backlog => None,
            // If nothing was written after the ID changed, and no replica has received the current
            // ID, the new primary can know the history only by its former ID.
            Some((former, end)) if end == held.end + 1 && !state.has_announced_id && !is_failover => {
                Some((former, state.former_db))
            }
            // Otherwise, the position has the current ID. Any database will do, because the new
            // primary's stream starts by selecting one.
            _ => Some((state.history.id(), 0)),
        }
    };
    replica.record_own_end(term, || place.map(|(id, db)| Known { db, ..Known::at(id, hold_stream(server)) }))
}
