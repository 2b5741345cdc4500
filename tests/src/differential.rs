//! The differential test: sends one command stream to two servers, the *subject* (Pantala) and the
//! *reference* (redis-server), and compares every reply.
//!
//! A *step* is a command of the stream. A *burst* is a list of steps sent in one write. A *walk* is
//! the series of `SCAN` calls that follow a cursor until it is 0 (see [`generator`]).

use std::collections::BTreeSet;
use std::fmt::Write;
use std::time::{Duration, Instant};

use crate::client::{Client, encode, encode_into};
use crate::generator::{self, CONNECTIONS, Check, Generator, Step, TTL_SLACK_S};
use crate::reply::{Reply, show};
use crate::{Random, Server};

/// Maximum number of commands in one write. Only a write that contains a long transaction has more,
/// because it continues to the end of the transaction.
const BURST_MAX: usize = 40;
/// Maximum time spent on shrinking a failing stream.
const SHRINK_MAX: Duration = Duration::from_secs(20);
/// Number of databases compared at the end.
const DATABASES: usize = 16;
/// Number of bytes of a reply shown before the first difference.
const SHOWN_BEFORE: usize = 100;
/// Maximum number of steps of a failing stream that a report shows.
const HISTORY_SHOWN: usize = 60;
/// Maximum number of pages of a walk.
const PAGES_MAX: usize = 100_000;
/// If one of two walks found elements that the other lacks, a report shows at most this many of
/// them.
const ODD_SHOWN: usize = 4;
/// Minimum number of commands that fill both servers before a stream, to create payloads for
/// `RESTORE`.
const FILLING: usize = 3000;
/// Maximum length of a payload for `RESTORE`, in bytes.
const PAYLOAD_BYTES_MAX: usize = 20_000;
/// If the reference's reply to a script has at least this many bytes, the same script may fail on
/// Pantala for lack of memory.
const SCRIPT_REPLY_BYTES: usize = 256 << 20;

/// A difference between two servers.
#[derive(Debug)]
pub struct Difference {
    /// Number of the command in the stream.
    pub index: usize,
    /// Description of the difference, for the failure message.
    pub text: String,
}

/// A parsed reply and its raw bytes.
type Raw = (Reply, Vec<u8>);

/// Two servers, and several connections to each.
pub struct Pair<'a> {
    subject: &'a Server,
    reference: &'a Server,
    subject_clients: Vec<Client>,
    reference_clients: Vec<Client>,
}

