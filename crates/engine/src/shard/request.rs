//! Requests: commands that could not run at once, with everything that another thread needs to run
//! them. The connection's worker makes them; any owner of their shards runs them.
//!
//! A request is made only when a shard is busy (or, with `--execution owner`, belongs to another
//! worker). Its connection is *parked*: none of its commands runs until the reply is back, which
//! keeps their order and bounds the requests by the connections.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use pantala_base::mailbox::Node;
use pantala_resp::{ArgRange, Args, Version};

use crate::clients::waiter::Waiter;
use crate::command::Command;
use crate::command::{KeyPlace, SessionView};
use crate::effect::Seen;
use crate::effect::blocking::ReadyKey;
use crate::events::tracking::Reader;
use crate::shard::exec::Exec;
use crate::shard::handing_on::Patience;
use crate::shard::ownership::Ownership;

/// The purpose of a request.
pub(crate) enum Task {
    /// Runs its steps and is answered.
    Commands,
    /// Removes a waiter from the queues of its shard. No answer.
    Withdraw(Arc<Waiter>),
    /// Continues the queue of a key of this shard, whose first waiter needs both shards.
    Serve(u32, ReadyKey),
    /// Gathers its shards for the worker of its connection.
    Bring,
    /// Runs its transaction ([`Request::exec`]) and is answered.
    Exec,
}

/// One command of a request.
pub struct Step {
    /// The command.
    pub command: &'static Command,
    /// The range in [`Request::ranges`] of its arguments.
    pub args: std::ops::Range<usize>,
    /// The place of its first key, if it has one.
    pub first_key: Option<KeyPlace>,
    /// Its position in the connection's pipeline, counted by the worker that sent it.
    pub sequence: u32,
    /// The end of its reply in [`Request::reply`], once it ran.
    pub reply_end: usize,
    /// How long it took, if it was timed: not every plain command is.
    pub took: Option<Duration>,
}

/// A command (or, with `--execution owner`, the part of a connection's pipeline whose shards have
/// one home) in a form that any thread can run.
pub struct Request {
    /// The commands, in order.
    pub steps: Vec<Step>,
    /// Bytes of the arguments.
    pub bytes: Vec<u8>,
    /// The range in `bytes` of each argument.
    pub ranges: Vec<ArgRange>,
    /// The part of the session that handlers may see.
    pub session: SessionView,
    /// The reader to track the keys they read for, if any.
    pub reads_as: Option<Arc<Reader>>,
    /// The shards to take, ascending, without repeats. Never empty.
    pub shards: Vec<u32>,
    /// The shards taken so far: the first ones of `shards`.
    pub(crate) owned: Vec<Ownership>,
    /// What to do with the shards.
    pub(crate) task: Task,
    /// Whether it may be rejected while a script holds one of its shards for too long.
    pub(crate) may_be_refused: bool,
    /// It was not rejected and has released its shards: when a shard is granted to it, it leaves
    /// that free and acquires its shards again from the lowest.
    pub(crate) is_set_back: bool,
    /// How often it was set back after it gathered its shards, and when it will be next.
    pub(crate) patience: Patience,
    /// Why it was rejected, if it was: it then brings no shards.
    pub refused: Option<&'static str>,
    /// The transaction that it runs, instead of steps.
    pub exec: Option<Box<Exec>>,
    /// The waiter of its last step, if that blocked: the step then has no reply.
    pub blocked: Option<Arc<Waiter>>,
    /// The replies.
    pub reply: Vec<u8>,
    /// The most bytes of replies. Steps behind an oversized one don't run, since their connection
    /// will be closed.
    pub reply_bytes_max: u64,
    /// Stamp of the latest effect known to its connection; in the answer, of the latest one that
    /// the answer may depend on.
    pub effect_clock: u64,
    /// With an answer: what its commands have written and read.
    pub seen: Seen,
    /// The worker of its connection.
    pub worker: u32,
    /// That worker's token of the connection.
    pub connection: u64,
    /// The unix time that its commands see, ms: when it was sent, updated when it has its shards.
    pub now_ms: i64,
}

impl Request {
    /// Returns a request without any command.
    pub fn new(session: SessionView, worker: u32, connection: u64, now_ms: i64) -> Self {
        Request {
            steps: Vec::new(),
            bytes: Vec::new(),
            ranges: Vec::new(),
            session,
            reads_as: None,
            shards: Vec::new(),
            owned: Vec::new(),
            task: Task::Commands,
            may_be_refused: true,
            is_set_back: false,
            patience: Patience::default(),
            refused: None,
            exec: None,
            blocked: None,
            reply: Vec::new(),
            reply_bytes_max: u64::MAX,
            effect_clock: 0,
            seen: Seen::default(),
            worker,
            connection,
            now_ms,
        }
    }

    /// Advances its time to the clock's (unix time, ms). Called when it has its shards: TTLs count
    /// from when a command runs, however long it waited and however old its worker's time was when
    /// it was sent. Its time never goes back.
    pub(crate) fn catch_up(&mut self, clock_ms: i64) {
        self.now_ms = self.now_ms.max(clock_ms);
    }

    /// Makes it run a transaction, on whichever thread has the shards.
    pub fn run_exec(&mut self, exec: Box<Exec>) {
        self.task = Task::Exec;
        self.exec = Some(exec);
    }

    /// Adds a command of one key.
    pub fn push_single(&mut self, command: &'static Command, args: &Args<'_>, place: KeyPlace, sequence: u32) {
        let args = self.push_args(args);
        self.steps.push(Step { command, args, first_key: Some(place), sequence, reply_end: 0, took: None });
        if let Err(at) = self.shards.binary_search(&place.shard) {
            self.shards.insert(at, place.shard);
        }
    }

    /// Returns each step with its reply.
    pub fn replies(&self) -> impl Iterator<Item = (&Step, &[u8])> {
        let mut begin = 0;
        self.steps.iter().map(move |step| {
            let reply = &self.reply[begin..step.reply_end];
            begin = step.reply_end;
            (step, reply)
        })
    }

    /// Returns how long its first step took, if it was timed.
    pub fn first_took(&self) -> Option<Duration> {
        self.steps.first()?.took
    }

    /// Returns the arguments of a step.
    pub fn args(&self, step: &Step) -> Args<'_> {
        Args::new(&self.bytes, &self.ranges[step.args.clone()])
    }

    /// Copies arguments in. Returns their ranges.
    pub fn push_args(&mut self, args: &Args<'_>) -> std::ops::Range<usize> {
        let first = self.ranges.len();
        for arg in args.iter() {
            self.ranges.push(ArgRange::new(self.bytes.len(), arg.len()));
            self.bytes.extend_from_slice(arg);
        }
        first..self.ranges.len()
    }

    /// Takes the shards that it gathered ([`crate::shard::message::Message::Brought`]).
    pub fn take_owned(&mut self) -> Vec<Ownership> {
        std::mem::take(&mut self.owned)
    }

    /// Returns the protocol version of the replies.
    pub fn version(&self) -> Version {
        self.session.version
    }
}

/// A request node: it moves through gates and mailboxes without being copied.
pub type Parcel = Box<Node<Request>>;

/// Requests that a shard's owner has collected and not granted yet. Belongs to the shard.
pub type Backlog = VecDeque<Parcel>;
