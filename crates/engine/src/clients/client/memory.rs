//! Client memory accounting: the sum of the memory usage of all clients, and the eviction of
//! clients when this sum reaches `maxmemory-clients`.
//!
//! While there is a limit, each worker maintains the accounted size (*weight*) of each of its
//! connections. At the end of each turn (iteration of its event loop), the worker updates the
//! weights that have changed. Clients of similar size share a *bucket*, as in Redis. The clients in
//! the bucket of the largest sizes are evicted first, in the order in which they entered the
//! bucket. Without a limit, neither weights nor buckets are maintained.
//!
//! The links to replicas and to the primary have the weight 0 and no bucket, as in Redis. So
//! replication is not interrupted because clients use too much memory.
//!
//! | what | changed by |
//! | --- | --- |
//! | a client's weight | the client's worker; the command that sets the limit; the evicting thread |
//! | the sum | the same threads; a worker adds all differences of a turn at once |
//! | the buckets | the same threads, under a lock, but only when a client changes its bucket |
//!
//! Each writer replaces the weight in one atomic exchange, and changes the sum by the difference.
//! So the sum stays the total of all weights, in whatever order threads write.
//!
//! The evicting thread holds the lock of the buckets. It subtracts the weight of an evicted client
//! from the sum before the client's worker closes the connection. So no other client is evicted for
//! memory that is about to be freed, even if the worker updates the weight at the same time.

use std::collections::BTreeMap;
use std::sync::atomic::{
    AtomicU64,
    Ordering::{Relaxed, SeqCst},
};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Client;

/// Bounds of the buckets as in Redis, given as numbers of significant bits of a size. Clients of
/// less than 2^15 bytes share the bucket of the smallest sizes. Clients of at least 2^32 bytes
/// share the bucket of the largest sizes.
const SMALLEST_LOG: u32 = 15;
const LARGEST_LOG: u32 = 33;

/// Position of the bucket's bits in a [`Place`].
const BUCKET_SHIFT: u32 = 56;

/// Minimum limit as in Redis, bytes. With a lower limit no client could connect.
pub const LIMIT_BYTES_MIN: u64 = 128 * 1024;

/// A client's bucket (high bits), and a number that ascends with each entry into a bucket (low
/// bits). 0: no bucket.
type Place = u64;

/// Returns the bucket of a size. Bucket 0 contains the largest clients.
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
    /// Moves a client to the end of a bucket. `None`: removes the client from its bucket.
    fn put(&mut self, client: &Arc<Client>, bucket: Option<u64>) {
        self.by_place.remove(&client.place.load(Relaxed));
        // A client that is being closed stays out of all buckets.
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
    /// The sum. May be negative (wrapped) for a moment, if threads add differences out of order.
    total_bytes: AtomicU64,
    buckets: Mutex<Buckets>,
    /// Clients evicted since the last reset.
    pub evicted: AtomicU64,
}

impl ClientMemory {
    /// Returns the limit, bytes; 0: no limit.
    pub fn limit_bytes(&self) -> u64 {
        self.limit_bytes.load(Relaxed)
    }

    /// Sets the limit, bytes; 0: no limit. If there was no limit before, calls `account_all`, which
    /// must call its argument with each client. No client may be removed meanwhile.
    pub(super) fn set_limit(&self, limit_bytes: u64, account_all: impl FnOnce(&dyn Fn(&Arc<Client>))) {
        let limit_bytes = if limit_bytes == 0 { 0 } else { limit_bytes.max(LIMIT_BYTES_MIN) };
        let before = self.limit_bytes.swap(limit_bytes, Relaxed);
        if limit_bytes == 0 {
            let mut buckets = self.lock();
            std::mem::take(&mut buckets.by_place).into_values().for_each(|client| client.place.store(0, Relaxed));
        } else if before == 0 {
            account_all(&|client| self.add(self.update_weight(client)));
        }
    }

