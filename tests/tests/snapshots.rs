//! Snapshots: Pantala and the real redis-server exchange files, data survives a restart, and an
//! invalid file is never served.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use pantala_tests::server::{READY_MAX, run_to_exit};
use pantala_tests::{Backend, Client, Reply, Server, binary, for_each_backend, tool};
use tempfile::TempDir;

/// Length in bytes of the value that replaces LONG in a command. Such a value is too long for a
/// list's node, and is compressible.
const LONG_BYTES: usize = 9000;

/// Commands that create a value of each type and encoding under the key `k`. The key is then
/// renamed.
const VALUES: &[(&str, &[&str])] = &[
    ("string", &["SET k value"]),
    ("empty string", &["SET k "]),
    ("compressible string", &["SET k LONG"]),
    ("8-bit integer", &["SET k 100"]),
    ("16-bit integer", &["SET k -30000"]),
    ("32-bit integer", &["SET k -2147483648"]),
    ("large integer", &["SET k 9223372036854775807"]),
    ("changed string", &["SET k abc", "APPEND k def"]),
    ("list", &["RPUSH k a b 12 -7 a"]),
    ("list of many nodes", &["RPUSH k LONG LONG LONG a LONG"]),
    ("set of integers", &["SADD k 3 -1 70000 5000000000"]),
    ("set", &["SADD k a b 12 c"]),
    ("large set", &["SADD k a b 12 LONG"]),
    ("hash", &["HSET k f v g 12 12 g"]),
    ("large hash", &["HSET k f v g LONG 12 g"]),
    ("sorted set", &["ZADD k 1 a -2.5 12 inf c 0.1 d 1e300 e"]),
    ("large sorted set", &["ZADD k 1 a 0.30000000000000004 12 -inf LONG"]),
    ("stream", &["XADD k 1-1 f v g 12", "XADD k 1-2 f w g LONG", "XADD k 7-0 other -5", "XDEL k 1-2"]),
    ("emptied stream", &["XADD k 5-5 f v", "XDEL k 5-5"]),
    (
        "stream with groups",
        &[
            "XADD k 1-1 f v",
            "XADD k 2-1 f v",
            "XGROUP CREATE k g 0",
            "XGROUP CREATE k h 1-1 ENTRIESREAD 1",
            "XREADGROUP GROUP g c COUNT 1 STREAMS k >",
            "XGROUP CREATECONSUMER k g idle",
        ],
    ),
    ("hyperloglog", &["PFADD k a b c d"]),
    ("string with an expiry", &["SET k value PXAT 4102444800123"]),
    ("hash with an expiry", &["HSET k f v", "PEXPIREAT k 4102444800456"]),
];

fn must(client: &mut Client, command: &str) {
    let reply = client.call(&command.replace("LONG", &"abcdefghi".repeat(LONG_BYTES / 9)));
    assert!(!matches!(reply, Reply::Error(_)), "{command}: {reply:?}");
}

/// Fills three databases with values of every type and encoding, and loads a library. Some values
/// are just below and just above the length at which their encoding changes.
fn fill(client: &mut Client) {
    for (number, (what, commands)) in VALUES.iter().enumerate() {
        commands.iter().for_each(|command| must(client, command));
        must(client, &format!("RENAME k {}:{number}", what.replace(' ', "-")));
        if number % 8 == 7 {
            must(client, &format!("SELECT {}", number / 8 * 7 + 2));
        }
    }
    must(client, "SELECT 0");
    for count in [127, 128, 129, 512, 513] {
        for number in 0..count {
            must(client, &format!("SADD set:{count} {number}"));
            must(client, &format!("SADD words:{count} w{number}"));
            must(client, &format!("HSET hash:{count} f{number} {number}"));
            must(client, &format!("ZADD zset:{count} {number}.5 m{number}"));
            must(client, &format!("RPUSH list:{count} element{number}"));
        }
    }
    for width in [64, 65] {
        must(client, &format!("HSET hash:w{width} f {}", "v".repeat(width)));
        must(client, &format!("ZADD zset:w{width} 1 {}", "m".repeat(width)));
    }
    must(client, "DEBUG POPULATE 300 key 20");
    let library = b"#!lua name=lib\nredis.register_function('f', function() return 'called' end)".as_slice();
    assert_eq!(client.command(&[b"FUNCTION".as_slice(), b"LOAD", library]).text(), "lib");
}

