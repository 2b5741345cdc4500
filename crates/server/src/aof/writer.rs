//! The writer thread of the append-only file, which writes the increments.
//!
//! A *base* is a file with the dataset at one instant. An *increment* is a file with the effects
//! (propagated changes) since then. A *stamp* is a number that gives the position of effects in the
//! order of commits. The journal merges the effects of all workers into the *log*, an ordered
//! stream in memory.
//!
//! ```text
//! workers ──► journal ──► log ──► this thread: write, fsync ──► synced stamp ──► replies sent
//! ```
//!
//! The thread reads the log at its own pace, so workers never wait for the disk. The
//! [`gate`](super::gate) decides which replies wait. One sync covers all effects written since the
//! previous sync.
//!
//! # Rewrites
//!
//! A rewrite *cuts* the stream: it chooses a position, and starts a snapshot of the dataset at that
//! position. This thread writes the effects before the cut to the current increment. Then it opens
//! the next increment and lists it in the manifest. When the snapshot is on disk, it becomes the
//! base. The increments before the cut then become history: files that are no longer loaded.
//!
//! The worker that makes the cut holds all shards and must not wait for the disk. So only this
//! thread and the snapshot's thread access files.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use pantala_base::ThreadHeap;
use pantala_engine::client::Durability;
use pantala_engine::effect::log::Ahead;
use pantala_engine::effect::{Lag, Reader};
use pantala_engine::faults::{self, Fault};
use pantala_persistence::aof::Writing;
use pantala_persistence::aof::writing::Taken;

use super::gate::UNWRITTEN_BYTES_MAX;
use super::inbox::{Confirm, Inbox, Order};
use super::queue::Queued;
use super::rewrite::{self, Base, Unfinished, annotated_s};
use super::state::{State, lock};
use crate::config::AppendFsync;
use crate::disk::SystemDisk;
use crate::host::Server;

/// Maximum number of bytes that are read and written together.
const BATCH_BYTES: usize = 8 * 1024 * 1024;
/// Interval between the syncs of `everysec`, and between retries of a failed write.
const PERIOD: Duration = Duration::from_secs(1);
/// A sync that takes longer than this counts as one that delays writes, as in Redis.
pub(super) const DELAY_MIN: Duration = Duration::from_secs(2);

/// A waiter for the sync of all effects with stamps below a given stamp.
enum Awaiting {
    /// A thread that waits for the outcome ([`Order::Sync`]).
    Caller(Sender<bool>),
    /// A function to call ([`Order::Confirm`]).
    Confirm(Confirm),
    /// A client that no longer asks for `CLIENT DURABILITY always` ([`Order::Unask`]).
    Unask,
    /// The order to end the thread ([`Order::Stop`]).
    End,
}

/// A running writer thread.
pub struct Handle {
    /// The thread's inbox.
    pub inbox: Arc<Inbox>,
    /// Reports how many bytes the thread has not read yet.
    lag: Lag,
    thread: JoinHandle<()>,
}

impl Handle {
    /// Wakes the thread.
    pub fn wake(&self) {
        self.inbox.wake();
    }

    /// Returns how many bytes of the journal the thread has not read.
    pub fn unread_bytes(&self) -> u64 {
        self.lag.bytes()
    }

    /// Waits until the thread has ended.
    pub fn join(self) {
        // An error means that the thread has panicked. The panic was already reported.
        let _ = self.thread.join();
    }
}

