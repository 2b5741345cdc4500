//! Tests a disk that is slower than the writers. The fault `stuck-disk` stops the thread that
//! writes the append-only file.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use pantala_tests::client::encode;
use pantala_tests::waiting::{PATIENCE, eventually};
use pantala_tests::{Backend, Client, Reply, Server, for_each_backend};

const MIB: usize = 1 << 20;

/// The server's limit for bytes that wait to be written to the append-only file
/// (`UNWRITTEN_BYTES_MAX` in `aof/gate.rs`). At this limit, replies to writes wait until bytes have
/// been written, and so do the next commands of these clients.
const UNWRITTEN_BYTES_MAX: u64 = 256 << 20;

pub fn field(client: &mut Client, section: &str, name: &str) -> u64 {
    let info = client.call(&format!("INFO {section}")).text();
    let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("no {name} in {info}")).trim().parse().expect("a number")
}

fn buffer(client: &mut Client) -> u64 {
    field(client, "persistence", "aof_buffer_length")
}

fn writes_wait(client: &mut Client) -> bool {
    field(client, "persistence", "aof_writes_wait") == 1
}

pub fn stick(client: &mut Client, is_stuck: bool) {
    let permille = if is_stuck { 1000 } else { 0 };
    assert_eq!(client.call(&format!("DEBUG FAULT stuck-disk {permille}")), Reply::ok());
}

#[test]
fn info_has_the_number_of_unwritten_bytes() {
    for_each_backend(|backend| {
        let server = Server::pantala(
            backend,
            &["--workers", "2", "--appendonly", "yes", "--save", "", "--auto-aof-rewrite-percentage", "0"],
        );
        let mut client = server.connect();
        assert_eq!(buffer(&mut client), 0);
        stick(&mut client, true);
        let value = vec![b'x'; MIB];
        for key in 0..10 {
            assert_eq!(client.command(&[b"SET", format!("key:{key}").as_bytes(), &value]), Reply::ok());
        }
        let expected = 10 * MIB as u64..11 * MIB as u64;
        eventually("the effects are buffered", || expected.contains(&buffer(&mut client)));
        assert!(expected.contains(&field(&mut client, "memory", "mem_aof_buffer")));
        stick(&mut client, false);
        eventually("they are written", || buffer(&mut client) == 0);
        assert_eq!(field(&mut client, "memory", "mem_aof_buffer"), 0);
    });
}

#[test]
fn a_disk_that_stalls_is_logged_while_it_stalls() {
    for_each_backend(|backend| {
        let server = Server::pantala(backend, &["--workers", "2", "--appendonly", "yes", "--save", ""]);
        let mut client = server.connect();
        let is_logged = || server.log().contains("Writing the AOF is taking too long");
        assert_eq!(client.call("SET key 1"), Reply::ok());
        stick(&mut client, true);
        assert_eq!(client.call("SET key 2"), Reply::ok());
        assert!(!is_logged(), "it has only begun");
        eventually("the stall is logged", is_logged);
        stick(&mut client, false);
        eventually("the effects are written", || buffer(&mut client) == 0);
    });
}

