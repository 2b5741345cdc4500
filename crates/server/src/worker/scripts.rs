//! `EVAL` and its like: the shards of the declared keys are brought here, the script runs and gives them back.
//!
//! A script may use keys that it hasn't declared. It then holds too few shards: what it has done is undone, it is remembered as *wide*, and runs again with
//! all shards; so does every later call of it. See docs/decisions/0006-scripts.md.

use std::sync::Arc;

use pantala_base::number::parse_i64;
use pantala_commands::Unresolved;
use pantala_engine::access::SessionView;
use pantala_engine::client::{Client, LocalContext, Session};
use pantala_engine::command::{Command, Flags, Handler, Route, ScriptForm, ScriptNamed, for_each_key};
use pantala_engine::executor::{Call, Ran};
use pantala_engine::ownership::Ownership;
use pantala_engine::undo::Undo;
use pantala_resp::{ArgRange, Args, Reply, Version};
use pantala_runtime::EventLoop;
use pantala_scripting::{Called, Caller, Ended, Flags as ScriptFlags, Interrupt, Script, sha_from, sha_of};

use super::Worker;
use super::stats::Outcome;
use super::transactions::Held;
use crate::scripting::{put_back_state, take_state};

/// The answer to `EVALSHA` of a script that isn't known.
const NO_SCRIPT: &str = "NOSCRIPT No matching script. Please use EVAL.";

/// Commands whose effects are not all in the keys that they name: they reach another database.
const REACH_FURTHER: [&str; 2] = ["copy", "move"];

/// Commands of streams that may wait, which a script can't: Redis refuses them the word.
const WAIT_FOR_STREAMS: [&str; 2] = ["xread", "xreadgroup"];

/// Whether a command of streams asks to wait.
fn asks_to_wait(args: &Args<'_>) -> bool {
    args.iter()
        .skip(1)
        .take_while(|arg| !arg.eq_ignore_ascii_case(b"streams"))
        .any(|arg| arg.eq_ignore_ascii_case(b"block"))
}

/// A call of a script, on its way to its shards.
pub struct ScriptCall {
    command: &'static Command,
    script: Arc<Script>,
    is_read_only: bool,
    /// It has all shards.
    is_wide: bool,
    bytes: Vec<u8>,
    ranges: Vec<ArgRange>,
    /// How many of them are keys.
    keys: usize,
}

impl ScriptCall {
    fn keys(&self) -> Args<'_> {
        Args::new(&self.bytes, &self.ranges[..self.keys])
    }

    fn args(&self) -> Args<'_> {
        Args::new(&self.bytes, &self.ranges[self.keys..])
    }
}

