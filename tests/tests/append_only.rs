//! The append-only file: which data survives a crash, and whether Pantala and redis-server read
//! each other's files.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use pantala_tests::effects::{delete_expired, digest, wait_for_expiry};
use pantala_tests::server::{READY_MAX, run_to_exit};
use pantala_tests::small_disk::SmallDisk;
use pantala_tests::waiting::eventually;
use pantala_tests::writers::write_until;
use pantala_tests::{Backend, Client, Random, Reply, Server, for_each_backend, tool};
use rustix::process::Signal;
use tempfile::TempDir;

const INCREMENT: &str = "appendonlydir/appendonly.aof.1.incr.aof";
const MANIFEST: &str = "appendonlydir/appendonly.aof.manifest";

fn folder() -> TempDir {
    tempfile::Builder::new().prefix("pantala-aof-").tempdir().expect("a folder for the files")
}

fn text(path: &Path) -> String {
    path.to_str().expect("a UTF-8 path").to_owned()
}

/// Starts Pantala with an append-only file in `dir`.
fn start(backend: Backend, dir: &Path, more: &[&str]) -> Server {
    let dir = text(dir);
    let mut args = vec!["--dir", &dir, "--save", "", "--appendonly", "yes", "--workers", "3"];
    args.extend_from_slice(more);
    Server::pantala(backend, &args)
}

fn start_redis(dir: &Path, more: &[&str]) -> Option<Server> {
    let dir = text(dir);
    let mut args = vec!["--dir", &dir, "--appendonly", "yes"];
    args.extend_from_slice(more);
    Server::redis(&args)
}

/// Stops a server with SIGTERM, and waits for its exit.
fn shut_down(mut server: Server) {
    server.signal(Signal::TERM);
    let status = server.wait_exit(READY_MAX);
    assert!(status.success(), "{status}: {}", server.log());
}

fn must(client: &mut Client, command: &str) -> Reply {
    let reply = client.call(command);
    assert!(!matches!(reply, Reply::Error(_)), "{command}: {reply:?}");
    reply
}

/// Returns a field of `INFO persistence`.
fn info(client: &mut Client, field: &str) -> String {
    let all = client.call("INFO persistence").text();
    let line = all.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("no {field} in {all}")).trim().to_owned()
}

fn wait_for_rewrite(client: &mut Client) {
    eventually("the rewrite ends", || {
        info(client, "aof_rewrite_in_progress") == "0" && info(client, "aof_rewrite_scheduled") == "0"
    });
    assert_eq!(info(client, "aof_last_bgrewrite_status"), "ok");
}

/// Runs three writers for some time, and rewrites the file `rewrites` times meanwhile. Then loads
/// the function `f`, and waits until all keys with a TTL have been deleted.
fn fill(server: &Server, seed: u64, rewrites: usize) {
    let (is_over, rests) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let writing = scope.spawn(|| write_until(server, seed, 3, &is_over, &rests));
        let mut client = server.connect();
        for _ in 0..rewrites {
            std::thread::sleep(Duration::from_millis(50));
            must(&mut client, "BGREWRITEAOF");
            wait_for_rewrite(&mut client);
        }
        std::thread::sleep(Duration::from_millis(50));
        is_over.store(true, Relaxed);
        writing.join().expect("all writes succeed");
    });
    let mut client = server.connect();
    must(&mut client, "FUNCTION FLUSH");
    let library = b"#!lua name=lib\nredis.register_function('f', function() return 'called' end)".as_slice();
    assert_eq!(client.command(&[b"FUNCTION".as_slice(), b"LOAD", library]).text(), "lib");
    must(&mut client, "PUBLISH channel message");
    wait_for_expiry(server);
    delete_expired(&mut client);
}

fn listed(dir: &Path) -> Vec<String> {
    let manifest = fs::read_to_string(dir.join(MANIFEST)).expect("a manifest");
    manifest.lines().map(|line| line.split(' ').nth(1).expect("a name").to_owned()).collect()
}

#[test]
fn writes_survive_a_restart() {
    for_each_backend(|backend| {
        let seed = Random::seed("writes_survive_a_restart");
        let dir = folder();
        for (round, rewrites) in [0, 1, 2].into_iter().enumerate() {
            let server = start(backend, dir.path(), &[]);
            fill(&server, seed + round as u64, rewrites);
            let before = digest(&server);
            shut_down(server);
            let server = start(backend, dir.path(), &[]);
            assert_eq!(digest(&server), before);
            assert_eq!(server.connect().call("FCALL f 0").text(), "called");
            shut_down(server);
        }
        let mut files: Vec<_> = fs::read_dir(dir.path().join("appendonlydir")).expect("a directory").collect();
        files.retain(|file| !file.as_ref().expect("an entry").path().ends_with("appendonly.aof.manifest"));
        assert_eq!(files.len(), listed(dir.path()).len(), "files that no manifest lists are deleted");
    });
}

