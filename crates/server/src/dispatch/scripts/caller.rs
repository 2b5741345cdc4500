//! Implements [`Caller`], the interface by which a running script calls the server. Runs the
//! script's commands on the shards that the script holds.
//!
//! Invariant: while `undo` is present, the run may be rolled back, so other clients must not see
//! any of its changes. Such a run halts ([`Halt`]) at a command that needs more than the shards of
//! the declared keys.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use pantala_base::key_slot;
use pantala_commands::{NOT_IN_SCRIPTS, Unresolved};
use pantala_engine::access::{Key, KeyPlace, SessionView};
use pantala_engine::acl::{Context, Denied, Rules};
use pantala_engine::client::{Client, LocalCall, LocalCaller, Session, run_local};
use pantala_engine::command::{Command, Flags, Handler, Route, Slots, for_each_key};
use pantala_engine::eviction::OUT_OF_MEMORY;
use pantala_engine::executor::Call;
use pantala_engine::faults::{self, Fault};
use pantala_engine::notify::defer_events;
use pantala_engine::ownership::Ownership;
use pantala_engine::routing::add_shards;
use pantala_engine::slowlog::Sender;
use pantala_engine::tracking::Reader;
use pantala_engine::tuning::WATCHING;
use pantala_engine::undo::{TooLarge, Undo};
use pantala_resp::{Args, Reply, Version};
use pantala_runtime::EventLoop;
use pantala_scripting::{Called, Caller, Interrupt};
use pantala_session::access::{is_too_stale_in_script, refused_in_script};

use super::super::Dispatcher;
use super::super::busy::TURN_EVERY_MS;
use super::ScriptCall;
use crate::clients::slow;
use crate::scripting::Running;
use crate::stats::Outcome;

/// Run time of a script's commands after which the worker hands over shards to other workers, even
/// if Lua has not called its hook.
const LOOK_EVERY: Duration = Duration::from_millis(TURN_EVERY_MS as u64);

/// The server as seen by a script on this worker.
pub(super) struct ScriptCaller<'c, 's, L: EventLoop> {
    pub(super) dispatcher: &'c mut Dispatcher<'s, L>,
    pub(super) owned: &'c mut Vec<Ownership>,
    pub(super) client: Arc<Client>,
    /// The ACL rules of the client's user when the script started; `None` means unrestricted.
    pub(super) rules: Option<Arc<Rules>>,
    pub(super) view: SessionView,
    /// Unix time, ms. All commands of the script see this time, even if the worker's clock advances
    /// meanwhile.
    pub(super) now_ms: i64,
    /// The reader that client-side caching (tracking) records for the keys that the script reads;
    /// `None` if the client does not track keys.
    pub(super) reads_as: Option<Arc<Reader>>,
    pub(super) token: u64,
    /// The undo log; `None` if the script holds all shards.
    pub(super) undo: Option<Undo>,
    /// In a cluster: the slot of the declared keys and of all keys accessed so far.
    pub(super) slots: Slots,
    /// Index of the script's connection in the worker's table.
    pub(super) index: u32,
    pub(super) call: &'c ScriptCall,
    /// Whether commands that may increase memory usage are rejected: memory was used up when the
    /// run started, and the script has not written yet.
    pub(super) is_out_of_memory: bool,
    /// Whether the run was abandoned because its changes are too large for the undo log. It is
    /// false if the reason was an undeclared key.
    pub(super) is_large: bool,
    pub(super) pace: Pace,
}

/// The times at which the worker next serves its other connections, and next hands over shards to
/// other workers.
#[derive(Default)]
pub(super) struct Pace {
    /// When the worker next serves its other connections, in ms of the monotonic clock.
    next_turn_ms: i64,
    /// When the worker next hands shards over to other workers, in ms of the monotonic clock.
    next_check_ms: i64,
    /// Time spent in commands since shards were last handed over. It is needed because Lua calls
    /// its hook after a number of instructions, and a few instructions may call long commands.
    called: Duration,
    /// Whether the script's name and command are published.
    is_published: bool,
}

/// Returns the slot of the declared keys. In a cluster, calls whose keys have several slots have
/// been rejected already. Without a cluster, the slot is unused.
pub(super) fn slots_of_keys(keys: &Args<'_>) -> Slots {
    keys.get(0).map_or(Slots::None, |key| Slots::One(key_slot(key)))
}