impl<'a> Pair<'a> {
    /// Creates a pair in which `subject` must reply as `reference` does. Empties both servers.
    /// Disables active expiry, because the servers would delete expired keys at different times,
    /// and their numbers of keys could not be compared.
    #[must_use]
    pub fn new(subject: &'a Server, reference: &'a Server) -> Pair<'a> {
        let connect = |server: &Server| {
            let mut clients: Vec<Client> = (0..CONNECTIONS).map(|_| server.connect()).collect();
            assert_eq!(clients[0].call("FLUSHALL"), Reply::ok());
            assert_eq!(clients[0].call("FUNCTION FLUSH"), Reply::ok());
            assert_eq!(clients[0].call("DEBUG SET-ACTIVE-EXPIRE 0"), Reply::ok());
            // Restores settings that an earlier stream has changed.
            for (name, value) in generator::LIMITS_AT_FIRST {
                assert_eq!(clients[0].call(&format!("CONFIG SET {name} {value}")), Reply::ok());
            }
            clients[1].call("HELLO 3");
            clients
        };
        Pair { subject, reference, subject_clients: connect(subject), reference_clients: connect(reference) }
    }

    /// Sends the steps to both servers in bursts and compares the replies. Each burst is sent on
    /// one connection.
    ///
    /// # Errors
    /// The first difference.
    pub fn run(&mut self, steps: &[Step]) -> Result<(), Difference> {
        let mut start = 0;
        while start < steps.len() {
            let connection = steps[start].connection;
            if is_walk(&steps[start]) {
                self.walk(start, &steps[start])?;
                start += 1;
                continue;
            }
            // An `ECHO` follows each burst (see `Pair::burst`). Within a transaction the server
            // would queue the `ECHO`, so no burst ends within a transaction.
            let (mut length, mut is_open) = (0, false);
            for step in steps[start..].iter().take_while(|step| step.connection == connection) {
                if length >= BURST_MAX && !is_open || is_walk(step) {
                    break;
                }
                length += 1;
                is_open = match (step.args.as_slice(), is_open) {
                    ([name], false) => name.eq_ignore_ascii_case(b"MULTI"),
                    ([name], true) => {
                        ![&b"EXEC"[..], b"DISCARD", b"RESET"].iter().any(|end| name.eq_ignore_ascii_case(end))
                    }
                    (_, is_open) => is_open,
                };
            }
            let burst = &steps[start..start + length];
            if is_open {
                let end = Step { connection, args: vec![b"DISCARD".to_vec()], check: Check::Exact };
                self.burst(start, &[burst, &[end]].concat())?;
            } else {
                self.burst(start, burst)?;
            }
            start += length;
        }
        Ok(())
    }

    /// Follows a cursor to the end on both servers, and compares all elements.
    fn walk(&mut self, index: usize, step: &Step) -> Result<(), Difference> {
        let clients = [&mut self.subject_clients[step.connection], &mut self.reference_clients[step.connection]];
        let [given, right] = clients.map(|client| elements_of_walk(client, step));
        if given == right {
            return Ok(());
        }
        let shown = |walk: &Result<BTreeSet<String>, String>, other: &Result<BTreeSet<String>, String>| match walk {
            Ok(found) => {
                let other = other.as_ref().ok();
                let is_odd = |element: &&String| other.is_none_or(|other| !other.contains(*element));
                let odd: Vec<_> = found.iter().filter(is_odd).take(ODD_SHOWN).collect();
                format!("{} elements, of which the other walk lacks {odd:?}", found.len())
            }
            Err(raw) => raw.clone(),
        };
        let (args, given, right) = (show_args(&step.args), shown(&given, &right), shown(&right, &given));
        Err(difference(index, format!("a walk of {args}\n    gives   {given}\n    must be {right}")))
    }

    fn burst(&mut self, start: usize, steps: &[Step]) -> Result<(), Difference> {
        let mut bytes = Vec::new();
        for step in steps {
            encode_into(&mut bytes, &step.args);
        }
        let marker = format!("marker-{start}");
        encode_into(&mut bytes, &["ECHO", &marker]);
        let connection = steps[0].connection;
        let (subject, reference) = (&mut self.subject_clients[connection], &mut self.reference_clients[connection]);
        subject.send_raw(&bytes);
        reference.send_raw(&bytes);
        let sent = || steps.iter().map(|step| format!("\n    {}", show_args(&step.args))).collect::<String>();
        let unanswered = |text: String| difference(start, format!("{text}; the burst was:{}", sent()));
        // The marker shows whether replies are missing or extra. Without it, they would look like
        // wrong replies.
        let right = until_marker(reference, &marker).map_err(|text| unanswered(format!("the reference: {text}")))?;
        let given = until_marker(subject, &marker).map_err(unanswered)?;
        if given.len() != right.len() || right.len() != steps.len() {
            let text = format!(
                "{} replies to a burst of {}, and the reference sent {}",
                given.len(),
                steps.len(),
                right.len()
            );
            return Err(difference(start, text));
        }
        for (offset, ((step, given), right)) in steps.iter().zip(given).zip(right).enumerate() {
            if !agree(step.check, &given, &right) {
                let (given, right) = (&given.1, &right.1);
                let same = given.iter().zip(right).take_while(|(given, right)| given == right).count();
                // Long replies are cut near the first difference.
                let from = same.saturating_sub(SHOWN_BEFORE);
                let text = format!(
                    "{} (from byte {from} of the reply)\n    gives   {}\n    must be {}",
                    show_args(&step.args),
                    show(&given[from..]),
                    show(&right[from..])
                );
                return Err(difference(start + offset, text));
            }
        }
        Ok(())
    }

    /// Compares all keys of all databases: value, type, encoding, expiry. Then each server restores
    /// the other's dump of each key, and all keys are compared again.
    ///
    /// # Errors
    /// The first difference.
    pub fn compare_datasets(&mut self) -> Result<(), Difference> {
        for client in [&mut self.subject_clients[2], &mut self.reference_clients[2]] {
            // A shortened stream may end within a transaction.
            client.call("DISCARD");
        }
        for database in 0..DATABASES {
            let keys = self.keys_of(database)?;
            for key in &keys {
                self.compare_key(&format!("at the end (database {database})"), key)?;
            }
            for key in &keys {
                self.exchange(database, key)?;
            }
            for key in &keys {
                self.compare_key(&format!("restored from each other (database {database})"), key)?;
            }
        }
        Ok(())
    }

    /// Selects a database on both servers, and returns its keys. Fails if the keys differ.
    fn keys_of(&mut self, database: usize) -> Result<BTreeSet<Vec<u8>>, Difference> {
        let select = encode(&["SELECT", &database.to_string()]);
        let mut keys = Vec::new();
        for client in [&mut self.subject_clients[2], &mut self.reference_clients[2]] {
            client.send_raw(&select);
            client.receive();
            keys.push(client.call("KEYS *").elements().iter().map(bulk_bytes).collect::<BTreeSet<_>>());
        }
        if keys[0] != keys[1] {
            let odd = keys[0].symmetric_difference(&keys[1]).next().map(|key| show(key)).unwrap_or_default();
            return Err(difference(0, format!("at the end, database {database} differs in the key {odd:?}")));
        }
        Ok(keys.pop().unwrap_or_default())
    }

    fn compare_key(&mut self, when: &str, key: &[u8]) -> Result<(), Difference> {
        // The IDs of this stream come from the servers' clocks, so only the kind of reply is
        // compared.
        let stream_check = if key == generator::CLOCK_STREAM { Check::Kind } else { Check::Times };
        for (words, check) in [
            ("TYPE {}", Check::Exact),
            // Commands for another type reply with an error, which must also be equal.
            ("GET {}", Check::Exact),
            ("LRANGE {} 0 -1", Check::Exact),
            ("HGETALL {}", Check::Pairs),
            ("SMEMBERS {}", Check::Unordered),
            ("ZRANGE {} 0 -1 WITHSCORES", Check::Exact),
            ("XINFO STREAM {} FULL COUNT 0", stream_check),
            ("OBJECT ENCODING {}", Check::Exact),
            ("PEXPIRETIME {}", Check::Near(TTL_SLACK_S * 1000)),
        ] {
            let word = |word: &str| if word == "{}" { key.to_vec() } else { word.as_bytes().to_vec() };
            let args: Vec<Vec<u8>> = words.split(' ').map(word).collect();
            let ask = |client: &mut Client| {
                client.send(&args);
                client.receive_raw()
            };
            let (given, right) = (ask(&mut self.subject_clients[2]), ask(&mut self.reference_clients[2]));
            if !agree(check, &given, &right) {
                let text = format!(
                    "{when} {}\n    gives   {}\n    must be {}",
                    show_args(&args),
                    show(&given.1),
                    show(&right.1)
                );
                return Err(difference(0, text));
            }
        }
        Ok(())
    }

    /// Makes each server restore the other's dump of a key.
    fn exchange(&mut self, database: usize, key: &[u8]) -> Result<(), Difference> {
        let dump = |client: &mut Client| {
            client.send(&[b"DUMP", key]);
            client.receive()
        };
        let (given, right) = (dump(&mut self.subject_clients[2]), dump(&mut self.reference_clients[2]));
        let mut restore = |payload: &Reply, to_reference: bool| {
            let client = if to_reference { &mut self.reference_clients[2] } else { &mut self.subject_clients[2] };
            let Reply::Bulk(payload) = payload else { return Some(format!("DUMP gives {payload:?}")) };
            client.send(&[b"RESTORE", key, b"0", payload, b"REPLACE"]);
            let reply = client.receive();
            (reply != Reply::ok()).then(|| format!("RESTORE of {} got {reply:?}", show(payload)))
        };
        match restore(&given, true).or_else(|| restore(&right, false)) {
            None => Ok(()),
            Some(why) => Err(difference(0, format!("database {database}, key {}: {why}", show(key)))),
        }
    }

    /// Shortens the failing stream. Tries to remove groups of commands, smaller and smaller down to
    /// single commands. Keeps a removal if the stream still fails without the group. Stops when
    /// [`SHRINK_MAX`] has passed. Returns the whole stream if a server has died, or if the stream
    /// doesn't fail a second time.
    #[must_use]
    pub fn shrink(&self, mut steps: Vec<Step>) -> Vec<Step> {
        let deadline = Instant::now() + SHRINK_MAX;
        let fails = |steps: &[Step]| {
            let mut pair = Pair::new(self.subject, self.reference);
            pair.run(steps).and_then(|()| pair.compare_datasets()).is_err()
        };
        let alive = [self.subject, self.reference].iter().all(|server| Client::try_tcp(server.port()).is_ok());
        if !alive || !fails(&steps) {
            return steps;
        }
        let mut chunk = steps.len() / 2;
        while chunk > 0 && Instant::now() < deadline {
            let mut at = 0;
            while at < steps.len() && Instant::now() < deadline {
                let mut fewer = steps.clone();
                fewer.drain(at..(at + chunk).min(steps.len()));
                if fails(&fewer) {
                    steps = fewer;
                } else {
                    at += chunk;
                }
            }
            chunk /= 2;
        }
        steps
    }
}

