//! Reads the stream of effects that a server sends after `SYNC`, and replays the stream on another
//! server.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::client::{READ_MAX, encode, encode_into};
use crate::reply::{self, Reply, show};
use crate::waiting::eventually;
use crate::{Client, Server};

/// The name and arguments of a propagated command.
pub type Effect = Vec<Vec<u8>>;

/// Maximum number of effects in flight during a replay.
const REPLAYED_TOGETHER: usize = 1000;

/// Number of databases of a server.
const DATABASES: usize = 16;

/// Maximum number of effects that [`difference`] shows.
const EFFECTS_SHOWN: usize = 12;

/// The key whose `SET` marks a position in the stream.
pub(crate) const MARKER: &[u8] = b"__marker__";

/// A connection that follows a server's stream, as a replica does.
pub struct EffectStream {
    stream: TcpStream,
    buffer: Vec<u8>,
    taken: usize,
}

impl EffectStream {
    /// Attaches to a server. The stream contains all writes that follow this call.
    ///
    /// # Panics
    /// If the server rejects `SYNC`.
    #[must_use]
    pub fn attach(server: &Server) -> EffectStream {
        // Disables redis-server's pings, which aren't effects.
        server.connect().call("CONFIG SET repl-ping-replica-period 3600");
        let stream = TcpStream::connect(("127.0.0.1", server.port())).expect("the server listens");
        stream.set_read_timeout(Some(READ_MAX)).expect("a socket takes a timeout");
        let mut attached = EffectStream { stream, buffer: Vec::new(), taken: 0 };
        attached.stream.write_all(&encode(&["SYNC"])).expect("the server reads");
        attached.skip_snapshot();
        attached
    }

    fn skip_snapshot(&mut self) {
        let line = loop {
            match self.buffer.iter().position(|byte| *byte == b'\n') {
                Some(0 | 1) => _ = self.buffer.drain(..=0),
                Some(end) => break self.buffer.drain(..=end).collect::<Vec<u8>>(),
                None => self.fill(),
            }
        };
        let length = line.strip_prefix(b"$").and_then(|rest| std::str::from_utf8(rest).ok()?.trim().parse().ok());
        let length: usize = length.unwrap_or_else(|| panic!("SYNC got the reply {}", show(&line)));
        while self.buffer.len() < length {
            self.fill();
        }
        self.buffer.drain(..length);
    }

    fn fill(&mut self) {
        let mut chunk = [0; 64 * 1024];
        let count = loop {
            match self.stream.read(&mut chunk) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                read => break read.unwrap_or_else(|error| panic!("reading the stream: {error}")),
            }
        };
        assert!(count > 0, "the server ended the stream");
        self.buffer.extend_from_slice(&chunk[..count]);
    }

    /// Returns the next effect, including `MULTI`, `EXEC` and `SELECT`.
    ///
    /// # Panics
    /// If the server ends the stream, or sends bytes that aren't a command.
    pub fn next_effect(&mut self) -> Effect {
        loop {
            match reply::parse(&self.buffer[self.taken..]).expect("the stream is RESP") {
                Some((Reply::Array(words), length)) => {
                    self.taken += length;
                    if self.taken == self.buffer.len() {
                        self.buffer.clear();
                        self.taken = 0;
                    }
                    let bulk = |word| match word {
                        Reply::Bulk(bytes) => bytes,
                        other => panic!("an effect contains {other:?}"),
                    };
                    return words.into_iter().map(bulk).collect();
                }
                Some((other, _)) => panic!("not a command in the stream: {other:?}"),
                None => self.fill(),
            }
        }
    }

    /// Returns whether all received bytes have been returned as effects.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.buffer.is_empty()
    }

    /// Returns all effects of writes that were acknowledged before this call. Sets a marker key,
    /// reads the stream up to the marker, and does both a second time. One marker is not enough: if
    /// another worker ran a write, the write's effect may follow the first marker, although the
    /// write was acknowledged before this call. The effect precedes the second marker, which is set
    /// only after the first was received.
    pub fn take(&mut self, client: &mut Client) -> Vec<Effect> {
        let mut effects = self.up_to_marker(client);
        effects.append(&mut self.up_to_marker(client));
        effects
    }

    fn up_to_marker(&mut self, client: &mut Client) -> Vec<Effect> {
        // Markers are unique, because several streams of one server contain each other's markers.
        static MARKERS: AtomicU64 = AtomicU64::new(0);
        let value = MARKERS.fetch_add(1, Ordering::Relaxed).to_string();
        client.command(&[&b"SET"[..], MARKER, value.as_bytes()]);
        let mut effects = Vec::new();
        loop {
            let effect = self.next_effect();
            if effect.len() == 3 && effect[1] == MARKER && effect[2] == value.as_bytes() {
                return effects;
            }
            effects.push(effect);
        }
    }
}

