//! A replica of broken and hostile primaries keeps its dataset or follows again, applies no command
//! twice, and doesn't crash.

use std::time::Duration;

use pantala_tests::following::info;
use pantala_tests::staged::{EMPTY_RDB, ID, Scene, Sent, StagedPrimary, full_sync, stream};
use pantala_tests::waiting::eventually;
use pantala_tests::{Backend, Client, Reply, Server, for_each_backend};

/// Arguments of a replica.
const REPLICA: [&str; 4] = ["--workers", "2", "--shards", "12"];

/// The end mark of a snapshot of unknown length.
const MARK: &str = "abcdefghijklmnopqrstuvwxyzabcdefghijklmn";

/// The request for a full sync.
const FULL: &str = "? -1";

fn follow(client: &mut Client, primary: &StagedPrimary) {
    assert_eq!(client.call(&format!("REPLICAOF 127.0.0.1 {}", primary.port())), Reply::ok());
}

/// Sends `REPLICAOF` without waiting for the reply.
fn start_to_follow(replica: &Server, primary: &StagedPrimary) -> Client {
    let mut client = replica.connect();
    client.send(&["REPLICAOF", "127.0.0.1", &primary.port().to_string()]);
    client
}

/// Waits until the primary has had `scene` connections, and the replica has applied the stream up
/// to offset `end`.
#[track_caller]
fn wait_for_stream(replica: &Server, primary: &StagedPrimary, scene: usize, end: usize) {
    eventually("the link has applied the stream", || {
        primary.sent().len() == scene
            && info(replica, "replication", "master_link_status") == "up"
            && info(replica, "replication", "slave_repl_offset") == end.to_string()
    });
}

/// Ends the replication, which closes the link that the last scene has kept open. Returns the
/// arguments of each connection's `PSYNC`.
fn finish(client: &mut Client, primary: StagedPrimary) -> Vec<String> {
    assert_eq!(client.call("REPLICAOF NO ONE"), Reply::ok());
    primary.finish()
}

/// Returns a primary's reply to this `PSYNC`. The primary's stream has these commands after
/// `offset`. If the `PSYNC` contains the primary's ID, the reply is the stream from the requested
/// offset. Otherwise it is a snapshot without keys, followed by all commands.
fn continues(psync: &Sent, offset: u64, commands: &[&str]) -> Vec<u8> {
    let all = stream(commands);
    if psync[1] != ID {
        return [full_sync(offset, EMPTY_RDB), all].concat();
    }
    let asked: usize = psync[2].parse().expect("an offset");
    [b"+CONTINUE\r\n", &all[asked - 1 - offset as usize..]].concat()
}

#[test]
fn commands_before_a_protocol_error_run_once() {
    const COMMANDS: [&str; 3] = ["SELECT 3", "INCR n", "APPEND text x"];
    for_each_backend(|backend| {
        for (error, text) in [
            (&b"*1\r\n%bad\r\n"[..], "expected '$', got '%'"),
            (b"*1\r\n$-5\r\n", "invalid bulk length"),
            // CVE-2021-32762: the size of an array of that many elements overflowed in hiredis.
            (b"*1000000000000\r\n", "invalid multibulk length"),
            (b"INCR n\r\n", "Master using the inline protocol. Desync?"),
            (b"\"INCR n\r\n", "Master using the inline protocol. Desync?"),
        ] {
            let first = [stream(&COMMANDS), error.to_vec()].concat();
            let primary = StagedPrimary::start(vec![
                Scene::streams(7, &first).keeping(),
                Scene::computes(|psync| continues(psync, 7, &COMMANDS)).keeping(),
            ]);
            let mut replica = Server::pantala(backend, &REPLICA);
            let mut client = replica.connect();
            follow(&mut client, &primary);
            let end = 7 + stream(&COMMANDS).len();
            wait_for_stream(&replica, &primary, 2, end);
            client.call("SELECT 3");
            assert_eq!(client.call("GET n"), Reply::bulk("1"), "{text}\n{}", replica.log());
            assert_eq!(client.call("GET text"), Reply::bulk("x"), "{text}");
            assert!(replica.log().contains(text), "no {text} in {}", replica.log());
            // As in Redis, the replica then doesn't continue the stream, but requests a full sync
            // again.
            assert_eq!(finish(&mut client, primary), [FULL, FULL], "{text}");
            replica.assert_sound();
        }
    });
}

