//! Snapshots in the background: `BGSAVE`, the points of `save`, and what they leave behind.

use std::path::Path;

use pantala_tests::waiting::eventually;
use pantala_tests::{Backend, Client, Reply, Server, for_each_backend};
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
    line.unwrap_or_else(|| panic!("{name} isn't there:\n{text}"))
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
        if let Some(judge) = Server::redis(&["--dir", path(&folder)]) {
            assert_eq!(judge.connect().call("DEBUG DIGEST").text(), digest);
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
    if let Some(judge) = Server::redis(&["--dir", path(&folder), "--save", ""]) {
        scene(&judge);
    }
}

#[test]
fn points_of_save_start_a_snapshot() {
    for_each_backend(|backend| {
        let folder = folder();
        let server = pantala(backend, &folder, &["--save", "1", "3"]);
        let mut client = server.connect();
        client.call("MSET a 1 b 2");
        std::thread::sleep(std::time::Duration::from_millis(2200));
        assert_eq!(field(&mut client, "rdb_saves"), "0", "three changes are needed");
        client.call("SET c 3");
        eventually("the point is reached", || field(&mut client, "rdb_saves") == "1");
        assert!(server.log().contains("3 changes in 1 seconds. Saving..."), "{}", server.log());
        assert_eq!(client.command(&["CONFIG", "SET", "save", ""]), Reply::ok());
        client.call("MSET d 1 e 2 f 3");
        assert_eq!(client.command(&["CONFIG", "SET", "save", "3600 1 1 2"]), Reply::ok());
        eventually("the new point is reached", || field(&mut client, "rdb_saves") == "2");
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
