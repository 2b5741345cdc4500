//! Tests that compare bitmaps with plain models.

use super::*;
use crate::testing::Random;

fn plain_bits(bytes: &[u8]) -> Vec<bool> {
    bytes.iter().flat_map(|byte| (0..8).map(move |bit| byte & 0x80 >> bit != 0)).collect()
}

#[test]
fn bits_are_counted_from_the_top_of_each_byte() {
    let mut bytes = [0u8; 2];
    assert_eq!(set_bit(&mut bytes, 1, true), Some(false));
    assert_eq!(set_bit(&mut bytes, 15, true), Some(false));
    assert_eq!(bytes, [0x40, 1]);
    assert!(bit_at(&bytes, 1) && bit_at(&bytes, 15) && !bit_at(&bytes, 0));
    assert_eq!(set_bit(&mut bytes, 1, false), Some(true));
    assert_eq!(set_bit(&mut bytes, 16, true), None);
    assert!(!bit_at(&bytes, 16) && !bit_at(&bytes, u64::MAX));
}

/// Tests lengths on both sides of a block, a word and a byte, with sparse, dense and random
/// contents.
#[test]
fn counting_and_searching_agree_with_a_plain_model() {
    let mut random = Random::with_printed_seed("bitmap");
    for round in 0..300 {
        let mut bytes = random.bytes(1, 1200);
        match round % 3 {
            0 => bytes.iter_mut().for_each(|byte| *byte = 0),
            1 => bytes.iter_mut().for_each(|byte| *byte = 0xff),
            _ => {}
        }
        if random.one_in(2) {
            let at = random.below(bytes.len() as u64) as usize;
            bytes[at] ^= 1 << random.below(8);
        }
        let model = plain_bits(&bytes);
        assert_eq!(count_ones(&bytes), model.iter().filter(|on| **on).count() as u64);
        for _ in 0..20 {
            let start = random.below(model.len() as u64);
            let end = start + random.below(model.len() as u64 - start);
            let part = &model[start as usize..=end as usize];
            let ones = part.iter().filter(|on| **on).count() as u64;
            assert_eq!(count_ones_between(&bytes, &(start..=end)), ones, "{start} to {end}");
            for wanted in [false, true] {
                let found = part.iter().position(|on| *on == wanted).map(|at| start + at as u64);
                assert_eq!(find_bit(&bytes, wanted, &(start..=end)), found, "{wanted} in {start} to {end}");
            }
        }
    }
    let nothing = RangeInclusive::new(1, 0);
    assert_eq!((count_ones_between(b"x", &nothing), find_bit(b"x", true, &nothing)), (0, None));
}

fn combine(operation: Operation, sources: &[&[u8]]) -> RawString {
    let len = sources.iter().map(|source| source.len()).max().unwrap_or(0);
    let mut combination = Combination::try_new(operation, len).unwrap();
    while combination.next_block() {
        sources.iter().for_each(|source| combination.add(source));
    }
    combination.finish()
}

#[test]
fn combining_agrees_with_a_plain_model() {
    let mut random = Random::with_printed_seed("bitop");
    for _ in 0..200 {
        let count = random.between(1, 5);
        let len_max = random.pick(&[10, 300, 3 * BLOCK_BYTES]);
        let sources: Vec<Vec<u8>> = (0..count).map(|_| random.bytes(0, len_max)).collect();
        let len = sources.iter().map(Vec::len).max().unwrap_or(0);
        let byte = |source: &Vec<u8>, at: usize| source.get(at).copied().unwrap_or(0);
        let borrowed: Vec<&[u8]> = sources.iter().map(Vec::as_slice).collect();
        for (operation, join) in [
            (Operation::And, (|a, b| a & b) as fn(u8, u8) -> u8),
            (Operation::Or, |a, b| a | b),
            (Operation::Xor, |a, b| a ^ b),
        ] {
            let wanted: Vec<u8> =
                (0..len).map(|at| sources.iter().map(|source| byte(source, at)).reduce(join).unwrap_or(0)).collect();
            assert_eq!(combine(operation, &borrowed).as_bytes(), wanted, "{operation:?}");
        }
        let wanted: Vec<u8> = sources[0].iter().map(|byte| !byte).collect();
        assert_eq!(combine(Operation::Not, &borrowed[..1]).as_bytes(), wanted);
    }
    assert!(combine(Operation::Or, &[b"", b""]).is_empty());
}

