//! A *cut* is a large value as it was when the running snapshot started. The walk over the
//! dictionary encodes the cut in pieces while commands change the value ([`super`]). If a command
//! removes the value or moves it to another key, the walk does not reach the value any more. This
//! module has the list of these values.
//!
//! A removed value ([`Store::dispose`]) is kept until the walk has read its cut. A value that was
//! moved to another key is looked up at that key, because commands can still change or remove it.
//! The snapshot does not end before all values in this list have been read. Any worker reads
//! removed values. The home of a shard (the worker that does the shard's periodic work) reads the
//! values that were moved to that shard.
//!
//! Like memory that waits for [`lazyfree`](crate::store::lazyfree), the memory of removed values is
//! not part of `used_memory`. Otherwise the eviction of a large value would not lower
//! `used_memory`, and other keys would be evicted as well.

use std::collections::VecDeque;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

use pantala_dict::{Dict, Payload};
use pantala_types::rdb_value::cut_id;
use pantala_types::{CutId, CutState, Value};

use super::{Output, Step};
use crate::command::{Key, KeyPlace};
use crate::store::Store;
use crate::store::state::{Database, Shard};

/// The values of the running snapshot that have left their entries.
#[derive(Default)]
pub(crate) struct Detached {
    /// The running snapshot, if any.
    output: Mutex<Weak<Output>>,
    values: Mutex<VecDeque<Loose>>,
}

/// A value whose cut is read outside the dictionary's walk.
pub(crate) struct Loose {
    cut: CutId,
    output: Arc<Output>,
    place: Place,
}

enum Place {
    /// Removed from the dataset.
    Removed(Value),
    /// Moved to a key of a physical database.
    Moved { physical: usize, place: KeyPlace, key: Box<[u8]> },
}

impl Detached {
    /// Starts a snapshot. All values of the previous snapshot must have been read.
    pub(super) fn begin(&self, output: &Arc<Output>) {
        *lock(&self.output) = Arc::downgrade(output);
    }

    /// Keeps a removed value if the snapshot still has to read its cut. Otherwise returns the
    /// value.
    pub(crate) fn keep(&self, value: Value) -> Option<Value> {
        let Some(cut) = cut_id(&value) else { return Some(value) };
        // Without a running snapshot, the cut is left over from a failed snapshot.
        let Some(output) = lock(&self.output).upgrade() else { return Some(value) };
        lock(&self.values).push_back(Loose { cut, output, place: Place::Removed(value) });
        None
    }

    /// Notes that the value with this cut was moved to a key of a physical database. The key's
    /// shard must be held. The caller must then wake the shard's home.
    pub(crate) fn follow(&self, cut: CutId, physical: usize, key: &Key<'_>) {
        let Some(output) = lock(&self.output).upgrade() else { return };
        let place = Place::Moved { physical, place: key.place, key: key.bytes.into() };
        lock(&self.values).push_back(Loose { cut, output, place });
    }

    /// Takes the moved values of this list out of a dictionary that is about to be freed, and keeps
    /// them as removed values. The dictionary belonged to database `physical` of shard `shard`.
    pub(crate) fn take_out(&self, shard: u32, physical: usize, dict: &mut Dict<Value>) {
        for loose in &mut *lock(&self.values) {
            if let Place::Moved { physical: at, place, key } = &loose.place
                && (*at, place.shard) == (physical, shard)
                && dict.find(place.hash, key).is_some_and(|entry| has_cut(entry.payload(), loose.cut))
                && let Some(value) = dict.remove(place.hash, key).and_then(|removed| removed.into_heap())
            {
                loose.place = Place::Removed(value);
            }
        }
    }

    /// Removes and returns the next value that the caller may read: a removed value, or a value in
    /// a shard for which `is_home` returns true.
    pub(crate) fn next(&self, is_home: impl Fn(u32) -> bool) -> Option<Loose> {
        let mut values = lock(&self.values);
        let at = values.iter().position(|loose| loose.shard().is_none_or(&is_home))?;
        values.remove(at)
    }

    /// Adds a value again that has not been read completely.
    pub(crate) fn put_back(&self, loose: Loose) {
        lock(&self.values).push_back(loose);
    }
}

impl Loose {
    /// Returns the shard that must be held to read the value; `None` for a removed value.
    pub(crate) fn shard(&self) -> Option<u32> {
        match &self.place {
            Place::Removed(_) => None,
            Place::Moved { place, .. } => Some(place.shard),
        }
    }

    /// Reads pieces of the value until a point in time. `shard` is the state of the shard that
    /// [`Self::shard`] returns.
    pub(crate) fn read(&self, shard: Option<&mut Shard>, until: Instant) -> Step {
        let Loose { cut, output, place } = self;
        let value = match place {
            Place::Removed(value) => value,
            Place::Moved { physical, place, key } => {
                let database = shard.and_then(|shard| shard.databases.get(*physical));
                let entry = database.and_then(|Database { dict, .. }| dict.find(place.hash, key));
                match entry.map(|entry| entry.payload()) {
                    Some(Payload::Heap(value)) if cut_id(value) == Some(*cut) => value,
                    // The value was moved again or removed, and was then added to the list again.
                    _ => return Step::Ended,
                }
            }
        };
        loop {
            if output.progress.is_discarding.load(Relaxed) {
                output.abandon_cut(value);
                return Step::Ended;
            }
            if output.progress.is_full() {
                return Step::Full;
            }
            if output.encode_piece(*cut, value) != CutState::More {
                return Step::Ended;
            }
            if Instant::now() >= until {
                return Step::More;
            }
        }
    }

    /// Frees a removed value in the background. The caller has read the value's cut.
    pub(crate) fn free(self, store: &Store) {
        if let Place::Removed(value) = self.place {
            store.dispose(value, true);
        }
    }
}

fn has_cut(payload: Payload<'_, Value>, cut: CutId) -> bool {
    matches!(payload, Payload::Heap(value) if cut_id(value) == Some(cut))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No panic can leave a list or a reference invalid.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
