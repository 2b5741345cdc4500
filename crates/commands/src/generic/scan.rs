//! `SCAN` over all shards.
//!
//! A cursor consists of the number of a shard and a position in that shard's dictionary. Positions
//! stay valid while the dictionary grows and shrinks. Shards are scanned in ascending order. A call
//! returns one *page* of keys. If one shard has too few keys for the page, the call continues with
//! the next shards that have keys, which are also in its route (the shards that it acquires).
//!
//! ```text
//! bit 63 62 61                                              14 13    0
//!      0  0 [ position in the shard's dictionary, reversed   ] [ shard ]
//! ```
//!
//! Only the leading bits of a position are significant, and the bits after them are zero. The
//! cursor contains the bits of the position in reverse order, so it is a small number: below 2^53
//! for up to 2^23 segments in a shard. Clients that store numbers as doubles (node-redis 4, and
//! `tonumber` in scripts) then return cursors exactly.

use pantala_base::glob;
use pantala_base::limits::PARTITIONS_MAX;
use pantala_base::number::parse_i64;
use pantala_engine::access::{Access, SessionView};
use pantala_engine::db::Holds;
use pantala_engine::keyspace::Keyspace;
use pantala_resp::{Args, Reply};

use crate::arguments::{c_string, is_option};
use crate::errors;
use crate::scanning::{BUCKETS_PER_ELEMENT_MAX, COUNT_DEFAULT, parse_cursor};

/// Maximum number of shards that a page visits.
const SHARDS_PER_PAGE_MAX: usize = 64;

/// Number of bits of a position.
const POSITION_BITS: u32 = 48;

/// Number of bits of the number of a shard.
const SHARD_BITS: u32 = PARTITIONS_MAX.ilog2();

/// The position at which a scan continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cursor {
    shard: u64,
    position: u64,
}

impl Cursor {
    fn unpack(packed: u64) -> Self {
        let reversed = packed >> SHARD_BITS & ((1 << POSITION_BITS) - 1);
        Cursor {
            shard: packed & ((1 << SHARD_BITS) - 1),
            position: reversed.reverse_bits() >> (u64::BITS - POSITION_BITS),
        }
    }

    fn pack(self) -> u64 {
        let reversed = self.position.reverse_bits() >> (u64::BITS - POSITION_BITS);
        reversed << SHARD_BITS | self.shard
    }

    /// Parses a client's cursor.
    fn parse(text: &[u8]) -> Option<Self> {
        parse_cursor(text).map(Self::unpack)
    }
}

/// The options of `SCAN`.
struct Options<'a> {
    count: u64,
    pattern: Option<&'a [u8]>,
    type_name: Option<&'a [u8]>,
}