impl<L: EventLoop> Caller for ScriptCaller<'_, '_, L> {
    fn call(&mut self, args: &Args<'_>, version: Version, reply: &mut Vec<u8>) -> Called {
        faults::pause(Fault::PauseHolding);
        if faults::hits(Fault::TornScript) {
            self.tear();
        }
        let command = match self.resolve(args) {
            Ok(command) => command,
            Err(why) => {
                Reply::new(reply, version).error_bytes(&why);
                self.dispatcher.clients.tally.count_reply_within(reply);
                return Called::Replied;
            }
        };
        self.view.version = version;
        let began = WATCHING.then(Instant::now);
        let ran = match command.handler {
            Handler::Local(_) => self.run_local(command, args, reply),
            Handler::Keyed(_) | Handler::Undetermined(_) if self.undo.is_some() => {
                self.run_with_undo(command, args, reply)
            }
            Handler::Keyed(_) | Handler::Undetermined(_) => self.run_keyed(command, args, reply),
            // `resolve` has rejected these.
            Handler::Transaction(_) | Handler::Container => Ok(()),
        };
        if let Err(why) = ran {
            // If `SCRIPT KILL` has already replied OK, the script has changed nothing and is not
            // rerun. After this call of `end`, `SCRIPT KILL` can no longer kill this run.
            if self.running().end() {
                return Called::Killed;
            }
            self.is_large = why == Halt::Large;
            self.roll_back();
            return Called::Abandoned;
        }
        let outcome = self.dispatcher.clients.tally.outcome_within(command, reply);
        let took = began.map_or(Duration::ZERO, |began| began.elapsed());
        self.dispatcher.clients.tally.count_within(command, outcome, took);
        let (keyspace, sender) = (self.dispatcher.clients.executor.keyspace(), Sender::Script(&self.client));
        slow::note(keyspace, sender, command, args, took, self.now_ms);
        self.pace.called += took;
        if self.pace.called >= LOOK_EVERY {
            self.pass_on_shards();
        }
        Called::Replied
    }

    fn may_run(&mut self, args: &Args<'_>) -> Option<bool> {
        match self.dispatcher.clients.reactor.server.renames().resolve(args) {
            Ok(command) | Err(Unresolved::WrongArity(command)) => Some(self.check(command, args).is_ok()),
            // An unimplemented command needs no permission.
            Err(Unresolved::Unimplemented(_)) => Some(true),
            Err(_) => None,
        }
    }

    fn log(&mut self, level: u8, text: &[u8]) {
        pantala_scripting::log(level, text);
    }

    fn interrupt(&mut self) -> Interrupt {
        if self.running().is_killed() {
            return Interrupt::Kill;
        }
        // To stop the server, the worker must return to its loop. So even a script that has written
        // is killed.
        if self.dispatcher.clients.reactor.server.is_stopping() {
            return Interrupt::Kill;
        }
        let now_ms = self.dispatcher.clients.reactor.server.monotonic_ms();
        let threshold_ms = self.dispatcher.clients.reactor.settings.busy_reply_threshold_ms;
        if now_ms >= self.pace.next_turn_ms
            && threshold_ms > 0
            && let Some(runs_ms) = self.running().runs_ms(now_ms)
            && runs_ms >= threshold_ms
        {
            self.turn_within(runs_ms);
            self.pace.next_turn_ms = self.dispatcher.clients.reactor.server.monotonic_ms() + TURN_EVERY_MS;
            // During the turn, a client of this worker may have killed the script.
            if self.running().is_killed() {
                return Interrupt::Kill;
            }
        } else if now_ms >= self.pace.next_check_ms {
            self.pass_on_shards();
            self.publish_if_due(now_ms);
        }
        Interrupt::Continue
    }

    fn end(&mut self) -> Interrupt {
        if self.running().end() { Interrupt::Kill } else { Interrupt::Continue }
    }
}

/// The reason why a run of a script can't continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Halt {
    /// The run needs more than the shards of its declared keys.
    Undeclared,
    /// The values that the run is about to change are too large for the undo log.
    Large,
    /// The script was killed before its first write.
    Killed,
}

impl From<TooLarge> for Halt {
    fn from(_: TooLarge) -> Self {
        Halt::Large
    }
}

