//! Commits commands, transactions and scripts: their effects become units of this worker's stream.
//! [`crate::effect`] defines effect, unit, stream and stamp, and explains their order. A *turn* is
//! one iteration of a worker's event loop.

use pantala_resp::Args;

use crate::command::{Chance, Command, Flags, Omission, Propagated, Route};
use crate::effect::batch::{Batch, Unit};
use crate::effect::change::{UNDECLARED_CHANGE, UNSTATED_CHANGE};
use crate::effect::pending::Form;
use crate::effect::{Pending, Seen, Stream};
use crate::faults::{self, Fault};
use crate::shard::access::Access;
use crate::shard::executor::Call;
use crate::shard::keyspace::Keyspace;
use crate::shard::ownership::Ownership;

/// Reports a bug in the handler or the record of a command. Because of the bug, replicas and the
/// append-only file now differ from the dataset. Debug builds panic.
#[cold]
pub(crate) fn report(command: &Command, error: &str) {
    let name = command.full_name;
    tracing::error!("Command {name} {error}: replicas and the append-only file may differ from the dataset");
    debug_assert!(false, "command {name} {error}");
}

impl Access<'_> {
    /// Returns whether effects are recorded. If not, [`Access::propagate`] does nothing, and
    /// callers need not build its arguments.
    #[inline]
    pub fn is_journaled(&self) -> bool {
        self.keyspace.tuning.is_journaled()
    }

    /// Propagates a command (in the selected database) in place of the command that the client
    /// sent. Several calls propagate several commands in order.
    pub fn propagate(&mut self, words: &[&[u8]]) -> Propagated {
        if self.is_journaled() {
            let db = self.session.db;
            self.rewrite().push(db, words);
        }
        Propagated(())
    }

    /// Suppresses the propagation of the command as the client sent it. Commands that the handler
    /// has passed to [`Access::propagate`] are propagated nevertheless.
    pub fn propagate_nothing(&mut self, _: Omission) -> Propagated {
        if self.is_journaled() {
            self.rewrite();
        }
        Propagated(())
    }

    /// Propagates the command as the client sent it. The caller must know that the command then
    /// makes the same change on a replica. For a
    /// [`Handler::Keyed`](crate::command::Handler::Keyed), whose change depends only on the
    /// arguments and the dataset, this is the default.
    #[inline]
    pub fn propagate_verbatim(&self, _: Chance) -> Propagated {
        Propagated(())
    }

    #[cold]
    fn rewrite(&mut self) -> &mut Batch {
        let pending = self.lowest_pending();
        pending.form = Form::Rewritten;
        &mut pending.rewritten
    }

    /// Returns the pending effects of the lowest shard that the command holds. The form in which
    /// the command is propagated, and the commands that the handler has passed to
    /// [`Access::propagate`], are recorded only there.
    fn lowest_pending(&mut self) -> &mut Pending {
        &mut self.keyspace.shard(&mut self.owned[0]).observers.pending
    }
}

/// Records the effects of a worker's commands, and commits them as units of the worker's stream.
pub struct Recorder<'k> {
    keyspace: &'k Keyspace,
    worker: u32,
    /// Effects of the running command, transaction or script.
    unit: Unit,
    /// Units committed in this turn, for the journal.
    stream: Stream,
    /// See [`Recorder::take_seen`].
    pub(crate) seen: Seen,
}

impl<'k> Recorder<'k> {
    pub(crate) fn new(keyspace: &'k Keyspace, worker: u32) -> Self {
        let stream = Stream::new(keyspace.journal().pool());
        Recorder { keyspace, worker, unit: Unit::default(), stream, seen: Seen::default() }
    }

    /// Starts a unit that collects the effects of several commands until [`Recorder::end_unit`].
    /// `owned` are the shards that the unit may change.
    pub fn begin_unit(&mut self, owned: &mut [Ownership]) {
        self.unit.depth += 1;
        self.outdate_published(owned);
    }

    /// Makes all published values of held shards outdated. Called before a command, transaction or
    /// script that may change several keys. Otherwise a client could receive a message about the
    /// change of one key, and then read the published former value of another key, which has not
    /// been changed yet.
    #[inline]
    pub(crate) fn outdate_published(&self, owned: &mut [Ownership]) {
        if self.keyspace.published.get() > 0 {
            for ownership in owned {
                self.keyspace.shard(ownership).observers.watches.published().outdate_all();
            }
        }
    }

    /// Commits the unit of a transaction or script, whose shards must still be held.
    pub fn end_unit(&mut self, owned: &mut [Ownership]) {
        self.unit.depth -= 1;
        if self.unit.depth > 0 {
            return;
        }
        let has_local = std::mem::take(&mut self.unit.has_local);
        if self.keyspace.tuning.is_journaled() {
            self.gather_deletions(owned);
            if has_local {
                self.commit_unit_without_shards(owned);
            } else {
                self.commit_unit(owned);
            }
        } else if !self.unit.batch.is_empty() {
            self.forget_unit(owned);
        }
    }

