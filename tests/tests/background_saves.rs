//! Snapshots in the background: `BGSAVE`, the save points of the directive `save`, and the files
//! that snapshots leave in the directory.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use pantala_tests::waiting::eventually;
use pantala_tests::writers::write_until;
use pantala_tests::{Backend, Client, Random, Reply, Server, for_each_backend};
use tempfile::TempDir;

fn folder() -> TempDir {
    tempfile::tempdir().expect("a folder")
}

fn path(folder: &TempDir) -> &str {
    folder.path().to_str().expect("UTF-8")
}

fn pantala(backend: Backend, folder: &TempDir, args: &[&str]) -> Server {
    Server::pantala(backend, &[&["--dir", path(folder), "--workers", "2", "--shards", "7"], args].concat())
}

fn field(client: &mut Client, name: &str) -> String {
    let text = client.call("INFO persistence").text();
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name}:")).map(str::to_owned));
    line.unwrap_or_else(|| panic!("{name} is missing in:\n{text}"))
}

fn wait_until_saved(client: &mut Client) {
    eventually("the snapshot is written", || field(client, "rdb_bgsave_in_progress") == "0");
    assert_eq!(field(client, "rdb_last_bgsave_status"), "ok");
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).expect("a folder");
    entries.map(|entry| entry.expect("one").file_name().to_string_lossy().into_owned()).collect()
}

#[test]
fn bgsave_writes_the_file() {
    for_each_backend(|backend| {
        let folder = folder();
        let server = pantala(backend, &folder, &["--save", ""]);
        let mut client = server.connect();
        assert_eq!(client.call("DEBUG POPULATE 10000"), Reply::ok());
        assert_eq!(field(&mut client, "rdb_last_bgsave_time_sec"), "-1");
        let digest = client.call("DEBUG DIGEST").text();
        assert_eq!(client.call("BGSAVE").text(), "Background saving started");
        wait_until_saved(&mut client);
        assert_eq!(field(&mut client, "rdb_changes_since_last_save"), "0");
        assert_ne!(field(&mut client, "rdb_last_bgsave_time_sec"), "-1");
        assert_eq!(field(&mut client, "rdb_saves"), "1");
        assert_eq!(names(folder.path()), ["dump.rdb"]);
        assert!(server.log().contains("Background saving terminated with success"), "{}", server.log());
        assert_eq!(client.call("FLUSHALL"), Reply::ok());
        assert_eq!(client.call("DEBUG RELOAD NOSAVE"), Reply::ok());
        assert_eq!(client.call("DEBUG DIGEST").text(), digest);
        if let Some(reference) = Server::redis(&["--dir", path(&folder)]) {
            assert_eq!(reference.connect().call("DEBUG DIGEST").text(), digest);
        }
    });
}

#[test]
fn replies_of_bgsave_are_those_of_redis() {
    let scene = |server: &Server| {
        let mut client = server.connect();
        assert_eq!(client.call("BGSAVE NOW").text(), "ERR syntax error");
        assert_eq!(client.call("BGSAVE SCHEDULE NOW").text(), "ERR syntax error");
        assert_eq!(client.call("BGSAVE schedule").text(), "Background saving started");
        wait_until_saved(&mut client);
        assert_eq!(client.call("MULTI"), Reply::ok());
        assert_eq!(client.call("SET a 1").text(), "QUEUED");
        assert_eq!(client.call("BGSAVE").text(), "QUEUED");
        assert_eq!(client.call("SET a 2").text(), "QUEUED");
        let replies = client.call("EXEC");
        let replies = replies.elements();
        assert_eq!(replies[1].text(), "Background saving scheduled");
        eventually("it is saved", || field(&mut client, "rdb_changes_since_last_save") == "0");
        wait_until_saved(&mut client);
        let denied = client.command(&["EVAL", "return redis.call('BGSAVE')", "0"]).text();
        assert!(denied.contains("This Redis command is not allowed from script"), "{denied}");
    };
    for_each_backend(|backend| scene(&pantala(backend, &folder(), &["--save", ""])));
    let folder = folder();
    if let Some(reference) = Server::redis(&["--dir", path(&folder), "--save", ""]) {
        scene(&reference);
    }
}

