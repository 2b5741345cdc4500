//! Hot keys. Many clients read a hot key, so workers contend for the key's gate: the atomic word by
//! which threads take the key's shard. A worker reads a hot key from its published value
//! ([`crate::effect::published`]), without the gate.
//!
//! Nothing is published until a worker has found the gate of one key busy [`CONTENDED_MIN`] times
//! within [`CONTENDED_MS`], each time for a command with [`Flags::PUBLISHES`]. So a worker without
//! contention pays one check of an empty list for each command.
//!
//! ```text
//!                  current                      outdated, or the key must be touched
//! read of hot key ─────────► copy the value     ─────────► take the gate, run the command,
//!                                                          publish the value
//! ```
//!
//! A worker forgets a hot key about a second after its last read. It also forgets a key for which
//! publishing does not pay, because more than one in [`READS_PER_PUBLICATION`] reads has to publish
//! the value. With an LFU policy (`maxmemory-policy`) no key is hot, because each access must be
//! counted.

use std::sync::Arc;

use crossbeam::utils::CachePadded;
use pantala_base::Counter;
use pantala_base::number::Decimal;
use pantala_resp::Reply;
use pantala_types::Value;

use super::executor::{Call, Executor, Ran, leave_single, reply_limit_of};
use crate::acl::Context;
use crate::command::{Flags, KeyPlace};
use crate::effect::published::{Published, VALUE_BYTES_MAX};
use crate::faults::{self, Fault};
use crate::shard::blocking::Blocking;
use crate::shard::gates::{take_spinning_unless, wait_briefly};
use crate::shard::keyspace::{Execution, Keyspace};
use crate::shard::ownership::Ownership;
use crate::store::db::{Held, Holds};
use crate::tuning::AccessPolicy;

/// Maximum number of hot keys of a worker. Each command searches them while there are any.
const KEYS_MAX: usize = 8;

/// Maximum length of the name of a hot key in bytes.
const NAME_BYTES_MAX: usize = 512;

/// Number of times that a worker must find the gate of a key busy.
const CONTENDED_MIN: u32 = 16;

/// The period within which the gate must be busy [`CONTENDED_MIN`] times, ms.
const CONTENDED_MS: i64 = 100;

/// Number of keys that are counted at the same time.
const COUNTED_KEYS: usize = 16;

/// Interval at which a worker reads a hot key through its gate, so that the key's access time
/// advances, ms. Access times have a resolution of a second.
const TOUCH_MS: i64 = 1000;

/// Number of reads after which a worker checks whether publishing pays.
const READS_CHECKED: u32 = 256;

/// Publishing pays if at most one in this many reads has to publish the value.
const READS_PER_PUBLICATION: u32 = 4;

/// Time for which a key whose publication did not pay cannot become hot again, ms.
const REFUSED_MS: i64 = 1000;

/// A key that this worker reads from its published value.
struct HotKey {
    db: u32,
    hash: u64,
    published: Arc<Published>,
    /// Time of the last read through the gate: Unix time, ms.
    touched_ms: i64,
    /// Number of reads since the last check.
    reads: u32,
    /// How many of these reads went through the gate.
    taken: u32,
    /// Whether the key was read since the last sweep.
    is_used: bool,
}

/// How often a key's gate was busy.
#[derive(Clone, Copy, Default)]
struct Contended {
    hash: u64,
    times: u32,
    /// Start of the period, Unix time in ms. In the future if the key cannot become hot until then.
    since_ms: i64,
}

/// The hot keys of a worker. See the head of this module.
pub struct HotKeys {
    keys: Vec<HotKey>,
    contended: [Contended; COUNTED_KEYS],
    /// Scratch memory for copies.
    buffer: Box<[u8; VALUE_BYTES_MAX]>,
}

impl HotKeys {
    pub(super) fn new() -> Self {
        let contended = [Contended::default(); COUNTED_KEYS];
        HotKeys { keys: Vec::new(), contended, buffer: Box::new([0; VALUE_BYTES_MAX]) }
    }

    /// Returns whether this worker has no hot key.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Returns whether a hot key has this hash, so that its gate need not be prefetched.
    #[inline]
    pub fn has(&self, hash: u64) -> bool {
        !self.keys.is_empty() && self.keys.iter().any(|key| key.hash == hash)
    }

    /// Returns the index of a call's key, if it is hot.
    #[inline]
    fn find(&self, call: &Call<'_>, place: KeyPlace) -> Option<usize> {
        let at = self.keys.iter().position(|key| key.hash == place.hash && key.db == call.session.db)?;
        let is_it = call.command.flags.contains(Flags::PUBLISHES)
            && self.keys[at].published.is_of(call.session.db, place.hash, call.args.at(1));
        is_it.then_some(at)
    }

