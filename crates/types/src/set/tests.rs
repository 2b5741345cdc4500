//! Tests that compare sets with `BTreeSet`.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::*;
use crate::testing::Random;

type Members = BTreeSet<Vec<u8>>;
type Operation = fn(&Members, &Members) -> Members;

fn contents(set: &Set) -> BTreeSet<Vec<u8>> {
    let mut all = BTreeSet::new();
    set.view().for_each(|element| assert!(all.insert(element.to_vec())));
    assert_eq!(all.len(), set.view().len());
    all
}

fn member(random: &mut Random, kind: u64) -> Vec<u8> {
    match kind {
        0 => random.between(-20, 200).to_string().into_bytes(),
        1 => ((random.next() as i64) >> random.below(64)).to_string().into_bytes(),
        2 => random.text(b"ab1", 0, 4),
        _ => random.text(b"abc", 5, 9),
    }
}

fn build(random: &mut Random, intset_entries_max: usize) -> (Set, BTreeSet<Vec<u8>>) {
    let (mut set, mut model) = (Set::empty(), BTreeSet::new());
    let (size, kinds) = (random.pick(&[0, 1, 5, 40, 300]), 1 + random.below(4));
    for _ in 0..random.below(size + 1) {
        let kind = random.below(kinds);
        let member = member(random, kind);
        assert_eq!(set.add(&member, intset_entries_max), model.insert(member));
    }
    (set, model)
}

#[test]
fn random_changes_agree_with_a_sorted_set() {
    let mut random = Random::with_printed_seed("set");
    for _ in 0..300 {
        let entries_max = random.pick(&[0, 3, 512]);
        let (mut set, mut model) = build(&mut random, entries_max);
        for _ in 0..60 {
            let kind = random.below(4);
            let member = member(&mut random, kind);
            let mut room = Vec::new();
            assert_eq!(set.view().contains(&member), model.contains(&member));
            assert_eq!(set.view().contains_element(Element::of(&member), &mut room), model.contains(&member));
            match random.below(3) {
                0 => assert_eq!(set.remove(&member), model.remove(&member)),
                1 => assert_eq!(set.add(&member, entries_max), model.insert(member)),
                _ if !set.is_empty() => {
                    let index = random.below(set.view().len() as u64) as usize;
                    let taken = set.view().nth(index).unwrap().to_vec();
                    set.remove_nth(index);
                    assert!(model.remove(&taken));
                }
                _ => {}
            }
            assert_eq!(set.view().encoding() == Encoding::Intset, matches!(set, Set::IntSet(_)));
        }
        assert_eq!(contents(&set), model);
        assert_eq!(set.view().nth(model.len()), None);
        assert_eq!(contents(&set.try_clone().unwrap()), model);
        if let Some((form, bytes)) = set.packed() {
            let view = Set::view_packed(form, bytes).unwrap();
            assert_eq!(view.len(), model.len());
            assert!(!matches!(set, Set::Packed(_)) || bytes.len() <= INLINE_PACKED_BYTES_MAX);
            let again = Set::from_packed(form, bytes.to_vec()).unwrap();
            assert_eq!(contents(&again), model);
        }
    }
}

#[test]
fn algebra_agrees_with_sorted_sets() {
    let mut random = Random::with_printed_seed("set_algebra");
    for _ in 0..400 {
        let max = random.pick(&[0, 10, 512]);
        let sets: Vec<_> = (0..1 + random.below(4))
            .map(|_| if random.one_in(8) { None } else { Some(build(&mut random, max)) })
            .collect();
        let views: Vec<_> = sets.iter().map(|set| set.as_ref().map(|(set, _)| set.view())).collect();
        let models: Vec<_> =
            sets.iter().map(|set| set.as_ref().map_or(BTreeSet::new(), |(_, model)| model.clone())).collect();
        let all = |op: Operation| models[1..].iter().fold(models[0].clone(), |result, model| op(&result, model));
        let check = |expected: &BTreeSet<Vec<u8>>, stored: &Set, shown: &[Vec<u8>], count: usize| {
            assert_eq!(contents(stored), *expected);
            assert_eq!(shown.iter().cloned().collect::<BTreeSet<_>>(), *expected);
            assert_eq!((shown.len(), count), (expected.len(), expected.len()));
        };
        let mut shown = Vec::new();
        let expected = all(|a, b| a & b);
        let count = each_intersection(&views, usize::MAX, |element| shown.push(element.to_vec()));
        check(&expected, &intersection(&views, max), &shown, count);
        assert_eq!(each_intersection(&views, 3, |_| {}), expected.len().min(3));
        shown.clear();
        let expected = all(|a, b| a | b);
        let count = each_union(&views, |element| shown.push(element.to_vec()));
        check(&expected, &union(&views, max), &shown, count);
        let is_intset = expected.len() <= max && expected.iter().all(|member| crate::parse_i64(member).is_some());
        assert_eq!(matches!(union(&views, max), Set::IntSet(_)), is_intset || expected.is_empty());
        shown.clear();
        let expected = all(|a, b| a - b);
        let count = each_difference(&views, |element| shown.push(element.to_vec()));
        check(&expected, &difference(&views, max), &shown, count);
    }
}

