//! Snapshots in the background: started by a thread that holds all shards, written by a thread of
//! their own to any [`Consumer`]: a file, a replica.
//!
//! ```text
//! holder of all shards                 pantala-snapshot
//!   start: cut, head, walk      ──►      Consumer::begin    auxiliary fields
//!   releases the shards                  head, parts, tail
//!                                        Consumer::take     may block
//!                                        Consumer::finished
//! ```
//!
//! One snapshot runs at a time, as Redis has one child.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use pantala_engine::effect::Reader;
use pantala_engine::effect::log::Wake;
use pantala_engine::message::Message;
use pantala_engine::whole::Whole;
use pantala_persistence::rdb::{EntryForm, Head, Tail, Version, append_select};

use super::save::facts;
use crate::host::Server;

/// A part of the file is handed over at this size, bytes.
const PART_BYTES: usize = 256 * 1024;

/// What a snapshot is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// The file of `SAVE` and `BGSAVE`.
    Save,
    /// The base of an append-only file.
    Rewrite,
    /// The full synchronization of replicas.
    Replicas,
}

/// Takes the bytes of a snapshot, on the snapshot's own thread: each method may block.
pub trait Consumer: Send {
    /// Called first, after the shards were released. Returns auxiliary fields for the file's head.
    ///
    /// # Errors
    /// The consumer cannot take a snapshot.
    fn begin(&mut self) -> io::Result<Vec<(&'static str, String)>> {
        Ok(Vec::new())
    }

    /// Takes the next bytes of the file. It may leave the buffer with any content.
    ///
    /// # Errors
    /// The consumer wants no more.
    fn take(&mut self, bytes: &mut Vec<u8>) -> io::Result<()>;

    /// Called last, and exactly once if the snapshot was started. Another one can be started only
    /// after it has returned.
    fn finished(self: Box<Self>, outcome: Result<Written, Failure>, took: Duration);
}

/// A snapshot whose bytes have all been taken.
#[derive(Clone, Copy, Debug)]
pub struct Written {
    /// Length of the file.
    pub bytes: u64,
    /// Its version.
    pub version: Version,
}

/// Why a snapshot was not written.
#[derive(Debug)]
pub enum Failure {
    /// The consumer failed.
    Io(io::Error),
    /// [`Background::abort`] was called.
    Aborted,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Failure::Io(error) => write!(f, "{error}"),
            Failure::Aborted => write!(f, "aborted"),
        }
    }
}

/// A reader of the stream of effects that starts where the snapshot ends.
pub struct JournalStart {
    /// The reader is cut off when it is more than this behind, bytes.
    pub bytes_max: Arc<AtomicU64>,
    /// Called when there is more to read.
    pub wake: Wake,
}

/// Why a snapshot was not started.
#[derive(Debug)]
pub enum NotStarted {
    /// Another one is running, for this purpose.
    Running(Purpose),
    /// The system has no more threads.
    Thread(io::Error),
}

/// A snapshot that is running.
#[derive(Debug)]
pub struct Running {
    /// What it is for.
    pub purpose: Purpose,
    /// When it was started.
    pub started: Instant,
    /// Keys that it started with.
    pub keys: u64,
    /// Keys handed over so far.
    pub keys_done: AtomicU64,
    is_aborted: AtomicBool,
}