    /// Counts that the gate of a key was busy. Returns whether the key has become hot.
    fn count(&mut self, hash: u64, now_ms: i64) -> bool {
        let counted = &mut self.contended[hash as usize % COUNTED_KEYS];
        // The clock may be set back.
        let period = -REFUSED_MS..=CONTENDED_MS;
        if counted.hash != hash || !period.contains(&(now_ms - counted.since_ms)) {
            *counted = Contended { hash, times: 0, since_ms: now_ms };
        }
        counted.times += u32::from(now_ms >= counted.since_ms);
        counted.times >= CONTENDED_MIN
    }

    /// Forgets a hot key, which cannot become hot again for [`REFUSED_MS`].
    fn refuse(&mut self, at: usize, now_ms: i64) {
        let hash = self.keys.swap_remove(at).hash;
        self.contended[hash as usize % COUNTED_KEYS] = Contended { hash, times: 0, since_ms: now_ms + REFUSED_MS };
    }

    /// Forgets the hot keys that were not read since the last call. Called about once a second.
    pub(super) fn sweep(&mut self) {
        self.keys.retain_mut(|key| std::mem::take(&mut key.is_used));
    }
}

/// Number of reads of published values, by worker. The shards' statistics do not include these
/// reads.
pub struct HotReadCount(Box<[CachePadded<Counter>]>);

impl HotReadCount {
    pub(super) fn new(workers: usize) -> Self {
        HotReadCount((0..workers).map(|_| CachePadded::new(Counter::default())).collect())
    }

    /// Counts a read. Called only by the worker itself.
    fn count(&self, worker: u32) {
        self.0[worker as usize].add(1);
    }

    /// Returns the number of reads of all workers.
    pub fn reads(&self) -> u64 {
        self.0.iter().map(|count| count.get()).sum()
    }

    /// Sets the number to 0.
    pub fn reset(&self) {
        self.0.iter().for_each(|count| count.reset());
    }
}

/// The part of an executor that reads hot keys.
pub(super) struct HotReads<'e, 'k>(pub(super) &'e mut Executor<'k>);

impl HotReads<'_, '_> {
    /// Takes a call's shard, which is busy at this moment, if the shard becomes free soon. The
    /// call's key may become hot.
    #[cold]
    #[inline(never)]
    pub(super) fn take_contended(&mut self, call: &Call<'_>, place: KeyPlace) -> Option<Ownership> {
        let becomes_hot = self.count_busy(call, place);
        let mut ownership = wait_briefly(self.0.keyspace.gate(place.shard))?;
        if becomes_hot {
            self.add(call, place, &mut ownership);
        }
        Some(ownership)
    }

    /// Counts that the gate of a call's key is busy. Returns whether the key should become hot.
    fn count_busy(&mut self, call: &Call<'_>, place: KeyPlace) -> bool {
        self.may_publish(call) && self.0.hot.count(place.hash, call.now_ms)
    }

    /// Makes the key of every call hot ([`Fault::EveryKeyHot`]).
    #[cold]
    fn add_always(&mut self, call: &Call<'_>, place: KeyPlace) {
        if self.may_publish(call)
            && self.0.hot.find(call, place).is_none()
            && let Some(mut ownership) = self.0.try_take(place.shard)
        {
            self.add(call, place, &mut ownership);
            self.0.free(ownership);
        }
    }

    fn may_publish(&self, call: &Call<'_>) -> bool {
        let keyspace = self.0.keyspace;
        call.command.flags.contains(Flags::PUBLISHES)
            && call.args.at(1).len() <= NAME_BYTES_MAX
            && keyspace.layout().execution == Execution::Inline
            && keyspace.tuning.access_policy() == AccessPolicy::Lru
    }

    /// Makes a key hot, whose shard is held. If there are too many hot keys, one that was not read
    /// since the last sweep is replaced.
    fn add(&mut self, call: &Call<'_>, place: KeyPlace, ownership: &mut Ownership) {
        let keys = &mut self.0.hot.keys;
        if keys.len() == KEYS_MAX {
            let is_replaceable = |key: &HotKey| !key.is_used || faults::is_set(Fault::EveryKeyHot);
            let Some(at) = keys.iter().position(is_replaceable) else { return };
            keys.swap_remove(at);
        }
        let keyspace = self.0.keyspace;
        let watches = &mut keyspace.shard(ownership).observers.watches;
        let db = call.session.db;
        if let Some(published) = watches.publish(&keyspace.published, db, place.hash, call.args.at(1)) {
            let (touched_ms, reads, taken) = (i64::MIN / 2, 0, 0);
            let key = HotKey { db, hash: place.hash, published, touched_ms, reads, taken, is_used: true };
            self.0.hot.keys.push(key);
        }
    }

