//! `EVAL`, `FCALL` and the other commands that run scripts. The client's worker acquires the shards
//! of the declared keys, runs the script and releases the shards.
//!
//! If a script accesses an undeclared key whose shard it does not hold, its changes are rolled
//! back, and the script is marked *wide*: the rerun and every later call hold all shards. A call
//! whose changes are too large for the undo log is also rerun with all shards, but its script is
//! not marked. See docs/decisions/0006-scripts.md.

mod caller;

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Instant;

use pantala_base::number::parse_i64;
use pantala_engine::access::SessionView;
use pantala_engine::command::{Command, Flags, Handler, ScriptForm, ScriptReference, TransactionPart};
use pantala_engine::executor::Ran;
use pantala_engine::keyspace::Keyspace;
use pantala_engine::ownership::Ownership;
use pantala_engine::tuning::refusal::Refusals;
use pantala_resp::{ArgRange, Args, Reply};
use pantala_runtime::EventLoop;
use pantala_scripting::{Ended, Flags as ScriptFlags, Library, Script, Scripts, State, sha_from, sha_of};
use pantala_session::access::MASTER_DOWN;

use super::Dispatcher;
use super::transactions::Held;
use crate::clients::reply_limit;
use crate::clients::slow::Words;
use crate::host::Server;
use crate::reactor::Reactor;
use crate::scripting::{Kind, Named, return_state, take_state};
use caller::{Pace, ScriptCaller, slots_of_keys};

/// The error of `EVALSHA` for an unknown script.
const NO_SCRIPT: &str = "NOSCRIPT No matching script. Please use EVAL.";

/// The error for a script that may increase memory usage while memory is used up. Most such calls
/// are rejected earlier, when the limit on memory is checked as for any other command. This error
/// is for scripts whose flags were unknown at that check.
const SCRIPT_OUT_OF_MEMORY: &str =
    "OOM allow-oom flag is not set on the script, can not run it when used memory > 'maxmemory'";

/// The script or function that a call runs.
enum Program {
    /// A script.
    Script(Arc<Script>),
    /// A function: its library, and the function's index in the library.
    Function(Arc<Library>, usize),
}

impl Program {
    fn kind(&self) -> Kind {
        match self {
            Program::Script(_) => Kind::Script,
            Program::Function(..) => Kind::Function,
        }
    }

    /// Returns the name for error messages.
    fn name(&self) -> &[u8] {
        match self {
            Program::Script(script) => &script.sha,
            Program::Function(library, index) => &library.functions[*index].name,
        }
    }

    fn flags(&self) -> ScriptFlags {
        match self {
            Program::Script(script) => script.flags,
            Program::Function(library, index) => library.functions[*index].flags,
        }
    }

    /// Returns whether the program is known to access undeclared keys, so that its calls hold all
    /// shards.
    fn is_wide(&self) -> bool {
        match self {
            Program::Script(script) => script.is_wide(),
            Program::Function(library, index) => library.functions[*index].is_wide(),
        }
    }

    fn set_wide(&self) {
        match self {
            Program::Script(script) => script.set_wide(),
            Program::Function(library, index) => library.functions[*index].set_wide(),
        }
    }
}

/// A call of a script or a function that is running or waits for its shards.
pub struct ScriptCall {
    command: &'static Command,
    program: Program,
    is_read_only: bool,
    /// Whether the call requests all shards.
    is_wide: bool,
    /// The command's name as the client spelled it, then the keys and the arguments.
    bytes: Vec<u8>,
    ranges: Vec<ArgRange>,
    /// Number of keys in `ranges`. The keys follow the command's name.
    keys: usize,
    /// All words of the command, kept if there are monitors.
    shown: Option<Words>,
}

impl ScriptCall {
    /// Returns the size of the words that the call keeps, bytes.
    pub(super) fn kept_bytes(&self) -> usize {
        self.bytes.len() + self.shown.as_ref().map_or(0, |(bytes, _)| bytes.len())
    }

    /// Returns the call's flags: those that its script declares or, if it declares none, those of
    /// its command.
    pub(super) fn flags(&self) -> Flags {
        of_declared(self.command, self.program.flags())
    }

