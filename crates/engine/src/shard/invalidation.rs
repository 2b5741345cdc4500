//! The executor's part of client-side caching (`CLIENT TRACKING`): tracks keys that commands read,
//! and sends invalidations of changed keys while their shards are held.
//!
//! Words: a *reader* is a client that tracks keys, and the *changer* is the client whose command
//! changes a key ([`crate::events::tracking`]). A *turn* is one iteration of a worker's event loop.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use crate::command::{Command, Flags, for_each_key};
use crate::events::pubsub::Listener;
use crate::events::tracking::keys::{Pending, TrackedKeys};
use crate::events::tracking::{Changer, Invalid, KeyName, Notification, Reader, Subject};
use crate::shard::eviction::Evictor;
use crate::shard::executor::{Call, Outbox, Runner};
use crate::shard::keyspace::{Execution, Keyspace};
use crate::shard::ownership::Ownership;

/// Maximum number of keys that one turn evicts from a tracking table that exceeds its limit.
/// Evicting this many takes a few hundred microseconds. Redis instead increases its effort with
/// each try.
const EVICTIONS_PER_TURN: usize = 1000;

/// Maximum number of consecutive failed attempts to evict a tracked key. An attempt fails if the
/// shard is busy or has no tracked key. After this number, the worker stops evicting until its next
/// turn.
const SHARD_TRIES: usize = 8;

/// Sets the changer of the held shards: the client whose command runs next. With `NOLOOP`, a reader
/// receives no invalidations of changes that it makes itself.
pub(crate) fn set_changer(keyspace: &Keyspace, owned: &mut [Ownership], changer: Changer) {
    for ownership in owned {
        keyspace.shard(ownership).observers.tracked.changer = changer;
    }
}

/// Tracks the keys that a command has read, if its client has enabled tracking.
pub(crate) fn remember(keyspace: &Keyspace, call: &Call<'_>, owned: &mut [Ownership]) {
    let Some(reader) = call.reads_as else { return };
    if !is_noted(call.command) {
        return;
    }
    // Extraction fails only for malformed arguments. Such a command replies with an error and has
    // read no key.
    let _ = for_each_key(call.command, &call.args, |index, _| {
        note(keyspace, owned, reader, call.args.at(index));
    });
}

/// Returns whether keys that a command reads are tracked. Commands on shard channels declare the
/// channels as keys, but these are not tracked.
fn is_noted(command: &Command) -> bool {
    command.flags.contains(Flags::READONLY) && !command.flags.contains(Flags::PUBSUB)
}

/// Tracks a key for a reader if the key's shard is held.
fn note(keyspace: &Keyspace, owned: &mut [Ownership], reader: &Arc<Reader>, key: &[u8]) {
    let place = keyspace.place(key);
    let Ok(at) = owned.binary_search_by_key(&place.shard, Ownership::shard) else { return };
    let state = keyspace.shard(&mut owned[at]);
    let tracked = &mut state.observers.tracked;
    if tracked.read(place.hash, key, reader) {
        let keys_max = keyspace.tuning.tracking_table_max_keys.load(Relaxed);
        if keys_max > 0 && keyspace.tracking().keys() >= keys_max {
            tracked.evict(&mut state.random);
        }
    }
    publish(keyspace, place.shard, tracked);
}

/// Updates a shard's statistics of tracked keys, and the total of all shards.
fn publish(keyspace: &Keyspace, shard: u32, tracked: &TrackedKeys) {
    let stats = keyspace.shard_stats(shard);
    let (before, after) = (stats.tracked_keys.get(), tracked.len() as u64);
    if before != after {
        stats.tracked_keys.set(after);
        keyspace.tracking().count(after as i64 - before as i64);
    }
    stats.tracked_readers.set(tracked.readers() as u64);
}

/// Invalidations to send, by worker.
struct InvalidationBatch<'k> {
    keyspace: &'k Keyspace,
    by_worker: Vec<Vec<Notification>>,
}

impl<'k> InvalidationBatch<'k> {
    fn new(keyspace: &'k Keyspace) -> Self {
        InvalidationBatch { keyspace, by_worker: Vec::new() }
    }

    /// Adds an invalidation for a reader, or for the client to which the reader redirects
    /// invalidations.
    fn invalidate(&mut self, reader: Arc<Reader>, what: Invalid) {
        let (to, subject) = match reader.redirect() {
            None => (reader.listener(), Subject::Invalid(what)),
            Some(client) if client.is_disconnected.load(Relaxed) || client.killed.load(Relaxed) => {
                (reader.listener(), Subject::Broken)
            }
            Some(client) => (client.listener(), Subject::Redirected(what)),
        };
        self.push(to, Notification { connection: to.connection, reader, subject });
    }

    fn push(&mut self, to: Listener, notification: Notification) {
        if self.by_worker.is_empty() {
            self.by_worker.resize_with(self.keyspace.ports().len(), Vec::new);
        }
        self.by_worker[to.worker as usize].push(notification);
    }

    fn add(&mut self, pending: Pending) {
        for invalidated in pending.invalidated {
            let (name, client) = (Arc::clone(&invalidated.name), invalidated.client);
            invalidated.for_each_reader(|reader| {
                if reader.wants_invalidations_by(client) {
                    self.invalidate(reader, Invalid::Key(Arc::clone(&name)));
                }
            });
        }
    }

    /// Sends all invalidations. Those for connections of this worker stay in `outbox` until the
    /// worker takes them.
    fn send(self, outbox: &mut Outbox<'_>) {
        for (worker, notifications) in
            self.by_worker.into_iter().enumerate().filter(|(_, notifications)| !notifications.is_empty())
        {
            outbox.notify(worker as u32, notifications);
        }
    }
}

