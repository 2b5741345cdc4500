//! Tests of the dictionary against a model, and of its guarantees one by one.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};
use std::rc::Rc;

use proptest::prelude::*;

use crate::bucket::SLOTS;
use crate::hash::COLLIDING_SEED;
use crate::testing::{Random, seed};
use crate::{Dict, Entry, EntryRef, NewPayload, OwnedPayload, Payload, hash_key};

const SEED: u64 = 0x5eed;

/// Returns the first size, or the second under Miri, which is slow.
const fn sized(native: usize, miri: usize) -> usize {
    if cfg!(miri) { miri } else { native }
}

fn key(i: usize) -> Vec<u8> {
    format!("key:{i}").into_bytes()
}

fn put(dict: &mut Dict<u64>, key: &[u8], value: &[u8], expire_at_ms: Option<i64>) {
    match dict.entry(hash_key(dict.seed(), key), key) {
        Entry::Occupied(mut entry) => {
            entry.set(NewPayload::Bytes(value), 0, expire_at_ms);
        }
        Entry::Vacant(entry) => {
            entry.insert(NewPayload::Bytes(value), 0, 0, expire_at_ms);
        }
    }
}

fn filled(n: usize) -> Dict<u64> {
    let mut dict = Dict::new(SEED);
    for i in 0..n {
        put(&mut dict, &key(i), format!("value:{i}").as_bytes(), (i % 3 == 0).then_some(i as i64));
    }
    dict
}

fn has<'d>(dict: &'d Dict<u64>, key: &[u8]) -> Option<EntryRef<'d, u64>> {
    dict.find(hash_key(dict.seed(), key), key)
}

/// An entry in the model.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Model {
    payload: ModelPayload,
    flags: u8,
    access: u32,
    expire_at_ms: Option<i64>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum ModelPayload {
    Bytes(Vec<u8>),
    Int(i64),
    Heap(u64),
}

impl ModelPayload {
    fn as_new(&self) -> NewPayload<'_, u64> {
        match self {
            ModelPayload::Bytes(bytes) => NewPayload::Bytes(bytes),
            ModelPayload::Int(value) => NewPayload::Int(*value),
            ModelPayload::Heap(value) => NewPayload::Heap(*value),
        }
    }
}

impl From<Payload<'_, u64>> for ModelPayload {
    fn from(payload: Payload<'_, u64>) -> Self {
        match payload {
            Payload::Bytes(bytes) => ModelPayload::Bytes(bytes.to_vec()),
            Payload::Int(value) => ModelPayload::Int(value),
            Payload::Heap(value) => ModelPayload::Heap(*value),
        }
    }
}

fn seen(entry: &EntryRef<'_, u64>) -> Model {
    Model {
        payload: entry.payload().into(),
        flags: entry.user_flags(),
        access: entry.access(),
        expire_at_ms: entry.expire_at_ms(),
    }
}

#[derive(Clone, Debug)]
enum Step {
    Set(usize, ModelPayload, u8, Option<i64>),
    Replace(usize, ModelPayload, u8),
    Expire(usize, Option<i64>),
    Access(usize, u32),
    SetInt(usize, i64),
    Flip(usize),
    Remove(usize),
    Extract(usize),
    Find(usize),
    FillRange(usize, usize),
    RemoveRange(usize, usize),
    Walk(i64),
    Take,
}

/// Returns key number `i`. Keys are usually short, sometimes empty, long, or too long for a cell.
fn odd_key(i: usize) -> Vec<u8> {
    match i % 41 {
        0 if i == 0 => Vec::new(),
        7 => [key(i), vec![b'x'; 252]].concat(),
        11 => [key(i), vec![b'y'; 300 + i % 100]].concat(),
        13 if !cfg!(miri) => [key(i), vec![b'z'; 70_000]].concat(),
        13 => [key(i), vec![b'z'; 5000]].concat(),
        _ => key(i),
    }
}

