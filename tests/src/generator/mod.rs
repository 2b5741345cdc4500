//! Random streams of commands of the data types, keys, connections and the server, which the
//! differential test sends to Pantala and to redis-server.
//!
//! Both servers must give the same replies, although they run the commands at slightly different
//! times. The TTLs of a stream are therefore long, and differ much from each other. As a result,
//! each key expires on both servers or on neither, and the conditions `GT` and `LT` of `EXPIRE`
//! have the same result on both. Many keys get a deadline in the past, and so expire immediately.
//!
//! A *step* is a command with a [`Check`], which says how exactly the two replies must agree. Even
//! two redis-servers give different replies to some commands, because these replies are random or
//! depend on the clock.

mod bitmaps;
mod declared;
mod generic;
mod geo;
mod hashes;
mod hyperloglog;
mod lists;
mod scripts;
mod server;
mod sets;
mod sorted_sets;
mod sorting;
mod streams;
mod strings;
mod transactions;
mod values;

pub use declared::{Declared, read as read_declared};
pub use server::LIMITS_AT_FIRST;
pub use streams::CLOCK_STREAM;

use std::collections::VecDeque;

use crate::Random;

/// How to compare the two replies to a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Check {
    /// Byte for byte.
    Exact,
    /// The elements of an aggregate in any order.
    Unordered,
    /// The pairs of a map, of an array of pairs, or of an array in which the elements of each pair
    /// are neighbours, in any order.
    Pairs,
    /// For the SCAN commands: the cursor is followed to the end on each server, and the elements of
    /// all pages must be equal. Cursors and repeated elements may differ between servers. Such a
    /// step starts at cursor 0. No step with this check is one that must directly follow another,
    /// because further calls are inserted after it.
    Walk,
    /// As `Walk`, with pairs as elements.
    WalkOfPairs,
    /// The same kind of reply with the same number of elements. Errors must be equal.
    Length,
    /// Integers that may differ by this much. Negative integers and other replies must be equal.
    Near(i64),
    /// Byte for byte, except for clock times in replies about streams.
    Times,
    /// The same kind of reply. Errors must be equal.
    Kind,
}

/// A command of a stream.
#[derive(Clone, Debug)]
pub struct Step {
    /// The connection that sends the command.
    pub connection: usize,
    /// Name and arguments of the command.
    pub args: Vec<Vec<u8>>,
    /// How to compare the two replies.
    pub check: Check,
}

impl Step {
    fn new(args: Vec<Vec<u8>>, check: Check) -> Step {
        Step { connection: 0, args, check }
    }
}

/// Maximum difference of a TTL between two servers that received the same command, in seconds.
pub const TTL_SLACK_S: i64 = 20;

/// Number of connections over which a stream is distributed.
pub const CONNECTIONS: usize = 3;

/// Number of databases that most commands choose from.
pub const DATABASES: i64 = 3;

/// An endless stream of commands.
pub struct Generator {
    pub(crate) random: Random,
    keys: Vec<Vec<u8>>,
    /// Unix time in seconds at the start of the stream. Absolute expiry times are computed from it.
    start_s: i64,
    /// Time part of the IDs of stream entries.
    stream_ms: u64,
    /// Number of further steps that are mostly stream commands. Stream commands come in series,
    /// because other commands soon delete a key, and an isolated stream command would rarely find a
    /// stream.
    stream_run: usize,
    /// Maximum length of frequent values, in bytes.
    pub(crate) value_len_max: usize,
    /// Steps that must follow the last one on the same connection.
    following: VecDeque<Step>,
    /// Declarations of commands (see [`declared`]), from which some steps are built.
    declared: Vec<Declared>,
    /// Payloads of `DUMP`, for `RESTORE`.
    payloads: Vec<Vec<u8>>,
}

