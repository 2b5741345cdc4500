//! Tests that compare hashes with maps, and tests of a hash's limits and expiry times.

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::testing::Random;

const LIMITS: HashLimits = HashLimits { entries_max: 8, value_bytes_max: 20 };

#[test]
fn a_lowered_limit_applies_at_the_next_write() {
    let mut hash = Hash::empty();
    for field in [&b"a"[..], b"b", b"c"] {
        hash.set(field, b"1", LIMITS);
    }
    let lower = HashLimits { entries_max: 2, ..LIMITS };
    assert!(matches!(hash, Hash::Packed(_)));
    assert!(!hash.set(b"a", b"2", lower));
    assert!(matches!(hash, Hash::Table(_)));
    assert_eq!((hash.view().len(), hash.view().get(b"a").is_some()), (3, true));
}

fn contents(hash: &Hash) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut all = BTreeMap::new();
    hash.view().for_each(|field, value| assert_eq!(all.insert(field.to_vec(), value.to_vec()), None));
    assert_eq!(all.len(), hash.view().len());
    all
}

#[test]
fn random_changes_agree_with_a_map() {
    let mut random = Random::with_printed_seed("hash");
    for _ in 0..300 {
        let (mut hash, mut model) = (Hash::empty(), BTreeMap::new());
        let fields = random.pick(&[3, 12, 60]);
        let value_max = random.pick(&[5, 40]);
        let mut converted = false;
        for _ in 0..100 {
            let field = random.below(fields).to_string().into_bytes();
            assert_eq!(hash.view().get(&field).map(Element::to_vec), model.get(&field).cloned());
            if random.one_in(3) {
                assert_eq!(hash.remove(&field), model.remove(&field).is_some());
            } else {
                let value = if random.one_in(2) {
                    random.bytes(0, value_max)
                } else {
                    random.below(1000).to_string().into_bytes()
                };
                converted |= value.len() > LIMITS.value_bytes_max;
                assert_eq!(hash.set(&field, &value, LIMITS), model.insert(field, value).is_none());
            }
            converted |= model.len() > LIMITS.entries_max;
            assert_eq!(hash.view().encoding(), if converted { Encoding::Hashtable } else { Encoding::Listpack });
            assert_eq!(hash.is_empty(), model.is_empty());
        }
        assert_eq!(contents(&hash), model);
        let by_index: BTreeSet<Vec<u8>> =
            (0..model.len()).map(|index| hash.view().nth(index).unwrap().0.to_vec()).collect();
        assert!(by_index.iter().eq(model.keys()));
        assert!(hash.view().nth(model.len()).is_none());
        let mut scanned = BTreeMap::new();
        let mut cursor = 0;
        loop {
            cursor = hash.view().scan(cursor, &mut |field, value| {
                scanned.insert(field.to_vec(), value.to_vec());
            });
            if cursor == 0 {
                break;
            }
        }
        assert_eq!(scanned, model);
        assert_eq!(contents(&hash.try_clone().unwrap()), model);
    }
}

#[test]
fn a_command_is_checked_as_a_whole() {
    for (lengths, packed) in [(&[20, 20][..], true), (&[1, 21], false), (&[PACKED_BYTES_MAX], false)] {
        let mut hash = Hash::empty();
        hash.set(b"f", b"v", LIMITS);
        hash.prepare(lengths.iter().copied(), LIMITS);
        assert_eq!(matches!(hash, Hash::Packed(_)), packed, "{lengths:?}");
        assert_eq!(contents(&hash).len(), 1);
    }
    // Each string is short enough for a packed hash. But two strings of half the maximum size and
    // the pack's header together exceed the maximum size.
    let limits = HashLimits { entries_max: 8, value_bytes_max: usize::MAX };
    for (len, packed) in [(PACKED_BYTES_MAX / 2 - 1, true), (PACKED_BYTES_MAX / 2, false)] {
        let mut hash = Hash::empty();
        hash.prepare([len, len].into_iter(), limits);
        assert_eq!(matches!(hash, Hash::Packed(_)), packed);
    }
}

#[test]
fn fields_expire_as_in_a_model() {
    let mut random = Random::with_printed_seed("expiring hash");
    for _ in 0..200 {
        let (mut hash, mut model) = (Hash::empty(), BTreeMap::<Vec<u8>, (Vec<u8>, Option<i64>)>::new());
        let fields = random.pick(&[3, 30]);
        for now in 0..400 {
            let field = random.below(fields).to_string().into_bytes();
            let value = random.below(1000).to_string().into_bytes();
            match random.below(6) {
                0 => {
                    hash.set(&field, &value, LIMITS);
                    model.insert(field, (value, None));
                }
                1 => {
                    hash.update(&field, &value, LIMITS);
                    model.entry(field).or_default().0 = value;
                }
                2 => assert_eq!(hash.remove(&field), model.remove(&field).is_some()),
                3 => {
                    let had = model.get_mut(&field).and_then(|(_, time)| time.take());
                    assert_eq!(hash.clear_expiry(&field), had.is_some());
                }
                _ => {
                    if let Some((_, time)) = model.get_mut(&field) {
                        let at = now + random.between(1, 30);
                        *time = Some(at);
                        hash.set_expiry(&field, at);
                    }
                }
            }
            let over: Vec<_> = model
                .iter()
                .filter(|(_, (_, time))| time.is_some_and(|at| at <= now))
                .map(|(field, _)| field.clone())
                .collect();
            assert_eq!(hash.view().has_expired(now), !over.is_empty());
            let mut there = Vec::new();
            hash.view().for_each_at(now, |field, _| there.push(field.to_vec()));
            there.sort();
            let left = model.keys().filter(|field| !over.contains(field));
            assert_eq!((hash.view().len_at(now), there), (model.len() - over.len(), left.cloned().collect()));
            // Expires one field by name and the others in two steps, like an interrupted expiry
            // cycle.
            let named = over.last().is_some_and(|field| hash.expire_field(field, now));
            assert_eq!(named, !over.is_empty());
            if let Some((field, _)) = model.iter().find(|(_, (_, time))| time.is_none_or(|at| at > now)) {
                assert!(!hash.expire_field(field, now));
            }
            let first = usize::from(named) + hash.expire(now, 1, |_| {});
            assert_eq!(first + hash.expire(now, usize::MAX, |_| {}), over.len());
            over.iter().for_each(|field| drop(model.remove(field)));
            assert!(!hash.view().has_expired(now));
            let values = model.iter().map(|(field, (value, _))| (field.clone(), value.clone())).collect();
            assert_eq!(contents(&hash), values);
            for (field, (_, time)) in &model {
                assert_eq!(hash.view().expiry(field), *time);
            }
            if let Hash::Expiring(expiring) = &hash {
                assert_eq!(expiring.expiring_len(), model.values().filter(|(_, time)| time.is_some()).count());
                // However often an expiry time changes, the number of stale entries stays bounded.
                assert!(hash.allocated_bytes() < 60_000, "{}", hash.allocated_bytes());
            }
        }
        assert_eq!(hash.try_clone().unwrap(), hash);
    }
}

#[test]
fn an_expiry_time_changes_the_encoding() {
    let mut hash = Hash::empty();
    hash.set(b"a", b"1", LIMITS);
    hash.set_expiry(b"a", 100);
    assert_eq!(hash.view().encoding(), Encoding::ListpackEx);
    hash.prepare([21].into_iter(), LIMITS);
    assert_eq!(hash.view().encoding(), Encoding::Hashtable);
    assert_eq!(hash.view().expiry(b"a"), Some(100));
    assert!(hash.packed().is_none());
}