impl<'a> Options<'a> {
    fn parse(args: &Args<'a>) -> Result<Self, &'static str> {
        let mut options = Options { count: COUNT_DEFAULT, pattern: None, type_name: None };
        let mut index = 2;
        while let Some(option) = args.get(index) {
            let value = args.get(index + 1).ok_or(errors::SYNTAX)?;
            if is_option(option, "COUNT") {
                let count = parse_i64(value).ok_or(errors::NOT_AN_INTEGER)?;
                options.count = u64::try_from(count).ok().filter(|&count| count >= 1).ok_or(errors::SYNTAX)?;
            } else if is_option(option, "MATCH") {
                options.pattern = (value != b"*").then_some(value);
            } else if is_option(option, "TYPE") {
                options.type_name = Some(c_string(value));
            } else {
                return Err(errors::SYNTAX);
            }
            index += 2;
        }
        Ok(options)
    }

    fn matches(&self, key: &[u8]) -> bool {
        self.pattern.is_none_or(|pattern| glob::matches(pattern, key, false))
    }

    fn matches_entry(&self, key: &[u8], type_name: &str) -> bool {
        self.matches(key) && self.type_name.is_none_or(|wanted| wanted.eq_ignore_ascii_case(type_name.as_bytes()))
    }
}

/// Appends the route of `SCAN`: the cursor's shard and the following shards with keys, until they
/// hold enough keys for a page. The route has at least one shard, even for an invalid call.
pub fn scan_route(keyspace: &Keyspace, session: &SessionView, args: &Args<'_>, shards: &mut Vec<u32>) {
    let cursor = Cursor::parse(args.at(1)).unwrap_or(Cursor { shard: 0, position: 0 });
    let count = Options::parse(args).map_or(1, |options| options.count);
    let mut keys = 0u64;
    for shard in cursor.shard..u64::from(keyspace.partition_count()) {
        let shard = shard as u32;
        let size = keyspace.shard_size(session.db, shard);
        if size == 0 {
            continue;
        }
        shards.push(shard);
        // If the cursor's position isn't 0, the scan has already passed an unknown number of keys
        // of the cursor's shard, so this shard's keys don't count.
        if u64::from(shard) != cursor.shard || cursor.position == 0 {
            keys = keys.saturating_add(size);
        }
        if keys >= count || shards.len() == SHARDS_PER_PAGE_MAX {
            return;
        }
    }
    if shards.is_empty() {
        shards.push(0);
    }
}

/// `SCAN cursor [MATCH pattern] [COUNT count] [TYPE type]`.
pub fn scan(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let Some(cursor) = Cursor::parse(args.at(1)) else { return reply.error("ERR invalid cursor") };
    let options = match Options::parse(args) {
        Ok(options) => options,
        Err(error) => return reply.error(error),
    };
    // The cursor precedes the keys in the reply, but it is known only after the keys are found. The
    // keys are therefore written to a buffer first.
    let mut keys = Vec::new();
    let mut keys_reply = reply.part(&mut keys);
    let array = keys_reply.defer_array();
    let (next, found) = page(access, cursor, &options, &mut keys_reply);
    if keys_reply.is_aborted() {
        return reply.abort();
    }
    keys_reply.patch(array, found);
    reply.array(2);
    reply.bulk_integer(next.map_or(0, |cursor| cursor.pack() as i64));
    reply.raw(&keys);
}

/// Writes the keys of a page. Returns the start of the next page (`None` after the last page) and
/// the number of keys. Like Redis, deletes the expired keys that match the pattern, even if `TYPE`
/// excludes them.
fn page(
    access: &mut Access<'_>,
    cursor: Cursor,
    options: &Options<'_>,
    reply: &mut Reply<'_>,
) -> (Option<Cursor>, usize) {
    let (selected, keyspace) = (access.session().db, access.keyspace());
    let (mut visited, mut found) = (0u64, 0);
    let mut buckets_left = options.count.saturating_mul(BUCKETS_PER_ELEMENT_MAX);
    let mut last = cursor.shard;
    for shard in access.shards() {
        if u64::from(shard) < cursor.shard {
            continue;
        }
        last = u64::from(shard);
        let mut db = access.db_in(selected, shard);
        let mut position = if last == cursor.shard { cursor.position } else { 0 };
        loop {
            if visited >= options.count || buckets_left == 0 || reply.is_aborted() {
                return (Some(Cursor { shard: last, position }), found);
            }
            buckets_left -= 1;
            position = db.scan_expiring(position, 1, &|key| options.matches(key), &mut |entry| {
                visited += 1;
                if let Some(entry) = entry
                    && options.matches_entry(entry.key(), entry.held().type_name())
                {
                    reply.bulk(entry.key());
                    found += 1;
                }
            });
            if position == 0 {
                break;
            }
        }
    }
    let next = (last.saturating_add(1)..u64::from(keyspace.partition_count()))
        .find(|&shard| keyspace.shard_size(selected, shard as u32) > 0);
    (next.map(|shard| Cursor { shard, position: 0 }), found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_round_trip() {
        for cursor in [
            Cursor { shard: 0, position: 0 },
            Cursor { shard: 16_383, position: (1 << 48) - 1 },
            Cursor { shard: 5, position: 1 << 47 },
        ] {
            assert!(cursor.pack() < 1 << 63);
            assert_eq!(Cursor::unpack(cursor.pack()), cursor);
            assert_eq!(Cursor::parse(cursor.pack().to_string().as_bytes()), Some(cursor));
        }
    }

    #[test]
    fn leading_bits_of_a_position_give_small_cursors() {
        assert_eq!(Cursor { shard: 5, position: 1 << 47 }.pack(), 1 << 14 | 5);
        let position = ((1 << 39) - 1) << 9;
        assert_eq!(Cursor { shard: 16_383, position }.pack(), (1 << 53) - 1);
    }
}