fn payloads() -> impl Strategy<Value = ModelPayload> {
    prop_oneof![
        4 => prop::collection::vec(any::<u8>(), 0..40).prop_map(ModelPayload::Bytes),
        1 => (240_usize..270, any::<u8>()).prop_map(|(n, b)| ModelPayload::Bytes(vec![b; n])),
        1 => (3900_usize..4200, any::<u8>()).prop_map(|(n, b)| ModelPayload::Bytes(vec![b; n])),
        2 => any::<i64>().prop_map(ModelPayload::Int),
        2 => any::<u64>().prop_map(ModelPayload::Heap),
    ]
}

fn steps() -> impl Strategy<Value = Step> {
    const KEYS: usize = 120;
    let expiry = || prop::option::of(any::<i64>());
    let key = || 0..KEYS;
    prop_oneof![
        6 => (key(), payloads(), 0_u8..8, expiry()).prop_map(|(k, p, f, e)| Step::Set(k, p, f, e)),
        3 => (key(), payloads(), 0_u8..8).prop_map(|(k, p, f)| Step::Replace(k, p, f)),
        3 => (key(), expiry()).prop_map(|(k, e)| Step::Expire(k, e)),
        1 => (key(), 0_u32..1 << 24).prop_map(|(k, a)| Step::Access(k, a)),
        1 => (key(), any::<i64>()).prop_map(|(k, v)| Step::SetInt(k, v)),
        1 => key().prop_map(Step::Flip),
        4 => key().prop_map(Step::Remove),
        1 => key().prop_map(Step::Extract),
        2 => key().prop_map(Step::Find),
        1 => (1000_usize..2000, 0..sized(9000, 40)).prop_map(|(a, n)| Step::FillRange(a, n)),
        1 => (1000_usize..2000, 0..sized(9000, 40)).prop_map(|(a, n)| Step::RemoveRange(a, n)),
        1 => any::<i64>().prop_map(Step::Walk),
        1 => Just(Step::Take),
    ]
}

fn apply(dict: &mut Dict<u64>, model: &mut BTreeMap<Vec<u8>, Model>, step: &Step) {
    let hash = |key: &[u8]| hash_key(SEED, key);
    match step {
        Step::Set(k, payload, flags, expire_at_ms) => {
            let k = odd_key(*k);
            let new = Model { payload: payload.clone(), flags: *flags, access: 0, expire_at_ms: *expire_at_ms };
            match dict.entry(hash(&k), &k) {
                Entry::Occupied(mut entry) => {
                    let old = entry.set(payload.as_new(), *flags, *expire_at_ms);
                    let access = model[&k].access;
                    assert_eq!(old.map(ModelPayload::Heap), heap_of(&model[&k]));
                    assert_eq!(entry.key(), k);
                    model.insert(k, Model { access, ..new });
                }
                Entry::Vacant(entry) => {
                    let entry = entry.insert(payload.as_new(), *flags, 0, *expire_at_ms);
                    assert_eq!((entry.key(), seen(&entry.as_ref())), (&k[..], new.clone()));
                    assert!(model.insert(k, new).is_none());
                }
            }
        }
        Step::FillRange(from, n) => {
            for i in *from..from + n {
                let (k, payload) = (key(i), ModelPayload::Bytes(format!("value:{i}").into_bytes()));
                if let Entry::Vacant(entry) = dict.entry(hash(&k), &k) {
                    entry.insert(payload.as_new(), 1, 7, None);
                    model.insert(k, Model { payload, flags: 1, access: 7, expire_at_ms: None });
                }
            }
        }
        Step::RemoveRange(from, n) => {
            for i in *from..from + n {
                let k = key(i);
                assert_eq!(dict.remove(hash(&k), &k).is_some(), model.remove(&k).is_some());
            }
        }
        Step::Walk(limit) => {
            let mut doomed = BTreeSet::new();
            let mut removed = 0;
            let mut cursor = 0;
            loop {
                cursor = dict.walk_expiring(
                    cursor,
                    3,
                    &mut |entry| {
                        let dies = entry.expire_at_ms().is_some_and(|at| at < *limit);
                        if dies {
                            doomed.insert(entry.key().to_vec());
                        }
                        dies
                    },
                    &mut |_| removed += 1,
                );
                if cursor == 0 {
                    break;
                }
            }
            let expected: BTreeSet<Vec<u8>> = model
                .iter()
                .filter(|(_, m)| m.expire_at_ms.is_some_and(|at| at < *limit))
                .map(|e| e.0.clone())
                .collect();
            assert_eq!((doomed.len(), &doomed), (removed, &expected));
            model.retain(|k, _| !expected.contains(k));
        }
        Step::Take => {
            let taken = dict.take();
            assert_eq!((dict.len(), dict.expiring(), taken.len()), (0, 0, model.len()));
            *dict = taken;
        }
        Step::Find(k) => {
            let k = odd_key(*k);
            assert_eq!(dict.find(hash(&k), &k).map(|e| seen(&e)).as_ref(), model.get(&k));
        }
        one => apply_to_one(dict, model, one),
    }
}

