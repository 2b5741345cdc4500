//! `FAILOVER` and promotions: from Pantala to Pantala, from Pantala to redis-server, and from
//! redis-server to Pantala. No acknowledged write is lost.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use pantala_tests::following::{assert_same, follow, info, wait_for_link, wait_until_applied};
use pantala_tests::waiting::eventually;
use pantala_tests::{Backend, Client, Reply, Server, for_all_backends, for_each_backend};

/// Arguments of all servers. With them, full syncs start without delay, and no `PING` advances the
/// offsets.
const ARGS: [&str; 4] = ["--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "3600"];

/// Number of clients that write during a failover.
const WRITERS: usize = 3;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Pantala,
    Redis,
}

fn start(kind: Kind, backend: Backend) -> Option<Server> {
    match kind {
        Kind::Pantala => Some(Server::pantala(backend, &[&ARGS[..], &["--workers", "2"]].concat())),
        Kind::Redis => Server::redis(&ARGS),
    }
}

fn state(server: &Server) -> String {
    info(server, "replication", "master_failover_state")
}

fn role(server: &Server) -> String {
    info(server, "replication", "role")
}

fn is_error(reply: &Reply, start: &str) -> bool {
    matches!(reply, Reply::Error(text) if text.starts_with(start))
}

/// Increments a key until the server is no longer a primary. Returns the last acknowledged value.
fn increment(server: &Server, key: &str, is_over: &AtomicBool) -> i64 {
    let (mut client, mut last) = (server.connect(), 0);
    while !is_over.load(Ordering::Relaxed) {
        match client.call(&format!("INCR {key}")) {
            Reply::Integer(value) => last = value,
            reply => {
                assert!(is_error(&reply, "READONLY"), "{reply:?}");
                break;
            }
        }
    }
    last
}

/// Waits until each client has incremented its key at least a hundred times.
fn wait_for_writers(client: &mut Client) {
    for number in 0..WRITERS {
        let words = format!("STRLEN n:{number}");
        eventually("the client has written", || matches!(client.call(&words), Reply::Integer(3..)));
    }
}

/// A guard that stops the writers of a scenario when it is dropped, so that they also stop if the
/// scenario fails.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Waits until a replica has received all writes, and checks that both servers have the same
/// dataset.
#[track_caller]
fn assert_equal(replica: &Server, primary: &Server) {
    // A write is in the stream only a moment after its reply. `WAIT` waits only for the part of the
    // stream that existed at the previous command of its connection. The client therefore sends
    // `PING` before `WAIT`.
    let mut client = primary.connect();
    client.call("PING");
    assert!(matches!(client.call("WAIT 1 10000"), Reply::Integer(1..)));
    assert_same(replica, primary);
}

fn wait_for_takeover(from: &Server, to: &Server) {
    eventually("the replica has taken over", || {
        state(from) == "no-failover" && role(from) == "slave" && role(to) == "master"
    });
    wait_for_link(from);
}

#[test]
fn a_replica_takes_over_and_no_write_is_lost() {
    for_each_backend(|backend| {
        for (from, to) in [(Kind::Pantala, Kind::Pantala), (Kind::Pantala, Kind::Redis), (Kind::Redis, Kind::Pantala)] {
            let (Some(from), Some(to)) = (start(from, backend), start(to, backend)) else { return };
            from.connect().call("SET before 1");
            follow(&to, &from);
            let id = info(&from, "replication", "master_replid");
            let is_over = AtomicBool::new(false);
            let last: Vec<i64> = std::thread::scope(|scope| {
                let (from, is_over) = (&from, &is_over);
                let writers: Vec<_> = (0..WRITERS)
                    .map(|number| scope.spawn(move || increment(from, &format!("n:{number}"), is_over)))
                    .collect();
                let mut client = from.connect();
                let _end = End(is_over);
                wait_for_writers(&mut client);
                // FAILOVER returns an error until the replica is online.
                let words = format!("FAILOVER TO 127.0.0.1 {} TIMEOUT 20000", to.port());
                eventually("the failover starts", || client.call(&words) == Reply::ok());
                wait_for_takeover(from, &to);
                is_over.store(true, Ordering::Relaxed);
                writers.into_iter().map(|writer| writer.join().expect("the writer does not panic")).collect()
            });
            let mut client = to.connect();
            for (number, last) in last.iter().enumerate() {
                assert_eq!(client.call(&format!("GET n:{number}")).text(), last.to_string(), "{number}");
            }
            assert!(is_error(&from.connect().call("SET a 1"), "READONLY"));
            assert_eq!(info(&to, "stats", "sync_full"), "0", "{}\n{}", from.log(), to.log());
            assert_eq!(info(&to, "stats", "sync_partial_ok"), "1");
            assert_eq!(info(&to, "replication", "master_replid2"), id);
            assert_eq!(client.call("SELECT 5"), Reply::ok());
            assert_eq!(client.call("SET after 1"), Reply::ok());
            let mut client = from.connect();
            client.call("SELECT 5");
            eventually("it is in the same database", || client.call("GET after") == Reply::bulk("1"));
            assert_equal(&from, &to);
        }
    });
}

