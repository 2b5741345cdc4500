//! The Lua library `cjson`: JSON, compatible with Redis's version 2.1.0. This module encodes;
//! [`parse`] decodes.
//!
//! Settings (depths, precision, sparse arrays) apply until the script ends. In Redis they also
//! apply to all later scripts.

use mlua_sys::lua51 as ffi;

use crate::lua::{Kind, Outcome, Raise, Stack, lua_functions};

mod parse;

lua_functions! {
    encode => encode_value;
    decode => decode_text;
    new => new_library;
    encode_sparse_array => set_sparse_array;
    encode_max_depth => set_encode_depth;
    decode_max_depth => set_decode_depth;
    encode_number_precision => set_precision;
    encode_keep_buffer => set_keep_buffer;
    encode_invalid_numbers => set_encode_invalid;
    decode_invalid_numbers => set_decode_invalid;
}

const FUNCTIONS: [(&str, ffi::lua_CFunction); 10] = [
    ("encode", encode),
    ("decode", decode),
    ("new", new),
    ("encode_sparse_array", encode_sparse_array),
    ("encode_max_depth", encode_max_depth),
    ("decode_max_depth", decode_max_depth),
    ("encode_number_precision", encode_number_precision),
    ("encode_keep_buffer", encode_keep_buffer),
    ("encode_invalid_numbers", encode_invalid_numbers),
    ("decode_invalid_numbers", decode_invalid_numbers),
];

/// Treatment of numbers that JSON cannot represent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Invalid {
    Error,
    Write,
    Null,
}

/// The settings of one script.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Config {
    converts_sparse: bool,
    sparse_ratio: i32,
    sparse_safe: i32,
    encode_depth_max: i32,
    decode_depth_max: i32,
    precision: i32,
    keeps_buffer: bool,
    encode_invalid: Invalid,
    decode_invalid: bool,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            converts_sparse: false,
            sparse_ratio: 2,
            sparse_safe: 10,
            encode_depth_max: DEPTH,
            decode_depth_max: DEPTH,
            precision: 14,
            keeps_buffer: true,
            encode_invalid: Invalid::Error,
            decode_invalid: true,
        }
    }
}

/// Default maximum depth of nested tables.
const DEPTH: i32 = 1000;
/// Maximum effective value of the depth settings. Larger settings have no further effect, because
/// encoding and decoding recurse on the native stack.
const DEPTH_MAX: i32 = 4000;
/// Maximum number of significant digits.
const PRECISION_MAX: i32 = 14;

/// Pushes the library.
pub(crate) fn push(stack: Stack<'_>) {
    stack.push_functions(&FUNCTIONS);
    stack.push_light_userdata(std::ptr::null_mut());
    stack.set_raw_field(-2, "null");
    for (name, text) in [("_NAME", "cjson"), ("_VERSION", "2.1.0")] {
        stack.push_bytes(text.as_bytes());
        stack.set_raw_field(-2, name);
    }
}

/// `cjson.new()`.
fn new_library(stack: Stack<'_>) -> Outcome {
    push(stack);
    Ok(1)
}

/// Rejects more than `count` arguments.
fn at_most(stack: Stack<'_>, count: i32) -> Result<(), Raise> {
    if stack.top() > count {
        return Err(stack.argument_error(count + 1, "found too many arguments"));
    }
    Ok(())
}

/// Sets `to` to the value of an integer argument, if that argument is present.
fn set_integer(stack: Stack<'_>, argument: i32, to: &mut i32, least: i32, most: i32) -> Result<(), Raise> {
    if !matches!(stack.kind(argument), Kind::None | Kind::Nil) {
        let value = stack.check_number(argument)?;
        if !(f64::from(least)..=f64::from(most)).contains(&value) {
            let text = format!("expected integer between {least} and {most}");
            return Err(stack.argument_error(argument, &text));
        }
        *to = value as i32;
    }
    Ok(())
}

