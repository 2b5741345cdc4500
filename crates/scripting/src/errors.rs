//! Errors as scripts see them: tables with the text in `err` and the place in `source` and `line`.

use std::ffi::{CStr, c_int};

use mlua_sys::lua51 as ffi;

use crate::lua::{Kind, Outcome, Raise, Stack, enter, lua_State};
use crate::sandbox;

/// Field that marks an error as a command's reply, which is already in the error statistics.
pub(crate) const IS_COUNTED: &str = "ignore_error_stats_update";

/// Pushes an error table. A text that starts with a dash and contains a space has its own error
/// code, which ends at the space. Any other text gets the code `ERR`.
pub(crate) fn push(stack: Stack<'_>, text: &[u8]) {
    let (code, message) = match text.strip_prefix(b"-") {
        None => (&b"ERR"[..], text),
        Some(rest) => match rest.iter().position(|&byte| byte == b' ') {
            None => (&b"ERR"[..], rest),
            Some(blank) => (&rest[..blank], &rest[blank + 1..]),
        },
    };
    let message = message.without_line_ends();
    let whole = [code, b" ", message].concat();
    stack.new_table(0, 4);
    stack.push_bytes(&whole);
    stack.set_raw_field(-2, "err");
}

/// Trims line ends, but not spaces, at both ends.
trait Trimmed {
    fn without_line_ends(&self) -> &[u8];
}

impl Trimmed for [u8] {
    fn without_line_ends(&self) -> &[u8] {
        let is_line_end = |byte: &u8| matches!(byte, b'\r' | b'\n');
        let Some(first) = self.iter().position(|byte| !is_line_end(byte)) else { return &[] };
        let last = self.iter().rposition(|byte| !is_line_end(byte)).unwrap_or(first);
        &self[first..=last]
    }
}

/// Pushes an error table that the caller must raise.
pub(crate) fn raise(stack: Stack<'_>, text: &str) -> Raise {
    push(stack, text.as_bytes());
    Raise
}

/// Sets the place in an error table that has a metatable. The assignments are in lines 10 and 11,
/// because errors of these assignments name the line, and Redis's are in these lines. If `to_read`
/// is set, returns a table without a metatable, from which [`read`] can read the fields.
const SET_PLACE: &[u8] = b"\n\n\n\n\n\n\n\nlocal error, source, line, to_read = ...
error.source = source
error.line = line
if not to_read then return error end
local field = 'ignore_error_stats_update'
return {err = error.err, source = error.source, line = error.line, [field] = error[field]}";

/// The name of the code [`SET_PLACE`], which its errors show. Redis's error handler has this name.
const SET_PLACE_NAME: &[u8] = b"@err_handler_def";

/// The registry contains the compiled [`SET_PLACE`], with the address of this static as its key.
static SETTER: u8 = 0;

/// Compiles [`SET_PLACE`] for [`handle`] and [`handle_last`].
pub(crate) fn prepare(stack: Stack<'_>) {
    stack.push_light_userdata(sandbox::key(&SETTER));
    let compiled = sandbox::compile(stack, SET_PLACE, SET_PLACE_NAME);
    assert!(compiled.is_ok(), "the code is valid Lua");
    stack.raw_set(ffi::LUA_REGISTRYINDEX);
}

/// Number of arguments of [`SET_PLACE`].
const SETTER_ARGUMENTS: c_int = 4;

/// Converts an error to a table that includes the place where the error was raised. Scripts can
/// call this function, and pass it to `xpcall` as the error handler.
pub(crate) unsafe extern "C-unwind" fn handle(state: *mut lua_State) -> c_int {
    // SAFETY: called by Lua. This frame holds nothing with a destructor.
    unsafe { convert(state, |stack| handler(stack, false)) }
}

/// Does the same as [`handle`], and returns a table that [`read`] can read. This function is the
/// error handler of the protected call that runs a script.
pub(crate) unsafe extern "C-unwind" fn handle_last(state: *mut lua_State) -> c_int {
    // SAFETY: as for `handle`.
    unsafe { convert(state, |stack| handler(stack, true)) }
}

