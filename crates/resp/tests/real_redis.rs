//! Compares this crate (and `base`) with a real redis-server: replies to requests, matching of
//! patterns, texts of doubles. If redis-server 7.0 isn't installed, the tests print a message and
//! pass, but fail in CI (`CI=true`).

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use pantala_base::{Random, glob};
use pantala_resp::value::{Value, parse_reply};
use pantala_resp::{ArgRange, Args, DOUBLE_LEN_MAX, Limits, Parser, Reply, Version, format_double};

/// A redis-server on a Unix socket in its own folder. Dropping the value kills the server and
/// removes the folder.
struct Redis {
    child: Child,
    folder: std::path::PathBuf,
}

impl Redis {
    /// Starts a server. If version 7.0 isn't installed, panics in CI, and returns `None` otherwise.
    fn start(name: &str, options: &[&str]) -> Option<Self> {
        let version = Command::new("redis-server").arg("--version").output();
        if !version.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains("v=7.0.")) {
            assert!(std::env::var("CI").as_deref() != Ok("true"), "CI=true forbids skipping: no redis-server 7.0");
            println!("no redis-server 7.0 here: nothing compared");
            return None;
        }
        let folder = std::env::temp_dir().join(format!("pantala-resp-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let child = Command::new("redis-server")
            .args(["--port", "0", "--save", "", "--unixsocket", "socket", "--dir"])
            .arg(&folder)
            .args(options)
            .current_dir(&folder)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let redis = Self { child, folder };
        for _ in 0..500 {
            if UnixStream::connect(redis.folder.join("socket")).is_ok() {
                return Some(redis);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("redis-server didn't start");
    }

    fn connect(&self) -> UnixStream {
        let stream = UnixStream::connect(self.folder.join("socket")).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        // Errors are ignored: the server may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Sends all `commands` at once and returns their replies.
fn pipeline(stream: &mut UnixStream, commands: &[Vec<&[u8]>]) -> Vec<Value> {
    let mut request = Vec::new();
    let mut reply = Reply::new(&mut request, Version::Resp2);
    for command in commands {
        reply.array(command.len());
        command.iter().for_each(|arg| reply.bulk(arg));
    }
    stream.write_all(&request).unwrap();
    let (mut received, mut at, mut values) = (Vec::new(), 0, Vec::new());
    let mut room = vec![0; 1 << 16];
    while values.len() < commands.len() {
        while let Some((value, len)) = parse_reply(&received[at..]).unwrap() {
            values.push(value);
            at += len;
        }
        if values.len() < commands.len() {
            let len = stream.read(&mut room).unwrap();
            assert!(len > 0, "redis-server closed the connection");
            received.extend_from_slice(&room[..len]);
        }
    }
    values
}

/// Returns redis-server's replies to `stream`, which is sent at once and followed by a shutdown of
/// the sending half.
fn expected(redis: &Redis, stream: &[u8]) -> Vec<u8> {
    let mut connection = redis.connect();
    connection.write_all(stream).unwrap();
    connection.shutdown(std::net::Shutdown::Write).unwrap();
    let mut answer = Vec::new();
    connection.read_to_end(&mut answer).unwrap();
    answer
}

/// Returns the replies of an `ECHO` server built on this crate's parser. Every command in `stream`
/// is an `ECHO` or empty.
fn answered(stream: &[u8], limits: &Limits) -> Vec<u8> {
    let (mut buf, mut answer) = (stream.to_vec(), Vec::new());
    let (mut parser, mut ranges, mut at) = (Parser::new(), Vec::<ArgRange>::new(), 0);
    loop {
        ranges.clear();
        match parser.parse(&mut buf[at..], &mut ranges, limits) {
            Ok(Some(len)) => {
                let args = Args::new(&buf[at..], &ranges);
                let mut reply = Reply::new(&mut answer, Version::Resp2);
                match (args.len(), args.get(0)) {
                    (0, _) => {}
                    (2, Some(b"ECHO")) if !limits.authenticated => reply.error("NOAUTH Authentication required."),
                    (2, Some(b"ECHO")) => reply.bulk(&args[1]),
                    (_, Some(b"ECHO")) => reply.error("ERR wrong number of arguments for 'echo' command"),
                    _ => panic!("{args:?} isn't ECHO"),
                }
                at += len;
            }
            Ok(None) => return answer,
            Err(error) => {
                error.encode(&mut answer);
                return answer;
            }
        }
    }
}

#[test]
fn requests_get_the_same_replies() {
    let Some(redis) = Redis::start("requests", &[]) else { return };
    let line = |len: usize| vec![b'0'; len];
    let mut streams: Vec<Vec<u8>> = [
        &b"ECHO a\r\nECHO b\nECHO  c \r\n\r\n\n  \t\r\n*0\r\n*-1\r\n*-5\r\n*2\r\n$4\r\nECHO\r\n$0\r\n\r\nECHO end\n"[..],
        b"*2\r$4\rxECHOxy$1\r\n\0\r\n",
        b"ECHO \"a\\x41\\n\\r\\t\\b\\a\\\\\\\"\\q\\xzz\\x4\"\r\nECHO 'a\\'b\\n\\\\'\r\nECHO a\"b c\"\r\nECHO \"\"\r\n",
        b"\x0b\x0cECHO a\x0bb\x0c\r\n\"ECHO\"\x0bx\r\nEC'HO' a\rb\n",
        b"ECHO a\0b\r\nECHO c\r\n",
        b"ECHO a b c\r\nECHO\r\n",
        b"*\r\n",
        b"*x\r\n",
        b"*+1\r\n",
        b"*01\r\n",
        b"* 1\r\n",
        b"*-0\r\n",
        b"*2147483647\r\n",
        b"*2147483648\r\n",
        b"*99999999999999999999\r\n",
        b"*10\r\n$16384\r\n",
        b"*11\r\n",
        b"*1\r\n$16385\r\n",
        b"*1\r\n$536870912\r\n",
        b"*1\r\n$536870913\r\n",
        b"*1\r\n$-1\r\n",
        b"*1\r\n$\r\n",
        b"*1\r\n$1x\r\n",
        b"*1\r\n$007\r\n",
        b"*1\r\n$99999999999999999999\r\n",
        b"*2\r\n$4\r\nECHO\r\n:1\r\n",
        b"*1\r\n$4\r\nECHOx$ECHO 1\r\n",
        b"ECHO \"a\r\n",
        b"ECHO \"a\"b\r\n",
        b"ECHO 'a\r\n",
        b"ECHO 'a'b\r\n",
        b"ECHO \"a\\\r\n",
        b"*1\0\r\n",
        b"*1\r\n$4\0\r\n",
    ]
    .map(<[u8]>::to_vec)
    .into();
    streams.extend((0..=255u8).map(|byte| [b"*1\r\n", &[byte][..], b"1\r\n"].concat()));
    for len in [65_535, 65_536, 65_537] {
        streams.push(line(len));
        streams.push([b"*", &line(len - 1)[..]].concat());
        streams.push([b"*1\r\n$", &line(len - 1)[..]].concat());
        streams.push([b"ECHO \0", &line(len - 6)[..]].concat());
    }
    for stream in &streams {
        let ours = answered(stream, &Limits::default());
        assert_eq!(
            ours.escape_ascii().to_string(),
            expected(&redis, stream).escape_ascii().to_string(),
            "to {}",
            shown(stream)
        );
    }
    // Sends the same streams before authentication.
    let mut connection = redis.connect();
    let config: Vec<&[u8]> = vec![b"CONFIG", b"SET", b"requirepass", b"secret"];
    assert_eq!(pipeline(&mut connection, &[config]), [Value::Simple(b"OK".to_vec())]);
    let limits = Limits { authenticated: false, ..Limits::default() };
    for stream in &streams {
        let ours = answered(stream, &limits);
        assert_eq!(
            ours.escape_ascii().to_string(),
            expected(&redis, stream).escape_ascii().to_string(),
            "to {}",
            shown(stream)
        );
    }
}

fn shown(stream: &[u8]) -> String {
    stream[..stream.len().min(100)].escape_ascii().to_string()
}

#[test]
fn random_inline_commands_get_the_same_replies() {
    let Some(redis) = Redis::start("random", &[]) else { return };
    let seed = 0x5eed_0005;
    println!("seed {seed}");
    let mut random = Random::from_seed(seed);
    let bytes = b"aB\"'\\x40n \t\x0b\r\0";
    for _ in 0..1_500 {
        let mut stream = b"ECHO ".to_vec();
        stream.extend((0..random.below(14)).map(|_| bytes[random.below(bytes.len() as u64) as usize]));
        stream.extend(b"\r\n*2\r\n$4\r\nECHO\r\n$3\r\nend\r\n");
        let ours = answered(&stream, &Limits::default());
        assert_eq!(
            ours.escape_ascii().to_string(),
            expected(&redis, &stream).escape_ascii().to_string(),
            "to {}",
            shown(&stream)
        );
    }
}

#[test]
fn glob_patterns_match_the_same_keys() {
    const TEXTS: usize = 250;
    let Some(redis) = Redis::start("patterns", &[]) else { return };
    let seed = 0x5eed_0006;
    println!("seed {seed}");
    let mut random = Random::from_seed(seed);
    let alphabet = b"abcAZ*?[]^-\\\xff\x01";
    let mut draw = |len_max: u64| -> Vec<u8> {
        (0..random.below(len_max + 1)).map(|_| alphabet[random.below(alphabet.len() as u64) as usize]).collect()
    };
    let mut texts: Vec<Vec<u8>> = (0..TEXTS).map(|_| draw(4)).collect();
    texts.extend([&b""[..], b"a", b"b", b"aab", b"\xff"].map(<[u8]>::to_vec));
    texts.sort();
    texts.dedup();
    let mut connection = redis.connect();
    let sets: Vec<Vec<&[u8]>> = texts.iter().map(|text| vec![&b"SET"[..], text, b""]).collect();
    pipeline(&mut connection, &sets);
    let mut patterns: Vec<Vec<u8>> = (0..6_000).map(|_| draw(8)).collect();
    patterns.extend([&b"**"[..], b"*", b"[^", b"[", b"[^]", b"[]", b"[a-", b"[a-\xff]", b"\\"].map(<[u8]>::to_vec));
    // `KEYS *` returns all keys without matching, even the empty key.
    patterns.retain(|pattern| pattern != b"*");
    for patterns in patterns.chunks(500) {
        let commands: Vec<Vec<&[u8]>> = patterns.iter().map(|pattern| vec![&b"KEYS"[..], pattern]).collect();
        for (pattern, reply) in patterns.iter().zip(pipeline(&mut connection, &commands)) {
            let Value::Array(found) = reply else { panic!("{reply:?}") };
            let mut found: Vec<Vec<u8>> = found
                .into_iter()
                .map(|value| match value {
                    Value::Bulk(key) => key,
                    other => panic!("{other:?}"),
                })
                .collect();
            found.sort();
            let ours: Vec<Vec<u8>> = texts.iter().filter(|text| glob::matches(pattern, text, false)).cloned().collect();
            assert_eq!(ours, found, "{}", pattern.escape_ascii());
        }
    }
}

#[test]
fn case_insensitive_patterns_match_the_same_names() {
    let Some(redis) = Redis::start("nocase", &[]) else { return };
    let seed = 0x5eed_0007;
    println!("seed {seed}");
    let mut random = Random::from_seed(seed);
    let mut connection = redis.connect();
    let names = |reply: &Value| -> Vec<Vec<u8>> {
        let Value::Array(names) = reply else { panic!("{reply:?}") };
        let mut names: Vec<Vec<u8>> = names
            .iter()
            .map(|value| match value {
                Value::Bulk(name) => name.clone(),
                other => panic!("{other:?}"),
            })
            .collect();
        names.sort();
        names
    };
    let all = names(&pipeline(&mut connection, &[vec![b"COMMAND", b"LIST"]])[0]);
    let parts: [&[u8]; 16] = [
        b"*", b"*", b"?", b"[A-Z]", b"[z-A]", b"[Z-a]", b"[^S-t]", b"[gE]", b"[\\S]", b"S", b"e", b"T", b"x", b"G",
        b"\\E", b"[A-z",
    ];
    for _ in 0..2_000 {
        let pattern: Vec<u8> =
            (0..1 + random.below(6)).flat_map(|_| parts[random.below(parts.len() as u64) as usize].to_vec()).collect();
        let found =
            names(&pipeline(&mut connection, &[vec![b"COMMAND", b"LIST", b"FILTERBY", b"PATTERN", &pattern]])[0]);
        let ours: Vec<Vec<u8>> = all.iter().filter(|name| glob::matches(&pattern, name, true)).cloned().collect();
        assert_eq!(ours, found, "{}", pattern.escape_ascii());
    }
}

#[test]
fn doubles_have_the_same_text() {
    let Some(redis) = Redis::start("doubles", &[]) else { return };
    let seed = 0x5eed_0008;
    println!("seed {seed}");
    let mut random = Random::from_seed(seed);
    let mut connection = redis.connect();
    for round in 0..40 {
        let values: Vec<f64> = (0..500)
            .map(|_| match round % 5 {
                0 => f64::from_bits(random.next_u64()),
                1 => (random.next_u64() as i64) as f64 / 10f64.powi(random.below(19) as i32),
                // Near 2^50, where a double often lies exactly between two texts of 17 digits.
                2 => (random.below(1 << 53) as f64) * 0.125 + (1u64 << 50) as f64,
                3 => (random.next_u64() >> random.below(64)) as f64,
                _ => random.unit() * 10f64.powi(random.below(40) as i32 - 20),
            })
            .filter(|value| !value.is_nan())
            .collect();
        let texts: Vec<String> = values.iter().map(|value| format!("{value:e}")).collect();
        let commands: Vec<Vec<&[u8]>> = texts
            .iter()
            .flat_map(|text| {
                let add: Vec<&[u8]> = vec![b"ZADD", b"key", text.as_bytes(), b"member"];
                let score: Vec<&[u8]> = vec![b"ZSCORE", b"key", b"member"];
                [add, score]
            })
            .collect();
        let replies = pipeline(&mut connection, &commands);
        for (value, reply) in values.iter().zip(replies.iter().skip(1).step_by(2)) {
            let ours = format_double(*value, &mut [0; DOUBLE_LEN_MAX]).to_vec();
            assert_eq!(&Value::Bulk(ours), reply, "{value:e}");
        }
    }
}
