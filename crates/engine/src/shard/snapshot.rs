//! Snapshots in the background. The holder of all shards starts a snapshot. Then each worker
//! *walks* its home shards (those whose periodic work it does), for a part of each turn (iteration
//! of its event loop). The walk encodes the entries that no command has encoded yet.
//! [`crate::store::snapshot`] explains why the snapshot contains the state at its start.

use std::time::{Duration, Instant};

use crate::faults::{self, Fault};
use crate::shard::executor::Executor;
use crate::shard::whole::Whole;
pub use crate::store::snapshot::{Encoder, Input, Next, Part, Progress};
use crate::store::snapshot::{SnapshotStart, Step, walk};

#[cfg(test)]
mod tests;

/// Maximum number of buckets of a step, whose time is checked only at its end. Their entries, up to
/// 64, take 50 to 100 µs if they are not in the CPU's caches and their values are compressed.
const BUCKETS_PER_STEP: usize = 8;

/// Maximum time for which the walk holds a shard without releasing it.
const HELD_MAX: Duration = Duration::from_micros(50);

/// While a worker is busy, its other work takes this many times as long as its walk. An idle worker
/// does nothing but walk.
const WORK_PER_WALK: u32 = 8;

/// A worker counts as idle if its other work in a turn takes at most this time. In such a turn it
/// has run no command and only checked for events.
const IDLE_MAX: Duration = Duration::from_micros(10);

/// Pause of a worker, once a turn, while the snapshot's thread gets too little CPU time
/// ([`Step::Starved`]).
const STARVED_PAUSE: Duration = Duration::from_micros(500);

/// Minimum duration of a turn's walk. If a worker's share of a turn is shorter, the share is added
/// to that of a later turn ([`Walker::credit`]).
const TURN_MIN: Duration = Duration::from_micros(25);
/// Maximum duration of a turn's walk.
const TURN_MAX: Duration = Duration::from_micros(200);

impl Whole<'_> {
    /// Starts a snapshot of the current state of all databases. Returns the input from which the
    /// snapshot's thread reads its parts.
    ///
    /// # Panics
    /// If the walk of the previous snapshot has not ended.
    pub fn begin_snapshot(&mut self, encoder: Box<dyn Encoder>) -> Input {
        let keyspace = self.keyspace();
        let (mut dicts, mut keys) = (0, 0);
        for ownership in self.owned() {
            for (_, database) in keyspace.shard(ownership).databases.used() {
                dicts += usize::from(!database.dict.is_empty());
                keys += database.dict.len();
            }
        }
        let (beginning, input) = SnapshotStart::new(encoder, dicts, keys);
        for ownership in self.owned() {
            beginning.begin(keyspace, keyspace.shard(ownership));
        }
        keyspace.call_walkers();
        input
    }
}

/// Whether a worker has more to walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ahead {
    /// There is nothing more: this worker's part of the walk has ended.
    Nothing,
    /// There is more, but its shards are busy or the snapshot's thread is behind.
    Later,
    /// There is more to walk now.
    More,
}

/// A worker's part of the walk.
#[derive(Debug, Default)]
pub struct Walker {
    /// The value of `Keyspace::snapshots` for which the worker walks, or has walked last.
    number: u64,
    /// The worker's shards that are still to be walked.
    shards: Vec<u32>,
    /// End of the last turn's walk.
    ended: Option<Instant>,
    /// The time for which the worker may still walk. It grows in proportion to the worker's other
    /// work.
    credit: Duration,
}

impl Walker {
    /// Returns the value of `Keyspace::snapshots` for which the worker walks, or has walked last.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Walks this worker's shards for a part of the turn.
    pub fn turn(&mut self, executor: &mut Executor<'_>) -> Ahead {
        let (keyspace, worker, began) = (executor.keyspace(), executor.worker(), Instant::now());
        if self.number != keyspace.snapshots() {
            self.number = keyspace.snapshots();
            let all = (0..keyspace.partition_count()).rev();
            self.shards = all.filter(|&shard| keyspace.home(shard) == worker).collect();
        }
        if faults::hits(Fault::SlowWalk) {
            return Ahead::Later;
        }
        let other_work = self.ended.map_or(Duration::ZERO, |ended| began - ended);
        self.credit =
            if other_work <= IDLE_MAX { TURN_MIN } else { (self.credit + other_work / WORK_PER_WALK).min(TURN_MAX) };
        if self.credit < TURN_MIN {
            self.ended = Some(began);
            return Ahead::More;
        }
        let until = began + self.credit;
        let ahead = match Self::walk_detached(executor, until) {
            Ahead::More => Ahead::More,
            detached => self.walk(executor, until).max(detached),
        };
        let ended = Instant::now();
        self.credit = self.credit.saturating_sub(ended - began);
        self.ended = Some(ended);
        ahead
    }

    /// Reads the large values that commands have removed or moved to other keys before the walk had
    /// read these values completely. Done before the walk over the shards, because a removed value
    /// is freed once it has been read.
    fn walk_detached(executor: &mut Executor<'_>, until: Instant) -> Ahead {
        let (keyspace, worker) = (executor.keyspace(), executor.worker());
        while let Some(loose) = keyspace.detached.next(|shard| keyspace.home(shard) == worker) {
            let step = match loose.shard() {
                None => loose.read(None, until),
                Some(shard) => {
                    let Some(mut ownership) = executor.try_take(shard) else {
                        keyspace.detached.put_back(loose);
                        return Ahead::Later;
                    };
                    let held_until = until.min(Instant::now() + HELD_MAX);
                    let step = loose.read(Some(keyspace.shard(&mut ownership)), held_until);
                    executor.free(ownership);
                    step
                }
            };
            match step {
                Step::Ended => loose.free(keyspace),
                Step::More => keyspace.detached.put_back(loose),
                Step::Full | Step::Starved => {
                    keyspace.detached.put_back(loose);
                    return Ahead::Later;
                }
            }
            if Instant::now() >= until {
                return Ahead::More;
            }
        }
        Ahead::Nothing
    }

    fn walk(&mut self, executor: &mut Executor<'_>, until: Instant) -> Ahead {
        let keyspace = executor.keyspace();
        // Busy shards are skipped until the next turn.
        let mut at = self.shards.len();
        let mut has_walked = false;
        while let Some(next) = at.checked_sub(1) {
            let shard = self.shards[next];
            let Some(mut ownership) = executor.try_take(shard) else {
                at = next;
                continue;
            };
            let (mut now, mut step) = (Instant::now(), Step::More);
            let held_until = until.min(now + HELD_MAX);
            while step == Step::More && now < held_until {
                step = walk(keyspace, keyspace.shard(&mut ownership), BUCKETS_PER_STEP);
                now = Instant::now();
            }
            executor.free(ownership);
            has_walked |= step != Step::Full && step != Step::Starved;
            match step {
                Step::Full => return Ahead::Later,
                Step::Starved => {
                    std::thread::sleep(STARVED_PAUSE);
                    return Ahead::Later;
                }
                Step::Ended => {
                    self.shards.swap_remove(next);
                    at = next;
                }
                Step::More => {}
            }
            if now >= until {
                return Ahead::More;
            }
        }
        match (self.shards.is_empty(), has_walked) {
            (true, _) => Ahead::Nothing,
            (false, true) => Ahead::More,
            (false, false) => Ahead::Later,
        }
    }
}