#[test]
fn a_truncated_stream_continues_after_its_last_whole_command() {
    const COMMANDS: [&str; 6] = ["SELECT 3", "INCR n", "MULTI", "INCR m", "INCR m", "EXEC"];
    for_each_backend(|backend| {
        let all = stream(&COMMANDS);
        // The first link ends before the last byte of the second command. The two other links end
        // within the transaction: before the last byte of a command, and between two commands. A
        // transaction is applied as a whole, so the replica requests the stream again from the
        // transaction's `MULTI`.
        let ends = [1, 2, 5].map(|count| stream(&COMMANDS[..count]).len());
        let cuts = [ends[1] - 1, ends[2] - 1, ends[2]];
        let first = [&all[..cuts[0]], &all[ends[0]..cuts[1]], &all[ends[1]..cuts[2]]];
        let primary = StagedPrimary::start(vec![
            Scene::streams(7, first[0]),
            Scene::answers([b"+CONTINUE\r\n", first[1]].concat()),
            Scene::answers([b"+CONTINUE\r\n", first[2]].concat()),
            Scene::computes(|psync| continues(psync, 7, &COMMANDS)).keeping(),
        ]);
        let mut replica = Server::pantala(backend, &REPLICA);
        let mut client = replica.connect();
        follow(&mut client, &primary);
        let end = 7 + all.len();
        wait_for_stream(&replica, &primary, 4, end);
        client.call("SELECT 3");
        assert_eq!(client.call("MGET n m"), Reply::Array(vec![Reply::bulk("1"), Reply::bulk("2")]));
        let at = |bytes: usize| format!("{ID} {}", 8 + bytes);
        let asked = [FULL.to_owned(), at(ends[0]), at(ends[1]), at(ends[1])];
        assert_eq!(finish(&mut client, primary), asked, "{}", replica.log());
        replica.assert_sound();
    });
}

/// Makes a replica with data follow a primary that plays `scenes`, each of which fails. Checks that
/// the replica keeps its data, and that its log contains `parts`.
#[track_caller]
fn keeps_its_data(scenes: Vec<Scene>, args: &[&str], parts: &[&str]) {
    let count = scenes.len();
    let primary = StagedPrimary::start(scenes);
    let mut replica = Server::pantala(Backend::all()[0], &[&REPLICA[..], args].concat());
    let mut client = replica.connect();
    client.call("SET kept 1");
    follow(&mut client, &primary);
    let asked = primary.finish();
    assert_eq!(asked.len(), count);
    assert!(asked.iter().all(|psync| psync.is_empty() || psync == FULL), "{asked:?}");
    assert_eq!(client.call("GET kept"), Reply::bulk("1"), "{}", replica.log());
    assert_eq!(info(&replica, "replication", "role"), "slave");
    assert_eq!(info(&replica, "replication", "master_link_status"), "down");
    let files = std::fs::read_dir(replica.folder()).expect("its folder").flatten();
    let left: Vec<_> =
        files.map(|file| file.file_name()).filter(|name| name.to_string_lossy().contains("temp")).collect();
    // The next attempt may have started, so there may be one temporary file.
    assert!(left.len() <= 1, "{left:?}");
    // The replica may detect the last failure only after the primary has finished its last scene.
    for part in parts {
        eventually(part, || replica.log().contains(part));
    }
    replica.assert_sound();
}