    /// Returns whether all keys must belong to one slot in a cluster.
    fn keeps_slot(&self) -> bool {
        !self.program.flags().intersects(ScriptFlags::COMPATIBLE | ScriptFlags::ALLOW_CROSS_SLOT_KEYS)
    }

    fn keys(&self) -> Args<'_> {
        Args::new(&self.bytes, &self.ranges[1..=self.keys])
    }

    fn args(&self) -> Args<'_> {
        Args::new(&self.bytes, &self.ranges[1 + self.keys..])
    }
}

/// Copies words into one buffer, with the range of each.
pub(super) fn copied<'w>(words: impl Iterator<Item = &'w [u8]> + Clone) -> Words {
    let (count, len) = words.clone().fold((0, 0), |(count, len), word| (count + 1, len + word.len()));
    let (mut bytes, mut ranges) = (Vec::with_capacity(len), Vec::with_capacity(count));
    for word in words {
        ranges.push(ArgRange::new(bytes.len(), word.len()));
        bytes.extend_from_slice(word);
    }
    (bytes, ranges)
}

/// Returns the number of keys that a call declares. The error is the complete error reply.
fn number_of_keys(args: &Args<'_>, wrong: &'static str) -> Result<usize, &'static str> {
    let keys = parse_i64(args.at(2)).ok_or(wrong)?;
    if keys > args.len() as i64 - 3 {
        return Err("ERR Number of keys can't be greater than number of args");
    }
    usize::try_from(keys).map_err(|_| "ERR Number of keys can't be negative")
}

/// Returns the flags of a call. Flags declared by a script override those of its command. So
/// `CLIENT PAUSE WRITE` doesn't hold back a script that declares that it doesn't write.
pub fn flags_of(server: &Server, command: &Command, args: &Args<'_>) -> Flags {
    let Handler::Transaction(TransactionPart::Script(form)) = command.handler else { return command.flags };
    let scripting = server.scripting();
    let declared = match form.named {
        ScriptReference::Text => ScriptFlags::of(args.at(1)),
        ScriptReference::Sha => sha_from(args.at(1)).and_then(|sha| Some(scripting.scripts.find(&sha)?.flags)),
        ScriptReference::Function => {
            scripting.libraries.table().function(args.at(1)).map(|(library, index)| library.functions[index].flags)
        }
    };
    declared.map_or(command.flags, |declared| of_declared(command, declared))
}

/// Returns the flags of a call whose script declares the flags in `declared`.
fn of_declared(command: &Command, declared: ScriptFlags) -> Flags {
    if declared.contains(ScriptFlags::COMPATIBLE) {
        return command.flags;
    }
    let allows_stale = declared.contains(ScriptFlags::ALLOW_STALE);
    let flags = if allows_stale { command.flags | Flags::STALE } else { command.flags - Flags::STALE };
    if declared.contains(ScriptFlags::NO_WRITES) {
        flags.difference(Flags::WRITE | Flags::MAY_REPLICATE | Flags::DENYOOM)
    } else if declared.contains(ScriptFlags::ALLOW_OOM) {
        flags.difference(Flags::DENYOOM) | Flags::WRITE
    } else {
        flags | Flags::DENYOOM | Flags::WRITE
    }
}

/// Compiles a script that this worker's Lua state lacks. The script's text is in the call, or
/// another worker has loaded the script.
fn compile(state: &mut State, scripts: &Scripts, named: ScriptReference, name: &[u8]) -> Result<Arc<Script>, Vec<u8>> {
    let is_text = named == ScriptReference::Text;
    let sha = if is_text { Some(sha_of(name)) } else { sha_from(name) };
    let script = match sha.map(|sha| (sha, scripts.find(&sha))) {
        Some((_, Some(script))) => script,
        Some((sha, None)) if is_text => Arc::new(Script::new(sha, name)?),
        _ => return Err(NO_SCRIPT.as_bytes().to_vec()),
    };
    state.compile(&script)?;
    Ok(scripts.add(script))
}

