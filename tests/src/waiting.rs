//! Scenes with blocked clients, played on every kind of server and on redis-server, so that they
//! are true of it.

use std::time::{Duration, Instant};

use crate::{Backend, Client, Server};

/// Maximum wait for something that must happen.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Starts a Pantala of each kind: on each backend, in each execution mode.
#[must_use]
pub fn pantalas() -> Vec<Server> {
    let executions = ["inline", "owner"];
    let args = |execution| ["--workers", "3", "--shards", "12", "--execution", execution];
    let start = |&backend| executions.map(|execution| Server::pantala(backend, &args(execution)));
    Backend::all().iter().flat_map(start).collect()
}

/// Plays a scene on every kind of server.
pub fn play(scene: impl Fn(&Server)) {
    for mut server in pantalas() {
        scene(&server);
        server.assert_sound();
    }
    if let Some(judge) = Server::redis(&[]) {
        scene(&judge);
    }
}

/// Plays a scene on all kinds of servers at the same time: for scenes that wait more than they
/// work.
///
/// # Panics
/// If a scene panics.
pub fn play_together(scene: impl Fn(&Server) + Sync) {
    let judge = Server::redis(&[]);
    let mut servers = pantalas();
    std::thread::scope(|scope| {
        for server in servers.iter().chain(&judge) {
            scope.spawn(|| scene(server));
        }
    });
    servers.iter_mut().for_each(Server::assert_sound);
}

/// Repeats a check until it succeeds.
///
/// # Panics
/// If that takes longer than [`PATIENCE`].
#[track_caller]
pub fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Waits until this many clients are blocked.
///
/// # Panics
/// If that takes longer than [`PATIENCE`].
#[track_caller]
pub fn wait_until_blocked(client: &mut Client, count: usize) {
    let began = Instant::now();
    let line = format!("blocked_clients:{count}\r\n");
    while !client.call("INFO clients").text().contains(&line) {
        assert!(began.elapsed() < PATIENCE, "not {count} blocked");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Returns which of these clients gets its reply first, while the worker of some stands still: each
/// but the last is given `within`.
///
/// # Panics
/// If even the last gets none within [`PATIENCE`].
#[track_caller]
pub fn first_served(clients: &mut [Client], within: Duration) -> usize {
    let last = clients.len() - 1;
    let served = clients.iter_mut().enumerate().position(|(number, client)| {
        client.send(&["PING"]);
        client.set_read_timeout(if number < last { within } else { PATIENCE });
        client.try_receive().is_ok()
    });
    let number = served.expect("the last one waits for its answer");
    clients[number].set_read_timeout(PATIENCE);
    number
}

/// Returns a client that is blocked by this command, as number `count` of the blocked ones.
#[track_caller]
#[must_use]
pub fn waiting(server: &Server, words: &str, count: usize) -> Client {
    let mut client = server.connect();
    client.set_read_timeout(PATIENCE);
    client.send(&words.split(' ').collect::<Vec<_>>());
    wait_until_blocked(&mut server.connect(), count);
    client
}
