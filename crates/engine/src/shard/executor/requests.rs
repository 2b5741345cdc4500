//! Requests: commands that wait for busy shards. A request waits in the gate of a shard (its atomic
//! word), or in the shard's backlog (the requests that the owner has taken from the gate). An owner
//! that releases a shard grants it to the next request. [`crate::shard::request`] explains the life
//! of a request.

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use pantala_base::Clock;
use pantala_resp::{Reply, Version};

use super::{Call, Executor, has_pending_events};
use crate::acl::Context;
use crate::command::{Flags, KeyPlace};
use crate::faults::{self, Fault};
use crate::shard::blocking::Blocking;
use crate::shard::exec::{run_exec, tear};
use crate::shard::gates::take_spinning;
use crate::shard::keyspace::Execution;
use crate::shard::message::Message;
use crate::shard::ownership::{Freed, Ownership, Taken};
use crate::shard::request::{Request, RequestNode, Step, Task};
use crate::shard::transaction::discarded;
use crate::store::eviction::OUT_OF_MEMORY;
use crate::tuning::WATCHING;

/// Maximum number of requests that an owner runs in succession. Without this limit, its own
/// connections would have to wait for the commands of all other workers. At the limit, the owner
/// passes a shard with further requests to the shard's home (the worker that does the shard's
/// periodic work). If the owner is the home, it defers the shard to its next turn.
const COMBINE_MAX: u32 = if cfg!(loom) { 1 } else { 64 };
/// Maximum time for which an owner runs requests in succession. The limit that is reached first
/// applies.
const COMBINE_TIME_MAX: Duration = if cfg!(loom) { Duration::MAX } else { Duration::from_micros(200) };

/// If the steps of a request have taken this time, the clock is read again.
const TIME_AGE_MAX: Duration = Duration::from_millis(1);

