//! Commands on keys of several shards are atomic. The effects of a connection's commands become
//! visible to other clients in the order in which the commands were sent. A *shard* is a part of
//! the key space that one worker (a thread with an event loop) holds at a time.
//!
//! The tests run concurrent clients on every backend (io_uring, epoll) with both values of
//! `execution`. With `inline`, a command runs on its client's worker. With `owner`, it runs on the
//! worker to which the key's shard belongs.
//!
//! A scenario consists of writers, and of readers that check an invariant. Each scenario also runs
//! with *broken* writers, which do the same work with commands that aren't atomic, or in the wrong
//! order. The readers must detect broken writers. If they don't, the scenario checks nothing.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use pantala_tests::concurrent::{Body, run_for};
use pantala_tests::{Client, Random, Reply, Server, for_each_backend};

/// Default duration of each scenario on each kind of server. `PANTALA_ATOMICITY_MS` overrides it,
/// as in `.ci/nightly`.
const RUN_MS: u64 = 1000;
/// Maximum time until a broken scenario is detected.
const NOTICE_MAX: Duration = Duration::from_secs(30);
/// Number of keys of one command. This number is so large that most of 40 shards have one of the
/// keys.
const KEYS: usize = 100;
/// Number of writing threads, and of reading threads.
const SIDES: usize = 2;

/// Whether the writers are correct (atomic commands in the right order) or broken.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Writers {
    Right,
    Broken,
}

/// The order that the setting `execution` guarantees for the effects of one connection.
#[derive(Clone, Copy, PartialEq)]
enum Order {
    /// The order in which the commands were sent (`inline`).
    Connection,
    /// The order in which the commands were sent, but only for the effects on each key (`owner`).
    Key,
}

type Scenario = fn(&Server, Order, Writers, Duration) -> Result<(), String>;

fn run() -> Duration {
    let ms = std::env::var("PANTALA_ATOMICITY_MS").ok();
    Duration::from_millis(ms.map_or(RUN_MS, |text| text.trim().parse().expect("PANTALA_ATOMICITY_MS is a number")))
}

/// Runs a scenario on every kind of server, and its broken version on one of them.
fn check(scenario: Scenario) {
    for_each_backend(|backend| {
        for (mode, order) in [("inline", Order::Connection), ("owner", Order::Key)] {
            eprintln!("-- execution {mode}");
            let mut server = Server::pantala(backend, &["--workers", "4", "--shards", "40", "--execution", mode]);
            if let Err(text) = scenario(&server, order, Writers::Right, run()) {
                panic!("backend {}, execution {mode}: {text}", backend.name());
            }
            server.assert_sound();
        }
    });
    let backend = pantala_tests::Backend::all()[0];
    let server = Server::pantala(backend, &["--workers", "4", "--shards", "40"]);
    let noticed = scenario(&server, Order::Connection, Writers::Broken, NOTICE_MAX);
    assert!(noticed.is_err(), "the scenario does not detect broken writers, so it can't fail");
}

fn names(prefix: &str, count: usize) -> Vec<String> {
    (0..count).map(|number| format!("{prefix}:{number}")).collect()
}

/// Returns `name key key …`.
fn over(name: &str, keys: &[String]) -> Vec<String> {
    std::iter::once(name.to_owned()).chain(keys.iter().cloned()).collect()
}

/// Returns `name key value key value …`.
fn over_with(name: &str, keys: &[String], value: &str) -> Vec<String> {
    std::iter::once(name.to_owned()).chain(keys.iter().flat_map(|key| [key.clone(), value.to_owned()])).collect()
}

/// Returns the value that all elements share, or an error if they differ.
fn all_equal(reply: &Reply) -> Result<&Reply, String> {
    let items = reply.elements();
    match items.iter().find(|item| **item != items[0]) {
        None => Ok(&items[0]),
        Some(odd) => Err(format!("torn: {:?} beside {odd:?} in one MGET", items[0])),
    }
}