/// The role of the primary moves to the replica and back several times, without a full sync.
#[test]
fn roles_move_there_and_back_without_a_full_sync() {
    for_each_backend(|backend| {
        let (first, second) = (start(Kind::Pantala, backend), start(Kind::Pantala, backend));
        let (first, second) = (first.expect("it starts"), second.expect("it starts"));
        follow(&second, &first);
        first.connect().call("SET n 0");
        for round in 1..=3 {
            for (from, to) in [(&first, &second), (&second, &first)] {
                assert!(matches!(from.connect().call("INCR n"), Reply::Integer(_)));
                assert_eq!(from.connect().call("FAILOVER"), Reply::ok());
                wait_for_takeover(from, to);
                let reply = to.connect().call("INCR n");
                assert!(matches!(reply, Reply::Integer(_)), "{reply:?}");
                assert_equal(from, to);
            }
            assert_eq!(first.connect().call("GET n"), Reply::bulk((4 * round).to_string()));
        }
        assert_eq!(info(&first, "stats", "sync_full"), "1", "{}", second.log());
        assert_eq!(info(&second, "stats", "sync_full"), "0", "{}", second.log());
    });
}

#[test]
fn errors_are_those_of_redis() {
    let backend = Backend::all()[0];
    let all: Vec<Vec<Reply>> = [Kind::Pantala, Kind::Redis]
        .into_iter()
        .filter_map(|kind| {
            let (server, replica) = (start(kind, backend)?, start(Kind::Redis, backend)?);
            let mut client = server.connect();
            let mut replies: Vec<Reply> = ["FAILOVER", "FAILOVER ABORT", "FAILOVER TO a 1 FORCE", "FAILOVER FORCE"]
                .map(|words| client.call(words))
                .into();
            replies.push(client.call("PSYNC ? x FAILOVER"));
            follow(&replica, &server);
            eventually("it is online", || info(&server, "replication", "slave0").contains("state=online"));
            let port = replica.port();
            for words in [
                "FAILOVER ABORT",
                "FAILOVER ABORT x",
                "FAILOVER FORCE",
                "FAILOVER FORCE TIMEOUT 100",
                "FAILOVER TIMEOUT 0",
                "FAILOVER TIMEOUT x",
                "FAILOVER TO 127.0.0.1",
                "FAILOVER TO 127.0.0.1 x",
                "FAILOVER TO 127.0.0.1 1",
                "FAILOVER TO 127.0.0.1 1 FORCE",
                "FAILOVER TO 127.0.0.1 1 FORCE TIMEOUT 100",
                "FAILOVER TO 127.0.0.1 99999999",
            ] {
                replies.push(client.call(words));
            }
            replies.push(client.call(&format!("FAILOVER TO 127.0.0.1 {port} FORCE")));
            replies.push(Reply::bulk(state(&server)));
            // The replica is suspended and acknowledges nothing, so the failover can't complete.
            replica.signal(rustix::process::Signal::STOP);
            client.call("SET a 1");
            replies.push(client.call(&format!("FAILOVER TO 127.0.0.1 {port}")));
            replies.push(Reply::bulk(state(&server)));
            replies.push(client.call("FAILOVER"));
            replies.push(client.call("REPLICAOF 127.0.0.1 1"));
            replies.push(client.call("REPLICAOF NO ONE"));
            replies.push(server.connect().call(&format!("PSYNC {} 1", "0".repeat(40))));
            replies.push(client.call("FAILOVER ABORT"));
            replies.push(client.call("SET a 2"));
            replica.signal(rustix::process::Signal::CONT);
            follow(&server, replica_of_nobody(&replica));
            replies.push(client.call("FAILOVER"));
            let wrong = format!("PSYNC {} 1 FAILOVER", "0".repeat(40));
            replies.push(client.call(&wrong));
            Some(replies)
        })
        .collect();
    if let [own, right] = all.as_slice() {
        assert_eq!(own, right);
    }
}