impl Generator {
    /// Returns the stream that `seed` determines. `start_s` is the current Unix time in seconds.
    #[must_use]
    pub fn new(seed: u64, start_s: i64) -> Generator {
        let mut random = Random::from_seed(seed);
        let mut keys: Vec<Vec<u8>> = [
            "a", "b", "c", "key", "key:1", "key:2", "key:33", "{tag}one", "{tag}two", "x{tag}", "{}", "Key", "num",
            "n2",
        ]
        .iter()
        .map(|key| key.as_bytes().to_vec())
        .collect();
        keys.push(Vec::new());
        keys.push(b"sp ace\r\n\0".to_vec());
        for _ in 0..6 {
            let len = random.below(24) + 1;
            keys.push(random.bytes(len));
        }
        keys.push(vec![b'L'; 300]);
        keys.extend((0..lists::KEYS).map(lists::key));
        keys.extend((0..hashes::KEYS).map(hashes::key));
        keys.extend((0..sets::KEYS).map(sets::key));
        keys.extend((0..sorted_sets::KEYS).map(sorted_sets::key));
        keys.extend((0..geo::KEYS).map(geo::key));
        keys.extend((0..streams::KEYS).map(streams::key));
        Generator {
            random,
            keys,
            start_s,
            stream_ms: 1,
            stream_run: 0,
            value_len_max: 600,
            following: VecDeque::new(),
            declared: Vec::new(),
            payloads: Vec::new(),
        }
    }

    /// Adds commands that are built from these declarations to the stream.
    #[must_use]
    pub fn with_declared(self, declared: Vec<Declared>) -> Generator {
        Generator { declared, ..self }
    }

    /// Adds `RESTORE` of these payloads to the stream.
    #[must_use]
    pub fn with_payloads(self, payloads: Vec<Vec<u8>>) -> Generator {
        Generator { payloads, ..self }
    }

    /// Returns whether the next step must follow the last one directly, on the same connection.
    #[must_use]
    pub fn has_following_step(&self) -> bool {
        !self.following.is_empty()
    }

    /// Returns the next command.
    pub fn step(&mut self) -> Step {
        if let Some(step) = self.following.pop_front() {
            return step;
        }
        let mut step = match self.random.below(100) {
            0..=79 if self.stream_run > 0 => self.stream_command(),
            0..=53 => self.data_command(),
            54..=57 => match self.random.below(16) {
                0..=5 => self.transaction_command(),
                6..=8 => self.sort_command(),
                9 | 10 => self.waiting_command(),
                _ => self.transfer_command(),
            },
            58..=77 => self.generic_command(),
            78..=86 => self.server_command(),
            87..=96 => match self.declared_command() {
                Some(step) => step,
                None => self.server_command(),
            },
            _ => self.unknown_command(),
        };
        if !self.has_following_step() && self.random.one_in(14) && may_be_bent(&step.args) {
            self.bend(&mut step);
            // An ID from the clock would differ between the servers.
            if step.args[0] == b"XADD" {
                step.args.retain(|arg| arg != b"*");
            }
        }
        self.mix_case(&mut step.args[0]);
        step
    }

    /// Returns a command of one of the types.
    fn data_command(&mut self) -> Step {
        match self.random.below(36) {
            0..=7 => self.string_command(),
            8 | 9 => self.bitmap_command(),
            10 => self.hyperloglog_command(),
            11..=15 => self.list_command(),
            16..=19 => self.hash_command(),
            20..=23 => self.set_command(),
            24 | 25 => self.geo_command(),
            26..=31 => self.sorted_set_command(),
            32 | 33 => self.script_command(),
            _ => {
                self.stream_run = if self.random.one_in(4) { 80 } else { 1 };
                self.stream_command()
            }
        }
    }

    /// Returns a key, mostly from a small set, so that commands access the same keys.
    pub(crate) fn key(&mut self) -> Vec<u8> {
        if self.random.one_in(3) {
            // A few keys have most of the traffic.
            return self.keys[self.random.below(4)].clone();
        }
        self.random.pick(&self.keys).clone()
    }

    /// Returns EXISTS of every key that the generator uses, followed by DBSIZE. DBSIZE counts an
    /// expired key until a command accesses the key. SCAN and RANDOMKEY access different keys on
    /// each server, so without EXISTS the counts could differ. After EXISTS, no expired key
    /// remains.
    pub(crate) fn count_keys(&mut self) -> Step {
        self.following.push_back(Step::new(words("DBSIZE"), Check::Exact));
        let mut args = words("EXISTS");
        args.extend(self.keys.iter().cloned());
        args.extend(values::JUNK.iter().map(|junk| junk.as_bytes().to_vec()));
        Step::new(args, Check::Exact)
    }