/// Starts the thread. If `writing` has no output file, the thread opens the first increment. In
/// this case, `reader` must start at the cut of a rewrite.
///
/// # Errors
/// The system's error, if it can't start a thread.
pub fn start(
    server: &Arc<Server>,
    inbox: Arc<Inbox>,
    reader: Reader,
    writing: Writing<SystemDisk>,
) -> io::Result<Handle> {
    let lag = reader.lag();
    // The limit applies to unwritten bytes, but the reader counts only unread bytes. Two batches
    // are subtracted, as room for bytes that are read but not yet written.
    reader.warn_beyond(UNWRITTEN_BYTES_MAX - 2 * BATCH_BYTES as u64, &server.snapshots().aof.warning());
    let writer = Writer {
        server: Arc::downgrade(server),
        inbox: Arc::clone(&inbox),
        reader,
        lacks_place: !writing.is_rotated(),
        writing,
        cut: None,
        base: None,
        synced_at: Instant::now(),
        failed_at: None,
        awaited: Vec::new(),
        is_ending: false,
        is_eager: false,
        queued: server.snapshots().aof.queue.enter(&inbox),
    };
    // The [`Writer`] is sent only after the thread has been started. If the start fails, this
    // function still owns the writer, and removes its reader from the journal.
    let (hand_over, taken) = channel::<Writer>();
    let run = move || {
        if let Ok(writer) = taken.recv() {
            writer.run();
        }
    };
    match std::thread::Builder::new().name("pantala-aof".into()).spawn(run) {
        Ok(thread) => {
            // Can't fail: the thread is waiting for the writer.
            let _ = hand_over.send(writer);
            Ok(Handle { inbox, lag, thread })
        }
        Err(error) => {
            server.keyspace().leave_journal(&writer.reader);
            Err(error)
        }
    }
}

/// The state of the writer thread.
struct Writer {
    server: Weak<Server>,
    inbox: Arc<Inbox>,
    reader: Reader,
    writing: Writing<SystemDisk>,
    /// Whether this thread must read the manifest before it opens the first increment.
    lacks_place: bool,
    /// A reader at the position of the last cut; `None` once `reader` has reached this position.
    cut: Option<Reader>,
    /// The result of the last cut's snapshot, if it has ended.
    base: Option<Result<Base, Unfinished>>,
    /// When the file was last synced, or when a sync was last skipped because of the settings.
    synced_at: Instant,
    /// When the last write or sync failed.
    failed_at: Option<Instant>,
    /// Each waiter, with the stamp below which all effects must be synced.
    awaited: Vec<(u64, Awaiting)>,
    is_ending: bool,
    /// Whether this thread ends the journal's epochs (periods of about a millisecond), because
    /// replies or waiters need syncs.
    is_eager: bool,
    /// The place in the queue for the files. This field is dropped last, after the files have been
    /// closed.
    queued: Queued,
}

/// The value that [`Writer::turn`] returns if the thread must end.
struct Ended;

impl Writer {
    fn run(mut self) {
        if self.is_stopped_before_files() {
            return self.leave();
        }
        let inbox = Arc::clone(&self.inbox);
        let mut heap = ThreadHeap::new(move || inbox.wake());
        loop {
            let orders = if self.may_sleep() { self.inbox.wait(self.due()) } else { self.inbox.take() };
            if heap.is_requested() {
                self.writing.free_spare();
                heap.purge_if_requested();
            }
            // `None` if the server was dropped without stopping this thread.
            let Some(server) = self.server.upgrade() else { return };
            for order in orders {
                self.obey(&server, order);
            }
            let aof = &server.snapshots().aof;
            self.set_eager(
                aof.gate().awaits_syncs(Durability::Default)
                    || aof.is_sync_asked()
                    || self.is_ending
                    || !self.awaited.is_empty(),
            );
            if self.is_eager && self.failed_at.is_none() {
                self.reader.end_epoch();
            }
            if self.turn(&server).is_err() {
                if !self.lacks_place {
                    self.writing.end(aof.place().as_mut());
                }
                for reader in [Some(self.reader), self.cut].into_iter().flatten() {
                    server.keyspace().leave_journal(&reader);
                }
                // The readers were removed first. Otherwise, the journal could still report that
                // the thread is behind, which would shut the gate again.
                aof.written.pending_bytes.store(0, Relaxed);
                aof.written.awaits_base.store(false, Relaxed);
                aof.note_unwritten(&server, 0);
                if aof.state() == State::Off {
                    // The file is off, so its last error must no longer make the server reject
                    // writes.
                    aof.set_write_error(&server, 0);
                }
                if let Some(base) = self.base {
                    rewrite::abandon(&server, &base);
                }
                return;
            }
        }
    }

