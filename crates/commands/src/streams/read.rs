//! `XREAD` and `XREADGROUP`.

use pantala_base::number::parse_i64;
use pantala_engine::access::{Access, Key, SessionView};
use pantala_engine::blocking::{Block, WakesOn};
use pantala_engine::command::{Chance, Omission, Propagated};
use pantala_engine::db::Change;
use pantala_engine::keyspace::Keyspace;
use pantala_resp::{Args, Deferred, Reply, Version};
use pantala_types::stream::{Delivered, StreamId};

use super::ids::{INVALID_ID, Ids, write_entry, write_id};
use super::propagated::Delivery;
use super::{StreamBox, change, delivery, no_group};
use crate::arguments::{c_string, is_option};
use crate::errors;

const UNBALANCED: &str = "ERR Unbalanced XREAD list of streams: for each stream key an ID or '$' must be specified.";
const GROUP_OF_XREAD: &str = "ERR The GROUP option is only supported by XREADGROUP. You called XREAD instead.";
const NOACK_OF_XREAD: &str = "ERR The NOACK option is only supported by XREADGROUP. You called XREAD instead.";
const MISSING_GROUP: &str = "ERR Missing GROUP option for XREADGROUP";
const MEANINGLESS_LAST: &str = "ERR The $ ID is meaningless in the context of XREADGROUP: you want to read the history of this consumer by specifying a proper ID, or use the > ID to get new messages. The $ ID would just return an empty result set.";
const NEW_OF_XREAD: &str =
    "ERR The > ID can be specified only when calling XREADGROUP using the GROUP <group> <consumer> option.";
const TIMEOUT_NOT_AN_INTEGER: &str = "ERR timeout is not an integer or out of range";
const TIMEOUT_NEGATIVE: &str = "ERR timeout is negative";
/// The error if a script uses the option `BLOCK`, after the command's name.
const BLOCK_IN_SCRIPT: &[u8] = b" command is not allowed with BLOCK option from scripts";
/// The error that ends a blocked `XREADGROUP` if its key is deleted.
const KEY_DELETED: &str = "UNBLOCKED the stream key no longer exists";
const GROUP_DELETED: &str = "NOGROUP the consumer group this client was blocked on no longer exists";

/// The ID that stands for `>`: the read returns the entries that were not delivered to any consumer
/// of the group. As in Redis, the maximum ID has the same meaning if a client sends it.
const NEW: StreamId = StreamId::MAX;

/// A group and the consumer that reads.
#[derive(Clone, Copy)]
struct Reader<'a> {
    group: &'a [u8],
    consumer: &'a [u8],
}

/// The reason why the options of a call are invalid.
enum Invalid {
    /// The error's whole text.
    Text(&'static str),
    /// A script has used the option `BLOCK`. The error's text contains the command's name as the
    /// script spelled it.
    BlocksScript,
}

impl From<&'static str> for Invalid {
    fn from(text: &'static str) -> Self {
        Invalid::Text(text)
    }
}

/// The options before the keys, and the positions of the keys.
struct Options<'a> {
    count: usize,
    /// The timeout of `BLOCK` in ms, where 0 means no timeout; `None` without `BLOCK`.
    block_ms: Option<i64>,
    noack: bool,
    reader: Option<Reader<'a>>,
    /// Index of the first key; the IDs follow the keys.
    first_key: usize,
    streams: usize,
}

/// `XREAD [COUNT count] [BLOCK ms] STREAMS key [key ...] id [id ...]`.
pub fn xread(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    read(access, args, false, reply);
}

/// `XREADGROUP GROUP group consumer [COUNT count] [BLOCK ms] [NOACK] STREAMS key [key ...]
/// id [id ...]`.
pub fn xreadgroup(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>, _: Chance) -> Option<Propagated> {
    read(access, args, true, reply);
    // The pending entries and IDs that the reads have changed are propagated (`Delivery`).
    Some(access.propagate_nothing(Omission::Replaced))
}

/// Appends the route of `XREAD`: the shards of its streams.
pub fn read_shards(keyspace: &Keyspace, _: &SessionView, args: &Args<'_>, shards: &mut Vec<u32>) {
    choose_shards(keyspace, args, false, shards);
}

