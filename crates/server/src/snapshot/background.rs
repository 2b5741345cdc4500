//! Background snapshots. A thread that holds all shards starts a snapshot. A separate thread passes
//! it to a [`Consumer`], which writes a file or sends it to replicas.
//!
//! ```text
//! holder of all shards                 pantala-snapshot
//!   start: cut, head            ──►      Consumer::begin    auxiliary fields
//!   releases the shards                  head, parts, tail
//!                                        Consumer::take     may block
//! workers                                Consumer::finished
//!   encode parts                ──►
//! ```
//!
//! Only one snapshot runs at a time, like the one child process of Redis.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak, mpsc};
use std::time::{Duration, Instant};

use pantala_engine::EntryRef;
use pantala_engine::effect::log::Wake;
use pantala_engine::effect::{Reader, Which};
use pantala_engine::message::Message;
use pantala_engine::snapshot::{Encoder, Input, Next, Part, Progress};
use pantala_engine::whole::Whole;
use pantala_persistence::rdb::{EntryForm, Head, Tail, Version, append_select};
use pantala_replication::Filter;
use pantala_types::{CutState, Value};

use super::pace::Pace;
use super::save::facts;
use crate::host::Server;
use crate::process::yield_to_workers;

/// Interval at which a delayed snapshot checks whether it was aborted.
const KEY_DELAY_STEP: Duration = Duration::from_millis(5);
/// Maximum time that the exit of the process waits for an aborted snapshot.
const EXIT_MAX: Duration = Duration::from_secs(2);

/// The purpose of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// The file of `SAVE` and `BGSAVE`.
    Save,
    /// The base of an append-only file.
    Rewrite,
    /// The full synchronization of replicas.
    Replicas,
}

/// Receives the bytes of a snapshot, on the snapshot's own thread. Each method may block.
pub trait Consumer: Send {
    /// Called first. The thread that has started the snapshot may still hold all shards. Returns
    /// auxiliary fields for the file's head.
    ///
    /// # Errors
    /// The consumer can't receive a snapshot.
    fn begin(&mut self) -> io::Result<Vec<(&'static str, String)>> {
        Ok(Vec::new())
    }

    /// Receives the next bytes of the file. May leave any content in the buffer.
    ///
    /// # Errors
    /// The consumer can't receive more.
    fn take(&mut self, bytes: &mut Vec<u8>) -> io::Result<()>;

    /// Called last, and exactly once if the snapshot was started. Another snapshot can be started
    /// only after this has returned and all shards have been walked. Returns what records the
    /// outcome. It is called at that moment, so that a client that sees the outcome can start the
    /// next snapshot.
    fn finished(self: Box<Self>, outcome: Result<Written, Failure>, took: Duration) -> Option<Record>;
}

/// Records the outcome of a snapshot. Runs while the running snapshot is locked, so it
/// must not use [`Background`].
pub type Record = Box<dyn FnOnce()>;

/// A snapshot that the consumer has received completely.
#[derive(Clone, Copy, Debug)]
pub struct Written {
    /// Length of the file.
    pub bytes: u64,
    /// RDB version of the file.
    pub version: Version,
}

