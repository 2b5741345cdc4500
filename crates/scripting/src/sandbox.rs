//! What a script may reach: Lua's harmless libraries and our own, none of which it can change.
//!
//! Redis changes Lua itself, so that a table can be marked read-only. Here such a table is an empty one (a *front*), whose metatable
//! leads reading to the real table, and writing to an error. A script never gets hold of the real table: what would pass a metatable by (`next`, `rawget`,
//! `rawset`, `setmetatable`, `table.insert`, …) knows fronts and does as Redis does.
//!
//! What stock Lua 5.1 has and Redis has mended is kept out in front of it: bytecode and endless nesting in `load`, which also runs without a garbage
//! collection in between (CVE-2025-49844), `unpack` with its own arithmetic (CVE-2025-46817), long patterns, which Lua would follow down the thread's stack, metatables
//! of strings (CVE-2025-46818), `newproxy` and with it finalizers (CVE-2024-46981), `getfenv`, `setfenv`. (`string.dump` stays, as in Redis: nothing takes what it gives.)

use std::ffi::{c_int, c_void};

use mlua_sys::lua51 as ffi;

use crate::lua::{Kind, Outcome, Raise, Stack, lua_State, lua_functions};
use crate::stop;

/// What is raised by changing a table that is shared.
pub(crate) const READONLY: &str = "Attempt to modify a readonly table";

/// The name by which scripts find what makes an error a table.
pub(crate) const ERROR_HANDLER: &str = "__redis__err__handler";

/// Longest pattern of `string.find` and its like, bytes: Lua's matcher calls itself once for each of its items.
const PATTERN_BYTES_MAX: usize = 2048;

/// Longest piece of code that is compiled, bytes: Lua's scanner counts in `int`.
pub(crate) const CODE_BYTES_MAX: usize = 512 * 1024 * 1024;

/// Most results of `unpack`: what a C stack of Lua may hold.
const UNPACKED_MAX: i64 = 7_999;

/// Its address is the key under which a front's metatable has the real table.
static FRONT: u8 = 0;
/// Its address is the key under which the registry has what `getmetatable("")` answers.
static STRING_METATABLE: u8 = 0;

fn key(of: &'static u8) -> *mut c_void {
    std::ptr::from_ref(of).cast_mut().cast()
}

/// Libraries of Lua that scripts have.
const OPEN: [(&std::ffi::CStr, ffi::lua_CFunction); 4] = [
    (c"", ffi::luaopen_base),
    (c"table", ffi::luaopen_table),
    (c"string", ffi::luaopen_string),
    (c"math", ffi::luaopen_math),
];

/// What Lua's libraries define and scripts don't have.
const REMOVED: [&str; 6] = ["dofile", "loadfile", "print", "newproxy", "getfenv", "setfenv"];

/// The libraries, as tables of globals.
const LIBRARIES: [&str; 4] = ["string", "table", "math", "coroutine"];

