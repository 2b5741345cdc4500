//! Pantala as a primary of redis-server 7.0 and of redis-cli, which copies the dataset.
//! `PANTALA_SEED` replays the writers' commands.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use pantala_tests::client::encode;
use pantala_tests::effects::wait_for_expiry;
use pantala_tests::following::wait_until_applied;
use pantala_tests::waiting::{PATIENCE, eventually};
use pantala_tests::writers::write_until;
use pantala_tests::{Backend, Client, Random, Reply, Server, for_all_backends, for_each_backend, tool};
use rustix::process::Signal;

/// Options of a primary that sends a snapshot at once, instead of waiting for further replicas that
/// might request one.
const PRIMARY: [&str; 4] = ["--workers", "2", "--repl-diskless-sync-delay", "0"];

/// Number of clients that write at the same time.
const WRITERS: usize = 4;

/// Maximum wait for a run of redis-cli, for the exit of a server, and for bytes of the stream.
const RUN_MAX: Duration = Duration::from_secs(20);

/// Returns the value of a field of `INFO`.
fn info(client: &mut Client, section: &str, name: &str) -> String {
    let text = client.call(&format!("INFO {section}")).text();
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    value.unwrap_or_else(|| panic!("INFO has no {name}:\n{text}")).trim().to_owned()
}

fn number(client: &mut Client, section: &str, name: &str) -> u64 {
    info(client, section, name).parse().expect("a number")
}

/// Starts a redis-server that follows another server.
fn redis_of(primary: &Server, args: &[&str]) -> Option<Server> {
    let replica = Server::redis(args)?;
    follow(&replica, primary);
    Some(replica)
}

fn follow(replica: &Server, primary: &Server) {
    assert_eq!(replica.connect().call(&format!("REPLICAOF 127.0.0.1 {}", primary.port())), Reply::ok());
    wait_until_linked(replica);
}

fn wait_until_linked(replica: &Server) {
    let mut client = replica.connect();
    eventually("the replica is linked", || info(&mut client, "replication", "master_link_status") == "up");
}

/// Waits until these replicas have applied all effects, and compares their datasets with the
/// primary's. No client may write in this time.
fn assert_equal(primary: &Server, replicas: &[&Server]) {
    wait_for_expiry(primary);
    let mut client = primary.connect();
    // The deletions of expired keys precede this command in the stream. So a replica that has the
    // key `fence` has applied all deletions.
    client.call("SELECT 9");
    client.call("SET fence 1");
    let acked = client.call(&format!("WAIT {} 10000", replicas.len()));
    assert_eq!(acked, Reply::Integer(replicas.len() as i64));
    let own = client.call("DEBUG DIGEST").text();
    for replica in replicas {
        let mut client = replica.connect();
        assert_eq!(client.call("DEBUG DIGEST").text(), own, "{}", info(&mut client, "keyspace", "db0"));
    }
}

/// Runs a scenario while writers write to the server.
fn under_load(server: &Server, seed: u64, scene: impl FnOnce()) {
    let (is_over, rests) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let writers = scope.spawn(|| write_until(server, seed, WRITERS, &is_over, &rests));
        scene();
        is_over.store(true, Ordering::Relaxed);
        writers.join().expect("the writers don't panic");
    });
}

/// Two replicas attach while clients write. The snapshot has an unknown length, and one replica
/// loads it without a file. Then the links are closed, and the replicas continue.
#[test]
fn redis_follows_under_load_and_continues_after_a_cut() {
    let seed = Random::seed("redis_follows_under_load_and_continues_after_a_cut");
    for_each_backend(|backend| {
        let primary = Server::pantala(backend, &[&PRIMARY[..], &["--repl-backlog-size", "64mb"]].concat());
        let Some(first) = Server::redis(&[]) else { return };
        let Some(second) = Server::redis(&["--repl-diskless-load", "swapdb"]) else { return };
        let mut client = primary.connect();
        client.call("DEBUG POPULATE 5000 before 100");
        let library = "#!lua name=lib\nredis.register_function{function_name='f',flags={'no-writes'},\
                       callback=function() return 7 end}";
        assert_eq!(client.command(&["FUNCTION", "LOAD", library]).text(), "lib");
        under_load(&primary, seed, || {
            for replica in [&first, &second] {
                follow(replica, &primary);
            }
            let before = number(&mut client, "stats", "total_commands_processed");
            eventually("clients have written more", || {
                number(&mut client, "stats", "total_commands_processed") > before + 5000
            });
        });
        assert_equal(&primary, &[&first, &second]);
        let full = number(&mut client, "stats", "sync_full");
        assert!((1..=2).contains(&full), "{full} full syncs");
        assert_eq!(number(&mut client, "replication", "connected_slaves"), 2);
        under_load(&primary, seed + 1, || {
            assert_eq!(client.call("CLIENT KILL TYPE replica"), Reply::Integer(2));
            eventually("both continue", || number(&mut client, "stats", "sync_partial_ok") == 2);
        });
        assert_equal(&primary, &[&first, &second]);
        assert_eq!(number(&mut client, "stats", "sync_full"), full, "no further full sync");
        assert_eq!(first.connect().call("FCALL_RO f 0"), primary.connect().call("FCALL_RO f 0"));
    });
}