/// Returns readers that get all `keys` with MGET. A reader fails if the values of one reply differ.
/// Readers also count the changes that they see.
fn mget_readers<'a>(server: &Server, database: usize, keys: &[String], changes: &'a AtomicUsize) -> Vec<Body<'a>> {
    (0..SIDES)
        .map(|_| {
            let mut client = server.connect();
            client.command(&["SELECT", &database.to_string()]);
            let batch = vec![over("MGET", keys); 3];
            let mut last = Reply::Null;
            let body: Body = Box::new(move || {
                for reply in client.pipeline(&batch) {
                    let seen = all_equal(&reply)?;
                    if *seen != last {
                        last = seen.clone();
                        changes.fetch_add(1, Ordering::Relaxed);
                    }
                }
                Ok(())
            });
            body
        })
        .collect()
}

/// Asserts that the readers saw changes. If they saw none, the scenario would check nothing.
fn assert_enough(changes: &AtomicUsize) {
    let changes = changes.load(Ordering::Relaxed);
    assert!(changes >= 10, "readers saw only {changes} changes: the scenario proves nothing");
}

/// Number of accounts, and the initial balance of each.
const ACCOUNTS: usize = 12;
const BALANCE: i64 = 100;

/// Moves money between accounts with `WATCH` and `MULTI`. Every read of all accounts must result in
/// the same total.
fn transfers(server: &Server, _: Order, writers: Writers, limit: Duration) -> Result<(), String> {
    let keys = names("account", ACCOUNTS);
    server.connect().command(&over_with("MSET", &keys, &BALANCE.to_string()));
    let moved = AtomicUsize::new(0);
    let mut bodies: Vec<Body> = Vec::new();
    let seed = Random::seed("transfers");
    for number in 0..2 * SIDES as u64 {
        let (mut client, keys, moved) = (server.connect(), keys.clone(), &moved);
        let mut random = Random::from_seed(seed + number);
        bodies.push(Box::new(move || {
            let (from, to) = (&keys[random.below(ACCOUNTS)], &keys[random.below(ACCOUNTS)]);
            if from == to {
                return Ok(());
            }
            client.command(&["WATCH", from, to]);
            let had = client.command(&["GET", from]).text().parse::<i64>().expect("a balance");
            let has = client.command(&["GET", to]).text().parse::<i64>().expect("a balance");
            let changes = [("SET", from, had - 1), ("SET", to, has + 1)];
            match writers {
                Writers::Right => {
                    client.call("MULTI");
                    for (name, key, value) in changes {
                        client.command(&[name, key, &value.to_string()]);
                    }
                    if client.call("EXEC") != Reply::Null {
                        moved.fetch_add(1, Ordering::Relaxed);
                    }
                }
                Writers::Broken => {
                    client.call("UNWATCH");
                    for (name, key, value) in changes {
                        client.command(&[name, key, &value.to_string()]);
                    }
                }
            }
            Ok(())
        }));
    }
    for _ in 0..SIDES {
        let (mut client, keys) = (server.connect(), keys.clone());
        bodies.push(Box::new(move || {
            client.call("MULTI");
            for key in &keys {
                client.command(&["GET", key]);
            }
            let reply = client.call("EXEC");
            let sum: i64 = reply.elements().iter().map(|item| item.text().parse::<i64>().expect("a balance")).sum();
            let right = ACCOUNTS as i64 * BALANCE;
            if sum == right { Ok(()) } else { Err(format!("{sum} instead of {right} in all accounts")) }
        }));
    }
    run_for(limit, bodies)?;
    if writers == Writers::Right {
        assert_enough(&moved);
    }
    Ok(())
}