fn heap_of(model: &Model) -> Option<ModelPayload> {
    matches!(model.payload, ModelPayload::Heap(_)).then(|| model.payload.clone())
}

/// Applies steps that change one entry, if it exists.
fn apply_to_one(dict: &mut Dict<u64>, model: &mut BTreeMap<Vec<u8>, Model>, step: &Step) {
    let (Step::Replace(k, ..)
    | Step::Expire(k, _)
    | Step::Access(k, _)
    | Step::SetInt(k, _)
    | Step::Flip(k)
    | Step::Remove(k)
    | Step::Extract(k)) = step
    else {
        unreachable!("handled by apply")
    };
    let k = odd_key(*k);
    let found = dict.find_mut(hash_key(SEED, &k), &k);
    let known = model.get_mut(&k);
    assert_eq!(found.is_some(), known.is_some());
    let (Some(mut entry), Some(known)) = (found, known) else { return };
    match step {
        Step::Replace(_, payload, flags) => {
            let old = entry.replace(payload.as_new(), *flags);
            assert_eq!(old.map(ModelPayload::Heap), heap_of(known));
            (known.payload, known.flags) = (payload.clone(), *flags);
        }
        Step::Expire(_, expire_at_ms) => {
            entry.set_expire(*expire_at_ms);
            known.expire_at_ms = *expire_at_ms;
        }
        Step::Access(_, access) => {
            entry.set_access(*access);
            known.access = *access;
        }
        Step::SetInt(_, value) => {
            let is_int = entry.set_int(*value);
            assert_eq!(is_int, matches!(known.payload, ModelPayload::Int(_)));
            if is_int {
                known.payload = ModelPayload::Int(*value);
            }
        }
        Step::Flip(_) => {
            entry.set_user_flags(known.flags ^ 7);
            known.flags ^= 7;
            if let Some(bytes) = entry.bytes_mut() {
                bytes.iter_mut().for_each(|b| *b ^= 255);
            } else if let Some(value) = entry.heap_mut() {
                *value ^= 255;
            }
            match &mut known.payload {
                ModelPayload::Bytes(bytes) => bytes.iter_mut().for_each(|b| *b ^= 255),
                ModelPayload::Heap(value) => *value ^= 255,
                ModelPayload::Int(_) => {}
            }
        }
        Step::Remove(_) => {
            let removed = entry.remove();
            assert_eq!(removed.expire_at_ms(), known.expire_at_ms);
            assert_eq!(removed.into_heap().map(ModelPayload::Heap), heap_of(known));
            model.remove(&k);
        }
        _ => {
            let taken = entry.extract();
            let payload = match taken.payload {
                OwnedPayload::Bytes(bytes) => ModelPayload::Bytes(bytes.into()),
                OwnedPayload::Int(value) => ModelPayload::Int(value),
                OwnedPayload::Heap(value) => ModelPayload::Heap(value),
            };
            let (flags, access, expire_at_ms) = (taken.user_flags, taken.access, taken.expire_at_ms);
            assert_eq!(Some(Model { payload, flags, access, expire_at_ms }), model.remove(&k));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: sized(150, 2) as u32,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// proptest prints the shrunk steps of a failure; `PROPTEST_RNG_SEED` replays a run.
    #[test]
    fn behaves_as_the_model(steps in prop::collection::vec(steps(), 1..sized(120, 25))) {
        let mut dict = Dict::new(SEED);
        let mut model = BTreeMap::new();
        for step in &steps {
            apply(&mut dict, &mut model, step);
        }
        dict.check();
        let mut all = BTreeMap::new();
        dict.for_each(|entry| assert!(all.insert(entry.key().to_vec(), seen(&entry)).is_none()));
        prop_assert_eq!(&all, &model);
        let mut scanned = BTreeMap::new();
        let mut cursor = 0;
        loop {
            cursor = dict.scan(cursor, 1, &mut |entry| {
                assert!(scanned.insert(entry.key().to_vec(), seen(&entry)).is_none(), "visited twice in one scan");
            });
            if cursor == 0 { break }
        }
        prop_assert_eq!(&scanned, &model);
        for k in model.keys() {
            assert!(dict.remove(hash_key(SEED, k), k).is_some());
        }
        dict.check();
        prop_assert_eq!(dict.len(), 0);
        prop_assert!(dict.allocated_bytes() <= 4096 + 8, "an emptied dictionary keeps one segment page and one word");
    }
}

#[test]
fn an_insert_moves_at_most_one_segment() {
    let mut dict = Dict::<u64>::new(SEED);
    let (mut most, mut moves) = (0, 0);
    for i in 0..sized(100_000, 500) {
        put(&mut dict, &key(i), b"v", None);
        most = most.max(dict.entries_moved_by_last_insert());
        moves += dict.entries_moved_by_last_insert();
    }
    dict.check();
    assert!(dict.table.depth > 0, "no segment was split");
    assert!(most <= crate::segment::SEGMENT_SLOTS, "{most}");
    assert!(moves > 0);
}

/// Removing most entries frees segment pages; adding them again works.
#[test]
fn pages_are_returned() {
    let n = sized(60_000, 200);
    let mut dict = filled(n);
    let full = dict.allocated_bytes();
    let depth = dict.table.depth;
    for i in 0..n {
        let k = key(i);
        if i % 20 != 0 {
            assert!(dict.remove(hash_key(SEED, &k), &k).is_some());
        }
        if i % (n / 10) == 0 {
            dict.check();
        }
    }
    dict.check();
    assert!(dict.allocated_bytes() * 6 < full, "{} of {full}", dict.allocated_bytes());
    assert!(dict.table.depth < depth, "no segments merged");
    for i in (0..n).step_by(20) {
        assert!(has(&dict, &key(i)).is_some());
    }
    // Grows again.
    for i in 0..n {
        put(&mut dict, &key(i), b"v", None);
    }
    dict.check();
    assert_eq!((dict.len(), dict.expiring()), (n, 0));
}

#[test]
fn an_emptied_dictionary_releases_its_memory() {
    let hash = |key: &[u8]| hash_key(SEED, key);
    let mut dict: Dict<u64> = Dict::new(SEED);
    let fresh_bytes = dict.allocated_bytes();
    assert!(!dict.release_if_empty(), "there is no memory to release");
    for keys in [1_usize, sized(5_000, 60)] {
        let names: Vec<Vec<u8>> = (0..keys).map(|key| format!("key:{key}").into_bytes()).collect();
        for name in &names {
            if let Entry::Vacant(place) = dict.entry(hash(name), name) {
                place.insert(NewPayload::Int(1), 0, 0, None);
            }
        }
        assert!(!dict.release_if_empty(), "there are entries");
        assert!(names.iter().all(|name| dict.remove(hash(name), name).is_some()));
        assert!(dict.allocated_bytes() > fresh_bytes);
        assert!(dict.release_if_empty());
        assert_eq!(dict.allocated_bytes(), fresh_bytes);
        assert!(dict.find(hash(&names[0]), &names[0]).is_none());
        dict.check();
    }
}

/// Every entry that exists from the start of a scan to its end is visited, while the dictionary
/// grows and shrinks between calls.
#[test]
fn scans_survive_growth_and_shrinking() {
    const CALL_BUCKETS_MAX: usize = 20;
    let mut random = Random::new(seed("scans_survive_growth_and_shrinking"));
    for round in 0..sized(30, 2) {
        let stable = 1 + random.below(sized(3000, 60));
        let mut dict = filled(stable);
        let volatile = sized(20_000, 150);
        let mut present = HashSet::new();
        if round % 2 == 1 {
            for i in 0..volatile {
                put(&mut dict, &key(stable + i), b"volatile", None);
                present.insert(i);
            }
        }
        let mut found = HashSet::new();
        let mut cursor = 0;
        let mut calls = 0;
        loop {
            cursor = dict.scan(cursor, 1 + random.below(CALL_BUCKETS_MAX), &mut |entry| {
                found.insert(entry.key().to_vec());
            });
            if cursor == 0 {
                break;
            }
            calls += 1;
            // Even rounds mostly grow and odd ones mostly shrink the dictionary.
            for _ in 0..random.below(sized(400, 20)) {
                let i = random.below(volatile);
                let k = key(stable + i);
                if (random.below(10) < 8) == (round % 2 == 0) {
                    put(&mut dict, &k, b"volatile", None);
                    present.insert(i);
                } else {
                    assert_eq!(dict.remove(hash_key(SEED, &k), &k).is_some(), present.remove(&i));
                }
            }
        }
        dict.check();
        // A scan may end after a single call only if the dictionary fits in the buckets of one
        // call.
        assert!(calls > 0 || stable <= CALL_BUCKETS_MAX * SLOTS);
        for i in 0..stable {
            assert!(found.contains(&key(i)), "key {i} of {stable} was missed in round {round}");
        }
    }
}

#[test]
fn keys_with_equal_hashes() {
    let mut dict = Dict::<u64>::new(COLLIDING_SEED);
    let n = sized(9000, 95);
    for i in 0..n {
        put(&mut dict, &key(i), b"v", (i % 2 == 0).then_some(5));
    }
    assert!(!dict.table.stash.is_empty(), "the stash was not used");
    dict.check();
    let count = |dict: &Dict<u64>| {
        let (mut keys, mut cursor) = (HashSet::new(), 0);
        loop {
            cursor = dict.scan(cursor, 10, &mut |entry| assert!(keys.insert(entry.key().to_vec())));
            if cursor == 0 {
                return keys.len();
            }
        }
    };
    assert_eq!(count(&dict), n);
    assert!(dict.random(&mut || 3).is_some());
    for i in 0..n {
        let k = key(i);
        let h = hash_key(COLLIDING_SEED, &k);
        let mut entry = dict.find_mut(h, &k).expect("just inserted");
        entry.set_expire((i % 3 == 0).then_some(9));
    }
    dict.check();
    let (mut cursor, mut removed) = (0, 0);
    loop {
        cursor = dict.walk_expiring(cursor, 1000, &mut |_| true, &mut |_| removed += 1);
        if cursor == 0 {
            break;
        }
    }
    assert_eq!((removed, dict.expiring(), dict.len()), (n.div_ceil(3), 0, n - n.div_ceil(3)));
    dict.check();
    for i in 0..n {
        let k = key(i);
        assert_eq!(dict.remove(hash_key(COLLIDING_SEED, &k), &k).is_some(), i % 3 != 0);
    }
    assert!(dict.is_empty());
    dict.check();
}

/// A value that counts its drops.
struct Counted(Rc<Cell<usize>>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.set(self.0.get() + 1);
    }
}

#[test]
fn values_drop_exactly_once() {
    let drops = Rc::new(Cell::new(0));
    let n = sized(10_000, 200);
    let mut dict = Dict::new(SEED);
    for i in 0..n {
        let k = odd_key(i);
        let Entry::Vacant(entry) = dict.entry(hash_key(SEED, &k), &k) else { panic!("a key occurs twice") };
        entry.insert(NewPayload::Heap(Counted(drops.clone())), 0, 0, None);
    }
    assert_eq!(drops.get(), 0, "growing doesn't drop");
    let mut expected = 0;
    for i in (0..n).step_by(3) {
        let k = odd_key(i);
        let h = hash_key(SEED, &k);
        match i % 4 {
            0 => drop(dict.remove(h, &k)),
            1 => drop(dict.find_mut(h, &k).and_then(|mut e| e.replace(NewPayload::Int(1), 0))),
            2 => drop(dict.find_mut(h, &k).and_then(|mut e| e.replace(NewPayload::Heap(Counted(drops.clone())), 0))),
            _ => drop(dict.find_mut(h, &k).map(|e| e.extract())),
        }
        expected += 1;
        assert_eq!(drops.get(), expected, "at key {i}");
    }
    let replaced = (0..n).step_by(3).filter(|i| i % 4 == 2).count();
    drop(dict.take());
    assert_eq!(drops.get(), n + replaced);
    assert!(dict.is_empty());
}

#[test]
fn batches_equal_single_lookups() {
    let mut random = Random::new(seed("batches_equal_single_lookups"));
    let n = sized(20_000, 200);
    let dict = filled(n);
    for len in [0, 1, 15, 16, 17, sized(1000, 50)] {
        let keys: Vec<Vec<u8>> = (0..len).map(|_| key(random.below(2 * n))).collect();
        let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        let hashes: Vec<u64> = keys.iter().map(|k| hash_key(SEED, k)).collect();
        let mut out = vec![None; len];
        dict.find_batch(&hashes, &keys, &mut out);
        for (k, found) in keys.iter().zip(out) {
            assert_eq!(found.map(|e| (e.key(), seen(&e))), has(&dict, k).map(|e| (e.key(), seen(&e))));
        }
    }
    let empty = Dict::<u64>::new(SEED);
    let mut out = [None; 1];
    empty.find_batch(&[1], &[b"a"], &mut out);
    assert!(out[0].is_none());
}

/// All entries are picked about equally often, in dictionaries of one bucket, of one segment and of
/// many segments.
#[test]
#[cfg_attr(miri, ignore = "statistics need many picks")]
fn random_is_uniform() {
    let mut random = Random::new(seed("random_is_uniform"));
    assert!(Dict::<u64>::new(SEED).random(&mut || 0).is_none());
    for n in [1, 5, 100, 3000, 9000] {
        let dict = filled(n);
        let picks = 40 * n;
        let mut counts = BTreeMap::new();
        for _ in 0..picks {
            let entry = dict.random(&mut || random.next()).expect("the dictionary isn't empty");
            *counts.entry(entry.key().to_vec()).or_insert(0_f64) += 1.0;
        }
        let chi: f64 =
            counts.values().map(|c| (c - 40.0).powi(2) / 40.0).sum::<f64>() + 40.0 * (n - counts.len()) as f64;
        let (mean, deviation) = (n as f64 - 1.0, (2.0 * n as f64).sqrt());
        assert!((chi - mean).abs() < 6.0 * deviation + 1.0, "chi-squared {chi} with {n} keys");
    }
}

/// Hints are used on other threads while the dictionary grows, shrinks, is dropped and recreated.
/// Under Miri this test detects data races.
#[test]
fn hints_are_harmless() {
    let mut random = Random::new(seed("hints_are_harmless"));
    let mut dict = Dict::<u64>::new(SEED);
    let hint = dict.hint();
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let (stop, mut random) = (&stop, Random::new(thread));
            scope.spawn(move || {
                // Miri runs one thread at a time, so unbounded loops would take most of its time.
                let mut left = sized(usize::MAX, 200);
                while left > 0 && !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    left -= 1;
                    let h = random.next();
                    let bucket = hint.prefetch_bucket(h);
                    bucket.prefetch_entry();
                    hint.prefetch_entry(!h);
                }
            });
        }
        for _ in 0..sized(40, 2) {
            let n = random.below(sized(20_000, 80));
            for i in 0..n {
                put(&mut dict, &key(i), b"v", None);
            }
            for i in 0..n {
                let k = key(i);
                if random.below(10) > 0 {
                    dict.remove(hash_key(SEED, &k), &k);
                }
            }
            drop(dict.take());
        }
        drop(dict);
        let mut other = filled(sized(5000, 50));
        drop(other.take());
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