/// Replays effects on a server, in order.
///
/// # Panics
/// If the server replies with an error to an effect. Every effect of one server must be valid on
/// another.
pub fn replay(effects: &[Effect], server: &Server) {
    let mut client = server.connect();
    for together in effects.chunks(REPLAYED_TOGETHER) {
        let mut bytes = Vec::new();
        together.iter().for_each(|effect| encode_into(&mut bytes, &as_sent_by_a_client(effect)));
        for ((reply, _), effect) in client.exchange(&bytes, together.len()).into_iter().zip(together) {
            assert!(!has_error(&reply), "{} got the reply {reply:?}", show_effect(effect));
        }
    }
    client.call("SELECT 0");
    client.command(&[&b"DEL"[..], MARKER]);
}

/// The bytes of a stream as [`replay`] sends them. They can be cut at any byte.
pub struct Encoded {
    /// The encoded effects.
    pub bytes: Vec<u8>,
    /// The position of the end of each effect in `bytes`.
    pub ends: Vec<usize>,
}

impl Encoded {
    /// Encodes effects.
    #[must_use]
    pub fn new(effects: &[Effect]) -> Encoded {
        let mut encoded = Encoded { bytes: Vec::new(), ends: Vec::new() };
        for effect in effects {
            encode_into(&mut encoded.bytes, &as_sent_by_a_client(effect));
            encoded.ends.push(encoded.bytes.len());
        }
        encoded
    }

    /// Sends the first `length` bytes to a server and closes the connection. The server then
    /// discards an incomplete last command or an open transaction. Loading a truncated append-only
    /// file has the same result.
    ///
    /// # Panics
    /// If the server replies with an error to one of the effects.
    pub fn replay_prefix(&self, length: usize, server: &Server) {
        let complete = self.ends.partition_point(|end| *end <= length);
        let mut client = server.connect();
        for (number, (reply, _)) in client.exchange(&self.bytes[..length], complete).into_iter().enumerate() {
            assert!(!has_error(&reply), "effect {number} of {complete} got the reply {reply:?}");
        }
    }
}

/// Makes the server delete the expired keys of all databases, by `SCAN`, so that it propagates
/// their `DEL`s. Until then, copies of the server still have these keys, because
/// `as_sent_by_a_client` has postponed the deadlines.
pub fn delete_expired(client: &mut Client) {
    for db in 0..DATABASES {
        client.call(&format!("SELECT {db}"));
        let mut cursor = "0".to_owned();
        loop {
            cursor = client.call(&format!("SCAN {cursor} COUNT 10000")).elements()[0].text();
            if cursor == "0" {
                break;
            }
        }
    }
    client.call("SELECT 0");
}

/// Waits until all keys with a TTL have expired. Each deletion is propagated to copies.
///
/// # Panics
/// If some keys don't expire in time.
pub fn wait_for_expiry(server: &Server) {
    let mut client = server.connect();
    eventually("all keys with a TTL expire", || {
        let keyspace = client.call("INFO keyspace").text();
        keyspace.split("expires=").skip(1).all(|rest| rest.starts_with("0,"))
    });
}

/// Milliseconds by which deadlines are later in a copy. A replica keeps an expired key until the
/// key's `DEL` arrives. A copy is not a replica: it receives the stream from a client, and would
/// expire the key before the `DEL` arrives.
const LATER_MS: i64 = 24 * 60 * 60 * 1000;

/// Changes an effect of a primary so that it has the same result when a client sends it. Deadlines
/// become [`LATER_MS`] later, and an option that only a primary may send is removed.
pub(crate) fn as_sent_by_a_client(effect: &Effect) -> Effect {
    let mut words = without_limit(effect);
    if let Some((at, unit_ms)) = deadline_of(&words) {
        let deadline: i64 = String::from_utf8_lossy(&words[at]).parse().expect("a time");
        words[at] = deadline.saturating_add(LATER_MS / unit_ms).to_string().into_bytes();
    }
    words
}

/// Returns the position of the absolute time in an effect that sets a deadline, and its unit in ms.
fn deadline_of(words: &[Vec<u8>]) -> Option<(usize, i64)> {
    let is = |at: usize, name: &str| words.get(at).is_some_and(|word| word.eq_ignore_ascii_case(name.as_bytes()));
    let option = |name: &str| (3..words.len().saturating_sub(1)).find(|&at| is(at, name)).map(|at| at + 1);
    if is(0, "SET") {
        return option("PXAT").map(|at| (at, 1)).or_else(|| option("EXAT").map(|at| (at, 1000)));
    }
    // A TTL of 0 means no deadline.
    let is_restore = is(0, "RESTORE") && words.get(2).is_some_and(|ttl| ttl != b"0");
    if is_restore && (4..words.len()).any(|at| is(at, "ABSTTL")) {
        return Some((2, 1));
    }
    (words.len() >= 3 && (is(0, "PEXPIREAT") || is(0, "HPEXPIREAT"))).then_some((2, 1))
}

/// Removes `LIMIT` after an exact trim (`=`) of a stream. `LIMIT` has no meaning after an exact
/// trim, and Redis accepts it only from its primary.
fn without_limit(effect: &Effect) -> Effect {
    let is_trim = effect[0].eq_ignore_ascii_case(b"XADD") || effect[0].eq_ignore_ascii_case(b"XTRIM");
    let limit = effect.windows(4).position(|words| {
        let is_strategy = [&b"MAXLEN"[..], b"MINID"].iter().any(|word| words[0].eq_ignore_ascii_case(word));
        is_strategy && words[1] == b"=" && words[3].eq_ignore_ascii_case(b"LIMIT")
    });
    let mut words = effect.clone();
    if let Some(at) = limit.filter(|_| is_trim) {
        words.drain(at + 3..at + 5);
    }
    words
}