/// Returns the elements of all pages of a walk, without repetitions. The error shows a reply that
/// isn't a page, or states that the walk doesn't end.
fn elements_of_walk(client: &mut Client, step: &Step) -> Result<BTreeSet<String>, String> {
    let chunk = if step.check == Check::WalkOfPairs { 2 } else { 1 };
    let cursor_at = if step.args[0].eq_ignore_ascii_case(b"SCAN") { 1 } else { 2 };
    let mut args = step.args.clone();
    let mut elements = BTreeSet::new();
    for _ in 0..PAGES_MAX {
        client.send(&args);
        let (reply, raw) = client.receive_raw();
        let Reply::Array(page) = &reply else { return Err(show(&raw)) };
        let [Reply::Bulk(cursor), Reply::Array(found)] = &page[..] else { return Err(show(&raw)) };
        elements.extend(found.chunks(chunk).map(|element| format!("{element:?}")));
        if cursor == b"0" {
            return Ok(elements);
        }
        args[cursor_at].clone_from(cursor);
    }
    Err(format!("no end after {PAGES_MAX} pages"))
}

fn is_walk(step: &Step) -> bool {
    matches!(step.check, Check::Walk | Check::WalkOfPairs)
}

/// Fills both servers from a separate stream. Returns the payloads of `DUMP` of their keys.
fn payloads(subject: &Server, reference: &Server, seed: u64, start_s: i64) -> Result<Vec<Vec<u8>>, Difference> {
    let mut generator = Generator::new(seed, start_s);
    let mut steps = Vec::new();
    while steps.len() < FILLING || generator.has_following_step() {
        steps.push(generator.step());
    }
    let mut pair = Pair::new(subject, reference);
    pair.run(&steps)?;
    let mut payloads = Vec::new();
    for database in 0..generator::DATABASES {
        for key in pair.keys_of(database as usize)? {
            // The last ID of this stream is a time. A stream restored from its payload would reject
            // all other IDs of the generator, because they are smaller.
            if key == generator::CLOCK_STREAM {
                continue;
            }
            for client in [&mut pair.subject_clients[2], &mut pair.reference_clients[2]] {
                client.send(&[b"DUMP", &key[..]]);
                if let Reply::Bulk(payload) = client.receive()
                    && payload.len() <= PAYLOAD_BYTES_MAX
                {
                    payloads.push(payload);
                }
            }
        }
    }
    Ok(payloads)
}

