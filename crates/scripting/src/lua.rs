//! Lua's C API in the form that the rest of this crate uses: what is on a state's stack, read and pushed.
//!
//! # Why this is sound
//!
//! Lua raises an error by a `longjmp` to the protected call around it: frames in between end without their destructors. So that this never
//! skips one of ours, a function that Lua calls is split in two: [`enter`], which holds nothing that needs dropping, and the body, which never
//! raises. Of the API, a body uses only what raises nothing but an error of memory ([`Stack`] has no other methods), and while it runs, memory is
//! not refused ([`crate::memory`]): the body gives the error to `enter` as a value, and `enter` raises it when the body has returned ([`crate::stop`] tells how, where the script was stopped).

use std::ffi::{CStr, c_char, c_int};
use std::marker::PhantomData;

use mlua_sys::lua51 as ffi;

pub(crate) use ffi::lua_State;

use crate::memory::Memory;

/// The value on top of the stack is an error to be raised; any value, where the script was stopped.
pub(crate) struct Raise;

/// What a body gives: how many values it returns, or that it raises.
pub(crate) type Outcome = Result<c_int, Raise>;

/// A Lua stack, in a function that Lua has called or around a protected call: for `'s`, while its state lives and memory is suspended. An index is that of
/// the C API: from 1, or negative from the top.
#[derive(Clone, Copy)]
pub(crate) struct Stack<'s> {
    state: *mut lua_State,
    used: PhantomData<&'s Memory>,
}

