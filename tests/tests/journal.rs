//! The stream of effects (the commands that the server propagates to replicas and to the
//! append-only file) and its readers, called *followers* in this file. Each follower has its own
//! position in the stream. The server holds all bytes that at least one follower or the backlog
//! still needs. The number of held bytes is bounded.
//!
//! | variable | meaning |
//! | --- | --- |
//! | `PANTALA_EFFECTS` | effects of `ten_million_effects_rebuild_the_dataset` (default 10,000,000) |

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use pantala_tests::client::{READ_MAX, encode};
use pantala_tests::effects::{Effect, EffectStream};
use pantala_tests::replica::Replica;
use pantala_tests::waiting::eventually;
use pantala_tests::writers::write_until;
use pantala_tests::{Backend, Client, Random, Reply, Server, for_each_backend};

const MIB: usize = 1 << 20;

/// Length of a value in bytes. The effect of a write of so long a value is a separate chunk of the
/// stream.
const VALUE_BYTES: usize = 64 * 1024;

/// An upper bound for the length in bytes of a chunk (a piece of the stream in memory) in these
/// tests. Only whole chunks are freed, so the server may hold up to one chunk more than it needs.
const CHUNK_BYTES_MAX: usize = 512 * 1024;

/// A number of bytes that the sockets of both sides of a connection can't buffer.
const STUCK_BYTES: usize = 24 * MIB;

/// A connection that has sent `SYNC` and stops reading after the first bytes of the reply.
struct SlowFollower(TcpStream);

impl SlowFollower {
    fn attach(server: &Server) -> SlowFollower {
        server.connect().call("CONFIG SET repl-ping-replica-period 3600");
        let mut stream = TcpStream::connect(("127.0.0.1", server.port())).expect("the server listens");
        stream.set_read_timeout(Some(READ_MAX)).expect("a socket takes a timeout");
        stream.write_all(&encode(&["SYNC"])).expect("the server reads");
        let mut first = [0; 5];
        stream.read_exact(&mut first).expect("a snapshot begins");
        assert_eq!(&first[..1], b"$", "{}", first.escape_ascii());
        SlowFollower(stream)
    }

    /// Returns whether the server has closed the connection. First reads the bytes that the sockets
    /// still hold.
    fn is_closed(&mut self) -> bool {
        self.0.set_read_timeout(Some(Duration::from_millis(200))).expect("a socket takes a timeout");
        let mut bytes = vec![0; MIB];
        loop {
            match self.0.read(&mut bytes) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(error) => return error.kind() == std::io::ErrorKind::ConnectionReset,
            }
        }
    }
}

/// Returns a field of `INFO`.
fn info_number(client: &mut Client, section: &str, name: &str) -> usize {
    let text = client.call(&format!("INFO {section}")).text();
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    value.unwrap_or_else(|| panic!("INFO has no {name}")).trim().parse().expect("a number")
}

fn held_bytes(client: &mut Client) -> usize {
    info_number(client, "memory", "mem_total_replication_buffers")
}

/// Returns the number of connections closed at their output limit.
fn closed_over_limit(server: &Server) -> usize {
    server.log().matches("overcoming of output buffer limits").count()
}

fn set_limit(client: &mut Client, limit: &str) {
    assert_eq!(client.command(&["CONFIG", "SET", "client-output-buffer-limit", limit]), Reply::ok());
}

/// Sets a key to values with increasing numbers. Returns the number after the last.
fn write_values(client: &mut Client, first: usize, bytes: usize) -> usize {
    let end = first + bytes / VALUE_BYTES;
    for number in first..end {
        let digits = number.to_string();
        let value = "0".repeat(VALUE_BYTES - digits.len()) + &digits;
        assert_eq!(client.command(&["SET", "key", &value]), Reply::ok());
    }
    end
}

/// Reads the effects of [`write_values`], and checks their numbers.
fn read_values(stream: &mut EffectStream, first: usize, end: usize) {
    for number in first..end {
        let mut effect = stream.next_effect();
        while effect[0] == b"SELECT" {
            effect = stream.next_effect();
        }
        let value = String::from_utf8_lossy(&effect[2]).into_owned();
        assert_eq!(value.trim_start_matches('0').parse().unwrap_or(0), number);
    }
}