/// `CLIENT PAUSE … ALL` ends after its duration, even if a failover still pauses writes.
#[test]
fn clients_may_pause_all_commands_during_a_failover() {
    for_each_backend(|backend| {
        let Some((server, replica, mut held)) = stuck_failover(backend) else { return };
        let mut client = server.connect();
        assert_eq!(server.connect().call("CLIENT PAUSE 100 ALL"), Reply::ok());
        assert_eq!(client.call("GET a"), Reply::bulk("1"));
        assert_eq!(state(&server), "waiting-for-sync");
        // A pause that `CLIENT UNPAUSE` has ended is not restored after the failover.
        assert_eq!(client.call("CLIENT PAUSE 3600000 WRITE"), Reply::ok());
        assert_eq!(client.call("CLIENT UNPAUSE"), Reply::ok());
        assert_eq!(client.call("FAILOVER ABORT"), Reply::ok());
        assert_eq!(held.receive(), Reply::Integer(1));
        replica.signal(rustix::process::Signal::CONT);
        // Pauses don't apply to connections of replicas, so the failover completes during them.
        wait_until_applied(&replica, &server);
        assert_eq!(client.call("CLIENT PAUSE 3600000 WRITE"), Reply::ok());
        assert_eq!(client.call(&format!("FAILOVER TO 127.0.0.1 {}", replica.port())), Reply::ok());
        assert_eq!(client.call("CLIENT PAUSE 3600000 ALL"), Reply::ok());
        eventually("the replica has taken over", || role(&replica) == "master");
    });
}

fn replica_of_nobody(replica: &Server) -> &Server {
    eventually("it is a primary", || replica.connect().call("REPLICAOF NO ONE") == Reply::ok());
    replica
}

/// Sends a write, and returns when the failover has paused it.
fn held_write(server: &Server) -> Client {
    let mut client = server.connect();
    let before: u64 = info(server, "clients", "blocked_clients").parse().expect("a number");
    client.send(&["INCR", "held"]);
    eventually("the write is paused", || {
        info(server, "clients", "blocked_clients").parse::<u64>().expect("a number") > before
    });
    client
}

/// Starts a failover to a stopped redis-server. Returns both servers, and a client whose write is
/// paused.
fn stuck_failover(backend: Backend) -> Option<(Server, Server, Client)> {
    let server = start(Kind::Pantala, backend).expect("it starts");
    let replica = start(Kind::Redis, backend)?;
    follow(&replica, &server);
    wait_until_applied(&replica, &server);
    replica.signal(rustix::process::Signal::STOP);
    let mut client = server.connect();
    client.call("SET a 1");
    assert_eq!(client.call("FAILOVER"), Reply::ok());
    let held = held_write(&server);
    Some((server, replica, held))
}

