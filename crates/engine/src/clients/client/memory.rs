//! Client memory accounting: the memory usage of all clients together, and the eviction of clients
//! above `maxmemory-clients`.
//!
//! While there is a limit, each worker updates the accounted size (*weight*) of its connections at
//! the end of a turn in which they changed. Clients of about the same size are in one *bucket*, as
//! in Redis. Those in the bucket of the largest are evicted first, in the order in which they
//! entered it. Without a limit none of this is kept.
//!
//! | what | changed by |
//! | --- | --- |
//! | a client's weight | its worker; the setter of the limit; the thread that evicts it |
//! | the sum | the same; workers add a turn's differences at once |
//! | the buckets | the same, under a lock not needed while a client stays in its bucket |
//!
//! A weight is always exchanged, and the sum changed by the difference, so that the sum is that of
//! all weights whatever the order of writers.
//!
//! Eviction runs under that lock, and subtracts a client's weight from the sum at once, though its
//! worker has yet to close it. So no client is closed for memory that is being freed already, not
//! even if the worker updates its weight at that very moment.

use std::collections::BTreeMap;
use std::sync::atomic::{
    AtomicU64,
    Ordering::{Relaxed, SeqCst},
};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Client;

/// Redis's bounds, as powers of two: smaller clients are in the smallest bucket, and those of at
/// least half of the largest bound in the largest.
const SMALLEST_LOG: u32 = 15;
const LARGEST_LOG: u32 = 33;

/// The shift of the bucket in a [`Place`]: above all numbers given to clients in a run of a server.
const BUCKET_SHIFT: u32 = 56;

/// The least limit, bytes: with less no client could connect any more, as in Redis.
pub const LIMIT_BYTES_MIN: u64 = 128 * 1024;

/// A client's bucket, the largest first, and behind it a number in order of entry. 0: in none.
type Place = u64;

/// Returns the bucket of a size: 0 is that of the largest.
fn bucket_of(bytes: u64) -> u64 {
    let log = u64::BITS - bytes.leading_zeros();
    u64::from(LARGEST_LOG - log.clamp(SMALLEST_LOG, LARGEST_LOG))
}

#[derive(Default)]
struct Buckets {
    by_place: BTreeMap<Place, Arc<Client>>,
    last_number: u64,
}

impl Buckets {
    /// Moves a client to the end of a bucket, or removes it.
    fn put(&mut self, client: &Arc<Client>, bucket: Option<u64>) {
        self.by_place.remove(&client.place.load(Relaxed));
        // An evicted client stays out of all buckets.
        let place = bucket.filter(|_| !client.killed.load(Relaxed)).map_or(0, |bucket| {
            self.last_number += 1;
            let place = bucket << BUCKET_SHIFT | self.last_number;
            self.by_place.insert(place, Arc::clone(client));
            place
        });
        client.place.store(place, Relaxed);
    }
}

/// The sum, the limit and the buckets. See the head of this module.
#[derive(Default)]
pub struct ClientMemory {
    limit_bytes: AtomicU64,
    /// May wrap for a moment, when differences arrive out of order.
    total_bytes: AtomicU64,
    buckets: Mutex<Buckets>,
    /// Clients evicted since the last reset.
    pub evicted: AtomicU64,
}

impl ClientMemory {
    /// Returns the limit, bytes; 0: none.
    pub fn limit_bytes(&self) -> u64 {
        self.limit_bytes.load(Relaxed)
    }

    /// Sets the limit, bytes (0: none). If there was none before, `weigh_all` must account for all
    /// clients, while none is removed.
    pub(super) fn set_limit(&self, limit_bytes: u64, weigh_all: impl FnOnce(&dyn Fn(&Arc<Client>))) {
        let limit_bytes = if limit_bytes == 0 { 0 } else { limit_bytes.max(LIMIT_BYTES_MIN) };
        let before = self.limit_bytes.swap(limit_bytes, Relaxed);
        if limit_bytes == 0 {
            let mut buckets = self.lock();
            std::mem::take(&mut buckets.by_place).into_values().for_each(|client| client.place.store(0, Relaxed));
        } else if before == 0 {
            weigh_all(&|client| self.add(self.weigh(client)));
        }
    }

