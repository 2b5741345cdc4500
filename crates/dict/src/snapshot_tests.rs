//! Tests that compare a snapshot with the content that the dictionary had when the snapshot
//! started, while the dictionary changes.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use crate::hash::COLLIDING_SEED;
use crate::testing::{Random, seed};
use crate::{Dict, Entry, EntryRef, Keeper, NewPayload, Payload, Reason, hash_key};

/// Keys, payloads as text, and expiries.
type Content = BTreeMap<Vec<u8>, (String, Option<i64>)>;

fn content_of(entry: &EntryRef<'_, u64>) -> (String, Option<i64>) {
    let payload = match entry.payload() {
        Payload::Bytes(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Payload::Int(value) => format!("int {value}"),
        Payload::Heap(value) => format!("heap {value}"),
    };
    (payload, entry.expire_at_ms())
}

fn content(dict: &Dict<u64>) -> Content {
    let mut content = Content::new();
    dict.for_each(|entry| _ = content.insert(entry.key().to_vec(), content_of(&entry)));
    content
}

/// A keeper that records the entries and the number of *forced* calls: those made by changes and
/// removals instead of by the walk.
#[derive(Clone, Default)]
struct Kept {
    all: Arc<Mutex<(Content, usize)>>,
    /// The key of an entry that is kept in two calls. Set by the first call, which came from the
    /// walk or from a change.
    half: Option<Vec<u8>>,
    /// The entry's content at the first call.
    before: Option<(String, Option<i64>)>,
    /// Number of entries since the last pause.
    walked: usize,
}

impl Keeper<u64> for Kept {
    fn keep(&mut self, entry: EntryRef<'_, u64>, reason: Reason) -> bool {
        let is_half = self.half.as_deref() == Some(entry.key());
        if reason != Reason::Removal && !is_half && self.half.is_none() && entry.key().ends_with(b"7") {
            self.half = Some(entry.key().to_vec());
            self.before = Some(content_of(&entry));
            return false;
        }
        if reason == Reason::Change && is_half {
            return false;
        }
        let before = self.before.take_if(|_| is_half);
        self.half.take_if(|_| is_half);
        let mut kept = self.all.lock().expect("no test panics within");
        let content = before.unwrap_or_else(|| content_of(&entry));
        let former = kept.0.insert(entry.key().to_vec(), content);
        assert_eq!(former, None, "{} was kept twice", entry.key().escape_ascii());
        kept.1 += usize::from(reason != Reason::Walk);
        self.walked += 1;
        true
    }

    fn needs_pause(&mut self) -> bool {
        // Some pauses are in the middle of a bucket. The test makes changes in each pause. Changes
        // are slow under Miri, so there are fewer pauses under Miri.
        let pauses = self.walked >= if cfg!(miri) { 20 } else { 5 };
        self.walked = if pauses { 0 } else { self.walked };
        pauses
    }
}

fn key(number: u64) -> Vec<u8> {
    // Some records are too long for a cell.
    let long = if number % 97 == 5 { "long".repeat(if cfg!(miri) { 300 } else { 20_000 }) } else { String::new() };
    format!("key:{number}{long}").into_bytes()
}

/// Makes one random change, of any kind.
fn change(dict: &mut Dict<u64>, random: &mut Random, keys: u64) {
    let (number, value) = (random.next() % keys, random.next() % 1000);
    let key = key(number);
    let text = format!("{}{value}", "v".repeat((value % 40) as usize));
    let expire_at_ms = (value % 5 == 0).then_some(value as i64);
    let h = hash_key(dict.seed(), &key);
    let choice = random.next() % 12;
    match dict.entry(h, &key) {
        Entry::Vacant(vacant) => {
            let payload = match choice % 3 {
                0 => NewPayload::Bytes(text.as_bytes()),
                1 => NewPayload::Int(value as i64),
                _ => NewPayload::Heap(value),
            };
            vacant.insert(payload, 0, value as u32, expire_at_ms);
        }
        Entry::Occupied(mut entry) => match choice {
            0 => drop(entry.set(NewPayload::Bytes(text.as_bytes()), 1, expire_at_ms)),
            1 => drop(entry.replace(NewPayload::Int(value as i64), 0)),
            2 => drop(entry.replace(NewPayload::Heap(value), 0)),
            3 => entry.set_expire(expire_at_ms),
            4 => _ = entry.set_int(value as i64),
            5 => entry.bytes_mut().into_iter().flatten().for_each(|byte| *byte ^= 1),
            6 => entry.heap_mut().into_iter().for_each(|heap| *heap += 1),
            7 => entry.set_user_flags(3),
            8 => _ = entry.extract(),
            9 => entry.set_access(value as u32),
            _ => drop(entry.remove()),
        },
    }
}

/// Runs one snapshot to its end, with `changes` random changes between two steps of its walk.
fn run(dict: &mut Dict<u64>, random: &mut Random, keys: u64, changes: usize) {
    let (kept, frozen) = (Kept::default(), content(dict));
    dict.begin_snapshot(kept.clone());
    let mut cursor = Some(0);
    while let Some(at) = cursor {
        (0..changes).for_each(|_| change(dict, random, keys));
        if random.next().is_multiple_of(50) {
            dict.walk_expiring(random.next() >> 16, 4, &mut |_| true, &mut drop);
        }
        cursor = dict.walk_snapshot(at, 1 + (random.next() % 3) as usize);
    }
    let forced = kept.all.lock().expect("no test panics within").1;
    dict.end_snapshot();
    dict.check();
    assert!(changes == 0 || frozen.len() < 100 || forced > 0, "no change came before the walk");
    assert_eq!(kept.all.lock().expect("no test panics within").0, frozen);
}

#[test]
fn a_snapshot_has_the_entries_at_its_start() {
    let mut random = Random::new(seed("snapshot"));
    for seed in [0x5eed, COLLIDING_SEED] {
        let mut dict = Dict::new(seed);
        let keys = if cfg!(miri) { 60 } else { 5000 };
        (0..2 * keys).for_each(|_| change(&mut dict, &mut random, keys));
        // Several snapshots of one dictionary, because the epoch bit flips at each of them.
        for changes in [0, 1, 0, 20, 3] {
            run(&mut dict, &mut random, keys, changes);
        }
    }
}

#[test]
fn a_snapshot_survives_growth_and_shrinking() {
    let mut random = Random::new(seed("snapshot"));
    let mut dict = Dict::new(0x5eed);
    let few = if cfg!(miri) { 30 } else { 1000 };
    for round in 0..4 {
        let (kept, frozen) = (Kept::default(), content(&dict));
        dict.begin_snapshot(kept.clone());
        let mut cursor = dict.walk_snapshot(0, 2);
        // Even rounds add entries up to `10 * few`. Odd rounds remove nine tenths of them.
        for number in 0..10 * few {
            let key = key(number);
            let h = hash_key(dict.seed(), &key);
            if round % 2 == 0 {
                if let Entry::Vacant(vacant) = dict.entry(h, &key) {
                    vacant.insert(NewPayload::Int(round), 0, 0, None);
                }
            } else if number % 10 != 0 {
                dict.remove(h, &key);
            }
            if let Some(at) = cursor
                && random.next().is_multiple_of(8)
            {
                cursor = dict.walk_snapshot(at, 1);
            }
        }
        while let Some(at) = cursor {
            cursor = dict.walk_snapshot(at, 7);
        }
        dict.end_snapshot();
        dict.check();
        assert_eq!(kept.all.lock().expect("no test panics within").0, frozen);
    }
}

/// A flush takes the dictionary ([`Dict::take`]) during a snapshot. The snapshot continues on the
/// taken dictionary.
#[test]
fn a_dictionary_that_is_taken_keeps_its_snapshot() {
    let mut random = Random::new(seed("snapshot"));
    let mut dict = Dict::new(0x5eed);
    let keys = if cfg!(miri) { 40 } else { 2000 };
    (0..2 * keys).for_each(|_| change(&mut dict, &mut random, keys));
    let (kept, frozen) = (Kept::default(), content(&dict));
    dict.begin_snapshot(kept.clone());
    let cursor = dict.walk_snapshot(0, 3);
    (0..keys / 2).for_each(|_| change(&mut dict, &mut random, keys));
    let mut taken = dict.take();
    assert!(taken.is_in_snapshot() && !dict.is_in_snapshot());
    (0..keys).for_each(|_| change(&mut dict, &mut random, keys));
    dict.check();
    let mut cursor = cursor;
    while let Some(at) = cursor {
        cursor = taken.walk_snapshot(at, 1);
    }
    taken.end_snapshot();
    assert_eq!(kept.all.lock().expect("no test panics within").0, frozen);
    run(&mut dict, &mut random, keys, 2);
}
