//! Runs commands on shards: directly if the shards are free, through their gates otherwise. Each
//! worker has one [`Executor`] for its connections. [The crate's page](crate) defines the terms.
//!
//! ```text
//!     free                      busy
//! run ─────► execute      run ─────► request into the gate, connection parked
//!               │                       │ the shard's owner runs the queue
//!               ▼                       ▼
//!            release ─ requests ──► grant: the request now owns the shard
//!               │ no requests           │ more shards to take (ascending): try each,
//!               ▼                       ▼ or wait in its gate, until all are taken
//!             free                   execute, release all, reply to the origin worker
//! ```
//!
//! No thread blocks on a shard. Requests take shards in ascending order, so they cannot deadlock.
//! Gates are served in order of arrival, so no request starves.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use pantala_base::mailbox::Chain;
use pantala_base::{Random, SystemClock};
use pantala_resp::{Args, Reply};
use smallvec::SmallVec;

use crate::acl::Context;
use crate::clients::waiter::{Origin, Waiter};
use crate::command::{Chance, Command, Flags, Handler, KeyPlace, Route, SessionView};
use crate::events::tracking::{Changer, Reader};
use crate::faults::{self, Fault};
use crate::shard::access::Access;
use crate::shard::blocking::Blocking;
pub use crate::shard::commit::Recorder;
use crate::shard::gates::{Gates, take_spinning};
pub use crate::shard::hot::HotKeys;
use crate::shard::hot::HotReads;
use crate::shard::invalidation::{remember, set_changer};
use crate::shard::keyspace::{Execution, Keyspace};
pub use crate::shard::outbox::Outbox;
use crate::shard::ownership::{Freed, Ownership};
use crate::shard::request::{Request, RequestNode, Spare, Task};
use crate::shard::serving::Serving;
use crate::store::eviction::Weights;

/// Number of gates to prefetch ahead: about as many loads as a processor keeps in flight.
const GATES_AHEAD: usize = 8;

/// Result of running a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ran {
    /// The command ran. Its reply is in the buffer.
    Done,
    /// As `Done`. In addition, waiters were served ([`Outbox::take_served`]), or invalidations
    /// must be sent after the reply ([`Outbox::take_invalidations`]).
    DoneWithEvents,
    /// The command is in flight. Its reply will arrive as
    /// [`Message::Answer`](crate::shard::message::Message::Answer) or through
    /// [`Outbox::take_answers`].
    Parked,
    /// The client is blocked on a key ([`Outbox::take_blocked`]). Its reply will arrive as
    /// [`Message::Woken`](crate::shard::message::Message::Woken) or through
    /// [`Outbox::take_woken`].
    Blocked,
}

/// A command to run. Borrows its arguments from the connection.
pub struct Call<'a> {
    /// The command, which must have a keyed handler.
    pub command: &'static Command,
    /// Arguments of the command.
    pub args: Args<'a>,
    /// The place of the command's first key, if it has one.
    pub first_key: Option<KeyPlace>,
    /// The part of the session that handlers may see.
    pub session: SessionView,
    /// If the client uses `CLIENT TRACKING`: the reader that is recorded for each key read.
    pub reads_as: Option<&'a Arc<Reader>>,
    /// Token of the connection in its worker.
    pub connection: u64,
    /// Unix time, ms.
    pub now_ms: i64,
}

/// A worker's access to the shards.
pub struct Executor<'k> {
    pub(crate) keyspace: &'k Keyspace,
    pub(super) worker: u32,
    /// Scratch: shards of the current command.
    shards: Vec<u32>,
    /// Scratch: ownerships of the current command.
    owned: Vec<Ownership>,
    /// Shards to release.
    pub(crate) to_free: Vec<Ownership>,
    /// Deferred shards: this worker continues to run their pending requests in its next turn.
    pub(super) deferred_shards: Vec<Ownership>,
    /// Memory for the next requests.
    spare: Spare,
    /// Requests to start when the held shards are released.
    pub(crate) to_start: Vec<RequestNode>,
    /// Results for the worker's own connections.
    pub(crate) outbox: Outbox<'k>,
    /// Chooses the shards to evict from.
    pub(crate) weights: Weights,
    /// Hot keys, which this worker reads without taking their shards.
    pub hot: HotKeys,
    /// Runs commands on held shards.
    pub(crate) runner: Runner<'k>,
}

