//! Full syncs between two Pantala servers whose snapshot travels over several connections
//! (`repl-flows`). `PANTALA_REPL_FLOWS=4` makes all other tests use flows, too, and `4:lz4`
//! compressed flows.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use pantala_tests::client::encode;
use pantala_tests::following::{PRIMARY, assert_same, follow, info, wait_for_link, wait_until_applied};
use pantala_tests::staged::{EMPTY_RDB, ID};
use pantala_tests::waiting::eventually;
use pantala_tests::writers::write_until;
use pantala_tests::{Backend, Client, Random, Reply, Server, binary, for_each_backend};

/// Arguments of a primary that permits four flows.
const FLOWING_PRIMARY: [&str; 6] = ["--workers", "2", "--repl-diskless-sync-delay", "0", "--repl-flows", "4"];

/// Arguments of a replica that requests three flows.
const REPLICA: [&str; 6] = ["--workers", "2", "--shards", "12", "--repl-flows", "3"];

/// Number of clients that write at the same time.
const WRITERS: usize = 3;

/// Maximum wait for bytes of the server.
const READ_MAX: Duration = Duration::from_secs(20);

/// A library with the function `f`.
const LIBRARY: &str =
    "#!lua name=lib\nredis.register_function{function_name='f', callback=function() return 7 end, flags={'no-writes'}}";

/// The token of scripted primaries.
const TOKEN: &str = "abcdefghijklmnopqrstuvwxyzabcdefghijklmn";

/// Runs a scenario while clients write to the server.
fn under_load(server: &Server, seed: u64, scene: impl FnOnce()) {
    let (is_over, rests) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let writers = scope.spawn(|| write_until(server, seed, WRITERS, &is_over, &rests));
        scene();
        is_over.store(true, Ordering::Relaxed);
        writers.join().expect("the writers don't panic");
    });
}

/// Starts a primary with keys of all sizes and a function library.
fn primary_with_keys(backend: Backend, more: &[&str]) -> Server {
    let primary = Server::pantala(backend, &[&FLOWING_PRIMARY[..], more].concat());
    let mut client = primary.connect();
    client.call("DEBUG POPULATE 20000 before 100");
    client.call("SELECT 3");
    client.call("DEBUG POPULATE 3000 other 10");
    client.command(&["SET", "large", &"x".repeat(3_000_000)]);
    let script = "for i = 1, 50000 do redis.call('HSET', 'hash', i, i) end";
    assert!(!client.command(&["EVAL", script, "0"]).is_error());
    assert_eq!(client.command(&["FUNCTION", "LOAD", LIBRARY]).text(), "lib");
    primary
}

/// Starts a replica that has the key `old`, so that it doesn't load a snapshot while it arrives.
fn replica_with_key(backend: Backend, more: &[&str]) -> Server {
    let replica = Server::pantala(backend, &[&REPLICA[..], more].concat());
    assert_eq!(replica.connect().call("SET old value"), Reply::ok());
    replica
}

/// Returns the number of connections of replicas, including those of flows.
fn replica_connections(server: &Server) -> usize {
    server.connect().call("CLIENT LIST TYPE replica").text().lines().count()
}

/// Returns the names of the temporary files in a server's folder.
fn temporary_files(server: &Server) -> Vec<String> {
    let files = std::fs::read_dir(server.folder()).expect("its folder").flatten();
    let names = files.map(|file| file.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.contains("temp")).collect()
}

/// The snapshot's flows and the stream after them contain each change once. Later, the replica
/// continues the stream.
#[test]
fn a_snapshot_in_flows_under_load_is_exact() {
    let seed = Random::seed("a_snapshot_in_flows_under_load_is_exact");
    for_each_backend(|backend| {
        for (load, compression) in [("disabled", "no"), ("swapdb", "lz4")] {
            let more = ["--repl-backlog-size", "64mb", "--repl-flows-compression", compression];
            let primary = primary_with_keys(backend, &more);
            let mut replica = replica_with_key(backend, &["--repl-diskless-load", load]);
            under_load(&primary, seed, || follow(&replica, &primary));
            assert_same(&replica, &primary);
            let how = if compression == "lz4" { "3 compressed flows" } else { "3 flows" };
            assert!(primary.log().contains(&format!("replicas sockets, in {how}")), "{}", primary.log());
            assert!(primary.log().contains("succeeded (3 flows)"), "{}", primary.log());
            assert_eq!(info(&primary, "replication", "repl_flows_sent"), "3");
            assert_eq!(info(&replica, "replication", "repl_flows_received"), "3");
            assert_eq!(info(&primary, "replication", "connected_slaves"), "1");
            assert_eq!(info(&primary, "stats", "sync_full"), "1");
            assert_eq!(replica_connections(&primary), 1, "the flows' connections are closed");
            assert_eq!(replica.connect().call("FCALL_RO f 0"), Reply::Integer(7));
            assert_eq!(replica.connect().call("GET old"), Reply::Null);
            assert_eq!(temporary_files(&replica), Vec::<String>::new());
            assert_eq!(info(&replica, "memory", "mem_replica_snapshot"), "0");
            under_load(&primary, seed + 1, || {
                assert_eq!(primary.connect().call("CLIENT KILL TYPE replica"), Reply::Integer(1));
                eventually("it continues", || info(&primary, "stats", "sync_partial_ok") == "1");
            });
            assert_same(&replica, &primary);
            assert_eq!(info(&primary, "stats", "sync_full"), "1");
            replica.assert_sound();
        }
    });
}

