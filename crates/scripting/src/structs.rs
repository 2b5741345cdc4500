//! The Lua library `struct`: packs values into bytes according to a format, compatible with Redis's
//! library.

use mlua_sys::lua51 as ffi;

use crate::lua::{Kind, Outcome, Raise, Stack, lua_functions};

lua_functions! {
    pack => pack_values;
    unpack => unpack_values;
    size => size_of_format;
}

const FUNCTIONS: [(&str, ffi::lua_CFunction); 3] = [("pack", pack), ("unpack", unpack), ("size", size)];

/// Maximum size of an integer, bytes.
const INTEGER_BYTES_MAX: usize = 32;
/// Default alignment of the option `!`, bytes.
const ALIGN_BYTES: usize = 8;
/// Maximum number of unpacked values.
const VALUES_MAX: i32 = 7_900;

/// Pushes the library.
pub(crate) fn push(stack: Stack<'_>) {
    stack.push_functions(&FUNCTIONS);
}

/// A format that is being parsed, and its settings.
struct Format<'f> {
    stack: Stack<'f>,
    rest: &'f [u8],
    is_little: bool,
    align: usize,
}

/// One item of a format.
struct Item {
    option: u8,
    size: usize,
    /// Padding before the item, bytes.
    padding: usize,
}

impl<'f> Format<'f> {
    fn new(stack: Stack<'f>) -> Result<Self, Raise> {
        // SAFETY: the first argument stays on the stack while the format is parsed. Results are
        // pushed above the arguments.
        let rest = unsafe { stack.check_bytes(1)? };
        let rest = rest.split(|&byte| byte == 0).next().unwrap_or_default();
        Ok(Format { stack, rest, is_little: cfg!(target_endian = "little"), align: 1 })
    }

    /// Parses a number in the format. Returns `default` if there are no digits.
    fn number(&mut self, default: usize) -> Result<usize, Raise> {
        let digits = self.rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        if digits == 0 {
            return Ok(default);
        }
        let mut number: i32 = 0;
        for digit in &self.rest[..digits] {
            number = number
                .checked_mul(10)
                .and_then(|tens| tens.checked_add(i32::from(digit - b'0')))
                .ok_or_else(|| self.stack.error("integral size overflow"))?;
        }
        self.rest = &self.rest[digits..];
        Ok(number as usize)
    }

    /// Returns the next item for a position in the data. An option that only changes a setting has
    /// size 0.
    fn next(&mut self, position: usize) -> Result<Option<Item>, Raise> {
        let Some((&option, rest)) = self.rest.split_first() else { return Ok(None) };
        self.rest = rest;
        let size = match option {
            b'b' | b'B' | b'x' => 1,
            b'h' | b'H' => 2,
            b'f' => 4,
            b'l' | b'L' | b'T' | b'd' => 8,
            b'c' => self.number(1)?,
            b'i' | b'I' => {
                let size = self.number(4)?;
                if size > INTEGER_BYTES_MAX {
                    let text = format!("integral size {size} is larger than limit of {INTEGER_BYTES_MAX}");
                    return Err(self.stack.error(&text));
                }
                size
            }
            _ => 0,
        };
        let padding = if size == 0 || option == b'c' {
            0
        } else {
            let align = size.min(self.align);
            align.wrapping_sub(position & (align - 1)) & (align - 1)
        };
        Ok(Some(Item { option, size, padding }))
    }

    /// Applies an option that only changes a setting.
    fn set(&mut self, option: u8) -> Result<(), Raise> {
        match option {
            b' ' => {}
            b'>' => self.is_little = false,
            b'<' => self.is_little = true,
            b'!' => {
                let align = self.number(ALIGN_BYTES)?;
                if !align.is_power_of_two() {
                    return Err(self.stack.error(&format!("alignment {align} is not a power of 2")));
                }
                self.align = align;
            }
            _ => {
                let text = format!("invalid format option '{}'", char::from(option));
                return Err(self.stack.argument_error(1, &text));
            }
        }
        Ok(())
    }

    /// Appends the little-endian bytes `little` in the current byte order.
    fn put(&self, out: &mut Vec<u8>, little: &[u8]) {
        let start = out.len();
        out.extend_from_slice(little);
        if !self.is_little {
            out[start..].reverse();
        }
    }

    /// Returns the 8 least significant bytes of a number in the current byte order, as
    /// little-endian.
    fn lowest(&self, bytes: &[u8]) -> [u8; 8] {
        let mut little = [0; 8];
        for (at, to) in little.iter_mut().enumerate().take(bytes.len()) {
            *to = if self.is_little { bytes[at] } else { bytes[bytes.len() - 1 - at] };
        }
        little
    }
}

fn is_integer(option: u8) -> bool {
    matches!(option, b'b' | b'B' | b'h' | b'H' | b'l' | b'L' | b'T' | b'i' | b'I')
}

