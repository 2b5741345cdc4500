//! Pantala's dictionary: a map from keys to short strings, integers or heap values. Each entry also
//! has an access word, user flags and, optionally, an expiry. The server has a dictionary for each
//! database of each partition (a part of the key space that at most one thread uses at a time).
//!
//! The dictionary grows and shrinks one segment at a time. It looks up many keys at once with
//! overlapping cache misses. Any thread may prefetch from the dictionary while its owner changes
//! it.
//!
//! # Terms
//!
//! | term | meaning |
//! | --- | --- |
//! | hash | 64 bits of [`hash_key`], read from the top: directory index, then tag |
//! | directory | 2^depth words, each a segment's address, depth and number of buckets |
//! | root | one word with the directory's address, through which other threads find it |
//! | segment | up to 511 buckets (7 if small), for the hashes with the same top bits; their number is the segment's depth |
//! | bucket | a cache line of 8 slots |
//! | slot | 16 bits of hash (the tag) and 48 of entry address, with two flags in the low bits |
//! | entry | head, lengths, expiry, key and payload, together in a slab cell; layout: `record` |
//! | expiry | the time at which an entry expires, in Unix milliseconds |
//! | access word | 24 bits of an entry for the server: its last access, or how often it is used |
//! | user flags | 3 bits of an entry for the server: the form of the value |
//! | run | 64 KB of cells of one size, owned by one dictionary |
//! | hint | a root, as a handle for prefetching from any thread |
//! | snapshot | all entries as they are at its start, passed one by one to a *keeper* |
//! | epoch | a bit; a snapshot still needs the entries whose bit differs from the dictionary's |
//! | stash | overflow slots, used when the directory has its maximum depth |
//!
//! A segment has 32 KB of address space, a small segment 512 bytes. The stash holds entries only if
//! thousands of keys share the top 24 bits of their hashes.
//!
//! # Lookup
//!
//! The top bits of the hash, as many as the directory's depth, choose a directory word, which leads
//! to a segment. The segment's own depth may be smaller than the directory's. The 16 bits of the
//! hash after the segment's depth are the tag, and `tag * buckets >> 16` is the home bucket. Vector
//! instructions compare the eight tags of the bucket without branches. The entry is touched only
//! when a tag matches, so a lookup costs two cache misses: bucket and entry. If the home bucket is
//! full, the search continues in the next bucket. A lookup without a prior prefetch requests these
//! two buckets at once. A removal moves a later slot back to fill the gap, so there are no
//! tombstones.
//!
//! Segments, buckets and tags are in the order of the hashes. A scan cursor is therefore a point in
//! the hash range, and stays valid while segments grow, shrink, split and merge.
//!
//! # Growth
//!
//! A segment grows when it is 90% full. A small segment has 1, 2, 4 or 7 buckets in half a
//! kilobyte. When 7 buckets are too few, the segment becomes a large one, which grows *in place*. A
//! large segment has 16, 32 or 63 buckets in its first page, and then one page more at each step,
//! up to 511 buckets. Growing redistributes the slots; the entries stay where they are.
//!
//! A full segment of 511 buckets splits. A split needs one more bit of each hash than the slots
//! contain. It therefore computes the hashes of the segment's keys again, and prefetches each entry
//! 16 entries ahead. An insert moves the slots of at most one segment (3,679), and the dictionary
//! is never rehashed as a whole. Shrinking reverses these steps and returns unused pages to the
//! kernel.
//!
//! # Ownership
//!
//! A [`Dict`] has one owner, by Rust's rules (in the server, the thread that owns its partition).
//! Only the owner stores into directory, segments and entries. The stores into directory and
//! segments are atomic, because hints may read there. They cost no more than plain stores.
//! [`Hint`]s on other threads load from directory and segments, never from entries, and only to
//! prefetch.
//!
//! Directories and segments lie in memory that is never unmapped and never changes its type. A hint
//! that uses this memory after the owner has freed it reads stale data. That is sound, as the head
//! of `hint.rs` shows. Freed segments, directory blocks and runs return to pools shared by all
//! dictionaries.
//!
//! # Cost
//!
//! Bytes per entry, for `key:12345678` → `value:12345678`:
//!
//! ```text
//! slot    8 bytes / load. A segment grows at a load of 90% by 64 buckets, and splits
//!         into halves with a load of 72%; the average is about 83%                   9.6
//! entry   head 4 + key length 1 + value length 1 + key 12 + value 14, a cell of 32  32.0
//! run     its header's line and its tail: 64 KB hold 2,046 cells of 32               0.0
//! segment its header's line, 64 bytes for about 2,700 entries, and about two
//!         directory words of 8 bytes                                                 0.0
//!                                                                             about 41.6
//! ```
//!
//! An expiry adds 8 bytes. An integer payload takes 8 bytes, and so does the pointer to a heap
//! value. A length field takes 1 byte for a length below 239, 2 bytes below 4,096, and 9 bytes
//! otherwise. Cell sizes are multiples of 4 bytes up to 64, of 8 up to 128, of 16 up to 512, then
//! grow by at most an eighth. For example, a 16-byte key with a 256-byte value needs 4 + 1 + 2 +
//! 272 = 279 bytes and takes a cell of 288. With the slot, the overhead is 26 bytes. A segment of
//! at most 50 entries takes half a kilobyte, a larger one whole pages. Cells of at most 128 bytes
//! start in a run of 1 KB per size; other runs take whole pages. An empty dictionary takes one
//! word, its root, besides the [`Dict`] itself.
//!
//! Measured on a 2-core EPYC (Zen 3) shared with other work, with `cargo run --release -p
//! pantala-dict --example figures`:
//!
//! | measurement | result |
//! | --- | --- |
//! | one lookup at a time, 1 M / 20 M entries | 229 ns / 379 ns |
//! | batched, relative to one at a time | 0.36 / 0.34 |
//! | one at a time, relative to hashbrown (boxed keys and values, same hash) | 0.91 / 0.79 |
//! | most slots moved by one insert while filling 20 M | 3,679 |
//! | resident bytes per key, 20 M pairs `key:N` / `value:N` in 40 dictionaries | 42.5 |
//! | resident bytes beyond key and value, 1 M 16-byte keys with 256-byte values | 23.9 |
//!
//! # Unsafe code
//!
//! `memory` maps, discards and prefetches. `arena` keeps the type-stable memory. `slab` and
//! `record` are the memory of the entries. `bucket` has the vector search and a portable search
//! with the same results. Miri runs all of this code, with the portable search and with small
//! segments:
//!
//! ```text
//! MIRIFLAGS="-Zmiri-permissive-provenance -Zmiri-disable-isolation" \
//!     cargo +nightly miri test -p pantala-dict
//! ```
//!
//! Slots hold the addresses of entries as numbers. As Rust's memory model requires, the code
//! exposes the provenance of each pointer that it stores in a slot, and recovers the provenance
//! when it uses the slot.

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
mod snapshot;
#[cfg(test)]
mod snapshot_tests;
mod table;
#[cfg(test)]
mod testing;

pub use dict::Dict;
pub use entry::{Entry, EntryMut, EntryRef, Extracted, NewPayload, OwnedPayload, Payload, Removed, VacantEntry};
pub use hash::hash_key;
pub use hint::{BucketHint, Hint, Roots};
pub use memory::{prefetch, prefetch_all};
pub use occupancy::Occupancy;
pub use snapshot::{Keeper, Reason};
