//! `DUMP` and `RESTORE` against the real redis-server: values go both ways, and damaged payloads meet the same fate.

use pantala_tests::{Backend, Client, Random, Reply, Server};

/// Values of one run.
const VALUES: usize = 400;
/// Damaged payloads per value.
const DAMAGED_PER_VALUE: usize = 12;
/// The judge may die of damaged payloads so often: 7.0.15 isn't free of such bugs.
const JUDGE_DEATHS_MAX: usize = 5;

fn judge() -> Option<Server> {
    Server::redis(&["--sanitize-dump-payload", "yes"])
}

fn subject() -> Server {
    Server::pantala(*Backend::all().first().expect("a backend"), &["--workers", "2", "--shards", "7"])
}

/// CRC64 as Redis has it, bit by bit.
fn crc64(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |crc, &byte| {
        (0..8).fold(
            crc ^ u64::from(byte),
            |crc, _| if crc & 1 == 1 { crc >> 1 ^ 0x95ac_9329_ac4b_c9b5 } else { crc >> 1 },
        )
    })
}

/// Gives a value version and checksum.
fn sealed(value: &[u8]) -> Vec<u8> {
    let mut payload = [value, &[10, 0]].concat();
    let checksum = crc64(&payload);
    payload.extend_from_slice(&checksum.to_le_bytes());
    payload
}

fn text(random: &mut Random) -> Vec<u8> {
    match random.below(6) {
        0 | 1 => ((random.next_u64() as i64) >> random.below(64)).to_string().into_bytes(),
        2 => vec![b'a' + random.below(3) as u8; random.below(400)],
        3 => b"0123456789abcdefghij".repeat(1 + random.below(20)),
        4 if random.one_in(8) => {
            let len = random.below(20_000);
            random.bytes(len)
        }
        _ => {
            let len = random.below(70);
            random.bytes(len)
        }
    }
}

/// A command that makes the key `k` hold something.
fn maker(random: &mut Random) -> Vec<Vec<u8>> {
    let name = *random.pick(&["SET", "RPUSH", "LPUSH", "HSET", "SADD", "SADD integers", "ZADD", "ZADD"]);
    let mut args: Vec<Vec<u8>> = vec![name.split(' ').next().unwrap_or_default().into(), b"k".to_vec()];
    let most = *random.pick(&[1, 4, 40, 700]);
    let count = if name == "SET" { 1 } else { 1 + random.below(most) };
    for _ in 0..count {
        if name == "ZADD" {
            let scores =
                ["1", "-7", "2.5", "0.1", "1e300", "-inf", "inf", "4611686018427387904", "1e19", "5e-324", "0"];
            args.push(random.pick(&scores).as_bytes().to_vec());
        }
        if name == "SADD integers" {
            let bits = random.below(64);
            args.push(((random.next_u64() as i64) >> bits).to_string().into_bytes());
        } else {
            args.push(text(random));
        }
        if name == "HSET" {
            args.push(text(random));
        }
    }
    args
}

/// What a client can see of the key `k`.
fn seen(client: &mut Client) -> Vec<Reply> {
    ["TYPE k", "OBJECT ENCODING k", "DEBUG DIGEST-VALUE k", "PTTL k"].map(|words| client.call(words)).to_vec()
}

fn dump(client: &mut Client) -> Vec<u8> {
    match client.call("DUMP k") {
        Reply::Bulk(payload) => payload,
        other => panic!("DUMP answers {other:?}"),
    }
}

fn restore(client: &mut Client, payload: &[u8]) -> Reply {
    client.command(&[b"RESTORE", &b"k"[..], b"0", payload, b"REPLACE"])
}

fn bad_data() -> Reply {
    Reply::Error("ERR Bad data format".into())
}

#[test]
fn values_go_both_ways() {
    let Some(judge) = judge() else { return };
    let mut server = subject();
    let (mut ours, mut theirs) = (server.connect(), judge.connect());
    let mut random = Random::from_seed(Random::seed("values_go_both_ways"));
    for _ in 0..VALUES {
        let maker = maker(&mut random);
        if random.one_in(10) {
            let compress = *random.pick(&["yes", "no"]);
            for client in [&mut ours, &mut theirs] {
                assert_eq!(client.call(&format!("CONFIG SET rdbcompression {compress}")), Reply::ok());
            }
        }
        for client in [&mut ours, &mut theirs] {
            client.call("DEL k");
            assert!(!client.command(&maker).is_error());
        }
        let expected = seen(&mut theirs);
        assert_eq!(seen(&mut ours), expected);
        let (our_payload, their_payload) = (dump(&mut ours), dump(&mut theirs));
        assert_eq!(restore(&mut theirs, &our_payload), Reply::ok());
        assert_eq!(seen(&mut theirs), expected, "{}", our_payload.escape_ascii());
        assert_eq!(restore(&mut ours, &their_payload), Reply::ok());
        assert_eq!(seen(&mut ours), expected, "{}", their_payload.escape_ascii());
    }
    server.assert_sound();
}

