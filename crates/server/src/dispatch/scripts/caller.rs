//! The server as a script sees it: its commands run on the shards that are held.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use pantala_base::key_slot;
use pantala_commands::{NOT_IN_SCRIPTS, Unresolved};
use pantala_engine::access::{Key, KeyPlace, SessionView};
use pantala_engine::acl::{Context, Denied, Rules};
use pantala_engine::client::{Client, LocalContext, Session};
use pantala_engine::command::{Command, Flags, Handler, Route, Slots, for_each_key};
use pantala_engine::eviction::OUT_OF_MEMORY;
use pantala_engine::executor::Call;
use pantala_engine::faults::{self, Fault};
use pantala_engine::notify::hold_events;
use pantala_engine::ownership::Ownership;
use pantala_engine::routing::add_shards;
use pantala_engine::slowlog::Sender;
use pantala_engine::tracking::Reader;
use pantala_engine::tuning::WATCHING;
use pantala_engine::undo::{TooLarge, Undo};
use pantala_resp::{Args, Reply, Version};
use pantala_runtime::EventLoop;
use pantala_scripting::{Called, Caller, Interrupt};

use super::super::Dispatcher;
use super::super::busy::TURN_EVERY_MS;
use super::ScriptCall;
use crate::clients::slow;
use crate::scripting::Running;
use crate::stats::Outcome;

/// How long commands of a script may run before it hands on shards, whether Lua calls its hook or not.
const LOOK_EVERY: Duration = Duration::from_millis(TURN_EVERY_MS as u64);

/// Whether a command of streams asks to block.
fn asks_to_wait(args: &Args<'_>) -> bool {
    args.iter()
        .skip(1)
        .take_while(|arg| !arg.eq_ignore_ascii_case(b"streams"))
        .any(|arg| arg.eq_ignore_ascii_case(b"block"))
}

/// The server as a script on this worker sees it.
pub(super) struct ScriptCaller<'c, 's, L: EventLoop> {
    pub(super) dispatcher: &'c mut Dispatcher<'s, L>,
    pub(super) owned: &'c mut Vec<Ownership>,
    pub(super) client: Arc<Client>,
    /// What its user may do, as of its beginning; `None`: everything.
    pub(super) rules: Option<Arc<Rules>>,
    pub(super) view: SessionView,
    /// The time that all its commands see, whatever that of the worker becomes meanwhile: unix time, ms.
    pub(super) now_ms: i64,
    /// As whose what it reads is noted, if it is.
    pub(super) reads_as: Option<Arc<Reader>>,
    pub(super) token: u64,
    /// What it has changed, while it holds only the shards of its declared keys.
    pub(super) undo: Option<Undo>,
    /// In a cluster: the slot of all keys so far, declared or used.
    pub(super) slots: Slots,
    /// Index of its connection.
    pub(super) index: u32,
    pub(super) call: &'c ScriptCall,
    /// There was no memory left when it came, and it has not begun to write: it may not begin with what may take memory.
    pub(super) is_out_of_memory: bool,
    /// It was abandoned since it would have changed more than is remembered, and for nothing else.
    pub(super) is_large: bool,
    pub(super) pace: Pace,
}

/// When its worker is to look after others.
#[derive(Default)]
pub(super) struct Pace {
    /// When the worker is to serve its other connections again, in the clock that never goes back, ms.
    next_turn_ms: i64,
    /// As there: when it is to hand on shards.
    next_look_ms: i64,
    /// How long commands have run since it did, which may be few instructions of Lua.
    called: Duration,
}

/// The slot of the declared keys: with several of them a call doesn't come this far in a cluster, and nobody asks elsewhere.
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
            Handler::Keyed(_) if self.undo.is_some() => self.run_to_be_undone(command, args, reply),
            Handler::Keyed(_) => self.run_keyed(command, args, reply),
            // None of these is allowed in scripts.
            Handler::Transaction(_) | Handler::Container => Ok(()),
        };
        if let Err(why) = ran {
            // Whoever has killed it was told so: it has changed nothing, and isn't run again. From here on nobody can.
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
            self.hand_on_shards();
        }
        Called::Replied
    }

    fn may_run(&mut self, args: &Args<'_>) -> Option<bool> {
        match self.dispatcher.clients.reactor.server.renames().resolve(args) {
            Ok(command) | Err(Unresolved::WrongArity(command)) => Some(self.check(command, args).is_ok()),
            // What doesn't run needs no permission.
            Err(Unresolved::NotBuilt(_)) => Some(true),
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
        // The worker must come back to its loop to stop; even what has written ends here, as the process would.
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
            // A client of this worker may have done that just now.
            if self.running().is_killed() {
                return Interrupt::Kill;
            }
        } else if now_ms >= self.pace.next_look_ms {
            self.hand_on_shards();
        }
        Interrupt::Continue
    }

    fn end(&mut self) -> Interrupt {
        if self.running().end() { Interrupt::Kill } else { Interrupt::Continue }
    }
}

