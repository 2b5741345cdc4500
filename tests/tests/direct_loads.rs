//! `repl-diskless-load on-empty-db`: a replica without keys loads the snapshot while the snapshot
//! arrives. If the load fails, the replica is empty again.

use std::time::{Duration, Instant};

use pantala_tests::following::{PRIMARY, assert_same, follow, info, wait_for_link};
use pantala_tests::staged::{ID, Scene, Sent, StagedPrimary, full_sync, stream};
use pantala_tests::waiting::{eventually, first_served};
use pantala_tests::{Backend, Client, Reply, Server, for_each_backend};
use rustix::process::Signal;

/// Arguments of a replica.
const REPLICA: [&str; 6] = ["--workers", "2", "--shards", "12", "--repl-diskless-load", "on-empty-db"];

/// The end mark of a snapshot of unknown length.
const MARK: &str = "abcdefghijklmnopqrstuvwxyzabcdefghijklmn";

/// A snapshot with the key `k`, and without a checksum.
const SNAPSHOT: &[u8] = b"REDIS0010\xfe\0\0\x01k\x05value\xff\0\0\0\0\0\0\0\0";

/// Texts of the log that show how a snapshot was received.
const DIRECTLY: &str = "to parser";
const TO_FILE: &str = "to disk";

/// Returns the bytes of a full sync with a snapshot of unknown length.
fn marked(rdb: &[u8]) -> Vec<u8> {
    let head = format!("+FULLRESYNC {ID} 7\r\n$EOF:{MARK}\r\n");
    [head.as_bytes(), rdb, MARK.as_bytes()].concat()
}

/// Adds keys of several sizes and databases, a key with a TTL, and a library.
fn fill(primary: &Server) {
    let mut client = primary.connect();
    let script = "for i = 1, 20000 do redis.call('SET', 'k' .. i, string.rep('v', i % 300)) end \
                  for i = 1, 500 do redis.call('RPUSH', 'l', i) redis.call('ZADD', 'z', i, i) end";
    assert!(!client.command(&["EVAL", script, "3", "k", "l", "z"]).is_error());
    client.command(&["SET", "large", &"x".repeat(3_000_000)]);
    for words in ["SELECT 3", "SET other 1 EX 10000"] {
        assert_eq!(client.call(words), Reply::ok());
    }
    let function = "function_name='f', callback=function() return 7 end, flags={'no-writes'}";
    client.command(&["FUNCTION", "LOAD", &format!("#!lua name=lib\nredis.register_function{{{function}}}")]);
}

#[test]
fn a_replica_without_keys_loads_from_the_socket() {
    for_each_backend(|backend| {
        for sends_file in [false, true] {
            let is_diskless = if sends_file { "no" } else { "yes" };
            let args = [&PRIMARY[..], &["--repl-diskless-sync", is_diskless]].concat();
            let Some(primary) = Server::redis(&args) else { return };
            fill(&primary);
            let more = ["--appendonly", if sends_file { "yes" } else { "no" }];
            let mut replica = Server::pantala(backend, &[&REPLICA[..], &more].concat());
            follow(&replica, &primary);
            assert!(replica.log().contains(DIRECTLY), "{}", replica.log());
            assert_eq!(replica.connect().call("FCALL f 0"), Reply::Integer(7));
            assert_same(&replica, &primary);
            // This write arrives only if the replica continues the stream at the right offset.
            primary.connect().call("INCR later");
            assert_same(&replica, &primary);
            // A replica with keys receives the next snapshot into a file.
            primary.connect().call("DEBUG CHANGE-REPL-ID");
            primary.connect().call("CLIENT KILL TYPE replica");
            eventually("another full sync", || replica.log().contains(TO_FILE));
            wait_for_link(&replica);
            assert_same(&replica, &primary);
            assert_eq!(info(&primary, "stats", "sync_full"), "2");
            replica.assert_sound();
        }
    });
}

#[test]
fn pantala_sends_to_a_replica_without_keys() {
    for_each_backend(|backend| {
        let primary = Server::pantala(backend, &[&PRIMARY[..], &["--enable-debug-command", "yes"]].concat());
        fill(&primary);
        let pantala = Server::pantala(backend, &REPLICA);
        let redis = Server::redis(&REPLICA[4..]);
        for replica in [&pantala].into_iter().chain(&redis) {
            follow(replica, &primary);
            assert_same(replica, &primary);
        }
        assert!(pantala.log().contains(DIRECTLY));
    });
}

