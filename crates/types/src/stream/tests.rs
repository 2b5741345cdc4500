//! Tests that compare streams and groups with plain models, and tests of a stream's listpacks.

use std::collections::BTreeMap;

use super::*;
use crate::testing::Random;

type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

const LIMITS: NodeLimits = NodeLimits { bytes: 4096, entries: 100 };

fn id(ms: u64, seq: u64) -> StreamId {
    StreamId { ms, seq }
}

fn texts(fields: Fields<'_>) -> Pairs {
    fields.map(|(name, value)| (name.to_vec(), value.to_vec())).collect()
}

fn pairs(fields: &Pairs) -> impl ExactSizeIterator<Item = (&[u8], &[u8])> + Clone {
    fields.iter().map(|(name, value)| (&name[..], &value[..]))
}

fn add(stream: &mut Stream, wanted: NewId, fields: &Pairs, limits: &NodeLimits) -> Result<StreamId, AppendError> {
    stream.append(wanted, 1_000, pairs(fields), limits)
}

fn simple(stream: &mut Stream, ids: std::ops::Range<u64>) {
    for ms in ids {
        add(stream, NewId::Given(id(ms, 0)), &vec![(b"f".to_vec(), b"v".to_vec())], &LIMITS).unwrap();
    }
}

fn ids(stream: &Stream) -> Vec<StreamId> {
    let mut ids = Vec::new();
    stream.range(StreamId::MIN, StreamId::MAX, usize::MAX, |id, _| ids.push(id));
    ids
}

/// Compares the running sums with the allocations.
fn check_tally(stream: &Stream) {
    assert_eq!(stream.node_bytes, stream.nodes.iter().map(Node::allocated_bytes).sum::<usize>());
    assert_eq!(stream.group_bytes, stream.groups.iter().map(Group::allocated_bytes).sum::<usize>());
    for (node, (_, listpack)) in stream.nodes.iter().zip(stream.listpacks()) {
        assert_eq!(node.listpack_len_bytes(), listpack.len());
    }
    let live: u64 = stream.nodes.iter().map(|node| u64::from(node.live)).sum();
    assert_eq!(stream.length(), live);
    for group in stream.groups() {
        let of_consumers: usize = group.consumers().map(Consumer::pending_len).sum();
        assert_eq!(group.pending_len(), of_consumers);
        for consumer in group.consumers() {
            assert!(consumer.pending().all(|id| {
                group.pending_from(id).next().is_some_and(|found| found.id == id && found.consumer == consumer.name())
            }));
        }
    }
}

fn random_pairs(random: &mut Random) -> Pairs {
    let text = |random: &mut Random| match random.below(4) {
        0 => random.bytes(0, 5),
        1 => ((random.next() as i64) >> random.below(64)).to_string().into_bytes(),
        2 => random.bytes(0, 80),
        _ => b"abc"[..random.below(4) as usize].to_vec(),
    };
    if random.one_in(200) {
        return vec![(b"long".to_vec(), random.bytes(4_000, 20_000))];
    }
    if random.below(3) > 0 {
        return vec![(b"a".to_vec(), text(random)), (b"12".to_vec(), text(random))];
    }
    (0..1 + random.below(4)).map(|_| (text(random), text(random))).collect()
}

fn random_id(random: &mut Random, last: StreamId) -> NewId {
    match random.below(8) {
        0 => NewId::Auto,
        1 => NewId::AutoSeq(last.ms + random.below(3)),
        2 => NewId::Given(id(last.ms, last.seq + random.below(100))),
        3 => NewId::Given(id(last.ms + random.below(100), random.below(3))),
        4 => NewId::Given(id(last.ms + random.below(100_000), random.below(1_000))),
        _ => NewId::Given(id(last.ms + 1, 0)),
    }
}

