//! A worker's Lua state. It is created when the worker first runs a script or function, and keeps
//! the compiled scripts or loaded libraries.

use std::ffi::c_int;
use std::hash::BuildHasher;
use std::sync::Arc;
use std::time::Duration;

use hashbrown::{DefaultHashBuilder, HashMap, HashSet, HashTable};
use mlua_sys::lua51 as ffi;
use pantala_resp::{Args, Reply, Version};

use crate::cache::{Script, Scripts, Sha};
use crate::library::{Draft, Function, Libraries, Library};
use crate::lua::{Kind, Raise, Stack, lua_State};
use crate::memory::{STATE_BYTES_MAX, StateContext, allocate};
use crate::random::Random;
use crate::register::{self, Load};
use crate::run::{Caller, Ended, Interrupt, Run, Scratch, Stopped};
use crate::{api, bit, cjson, cmsgpack, convert, errors, sandbox, stop, structs};

/// A full collection is repeated if it has freed at least this many bytes.
const WORTH_COLLECTING_BYTES: usize = 256 * 1024;

/// Number of runs after which the garbage collector makes an additional step. The number is also
/// the size of that step (the argument of `LUA_GCSTEP`): one unit per run.
const RUNS_PER_STEP: u32 = 50;

/// Lua's default speed of the garbage collector. The speed is restored before each run, because
/// scripts can change it.
const GC_PERCENT: c_int = 200;

/// Maximum number of compiled scripts. At the limit, all are dropped. Only clients that send a new
/// script with every call reach the limit, and they do not reuse earlier scripts.
const COMPILED_MAX: usize = 4096;

/// The libraries of this crate in states for scripts.
const OWN: [sandbox::Own; 5] = [
    ("redis", api::push),
    ("bit", bit::push),
    ("cjson", cjson::push),
    ("cmsgpack", cmsgpack::push),
    ("struct", structs::push),
];

/// The libraries of this crate in states for functions.
const OWN_OF_FUNCTIONS: [sandbox::Own; 5] = [
    ("redis", api::push_for_functions),
    ("bit", bit::push),
    ("cjson", cjson::push),
    ("cmsgpack", cmsgpack::push),
    ("struct", structs::push),
];

/// Time limit of a library in `FUNCTION LOAD`, as in Redis.
pub const LOAD_TIME_MAX: Duration = Duration::from_millis(500);

/// Time limit of a library that another worker has already loaded. That worker took at most
/// [`LOAD_TIME_MAX`], so loading can take this long only on a busy machine.
const LOAD_AGAIN_TIME_MAX: Duration = Duration::from_secs(10);

/// A compiled script.
struct Compiled {
    script: Arc<Script>,
    /// Reference of the script's function in the registry.
    reference: c_int,
}

/// The name that `load` gives to code without a name.
const LOAD_NAME: &[u8] = b"=(load)";

/// A Lua state with its compiled scripts or loaded libraries.
pub struct State {
    lua: *mut lua_State,
    /// Registry reference of the globals table itself. Scripts see only a front of this table: an
    /// empty table that redirects reads to this one and rejects writes.
    globals: c_int,
    compiled: HashMap<Sha, Compiled>,
    /// The same scripts by text, because hashing a text is faster than computing its SHA-1.
    by_text: HashTable<Arc<Script>>,
    text_hasher: DefaultHashBuilder,
    /// Registry references of the functions of each loaded library, by the library's number.
    loaded: HashMap<u64, Vec<c_int>>,
    /// Reference of the globals for loading libraries; `None` in a state for scripts.
    load_globals: Option<c_int>,
    /// The [`Scripts::generation`] or [`Libraries::generation`] of the contents of this state.
    generation: u64,
    random: Random,
    scratch: Scratch,
    runs: u32,
    /// Lua status of the last run.
    status: c_int,
    /// Protocol version that the last run selected for its reply.
    version: Version,
    /// Dropped after the Lua state is closed, because closing it still uses this allocator.
    memory: Box<StateContext>,
}

impl State {
    /// Creates a state for scripts.
    pub fn new() -> Self {
        Self::with(&OWN, STATE_BYTES_MAX)
    }

    /// Creates a state for functions.
    pub fn for_functions() -> Self {
        let mut state = Self::with(&OWN_OF_FUNCTIONS, STATE_BYTES_MAX);
        let stack = state.stack();
        stack.raw_element(ffi::LUA_REGISTRYINDEX, state.globals);
        stack.push_nil();
        stack.set_raw_field(-2, sandbox::ERROR_HANDLER);
        register::push_globals(stack);
        // SAFETY: the table is on top.
        let load_globals = unsafe { ffi::luaL_ref(state.lua, ffi::LUA_REGISTRYINDEX) };
        stack.set_top(0);
        state.load_globals = Some(load_globals);
        state.memory.resume();
        state
    }

