//! Tests that compare the table with a map.

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::testing::Random;

#[derive(Clone, Debug, PartialEq, Eq)]
struct Text(Vec<u8>);

impl Item for Text {
    fn allocated_bytes(&self) -> usize {
        self.0.len()
    }
}

fn key(n: u64) -> Vec<u8> {
    format!("key:{n}").into_bytes()
}

fn add(table: &mut Table<Text>, n: u64) {
    let hash = table.hash(&key(n));
    table.insert(hash, Text(key(n)));
}

fn find(table: &Table<Text>, n: u64) -> Option<usize> {
    table.find(table.hash(&key(n)), |item| item.0 == key(n))
}

/// Checks the running sums, and that every entry is in the chain of its own bucket exactly once.
fn check(table: &Table<Text>) {
    let mut reached = BTreeSet::new();
    for bucket in 0..table.buckets.len() {
        let mut at = *table.buckets.get(bucket);
        while at != NONE {
            let entry = table.entries.get(at as usize);
            assert_eq!(table.bucket_of(entry.hash), bucket);
            assert!(reached.insert(at), "entry {at} twice");
            at = entry.next;
        }
    }
    assert_eq!(reached.len(), table.len());
    assert!(table.buckets.len() >= table.len().max(BUCKETS_MIN));
    assert_eq!(table.mask, table.buckets.len().next_power_of_two() - 1);
    assert_eq!(table.item_bytes, table.iter().map(Item::allocated_bytes).sum::<usize>());
}

#[test]
fn random_changes_agree_with_a_map() {
    let mut random = Random::with_printed_seed("table");
    for capacity in [0, 1, 100] {
        let mut table = Table::with_seed(random.next(), capacity);
        let mut model = BTreeMap::<u64, ()>::new();
        for round in 0..8 {
            for step in 0..random.below(1500) {
                let n = random.below(2000);
                // Some rounds mostly add, others mostly remove.
                match (find(&table, n), model.contains_key(&n)) {
                    (Some(index), true) => {
                        assert_eq!(table.get(index).0, key(n));
                        if round % 2 == 1 || random.one_in(4) {
                            assert_eq!(table.remove(index).map(|item| item.0), Some(key(n)));
                            model.remove(&n);
                        }
                    }
                    (None, false) if round % 2 == 0 || random.one_in(4) => {
                        add(&mut table, n);
                        model.insert(n, ());
                    }
                    (None, false) => {}
                    (found, expected) => panic!("{n}: found {found:?}, expected {expected}"),
                }
                if step % 100 == 0 {
                    check(&table);
                }
            }
            check(&table);
            assert_eq!(table.len(), model.len());
            assert_eq!(table, table.clone());
            assert!(model.keys().all(|&n| find(&table, n).is_some()));
        }
        while !table.is_empty() {
            table.remove(random.below(table.len() as u64) as usize);
        }
        check(&table);
        assert_eq!(table.remove(0), None);
        // The removals freed nearly all buckets.
        assert!(table.buckets.len() <= 2 * BUCKETS_MIN, "{} buckets", table.buckets.len());
    }
}

#[test]
fn an_item_may_change_its_size() {
    let mut table = Table::with_seed(1, 0);
    add(&mut table, 1);
    let index = find(&table, 1).unwrap();
    let before = table.allocated_bytes();
    table.change(index, |item| item.0.extend_from_slice(b"12345"));
    assert_eq!(table.allocated_bytes(), before + 5);
    check(&table);
}

