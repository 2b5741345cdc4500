//! The environment of scripts: Lua's harmless libraries and those of this crate, all read-only.
//!
//! Redis patches Lua so that tables can be read-only. In Pantala, a read-only table is an empty
//! table, called a *front*. The metatable of a front redirects reads to the real table and turns
//! writes into an error. Scripts never get the real table. Functions that bypass metatables
//! (`next`, `rawget`, `rawset`, `setmetatable`, `table.insert`, …) are wrapped. For a front, a
//! wrapper reads the real table, or rejects the change, as Redis's Lua does for a read-only table.
//!
//! The wrappers also protect against flaws of the original Lua 5.1 that Redis has patched:
//!
//! - bytecode and deep nesting in `load`;
//! - garbage collection while `load` compiles (CVE-2025-49844);
//! - the arithmetic of `unpack` (CVE-2025-46817);
//! - long patterns, on which Lua recurses on the native stack;
//! - metatables of strings (CVE-2025-46818);
//! - `newproxy`, and with it finalizers (CVE-2024-46981);
//! - `getfenv` and `setfenv`.
//!
//! `string.dump` remains, as in Redis, because no function accepts its output.

use std::ffi::{c_int, c_void};

use mlua_sys::lua51 as ffi;

use crate::lua::{Kind, Outcome, Raise, Stack, lua_State, lua_functions};
use crate::{api, stop};

/// Error for a change of a read-only table.
pub(crate) const READONLY: &str = "Attempt to modify a readonly table";

/// Global function that scripts use to convert errors to tables.
pub(crate) const ERROR_HANDLER: &str = "__redis__err__handler";

/// Maximum length of a pattern of `string.find` and similar functions, bytes. Lua's matcher
/// recurses for every item of a pattern.
const PATTERN_BYTES_MAX: usize = 2048;

/// Maximum length of code to compile, bytes. Lua's lexer counts in `int`.
pub(crate) const CODE_BYTES_MAX: usize = 512 * 1024 * 1024;

/// Maximum number of results of `unpack`. The stack of a C function in Lua holds 8000 values, and
/// the table is one of them.
const UNPACKED_MAX: i64 = 7_999;

/// The metatable of a front contains the real table, with the address of this static as its key.
static FRONT: u8 = 0;
/// The registry contains the result of `getmetatable("")`, with the address of this static as its
/// key.
static STRING_METATABLE: u8 = 0;

pub(crate) fn key(of: &'static u8) -> *mut c_void {
    std::ptr::from_ref(of).cast_mut().cast()
}

/// Lua's libraries for scripts.
const OPEN: [(&std::ffi::CStr, ffi::lua_CFunction); 4] = [
    (c"", ffi::luaopen_base),
    (c"table", ffi::luaopen_table),
    (c"string", ffi::luaopen_string),
    (c"math", ffi::luaopen_math),
];

/// Functions of Lua's libraries that scripts must not call.
const REMOVED: [&str; 6] = ["dofile", "loadfile", "print", "newproxy", "getfenv", "setfenv"];

/// The libraries that are tables in the globals.
const LIBRARIES: [&str; 4] = ["string", "table", "math", "coroutine"];

/// The name of a global that this crate adds, and the function that pushes its value.
pub(crate) type Own = (&'static str, fn(Stack<'_>));

/// Fills the globals of a new state. Leaves the real table of globals on top of the stack.
pub(crate) fn fill(stack: Stack<'_>, own: &[Own]) {
    for (name, open) in OPEN {
        stack.push_function(open);
        stack.push_bytes(name.to_bytes());
        // SAFETY: on a new state, Lua's libraries raise no errors, and allocations do not fail.
        unsafe { ffi::lua_call(stack.raw(), 1, 0) };
    }
    stack.push_copy(ffi::LUA_GLOBALSINDEX);
    let globals = stack.top();
    for name in REMOVED {
        stack.push_nil();
        stack.set_raw_field(globals, name);
    }
    for (name, push) in own {
        push(stack);
        stack.set_raw_field(globals, name);
    }
    replace_functions(stack, globals);
    crate::api::replace_random(stack);
    for name in LIBRARIES.iter().chain(own.iter().map(|(name, _)| name)) {
        stack.raw_field(globals, name);
        if stack.kind(-1) == Kind::Table {
            if *name == "string" {
                note_string_metatable(stack);
            }
            push_front(stack, -1);
            stack.set_raw_field(globals, name);
        }
        stack.pop(1);
    }
    reject_missing_fields(stack, globals);
    push_front(stack, globals);
    stack.push_copy(-1);
    stack.set_raw_field(globals, "_G");
    // Code that is compiled from now on uses the front as its globals.
    stack.replace(ffi::LUA_GLOBALSINDEX);
    crate::errors::prepare(stack);
}