#[test]
fn redis_and_pantala_read_each_others_files() {
    let Some(checker) = tool::find("redis-check-aof") else { return };
    let seed = Random::seed("redis_and_pantala_read_each_others_files");
    let redis: [&[&str]; 3] = [&[], &["--aof-use-rdb-preamble", "no", "--aof-timestamp-enabled", "yes"], &[]];
    for (round, more) in redis.into_iter().enumerate() {
        let ours: &[&[&str]] = if round == 0 { &[more] } else { &[more, &["--aof-checksums", "yes"]] };
        let ours = ours.concat();
        let dir = folder();
        for turn in 0..4 {
            let is_ours = turn % 2 == 0;
            let server =
                if is_ours { Some(start(Backend::Epoll, dir.path(), &ours)) } else { start_redis(dir.path(), more) };
            let Some(server) = server else { return };
            // The file first contains only effects, and later a base followed by effects.
            fill(&server, seed + turn + 10 * round as u64, usize::from(turn > 1));
            let before = digest(&server);
            shut_down(server);
            let checked = Command::new(&checker).arg(dir.path().join(MANIFEST)).output().expect("it runs");
            assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stdout));
            let other =
                if is_ours { start_redis(dir.path(), more) } else { Some(start(Backend::Epoll, dir.path(), &ours)) };
            let Some(other) = other else { return };
            assert_eq!(digest(&other), before, "turn {turn} of {more:?}");
            assert_eq!(other.connect().call("FCALL f 0").text(), "called");
            shut_down(other);
        }
    }
}

#[test]
fn a_truncated_file_is_cut_and_loaded_or_prevents_startup() {
    let dir = folder();
    let server = start(Backend::Epoll, dir.path(), &[]);
    let mut client = server.connect();
    must(&mut client, "SET a 1");
    for command in ["MULTI", "SET b 2", "SET c 3", "EXEC"] {
        must(&mut client, command);
    }
    shut_down(server);
    let path = dir.path().join(INCREMENT);
    let whole = fs::read(&path).expect("an increment");
    let multi = whole.windows(5).position(|word| word == b"MULTI").expect("a transaction") - b"*1\r\n$5\r\n".len();
    for len in [whole.len() - 1, whole.len() - 14, multi + 20, multi + 5, multi + 1] {
        fs::write(&path, &whole[..len]).expect("written");
        let args = [
            "--dir",
            &text(dir.path()),
            "--port",
            "0",
            "--unixsocket",
            "socket",
            "--appendonly",
            "yes",
            "--aof-load-truncated",
            "no",
        ];
        let exit = run_to_exit(&args, b"");
        assert!(!exit.status.success(), "{}", exit.output);
        assert!(exit.output.contains("Unexpected end of file"), "{}", exit.output);
        assert!(exit.output.contains(&format!("offset {multi}")), "{}", exit.output);
        assert_eq!(fs::read(&path).expect("it is there").len(), len, "nothing is changed");
        let server = start(Backend::Epoll, dir.path(), &[]);
        assert!(server.log().contains(&format!("at offset {multi}")), "{}", server.log());
        assert_eq!(server.connect().call("MGET a b c").elements(), [Reply::bulk("1"), Reply::Null, Reply::Null]);
        drop(server);
        assert_eq!(fs::read(&path).expect("it is there"), &whole[..multi]);
    }
}

/// As in Redis, the parser accepts other bytes in place of line ends. Such bytes of a client must
/// not be written to the file.
#[test]
fn wrong_line_ends_of_a_client_are_not_written() {
    for_each_backend(|backend| {
        let dir = folder();
        let server = start(backend, dir.path(), &[]);
        let mut client = server.connect();
        for command in [
            "*3\rx$3\r\nSET\r\n$1\r\na\r\n$1\r\n1\r\n",
            "*3\r\n$3\rxSET\r\n$1\r\nb\r\n$1\r\n2xy",
            "*3\r\n$3\r\nSETxy$1\r\nc\r\n$1\r\n3\r\n",
        ] {
            client.send_raw(command.as_bytes());
            assert_eq!(client.receive(), Reply::ok(), "{command:?}");
        }
        shut_down(server);
        let server = start(backend, dir.path(), &[]);
        assert_eq!(
            server.connect().call("MGET a b c"),
            Reply::Array(vec![Reply::bulk("1"), Reply::bulk("2"), Reply::bulk("3")])
        );
    });
}

#[test]
fn a_damaged_file_prevents_startup() {
    let dir = folder();
    let server = start(Backend::Epoll, dir.path(), &[]);
    must(&mut server.connect(), "SET a 1");
    must(&mut server.connect(), "SET b 2");
    shut_down(server);
    let path = dir.path().join(INCREMENT);
    let whole = fs::read(&path).expect("an increment");
    let args = ["--dir", &text(dir.path()), "--port", "0", "--unixsocket", "socket", "--appendonly", "yes"];
    let fails = |says: &str| {
        let exit = run_to_exit(&args, b"");
        assert!(!exit.status.success() && exit.output.contains(says), "{says}: {}", exit.output);
    };
    let damage = |at: usize, byte: u8| {
        let mut damaged = whole.clone();
        damaged[at] = byte;
        fs::write(&path, damaged).expect("written");
    };
    damage(23, b'x');
    fails(
        "Bad file format reading the append only file appendonly.aof.1.incr.aof: Expected prefix '*', got: 'x' (at offset 23)",
    );
    damage(31, b'X');
    fails("Unknown command 'XET'");
    fs::write(&path, &whole).expect("written");
    let base = dir.path().join("appendonlydir/appendonly.aof.1.base.rdb");
    let right = fs::read(&base).expect("a base");
    fs::write(&base, &right[..right.len() - 1]).expect("written");
    fails("Error reading the RDB base file appendonly.aof.1.base.rdb");
    fs::remove_file(&base).expect("the file exists");
    fails("Unable to obtain the AOF file appendonly.aof.1.base.rdb length. stat: No such file or directory");
    fs::write(dir.path().join(MANIFEST), "file x\n").expect("written");
    fails("FATAL AOF MANIFEST FILE ERROR");
}

