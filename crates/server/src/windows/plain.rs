//! Runs plain commands on a fast path. Nearly all commands are plain.
//!
//! A command is *plain* if it needs only its shard to run, and no check of its own. This requires
//! that:
//!
//! - the command has one key, and takes a short time that hardly depends on the value;
//! - its client may run it and wants its reply;
//! - the server currently has no reason to evict keys, to reject or pause commands, or to time
//!   every command.
//!
//! For every other command, [`super::run`] checks several conditions. Here, one check at the start
//! replaces them for a whole sequence of plain commands of a connection. That suffices because a
//! plain command changes neither the session nor the server's state.

use std::ops::Range;

use pantala_engine::command::Flags;
use pantala_engine::executor::{Call, Ran};
use pantala_engine::faults::{self, Fault};
use pantala_engine::tuning::refusal::Unchecked;
use pantala_resp::Args;
use pantala_runtime::EventLoop;
use pantala_session::State;

use super::Runner;
use crate::clients::slow::LARGE_BYTES;
use crate::dispatch::Dispatcher;
use crate::dispatch::window::{Entry, What, Window};
use crate::reactor::token;

/// Returns which plain commands need no individual check. While memory is limited, or the server
/// pauses commands or times every command, there are none. While the server rejects writes, only
/// reads can be among them.
#[inline]
fn unchecked<L: EventLoop>(d: &Dispatcher<'_, L>) -> Unchecked {
    let server = d.clients.reactor.server;
    // The end of the last pause stays set until the next pause starts, even after it has passed.
    let is_paused = server.paused_until_ms() > d.clients.reactor.clock.now_ms;
    if is_paused || d.stopwatch.times_all() || faults::is_set(Fault::Overtaking) {
        return Unchecked::None;
    }
    server.keyspace().tuning.unchecked()
}

impl Runner {
    /// Runs the plain commands of one connection, from the entry at `at` up to `end` or to the
    /// first command that isn't plain. Returns the number of commands run. From the entry
    /// `looked_ahead` on, stops before two consecutive entries with the same key, because
    /// [`Runner::look_ahead`] must process both first.
    // Not inlined, so that the values that every command needs stay in registers.
    #[inline(never)]
    pub(super) fn run_plain<L: EventLoop>(
        &mut self,
        d: &mut Dispatcher<'_, L>,
        window: &Window,
        Range { start: at, end }: Range<usize>,
        looked_ahead: usize,
        is_shared: bool,
    ) -> usize {
        let unchecked = unchecked(d);
        if unchecked == Unchecked::None {
            return 0;
        }
        let entries = &window.entries[..end];
        let Some(Entry { connection: index, what: What::Single(first, _), .. }) = entries.get(at) else { return 0 };
        let (index, mut counted) = (*index, *first);
        let epoch = d.clients.executor.keyspace().users().epoch();
        let Some(connection) = &mut d.clients.reactor.connections[index as usize] else { return 0 };
        let is_unrestricted = connection.session.is_unrestricted(epoch);
        if connection.state != State::Open
            || !(is_unrestricted || connection.session.knows_rules(epoch))
            || !connection.session.is_plain()
        {
            return 0;
        }
        // Commands from this replica's primary are never rejected.
        let reads_only = unchecked == Unchecked::Reads && connection.session.primary.is_none();
        if reads_only && counted.flags.contains(Flags::WRITE) {
            return 0;
        }
        if connection.output.capacity() == 0 {
            connection.renew_output(&mut d.clients.reactor.spare);
        }
        let keyspace = d.clients.executor.keyspace();
        let bytes = connection.input.bytes(&d.clients.reactor.io);
        let mut call = Call {
            command: counted,
            args: Args::new(&[], &[]),
            first_key: None,
            session: connection.session.view(),
            reads_as: None,
            connection: token(connection.socket.id),
            now_ms: d.clients.reactor.clock.now_ms,
        };
        // This maximum stays valid, because the connection's other pending output doesn't change
        // while these commands run.
        let output_max = d.clients.limits.alarm.output_max(connection);
        let (mut next, mut calls, mut before) = (at, 0, 0);
        let mut unsettled = None;
        while let Some(entry) = entries.get(next) {
            let What::Single(command, place) = entry.what else { break };
            let ranges = window.ranges_of(entry);
            let length_bytes = entry.end - entry.begin;
            if entry.connection != index || !command.is_plain(ranges.len()) || length_bytes >= LARGE_BYTES {
                break;
            }
            if let Some(Entry { what: What::Single(_, following), .. }) = window.entries.get(next + 1) {
                if next >= looked_ahead && *following == place {
                    break;
                }
                // Another worker may have last written the next shard's gate (the word that says
                // whether the shard is held). So the gate's cache line is prefetched while this
                // command runs.
                if is_shared && !d.clients.executor.hot.has(following.hash) {
                    keyspace.prefetch_gate(following.shard);
                }
            }
            let args = Args::new(&bytes[entry.begin..entry.end], ranges);
            // If the user may not run the command, the general path ([`Runner::run_entry`]) rejects
            // and logs it.
            if !is_unrestricted && connection.session.check(command, &args).is_err() {
                break;
            }
            if !std::ptr::eq(counted, command) {
                if reads_only && command.flags.contains(Flags::WRITE) {
                    break;
                }
                if calls > 0 {
                    d.clients.tally.count_calls(counted, calls);
                }
                (counted, calls) = (command, 0);
            }
            call.command = command;
            call.args = args;
            call.first_key = Some(place);
            before = connection.output.len();
            let ran = d.clients.executor.run_single(&call, place, &mut connection.output);
            next += 1;
            let reply_bytes = connection.output.len() - before;
            let is_error = connection.output.get(before) == Some(&b'-');
            if ran != Ran::Done || reply_bytes + length_bytes >= LARGE_BYTES || is_error {
                // The general path ends this command.
                unsettled = Some(ran);
                break;
            }
            calls += 1;
            if connection.output.len() > output_max {
                break;
            }
        }
        if next == at {
            return 0;
        }
        let entry = &entries[next - 1];
        connection.input.done(entry.end);
        connection.session.client.set_command(counted);
        if calls > 0 {
            d.clients.tally.count_calls(counted, calls);
        }
        if let Some(ran) = unsettled {
            if ran == Ran::Parked {
                connection.park(1, entry.end - entry.begin);
                connection.waits.has_waited = true;
            }
            self.end_entry(d, entry, counted, window.ranges_of(entry), before, None, ran);
        } else if connection.output.len() > output_max {
            d.clients.yield_at_piece(index, before);
        }
        next - at
    }
}
