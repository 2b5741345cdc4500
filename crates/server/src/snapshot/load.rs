//! Loads an RDB file. One thread reads the file and finds the boundaries of its entries. Loader
//! threads decode and store the entries. Each loader stores the entries of its own shards.
//!
//! ```text
//! thread that reads               loaders, each with a part of the shards
//!   reads 1 MiB, checks CRC64
//!   finds entries            ──►  batches of 256 KiB, at most 4 queued for each loader
//!                                   decode, store
//! ```
//!
//! The first error ends the load. The dataset is then incomplete, and the caller must not serve it.

use std::fs::File;
use std::io::{self, Read};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use pantala_engine::functions::{Functions, LibraryChange, RestorePolicy};
use pantala_engine::ownership::Ownership;
use pantala_engine::whole::{Part, Whole};
use pantala_persistence::rdb::{Entry, Error, Fault, Next, Piece, Reader};
use pantala_replication::ReplId;
use pantala_types::rdb_value::{Dialect, Limits};

use super::loading::Watched;
use crate::host::Server;

/// Bytes per read.
const INPUT_BYTES: usize = 1024 * 1024;
/// Size at which a batch is sent, bytes.
const BATCH_BYTES: usize = 256 * 1024;
/// Maximum number of batches queued for one loader.
const BATCHES_MAX: usize = 4;
/// Maximum number of loaders. More loaders would only wait for the thread that reads.
const LOADERS_MAX: usize = 8;
/// Strings up to this length are loaded even if `proto-max-bulk-len` is lower, bytes.
const STRING_BYTES_MIN: u64 = 512 * 1024 * 1024;
/// Maximum number of empty keys whose names are logged.
const EMPTY_KEYS_LOGGED: u64 = 10;

/// The reason why a file was not loaded.
#[derive(Debug)]
pub enum LoadError {
    /// Reading failed.
    Io(io::Error),
    /// The file is damaged or unsupported.
    Wrong(Error),
}

impl std::fmt::Display for LoadError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            LoadError::Io(error) => write!(f, "{error}"),
            LoadError::Wrong(error) => write!(f, "{error}"),
        }
    }
}

impl From<io::Error> for LoadError {
    fn from(error: io::Error) -> Self {
        LoadError::Io(error)
    }
}

impl From<Error> for LoadError {
    fn from(error: Error) -> Self {
        LoadError::Wrong(error)
    }
}

/// A loader's treatment of the entries of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Duty {
    /// Store the entries. An existing key is an error.
    Store,
    /// Store the entries, which replace the values of existing keys.
    Replace,
    /// Decode and drop the entries. An existing key is an error.
    CheckNew,
    /// Decode and drop the entries.
    Check,
}

/// Texts of a file's function libraries, with their offsets in the file.
pub type Libraries = Vec<(u64, Vec<u8>)>;

/// Counts over all loaders.
#[derive(Debug, Default)]
pub struct Counts {
    /// Number of keys that were stored or, with [`Duty::Check`] or [`Duty::CheckNew`], only
    /// decoded.
    pub loaded: AtomicU64,
    /// Number of expired keys, which are not loaded.
    pub expired: AtomicU64,
    empty: AtomicU64,
    /// Whether the file states its place in a replication history. If so, expired keys are loaded
    /// too, because the history's replicas have not received the deletions of these keys yet.
    continues: AtomicBool,
    /// The file's place in a replication history.
    place: Mutex<Place>,
}

/// A file's place in a replication history, from the auxiliary fields `repl-id`, `repl-offset` and
/// `repl-stream-db`.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    id: Option<ReplId>,
    offset: Option<u64>,
    /// The database that the replication stream has selected (`repl-stream-db`).
    db: Option<u32>,
}

impl Counts {
    /// Returns the database that the replication stream has selected at the snapshot's offset, if
    /// the file states it.
    pub fn stream_db(&self) -> Option<u32> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner).db
    }

    /// Records the value of the auxiliary field `name`, if this field is a part of the file's
    /// place.
    fn note_place(&self, name: &[u8], value: &[u8]) {
        let mut place = self.place.lock().unwrap_or_else(PoisonError::into_inner);
        match name {
            b"repl-id" => place.id = ReplId::parse(value),
            b"repl-offset" => place.offset = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok()),
            b"repl-stream-db" => place.db = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok()),
            _ => {}
        }
        if place.id.is_some() && place.offset.is_some() {
            self.continues.store(true, Relaxed);
        }
    }
}