#[test]
fn an_invalid_snapshot_leaves_the_dataset_unchanged() {
    let head = format!("+FULLRESYNC {ID} 7\r\n");
    let behind = |rest: &[u8]| Scene::answers([head.as_bytes(), rest].concat());
    let marked = |rdb: &[u8]| behind(&[format!("$EOF:{MARK}\r\n").as_bytes(), rdb, MARK.as_bytes()].concat());
    let framed = |rdb: &[u8]| Scene::answers(full_sync(7, rdb));
    keeps_its_data(
        vec![
            framed(b"REDIS9999\xff\0\0\0\0\0\0\0\0"),
            framed(b"REDIS0010\xff\x01\x02\x03\x04\x05\x06\x07\x08"),
            marked(b"REDIS0010\xfe\0\0\x03key"),
            marked(b"not a snapshot at all"),
            framed(b""),
            // A string that declares a length greater than memory.
            framed(b"REDIS0010\0\x81\x7f\xff\xff\xff\xff\xff\xff\xffx"),
        ],
        &[],
        &["9999", "checksum"],
    );
}

#[test]
fn a_link_that_breaks_before_its_stream_leaves_the_dataset_as_it_is() {
    let head = format!("+FULLRESYNC {ID} 7\r\n");
    let behind = |rest: &[u8]| Scene::answers([head.as_bytes(), rest].concat());
    let marked = [format!("$EOF:{MARK}\r\n").as_bytes(), EMPTY_RDB, &MARK.as_bytes()[..39]].concat();
    keeps_its_data(
        vec![
            Scene::answers(b""),
            behind(b""),
            // The connection ends within the snapshot in the first scene, and within the end mark
            // in the second.
            behind(b"$18\r\nREDIS0010\xff\0\0"),
            behind(&marked),
            behind(b"$99999999999999\r\nREDIS0010"),
            behind(b"$-5\r\n"),
            behind(b"-ERR no\r\n"),
            // These replies never end, so the replica must close the link.
            behind(format!("$EOF:{MARK}\r\n").as_bytes()).repeating(),
            Scene::answers(vec![b'x'; 65_536]).repeating(),
        ],
        &[],
        &["aborted replication", "connection lost", "a line without an end"],
    );
}

#[test]
fn a_handshake_that_fails_leaves_the_dataset_as_it_is() {
    keeps_its_data(
        vec![
            Scene::answers(b"").replying("PING", b"-DENIED no\r\n").keeping(),
            Scene::answers(b"").replying("AUTH", b"-WRONGPASS invalid username-password pair\r\n").keeping(),
            Scene::answers(b"+FULLRESYNC x y\r\n"),
            Scene::answers(format!("+FULLRESYNC {ID} -7\r\n")),
            Scene::answers(format!("+FULLRESYNC {ID} 18446744073709551616\r\n")),
            Scene::answers(format!("+FULLRESYNC {}g 7\r\n", &ID[1..])),
            Scene::answers(b"+CONTINUE\r\n"),
            Scene::answers(b"-NOMASTERLINK Can't SYNC while not connected with my master\r\n"),
            Scene::answers(b"-LOADING Redis is loading the dataset in memory\r\n"),
            // A primary older than PSYNC that also replies to SYNC with an error.
            Scene::answers(b"-ERR no\r\n").replying("PSYNC", b"-ERR unknown command 'PSYNC'\r\n"),
        ],
        &["--masterauth", "secret"],
        &[
            "Error reply to PING from master: '-DENIED no'",
            "Unable to AUTH to MASTER: -WRONGPASS",
            "wrong +FULLRESYNC",
            "not asked for",
            "unable to PSYNC",
            "Retrying with SYNC",
        ],
    );
}

