//! Tests of the search: short histories with a known verdict, and random histories compared with a
//! brute-force search.

use super::*;
use crate::history::{Command, Operation, Script};
use crate::{Random, Reply};

fn event(client: usize, times: (u64, u64), operation: Operation, reply: Reply) -> Event {
    Event { client, operation, reply, called_ns: times.0, returned_ns: times.1 }
}

fn set(client: usize, times: (u64, u64), key: Key, value: &str) -> Event {
    event(client, times, Operation::One(Command::Set(key, value.into())), Reply::ok())
}

fn get(client: usize, times: (u64, u64), key: Key, value: Option<&str>) -> Event {
    event(client, times, Operation::One(Command::Get(key)), value.map_or(Reply::Null, Reply::bulk))
}

fn mget(client: usize, times: (u64, u64), values: [Option<&str>; 2]) -> Event {
    let reply = Reply::Array(values.iter().map(|value| value.map_or(Reply::Null, Reply::bulk)).collect());
    event(client, times, Operation::One(Command::Mget(vec![0, 1])), reply)
}

fn mset(client: usize, times: (u64, u64), value: &str) -> Event {
    let pairs = vec![(0, value.to_owned()), (1, value.to_owned())];
    event(client, times, Operation::One(Command::Mset(pairs)), Reply::ok())
}

fn is_explained(events: &[Event]) -> bool {
    let [of_keys, of_connections] = [Scope::Key, Scope::Connection].map(|scope| check(events, scope));
    assert!(of_keys != Verdict::Undecided && of_connections != Verdict::Undecided);
    assert!(of_keys == Verdict::Explained || of_connections != Verdict::Explained, "order per key is weaker");
    of_connections == Verdict::Explained
}

#[test]
fn reads_see_the_last_write_and_nothing_older() {
    let write = set(0, (0, 10), 0, "new");
    assert!(is_explained(&[write.clone(), get(1, (5, 15), 0, Some("new"))]));
    assert!(is_explained(&[write.clone(), get(1, (5, 15), 0, None)]));
    assert!(!is_explained(&[write.clone(), get(1, (11, 15), 0, None)]), "stale");
    assert!(!is_explained(&[write.clone(), get(1, (5, 15), 0, Some("other"))]), "never written");
    // Reading the new value and then the old one is a violation.
    let reads = [get(1, (1, 2), 0, Some("new")), get(2, (3, 4), 0, None)];
    assert!(!is_explained(&[&[write], reads.as_slice()].concat()));
}

#[test]
fn several_keys_change_at_one_moment() {
    let write = mset(0, (0, 10), "new");
    for (values, possible) in [([None, None], true), ([Some("new"); 2], true), ([Some("new"), None], false)] {
        assert_eq!(is_explained(&[write.clone(), mget(1, (1, 9), values)]), possible, "{values:?}");
    }
}

#[test]
fn the_order_of_a_connection_covers_all_its_keys() {
    // One client sends both writes at once. Another client sees the second write without the first.
    let writes = [set(0, (0, 10), 0, "a"), set(0, (0, 10), 1, "b")];
    let reads = [get(1, (1, 2), 1, Some("b")), get(1, (3, 4), 0, None)];
    let events = [writes, reads].concat();
    assert_eq!(check(&events, Scope::Key), Verdict::Explained);
    assert!(matches!(check(&events, Scope::Connection), Verdict::Violation(_)));
}

#[test]
fn changed_watched_keys_abort_the_transaction() {
    let watch = event(0, (0, 1), Operation::Watch(vec![0]), Reply::ok());
    let exec = |reply| event(0, (4, 5), Operation::Exec(vec![Command::Set(1, "x".into())]), reply);
    let (refused, done) = (Reply::Null, Reply::Array(vec![Reply::ok()]));
    for (write, reply, possible) in [
        (Some((2, 3)), refused.clone(), true),
        (Some((2, 3)), done.clone(), false),
        (Some((0, 9)), refused.clone(), true),
        (Some((0, 9)), done.clone(), true),
        (None, done, true),
        (None, refused, false),
    ] {
        let mut events = vec![watch.clone(), exec(reply)];
        events.extend(write.map(|times| set(1, times, 0, "y")));
        assert_eq!(is_explained(&events), possible, "{events:?}");
    }
}

#[test]
fn blocked_clients_get_each_element_once() {
    let pop = |client, times, reply| event(client, times, Operation::BlockingPop(vec![0, 1]), reply);
    let got = |key: &str, element: &str| Reply::Array(vec![Reply::bulk(key), Reply::bulk(element)]);
    let push = event(0, (5, 6), Operation::One(Command::Push(1, "e".into())), Reply::Integer(1));
    let (early, late) = (pop(1, (0, 9), got("window1:1", "e")), pop(2, (0, 4), Reply::Null));
    assert!(is_explained(&[push.clone(), early.clone(), late]));
    assert!(!is_explained(&[push.clone(), early, pop(2, (0, 9), got("window1:1", "e"))]), "twice");
    assert!(!is_explained(&[push.clone(), pop(1, (7, 9), Reply::Null)]), "not served");
    assert!(!is_explained(&[push, pop(1, (0, 9), got("window1:0", "e"))]), "from another key");
    // A move pops from one list and pushes to the other.
    let moved = event(1, (0, 9), Operation::BlockingMove(0, 1), Reply::bulk("m"));
    let push = event(0, (1, 2), Operation::One(Command::Push(0, "m".into())), Reply::Integer(1));
    let range = |items: &[&str]| {
        event(2, (10, 11), Operation::One(Command::Range(1)), Reply::Array(items.iter().map(Reply::bulk).collect()))
    };
    assert!(is_explained(&[moved.clone(), push.clone(), range(&["m"])]));
    assert!(!is_explained(&[moved, push, range(&[])]));
}