/// What a call of a script asks for; the error is the whole error reply.
fn number_of_keys(args: &Args<'_>) -> Result<usize, &'static str> {
    let keys = parse_i64(args.at(2)).ok_or("ERR value is not an integer or out of range")?;
    if keys > args.len() as i64 - 3 {
        return Err("ERR Number of keys can't be greater than number of args");
    }
    usize::try_from(keys).map_err(|_| "ERR Number of keys can't be negative")
}

impl<L: EventLoop> Worker<'_, L> {
    /// Finds the script of a call, and what it needs. The error is the whole error reply.
    pub(super) fn script_call(
        &self,
        command: &'static Command,
        form: ScriptForm,
        args: &Args<'_>,
    ) -> Result<Box<ScriptCall>, Vec<u8>> {
        let keys = number_of_keys(args).map_err(|why| why.as_bytes().to_vec())?;
        let script = self.find_script(form.named, args.at(1))?;
        if form.is_read_only && !script.flags.intersects(ScriptFlags::COMPATIBLE | ScriptFlags::NO_WRITES) {
            return Err(b"ERR Can not execute a script with write flag using *_ro command.".to_vec());
        }
        let (mut bytes, mut ranges) = (Vec::new(), Vec::with_capacity(args.len() - 3));
        for arg in args.iter().skip(3) {
            ranges.push(ArgRange::new(bytes.len(), arg.len()));
            bytes.extend_from_slice(arg);
        }
        let is_read_only = form.is_read_only || script.flags.contains(ScriptFlags::NO_WRITES);
        // What listeners were told can't be put back: where there are such, writes come only once, and with monitors everything.
        let keyspace = self.executor.keyspace();
        let is_wide =
            script.is_wide() || keyspace.monitors().are_there() || !is_read_only && keyspace.publishes_events();
        Ok(Box::new(ScriptCall { command, script, is_read_only, is_wide, bytes, ranges, keys }))
    }

    /// The script that a call names, compiled in this worker's state.
    fn find_script(&self, named: ScriptNamed, name: &[u8]) -> Result<Arc<Script>, Vec<u8>> {
        let scripts = &self.server.scripting().scripts;
        let sha = match named {
            ScriptNamed::Text => sha_of(name),
            ScriptNamed::Sha => sha_from(name).ok_or_else(|| NO_SCRIPT.as_bytes().to_vec())?,
        };
        let mut state = take_state();
        let found = match state.find(scripts, &sha) {
            Some(script) => Ok(script),
            None => {
                let known = match (scripts.find(&sha), named) {
                    (Some(script), _) => Ok(script),
                    (None, ScriptNamed::Text) => Script::new(sha, name).map(Arc::new),
                    (None, ScriptNamed::Sha) => Err(NO_SCRIPT.as_bytes().to_vec()),
                };
                known.and_then(|script| state.compile(&script).map(|()| scripts.add(script)))
            }
        };
        put_back_state(state);
        found
    }

    /// Asks for the shards of a script: those of its keys, or all.
    pub(super) fn gather_for_script(&mut self, index: u32, call: Box<ScriptCall>) -> Ran {
        let keyspace = self.executor.keyspace();
        self.shards.clear();
        if call.is_wide {
            self.shards.extend(0..keyspace.shard_count());
        } else {
            self.shards.extend(call.keys().iter().map(|key| keyspace.place(key).shard));
        }
        self.gather_for(index, Held::Script(call))
    }

    /// Runs a script on the shards that it has. `None`: it has to be run again, with all shards.
    pub(super) fn run_script(&mut self, index: u32, call: &ScriptCall, owned: &mut Vec<Ownership>) -> Option<Scripted> {
        let connection = self.connections[index as usize].as_ref()?;
        let (client, view, token) =
            (Arc::clone(&connection.session.client), connection.session.view(), connection.token());
        let mut state = take_state();
        // Another connection may have flushed the scripts since this one was found: it runs all the same.
        let _ = state.compile(&call.script);
        let running = self.server.scripting().running(self.number);
        running.begin(self.server.monotonic_ms());
        let mut caller = ScriptCaller {
            worker: self,
            owned,
            client,
            view,
            token,
            is_read_only: call.is_read_only,
            undo: (!call.is_wide).then(Undo::default),
        };
        let ended = state.run(&call.script, &call.keys(), &call.args(), &mut caller);
        running.end();
        if let Some(connection) = &self.connections[index as usize] {
            // SELECT is for the script alone.
            connection.session.select_shown();
        }
        if ended == Ended::Abandoned {
            put_back_state(state);
            call.script.set_wide();
            return None;
        }
        let mut scripted = Scripted { is_counted: false };
        if let Some(connection) = &mut self.connections[index as usize] {
            let version = connection.session.version;
            let mut reply = Reply::new(&mut connection.output, version);
            scripted.is_counted = state.answer(&call.script.sha, &mut reply);
        }
        put_back_state(state);
        Some(scripted)
    }

    /// A script within a transaction, which has all shards.
    pub(super) fn run_queued_script(
        &mut self,
        index: u32,
        command: &'static Command,
        form: ScriptForm,
        args: &Args<'_>,
        owned: &mut Vec<Ownership>,
    ) -> Scripted {
        match self.script_call(command, form, args) {
            Ok(mut call) => {
                call.is_wide = true;
                self.run_script(index, &call, owned).unwrap_or_default()
            }
            Err(why) => {
                if let Some(connection) = &mut self.connections[index as usize] {
                    Reply::new(&mut connection.output, connection.session.version).error_bytes(&why);
                }
                Scripted::default()
            }
        }
    }
}

impl ScriptCall {
    /// What to count it as.
    pub(super) fn command(&self) -> &'static Command {
        self.command
    }

    /// The same call, with all shards.
    pub(super) fn widened(mut self: Box<Self>) -> Box<Self> {
        self.is_wide = true;
        self
    }
}