/// With `repl-diskless-sync no`, the snapshot has a known length and is written to a file.
#[test]
fn redis_follows_by_a_snapshot_of_known_length() {
    for_each_backend(|backend| {
        let primary = Server::pantala(backend, &["--workers", "2", "--repl-diskless-sync", "no"]);
        primary.connect().call("DEBUG POPULATE 20000 key 50");
        let Some(replica) = redis_of(&primary, &[]) else { return };
        assert_equal(&primary, &[&replica]);
        assert!(primary.log().contains("target: disk"), "{}", primary.log());
        let files = std::fs::read_dir(primary.folder()).expect("a folder").count();
        assert_eq!(files, 1, "only the log is left");
    });
}

/// Changes of the function libraries, including those within transactions, are in the stream in the
/// order in which they ran.
#[test]
fn changes_of_libraries_are_ordered() {
    const ROUNDS: usize = 150;
    for_each_backend(|backend| {
        let primary = Server::pantala(backend, &[&PRIMARY[..], &["--workers", "2"]].concat());
        let replica = Server::pantala(backend, &[]);
        follow(&replica, &primary);
        let (mut client, mut reader) = (primary.connect(), replica.connect());
        // Pauses between the commands of a transaction make the race likely.
        client.call("DEBUG FAULT pause-holding 300");
        let load = |writer: usize, round: usize| {
            let body = format!("callback=function() return '{writer}:{round}' end");
            let text = format!("#!lua name=lib\nredis.register_function{{function_name='f', {body}}}");
            ["FUNCTION", "LOAD", "REPLACE", &text].map(str::to_owned).to_vec()
        };
        let mut writers: Vec<Client> = (0..4).map(|_| primary.connect()).collect();
        for round in 0..ROUNDS {
            std::thread::scope(|scope| {
                for (number, writer) in writers.iter_mut().enumerate() {
                    scope.spawn(move || {
                        if number % 2 == 0 {
                            return assert_eq!(writer.command(&load(number, round)).text(), "lib");
                        }
                        let key = format!("key:{number}");
                        let sets = vec![vec!["INCR".to_owned(), key]; 5];
                        let ends = ["MULTI", "EXEC"].map(|word| vec![word.to_owned()]);
                        let parts = [&ends[..1], &[load(number, round)], &sets[..], &ends[1..]];
                        let replies = writer.pipeline(&parts.concat());
                        assert_eq!(replies.last().map(|reply| reply.elements().len()), Some(6));
                    });
                }
            });
            wait_until_applied(&replica, &primary);
            let [ours, theirs] = [&mut client, &mut reader].map(|client| client.call("FUNCTION LIST WITHCODE"));
            assert_eq!(ours, theirs, "round {round}");
        }
    });
}

/// A transaction changes libraries and then runs a script. During the script, another connection
/// changes these libraries. Afterwards the replica has the same libraries as the primary.
#[test]
fn a_library_changed_during_a_transaction_is_propagated() {
    const ROUNDS: usize = 3;
    const LIBRARIES: usize = 4;
    let load = |number: usize, version: &str| {
        let function = format!("redis.register_function('f{number}', function() return '{version}' end)");
        encode(&["FUNCTION", "LOAD", "REPLACE", &format!("#!lua name=lib{number}\n{function}")])
    };
    let script = "local n = 0 while redis.call('GET', 'go') == false and n < 1000000 do n = n + 1 end return n";
    for_each_backend(|backend| {
        let primary = Server::pantala(backend, &PRIMARY);
        let replica = Server::pantala(backend, &[]);
        follow(&replica, &primary);
        let (mut client, mut reader) = (primary.connect(), replica.connect());
        let mut running = primary.connect();
        // At least one of these clients belongs to the worker that doesn't run the script. Commands
        // of the other clients run after the transaction.
        let mut others: Vec<Client> = (0..LIBRARIES).map(|_| primary.connect()).collect();
        for round in 0..ROUNDS {
            let first: Vec<Vec<u8>> = match round {
                0 | 1 => (0..LIBRARIES).map(|number| load(number, "transaction")).collect(),
                _ => vec![encode(&["FUNCTION", "FLUSH"])],
            };
            let eval = encode(&["EVAL", script, "1", "go"]);
            running.send_raw(&[&encode(&["MULTI"]), &first.concat()[..], &eval, &encode(&["EXEC"])].concat());
            // After this sleep, the script is running.
            std::thread::sleep(Duration::from_millis(200));
            for (number, other) in others.iter_mut().enumerate() {
                let delete = encode(&["FUNCTION", "DELETE", &format!("lib{number}")]);
                other.send_raw(&if round == 1 { delete } else { load(number, "alone") });
            }
            (0..first.len() + 3).for_each(|_| assert!(!running.receive().is_error()));
            others.iter_mut().for_each(|other| assert!(!other.receive().is_error()));
            wait_until_applied(&replica, &primary);
            let [ours, theirs] = [&mut client, &mut reader].map(|client| client.call("FUNCTION LIST WITHCODE"));
            assert_eq!(ours, theirs, "round {round}");
        }
    });
}

/// Replicas that request a sync within `repl-diskless-sync-delay` share a snapshot.
#[test]
fn replicas_share_a_snapshot() {
    let options = ["--workers", "2", "--repl-diskless-sync-delay", "30", "--repl-diskless-sync-max-replicas", "2"];
    let primary = Server::pantala(Backend::all()[0], &options);
    primary.connect().call("DEBUG POPULATE 1000");
    let (Some(first), Some(second)) = (Server::redis(&[]), Server::redis(&[])) else { return };
    for replica in [&first, &second] {
        replica.connect().call(&format!("REPLICAOF 127.0.0.1 {}", primary.port()));
    }
    wait_until_linked(&first);
    wait_until_linked(&second);
    assert_equal(&primary, &[&first, &second]);
    assert_eq!(primary.log().matches("Starting BGSAVE for SYNC").count(), 1);
}