/// Runs `handler`, and then the code that it has left to be called. That code may run metamethods,
/// which may raise errors, so a body can't call it.
///
/// # Safety
/// As for [`enter`].
unsafe fn convert(state: *mut lua_State, handler: fn(Stack<'_>) -> Outcome) -> c_int {
    // SAFETY: by the caller's promise. If there is more than one result, the results are a function
    // and its arguments.
    unsafe {
        if enter(state, handler) > 1 {
            ffi::lua_call(state, SETTER_ARGUMENTS, 1);
        }
    }
    1
}

/// Leaves the error table on top of the stack. For a table with a metatable, leaves
/// [`SET_PLACE`] and its arguments instead, because only metamethods may change such a table: it
/// may be the front of a read-only table.
fn handler(stack: Stack<'_>, to_read: bool) -> Outcome {
    stack.set_top(1);
    if stack.kind(1) != Kind::Table {
        let text = [b"ERR ", &*shown(stack, 1)].concat();
        stack.new_table(0, 3);
        stack.push_bytes(&text);
        stack.set_raw_field(-2, "err");
        stack.replace(1);
    }
    let Some(place) = place(stack, 1) else { return Ok(1) };
    if !stack.metatable(1) {
        set_place(stack, &place);
        return Ok(1);
    }
    stack.pop(1);
    stack.push_light_userdata(sandbox::key(&SETTER));
    stack.raw_get(ffi::LUA_REGISTRYINDEX);
    stack.push_copy(1);
    stack.push_bytes(&place.0);
    stack.push_number(f64::from(place.1));
    stack.push_boolean(to_read);
    Ok(1 + SETTER_ARGUMENTS)
}

/// A place in a script: source and line.
pub(crate) type Place = (Vec<u8>, c_int);

/// Adds the place where the error was raised to the error table on top of the stack. The table must
/// not have a metatable, because this function ignores metamethods.
pub(crate) fn set_place(stack: Stack<'_>, (source, line): &Place) {
    stack.push_bytes(source);
    stack.set_raw_field(-2, "source");
    stack.push_number(f64::from(*line));
    stack.set_raw_field(-2, "line");
}

/// Formats a value as `tostring` does, without metamethods.
fn shown(stack: Stack<'_>, index: c_int) -> Vec<u8> {
    match stack.kind(index) {
        Kind::String | Kind::Number => {
            stack.push_copy(index);
            let text = stack.copied(-1).unwrap_or_default();
            stack.pop(1);
            text
        }
        Kind::Nil | Kind::None => b"nil".to_vec(),
        Kind::Boolean => stack.boolean(index).to_string().into_bytes(),
        _ => format!("{}: {:p}", stack.type_name(index), stack.address(index)).into_bytes(),
    }
}

/// Returns the source and the current line of the function at a level of the call stack. For a C
/// function, returns those of its caller.
pub(crate) fn place(stack: Stack<'_>, level: c_int) -> Option<Place> {
    // SAFETY: as for `Stack`. The strings from `lua_getinfo` live as long as the function they
    // describe.
    unsafe {
        let mut debug: ffi::lua_Debug = std::mem::zeroed();
        if ffi::lua_getstack(stack.raw(), level, &mut debug) == 0 {
            return None;
        }
        ffi::lua_getinfo(stack.raw(), c"Sl".as_ptr(), &mut debug);
        if CStr::from_ptr(debug.what) == c"C" {
            if ffi::lua_getstack(stack.raw(), level + 1, &mut debug) == 0 {
                return None;
            }
            ffi::lua_getinfo(stack.raw(), c"Sl".as_ptr(), &mut debug);
        }
        Some((CStr::from_ptr(debug.source).to_bytes().to_vec(), debug.currentline))
    }
}

/// The contents of an error table.
pub(crate) struct ScriptError {
    /// The text, which starts with the error code.
    pub(crate) text: Vec<u8>,
    /// Source and line.
    pub(crate) place: Option<(Vec<u8>, Vec<u8>)>,
    pub(crate) is_counted: bool,
}

/// Reads an error table.
pub(crate) fn read(stack: Stack<'_>, index: c_int) -> ScriptError {
    let field = |name: &str| {
        stack.raw_field(index, name);
        let text = match stack.kind(-1) {
            Kind::String | Kind::Number => stack.copied(-1),
            _ => None,
        };
        stack.pop(1);
        text
    };
    let text = field("err").unwrap_or_else(|| b"ERR unknown error".to_vec());
    let place = field("source").zip(field("line"));
    stack.raw_field(index, IS_COUNTED);
    let is_counted = stack.kind(-1) == Kind::Boolean && stack.boolean(-1);
    stack.pop(1);
    ScriptError { text, place, is_counted }
}
