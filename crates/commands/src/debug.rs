//! `DEBUG`: the subcommands that tests and benchmarks need.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use pantala_base::number::parse_memory;
use pantala_engine::Occupancy;
use pantala_engine::access::Access;
use pantala_engine::client::{AllShards, LocalContext};
use pantala_engine::command::Omission;
use pantala_engine::db::Holds;
use pantala_engine::whole::Reload;
use pantala_resp::{Args, Reply, Version};
use pantala_types::access::idle_time_s;
use pantala_types::list::ALONE_BYTES_DEFAULT;
use pantala_types::rdb_value::{ValueRef, Writer, write};
use pantala_types::{List, OutOfMemory, double};

use crate::arguments::{c_string, integer, is_option, natural, wrong_subcommand};
use crate::object::{encoding_of, refcount_of};
use crate::populate::{Plan, populate_all};
use crate::{errors, help};

/// Length of a listpack's header and terminator together, in bytes.
const LISTPACK_FRAME_BYTES: usize = 7;

/// Maximum sleep, in seconds: one day. Redis has no limit, but a longer sleep has no use.
const SLEEP_S_MAX: f64 = 86_400.0;

/// Maximum number of bytes of an argument that are read as its leading number.
const LEADING_NUMBER_BYTES_MAX: usize = 64;

/// Runs the subcommands of `DEBUG` that have no record of their own in the command table.
pub fn debug(context: &mut LocalContext<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    match (args.at(1), args.len()) {
        (sub, 2) if is_option(sub, "CHANGE-REPL-ID") => {
            context.host.replication().change_id();
            reply.ok();
        }
        (sub, 2) if is_option(sub, "CONFIG-REWRITE-FORCE-ALL") => match context.host.config_rewrite_all() {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(&error),
        },
        (sub, 3) if is_option(sub, "AOF-FLUSH-SLEEP") => {
            let delay_us = u64::try_from(leading_integer(args.at(2))).unwrap_or(0);
            context.keyspace.tuning.aof_flush_delay_us.store(delay_us, Relaxed);
            reply.ok();
        }
        (sub, 3) if is_option(sub, "LOG") => {
            context.host.log(&format!("DEBUG LOG: {}", String::from_utf8_lossy(args.at(2))));
            reply.ok();
        }
        (sub, 3..) if is_option(sub, "REPLICATE") => {
            let words: Vec<&[u8]> = args.iter().skip(2).collect();
            context.keyspace.journal().append_command(&words);
            reply.ok();
        }
        (sub, 3) if is_option(sub, "SET-SKIP-CHECKSUM-VALIDATION") => {
            context.keyspace.tuning.skips_checksums.store(leading_integer(args.at(2)) != 0, Relaxed);
            reply.ok();
        }
        (sub, 3) if is_option(sub, "JOURNAL") => journal(context, args.at(2), reply),
        (sub, 3) if is_option(sub, "PROTOCOL") => protocol(args.at(2), reply),
        (sub, 4) if is_option(sub, "REPLYBUFFER") && is_option(args.at(2), "RESIZING") && args.at(3) == b"0" => {
            // In Redis, this turns the resizing of reply buffers off. Pantala never resizes any, so
            // nothing changes.
            reply.ok();
        }
        (sub, 4) if is_option(sub, "REPLYBUFFER") && is_buffer_setting(args.at(2)) => reply.error(NO_REPLY_BUFFERS),
        (sub, 4) if cfg!(debug_assertions) && is_option(sub, "FAULT") => fault(args, reply),
        (sub, 3) if cfg!(debug_assertions) && is_option(sub, "CLOCK-JUMP") => jump_clock(args, reply),
        _ => wrong_subcommand(args, reply),
    }
}

/// The error of `DEBUG REPLYBUFFER`. In Redis this command controls when a client's reply buffer
/// shrinks. Pantala keeps no such buffer: replies use memory only until they are sent.
const NO_REPLY_BUFFERS: &str =
    "ERR Pantala has no reply buffers to resize: replies use memory only until they are sent";

fn is_buffer_setting(name: &[u8]) -> bool {
    is_option(name, "PEAK-RESET-TIME") || is_option(name, "RESIZING")
}