#[test]
fn forms_change_at_their_limits_and_never_back() {
    let mut set = Set::empty();
    for value in 0..512 {
        assert!(set.add(value.to_string().as_bytes(), 512));
    }
    assert!(matches!(set, Set::IntSet(_)));
    assert!(set.add(b"512", 512));
    assert!(matches!(set, Set::Table(_)));
    for value in 1..=512 {
        assert!(set.remove(value.to_string().as_bytes()));
    }
    assert!(matches!(set, Set::Table(_)));

    let mut set = Set::empty();
    set.add(b"1", 512);
    assert_eq!(set.view().encoding(), Encoding::Intset);
    set.add(b"a", 512);
    assert!(matches!(set, Set::Packed(_)));
    assert_eq!(set.view().encoding(), Encoding::Hashtable);
    set.remove(b"a");
    assert!(matches!(set, Set::Packed(_)));
    for value in 2..=PACKED_MEMBERS_MAX {
        set.add(value.to_string().as_bytes(), 512);
        assert!(matches!(set, Set::Packed(_)), "{value}");
    }
    set.add(b"b", 512);
    assert!(matches!(set, Set::Table(_)));

    // The limit on the size: one string that fits in a packed set, and one that doesn't.
    for (len, packed) in [(INLINE_PACKED_BYTES_MAX - 2 - PACKED_OVERHEAD_BYTES, true), (INLINE_PACKED_BYTES_MAX, false)]
    {
        let mut set = Set::empty();
        set.add(&vec![b'x'; len], 512);
        assert_eq!(matches!(set, Set::Packed(_)), packed, "{len}");
    }
}

/// Checks `allocated_bytes` of an empty set and of a table with long members.
#[test]
fn allocated_bytes_of_each_form() {
    let mut set = Set::empty();
    assert_eq!(set.allocated_bytes(), 0);
    for value in 0..1000 {
        set.add(format!("a long member {value}").as_bytes(), 512);
    }
    let Set::Table(table) = &set else { panic!("a large set") };
    let pieces: usize = table.iter().map(crate::table::Item::allocated_bytes).sum();
    assert!(pieces > 15 * 1000 && set.allocated_bytes() > pieces + 20 * 1000);
}

/// A temporary result of large sets of integers is a table. Insertions into a sorted array would
/// take minutes.
#[test]
#[cfg_attr(miri, ignore = "too many members")]
fn large_sets_of_integers_are_combined_in_linear_time() {
    const MEMBERS: i64 = 600_000;
    let fill = |numbers: &mut dyn Iterator<Item = i64>| {
        let mut set = Set::empty();
        numbers.for_each(|number| assert!(set.add(number.to_string().as_bytes(), 512)));
        set
    };
    // Descending order is the most expensive for a sorted array.
    let (large, other) = (fill(&mut (0..MEMBERS).rev()), fill(&mut (MEMBERS..MEMBERS + 1000).rev()));
    let began = Instant::now();
    let views = [Some(large.view()), Some(other.view())];
    assert_eq!(each_union(&views, |_| {}), MEMBERS as usize + 1000);
    let small = fill(&mut (0..10));
    assert_eq!(
        each_difference(&[Some(large.view()), Some(small.view()), Some(other.view())], |_| {}),
        MEMBERS as usize - 10
    );
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
}

#[test]
fn a_visit_stops_at_the_first_member_that_fails() {
    for (members, encoding) in [(0..100, Encoding::Intset), (0..1000, Encoding::Hashtable)] {
        let mut set = Set::empty();
        for member in members {
            set.add(member.to_string().as_bytes(), 512);
        }
        let mut visited = 0;
        let all = set.view().all(|_| {
            visited += 1;
            visited < 5
        });
        assert_eq!((set.view().encoding(), all, visited), (encoding, false, 5));
        assert!(set.view().all(|_| true));
    }
}