/// `rdb_saves` counts each `SAVE` and `BGSAVE` at its start. It does not count the snapshots of
/// `FLUSHALL` and `DEBUG RELOAD`.
#[test]
fn saves_are_counted_as_in_redis() {
    let scene = |server: &Server, folder: &TempDir| {
        let mut client = server.connect();
        let mut counted = |call: &str, reply: &str, count: &str| {
            assert_eq!(client.call(call).text(), reply, "{call}");
            assert_eq!(field(&mut client, "rdb_saves"), count, "{call}");
            eventually("no snapshot is running", || field(&mut client, "rdb_bgsave_in_progress") == "0");
        };
        counted("SET a 1", "OK", "0");
        counted("SAVE", "OK", "1");
        counted("CONFIG SET rdb-key-save-delay 100000", "OK", "1");
        counted("BGSAVE", "Background saving started", "2");
        counted("CONFIG SET rdb-key-save-delay 0", "OK", "2");
        counted("FLUSHALL", "OK", "2");
        counted("DEBUG RELOAD", "OK", "2");
        counted("DEBUG RELOAD NOSAVE", "OK", "2");
        // A file can't replace a directory, so saving fails.
        std::fs::remove_file(folder.path().join("dump.rdb")).expect("it is there");
        std::fs::create_dir(folder.path().join("dump.rdb")).expect("created");
        counted("SAVE", "ERR", "3");
        counted("BGSAVE", "Background saving started", "4");
    };
    let save = ["--save", "3600 1000000"];
    for_each_backend(|backend| {
        let folder = folder();
        scene(&pantala(backend, &folder, &save), &folder);
    });
    let folder = folder();
    if let Some(reference) = Server::redis(&[&["--dir", path(&folder)][..], &save].concat()) {
        scene(&reference, &folder);
    }
}

#[test]
fn points_of_save_start_a_snapshot() {
    for_each_backend(|backend| {
        let folder = folder();
        let server = pantala(backend, &folder, &["--save", "1", "3"]);
        let mut client = server.connect();
        client.call("MSET a 1 b 2");
        std::thread::sleep(Duration::from_millis(2200));
        assert_eq!(field(&mut client, "rdb_saves"), "0", "three changes are needed");
        client.call("SET c 3");
        eventually("the save point is reached", || field(&mut client, "rdb_saves") == "1");
        assert!(server.log().contains("3 changes in 1 seconds. Saving..."), "{}", server.log());
        assert_eq!(client.command(&["CONFIG", "SET", "save", ""]), Reply::ok());
        client.call("MSET d 1 e 2 f 3");
        assert_eq!(client.command(&["CONFIG", "SET", "save", "3600 1 1 2"]), Reply::ok());
        eventually("the new save point is reached", || field(&mut client, "rdb_saves") == "2");
        wait_until_saved(&mut client);
        assert_eq!(field(&mut client, "rdb_changes_since_last_save"), "0");
    });
}

#[test]
fn a_snapshot_that_fails_is_reported() {
    for_each_backend(|backend| {
        let folder = folder();
        let server = pantala(backend, &folder, &["--save", "", "--enable-protected-configs", "yes"]);
        let mut client = server.connect();
        client.call("SET a 1");
        std::fs::create_dir(folder.path().join("occupied")).expect("a folder");
        assert_eq!(client.call("CONFIG SET dbfilename occupied"), Reply::ok());
        assert_eq!(client.call("BGSAVE").text(), "Background saving started");
        eventually("it fails", || field(&mut client, "rdb_last_bgsave_status") == "err");
        assert_eq!(names(folder.path()), ["occupied"]);
        assert_eq!(field(&mut client, "rdb_changes_since_last_save"), "1");
        assert_eq!(client.call("CONFIG SET dbfilename dump.rdb"), Reply::ok());
        assert_eq!(client.call("BGSAVE").text(), "Background saving started");
        wait_until_saved(&mut client);
    });
}