#[test]
fn inline_limit_is_exact() {
    let max = Dict::<u64>::inline_max();
    assert!(Dict::<u64>::fits_inline(0, max) && !Dict::<u64>::fits_inline(0, max + 1));
    assert!(!Dict::<u64>::fits_inline(usize::MAX, 1) && !Dict::<u64>::fits_inline(1, usize::MAX));
    let mut dict = Dict::new(SEED);
    for (k, len) in [(&b""[..], max), (b"a", max), (b"bc", 10 * max)] {
        let value = vec![b'v'; len];
        put(&mut dict, k, &value, Some(1));
        assert!(has(&dict, k).is_some_and(|e| e.payload() == Payload::Bytes(&value)));
    }
    let large = dict.table.owning;
    assert_eq!(large, 2, "too long for a cell: from the global allocator");
    for k in [&b""[..], b"a", b"bc"] {
        put(&mut dict, k, b"small", None);
    }
    assert_eq!((dict.table.owning, dict.table.large_bytes), (0, 0));
}

#[test]
fn a_small_pair_takes_32_bytes() {
    let dict = {
        let mut dict = Dict::new(SEED);
        put(&mut dict, b"key:12345678", b"value:12345678", None);
        dict
    };
    assert_eq!(has(&dict, b"key:12345678").map(|e| e.allocated_bytes()), Some(32));
}