/// What a value is.
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
/// `state` is what Lua has called the function with, and the caller's frame holds nothing that needs dropping.
pub(crate) unsafe fn enter(state: *mut lua_State, body: fn(Stack<'_>) -> Outcome) -> c_int {
    // SAFETY: every state is made with a `Memory`.
    let memory = unsafe { Memory::of(state) };
    memory.suspend();
    let outcome = body(Stack { state, used: PhantomData });
    memory.resume();
    match outcome {
        Ok(results) => results,
        // SAFETY: as below.
        Err(Raise) if memory.is_stopped.get() => unsafe { crate::stop::throw(state) },
        // SAFETY: Lua has called us in protected mode; the error is on top of the stack; no frame between has anything to drop.
        Err(Raise) => unsafe { ffi::lua_error(state) },
    }
}

/// Defines functions that Lua can call, from their bodies.
macro_rules! lua_functions {
    ($($name:ident => $body:path;)+) => {$(
        /// What Lua calls; its body has the documentation.
        pub(crate) unsafe extern "C-unwind" fn $name(state: *mut $crate::lua::lua_State) -> std::ffi::c_int {
            // SAFETY: called by Lua with its state; this frame holds nothing.
            unsafe { $crate::lua::enter(state, $body) }
        }
    )+};
}
pub(crate) use lua_functions;

// SAFETY of all blocks below, unless they say more: `state` is a live Lua state, used by this thread alone (`Stack::new` and `enter` see to
// it); indexes are those of values which the caller has pushed or was given; `room` was asked for where more than Lua's minimum of 20 is pushed; memory is not
// refused meanwhile, so none of these raises (see the head of this module).
#[allow(clippy::undocumented_unsafe_blocks)]
impl<'s> Stack<'s> {
    /// The stack of a state.
    ///
    /// # Safety
    /// During `'s` the state lives, no other thread uses it, and memory is suspended.
    pub(crate) unsafe fn new(state: *mut lua_State) -> Self {
        Stack { state, used: PhantomData }
    }

    pub(crate) fn raw(self) -> *mut lua_State {
        self.state
    }

    pub(crate) fn memory(self) -> &'s Memory {
        unsafe { Memory::of(self.state) }
    }

    /// Number of values.
    pub(crate) fn top(self) -> c_int {
        unsafe { ffi::lua_gettop(self.state) }
    }

    pub(crate) fn set_top(self, top: c_int) {
        unsafe { ffi::lua_settop(self.state, top) }
    }

    pub(crate) fn pop(self, count: c_int) {
        self.set_top(-count - 1);
    }

    /// Makes sure that so many values can be pushed. `false`: they can't.
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

    /// Lua's name of what a value is.
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

    /// Whether it is a number, or a string that reads as one.
    pub(crate) fn is_numeric(self, index: c_int) -> bool {
        unsafe { ffi::lua_isnumber(self.state, index) != 0 }
    }

    pub(crate) fn boolean(self, index: c_int) -> bool {
        unsafe { ffi::lua_toboolean(self.state, index) != 0 }
    }

    /// The bytes of a string, or of a number, which becomes a string where it stands; `None`: it is neither.
    ///
    /// # Safety
    /// While the bytes are used the value stays on the stack, or in a table that does: Lua may free a string that
    /// nothing refers to.
    pub(crate) unsafe fn bytes(self, index: c_int) -> Option<&'s [u8]> {
        let mut len = 0;
        let text = unsafe { ffi::lua_tolstring(self.state, index, &mut len) };
        // A string's bytes don't move while it lives.
        (!text.is_null()).then(|| unsafe { std::slice::from_raw_parts(text.cast::<u8>(), len) })
    }

    /// A copy of the bytes of a string, or of a number, which becomes a string where it stands; `None`: it is neither.
    pub(crate) fn copied(self, index: c_int) -> Option<Vec<u8>> {
        // The value is where it was when they are copied.
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

    /// Replaces the key on top by the table's value for it, without metamethods.
    pub(crate) fn raw_get(self, table: c_int) {
        unsafe { ffi::lua_rawget_(self.state, table) }
    }

    /// Pushes the table's value for a name, without metamethods.
    pub(crate) fn raw_field(self, table: c_int, name: &str) {
        let table = if table < 0 && table > ffi::LUA_REGISTRYINDEX { table - 1 } else { table };
        self.push_bytes(name.as_bytes());
        self.raw_get(table);
    }

    /// Pushes an element, without metamethods.
    pub(crate) fn raw_element(self, table: c_int, index: c_int) {
        unsafe { ffi::lua_rawgeti_(self.state, table, index) }
    }

    /// Sets the key below the top to the value on top, without metamethods. The key is neither nil nor NaN.
    pub(crate) fn raw_set(self, table: c_int) {
        unsafe { ffi::lua_rawset(self.state, table) }
    }

    /// Sets a field to the value on top, without metamethods.
    pub(crate) fn set_raw_field(self, table: c_int, name: &str) {
        let table = if table < 0 && table > ffi::LUA_REGISTRYINDEX { table - 1 } else { table };
        self.push_bytes(name.as_bytes());
        self.insert(-2);
        self.raw_set(table);
    }

    /// Sets an element to the value on top, without metamethods.
    pub(crate) fn set_raw_element(self, table: c_int, index: c_int) {
        unsafe { ffi::lua_rawseti_(self.state, table, index) }
    }

    /// Replaces the key on top by the next key and its value; `false` (and no key) at the end. The key came from this table.
    pub(crate) fn next(self, table: c_int) -> bool {
        unsafe { ffi::lua_next(self.state, table) != 0 }
    }

    /// Pushes the metatable of a value; `false`: it has none.
    pub(crate) fn metatable(self, index: c_int) -> bool {
        unsafe { ffi::lua_getmetatable(self.state, index) != 0 }
    }

    /// Makes the table on top the metatable of a value.
    pub(crate) fn set_metatable(self, index: c_int) {
        unsafe { ffi::lua_setmetatable(self.state, index) };
    }

    /// The address of a table, for telling it from others.
    pub(crate) fn address(self, index: c_int) -> *const std::ffi::c_void {
        unsafe { ffi::lua_topointer(self.state, index) }
    }

    /// Where the function at a level runs (`name:line: `), or nothing.
    pub(crate) fn push_where(self, level: c_int) {
        unsafe { ffi::luaL_where(self.state, level) }
    }

    /// An error of this text, with the place in the script in front, as `luaL_error`.
    pub(crate) fn error(self, text: &str) -> Raise {
        self.error_bytes(text.as_bytes())
    }

    /// As [`Stack::error`], for any bytes.
    pub(crate) fn error_bytes(self, text: &[u8]) -> Raise {
        self.push_where(1);
        let mut whole = self.copied(-1).unwrap_or_default();
        whole.extend_from_slice(text);
        self.pop(1);
        self.push_bytes(&whole);
        Raise
    }

    /// The error for an argument that isn't what it should be, as `luaL_argerror`.
    pub(crate) fn argument_error(self, argument: c_int, text: &str) -> Raise {
        let name = self.function_name();
        match name {
            Some((name, true)) if argument == 1 => self.error(&format!("calling '{name}' on bad self ({text})")),
            Some((name, true)) => self.error(&format!("bad argument #{} to '{name}' ({text})", argument - 1)),
            Some((name, false)) => self.error(&format!("bad argument #{argument} to '{name}' ({text})")),
            None => self.error(&format!("bad argument #{argument} to '?' ({text})")),
        }
    }

    /// The error for an argument of a wrong type, as `luaL_typerror`.
    pub(crate) fn type_error(self, argument: c_int, wanted: &str) -> Raise {
        let got = self.type_name(argument);
        self.argument_error(argument, &format!("{wanted} expected, got {got}"))
    }

    /// An argument that is to be a number.
    pub(crate) fn check_number(self, argument: c_int) -> Result<f64, Raise> {
        if self.is_numeric(argument) { Ok(self.number(argument)) } else { Err(self.type_error(argument, "number")) }
    }

    /// An argument that is to be a string (or a number).
    ///
    /// # Safety
    /// As for [`Stack::bytes`].
    pub(crate) unsafe fn check_bytes(self, argument: c_int) -> Result<&'s [u8], Raise> {
        unsafe { self.bytes(argument) }.ok_or_else(|| self.type_error(argument, "string"))
    }

    /// How the script calls the function that runs, and whether it is as a method.
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
