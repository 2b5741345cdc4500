//! Commands of connections and of the server.

use super::{Check, Generator, Step, words};

/// Fixed commands whose replies are equal.
const FIXED_EXACT: &[&str] = &[
    "PING",
    "PING hello",
    "PING a b",
    "DBSIZE x",
    "CLIENT GETNAME",
    "CLIENT SETNAME me",
    "CLIENT SETNAME",
    "CLIENT SETNAME a\nb",
    "CLIENT NO-EVICT on",
    "CLIENT NO-EVICT off",
    "CLIENT NO-EVICT maybe",
    "CLIENT KILL 1.2.3.4:5",
    "CLIENT KILL ID 99999999",
    "CLIENT KILL ID x",
    "CLIENT KILL NOSUCH 1",
    "CLIENT KILL TYPE nosuch",
    "CLIENT KILL USER nosuch",
    "CLIENT KILL SKIPME maybe",
    "CLIENT KILL",
    "CLIENT LIST TYPE nosuch",
    "CLIENT LIST ID x",
    "CLIENT LIST NOSUCH",
    "CLIENT LIST ID 99999999",
    "CLIENT UNBLOCK 99999999",
    "CLIENT UNBLOCK x",
    "CLIENT UNBLOCK 99999999 NOSUCH",
    "CLIENT PAUSE x",
    "CLIENT PAUSE -1",
    "CLIENT PAUSE 1 NOSUCH",
    "CLIENT UNPAUSE",
    "CLIENT REPLY NOSUCH",
    "CLIENT NOSUCH",
    "CLIENT",
    "CLIENT ID x",
    "CLIENT REPLY ON",
    "AUTH secret",
    "AUTH default secret",
    "AUTH nobody secret",
    "AUTH a b c",
    "HELLO 4",
    "HELLO x",
    "HELLO 3 NOSUCH",
    "HELLO 3 AUTH a",
    "HELLO 2 AUTH nobody secret",
    "HELLO 2 SETNAME a\nb",
    "HELLO -1",
    "SELECT 0",
    "SELECT 1",
    "SELECT 2",
    "SELECT 16",
    "SELECT -1",
    "SELECT x",
    "SELECT",
    "SELECT 15",
    "SWAPDB 0 1",
    "SWAPDB 1 2",
    "SWAPDB 0 0",
    "SWAPDB x 1",
    "SWAPDB 1 x",
    "SWAPDB 0 16",
    "SWAPDB -1 0",
    "SWAPDB 0",
    "FLUSHDB NOSUCH",
    "FLUSHALL NOSUCH",
    "FLUSHDB ASYNC SYNC",
    "COMMAND GETKEYS GET a",
    "COMMAND GETKEYS MSET a b c d",
    "COMMAND GETKEYS MSET a b c",
    "COMMAND GETKEYS PING",
    "COMMAND GETKEYS NOSUCH a",
    "COMMAND GETKEYS GET",
    "COMMAND GETKEYS COPY a b DB 1",
    "COMMAND GETKEYSANDFLAGS RENAME a b",
    "COMMAND GETKEYSANDFLAGS SET a b GET",
    "COMMAND GETKEYS",
    "COMMAND NOSUCH",
    "COMMAND INFO nosuch",
    "COMMAND DOCS nosuch",
    "COMMAND COUNT x",
    "COMMAND LIST FILTERBY NOSUCH x",
    "COMMAND LIST FILTERBY MODULE nosuch",
    "COMMAND LIST FILTERBY PATTERN get",
    "COMMAND LIST FILTERBY ACLCAT nosuch",
    "CONFIG GET maxclients",
    "CONFIG GET databases",
    "CONFIG GET timeout",
    "CONFIG GET proto-max-bulk-len",
    "CONFIG GET nosuch",
    "CONFIG GET",
    "CONFIG SET nosuch 1",
    "CONFIG SET timeout",
    "CONFIG SET timeout x",
    "CONFIG SET timeout -1",
    "CONFIG SET databases 4",
    "CONFIG SET timeout 0 timeout 0",
    "CONFIG SET hz 10",
    "CONFIG SET maxclients 0",
    "CONFIG NOSUCH",
    "CONFIG",
    "CONFIG SET timeout 0 nosuch 1",
    "CONFIG SET appendonly maybe",
    "CONFIG RESETSTAT x",
    "DEBUG NOSUCH",
    "DEBUG SLEEP 0",
    "DEBUG",
    "MEMORY NOSUCH",
    "MEMORY USAGE",
    "MEMORY USAGE a SAMPLES -1",
    "MEMORY USAGE a SAMPLES x",
    "MEMORY USAGE a NOSUCH 1",
    "MEMORY USAGE nosuchkey",
    "MEMORY STATS x",
    "OBJECT",
    "OBJECT NOSUCH",
    "OBJECT ENCODING",
    "TIME x",
    "RANDOMKEY x",
    "SHUTDOWN NOSUCH",
    "SHUTDOWN SAVE NOSAVE",
    "SHUTDOWN ABORT",
    "ECHO",
    "ECHO a b",
    "RESET x",
];

