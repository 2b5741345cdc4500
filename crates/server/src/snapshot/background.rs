//! Background snapshots. A thread that holds all shards starts the snapshot. Then the workers
//! *walk* all shards and encode their entries, in groups called *parts*. The snapshot's own thread
//! passes the encoded bytes to a [`Consumer`], which writes them to a file or sends them to
//! replicas.
//!
//! ```text
//! holder of all shards     workers              pantala-snapshot (the snapshot's own thread)
//!   start ────────────────────────────────────►   Consumer::begin: returns auxiliary fields
//!   releases the shards                           Consumer::take: the head of the file
//!                            encode parts ────►   Consumer::take: the parts
//!                                                 Consumer::take: the tail of the file
//!                                                 Consumer::finished
//! ```
//!
//! Only one snapshot runs at a time, like the single child process of Redis.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak, mpsc};
use std::time::{Duration, Instant};

use pantala_base::allocator;
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
use super::save::snapshot_header;
use crate::host::Server;
use crate::process::yield_to_workers;

/// Interval between two checks for an abort while `rdb-key-save-delay` delays a snapshot.
const KEY_DELAY_STEP: Duration = Duration::from_millis(5);
/// Maximum number of bytes of a large entry that are passed to the consumer at once, so that the
/// thread can pause in between.
const SLICE_BYTES: usize = 64 * 1024;
/// Maximum time for which a shutdown waits for an aborted snapshot.
const EXIT_MAX: Duration = Duration::from_secs(2);

/// The purpose of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// The file of `SAVE` and `BGSAVE`.
    Save,
    /// The base of an append-only file.
    Rewrite,
    /// The full sync of replicas.
    Replicas,
}

/// The section of a file to which bytes belong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Section {
    /// The whole head.
    Head,
    /// The start of a part. Parts may be written in any order, or to different files.
    Part,
    /// More bytes of the same part.
    MoreOfPart,
    /// The whole tail.
    Tail,
}

/// Receives the bytes of a snapshot, on the snapshot's own thread. Each method may block.
pub trait Consumer: Send {
    /// Called first. The thread that has started the snapshot may still hold all shards. Returns
    /// auxiliary fields for the head of the file.
    ///
    /// # Errors
    /// The consumer can't receive a snapshot.
    fn begin(&mut self) -> io::Result<Vec<(&'static str, String)>> {
        Ok(Vec::new())
    }

    /// Receives the next bytes of the file. The content of the buffer after the call doesn't
    /// matter.
    ///
    /// # Errors
    /// The consumer can't receive more.
    fn take(&mut self, section: Section, bytes: &mut Vec<u8>) -> io::Result<()>;

    /// Returns whether the consumer computes checksums itself. The tail then has none.
    fn has_own_checksums(&self) -> bool {
        false
    }

    /// Called last, exactly once for each snapshot that was started. Returns a function that
    /// records the outcome. The function is called once all shards have been walked, under the lock
    /// that is released when the next snapshot may start. So a client that sees the outcome can
    /// start the next snapshot.
    fn finished(self: Box<Self>, outcome: Result<Written, Failure>, took: Duration) -> Option<Record>;
}

/// Records the outcome of a snapshot. Called under the lock of the running snapshot's state, so the
/// function must not use [`Background`].
pub type Record = Box<dyn FnOnce()>;

/// A snapshot whose bytes the consumer has received completely.
#[derive(Clone, Copy, Debug)]
pub struct Written {
    /// Length of the file, bytes.
    pub bytes: u64,
    /// RDB version of the file.
    pub version: Version,
}

/// The reason why a snapshot is incomplete.
#[derive(Debug)]
pub enum Failure {
    /// The consumer has failed, or elements of a large value could not be encoded.
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

/// Parameters of the journal's reader that [`start`] creates. The first effect for this reader is
/// the first one that the snapshot does not contain.
pub struct JournalStart {
    /// Which of the journal's logs to read: the effects of this server's commands, or the bytes for
    /// replicas.
    pub which: Which,
    /// Maximum number of bytes that the reader may be behind. If it is further behind, it is cut
    /// off.
    pub bytes_max: Arc<AtomicU64>,
    /// Called when the reader has more to read.
    pub wake: Wake,
}

/// The reason why a snapshot was not started.
#[derive(Debug)]
pub enum NotStarted {
    /// Another snapshot is running. Contains its purpose.
    Running(Purpose),
    /// The thread of the snapshot or of the journal could not be created.
    Thread(io::Error),
}

/// The running snapshot.
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
    /// Progress of the walk of the shards, once the walk has started.
    progress: OnceLock<Arc<Progress>>,
}