/// Types that aren't read yet: streams.
const NOT_READ: [u8; 2] = [15, 19];
/// Types whose scores are text. Redis makes a number of any.
const WITH_TEXT_SCORES: [u8; 3] = [3, 12, 17];

/// A value, changed in a few places.
fn damaged(random: &mut Random, good: &[u8]) -> Vec<u8> {
    let mut value = good.to_vec();
    for _ in 0..=random.below(3) {
        // Heads are where lengths stand.
        let within = if random.one_in(2) { value.len().min(24) } else { value.len() };
        let at = random.below(within);
        match random.below(6) {
            0 | 1 => value[at] ^= 1 << random.below(8),
            2 => value[at] = *random.pick(&[0, 1, 0x7f, 0x80, 0x81, 0xc0, 0xc3, 0xe0, 0xf0, 0xf4, 0xfe, 0xff]),
            3 => value[at] = random.next_u64() as u8,
            4 if value.len() > 2 => drop(value.remove(at)),
            _ => value.insert(at, value[at]),
        }
    }
    if NOT_READ.contains(&value[0]) {
        value[0] = good[0];
    }
    value
}

#[test]
fn damaged_payloads_meet_the_same_fate() {
    let Some(mut judge) = judge() else { return };
    let mut server = subject();
    let (mut ours, mut theirs) = (server.connect(), judge.connect());
    let mut random = Random::from_seed(Random::seed("damaged_payloads_meet_the_same_fate"));
    let (mut deaths, mut accepted, mut refused) = (0, 0, 0);
    for _ in 0..VALUES {
        for client in [&mut ours, &mut theirs] {
            client.call("DEL k");
        }
        theirs.command(&maker(&mut random));
        let good = dump(&mut theirs);
        let value = &good[..good.len() - 10];
        for _ in 0..DAMAGED_PER_VALUE {
            let payload = sealed(&damaged(&mut random, value));
            let our_reply = restore(&mut ours, &payload);
            theirs.send(&[b"RESTORE", &b"k"[..], b"0", &payload, b"REPLACE"]);
            let Ok((their_reply, _)) = theirs.try_receive() else {
                deaths += 1;
                assert!(deaths <= JUDGE_DEATHS_MAX, "the judge dies too often");
                let Some(another) = self::judge() else { return };
                judge = another;
                theirs = judge.connect();
                continue;
            };
            if WITH_TEXT_SCORES.contains(&payload[0]) && our_reply != their_reply {
                assert_eq!((&our_reply, &their_reply), (&bad_data(), &Reply::ok()), "{}", payload.escape_ascii());
                continue;
            }
            assert_eq!(our_reply, their_reply, "{}", payload.escape_ascii());
            if our_reply == Reply::ok() {
                accepted += 1;
                assert_eq!(seen(&mut ours), seen(&mut theirs), "{}", payload.escape_ascii());
            } else {
                refused += 1;
            }
        }
    }
    println!("{accepted} accepted, {refused} refused, the judge died {deaths} times");
    assert!(accepted > VALUES / 10 && refused > VALUES, "{accepted} accepted, {refused} refused");
    server.assert_sound();
}

/// What takes memory without being there: refused before memory is taken.
#[test]
fn claims_take_no_memory() {
    let server = subject();
    let mut client = server.connect();
    let before = server.resident_bytes();
    for claim in [
        &b"\x00\x81\x00\x00\x01\x00\x00\x00\x00\x00a"[..],
        b"\x00\xc3\x02\x81\x00\x00\x01\x00\x00\x00\x00\x00\x00a",
        b"\x02\x81\x00\x00\x00\x7f\x00\x00\x00\x00\x01a",
        b"\x04\x80\x7f\xff\xff\xff\x01a\x01b",
        b"\x12\x80\x7f\xff\xff\xff\x02\x07\x07\x00\x00\x00\x00\x00\xff",
    ] {
        let reply = restore(&mut client, &sealed(claim));
        assert_eq!(reply, bad_data(), "{}", claim.escape_ascii());
    }
    let after = server.resident_bytes();
    assert!(after < before + (64 << 20), "{before} bytes before, {after} after");
}