/// `ROLE`, `INFO` and `CLIENT LIST` report a replica.
#[test]
fn a_replica_is_reported() {
    for_each_backend(|backend| {
        let primary = Server::pantala(backend, &PRIMARY);
        let mut client = primary.connect();
        assert_eq!(client.call("ROLE").elements()[0].text(), "master");
        assert_eq!(client.call("ROLE").elements()[2].elements().len(), 0);
        let Some(replica) = redis_of(&primary, &[]) else { return };
        client.call("SET key value");
        assert_eq!(client.call("WAIT 1 10000"), Reply::Integer(1));
        let offset = number(&mut client, "replication", "master_repl_offset");
        let line = info(&mut client, "replication", "slave0");
        let start = format!("ip=127.0.0.1,port={},state=online,offset=", replica.port());
        assert!(line.starts_with(&start) && line.contains(",lag="), "{line}");
        let role = client.call("ROLE");
        let replicas = role.elements()[2].elements();
        assert_eq!(replicas[0].elements()[1].text(), replica.port().to_string());
        assert!(client.call("CLIENT LIST TYPE replica").text().contains(" flags=S "));
        assert!(!client.call("CLIENT LIST TYPE normal").text().contains(" flags=S "));
        let id = info(&mut client, "replication", "master_replid");
        assert_eq!(info(&mut replica.connect(), "replication", "master_replid"), id);
        eventually("the replica has as many bytes", || {
            number(&mut replica.connect(), "replication", "slave_repl_offset") >= offset
        });
    });
}

/// `WAIT` replies immediately, after an acknowledgement, or after its timeout, depending on what
/// the replicas have received.
#[test]
fn wait_counts_the_replicas_that_have_everything() {
    for_each_backend(|backend| {
        let primary = Server::pantala(backend, &PRIMARY);
        let mut client = primary.connect();
        assert_eq!(client.call("WAIT 0 0"), Reply::Integer(0));
        assert_eq!(client.call("WAIT 1 50"), Reply::Integer(0));
        for wrong in ["WAIT x 0", "WAIT 1 x", "WAIT 1 -1"] {
            assert!(matches!(client.call(wrong), Reply::Error(_)), "{wrong}");
        }
        let Some(replica) = redis_of(&primary, &[]) else { return };
        client.call("SET key 1");
        assert_eq!(client.call("WAIT 1 10000"), Reply::Integer(1));
        assert_eq!(replica.connect().call("GET key").text(), "1");
        let since = Instant::now();
        assert_eq!(client.call("WAIT 2 200"), Reply::Integer(1));
        assert!(since.elapsed() >= Duration::from_millis(200));
        // `DEBUG SLEEP` suspends the replica, so it acknowledges nothing.
        let id = client.call("CLIENT ID");
        let mut sleeper = replica.connect();
        sleeper.send(&["DEBUG", "SLEEP", "2"]);
        let mut probe = replica.connect();
        probe.set_read_timeout(Duration::from_millis(50));
        eventually("the replica sleeps", || {
            probe.send(&["PING"]);
            probe.try_receive().is_err()
        });
        client.call("SET key 2");
        assert_eq!(client.call("WAIT 1 100"), Reply::Integer(0));
        let Reply::Integer(id) = id else { panic!("{id:?}") };
        client.send(&["WAIT", "1", "0"]);
        let mut other = primary.connect();
        eventually("it is blocked", || info(&mut other, "clients", "blocked_clients") == "1");
        assert_eq!(other.call(&format!("CLIENT UNBLOCK {id}")), Reply::Integer(1));
        assert_eq!(client.receive(), Reply::Integer(0));
        assert_eq!(client.call("WAIT 1 0"), Reply::Integer(1), "when the replica runs again");
        assert_eq!(
            client.pipeline(&[vec!["MULTI"], vec!["WAIT", "9", "0"], vec!["EXEC"]])[2],
            Reply::Array(vec![Reply::Integer(1)])
        );
    });
}

/// Returns the replies of `WAIT` while a replica is stopped, on connections that have run different
/// commands before.
fn waits(primary: &Server, replica: &Server) -> Vec<(&'static str, Reply)> {
    let mut replies = Vec::new();
    let mut of = |name, reply| replies.push((name, reply));
    let alone = |words: &str| primary.connect().call(words);
    of("no replica", alone("WAIT 0 0"));
    of("no replica, blocks", alone("WAIT 1 50"));
    follow(replica, primary);
    eventually("it is online", || info(&mut primary.connect(), "replication", "slave0").contains("state=online"));
    let (mut first, mut second, mut reader, mut queuer) =
        (primary.connect(), primary.connect(), primary.connect(), primary.connect());
    first.call("SET a 1");
    of("a write", first.call("WAIT 1 10000"));
    queuer.call("MULTI");
    replica.signal(Signal::STOP);
    second.call("SET b 1");
    // Pantala appends the write to the stream a moment after its reply.
    std::thread::sleep(Duration::from_millis(50));
    of("a connection without commands", alone("WAIT 1 300"));
    of("a write before the stop", first.call("WAIT 1 300"));
    of("the same again: WAIT itself counts as a command", first.call("WAIT 1 100"));
    of("a write after the stop", second.call("WAIT 1 100"));
    of("a write after the stop, without blocking", second.call("WAIT 0 0"));
    of("a read after the stop", {
        reader.call("GET b");
        reader.call("WAIT 1 100")
    });
    of("MULTI before the stop", {
        queuer.call("WAIT 1 0");
        queuer.call("EXEC")
    });
    queuer.call("MULTI");
    of("MULTI after the stop", {
        queuer.call("WAIT 1 0");
        queuer.call("EXEC")
    });
    of("a script", second.command(&["EVAL", "return redis.pcall('WAIT', 1, 0)", "0"]));
    second.send(&["WAIT", "1", "0"]);
    second.set_read_timeout(Duration::from_millis(100));
    assert!(second.try_receive().is_err(), "WAIT replied although the replica is stopped");
    replica.signal(Signal::CONT);
    second.set_read_timeout(PATIENCE);
    of("the replica runs again", second.receive());
    of("all is acknowledged", reader.call("WAIT 1 10000"));
    replies
}

