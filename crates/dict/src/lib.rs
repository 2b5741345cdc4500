//! Pantala's dictionary: one per shard and database, from keys to short strings, integers or heap values, with expiry,
//! access word and user flags in the entry. It grows and shrinks a segment at a time, finds many keys at once with their
//! cache misses overlapped, and lets any thread prefetch from it while its owner changes it.
//!
//! # Words
//!
//! | word | meaning |
//! | --- | --- |
//! | hash | 64 bits of [`hash_key`], always read from the top: directory index, then tag |
//! | directory | 2^depth words, each a segment's address with its own depth and number of buckets |
//! | segment | up to 511 buckets in 32 KB of address space, or up to 7 in 512 bytes, for the hashes that begin with its `depth` bits |
//! | bucket | a cache line of 8 slots |
//! | slot | 16 bits of hash (the tag) and 48 of entry address; one bit says that the entry has an expiry |
//! | entry | head, lengths, expiry, key and payload in one piece of memory: a slab cell |
//! | run | 64 KB of cells of one size, a dictionary's own |
//! | hint | a handle to prefetch by, from any thread |
//! | stash | slots for which the directory may not grow: only keys that share 24 bits of hash by the thousand get there |
//!
//! # How a key is found
//!
//! The top `depth` bits of the hash choose a directory word. The 16 bits after the segment's own depth are the tag, and
//! `tag * buckets >> 16` is the home bucket. All eight tags of the line are compared at once; the entry is touched only
//! when one matches, so a find costs two cache misses: the line and the entry. A full home bucket sends the search on to
//! the next, which a search for a key that isn't fetched ahead has asked for at once. A removal shifts entries back instead of leaving a tombstone.
//!
//! Directory, buckets and tags are in the order of the hash. A scan's cursor is therefore a point in the hash's range,
//! which stays exact while segments grow, shrink, split and merge.
//!
//! # Growth
//!
//! A segment grows: 1, 2, 4 and 7 buckets in half a kilobyte, then *in place* 16, 32 and 63 in its first page and page by
//! page to 511, whenever it is filled to 90%. Its slots are spread anew; entries aren't touched. At 511 it splits, which reads its entries' keys (for
//! the hash bit that the tags lack) with 16 of them on their way at a time. So an insert moves at most one segment's
//! slots, 3,679 in fact, and nothing is ever rehashed as a whole. Shrinking goes the same way back, and pages that are
//! no longer needed go back to the kernel.
//!
//! # Who owns what
//!
//! A [`Dict`] has one owner: whoever holds it, by Rust's rules (a shard's owner in the server). The owner alone stores
//! into directory, segments and entries, all of directory and segments by atomic stores, which cost nothing more than
//! plain ones. [`Hint`]s of other threads load from directory and segments, never from entries, and only to
//! prefetch; directories and segments lie in memory that is mapped for ever and never changes its kind, so a hint that
//! comes too late reads something stale or strange but never anything unsound. The argument, clause by clause, is at the
//! head of `hint.rs`. Empty segments, directory blocks and runs go to pools that all dictionaries share.
//!
//! # What it costs
//!
//! Bytes per entry, for `key:12345678` → `value:12345678`:
//!
//! ```text
//! slot    8 bytes / load. A segment of 90% grows by 64 buckets and splits into halves of 72%: about 83%     9.6
//! entry   head 4 + key length 1 + value length 1 + key 12 + value 14 = 32, a cell of 32                    32.0
//! run     its header's line and its tail: 64 KB hold 2,046 cells of 32                                      0.0
//! segment its header's line, 64 bytes for about 2,700 entries; the directory's 8 bytes, twice or so         0.0
//!                                                                                                     about 41.6
//! ```
//!
//! An expiry is 8 bytes more, an integer's payload 8 in all, a heap value's pointer 8; lengths from 239 on take 2, from 4,096 on 9. Cells
//! are cut in steps of 4 bytes up to 64, of 8 to 128, of 16 to 512, then of at most an eighth: a 16-byte key with a value of
//! 256 bytes is 4 + 1 + 2 + 272 = 279 in a cell of 288, 26 beyond key and value with its slot. A segment takes half a
//! kilobyte up to 50 entries, pages beyond; so do the cells of each size in use. An empty dictionary takes a word.
//!
//! Measured on a 2-core EPYC (Zen 3) shared with other work, `cargo run --release -p pantala-dict --example figures`:
//!
//! | what | figure |
//! | --- | --- |
//! | find one by one, 1 M / 20 M entries | 229 ns / 379 ns |
//! | the same in batches, of the time one by one | 0.36 / 0.34 |
//! | one by one, of the time of hashbrown with boxed keys and values and the same hash | 0.91 / 0.79 |
//! | most slots moved by one insert while filling 20 M | 3,679 |
//! | resident bytes per key, 20 M pairs `key:N` / `value:N` in 40 dictionaries | 42.5 |
//! | resident bytes beyond key and value, 1 M 16-byte keys with 256-byte values | 23.9 |
//!
//! # Unsafe code
//!
//! `memory` maps, discards and prefetches; `arena` keeps the type-stable memory; `slab` and `record` are the entries'
//! memory; `bucket` has the vector search with its portable twin. Miri runs all of it, on the twin, with small segments:
//! `MIRIFLAGS="-Zmiri-permissive-provenance -Zmiri-disable-isolation" cargo +nightly miri test -p pantala-dict`. Slots hold entries' addresses as
//! numbers, so the provenance of pointers is exposed and taken up again.

mod arena;
mod batch;
mod bucket;
mod dict;
mod entry;
mod hash;
mod hint;
mod memory;
#[cfg(test)]
mod model_tests;
mod occupancy;
mod record;
mod resize;
mod scan;
mod segment;
mod slab;
mod table;
#[cfg(test)]
mod testing;

pub use dict::Dict;
pub use entry::{Entry, EntryMut, EntryRef, Extracted, NewPayload, OwnedPayload, Payload, Removed, VacantEntry};
pub use hash::hash_key;
pub use hint::{BucketHint, Hint, Roots};
pub use memory::{prefetch, prefetch_all};
pub use occupancy::Occupancy;
