//! What a blocking command asks of its [`Access`]. The queues, and how to write such a command:
//! [`crate::effect::blocking`].

use std::cell::Cell;

use pantala_types::RawString;

use crate::clients::waiter::{Block, Waiter};
use crate::shard::access::Access;

/// In which way a handler is called, as far as waiting goes.
pub(crate) enum Blocking<'a> {
    /// By its connection: it may wait.
    Allowed,
    /// In a transaction: it may not.
    Denied,
    /// By its connection, which hands the command's value over. None of those waits.
    HandedOver(&'a Cell<Option<RawString>>),
    /// Woken, for this key.
    Woken { waiter: &'a Waiter, key: &'a [u8], claimed: bool },
}

impl<'a> Access<'a> {
    /// Whether the command may wait. Where not, it answers as if its time was over.
    pub fn may_block(&self) -> bool {
        matches!(self.blocking, Blocking::Allowed)
    }

    /// The key whose change woke the command; `None`: the command was just sent.
    pub fn woken_by(&self) -> Option<&'a [u8]> {
        match self.blocking {
            Blocking::Allowed | Blocking::Denied | Blocking::HandedOver(_) => None,
            Blocking::Woken { key, .. } => Some(key),
        }
    }

    /// Whether the command is to look at a key: at any, or when woken only at the one that woke it.
    pub fn concerns(&self, key: &[u8]) -> bool {
        self.woken_by().is_none_or(|woken_by| woken_by == key)
    }

    /// To be called before the first change when something was found. `false`: the command was woken too late, and must do nothing.
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

    /// Has the command wait: it writes no reply. A woken one just goes on waiting, as it would without calling this.
    ///
    /// # Panics
    /// When the command was called where it may not wait.
    pub fn block(&mut self, block: Block) {
        if self.woken_by().is_none() {
            assert!(self.may_block(), "the handler asks first");
            self.block = Some(block);
        }
    }
}