#[test]
fn keys_exist_until_they_expire() {
    let one = |client, times, command, reply| event(client, times, Operation::One(command), reply);
    let expire = one(0, (2, 3), Command::Expire(0, 7), Reply::Integer(1));
    let over = event(9, (10, 20), Operation::Expires(0, 7), Reply::Null);
    let begun = [set(0, (0, 1), 0, "v"), expire, over];
    let is_explained_with = |more: &[Event]| is_explained(&[begun.as_slice(), more].concat());
    for (times, value, possible) in [
        ((5, 6), Some("v"), true),
        ((5, 6), None, false),
        ((12, 13), Some("v"), true),
        ((12, 13), None, true),
        ((21, 22), Some("v"), false),
        ((21, 22), None, true),
    ] {
        assert_eq!(is_explained_with(&[get(1, times, 0, value)]), possible, "{times:?} {value:?}");
    }
    // An expired key doesn't exist again.
    assert!(!is_explained_with(&[get(1, (12, 13), 0, None), get(2, (14, 15), 0, Some("v"))]));
    // RENAME moves a TTL to the new key, changing the value keeps the TTL, and deleting the key
    // removes it.
    let renamed = one(1, (4, 5), Command::Rename(0, 1), Reply::ok());
    assert!(is_explained_with(&[renamed.clone(), get(1, (21, 22), 1, None)]));
    assert!(!is_explained_with(&[renamed, get(1, (21, 22), 1, Some("v"))]));
    let longer = one(1, (4, 5), Command::Append(0, "w".into()), Reply::Integer(2));
    assert!(is_explained_with(&[longer.clone(), get(1, (21, 22), 0, None)]));
    assert!(!is_explained_with(&[longer, get(1, (21, 22), 0, Some("vw"))]));
    assert!(is_explained_with(&[set(1, (4, 5), 0, "w"), get(1, (21, 22), 0, Some("w"))]));
    assert!(!is_explained_with(&[set(1, (4, 5), 0, "w"), get(1, (21, 22), 0, None)]));
    // An expiry invalidates watches.
    let watch = event(1, (4, 5), Operation::Watch(vec![0]), Reply::ok());
    let exec = |times, reply| event(1, times, Operation::Exec(vec![Command::Ping]), reply);
    let done = Reply::Array(vec![Reply::Simple("PONG".into())]);
    assert!(!is_explained_with(&[watch.clone(), exec((6, 7), Reply::Null)]));
    assert!(is_explained_with(&[watch.clone(), exec((21, 22), Reply::Null)]));
    assert!(!is_explained_with(&[watch, exec((21, 22), done)]));
}

#[test]
fn databases_are_swapped_and_flushed_at_one_moment() {
    let swap = |client, times| event(client, times, Operation::One(Command::Swap(2)), Reply::ok());
    let write = mset(0, (0, 1), "v");
    for (values, possible) in [([None, None], true), ([Some("v"); 2], true), ([Some("v"), None], false)] {
        assert_eq!(is_explained(&[write.clone(), swap(0, (2, 10)), mget(1, (3, 9), values)]), possible, "{values:?}");
    }
    // The databases are swapped twice.
    let twice = [write.clone(), swap(0, (2, 3)), swap(0, (6, 7))];
    let seen = |times, value| get(1, times, 0, value);
    assert!(is_explained(&[&twice, [seen((4, 5), None), seen((8, 9), Some("v"))].as_slice()].concat()));
    assert!(!is_explained(&[&twice, [seen((4, 5), Some("v"))].as_slice()].concat()));
    // A flush empties both databases.
    let flush = event(0, (4, 5), Operation::One(Command::Flush(2)), Reply::ok());
    let emptied = [write, swap(0, (2, 3)), flush, swap(0, (6, 7))];
    assert!(is_explained(&[&emptied, [seen((8, 9), None)].as_slice()].concat()));
    assert!(!is_explained(&[&emptied, [seen((8, 9), Some("v"))].as_slice()].concat()));
    // A swap invalidates watches of keys that exist in either database, and no other watches.
    for (written, refused) in [(true, true), (false, false)] {
        let mut events = vec![
            event(1, (2, 3), Operation::Watch(vec![0]), Reply::ok()),
            swap(0, (4, 5)),
            event(1, (6, 7), Operation::Exec(vec![]), if refused { Reply::Null } else { Reply::Array(vec![]) }),
        ];
        events.extend(written.then(|| set(0, (0, 1), 0, "v")));
        events.sort_by_key(|event| event.called_ns);
        assert!(is_explained(&events), "{events:?}");
    }
}