/// Compares a stream with a map after every kind of change to the stream's entries.
#[test]
fn entries_agree_with_a_plain_model() {
    let mut random = Random::with_printed_seed("stream entries");
    for round in 0..40 {
        let limits = NodeLimits { bytes: random.pick(&[0, 100, 4096]), entries: random.pick(&[0, 1, 3, 100]) };
        let (mut stream, mut model) = (Stream::default(), BTreeMap::new());
        for step in 0..400 {
            match random.below(10) {
                0 => {
                    let doomed: Vec<StreamId> = (0..1 + random.below(3))
                        .filter_map(|_| model.keys().nth(random.below(1 + model.len() as u64) as usize).copied())
                        .collect();
                    let expected = doomed.iter().filter(|id| model.remove(id).is_some()).count();
                    assert_eq!(stream.delete(&doomed), expected as u64);
                }
                1 if random.one_in(6) => {
                    let most = random.below(model.len() as u64 + 2);
                    let expected = (model.len() as u64).saturating_sub(most);
                    assert_eq!(stream.trim(Trim::Length(most), false, 0), expected);
                    for _ in 0..expected {
                        model.pop_first();
                    }
                }
                2 if random.one_in(6) => {
                    let least = id(random.below(1 + stream.counters().last_id.ms), random.below(3));
                    let kept = model.split_off(&least);
                    assert_eq!(stream.trim(Trim::Id(least), false, 0), model.len() as u64);
                    model = kept;
                }
                3 if random.one_in(6) => {
                    let most = random.below(model.len() as u64 + 2);
                    let trimmed = stream.trim(Trim::Length(most), true, random.below(20));
                    for _ in 0..trimmed {
                        model.pop_first();
                    }
                    assert!(model.len() as u64 >= most || trimmed == 0);
                }
                _ => {
                    let fields = random_pairs(&mut random);
                    let last = stream.counters().last_id;
                    let wanted = random_id(&mut random, last);
                    match add(&mut stream, wanted, &fields, &limits) {
                        Ok(new) => {
                            assert!(new > last);
                            model.insert(new, fields);
                        }
                        Err(error) => {
                            assert_eq!(error, AppendError::NotAbove);
                            assert!(matches!(wanted, NewId::Given(id) if id <= last), "{wanted:?} after {last}");
                        }
                    }
                }
            }
            if step % 20 == round % 20 {
                compare_ranges(&stream, &model, &mut random);
            }
        }
        check_tally(&stream);
        assert!(Stream::clone(&stream) == stream);
        check_tally(&stream.clone());
    }
}

fn compare_ranges(stream: &Stream, model: &BTreeMap<StreamId, Pairs>, random: &mut Random) {
    assert_eq!(stream.length(), model.len() as u64);
    assert_eq!(stream.counters().first_id, model.keys().next().copied().unwrap_or_default());
    assert_eq!(stream.last_entry_id(), model.keys().next_back().copied());
    let span = stream.counters().last_id.ms + 2;
    let (start, end) = (id(random.below(span), random.below(3)), id(random.below(span), random.below(3)));
    let count = 1 + random.below(50) as usize;
    for (start, end) in [(StreamId::MIN, StreamId::MAX), (start, end), (start, StreamId::MAX), (start, start)] {
        let within: Vec<_> = model.iter().filter(|(id, _)| (start..=end).contains(id)).collect();
        let mut shown = Vec::new();
        let number = stream.range(start, end, count, |id, fields| shown.push((id, texts(fields))));
        assert_eq!(number, shown.len());
        assert!(shown.iter().map(|(id, fields)| (id, fields)).eq(within.iter().copied().take(count)));
        shown.clear();
        stream.range_reversed(start, end, count, |id, fields| shown.push((id, texts(fields))));
        assert!(shown.iter().map(|(id, fields)| (id, fields)).eq(within.iter().rev().copied().take(count)));
        assert_eq!(stream.contains(start), model.contains_key(&start));
    }
}