/// Why a script can't go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Halt {
    /// It uses something else than the shards of its declared keys.
    Undeclared,
    /// What it is about to change is too large to be remembered.
    Large,
    /// It was killed before it could write.
    Killed,
}

impl From<TooLarge> for Halt {
    fn from(_: TooLarge) -> Self {
        Halt::Large
    }
}

impl<L: EventLoop> ScriptCaller<'_, '_, L> {
    /// What this worker runs, as others see it: this script.
    fn running(&self) -> &Running {
        self.dispatcher.clients.reactor.server.scripting().running(self.dispatcher.clients.reactor.number)
    }

    /// It has run for too long: the worker serves its other connections.
    #[cold]
    fn turn_within(&mut self, runs_ms: i64) {
        let (dispatcher, kind) = (&mut *self.dispatcher, self.call.program.kind());
        if dispatcher.clients.frozen.reply().is_none() {
            let named = self.call.named();
            let (name, kill) = (named.name.escape_ascii(), kind.kill_command());
            tracing::warn!(
                "Slow script detected: still in execution after {runs_ms} milliseconds. It can be ended with {kill}. Its name is: {name}."
            );
            dispatcher.clients.reactor.server.scripting().running(dispatcher.clients.reactor.number).tell(named);
            dispatcher.begin_busy(self.index, kind);
        }
        let is_out = dispatcher.memory.is_out_now(dispatcher.clients.executor.keyspace());
        dispatcher.turn_within(self.owned);
        dispatcher.memory.set_out(is_out);
    }

    /// What others wait for goes on, as far as the script doesn't hold it.
    #[cold]
    fn hand_on_shards(&mut self) {
        let Dispatcher { mail, clients, .. } = &mut *self.dispatcher;
        mail.hand_on_shards(clients.reactor.server, clients.reactor.number, &mut clients.executor);
        self.pace.next_look_ms = self.dispatcher.clients.reactor.server.monotonic_ms() + TURN_EVERY_MS;
        self.pace.called = Duration::ZERO;
    }

