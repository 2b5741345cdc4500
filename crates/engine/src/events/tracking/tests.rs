use std::sync::Arc;

use pantala_base::Random;

use super::keys::TrackedKeys;
use super::*;
use crate::clients::client::{Client, Endpoint};
use crate::clients::listener::Listener;

fn reader(id: u64) -> Arc<Reader> {
    let end = || Endpoint::Unix(String::new());
    Arc::new(Reader::new(&Arc::new(Client::new(id, Listener::default(), 0, end(), end(), 0))))
}

/// Keys, each with the clients that receive its invalidation.
type ByKey = Vec<(String, Vec<u64>)>;

/// Returns the invalidated keys, each with the clients that receive the invalidation, sorted by ID.
/// Also returns the changed keys for readers of prefixes, each with the client that changed it.
fn take_invalidated(keys: &mut TrackedKeys) -> (ByKey, Vec<(String, u64)>) {
    let Some(pending) = keys.take_pending() else { return Default::default() };
    let text = |name: &KeyName| String::from_utf8_lossy(name).into_owned();
    let mut by_key = Vec::new();
    for invalidated in pending.invalidated {
        let (name, client, mut clients) = (text(&invalidated.name), invalidated.client, Vec::new());
        invalidated.for_each_reader(|reader| {
            if reader.wants_invalidations_by(client) {
                clients.push(reader.client.id);
            }
        });
        clients.sort_unstable();
        by_key.push((name, clients));
    }
    (by_key, pending.changed.iter().map(|(name, origin)| (text(name), *origin)).collect())
}

#[test]
fn a_change_invalidates_each_reader_once() {
    let (one, two) = (reader(1), reader(2));
    let mut keys = TrackedKeys::default();
    for reader in [&one, &two, &one] {
        keys.read(7, b"a", reader);
    }
    // Tracks another key with the same hash.
    keys.read(7, b"b", &one);
    assert_eq!((keys.len(), keys.readers()), (2, 3));
    keys.changed(7, b"a", false);
    keys.changed(7, b"a", false);
    keys.changed(7, b"c", false);
    assert_eq!(take_invalidated(&mut keys).0, [("a".to_owned(), vec![1, 2])]);
    assert_eq!((keys.len(), keys.readers()), (1, 1));
    assert!(!keys.has_pending());
}

#[test]
fn noloop_suppresses_own_changes_but_not_expiry() {
    let (one, two) = (reader(1), reader(2));
    one.no_loop.store(true, Relaxed);
    let mut keys = TrackedKeys::default();
    let read = |keys: &mut TrackedKeys| [&one, &two].map(|reader| keys.read(7, b"a", reader));
    read(&mut keys);
    keys.changer.client = 1;
    keys.changed(7, b"a", true);
    read(&mut keys);
    keys.expired(7, b"a", true);
    let (by_key, changed) = take_invalidated(&mut keys);
    assert_eq!(by_key, [("a".to_owned(), vec![2]), ("a".to_owned(), vec![2])]);
    // For readers of prefixes, the last change is an expiry, which has no client.
    assert_eq!(changed, [("a".to_owned(), NOBODY)]);
    // All readers receive the invalidation of a key that was evicted from a full table.
    read(&mut keys);
    assert!(keys.evict(&mut Random::from_seed(1)));
    assert_eq!(take_invalidated(&mut keys).0, [("a".to_owned(), vec![1, 2])]);
    assert!(!keys.evict(&mut Random::from_seed(1)));
    // A script's changes count as changes by its client. For readers of prefixes they do not.
    read(&mut keys);
    keys.changer.in_script = true;
    keys.changed(7, b"a", true);
    assert_eq!(take_invalidated(&mut keys), (vec![("a".to_owned(), vec![2])], vec![("a".to_owned(), NOBODY)]));
}

/// A former bug: a script changed a key, read it and changed it again. The rollback dropped only
/// the last of the two invalidations, and tracked the key for the script's client instead of the
/// former readers.
#[test]
fn a_rollback_drops_all_invalidations_of_its_changes() {
    let (former, script) = (reader(1), reader(2));
    for is_tracked in [true, false] {
        let mut keys = TrackedKeys::default();
        // Another client's change, whose invalidation has not been sent yet.
        keys.read(7, b"a", &script);
        keys.changed(7, b"a", false);
        if is_tracked {
            keys.read(7, b"a", &former);
        }
        let held = keys.hold(7, b"a");
        for _ in 0..2 {
            keys.changed(7, b"a", false);
            keys.read(7, b"a", &script);
        }
        keys.changed(7, b"a", false);
        keys.restore(7, b"a", held);
        assert_eq!(take_invalidated(&mut keys).0, [("a".to_owned(), vec![2])], "tracked: {is_tracked}");
        keys.changed(7, b"a", false);
        let expected = if is_tracked { vec![("a".to_owned(), vec![1])] } else { vec![] };
        assert_eq!(take_invalidated(&mut keys).0, expected);
    }
}

#[test]
fn readers_that_are_no_longer_live_are_removed_without_a_change() {
    let mut keys = TrackedKeys::default();
    let stays = reader(1);
    keys.read(7, b"a", &stays);
    for id in 2..10_000 {
        let temporary = reader(id);
        keys.read(7, b"a", &temporary);
        temporary.is_live.store(false, Relaxed);
        assert!(keys.readers() <= 65, "{} readers", keys.readers());
    }
    keys.changed(7, b"a", false);
    assert_eq!(take_invalidated(&mut keys).0, [("a".to_owned(), vec![1])]);
}

#[test]
fn all_of_many_readers_are_invalidated() {
    let mut keys = TrackedKeys::default();
    let readers: Vec<_> = (1..=1000).map(reader).collect();
    for _ in 0..2 {
        readers.iter().for_each(|reader| _ = keys.read(7, b"a", reader));
    }
    assert_eq!(keys.readers(), 1000);
    keys.changed(7, b"a", false);
    assert_eq!(take_invalidated(&mut keys).0, [("a".to_owned(), (1..=1000).collect::<Vec<_>>())]);
    assert_eq!(keys.readers(), 0);
}

#[test]
fn prefixes_get_lists_in_order() {
    let (all, own, quiet) = (reader(1), reader(2), reader(3));
    quiet.no_loop.store(true, Relaxed);
    let mut prefixes = Prefixes::default();
    prefixes.readers.insert(b"".as_slice().into(), vec![Arc::clone(&all)]);
    prefixes.readers.insert(b"b".as_slice().into(), vec![Arc::clone(&own), Arc::clone(&quiet)]);
    prefixes.readers.insert(b"x".as_slice().into(), vec![all]);
    let changed: BTreeMap<KeyName, u64> =
        [("bb", 3), ("a", 1), ("c", 9), ("ba", 2)].map(|(key, origin)| (key.as_bytes().into(), origin)).into();
    let mut lists = Vec::new();
    prefixes.invalidate(&changed, |reader, what| {
        let names = what.names().expect("keys").iter().map(|name| String::from_utf8_lossy(name).into_owned());
        lists.push(format!("{} {}", reader.client.id, names.collect::<Vec<_>>().join(" ")));
    });
    assert_eq!(lists, ["1 a ba bb c", "2 ba bb", "3 ba"]);
}
