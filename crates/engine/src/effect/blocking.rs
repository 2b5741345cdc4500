//! Blocking commands: `BLPOP` and its variants. Each shard owns the queues of its keys. The
//! executor serves the queues after each command that makes keys ready.
//!
//! # Words
//!
//! | word | meaning |
//! | --- | --- |
//! | waiter | a blocked command: its arguments and its client ([`Waiter`]) |
//! | queue | the waiters of one key, in the order in which they blocked |
//! | ready | a changed key whose waiters will be served after the current command |
//! | claimed | a waiter that may be answered only by one thread, the winner of a compare-and-swap |
//!
//! # For handlers
//!
//! A blocking command is an ordinary keyed handler. If the handler finds nothing and
//! [`Access::may_block`](crate::shard::access::Access::may_block) returns true, it calls
//! [`Access::block`](crate::shard::access::Access::block) and writes no reply. If `may_block`
//! returns false, the handler replies as after a timeout. When one of the command's keys changes,
//! *the same handler* is called again with only the shards of that key and of
//! [`Block::destination`]. [`Access::woken_by`](crate::shard::access::Access::woken_by) then
//! returns the key, and the handler must look at that key only. There are three cases:
//!
//! - The handler finds something: it calls [`Access::claim`](crate::shard::access::Access::claim)
//!   *before it changes anything*. If `claim` returns true, the handler does its work and replies.
//!   If `claim` returns false, the client was already answered (after a timeout, for example), and
//!   the handler returns without a reply.
//! - The handler finds nothing, or a key of an unsuitable type: it returns without a reply. The
//!   client stays blocked.
//! - The handler replies and changes nothing (`XREAD`; an error because the key was deleted): it
//!   needs no claim. The engine claims the waiter, and drops the reply if the client was already
//!   answered.
//!
//! ```ignore
//! let woken = access.woken_by().is_some();
//! for index in keys.filter(|&index| access.concerns(args.at(index))) {
//!     match access.db(&key).write_as::<List>(&key) {
//!         Ok(Some(_)) if !access.claim() => return,
//!         Ok(Some(_)) => return pop(…),
//!         Err(_) if !woken => return reply.error(WRONG_TYPE),
//!         _ => {}
//!     }
//! }
//! if woken { return }
//! if !access.may_block() { return reply.null_array() }
//! access.block(Block::on(keys, WakesOn::List, timeout_ms));
//! ```
//!
//! # Ownership
//!
//! A waiter is shared by the queues of its keys and by the worker of its connection, which enforces
//! the timeout. Each queue is owned by its key's shard. The only mutable fields of a waiter are two
//! atomics. An answered waiter is removed immediately from the queues of the shards that are held.
//! The connection's worker removes the waiter from its other queues (`Executor::withdraw`) as soon
//! as the worker can take their shards.
//!
//! # Order
//!
//! A waiter draws its ticket (a number) while the shards of all its keys are held. So tickets
//! ascend in every queue, and clients are served in ticket order. A waiter may have a destination
//! key whose shard is busy when the waiter is to be served. Its queue is then stopped, and a
//! request is enqueued that serves the queue once it holds both shards. So no later waiter
//! overtakes this one.
//!
//! A transaction or script may make several keys ready. As in Redis, they are served in the order
//! in which they became ready.
//!
//! # What it costs
//!
//! In a shard without waiters, each change costs one branch, and the end of each command costs one
//! branch. A waiter uses about 300 bytes plus the length of its arguments, and no CPU time until it
//! is served.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::Arc;

use hashbrown::HashMap;
use pantala_base::sync::Ordering;
use pantala_dict::prefetch_all;

pub use crate::clients::waiter::{Block, Waiter, WakesOn, Woken};
use crate::effect::Pending;
use crate::effect::watches::Watches;
use crate::events::tracking::keys::TrackedKeys;
use crate::tuning::Tuning;

/// Number of kinds of [`WakesOn`].
const KINDS: usize = 4;

/// An entry of a queue.
struct Place {
    /// Copy of the waiter's ticket. A search compares it without a load from the waiter.
    ticket: u64,
    waiter: Arc<Waiter>,
}

