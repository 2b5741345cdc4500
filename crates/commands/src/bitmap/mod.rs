//! Bitmap commands, which treat a string as an array of bits.
//!
//! | file | commands |
//! | --- | --- |
//! | `bits` | `GETBIT`, `SETBIT` |
//! | `scan` | `BITCOUNT`, `BITPOS` |
//! | `operation` | `BITOP` |
//! | `field` | `BITFIELD`, `BITFIELD_RO` |
//!
//! The bits of a small string are read and written inside its dictionary entry. An allocation is
//! needed only if the string grows.

mod bits;
mod field;
mod operation;
mod scan;
#[cfg(test)]
mod tests;

pub use bits::*;
pub use field::*;
pub use operation::*;
pub use scan::*;

use pantala_base::number::parse_i64;
use pantala_resp::Reply;

/// Parses the offset of a bit within the first `bytes_max` bytes. An offset that starts with `#` is
/// a number of fields of `field_bits` bits each; if `field_bits` is 0, `#` is invalid. Replies with
/// an error and returns `None` if the offset is invalid.
fn bit_offset(argument: &[u8], field_bits: u32, bytes_max: u64, reply: &mut Reply<'_>) -> Option<u64> {
    let number = match argument {
        [b'#', number @ ..] if field_bits > 0 => parse_i64(number).map(|n| n.wrapping_mul(i64::from(field_bits))),
        number => parse_i64(number),
    };
    let offset = number.and_then(|number| u64::try_from(number).ok()).filter(|offset| offset >> 3 < bytes_max);
    if offset.is_none() {
        reply.error("ERR bit offset is not an integer or out of range");
    }
    offset
}
