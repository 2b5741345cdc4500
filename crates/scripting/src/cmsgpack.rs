//! The Lua library `cmsgpack`: MessagePack, compatible with Redis's library.

use std::ffi::c_int;

use mlua_sys::lua51 as ffi;

use crate::api::lua_integer;
use crate::lua::{Kind, Outcome, Raise, Stack, lua_functions};

lua_functions! {
    pack => pack_values;
    unpack => unpack_all;
    unpack_one => unpack_first;
    unpack_limit => unpack_some;
}

const FUNCTIONS: [(&str, ffi::lua_CFunction); 4] =
    [("pack", pack), ("unpack", unpack), ("unpack_one", unpack_one), ("unpack_limit", unpack_limit)];

/// Maximum depth of nested tables to encode. Deeper tables are encoded as nil.
const PACK_DEPTH_MAX: u32 = 16;
/// Maximum depth of decoded data.
const UNPACK_DEPTH_MAX: u32 = 1000;
/// Maximum number of values returned by one call.
const VALUES_MAX: usize = 7_900;

/// Pushes the library.
pub(crate) fn push(stack: Stack<'_>) {
    stack.push_functions(&FUNCTIONS);
    let texts = [
        ("_NAME", "cmsgpack"),
        ("_VERSION", "lua-cmsgpack 0.4.0"),
        ("_COPYRIGHT", "Copyright (C) 2012, Salvatore Sanfilippo"),
        ("_DESCRIPTION", "MessagePack C implementation for Lua"),
    ];
    for (name, text) in texts {
        stack.push_bytes(text.as_bytes());
        stack.set_raw_field(-2, name);
    }
}

/// `cmsgpack.pack(…)`: returns the encodings of all values, concatenated.
fn pack_values(stack: Stack<'_>) -> Outcome {
    let count = stack.top();
    if count == 0 {
        return Err(stack.argument_error(0, "MessagePack pack needs input."));
    }
    let mut out = Vec::new();
    for argument in 1..=count {
        stack.push_copy(argument);
        encode(stack, &mut out, 0)?;
    }
    stack.push_bytes(&out);
    Ok(1)
}

/// Encodes the value on top of the stack, and pops the value.
fn encode(stack: Stack<'_>, out: &mut Vec<u8>, depth: u32) -> Result<(), Raise> {
    if stack.memory().would_exceed(out.len()) || !stack.room(6) {
        return Err(stack.error("not enough memory"));
    }
    match stack.kind(-1) {
        Kind::String => {
            // SAFETY: the value stays on top while its bytes are copied.
            let bytes = unsafe { stack.bytes(-1) }.unwrap_or_default();
            match bytes.len() {
                len @ ..32 => out.push(0xa0 | len as u8),
                len @ ..=0xff => out.extend([0xd9, len as u8]),
                len => sized(out, 0xda, len),
            }
            out.extend_from_slice(bytes);
        }
        Kind::Boolean => out.push(if stack.boolean(-1) { 0xc3 } else { 0xc2 }),
        Kind::Number => encode_number(out, stack.number(-1)),
        Kind::Table if depth < PACK_DEPTH_MAX => encode_table(stack, out, depth)?,
        _ => out.push(0xc0),
    }
    stack.pop(1);
    Ok(())
}

/// Writes `kind` with a 16-bit length, or `kind + 1` with a 32-bit length.
fn sized(out: &mut Vec<u8>, kind: u8, len: usize) {
    match u16::try_from(len) {
        Ok(len) => {
            out.push(kind);
            out.extend(len.to_be_bytes());
        }
        Err(_) => {
            out.push(kind + 1);
            out.extend((len as u32).to_be_bytes());
        }
    }
}

fn encode_number(out: &mut Vec<u8>, number: f64) {
    const LIMIT: f64 = 9_223_372_036_854_775_808.0;
    if number.trunc() == number && (-LIMIT..LIMIT).contains(&number) {
        return encode_integer(out, number as i64);
    }
    let single = number as f32;
    if f64::from(single) == number {
        out.push(0xca);
        out.extend(single.to_be_bytes());
    } else {
        out.push(0xcb);
        out.extend(number.to_be_bytes());
    }
}