/// Two followers are at different positions. The slow follower is disconnected at its output limit,
/// and the other follower receives everything. The number of held bytes never exceeds the limit by
/// much.
#[test]
fn a_slow_follower_is_disconnected_and_the_other_continues() {
    const LIMIT: usize = 8 * MIB;
    // In addition to the limit, the server holds the output that is already queued for the slow
    // connection, and the backlog.
    const HELD_MAX: usize = LIMIT + 3 * MIB;
    for_each_backend(|backend| {
        let mut server = Server::pantala(backend, &["--workers", "2"]);
        let mut client = server.connect();
        set_limit(&mut client, &format!("replica {LIMIT} 0 0"));
        let (mut fast, mut slow) = (EffectStream::attach(&server), SlowFollower::attach(&server));
        let (mut number, mut most) = (0, 0);
        let resident_before = server.resident_bytes();
        for _ in 0..(STUCK_BYTES + 3 * LIMIT) / MIB {
            let end = write_values(&mut client, number, MIB);
            read_values(&mut fast, number, end);
            number = end;
            most = most.max(held_bytes(&mut client));
        }
        assert!((LIMIT..=HELD_MAX).contains(&most), "{most} bytes were held");
        eventually("the slow follower is disconnected", || closed_over_limit(&server) == 1);
        assert!(slow.is_closed());
        // The backlog remains, and the rest of the chunk in which the backlog starts.
        eventually("the bytes held for the slow follower are freed", || {
            held_bytes(&mut client) <= MIB + CHUNK_BYTES_MAX
        });
        let grown = server.resident_bytes().saturating_sub(resident_before) as usize;
        assert!(grown < 4 * LIMIT, "{grown} bytes more than before");
        server.assert_sound();
    });
}

/// As in Redis, the effective limit is at least the size of the backlog. The server holds the
/// backlog anyway, so it doesn't disconnect a replica whose lag is less than that size.
#[test]
fn a_follower_may_be_behind_by_the_backlog() {
    const BACKLOG: usize = 16 * MIB;
    let server = Server::pantala(Backend::all()[0], &["--workers", "2"]);
    let mut client = server.connect();
    set_limit(&mut client, "replica 100kb 0 0");
    assert_eq!(client.call(&format!("CONFIG SET repl-backlog-size {BACKLOG}")), Reply::ok());
    let mut slow = SlowFollower::attach(&server);
    // The follower lags by fewer bytes than are written here, because the sockets buffer some of
    // them.
    write_values(&mut client, 0, BACKLOG - MIB);
    assert_eq!(closed_over_limit(&server), 0);
    write_values(&mut client, 0, STUCK_BYTES + MIB);
    eventually("the slow follower is disconnected", || closed_over_limit(&server) == 1);
    assert!(slow.is_closed());
}

#[test]
fn the_soft_limit_of_a_follower_applies_after_its_seconds() {
    let server = Server::pantala(Backend::all()[0], &["--workers", "2"]);
    let mut client = server.connect();
    set_limit(&mut client, "replica 0 4mb 1");
    let (mut fast, mut slow) = (EffectStream::attach(&server), SlowFollower::attach(&server));
    let since = Instant::now();
    let mut end = 0;
    for _ in 0..(STUCK_BYTES + 8 * MIB) / MIB {
        let first = end;
        end = write_values(&mut client, first, MIB);
        read_values(&mut fast, first, end);
    }
    eventually("the slow follower is disconnected", || closed_over_limit(&server) == 1);
    assert!(since.elapsed() > Duration::from_secs(1), "{:?}", since.elapsed());
    assert!(slow.is_closed());
    let next = write_values(&mut client, end, MIB);
    read_values(&mut fast, end, next);
}

/// `INFO replication` shows the size and the first offset of the held bytes, as in Redis.
#[test]
fn the_backlog_is_held_while_a_connection_follows_and_until_its_ttl_passes() {
    const BACKLOG: usize = 2 * MIB;
    for_each_backend(|backend| {
        let size = BACKLOG.to_string();
        let options = ["--workers", "2", "--repl-backlog-size", &size, "--repl-backlog-ttl", "1"];
        let server = Server::pantala(backend, &options);
        let mut client = server.connect();
        let field = |client: &mut Client, name: &str| info_number(client, "replication", name);
        assert_eq!(field(&mut client, "repl_backlog_size"), BACKLOG);
        assert_eq!(field(&mut client, "repl_backlog_active"), 0);
        let mut stream = EffectStream::attach(&server);
        let end = write_values(&mut client, 0, 3 * BACKLOG);
        read_values(&mut stream, 0, end);
        assert_eq!(field(&mut client, "repl_backlog_active"), 1);
        eventually("all but the backlog is freed", || {
            (BACKLOG..BACKLOG + CHUNK_BYTES_MAX).contains(&field(&mut client, "repl_backlog_histlen"))
        });
        let offset = field(&mut client, "master_repl_offset");
        assert!(offset > 3 * BACKLOG, "{offset}");
        let (first, len) =
            (field(&mut client, "repl_backlog_first_byte_offset"), field(&mut client, "repl_backlog_histlen"));
        assert_eq!(first + len, offset + 1);
        drop(stream);
        eventually("no follower is connected", || field(&mut client, "connected_slaves") == 0);
        assert_eq!(field(&mut client, "repl_backlog_active"), 1);
        eventually("all held bytes are freed", || {
            field(&mut client, "repl_backlog_active") == 0 && held_bytes(&mut client) == 0
        });
        client.call("SET key 1");
        assert_eq!(field(&mut client, "master_repl_offset"), offset);
    });
}