#[test]
fn wait_waits_for_the_writes_of_its_own_connection_as_in_redis() {
    let quiet = ["--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "3600"];
    let (Some(reference), Some(replica)) = (Server::redis(&quiet), Server::redis(&[])) else { return };
    let right = waits(&reference, &replica);
    assert_eq!(right[4], ("a write before the stop", Reply::Integer(1)));
    for_each_backend(|backend| {
        for execution in ["inline", "owner"] {
            let own = ["--workers", "2", "--execution", execution];
            let primary = Server::pantala(backend, &[&quiet[..], &own].concat());
            let Some(replica) = Server::redis(&[]) else { return };
            assert_eq!(waits(&primary, &replica), right, "{execution}");
        }
    });
}

/// A replica that doesn't read is disconnected at its output limit, and memory is released. Other
/// clients of the primary are not delayed.
#[test]
fn a_slow_replica_is_disconnected() {
    for_each_backend(|backend| {
        let options = [&PRIMARY[..], &["--client-output-buffer-limit", "replica 8mb 0 0"]].concat();
        let primary = Server::pantala(backend, &options);
        let Some(replica) = redis_of(&primary, &[]) else { return };
        let mut client = primary.connect();
        let mut stuck = replica.connect();
        stuck.send(&["DEBUG", "SLEEP", "3"]);
        let value = "v".repeat(64 * 1024);
        let mut slowest = Duration::ZERO;
        for _ in 0..640 {
            let since = Instant::now();
            assert_eq!(client.command(&["SET", "key", &value]), Reply::ok());
            slowest = slowest.max(since.elapsed());
        }
        // No client waited until the end of the replica's sleep.
        assert!(slowest < Duration::from_secs(2), "{slowest:?}");
        eventually("it is disconnected", || primary.log().contains("overcoming of output buffer limits"));
        eventually("bytes held for it are freed", || {
            number(&mut client, "memory", "mem_total_replication_buffers") < 3 << 20
        });
        wait_until_linked(&replica);
        eventually("it has reconnected", || number(&mut client, "replication", "connected_slaves") == 1);
        assert_equal(&primary, &[&replica]);
    });
}

/// A replica played by the test: a connection that sends the handshake itself and sees every byte
/// of the stream.
struct ByHand(TcpStream);

impl ByHand {
    fn connect(server: &Server) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", server.port())).expect("the server listens");
        stream.set_read_timeout(Some(RUN_MAX)).expect("a socket takes a timeout");
        ByHand(stream)
    }

    fn send(&mut self, words: &str) {
        let words: Vec<&str> = words.split(' ').collect();
        self.0.write_all(&encode(&words)).expect("the server reads");
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

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        self.0.read_exact(&mut bytes).expect("enough bytes");
        bytes
    }
}