/// Sets `to` to the value of a switch (a boolean, `on` or `off`), if that argument is present.
fn set_switch(stack: Stack<'_>, argument: i32, to: &mut bool) -> Result<(), Raise> {
    match stack.kind(argument) {
        Kind::None | Kind::Nil => {}
        Kind::Boolean => *to = stack.boolean(argument),
        // SAFETY: the arguments stay on the stack.
        _ => match unsafe { stack.check_bytes(argument)? } {
            b"on" => *to = true,
            b"off" => *to = false,
            other => {
                let text = format!("invalid option '{}'", String::from_utf8_lossy(other));
                return Err(stack.argument_error(argument, &text));
            }
        },
    }
    Ok(())
}

/// Calls `with` to change the settings according to the arguments. Returns the new settings.
/// Rejects more than `count` arguments.
fn change(
    stack: Stack<'_>,
    count: i32,
    with: fn(Stack<'_>, &mut Config) -> Result<(), Raise>,
) -> Result<Config, Raise> {
    at_most(stack, count)?;
    let mut config = stack.memory().json.get();
    with(stack, &mut config)?;
    stack.memory().json.set(config);
    Ok(config)
}

fn set_sparse_array(stack: Stack<'_>) -> Outcome {
    let config = change(stack, 3, |stack, config| {
        set_switch(stack, 1, &mut config.converts_sparse)?;
        set_integer(stack, 2, &mut config.sparse_ratio, 0, i32::MAX)?;
        set_integer(stack, 3, &mut config.sparse_safe, 0, i32::MAX)
    })?;
    stack.push_boolean(config.converts_sparse);
    stack.push_number(f64::from(config.sparse_ratio));
    stack.push_number(f64::from(config.sparse_safe));
    Ok(3)
}

fn set_encode_depth(stack: Stack<'_>) -> Outcome {
    let config = change(stack, 1, |stack, config| set_integer(stack, 1, &mut config.encode_depth_max, 1, i32::MAX))?;
    stack.push_number(f64::from(config.encode_depth_max));
    Ok(1)
}

fn set_decode_depth(stack: Stack<'_>) -> Outcome {
    let config = change(stack, 1, |stack, config| set_integer(stack, 1, &mut config.decode_depth_max, 1, i32::MAX))?;
    stack.push_number(f64::from(config.decode_depth_max));
    Ok(1)
}

fn set_precision(stack: Stack<'_>) -> Outcome {
    let config = change(stack, 1, |stack, config| set_integer(stack, 1, &mut config.precision, 1, PRECISION_MAX))?;
    stack.push_number(f64::from(config.precision));
    Ok(1)
}

fn set_keep_buffer(stack: Stack<'_>) -> Outcome {
    let config = change(stack, 1, |stack, config| set_switch(stack, 1, &mut config.keeps_buffer))?;
    stack.push_boolean(config.keeps_buffer);
    Ok(1)
}

fn set_encode_invalid(stack: Stack<'_>) -> Outcome {
    let config = change(stack, 1, |stack, config| {
        if stack.kind(1) == Kind::String && stack.copied(1).is_some_and(|text| text == b"null") {
            config.encode_invalid = Invalid::Null;
            return Ok(());
        }
        let mut writes = config.encode_invalid == Invalid::Write;
        let given = !matches!(stack.kind(1), Kind::None | Kind::Nil);
        set_switch(stack, 1, &mut writes)?;
        if given {
            config.encode_invalid = if writes { Invalid::Write } else { Invalid::Error };
        }
        Ok(())
    })?;
    match config.encode_invalid {
        Invalid::Null => stack.push_bytes(b"null"),
        invalid => stack.push_boolean(invalid == Invalid::Write),
    }
    Ok(1)
}

fn set_decode_invalid(stack: Stack<'_>) -> Outcome {
    let config = change(stack, 1, |stack, config| set_switch(stack, 1, &mut config.decode_invalid))?;
    stack.push_boolean(config.decode_invalid);
    Ok(1)
}

/// `cjson.decode(text)`.
fn decode_text(stack: Stack<'_>) -> Outcome {
    if stack.top() != 1 {
        return Err(stack.argument_error(1, "expected 1 argument"));
    }
    // SAFETY: the argument stays on the stack. Decoded values are pushed above it.
    let text = unsafe { stack.check_bytes(1)? };
    let config = stack.memory().json.get();
    parse::decode(stack, text, config.decode_depth_max.min(DEPTH_MAX), config.decode_invalid)?;
    Ok(1)
}

/// `cjson.encode(value)`.
fn encode_value(stack: Stack<'_>) -> Outcome {
    if stack.top() != 1 {
        return Err(stack.argument_error(1, "expected 1 argument"));
    }
    let config = stack.memory().json.get();
    let mut writer = Writer { stack, config, out: Vec::new() };
    writer.value(0)?;
    let out = writer.out;
    stack.push_bytes(&out);
    Ok(1)
}

struct Writer<'s> {
    stack: Stack<'s>,
    config: Config,
    out: Vec<u8>,
}