/// `DEBUG HTSTATS db`: describes how the keys of a database are distributed over the buckets of its
/// tables. Each shard has one table. (In the reply, as in the documents for users, a shard of this
/// code is a *partition*.)
pub fn hash_table_statistics(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let Some(number) = integer(args.at(2), reply) else { return };
    let number = u32::try_from(number).ok().filter(|number| *number < access.keyspace().databases());
    let Some(number) = number else { return reply.error("ERR Out of range database") };
    let (shards, mut occupancy) = (access.shards(), Occupancy::default());
    for &shard in &shards {
        occupancy += access.db_in(number, shard).occupancy();
    }
    reply.verbatim("txt", occupancy_text(&occupancy, shards.len()).as_bytes());
}

/// Formats the reply of `DEBUG HTSTATS`. The two sections, and all numbers that Redis also reports,
/// have Redis's names. The other lines are about parts that Redis's tables do not have: segments,
/// and buckets with several slots.
fn occupancy_text(occupancy: &Occupancy, tables: usize) -> String {
    const EMPTY: &str = "Hash table 0 stats (main hash table):\nNo stats available for empty dictionaries\n";
    let share = |part: usize, whole: usize| if whole == 0 { 0.0 } else { part as f64 * 100.0 / whole as f64 };
    let mut text = String::from("[Dictionary HT]\n");
    if occupancy.entries == 0 {
        text += EMPTY;
    } else {
        let buckets: usize = occupancy.buckets.iter().sum();
        text += &format!(
            "Hash table 0 stats (main hash tables of {tables} partitions):\n table size: {}\n number of elements: {}\n \
             load: {:.2}%\n directory words: {}\n segments: {}\n buckets: {buckets}\n elements in no bucket: {}\n \
             Elements per bucket distribution:\n",
            occupancy.slots(),
            occupancy.entries,
            share(occupancy.entries, occupancy.slots()),
            occupancy.directory_words,
            occupancy.segments,
            occupancy.stashed,
        );
        for (used, count) in occupancy.buckets.iter().enumerate().filter(|(_, count)| **count > 0) {
            text += &format!("   {used}: {count} ({:.2}%)\n", share(*count, buckets));
        }
    }
    text += "[Expires HT]\n";
    text += &match occupancy.expiring {
        0 => EMPTY.to_owned(),
        expiring => {
            format!("Hash table 0 stats (expiries lie in the main hash tables):\n number of elements: {expiring}\n")
        }
    };
    text
}

/// `DEBUG ERROR error`.
pub fn error(_: &mut LocalContext<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    reply.error_bytes(args.at(2));
}

/// `DEBUG FAULT name permille`: injects faults ([`pantala_engine::faults`]), in debug builds only.
fn fault(args: &Args<'_>, reply: &mut Reply<'_>) {
    if pantala_types::parse_i64(args.at(3)).is_some_and(|permille| pantala_engine::faults::set(args.at(2), permille)) {
        reply.ok();
    } else {
        reply.error("ERR unknown fault, or rate out of range");
    }
}

/// `DEBUG CLOCK-JUMP ms`: makes the Unix time of this process jump ([`pantala_base::jump_ms`]), in
/// debug builds only.
fn jump_clock(args: &Args<'_>, reply: &mut Reply<'_>) {
    if let Some(by_ms) = integer(args.at(2), reply) {
        pantala_base::jump_ms(by_ms);
        reply.ok();
    }
}

/// `DEBUG OBJECT key`.
pub fn object(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let (key, now_ms) = (access.first_key(args, 2), access.now_ms());
    let fill = access.keyspace().tuning.list_max_listpack_size.load(Relaxed);
    let compress = access.keyspace().tuning.rdb_compression.load(Relaxed);
    let tuning = &access.keyspace().tuning;
    let db = access.db(&key);
    let Some(entry) = db.find_even_expired(&key) else { return reply.error(errors::NO_SUCH_KEY) };
    let mut line = format!(
        "Value at:{:p} refcount:{} encoding:{} serializedlength:{} lru:{} lru_seconds_idle:{}",
        entry.key().as_ptr(),
        refcount_of(entry, tuning),
        encoding_of(entry),
        serialized_len(entry.held().to_write(), compress),
        entry.access(),
        idle_time_s(entry.access(), now_ms as u64),
    );
    if let Some(list) = entry.held().view::<List>() {
        let stats = list.stats();
        // As in Redis, the size includes the header and terminator of each node's listpack.
        let bytes = stats.entry_bytes + stats.nodes * LISTPACK_FRAME_BYTES;
        let average = list.len() as f64 / stats.nodes as f64;
        let compresses = i32::from(stats.compresses);
        line += &format!(
            " ql_nodes:{} ql_avg_node:{average:.2} ql_listpack_max:{fill} ql_compressed:{compresses} ql_uncompressed_size:{bytes}",
            stats.nodes,
        );
    }
    reply.simple(&line);
}

