//! Stores a large value in the buffer in which it was received, as Redis does. So the value isn't
//! copied and is never in memory twice. Apart from that, its command runs like any other.

use std::time::Duration;

use pantala_commands::strings::owned_value_variant;
use pantala_engine::command::Command;
use pantala_engine::executor::{Call, Ran};
use pantala_engine::slowlog::{ARG_BYTES_MAX, Sender};
use pantala_resp::{ArgRange, Args};
use pantala_runtime::EventLoop;
use pantala_types::RawString;

use super::Runner;
use crate::clients::slow;
use crate::dispatch::Dispatcher;
use crate::dispatch::window::{Entry, What};
use crate::reactor::token;

/// Minimum length of a value that is handed over, bytes. Shorter values are copied, as in Redis
/// (`PROTO_MBULK_BIG_ARG`).
pub(super) const HANDED_BYTES_MIN: usize = 32 * 1024;

/// The arguments of a command whose value was handed over, for the slow log. Only the start of the
/// value is kept.
pub(super) struct Handed {
    bytes: Vec<u8>,
    ranges: Vec<ArgRange>,
    /// The index of the value among the arguments, and the number of bytes that are missing from
    /// it.
    cut: (usize, usize),
}

impl Handed {
    fn new(args: &Args<'_>, index: usize) -> Self {
        let (mut bytes, mut ranges) = (Vec::new(), Vec::with_capacity(args.len()));
        let mut missing = 0;
        for (at, arg) in args.iter().enumerate() {
            let kept = if at == index { &arg[..arg.len().min(ARG_BYTES_MAX)] } else { arg };
            missing += arg.len() - kept.len();
            ranges.push(ArgRange::new(bytes.len(), kept.len()));
            bytes.extend_from_slice(kept);
        }
        Handed { bytes, ranges, cut: (index, missing) }
    }

    fn args(&self) -> Args<'_> {
        Args::new(&self.bytes, &self.ranges)
    }
}

impl Runner {
    /// Runs a command and hands its value over to the keyspace, in the buffer in which the value
    /// was received. Returns `None` and does nothing in three cases: the command can't take over a
    /// value, the value shares its buffer with other input, or the shard is busy.
    #[cold]
    pub(super) fn call_handing_over<L: EventLoop>(
        &mut self,
        d: &mut Dispatcher<'_, L>,
        entry: &Entry,
        command: &'static Command,
        ranges: &[ArgRange],
    ) -> Option<Ran> {
        let What::Single(_, place) = entry.what else { return None };
        let (command, index) = owned_value_variant(command)?;
        let connection = d.clients.reactor.connections[entry.connection as usize].as_mut()?;
        let range = ranges.get(index)?.shifted(entry.begin);
        if range.len() < HANDED_BYTES_MIN || !connection.input.is_buffer_of(range, entry.end) {
            return None;
        }
        let session = connection.session.view();
        let ownership = d.clients.executor.take_for_hand_over(place.shard, &session)?;
        let args = Args::new(&connection.input.bytes(&d.clients.reactor.io)[entry.begin..entry.end], ranges);
        let handed = Handed::new(&args, index);
        let value = RawString::from(connection.input.hand_over(range));
        let call = Call {
            command,
            args: handed.args(),
            first_key: Some(place),
            session,
            reads_as: connection.session.reads_as.as_ref(),
            connection: token(connection.socket.id),
            now_ms: d.clients.reactor.clock.now_ms,
        };
        let ran = d.clients.executor.run_handing_over(ownership, &call, value, &mut connection.output);
        self.handed = Some(handed);
        Some(ran)
    }

    /// Records a command that has just run, in the same way as [`slow::note`].
    #[cold]
    pub(super) fn note_slow<L: EventLoop>(
        &mut self,
        d: &mut Dispatcher<'_, L>,
        entry: &Entry,
        command: &'static Command,
        ranges: &[ArgRange],
        took: Duration,
    ) {
        let handed = self.handed.take();
        let Some(connection) = &d.clients.reactor.connections[entry.connection as usize] else { return };
        let (args, cut) = match &handed {
            Some(handed) => (handed.args(), Some(handed.cut)),
            None => (Args::new(&connection.input.bytes(&d.clients.reactor.io)[entry.begin..entry.end], ranges), None),
        };
        let sender = Sender::Client(&connection.session.client);
        slow::note_cut(
            d.clients.executor.keyspace(),
            sender,
            command,
            &args,
            cut,
            took,
            d.clients.reactor.clock.now_ms,
        );
    }
}
