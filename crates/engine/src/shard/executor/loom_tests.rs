//! Loom models of the executor with its gates, backlogs and mailboxes. They explore every
//! interleaving of a few workers. The workers run commands on one shard and on several, and
//! transactions on the thread that frees their last shard. Requests gather their shards, are
//! rejected, and cause shards to be handed over. Blocked commands are woken by other workers. In
//! every interleaving, each command runs once and is answered once, runs alone on all its shards,
//! and all shards see the same order of commands. At the end every shard is free and no client
//! waits.
//!
//! # What is modelled
//!
//! Loom sees each access to the words of gates and mailboxes and to waiters, in all orders that the
//! memory model allows. It also sees each access to a shard's state ([`Keyspace::shard`]), which
//! must happen after the accesses of the last owner. The code is that of the server, except for
//! three bounds ([`SPINS_MAX`], [`COMBINE_MAX`], [`COMBINE_TIME_MAX`]). With these, workers do not
//! spin on a busy shard, and a shard is handed over after one request of another worker has run.
//!
//! The models contain a worker's loop. Each worker runs its connections' commands, and then handles
//! its messages once while other workers still run. When all workers have finished, each handles
//! messages until there are none. Not modelled: the doorbell (`pantala_base::mailbox` has a model
//! of it), watches and tracking, statistics, and the server above the executor.

use std::sync::Mutex;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};

use pantala_base::sync::thread;
use pantala_resp::{ArgRange, Version};

use super::*;
use crate::clients::waiter::{Block, WakesOn, Woken};
use crate::command::{Flags, KeySpec, KeyedHandler, Permit, Route};
use crate::shard::exec::Exec;
use crate::shard::keyspace::{Layout, WorkerPort};
use crate::shard::message::Message;
use crate::shard::transaction::Transaction;
use crate::store::state::ShardStats;

/// Appends the command's ID to the log of each of its shards.
fn note(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let id = args.at(0)[0];
    for ownership in access.owned.iter_mut() {
        access.keyspace.shard(ownership).scratch.push(id);
    }
    reply.ok();
}

/// The item that [`put`] adds after the command's ID, for a waiter.
const ITEM: u8 = u8::MAX;

/// Appends the command's ID, and adds an item.
fn put(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let shard = access.keyspace.place(args.at(1)).shard;
    let state = access.shard(shard);
    state.scratch.extend([args.at(0)[0], ITEM]);
    state.observers.note(0, args.at(1));
    reply.ok();
}

/// Removes an item from the shard of the first key. Appends the command's ID to the shards of both
/// keys. Blocks if there is no item.
fn take(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let block = Block { destination: Some(2), ..Block::on(1..2, WakesOn::AnyChange, 0) };
    take_from(access, args, block, reply);
}

/// Removes an item from the shard of any of the keys, and appends the command's ID there. Blocks if
/// there is no item.
fn take_any(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    take_from(access, args, Block::on(1..args.len(), WakesOn::AnyChange, 0), reply);
}

fn take_from(access: &mut Access<'_>, args: &Args<'_>, block: Block, reply: &mut Reply<'_>) {
    let (id, keyspace) = (args.at(0)[0], access.keyspace);
    for key in block.keys.clone().map(|index| args.at(index)) {
        let shard = keyspace.place(key).shard;
        if !access.concerns(key) {
            continue;
        }
        let Some(at) = access.shard(shard).scratch.iter().position(|note| *note == ITEM) else { continue };
        if !access.claim() {
            return;
        }
        let notes = &mut access.shard(shard).scratch;
        notes.remove(at);
        notes.push(id);
        if let Some(index) = block.destination {
            access.shard(keyspace.place(args.at(index)).shard).scratch.push(id);
        }
        return reply.ok();
    }
    if access.may_block() {
        access.block(block);
    }
}

/// Returns a command whose arguments are its ID and keys.
const fn command(name: &'static str, handler: KeyedHandler) -> Command {
    let key_specs = const { &[KeySpec::at(1, &[])] };
    Command { name, full_name: name, handler: Handler::Keyed(handler), route: Route::Keys, key_specs, ..Command::BLANK }
}

