//! Tests that compare the packed and the large form of a sorted set with a plain model.

use std::collections::BTreeMap;

use super::*;
use crate::testing::Random;

/// Maps a score to an integer with the same order, for `BTreeMap`.
fn ordered(score: f64) -> i64 {
    let bits = score.to_bits() as i64;
    if bits < 0 { i64::MIN - bits } else { bits }
}

#[derive(Default)]
struct Model {
    scores: BTreeMap<Vec<u8>, f64>,
    order: BTreeMap<(i64, Vec<u8>), f64>,
}

impl Model {
    fn set(&mut self, member: &[u8], score: f64) {
        self.remove(member);
        self.scores.insert(member.to_vec(), score);
        self.order.insert((ordered(score), member.to_vec()), score);
    }

    fn remove(&mut self, member: &[u8]) -> bool {
        let Some(score) = self.scores.remove(member) else { return false };
        self.order.remove(&(ordered(score), member.to_vec()));
        true
    }
}

const LARGE: PackLimits = PackLimits { entries: 0, value_bytes: 0 };
const PACKED: PackLimits = PackLimits { entries: u64::MAX, value_bytes: u64::MAX };

fn check(set: &SortedSet, model: &Model, random: &mut Random) {
    let view = set.view();
    assert_eq!(view.len(), model.order.len());
    let wanted: Vec<(Vec<u8>, f64)> = model.order.iter().map(|((_, member), score)| (member.clone(), *score)).collect();
    let pairs = |range: Range<'_>| range.map(|(member, score)| (member.to_vec(), score)).collect::<Vec<_>>();
    assert_eq!(pairs(view.iter()), wanted);
    let len = wanted.len();
    if let SortedSet::Large(large) = set {
        large.check();
        assert!(set.allocated_bytes() >= size_of::<LargeSet>());
    }
    for _ in 0..10 {
        let from = random.below(len as u64 + 1) as usize;
        let to = from + random.below((len - from) as u64 + 1) as usize;
        assert_eq!(pairs(view.range(from..to, false)), wanted[from..to]);
        let mut backward = pairs(view.range(from..to, true));
        backward.reverse();
        assert_eq!(backward, wanted[from..to]);
        if let Some((member, score)) = wanted.get(from) {
            assert_eq!(view.rank(member), Some((from, *score)));
            assert_eq!(view.score(member), Some(*score));
            let range = ScoreRange {
                min: *score,
                max: wanted[to.max(from + 1) - 1].1,
                min_excluded: random.one_in(2),
                max_excluded: random.one_in(2),
            };
            let ranks = view.score_range(&range);
            let inside = |score: f64| !range.is_below(score) && range.reaches(score);
            let expected = wanted.iter().filter(|(_, score)| inside(*score)).count();
            assert_eq!(ranks.len(), expected);
            assert!(view.range(ranks, false).all(|(_, score)| inside(score)));
        }
    }
    assert_eq!(view.score(b"no such member"), None);
    assert_eq!(view.rank(b"no such member"), None);
}

fn run(name: &str, limits: PackLimits, members: u64, steps: usize, check_every: u64) {
    let mut random = Random::with_printed_seed(name);
    let (mut set, mut model) = (SortedSet::empty(), Model::default());
    // The set alternately grows and shrinks, so that nodes split, merge and are freed.
    for step in 0..steps {
        let grows = (step * 6 / steps).is_multiple_of(2);
        let member = format!("member:{}", random.below(members)).into_bytes();
        if random.below(10) < if grows { 8 } else { 2 } {
            // There are few distinct scores, so that many are equal.
            let score = (random.below(members) as f64 - members as f64 / 3.0).trunc() / 4.0;
            let known = model.scores.get(&member).copied();
            let added = set.add(&member, score, AddOptions::default(), limits);
            match known {
                None => assert_eq!(added, Added::New(score)),
                Some(before) if before == score => assert_eq!(added, Added::Same(score)),
                Some(_) => assert_eq!(added, Added::Updated(score)),
            }
            model.set(&member, score);
        } else if random.one_in(50) && !model.order.is_empty() {
            let from = random.below(model.order.len() as u64) as usize;
            let to = (from + random.below(30) as usize).min(model.order.len());
            let gone: Vec<Vec<u8>> = model.order.keys().skip(from).take(to - from).map(|(_, m)| m.clone()).collect();
            set.remove_range(from..to);
            gone.iter().for_each(|member| assert!(model.remove(member)));
        } else {
            assert_eq!(set.remove(&member), model.remove(&member));
        }
        if random.one_in(check_every) {
            check(&set, &model, &mut random);
        }
    }
    check(&set, &model, &mut random);
    let copy = set.try_clone().unwrap();
    assert!(copy == set);
    check(&copy, &model, &mut random);
}

#[test]
fn a_packed_set_agrees_with_a_model() {
    run("packed_set", PACKED, 60, 6_000, 20);
}

#[test]
fn a_large_set_agrees_with_a_model() {
    run("large_set", LARGE, 20_000, 60_000, 3_000);
    run("large_set_of_few", LARGE, 300, 30_000, 100);
}

