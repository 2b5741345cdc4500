//! The effects of a shard since its owner last committed.

use crate::effect::batch::Batch;

/// How the effect of the current command is propagated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Form {
    /// As the client sent it, if it changed anything.
    #[default]
    Verbatim,
    /// As the commands that the handler gave, or not at all if it gave none.
    Rewritten,
}

/// The pending effects of a shard, which owns them; empty whenever the shard is free.
#[derive(Default)]
pub(crate) struct Pending {
    /// Stamp of the last unit on this shard.
    pub(crate) clock: u64,
    /// The current command changed a key of this shard.
    pub(crate) is_changed: bool,
    /// How the current command is propagated: valid in the lowest shard that it holds.
    pub(crate) form: Form,
    /// The commands that the handler gave: in the lowest shard as well.
    pub(crate) rewritten: Batch,
    /// Keys that expired or were evicted.
    pub(crate) deleted: Batch,
}

impl Pending {
    /// Forgets the effects of the current command, but not expired keys.
    pub(crate) fn forget_command(&mut self) {
        self.is_changed = false;
        self.form = Form::Verbatim;
        if !self.rewritten.is_empty() {
            self.rewritten.clear();
        }
    }

    /// Adds the deletion of a key that expired or was evicted.
    #[cold]
    pub(crate) fn delete(&mut self, db: u32, key: &[u8], lazy: bool) {
        self.deleted.push(db, &[if lazy { b"UNLINK" } else { b"DEL" }, key]);
    }

    /// Adds the deletion of a field of a hash that expired, as Redis 7.4 propagates it.
    #[cold]
    pub(crate) fn delete_field(&mut self, db: u32, key: &[u8], field: &[u8]) {
        self.deleted.push(db, &[b"HDEL", key, field]);
    }
}