/// Tests the handshake in raw bytes: errors, a full sync with an end mark, the stream that starts
/// after an acknowledgement, a partial sync, and offsets at which the stream can't continue.
#[test]
fn the_protocol_is_that_of_redis() {
    for_each_backend(|backend| {
        let primary = Server::pantala(backend, &[&PRIMARY[..], &["--repl-ping-replica-period", "3600"]].concat());
        let mut client = primary.connect();
        let mut replica = ByHand::connect(&primary);
        assert_eq!(replica.call("REPLCONF listening-port 1 ip-address example.org"), "+OK");
        assert_eq!(replica.call("REPLCONF capa eof capa psync2"), "+OK");
        assert_eq!(replica.call("REPLCONF x 1"), "-ERR Unrecognized REPLCONF option: x");
        assert_eq!(replica.call("PSYNC ? x"), "-ERR value is not an integer or out of range");
        let reply = replica.call("PSYNC ? -1");
        let words: Vec<&str> = reply.split(' ').collect();
        let [word, id, offset] = words.as_slice() else { panic!("{reply}") };
        assert_eq!((*word, id.len()), ("+FULLRESYNC", 40));
        let offset: u64 = offset.parse().expect("an offset");
        let header = replica.line();
        let mark = header.strip_prefix("$EOF:").unwrap_or_else(|| panic!("{header}")).to_owned();
        let mut bytes = Vec::new();
        while !bytes.ends_with(mark.as_bytes()) {
            bytes.append(&mut replica.bytes(1));
        }
        assert!(bytes.starts_with(b"REDIS0010"));
        client.call("SET key value");
        eventually("it is online", || info(&mut client, "replication", "slave0").contains("state=online"));
        assert!(info(&mut client, "replication", "slave0").starts_with("ip=example.org,port=1,"));
        replica.0.set_read_timeout(Some(Duration::from_millis(100))).expect("a socket takes a timeout");
        assert!(replica.0.read(&mut [0]).is_err(), "nothing comes before an acknowledgement");
        replica.0.set_read_timeout(Some(RUN_MAX)).expect("a socket takes a timeout");
        replica.send(&format!("REPLCONF ACK {offset}"));
        let stream = [encode(&["SELECT", "0"]), encode(&["SET", "key", "value"])].concat();
        assert_eq!(replica.bytes(stream.len()), stream);
        // CVE-2021-31294: a replica that sent such a command made Redis fail an assertion.
        replica.send("GET key");
        assert_eq!(replica.line(), "-ERR Replica can't interact with the keyspace");
        drop(replica);
        eventually("it has left", || number(&mut client, "replication", "connected_slaves") == 0);
        client.call("SET key later");
        let later = [stream, encode(&["SET", "key", "later"])].concat();
        let end = offset + later.len() as u64;
        eventually("it is in the stream", || number(&mut client, "replication", "master_repl_offset") == end);
        for from in [0, 7, later.len()] {
            let mut replica = ByHand::connect(&primary);
            assert_eq!(replica.call("REPLCONF capa psync2"), "+OK");
            let reply = replica.call(&format!("PSYNC {id} {}", offset + 1 + from as u64));
            assert_eq!(reply, format!("+CONTINUE {id}"));
            assert_eq!(replica.bytes(later.len() - from), later[from..]);
        }
        let other = "0".repeat(40);
        for asked in [format!("{id} {}", end + 2), format!("{id} {offset}"), format!("{other} {end}")] {
            let mut replica = ByHand::connect(&primary);
            let reply = replica.call(&format!("PSYNC {asked}"));
            assert!(reply.starts_with("+FULLRESYNC"), "{asked}: {reply}");
        }
        assert_eq!(client.call("DEBUG CHANGE-REPL-ID"), Reply::ok());
        let mut replica = ByHand::connect(&primary);
        let reply = replica.call(&format!("PSYNC {id} {end}"));
        assert!(reply.starts_with("+FULLRESYNC") && !reply.contains(*id), "{reply}");
        assert_eq!(number(&mut client, "stats", "sync_partial_ok"), 3);
        assert_eq!(number(&mut client, "stats", "sync_partial_err"), 4);
    });
}

/// An acknowledgement of an offset beyond the end of the stream confirms no write. (redis-server
/// 7.0 accepts such an offset, which then confirms all later writes.)
#[test]
fn a_replica_that_lies_about_its_offset_is_not_counted() {
    for_each_backend(|backend| {
        let primary = Server::pantala(backend, &[&PRIMARY[..], &["--repl-ping-replica-period", "3600"]].concat());
        let mut replica = ByHand::connect(&primary);
        assert_eq!(replica.call("REPLCONF capa psync2"), "+OK");
        replica.send("PSYNC ? -1");
        let mut client = primary.connect();
        eventually("it has attached", || number(&mut client, "replication", "connected_slaves") == 1);
        eventually("it is online", || info(&mut client, "replication", "slave0").contains("state=online"));
        replica.send("REPLCONF ACK 0 FACK 77777777");
        for offset in ["9223372036854775807", "99999999", "-5"] {
            replica.send(&format!("REPLCONF ACK {offset}"));
            replica.send(&format!("REPLCONF ACK {offset} FACK {offset}"));
        }
        let line = "acknowledges offset 77777777, beyond the end of the stream";
        eventually("it is noticed", || primary.log().contains(line));
        assert_eq!(client.call("SET key value"), Reply::ok());
        assert_eq!(client.call("WAIT 1 300"), Reply::Integer(0));
        assert_eq!(client.call("WAITAOF 0 1 300").elements()[1], Reply::Integer(0));
        assert!(info(&mut client, "replication", "slave0").contains("offset=0,"));
        assert_eq!(primary.log().matches("beyond the end of the stream").count(), 1);
        // An honest acknowledgement counts.
        let end = number(&mut client, "replication", "master_repl_offset");
        replica.send(&format!("REPLCONF ACK {end}"));
        assert_eq!(client.call("WAIT 1 10000"), Reply::Integer(1));
    });
}

/// Tools wait until a replica has the offset that `INFO` and `ROLE` show. This offset must
/// therefore include every write whose reply a client has received. When no write is pending, the
/// offset is the end of the stream.
#[test]
fn the_offset_includes_every_answered_write() {
    for_each_backend(|backend| {
        let primary = Server::pantala(backend, &[&PRIMARY[..], &["--workers", "2"]].concat());
        let Some(replica) = redis_of(&primary, &[]) else { return };
        let (mut client, mut other, mut reader) = (primary.connect(), primary.connect(), replica.connect());
        let role_offset = |client: &mut Client| client.call("ROLE").elements()[1].clone();
        for round in 0..300 {
            let before = number(&mut client, "replication", "master_repl_offset");
            let writer = if round % 2 == 0 { &mut client } else { &mut other };
            writer.call(&format!("SET key:{round} value"));
            let written = encode(&["SET", &format!("key:{round}"), "value"]).len() as u64;
            let after = number(&mut client, "replication", "master_repl_offset");
            assert!(after >= before + written, "{before}, then {after} in round {round}");
            let Reply::Integer(role) = role_offset(&mut client) else { panic!("no offset") };
            assert!(role as u64 >= before + written);
        }
        let mut offset = 0;
        eventually("the replica has everything", || {
            offset = number(&mut client, "replication", "master_repl_offset");
            number(&mut reader, "replication", "slave_repl_offset") == offset
        });
        assert_eq!(reader.call("GET key:299"), Reply::bulk("value"), "at offset {offset}");
    });
}

