//! Requests: commands that could not run immediately, with everything that another thread needs to
//! run them. The connection's worker creates them, and any owner of their shards runs them.
//!
//! A request is created only if a shard is busy, or, with `--execution owner`, belongs to another
//! worker. Its connection is *parked*: none of its later commands runs until the reply has arrived.
//! This keeps the order of commands, and bounds the number of requests by the number of
//! connections.

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
    /// Runs the steps and replies.
    Commands,
    /// Removes a waiter from the queues of its shard. No reply.
    Withdraw(Arc<Waiter>),
    /// Continues the queue of a key of this shard, whose first waiter needs both shards.
    Serve(u32, ReadyKey),
    /// Gathers the shards for the worker of its connection.
    Bring,
    /// Runs the transaction ([`Request::exec`]) and replies.
    Exec,
}

/// One command of a request.
pub struct Step {
    /// The command.
    pub command: &'static Command,
    /// Range of the command's arguments in [`Request::ranges`].
    pub args: std::ops::Range<usize>,
    /// Place of the command's first key, if it has one.
    pub first_key: Option<KeyPlace>,
    /// Position in the connection's pipeline, counted by the worker that sent it.
    pub sequence: u32,
    /// End of the reply in [`Request::reply`], once the command has run.
    pub reply_end: usize,
    /// Duration, if the command was timed. Not every plain command is.
    pub took: Option<Duration>,
}

/// A command in a form that any thread can run. With `--execution owner` also a part of a
/// connection's pipeline, whose shards have one home.
pub struct Request {
    /// The commands, in order.
    pub steps: Vec<Step>,
    /// Bytes of the arguments.
    pub bytes: Vec<u8>,
    /// Range of each argument in `bytes`.
    pub ranges: Vec<ArgRange>,
    /// The part of the session that handlers may see.
    pub session: SessionView,
    /// Reader for which keys that the commands read are tracked, if any.
    pub reads_as: Option<Arc<Reader>>,
    /// Shards to take, sorted and without duplicates. Never empty.
    pub shards: Vec<u32>,
    /// Shards taken so far, which are the first ones of `shards`.
    pub(crate) owned: Vec<Ownership>,
    /// The work to do once all shards are taken.
    pub(crate) task: Task,
    /// Whether the request may be rejected while a script holds one of its shards for too long.
    pub(crate) may_be_refused: bool,
    /// Set when the request was not rejected and has released its shards. When a shard is granted
    /// to it, it leaves that shard free and acquires its shards again, from the lowest on.
    pub(crate) is_set_back: bool,
    /// How often the request was reset after it had gathered its shards, and when it may be reset
    /// next.
    pub(crate) patience: Patience,
    /// The error if the request was rejected. It then brings no shards.
    pub refused: Option<&'static str>,
    /// The transaction to run instead of steps.
    pub exec: Option<Box<Exec>>,
    /// The waiter of the last step, if it blocked. That step then has no reply.
    pub blocked: Option<Arc<Waiter>>,
    /// The replies.
    pub reply: Vec<u8>,
    /// Maximum length of the replies. Steps after an oversized reply do not run, because their
    /// connection will be closed.
    pub reply_bytes_max: u64,
    /// Stamp of the latest effect known to the connection. In a reply, of the latest effect that
    /// the reply may depend on.
    pub effect_clock: u64,
    /// With an answer: what its commands have written and read.
    pub seen: Seen,
    /// The worker of its connection.
    pub worker: u32,
    /// The worker's token of the connection.
    pub connection: u64,
    /// Unix time that the commands see, in ms: the time of sending, updated when the shards are
    /// taken.
    pub now_ms: i64,
}

impl Request {
    /// Returns a request without commands.
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

    /// Advances the request's time to that of the clock (Unix time, ms). Called when it has its
    /// shards, because TTLs count from the time at which a command runs, however long it has waited
    /// and however old its worker's time was. The time never goes backwards.
    pub(crate) fn catch_up(&mut self, clock_ms: i64) {
        self.now_ms = self.now_ms.max(clock_ms);
    }

    /// Makes the request run a transaction, on any thread that has the shards.
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

    /// Returns the duration of the first step, if it was timed.
    pub fn first_took(&self) -> Option<Duration> {
        self.steps.first()?.took
    }

    /// Returns the arguments of a step.
    pub fn args(&self, step: &Step) -> Args<'_> {
        Args::new(&self.bytes, &self.ranges[step.args.clone()])
    }

    /// Copies arguments into the request. Returns their range.
    pub fn push_args(&mut self, args: &Args<'_>) -> std::ops::Range<usize> {
        let first = self.ranges.len();
        for arg in args.iter() {
            self.ranges.push(ArgRange::new(self.bytes.len(), arg.len()));
            self.bytes.extend_from_slice(arg);
        }
        first..self.ranges.len()
    }

    /// Takes the gathered shards ([`crate::shard::message::Message::Brought`]).
    pub fn take_owned(&mut self) -> Vec<Ownership> {
        std::mem::take(&mut self.owned)
    }

    /// Returns the protocol version of the replies.
    pub fn version(&self) -> Version {
        self.session.version
    }
}

/// A request node. It moves through gates and mailboxes without being copied.
pub type Parcel = Box<Node<Request>>;

/// Requests that a shard's owner has collected and not yet granted. Belongs to the shard.
pub type Backlog = VecDeque<Parcel>;