    /// Updates a client's weight. Returns the difference to add to the sum ([`ClientMemory::add`]).
    #[must_use]
    pub fn update_weight(&self, client: &Arc<Client>) -> i64 {
        // The weight of a killed client, which is about to be closed, is not updated. The evicting
        // thread or `forget` subtracts it.
        if client.killed.load(Relaxed) {
            return 0;
        }
        let is_link = client.is_primary.load(Relaxed) || client.is_replica.load(Relaxed);
        let bytes = if is_link { 0 } else { client.memory_bytes() };
        let bucket = (!is_link && !client.no_evict.load(Relaxed)).then(|| bucket_of(bytes));
        let place = client.place.load(Relaxed);
        if bucket != (place != 0).then_some(place >> BUCKET_SHIFT) {
            self.lock().put(client, bucket);
        }
        if client.accounted_bytes.load(Relaxed) == bytes {
            return 0;
        }
        let before = client.accounted_bytes.swap(bytes, SeqCst);
        // Another thread may evict the client at this moment. Then one of the two threads must
        // subtract the weight that was just stored. All accesses are sequentially consistent, so at
        // least one of the two threads sees the other's write, and `swap(0)` returns the weight to
        // only one thread.
        let subtracted = if client.killed.load(SeqCst) {
            // The evicting thread subtracts the weight under the lock. If this thread took the
            // weight first, without the lock, the evicting thread would find nothing to subtract.
            // The sum would then stay too high until this thread has corrected it, and the evicting
            // thread would evict another client.
            let _evicted = self.lock();
            client.accounted_bytes.swap(0, SeqCst)
        } else {
            0
        };
        bytes.wrapping_sub(before).wrapping_sub(subtracted) as i64
    }

    /// Adds a difference to the sum.
    pub fn add(&self, difference: i64) {
        self.total_bytes.fetch_add(difference as u64, Relaxed);
    }

    /// Returns whether the sum, changed by `difference`, has reached the limit.
    #[inline]
    pub fn is_too_much(&self, difference: i64) -> bool {
        let total = self.total_bytes.load(Relaxed).wrapping_add_signed(difference) as i64;
        let limit_bytes = self.limit_bytes();
        limit_bytes > 0 && i128::from(total) >= i128::from(limit_bytes)
    }

