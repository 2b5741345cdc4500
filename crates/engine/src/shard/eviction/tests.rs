//! Tests of the choice of shards to evict from. `tests/tests/eviction.rs` tests events and rejected
//! commands on whole servers.

use std::sync::Arc;

use super::*;
use crate::clients::client::{Client, Endpoint};
use crate::clients::listener::Listener;
use crate::command::Key;
use crate::events::tracking::Reader;
use crate::shard::keyspace::{Keyspace, Layout, WorkerPort};
use crate::store::db::{Change, Db, Expire, NewString, Silence};

const NOW_MS: i64 = 1_700_000_000_000;
const SHARDS: u32 = 4;
/// Initial number of keys in each shard.
const KEYS: u64 = 200;

fn keyspace(execution: Execution, homes: u32) -> Keyspace {
    let layout = Layout {
        shards: SHARDS,
        partitions: SHARDS,
        databases: 2,
        homes,
        workers: homes,
        execution,
        seed: 1,
        random_seed: 2,
    };
    let ports = (0..homes).map(|_| WorkerPort::new(Box::new(|| ()))).collect();
    let keyspace = Keyspace::new(layout, ports);
    keyspace.tuning.set_eviction_policy(EvictionPolicy::All(Rank::Random));
    keyspace.tuning.maxmemory_eviction_tenacity.store(100, Relaxed);
    keyspace
}

/// Adds keys to a shard.
fn fill(keyspace: &Keyspace, shard: u32, keys: u64, expire: Expire) {
    let mut ownership = keyspace.gate(shard).try_take().expect("it is free");
    let names = (0..).map(|number| format!("key:{number}"));
    let of_shard = names.filter(|name| keyspace.place(name.as_bytes()).shard == shard);
    for name in of_shard.take(keys as usize) {
        let key = Key { bytes: name.as_bytes(), place: keyspace.place(name.as_bytes()) };
        let mut db =
            Db::new(keyspace, keyspace.shard_stats(shard), keyspace.shard(&mut ownership), shard, 1, NOW_MS, true);
        db.set_string(&key, NewString::Bytes(&[b'v'; 100]), expire, Change::silent(Silence::Loaded)).expect("memory");
    }
    keyspace.meter(shard, keyspace.shard(&mut ownership), None);
    let freed = keyspace.gate(shard).free(ownership);
    assert!(matches!(freed, crate::shard::ownership::Freed::Free));
}

fn filled(execution: Execution, homes: u32) -> Keyspace {
    let keyspace = keyspace(execution, homes);
    (0..SHARDS).for_each(|shard| fill(&keyspace, shard, KEYS, Expire::Clear));
    keyspace
}

/// Sets the limit to a number of thousandths of the memory usage.
fn limit(keyspace: &Keyspace, permille: u64) {
    keyspace.limit_memory(0);
    keyspace.limit_memory(1);
    let bytes = keyspace.memory().used_bytes() * permille / 1000;
    keyspace.limit_memory(0);
    keyspace.limit_memory(bytes);
}

fn keys(keyspace: &Keyspace) -> Vec<u64> {
    (0..SHARDS).map(|shard| keyspace.shard_size(1, shard)).collect()
}

#[test]
fn nothing_is_evicted_within_the_limit_or_without_candidates() {
    let keyspace = filled(Execution::Inline, 1);
    let mut executor = Executor::new(&keyspace, 0);
    limit(&keyspace, 1000);
    assert_eq!(executor.evictor().make_room(&mut [], NOW_MS), Room::Enough);
    assert_eq!(keys(&keyspace), [KEYS; 4]);
    limit(&keyspace, 500);
    keyspace.tuning.set_eviction_policy(EvictionPolicy::Nothing);
    assert_eq!(executor.evictor().make_room(&mut [], NOW_MS), Room::None);
    // No key has a TTL.
    keyspace.tuning.set_eviction_policy(EvictionPolicy::Volatile(Rank::Lru));
    assert_eq!(executor.evictor().make_room(&mut [], NOW_MS), Room::None);
    assert_eq!(keys(&keyspace), [KEYS; 4]);
    fill(&keyspace, 2, KEYS, Expire::At(NOW_MS + 1000));
    assert_eq!(executor.evictor().make_room(&mut [], NOW_MS), Room::None);
    assert_eq!(keys(&keyspace), [KEYS, KEYS, 0, KEYS]);
}