#[test]
fn a_hostile_stream_harms_only_its_own_link() {
    for_each_backend(|backend| {
        let long_line = [&b"*"[..], &[b'1'; 100_000]].concat();
        let streams: [(&[u8], Option<&str>); 10] = [
            (b"*3\r\n$9\r\nREPLICAOF\r\n$2\r\nNO\r\n$3\r\nONE\r\n", None),
            (b"*1\r\n$5\r\nRESET\r\n*1\r\n$7\r\nMONITOR\r\n*1\r\n$4\r\nQUIT\r\n", None),
            (b"*2\r\n$9\r\nSUBSCRIBE\r\n$1\r\nc\r\n*3\r\n$3\r\nSET\r\n$1\r\na\r\n$1\r\n1\r\n", None),
            (b"*1\r\n$5\r\nMULTI\r\n*3\r\n$3\r\nSET\r\n$4\r\nhalf\r\n$1\r\n1\r\n", Some("8")),
            (b"*1000000000\r\n$3\r\n", Some("8")),
            (b"*2\r\n$99999999999\r\nx", Some("8")),
            (b"*1\r\n$7\r\nnonsense\r\n", None),
            (&long_line, Some(FULL)),
            (b"*3\r\n$5\r\nBLPOP\r\n$1\r\nl\r\n$1\r\n0\r\n", Some(FULL)),
            (b"", None),
        ];
        // In most scenes, the primary closes the link. In the scene with the blocking command, the
        // primary keeps the link open, and the replica must close it.
        let scene = |stream: &[u8]| {
            let scene = Scene::streams(7, stream);
            if stream.windows(5).any(|name| name == b"BLPOP") { scene.keeping() } else { scene }
        };
        let primary = StagedPrimary::start(streams.iter().map(|(stream, _)| scene(stream)).collect());
        let mut replica = Server::pantala(backend, &REPLICA);
        let mut client = replica.connect();
        follow(&mut client, &primary);
        let asked = primary.finish();
        for (number, (stream, next)) in streams.iter().enumerate() {
            if let Some(next) = next {
                assert!(asked[number + 1].ends_with(next), "{}: {asked:?}", stream.escape_ascii());
            }
        }
        assert_eq!(client.call("EXISTS half"), Reply::Integer(0), "a transaction without its EXEC");
        assert_eq!(info(&replica, "replication", "role"), "slave");
        assert_eq!(client.call("REPLICAOF NO ONE"), Reply::ok());
        assert_eq!(client.call("SET a 1"), Reply::ok());
        replica.assert_sound();
    });
}

/// As in Redis, a server deletes its RDB file after a sync if it has neither save points nor an
/// append-only file. In other cases, it keeps the file.
#[test]
fn a_replica_deletes_its_file_if_it_saves_nothing() {
    for (args, is_deleted) in [
        (&["--rdb-del-sync-files", "yes", "--save", ""][..], true),
        (&["--rdb-del-sync-files", "no", "--save", ""], false),
        (&["--rdb-del-sync-files", "yes", "--save", "3600 1"], false),
        (&["--rdb-del-sync-files", "yes", "--save", "", "--appendonly", "yes"], false),
    ] {
        let primary = StagedPrimary::start(vec![Scene::streams(7, &stream(&["SELECT 0", "SET key 1"])).keeping()]);
        let mut replica = Server::pantala(Backend::all()[0], &[&REPLICA[..], args].concat());
        let file = replica.folder().join("dump.rdb");
        std::fs::write(&file, EMPTY_RDB).expect("written");
        let mut client = replica.connect();
        follow(&mut client, &primary);
        eventually("the replica follows", || client.call("GET key") == Reply::bulk("1"));
        assert_eq!(!file.exists(), is_deleted, "{args:?}");
        finish(&mut client, primary);
        replica.assert_sound();
    }
}

