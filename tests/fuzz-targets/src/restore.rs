//! Values of `RESTORE` from arbitrary bytes. The result is an error or a value. Writing the value
//! and reading it again returns an equal value. Decoding never panics, and never allocates memory
//! for bytes that the input declares but doesn't contain. Compressing the bytes by LZF and
//! decompressing the result returns the same bytes. A shard also runs the command `RESTORE` itself:
//! commands of every type then read and change the stored value, and deleting the value frees all
//! its memory.

use pantala_commands::resolve;
use pantala_engine::access::SessionView;
use pantala_engine::command::Permit;
use pantala_engine::executor::{Call, Executor, Ran};
use pantala_engine::keyspace::{Execution, Keyspace, Layout, WorkerPort};
use pantala_resp::{ArgRange, Args, Version};
use pantala_types::list::NodeLimit;
use pantala_types::rdb_value::{Limits, Loaded, Reader, ValueRef, Writer, payload, read, write};
use pantala_types::sorted_set::PackLimits;
use pantala_types::{Collection, HashLimits, lzf};

/// Maximum length of a string. It is so low that a few bytes compressed by LZF can exceed it.
const STRING_BYTES_MAX: u64 = 1 << 16;

const LIMITS: Limits = Limits {
    string_bytes_max: STRING_BYTES_MAX,
    list_node: NodeLimit { bytes: 256, entries: 16, alone_bytes: 200, plain_depth: 1 },
    hash: HashLimits { entries_max: 8, value_bytes_max: 16 },
    set_intset_entries_max: 8,
    sorted_set: PackLimits { entries: 8, value_bytes: 16 },
};

fn dump(loaded: &Loaded<'_>, compress: bool) -> Vec<u8> {
    let value = match loaded {
        Loaded::String(bytes) => ValueRef::String(bytes),
        Loaded::List(list) => ValueRef::List(list.view()),
        Loaded::Hash(hash) => ValueRef::Hash(hash.view()),
        Loaded::Set(set) => ValueRef::Set(set.view()),
        Loaded::SortedSet(set) => ValueRef::SortedSet(set.view()),
        Loaded::Stream(stream) => ValueRef::Stream(stream),
    };
    let mut out = Vec::new();
    write(value, &mut Writer::new(&mut out, compress));
    out
}

/// Commands that read a restored value. Each replies with a result or an error.
const QUESTIONS: &[&str] = &[
    "TYPE k",
    "OBJECT ENCODING k",
    "STRLEN k",
    "GETRANGE k 0 -1",
    "PFCOUNT k",
    "LRANGE k 0 -1",
    "LINDEX k -1",
    "HGETALL k",
    "HSCAN k 0",
    "SMEMBERS k",
    "SSCAN k 0",
    "ZRANGE k 0 -1 WITHSCORES",
    "ZRANK k a",
    "XRANGE k - +",
    "XREVRANGE k + - COUNT 3",
    "XINFO STREAM k FULL COUNT 0",
    "XPENDING k g - + 10",
];

/// Commands that change a restored value.
const CHANGES: &[&str] = &[
    "PFADD k a b",
    "APPEND k x",
    "RPUSH k x",
    "LSET k 0 y",
    "LREM k 0 a",
    "LPOP k",
    "HSET k f v",
    "HINCRBY k a 1",
    "HDEL k a b",
    "SADD k 7 m",
    "SREM k a b",
    "ZADD k 1.5 m",
    "ZINCRBY k 1 a",
    "ZPOPMIN k 2",
    "XADD k * f v",
    "XGROUP CREATE k new 0",
    "XREADGROUP GROUP g c COUNT 3 STREAMS k >",
    "XAUTOCLAIM k g c 0 0",
    "XTRIM k MAXLEN 1",
    "XADD k * f v",
];

/// A shard without a server.
struct Shard {
    keyspace: Keyspace,
}

