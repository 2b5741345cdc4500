//! The Lua table `redis`, and `math.random`.

use std::ffi::c_int;

use mlua_sys::lua51 as ffi;
use pantala_resp::{ArgRange, Args, DOUBLE_LEN_MAX, Version, format_double};

use crate::cache::sha_of;
use crate::lua::{Kind, Outcome, Stack, lua_functions};
use crate::memory::STATE_BYTES_MAX;
use crate::random::{DRAW_MAX, Random};
use crate::run::{Called, Run, Scratch, Stopped};
use crate::{REDIS_VERSION, REDIS_VERSION_NUMBER, convert, errors, stop};

lua_functions! {
    call => redis_call;
    pcall => redis_pcall;
    log => redis_log;
    sha1hex => redis_sha1hex;
    error_reply => redis_error_reply;
    status_reply => redis_status_reply;
    setresp => redis_setresp;
    set_repl => redis_set_repl;
    replicate_commands => redis_replicate_commands;
    breakpoint => redis_breakpoint;
    debug => redis_debug;
    acl_check_cmd => redis_acl_check_cmd;
    random => math_random;
    randomseed => math_randomseed;
}

/// Functions of the table `redis` that scripts and library functions can call.
const FUNCTIONS: [(&str, ffi::lua_CFunction); 8] = [
    ("call", call),
    ("pcall", pcall),
    ("sha1hex", sha1hex),
    ("error_reply", error_reply),
    ("status_reply", status_reply),
    ("setresp", setresp),
    ("set_repl", set_repl),
    ("acl_check_cmd", acl_check_cmd),
];

/// Fields of the table `redis` that a library can use even while it is being loaded.
const LOG_AND_VERSION: [(&str, f64); 5] = [
    ("LOG_DEBUG", 0.0),
    ("LOG_VERBOSE", 1.0),
    ("LOG_NOTICE", 2.0),
    ("LOG_WARNING", LEVEL_MAX),
    ("REDIS_VERSION_NUM", REDIS_VERSION_NUMBER as f64),
];

const REPLICATION: [(&str, f64); 5] =
    [("REPL_NONE", 0.0), ("REPL_AOF", 1.0), ("REPL_SLAVE", 2.0), ("REPL_REPLICA", 2.0), ("REPL_ALL", REPL_MAX)];

/// Maximum size of the arguments of one command, bytes. Without a limit, a script could pass one
/// long string thousands of times, and each of these arguments would be copied.
const ARGS_BYTES_MAX: usize = STATE_BYTES_MAX;

/// Maximum length of a log line, bytes. Longer lines are truncated.
const LOG_BYTES_MAX: usize = 64 * 1024;

const LEVEL_MAX: f64 = 3.0;
const REPL_MAX: f64 = 3.0;

/// Pushes the table `redis` for scripts of `EVAL`.
pub(crate) fn push(stack: Stack<'_>) {
    push_for_functions(stack);
    let own: [(&str, ffi::lua_CFunction); 3] =
        [("breakpoint", breakpoint), ("debug", debug), ("replicate_commands", replicate_commands)];
    for (name, function) in own {
        stack.push_function(function);
        stack.set_raw_field(-2, name);
    }
}

/// Pushes the table `redis` for library functions.
pub(crate) fn push_for_functions(stack: Stack<'_>) {
    stack.new_table(0, FUNCTIONS.len() + LOG_AND_VERSION.len() + REPLICATION.len() + 5);
    for (name, function) in FUNCTIONS {
        stack.push_function(function);
        stack.set_raw_field(-2, name);
    }
    for (name, number) in REPLICATION {
        stack.push_number(number);
        stack.set_raw_field(-2, name);
    }
    push_log_and_version(stack);
}

/// Adds the fields that need no running script to the table on top of the stack.
pub(crate) fn push_log_and_version(stack: Stack<'_>) {
    for (name, number) in LOG_AND_VERSION {
        stack.push_number(number);
        stack.set_raw_field(-2, name);
    }
    stack.push_function(log);
    stack.set_raw_field(-2, "log");
    stack.push_bytes(REDIS_VERSION.as_bytes());
    stack.set_raw_field(-2, "REDIS_VERSION");
}

/// Replaces the random generator of the C library by Redis's.
pub(crate) fn replace_random(stack: Stack<'_>) {
    stack.raw_field(ffi::LUA_GLOBALSINDEX, "math");
    for (name, function) in [("random", random as ffi::lua_CFunction), ("randomseed", randomseed)] {
        stack.push_function(function);
        stack.set_raw_field(-2, name);
    }
    stack.pop(1);
}

