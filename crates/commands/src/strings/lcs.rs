//! `LCS`: the longest common subsequence of two strings.

use std::sync::atomic::Ordering::Relaxed;

use pantala_engine::access::{Access, Key};
use pantala_engine::db::Holds;
use pantala_resp::{Args, Reply};
use pantala_types::lcs::{Matches, lcs_len, lcs_matches, lcs_string};
use pantala_types::{OutOfMemory, RawString};

use super::StringRef;
use crate::arguments::{integer, is_option};
use crate::errors;

#[derive(Default)]
struct Options {
    indexes: bool,
    len: bool,
    match_len_min: usize,
    with_match_len: bool,
}

impl Options {
    /// Parses the options. Replies with an error and returns `None` if they are invalid.
    fn parse(args: &Args<'_>, reply: &mut Reply<'_>) -> Option<Self> {
        let mut options = Options::default();
        let mut index = 3;
        while let Some(option) = args.get(index) {
            index += 1;
            if is_option(option, "IDX") {
                options.indexes = true;
            } else if is_option(option, "LEN") {
                options.len = true;
            } else if is_option(option, "WITHMATCHLEN") {
                options.with_match_len = true;
            } else if let (true, Some(len)) = (is_option(option, "MINMATCHLEN"), args.get(index)) {
                options.match_len_min = usize::try_from(integer(len, reply)?).unwrap_or(0);
                index += 1;
            } else {
                reply.error(errors::SYNTAX);
                return None;
            }
        }
        if options.indexes && options.len {
            reply.error("ERR If you want both the length and indexes, please just use IDX.");
            return None;
        }
        Some(options)
    }
}

/// `LCS key1 key2 [LEN] [IDX] [MINMATCHLEN len] [WITHMATCHLEN]`.
pub fn lcs(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let keys = [access.first_key(args, 1), access.key(args, 2)];
    // Both strings are copied, because they may be in different shards. The copies cost far less
    // than the comparison.
    let [a, b] = match keys.map(|key| copy_of(access, &key)) {
        [Ok(a), Ok(b)] => [a, b],
        [Err(error), _] | [_, Err(error)] => return reply.error(error),
    };
    let Some(options) = Options::parse(args, reply) else { return };
    let (a, b) = (a.as_bytes(), b.as_bytes());
    let table_bytes_max = access.keyspace().tuning.proto_max_bulk_len.load(Relaxed);
    let done = if options.indexes {
        lcs_matches(a, b, options.match_len_min, table_bytes_max)
            .map(|matches| write_matches(&matches, options.with_match_len, reply))
    } else if options.len {
        lcs_len(a, b, table_bytes_max).map(|len| reply.integer(len as i64))
    } else {
        lcs_string(a, b, table_bytes_max).map(|string| reply.bulk(&string))
    };
    if let Err(error) = done {
        reply.error(&format!("ERR {error}"));
    }
}

/// Returns a copy of the string at a key. The copy is empty if there is no such key.
fn copy_of(access: &mut Access<'_>, key: &Key<'_>) -> Result<RawString, &'static str> {
    let mut db = access.db(key);
    let Some(entry) = db.read(key) else { return Ok(RawString::default()) };
    match StringRef::of(entry.held()) {
        Some(string) => string.with_bytes(RawString::try_from_slice).map_err(|OutOfMemory| errors::OUT_OF_MEMORY),
        None => Err("ERR The specified keys must contain string values"),
    }
}

fn write_matches(found: &Matches, with_match_len: bool, reply: &mut Reply<'_>) {
    reply.map(2);
    reply.bulk(b"matches");
    reply.array(found.matches.len());
    for one in &found.matches {
        reply.array(2 + usize::from(with_match_len));
        for (start, end) in [(one.a_start, one.a_end()), (one.b_start, one.b_end())] {
            reply.array(2);
            reply.integer(start as i64);
            reply.integer(end as i64);
        }
        if with_match_len {
            reply.integer(one.len as i64);
        }
    }
    reply.bulk(b"len");
    reply.integer(found.len as i64);
}
