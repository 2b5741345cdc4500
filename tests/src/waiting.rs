//! Runs scenarios with blocked clients, and waits for events. A *scenario* is a function that uses
//! a server and panics if a reply is wrong. It runs on Pantala with each backend and execution. It
//! also runs on redis-server, to check that the scenario describes Redis's behaviour.

use std::time::{Duration, Instant};

use crate::{Backend, Client, Server};

/// Maximum wait for an event that must happen.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Starts a Pantala with each backend and each execution.
#[must_use]
pub fn pantalas() -> Vec<Server> {
    let executions = ["inline", "owner"];
    let args = |execution| ["--workers", "3", "--shards", "12", "--execution", execution];
    let start = |&backend| executions.map(|execution| Server::pantala(backend, &args(execution)));
    Backend::all().iter().flat_map(start).collect()
}

/// Runs a scenario on every kind of server, one after the other.
pub fn play(scene: impl Fn(&Server)) {
    for mut server in pantalas() {
        scene(&server);
        server.assert_sound();
    }
    if let Some(reference) = Server::redis(&[]) {
        scene(&reference);
    }
}

/// Runs a scenario on all kinds of servers at the same time. Use it for scenarios that are mostly
/// idle.
///
/// # Panics
/// If a scenario panics.
pub fn play_together(scene: impl Fn(&Server) + Sync) {
    let reference = Server::redis(&[]);
    let mut servers = pantalas();
    std::thread::scope(|scope| {
        for server in servers.iter().chain(&reference) {
            scope.spawn(|| scene(server));
        }
    });
    servers.iter_mut().for_each(Server::assert_sound);
}

/// Repeats a check until it succeeds.
///
/// # Panics
/// If the check doesn't succeed within [`PATIENCE`].
#[track_caller]
pub fn eventually(what: &str, done: impl FnMut() -> bool) {
    assert!(is_within(PATIENCE, done), "not within {PATIENCE:?}: {what}");
}

/// Repeats a check until it succeeds. Returns `false` if it doesn't succeed within `max`.
pub fn is_within(max: Duration, mut done: impl FnMut() -> bool) -> bool {
    let began = Instant::now();
    while !done() {
        if began.elapsed() >= max {
            return false;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    true
}

/// Waits until exactly `count` clients are blocked.
///
/// # Panics
/// If the number is still different after [`PATIENCE`].
#[track_caller]
pub fn wait_until_blocked(client: &mut Client, count: usize) {
    let began = Instant::now();
    let line = format!("blocked_clients:{count}\r\n");
    while !client.call("INFO clients").text().contains(&line) {
        assert!(began.elapsed() < PATIENCE, "not {count} blocked");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Sends `PING` from one client after the other until a client gets a reply. Returns this client's
/// index. A client whose worker is busy gets no reply within `within`. The last client waits for up
/// to [`PATIENCE`].
///
/// # Panics
/// If even the last client gets no reply within [`PATIENCE`].
#[track_caller]
pub fn first_served(clients: &mut [Client], within: Duration) -> usize {
    let last = clients.len() - 1;
    let served = clients.iter_mut().enumerate().position(|(number, client)| {
        client.send(&["PING"]);
        client.set_read_timeout(if number < last { within } else { PATIENCE });
        client.try_receive().is_ok()
    });
    let number = served.expect("the last client gets a reply");
    clients[number].set_read_timeout(PATIENCE);
    number
}

/// Sends a blocking command on a new connection. Waits until `count` clients are blocked, including
/// this one. Returns the new client.
#[track_caller]
#[must_use]
pub fn waiting(server: &Server, words: &str, count: usize) -> Client {
    let mut client = server.connect();
    client.set_read_timeout(PATIENCE);
    client.send(&words.split(' ').collect::<Vec<_>>());
    wait_until_blocked(&mut server.connect(), count);
    client
}
