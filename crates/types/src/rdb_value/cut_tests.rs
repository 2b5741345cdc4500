//! Tests of cuts ([`crate::cut`]): a cut is the elements that a collection had at one instant, read
//! while the collection changes.

use super::tests::{LIMITS, content, load};
use super::*;
use crate::list::{End, NodeLimit};
use crate::sorted_set::AddOptions;
use crate::stream::{NewId, NodeLimits, StreamId, Trim};
use crate::testing::Random;
use crate::{Collection, CutState, PieceMax, Stream};

/// A collection of numbered members.
trait Members: Collection {
    fn value(&self) -> ValueRef<'_>;
    /// Adds a member or changes its value. An existing member of a set has no value to change. A
    /// stream always gets another entry.
    fn set(&mut self, member: &[u8], value: u64);
    fn delete(&mut self, member: &[u8]);
    fn delete_some(&mut self, random: &mut Random);
}

impl Members for Hash {
    fn value(&self) -> ValueRef<'_> {
        ValueRef::Hash(self.view())
    }

    fn set(&mut self, member: &[u8], value: u64) {
        self.set(member, "v".repeat(value as usize % 50).as_bytes(), LIMITS.hash);
        if value.is_multiple_of(5) {
            self.set_expiry(member, 1_700_000_000_000);
        }
    }

    fn delete(&mut self, member: &[u8]) {
        self.remove(member);
    }

    fn delete_some(&mut self, random: &mut Random) {
        self.expire(1_700_000_000_001, random.below(100) as usize, |_| {});
    }
}

impl Members for Set {
    fn value(&self) -> ValueRef<'_> {
        ValueRef::Set(self.view())
    }

    fn set(&mut self, member: &[u8], _: u64) {
        self.add(member, LIMITS.set_intset_entries_max);
    }

    fn delete(&mut self, member: &[u8]) {
        self.remove(member);
    }

    fn delete_some(&mut self, random: &mut Random) {
        if random.one_in(20) {
            return self.clear();
        }
        for _ in 0..random.below(100).min(self.view().len() as u64) {
            self.remove_nth(random.below(self.view().len() as u64) as usize);
        }
    }
}

impl Members for SortedSet {
    fn value(&self) -> ValueRef<'_> {
        ValueRef::SortedSet(self.view())
    }

    fn set(&mut self, member: &[u8], value: u64) {
        // There are few scores, so that many members have equal ones.
        self.add(member, (value % 40) as f64 - 20.0, AddOptions::default(), LIMITS.sorted_set);
    }

    fn delete(&mut self, member: &[u8]) {
        self.remove(member);
    }

    fn delete_some(&mut self, random: &mut Random) {
        let from = random.below(self.view().len() as u64 + 1) as usize;
        let to = (from + random.below(100) as usize).min(self.view().len());
        self.remove_range(if random.one_in(20) { 0..self.view().len() } else { from..to });
    }
}

impl Members for List {
    fn value(&self) -> ValueRef<'_> {
        ValueRef::List(self.view())
    }

    fn set(&mut self, member: &[u8], value: u64) {
        let index = value as usize / 8 % (self.view().len() + 1);
        match value % 8 {
            0..3 => self.push(End::Left, member, NODES),
            3..6 => self.push(End::Right, member, NODES),
            6 => self.insert(index, member, NODES),
            _ => _ = List::set(self, index, member, NODES),
        }
    }

    fn delete(&mut self, member: &[u8]) {
        let end = if member.len().is_multiple_of(2) { End::Left } else { End::Right };
        self.pop(end, |_| ());
    }

    fn delete_some(&mut self, random: &mut Random) {
        let end = random.pick(&[End::Left, End::Right]);
        match random.below(20) {
            0 => self.trim(end, self.view().len()),
            1..10 => self.trim(end, random.below(100) as usize),
            _ => _ = self.remove_equal(&member(random.below(3000)), 2, random.one_in(2), NODES),
        }
    }
}