/// Tests the guarantee that Redis gives: an item that exists throughout the scan is visited,
/// regardless of how the table grows and shrinks between calls.
#[test]
fn a_scan_visits_items_that_exist_throughout() {
    let mut random = Random::with_printed_seed("table_scan");
    for _ in 0..60 {
        let mut table = Table::with_seed(random.next(), 0);
        let (stay, most) = (random.below(300), random.below(3000));
        for n in 0..stay {
            add(&mut table, n);
        }
        let mut others: Vec<u64> = Vec::new();
        let mut seen = BTreeSet::new();
        let mut cursor = 0;
        let (mut fresh, mut steps) = (1_000_000, 0);
        loop {
            cursor = table.scan(cursor, &mut |item| {
                seen.insert(item.0.clone());
            });
            steps += 1;
            assert!(steps < 100_000, "the scan doesn't end");
            if cursor == 0 {
                break;
            }
            let grow = random.one_in(2);
            for _ in 0..random.below(1 + most / 8) {
                if grow && (others.len() as u64) < most {
                    add(&mut table, fresh);
                    others.push(fresh);
                    fresh += 1;
                } else if let Some(n) = others.pop() {
                    let index = find(&table, n).unwrap();
                    table.remove(index);
                }
            }
        }
        for n in 0..stay {
            assert!(seen.contains(&key(n)), "{n} of {stay} was never visited");
        }
    }
}

#[test]
fn a_scan_of_an_unchanged_table_visits_each_item_once() {
    for len in [0, 1, 2, 3, 5, 100, 1000, 1023, 1024, 1025] {
        let mut table = Table::with_seed(7, 0);
        for n in 0..len {
            add(&mut table, n);
        }
        let (mut cursor, mut shown) = (0, 0);
        loop {
            cursor = table.scan(cursor, &mut |_| shown += 1);
            if cursor == 0 {
                break;
            }
        }
        assert_eq!(shown, len);
    }
}

/// Checks the costs that the head of the module states.
#[test]
fn a_word_costs_twenty_to_twenty_five_bytes() {
    #[derive(Clone, Debug)]
    struct Word(#[allow(dead_code)] u64);
    impl Item for Word {
        fn allocated_bytes(&self) -> usize {
            0
        }
    }
    for len in [1000, 20_000, 100_000] {
        let mut table = Table::with_seed(3, 0);
        for n in 0..len {
            let hash = table.hash(&key(n));
            table.insert(hash, Word(n));
        }
        let per_entry = table.allocated_bytes() as f64 / len as f64;
        assert!((20.0..25.5).contains(&per_entry), "{per_entry} at {len}");
    }
}

/// The length of the longest chain bounds the cost of an insertion or removal.
#[test]
fn chains_stay_short() {
    let mut table = Table::with_seed(5, 0);
    for n in 0..50_000 {
        add(&mut table, n);
    }
    let chain = |bucket: usize| {
        let (mut at, mut len) = (*table.buckets.get(bucket), 0);
        while at != NONE {
            at = table.entries.get(at as usize).next;
            len += 1;
        }
        len
    };
    let longest = (0..table.buckets.len()).map(chain).max();
    assert!(longest < Some(16), "{longest:?}");
}

#[test]
fn room_ends_at_the_bound() {
    assert!(has_room(ENTRIES_MAX - 3, 3) && has_room(0, ENTRIES_MAX) && has_room(ENTRIES_MAX, 0));
    assert!(!has_room(ENTRIES_MAX - 3, 4) && !has_room(ENTRIES_MAX, 1) && !has_room(1, usize::MAX));
}

/// A prefetch changes nothing and accepts any keys (existing, missing, too many), at all sizes of a
/// table.
#[test]
fn prefetching_is_only_a_hint() {
    let mut random = Random::with_printed_seed("table prefetch");
    let mut table = Table::with_capacity(0);
    let last = if cfg!(miri) { PREFETCH_LEN_MIN + 50 } else { 3 * PREFETCH_LEN_MIN };
    for n in 0..last as u64 {
        add(&mut table, n);
        if n % 97 == 0 || n.abs_diff(PREFETCH_LEN_MIN as u64) < 3 {
            let len = random.below(2 * PREFETCH_KEYS_MAX as u64);
            let seed = random.next();
            table.prefetch(
                (0..len).map(|i| if i % 2 == 0 { table.hash_at((i % n.max(1)) as usize) } else { seed as u32 }),
            );
            assert_eq!(table.len() as u64, n + 1);
            assert!(find(&table, n).is_some() && find(&table, n + 1).is_none());
        }
    }
    check(&table);
}