/// Encodes an integer in as few bytes as possible.
fn encode_integer(out: &mut Vec<u8>, number: i64) {
    let bytes = number.to_be_bytes();
    let (kind, len) = match number {
        -32..=0x7f => return out.push(number as u8),
        0x80..=0xff => (0xcc, 1),
        0x100..=0xffff => (0xcd, 2),
        0x1_0000..=0xffff_ffff => (0xce, 4),
        0x1_0000_0000.. => (0xcf, 8),
        -0x80..=-33 => (0xd0, 1),
        -0x8000..=-0x81 => (0xd1, 2),
        -0x8000_0000..=-0x8001 => (0xd2, 4),
        _ => (0xd3, 8),
    };
    out.push(kind);
    out.extend_from_slice(&bytes[8 - len..]);
}

/// Encodes the table on top of the stack: as an array if its keys are 1 to n, otherwise as a map.
fn encode_table(stack: Stack<'_>, out: &mut Vec<u8>, depth: u32) -> Result<(), Raise> {
    let (mut count, mut largest, mut is_array) = (0usize, 0.0f64, true);
    stack.push_nil();
    while stack.next(-2) {
        stack.pop(1);
        count += 1;
        let is_index = stack.kind(-1) == Kind::Number && {
            let key = stack.number(-1);
            largest = largest.max(key);
            key > 0.0 && key.trunc() == key
        };
        is_array &= is_index;
    }
    if is_array && largest == count as f64 {
        match count {
            ..16 => out.push(0x90 | count as u8),
            _ => sized(out, 0xdc, count),
        }
        for index in 1..=count {
            stack.raw_element(-1, index as i32);
            encode(stack, out, depth + 1)?;
        }
        return Ok(());
    }
    match count {
        ..16 => out.push(0x80 | count as u8),
        _ => sized(out, 0xde, count),
    }
    stack.push_nil();
    while stack.next(-2) {
        stack.push_copy(-2);
        encode(stack, out, depth + 1)?;
        encode(stack, out, depth + 1)?;
    }
    Ok(())
}

/// The reason why bytes can't be decoded.
enum Bad {
    Short,
    Format,
    /// The Lua state is out of memory.
    Memory,
    /// A map has a key that Lua does not allow in a table. Contains Lua's error text.
    Key(&'static str),
}

/// The bytes that are left to decode.
struct Input<'i> {
    rest: &'i [u8],
}

impl<'i> Input<'i> {
    fn take(&mut self, len: usize) -> Result<&'i [u8], Bad> {
        let (bytes, rest) = self.rest.split_at_checked(len).ok_or(Bad::Short)?;
        self.rest = rest;
        Ok(bytes)
    }

    fn number(&mut self, len: usize) -> Result<u64, Bad> {
        Ok(self.take(len)?.iter().fold(0, |number, &byte| number << 8 | u64::from(byte)))
    }

    fn signed(&mut self, len: usize) -> Result<f64, Bad> {
        let unused = 64 - 8 * len as u32;
        Ok((((self.number(len)? << unused) as i64) >> unused) as f64)
    }
}

/// Decodes the next value and pushes it.
fn decode(stack: Stack<'_>, input: &mut Input<'_>, depth: u32) -> Result<(), Bad> {
    if depth > UNPACK_DEPTH_MAX || !stack.room(6) {
        return Err(Bad::Format);
    }
    if stack.memory().is_full() {
        return Err(Bad::Memory);
    }
    let kind = input.take(1)?[0];
    match kind {
        0x00..=0x7f => stack.push_number(f64::from(kind)),
        0xe0..=0xff => stack.push_number(f64::from(kind as i8)),
        0xc0 => stack.push_nil(),
        0xc2 | 0xc3 => stack.push_boolean(kind == 0xc3),
        0xca => stack.push_number(f64::from(f32::from_bits(input.number(4)? as u32))),
        0xcb => stack.push_number(f64::from_bits(input.number(8)?)),
        0xcc..=0xce => stack.push_number(input.number(1 << (kind - 0xcc))? as f64),
        // Decode as a signed number, as Redis's library does.
        0xcf => stack.push_number(input.signed(8)?),
        0xd0..=0xd3 => stack.push_number(input.signed(1 << (kind - 0xd0))?),
        0xa0..=0xbf => stack.push_bytes(input.take(usize::from(kind & 0x1f))?),
        0xd9..=0xdb => {
            let len = input.number(1 << (kind - 0xd9))? as usize;
            stack.push_bytes(input.take(len)?);
        }
        0x90..=0x9f => decode_array(stack, input, usize::from(kind & 0xf), depth)?,
        0xdc | 0xdd => {
            let len = input.number(2 << (kind - 0xdc))? as usize;
            decode_array(stack, input, len, depth)?;
        }
        0x80..=0x8f => decode_map(stack, input, usize::from(kind & 0xf), depth)?,
        0xde | 0xdf => {
            let len = input.number(2 << (kind - 0xde))? as usize;
            decode_map(stack, input, len, depth)?;
        }
        _ => return Err(Bad::Format),
    }
    Ok(())
}

