//! A file that is written under a temporary name: a snapshot, or the base of an append-only file.
//!
//! A snapshot replaces the previous one in this order:
//!
//! ```text
//! create temporary file ─► write, sync at intervals ─► sync ─► rename ─► sync the directory
//!            │                        │                  │        │              │
//!            └── after a failure: remove the temporary file ──────┘              └── reported
//! ```
//!
//! So at any instant, the disk has either the previous snapshot or the new one, complete. Only
//! after the last step is the new one sure to survive a crash.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use crate::disk::{AppendFile, Disk};

/// If a file is synced at intervals, it is synced each time that this number of bytes has been
/// written, as in Redis (`rdb-save-incremental-fsync`, `aof-rewrite-incremental-fsync`).
pub const SYNC_EVERY_BYTES: u64 = 4 * 1024 * 1024;

/// The failed step of writing a file, and its error.
#[derive(Debug)]
pub struct Failed {
    doing: &'static str,
    error: io::Error,
}

impl Failed {
    /// Creates the failure of a step.
    #[must_use]
    pub fn during(doing: &'static str, error: io::Error) -> Self {
        Failed { doing, error }
    }
}

impl From<Failed> for io::Error {
    fn from(failed: Failed) -> Self {
        io::Error::new(failed.error.kind(), failed.to_string())
    }
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.doing, self.error)
    }
}

impl std::error::Error for Failed {}

/// A file that is being written under a temporary name. When dropped, it removes the file, unless
/// the file has been renamed or kept.
#[derive(Debug)]
pub struct TemporaryFile<D: Disk> {
    disk: D,
    path: PathBuf,
    file: D::File,
    /// The number of bytes after which the file is synced during the writing.
    sync_every: Option<u64>,
    synced_len: u64,
    is_kept: bool,
}

impl<D: Disk> TemporaryFile<D> {
    /// Creates the file, or empties the file that an earlier process has left under this name. If
    /// `sync_every` is given, the file is synced each time that this number of bytes has been
    /// written.
    ///
    /// # Errors
    /// The system's error.
    pub fn create(disk: D, path: PathBuf, sync_every: Option<u64>) -> Result<Self, Failed> {
        let opening = |error| Failed::during("opening a temporary file", error);
        let file = disk.open(&path).map_err(opening)?;
        let mut temporary = TemporaryFile { disk, path, file, sync_every, synced_len: 0, is_kept: false };
        if temporary.size().map_err(opening)? > 0 {
            temporary.file.truncate(0).map_err(opening)?;
        }
        Ok(temporary)
    }

    /// Writes the next bytes. After an error, the file must be dropped.
    ///
    /// # Errors
    /// The system's error.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), Failed> {
        self.file.gather(bytes).map_err(|error| Failed::during("writing", error))?;
        let Some(sync_every) = self.sync_every else { return Ok(()) };
        let len = self.size().map_err(|error| Failed::during("writing", error))?;
        if len - self.synced_len >= sync_every {
            self.file.sync().map_err(|error| Failed::during("syncing", error))?;
            self.synced_len = len;
        }
        Ok(())
    }

    fn size(&self) -> io::Result<u64> {
        self.file.size()
    }

    /// Makes the content durable. Returns the length of the file, bytes. After an error, the file
    /// must be dropped, because another sync may succeed although the content isn't durable.
    ///
    /// # Errors
    /// The system's error.
    pub fn sync(&mut self) -> Result<u64, Failed> {
        self.file.flush().map_err(|error| Failed::during("writing", error))?;
        self.file.sync().map_err(|error| Failed::during("syncing", error))?;
        self.size().map_err(|error| Failed::during("syncing", error))
    }

    /// Keeps the file, whose content must be durable. Returns its path.
    #[must_use]
    pub fn keep(mut self) -> PathBuf {
        self.is_kept = true;
        std::mem::take(&mut self.path)
    }

    /// Makes the content durable, and renames the file to `path` in the same directory. The former
    /// file of this name is replaced atomically.
    ///
    /// # Errors
    /// The system's error. The former file is then unchanged, except if syncing the directory has
    /// failed: then the new file is in its place, but after a crash of the machine, the former file
    /// may be there again.
    pub fn replace(mut self, path: &Path) -> Result<(), Failed> {
        self.sync()?;
        self.disk.rename(&self.path, path).map_err(|error| Failed::during("renaming", error))?;
        self.is_kept = true;
        let directory = path.parent().unwrap_or(Path::new("."));
        self.disk.sync_directory(directory).map_err(|error| Failed::during("syncing the directory", error))
    }
}

impl<D: Disk> Drop for TemporaryFile<D> {
    fn drop(&mut self) {
        if !self.is_kept {
            // An error is ignored, because the file may have been removed already.
            let _ = self.disk.remove(&self.path);
        }
    }
}