/// Turns reads of missing fields of a table into errors.
pub(crate) fn reject_missing_fields(stack: Stack<'_>, table: c_int) {
    stack.new_table(0, 1);
    stack.push_function(nonexistent);
    stack.set_raw_field(-2, "__index");
    stack.set_metatable(table);
}

/// Pops the table on top of the stack, and redirects reads of the globals to that table.
pub(crate) fn redirect_globals_to_top(stack: Stack<'_>) {
    if stack.metatable(ffi::LUA_GLOBALSINDEX) {
        stack.insert(-2);
        stack.set_raw_field(-2, "__index");
    }
    stack.pop(1);
}

/// Replaces functions of Lua's libraries by functions of this crate.
fn replace_functions(stack: Stack<'_>, globals: c_int) {
    let plain: [(&str, ffi::lua_CFunction); 5] = [
        ("pcall", protected_call),
        ("load", load),
        ("loadstring", loadstring),
        ("unpack", unpack),
        (ERROR_HANDLER, crate::errors::handle),
    ];
    for (name, function) in plain {
        stack.push_function(function);
        stack.set_raw_field(globals, name);
    }
    // Each of these functions calls the function that it replaces.
    for (name, function) in [
        ("next", next as ffi::lua_CFunction),
        ("rawget", next),
        ("rawset", guarded),
        ("setmetatable", guarded),
        ("getmetatable", getmetatable),
        ("xpcall", handled_call),
    ] {
        wrap(stack, globals, name, function);
    }
    stack.raw_field(globals, "next");
    stack.push_closure(pairs, 1);
    stack.set_raw_field(globals, "pairs");
    stack.raw_field(globals, "table");
    for name in ["insert", "remove", "setn"] {
        wrap(stack, -1, name, guarded);
    }
    for name in ["foreach", "foreachi", "getn", "maxn"] {
        wrap(stack, -1, name, next);
    }
    stack.pop(1);
    stack.raw_field(globals, "coroutine");
    stack.raw_field(-1, "create");
    stack.raw_field(-2, "resume");
    stack.push_closure(wrap_coroutine, 2);
    stack.set_raw_field(-2, "wrap");
    wrap(stack, -1, "resume", resume);
    stack.pop(1);
    stack.raw_field(globals, "string");
    for name in ["find", "match", "gmatch", "gfind", "gsub"] {
        wrap(stack, -1, name, with_pattern);
    }
    wrap(stack, -1, "rep", rep);
    stack.pop(1);
}

/// Replaces a function of a table by `function`, whose first upvalue is then the original.
fn wrap(stack: Stack<'_>, table: c_int, name: &str, function: ffi::lua_CFunction) {
    let table = if table < 0 { stack.top() + 1 + table } else { table };
    stack.raw_field(table, name);
    stack.push_closure(function, 1);
    stack.set_raw_field(table, name);
}

/// Stores the result of `getmetatable("")`: a front of a table that, like the real metatable of
/// strings, has the field `__index`.
fn note_string_metatable(stack: Stack<'_>) {
    stack.push_light_userdata(key(&STRING_METATABLE));
    stack.new_table(0, 1);
    push_front(stack, -3);
    stack.set_raw_field(-2, "__index");
    push_front(stack, -1);
    stack.remove(-2);
    stack.raw_set(ffi::LUA_REGISTRYINDEX);
}

/// Pushes a front of the table at `index`.
pub(crate) fn push_front(stack: Stack<'_>, index: c_int) {
    let index = if index < 0 { stack.top() + 1 + index } else { index };
    stack.new_table(0, 0);
    stack.new_table(0, 3);
    stack.push_copy(index);
    stack.set_raw_field(-2, "__index");
    stack.push_function(readonly);
    stack.set_raw_field(-2, "__newindex");
    stack.push_light_userdata(key(&FRONT));
    stack.push_copy(index);
    stack.raw_set(-3);
    stack.set_metatable(-2);
}

/// Returns whether a value is a front. If so, pushes the real table.
fn push_real_table(stack: Stack<'_>, index: c_int) -> bool {
    if stack.kind(index) != Kind::Table || !stack.metatable(index) {
        return false;
    }
    stack.push_light_userdata(key(&FRONT));
    stack.raw_get(-2);
    stack.remove(-2);
    let is_front = stack.kind(-1) == Kind::Table;
    if !is_front {
        stack.pop(1);
    }
    is_front
}