#[test]
fn writes_wait_for_a_disk_that_is_too_far_behind_and_reads_do_not() {
    const WRITES: usize = 400;
    for_each_backend(|backend| {
        let mut server = Server::pantala(
            backend,
            &["--workers", "2", "--appendonly", "yes", "--save", "", "--auto-aof-rewrite-percentage", "0"],
        );
        let mut client = server.connect();
        stick(&mut client, true);
        // The second writer has turned its replies off. Its commands must also be delayed.
        for mut writer in [server.connect(), server.connect()] {
            let is_silent = client.call("EXISTS key").integer() == 1;
            if is_silent {
                writer.send_raw(&encode(&["CLIENT", "REPLY", "OFF"]));
            }
            let request = encode(&[b"SET".as_slice(), b"key", &vec![b'x'; MIB]]);
            std::thread::scope(|scope| {
                let writing = scope.spawn(|| {
                    for _ in 0..WRITES {
                        writer.send_raw(&request);
                        if !is_silent {
                            assert_eq!(writer.receive(), Reply::ok());
                        }
                    }
                    if is_silent {
                        writer.send_raw(&encode(&["CLIENT", "REPLY", "ON"]));
                        assert_eq!(writer.receive(), Reply::ok());
                    }
                });
                eventually("the disk is too far behind", || writes_wait(&mut client));
                // Reads get replies. Other writes run, but their replies wait.
                let mut other = server.connect();
                other.send(&["SET", "other", "value"]);
                eventually("the write has run", || client.call("EXISTS other") == Reply::Integer(1));
                for _ in 0..100 {
                    assert_eq!(client.call("STRLEN key"), Reply::Integer(MIB as i64));
                }
                other.set_read_timeout(Duration::from_millis(50));
                assert!(other.try_receive().is_err(), "the reply waits");
                let waiting = buffer(&mut client);
                assert!(waiting < UNWRITTEN_BYTES_MAX + 64 * MIB as u64, "{waiting} bytes");
                assert!(!writing.is_finished());
                stick(&mut client, false);
                other.set_read_timeout(PATIENCE);
                assert_eq!(other.receive(), Reply::ok());
                writing.join().expect("all writes succeed");
                eventually("everything is written", || buffer(&mut client) == 0);
                assert_eq!(client.call("DEL other"), Reply::Integer(1));
                stick(&mut client, true);
            });
        }
        // After `CONFIG SET appendonly no`, the server sends the replies that waited for the disk.
        let request = encode(&[b"SET".as_slice(), b"key", &vec![b'x'; MIB]]);
        let mut writer = server.connect();
        std::thread::scope(|scope| {
            let writing = scope.spawn(|| {
                for _ in 0..WRITES {
                    writer.send_raw(&request);
                    assert_eq!(writer.receive(), Reply::ok());
                }
            });
            eventually("the disk is too far behind", || writes_wait(&mut client));
            assert_eq!(client.call("CONFIG SET appendonly no"), Reply::ok());
            writing.join().expect("all writes succeed");
        });
        stick(&mut client, false);
        server.assert_sound();
    });
}

/// Readers do not wait, even if they share a worker and its turns with the writer, and even at the
/// moment when the disk falls behind.
#[test]
fn no_reader_waits_when_the_disk_falls_behind() {
    const ROUNDS: usize = 3;
    const READERS: usize = 4;
    for_each_backend(|backend| {
        let mut server = Server::pantala(
            backend,
            &["--workers", "1", "--appendonly", "yes", "--save", "", "--auto-aof-rewrite-percentage", "0"],
        );
        let request = encode(&[b"SET".as_slice(), b"key", &vec![b'x'; MIB]]);
        for _ in 0..ROUNDS {
            stick(&mut server.connect(), true);
            let is_over = AtomicBool::new(false);
            let mut writer = server.connect();
            std::thread::scope(|scope| {
                let writing = scope.spawn(|| {
                    while !is_over.load(Ordering::Relaxed) {
                        writer.send_raw(&request);
                        assert_eq!(writer.receive(), Reply::ok());
                    }
                });
                let read = || {
                    let mut reader = server.connect();
                    reader.set_read_timeout(PATIENCE / 2);
                    while !is_over.load(Ordering::Relaxed) {
                        reader.send(&["INFO", "everything"]);
                        if reader.try_receive().is_err() {
                            return false;
                        }
                    }
                    true
                };
                let readers: Vec<_> = (0..READERS).map(|_| scope.spawn(read)).collect();
                // The read that `writes_wait` sends may have to wait like any other, so it uses its
                // own connection.
                eventually("the disk is too far behind", || writes_wait(&mut server.connect()));
                std::thread::sleep(Duration::from_millis(100));
                is_over.store(true, Ordering::Relaxed);
                let is_served = readers.into_iter().map(|reader| reader.join().expect("it has read"));
                let served = is_served.filter(|is_served| *is_served).count();
                stick(&mut server.connect(), false);
                assert_eq!(served, READERS, "readers that got all their replies");
                writing.join().expect("all writes succeed");
            });
            eventually("everything is written", || buffer(&mut server.connect()) == 0);
        }
        server.assert_sound();
    });
}