/// Any change of groups keeps the pending entries of groups and consumers consistent, and the
/// running sum exact.
#[test]
fn groups_and_consumers_stay_consistent() {
    let mut random = Random::with_printed_seed("stream groups");
    for _ in 0..30 {
        let mut stream = Stream::default();
        stream.create_group(b"g", StreamId::MIN, 0);
        let names: [&[u8]; 3] = [b"one", b"two", b"a consumer of a longer name"];
        for now_ms in 0..600 {
            let consumer = random.pick(&names);
            let some = id(random.below(1 + stream.counters().last_id.ms), 0);
            let how = Claim {
                consumer,
                min_idle_ms: random.pick(&[0, 0, 50]),
                delivered_ms: now_ms,
                deliveries: random.pick(&[None, Some(7)]),
                force: random.one_in(2),
                just_id: random.one_in(2),
                now_ms,
            };
            match random.below(12) {
                0..=3 => {
                    let next = stream.counters().last_id.ms + 1;
                    simple(&mut stream, next..next + 1 + random.below(5));
                }
                4 | 5 => {
                    let before = stream.group_at(0).last_id();
                    let count = 1 + random.below(9) as usize;
                    let mut expected = ids(&stream);
                    expected.retain(|&id| id > before);
                    expected.truncate(count);
                    let mut shown = Vec::new();
                    let done = stream.deliver(0, consumer, count, now_ms, random.one_in(4), |id, _| shown.push(id));
                    assert_eq!((done.entries, shown), (expected.len(), expected));
                }
                6 => {
                    let known = stream.group_at(0).pending_from(some).any(|found| found.id == some);
                    assert_eq!(stream.acknowledge(0, some), known);
                }
                7 => {
                    stream.claim(0, &[some], &how, |_, _| ());
                }
                8 => {
                    let count = 1 + random.below(9) as usize;
                    let done = stream.claim_pending(0, some, count, 10 * count, &how, |_, _| ());
                    assert!(done.claimed + done.deleted.len() <= count);
                }
                9 => {
                    let now = stream.redeliver(0, consumer, some, 5, now_ms, |_, _| ());
                    assert!(now.entries <= 5);
                }
                10 => {
                    stream.delete(&[some]);
                }
                _ if random.one_in(8) => {
                    stream.set_group_id(0, some, ENTRIES_READ_UNKNOWN);
                }
                _ if random.one_in(8) => {
                    stream.remove_consumer(0, consumer);
                }
                _ => {}
            }
        }
        check_tally(&stream);
        assert!(Stream::clone(&stream) == stream);
        let restored = restore(&stream).unwrap();
        assert_eq!(ids(&restored), ids(&stream));
        for (mine, theirs) in restored.groups().zip(stream.groups()) {
            assert!(mine.pending_from(StreamId::MIN).eq(theirs.pending_from(StreamId::MIN)));
            assert!(mine.consumers().map(Consumer::name).eq(theirs.consumers().map(Consumer::name)));
        }
        check_tally(&restored);
        assert!(stream.destroy_group(b"g") && !stream.destroy_group(b"g"));
        check_tally(&stream);
    }
}

/// Rebuilds a stream from the parts of its payload, as `RESTORE` does.
fn restore(stream: &Stream) -> Result<Stream, Corrupt> {
    let mut restored = Stream::default();
    for (first, listpack) in stream.listpacks() {
        restored.restore_node(first, &listpack)?;
    }
    restored.restore_counters(*stream.counters())?;
    for group in stream.groups() {
        let mut copy = RestoredGroup::new(group.name(), group.last_id(), group.entries_read());
        for pending in group.pending_from(StreamId::MIN) {
            copy.add_pending(pending.id, pending.delivered_ms, pending.deliveries)?;
        }
        for consumer in group.consumers() {
            copy.add_consumer(consumer.name(), consumer.seen_ms(), consumer.pending())?;
        }
        restored.restore_group(copy)?;
    }
    Ok(restored)
}

#[test]
fn listpacks_round_trip() {
    let mut random = Random::with_printed_seed("stream listpacks");
    for _ in 0..50 {
        let mut stream = Stream::default();
        for _ in 0..random.below(300) {
            let fields = random_pairs(&mut random);
            let wanted = random_id(&mut random, stream.counters().last_id);
            let _ = add(&mut stream, wanted, &fields, &LIMITS);
            if random.one_in(4) {
                let first = stream.counters().first_id;
                stream.delete(&[first]);
            }
        }
        let restored = restore(&stream).unwrap();
        assert_eq!(ids(&restored), ids(&stream));
        assert!(restored.listpacks().eq(stream.listpacks()));
        check_tally(&restored);
    }
}

