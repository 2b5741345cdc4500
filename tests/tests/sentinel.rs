//! Sentinel 7.0 monitors Pantala and replaces a failed primary.

use std::process::{Child, Command, Stdio};

use pantala_tests::client::encode;
use pantala_tests::following::follow;
use pantala_tests::server::free_port;
use pantala_tests::waiting::eventually;
use pantala_tests::{Backend, Client, Reply, Server, tool};
use tempfile::TempDir;

/// Time without a reply after which a primary counts as down, in ms.
const DOWN_AFTER_MS: u64 = 1000;

/// A redis-server that runs as a Sentinel. It is killed when dropped.
pub(super) struct Sentinel {
    child: Child,
    port: u16,
    /// Directory of the configuration file, which Sentinel rewrites while it runs.
    _folder: TempDir,
}

impl Sentinel {
    /// Starts a single Sentinel that monitors a primary. Returns `None` if redis-server isn't
    /// installed.
    pub(super) fn of(primary: &Server) -> Option<Sentinel> {
        let program = tool::find("redis-server")?;
        let folder = tempfile::tempdir().expect("a folder");
        let port = free_port();
        let text = format!(
            "port {port}\nsentinel monitor pair 127.0.0.1 {} 1\nsentinel down-after-milliseconds pair {DOWN_AFTER_MS}\n\
             sentinel failover-timeout pair 10000\n",
            primary.port()
        );
        let file = folder.path().join("sentinel.conf");
        std::fs::write(&file, text).expect("the configuration is written");
        let child = Command::new(program)
            .arg(&file)
            .arg("--sentinel")
            .current_dir(folder.path())
            .stdout(Stdio::null())
            .spawn()
            .expect("it starts");
        let sentinel = Sentinel { child, port, _folder: folder };
        eventually("Sentinel listens", || Client::try_tcp(port).is_ok());
        Some(sentinel)
    }

    /// Returns the port on which Sentinel listens.
    pub(super) fn port(&self) -> u16 {
        self.port
    }

    pub(super) fn connect(&self) -> Client {
        Client::tcp(self.port)
    }
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        // The error is ignored: Sentinel may already have exited.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the port of the primary according to Sentinel.
fn primary_port(client: &mut Client) -> String {
    client.call("SENTINEL GET-MASTER-ADDR-BY-NAME pair").elements()[1].text()
}

#[test]
fn a_dead_primary_is_replaced_and_keeps_what_wait_confirmed() {
    let args = ["--workers", "2", "--save", "", "--repl-diskless-sync-delay", "0"];
    let servers = [Backend::Epoll, Backend::Epoll, Backend::Epoll].map(|backend| Server::pantala(backend, &args));
    let [primary, first, second] = servers;
    for replica in [&first, &second] {
        follow(replica, &primary);
    }
    let Some(sentinel) = Sentinel::of(&primary) else { return };
    let mut client = sentinel.connect();
    eventually("Sentinel knows both replicas", || client.call("SENTINEL REPLICAS pair").elements().len() == 2);
    let mut writer = primary.connect();
    assert_eq!(writer.call("SET kept value"), Reply::ok());
    assert_eq!(writer.call("WAIT 2 10000"), Reply::Integer(2));
    let old = primary.port().to_string();
    primary.kill();
    eventually("another primary is elected", || primary_port(&mut client) != old);
    let new = primary_port(&mut client);
    let is_first = first.port().to_string() == new;
    let (promoted, other) = if is_first { (&first, &second) } else { (&second, &first) };
    assert_eq!(promoted.connect().call("ROLE").elements()[0].text(), "master");
    assert_eq!(promoted.connect().call("GET kept").text(), "value");
    assert_eq!(promoted.connect().call("SET later 1"), Reply::ok());
    eventually("the other replica follows", || {
        let mut client = other.connect();
        // The command is repeated, because Sentinel disconnects all clients of a server when it
        // makes the server a replica.
        let is_sent = client.try_send_raw(&encode(&["EXISTS", "later"])).is_ok();
        is_sent && client.try_receive().is_ok_and(|(reply, _)| reply == Reply::Integer(1))
    });
}
