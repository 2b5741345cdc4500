//! Runs one window (see the parent module): all clients execute their plans at the same time.
//! Records each operation as an event, with its reply and the times of request and reply.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use super::operation::EXPIRE_MS;
use super::{Event, Key, Operation};
use crate::client::encode;
use crate::{Client, Reply};

/// Returns the names of a window's keys. No other window uses these names.
#[must_use]
pub fn names(window: u64, keys: usize) -> Vec<String> {
    (0..keys).map(|key| format!("window{window}:{key}")).collect()
}

/// Returns the model's name of a key, which doesn't contain the window.
#[must_use]
pub fn model_name(key: Key) -> String {
    format!(":{key}")
}

/// Replaces the names of keys in a reply by the model's names. Only names contain a colon.
fn in_model(reply: Reply) -> Reply {
    match reply {
        Reply::Bulk(bytes) if bytes.contains(&b':') => Reply::bulk(model_name(key_of(&bytes))),
        Reply::Array(items) => Reply::Array(items.into_iter().map(in_model).collect()),
        other => other,
    }
}

/// Returns the key with this name.
///
/// # Panics
/// If the name belongs to no window.
#[must_use]
pub fn key_of(name: &[u8]) -> Key {
    let text = String::from_utf8_lossy(name);
    text.rsplit(':').next().and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("not a key: {text}"))
}

/// Minimum and maximum time from `PEXPIRE` to the expiry, measured with the test's clock. The two
/// clocks may differ by `CLOCKS_MS`, because the server's clock has a resolution of 1 ms.
const EXPIRE_MIN: Duration = Duration::from_millis(EXPIRE_MS - CLOCKS_MS);
const EXPIRE_MAX: Duration = Duration::from_millis(EXPIRE_MS + CLOCKS_MS);
const CLOCKS_MS: u64 = 2;

/// Time by which an expiry may be late if the host interrupts the server's worker after the worker
/// has read the clock. See [`delay_expiries`].
const INTERRUPTED_MAX: Duration = Duration::from_millis(30);

/// When clients send their operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sending {
    /// Each operation after the reply to the previous one.
    OneByOne,
    /// All operations at once.
    Pipelined,
}

/// Runs each client's plan. Returns the events in order of the clients, followed by the expiries of
/// TTLs.
///
/// # Panics
/// If the server closes a connection or is silent.
pub fn run(clients: &mut [Client], names: &[String], plans: &[Vec<Operation>], sending: Sending) -> Vec<Event> {
    let (barrier, began) = (Barrier::new(clients.len()), Instant::now());
    let now_ns = || began.elapsed().as_nanos() as u64;
    let mut events: Vec<Event> = std::thread::scope(|scope| {
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
                        let (operation, reply, returned_ns) = (operation.clone(), in_model(reply), now_ns());
                        events.push(Event { client: number, operation, reply, called_ns, returned_ns });
                    }
                    events
                })
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("a client's thread ends")).collect()
    });
    events.extend(expiries(&events, clients.len()));
    events
}

/// Returns an event for the expiry of each TTL that was set. In the history, the expiry is like a
/// deletion of the key by another client. A TTL expires between (request sent + TTL) and (reply
/// received + TTL). The difference of the clocks widens this interval.
fn expiries(events: &[Event], clients: usize) -> Vec<Event> {
    let set =
        events.iter().flat_map(|event| event.operation.expiries(&event.reply).into_iter().map(move |set| (event, set)));
    set.enumerate()
        .map(|(at, (event, (key, number)))| Event {
            client: clients + at,
            operation: Operation::Expires(key, number),
            reply: Reply::Null,
            called_ns: event.called_ns + EXPIRE_MIN.as_nanos() as u64,
            returned_ns: event.returned_ns + EXPIRE_MAX.as_nanos() as u64,
        })
        .collect()
}

/// Allows TTLs in a history to expire later. A worker reads the clock when a turn starts. If the
/// host interrupts the worker after that, the worker may find a key alive after the key's deadline.
pub fn delay_expiries(events: &mut [Event]) {
    for event in events.iter_mut().filter(|event| matches!(event.operation, Operation::Expires(..))) {
        event.returned_ns += INTERRUPTED_MAX.as_nanos() as u64;
    }
}

/// Formats a reply for a report.
#[must_use]
pub fn readable(reply: &Reply) -> String {
    match reply {
        Reply::Null => "nil".to_owned(),
        Reply::Array(items) => format!("[{}]", items.iter().map(readable).collect::<Vec<_>>().join(", ")),
        other => other.text(),
    }
}