    fn with(own: &[sandbox::Own], bytes_max: usize) -> Self {
        let memory = StateContext::new(bytes_max);
        memory.suspend();
        // SAFETY: the address of the allocator's context is valid as long as the state lives.
        let lua = unsafe { ffi::lua_newstate(allocate, std::ptr::from_ref(&*memory).cast_mut().cast()) };
        assert!(!lua.is_null(), "no Lua state: allocation failed although the memory limit is suspended");
        // SAFETY: the state was just created, so there are no other users.
        let stack = unsafe { Stack::new(lua) };
        sandbox::fill(stack, own);
        // SAFETY: the real globals table is on top.
        let globals = unsafe { ffi::luaL_ref(lua, ffi::LUA_REGISTRYINDEX) };
        // While Lua compiles code, the garbage collector could free the name of the code
        // (CVE-2025-49844). Strings are interned, so this reference keeps the default name alive. A
        // name that a script passes is on the stack during the compilation. In addition,
        // `sandbox::compile` stops the garbage collector during that time.
        stack.push_bytes(LOAD_NAME);
        // SAFETY: the name is on top.
        unsafe { ffi::luaL_ref(lua, ffi::LUA_REGISTRYINDEX) };
        stack.set_top(0);
        memory.resume();
        State {
            lua,
            globals,
            compiled: HashMap::new(),
            by_text: HashTable::new(),
            text_hasher: DefaultHashBuilder::default(),
            loaded: HashMap::new(),
            load_globals: None,
            generation: 0,
            random: Random::default(),
            scratch: Scratch::default(),
            runs: 0,
            status: ffi::LUA_OK,
            version: Version::Resp2,
            memory,
        }
    }

    /// Returns the memory usage in bytes.
    pub fn used_bytes(&self) -> usize {
        self.memory.used_bytes()
    }

    /// Returns the script with this SHA-1 if this state has compiled it since the last flush.
    pub fn find(&mut self, scripts: &Scripts, sha: &Sha) -> Option<Arc<Script>> {
        self.follow(scripts);
        self.compiled.get(sha).map(|compiled| Arc::clone(&compiled.script))
    }

    /// Returns the script with this text if this state has compiled it since the last flush.
    pub fn find_text(&mut self, scripts: &Scripts, text: &[u8]) -> Option<Arc<Script>> {
        self.follow(scripts);
        let hash = self.text_hasher.hash_one(text);
        self.by_text.find(hash, |script| script.body() == text).map(Arc::clone)
    }

    /// Drops all scripts if the cache was flushed.
    fn follow(&mut self, scripts: &Scripts) {
        let generation = scripts.generation();
        if self.generation != generation {
            // As in Redis, replace the whole state, so that its memory is freed immediately.
            *self = State::new();
            self.generation = generation;
        }
    }

    /// Returns whether the scripts were flushed since this state compiled them.
    pub fn is_flushed(&self, scripts: &Scripts) -> bool {
        self.generation != scripts.generation()
    }

    /// Compiles a script, unless it is compiled already.
    ///
    /// # Errors
    /// Returns the whole error reply if the script is not valid Lua.
    pub fn compile(&mut self, script: &Arc<Script>) -> Result<(), Vec<u8>> {
        if self.compiled.contains_key(&script.sha) {
            return Ok(());
        }
        if self.compiled.len() >= COMPILED_MAX {
            self.forget();
        }
        let stack = self.stack();
        let compiled = sandbox::compile(stack, script.code(), b"@user_script");
        let result = match compiled {
            // SAFETY: the function is on top.
            Ok(()) => Ok(unsafe { ffi::luaL_ref(self.lua, ffi::LUA_REGISTRYINDEX) }),
            Err(Raise) => {
                let why = stack.copied(-1).unwrap_or_default();
                Err([b"ERR Error compiling script (new function): ", &*why].concat())
            }
        };
        stack.set_top(0);
        self.memory.resume();
        let reference = result?;
        self.compiled.insert(script.sha, Compiled { script: Arc::clone(script), reference });
        let hasher = &self.text_hasher;
        let hash = hasher.hash_one(script.body());
        self.by_text.insert_unique(hash, Arc::clone(script), |script| hasher.hash_one(script.body()));
        Ok(())
    }