impl Outbox<'_> {
    /// Invalidates cached copies of keys that were changed in held shards. For clients that track
    /// prefixes (`BCAST`), only collects the keys: [`Outbox::send_prefix_invalidations`] sends
    /// them at the end of the turn.
    pub(crate) fn send_invalidations(&mut self, owned: &mut [Ownership]) {
        let keyspace = self.keyspace;
        let mut batch = InvalidationBatch::new(keyspace);
        let mut flushes = 0;
        for ownership in owned {
            let shard = ownership.shard();
            let tracked = &mut keyspace.shard(ownership).observers.tracked;
            let Some(mut pending) = tracked.take_pending() else { continue };
            publish(keyspace, shard, tracked);
            self.changed.append(&mut pending.changed);
            // `FLUSHALL` and `FLUSHDB` hold all shards, so every shard has counted the same number
            // of flushes.
            flushes = flushes.max(pending.flushes);
            batch.add(*pending);
        }
        if flushes > 0 {
            let readers = keyspace.tracking().readers();
            for _ in 0..flushes {
                readers.iter().for_each(|reader| batch.invalidate(Arc::clone(reader), Invalid::All));
            }
        }
        batch.send(self);
    }

    /// Returns whether [`Outbox::send_prefix_invalidations`] has anything to do.
    #[inline]
    pub fn has_changed(&self) -> bool {
        !self.changed.is_empty()
    }

    /// Sends the invalidations to clients that track prefixes. Must be called at the end of a turn,
    /// before its replies are sent.
    pub fn send_prefix_invalidations(&mut self) {
        if self.changed.is_empty() {
            return;
        }
        let changed = std::mem::take(&mut self.changed);
        let keyspace = self.keyspace;
        let mut batch = InvalidationBatch::new(keyspace);
        keyspace.tracking().prefixes().invalidate(&changed, |reader, what| batch.invalidate(Arc::clone(reader), what));
        batch.send(self);
    }
}

impl Runner<'_> {
    /// Tracks the keys of a command that a script has called, for the script's client. The keys'
    /// shards must be held.
    pub fn remember_for_script<'k>(
        &self,
        command: &Command,
        reader: &Arc<Reader>,
        owned: &mut [Ownership],
        keys: impl Iterator<Item = &'k [u8]>,
    ) {
        if is_noted(command) {
            keys.for_each(|key| note(self.keyspace, owned, reader, key));
        }
    }
}

impl Evictor<'_, '_> {
    /// Evicts keys while the tracking table is larger than `tracking-table-max-keys`, at most
    /// `EVICTIONS_PER_TURN`. Returns whether this worker should continue in its next turn.
    pub fn limit_tracked(&mut self) -> bool {
        let keyspace = self.0.keyspace();
        let keys_max = keyspace.tuning.tracking_table_max_keys.load(Relaxed);
        let mut left = EVICTIONS_PER_TURN;
        let mut tries = 0;
        while left > 0 && tries < SHARD_TRIES && keyspace.tracking().claim_eviction(keys_max) {
            let shard = self.shard_to_evict_from();
            let is_done = shard.is_some_and(|shard| self.evict_tracked(shard));
            if !is_done {
                keyspace.tracking().count(1);
            }
            // Without such a shard, no shard of this worker has tracked keys. With `--execution
            // owner`, other workers evict the rest.
            if shard.is_none() {
                return false;
            }
            tries = if is_done { 0 } else { tries + 1 };
            left -= usize::from(is_done);
        }
        keys_max > 0 && keyspace.tracking().keys() > keys_max
    }

    /// Evicts a tracked key of a shard, if the shard is free and has a tracked key. Returns whether
    /// a key was evicted. Before the call, the caller must claim the eviction
    /// (`Tracking::claim_eviction`), which subtracts one from the number of tracked keys of all
    /// shards. If no key was evicted, the caller must add one again.
    fn evict_tracked(&mut self, shard: u32) -> bool {
        let keyspace = self.0.keyspace();
        let Some(mut ownership) = self.0.gates().take_if_ours(shard) else { return false };
        let state = keyspace.shard(&mut ownership);
        let tracked = &mut state.observers.tracked;
        let is_done = tracked.evict(&mut state.random);
        keyspace.shard_stats(shard).tracked_keys.set(tracked.len() as u64);
        self.0.release_shards(vec![ownership], 0);
        is_done
    }

    /// Picks a random shard that this worker may take, with a probability proportional to the
    /// shard's number of tracked keys. Returns `None` if there are no tracked keys.
    fn shard_to_evict_from(&self) -> Option<u32> {
        let keyspace = self.0.keyspace();
        let is_inline = keyspace.layout().execution == Execution::Inline;
        let keys_of = |shard: u32| {
            let is_ours = is_inline || keyspace.home(shard) == self.0.worker();
            if is_ours { keyspace.shard_stats(shard).tracked_keys.get() } else { 0 }
        };
        let all: u64 = (0..keyspace.partition_count()).map(keys_of).sum();
        let mut at = keyspace.random_below(all.max(1));
        (0..keyspace.partition_count()).find(|&shard| {
            let is_it = at < keys_of(shard);
            at = at.saturating_sub(keys_of(shard));
            is_it
        })
    }
}

impl Invalid {
    /// Returns the names of the keys, sorted. `None` stands for all keys.
    pub fn names(&self) -> Option<&[KeyName]> {
        match self {
            Invalid::Key(name) => Some(std::slice::from_ref(name)),
            Invalid::Keys(names) => Some(names),
            Invalid::All => None,
        }
    }
}