/// The waiters of one key.
#[derive(Default)]
struct Queue {
    waiters: VecDeque<Place>,
    /// Number of waiters by [`WakesOn`].
    kinds: [u32; KINDS],
    /// Whether the key is in the list of ready keys.
    is_ready: bool,
    /// Whether the queue is stopped, because a pending request will serve its first waiter.
    is_stopped: bool,
}

impl Queue {
    /// Returns the index of the first waiter with this ticket or a later one. Usually this is the
    /// front.
    fn first_from(&self, ticket: u64) -> usize {
        match self.waiters.front() {
            Some(front) if front.ticket < ticket => self.waiters.partition_point(|place| place.ticket < ticket),
            _ => 0,
        }
    }
}

/// Returns a number that is higher than all earlier ones of this thread.
fn next_number() -> u64 {
    thread_local! {
        static NEXT: Cell<u64> = const { Cell::new(0) };
    }
    NEXT.replace(NEXT.get() + 1)
}

/// A key: database and bytes.
pub(crate) type ReadyKey = (u32, Arc<[u8]>);

/// The observers of the keys of one shard: blocked clients, watches, tracking clients, and the
/// journal with its pending effects. The shard owns them.
///
/// Fields that every command reads come first, in as few cache lines as possible.
#[derive(Default)]
#[repr(C)]
pub(crate) struct KeyObservers {
    /// The latest time at which a key or field of the shard was deleted as expired: Unix time, ms.
    /// See `Runner::time_of`.
    pub(crate) expired_ms: i64,
    /// The number of entries in all queues.
    entries: usize,
    /// Ready keys, each with its number from [`next_number`].
    ready: VecDeque<(u64, ReadyKey)>,
    /// Keys that tracking clients may have cached.
    pub(crate) tracked: TrackedKeys,
    /// The watches (`WATCH`) of the shard's keys.
    pub(crate) watches: Watches,
    by_database: HashMap<u32, HashMap<Arc<[u8]>, Queue>>,
    /// Effects that are not committed yet.
    pub(crate) pending: Pending,
}