    /// Drops all compiled scripts.
    fn forget(&mut self) {
        self.by_text.clear();
        for (_, compiled) in self.compiled.drain() {
            // SAFETY: `compile` made the reference.
            unsafe { ffi::luaL_unref(self.lua, ffi::LUA_REGISTRYINDEX, compiled.reference) };
        }
    }

    /// Drops the libraries that no longer exist.
    pub fn drop_old(&mut self, libraries: &Libraries) {
        let generation = libraries.generation();
        if self.generation == generation {
            return;
        }
        let table = libraries.table();
        let known: HashSet<u64> = table.libraries().map(|library| library.id).collect();
        let gone: Vec<u64> = self.loaded.keys().copied().filter(|id| !known.contains(id)).collect();
        for id in gone {
            self.forget_library(id);
        }
        self.generation = generation;
    }

    /// Runs the code of a new library. Returns the registered functions.
    ///
    /// # Errors
    /// Returns the error text, without a code, if the code is not valid Lua, fails, or registers no
    /// function. The library is then not loaded.
    pub fn load(&mut self, draft: &Draft) -> Result<Vec<Function>, Vec<u8>> {
        let functions = self.run_library(draft.id(), draft.code(), LOAD_TIME_MAX)?;
        if functions.is_empty() {
            self.forget_library(draft.id());
            return Err(b"No functions registered".to_vec());
        }
        Ok(functions)
    }

    /// Runs the code of a known library, unless this state has loaded it.
    ///
    /// # Errors
    /// Returns the error text, without an error code, if the code runs out of memory or time.
    pub fn load_again(&mut self, library: &Library) -> Result<(), Vec<u8>> {
        if self.loaded.contains_key(&library.id) {
            return Ok(());
        }
        let functions = self.run_library(library.id, library.code(), LOAD_AGAIN_TIME_MAX)?;
        // A library can't distinguish workers, so it registers the same functions on each of them.
        debug_assert_eq!(functions.len(), library.functions.len());
        Ok(())
    }

    /// Drops the functions of a library.
    pub fn forget_library(&mut self, id: u64) {
        let references = self.loaded.remove(&id).unwrap_or_default();
        let stack = self.stack();
        for reference in references {
            register::release(stack, reference);
        }
        self.memory.resume();
    }

    fn run_library(&mut self, id: u64, code: &[u8], time_max: Duration) -> Result<Vec<Function>, Vec<u8>> {
        let stack = self.stack();
        stack.set_top(0);
        if let Some(load_globals) = self.load_globals {
            stack.raw_element(ffi::LUA_REGISTRYINDEX, load_globals);
            sandbox::redirect_globals_to_top(stack);
        }
        let registered = match sandbox::compile(stack, code, b"@user_function") {
            Ok(()) => register::run(stack, Load::new(time_max))
                .map_err(|why| [b"Error registering functions: ", &*why].concat()),
            Err(Raise) => {
                let why = stack.copied(-1).unwrap_or_default();
                Err([b"Error compiling function: ", &*why].concat())
            }
        };
        stack.raw_element(ffi::LUA_REGISTRYINDEX, self.globals);
        sandbox::redirect_globals_to_top(stack);
        stack.set_top(0);
        self.memory.resume();
        let (functions, references) = registered?.into_iter().unzip();
        self.loaded.insert(id, references);
        Ok(functions)
    }

    /// Runs a function of a loaded library. [`State::answer`] writes the result.
    pub fn run_function(
        &mut self,
        library: &Library,
        index: usize,
        keys: &Args<'_>,
        args: &Args<'_>,
        caller: &mut dyn Caller,
    ) -> Ended {
        let stack = self.stack();
        stack.set_top(0);
        stack.push_function(errors::handle_last);
        match self.loaded.get(&library.id).and_then(|references| references.get(index)) {
            Some(reference) => stack.raw_element(ffi::LUA_REGISTRYINDEX, *reference),
            // Callers load the library first. If one did not, calling nil raises an error.
            None => stack.push_nil(),
        }
        push_array(stack, keys);
        push_array(stack, args);
        self.call(2, caller)
    }