    /// Waits until this thread may use the files: if the file was turned off and on again, a former
    /// thread may still be ending. Returns `true` as soon as this thread must end instead.
    fn is_stopped_before_files(&self) -> bool {
        let is_stopped =
            |orders: &VecDeque<Order>| self.lacks_place && orders.iter().any(|order| matches!(order, Order::Stop));
        self.inbox
            .wait_until(|orders| if is_stopped(orders) { Some(true) } else { self.queued.is_first().then_some(false) })
    }

    /// Ends the thread before it has opened a file. The file was turned off before its first base
    /// was complete, so its effects could not be loaded. If the thread waited for the files to
    /// write these effects, the journal would keep them in memory until then.
    fn leave(self) {
        let Some(server) = self.server.upgrade() else { return };
        let aof = &server.snapshots().aof;
        server.keyspace().leave_journal(&self.reader);
        // Called after the reader was removed, as in `run`. The other statistics belong to the
        // former thread.
        aof.note_unwritten(&server, 0);
        for order in self.inbox.take() {
            match order {
                Order::Cut(reader) => server.keyspace().leave_journal(&reader),
                Order::Base(base) => rewrite::abandon(&server, &base),
                // An error means that the caller no longer waits.
                Order::Sync(sender) => drop(sender.send(false)),
                Order::Confirm(confirm) => confirm(false),
                Order::Unask => aof.note_unasked(&server),
                Order::Stop => {}
            }
        }
    }

    fn set_eager(&mut self, is_eager: bool) {
        if std::mem::replace(&mut self.is_eager, is_eager) != is_eager {
            self.reader.set_eager(is_eager);
        }
    }

    /// Returns whether the thread may sleep until an order or a wake-up arrives. After a failure
    /// the thread sleeps until the retry, and the journal's thread ends the epochs.
    fn may_sleep(&self) -> bool {
        !self.is_eager || self.failed_at.is_some() || self.reader.may_sleep()
    }

    /// Returns when the next retry or sync is due, or `None` if none is needed.
    fn due(&self) -> Option<Instant> {
        match self.failed_at {
            Some(failed_at) => Some(failed_at + PERIOD),
            None => self.writing.is_dirty().then(|| self.synced_at + PERIOD),
        }
    }

    fn obey(&mut self, server: &Arc<Server>, order: Order) {
        match order {
            Order::Cut(reader) => {
                // A former cut was never reached, so its rewrite has ended without a new base.
                if let Some(former) = self.cut.replace(reader) {
                    server.keyspace().leave_journal(&former);
                }
                self.writing.cut();
                self.base = None;
            }
            Order::Base(base) => self.base = Some(base),
            Order::Sync(sender) => self.await_epoch(server, Awaiting::Caller(sender)),
            Order::Confirm(confirm) => self.await_epoch(server, Awaiting::Confirm(confirm)),
            Order::Unask => self.await_epoch(server, Awaiting::Unask),
            Order::Stop => {
                self.is_ending = true;
                self.await_epoch(server, Awaiting::End);
            }
        }
    }

    /// Registers a waiter for the sync of all effects committed so far. These effects belong to the
    /// journal's current epoch (a period of about a millisecond) or to earlier epochs. So the
    /// waiter waits for all effects of the current epoch. Makes the current epoch end soon.
    fn await_epoch(&mut self, server: &Server, awaiting: Awaiting) {
        let journal = server.keyspace().journal();
        self.awaited.push((journal.epoch_end(), awaiting));
        journal.demand();
        self.set_eager(true);
    }

