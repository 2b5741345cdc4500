//! A command that could not run at once: everything that another thread needs to run it.
//!
//! Made only when a shard is busy (or, with `--execution owner`, belongs to another worker). The connection that sent it is
//! *parked*: nothing of it runs until the answer is back, which keeps its order and bounds the requests by the connections.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use pantala_base::mailbox::Node;
use pantala_resp::{ArgRange, Args, Version};

use crate::clients::waiter::Waiter;
use crate::command::Command;
use crate::command::{KeyPlace, SessionView};
use crate::effect::blocking::ReadyKey;
use crate::events::tracking::Reader;
use crate::shard::exec::Exec;
use crate::shard::handing_on::Patience;
use crate::shard::ownership::Ownership;

/// What a request is there for.
pub(crate) enum Task {
    /// To run its steps and be answered.
    Commands,
    /// To take a waiter out of the queues of its shard. Nobody is told.
    Withdraw(Arc<Waiter>),
    /// To go on with the queue of a key of this shard, whose first waiter needs both shards.
    Serve(u32, ReadyKey),
    /// To be brought, with its shards, to the worker whose connection it is.
    Bring,
    /// To run its transaction ([`Request::exec`]) and be answered.
    Exec,
}

/// One command on its way over shards.
pub struct Step {
    /// What to run.
    pub command: &'static Command,
    /// Where in [`Request::ranges`] its arguments stand.
    pub args: std::ops::Range<usize>,
    /// Where its first key lives, when it has one.
    pub first_key: Option<KeyPlace>,
    /// Its position in the connection's pipeline, counted by the worker that sent it.
    pub sequence: u32,
    /// Where its reply ends in [`Request::reply`], once it ran.
    pub reply_end: usize,
    /// How long it took, where its time was taken: not that of every plain one.
    pub took: Option<Duration>,
}

/// A command (or, with `--execution owner`, the part of a connection's pipeline whose shards have one home) in a form that any
/// thread can run.
pub struct Request {
    /// What to run, in order.
    pub steps: Vec<Step>,
    /// Bytes of the arguments.
    pub bytes: Vec<u8>,
    /// Where in `bytes` each argument stands.
    pub ranges: Vec<ArgRange>,
    /// What the commands may know of their connection.
    pub session: SessionView,
    /// As whose what they read is noted, if it is.
    pub reads_as: Option<Arc<Reader>>,
    /// The shards to take, ascending, without repeats. Never empty.
    pub shards: Vec<u32>,
    /// Those taken so far: the first of `shards`.
    pub(crate) owned: Vec<Ownership>,
    /// What is to be done with the shards.
    pub(crate) task: Task,
    /// Whether it may be refused while a script holds one of its shards for too long.
    pub(crate) may_be_refused: bool,
    /// It isn't refused, and has given back what it had: when it is granted a shard, that is free for others, and it takes its shards from the first on.
    pub(crate) is_set_back: bool,
    /// How often it was set back when it had brought its shards, and when it is to be next.
    pub(crate) patience: Patience,
    /// Why it was refused, if it was: then it has brought nothing.
    pub refused: Option<&'static str>,
    /// The transaction that it is there for, instead of steps.
    pub exec: Option<Box<Exec>>,
    /// What its last step has become when it waits: it has no reply then.
    pub blocked: Option<Arc<Waiter>>,
    /// The replies.
    pub reply: Vec<u8>,
    /// How long they may become, bytes, before the rest of its steps isn't run any more: their connection will be closed.
    pub reply_bytes_max: u64,
    /// Stamp of the latest effect that its connection knows of; in the answer, of the latest one that
    /// the answer may depend on.
    pub effect_clock: u64,
    /// The worker whose connection waits.
    pub worker: u32,
    /// That worker's token of the connection.
    pub connection: u64,
    /// Unix time that its commands see, ms: when it was sent, and once it has its shards, that moment.
    pub now_ms: i64,
}

impl Request {
    /// A request without any command yet.
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
            worker,
            connection,
            now_ms,
        }
    }

    /// To be called with the time of the clock (unix time, ms) when it has its shards: times count from when a command runs, however long it had to wait, and
    /// however old the time of its worker was when it was sent. It never goes back.
    pub(crate) fn catch_up(&mut self, clock_ms: i64) {
        self.now_ms = self.now_ms.max(clock_ms);
    }

    /// Has it run a transaction, on whatever thread has the shards.
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

    /// Each step with its reply.
    pub fn replies(&self) -> impl Iterator<Item = (&Step, &[u8])> {
        let mut begin = 0;
        self.steps.iter().map(move |step| {
            let reply = &self.reply[begin..step.reply_end];
            begin = step.reply_end;
            (step, reply)
        })
    }

    /// How long its first step took, where its time was taken.
    pub fn first_took(&self) -> Option<Duration> {
        self.steps.first()?.took
    }

    /// The arguments of a step.
    pub fn args(&self, step: &Step) -> Args<'_> {
        Args::new(&self.bytes, &self.ranges[step.args.clone()])
    }

    /// Copies arguments in; returns where they stand.
    pub fn push_args(&mut self, args: &Args<'_>) -> std::ops::Range<usize> {
        let first = self.ranges.len();
        for arg in args.iter() {
            self.ranges.push(ArgRange::new(self.bytes.len(), arg.len()));
            self.bytes.extend_from_slice(arg);
        }
        first..self.ranges.len()
    }

    /// The shards that were brought ([`crate::shard::message::Message::Brought`]).
    pub fn take_owned(&mut self) -> Vec<Ownership> {
        std::mem::take(&mut self.owned)
    }

    /// The protocol version that the replies are to be in.
    pub fn version(&self) -> Version {
        self.session.version
    }
}

/// A request as a queue element: it moves through gates and mailboxes without being copied.
pub type Parcel = Box<Node<Request>>;

/// Requests that a shard's owner has collected and not granted yet. Belongs to the shard.
pub type Backlog = VecDeque<Parcel>;