/// The expected bytes come from `DUMP` of redis-server 7.0.15 after `XADD s 5-1 f 1`, `XADD s 5-3 f
/// hello`, `XADD s 7-0 g 2`, `XDEL s 5-1`.
#[test]
fn a_listpack_equals_that_of_redis() {
    let mut stream = Stream::default();
    for (new, name, value) in [(id(5, 1), "f", "1"), (id(5, 3), "f", "hello"), (id(7, 0), "g", "2")] {
        let fields = vec![(name.as_bytes().to_vec(), value.as_bytes().to_vec())];
        add(&mut stream, NewId::Given(new), &fields, &LIMITS).unwrap();
    }
    stream.delete(&[id(5, 1)]);
    let (first, listpack) = stream.listpacks().next().unwrap();
    assert_eq!(first, id(5, 1));
    let mut expected = vec![2, 1, 1, 1, 1, 1, 0x81, b'f', 2, 0, 1];
    expected.extend([3, 1, 0, 1, 0, 1, 1, 1, 4, 1]);
    expected.extend([2, 1, 0, 1, 2, 1, 0x85, b'h', b'e', b'l', b'l', b'o', 6, 4, 1]);
    expected.extend([0, 1, 2, 1, 0xdf, 0xff, 2, 1, 1, 0x81, b'g', 2, 2, 1, 6, 1]);
    assert_eq!(listpack[6..listpack.len() - 1], expected);
    assert_eq!(usize::from(listpack[0]), listpack.len());
    assert_eq!((listpack[4], *listpack.last().unwrap()), (22, 0xff));
}

#[test]
fn corrupt_listpacks_are_rejected() {
    let mut random = Random::with_printed_seed("corrupt listpacks");
    let mut stream = Stream::default();
    for _ in 0..20 {
        let fields = random_pairs(&mut random);
        let wanted = random_id(&mut random, stream.counters().last_id);
        let _ = add(&mut stream, wanted, &fields, &NodeLimits { bytes: 0, entries: 0 });
    }
    let (first, whole) = stream.listpacks().next().unwrap();
    assert!(Stream::default().restore_node(first, &whole).is_ok());
    for len in 0..whole.len() {
        assert!(Stream::default().restore_node(first, &whole[..len]).is_err(), "truncated to {len}");
    }
    for _ in 0..20_000 {
        let mut bent = whole.clone();
        for _ in 0..1 + random.below(3) {
            let at = random.below(bent.len() as u64) as usize;
            bent[at] = random.next() as u8;
        }
        let mut restored = Stream::default();
        if restored.restore_node(first, &bent).is_ok() {
            check_tally(&restored);
            assert!(ids(&restored).is_sorted());
        }
    }
    let mut twice = Stream::default();
    twice.restore_node(first, &whole).unwrap();
    assert_eq!(twice.restore_node(first, &whole), Err(Corrupt), "ids must ascend");
    assert_eq!(twice.restore_counters(Counters::default()), Err(Corrupt), "the length is wrong");
}

#[test]
fn an_id_may_repeat_after_xsetid() {
    let mut stream = Stream::default();
    simple(&mut stream, 1..4);
    stream.create_group(b"g", StreamId::MIN, 0);
    stream.deliver(0, b"c", 3, 0, true, |_, _| ());
    stream.trim(Trim::Length(0), false, 0);
    stream.set_id(StreamId::MIN, None, None);
    stream.set_group_id(0, StreamId::MIN, ENTRIES_READ_UNKNOWN);
    let long = vec![(vec![b'n'; 300], vec![b'v'; 300])];
    add(&mut stream, NewId::Given(id(1, 0)), &long, &LIMITS).unwrap();
    let mut shown = Vec::new();
    stream.deliver(0, b"c", 3, 0, true, |id, fields| shown.push((id, texts(fields))));
    assert_eq!(shown, [(id(1, 0), long)]);
}

/// `XSETID` may lower the last id below the ids of deleted entries, which stay in their nodes.
#[test]
fn entries_after_deleted_ones_with_higher_ids() {
    let mut random = Random::with_printed_seed("stream disorder");
    for _ in 0..300 {
        let limits = NodeLimits { bytes: 4096, entries: 1 + random.below(6) };
        let (mut stream, mut model) = (Stream::default(), BTreeMap::new());
        for _ in 0..80 {
            let last = stream.counters().last_id;
            match random.below(5) {
                0 => {
                    let top = stream.last_entry_id().unwrap_or_default();
                    stream.set_id(id(top.ms + random.below(3), top.seq), None, None);
                }
                1 => {
                    let least = id(random.below(last.ms + 2), 0);
                    let before = ids(&stream);
                    let trimmed = stream.trim(Trim::Id(least), false, 0);
                    for gone in before.iter().take(trimmed as usize) {
                        model.remove(gone);
                    }
                }
                2 => {
                    let doomed = id(last.ms.saturating_sub(random.below(3)), 0);
                    assert_eq!(stream.delete(&[doomed]), u64::from(model.remove(&doomed).is_some()));
                }
                _ => {
                    let fields = vec![(b"f".to_vec(), b"v".to_vec())];
                    let new = add(&mut stream, NewId::Given(id(last.ms + 1, 0)), &fields, &limits).unwrap();
                    model.insert(new, fields);
                }
            }
            compare_ranges(&stream, &model, &mut random);
        }
        check_tally(&stream);
        assert!(restore(&stream).is_ok_and(|restored| ids(&restored) == ids(&stream)));
    }
}

