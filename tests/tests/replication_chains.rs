//! Replicas of replicas, and changes of topology. A Pantala replica forwards the bytes of its
//! primary, keeps a backlog of them, and continues the history when it is promoted. Replicas that
//! lag behind therefore continue without a full sync, no matter to which server they attach. The
//! tests also use redis-server in every role.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use pantala_tests::following::{assert_same, follow, info, wait_for_link, wait_until_applied};
use pantala_tests::waiting::eventually;
use pantala_tests::{Backend, Client, Random, Reply, Server, for_each_backend};
use rustix::process::Signal;

/// Arguments of all servers. With them, full syncs start without delay, and no `PING` advances the
/// offsets.
const ARGS: [&str; 4] = ["--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "3600"];

/// Makes a server follow a port on which no process listens.
const NOWHERE: &str = "REPLICAOF 127.0.0.1 1";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Pantala,
    Redis,
}

const KINDS: [Kind; 2] = [Kind::Redis, Kind::Pantala];

fn start(kind: Kind, backend: Backend) -> Option<Server> {
    match kind {
        Kind::Pantala => Some(Server::pantala(backend, &[&ARGS[..], &["--workers", "2"]].concat())),
        Kind::Redis => Server::redis(&ARGS),
    }
}

fn counter(server: &Server, field: &str) -> u64 {
    info(server, "stats", field).parse().expect("a number")
}

fn offset(server: &Server) -> u64 {
    info(server, "replication", "master_repl_offset").parse().expect("a number")
}

fn set(client: &mut Client, key: &str, value: &str) {
    assert_eq!(client.command(&["SET", key, value]), Reply::ok());
}

/// Stops the writers of a scenario when it is dropped, so that they also stop if the scenario
/// fails.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Writes until `is_over` is set: counters, lists, strings, transactions and scripts, in several
/// databases. If a command is lost or applied twice, the data differ.
fn write(server: &Server, number: usize, is_over: &AtomicBool) {
    let (mut client, mut round) = (server.connect(), 0);
    while !is_over.load(Ordering::Relaxed) {
        round += 1;
        client.call(&format!("SELECT {}", round % 3));
        client.call("INCR shared");
        client.call("MULTI");
        client.call(&format!("RPUSH list:{number} {round}"));
        client.call("INCR shared");
        client.call("EXEC");
        client.command(&["EVAL", "redis.call('incr', KEYS[1]) redis.call('incr', KEYS[2])", "2", "x", "y"]);
        client.command(&["APPEND", &format!("text:{}", round % 9), &"t".repeat(round % 200)]);
    }
}

/// Runs a scenario while three clients write.
fn under_load(server: &Server, scene: impl FnOnce()) {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let is_over = &is_over;
        let _end = End(is_over);
        (0..3).for_each(|number| _ = scope.spawn(move || write(server, number, is_over)));
        scene();
    });
}

/// Waits until all servers of a tree have the whole stream of the root, under the same replication
/// ID.
#[track_caller]
fn assert_one_history(root: &Server, others: &[&Server]) {
    // A write is in the stream only a moment after its reply. `WAIT` waits only for the part of the
    // stream that existed at the previous command of its connection. The client therefore sends
    // `PING` before `WAIT`.
    let mut client = root.connect();
    client.call("PING");
    assert!(matches!(client.call("WAIT 1 10000"), Reply::Integer(1..)), "{}", root.log());
    let id = info(root, "replication", "master_replid");
    for other in others {
        eventually("it has the whole stream", || {
            info(other, "replication", "master_link_status") == "up"
                && offset(other) == offset(root)
                && info(other, "replication", "slave_repl_offset") == offset(root).to_string()
        });
        assert_eq!(info(other, "replication", "master_replid"), id, "{}", other.log());
        assert_eq!(other.connect().call("DEBUG DIGEST"), root.connect().call("DEBUG DIGEST"), "{}", other.log());
    }
}

