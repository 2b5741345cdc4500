//! Converts replies to Lua values, and Lua values to replies.

use std::ffi::c_int;

use pantala_base::number::parse_i64;
use pantala_resp::{Reply, Version};

use crate::errors;
use crate::lua::{Kind, Stack};

/// Maximum size of a reply that is converted from a Lua value, bytes. Without a limit, a reply
/// could grow exponentially: a table contains another table twice, which contains another table
/// twice, and so on. The limit is smaller in this crate's tests, so that they can reach it.
pub(crate) const REPLY_BYTES_MAX: usize = if cfg!(test) { 64 * 1024 } else { 512 * 1024 * 1024 };

/// Maximum depth of a reply converted from a Lua value.
const REPLY_DEPTH_MAX: u32 = 1000;

/// Upper bound of the memory of one element of a Lua array while the array grows, bytes.
const ELEMENT_BYTES: usize = 32;
/// Upper bound of the memory of one field of a Lua table, bytes.
const FIELD_BYTES: usize = 80;

/// Pushes the reply of a command. If the whole reply does not fit into the memory of the state,
/// pushes nil and returns `false`.
///
/// The limit is checked before every value. During the conversion, Lua's allocator does not enforce
/// the limit, because a failed allocation would raise a Lua error, which must not unwind Rust
/// frames.
#[must_use]
pub(crate) fn push_whole_reply(stack: Stack<'_>, reply: &[u8]) -> bool {
    let top = stack.top();
    let mut is_whole = true;
    push_reply(stack, reply, &mut is_whole);
    if !is_whole {
        stack.set_top(top);
        stack.push_nil();
    }
    is_whole
}

/// Pushes a reply and returns the bytes after it. A malformed reply, which no command writes,
/// becomes nil.
fn push_reply<'r>(stack: Stack<'_>, reply: &'r [u8], is_whole: &mut bool) -> &'r [u8] {
    *is_whole &= !stack.memory().is_full();
    if !*is_whole {
        stack.push_nil();
        return &[];
    }
    if !stack.room(6) {
        return &[];
    }
    let Some((&kind, rest)) = reply.split_first() else {
        stack.push_nil();
        return &[];
    };
    let end = rest.iter().position(|&byte| byte == b'\r').unwrap_or(rest.len());
    let (line, rest) = (&rest[..end], rest.get(end + 2..).unwrap_or_default());
    match kind {
        b'+' => {
            push_tagged(stack, "ok", line);
            rest
        }
        b'-' => {
            let text = [b"-", line].concat();
            errors::push(stack, &text);
            stack.push_boolean(true);
            stack.set_raw_field(-2, errors::IS_COUNTED);
            rest
        }
        b':' => {
            stack.push_number(parse_i64(line).unwrap_or_default() as f64);
            rest
        }
        b',' => {
            stack.new_table(0, 1);
            let text = std::str::from_utf8(line).unwrap_or_default();
            stack.push_number(
                text.trim_start_matches('-')
                    .parse()
                    .map_or(f64::NAN, |value: f64| if text.starts_with('-') { -value } else { value }),
            );
            stack.set_raw_field(-2, "double");
            rest
        }
        b'(' => {
            push_tagged(stack, "big_number", line);
            rest
        }
        b'#' => {
            stack.push_boolean(line == b"t");
            rest
        }
        b'_' => {
            stack.push_nil();
            rest
        }
        _ => push_sized(stack, kind, parse_i64(line).unwrap_or(-1), rest, is_whole),
    }
}

