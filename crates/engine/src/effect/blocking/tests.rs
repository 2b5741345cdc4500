//! Tests of the queues of one shard. `tests/tests/blocking.rs` tests serving on whole servers.

use pantala_resp::{ArgRange, Args, Version};

use super::*;
use crate::clients::waiter::Origin;
use crate::command::{Command, KeyPlace, Permit, SessionView};

const SHARD: u32 = 3;

static COMMAND: Command = Command { name: "wait", full_name: "wait", ..Command::BLANK };

/// Returns a waiter for keys of this shard and for a key of another shard.
fn waiter(ticket: u64, keys: &[&str], wakes_on: WakesOn) -> Arc<Waiter> {
    let (mut bytes, mut ranges) = (Vec::new(), Vec::new());
    for key in keys.iter().chain(&["elsewhere"]) {
        ranges.push(ArgRange::new(bytes.len(), key.len()));
        bytes.extend_from_slice(key.as_bytes());
    }
    let session = SessionView {
        client: 1,
        db: 2,
        version: Version::Resp2,
        no_touch: false,
        of_primary: false,
        in_script: false,
        permit: Permit::default(),
    };
    let origin = Origin { ticket, worker: 0, connection: ticket, session };
    let place = |key: &[u8]| KeyPlace { hash: 0, shard: if key == b"elsewhere" { SHARD + 1 } else { SHARD } };
    let block = Block::on(0..ranges.len(), wakes_on, 0);
    Arc::new(Waiter::new(&origin, &COMMAND, &Args::new(&bytes, &ranges), &block, &place))
}

fn key(name: &str) -> ReadyKey {
    (2, Arc::from(name.as_bytes()))
}

/// Returns the tickets of the waiters that a key of a kind would serve, in order.
fn tickets(observers: &KeyObservers, name: &str, kind: Option<WakesOn>) -> Vec<u64> {
    let (mut tickets, mut from) = (Vec::new(), 0);
    while let Some(waiter) = observers.next(&key(name), from, kind) {
        tickets.push(waiter.ticket());
        from = waiter.ticket() + 1;
    }
    tickets
}

fn ready(observers: &mut KeyObservers) -> Vec<String> {
    std::iter::from_fn(|| observers.take_ready())
        .map(|(_, (db, name))| format!("{db}:{}", name.escape_ascii()))
        .collect()
}

#[test]
fn queues_serve_matching_waiters_in_ticket_order() {
    let mut observers = KeyObservers::default();
    let all = [
        waiter(5, &["a", "b"], WakesOn::List),
        waiter(6, &["a"], WakesOn::SortedSet),
        waiter(8, &["b", "a"], WakesOn::List),
        waiter(9, &["a"], WakesOn::AnyChange),
    ];
    for waiter in &all {
        observers.add(SHARD, waiter);
    }
    assert_eq!(tickets(&observers, "a", Some(WakesOn::List)), [5, 8, 9]);
    assert_eq!(tickets(&observers, "a", Some(WakesOn::SortedSet)), [6, 9]);
    assert_eq!(tickets(&observers, "a", Some(WakesOn::Stream)), [9]);
    assert_eq!(tickets(&observers, "a", None), [9], "a deleted key wakes only waiters for any change");
    assert_eq!(tickets(&observers, "b", Some(WakesOn::List)), [5, 8]);
    assert_eq!(tickets(&observers, "elsewhere", Some(WakesOn::List)), [0; 0], "another shard owns its queue");
    observers.set_stopped(&key("a"), true);
    assert_eq!(tickets(&observers, "a", Some(WakesOn::List)), [0; 0]);
    observers.set_stopped(&key("a"), false);
    observers.remove(SHARD, &all[0]);
    assert!(!all[0].is_queued() && all[2].is_queued());
    assert_eq!(tickets(&observers, "a", Some(WakesOn::List)), [8, 9]);
    // A second removal changes nothing.
    observers.remove(SHARD, &all[0]);
    for waiter in &all[1..] {
        assert!(!observers.is_empty());
        observers.remove(SHARD, waiter);
    }
    assert!(observers.is_empty() && observers.by_database.is_empty(), "no queue is left");
}

#[test]
fn a_key_named_twice_has_one_queue_entry() {
    let mut observers = KeyObservers::default();
    let waiter = waiter(1, &["a", "b", "a"], WakesOn::List);
    observers.add(SHARD, &waiter);
    assert_eq!(observers.entries, 2);
    assert_eq!(waiter.shards().as_slice(), [SHARD, SHARD + 1]);
    observers.remove(SHARD, &waiter);
    assert!(observers.is_empty());
}

#[test]
fn keys_with_waiters_become_ready_once() {
    let mut observers = KeyObservers::default();
    observers.note(2, b"a");
    assert!(!observers.has_ready(), "there are no waiters");
    let (list, any) = (waiter(1, &["a", "b"], WakesOn::List), waiter(2, &["c"], WakesOn::AnyChange));
    observers.add(SHARD, &list);
    observers.add(SHARD, &any);
    for (db, name) in [(2, "a"), (2, "x"), (1, "a"), (2, "b"), (2, "a")] {
        observers.note(db, name.as_bytes());
    }
    assert_eq!(ready(&mut observers), ["2:a", "2:b"]);
    observers.note(2, b"a");
    assert_eq!(ready(&mut observers), ["2:a"], "again after it was taken");
    observers.note_deletions();
    assert_eq!(ready(&mut observers), ["2:c"]);
    observers.note_all(1);
    assert!(!observers.has_ready());
    observers.note_all(2);
    let mut all = ready(&mut observers);
    all.sort();
    assert_eq!(all, ["2:a", "2:b", "2:c"]);
}

#[test]
fn one_claim_wins() {
    let waiter = waiter(1, &["a"], WakesOn::List);
    let won: usize = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| usize::from(waiter.claim()))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!(won, 1);
    assert!(waiter.is_claimed());
}
