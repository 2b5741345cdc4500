//! `repl-diskless-load swapdb`: a replica receives the snapshot into memory, without a file. Until
//! the snapshot is complete and valid, the replica serves and keeps its former dataset.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use pantala_tests::following::{PRIMARY, assert_same, follow, info, wait_for_link};
use pantala_tests::staged::{EMPTY_RDB, ID, Scene, StagedPrimary, full_sync, stream};
use pantala_tests::waiting::eventually;
use pantala_tests::{Backend, Client, Reply, Server, for_each_backend};

/// Arguments of a replica.
const REPLICA: [&str; 6] = ["--workers", "2", "--shards", "12", "--repl-diskless-load", "swapdb"];

/// A snapshot with the key `k`, and without a checksum.
const SNAPSHOT: &[u8] = b"REDIS0010\xfe\0\0\x01k\x05value\xff\0\0\0\0\0\0\0\0";

/// Texts of the log that show how a snapshot was received.
const DIRECTLY: &str = "to parser";
const TO_FILE: &str = "to disk";
const TO_MEMORY: &str = "to memory";

/// A library with the function `f`.
const LIBRARY: &str =
    "#!lua name=lib\nredis.register_function{function_name='f', callback=function() return 7 end, flags={'no-writes'}}";

/// Starts a replica that has the key `old`.
fn replica_with_key(backend: Backend, more: &[&str]) -> Server {
    let replica = Server::pantala(backend, &[&REPLICA[..], more].concat());
    assert_eq!(replica.connect().call("SET old value"), Reply::ok());
    replica
}

/// Makes a server follow a staged primary.
fn follow_staged(client: &mut Client, primary: &StagedPrimary) {
    assert_eq!(client.call(&format!("REPLICAOF 127.0.0.1 {}", primary.port())), Reply::ok());
}

/// Returns the memory of the snapshot that `INFO memory` shows, bytes.
fn snapshot_bytes(server: &Server) -> u64 {
    info(server, "memory", "mem_replica_snapshot").parse().expect("the field is a number")
}

/// Returns the length and the allocated memory of the server's snapshot, bytes. `None` if it has
/// none.
fn memory_file(server: &Server) -> Option<(u64, u64)> {
    let folder = PathBuf::from(format!("/proc/{}/fd", server.pid()));
    let read = || -> io::Result<Option<(u64, u64)>> {
        for file in std::fs::read_dir(folder)? {
            let path = file?.path();
            // Another file may have been closed since the folder was read.
            let Ok(target) = std::fs::read_link(&path) else { continue };
            if target.to_string_lossy().contains("pantala-snapshot") {
                let data = std::fs::metadata(&path)?;
                return Ok(Some((data.len(), data.blocks() * 512)));
            }
        }
        Ok(None)
    };
    read().ok().flatten()
}

/// Returns whether a reply rejects a command during a load.
fn is_loading(reply: &Reply) -> bool {
    matches!(reply, Reply::Error(text) if text.starts_with("LOADING"))
}

/// Returns the names of the files in a folder.
fn names(folder: &Path) -> Vec<String> {
    let files = std::fs::read_dir(folder).expect("the folder exists");
    files.map(|file| file.expect("an entry").file_name().to_string_lossy().into_owned()).collect()
}