#[test]
fn nothing_blocks_in_a_transaction() {
    let exec = |command, reply| {
        let push = event(0, (0, 1), Operation::One(Command::Push(1, "e".into())), Reply::Integer(1));
        is_explained(&[push, event(1, (2, 3), Operation::Exec(vec![command]), Reply::Array(vec![reply]))])
    };
    let popped = |name: &str| Reply::Array(vec![Reply::bulk(name), Reply::bulk("e")]);
    assert!(exec(Command::PopFirst(vec![0, 1]), popped(":1")));
    assert!(!exec(Command::PopFirst(vec![0, 1]), popped(":0")));
    assert!(!exec(Command::PopFirst(vec![0, 1]), Reply::Null));
    assert!(exec(Command::PopFirst(vec![0]), Reply::Null));
    assert!(exec(Command::Move(1, 0), Reply::bulk("e")));
    assert!(exec(Command::Move(1, 1), Reply::bulk("e")));
    assert!(exec(Command::Move(0, 1), Reply::Null));
    assert!(!exec(Command::Move(1, 0), Reply::Null));
}

/// Searches without optimization: tries every order of the events, and checks it against the times
/// and the model.
fn brute_force(events: &[Event], left: &mut Vec<usize>, state: &State) -> bool {
    if left.is_empty() {
        return true;
    }
    let first_returned_ns = left.iter().map(|index| events[*index].returned_ns).min().unwrap_or(0);
    (0..left.len()).any(|at| {
        let index = left[at];
        let is_first_of_client = left[..at].iter().all(|other| events[*other].client != events[index].client);
        if !is_first_of_client || events[index].called_ns > first_returned_ns {
            return false;
        }
        let Some(after) = state.after(&events[index]) else { return false };
        left.remove(at);
        let found = brute_force(events, left, &after);
        left.insert(at, index);
        found
    })
}

/// Compares both searches on random histories. Some of them are linearizable, some are not.
#[test]
fn the_search_agrees_with_brute_force() {
    let mut random = Random::from_seed(Random::seed("the_search_agrees_with_brute_force"));
    let (mut explained, mut violated) = (0, 0);
    for _ in 0..2000 {
        let events = at_random(&mut random);
        let mut all: Vec<usize> = (0..events.len()).collect();
        let wanted = brute_force(&events, &mut all, &State::default());
        assert_eq!(check(&events, Scope::Connection) == Verdict::Explained, wanted, "{events:#?}");
        if wanted {
            assert_eq!(check(&events, Scope::Key), Verdict::Explained, "{events:#?}");
            explained += 1;
        } else {
            violated += 1;
        }
    }
    assert!(explained > 50 && violated > 50, "{explained} explained, {violated} violated: too few to prove anything");
}

/// Returns a history of three clients with three operations each, whose times overlap, and the
/// expiries of their TTLs.
fn at_random(random: &mut Random) -> Vec<Event> {
    let (mut events, mut expiries) = (Vec::new(), Vec::new());
    for client in 0..3 {
        let mut now_ns = random.below(4) as u64;
        for number in 0..3 {
            let (called_ns, took_ns) = (now_ns, 1 + random.below(8) as u64);
            now_ns += took_ns + 1;
            let value = format!("{client}{number}");
            let key = random.below(2);
            let seen = |random: &mut Random| match random.below(3) {
                0 => Reply::Null,
                _ => Reply::bulk(format!("{}{}", random.below(3), random.below(3))),
            };
            let (operation, reply) = match random.below(8) {
                7 => (Operation::One(Command::Swap(2)), Reply::ok()),
                6 if expiries.len() < 2 => {
                    let (set, over_ns) = (expiries.len() as u8, called_ns + random.below(9) as u64);
                    let over = Operation::Expires(key, set);
                    expiries.push(event(3 + expiries.len(), (over_ns, over_ns + took_ns), over, Reply::Null));
                    (Operation::One(Command::Expire(key, set)), Reply::Integer(1))
                }
                5 => {
                    // The transaction leaves no value, and deletes the former one.
                    let set_and_del = vec![Command::Set(key, value), Command::Del(vec![key])];
                    (Operation::Exec(set_and_del), Reply::Array(vec![Reply::ok(), Reply::Integer(1)]))
                }
                0 | 1 => (Operation::One(Command::Set(key, value)), Reply::ok()),
                2 => (Operation::One(Command::Mset(vec![(0, value.clone()), (1, value)])), Reply::ok()),
                3 => (Operation::One(Command::Get(key)), seen(random)),
                _ => {
                    let read = vec![Command::Get(key), Command::Set(key, value)];
                    (
                        Operation::One(Command::Script(Script::Declared, read)),
                        Reply::Array(vec![seen(random), Reply::ok()]),
                    )
                }
            };
            events.push(Event { client, operation, reply, called_ns, returned_ns: called_ns + took_ns });
        }
    }
    events.append(&mut expiries);
    events
}