lua_functions! {
    readonly => reject_change;
    nonexistent => reject_missing_global;
    load => compile_pieces;
    loadstring => compile_string;
    getmetatable => show_metatable;
}

fn reject_change(stack: Stack<'_>) -> Outcome {
    Err(stack.error(READONLY))
}

/// Raises the error for a missing global.
fn reject_missing_global(stack: Stack<'_>) -> Outcome {
    if stack.top() != 2 {
        return Err(stack.error("Wrong number of arguments to luaProtectedTableError"));
    }
    match stack.copied(2) {
        Some(name) => {
            let name = name.split(|&byte| byte == 0).next().unwrap_or_default();
            let text = [b"Script attempted to access nonexistent global variable '", name, b"'"].concat();
            Err(stack.error_bytes(&text))
        }
        None => Err(stack.error("Second argument to luaProtectedTableError must be a string or number")),
    }
}

/// `getmetatable(value)`.
fn show_metatable(stack: Stack<'_>) -> Outcome {
    if stack.top() == 0 {
        return Err(stack.argument_error(1, "value expected"));
    }
    if stack.kind(1) == Kind::String {
        stack.push_light_userdata(key(&STRING_METATABLE));
        stack.raw_get(ffi::LUA_REGISTRYINDEX);
        return Ok(1);
    }
    if push_real_table(stack, 1) {
        if stack.metatable(-1) {
            push_front(stack, -1);
        } else {
            stack.push_nil();
        }
        return Ok(1);
    }
    if !stack.metatable(1) {
        stack.push_nil();
        return Ok(1);
    }
    stack.raw_field(-1, "__metatable");
    if stack.kind(-1) == Kind::Nil {
        stack.pop(1);
    }
    Ok(1)
}

/// `loadstring(code [, name])`.
fn compile_string(stack: Stack<'_>) -> Outcome {
    // SAFETY: the arguments stay on the stack while they are compiled. Results are pushed above
    // them.
    let (code, name) = unsafe {
        let code = stack.check_bytes(1)?;
        (code, if matches!(stack.kind(2), Kind::None | Kind::Nil) { code } else { stack.check_bytes(2)? })
    };
    Ok(compile_or_error(stack, code, name))
}

fn compile_or_error(stack: Stack<'_>, code: &[u8], name: &[u8]) -> c_int {
    match compile(stack, code, name) {
        Ok(()) => 1,
        Err(Raise) => {
            stack.push_nil();
            stack.insert(-2);
            2
        }
    }
}

/// Compiles code. Pushes its function, or the error.
pub(crate) fn compile(stack: Stack<'_>, code: &[u8], name: &[u8]) -> Result<(), Raise> {
    if code.len() > CODE_BYTES_MAX {
        stack.push_bytes(b"chunk is too long");
        return Err(Raise);
    }
    // Lua expects a C string as the name.
    let mut name = name.split(|&byte| byte == 0).next().unwrap_or_default().to_vec();
    name.push(0);
    if code.first() == Some(&ffi::LUA_SIGNATURE[0]) {
        stack.push_bytes(b"attempt to load a chunk of bytecode");
        return Err(Raise);
    }
    let memory = stack.memory();
    // SAFETY: as for `Stack`. Lua protects the compilation itself, and no Rust frame lies in
    // between, so allocations may fail. The garbage collector is stopped, because for a moment
    // nothing that the collector knows refers to the chunk's name.
    let status = unsafe {
        ffi::lua_gc(stack.raw(), ffi::LUA_GCSTOP, 0);
        memory.resume();
        let status = ffi::luaL_loadbuffer(stack.raw(), code.as_ptr().cast(), code.len(), name.as_ptr().cast());
        memory.suspend();
        ffi::lua_gc(stack.raw(), ffi::LUA_GCRESTART, 0);
        status
    };
    if status == ffi::LUA_OK { Ok(()) } else { Err(Raise) }
}