#[test]
fn the_single_file_of_redis_6_becomes_the_base() {
    let command = |words: &[&str]| pantala_tests::client::encode(words);
    let effects = [
        command(&["SELECT", "0"]),
        command(&["SET", "k", "v"]),
        command(&["SET", "gone", "v", "PXAT", "1700000000000"]),
    ];
    // As Redis 6 and Valkey write it.
    let [redis, valkey] =
        ["REDIS0009", "VALKEY080"].map(|magic| [magic.as_bytes(), b"\xfe\x00\x00\x01a\x01b\xff", &[0; 8]].concat());
    for (start_of_file, a) in [(vec![], Reply::Null), (redis, Reply::bulk("b")), (valkey, Reply::bulk("b"))] {
        let dir = folder();
        fs::write(dir.path().join("appendonly.aof"), [start_of_file, effects.concat()].concat()).expect("written");
        for _ in 0..2 {
            let server = start(Backend::Epoll, dir.path(), &[]);
            let mut client = server.connect();
            assert_eq!(client.call("MGET a k gone").elements(), [a.clone(), Reply::bulk("v"), Reply::Null]);
            shut_down(server);
        }
        assert!(!dir.path().join("appendonly.aof").exists());
        assert_eq!(listed(dir.path()), ["appendonly.aof", "appendonly.aof.1.incr.aof"]);
    }
}

#[test]
fn it_can_be_turned_on_and_off_while_the_server_runs() {
    for_each_backend(|backend| {
        let dir = folder();
        let seed = Random::seed("it_can_be_turned_on_and_off");
        let server = Server::pantala(backend, &["--dir", &text(dir.path()), "--save", "", "--workers", "3"]);
        let mut client = server.connect();
        fill(&server, seed, 0);
        assert_eq!(info(&mut client, "aof_enabled"), "0");
        for round in 1..3 {
            must(&mut client, "CONFIG SET appendonly yes");
            assert_eq!(info(&mut client, "aof_enabled"), "1");
            wait_for_rewrite(&mut client);
            fill(&server, seed + round, 0);
            must(&mut client, "CONFIG SET appendonly no");
            must(&mut client, &format!("SET unwritten {round}"));
        }
        must(&mut client, "CONFIG SET appendfsync always appendonly yes");
        wait_for_rewrite(&mut client);
        must(&mut client, "SET last written");
        delete_expired(&mut client);
        let before = digest(&server);
        server.kill();
        let server = start(backend, dir.path(), &[]);
        assert_eq!(digest(&server), before);
    });
}

#[test]
fn a_rewrite_works_while_the_file_is_off() {
    let dir = folder();
    let server = Server::pantala(Backend::Epoll, &["--dir", &text(dir.path()), "--save", ""]);
    let mut client = server.connect();
    must(&mut client, "SET a 1");
    assert_eq!(client.call("BGREWRITEAOF").text(), "Background append only file rewriting started");
    wait_for_rewrite(&mut client);
    assert_eq!(listed(dir.path()), ["appendonly.aof.1.base.rdb"]);
    drop(server);
    let server = start(Backend::Epoll, dir.path(), &[]);
    assert_eq!(server.connect().call("GET a").text(), "1");
}

/// After `CONFIG SET dir`, a rewrite uses the new directory if the file is off, even if it was last
/// written in another directory.
#[test]
fn a_rewrite_while_the_file_is_off_uses_the_current_directory() {
    let dirs = [folder(), folder()];
    let server = Server::pantala(
        Backend::Epoll,
        &["--dir", &text(dirs[0].path()), "--save", "", "--enable-protected-configs", "yes", "--appendonly", "yes"],
    );
    let mut client = server.connect();
    must(&mut client, "SET a 0");
    must(&mut client, "CONFIG SET appendonly no");
    for (at, dir) in [0, 1, 1, 0].into_iter().enumerate() {
        must(&mut client, &format!("CONFIG SET dir {}", text(dirs[dir].path())));
        must(&mut client, &format!("SET a {at}"));
        must(&mut client, "BGREWRITEAOF");
        wait_for_rewrite(&mut client);
    }
    // The base of the first file was number 1.
    assert_eq!(listed(dirs[0].path()), ["appendonly.aof.3.base.rdb"]);
    assert_eq!(listed(dirs[1].path()), ["appendonly.aof.2.base.rdb"]);
    drop(server);
    for (dir, value) in dirs.iter().zip(["3", "2"]) {
        assert_eq!(names_below(dir.path()).len(), 3, "no file is left: {:?}", names_below(dir.path()));
        let server = start(Backend::Epoll, dir.path(), &[]);
        assert_eq!(server.connect().call("GET a").text(), value);
    }
}

#[test]
fn the_file_is_rewritten_when_it_has_grown() {
    let dir = folder();
    let more = ["--auto-aof-rewrite-min-size", "100kb", "--auto-aof-rewrite-percentage", "100"];
    let server = start(Backend::Epoll, dir.path(), &more);
    let mut client = server.connect();
    let value = "v".repeat(2000);
    for _ in 0..100 {
        must(&mut client, &format!("SET k {value}"));
    }
    eventually("the file is rewritten", || info(&mut client, "aof_rewrites") != "0");
    wait_for_rewrite(&mut client);
    let size: u64 = info(&mut client, "aof_current_size").parse().expect("a number");
    assert!(size < 200_000, "{size}");
    assert!(server.log().contains("Starting automatic rewriting of AOF on"), "{}", server.log());
    drop(server);
    let server = start(Backend::Epoll, dir.path(), &[]);
    assert_eq!(server.connect().call("STRLEN k"), Reply::Integer(2000));
}

