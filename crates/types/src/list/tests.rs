//! Tests that compare lists with a plain model.

use super::*;
use crate::cut::PieceMax;
use crate::testing::Random;

fn text(random: &mut Random) -> Vec<u8> {
    match random.below(6) {
        0 | 1 => random.between(-300, 300).to_string().into_bytes(),
        2 => random.text(b"abc", 0, 2),
        3 => random.bytes(0, 40),
        4 => random.bytes(0, 400),
        _ => {
            let most = if random.one_in(10) { 20_000 } else { 90 };
            random.bytes(0, most)
        }
    }
}

fn elements(list: &List) -> Vec<Vec<u8>> {
    let mut elements = Vec::new();
    list.view().for_each(|element| elements.push(element.to_vec()));
    elements
}

/// Adds up the memory of all nodes, for which `allocated_bytes` uses a running sum.
fn summed_bytes(list: &List) -> usize {
    match list {
        List::Packed(pack) => pack.allocated_bytes(),
        List::Nodes(list) => {
            let mut copy = list.nodes().iter().map(node::Node::allocated_bytes).sum::<usize>();
            copy += list.nodes().capacity() * size_of::<node::Node>() + size_of::<Quicklist>();
            copy
        }
    }
}

#[track_caller]
fn check(list: &List, model: &[Vec<u8>], limit: NodeLimit) {
    assert_eq!(list.view().len(), model.len());
    assert_eq!(elements(list), model);
    let mut backward = Vec::new();
    if let Some(last) = model.len().checked_sub(1) {
        list.view().visit_count(last, true, usize::MAX, |element| backward.push(element.to_vec()));
    }
    backward.reverse();
    assert_eq!(backward, model);
    assert_eq!(list.allocated_bytes(), summed_bytes(list));
    if let List::Nodes(list) = list {
        for node in list.nodes() {
            assert!(node.len() > 0);
            assert!(node.len() <= limit.entries);
            assert!(node.entry_bytes() <= limit.bytes || node.len() == 1, "{} bytes", node.entry_bytes());
        }
        let (depth, len) = (limit.plain_depth as usize, list.nodes().len());
        for (number, node) in list.nodes().iter().enumerate() {
            let in_middle = depth > 0 && number >= depth && number + depth < len;
            assert!(in_middle || !node.is_compressed(), "node {number} of {len}");
        }
    }
}

fn random_change(random: &mut Random, list: &mut List, model: &mut Vec<Vec<u8>>, limit: NodeLimit) {
    let value = text(random);
    let index = random.below(model.len() as u64 + 1) as usize;
    match random.below(14) {
        0..=2 => {
            list.push(End::Left, &value, limit);
            model.insert(0, value);
        }
        3..=5 => {
            list.push(End::Right, &value, limit);
            model.push(value);
        }
        6 => {
            let popped = list.pop(End::Left, |element| element.to_vec());
            assert_eq!(popped, (!model.is_empty()).then(|| model.remove(0)));
        }
        7 => assert_eq!(list.pop(End::Right, |element| element.to_vec()), model.pop()),
        8 => {
            list.insert(index, &value, limit);
            model.insert(index, value);
        }
        9 => {
            let done = list.set(index, &value, limit);
            assert_eq!(done, index < model.len());
            if done {
                model[index] = value;
            }
        }
        10 | 11 => {
            let wanted = if random.one_in(3) || model.is_empty() {
                value
            } else {
                random.pick(&model.iter().collect::<Vec<_>>()).clone()
            };
            let most = 1 + random.below(4) as usize;
            let backward = random.one_in(2);
            let removed = list.remove_equal(&wanted, most, backward, limit);
            let mut expected = 0;
            while expected < most {
                let at = if backward {
                    model.iter().rposition(|v| *v == wanted)
                } else {
                    model.iter().position(|v| *v == wanted)
                };
                let Some(at) = at else { break };
                model.remove(at);
                expected += 1;
            }
            assert_eq!(removed, expected);
        }
        12 if random.one_in(4) => {
            let count = index / 2;
            list.trim(End::Left, count);
            model.drain(..count.min(model.len()));
        }
        13 if random.one_in(4) => {
            let count = index / 2;
            list.trim(End::Right, count);
            model.truncate(model.len() - count.min(model.len()));
        }
        _ => {
            let expected = model.get(index).cloned();
            assert_eq!(list.view().get(index as i64, |element| element.to_vec()), expected);
            let negative = index as i64 - model.len() as i64;
            let expected = if negative < 0 { expected } else { model.first().cloned() };
            assert_eq!(list.view().get(negative, |element| element.to_vec()), expected);
        }
    }
}

#[test]
fn random_changes_agree_with_a_plain_model() {
    let mut random = Random::with_printed_seed("list");
    for round in 0..120 {
        let setting = random.pick(&[-2, -2, -1, -5, 1, 3, 100]);
        let plain_depth = random.pick(&[0, 0, 1, 2]);
        let alone_bytes = random.pick(&[1, 60, ALONE_BYTES_DEFAULT, ALONE_BYTES_DEFAULT]);
        let limit = NodeLimit { plain_depth, alone_bytes, ..NodeLimit::from_setting(setting) };
        let (mut list, mut model) = (List::empty(), Vec::new());
        let changes = if round % 10 == 0 { 3000 } else { 300 };
        for change in 0..changes {
            random_change(&mut random, &mut list, &mut model, limit);
            if change % 50 == 0 {
                check(&list, &model, limit);
            }
        }
        check(&list, &model, limit);
        let copy = list.try_clone().unwrap();
        assert_eq!(copy, list);
        check(&copy, &model, limit);
    }
}