/// The replica doesn't need a `dir` that it can write to. The sandbox permits all system calls of
/// the full sync.
#[test]
fn a_snapshot_is_received_without_a_folder_to_write_to() {
    for_each_backend(|backend| {
        let pantala = || Some(Server::pantala(backend, &PRIMARY));
        let starts: [&dyn Fn() -> Option<Server>; 2] = [&|| Server::redis(&PRIMARY), &pantala];
        for start in starts {
            let Some(primary) = start() else { continue };
            let mut client = primary.connect();
            let script = "for i = 1, 20000 do redis.call('SET', 'k' .. i, string.rep('v', i % 300)) end";
            assert!(!client.command(&["EVAL", script, "0"]).is_error());
            client.command(&["SET", "large", &"x".repeat(3_000_000)]);
            client.command(&["FUNCTION", "LOAD", LIBRARY]);
            let more = ["--sandbox", "yes", "--enable-protected-configs", "yes"];
            let mut replica = replica_with_key(backend, &more);
            // Not even root can create a file there.
            assert_eq!(replica.connect().call("CONFIG SET dir /proc"), Reply::ok());
            for _ in 0..2 {
                follow(&replica, &primary);
                assert_same(&replica, &primary);
                assert_eq!(replica.connect().call("GET old"), Reply::Null);
                assert_eq!(replica.connect().call("FCALL f 0"), Reply::Integer(7));
                // This write arrives only if the replica continues the stream at the right offset.
                client.call("INCR later");
                assert_same(&replica, &primary);
                assert_eq!(snapshot_bytes(&replica), 0);
                assert_eq!(memory_file(&replica), None);
                for words in ["REPLICAOF NO ONE", "SET old value"] {
                    assert_eq!(replica.connect().call(words), Reply::ok());
                }
            }
            let log = replica.log();
            assert_eq!((log.matches(TO_MEMORY).count(), log.contains(TO_FILE)), (2, false), "{log}");
            replica.assert_sound();
        }
    });
}

/// The former dataset is served while the snapshot arrives, and kept if the link breaks. There is
/// no file at any time.
#[test]
fn the_former_dataset_is_served_during_the_transfer() {
    for_each_backend(|backend| {
        let replica = replica_with_key(backend, &[]);
        let mut client = replica.connect();
        client.command(&["FUNCTION", "LOAD", LIBRARY]);
        let before = names(replica.folder());
        let half = &full_sync(7, SNAPSHOT)[..full_sync(7, SNAPSHOT).len() - 15];
        let received = (SNAPSHOT.len() - 15) as u64;
        let primary = StagedPrimary::start(vec![Scene::answers(half).keeping()]);
        follow_staged(&mut client, &primary);
        eventually("the half has arrived", || snapshot_bytes(&replica) == received);
        assert_eq!(memory_file(&replica).map(|(len, _)| len), Some(received));
        let check_former = |client: &mut Client| {
            assert_eq!(client.call("GET old"), Reply::bulk("value"));
            assert_eq!(client.call("DBSIZE"), Reply::Integer(1));
            assert_eq!(client.call("FCALL_RO f 0"), Reply::Integer(7));
            assert_eq!(names(replica.folder()), before);
        };
        check_former(&mut client);
        for (section, field, value) in [
            ("persistence", "loading", "0"),
            ("persistence", "async_loading", "0"),
            ("replication", "master_sync_in_progress", "1"),
        ] {
            assert_eq!(info(&replica, section, field), value, "{field}");
        }
        // `REPLICAOF` with another primary ends the transfer.
        let last = StagedPrimary::start(vec![Scene::answers(half), Scene::answers(full_sync(7, SNAPSHOT)).keeping()]);
        follow_staged(&mut client, &last);
        let _ = primary.finish();
        eventually("the link has broken", || replica.log().contains("connection lost"));
        assert_eq!((snapshot_bytes(&replica), memory_file(&replica)), (0, None));
        check_former(&mut client);
        wait_for_link(&replica);
        assert_eq!(client.call("GET k"), Reply::bulk("value"));
        assert_eq!(client.call("DBSIZE"), Reply::Integer(1));
        assert_eq!(names(replica.folder()), before);
        assert_eq!(client.call("REPLICAOF NO ONE"), Reply::ok());
        let _ = last.finish();
    });
}