/// Effects of other workers are synced while a script runs, even before the script has reached
/// `busy-reply-threshold`.
#[test]
fn a_script_delays_no_sync_of_other_workers() {
    for_each_backend(|backend| {
        let dir = folder();
        let server = start(backend, dir.path(), &["--workers", "2", "--appendfsync", "always"]);
        let mut scripts = server.connect();
        let script = "local t = redis.call('TIME') local since = t[1] * 1000 + t[2] / 1000 \
                      repeat t = redis.call('TIME') until t[1] * 1000 + t[2] / 1000 > since + 2500";
        let mut writers: Vec<Client> = (0..6).map(|_| server.connect()).collect();
        let mut is_served = || {
            scripts.send(&["EVAL", script, "0"]);
            std::thread::sleep(std::time::Duration::from_millis(200));
            for (number, writer) in writers.iter_mut().enumerate() {
                writer.send(&["SET", &format!("k{number}"), "1"]);
            }
            // Some of the writers belong to the worker that doesn't run the script.
            let has_reply = |writer: &mut Client| writer.has_reply_within(std::time::Duration::from_millis(200));
            let served = writers.iter_mut().map(has_reply).filter(|has_reply| *has_reply).count();
            assert_eq!(scripts.receive(), Reply::Null);
            writers.iter_mut().for_each(|writer| assert_eq!(writer.receive(), Reply::ok()));
            served > 0
        };
        // Tries several times: a sync of a slow disk may take as long as the script.
        assert!((0..4).any(|_| is_served()), "no reply while a script ran");
    });
}

/// The append-only file is turned off while a script runs, and on again after the script has ended.
/// The new base file then contains the script's effects. These effects must not be written a second
/// time, after the effects of later commands.
#[test]
fn effects_of_a_script_are_not_written_late() {
    for_each_backend(|backend| {
        let dir = folder();
        let server = start(backend, dir.path(), &["--workers", "2", "--busy-reply-threshold", "50"]);
        let mut client = server.connect();
        let mut scripts = server.connect();
        let script = "redis.call('SET', KEYS[1], 'old') local t = redis.call('TIME') \
                      local since = t[1] * 1000 + t[2] / 1000 \
                      repeat t = redis.call('TIME') until t[1] * 1000 + t[2] / 1000 > since + 700";
        scripts.send(&["EVAL", script, "1", "key"]);
        std::thread::sleep(std::time::Duration::from_millis(200));
        assert_eq!(client.call("CONFIG SET appendonly no"), Reply::ok());
        assert_eq!(scripts.receive(), Reply::Null);
        must(&mut client, "SET key new");
        assert_eq!(client.call("CONFIG SET appendonly yes"), Reply::ok());
        wait_for_rewrite(&mut client);
        // At least one of these clients belongs to the worker that ran the script.
        for number in 0..4 {
            must(&mut server.connect(), &format!("SET other:{number} 1"));
        }
        must(&mut scripts, "SET other 1");
        shut_down(server);
        let server = start(backend, dir.path(), &[]);
        assert_eq!(server.connect().call("MGET key other"), Reply::Array(vec![Reply::bulk("new"), Reply::bulk("1")]));
    });
}

/// Collections of 64 KiB and more are encoded in pieces, so they span several parts of a snapshot.
#[test]
fn a_base_of_commands_has_large_collections() {
    for_each_backend(|backend| {
        let dir = folder();
        let server = start(backend, dir.path(), &["--aof-use-rdb-preamble", "no"]);
        let mut client = server.connect();
        let fill = "for i = 1, 10000 do redis.call('RPUSH', KEYS[1], 'element ' .. i) \
                    redis.call('HSET', KEYS[2], 'field ' .. i, i) redis.call('SADD', KEYS[3], 'member ' .. i) \
                    redis.call('ZADD', KEYS[4], i, 'member ' .. i) redis.call('XADD', KEYS[5], '*', 'field', i) \
                    if i <= 1000 then redis.call('SET', KEYS[6] .. i, i) end end";
        let reply = client.command(&["EVAL", fill, "6", "l", "h", "s", "z", "x", "k:"]);
        assert_eq!(reply, Reply::Null);
        let before = digest(&server);
        must(&mut client, "BGREWRITEAOF");
        wait_for_rewrite(&mut client);
        must(&mut client, "DEBUG LOADAOF");
        assert_eq!(must(&mut client, "DBSIZE"), Reply::Integer(1005));
        assert_eq!(digest(&server), before);
    });
}

#[test]
fn delivered_messages_keep_their_times() {
    for_each_backend(|backend| {
        let dir = folder();
        let server = start(backend, dir.path(), &["--aof-use-rdb-preamble", "no"]);
        let mut client = server.connect();
        must(&mut client, "XGROUP CREATE s g 0 MKSTREAM");
        must(&mut client, "XADD s 1-1 f v");
        must(&mut client, "XREADGROUP GROUP g first STREAMS s >");
        must(&mut client, "DEBUG LOADAOF");
        let none = must(&mut client, "XAUTOCLAIM s g second 3600000 0");
        assert_eq!(none.elements()[1], Reply::Array(Vec::new()), "{none:?}");
        let pending = must(&mut client, "XPENDING s g - + 10");
        assert!(pending.elements()[0].elements()[2].integer() < 600_000, "{pending:?}");
        let consumers = must(&mut client, "XINFO CONSUMERS s g");
        let first = consumers.elements().iter().find(|consumer| consumer.elements()[1] == Reply::bulk("first"));
        assert!(first.expect("it exists").elements()[5].integer() < 600_000, "{consumers:?}");
    });
}