    /// Reads and writes all available effects, and syncs them if a sync is due. After a failure,
    /// does nothing until the retry is due or the thread must end.
    fn turn(&mut self, server: &Arc<Server>) -> Result<(), Ended> {
        let aof = &server.snapshots().aof;
        if let Some(failed_at) = self.failed_at
            && failed_at.elapsed() < PERIOD
            && !self.is_ending
        {
            return Ok(());
        }
        if self.is_at_start() {
            self.rotate(server);
        }
        loop {
            // If the batch still has unwritten effects, for example after the change to a new
            // increment, these are written before more effects are read.
            let has_more = if self.writing.is_written() { self.read(server) } else { true };
            aof.written.pending_bytes.store(self.writing.pending_bytes(), Relaxed);
            aof.written.busy_since_ms.store(server.monotonic_ms().max(1), Relaxed);
            faults::hold(Fault::StuckDisk);
            let delay_us = server.keyspace().tuning.aof_flush_delay_us.load(Relaxed);
            if delay_us > 0 && self.writing.pending_bytes() > 0 {
                std::thread::sleep(Duration::from_micros(delay_us));
            }
            let written = self.writing.write(aof.options.checksums.load(Relaxed)).map_err(|error| ("write", error));
            aof.written.pending_bytes.store(self.writing.pending_bytes(), Relaxed);
            if aof.gate().is_behind() {
                aof.note_unwritten(server, self.reader.lag_bytes() + self.writing.pending_bytes());
            }
            let synced = written.and_then(|()| self.sync_if_due(server).map_err(|error| ("sync", error)));
            aof.written.busy_since_ms.store(0, Relaxed);
            match synced {
                Ok(()) => self.note_well(server),
                Err((what, error)) => {
                    self.note_failed(server, what, &error);
                    if what == "write" && !self.writing.is_rotated() {
                        // A rewrite is pending. The thread must continue, because the end of the
                        // rewrite may be the only way to free space on the disk. The snapshot of
                        // the rewrite contains the effects that are dropped here.
                        self.writing.abandon();
                        continue;
                    }
                    // A file whose sync has failed must not be synced again, but the next increment
                    // is another file. So if the reader has reached a cut, the thread continues
                    // with the next increment.
                    if self.writing.is_lost() && self.writing.is_written() && self.is_at_cut() {
                        self.rotate(server);
                    } else if self.writing.is_lost() && !self.writing.is_rotated() && has_more {
                        continue;
                    }
                    break;
                }
            }
            if self.is_at_cut() {
                self.rotate(server);
            } else if !has_more {
                break;
            }
        }
        if self.writing.is_rotated()
            && let Some(base) = self.base.take()
        {
            self.install(server, base);
            // After a failure, this turn may have left effects unread. The log wakes only readers
            // that have read everything, so the thread wakes itself.
            self.inbox.wake();
        }
        aof.written.awaits_base.store(self.writing.is_lost() || self.writing.awaits_base(), Relaxed);
        self.answer_awaited(server)
    }

    /// Reads the next part of the stream into the batch. Returns whether there is more to read.
    fn read(&mut self, server: &Arc<Server>) -> bool {
        let mut parts = Vec::new();
        let (ahead, before) = self.reader.read_through(BATCH_BYTES, &mut parts);
        // [`Order::Cut`] is sent before any effect after the cut is committed. So if these parts
        // extend beyond a cut, the cut's order is in the inbox by now, even if the inbox lacked it
        // at the start of this turn.
        for order in self.inbox.take() {
            self.obey(server, order);
        }
        self.writing.take(Taken {
            parts,
            end: self.reader.position().unwrap_or_default(),
            // A cut's position is known before any byte after the cut can be read.
            cut: self.cut.as_ref().and_then(Reader::position),
            before,
            now_s: annotated_s(server),
        });
        matches!(ahead, Ahead::More)
    }

    /// Returns whether the reader started at a cut and this thread has not tried yet to open the
    /// increment for the effects after the cut.
    fn is_at_start(&self) -> bool {
        self.cut.is_none() && !self.writing.is_rotated()
    }

