//! Loads function libraries: runs the code of a library once in a Lua state. The code registers its
//! functions by calling `redis.register_function`.
//!
//! While the code runs, its globals contain only a reduced table `redis`. The code cannot call
//! commands, draw random numbers or read the time. It therefore registers the same functions on
//! every worker that loads the library.

use std::ffi::c_int;
use std::time::{Duration, Instant};

use mlua_sys::lua51 as ffi;

use crate::library::{Function, IN_LIBRARY, WRONG_NAME, is_name};
use crate::lua::{Kind, Outcome, Stack, lua_functions};
use crate::shebang::Flags;
use crate::{api, errors, sandbox, stop};

/// The functions that a library has registered while it is being loaded.
pub(crate) struct Load {
    began: Instant,
    time_max: Duration,
    /// Registered functions, each with its reference in Lua's registry.
    registered: Vec<(Function, c_int)>,
}

impl Load {
    pub(crate) fn new(time_max: Duration) -> Self {
        Load { began: Instant::now(), time_max, registered: Vec::new() }
    }
}

lua_functions! {
    register_function => redis_register_function;
}

/// Pushes the globals of a library that is being loaded.
pub(crate) fn push_globals(stack: Stack<'_>) {
    stack.new_table(0, 1);
    let globals = stack.top();
    stack.new_table(0, 8);
    api::push_log_and_version(stack);
    stack.push_function(register_function);
    stack.set_raw_field(-2, "register_function");
    sandbox::reject_missing_fields(stack, stack.top());
    sandbox::push_front(stack, -1);
    stack.set_raw_field(globals, "redis");
    stack.pop(1);
    sandbox::reject_missing_fields(stack, globals);
}

/// Runs and pops the compiled library on top of the stack. Returns the registered functions.
///
/// # Errors
/// The error text. No function stays registered.
pub(crate) fn run(stack: Stack<'_>, mut load: Load) -> Result<Vec<(Function, c_int)>, Vec<u8>> {
    stack.push_function(errors::handle_last);
    stack.insert(-2);
    let memory = stack.memory();
    memory.load.set(std::ptr::from_mut(&mut load));
    // SAFETY: a protected call. No Rust frame lies between this call and the code that may raise.
    // Lua's hook and `redis.register_function` use `load`, which lives until the pointer is cleared
    // below.
    let status = unsafe {
        ffi::lua_gc(stack.raw(), ffi::LUA_GCRESTART, 0);
        stop::watch(stack.raw());
        memory.resume();
        let status = ffi::lua_pcall(stack.raw(), 0, 0, -2);
        memory.suspend();
        stop::unwatch(stack.raw());
        status
    };
    memory.load.set(std::ptr::null_mut());
    let is_stopped = memory.is_stopped.get();
    if status == ffi::LUA_OK && !is_stopped {
        return Ok(load.registered);
    }
    for (_, reference) in load.registered {
        release(stack, reference);
    }
    if is_stopped {
        return Err(b"ERR FUNCTION LOAD timeout".to_vec());
    }
    Err(match stack.kind(-1) {
        Kind::Table => errors::read(stack, stack.top()).text,
        _ => [b"ERR ", &*stack.copied(-1).unwrap_or_else(|| b"execution failure".to_vec())].concat(),
    })
}

/// Removes a function from the registry.
pub(crate) fn release(stack: Stack<'_>, reference: c_int) {
    // SAFETY: the conditions are those of `Stack`'s methods; `luaL_ref` has made the reference.
    unsafe { ffi::luaL_unref(stack.raw(), ffi::LUA_REGISTRYINDEX, reference) };
}

/// Returns the library that is being loaded.
///
/// # Safety
/// No reference that an earlier call has returned may be in use. So a function that Lua calls may
/// call `loading` only once, and must not call Lua while it uses the returned reference.
unsafe fn loading(stack: Stack<'_>) -> Option<&mut Load> {
    // SAFETY: the pointer is valid or null: `run` stores it before it calls Lua, clears it
    // afterwards, and keeps the `Load` until then. By the caller's promise there is no other
    // reference to the `Load`.
    unsafe { stack.memory().load.get().as_mut() }
}

/// Returns whether a library is being loaded and has exceeded its time limit.
pub(crate) fn is_late(stack: Stack<'_>) -> bool {
    // SAFETY: only the hook calls this function. Lua calls the hook between instructions of the
    // library's code, when no function of this crate that Lua has called is running.
    unsafe { loading(stack) }.is_some_and(|load| load.began.elapsed() > load.time_max)
}

/// The arguments of `redis.register_function`.
#[derive(Default)]
struct Registration {
    name: Option<Vec<u8>>,
    description: Option<Vec<u8>>,
    flags: Flags,
    /// Stack index of the function.
    callback: Option<c_int>,
}