/// A shorter `repl-ping-replica-period` applies at once, not only after a period of the former
/// length has ended.
#[test]
fn a_changed_ping_period_applies_at_once() {
    let primary = Server::pantala(Backend::all()[0], &[&PRIMARY[..], &["--repl-ping-replica-period", "3600"]].concat());
    let mut replica = ByHand::connect(&primary);
    assert_eq!(replica.call("REPLCONF capa psync2"), "+OK");
    replica.send("PSYNC ? -1");
    let mut client = primary.connect();
    eventually("it has attached", || number(&mut client, "replication", "connected_slaves") == 1);
    eventually("the snapshot is sent", || {
        replica.send("REPLCONF ACK 0");
        info(&mut client, "replication", "slave0").contains("state=online")
    });
    let offset = number(&mut client, "replication", "master_repl_offset");
    assert_eq!(offset, 0, "a new history starts at 0");
    assert_eq!(client.call("CONFIG SET repl-ping-replica-period 1"), Reply::ok());
    eventually("there is a PING", || number(&mut client, "replication", "master_repl_offset") > offset);
}

/// The link of a replica that doesn't acknowledge is closed after `repl-timeout`.
#[test]
fn a_silent_replica_is_closed() {
    let primary = Server::pantala(Backend::all()[0], &[&PRIMARY[..], &["--repl-timeout", "1"]].concat());
    let mut replica = ByHand::connect(&primary);
    assert_eq!(replica.call("REPLCONF capa psync2"), "+OK");
    replica.send("PSYNC ? -1");
    eventually("it is closed", || primary.log().contains("Disconnecting timedout replica (streaming sync)"));
    assert!(replica.0.read_to_end(&mut Vec::new()).is_ok(), "the server has closed it");
}

/// A replica that loads its snapshot sends empty lines instead of acknowledgements. Its link is not
/// closed, even if the load takes longer than `repl-timeout`.
#[test]
fn empty_lines_keep_a_loading_replica() {
    for_each_backend(|backend| {
        let primary = Server::pantala(backend, &[&PRIMARY[..], &["--repl-timeout", "2"]].concat());
        let mut replica = ByHand::connect(&primary);
        assert_eq!(replica.call("REPLCONF capa psync2"), "+OK");
        replica.send("PSYNC ? -1");
        let mut client = primary.connect();
        eventually("it has attached", || number(&mut client, "replication", "connected_slaves") == 1);
        eventually("it is online", || info(&mut client, "replication", "slave0").contains("state=online"));
        let loaded = Instant::now() + Duration::from_secs(5);
        while Instant::now() < loaded {
            client.call("INCR key");
            replica.0.write_all(b"\n").expect("the primary reads");
            std::thread::sleep(Duration::from_millis(100));
        }
        assert_eq!(number(&mut client, "replication", "connected_slaves"), 1, "{}", primary.log());
        assert!(!primary.log().contains("Disconnecting timedout replica"), "{}", primary.log());
        eventually("it is closed without them", || primary.log().contains("Disconnecting timedout replica"));
    });
}

/// `redis-cli --rdb` and `redis-cli --replica`.
#[test]
fn redis_cli_copies_the_dataset() {
    let Some(program) = tool::find("redis-cli") else { return };
    for_each_backend(|backend| {
        let primary = Server::pantala(backend, &PRIMARY);
        let mut client = primary.connect();
        client.call("DEBUG POPULATE 3000 key 200");
        let file = primary.folder().join("copy.rdb");
        let file = file.to_str().expect("a UTF-8 path");
        let ran = tool::run(&program, primary.port(), &["--rdb", file], b"", RUN_MAX);
        assert!(ran.success, "{ran:?}");
        let digest = client.call("DEBUG DIGEST").text();
        let folder = primary.folder().to_str().expect("a UTF-8 path").to_owned();
        let Some(copy) = Server::redis(&["--dir", &folder, "--dbfilename", "copy.rdb"]) else { return };
        assert_eq!(copy.connect().call("DEBUG DIGEST").text(), digest);
        eventually("it is no longer a replica", || number(&mut client, "replication", "connected_slaves") == 0);
    });
}

/// SIGTERM and `SHUTDOWN SAVE` wait for replicas. The snapshot contains the replication ID and the
/// offset, so a replica needs no full sync after the restart.
#[test]
fn a_restarted_primary_continues_its_history() {
    let by_signal = |primary: &Server| primary.signal(Signal::TERM);
    for_each_backend(|backend| restart_and_continue(backend, by_signal));
    restart_and_continue(Backend::all()[0], |primary| primary.connect().send(&["SHUTDOWN", "SAVE"]));
}

