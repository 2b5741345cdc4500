//! Writes a file beside the last one and replaces the last one with it.
//!
//! The last file stays until the new one is on disk as a whole: it is written under another name,
//! synced, renamed, and its directory synced. Where any of that fails, the new file is removed.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{self, Receiver, Sender, SyncSender};

use pantala_engine::client::Host;
use pantala_engine::functions::Functions;
use pantala_engine::whole::{SaveFailed, Whole};
use pantala_persistence::rdb::{Facts, Sink, Version, write_dataset};

use crate::cli::REDIS_VERSION;
use crate::host::Server;

/// Most chunks that may wait for the disk.
const CHUNKS_MAX: usize = 4;

/// Bytes between two syncs with `rdb-save-incremental-fsync`, as in Redis.
const SYNC_EVERY_BYTES: usize = 4 * 1024 * 1024;

/// Writes a snapshot of all shards and replaces the last one with it.
///
/// # Errors
/// Writing failed, and the log says why; the last snapshot is still there.
pub fn save(server: &Server, whole: &mut Whole<'_>) -> Result<(), SaveFailed> {
    let settings = server.config().settings();
    let path = super::path_of(&settings);
    let facts = Facts {
        redis_version: REDIS_VERSION.to_owned(),
        used_bytes: server.memory().used_bytes,
        libraries: server.libraries().iter().map(|library| library.text.to_vec()).collect(),
        compresses: settings.rdb_compression,
        checks: settings.rdb_checksum,
    };
    let target = Target { temporary: temporary_path(&path), path, syncs: settings.rdb_save_incremental_fsync };
    let is_whole = AtomicBool::new(false);
    let written = std::thread::scope(|scope| {
        let (full, chunks) = mpsc::sync_channel(CHUNKS_MAX);
        let (recycled, empty) = mpsc::channel();
        let (target, is_whole) = (&target, &is_whole);
        let writing = std::thread::Builder::new()
            .name("pantala-snapshot".into())
            .spawn_scoped(scope, move || target.write(&chunks, &recycled, || is_whole.load(Relaxed)))
            .map_err(|error| Failed::during("starting a thread", error))?;
        let mut pipe = Pipe { full, empty };
        let (version, was_taken) = write_dataset(whole, &facts, &mut pipe);
        // The other thread sees this because it waits for the pipe to close.
        is_whole.store(was_taken, Relaxed);
        drop(pipe);
        let written = writing.join().unwrap_or_else(|_| Err(Failed::during("writing", io::ErrorKind::Other.into())));
        written.map(|()| version)
    });
    match written {
        Ok(version) => {
            if version == Version::Redis7_4 {
                tracing::info!("Fields of hashes expire: the RDB file has version 12, which Redis 7.4 and later read");
            }
            tracing::info!("DB saved on disk");
            let snapshots = server.snapshots();
            snapshots.set_unsaved_changes(server.keyspace(), 0);
            snapshots.last_save_s.store(server.now_ms() / 1000, Relaxed);
            snapshots.saves.fetch_add(1, Relaxed);
            Ok(())
        }
        Err(Failed { doing, error }) => {
            tracing::warn!("Write error saving DB on disk({doing} '{}'): {error}", target.path.display());
            Err(SaveFailed)
        }
    }
}

/// Returns the name of the file until it is complete, as in Redis.
fn temporary_path(path: &Path) -> PathBuf {
    path.with_file_name(format!("temp-{}.rdb", std::process::id()))
}

/// Why a file could not be written.
struct Failed {
    doing: &'static str,
    error: io::Error,
}

impl Failed {
    fn during(doing: &'static str, error: io::Error) -> Self {
        Failed { doing, error }
    }
}

/// The channel of chunks to the thread that writes.
struct Pipe {
    full: SyncSender<Vec<u8>>,
    /// Written buffers, for reuse.
    empty: Receiver<Vec<u8>>,
}

impl Sink for Pipe {
    fn take(&mut self, chunk: &mut Vec<u8>) -> bool {
        let full = std::mem::replace(chunk, self.empty.try_recv().unwrap_or_default());
        self.full.send(full).is_ok()
    }
}

/// Where a file is written.
struct Target {
    path: PathBuf,
    temporary: PathBuf,
    /// Sync while writing, too.
    syncs: bool,
}

impl Target {
    /// Writes all chunks and moves the file to its place, if `is_whole` says after the last chunk
    /// that nothing is missing.
    fn write(
        &self,
        chunks: &Receiver<Vec<u8>>,
        recycled: &Sender<Vec<u8>>,
        is_whole: impl Fn() -> bool,
    ) -> Result<(), Failed> {
        let written = self.write_temporary(chunks, recycled).and_then(|()| {
            if !is_whole() {
                return Err(Failed::during("writing", io::ErrorKind::UnexpectedEof.into()));
            }
            fs::rename(&self.temporary, &self.path).map_err(|error| Failed::during("renaming to", error))
        });
        if written.is_err() {
            // The file may not exist.
            let _ = fs::remove_file(&self.temporary);
            return written;
        }
        // The new file is in place and synced. Some file systems cannot sync a directory.
        let dir = self.path.parent().unwrap_or(Path::new("."));
        if let Err(error) = File::open(dir).and_then(|dir| dir.sync_all()) {
            tracing::warn!("Syncing the directory '{}' failed: {error}", dir.display());
        }
        Ok(())
    }

    fn write_temporary(&self, chunks: &Receiver<Vec<u8>>, recycled: &Sender<Vec<u8>>) -> Result<(), Failed> {
        let opened = OpenOptions::new().write(true).create(true).truncate(true).open(&self.temporary);
        let mut file = opened.map_err(|error| Failed::during("opening a temporary file for", error))?;
        let mut unsynced = 0;
        for mut chunk in chunks {
            file.write_all(&chunk).map_err(|error| Failed::during("writing", error))?;
            unsynced += chunk.len();
            if self.syncs && unsynced >= SYNC_EVERY_BYTES {
                file.sync_data().map_err(|error| Failed::during("syncing", error))?;
                unsynced = 0;
            }
            chunk.clear();
            // The other side may have finished.
            let _ = recycled.send(chunk);
        }
        file.sync_all().map_err(|error| Failed::during("syncing", error))
    }
}