/// A pipeline whose commands run on another worker is also delayed.
#[test]
fn a_pipeline_on_another_worker_is_delayed() {
    const WRITES: usize = 400;
    for_each_backend(|backend| {
        let mut server = Server::pantala(
            backend,
            &[
                "--workers",
                "2",
                "--execution",
                "owner",
                "--appendonly",
                "yes",
                "--save",
                "",
                "--auto-aof-rewrite-percentage",
                "0",
            ],
        );
        let mut client = server.connect();
        stick(&mut client, true);
        let value = vec![b'x'; MIB];
        // At least one writer's key belongs to the other worker.
        let mut writers = [server.connect(), server.connect()];
        std::thread::scope(|scope| {
            let mut writing = Vec::new();
            for (number, writer) in writers.iter_mut().enumerate() {
                writer.send_raw(&encode(&["CLIENT", "REPLY", "OFF"]));
                let request = encode(&[b"SET".as_slice(), format!("key{number}").as_bytes(), &value]);
                writing.push(scope.spawn(move || (0..WRITES).for_each(|_| writer.send_raw(&request))));
            }
            eventually("the disk is too far behind", || writes_wait(&mut client));
            // If the pipeline weren't delayed, the effects of its commands would exceed the limit
            // during this sleep.
            std::thread::sleep(Duration::from_millis(300));
            let waiting = buffer(&mut client);
            assert!(waiting < UNWRITTEN_BYTES_MAX + 64 * MIB as u64, "{waiting} bytes");
            assert!(writing.iter().any(|writing| !writing.is_finished()));
            stick(&mut client, false);
        });
        eventually("everything is written", || buffer(&mut client) == 0);
        server.assert_sound();
    });
}

/// Sends a command whose reply must wait for the disk.
fn send_waiting(client: &mut Client, words: &[&str]) {
    client.send(words);
    client.set_read_timeout(Duration::from_millis(50));
    assert!(client.try_receive().is_err(), "the reply to {words:?} waits");
    client.set_read_timeout(PATIENCE);
}

/// With `appendfsync always`, the reply to a command that has read another client's write waits
/// until the write is synced.
#[test]
fn no_command_shows_a_write_that_is_not_on_disk() {
    const READS: [&str; 18] = [
        "GET string",
        "MGET string other",
        "EXISTS string",
        "TYPE string",
        "DUMP string",
        "SORT list",
        "SORT list BY nosort GET string",
        "SORT_RO list",
        "SCAN 0 COUNT 1000",
        "KEYS *",
        "RANDOMKEY",
        "XREAD STREAMS stream 0",
        "XREAD BLOCK 0 STREAMS stream 0",
        "XREADGROUP GROUP group consumer STREAMS stream 0",
        "GEORADIUS_RO places 0 0 100 km",
        "GEORADIUS places 0 0 100 km",
        "EVAL_RO return(redis.call('GET','string')) 1 string",
        "PFCOUNT counter",
    ];
    for_each_backend(|backend| {
        let mut server = Server::pantala(
            backend,
            &["--workers", "2", "--appendonly", "yes", "--appendfsync", "always", "--save", ""],
        );
        let (mut writer, mut reader) = (server.connect(), server.connect());
        assert_eq!(writer.call("CLIENT DURABILITY everysec"), Reply::ok());
        assert_eq!(writer.call("XGROUP CREATE stream group 0 MKSTREAM"), Reply::ok());
        for (number, read) in READS.iter().enumerate() {
            stick(&mut writer, true);
            assert_eq!(writer.call(&format!("SET string {number}")), Reply::ok());
            for write in ["RPUSH list", "XADD stream * field", "GEOADD places 0 0", "PFADD counter"] {
                writer.call(&format!("{write} {number}"));
            }
            send_waiting(&mut reader, &read.split(' ').collect::<Vec<_>>());
            stick(&mut writer, false);
            let reply = reader.receive();
            assert!(!matches!(reply, Reply::Error(_)), "{read}: {reply:?}");
        }
        server.assert_sound();
    });
}