/// Finds a function by name and loads it into this worker's Lua state.
fn find_function(server: &Server, name: &[u8]) -> Result<Program, Vec<u8>> {
    let libraries = &server.scripting().libraries;
    let found = libraries.table().function(name);
    let (library, index) = found.ok_or_else(|| b"ERR Function not found".to_vec())?;
    let mut state = take_state(Kind::Function);
    state.drop_old(libraries);
    let loaded = state.load_again(&library);
    return_state(Kind::Function, state);
    loaded.map_err(|why| [b"ERR ", &*why].concat())?;
    Ok(Program::Function(library, index))
}

/// Finds the script that a call names and compiles it in this worker's Lua state.
fn find_script(server: &Server, named: ScriptReference, name: &[u8]) -> Result<Arc<Script>, Vec<u8>> {
    let scripts = &server.scripting().scripts;
    let mut state = take_state(Kind::Script);
    let known = match named {
        ScriptReference::Text => state.find_text(scripts, name),
        _ => sha_from(name).and_then(|sha| state.find(scripts, &sha)),
    };
    let found = known.map_or_else(|| compile(&mut state, scripts, named, name), Ok);
    return_state(Kind::Script, state);
    found
}

/// Sends the call of a script to the monitors.
fn show_script<L: EventLoop>(reactor: &Reactor<'_, L, Held>, index: u32, command: &Command, args: &Args<'_>) {
    if let Some(connection) = &reactor.connections[index as usize] {
        let session = &connection.session;
        reactor.server.keyspace().show_script(command, args, session.client.id, session.db);
    }
}

/// Resolves a call: its program, its keys and its flags. The error is the complete error reply.
fn find_call(
    server: &Server,
    is_out_of_memory: bool,
    command: &'static Command,
    form: ScriptForm,
    args: &Args<'_>,
) -> Result<Box<ScriptCall>, Vec<u8>> {
    let count = |wrong| number_of_keys(args, wrong).map_err(|why| why.as_bytes().to_vec());
    // As in Redis, the number of keys is checked after a function is looked up, but before a script
    // is looked up.
    let (program, keys) = if form.named == ScriptReference::Function {
        let program = find_function(server, args.at(1))?;
        (program, count("ERR Bad number of keys provided")?)
    } else {
        let keys = count("ERR value is not an integer or out of range")?;
        (Program::Script(find_script(server, form.named, args.at(1))?), keys)
    };
    let flags = program.flags();
    if flags.contains(ScriptFlags::NO_CLUSTER) && server.keyspace().is_cluster() {
        return Err(b"ERR Can not run script on cluster, 'no-cluster' flag is set.".to_vec());
    }
    // The flags of other scripts were checked when the call arrived (`flags_of`).
    if flags.contains(ScriptFlags::COMPATIBLE) && server.keyspace().tuning.refusals().contains(Refusals::STALE) {
        return Err(MASTER_DOWN.as_bytes().to_vec());
    }
    if form.is_read_only && !flags.intersects(ScriptFlags::COMPATIBLE | ScriptFlags::NO_WRITES) {
        return Err(b"ERR Can not execute a script with write flag using *_ro command.".to_vec());
    }
    let needs_memory = of_declared(command, flags).contains(Flags::DENYOOM);
    if needs_memory && !flags.contains(ScriptFlags::COMPATIBLE) && is_out_of_memory {
        return Err(SCRIPT_OUT_OF_MEMORY.as_bytes().to_vec());
    }
    let (bytes, ranges) = copied(args.iter().take(1).chain(args.iter().skip(3)));
    let is_read_only = form.is_read_only || flags.contains(ScriptFlags::NO_WRITES);
    let is_wide = program.is_wide() || server.keyspace().monitors().are_there();
    Ok(Box::new(ScriptCall { command, program, is_read_only, is_wide, bytes, ranges, keys, shown: None }))
}