impl Members for Box<Stream> {
    fn value(&self) -> ValueRef<'_> {
        ValueRef::Stream(self)
    }

    fn set(&mut self, member: &[u8], value: u64) {
        let limits = NodeLimits { bytes: 0, entries: 10 };
        let fields = [(&b"field"[..], member)].into_iter();
        // Never fails, because the ids stay small.
        let _ = self.append(NewId::Auto, 1_000, fields, &limits);
        if value.is_multiple_of(97) {
            let _ = self.create_group(member, StreamId { ms: 1_000, seq: value % 500 }, 0);
        }
    }

    fn delete(&mut self, member: &[u8]) {
        let ids = self.counters().first_id.seq..self.counters().last_id.seq + 1;
        let seq =
            ids.start + member.iter().map(|&byte| u64::from(byte) * 31).sum::<u64>() % (ids.end - ids.start).max(1);
        Stream::delete(self, &[StreamId { ms: 1_000, seq }]);
    }

    fn delete_some(&mut self, random: &mut Random) {
        match random.below(4) {
            0 => _ = self.trim(Trim::Length(self.length() / 2), random.one_in(2), 0),
            1 => {
                // All entries are deleted and the last id is lowered. So the next node may have a
                // lower id than the last node of the cut.
                self.trim(Trim::Length(0), false, 0);
                self.set_id(StreamId { ms: 1_000, seq: random.below(200) }, None, None);
            }
            _ => _ = self.trim(Trim::Length(self.length().saturating_sub(random.below(50))), false, 0),
        }
    }
}

/// Limits of small nodes. All but two nodes at each end are compressed.
const NODES: NodeLimit = NodeLimit { bytes: 200, plain_depth: 2, ..LIMITS.list_node };

/// Maximum size in bytes of a stream's node: ten entries, all with a long member.
const NODE_BYTES_MAX: usize = 4_000;

const ONE: PieceMax = PieceMax { elements: 1, bytes: 1 };

fn member(number: u64) -> Vec<u8> {
    // Some members don't fit in the record of a sorted set.
    let long = if number.is_multiple_of(61) { "long".repeat(80) } else { String::new() };
    format!("member {number}{long}").into_bytes()
}

fn change<C: Members>(values: &mut C, random: &mut Random, members: u64) {
    let member = member(random.below(members));
    match random.below(10) {
        0..5 => values.set(&member, random.next()),
        5..9 => values.delete(&member),
        _ if random.one_in(30) => values.delete_some(random),
        _ => {}
    }
}

/// Reads a cut of a collection to its end, with `changes` random changes before each piece.
/// Compares the result with the contents of the collection when the cut started.
fn check<C: Members>(random: &mut Random, changes: u64) {
    let members = 600 + random.below(3000);
    let mut values = C::empty();
    // A first long member makes the collection large.
    values.set(&[b'x'; 300], 1);
    for _ in 0..members {
        let number = random.below(members);
        // The value is no multiple of 5. A multiple of 5 would give the field an expiry time, and a
        // hash with fields that expire has no cuts.
        values.set(&member(number), number / 5 * 5 + 1);
    }
    let mut bytes = vec![kind_of(values.value())];
    assert!(begin_cut(values.value(), &mut Writer::new(&mut bytes, false)));
    let mut whole = vec![kind_of(values.value())];
    write_body(values.value(), &mut Writer::new(&mut whole, false));
    let frozen = content(&load(&whole).expect("it is whole"));
    let mut pieces = 0;
    loop {
        (0..changes).for_each(|_| change(&mut values, random, 2 * members));
        pieces += 1;
        let most = 1 + random.below(300) as usize;
        let before = bytes.len();
        let max = PieceMax { elements: most, bytes: 1 + random.below(20_000) as usize };
        match write_cut(values.value(), max, &mut Writer::new(&mut bytes, false)) {
            CutState::More => assert!(bytes.len() - before <= most * 600 + NODE_BYTES_MAX, "a piece is bounded"),
            CutState::Ended => break,
            CutState::Lost => panic!("the collection lost its cut"),
        }
    }
    assert!(changes > 0 || bytes == whole, "without changes the pieces are the body");
    let loaded = load(&bytes).expect("no member is written twice");
    assert_eq!(content(&loaded), frozen, "{changes} changes between {pieces} pieces");
}