/// Any change of a list leaves the nodes in the middle compressed, so they take less memory.
#[test]
fn the_middle_of_a_list_is_compressed() {
    for depth in [1, 2, 5] {
        let limit = NodeLimit { plain_depth: depth, ..NodeLimit::from_setting(-1) };
        let (mut list, mut plain) = (List::empty(), List::empty());
        for number in 0..5000 {
            let end = if number % 3 == 0 { End::Left } else { End::Right };
            let element = format!("element number {number} of many that are alike");
            list.push(end, element.as_bytes(), limit);
            plain.push(end, element.as_bytes(), NodeLimit { plain_depth: 0, ..limit });
        }
        let check = |list: &List| {
            let stats = list.view().stats();
            assert!(stats.compresses);
            assert_eq!(stats.compressed, stats.nodes.saturating_sub(2 * depth as usize));
            assert_eq!(list.allocated_bytes(), summed_bytes(list));
        };
        check(&list);
        assert_eq!(list, plain);
        assert!(list.allocated_bytes() * 2 < plain.allocated_bytes(), "{}", list.allocated_bytes());
        for index in [1000, 2500, 4000] {
            for list in [&mut list, &mut plain] {
                list.insert(index, b"an element that came later, as the others", limit);
                list.set(index + 400, b"an element that was changed, as the others", limit);
            }
            check(&list);
        }
        for list in [&mut list, &mut plain] {
            assert_eq!(list.remove_equal(b"element number 2000 of many that are alike", 9, true, limit), 1);
            list.trim(End::Left, 1234);
            list.trim(End::Right, 777);
        }
        check(&list);
        assert_eq!(list, plain);
        check(&list.try_clone().unwrap());
        for end in [End::Left, End::Right].into_iter().cycle() {
            let popped = list.pop(end, |element| element.to_vec());
            assert_eq!(popped, plain.pop(end, |element| element.to_vec()));
            check(&list);
            if popped.is_none() {
                break;
            }
        }
    }
}

/// The memory usage of a queue of constant length stays bounded, in either direction.
#[test]
fn a_queue_keeps_its_memory() {
    let limit = NodeLimit::from_setting(-2);
    for (push, pop) in [(End::Left, End::Right), (End::Right, End::Left), (End::Left, End::Left)] {
        let mut list = List::empty();
        for number in 0..1000 {
            list.push(push, format!("element:{number}").as_bytes(), limit);
        }
        let mut most = 0;
        for number in 0..20_000 {
            list.push(push, format!("element:{number}").as_bytes(), limit);
            list.pop(pop, |_| ());
            most = most.max(list.allocated_bytes());
        }
        assert_eq!(list.view().len(), 1000);
        // 1,000 elements of 15 bytes plus 2 each, in nodes that are at least half full, and two
        // nodes at the ends.
        assert!(most < 55_000, "{most}");
        list.trim(End::Left, 997);
        assert!(list.allocated_bytes() < 9_000, "{}", list.allocated_bytes());
    }
}

#[test]
fn limits_of_nodes() {
    let bytes = |setting| NodeLimit::from_setting(setting).bytes;
    assert_eq!([-1, -2, -3, -4, -5, -6, i32::MIN].map(bytes), [4096, 8192, 16384, 32768, 65536, 65536, 65536]);
    let entries = |setting| NodeLimit::from_setting(setting).entries;
    assert_eq!([0, 1, 7, 40_000].map(entries), [1, 1, 7, 32_768]);
}

#[test]
fn ranges_as_in_redis() {
    assert_eq!(resolve_range(0, -1, 5), (0, 5));
    assert_eq!(resolve_range(-100, 100, 5), (0, 5));
    assert_eq!(resolve_range(3, 2, 5), (0, 0));
    assert_eq!(resolve_range(i64::MIN, i64::MAX, 5), (0, 5));
    assert_eq!(resolve_range(5, 9, 5), (0, 0));
    assert_eq!(resolve_range(-2, -2, 5), (3, 1));
    assert_eq!(resolve(-6, 5), None);
    assert_eq!(resolve(i64::MIN, 5), None);
    assert_eq!(resolve(-5, 5), Some(0));
}

/// One pass removes all nodes that become empty, at either end and in the middle. A cut still reads
/// the elements that existed when it started.
#[test]
fn a_removal_empties_many_nodes() {
    for (setting, plain_depth) in [(1, 0), (2, 0), (2, 2), (-1, 1)] {
        let limit = NodeLimit { plain_depth, ..NodeLimit::from_setting(setting) };
        for backward in [false, true] {
            for (most, expected) in [(usize::MAX, 1500), (700, 700), (1, 1)] {
                let mut list = List::empty();
                let value = |number: usize| if number % 4 == 1 { format!("kept {number}") } else { "x".repeat(3000) };
                let mut model: Vec<Vec<u8>> = (0..2000).map(|number| value(number).into_bytes()).collect();
                model.iter().for_each(|value| list.push(End::Right, value, limit));
                let before = model.clone();
                assert!(list.view().begin_cut());
                assert_eq!(list.remove_equal(value(0).as_bytes(), most, backward, limit), expected);
                for _ in 0..expected {
                    let at = if backward {
                        model.iter().rposition(|other| *other == before[0])
                    } else {
                        model.iter().position(|other| *other == before[0])
                    };
                    model.remove(at.unwrap());
                }
                check(&list, &model, limit);
                let mut cut = Vec::new();
                list.view().read_cut(PieceMax { elements: usize::MAX, bytes: usize::MAX }, |run| {
                    run.pack.range(run.first, run.end).for_each(|element| cut.push(element.to_vec()));
                });
                assert!(cut == before, "the cut lost an element");
            }
        }
    }
}