/// A replica loads keys that have expired since the snapshot, because the primary deletes them
/// later.
#[test]
fn expired_keys_of_all_flows_are_loaded() {
    let primary = Server::pantala(Backend::all()[0], &FLOWING_PRIMARY);
    let mut client = primary.connect();
    client.call("DEBUG SET-ACTIVE-EXPIRE 0");
    let script = "for i = 1, 3000 do redis.call('SET', 'k' .. i, i, 'PX', 1500) end";
    assert!(!client.command(&["EVAL", script, "0"]).is_error());
    let replica = replica_with_key(Backend::all()[0], &[]);
    // The load starts after the keys have expired, and the primary has not deleted any.
    assert_eq!(client.call("CONFIG SET rdb-key-save-delay 700"), Reply::ok());
    follow(&replica, &primary);
    assert_eq!(info(&replica, "replication", "repl_flows_received"), "3");
    assert_eq!(replica.connect().call("DBSIZE"), Reply::Integer(3000));
    assert_eq!(replica.connect().call("GET k1"), Reply::Null);
}

/// redis-server ignores the capability. Replicas with flows and without flows get snapshots of
/// their own, one after the other.
#[test]
fn replicas_with_and_without_flows_follow_together() {
    let seed = Random::seed("replicas_with_and_without_flows_follow_together");
    for_each_backend(|backend| {
        let primary = primary_with_keys(backend, &["--repl-backlog-size", "64mb"]);
        let (Some(first), Some(second)) = (Server::redis(&[]), Server::redis(&[])) else { return };
        let pantalas = [
            replica_with_key(backend, &[]),
            Server::pantala(backend, &["--workers", "2", "--repl-flows", "1"]),
            replica_with_key(backend, &["--repl-flows", "16"]),
            replica_with_key(backend, &[]),
        ];
        let replicas = [&first, &pantalas[0], &pantalas[1], &pantalas[2], &second, &pantalas[3]];
        under_load(&primary, seed, || {
            for replica in replicas {
                let reply = replica.connect().call(&format!("REPLICAOF 127.0.0.1 {}", primary.port()));
                assert_eq!(reply, Reply::ok());
            }
            replicas.iter().for_each(|replica| wait_for_link(replica));
        });
        for replica in &pantalas {
            assert_same(replica, &primary);
        }
        for replica in [&first, &second] {
            wait_until_applied(replica, &primary);
            let digest = |server: &Server| server.connect().call("DEBUG DIGEST").text();
            assert_eq!(digest(replica), digest(&primary));
        }
        let received = pantalas.each_ref().map(|replica| info(replica, "replication", "repl_flows_received"));
        assert_eq!(received, ["3", "", "4", "3"], "{}", primary.log());
        assert_eq!(info(&primary, "stats", "sync_full"), "6");
    });
}

/// A redis-server ignores the capability as a primary, too.
#[test]
fn redis_ignores_the_capability() {
    let Some(primary) = Server::redis(&PRIMARY) else { return };
    primary.connect().call("DEBUG POPULATE 1000");
    let replica = replica_with_key(Backend::all()[0], &[]);
    follow(&replica, &primary);
    assert_same(&replica, &primary);
    assert_eq!(info(&replica, "replication", "repl_flows_received"), "1");
    assert!(!replica.log().contains("does not understand REPLCONF capa"), "{}", replica.log());
}

