//! Connections that belong to a certain worker.

use crate::{Client, Server};

/// Maximum number of connections that are opened until one belongs to the wanted worker.
const TRIES: usize = 500;

/// Returns the number of connections of each worker.
fn connections(control: &mut Client) -> Vec<usize> {
    let text = control.call("INFO workers").text();
    let count_of = |line: &str| {
        let (name, fields) = line.split_once(':')?;
        let count = fields.strip_prefix("connections=")?.split(',').next()?;
        name.strip_prefix("worker")?.parse::<usize>().ok().and(count.parse().ok())
    };
    text.lines().filter_map(count_of).collect()
}

/// Opens connections to a server until one belongs to the worker `worker`, and returns that one.
/// No other client may connect or disconnect meanwhile.
///
/// # Panics
/// If no connection belongs to that worker.
#[track_caller]
#[must_use]
pub fn connect_to_worker(server: &Server, worker: usize) -> Client {
    let mut control = server.connect();
    control.call("PING");
    // The other connections stay open until the end, so that the counts only grow.
    let mut others = Vec::new();
    for _ in 0..TRIES {
        let before = connections(&mut control);
        let mut client = server.connect();
        client.call("PING");
        let after = connections(&mut control);
        if after[worker] == before[worker] + 1 {
            return client;
        }
        others.push(client);
    }
    panic!("none of {TRIES} connections belongs to worker {worker}");
}