/// Runs commands on shards that the worker holds.
pub struct Runner<'k> {
    pub(crate) keyspace: &'k Keyspace,
    worker: u32,
    /// The clock. The executor reads it when it serves waiters or runs requests, because their
    /// commands may have been sent long before.
    pub(crate) clock: SystemClock,
    /// Records the effects of the commands.
    pub(crate) recorder: Recorder<'k>,
    /// Time at which any worker last deleted an expired key on the shards that this turn's commands
    /// used, Unix time in ms. May be later than this worker's time. See [`Runner::time_of`].
    pub(super) reached_ms: i64,
}

impl<'k> Executor<'k> {
    /// Returns a worker's executor.
    pub fn new(keyspace: &'k Keyspace, worker: u32) -> Self {
        Executor {
            keyspace,
            worker,
            shards: Vec::new(),
            owned: Vec::new(),
            to_free: Vec::new(),
            deferred_shards: Vec::new(),
            spare: Spare::new(worker),
            to_start: Vec::new(),
            outbox: Outbox::new(keyspace, worker),
            weights: Weights::new(Random::from_seed(keyspace.layout().random_seed.wrapping_sub(worker.into()))),
            hot: HotKeys::new(),
            runner: Runner::new(keyspace, worker),
        }
    }

    /// Returns the number of this worker.
    pub fn worker(&self) -> u32 {
        self.worker
    }