/// A snapshot that is written to a file, or loaded while it arrives, has one flow.
#[test]
fn files_and_direct_loads_have_one_flow() {
    let backend = Backend::all()[0];
    let primary = primary_with_keys(backend, &[]);
    let replica = Server::pantala(backend, &[&REPLICA[..], &["--repl-diskless-load", "on-empty-db"]].concat());
    follow(&replica, &primary);
    assert_same(&replica, &primary);
    assert!(replica.log().contains("to parser") && !primary.log().contains("flows"), "{}", primary.log());
    assert_eq!(primary.connect().call("CONFIG SET repl-diskless-sync no"), Reply::ok());
    let replica = replica_with_key(backend, &[]);
    follow(&replica, &primary);
    assert_same(&replica, &primary);
    assert!(!primary.log().contains("flows"), "{}", primary.log());
    // The limit applies from the next full sync on.
    assert_eq!(primary.connect().call("CONFIG SET repl-diskless-sync yes repl-flows 2"), Reply::ok());
    let replica = replica_with_key(backend, &[]);
    follow(&replica, &primary);
    assert_same(&replica, &primary);
    assert!(primary.log().contains("succeeded (2 flows)"), "{}", primary.log());
}

/// A connection of a replica that the test plays.
struct ByHand(TcpStream);

impl ByHand {
    fn connect(server: &Server) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", server.port())).expect("the server listens");
        stream.set_read_timeout(Some(READ_MAX)).expect("a socket takes a timeout");
        ByHand(stream)
    }

    fn send(&mut self, words: &str) {
        self.0.write_all(&encode(&words.split(' ').collect::<Vec<_>>())).expect("the server reads");
    }

    /// Reads a line. Skips empty lines, which keep a link alive.
    fn line(&mut self) -> String {
        let mut line = Vec::new();
        while !line.ends_with(b"\r\n") {
            let mut byte = [0];
            self.0.read_exact(&mut byte).expect("a line");
            if byte[0] != b'\n' || !line.is_empty() {
                line.push(byte[0]);
            }
        }
        String::from_utf8_lossy(&line).trim_end().to_owned()
    }

    fn call(&mut self, words: &str) -> String {
        self.send(words);
        self.line()
    }

    /// Reads a snapshot up to its mark.
    fn until_mark(&mut self, mark: &str) -> Vec<u8> {
        let mut bytes = Vec::new();
        while !bytes.ends_with(mark.as_bytes()) {
            let mut part = vec![0; 64 * 1024];
            let len = self.0.read(&mut part).expect("bytes of the snapshot");
            assert!(len > 0, "the snapshot ends early");
            bytes.extend_from_slice(&part[..len]);
        }
        bytes.truncate(bytes.len() - mark.len());
        bytes
    }

    /// Returns whether the server closes the connection.
    fn is_closed(&mut self) -> bool {
        let mut part = vec![0; 64 * 1024];
        loop {
            match self.0.read(&mut part) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(error) => return error.kind() == std::io::ErrorKind::ConnectionReset,
            }
        }
    }

    /// Requests a full sync in this number of flows. Returns the connection and the token.
    fn full_sync(server: &Server, flows: u32) -> (ByHand, String) {
        let mut link = ByHand::connect(server);
        let capabilities = format!("REPLCONF capa eof capa psync2 capa pantala-flows:{flows}");
        assert_eq!(link.call(&capabilities), "+OK");
        assert!(link.call("PSYNC ? -1").starts_with("+FULLRESYNC"));
        let header = link.line();
        let token = header.strip_prefix("$FLOWS:").and_then(|rest| rest.strip_suffix(&format!(":{flows}")));
        (link, token.unwrap_or_else(|| panic!("{header}")).to_owned())
    }
}

/// Waits until no connection of a replica, snapshot or unread part of the stream is left.
#[track_caller]
fn wait_until_cleaned(primary: &Server) {
    eventually("everything is closed", || {
        replica_connections(primary) == 0
            && info(primary, "replication", "connected_slaves") == "0"
            && info(primary, "persistence", "rdb_bgsave_in_progress") == "0"
    });
}