    /// Drops the effects of a unit during which the journal was turned off. Otherwise these effects
    /// would become part of the first unit after the journal has been turned on again.
    #[cold]
    fn forget_unit(&mut self, owned: &mut [Ownership]) {
        self.gather_deletions(owned);
        self.unit.batch.clear();
    }

    /// Drops the effects of a script run that was rolled back, but commits the deletions of expired
    /// and evicted keys.
    pub fn roll_back_unit(&mut self, owned: &mut [Ownership]) {
        self.unit.depth -= 1;
        for ownership in owned.iter_mut() {
            self.keyspace.shard(ownership).observers.pending.forget_command();
        }
        if self.keyspace.tuning.is_journaled() {
            self.gather_deletions(owned);
            self.unit.batch.retain_deletions();
            self.commit_unit(owned);
        } else if self.unit.depth == 0 {
            self.forget_unit(owned);
        }
    }

    /// Adds the effects of a command that has run on held shards to the current unit. Commits the
    /// unit, unless it belongs to a transaction or script, which commits it later.
    #[cold]
    pub(crate) fn commit(&mut self, access: &mut Access<'_>, call: &Call<'_>) {
        let (command, owned) = (call.command, &mut *access.owned);
        self.gather_deletions(owned);
        let keyspace = self.keyspace;
        // Not `any`, which would stop at the first changed shard: the flag must be cleared in all
        // shards.
        let is_changed = owned.iter_mut().fold(false, |is_changed, ownership| {
            is_changed | std::mem::take(&mut keyspace.shard(ownership).observers.pending.is_changed)
        });
        let lowest = &mut keyspace.shard(&mut owned[0]).observers.pending;
        if faults::hits(Fault::LostEffect) {
            return lowest.forget_command();
        }
        if faults::hits(Fault::VerbatimForm) {
            lowest.forget_command();
        }
        match std::mem::take(&mut lowest.form) {
            Form::Rewritten => self.unit.batch.append(&mut lowest.rewritten, false),
            Form::Verbatim if is_changed && command.flags.intersects(Flags::WRITE | Flags::MAY_REPLICATE) => {
                if access.is_unchanged {
                    report(command, UNSTATED_CHANGE);
                }
                if self.unit.depth == 0 && self.unit.batch.is_empty() {
                    // Most writes are single commands, whose effect needs no batch.
                    let stamp = self.stamp(owned);
                    self.stream.push_args(stamp, call.session.db, &call.args);
                    self.seen = Seen::written(stamp);
                    return self.set_clocks(owned, stamp);
                }
                self.unit.batch.push_args(call.session.db, &call.args);
            }
            Form::Verbatim if is_changed => report(command, UNDECLARED_CHANGE),
            Form::Verbatim => {}
        }
        if self.unit.depth > 0 {
            return;
        }
        // A walk over the keyspace (`KEYS`, `SCAN`) may delete many expired keys. As in Redis,
        // these deletions are not propagated as one transaction.
        let is_walk = !matches!(command.route, Route::Keys);
        let effects = &self.unit.batch.effects;
        if is_walk && !effects.is_empty() && effects.iter().all(|effect| effect.is_deletion) {
            self.commit_each_deletion(owned);
        } else {
            // Called even if the command has no effect, because the command may have read effects
            // of other clients. This worker's later stamps must be higher than the stamps of those
            // effects.
            self.commit_unit(owned);
        }
    }

    /// Propagates a command that has run without shards (`PUBLISH`, `FUNCTION LOAD`) as the client
    /// sent it, if commands of this kind are propagated.
    #[inline]
    pub fn propagate_local(&mut self, command: &Command, db: u32, args: &Args<'_>) {
        if command.flags.intersects(Flags::WRITE | Flags::MAY_REPLICATE) && self.keyspace.tuning.is_journaled() {
            self.commit_without_shards(db, args);
        }
    }

    #[cold]
    fn commit_without_shards(&mut self, db: u32, args: &Args<'_>) {
        self.unit.batch.push_args(db, args);
        if self.unit.depth == 0 {
            self.commit_unit_without_shards(&mut []);
        } else {
            self.unit.has_local = true;
        }
    }

    /// Commits a unit with the effect of a command without shards. No shard's clock orders such
    /// units. So each of them gets a stamp higher than the stamps of all earlier such units.
    #[cold]
    fn commit_unit_without_shards(&mut self, owned: &mut [Ownership]) {
        self.stream.observe(self.keyspace.journal().latest_without_shards());
        self.commit_unit(owned);
        self.keyspace.journal().note_without_shards(self.stream.clock());
    }

    /// Returns whether a transaction or script is running, whose effects form one unit.
    #[inline]
    pub(crate) fn is_in_unit(&self) -> bool {
        self.unit.depth > 0
    }

    /// Drops the effects of the current unit. Called while an append-only file is loaded, because
    /// the loaded commands are not propagated.
    pub fn drop_effects(&mut self) {
        self.unit.batch.clear();
    }

    /// Ends a unit without committing it. Drops its effects.
    pub fn abandon_unit(&mut self, owned: &mut [Ownership]) {
        self.gather_deletions(owned);
        self.drop_effects();
        self.unit.depth -= 1;
    }