impl<L: EventLoop> Dispatcher<'_, L> {
    /// Resolves a call. The error is the complete error reply.
    pub(super) fn script_call(
        &self,
        index: u32,
        command: &'static Command,
        form: ScriptForm,
        args: &Args<'_>,
    ) -> Result<Box<ScriptCall>, Vec<u8>> {
        if let Some(why) = self.clients.frozen.reply() {
            return Err(why.as_bytes().to_vec());
        }
        let mut found = find_call(
            self.clients.reactor.server,
            self.memory.is_out_now(self.clients.executor.keyspace()),
            command,
            form,
            args,
        );
        if self.clients.executor.keyspace().monitors().are_there() {
            match &mut found {
                Ok(call) => call.shown = Some(copied(args.iter())),
                Err(_) => show_script(&self.clients.reactor, index, command, args),
            }
        }
        found
    }

    /// Requests the shards of a script call's keys, or all shards if the call is wide.
    pub(super) fn gather_for_script(&mut self, index: u32, call: Box<ScriptCall>, has_waited: bool) -> Ran {
        call.find_shards(self.clients.executor.keyspace(), &mut self.shards);
        self.gather_for(index, Held::Script(call), has_waited)
    }

    /// Runs a script on the shards in `owned`. All commands of the script see `now_ms`. Returns
    /// `None` if the call must be rerun with all shards.
    pub(super) fn run_script(
        &mut self,
        index: u32,
        call: &ScriptCall,
        owned: &mut Vec<Ownership>,
        now_ms: i64,
    ) -> Option<Scripted> {
        let users = self.clients.executor.keyspace().users();
        let connection = self.clients.reactor.connections[index as usize].as_mut()?;
        let session = &mut connection.session;
        // `run_held` has checked, with the shards held, that the user may run the script.
        session.refresh_rules(users);
        let view = SessionView { in_script: true, ..session.view() };
        let (client, token) = (Arc::clone(&session.client), connection.socket.token());
        let (reads_as, rules) = (session.reads_as.clone(), session.restricting_rules());
        // Monitors see the call before the commands that the script runs. A run that may be rolled
        // back isn't shown, because there were no monitors when it started.
        if call.is_wide && self.clients.executor.keyspace().monitors().are_there() {
            let shown = call.shown.as_ref().map_or_else(|| Cow::Owned(call.words()), Cow::Borrowed);
            show_script(&self.clients.reactor, index, call.command, &Args::new(&shown.0, &shown.1));
        }
        let kind = call.program.kind();
        let mut state = take_state(kind);
        // Another connection may have flushed scripts or functions since this program was found.
        // The program runs nevertheless. If there is too little memory to compile it, the run below
        // reports the error.
        match &call.program {
            Program::Script(script) => _ = state.compile(script),
            Program::Function(library, _) => _ = state.load_again(library),
        }
        let server = self.clients.reactor.server;
        let running = self.clients.reactor.server.scripting().running(self.clients.reactor.number);
        running.begin(kind, self.clients.reactor.server.monotonic_ms());
        let allows_oom = call.program.flags().contains(ScriptFlags::ALLOW_OOM);
        let is_out_of_memory = !allows_oom && self.memory.is_out_now(self.clients.executor.keyspace());
        let undo = (!call.is_wide).then(|| std::mem::take(&mut self.undo));
        if undo.is_some() {
            self.clients.tally.hold();
        }
        let mut caller = ScriptCaller {
            reads_as,
            dispatcher: self,
            owned,
            client,
            rules,
            view,
            now_ms,
            token,
            undo,
            slots: slots_of_keys(&call.keys()),
            index,
            call,
            is_out_of_memory,
            is_large: false,
            pace: Pace::default(),
        };
        caller.dispatcher.clients.executor.recorder().begin_unit(caller.owned);
        let (keys, args) = (call.keys(), call.args());
        let began = call.is_wide.then(Instant::now);
        let ended = match &call.program {
            Program::Script(script) => state.run(script, &keys, &args, &mut caller),
            Program::Function(library, index) => state.run_function(library, *index, &keys, &args, &mut caller),
        };
        if ended != Ended::Abandoned {
            caller.keep();
            caller.dispatcher.clients.executor.recorder().end_unit(caller.owned);
        }
        if let Some(began) = began {
            server.keyspace().all_held.note(began.elapsed(), server.monotonic_ms());
        }
        let (is_large, undo) = (caller.is_large, caller.undo.take());
        self.clients.tally.commit_held(ended != Ended::Abandoned);
        if let Some(mut undo) = undo {
            undo.clear();
            self.undo = undo;
        }
        let bytes_before = state.used_bytes();
        if running.end() {
            tracing::warn!("Lua script killed by user with SCRIPT KILL.");
        }
        self.clients.thaw();
        // The next command, of any client, must see a time that is not before the script's end.
        self.clients.reactor.read_clock();
        if let Some(connection) = &self.clients.reactor.connections[index as usize] {
            // A `SELECT` within a script doesn't affect its client.
            connection.session.select_shown();
        }
        if ended == Ended::Abandoned {
            return_state(kind, state);
            // A script whose changes were too large for the undo log isn't marked wide, because its
            // next call may change smaller values.
            if !is_large {
                call.program.set_wide();
            }
            return None;
        }
        let mut scripted = Scripted { is_counted: false };
        if let Some(connection) = &mut self.clients.reactor.connections[index as usize] {
            let limit = reply_limit(&connection.session, self.clients.executor.keyspace());
            let version = connection.session.version;
            let mut reply = Reply::limited(&mut connection.output, version, limit);
            scripted.is_counted = state.answer(call.program.name(), &mut reply);
            reply.finish();
        }
        let bytes = state.used_bytes();
        return_state(kind, state);
        self.memory.purge_after_script(bytes_before, bytes);
        Some(scripted)
    }

    /// Runs a script within a transaction that holds all shards.
    pub(super) fn run_queued_script(
        &mut self,
        index: u32,
        command: &'static Command,
        form: ScriptForm,
        args: &Args<'_>,
        owned: &mut Vec<Ownership>,
        now_ms: i64,
    ) -> Scripted {
        match self.script_call(index, command, form, args) {
            Ok(mut call) => {
                call.is_wide = true;
                self.run_script(index, &call, owned, now_ms).unwrap_or_default()
            }
            Err(why) => {
                if let Some(connection) = &mut self.clients.reactor.connections[index as usize] {
                    Reply::new(&mut connection.output, connection.session.version).error_bytes(&why);
                }
                Scripted::default()
            }
        }
    }
}

