//! Tests commands that read or write files: `CONFIG SET`, `CONFIG REWRITE`, `ACL LOAD` and
//! `ACL SAVE`. The fault `stuck-disk` stops their thread.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use pantala_tests::client::encode;
use pantala_tests::server::{free_port, pantala_with_file};
use pantala_tests::tls::{Certificates, Tunnel};
use pantala_tests::waiting::{PATIENCE, eventually};
use pantala_tests::{Backend, Client, Reply, Server, for_each_backend};
use tempfile::TempDir;

use super::slow_disk::{assert_served, field, stick};

/// The ACL file at the start.
const USERS: &str = "user default on nopass ~* &* +@all\nuser alice on >secret ~* &* +@all\n";
/// Redis's error for an invalid number.
const NO_NUMBER: &str = "argument couldn't be parsed into an integer";

/// A server with one worker, and the folders of its configuration file and of its ACL file.
struct Started {
    server: Server,
    folders: [TempDir; 2],
}

impl Started {
    fn new(backend: Backend, more: &[&str]) -> Started {
        let users = tempfile::tempdir().expect("a folder");
        let path = users.path().join("users.acl");
        fs::write(&path, USERS).expect("written");
        let mut args = vec!["--io-backend", backend.name(), "--workers", "1", "--save", ""];
        args.extend(["--enable-debug-command", "yes", "--enable-protected-configs", "yes"]);
        args.extend(["--aclfile", path.to_str().expect("a UTF-8 path")]);
        args.extend(more);
        let (server, configuration) = pantala_with_file("timeout 0\n", &args);
        Started { server, folders: [configuration, users] }
    }

    fn connect(&self) -> Client {
        let mut client = self.server.connect();
        client.set_read_timeout(PATIENCE);
        client
    }

    fn configuration(&self) -> String {
        fs::read_to_string(self.folders[0].path().join("pantala.conf")).expect("the file exists")
    }

    fn users_file(&self) -> PathBuf {
        self.folders[1].path().join("users.acl")
    }

    fn users(&self) -> String {
        fs::read_to_string(self.users_file()).expect("the file exists")
    }

    /// Asserts that there is no temporary file.
    fn assert_tidy(&self) {
        for folder in &self.folders {
            assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 1, "{folder:?}");
        }
    }
}

fn dir(client: &mut Client) -> PathBuf {
    client.call("CONFIG GET dir").elements()[1].text().into()
}

/// Returns the working directory of the server's process.
fn working_dir(server: &Server) -> PathBuf {
    fs::read_link(format!("/proc/{}/cwd", server.pid())).expect("the server runs")
}

fn canonical(folder: &TempDir) -> PathBuf {
    folder.path().canonicalize().expect("the folder exists")
}

fn await_blocked(client: &mut Client, count: u64) {
    eventually("the commands wait", || field(client, "clients", "blocked_clients") == count);
}

