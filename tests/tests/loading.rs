//! The server while it loads its dataset at startup: it serves connections, and rejects commands
//! that need the dataset. `key-load-delay` makes the load slow.

use std::path::Path;
use std::time::Duration;

use pantala_tests::client::encode_into;
use pantala_tests::server::READY_MAX;
use pantala_tests::waiting::eventually;
use pantala_tests::{Backend, Client, Reply, Server, for_all_backends, for_each_backend};
use rustix::process::Signal;
use tempfile::TempDir;

const KEYS: i64 = 5000;

/// A delay of 2,000 µs per key. Loading [`KEYS`] keys then takes ten seconds.
const SLOW: [&str; 2] = ["--key-load-delay", "2000"];

const LOADING: &str = "LOADING Redis is loading the dataset in memory";

/// Returns a directory and the digest of a dataset. The directory contains the dataset as a
/// snapshot and as an append-only file.
fn dataset(backend: Backend) -> (TempDir, String) {
    let folder = tempfile::tempdir().expect("a folder");
    let args = ["--dir", path(&folder), "--save", "", "--appendonly", "yes", "--aof-use-rdb-preamble", "no"];
    let mut server = Server::pantala(backend, &args);
    let mut client = server.connect();
    let commands: Vec<Vec<String>> =
        (0..KEYS).map(|key| vec!["SET".to_owned(), format!("key:{key}"), "x".repeat(50)]).collect();
    client.pipeline(&commands);
    assert_eq!(client.call("SAVE"), Reply::ok());
    let digest = client.call("DEBUG DIGEST").text();
    client.send(&["SHUTDOWN", "NOSAVE"]);
    assert_eq!(server.wait_exit(READY_MAX).code(), Some(0));
    (folder, digest)
}

fn path(folder: &TempDir) -> &str {
    folder.path().to_str().expect("UTF-8")
}

fn field(client: &mut Client, name: &str) -> String {
    let text = client.call("INFO everything").text();
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name}:")).map(str::to_owned));
    line.unwrap_or_else(|| panic!("{name} is missing in:\n{text}"))
}

/// Returns the replies of a server that is loading. Checks that the server has the dataset after
/// the load.
fn replies_while_loading(server: &Server, digest: &str) -> Vec<String> {
    let mut client = server.connect();
    let calls = [
        "PING",
        "GET key:1",
        "SET key:1 1",
        "DBSIZE",
        "KEYS *",
        "EXISTS key:1",
        "EVAL return(1) 0",
        "SELECT 1",
        "SELECT 0",
        "ECHO text",
        "CLIENT SETNAME name",
        "CLIENT GETNAME",
        "COMMAND COUNT x",
        "CONFIG GET maxmemory",
        "ACL WHOAMI",
        "MULTI",
        "GET key:1",
        "EXEC",
        "MULTI",
        "EXEC",
        "UNWATCH",
        "SUBSCRIBE channel",
        "UNSUBSCRIBE channel",
        "PUBLISH channel message",
        "SAVE",
        "BGSAVE",
        "BGREWRITEAOF",
        "LASTSAVE x",
        "REPLICAOF NO ONE",
        "PSYNC ? -1",
        "WAIT 0 0",
        "FLUSHALL",
        "SCRIPT LOAD return(1)",
        "FUNCTION LIST",
        "XREAD BLOCK 0 STREAMS x $",
        "BLPOP x 0",
        "COMMAND INFO nothing",
        "HELLO 2 SETNAME",
        "CONFIG SET dir /",
        "CONFIG SET appendonly yes",
        "CONFIG SET appendonly no",
        "CONFIG SET repl-diskless-load swapdb",
        "CONFIG SET loglevel notice repl-diskless-load disabled",
        "CONFIG SET loglevel notice loglevel notice dir /",
        "CONFIG SET dir / dir /",
        "CONFIG SET nothing 1 dir /",
        "CONFIG SET dir / nothing 1",
        "CONFIG SET daemonize yes dir /",
        "CONFIG SET loglevel notice",
        "CONFIG GET repl-diskless-load",
    ];
    // `WATCH` is not in `calls`, because the servers differ: Redis replies OK. Pantala rejects it,
    // because `WATCH` needs the key's shard, and the load holds all shards.
    if server.log().contains("Pantala") {
        assert_eq!(client.call("WATCH key:1").text(), LOADING);
    }
    let replies: Vec<String> = calls.iter().map(|call| format!("{call}: {:?}", client.call(call))).collect();
    assert!(replies[0].contains(LOADING), "{}", replies[0]);
    assert_eq!(field(&mut client, "loading"), "1");
    let number = |client: &mut Client, name: &str| field(client, name).parse::<f64>().expect("a number");
    let total = number(&mut client, "loading_total_bytes");
    assert!(total > 10.0 * KEYS as f64, "{total}");
    assert!((0.0..=total).contains(&number(&mut client, "loading_loaded_bytes")));
    assert!((0.0..=100.0).contains(&number(&mut client, "loading_loaded_perc")));
    assert!(number(&mut client, "loading_start_time") > 1.7e9);
    assert!(number(&mut client, "loading_eta_seconds") >= 0.0);
    assert_eq!(client.call("CONFIG SET key-load-delay 0"), Reply::ok());
    eventually("the dataset is loaded", || client.call("PING") == Reply::Simple("PONG".into()));
    assert_eq!(field(&mut client, "loading"), "0");
    assert_eq!(client.call("DBSIZE"), Reply::Integer(KEYS));
    assert_eq!(client.call("DEBUG DIGEST").text(), digest);
    replies
}