/// The reason why a snapshot was not written.
#[derive(Debug)]
pub enum Failure {
    /// The consumer failed, or a large value was not encoded completely.
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

/// Parameters of the reader of the journal that [`start`] creates. The reader starts with the first
/// effect that the snapshot does not contain.
pub struct JournalStart {
    /// The log.
    pub which: Which,
    /// The reader is cut off when it is more bytes behind than this.
    pub bytes_max: Arc<AtomicU64>,
    /// Called when there is more to read.
    pub wake: Wake,
}

/// The reason why a snapshot was not started.
#[derive(Debug)]
pub enum NotStarted {
    /// Another snapshot is running, for this purpose.
    Running(Purpose),
    /// The snapshot's thread, or the journal's, could not be created.
    Thread(io::Error),
}

/// A snapshot that is running.
#[derive(Debug)]
pub struct Running {
    /// The snapshot's purpose.
    pub purpose: Purpose,
    /// When the snapshot was started.
    pub started: Instant,
    /// Number of keys when the snapshot was started.
    pub keys: u64,
    /// Number of keys passed to the consumer so far.
    pub keys_done: AtomicU64,
    is_aborted: AtomicBool,
    is_finished: AtomicBool,
    /// Progress of the walk of the shards, once it has started.
    progress: OnceLock<Arc<Progress>>,
}

impl Running {
    /// Returns the number of bytes that commands had to encode before they changed values. After a
    /// fork, as in Redis, the kernel would have copied the memory of these values.
    pub fn forced_bytes(&self) -> u64 {
        self.progress.get().map_or(0, |progress| progress.forced_bytes())
    }
}

/// Work for a worker that holds all shards.
pub type Job = Box<dyn FnOnce(&Server, &mut Whole<'_>) + Send>;

/// The state of background snapshots.
#[derive(Default)]
pub struct Background {
    running: Mutex<Option<Arc<Running>>>,
    /// `rdb-key-save-delay`.
    key_delay: AtomicI64,
    /// Notified when a consumer has finished, and when a snapshot has ended.
    ended: Condvar,
    /// Work that waits for all shards ([`with_all_shards`]).
    jobs: Mutex<Vec<Job>>,
    server: OnceLock<Weak<Server>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Background {
    /// Sets the server that the snapshots belong to.
    pub fn set_server(&self, server: Weak<Server>) {
        // Only the first call has an effect.
        let _ = self.server.set(server);
    }

    /// Sets `rdb-key-save-delay`: n > 0 delays the snapshot's thread by n µs per key, -n by 1 µs
    /// per n keys, 0 not at all.
    pub fn set_key_delay(&self, delay: i64) {
        self.key_delay.store(delay, Relaxed);
    }

    /// Delays the snapshot's thread for this number of keys, as `rdb-key-save-delay` says. The
    /// delay ends early if the setting is turned off or the snapshot is aborted.
    fn delay_keys(&self, running: &Running, keys: u64) {
        let (began, keys) = (Instant::now(), i64::try_from(keys).unwrap_or(i64::MAX));
        let left = || {
            let delay_us = match self.key_delay.load(Relaxed) {
                delay @ 0.. => delay.saturating_mul(keys),
                per_us => keys / per_us.saturating_neg(),
            };
            Duration::from_micros(delay_us.unsigned_abs()).saturating_sub(began.elapsed())
        };
        while !left().is_zero() && !running.is_aborted.load(Relaxed) {
            std::thread::sleep(left().min(KEY_DELAY_STEP));
        }
    }

    /// Returns the server, unless it has ended.
    pub fn server(&self) -> Option<Arc<Server>> {
        self.server.get().and_then(Weak::upgrade)
    }

    /// Returns the snapshot that is running.
    pub fn running(&self) -> Option<Arc<Running>> {
        lock(&self.running).clone()
    }

    /// Makes the running snapshot fail, if a snapshot runs and `is_meant` holds for its purpose.
    pub fn abort(&self, is_meant: impl Fn(Purpose) -> bool) {
        if let Some(running) = &*lock(&self.running)
            && is_meant(running.purpose)
        {
            running.is_aborted.store(true, Relaxed);
        }
    }

    /// Waits until the consumer of the running snapshot has finished, if `is_meant` holds for its
    /// purpose. After [`Background::abort`], the consumer finishes even if no worker makes
    /// progress.
    pub fn wait_until_finished(&self, is_meant: impl Fn(Purpose) -> bool) {
        let mut running = lock(&self.running);
        while let Some(current) = &*running
            && is_meant(current.purpose)
            && !current.is_finished.load(Relaxed)
        {
            running = self.ended.wait(running).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Aborts the running snapshot. Must be called after all workers have ended. Waits at most
    /// [`EXIT_MAX`] for the snapshot, because its consumer may be waiting for another host.
    pub fn end_at_exit(&self) {
        self.abort(|_| true);
        let running = lock(&self.running);
        running.iter().filter_map(|running| running.progress.get()).for_each(|progress| progress.abandon());
        // A poisoned lock doesn't matter: the process ends.
        drop(self.ended.wait_timeout_while(running, EXIT_MAX, |running| running.is_some()));
    }

    fn begin(&self, purpose: Purpose, keys: u64) -> Result<Arc<Running>, NotStarted> {
        let mut running = lock(&self.running);
        if let Some(running) = &*running {
            return Err(NotStarted::Running(running.purpose));
        }
        let begun = Arc::new(Running {
            purpose,
            started: Instant::now(),
            keys,
            keys_done: AtomicU64::new(0),
            is_aborted: AtomicBool::new(false),
            is_finished: AtomicBool::new(false),
            progress: OnceLock::new(),
        });
        *running = Some(Arc::clone(&begun));
        Ok(begun)
    }

    fn note_finished(&self, running: &Running) {
        let _running = lock(&self.running);
        running.is_finished.store(true, Relaxed);
        self.ended.notify_all();
    }

    fn end(&self, record: Option<Record>) {
        let mut running = lock(&self.running);
        if let Some(record) = record {
            record();
        }
        *running = None;
        self.ended.notify_all();
    }

    /// Removes and returns the work that waits for all shards.
    pub fn take_jobs(&self) -> Vec<Job> {
        std::mem::take(&mut lock(&self.jobs))
    }
}

/// Queues `job` to run on a worker that holds all shards. Only the server's own work uses this.
/// Commands that need all shards acquire them like other commands do.
pub fn with_all_shards(server: &Server, job: Job) {
    let mut jobs = lock(&server.snapshots().background.jobs);
    jobs.push(job);
    if jobs.len() == 1 {
        server.port(0).send(Message::Whole);
    }
}

/// Starts a snapshot of the current dataset for a consumer. If `journal` is given, also returns a
/// reader of the stream of effects. The reader starts with the first effect that the snapshot does
/// not contain.
///
/// # Errors
/// Another snapshot is running, or the thread of this snapshot or of the journal can't be created.
pub fn start(
    server: &Server,
    whole: &mut Whole<'_>,
    purpose: Purpose,
    journal: Option<JournalStart>,
    consumer: Box<dyn Consumer>,
) -> Result<Option<Reader>, NotStarted> {
    start_filtered(server, whole, purpose, Filter::default(), journal, consumer)
}

/// Starts a snapshot as [`start`] does, without the parts that the filter excludes. The keys are
/// walked even if they are excluded, because the snapshot of each dictionary must end.
///
/// # Errors
/// As [`start`].
pub fn start_filtered(
    server: &Server,
    whole: &mut Whole<'_>,
    purpose: Purpose,
    filter: Filter,
    journal: Option<JournalStart>,
    consumer: Box<dyn Consumer>,
) -> Result<Option<Reader>, NotStarted> {
    let background = &server.snapshots().background;
    let Some(shared) = background.server() else {
        return Err(NotStarted::Thread(io::ErrorKind::Other.into()));
    };
    // This lock is held while the libraries are copied and the journal is cut, so that no library
    // changes in between.
    let order = server.keyspace().journal().order_libraries();
    let mut facts = facts(server, purpose == Purpose::Rewrite);
    if filter.without_functions {
        facts.libraries.clear();
    }
    let head = Head::of(whole, &facts);
    let running = background.begin(purpose, head.keys())?;
    let failed = |error| {
        server.snapshots().background.end(None);
        NotStarted::Thread(error)
    };
    let reader = journal.map(|start| whole.cut_journal(&order, start.which, start.bytes_max, start.wake));
    let reader = reader.transpose().map_err(failed)?;
    drop(order);
    // The thread is created before the snapshot starts, because that can fail, and a snapshot that
    // has started must be read to its end.
    let (hand_over, work) = mpsc::sync_channel::<Work>(1);
    let run = move || {
        let background = &shared.snapshots().background;
        yield_to_workers();
        let record = work.recv().ok().and_then(|work| work.run(consumer, background));
        background.end(record);
    };
    if let Err(error) = std::thread::Builder::new().name("pantala-snapshot".into()).spawn(run) {
        reader.iter().for_each(|reader| server.keyspace().leave_journal(reader));
        return Err(failed(error));
    }
    // On a replica the snapshot contains expired keys too, because commands of the primary that
    // still use them may be in flight.
    let tuning = &whole.keyspace().tuning;
    let keeps_expired = tuning.is_replica();
    let form = |compresses| EntryForm::new(tuning, compresses, whole.now_ms()).keeping_expired(keeps_expired);
    let encoder: Box<dyn Encoder> = match filter.without_keys {
        true => Box::new(NoKeys),
        false => Box::new(Parts { walked: form(facts.compresses), forced: form(false) }),
    };
    let input = whole.begin_snapshot(encoder);
    // Can't fail: nothing else sets it.
    let _ = running.progress.set(Arc::clone(input.progress()));
    // Can't fail: the thread waits for the work.
    let _ = hand_over.send(Work { head, tail: Tail::new(facts.checks), input, running });
    Ok(reader)
}

/// Encodes parts of the file.
struct Parts {
    /// The form of values that the walk of the shards encodes.
    walked: EntryForm,
    /// The form of values that a command is about to change. It isn't compressed, because the
    /// command waits for the encoding.
    forced: EntryForm,
}

impl Encoder for Parts {
    fn select(&self, db: u32, part: &mut Vec<u8>) {
        append_select(db, part);
    }

    fn append(&self, entry: EntryRef<'_, Value>, is_forced: bool, part: &mut Vec<u8>) -> bool {
        let form = if is_forced { &self.forced } else { &self.walked };
        form.append(entry, part)
    }

    fn begin_cut(&self, entry: EntryRef<'_, Value>, part: &mut Vec<u8>) -> bool {
        self.walked.begin_cut(entry, part)
    }

    fn append_cut(&self, value: &Value, part: &mut Vec<u8>) -> CutState {
        self.walked.append_cut(value, part)
    }

    fn end_cut(&self, value: &Value) {
        EntryForm::end_cut(value);
    }
}

/// Encodes no key.
struct NoKeys;

impl Encoder for NoKeys {
    fn select(&self, _: u32, _: &mut Vec<u8>) {}

    fn append(&self, _: EntryRef<'_, Value>, _: bool, _: &mut Vec<u8>) -> bool {
        false
    }

    fn begin_cut(&self, _: EntryRef<'_, Value>, _: &mut Vec<u8>) -> bool {
        false
    }

    fn append_cut(&self, _: &Value, _: &mut Vec<u8>) -> CutState {
        CutState::Ended
    }

    fn end_cut(&self, _: &Value) {}
}

/// The part of a snapshot's work that needs no shards.
struct Work {
    head: Head,
    tail: Tail,
    input: Input,
    running: Arc<Running>,
}

impl Work {
    /// Passes the file to a consumer. Returns when the walk of the shards has ended, even if the
    /// consumer has failed before that. Only then can the next snapshot start. The result is that
    /// of [`Consumer::finished`].
    fn run(self, mut consumer: Box<dyn Consumer>, background: &Background) -> Option<Record> {
        let Work { head, tail, input, running } = self;
        let outcome = write(&head, tail, &input, (&running, background), &mut *consumer);
        input.progress().discard();
        let record = consumer.finished(outcome, running.started.elapsed());
        background.note_finished(&running);
        while !matches!(input.next_part(), Next::End) {}
        record
    }
}

fn write(
    head: &Head,
    mut tail: Tail,
    input: &Input,
    (running, background): (&Running, &Background),
    consumer: &mut dyn Consumer,
) -> Result<Written, Failure> {
    let more = consumer.begin().map_err(Failure::Io)?;
    let (mut bytes, mut pace) = (0, Pace::new());
    let mut take = |part: &mut Vec<u8>, tail: Option<&mut Tail>| {
        let began = Instant::now();
        if running.is_aborted.load(Relaxed) {
            return Err(Failure::Aborted);
        }
        bytes += part.len() as u64;
        if let Some(tail) = tail {
            tail.add(part);
        }
        consumer.take(part).map_err(Failure::Io)?;
        pace.pause_after(began, input.progress());
        Ok(())
    };
    take(&mut head.to_bytes(&more), Some(&mut tail))?;
    loop {
        match input.next_part() {
            Next::Part(Part { bytes: mut part, more, keys }) => {
                take(&mut part, Some(&mut tail))?;
                input.recycle(part);
                for mut part in more {
                    take(&mut part, Some(&mut tail))?;
                }
                running.keys_done.fetch_add(keys, Relaxed);
                background.delay_keys(running, keys);
            }
            Next::Later if running.is_aborted.load(Relaxed) => return Err(Failure::Aborted),
            Next::Later => {}
            Next::End => break,
        }
    }
    if input.progress().is_incomplete() {
        return Err(Failure::Io(io::Error::other("elements of a large value were not encoded")));
    }
    take(&mut tail.to_bytes(), None)?;
    Ok(Written { bytes, version: head.version })
}