/// Runs at least `count` commands on both servers. The stream is determined by the announced seed
/// and `name`.
///
/// # Panics
/// At the first difference, with the announced seed and the shortest failing stream found.
pub fn compare(subject: &Server, reference: &Server, announced: u64, name: &str, count: usize) {
    let seed = Random::seed_of(announced, name);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let declared = generator::read_declared(&reference.connect().call("COMMAND DOCS"));
    let payloads = payloads(subject, reference, seed.rotate_left(32), now as i64)
        .unwrap_or_else(|found| panic!("PANTALA_SEED={announced} ({name}): before the stream, {}", found.text));
    let mut generator = Generator::new(seed, now as i64).with_declared(declared).with_payloads(payloads);
    let mut random = Random::from_seed(!seed);
    let mut steps = Vec::with_capacity(count);
    while steps.len() < count {
        let connection = random.below(CONNECTIONS);
        for _ in 0..random.below(BURST_MAX) + 1 {
            steps.push(Step { connection, ..generator.step() });
        }
        while generator.has_following_step() {
            steps.push(Step { connection, ..generator.step() });
        }
    }
    let mut pair = Pair::new(subject, reference);
    let Err(found) = pair.run(&steps).and_then(|()| pair.compare_datasets()) else { return };
    // Print the difference before shrinking, which takes long if a server doesn't reply.
    eprintln!("PANTALA_SEED={announced} ({name}): command {}: {}", found.index, found.text);
    let failing = if found.index == 0 { steps.len() } else { (found.index + BURST_MAX).min(steps.len()) };
    let shortest = pair.shrink(steps[..failing].to_vec());
    let mut report = format!("PANTALA_SEED={announced} ({name}): command {}: {}\n", found.index, found.text);
    let _ = writeln!(
        report,
        "  the shortest failing stream found ({} commands, connection 1 speaks RESP3 at first):",
        shortest.len()
    );
    for step in &shortest[shortest.len().saturating_sub(HISTORY_SHOWN)..] {
        let _ = writeln!(report, "    [{}] {}", step.connection, show_args(&step.args));
    }
    panic!("{report}");
}

fn difference(index: usize, text: String) -> Difference {
    Difference { index, text }
}