#[test]
fn clients_are_served_while_the_dataset_is_loaded() {
    let (folder, digest) = dataset(Backend::all()[0]);
    let allowed = ["--enable-debug-command", "yes", "--enable-protected-configs", "yes"];
    let shared = [&["--dir", path(&folder), "--save", ""][..], &allowed, &SLOW].concat();
    // By default, redis-server serves clients only once for each 2 MiB that it has loaded.
    let often = ["--loading-process-events-interval-bytes", "1024"];
    let reference = Server::redis_loading(&[&shared[..], &often].concat());
    let right = reference.map(|reference| replies_while_loading(&reference, &digest));
    for appendonly in ["no", "yes"] {
        for_each_backend(|backend| {
            let args = [&shared[..], &["--workers", "2", "--appendonly", appendonly]].concat();
            let mut server = Server::pantala_loading(backend, &args);
            let given = replies_while_loading(&server, &digest);
            for (number, given) in given.iter().enumerate() {
                assert!(right.as_ref().is_none_or(|right| right[number] == *given), "{given}, not {right:?}");
            }
            server.assert_sound();
        });
    }
}

/// A client connects as soon as the port is open. If the dataset is small, the client is served
/// only after the load, so it never receives `-LOADING`. redis-server does the same.
#[test]
fn a_small_dataset_is_loaded_before_the_first_reply() {
    for_all_backends(|backend| {
        let (folder, _) = dataset(backend);
        for appendonly in ["no", "yes"] {
            for _ in 0..3 {
                let args = ["--dir", path(&folder), "--save", "", "--appendonly", appendonly];
                let server = Server::pantala_loading(backend, &args);
                assert_eq!(server.connect().call("DBSIZE"), Reply::Integer(KEYS), "{appendonly}");
            }
        }
    });
}

/// The server reads the snapshot at the start of an append-only file in large pieces. The last
/// piece also contains commands, which follow the snapshot. After it has loaded the snapshot, the
/// server reads the bytes of these commands a second time, but must count them only once.
#[test]
fn progress_counts_no_byte_twice() {
    for_all_backends(|backend| {
        let (folder, _) = dataset(backend);
        std::fs::remove_dir_all(folder.path().join("appendonlydir")).expect("the files of the dataset");
        let mut bytes = std::fs::read(folder.path().join("dump.rdb")).expect("the snapshot");
        (0..1000).for_each(|number| encode_into(&mut bytes, &["SET", &format!("tail:{number}"), "1"]));
        let length = bytes.len().to_string();
        std::fs::write(folder.path().join("appendonly.aof"), bytes).expect("it is writable");
        let args = ["--dir", path(&folder), "--appendonly", "yes", "--key-load-delay", "500"];
        let server = Server::pantala_loading(backend, &args);
        let mut client = server.connect();
        let mut is_known = false;
        while field(&mut client, "loading") == "1" {
            let text = client.call("INFO persistence").text();
            let number = |name: &str| {
                let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
                line.map(|number| number.parse::<u64>().expect("a number"))
            };
            // If the load has ended by now, both fields are missing.
            if let (Some(loaded), Some(total)) = (number("loading_loaded_bytes"), number("loading_total_bytes")) {
                // A total of 0 would mean that the server doesn't know the files' sizes yet.
                assert!(total == 0 || total.to_string() == length, "{total}");
                assert!(loaded <= total, "{loaded} of {total}");
                is_known |= total > 0;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        assert!(is_known, "the load was too fast to be seen");
        assert_eq!(client.call("DBSIZE"), Reply::Integer(KEYS + 1000));
    });
}

/// Returns the contents of all files in a directory and its subdirectories.
fn content(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            all.extend(content(&path));
        } else {
            all.push((path.display().to_string(), std::fs::read(&path).expect("a file")));
        }
    }
    all.sort();
    all
}

/// A server that shuts down while it loads does not save the part that it has loaded.
#[test]
fn shutdown_while_loading_saves_nothing() {
    for_all_backends(|backend| {
        let (folder, _) = dataset(backend);
        let before = content(folder.path());
        for appendonly in ["no", "yes"] {
            for how in ["SHUTDOWN", "SHUTDOWN SAVE", "SHUTDOWN NOSAVE", "TERM", "INT"] {
                let save = [&["--dir", path(&folder), "--save", "1 1", "--appendonly", appendonly][..], &SLOW].concat();
                let mut server = Server::pantala_loading(backend, &save);
                match how {
                    "TERM" => server.signal(Signal::TERM),
                    "INT" => server.signal(Signal::INT),
                    _ => server.connect().send(&how.split(' ').collect::<Vec<_>>()),
                }
                assert_eq!(server.wait_exit(READY_MAX).code(), Some(0), "{how}: {}", server.log());
                assert!(content(folder.path()) == before, "{how} changed a file: {}", server.log());
            }
        }
    });
}

