//! Requests: commands that do not run immediately on their connection's worker. A request contains
//! everything that another thread needs to run its commands. The connection's worker creates a
//! request, and the thread that takes the last of its shards runs it.
//!
//! A command becomes a request if a shard that it needs is busy. With `--execution owner`, it also
//! becomes a request if it needs several shards, or if its shard's home is another worker. Several
//! single-key commands of a pipeline may become one request. With `--execution owner`, these are
//! commands whose shards have the same home. With `--execution inline`, they are commands that
//! would probably wait for a script that holds all shards.
//!
//! The connection is *parked*: none of its later commands runs until the replies have arrived.
//! Parking keeps the order of commands. It also limits the number of a connection's requests in
//! flight: to one or, with `--execution owner`, to one per home. A blocked client may have further
//! requests (`Task::Withdraw`, `Task::Serve`).
//!
//! The other words (home, waiter, stamp, unit) are on [the crate's page](crate).

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
use crate::shard::executor::Call;
use crate::shard::ownership::Ownership;
use crate::shard::release_during_script::Patience;

/// The work that a request does once it holds all its shards.
pub(crate) enum Task {
    /// Runs the steps and replies.
    Commands,
    /// Removes a waiter from the queues of its shard. No reply.
    Withdraw(Arc<Waiter>),
    /// Serves the clients blocked on a key of this shard. The first of these clients also needs
    /// another shard, which the request holds too (`BLMOVE`).
    Serve(u32, ReadyKey),
    /// Sends the request with its shards to the worker of its connection.
    Gather,
    /// Runs the transaction ([`Request::exec`]) and replies.
    Exec,
}

/// One command of a request.
pub struct Step {
    /// The command.
    pub command: &'static Command,
    /// Range of the command's arguments in [`Request::ranges`]. Empty if the shard's home is the
    /// connection's worker, which has run the command directly from the input buffer.
    pub args: std::ops::Range<usize>,
    /// Place of the command's first key, if it has one.
    pub first_key: Option<KeyPlace>,
    /// Position in the connection's pipeline, counted by the worker that sent the request.
    pub sequence: u32,
    /// End of the reply in [`Request::reply`], once the command has run.
    pub reply_end: usize,
    /// Duration, if the command was timed.
    pub took: Option<Duration>,
}

/// Commands of one connection in a form that any thread can run. Usually there is one command. See
/// the head of this module.
pub struct Request {
    /// The commands, in order.
    pub steps: Vec<Step>,
    /// Bytes of the arguments.
    pub bytes: Vec<u8>,
    /// Range of each argument in `bytes`.
    pub ranges: Vec<ArgRange>,
    /// The part of the session that handlers may see.
    pub session: SessionView,
    /// If the client uses `CLIENT TRACKING`: the reader that is recorded for each key read.
    pub reads_as: Option<Arc<Reader>>,
    /// Shards to take, sorted and without duplicates. Empty if the commands have already run on
    /// their home, directly from the input buffer, and for a pause that waits for a load.
    pub shards: Vec<u32>,
    /// Shards taken so far: the first ones of `shards`.
    pub(crate) owned: Vec<Ownership>,
    /// The work to do once all shards are taken.
    pub(crate) task: Task,
    /// Whether the request may be rejected while a script holds one of its shards for too long.
    pub(crate) may_be_rejected: bool,
    /// Whether the request has released its shards, because a script holds another shard that the
    /// request needs. When such a request is next in the backlog, it takes all its shards again, in
    /// ascending order.
    pub(crate) is_reset: bool,
    /// How often the request was reset after it had gathered its shards, and when it may be reset
    /// next (`shard::release_during_script`).
    pub(crate) patience: Patience,
    /// The error if the request was rejected. A rejected request holds no shards.
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
    /// Stamp of the latest effect known to the connection. In a reply: stamp of the latest effect
    /// that the reply may depend on. Later effects of the connection have higher stamps.
    pub effect_clock: u64,
    /// In a reply: the units that the commands have written or read.
    pub seen: Seen,
    /// The worker of the request's connection.
    pub worker: u32,
    /// Token of the connection in its worker.
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
            may_be_rejected: true,
            is_reset: false,
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

    /// Drops everything that belongs to the request's commands. Keeps the capacity of each vector,
    /// unless that capacity is large.
    fn clear(&mut self) {
        *self = Request {
            steps: emptied(&mut self.steps),
            bytes: emptied(&mut self.bytes),
            ranges: emptied(&mut self.ranges),
            shards: emptied(&mut self.shards),
            owned: emptied(&mut self.owned),
            reply: emptied(&mut self.reply),
            ..Request::new(self.session, self.worker, self.connection, self.now_ms)
        };
    }

    /// Advances the request's time to that of the clock (Unix time, ms). Called when the request
    /// has its shards, because a TTL counts from the execution of the command, not from its
    /// sending. The time never decreases.
    pub(crate) fn catch_up(&mut self, clock_ms: i64) {
        self.now_ms = self.now_ms.max(clock_ms);
    }

    /// Makes the request run a transaction, on the thread that takes its last shard.
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