/// Stops a primary under load by `stop`, starts it again, and checks that a replica continues.
fn restart_and_continue(backend: Backend, stop: fn(&Server)) {
    {
        let port = pantala_tests::server::free_port();
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().to_str().expect("a UTF-8 path");
        let options = ["--dir", path, "--repl-diskless-sync-delay", "0", "--workers", "2"];
        let options = [&options[..], &["--enable-debug-command", "yes"]].concat();
        let mut primary = Server::pantala_at(port, backend, &options).expect("the port is free");
        let Some(replica) = redis_of(&primary, &[]) else { return };
        let seed = Random::seed("a_restarted_primary_continues_its_history");
        under_load(&primary, seed, || {
            let mut client = primary.connect();
            eventually("clients have written", || number(&mut client, "stats", "total_commands_processed") > 3000);
        });
        stop(&primary);
        assert!(primary.wait_exit(RUN_MAX).success());
        assert!(primary.log().contains("1 of 1 replicas are in sync when shutting down."), "{}", primary.log());
        drop(primary);
        let primary = Server::pantala_at(port, backend, &options).expect("the port is free again");
        let mut client = primary.connect();
        eventually("the replica is back", || number(&mut client, "replication", "connected_slaves") == 1);
        assert_eq!(number(&mut client, "stats", "sync_partial_ok"), 1, "{}", primary.log());
        assert_eq!(number(&mut client, "stats", "sync_full"), 0);
        client.call("SET later 1");
        assert_equal(&primary, &[&replica]);
    }
}

/// Keys that expire during a restart of their primary are deleted on replicas, which continue
/// without a full sync. With an LRU or LFU policy, the snapshot also has access times.
#[test]
fn keys_that_expire_during_a_restart_are_deleted_on_replicas() {
    const TTL: Duration = Duration::from_secs(1);
    for policy in ["noeviction", "allkeys-lru", "allkeys-lfu"] {
        let port = pantala_tests::server::free_port();
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().to_str().expect("a UTF-8 path");
        let options = ["--dir", path, "--repl-diskless-sync-delay", "0", "--maxmemory-policy", policy];
        let options = [&options[..], &["--enable-debug-command", "yes"]].concat();
        let mut primary = Server::pantala_at(port, Backend::all()[0], &options).expect("the port is free");
        let Some(replica) = redis_of(&primary, &[]) else { return };
        let mut client = primary.connect();
        eventually("it is online", || info(&mut client, "replication", "slave0").contains("state=online"));
        let ttl_ms = TTL.as_millis();
        assert_eq!(client.call(&format!("SET counter 41 PX {ttl_ms}")), Reply::ok());
        assert_eq!(client.call("RPUSH list old"), Reply::Integer(1));
        assert_eq!(client.call(&format!("PEXPIRE list {ttl_ms}")), Reply::Integer(1));
        let expired = Instant::now() + TTL;
        client.send(&["SHUTDOWN", "SAVE"]);
        assert!(primary.wait_exit(RUN_MAX).success());
        drop(primary);
        std::thread::sleep(expired.saturating_duration_since(Instant::now()) + Duration::from_millis(50));
        let primary = Server::pantala_at(port, Backend::all()[0], &options).expect("the port is free again");
        let mut client = primary.connect();
        eventually("the replica is back", || number(&mut client, "replication", "connected_slaves") == 1);
        assert_eq!(number(&mut client, "stats", "sync_full"), 0, "{}", primary.log());
        assert_eq!(client.call("INCR counter"), Reply::Integer(1));
        assert_eq!(client.call("RPUSH list new"), Reply::Integer(1));
        assert_eq!(number(&mut client, "stats", "expired_keys"), 2, "{policy}: the snapshot had both keys");
        assert_equal(&primary, &[&replica]);
        assert_eq!(replica.connect().call("GET counter"), Reply::bulk("1"), "{policy}");
    }
}