/// `CLIENT DURABILITY` overrides `appendfsync` for the replies of one connection.
#[test]
fn clients_choose_whether_their_replies_wait_for_the_disk() {
    for_each_backend(|backend| {
        let mut server = Server::pantala(
            backend,
            &["--workers", "2", "--appendonly", "yes", "--save", "", "--auto-aof-rewrite-percentage", "0"],
        );
        let (mut client, mut asking, mut other) = (server.connect(), server.connect(), server.connect());
        assert_eq!(asking.call("CLIENT DURABILITY always"), Reply::ok());
        // For this client, the file is synced at once instead of once a second.
        let began = Instant::now();
        for number in 0..20 {
            assert_eq!(asking.call(&format!("SET a {number}")), Reply::ok());
            assert_eq!(asking.call("GET a"), Reply::bulk(number.to_string()));
        }
        assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
        stick(&mut client, true);
        send_waiting(&mut asking, &["SET", "a", "1"]);
        // Replies to other clients don't wait. But a read of a write that isn't on disk yet waits
        // if the reading client has chosen `always`.
        assert_eq!(client.call("SET b 1"), Reply::ok());
        assert_eq!(client.call("GET a"), Reply::bulk("1"));
        assert_eq!(other.call("CLIENT DURABILITY always"), Reply::ok());
        send_waiting(&mut other, &["GET", "b"]);
        stick(&mut client, false);
        assert_eq!(asking.receive(), Reply::ok());
        assert_eq!(other.receive(), Reply::bulk("1"));
        // A `CLIENT DURABILITY` at the end of a pipeline does not apply to the commands before it.
        stick(&mut client, true);
        let pipeline = [encode(&["SET", "a", "2"]), encode(&["CLIENT", "DURABILITY", "default"])].concat();
        asking.send_raw(&pipeline);
        send_waiting(&mut other, &["SET", "c", "1"]);
        drop(other);
        asking.set_read_timeout(Duration::from_millis(50));
        assert!(asking.try_receive().is_err(), "it waits even if no other client requests it");
        asking.set_read_timeout(PATIENCE);
        stick(&mut client, false);
        assert_eq!([asking.receive(), asking.receive()], [Reply::ok(), Reply::ok()]);
        stick(&mut client, true);
        assert_eq!(asking.call("SET a 3"), Reply::ok());
        stick(&mut client, false);
        // RESET restores the default. `always` has no effect while the append-only file is off.
        assert_eq!(asking.call("CLIENT DURABILITY always"), Reply::ok());
        assert_eq!(asking.call("RESET").text(), "RESET");
        stick(&mut client, true);
        assert_eq!(asking.call("SET a 4"), Reply::ok());
        stick(&mut client, false);
        assert_eq!(asking.call("CLIENT DURABILITY always"), Reply::ok());
        stick(&mut client, true);
        send_waiting(&mut asking, &["SET", "a", "5"]);
        assert_eq!(client.call("CONFIG SET appendonly no"), Reply::ok());
        assert_eq!(asking.receive(), Reply::ok());
        assert_eq!(asking.call("SET a 6"), Reply::ok());
        stick(&mut client, false);
        assert_eq!(client.call("CONFIG SET appendonly yes"), Reply::ok());
        eventually("the base is written", || field(&mut client, "persistence", "aof_rewrite_in_progress") == 0);
        stick(&mut client, true);
        send_waiting(&mut asking, &["SET", "a", "7"]);
        stick(&mut client, false);
        assert_eq!(asking.receive(), Reply::ok());
        // Conversely, although the server has `appendfsync always`, a client chooses that its
        // replies don't wait for syncs.
        assert_eq!(client.call("CONFIG SET appendfsync always"), Reply::ok());
        assert_eq!(client.call("CLIENT DURABILITY everysec"), Reply::ok());
        assert_eq!(asking.call("CLIENT DURABILITY default"), Reply::ok());
        stick(&mut client, true);
        assert_eq!(client.call("SET b 2"), Reply::ok());
        send_waiting(&mut asking, &["GET", "b"]);
        stick(&mut client, false);
        assert_eq!(asking.receive(), Reply::bulk("2"));
        server.assert_sound();
    });
}

fn text(client: &mut Client, name: &str) -> String {
    let info = client.call("INFO persistence").text();
    let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("no {name} in {info}")).trim().to_owned()
}

