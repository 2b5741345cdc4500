//! Eviction candidates: for each shard, the sampled keys that the policy would evict first.
//!
//! As in Redis, each eviction samples a few keys and remembers the best candidates among them. So
//! the evicted key is the best of many keys, not only of the last sample. Each shard has its own
//! pool, and shards are picked at random in proportion to their keys. Keys are distributed over the
//! shards at random. So, on average, the best key of one shard's pool is as good as the best key
//! that a single pool for all shards would have.
//!
//! A pool holds hashes of keys, not copies. A score may be out of date, so it is checked again
//! before the key is evicted.

use pantala_base::Random;
use pantala_dict::{EntryRef, hash_key};
use pantala_types::{Value, access};

use crate::store::Store;
use crate::store::state::Databases;
use crate::tuning::policy::{EvictionPolicy, Rank};
use std::sync::atomic::Ordering::Relaxed;

/// Number of entries sampled per unit of `maxmemory-samples`. Redis samples one entry per unit.
/// More entries find a better candidate where many LFU counters are equal, and cost little, because
/// they are neighbours in the dictionary.
const ENTRIES_PER_SAMPLE: u32 = 3;

/// Number of keys in a shard's pool, as in Redis.
const POOL_KEYS: usize = 16;

/// Maximum number of buckets that one sample walks. If few keys have a TTL, a sample of keys with a
/// TTL may reach this bound. The next sample then continues where this one ended.
const SAMPLE_BUCKETS_MAX: usize = 512;

/// A candidate for eviction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Candidate {
    /// The candidate with the highest score is evicted first.
    score: u64,
    /// Index of the key's database in the shard's table of databases.
    physical: usize,
    hash: u64,
}

/// A shard's candidates. See the head of this module.
#[derive(Default)]
pub(crate) struct Pool {
    /// Candidates by ascending score.
    candidates: Vec<Candidate>,
    /// The policy by which the scores were computed.
    policy: u8,
    /// Position at which the search for keys with a TTL continues, or 0 for a random position.
    cursor: u64,
}

/// Returns an entry's score. The entry with the highest score is evicted first.
fn score(entry: &EntryRef<'_, Value>, rank: Rank, store: &Store, now_ms: i64) -> u64 {
    match rank {
        Rank::Lru => u64::from(access::idle_time_s(entry.access(), now_ms as u64)),
        Rank::Lfu => {
            let decay_min = store.tuning.lfu_decay_time_minutes.load(Relaxed);
            u64::from(u8::MAX - access::lfu_decay(entry.access(), now_ms as u64, decay_min))
        }
        Rank::Ttl => entry.expire_at_ms().map_or(0, |at_ms| u64::MAX - at_ms.max(0) as u64),
        Rank::Random => 0,
    }
}

impl Pool {
    /// Chooses a key. Samples a few keys of database `physical`. Returns the physical database and
    /// the hash of the best candidate, which an earlier sample may have found in another database.
    /// Returns `None` if there is no candidate.
    pub(crate) fn choose(
        &mut self,
        store: &Store,
        databases: &mut Databases,
        physical: usize,
        policy: EvictionPolicy,
        random: &mut Random,
        now_ms: i64,
    ) -> Option<(usize, u64)> {
        let rank = policy.rank()?;
        let dict = &databases.get(physical)?.dict;
        let seed = dict.seed();
        if rank == Rank::Random && !policy.is_volatile() {
            return dict.random(&mut || random.next_u64()).map(|entry| (physical, hash_key(seed, entry.key())));
        }
        if std::mem::replace(&mut self.policy, policy.bits()) != policy.bits() {
            self.candidates.clear();
        }
        let samples = store.tuning.maxmemory_samples.load(Relaxed).max(1);
        let wanted = if rank == Rank::Random { 1 } else { samples.saturating_mul(ENTRIES_PER_SAMPLE) };
        let from = if self.cursor == 0 { random.next_u64() } else { self.cursor };
        let mut seen = 0;
        let mut last = None;
        let candidates = &mut self.candidates;
        let next = dict.sample(from, SAMPLE_BUCKETS_MAX, policy.is_volatile(), wanted as usize, &mut |entry| {
            seen += 1;
            let score = score(&entry, rank, store, now_ms);
            let is_hopeless = candidates.len() == POOL_KEYS && score <= candidates[0].score;
            if rank != Rank::Random && is_hopeless {
                return;
            }
            let hash = hash_key(seed, entry.key());
            last = Some((physical, hash));
            if rank != Rank::Random {
                put(candidates, Candidate { score, physical, hash });
            }
        });
        self.cursor = if seen == 0 { next } else { 0 };
        if rank == Rank::Random {
            return last;
        }
        // The best candidate may have been deleted or changed since it was sampled.
        while let Some(best) = self.candidates.pop() {
            let found = databases.get_mut(best.physical).and_then(|it| it.dict.find_by_hash(best.hash));
            let Some(found) = found else { continue };
            let is_eligible = !policy.is_volatile() || found.expire_at_ms().is_some();
            if is_eligible && score(&found.as_ref(), rank, store, now_ms) >= best.score {
                return Some((best.physical, best.hash));
            }
        }
        None
    }
}

/// Inserts a candidate if it is among the best.
fn put(candidates: &mut Vec<Candidate>, candidate: Candidate) {
    let is_same = |other: &Candidate| (other.hash, other.physical) == (candidate.hash, candidate.physical);
    if let Some(at) = candidates.iter().position(is_same) {
        candidates.remove(at);
    }
    let at = candidates.partition_point(|other| other.score < candidate.score);
    if candidates.len() < POOL_KEYS {
        candidates.insert(at, candidate);
    } else if at > 0 {
        // Drops the worst candidate.
        candidates[..at].rotate_left(1);
        candidates[at - 1] = candidate;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_keeps_the_best_candidates_without_duplicates() {
        let mut random = Random::from_seed(7);
        let mut pool = Vec::new();
        let mut scores = Vec::new();
        for hash in 0..200 {
            let score = random.below(1000);
            scores.push(score);
            put(&mut pool, Candidate { score, physical: 0, hash });
            scores.sort_unstable();
            let best = &scores[scores.len().saturating_sub(POOL_KEYS)..];
            assert_eq!(pool.iter().map(|candidate| candidate.score).collect::<Vec<_>>(), best);
        }
        let again = Candidate { score: 2000, ..pool[3] };
        put(&mut pool, again);
        assert_eq!(pool.len(), POOL_KEYS);
        assert_eq!(pool.iter().filter(|candidate| candidate.hash == again.hash).collect::<Vec<_>>(), [&again]);
        put(&mut pool, Candidate { physical: 1, ..again });
        assert_eq!(pool.iter().filter(|candidate| candidate.hash == again.hash).count(), 2);
    }
}
