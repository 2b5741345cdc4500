//! Tests `WAITAOF`, a command of Redis 7.2, which waits until a connection's writes are on disk,
//! locally and on replicas.

use std::time::{Duration, Instant};

use pantala_tests::waiting::{eventually, wait_until_blocked};
use pantala_tests::{Backend, Client, Reply, Server, for_each_backend};
use tempfile::TempDir;

/// Options of a primary that sends a snapshot at once, instead of waiting for further replicas that
/// might request one.
const PRIMARY: [&str; 4] = ["--workers", "2", "--repl-diskless-sync-delay", "0"];

fn directory() -> TempDir {
    tempfile::Builder::new().prefix("pantala-waitaof-").tempdir().expect("a directory for the files")
}

/// Starts a server with an append-only file in `dir`.
fn start(backend: Backend, dir: &TempDir, more: &[&str]) -> Server {
    let dir = dir.path().to_str().expect("a UTF-8 path");
    Server::pantala(backend, &[&PRIMARY[..], &["--dir", dir, "--save", "", "--appendonly", "yes"], more].concat())
}

fn counts(local: i64, replicas: i64) -> Reply {
    Reply::Array(vec![Reply::Integer(local), Reply::Integer(replicas)])
}

fn follow(replica: &Server, primary: &Server) {
    let mut client = replica.connect();
    assert_eq!(client.call(&format!("REPLICAOF 127.0.0.1 {}", primary.port())), Reply::ok());
    eventually("the replica is linked", || client.call("INFO replication").text().contains("master_link_status:up"));
}

fn set_fault(client: &mut Client, permille: u32) -> bool {
    client.call(&format!("DEBUG FAULT stuck-disk {permille}")) == Reply::ok()
}

#[test]
fn errors_are_those_of_redis_7_2() {
    for_each_backend(|backend| {
        let server = Server::pantala(backend, &PRIMARY);
        let mut client = server.connect();
        for (command, error) in [
            ("WAITAOF 2 0 0", "ERR value is out of range, value must between 0 and 1"),
            ("WAITAOF -1 0 0", "ERR value is out of range, value must between 0 and 1"),
            ("WAITAOF x 0 0", "ERR value is not an integer or out of range"),
            ("WAITAOF 0 -1 0", "ERR value is out of range, must be positive"),
            ("WAITAOF 0 x 0", "ERR value is not an integer or out of range"),
            ("WAITAOF 0 0 x", "ERR timeout is not an integer or out of range"),
            ("WAITAOF 0 0 -1", "ERR timeout is negative"),
            ("WAITAOF 0 0", "ERR wrong number of arguments for 'waitaof' command"),
            ("WAITAOF 1 0 0", "ERR WAITAOF cannot be used when numlocal is set but appendonly is disabled."),
        ] {
            assert_eq!(client.call(command).text(), error, "{command}");
        }
        assert_eq!(client.call("WAITAOF 0 0 0"), counts(0, 0));
        assert_eq!(client.call("WAITAOF 0 1 20"), counts(0, 0));
        client.call("REPLICAOF 127.0.0.1 1");
        assert_eq!(
            client.call("WAITAOF 0 0 0").text(),
            "ERR WAITAOF cannot be used with replica instances. Please also note that writes to replicas are just \
             local and are not propagated."
        );
    });
}

/// A write that `WAITAOF` has confirmed survives an immediate kill, regardless of `appendfsync`.
#[test]
fn confirmed_writes_survive_a_kill() {
    for_each_backend(|backend| {
        for fsync in ["always", "everysec", "no"] {
            let dir = directory();
            let server = start(backend, &dir, &["--appendfsync", fsync]);
            let mut client = server.connect();
            for number in 0..20 {
                client.send(&["SET", "key", &number.to_string()]);
                client.send(&["WAITAOF", "1", "0", "0"]);
                assert_eq!(client.receive(), Reply::ok());
                assert_eq!(client.receive(), counts(1, 0), "{fsync}");
            }
            server.kill();
            let server = start(backend, &dir, &[]);
            assert_eq!(server.connect().call("GET key").text(), "19", "{fsync}");
        }
    });
}