/// Writes and reads keys of all shards. Fails if a worker does not reply.
pub fn assert_served(server: &Server, round: &str) {
    for client in [&mut server.connect(), &mut server.connect()] {
        client.set_read_timeout(PATIENCE);
        for key in 0..100 {
            assert_eq!(client.call(&format!("SET key:{key} {round}")), Reply::ok());
            assert_eq!(client.call(&format!("GET key:{key}")), Reply::bulk(round));
        }
    }
}

/// Waits for the base that is being written, and asserts that it was written and that no effect is
/// left in memory. Then restarts the server, which must load the values of this round.
fn assert_rewritten(mut server: Server, backend: Backend, args: &[&str], round: &str) {
    let mut client = server.connect();
    // One reply of INFO, because a rewrite may start between two.
    eventually("the base is written", || {
        let info = client.call("INFO persistence").text();
        ["aof_enabled:1", "aof_rewrite_in_progress:0", "aof_rewrite_scheduled:0"].iter().all(|line| info.contains(line))
    });
    assert_eq!(text(&mut client, "aof_last_bgrewrite_status"), "ok");
    eventually("all is written", || buffer(&mut client) == 0);
    server.assert_sound();
    server.kill();
    let server = Server::pantala(backend, args);
    let mut client = server.connect();
    for key in 0..100 {
        assert_eq!(client.call(&format!("GET key:{key}")), Reply::bulk(round), "{}", server.log());
    }
}

/// Asserts that a rewrite, which has begun or is about to begin, stops no worker while the disk is
/// stuck, and succeeds afterwards.
fn assert_rewrite_stops_no_worker(server: Server, backend: Backend, args: &[&str]) {
    let mut client = server.connect();
    eventually("the rewrite runs", || text(&mut client, "aof_rewrite_in_progress") == "1");
    assert_served(&server, "meanwhile");
    assert_eq!(text(&mut client, "aof_rewrite_in_progress"), "1", "the disk is stuck");
    stick(&mut client, false);
    assert_rewritten(server, backend, args, "meanwhile");
}

/// The worker that starts a rewrite holds all shards, so it must not wait for the disk.
#[test]
fn a_rewrite_stops_no_worker_while_the_disk_is_stuck() {
    for_each_backend(|backend| {
        let folder = tempfile::tempdir().expect("a folder");
        let dir = folder.path().to_str().expect("a UTF-8 path");
        let args = ["--workers", "2", "--appendonly", "yes", "--save", "", "--dir", dir];
        let server = Server::pantala(backend, &[&args[..], &["--auto-aof-rewrite-percentage", "0"]].concat());
        let mut client = server.connect();
        assert_served(&server, "before");
        stick(&mut client, true);
        assert!(client.call("BGREWRITEAOF").text().contains("started"));
        assert_rewrite_stops_no_worker(server, backend, &args);
    });
}

/// The first rewrite starts the thread that writes the append-only file. Starting this thread must
/// not stop a worker either. The client of `CONFIG SET appendonly yes` waits for the disk, so the
/// disk becomes stuck only after that command. Until then, a slow snapshot delays the rewrite.
#[test]
fn the_first_rewrite_stops_no_worker_while_the_disk_is_stuck() {
    for_each_backend(|backend| {
        let folder = tempfile::tempdir().expect("a folder");
        let dir = folder.path().to_str().expect("a UTF-8 path");
        let args = ["--workers", "2", "--save", "", "--dir", dir];
        let server = Server::pantala(backend, &args);
        let mut client = server.connect();
        assert_served(&server, "before");
        assert_eq!(client.call("DEBUG FAULT slow-walk 1000"), Reply::ok());
        assert!(!matches!(client.call("BGSAVE"), Reply::Error(_)));
        assert_eq!(client.call("CONFIG SET appendonly yes"), Reply::ok());
        assert_eq!(text(&mut client, "aof_rewrite_scheduled"), "1");
        stick(&mut client, true);
        assert_eq!(client.call("DEBUG FAULT slow-walk 0"), Reply::ok());
        assert_rewrite_stops_no_worker(server, backend, &[&args[..], &["--appendonly", "yes"]].concat());
    });
}

