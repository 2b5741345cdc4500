//! Snapshots: started by the holder of all shards, and walked by each shard's home.

use std::time::{Duration, Instant};

use crate::faults::{self, Fault};
use crate::shard::executor::Executor;
use crate::shard::message::Message;
use crate::shard::whole::Whole;
use crate::store::snapshot::{Beginning, Step, walk};
pub use crate::store::snapshot::{Encoder, Input, Next, Part, Progress};

#[cfg(test)]
mod tests;

/// Buckets of a step: about 500 entries, some ten microseconds.
const BUCKETS_PER_STEP: usize = 64;

/// Maximum time for which a shard is held.
const HELD_MAX: Duration = Duration::from_micros(50);

/// Minimum and maximum time of a turn's walk. In between, it takes as long as the worker has done
/// other work since the last walk, so at most half of the worker's time.
const TURN_MIN: Duration = Duration::from_micros(25);
const TURN_MAX: Duration = Duration::from_micros(200);

impl Whole<'_> {
    /// Starts a snapshot of the current state of all databases. Returns the input at which its
    /// parts arrive.
    ///
    /// # Panics
    /// If the previous one has not ended. Its input then had more parts.
    pub fn begin_snapshot(&mut self, encoder: Box<dyn Encoder>) -> Input {
        let (beginning, input) = Beginning::new(encoder);
        let keyspace = self.keyspace();
        for ownership in self.owned() {
            beginning.begin(keyspace, keyspace.shard(ownership));
        }
        keyspace.count_snapshot();
        // Workers may be asleep.
        keyspace.ports().iter().for_each(|port| port.send(Message::Snapshot));
        input
    }
}

/// Whether a worker has more to walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ahead {
    /// There is more to walk now.
    More,
    /// There is more, but its shards are busy or the snapshot's thread is behind.
    Later,
    /// There is nothing more: this snapshot's walk has ended.
    Nothing,
}

/// A worker's part of the walk.
#[derive(Debug, Default)]
pub struct Walker {
    /// Number of the current or last snapshot.
    number: u64,
    /// The worker's shards that are still to be walked.
    shards: Vec<u32>,
    /// End of the last turn.
    ended: Option<Instant>,
}

impl Walker {
    /// Returns the number of the current or last snapshot.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Walks for a part of a turn.
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
        let other_work = self.ended.map_or(TURN_MIN, |ended| began - ended);
        let until = began + other_work.clamp(TURN_MIN, TURN_MAX);
        let ahead = self.walk(executor, until);
        self.ended = Some(Instant::now());
        ahead
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
            has_walked |= step != Step::Full;
            match step {
                Step::Full => return Ahead::Later,
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
