//! Pantala's dictionary.
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
pub use hint::{BucketHint, Hint};