impl Writer<'_> {
    /// Writes the value on top of the stack. The value stays there.
    fn value(&mut self, depth: i32) -> Result<(), Raise> {
        let stack = self.stack;
        if stack.memory().would_exceed(self.out.len()) {
            return Err(stack.error("not enough memory"));
        }
        match stack.kind(-1) {
            // SAFETY: the value stays on top while its bytes are written.
            Kind::String => self.string(unsafe { stack.bytes(-1) }.unwrap_or_default()),
            Kind::Number => self.number(stack.number(-1))?,
            Kind::Boolean => self.out.extend_from_slice(if stack.boolean(-1) { b"true" } else { b"false" }),
            Kind::Nil | Kind::None => self.out.extend_from_slice(b"null"),
            Kind::LightUserdata if stack.light_userdata(-1).is_null() => self.out.extend_from_slice(b"null"),
            Kind::Table => self.table(depth + 1)?,
            _ => return Err(self.refusal("type not supported")),
        }
        Ok(())
    }

    /// Returns the error for a value on top of the stack that can't be encoded.
    fn refusal(&self, why: &str) -> Raise {
        let kind = self.stack.type_name(-1);
        self.stack.error(&format!("Cannot serialise {kind}: {why}"))
    }

    fn table(&mut self, depth: i32) -> Result<(), Raise> {
        let stack = self.stack;
        if depth > self.config.encode_depth_max.min(DEPTH_MAX) || !stack.room(6) {
            return Err(stack.error(&format!("Cannot serialise, excessive nesting ({depth})")));
        }
        match self.array_len()? {
            Some(len) if len > 0 => self.array(len, depth),
            _ => self.object(depth),
        }
    }

    /// Returns the length of the table on top of the stack if it is an array. Returns `None` if the
    /// table must be encoded as an object: if a key is not a positive integer, or if the array is
    /// sparse and the settings convert sparse arrays.
    fn array_len(&self) -> Result<Option<i32>, Raise> {
        let stack = self.stack;
        let (mut most, mut count) = (0.0, 0);
        stack.push_nil();
        while stack.next(-2) {
            stack.pop(1);
            let key = if stack.kind(-1) == Kind::Number { stack.number(-1) } else { 0.0 };
            if key < 1.0 || key.trunc() != key {
                stack.pop(1);
                return Ok(None);
            }
            most = f64::max(most, key);
            count += 1;
        }
        let Config { converts_sparse, sparse_ratio, sparse_safe, .. } = self.config;
        let is_sparse =
            sparse_ratio > 0 && most > f64::from(count) * f64::from(sparse_ratio) && most > f64::from(sparse_safe);
        if is_sparse && !converts_sparse {
            return Err(self.refusal("excessively sparse array"));
        }
        Ok((!is_sparse).then_some(most as i32))
    }

    fn array(&mut self, len: i32, depth: i32) -> Result<(), Raise> {
        self.out.push(b'[');
        for index in 1..=len {
            if index > 1 {
                self.out.push(b',');
            }
            self.stack.raw_element(-1, index);
            self.value(depth)?;
            self.stack.pop(1);
        }
        self.out.push(b']');
        Ok(())
    }

    fn object(&mut self, depth: i32) -> Result<(), Raise> {
        let stack = self.stack;
        self.out.push(b'{');
        let mut is_first = true;
        stack.push_nil();
        while stack.next(-2) {
            if !std::mem::take(&mut is_first) {
                self.out.push(b',');
            }
            match stack.kind(-2) {
                Kind::Number => {
                    self.out.push(b'"');
                    self.number(stack.number(-2))?;
                    self.out.push(b'"');
                }
                // SAFETY: the key stays on the stack while its bytes are written.
                Kind::String => self.string(unsafe { stack.bytes(-2) }.unwrap_or_default()),
                _ => {
                    stack.pop(1);
                    return Err(self.refusal("table key must be a number or string"));
                }
            }
            self.out.push(b':');
            self.value(depth)?;
            stack.pop(1);
        }
        self.out.push(b'}');
        Ok(())
    }

    fn number(&mut self, number: f64) -> Result<(), Raise> {
        if number.is_finite() {
            self.out.extend_from_slice(&general(number, self.config.precision as usize));
            return Ok(());
        }
        match self.config.encode_invalid {
            Invalid::Error => return Err(self.stack.error("Cannot serialise number: must not be NaN or Inf")),
            Invalid::Null => self.out.extend_from_slice(b"null"),
            Invalid::Write if number.is_nan() => self.out.extend_from_slice(b"nan"),
            Invalid::Write => self.out.extend_from_slice(if number < 0.0 { b"-inf" } else { b"inf" }),
        }
        Ok(())
    }

    fn string(&mut self, bytes: &[u8]) {
        self.out.reserve(bytes.len() + 2);
        self.out.push(b'"');
        for &byte in bytes {
            match byte {
                b'"' => self.out.extend_from_slice(b"\\\""),
                b'\\' => self.out.extend_from_slice(b"\\\\"),
                b'/' => self.out.extend_from_slice(b"\\/"),
                0x08 => self.out.extend_from_slice(b"\\b"),
                b'\t' => self.out.extend_from_slice(b"\\t"),
                b'\n' => self.out.extend_from_slice(b"\\n"),
                0x0c => self.out.extend_from_slice(b"\\f"),
                b'\r' => self.out.extend_from_slice(b"\\r"),
                ..0x20 | 0x7f => self.out.extend_from_slice(format!("\\u{byte:04x}").as_bytes()),
                _ => self.out.push(byte),
            }
        }
        self.out.push(b'"');
    }
}