#[test]
fn the_next_snapshot_can_start_once_the_outcome_is_visible() {
    const ROUNDS: usize = 200;
    for_each_backend(|backend| {
        let folder = folder();
        let server = pantala(backend, &folder, &["--save", "", "--enable-protected-configs", "yes"]);
        let mut client = server.connect();
        assert_eq!(client.call("DEBUG POPULATE 1000"), Reply::ok());
        std::fs::create_dir(folder.path().join("occupied")).expect("a folder");
        for round in 0..ROUNDS {
            let (name, outcome) = [("occupied", "err"), ("dump.rdb", "ok")][round % 2];
            assert_eq!(client.call(&format!("CONFIG SET dbfilename {name}")), Reply::ok());
            assert_eq!(client.call("BGSAVE").text(), "Background saving started", "round {round}");
            eventually("the outcome is visible", || field(&mut client, "rdb_last_bgsave_status") == outcome);
        }
    });
}

/// Returns the replies to commands after a failed snapshot, and finally the reply to a write after
/// a snapshot that succeeded.
fn replies_after_a_failed_snapshot(server: &Server, folder: &TempDir) -> Vec<Reply> {
    let mut client = server.connect();
    client.call("SET key 1");
    std::fs::create_dir(folder.path().join("occupied")).expect("a folder");
    assert_eq!(client.call("CONFIG SET dbfilename occupied"), Reply::ok());
    client.call("BGSAVE");
    eventually("it fails", || field(&mut client, "rdb_last_bgsave_status") == "err");
    let calls = [
        "SET key 2",
        "GET key",
        "PING",
        "PING message",
        "ECHO message",
        "EVAL redis.call('set',KEYS[1],'3') 1 key",
        "EVAL return\\sredis.call('ping') 0",
        "MULTI",
        "PING",
        "GET key",
        "EXEC",
        "MULTI",
        "SET key 4",
        "EXEC",
        "CONFIG SET stop-writes-on-bgsave-error no",
        "INCR key",
        "PING",
        "MULTI",
        "PING",
        "CONFIG SET stop-writes-on-bgsave-error yes",
        "EXEC",
        "INCR key",
        "CONFIG SET save \"\"",
        "INCR key",
        "CONFIG SET save 3600\\s1",
        "INCR key",
    ];
    let mut replies: Vec<Reply> = calls
        .iter()
        .map(|call| {
            let words: Vec<String> = call.split(' ').map(|word| word.replace("\\s", " ").replace('"', "")).collect();
            client.command(&words)
        })
        .collect();
    assert_eq!(client.call("CONFIG SET dbfilename dump.rdb"), Reply::ok());
    assert_eq!(client.call("BGSAVE").text(), "Background saving started");
    wait_until_saved(&mut client);
    replies.push(client.call("INCR key"));
    replies
}

#[test]
fn writes_are_rejected_after_a_failed_snapshot() {
    const SAVES: &[&str] = &["--save", "3600 1", "--enable-protected-configs", "yes"];
    let judged = folder();
    let reference = Server::redis(&[&["--dir", path(&judged)], SAVES].concat());
    let right = reference.map(|reference| replies_after_a_failed_snapshot(&reference, &judged));
    for_each_backend(|backend| {
        let folder = folder();
        let given = replies_after_a_failed_snapshot(&pantala(backend, &folder, SAVES), &folder);
        assert!(given[0].text().starts_with("MISCONF "), "{given:?}");
        assert_eq!(given.last(), Some(&Reply::Integer(4)));
        if let Some(right) = &right {
            assert_eq!(&given, right);
        }
    });
}