fn mset(server: &Server, _: Order, writers: Writers, limit: Duration) -> Result<(), String> {
    let keys = names("k", KEYS);
    let changes = AtomicUsize::new(0);
    let number = AtomicU64::new(0);
    let mut bodies = mget_readers(server, 0, &keys, &changes);
    for _ in 0..SIDES {
        let (mut client, keys, number) = (server.connect(), keys.clone(), &number);
        bodies.push(Box::new(move || {
            let value = number.fetch_add(1, Ordering::Relaxed).to_string();
            match writers {
                Writers::Right => assert_eq!(client.command(&over_with("MSET", &keys, &value)), Reply::ok()),
                // Broken writers write the two halves of the keys in two pipelines. One pipeline
                // would not be enough, because the server may run a whole pipeline without a
                // command of another client in between.
                Writers::Broken => {
                    for half in keys.chunks(KEYS / 2) {
                        client.command(&over_with("MSET", half, &value));
                    }
                }
            }
            Ok(())
        }));
    }
    run_for(limit, bodies)?;
    assert_enough(&changes);
    Ok(())
}

#[test]
fn transactions_are_isolated() {
    check(transfers);
}

/// The script `TRANSFER` moves 1 from its first key to its second. The script `COUNT` returns the
/// sum of the values of its keys.
const TRANSFER: &str = "redis.call('DECR', KEYS[1]) redis.call('INCR', KEYS[2]) return 0";
const COUNT: &str = "local sum = 0 for _, key in ipairs(KEYS) do sum = sum + redis.call('GET', key) end return sum";
/// The same two scripts with undeclared keys. The first script uses its undeclared key after a
/// write, so the write must be rolled back. The second script only reads.
const HIDDEN_TRANSFER: &str = "redis.call('DECR', KEYS[1]) redis.call('INCR', ARGV[1]) return 0";
const HIDDEN_COUNT: &str =
    "local sum = 0 for i = 0, ARGV[1] - 1 do sum = sum + redis.call('GET', 'account:' .. i) end return sum";

/// Moves money between accounts by scripts. With `is_hidden`, the scripts use undeclared keys, and
/// the text of each script is new, so that the server can't know from an earlier call that the
/// script needs these keys.
fn scripted_transfers(server: &Server, writers: Writers, limit: Duration, is_hidden: bool) -> Result<(), String> {
    let keys = names("account", ACCOUNTS);
    server.connect().command(&over_with("MSET", &keys, &BALANCE.to_string()));
    let (moved, calls) = (AtomicUsize::new(0), AtomicU64::new(0));
    let mut bodies: Vec<Body> = Vec::new();
    let seed = Random::seed("scripted transfers");
    for number in 0..2 * SIDES as u64 {
        let (mut client, keys, moved, calls) = (server.connect(), keys.clone(), &moved, &calls);
        let mut random = Random::from_seed(seed + number);
        bodies.push(Box::new(move || {
            let (from, to) = (&keys[random.below(ACCOUNTS)], &keys[random.below(ACCOUNTS)]);
            let call = calls.fetch_add(1, Ordering::Relaxed);
            let reply = match (writers, is_hidden) {
                (Writers::Right, false) => client.command(&["EVAL", TRANSFER, "2", from, to]),
                (Writers::Right, true) => {
                    let script = format!("{HIDDEN_TRANSFER} -- {call}");
                    client.command(&["EVAL", script.as_str(), "1", from, to])
                }
                (Writers::Broken, _) => {
                    client.command(&["EVAL", "redis.call('DECR', KEYS[1]) return 0", "1", from]);
                    client.command(&["EVAL", "redis.call('INCR', KEYS[1]) return 0", "1", to])
                }
            };
            moved.fetch_add(1, Ordering::Relaxed);
            if reply == Reply::Integer(0) { Ok(()) } else { Err(format!("{reply:?}")) }
        }));
    }
    for _ in 0..SIDES {
        let (mut client, keys, calls) = (server.connect(), keys.clone(), &calls);
        bodies.push(Box::new(move || {
            let call = calls.fetch_add(1, Ordering::Relaxed);
            let reply = if is_hidden {
                let script = format!("{HIDDEN_COUNT} -- {call}");
                client.command(&["EVAL", script.as_str(), "0", &ACCOUNTS.to_string()])
            } else {
                let count = keys.len().to_string();
                let head = ["EVAL", COUNT, &count];
                let command: Vec<&str> = head.into_iter().chain(keys.iter().map(String::as_str)).collect();
                client.command(&command)
            };
            let right = Reply::Integer(ACCOUNTS as i64 * BALANCE);
            if reply == right { Ok(()) } else { Err(format!("{reply:?} in all accounts")) }
        }));
    }
    run_for(limit, bodies)?;
    assert_enough(&moved);
    Ok(())
}