/// Returns whether there is a snapshot file to load at startup.
pub fn has_snapshot(server: &Server) -> bool {
    // If the file can't be examined, the load will report the error.
    super::path_of(&server.config().settings()).try_exists().unwrap_or(true)
}

/// Loads the snapshot file at startup, if it exists. `owned` must hold all shards.
///
/// # Errors
/// Returns the reason why an existing snapshot can't be loaded, as text for the operator. The
/// server must not continue.
pub fn load_at_start(server: &Server, owned: &mut [Ownership]) -> Result<(), String> {
    let path = super::path_of(&server.config().settings());
    let fatal = |error: &dyn std::fmt::Display| {
        format!("Fatal error loading the DB, check server logs. {}: {error}. Exiting.", path.display())
    };
    let file = match File::open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(fatal(&error)),
    };
    let began = Instant::now();
    server.snapshots().loading.note_total_bytes(file.metadata().map_or(0, |data| data.len()));
    let mut whole = server.keyspace().whole(owned, server.now_ms());
    let loaded = load(server, &file, &mut whole, Duty::Store).and_then(|Loaded { libraries, counts, .. }| {
        whole.measure();
        restore_libraries(server, libraries, RestorePolicy::Append)?;
        Ok(counts)
    });
    let counts = loaded.map_err(|error| fatal(&error))?;
    server.snapshots().note_loaded(&counts);
    server.snapshots().set_unsaved_changes(server.keyspace(), 0);
    let place = *counts.place.lock().unwrap_or_else(PoisonError::into_inner);
    if let Place { id: Some(id), offset: Some(offset), db } = place {
        let db = db.filter(|db| *db < server.keyspace().databases()).unwrap_or(0);
        server.replication().continue_saved_history(server, id, offset, db);
    }
    tracing::info!("DB loaded from disk: {:.3} seconds", began.elapsed().as_secs_f64());
    Ok(())
}

/// Restores the libraries of a file. `policy` decides whether they are added to the server's
/// libraries or replace them.
///
/// # Errors
/// A library is invalid, or `policy` is [`RestorePolicy::Append`] and a library already exists. In
/// both cases the server's libraries are unchanged.
pub fn restore_libraries(server: &Server, libraries: Libraries, policy: RestorePolicy) -> Result<(), LoadError> {
    let offset = libraries.first().map_or(0, |(offset, _)| *offset);
    let texts: Vec<Vec<u8>> = libraries.into_iter().map(|(_, text)| text).collect();
    let restored = match (texts.is_empty(), policy) {
        (false, policy) => server.restore(&texts, None, policy, &LibraryChange::loaded()),
        (true, RestorePolicy::Flush) => server.flush(&LibraryChange::loaded()),
        (true, RestorePolicy::Append | RestorePolicy::Replace) => Ok(()),
    };
    restored.map_err(|why| {
        let why = String::from_utf8_lossy(why.strip_prefix(b"ERR ").unwrap_or(&why)).into_owned();
        LoadError::Wrong(Error { offset, fault: Fault::Function(why) })
    })
}

/// The content of a file besides its keys, and counts of its keys.
pub struct Loaded {
    /// The file's function libraries. They are not restored yet.
    pub libraries: Libraries,
    /// Counts of the file's keys.
    pub counts: Counts,
    /// The offset of the end of the RDB data. In an append-only file, commands may follow.
    pub end: u64,
}

/// Reads a file and processes its entries according to `duty`.
///
/// # Errors
/// The file can't be read or is damaged. Some of its entries may have been stored.
pub fn load(server: &Server, file: &File, whole: &mut Whole<'_>, duty: Duty) -> Result<Loaded, LoadError> {
    let file_bytes = file.metadata()?.len();
    load_from(server, Watched { file, server }, Some(file_bytes), whole, duty)
}