    /// Returns the keyspace.
    pub fn keyspace(&self) -> &'k Keyspace {
        self.keyspace
    }

    /// Returns this worker's access to the gates.
    #[inline]
    pub(crate) fn gates(&self) -> Gates<'k> {
        Gates { keyspace: self.keyspace, worker: self.worker }
    }

    /// Returns the part of this executor that serves blocked clients.
    pub(crate) fn serving(&mut self) -> Serving<'_, 'k> {
        let gates = self.gates();
        let Executor { runner, outbox, spare, to_start, .. } = self;
        Serving { gates, runner, outbox, spare, to_start }
    }

    /// Returns the part of this executor that runs commands on held shards.
    #[inline]
    pub fn runner(&mut self) -> &mut Runner<'k> {
        &mut self.runner
    }

    /// Returns the recorder of this worker's effects.
    #[inline]
    pub fn recorder(&mut self) -> &mut Recorder<'k> {
        &mut self.runner.recorder
    }

    /// Returns this worker's unused requests, whose memory new requests reuse.
    #[inline]
    pub fn spare(&mut self) -> &mut Spare {
        &mut self.spare
    }

    /// Returns the results for this worker's own connections.
    #[inline]
    pub fn outbox(&mut self) -> &mut Outbox<'k> {
        &mut self.outbox
    }

    /// Runs a command that needs only the shard of its first key. Enqueues a request if that shard
    /// is busy.
    #[inline]
    pub fn run_single(&mut self, call: &Call<'_>, place: KeyPlace, reply: &mut Vec<u8>) -> Ran {
        if (!self.hot.is_empty() || faults::is_set(Fault::EveryKeyHot))
            && let Some(ran) = HotReads(self).run(call, place, reply)
        {
            return ran;
        }
        let keyspace = self.keyspace;
        let cell = keyspace.cell(place.shard);
        if self.gates().may_take(place.shard)
            && let Some(mut ownership) = cell.gate().try_take().or_else(|| HotReads(self).take_contended(call, place))
        {
            cell.stats().commands.add(1);
            let owned = std::slice::from_mut(&mut ownership);
            let now_ms = self.runner.time_of(call.now_ms, owned);
            let blocked = match self.runner.refuses(call, Context::TopLevel) {
                None => self.runner.execute_counted(call, now_ms, self.worker, owned, Blocking::Allowed, reply),
                Some(denied) => {
                    denied.reply_to(call, reply);
                    None
                }
            };
            if cell.state(&mut ownership).observers.has_pending_events() {
                self.release_shards(vec![ownership], call.now_ms);
                return self.outbox.ran_with_events(blocked);
            }
            debug_assert!(cell.backlog(&mut ownership).is_empty());
            faults::pause(Fault::PauseHolding);
            if let Freed::Waiters(ownership, waiters) = cell.gate().free(ownership) {
                self.serve_requests(ownership, waiters);
            }
            return self.outbox.ran(blocked, Ran::Done);
        }
        leave_single(self, call, place)
    }

    /// Runs a command that needs the given shards: at least one, in any order, with or without
    /// duplicates.
    pub fn run_many(&mut self, call: &Call<'_>, shards: &[u32], reply: &mut Vec<u8>) -> Ran {
        let keyspace = self.keyspace;
        let mut owned = self.take_in_order(shards);
        if owned.len() < self.shards.len() {
            self.leave_request(call, &mut owned);
            self.owned = owned;
            return Ran::Parked;
        }
        let now_ms = self.runner.time_of(call.now_ms, &mut owned);
        if call.command.flags.contains(Flags::WRITE) {
            self.runner.recorder.outdate_published(&mut owned);
        }
        let blocked = match self.runner.refuses(call, Context::TopLevel) {
            None => self.runner.execute(call, now_ms, self.worker, &mut owned, Blocking::Allowed, reply),
            Some(denied) => {
                denied.reply_to(call, reply);
                None
            }
        };
        if has_pending_events(keyspace, &mut owned) {
            self.release_shards(owned, call.now_ms);
            return self.outbox.ran_with_events(blocked);
        }
        self.to_free.append(&mut owned);
        self.owned = owned;
        self.free_all();
        self.outbox.ran(blocked, Ran::Done)
    }

    /// Takes the given shards, in any order and possibly with duplicates, up to the first busy one.
    /// Stores the numbers of all given shards, sorted and deduplicated, in `self.shards`. With
    /// `--execution owner` takes no shard, because requests take shards at their homes.
    fn take_in_order(&mut self, shards: &[u32]) -> Vec<Ownership> {
        self.shards.clear();
        self.shards.extend_from_slice(shards);
        self.shards.sort_unstable();
        self.shards.dedup();
        let mut owned = std::mem::take(&mut self.owned);
        if self.keyspace.layout().execution == Execution::Inline {
            let (keyspace, mut ahead) = (self.keyspace, self.shards.iter());
            ahead.by_ref().take(GATES_AHEAD).for_each(|&shard| keyspace.prefetch_gate(shard));
            for &shard in &self.shards {
                faults::pause(Fault::PauseTaking);
                if let Some(&shard) = ahead.next() {
                    keyspace.prefetch_gate(shard);
                }
                let Some(ownership) = take_spinning(keyspace.gate(shard)) else { break };
                owned.push(ownership);
            }
        }
        owned
    }

    /// Takes the given shards, in any order and possibly with duplicates, for a connection of this
    /// worker.
    ///
    /// # Errors
    /// If not all shards could be taken, returns a request that holds the shards taken (none with
    /// `--execution owner`). Pass the request to [`Executor::resume`]. Later it arrives, with all
    /// shards, as [`Message::Gathered`](crate::shard::message::Message::Gathered) or through
    /// [`Outbox::take_gathered`]. With `may_be_rejected` it may arrive rejected. If the caller
    /// attaches a transaction ([`Request::run_exec`]), the thread that takes the last shard runs
    /// the transaction. The request then arrives as an answer.
    pub fn gather(
        &mut self,
        shards: &[u32],
        session: SessionView,
        connection: u64,
        now_ms: i64,
        may_be_rejected: bool,
    ) -> Result<Vec<Ownership>, RequestNode> {
        let owned = self.take_in_order(shards);
        if owned.len() == self.shards.len() {
            return Ok(owned);
        }
        let mut node = self.spare.request_holding(owned, &self.shards, session, connection, now_ms, may_be_rejected);
        node.value.task = Task::Gather;
        self.keyspace.count_contended(self.worker);
        Err(node)
    }

    /// Gathers the given shards for a connection (token) of this worker. The connection waits for
    /// them. Even if all shards are free, they arrive as described for [`Executor::gather`].
    pub fn gather_for(&mut self, shards: &[u32], session: SessionView, token: u64, now_ms: i64, may_be_rejected: bool) {
        match self.gather(shards, session, token, now_ms, may_be_rejected) {
            Err(node) => self.resume(node),
            Ok(owned) => {
                let node = self.spare.request_holding(owned, &self.shards, session, token, now_ms, may_be_rejected);
                self.outbox.send_gathered(node);
            }
        }
    }

    /// Takes a shard for periodic work if it is free.
    pub fn try_take(&self, shard: u32) -> Option<Ownership> {
        self.keyspace.gate(shard).try_take()
    }

    /// Releases a shard that was free when taken, and serves requests that arrived meanwhile.
    #[inline(always)]
    pub fn free(&mut self, mut ownership: Ownership) {
        let shard = ownership.shard();
        // A shard is freed only with an empty backlog, so a shard that was free has none.
        debug_assert!(self.keyspace.backlog(&mut ownership).is_empty());
        if let Freed::Waiters(ownership, waiters) = self.keyspace.gate(shard).free(ownership) {
            self.serve_requests(ownership, waiters);
        }
    }

    /// Serves the requests that arrived while this worker held the shard, and frees the shard.
    #[cold]
    fn serve_requests(&mut self, mut ownership: Ownership, waiters: Chain<Request>) {
        self.keyspace.backlog(&mut ownership).extend(waiters);
        self.to_free.push(ownership);
        self.free_all();
    }

    /// Serves the clients blocked on keys that a command or a transaction changed, then releases
    /// its shards.
    #[cold]
    pub fn release_shards(&mut self, mut owned: Vec<Ownership>, now_ms: i64) {
        self.runner.recorder.commit_deletions(&mut owned);
        self.serving().serve(&mut owned, now_ms);
        // Serving may have found expired keys.
        self.runner.recorder.commit_deletions(&mut owned);
        self.outbox.send_invalidations(&mut owned);
        faults::pause(Fault::PauseHolding);
        self.to_free.append(&mut owned);
        // The empty vector is scratch memory of the next command.
        self.owned = owned;
        self.free_all();
    }

    /// Calls `run` outside of the current transaction or script: the effects of `run` do not become
    /// part of the current unit.
    #[inline]
    pub(crate) fn outside_unit<R>(&mut self, run: impl FnOnce(&mut Self) -> R) -> R {
        if !self.runner.recorder.is_in_unit() {
            return run(self);
        }
        let unit = self.runner.recorder.suspend_unit();
        let result = run(self);
        self.runner.recorder.resume_unit(unit);
        result
    }
}