/// Formats a number as C's `%.*g` does.
fn general(number: f64, precision: usize) -> Vec<u8> {
    if number == 0.0 {
        return if number.is_sign_negative() { b"-0".to_vec() } else { b"0".to_vec() };
    }
    let scientific = format!("{:.*e}", precision - 1, number);
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let without_zeros = |text: &str| match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text.to_owned(),
    };
    if exponent < -4 || exponent >= precision as i32 {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{}e{sign}{:02}", without_zeros(digits), exponent.abs()).into_bytes();
    }
    let decimals = (precision as i32 - 1 - exponent).max(0) as usize;
    without_zeros(&format!("{number:.decimals$}")).into_bytes()
}

#[cfg(test)]
mod tests {
    use super::general;

    #[test]
    fn numbers_format_as_by_printf() {
        let shown = |number| String::from_utf8(general(number, 14)).expect("digits");
        assert_eq!(shown(1.0), "1");
        assert_eq!(shown(-0.1), "-0.1");
        assert_eq!(shown(10.0 / 3.0), "3.3333333333333");
        assert_eq!(shown(1e14), "1e+14");
        assert_eq!(shown(99_999_999_999_999.0), "99999999999999");
        assert_eq!(shown(1.5e-5), "1.5e-05");
        assert_eq!(shown(0.000_15), "0.00015");
        assert_eq!(shown(1e300), "1e+300");
        assert_eq!(shown(99_999_999_999_999.99), "1e+14");
    }
}