impl ScriptCall {
    /// Returns the program's name and the command, for `FUNCTION STATS`.
    fn named(&self) -> Named {
        let (bytes, ranges) = self.words();
        let command = Args::new(&bytes, &ranges).iter().map(<[u8]>::to_vec).collect();
        Named { name: self.program.name().to_vec(), command }
    }

    /// Returns all words of the command.
    pub(super) fn words(&self) -> Words {
        let (own, keys) = (Args::new(&self.bytes, &self.ranges), self.keys.to_string());
        let is_text = matches!(
            self.command.handler,
            Handler::Transaction(TransactionPart::Script(ScriptForm { named: ScriptReference::Text, .. }))
        );
        let named = match &self.program {
            Program::Script(script) if is_text => script.body(),
            program => program.name(),
        };
        copied([own.at(0), named, keys.as_bytes()].into_iter().chain(own.iter().skip(1)))
    }

    /// Returns the command in whose statistics the call is counted.
    pub(super) fn command(&self) -> &'static Command {
        self.command
    }

    /// Returns the call's flags, as [`flags_of`] does.
    pub(super) fn command_flags(&self) -> Flags {
        of_declared(self.command, self.program.flags())
    }

    /// Fills `shards` with the shards of the call's keys, unordered and with duplicates, or with
    /// all shards if the call is wide.
    pub(super) fn find_shards(&self, keyspace: &Keyspace, shards: &mut Vec<u32>) {
        shards.clear();
        if self.is_wide {
            shards.extend(0..keyspace.partition_count());
        } else {
            shards.extend(self.keys().iter().map(|key| keyspace.place(key).shard));
        }
    }

    /// Returns whether the call needs all shards but has requested fewer, because a monitor has
    /// been added since. Commands shown to monitors can't be rolled back, so while there are
    /// monitors, every script holds all shards.
    pub(super) fn is_too_narrow(&self, keyspace: &Keyspace) -> bool {
        !self.is_wide && keyspace.monitors().are_there()
    }

    /// Makes the call request all shards.
    pub(super) fn widened(mut self: Box<Self>) -> Box<Self> {
        self.is_wide = true;
        self
    }
}

/// The result of a script that has ended.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Scripted {
    /// Whether the script's reply is the error of a command that the script ran. The error
    /// statistics already include that error.
    pub is_counted: bool,
}