/// Fixed commands. Only the kind of their replies is compared.
const FIXED_KIND: &[&str] = &[
    "CLIENT ID",
    "CLIENT INFO",
    "CLIENT LIST",
    "TIME",
    "INFO",
    "INFO server",
    "INFO keyspace",
    "LOLWUT",
    "LOLWUT VERSION",
    "INFO nosuch",
];

/// Limits of encodings, and values for each limit. With all of these values, small hashes and sets
/// keep their encoding, so that the order of their elements is comparable (see [`super::hashes`]
/// and [`super::sets`]).
const LIMITS: &[(&str, &[&str])] = &[
    ("hash-max-listpack-entries", &["40", "64", "128", "512", "1000"]),
    ("hash-max-ziplist-entries", &["40", "512"]),
    ("hash-max-listpack-value", &["20", "32", "64", "65", "200"]),
    ("set-max-intset-entries", &["64", "100", "512", "700", "1000"]),
    ("zset-max-listpack-entries", &["0", "1", "5", "16", "128", "300"]),
    ("zset-max-listpack-value", &["0", "8", "64", "70", ""]),
    ("list-max-listpack-size", &["-1", "-2", "-5", "0", "1", "5", "128"]),
    ("list-compress-depth", &["0", "0", "1", "2"]),
];

/// The initial values of the limits that a stream may change.
pub const LIMITS_AT_FIRST: &[(&str, &str)] = &[
    ("hash-max-listpack-entries", "512"),
    ("hash-max-listpack-value", "64"),
    ("set-max-intset-entries", "512"),
    ("zset-max-listpack-entries", "128"),
    ("zset-max-listpack-value", "64"),
    ("list-max-listpack-size", "-2"),
    ("list-compress-depth", "0"),
    ("stream-node-max-entries", "100"),
    ("stream-node-max-bytes", "4096"),
];

impl Generator {
    pub(super) fn server_command(&mut self) -> Step {
        match self.random.below(20) {
            0..=6 => Step::new(words(self.random.pick::<&str>(FIXED_EXACT)), Check::Exact),
            7 => Step::new(words(self.random.pick::<&str>(FIXED_KIND)), Check::Kind),
            8..=12 => {
                let mut args = words("SELECT");
                args.push(self.database());
                Step::new(args, Check::Exact)
            }
            13 => {
                let mut args = words("SWAPDB");
                args.push(self.database());
                args.push(self.database());
                Step::new(args, Check::Exact)
            }
            14 => Step::new(
                words(self.random.pick::<&str>(&["HELLO 2", "HELLO 3", "HELLO", "HELLO 3 SETNAME me", "RESET"])),
                Check::Kind,
            ),
            15 if self.random.one_in(4) => {
                let name = *self.random.pick(&[
                    "FLUSHDB",
                    "FLUSHDB ASYNC",
                    "FLUSHDB SYNC",
                    "FLUSHALL",
                    "FLUSHALL ASYNC",
                    "FLUSHALL SYNC",
                ]);
                Step::new(words(name), Check::Exact)
            }
            15 => self.limits(),
            16 => {
                let mut args = words("CLIENT SETNAME");
                args.push(self.value());
                Step::new(args, Check::Exact)
            }
            17 => self.count_keys(),
            18 => self.memory_usage(),
            _ => {
                let mut args = words("ECHO");
                args.push(self.value());
                Step::new(args, Check::Exact)
            }
        }
    }

    /// Returns `CONFIG SET` of one of the [`LIMITS`], or `CONFIG GET` of some of them.
    fn limits(&mut self) -> Step {
        if self.random.one_in(5) {
            let pattern = *self.random.pick(&["hash-max-*", "*-max-intset-*", "zset-*", "list-*", "*-listpack-*"]);
            return Step::new([words("CONFIG GET"), words(pattern)].concat(), Check::Pairs);
        }
        let (name, values) = *self.random.pick(LIMITS);
        let value = if self.random.one_in(12) {
            *self.random.pick(&["-1", "x", "1.5", "9223372036854775808", "64kb"])
        } else {
            *self.random.pick(values)
        };
        Step::new([words("CONFIG SET"), words(name), vec![value.as_bytes().to_vec()]].concat(), Check::Exact)
    }

    /// Returns EXISTS followed by MEMORY USAGE. Without EXISTS, Redis replies to MEMORY USAGE for
    /// an expired key until a command accesses the key.
    fn memory_usage(&mut self) -> Step {
        let key = self.key();
        let mut usage = words("MEMORY USAGE");
        usage.push(key.clone());
        if self.random.one_in(2) {
            usage.extend(words("SAMPLES 0"));
        }
        self.following.push_back(Step::new(usage, Check::Kind));
        Step::new([words("EXISTS"), vec![key]].concat(), Check::Exact)
    }
}
