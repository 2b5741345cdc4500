//! Safe access to Lua's C API: a [`Stack`] reads, pushes and changes values on the stack of a
//! state.
//!
//! # Why this is sound
//!
//! Lua raises an error by a `longjmp` to the enclosing protected call. All frames in between end
//! without running destructors. No Rust frame with a destructor may therefore be on that path. For
//! this reason, a function that Lua calls is split in two. The first part, [`enter`], holds nothing
//! with a destructor. The second part, the *body*, never raises.
//!
//! A body uses only functions of the API that raise no errors except memory errors. [`Stack`] has
//! no other methods. The memory limit is suspended while the body runs ([`crate::memory`]), so
//! there are no memory errors either. The body returns an error as a value, and `enter` raises the
//! error after the body has returned. For a stopped script see [`crate::stop`].

use std::ffi::{CStr, c_char, c_int};
use std::marker::PhantomData;

use mlua_sys::lua51 as ffi;

pub(crate) use ffi::lua_State;

use crate::memory::StateContext;

/// An error to raise. Its value is on top of the stack. If the script was stopped, the value is
/// ignored.
pub(crate) struct Raise;

/// Result of a body: the number of values that it returns, or an error to raise.
pub(crate) type Outcome = Result<c_int, Raise>;

/// A Lua stack, within a function that Lua has called or around a protected call. During `'s`, the
/// state lives and the memory limit is suspended. Indexes are those of the C API: from 1, or
/// negative from the top.
#[derive(Clone, Copy)]
pub(crate) struct Stack<'s> {
    state: *mut lua_State,
    used: PhantomData<&'s StateContext>,
}

/// Type of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    None,
    Nil,
    Boolean,
    LightUserdata,
    Number,
    String,
    Table,
    Function,
    Userdata,
    Thread,
}