/// Each flow is a complete file with a part of the keys. Only the first has functions and
/// auxiliary fields. The stream starts on the link, after an acknowledgement.
#[test]
fn each_flow_is_a_complete_file() {
    for_each_backend(|backend| {
        let primary = primary_with_keys(backend, &["--repl-ping-replica-period", "3600"]);
        let (mut link, token) = ByHand::full_sync(&primary, 3);
        let mut flows = vec![link.until_mark(&token)];
        assert!(info(&primary, "replication", "slave0").contains("state=send_bulk"), "two flows are missing");
        for index in [2, 1] {
            let mut flow = ByHand::connect(&primary);
            assert_eq!(flow.call(&format!("PSYNC {token} {index} FLOW")), format!("$EOF:{token}"));
            flows.push(flow.until_mark(&token));
            assert!(flow.is_closed(), "nothing follows the mark");
        }
        let mut keys = 0;
        for (number, bytes) in flows.iter().enumerate() {
            let path = primary.folder().join(format!("flow-{number}.rdb"));
            std::fs::write(&path, bytes).expect("a file");
            let check = Command::new(binary::pantala()).arg("check-rdb").arg(&path).output().expect("a report");
            let report = String::from_utf8_lossy(&check.stdout).into_owned();
            assert!(check.status.success(), "{report}");
            let of = |what: &str| {
                let line = report.lines().find_map(|line| line.strip_prefix("[info] ")?.strip_suffix(what));
                line.unwrap_or_else(|| panic!("{report}")).trim().parse::<u64>().expect("a number")
            };
            assert_eq!(of("function libraries"), u64::from(number == 0));
            assert_eq!(report.contains("repl-stream-db"), number == 0, "{report}");
            assert!(of("keys read") > 0, "{report}");
            assert!(bytes[bytes.len() - 8..] != [0; 8], "the file has a checksum");
            keys += of("keys read");
        }
        assert_eq!(keys, 23_002);
        eventually("it is online", || info(&primary, "replication", "slave0").contains("state=online"));
        primary.connect().call("SET key value");
        link.send("REPLCONF ACK 0");
        let stream = [encode(&["SELECT", "0"]), encode(&["SET", "key", "value"])].concat();
        let mut bytes = vec![0; stream.len()];
        link.0.read_exact(&mut bytes).expect("the stream");
        assert_eq!(bytes, stream);
    });
}

/// Requests for flows that don't exist are rejected, and change nothing.
#[test]
fn wrong_requests_for_flows_are_rejected() {
    const UNKNOWN: &str = "-ERR the token belongs to no full synchronization in progress";
    const NO_FLOW: &str = "-ERR the full synchronization has no such flow";
    const TAKEN: &str = "-ERR the flow was already requested";
    for_each_backend(|backend| {
        let primary = primary_with_keys(backend, &["--rdbcompression", "no"]);
        // More than the buffers of all connections hold, so that no flow is sent too early.
        primary.connect().call("DEBUG POPULATE 60 long 1000000");
        let mut other = ByHand::connect(&primary);
        assert_eq!(other.call(&format!("PSYNC {TOKEN} 1 FLOW")), UNKNOWN);
        let (mut link, token) = ByHand::full_sync(&primary, 3);
        for (words, reply) in [
            (format!("PSYNC {TOKEN} 1 FLOW"), UNKNOWN),
            (format!("PSYNC {token}0 1 FLOW"), UNKNOWN),
            (format!("PSYNC {} 1 FLOW", &token[..39]), UNKNOWN),
            (format!("PSYNC {} 1 FLOW", token.to_uppercase()), UNKNOWN),
            (format!("PSYNC {token} 0 FLOW"), NO_FLOW),
            (format!("PSYNC {token} 3 FLOW"), NO_FLOW),
            (format!("PSYNC {token} -1 FLOW"), NO_FLOW),
            (format!("PSYNC {token} 9223372036854775807 FLOW"), NO_FLOW),
            (format!("PSYNC {token} x FLOW"), "-ERR value is not an integer or out of range"),
            ("REPLCONF capa pantala-flows:x capa pantala-flows:".to_owned(), "+OK"),
        ] {
            assert_eq!(other.call(&words), reply, "{words}");
        }
        // A user needs the permission for PSYNC.
        let mut client = primary.connect();
        client.call("ACL SETUSER weak on nopass ~* +@all -psync");
        let mut weak = ByHand::connect(&primary);
        assert_eq!(weak.call("AUTH weak x"), "+OK");
        let reply = weak.call(&format!("PSYNC {token} 1 FLOW"));
        assert!(reply.starts_with("-NOPERM"), "{reply}");
        // The rejected requests have taken no flow.
        let mut flows: Vec<ByHand> = (1..3).map(|_| ByHand::connect(&primary)).collect();
        for (flow, index) in flows.iter_mut().zip(1..) {
            assert_eq!(flow.call(&format!("psync {token} {index} flow")), format!("$EOF:{token}"));
            assert_eq!(other.call(&format!("PSYNC {token} {index} FLOW")), TAKEN);
        }
        std::thread::scope(|scope| {
            let all = std::iter::once(&mut link).chain(&mut flows);
            all.for_each(|flow| _ = scope.spawn(|| flow.until_mark(&token)));
        });
        eventually("it is online", || info(&primary, "replication", "slave0").contains("state=online"));
        assert_eq!(other.call(&format!("PSYNC {token} 1 FLOW")), UNKNOWN, "all flows were sent");
        drop(link);
        wait_until_cleaned(&primary);
    });
}