/// Returns the run in which Lua called the current function, or `None` outside of runs.
///
/// # Safety
/// No reference from an earlier call may be in use. A function that Lua calls may call this
/// function once, and must not call into Lua while it uses the reference.
pub(crate) unsafe fn running<'s>(stack: Stack<'s>) -> Option<&'s mut Run<'s>> {
    let run = stack.memory().run.get();
    // SAFETY: `State::call` sets the pointer to a `Run` that outlives the call, and clears the
    // pointer afterwards, so it is valid or null. By the caller's promise there is no other
    // reference to the `Run`.
    unsafe { run.cast::<Run<'s>>().as_mut() }
}

/// Moves the arguments of a command from the stack to the scratch buffers. The error is the error
/// text for the script.
fn take_args(stack: Stack<'_>, scratch: &mut Scratch) -> Result<(), &'static str> {
    let count = stack.top();
    scratch.bytes.clear();
    scratch.ranges.clear();
    if count == 0 {
        return Err("Please specify at least one argument for this redis lib call");
    }
    let is_string = |index: &c_int| stack.kind(*index) == Kind::String;
    // SAFETY: the arguments stay on the stack until they are copied.
    let bytes_at = |index| unsafe { stack.bytes(index) }.unwrap_or_default();
    let bytes: usize = (1..=count).filter(is_string).map(|index| bytes_at(index).len()).sum();
    if bytes > ARGS_BYTES_MAX || scratch.bytes.try_reserve(bytes).is_err() {
        stack.set_top(0);
        return Err("Lua redis lib command arguments are too large");
    }
    for index in 1..=count {
        let start = scratch.bytes.len();
        match stack.kind(index) {
            Kind::Number => {
                let mut room = [0; DOUBLE_LEN_MAX];
                scratch.bytes.extend_from_slice(format_double(stack.number(index), &mut room));
            }
            Kind::String => scratch.bytes.extend_from_slice(bytes_at(index)),
            _ => {
                stack.set_top(0);
                return Err("Lua redis lib command arguments must be strings or integers");
            }
        }
        scratch.ranges.push(ArgRange::new(start, scratch.bytes.len() - start));
    }
    stack.set_top(0);
    Ok(())
}

fn redis_call(stack: Stack<'_>) -> Outcome {
    call_command(stack, true)
}

fn redis_pcall(stack: Stack<'_>) -> Outcome {
    call_command(stack, false)
}

fn call_command(stack: Stack<'_>, raises: bool) -> Outcome {
    // SAFETY: called once, and no Lua runs before this function returns.
    let Some(run) = (unsafe { running(stack) }) else {
        return Err(errors::raise(stack, "redis.call/pcall can only be called inside a script invocation"));
    };
    if run.stopped.is_some() {
        return Err(stop::stop(stack, Some(run)));
    }
    let scratch = &mut *run.scratch;
    if let Err(text) = take_args(stack, scratch) {
        errors::push(stack, text.as_bytes());
        return if raises { Err(crate::lua::Raise) } else { Ok(1) };
    }
    scratch.reply.clear();
    let args = Args::new(&scratch.bytes, &scratch.ranges);
    run.stopped = match run.caller.call(&args, run.version, &mut scratch.reply) {
        Called::Replied => None,
        Called::Abandoned => Some(Stopped::Abandoned),
        Called::Killed => Some(Stopped::Killed),
    };
    if run.stopped.is_some() {
        return Err(stop::stop(stack, Some(run)));
    }
    let is_whole = convert::push_whole_reply(stack, &scratch.reply);
    let is_error = scratch.reply.first() == Some(&b'-');
    scratch.shrink();
    if !is_whole {
        return Err(errors::raise(stack, "not enough memory"));
    }
    if is_error && raises { Err(crate::lua::Raise) } else { Ok(1) }
}

fn redis_acl_check_cmd(stack: Stack<'_>) -> Outcome {
    // SAFETY: called once, and no Lua runs before this function returns.
    let Some(run) = (unsafe { running(stack) }) else {
        return Err(errors::raise(stack, "redis.acl_check_cmd can only be called inside a script invocation"));
    };
    let scratch = &mut *run.scratch;
    if let Err(text) = take_args(stack, scratch) {
        return Err(errors::raise(stack, text));
    }
    match run.caller.may_run(&Args::new(&scratch.bytes, &scratch.ranges)) {
        Some(may) => stack.push_boolean(may),
        None => return Err(errors::raise(stack, "Invalid command passed to redis.acl_check_cmd()")),
    }
    Ok(1)
}

fn redis_log(stack: Stack<'_>) -> Outcome {
    let count = stack.top();
    if count < 2 {
        return Err(errors::raise(stack, "redis.log() requires two arguments or more."));
    }
    if !stack.is_numeric(1) {
        return Err(errors::raise(stack, "First argument must be a number (log level)."));
    }
    let level = stack.number(1).trunc();
    if !(0.0..=LEVEL_MAX).contains(&level) {
        return Err(errors::raise(stack, "Invalid debug level."));
    }
    let mut text = Vec::new();
    for index in 2..=count {
        // SAFETY: the arguments stay on the stack.
        if let Some(part) = unsafe { stack.bytes(index) } {
            if index != 2 {
                text.push(b' ');
            }
            let left = LOG_BYTES_MAX.saturating_sub(text.len());
            text.extend_from_slice(&part[..part.len().min(left)]);
        }
        if text.len() >= LOG_BYTES_MAX {
            break;
        }
    }
    // SAFETY: called once, and no Lua runs before this function returns.
    match unsafe { running(stack) } {
        Some(run) => run.caller.log(level as u8, &text),
        // While a library is being loaded, there is no caller.
        None => crate::run::log(level as u8, &text),
    }
    Ok(0)
}

fn redis_sha1hex(stack: Stack<'_>) -> Outcome {
    if stack.top() != 1 {
        return Err(errors::raise(stack, "wrong number of arguments"));
    }
    // As in Redis, a value that is not a string gets the SHA-1 of the empty string.
    let sha = sha_of(&stack.copied(1).unwrap_or_default());
    stack.push_bytes(&sha);
    Ok(1)
}

fn redis_error_reply(stack: Stack<'_>) -> Outcome {
    if stack.top() != 1 || stack.kind(1) != Kind::String {
        errors::push(stack, b"wrong number or type of arguments");
        return Ok(1);
    }
    let text = stack.copied(1).unwrap_or_default();
    let text = text.split(|&byte| byte == 0).next().unwrap_or_default();
    let text = if text.starts_with(b"-") { text.to_vec() } else { [b"-", text].concat() };
    errors::push(stack, &text);
    Ok(1)
}

fn redis_status_reply(stack: Stack<'_>) -> Outcome {
    if stack.top() != 1 || stack.kind(1) != Kind::String {
        errors::push(stack, b"wrong number or type of arguments");
        return Ok(1);
    }
    stack.new_table(0, 1);
    stack.push_copy(1);
    stack.set_raw_field(-2, "ok");
    Ok(1)
}

fn redis_setresp(stack: Stack<'_>) -> Outcome {
    // SAFETY: called once, and no Lua runs before this function returns.
    let Some(run) = (unsafe { running(stack) }) else {
        return Err(errors::raise(stack, "redis.setresp can only be called inside a script invocation"));
    };
    if stack.top() != 1 {
        return Err(errors::raise(stack, "redis.setresp() requires one argument."));
    }
    run.version = match stack.number(1).trunc() {
        2.0 => Version::Resp2,
        3.0 => Version::Resp3,
        _ => return Err(errors::raise(stack, "RESP version must be 2 or 3.")),
    };
    Ok(0)
}

fn redis_set_repl(stack: Stack<'_>) -> Outcome {
    if stack.memory().run.get().is_null() {
        return Err(errors::raise(stack, "redis.set_repl can only be called inside a script invocation"));
    }
    if stack.top() != 1 {
        return Err(errors::raise(stack, "redis.set_repl() requires two arguments."));
    }
    if !(0.0..=REPL_MAX).contains(&stack.number(1).trunc()) {
        let text = "Invalid replication flags. Use REPL_AOF, REPL_REPLICA, REPL_ALL or REPL_NONE.";
        return Err(errors::raise(stack, text));
    }
    Ok(0)
}

fn redis_replicate_commands(stack: Stack<'_>) -> Outcome {
    stack.push_boolean(true);
    Ok(1)
}

/// Returns false, because there is no debugger.
fn redis_breakpoint(stack: Stack<'_>) -> Outcome {
    stack.push_boolean(false);
    Ok(1)
}

fn redis_debug(_: Stack<'_>) -> Outcome {
    Ok(0)
}

fn math_random(stack: Stack<'_>) -> Outcome {
    // SAFETY: called once, and no Lua runs before this function returns.
    let Some(run) = (unsafe { running(stack) }) else {
        return Err(stack.error("math.random can only be called inside a script invocation"));
    };
    let unit = f64::from(run.random.draw() % DRAW_MAX) / f64::from(DRAW_MAX);
    let number = match stack.top() {
        0 => unit,
        1 => {
            let upper = c_integer(stack.check_number(1)?);
            if upper < 1 {
                return Err(stack.argument_error(1, "interval is empty"));
            }
            (unit * f64::from(upper)).floor() + 1.0
        }
        2 => {
            let (lower, upper) = (c_integer(stack.check_number(1)?), c_integer(stack.check_number(2)?));
            if lower > upper {
                return Err(stack.argument_error(2, "interval is empty"));
            }
            (unit * f64::from(upper.wrapping_sub(lower).wrapping_add(1))).floor() + f64::from(lower)
        }
        _ => return Err(stack.error("wrong number of arguments")),
    };
    stack.push_number(number);
    Ok(1)
}

fn math_randomseed(stack: Stack<'_>) -> Outcome {
    // SAFETY: called once, and no Lua runs before this function returns.
    let Some(run) = (unsafe { running(stack) }) else {
        return Err(stack.error("math.randomseed can only be called inside a script invocation"));
    };
    *run.random = Random::new(c_integer(stack.check_number(1)?));
    Ok(0)
}

/// Converts a number to C's `ptrdiff_t`, as Lua does on x86-64: numbers that are too large and NaN
/// become the minimum.
pub(crate) fn lua_integer(number: f64) -> i64 {
    /// 2^63, the smallest number that is too large.
    const TOO_LARGE: f64 = -(i64::MIN as f64);
    if number < TOO_LARGE { number as i64 } else { i64::MIN }
}

/// Converts a number to C's `int` through `ptrdiff_t`, as Lua does.
pub(crate) fn c_integer(number: f64) -> c_int {
    lua_integer(number) as c_int
}