/// `DEBUG JOURNAL` makes the server produce the stream without a follower. Everything but the
/// backlog is discarded.
#[test]
fn the_stream_can_be_recorded_without_a_follower() {
    let server = Server::pantala(Backend::all()[0], &["--workers", "2"]);
    let mut client = server.connect();
    assert_eq!(client.call("DEBUG JOURNAL 1"), Reply::ok());
    eventually("the stream is recorded", || {
        client.call("SET key value");
        info_number(&mut client, "replication", "master_repl_offset") > 0
    });
    write_values(&mut client, 0, 8 * MIB);
    eventually("the stream contains all writes", || {
        info_number(&mut client, "replication", "master_repl_offset") >= 8 * MIB
    });
    assert!(held_bytes(&mut client) <= MIB + CHUNK_BYTES_MAX);
    assert_eq!(client.call("DEBUG JOURNAL 0"), Reply::ok());
    eventually("all held bytes are freed", || held_bytes(&mut client) == 0);
}

/// Number of clients that write at a time in the tests below.
const WRITERS: usize = 6;

/// Number of held bytes at which the writers pause, so that the copies can catch up.
const HELD_MAX: usize = 64 * MIB;

/// Makes `copies` follow a server while clients write, until the copies have received `effects`
/// effects. Then compares the datasets. Returns the number of effects that the copies received.
fn follow_writers(server: &Server, copies: Vec<Server>, effects: u64, seed: u64) -> u64 {
    let mut client = server.connect();
    // There is no output limit. Instead, the writers pause when the copies are far behind.
    set_limit(&mut client, "replica 0 0 0");
    let look = |unit: &[Effect]| if unit.is_empty() { Err("a unit without effects".to_owned()) } else { Ok(()) };
    let replica = Replica::attach(server, copies, Box::new(look));
    let (is_over, rests) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| write_until(server, seed, WRITERS, &is_over, &rests));
        while replica.effects() < effects && !replica.has_ended() {
            rests.store(held_bytes(&mut client) > HELD_MAX, Ordering::Relaxed);
            std::thread::sleep(Duration::from_millis(20));
        }
        is_over.store(true, Ordering::Relaxed);
    });
    replica.finish(server).unwrap_or_else(|text| panic!("PANTALA_SEED={seed}: {text}"))
}

fn copies(backend: Backend) -> Vec<Server> {
    let mut copies = vec![Server::pantala(backend, &["--workers", "2"])];
    copies.extend(Server::redis(&[]));
    copies
}

#[test]
fn copies_that_follow_writers_hold_the_same() {
    let seed = Random::seed("copies_that_follow_writers_hold_the_same");
    for_each_backend(|backend| {
        for execution in ["inline", "owner"] {
            let args = ["--workers", "4", "--shards", "12", "--execution", execution];
            let mut server = Server::pantala(backend, &args);
            follow_writers(&server, copies(backend), 20_000, seed);
            server.assert_sound();
        }
    });
}

/// Ten million effects, generated from one seed, are replayed to a new Pantala and to a new
/// redis-server.
#[test]
#[ignore = "takes minutes: .ci/nightly"]
fn ten_million_effects_rebuild_the_dataset() {
    let wanted = std::env::var("PANTALA_EFFECTS").map_or(10_000_000, |text| text.trim().parse().expect("a number"));
    let seed = Random::seed("ten_million_effects_rebuild_the_dataset");
    let backend = Backend::all()[0];
    let mut server = Server::pantala(backend, &["--workers", "4", "--shards", "40"]);
    let began = Instant::now();
    let copies = copies(backend);
    let count = copies.len();
    let effects = follow_writers(&server, copies, wanted, seed);
    let keys = server.connect().call("INFO keyspace").text().replace("\r\n", " ");
    println!("{effects} effects, {count} copies with equal DEBUG DIGEST, {:.0?}; {keys}", began.elapsed());
    server.assert_sound();
}