/// `load(function [, name])`: calls the function, which returns one piece of code per call, until
/// it returns no more code. Then compiles all pieces together.
fn compile_pieces(stack: Stack<'_>) -> Outcome {
    if stack.kind(1) != Kind::Function {
        return Err(stack.type_error(1, "function"));
    }
    let name = match stack.kind(2) {
        Kind::None | Kind::Nil => b"=(load)",
        // SAFETY: the arguments stay on the stack. Results of the function are pushed above them.
        _ => unsafe { stack.check_bytes(2)? },
    };
    let mut code = Vec::new();
    loop {
        stack.push_copy(1);
        let memory = stack.memory();
        // SAFETY: a protected call catches all errors, so allocations may fail.
        let status = unsafe {
            memory.resume();
            let status = ffi::lua_pcall(stack.raw(), 0, 1, 0);
            memory.suspend();
            status
        };
        if memory.is_stopped.get() {
            // SAFETY: no other reference to the run is used in this function.
            let run = unsafe { api::running(stack) };
            return Err(stop::stop(stack, run));
        }
        if status != ffi::LUA_OK {
            stack.push_nil();
            stack.insert(-2);
            return Ok(2);
        }
        match stack.kind(-1) {
            Kind::Nil => break,
            Kind::String | Kind::Number => {
                // SAFETY: the piece stays on top until it is copied.
                let piece = unsafe { stack.bytes(-1) }.unwrap_or_default();
                if piece.is_empty() {
                    break;
                }
                if memory.would_exceed(code.len() + piece.len()) || code.len() + piece.len() > CODE_BYTES_MAX {
                    stack.push_nil();
                    stack.push_bytes(b"not enough memory");
                    return Ok(2);
                }
                code.extend_from_slice(piece);
            }
            _ => {
                stack.push_nil();
                stack.push_bytes(b"reader function must return a string");
                return Ok(2);
            }
        }
        stack.pop(1);
    }
    Ok(compile_or_error(stack, &code, name))
}

// The functions below call functions of Lua, which may raise. Their frames must not hold anything
// with a destructor.

/// Calls the function that the current one replaces, with the same arguments.
///
/// # Safety
/// Lua must have called the current function, and its first upvalue must be a C function without
/// upvalues.
unsafe fn original(state: *mut lua_State) -> c_int {
    // SAFETY: by the caller's promise.
    unsafe {
        match ffi::lua_tocfunction(state, ffi::lua_upvalueindex(1)) {
            Some(function) => function(state),
            None => 0,
        }
    }
}

/// Returns whether the first argument is a front. If so, and if `behind` is set, replaces the front
/// by the real table.
///
/// # Safety
/// Lua must have called the current function.
unsafe fn first_is_front(state: *mut lua_State, behind: bool) -> bool {
    // SAFETY: these stack operations raise only memory errors, and no frame of this function has a
    // destructor. So the limit need not be suspended.
    let stack = unsafe { Stack::new(state) };
    let is_front = push_real_table(stack, 1);
    if is_front {
        if behind { stack.replace(1) } else { stack.pop(1) }
    }
    is_front
}

/// Wraps `next`, `rawget` and other functions that only read. Replaces a front by the real table.
unsafe extern "C-unwind" fn next(state: *mut lua_State) -> c_int {
    // SAFETY: called by Lua.
    unsafe {
        first_is_front(state, true);
        original(state)
    }
}

/// Wraps `rawset`, `setmetatable`, `table.insert` and other functions that change their first
/// argument. Rejects a front.
unsafe extern "C-unwind" fn guarded(state: *mut lua_State) -> c_int {
    // SAFETY: called by Lua.
    unsafe {
        if first_is_front(state, false) {
            ffi::lua_pushlstring_(state, READONLY.as_ptr().cast(), READONLY.len());
            ffi::lua_error(state);
        }
        original(state)
    }
}

/// Wraps `string.find` and similar functions. Rejects long patterns.
unsafe extern "C-unwind" fn with_pattern(state: *mut lua_State) -> c_int {
    // SAFETY: called by Lua.
    unsafe {
        if ffi::lua_type(state, 2) == ffi::LUA_TSTRING && ffi::lua_objlen(state, 2) > PATTERN_BYTES_MAX {
            return ffi::luaL_error(state, c"pattern too complex".as_ptr());
        }
        original(state)
    }
}

/// `string.rep(text, count)`: if no state could hold the result, fails immediately instead of after
/// seconds of copying.
unsafe extern "C-unwind" fn rep(state: *mut lua_State) -> c_int {
    const REFUSED: &str = "not enough memory";
    // SAFETY: called by Lua.
    unsafe {
        if ffi::lua_type(state, 1) == ffi::LUA_TSTRING && ffi::lua_isnumber(state, 2) != 0 {
            let count = crate::api::c_integer(ffi::lua_tonumber(state, 2));
            let count = usize::try_from(count).unwrap_or_default();
            if ffi::lua_objlen(state, 1).saturating_mul(count) > crate::STATE_BYTES_MAX {
                ffi::lua_pushlstring_(state, REFUSED.as_ptr().cast(), REFUSED.len());
                ffi::lua_error(state);
            }
        }
        original(state)
    }
}

