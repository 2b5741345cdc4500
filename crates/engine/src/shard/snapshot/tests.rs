//! The end of a snapshot and the start of the next one. `tests/tests/background_saves.rs` tests
//! snapshots of whole servers.

use pantala_dict::EntryRef;
use pantala_types::{CutState, Value};

use super::*;
use crate::command::Key;
use crate::shard::keyspace::{Execution, Keyspace, Layout, WorkerPort};
use crate::store::db::{Change, Db, Expire, NewString, Silence};

const NOW_MS: i64 = 1_700_000_000_000;

/// Encodes keys, each with a line break.
struct Keys;

impl Encoder for Keys {
    fn select(&self, _: u32, _: &mut Vec<u8>) {}

    fn append(&self, entry: EntryRef<'_, Value>, _: bool, part: &mut Vec<u8>) -> bool {
        part.extend_from_slice(entry.key());
        part.push(b'\n');
        true
    }

    fn begin_cut(&self, _: EntryRef<'_, Value>, _: &mut Vec<u8>) -> bool {
        false
    }

    fn append_cut(&self, _: &Value, _: &mut Vec<u8>) -> CutState {
        CutState::Lost
    }

    fn end_cut(&self, _: &Value) {}
}

fn keyspace() -> Keyspace {
    let layout = Layout {
        shards: 1,
        partitions: 1,
        databases: 2,
        homes: 1,
        workers: 1,
        execution: Execution::Inline,
        seed: 1,
        random_seed: 2,
    };
    Keyspace::new(layout, vec![WorkerPort::new(Box::new(|| ()))])
}

fn set(keyspace: &Keyspace, name: &str) {
    let mut ownership = keyspace.gate(0).try_take().expect("it is free");
    let key = Key { bytes: name.as_bytes(), place: keyspace.place(name.as_bytes()) };
    let shard = keyspace.shard(&mut ownership);
    let mut db = Db::new(keyspace, keyspace.shard_stats(0), shard, 0, 0, NOW_MS, true);
    db.set_string(&key, NewString::Bytes(b"value"), Expire::Clear, Change::silent(Silence::Loaded)).expect("memory");
    drop(keyspace.gate(0).free(ownership));
}

fn begin(keyspace: &Keyspace) -> Input {
    let input = keyspace.with_whole(NOW_MS, |whole| whole.begin_snapshot(Box::new(Keys)));
    input.supply();
    input
}

/// Takes one step of the walk, over all buckets of one dictionary.
fn step(keyspace: &Keyspace) -> Step {
    let mut ownership = keyspace.gate(0).try_take().expect("it is free");
    let step = walk(keyspace, keyspace.shard(&mut ownership), usize::MAX);
    drop(keyspace.gate(0).free(ownership));
    step
}

/// Returns the keys that have arrived, in order, once the snapshot has ended.
fn ended(input: &Input) -> Vec<String> {
    let mut keys = Vec::new();
    loop {
        match input.next_part() {
            Next::Part(part) => keys.extend(String::from_utf8_lossy(&part.bytes).lines().map(str::to_owned)),
            Next::Later => panic!("the snapshot has not ended"),
            Next::End => break,
        }
    }
    keys.sort();
    keys
}

/// A snapshot's thread sees the end of the snapshot before the shards have removed their walks. The
/// next snapshot may start in between.
#[test]
fn an_ended_walk_is_replaced_by_the_next_snapshot() {
    let keyspace = keyspace();
    set(&keyspace, "a");
    let first = begin(&keyspace);
    assert_eq!(step(&keyspace), Step::More, "the walk is still there");
    assert_eq!(ended(&first), ["a"]);
    set(&keyspace, "b");
    let second = begin(&keyspace);
    while step(&keyspace) != Step::Ended {}
    assert_eq!(ended(&second), ["a", "b"]);
}

#[test]
fn the_walk_waits_for_the_supply_of_buffers() {
    let keyspace = keyspace();
    set(&keyspace, "a");
    let input = keyspace.with_whole(NOW_MS, |whole| whole.begin_snapshot(Box::new(Keys)));
    assert_eq!(step(&keyspace), Step::Full);
    input.supply();
    while step(&keyspace) != Step::Ended {}
    assert_eq!(ended(&input), ["a"]);
}

#[test]
#[should_panic(expected = "one snapshot at a time")]
fn a_walk_that_has_not_ended_is_not_replaced() {
    let keyspace = keyspace();
    set(&keyspace, "a");
    let _first = begin(&keyspace);
    begin(&keyspace);
}