#[test]
fn no_id_after_the_last() {
    let mut stream = Stream::default();
    let fields = vec![(b"f".to_vec(), b"v".to_vec())];
    let given = NewId::Given(StreamId::MAX);
    assert_eq!(add(&mut stream, NewId::Given(StreamId::MIN), &fields, &LIMITS), Err(AppendError::NotAbove));
    assert_eq!(add(&mut stream, NewId::AutoSeq(0), &fields, &LIMITS), Ok(id(0, 1)));
    assert_eq!(add(&mut stream, given, &fields, &LIMITS), Ok(StreamId::MAX));
    for wanted in [NewId::Auto, given, NewId::AutoSeq(u64::MAX)] {
        assert_eq!(add(&mut stream, wanted, &fields, &LIMITS), Err(AppendError::Exhausted));
    }
    assert_eq!(stream.range(StreamId::MAX, StreamId::MAX, 5, |_, _| ()), 1);
}

/// Checks the costs that the head of `mod.rs` states.
#[test]
fn costs_in_bytes() {
    assert!(size_of::<Stream>() < 210, "{}", size_of::<Stream>());
    assert_eq!(size_of::<Node>(), 72);
    assert_eq!((size_of::<group::Nack>(), size_of::<Option<Consumer>>()), (40, 72));
    let mut stream = Stream::default();
    simple(&mut stream, 1..101);
    let entries = stream.nodes.first().unwrap().listpack_len_bytes();
    assert!(entries > 1_100, "{entries}: of Redis's");
    simple(&mut stream, 101..102);
    let node = stream.nodes.first().unwrap().allocated_bytes();
    assert!((300..=310).contains(&node), "{node}");
}

/// Tests the propagated form of `XTRIM ~`: a deleted entry at the front counts, as in Redis.
#[test]
fn an_exact_trim_to_the_remaining_entries_removes_nothing() {
    let mut stream = Stream::default();
    let nothing = Trim::Id(StreamId::MIN);
    assert_eq!(stream.remaining_threshold(nothing), Trim::Id(StreamId::MAX));
    simple(&mut stream, 1..6);
    stream.delete(&[id(1, 0)]);
    assert_eq!(stream.remaining_threshold(nothing), Trim::Id(id(1, 0)));
    assert_eq!(stream.remaining_threshold(Trim::Length(0)), Trim::Length(4));
    for to in [nothing, Trim::Length(0)] {
        let left = stream.remaining_threshold(to);
        assert_eq!(stream.trim(left, false, 0), 0);
    }
}

#[test]
fn claims_show_the_new_state_of_entries_and_the_former_state_of_deleted_ones() {
    let mut stream = Stream::default();
    simple(&mut stream, 1..4);
    stream.create_group(b"g", StreamId::MIN, ENTRIES_READ_UNKNOWN);
    stream.deliver(0, b"first", 3, 5, false, |_, _| ());
    stream.delete(&[id(2, 0)]);
    let how = Claim {
        consumer: b"second",
        min_idle_ms: 0,
        delivered_ms: 7,
        deliveries: None,
        force: false,
        just_id: false,
        now_ms: 9,
    };
    let ids = [id(1, 0), id(2, 0), id(9, 0)];
    let mut shown = Vec::new();
    stream.claim(0, &ids, &how, |pending, fields| {
        let Pending { id, consumer, delivered_ms, deliveries } = pending;
        shown.push((id, consumer.to_vec(), delivered_ms, deliveries, fields.is_some()));
    });
    assert_eq!(shown, [(id(1, 0), b"second".to_vec(), 7, 2, true), (id(2, 0), b"first".to_vec(), 5, 1, false)]);
    assert_eq!(stream.group_at(0).pending_len(), 2);
    assert!(!stream.raise_group_id(0, id(3, 0)));
    assert!(stream.raise_group_id(0, id(3, 1)));
}
