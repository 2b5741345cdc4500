//! Limits to the damage that a vulnerability can do: the sandbox, and permissions of files.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use pantala_tests::following::{assert_same, follow};
use pantala_tests::server::{free_port, pantala_with_file};
use pantala_tests::tls::{Certificates, Tunnel};
use pantala_tests::waiting::eventually;
use pantala_tests::{Backend, Reply, Server, for_each_backend};

/// Commands that a sandboxed server runs, with the start of each reply.
const COMMANDS: &[(&str, &str)] = &[
    ("SET key value", "OK"),
    ("EVAL return(redis.call('get',KEYS[1])) 1 key", "value"),
    ("DEBUG POPULATE 20000", "OK"),
    ("RPUSH list 1 2 3", "3"),
    ("SORT list STORE sorted", "3"),
    ("DEBUG RELOAD", "OK"),
    ("SAVE", "OK"),
    ("ACL SETUSER ann on >pw +@all", "OK"),
    ("ACL SAVE", "OK"),
    ("ACL LOAD", "OK"),
    ("ACL GENPASS", ""),
    ("CONFIG SET maxmemory 100mb", "OK"),
    ("CONFIG SET maxclients 500", "OK"),
    ("CONFIG SET maxclients 12000", "OK"),
    ("CONFIG SET loglevel debug", "OK"),
    ("CONFIG SET oom-score-adj yes", "OK"),
    ("CONFIG SET appendfsync always", "OK"),
    ("SET key again", "OK"),
    ("CONFIG SET appendfsync everysec", "OK"),
    ("CONFIG SET appendonly no", "OK"),
    ("CONFIG SET appendonly yes", "OK"),
    ("CONFIG SET dir .", "OK"),
    ("CONFIG REWRITE", "OK"),
    ("MEMORY PURGE", "OK"),
    ("MEMORY DOCTOR", ""),
    ("INFO everything", "# Server"),
    ("CLIENT LIST", "id="),
    ("LATENCY DOCTOR", ""),
    ("DEBUG SLEEP 0.01", "OK"),
    ("BLPOP none 0.05", "null"),
    ("WAIT 0 10", "0"),
    ("FUNCTION DUMP", ""),
    ("FLUSHALL ASYNC", "OK"),
    ("SET key last", "OK"),
];

/// Returns the value of a field in the status of each thread.
fn of_threads(server: &Server, field: &str) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{}/task", server.pid())).expect("the server runs");
    let value = |task: fs::DirEntry| {
        let text = fs::read_to_string(task.path().join("status")).ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix(field))?;
        Some(line.trim_start_matches(':').trim().to_owned())
    };
    tasks.flatten().filter_map(value).collect()
}

fn saves(server: &Server, field: &str) -> String {
    pantala_tests::following::info(server, "persistence", field)
}