impl<'k> Runner<'k> {
    fn new(keyspace: &'k Keyspace, worker: u32) -> Self {
        let recorder = Recorder::new(keyspace, worker);
        Runner { keyspace, worker, clock: SystemClock::new(), recorder, reached_ms: i64::MIN }
    }

    /// Runs a command of a transaction on the held shards that it needs. `shards` must be sorted
    /// and without duplicates.
    pub fn run_held(&mut self, call: &Call<'_>, shards: &[u32], owned: &mut [Ownership], reply: &mut Vec<u8>) {
        // A handler must see only the shards of its own command. Most commands need one shard, so a
        // part of `owned` suffices and nothing is moved.
        if let [shard] = shards
            && let Ok(at) = owned.binary_search_by_key(shard, Ownership::shard)
        {
            self.execute(call, call.now_ms, self.worker, &mut owned[at..=at], Blocking::Denied, reply);
            return;
        }
        // Several shards are swapped to the front, in order, and swapped back afterwards.
        let places = shards.iter().filter_map(|shard| owned.binary_search_by_key(shard, Ownership::shard).ok());
        let places: SmallVec<[usize; 16]> = places.collect();
        places.iter().enumerate().for_each(|(front, &place)| owned.swap(front, place));
        self.execute(call, call.now_ms, self.worker, &mut owned[..places.len()], Blocking::Denied, reply);
        places.iter().enumerate().rev().for_each(|(front, &place)| owned.swap(front, place));
    }

