//! Jumps of the system's clock (`DEBUG CLOCK-JUMP`, in debug builds): snapshots, the append-only
//! file, TTLs and timeouts. [`crate::kills`] kills servers after jumps.

use std::path::Path;
use std::time::{Duration, Instant};

use pantala_tests::effects::digest;
use pantala_tests::waiting::eventually;
use pantala_tests::{Backend, Client, Reply, Server, for_each_backend};

const HOUR_MS: i64 = 3_600_000;

fn start(backend: Backend, dir: &Path, more: &[&str]) -> Server {
    let dir = dir.to_str().expect("a UTF-8 path");
    Server::pantala(backend, &[&["--dir", dir, "--workers", "2"], more].concat())
}

/// Makes the server's clock jump. Returns false if this build can't.
fn jump(client: &mut Client, by_ms: i64) -> bool {
    let reply = client.call(&format!("DEBUG CLOCK-JUMP {by_ms}"));
    if reply != Reply::ok() {
        eprintln!("this build has no jumps: {reply:?}");
    }
    reply == Reply::ok()
}

fn field(client: &mut Client, name: &str) -> String {
    let text = client.call("INFO persistence").text();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("no {name} in {text}")).to_owned()
}

/// A snapshot in the background is complete, and its duration is measured with the monotonic clock.
#[test]
fn a_snapshot_is_complete_after_a_jump() {
    for_each_backend(|backend| {
        for by_ms in [HOUR_MS, -HOUR_MS] {
            let dir = tempfile::tempdir().expect("a folder");
            let server = start(backend, dir.path(), &["--save", ""]);
            let mut client = server.connect();
            assert_eq!(client.call("DEBUG POPULATE 2000"), Reply::ok());
            assert_eq!(client.call(&format!("SET timed value PX {}", 3 * HOUR_MS)), Reply::ok());
            assert_eq!(client.call("CONFIG SET rdb-key-save-delay 500"), Reply::ok());
            let before = digest(&server);
            assert_eq!(client.call("BGSAVE").text(), "Background saving started");
            if !jump(&mut client, by_ms) {
                return;
            }
            assert_eq!(field(&mut client, "rdb_bgsave_in_progress"), "1", "the clock jumped during the snapshot");
            let current_s: i64 = field(&mut client, "rdb_current_bgsave_time_sec").parse().expect("a number");
            assert!((0..60).contains(&current_s), "{current_s}");
            assert_eq!(client.call("CONFIG SET rdb-key-save-delay 0"), Reply::ok());
            eventually("the snapshot is written", || field(&mut client, "rdb_bgsave_in_progress") == "0");
            assert_eq!(field(&mut client, "rdb_last_bgsave_status"), "ok");
            let took_s: i64 = field(&mut client, "rdb_last_bgsave_time_sec").parse().expect("a number");
            assert!((0..60).contains(&took_s), "{took_s}");
            assert_eq!(client.call("DEBUG RELOAD NOSAVE"), Reply::ok());
            assert_eq!(digest(&server), before);
        }
    });
}

/// Save points still start snapshots after the clock was set back.
#[test]
fn save_points_work_after_a_jump() {
    for_each_backend(|backend| {
        for by_ms in [HOUR_MS, -HOUR_MS] {
            let dir = tempfile::tempdir().expect("a folder");
            let server = start(backend, dir.path(), &["--save", "1 1"]);
            let mut client = server.connect();
            if !jump(&mut client, by_ms) {
                return;
            }
            assert_eq!(client.call("SET a 1"), Reply::ok());
            eventually("a save point has started a snapshot", || field(&mut client, "rdb_saves") != "0");
            eventually("it is written", || field(&mut client, "rdb_changes_since_last_save") == "0");
        }
    });
}

/// As in Redis, keys expire by the system's clock: a jump forward expires keys, and a jump back
/// prolongs TTLs. Keys that have expired do not exist again after a jump back. The append-only file
/// has the same data after a restart.
#[test]
fn keys_expire_by_the_clock_and_do_not_return() {
    for_each_backend(|backend| {
        let dir = tempfile::tempdir().expect("a folder");
        let args = ["--save", "", "--appendonly", "yes"];
        let server = start(backend, dir.path(), &args);
        let mut client = server.connect();
        for (key, ttl_ms) in [("short", HOUR_MS / 2), ("long", 2 * HOUR_MS)] {
            assert_eq!(client.call(&format!("SET {key} value PX {ttl_ms}")), Reply::ok());
        }
        if !jump(&mut client, HOUR_MS) {
            return;
        }
        assert_eq!(client.call("GET short"), Reply::Null);
        eventually("the expired key is deleted", || client.call("DBSIZE") == Reply::Integer(1));
        let ttl_ms = client.call("PTTL long").integer();
        assert!((HOUR_MS / 2..=HOUR_MS).contains(&ttl_ms), "{ttl_ms}");
        assert!(jump(&mut client, -2 * HOUR_MS));
        assert_eq!(client.call("EXISTS short long"), Reply::Integer(1));
        let ttl_ms = client.call("PTTL long").integer();
        assert!((2 * HOUR_MS..=3 * HOUR_MS).contains(&ttl_ms), "{ttl_ms}");
        // A new TTL counts from the current time of the clock, which was set back.
        assert_eq!(client.call("SET new value PX 50"), Reply::ok());
        eventually("the new key expires", || client.call("DBSIZE") == Reply::Integer(1));
        assert!(jump(&mut client, HOUR_MS));
        assert_eq!(client.call("WAITAOF 1 0 0").elements()[0], Reply::Integer(1));
        let before = digest(&server);
        server.kill();
        let server = start(backend, dir.path(), &args);
        assert_eq!(digest(&server), before);
        assert_eq!(server.connect().call("EXISTS short long new"), Reply::Integer(1));
    });
}

/// The timeout of a blocked client does not depend on the system's clock.
#[test]
fn timeouts_of_blocked_clients_ignore_jumps() {
    for_each_backend(|backend| {
        let dir = tempfile::tempdir().expect("a folder");
        let server = start(backend, dir.path(), &["--save", ""]);
        let (mut client, mut waiting) = (server.connect(), server.connect());
        for by_ms in [-HOUR_MS, HOUR_MS] {
            let began = Instant::now();
            waiting.send(&["BLPOP", "none", "0.5"]);
            if !jump(&mut client, by_ms) {
                return;
            }
            assert_eq!(waiting.receive(), Reply::Null);
            assert!(began.elapsed() >= Duration::from_millis(500), "{by_ms}: {:?}", began.elapsed());
        }
    });
}