#[test]
fn a_sandboxed_server_does_everything() {
    let Some(certificates) = Certificates::make() else { return };
    for_each_backend(|backend| {
        let tls_port = free_port();
        let mut args = certificates.server_args(tls_port, "server");
        args.extend(["--sandbox", "yes", "--appendonly", "yes", "--aclfile", "users.acl"].map(str::to_owned));
        args.extend(["--io-backend", backend.name(), "--enable-debug-command", "yes"].map(str::to_owned));
        args.extend(["--syslog-enabled", "yes", "--workers", "2"].map(str::to_owned));
        args.extend(["--enable-protected-configs", "yes"].map(str::to_owned));
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join("users.acl"), "user default on nopass ~* &* +@all\n").expect("written");
        let (mut server, _conf) = pantala_with_file(&format!("dir {}\n", folder.path().display()), &args);
        let modes = of_threads(&server, "Seccomp");
        assert!(modes.len() > 2 && modes.iter().all(|mode| mode == "2"), "every thread is filtered: {modes:?}");
        assert!(of_threads(&server, "NoNewPrivs").iter().all(|value| value == "1"));
        let mut client = server.connect();
        for (command, start) in COMMANDS {
            let reply = client.call(command);
            let text = if reply == Reply::Null { "null".to_owned() } else { reply.text() };
            assert!(!reply.is_error() && text.starts_with(start), "{command}: {reply:?}\n{}", server.log());
        }
        for (command, field) in [("BGSAVE", "rdb_bgsave_in_progress"), ("BGREWRITEAOF", "aof_rewrite_in_progress")] {
            // The command is repeated, because an earlier snapshot or rewrite may still be running.
            eventually(command, || !client.call(command).is_error());
            eventually(command, || saves(&server, field) == "0");
        }
        assert_eq!(saves(&server, "rdb_last_bgsave_status"), "ok");
        assert_eq!(saves(&server, "aof_last_bgrewrite_status"), "ok");

        // Connects over TLS, after the server has read its certificates again.
        let tunnel = Tunnel::open(tls_port, certificates.client_config(Some("client")), usize::MAX);
        assert_eq!(tunnel.connect().call("GET key").text(), "last");
        let (cert, key) = (certificates.cert("rsa"), certificates.key("rsa"));
        let reload = client.command(&["CONFIG", "SET", "tls-cert-file", &cert, "tls-key-file", &key]);
        assert_eq!(reload, Reply::ok());
        assert_eq!(tunnel.connect().call("GET key").text(), "last");

        // Listens on another port, and connects to other servers.
        let other = free_port();
        assert_eq!(client.call(&format!("CONFIG SET port {other}")), Reply::ok());
        assert_eq!(pantala_tests::Client::tcp(other).call("PING").text(), "PONG");
        assert_eq!(client.call(&format!("CONFIG SET port {}", server.port())), Reply::ok());
        let peer = Server::pantala(backend, &["--workers", "1"]);
        for host in ["127.0.0.1", "localhost"] {
            client.call("SET moved value");
            let moved = client.call(&format!("MIGRATE {host} {} moved 0 5000 REPLACE", peer.port()));
            assert_eq!(moved, Reply::ok(), "{}", server.log());
        }
        assert_eq!(peer.connect().call("GET moved").text(), "value");
        for diskless in ["yes", "no"] {
            for change in ["repl-diskless-sync-delay 0", &format!("repl-diskless-sync {diskless}")] {
                assert_eq!(client.call(&format!("CONFIG SET {change}")), Reply::ok());
            }
            follow(&peer, &server);
            client.call("SET replicated value");
            assert_same(&peer, &server);
            assert_eq!(peer.connect().call("REPLICAOF NO ONE"), Reply::ok());
        }
        assert_eq!(peer.connect().call("CONFIG SET repl-diskless-sync-delay 0"), Reply::ok());
        follow(&server, &peer);
        assert_same(&server, &peer);
        assert_eq!(client.call("REPLICAOF NO ONE"), Reply::ok());

        let log = server.log();
        assert!(!log.contains("not permitted"), "{log}");
        server.assert_sound();
        client.send(&["SHUTDOWN", "SAVE"]);
        let ended = server.wait_exit(Duration::from_secs(60));
        assert!(ended.success(), "{ended}: {}", server.log());
    });
}

#[test]
fn the_sandbox_is_off_by_default_and_fixed_at_startup() {
    let server = Server::pantala(Backend::Epoll, &[]);
    assert!(of_threads(&server, "Seccomp").iter().all(|mode| mode == &own_mode()), "as the process that started it");
    let mut client = server.connect();
    assert!(client.call("CONFIG SET sandbox yes").text().contains("can't set immutable config"));
}

/// Returns the seccomp mode of this process. It is 0 unless the tests run in a container that has
/// set a filter.
fn own_mode() -> String {
    let text = fs::read_to_string("/proc/self/status").expect("it can be read");
    let line = text.lines().find_map(|line| line.strip_prefix("Seccomp:"));
    line.unwrap_or_default().trim().to_owned()
}

/// Returns all files in a directory and its subdirectories.
fn files_in(folder: &Path) -> Vec<std::path::PathBuf> {
    let entries = fs::read_dir(folder).expect("a folder").flatten().map(|entry| entry.path());
    entries.flat_map(|path| if path.is_dir() { files_in(&path) } else { vec![path] }).collect()
}

#[test]
fn only_the_owner_may_read_new_files() {
    let folder = tempfile::tempdir().expect("a folder");
    let users = folder.path().join("users.acl");
    fs::write(&users, "user default on nopass ~* &* +@all\n").expect("written");
    let text = format!("dir {}\nappendonly yes\naclfile users.acl\n", folder.path().display());
    let (server, conf) = pantala_with_file(&text, &["--enable-debug-command", "yes"]);
    let mut client = server.connect();
    let conf = conf.path().join("pantala.conf");
    // Existing files keep their permissions, so the test removes these two. The commands below
    // create them again.
    fs::remove_file(&users).expect("removed");
    fs::remove_file(&conf).expect("removed");
    for command in ["SET key value", "SAVE", "BGREWRITEAOF", "ACL SAVE", "CONFIG REWRITE"] {
        assert!(!client.call(command).is_error(), "{command}");
    }
    eventually("the file is rewritten", || saves(&server, "aof_rewrite_in_progress") == "0");
    let mut files = files_in(folder.path());
    files.push(conf);
    let modes: Vec<(String, u32)> = files
        .iter()
        .map(|path| (path.display().to_string(), fs::metadata(path).expect("it exists").permissions().mode() & 0o777))
        .collect();
    // The six files are the snapshot, base, increment, manifest, users and configuration.
    assert!(modes.len() >= 6 && modes.iter().all(|(_, mode)| *mode == 0o600), "{modes:?}");
    let directory = fs::metadata(folder.path().join("appendonlydir")).expect("it exists");
    assert_eq!(directory.permissions().mode() & 0o777, 0o700);
}