/// Returns everything that a client can read about every key of every database.
fn content(client: &mut Client) -> BTreeMap<String, Vec<Reply>> {
    let mut all = BTreeMap::new();
    // Dumps are compared below, and two compressors may compress the same value differently.
    must(client, "CONFIG SET rdbcompression no");
    for db in 0..16 {
        must(client, &format!("SELECT {db}"));
        for key in client.call("KEYS *").elements() {
            let key = key.text();
            let mut seen = ["DEBUG DIGEST-VALUE", "OBJECT ENCODING", "PEXPIRETIME", "TYPE"]
                .map(|question| client.call(&format!("{question} {key}")));
            // The encodings raw and embstr count as equal: a short string that was changed is raw
            // before the save, and embstr after the load.
            let is_text = matches!(seen[1].text().as_str(), "raw" | "embstr");
            if is_text {
                seen[1] = Reply::Null;
            }
            let stream = (seen[3].text() == "stream").then(|| client.call(&format!("XINFO STREAM {key} FULL COUNT 0")));
            // For these encodings, dumps of equal data may differ: members of hash tables have no
            // defined order, and compressed strings may have different bytes. All other dumps must
            // be equal.
            let is_ordered = !is_text && !matches!(seen[1].text().as_str(), "hashtable" | "quicklist" | "stream");
            let dump = is_ordered.then(|| client.call(&format!("DUMP {key}")));
            all.insert(format!("{db}/{key}"), seen.into_iter().chain(stream).chain(dump).collect());
        }
    }
    must(client, "SELECT 0");
    all.insert("digest".to_owned(), vec![client.call("DEBUG DIGEST"), client.call("FUNCTION LIST WITHCODE")]);
    all
}

fn assert_same(given: &BTreeMap<String, Vec<Reply>>, right: &BTreeMap<String, Vec<Reply>>) {
    assert_eq!(given.len(), right.len());
    for (key, value) in right {
        assert_eq!(given.get(key), Some(value), "{key}");
    }
}

fn path(folder: &TempDir) -> &str {
    folder.path().to_str().expect("UTF-8")
}

fn folder() -> TempDir {
    tempfile::tempdir().expect("a folder")
}

/// Starts Pantala with `folder` as its directory.
fn pantala(backend: Backend, folder: &TempDir, args: &[&str]) -> Server {
    Server::pantala(backend, &[&["--dir", path(folder), "--workers", "2", "--shards", "7"], args].concat())
}

fn any_backend() -> Backend {
    *Backend::all().first().expect("a backend")
}

fn end(mut server: Server, command: &[&str]) {
    server.connect().send(command);
    assert_eq!(server.wait_exit(READY_MAX).code(), Some(0), "{}", server.log());
}

#[test]
fn redis_loads_snapshots_of_pantala() {
    for args in [&[][..], &["--rdbcompression", "no", "--rdbchecksum", "no"], &["--maxmemory-policy", "allkeys-lfu"]] {
        let folder = folder();
        let server = pantala(any_backend(), &folder, args);
        let mut client = server.connect();
        fill(&mut client);
        assert_eq!(client.call("SAVE").text(), "OK");
        let file = folder.path().join("dump.rdb");
        if let Some(checker) = tool::find("redis-check-rdb") {
            let checked = Command::new(checker).arg(&file).output().expect("redis-check-rdb runs");
            assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stdout));
        }
        let Some(reference) = Server::redis(&["--dir", path(&folder)]) else { return };
        assert_same(&content(&mut client), &content(&mut reference.connect()));
        assert_eq!(reference.connect().call("FCALL f 0").text(), "called");
    }
}