/// Reads a snapshot from a source and processes its entries according to `duty`. `total_bytes` is
/// the snapshot's length, if known.
///
/// # Errors
/// The source fails, or the snapshot is damaged. Some of its entries may have been stored.
pub fn load_from(
    server: &Server,
    source: impl Read,
    total_bytes: Option<u64>,
    whole: &mut Whole<'_>,
    duty: Duty,
) -> Result<Loaded, LoadError> {
    load_all(server, (total_bytes, source), Vec::<(_, io::Empty)>::new(), whole, duty)
}

/// Reads the parts of a replication snapshot at the same time, each on a thread of its own, and
/// processes their entries according to `duty`. Each part is a complete file, given with its
/// length. The first part states the snapshot's place in a replication history.
///
/// # Errors
/// The same as for [`load_from`].
///
/// # Panics
/// If there are no parts.
pub fn load_parts<S: Read + Send>(
    server: &Server,
    mut parts: Vec<(Option<u64>, S)>,
    whole: &mut Whole<'_>,
    duty: Duty,
) -> Result<Loaded, LoadError> {
    let others = parts.split_off(1);
    load_all(server, parts.remove(0), others, whole, duty)
}

/// Reads a source on this thread, and the others on threads of their own.
fn load_all<S: Read + Send>(
    server: &Server,
    (total_bytes, source): (Option<u64>, impl Read),
    others: Vec<(Option<u64>, S)>,
    whole: &mut Whole<'_>,
    duty: Duty,
) -> Result<Loaded, LoadError> {
    let settings = server.config().settings();
    let limits = load_limits(server.keyspace().tuning.rdb_limits());
    let checks = settings.rdb_checksum && !server.keyspace().tuning.skips_checksums.load(Relaxed);
    let databases = server.keyspace().databases();
    let reader_of = |bytes: Option<u64>| Reader::new(bytes, databases, limits.string_bytes_max, checks);
    let counts = Counts::default();
    // The other parts have no auxiliary fields, and may be read before those of the first.
    counts.continues.store(!others.is_empty(), Relaxed);
    let (now_ms, policy) = (whole.now_ms(), server.keyspace().tuning.access_policy());
    let loader = Loader { limits, now_ms, policy, duty, counts: &counts, server };
    // One loader suffices for a small snapshot.
    let is_small = others.is_empty() && total_bytes.is_some_and(|bytes| bytes <= BATCH_BYTES as u64);
    let threads = if is_small { 1 } else { settings.workers.min(LOADERS_MAX) };
    let keyspace = server.keyspace();
    let parts = whole.parts(threads);
    let firsts: Vec<u32> = parts.iter().map(Part::first_shard).collect();
    let part_of = &|key: &[u8]| firsts.partition_point(|first| *first <= keyspace.place(key).shard) - 1;
    let (libraries, end) = std::thread::scope(|scope| {
        let mut loaders = Vec::new();
        let mut senders = Vec::new();
        for mut part in parts {
            let (sender, batches) = mpsc::sync_channel(BATCHES_MAX);
            let loader = &loader;
            let run = move || loader.run(&mut part, &batches);
            let thread = std::thread::Builder::new().name("pantala-loader".into()).spawn_scoped(scope, run)?;
            loaders.push(thread);
            senders.push(sender);
        }
        let queues = || -> Vec<LoaderQueue> { senders.iter().map(LoaderQueue::new).collect() };
        let mut readers = Vec::new();
        for (bytes, source) in others {
            let (reader, queues, loader) = (reader_of(bytes), queues(), &loader);
            let run = move || read_all(source, reader, queues, loader, part_of);
            readers.push(std::thread::Builder::new().name("pantala-reader".into()).spawn_scoped(scope, run)?);
        }
        let mut read = read_all(source, reader_of(total_bytes), queues(), &loader, part_of);
        for other in readers {
            let other = other.join().unwrap_or_else(|_| Err(io::Error::other("a reader has panicked").into()));
            read = match (read, other) {
                (Ok((mut libraries, end)), Ok((more, _))) => {
                    libraries.extend(more);
                    Ok((libraries, end))
                }
                (Err(error), _) | (Ok(_), Err(error)) => Err(error),
            };
        }
        drop(senders);
        let stored = loaders
            .into_iter()
            .map(|loader| loader.join().unwrap_or(Err(Error { offset: 0, fault: Fault::OutOfMemory })));
        // Returns the error with the lowest offset, because the others may be consequences of it.
        match stored.filter_map(Result::err).min_by_key(|error| error.offset) {
            Some(error) => Err(LoadError::Wrong(error)),
            None => read,
        }
    })?;
    Ok(Loaded { libraries, counts, end })
}

