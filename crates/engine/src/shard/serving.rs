//! Serves blocked clients: the executor's part of [`crate::effect::blocking`], which defines the
//! terms *waiter*, *ready* and *claimed*.
//!
//! After a command has run and before its shards are released, the executor serves every changed
//! key in these shards that has waiters. It calls the handlers of the key's waiters in order, as
//! long as the key can wake further waiters. The changes by these handlers may make more keys
//! ready.

use std::sync::Arc;

use pantala_base::Clock;
use pantala_resp::Reply;

use crate::acl::Context;
use crate::clients::waiter::{Waiter, Woken};
use crate::command::Key;
use crate::effect::blocking::ReadyKey;
use crate::faults::{self, Fault};
use crate::shard::blocking::Blocking;
use crate::shard::executor::{Call, Executor, Outbox, Runner, access};
use crate::shard::gates::Gates;
use crate::shard::ownership::Ownership;
use crate::shard::request::{RequestNode, Spare, Task};
use crate::store::db::Db;

/// Initial capacity of the reply to a waiter, sufficient for a key and a short element.
const REPLY_BYTES: usize = 64;

/// The part of an [`Executor`] that serves blocked clients.
pub(crate) struct Serving<'e, 'k> {
    pub(super) gates: Gates<'k>,
    pub(super) runner: &'e mut Runner<'k>,
    pub(super) outbox: &'e mut Outbox<'k>,
    pub(super) spare: &'e mut Spare,
    /// Requests to start when the held shards are released.
    pub(super) to_start: &'e mut Vec<RequestNode>,
}

impl Serving<'_, '_> {
    /// Serves the ready keys of held shards. May add more shards to `owned`. Keys are looked up at
    /// the current time, but not before `now_ms`, the time of the command that made them ready. A
    /// key that has expired by then counts as missing, as in Redis.
    ///
    /// Serving a key may make keys of any held shard ready, and may add shards. So passes over the
    /// shards are repeated until a pass finds no key.
    pub(crate) fn serve(&mut self, owned: &mut Vec<Ownership>, now_ms: i64) {
        let keyspace = self.gates.keyspace;
        loop {
            let mut ready = Vec::new();
            for ownership in owned.iter_mut() {
                let shard = ownership.shard();
                let observers = &mut keyspace.shard(ownership).observers;
                ready.extend(std::iter::from_fn(|| observers.take_ready()).map(|(number, key)| (number, shard, key)));
            }
            if ready.is_empty() {
                return;
            }
            self.outbox.has_served = true;
            ready.sort_unstable_by_key(|(number, ..)| *number);
            for (_, shard, key) in ready {
                self.serve_key(owned, shard, &key, now_ms.max(self.runner.clock.now_ms()));
            }
        }
    }

    fn serve_key(&mut self, owned: &mut Vec<Ownership>, shard: u32, key: &ReadyKey, now_ms: i64) {
        let keyspace = self.gates.keyspace;
        let looked_for = Key { bytes: &key.1, place: keyspace.place(&key.1) };
        let mut ticket = 0;
        // Serving a waiter may add shards to `owned`, so the index is searched each time.
        while let Ok(index) = owned.binary_search_by_key(&shard, Ownership::shard) {
            let state = keyspace.shard(&mut owned[index]);
            let kind =
                Db::new(keyspace, keyspace.shard_stats(shard), state, shard, key.0, now_ms, true).wakes(&looked_for);
            let observers = &mut keyspace.shard(&mut owned[index]).observers;
            let Some(waiter) = observers.next(key, ticket, kind) else { return };
            ticket = waiter.ticket() + 1;
            // A waiter that was claimed before is not answered here. The worker of its connection
            // removes it from this queue (`Executor::withdraw`).
            if waiter.is_claimed() {
                continue;
            }
            if let Some(destination) = waiter.destination
                && !self.take_too(owned, destination.shard)
            {
                // The waiter is served once both shards are free. The queue stops until then, so
                // that the waiters after it cannot overtake it.
                let Ok(index) = owned.binary_search_by_key(&shard, Ownership::shard) else { return };
                keyspace.shard(&mut owned[index]).observers.set_stopped(key, true);
                return self.serve_when_free(&waiter, shard, destination.shard, key.clone(), now_ms);
            }
            faults::pause(Fault::PauseHolding);
            if self.wake(owned, &waiter, key, now_ms) {
                for shard in waiter.shards() {
                    if let Ok(index) = owned.binary_search_by_key(&shard, Ownership::shard) {
                        keyspace.shard(&mut owned[index]).observers.remove(shard, &waiter);
                    }
                }
            }
        }
    }