/// A guard that ends the writers when it is dropped, so that they also end if the test panics.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs `work` while clients write keys of all types in several databases, and flush and swap
/// databases. The walk of a snapshot over the keys is slowed down, so that many keys are changed
/// before the walk reaches them.
fn under_load(server: &Server, seed: u64, work: impl FnOnce(&mut Client)) {
    let mut client = server.connect();
    for db in [0, 1, 7] {
        client.call(&format!("SELECT {db}"));
        assert_eq!(client.call("DEBUG POPULATE 10000 key 30"), Reply::ok());
    }
    client.call("SELECT 5");
    add_large(&mut client);
    client.call("SELECT 0");
    assert_eq!(client.call("DEBUG FAULT slow-walk 950"), Reply::ok());
    let (is_over, rests) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| write_until(server, seed, 3, &is_over, &rests));
        scope.spawn(|| change_databases(server, seed, &is_over));
        let _over = Over(&is_over);
        work(&mut client);
    });
}

/// A snapshot under load contains the dataset at the snapshot's start. The test pauses writes,
/// determines the dataset's digest, starts the snapshot, and lets the writers continue while the
/// snapshot is written.
#[test]
fn a_snapshot_under_load_is_a_point_in_time() {
    let seed = Random::seed("a_snapshot_under_load_is_a_point_in_time");
    for_each_backend(|backend| {
        for execution in ["inline", "owner"] {
            let folder = folder();
            let args = ["--save", "", "--workers", "3", "--shards", "12", "--execution", execution];
            let mut server = pantala(backend, &folder, &args);
            under_load(&server, seed, |client| {
                for round in 0..2 {
                    let digest = save_in_a_pause(client);
                    assert_eq!(loaded_digests(backend, &folder), digest, "{execution}, round {round}");
                }
            });
            server.assert_sound();
        }
    });
}

/// Injects a fault that makes the snapshot omit some of the entries that are changed during the
/// walk. The comparison of digests, as in the test above, must then fail.
#[test]
fn a_snapshot_without_changed_entries_is_detected() {
    let seed = Random::seed("a_snapshot_without_changed_entries_is_detected");
    let (backend, folder) = (*Backend::all().first().expect("a backend"), folder());
    let server = pantala(backend, &folder, &["--save", "", "--workers", "3", "--shards", "12"]);
    under_load(&server, seed, |client| {
        assert_eq!(client.call("DEBUG FAULT unkept-entry 500"), Reply::ok());
        let digest = save_in_a_pause(client);
        assert_ne!(loaded_digests(backend, &folder), digest);
    });
}

/// Before a change to a large collection, the server encodes only the changed element, not the
/// whole collection. A change therefore waits for the encoding of only a few bytes.
#[test]
fn changes_of_large_collections_do_not_wait_for_their_encoding() {
    const ELEMENTS: usize = 30_000;
    let add = [
        "ZADD zset 1 element",
        "SADD set element",
        "HSET hash element value",
        "RPUSH list element",
        "XADD stream * field element",
    ];
    let change = [
        ["ZADD zset 2 element:7", "ZREM zset element:8", "ZREMRANGEBYRANK zset 0 9", "EXPIRE zset 1000"],
        ["SADD set other", "SREM set element:7", "SPOP set", "EXPIRE set 1000"],
        ["HSET hash element:7 other", "HDEL hash element:8", "HPEXPIRE hash 100000 FIELDS 1 element:9", "PERSIST hash"],
        ["LPUSH list other", "RPOP list", "LTRIM list 10 -10", "LSET list 0 other"],
        ["XADD stream * field other", "XTRIM stream MAXLEN 29000", "XDEL stream 1-1", "XGROUP CREATE stream group $"],
    ];
    for_each_backend(|backend| {
        let folder = folder();
        let server = pantala(backend, &folder, &["--save", ""]);
        let mut client = server.connect();
        for add in add {
            let commands: Vec<String> =
                (0..ELEMENTS).map(|number| add.replace("element", &format!("element:{number}"))).collect();
            let commands: Vec<Vec<&str>> = commands.iter().map(|command| command.split(' ').collect()).collect();
            client.pipeline(&commands);
        }
        let digest = client.call("DEBUG DIGEST").text();
        assert_eq!(client.call("DEBUG FAULT slow-walk 900"), Reply::ok());
        assert_eq!(client.call("BGSAVE").text(), "Background saving started");
        for call in change.as_flattened() {
            assert!(!client.call(call).is_error(), "{call}");
        }
        assert_eq!(field(&mut client, "rdb_bgsave_in_progress"), "1", "the changes came during the walk");
        wait_until_saved(&mut client);
        let forced_bytes: u64 = field(&mut client, "rdb_last_cow_size").parse().expect("a number");
        assert!(forced_bytes < 2000, "changes had to wait for the encoding of {forced_bytes} bytes");
        assert_eq!(loaded_digests(backend, &folder), digest);
    });
}