/// Returns the limits for files. A file may contain strings that were stored with a higher
/// `proto-max-bulk-len`, so the maximum length of strings is at least [`STRING_BYTES_MIN`].
pub fn load_limits(limits: Limits) -> Limits {
    Limits { string_bytes_max: limits.string_bytes_max.max(STRING_BYTES_MIN), ..limits }
}

/// Reads to the end of the snapshot and sends its entries to the loaders. Returns the libraries and
/// the offset of the snapshot's end.
fn read_all(
    mut source: impl Read,
    mut reader: Reader,
    mut queues: Vec<LoaderQueue>,
    loader: &Loader<'_>,
    part_of: impl Fn(&[u8]) -> usize,
) -> Result<(Libraries, u64), LoadError> {
    let mut input = vec![0; INPUT_BYTES];
    let mut libraries = Libraries::new();
    loop {
        match reader.next_piece()? {
            Next::NeedsInput => match source.read(&mut input) {
                Ok(0) => reader.end_input(),
                Ok(len) => reader.feed(&input[..len])?,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            },
            Next::Piece(_, Piece::Aux(name, value)) => {
                log_aux(name, value);
                loader.counts.note_place(name, value);
                if name == b"used-mem" {
                    let bytes = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
                    loader.server.snapshots().loading.note_used_bytes(bytes.unwrap_or(0));
                }
            }
            Next::Piece(_, Piece::Database(_)) => {}
            Next::Piece(offset, Piece::Function(text)) => libraries.push((offset, text.to_vec())),
            Next::Piece(_, Piece::Entry(entry)) => {
                if !queues[part_of(entry.key)].add(&entry) {
                    // The loader of this entry has failed. `load_from` receives the reason from
                    // that loader.
                    return Ok((libraries, reader.offset()));
                }
            }
            Next::Piece(_, Piece::End(_)) => {
                queues.iter_mut().for_each(|queue| {
                    queue.send();
                });
                return Ok((libraries, reader.offset()));
            }
        }
    }
}

/// Logs the auxiliary fields about the file's origin, as Redis does.
fn log_aux(name: &[u8], value: &[u8]) {
    let number = || std::str::from_utf8(value).ok()?.parse::<i64>().ok();
    match name {
        b"redis-ver" => tracing::info!("Loading RDB produced by version {}", value.escape_ascii()),
        b"valkey-ver" => tracing::info!("Loading RDB produced by Valkey version {}", value.escape_ascii()),
        b"ctime" => {
            let now_s =
                std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |age| age.as_secs());
            if let Some(made_s) = number() {
                tracing::info!("RDB age {} seconds", (now_s as i64).saturating_sub(made_s).max(0));
            }
        }
        b"used-mem" => {
            if let Some(bytes) = number() {
                tracing::info!("RDB memory usage when created {:.2} Mb", bytes as f64 / (1024.0 * 1024.0));
            }
        }
        _ => {}
    }
}

/// Entries for one loader, copied from the input buffer.
#[derive(Default)]
struct Batch {
    bytes: Vec<u8>,
    entries: Vec<Placed>,
}

/// An entry of a batch.
struct Placed {
    /// End of the entry's key in the batch's bytes.
    key_end: usize,
    /// End of the entry's value in the batch's bytes.
    body_end: usize,
    offset: u64,
    body_offset: u64,
    db: u32,
    kind: u8,
    dialect: Dialect,
    expire_at_ms: Option<i64>,
    idle_s: Option<u64>,
    frequency: Option<u8>,
}

