//! The end of a command, transaction or script: its effects become a unit of this worker's stream.

use pantala_base::number::Decimal;
use pantala_resp::Args;

use crate::command::{Command, Flags, Route};
use crate::effect::pending::Form;
use crate::faults::{self, Fault};
use crate::shard::access::Access;
use crate::shard::executor::{Call, Executor};
use crate::shard::ownership::Ownership;

/// Effects one behind the other, encoded as RESP arrays.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    pub(crate) bytes: Vec<u8>,
    pub(crate) effects: Vec<Effect>,
}

/// One encoded effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Effect {
    /// The database that it is for.
    pub(crate) db: u32,
    /// Where it ends in [`Batch::bytes`].
    pub(crate) end: usize,
    /// It deletes a key that expired or was evicted, which a rollback does not bring back.
    pub(crate) is_deletion: bool,
}

/// Memory that a batch keeps from one unit to the next, bytes.
const KEPT_BYTES_MAX: usize = 64 * 1024;

impl Batch {
    pub(crate) fn is_empty(&self) -> bool {
        self.effects.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.effects.clear();
        if self.bytes.capacity() > KEPT_BYTES_MAX {
            *self = Batch::default();
        }
    }

    /// Adds a command by its words.
    pub(crate) fn push(&mut self, db: u32, words: &[&[u8]]) {
        encode(&mut self.bytes, words.len(), words.iter().copied());
        self.end(db, true);
    }

    fn push_args(&mut self, db: u32, args: &Args<'_>) {
        encode(&mut self.bytes, args.len(), args.iter());
        self.end(db, false);
    }

    fn end(&mut self, db: u32, is_deletion: bool) {
        self.effects.push(Effect { db, end: self.bytes.len(), is_deletion });
    }

    /// Moves all effects of another batch behind those of this one.
    fn append(&mut self, other: &mut Batch, is_deletion: bool) {
        let first = self.effects.len();
        self.extend(other);
        self.effects[first..].iter_mut().for_each(|effect| effect.is_deletion = is_deletion);
        other.clear();
    }

    /// Adds copies of all effects of another batch.
    pub(crate) fn extend(&mut self, other: &Batch) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&other.bytes);
        self.effects.extend(other.effects.iter().map(|effect| Effect { end: start + effect.end, ..*effect }));
    }

    /// Keeps only the deletions of expired and evicted keys.
    fn retain_deletions(&mut self) {
        let (mut kept, mut start) = (Batch::default(), 0);
        for effect in &self.effects {
            if effect.is_deletion {
                kept.bytes.extend_from_slice(&self.bytes[start..effect.end]);
                kept.effects.push(Effect { end: kept.bytes.len(), ..*effect });
            }
            start = effect.end;
        }
        *self = kept;
    }
}

/// Appends a command as a RESP array of bulk strings.
pub(crate) fn encode<'w>(bytes: &mut Vec<u8>, count: usize, words: impl Iterator<Item = &'w [u8]>) {
    let header = |bytes: &mut Vec<u8>, kind: u8, number: usize| {
        bytes.push(kind);
        bytes.extend_from_slice(Decimal::new().format_u64(number as u64));
        bytes.extend_from_slice(b"\r\n");
    };
    header(bytes, b'*', count);
    for word in words {
        header(bytes, b'$', word.len());
        bytes.extend_from_slice(word);
        bytes.extend_from_slice(b"\r\n");
    }
}

/// What the worker has gathered for the unit that it is about to commit.
#[derive(Debug, Default)]
pub struct Unit {
    pub(crate) batch: Batch,
    /// Transactions and scripts that run, one inside the other: their commands are one unit.
    depth: u32,
}

