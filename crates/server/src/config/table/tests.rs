//! Compares the table with a real redis-server, if one is installed.

use super::super::directive::State;
use super::super::values::{Values, default_value};
use super::*;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Directives whose default differs from Redis's. Except for `dir`, the table gives the reason.
const OTHER_DEFAULTS: [&str; 7] = [
    "io-threads",
    "crash-log-enabled",
    "crash-memcheck-enabled",
    "disable-thp",
    "activerehashing",
    "jemalloc-bg-thread",
    // Redis shows its working directory, which the test chooses.
    "dir",
];

/// Pantala's own directives.
const OWN: [&str; 18] = [
    "aof-checksums",
    "shards",
    "partitions",
    "workers",
    "execution",
    "io-backend",
    "pin-threads",
    "numa",
    "sandbox",
    "ignore-unsupported",
    "unauthenticated-timeout",
    "packed-connections",
    "move-connections",
    "replica-refuse-empty-primary",
    "repl-backlog-disk-size",
    "repl-flows",
    "repl-flows-compression",
    "tls-handshake-threads",
];

/// Directives that can't be tested on a running server, because they would disconnect the test or
/// depend on other settings.
const NOT_TRIED: [&str; 9] = [
    "port",
    "tls-port",
    "requirepass",
    "maxclients",
    // Redis wraps values of more than 64 bits. It also has limits that depend on the host.
    "maxmemory",
    "appendonly",
    "activedefrag",
    // Setting this directive starts Redis's watchdog.
    "watchdog-period",
    "bind",
];

/// A redis-server started by the test and stopped when dropped.
struct Redis {
    process: Child,
    port: u16,
    dir: PathBuf,
}

impl Redis {
    /// Starts redis-server. Returns `None` if it isn't installed.
    fn start() -> Option<Redis> {
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).ok()?.local_addr().ok()?.port();
        let dir = std::env::temp_dir().join(format!("pantala-redis-{}-{port}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a directory");
        let mut command = Command::new("redis-server");
        command.args(["--port", &port.to_string(), "--dir"]).arg(&dir).stdin(Stdio::null()).stdout(Stdio::null());
        let Ok(process) = command.spawn() else {
            assert!(std::env::var("CI").as_deref() != Ok("true"), "CI=true forbids skipping: no redis-server");
            return None;
        };
        let redis = Redis { process, port, dir };
        let deadline = Instant::now() + Duration::from_secs(10);
        while TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err() {
            assert!(Instant::now() < deadline, "redis-server doesn't answer");
            std::thread::sleep(Duration::from_millis(10));
        }
        Some(redis)
    }

    fn connect(&self) -> Connection {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).expect("connected");
        stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a timeout");
        Connection(BufReader::new(stream))
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

struct Connection(BufReader<TcpStream>);

impl Connection {
    /// Sends a command and returns the strings of its reply: the elements of an array, or the line
    /// of a simple reply. The line includes its first byte, which is the type.
    fn command(&mut self, words: &[&str]) -> Vec<String> {
        self.send(words);
        self.reply()
    }

    fn send(&mut self, words: &[&str]) {
        let mut bytes = format!("*{}\r\n", words.len());
        for word in words {
            bytes += &format!("${}\r\n{word}\r\n", word.len());
        }
        self.0.get_mut().write_all(bytes.as_bytes()).expect("sent");
    }

    fn reply(&mut self) -> Vec<String> {
        let header = self.line();
        match header.strip_prefix('*') {
            Some(count) => (0..count.parse().expect("a count")).map(|_| self.bulk()).collect(),
            None => vec![header],
        }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).expect("a line");
        line.trim_end().to_string()
    }

    fn bulk(&mut self) -> String {
        let len: usize = self.line().strip_prefix('$').and_then(|len| len.parse().ok()).expect("a length");
        let mut bytes = vec![0; len + 2];
        self.0.read_exact(&mut bytes).expect("a string");
        String::from_utf8(bytes[..len].to_vec()).expect("text")
    }
}

