//! Commands that take over a client's value. A large value is stored in the buffer in which it was
//! received, without a copy.

use std::cell::Cell;

use pantala_types::RawString;

use super::{Call, Executor, Ran};
use crate::command::SessionView;
use crate::shard::access::Access;
use crate::shard::blocking::Blocking;
use crate::shard::gates::take_spinning;
use crate::shard::keyspace::Execution;
use crate::shard::ownership::Ownership;

impl Executor<'_> {
    /// Takes the shard of a command whose value is to be handed over. Returns `None` if the shard
    /// is busy, or if the value must not be handed over. A value must not be handed over with
    /// `--execution owner`, while `MONITOR` or the journal needs all arguments of commands, and if
    /// ACL rules have changed since the session's check. The caller then runs the command like any
    /// other.
    pub fn take_for_hand_over(&mut self, shard: u32, session: &SessionView) -> Option<Ownership> {
        let keyspace = self.keyspace;
        let is_seen = || keyspace.monitors().are_there() || keyspace.tuning.is_journaled();
        if keyspace.layout().execution != Execution::Inline || is_seen() {
            return None;
        }
        let ownership = take_spinning(keyspace.gate(shard))?;
        // The journal may be turned on after this check. But its reader starts at a cut (a point in
        // the stream), for which all shards must be held. So the cut follows this command, and the
        // reader does not need the command's effect.
        if is_seen() || keyspace.changed_rules(session).is_some() {
            self.free(ownership);
            return None;
        }
        Some(ownership)
    }

    /// Runs a command like [`Executor::run_single`], on a shard from
    /// [`Executor::take_for_hand_over`]. The handler must call [`Access::take_value`] instead of
    /// reading its argument.
    pub fn run_handing_over(
        &mut self,
        mut ownership: Ownership,
        call: &Call<'_>,
        value: RawString,
        reply: &mut Vec<u8>,
    ) -> Ran {
        let keyspace = self.keyspace;
        let value = Cell::new(Some(value));
        let owned = std::slice::from_mut(&mut ownership);
        let now_ms = self.runner.time_of(call.now_ms, owned);
        let blocked = self.runner.execute(call, now_ms, self.worker, owned, Blocking::HandedOver(&value), reply);
        if keyspace.shard(&mut ownership).observers.has_pending_events() {
            self.release_shards(vec![ownership], call.now_ms);
            return self.outbox.ran_with_events(blocked);
        }
        self.free(ownership);
        self.outbox.ran(blocked, Ran::Done)
    }
}

impl Access<'_> {
    /// Returns the value that the executor hands over to the handler. Returns `None` if no value is
    /// handed over, and after the first call.
    pub fn take_value(&self) -> Option<RawString> {
        match self.blocking {
            Blocking::HandedOver(value) => value.take(),
            _ => None,
        }
    }

    /// Returns whether the command's value is handed over. If so, the arguments do not contain it.
    pub(super) fn is_handed_over(&self) -> bool {
        matches!(self.blocking, Blocking::HandedOver(_))
    }
}