impl Access<'_> {
    /// Returns whether effects are recorded: where they are not, [`Access::propagate`] does nothing,
    /// and its words need not be made.
    #[inline]
    pub fn is_journaled(&self) -> bool {
        self.keyspace.tuning.is_journaled()
    }

    /// Propagates these words in place of the command that the client sent, in the selected
    /// database. Several calls propagate several commands, in order.
    pub fn propagate(&mut self, words: &[&[u8]]) {
        if self.is_journaled() {
            let db = self.session.db;
            self.rewrite().push(db, words);
        }
    }

    /// Propagates nothing of this command, whatever it changes, beside what
    /// [`Access::propagate`] is given.
    pub fn propagate_nothing(&mut self) {
        if self.is_journaled() {
            self.rewrite();
        }
    }

    /// Propagates the command as the client sent it: it has changed whole databases.
    pub(crate) fn propagate_verbatim(&mut self) {
        if self.is_journaled() {
            self.lowest_pending().is_changed = true;
        }
    }

    #[cold]
    fn rewrite(&mut self) -> &mut Batch {
        let pending = self.lowest_pending();
        pending.form = Form::Rewritten;
        &mut pending.rewritten
    }

    fn lowest_pending(&mut self) -> &mut crate::effect::Pending {
        &mut self.keyspace.shard(&mut self.owned[0]).waiters.pending
    }
}