#[test]
fn an_aborted_failover_lets_writes_run() {
    for_each_backend(|backend| {
        let Some((server, replica, mut held)) = stuck_failover(backend) else { return };
        let mut client = server.connect();
        assert_eq!(state(&server), "waiting-for-sync");
        assert_eq!(client.call("GET a"), Reply::bulk("1"), "reads run");
        // `CLIENT UNPAUSE` doesn't end the pause that a failover has started.
        assert_eq!(client.call("CLIENT UNPAUSE"), Reply::ok());
        assert_eq!(info(&server, "clients", "blocked_clients"), "1");
        assert_eq!(client.call("FAILOVER ABORT"), Reply::ok());
        assert_eq!(held.receive(), Reply::Integer(1));
        assert_eq!(state(&server), "no-failover");
        // A timeout also aborts the failover.
        assert_eq!(client.call("FAILOVER TIMEOUT 50"), Reply::ok());
        assert_eq!(client.call("INCR held"), Reply::Integer(2));
        assert!(server.log().contains("Replica never caught up before timeout"), "{}", server.log());
        assert_eq!((state(&server).as_str(), role(&server).as_str()), ("no-failover", "master"));
        // With FORCE, the server requests the replica to take over once the timeout has passed.
        // After FAILOVER ABORT, the server is a primary again.
        let forced = format!("FAILOVER TO 127.0.0.1 {} FORCE TIMEOUT 50", replica.port());
        assert_eq!(client.call(&forced), Reply::ok());
        let mut held = held_write(&server);
        eventually("it is in progress", || state(&server) == "failover-in-progress" && role(&server) == "slave");
        assert_eq!(client.call("FAILOVER ABORT"), Reply::ok());
        assert_eq!(held.receive(), Reply::Integer(3));
        assert_eq!((state(&server).as_str(), role(&server).as_str()), ("no-failover", "master"));
        replica.signal(rustix::process::Signal::CONT);
    });
}

#[test]
fn a_forced_failover_takes_place_after_its_timeout() {
    for_each_backend(|backend| {
        for kind in [Kind::Redis, Kind::Pantala] {
            let server = start(Kind::Pantala, backend).expect("it starts");
            let Some(replica) = start(kind, backend) else { return };
            follow(&replica, &server);
            wait_until_applied(&replica, &server);
            replica.signal(rustix::process::Signal::STOP);
            let mut client = server.connect();
            client.call("SET a 1");
            let forced = format!("FAILOVER TO 127.0.0.1 {} FORCE TIMEOUT 50", replica.port());
            assert_eq!(client.call(&forced), Reply::ok());
            eventually("it is in progress", || state(&server) == "failover-in-progress");
            replica.signal(rustix::process::Signal::CONT);
            wait_for_takeover(&server, &replica);
            replica.connect().call("SET b 1");
            assert_equal(&server, &replica);
        }
    });
}

/// In a failover, the primary becomes a replica, connects to the target, and requests by `PSYNC`
/// that the target take over. If the handshake before this request fails, the target is still a
/// replica. The server then retries the handshake until it succeeds or the failover is aborted. As
/// in Redis, the timeout does not apply in this state.
#[test]
fn a_failover_retries_the_handshake() {
    for_all_backends(|backend| {
        for (from, to) in [(Kind::Redis, Kind::Redis), (Kind::Pantala, Kind::Redis), (Kind::Pantala, Kind::Pantala)] {
            let (Some(from), Some(to)) = (start(from, backend), start(to, backend)) else { return };
            follow(&to, &from);
            let mut client = from.connect();
            client.call("SET a 1");
            wait_until_applied(&to, &from);
            let failures = || from.log().matches("Unable to AUTH to MASTER").count();
            for ends in ["abort", "success"] {
                assert_eq!(client.call("CONFIG SET masteruser nobody masterauth wrong"), Reply::ok());
                let before = failures();
                // A redis-server acknowledges the stream once a second, so the timeout is longer
                // than a second.
                let words = format!("FAILOVER TO 127.0.0.1 {} TIMEOUT 2500", to.port());
                let since = Instant::now();
                eventually("the failover starts", || client.call(&words) == Reply::ok());
                let is_over = || ends != "abort" || since.elapsed() > Duration::from_secs(3);
                eventually("the handshake is retried", || failures() >= before + 2 && is_over());
                assert_eq!(state(&from), "failover-in-progress", "{}", from.log());
                assert_eq!(role(&to), "slave");
                if ends == "abort" {
                    assert_eq!(client.call("FAILOVER ABORT"), Reply::ok());
                    assert_eq!(client.call("SET a 2"), Reply::ok());
                    eventually("the replica is back", || info(&from, "replication", "slave0").contains("state=online"));
                    wait_until_applied(&to, &from);
                } else {
                    assert_eq!(client.command(&["CONFIG", "SET", "masterauth", ""]), Reply::ok());
                    wait_for_takeover(&from, &to);
                    assert_eq!(to.connect().call("GET a"), Reply::bulk("2"));
                }
            }
        }
    });
}