/// A damaged or truncated snapshot leaves the replica empty, and the next attempt succeeds. Redis
/// does the same if the link breaks. If a complete snapshot is damaged, redis-server exits.
#[test]
fn a_failed_load_leaves_the_replica_empty() {
    let head = format!("+FULLRESYNC {ID} 7\r\n");
    let behind = |rest: &[u8]| Scene::answers([head.as_bytes(), rest].concat());
    let cut = &SNAPSHOT[..20];
    let last = || Scene::answers([full_sync(7, SNAPSHOT), stream(&["SELECT 0", "SET later 1"])].concat()).keeping();
    let broken = || {
        vec![
            // The connection ends after a key in the first scene, and within the end mark in the
            // second.
            behind(&[format!("$EOF:{MARK}\r\n").as_bytes(), cut].concat()),
            Scene::answers(marked(SNAPSHOT).split_last().expect("bytes").1),
            behind(&[b"$1000\r\n", cut].concat()),
        ]
    };
    let damaged = || {
        vec![
            // An unknown version, a wrong checksum, a value that is longer than the snapshot.
            Scene::answers(full_sync(7, b"REDIS9999\xff\0\0\0\0\0\0\0\0")),
            Scene::answers(full_sync(7, &[&SNAPSHOT[..SNAPSHOT.len() - 8], &[1; 8]].concat())),
            Scene::answers(marked(cut)),
            Scene::answers(marked(b"not a snapshot at all")),
            // A string that declares a length greater than memory.
            behind(b"$1000000\r\nREDIS0010\0\x81\x7f\xff\xff\xff\xff\xff\xff\xffx"),
        ]
    };
    let check = |replica: &Server, mut scenes: Vec<Scene>| {
        scenes.push(last());
        let count = scenes.len();
        let primary = StagedPrimary::start(scenes);
        let mut client = replica.connect();
        assert_eq!(client.call(&format!("REPLICAOF 127.0.0.1 {}", primary.port())), Reply::ok());
        let mut dirty = 0;
        eventually_slowly("the last snapshot is loaded", || {
            let reply = client.call("DBSIZE");
            let is_last = primary.sent().len() == count;
            dirty += usize::from(!is_last && matches!(reply, Reply::Integer(1..)));
            is_last && client.call("GET later") == Reply::bulk("1")
        });
        assert_eq!(dirty, 0, "an incomplete dataset was visible");
        assert_eq!(client.call("GET k"), Reply::bulk("value"));
        assert_eq!(client.call("DBSIZE"), Reply::Integer(2));
        assert_eq!(client.call("REPLICAOF NO ONE"), Reply::ok());
        let asked = primary.finish();
        assert!(asked.iter().all(|psync| !psync.starts_with(ID)), "{asked:?}");
    };
    for scenes in [broken(), damaged()] {
        let mut replica = Server::pantala(Backend::all()[0], &REPLICA);
        check(&replica, scenes);
        replica.assert_sound();
    }
    if let Some(redis) = Server::redis(&["--repl-diskless-load", "on-empty-db"]) {
        check(&redis, broken());
    }
}

