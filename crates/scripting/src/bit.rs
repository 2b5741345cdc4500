//! The Lua library `bit`: operations on 32-bit integers, compatible with Redis's BitOp.

use mlua_sys::lua51 as ffi;

use crate::lua::{Outcome, Raise, Stack, lua_functions};

lua_functions! {
    tobit => to_bit;
    bnot => not;
    band => and;
    bor => or;
    bxor => xor;
    lshift => shift_left;
    rshift => shift_right;
    arshift => shift_right_signed;
    rol => rotate_left;
    ror => rotate_right;
    bswap => swap;
    tohex => to_hex;
}

const FUNCTIONS: [(&str, ffi::lua_CFunction); 12] = [
    ("tobit", tobit),
    ("bnot", bnot),
    ("band", band),
    ("bor", bor),
    ("bxor", bxor),
    ("lshift", lshift),
    ("rshift", rshift),
    ("arshift", arshift),
    ("rol", rol),
    ("ror", ror),
    ("bswap", bswap),
    ("tohex", tohex),
];

/// Pushes the library.
pub(crate) fn push(stack: Stack<'_>) {
    stack.push_functions(&FUNCTIONS);
}

/// Hexadecimal digits of a 32-bit number.
const HEX_DIGITS: i32 = 8;

/// Returns an argument, rounded to the nearest integer, modulo 2^32. Adding `SHIFT`, which is 1.5 *
/// 2^52, moves the rounded integer to the low bits of the double.
fn bits(stack: Stack<'_>, argument: i32) -> Result<u32, Raise> {
    const SHIFT: f64 = 6_755_399_441_055_744.0;
    Ok((stack.check_number(argument)? + SHIFT).to_bits() as u32)
}

fn give(stack: Stack<'_>, bits: u32) -> Outcome {
    stack.push_number(f64::from(bits as i32));
    Ok(1)
}

fn to_bit(stack: Stack<'_>) -> Outcome {
    let bits = bits(stack, 1)?;
    give(stack, bits)
}

fn not(stack: Stack<'_>) -> Outcome {
    let bits = bits(stack, 1)?;
    give(stack, !bits)
}

/// Folds the arguments from the last to the second, as Redis's library does. The order determines
/// the error if several arguments are invalid. The error names the first argument if that is
/// invalid, and otherwise the last invalid argument.
fn fold(stack: Stack<'_>, join: fn(u32, u32) -> u32) -> Outcome {
    let mut joined = bits(stack, 1)?;
    for argument in (2..=stack.top()).rev() {
        joined = join(joined, bits(stack, argument)?);
    }
    give(stack, joined)
}

fn and(stack: Stack<'_>) -> Outcome {
    fold(stack, |one, other| one & other)
}

fn or(stack: Stack<'_>) -> Outcome {
    fold(stack, |one, other| one | other)
}

fn xor(stack: Stack<'_>) -> Outcome {
    fold(stack, |one, other| one ^ other)
}

/// Shifts the first argument by the low five bits of the second.
fn shift(stack: Stack<'_>, shift: fn(u32, u32) -> u32) -> Outcome {
    let (number, by) = (bits(stack, 1)?, bits(stack, 2)? & 31);
    give(stack, shift(number, by))
}

fn shift_left(stack: Stack<'_>) -> Outcome {
    shift(stack, |bits, by| bits << by)
}

fn shift_right(stack: Stack<'_>) -> Outcome {
    shift(stack, |bits, by| bits >> by)
}

fn shift_right_signed(stack: Stack<'_>) -> Outcome {
    shift(stack, |bits, by| ((bits as i32) >> by) as u32)
}

fn rotate_left(stack: Stack<'_>) -> Outcome {
    shift(stack, u32::rotate_left)
}

fn rotate_right(stack: Stack<'_>) -> Outcome {
    shift(stack, u32::rotate_right)
}

fn swap(stack: Stack<'_>) -> Outcome {
    let bits = bits(stack, 1)?;
    give(stack, bits.swap_bytes())
}

/// `tohex(number [, digits])`: returns the lowest `digits` digits, in upper case if `digits` is
/// negative.
fn to_hex(stack: Stack<'_>) -> Outcome {
    let number = bits(stack, 1)?;
    let digits = if stack.top() < 2 { HEX_DIGITS } else { bits(stack, 2)? as i32 };
    let count = digits.unsigned_abs().min(HEX_DIGITS as u32) as usize;
    let text = if digits < 0 { format!("{number:08X}") } else { format!("{number:08x}") };
    stack.push_bytes(&text.as_bytes()[text.len() - count..]);
    Ok(1)
}