#[test]
fn scripts_are_isolated() {
    check(|server, _, writers, limit| scripted_transfers(server, writers, limit, false));
}

#[test]
fn scripts_with_undeclared_keys_are_isolated() {
    check(|server, _, writers, limit| scripted_transfers(server, writers, limit, true));
}

#[test]
fn mset_is_never_torn() {
    check(mset);
}

fn msetnx(server: &Server, _: Order, writers: Writers, limit: Duration) -> Result<(), String> {
    let keys = names("nx", KEYS / 2);
    let changes = AtomicUsize::new(0);
    let number = AtomicU64::new(0);
    let mut bodies = mget_readers(server, 0, &keys, &changes);
    for _ in 0..SIDES {
        let (mut client, keys, number) = (server.connect(), keys.clone(), &number);
        bodies.push(Box::new(move || {
            let value = number.fetch_add(1, Ordering::Relaxed).to_string();
            if writers == Writers::Broken {
                let single: Vec<_> =
                    keys.iter().map(|key| over_with("SETNX", std::slice::from_ref(key), &value)).collect();
                client.pipeline(&single);
            } else if client.command(&over_with("MSETNX", &keys, &value)) == Reply::Integer(0) {
                return Ok(());
            }
            // MSETNX sets the keys only if none exists, so now only this client can delete them.
            // DEL must therefore find all of them.
            let gone = client.command(&over("DEL", &keys));
            if gone == Reply::Integer(keys.len() as i64) {
                Ok(())
            } else {
                Err(format!("DEL of {} keys deleted {gone:?}", keys.len()))
            }
        }));
    }
    run_for(limit, bodies)?;
    assert_enough(&changes);
    Ok(())
}

#[test]
fn msetnx_sets_all_or_nothing() {
    check(msetnx);
}

fn rename(server: &Server, _: Order, writers: Writers, limit: Duration) -> Result<(), String> {
    const PLACES: usize = 24;
    let places = names("place", PLACES);
    let tokens: BTreeSet<String> = (0..PLACES / 3).map(|token| format!("token{token}")).collect();
    let mut client = server.connect();
    for (place, token) in places.iter().zip(&tokens) {
        assert_eq!(client.command(&["SET", place, token]), Reply::ok());
    }
    let changes = AtomicUsize::new(0);
    let mut bodies: Vec<Body> = Vec::new();
    for side in 0..SIDES {
        let (mut mover, ends) = (server.connect(), places.clone());
        let mut random = Random::from_seed(side as u64);
        bodies.push(Box::new(move || {
            let (from, to) = (random.pick(&ends), random.pick(&ends));
            match writers {
                Writers::Right => drop(mover.command(&["RENAMENX", from, to])),
                Writers::Broken => {
                    if let Reply::Bulk(token) = mover.command(&["GETDEL", from]) {
                        mover.command(&[b"SET".as_slice(), to.as_bytes(), &token]);
                    }
                }
            }
            Ok(())
        }));
        let (mut client, places, tokens, changes) = (server.connect(), places.clone(), tokens.clone(), &changes);
        let mut last = Vec::new();
        bodies.push(Box::new(move || {
            let reply = client.command(&over("MGET", &places));
            let mut seen: Vec<String> =
                reply.elements().iter().filter(|item| **item != Reply::Null).map(Reply::text).collect();
            if seen != last {
                last.clone_from(&seen);
                changes.fetch_add(1, Ordering::Relaxed);
            }
            seen.sort();
            if seen.iter().eq(tokens.iter()) {
                Ok(())
            } else {
                Err(format!("renames must conserve {tokens:?}; one MGET saw {seen:?}"))
            }
        }));
    }
    run_for(limit, bodies)?;
    assert_enough(&changes);
    Ok(())
}