/// How a script has ended.
#[derive(Clone, Copy, Debug, Default)]
pub struct Scripted {
    /// With an error that was counted when a command answered it.
    pub is_counted: bool,
}

/// The server as a script on this worker sees it.
struct ScriptCaller<'c, 's, L: EventLoop> {
    worker: &'c mut Worker<'s, L>,
    owned: &'c mut Vec<Ownership>,
    client: Arc<Client>,
    view: SessionView,
    token: u64,
    is_read_only: bool,
    /// What it has changed, while it holds only the shards of its declared keys.
    undo: Option<Undo>,
}

impl<L: EventLoop> Caller for ScriptCaller<'_, '_, L> {
    fn call(&mut self, args: &Args<'_>, version: Version, reply: &mut Vec<u8>) -> Called {
        let command = match self.resolve(args) {
            Ok(command) => command,
            Err(why) => {
                Reply::new(reply, version).error(why);
                self.worker.tally.count_reply(reply);
                return Called::Replied;
            }
        };
        self.view.version = version;
        let ran = match command.handler {
            Handler::Local(_) => self.run_local(command, args, reply),
            Handler::Keyed(_) => self.run_keyed(command, args, reply),
            // None of these is allowed in scripts.
            Handler::Transaction(_) | Handler::Container => Ok(()),
        };
        if ran.is_err() {
            self.roll_back();
            return Called::Abandoned;
        }
        let outcome = if reply.first() == Some(&b'-') { Outcome::Failed } else { Outcome::Ok };
        self.worker.tally.count_reply(reply);
        self.worker.tally.count_within(command, outcome);
        Called::Replied
    }

    fn may_run(&mut self, args: &Args<'_>) -> Option<bool> {
        // There is one user, who may run everything.
        match self.worker.server.renames().resolve(args) {
            Ok(_) | Err(Unresolved::WrongArity(_)) => Some(true),
            Err(_) => None,
        }
    }

    fn log(&mut self, level: u8, text: &[u8]) {
        let text = text.escape_ascii();
        match level {
            0 | 1 => tracing::debug!("{text}"),
            2 => tracing::info!("{text}"),
            _ => tracing::warn!("{text}"),
        }
    }

    fn interrupt(&mut self) -> Interrupt {
        let running = self.worker.server.scripting().running(self.worker.number);
        if running.is_killed() {
            tracing::warn!("Lua script killed by user with SCRIPT KILL.");
            return Interrupt::Kill;
        }
        // The worker must come back to its loop to stop; even what has written ends here, as the process would.
        if self.worker.server.is_stopping() {
            return Interrupt::Kill;
        }
        Interrupt::Continue
    }
}

/// The script has met what it hasn't the shards for.
struct TooNarrow;

impl<L: EventLoop> ScriptCaller<'_, '_, L> {
    /// The command of a call, if a script may run it.
    fn resolve(&mut self, args: &Args<'_>) -> Result<&'static Command, &'static str> {
        let (server, tally) = (self.worker.server, &mut self.worker.tally);
        let command = match server.renames().resolve(args) {
            Ok(command) => command,
            Err(Unresolved::WrongArity(command)) => {
                tally.count(command, Outcome::Rejected);
                return Err("ERR Wrong number of args calling Redis command from script");
            }
            Err(_) => return Err("ERR Unknown Redis command called from script"),
        };
        let refused = if command.flags.contains(Flags::NOSCRIPT)
            || matches!(command.handler, Handler::Container | Handler::Transaction(_))
            || command.flags.contains(Flags::PROTECTED)
                && !pantala_engine::client::Host::debug_allowed(server, &self.client)
        {
            Some("ERR This Redis command is not allowed from script")
        } else if command.flags.contains(Flags::WRITE) && self.is_read_only {
            Some("ERR Write commands are not allowed from read-only scripts.")
        } else {
            None
        };
        match refused {
            Some(why) => {
                tally.count(command, Outcome::Rejected);
                Err(why)
            }
            None => Ok(command),
        }
    }