/// `struct.pack(format, …)`.
fn pack_values(stack: Stack<'_>) -> Outcome {
    let mut format = Format::new(stack)?;
    // A missing argument is read as this nil.
    stack.push_nil();
    let (mut argument, mut position, mut out) = (2, 0, Vec::new());
    while let Some(Item { option, mut size, padding }) = format.next(position)? {
        position += padding;
        out.resize(out.len() + padding, 0);
        match option {
            option if is_integer(option) => {
                let number = stack.check_number(argument)?;
                argument += 1;
                let mut little = [0; INTEGER_BYTES_MAX];
                little[..8].copy_from_slice(&integer_bits(number).to_le_bytes());
                format.put(&mut out, &little[..size]);
            }
            b'x' => out.push(0),
            b'f' => {
                format.put(&mut out, &(stack.check_number(argument)? as f32).to_le_bytes());
                argument += 1;
            }
            b'd' => {
                format.put(&mut out, &stack.check_number(argument)?.to_le_bytes());
                argument += 1;
            }
            b'c' | b's' => {
                // SAFETY: the arguments stay on the stack.
                let bytes = unsafe { stack.check_bytes(argument)? };
                argument += 1;
                if size == 0 {
                    size = bytes.len();
                }
                if bytes.len() < size {
                    return Err(stack.argument_error(argument, "string too short"));
                }
                out.extend_from_slice(&bytes[..size]);
                if option == b's' {
                    out.push(0);
                    size += 1;
                }
            }
            _ => format.set(option)?,
        }
        position += size;
        if stack.memory().would_exceed(out.len()) {
            return Err(stack.error("not enough memory"));
        }
    }
    stack.push_bytes(&out);
    Ok(1)
}

/// `struct.unpack(format, bytes [, position])`: returns the values and the position after them.
fn unpack_values(stack: Stack<'_>) -> Outcome {
    let mut format = Format::new(stack)?;
    // SAFETY: the arguments stay on the stack. Values are pushed above them.
    let data = unsafe { stack.check_bytes(2)? };
    let mut position = 0;
    if !matches!(stack.kind(3), Kind::None | Kind::Nil) {
        // As in C, a negative position is larger than any data.
        let from = signed_bits(stack.check_number(3)?) as usize;
        if from == 0 {
            return Err(stack.argument_error(3, "offset must be 1 or greater"));
        }
        position = from - 1;
    }
    // Push values above the arguments.
    stack.set_top(3);
    let mut values = 0;
    while let Some(Item { option, mut size, padding }) = format.next(position)? {
        position = position.wrapping_add(padding);
        let too_short = |size: usize, position: usize| size > data.len() || position > data.len() - size;
        if too_short(size, position) {
            return Err(stack.argument_error(2, "data string too short"));
        }
        if values >= VALUES_MAX || !stack.room(4) {
            return Err(stack.error("stack overflow (too many results)"));
        }
        let bytes = &data[position..][..size];
        match option {
            option if is_integer(option) => {
                stack.push_number(integer(format.lowest(bytes), size, option.is_ascii_lowercase()));
                values += 1;
            }
            b'x' => {}
            b'f' => {
                let [a, b, c, d, ..] = format.lowest(bytes);
                stack.push_number(f64::from(f32::from_le_bytes([a, b, c, d])));
                values += 1;
            }
            b'd' => {
                stack.push_number(f64::from_le_bytes(format.lowest(bytes)));
                values += 1;
            }
            b'c' => {
                if size == 0 {
                    if values == 0 || !stack.is_numeric(-1) {
                        return Err(stack.error("format 'c0' needs a previous size"));
                    }
                    // As in C, a negative size is larger than any data.
                    size = integer_bits(stack.number(-1)) as usize;
                    stack.pop(1);
                    values -= 1;
                    if too_short(size, position) {
                        return Err(stack.argument_error(2, "data string too short"));
                    }
                }
                stack.push_bytes(&data[position..][..size]);
                values += 1;
            }
            b's' => {
                let Some(len) = data[position..].iter().position(|&byte| byte == 0) else {
                    return Err(stack.error("unfinished string in data"));
                };
                stack.push_bytes(&data[position..][..len]);
                size = len + 1;
                values += 1;
            }
            _ => format.set(option)?,
        }
        position += size;
    }
    stack.push_number(position.wrapping_add(1) as i64 as f64);
    Ok(values + 1)
}

/// 2^63, the smallest positive integer that `i64` cannot represent.
const SIGNED_END: f64 = 9_223_372_036_854_775_808.0;

/// Converts a number to a signed integer as x86-64 does. A value out of range becomes `i64::MIN`.
fn signed_bits(number: f64) -> i64 {
    if number < SIGNED_END { number as i64 } else { i64::MIN }
}

/// Converts a number to an integer that is used as signed or unsigned, as C does on x86-64. A
/// number of at least 2^64 becomes 0. A number below -2^63 becomes 2^63.
fn integer_bits(number: f64) -> u64 {
    if number >= SIGNED_END { signed_bits(number - SIGNED_END) as u64 ^ 1 << 63 } else { signed_bits(number) as u64 }
}

/// Returns an integer of `size` bytes, given its 8 least significant bytes.
fn integer(little: [u8; 8], size: usize, is_signed: bool) -> f64 {
    let bits = u64::from_le_bytes(little);
    if !is_signed {
        return bits as f64;
    }
    let unused = 64 - 8 * size.clamp(1, 8);
    (((bits << unused) as i64) >> unused) as f64
}

/// `struct.size(format)`.
fn size_of_format(stack: Stack<'_>) -> Outcome {
    let mut format = Format::new(stack)?;
    let mut position = 0;
    while let Some(Item { option, size, padding }) = format.next(position)? {
        position += padding;
        if option == b's' {
            return Err(stack.argument_error(1, "option 's' has no fixed size"));
        }
        if option == b'c' && size == 0 {
            return Err(stack.argument_error(1, "option 'c0' has no fixed size"));
        }
        if !option.is_ascii_alphanumeric() {
            format.set(option)?;
        }
        position += size;
    }
    stack.push_number(position as f64);
    Ok(1)
}