impl<L: EventLoop> ScriptCaller<'_, '_, L> {
    /// Returns the record of the script that this worker runs. Other workers read the record.
    fn running(&self) -> &Running {
        self.dispatcher.clients.reactor.server.scripting().running(self.dispatcher.clients.reactor.number)
    }

    /// Publishes the script's name and command shortly before other clients are allowed to see
    /// them.
    fn publish_if_due(&mut self, now_ms: i64) {
        let from_ms = self.dispatcher.clients.reactor.server.script_thresholds().visible_ms / 2;
        if !self.pace.is_published && self.running().runs_ms(now_ms).is_some_and(|runs_ms| runs_ms >= from_ms) {
            self.pace.is_published = true;
            self.running().publish_name(self.call.named());
        }
    }

    /// Serves the worker's other connections while a script is busy.
    #[cold]
    fn turn_within(&mut self, runs_ms: i64) {
        let (dispatcher, kind) = (&mut *self.dispatcher, self.call.program.kind());
        if dispatcher.clients.frozen.reply().is_none() {
            let named = self.call.named();
            let (name, kill) = (named.name.escape_ascii(), kind.kill_command());
            tracing::warn!(
                "Slow script detected: still in execution after {runs_ms} milliseconds. It can be ended with {kill}. Its name is: {name}."
            );
            dispatcher
                .clients
                .reactor
                .server
                .scripting()
                .running(dispatcher.clients.reactor.number)
                .publish_name(named);
            dispatcher.begin_busy(self.index, kind);
        }
        let is_out = dispatcher.memory.is_out_now(dispatcher.clients.executor.keyspace());
        dispatcher.turn_within(self.owned);
        dispatcher.memory.set_out(is_out);
    }

    /// Hands over shards that other workers have requested and that the script does not hold. Also
    /// lets the journal end its epoch (a section of its stream), because effects and replies of all
    /// workers may be waiting for that.
    #[cold]
    fn pass_on_shards(&mut self) {
        let Dispatcher { mail, clients, .. } = &mut *self.dispatcher;
        mail.pass_on_shards(clients.reactor.server, clients.reactor.number, &mut clients.executor);
        // As in `Dispatcher::turn_within`, the script's unit (a group of effects) must get its
        // stamp (position in the journal) only when the script ends.
        let unit = clients.executor.recorder().suspend_unit();
        clients.executor.recorder().flush_stream();
        clients.executor.keyspace().journal().attend(clients.reactor.number);
        clients.executor.recorder().resume_unit(unit);
        self.pace.next_check_ms = self.dispatcher.clients.reactor.server.monotonic_ms() + TURN_EVERY_MS;
        self.pace.called = Duration::ZERO;
    }

    /// Resolves the command of a call and checks that a script may run it. The error is the
    /// complete error reply.
    fn resolve(&mut self, args: &Args<'_>) -> Result<&'static Command, Cow<'static, [u8]>> {
        let (server, tally) = (self.dispatcher.clients.reactor.server, &mut self.dispatcher.clients.tally);
        let command = match server.renames().resolve(args) {
            Ok(command) => command,
            Err(unresolved) => {
                if let Unresolved::WrongArity(command) = unresolved {
                    tally.count_within(command, Outcome::Rejected, Duration::ZERO);
                }
                return Err(unresolved.message_in_script(args));
            }
        };
        let tuning = &self.dispatcher.clients.executor.keyspace().tuning;
        let may_debug = || tuning.scripts_may_debug.load(Relaxed) && command.flags.contains(Flags::DEBUGS);
        let refused = if command.flags.contains(Flags::NOSCRIPT) && !may_debug()
            || matches!(command.handler, Handler::Container | Handler::Transaction(_))
            || command.flags.contains(Flags::PROTECTED)
                && !pantala_engine::client::Host::debug_allowed(server, &self.client)
        {
            Some(NOT_IN_SCRIPTS)
        } else if tuning.refuses() && is_too_stale_in_script(tuning.refusals(), command) && !self.view.of_primary {
            Some("ERR Can not execute the command on a stale replica")
        } else if let Err(denied) = self.check(command, args) {
            let keyspace = self.dispatcher.clients.executor.keyspace();
            keyspace.note_denied(&self.client, denied, Context::Lua, command, args, self.now_ms);
            Some(denied.message_in_script())
        } else if command.flags.intersects(Flags::WRITE | Flags::MAY_REPLICATE) && self.call.is_read_only {
            Some("ERR Write commands are not allowed from read-only scripts.")
        } else if tuning.refuses()
            && !self.view.of_primary
            && let Some(why) = refused_in_script(tuning.refusals(), command)
        {
            Some(why)
        } else if self.is_out_of_memory && command.flags.contains(Flags::DENYOOM) {
            Some(OUT_OF_MEMORY)
        } else if self.dispatcher.clients.executor.keyspace().is_cluster() {
            self.crossing(command, args)
        } else {
            None
        };
        match refused {
            Some(why) => {
                self.dispatcher.clients.tally.count_within(command, Outcome::Rejected, Duration::ZERO);
                Err(why.as_bytes().into())
            }
            None => {
                // As in Redis, a script that has started to write may continue to write.
                self.is_out_of_memory &= !command.flags.contains(Flags::WRITE);
                Ok(command)
            }
        }
    }