    /// Returns a transaction's view of its held shards.
    pub fn look<'a>(&self, session: &'a SessionView, owned: &'a mut [Ownership], now_ms: i64) -> Access<'a>
    where
        'k: 'a,
    {
        Access {
            keyspace: self.keyspace,
            session,
            owned,
            first_key: None,
            now_ms,
            blocking: Blocking::Denied,
            block: None,
            is_unchanged: false,
        }
    }

    /// Runs a command on held shards. `now_ms` may be later than the call's time. Returns the
    /// waiter if the command blocked.
    #[inline]
    pub(super) fn execute(
        &mut self,
        call: &Call<'_>,
        now_ms: i64,
        worker: u32,
        owned: &mut [Ownership],
        blocking: Blocking<'_>,
        reply: &mut Vec<u8>,
    ) -> Option<Arc<Waiter>> {
        self.keyspace.shard_stats(owned[0].shard()).commands.add(1);
        self.execute_counted(call, now_ms, worker, owned, blocking, reply)
    }

    /// Does the work of [`Runner::execute`] for a command that the caller has already counted.
    #[inline(always)]
    fn execute_counted(
        &mut self,
        call: &Call<'_>,
        now_ms: i64,
        worker: u32,
        owned: &mut [Ownership],
        blocking: Blocking<'_>,
        reply: &mut Vec<u8>,
    ) -> Option<Arc<Waiter>> {
        let mut access = access(self.keyspace, call, owned, blocking);
        access.now_ms = now_ms;
        self.run_handler(&mut access, call, reply);
        if access.block.is_some() { self.wait(&mut access, call, worker) } else { None }
    }

    /// Runs the handler of a call: a new command, or a blocked one that was woken.
    /// [`crate::effect::change`] notifies the sinks of each changed key. This function does the
    /// rest: it commits the effect, shows the command to monitors, tracks reads and counts memory.
    #[inline]
    pub(crate) fn run_handler(&mut self, access: &mut Access<'_>, call: &Call<'_>, reply: &mut Vec<u8>) {
        if access.keyspace.tuning.is_watched() {
            self.run_watched(access, call, reply);
        } else {
            call_handler(access, call, reply);
        }
    }

    /// Runs a call while the journal is on, memory is limited, or clients run `MONITOR` or track
    /// keys.
    #[cold]
    fn run_watched(&mut self, access: &mut Access<'_>, call: &Call<'_>, reply: &mut Vec<u8>) {
        let keyspace = access.keyspace;
        if !keyspace.tuning.is_watched_beside_journal() {
            // Here only the journal is on.
            for ownership in access.owned.iter_mut() {
                keyspace.shard(ownership).observers.pending.forget_command();
            }
            call_handler(access, call, reply);
            return self.recorder.commit(access, call);
        }
        set_changer(keyspace, access.owned, Changer::from(&call.session));
        if keyspace.tuning.is_journaled() {
            // A command that started before the journal was switched on may have left marks of its
            // changes. These marks do not belong to the current command.
            for ownership in access.owned.iter_mut() {
                keyspace.shard(ownership).observers.pending.forget_command();
            }
        }
        call_handler(access, call, reply);
        // Shown while the shards are held, so that monitors see an order in which the commands
        // could have run. A woken command was shown when it blocked.
        if keyspace.monitors().are_there() && !access.is_handed_over() && access.woken_by().is_none() {
            if call.session.in_script {
                keyspace.show_of_script(call.command, &call.args, call.session.db);
            } else {
                keyspace.show(call.command, &call.args, call.session.client, call.session.db);
            }
        }
        remember(keyspace, call, access.owned);
        if keyspace.tuning.is_limited() {
            let db = stays_in_database(call.command).then_some(call.session.db);
            for ownership in access.owned.iter_mut() {
                keyspace.meter(ownership.shard(), keyspace.shard(ownership), db);
            }
        }
        set_changer(keyspace, access.owned, Changer::NOBODY);
        if keyspace.tuning.is_journaled() {
            self.recorder.commit(access, call);
        }
    }

