//! Runs a window: what each client is to do, all at the same time, with the times of it.

use std::sync::Barrier;
use std::time::Instant;

use super::{Event, Key, Operation};
use crate::client::encode;
use crate::{Client, Reply};

/// The names of a window's keys: nobody has used them before.
#[must_use]
pub fn names(window: u64, keys: usize) -> Vec<String> {
    (0..keys).map(|key| format!("window{window}:{key}")).collect()
}

/// The key of a name.
///
/// # Panics
/// When it is no window's.
#[must_use]
pub fn key_of(name: &[u8]) -> Key {
    let text = String::from_utf8_lossy(name);
    text.rsplit(':').next().and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("a key named {text}"))
}

/// How clients send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sending {
    /// The next operation when the last is answered.
    OneByOne,
    /// All at once.
    Pipelined,
}

/// Runs what is planned for each client, and gives what happened, in order of the clients.
///
/// # Panics
/// When the server closes a connection or is silent.
pub fn run(clients: &mut [Client], names: &[String], plans: &[Vec<Operation>], sending: Sending) -> Vec<Event> {
    let (barrier, began) = (Barrier::new(clients.len()), Instant::now());
    let now_ns = || began.elapsed().as_nanos() as u64;
    std::thread::scope(|scope| {
        let threads: Vec<_> = clients
            .iter_mut()
            .zip(plans)
            .enumerate()
            .map(|(number, (client, plan))| {
                let barrier = &barrier;
                scope.spawn(move || {
                    let requests: Vec<(Vec<u8>, usize)> = plan
                        .iter()
                        .map(|operation| {
                            let requests = operation.requests(names);
                            (requests.iter().flat_map(|words| encode(words)).collect(), requests.len())
                        })
                        .collect();
                    barrier.wait();
                    let mut called_ns = now_ns();
                    if sending == Sending::Pipelined {
                        client.send_raw(&requests.iter().flat_map(|(bytes, _)| bytes.clone()).collect::<Vec<u8>>());
                    }
                    let mut events = Vec::new();
                    for (operation, (bytes, replies)) in plan.iter().zip(&requests) {
                        if sending == Sending::OneByOne {
                            called_ns = now_ns();
                            client.send_raw(bytes);
                        }
                        let reply = (0..*replies).map(|_| client.receive()).last().expect("an operation has a reply");
                        let (operation, returned_ns) = (operation.clone(), now_ns());
                        events.push(Event { client: number, operation, reply, called_ns, returned_ns });
                    }
                    events
                })
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("a client's thread ends")).collect()
    })
}

/// A reply for a reader.
#[must_use]
pub fn readable(reply: &Reply) -> String {
    match reply {
        Reply::Null => "nil".to_owned(),
        Reply::Array(items) => format!("[{}]", items.iter().map(readable).collect::<Vec<_>>().join(", ")),
        other => other.text(),
    }
}