    /// Checks whether the client's user may run a call.
    fn check(&self, command: &Command, args: &Args<'_>) -> Result<(), Denied> {
        self.rules.as_ref().map_or(Ok(()), |rules| rules.check(command, args))
    }

    /// Returns the error for a call that the slots of the cluster forbid. All keys of a call must
    /// belong to one slot. All earlier keys of the script must belong to that slot too, unless the
    /// script allows several slots.
    #[cold]
    fn crossing(&mut self, command: &Command, args: &Args<'_>) -> Option<&'static str> {
        let slots = Slots::of(command, args);
        if slots == Slots::Several {
            return Some("ERR Script attempted to access a non local key in a cluster node");
        }
        let mut all = self.slots;
        all.add(slots);
        if self.call.keeps_slot() && all == Slots::Several {
            return Some("ERR Script attempted to access keys that do not hash to the same slot");
        }
        self.slots = all;
        None
    }

    /// Runs a command that needs no shard.
    fn run_local(&mut self, command: &'static Command, args: &Args<'_>, reply: &mut Vec<u8>) -> Result<(), Halt> {
        // A published message or a propagated command can't be rolled back.
        if self.undo.is_some() && command.flags.intersects(Flags::WRITE | Flags::MAY_REPLICATE | Flags::PUBSUB) {
            return Err(Halt::Undeclared);
        }
        self.note_write(command)?;
        let dispatcher = &mut *self.dispatcher;
        let mut session = Session::new(Arc::clone(&self.client), dispatcher.clients.executor.keyspace().users());
        session.db = self.view.db;
        session.version = self.view.version;
        let call = LocalCall {
            command,
            args: *args,
            session: &mut session,
            keyspace: dispatcher.clients.executor.keyspace(),
            host: dispatcher.clients.reactor.server,
            now_ms: self.now_ms,
            reply_limit: None,
        };
        let recorder = dispatcher.clients.executor.recorder();
        run_local(call, LocalCaller::Script { recorder, is_hidden: self.undo.is_some() }, reply);
        self.view.db = session.db;
        Ok(())
    }

    /// Runs a keyed command in a run that may be rolled back. Holds its keyspace events back until
    /// the run is committed.
    fn run_with_undo(&mut self, command: &'static Command, args: &Args<'_>, reply: &mut Vec<u8>) -> Result<(), Halt> {
        let (ran, events) = defer_events(|| self.run_keyed(command, args, reply));
        let held = match &mut self.undo {
            Some(undo) if !events.is_empty() => undo.hold(events),
            _ => Ok(()),
        };
        ran?;
        Ok(held?)
    }

    /// Runs a keyed command.
    fn run_keyed(&mut self, command: &'static Command, args: &Args<'_>, reply: &mut Vec<u8>) -> Result<(), Halt> {
        let keyspace = self.dispatcher.clients.executor.keyspace();
        let shards = &mut self.dispatcher.shards;
        shards.clear();
        let first_key = match command.single_key() {
            Some(index) if matches!(command.route, Route::Keys) => {
                let place = keyspace.place(args.at(index));
                shards.push(place.shard);
                Some(place)
            }
            _ => {
                self.choose_shards(command, args)?;
                None
            }
        };
        // The write is noted before the undo log grows. So if the script has been killed, there is
        // nothing to roll back.
        self.note_write(command)?;
        if self.undo.is_some() {
            self.record_undo(command, args, first_key)?;
        }
        let dispatcher = &mut *self.dispatcher;
        let call = Call {
            command,
            args: *args,
            first_key,
            session: self.view,
            reads_as: None,
            connection: self.token,
            now_ms: self.now_ms,
        };
        dispatcher.clients.executor.runner().run_held(&call, &dispatcher.shards, self.owned, reply);
        // As in Redis, tracking assumes that the client has read all keys that the script declares.
        if let Some(reader) = &self.reads_as {
            dispatcher.clients.executor.runner().remember_for_script(
                command,
                reader,
                self.owned,
                self.call.keys().iter(),
            );
        }
        Ok(())
    }

    /// Determines the shards of a command other than a single-key command.
    fn choose_shards(&mut self, command: &'static Command, args: &Args<'_>) -> Result<(), Halt> {
        let keyspace = self.dispatcher.clients.executor.keyspace();
        let shards = &mut self.dispatcher.shards;
        // Unless the route is `Keys`, the arguments don't show which shards the command needs and
        // which keys it changes.
        if self.undo.is_some() && !matches!(command.route, Route::Keys) {
            return Err(Halt::Undeclared);
        }
        add_shards(keyspace, &self.view, command, args, shards);
        if shards.is_empty() {
            // The handler will reply with an error, so it can run on any held shard.
            match self.owned.first() {
                Some(ownership) => shards.push(ownership.shard()),
                None => return Err(Halt::Undeclared),
            }
        }
        shards.sort_unstable();
        shards.dedup();
        Ok(())
    }

    /// Checks that the shards of a command are held. If the command writes, records the values of
    /// its keys in the undo log.
    fn record_undo(
        &mut self,
        command: &'static Command,
        args: &Args<'_>,
        first_key: Option<KeyPlace>,
    ) -> Result<(), Halt> {
        let owned = &mut *self.owned;
        let is_held = |shard: &u32| owned.binary_search_by_key(shard, Ownership::shard).is_ok();
        if !self.dispatcher.shards.iter().all(is_held) {
            return Err(Halt::Undeclared);
        }
        let Some(undo) = &mut self.undo else { return Ok(()) };
        if !command.flags.contains(Flags::WRITE) {
            return Ok(());
        }
        if command.flags.contains(Flags::OTHER_DATABASES) {
            return Err(Halt::Undeclared);
        }
        let mut access = self.dispatcher.clients.executor.runner().look(&self.view, owned, self.now_ms);
        if let (Some(index), Some(place)) = (command.single_key(), first_key) {
            return Ok(undo.note(&mut access, &Key { bytes: args.at(index), place })?);
        }
        let keyspace = self.dispatcher.clients.executor.keyspace();
        let mut is_noted = Ok(());
        let _ = for_each_key(command, args, |index, _| {
            if is_noted.is_ok() {
                let bytes = args.at(index);
                is_noted = undo.note(&mut access, &Key { bytes, place: keyspace.place(bytes) });
            }
        });
        Ok(is_noted?)
    }

    /// Marks the script as having written, if the command writes. The script can then no longer be
    /// killed. Fails if the script was killed before.
    fn note_write(&self, command: &Command) -> Result<(), Halt> {
        if command.flags.contains(Flags::WRITE) && !self.running().write() {
            return Err(Halt::Killed);
        }
        Ok(())
    }

    /// Commits the run's changes.
    pub(super) fn keep(&mut self) {
        let Some(undo) = &mut self.undo else { return };
        if !self.owned.is_empty() {
            undo.keep(&mut self.dispatcher.clients.executor.runner().look(&self.view, self.owned, self.now_ms));
        }
    }

    /// Injects [`Fault::TornScript`]: commits the changes so far and makes them visible to others.
    #[cold]
    fn tear(&mut self) {
        self.keep();
        let shards: Vec<u32> = self.owned.iter().map(Ownership::shard).collect();
        self.dispatcher.reacquire(&shards, self.owned);
    }

    fn roll_back(&mut self) {
        let Some(undo) = &mut self.undo else { return };
        if faults::hits(Fault::KeptUndo) {
            return;
        }
        if !self.owned.is_empty() {
            undo.roll_back(&mut self.dispatcher.clients.executor.runner().look(&self.view, self.owned, self.now_ms));
        }
        self.dispatcher.clients.executor.recorder().roll_back_unit(self.owned);
    }
}