/// Appends the route of `XREADGROUP`: the shards of its streams. The key specification doesn't
/// locate all of them, because a group or a consumer may be named STREAMS.
pub fn readgroup_shards(keyspace: &Keyspace, _: &SessionView, args: &Args<'_>, shards: &mut Vec<u32>) {
    choose_shards(keyspace, args, true, shards);
}

/// Visits the streams of an `XREAD` call.
pub fn read_keys(args: &Args<'_>, visit: &mut dyn FnMut(usize, usize)) {
    each_stream(args, false, visit);
}

/// Visits the streams of an `XREADGROUP` call, including those that its key specification misses.
pub fn readgroup_keys(args: &Args<'_>, visit: &mut dyn FnMut(usize, usize)) {
    each_stream(args, true, visit);
}

fn each_stream(args: &Args<'_>, of_group: bool, visit: &mut dyn FnMut(usize, usize)) {
    if let Ok(options) = Options::parse(args, of_group, false) {
        (options.first_key..options.first_key + options.streams).for_each(|at| visit(at, 0));
    }
}

fn choose_shards(keyspace: &Keyspace, args: &Args<'_>, of_group: bool, shards: &mut Vec<u32>) {
    if let Ok(options) = Options::parse(args, of_group, false) {
        let keys = options.first_key..options.first_key + options.streams;
        shards.extend(keys.map(|at| keyspace.place(args.at(at)).shard));
    }
}

fn read(access: &mut Access<'_>, args: &Args<'_>, of_group: bool, reply: &mut Reply<'_>) {
    let options = match Options::parse(args, of_group, access.session().in_script) {
        Ok(options) => options,
        Err(Invalid::Text(error)) => return reply.error(error),
        Err(Invalid::BlocksScript) => {
            return reply.error_bytes(&[b"ERR ", args.at(0), BLOCK_IN_SCRIPT].concat());
        }
    };
    if access.woken_by().is_some() {
        return read_woken(access, args, &options, reply);
    }
    let mut after = Ids::new();
    for stream in 0..options.streams {
        let key = access.key(args, options.first_key + stream);
        match options.start_of(access, &key, args.at(options.first_key + options.streams + stream), reply) {
            Some(id) => after.push(id),
            None => return,
        }
    }
    let position = reply.position();
    let streams = defer_streams(reply);
    let mut served = 0;
    for (stream, &after) in after.as_slice().iter().enumerate() {
        let key = access.key(args, options.first_key + stream);
        served += usize::from(options.read_one(access, &key, after, reply));
        // If the reply was aborted because it is too long, its entries were discarded. Entries of
        // further streams would be discarded too, so they must not be delivered.
        if reply.is_aborted() {
            return;
        }
    }
    if served > 0 {
        return reply.patch(streams, served);
    }
    reply.truncate(position);
    match options.block_ms {
        Some(timeout_ms) if access.may_block() => access.block(options.block_on(args, after.as_slice(), timeout_ms)),
        _ => reply.null_array(),
    }
}

fn defer_streams(reply: &mut Reply<'_>) -> Deferred {
    match reply.version() {
        Version::Resp2 => reply.defer_array(),
        Version::Resp3 => reply.defer_map(),
    }
}

/// Runs a blocked command again, for the key that woke it.
fn read_woken(access: &mut Access<'_>, args: &Args<'_>, options: &Options<'_>, reply: &mut Reply<'_>) {
    let keys = options.first_key..options.first_key + options.streams;
    let Some(at) = keys.into_iter().find(|&at| access.concerns(args.at(at))) else { return };
    let key = access.key(args, at);
    let after = match options.reader {
        None => StreamId::parse(args.at(at + options.streams), 0),
        Some(reader) => {
            let mut db = access.db(&key);
            let Ok(Some(stream)) = db.write_as::<StreamBox>(&key) else { return reply.error(KEY_DELETED) };
            let Some(group) = stream.group(reader.group) else { return reply.error(GROUP_DELETED) };
            // `claim` ends the client's wait on all its keys. It must therefore be called only if
            // there is an entry, and before that entry is taken.
            if !stream.has_entries_after(group.last_id()) || !access.claim() {
                return;
            }
            Some(NEW)
        }
    };
    let Some(after) = after else { return };
    let position = reply.position();
    let streams = defer_streams(reply);
    if options.read_one(access, &key, after, reply) {
        reply.patch(streams, 1);
    } else {
        reply.truncate(position);
    }
}