/// A global of ours, and what pushes it.
pub(crate) type Own = (&'static str, fn(Stack));

/// Fills the globals of a new state. Leaves the real table of globals on the stack.
pub(crate) fn fill(stack: Stack, own: &[Own]) {
    for (name, open) in OPEN {
        stack.push_function(open);
        stack.push_bytes(name.to_bytes());
        // SAFETY: Lua's own libraries raise nothing on a new state, whose memory isn't refused.
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
    refuse_others(stack, globals);
    push_front(stack, globals);
    stack.push_copy(-1);
    stack.set_raw_field(globals, "_G");
    // What is compiled from here on has the front for its globals.
    stack.replace(ffi::LUA_GLOBALSINDEX);
}

/// Makes it an error to ask a table for what it hasn't.
pub(crate) fn refuse_others(stack: Stack, table: c_int) {
    stack.new_table(0, 1);
    stack.push_function(nonexistent);
    stack.set_raw_field(-2, "__index");
    stack.set_metatable(table);
}

/// Has reading of the globals lead to the table on top, which is taken off.
pub(crate) fn lead_globals_to_top(stack: Stack) {
    if stack.metatable(ffi::LUA_GLOBALSINDEX) {
        stack.insert(-2);
        stack.set_raw_field(-2, "__index");
    }
    stack.pop(1);
}

/// Puts ours in place of Lua's.
fn replace_functions(stack: Stack, globals: c_int) {
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
    // These know what they stand for.
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

/// Replaces a function of a table by one of ours that has it as its first upvalue.
fn wrap(stack: Stack, table: c_int, name: &str, function: ffi::lua_CFunction) {
    let table = if table < 0 { stack.top() + 1 + table } else { table };
    stack.raw_field(table, name);
    stack.push_closure(function, 1);
    stack.set_raw_field(table, name);
}

/// What `getmetatable("")` answers: a front of the real metatable's like.
fn note_string_metatable(stack: Stack) {
    stack.push_light_userdata(key(&STRING_METATABLE));
    stack.new_table(0, 1);
    push_front(stack, -3);
    stack.set_raw_field(-2, "__index");
    push_front(stack, -1);
    stack.remove(-2);
    stack.raw_set(ffi::LUA_REGISTRYINDEX);
}

/// Pushes a front of the table at `index`.
pub(crate) fn push_front(stack: Stack, index: c_int) {
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

/// Whether a value is a front; then the real table is pushed.
fn push_behind(stack: Stack, index: c_int) -> bool {
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
    readonly => refuse_change;
    nonexistent => refuse_name;
    load => compile_pieces;
    loadstring => compile_string;
    getmetatable => show_metatable;
}

fn refuse_change(stack: Stack) -> Outcome {
    Err(stack.error(READONLY))
}

/// A global that isn't there.
fn refuse_name(stack: Stack) -> Outcome {
    if stack.top() != 2 {
        return Err(stack.error("Wrong number of arguments to luaProtectedTableError"));
    }
    match stack.bytes(2) {
        Some(name) => {
            let name = name.split(|&byte| byte == 0).next().unwrap_or_default();
            let text = [b"Script attempted to access nonexistent global variable '", name, b"'"].concat();
            Err(stack.error_bytes(&text))
        }
        None => Err(stack.error("Second argument to luaProtectedTableError must be a string or number")),
    }
}

/// `getmetatable(value)`.
fn show_metatable(stack: Stack) -> Outcome {
    if stack.top() == 0 {
        return Err(stack.argument_error(1, "value expected"));
    }
    if stack.kind(1) == Kind::String {
        stack.push_light_userdata(key(&STRING_METATABLE));
        stack.raw_get(ffi::LUA_REGISTRYINDEX);
        return Ok(1);
    }
    if push_behind(stack, 1) {
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
fn compile_string(stack: Stack) -> Outcome {
    let code = stack.check_bytes(1)?;
    let name = match stack.kind(2) {
        Kind::None | Kind::Nil => code,
        _ => stack.check_bytes(2)?,
    };
    Ok(compile_or_tell(stack, code, name))
}

fn compile_or_tell(stack: Stack, code: &[u8], name: &[u8]) -> c_int {
    match compile(stack, code, name) {
        Ok(()) => 1,
        Err(Raise) => {
            stack.push_nil();
            stack.insert(-2);
            2
        }
    }
}

/// Compiles code and pushes its function, or the error.
pub(crate) fn compile(stack: Stack, code: &[u8], name: &[u8]) -> Result<(), Raise> {
    if code.len() > CODE_BYTES_MAX {
        stack.push_bytes(b"chunk is too long");
        return Err(Raise);
    }
    // Names are C strings.
    let mut name = name.split(|&byte| byte == 0).next().unwrap_or_default().to_vec();
    name.push(0);
    if code.first() == Some(&ffi::LUA_SIGNATURE[0]) {
        stack.push_bytes(b"attempt to load a chunk of bytecode");
        return Err(Raise);
    }
    let memory = stack.memory();
    // SAFETY: as for `Stack`. Compiling is protected by Lua itself, so memory may be refused: nothing of ours lies between. The collector stands still, since the compiler
    // leaves the chunk's name to it for a moment.
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

/// `load(function [, name])`: calls the function for pieces until it gives none, then compiles them all.
fn compile_pieces(stack: Stack) -> Outcome {
    if stack.kind(1) != Kind::Function {
        return Err(stack.type_error(1, "function"));
    }
    let name = match stack.kind(2) {
        Kind::None | Kind::Nil => b"=(load)",
        _ => stack.check_bytes(2)?,
    };
    let mut code = Vec::new();
    loop {
        stack.push_copy(1);
        let memory = stack.memory();
        // SAFETY: a protected call: what it raises stays there, so memory may be refused.
        let status = unsafe {
            memory.resume();
            let status = ffi::lua_pcall(stack.raw(), 0, 1, 0);
            memory.suspend();
            status
        };
        if memory.is_stopped.get() {
            return Err(stop::stop(stack));
        }
        if status != ffi::LUA_OK {
            stack.push_nil();
            stack.insert(-2);
            return Ok(2);
        }
        match stack.kind(-1) {
            Kind::Nil => break,
            Kind::String | Kind::Number => {
                let piece = stack.bytes(-1).unwrap_or_default();
                if piece.is_empty() {
                    break;
                }
                if memory.would_refuse(code.len() + piece.len()) || code.len() + piece.len() > CODE_BYTES_MAX {
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
    Ok(compile_or_tell(stack, &code, name))
}

// The functions below call Lua's own, which may raise: their frames hold nothing that needs dropping.

/// Calls the function that the running one stands for, on its arguments.
///
/// # Safety
/// Called by Lua as a function whose first upvalue is a C function that uses no upvalues.
unsafe fn original(state: *mut lua_State) -> c_int {
    // SAFETY: by the caller's promise.
    unsafe {
        match ffi::lua_tocfunction(state, ffi::lua_upvalueindex(1)) {
            Some(function) => function(state),
            None => 0,
        }
    }
}

/// Whether the first argument is a front, whose real table then takes its place if `behind`.
///
/// # Safety
/// Called by Lua.
unsafe fn first_is_front(state: *mut lua_State, behind: bool) -> bool {
    // SAFETY: what is used of the stack here raises nothing but an error of memory, for which no frame here holds anything; so suspension isn't needed.
    let stack = unsafe { Stack::new(state) };
    let is_front = push_behind(stack, 1);
    if is_front {
        if behind { stack.replace(1) } else { stack.pop(1) }
    }
    is_front
}

/// `next`, `rawget` and what else only reads: of a front, it reads what is behind.
unsafe extern "C-unwind" fn next(state: *mut lua_State) -> c_int {
    // SAFETY: called by Lua.
    unsafe {
        first_is_front(state, true);
        original(state)
    }
}

/// `rawset`, `setmetatable`, `table.insert` and what else changes its first argument.
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

/// `string.find` and its like.
unsafe extern "C-unwind" fn with_pattern(state: *mut lua_State) -> c_int {
    // SAFETY: called by Lua.
    unsafe {
        if ffi::lua_type(state, 2) == ffi::LUA_TSTRING && ffi::lua_objlen(state, 2) > PATTERN_BYTES_MAX {
            return ffi::luaL_error(state, c"pattern too complex".as_ptr());
        }
        original(state)
    }
}

/// `string.rep(text, count)`: what no state can hold is refused at once, not after seconds of copying.
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

/// `pcall(function, …)`: of an error of `redis.call`, which is a table, the caller gets the text, as it was before there were such tables.
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
            stop::pass_on(state);
            ffi::lua_remove(state, 1);
            if ffi::lua_type(state, -1) == ffi::LUA_TTABLE {
                let stack = Stack::new(state);
                stack.raw_field(-1, "err");
                if matches!(stack.kind(-1), Kind::String | Kind::Number) {
                    ffi::lua_replace(state, -2);
                } else {
                    stack.pop(1);
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
        stop::pass_on(state);
        results
    }
}

/// `coroutine.resume(coroutine, …)`.
unsafe extern "C-unwind" fn resume(state: *mut lua_State) -> c_int {
    // SAFETY: called by Lua.
    unsafe {
        stop::look_sometimes(state);
        let results = original(state);
        stop::pass_on(state);
        results
    }
}

/// `coroutine.wrap(function)`. Its upvalues are Lua's `create` and `resume`.
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

/// What `coroutine.wrap` gives: resumes the coroutine, and raises its error. Its upvalues are Lua's `resume` and the coroutine.
unsafe extern "C-unwind" fn wrapped(state: *mut lua_State) -> c_int {
    // SAFETY: called by Lua; `resume`, which wants the coroutine in front of the arguments, gives whether it went well, in front of the results.
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
