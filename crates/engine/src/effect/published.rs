//! Published values: copies of small strings that any thread reads without holding the key's shard.
//!
//! Normally all readers of a key take its shard, by writing the shard's *gate* (an atomic word, see
//! [`crate::shard::ownership`]). So the cache line of the gate moves from core to core with each
//! read, and readers wait for each other. If workers contend for the gate of a key that they read
//! (a *hot key*), a reader publishes the key's value: it copies the value into a [`Published`].
//! Later readers copy it from there and write no shared memory.
//!
//! A `Published` is a sequence lock. Only the owner of the key's shard writes it:
//!
//! | version | meaning | transitions |
//! | --- | --- | --- |
//! | even | the copy is the key's value | a change of the key, before its shard is released: even → odd |
//! | odd | the copy is outdated; readers take the gate | a reader that holds the shard publishes the value: odd → even |
//!
//! # Why reads stay strictly serializable
//!
//! A read takes effect when it loads an even version. The version becomes odd while the owner of
//! the shard makes the next change: before the shard is released, and before any client learns of
//! the change. So the read precedes the change in the order of effects. Neither real time nor
//! another read contradicts this order. A thread can learn of the change in three ways: it acquires
//! one of the change's shards, receives a message or a reply, or reads a value that was published
//! later. Each of these happens after the version became odd. The versions are accessed in one
//! total order (`SeqCst`), so two readers never see two changes of different keys in different
//! orders.
//!
//! Transactions, scripts and writing commands on several keys make several changes. Messages about
//! the first change (`PUBLISH`, keyspace events) may reach clients before the last change is made.
//! So the versions of all keys in the held shards are made odd before the first change. No reader
//! publishes a value before the shards are released. So no reader sees only a part of the changes.
//! A rollback leaves versions odd.

use std::sync::Arc;
use std::sync::atomic::AtomicU64 as Count;
use std::sync::atomic::Ordering::Relaxed as Unordered;

use pantala_base::sync::{AtomicU64, Ordering, fence};

use crate::faults::{self, Fault};

const WORD_BYTES: usize = size_of::<u64>();

/// Number of words of the longest published value.
const WORDS: usize = if cfg!(loom) { 1 } else { 64 };

/// Maximum length of a published value in bytes.
pub(crate) const VALUE_BYTES_MAX: usize = WORDS * WORD_BYTES;

/// Maximum number of published keys of a shard. Each change in the shard searches them.
const KEYS_MAX: usize = 8;

/// A deadline for keys without a TTL.
const NEVER: u64 = i64::MAX as u64;

/// A key and the copy of its value. See the head of this module.
// The header and the first 32 bytes of the value share a cache line.
#[repr(C, align(64))]
pub(crate) struct Published {
    version: AtomicU64,
    length: AtomicU64,
    /// Time at which the key expires: Unix time, ms.
    deadline_ms: AtomicU64,
    /// Clock of the shard when the value was published. A reader's later writes must have higher
    /// stamps, and its reply may have to wait until the unit with this stamp is durable.
    stamp: AtomicU64,
    words: [AtomicU64; WORDS],
    db: u32,
    hash: u64,
    name: Box<[u8]>,
}

/// A value read from a [`Published`].
pub(crate) struct Copied<'b> {
    pub(crate) bytes: &'b [u8],
    /// See [`Published`].
    pub(crate) deadline_ms: i64,
    /// See [`Published`].
    pub(crate) stamp: u64,
}

impl Published {
    /// Returns a key without a value.
    fn new(db: u32, hash: u64, name: &[u8]) -> Self {
        Published {
            version: AtomicU64::new(1),
            length: AtomicU64::new(0),
            deadline_ms: AtomicU64::new(0),
            stamp: AtomicU64::new(0),
            words: std::array::from_fn(|_| AtomicU64::new(0)),
            db,
            hash,
            name: name.into(),
        }
    }

    /// Returns whether this is the key.
    #[inline]
    pub(crate) fn is_of(&self, db: u32, hash: u64, name: &[u8]) -> bool {
        self.hash == hash && self.db == db && *self.name == *name
    }