/// As in Redis, `INFO` has separate counters for the bytes of replication links.
#[test]
fn bytes_of_replication_are_counted_apart() {
    const VALUE_BYTES: usize = 1 << 20;
    for_each_backend(|backend| {
        let primary = Server::pantala(backend, &PRIMARY);
        let replica = Server::pantala(backend, &PRIMARY);
        let (mut client, mut reader) = (primary.connect(), replica.connect());
        // This value can't be compressed, so the snapshot is at least as long as the value.
        let mixed =
            |at: u64| (at + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let value: Vec<u8> = (0..VALUE_BYTES as u64).map(|at| (mixed(at) >> 56) as u8).collect();
        assert_eq!(client.command(&[b"SET".as_slice(), b"before", &value]), Reply::ok());
        for client in [&mut client, &mut reader] {
            assert_eq!(client.call("CONFIG RESETSTAT"), Reply::ok());
        }
        follow(&replica, &primary);
        let output = |client: &mut Client| number(client, "stats", "total_net_repl_output_bytes");
        eventually("the snapshot is counted", || output(&mut client) as usize > VALUE_BYTES / 2);
        let synced = output(&mut client);
        assert!(number(&mut reader, "stats", "total_net_repl_input_bytes") as usize > VALUE_BYTES / 2);
        assert_eq!(client.command(&[b"SET".as_slice(), b"after", &value]), Reply::ok());
        assert_eq!(client.call("WAIT 1 0"), Reply::Integer(1));
        assert!((output(&mut client) - synced) as usize >= VALUE_BYTES);
        assert!(number(&mut reader, "stats", "total_net_repl_input_bytes") as usize >= VALUE_BYTES * 3 / 2);
        for name in ["total_net_output_bytes", "total_net_input_bytes"] {
            let (primary, replica) = (number(&mut client, "stats", name), number(&mut reader, "stats", name));
            assert!(primary >= VALUE_BYTES as u64, "{name}: {primary}");
            assert_eq!(replica >= VALUE_BYTES as u64, name == "total_net_input_bytes", "{name}: {replica}");
        }
    });
}

/// `SHUTDOWN` waits for a replica that does not acknowledge. During this wait, writes and further
/// `SHUTDOWN`s wait too. `SHUTDOWN ABORT` ends the wait. `SHUTDOWN NOW` does not wait, and neither
/// does a shutdown without replicas.
#[test]
fn shutdown_waits_for_a_lagging_replica_and_can_be_aborted() {
    const FAILED: &str = "ERR Errors trying to SHUTDOWN. Check logs.";
    for_each_backend(|backend| {
        let options = [&PRIMARY[..], &["--shutdown-timeout", "100"]].concat();
        let mut primary = Server::pantala(backend, &options);
        let mut client = primary.connect();
        assert_eq!(client.call("SHUTDOWN ABORT").text(), "ERR No shutdown in progress.");
        let mut replica = ByHand::connect(&primary);
        assert_eq!(replica.call("REPLCONF capa psync2"), "+OK");
        replica.send("PSYNC ? -1");
        assert!(replica.line().starts_with("+FULLRESYNC"));
        // The replica acknowledges the snapshot, and nothing after it.
        eventually("the snapshot is sent", || {
            replica.send("REPLCONF ACK 0");
            info(&mut client, "replication", "slave0").contains("state=online")
        });
        client.call("SET key 1");
        let mut writer = primary.connect();
        for round in 1..=2 {
            let mut stoppers = [primary.connect(), primary.connect()];
            stoppers.iter_mut().for_each(|stopper| stopper.send(&["SHUTDOWN", "NOSAVE"]));
            eventually("both wait", || number(&mut client, "clients", "blocked_clients") == 2);
            let left_ms = number(&mut client, "server", "shutdown_in_milliseconds");
            assert!((50_000..=100_000).contains(&left_ms), "{left_ms}");
            writer.send(&["INCR", "counter"]);
            assert!(!writer.has_reply_within(Duration::from_millis(100)), "writes wait");
            // As in Redis, `CLIENT UNPAUSE` does not end the pause that `SHUTDOWN` has started.
            assert_eq!(client.call("CLIENT UNPAUSE"), Reply::ok());
            assert!(!writer.has_reply_within(Duration::from_millis(100)), "writes still wait");
            assert_eq!(client.call("GET key"), Reply::bulk("1"));
            assert_eq!(client.call("SHUTDOWN ABORT"), Reply::ok());
            for stopper in &mut stoppers {
                assert_eq!(stopper.receive().text(), FAILED);
                assert_eq!(stopper.call("PING"), Reply::Simple("PONG".to_owned()), "the client is no longer blocked");
            }
            assert_eq!(writer.receive(), Reply::Integer(round), "{}", primary.log());
            assert_eq!(client.call("SHUTDOWN ABORT").text(), "ERR No shutdown in progress.");
            assert!(!client.call("INFO server").text().contains("shutdown_in_milliseconds"));
        }
        client.send(&["SHUTDOWN", "NOSAVE", "NOW"]);
        assert!(primary.wait_exit(RUN_MAX).success());
    });
}

/// `min-replicas-to-write`: writes of clients, transactions and scripts are rejected if too few
/// replicas have acknowledged recently. (Redis calls a replica with a recent acknowledgement good.)
#[test]
fn writes_need_good_replicas_if_the_settings_say_so() {
    const NO: &str = "NOREPLICAS Not enough good replicas to write.";
    for_all_backends(|backend| {
        let primary = Server::pantala(backend, &[&PRIMARY[..], &["--min-replicas-to-write", "1"]].concat());
        let mut client = primary.connect();
        let rejected = Reply::Error(NO.to_owned());
        assert_eq!(client.call("SET key 1"), rejected);
        assert_eq!(client.call("GET key"), Reply::Null);
        assert_eq!(info(&mut client, "replication", "min_slaves_good_slaves"), "0");
        let script = client.command(&["EVAL", "return redis.call('set', KEYS[1], 1)", "1", "key"]);
        assert!(matches!(&script, Reply::Error(text) if text.contains("NOREPLICAS")), "{script:?}");
        assert_eq!(client.call("CONFIG SET min-replicas-to-write 0"), Reply::ok());
        assert_eq!(client.call("SET key 2"), Reply::ok());
        assert_eq!(client.call("CONFIG SET min-replicas-to-write 1"), Reply::ok());
        assert_eq!(client.call("SET key 3"), rejected);
        // A change of the role takes effect at once.
        assert_eq!(client.call("REPLICAOF 127.0.0.1 1"), Reply::ok());
        assert!(client.call("SET key 3").text().starts_with("READONLY"));
        assert_eq!(client.call("REPLICAOF NO ONE"), Reply::ok());
        assert_eq!(client.call("SET key 3"), rejected);
        let Some(replica) = redis_of(&primary, &[]) else { return };
        eventually("it acknowledges", || client.call("SET key 4") == Reply::ok());
        assert_eq!(client.call("CONFIG SET min-replicas-max-lag 1"), Reply::ok());
        replica.connect().send(&["DEBUG", "SLEEP", "4"]);
        eventually("it lags", || client.call("SET key 5") == rejected);
        eventually("it acknowledges again", || client.call("SET key 6") == Reply::ok());
    });
}