/// Lists of commands. Each list removes, replaces or moves a large collection, and is run for each
/// type of [`TYPES`]. `KEY` stands for the collection's key, whose name contains the type and the
/// number of the list. `CHANGE` and `EMPTY` stand for the commands of the type in [`TYPES`].
const REMOVALS: [&[&str]; 9] = [
    &["DEL KEY"],
    &["UNLINK KEY"],
    &["SET KEY value"],
    &["RENAME KEY KEY:new", "CHANGE KEY:new"],
    &["RENAME KEY KEY:new", "CHANGE KEY:new", "RENAME KEY:new KEY:newer", "CHANGE KEY:newer", "DEL KEY:newer"],
    &["CHANGE KEY", "MOVE KEY 3"],
    &["MOVE KEY 4", "SELECT 4", "CHANGE KEY", "FLUSHDB", "SELECT 0"],
    &["COPY KEY KEY:copy", "RENAME KEY KEY:copy", "EMPTY KEY:copy"],
    &["PEXPIRE KEY 1"],
];

/// Types of collections. Each has a name, a command that adds an element, a command that changes or
/// removes an element (`CHANGE`), and a command that removes all elements (`EMPTY`).
const TYPES: [[&str; 4]; 5] = [
    ["zset", "ZADD zset 1 element", "ZREM KEY element:7", "ZREMRANGEBYRANK KEY 0 -1"],
    ["set", "SADD set element", "SREM KEY element:7", "SPOP KEY 9000"],
    ["hash", "HSET hash element value", "HSET KEY element:7 other", "DEL KEY"],
    ["list", "RPUSH list element", "LPOP KEY", "LPOP KEY 9000"],
    ["stream", "XADD stream * field element", "XADD KEY * field other", "DEL KEY"],
];

/// A command that removes, replaces or moves a large collection does not wait until the collection
/// is encoded. The snapshot still contains the collection.
#[test]
fn removals_of_large_collections_do_not_wait_for_their_encoding() {
    const ELEMENTS: usize = 9000;
    for_each_backend(|backend| {
        for execution in ["inline", "owner"] {
            let folder = folder();
            let args = ["--save", "", "--workers", "3", "--shards", "12", "--execution", execution];
            let mut server = pantala(backend, &folder, &args);
            let mut client = server.connect();
            for [name, add, ..] in TYPES {
                let commands: Vec<String> =
                    (0..ELEMENTS).map(|number| add.replace("element", &format!("element:{number}"))).collect();
                let commands: Vec<Vec<&str>> = commands.iter().map(|command| command.split(' ').collect()).collect();
                client.pipeline(&commands);
                for number in 0..REMOVALS.len() {
                    assert_eq!(client.call(&format!("COPY {name} {name}:{number}")), Reply::Integer(1));
                }
            }
            let digest = client.call("DEBUG DIGEST").text();
            assert_eq!(client.call("DEBUG FAULT slow-walk 1000"), Reply::ok());
            assert_eq!(client.call("BGSAVE").text(), "Background saving started");
            for [name, _, change, empty] in TYPES {
                for (number, calls) in REMOVALS.iter().enumerate() {
                    for call in *calls {
                        let call = match call.split_once(' ') {
                            Some(("CHANGE", key)) => change.replace("KEY", key),
                            Some(("EMPTY", key)) => empty.replace("KEY", key),
                            _ => (*call).to_owned(),
                        };
                        let call = call.replace("KEY", &format!("{name}:{number}"));
                        assert!(!client.call(&call).is_error(), "{call}");
                    }
                }
            }
            // The databases to which keys were moved are swapped and flushed.
            for call in ["SWAPDB 3 4", "DEBUG FAULT slow-walk 950", "SELECT 4", "FLUSHDB", "SELECT 0"] {
                assert_eq!(client.call(call), Reply::ok(), "{call}");
            }
            assert_eq!(field(&mut client, "rdb_bgsave_in_progress"), "1", "the removals came during the walk");
            wait_until_saved(&mut client);
            let forced_bytes: u64 = field(&mut client, "rdb_last_cow_size").parse().expect("a number");
            assert!(forced_bytes < 2000, "removals had to wait for the encoding of {forced_bytes} bytes");
            assert_eq!(loaded_digests(backend, &folder), digest, "{execution}");
            server.assert_sound();
        }
    });
}

