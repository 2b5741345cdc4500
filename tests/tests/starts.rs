//! The start of the server: errors that prevent it, and the log lines that it writes.

use std::process::{Command, Stdio};

use pantala_tests::server::{pantala_with_file, run_to_exit};
use pantala_tests::{Backend, Client, Reply, Server, tool};

/// A directive that can't be ignored safely prevents startup. The error names the line, the
/// directive and the reason.
#[test]
fn directives_unsafe_to_ignore_prevent_the_start() {
    for (line, meaning) in [("tls-cluster yes", "encrypted"), ("loadmodule /x.so", "no module")] {
        let exit = run_to_exit(&["-", "--port", "0"], format!("timeout 5\n{line}\n").as_bytes());
        assert_eq!(exit.status.code(), Some(1), "{line}: {}", exit.output);
        for word in ["at line 2", &format!(">>> '{line}'"), "isn't served yet", meaning, "ignore-unsupported yes"] {
            assert!(exit.output.contains(word), "{line} must contain {word:?}:\n{}", exit.output);
        }
    }
    let exit = run_to_exit(&["--port", "0", "--tls-cluster", "yes"], b"");
    assert!(exit.output.contains("'tls-cluster' isn't served yet"), "an option does the same: {}", exit.output);
}

#[test]
fn unsafe_directives_are_ignored_on_demand() {
    let text = "tls-cluster yes\nloadmodule /x.so\n";
    let (server, _folder) = pantala_with_file(text, &["--ignore-unsupported", "yes"]);
    for word in ["'tls-cluster' isn't served yet, and is ignored", "'loadmodule'", "no module"] {
        assert!(server.log().contains(word), "the log must contain {word:?}:\n{}", server.log());
    }
    assert_eq!(server.connect().call("SET a 1"), Reply::ok());
}

#[test]
fn directives_turned_off_are_accepted() {
    let text = "user default on nopass ~* &* +@all\naclfile \"\"\ntls-port 0\ntls-replication no\nreplicaof no one\n\
        min-replicas-to-write 0\nappendonly no\nsave \"\"\n";
    let (server, _folder) = pantala_with_file(text, &[]);
    assert!(!server.log().contains("isn't served"), "{}", server.log());
    assert_eq!(server.connect().call("PING").text(), "PONG");
}

/// Debian's configuration file, without its paths, starts the server.
#[test]
fn the_file_of_the_distribution_starts() {
    let Ok(text) = std::fs::read_to_string("/etc/redis/redis.conf") else {
        return tool::skipped(format_args!("/etc/redis/redis.conf isn't there or can't be read"));
    };
    let (server, _folder) =
        pantala_with_file(&text, &["--daemonize", "no", "--logfile", "", "--pidfile", "", "--dir", "."]);
    assert_eq!(server.connect().call("PING").text(), "PONG");
}

#[test]
fn the_log_says_that_maxmemory_leaves_no_room() {
    for (limit, says) in [("100kb", true), ("1gb", false), ("0", false)] {
        let server = Server::pantala(Backend::Epoll, &["--maxmemory", limit]);
        let log = server.log();
        assert_eq!(log.contains("WARNING: maxmemory"), says, "{limit}:\n{log}");
    }
}

/// With `always-show-logo`, the log contains the lines of Redis's logo that programs search for,
/// but not the picture itself.
#[test]
fn the_log_shows_mode_port_and_process() {
    for &backend in Backend::all() {
        let server = Server::pantala(backend, &["--always-show-logo", "yes"]);
        let lines = ["Running in standalone mode".to_owned(), format!(" Port: {}", server.port()), " PID: ".to_owned()];
        assert!(lines.iter().all(|line| server.log().contains(line)), "{}", server.log());
        let server = Server::pantala(backend, &["--cluster-enabled", "yes"]);
        let line = format!("Running mode=cluster, port={}.", server.port());
        assert!(server.log().contains(&line), "{}", server.log());
    }
}

/// The configurations of Redis's own tests contain `save` without an argument, which means `save
/// ""`.
#[test]
fn a_bare_save_line_starts() {
    let (server, _folder) = pantala_with_file("save\n", &[]);
    assert_eq!(server.connect().command(&["CONFIG", "GET", "save"]).elements()[1].text(), "");
}

/// The last two lines of output are the same on both servers: the wrong line, and the reason.
#[test]
fn wrong_options_are_rejected_with_the_texts_of_redis() {
    let Some(redis) = tool::find("redis-server") else { return };
    for args in [
        &["--shutdown-on-sigint"][..],
        &["--shutdown-on-sigint", ""],
        &["--shutdown-on-sigint", "bogus"],
        &["--shutdown-on-sigterm", "save nosave"],
        &["--shutdown-on-sigint", "--hz", "5"],
        &["--save", "1"],
        &["--oom-score-adj-values"],
        &["--timeout"],
    ] {
        let words = |output: &str| -> Vec<String> {
            let from = output.find(">>>").unwrap_or_else(|| panic!("no line is named for {args:?}:\n{output}"));
            output[from..].trim().lines().map(str::to_owned).collect()
        };
        let right = Command::new(&redis).args(args).stdin(Stdio::null()).output().expect("redis-server runs");
        let right = String::from_utf8_lossy(&[right.stdout, right.stderr].concat()).into_owned();
        let given = run_to_exit(args, b"");
        assert_eq!(given.status.code(), Some(1), "{args:?}");
        assert_eq!(words(&given.output), words(&right), "{args:?}");
    }
}

/// The tests of some client libraries reserve the path of the Unix socket with an empty file.
#[test]
fn a_unix_socket_replaces_an_empty_file_but_no_other() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("socket");
    let text = path.to_str().expect("UTF-8");
    std::fs::write(&path, "content").expect("written");
    let exit = run_to_exit(&["--port", "0", "--unixsocket", text], b"");
    assert!(exit.output.contains("Address already in use"), "{}", exit.output);
    assert_eq!(std::fs::read(&path).expect("it is kept"), b"content");
    std::fs::write(&path, "").expect("written");
    let _server = Server::pantala(Backend::Epoll, &["--unixsocket", text]);
    assert_eq!(Client::unix(&path).call("PING"), Reply::Simple("PONG".into()));
}

/// With an empty `dbfilename` there is no snapshot to load, and saving fails.
#[test]
fn an_empty_dbfilename_starts_as_in_redis() {
    let args = ["--dbfilename", "", "--save", "3600 1"];
    let pantala = |backend: &Backend| Server::pantala(*backend, &args);
    for server in Backend::all().iter().map(pantala).chain(Server::redis(&args)) {
        let mut client = server.connect();
        assert_eq!(client.call("CONFIG GET dbfilename").elements()[1].text(), "");
        assert_eq!(client.call("SET key value"), Reply::ok());
        for (words, error) in
            [("SAVE", "ERR"), ("DEBUG RELOAD", "ERR"), ("SHUTDOWN", "ERR Errors trying to SHUTDOWN. Check logs.")]
        {
            assert_eq!(client.call(words), Reply::Error(error.into()), "{words}: {}", server.log());
        }
        let names =
            std::fs::read_dir(server.folder()).expect("a folder").map(|entry| entry.expect("a name").file_name());
        let left: Vec<_> = names.filter(|name| name.as_encoded_bytes().ends_with(b".rdb")).collect();
        assert!(left.is_empty(), "{left:?}");
    }
}