/// Pushes a reply that starts with a length, and returns the bytes after it.
fn push_sized<'r>(stack: Stack<'_>, kind: u8, len: i64, rest: &'r [u8], is_whole: &mut bool) -> &'r [u8] {
    let Ok(len) = usize::try_from(len) else {
        stack.push_boolean(false);
        return rest;
    };
    let each_bytes = match kind {
        b'$' | b'=' => 1,
        b'%' | b'~' => FIELD_BYTES,
        _ => ELEMENT_BYTES,
    };
    if stack.memory().would_exceed(len.saturating_mul(each_bytes)) {
        *is_whole = false;
        stack.push_nil();
        return &[];
    }
    match kind {
        b'$' => {
            stack.push_bytes(rest.get(..len).unwrap_or_default());
            rest.get(len + 2..).unwrap_or_default()
        }
        b'=' => {
            let text = rest.get(..len).unwrap_or_default();
            stack.new_table(0, 1);
            stack.new_table(0, 2);
            stack.push_bytes(text.get(4..).unwrap_or_default());
            stack.set_raw_field(-2, "string");
            stack.push_bytes(text.get(..3).unwrap_or_default());
            stack.set_raw_field(-2, "format");
            stack.set_raw_field(-2, "verbatim_string");
            rest.get(len + 2..).unwrap_or_default()
        }
        b'%' => {
            let mut rest = rest;
            stack.new_table(0, 1);
            stack.new_table(0, len);
            for _ in 0..len {
                rest = push_reply(stack, rest, is_whole);
                rest = push_reply(stack, rest, is_whole);
                set_if_key(stack);
            }
            stack.set_raw_field(-2, "map");
            rest
        }
        b'~' => {
            let mut rest = rest;
            stack.new_table(0, 1);
            stack.new_table(0, len);
            for _ in 0..len {
                rest = push_reply(stack, rest, is_whole);
                stack.push_boolean(true);
                set_if_key(stack);
            }
            stack.set_raw_field(-2, "set");
            rest
        }
        // Attributes are skipped.
        b'|' => {
            let mut rest = rest;
            for _ in 0..2 * len {
                rest = push_reply(stack, rest, is_whole);
                stack.pop(1);
            }
            push_reply(stack, rest, is_whole)
        }
        _ => {
            let mut rest = rest;
            stack.new_table(len, 0);
            for index in 1..=len {
                rest = push_reply(stack, rest, is_whole);
                stack.set_raw_element(-2, index as c_int);
            }
            rest
        }
    }
}

fn push_tagged(stack: Stack<'_>, tag: &str, text: &[u8]) {
    stack.new_table(0, 1);
    stack.push_bytes(text);
    stack.set_raw_field(-2, tag);
}

/// Pops a value and its key, and sets that field of the table below. Skips the keys nil and NaN,
/// which Lua rejects.
pub(crate) fn set_if_key(stack: Stack<'_>) {
    let is_key = match stack.kind(-2) {
        Kind::Nil | Kind::None => false,
        Kind::Number => !stack.number(-2).is_nan(),
        _ => true,
    };
    if is_key { stack.raw_set(-3) } else { stack.pop(2) }
}

/// Converts the value on top of the stack to a reply, and pops the value. `script` is the protocol
/// version that the script has set. Returns whether the reply is an error of a command that the
/// script called. Such an error is already in the error statistics.
pub(crate) fn write(stack: Stack<'_>, script: Version, reply: &mut Reply<'_>) -> bool {
    let (begin, top) = (reply.position(), stack.top());
    let mut left = Left { end: begin.saturating_add(REPLY_BYTES_MAX), is_over: false };
    let is_counted = write_at(stack, script, reply, 0, &mut left);
    if left.is_over {
        reply.truncate(begin);
        reply.error("ERR the script's reply is too large");
        stack.set_top(top - 1);
        return false;
    }
    is_counted
}

/// The space that is left for a reply.
struct Left {
    end: usize,
    /// Whether the reply has exceeded `end` and will be discarded.
    is_over: bool,
}

fn write_at(stack: Stack<'_>, script: Version, reply: &mut Reply<'_>, depth: u32, left: &mut Left) -> bool {
    left.is_over |= reply.position() > left.end;
    if left.is_over {
        stack.pop(1);
        return false;
    }
    if depth >= REPLY_DEPTH_MAX || !stack.room(6) {
        reply.error("ERR reached lua stack limit");
        stack.pop(1);
        return false;
    }
    let mut is_counted = false;
    match stack.kind(-1) {
        // SAFETY: the value stays on top while its bytes are copied to the reply.
        Kind::String => reply.bulk(unsafe { stack.bytes(-1) }.unwrap_or_default()),
        Kind::Number => reply.integer(integer(stack.number(-1))),
        Kind::Boolean => match (script, stack.boolean(-1)) {
            (Version::Resp2, true) => reply.integer(1),
            (Version::Resp2, false) => reply.null(),
            (Version::Resp3, value) => reply.boolean(value),
        },
        Kind::Table => is_counted = write_table(stack, script, reply, depth, left),
        _ => reply.null(),
    }
    stack.pop(1);
    is_counted
}