/// Work for a worker that holds all shards.
pub type Job = Box<dyn FnOnce(&Server, &mut Whole<'_>) + Send>;

/// The state of snapshots in the background.
#[derive(Default)]
pub struct Background {
    running: Mutex<Option<Arc<Running>>>,
    ended: Condvar,
    jobs: Mutex<Vec<Job>>,
    server: OnceLock<Weak<Server>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Background {
    /// Sets the server that it belongs to, once.
    pub fn set_server(&self, server: Weak<Server>) {
        // Only the first call counts.
        let _ = self.server.set(server);
    }

    /// Returns the server, unless it has ended.
    pub fn server(&self) -> Option<Arc<Server>> {
        self.server.get().and_then(Weak::upgrade)
    }

    /// Returns the snapshot that is running.
    pub fn running(&self) -> Option<Arc<Running>> {
        lock(&self.running).clone()
    }

    /// Makes the running snapshot fail, if there is one for such a purpose.
    pub fn abort(&self, is_meant: impl Fn(Purpose) -> bool) {
        if let Some(running) = &*lock(&self.running)
            && is_meant(running.purpose)
        {
            running.is_aborted.store(true, Relaxed);
        }
    }

    /// Waits until no snapshot is running. Not for workers, which a snapshot may need.
    pub fn wait_until_idle(&self) {
        let mut running = lock(&self.running);
        while running.is_some() {
            running = self.ended.wait(running).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn begin(&self, purpose: Purpose, keys: u64) -> Result<Arc<Running>, NotStarted> {
        let mut running = lock(&self.running);
        if let Some(running) = &*running {
            return Err(NotStarted::Running(running.purpose));
        }
        let (keys_done, is_aborted) = (AtomicU64::new(0), AtomicBool::new(false));
        let begun = Arc::new(Running { purpose, started: Instant::now(), keys, keys_done, is_aborted });
        *running = Some(Arc::clone(&begun));
        Ok(begun)
    }

    fn end(&self) {
        *lock(&self.running) = None;
        self.ended.notify_all();
    }

    /// Takes the work that waits for all shards.
    pub fn take_jobs(&self) -> Vec<Job> {
        std::mem::take(&mut lock(&self.jobs))
    }
}

/// Runs `job` on a worker that holds all shards, soon: for work of the server itself. Commands
/// have shards of their own route.
pub fn with_all_shards(server: &Server, job: Job) {
    let mut jobs = lock(&server.snapshots().background.jobs);
    jobs.push(job);
    if jobs.len() == 1 {
        server.port(0).send(Message::Whole);
    }
}

/// Starts a snapshot of the dataset as it is now, for a consumer. With `journal`, also returns
/// a reader of the stream of effects that continues exactly where the snapshot ends.
///
/// # Errors
/// Another snapshot is running, or there is no thread for it.
pub fn start(
    server: &Server,
    whole: &mut Whole<'_>,
    purpose: Purpose,
    journal: Option<JournalStart>,
    mut consumer: Box<dyn Consumer>,
) -> Result<Option<Reader>, NotStarted> {
    let background = &server.snapshots().background;
    let Some(shared) = background.server() else {
        return Err(NotStarted::Thread(io::ErrorKind::Other.into()));
    };
    // From the cut until the libraries are copied.
    let order = server.keyspace().journal().order_libraries();
    let facts = facts(server, purpose == Purpose::Rewrite);
    let head = Head::of(whole, &facts);
    let running = background.begin(purpose, head.keys())?;
    let failed = |error| {
        background.end();
        NotStarted::Thread(error)
    };
    let reader = journal.map(|start| whole.cut_journal(&order, start.bytes_max, start.wake));
    let reader = reader.transpose().map_err(failed)?;
    drop(order);
    let form = EntryForm::new(&whole.keyspace().tuning, facts.compresses, whole.now_ms());
    let work = Work { head, tail: Tail::new(facts.checks), parts: encode(whole, &form), running };
    let thread = std::thread::Builder::new().name("pantala-snapshot".into());
    let run = move || {
        // Also if the consumer panics.
        let _end = End(shared);
        let started = work.running.started;
        let outcome = work.write(&mut *consumer);
        consumer.finished(outcome, started.elapsed());
    };
    if let Err(error) = thread.spawn(run) {
        reader.iter().for_each(|reader| server.keyspace().leave_journal(reader));
        return Err(failed(error));
    }
    Ok(reader)
}

/// Encodes all entries, in parts that each select their database.
fn encode(whole: &mut Whole<'_>, form: &EntryForm) -> Vec<(Vec<u8>, u64)> {
    let mut parts = Vec::new();
    for db in 0..whole.databases() {
        let (mut part, mut keys) = (Vec::new(), 0);
        whole.for_each(db, &mut |entry| {
            if part.is_empty() {
                append_select(db, &mut part);
            }
            keys += u64::from(form.append(entry, &mut part));
            if part.len() >= PART_BYTES {
                parts.push((std::mem::take(&mut part), std::mem::take(&mut keys)));
            }
            true
        });
        if keys > 0 {
            parts.push((part, keys));
        }
    }
    parts
}

/// The rest of a snapshot's work, without the shards.
struct Work {
    head: Head,
    tail: Tail,
    /// Encoded entries, and their number.
    parts: Vec<(Vec<u8>, u64)>,
    running: Arc<Running>,
}

/// Ends the running snapshot when it is dropped.
struct End(Arc<Server>);

impl Drop for End {
    fn drop(&mut self) {
        self.0.snapshots().background.end();
    }
}

impl Work {
    fn write(self, consumer: &mut dyn Consumer) -> Result<Written, Failure> {
        let Work { head, mut tail, parts, running } = self;
        let (version, mut bytes) = (head.version, 0);
        let more = consumer.begin().map_err(Failure::Io)?;
        let mut take = |part: &mut Vec<u8>, tail: Option<&mut Tail>| {
            if running.is_aborted.load(Relaxed) {
                return Err(Failure::Aborted);
            }
            bytes += part.len() as u64;
            if let Some(tail) = tail {
                tail.add(part);
            }
            consumer.take(part).map_err(Failure::Io)
        };
        take(&mut head.to_bytes(&more), Some(&mut tail))?;
        for (mut part, keys) in parts {
            take(&mut part, Some(&mut tail))?;
            running.keys_done.fetch_add(keys, Relaxed);
        }
        take(&mut tail.to_bytes(), None)?;
        Ok(Written { bytes, version })
    }
}