/// The head takes 4 bytes, the length of the key 1, and the length of the value 1, 2 or 9. Cells of
/// 128 to 512 bytes are multiples of 16 bytes; entries too long for a cell take exactly their
/// length.
#[test]
fn lengths_take_the_shortest_form() {
    for (key_len, value_len, bytes) in [
        (12, 238, 256),
        (13, 238, 272),
        (10, 239, 256),
        (11, 239, 272),
        (11, 382, 400),
        (11, 383, 416),
        (1, 4_095, 4_103),
        (1, 4_096, 4_111),
    ] {
        let mut dict = Dict::new(SEED);
        let key = vec![b'k'; key_len];
        put(&mut dict, &key, &vec![b'v'; value_len], None);
        let found = has(&dict, &key).map(|entry| entry.allocated_bytes());
        assert_eq!(found, Some(bytes), "a key of {key_len} with a value of {value_len}");
    }
}

/// Tests each form of the length field at the bounds of the form, for keys and for values.
#[test]
fn lengths_round_trip_at_the_bounds_of_their_forms() {
    let lengths = [0, 1, 238, 239, 240, 255, 256, 511, 512, 4_000, 4_095, 4_096, 65_536];
    let mut dict: Dict<String> = Dict::new(SEED);
    for (i, &len) in lengths.iter().enumerate() {
        for (j, &value_len) in lengths.iter().enumerate() {
            // Combinations of two long lengths are slow under Miri and test nothing new.
            if cfg!(miri) && len.max(value_len) > 1000 && len.min(value_len) > 1 {
                continue;
            }
            let mut key = vec![b'k'; len];
            key.iter_mut().zip([i as u8, j as u8]).for_each(|(byte, mark)| *byte = mark);
            let value = vec![(i * 16 + j) as u8; value_len];
            let h = hash_key(SEED, &key);
            if let Entry::Occupied(found) = dict.entry(h, &key) {
                found.remove();
            }
            for (round, expiry) in [None, Some(99), None].into_iter().enumerate() {
                match dict.entry(h, &key) {
                    Entry::Vacant(vacant) => {
                        vacant.insert(NewPayload::Bytes(&value), 3, 17, expiry);
                    }
                    Entry::Occupied(mut found) => {
                        // Changes to another form of length and back.
                        found.replace(NewPayload::Bytes(&vec![1; lengths[(i + j + round) % lengths.len()]]), 1);
                        found.set_expire(expiry);
                        found.replace(NewPayload::Bytes(&value), 3);
                    }
                }
                let found = dict.find(h, &key).expect("just stored");
                assert_eq!((found.key(), found.user_flags()), (&key[..], 3));
                assert_eq!(found.payload(), Payload::Bytes(&value), "{len} {value_len}");
                assert_eq!(found.expire_at_ms(), expiry);
            }
        }
    }
}