/// When the primary dies, one replica has received the whole stream, and another replica only a
/// part of it. The replica with the whole stream is promoted, and sends the missing part from its
/// backlog to the other one.
#[test]
fn a_replica_that_is_behind_continues_with_the_promoted_one() {
    for_each_backend(|backend| {
        for (primary, behind) in KINDS.into_iter().flat_map(|primary| KINDS.map(|behind| (primary, behind))) {
            let (Some(first), Some(other)) = (start(primary, backend), start(behind, backend)) else { return };
            let next = start(Kind::Pantala, backend).expect("it starts");
            follow(&next, &first);
            follow(&other, &first);
            let mut client = first.connect();
            client.call("SELECT 4");
            set(&mut client, "before", "1");
            wait_until_applied(&other, &first);
            assert_eq!(other.connect().call(NOWHERE), Reply::ok());
            eventually("it has left", || info(&first, "replication", "connected_slaves") == "1");
            let had = offset(&other);
            for number in 0..500 {
                set(&mut client, &format!("key:{number}"), &"v".repeat(number));
            }
            client.call("MULTI");
            client.call("INCR n");
            client.call("INCR n");
            client.call("EXEC");
            assert_eq!(client.call("WAIT 1 10000"), Reply::Integer(1));
            wait_until_applied(&next, &first);
            let (id, end) = (info(&first, "replication", "master_replid"), offset(&first));
            assert!(had < end, "{primary:?} {behind:?}");
            first.kill();
            let mut client = next.connect();
            assert_eq!(client.call("REPLICAOF NO ONE"), Reply::ok());
            assert_eq!(info(&next, "replication", "master_replid2"), id);
            assert_eq!(info(&next, "replication", "second_repl_offset"), (end + 1).to_string());
            client.call("SELECT 7");
            set(&mut client, "after", "1");
            follow(&other, &next);
            assert_same(&other, &next);
            assert_eq!(counter(&next, "sync_full"), 0, "{primary:?} {behind:?}: {}\n{}", next.log(), other.log());
            assert_eq!(counter(&next, "sync_partial_ok"), 1);
            let mut client = other.connect();
            client.call("SELECT 4");
            assert_eq!(client.call("MGET before key:499 n").elements()[2], Reply::bulk("2"));
            assert_one_history(&next, &[&other]);
            assert_eq!(info(&other, "replication", "master_replid2"), id);
        }
    });
}

/// All servers of a chain have the same stream: the same ID, offsets and bytes. When the head of
/// the chain dies, the other servers continue without a full sync.
#[test]
fn a_chain_continues_when_its_head_dies() {
    for_each_backend(|backend| {
        for head in KINDS {
            let (Some(a), Some(c)) = (start(head, backend), start(Kind::Redis, backend)) else { return };
            let (b, d) = (start(Kind::Pantala, backend), start(Kind::Pantala, backend));
            let (mut b, mut d) = (b.expect("it starts"), d.expect("it starts"));
            set(&mut a.connect(), "before", "1");
            follow(&b, &a);
            follow(&c, &b);
            follow(&d, &c);
            under_load(&a, || std::thread::sleep(Duration::from_millis(300)));
            assert_one_history(&a, &[&b, &c, &d]);
            let id = info(&a, "replication", "master_replid");
            a.kill();
            eventually("the link is down", || info(&b, "replication", "master_link_status") == "down");
            assert_eq!(b.connect().call("REPLICAOF NO ONE"), Reply::ok());
            assert_eq!(b.connect().call("SELECT 9"), Reply::ok());
            under_load(&b, || std::thread::sleep(Duration::from_millis(300)));
            assert_one_history(&b, &[&c, &d]);
            assert_eq!((counter(&b, "sync_full"), counter(&b, "sync_partial_ok")), (1, 1), "{}", b.log());
            assert_eq!((counter(&c, "sync_full"), counter(&c, "sync_partial_ok")), (1, 1), "{}", d.log());
            for server in [&b, &c, &d] {
                assert_eq!(info(server, "replication", "master_replid2"), id, "{}", server.log());
            }
            // The new head dies as well, and the last server of the chain is promoted.
            b.assert_sound();
            drop(b);
            assert_eq!(d.connect().call("REPLICAOF NO ONE"), Reply::ok());
            follow(&c, &d);
            set(&mut d.connect(), "after", "1");
            assert_one_history(&d, &[&c]);
            assert_eq!((counter(&d, "sync_full"), counter(&d, "sync_partial_ok")), (0, 1), "{}", d.log());
            d.assert_sound();
        }
    });
}