#[test]
fn field_types() {
    for (text, bits) in [("i1", 1), ("i64", 64), ("u1", 1), ("u63", 63)] {
        assert_eq!(Field::parse(text.as_bytes()).map(Field::bits), Some(bits));
    }
    for wrong in
        ["u64", "i65", "i0", "u0", "i", "", "x8", "I8", "i08", "i+8", "i 8", "8", "i-1", "u99999999999999999999"]
    {
        assert_eq!(Field::parse(wrong.as_bytes()), None, "{wrong}");
    }
    assert_eq!(Field::parse(b"u8\0junk"), Field::parse(b"u8"));
}

/// Each bit of every field matches the model, and no other bit changes.
#[test]
fn fields_agree_with_a_plain_model() {
    let mut random = Random::with_printed_seed("bitfield");
    for _ in 0..5_000 {
        let mut bytes = random.bytes(17, 24);
        let signed = random.one_in(2);
        let bits = random.between(1, if signed { 64 } else { 63 }) as u32;
        let field = Field::parse(format!("{}{bits}", if signed { 'i' } else { 'u' }).as_bytes()).unwrap();
        let offset = random.below(64);
        let mut model = plain_bits(&bytes);
        let range = offset as usize..offset as usize + bits as usize;
        let value_of = |model: &[bool]| {
            let magnitude = model[range.clone()].iter().fold(0u64, |value, on| value << 1 | u64::from(*on));
            let negative = signed && model[range.start];
            (i128::from(magnitude) - if negative { 1 << bits } else { 0 }) as i64
        };
        let before = value_of(&model);
        assert_eq!(field.get(&bytes, offset), before);
        let wanted = random.next() as i64 >> random.below(64);
        let change = field.set(&mut bytes, offset, wanted, Overflow::Wrap).unwrap();
        for (at, bit) in range.clone().rev().enumerate() {
            model[bit] = wanted >> at & 1 != 0;
        }
        assert_eq!(plain_bits(&bytes), model);
        assert_eq!(change, FieldChange { before, after: value_of(&model) });
    }
}

#[test]
fn fields_at_the_ends_of_their_range() {
    let field = |text: &str| Field::parse(text.as_bytes()).unwrap();
    let mut bytes = [0u8; 9];
    for (kind, low, high) in [
        ("i8", -128, 127),
        ("u8", 0, 255),
        ("i64", i64::MIN, i64::MAX),
        ("u63", 0, i64::MAX),
        ("i1", -1, 0),
        ("u1", 0, 1),
    ] {
        let field = field(kind);
        for (start, by, wrapped, nearest) in [(high, 1, low, high), (low, -1, high, low)] {
            for (overflow, after) in
                [(Overflow::Fail, None), (Overflow::Saturate, Some(nearest)), (Overflow::Wrap, Some(wrapped))]
            {
                field.set(&mut bytes, 3, start, Overflow::Fail).unwrap();
                let change = field.increment(&mut bytes, 3, by, overflow);
                assert_eq!(change.map(|change| change.after), after, "{kind} {overflow:?}");
                assert_eq!(field.get(&bytes, 3), after.unwrap_or(start), "{kind} {overflow:?}");
            }
        }
    }
    let byte = field("u8");
    assert_eq!(byte.set(&mut bytes, 0, -1, Overflow::Saturate).unwrap().after, 255);
    assert_eq!(byte.set(&mut bytes, 0, 256, Overflow::Wrap).unwrap().after, 0);
    assert_eq!(byte.set(&mut bytes, 0, 256, Overflow::Fail), None);
    assert_eq!((byte.end_byte(0), byte.end_byte(1), field("i64").end_byte(8)), (0, 1, 8));
}

#[test]
fn fields_beyond_the_end_are_zero() {
    let field = Field::parse(b"u16").unwrap();
    assert_eq!(field.get(&[0xff], 0), 0xff00);
    assert_eq!(field.get(&[0xff], 8), 0);
    assert_eq!(field.get(&[0xff], u64::MAX), 0);
    assert_eq!(field.get(&[], 0), 0);
}

#[test]
fn an_oversized_result_is_an_error() {
    assert_eq!(Combination::try_new(Operation::Or, usize::MAX / 2).map(|_| ()), Err(OutOfMemory));
}