impl Shard {
    fn new() -> Shard {
        let layout = Layout {
            shards: 1,
            partitions: 1,
            databases: 1,
            homes: 1,
            workers: 1,
            execution: Execution::Inline,
            seed: 42,
            random_seed: 42,
        };
        Shard { keyspace: Keyspace::new(layout, vec![WorkerPort::new(Box::new(|| {}))]) }
    }

    /// Runs a command on the key `k`, and returns its reply.
    fn run(&self, arguments: &[&[u8]]) -> Vec<u8> {
        let (mut bytes, mut ranges) = (Vec::new(), Vec::new());
        for argument in arguments {
            ranges.push(ArgRange::new(bytes.len(), argument.len()));
            bytes.extend_from_slice(argument);
        }
        let args = Args::new(&bytes, &ranges);
        let command = resolve(&args).ok().expect("a command that is there");
        let place = self.keyspace.place(b"k");
        let call = Call {
            command,
            args,
            first_key: Some(place),
            session: SessionView {
                client: 1,
                db: 0,
                version: Version::Resp3,
                no_touch: false,
                of_primary: false,
                in_script: false,
                permit: Permit::default(),
            },
            reads_as: None,
            connection: 0,
            now_ms: 1_700_000_000_000,
        };
        let mut reply = Vec::new();
        let ran = Executor::new(&self.keyspace, 0).run_single(&call, place, &mut reply);
        assert_eq!(ran, Ran::Done, "nobody else holds the shard");
        reply
    }

    fn run_words(&self, command: &str) {
        self.run(&command.split(' ').map(str::as_bytes).collect::<Vec<_>>());
    }

    /// Restores a value, then reads, changes and deletes it.
    fn use_value(&self, value: &[u8]) {
        let mut sealed = value.to_vec();
        payload::seal(&mut sealed);
        if self.run(&[b"RESTORE", b"k", b"0", &sealed, b"REPLACE"]) != b"+OK\r\n" {
            return;
        }
        QUESTIONS.iter().for_each(|question| self.run_words(question));
        let dumped = self.run(&[b"DUMP", b"k"]);
        // The payload follows the length.
        let from = dumped.iter().position(|&byte| byte == b'\n').expect("a bulk") + 1;
        let again = self.run(&[b"RESTORE", b"k", b"0", &dumped[from..dumped.len() - 2], b"REPLACE"]);
        assert_eq!(again, b"+OK\r\n", "what was dumped is restored");
        CHANGES.iter().for_each(|change| self.run_words(change));
        QUESTIONS.iter().for_each(|question| self.run_words(question));
        self.run_words("DEL k");
        let (_, left) = self.keyspace.memory_bytes(0);
        assert_eq!(left, 0, "all memory is accounted for");
    }
}

thread_local! {
    static SHARD: Shard = Shard::new();
}

/// Runs the target on one input, and panics on a defect.
pub fn run(data: &[u8]) {
    SHARD.with(|shard| shard.use_value(data));
    let mut compressed = Vec::new();
    if lzf::compress(data, &mut compressed, data.len()) {
        assert_eq!(lzf::decompress(&compressed, data.len()).as_deref(), Ok(data));
    }
    let Ok(loaded) = read(&mut Reader::new(data, STRING_BYTES_MAX), &LIMITS) else { return };
    let bytes = dump(&loaded, data.len().is_multiple_of(2));
    // The nodes of a list or a stream may together be longer than the maximum length of a string.
    // This reader therefore allows longer strings than the reader above.
    let mut reader = Reader::new(&bytes, u64::from(u32::MAX));
    let again = read(&mut reader, &LIMITS).expect("what was written is read");
    assert_eq!(reader.remaining(), 0);
    match (&loaded, &again) {
        // The encoding of a small collection depends on how it was created.
        (Loaded::Hash(one), Loaded::Hash(two)) => assert_eq!(one.view().len(), two.view().len()),
        (Loaded::Set(one), Loaded::Set(two)) => assert_eq!(one.view().len(), two.view().len()),
        (Loaded::SortedSet(one), Loaded::SortedSet(two)) => assert_eq!(one.view().len(), two.view().len()),
        (one, two) => assert_eq!(one, two),
    }
}