#[test]
fn a_rejected_failover_is_aborted() {
    for_each_backend(|backend| {
        for kind in [Kind::Redis, Kind::Pantala] {
            let mut server = start(Kind::Pantala, backend).expect("it starts");
            let Some(replica) = start(kind, backend) else { return };
            follow(&replica, &server);
            server.connect().call("SET a 1");
            replica.connect().call("ACL SETUSER default -psync");
            assert_eq!(server.connect().call("FAILOVER"), Reply::ok());
            eventually("it is aborted", || server.log().contains("Failover target rejected psync request"));
            eventually("it is a primary again", || state(&server) == "no-failover" && role(&server) == "master");
            assert_eq!(role(&replica), "slave");
            assert_eq!(server.connect().call("SET b 1"), Reply::ok());
            wait_until_applied(&replica, &server);
            // As in Redis, the stream continues under a new replication ID, and replicas do partial
            // syncs.
            assert_eq!(info(&server, "stats", "sync_full"), "1", "{}\n{}", server.log(), replica.log());
            assert_ne!(info(&server, "stats", "sync_partial_ok"), "0");
            assert_equal(&replica, &server);
            server.assert_sound();
        }
    });
}

/// A primary with two replicas dies. One replica is promoted, and the other follows it with a
/// partial sync.
#[test]
fn the_other_replica_of_a_dead_primary_continues() {
    for_each_backend(|backend| {
        for (primary, other) in [(Kind::Redis, Kind::Redis), (Kind::Pantala, Kind::Pantala)] {
            let (Some(primary), Some(other)) = (start(primary, backend), start(other, backend)) else { return };
            let next = start(Kind::Pantala, backend).expect("it starts");
            follow(&next, &primary);
            follow(&other, &primary);
            let mut client = primary.connect();
            client.call("SELECT 4");
            client.call("SET a 1");
            assert_eq!(client.call("WAIT 2 10000"), Reply::Integer(2));
            wait_until_applied(&next, &primary);
            wait_until_applied(&other, &primary);
            let id = info(&primary, "replication", "master_replid");
            let offset: u64 = info(&primary, "replication", "master_repl_offset").parse().expect("a number");
            primary.kill();
            eventually("the link is down", || info(&next, "replication", "master_link_status") == "down");
            let mut client = next.connect();
            assert_eq!(client.call("REPLICAOF NO ONE"), Reply::ok());
            assert_eq!(client.call("SET b 1"), Reply::ok(), "at once");
            assert_eq!(info(&next, "replication", "master_replid2"), id);
            assert_eq!(info(&next, "replication", "second_repl_offset"), (offset + 1).to_string());
            follow(&other, &next);
            assert_equal(&other, &next);
            assert_eq!(info(&next, "stats", "sync_full"), "0", "{}\n{}", next.log(), other.log());
            assert_eq!(info(&next, "stats", "sync_partial_ok"), "1");
            // The former primary's last write was to another database. The new primary's stream
            // must start with `SELECT`. Otherwise the other replica would apply the new primary's
            // write to that database, and not to database 0.
            let mut client = other.connect();
            assert_eq!(client.call("MGET a b"), Reply::Array(vec![Reply::Null, Reply::bulk("1")]));
            client.call("SELECT 4");
            assert_eq!(client.call("GET a"), Reply::bulk("1"));
        }
    });
}