    /// Runs a compiled script. [`State::answer`] writes the result.
    pub fn run(&mut self, script: &Script, keys: &Args<'_>, args: &Args<'_>, caller: &mut dyn Caller) -> Ended {
        let stack = self.stack();
        stack.set_top(0);
        stack.push_function(errors::handle_last);
        match self.compiled.get(&script.sha) {
            Some(compiled) => stack.raw_element(ffi::LUA_REGISTRYINDEX, compiled.reference),
            // Callers compile the script first. If one did not, calling nil raises an error.
            None => stack.push_nil(),
        }
        stack.raw_element(ffi::LUA_REGISTRYINDEX, self.globals);
        for (name, values) in [("KEYS", keys), ("ARGV", args)] {
            push_array(stack, values);
            stack.set_raw_field(-2, name);
        }
        stack.pop(1);
        self.call(0, caller)
    }

    /// Calls a function. The stack contains, from the bottom, the error handler, the function and
    /// its arguments. The caller has suspended the memory limit, and this method resumes it.
    fn call(&mut self, arguments: c_int, caller: &mut dyn Caller) -> Ended {
        let mut run = Run {
            caller,
            version: Version::Resp2,
            random: &mut self.random,
            stopped: None,
            stopped_at: None,
            scratch: &mut self.scratch,
        };
        self.memory.json.set(cjson::Config::default());
        self.memory.run.set(std::ptr::from_mut(&mut run).cast());
        // SAFETY: a protected call. No Rust frame lies between this call and the code that may
        // raise. The hook uses `run`, which lives until the pointer is cleared below.
        self.status = unsafe {
            ffi::lua_gc(self.lua, ffi::LUA_GCSETPAUSE, GC_PERCENT);
            ffi::lua_gc(self.lua, ffi::LUA_GCSETSTEPMUL, GC_PERCENT);
            stop::watch(self.lua);
            self.memory.resume();
            let status = ffi::lua_pcall(self.lua, arguments, 1, 1);
            stop::unwatch(self.lua);
            status
        };
        self.memory.run.set(std::ptr::null_mut());
        if run.stopped.is_none() && run.caller.end() == Interrupt::Kill {
            run.stopped = Some(Stopped::Killed);
        }
        self.version = run.version;
        match (run.stopped, run.stopped_at.take()) {
            (None, _) => Ended::Finished,
            (Some(Stopped::Abandoned), _) => Ended::Abandoned,
            (Some(Stopped::Killed), place) => {
                self.status = ffi::LUA_ERRRUN;
                let stack = self.stack();
                stack.set_top(0);
                errors::push(stack, b"Script killed by user with SCRIPT KILL...");
                if let Some(place) = place {
                    errors::set_place(stack, &place);
                }
                self.memory.resume();
                Ended::Finished
            }
        }
    }

    /// Writes the result of the last run as a reply, and drops the result. `name` is the script's
    /// name for errors. Returns whether the reply is an error of a command that the script called.
    /// Such an error is already in the error statistics.
    pub fn answer(&mut self, name: &[u8], reply: &mut Reply<'_>) -> bool {
        let stack = self.stack();
        let is_counted = if self.status == ffi::LUA_OK {
            convert::write(stack, self.version, reply)
        } else {
            reply_error(stack, name, reply)
        };
        stack.set_top(0);
        self.memory.resume();
        self.collect(self.status == ffi::LUA_ERRMEM);
        is_counted
    }

    /// Runs a step of the garbage collector every [`RUNS_PER_STEP`] runs, or full collections if
    /// `all` is set or memory usage is high. If a script has stopped the collector, the next step
    /// restarts it, as in Redis. Restarting it before every run would make the next allocation
    /// start a cycle, however little garbage there is.
    fn collect(&mut self, all: bool) {
        self.runs += 1;
        // SAFETY: no script is running, and no finalizers exist.
        unsafe {
            if all || self.memory.used_bytes() > STATE_BYTES_MAX / 4 {
                ffi::lua_gc(self.lua, ffi::LUA_GCRESTART, 0);
                // Repeat, because each cycle halves Lua's buffer for concatenated strings.
                loop {
                    let before = self.memory.used_bytes();
                    ffi::lua_gc(self.lua, ffi::LUA_GCCOLLECT, 0);
                    if before.saturating_sub(self.memory.used_bytes()) < WORTH_COLLECTING_BYTES {
                        break;
                    }
                }
            } else if self.runs >= RUNS_PER_STEP {
                self.runs = 0;
                ffi::lua_gc(self.lua, ffi::LUA_GCSTEP, RUNS_PER_STEP as c_int);
            }
        }
    }

    /// Returns the stack, and suspends the memory limit. The caller resumes the limit.
    fn stack(&self) -> Stack<'_> {
        self.memory.suspend();
        // SAFETY: `&self` is not shared between threads, because it contains a raw pointer. The
        // memory limit is suspended.
        unsafe { Stack::new(self.lua) }
    }
}