pub(crate) fn has_error(reply: &Reply) -> bool {
    match reply {
        Reply::Array(replies) => replies.iter().any(has_error),
        reply => reply.is_error(),
    }
}

/// Returns the digest of a server's dataset, after deleting the marker key.
pub fn digest(server: &Server) -> String {
    let mut client = server.connect();
    client.command(&[&b"DEL"[..], MARKER]);
    client.call("DEBUG DIGEST").text()
}

/// The deadline of each key that has one, Unix time in ms, by database and key.
pub type Deadlines = BTreeMap<(usize, Vec<u8>), i64>;

/// Returns the deadlines of a server's keys. `DEBUG DIGEST` shows only which keys have a deadline.
#[must_use]
pub fn deadlines(server: &Server) -> Deadlines {
    let mut client = server.connect();
    let mut all = Deadlines::new();
    for database in 0..DATABASES {
        client.call(&format!("SELECT {database}"));
        let keys = client.call("KEYS *").elements().iter().map(bytes_of).collect::<Vec<_>>();
        let questions: Vec<_> = keys.iter().map(|key| vec![b"PEXPIRETIME".to_vec(), key.clone()]).collect();
        let times = client.pipeline(&questions);
        // The reply is negative for keys without a deadline and for missing keys.
        let set = keys.into_iter().zip(times.iter().map(Reply::integer)).filter(|(_, time)| *time >= 0);
        all.extend(set.map(|(key, time)| ((database, key), time)));
    }
    all
}

/// Returns the first key whose deadline in the copy is not [`LATER_MS`] later than on the server.
/// Keys that have expired on the server in the meantime are skipped.
#[must_use]
pub fn different_deadline(server: &Server, copy: &Server) -> Option<String> {
    let copied = deadlines(copy);
    deadlines(server).into_iter().find_map(|((database, key), time)| {
        let expected = time.saturating_add(LATER_MS);
        let given = copied.get(&(database, key.clone())).copied();
        (given != Some(expected)).then(|| {
            format!("database {database}, key {}: the deadline is {given:?} instead of {expected}", show(&key))
        })
    })
}

/// Describes the difference between two servers. The text contains the keys that differ in the
/// first database with a difference, and the last effects on the first of these keys.
#[must_use]
pub fn difference(server: &Server, copy: &Server, effects: &[Effect]) -> String {
    let found = (0..DATABASES).find_map(|database| difference_in(database, server, copy, effects));
    found.unwrap_or_else(|| "no key differs".into())
}

/// Returns the bytes of a key, which need not be UTF-8.
fn bytes_of(key: &Reply) -> Vec<u8> {
    let Reply::Bulk(bytes) = key else { panic!("a key, not {key:?}") };
    bytes.clone()
}

fn difference_in(database: usize, server: &Server, copy: &Server, effects: &[Effect]) -> Option<String> {
    let digests = |server: &Server| -> BTreeMap<Vec<u8>, String> {
        let mut client = server.connect();
        client.call(&format!("SELECT {database}"));
        let keys = client.call("KEYS *").elements().iter().map(bytes_of).collect::<Vec<_>>();
        let digest = |key: Vec<u8>| {
            let digest = client.command(&[&b"DEBUG"[..], b"DIGEST-VALUE", &key]).elements()[0].text();
            (key, digest)
        };
        keys.into_iter().map(digest).collect()
    };
    let (given, right) = (digests(copy), digests(server));
    let keys: BTreeSet<&Vec<u8>> = given.keys().chain(right.keys()).collect();
    let different: Vec<&Vec<u8>> = keys.into_iter().filter(|key| given.get(*key) != right.get(*key)).collect();
    let first = different.first()?;
    let shown = |server: &Server| {
        let mut client = server.connect();
        client.call(&format!("SELECT {database}"));
        let mut answer = |name: &str| format!("{name} {:?}", client.command(&[name.as_bytes(), first]));
        ["TYPE", "PEXPIRETIME", "DUMP"].map(&mut answer).join(", ")
    };
    let (copied, original) = (shown(copy), shown(server));
    let on_it: Vec<String> = effects.iter().filter(|effect| effect.contains(first)).map(show_effect).collect();
    let last = &on_it[on_it.len().saturating_sub(EFFECTS_SHOWN)..];
    let keys: Vec<String> = different.iter().map(|key| show(key)).collect();
    let last = last.join("\n");
    Some(format!(
        "database {database}: keys {keys:?} differ, the first is {copied} and was {original}; effects on it:\n{last}"
    ))
}

/// Formats an effect as one line.
#[must_use]
pub fn show_effect(effect: &Effect) -> String {
    effect.iter().map(|word| show(word)).collect::<Vec<_>>().join(" ")
}
