//! The executor itself, with its gates, backlogs and mailboxes, through every interleaving of a few workers: commands on one shard and on
//! several, transactions that whoever frees their last shard runs, requests that bring their shards, shards that are handed over, and requests
//! that are refused. Whatever happens, each is answered once, has run once and alone on all its shards, in one order on all of
//! them, and in the end every shard is free.
//!
//! # What is modelled
//!
//! Loom sees each access to the words of gates and mailboxes, in all orders that the memory model allows, and each touch of a shard's state
//! ([`Keyspace::shard`]), which must happen after the last owner's. The code is the server's, but for three bounds (see [`SPINS_MAX`],
//! [`COMBINE_MAX`], [`COMBINE_TIME_MAX`]): a busy shard isn't looked at again, and a shard is handed over when one request was run for others.
//!
//! A worker's loop is written out here: it runs what its connections send, sees once to its messages while others still run, and again and again
//! when they are done. Not modelled: the doorbell (`pantala_base::mailbox` has a model of that), commands that wait for keys, who watches and who
//! tracks, figures, and the server above the executor.

use std::sync::Mutex;
use std::sync::atomic::AtomicU64;

use pantala_base::sync::thread;
use pantala_resp::{ArgRange, Version};

use super::*;
use crate::command::{Flags, KeySpec, Route};
use crate::exec::Exec;
use crate::keyspace::{Layout, WorkerPort};
use crate::shard::ShardStats;
use crate::transaction::Transaction;

/// Writes down on each of its shards who it is.
fn note(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let who = args.at(0)[0];
    for ownership in access.owned.iter_mut() {
        access.keyspace.shard(ownership).scratch.push(who);
    }
    reply.ok();
}

static NOTE: Command = Command {
    name: "note",
    full_name: "note",
    handler: Handler::Keyed(note),
    route: Route::Keys,
    key_specs: &[KeySpec::at(1, &[])],
    ..Command::BLANK
};
static EXEC: Command = Command { name: "exec", full_name: "exec", ..Command::BLANK };

/// Why a request is refused.
const BUSY: &str = "BUSY a script runs";

