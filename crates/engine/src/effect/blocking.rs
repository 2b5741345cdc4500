//! Commands that wait: `BLPOP` and its like.
//!
//! # Words
//!
//! | word | meaning |
//! | --- | --- |
//! | waiter | a command that found nothing and waits: its arguments and whose it is ([`Waiter`]) |
//! | queue | the waiters of one key, in the order in which they began to wait |
//! | ready | a key that has waiters and was changed: looked at when the command that changed it has run |
//! | claimed | answered, or about to be: by whoever won the waiter's one compare-and-swap |
//!
//! # For handlers
//!
//! A blocking command is an ordinary keyed handler. Finding nothing, and where [`Access::may_block`](crate::shard::access::Access::may_block) (else it answers as if its time
//! was over), it calls [`Access::block`](crate::shard::access::Access::block) and writes no reply. When one of its keys is changed, *the same handler* is called
//! again with the shards of that key (and of [`Block::destination`]) and no others: [`Access::woken_by`](crate::shard::access::Access::woken_by) then names the key, and the
//! handler looks at that key only.
//!
//! * It has something: it calls [`Access::claim`](crate::shard::access::Access::claim) *before it changes anything*, and if that is true, does its work and replies.
//!   If it is false, somebody else has answered the client (a time-out, say): it returns.
//! * It has nothing: it returns without a reply, and goes on waiting. (Also when the key has a type that it can't use.)
//! * It only replies, and changes nothing (`XREAD`; an error because the key is gone): it needs no claim; the engine claims for it,
//!   and drops the reply where it comes too late.
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
//! # Who owns what
//!
//! A waiter is shared by the queues of its keys, each of which belongs to its key's shard, and by the worker of its connection, which
//! watches the time. Its only changing parts are two atomics. Being answered takes it out of the queues of the shards that are
//! held at that moment; the worker then has it taken out of the others (`Executor::withdraw`), so that a queue holds
//! nobody for longer than it takes to reach its shard.
//!
//! # Order
//!
//! Tickets are drawn while the shards of all keys are held, so in every queue they ascend, and they are the order in which clients are
//! served. A waiter whose destination's shard is busy keeps its place: its queue stands still until a request has both shards.
//!
//! # What it costs
//!
//! Where nobody waits in a shard: one branch at each change, and one after each command. Waiting takes some 300 bytes and the
//! arguments' length, and no time.

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

/// Kinds of [`WakesOn`].
const KINDS: usize = 4;

/// A place in a queue.
struct Place {
    /// The waiter's own: a search that reads it here touches none that it passes.
    ticket: u64,
    waiter: Arc<Waiter>,
}

/// The waiters of one key.
#[derive(Default)]
struct Queue {
    waiters: VecDeque<Place>,
    /// How many of them wait for what.
    kinds: [u32; KINDS],
    /// The key stands in the list of those that are ready.
    is_ready: bool,
    /// A request is on its way to serve its first waiter.
    stands_still: bool,
}

impl Queue {
    /// Where the first stands whose ticket is that or a later one. Mostly it is the first of all.
    fn first_from(&self, ticket: u64) -> usize {
        match self.waiters.front() {
            Some(front) if front.ticket < ticket => self.waiters.partition_point(|place| place.ticket < ticket),
            _ => 0,
        }
    }
}

/// A key by its database and bytes.
pub(crate) type ReadyKey = (u32, Arc<[u8]>);

/// All waiters at keys of one shard. Belongs to the shard.
///
/// The fields that every command reads come first, in as few cache lines as possible.
#[derive(Default)]
#[repr(C)]
pub(crate) struct Waiters {
    /// Entries in all queues.
    entries: usize,
    ready: VecDeque<ReadyKey>,
    /// Who has a copy of a key.
    pub(crate) tracked: TrackedKeys,
    /// Who only wants to know that a key was changed.
    pub(crate) watches: Watches,
    by_database: HashMap<u32, HashMap<Arc<[u8]>, Queue>>,
    /// Effects that are not committed yet.
    pub(crate) pending: Pending,
}

