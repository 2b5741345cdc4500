//! A received snapshot. It is loaded once it is complete. Until then it is kept in a file in `dir`
//! or, with `repl-diskless-load swapdb`, in memory.
//!
//! The memory is an unnamed file of the kernel (`memfd_create`), so loading reads both kinds in the
//! same way. No process maps this memory, so the resident memory (`used_memory_rss`) doesn't
//! include it. But it counts towards a memory limit of the control group. While the snapshot is
//! loaded, the part that was read is freed.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;

use pantala_engine::faults::{self, Fault};
use rustix::fs::{FallocateFlags, MemfdFlags};
use rustix::io::Errno;

use crate::config::NEW_FILE_MODE;
use crate::host::Server;
use crate::snapshot::loading::Watched;

/// The name that `/proc` shows for the memory.
const MEMORY_NAME: &str = "pantala-snapshot";

/// Memory is freed in multiples of this number of bytes, which is a multiple of the page size.
const FREED_BYTES: u64 = 64 * 1024;

/// The place of a received snapshot.
enum Place {
    /// A file, which is deleted after the load.
    Disk(PathBuf),
    /// Memory.
    Memory,
}

/// A received snapshot. When this is dropped, its file is deleted or its memory is freed.
pub(super) struct Received<'s> {
    file: File,
    place: Place,
    server: &'s Server,
    /// Number of bytes of memory that are counted in `snapshot_bytes`.
    memory_bytes: u64,
    /// The database that the stream has selected at the snapshot's offset.
    pub(super) stream_db: u32,
    /// Number of keys in the snapshot.
    pub(super) keys: u64,
}

impl<'s> Received<'s> {
    /// Creates an empty file for a flow. As in Redis, it is in `dir`, because the file system of
    /// `dir` has room for data.
    pub(super) fn in_file(server: &'s Server, dir: &Path, flow: u32) -> Result<Self, String> {
        let path = dir.join(match flow {
            0 => format!("temp-repl-{}.rdb", std::process::id()),
            flow => format!("temp-repl-{}-{flow}.rdb", std::process::id()),
        });
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(true).mode(NEW_FILE_MODE);
        let file = options.open(&path).map_err(|error| failed(&path.display().to_string(), &error))?;
        Ok(Received { file, place: Place::Disk(path), server, memory_bytes: 0, stream_db: 0, keys: 0 })
    }

    /// Creates an empty snapshot in memory.
    pub(super) fn in_memory(server: &'s Server) -> Result<Self, String> {
        let file = memory_file().map_err(|error| failed("memory", &error))?;
        Ok(Received { file, place: Place::Memory, server, memory_bytes: 0, stream_db: 0, keys: 0 })
    }

    /// Appends bytes to the snapshot.
    pub(super) fn append(&mut self, bytes: &[u8]) -> Result<(), String> {
        match &self.place {
            Place::Disk(path) => {
                self.file.write_all(bytes).map_err(|error| failed(&path.display().to_string(), &error))
            }
            Place::Memory => {
                let is_full = faults::hits(Fault::NoMemory);
                let written = if is_full { Err(Errno::NOMEM.into()) } else { self.file.write_all(bytes) };
                written.map_err(|error| failed("memory", &error))?;
                self.memory_bytes += bytes.len() as u64;
                self.server.replication().replica.snapshot_bytes.fetch_add(bytes.len() as u64, Relaxed);
                Ok(())
            }
        }
    }

    /// Returns whether the snapshot is in memory.
    pub(super) fn is_in_memory(&self) -> bool {
        matches!(self.place, Place::Memory)
    }

    /// Returns the length of the snapshot, bytes.
    pub(super) fn len_bytes(&self) -> u64 {
        self.file.metadata().map_or(0, |data| data.len())
    }