    /// Evicts clients until the sum is below the limit, or no client is left that may be evicted.
    /// Returns the clients that the caller must close.
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
            self.add((client.accounted_bytes.swap(0, SeqCst) as i64).wrapping_neg());
            if !is_closing {
                self.evicted.fetch_add(1, Relaxed);
                evicted.push(client);
            }
        }
        evicted
    }

    /// Removes a client that has disconnected. The client's worker must no longer update the
    /// weight.
    pub(super) fn forget(&self, client: &Arc<Client>) {
        if client.place.load(Relaxed) != 0 {
            self.lock().put(client, None);
        }
        self.add((client.accounted_bytes.swap(0, Relaxed) as i64).wrapping_neg());
    }

    fn lock(&self) -> MutexGuard<'_, Buckets> {
        // A panic of another holder is ignored: it can only leave a client in no bucket or in its
        // former one, which is harmless.
        self.buckets.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Clients, Endpoint};
    use super::*;
    use crate::clients::listener::Listener;

    const KIB: u64 = 1024;
    const MIB: u64 = 1024 * KIB;

    /// Returns clients of these sizes, with IDs from 1.
    fn clients(sizes: &[u64]) -> Clients {
        let clients = Clients::new();
        for size in sizes {
            let end = || Endpoint::Unix("socket".into());
            let client = Arc::new(Client::new(clients.next_id(), Listener::default(), 9, end(), end(), 0));
            client.output_bytes.store(*size, Relaxed);
            clients.add(client);
        }
        clients
    }

    /// Returns the IDs of the clients that are evicted at this limit.
    fn evicted(clients: &Clients, limit_bytes: u64) -> Vec<u64> {
        clients.limit_memory(limit_bytes);
        clients.memory().evict().iter().map(|client| client.id).collect()
    }

    #[test]
    fn the_largest_clients_are_evicted_first() {
        let clients = clients(&[100, 3 * MIB, 200 * KIB, MIB, 3 * MIB + 500 * KIB, 50 * KIB]);
        assert_eq!(evicted(&clients, 8 * MIB), []);
        // Clients 2 and 5 are in one bucket. Client 2 entered it first, so it is evicted first,
        // although client 5 is larger.
        assert_eq!(evicted(&clients, 7 * MIB), [2]);
        assert_eq!(evicted(&clients, 7 * MIB), []);
        assert_eq!(evicted(&clients, MIB), [5, 4]);
        assert_eq!(clients.memory().evicted.load(Relaxed), 3);
        // A limit other than 0 is raised to the minimum.
        assert_eq!(evicted(&clients, 1), [3]);
        assert_eq!(evicted(&clients, 0), []);
    }

    #[test]
    fn the_limit_is_exclusive() {
        let one = clients(&[MIB]);
        let taken = MIB + size_of::<Client>() as u64;
        assert_eq!(evicted(&one, taken + 1), []);
        assert_eq!(evicted(&one, taken), [1]);
    }

    #[test]
    fn protected_clients_count_but_are_not_evicted() {
        let clients = clients(&[3 * MIB, MIB, 100]);
        let protected = clients.find(1).expect("it was added");
        protected.no_evict.store(true, Relaxed);
        assert_eq!(evicted(&clients, 2 * MIB), [2, 3]);
        protected.no_evict.store(false, Relaxed);
        clients.memory().add(clients.memory().update_weight(&protected));
        assert_eq!(evicted(&clients, 2 * MIB), [1]);
    }

    #[test]
    fn links_of_replication_do_not_count() {
        let clients = clients(&[5 * MIB, 4 * MIB, 3 * MIB]);
        let link = |id| clients.find(id).expect("it was added");
        assert_eq!(evicted(&clients, 20 * MIB), []);
        link(1).is_replica.store(true, Relaxed);
        link(2).is_primary.store(true, Relaxed);
        (1..3).for_each(|id| clients.memory().add(clients.memory().update_weight(&link(id))));
        assert_eq!(evicted(&clients, 4 * MIB), []);
        assert_eq!(evicted(&clients, MIB), [3]);
        assert_eq!(clients.memory().total_bytes.load(Relaxed), 0);
        // A client that is no longer a replica counts again.
        link(1).is_replica.store(false, Relaxed);
        clients.memory().add(clients.memory().update_weight(&link(1)));
        assert_eq!(evicted(&clients, MIB), [1]);
    }

    #[test]
    fn the_sum_is_that_of_connected_clients() {
        let all = clients(&[MIB, MIB, MIB]);
        assert_eq!(evicted(&all, 4 * MIB), []);
        let first = all.find(1).expect("it was added");
        first.output_bytes.store(5 * MIB, Relaxed);
        let difference = all.memory().update_weight(&first);
        assert!(all.memory().is_too_much(difference) && !all.memory().is_too_much(0));
        all.memory().add(difference);
        assert!(all.memory().is_too_much(0));
        all.remove(1);
        assert!(!all.memory().is_too_much(0));
        // When a limit is set again, each client is accounted for once, with its current size.
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
    fn concurrent_accounting_evicts_no_other_client() {
        const ROUNDS: usize = 2000;
        for round in 0..ROUNDS {
            let all = clients(&[3 * MIB, 100 * KIB]);
            let (first, second) = (all.find(1).expect("it was added"), all.find(2).expect("it was added"));
            all.limit_memory(2 * MIB);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    for step in 0..100 {
                        first.output_bytes.store(3 * MIB + step, Relaxed);
                        all.memory().add(all.memory().update_weight(&first));
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