impl Waiters {
    /// Whether nobody waits.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.entries == 0
    }

    /// Whether keys are ready.
    #[cfg(test)]
    pub(crate) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Whether keys are ready, or clients are to be told of something.
    #[inline]
    pub(crate) fn has_news(&self) -> bool {
        !self.ready.is_empty() | self.tracked.has_pending()
    }

    /// Puts a waiter at the end of the queues of its keys in this shard.
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

    /// Takes a waiter out of all queues in this shard.
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

    /// Returns whether no client waits for, watches or tracks any key of the shard.
    #[inline]
    pub(crate) fn is_quiet(&self) -> bool {
        self.is_empty() & self.watches.is_empty() & self.tracked.is_empty()
    }

    /// Adds the deletion of an expired field of a hash to the effects.
    pub(crate) fn field_expired(&mut self, tuning: &Tuning, db: u32, key: &[u8], field: &[u8]) {
        if tuning.is_journaled() {
            self.pending.delete_field(db, key, field);
        }
    }

    /// Makes a key ready that somebody waits for.
    #[cold]
    pub(crate) fn note(&mut self, db: u32, key: &[u8]) {
        let Some(queues) = self.by_database.get_mut(&db) else { return };
        if let Some((name, queue)) = queues.get_key_value_mut(key)
            && !std::mem::replace(&mut queue.is_ready, true)
        {
            self.ready.push_back((db, Arc::clone(name)));
        }
    }

    /// Notes that any key of a database may have been changed.
    pub(crate) fn note_all(&mut self, db: u32) {
        let Some(queues) = self.by_database.get_mut(&db) else { return };
        for (key, queue) in queues.iter_mut().filter(|(_, queue)| !queue.is_ready) {
            queue.is_ready = true;
            self.ready.push_back((db, Arc::clone(key)));
        }
    }

    /// Notes that keys of any database may be gone: only waiters for any change care.
    pub(crate) fn note_gone(&mut self) {
        for (db, queues) in &mut self.by_database {
            let wanted =
                queues.iter_mut().filter(|(_, queue)| !queue.is_ready && queue.kinds[WakesOn::AnyChange as usize] > 0);
            for (key, queue) in wanted {
                queue.is_ready = true;
                self.ready.push_back((*db, Arc::clone(key)));
            }
        }
    }

    /// A key that is ready: it isn't any more.
    pub(crate) fn take_ready(&mut self) -> Option<ReadyKey> {
        let ready = self.ready.pop_front()?;
        if let Some(queue) = self.queue(&ready) {
            queue.is_ready = false;
        }
        Some(ready)
    }

    /// The first waiter from a ticket on that waits for what the key now is (`None`: it isn't there, or of no use). Nobody, while the
    /// queue stands still.
    pub(crate) fn next(&self, key: &ReadyKey, ticket: u64, kind: Option<WakesOn>) -> Option<Arc<Waiter>> {
        let queue = self.by_database.get(&key.0)?.get(&key.1)?;
        let count = kind.map_or(0, |kind| queue.kinds[kind as usize]);
        if queue.stands_still || count + queue.kinds[WakesOn::AnyChange as usize] == 0 {
            return None;
        }
        let wanted = |waiter: &Waiter| waiter.wakes_on == WakesOn::AnyChange || Some(waiter.wakes_on) == kind;
        let mut places = queue.waiters.range(queue.first_from(ticket)..);
        let found = places.find(|place| wanted(&place.waiter))?;
        // Who comes after that one is likely to be served soon.
        if let Some(after) = places.next() {
            prefetch_all(Arc::as_ptr(&after.waiter));
        }
        Some(Arc::clone(&found.waiter))
    }

    /// Has a queue stand still, or go on.
    pub(crate) fn stand_still(&mut self, key: &ReadyKey, stands_still: bool) {
        if let Some(queue) = self.queue(key) {
            queue.stands_still = stands_still;
        }
    }

    fn queue(&mut self, key: &ReadyKey) -> Option<&mut Queue> {
        self.by_database.get_mut(&key.0)?.get_mut(&key.1)
    }
}

#[cfg(test)]
mod tests;
