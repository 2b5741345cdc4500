//! Tests of reads of published values.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use pantala_resp::{ArgRange, Args, Reply, Version};

use super::*;
use crate::command::{Command, Handler, Permit, Route, SessionView};
use crate::db::{Change, Expire, NewString};
use crate::notify::{Event, EventClass};
use crate::shard::access::Access;
use crate::shard::keyspace::{Layout, WorkerPort};
use crate::shard::message::Message;

fn keyspace() -> Keyspace {
    let execution = Execution::Inline;
    let layout =
        Layout { shards: 2, partitions: 2, databases: 2, homes: 2, workers: 2, execution, seed: 1, random_seed: 2 };
    Keyspace::new(layout, (0..2).map(|_| WorkerPort::new(Box::new(|| ()))).collect())
}

fn get(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let key = access.key(args, 1);
    match access.db(&key).read(&key).map(|entry| entry.held()) {
        Some(Held::Bytes(bytes)) => reply.bulk(bytes),
        _ => reply.null(),
    }
}

fn set(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let key = access.key(args, 1);
    let expire = args.get(3).map_or(Expire::Clear, |_| Expire::At(access.now_ms() + 10));
    let change = Change::event(&Event(EventClass::String, "set"));
    access.db(&key).set_string(&key, NewString::Bytes(args.at(2)), expire, change).expect("memory");
    reply.ok();
}

fn flush(access: &mut Access<'_>, _: &Args<'_>, reply: &mut Reply<'_>) {
    access.flush(0..1, false);
    reply.ok();
}

fn swap(access: &mut Access<'_>, _: &Args<'_>, reply: &mut Reply<'_>) {
    access.swap_databases(0, 1);
    reply.ok();
}

const fn command(name: &'static str, handler: crate::command::KeyedHandler, flags: Flags) -> Command {
    Command { name, full_name: name, handler: Handler::Keyed(handler), route: Route::Keys, flags, ..Command::BLANK }
}

static GET: Command = command("get", get, Flags::PUBLISHES);
static SET: Command = command("set", set, Flags::WRITE);
static FLUSH: Command = command("flush", flush, Flags::WRITE);
static SWAP: Command = command("swap", swap, Flags::WRITE);

const SESSION: SessionView = SessionView {
    client: 1,
    db: 0,
    version: Version::Resp2,
    no_touch: false,
    of_primary: false,
    in_script: false,
    permit: Permit::new(0, true),
};

/// Runs a command on the shard of its first key, or on all shards. Returns its reply, or `None` if
/// it is in flight.
fn run(executor: &mut Executor<'_>, now_ms: i64, command: &'static Command, words: &[&[u8]]) -> Option<Vec<u8>> {
    let (mut bytes, mut ranges, mut reply) = (Vec::new(), Vec::new(), Vec::new());
    for word in std::iter::once(&command.name.as_bytes()).chain(words) {
        ranges.push(ArgRange::new(bytes.len(), word.len()));
        bytes.extend_from_slice(word);
    }
    let place = words.first().map(|key| executor.keyspace().place(key));
    let args = Args::new(&bytes, &ranges);
    let call = Call { command, args, first_key: place, session: SESSION, reads_as: None, connection: 7, now_ms };
    let ran = match place {
        Some(place) => executor.run_single(&call, place, &mut reply),
        None => executor.run_many(&call, &[0, 1], &mut reply),
    };
    (ran == Ran::Done).then_some(reply)
}

/// Makes `k` a hot key of an executor at the time `now_ms`.
fn heat(executor: &mut Executor<'_>, now_ms: i64) {
    let place = executor.keyspace().place(b"k");
    for _ in 0..CONTENDED_MIN {
        let held = executor.try_take(place.shard).expect("it is free");
        assert_eq!(run(executor, now_ms, &GET, &[b"k"]), None);
        assert!(!executor.hot.has(place.hash), "busy gates alone publish nothing");
        // Answers the request.
        executor.adopt(held);
        assert_eq!(executor.outbox().take_answers().len(), 1);
    }
    let mut held = executor.try_take(place.shard).expect("it is free");
    let (bytes, ranges) = (*b"getk", [ArgRange::new(0, 3), ArgRange::new(3, 1)]);
    let args = Args::new(&bytes, &ranges);
    let call = Call { command: &GET, args, first_key: None, session: SESSION, reads_as: None, connection: 7, now_ms };
    assert!(HotReads(executor).count_busy(&call, place));
    HotReads(executor).add(&call, place, &mut held);
    executor.free(held);
    assert!(executor.hot.has(place.hash));
}