/// Returns the length that the value has in an RDB file, without its type byte. To find this
/// length, encodes the value, as Redis does.
fn serialized_len(value: Option<ValueRef<'_>>, compress: bool) -> usize {
    let mut bytes = Vec::new();
    if let Some(value) = value {
        write(value, &mut Writer::new(&mut bytes, compress));
    }
    bytes.len().saturating_sub(1)
}

/// `DEBUG POPULATE count [prefix] [size]`: creates the strings `prefix:0` to `prefix:count-1`,
/// except existing ones.
pub fn populate(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    if args.len() > 5 {
        return wrong_subcommand(args, reply);
    }
    let Some(count) = natural(args.at(2), reply) else { return };
    let value_len = match args.get(4) {
        None => 0,
        Some(size) => match natural(size, reply) {
            Some(size) => size,
            None => return,
        },
    };
    let prefix = args.get(3).map_or(&b"key"[..], c_string);
    access.propagate_nothing(Omission::Debug);
    match populate_all(access, &Plan { count, prefix, value_len }) {
        Ok(()) => reply.ok(),
        Err(OutOfMemory) => reply.error(errors::OUT_OF_MEMORY),
    }
}

/// Returns the number that a text starts with, as C's `strtod` does; 0 without a number or for NaN.
fn leading_number(text: &[u8]) -> f64 {
    let ends = (1..=text.len().min(LEADING_NUMBER_BYTES_MAX)).rev();
    ends.filter_map(|end| double::parse_as_c(&text[..end])).find(|number| !number.is_nan()).unwrap_or(0.0)
}

/// `DEBUG SLEEP seconds`: suspends the whole server. The caller holds all shards, so the other
/// workers wait. A signal to shut down ends the sleep.
pub fn sleep(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    // As in Redis, the command returns immediately for a negative number.
    let seconds = leading_number(args.at(2)).clamp(0.0, SLEEP_S_MAX);
    access.keyspace().tuning.sleep(Duration::from_secs_f64(seconds));
    reply.ok();
}

/// Runs `DEBUG RELOAD [NOSAVE] [NOFLUSH] [MERGE]`.
pub fn reload(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let mut how = Reload::default();
    for option in args.iter().skip(2) {
        let flag = match option {
            _ if is_option(option, "NOSAVE") => &mut how.no_save,
            _ if is_option(option, "NOFLUSH") => &mut how.no_flush,
            _ if is_option(option, "MERGE") => &mut how.merge,
            _ => return reply.error("ERR DEBUG RELOAD only supports the MERGE, NOFLUSH and NOSAVE options."),
        };
        *flag = true;
    }
    match access.keyspace().storage().map(|storage| storage.reload(access, how)) {
        Some(Ok(())) => reply.ok(),
        Some(Err(error)) => reply.error(&error),
        None => reply.error("ERR"),
    }
}

/// Runs `DEBUG LOADAOF`: asks the worker to acquire all shards and then to reload the append-only
/// file.
pub fn load_aof(context: &mut LocalContext<'_>, _: &Args<'_>, _: &mut Reply<'_>) {
    context.session.needs_all = Some(AllShards::LoadAof);
}

/// `DEBUG QUICKLIST-PACKED-THRESHOLD size`: elements of at least this many bytes get their own
/// node; 0 restores the default.
pub fn quicklist_packed_threshold(context: &mut LocalContext<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    /// Redis's limit: 4 GiB less 1 MiB.
    const BYTES_MAX: u64 = (1 << 32) - (1 << 20);
    match parse_memory(args.at(2)).filter(|&bytes| bytes <= BYTES_MAX) {
        Some(bytes) => {
            let bytes = if bytes == 0 { ALONE_BYTES_DEFAULT as u64 } else { bytes };
            context.keyspace.tuning.list_alone_bytes.store(bytes, Relaxed);
            reply.ok();
        }
        None => reply.error("ERR argument must be a memory value bigger than 1 and smaller than 4gb"),
    }
}