/// Repeats a check until it succeeds. Use it for tests in which the replica makes several attempts,
/// one per second.
#[track_caller]
fn eventually_slowly(what: &str, mut done: impl FnMut() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed().as_secs() < 60, "not within a minute: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Starts to follow a primary whose snapshot stops in the middle, and waits for the load.
fn load_half(replica: &Server) -> (Client, StagedPrimary) {
    let mut client = replica.connect();
    let primary = load_half_for(&mut client, replica);
    (client, primary)
}

/// Does the same as [`load_half`], but sends `REPLICAOF` on `client`.
fn load_half_for(client: &mut Client, replica: &Server) -> StagedPrimary {
    let half = &marked(SNAPSHOT)[..marked(SNAPSHOT).len() - 30];
    let primary = StagedPrimary::start(vec![Scene::answers(half).keeping()]);
    assert_eq!(client.call(&format!("REPLICAOF 127.0.0.1 {}", primary.port())), Reply::ok());
    eventually("the load has started", || replica.log().contains("Loading DB in memory"));
    let reply = client.call("GET k");
    let is_loading = matches!(&reply, Reply::Error(text) if text.starts_with("LOADING"));
    assert!(is_loading, "{reply:?}: {}", replica.log());
    primary
}

/// The reply to `REPLICAOF` waits for writes on other workers, but not for the load, even if the
/// load starts while the reply waits.
#[test]
fn replicaof_replies_before_the_load_ends() {
    for_each_backend(|backend| {
        let replica = Server::pantala(backend, &REPLICA);
        let mut clients: Vec<_> = (0..8).map(|_| replica.connect()).collect();
        // `REPLICAOF` replies when each worker has confirmed that it runs no write. The sleeping
        // worker is the last to confirm this.
        let mut sleeper = clients.remove(0);
        sleeper.send(&["DEBUG", "SLEEP", "1"]);
        let awake = first_served(&mut clients, Duration::from_millis(100));
        let primary = load_half_for(&mut clients[awake], &replica);
        assert_eq!(sleeper.receive(), Reply::ok());
        assert_eq!(clients[awake].call("CLIENT PAUSE 1 WRITE"), Reply::ok());
        let denied = clients[awake].call("CONFIG SET repl-diskless-load disabled");
        assert_eq!(denied.text(), "LOADING Redis is loading the dataset in memory");
        assert_eq!(info(&replica, "persistence", "loading"), "1");
        replica.signal(Signal::TERM);
        let _ = primary.finish();
    });
}

/// `REPLICAOF` waits for the writes of a running script, and the load waits for the script too. The
/// start of the load must not make `REPLICAOF` reply before the script has ended.
#[test]
fn replicaof_replies_after_a_running_script() {
    let args = [&REPLICA[..], &["--busy-reply-threshold", "50", "--replica-read-only", "no"]].concat();
    for_each_backend(|backend| {
        let replica = Server::pantala(backend, &args);
        let (mut client, mut runner, mut probe) = (replica.connect(), replica.connect(), replica.connect());
        let script = "local function now() local t = redis.call('TIME') return t[1] + t[2] / 1e6 end \
                      local till = now() + 2 while now() < till do end return redis.call('SET', KEYS[1], 'v')";
        runner.send(&["EVAL", script, "1", "k"]);
        let mut is_busy = || matches!(probe.call("GET k"), Reply::Error(text) if text.starts_with("BUSY"));
        eventually("the script is busy", &mut is_busy);
        let half = &marked(SNAPSHOT)[..marked(SNAPSHOT).len() - 30];
        let primary = StagedPrimary::start(vec![Scene::answers(half).keeping()]);
        assert_eq!(client.call(&format!("REPLICAOF 127.0.0.1 {}", primary.port())), Reply::ok());
        runner.set_read_timeout(Duration::from_millis(500));
        assert_eq!(runner.try_receive().ok().map(|(reply, _)| reply), Some(Reply::ok()), "the script still runs");
        replica.signal(Signal::TERM);
        let _ = primary.finish();
    });
}

/// While the snapshot arrives, the replica rejects commands on the dataset with `-LOADING`, and the
/// server can be stopped.
#[test]
fn commands_are_rejected_while_the_snapshot_arrives() {
    for_each_backend(|backend| {
        let check = |replica: &mut Server| {
            let (mut client, primary) = load_half(replica);
            assert_eq!(client.call("PING").text(), "LOADING Redis is loading the dataset in memory");
            assert_eq!(info(replica, "persistence", "loading"), "1");
            assert_eq!(info(replica, "persistence", "async_loading"), "0");
            assert_eq!(info(replica, "replication", "master_sync_in_progress"), "1");
            client.send(&["SHUTDOWN", "NOSAVE", "NOW"]);
            replica.wait_exit(Duration::from_secs(20));
            let _ = primary.finish();
        };
        // redis-server replies only while bytes arrive, so it can't be compared.
        check(&mut Server::pantala(backend, &REPLICA));
    });
}

/// As in Redis, a shutdown during the load does not wait for the rest of the snapshot, and does not
/// overwrite the RDB file with an incomplete dataset.
#[test]
fn a_shutdown_ends_the_load_without_a_snapshot() {
    let end_by: [fn(&Server, &mut Client); 3] = [
        |replica, _| replica.signal(Signal::TERM),
        |_, client| client.send(&["SHUTDOWN"]),
        |_, client| client.send(&["SHUTDOWN", "SAVE"]),
    ];
    let check = |replica: &mut Server, shut_down: fn(&Server, &mut Client)| {
        let mut client = replica.connect();
        for words in ["SET former value", "SAVE", "DEL former"] {
            assert!(!client.call(words).is_error());
        }
        let file = replica.folder().join("dump.rdb");
        let before = std::fs::read(&file).expect("it was saved");
        let (mut client, primary) = load_half(replica);
        shut_down(replica, &mut client);
        replica.wait_exit(Duration::from_secs(5));
        assert_eq!(std::fs::read(&file).expect("it was kept"), before, "{}", replica.log());
        let _ = primary.finish();
    };
    for_each_backend(|backend| {
        for shut_down in end_by {
            check(&mut Server::pantala(backend, &[&REPLICA[..], &["--save", "3600 1"]].concat()), shut_down);
        }
    });
}

/// A script delays the start of the load. Meanwhile the replica sends empty lines to the primary.
#[test]
fn a_load_that_waits_for_a_script_keeps_the_link_alive() {
    let replica = Server::pantala(Backend::all()[0], &[&REPLICA[..], &["--busy-reply-threshold", "50"]].concat());
    let (mut client, mut runner) = (replica.connect(), replica.connect());
    let (sender, running) = std::sync::mpsc::channel();
    let mut probe = replica.connect();
    let script = "local function now() local t = redis.call('TIME') return t[1] + t[2] / 1e6 end \
                  local till = now() + 4 while now() < till do end return 'done'";
    let answer = move |_: &Sent| {
        runner.send(&["EVAL", script, "1", "k"]);
        let mut is_busy = || matches!(probe.call("GET k"), Reply::Error(text) if text.starts_with("BUSY"));
        eventually("the script is busy", &mut is_busy);
        sender.send(runner).expect("the test waits for it");
        marked(SNAPSHOT)
    };
    let primary = StagedPrimary::start(vec![Scene::computes(answer).keeping()]);
    assert_eq!(client.call(&format!("REPLICAOF 127.0.0.1 {}", primary.port())), Reply::ok());
    let mut runner = running.recv().expect("the script runs");
    eventually("the load waits", || replica.log().contains(DIRECTLY));
    eventually("an empty line arrives", || primary.empty_lines() >= 1);
    assert!(!replica.log().contains("Flushing old data"), "the load has started");
    assert_eq!(runner.receive(), Reply::bulk("done"));
    wait_for_link(&replica);
    assert_eq!(client.call("GET k"), Reply::bulk("value"));
    assert_eq!(client.call("REPLICAOF NO ONE"), Reply::ok());
    let _ = primary.finish();
}

/// A failed load also deletes the functions that the replica had before the load.
#[test]
fn a_failed_load_deletes_the_libraries() {
    let check = |replica: &Server| {
        let mut client = replica.connect();
        let function = "function_name='f', callback=function() return 7 end, flags={'no-writes'}";
        client.command(&["FUNCTION", "LOAD", &format!("#!lua name=lib\nredis.register_function{{{function}}}")]);
        assert_eq!(client.call("FCALL_RO f 0"), Reply::Integer(7));
        let cut = &marked(SNAPSHOT)[..marked(SNAPSHOT).len() - 45];
        let primary = StagedPrimary::start(vec![Scene::answers(cut)]);
        assert_eq!(client.call(&format!("REPLICAOF 127.0.0.1 {}", primary.port())), Reply::ok());
        eventually("the load has failed", || replica.log().contains("Failed trying to load the MASTER"));
        eventually("the dataset is served", || client.call("DBSIZE") == Reply::Integer(0));
        assert_eq!(client.call("FUNCTION LIST").elements().len(), 0);
        assert_eq!(client.call("FCALL_RO f 0").text(), "ERR Function not found");
        assert_eq!(client.call("REPLICAOF NO ONE"), Reply::ok());
        let _ = primary.finish();
    };
    check(&Server::pantala(Backend::all()[0], &REPLICA));
    if let Some(redis) = Server::redis(&["--repl-diskless-load", "on-empty-db"]) {
        check(&redis);
    }
}

/// The link to a primary that stops sending within its snapshot is closed after `repl-timeout`.
#[test]
fn a_silent_primary_ends_the_load() {
    let replica = Server::pantala(Backend::all()[0], &[&REPLICA[..], &["--repl-timeout", "1"]].concat());
    let (mut client, primary) = load_half(&replica);
    eventually("the load has ended", || client.call("DBSIZE") == Reply::Integer(0));
    eventually("the reason is logged", || replica.log().contains("from socket: Timeout connecting to the MASTER"));
    let _ = primary.finish();
}