    /// Takes the gathered shards ([`crate::shard::message::Message::Gathered`]).
    pub fn take_owned(&mut self) -> Vec<Ownership> {
        std::mem::take(&mut self.owned)
    }

    /// Returns the protocol version of the replies.
    pub fn version(&self) -> Version {
        self.session.version
    }
}

/// Maximum capacity in bytes that each vector of a request keeps for the next request.
const KEPT_BYTES_MAX: usize = 4096;
/// Maximum number of requests that a worker keeps for later: more than the number of connections
/// that usually meet a busy shard in one turn.
const SPARE_MAX: usize = 64;

/// Removes and returns a vector, without elements. Frees its memory if that is large.
fn emptied<T>(vector: &mut Vec<T>) -> Vec<T> {
    let mut vector = std::mem::take(vector);
    vector.clear();
    vector.shrink_to(KEPT_BYTES_MAX / size_of::<T>());
    vector
}

/// A worker's requests whose replies were written, and vectors of ownerships. The next requests use
/// their memory, so that a request usually needs no allocation.
pub struct Spare {
    worker: u32,
    requests: Vec<RequestNode>,
    owned: Vec<Vec<Ownership>>,
}

impl Spare {
    pub(crate) fn new(worker: u32) -> Self {
        Spare { worker, requests: Vec::new(), owned: Vec::new() }
    }

    /// Returns a request without commands, for a connection of this worker.
    pub fn request(&mut self, session: SessionView, connection: u64, now_ms: i64) -> RequestNode {
        match self.requests.pop() {
            Some(mut node) => {
                let request = &mut node.value;
                (request.session, request.worker) = (session, self.worker);
                (request.connection, request.now_ms) = (connection, now_ms);
                node
            }
            None => Node::new(Request::new(session, self.worker, connection, now_ms)),
        }
    }

    /// Returns a request of a call that needs these shards.
    pub(crate) fn request_of(&mut self, call: &Call<'_>, shards: &[u32]) -> RequestNode {
        let mut node = self.request(call.session, call.connection, call.now_ms);
        let request = &mut node.value;
        request.shards.extend_from_slice(shards);
        request.reads_as = call.reads_as.cloned();
        let args = request.push_args(&call.args);
        request.steps.push(Step {
            command: call.command,
            args,
            first_key: call.first_key,
            sequence: 0,
            reply_end: 0,
            took: None,
        });
        node
    }

    /// Returns a request for these shards that holds `owned`, the first of them.
    pub(crate) fn request_holding(
        &mut self,
        owned: Vec<Ownership>,
        shards: &[u32],
        session: SessionView,
        connection: u64,
        now_ms: i64,
        may_be_rejected: bool,
    ) -> RequestNode {
        let mut node = self.request(session, connection, now_ms);
        node.value.may_be_rejected = may_be_rejected;
        node.value.shards.extend_from_slice(shards);
        node.value.owned = owned;
        node
    }

    /// Keeps a request whose reply was written. Frees large replies and transactions now, because
    /// it may take long until the next request.
    pub fn keep_request(&mut self, mut node: RequestNode) {
        if self.requests.len() < SPARE_MAX {
            node.value.clear();
            self.requests.push(node);
        }
    }

    /// Keeps the vector of a request that ran on this worker, unless it is large. The vector must
    /// be empty.
    pub(crate) fn keep_owned(&mut self, owned: Vec<Ownership>) {
        debug_assert!(owned.is_empty(), "a request has not released its shards");
        if self.owned.len() < SPARE_MAX && owned.capacity() * size_of::<Ownership>() <= KEPT_BYTES_MAX {
            self.owned.push(owned);
        }
    }

    /// Adds a shard to the shards that a request has taken.
    pub(crate) fn add_owned(&mut self, request: &mut Request, ownership: Ownership) {
        if request.owned.capacity() == 0 {
            request.owned = self.owned.pop().unwrap_or_default();
        }
        request.owned.push(ownership);
    }
}

/// A request node. It moves through gates and mailboxes without being copied.
pub type RequestNode = Box<Node<Request>>;

/// Requests that a shard's owner has taken from the gate, but to which the shard was not granted
/// yet. Accessible with the shard's ownership.
pub type Backlog = VecDeque<RequestNode>;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::Permit;

    #[test]
    fn a_kept_request_holds_no_large_reply() {
        let session = SessionView {
            client: 7,
            db: 0,
            version: Version::Resp2,
            no_touch: false,
            of_primary: false,
            in_script: false,
            permit: Permit::default(),
        };
        let mut spare = Spare::new(0);
        let mut node = spare.request(session, 1, 2);
        node.value.reply = vec![0; 1 << 20];
        node.value.bytes = vec![1; 100];
        node.value.refused = Some("BUSY");
        spare.keep_request(node);
        assert!(spare.requests[0].value.reply.capacity() <= KEPT_BYTES_MAX);
        let node = spare.request(SessionView { client: 8, ..session }, 3, 4);
        let request = &node.value;
        assert_eq!((request.session.client, request.connection, request.now_ms), (8, 3, 4));
        assert!(request.bytes.is_empty() && request.reply.is_empty() && request.refused.is_none());
        assert!(request.bytes.capacity() >= 100, "its memory is reused");
    }
}