/// Adds collections that are so large that the snapshot encodes them in pieces.
/// [`change_databases`] changes them.
fn add_large(client: &mut Client) {
    for name in 0..8 {
        let mut commands = Vec::new();
        for number in 0..3000 {
            let text = format!("element:{name}:{number}:{}", "x".repeat(20));
            commands.push(format!("ZADD z{name} {number} {text}"));
            commands.push(format!("SADD s{name} {text}"));
            commands.push(format!("HSET h{name} {text} {number}"));
            commands.push(format!("RPUSH l{name} {text}{text}"));
            commands.push(format!("XADD x{name} * field {text}"));
        }
        let commands: Vec<Vec<&str>> = commands.iter().map(|command| command.split(' ').collect()).collect();
        client.pipeline(&commands);
    }
}

/// Sets, deletes and moves keys that the other writers don't use, changes the collections of
/// [`add_large`], and flushes and swaps databases.
fn change_databases(server: &Server, seed: u64, is_over: &AtomicBool) {
    let mut random = Random::from_seed(Random::seed_of(seed, "databases"));
    let mut client = server.connect();
    while !is_over.load(Ordering::Relaxed) {
        let (db, key) = ([0, 1, 7][random.below(3)], random.below(10_000));
        let commands = match random.below(2000) {
            0 => vec!["SWAPDB 0 1".to_owned()],
            1 => vec!["SWAPDB 7 1".to_owned()],
            2 => vec![format!("SELECT {db}"), "FLUSHDB ASYNC".to_owned(), "DEBUG POPULATE 10000 key 30".to_owned()],
            3 => vec![format!("SELECT {db}"), "FLUSHDB SYNC".to_owned(), "DEBUG POPULATE 10000 key 30".to_owned()],
            4..480 | 490..500 => vec![format!("SELECT {db}"), format!("DEL key:{key}")],
            480..490 => {
                let (name, member) = (random.below(8), format!("element:{0}:{0}:", random.below(3000)));
                vec![
                    "SELECT 5".to_owned(),
                    format!("ZADD z{name} {} {member}", random.below(9000)),
                    format!("SADD s{name} {member}"),
                    format!("HSET h{name} {member} {}", random.below(9000)),
                    format!("LPUSH l{name} {member}"),
                    format!("ZPOPMIN z{name}"),
                    format!("SPOP s{name}"),
                    format!("RPOP l{name}"),
                    format!("XADD x{name} MAXLEN ~ 3000 * field {member}"),
                    match random.below(40) {
                        0 => format!(
                            "RENAME {0}{name} {0}{1}",
                            ["z", "s", "h", "l", "x"][random.below(5)],
                            random.below(8)
                        ),
                        1 => format!(
                            "COPY {0}{name} {0}{1} REPLACE",
                            ["z", "s", "h", "l", "x"][random.below(5)],
                            random.below(8)
                        ),
                        2 => format!("ZREMRANGEBYRANK z{name} 10 {}", random.below(500)),
                        3 => format!("SPOP s{name} {}", random.below(3000)),
                        4 => format!("LTRIM l{name} {} -1", random.below(50)),
                        5 => format!("LREM l{name} 2 {member}"),
                        6 => format!("LINSERT l{name} BEFORE {member} {member}"),
                        7 => format!("HINCRBY h{name} counter 1"),
                        8 => format!("PEXPIRE z{name} 100000"),
                        9 => format!("ZUNIONSTORE z{name} 2 z{name} z{}", random.below(8)),
                        _ => format!("HDEL h{name} {member}"),
                    },
                ]
            }
            500..750 => vec![format!("SELECT {db}"), format!("MOVE key:{key} {}", (db + 1) % 3)],
            750..1000 => vec![format!("SELECT {db}"), format!("EXPIRE key:{key} 100000")],
            _ => vec![format!("SELECT {db}"), format!("SET key:{key} changed:{key}")],
        };
        let commands: Vec<Vec<&str>> = commands.iter().map(|command| command.split(' ').collect()).collect();
        client.pipeline(&commands);
    }
}

