//! `EXEC` on busy shards. If some shards of a transaction were busy, the transaction runs on the
//! thread that releases the last of them, like any command on several keys.
//!
//! A transaction can run on another thread only if it needs no shards but those of its keys
//! ([`Transaction::can_travel`]). Otherwise the shards are gathered for the client's worker. No
//! command can use the shards while they are sent to that worker. If many transactions compete for
//! few shards, the transactions spend most of their waiting time on these transfers
//! (`docs/decisions/0005-transactions.md`).

use std::borrow::Cow;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use pantala_resp::{ArgRange, Args, Reply};

use crate::command::Command;
use crate::faults::{self, Fault};
use crate::shard::executor::{Call, Executor, has_pending_events};
use crate::shard::ownership::Ownership;
use crate::shard::request::{Request, RequestNode, Task};
use crate::shard::transaction::{Queued, Transaction, Watching, discarded};
use crate::store::eviction::OUT_OF_MEMORY;
use crate::tuning::WATCHING;

/// A transaction that any thread can run, and its results.
pub struct Exec {
    /// The queued commands.
    pub transaction: Box<Transaction>,
    /// The watched keys, until `EXEC` has checked whether they changed.
    pub watching: Option<Box<Watching>>,
    /// The command `EXEC`, for monitors.
    pub command: &'static Command,
    /// The command's name as the client spelled it.
    pub name: Cow<'static, [u8]>,
    /// Length in bytes of the reply's header, which contains the number of commands. 0 until the
    /// header is written, just before the first command runs.
    heading_bytes: usize,
    /// Results of the commands that have run.
    ran: Vec<RanQueued>,
    /// Time for which the transaction has run with all its shards held.
    pub took: Duration,
}

/// Result of a command of a transaction.
pub struct RanQueued {
    /// End of the command's reply.
    reply_end: usize,
    /// Duration, if the command was timed.
    pub took: Option<Duration>,
    /// Whether the command was denied because the user has lost the permission. Its reply is the
    /// error.
    pub is_denied: bool,
}

impl Exec {
    /// Wraps a transaction that has not run. The transaction must be able to travel
    /// ([`Transaction::can_travel`]).
    pub fn new(
        transaction: Box<Transaction>,
        watching: Option<Box<Watching>>,
        command: &'static Command,
        name: Cow<'static, [u8]>,
    ) -> Self {
        assert!(transaction.can_travel(), "a transaction that needs its session must not travel");
        Exec { transaction, watching, command, name, heading_bytes: 0, ran: Vec::new(), took: Duration::ZERO }
    }

    /// Returns each command that has run, its result, and its reply, which is a part of `reply`.
    /// Returns nothing if the transaction was rejected or a watched key has changed.
    pub fn replies<'a>(&'a self, reply: &'a [u8]) -> impl Iterator<Item = (&'a Queued, &'a RanQueued, &'a [u8])> {
        let mut begin = self.heading_bytes;
        self.transaction.queue().iter().zip(&self.ran).map(move |(queued, ran)| {
            let part = &reply[begin..ran.reply_end];
            begin = ran.reply_end;
            (queued, ran, part)
        })
    }
}

/// Runs a transaction that holds all its shards, and serves clients blocked on keys that it
/// changed. Returns `false` if [`Fault::TornExec`] has interrupted it.
pub(crate) fn run_exec(executor: &mut Executor<'_>, request: &mut Request, owned: &mut Vec<Ownership>) -> bool {
    let Some(mut exec) = request.exec.take() else { return true };
    let began = WATCHING.then(Instant::now);
    executor.runner.recorder.begin_unit(owned);
    let is_torn = exec.run_queue(executor, request, owned);
    executor.runner.recorder.end_unit(owned);
    exec.took += began.map_or(Duration::ZERO, |began| began.elapsed());
    if !is_torn && executor.keyspace().monitors().are_there() {
        let args = [ArgRange::new(0, exec.name.len())];
        let (client, db) = (request.session.client, request.session.db);
        executor.keyspace().show(exec.command, &Args::new(&exec.name, &args), client, db);
    }
    request.exec = Some(exec);
    if has_pending_events(executor.keyspace(), owned) {
        executor.serving().serve(owned, request.now_ms);
    }
    !is_torn
}

impl Exec {
    /// Runs the commands. Returns whether [`Fault::TornExec`] has interrupted the transaction.
    fn run_queue(&mut self, executor: &mut Executor<'_>, request: &mut Request, owned: &mut [Ownership]) -> bool {
        let (session, now_ms) = (request.session, executor.runner.time_of(request.now_ms, owned));
        let has_started = self.heading_bytes > 0;
        let flags = self.transaction.flags();
        let is_limited = executor.keyspace().tuning.is_limited() && !session.of_primary;
        if !has_started && is_limited && !executor.evictor().has_room(flags, owned, now_ms) {
            Reply::new(&mut request.reply, session.version).error_bytes(&discarded(OUT_OF_MEMORY.as_bytes()));
            return false;
        }
        let watching = self.watching.take();
        let is_intact =
            watching.is_none_or(|watching| watching.is_intact(&mut executor.runner.look(&session, owned, now_ms)));
        if !is_intact && !faults::hits(Fault::BlindExec) {
            Reply::new(&mut request.reply, session.version).null_array();
            return false;
        }
        let queue = self.transaction.queue();
        if !has_started {
            Reply::new(&mut request.reply, session.version).array(queue.len());
            self.heading_bytes = request.reply.len();
        }
        let mut shards = Vec::new();
        // All commands are checked by the same rules, so that a change of rules cannot split the
        // transaction.
        let changed = executor.keyspace().changed_rules(&session);
        for (at, queued) in queue.iter().enumerate().skip(self.ran.len()) {
            faults::pause(Fault::PauseHolding);
            if !has_started && at + 1 == queue.len() && faults::hits(Fault::TornExec) {
                return true;
            }
            let is_found = self.transaction.find_shards(queued, &mut shards);
            debug_assert!(is_found, "shards not found of a command that can travel");
            let call = Call {
                command: queued.command,
                args: self.transaction.args(queued),
                first_key: queued.first_key,
                session,
                reads_as: request.reads_as.as_ref(),
                connection: request.connection,
                now_ms,
            };
            let refuses = |changed| executor.keyspace().refuses_queued(changed, &call, queue.len());
            let denied = changed.as_ref().and_then(refuses);
            if let Some(denied) = denied {
                Reply::new(&mut request.reply, session.version).error(&denied.message_in_exec());
                self.ran.push(RanQueued { reply_end: request.reply.len(), took: None, is_denied: true });
                continue;
            }
            let is_timed = WATCHING
                && (!call.command.is_plain(call.args.len()) || executor.keyspace().tuning.times_all.load(Relaxed));
            let began = is_timed.then(Instant::now);
            executor.runner.run_held(&call, &shards, owned, &mut request.reply);
            let took = began.map(|began| began.elapsed());
            self.ran.push(RanQueued { reply_end: request.reply.len(), took, is_denied: false });
        }
        false
    }
}

/// Implements [`Fault::TornExec`]: releases the shards, and makes the transaction acquire them
/// again for its last command.
#[cold]
pub(crate) fn tear(executor: &mut Executor<'_>, mut node: RequestNode, owned: Vec<Ownership>) {
    node.value.task = Task::Exec;
    executor.release_shards(owned, node.value.now_ms);
    faults::stall();
    executor.to_start.push(node);
}
