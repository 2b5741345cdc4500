//! The thread that keeps the older part of the stream on disk (`repl-backlog-disk-size`). The
//! stream's log decides what to write, to read and to drop
//! ([`pantala_engine::effect::log::spill`]); this thread does it, one task after the other. So
//! neither a worker nor the journal's thread waits for the disk.
//!
//! The files have no names, so the system frees them when the process ends.

mod files;

use std::io;
use std::ops::Range;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};

use pantala_base::SharedBytes;
use pantala_engine::effect::log::spill::{SpillLimits, SpillTask, SpillTaskKind};
use pantala_engine::faults::{self, Fault};

use super::Replication;
use super::unnamed::unnamed_file;
use crate::config::Settings;
use crate::host::Server;
use files::SpillFiles;

/// Minimum effective value of `repl-backlog-disk-size` if it isn't 0, bytes.
const DISK_BYTES_MIN: u64 = 1024 * 1024;

/// Bounds for the limit on bytes that wait to be written. The limit is the hard limit of
/// `client-output-buffer-limit` for replicas, clamped to these bounds.
const UNWRITTEN_BYTES_MIN: u64 = 64 * 1024 * 1024;
const UNWRITTEN_BYTES_MAX: u64 = 256 * 1024 * 1024;

/// Label of the files ([`unnamed_file`]).
const LABEL: &str = "repl-backlog";

/// Returns the limits for these settings.
pub fn limits(settings: &Settings) -> SpillLimits {
    let bytes_max = match settings.primary.backlog_disk_bytes {
        0 => 0,
        bytes => bytes.max(DISK_BYTES_MIN),
    };
    let unwritten_bytes_max = match settings.output_limit_replica.hard_bytes {
        0 => UNWRITTEN_BYTES_MAX,
        hard_bytes => hard_bytes.clamp(UNWRITTEN_BYTES_MIN, UNWRITTEN_BYTES_MAX),
    };
    SpillLimits { bytes_max, unwritten_bytes_max }
}

/// Whether the thread was started.
#[derive(Debug, Default)]
pub(super) struct Spilling(AtomicBool);

impl Replication {
    /// Starts the thread if a part of the stream is to be kept on disk. Worker 0 calls this a few
    /// times a second.
    pub(super) fn spill_if_wanted(&self, server: &Server) {
        if server.config().settings().primary.backlog_disk_bytes == 0 || self.spilling.0.swap(true, Relaxed) {
            return;
        }
        let server = self.shared();
        if let Err(error) =
            std::thread::Builder::new().name("pantala-backlog".into()).spawn(move || SpillThread::new(server).run())
        {
            tracing::warn!("Can't start the thread that writes the replication backlog to disk: {error}");
            self.spilling.0.store(false, Relaxed);
        }
    }
}

/// The state of the thread.
struct SpillThread {
    server: Weak<Server>,
    files: SpillFiles,
    /// Whether the last write has failed, and the log has the reason.
    has_failed: bool,
}

impl SpillThread {
    fn new(server: Weak<Server>) -> Self {
        SpillThread { server, files: SpillFiles::default(), has_failed: false }
    }

    fn run(&mut self) {
        let thread = std::thread::current();
        if let Some(server) = self.server.upgrade() {
            server.keyspace().journal().spilling().set_thread(Arc::new(move || thread.unpark()));
        }
        loop {
            let Some(server) = self.server.upgrade() else { return };
            if server.is_stopping() {
                return;
            }
            let next = server.keyspace().journal().spilling().next_task();
            match next {
                Ok(task) => self.work(&server, task),
                Err(pause) => {
                    drop(server);
                    // A wake in the meantime makes the thread continue at once.
                    pause.map_or_else(std::thread::park, std::thread::park_timeout);
                }
            }
        }
    }

    fn work(&mut self, server: &Server, SpillTask { generation, kind }: SpillTask) {
        let spilling = server.keyspace().journal().spilling();
        let outcome = match kind {
            SpillTaskKind::Clear(overflow_bytes) => {
                if let Some(bytes) = overflow_bytes {
                    self.report(&format!("the disk is too slow: {bytes} bytes wait to be written"));
                }
                // This may take seconds, because the file system frees large files.
                self.files.clear();
                spilling.note_cleared();
                Ok(())
            }
            SpillTaskKind::Write { start, parts, bytes_max } => {
                self.write(server, start, &parts, bytes_max).map(|()| {
                    spilling.note_written(generation, self.files.held());
                })
            }
            SpillTaskKind::Read { reader, range, mut buffer } => {
                let start = range.start;
                self.read(range, &mut buffer).map(|()| spilling.note_read(generation, reader, start, buffer))
            }
        };
        if let Err(error) = outcome {
            self.report(&error.to_string());
            // The next task drops the files.
            spilling.note_failed(generation);
        }
    }

    fn write(&mut self, server: &Server, mut start: u64, parts: &[Arc<SharedBytes>], bytes_max: u64) -> io::Result<()> {
        faults::hold(Fault::StuckDisk);
        let dir = server.config().settings().dir.clone();
        let mut open = || unnamed_file(&dir, LABEL);
        // Appends nothing, but drops the oldest bytes if the limit has become lower. Without this
        // call, a write of no parts would drop nothing.
        self.files.append(start, &[], bytes_max, &mut open)?;
        for part in parts {
            self.files.append(start, part, bytes_max, &mut open)?;
            start += part.len() as u64;
        }
        if self.has_failed && !parts.is_empty() {
            self.has_failed = false;
            tracing::info!("The older part of the replication backlog is written to disk again.");
        }
        Ok(())
    }

    fn read(&self, range: Range<u64>, into: &mut Vec<u8>) -> io::Result<()> {
        faults::hold(Fault::StuckDisk);
        if faults::hits(Fault::UnreadableBacklog) {
            return Err(io::Error::other("injected fault"));
        }
        self.files.read(range, into)
    }

    fn report(&mut self, why: &str) {
        if !std::mem::replace(&mut self.has_failed, true) {
            tracing::warn!(
                "The older part of the replication backlog can't be kept on disk: {why}. Replicas that need it are \
                 disconnected. The next attempt is in a minute."
            );
        }
    }
}