/// `HINCRBYFLOAT` keeps a field's TTL. But its effect is written to the file as `HSET`, which
/// removes the TTL, so the file must also set the TTL again.
#[test]
fn an_incremented_field_keeps_its_ttl() {
    for_each_backend(|backend| {
        let dir = folder();
        let server = start(backend, dir.path(), &["--aof-use-rdb-preamble", "no"]);
        let mut client = server.connect();
        must(&mut client, "HSET h f 1 g 1");
        must(&mut client, "HEXPIRE h 1000 FIELDS 1 f");
        for field in ["f", "g"] {
            assert_eq!(must(&mut client, &format!("HINCRBYFLOAT h {field} 1.5")), Reply::bulk("2.5"));
        }
        let ask = "HPEXPIRETIME h FIELDS 2 f g";
        let before = must(&mut client, ask);
        must(&mut client, "DEBUG LOADAOF");
        assert_eq!(must(&mut client, ask), before);
        assert_eq!(must(&mut client, "HVALS h"), Reply::Array(vec![Reply::bulk("2.5"), Reply::bulk("2.5")]));
    });
}

#[test]
fn debug_loadaof_restores_committed_effects() {
    for_each_backend(|backend| {
        let dir = folder();
        let seed = Random::seed("debug_loadaof");
        let server = start(backend, dir.path(), &["--appendfsync", "no"]);
        let mut client = server.connect();
        for round in 0..3 {
            fill(&server, seed + round, usize::from(round == 1));
            let before = digest(&server);
            must(&mut client, "DEBUG LOADAOF");
            assert_eq!(digest(&server), before);
        }
        must(&mut client, "MULTI");
        assert!(matches!(client.call("DEBUG LOADAOF"), Reply::Error(_)));
        let before = digest(&server);
        shut_down(server);
        assert_eq!(digest(&start(backend, dir.path(), &[])), before, "it does not write what it has loaded");
    });
}

#[test]
fn an_expired_key_exists_for_later_commands() {
    let dir = folder();
    fs::create_dir(dir.path().join("appendonlydir")).expect("created");
    fs::write(dir.path().join(MANIFEST), "file appendonly.aof.1.incr.aof seq 1 type i\n").expect("written");
    let commands: [&[&str]; 7] = [
        &["SET", "k", "v", "PXAT", "1700000000000"],
        &["APPEND", "k", "w"],
        &["PERSIST", "k"],
        &["SET", "gone", "v", "PXAT", "1700000000000"],
        // This list's deadline is in 1970. It has passed, whatever time the loader uses as the
        // current time.
        &["RPUSH", "list", "a"],
        &["PEXPIREAT", "list", "1000"],
        &["RPUSH", "list", "b"],
    ];
    let effects: Vec<u8> = commands.iter().flat_map(|words| pantala_tests::client::encode(words)).collect();
    fs::write(dir.path().join(INCREMENT), effects).expect("written");
    let server = start(Backend::Epoll, dir.path(), &[]);
    let mut client = server.connect();
    assert_eq!(client.call("GET k").text(), "vw");
    assert_eq!((client.call("GET gone"), client.call("LLEN list")), (Reply::Null, Reply::Integer(0)));
    assert_eq!(client.call("OBJECT IDLETIME k"), Reply::Integer(0));
}

/// The append-only file contains `SHUTDOWN`. As in Redis, the command replies with an error while a
/// file is loaded, because it may have to wait. `SHUTDOWN ABORT` replies with an error because
/// there is no shutdown to abort. In both cases, the load continues.
#[test]
fn a_shutdown_in_the_file_is_not_executed() {
    let commands: [&[&str]; 6] = [
        &["SET", "a", "1"],
        &["SHUTDOWN"],
        &["SHUTDOWN", "NOSAVE", "FORCE"],
        &["shutdown", "save"],
        &["SHUTDOWN", "ABORT"],
        &["SET", "b", "2"],
    ];
    let effects: Vec<u8> = commands.iter().flat_map(|words| pantala_tests::client::encode(words)).collect();
    let load = |started: &dyn Fn(&Path) -> Option<Server>| {
        let dir = folder();
        fs::create_dir(dir.path().join("appendonlydir")).expect("created");
        fs::write(dir.path().join(MANIFEST), "file appendonly.aof.1.incr.aof seq 1 type i\n").expect("written");
        fs::write(dir.path().join(INCREMENT), &effects).expect("written");
        let Some(server) = started(dir.path()) else { return };
        assert_eq!(server.connect().call("MGET a b").elements(), [Reply::bulk("1"), Reply::bulk("2")]);
        assert!(server.log().contains("SHUTDOWN without NOW or ABORT isn"), "{}", server.log());
    };
    load(&|dir| Some(start(Backend::Epoll, dir, &[])));
    load(&|dir| start_redis(dir, &[]));
}