    /// Copies the value into `buffer`. Returns `None` if the value is outdated.
    #[inline]
    pub(crate) fn read<'b>(&self, buffer: &'b mut [u8; VALUE_BYTES_MAX]) -> Option<Copied<'b>> {
        let version = self.version.load(Ordering::SeqCst);
        if !version.is_multiple_of(2) {
            return None;
        }
        // Relaxed: the fence below orders these loads before the second load of the version.
        let length = (self.length.load(Ordering::Relaxed) as usize).min(VALUE_BYTES_MAX);
        let deadline_ms = self.deadline_ms.load(Ordering::Relaxed) as i64;
        let stamp = self.stamp.load(Ordering::Relaxed);
        for (to, word) in buffer.chunks_exact_mut(WORD_BYTES).zip(&self.words[..length.div_ceil(WORD_BYTES)]) {
            to.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
        }
        // If one of the loads above has read a word of a later value, this fence pairs with the
        // fence in `publish`. Then the load below sees that the version has changed.
        fence(Ordering::Acquire);
        if self.version.load(Ordering::Relaxed) != version {
            return None;
        }
        Some(Copied { bytes: &buffer[..length], deadline_ms, stamp })
    }

    /// Returns whether the copy is the key's value at this moment.
    #[inline]
    pub(crate) fn is_current(&self) -> bool {
        self.version.load(Ordering::Relaxed).is_multiple_of(2)
    }

    /// Publishes the value, if it is at most [`VALUE_BYTES_MAX`] long. The caller holds the key's
    /// shard. Returns whether the value is published.
    pub(crate) fn publish(&self, value: &[u8], expire_at_ms: Option<i64>, stamp: u64) -> bool {
        if value.len() > VALUE_BYTES_MAX {
            return false;
        }
        // Relaxed: only owners of the shard write the version, and the gate orders them.
        let version = self.version.load(Ordering::Relaxed);
        if version.is_multiple_of(2) {
            return true;
        }
        // Orders the store that made the version odd before the stores below.
        fence(Ordering::Release);
        self.length.store(value.len() as u64, Ordering::Relaxed);
        self.deadline_ms.store(expire_at_ms.map_or(NEVER, |at_ms| at_ms.max(0) as u64), Ordering::Relaxed);
        self.stamp.store(stamp, Ordering::Relaxed);
        for (word, bytes) in self.words.iter().zip(value.chunks(WORD_BYTES)) {
            let mut padded = [0; WORD_BYTES];
            padded[..bytes.len()].copy_from_slice(bytes);
            word.store(u64::from_ne_bytes(padded), Ordering::Relaxed);
        }
        self.version.store(version + 1, Ordering::SeqCst);
        true
    }

    /// Makes the copy outdated. The caller holds the key's shard.
    fn outdate(&self) {
        let version = self.version.load(Ordering::Relaxed);
        if version.is_multiple_of(2) && !faults::hits(Fault::StalePublished) {
            self.version.store(version + 1, Ordering::SeqCst);
        }
    }
}

/// Number of published keys of all shards.
#[derive(Default)]
pub struct PublishedCount(Count);

impl PublishedCount {
    /// Returns the number. Exact for a caller that holds all shards.
    #[inline]
    pub fn get(&self) -> u64 {
        // Relaxed: the number changes while a shard is held, and its gate orders the change before
        // the loads of the shard's next owner.
        self.0.load(Unordered)
    }
}

/// The published keys of one shard. The shard owns them.
#[derive(Default)]
pub(crate) struct PublishedKeys(Vec<Arc<Published>>);

impl PublishedKeys {
    /// Returns the number of keys.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the place for a key's value. If the key was not published, the place is new and has
    /// no value, so it counts as outdated. Returns `None` if the shard has too many published keys.
    pub(crate) fn place(&mut self, count: &PublishedCount, db: u32, hash: u64, name: &[u8]) -> Option<Arc<Published>> {
        if let Some(found) = self.0.iter().find(|published| published.is_of(db, hash, name)) {
            return Some(Arc::clone(found));
        }
        self.remove_unread(count);
        if self.0.len() == KEYS_MAX {
            return None;
        }
        let published = Arc::new(Published::new(db, hash, name));
        self.0.push(Arc::clone(&published));
        count.0.fetch_add(1, Unordered);
        Some(published)
    }