    /// Makes a command invalid: an argument is missing, added, doubled or replaced. Arguments are
    /// never exchanged, because a number at the position of a TTL could make a key expire soon.
    fn bend(&mut self, step: &mut Step) {
        let len = step.args.len();
        match self.random.below(4) {
            0 if len > 1 => {
                step.args.truncate(1 + self.random.below(len - 1));
            }
            1 => {
                let junk = self.junk();
                step.args.push(junk);
            }
            2 if len > 1 => {
                let at = 1 + self.random.below(len - 1);
                let copy = step.args[at].clone();
                step.args.insert(at, copy);
            }
            _ if len > 1 => {
                let at = 1 + self.random.below(len - 1);
                step.args[at] = self.junk();
            }
            _ => {}
        }
    }

    /// Changes letters of a word to lower case at random.
    pub(crate) fn mix_case(&mut self, word: &mut [u8]) {
        match self.random.below(4) {
            0 => word.make_ascii_lowercase(),
            1 => {
                for byte in word.iter_mut() {
                    if self.random.one_in(2) {
                        *byte = byte.to_ascii_lowercase();
                    }
                }
            }
            _ => {}
        }
    }

    /// Returns an option of a command, with letters in random case. (The case of a command's name
    /// is changed by [`Generator::step`].)
    pub(crate) fn word(&mut self, text: &str) -> Vec<u8> {
        let mut word = text.as_bytes().to_vec();
        self.mix_case(&mut word);
        word
    }

    fn unknown_command(&mut self) -> Step {
        let name = match self.random.below(4) {
            0 => b"NOSUCHCOMMAND".to_vec(),
            1 => b"gett".to_vec(),
            2 => self.random.bytes(5),
            _ => vec![b'x'; 1 + self.random.below(300)],
        };
        // An empty name is valid. A name that starts like a RESP array is also valid, because it is
        // sent as a bulk.
        let mut args = vec![name];
        for _ in 0..self.random.below(6) {
            let value = self.value();
            args.push(value);
        }
        Step::new(args, Check::Exact)
    }
}

/// Returns whether [`Generator::bend`] may change this command. The invalid form must be harmless,
/// and its replies must be comparable.
fn may_be_bent(args: &[Vec<u8>]) -> bool {
    // A member that isn't an integer would change the order of a small set. Another score would
    // change the order of a lexicographical range.
    let is_ordered = args
        .get(1)
        .is_some_and(|key| key.starts_with(sets::SMALL_PREFIX.as_bytes()) || key.starts_with(sorted_sets::LEX_PREFIX));
    let is_fixed = [
        "CLIENT",
        "DEBUG",
        "CONFIG",
        "HELLO",
        "INFO",
        "SCAN",
        "COMMAND",
        "EVAL",
        "EVAL_RO",
        "FUNCTION",
        "MEMORY",
        "LOLWUT",
        "SHUTDOWN",
        "TIME",
        "RANDOMKEY",
        "HRANDFIELD",
        "HSCAN",
        "PFSELFTEST",
        "SPOP",
        "SRANDMEMBER",
        "SSCAN",
        "ZSCAN",
        // Another timeout could be infinite.
        "BLPOP",
        "BRPOP",
        "BLMOVE",
        "BRPOPLPUSH",
        "BLMPOP",
        "BZPOPMIN",
        "BZPOPMAX",
        "BZMPOP",
        // Redis 7.2 added an option, which changes the arity.
        "ZRANK",
        "ZREVRANK",
    ]
    .iter()
    .any(|fixed| args[0].eq_ignore_ascii_case(fixed.as_bytes()));
    // Another `BLOCK` time could be infinite.
    let may_wait = args.iter().any(|arg| arg.eq_ignore_ascii_case(b"BLOCK"));
    !is_ordered && !is_fixed && !may_wait
}

/// Splits a command that is the same in every stream into its words.
pub(crate) fn words(text: &str) -> Vec<Vec<u8>> {
    text.split(' ').map(|word| word.as_bytes().to_vec()).collect()
}