impl KeyObservers {
    /// Returns whether no queue has an entry.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.entries == 0
    }

    /// Notes that a key or field was deleted as expired.
    #[inline]
    pub(crate) fn note_expired(&mut self, now_ms: i64) {
        self.expired_ms = self.expired_ms.max(now_ms);
    }

    /// Returns whether keys are ready.
    #[cfg(test)]
    pub(crate) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Returns whether keys are ready or invalidations are pending.
    #[inline]
    pub(crate) fn has_pending_events(&self) -> bool {
        !self.ready.is_empty() | self.tracked.has_pending()
    }

    /// Appends a waiter to the queues of its keys in this shard.
    pub(crate) fn add(&mut self, shard: u32, waiter: &Arc<Waiter>) {
        let queues = self.by_database.entry(waiter.session.db).or_default();
        for key in waiter.keys_in(shard) {
            let queue = match queues.get_mut(key) {
                Some(queue) => queue,
                None => queues.entry(Arc::from(key)).or_default(),
            };
            queue.waiters.push_back(Place { ticket: waiter.ticket, waiter: Arc::clone(waiter) });
            queue.kinds[waiter.wakes_on as usize] += 1;
            self.entries += 1;
            waiter.queues.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Removes a waiter from all queues in this shard.
    pub(crate) fn remove(&mut self, shard: u32, waiter: &Waiter) {
        let Some(queues) = self.by_database.get_mut(&waiter.session.db) else { return };
        for key in waiter.keys_in(shard) {
            let Some(queue) = queues.get_mut(key) else { continue };
            let at = queue.first_from(waiter.ticket);
            if queue.waiters.get(at).is_none_or(|place| place.ticket != waiter.ticket) {
                continue;
            }
            queue.waiters.remove(at);
            queue.kinds[waiter.wakes_on as usize] -= 1;
            self.entries -= 1;
            waiter.queues.fetch_sub(1, Ordering::AcqRel);
            if queue.waiters.is_empty() {
                queues.remove(key);
            }
        }
        if queues.is_empty() {
            self.by_database.remove(&waiter.session.db);
        }
    }

    /// Returns whether no client is blocked on, watches or tracks a key of the shard.
    #[inline]
    pub(crate) fn is_quiet(&self) -> bool {
        self.is_empty() & self.watches.is_empty() & self.tracked.is_empty()
    }

    /// Adds the deletion of an expired hash field to the effects.
    pub(crate) fn field_expired(&mut self, tuning: &Tuning, db: u32, key: &[u8], field: &[u8]) {
        if tuning.is_journaled() {
            self.pending.delete_field(db, key, field);
        }
    }

    /// Marks a key as ready if it has waiters.
    #[cold]
    pub(crate) fn note(&mut self, db: u32, key: &[u8]) {
        let Some(queues) = self.by_database.get_mut(&db) else { return };
        if let Some((name, queue)) = queues.get_key_value_mut(key)
            && !std::mem::replace(&mut queue.is_ready, true)
        {
            self.ready.push_back((next_number(), (db, Arc::clone(name))));
        }
    }

    /// Marks as ready all keys of a database that have waiters. Called when any key of the database
    /// may have changed.
    pub(crate) fn note_all(&mut self, db: u32) {
        let Some(queues) = self.by_database.get_mut(&db) else { return };
        for (key, queue) in queues.iter_mut().filter(|(_, queue)| !queue.is_ready) {
            queue.is_ready = true;
            self.ready.push_back((next_number(), (db, Arc::clone(key))));
        }
    }

    /// Marks keys of all databases as ready if they have waiters that every change wakes
    /// ([`WakesOn::AnyChange`]). The caller may have deleted any keys.
    pub(crate) fn note_deletions(&mut self) {
        for (db, queues) in &mut self.by_database {
            let wanted =
                queues.iter_mut().filter(|(_, queue)| !queue.is_ready && queue.kinds[WakesOn::AnyChange as usize] > 0);
            for (key, queue) in wanted {
                queue.is_ready = true;
                self.ready.push_back((next_number(), (*db, Arc::clone(key))));
            }
        }
    }

    /// Removes and returns the key that became ready first, with its number. The numbers ascend in
    /// the order in which a thread makes keys ready, even across shards.
    pub(crate) fn take_ready(&mut self) -> Option<(u64, ReadyKey)> {
        let (number, ready) = self.ready.pop_front()?;
        if let Some(queue) = self.queue(&ready) {
            queue.is_ready = false;
        }
        Some((number, ready))
    }

    /// Returns the first waiter in a key's queue that has at least this ticket and that the key in
    /// its current state (`kind`) wakes. `kind` is `None` if the key is missing or has a type for
    /// which no client waits. Returns `None` while the queue is stopped.
    pub(crate) fn next(&self, key: &ReadyKey, ticket: u64, kind: Option<WakesOn>) -> Option<Arc<Waiter>> {
        let queue = self.by_database.get(&key.0)?.get(&key.1)?;
        let count = kind.map_or(0, |kind| queue.kinds[kind as usize]);
        if queue.is_stopped || count + queue.kinds[WakesOn::AnyChange as usize] == 0 {
            return None;
        }
        let wanted = |waiter: &Waiter| waiter.wakes_on == WakesOn::AnyChange || Some(waiter.wakes_on) == kind;
        let mut places = queue.waiters.range(queue.first_from(ticket)..);
        let found = places.find(|place| wanted(&place.waiter))?;
        // Prefetches the next waiter, which is likely to be served soon.
        if let Some(after) = places.next() {
            prefetch_all(Arc::as_ptr(&after.waiter));
        }
        Some(Arc::clone(&found.waiter))
    }

    /// Stops a queue or lets it continue.
    pub(crate) fn set_stopped(&mut self, key: &ReadyKey, is_stopped: bool) {
        if let Some(queue) = self.queue(key) {
            queue.is_stopped = is_stopped;
        }
    }

    fn queue(&mut self, key: &ReadyKey) -> Option<&mut Queue> {
        self.by_database.get_mut(&key.0)?.get_mut(&key.1)
    }
}

#[cfg(test)]
mod tests;
