//! Tests of commands that a shard's home (the worker that the shard is assigned to) runs without a
//! request. [`super::loom_tests`] has the rest.

use pantala_resp::{ArgRange, Args, Reply, Version};

use super::*;
use crate::command::{Permit, SessionView};
use crate::shard::keyspace::{Layout, WorkerPort};

/// Returns a keyspace whose shards all belong to one worker.
fn keyspace() -> Keyspace {
    let execution = Execution::Owner;
    let layout =
        Layout { shards: 8, partitions: 8, databases: 1, homes: 1, workers: 1, execution, seed: 1, random_seed: 2 };
    Keyspace::new(layout, vec![WorkerPort::new(Box::new(|| ()))])
}

fn echo(_: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    reply.bulk(args.at(1));
}

static ECHO: Command =
    Command { name: "echo", full_name: "echo", handler: Handler::Keyed(echo), route: Route::Keys, ..Command::BLANK };

const SESSION: SessionView = SessionView {
    client: 1,
    db: 0,
    version: Version::Resp2,
    no_touch: false,
    of_primary: false,
    in_script: false,
    permit: Permit::new(0, true),
};

fn call<'a>(bytes: &'a [u8], ranges: &'a [ArgRange]) -> Call<'a> {
    let args = Args::new(bytes, ranges);
    Call { command: &ECHO, args, first_key: None, session: SESSION, reads_as: None, connection: 7, now_ms: 1 }
}

#[test]
fn a_home_runs_its_commands_up_to_a_busy_shard() {
    let keyspace = keyspace();
    let mut executor = Executor::new(&keyspace, 0);
    let (bytes, ranges) =
        (*b"xab", [[ArgRange::new(0, 1), ArgRange::new(1, 1)], [ArgRange::new(0, 1), ArgRange::new(2, 1)]]);
    let places = [keyspace.place(b"a"), keyspace.place(b"b")];
    assert_ne!(places[0].shard, places[1].shard);
    let run = |executor: &mut Executor<'_>| {
        let node = executor.spare().request(SESSION, 7, 1);
        let calls = (0..).zip(&ranges).zip(places);
        executor.run_at_home(node, calls.map(|((sequence, ranges), place)| (call(&bytes, ranges), place, sequence)))
    };
    assert_eq!(run(&mut executor), 2);
    let answers = executor.outbox().take_answers();
    let replies: Vec<(u32, &[u8])> = answers[0].value.replies().map(|(step, reply)| (step.sequence, reply)).collect();
    assert_eq!((answers.len(), replies.as_slice()), (1, [(0, &b"$1\r\na\r\n"[..]), (1, b"$1\r\nb\r\n")].as_slice()));
    assert!(answers[0].value.bytes.is_empty(), "its arguments were not copied");

    let busy = executor.try_take(places[1].shard).expect("it is free");
    assert_eq!(run(&mut executor), 1);
    let answers = executor.outbox().take_answers();
    assert_eq!(answers[0].value.reply, b"$1\r\na\r\n");
    executor.free(busy);

    let busy = executor.try_take(places[0].shard).expect("it is free");
    assert_eq!((run(&mut executor), executor.outbox().has_answers()), (0, false));
    executor.free(busy);
}