/// Commands in the file are applied even if clients may not send them. There are two cases: an
/// approximate trim, which the file contains with an exact bound and `LIMIT`, and a string that is
/// longer than the current `proto-max-bulk-len`.
#[test]
fn commands_that_clients_could_not_send_are_loaded() {
    const TOO_LONG: &str = "ERR string exceeds maximum allowed size (proto-max-bulk-len)";
    for_each_backend(|backend| {
        let dir = folder();
        let server = start(backend, dir.path(), &["--stream-node-max-entries", "10"]);
        let mut client = server.connect();
        for stream in ["added", "trimmed", "by-id"] {
            for id in 1..=100 {
                must(&mut client, &format!("XADD {stream} {id}-0 f v"));
            }
        }
        must(&mut client, "XADD added MAXLEN ~ 55 LIMIT 30 101-0 f v");
        assert_eq!(client.call("XTRIM trimmed MAXLEN ~ 55 LIMIT 30"), Reply::Integer(30));
        assert_eq!(client.call("XTRIM by-id MINID ~ 56 LIMIT 30"), Reply::Integer(30));
        must(&mut client, "SETRANGE long 3000000 x");
        must(&mut client, "SETBIT bits 24000000 1");
        must(&mut client, "BITFIELD field SET u8 24000000 1");
        let digest = client.call("DEBUG DIGEST").text();
        shut_down(server);
        let server = start(backend, dir.path(), &["--stream-node-max-entries", "1", "--proto-max-bulk-len", "1mb"]);
        let mut client = server.connect();
        assert_eq!(client.call("XLEN added"), Reply::Integer(71));
        assert_eq!((client.call("XLEN trimmed"), client.call("XLEN by-id")), (Reply::Integer(70), Reply::Integer(70)));
        assert_eq!(client.call("STRLEN long"), Reply::Integer(3_000_001));
        assert_eq!(client.call("DEBUG DIGEST").text(), digest, "{}", server.log());
        assert_eq!(client.call("SETRANGE long 4000000 x").text(), TOO_LONG);
    });
}

#[test]
fn timestamps_are_annotated() {
    let dir = folder();
    let server = start(Backend::Epoll, dir.path(), &["--aof-timestamp-enabled", "yes"]);
    let mut client = server.connect();
    must(&mut client, "SET a 1");
    must(&mut client, "PUBLISH c m");
    eventually("it is written", || fs::read(dir.path().join(INCREMENT)).expect("it is there").ends_with(b"1\r\n"));
    let text = String::from_utf8(fs::read(dir.path().join(INCREMENT)).expect("it is there")).expect("text");
    assert!(text.starts_with("#TS:") && text.contains("\r\n*2\r\n$6\r\nSELECT"), "{text}");
    assert!(!text.contains("PUBLISH") && !text.contains("PING"), "{text}");
    shut_down(server);
    let server = start(Backend::Epoll, dir.path(), &["--aof-timestamp-enabled", "yes", "--aof-use-rdb-preamble", "no"]);
    let mut client = server.connect();
    assert_eq!(client.call("GET a").text(), "1");
    must(&mut client, "BGREWRITEAOF");
    wait_for_rewrite(&mut client);
    let base = text_of_base(dir.path());
    assert!(base.starts_with("#TS:"), "{base}");
    shut_down(server);
    assert_eq!(start(Backend::Epoll, dir.path(), &[]).connect().call("GET a").text(), "1");
}

/// Returns the text of the base file, which consists of commands.
fn text_of_base(dir: &Path) -> String {
    let name = listed(dir).into_iter().find(|name| name.ends_with(".base.aof")).expect("a base");
    String::from_utf8_lossy(&fs::read(dir.join("appendonlydir").join(name)).expect("it is there")).into_owned()
}

/// With `appendfsync always`, one sync makes the writes of many clients durable, and each client
/// reads its own writes.
#[test]
fn always_syncs_once_for_many_clients() {
    for_each_backend(|backend| {
        let dir = folder();
        let server = start(backend, dir.path(), &["--appendfsync", "always"]);
        let began = Instant::now();
        std::thread::scope(|scope| {
            for writer in 0..20 {
                let mut client = server.connect();
                scope.spawn(move || {
                    for number in 0..50 {
                        must(&mut client, &format!("SET k:{writer} {number}"));
                        assert_eq!(client.call(&format!("GET k:{writer}")).text(), number.to_string());
                    }
                });
            }
        });
        println!("1000 synced writes of 20 clients took {:?}", began.elapsed());
        let mut client = server.connect();
        // The replies to a pipeline keep their order, although only some of them wait for a sync.
        let commands: Vec<Vec<String>> = (0..100)
            .flat_map(|number| [vec!["SET".into(), "p".into(), format!("{number}")], vec!["GET".into(), "p".into()]])
            .collect();
        let replies = client.pipeline(&commands);
        for (number, pair) in replies.chunks(2).enumerate() {
            assert_eq!((pair[0].text(), pair[1].text()), ("OK".to_owned(), number.to_string()));
        }
        // A blocked client receives an element only after its push is synced.
        let mut blocked = server.connect();
        blocked.send(&["BLPOP", "queue", "0"]);
        pantala_tests::waiting::wait_until_blocked(&mut client, 1);
        must(&mut client, "RPUSH queue element");
        assert_eq!(blocked.receive().elements()[1].text(), "element");
        let size = fs::metadata(dir.path().join(INCREMENT)).expect("it is there").len();
        assert!(size > 0);
    });
}

#[test]
fn writes_are_rejected_while_the_disk_is_full() {
    let disk = SmallDisk::new();
    if !disk.mount("size=128k") {
        return tool::skipped("a small file system can't be mounted");
    }
    let dir = disk.path();
    let server = start(Backend::Epoll, dir, &[]);
    let mut client = server.connect();
    must(&mut client, "SET a 1");
    must(&mut client, &format!("SET b {}", "v".repeat(200_000)));
    eventually("writes are rejected", || {
        client.call("SET c 1").text() == "MISCONF Errors writing to the AOF file: No space left on device"
    });
    assert_eq!(client.call("PING").text(), "MISCONF Errors writing to the AOF file: No space left on device");
    assert_eq!(client.call("GET a").text(), "1");
    assert_eq!(info(&mut client, "aof_last_write_status"), "err");
    assert!(disk.mount("remount,size=4m"));
    eventually("writes are accepted", || client.call("SET c 2") == Reply::ok());
    assert_eq!(client.call("PING").text(), "PONG");
    assert_eq!(info(&mut client, "aof_last_write_status"), "ok");
    shut_down(server);
    let server = start(Backend::Epoll, dir, &[]);
    let mut client = server.connect();
    assert_eq!((client.call("STRLEN b"), client.call("GET c").text()), (Reply::Integer(200_000), "2".to_owned()));
}