/// Valkey allows deadlines of hash fields that Redis does not. A client can't set such a deadline,
/// but a replica must not lose the field, and must be able to pass the deadline on.
#[test]
fn later_deadlines_of_fields_than_a_client_may_set_are_applied() {
    for_each_backend(|backend| {
        let far = "HSETEX h PXAT 99999999999999 FIELDS 1 f 1";
        let commands = ["SELECT 0", far, "HSETEX h KEEPTTL FIELDS 1 f 2", "HPEXPIREAT h 99999999999998 FIELDS 1 f"];
        let primary = StagedPrimary::start(vec![Scene::streams(7, &stream(&commands)).keeping()]);
        let mut replica = Server::pantala(backend, &[&REPLICA[..], &["--appendonly", "yes"]].concat());
        let mut client = replica.connect();
        follow(&mut client, &primary);
        let deadline = Reply::Array(vec![Reply::Integer(99_999_999_999_998)]);
        eventually("the stream is applied", || client.call("HPEXPIRETIME h FIELDS 1 f") == deadline);
        finish(&mut client, primary);
        assert!(client.call(far).is_error());
        assert_eq!(client.call("HSETEX h KEEPTTL FIELDS 1 f 3"), Reply::Integer(1));
        eventually("the append-only file has its base", || {
            info(&replica, "persistence", "aof_rewrite_in_progress") == "0"
                && info(&replica, "persistence", "aof_rewrite_scheduled") == "0"
        });
        assert_eq!(client.call("DEBUG LOADAOF"), Reply::ok());
        assert_eq!(client.call("HGET h f"), Reply::bulk("3"));
        assert_eq!(client.call("HPEXPIRETIME h FIELDS 1 f"), deadline);
        replica.assert_sound();
    });
}

/// Makes the directory of a server's append-only file unusable: creates a file with the directory's
/// name.
fn block_append_only(server: &Server) {
    let dir = server.folder().join("appendonlydir");
    std::fs::rename(&dir, server.folder().join("former")).expect("renamed");
    std::fs::write(&dir, "").expect("written");
}

/// A replica that can't reopen its append-only file after a full sync retries after some time.
/// After `CONFIG SET appendonly yes`, the replica retries at once.
#[test]
fn an_append_only_file_is_reopened_after_a_full_sync() {
    for_each_backend(|backend| {
        for sets in [false, true] {
            let primary = StagedPrimary::start(vec![Scene::streams(7, &stream(&["SELECT 0", "SET key 1"])).keeping()]);
            let mut replica = Server::pantala(backend, &[&REPLICA[..], &["--appendonly", "yes"]].concat());
            block_append_only(&replica);
            let (mut client, _following) = (replica.connect(), start_to_follow(&replica, &primary));
            eventually("it can't be opened", || replica.log().contains("Failed enabling the AOF"));
            if sets {
                let reply = client.call("CONFIG SET appendonly yes");
                assert!(reply.text().ends_with("Unable to turn on AOF. Check server logs."), "{reply:?}");
            }
            std::fs::remove_file(replica.folder().join("appendonlydir")).expect("removed");
            if sets {
                assert_eq!(client.call("CONFIG SET appendonly yes"), Reply::ok());
                assert_eq!(info(&replica, "persistence", "aof_enabled"), "1");
            }
            eventually("the replica follows", || client.call("GET key") == Reply::bulk("1"));
            eventually("the base is written", || info(&replica, "persistence", "aof_rewrites") == "1");
            assert_eq!(info(&replica, "persistence", "aof_enabled"), "1");
            finish(&mut client, primary);
            replica.assert_sound();
        }
    });
}

/// As in Redis, a replica exits if it can't reopen its append-only file after a full sync.
#[test]
fn a_replica_without_its_append_only_file_exits() {
    let primary = StagedPrimary::start(vec![Scene::streams(7, &stream(&["SELECT 0", "SET key 1"])).keeping()]);
    let mut replica = Server::pantala(Backend::all()[0], &[&REPLICA[..], &["--appendonly", "yes"]].concat());
    block_append_only(&replica);
    let _following = start_to_follow(&replica, &primary);
    let status = replica.wait_exit(Duration::from_secs(40));
    assert_eq!(status.code(), Some(1));
    let log = replica.log();
    assert_eq!(log.matches("Failed enabling the AOF").count(), 10, "{log}");
    assert!(log.contains("but the AOF can't be turned on. Exiting now."), "{log}");
}
