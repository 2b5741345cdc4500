//! Tests that compare HyperLogLogs with a plain model and with Redis's bytes.

use super::*;
use crate::testing::Random;

const SPARSE_BYTES_MAX: u64 = 3000;

fn hll(string: &RawString) -> HyperLogLog<'_> {
    HyperLogLog::of(string.as_bytes()).unwrap()
}

#[test]
fn an_empty_hyperloglog() {
    let string = empty().unwrap();
    assert_eq!(string.as_bytes(), b"HYLL\x01\0\0\0\0\0\0\0\0\0\0\0\x7f\xff");
    assert_eq!((hll(&string).count(), hll(&string).cached_count()), (Ok(0), Some(0)));
    assert_eq!(hll(&string).decode().as_deref(), Some("Z:16384"));
}

/// The expected string is that of redis-server 7.0.15 after `PFADD h a b c d e f g`.
#[test]
fn the_same_bytes_as_redis() {
    let mut string = empty().unwrap();
    for element in [b"a", b"b", b"c", b"d", b"e", b"f", b"g"] {
        assert_eq!(add(&mut string, element, SPARSE_BYTES_MAX), Ok(true));
        assert_eq!(add(&mut string, element, SPARSE_BYTES_MAX), Ok(false));
    }
    assert_eq!(hll(&string).cached_count(), None);
    assert_eq!(hll(&string).count(), Ok(7));
    assert_eq!(string.as_bytes().escape_ascii().to_string(), SEVEN);
    remember_count(&mut string, 7);
    assert_eq!(hll(&string).cached_count(), Some(7));
    forget_count(&mut string);
    assert_eq!(hll(&string).cached_count(), None);
}

const SEVEN: &str =
    r"HYLL\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x80Fm\x80V\x0c\x80D<\x848\x80P\xb1\x84I\x8c\x80Bm\x80BZ";

/// Sparse registers equal those of a model for any splits and merges of runs, and keep their values
/// when they become dense.
#[test]
fn sparse_and_dense_agree_with_a_plain_model() {
    let mut random = Random::with_printed_seed("hyperloglog");
    for _ in 0..20 {
        let mut string = empty().unwrap();
        let mut model = vec![0u8; REGISTERS];
        let bytes_max = random.pick(&[100, 3000, 100_000]);
        // With few registers, runs of equal value become adjacent.
        let range = random.pick(&[30, 600, REGISTERS as u64]);
        for _ in 0..2000 {
            let index = random.below(range) as usize;
            let value = if random.one_in(500) { 40 } else { random.between(1, 5) as u8 };
            assert_eq!(raise(&mut string, index, value, bytes_max), Ok(value > model[index]));
            model[index] = value.max(model[index]);
            if hll(&string).form() == Form::Sparse {
                assert!(string.len() as u64 <= bytes_max);
            }
        }
        let mut registers = Registers::new();
        hll(&string).merge_into(&mut registers).unwrap();
        assert_eq!(registers.values(), model);
        assert_eq!(hll(&string).count(), Ok(registers.count()));
        to_dense(&mut string).unwrap();
        let mut again = Registers::new();
        hll(&string).merge_into(&mut again).unwrap();
        assert_eq!(again, registers);
        assert_eq!(hll(&string).count(), Ok(registers.count()));
    }
}

#[test]
fn limits_of_the_sparse_form() {
    let mut string = empty().unwrap();
    // With one register raised, the string takes 21 bytes: the header (16), zeros before the
    // register (2), the register (1), and zeros after it (2).
    assert_eq!(raise(&mut string, 100, 32, 20), Ok(true));
    assert_eq!(hll(&string).form(), Form::Dense);
    let mut string = empty().unwrap();
    assert_eq!(raise(&mut string, 100, 32, 21), Ok(true));
    assert_eq!(hll(&string).decode().as_deref(), Some("Z:100 v:32,1 Z:16283"));
    assert_eq!(raise(&mut string, 101, 33, SPARSE_BYTES_MAX), Ok(true));
    assert_eq!(hll(&string).form(), Form::Dense);
    assert_eq!(string.len(), HEADER_BYTES + DENSE_BYTES);
}