/// Runs the body of a function that Lua has called.
///
/// # Safety
/// Lua must have called the function with `state`, and the caller's frame must hold nothing with a
/// destructor.
pub(crate) unsafe fn enter(state: *mut lua_State, body: fn(Stack<'_>) -> Outcome) -> c_int {
    // SAFETY: every state is created with a `StateContext`.
    let memory = unsafe { StateContext::of(state) };
    memory.suspend();
    let outcome = body(Stack { state, used: PhantomData });
    memory.resume();
    match outcome {
        Ok(results) => results,
        // SAFETY: as for the next arm.
        Err(Raise) if memory.is_stopped.get() => unsafe { crate::stop::throw(state) },
        // SAFETY: Lua has called this function in protected mode, and the error is on top of the
        // stack. No frame in between has a destructor.
        Err(Raise) => unsafe { ffi::lua_error(state) },
    }
}

/// Defines the functions that Lua can call, from their bodies.
macro_rules! lua_functions {
    ($($name:ident => $body:path;)+) => {$(
        /// Called by Lua. See the documentation of the body.
        pub(crate) unsafe extern "C-unwind" fn $name(state: *mut $crate::lua::lua_State) -> std::ffi::c_int {
            // SAFETY: called by Lua with its state. This frame holds nothing with a destructor.
            unsafe { $crate::lua::enter(state, $body) }
        }
    )+};
}
pub(crate) use lua_functions;

// SAFETY of all blocks below, unless they say more: `Stack::new` and `enter` ensure that `state` is
// a live Lua state and that no other thread uses it. Indexes are those of values that the caller
// has pushed or received. `room` was called before more than Lua's minimum of 20 values are pushed.
// The memory limit is suspended, so none of these functions raises (see the head of this module).
#[allow(clippy::undocumented_unsafe_blocks)]
impl<'s> Stack<'s> {
    /// Returns the stack of a state.
    ///
    /// # Safety
    /// During `'s` the state must live, no other thread may use it, and the memory limit must be
    /// suspended.
    pub(crate) unsafe fn new(state: *mut lua_State) -> Self {
        Stack { state, used: PhantomData }
    }

    pub(crate) fn raw(self) -> *mut lua_State {
        self.state
    }

    pub(crate) fn memory(self) -> &'s StateContext {
        unsafe { StateContext::of(self.state) }
    }

    /// Returns the number of values on the stack.
    pub(crate) fn top(self) -> c_int {
        unsafe { ffi::lua_gettop(self.state) }
    }

    pub(crate) fn set_top(self, top: c_int) {
        unsafe { ffi::lua_settop(self.state, top) }
    }

    pub(crate) fn pop(self, count: c_int) {
        self.set_top(-count - 1);
    }

    /// Reserves space for pushing `values` values. Returns `false` if there is not enough.
    #[must_use]
    pub(crate) fn room(self, values: c_int) -> bool {
        unsafe { ffi::lua_checkstack(self.state, values) != 0 }
    }

    pub(crate) fn kind(self, index: c_int) -> Kind {
        match unsafe { ffi::lua_type(self.state, index) } {
            ffi::LUA_TNIL => Kind::Nil,
            ffi::LUA_TBOOLEAN => Kind::Boolean,
            ffi::LUA_TLIGHTUSERDATA => Kind::LightUserdata,
            ffi::LUA_TNUMBER => Kind::Number,
            ffi::LUA_TSTRING => Kind::String,
            ffi::LUA_TTABLE => Kind::Table,
            ffi::LUA_TFUNCTION => Kind::Function,
            ffi::LUA_TUSERDATA => Kind::Userdata,
            ffi::LUA_TTHREAD => Kind::Thread,
            _ => Kind::None,
        }
    }

    /// Returns Lua's name for the type of a value.
    pub(crate) fn type_name(self, index: c_int) -> &'static str {
        match self.kind(index) {
            Kind::None => "no value",
            Kind::Nil => "nil",
            Kind::Boolean => "boolean",
            Kind::LightUserdata | Kind::Userdata => "userdata",
            Kind::Number => "number",
            Kind::String => "string",
            Kind::Table => "table",
            Kind::Function => "function",
            Kind::Thread => "thread",
        }
    }

    pub(crate) fn number(self, index: c_int) -> f64 {
        unsafe { ffi::lua_tonumber(self.state, index) }
    }

    /// Returns whether a value is a number, or a string that can be parsed as a number.
    pub(crate) fn is_numeric(self, index: c_int) -> bool {
        unsafe { ffi::lua_isnumber(self.state, index) != 0 }
    }

    pub(crate) fn boolean(self, index: c_int) -> bool {
        unsafe { ffi::lua_toboolean(self.state, index) != 0 }
    }

    /// Returns the bytes of a string or a number. A number is converted to a string in place.
    /// Returns `None` for other types.
    ///
    /// # Safety
    /// While the bytes are used, the value must stay on the stack, or in a table on the stack,
    /// because Lua may free a string without references.
    pub(crate) unsafe fn bytes(self, index: c_int) -> Option<&'s [u8]> {
        let mut len = 0;
        let text = unsafe { ffi::lua_tolstring(self.state, index, &mut len) };
        // A string's bytes do not move while the string lives.
        (!text.is_null()).then(|| unsafe { std::slice::from_raw_parts(text.cast::<u8>(), len) })
    }

    /// Returns a copy of the bytes of a string or a number. A number is converted to a string in
    /// place. Returns `None` for other types.
    pub(crate) fn copied(self, index: c_int) -> Option<Vec<u8>> {
        // The value stays on the stack while its bytes are copied.
        unsafe { self.bytes(index) }.map(<[u8]>::to_vec)
    }

    pub(crate) fn push_nil(self) {
        unsafe { ffi::lua_pushnil(self.state) }
    }

    pub(crate) fn push_boolean(self, value: bool) {
        unsafe { ffi::lua_pushboolean(self.state, c_int::from(value)) }
    }

    pub(crate) fn push_number(self, value: f64) {
        unsafe { ffi::lua_pushnumber(self.state, value) }
    }

    pub(crate) fn push_bytes(self, bytes: &[u8]) {
        unsafe { ffi::lua_pushlstring_(self.state, bytes.as_ptr().cast(), bytes.len()) }
    }

    pub(crate) fn push_light_userdata(self, pointer: *mut std::ffi::c_void) {
        unsafe { ffi::lua_pushlightuserdata(self.state, pointer) }
    }

    pub(crate) fn push_function(self, function: ffi::lua_CFunction) {
        unsafe { ffi::lua_pushcclosure(self.state, function, 0) }
    }

    pub(crate) fn push_closure(self, function: ffi::lua_CFunction, upvalues: c_int) {
        unsafe { ffi::lua_pushcclosure(self.state, function, upvalues) }
    }

    /// Pushes a copy of the value at `index`.
    pub(crate) fn push_copy(self, index: c_int) {
        unsafe { ffi::lua_pushvalue(self.state, index) }
    }

    pub(crate) fn new_table(self, elements: usize, fields: usize) {
        let bounded = |n: usize| c_int::try_from(n.min(1 << 20)).unwrap_or(0);
        unsafe { ffi::lua_createtable(self.state, bounded(elements), bounded(fields)) }
    }

    /// Pushes a table of functions.
    pub(crate) fn push_functions(self, functions: &[(&str, ffi::lua_CFunction)]) {
        self.new_table(0, functions.len());
        for (name, function) in functions {
            self.push_function(*function);
            self.set_raw_field(-2, name);
        }
    }

    pub(crate) fn light_userdata(self, index: c_int) -> *mut std::ffi::c_void {
        unsafe { ffi::lua_touserdata(self.state, index) }
    }

    pub(crate) fn insert(self, index: c_int) {
        unsafe { ffi::lua_insert(self.state, index) }
    }

    pub(crate) fn remove(self, index: c_int) {
        unsafe { ffi::lua_remove(self.state, index) }
    }

    pub(crate) fn replace(self, index: c_int) {
        unsafe { ffi::lua_replace(self.state, index) }
    }

    /// Replaces the key on top of the stack by its value in the table, without metamethods.
    pub(crate) fn raw_get(self, table: c_int) {
        unsafe { ffi::lua_rawget_(self.state, table) }
    }

    /// Pushes the value of a named field of a table, without metamethods.
    pub(crate) fn raw_field(self, table: c_int, name: &str) {
        let table = if table < 0 && table > ffi::LUA_REGISTRYINDEX { table - 1 } else { table };
        self.push_bytes(name.as_bytes());
        self.raw_get(table);
    }

    /// Pushes an element, without metamethods.
    pub(crate) fn raw_element(self, table: c_int, index: c_int) {
        unsafe { ffi::lua_rawgeti_(self.state, table, index) }
    }

    /// Sets a field of a table, without metamethods. Pops the value on top of the stack and the key
    /// below it. The key must be neither nil nor NaN.
    pub(crate) fn raw_set(self, table: c_int) {
        unsafe { ffi::lua_rawset(self.state, table) }
    }

    /// Sets a named field to the value on top of the stack, which is popped, without metamethods.
    pub(crate) fn set_raw_field(self, table: c_int, name: &str) {
        let table = if table < 0 && table > ffi::LUA_REGISTRYINDEX { table - 1 } else { table };
        self.push_bytes(name.as_bytes());
        self.insert(-2);
        self.raw_set(table);
    }

    /// Sets an element to the value on top of the stack, which is popped, without metamethods.
    pub(crate) fn set_raw_element(self, table: c_int, index: c_int) {
        unsafe { ffi::lua_rawseti_(self.state, table, index) }
    }

    /// Replaces the key on top of the stack by the table's next key and its value. After the last
    /// key, pops the key and returns `false`. The key must be one of this table, or nil to start.
    pub(crate) fn next(self, table: c_int) -> bool {
        unsafe { ffi::lua_next(self.state, table) != 0 }
    }

    /// Pushes the metatable of a value. Returns `false` if it has none.
    pub(crate) fn metatable(self, index: c_int) -> bool {
        unsafe { ffi::lua_getmetatable(self.state, index) != 0 }
    }

    /// Pops the table on top of the stack and makes it the metatable of a value.
    pub(crate) fn set_metatable(self, index: c_int) {
        unsafe { ffi::lua_setmetatable(self.state, index) };
    }

    /// Returns the address of a value, which identifies a table.
    pub(crate) fn address(self, index: c_int) -> *const std::ffi::c_void {
        unsafe { ffi::lua_topointer(self.state, index) }
    }

    /// Pushes the place (`name:line: `) where the function at a level runs, or an empty string.
    pub(crate) fn push_where(self, level: c_int) {
        unsafe { ffi::luaL_where(self.state, level) }
    }

    /// Returns an error like those of `luaL_error`: the place in the script, followed by `text`.
    pub(crate) fn error(self, text: &str) -> Raise {
        self.error_bytes(text.as_bytes())
    }

    /// Returns the same error as [`Stack::error`], for bytes.
    pub(crate) fn error_bytes(self, text: &[u8]) -> Raise {
        self.push_where(1);
        let mut whole = self.copied(-1).unwrap_or_default();
        whole.extend_from_slice(text);
        self.pop(1);
        self.push_bytes(&whole);
        Raise
    }

    /// Returns the error for an invalid argument, like those of `luaL_argerror`.
    pub(crate) fn argument_error(self, argument: c_int, text: &str) -> Raise {
        let name = self.function_name();
        match name {
            Some((name, true)) if argument == 1 => self.error(&format!("calling '{name}' on bad self ({text})")),
            Some((name, true)) => self.error(&format!("bad argument #{} to '{name}' ({text})", argument - 1)),
            Some((name, false)) => self.error(&format!("bad argument #{argument} to '{name}' ({text})")),
            None => self.error(&format!("bad argument #{argument} to '?' ({text})")),
        }
    }

    /// Returns the error for an argument of the wrong type, like those of `luaL_typerror`.
    pub(crate) fn type_error(self, argument: c_int, wanted: &str) -> Raise {
        let got = self.type_name(argument);
        self.argument_error(argument, &format!("{wanted} expected, got {got}"))
    }

    /// Returns an argument as a number, or the error if it is not a number.
    pub(crate) fn check_number(self, argument: c_int) -> Result<f64, Raise> {
        if self.is_numeric(argument) { Ok(self.number(argument)) } else { Err(self.type_error(argument, "number")) }
    }

    /// Returns an argument as a string, or the error if it is neither a string nor a number.
    ///
    /// # Safety
    /// As for [`Stack::bytes`].
    pub(crate) unsafe fn check_bytes(self, argument: c_int) -> Result<&'s [u8], Raise> {
        unsafe { self.bytes(argument) }.ok_or_else(|| self.type_error(argument, "string"))
    }

    /// Returns the name by which the script calls the current function, and whether the call is a
    /// method call.
    fn function_name(self) -> Option<(String, bool)> {
        unsafe {
            let mut debug: ffi::lua_Debug = std::mem::zeroed();
            if ffi::lua_getstack(self.state, 0, &mut debug) == 0 {
                return None;
            }
            ffi::lua_getinfo(self.state, c"n".as_ptr(), &mut debug);
            if debug.name.is_null() {
                return None;
            }
            let text = |pointer: *const c_char| CStr::from_ptr(pointer).to_string_lossy().into_owned();
            let is_method = !debug.namewhat.is_null() && text(debug.namewhat) == "method";
            Some((text(debug.name), is_method))
        }
    }
}
