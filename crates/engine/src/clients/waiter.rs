//! Waiters: blocked commands (`BLPOP` and its variants). `effect::blocking` has their queues.

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
    /// Any change of the key, including its deletion (`XREADGROUP`).
    AnyChange = 3,
}

/// How a command blocks.
#[derive(Clone, Debug)]
pub struct Block {
    /// Indexes of the arguments that are the keys on which the command blocks.
    pub keys: Range<usize>,
    /// Index of the argument that is the destination key (`BLMOVE`). A woken command writes this
    /// key.
    pub destination: Option<usize>,
    /// State of a key that wakes the command.
    pub wakes_on: WakesOn,
    /// Timeout, ms; 0: no timeout.
    pub timeout_ms: i64,
    /// Arguments with which the handler is called after a wake-up, if they differ from those of the
    /// first call (`XREAD … $`). The number of arguments and the indexes of the keys must be the
    /// same.
    pub args: Option<Vec<Vec<u8>>>,
    /// Whether the command may be ended early: see [`Waiter::interrupt`].
    pub is_interruptible: bool,
}

impl Block {
    /// Returns a block on these keys.
    pub fn on(keys: Range<usize>, wakes_on: WakesOn, timeout_ms: i64) -> Self {
        Block { keys, destination: None, wakes_on, timeout_ms, args: None, is_interruptible: true }
    }

    /// Returns a block without a key.
    pub fn without_keys(timeout_ms: i64) -> Self {
        Self::on(0..0, WakesOn::AnyChange, timeout_ms)
    }
}

/// Number of arguments that a waiter stores without a separate allocation. It suffices for `BLPOP`
/// and `BZPOPMIN` with one key.
const FEW_ARGUMENTS: usize = 4;
/// Total length of arguments that a waiter stores without a separate allocation, bytes.
const FEW_BYTES: usize = 64;

/// A blocked command. Shared by the queues of its keys (`effect::blocking`) and the worker of its
/// connection.
pub struct Waiter {
    pub(crate) ticket: u64,
    claimed: AtomicBool,
    /// Number of queues that contain the waiter.
    pub(crate) queues: AtomicU32,
    command: &'static Command,
    bytes: SmallVec<[u8; FEW_BYTES]>,
    ranges: SmallVec<[ArgRange; FEW_ARGUMENTS]>,
    pub(crate) session: SessionView,
    /// Worker of the connection.
    pub(crate) worker: u32,
    /// The token by which the worker finds the connection.
    pub connection: u64,
    /// The keys on which the command blocks, without duplicates and ordered by shard. Each key is
    /// represented by the index of its argument and by its place.
    keys: SmallVec<[(usize, KeyPlace); 1]>,
    /// Place of the destination key.
    pub(crate) destination: Option<KeyPlace>,
    pub(crate) wakes_on: WakesOn,
    /// Timeout, ms; 0: no timeout.
    pub timeout_ms: i64,
    is_interruptible: bool,
}

/// The client of a new waiter, and the waiter's ticket (its place in the order of all waiters).
pub(crate) struct Origin {
    pub(crate) ticket: u64,
    pub(crate) worker: u32,
    pub(crate) connection: u64,
    pub(crate) session: SessionView,
}

/// Maximum number of keys for which duplicates are found by comparing all pairs. For more keys, a
/// hash set is used.
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
            // A queue must contain each waiter at most once.
            let is_new = match &mut seen {
                None => keys.iter().all(|&(known, _)| args.at(known) != key),
                Some(seen) => seen.insert(key),
            };
            if is_new {
                keys.push((index, place(key)));
            }
        }
        keys.sort_by_key(|(_, place)| place.shard);
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
            is_interruptible: block.is_interruptible,
        }
    }

    /// Returns the memory usage of the arguments in bytes.
    pub fn argument_bytes(&self) -> usize {
        self.bytes.len() + self.ranges.len() * size_of::<ArgRange>()
    }

    /// Returns the blocked command.
    pub fn command(&self) -> &'static Command {
        self.command
    }

    /// Returns the waiter's unique place in the order of all waiters.
    pub fn ticket(&self) -> u64 {
        self.ticket
    }

    /// Claims the right to answer the client. Returns `true` only to the first caller.
    #[must_use]
    pub fn claim(&self) -> bool {
        // The exchange alone decides which caller wins. Acquire and release order the work around
        // the claim.
        self.claimed.compare_exchange(false, true, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Claims the right to end the command early: for `CLIENT UNBLOCK`, or because the server has
    /// become a replica. Returns `false` if the client was already answered, or if the command
    /// can't be ended because it takes effect in any case (such as `CONFIG SET`).
    #[must_use]
    pub fn interrupt(&self) -> bool {
        self.is_interruptible && self.claim()
    }

    /// Returns whether the waiter has been claimed.
    pub fn is_claimed(&self) -> bool {
        self.claimed.load(Ordering::Acquire)
    }

    /// Returns whether the waiter is in any queue. The connection's worker calls this after the
    /// waiter was answered. From then on the waiter is added to no queue.
    pub(crate) fn is_queued(&self) -> bool {
        self.queues.load(Ordering::Acquire) > 0
    }

    /// Returns the arguments.
    pub fn args(&self) -> Args<'_> {
        Args::new(&self.bytes, &self.ranges)
    }

    /// Returns the shards of the keys, ascending and without duplicates.
    pub(crate) fn shards(&self) -> SmallVec<[u32; 4]> {
        let mut shards: SmallVec<[u32; 4]> = self.keys.iter().map(|(_, place)| place.shard).collect();
        shards.dedup();
        shards
    }

    /// Returns the keys in a shard.
    pub(crate) fn keys_in(&self, shard: u32) -> impl Iterator<Item = &[u8]> {
        let first = self.keys.partition_point(|(_, place)| place.shard < shard);
        let keys = self.keys[first..].iter().take_while(move |(_, place)| place.shard == shard);
        keys.map(|(index, _)| self.ranges[*index].of(&self.bytes))
    }
}

/// The reply to a waiter, in flight to its connection.
pub struct Woken {
    /// The answered waiter.
    pub waiter: Arc<Waiter>,
    /// The reply, encoded.
    pub reply: Vec<u8>,
    /// [Stamp](crate::effect) of the latest effect that the reply may depend on. The connection's
    /// later effects receive higher stamps.
    pub effect_clock: u64,
    /// Whether the connection closes after the reply.
    pub closes: bool,
}
