//! Rejects commands that can't run or that their client may not run.

use std::borrow::Cow;

use pantala_commands::Unresolved;
use pantala_engine::acl::Context;
use pantala_engine::client::Host;
use pantala_engine::command::{Command, Flags};
use pantala_resp::{ArgRange, Args, Reply};
use pantala_runtime::EventLoop;
use pantala_session::State;
use pantala_session::access::{Forbidden, NO_AUTH, forbidden, refused};

use super::Runner;
use crate::clients::primary::{break_off, note_error_of};
use crate::dispatch::window::{Entry, What};
use crate::dispatch::{Dispatcher, flags_of, refusal};
use crate::stats::Outcome;

/// The error for a command whose keys have several slots.
pub const CROSS_SLOT: &str = "CROSSSLOT Keys in request don't hash to the same slot";

impl Runner {
    /// Rejects a command that the server doesn't run in its present state
    /// ([`pantala_engine::tuning::refusal`]). Returns whether it was rejected.
    #[cold]
    pub(super) fn rejects<L: EventLoop>(
        &mut self,
        d: &mut Dispatcher<'_, L>,
        entry: &Entry,
        command: &'static Command,
        ranges: &[ArgRange],
    ) -> bool {
        let server = d.clients.reactor.server;
        let Some(connection) = &mut d.clients.reactor.connections[entry.connection as usize] else { return false };
        let args = Args::new(&connection.input.bytes(&d.clients.reactor.io)[entry.begin..entry.end], ranges);
        let (session, refusals) = (&mut connection.session, server.keyspace().tuning.refusals());
        let Some(why) = refused(refusals, session, command, || flags_of(server, command, &args)) else { return false };
        let before = connection.output.len();
        if let Some(transaction) = &mut session.transaction {
            transaction.aborted = true;
        }
        let why = refusal(command, session, why.as_bytes());
        Reply::new(&mut connection.output, session.version).error_bytes(&why);
        d.clients.tally.count_reply(&connection.output[before..]);
        d.clients.tally.count(command, Outcome::Rejected);
        connection.end_reply(before);
        connection.input.done(entry.end);
        true
    }

    /// Rejects a command that can't run or that its client may not run.
    #[cold]
    pub(super) fn reject_entry<L: EventLoop>(&mut self, d: &mut Dispatcher<'_, L>, entry: &Entry, ranges: &[ArgRange]) {
        let Some(connection) = &mut d.clients.reactor.connections[entry.connection as usize] else { return };
        let bytes = connection.input.bytes(&d.clients.reactor.io);
        // A protocol error has no range in the input.
        let args = Args::new(bytes.get(entry.begin..entry.end).unwrap_or_default(), ranges);
        let (session, output) = (&mut connection.session, &mut connection.output);
        let before = output.len();
        let mut closes = false;
        if let (Some(transaction), false) = (&mut session.transaction, matches!(entry.what, What::Nothing)) {
            transaction.aborted = true;
        }
        match &entry.what {
            What::Single(command, _)
            | What::Keyed(command)
            | What::Local(command)
            | What::CrossSlot(command)
            | What::Unresolved(Unresolved::WrongArity(command)) => session.client.set_command(command),
            What::Unresolved(_) => session.client.forget_command(),
            What::Broken(_) | What::Browser | What::Nothing => {}
        }
        match &entry.what {
            What::Single(command, _) | What::Keyed(command) | What::Local(command) | What::CrossSlot(command) => {
                let keyspace = d.clients.executor.keyspace();
                let users = keyspace.users();
                let is_crossing = matches!(entry.what, What::CrossSlot(_)).then(|| Forbidden::from(CROSS_SLOT));
                let why = forbidden(command, &args, session, users, d.clients.reactor.server).or(is_crossing);
                if let Some(Forbidden { message, denied }) = why {
                    if let Some(denied) = denied {
                        let context = if session.transaction.is_some() { Context::Multi } else { Context::TopLevel };
                        let now_ms = d.clients.reactor.clock.now_ms;
                        keyspace.note_denied(&session.client, denied, context, command, &args, now_ms);
                    }
                    let why = refusal(command, session, message.as_bytes());
                    Reply::new(output, session.version).error_bytes(&why);
                    d.clients.tally.count(command, Outcome::Rejected);
                }
            }
            // An unauthenticated client receives the authentication error for every command of
            // Redis, implemented or not.
            What::Unresolved(Unresolved::Unimplemented(_)) if !session.is_authenticated() => {
                Reply::new(output, session.version).error(NO_AUTH);
            }
            What::Unresolved(why) => {
                let mut message: Cow<'_, [u8]> = why.message(&args).into();
                if let Unresolved::WrongArity(command) = why {
                    message = refusal(command, session, &message).into_owned().into();
                    d.clients.tally.count(command, Outcome::Rejected);
                }
                Reply::new(output, session.version).error_bytes(&message);
                // If `CLIENT CACHING` applied to this command, its effect ends.
                let keeps_caching = || {
                    d.clients
                        .reactor
                        .server
                        .command(args.at(0))
                        .is_some_and(|command| command.flags.contains(Flags::KEEPS_CACHING))
                };
                if session.caching && session.transaction.is_none() && !keeps_caching() {
                    session.set_caching(false);
                }
            }
            What::Broken(error) => {
                error.encode(output);
                if let Some(link) = &mut session.primary {
                    break_off(link, *error);
                }
                closes = true;
            }
            What::Browser => {
                tracing::warn!(
                    "Closed {}: it speaks HTTP. A web page may be trying to send commands through a visitor's browser.",
                    session.client.address
                );
                closes = true;
            }
            What::Nothing => {
                if session.follows.is_some() {
                    let server = d.clients.reactor.server;
                    server.replication().note_alive(session.client.id, server.monotonic_ms());
                }
                return connection.input.done(entry.end);
            }
        }
        if session.primary.is_some() && !matches!(entry.what, What::Broken(_)) {
            let command = match &entry.what {
                What::Single(command, _) | What::Keyed(command) | What::Local(command) => Some(command),
                What::Unresolved(Unresolved::WrongArity(command)) => Some(command),
                _ => None,
            };
            let name = command.map_or("<unknown>", |command| command.shown_name());
            note_error_of(session, name, &output[before..]);
        }
        d.clients.tally.count_reply(&output[before..]);
        connection.end_reply(before);
        // A protocol error can't be marked as run, because it has no end in the input.
        if !matches!(entry.what, What::Broken(_)) {
            connection.input.done(entry.end);
        }
        if closes {
            connection.state = State::Closing;
        }
    }
}