/// A sample consists of the requested number of distinct adjacent entries. A sample of a small
/// dictionary may have fewer entries, and may contain some of them twice. With an unlimited count,
/// repeated calls that continue at the returned cursor visit all entries.
#[test]
fn samples_consist_of_existing_entries() {
    let mut random = Random::new(seed("samples_consist_of_existing_entries"));
    for n in [1, 7, sized(3000, 60), sized(40_000, 100)] {
        let mut dict = Dict::<u64>::new(SEED);
        let expires = |i: usize| i % 50 == n % 50 / 2;
        for i in 0..n {
            put(&mut dict, &key(i), b"v", expires(i).then_some(5));
        }
        for expiring in [false, true] {
            for _ in 0..50 {
                let there = if expiring { dict.expiring() } else { n };
                let mut seen = HashSet::new();
                dict.sample(random.next(), 100_000, expiring, 5, &mut |entry| {
                    assert!(!expiring || entry.expire_at_ms().is_some());
                    assert!(seen.insert(entry.key().to_vec()) || there < 10, "visited twice in one sample");
                });
                assert!(
                    seen.len() == there.min(5) || there < 10 && seen.len() > there / 2,
                    "{} of {there}",
                    seen.len()
                );
            }
            let (mut all, mut cursor) = (HashSet::new(), 0);
            loop {
                cursor =
                    dict.sample(cursor, 1, expiring, usize::MAX, &mut |entry| _ = all.insert(entry.key().to_vec()));
                if cursor == 0 {
                    break;
                }
            }
            assert_eq!(all.len(), if expiring { dict.expiring() } else { n });
        }
    }
    assert_eq!(Dict::<u64>::new(SEED).sample(77, 10, false, 5, &mut |_| panic!("the dictionary is empty")), 0);
}