    /// Calls a waiter's handler for a key. Returns whether the waiter was answered.
    fn wake(&mut self, owned: &mut [Ownership], waiter: &Arc<Waiter>, key: &ReadyKey, now_ms: i64) -> bool {
        let mut bytes = Vec::with_capacity(REPLY_BYTES);
        let call = Call {
            command: waiter.command(),
            args: waiter.args(),
            first_key: None,
            session: waiter.session,
            reads_as: None,
            connection: waiter.connection,
            now_ms,
        };
        if let Some(denied) = self.runner.refuses(&call, Context::TopLevel) {
            let message = denied.message(waiter.command().full_name);
            Reply::new(&mut bytes, waiter.session.version).error(&message);
            return waiter.claim() && self.send_woken(waiter, bytes);
        }
        let woken = Blocking::Woken { waiter, key: &key.1, claimed: false };
        let mut access = access(self.gates.keyspace, &call, owned, woken);
        self.runner.recorder.outdate_published(access.owned);
        self.runner.run_handler(&mut access, &call, &mut bytes);
        let claimed = matches!(access.blocking, Blocking::Woken { claimed: true, .. });
        debug_assert!(!claimed || !bytes.is_empty(), "a handler claimed its waiter and did not reply");
        (claimed || !bytes.is_empty() && waiter.claim()) && self.send_woken(waiter, bytes)
    }

    /// Sends the reply to a claimed waiter. Returns `true`.
    fn send_woken(&mut self, waiter: &Arc<Waiter>, reply: Vec<u8>) -> bool {
        let waiter = Arc::clone(waiter);
        self.outbox.send_woken(Woken {
            waiter,
            reply,
            effect_clock: self.runner.recorder.effect_clock(),
            closes: false,
        });
        true
    }

    /// Takes another shard while shards are held, but only if it is free. Waiting for it could
    /// cause a deadlock.
    fn take_too(&mut self, owned: &mut Vec<Ownership>, shard: u32) -> bool {
        let Err(at) = owned.binary_search_by_key(&shard, Ownership::shard) else { return true };
        match self.gates.take_if_ours(shard) {
            Some(ownership) => {
                owned.insert(at, ownership);
                true
            }
            None => false,
        }
    }

    fn serve_when_free(&mut self, waiter: &Waiter, shard: u32, destination: u32, key: ReadyKey, now_ms: i64) {
        let mut node = self.spare.request(waiter.session, waiter.connection, now_ms);
        node.value.shards.extend([shard.min(destination), shard.max(destination)]);
        node.value.task = Task::Serve(shard, key);
        self.gates.keyspace.deferred_waiters.count(1);
        self.to_start.push(node);
    }

    /// Serves a queue that [`Serving::serve_when_free`] has stopped. The request holds the key's
    /// shard and the destination's shard.
    pub(crate) fn serve_now(&mut self, owned: &mut Vec<Ownership>, shard: u32, key: &ReadyKey, now_ms: i64) {
        if let Ok(index) = owned.binary_search_by_key(&shard, Ownership::shard) {
            let observers = &mut self.gates.keyspace.shard(&mut owned[index]).observers;
            observers.set_stopped(key, false);
            observers.note(key.0, &key.1);
        }
        self.serve(owned, now_ms);
        self.gates.keyspace.deferred_waiters.count(-1);
    }
}

impl Executor<'_> {
    /// Removes a claimed waiter from the queues that still contain it.
    pub fn withdraw(&mut self, waiter: &Arc<Waiter>) {
        if !waiter.is_queued() {
            return;
        }
        for shard in waiter.shards() {
            if let Some(mut ownership) = self.gates().take_if_ours(shard) {
                self.keyspace().shard(&mut ownership).observers.remove(shard, waiter);
                self.free(ownership);
                continue;
            }
            let mut node = self.spare().request(waiter.session, waiter.connection, 0);
            node.value.shards.push(shard);
            node.value.task = Task::Withdraw(Arc::clone(waiter));
            self.resume(node);
        }
    }

    /// Releases a shard after periodic work that may have deleted keys.
    pub(crate) fn free_after_removals(&mut self, mut ownership: Ownership, now_ms: i64) {
        self.runner.recorder.commit_deletions(std::slice::from_mut(&mut ownership));
        let observers = &mut self.keyspace().shard(&mut ownership).observers;
        if observers.is_empty() && !observers.has_pending_events() {
            return self.free(ownership);
        }
        observers.note_deletions();
        self.release_shards(vec![ownership], now_ms);
    }
}