/// A truncated or damaged snapshot leaves the former dataset unchanged. Redis also keeps the
/// dataset if the link breaks, but exits if a complete snapshot is damaged.
#[test]
fn a_failed_transfer_keeps_the_former_dataset() {
    let mark = "abcdefghijklmnopqrstuvwxyzabcdefghijklmn";
    let head = format!("+FULLRESYNC {ID} 7\r\n");
    let marked = [head.as_bytes(), format!("$EOF:{mark}\r\n").as_bytes(), SNAPSHOT].concat();
    let broken = || {
        vec![
            Scene::answers(marked.as_slice()),
            Scene::answers([&marked, &mark.as_bytes()[..39]].concat()),
            Scene::answers([head.as_bytes(), b"$1000\r\n", SNAPSHOT].concat()),
        ]
    };
    let damaged = || {
        vec![
            Scene::answers(full_sync(7, b"REDIS9999\xff\0\0\0\0\0\0\0\0")),
            Scene::answers(full_sync(7, &[&SNAPSHOT[..SNAPSHOT.len() - 8], &[1; 8]].concat())),
            Scene::answers([head.as_bytes(), b"$1000000\r\nREDIS0010\0\x81\x7f\xff\xff\xff\xff\xff\xff\xffx"].concat()),
        ]
    };
    let check = |replica: &Server, mut scenes: Vec<Scene>| {
        let later = [full_sync(7, SNAPSHOT), stream(&["SELECT 0", "SET later 1"])].concat();
        scenes.push(Scene::answers(later).keeping());
        let count = scenes.len();
        let primary = StagedPrimary::start(scenes);
        let mut client = replica.connect();
        client.command(&["FUNCTION", "LOAD", LIBRARY]);
        assert_eq!(client.call("SET old value"), Reply::ok());
        follow_staged(&mut client, &primary);
        eventually("the last attempt", || {
            let replies = ["GET old", "FCALL_RO f 0"].map(|words| client.call(words));
            let is_last = primary.sent().len() == count;
            let is_served = replies == [Reply::bulk("value"), Reply::Integer(7)];
            // redis-server rejects commands while a snapshot of another history arrives.
            let rejects = replies.iter().any(is_loading);
            assert!(is_last || is_served || rejects, "{replies:?}: {}", replica.log());
            is_last
        });
        eventually("the last snapshot is loaded", || client.call("GET later") == Reply::bulk("1"));
        assert_eq!(client.call("GET k"), Reply::bulk("value"));
        assert_eq!(client.call("DBSIZE"), Reply::Integer(2));
        assert_eq!(client.call("FUNCTION LIST").elements().len(), 0);
        assert_eq!(client.call("REPLICAOF NO ONE"), Reply::ok());
        let _ = primary.finish();
    };
    for scenes in [broken(), damaged()] {
        let mut replica = Server::pantala(Backend::all()[0], &REPLICA);
        check(&replica, scenes);
        assert_eq!(snapshot_bytes(&replica), 0);
        replica.assert_sound();
    }
    if let Some(redis) = Server::redis(&REPLICA[4..]) {
        // redis-server does not notice that bytes are missing after the end of the snapshot.
        let mut scenes = broken();
        scenes.truncate(2);
        check(&redis, scenes);
    }
}

/// If memory runs out, the transfer fails, and the replica retries.
#[test]
fn a_snapshot_without_memory_fails() {
    for_each_backend(|backend| {
        let replica = replica_with_key(backend, &[]);
        let primary = Server::pantala(backend, &PRIMARY);
        assert_eq!(primary.connect().call("SET new value"), Reply::ok());
        let mut client = replica.connect();
        if client.call("DEBUG FAULT no-memory 1000") != Reply::ok() {
            return eprintln!("SKIPPED: no-memory: this build has no faults");
        }
        assert_eq!(client.call(&format!("REPLICAOF 127.0.0.1 {}", primary.port())), Reply::ok());
        let text = "Can't write the snapshot from MASTER to memory, the dataset stays as it is: Cannot allocate memory";
        eventually("the transfer has failed", || replica.log().contains(text));
        assert_eq!(client.call("GET old"), Reply::bulk("value"));
        assert_eq!((snapshot_bytes(&replica), memory_file(&replica)), (0, None));
        assert_eq!(client.call("DEBUG FAULT no-memory 0"), Reply::ok());
        wait_for_link(&replica);
        assert_same(&replica, &primary);
    });
}