#[test]
fn renames_conserve() {
    check(rename);
}

/// One connection writes a number to `first` and then to `second`, in long pipelines. The two keys
/// are usually in different shards. A client that reads `second` and then `first` must find `first`
/// ≥ `second`. With [`Order::Key`] this isn't guaranteed, so [`order_of_a_key`] runs instead.
fn order(server: &Server, order: Order, writers: Writers, limit: Duration) -> Result<(), String> {
    const PAIRS: usize = 8;
    const DEPTH: u64 = 50;
    if order == Order::Key {
        return order_of_a_key(server, limit);
    }
    let progress = AtomicUsize::new(0);
    let mut bodies: Vec<Body> = Vec::new();
    for pair in 0..PAIRS {
        let (first, second) = (format!("first:{pair}"), format!("second:{}", pair * 7919));
        let mut client = server.connect();
        client.pipeline(&[
            over_with("SET", std::slice::from_ref(&first), "0"),
            over_with("SET", std::slice::from_ref(&second), "0"),
        ]);
        if pair % 2 == 0 {
            // This client keeps shards busy, so that commands of other clients are queued.
            let (mut client, keys) = (server.connect(), names("noise", KEYS));
            bodies.push(Box::new(move || {
                client.command(&over_with("MSET", &keys, "x"));
                Ok(())
            }));
        }
        let mut next = 1;
        let (one, two) =
            if writers == Writers::Right { (first.clone(), second.clone()) } else { (second.clone(), first.clone()) };
        bodies.push(Box::new(move || {
            if writers == Writers::Broken {
                client.command(&["SET", &one, &next.to_string()]);
                client.command(&["SET", &two, &next.to_string()]);
                next += 1;
                return Ok(());
            }
            let mut batch = Vec::new();
            for number in next..next + DEPTH {
                batch.push(over_with("SET", std::slice::from_ref(&one), &number.to_string()));
                batch.push(over_with("SET", std::slice::from_ref(&two), &number.to_string()));
            }
            next += DEPTH;
            client.pipeline(&batch);
            Ok(())
        }));
        let (mut client, progress) = (server.connect(), &progress);
        let mut last = 0;
        bodies.push(Box::new(move || {
            let mut number = |key: &str| client.command(&["GET", key]).text().parse::<u64>().expect("a number");
            let later = number(&second);
            let earlier = number(&first);
            if later > last {
                last = later;
                progress.fetch_add(1, Ordering::Relaxed);
            }
            if earlier >= later {
                Ok(())
            } else {
                Err(format!("saw {second}={later}, and after that {first}={earlier}"))
            }
        }));
    }
    run_for(limit, bodies)?;
    assert_enough(&progress);
    Ok(())
}

/// Sends pipelines of APPENDs to one key and INCRs of another key, on several connections that use
/// different keys. Replies and values must have the order in which the commands were sent.
fn order_of_a_key(server: &Server, limit: Duration) -> Result<(), String> {
    let mut bodies: Vec<Body> = Vec::new();
    for connection in 0..4 {
        let mut client = server.connect();
        let (counter, text) = (format!("counter:{connection}"), format!("text:{connection}"));
        let mut last = 0;
        let mut round = 0;
        bodies.push(Box::new(move || {
            round += 1;
            let mut batch = vec![vec!["SET".to_owned(), text.clone(), String::new()]];
            for letter in 'a'..='z' {
                batch.push(vec!["APPEND".to_owned(), text.clone(), letter.to_string()]);
                batch.push(vec!["INCR".to_owned(), counter.clone()]);
            }
            batch.push(vec!["GET".to_owned(), text.clone()]);
            let replies = client.pipeline(&batch);
            for pair in replies[1..53].chunks(2) {
                let number = pair[1].integer();
                if number != last + 1 {
                    return Err(format!("round {round}: INCR gave {number} after {last}"));
                }
                last = number;
            }
            let whole = replies[53].text();
            if whole == "abcdefghijklmnopqrstuvwxyz" {
                Ok(())
            } else {
                Err(format!("round {round}: pipelined APPENDs gave {whole}"))
            }
        }));
    }
    run_for(limit, bodies)
}

