//! `MIGRATE`: copies keys to another server and deletes each key from this server once the other
//! server has confirmed the copy.
//!
//! As in Redis, all keys are sent in one write, with one `RESTORE` per key, and a key is deleted
//! when the reply to its `RESTORE` arrives. The call holds the shards of the keys until it ends, so
//! that no other command changes the keys. The call also blocks the worker.
//!
//! As in Redis, the timeout applies to each step: connecting, writing a part, or reading a reply.
//! Resolving the host name has no timeout. Unlike Redis, each call opens its own connection.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use pantala_engine::access::{Access, Key, SessionView};
use pantala_engine::command::{Chance, Propagated};
use pantala_engine::keyspace::Keyspace;
use pantala_resp::{Args, Reply, Version};

use crate::arguments::{integer, is_option};
use crate::dump::payload_of;
use crate::{errors, propagated};

/// Index of the key argument, which is empty if the keys follow `KEYS`.
const KEY_AT: usize = 3;
/// Index of the first option.
const OPTIONS_AT: usize = 6;
/// Index of the key specification whose flags apply to all keys, including those after `KEYS`.
const SPEC: usize = 0;
/// Timeout if the argument is zero or negative.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum length of the first line of a reply, in bytes.
const LINE_BYTES_MAX: u64 = 64 * 1024;

const CONNECTING: &str = "IOERR error or timeout connecting to the client";
const WRITING: &str = "IOERR error or timeout writing to target instance";
const READING: &str = "IOERR error or timeout reading to target instance";

/// `MIGRATE host port key|"" destination-db timeout [COPY] [REPLACE] [AUTH password | AUTH2
/// username password] [KEYS key [key …]]`.
pub fn migrate(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>, _: Chance) -> Option<Propagated> {
    let mut deleted = None;
    send_keys(access, args, &mut deleted, reply);
    deleted
}

/// Runs `MIGRATE`. Sets `deleted` if a key was deleted.
fn send_keys(access: &mut Access<'_>, args: &Args<'_>, deleted: &mut Option<Propagated>, reply: &mut Reply<'_>) {
    let Some(options) = Options::parse(args, reply) else { return };
    let Some(timeout_ms) = integer(args.at(5), reply) else { return };
    let Some(db) = integer(args.at(4), reply) else { return };
    let timeout = match u64::try_from(timeout_ms) {
        Ok(0) | Err(_) => DEFAULT_TIMEOUT,
        Ok(timeout_ms) => Duration::from_millis(timeout_ms),
    };
    let mut commands = Commands::new();
    options.add_prelude(db, &mut commands);
    let prelude_replies = commands.count;
    let mut keys = Vec::new();
    for index in options.keys.clone() {
        let key = access.key(args, index);
        if let Some((payload, at_ms)) = payload_of(access, &key) {
            // `payload_of` returns no expired key, so the TTL is positive. (For `RESTORE`, 0 means
            // no TTL.)
            let ttl_ms = at_ms.map_or(0, |at_ms| at_ms - access.now_ms());
            commands.restore(key.bytes, ttl_ms, &payload, options.replace, access.keyspace().is_cluster());
            keys.push(key);
        }
    }
    if keys.is_empty() {
        return reply.simple("NOKEY");
    }
    let mut target = match Target::connect(args.at(1), args.at(2), timeout) {
        Ok(target) => target,
        // Redis connects without waiting for the outcome, and notices a refused connection only at
        // its first write. So the error is the one for a failed write.
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => return reply.error(WRITING),
        Err(_) => return reply.error(CONNECTING),
    };
    if target.write(&commands.bytes).is_err() {
        return reply.error(WRITING);
    }
    let mut first_error: Option<Vec<u8>> = None;
    for _ in 0..prelude_replies {
        match target.read_reply() {
            Ok(Err(error)) => _ = first_error.get_or_insert(error),
            Ok(Ok(())) => {}
            Err(_) => return reply.error(READING),
        }
    }
    let prelude_failed = first_error.is_some();
    for key in &keys {
        match target.read_reply() {
            Ok(Err(error)) => _ = first_error.get_or_insert(error),
            Ok(Ok(())) if prelude_failed || options.copy => {}
            Ok(Ok(())) => *deleted = delete(access, key).or(*deleted),
            Err(_) if first_error.is_some() => break,
            Err(_) => return reply.error(READING),
        }
    }
    match first_error {
        Some(error) => reply.error_bytes(&[b"ERR Target instance replied with error: ".as_slice(), &error].concat()),
        None => reply.ok(),
    }
}

fn delete(access: &mut Access<'_>, key: &Key<'_>) -> Option<Propagated> {
    let lazy = access.keyspace().tuning.lazyfree_lazy_server_del.load(Relaxed);
    access.db(key).remove(key, lazy).then(|| propagated::deletion(access, key, false))
}

/// Visits the indexes of `MIGRATE`'s keys. Visits none if both a key and `KEYS` are given.
pub fn migrate_keys(args: &Args<'_>, visit: &mut dyn FnMut(usize, usize)) {
    // As in Redis, the key argument is the only key, even if it is empty, unless the word KEYS
    // occurs after the host and before the last argument.
    let names_keys = (2..args.len().saturating_sub(1)).any(|index| is_option(args.at(index), "KEYS"));
    let mut index = if names_keys { OPTIONS_AT } else { args.len() };
    while let Some(word) = args.get(index) {
        if is_option(word, "KEYS") {
            if args.at(KEY_AT).is_empty() {
                (index + 1..args.len()).for_each(|key| visit(key, SPEC));
            }
            return;
        }
        index += 1 + values_of(word);
    }
    if args.len() > KEY_AT {
        visit(KEY_AT, SPEC);
    }
}