fn check_all<C: Members>(name: &str) {
    let mut random = Random::with_printed_seed(name);
    for round in 0..60 {
        check::<C>(&mut random, [0, 1, 10, 100, 1000][round % 5]);
    }
}

#[test]
fn a_cut_has_the_fields_at_its_start() {
    check_all::<Hash>("hash_cut");
}

#[test]
fn a_cut_has_the_members_at_its_start() {
    check_all::<Set>("set_cut");
}

#[test]
fn a_cut_has_the_scores_at_its_start() {
    check_all::<SortedSet>("sorted_set_cut");
}

#[test]
fn a_cut_has_the_elements_at_its_start_in_order() {
    check_all::<List>("list_cut");
}

#[test]
fn a_cut_has_the_entries_at_its_start() {
    check_all::<Box<Stream>>("stream_cut");
}

/// Reads a cut of a collection of 20 large elements and checks that a piece ends with the element
/// that reaches the maximum size. If `is_changed`, all elements are deleted after the cut starts.
fn check_large_elements<C: Members>(is_changed: bool) {
    const LEN_BYTES: usize = 10_000;
    let element = |number: u8| vec![b'a' + number; LEN_BYTES];
    let mut values = C::empty();
    for number in 0..20 {
        values.set(&element(number), 1);
    }
    let mut bytes = vec![kind_of(values.value())];
    assert!(begin_cut(values.value(), &mut Writer::new(&mut bytes, false)));
    if is_changed {
        (0..20).for_each(|number| values.delete(&element(number)));
    }
    let max = PieceMax { elements: 256, bytes: LEN_BYTES + 1 };
    loop {
        let before = bytes.len();
        let state = write_cut(values.value(), max, &mut Writer::new(&mut bytes, false));
        assert!(bytes.len() - before < 5 * LEN_BYTES / 2, "at most two elements: {}", bytes.len() - before);
        if state != CutState::More {
            assert_eq!(state, CutState::Ended);
            break;
        }
    }
    load(&bytes).expect("all elements were written once");
}

#[test]
fn a_piece_of_large_elements_is_bounded_in_bytes() {
    for is_changed in [false, true] {
        check_large_elements::<Hash>(is_changed);
        check_large_elements::<Set>(is_changed);
        check_large_elements::<SortedSet>(is_changed);
        check_large_elements::<List>(is_changed);
    }
}

#[test]
fn small_collections_and_strings_have_no_cuts() {
    let mut set = Set::empty();
    set.add(b"1", LIMITS.set_intset_entries_max);
    let mut bytes = Vec::new();
    for value in [ValueRef::Set(set.view()), ValueRef::String(b"text"), ValueRef::Int(1)] {
        assert!(!begin_cut(value, &mut Writer::new(&mut bytes, false)));
        assert_eq!(write_cut(value, ONE, &mut Writer::new(&mut bytes, false)), CutState::Lost);
    }
    assert_eq!(bytes, b"");
}

#[test]
fn a_cut_that_was_ended_is_lost_and_costs_nothing() {
    let mut set = SortedSet::empty();
    set.set(&[b'x'; 100], 1);
    let mut bytes = Vec::new();
    assert!(begin_cut(set.value(), &mut Writer::new(&mut bytes, false)));
    end_cut(set.value());
    assert_eq!(write_cut(set.value(), ONE, &mut Writer::new(&mut bytes, false)), CutState::Lost);
}