/// Sends `PSYNC`. Returns the first line of the reply and, if that is `CONTINUE`, the next `bytes`
/// bytes of the stream.
fn asked(server: &Server, id: &str, offset: u64, bytes: u64) -> (String, Vec<u8>) {
    let mut sender = TcpStream::connect(("127.0.0.1", server.port())).expect("it is accepted");
    let mut stream = BufReader::new(sender.try_clone().expect("it is cloned"));
    let mut line = String::new();
    for command in ["REPLCONF capa psync2".to_owned(), format!("PSYNC {id} {offset}")] {
        line.clear();
        sender.write_all(format!("{command}\r\n").as_bytes()).expect("it is sent");
        stream.read_line(&mut line).expect("a line");
    }
    let mut got = vec![0; if line.starts_with("+CONTINUE") { bytes as usize } else { 0 }];
    stream.read_exact(&mut got).expect("the stream");
    (line.trim_start_matches('+').trim_end().to_owned(), got)
}

/// A replica sends the bytes that its primary has sent, even after its own promotion. It sends none
/// of the effects that it recorded before it became a replica.
#[test]
fn a_replica_passes_on_the_bytes_of_its_primary() {
    for_each_backend(|backend| {
        let Some(primary) = start(Kind::Redis, backend) else { return };
        let args = [&ARGS[..], &["--workers", "2", "--appendonly", "yes"]].concat();
        let next = Server::pantala(backend, &args);
        // At first the server is a primary, so it has a backlog of its own effects.
        assert!(asked(&next, "?", 0, 0).0.starts_with("FULLRESYNC"));
        for number in 0..200 {
            set(&mut next.connect(), &format!("own:{number}"), &"x".repeat(50));
        }
        eventually("it has no replica", || info(&next, "replication", "connected_slaves") == "0");
        follow(&next, &primary);
        let mut client = primary.connect();
        let start = offset(&primary);
        for words in
            ["SET a 1 EX 1000", "SELECT 3", "SPOP s", "SADD s 1 2 3", "SPOP s", "MULTI", "INCR n", "INCR n", "EXEC"]
        {
            client.call(words);
        }
        for number in 0..300 {
            set(&mut client, &format!("key:{number}"), &"y".repeat(number));
        }
        wait_until_applied(&next, &primary);
        let (id, end) = (info(&primary, "replication", "master_replid"), offset(&primary));
        let (reply, right) = asked(&primary, &id, start + 1, end - start);
        assert!(reply.starts_with("CONTINUE"), "{reply}");
        let is_same = |server: &Server| {
            for behind in [end - start, (end - start) / 2, 13, 1] {
                let (reply, got) = asked(server, &id, end + 1 - behind, behind);
                assert!(reply.starts_with("CONTINUE"), "{behind}: {reply}\n{}", server.log());
                assert_eq!(got, right[right.len() - behind as usize..], "{behind}");
            }
        };
        is_same(&next);
        assert_eq!(next.connect().call("REPLICAOF NO ONE"), Reply::ok());
        set(&mut next.connect(), "after", "1");
        is_same(&next);
        assert!(asked(&next, &id, end + 2, 0).0.starts_with("FULLRESYNC"), "another history follows there");
        assert!(asked(&next, &id, start, 0).0.starts_with("FULLRESYNC"), "it never had this byte");
    });
}

/// A replica sends a snapshot while it applies a stream under load. The snapshot contains exactly
/// the effects before the snapshot's offset in the stream.
#[test]
fn a_replica_under_load_has_replicas_of_its_own() {
    for_each_backend(|backend| {
        for kind in KINDS {
            let Some(primary) = start(Kind::Redis, backend) else { return };
            let mut middle = start(Kind::Pantala, backend).expect("it starts");
            follow(&middle, &primary);
            let below: Vec<Server> = std::iter::repeat_with(|| start(kind, backend)).take(3).flatten().collect();
            under_load(&primary, || {
                for below in &below {
                    follow(below, &middle);
                    std::thread::sleep(Duration::from_millis(50));
                }
            });
            let all: Vec<&Server> = std::iter::once(&middle).chain(&below).collect();
            assert_one_history(&primary, &all);
            assert_eq!(counter(&middle, "sync_full"), 3);
            assert_eq!(counter(&primary, "sync_full"), 1);
            middle.assert_sound();
        }
    });
}