/// Shuts down a server whose load has just ended. Checks that the snapshot file in `folder` then
/// contains the key `last`.
fn shut_down_at_the_end_of_a_load(mut server: Server, how: &str, folder: &Path, backend: Backend) {
    match how {
        "TERM" => server.signal(Signal::TERM),
        _ => server.connect().send(&how.split(' ').collect::<Vec<_>>()),
    }
    assert_eq!(server.wait_exit(READY_MAX).code(), Some(0), "{how}: {}", server.log());
    let again = Server::pantala(backend, &["--dir", folder.to_str().expect("UTF-8")]);
    assert_eq!(again.connect().call("GET last"), Reply::bulk("value"), "{how}: {}", server.log());
}

/// Once a server has accepted a write after a load, a shutdown saves the dataset, even if the
/// thread that ran the load has not ended yet.
#[test]
fn a_shutdown_at_the_end_of_a_load_saves() {
    for_all_backends(|backend| {
        let shared = ["--save", "3600 1", "--enable-debug-command", "yes", "--replica-read-only", "no"];
        let pauses = |client: &mut Client| client.call("DEBUG FAULT slow-load-end 1000") == Reply::ok();
        for how in ["SHUTDOWN", "SHUTDOWN SAVE", "TERM"] {
            // The load at startup.
            let (folder, _) = dataset(backend);
            let args = [&["--dir", path(&folder)], &shared[..], &SLOW].concat();
            let server = Server::pantala_loading(backend, &args);
            let mut client = server.connect();
            if !pauses(&mut client) {
                return eprintln!("SKIPPED: slow-load-end: this build has no faults");
            }
            assert_eq!(client.call("CONFIG SET key-load-delay 0"), Reply::ok());
            eventually("a write is accepted", || client.call("SET last value") == Reply::ok());
            shut_down_at_the_end_of_a_load(server, how, folder.path(), backend);

            // The load of a primary's dataset.
            let primary = Server::pantala(backend, &["--repl-diskless-sync-delay", "0"]);
            assert_eq!(primary.connect().call("SET first value"), Reply::ok());
            let folder = tempfile::tempdir().expect("a folder");
            let replica = Server::pantala(backend, &[&["--dir", path(&folder)], &shared[..]].concat());
            let mut client = replica.connect();
            assert!(pauses(&mut client));
            assert_eq!(client.call(&format!("REPLICAOF 127.0.0.1 {}", primary.port())), Reply::ok());
            eventually("the dataset is loaded", || client.call("GET first") == Reply::bulk("value"));
            assert_eq!(client.call("SET last value"), Reply::ok());
            shut_down_at_the_end_of_a_load(replica, how, folder.path(), backend);
        }
    });
}

/// While a replica loads its own dataset at startup, it already reports that it is a replica. It
/// connects to its primary after the load.
#[test]
fn a_replica_is_a_replica_while_it_loads() {
    let backend = Backend::all()[0];
    let (folder, _) = dataset(backend);
    let primary = Server::pantala(backend, &[]);
    let of = format!("127.0.0.1 {}", primary.port());
    let args = [&["--dir", path(&folder), "--replicaof", &of][..], &SLOW].concat();
    let replica = Server::pantala_loading(backend, &args);
    let mut client = replica.connect();
    assert_eq!(field(&mut client, "role"), "slave");
    assert_eq!(field(&mut client, "master_link_status"), "down");
    assert_eq!(field(&mut client, "loading"), "1");
    assert_eq!(field(&mut primary.connect(), "connected_slaves"), "0");
    assert_eq!(client.call("CONFIG SET key-load-delay 0"), Reply::ok());
    eventually("the replica is connected", || field(&mut client, "master_link_status") == "up");
    assert_eq!(client.call("DBSIZE"), Reply::Integer(0), "it has the dataset of its primary");
}

/// The server accepts connections while it loads a file. If it then finds that the file is damaged,
/// it exits.
#[test]
fn a_damaged_file_stops_the_server_while_it_loads() {
    for_all_backends(|backend| {
        let (folder, _) = dataset(backend);
        let file = folder.path().join("appendonlydir").join("appendonly.aof.1.incr.aof");
        let mut bytes = std::fs::read(&file).expect("the increment");
        bytes.extend_from_slice(b"*3\r\nbroken");
        std::fs::write(&file, bytes).expect("it is writable");
        let args = ["--dir", path(&folder), "--appendonly", "yes", "--key-load-delay", "200"];
        let mut server = Server::pantala_loading(backend, &args);
        assert_eq!(server.wait_exit(READY_MAX).code(), Some(1), "{}", server.log());
        assert!(server.log().contains("Bad file format reading the append only file"), "{}", server.log());
        assert!(!server.log().contains("Ready to accept connections"), "{}", server.log());
    });
}