fn until_marker(client: &mut Client, marker: &str) -> Result<Vec<Raw>, String> {
    let mut replies = Vec::new();
    loop {
        let (reply, raw) = client
            .try_receive()
            .map_err(|error| format!("no reply after {}: {error}; unread: {}", replies.len(), show(client.unread())))?;
        if matches!(&reply, Reply::Bulk(text) if text == marker.as_bytes()) {
            return Ok(replies);
        }
        replies.push((reply, raw));
    }
}

/// Returns whether the subject's reply `given` is acceptable if `right` is the reference's reply.
#[must_use]
pub fn agree(check: Check, given: &Raw, right: &Raw) -> bool {
    // Pantala limits the memory of a script's Lua state, which also contains the reply (COMPAT.md).
    let is_too_large = given.1.starts_with(b"-ERR not enough memory script") && right.1.len() >= SCRIPT_REPLY_BYTES;
    if given.1 == right.1 || is_too_large {
        return true;
    }
    match (check, &given.0, &right.0) {
        (Check::Exact, ..) | (_, Reply::Error(_), _) | (_, _, Reply::Error(_)) => false,
        (Check::Unordered, given, right) => given.kind() == right.kind() && sorted(given, 1) == sorted(right, 1),
        (Check::Pairs, given, right) => given.kind() == right.kind() && sorted(given, 2) == sorted(right, 2),
        (Check::Length, given, right) => given.kind() == right.kind() && parts(given).len() == parts(right).len(),
        (Check::Near(slack), Reply::Integer(given), Reply::Integer(right)) => {
            *given >= 0 && *right >= 0 && (given - right).abs() <= slack
        }
        (Check::Times, given, right) => agree_but_for_times(given, right, false),
        (Check::Kind, Reply::Verbatim(given, _), Reply::Verbatim(right, _)) => given == right,
        (Check::Kind, given_reply, right_reply) => {
            given_reply.kind() == right_reply.kind() && (*given_reply != Reply::Null || given.1 == right.1)
        }
        _ => false,
    }
}

/// Returns whether replies about streams are equal except for times, which may differ by
/// [`TTL_SLACK_S`]. There are two kinds of times: the values of `idle` and `seen-time`, and the
/// time in a pending entry. A pending entry is an array that starts with an ID and ends with two
/// integers, a time and the number of deliveries.
fn agree_but_for_times(given: &Reply, right: &Reply, is_time: bool) -> bool {
    let items = |given: &[Reply], right: &[Reply]| {
        let pending = matches!(right, [Reply::Bulk(_), .., Reply::Integer(_), Reply::Integer(_)] if right.len() <= 4);
        given.len() == right.len()
            && given.iter().zip(right).enumerate().all(|(at, (given, item))| {
                let name = at.checked_sub(1).map(|before| &right[before]);
                let named = matches!(name, Some(Reply::Bulk(name)) if name == b"idle" || name == b"seen-time");
                agree_but_for_times(given, item, named || pending && at + 2 == right.len())
            })
    };
    match (given, right) {
        (Reply::Integer(given), Reply::Integer(right)) if is_time => (given - right).abs() <= TTL_SLACK_S * 1000,
        (Reply::Array(given), Reply::Array(right)) | (Reply::Map(given), Reply::Map(right)) => items(given, right),
        _ => given == right,
    }
}

/// Returns the elements of an aggregate, or a slice of the reply itself if it isn't an aggregate.
fn parts(reply: &Reply) -> &[Reply] {
    match reply {
        Reply::Array(items) | Reply::Set(items) | Reply::Map(items) => items,
        other => std::slice::from_ref(other),
    }
}

/// Returns the elements of a reply, joined in chunks of `chunk` elements, sorted. The elements of
/// an array of arrays aren't joined, because they are already pairs.
fn sorted(reply: &Reply, chunk: usize) -> Vec<String> {
    let parts = parts(reply);
    let chunk = if matches!(parts.first(), Some(Reply::Array(_))) { 1 } else { chunk };
    let mut parts: Vec<String> = parts.chunks(chunk).map(|chunk| format!("{chunk:?}")).collect();
    parts.sort();
    parts
}

fn bulk_bytes(reply: &Reply) -> Vec<u8> {
    match reply {
        Reply::Bulk(bytes) => bytes.clone(),
        other => panic!("expected a bulk, got {other:?}"),
    }
}

/// Formats a command as it is typed in redis-cli.
#[must_use]
pub fn show_args(args: &[Vec<u8>]) -> String {
    args.iter().map(|arg| format!("\"{}\"", show(arg))).collect::<Vec<_>>().join(" ")
}