    /// Updates a client's weight. Returns the difference to add to the sum ([`ClientMemory::add`]).
    #[must_use]
    pub fn weigh(&self, client: &Arc<Client>) -> i64 {
        // Its weight has been subtracted, or will be in a moment: it is about to be closed.
        if client.killed.load(Relaxed) {
            return 0;
        }
        let bytes = client.memory_bytes();
        let bucket = (!client.no_evict.load(Relaxed)).then(|| bucket_of(bytes));
        let place = client.place.load(Relaxed);
        if bucket != (place != 0).then_some(place >> BUCKET_SHIFT) {
            self.lock().put(client, bucket);
        }
        if client.weight_bytes.load(Relaxed) == bytes {
            return 0;
        }
        let before = client.weight_bytes.swap(bytes, SeqCst);
        // It may be evicted at this very moment. Either the evicting thread subtracts the weight
        // stored just now, or it is subtracted here. With sequentially consistent accesses one of
        // the two sees the other's write.
        let taken_back = if client.killed.load(SeqCst) {
            // The evicting thread subtracts what it can under the lock. If this thread took the
            // weight first, the sum would stay too high until it is changed, and another client
            // would be evicted.
            let _evicted = self.lock();
            client.weight_bytes.swap(0, SeqCst)
        } else {
            0
        };
        bytes.wrapping_sub(before).wrapping_sub(taken_back) as i64
    }

    /// Adds to the sum.
    pub fn add(&self, difference: i64) {
        self.total_bytes.fetch_add(difference as u64, Relaxed);
    }

    /// Returns whether the sum, changed by `difference`, has reached the limit: that is too much.
    #[inline]
    pub fn is_too_much(&self, difference: i64) -> bool {
        let total = self.total_bytes.load(Relaxed).wrapping_add_signed(difference) as i64;
        let limit_bytes = self.limit_bytes();
        limit_bytes > 0 && i128::from(total) >= i128::from(limit_bytes)
    }

    /// Evicts clients until the sum is below the limit, or none is left that may be evicted.
    /// Returns those that the caller must close.
    pub fn evict(&self) -> Vec<Arc<Client>> {
        let mut evicted = Vec::new();
        if !self.is_too_much(0) {
            return evicted;
        }
        let mut buckets = self.lock();
        while self.is_too_much(0)
            && let Some((_, client)) = buckets.by_place.pop_first()
        {
            client.place.store(0, Relaxed);
            let is_closing = client.killed.swap(true, SeqCst);
            self.add((client.weight_bytes.swap(0, SeqCst) as i64).wrapping_neg());
            if !is_closing {
                self.evicted.fetch_add(1, Relaxed);
                evicted.push(client);
            }
        }
        evicted
    }

    /// Removes a client that has disconnected: its worker no longer updates its weight.
    pub(super) fn forget(&self, client: &Arc<Client>) {
        if client.place.load(Relaxed) != 0 {
            self.lock().put(client, None);
        }
        self.add((client.weight_bytes.swap(0, Relaxed) as i64).wrapping_neg());
    }