fn decode_array(stack: Stack<'_>, input: &mut Input<'_>, len: usize, depth: u32) -> Result<(), Bad> {
    stack.new_table(len.min(input.rest.len()), 0);
    for index in 1..=len {
        decode(stack, input, depth + 1)?;
        stack.set_raw_element(-2, index as i32);
    }
    Ok(())
}

fn decode_map(stack: Stack<'_>, input: &mut Input<'_>, len: usize, depth: u32) -> Result<(), Bad> {
    stack.new_table(0, len.min(input.rest.len()));
    for _ in 0..len {
        decode(stack, input, depth + 1)?;
        decode(stack, input, depth + 1)?;
        match stack.kind(-2) {
            Kind::Nil => return Err(Bad::Key("table index is nil")),
            Kind::Number if stack.number(-2).is_nan() => return Err(Bad::Key("table index is NaN")),
            _ => stack.raw_set(-3),
        }
    }
    Ok(())
}

/// `cmsgpack.unpack(bytes)`.
fn unpack_all(stack: Stack<'_>) -> Outcome {
    unpack_values(stack, 0, 0)
}

/// `cmsgpack.unpack_one(bytes [, offset])`: returns the offset after the first value (-1 at the end
/// of the bytes), and that value.
fn unpack_first(stack: Stack<'_>) -> Outcome {
    let offset = optional(stack, 2)?;
    unpack_values(stack, 1, offset)
}

/// `cmsgpack.unpack_limit(bytes, limit [, offset])`: returns the offset after the last value (-1 at
/// the end of the bytes), and the values.
fn unpack_some(stack: Stack<'_>) -> Outcome {
    let limit = lua_integer(stack.check_number(2)?);
    let offset = optional(stack, 3)?;
    unpack_values(stack, limit, offset)
}

fn optional(stack: Stack<'_>, argument: i32) -> Result<i64, Raise> {
    match stack.kind(argument) {
        Kind::None | Kind::Nil => Ok(0),
        _ => Ok(lua_integer(stack.check_number(argument)?)),
    }
}

/// Decodes at most `limit` values from `offset` on. If both numbers are 0, decodes all values and
/// returns no offset.
fn unpack_values(stack: Stack<'_>, limit: i64, offset: i64) -> Outcome {
    // SAFETY: the argument stays on the stack. Decoded values are pushed above it.
    let bytes = unsafe { stack.check_bytes(1)? };
    // As in Redis, the errors show both numbers as `int`, and the length instead of the limit.
    let (shown_offset, shown_len) = (offset as c_int, bytes.len() as c_int);
    if limit < 0 || offset < 0 {
        let text = format!("Invalid request to unpack with offset of {shown_offset} and limit of {shown_len}.");
        return Err(stack.error(&text));
    }
    let Some(rest) = bytes.get(offset as usize..) else {
        let text = format!("Start offset {shown_offset} greater than input length {shown_len}.");
        return Err(stack.error(&text));
    };
    // The bytes stay on the stack, below the decoded values.
    stack.set_top(1);
    let mut input = Input { rest };
    let is_all = limit == 0 && offset == 0;
    let mut count = 0;
    while (is_all || count < limit as usize) && !input.rest.is_empty() {
        if count >= VALUES_MAX {
            return Err(stack.error("stack overflow (in function mp_unpack_full)"));
        }
        match decode(stack, &mut input, 0) {
            Ok(()) => count += 1,
            Err(Bad::Short) => return Err(stack.error("Missing bytes in input.")),
            Err(Bad::Format) => return Err(stack.error("Bad data format in input.")),
            Err(Bad::Memory) => return Err(stack.error("not enough memory")),
            Err(Bad::Key(why)) => {
                stack.push_bytes(why.as_bytes());
                return Err(Raise);
            }
        }
    }
    let mut results = count as i32;
    if !is_all {
        let behind = if input.rest.is_empty() { -1.0 } else { (bytes.len() - input.rest.len()) as f64 };
        stack.push_number(behind);
        stack.insert(2);
        results += 1;
    }
    Ok(results)
}