#[test]
fn snapshots_of_redis_are_loaded() {
    for args in [&[][..], &["--rdbcompression", "no", "--rdbchecksum", "no"], &["--maxmemory-policy", "allkeys-lru"]] {
        let folder = folder();
        let Some(reference) = Server::redis(&[&["--dir", path(&folder)], args].concat()) else { return };
        let mut right = reference.connect();
        fill(&mut right);
        must(&mut right, "SET over v PX 1");
        must(&mut right, "DEBUG SET-ACTIVE-EXPIRE 0");
        std::thread::sleep(Duration::from_millis(5));
        assert_eq!(right.call("SAVE").text(), "OK");
        // On redis-server, the digest includes an expired key until a client accesses the key. This
        // GET deletes the key.
        must(&mut right, "GET over");
        for_each_backend(|backend| {
            let server = pantala(backend, &folder, &[]);
            let mut client = server.connect();
            assert_same(&content(&mut client), &content(&mut right));
            assert_eq!(client.call("FCALL f 0").text(), "called");
            assert_eq!(field(&mut client, "rdb_last_load_keys_expired"), "1");
            let log = server.log();
            assert!(log.contains("Loading RDB produced by version 7.0"), "{log}");
            assert!(log.contains("DB loaded from disk"), "{log}");
        });
    }
}

#[test]
fn a_restart_restores_the_dataset() {
    for_each_backend(|backend| {
        let folder = folder();
        let server = pantala(backend, &folder, &[]);
        let mut client = server.connect();
        fill(&mut client);
        let before = content(&mut client);
        end(server, &["SHUTDOWN"]);
        let mut server = pantala(backend, &folder, &["--workers", "1", "--shards", "3"]);
        assert_same(&content(&mut server.connect()), &before);
        server.connect().call("SET late 1");
        server.signal(rustix::process::Signal::TERM);
        assert_eq!(server.wait_exit(READY_MAX).code(), Some(0), "{}", server.log());
        let server = pantala(backend, &folder, &["--save", ""]);
        assert_eq!(server.connect().call("GET late").text(), "1");
        server.connect().call("SET lost 1");
        end(server, &["SHUTDOWN"]);
        let server = pantala(backend, &folder, &[]);
        assert_eq!(server.connect().call("EXISTS late lost"), Reply::Integer(1));
        server.connect().call("SET lost 1");
        end(server, &["SHUTDOWN", "NOSAVE"]);
        let server = pantala(backend, &folder, &["--save", ""]);
        assert_eq!(server.connect().call("EXISTS late lost"), Reply::Integer(1));
        server.connect().call("SET kept 1");
        end(server, &["SHUTDOWN", "SAVE"]);
        let server = pantala(backend, &folder, &["--save", ""]);
        assert_eq!(server.connect().call("EXISTS kept"), Reply::Integer(1));
    });
}

#[test]
fn fields_that_expire_survive() {
    let folder = folder();
    let server = pantala(any_backend(), &folder, &[]);
    let mut client = server.connect();
    must(&mut client, "HSET h a 1 b 2 c 3");
    must(&mut client, "HPEXPIREAT h 4102444800123 FIELDS 2 a b");
    must(&mut client, "HSET soon a 1 b 2");
    must(&mut client, "HPEXPIRE soon 300 FIELDS 1 a");
    end(server, &["SHUTDOWN"]);
    let bytes = std::fs::read(folder.path().join("dump.rdb")).expect("a file");
    assert_eq!(&bytes[..9], b"REDIS0012");
    std::thread::sleep(Duration::from_millis(310));
    let server = pantala(any_backend(), &folder, &[]);
    let mut client = server.connect();
    let times = client.call("HPEXPIRETIME h FIELDS 3 a b c");
    assert_eq!(times.elements().iter().map(Reply::text).collect::<Vec<_>>(), ["4102444800123", "4102444800123", "-1"]);
    assert_eq!(client.call("HKEYS soon").elements().len(), 1);
    // Now no field has a TTL any more, so the file has the format of Redis 7.0 again.
    must(&mut client, "HPERSIST h FIELDS 2 a b");
    assert_eq!(client.call("SAVE").text(), "OK");
    let bytes = std::fs::read(folder.path().join("dump.rdb")).expect("a file");
    assert_eq!(&bytes[..9], b"REDIS0010");
}