    /// The command of a call, if a script may run it.
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
        } else if let Err(denied) = self.check(command, args) {
            let keyspace = self.dispatcher.clients.executor.keyspace();
            keyspace.note_denied(&self.client, denied, Context::Lua, command, args, self.now_ms);
            Some(denied.message_in_script())
        } else if command.flags.intersects(Flags::WRITE | Flags::MAY_REPLICATE) && self.call.is_read_only {
            Some("ERR Write commands are not allowed from read-only scripts.")
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
                // As in Redis what has begun to write goes on.
                self.is_out_of_memory &= !command.flags.contains(Flags::WRITE);
                Ok(command)
            }
        }
    }

    /// Checks whether the user of its client may run a call.
    fn check(&self, command: &Command, args: &Args<'_>) -> Result<(), Denied> {
        self.rules.as_ref().map_or(Ok(()), |rules| rules.check(command, args))
    }

    /// Why the keys of a call may not be used in a cluster: they have several slots, or another one than those before.
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

    /// A command that needs no shard.
    fn run_local(&mut self, command: &'static Command, args: &Args<'_>, reply: &mut Vec<u8>) -> Result<(), Halt> {
        let Handler::Local(handler) = command.handler else { return Ok(()) };
        // What others hear can't be undone.
        if self.undo.is_some() && command.flags.intersects(Flags::WRITE | Flags::MAY_REPLICATE | Flags::PUBSUB) {
            return Err(Halt::Undeclared);
        }
        self.note_write(command)?;
        let dispatcher = &mut *self.dispatcher;
        let mut session = Session::new(Arc::clone(&self.client), dispatcher.clients.executor.keyspace().users());
        session.db = self.view.db;
        session.version = self.view.version;
        let mut context = LocalContext {
            session: &mut session,
            keyspace: dispatcher.clients.executor.keyspace(),
            host: dispatcher.clients.reactor.server,
            now_ms: self.now_ms,
        };
        handler(&mut context, args, &mut Reply::new(reply, self.view.version));
        self.view.db = session.db;
        if reply.first() != Some(&b'-') {
            dispatcher.clients.executor.propagate_local(command, self.view.db, args);
        }
        self.show(command, args);
        Ok(())
    }

    /// A command on keys, in a run that may be put back: nobody hears of what it changes before the run stands.
    fn run_to_be_undone(
        &mut self,
        command: &'static Command,
        args: &Args<'_>,
        reply: &mut Vec<u8>,
    ) -> Result<(), Halt> {
        let (ran, events) = hold_events(|| self.run_keyed(command, args, reply));
        let held = match &mut self.undo {
            Some(undo) if !events.is_empty() => undo.hold(events),
            _ => Ok(()),
        };
        ran?;
        Ok(held?)
    }

    /// A command on keys.
    fn run_keyed(&mut self, command: &'static Command, args: &Args<'_>, reply: &mut Vec<u8>) -> Result<(), Halt> {
        if command.flags.contains(Flags::BLOCK_OPTION) && asks_to_wait(args) {
            let text = [b"ERR ", args.at(0), b" command is not allowed with BLOCK option from scripts"].concat();
            Reply::new(reply, self.view.version).error_bytes(&text);
            self.show(command, args);
            return Ok(());
        }
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
        // Before anything is kept to be put back: of a script that was killed there is nothing.
        self.note_write(command)?;
        if self.undo.is_some() {
            self.prepare_to_undo(command, args, first_key)?;
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
        dispatcher.clients.executor.run_held(&call, &dispatcher.shards, self.owned, reply);
        // As in Redis the client has read all keys that its script declares.
        if let Some(reader) = &self.reads_as {
            dispatcher.clients.executor.remember_for_script(command, reader, self.owned, self.call.keys().iter());
        }
        Ok(())
    }

    /// The shards of a command that hasn't exactly one key.
    fn choose_shards(&mut self, command: &'static Command, args: &Args<'_>) -> Result<(), Halt> {
        let keyspace = self.dispatcher.clients.executor.keyspace();
        let shards = &mut self.dispatcher.shards;
        // Which shards others need, and what they change there, isn't told by their arguments.
        if self.undo.is_some() && !matches!(command.route, Route::Keys) {
            return Err(Halt::Undeclared);
        }
        add_shards(keyspace, &self.view, command, args, shards);
        if shards.is_empty() {
            // Any will do for the handler to say what is wrong.
            match self.owned.first() {
                Some(ownership) => shards.push(ownership.shard()),
                None => return Err(Halt::Undeclared),
            }
        }
        shards.sort_unstable();
        shards.dedup();
        Ok(())
    }

    /// Checks that the shards of a command are held, and remembers what it is about to change.
    fn prepare_to_undo(
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
        let mut access = self.dispatcher.clients.executor.look(&self.view, owned, self.now_ms);
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

    /// Shows a command that no shard has run to who sees every command. Not in a run that may be put back: it began before anybody did.
    fn show(&self, command: &Command, args: &Args<'_>) {
        let keyspace = self.dispatcher.clients.executor.keyspace();
        if self.undo.is_none() && keyspace.monitors().are_there() {
            keyspace.show_of_script(command, args, self.view.db);
        }
    }

    /// A command is about to run. If it writes nobody can kill the script any more, unless somebody has.
    fn note_write(&self, command: &Command) -> Result<(), Halt> {
        if command.flags.contains(Flags::WRITE) && !self.running().write() {
            return Err(Halt::Killed);
        }
        Ok(())
    }

    /// What it has changed stands.
    pub(super) fn keep(&mut self) {
        let Some(undo) = &mut self.undo else { return };
        if !self.owned.is_empty() {
            undo.keep(&mut self.dispatcher.clients.executor.look(&self.view, self.owned, self.now_ms));
        }
    }

    /// [`Fault::TornScript`]: what it has changed so far stands, and everybody sees it.
    #[cold]
    fn tear(&mut self) {
        self.keep();
        let shards: Vec<u32> = self.owned.iter().map(Ownership::shard).collect();
        self.dispatcher.take_anew(&shards, self.owned);
    }

    fn roll_back(&mut self) {
        let Some(undo) = &mut self.undo else { return };
        if faults::hits(Fault::KeptUndo) {
            return;
        }
        if !self.owned.is_empty() {
            undo.roll_back(&mut self.dispatcher.clients.executor.look(&self.view, self.owned, self.now_ms));
        }
        self.dispatcher.clients.executor.roll_back_unit(self.owned);
    }
}