static NOTE: Command = command("note", note);
static PUT: Command = command("put", put);
static TAKE: Command = command("take", take);
static TAKE_ANY: Command = command("take-any", take_any);
static EXEC: Command = Command { name: "exec", full_name: "exec", ..Command::BLANK };

/// The error of a rejected request.
const BUSY: &str = "BUSY a script runs";

/// Work that a connection sends.
#[derive(Clone, Copy, Debug)]
enum Work {
    /// A command on one shard.
    Single(u32),
    /// A command on several shards.
    Many(&'static [u32]),
    /// A transaction that any thread can run. It has a command on each of these shards, in this
    /// order.
    Exec(&'static [u32]),
    /// A transaction like [`Work::Exec`] that only its own worker can run.
    Gathered(&'static [u32]),
    /// Like [`Work::Gathered`], but must not be rejected.
    Stubborn(&'static [u32]),
    /// Like [`Work::Gathered`]. Rejects requests that wait for its shards, and may be rejected
    /// itself.
    Busy(&'static [u32]),
    /// Adds an item to a shard.
    Put(u32),
    /// Removes an item from the first shard while it also holds the second shard, or blocks.
    Take(u32, u32),
    /// Removes an item from any of these shards, or blocks.
    TakeAny(&'static [u32]),
    /// Like [`Work::Take`], but times out as soon as its worker sees that it is blocked.
    TakeNow(u32, u32),
    /// A command that takes its shards in this order, which may be wrong.
    Unordered(&'static [u32]),
}

/// The reply to a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Answer {
    Ran,
    Refused,
}

struct Model {
    keyspace: Keyspace,
    /// Work of each connection.
    work: Vec<Work>,
    /// Replies by connection. The lock is not one of loom's, because nothing depends on its order.
    answers: Mutex<Vec<(u64, Answer)>>,
    /// Whether a request that must not be rejected had to release shards.
    reset_gathered: AtomicBool,
}

impl Model {
    fn new(execution: Execution, shards: u32, workers: u32, work: Vec<Work>) -> Self {
        let layout = Layout {
            shards,
            partitions: shards,
            databases: 1,
            homes: workers,
            workers,
            execution,
            seed: 1,
            random_seed: 1,
        };
        let ports = (0..workers).map(|_| WorkerPort::new(Box::new(|| {}))).collect();
        Model {
            keyspace: Keyspace::new(layout, ports),
            work,
            answers: Mutex::default(),
            reset_gathered: AtomicBool::default(),
        }
    }

    fn answer(&self, connection: u64, answer: Answer) {
        self.answers.lock().unwrap().push((connection, answer));
    }

    /// Returns a key of a shard.
    fn key(&self, shard: u32) -> String {
        let keys = (0..).map(|number: u32| number.to_string());
        keys.into_iter().find(|key| self.keyspace.place(key.as_bytes()).shard == shard).expect("there are enough")
    }

    /// Runs `body` with the call of a connection's command.
    fn with_call<R>(&self, connection: u64, body: impl FnOnce(&Call<'_>) -> R) -> R {
        let (command, shards) = match self.work[connection as usize] {
            Work::Put(shard) => (&PUT, vec![shard]),
            Work::Take(from, to) | Work::TakeNow(from, to) => (&TAKE, vec![from, to]),
            Work::TakeAny(shards) => (&TAKE_ANY, shards.to_vec()),
            _ => (&NOTE, Vec::new()),
        };
        let (mut bytes, mut ranges) = (vec![connection as u8], vec![ArgRange::new(0, 1)]);
        for key in shards.into_iter().map(|shard| self.key(shard)) {
            ranges.push(ArgRange::new(bytes.len(), key.len()));
            bytes.extend_from_slice(key.as_bytes());
        }
        let session = SessionView {
            client: connection,
            db: 0,
            version: Version::Resp2,
            no_touch: false,
            of_primary: false,
            in_script: false,
            permit: Permit::default(),
        };
        let args = Args::new(&bytes, &ranges);
        body(&Call { command, args, first_key: None, session, reads_as: None, connection, now_ms: 0 })
    }

    /// Sends the work of a connection.
    fn send(&self, executor: &mut Executor<'_>, connection: u64) {
        let work = self.work[connection as usize];
        let mut reply = Vec::new();
        let ran = self.with_call(connection, |call| match work {
            Work::Put(shard) | Work::Single(shard) => {
                executor.run_single(call, KeyPlace { hash: 0, shard }, &mut reply)
            }
            Work::Many(shards) | Work::TakeAny(shards) => executor.run_many(call, shards, &mut reply),
            Work::Take(from, to) | Work::TakeNow(from, to) => executor.run_many(call, &[from, to], &mut reply),
            Work::Unordered(shards) => {
                let request = executor.spare.request_of(call, shards);
                executor.resume(request);
                Ran::Parked
            }
            Work::Exec(shards) | Work::Gathered(shards) | Work::Stubborn(shards) | Work::Busy(shards) => {
                let may_be_rejected = !matches!(work, Work::Stubborn(_));
                match executor.gather(shards, call.session, connection, 0, may_be_rejected) {
                    Ok(owned) => {
                        self.run_held(executor, connection, owned);
                        Ran::Parked
                    }
                    Err(mut node) => {
                        if let Work::Exec(shards) = work {
                            node.value.run_exec(Box::new(self.exec(call, shards)));
                        }
                        executor.resume(node);
                        Ran::Parked
                    }
                }
            }
        });
        match ran {
            Ran::Parked => {}
            Ran::Blocked => {
                let waiter = executor.outbox().take_blocked().expect("it waits");
                self.blocked(executor, &waiter);
            }
            Ran::Done | Ran::DoneWithEvents => {
                assert_eq!(reply, b"+OK\r\n");
                self.answer(connection, Answer::Ran);
            }
        }
    }

    /// Handles a connection that is blocked.
    fn blocked(&self, executor: &mut Executor<'_>, waiter: &Arc<Waiter>) {
        if matches!(self.work[waiter.connection as usize], Work::TakeNow(..)) && waiter.claim() {
            self.answer(waiter.connection, Answer::Refused);
            executor.withdraw(waiter);
        }
    }

    /// Handles a connection that was woken.
    fn woken(&self, executor: &mut Executor<'_>, woken: &Woken) {
        assert_eq!(woken.reply, b"+OK\r\n");
        self.answer(woken.waiter.connection, Answer::Ran);
        executor.withdraw(&woken.waiter);
    }

    fn exec(&self, call: &Call<'_>, shards: &[u32]) -> Exec {
        let mut transaction = Box::new(Transaction::default());
        for &shard in shards {
            let (id, key) = (call.args.at(0), self.key(shard));
            let bytes = [id, key.as_bytes()].concat();
            let ranges = [ArgRange::new(0, id.len()), ArgRange::new(id.len(), key.len())];
            transaction.push(&self.keyspace, &NOTE, &Args::new(&bytes, &ranges), Flags::empty(), None);
        }
        Exec::new(transaction, None, &EXEC, b"EXEC".into())
    }

    /// Runs a connection's work on its own worker with the shards that were gathered for it.
    fn run_held(&self, executor: &mut Executor<'_>, connection: u64, mut owned: Vec<Ownership>) {
        let work = self.work[connection as usize];
        let (Work::Exec(shards) | Work::Gathered(shards) | Work::Stubborn(shards) | Work::Busy(shards)) = work else {
            unreachable!("nothing else asks for shards")
        };
        self.with_call(connection, |call| {
            for &shard in shards {
                executor.runner().run_held(call, &[shard], &mut owned, &mut Vec::new());
            }
        });
        if matches!(work, Work::Busy(_)) {
            executor.reject_waiting(&mut owned, BUSY);
            for ownership in &mut owned {
                let backlog = self.keyspace.backlog(ownership);
                self.reset_gathered.fetch_or(backlog.iter().any(|node| node.value.is_reset), Relaxed);
            }
        }
        self.answer(connection, Answer::Ran);
        executor.release_shards(owned, 0);
    }

    fn answered(&self, executor: &mut Executor<'_>, node: &RequestNode) {
        let request = &node.value;
        if let Some(waiter) = &request.blocked {
            return self.blocked(executor, waiter);
        }
        let is_refused = request.refused.is_some();
        assert_eq!(is_refused, request.reply.windows(BUSY.len()).any(|part| part == BUSY.as_bytes()));
        self.answer(request.connection, if is_refused { Answer::Refused } else { Answer::Ran });
    }

    fn gathered(&self, executor: &mut Executor<'_>, mut node: RequestNode) {
        let connection = node.value.connection;
        if node.value.refused.is_some() {
            assert!(node.value.take_owned().is_empty(), "a rejected request brings no shards");
            return self.answer(connection, Answer::Refused);
        }
        let owned = node.value.take_owned();
        self.run_held(executor, connection, owned);
    }

    /// Runs a worker's turn without sockets. Returns `false` if there was nothing to do.
    fn turn(&self, executor: &mut Executor<'_>) -> bool {
        let mut is_idle = true;
        for node in self.keyspace.port(executor.worker()).mailbox().receive() {
            is_idle = false;
            match node.value {
                Message::Answer(node) => self.answered(executor, &node),
                Message::Gathered(node) => self.gathered(executor, node),
                Message::Woken(woken) => self.woken(executor, &woken),
                Message::Run(node) => executor.resume(node),
                Message::Shard(ownership) => executor.adopt(ownership),
                _ => unreachable!("no worker sends this"),
            }
        }
        while executor.has_work() || executor.outbox().has_answers() {
            is_idle = false;
            executor.serve_deferred();
            for node in executor.outbox().take_answers() {
                self.answered(executor, &node);
            }
            for woken in executor.outbox().take_woken() {
                self.woken(executor, &woken);
            }
            for node in executor.outbox().take_gathered() {
                self.gathered(executor, node);
            }
        }
        !is_idle
    }

    /// Checks the invariants at the end.
    fn check(&self) {
        let mut answers = self.answers.lock().unwrap().clone();
        answers.sort_unstable();
        for connection in 0..self.work.len() as u64 {
            let count = answers.iter().filter(|(answered, _)| *answered == connection).count();
            assert!(count > 0, "connection {connection} was never answered");
            assert_eq!(count, 1, "connection {connection} was answered more than once");
        }
        let mut logs = Vec::new();
        for shard in 0..self.keyspace.partition_count() {
            let mut ownership = self.keyspace.gate(shard).try_take().expect("every shard is free");
            assert!(self.keyspace.backlog(&mut ownership).is_empty(), "a request waits for ever");
            let state = self.keyspace.shard(&mut ownership);
            assert!(state.observers.is_empty(), "an answered waiter is still queued");
            logs.push(state.scratch.clone());
            assert!(matches!(self.keyspace.gate(shard).free(ownership), Freed::Free));
        }
        for (connection, answer) in answers {
            for (shard, log) in logs.iter().enumerate() {
                let notes: Vec<usize> = (0..log.len()).filter(|at| u64::from(log[*at]) == connection).collect();
                let expected = match self.work[connection as usize] {
                    _ if answer == Answer::Refused => 0,
                    // The item was removed from exactly one of these shards.
                    Work::TakeAny(shards) => {
                        let is_here = |of: &&u32| logs[**of as usize].iter().any(|id| u64::from(*id) == connection);
                        assert_eq!(shards.iter().filter(is_here).count(), 1);
                        notes.len().min(1)
                    }
                    Work::Take(from, to) | Work::TakeNow(from, to) => {
                        [from, to].iter().filter(|of| **of as usize == shard).count()
                    }
                    Work::Put(of) | Work::Single(of) => usize::from(of as usize == shard),
                    Work::Many(shards)
                    | Work::Exec(shards)
                    | Work::Gathered(shards)
                    | Work::Stubborn(shards)
                    | Work::Busy(shards)
                    | Work::Unordered(shards) => shards.iter().filter(|of| **of as usize == shard).count(),
                };
                assert_eq!(notes.len(), expected, "connection {connection} on shard {shard}: {log:?}");
                let is_alone = notes.windows(2).all(|two| two[1] == two[0] + 1);
                assert!(is_alone, "others ran on shard {shard} in the middle of connection {connection}: {log:?}");
            }
        }
        // Checks that any two IDs have the same order in the logs of all shards.
        for (first, log) in logs.iter().enumerate() {
            for other in &logs[first + 1..] {
                let common = |log: &[u8], others: &[u8]| -> Vec<u8> {
                    let is_common = |id: &u8| *id != ITEM && others.contains(id);
                    let mut common: Vec<u8> = log.iter().copied().filter(is_common).collect();
                    common.dedup();
                    common
                };
                assert_eq!(common(log, other), common(other, log), "two shards saw different orders");
            }
        }
    }
}

/// Number of interleavings in which an event occurred. A model proves nothing about events that
/// never occur.
#[derive(Debug, Default)]
struct Seen {
    runs: AtomicU64,
    /// A worker ran a request of another worker.
    ran_elsewhere: AtomicU64,
    /// A shard was handed over to its home.
    handed_over: AtomicU64,
    refused: AtomicU64,
    reset_gathered: AtomicU64,
}

impl Seen {
    fn add(&self, model: &Model) {
        let sum_of = |counter: fn(&ShardStats) -> u64| -> u64 {
            (0..model.keyspace.partition_count()).map(|shard| counter(model.keyspace.shard_stats(shard))).sum()
        };
        let was_refused = model.answers.lock().unwrap().iter().any(|(_, answer)| *answer == Answer::Refused);
        self.runs.fetch_add(1, Relaxed);
        self.ran_elsewhere.fetch_add(u64::from(sum_of(|stats| stats.combined.get()) > 0), Relaxed);
        self.handed_over.fetch_add(u64::from(sum_of(|stats| stats.handovers.get()) > 0), Relaxed);
        self.refused.fetch_add(u64::from(was_refused), Relaxed);
        self.reset_gathered.fetch_add(u64::from(model.reset_gathered.load(Relaxed)), Relaxed);
    }
}

/// Runs workers concurrently, and checks the outcome of every interleaving. Each connection of a
/// worker sends one piece of work.
fn explore(execution: Execution, shards: u32, workers: &'static [&'static [Work]]) -> Arc<Seen> {
    let all_seen = Arc::new(Seen::default());
    let seen = Arc::clone(&all_seen);
    loom::model(move || {
        let work: Vec<Work> = workers.concat();
        let model = Arc::new(Model::new(execution, shards, workers.len() as u32, work));
        let mut first = 0;
        let mut bodies: Vec<_> = workers
            .iter()
            .enumerate()
            .map(|(number, own)| {
                let (model, connections) = (Arc::clone(&model), first..first + own.len() as u64);
                first = connections.end;
                move || {
                    let mut executor = Executor::new(&model.keyspace, number as u32);
                    for connection in connections {
                        model.send(&mut executor, connection);
                    }
                    model.turn(&mut executor);
                }
            })
            .collect();
        let own = bodies.remove(0);
        let threads: Vec<_> = bodies.into_iter().map(thread::spawn).collect();
        own();
        for thread in threads {
            thread.join().unwrap();
        }
        let mut executors: Vec<_> =
            (0..workers.len() as u32).map(|number| Executor::new(&model.keyspace, number)).collect();
        while executors.iter_mut().fold(false, |is_busy, executor| model.turn(executor) | is_busy) {}
        drop(executors);
        model.check();
        seen.add(&model);
    });
    eprintln!("{all_seen:?}");
    all_seen
}

fn is_seen(count: &AtomicU64) -> bool {
    count.load(Relaxed) > 0
}

use Execution::{Inline, Owner};
use Work::{Busy, Exec as Transacts, Gathered, Many, Put, Single, Stubborn, Take, TakeAny, TakeNow, Unordered};

#[test]
fn two_commands_over_the_same_shards() {
    assert!(is_seen(&explore(Inline, 2, &[&[Many(&[0, 1])], &[Many(&[0, 1])]]).ran_elsewhere));
}

#[test]
fn overlapping_commands_before_a_single_one() {
    assert!(is_seen(&explore(Inline, 3, &[&[Many(&[0, 1])], &[Many(&[1, 2])], &[Single(1)]]).ran_elsewhere));
}

/// A request that waits for shard 1 holds shard 0, for which another request waits.
#[test]
fn a_waiting_request_keeps_its_shards() {
    assert!(is_seen(&explore(Inline, 2, &[&[Many(&[0, 1])], &[Single(1)], &[Single(0)]]).ran_elsewhere));
}

/// More requests wait for the shard than an owner may run in succession, so the shard is handed
/// over to its home, worker 0.
#[test]
fn a_shard_is_handed_over_to_its_home() {
    assert!(is_seen(&explore(Inline, 1, &[&[Single(0)], &[Single(0), Single(0)], &[Single(0)]]).handed_over));
}

/// Like the previous model, with several shards. Worker 0 is the home of the first shard.
#[test]
fn a_shard_that_is_handed_over_is_one_of_several() {
    assert!(is_seen(&explore(Inline, 2, &[&[Single(0)], &[Many(&[0, 1])], &[Many(&[0, 1])]]).handed_over));
}

#[test]
fn a_transaction_runs_on_the_thread_that_frees_its_last_shard() {
    assert!(is_seen(&explore(Inline, 2, &[&[Transacts(&[0, 1, 0])], &[Many(&[0, 1])]]).ran_elsewhere));
    assert!(is_seen(&explore(Inline, 2, &[&[Transacts(&[0, 1, 0])], &[Single(1)], &[Single(0)]]).ran_elsewhere));
}

#[test]
fn two_transactions_over_the_same_shards() {
    assert!(is_seen(&explore(Inline, 2, &[&[Transacts(&[0, 1, 0])], &[Transacts(&[1, 0, 1])]]).ran_elsewhere));
}

#[test]
fn gathered_shards_are_sent_to_the_requesting_worker() {
    explore(Inline, 2, &[&[Gathered(&[0, 1, 0])], &[Many(&[0, 1])]]);
    explore(Inline, 2, &[&[Gathered(&[0, 1])], &[Transacts(&[0, 1, 0])]]);
}

#[test]
fn a_request_behind_a_busy_script_is_rejected_or_runs() {
    assert!(is_seen(&explore(Inline, 2, &[&[Busy(&[0, 1])], &[Many(&[0, 1])]]).refused));
    assert!(is_seen(&explore(Inline, 2, &[&[Busy(&[1])], &[Transacts(&[0, 1])], &[Single(0)]]).refused));
}

/// A request that must not be rejected holds shard 0, for which another request waits. While a
/// script runs, the first request releases shard 0. It acquires both shards when the script has
/// ended.
#[test]
fn a_request_that_must_not_be_rejected_is_reset_and_runs() {
    assert!(is_seen(&explore(Inline, 2, &[&[Busy(&[1])], &[Stubborn(&[0, 1])], &[Single(0)]]).reset_gathered));
    assert!(is_seen(&explore(Owner, 2, &[&[Busy(&[1])], &[Stubborn(&[0, 1])]]).reset_gathered));
}

#[test]
fn owners_take_their_shards_one_after_the_other() {
    assert!(is_seen(&explore(Owner, 2, &[&[Many(&[0, 1])], &[Many(&[0, 1])]]).ran_elsewhere));
    assert!(is_seen(&explore(Owner, 2, &[&[Transacts(&[0, 1, 0])], &[Single(0), Single(1)]]).ran_elsewhere));
}

#[test]
fn a_waiter_is_served_even_if_its_destination_is_busy() {
    explore(Inline, 2, &[&[Take(0, 1)], &[Put(0)], &[Single(1)]]);
    explore(Inline, 2, &[&[Take(0, 1)], &[Put(0), Put(0)], &[Take(0, 1)]]);
    explore(Owner, 2, &[&[Take(0, 1)], &[Put(0)]]);
}

#[test]
fn a_waiter_on_two_shards_is_served_once() {
    explore(Inline, 2, &[&[TakeAny(&[0, 1])], &[Put(0)], &[Put(1)]]);
}

#[test]
fn a_waiter_that_timed_out_is_answered_once() {
    assert!(is_seen(&explore(Inline, 2, &[&[TakeNow(0, 1)], &[Put(0)]]).refused));
}

/// Shows that the models can fail. Two requests that take their shards in different orders
/// deadlock.
#[test]
#[should_panic(expected = "was never answered")]
fn other_orders_deadlock() {
    explore(Inline, 2, &[&[Unordered(&[0, 1])], &[Unordered(&[1, 0])]]);
}