/// If the link or a flow is lost, all connections of the full sync are closed, and the next one
/// starts.
#[test]
fn a_lost_connection_ends_the_full_sync() {
    for_each_backend(|backend| {
        let primary = Server::pantala(backend, &FLOWING_PRIMARY);
        let mut client = primary.connect();
        // More than the buffers of all connections hold.
        client.call("CONFIG SET rdbcompression no");
        client.call("DEBUG POPULATE 60 before 1000000");
        for lost in ["link", "flow", "flow before it is requested", "flow killed", "flow reset"] {
            let (mut link, token) = ByHand::full_sync(&primary, 3);
            let request = |index: u32| {
                let mut flow = ByHand::connect(&primary);
                assert_eq!(flow.call(&format!("PSYNC {token} {index} FLOW")), format!("$EOF:{token}"));
                flow
            };
            let mut first = request(1);
            if lost == "flow before it is requested" {
                drop(first);
                assert!(link.is_closed(), "{lost}");
                let mut late = ByHand::connect(&primary);
                eventually("the token is invalid", || {
                    late.call(&format!("PSYNC {token} 2 FLOW")).starts_with("-ERR the token")
                });
                wait_until_cleaned(&primary);
                continue;
            }
            let mut second = request(2);
            assert_eq!(replica_connections(&primary), 3);
            match lost {
                "link" => drop(link),
                "flow killed" => {
                    let address = first.0.local_addr().expect("an address");
                    assert_eq!(client.call(&format!("CLIENT KILL ADDR {address}")), Reply::Integer(1));
                    assert!(link.is_closed(), "{lost}");
                }
                "flow reset" => {
                    first.send("RESET");
                    assert!(link.is_closed(), "{lost}");
                }
                _ => {
                    first.0.shutdown(Shutdown::Both).expect("it is open");
                    assert!(link.is_closed(), "{lost}");
                }
            }
            assert!(second.is_closed(), "{lost}");
            wait_until_cleaned(&primary);
        }
        let replica = replica_with_key(backend, &[]);
        follow(&replica, &primary);
        assert_same(&replica, &primary);
    });
}

/// A replica that doesn't request all flows, or doesn't read one, is disconnected after
/// `repl-timeout`. The memory of unread bytes is bounded.
#[test]
fn a_missing_or_stuck_flow_times_out() {
    for_each_backend(|backend| {
        let primary = Server::pantala(backend, &[&FLOWING_PRIMARY[..], &["--repl-timeout", "2"]].concat());
        primary.connect().call("CONFIG SET rdbcompression no");
        primary.connect().call("DEBUG POPULATE 60 before 1000000");
        let before = primary.resident_bytes();
        let (mut link, token) = ByHand::full_sync(&primary, 2);
        assert!(link.is_closed());
        assert!(primary.log().contains("(flow 1 was not requested)"), "{}", primary.log());
        wait_until_cleaned(&primary);
        let (mut link, token_of_stuck) = ByHand::full_sync(&primary, 2);
        assert_ne!(token, token_of_stuck);
        let mut stuck = ByHand::connect(&primary);
        assert_eq!(stuck.call(&format!("PSYNC {token_of_stuck} 1 FLOW")), format!("$EOF:{token_of_stuck}"));
        let since = Instant::now();
        assert!(link.is_closed());
        assert!(since.elapsed() > Duration::from_secs(1));
        assert!(primary.log().contains("(flow 1 of a full sync)"), "{}", primary.log());
        wait_until_cleaned(&primary);
        let grown = primary.peak_resident_bytes().saturating_sub(before);
        assert!(grown < 48 << 20, "{grown} bytes");
    });
}