impl Running {
    /// Returns the number of bytes that commands have encoded. A command encodes a value that it is
    /// about to change, if the walk has not encoded the value yet. In Redis, which forks a process
    /// for the snapshot, the kernel would have copied the memory of the value.
    pub fn forced_bytes(&self) -> u64 {
        self.progress.get().map_or(0, |progress| progress.forced_bytes())
    }

    /// Returns the memory of encoded bytes and of buffers for them, in bytes.
    pub fn kept_bytes(&self) -> u64 {
        self.progress.get().map_or(0, |progress| progress.kept_bytes())
    }
}

/// Work for a thread that holds all shards.
pub type Job = Box<dyn FnOnce(&Server, &mut Whole<'_>) + Send>;

/// The state of background snapshots.
#[derive(Default)]
pub struct Background {
    running: Mutex<Option<Arc<Running>>>,
    /// `rdb-key-save-delay`.
    key_delay: AtomicI64,
    /// Notified when a consumer has finished and when a snapshot has ended.
    ended: Condvar,
    /// Jobs that wait for all shards ([`with_all_shards`]).
    jobs: Mutex<Vec<Job>>,
    server: OnceLock<Weak<Server>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Background {
    /// Sets the server whose dataset the snapshots contain.
    pub fn set_server(&self, server: Weak<Server>) {
        // Only the first call has an effect.
        let _ = self.server.set(server);
    }

    /// Sets `rdb-key-save-delay`. A positive value n delays the snapshot's thread by n µs per key,
    /// a negative value -n by 1 µs per n keys. With 0 there is no delay.
    pub fn set_key_delay(&self, delay: i64) {
        self.key_delay.store(delay, Relaxed);
    }

    /// Delays the snapshot's thread for `keys` keys, according to `rdb-key-save-delay`. The delay
    /// ends early if the setting becomes 0 or the snapshot is aborted.
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

    /// Returns the server, or `None` if it has ended.
    pub fn server(&self) -> Option<Arc<Server>> {
        self.server.get().and_then(Weak::upgrade)
    }

    /// Returns the running snapshot, if any.
    pub fn running(&self) -> Option<Arc<Running>> {
        lock(&self.running).clone()
    }

    /// Aborts the running snapshot if `is_meant` returns true for its purpose.
    pub fn abort(&self, is_meant: impl Fn(Purpose) -> bool) {
        if let Some(running) = &*lock(&self.running)
            && is_meant(running.purpose)
        {
            running.is_aborted.store(true, Relaxed);
        }
    }

    /// Waits until the consumer of the running snapshot has finished. Returns at once if no
    /// snapshot runs or `is_meant` returns false for its purpose. After [`Background::abort`], the
    /// consumer finishes even if no worker makes progress.
    pub fn wait_until_finished(&self, is_meant: impl Fn(Purpose) -> bool) {
        let mut running = lock(&self.running);
        while let Some(current) = &*running
            && is_meant(current.purpose)
            && !current.is_finished.load(Relaxed)
        {
            running = self.ended.wait(running).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Aborts the running snapshot and waits for its end. Must be called after all workers have
    /// ended. Waits at most [`EXIT_MAX`], because the consumer may be waiting for another host.
    pub fn end_at_exit(&self) {
        self.abort(|_| true);
        let running = lock(&self.running);
        running.iter().filter_map(|running| running.progress.get()).for_each(|progress| progress.abandon());
        // A poisoned lock doesn't matter, because the process is ending.
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

    /// Removes and returns the jobs that wait for all shards.
    pub fn take_jobs(&self) -> Vec<Job> {
        std::mem::take(&mut lock(&self.jobs))
    }
}

/// Queues a job that a worker runs as soon as it holds all shards. Used for the server's own work,
/// not for commands.
pub fn with_all_shards(server: &Server, job: Job) {
    let mut jobs = lock(&server.snapshots().background.jobs);
    jobs.push(job);
    if jobs.len() == 1 {
        server.port(0).send(Message::Whole);
    }
}

/// Starts a snapshot of the current dataset and passes it to a consumer. If `journal` is given,
/// also returns a reader of the stream of effects, which starts with the first effect that the
/// snapshot does not contain.
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

/// Does the same as [`start`], but leaves out the content that the filter excludes. The shards are
/// walked even if the filter excludes all keys, because each dictionary has started a snapshot,
/// which only a complete walk ends.
///
/// # Errors
/// The same as for [`start`].
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
    // This lock keeps the libraries from changing until the journal's position has been determined.
    // So the copy of the libraries belongs to the same instant as that position.
    let order = server.keyspace().journal().order_libraries();
    let mut header = snapshot_header(server, purpose == Purpose::Rewrite);
    if filter.without_functions {
        header.libraries.clear();
    }
    let head = Head::of(whole, &header);
    let running = background.begin(purpose, head.keys())?;
    let failed = |error| {
        server.snapshots().background.end(None);
        NotStarted::Thread(error)
    };
    let reader = journal.map(|start| whole.cut_journal(&order, start.which, start.bytes_max, start.wake));
    let reader = reader.transpose().map_err(failed)?;
    drop(order);
    // Creating a thread can fail, and a snapshot, once started, must be read to its end. So the
    // thread is created first.
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
    // On a replica, the snapshot contains expired keys too. Commands that the primary has already
    // sent may use these keys, and the primary sends their `DEL` later.
    let tuning = &whole.keyspace().tuning;
    let keeps_expired = tuning.is_replica();
    let form = |compresses| EntryForm::new(tuning, compresses, whole.now_ms()).keeping_expired(keeps_expired);
    let encoder: Box<dyn Encoder> = match filter.without_keys {
        true => Box::new(NoKeys),
        false => Box::new(Parts { walked: form(header.compresses), forced: form(false) }),
    };
    let input = whole.begin_snapshot(encoder);
    // Can't fail: only this line sets it.
    let _ = running.progress.set(Arc::clone(input.progress()));
    // Can't fail: the thread is waiting for the work.
    let _ = hand_over.send(Work { head, tail: Tail::new(header.checks), input, running });
    Ok(reader)
}

/// Encodes entries into parts of the file.
struct Parts {
    /// How the walk of the shards encodes values.
    walked: EntryForm,
    /// How a command encodes a value that it is about to change. There is no compression, because
    /// the command waits for the encoding.
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

/// Encodes nothing, for a snapshot without keys.
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

/// The input and output of the snapshot's thread.
struct Work {
    head: Head,
    tail: Tail,
    input: Input,
    running: Arc<Running>,
}

impl Work {
    /// Passes the file to a consumer, and returns the result of [`Consumer::finished`]. Returns
    /// only when the walk of the shards has ended, because the next snapshot can't start before
    /// that. This holds even if the consumer fails earlier.
    fn run(self, mut consumer: Box<dyn Consumer>, background: &Background) -> Option<Record> {
        let Work { head, tail, input, running } = self;
        input.supply();
        let outcome = write(&head, tail, &input, (&running, background), &mut *consumer);
        input.progress().discard();
        let record = consumer.finished(outcome, running.started.elapsed());
        background.note_finished(&running);
        while !matches!(input.next_part(), Next::End) {}
        drop(input);
        // The memory of the buffers would otherwise stay resident in the heap of an ended thread.
        allocator::purge();
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
    if consumer.has_own_checksums() {
        tail = Tail::new(false);
    }
    let (mut bytes, mut pace) = (0, Pace::new());
    let mut take = |section: Section, part: &mut Vec<u8>, tail: Option<&mut Tail>| {
        let began = Instant::now();
        if running.is_aborted.load(Relaxed) {
            return Err(Failure::Aborted);
        }
        bytes += part.len() as u64;
        if let Some(tail) = tail {
            tail.add(part);
        }
        consumer.take(section, part).map_err(Failure::Io)?;
        pace.pause_after(began, input.progress());
        Ok(())
    };
    take(Section::Head, &mut head.to_bytes(&more), Some(&mut tail))?;
    loop {
        match input.next_part() {
            Next::Part(Part { bytes: mut part, more, keys }) => {
                take(Section::Part, &mut part, Some(&mut tail))?;
                input.recycle(part);
                for part in more {
                    for slice in part.chunks(SLICE_BYTES) {
                        take(Section::MoreOfPart, &mut slice.to_vec(), Some(&mut tail))?;
                    }
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
    take(Section::Tail, &mut tail.to_bytes(), None)?;
    Ok(Written { bytes, version: head.version })
}
