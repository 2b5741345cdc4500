//! A command that waits: `BLPOP` and its like. How it comes to wait and is served:
//! `effect::blocking`.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use pantala_base::sync::{AtomicBool, AtomicU32, Ordering};
use pantala_resp::{ArgRange, Args};
use smallvec::SmallVec;

use crate::command::{Command, KeyPlace, SessionView};

/// What a waiter waits for: it is tried only when its key is that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum WakesOn {
    /// The key is a list.
    List = 0,
    /// The key is a sorted set.
    SortedSet = 1,
    /// The key is a stream.
    Stream = 2,
    /// Any change of the key, its removal included (`XREADGROUP`).
    AnyChange = 3,
}

/// How a command waits.
#[derive(Clone, Debug)]
pub struct Block {
    /// The arguments that are the keys it waits at.
    pub keys: Range<usize>,
    /// The argument that is a further key which it needs when it is woken (`BLMOVE`).
    pub destination: Option<usize>,
    /// What it waits for.
    pub wakes_on: WakesOn,
    /// How long, ms; 0: for ever.
    pub timeout_ms: i64,
    /// The arguments it is to be called with when woken, where they aren't those it came with (`XREAD … $`). As many, and keys
    /// at the same places.
    pub args: Option<Vec<Vec<u8>>>,
}

impl Block {
    /// To wait at these keys.
    pub fn on(keys: Range<usize>, wakes_on: WakesOn, timeout_ms: i64) -> Self {
        Block { keys, destination: None, wakes_on, timeout_ms, args: None }
    }
}

/// Arguments and bytes of them up to which a waiter is one piece of memory: those of `BLPOP` of a key and its like.
const FEW_ARGUMENTS: usize = 4;
const FEW_BYTES: usize = 64;

/// A command that waits. What a shard keeps of those is `effect::blocking`.
pub struct Waiter {
    pub(crate) ticket: u64,
    claimed: AtomicBool,
    /// Queues that it stands in.
    pub(crate) queues: AtomicU32,
    command: &'static Command,
    bytes: SmallVec<[u8; FEW_BYTES]>,
    ranges: SmallVec<[ArgRange; FEW_ARGUMENTS]>,
    pub(crate) session: SessionView,
    /// The worker of its connection.
    pub(crate) worker: u32,
    /// That worker's token of the connection.
    pub connection: u64,
    /// The keys it waits at, without repeats: which argument, and where it lives.
    keys: SmallVec<[(usize, KeyPlace); 1]>,
    /// Where the further key lives that it needs.
    pub(crate) destination: Option<KeyPlace>,
    pub(crate) wakes_on: WakesOn,
    /// How long it waits, ms; 0: for ever.
    pub timeout_ms: i64,
}

/// Whose a waiter is and when it came.
pub(crate) struct Origin {
    pub(crate) ticket: u64,
    pub(crate) worker: u32,
    pub(crate) connection: u64,
    pub(crate) session: SessionView,
}

/// Up to how many keys repeats are found by comparing each with each: shards are held meanwhile.
const FEW_KEYS_MAX: usize = 16;

impl Waiter {
    pub(crate) fn new(
        origin: &Origin,
        command: &'static Command,
        args: &Args<'_>,
        block: &Block,
        place: &dyn Fn(&[u8]) -> KeyPlace,
    ) -> Self {
        let (mut bytes, mut ranges) = (SmallVec::new(), SmallVec::with_capacity(args.len()));
        let mut add = |argument: &[u8]| {
            ranges.push(ArgRange::new(bytes.len(), argument.len()));
            bytes.extend_from_slice(argument);
        };
        match &block.args {
            Some(args) => args.iter().for_each(|argument| add(argument)),
            None => args.iter().for_each(add),
        }
        let mut keys: SmallVec<[(usize, KeyPlace); 1]> = SmallVec::with_capacity(block.keys.len());
        let mut seen = (block.keys.len() > FEW_KEYS_MAX).then(HashSet::new);
        for index in block.keys.clone() {
            let key = args.at(index);
            // Standing twice in a queue would be being served twice.
            let is_new = match &mut seen {
                None => keys.iter().all(|&(known, _)| args.at(known) != key),
                Some(seen) => seen.insert(key),
            };
            if is_new {
                keys.push((index, place(key)));
            }
        }
        Waiter {
            ticket: origin.ticket,
            claimed: AtomicBool::new(false),
            queues: AtomicU32::new(0),
            command,
            bytes,
            ranges,
            session: origin.session,
            worker: origin.worker,
            connection: origin.connection,
            keys,
            destination: block.destination.map(|index| place(args.at(index))),
            wakes_on: block.wakes_on,
            timeout_ms: block.timeout_ms,
        }
    }

    /// Bytes of its arguments.
    pub fn argument_bytes(&self) -> usize {
        self.bytes.len() + self.ranges.len() * size_of::<ArgRange>()
    }

    /// What waits.
    pub fn command(&self) -> &'static Command {
        self.command
    }

    /// Its place in the order of all waiters: unique.
    pub fn ticket(&self) -> u64 {
        self.ticket
    }

    /// Claims the right to answer it: true for one caller only.
    #[must_use]
    pub fn claim(&self) -> bool {
        // Acquire and release for the sake of whoever reads the other fields' owners' work; the exchange alone decides who won.
        self.claimed.compare_exchange(false, true, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Whether somebody has claimed it.
    pub fn is_claimed(&self) -> bool {
        self.claimed.load(Ordering::Acquire)
    }

    /// Whether it stands in any queue. Its connection's worker may ask once it has been answered: nobody adds it to one then.
    pub(crate) fn is_queued(&self) -> bool {
        self.queues.load(Ordering::Acquire) > 0
    }

    /// Its arguments.
    pub fn args(&self) -> Args<'_> {
        Args::new(&self.bytes, &self.ranges)
    }

    /// The shards of its keys, without repeats.
    pub(crate) fn shards(&self) -> SmallVec<[u32; 4]> {
        let mut shards: SmallVec<[u32; 4]> = self.keys.iter().map(|(_, place)| place.shard).collect();
        shards.sort_unstable();
        shards.dedup();
        shards
    }

    /// Its keys in a shard.
    pub(crate) fn keys_in(&self, shard: u32) -> impl Iterator<Item = &[u8]> {
        let keys = self.keys.iter().filter(move |(_, place)| place.shard == shard);
        keys.map(|(index, _)| self.ranges[*index].of(&self.bytes))
    }
}

/// The answer to a waiter, on its way to its connection.
pub struct Woken {
    /// Who waited.
    pub waiter: Arc<Waiter>,
    /// What it is answered.
    pub reply: Vec<u8>,
    /// Stamp of the latest effect that the answer may depend on.
    pub effect_clock: u64,
}