/// While a snapshot arrives slowly, the replica serves its former dataset, and keeps it if the
/// transfer ends: because the primary or a flow is lost, or the replica stops following.
#[test]
fn a_replica_keeps_its_dataset_until_all_flows_have_arrived() {
    for_each_backend(|backend| {
        let primary = Server::pantala(backend, &FLOWING_PRIMARY);
        let mut client = primary.connect();
        client.call("DEBUG POPULATE 30000 before 300");
        let mut replica = replica_with_key(backend, &["--repl-timeout", "20"]);
        let mut reader = replica.connect();
        let begin = |client: &mut Client, reader: &mut Client| {
            assert_eq!(client.call("CONFIG SET rdb-key-save-delay 1000"), Reply::ok());
            assert_eq!(reader.call(&format!("REPLICAOF 127.0.0.1 {}", primary.port())), Reply::ok());
            eventually("three connections receive the snapshot", || {
                replica_connections(&primary) == 3 && info(&replica, "replication", "master_sync_in_progress") == "1"
            });
            assert_eq!(reader.call("GET old"), Reply::bulk("value"));
        };
        // A flow is killed. The replica then tries again.
        begin(&mut client, &mut reader);
        let list = client.call("CLIENT LIST TYPE replica").text();
        let ids = list.lines().map(|line| line["id=".len()..].split(' ').next().expect("an ID").to_owned());
        let last = ids.max_by_key(|id| id.parse::<u64>().expect("a number")).expect("a connection");
        assert_eq!(client.call(&format!("CLIENT KILL ID {last}")), Reply::Integer(1));
        eventually("the replica has noticed", || replica.log().contains("connection lost"));
        assert_eq!(reader.call("GET old"), Reply::bulk("value"));
        assert_eq!(reader.call("DBSIZE"), Reply::Integer(1));
        // The replica stops to follow, in the middle of the next transfer.
        eventually("it tries again", || info(&primary, "stats", "sync_full") == "2");
        assert_eq!(reader.call("REPLICAOF NO ONE"), Reply::ok());
        wait_until_cleaned(&primary);
        assert_eq!(reader.call("DBSIZE"), Reply::Integer(1));
        eventually("the files are deleted", || temporary_files(&replica).is_empty());
        // All connections are closed at once.
        begin(&mut client, &mut reader);
        // The end of the first connection ends the others, perhaps before they are counted.
        let killed = client.call("CLIENT KILL TYPE replica");
        assert!(matches!(killed, Reply::Integer(1..=3)), "{killed:?}");
        eventually("it tries again", || info(&primary, "stats", "sync_full") == "4");
        assert_eq!(reader.call("GET old"), Reply::bulk("value"));
        assert_eq!(client.call("CONFIG SET rdb-key-save-delay 0"), Reply::ok());
        wait_for_link(&replica);
        assert_same(&replica, &primary);
        // The primary stops. The shutdown doesn't wait for the transfer.
        assert_eq!(reader.call("REPLICAOF NO ONE"), Reply::ok());
        assert_eq!(reader.call("FLUSHALL"), Reply::ok());
        assert_eq!(reader.call("SET old value"), Reply::ok());
        begin(&mut client, &mut reader);
        let mut primary = primary;
        client.send(&["SHUTDOWN", "NOSAVE"]);
        assert!(primary.wait_exit(READ_MAX).success());
        eventually("the replica has noticed", || replica.log().contains("Unable to connect to MASTER"));
        assert_eq!(reader.call("GET old"), Reply::bulk("value"));
        assert_eq!(reader.call("DBSIZE"), Reply::Integer(1));
        assert_eq!(temporary_files(&replica), Vec::<String>::new());
        replica.assert_sound();
    });
}

/// Flows use the credentials of the link.
#[test]
fn flows_log_in() {
    let backend = Backend::all()[0];
    let primary = primary_with_keys(backend, &[]);
    let mut client = primary.connect();
    assert_eq!(client.call("CONFIG SET requirepass secret"), Reply::ok());
    client.call("ACL SETUSER follower on >word +psync +replconf +ping");
    let replica = replica_with_key(backend, &["--masteruser", "follower", "--masterauth", "word"]);
    let reply = replica.connect().call(&format!("REPLICAOF 127.0.0.1 {}", primary.port()));
    assert_eq!(reply, Reply::ok());
    wait_for_link(&replica);
    assert!(primary.log().contains("succeeded (3 flows)"), "{}", primary.log());
    assert_eq!(client.call("ACL LOG"), Reply::Array(Vec::new()));
    let digest = client.call("DEBUG DIGEST").text();
    assert_eq!(replica.connect().call("DEBUG DIGEST").text(), digest);
}

/// The scripted primary's reply to the request of a flow.
type OnFlow = dyn Fn(&TcpStream) + Send + Sync;

/// Returns a scripted primary's reply to commands on the link. `answer` is the reply to `PSYNC`.
fn scripted_reply(words: &str, answer: &[u8]) -> Vec<u8> {
    if words.contains("PSYNC") {
        answer.to_vec()
    } else if words.contains("PING") {
        b"+PONG\r\n".to_vec()
    } else {
        "+OK\r\n".repeat(words.matches("REPLCONF").count()).into_bytes()
    }
}

