//! A snapshot of the databases: encodes the entries of one instant while commands change them.
//!
//! ```text
//! holder of all shards     begin        each dictionary starts a snapshot (crate `dict`)
//! home workers             walk         entries are encoded into parts, a few buckets at a time
//! commands                 (dict)       an entry is encoded before it changes
//!                             │ parts
//! the snapshot's thread    Input        any order; each part selects its database
//! ```
//!
//! Each dictionary has a *keeper*, which encodes every entry: when the walk reaches the entry, or
//! before a command changes the entry (*forced*). The keeper collects encoded entries in *parts*,
//! which it sends to the snapshot's thread. A large collection is encoded by the walk in pieces,
//! even if commands change it meanwhile. For this, the collection's value starts a *cut*
//! (`pantala_types`), which keeps a copy of each element that changes before the walk has read it.
//! If a command removes the value, the walk continues with the removed value. If a command moves
//! the value to another key, the walk continues there ([`detached`]).
//!
//! | data | bound |
//! | --- | --- |
//! | parts of the walk that the thread has not received | [`QUEUED_BYTES_MAX`], and one part per worker |
//! | empty buffers for parts | [`SUPPLY_MAX`] |
//! | parts forced by changes | the rest of the dataset, because a change does not wait for the disk |
//! | pieces and kept elements of a large entry | the size of the entry, which is written as a whole |
//! | a dictionary that a flush has taken out | kept until the walk has passed it |
//! | a large collection that a command has removed | kept until the walk has encoded it |
//!
//! The snapshot's thread supplies the buffers of parts, before the walk starts, and gets them back.
//! So the page faults of this memory are those of the thread, and no worker waits for them. A page
//! fault can take milliseconds if the kernel has to clear a huge page. A command that changes an
//! entry does not wait for the supply. It then allocates a short buffer.
//!
//! Keepers and detached values hold the sending end for parts. When none of them is left, the
//! thread sees that the snapshot has ended. Only one snapshot runs at a time, like the single child
//! process of Redis.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crossbeam::channel::{Receiver, RecvTimeoutError, Sender, bounded, unbounded};
use pantala_dict::{Dict, EntryRef, Keeper, Payload, Reason};
use pantala_types::rdb_value::cut_id;
use pantala_types::{CutId, CutState, Value};

use pieces::Pieces;

use crate::faults::{self, Fault};
use crate::store::Store;
use crate::store::state::{Databases, Shard};

pub(crate) mod detached;
mod part;
mod pieces;

pub use part::{Next, Part};

/// The walk pauses while parts of more than this number of bytes wait for the snapshot's thread.
pub const QUEUED_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// Size at which a part is handed over, in bytes.
const PART_BYTES: usize = 32 * 1024;

/// Capacity of a new part in bytes, including room for the entry that makes the part full.
const PART_CAPACITY: usize = PART_BYTES + 4 * 1024;

/// Maximum wait of the snapshot's thread for a part. The thread then checks whether the snapshot
/// was aborted.
const WAIT: Duration = Duration::from_millis(20);

/// Time for which a record that the snapshot's thread waits for a CPU is valid.
const WAITS_FOR_CPU: Duration = Duration::from_millis(10);

/// Minimum memory usage in bytes of a collection that is encoded in pieces.
const LARGE_BYTES: usize = 64 * 1024;

/// Number of bytes of entries after which the walk leaves a shard, so that waiting commands can use
/// it. Encoding these bytes takes at most about 200 µs, even with compression.
const STEP_BYTES: usize = 16 * 1024;

/// Size in bytes at which a part is handed over if its buffer was not supplied. Such short buffers
/// seldom need new pages of the worker's heap.
const SHORT_PART_BYTES: usize = 4 * 1024;

/// Capacity of such a buffer in bytes.
const SHORT_PART_CAPACITY: usize = SHORT_PART_BYTES + 1024;