/// Five servers (Pantala and redis-server) form random trees, whose root changes. Some servers are
/// disconnected while the root writes. No server needs a second full sync.
#[test]
fn no_change_of_topology_needs_a_full_sync() {
    const ROUNDS: usize = 6;
    let test = "no_change_of_topology_needs_a_full_sync";
    let announced = Random::seed(test);
    for_each_backend(|backend| {
        let seed = Random::seed_of(announced, &format!("{test} on {}", backend.name()));
        let mut random = Random::from_seed(seed);
        let kinds = [Kind::Pantala, Kind::Redis, Kind::Pantala, Kind::Redis, Kind::Pantala];
        let Some(servers) = kinds.map(|kind| start(kind, backend)).into_iter().collect::<Option<Vec<_>>>() else {
            return;
        };
        let mut root = 0;
        for round in 0..ROUNDS {
            let mut order: Vec<usize> = (0..servers.len()).filter(|server| *server != root).collect();
            random.shuffle(&mut order);
            if round > 0 {
                let next = order[0];
                assert_eq!(servers[next].connect().call("REPLICAOF NO ONE"), Reply::ok());
                order[0] = root;
                root = next;
                random.shuffle(&mut order);
            }
            let mut tree = vec![root];
            for server in order {
                let above = *random.pick(&tree);
                let words = format!("REPLICAOF 127.0.0.1 {}", servers[above].port());
                assert!(servers[server].connect().call(&words).text().starts_with("OK"));
                // As in Redis, a server that already knows the root's replication ID can't do a
                // partial sync with a server that doesn't know the ID yet. The test therefore waits
                // for the link.
                wait_for_link(&servers[server]);
                let id = |server: usize| info(&servers[server], "replication", "master_replid");
                eventually("it knows the ID", || id(server) == id(root));
                tree.push(server);
            }
            let last = *tree.last().expect("there are five");
            under_load(&servers[root], || {
                tree[1..].iter().for_each(|server| wait_for_link(&servers[*server]));
                if round > 0 {
                    servers[last].connect().call(NOWHERE);
                    std::thread::sleep(Duration::from_millis(100));
                    servers[last].connect().call(&format!("REPLICAOF 127.0.0.1 {}", servers[root].port()));
                }
                std::thread::sleep(Duration::from_millis(100));
            });
            let others: Vec<&Server> = tree[1..].iter().map(|server| &servers[*server]).collect();
            assert_one_history(&servers[root], &others);
            let full: u64 = servers.iter().map(|server| counter(server, "sync_full")).sum();
            let logs = || servers.iter().map(Server::log).collect::<Vec<_>>().join("\n=====\n");
            assert_eq!(full, servers.len() as u64 - 1, "PANTALA_SEED={seed}, round {round}\n{}", logs());
        }
    });
}

/// A replica is promoted, and then follows its former primary again. It applies the next writes to
/// the database that the primary's stream has selected, even if `REPLICAOF` arrives before the
/// promotion has completed.
#[test]
fn a_promotion_that_is_undone_continues_the_stream() {
    for_each_backend(|backend| {
        for kind in KINDS {
            let Some(primary) = start(kind, backend) else { return };
            let mut replica = start(Kind::Pantala, backend).expect("it starts");
            follow(&replica, &primary);
            let mut client = primary.connect();
            client.call("SELECT 4");
            let back = format!("REPLICAOF 127.0.0.1 {}", primary.port());
            for round in 0..10 {
                set(&mut client, "a", &format!("{round}"));
                wait_until_applied(&replica, &primary);
                let mut other = replica.connect();
                assert_eq!(other.call("REPLICAOF NO ONE"), Reply::ok());
                if round % 2 == 0 {
                    eventually("it may write", || other.call("DEL none") == Reply::Integer(0));
                }
                assert_eq!(other.call(&back), Reply::ok());
                set(&mut client, "b", &format!("{round}"));
                wait_for_link(&replica);
                assert_one_history(&primary, &[&replica]);
                assert_eq!(counter(&primary, "sync_full"), 1, "round {round}: {}\n{}", primary.log(), replica.log());
            }
            replica.assert_sound();
        }
    });
}