/// `CONFIG SET appendonly yes` creates files. Only its client waits for them.
#[test]
fn turning_it_on_stops_no_worker_while_the_disk_is_stuck() {
    for_each_backend(|backend| {
        let folder = tempfile::tempdir().expect("a folder");
        let dir = folder.path().to_str().expect("a UTF-8 path");
        let args = ["--workers", "1", "--save", "", "--dir", dir];
        let server = Server::pantala(backend, &args);
        let mut client = server.connect();
        client.set_read_timeout(PATIENCE);
        assert_served(&server, "before");
        stick(&mut client, true);
        let mut waiting = [server.connect(), server.connect()];
        waiting[0].send(&["CONFIG", "SET", "appendonly", "yes", "timeout", "77"]);
        waiting[1].send(&["CONFIG", "SET", "appendonly", "yes"]);
        waiting[1].send(&["SET", "later", "1"]);
        eventually("both wait", || field(&mut client, "clients", "blocked_clients") == 2);
        assert_served(&server, "meanwhile");
        assert_eq!(client.call("GET later"), Reply::Null, "it follows a command that waits");
        // The configuration can be read and changed.
        assert_eq!(client.call("CONFIG GET appendonly").elements()[1].text(), "no");
        assert_eq!(client.call("CONFIG SET hz 20"), Reply::ok());
        // Errors don't wait for the disk.
        for (command, error) in [
            ("CONFIG SET appendonly yes nothing 1", "Unknown option or number of arguments"),
            ("CONFIG SET appendonly yes timeout x", "argument couldn't be parsed into an integer"),
        ] {
            assert!(client.call(command).text().contains(error), "{command}");
        }
        let id = client.call("CLIENT LIST").text();
        let id = id.lines().find(|line| line.contains("flags=b"));
        let id = id.and_then(|line| line.strip_prefix("id=")?.split(' ').next()).expect("a client that waits");
        assert_eq!(client.call(&format!("CLIENT UNBLOCK {id}")), Reply::Integer(0));
        assert_eq!(field(&mut client, "clients", "blocked_clients"), 2);
        stick(&mut client, false);
        for waiting in &mut waiting {
            assert_eq!(waiting.receive(), Reply::ok());
        }
        assert_eq!(waiting[1].receive(), Reply::ok());
        assert_eq!(client.call("CONFIG GET timeout").elements()[1].text(), "77");
        assert_eq!(client.call("CONFIG GET hz").elements()[1].text(), "20");
        assert_eq!(client.call("CONFIG SET timeout 0"), Reply::ok());
        assert_rewritten(server, backend, &[&args[..], &["--appendonly", "yes"]].concat(), "meanwhile");
    });
}

/// A transaction can't wait. As in Redis, its rewrite is scheduled, and errors are only logged.
#[test]
fn a_transaction_turns_it_on_while_the_disk_is_stuck() {
    for_each_backend(|backend| {
        let folder = tempfile::tempdir().expect("a folder");
        let dir = folder.path().to_str().expect("a UTF-8 path");
        let args = ["--workers", "1", "--save", "", "--dir", dir];
        let server = Server::pantala(backend, &args);
        let mut client = server.connect();
        client.set_read_timeout(PATIENCE);
        stick(&mut client, true);
        for command in ["MULTI", "SET a 1", "CONFIG SET appendonly yes"] {
            client.call(command);
        }
        assert_eq!(client.call("EXEC"), Reply::Array(vec![Reply::ok(), Reply::ok()]));
        assert!(server.log().contains("AOF was enabled during a transaction."), "{}", server.log());
        eventually("the rewrite runs", || text(&mut client, "aof_rewrite_in_progress") == "1");
        assert_served(&server, "meanwhile");
        // The file is turned off and on again before the first thread has opened a file.
        assert_eq!(client.call("CONFIG SET appendonly no"), Reply::ok());
        let mut waiting = server.connect();
        waiting.send(&["CONFIG", "SET", "appendonly", "yes"]);
        assert_served(&server, "afterwards");
        stick(&mut client, false);
        assert_eq!(waiting.receive(), Reply::ok());
        assert_rewritten(server, backend, &[&args[..], &["--appendonly", "yes"]].concat(), "afterwards");
    });
}