/// Converts a number as a C cast does on the platforms that Redis supports. A value out of range
/// becomes `i64::MIN`.
fn integer(number: f64) -> i64 {
    const LIMIT: f64 = 9_223_372_036_854_775_808.0;
    if (-LIMIT..LIMIT).contains(&number) { number as i64 } else { i64::MIN }
}

/// Converts the table on top of the stack. The table stays there.
fn write_table(stack: Stack<'_>, script: Version, reply: &mut Reply<'_>, depth: u32, left: &mut Left) -> bool {
    let table = stack.top();
    let field = |name: &str, kind: Kind| {
        stack.raw_field(table, name);
        let is_it = stack.kind(-1) == kind;
        if !is_it {
            stack.pop(1);
        }
        is_it
    };
    if field("err", Kind::String) {
        let error = errors::read(stack, table);
        reply.error_bytes(c_string(&error.text));
        stack.set_top(table);
        return error.is_counted;
    }
    if field("ok", Kind::String) {
        let text: Vec<u8> = c_string(&stack.copied(-1).unwrap_or_default()).iter().map(one_line).collect();
        reply.raw(b"+");
        reply.raw(&text);
        reply.raw(b"\r\n");
    } else if field("double", Kind::Number) {
        reply.double(stack.number(-1));
    } else if field("big_number", Kind::String) {
        let digits: Vec<u8> = stack.copied(-1).unwrap_or_default().iter().map(one_line).collect();
        reply.big_number(&digits);
    } else if field("verbatim_string", Kind::Table) && write_verbatim(stack, reply) {
    } else if field("map", Kind::Table) {
        let (deferred, mut pairs) = (reply.defer_map(), 0);
        stack.push_nil();
        while !left.is_over && stack.next(-2) {
            stack.push_copy(-2);
            write_at(stack, script, reply, depth + 1, left);
            write_at(stack, script, reply, depth + 1, left);
            pairs += 1;
        }
        reply.patch(deferred, pairs);
    } else if field("set", Kind::Table) {
        let (deferred, mut members) = (reply.defer_set(), 0);
        stack.push_nil();
        while !left.is_over && stack.next(-2) {
            stack.pop(1);
            stack.push_copy(-1);
            write_at(stack, script, reply, depth + 1, left);
            members += 1;
        }
        reply.patch(deferred, members);
    } else {
        write_array(stack, script, reply, depth, left);
    }
    stack.set_top(table);
    false
}

/// Writes the elements of a table, up to the first nil, as an array.
fn write_array(stack: Stack<'_>, script: Version, reply: &mut Reply<'_>, depth: u32, left: &mut Left) {
    let table = stack.top();
    let mut len = 0;
    loop {
        stack.raw_element(table, len + 1);
        let is_end = stack.kind(-1) == Kind::Nil;
        stack.pop(1);
        if is_end {
            break;
        }
        len += 1;
    }
    // Nothing changes the table before its elements are written, so `len` stays correct. A length
    // written after the elements would require moving their bytes.
    reply.array(len as usize);
    for index in 1..=len {
        if left.is_over {
            return;
        }
        stack.raw_element(table, index);
        write_at(stack, script, reply, depth + 1, left);
    }
}

/// Writes the table on top of the stack, which has a text and a format, as a verbatim string. If
/// the text or the format is missing, pops the table and returns `false`.
fn write_verbatim(stack: Stack<'_>, reply: &mut Reply<'_>) -> bool {
    stack.raw_field(-1, "format");
    stack.raw_field(-2, "string");
    if stack.kind(-2) == Kind::String && stack.kind(-1) == Kind::String {
        // SAFETY: both values stay on the stack while their bytes are copied to the reply.
        let (format, text) = unsafe { (stack.bytes(-2).unwrap_or_default(), stack.bytes(-1).unwrap_or_default()) };
        reply.verbatim(&String::from_utf8_lossy(format), text);
        return true;
    }
    stack.pop(3);
    false
}

/// Returns the part before the first zero byte.
fn c_string(text: &[u8]) -> &[u8] {
    text.split(|&byte| byte == 0).next().unwrap_or_default()
}

fn one_line(byte: &u8) -> u8 {
    if matches!(byte, b'\r' | b'\n') { b' ' } else { *byte }
}