/// The user documentation lists all supported directives.
#[test]
fn documentation_lists_each_supported_directive() {
    let page = include_str!("../../../../../docs/configuration.md");
    let served = DIRECTIVES.iter().filter(|directive| directive.state != State::Known);
    for name in served.map(|directive| directive.name).chain(OTHER_DEFAULTS) {
        assert!(page.contains(&format!("`{name}`")), "{name}");
    }
}

#[test]
fn names_and_defaults_match_redis() {
    let Some(redis) = Redis::start() else {
        println!("redis-server isn't installed: not compared");
        return;
    };
    let theirs = redis.connect().command(&["config", "get", "*"]);
    let theirs: BTreeMap<&str, &str> = theirs.chunks(2).map(|pair| (pair[0].as_str(), pair[1].as_str())).collect();
    assert!(theirs.len() > 150);
    let ours: BTreeMap<&str, &str> = names()
        .filter(|found| !found.directive().hidden && !OWN.contains(&found.name()))
        .map(|found| (found.name(), found.directive().default))
        .collect();
    assert_eq!(ours.keys().collect::<Vec<_>>(), theirs.keys().collect::<Vec<_>>());
    for (name, default) in &theirs {
        // The test itself chose the port.
        if *name == "port" {
            continue;
        }
        let is_other = ours[name] != *default;
        assert_eq!(is_other, OTHER_DEFAULTS.contains(name), "{name}: ours {:?}, theirs {default:?}", ours[name]);
    }
    for found in names().filter(|found| found.directive().hidden) {
        let theirs = redis.connect().command(&["config", "get", found.name()]);
        assert_eq!(theirs, [found.name(), found.directive().default]);
    }
}

/// Sets every directive of the real server to valid and invalid values. Compares which values are
/// rejected, with which errors, and which directives are fixed at startup.
#[test]
fn errors_match_redis() {
    const TRIED: [&str; 24] = [
        "",
        "0",
        "1",
        "-1",
        "-3",
        "16",
        "101",
        "777",
        "888",
        "yes",
        "NO",
        "maybe",
        "local",
        "5%",
        "101%",
        "abc",
        "1kb",
        "1k",
        "+1",
        "05",
        "2147483648",
        "4294967296",
        "9223372036854775808",
        "a/b",
    ];
    let Some(redis) = Redis::start() else {
        println!("redis-server isn't installed: not compared");
        return;
    };
    let mut connection = redis.connect();
    let mut compared = 0;
    for (index, directive) in DIRECTIVES.iter().enumerate() {
        // Setting any TLS directive needs certificates.
        let is_left_out = directive.name.starts_with("tls-")
            || OWN.contains(&directive.name)
            || matches!(directive.name, "io-threads" | "databases");
        if is_left_out || NOT_TRIED.contains(&directive.name) || directive.kind.is_multi_argument() {
            continue;
        }
        if matches!(directive.kind, Text | Kind::Dir) && directive.state == State::Known {
            // Pantala accepts any text for these directives, because it doesn't support them yet.
            continue;
        }
        TRIED.iter().for_each(|text| connection.send(&["config", "set", directive.name, text]));
        for text in TRIED {
            let theirs = connection.reply().remove(0);
            let theirs = theirs.rsplit_once(") - ").map_or(theirs.as_str(), |(_, reason)| reason);
            let parsed = Values::new().parse(index, &[text.into()], false);
            let ours = if directive.immutable {
                "can't set immutable config".to_string()
            } else if directive.protected {
                "can't set protected config".to_string()
            } else {
                parsed.map_or_else(|reason| reason, |_| "+OK".into())
            };
            assert_eq!(ours, theirs, "{} {text:?}", directive.name);
            compared += 1;
        }
        let default =
            String::from_utf8(super::super::value::show(directive.kind, &default_value(directive))).expect("text");
        connection.command(&["config", "set", directive.name, &default]);
    }
    assert!(compared > 2_000, "{compared}");
}