fn field(client: &mut Client, name: &str) -> String {
    let text = client.call("INFO persistence").text();
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name}:")).map(str::to_owned));
    line.unwrap_or_else(|| panic!("{name} is missing in:\n{text}"))
}

#[test]
fn statistics_of_snapshots() {
    let folder = folder();
    let server = pantala(any_backend(), &folder, &["--save", ""]);
    let mut client = server.connect();
    let started = client.call("LASTSAVE");
    assert_eq!(field(&mut client, "rdb_changes_since_last_save"), "0");
    for command in
        ["SET a 1", "SET b 2", "HSET h f v", "HSET h f w", "DEL a", "GET b", "SADD s m", "SADD s m", "DEL none"]
    {
        must(&mut client, command);
    }
    assert_eq!(field(&mut client, "rdb_changes_since_last_save"), "6");
    std::thread::sleep(Duration::from_millis(1100));
    assert_eq!(client.call("SAVE").text(), "OK");
    assert_eq!(field(&mut client, "rdb_changes_since_last_save"), "0");
    assert_eq!(field(&mut client, "rdb_saves"), "1");
    let saved = client.call("LASTSAVE");
    assert!(saved.text() > started.text(), "{saved:?} {started:?}");
    assert_eq!(field(&mut client, "rdb_last_save_time"), saved.text());
    must(&mut client, "FLUSHALL");
    assert_eq!(field(&mut client, "rdb_changes_since_last_save"), "3");
    assert_eq!(client.call("DEBUG RELOAD NOSAVE").text(), "OK");
    assert_eq!(field(&mut client, "rdb_changes_since_last_save"), "3");
    assert_eq!(field(&mut client, "rdb_last_load_keys_loaded"), "3");
    assert_eq!(client.command(&["CONFIG", "SET", "save", ""]).text(), "OK");
    assert_eq!(client.call("MULTI").text(), "OK");
    assert_eq!(client.call("SAVE").text(), "ERR Command not allowed inside a transaction");
}

