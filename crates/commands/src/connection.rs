//! Commands on the session of a connection: `AUTH`, `HELLO`, `SELECT` and related ones.

use pantala_base::number::parse_i64;
use pantala_engine::acl::{Context, DEFAULT_USER};
use pantala_engine::client::{Durability, LocalContext};
use pantala_resp::{Args, Reply, Version};

use crate::arguments::{c_string, database_index, database_of, is_option};
use crate::{client, errors};

/// The version of Redis that Pantala is compatible with, as reported by `HELLO` and `INFO`.
pub const REDIS_VERSION: &str = "7.0.15";

const WRONG_PASSWORD: &str = "WRONGPASS invalid username-password pair or user is disabled.";
const NO_PASSWORD_SET: &str = "ERR AUTH <password> called without any password configured for the default user. Are you sure your configuration is correct?";
const HELLO_UNAUTHENTICATED: &str = "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO AUTH <user> <pass> option can be used to authenticate the client and select the RESP protocol version at the same time";

/// `PING [message]`.
pub fn ping(context: &mut LocalContext<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    match (args.len(), args.get(1)) {
        (1 | 2, message) if context.session.only_listens() => {
            reply.array(2);
            reply.bulk(b"pong");
            reply.bulk(message.unwrap_or_default());
        }
        (1, _) => reply.simple("PONG"),
        (2, Some(message)) => reply.bulk(message),
        _ => reply.error("ERR wrong number of arguments for 'ping' command"),
    }
}

/// `ECHO message`.
pub fn echo(_: &mut LocalContext<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    reply.bulk(args.at(1));
}

/// `QUIT`.
pub fn quit(context: &mut LocalContext<'_>, _: &Args<'_>, reply: &mut Reply<'_>) {
    reply.ok();
    context.session.close_after_reply = true;
}

/// `RESET`: sets the session to the state of a new connection.
pub fn reset(context: &mut LocalContext<'_>, _: &Args<'_>, reply: &mut Reply<'_>) {
    context.session.leave_channels(context.keyspace);
    context.session.set_monitors(context.keyspace, false);
    context.session.leave_effects(context.keyspace);
    context.session.untrack(context.keyspace);
    client::set_durability(context, Durability::Default);
    context.session.reset(context.keyspace.users(), context.now_ms);
    reply.simple("RESET");
}

/// `SELECT index`.
pub fn select(context: &mut LocalContext<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let Some(index) = database_index(args.at(1), None, reply) else { return };
    if index != 0 && context.keyspace.is_cluster() {
        return reply.error("ERR SELECT is not allowed in cluster mode");
    }
    let Some(db) = database_of(index, context.keyspace) else { return reply.error(errors::NO_SUCH_DATABASE) };
    context.session.select(db);
    reply.ok();
}

/// `AUTH [username] password`.
pub fn auth(context: &mut LocalContext<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let (user, password) = match args.len() {
        2 if context.keyspace.users().default_user().rules().needs_no_password() => {
            return reply.error(NO_PASSWORD_SET);
        }
        2 => (DEFAULT_USER, args.at(1)),
        3 => (args.at(1), args.at(2)),
        _ => return reply.error(errors::SYNTAX),
    };
    if log_in(context, args.at(0), (user, password), reply) {
        reply.ok();
    }
}

/// Logs the session in and returns true if name and password are correct. Otherwise replies with an
/// error and adds the attempt to `ACL LOG`. `command` is the command that the client sent.
fn log_in(
    context: &mut LocalContext<'_>,
    command: &[u8],
    (name, password): (&[u8], &[u8]),
    reply: &mut Reply<'_>,
) -> bool {
    let (keyspace, users) = (context.keyspace, context.keyspace.users());
    // The epoch (the number of changes of users so far) must be read before the user is looked up.
    // If the user changes after the lookup, the session then has an older epoch, and the next
    // command notices the change.
    let epoch = users.epoch();
    let Some(user) = users.log_in(name, password) else {
        let is_queued = context.session.in_exec || context.session.transaction.is_some();
        let place = if is_queued { Context::Multi } else { Context::TopLevel };
        keyspace.note_login(&context.session.client, place, command, name, context.now_ms);
        reply.error(WRONG_PASSWORD);
        return false;
    };
    context.session.log_in(user, epoch);
    true
}

/// The arguments of `HELLO`.
struct Hello<'a> {
    version: Option<Version>,
    credentials: Option<(&'a [u8], &'a [u8])>,
    name: Option<&'a [u8]>,
}

impl<'a> Hello<'a> {
    /// Parses the arguments. Replies with an error and returns `None` if they are invalid.
    fn parse(args: &Args<'a>, reply: &mut Reply<'_>) -> Option<Self> {
        let mut hello = Hello { version: None, credentials: None, name: None };
        if let Some(version) = args.get(1) {
            hello.version = match parse_i64(version) {
                Some(2) => Some(Version::Resp2),
                Some(3) => Some(Version::Resp3),
                Some(_) => {
                    reply.error("NOPROTO unsupported protocol version");
                    return None;
                }
                None => {
                    reply.error("ERR Protocol version is not an integer or out of range");
                    return None;
                }
            };
        }
        let mut index = 2;
        while let Some(option) = args.get(index) {
            match (args.get(index + 1), args.get(index + 2)) {
                (Some(user), Some(password)) if is_option(option, "AUTH") => {
                    hello.credentials = Some((user, password));
                    index += 3;
                }
                (Some(name), _) if is_option(option, "SETNAME") => {
                    if !client::is_printable(name) {
                        reply.error(client::UNPRINTABLE_NAME);
                        return None;
                    }
                    hello.name = Some(name);
                    index += 2;
                }
                _ => {
                    reply.error_bytes(&[b"ERR Syntax error in HELLO option '", c_string(option), b"'"].concat());
                    return None;
                }
            }
        }
        Some(hello)
    }
}

/// `HELLO [protover [AUTH username password] [SETNAME clientname]]`.
pub fn hello(context: &mut LocalContext<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let Some(hello) = Hello::parse(args, reply) else { return };
    if let Some((user, password)) = hello.credentials
        && !log_in(context, args.at(0), (user, password), reply)
    {
        return;
    }
    if !context.session.is_authenticated() {
        return reply.error(HELLO_UNAUTHENTICATED);
    }
    if let Some(name) = hello.name {
        context.session.client.names().name = name.to_vec();
    }
    if let Some(version) = hello.version {
        context.session.set_version(version);
        reply.set_version(version);
    }
    let version = if context.session.version == Version::Resp3 { 3 } else { 2 };
    reply.map(7);
    for (field, value) in [("server", "redis"), ("version", REDIS_VERSION)] {
        reply.bulk(field.as_bytes());
        reply.bulk(value.as_bytes());
    }
    reply.bulk(b"proto");
    reply.integer(version);
    reply.bulk(b"id");
    reply.integer(context.session.client.id as i64);
    let role = if context.keyspace.tuning.is_replica() { "replica" } else { "master" };
    let mode = if context.keyspace.is_cluster() { "cluster" } else { "standalone" };
    for (field, value) in [("mode", mode), ("role", role)] {
        reply.bulk(field.as_bytes());
        reply.bulk(value.as_bytes());
    }
    reply.bulk(b"modules");
    reply.array(0);
}

#[cfg(test)]
mod tests;