impl Default for State {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for State {
    fn drop(&mut self) {
        // SAFETY: created by `lua_newstate`, and no longer in use.
        unsafe { ffi::lua_close(self.lua) };
    }
}

fn push_array(stack: Stack<'_>, values: &Args<'_>) {
    stack.new_table(values.len(), 0);
    for (index, value) in values.iter().enumerate() {
        stack.push_bytes(value);
        stack.set_raw_element(-2, index as c_int + 1);
    }
}

/// Writes the error with which a script has ended. Returns whether that error is already in the
/// error statistics.
fn reply_error(stack: Stack<'_>, name: &[u8], reply: &mut Reply<'_>) -> bool {
    /// Maximum length of the shown part of an error text, as in Redis, bytes.
    const SHOWN_BYTES_MAX: usize = 100;
    if stack.kind(-1) != Kind::Table {
        let text = stack.copied(-1).unwrap_or_else(|| b"execution failure".to_vec());
        let shown = &text[..text.len().min(SHOWN_BYTES_MAX)];
        reply.error_bytes(&[b"ERR Error running script ", name, b", ", shown].concat());
        return false;
    }
    let error = errors::read(stack, stack.top());
    let mut text = error.text;
    if let Some((source, line)) = error.place {
        text.extend_from_slice(&[b" script: ", name, b", on ", &source, b":", &line, b"."].concat());
    }
    reply.error_bytes(&text);
    error.is_counted
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::sha_of;
    use crate::convert::REPLY_BYTES_MAX;
    use crate::run::Called;
    use pantala_resp::ArgRange;

    /// Memory limit of the states in the tests, bytes.
    const BYTES_MAX: usize = 2 * 1024 * 1024;

    /// Replies to every command with `head`, followed by `each` repeated `count` times.
    struct Answering<'a> {
        head: &'a str,
        each: &'a str,
        count: usize,
    }

    impl Caller for Answering<'_> {
        fn call(&mut self, _: &Args<'_>, _: Version, reply: &mut Vec<u8>) -> Called {
            reply.extend_from_slice(self.head.as_bytes());
            (0..self.count).for_each(|_| reply.extend_from_slice(self.each.as_bytes()));
            Called::Replied
        }

        fn may_run(&mut self, _: &Args<'_>) -> Option<bool> {
            None
        }

        fn log(&mut self, _: u8, _: &[u8]) {}

        fn interrupt(&mut self) -> Interrupt {
            Interrupt::Continue
        }