#[test]
fn it_does_not_block_in_a_transaction() {
    for_each_backend(|backend| {
        for (fsync, local) in [("always", 1), ("everysec", 0)] {
            let dir = directory();
            let server = start(backend, &dir, &["--appendfsync", fsync]);
            let mut client = server.connect();
            client.call("MULTI");
            client.call("SET key 1");
            client.call("WAITAOF 1 0 0");
            assert_eq!(client.call("EXEC"), Reply::Array(vec![Reply::ok(), counts(local, 0)]), "{fsync}");
            assert_eq!(client.call("WAITAOF 0 1 20"), counts(local, 0), "{fsync}: after the timeout");
        }
    });
}

/// While the disk is stuck, `WAITAOF` waits until its timeout, or until it is unblocked.
#[test]
fn it_waits_for_a_stuck_disk() {
    for_each_backend(|backend| {
        let dir = directory();
        let server = start(backend, &dir, &[]);
        let (mut client, mut other) = (server.connect(), server.connect());
        if !set_fault(&mut other, 1000) {
            return eprintln!("SKIPPED: stuck-disk: this build has no faults");
        }
        client.call("SET key 1");
        let since = Instant::now();
        assert_eq!(client.call("WAITAOF 1 0 200"), counts(0, 0));
        assert!(since.elapsed() >= Duration::from_millis(200));
        let id = client.call("CLIENT ID").integer();
        client.send(&["WAITAOF", "1", "0", "0"]);
        eventually("it is blocked", || other.call("INFO clients").text().contains("blocked_clients:1\r"));
        assert_eq!(other.call(&format!("CLIENT UNBLOCK {id}")), Reply::Integer(1));
        assert_eq!(client.receive(), counts(0, 0));
        client.send(&["WAITAOF", "1", "0", "0"]);
        eventually("it is blocked", || other.call("INFO clients").text().contains("blocked_clients:1\r"));
        assert!(set_fault(&mut other, 0));
        assert_eq!(client.receive(), counts(1, 0));
        // Replies to this client don't wait for syncs, even with `appendfsync always`. A reply
        // therefore doesn't prove that the write is on disk.
        assert_eq!(other.call("CONFIG SET appendfsync always"), Reply::ok());
        assert_eq!(client.call("CLIENT DURABILITY everysec"), Reply::ok());
        assert_eq!(other.call("CLIENT DURABILITY everysec"), Reply::ok());
        assert!(set_fault(&mut other, 1000));
        assert_eq!(client.call("SET key 2"), Reply::ok());
        assert_eq!(client.call("WAITAOF 0 0 0"), counts(0, 0));
        assert_eq!(client.call("WAITAOF 1 0 100"), counts(0, 0));
        assert!(set_fault(&mut other, 0));
        assert_eq!(client.call("WAITAOF 1 0 0"), counts(1, 0));
    });
}

/// If the append-only file is turned off, a blocked `WAITAOF` gets an error, even if it only waits
/// for replicas, or if the disk is stuck.
#[test]
fn it_ends_when_the_file_is_turned_off() {
    for_each_backend(|backend| {
        let dir = directory();
        let server = start(backend, &dir, &[]);
        let (mut client, mut other) = (server.connect(), server.connect());
        let has_faults = set_fault(&mut other, 0);
        for (call, permille) in [("WAITAOF 1 1 0", 0), ("WAITAOF 1 0 0", 1000)] {
            if permille > 0 && !has_faults {
                return eprintln!("SKIPPED: stuck-disk: this build has no faults");
            }
            assert!(permille == 0 || set_fault(&mut other, permille));
            client.call("SET key 1");
            client.send(&call.split(' ').collect::<Vec<_>>());
            wait_until_blocked(&mut other, 1);
            assert_eq!(other.call("CONFIG SET appendonly no"), Reply::ok());
            let error = "ERR WAITAOF cannot be used when numlocal is set but appendonly is disabled.";
            assert_eq!(client.receive(), Reply::Error(error.to_owned()), "{call}");
            assert!(permille == 0 || set_fault(&mut other, 0));
            assert_eq!(other.call("CONFIG SET appendonly yes"), Reply::ok());
        }
    });
}