/// Replies with the entries of a stream after an ID. Returns `false` if there are no such entries.
fn read_stream(access: &mut Access<'_>, key: &Key<'_>, after: StreamId, count: usize, reply: &mut Reply<'_>) -> bool {
    let mut db = access.db(key);
    let (Some(start), Ok(Some(stream))) = (after.next(), db.read_as::<StreamBox>(key)) else {
        return false;
    };
    let entries = reply.defer_array();
    let shown = stream.range(start, StreamId::MAX, count, |id, fields| write_entry(id, fields, reply));
    reply.patch(entries, shown);
    shown > 0
}

impl<'a> Options<'a> {
    /// Parses the arguments. If `in_script` is set, the option `BLOCK` is an error.
    fn parse(args: &Args<'a>, of_group: bool, in_script: bool) -> Result<Self, Invalid> {
        let mut options =
            Options { count: usize::MAX, block_ms: None, noack: false, reader: None, first_key: 0, streams: 0 };
        let mut at = 1;
        while at < args.len() {
            let option = args.at(at);
            let more = args.len() - at - 1;
            if more > 0 && is_option(option, "BLOCK") {
                // Arguments to the right of `BLOCK` are not checked, not even its timeout.
                if in_script {
                    return Err(Invalid::BlocksScript);
                }
                at += 1;
                let timeout_ms = parse_i64(args.at(at)).ok_or(TIMEOUT_NOT_AN_INTEGER)?;
                if timeout_ms < 0 {
                    return Err(TIMEOUT_NEGATIVE.into());
                }
                options.block_ms = Some(timeout_ms);
            } else if more > 0 && is_option(option, "COUNT") {
                at += 1;
                let count = parse_i64(args.at(at)).ok_or(errors::NOT_AN_INTEGER)?;
                options.count = usize::try_from(count).ok().filter(|&count| count > 0).unwrap_or(usize::MAX);
            } else if more > 0 && is_option(option, "STREAMS") {
                if more % 2 == 1 {
                    return Err(UNBALANCED.into());
                }
                options.first_key = at + 1;
                options.streams = more / 2;
                break;
            } else if more >= 2 && is_option(option, "GROUP") {
                if !of_group {
                    return Err(GROUP_OF_XREAD.into());
                }
                options.reader = Some(Reader { group: args.at(at + 1), consumer: args.at(at + 2) });
                at += 2;
            } else if is_option(option, "NOACK") {
                if !of_group {
                    return Err(NOACK_OF_XREAD.into());
                }
                options.noack = true;
            } else {
                return Err(errors::SYNTAX.into());
            }
            at += 1;
        }
        match options {
            Options { streams: 0, .. } => Err(errors::SYNTAX.into()),
            Options { reader: None, .. } if of_group => Err(MISSING_GROUP.into()),
            options => Ok(options),
        }
    }

    /// Replies with a stream's key and its entries after an ID. If there are no such entries,
    /// returns `false` without a reply.
    fn read_one(&self, access: &mut Access<'_>, key: &Key<'_>, after: StreamId, reply: &mut Reply<'_>) -> bool {
        let before = reply.position();
        if reply.version() == Version::Resp2 {
            reply.array(2);
        }
        reply.bulk(key.bytes);
        let was_served = match self.reader {
            None => read_stream(access, key, after, self.count, reply),
            Some(reader) => self.read_group(access, key, reader, after, reply),
        };
        if !was_served {
            reply.truncate(before);
        }
        was_served
    }

