//! Tests of reply decoding.

use pantala_base::Random;

use super::*;

const SAMPLE: &[u8] = b"*9\r\n+OK\r\n-ERR x\r\n:-5\r\n$3\r\na\r\n\r\n$-1\r\n*-1\r\n%1\r\n#t\r\n,1.5\r\n\
    |1\r\n+k\r\n+v\r\n~1\r\n(123456789012345678901\r\n>2\r\n=5\r\ntxt:a\r\n!5\r\nERR y\r\n";

#[test]
fn every_type_is_parsed() {
    let expected = Value::Array(vec![
        Value::Simple(b"OK".to_vec()),
        Value::Error(b"ERR x".to_vec()),
        Value::Integer(-5),
        Value::Bulk(b"a\r\n".to_vec()),
        Value::Null,
        Value::Null,
        Value::Map(vec![(Value::Boolean(true), Value::Double(1.5))]),
        Value::Attribute(
            vec![(Value::Simple(b"k".to_vec()), Value::Simple(b"v".to_vec()))],
            Box::new(Value::Set(vec![Value::BigNumber(b"123456789012345678901".to_vec())])),
        ),
        Value::Push(vec![Value::Verbatim(*b"txt", b"a".to_vec()), Value::Error(b"ERR y".to_vec())]),
    ]);
    assert_eq!(parse_reply(SAMPLE), Ok(Some((expected, SAMPLE.len()))));
    assert_eq!(reply_len(SAMPLE), Ok(Some(SAMPLE.len())));
    // Following bytes aren't read.
    let longer = [SAMPLE, b"?"].concat();
    assert_eq!(reply_len(&longer), Ok(Some(SAMPLE.len())));
}

#[test]
fn every_truncation_is_incomplete() {
    for len in 0..SAMPLE.len() {
        assert_eq!(parse_reply(&SAMPLE[..len]), Ok(None), "{len}");
        assert_eq!(reply_len(&SAMPLE[..len]), Ok(None), "{len}");
    }
}

#[test]
fn malformed_replies_are_errors() {
    use ReplyError::*;
    for (bytes, expected) in [
        (&b"?x\r\n"[..], UnknownType(b'?')),
        (b"+OK\n", MissingLineEnd),
        (b"\r\n", UnknownType(b'\r')),
        (b"$1\r\nabc", MissingLineEnd),
        (b":x\r\n", Malformed),
        (b"$-2\r\n", Malformed),
        (b"*-2\r\n", Malformed),
        (b"#x\r\n", Malformed),
        (b"_x\r\n", Malformed),
        (b"(1a\r\n", Malformed),
        (b",abc\r\n", Malformed),
        (b"=2\r\nab\r\n", Malformed),
        (b"%-1\r\n", Malformed),
    ] {
        let expected = if bytes == b"\r\n" { MissingLineEnd } else { expected };
        assert_eq!(parse_reply(bytes), Err(expected), "{}", bytes.escape_ascii());
    }
}

#[test]
fn depth_at_the_bound_and_past_it() {
    let nested = |depth| [&b"*1\r\n".repeat(depth)[..], b":1\r\n"].concat();
    assert!(matches!(parse_reply(&nested(REPLY_DEPTH_MAX)), Ok(Some(_))));
    assert_eq!(parse_reply(&nested(REPLY_DEPTH_MAX + 1)), Err(ReplyError::TooDeep));
    // reply_len doesn't recurse.
    let deep = nested(100_000);
    assert_eq!(reply_len(&deep), Ok(Some(deep.len())));
}

#[test]
fn announced_lengths_reserve_nothing() {
    for kind in ['*', '~', '>', '%', '|', '$', '!', '='] {
        let bytes = format!("{kind}9223372036854775807\r\n");
        assert_eq!(parse_reply(bytes.as_bytes()), Ok(None));
        assert_eq!(reply_len(bytes.as_bytes()), Ok(None));
    }
}

#[test]
fn random_bytes_never_panic_and_agree() {
    let seed = 0x5eed_0004;
    println!("seed {seed}");
    let mut random = Random::from_seed(seed);
    let alphabet = b"*$+-:_#,(%~>|=!\r\n\r\n\r\n\r\n0011223tfx";
    for _ in 0..200_000 {
        let bytes: Vec<u8> =
            (0..random.below(30)).map(|_| alphabet[random.below(alphabet.len() as u64) as usize]).collect();
        if let Ok(Some((_, len))) = parse_reply(&bytes) {
            assert_eq!(reply_len(&bytes), Ok(Some(len)), "{}", bytes.escape_ascii());
        }
    }
}