/// Makes a replica with a key follow a scripted primary, whose link sends `bytes` after
/// `+FULLRESYNC`, and whose other connections run `on_flow`. Checks that the replica keeps its
/// key and logs `text`.
#[track_caller]
fn keeps_its_key(bytes: &[u8], on_flow: Arc<OnFlow>, text: &str) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("it is bound").port();
    let answer = [format!("+FULLRESYNC {ID} 7\r\n").as_bytes(), bytes].concat();
    let is_over = Arc::new(AtomicBool::new(false));
    let ends = Arc::clone(&is_over);
    let thread = std::thread::spawn(move || {
        let mut connections = Vec::new();
        for socket in listener.incoming() {
            if ends.load(Ordering::Relaxed) {
                break;
            }
            let (mut socket, answer, on_flow) = (socket.expect("a connection"), answer.clone(), Arc::clone(&on_flow));
            connections.push(std::thread::spawn(move || {
                let mut input = [0; 4096];
                while let Ok(len @ 1..) = socket.read(&mut input) {
                    let words = String::from_utf8_lossy(&input[..len]).into_owned();
                    if words.contains("FLOW\r\n") {
                        on_flow(&socket);
                    } else {
                        // The replica may close the connection before it has read everything.
                        let _ = socket.write_all(&scripted_reply(&words, &answer));
                    }
                }
            }));
        }
        connections.into_iter().for_each(|connection| connection.join().expect("a connection ends"));
    });
    // With the long timeout, the other flows must end because one has failed.
    let timeout = if text.starts_with("Timeout") { "3" } else { "3600" };
    let mut replica = replica_with_key(Backend::all()[0], &["--repl-timeout", timeout]);
    let mut client = replica.connect();
    assert_eq!(client.call(&format!("REPLICAOF 127.0.0.1 {port}")), Reply::ok());
    eventually(text, || replica.log().contains(text));
    assert_eq!(client.call("GET old"), Reply::bulk("value"), "{}", replica.log());
    assert_eq!(client.call("DBSIZE"), Reply::Integer(1));
    assert_eq!(client.call("REPLICAOF NO ONE"), Reply::ok());
    eventually("the files are deleted", || temporary_files(&replica).is_empty());
    replica.assert_sound();
    drop((client, replica));
    is_over.store(true, Ordering::Relaxed);
    drop(TcpStream::connect(("127.0.0.1", port)));
    thread.join().expect("the primary does not panic");
}

/// A broken or hostile primary can't make the replica load a part of a snapshot.
#[test]
fn an_invalid_flow_leaves_the_dataset_unchanged() {
    let sends = |bytes: Vec<u8>| -> Arc<OnFlow> {
        Arc::new(move |mut socket: &TcpStream| {
            // The replica may close the connection before it has read everything.
            let _ = socket.write_all(&bytes);
        })
    };
    let link = [format!("$FLOWS:{TOKEN}:2\r\n").as_bytes(), EMPTY_RDB, TOKEN.as_bytes()].concat();
    let flow = |rdb: &[u8]| [format!("$EOF:{TOKEN}\r\n").as_bytes(), rdb, TOKEN.as_bytes()].concat();
    // A key in both flows is found during the load, when the former dataset has been dropped. So
    // all cases here are found before.
    let closes = |bytes: Vec<u8>| -> Arc<OnFlow> {
        Arc::new(move |mut socket: &TcpStream| {
            let _ = socket.write_all(&bytes);
            let _ = socket.shutdown(Shutdown::Both);
        })
    };
    let line = |count: &str| format!("$FLOWS:{TOKEN}:{count}\r\n").into_bytes();
    for count in ["0", "1", "4", "4294967295"] {
        keeps_its_key(&line(count), sends(Vec::new()), &format!("{count} flows, which were not requested"));
    }
    for count in ["", "x", "-2", "99999999999"] {
        keeps_its_key(&line(count), sends(Vec::new()), "Bad protocol from MASTER: no flows in");
    }
    keeps_its_key(&link, sends(flow(b"REDIS0010\xff\x01\x02\x03\x04\x05\x06\x07\x08")), "checksum");
    keeps_its_key(&link, sends(flow(b"REDIS0010\xfe\0\0\x03key")), "Flow 1 of the snapshot from MASTER: Bad snapshot");
    keeps_its_key(&link, sends(flow(b"")), "Bad snapshot");
    keeps_its_key(&link, sends(b"-ERR no\r\n".to_vec()), "MASTER aborted replication with an error: ERR no");
    keeps_its_key(&link, sends(b"$17\r\n".to_vec()), "announces no flow");
    let foreign = format!("$EOF:{}\r\n", TOKEN.to_uppercase());
    keeps_its_key(&link, sends([foreign.as_bytes(), EMPTY_RDB].concat()), "announces no flow");
    keeps_its_key(&link, closes(Vec::new()), "connection lost");
    keeps_its_key(&link, closes(flow(b"REDIS0010\xff\0\0\0\0\0\0\0\0")[..70].to_vec()), "connection lost");
    let compressed = |bytes: &[u8], count: u32| {
        let len = u32::try_from(bytes.len()).expect("a short frame").to_le_bytes();
        let header = format!("$FLOWS:{TOKEN}:{count}:lz4\r\n");
        [header.as_bytes(), &len, &len, bytes, TOKEN.as_bytes()].concat()
    };
    let frame =
        |len: u32, bytes: u32, data: &[u8]| flow(&[&len.to_le_bytes()[..], &bytes.to_le_bytes(), data].concat());
    for (reply, text) in [
        (frame(5, 4, b"REDIS"), "a compressed frame of 5 bytes for 4 bytes"),
        (frame(5, 65537, b"REDIS"), "a compressed frame of 5 bytes for 65537 bytes"),
        (frame(100, 1000, b"REDIS"), "its last frame is incomplete"),
        (frame(5, 1000, b"REDIS"), "Flow 1 of the snapshot from MASTER: Bad snapshot"),
        (frame(9, 9, b"REDIS0010"), "Flow 1 of the snapshot from MASTER: Bad snapshot"),
    ] {
        keeps_its_key(&compressed(EMPTY_RDB, 2), sends(reply), text);
    }
    keeps_its_key(&compressed(EMPTY_RDB, 4), sends(Vec::new()), "4 flows, which were not requested");
    // No byte arrives for `repl-timeout`.
    keeps_its_key(&link, sends(Vec::new()), "Timeout connecting to the MASTER");
    // The link fails, and the flow sends nothing.
    let broken = [format!("$FLOWS:{TOKEN}:2\r\n").as_bytes(), b"REDIS9999\xff", TOKEN.as_bytes()].concat();
    keeps_its_key(&broken, sends(Vec::new()), "9999");
}