/// Replies that wait for syncs from now on say nothing about earlier writes.
#[test]
fn it_confirms_no_write_from_before_replies_waited_for_syncs() {
    for_each_backend(|backend| {
        let dir = directory();
        let server = start(backend, &dir, &[]);
        let (mut client, mut other) = (server.connect(), server.connect());
        if !set_fault(&mut other, 1000) {
            return eprintln!("SKIPPED: stuck-disk: this build has no faults");
        }
        assert_eq!(client.call("SET key 1"), Reply::ok());
        assert_eq!(client.call("CLIENT DURABILITY always"), Reply::ok());
        assert_eq!(client.call("WAITAOF 1 0 100"), counts(0, 0));
        assert_eq!(client.call("CLIENT DURABILITY default"), Reply::ok());
        assert_eq!(other.call("CONFIG SET appendfsync always"), Reply::ok());
        client.send(&["WAITAOF", "1", "0", "0"]);
        wait_until_blocked(&mut other, 1);
        assert!(set_fault(&mut other, 0));
        assert_eq!(client.receive(), counts(1, 0));
    });
}

/// If the append-only file has just been turned on, `WAITAOF` waits until the first base is on
/// disk. Before that, a restarted server would load none of the effects.
#[test]
fn it_waits_for_the_first_base() {
    for_each_backend(|backend| {
        let dir = directory();
        let server = start(backend, &dir, &["--appendonly", "no", "--rdb-key-save-delay", "5000"]);
        let mut client = server.connect();
        client.call("DEBUG POPULATE 200 key 10");
        assert_eq!(client.call("CONFIG SET appendonly yes"), Reply::ok());
        assert_eq!(client.call("SET x 1"), Reply::ok());
        assert_eq!(client.call("WAITAOF 1 0 100"), counts(0, 0), "the base takes a second");
        assert_eq!(client.call("CONFIG SET rdb-key-save-delay 0"), Reply::ok());
        assert_eq!(client.call("WAITAOF 1 0 0"), counts(1, 0));
        let manifest = dir.path().join("appendonlydir/appendonly.aof.manifest");
        let manifest = std::fs::read_to_string(manifest).expect("the manifest of the first base");
        assert!(manifest.contains(" type b"), "{manifest}");
    });
}

/// A replica counts once the writes are in its append-only file. Replicas without such a file don't
/// count. redis-server 7.0 doesn't count either, because it doesn't report which writes are in its
/// file.
#[test]
fn replicas_with_an_append_only_file_confirm() {
    for_each_backend(|backend| {
        let (dir, other_dir) = (directory(), directory());
        let primary = start(backend, &dir, &[]);
        let replica = start(backend, &other_dir, &[]);
        let without = Server::pantala(backend, &PRIMARY);
        follow(&replica, &primary);
        follow(&without, &primary);
        let redis = Server::redis(&["--appendonly", "yes"]);
        if let Some(redis) = &redis {
            follow(redis, &primary);
        }
        let mut client = primary.connect();
        for number in 0..20 {
            client.call(&format!("SET key {number}"));
            assert_eq!(client.call("WAITAOF 0 1 10000"), counts(0, 1));
            client.call(&format!("SET key {number}"));
            assert_eq!(client.call("WAITAOF 1 1 10000"), counts(1, 1));
        }
        client.call("SET key 20");
        assert_eq!(client.call("WAITAOF 1 2 1500"), counts(1, 1), "the others have no file or don't report it");
        replica.kill();
        let replica = start(backend, &other_dir, &[]);
        assert_eq!(replica.connect().call("GET key").text(), "20");
    });
}