/// Number of parts of [`QUEUED_BYTES_MAX`] bytes.
const QUEUED_PARTS: usize = QUEUED_BYTES_MAX as usize / PART_BYTES;

/// Maximum number of empty buffers for parts.
const SUPPLY_MAX: usize = 2 * QUEUED_PARTS;

/// Minimum number of keys that need another part, if many of them have long values.
const KEYS_PER_PART: usize = 16;

/// Encodes the entries of a snapshot.
pub trait Encoder: Send + Sync {
    /// Appends the selection of a database, with which each part starts.
    fn select(&self, db: u32, part: &mut Vec<u8>);

    /// Appends an entry unless it had expired when the snapshot started. Returns whether the entry
    /// was appended. `is_forced` is true if a command waits for the call.
    fn append(&self, entry: EntryRef<'_, Value>, is_forced: bool, part: &mut Vec<u8>) -> bool;

    /// Appends the head of an entry and starts a cut of its value. Returns false, without having
    /// appended anything, if the entry had expired or its value does not support cuts.
    fn begin_cut(&self, entry: EntryRef<'_, Value>, part: &mut Vec<u8>) -> bool;

    /// Appends a piece of a value's cut.
    fn append_cut(&self, value: &Value, part: &mut Vec<u8>) -> CutState;

    /// Ends the cut of a value, if one runs, because the snapshot has failed.
    fn end_cut(&self, value: &Value);
}

/// Progress of a snapshot.
#[derive(Debug)]
pub struct Progress {
    began: Instant,
    queued_bytes: AtomicU64,
    /// Capacity of all buffers that the snapshot's thread has supplied, in bytes.
    supplied_bytes: AtomicU64,
    /// Bytes of the pieces of large entries that are not completely encoded.
    open_bytes: AtomicU64,
    forced_bytes: AtomicU64,
    is_discarding: AtomicBool,
    /// Time until which the snapshot's thread counts as waiting for a CPU, in µs after `began`.
    waits_for_cpu_until_us: AtomicU64,
    /// Whether the snapshot's thread has supplied the first buffers.
    is_supplied: AtomicBool,
    is_abandoned: AtomicBool,
    is_incomplete: AtomicBool,
}

impl Default for Progress {
    fn default() -> Self {
        Progress {
            began: Instant::now(),
            queued_bytes: AtomicU64::new(0),
            supplied_bytes: AtomicU64::new(0),
            open_bytes: AtomicU64::new(0),
            forced_bytes: AtomicU64::new(0),
            waits_for_cpu_until_us: AtomicU64::new(0),
            is_discarding: AtomicBool::new(false),
            is_supplied: AtomicBool::new(false),
            is_abandoned: AtomicBool::new(false),
            is_incomplete: AtomicBool::new(false),
        }
    }
}

impl Progress {
    /// Returns the number of bytes that were encoded because of changes. With a forked process, as
    /// in Redis, the kernel would have copied the memory of these entries.
    pub fn forced_bytes(&self) -> u64 {
        self.forced_bytes.load(Relaxed)
    }

    /// Returns the memory of the encoded bytes that the snapshot's thread has not received, and of
    /// its empty buffers, in bytes.
    pub fn kept_bytes(&self) -> u64 {
        // The bytes that wait are mostly in supplied buffers, so only the larger sum counts.
        let buffers_bytes = self.queued_bytes.load(Relaxed).max(self.supplied_bytes.load(Relaxed));
        buffers_bytes + self.open_bytes.load(Relaxed)
    }

    /// Makes the walk skip the encoding of the remaining entries, because the snapshot has failed.
    pub fn discard(&self) {
        self.is_discarding.store(true, Relaxed);
    }

    /// Makes the snapshot's thread see the end of the snapshot although the walk has not ended.
    /// Called when no worker walks any more.
    pub fn abandon(&self) {
        self.is_abandoned.store(true, Relaxed);
    }

    /// Returns whether elements of an entry could not be encoded. This is a bug, and the snapshot
    /// must not be used.
    pub fn is_incomplete(&self) -> bool {
        self.is_incomplete.load(Relaxed)
    }

    /// Returns whether parts of more than twice [`QUEUED_BYTES_MAX`] wait. Changes can cause this
    /// even while the walk pauses. The snapshot's thread must not pause then.
    pub fn is_flooded(&self) -> bool {
        self.queued_bytes.load(Relaxed) > 2 * QUEUED_BYTES_MAX
    }

    /// Records that the snapshot's thread mostly waits for a CPU. Called again while that is so.
    pub fn note_waits_for_cpu(&self) {
        let until = self.began.elapsed() + WAITS_FOR_CPU;
        self.waits_for_cpu_until_us.store(until.as_micros() as u64, Relaxed);
    }

    /// Returns whether workers should leave CPU time to the snapshot's thread: their changes queue
    /// parts faster than the thread gets CPU time to write them. A thread that waits for the disk
    /// records nothing, so it is not starved.
    fn is_starved(&self) -> bool {
        let until_us = self.waits_for_cpu_until_us.load(Relaxed);
        self.is_flooded() && (self.began.elapsed().as_micros() as u64) < until_us
    }

    /// Returns whether the walk should pause until the snapshot's thread has caught up or has
    /// supplied the first buffers.
    fn is_full(&self) -> bool {
        let is_ahead = self.queued_bytes.load(Relaxed) > QUEUED_BYTES_MAX || !self.is_supplied.load(Relaxed);
        is_ahead && !self.is_discarding.load(Relaxed)
    }
}

/// The receiving end of a snapshot, for its thread.
pub struct Input {
    parts: Receiver<Part>,
    empty: Sender<Vec<u8>>,
    /// Keeps the empty buffers when the shards have dropped their end. So the snapshot's thread,
    /// which has allocated them, frees them, and its heap is empty when it ends.
    _buffers: Receiver<Vec<u8>>,
    progress: Arc<Progress>,
}

impl Input {
    /// Supplies empty buffers for parts. The walk waits for this call. The pages of the buffers are
    /// resident afterwards.
    pub fn supply(&self) {
        let room = self.empty.capacity().unwrap_or(0);
        for _ in self.empty.len()..room {
            // Not zeros: the kernel could supply those without a page.
            let mut buffer = vec![1; PART_CAPACITY];
            buffer.clear();
            if self.empty.try_send(buffer).is_err() {
                break;
            }
            self.progress.supplied_bytes.fetch_add(PART_CAPACITY as u64, Relaxed);
        }
        self.progress.is_supplied.store(true, Relaxed);
    }

    /// Waits up to [`WAIT`] for the next part.
    pub fn next_part(&self) -> Next {
        match self.parts.recv_timeout(WAIT) {
            Ok(part) => {
                self.progress.queued_bytes.fetch_sub(part.len(), Relaxed);
                Next::Part(part)
            }
            Err(RecvTimeoutError::Timeout) if !self.progress.is_abandoned.load(Relaxed) => Next::Later,
            Err(_) => Next::End,
        }
    }

    /// Keeps the buffer of a part for another part.
    pub fn recycle(&self, mut bytes: Vec<u8>) {
        if (PART_CAPACITY..=2 * PART_CAPACITY).contains(&bytes.capacity()) {
            bytes.clear();
            // If enough buffers are already kept, this one is freed.
            let _ = self.empty.try_send(bytes);
        }
    }

    /// Returns the progress of the snapshot.
    pub fn progress(&self) -> &Arc<Progress> {
        &self.progress
    }
}

/// The sending end of a snapshot, for the shards.
struct Output {
    encoder: Box<dyn Encoder>,
    parts: Sender<Part>,
    empty: Receiver<Vec<u8>>,
    progress: Arc<Progress>,
    /// Pieces of large entries that are not completely encoded, by the cut of the value.
    open: Mutex<HashMap<CutId, Pieces>>,
}

impl Output {
    fn open(&self) -> MutexGuard<'_, HashMap<CutId, Pieces>> {
        // Each piece is added by one operation, so a panic leaves a valid map.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a large entry with its encoded head.
    fn open_entry(&self, id: CutId, head: Vec<u8>) {
        self.progress.open_bytes.fetch_add(head.len() as u64, Relaxed);
        self.open().insert(id, Pieces::starting_with(head));
    }

    /// Drops the pieces of a large entry.
    fn drop_entry(&self, id: CutId) {
        let pieces = self.open().remove(&id).unwrap_or_default();
        self.progress.open_bytes.fetch_sub(pieces.bytes(), Relaxed);
    }

    /// Encodes a piece of a large entry, and sends the entry after its last piece.
    fn encode_piece(&self, id: CutId, value: &Value) -> CutState {
        // The caller holds the value, so no other thread uses the entry, and the other entries are
        // not locked meanwhile.
        let mut pieces = self.open().remove(&id).unwrap_or_default();
        let before_bytes = pieces.bytes();
        let state = pieces.append(|buffer| self.encoder.append_cut(value, buffer));
        if state == CutState::More {
            self.progress.open_bytes.fetch_add(pieces.bytes() - before_bytes, Relaxed);
            self.open().insert(id, pieces);
            return state;
        }
        if state == CutState::Lost {
            debug_assert!(false, "a value has lost its cut");
            self.progress.is_incomplete.store(true, Relaxed);
        }
        let mut buffers = pieces.into_buffers().into_iter();
        self.send(Part { bytes: buffers.next().unwrap_or_default(), more: buffers.collect(), keys: 1 });
        self.progress.open_bytes.fetch_sub(before_bytes, Relaxed);
        state
    }

    /// Ends the cut of a value, if one runs, because the snapshot has failed.
    fn abandon_cut(&self, value: &Value) {
        if let Some(id) = cut_id(value) {
            self.drop_entry(id);
            self.encoder.end_cut(value);
        }
    }

    fn send(&self, part: Part) {
        self.progress.queued_bytes.fetch_add(part.len(), Relaxed);
        // Sending does not fail, because the snapshot's thread receives until the end, even if the
        // snapshot has failed.
        let _ = self.parts.send(part);
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        // If an entry is still open, its value was freed before its cut was completely read, which
        // is a bug.
        if !self.open().is_empty() {
            self.progress.is_incomplete.store(true, Relaxed);
        }
    }
}

/// Starts a snapshot, shard by shard, while all shards are held.
pub(crate) struct SnapshotStart {
    output: Arc<Output>,
}

impl SnapshotStart {
    /// Prepares the snapshot of a number of dictionaries, which have `keys` keys in total.
    pub(crate) fn new(encoder: Box<dyn Encoder>, dicts: usize, keys: usize) -> (Self, Input) {
        let (full, parts) = unbounded();
        // Each dictionary has a part that is not yet full.
        let buffers = dicts.min(keys) + QUEUED_PARTS.min(keys / KEYS_PER_PART);
        let (recycled, empty) = bounded(buffers.min(SUPPLY_MAX));
        let progress = Arc::<Progress>::default();
        let input = Input { parts, empty: recycled, _buffers: empty.clone(), progress: Arc::clone(&progress) };
        let output = Output { encoder, parts: full, empty, progress, open: Mutex::default() };
        (SnapshotStart { output: Arc::new(output) }, input)
    }

    /// Starts the snapshot of a shard. The shard may still have the walk of the previous snapshot,
    /// although that snapshot has ended. The snapshot's thread sees the end when the last keeper is
    /// dropped, but a walk is removed only by its next step.
    ///
    /// # Panics
    /// If a snapshot of the shard is running.
    pub(crate) fn begin(&self, store: &Store, shard: &mut Shard) {
        store.detached.begin(&self.output);
        if let Some(former) = shard.snapshot.take() {
            former.end(store, &shard.databases);
        }
        let mut walks = Vec::new();
        for (physical, database) in shard.databases.used() {
            if database.dict.is_empty() {
                continue;
            }
            let (db, output) = (store.logical(physical), Arc::clone(&self.output));
            database.dict.begin_snapshot(DictKeeper { output, db, part: Vec::new(), keys: 0, step_bytes: 0 });
            walks.push(Walk { place: Place::Live(physical), cursor: 0 });
        }
        if !walks.is_empty() {
            shard.snapshot = Some(Box::new(ShardSnapshot { walks, progress: Arc::clone(&self.output.progress) }));
        }
    }
}

/// Encodes the entries of a dictionary and hands over full parts.
struct DictKeeper {
    output: Arc<Output>,
    /// Logical number of the database when the snapshot started.
    db: u32,
    part: Vec<u8>,
    keys: u64,
    /// Bytes of entries, before compression, since the walk last left the shard.
    step_bytes: usize,
}

impl Keeper<Value> for DictKeeper {
    fn keep(&mut self, entry: EntryRef<'_, Value>, reason: Reason) -> bool {
        let is_forced = reason != Reason::Walk;
        let heap = if let Payload::Heap(value) = entry.payload() { Some(value) } else { None };
        if self.output.progress.is_discarding.load(Relaxed) || is_forced && faults::hits(Fault::UnkeptEntry) {
            heap.into_iter().for_each(|value| self.output.abandon_cut(value));
            return true;
        }
        if let Some(value) = heap
            && let Some(is_kept) = self.keep_in_pieces(entry, value, reason)
        {
            return is_kept;
        }
        let Output { encoder, empty, progress, .. } = &*self.output;
        // Not `is_empty`: an encoder may append nothing.
        if self.part.capacity() == 0 {
            self.part = empty.try_recv().unwrap_or_else(|_| Vec::with_capacity(SHORT_PART_CAPACITY));
            encoder.select(self.db, &mut self.part);
        }
        let before = self.part.len();
        self.keys += u64::from(encoder.append(entry, is_forced, &mut self.part));
        let encoded_bytes = self.part.len() - before;
        if is_forced {
            progress.forced_bytes.fetch_add(encoded_bytes as u64, Relaxed);
        } else {
            self.step_bytes += heap.map_or(encoded_bytes, |value| value.allocated_bytes().max(encoded_bytes));
        }
        let is_supplied = self.part.capacity() >= PART_CAPACITY;
        if self.part.len() >= if is_supplied { PART_BYTES } else { SHORT_PART_BYTES } {
            self.hand_over();
        }
        true
    }

    fn needs_pause(&mut self) -> bool {
        let pauses = self.step_bytes >= STEP_BYTES;
        self.step_bytes = if pauses { 0 } else { self.step_bytes };
        pauses
    }
}

impl DictKeeper {
    /// Keeps a large collection in pieces. Starts its cut on the first call, and encodes a piece if
    /// the walk has reached the entry. Returns `None` if the entry must be encoded as a whole.
    /// Otherwise returns whether the keeper is done with the entry: if not, the dictionary passes
    /// it to the keeper again.
    fn keep_in_pieces(&self, entry: EntryRef<'_, Value>, value: &Value, reason: Reason) -> Option<bool> {
        let Output { encoder, .. } = &*self.output;
        // The size is checked only before the cut starts, because a collection may shrink
        // afterwards.
        let id = match cut_id(value).filter(|id| self.output.open().contains_key(id)) {
            Some(id) => id,
            None if value.allocated_bytes() < LARGE_BYTES => return None,
            None => {
                let mut head = Vec::new();
                encoder.select(self.db, &mut head);
                if !encoder.begin_cut(entry, &mut head) {
                    return None;
                }
                let id = cut_id(value)?;
                self.output.open_entry(id, head);
                id
            }
        };
        match reason {
            // The cut keeps the elements that change.
            Reason::Change => Some(false),
            // The cut remains part of the removed value, which is read later (`detached`).
            Reason::Removal => Some(true),
            Reason::Walk => Some(self.output.encode_piece(id, value) != CutState::More),
        }
    }

    fn hand_over(&mut self) {
        let (bytes, keys) = (std::mem::take(&mut self.part), std::mem::take(&mut self.keys));
        if keys > 0 {
            self.output.send(Part { bytes, more: Vec::new(), keys });
        }
    }
}

impl Drop for DictKeeper {
    fn drop(&mut self) {
        self.hand_over();
    }
}

/// The part of a shard's snapshot that is still to be walked.
pub(crate) struct ShardSnapshot {
    walks: Vec<Walk>,
    progress: Arc<Progress>,
}

impl ShardSnapshot {
    /// Ends a snapshot that has no dictionary left to walk.
    ///
    /// # Panics
    /// If the snapshot is still running.
    fn end(self, store: &Store, databases: &Databases) {
        for Walk { place, .. } in self.walks {
            let is_running = match &place {
                Place::Live(physical) => {
                    databases.get(*physical).is_some_and(|database| database.dict.is_in_snapshot())
                }
                Place::Taken(dict) => dict.is_in_snapshot(),
            };
            assert!(!is_running, "one snapshot at a time");
            if let Place::Taken(dict) = place {
                store.dispose_dict(*dict);
            }
        }
    }
}

/// The walk over one dictionary.
struct Walk {
    place: Place,
    cursor: u64,
}

enum Place {
    /// In the shard's databases, at this index.
    Live(usize),
    /// Taken out of its database by a flush.
    Taken(Box<Dict<Value>>),
}

/// Result of a step of a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// The walk continues.
    More,
    /// The walk has ended.
    Ended,
    /// The walk pauses until the snapshot's thread has caught up.
    Full,
    /// Like `Full`, but the thread is behind because it has to wait for a CPU.
    Starved,
}

/// Walks over at most `buckets` buckets of a shard, and about [`STEP_BYTES`] of entries.
pub(crate) fn walk(store: &Store, shard: &mut Shard, buckets: usize) -> Step {
    let Some(snapshot) = &mut shard.snapshot else { return Step::Ended };
    if snapshot.progress.is_full() {
        return if snapshot.progress.is_starved() { Step::Starved } else { Step::Full };
    }
    let Some(Walk { place, cursor }) = snapshot.walks.last_mut() else {
        shard.snapshot = None;
        return Step::Ended;
    };
    let dict = match place {
        Place::Live(physical) => shard.databases.get_mut(*physical).map(|database| &mut database.dict),
        Place::Taken(dict) => Some(&mut **dict),
    };
    if let Some(dict) = dict.filter(|dict| dict.is_in_snapshot()) {
        if let Some(next) = dict.walk_snapshot(*cursor, buckets) {
            *cursor = next;
            return Step::More;
        }
        dict.end_snapshot();
    }
    if let Some(Walk { place: Place::Taken(dict), .. }) = snapshot.walks.pop() {
        store.dispose_dict(*dict);
    }
    Step::More
}

/// Takes over a dictionary that a flush has taken out of a database (`physical`), if a snapshot
/// runs on the dictionary. Returns the dictionary if no snapshot runs.
pub(crate) fn keep_taken(shard: &mut Shard, physical: usize, dict: Dict<Value>) -> Option<Dict<Value>> {
    if !dict.is_in_snapshot() {
        return Some(dict);
    }
    let walks = shard.snapshot.iter_mut().flat_map(|snapshot| &mut snapshot.walks);
    for walk in walks {
        if matches!(walk.place, Place::Live(at) if at == physical) {
            walk.place = Place::Taken(Box::new(dict));
            return None;
        }
    }
    Some(dict)
}