impl Executor<'_> {
    /// Begins a unit that holds the effects of several commands, up to [`Executor::end_unit`].
    pub fn begin_unit(&mut self) {
        self.unit.depth += 1;
    }

    /// Commits the unit of a transaction or script, whose shards are still held.
    pub fn end_unit(&mut self, owned: &mut [Ownership]) {
        self.unit.depth -= 1;
        if self.unit.depth == 0 && self.keyspace().tuning.is_journaled() {
            self.gather_deletions(owned);
            self.commit_unit(owned);
        }
    }

    /// Drops the effects of a script's run that was rolled back, but for keys that expired
    /// meanwhile, and commits these.
    pub fn roll_back_unit(&mut self, owned: &mut [Ownership]) {
        self.unit.depth -= 1;
        for ownership in owned.iter_mut() {
            self.keyspace().shard(ownership).waiters.pending.forget_command();
        }
        if self.keyspace().tuning.is_journaled() {
            self.gather_deletions(owned);
            self.unit.batch.retain_deletions();
            self.commit_unit(owned);
        }
    }

    /// Adds the effects of a command that has run on shards that are held, and commits them unless
    /// they are part of a transaction or script.
    #[cold]
    pub(crate) fn commit(&mut self, access: &mut Access<'_>, call: &Call<'_>) {
        let (command, owned) = (call.command, &mut *access.owned);
        self.gather_deletions(owned);
        let keyspace = self.keyspace();
        // Each mark is cleared: no `any`, which stops at the first.
        let is_changed = owned.iter_mut().fold(false, |is_changed, ownership| {
            is_changed | std::mem::take(&mut keyspace.shard(ownership).waiters.pending.is_changed)
        });
        let lowest = &mut keyspace.shard(&mut owned[0]).waiters.pending;
        if faults::hits(Fault::LostEffect) {
            return lowest.forget_command();
        }
        match std::mem::take(&mut lowest.form) {
            Form::Rewritten => self.unit.batch.append(&mut lowest.rewritten, false),
            // A read that met expired fields has changed its key, too.
            Form::Verbatim if is_changed && command.flags.intersects(Flags::WRITE | Flags::MAY_REPLICATE) => {
                debug_assert!(
                    !access.is_random,
                    "{} draws random numbers and does not propagate what it did",
                    command.full_name
                );
                self.unit.batch.push_args(call.session.db, &call.args);
            }
            Form::Verbatim => {}
        }
        if self.unit.depth > 0 {
            return;
        }
        // As in Redis the expired keys that a walk over the keyspace meets are no transaction.
        let is_walk = !matches!(command.route, Route::Keys);
        if is_walk && self.unit.batch.effects.iter().all(|effect| effect.is_deletion) {
            self.commit_each_deletion(owned);
        } else {
            self.commit_unit(owned);
        }
    }

    /// Propagates a command that has run without shards (`PUBLISH`, `FUNCTION LOAD`), as the client
    /// sent it, if it is one that is propagated.
    #[inline]
    pub fn propagate_local(&mut self, command: &Command, db: u32, args: &Args<'_>) {
        if command.flags.intersects(Flags::WRITE | Flags::MAY_REPLICATE) && self.keyspace().tuning.is_journaled() {
            self.commit_without_shards(db, args);
        }
    }

    #[cold]
    fn commit_without_shards(&mut self, db: u32, args: &Args<'_>) {
        self.unit.batch.push_args(db, args);
        if self.unit.depth == 0 {
            self.stream.observe(self.keyspace.journal().latest_without_shards());
            self.commit_unit(&mut []);
            self.keyspace.journal().note_without_shards(self.stream.clock());
        }
    }

    /// Runs what is no part of the transaction or script that runs now, if any: its effects are units
    /// of their own.
    #[inline]
    pub(crate) fn outside_unit<R>(&mut self, run: impl FnOnce(&mut Self) -> R) -> R {
        if self.unit.depth == 0 {
            return run(self);
        }
        let unit = self.suspend_unit();
        let result = run(self);
        self.resume_unit(unit);
        result
    }

    /// Sets the unit aside of a script in whose midst other commands run.
    pub fn suspend_unit(&mut self) -> Unit {
        std::mem::take(&mut self.unit)
    }

    /// Goes on with a unit that was set aside.
    pub fn resume_unit(&mut self, unit: Unit) {
        debug_assert!(self.unit.depth == 0 && self.unit.batch.is_empty(), "what ran meanwhile was committed");
        self.unit = unit;
    }

    /// Commits what has expired or was evicted in shards that are about to be released, each key for
    /// itself.
    #[inline]
    pub(crate) fn commit_deletions(&mut self, owned: &mut [Ownership]) {
        if self.keyspace().tuning.is_journaled() {
            self.commit_each_deletion(owned);
        }
    }

    #[cold]
    fn commit_each_deletion(&mut self, owned: &mut [Ownership]) {
        if self.unit.depth > 0 {
            return;
        }
        self.gather_deletions(owned);
        if self.unit.batch.is_empty() {
            return;
        }
        let stamp = self.stamp(owned);
        let Unit { batch, .. } = &mut self.unit;
        self.stream.push_each(stamp, batch);
        batch.clear();
        let last = self.stream.clock();
        self.set_clocks(owned, last);
    }

    fn gather_deletions(&mut self, owned: &mut [Ownership]) {
        for ownership in owned {
            let pending = &mut self.keyspace.shard(ownership).waiters.pending;
            if !pending.deleted.is_empty() {
                self.unit.batch.append(&mut pending.deleted, true);
            }
        }
    }

    fn commit_unit(&mut self, owned: &mut [Ownership]) {
        let stamp = self.stamp(owned);
        if self.unit.batch.is_empty() {
            // What was read may be why this worker's connections write: that comes later.
            self.stream.observe(stamp - 1);
            return;
        }
        self.stream.push(stamp, &self.unit.batch);
        self.unit.batch.clear();
        self.set_clocks(owned, stamp);
    }

    /// The next stamp that is later than all that these shards and this worker have seen.
    fn stamp(&mut self, owned: &mut [Ownership]) -> u64 {
        let keyspace = self.keyspace;
        let clocks = owned.iter_mut().map(|ownership| keyspace.shard(ownership).waiters.pending.clock);
        let own = self.stream.clock();
        let latest = if faults::hits(Fault::UnorderedEffects) { own } else { clocks.fold(own, u64::max) };
        latest.max(keyspace.journal().epoch_floor()) + 1
    }

    fn set_clocks(&mut self, owned: &mut [Ownership], stamp: u64) {
        for ownership in owned {
            self.keyspace.shard(ownership).waiters.pending.clock = stamp;
        }
    }

    /// Raises the clocks of shards that are held to that of this worker.
    pub(crate) fn raise_clocks(&mut self, owned: &mut [Ownership]) {
        let clock = self.stream.clock();
        for ownership in owned {
            let pending = &mut self.keyspace.shard(ownership).waiters.pending;
            pending.clock = pending.clock.max(clock);
        }
    }

    /// Returns the stamp of the latest unit that this worker's connections may know of.
    pub(crate) fn effect_clock(&self) -> u64 {
        self.stream.clock()
    }

    /// Takes up the clock that came with an answer from another worker: what its connection writes
    /// next is stamped later.
    #[inline]
    pub fn observe_clock(&mut self, clock: u64) {
        if !faults::hits(Fault::ForgottenClock) {
            self.stream.observe(clock);
        }
    }

    /// Hands the turn's units to the journal. To be called at the end of each turn, before the
    /// worker attends the next epoch.
    #[inline]
    pub fn flush_stream(&mut self) {
        if !self.stream.is_empty() {
            self.keyspace.journal().take(self.worker(), &mut self.stream);
        }
    }
}