#[test]
fn a_snapshot_fails_if_its_directory_cannot_be_synced() {
    for_each_backend(|backend| {
        let folder = folder();
        let server = pantala(backend, &folder, &["--save", "3600 1000000"]);
        let mut client = server.connect();
        must(&mut client, "SET old 1");
        assert_eq!(client.call("SAVE").text(), "OK");
        must(&mut client, "SET new 1");
        if client.call("DEBUG FAULT unsynced-directory 1000") != Reply::ok() {
            return eprintln!("SKIPPED: unsynced-directory: this build has no faults");
        }
        assert_eq!(client.call("SAVE"), Reply::Error("ERR".into()), "a crash may bring the last snapshot back");
        assert!(server.log().contains("syncing the directory"), "{}", server.log());
        assert_eq!(field(&mut client, "rdb_changes_since_last_save"), "1");
        assert_eq!(client.call("BGSAVE").text(), "Background saving started");
        while field(&mut client, "rdb_bgsave_in_progress") == "1" {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(field(&mut client, "rdb_last_bgsave_status"), "err");
        assert!(client.call("SET more 1").text().starts_with("MISCONF"));
        must(&mut client, "DEBUG FAULT unsynced-directory 0");
        assert_eq!(client.call("SAVE").text(), "OK");
        assert_eq!(client.call("SET more 1").text(), "OK");
    });
}

#[test]
fn a_snapshot_that_fails_leaves_the_last_one() {
    for_each_backend(|backend| {
        let folder = folder();
        let mut server = pantala(backend, &folder, &["--enable-protected-configs", "yes"]);
        let mut client = server.connect();
        must(&mut client, "SET old 1");
        assert_eq!(client.call("SAVE").text(), "OK");
        let before = std::fs::read(folder.path().join("dump.rdb")).expect("a file");
        must(&mut client, "SET new 1");
        // A file can't replace a directory, so saving under this name fails.
        std::fs::create_dir(folder.path().join("occupied")).expect("a folder");
        must(&mut client, "CONFIG SET dbfilename occupied");
        assert_eq!(client.call("SAVE"), Reply::Error("ERR".into()));
        let rejected = Reply::Error("ERR Errors trying to SHUTDOWN. Check logs.".into());
        assert_eq!(client.call("SHUTDOWN"), rejected);
        assert_eq!(client.call("SHUTDOWN SAVE NOW"), rejected);
        server.signal(rustix::process::Signal::TERM);
        while !server.log().contains("Signal received but errors") {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(server.log().contains("Error trying to save the DB"), "{}", server.log());
        assert_eq!(client.call("SET still 1").text(), "OK");
        assert_eq!(field(&mut client, "rdb_saves"), "2", "both calls of SAVE");
        let names: Vec<_> =
            std::fs::read_dir(folder.path()).expect("a folder").map(|entry| entry.expect("one").file_name()).collect();
        assert_eq!(names.len(), 2, "no temporary file is left: {names:?}");
        assert_eq!(std::fs::read(folder.path().join("dump.rdb")).expect("a file"), before);
        client.send(&["SHUTDOWN", "SAVE", "FORCE"]);
        assert_eq!(server.wait_exit(READY_MAX).code(), Some(0));
    });
}

#[test]
fn a_wrong_file_prevents_the_start() {
    let folder = folder();
    let server = pantala(any_backend(), &folder, &[]);
    fill(&mut server.connect());
    end(server, &["SHUTDOWN"]);
    let file = folder.path().join("dump.rdb");
    let right = std::fs::read(&file).expect("a file");
    let newer = [b"REDIS0013", &right[9..]].concat();
    let mut bent = right.clone();
    bent[right.len() / 2] ^= 1;
    for (bytes, says) in [
        (&right[..right.len() - 1], format!("at offset {}", right.len() - 1)),
        (&right[..right.len() / 2], format!("at offset {}", right.len() / 2)),
        (&newer, "Can't handle RDB format version 0013 (at offset 0)".to_owned()),
        (&bent, "at offset".to_owned()),
        (&b"PNG"[..], "Wrong signature trying to load DB from file (at offset 0)".to_owned()),
        (&[][..], "truncated".to_owned()),
    ] {
        std::fs::write(&file, bytes).expect("the file is written");
        let exit = run_to_exit(&["--port", "0", "--unixsocket", "sock", "--dir", path(&folder)], b"");
        assert_eq!(exit.status.code(), Some(1), "{}", exit.output);
        assert!(
            exit.output.contains("Fatal error loading the DB") && exit.output.contains(&says),
            "{says}: {}",
            exit.output
        );
        assert!(!exit.output.contains("Ready to accept") && !exit.output.contains("panicked"), "{}", exit.output);
    }
}

fn check_rdb(file: &Path) -> (Option<i32>, String) {
    let ran = Command::new(binary::pantala()).arg("check-rdb").arg(file).output().expect("pantala runs");
    (ran.status.code(), String::from_utf8_lossy(&ran.stdout).into_owned())
}

#[test]
fn check_rdb_reports_the_error_and_its_offset() {
    let folder = folder();
    let server = pantala(any_backend(), &folder, &[]);
    must(&mut server.connect(), "RPUSH list a b c");
    must(&mut server.connect(), "SET s v PXAT 4102444800123");
    end(server, &["SHUTDOWN"]);
    let file = folder.path().join("dump.rdb");
    let (code, text) = check_rdb(&file);
    assert_eq!(code, Some(0), "{text}");
    let right = std::fs::read(&file).expect("a file");
    let end = right.len();
    let lines = format!("[offset {end}] Checksum OK\n[offset {end}] \\o/ RDB looks OK! \\o/\n");
    assert!(text.contains(&lines) && text.contains("2 keys read") && text.contains("1 expires"), "{text}");
    for len in (0..right.len()).step_by(7) {
        std::fs::write(&file, &right[..len]).expect("the file is written");
        let (code, text) = check_rdb(&file);
        assert_eq!(code, Some(1), "{len}: {text}");
        assert!(text.contains(&format!("[offset {len}]")), "{len}: {text}");
    }
    assert_eq!(check_rdb(Path::new("/nonexistent/file")).0, Some(1));
    let usage = Command::new(binary::pantala()).arg("check-rdb").output().expect("pantala runs");
    assert_eq!(usage.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&usage.stderr).starts_with("Usage: pantala check-rdb"));
    for option in ["-v", "--version"] {
        let (code, text) = check_rdb(Path::new(option));
        assert_eq!((code, text.starts_with("pantala (behaves as Redis server v=7.0.15)")), (Some(0), true), "{text}");
    }
}

#[test]
fn debug_reload_and_its_options() {
    for_each_backend(|backend| {
        let folder = folder();
        let server = pantala(backend, &folder, &[]);
        let mut client = server.connect();
        fill(&mut client);
        let before = content(&mut client);
        assert_eq!(client.call("DEBUG RELOAD").text(), "OK");
        assert_same(&content(&mut client), &before);
        let failed = "ERR Error trying to load the RDB dump, check server logs.";
        assert_eq!(client.call("DEBUG RELOAD NOFLUSH").text(), failed);
        assert_same(&content(&mut client), &before);
        assert_eq!(client.call("DEBUG RELOAD NOFLUSH MERGE").text(), "OK");
        assert_same(&content(&mut client), &before);
        must(&mut client, "SET changed 1");
        must(&mut client, "SET key:0 other");
        assert_eq!(client.call("DEBUG RELOAD NOSAVE NOFLUSH MERGE").text(), "OK");
        assert_eq!(client.call("GET changed").text(), "1");
        assert_ne!(client.call("GET key:0").text(), "other");
        assert_eq!(client.call("DEBUG RELOAD NOSAVE").text(), "OK");
        assert_same(&content(&mut client), &before);
        assert_eq!(
            client.call("DEBUG RELOAD FLUSH").text(),
            "ERR DEBUG RELOAD only supports the MERGE, NOFLUSH and NOSAVE options."
        );
        // Reloading a damaged file fails and changes no data.
        let file = folder.path().join("dump.rdb");
        let right = std::fs::read(&file).expect("a file");
        std::fs::write(&file, &right[..right.len() - 9]).expect("the file is written");
        assert_eq!(client.call("DEBUG RELOAD NOSAVE").text(), failed);
        assert_same(&content(&mut client), &before);
        // Reloading a watched key aborts EXEC, as in Redis.
        let mut other = server.connect();
        must(&mut client, "WATCH key:0");
        must(&mut other, "DEBUG RELOAD");
        must(&mut client, "MULTI");
        must(&mut client, "PING");
        assert_eq!(client.call("EXEC"), Reply::Null);
    });
}

/// Clients write while the server shuts down. Acknowledged writes are in the snapshot.
#[test]
fn acknowledged_writes_are_saved_at_shutdown() {
    for_each_backend(|backend| {
        let folder = folder();
        let mut server = pantala(backend, &folder, &[]);
        let port = server.port();
        let writers: Vec<_> = (0..4)
            .map(|writer| {
                std::thread::spawn(move || {
                    let mut client = Client::tcp(port);
                    let mut acknowledged = 0u64;
                    loop {
                        let command =
                            pantala_tests::client::encode(&["SET", &format!("w{writer}:{acknowledged}"), "v"]);
                        let answered = client.try_send_raw(&command).and_then(|()| client.try_receive());
                        match answered {
                            Ok((reply, _)) if reply.text() == "OK" => acknowledged += 1,
                            _ => return acknowledged,
                        }
                    }
                })
            })
            .collect();
        std::thread::sleep(Duration::from_millis(300));
        server.connect().send(&["SHUTDOWN"]);
        assert_eq!(server.wait_exit(READY_MAX).code(), Some(0), "{}", server.log());
        let acknowledged: Vec<u64> = writers.into_iter().map(|writer| writer.join().expect("a writer")).collect();
        let server = pantala(backend, &folder, &[]);
        let mut client = server.connect();
        for (writer, count) in acknowledged.into_iter().enumerate() {
            assert!(count > 0);
            for number in [0, count / 2, count - 1] {
                let key = format!("w{writer}:{number}");
                assert_eq!(client.call(&format!("EXISTS {key}")), Reply::Integer(1), "{key} of {count} is lost");
            }
        }
    });
}