    /// Returns a reader of the whole snapshot. The snapshot can be read once, because memory is
    /// freed after it was read.
    pub(super) fn reader(&mut self) -> io::Result<Reader<'_>> {
        self.file.seek(SeekFrom::Start(0))?;
        let frees = self.is_in_memory();
        let watched = Watched { file: &self.file, server: self.server };
        Ok(Reader { watched, frees, read_bytes: 0, freed_bytes: 0, memory_bytes: &mut self.memory_bytes })
    }
}

impl Drop for Received<'_> {
    fn drop(&mut self) {
        match &self.place {
            // The result is ignored, because the file may have been deleted already.
            Place::Disk(path) => _ = std::fs::remove_file(path),
            Place::Memory => {
                self.server.replication().replica.snapshot_bytes.fetch_sub(self.memory_bytes, Relaxed);
            }
        }
    }
}

/// Reads a received snapshot from its start.
pub(super) struct Reader<'r> {
    watched: Watched<'r>,
    /// Whether to free the memory that was read.
    frees: bool,
    read_bytes: u64,
    freed_bytes: u64,
    /// [`Received::memory_bytes`].
    memory_bytes: &'r mut u64,
}

impl Read for Reader<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let read = self.watched.read(buf)?;
        self.read_bytes += read as u64;
        if self.frees {
            let freed = free_up_to(self.watched.file, self.freed_bytes, self.read_bytes);
            self.freed_bytes += freed;
            *self.memory_bytes -= freed;
            self.watched.server.replication().replica.snapshot_bytes.fetch_sub(freed, Relaxed);
        }
        Ok(read)
    }
}

/// Frees the memory of a file's bytes from offset `freed` to offset `read`, in multiples of
/// [`FREED_BYTES`]. Returns the number of bytes freed.
fn free_up_to(file: &File, freed: u64, read: u64) -> u64 {
    let len = (read - freed) / FREED_BYTES * FREED_BYTES;
    // An error only means that the memory is freed later, when the file is closed.
    let is_freed = len > 0
        && rustix::fs::fallocate(file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, freed, len).is_ok();
    if is_freed { len } else { 0 }
}

/// Returns a file in memory, without a path.
fn memory_file() -> io::Result<File> {
    let create = |flags| rustix::fs::memfd_create(MEMORY_NAME, MemfdFlags::CLOEXEC | flags);
    // A host with `vm.memfd_noexec=2` permits only memory that can't be executed. Kernels before
    // 6.3 don't know the flag.
    match create(MemfdFlags::NOEXEC_SEAL) {
        Err(Errno::INVAL) => Ok(create(MemfdFlags::empty())?.into()),
        created => Ok(created?.into()),
    }
}

/// Returns the reason for a failed attempt, for the log.
fn failed(place: &str, error: &io::Error) -> String {
    format!("Can't write the snapshot from MASTER to {place}, the dataset stays as it is: {error}")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn memory_is_freed_while_it_is_read() {
        let mut file = memory_file().expect("a file in memory");
        let all = vec![7; 5 * FREED_BYTES as usize + 1];
        file.write_all(&all).expect("memory");
        let blocks = |file: &File| file.metadata().expect("metadata").blocks();
        let full = blocks(&file);
        let mut freed = 0;
        for (read, expected) in [
            (FREED_BYTES - 1, 0),
            (FREED_BYTES, FREED_BYTES),
            (2 * FREED_BYTES + 1, 2 * FREED_BYTES),
            (all.len() as u64, 5 * FREED_BYTES),
        ] {
            freed += free_up_to(&file, freed, read);
            assert_eq!(freed, expected, "{read} bytes were read");
        }
        assert!(blocks(&file) <= full / 5, "{} of {full} blocks", blocks(&file));
        assert_eq!(file.metadata().expect("metadata").len(), all.len() as u64);
        file.seek(SeekFrom::Start(freed)).expect("a position");
        let mut rest = Vec::new();
        file.read_to_end(&mut rest).expect("memory");
        assert_eq!(rest, [7], "the unread byte is kept");
    }
}