/// A writer thread that waits for the files of its predecessor must end as soon as the file is
/// turned off. Otherwise the log of effects would grow in memory until its predecessor has ended.
#[test]
fn a_writer_that_waits_for_the_files_ends_when_it_is_stopped() {
    for_each_backend(|backend| {
        let folder = tempfile::tempdir().expect("a folder");
        let dir = folder.path().to_str().expect("a UTF-8 path");
        let args = ["--workers", "1", "--save", "", "--dir", dir, "--appendonly", "yes"];
        let server = Server::pantala(backend, &args);
        let mut client = server.connect();
        client.set_read_timeout(PATIENCE);
        eventually("the first thread runs", || server.threads("pantala-aof") == 1);
        stick(&mut client, true);
        assert_served(&server, "before");
        assert_eq!(client.call("CONFIG SET appendonly no"), Reply::ok());
        for command in ["MULTI", "CONFIG SET appendonly yes"] {
            client.call(command);
        }
        assert_eq!(client.call("EXEC"), Reply::Array(vec![Reply::ok()]));
        eventually("the second thread waits", || server.threads("pantala-aof") == 2);
        assert_eq!(client.call("CONFIG SET appendonly no"), Reply::ok());
        eventually("the second thread has ended", || server.threads("pantala-aof") == 1);
        stick(&mut client, false);
        eventually("the first thread has ended", || server.threads("pantala-aof") == 0);
        assert_eq!(client.call("CONFIG SET appendonly yes"), Reply::ok());
        assert_served(&server, "afterwards");
        assert_rewritten(server, backend, &args, "afterwards");
    });
}

/// `REPLICAOF` disconnects blocked clients, but not a `CONFIG SET` that waits for the disk: the
/// settings change in any case.
#[test]
fn a_demotion_does_not_interrupt_a_configuration_that_waits_for_the_disk() {
    for_each_backend(|backend| {
        let folder = tempfile::tempdir().expect("a folder");
        let dir = folder.path().to_str().expect("a UTF-8 path");
        let mut server = Server::pantala(backend, &["--workers", "1", "--save", "", "--dir", dir]);
        let (mut client, mut blocked, mut waiting) = (server.connect(), server.connect(), server.connect());
        client.set_read_timeout(PATIENCE);
        stick(&mut client, true);
        // The later client of the same worker is interrupted.
        waiting.send(&["CONFIG", "SET", "appendonly", "yes", "timeout", "77"]);
        eventually("it waits", || field(&mut client, "clients", "blocked_clients") == 1);
        blocked.send(&["BLPOP", "list", "0"]);
        eventually("both wait", || field(&mut client, "clients", "blocked_clients") == 2);
        assert_eq!(client.call("REPLICAOF 127.0.0.1 1"), Reply::ok());
        assert!(blocked.receive().text().starts_with("UNBLOCKED force unblock"));
        assert_eq!(field(&mut client, "clients", "blocked_clients"), 1);
        stick(&mut client, false);
        assert_eq!(waiting.receive(), Reply::ok());
        waiting.send(&["CONFIG", "GET", "timeout"]);
        assert_eq!(waiting.receive().elements()[1].text(), "77");
        server.assert_sound();
    });
}

/// The worker that starts a full sync holds all shards, so it must not open the file of the
/// snapshot (`repl-diskless-sync no`).
#[test]
fn a_full_sync_stops_no_worker_while_the_disk_is_stuck() {
    for_each_backend(|backend| {
        let server = Server::pantala(backend, &["--workers", "2", "--save", "", "--repl-diskless-sync", "no"]);
        let replica = Server::pantala(backend, &["--workers", "1", "--save", ""]);
        let mut client = server.connect();
        assert_served(&server, "before");
        stick(&mut client, true);
        assert_eq!(replica.connect().call(&format!("REPLICAOF 127.0.0.1 {}", server.port())), Reply::ok());
        eventually("the sync starts", || server.log().contains("Starting BGSAVE for SYNC with target: disk"));
        assert_served(&server, "meanwhile");
        stick(&mut client, false);
        let mut client = replica.connect();
        eventually("it ends", || client.call("GET key:99") == Reply::bulk("meanwhile"));
    });
}