/// Returns the number of values that follow an option.
fn values_of(option: &[u8]) -> usize {
    if is_option(option, "AUTH2") { 2 } else { usize::from(is_option(option, "AUTH")) }
}

/// Appends the route of `MIGRATE`: the shards of its keys.
///
/// The record doesn't declare [`Route::Keys`](pantala_engine::command::Route::Keys). A script that
/// calls `MIGRATE` therefore acquires all shards before it starts, and is never rolled back. A
/// rollback would be wrong, because it could not undo commands sent to another server.
pub fn migrate_shards(keyspace: &Keyspace, _: &SessionView, args: &Args<'_>, shards: &mut Vec<u32>) {
    migrate_keys(args, &mut |index, _| shards.push(keyspace.place(args.at(index)).shard));
}

/// The arguments after the timeout.
struct Options<'a> {
    copy: bool,
    replace: bool,
    /// The user name, if one was given, and the password.
    auth: Option<(Option<&'a [u8]>, &'a [u8])>,
    /// Indexes of the keys.
    keys: Range<usize>,
}

impl<'a> Options<'a> {
    /// Parses the options. Replies with an error and returns `None` if they are invalid.
    fn parse(args: &Args<'a>, reply: &mut Reply<'_>) -> Option<Self> {
        let mut options = Options { copy: false, replace: false, auth: None, keys: KEY_AT..KEY_AT + 1 };
        let mut index = OPTIONS_AT;
        while let Some(option) = args.get(index) {
            if is_option(option, "COPY") {
                options.copy = true;
            } else if is_option(option, "REPLACE") {
                options.replace = true;
            } else if let (true, Some(password)) = (is_option(option, "AUTH"), args.get(index + 1)) {
                options.auth = Some((None, password));
            } else if let (true, Some(password)) = (is_option(option, "AUTH2"), args.get(index + 2)) {
                options.auth = Some((Some(args.at(index + 1)), password));
            } else if is_option(option, "KEYS") {
                if !args.at(KEY_AT).is_empty() {
                    reply.error("ERR When using MIGRATE KEYS option, the key argument must be set to the empty string");
                    return None;
                }
                options.keys = index + 1..args.len();
                break;
            } else {
                reply.error(errors::SYNTAX);
                return None;
            }
            index += 1 + values_of(option);
        }
        Some(options)
    }

    /// Adds the commands that precede the `RESTORE` commands.
    fn add_prelude(&self, db: i64, commands: &mut Commands) {
        match self.auth {
            Some((Some(name), password)) => commands.add(&[b"AUTH", name, password]),
            Some((None, password)) => commands.add(&[b"AUTH", password]),
            None => {}
        }
        commands.add(&[b"SELECT", db.to_string().as_bytes()]);
    }
}

/// A pipeline of encoded commands.
struct Commands {
    bytes: Vec<u8>,
    count: usize,
}

impl Commands {
    fn new() -> Self {
        Commands { bytes: Vec::new(), count: 0 }
    }

    fn add(&mut self, words: &[&[u8]]) {
        // A command is encoded like an array of bulks in a reply.
        let mut out = Reply::new(&mut self.bytes, Version::Resp2);
        out.array(words.len());
        words.iter().for_each(|word| out.bulk(word));
        out.finish();
        self.count += 1;
    }

    fn restore(&mut self, key: &[u8], ttl_ms: i64, payload: &[u8], replace: bool, asking: bool) {
        let name: &[u8] = if asking { b"RESTORE-ASKING" } else { b"RESTORE" };
        let ttl_ms = ttl_ms.to_string();
        let words = [name, key, ttl_ms.as_bytes(), payload, b"REPLACE"];
        self.add(&words[..if replace { 5 } else { 4 }]);
    }
}

/// A connection to the other server.
struct Target {
    stream: BufReader<TcpStream>,
}

impl Target {
    fn connect(host: &[u8], port: &[u8], timeout: Duration) -> io::Result<Self> {
        let text = |bytes| std::str::from_utf8(bytes).map_err(|_| io::ErrorKind::InvalidInput);
        let (host, port) = (text(host)?, text(port)?.parse::<u16>().map_err(|_| io::ErrorKind::InvalidInput)?);
        let mut failure = io::ErrorKind::AddrNotAvailable.into();
        for address in (host, port).to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, timeout) {
                Ok(stream) => {
                    stream.set_nodelay(true)?;
                    stream.set_read_timeout(Some(timeout))?;
                    stream.set_write_timeout(Some(timeout))?;
                    return Ok(Target { stream: BufReader::new(stream) });
                }
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.get_mut().write_all(bytes)
    }

    /// Reads a reply of one line. An error reply is returned as its text without the dash.
    fn read_reply(&mut self) -> io::Result<Result<(), Vec<u8>>> {
        let mut line = Vec::new();
        self.stream.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line)?;
        if !line.ends_with(b"\n") {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(match line.split_first() {
            Some((b'-', text)) => Err(text.trim_ascii_end().to_vec()),
            _ => Ok(()),
        })
    }
}