/// If a `PING` is due when a replica is promoted, it must not change the offset at which the former
/// history ends.
#[test]
fn a_promotion_after_the_ping_period_continues_the_stream() {
    for_each_backend(|backend| {
        let args = ["--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1"];
        // The primary's `PING`s are rare, so that the offsets don't change.
        let Some(primary) = start(Kind::Redis, backend) else { return };
        let replica = Server::pantala(backend, &[&args[..], &["--workers", "2"]].concat());
        let other = start(Kind::Pantala, backend).expect("it starts");
        follow(&replica, &primary);
        follow(&other, &replica);
        set(&mut primary.connect(), "a", "1");
        wait_until_applied(&replica, &primary);
        let id = info(&primary, "replication", "master_replid");
        std::thread::sleep(Duration::from_secs(2));
        assert_eq!(replica.connect().call("REPLICAOF NO ONE"), Reply::ok());
        eventually("the history continues", || info(&replica, "replication", "master_replid") != id);
        assert_eq!(info(&replica, "replication", "master_replid2"), id, "{}", replica.log());
        set(&mut replica.connect(), "b", "1");
        wait_for_link(&other);
        assert_same(&other, &replica);
        assert_eq!(counter(&replica, "sync_full"), 1, "{}", replica.log());
    });
}

/// As in Redis, writes of clients on a writable replica are not sent to other servers.
#[test]
fn writes_on_a_replica_are_not_passed_on() {
    for_each_backend(|backend| {
        for kind in KINDS {
            let (Some(primary), Some(below)) = (start(Kind::Redis, backend), start(Kind::Redis, backend)) else {
                return;
            };
            let Some(middle) = start(kind, backend) else { return };
            middle.connect().call("CONFIG SET replica-read-only no");
            follow(&middle, &primary);
            follow(&below, &middle);
            set(&mut middle.connect(), "own", "1");
            set(&mut primary.connect(), "a", "1");
            assert_eq!(primary.connect().call("INCR own"), Reply::Integer(1));
            wait_until_applied(&middle, &primary);
            wait_until_applied(&below, &primary);
            assert_eq!(middle.connect().call("MGET own a"), Reply::Array(vec![Reply::bulk("2"), Reply::bulk("1")]));
            assert_eq!(below.connect().call("MGET own a"), Reply::Array(vec![Reply::bulk("1"), Reply::bulk("1")]));
            assert_eq!(offset(&below), offset(&primary));
        }
    });
}

/// A replica that is stopped and restarted continues where it stopped.
#[test]
fn a_restarted_replica_continues_its_stream() {
    for_each_backend(|backend| {
        for kind in KINDS {
            let args = [&ARGS[..], &["--repl-backlog-size", "100mb"]].concat();
            let primary = match kind {
                Kind::Redis => Server::redis(&args),
                Kind::Pantala => Some(Server::pantala(backend, &args)),
            };
            let Some(primary) = primary else { return };
            let (port, folder) = (pantala_tests::server::free_port(), tempfile::tempdir().expect("a folder"));
            let path = folder.path().to_str().expect("a UTF-8 path");
            let of = format!("127.0.0.1 {}", primary.port());
            let options = [&ARGS[..], &["--dir", path, "--workers", "2", "--enable-debug-command", "yes"]].concat();
            let options = [&options[..], &["--save", "3600 1", "--replicaof", &of]].concat();
            let mut replica = Server::pantala_at(port, backend, &options).expect("the port is free");
            wait_for_link(&replica);
            under_load(&primary, || {
                std::thread::sleep(Duration::from_millis(200));
                replica.signal(Signal::TERM);
                assert!(replica.wait_exit(Duration::from_secs(20)).success());
            });
            drop(replica);
            let mut client = primary.connect();
            client.call("SELECT 6");
            set(&mut client, "later", "1");
            let replica = Server::pantala_at(port, backend, &options).expect("the port is free again");
            wait_for_link(&replica);
            assert_one_history(&primary, &[&replica]);
            assert_eq!(counter(&primary, "sync_full"), 1, "{}\n{}", primary.log(), replica.log());
            assert_eq!(counter(&primary, "sync_partial_ok"), 1);
            // After a crash, the replica continues from the offset in its last snapshot, which a
            // save point has started.
            assert_eq!(replica.connect().command(&["CONFIG", "SET", "save", "1 1"]), Reply::ok());
            under_load(&primary, || {
                eventually("it is being saved", || info(&replica, "persistence", "rdb_saves") != "0");
                eventually("it is saved", || info(&replica, "persistence", "rdb_bgsave_in_progress") == "0");
            });
            replica.kill();
            let replica = Server::pantala_at(port, backend, &options).expect("the port is free again");
            wait_for_link(&replica);
            assert_one_history(&primary, &[&replica]);
            assert_eq!(counter(&primary, "sync_full"), 1, "{}\n{}", primary.log(), replica.log());
        }
    });
}