    /// Returns whether all effects before the cut are in the batch or written.
    fn is_at_cut(&self) -> bool {
        let Some(cut) = self.cut.as_ref().and_then(Reader::position) else { return false };
        self.reader.position().is_some_and(|position| position >= cut)
    }

    /// Syncs the file if one of these requires it: `appendfsync`, a client's `CLIENT DURABILITY
    /// always`, a waiter, or the end of the thread. Also calls `sync` for a lost file.
    fn sync_if_due(&mut self, server: &Server) -> io::Result<()> {
        let aof = &server.snapshots().aof;
        // A file is *lost* if a sync of it has failed, or if it was abandoned because it could not
        // be written. For a lost file, `sync` returns an error without a system call. This error
        // makes the server reject writes until there is a new base.
        let is_wanted = !self.awaited.is_empty() || self.is_ending || aof.is_sync_asked() || self.writing.is_lost();
        match aof.fsync() {
            AppendFsync::Always => {}
            _ if is_wanted => {}
            AppendFsync::EverySecond if self.synced_at.elapsed() >= PERIOD => {
                let is_suspended =
                    aof.options.no_fsync_on_rewrite.load(Relaxed) && server.snapshots().background.running().is_some();
                if is_suspended {
                    self.synced_at = Instant::now();
                    return Ok(());
                }
            }
            AppendFsync::EverySecond | AppendFsync::No => {
                if aof.fsync() == AppendFsync::No {
                    self.synced_at = Instant::now();
                }
                return Ok(());
            }
        }
        let began = Instant::now();
        let durable_before = self.writing.sync()?;
        self.synced_at = Instant::now();
        if began.elapsed() > DELAY_MIN {
            aof.written.delayed_syncs.fetch_add(1, Relaxed);
        }
        if let Some(before) = durable_before {
            aof.note_synced(server, before);
        }
        Ok(())
    }

    fn note_well(&mut self, server: &Server) {
        let written = &server.snapshots().aof.written;
        self.failed_at = None;
        if !self.writing.awaits_base() && written.error.load(Relaxed) != 0 {
            tracing::warn!("AOF write error looks solved, Pantala can write again.");
            server.snapshots().aof.set_write_error(server, 0);
        }
        let others = server.snapshots().aof.place().as_ref().map_or(0, |place| place.others_bytes);
        written.current_bytes.store(others + self.writing.len_bytes(), Relaxed);
    }

    fn note_failed(&mut self, server: &Arc<Server>, what: &str, error: &io::Error) {
        if self.failed_at.is_none() {
            tracing::warn!("Error on AOF {what}: {error}");
        }
        if server.snapshots().aof.fsync() == AppendFsync::Always && server.snapshots().aof.state() == State::On {
            tracing::error!("Can't recover from AOF {what} error when the AOF fsync policy is 'always'. Exiting...");
            // Exits at once, so that none of the waiting replies is sent.
            std::process::exit(1);
        }
        self.failed_at = Some(Instant::now());
        let number = error.raw_os_error().unwrap_or(rustix::io::Errno::IO.raw_os_error());
        server.snapshots().aof.set_write_error(server, number);
        if self.writing.is_lost() && self.writing.is_rotated() {
            // After a failed sync, the kernel may have dropped the unsynced pages. So a successful
            // retry would prove nothing. The next base will contain the effects of these pages.
            rewrite::request_awaited(server);
        }
    }

    /// Continues with the next increment. Called when the reader has reached the cut.
    fn rotate(&mut self, server: &Arc<Server>) {
        if let Some(cut) = self.cut.take() {
            server.keyspace().leave_journal(&cut);
        }
        let was_lost = self.writing.is_lost();
        let placed = self.open_place(server);
        let rotated = {
            let mut place = server.snapshots().aof.place();
            let place = placed.as_ref().ok().and(place.as_mut());
            self.writing.rotate(place, annotated_s(server))
        };
        match placed.and(rotated) {
            Ok(name) => {
                tracing::info!("Creating AOF incr file {} on background rewrite", name.escape_ascii());
                self.synced_at = Instant::now();
            }
            Err(error) => {
                tracing::warn!("Can't open a new AOF increment: {error}");
                rewrite::fail(server);
                if self.writing.is_lost() && !was_lost {
                    self.note_failed(server, "sync", &error);
                }
            }
        }
    }

