//! Compares the results of this crate (for numbers, ranges, encodings and common subsequences) with
//! those of a real redis-server 7.0.
//!
//! `PANTALA_SEED` replays a run. `PANTALA_TYPES_CASES` sets the number of cases per test.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use pantala_types::{Encoded, LongDouble, encode, getrange, lcs, string_encoding};

#[path = "../src/testing.rs"]
mod testing;
use testing::{Random, float_text};

/// Number of commands sent before their replies are read.
const BURST: usize = 200;

/// The redis-server of a single test. Dropping it kills the process.
struct Redis {
    process: Child,
    socket: PathBuf,
    input: BufReader<UnixStream>,
}

#[derive(Debug, PartialEq, Eq)]
enum Reply {
    Text(Vec<u8>),
    Error(String),
    Integer(i64),
    Array(Vec<Reply>),
}

impl Redis {
    /// Starts a server. If redis-server isn't installed, panics in CI, and returns `None`
    /// otherwise.
    fn start() -> Option<Redis> {
        static STARTED: AtomicUsize = AtomicUsize::new(0);
        // Tests that run concurrently must not choose the same socket path.
        let number = STARTED.fetch_add(1, Relaxed);
        let socket = std::env::temp_dir().join(format!("pantala-types-{}-{number}.sock", std::process::id()));
        let spawned = Command::new("redis-server")
            .args(["--port", "0", "--unixsocket"])
            .arg(&socket)
            .args(["--save", "", "--appendonly", "no"])
            .args(["--proto-max-bulk-len", "1mb"])
            .stdout(Stdio::null())
            .spawn();
        let Ok(process) = spawned else {
            assert!(std::env::var_os("CI").is_none(), "redis-server must be installed in CI");
            eprintln!("SKIPPED: redis-server isn't installed");
            return None;
        };
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            if let Ok(stream) = UnixStream::connect(&socket) {
                stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
                return Some(Redis { process, socket, input: BufReader::new(stream) });
            }
            assert!(Instant::now() < deadline, "redis-server didn't start");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Sends all commands, then reads all replies.
    fn ask(&mut self, commands: &[Vec<Vec<u8>>]) -> Vec<Reply> {
        let mut bytes = Vec::new();
        for command in commands {
            bytes.extend(format!("*{}\r\n", command.len()).bytes());
            for argument in command {
                bytes.extend(format!("${}\r\n", argument.len()).bytes());
                bytes.extend_from_slice(argument);
                bytes.extend(b"\r\n");
            }
        }
        self.input.get_mut().write_all(&bytes).expect("redis-server reads");
        commands.iter().map(|_| self.reply()).collect()
    }

    fn reply(&mut self) -> Reply {
        let mut line = String::new();
        self.input.read_line(&mut line).expect("redis-server answers");
        let rest = line[1..].trim_end();
        let number = || rest.parse::<i64>().expect("a number");
        match line.as_bytes()[0] {
            b'+' => Reply::Text(rest.as_bytes().to_vec()),
            b'-' => Reply::Error(rest.to_owned()),
            b':' => Reply::Integer(number()),
            b'$' => {
                let mut bytes = vec![0; number() as usize + 2];
                self.input.read_exact(&mut bytes).expect("the whole string");
                bytes.truncate(bytes.len() - 2);
                Reply::Text(bytes)
            }
            b'*' => Reply::Array((0..number()).map(|_| self.reply()).collect()),
            other => panic!("unexpected reply {other}"),
        }
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
        std::fs::remove_file(&self.socket).ok();
    }
}

fn command<const N: usize>(parts: [&[u8]; N]) -> Vec<Vec<u8>> {
    parts.map(<[u8]>::to_vec).to_vec()
}

fn cases(default: usize) -> usize {
    std::env::var("PANTALA_TYPES_CASES").map_or(default, |text| text.parse().expect("PANTALA_TYPES_CASES is a number"))
}

fn error(text: &str) -> Reply {
    Reply::Error(format!("ERR {text}"))
}

#[test]
fn incrbyfloat() {
    let Some(mut redis) = Redis::start() else {
        return;
    };
    let mut random = Random::with_printed_seed("incrbyfloat");
    let mut sums = 0;
    for _ in 0..cases(40_000) / BURST {
        let pairs: Vec<_> = (0..BURST).map(|_| (float_text(&mut random), float_text(&mut random))).collect();
        let commands: Vec<_> =
            pairs.iter().flat_map(|(a, b)| [command([b"SET", b"k", a]), command([b"INCRBYFLOAT", b"k", b])]).collect();
        for ((a, b), replies) in pairs.iter().zip(redis.ask(&commands).chunks(2)) {
            let ours = match (LongDouble::parse(a), LongDouble::parse(b)) {
                (Some(x), Some(y)) => match x.checked_add(y) {
                    Some(sum) => Reply::Text(sum.to_human()),
                    None => error("increment would produce NaN or Infinity"),
                },
                _ => error("value is not a valid float"),
            };
            sums += usize::from(matches!(ours, Reply::Text(_)));
            assert_eq!(replies[1], ours, "{:?} + {:?}", String::from_utf8_lossy(a), String::from_utf8_lossy(b));
        }
    }
    assert!(sums > 0, "no case had a valid sum");
}

#[test]
fn encodings_and_integers() {
    let Some(mut redis) = Redis::start() else {
        return;
    };
    let mut random = Random::with_printed_seed("encodings");
    for _ in 0..cases(20_000) / BURST {
        let texts: Vec<_> = (0..BURST).map(|_| encoding_text(&mut random)).collect();
        let commands: Vec<_> =
            texts.iter().flat_map(|t| [command([b"SET", b"k", t]), command([b"OBJECT", b"ENCODING", b"k"])]).collect();
        for (text, replies) in texts.iter().zip(redis.ask(&commands).chunks(2)) {
            let ours = match encode(text) {
                Encoded::Int(integer) => {
                    assert_eq!(integer.to_string().as_bytes(), text);
                    "int"
                }
                Encoded::Bytes => string_encoding(text.len(), false).name(),
            };
            assert_eq!(replies[1], Reply::Text(ours.into()), "{text:?}");
        }
    }
}

fn encoding_text(random: &mut Random) -> Vec<u8> {
    match random.below(4) {
        0 => (random.next() as i64 >> random.below(64)).to_string().into_bytes(),
        1 => random.text(b"0123456789", 17, 22),
        2 => random.text(b"0123456789-+ .", 0, 5),
        _ => random.bytes(40, 48),
    }
}

#[test]
fn ranges() {
    let Some(mut redis) = Redis::start() else {
        return;
    };
    let mut random = Random::with_printed_seed("ranges");
    for _ in 0..cases(20_000) / BURST {
        let text = random.bytes(0, 12);
        let index = |random: &mut Random| match random.below(8) {
            0 => {
                random.pick(&[i64::MIN, i64::MIN + 1, i64::MAX, i64::MAX - 1, i64::from(i32::MIN), i64::from(u32::MAX)])
            }
            _ => random.between(-15, 15),
        };
        let ranges: Vec<_> = (0..BURST).map(|_| (index(&mut random), index(&mut random))).collect();
        let mut commands = vec![command([b"SET", b"k", &text])];
        commands.extend(
            ranges
                .iter()
                .map(|(a, b)| command([b"GETRANGE", b"k", a.to_string().as_bytes(), b.to_string().as_bytes()])),
        );
        for (&(start, end), reply) in ranges.iter().zip(&redis.ask(&commands)[1..]) {
            let ours = Reply::Text(text[getrange(text.len(), start, end)].to_vec());
            assert_eq!(*reply, ours, "{start} {end} of {}", text.len());
        }
    }
}

#[test]
fn longest_common_subsequences() {
    let Some(mut redis) = Redis::start() else {
        return;
    };
    let mut random = Random::with_printed_seed("lcs");
    for round in 0..cases(6_000) {
        let len_max = [8, 40, 150][round % 3];
        let alphabet = &b"abcdefgh"[..1 + random.below(8) as usize];
        let a = random.text(alphabet, 0, len_max);
        let b = random.text(alphabet, 0, len_max);
        let minimum = random.below(6) as usize;
        check_lcs(&mut redis, &a, &b, minimum);
    }
}

/// `proto-max-bulk-len` is 1 MiB, exactly the size of a table of 512 × 512 cells of 4 bytes.
#[test]
fn lcs_at_the_limit_of_memory_and_one_past() {
    let Some(mut redis) = Redis::start() else {
        return;
    };
    let mut random = Random::with_printed_seed("lcs limit");
    for (a_len, b_len) in [
        (511, 511),
        (511, 512),
        (512, 511),
        (1023, 255),
        (1023, 256),
        (0, 262_143),
        (0, 262_144),
        (1, 131_071),
        (1, 131_072),
    ] {
        let (a, b) = (random.text(b"abc", a_len, a_len), random.text(b"abc", b_len, b_len));
        check_lcs(&mut redis, &a, &b, 0);
    }
}

fn check_lcs(redis: &mut Redis, a: &[u8], b: &[u8], minimum: usize) {
    const LIMIT: u64 = 1024 * 1024;
    let minimum_text = minimum.to_string();
    let replies = redis.ask(&[
        command([b"SET", b"a", a]),
        command([b"SET", b"b", b]),
        command([b"LCS", b"a", b"b"]),
        command([b"LCS", b"a", b"b", b"LEN"]),
        command([b"LCS", b"a", b"b", b"IDX", b"WITHMATCHLEN", b"MINMATCHLEN", minimum_text.as_bytes()]),
    ]);
    let lcs_error = |e: lcs::LcsError| error(&e.to_string());
    let integer = |n: usize| Reply::Integer(n as i64);
    let pair = |a: usize, b: usize| Reply::Array(vec![integer(a), integer(b)]);
    assert_eq!(replies[2], lcs::lcs_string(a, b, LIMIT).map_or_else(lcs_error, Reply::Text));
    assert_eq!(replies[3], lcs::lcs_len(a, b, LIMIT).map_or_else(lcs_error, integer));
    let matches = lcs::lcs_matches(a, b, minimum, LIMIT).map_or_else(lcs_error, |found| {
        let list = found
            .matches
            .iter()
            .map(|m| Reply::Array(vec![pair(m.a_start, m.a_end()), pair(m.b_start, m.b_end()), integer(m.len)]));
        let list = Reply::Array(list.collect());
        Reply::Array(vec![Reply::Text(b"matches".into()), list, Reply::Text(b"len".into()), integer(found.len)])
    });
    assert_eq!(replies[4], matches, "{a:?} {b:?} {minimum}");
}