/// `DEBUG PAUSE-CRON 0|1`.
pub fn pause_cron(context: &mut LocalContext<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    context.keyspace.tuning.cron_is_paused.store(leading_integer(args.at(2)) != 0, Relaxed);
    reply.ok();
}

/// `DEBUG SET-DISABLE-DENY-SCRIPTS 0|1`: sets whether scripts may run `DEBUG`. In Redis this switch
/// lets scripts run all commands. Pantala allows only `DEBUG`, because most of the other commands
/// denied to scripts make no sense without a connection.
pub fn set_disable_deny_scripts(context: &mut LocalContext<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    context.keyspace.tuning.scripts_may_debug.store(leading_integer(args.at(2)) != 0, Relaxed);
    reply.ok();
}

/// `DEBUG SET-ACTIVE-EXPIRE 0|1`.
pub fn set_active_expire(context: &mut LocalContext<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    // As with C's `atoi`, text without a number counts as 0.
    let on = leading_integer(args.at(2)) != 0;
    context.keyspace.tuning.active_expire.store(on, Relaxed);
    reply.ok();
}

/// Parses the integer at the start of a text, after whitespace and a sign, like C's `atoi`. Returns
/// 0 if there is none.
fn leading_integer(text: &[u8]) -> i64 {
    let text = text.trim_ascii_start();
    let (negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] => (false, digits),
        digits => (false, digits),
    };
    let magnitude = digits
        .iter()
        .take_while(|byte| byte.is_ascii_digit())
        .fold(0i64, |value, byte| value.saturating_mul(10).saturating_add(i64::from(byte - b'0')));
    if negative { -magnitude } else { magnitude }
}

/// `DEBUG JOURNAL 0|1`: with 1, the server records, merges and discards the replication stream even
/// if nothing reads it, so that the cost can be measured.
fn journal(context: &mut LocalContext<'_>, value: &[u8], reply: &mut Reply<'_>) {
    match context.keyspace.keep_journal(leading_integer(value) != 0) {
        Ok(()) => reply.ok(),
        Err(_) => reply.error("ERR the journal's thread could not be started"),
    }
}

/// `DEBUG PROTOCOL type`: replies with a value of this type, so that client libraries can test
/// their parsers.
#[expect(clippy::approx_constant, reason = "Redis's test value")]
fn protocol(kind: &[u8], reply: &mut Reply<'_>) {
    match kind.to_ascii_lowercase().as_slice() {
        b"string" => reply.bulk(b"Hello World"),
        b"integer" => reply.integer(12345),
        b"double" => reply.double(3.141),
        b"null" => reply.null(),
        b"array" => {
            reply.array(3);
            (0..3).for_each(|item| reply.integer(item));
        }
        b"set" => {
            reply.set(3);
            (0..3).for_each(|item| reply.integer(item));
        }
        b"map" => {
            reply.map(3);
            for item in 0..3 {
                reply.integer(item);
                reply.boolean(item == 1);
            }
        }
        b"attrib" => {
            if reply.attribute(1) {
                reply.bulk(b"key-popularity");
                reply.array(2);
                reply.bulk(b"key:123");
                reply.integer(90);
            }
            reply.bulk(b"Some real reply following the attribute");
        }
        b"push" if reply.version() == Version::Resp2 => {
            reply.error("ERR RESP2 is not supported by this command");
        }
        b"push" => {
            reply.push(2);
            reply.bulk(b"server-cpu-usage");
            reply.integer(42);
            // A push isn't a reply, so the command still needs a reply.
            reply.bulk(b"Some real reply following the push reply");
        }
        b"verbatim" => reply.verbatim("txt", b"This is a verbatim\nstring"),
        b"true" => reply.boolean(true),
        b"false" => reply.boolean(false),
        b"bignum" => reply.big_number(b"1234567999999999999999999999999999999"),
        _ => reply.error(
            "ERR Wrong protocol type name. Please use one of the following: string|integer|double|bignum|null|array|set|map|attrib|push|verbatim|true|false",
        ),
    }
}