/// Returns the paths of the files and folders in `dir`, relative to it.
fn names_below(dir: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).expect("a folder").map(|entry| entry.expect("an entry").path()) {
        let name = text(entry.strip_prefix(dir).expect("it is below"));
        if entry.is_dir() {
            found.extend(names_below(&entry).into_iter().map(|below| format!("{name}/{below}")));
        }
        found.push(name);
    }
    found
}

/// Turns the append-only file on and off on a full disk. No file may be left, neither if no file
/// can be created nor if the base can't be written.
#[test]
fn nothing_is_left_of_a_file_that_a_full_disk_prevented() {
    let disk = SmallDisk::new();
    // The file system has two files at most: its root, and one below it.
    if !disk.mount("size=64k,nr_inodes=2") {
        return tool::skipped("a small file system can't be mounted");
    }
    let server =
        Server::pantala(Backend::Epoll, &["--dir", &text(disk.path()), "--save", "", "--rdbcompression", "no"]);
    let mut client = server.connect();
    must(&mut client, &format!("SET a {}", "v".repeat(200_000)));
    let error = "ERR CONFIG SET failed (possibly related to argument 'appendonly') - Unable to turn on AOF. Check \
                 server logs.";
    for _ in 0..2 {
        assert_eq!(client.call("CONFIG SET appendonly yes timeout 5").text(), error);
        assert_eq!(names_below(disk.path()), [""; 0]);
        assert!(server.log().contains("No space left on device"));
        assert_eq!(client.call("CONFIG GET appendonly timeout").elements()[1].text(), "no");
    }
    // Now files can be created, but have no room for the base.
    assert!(disk.mount("remount,size=64k,nr_inodes=20"));
    must(&mut client, "CONFIG SET appendonly yes");
    eventually("the base can't be written", || info(&mut client, "aof_last_bgrewrite_status") == "err");
    must(&mut client, "CONFIG SET appendonly no");
    eventually("no file is left", || names_below(disk.path()) == ["appendonlydir"]);
    assert!(disk.mount("remount,size=4m,nr_inodes=20"));
    must(&mut client, "CONFIG SET appendonly yes");
    eventually("the base is written", || info(&mut client, "aof_last_bgrewrite_status") == "ok");
    wait_for_rewrite(&mut client);
    shut_down(server);
    let server = start(Backend::Epoll, disk.path(), &[]);
    assert_eq!(server.connect().call("STRLEN a"), Reply::Integer(200_000));
}

#[test]
fn a_rewrite_makes_room_on_a_full_disk() {
    let disk = SmallDisk::new();
    if !disk.mount("size=1m") {
        return tool::skipped("a small file system can't be mounted");
    }
    let dir = disk.path();
    let server = start(Backend::Epoll, dir, &["--auto-aof-rewrite-percentage", "0"]);
    let mut client = server.connect();
    let value = "v".repeat(100_000);
    eventually("the disk is full", || client.call(&format!("SET a {value}")) != Reply::ok());
    must(&mut client, "GET a");
    must(&mut client, "BGREWRITEAOF");
    eventually("writes are accepted", || client.call("SET b 1") == Reply::ok());
    wait_for_rewrite(&mut client);
    shut_down(server);
    let server = start(Backend::Epoll, dir, &[]);
    let mut client = server.connect();
    assert_eq!((client.call("STRLEN a"), client.call("GET b").text()), (Reply::Integer(100_000), "1".to_owned()));
}

#[test]
fn a_rewrite_creates_the_directory_again() {
    let dir = folder();
    let server = start(Backend::Epoll, dir.path(), &[]);
    let mut client = server.connect();
    must(&mut client, "SET a 1");
    std::fs::remove_dir_all(dir.path().join("appendonlydir")).expect("it exists");
    must(&mut client, "BGREWRITEAOF");
    wait_for_rewrite(&mut client);
    must(&mut client, "SET b 2");
    shut_down(server);
    let server = start(Backend::Epoll, dir.path(), &[]);
    let mut client = server.connect();
    assert_eq!((client.call("GET a").text(), client.call("GET b").text()), ("1".to_owned(), "2".to_owned()));
}

#[test]
fn the_server_does_not_exit_before_the_first_base() {
    for save in ["", "900 1"] {
        let dir = folder();
        let args = ["--dir", &text(dir.path()), "--save", save, "--enable-debug-command", "yes"];
        let server = Server::pantala(Backend::Epoll, &args);
        let mut client = server.connect();
        must(&mut client, "SET a 1");
        must(&mut client, "DEBUG FAULT slow-walk 1000");
        must(&mut client, "CONFIG SET appendonly yes");
        for command in ["SHUTDOWN", "SHUTDOWN NOSAVE", "SHUTDOWN SAVE"] {
            assert_eq!(client.call(command).text(), "ERR Errors trying to SHUTDOWN. Check logs.", "{command}");
        }
        server.signal(Signal::TERM);
        eventually("the signal is refused", || server.log().contains("Signal received but errors trying to shut down"));
        assert!(server.log().contains("Writing initial AOF, can't exit."));
        must(&mut client, "SET b 2");
        must(&mut client, "DEBUG FAULT slow-walk 0");
        wait_for_rewrite(&mut client);
        shut_down(server);
        let server = start(Backend::Epoll, dir.path(), &[]);
        let mut client = server.connect();
        assert_eq!((client.call("GET a").text(), client.call("GET b").text()), ("1".to_owned(), "2".to_owned()));
    }
}