    fn lock(&self) -> MutexGuard<'_, Buckets> {
        // A panic within leaves at worst a client in no bucket, or in a former one.
        self.buckets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Clients, Endpoint};
    use super::*;

    const KIB: u64 = 1024;
    const MIB: u64 = 1024 * KIB;

    /// Returns clients of these sizes, numbered from 1.
    fn clients(sizes: &[u64]) -> Clients {
        let clients = Clients::new();
        for size in sizes {
            let end = || Endpoint::Unix("socket".into());
            let client = Arc::new(Client::new(clients.next_id(), 0, 9, end(), end(), 0));
            client.output_bytes.store(*size, Relaxed);
            clients.add(client);
        }
        clients
    }

    /// Returns the numbers of the clients that are evicted at that limit.
    fn evicted(clients: &Clients, limit_bytes: u64) -> Vec<u64> {
        clients.limit_memory(limit_bytes);
        clients.memory().evict().iter().map(|client| client.id).collect()
    }

    #[test]
    fn the_largest_go_first_and_as_few_as_need_be() {
        let clients = clients(&[100, 3 * MIB, 200 * KIB, MIB, 3 * MIB + 500 * KIB, 50 * KIB]);
        assert_eq!(evicted(&clients, 8 * MIB), []);
        // Both are in one bucket: the earlier is evicted first, though the other is larger.
        assert_eq!(evicted(&clients, 7 * MIB), [2]);
        assert_eq!(evicted(&clients, 7 * MIB), []);
        assert_eq!(evicted(&clients, MIB), [5, 4]);
        assert_eq!(clients.memory().evicted.load(Relaxed), 3);
        // Anything above none is the least limit.
        assert_eq!(evicted(&clients, 1), [3]);
        assert_eq!(evicted(&clients, 0), []);
    }

    #[test]
    fn at_the_limit_is_too_much_and_one_byte_less_is_not() {
        let one = clients(&[MIB]);
        let taken = MIB + size_of::<Client>() as u64;
        assert_eq!(evicted(&one, taken + 1), []);
        assert_eq!(evicted(&one, taken), [1]);
    }

    #[test]
    fn who_is_not_to_be_evicted_counts_and_stays() {
        let clients = clients(&[3 * MIB, MIB, 100]);
        let protected = clients.find(1).expect("it was added");
        protected.no_evict.store(true, Relaxed);
        assert_eq!(evicted(&clients, 2 * MIB), [2, 3]);
        protected.no_evict.store(false, Relaxed);
        clients.memory().add(clients.memory().weigh(&protected));
        assert_eq!(evicted(&clients, 2 * MIB), [1]);
    }

    #[test]
    fn the_sum_is_that_of_who_is_there() {
        let all = clients(&[MIB, MIB, MIB]);
        assert_eq!(evicted(&all, 4 * MIB), []);
        let first = all.find(1).expect("it was added");
        first.output_bytes.store(5 * MIB, Relaxed);
        let difference = all.memory().weigh(&first);
        assert!(all.memory().is_too_much(difference) && !all.memory().is_too_much(0));
        all.memory().add(difference);
        assert!(all.memory().is_too_much(0));
        all.remove(1);
        assert!(!all.memory().is_too_much(0));
        // Another limit after there was none finds each at its size once.
        all.limit_memory(0);
        all.find(2).expect("it was added").output_bytes.store(0, Relaxed);
        assert_eq!(evicted(&all, 2 * MIB), []);
        assert_eq!(evicted(&all, MIB), [3]);
        for id in [2, 3] {
            all.remove(id);
        }
        assert_eq!(all.memory().total_bytes.load(Relaxed), 0);
        assert!(all.memory().lock().by_place.is_empty());
    }

    #[test]
    fn who_is_weighed_while_it_is_evicted_takes_nobody_along() {
        const ROUNDS: usize = 2000;
        for round in 0..ROUNDS {
            let all = clients(&[3 * MIB, 100 * KIB]);
            let (first, second) = (all.find(1).expect("it was added"), all.find(2).expect("it was added"));
            all.limit_memory(2 * MIB);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    for step in 0..100 {
                        first.output_bytes.store(3 * MIB + step, Relaxed);
                        all.memory().add(all.memory().weigh(&first));
                    }
                });
                scope.spawn(|| (0..20).for_each(|_| drop(all.memory().evict())));
            });
            all.memory().evict();
            assert!(first.killed.load(Relaxed) && !second.killed.load(Relaxed), "round {round}");
            all.remove(1);
            assert_eq!(all.memory().total_bytes.load(Relaxed), second.memory_bytes(), "round {round}");
        }
    }

    #[test]
    fn buckets_are_powers_of_two() {
        assert_eq!(bucket_of(0), bucket_of(32 * KIB - 1));
        for log in SMALLEST_LOG..LARGEST_LOG - 1 {
            assert_eq!(bucket_of(1 << log), bucket_of((1 << (log + 1)) - 1));
            assert_eq!(bucket_of((1 << log) - 1), bucket_of(1 << log) + 1);
        }
        assert_eq!((bucket_of(1 << (LARGEST_LOG - 1)), bucket_of(u64::MAX)), (0, 0));
    }
}
