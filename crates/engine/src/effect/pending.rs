//! The effects of a shard since its owner last committed. [`crate::effect`] defines *unit*, *stamp*
//! and the other terms.

use crate::effect::batch::Batch;

/// The form in which the effect of the current command is propagated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Form {
    /// The command as the client sent it, if it changed anything.
    #[default]
    Verbatim,
    /// The commands that the handler supplied, if any.
    Rewritten,
}

/// The pending effects of a shard. The shard owns this value. While the shard is free, all fields
/// except the clock are empty.
#[derive(Default)]
pub(crate) struct Pending {
    /// The shard's clock: at least the stamp of the last unit that changed this shard. Later units
    /// on this shard get higher stamps.
    pub(crate) clock: u64,
    /// Whether the current command has changed a key of this shard.
    pub(crate) is_changed: bool,
    /// Form of the current command's effect. Used only in the lowest shard that the command holds.
    pub(crate) form: Form,
    /// Commands that the handler supplied. Also used only in the lowest shard.
    pub(crate) rewritten: Batch,
    /// Deletions of keys that expired or were evicted, and of hash fields that expired.
    pub(crate) deleted: Batch,
}

impl Pending {
    /// Drops the effects of the current command, but keeps the deletions of expired and evicted
    /// keys.
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

    /// Adds the deletion of a hash field that expired, as Redis 7.4 propagates it.
    #[cold]
    pub(crate) fn delete_field(&mut self, db: u32, key: &[u8], field: &[u8]) {
        self.deleted.push(db, &[b"HDEL", key, field]);
    }
}