    /// Returns how to block until the streams have entries after these IDs.
    fn block_on(&self, args: &Args<'_>, after: &[StreamId], timeout_ms: i64) -> Block {
        let keys = self.first_key..self.first_key + self.streams;
        if self.reader.is_some() {
            return Block::on(keys, WakesOn::AnyChange, timeout_ms);
        }
        // `$` and `+` are replaced by IDs now, because they would stand for other IDs after a
        // wake-up.
        let mut resolved: Vec<Vec<u8>> = args.iter().map(<[u8]>::to_vec).collect();
        for (argument, id) in resolved[keys.end..].iter_mut().zip(after) {
            *argument = id.to_string().into_bytes();
        }
        Block { args: Some(resolved), ..Block::on(keys, WakesOn::Stream, timeout_ms) }
    }

    /// Returns the ID after which to read a stream. Replies with an error and returns `None` if the
    /// argument is invalid.
    fn start_of(
        &self,
        access: &mut Access<'_>,
        key: &Key<'_>,
        argument: &[u8],
        reply: &mut Reply<'_>,
    ) -> Option<StreamId> {
        let mut db = access.db(key);
        let Ok(stream) = db.read_as::<StreamBox>(key) else {
            reply.error(errors::WRONG_TYPE);
            return None;
        };
        if let Some(reader) = self.reader
            && stream.is_none_or(|stream| stream.group_number(reader.group).is_none())
        {
            no_group(reply, key.bytes, reader.group, " in XREADGROUP with GROUP option");
            return None;
        }
        let of_group = self.reader.is_some();
        let error = match c_string(argument) {
            b"$" if of_group => MEANINGLESS_LAST,
            b"$" => return Some(stream.map_or(StreamId::MIN, |stream| stream.counters().last_id)),
            b">" if of_group => return Some(NEW),
            b">" => NEW_OF_XREAD,
            // `+`, from Redis 7.4, reads the last entry: the read starts after the preceding ID.
            b"+" if !of_group => {
                let last = stream.and_then(|stream| stream.last_entry_id());
                return Some(last.and_then(StreamId::previous).unwrap_or(match stream {
                    Some(stream) => stream.counters().last_id,
                    None => StreamId::MIN,
                }));
            }
            _ => match StreamId::parse(argument, 0) {
                Some(id) => return Some(id),
                None => INVALID_ID,
            },
        };
        reply.error(error);
        None
    }

    /// Delivers entries to a consumer. Returns `false` if new entries were requested and there are
    /// none.
    fn read_group(
        &self,
        access: &mut Access<'_>,
        key: &Key<'_>,
        reader: Reader<'_>,
        after: StreamId,
        reply: &mut Reply<'_>,
    ) -> bool {
        let (now_ms, count) = (access.now_ms(), self.count);
        let mut delivered = Delivery::new(access, self.noack);
        let entries = reply.defer_array();
        let mut db = access.db(key);
        let done = change(&mut db, key, |stream| {
            let Some(group) = stream.group_number(reader.group) else { return (Change::none(), None) };
            let done = if after == NEW {
                let done = stream.deliver(group, reader.consumer, count, now_ms, self.noack, |id, fields| {
                    delivered.record(id);
                    write_entry(id, fields, reply);
                });
                delivered.finish(stream.group_at(group), &done);
                done
            } else {
                // `NEW` is the only ID without a next ID, and the branch above covers it.
                let start = after.next().unwrap_or(StreamId::MAX);
                stream.redeliver(group, reader.consumer, start, count, now_ms, |id, fields| match fields {
                    Some(fields) => write_entry(id, fields, reply),
                    None => {
                        reply.array(2);
                        write_id(id, reply);
                        reply.null_array();
                    }
                })
            };
            (Some(delivery(done.created_consumer)), Some(done))
        });
        // Redis looks the key up again for reading. So, as in Redis, the lookup counts twice in the
        // statistics.
        db.count_lookup(key, !matches!(done, Ok(None)));
        let Delivered { entries: shown, created_consumer } = done.ok().flatten().flatten().unwrap_or_default();
        reply.patch(entries, shown);
        delivered.propagate(access, [key.bytes, reader.group, reader.consumer], now_ms, created_consumer);
        shown > 0 || after != NEW
    }
}