/// Replicas that are not the target of a failover still follow the former primary. A second
/// failover makes that server the primary again. No server needs a further full sync.
#[test]
fn other_replicas_stay_with_the_former_primary() {
    for_each_backend(|backend| {
        for other in [Kind::Redis, Kind::Pantala] {
            let (first, second) = (start(Kind::Pantala, backend), start(Kind::Pantala, backend));
            let (mut first, second) = (first.expect("it starts"), second.expect("it starts"));
            let Some(other) = start(other, backend) else { return };
            follow(&second, &first);
            follow(&other, &first);
            let to_second = format!("FAILOVER TO 127.0.0.1 {}", second.port());
            let mut client = first.connect();
            client.call("SET a 1");
            eventually("the failover starts", || client.call(&to_second) == Reply::ok());
            wait_for_takeover(&first, &second);
            assert_eq!(second.connect().call("SET b 1"), Reply::ok());
            eventually("all have received it", || other.connect().call("MGET a b").elements()[1] == Reply::bulk("1"));
            assert_eq!(info(&first, "stats", "sync_full"), "2", "{}", first.log());
            assert_eq!(second.connect().call("FAILOVER"), Reply::ok());
            wait_for_takeover(&second, &first);
            assert_eq!(client.call("SET c 1"), Reply::ok());
            assert_equal(&second, &first);
            eventually("all have received it", || other.connect().call("GET c") == Reply::bulk("1"));
            assert_eq!(other.connect().call("DEBUG DIGEST"), first.connect().call("DEBUG DIGEST"));
            assert_eq!(info(&first, "stats", "sync_full"), "2", "no more full syncs: {}", first.log());
            assert_eq!(info(&second, "stats", "sync_full"), "0", "{}", second.log());
            first.assert_sound();
        }
    });
}

/// A script runs for longer than the timeout of a forced failover. The script's writes after the
/// timeout are not in the new primary's history, so the server that ran the script must do a full
/// sync.
#[test]
fn a_forced_failover_during_a_script_leaves_equal_datasets() {
    for_each_backend(|backend| {
        let (first, second) = (start(Kind::Pantala, backend), start(Kind::Pantala, backend));
        let (first, second) = (first.expect("it starts"), second.expect("it starts"));
        follow(&second, &first);
        let mut client = first.connect();
        client.call("SET a 1");
        let mut running = first.connect();
        let script = "redis.call('SET', 'running', 1) local t = redis.call('TIME') local since = t[1] * 1000 + t[2] / 1000 \
                      repeat t = redis.call('TIME') until t[1] * 1000 + t[2] / 1000 > since + 700 \
                      redis.call('SET', 'late', 1)";
        running.send(&["EVAL", script, "2", "running", "late"]);
        let forced = format!("FAILOVER TO 127.0.0.1 {} FORCE TIMEOUT 100", second.port());
        eventually("the failover starts", || client.call(&forced) == Reply::ok());
        wait_for_takeover(&first, &second);
        assert!(is_error(&running.receive(), "READONLY"), "a write after the takeover");
        assert_equal(&first, &second);
    });
}

/// If the thread that a promotion needs can't be started, writes wait until the thread runs. The
/// stream then contains these writes.
#[test]
fn a_promotion_waits_for_its_thread() {
    for_each_backend(|backend| {
        let (Some(primary), Some(replica)) = (start(Kind::Pantala, backend), start(Kind::Pantala, backend)) else {
            return;
        };
        follow(&replica, &primary);
        let mut client = replica.connect();
        if client.call("DEBUG FAULT no-thread 1000") != Reply::ok() {
            return eprintln!("SKIPPED: no-thread: this build has no faults");
        }
        assert_eq!(client.call("REPLICAOF NO ONE"), Reply::ok());
        let mut writer = replica.connect();
        writer.send(&["SET", "key", "value"]);
        assert!(!writer.has_reply_within(Duration::from_millis(500)), "the stream can't record it");
        assert!(replica.log().contains("Can't start a thread"), "{}", replica.log());
        assert_eq!(client.call("DEBUG FAULT no-thread 0"), Reply::ok());
        assert_eq!(writer.receive(), Reply::ok());
        follow(&primary, &replica);
        assert_equal(&primary, &replica);
        assert_eq!(info(&replica, "stats", "sync_full"), "0", "the history continues");
    });
}
