//! The part of [`Access`] that blocking commands use. [`crate::effect::blocking`] has the queues,
//! and explains how to write a blocking command.

use std::cell::Cell;
use std::sync::Arc;

use pantala_types::RawString;

use crate::clients::waiter::{Block, Origin, Waiter};
use crate::shard::access::Access;
use crate::shard::executor::Call;
use crate::shard::keyspace::Keyspace;

/// Whether a command may block, and how its handler was called.
pub(crate) enum Blocking<'a> {
    /// The connection calls the handler, which may block.
    Allowed,
    /// A transaction or script calls the handler, which must not block.
    Denied,
    /// The connection calls the handler, which takes over the command's value without a copy
    /// ([`run_handing_over`](crate::shard::executor::Executor::run_handing_over)). Such commands do
    /// not block.
    HandedOver(&'a Cell<Option<RawString>>),
    /// A change of `key` has woken the command. `claimed` is whether the handler has claimed the
    /// right to reply ([`Access::claim`]).
    Woken { waiter: &'a Waiter, key: &'a [u8], claimed: bool },
}

impl<'a> Access<'a> {
    /// Returns whether the command may block. If not, it must reply as after a timeout.
    pub fn may_block(&self) -> bool {
        matches!(self.blocking, Blocking::Allowed)
    }

    /// Returns the key whose change has woken the command, or `None` if the command was not woken.
    pub fn woken_by(&self) -> Option<&'a [u8]> {
        match self.blocking {
            Blocking::Allowed | Blocking::Denied | Blocking::HandedOver(_) => None,
            Blocking::Woken { key, .. } => Some(key),
        }
    }

    /// Returns whether the command should look at a key. A woken command looks only at the key that
    /// woke it.
    pub fn concerns(&self, key: &[u8]) -> bool {
        self.woken_by().is_none_or(|woken_by| woken_by == key)
    }

    /// Claims the right to reply. The handler must call this when it has found an element, and
    /// before it changes anything. Returns `false` if the client was already answered. The handler
    /// must then do nothing.
    #[must_use]
    pub fn claim(&mut self) -> bool {
        match &mut self.blocking {
            Blocking::Allowed | Blocking::Denied | Blocking::HandedOver(_) => true,
            Blocking::Woken { waiter, claimed, .. } => {
                *claimed = *claimed || waiter.claim();
                *claimed
            }
        }
    }

    /// Blocks the command. Its handler must then write no reply. A woken command need not call this
    /// again: it stays blocked if it writes no reply.
    ///
    /// # Panics
    /// If the command must not block.
    pub fn block(&mut self, block: Block) {
        if self.woken_by().is_none() {
            assert!(self.may_block(), "the handler blocks although `may_block` returns false");
            self.block = Some(block);
        }
    }
}

impl Call<'_> {
    /// Returns a waiter for a call that blocks without waiting for a key (`WAIT`), from a client of
    /// `worker`.
    pub fn wait_without_keys(&self, keyspace: &Keyspace, worker: u32, block: &Block) -> Arc<Waiter> {
        let (connection, session) = (self.connection, self.session);
        let origin = Origin { ticket: keyspace.next_ticket(), worker, connection, session };
        Arc::new(Waiter::new(&origin, self.command, &self.args, block, &|key| keyspace.place(key)))
    }
}