#[test]
fn merging() {
    let mut random = Random::with_printed_seed("hyperloglog merge");
    let mut strings: Vec<RawString> = (0..3).map(|_| empty().unwrap()).collect();
    let mut union = empty().unwrap();
    for (at, string) in strings.iter_mut().enumerate() {
        for _ in 0..[100, 300, 5000][at] {
            let element = random.bytes(1, 20);
            add(string, &element, SPARSE_BYTES_MAX).unwrap();
            add(&mut union, &element, SPARSE_BYTES_MAX).unwrap();
        }
    }
    let mut registers = Registers::new();
    for string in &strings {
        hll(string).merge_into(&mut registers).unwrap();
    }
    assert_eq!(Ok(registers.count()), hll(&union).count());
    for dense in [false, true] {
        let mut merged = strings[0].try_clone().unwrap();
        store_merged(&mut merged, &registers, dense, SPARSE_BYTES_MAX).unwrap();
        assert_eq!(hll(&merged).count(), hll(&union).count());
        assert_eq!(hll(&merged).cached_count(), None);
    }
}

#[test]
fn invalid_and_corrupted_strings() {
    let mut string = empty().unwrap();
    add(&mut string, b"x", SPARSE_BYTES_MAX).unwrap();
    let good = string.as_bytes().to_vec();
    for len in 0..HEADER_BYTES {
        assert!(HyperLogLog::of(&good[..len]).is_none(), "{len} bytes");
    }
    let with = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        bytes
    };
    assert!(HyperLogLog::of(&with(0, b'h')).is_none());
    assert!(HyperLogLog::of(&with(ENCODING_AT, 2)).is_none());
    assert!(HyperLogLog::of(&with(ENCODING_AT, 0)).is_none(), "the dense form has a fixed length");
    // The runs have too few or too many registers, end in an incomplete run, or are missing.
    let extended = [&good[..], b"\0"].concat();
    let halved = [&good[..good.len() - 2], b"\x7f"].concat();
    for bytes in [&good[..good.len() - 1], &good[..good.len() - 2], &extended, &halved, &good[..HEADER_BYTES]] {
        let mut registers = Registers::new();
        assert_eq!(HyperLogLog::of(bytes).unwrap().count(), Err(Corrupted));
        assert_eq!(HyperLogLog::of(bytes).unwrap().merge_into(&mut registers), Err(Corrupted));
        let mut string = RawString::try_from_slice(bytes).unwrap();
        assert_eq!(to_dense(&mut string), Err(ChangeError::Corrupted));
        assert_eq!(string.as_bytes(), bytes);
    }
    let mut nothing = RawString::try_from_slice(&good[..HEADER_BYTES]).unwrap();
    assert_eq!(add(&mut nothing, b"x", SPARSE_BYTES_MAX), Err(ChangeError::Corrupted));
}

/// Arbitrary bytes after a valid header are counted, changed or rejected, but never cause a panic.
#[test]
fn arbitrary_runs_do_not_panic() {
    let mut random = Random::with_printed_seed("hyperloglog runs");
    for _ in 0..3000 {
        let mut bytes = empty().unwrap().as_bytes()[..HEADER_BYTES].to_vec();
        bytes.extend(random.bytes(0, 60));
        let mut string = RawString::from(bytes);
        let _ = hll(&string).count();
        let _ = hll(&string).decode();
        for _ in 0..10 {
            let _ = raise(&mut string, random.below(REGISTERS as u64) as usize, random.between(1, 51) as u8, 70);
        }
    }
}

#[test]
fn the_self_test_passes() {
    let seed = Random::with_printed_seed("pfselftest").next();
    assert_eq!(self_test(seed, SPARSE_BYTES_MAX), Ok(()));
}
