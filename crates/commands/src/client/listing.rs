//! `CLIENT LIST` and `CLIENT INFO`.

use std::io::Write;
use std::sync::atomic::Ordering::Relaxed;

use pantala_base::number::parse_i64;
use pantala_engine::client::{Client, Endpoint, LocalContext};
use pantala_engine::command::Command;
use pantala_engine::pubsub::Kind as Subscribed;
use pantala_engine::tracking::Options;
use pantala_resp::{Args, Reply};

use crate::arguments::{c_string, is_option};
use crate::errors;

/// The types of clients, which the option `TYPE` names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Normal,
    Master,
    Replica,
    PubSub,
}

impl Kind {
    /// Parses a type. Replies with an error and returns `None` if it is unknown.
    pub(super) fn parse(name: &[u8], reply: &mut Reply<'_>) -> Option<Self> {
        let known = [
            ("normal", Kind::Normal),
            ("master", Kind::Master),
            ("replica", Kind::Replica),
            ("slave", Kind::Replica),
            ("pubsub", Kind::PubSub),
        ];
        let kind = known.iter().find(|(known, _)| is_option(name, known)).map(|(_, kind)| *kind);
        if kind.is_none() {
            reply.error_bytes(&[b"ERR Unknown client type '", c_string(name), b"'"].concat());
        }
        kind
    }

    /// Returns the type of a client.
    pub(super) fn of(client: &Client) -> Self {
        // As in Redis, a monitor counts as a normal client.
        match (client.is_primary.load(Relaxed), client.is_replica.load(Relaxed)) {
            (true, _) => Kind::Master,
            (false, true) => Kind::Replica,
            _ if client.is_subscriber() => Kind::PubSub,
            _ => Kind::Normal,
        }
    }
}

/// `CLIENT INFO`.
pub fn info(context: &mut LocalContext<'_>, _: &Args<'_>, reply: &mut Reply<'_>) {
    reply.verbatim("txt", &line(&context.session.client, context.now_ms));
}

/// `CLIENT LIST [TYPE type | ID client-id ...]`.
pub fn list(context: &mut LocalContext<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let clients = context.host.clients();
    let mut text = Vec::new();
    match (args.len(), args.get(2)) {
        (2, _) => write_lines(&mut text, context, |_| true),
        (4, Some(option)) if is_option(option, "TYPE") => {
            let Some(kind) = Kind::parse(args.at(3), reply) else { return };
            write_lines(&mut text, context, |client| Kind::of(client) == kind);
        }
        (4.., Some(option)) if is_option(option, "ID") => {
            for id in args.iter().skip(3) {
                let Some(id) = parse_i64(id) else { return reply.error("ERR Invalid client ID") };
                if let Some(client) = u64::try_from(id).ok().and_then(|id| clients.find(id)) {
                    write_line(&mut text, &client, context.now_ms);
                }
            }
        }
        _ => return reply.error(errors::SYNTAX),
    }
    reply.verbatim("txt", &text);
}

fn write_lines(text: &mut Vec<u8>, context: &LocalContext<'_>, wanted: impl Fn(&Client) -> bool) {
    let clients = context.host.clients().all();
    // A killed client is no longer listed, even if its worker has not closed the connection yet.
    for client in clients.iter().filter(|client| !client.killed.load(Relaxed) && wanted(client)) {
        write_line(text, client, context.now_ms);
    }
}

/// Returns the line of a client at `now_ms` (Unix time).
pub(crate) fn line(client: &Client, now_ms: i64) -> Vec<u8> {
    let mut text = Vec::new();
    write_line(&mut text, client, now_ms);
    text
}

/// Writes the line of a client, with the fields of Redis 7.0 in Redis's order. Fields of features
/// that Pantala lacks have the values of an idle client.
fn write_line(text: &mut Vec<u8>, client: &Client, now_ms: i64) {
    let seconds_since = |then_ms: i64| (now_ms - then_ms).max(0) / 1000;
    let query_bytes = client.query_bytes.load(Relaxed);
    let query_free_bytes = client.query_free_bytes.load(Relaxed);
    let output_bytes = client.output_bytes.load(Relaxed);
    let queued_bytes = client.queued_bytes.load(Relaxed);
    let argument_bytes = client.argument_bytes.load(Relaxed);
    let total_bytes = client.memory_bytes();
    // Writing to a vector can't fail.
    let _ = write!(
        text,
        "id={} addr={} laddr={} fd={} name={} age={} idle={} flags={} db={}",
        client.id,
        client.address,
        client.local_address,
        client.fd,
        String::from_utf8_lossy(&client.names().name),
        seconds_since(client.created_ms),
        seconds_since(client.active_ms.load(Relaxed)),
        flags(client),
        client.db.load(Relaxed),
    );
    let _ = write!(
        text,
        " sub={} psub={} ssub={} multi={} qbuf={query_bytes} qbuf-free={query_free_bytes} argv-mem={argument_bytes} multi-mem={queued_bytes} rbs=0 rbp=0 obl=0 oll={} \
         omem={output_bytes} tot-mem={total_bytes} events={} cmd={} user=",
        client.subscribed(Subscribed::Channel),
        client.subscribed(Subscribed::Pattern),
        client.subscribed(Subscribed::Shard),
        client.queued.load(Relaxed),
        client.output_pieces.load(Relaxed),
        if output_bytes > 0 { "rw" } else { "r" },
        client.command().map_or("NULL", Command::shown_name),
    );
    // A user's name may be any bytes.
    client.user_name(|name| text.extend_from_slice(name));
    let _ = write!(text, " redir={} resp={}", client.redirect.load(Relaxed), client.resp.load(Relaxed));
    // Redis 7.0 lacks these fields. They are written only if the client has sent `CLIENT SETINFO`,
    // so that the line of any other client is the same as in 7.0.
    let names = client.names();
    if !names.library.is_empty() || !names.library_version.is_empty() {
        let (name, version) =
            (String::from_utf8_lossy(&names.library), String::from_utf8_lossy(&names.library_version));
        let _ = write!(text, " lib-name={name} lib-ver={version}");
    }
    text.push(b'\n');
}

/// Returns the flags of a client, one letter each, or `N` if there are none.
fn flags(client: &Client) -> String {
    let tracking = Options::from_bits_truncate(client.tracking.load(Relaxed));
    let letters = [
        ('M', client.is_primary.load(Relaxed)),
        ('O', client.monitors.load(Relaxed)),
        ('S', client.is_replica.load(Relaxed)),
        ('P', client.is_subscriber()),
        ('x', client.queued.load(Relaxed) >= 0),
        ('b', client.paused.load(Relaxed) || client.waiter().is_some()),
        ('t', tracking.contains(Options::ON)),
        ('R', tracking.contains(Options::BROKEN_REDIRECT)),
        ('B', tracking.contains(Options::BROADCAST)),
        ('d', client.watch_is_broken()),
        ('A', client.killed.load(Relaxed)),
        ('U', matches!(client.address, Endpoint::Unix(_))),
        ('e', client.no_evict.load(Relaxed)),
        ('T', client.no_touch.load(Relaxed)),
    ];
    let flags: String = letters.iter().filter(|(_, set)| *set).map(|(letter, _)| letter).collect();
    if flags.is_empty() { "N".to_owned() } else { flags }
}