/// What a connection sends.
#[derive(Clone, Copy, Debug)]
enum Work {
    /// A command on one shard.
    Single(u32),
    /// A command on several.
    Many(&'static [u32]),
    /// A transaction of a command for each of these shards, in this order; any thread can run it.
    Exec(&'static [u32]),
    /// The same, but it must be run by its own worker.
    Brought(&'static [u32]),
    /// As that, and it refuses whoever waits for its shards meanwhile.
    Busy(&'static [u32]),
    /// Against the rules: a command that takes its shards in this order.
    Unordered(&'static [u32]),
}

/// What a connection was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Answer {
    Ran,
    Refused,
}

struct Model {
    keyspace: Keyspace,
    /// By connection: what it has sent.
    work: Vec<Work>,
    /// Connections that were answered. No lock of loom's: nothing hangs on its order.
    answers: Mutex<Vec<(u64, Answer)>>,
}

impl Model {
    fn new(execution: Execution, shards: u32, workers: u32, work: Vec<Work>) -> Self {
        let layout = Layout { shards, databases: 1, homes: workers, workers, execution, seed: 1, random_seed: 1 };
        let ports = (0..workers).map(|_| WorkerPort::new(Box::new(|| {}))).collect();
        Model { keyspace: Keyspace::new(layout, ports), work, answers: Mutex::default() }
    }

    fn answer(&self, connection: u64, answer: Answer) {
        self.answers.lock().unwrap().push((connection, answer));
    }

    /// A key of a shard.
    fn key(&self, shard: u32) -> String {
        let keys = (0..).map(|number: u32| number.to_string());
        keys.into_iter().find(|key| self.keyspace.place(key.as_bytes()).shard == shard).expect("there are enough")
    }

    /// Has a connection send what it is to send.
    fn send(&self, executor: &mut Executor<'_>, connection: u64) {
        let work = self.work[connection as usize];
        let mut reply = Vec::new();
        let ran = with_call(connection, |call| match work {
            Work::Single(shard) => executor.run_single(call, KeyPlace { hash: 0, shard }, &mut reply),
            Work::Many(shards) => executor.run_many(call, shards, &mut reply),
            Work::Unordered(shards) => {
                executor.shards = shards.to_vec();
                let request = executor.request(call);
                executor.start(request);
                Ran::Parked
            }
            Work::Exec(shards) | Work::Brought(shards) | Work::Busy(shards) => {
                match executor.gather(shards, call.session, connection, 0, true) {
                    Ok(owned) => {
                        self.run_held(executor, connection, owned);
                        return Ran::Parked;
                    }
                    Err(mut parcel) => {
                        if let Work::Exec(shards) = work {
                            parcel.value.run_exec(Box::new(self.exec(call, shards)));
                        }
                        executor.resume(parcel);
                        Ran::Parked
                    }
                }
            }
        });
        if ran != Ran::Parked {
            assert_eq!(reply, b"+OK\r\n");
            self.answer(connection, Answer::Ran);
        }
    }

    fn exec(&self, call: &Call<'_>, shards: &[u32]) -> Exec {
        let mut transaction = Box::new(Transaction::default());
        for &shard in shards {
            let (who, key) = (call.args.at(0), self.key(shard));
            let bytes = [who, key.as_bytes()].concat();
            let ranges = [ArgRange::new(0, who.len()), ArgRange::new(who.len(), key.len())];
            transaction.push(&self.keyspace, &NOTE, &Args::new(&bytes, &ranges), Flags::empty(), None);
        }
        Exec::new(transaction, None, &EXEC, *b"EXEC")
    }

    /// What a connection's own worker does with the shards that the connection asked for.
    fn run_held(&self, executor: &mut Executor<'_>, connection: u64, mut owned: Vec<Ownership>) {
        let work = self.work[connection as usize];
        let (Work::Exec(shards) | Work::Brought(shards) | Work::Busy(shards)) = work else { unreachable!() };
        with_call(connection, |call| {
            for &shard in shards {
                executor.run_held(call, &[shard], &mut owned, &mut Vec::new());
            }
        });
        if matches!(work, Work::Busy(_)) {
            executor.refuse_waiting(&mut owned, BUSY);
        }
        self.answer(connection, Answer::Ran);
        executor.give_back(owned, 0);
    }

    fn answered(&self, parcel: &Parcel) {
        let request = &parcel.value;
        let is_refused = request.refused.is_some();
        assert_eq!(is_refused, request.reply.windows(BUSY.len()).any(|part| part == BUSY.as_bytes()));
        self.answer(request.connection, if is_refused { Answer::Refused } else { Answer::Ran });
    }

    fn brought(&self, executor: &mut Executor<'_>, mut parcel: Parcel) {
        let connection = parcel.value.connection;
        if parcel.value.refused.is_some() {
            assert!(parcel.value.take_owned().is_empty(), "the refused have brought nothing");
            return self.answer(connection, Answer::Refused);
        }
        let owned = parcel.value.take_owned();
        self.run_held(executor, connection, owned);
    }

    /// A worker's turn but for its sockets. `false`: there was nothing to do.
    fn turn(&self, executor: &mut Executor<'_>) -> bool {
        let mut is_idle = true;
        for node in self.keyspace.port(executor.worker()).mailbox().receive() {
            is_idle = false;
            match node.value {
                Message::Answer(parcel) => self.answered(&parcel),
                Message::Brought(parcel) => self.brought(executor, parcel),
                Message::Run(parcel) => executor.resume(parcel),
                Message::Shard(ownership) => executor.adopt(ownership),
                _ => unreachable!("nobody sends that"),
            }
        }
        while executor.has_work() || executor.has_answers() {
            is_idle = false;
            executor.go_on();
            executor.take_answers().iter().for_each(|parcel| self.answered(parcel));
            for parcel in executor.take_brought() {
                self.brought(executor, parcel);
            }
        }
        !is_idle
    }

    /// What must be true when nothing is left to do.
    fn check(&self) {
        let mut answers = self.answers.lock().unwrap().clone();
        answers.sort_unstable();
        for connection in 0..self.work.len() as u64 {
            let count = answers.iter().filter(|(answered, _)| *answered == connection).count();
            assert!(count > 0, "connection {connection} was never answered");
            assert_eq!(count, 1, "connection {connection} was answered more than once");
        }
        let mut logs = Vec::new();
        for shard in 0..self.keyspace.shard_count() {
            let mut ownership = self.keyspace.gate(shard).try_take().expect("every shard is free");
            let state = self.keyspace.shard(&mut ownership);
            assert!(state.backlog.is_empty(), "somebody waits for ever");
            logs.push(state.scratch.clone());
            assert!(matches!(self.keyspace.gate(shard).free(ownership), Freed::Free));
        }
        for (connection, answer) in answers {
            for (shard, log) in logs.iter().enumerate() {
                let notes: Vec<usize> = (0..log.len()).filter(|at| u64::from(log[*at]) == connection).collect();
                let expected = match self.work[connection as usize] {
                    _ if answer == Answer::Refused => 0,
                    Work::Single(of) => usize::from(of as usize == shard),
                    Work::Many(shards)
                    | Work::Exec(shards)
                    | Work::Brought(shards)
                    | Work::Busy(shards)
                    | Work::Unordered(shards) => shards.iter().filter(|of| **of as usize == shard).count(),
                };
                assert_eq!(notes.len(), expected, "connection {connection} on shard {shard}: {log:?}");
                let is_alone = notes.windows(2).all(|two| two[1] == two[0] + 1);
                assert!(is_alone, "others ran on shard {shard} in the middle of connection {connection}: {log:?}");
            }
        }
        // One order for all shards: who is before whom on one is so on the others.
        for (first, log) in logs.iter().enumerate() {
            for other in &logs[first + 1..] {
                let common = |log: &[u8], others: &[u8]| -> Vec<u8> {
                    let mut common: Vec<u8> = log.iter().copied().filter(|who| others.contains(who)).collect();
                    common.dedup();
                    common
                };
                assert_eq!(common(log, other), common(other, log), "two shards saw different orders");
            }
        }
    }
}

/// Runs `body` with the call of a connection's command.
fn with_call<R>(connection: u64, body: impl FnOnce(&Call<'_>) -> R) -> R {
    let (bytes, ranges) = ([connection as u8], [ArgRange::new(0, 1)]);
    let session = SessionView { client: connection, db: 0, version: Version::Resp2, no_touch: false, in_script: false };
    body(&Call {
        command: &NOTE,
        args: Args::new(&bytes, &ranges),
        first_key: None,
        session,
        reads_as: None,
        connection,
        now_ms: 0,
    })
}

/// In how many interleavings something has happened: what never does isn't proved by the model.
#[derive(Debug, Default)]
struct Seen {
    runs: AtomicU64,
    /// A request was run by a worker that isn't its own.
    ran_elsewhere: AtomicU64,
    /// A shard was handed over to its home.
    handed_over: AtomicU64,
    refused: AtomicU64,
}

impl Seen {
    fn add(&self, model: &Model) {
        let sum_of = |figure: fn(&ShardStats) -> u64| -> u64 {
            (0..model.keyspace.shard_count()).map(|shard| figure(model.keyspace.shard_stats(shard))).sum()
        };
        let was_refused = model.answers.lock().unwrap().iter().any(|(_, answer)| *answer == Answer::Refused);
        self.runs.fetch_add(1, Relaxed);
        self.ran_elsewhere.fetch_add(u64::from(sum_of(|stats| stats.combined.get()) > 0), Relaxed);
        self.handed_over.fetch_add(u64::from(sum_of(|stats| stats.handovers.get()) > 0), Relaxed);
        self.refused.fetch_add(u64::from(was_refused), Relaxed);
    }
}

/// Runs workers at the same time, of whose connections each sends one piece of work, and checks what came of it, for every interleaving.
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
use Work::{Brought, Busy, Exec as Transacts, Many, Single, Unordered};

#[test]
fn two_commands_over_the_same_shards() {
    assert!(is_seen(&explore(Inline, 2, &[&[Many(&[0, 1])], &[Many(&[0, 1])]]).ran_elsewhere));
}

#[test]
fn overlapping_commands_and_a_single_one_behind() {
    assert!(is_seen(&explore(Inline, 3, &[&[Many(&[0, 1])], &[Many(&[1, 2])], &[Single(1)]]).ran_elsewhere));
}

/// Who waits for shard 1 has taken shard 0 already, for which another waits.
#[test]
fn who_waits_keeps_what_it_has() {
    assert!(is_seen(&explore(Inline, 2, &[&[Many(&[0, 1])], &[Single(1)], &[Single(0)]]).ran_elsewhere));
}

/// More wait for the shard than one owner runs: it is handed over to its home, worker 0.
#[test]
fn a_shard_is_handed_over_to_its_home() {
    assert!(is_seen(&explore(Inline, 1, &[&[Single(0)], &[Single(0), Single(0)], &[Single(0)]]).handed_over));
}

/// The same with several shards, of which worker 0 is the home of the first.
#[test]
fn a_shard_that_is_handed_over_is_one_of_several() {
    assert!(is_seen(&explore(Inline, 2, &[&[Single(0)], &[Many(&[0, 1])], &[Many(&[0, 1])]]).handed_over));
}

#[test]
fn a_transaction_runs_where_its_last_shard_is_freed() {
    assert!(is_seen(&explore(Inline, 2, &[&[Transacts(&[0, 1, 0])], &[Many(&[0, 1])]]).ran_elsewhere));
    assert!(is_seen(&explore(Inline, 2, &[&[Transacts(&[0, 1, 0])], &[Single(1)], &[Single(0)]]).ran_elsewhere));
}

#[test]
fn two_transactions_over_the_same_shards() {
    assert!(is_seen(&explore(Inline, 2, &[&[Transacts(&[0, 1, 0])], &[Transacts(&[1, 0, 1])]]).ran_elsewhere));
}

#[test]
fn shards_are_brought_to_who_asked() {
    explore(Inline, 2, &[&[Brought(&[0, 1, 0])], &[Many(&[0, 1])]]);
    explore(Inline, 2, &[&[Brought(&[0, 1])], &[Transacts(&[0, 1, 0])]]);
}

#[test]
fn who_waits_for_a_busy_script_is_refused_or_runs() {
    assert!(is_seen(&explore(Inline, 2, &[&[Busy(&[0, 1])], &[Many(&[0, 1])]]).refused));
    assert!(is_seen(&explore(Inline, 2, &[&[Busy(&[1])], &[Transacts(&[0, 1])], &[Single(0)]]).refused));
}

#[test]
fn owners_take_their_shards_one_after_the_other() {
    assert!(is_seen(&explore(Owner, 2, &[&[Many(&[0, 1])], &[Many(&[0, 1])]]).ran_elsewhere));
    assert!(is_seen(&explore(Owner, 2, &[&[Transacts(&[0, 1, 0])], &[Single(0), Single(1)]]).ran_elsewhere));
}

/// The models can fail: two that take their shards in different orders wait for each other.
#[test]
#[should_panic(expected = "was never answered")]
fn other_orders_deadlock() {
    explore(Inline, 2, &[&[Unordered(&[0, 1])], &[Unordered(&[1, 0])]]);
}