/// Each change of `dir` would make the other changes start again if each command had a thread.
#[test]
fn many_clients_change_the_directory_at_the_same_time() {
    const CLIENTS: usize = 300;
    for_each_backend(|backend| {
        let started = Started::new(backend, &[]);
        let folders = [tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder")];
        let mut clients: Vec<Client> = (0..CLIENTS).map(|_| started.connect()).collect();
        for (number, client) in clients.iter_mut().enumerate() {
            let path = folders[number % 2].path().to_str().expect("a UTF-8 path");
            client.send(&["CONFIG", "SET", "dir", path]);
        }
        for client in &mut clients {
            assert!(started.server.threads("pantala-config") <= 1);
            assert_eq!(client.receive(), Reply::ok());
        }
        assert_eq!(working_dir(&started.server), dir(&mut clients[0]));
    });
}

#[test]
fn only_the_client_of_a_command_waits_for_the_disk() {
    for_each_backend(|backend| {
        let mut started = Started::new(backend, &[]);
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().to_str().expect("a UTF-8 path");
        let mut client = started.connect();
        let set = ["CONFIG", "SET", "dir", path, "timeout", "77"];
        let commands: [&[&str]; 4] = [&["CONFIG", "REWRITE"], &["ACL", "SAVE"], &["ACL", "LOAD"], &set];
        for words in commands {
            assert_eq!(client.call("CONFIG SET hz 10"), Reply::ok());
            stick(&mut client, true);
            // Two clients send the command at the same time, and a third one disconnects.
            let mut waiting = [started.connect(), started.connect()];
            for waiting in &mut waiting {
                waiting.send_raw(&[encode(words), encode(&["SET", "later", "1"])].concat());
            }
            let mut leaving = started.connect();
            leaving.send(words);
            await_blocked(&mut client, 3);
            // A thread gets its name when it starts to run.
            eventually("the thread runs", || started.server.threads("pantala-config") > 0);
            assert_eq!(started.server.threads("pantala-config"), 1, "the commands share a thread");
            drop(leaving);
            await_blocked(&mut client, 2);
            assert_eq!(client.call("PING").text(), "PONG", "{words:?}");
            assert_served(&started.server, "meanwhile");
            assert_eq!(client.call("EXISTS later"), Reply::Integer(0), "it follows a command that waits");
            // The configuration and the users can be read and changed.
            assert_eq!(client.call("CONFIG SET hz 20"), Reply::ok());
            assert_eq!(client.call("CONFIG GET hz").elements()[1].text(), "20");
            assert_eq!(client.call("ACL SETUSER bob on"), Reply::ok());
            assert_eq!(client.call("ACL LIST").elements().len(), 3);
            assert_eq!(client.call("CONFIG GET timeout").elements()[1].text(), "0");
            // Errors don't wait for the disk.
            for [error, text] in [["CONFIG SET dir / timeout x", NO_NUMBER], ["CONFIG SET dir / nothing 1", "Unknown"]]
            {
                assert!(client.call(error).text().contains(text), "{error}");
            }
            let list = client.call("CLIENT LIST").text();
            let line = list.lines().find(|line| line.contains("flags=b")).expect("a client that waits");
            let id = line.strip_prefix("id=").and_then(|line| line.split(' ').next()).expect("an ID");
            assert_eq!(client.call(&format!("CLIENT UNBLOCK {id}")), Reply::Integer(0));
            await_blocked(&mut client, 2);
            stick(&mut client, false);
            for waiting in &mut waiting {
                assert_eq!([waiting.receive(), waiting.receive()], [Reply::ok(), Reply::ok()], "{words:?}");
            }
            assert_eq!(client.call("DEL later"), Reply::Integer(1));
            let (configuration, users) = (started.configuration(), started.users());
            match words[1] {
                "REWRITE" => assert!(configuration.contains("\nhz 20\n"), "{configuration}"),
                "SAVE" => assert!(users.contains("user bob on") && users.contains("user alice on"), "{users}"),
                "LOAD" => assert_eq!(client.call("ACL LIST").elements().len(), 3, "the file has bob"),
                _ => {
                    assert_eq!(client.call("CONFIG GET timeout").elements()[1].text(), "77");
                    assert_eq!([dir(&mut client), working_dir(&started.server)], [(); 2].map(|()| canonical(&folder)));
                    assert_eq!(client.call("CONFIG SET timeout 0"), Reply::ok());
                }
            }
            // The client that has disconnected sent the same command, which may still run.
            eventually("no thread runs", || started.server.threads("pantala-config") == 0);
            started.assert_tidy();
        }
        started.server.assert_sound();
    });
}

/// While a command waits, another client changes what it reads or writes. The result is that of
/// both commands in some order.
#[test]
fn commands_that_overlap_have_an_order() {
    for_each_backend(|backend| {
        let started = Started::new(backend, &[]);
        let folder = tempfile::tempdir().expect("a folder");
        fs::create_dir_all(folder.path().join("sub/sub")).expect("folders");
        let path = folder.path().to_str().expect("a UTF-8 path");
        let mut client = started.connect();
        let mut waiting = [started.connect(), started.connect()];
        // The second change is relative to the first one.
        assert_eq!(client.command(&["CONFIG", "SET", "dir", path]), Reply::ok());
        stick(&mut client, true);
        waiting.iter_mut().for_each(|waiting| waiting.send(&["CONFIG", "SET", "dir", "sub"]));
        await_blocked(&mut client, 2);
        stick(&mut client, false);
        waiting.iter_mut().for_each(|waiting| assert_eq!(waiting.receive(), Reply::ok()));
        let expected = canonical(&folder).join("sub/sub");
        assert_eq!([dir(&mut client), working_dir(&started.server)], [expected.clone(), expected]);
        // `ACL SAVE` and `ACL LOAD`, in either order, leave the same users in memory and in the
        // file.
        for round in 0..20 {
            assert_eq!(client.call(&format!("ACL SETUSER user{round} on")), Reply::ok());
            stick(&mut client, true);
            for (waiting, words) in waiting.iter_mut().zip([["ACL", "LOAD"], ["ACL", "SAVE"]]) {
                waiting.send(&words);
            }
            await_blocked(&mut client, 2);
            stick(&mut client, false);
            waiting.iter_mut().for_each(|waiting| assert_eq!(waiting.receive(), Reply::ok()));
            let list = client.call("ACL LIST");
            let lines: Vec<String> = list.elements().iter().map(Reply::text).collect();
            let name = format!("user{round} ");
            let is_in = [lines.iter().any(|line| line.contains(&name)), started.users().contains(&name)];
            assert!(is_in[0] == is_in[1], "round {round}: {is_in:?}");
        }
    });
}

/// `CONFIG SET` sets all parameters or none, even if a thread runs it.
#[test]
fn a_change_that_fails_leaves_the_directory() {
    for_each_backend(|backend| {
        let started = Started::new(backend, &[]);
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().to_str().expect("a UTF-8 path");
        let mut client = started.connect();
        let before = dir(&mut client);
        let taken = started.server.port().to_string();
        let other = Server::pantala(backend, &[]);
        let port = other.port().to_string();
        for (words, error) in [
            (["dir", path, "port", &port], "(possibly related to argument 'port')"),
            (["timeout", "5", "dir", "/nonexistent"], "'dir') - No such file or directory"),
            (["timeout", "5", "dir", "/dev/null"], "'dir') - Not a directory"),
            (["timeout", "5", "dir", ""], "'dir') - No such file or directory"),
        ] {
            let reply = client.command(&[&["CONFIG", "SET"], &words[..]].concat());
            assert!(reply.is_error() && reply.text().contains(error), "{words:?}: {reply:?}");
            assert_eq!([dir(&mut client), working_dir(&started.server)], [before.clone(), before.clone()]);
            assert_eq!(client.call("CONFIG GET timeout").elements()[1].text(), "0");
            assert_eq!(client.call("CONFIG GET port").elements()[1].text(), taken);
        }
        // As in Redis, the directory is an absolute path without links.
        let relative = format!("{path}/../{}/.", folder.path().file_name().expect("a name").display());
        assert_eq!(client.command(&["CONFIG", "SET", "dir", &relative]), Reply::ok());
        assert_eq!(dir(&mut client), canonical(&folder));
        assert_eq!(client.command(&["CONFIG", "SET", "dir", "."]), Reply::ok());
        assert_eq!(dir(&mut client), canonical(&folder));
    });
}

/// A transaction can't wait, so its worker runs the commands.
#[test]
fn a_transaction_runs_the_commands_at_once() {
    for_each_backend(|backend| {
        let started = Started::new(backend, &[]);
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().to_str().expect("a UTF-8 path");
        let mut client = started.connect();
        let set = format!("CONFIG SET dir {path} hz 30");
        let commands = ["ACL SETUSER bob on", "ACL SAVE", "ACL DELUSER bob", "ACL LOAD", &set, "CONFIG REWRITE"];
        assert_eq!(client.call("MULTI"), Reply::ok());
        for command in commands {
            assert_eq!(client.call(command).text(), "QUEUED");
        }
        let replies = client.call("EXEC");
        let expected = [Reply::ok(), Reply::ok(), Reply::Integer(1), Reply::ok(), Reply::ok(), Reply::ok()];
        assert_eq!(replies.elements(), expected);
        assert_eq!(started.server.threads("pantala-config"), 0);
        assert!(started.users().contains("user bob on"));
        assert_eq!(client.call("ACL LIST").elements().len(), 3, "loaded again");
        assert_eq!(working_dir(&started.server), canonical(&folder));
        let configuration = started.configuration();
        assert!(configuration.contains("\nhz 30\n") && configuration.contains(path), "{configuration}");
    });
}

/// `ACL LOAD` replaces the user of its own connection, which closes after the reply.
#[test]
fn acl_load_closes_the_connections_of_former_users() {
    for_each_backend(|backend| {
        let mut started = Started::new(backend, &[]);
        let mut client = started.connect();
        for later in [&[][..], &encode(&["SET", "later", "1"])] {
            let [mut own, mut other, mut blocked] = [(); 3].map(|()| started.connect());
            for client in [&mut own, &mut other, &mut blocked] {
                assert_eq!(client.call("AUTH alice secret"), Reply::ok());
            }
            blocked.send(&["BLPOP", "list", "0"]);
            await_blocked(&mut client, 1);
            stick(&mut client, true);
            own.send_raw(&[&encode(&["ACL", "LOAD"]), later].concat());
            await_blocked(&mut client, 2);
            assert_eq!(other.call("ACL WHOAMI").text(), "alice");
            stick(&mut client, false);
            assert_eq!(own.receive(), Reply::ok());
            for closed in [&mut own, &mut other, &mut blocked] {
                assert!(closed.read_to_end().is_empty(), "the connection is closed");
            }
            assert_eq!(client.call("EXISTS later"), Reply::Integer(0));
        }
        assert_eq!(client.call("ACL WHOAMI").text(), "default");
        // After an error, nothing changes.
        fs::write(started.users_file(), "user alice on\nuser broken +nothing\n").expect("written");
        let mut own = started.connect();
        assert_eq!(own.call("AUTH alice secret"), Reply::ok());
        assert!(own.call("ACL LOAD").text().contains("Error in applying operation '+nothing'"));
        fs::remove_file(started.users_file()).expect("removed");
        assert!(own.call("ACL LOAD").text().contains("No such file or directory"));
        assert_eq!(own.call("ACL WHOAMI").text(), "alice");
        started.server.assert_sound();
    });
}

/// A permission that was revoked while a command waited has no effect after the reply to the
/// command that revoked it.
#[test]
fn permissions_are_checked_again_after_the_wait() {
    for_each_backend(|backend| {
        let mut started = Started::new(backend, &[]);
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().to_str().expect("a UTF-8 path");
        let mut client = started.connect();
        let before = dir(&mut client);
        for revoking in ["ACL SETUSER alice -acl -config", "ACL DELUSER alice"] {
            assert_eq!(client.call("ACL LOAD"), Reply::ok());
            let mut waiting = [started.connect(), started.connect()];
            for waiting in &mut waiting {
                assert_eq!(waiting.call("AUTH alice secret"), Reply::ok());
            }
            stick(&mut client, true);
            waiting[0].send(&["ACL", "LOAD"]);
            waiting[1].send(&["CONFIG", "SET", "dir", path, "timeout", "77"]);
            await_blocked(&mut client, 2);
            assert!(!client.call(revoking).is_error());
            let users = client.call("ACL LIST");
            stick(&mut client, false);
            for waiting in &mut waiting {
                match revoking {
                    "ACL DELUSER alice" => assert!(waiting.read_to_end().is_empty(), "the connection is closed"),
                    _ => assert!(waiting.receive().text().starts_with("NOPERM "), "the permission is revoked"),
                }
            }
            eventually("no thread runs", || started.server.threads("pantala-config") == 0);
            assert_eq!(client.call("ACL LIST"), users);
            assert_eq!([dir(&mut client), working_dir(&started.server)], [before.clone(), before.clone()]);
            assert_eq!(client.call("CONFIG GET timeout").elements()[1].text(), "0");
        }
        started.server.assert_sound();
    });
}

/// `CONFIG SET` reads certificates without stopping a worker. Relative paths belong to the
/// directory that the same command sets.
#[test]
fn only_the_client_waits_for_certificates() {
    let Some(certificates) = Certificates::make() else { return };
    for_each_backend(|backend| {
        let mut started = Started::new(backend, &[]);
        let mut client = started.connect();
        let port = free_port();
        let dir = certificates.path("ca.crt").parent().map(Path::to_path_buf).expect("a parent");
        let mut waiting = started.connect();
        stick(&mut client, true);
        let (dir, port_text) = (dir.display().to_string(), port.to_string());
        let mut words = vec!["CONFIG", "SET", "dir", &dir, "tls-port", &port_text];
        words.extend(["tls-cert-file", "server.crt", "tls-key-file", "server.key", "tls-ca-cert-file", "ca.crt"]);
        waiting.send(&words);
        await_blocked(&mut client, 1);
        assert_served(&started.server, "meanwhile");
        stick(&mut client, false);
        assert_eq!(waiting.receive(), Reply::ok(), "{}", started.server.log());
        let tunnel = || Tunnel::open(port, certificates.client_config(Some("client")), usize::MAX);
        assert_eq!(tunnel().connect().call("PING").text(), "PONG");
        // A change that fails keeps the certificates.
        assert!(client.call("CONFIG SET timeout 5 tls-cert-file nothing.crt").is_error());
        assert_eq!(client.call("CONFIG GET timeout").elements()[1].text(), "0");
        assert_eq!(tunnel().connect().call("PING").text(), "PONG");
        stick(&mut client, true);
        waiting.send(&["CONFIG", "SET", "tls-cert-file", "server.crt", "tls-auth-clients", "no"]);
        await_blocked(&mut client, 1);
        assert_served(&started.server, "again");
        waiting.set_read_timeout(Duration::from_millis(50));
        assert!(waiting.try_receive().is_err(), "it waits");
        waiting.set_read_timeout(PATIENCE);
        stick(&mut client, false);
        assert_eq!(waiting.receive(), Reply::ok());
        let without = Tunnel::open(port, certificates.client_config(None), usize::MAX);
        assert_eq!(without.connect().call("PING").text(), "PONG");
        started.server.assert_sound();
    });
}