/// A replica without keys and libraries has nothing to keep, so it loads the snapshot while it
/// arrives. As in Redis, this needs no memory for the snapshot.
#[test]
fn only_an_empty_replica_loads_while_the_snapshot_arrives() {
    for_each_backend(|backend| {
        for has_library in [false, true] {
            let replica = Server::pantala(backend, &REPLICA);
            let mut client = replica.connect();
            if has_library {
                client.command(&["FUNCTION", "LOAD", LIBRARY]);
            }
            let cut = &full_sync(7, SNAPSHOT)[..full_sync(7, SNAPSHOT).len() - 15];
            let primary =
                StagedPrimary::start(vec![Scene::answers(cut), Scene::answers(full_sync(7, SNAPSHOT)).keeping()]);
            follow_staged(&mut client, &primary);
            eventually("the link has broken", || replica.log().contains("connection lost"));
            eventually("the dataset is served", || client.call("DBSIZE") == Reply::Integer(0));
            assert_eq!(client.call("FUNCTION LIST").elements().len(), usize::from(has_library));
            wait_for_link(&replica);
            assert_eq!(client.call("GET k"), Reply::bulk("value"));
            let log = replica.log();
            assert_eq!((log.contains(TO_MEMORY), log.contains(DIRECTLY)), (has_library, !has_library), "{log}");
            assert!(!log.contains(TO_FILE), "{log}");
            assert_eq!(client.call("REPLICAOF NO ONE"), Reply::ok());
            let _ = primary.finish();
        }
    });
}

/// While the snapshot is loaded, its memory is freed.
#[test]
fn a_load_frees_the_memory_that_it_has_read() {
    const KEYS: u32 = 200;
    const VALUE_BYTES: u32 = 100_000;
    let mut rdb = b"REDIS0010\xfe\0".to_vec();
    for key in 0..KEYS {
        rdb.extend_from_slice(&[0, 4]);
        rdb.extend_from_slice(format!("{key:04}").as_bytes());
        rdb.push(0x80);
        rdb.extend_from_slice(&VALUE_BYTES.to_be_bytes());
        rdb.resize(rdb.len() + VALUE_BYTES as usize, b'v');
    }
    rdb.extend_from_slice(&[0xff, 0, 0, 0, 0, 0, 0, 0, 0]);
    let replica = replica_with_key(Backend::all()[0], &[]);
    let mut client = replica.connect();
    // 10 ms for each key.
    assert_eq!(client.call("CONFIG SET key-load-delay 10000"), Reply::ok());
    let primary = StagedPrimary::start(vec![Scene::answers(full_sync(7, &rdb)).keeping()]);
    follow_staged(&mut client, &primary);
    let total = rdb.len() as u64;
    eventually("more than half of the memory is freed", || {
        let memory = memory_file(&replica);
        let shown = snapshot_bytes(&replica);
        let is_loading = info(&replica, "persistence", "loading") == "1";
        is_loading && shown < total / 2 && memory.is_some_and(|(len, used)| len == total && used < total / 2)
    });
    wait_for_link(&replica);
    assert_eq!(client.call("DBSIZE"), Reply::Integer(i64::from(KEYS)));
    assert_eq!(client.call("STRLEN 0199"), Reply::Integer(i64::from(VALUE_BYTES)));
    assert_eq!((snapshot_bytes(&replica), memory_file(&replica)), (0, None));
    assert_eq!(client.call("REPLICAOF NO ONE"), Reply::ok());
    let _ = primary.finish();
}

#[test]
fn the_setting_changes_at_run_time() {
    let text = "repl-diskless-load swapdb";
    let (replica, _folder) = pantala_tests::server::pantala_with_file(text, &["--io-backend", "epoll"]);
    let mut client = replica.connect();
    let shown = |client: &mut Client| client.call("CONFIG GET repl-diskless-load").elements()[1].text();
    assert_eq!(shown(&mut client), "swapdb");
    assert!(!replica.log().contains("isn't served yet"), "{}", replica.log());
    assert_eq!(client.call("SET old value"), Reply::ok());
    for (value, expected) in [("disabled", TO_FILE), ("on-empty-db", TO_FILE), ("swapdb", TO_MEMORY)] {
        assert_eq!(client.call(&format!("CONFIG SET repl-diskless-load {value}")), Reply::ok());
        assert_eq!(shown(&mut client), value);
        let before = replica.log().matches(expected).count();
        let primary = StagedPrimary::start(vec![Scene::answers(full_sync(7, EMPTY_RDB)).keeping()]);
        follow_staged(&mut client, &primary);
        wait_for_link(&replica);
        assert_eq!(replica.log().matches(expected).count(), before + 1, "{value}: {}", replica.log());
        for words in ["REPLICAOF NO ONE", "SET old value", "CONFIG REWRITE"] {
            assert_eq!(client.call(words), Reply::ok());
        }
        let _ = primary.finish();
    }
}