#[test]
fn a_hot_key_is_read_while_its_shard_is_held() {
    let keyspace = keyspace();
    let (mut one, mut two) = (Executor::new(&keyspace, 0), Executor::new(&keyspace, 1));
    run(&mut one, 1, &SET, &[b"k", b"a"]);
    heat(&mut one, 1);
    assert_eq!(run(&mut one, 1, &GET, &[b"k"]).unwrap(), b"$1\r\na\r\n");
    let shard = keyspace.place(b"k").shard;
    let held = two.try_take(shard).expect("it is free");
    assert_eq!(run(&mut one, 1, &GET, &[b"k"]).unwrap(), b"$1\r\na\r\n");
    assert_eq!(keyspace.hot.reads(), 1);
    two.free(held);

    // After each change of the key, reads take the gate until the value is published again.
    run(&mut two, 1, &SET, &[b"k", b"b"]);
    let held = two.try_take(shard).expect("it is free");
    assert_eq!(run(&mut one, 1, &GET, &[b"k"]), None);
    two.adopt(held);
    assert_eq!(run(&mut one, 1, &GET, &[b"k"]).unwrap(), b"$1\r\nb\r\n");
    assert_eq!(keyspace.hot.reads(), 1);
    assert_eq!(run(&mut one, 1, &GET, &[b"k"]).unwrap(), b"$1\r\nb\r\n");
    assert_eq!(keyspace.hot.reads(), 2);
}

#[test]
fn whole_databases_end_published_values() {
    let keyspace = keyspace();
    let mut one = Executor::new(&keyspace, 0);
    run(&mut one, 1, &SET, &[b"k", b"a"]);
    heat(&mut one, 1);
    for command in [&SWAP, &FLUSH] {
        run(&mut one, 1, &SET, &[b"k", b"a"]);
        run(&mut one, 1, &GET, &[b"k"]);
        assert_eq!(run(&mut one, 1, &GET, &[b"k"]).unwrap(), b"$1\r\na\r\n");
        run(&mut one, 1, command, &[]);
        assert_eq!(run(&mut one, 1, &GET, &[b"k"]).unwrap(), b"$-1\r\n");
    }
}

#[test]
fn an_expired_value_is_not_read() {
    let keyspace = keyspace();
    let mut one = Executor::new(&keyspace, 0);
    heat(&mut one, 1);
    run(&mut one, 1, &SET, &[b"k", b"a", b"expires"]);
    run(&mut one, 1, &GET, &[b"k"]);
    assert_eq!(run(&mut one, 10, &GET, &[b"k"]).unwrap(), b"$1\r\na\r\n");
    assert_eq!(keyspace.hot.reads(), 1);
    // As if this worker had seen a key with this deadline expire.
    one.runner.reached_ms = 11;
    assert_eq!(run(&mut one, 10, &GET, &[b"k"]).unwrap(), b"$-1\r\n");
}

#[test]
fn access_times_advance() {
    let keyspace = keyspace();
    let mut one = Executor::new(&keyspace, 0);
    run(&mut one, 1, &SET, &[b"k", b"a"]);
    heat(&mut one, 1);
    let hits = || (0..2).map(|shard| keyspace.shard_stats(shard).hits.get()).sum::<u64>();
    let before = hits();
    for now_ms in 1..=2 * TOUCH_MS {
        run(&mut one, now_ms, &GET, &[b"k"]);
    }
    assert_eq!((hits() - before, keyspace.hot.reads()), (2, 2 * TOUCH_MS as u64 - 2));
}

