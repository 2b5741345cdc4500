//! `BITCOUNT` and `BITPOS`, on a string or a range of it.

use std::ops::RangeInclusive;

use pantala_engine::access::Access;
use pantala_engine::db::Holds;
use pantala_resp::{Args, Reply};
use pantala_types::bitmap::{count_ones_between, find_bit};

use crate::arguments::{integer, is_option};
use crate::errors;
use crate::strings::StringRef;

/// The unit of a range.
#[derive(Clone, Copy, Default)]
enum Unit {
    #[default]
    Byte,
    Bit,
}

impl Unit {
    /// Parses a unit. Replies with an error and returns `None` if it is invalid.
    fn parse(argument: &[u8], reply: &mut Reply<'_>) -> Option<Self> {
        if is_option(argument, "BIT") {
            Some(Unit::Bit)
        } else if is_option(argument, "BYTE") {
            Some(Unit::Byte)
        } else {
            reply.error(errors::SYNTAX);
            None
        }
    }

    /// Returns the range of bits from `start` to `end`, both inclusive and clamped to the string.
    /// Negative indexes count from the end of the string.
    fn bits(self, start: i64, end: i64, len_bytes: usize) -> RangeInclusive<u64> {
        // Lengths are below 2^60 bytes, so the number of bits doesn't overflow.
        let total = match self {
            Unit::Byte => len_bytes as i64,
            Unit::Bit => (len_bytes as i64) << 3,
        };
        let place = |index: i64| if index < 0 { index.saturating_add(total).max(0) } else { index };
        let (start, end) = (place(start), place(end).min(total - 1));
        if start > end {
            return RangeInclusive::new(1, 0);
        }
        let (start, end) = (start as u64, end as u64);
        match self {
            Unit::Byte => start << 3..=end << 3 | 7,
            Unit::Bit => start..=end,
        }
    }
}

fn whole(len_bytes: usize) -> RangeInclusive<u64> {
    Unit::Byte.bits(0, -1, len_bytes)
}

/// `BITCOUNT key [start end [BYTE|BIT]]`.
pub fn bitcount(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let key = access.first_key(args, 1);
    let mut db = access.db(&key);
    // As in Redis, the range is not parsed if the key is missing, so an invalid range is then no
    // error.
    let Some(entry) = db.read(&key) else { return reply.integer(0) };
    let Some(string) = StringRef::of(entry.held()) else { return reply.error(errors::WRONG_TYPE) };
    let len = string.len();
    let bits = match args.len() {
        2 => whole(len),
        4 | 5 => {
            let Some(start) = integer(args.at(2), reply) else { return };
            let Some(end) = integer(args.at(3), reply) else { return };
            if start < 0 && end < 0 && start > end {
                return reply.integer(0);
            }
            let unit = args.get(4).map_or(Some(Unit::Byte), |unit| Unit::parse(unit, reply));
            let Some(unit) = unit else { return };
            unit.bits(start, end, len)
        }
        _ => return reply.error(errors::SYNTAX),
    };
    reply.integer(string.with_bytes(|bytes| count_ones_between(bytes, &bits)) as i64);
}

/// `BITPOS key bit [start [end [BYTE|BIT]]]`.
pub fn bitpos(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let Some(bit) = integer(args.at(2), reply) else { return };
    let on = match bit {
        0 => false,
        1 => true,
        _ => return reply.error("ERR The bit argument must be 1 or 0."),
    };
    let key = access.first_key(args, 1);
    let mut db = access.db(&key);
    // A missing key is an infinite string of zeros.
    let Some(entry) = db.read(&key) else { return reply.integer(if on { -1 } else { 0 }) };
    let Some(string) = StringRef::of(entry.held()) else { return reply.error(errors::WRONG_TYPE) };
    let Some(range) = SearchRange::parse(args, string.len(), reply) else { return };
    let found = string.with_bytes(|bytes| find_bit(bytes, on, &range.bits));
    let position = match found {
        Some(at) => at as i64,
        // No zero was found up to the end of the string. All bits after the string count as zero.
        None if !on && !range.has_end && !range.bits.is_empty() => *range.bits.end() as i64 + 1,
        None => -1,
    };
    reply.integer(position);
}

/// The range that BITPOS searches.
struct SearchRange {
    bits: RangeInclusive<u64>,
    /// Whether the command specified the end.
    has_end: bool,
}

impl SearchRange {
    /// Parses the range. Replies with an error and returns `None` if it is invalid.
    fn parse(args: &Args<'_>, len: usize, reply: &mut Reply<'_>) -> Option<Self> {
        if args.len() > 6 {
            reply.error(errors::SYNTAX);
            return None;
        }
        let Some(start) = args.get(3) else { return Some(SearchRange { bits: whole(len), has_end: false }) };
        let start = integer(start, reply)?;
        let unit = args.get(5).map_or(Some(Unit::Byte), |unit| Unit::parse(unit, reply))?;
        let end = args.get(4).map_or(Some(-1), |end| integer(end, reply))?;
        Some(SearchRange { bits: unit.bits(start, end, len), has_end: args.len() > 4 })
    }
}