/// `DEBUG HELP`.
pub fn help(_: &mut LocalContext<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    help::write(
        reply,
        args,
        &[
            "AOF-FLUSH-SLEEP <microseconds>",
            "    Delay each write to the append-only file.",
            "CHANGE-REPL-ID",
            "    Change the replication ID: replicas need a full synchronization then.",
            "CONFIG-REWRITE-FORCE-ALL",
            "    Write all settings to the configuration file, also defaults.",
            "DIGEST",
            "    Return a digest of all databases.",
            "DIGEST-VALUE [<key> ...]",
            "    Return digests of the values of keys.",
            "ERROR <string>",
            "    Reply with this error.",
            "HTSTATS <dbid>",
            "    Return statistics of the hash tables of a database.",
            "JOURNAL <0|1>",
            "    Record the replication stream even without a reader.",
            "LOG <message>",
            "    Write a line to the log.",
            "OBJECT <key>",
            "    Return the encoding, size and idle time of a value.",
            "PAUSE-CRON <0|1>",
            "    Pause the periodic work: timeouts, limits, expired keys.",
            "POPULATE <count> [<prefix>] [<size>]",
            "    Create the missing strings <prefix>:<number> (default prefix: key).",
            "PROTOCOL <type>",
            "    Reply with a value of a protocol type: string, integer, double, bignum, null, array, set, map,",
            "    attrib, push, verbatim, true, false.",
            "QUICKLIST-PACKED-THRESHOLD <size>",
            "    Set the size at which an element of a list gets its own node. Default: 1gb.",
            "RELOAD [MERGE] [NOFLUSH] [NOSAVE]",
            "    Save the dataset, flush it, and load it again. NOSAVE: load the existing file. NOFLUSH: keep",
            "    the current keys. MERGE: keys of the file replace current ones.",
            "REPLICATE <command> [<arg> ...]",
            "    Send a command to replicas that is not run here.",
            "SET-ACTIVE-EXPIRE <0|1>",
            "    Enable or disable the deletion of expired keys in the background.",
            "SET-DISABLE-DENY-SCRIPTS <0|1>",
            "    Allow scripts to run DEBUG.",
            "SET-SKIP-CHECKSUM-VALIDATION <0|1>",
            "    Do not check the checksums of RDB files and DUMP payloads.",
            "SLEEP <seconds>",
            "    Stop the whole server. Decimals are allowed.",
        ],
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leading_integers_parse_as_by_atoi() {
        for (text, value) in [("1", 1), ("0", 0), ("  -12x", -12), ("x", 0), ("", 0), ("+3", 3)] {
            assert_eq!(leading_integer(text.as_bytes()), value, "{text:?}");
        }
        assert_eq!(leading_integer(&[b'9'; 40]), i64::MAX);
    }

    #[test]
    fn buckets_are_grouped_by_fill() {
        const NONE: &str = "Hash table 0 stats (main hash table):\nNo stats available for empty dictionaries\n";
        let empty = occupancy_text(&Occupancy::default(), 4);
        assert_eq!(empty, format!("[Dictionary HT]\n{NONE}[Expires HT]\n{NONE}"));
        let buckets = [2, 0, 1, 0, 0, 0, 0, 0, 1];
        let occupancy = Occupancy { entries: 11, expiring: 3, directory_words: 4, segments: 2, buckets, stashed: 1 };
        assert_eq!(
            occupancy_text(&occupancy, 4),
            "[Dictionary HT]\nHash table 0 stats (main hash tables of 4 partitions):\n table size: 32\n number of elements: 11\n \
             load: 34.38%\n directory words: 4\n segments: 2\n buckets: 4\n elements in no bucket: 1\n \
             Elements per bucket distribution:\n   0: 2 (50.00%)\n   2: 1 (25.00%)\n   8: 1 (25.00%)\n\
             [Expires HT]\nHash table 0 stats (expiries lie in the main hash tables):\n number of elements: 3\n"
        );
    }

    #[test]
    fn sleeps_for_the_leading_number_as_redis_does() {
        for (text, seconds) in [
            ("1", 1.0),
            ("1abc", 1.0),
            (" 0.5", 0.5),
            ("2e-1s", 0.2),
            ("1.5.2", 1.5),
            ("abc", 0.0),
            ("", 0.0),
            ("nan", 0.0),
            ("-", 0.0),
            ("-1", -1.0),
        ] {
            assert_eq!(leading_number(text.as_bytes()), seconds, "{text:?}");
        }
    }
}