    /// Suspends the unit of a script while other commands run.
    pub fn suspend_unit(&mut self) -> Unit {
        std::mem::take(&mut self.unit)
    }

    /// Resumes a suspended unit.
    pub fn resume_unit(&mut self, unit: Unit) {
        debug_assert!(self.unit.depth == 0 && self.unit.batch.is_empty(), "other commands have left a unit open");
        self.unit = unit;
    }

    /// Commits the deletions of expired and evicted keys in shards that are about to be released.
    /// Each deletion becomes a separate unit.
    #[inline]
    pub(crate) fn commit_deletions(&mut self, owned: &mut [Ownership]) {
        if self.keyspace.tuning.is_journaled() {
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
        // Sets only the stamp and not the bit for writes, because the commands themselves may only
        // have read data.
        self.seen.set_stamp(last);
        self.set_clocks(owned, last);
    }

    fn gather_deletions(&mut self, owned: &mut [Ownership]) {
        for ownership in owned {
            let pending = &mut self.keyspace.shard(ownership).observers.pending;
            if !pending.deleted.is_empty() {
                self.unit.batch.append(&mut pending.deleted, true);
            }
        }
    }

    fn commit_unit(&mut self, owned: &mut [Ownership]) {
        let stamp = self.stamp(owned);
        if self.unit.batch.is_empty() {
            // Later writes of this worker's connections may depend on the values just read. So the
            // stamps of these writes must be higher than the stamps of these shards.
            self.stream.observe(stamp - 1);
            return;
        }
        self.stream.push(stamp, &self.unit.batch);
        self.seen = Seen::written(stamp);
        self.unit.batch.clear();
        self.set_clocks(owned, stamp);
    }

    /// Returns a stamp that is higher than all stamps that these shards and this worker have seen.
    fn stamp(&mut self, owned: &mut [Ownership]) -> u64 {
        let keyspace = self.keyspace;
        let clocks = owned.iter_mut().map(|ownership| keyspace.shard(ownership).observers.pending.clock);
        let own = self.stream.clock();
        let of_shards = clocks.fold(0, u64::max);
        self.seen.set_stamp(self.seen.stamp().max(of_shards));
        let latest = if faults::hits(Fault::UnorderedEffects) { own } else { own.max(of_shards) };
        latest.max(keyspace.journal().epoch_floor()) + 1
    }

    fn set_clocks(&mut self, owned: &mut [Ownership], stamp: u64) {
        for ownership in owned {
            self.keyspace.shard(ownership).observers.pending.clock = stamp;
        }
    }

    /// Raises the clocks of held shards to this worker's clock.
    pub(crate) fn raise_clocks(&mut self, owned: &mut [Ownership]) {
        let clock = self.stream.clock();
        for ownership in owned {
            let pending = &mut self.keyspace.shard(ownership).observers.pending;
            pending.clock = pending.clock.max(clock);
        }
    }

    /// Returns the latest stamp that this worker's connections may have seen.
    pub fn effect_clock(&self) -> u64 {
        self.stream.clock()
    }

    /// Returns a stamp above two kinds of effects: all effects of earlier epochs, and all effects
    /// that this worker's connections have produced or read.
    pub fn stream_stamp(&self) -> u64 {
        (self.stream.clock() + 1).max(self.keyspace.journal().epoch_floor())
    }

    /// Returns the units that commands have written or read since the last call ([`Seen`]).
    /// Recorded while the journal is on.
    #[inline]
    pub fn take_seen(&mut self) -> Seen {
        std::mem::take(&mut self.seen)
    }

    /// Advances this worker's clock to that of a reply from another worker, so that the
    /// connection's next writes are stamped later.
    #[inline]
    pub fn observe_clock(&mut self, clock: u64) {
        if !faults::hits(Fault::ForgottenClock) {
            self.stream.observe(clock);
        }
    }

    /// Notes that a command has read a published value without its shard. `stamp` is the clock of
    /// the shard when the value was published.
    pub(crate) fn observe_read(&mut self, stamp: u64) {
        self.seen.set_stamp(self.seen.stamp().max(stamp));
        self.stream.observe(stamp);
    }

    /// Hands over the turn's units to the journal. Must be called at the end of each turn, before
    /// the worker reports to the journal that it is between two turns
    /// ([`Journal::attend`](crate::effect::Journal::attend)).
    #[inline]
    pub fn flush_stream(&mut self) {
        if !self.stream.is_empty() {
            self.keyspace.journal().take(self.worker, &mut self.stream);
            // If the journal is on, but neither the append-only file nor replicas read it, no
            // caller takes `seen`. Without this call, the bit of `seen` for written units would
            // stay set.
            self.seen.forget_writes();
        }
    }

    /// Hands over the units committed so far within a turn, so that
    /// [`Journal::end_with_pending`](crate::effect::Journal::end_with_pending) counts them.
    pub(crate) fn hand_over_stream(&mut self) {
        if !self.stream.is_empty() {
            self.keyspace.journal().take(self.worker, &mut self.stream);
        }
    }

    /// Frees the memory that the stream keeps for the next turns, unless the stream contains units.
    pub fn shrink_stream(&mut self) {
        self.stream.shrink();
    }
}