fn redis_register_function(stack: Stack<'_>) -> Outcome {
    // SAFETY: called once, and no Lua runs before this function returns.
    let Some(load) = (unsafe { loading(stack) }) else {
        return Err(errors::raise(stack, "redis.register_function can only be called on FUNCTION LOAD command"));
    };
    let asked = match stack.top() {
        1 => named_arguments(stack),
        2 => two_arguments(stack),
        _ => Err("wrong number of arguments to redis.register_function"),
    };
    let checked = asked.and_then(|asked| {
        let (Some(name), Some(callback)) = (asked.name, asked.callback) else { return Err(IN_LIBRARY) };
        // On registration, Redis distinguishes the names "f" and "F". On calls, Redis doesn't
        // distinguish them, and crashes if a library has both. Pantala treats them as the same
        // name.
        let is_same = |known: &(Function, c_int)| known.0.name.eq_ignore_ascii_case(&name);
        match () {
            () if !is_name(&name) => Err(WRONG_NAME),
            () if load.registered.iter().any(is_same) => Err(IN_LIBRARY),
            () => Ok((Function::new(&name, asked.description.as_deref(), asked.flags), callback)),
        }
    });
    match checked {
        Ok((function, callback)) => {
            stack.push_copy(callback);
            // SAFETY: as for `Stack`; the function is on top.
            let reference = unsafe { ffi::luaL_ref(stack.raw(), ffi::LUA_REGISTRYINDEX) };
            load.registered.push((function, reference));
            Ok(0)
        }
        Err(text) => Err(errors::raise(stack, text)),
    }
}

/// Returns the bytes of a string or a number.
fn text_at(stack: Stack<'_>, index: c_int) -> Option<Vec<u8>> {
    // Read a copy, because reading a number converts the number to a string in place.
    stack.push_copy(index);
    let text = stack.copied(-1);
    stack.pop(1);
    text
}

/// Reads the arguments of `redis.register_function(name, callback)`.
fn two_arguments(stack: Stack<'_>) -> Result<Registration, &'static str> {
    let name = text_at(stack, 1).ok_or("first argument to redis.register_function must be a string")?;
    if stack.kind(2) != Kind::Function {
        return Err("second argument to redis.register_function must be a function");
    }
    Ok(Registration { name: Some(name), callback: Some(2), ..Registration::default() })
}

/// Reads the arguments of `redis.register_function{function_name = …, callback = …, description =
/// …, flags = …}`.
fn named_arguments(stack: Stack<'_>) -> Result<Registration, &'static str> {
    if stack.kind(1) != Kind::Table {
        return Err(
            "calling redis.register_function with a single argument is only applicable to Lua table (representing named arguments).",
        );
    }
    let mut asked = Registration::default();
    // The first nil reserves a stack slot for the callback. The second starts the iteration.
    stack.push_nil();
    stack.push_nil();
    while stack.next(1) {
        let key = match stack.kind(-2) {
            Kind::String | Kind::Number => text_at(stack, -2).unwrap_or_default(),
            _ => return Err("named argument key given to redis.register_function is not a string"),
        };
        let is = |name: &str| key.eq_ignore_ascii_case(name.as_bytes());
        if is("function_name") {
            let why = "function_name argument given to redis.register_function must be a string";
            asked.name = Some(text_at(stack, -1).ok_or(why)?);
        } else if is("description") {
            let why = "description argument given to redis.register_function must be a string";
            asked.description = Some(text_at(stack, -1).ok_or(why)?);
        } else if is("callback") {
            if stack.kind(-1) != Kind::Function {
                return Err("callback argument given to redis.register_function must be a function");
            }
            stack.push_copy(-1);
            stack.replace(2);
            asked.callback = Some(2);
        } else if is("flags") {
            if stack.kind(-1) != Kind::Table {
                return Err("flags argument to redis.register_function must be a table representing function flags");
            }
            asked.flags = flags_at(stack).ok_or("unknown flag given")?;
        } else {
            return Err("unknown argument given to redis.register_function");
        }
        stack.pop(1);
    }
    match &asked {
        Registration { name: None, .. } => Err("redis.register_function must get a function name argument"),
        Registration { callback: None, .. } => Err("redis.register_function must get a callback argument"),
        _ => Ok(asked),
    }
}

/// Returns the flags whose names are in the table on top of the stack.
fn flags_at(stack: Stack<'_>) -> Option<Flags> {
    let (table, mut flags) = (stack.top(), Flags::empty());
    for index in 1.. {
        stack.raw_element(table, index);
        let name = stack.copied(-1).map(|name| name.to_ascii_lowercase());
        let is_end = stack.kind(-1) == Kind::Nil;
        stack.pop(1);
        if is_end {
            break;
        }
        flags |= Flags::by_name(&name?)?;
    }
    Some(flags)
}