    /// Makes the copy of a changed key outdated.
    #[inline]
    pub(crate) fn outdate(&self, db: u32, hash: u64, name: &[u8]) {
        if let Some(published) = self.0.iter().find(|published| published.is_of(db, hash, name)) {
            published.outdate();
        }
    }

    /// Makes all copies outdated, because whole databases have changed.
    pub(crate) fn outdate_all(&self) {
        self.0.iter().for_each(|published| published.outdate());
    }

    /// Removes the keys that no worker reads.
    pub(crate) fn remove_unread(&mut self, count: &PublishedCount) {
        let before = self.0.len();
        // A worker gets a reference only while it holds the shard, so a key that only this list
        // refers to stays unread.
        self.0.retain(|published| Arc::strong_count(published) > 1);
        count.0.fetch_sub((before - self.0.len()) as u64, Unordered);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_read_until_the_key_changes() {
        let (count, mut keys) = (PublishedCount::default(), PublishedKeys::default());
        let mut buffer = [0; VALUE_BYTES_MAX];
        let published = keys.place(&count, 3, 7, b"k").expect("a place");
        assert!(published.read(&mut buffer).is_none());
        for length in [0, 1, 8, 9, 100, VALUE_BYTES_MAX] {
            let value: Vec<u8> = (0..length).map(|at| at as u8).collect();
            assert!(published.publish(&value, Some(5), 9));
            let copied = published.read(&mut buffer).expect("current");
            assert_eq!((copied.bytes, copied.deadline_ms, copied.stamp), (&value[..], 5, 9));
            keys.outdate(3, 7, b"other");
            keys.outdate(2, 7, b"k");
            assert!(published.is_current());
            keys.outdate(3, 7, b"k");
            assert!(published.read(&mut buffer).is_none());
        }
        assert!(!published.publish(&[0; VALUE_BYTES_MAX + 1], None, 0));
        assert!(published.publish(b"", None, 0));
        assert_eq!(published.read(&mut buffer).expect("current").deadline_ms, i64::MAX);
        keys.outdate_all();
        assert!(!published.is_current());
    }

    #[test]
    fn keys_that_no_worker_reads_are_removed() {
        let (count, mut keys) = (PublishedCount::default(), PublishedKeys::default());
        let read: Vec<_> =
            (0..KEYS_MAX as u64).map(|hash| keys.place(&count, 0, hash, b"k").expect("a place")).collect();
        assert!(keys.place(&count, 0, 99, b"k").is_none());
        assert!(Arc::ptr_eq(&read[1], &keys.place(&count, 0, 1, b"k").expect("the same place")));
        drop(read);
        assert!(keys.place(&count, 0, 99, b"k").is_some());
        keys.remove_unread(&count);
        assert_eq!((keys.len(), count.get()), (0, 0));
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::thread;

    /// While an owner changes the value, a reader sees the old or the new value, never a mixture of
    /// both, and no old value after it has seen the change.
    #[test]
    fn readers_see_whole_values() {
        loom::model(|| {
            let published = Arc::new(Published::new(0, 0, b"k"));
            published.publish(b"a", None, 1);
            let changed = Arc::new(AtomicU64::new(0));
            let (of_reader, seen) = (Arc::clone(&published), Arc::clone(&changed));
            let reader = thread::spawn(move || {
                let is_changed = seen.load(Ordering::Acquire) == 1;
                let mut buffer = [0; VALUE_BYTES_MAX];
                if let Some(copied) = of_reader.read(&mut buffer) {
                    match copied.bytes {
                        b"a" => assert!(!is_changed && copied.stamp == 1),
                        b"bcd" => assert_eq!(copied.stamp, 2),
                        other => panic!("a mixture: {other:?}"),
                    }
                }
            });
            published.outdate();
            // Stands for the release of the shard and for the reply.
            changed.store(1, Ordering::Release);
            published.publish(b"bcd", None, 2);
            reader.join().unwrap();
        });
    }
}