#[test]
fn effects_of_a_connection_keep_their_order() {
    check(order);
}

fn incr(server: &Server, _: Order, writers: Writers, limit: Duration) -> Result<(), String> {
    const COUNTERS: usize = 10;
    let counters = names("n", COUNTERS);
    let replies: Mutex<Vec<Vec<i64>>> = Mutex::new(vec![Vec::new(); COUNTERS]);
    let mut bodies: Vec<Body> = Vec::new();
    server.connect().command(&over_with("MSET", &counters, "0"));
    for connection in 0..6 {
        let (mut client, counters, replies) = (server.connect(), counters.clone(), &replies);
        let mut random = Random::from_seed(connection);
        bodies.push(Box::new(move || {
            let picked: Vec<usize> = (0..30).map(|_| random.below(COUNTERS)).collect();
            let numbers: Vec<i64> = match writers {
                Writers::Right => {
                    let batch: Vec<_> =
                        picked.iter().map(|at| over("INCR", std::slice::from_ref(&counters[*at]))).collect();
                    client.pipeline(&batch).iter().map(Reply::integer).collect()
                }
                Writers::Broken => picked
                    .iter()
                    .map(|at| {
                        let number =
                            client.command(&["GET", &counters[*at]]).text().parse::<i64>().expect("a number") + 1;
                        client.command(&["SET", &counters[*at], &number.to_string()]);
                        number
                    })
                    .collect(),
            };
            let mut replies = replies.lock().expect("no panic under this lock");
            for (at, number) in picked.iter().zip(numbers) {
                replies[*at].push(number);
            }
            Ok(())
        }));
    }
    run_for(limit.min(run()), bodies)?;
    let mut client = server.connect();
    for (counter, mut numbers) in counters.iter().zip(replies.into_inner().expect("no panic under this lock")) {
        numbers.sort_unstable();
        let total = client.command(&["GET", counter]).text();
        if !numbers.iter().copied().eq(1..=numbers.len() as i64) || total != numbers.len().to_string() {
            return Err(format!("{} INCRs of {counter} gave {total}, and not every number once", numbers.len()));
        }
    }
    Ok(())
}

#[test]
fn incr_counts_exactly() {
    check(incr);
}

fn swapdb(server: &Server, _: Order, writers: Writers, limit: Duration) -> Result<(), String> {
    let keys = names("s", KEYS);
    for (database, value) in [("2", "in two"), ("3", "in three")] {
        let mut client = server.connect();
        client.command(&["SELECT", database]);
        client.command(&over_with("MSET", &keys, value));
    }
    let changes = AtomicUsize::new(0);
    let mut bodies = mget_readers(server, 2, &keys, &changes);
    let mut client = server.connect();
    client.call("SELECT 2");
    bodies.push(Box::new(move || {
        match writers {
            Writers::Right => assert_eq!(client.call("SWAPDB 2 3"), Reply::ok()),
            Writers::Broken => {
                for value in ["in two", "in three"] {
                    for half in keys.chunks(KEYS / 2) {
                        client.command(&over_with("MSET", half, value));
                    }
                }
            }
        }
        Ok(())
    }));
    run_for(limit, bodies)?;
    assert_enough(&changes);
    Ok(())
}

#[test]
fn swapdb_swaps_all_keys_at_once() {
    check(swapdb);
}

fn flush(server: &Server, _: Order, writers: Writers, limit: Duration) -> Result<(), String> {
    let keys = names("f", KEYS);
    let changes = AtomicUsize::new(0);
    let mut bodies = mget_readers(server, 0, &keys, &changes);
    for side in 0..SIDES {
        let (mut client, keys) = (server.connect(), keys.clone());
        let mut number = 0;
        bodies.push(Box::new(move || {
            number += 1;
            client.command(&over_with("MSET", &keys, &format!("{side}-{number}")));
            match writers {
                Writers::Right if number % 2 == 0 => drop(client.call("FLUSHDB ASYNC")),
                Writers::Right => drop(client.call("FLUSHALL")),
                Writers::Broken => {
                    for half in keys.chunks(KEYS / 2) {
                        client.command(&over("DEL", half));
                    }
                }
            }
            Ok(())
        }));
    }
    run_for(limit, bodies)?;
    assert_enough(&changes);
    Ok(())
}