/// Starts a snapshot during a pause of all writers, and waits until it is written. Returns the
/// digest of the dataset during the pause.
fn save_in_a_pause(client: &mut Client) -> String {
    assert_eq!(client.call("CLIENT PAUSE 20000 WRITE"), Reply::ok());
    // Keys with short TTLs expire during this sleep. No key can then expire between the digest and
    // the start of the snapshot.
    std::thread::sleep(Duration::from_millis(150));
    let digest = client.call("DEBUG DIGEST").text();
    assert_eq!(client.call("BGSAVE").text(), "Background saving started");
    assert_eq!(client.call("CLIENT UNPAUSE"), Reply::ok());
    wait_until_saved(client);
    assert_ne!(field(client, "rdb_last_cow_size"), "0", "no change preceded the walk");
    digest
}

/// Loads the file in Pantala and in redis-server, and asserts that the digests of the two datasets
/// are equal. Returns the digest.
fn loaded_digests(backend: Backend, folder: &TempDir) -> String {
    let copy = tempfile::tempdir().expect("a folder");
    std::fs::copy(folder.path().join("dump.rdb"), copy.path().join("dump.rdb")).expect("the file is there");
    let loaded = pantala(backend, &copy, &["--save", ""]);
    let digest = loaded.connect().call("DEBUG DIGEST").text();
    if let Some(reference) = Server::redis(&["--dir", path(&copy), "--save", ""]) {
        assert_eq!(reference.connect().call("DEBUG DIGEST").text(), digest, "in redis-server");
    }
    digest
}

/// After a crash while a snapshot is written, the last complete snapshot remains.
#[test]
fn a_crash_leaves_the_last_snapshot() {
    let folder = folder();
    let backend = *Backend::all().first().expect("a backend");
    let mut server = pantala(backend, &folder, &["--save", ""]);
    let mut client = server.connect();
    client.call("SET a 1");
    assert_eq!(client.call("BGSAVE").text(), "Background saving started");
    wait_until_saved(&mut client);
    let digest = client.call("DEBUG DIGEST").text();
    assert_eq!(client.call("DEBUG POPULATE 500000 key 100"), Reply::ok());
    assert_eq!(client.call("BGSAVE").text(), "Background saving started");
    eventually("it is being written", || names(folder.path()).len() == 2);
    server.signal(rustix::process::Signal::KILL);
    server.wait_exit(pantala_tests::server::READY_MAX);
    assert_eq!(loaded_digests(backend, &folder), digest);
}