    /// A command that needs no shard.
    fn run_local(&mut self, command: &'static Command, args: &Args<'_>, reply: &mut Vec<u8>) -> Result<(), TooNarrow> {
        let Handler::Local(handler) = command.handler else { return Ok(()) };
        // What others hear can't be undone.
        if self.undo.is_some() && command.flags.intersects(Flags::WRITE | Flags::MAY_REPLICATE | Flags::PUBSUB) {
            return Err(TooNarrow);
        }
        self.note_write(command);
        let worker = &mut *self.worker;
        let mut session = Session::new(Arc::clone(&self.client), true);
        session.db = self.view.db;
        session.version = self.view.version;
        let mut context = LocalContext {
            session: &mut session,
            keyspace: worker.executor.keyspace(),
            host: worker.server,
            now_ms: worker.now_ms,
        };
        handler(&mut context, args, &mut Reply::new(reply, self.view.version));
        self.view.db = session.db;
        Ok(())
    }

    /// A command on keys.
    fn run_keyed(&mut self, command: &'static Command, args: &Args<'_>, reply: &mut Vec<u8>) -> Result<(), TooNarrow> {
        if WAIT_FOR_STREAMS.contains(&command.name) && asks_to_wait(args) {
            let text = [b"ERR ", args.at(0), b" command is not allowed with BLOCK option from scripts"].concat();
            Reply::new(reply, self.view.version).error_bytes(&text);
            return Ok(());
        }
        let keyspace = self.worker.executor.keyspace();
        let shards = &mut self.worker.shards;
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
        if self.undo.is_some() {
            self.prepare_to_undo(command, args)?;
        }
        self.note_write(command);
        let worker = &mut *self.worker;
        let call =
            Call { command, args: *args, first_key, session: self.view, connection: self.token, now_ms: worker.now_ms };
        worker.executor.run_held(&call, &worker.shards, self.owned, reply);
        Ok(())
    }

    /// The shards of a command that hasn't exactly one key.
    fn choose_shards(&mut self, command: &'static Command, args: &Args<'_>) -> Result<(), TooNarrow> {
        let keyspace = self.worker.executor.keyspace();
        let shards = &mut self.worker.shards;
        match command.route {
            Route::Keys => {
                let found = for_each_key(command, args, |index, _| shards.push(keyspace.place(args.at(index)).shard));
                if found.is_err() {
                    shards.clear();
                }
            }
            // Which shards these need, only the handler knows.
            _ if self.undo.is_some() => return Err(TooNarrow),
            Route::Custom(choose) => choose(keyspace, &self.view, args, shards),
            _ => shards.extend(0..keyspace.shard_count()),
        }
        if shards.is_empty() {
            // Any will do for the handler to say what is wrong.
            match self.owned.first() {
                Some(ownership) => shards.push(ownership.shard()),
                None => return Err(TooNarrow),
            }
        }
        shards.sort_unstable();
        shards.dedup();
        Ok(())
    }

    /// Checks that the shards of a command are held, and remembers what it is about to change.
    fn prepare_to_undo(&mut self, command: &'static Command, args: &Args<'_>) -> Result<(), TooNarrow> {
        let owned = &mut *self.owned;
        let is_held = |shard: &u32| owned.binary_search_by_key(shard, Ownership::shard).is_ok();
        if !self.worker.shards.iter().all(is_held) {
            return Err(TooNarrow);
        }
        let Some(undo) = &mut self.undo else { return Ok(()) };
        if !command.flags.contains(Flags::WRITE) {
            return Ok(());
        }
        if REACH_FURTHER.contains(&command.name) {
            return Err(TooNarrow);
        }
        let mut access = self.worker.executor.look(&self.view, owned, self.worker.now_ms);
        let mut is_noted = Ok(());
        let _ = for_each_key(command, args, |index, _| {
            if is_noted.is_ok() {
                is_noted = undo.note(&mut access, args.at(index));
            }
        });
        is_noted.map_err(|_| TooNarrow)
    }

    fn note_write(&self, command: &Command) {
        if command.flags.contains(Flags::WRITE) {
            self.worker.server.scripting().running(self.worker.number).write();
        }
    }

    fn roll_back(&mut self) {
        let Some(undo) = &mut self.undo else { return };
        if !self.owned.is_empty() {
            undo.roll_back(&mut self.worker.executor.look(&self.view, self.owned, self.worker.now_ms));
        }
    }
}