#[test]
fn flush_removes_all_keys_at_once() {
    check(flush);
}

/// Moves keys between databases. None is lost or duplicated, and COPY copies a value atomically.
fn move_and_copy(server: &Server, _: Order, writers: Writers, limit: Duration) -> Result<(), String> {
    let keys = names("m", 30);
    let mut client = server.connect();
    client.command(&over_with("MSET", &keys, "x"));
    client.command(&["MSET", "source", "0", "copy", "0"]);
    let moves = AtomicUsize::new(0);
    let mut bodies: Vec<Body> = Vec::new();
    for side in 0..4 {
        let (mut client, keys, moves) = (server.connect(), keys.clone(), &moves);
        let mut random = Random::from_seed(side);
        let (here, there) = if side % 2 == 0 { ("0", "1") } else { ("1", "0") };
        client.command(&["SELECT", here]);
        bodies.push(Box::new(move || {
            let key = random.pick(&keys);
            match writers {
                Writers::Right => {
                    let moved = client.command(&["MOVE", key, there]).integer();
                    moves.fetch_add(moved as usize, Ordering::Relaxed);
                }
                Writers::Broken => {
                    client.command(&["COPY", key, key, "DB", there]);
                    std::thread::yield_now();
                    client.command(&["DEL", key]);
                }
            }
            Ok(())
        }));
    }
    let mut writer = server.connect();
    let mut number = 0;
    bodies.push(Box::new(move || {
        number += 1;
        let value = number.to_string();
        writer.pipeline(&[vec!["SET", "source", &value], vec!["COPY", "source", "copy", "REPLACE"]]);
        Ok(())
    }));
    let mut reader = server.connect();
    bodies.push(Box::new(move || {
        let reply = reader.command(&["MGET", "source", "copy"]);
        let numbers: Vec<u64> = reply.elements().iter().map(|item| item.text().parse().expect("a number")).collect();
        if numbers[0] >= numbers[1] && numbers[0] - numbers[1] <= 1 {
            Ok(())
        } else {
            Err(format!("source and copy were {numbers:?}"))
        }
    }));
    run_for(limit.min(run()), bodies)?;
    let mut found = 0;
    for database in ["0", "1"] {
        client.command(&["SELECT", database]);
        found += client.command(&over("EXISTS", &keys)).integer();
    }
    if found != keys.len() as i64 {
        return Err(format!("of {} keys that moved between two databases {found} are there", keys.len()));
    }
    assert_enough(&moves);
    Ok(())
}

#[test]
fn move_and_copy_conserve() {
    check(move_and_copy);
}

/// A client that disconnects during commands over all shards leaves no shard held.
#[test]
fn disconnected_clients_leave_no_shard_held() {
    for_each_backend(|backend| {
        let mut server = Server::pantala(backend, &["--workers", "4", "--shards", "40"]);
        let keys = names("v", KEYS);
        for round in 0..300 {
            let mut client: Client = server.connect();
            client.send(&over_with("MSET", &keys, &round.to_string()));
            client.send(&over("MGET", &keys));
            drop(client);
        }
        let mut client = server.connect();
        // Commands of the last clients may still be pending. Each of these commands is atomic, so
        // MGET finds equal values, whether a pending command runs before or after this MSET.
        assert_eq!(client.command(&over_with("MSET", &keys, "end")), Reply::ok());
        for _ in 0..20 {
            if let Err(torn) = all_equal(&client.command(&over("MGET", &keys))) {
                panic!("{torn}");
            }
        }
        server.assert_sound();
    });
}