#[test]
fn load_aof_needs_a_file() {
    let dir = folder();
    let args = ["--dir", &text(dir.path()), "--save", "", "--enable-debug-command", "yes"];
    let server = Server::pantala(Backend::Epoll, &args);
    let mut client = server.connect();
    must(&mut client, "SET a 1");
    assert_eq!(client.call("DEBUG LOADAOF").text(), "ERR There is no append-only file");
    assert_eq!(client.call("GET a").text(), "1");
    // As in Redis, a rewrite writes a base file even while the append-only file is turned off.
    must(&mut client, "BGREWRITEAOF");
    wait_for_rewrite(&mut client);
    must(&mut client, "SET a 2");
    must(&mut client, "DEBUG LOADAOF");
    assert_eq!(client.call("GET a").text(), "1");
}

/// Returns the offsets of the lines with checksums.
fn groups(file: &[u8]) -> Vec<usize> {
    let is_line = |at: &usize| file[*at..].starts_with(b"#CRC:") && (*at == 0 || file[at - 1] == b'\n');
    (0..file.len()).filter(is_line).collect()
}

#[test]
fn checksums_locate_damage_and_are_switched_at_run_time() {
    let dir = folder();
    let server = start(Backend::Epoll, dir.path(), &["--aof-timestamp-enabled", "yes"]);
    let mut client = server.connect();
    let path = dir.path().join(INCREMENT);
    let bytes = || fs::read(&path).expect("it is there");
    for (number, (setting, count)) in [("no", 0), ("yes", 1), ("yes", 2), ("no", 2), ("yes", 3)].into_iter().enumerate()
    {
        must(&mut client, &format!("CONFIG SET aof-checksums {setting}"));
        must(&mut client, &format!("SET key:{number} value"));
        let end = format!("key:{number}\r\n$5\r\nvalue\r\n");
        eventually("it is written", || bytes().ends_with(end.as_bytes()));
        assert_eq!(groups(&bytes()).len(), count);
    }
    let before = digest(&server);
    shut_down(server);
    let server = start(Backend::Epoll, dir.path(), &[]);
    assert_eq!(digest(&server), before, "files with and without checksums are loaded");
    shut_down(server);
    let whole = bytes();
    let second = groups(&whole)[1];
    let check = |options: &[&str]| {
        let mut command = Command::new(pantala_tests::binary::pantala());
        let ran = command.arg("check-aof").args(options).arg(&path).stdin(std::process::Stdio::null()).output();
        let ran = ran.expect("it runs");
        (ran.status.success(), String::from_utf8_lossy(&ran.stdout).into_owned())
    };
    assert!(check(&[]).0);
    let value = whole[second..].windows(5).position(|window| window == b"value").expect("a value") + second;
    // The damage is in the value, in the length of the group, or in the prefix of the line.
    for at in [value, second + 6, second + 1] {
        let mut damaged = whole.clone();
        damaged[at] ^= 1;
        fs::write(&path, &damaged).expect("written");
        let args = ["--dir", &text(dir.path()), "--port", "0", "--unixsocket", "socket", "--appendonly", "yes"];
        let exit = run_to_exit(&args, b"");
        assert!(!exit.status.success(), "{}", exit.output);
        assert!(exit.output.contains(&format!("(at offset {second})")), "{}", exit.output);
        let (is_right, report) = check(&[]);
        assert!(!is_right && report.contains(&format!("ok_up_to={second},")), "{report}");
        // Without confirmation nothing is truncated.
        assert!(!check(&["--fix"]).0);
        assert_eq!(bytes(), damaged);
    }
    // Truncates the last group (the effects that a line with a checksum covers), as a crash may do.
    let last = *groups(&whole).last().expect("some");
    fs::write(&path, &whole[..whole.len() - 9]).expect("written");
    let server = start(Backend::Epoll, dir.path(), &[]);
    assert_eq!(server.connect().call("EXISTS key:3 key:4"), Reply::Integer(1));
    assert_eq!(bytes().len(), last);
}

/// A failed rewrite delays the next rewrite. If the append-only file is turned off, a running
/// rewrite is aborted. An aborted rewrite has not failed, so it must not delay the next one.
#[test]
fn aborted_rewrites_delay_no_other_rewrite() {
    for_each_backend(|backend| {
        let dir = folder();
        let args = ["--dir", &text(dir.path()), "--save", "", "--workers", "2", "--rdb-key-save-delay", "10000000"];
        let server = Server::pantala(backend, &args);
        let mut client = server.connect();
        must(&mut client, "DEBUG POPULATE 100 key 10");
        for round in 1..=4 {
            must(&mut client, "CONFIG SET appendonly yes");
            eventually("the rewrite has started", || server.log().matches("file rewriting started").count() == round);
            must(&mut client, "CONFIG SET appendonly no");
            eventually("the rewrite has ended", || info(&mut client, "aof_rewrite_in_progress") == "0");
        }
        assert_eq!(info(&mut client, "aof_rewrites_consecutive_failures"), "0");
        assert_eq!(info(&mut client, "aof_last_bgrewrite_status"), "ok");
        // The test starts a snapshot, because the delay after a failure applies only to a rewrite
        // that has to wait for a running snapshot.
        must(&mut client, "BGSAVE");
        must(&mut client, "CONFIG SET appendonly yes rdb-key-save-delay 0");
        eventually("the base is written", || server.log().contains("AOF rewrite finished successfully"));
        shut_down(server);
    });
}