impl Executor<'_> {
    /// Rejects the requests that wait for `owned`, shards that a script holds for too long. `why`
    /// is their error, including its code. Three kinds are not rejected: requests without a reply,
    /// commands of a replica's primary, and requests that gather shards and must not be rejected
    /// (`Request::may_be_rejected`). They stay queued but release the shards that they already
    /// hold. So other requests for those shards need not wait until the script ends.
    pub fn reject_waiting(&mut self, owned: &mut [Ownership], why: &'static str) {
        let mut refused = Vec::new();
        for ownership in owned {
            let arrived = self.keyspace.gate(ownership.shard()).waiting(ownership);
            let backlog = self.keyspace.backlog(ownership);
            backlog.extend(arrived.into_iter().flatten());
            let is_refused = |request: &Request| match request.task {
                // The commands of a replica's primary must not be lost.
                Task::Commands | Task::Exec => !request.session.of_primary,
                Task::Gather => request.may_be_rejected,
                _ => false,
            };
            for mut node in std::mem::take(backlog) {
                if is_refused(&node.value) {
                    refused.push(node);
                    continue;
                }
                node.value.is_reset |= !node.value.owned.is_empty();
                self.to_free.append(&mut node.value.owned);
                backlog.push_back(node);
            }
        }
        for mut node in refused {
            let request = &mut node.value;
            self.to_free.append(&mut request.owned);
            request.refused = Some(why);
            let version = request.version();
            for step in &mut request.steps {
                Reply::new(&mut request.reply, version).error(why);
                step.reply_end = request.reply.len();
            }
            if request.exec.is_some() {
                Reply::new(&mut request.reply, version).error_bytes(&discarded(why.as_bytes()));
            }
            match request.task {
                Task::Gather => self.outbox.send_gathered(node),
                _ => self.outbox.answer(node),
            }
        }
        self.free_all();
    }

    /// Runs single-key commands of a connection's pipeline on shards whose home is this worker,
    /// without copying them into a request. `calls` has each call with its key's place and its
    /// position in the pipeline. No call in `calls` may be timed individually. Stops at the first
    /// call whose shard is busy. Returns the number of calls that ran. If any ran, `node`, a
    /// request without commands, becomes an answer with the replies.
    pub fn run_at_home<'c>(
        &mut self,
        mut node: RequestNode,
        calls: impl Iterator<Item = (Call<'c>, KeyPlace, u32)>,
    ) -> usize {
        // As in `complete`: the units that these commands write or read belong to the request's
        // reply, and not to the replies of this worker's connections.
        let own_seen = self.runner.recorder.take_seen();
        let request = &mut node.value;
        for (call, place, sequence) in calls {
            debug_assert!(!call.command.flags.contains(Flags::BLOCKING), "a command that may block");
            let step = |reply_end| Step {
                command: call.command,
                args: 0..0,
                first_key: Some(place),
                sequence,
                reply_end,
                took: None,
            };
            // See `run_steps` on oversized replies.
            if request.reply.len() as u64 > request.reply_bytes_max {
                abort(&mut request.reply, request.session.version);
                request.steps.push(step(request.reply.len()));
                continue;
            }
            let cell = self.keyspace.cell(place.shard);
            let Some(mut ownership) = take_spinning(cell.gate()) else { break };
            let owned = std::slice::from_mut(&mut ownership);
            if let Some(denied) = self.runner.refuses(&call, Context::TopLevel) {
                denied.reply_to(&call, &mut request.reply);
            } else {
                let now_ms = self.runner.time_of(call.now_ms, owned);
                let blocked =
                    self.runner.execute(&call, now_ms, self.worker, owned, Blocking::Denied, &mut request.reply);
                debug_assert!(blocked.is_none(), "a command that must not block has blocked");
            }
            request.steps.push(step(request.reply.len()));
            if cell.state(&mut ownership).observers.has_pending_events() {
                self.release_shards(vec![ownership], call.now_ms);
            } else {
                self.free(ownership);
            }
        }
        let ran = node.value.steps.len();
        if ran == 0 {
            self.spare.keep_request(node);
        } else {
            node.value.effect_clock = self.runner.recorder.effect_clock();
            node.value.seen = self.runner.recorder.seen;
            self.outbox.answer(node);
        }
        self.runner.recorder.seen = own_seen;
        ran
    }

    /// Starts a request that the worker has built itself (pipelines with `--execution owner`). Or
    /// continues a request: one that arrived as a message, or one that [`Executor::gather`] or
    /// [`Executor::reset_gathered`] has returned.
    pub fn resume(&mut self, node: RequestNode) {
        self.advance(node);
        self.free_all();
    }

    /// Takes over a shard that its last owner has passed to this worker, and serves the shard's
    /// pending requests.
    pub fn adopt(&mut self, ownership: Ownership) {
        self.to_free.push(ownership);
        self.free_all();
    }

    /// Serves the requests of deferred shards. Called once a turn.
    pub fn serve_deferred(&mut self) {
        if !self.deferred_shards.is_empty() {
            self.to_free.append(&mut self.deferred_shards);
            self.free_all();
        }
    }

    /// Returns whether there is work for the next turn that no event announces: replies or deferred
    /// shards.
    #[inline]
    pub fn has_work(&self) -> bool {
        self.outbox.has_answers() | !self.deferred_shards.is_empty()
    }

    /// Enqueues a call that needs the shards in `self.shards`. The call has taken `owned`, the
    /// first of these shards; the next one is busy. The request keeps the taken shards. This cannot
    /// deadlock, because the taken shards are lower than those for which the request waits.
    #[cold]
    pub(super) fn leave_request(&mut self, call: &Call<'_>, owned: &mut Vec<Ownership>) {
        let mut node = self.spare.request_of(call, &self.shards);
        node.value.owned.append(owned);
        self.keyspace.count_contended(self.worker);
        self.advance(node);
        self.free_all();
    }

    /// Takes the next shards of a request while they are free. Runs the request once it holds all
    /// shards, and then adds these shards to `to_free`. If a shard is busy, leaves the request in
    /// that shard's gate. With `--execution owner`, sends the request to the next shard's home if
    /// that is another worker.
    fn advance(&mut self, mut node: RequestNode) {
        if node.value.worker == self.worker {
            node.value.effect_clock = self.runner.recorder.effect_clock();
        }
        loop {
            let taken = node.value.owned.len();
            let Some(&shard) = node.value.shards.get(taken) else {
                return self.complete(node);
            };
            if self.keyspace.layout().execution == Execution::Owner {
                let home = self.keyspace.home(shard);
                if home != self.worker {
                    return self.keyspace.port(home).send(Message::Run(node));
                }
            }
            match self.keyspace.gate(shard).take_or_enqueue(node) {
                Taken::Owner(ownership, back) => {
                    node = back;
                    self.spare.add_owned(&mut node.value, ownership);
                    faults::pause(Fault::PauseTaking);
                }
                Taken::Enqueued => return,
            }
        }
    }

    /// Runs a request that holds all its shards, and sends the reply.
    fn complete(&mut self, node: RequestNode) {
        // `seen` contains the units on which the replies of this worker's connections depend. The
        // units that the request makes or reads belong to the request's own reply.
        let own_seen = self.runner.recorder.take_seen();
        self.outside_unit(|executor| executor.complete_alone(node));
        self.runner.recorder.seen = own_seen;
    }

    fn complete_alone(&mut self, mut node: RequestNode) {
        let mut owned = std::mem::take(&mut node.value.owned);
        node.value.catch_up(self.runner.clock.now_ms());
        // The request's effects must have higher stamps than earlier effects of its connection,
        // which may have run on other workers.
        self.runner.recorder.observe_clock(node.value.effect_clock);
        let now_ms = node.value.now_ms;
        match std::mem::replace(&mut node.value.task, Task::Commands) {
            Task::Commands => {}
            Task::Withdraw(waiter) => {
                for ownership in &mut owned {
                    let shard = ownership.shard();
                    self.keyspace.shard(ownership).observers.remove(shard, &waiter);
                }
                return self.to_free.append(&mut owned);
            }
            Task::Serve(shard, key) => {
                self.serving().serve_now(&mut owned, shard, &key, now_ms);
                self.runner.recorder.commit_deletions(&mut owned);
                self.outbox.send_invalidations(&mut owned);
                return self.to_free.append(&mut owned);
            }
            Task::Gather => {
                node.value.owned = owned;
                return self.outbox.send_gathered(node);
            }
            Task::Exec => {
                if !run_exec(self, &mut node.value, &mut owned) {
                    return tear(self, node, owned);
                }
            }
        }
        self.run_steps(&mut node.value, &mut owned);
        if has_pending_events(self.keyspace, &mut owned) {
            self.outbox.send_invalidations(&mut owned);
            // Sent before the reply, because a client that has received the reply may rely on
            // having received all invalidations.
            self.outbox.send_prefix_invalidations();
        }
        self.runner.recorder.commit_deletions(&mut owned);
        node.value.effect_clock = self.runner.recorder.effect_clock();
        node.value.seen = self.runner.recorder.seen;
        faults::pause(Fault::PauseReplying);
        // The reply is sent before the shards are released. If a step has blocked, its command can
        // be woken only by a holder of one of these shards. So the reply to the woken command
        // cannot overtake the reply to this request.
        self.outbox.answer(node);
        self.to_free.append(&mut owned);
        self.spare.keep_owned(owned);
    }

    fn run_steps(&mut self, request: &mut Request, owned: &mut Vec<Ownership>) {
        let mut reply = std::mem::take(&mut request.reply);
        let mut steps = std::mem::take(&mut request.steps);
        let mut all_took = Duration::ZERO;
        for step in &mut steps {
            // The clock is read again after steps that took long.
            if all_took >= TIME_AGE_MAX {
                all_took = Duration::ZERO;
                request.catch_up(self.runner.clock.now_ms());
            }
            // Commands after an oversized reply do not run, as in a pipeline on the connection's
            // own worker.
            if reply.len() as u64 > request.reply_bytes_max {
                abort(&mut reply, request.session.version);
                step.reply_end = reply.len();
                continue;
            }
            // Memory may have filled up while the request waited. This worker evicts keys, because
            // with `--execution owner` no other worker can evict from these shards. For a replica's
            // primary nothing is evicted, and no command is rejected, because the primary's
            // commands must not be lost.
            let is_limited = self.keyspace.tuning.is_limited() && !request.session.of_primary;
            if is_limited && !self.evictor().has_room(step.command.flags, owned, request.now_ms) {
                Reply::new(&mut reply, request.session.version).error(OUT_OF_MEMORY);
                step.reply_end = reply.len();
                if has_pending_events(self.keyspace, owned) {
                    self.serving().serve(owned, request.now_ms);
                }
                continue;
            }
            let call = Call {
                command: step.command,
                args: request.args(step),
                first_key: step.first_key,
                session: request.session,
                reads_as: request.reads_as.as_ref(),
                connection: request.connection,
                now_ms: request.now_ms,
            };
            if let Some(denied) = self.runner.refuses(&call, Context::TopLevel) {
                denied.reply_to(&call, &mut reply);
                step.reply_end = reply.len();
                continue;
            }
            let is_timed = WATCHING
                && (call.command.is_timed_individually(call.args.len())
                    || self.keyspace.tuning.times_all.load(Relaxed));
            let began = is_timed.then(Instant::now);
            let now_ms = self.runner.time_of(call.now_ms, owned);
            if call.first_key.is_none() && call.command.flags.contains(Flags::WRITE) {
                self.runner.recorder.outdate_published(owned);
            }
            let blocked = self.runner.execute(&call, now_ms, request.worker, owned, Blocking::Allowed, &mut reply);
            step.took = began.map(|began| began.elapsed());
            all_took += step.took.unwrap_or_default();
            if blocked.is_some() {
                request.blocked = blocked;
            }
            step.reply_end = reply.len();
            // Blocked clients are served before the next command of the pipeline runs.
            if has_pending_events(self.keyspace, owned) {
                self.serving().serve(owned, request.now_ms);
            }
        }
        request.steps = steps;
        request.reply = reply;
        if request.worker != self.worker {
            self.keyspace.shard_stats(owned[0].shard()).combined.add(1);
        }
    }

    /// Releases all shards in `to_free`: grants each shard to its next pending request, or frees it
    /// if there is none. A request that was granted a shard may run and add more shards to
    /// `to_free`. Afterwards starts the requests in `to_start`. All this is a loop and not a
    /// recursion, because the number of requests is unbounded.
    pub(crate) fn free_all(&mut self) {
        loop {
            self.free_those();
            // A request in `to_start` may need the shards that were just released.
            let Some(request) = self.to_start.pop() else { return };
            self.advance(request);
        }
    }

    fn free_those(&mut self) {
        let mut granted = 0;
        let mut began = None;
        while let Some(mut ownership) = self.to_free.pop() {
            let shard = ownership.shard();
            loop {
                let backlog = self.keyspace.backlog(&mut ownership);
                if let Some(mut node) = backlog.pop_front() {
                    if std::mem::take(&mut node.value.is_reset) {
                        // The request has released its other shards while a script ran. It takes
                        // all shards again after this loop.
                        self.to_start.push(node);
                        continue;
                    }
                    let began = *began.get_or_insert_with(Instant::now);
                    if granted >= COMBINE_MAX || granted > 0 && began.elapsed() > COMBINE_TIME_MAX {
                        backlog.push_front(node);
                        let home = self.keyspace.home(shard);
                        if home == self.worker {
                            self.deferred_shards.push(ownership);
                        } else {
                            self.keyspace.shard_stats(shard).handovers.add(1);
                            self.keyspace.port(home).send(Message::Shard(ownership));
                        }
                        break;
                    }
                    granted += 1;
                    faults::pause(Fault::PauseTaking);
                    self.spare.add_owned(&mut node.value, ownership);
                    self.advance(node);
                    break;
                }
                match self.keyspace.gate(shard).free(ownership) {
                    Freed::Free => break,
                    Freed::Waiters(still, waiters) => {
                        ownership = still;
                        self.keyspace.backlog(&mut ownership).extend(waiters);
                    }
                }
            }
        }
    }
}

/// Writes an aborted reply, whose connection will be closed.
fn abort(reply: &mut Vec<u8>, version: Version) {
    let mut aborted = Reply::new(reply, version);
    aborted.abort();
    aborted.finish();
}