#[test]
fn members_in_order_fill_their_leaves() {
    for descending in [false, true] {
        let mut set = SortedSet::for_first(100, PackLimits::DEFAULT);
        let mut model = Model::default();
        for index in 0..5_000u32 {
            let score = if descending { -f64::from(index) } else { f64::from(index) };
            let member = format!("{index:06}");
            set.add(member.as_bytes(), score, AddOptions::default(), PackLimits::DEFAULT);
            model.set(member.as_bytes(), score);
        }
        check(&set, &model, &mut Random::with_printed_seed("members_in_order"));
        // 16 bytes of record, 6 to 12 of table, 5 of tree.
        assert!(set.allocated_bytes() / 5_000 <= 36, "{}", set.allocated_bytes() / 5_000);
    }
}

#[test]
fn options_restrict_changes() {
    let mut set = SortedSet::empty();
    let add = |set: &mut SortedSet, score: f64, options: AddOptions| set.add(b"m", score, options, PackLimits::DEFAULT);
    let none = AddOptions::default();
    assert_eq!(add(&mut set, 1.0, AddOptions { xx: true, ..none }), Added::Skipped);
    assert!(set.is_empty());
    assert_eq!(add(&mut set, 1.0, AddOptions { gt: true, incr: true, ..none }), Added::New(1.0));
    assert_eq!(add(&mut set, 5.0, AddOptions { nx: true, ..none }), Added::Skipped);
    assert_eq!(add(&mut set, 0.5, AddOptions { gt: true, ..none }), Added::Skipped);
    assert_eq!(add(&mut set, 0.5, AddOptions { lt: true, ..none }), Added::Updated(0.5));
    assert_eq!(add(&mut set, 2.0, AddOptions { incr: true, ..none }), Added::Updated(2.5));
    assert_eq!(add(&mut set, f64::INFINITY, AddOptions { incr: true, ..none }), Added::Updated(f64::INFINITY));
    assert_eq!(add(&mut set, f64::NEG_INFINITY, AddOptions { incr: true, ..none }), Added::NotANumber);
    assert_eq!(add(&mut set, f64::INFINITY, none), Added::Same(f64::INFINITY));
}

#[test]
fn limits_of_a_pack_at_and_one_past() {
    let limits = PackLimits { entries: 3, value_bytes: 4 };
    let add = |set: &mut SortedSet, member: &[u8]| {
        set.add(member, 1.0, AddOptions::default(), limits);
    };
    let mut set = SortedSet::for_first(4, limits);
    for member in [&b"aaaa"[..], b"b", b"c"] {
        add(&mut set, member);
        assert_eq!(set.view().encoding(), Encoding::Listpack);
    }
    add(&mut set, b"c");
    assert_eq!(set.view().encoding(), Encoding::Listpack);
    add(&mut set, b"d");
    assert_eq!((set.view().encoding(), set.view().len()), (Encoding::Skiplist, 4));
    assert_eq!(SortedSet::for_first(5, limits).view().encoding(), Encoding::Skiplist);
    let mut set = SortedSet::for_first(1, limits);
    add(&mut set, b"a");
    add(&mut set, b"aaaaa");
    assert_eq!(set.view().encoding(), Encoding::Skiplist);
    for (members, encoding) in [(3, Encoding::Listpack), (4, Encoding::Skiplist)] {
        let mut builder = Builder::with_capacity(0);
        for index in 0..members {
            builder.merge(format!("m{index}").as_bytes(), f64::from(index), |_| 0.0);
            builder.merge(format!("m{index}").as_bytes(), 0.0, |score| -score);
        }
        let set = builder.finish(limits);
        assert_eq!((set.view().encoding(), set.view().len()), (encoding, members as usize));
        assert_eq!(set.view().rank(b"m2"), Some((members as usize - 3, -2.0)));
    }
}

#[test]
fn ranges_of_members() {
    for limits in [PACKED, LARGE] {
        let mut set = SortedSet::empty();
        for member in ["", "a", "b", "ba", "c", "10"] {
            set.add(member.as_bytes(), 0.0, AddOptions::default(), limits);
        }
        // The members in order are "", 10, a, b, ba and c.
        for (min, max, ranks) in [
            ("-", "+", 0..6),
            ("[a", "(c", 2..5),
            ("(a", "[c", 3..6),
            ("(b", "(ba", 4..4),
            ("[x", "+", 6..6),
            ("[c", "[a", 0..0),
        ] {
            let range = LexRange::parse(min.as_bytes(), max.as_bytes()).unwrap();
            for reverse in [false, true] {
                let found = set.view().lex_range(&range, reverse);
                assert!(found == ranks || (found.is_empty() && ranks.is_empty()), "{min} {max}: {found:?}");
            }
        }
    }
}

#[test]
fn a_scan_visits_all() {
    let mut set = SortedSet::empty();
    for index in 0..2_000 {
        set.add(format!("m{index}").as_bytes(), f64::from(index), AddOptions::default(), LARGE);
    }
    let (mut cursor, mut seen) = (0, 0);
    loop {
        cursor = set.view().scan(cursor, 10, |_, _| seen += 1);
        if cursor == 0 {
            break;
        }
    }
    assert_eq!(seen, 2_000);
}