/// The newest entries must be sampled as often as others. Otherwise eviction, which uses the
/// samples, would evict the newest entries too late.
#[test]
#[cfg_attr(miri, ignore = "statistics need many samples")]
fn samples_contain_new_entries_as_often_as_old_ones() {
    const KEYS: usize = 3000;
    const SAMPLES: usize = 40_000;
    const COUNT: usize = 5;
    let mut random = Random::new(seed("samples_contain_new_entries_as_often_as_old_ones"));
    let mut dict = filled(KEYS);
    let mut keys: VecDeque<usize> = (0..KEYS).collect();
    // New entries take the slots of removed ones.
    for i in KEYS..6 * KEYS {
        let at = random.next() as usize % keys.len();
        dict.remove(hash_key(SEED, &key(keys[at])), &key(keys[at]));
        keys.remove(at);
        put(&mut dict, &key(i), b"v", None);
        keys.push_back(i);
    }
    let newest: HashSet<Vec<u8>> = keys.iter().skip(KEYS * 3 / 4).map(|&i| key(i)).collect();
    let mut seen = 0;
    for _ in 0..SAMPLES {
        dict.sample(random.next(), 100, false, COUNT, &mut |entry| seen += usize::from(newest.contains(entry.key())));
    }
    let percent = seen as f64 * 100.0 / (SAMPLES * COUNT) as f64;
    // Uniform samples gave 24.0 % to 24.4 %. Samples that start at the bucket's first entry give
    // 16.7 %.
    assert!((23.0..27.0).contains(&percent), "the newest quarter is {percent:.1} % of the sampled entries");
}

#[test]
fn find_by_hash_finds_the_key() {
    let n = sized(20_000, 100);
    let mut dict = filled(n);
    for i in (0..n).step_by(3) {
        let h = hash_key(SEED, &key(i));
        let entry = dict.find_by_hash(h).expect("the key exists");
        assert_eq!(entry.key(), key(i));
        let _ = entry.remove();
        assert!(dict.find_by_hash(h).is_none());
    }
    dict.check();
    // Half of these entries lie in the stash.
    let mut colliding = Dict::<u64>::new(COLLIDING_SEED);
    let n = sized(9000, 95);
    (0..n).for_each(|i| put(&mut colliding, &key(i), b"v", None));
    for h in [key(0), b"odd".to_vec(), b"even".to_vec()].map(|key| hash_key(COLLIDING_SEED, &key)) {
        while let Some(entry) = colliding.find_by_hash(h) {
            let _ = entry.remove();
        }
    }
    assert!(colliding.is_empty());
    colliding.check();
}