    /// Adds a blocking command to the waiter queues of its keys.
    #[cold]
    fn wait(&mut self, access: &mut Access<'_>, call: &Call<'_>, worker: u32) -> Option<Arc<Waiter>> {
        let (keyspace, block) = (access.keyspace, access.block.take()?);
        let (connection, session) = (call.connection, call.session);
        let origin = Origin { ticket: keyspace.next_ticket(), worker, connection, session };
        let waiter = Arc::new(Waiter::new(&origin, call.command, &call.args, &block, &|key| keyspace.place(key)));
        for shard in waiter.shards() {
            access.shard(shard).observers.add(shard, &waiter);
        }
        if keyspace.tuning.is_journaled() {
            // The waiter's effects must get later stamps than the connection's earlier effects.
            self.recorder.raise_clocks(access.owned);
        }
        Some(waiter)
    }
}

/// Enqueues a request for a command that needs only the shard of its first key.
pub(super) fn leave_single(executor: &mut Executor<'_>, call: &Call<'_>, place: KeyPlace) -> Ran {
    executor.shards.clear();
    executor.shards.push(place.shard);
    executor.leave_request(call, &mut Vec::new());
    Ran::Parked
}

/// Returns whether a command changes only keys of the selected database.
fn stays_in_database(command: &Command) -> bool {
    matches!(command.route, Route::Keys) && !command.flags.contains(Flags::OTHER_DATABASES)
}

/// Returns the view of held shards for the handler of a call.
#[inline]
pub(crate) fn access<'a>(
    keyspace: &'a Keyspace,
    call: &'a Call<'_>,
    owned: &'a mut [Ownership],
    blocking: Blocking<'a>,
) -> Access<'a> {
    Access {
        keyspace,
        session: &call.session,
        owned,
        first_key: call.first_key,
        now_ms: call.now_ms,
        blocking,
        block: None,
        is_unchanged: false,
    }
}

#[inline(always)]
fn call_handler(access: &mut Access<'_>, call: &Call<'_>, reply: &mut Vec<u8>) {
    let mut reply = Reply::limited(reply, call.session.version, reply_limit(access));
    match call.command.handler {
        Handler::Keyed(handler) => handler(access, &call.args, &mut reply),
        Handler::Undetermined(handler) => {
            access.is_unchanged = handler(access, &call.args, &mut reply, Chance(())).is_none();
        }
        _ => unreachable!("only keyed commands are routed to shards"),
    }
    reply.finish();
}

/// Returns a reference to the maximum total length of a reply and the pending replies before it in
/// the same buffer. The encoder aborts a longer reply, because the connection will be closed
/// ([`pantala_resp::Reply::limited`]). Returns `None` (no limit) if a script or the primary has
/// called the command, because the reply is then not sent to a client.
#[inline]
fn reply_limit<'a>(access: &Access<'a>) -> Option<&'a AtomicU64> {
    reply_limit_of(access.keyspace, access.session)
}

/// Returns the limit of a session's replies ([`reply_limit`]).
#[inline]
pub(super) fn reply_limit_of<'a>(keyspace: &'a Keyspace, session: &SessionView) -> Option<&'a AtomicU64> {
    let is_output = !(session.in_script | session.of_primary);
    is_output.then_some(&keyspace.tuning.reply_bytes_max)
}

/// Returns whether held shards have changed keys with waiters, or pending invalidations.
pub(crate) fn has_pending_events(keyspace: &Keyspace, owned: &mut [Ownership]) -> bool {
    owned.iter_mut().any(|ownership| keyspace.shard(ownership).observers.has_pending_events())
}

mod hand_over;
#[cfg(all(test, loom))]
mod loom_tests;
mod prefetch;
mod requests;
#[cfg(all(test, not(loom)))]
mod tests;
mod time;