    /// Creates the directory and reads its manifest, if this thread has not done so yet.
    fn open_place(&mut self, server: &Server) -> io::Result<()> {
        if self.lacks_place {
            let aof = &server.snapshots().aof;
            *aof.place() = Some(rewrite::place_of(aof.directory(&server.config().settings()))?);
            self.lacks_place = false;
        }
        Ok(())
    }

    /// Makes the snapshot of the last cut the base.
    fn install(&mut self, server: &Arc<Server>, base: Result<Base, Unfinished>) {
        let aof = &server.snapshots().aof;
        let is_current = lock(&aof.writer).as_ref().is_some_and(|handle| Arc::ptr_eq(&handle.inbox, &self.inbox));
        let installed = base.and_then(|base| {
            // If this thread is ending, the files may belong to a later writer thread.
            let installed = if is_current || aof.state() == State::Off {
                self.writing.install(aof.place().as_mut(), base.described()).map_err(Unfinished::Failed)
            } else {
                Err(Unfinished::Aborted)
            };
            installed.inspect_err(|_| base.discard())
        });
        if let Ok(durable_before) = installed {
            if is_current && aof.state() == State::AwaitsBase {
                aof.set_state(server, State::On);
            }
            if let Some(before) = durable_before {
                aof.note_synced(server, before);
            }
            if self.writing.is_written() {
                self.note_well(server);
            }
        } else if self.writing.awaits_base() {
            // The server rejects writes until there is a base, so a rewrite is scheduled.
            aof.rewrites.is_scheduled.store(true, Relaxed);
        }
        rewrite::note_ended(server, &installed.map(drop));
    }

    /// Notifies the waiters whose effects are on disk. If the last write or sync has failed, also
    /// notifies the other waiters of the failure, except [`Awaiting::Confirm`] and
    /// [`Awaiting::Unask`]. These keep waiting until the effects are on disk or the thread ends.
    /// Returns [`Ended`] if the thread must end.
    fn answer_awaited(&mut self, server: &Server) -> Result<(), Ended> {
        if self.awaited.is_empty() {
            return Ok(());
        }
        let is_failed = self.failed_at.is_some();
        let written_before = self.writing.written_before();
        // [`Awaiting::Unask`] releases replies that wait for a sync. So after a failure, this
        // waiter keeps waiting until the effects are on disk. It also waits until the manifest
        // lists the first base, because a server restarted before that would load none of the
        // effects. [`Awaiting::Confirm`] waits in the same way.
        let awaits_base = self.writing.awaits_base() || server.snapshots().aof.state() == State::AwaitsBase;
        let keeps_asked = !self.is_ending && (is_failed || awaits_base);
        let is_over = |(stamp, awaiting): &mut (u64, Awaiting)| {
            let is_patient = matches!(awaiting, Awaiting::Unask | Awaiting::Confirm(_));
            !(is_patient && keeps_asked) && (is_failed || *stamp <= written_before)
        };
        let is_durable = !is_failed && !awaits_base;
        for (_, awaiting) in self.awaited.extract_if(.., is_over) {
            match awaiting {
                // An error means that the caller no longer waits.
                Awaiting::Caller(sender) => drop(sender.send(!is_failed)),
                Awaiting::Confirm(confirm) => confirm(is_durable),
                Awaiting::Unask => server.snapshots().aof.note_unasked(server),
                Awaiting::End => {}
            }
        }
        if !self.awaited.is_empty() {
            if self.awaited.iter().any(|(stamp, _)| *stamp > written_before) {
                server.keyspace().journal().demand();
            }
            return Ok(());
        }
        if self.is_ending { Err(Ended) } else { Ok(()) }
    }
}