#[test]
fn busy_shards_are_skipped() {
    let keyspace = filled(Execution::Inline, 1);
    let mut executor = Executor::new(&keyspace, 0);
    let mut held: Vec<Ownership> = (0..3).filter_map(|shard| executor.try_take(shard)).collect();
    limit(&keyspace, 850);
    assert_eq!(executor.evictor().make_room(&mut [], NOW_MS), Room::Enough);
    assert_eq!(keys(&keyspace)[..3], [KEYS; 3]);
    assert!(keys(&keyspace)[3] < KEYS);
    // All keys of the free shard were evicted. The keys of the held shards are evicted later, and
    // commands may run as long as usage does not rise.
    limit(&keyspace, 100);
    assert_eq!(executor.evictor().make_room(&mut [], NOW_MS), Room::Later);
    assert_eq!(keys(&keyspace), [KEYS, KEYS, KEYS, 0]);
    keyspace.memory().add_other(1);
    assert_eq!(executor.evictor().make_room(&mut [], NOW_MS), Room::None);
    keyspace.memory().add_other(-1);
    // While shards are busy, usage may exceed the limit by a quarter.
    limit(&keyspace, 850);
    assert_eq!(executor.evictor().make_room(&mut [], NOW_MS), Room::Later);
    keyspace.memory().add_other(keyspace.memory().limit_bytes() as i64 / 20);
    assert_eq!(executor.evictor().make_room(&mut [], NOW_MS), Room::Later);
    // Keys of held shards can be evicted.
    assert_eq!(executor.evictor().make_room(&mut held, NOW_MS), Room::Enough);
    assert!(keys(&keyspace).iter().sum::<u64>() < 5 * KEYS / 2);
    held.into_iter().for_each(|ownership| executor.free(ownership));
    assert!((0..SHARDS).all(|shard| executor.try_take(shard).map(|ownership| executor.free(ownership)).is_some()));
}

#[test]
fn shards_are_evicted_from_in_proportion_to_their_keys() {
    let keyspace = keyspace(Execution::Inline, 1);
    fill(&keyspace, 1, 5000, Expire::Clear);
    fill(&keyspace, 3, 100, Expire::Clear);
    let mut executor = Executor::new(&keyspace, 0);
    limit(&keyspace, 500);
    assert_eq!(executor.evictor().make_room(&mut [], NOW_MS), Room::Enough);
    let [_, many, _, few] = keys(&keyspace)[..] else { panic!("four shards") };
    assert!((1500..3500).contains(&many) && (20..80).contains(&few), "{many} and {few} left");
}

#[test]
fn homes_evict_their_shares() {
    let keyspace = filled(Execution::Owner, 2);
    let mut executors = [Executor::new(&keyspace, 0), Executor::new(&keyspace, 1)];
    limit(&keyspace, 600);
    let before = keyspace.memory().excess_bytes();
    assert_eq!(executors[0].evictor().make_room(&mut [], NOW_MS), Room::Later);
    assert_eq!(keys(&keyspace)[2..], [KEYS; 2]);
    let after = keyspace.memory().excess_bytes();
    assert!((before * 4 / 10..before * 6 / 10).contains(&after), "{after} of {before} left");
    // Worker 0 evicts nothing more until worker 1 has evicted its own share.
    let its_keys = keys(&keyspace);
    assert_eq!(executors[0].evictor().make_room(&mut [], NOW_MS), Room::Later);
    assert_eq!(keys(&keyspace), its_keys);
    assert!(!executors[0].evictor().must_continue_evicting());
    executors[1].evictor().make_room(&mut [], NOW_MS);
    executors[0].evictor().make_room(&mut [], NOW_MS);
    let left = keys(&keyspace);
    assert!((left[0] + left[1]).abs_diff(left[2] + left[3]) < KEYS / 4, "{left:?}");
}

/// Another request evicts from a shard that is about to be released.
#[test]
fn readers_get_invalidations_of_keys_evicted_from_a_shard_about_to_be_released() {
    let keyspace = filled(Execution::Inline, 1);
    let mut executor = Executor::new(&keyspace, 0);
    let _busy: Vec<Ownership> = (0..3).filter_map(|shard| executor.try_take(shard)).collect();
    let mut pending = executor.try_take(3).expect("it is free");
    let end = || Endpoint::Unix(String::new());
    let client = Arc::new(Client::new(1, Listener::default(), 0, end(), end(), 0));
    let reader = Arc::new(Reader::new(&client));
    let names = (0..).map(|number| format!("key:{number}"));
    let of_shard = names.filter(|name| keyspace.place(name.as_bytes()).shard == 3);
    for name in of_shard.take(KEYS as usize) {
        let hash = keyspace.place(name.as_bytes()).hash;
        keyspace.shard(&mut pending).observers.tracked.read(hash, name.as_bytes(), &reader);
    }
    executor.to_free.push(pending);
    limit(&keyspace, 900);
    assert_eq!(executor.evictor().make_room(&mut [], NOW_MS), Room::Enough);
    let evicted = KEYS - keys(&keyspace)[3];
    assert!(evicted > 0);
    assert_eq!(executor.outbox().take_invalidations().len() as u64, evicted);
    let mut shard = executor.try_take(3).expect("it was released");
    assert!(!has_pending_events(&keyspace, std::slice::from_mut(&mut shard)));
}