/// The primary has passed all flows to the network, and waits for the replica's acknowledgements,
/// while a flow may take long to arrive. So the replica sends empty lines on the link.
#[test]
fn a_replica_that_waits_for_a_flow_sends_empty_lines() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("it is bound").port();
    let replica = replica_with_key(Backend::all()[0], &[]);
    assert_eq!(replica.connect().call(&format!("REPLICAOF 127.0.0.1 {port}")), Reply::ok());
    let (mut link, _) = listener.accept().expect("the link");
    link.set_read_timeout(Some(READ_MAX)).expect("a timeout");
    let head = format!("+FULLRESYNC {ID} 7\r\n$FLOWS:{TOKEN}:2\r\n");
    let answer = [head.as_bytes(), EMPTY_RDB, TOKEN.as_bytes()].concat();
    let mut input = [0; 4096];
    let mut is_asked = false;
    while !is_asked {
        let len = link.read(&mut input).expect("a command");
        let words = String::from_utf8_lossy(&input[..len]).into_owned();
        is_asked = words.contains("PSYNC");
        link.write_all(&scripted_reply(&words, &answer)).expect("the replica reads");
    }
    let _flow = listener.accept().expect("the connection of flow 1");
    for _ in 0..2 {
        let len = link.read(&mut input).expect("an empty line");
        assert_eq!(&input[..len], b"\n");
    }
}

/// A replica that is disconnected while it doesn't read its snapshot doesn't block later full
/// syncs.
#[test]
fn a_replica_dropped_in_its_snapshot_blocks_no_other() {
    for_each_backend(|backend| {
        let top = Server::pantala(backend, &PRIMARY);
        let middle = Server::pantala(backend, &["--workers", "2", "--repl-diskless-sync-delay", "0"]);
        middle.connect().call("CONFIG SET rdbcompression no");
        middle.connect().call("DEBUG POPULATE 60 before 1000000");
        let mut stuck = ByHand::connect(&middle);
        assert_eq!(stuck.call("REPLCONF capa eof capa psync2"), "+OK");
        assert!(stuck.call("PSYNC ? -1").starts_with("+FULLRESYNC"));
        // The snapshot waits for this replica, which reads nothing. It is then dropped, because its
        // primary follows another server.
        std::thread::sleep(Duration::from_millis(500));
        follow(&middle, &top);
        let last = Server::pantala(backend, &["--workers", "2"]);
        follow(&last, &middle);
        assert_same(&last, &middle);
    });
}