#[test]
fn unread_keys_and_keys_that_change_too_often_are_forgotten() {
    let keyspace = keyspace();
    let mut one = Executor::new(&keyspace, 0);
    let hash = keyspace.place(b"k").hash;
    heat(&mut one, 1);
    for _ in 0..READS_CHECKED {
        run(&mut one, 1, &SET, &[b"k", b"a"]);
        assert!(one.hot.has(hash));
        run(&mut one, 1, &GET, &[b"k"]);
    }
    assert!(!one.hot.has(hash));
    heat(&mut one, 1 + REFUSED_MS);
    one.evictor().measure();
    assert!(one.hot.has(hash), "it was read since the last sweep");
    one.evictor().measure();
    assert!(!one.hot.has(hash));
    assert_eq!(keyspace.published.get(), 0);
}

/// Handles a worker's messages, and drops its answers.
fn turn(executor: &mut Executor<'_>) {
    for node in executor.keyspace().port(executor.worker()).mailbox().receive() {
        if let Message::Shard(ownership) = node.value {
            executor.adopt(ownership);
        }
    }
    executor.serve_deferred();
    executor.outbox().take_answers();
}

/// One thread writes ascending numbers to two keys, always to `k` before `l`. Another thread reads
/// the keys in the opposite order. The writer waits for a few reads after some of its changes, so
/// that values are published.
#[test]
fn readers_never_see_a_value_older_than_one_seen_before() {
    const CHANGES: u64 = if cfg!(miri) { 50 } else { 4_000 };
    let keyspace = keyspace();
    const READS: u64 = 8;
    let (written, reads, ended) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
    let write = || {
        let mut writer = Executor::new(&keyspace, 1);
        for value in 1..=CHANGES {
            for key in [b"k", b"l"] {
                while run(&mut writer, 1, &SET, &[key, value.to_string().as_bytes()]).is_none() {
                    turn(&mut writer);
                    if ended.load(Ordering::Acquire) {
                        return;
                    }
                }
            }
            written.store(value, Ordering::Release);
            let enough = reads.load(Ordering::Relaxed) + READS;
            while value % 4 == 0 && reads.load(Ordering::Relaxed) < enough && !ended.load(Ordering::Relaxed) {
                turn(&mut writer);
                std::thread::yield_now();
            }
        }
        ended.store(true, Ordering::Release);
    };
    let violation = std::thread::scope(|scope| {
        scope.spawn(write);
        let mut reader = Executor::new(&keyspace, 0);
        let mut read = |key: &[u8; 1]| {
            reads.fetch_add(1, Ordering::Relaxed);
            if !reader.hot.has(keyspace.place(key).hash) {
                heat_beside_a_writer(&mut reader, key);
            }
            let reply = run(&mut reader, 1, &GET, &[key]);
            turn(&mut reader);
            let text = String::from_utf8(reply?).unwrap();
            Some(text.lines().nth(1).map_or(0, |number| number.parse::<u64>().unwrap()))
        };
        while !ended.load(Ordering::Acquire) {
            let least = written.load(Ordering::Acquire);
            if let (Some(l), Some(k)) = (read(b"l"), read(b"k"))
                && !(least <= l && l <= k)
            {
                ended.store(true, Ordering::Release);
                return Some((least, l, k));
            }
        }
        None
    });
    assert_eq!(violation, None, "written before, then l, then k");
    assert!(keyspace.hot.reads() > 0);
}

/// Makes a key hot for an executor.
fn heat_beside_a_writer(executor: &mut Executor<'_>, key: &[u8; 1]) {
    let place = executor.keyspace().place(key);
    let (bytes, ranges) = ([b'g', b'e', b't', key[0]], [ArgRange::new(0, 3), ArgRange::new(3, 1)]);
    let args = Args::new(&bytes, &ranges);
    let call =
        Call { command: &GET, args, first_key: None, session: SESSION, reads_as: None, connection: 7, now_ms: 1 };
    let mut held = loop {
        match executor.try_take(place.shard) {
            Some(held) => break held,
            None => turn(executor),
        }
    };
    HotReads(executor).add(&call, place, &mut held);
    executor.free(held);
}