    /// Runs a call like [`Executor::run_single`] if its key is hot. Otherwise returns `None`.
    // Not inlined, so that the path of commands on other keys stays short.
    #[inline(never)]
    pub(super) fn run(&mut self, call: &Call<'_>, place: KeyPlace, reply: &mut Vec<u8>) -> Option<Ran> {
        if faults::hits(Fault::EveryKeyHot) {
            self.add_always(call, place);
        }
        let at = self.0.hot.find(call, place)?;
        if !self.may_publish(call) {
            self.0.hot.keys.swap_remove(at);
            return None;
        }
        let key = &mut self.0.hot.keys[at];
        key.is_used = true;
        key.reads += 1;
        // An observer of reads must see the command while its shard is held.
        let is_observed = call.reads_as.is_some() || self.0.keyspace.monitors().are_there();
        let is_due = !call.session.no_touch && (call.now_ms - key.touched_ms).abs() >= TOUCH_MS;
        let may_copy = !is_observed && !is_due;
        if may_copy && self.copy(at, call, reply) {
            return Some(Ran::Done);
        }
        let published = &self.0.hot.keys[at].published;
        let gate = self.0.keyspace.gate(place.shard);
        match take_spinning_unless(gate, || may_copy && published.is_current()) {
            Some(ownership) => Some(self.run_held(ownership, at, call, reply)),
            None if may_copy && self.copy(at, call, reply) => Some(Ran::Done),
            None => Some(leave_single(self.0, call, place)),
        }
    }

    /// Replies with the published value. Returns `false` if it is outdated.
    #[inline]
    fn copy(&mut self, at: usize, call: &Call<'_>, reply: &mut Vec<u8>) -> bool {
        let Executor { hot: HotKeys { keys, buffer, .. }, runner, keyspace, worker, .. } = &mut *self.0;
        let Some(copied) = keys[at].published.read(buffer) else { return false };
        // The value is not used if a monitor has started since the caller's check, or if the key
        // counts as expired. It does if this worker has already seen a key with the same or a later
        // deadline expire (`Runner::time_of`).
        if keyspace.monitors().are_there() || copied.deadline_ms <= call.now_ms.max(runner.reached_ms) {
            return false;
        }
        if let Some(denied) = runner.refuses(call, Context::TopLevel) {
            denied.reply_to(call, reply);
            return true;
        }
        if keyspace.tuning.is_journaled() {
            runner.recorder.observe_read(copied.stamp);
        }
        let mut reply = Reply::limited(reply, call.session.version, reply_limit_of(keyspace, &call.session));
        reply.bulk(copied.bytes);
        reply.finish();
        keyspace.hot.count(*worker);
        true
    }

    /// Runs a call with its shard held, and publishes the value.
    #[cold]
    fn run_held(&mut self, mut ownership: Ownership, at: usize, call: &Call<'_>, reply: &mut Vec<u8>) -> Ran {
        let keyspace = self.0.keyspace;
        let owned = std::slice::from_mut(&mut ownership);
        let now_ms = self.0.runner.time_of(call.now_ms, owned);
        if let Some(denied) = self.0.runner.refuses(call, Context::TopLevel) {
            denied.reply_to(call, reply);
        } else {
            let blocked = self.0.runner.execute(call, now_ms, self.0.worker, owned, Blocking::Denied, reply);
            debug_assert!(blocked.is_none(), "a command that only reads has blocked");
            if !call.session.no_touch {
                self.0.hot.keys[at].touched_ms = call.now_ms;
            }
        }
        let key = &mut self.0.hot.keys[at];
        publish(keyspace, &mut ownership, &key.published, call);
        key.taken += 1;
        if key.reads >= READS_CHECKED {
            let pays = key.taken <= key.reads / READS_PER_PUBLICATION;
            (key.reads, key.taken) = (0, 0);
            if !pays && !faults::is_set(Fault::EveryKeyHot) {
                self.0.hot.refuse(at, call.now_ms);
            }
        }
        if keyspace.shard(&mut ownership).observers.has_pending_events() {
            self.0.release_shards(vec![ownership], call.now_ms);
            return self.0.outbox.ran_with_events(None);
        }
        self.0.free(ownership);
        self.0.outbox.ran(None, Ran::Done)
    }
}

/// Publishes the value of a call's key, if it is a short string.
fn publish(keyspace: &Keyspace, ownership: &mut Ownership, published: &Published, call: &Call<'_>) {
    let Some(place) = call.first_key else { return };
    let shard = keyspace.shard(ownership);
    let Some(database) = shard.databases.get(keyspace.physical(call.session.db)) else { return };
    let Some(entry) = database.dict.find(place.hash, call.args.at(1)) else { return };
    let (expire_at_ms, stamp) = (entry.expire_at_ms(), shard.observers.pending.clock);
    let publish = |value: &[u8]| published.publish(value, expire_at_ms, stamp);
    match entry.held() {
        Held::Bytes(bytes) => publish(bytes),
        Held::Int(value) => publish(Decimal::new().format_i64(value)),
        Held::Heap(Value::String(string)) => publish(string.as_bytes()),
        Held::Packed(..) | Held::Heap(_) => false,
    };
}

#[cfg(all(test, not(loom)))]
mod tests;