/// `pairs(table)`.
unsafe extern "C-unwind" fn pairs(state: *mut lua_State) -> c_int {
    // SAFETY: called by Lua; upvalue 1 is `next`.
    unsafe {
        ffi::luaL_checktype(state, 1, ffi::LUA_TTABLE);
        ffi::lua_pushvalue(state, ffi::lua_upvalueindex(1));
        ffi::lua_pushvalue(state, 1);
        ffi::lua_pushnil(state);
        3
    }
}

/// `pcall(function, …)`: if the error is a table of `redis.call`, returns its text instead of the
/// table, for compatibility with older scripts.
unsafe extern "C-unwind" fn protected_call(state: *mut lua_State) -> c_int {
    // SAFETY: called by Lua.
    unsafe {
        if ffi::lua_gettop(state) == 0 {
            ffi::lua_pushboolean(state, 0);
            return 1;
        }
        ffi::lua_pushboolean(state, 1);
        ffi::lua_insert(state, 1);
        if ffi::lua_pcall(state, ffi::lua_gettop(state) - 2, ffi::LUA_MULTRET, 0) != ffi::LUA_OK {
            stop::raise_again(state);
            ffi::lua_remove(state, 1);
            if ffi::lua_type(state, -1) == ffi::LUA_TTABLE {
                // As in Redis, metamethods apply, and a value that is no text is a further result.
                ffi::lua_getfield(state, -1, c"err".as_ptr());
                if ffi::lua_isstring(state, -1) != 0 {
                    ffi::lua_replace(state, -2);
                }
            }
            ffi::lua_pushboolean(state, 0);
            ffi::lua_insert(state, 1);
        }
        ffi::lua_gettop(state)
    }
}

/// `xpcall(function, handler)`.
unsafe extern "C-unwind" fn handled_call(state: *mut lua_State) -> c_int {
    // SAFETY: called by Lua.
    unsafe {
        let results = original(state);
        stop::raise_again(state);
        results
    }
}

/// `coroutine.resume(coroutine, …)`.
unsafe extern "C-unwind" fn resume(state: *mut lua_State) -> c_int {
    // SAFETY: called by Lua.
    unsafe {
        stop::check_periodically(state);
        let results = original(state);
        stop::raise_again(state);
        results
    }
}

/// `coroutine.wrap(function)`. The upvalues are Lua's `create` and `resume`.
unsafe extern "C-unwind" fn wrap_coroutine(state: *mut lua_State) -> c_int {
    // SAFETY: called by Lua; `create` leaves the coroutine on top.
    unsafe {
        original(state);
        ffi::lua_pushvalue(state, ffi::lua_upvalueindex(2));
        ffi::lua_insert(state, -2);
        ffi::lua_pushcclosure(state, wrapped, 2);
        1
    }
}

/// The function that `coroutine.wrap` returns: resumes the coroutine and raises its errors. The
/// upvalues are Lua's `resume` and the coroutine.
unsafe extern "C-unwind" fn wrapped(state: *mut lua_State) -> c_int {
    // SAFETY: called by Lua. `resume` takes the coroutine before its arguments, and returns a
    // success flag before its results.
    unsafe {
        ffi::lua_pushvalue(state, ffi::lua_upvalueindex(2));
        ffi::lua_insert(state, 1);
        let results = resume(state);
        if ffi::lua_toboolean(state, -results) != 0 {
            return results - 1;
        }
        if ffi::lua_isstring(state, -1) != 0 {
            ffi::luaL_where(state, 1);
            ffi::lua_insert(state, -2);
            ffi::lua_concat(state, 2);
        }
        ffi::lua_error(state)
    }
}

/// `unpack(table [, first [, last]])`.
unsafe extern "C-unwind" fn unpack(state: *mut lua_State) -> c_int {
    // SAFETY: called by Lua.
    unsafe {
        ffi::luaL_checktype(state, 1, ffi::LUA_TTABLE);
        let first = i64::from(ffi::luaL_optinteger(state, 2, 1) as c_int);
        let last = if ffi::lua_type(state, 3) <= ffi::LUA_TNIL {
            ffi::lua_objlen(state, 1) as i64
        } else {
            i64::from(ffi::luaL_checkinteger(state, 3) as c_int)
        };
        let count = last - first + 1;
        if count <= 0 {
            return 0;
        }
        if count > UNPACKED_MAX || ffi::lua_checkstack(state, count as c_int) == 0 {
            return ffi::luaL_error(state, c"too many results to unpack".as_ptr());
        }
        for index in first..=last {
            ffi::lua_rawgeti_(state, 1, index as c_int);
        }
        count as c_int
    }
}