/// The batch that is being filled for a loader, and the channel to this loader.
struct LoaderQueue {
    batch: Batch,
    sender: SyncSender<Batch>,
}

impl LoaderQueue {
    fn new(sender: &SyncSender<Batch>) -> Self {
        LoaderQueue { batch: Batch::default(), sender: sender.clone() }
    }

    /// Adds an entry to the batch, and sends the batch if it is full. Returns false if the loader
    /// has failed.
    fn add(&mut self, entry: &Entry<'_>) -> bool {
        let Batch { bytes, entries } = &mut self.batch;
        bytes.extend_from_slice(entry.key);
        let key_end = bytes.len();
        bytes.extend_from_slice(entry.body);
        entries.push(Placed {
            key_end,
            body_end: bytes.len(),
            offset: entry.offset,
            body_offset: entry.body_offset,
            db: entry.db,
            kind: entry.kind,
            dialect: entry.dialect,
            expire_at_ms: entry.expire_at_ms,
            idle_s: entry.idle_s,
            frequency: entry.frequency,
        });
        bytes.len() < BATCH_BYTES || self.send()
    }

    fn send(&mut self) -> bool {
        self.batch.entries.is_empty() || self.sender.send(std::mem::take(&mut self.batch)).is_ok()
    }
}

/// State that all loaders share.
struct Loader<'c> {
    limits: Limits,
    now_ms: i64,
    policy: pantala_engine::tuning::AccessPolicy,
    duty: Duty,
    counts: &'c Counts,
    server: &'c Server,
}

impl Loader<'_> {
    fn run(&self, part: &mut Part<'_>, batches: &Receiver<Batch>) -> Result<(), Error> {
        batches.iter().try_for_each(|batch| {
            let mut start = 0;
            batch.entries.iter().try_for_each(|placed| {
                let entry = Entry {
                    offset: placed.offset,
                    db: placed.db,
                    key: &batch.bytes[start..placed.key_end],
                    kind: placed.kind,
                    dialect: placed.dialect,
                    body: &batch.bytes[placed.key_end..placed.body_end],
                    body_offset: placed.body_offset,
                    expire_at_ms: placed.expire_at_ms,
                    idle_s: placed.idle_s,
                    frequency: placed.frequency,
                };
                start = placed.body_end;
                self.server.snapshots().loading.delay_key(self.server);
                self.take(part, &entry)
            })
        })
    }

    fn take(&self, part: &mut Part<'_>, entry: &Entry<'_>) -> Result<(), Error> {
        let Some(loaded) = entry.decode(&self.limits, self.now_ms)? else {
            if self.counts.empty.fetch_add(1, Relaxed) < EMPTY_KEYS_LOGGED {
                tracing::warn!("Skipping empty key: {}", entry.key.escape_ascii());
            }
            return Ok(());
        };
        // As in Redis, a key that expires in the current millisecond is loaded.
        let has_expired = entry.expire_at_ms.is_some_and(|at_ms| at_ms < self.now_ms);
        if has_expired && !self.counts.continues.load(Relaxed) {
            self.counts.expired.fetch_add(1, Relaxed);
            return Ok(());
        }
        let failed = |fault| Error { offset: entry.offset, fault };
        let duplicate = || failed(Fault::Duplicate(entry.key.to_vec()));
        let is_stored = match self.duty {
            Duty::Check => true,
            Duty::CheckNew => !part.contains(entry.db, entry.key),
            Duty::Store | Duty::Replace => {
                let idle_s = entry.idle_s.map(|idle_s| i64::try_from(idle_s).unwrap_or(i64::MAX));
                let word = self.policy.word_of(idle_s, entry.frequency, self.now_ms);
                let replaces = self.duty == Duty::Replace;
                let stored = part.load(entry.db, entry.key, loaded, entry.expire_at_ms, word, replaces);
                stored.map_err(|_| failed(Fault::OutOfMemory))?
            }
        };
        if !is_stored {
            return Err(duplicate());
        }
        self.counts.loaded.fetch_add(1, Relaxed);
        Ok(())
    }
}