        fn end(&mut self) -> Interrupt {
            Interrupt::Continue
        }
    }

    /// Runs a script. Returns its reply, and the memory usage of the state after the run.
    fn run(text: &str, caller: &mut dyn Caller) -> (String, usize) {
        let mut state = State::with(&OWN, BYTES_MAX);
        let script = Arc::new(Script::new(sha_of(text.as_bytes()), text.as_bytes()).expect("valid shebang"));
        state.compile(&script).expect("valid Lua");
        let none: [ArgRange; 0] = [];
        assert_eq!(state.run(&script, &Args::new(b"", &none), &Args::new(b"", &none), caller), Ended::Finished);
        let used_bytes = state.used_bytes();
        let mut reply = Vec::new();
        state.answer(b"sha", &mut Reply::new(&mut reply, Version::Resp2));
        (String::from_utf8_lossy(&reply).into_owned(), used_bytes)
    }

    /// A reply becomes several times larger in Lua. The allocator does not enforce the limit while
    /// a reply is converted, so the conversion must check the limit itself. At the limit, the
    /// script fails with an error.
    #[test]
    fn replies_that_exceed_memory_are_errors() {
        let long = format!("${}\r\n{}\r\n", BYTES_MAX, "x".repeat(BYTES_MAX));
        for (head, each, count) in [
            ("*100000\r\n", "*0\r\n", 100_000),
            ("*100000\r\n", "*1\r\n:1\r\n", 100_000),
            ("%50000\r\n", ":1\r\n+OK\r\n", 50_000),
            ("~50000\r\n", "+OK\r\n", 50_000),
            ("*1000000000\r\n", ":1\r\n", 1),
            ("", &long, 1),
        ] {
            for call in ["call", "pcall"] {
                let text = format!("return redis.{call}('X')");
                let (reply, used_bytes) = run(&text, &mut Answering { head, each, count });
                assert!(reply.starts_with("-ERR not enough memory"), "{head}: {reply}");
                assert!(used_bytes < BYTES_MAX + 64 * 1024, "{head}: {used_bytes}");
            }
        }
        let (reply, _) =
            run("return #redis.call('X')", &mut Answering { head: "*10000\r\n", each: ":1\r\n", count: 10_000 });
        assert_eq!(reply, ":10000\r\n");
    }

    /// The memory of values that `cjson` and `cmsgpack` decode is limited like that of replies.
    #[test]
    fn decoded_data_that_exceeds_memory_is_an_error() {
        for text in [
            "return #cjson.decode('[' .. string.rep('[],', 50000) .. '1]')",
            "return #cmsgpack.unpack('\\221\\0\\0\\195\\80' .. string.rep('\\145\\1', 50000))",
        ] {
            let (reply, used_bytes) = run(text, &mut Answering { head: "", each: "", count: 0 });
            assert!(reply.contains("not enough memory"), "{text}: {reply}");
            assert!(used_bytes < BYTES_MAX + 64 * 1024, "{text}: {used_bytes}");
        }
    }

    /// The expected replies are those of Redis.
    #[test]
    fn libraries_behave_as_in_redis() {
        for (text, answer) in [
            ("return {cmsgpack.unpack_limit('\\1\\2\\3', 0)}", "*3\r\n:1\r\n:2\r\n:3\r\n"),
            ("return {cmsgpack.unpack_limit('\\1\\2\\3', 0, 0)}", "*3\r\n:1\r\n:2\r\n:3\r\n"),
            ("return {cmsgpack.unpack_limit('\\1\\2\\3', 0, 1)}", "*1\r\n:1\r\n"),
            ("return {cmsgpack.unpack_limit('\\1\\2\\3', 1)}", "*2\r\n:1\r\n:1\r\n"),
            ("return cmsgpack.unpack('\\129\\192\\1')", "-ERR table index is nil script: sha, on @user_script:1.\r\n"),
            (
                "return cmsgpack.unpack('\\129\\203\\127\\248\\0\\0\\0\\0\\0\\0\\1')",
                "-ERR table index is NaN script: sha, on @user_script:1.\r\n",
            ),
            ("return cjson.decode('[-0x1p3]')", "*1\r\n:-8\r\n"),
            ("return {struct.unpack('bc0', '\\3abc')}", "*2\r\n$3\r\nabc\r\n:5\r\n"),
            ("return {struct.unpack('dc0', struct.pack('d', -0.5))}", "*2\r\n$0\r\n\r\n:9\r\n"),
        ] {
            assert_eq!(run(text, &mut Answering { head: "", each: "", count: 0 }).0, answer, "{text}");
        }
        for text in ["'bc0', '\\255abc'", "'bc0', '\\128abc'", "'hc0', '\\255\\255abc'", "'dc0', struct.pack('d', 0/0)"]
        {
            let (reply, _) =
                run(&format!("return {{struct.unpack({text})}}"), &mut Answering { head: "", each: "", count: 0 });
            assert!(reply.contains("bad argument #2 to 'unpack' (data string too short)"), "{text}: {reply}");
        }
    }

    #[test]
    fn replies_are_bounded() {
        let none = &mut Answering { head: "", each: "", count: 0 };
        let nested = "local t = {string.rep('x', 1000)} for i = 1, 30 do t = {t, t} end return t";
        assert_eq!(run(nested, none).0, "-ERR the script's reply is too large\r\n");
        // The limit is checked before each value, so the last value may start at the limit.
        let elements = |count: usize| format!("local t = {{}} for i = 1, {count} do t[i] = 7 end return t");
        let whole = run(&elements(REPLY_BYTES_MAX / 4 - 8), none).0;
        assert!(whole.ends_with(":7\r\n"), "{}", whole.len());
        assert_eq!(run(&elements(REPLY_BYTES_MAX / 4 + 8), none).0, "-ERR the script's reply is too large\r\n");
    }

    #[test]
    fn arguments_of_a_command_are_bounded() {
        let none = &mut Answering { head: "+OK\r\n", each: "", count: 1 };
        let call = |copies: u32| {
            format!(
                "local s, t = string.rep('x', 131072), {{}} for i = 1, {copies} do t[i] = s end return redis.call(unpack(t))"
            )
        };
        assert_eq!(run(&call(64), none).0, "+OK\r\n");
        let refused = "-ERR Lua redis lib command arguments are too large";
        assert!(run(&call(4097), none).0.starts_with(refused));
    }
}