/// FLUSHALL replaces the snapshot's file by a file without keys. With the old file, the flushed
/// keys would return after a crash.
#[test]
fn flushall_replaces_the_file() {
    for_each_backend(|backend| {
        let folder = folder();
        let mut server = pantala(backend, &folder, &["--save", "3600 1000000"]);
        let mut client = server.connect();
        assert_eq!(client.call("DEBUG POPULATE 20000"), Reply::ok());
        assert_eq!(client.call("DEBUG FAULT slow-walk 990"), Reply::ok());
        assert_eq!(client.call("BGSAVE").text(), "Background saving started");
        assert_eq!(client.call("SAVE").text(), "ERR Background save already in progress");
        assert_eq!(client.call("BGSAVE").text(), "ERR Background save already in progress");
        assert_eq!(client.call("BGSAVE SCHEDULE").text(), "ERR Background save already in progress");
        assert_eq!(client.call("FLUSHALL"), Reply::ok());
        eventually("it is aborted", || server.log().contains("Background saving aborted"));
        eventually("a snapshot of the empty dataset is started", || field(&mut client, "rdb_saves") == "2");
        wait_until_saved(&mut client);
        server.signal(rustix::process::Signal::KILL);
        server.wait_exit(pantala_tests::server::READY_MAX);
        assert_eq!(names(folder.path()), ["dump.rdb"]);
        let server = pantala(backend, &folder, &["--save", "3600 1000000"]);
        let mut client = server.connect();
        assert_eq!(client.call("DBSIZE"), Reply::Integer(0));
        // If no snapshot is running, the file is replaced before the reply.
        let file = folder.path().join("dump.rdb");
        let empty = std::fs::metadata(&file).expect("it is there").len();
        for call in ["SET key 1", "SAVE", "FLUSHALL"] {
            assert_eq!(client.call(call), Reply::ok(), "{call}");
            let is_empty = std::fs::metadata(&file).expect("it is there").len() == empty;
            assert_eq!(is_empty, call != "SAVE", "{call}");
        }
        assert_eq!(client.call("BGSAVE").text(), "Background saving started");
    });
}

/// When the server shuts down, it aborts a snapshot that is being written. `SHUTDOWN SAVE` then
/// writes a final snapshot. After `SHUTDOWN NOSAVE`, no file remains.
#[test]
fn shutdown_while_a_snapshot_is_written() {
    for_each_backend(|backend| {
        for (options, keys) in [(&["SHUTDOWN", "SAVE"][..], 20_001), (&["SHUTDOWN", "NOSAVE"], 0)] {
            let folder = folder();
            let mut server = pantala(backend, &folder, &["--save", ""]);
            let mut client = server.connect();
            assert_eq!(client.call("DEBUG POPULATE 20000"), Reply::ok());
            assert_eq!(client.call("DEBUG FAULT slow-walk 990"), Reply::ok());
            assert_eq!(client.call("BGSAVE").text(), "Background saving started");
            client.call("SET late 1");
            client.send(options);
            assert_eq!(server.wait_exit(pantala_tests::server::READY_MAX).code(), Some(0), "{}", server.log());
            let wanted: &[&str] = if keys > 0 { &["dump.rdb"] } else { &[] };
            assert_eq!(names(folder.path()), wanted, "{options:?}");
            let server = pantala(backend, &folder, &["--save", ""]);
            assert_eq!(server.connect().call("DBSIZE"), Reply::Integer(keys), "{options:?}");
        }
    });
}

/// `rdb-key-save-delay` makes a snapshot wait after each key, until the delay is turned off or the
/// snapshot is aborted. Commands are not delayed.
#[test]
fn a_delayed_snapshot_continues_when_the_delay_is_turned_off() {
    for_each_backend(|backend| {
        let folder = folder();
        let mut server = pantala(backend, &folder, &["--save", "", "--rdb-key-save-delay", "10000000"]);
        let mut client = server.connect();
        assert_eq!(client.call("DEBUG POPULATE 1000"), Reply::ok());
        for round in 1..=2 {
            assert_eq!(client.call("BGSAVE").text(), "Background saving started");
            std::thread::sleep(Duration::from_millis(200));
            assert_eq!(client.call("SET key:1 1"), Reply::ok());
            assert_eq!(field(&mut client, "rdb_bgsave_in_progress"), "1");
            if round == 1 {
                assert_eq!(client.call("CONFIG SET rdb-key-save-delay 0"), Reply::ok());
                wait_until_saved(&mut client);
                assert_eq!(client.call("CONFIG SET rdb-key-save-delay 10000000"), Reply::ok());
            }
        }
        client.send(&["SHUTDOWN", "NOSAVE"]);
        assert_eq!(server.wait_exit(pantala_tests::server::READY_MAX).code(), Some(0), "{}", server.log());
    });
}
