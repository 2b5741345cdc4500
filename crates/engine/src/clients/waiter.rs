//! Waiters: blocked commands (`BLPOP` and its variants). `effect::blocking` queues and serves them.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use pantala_base::sync::{AtomicBool, AtomicU32, Ordering};
use pantala_resp::{ArgRange, Args};
use smallvec::SmallVec;

use crate::command::{Command, KeyPlace, SessionView};

/// The state of a key that wakes a waiter.
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

/// How a command blocks.
#[derive(Clone, Debug)]
pub struct Block {
    /// The arguments that are the keys it blocks on.
    pub keys: Range<usize>,
    /// The argument that is a further key, needed when it is woken (`BLMOVE`).
    pub destination: Option<usize>,
    /// The state of a key that wakes it.
    pub wakes_on: WakesOn,
    /// The timeout, ms; 0: none.
    pub timeout_ms: i64,
    /// The arguments of the call that wakes it, if they differ from its own (`XREAD … $`). As many,
    /// and keys at the same places.
    pub args: Option<Vec<Vec<u8>>>,
}

impl Block {
    /// Returns a block on these keys.
    pub fn on(keys: Range<usize>, wakes_on: WakesOn, timeout_ms: i64) -> Self {
        Block { keys, destination: None, wakes_on, timeout_ms, args: None }
    }
}

/// Arguments and bytes of them up to which a waiter is one allocation: those of `BLPOP` of a key
/// and its variants.
const FEW_ARGUMENTS: usize = 4;
const FEW_BYTES: usize = 64;

/// A blocked command. A shard keeps its waiters in `effect::blocking`.
pub struct Waiter {
    pub(crate) ticket: u64,
    claimed: AtomicBool,
    /// The number of queues that it is in.
    pub(crate) queues: AtomicU32,
    command: &'static Command,
    bytes: SmallVec<[u8; FEW_BYTES]>,
    ranges: SmallVec<[ArgRange; FEW_ARGUMENTS]>,
    pub(crate) session: SessionView,
    /// The worker of its connection.
    pub(crate) worker: u32,
    /// That worker's token of the connection.
    pub connection: u64,
    /// The keys it blocks on, without repeats: the index of the argument, and the place.
    keys: SmallVec<[(usize, KeyPlace); 1]>,
    /// The place of the further key that it needs.
    pub(crate) destination: Option<KeyPlace>,
    pub(crate) wakes_on: WakesOn,
    /// The timeout, ms; 0: none.
    pub timeout_ms: i64,
}

/// The client of a waiter, and its ticket.
pub(crate) struct Origin {
    pub(crate) ticket: u64,
    pub(crate) worker: u32,
    pub(crate) connection: u64,
    pub(crate) session: SessionView,
}

/// The most keys whose repeats are found by comparing each with each: shards are held meanwhile.
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
            // A waiter that is in a queue twice would be served twice.
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

    /// Returns the bytes of its arguments.
    pub fn argument_bytes(&self) -> usize {
        self.bytes.len() + self.ranges.len() * size_of::<ArgRange>()
    }

    /// Returns the blocked command.
    pub fn command(&self) -> &'static Command {
        self.command
    }

    /// Returns its place in the order of all waiters: unique.
    pub fn ticket(&self) -> u64 {
        self.ticket
    }

    /// Claims the right to answer it. Returns `true` to one caller only.
    #[must_use]
    pub fn claim(&self) -> bool {
        // Acquire and release order the work around the claim; the exchange alone decides the
        // winner.
        self.claimed.compare_exchange(false, true, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Returns whether it has been claimed.
    pub fn is_claimed(&self) -> bool {
        self.claimed.load(Ordering::Acquire)
    }

    /// Returns whether it is in any queue. For its connection's worker, once it has been answered:
    /// it is added to no queue then.
    pub(crate) fn is_queued(&self) -> bool {
        self.queues.load(Ordering::Acquire) > 0
    }

    /// Returns its arguments.
    pub fn args(&self) -> Args<'_> {
        Args::new(&self.bytes, &self.ranges)
    }

    /// Returns the shards of its keys, without repeats.
    pub(crate) fn shards(&self) -> SmallVec<[u32; 4]> {
        let mut shards: SmallVec<[u32; 4]> = self.keys.iter().map(|(_, place)| place.shard).collect();
        shards.sort_unstable();
        shards.dedup();
        shards
    }

    /// Returns its keys in a shard.
    pub(crate) fn keys_in(&self, shard: u32) -> impl Iterator<Item = &[u8]> {
        let keys = self.keys.iter().filter(move |(_, place)| place.shard == shard);
        keys.map(|(index, _)| self.ranges[*index].of(&self.bytes))
    }
}

/// The reply to a waiter, in flight to its connection.
pub struct Woken {
    /// The answered waiter.
    pub waiter: Arc<Waiter>,
    /// The reply.
    pub reply: Vec<u8>,
    /// Stamp of the latest effect that the reply may depend on.
    pub effect_clock: u64,
}
