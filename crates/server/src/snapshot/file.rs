//! Writes the file of a snapshot, which atomically replaces the file of the previous snapshot.
//!
//! The new file is written under a temporary name in the same directory, synced and renamed. Then
//! the directory is synced. So the previous file remains until the new file is complete on disk. If
//! a step before the rename fails, the new file is removed.

use std::fmt;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use pantala_runtime::SequentialFile;

use crate::config::{NEW_FILE_MODE, Settings};

/// With `rdb-save-incremental-fsync`, the file is synced each time that this number of bytes has
/// been written, as in Redis.
const SYNC_EVERY_BYTES: u64 = 4 * 1024 * 1024;

/// The failed step of writing a file, and its error.
#[derive(Debug)]
pub struct Failed {
    doing: &'static str,
    error: io::Error,
}

impl Failed {
    /// Creates the failure of a step.
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

/// The path of a snapshot file, and the temporary path under which the file is written.
#[derive(Clone, Debug)]
pub struct Target {
    path: PathBuf,
    temporary: PathBuf,
    /// Whether the file is also synced during the writing (`rdb-save-incremental-fsync`).
    syncs: bool,
}

/// A file that is being written under its temporary name.
#[derive(Debug)]
pub struct Unfinished {
    target: Target,
    file: SequentialFile,
    synced_len: u64,
    is_finished: bool,
}

impl Target {
    /// Returns the target of a snapshot. The paths are absolute, because `CONFIG SET dir` may
    /// change the working directory. Snapshots that are written at the same time need different
    /// `number`s, so that their temporary paths differ.
    pub fn of(settings: &Settings, number: u32) -> Self {
        let path = super::path_of(settings);
        let temporary = path.with_file_name(match number {
            0 => format!("temp-{}.rdb", std::process::id()),
            _ => format!("temp-{}-{number}.rdb", std::process::id()),
        });
        Target { path, temporary, syncs: settings.rdb_save_incremental_fsync }
    }

    /// Returns the final path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Creates the temporary file.
    ///
    /// # Errors
    /// The system's error.
    pub fn create(self) -> Result<Unfinished, Failed> {
        let file = SequentialFile::create(&self.temporary, NEW_FILE_MODE)
            .map_err(|error| Failed::during("opening a temporary file", error))?;
        Ok(Unfinished { target: self, file, synced_len: 0, is_finished: false })
    }
}

impl Unfinished {
    /// Writes the next bytes.
    ///
    /// # Errors
    /// The system's error.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), Failed> {
        self.file.gather(bytes).map_err(|error| Failed::during("writing", error))?;
        if self.target.syncs && self.file.len() - self.synced_len >= SYNC_EVERY_BYTES {
            self.file.sync().map_err(|error| Failed::during("syncing", error))?;
            self.synced_len = self.file.len();
        }
        Ok(())
    }

    /// Syncs the file and renames it to its final name.
    ///
    /// # Errors
    /// The system's error. The previous file is then unchanged.
    pub fn finish(mut self) -> Result<(), Failed> {
        let Target { path, temporary, .. } = &self.target;
        self.file.flush().map_err(|error| Failed::during("writing", error))?;
        self.file.sync().map_err(|error| Failed::during("syncing", error))?;
        fs::rename(temporary, path).map_err(|error| Failed::during("renaming", error))?;
        self.is_finished = true;
        // A failure is only logged: the new file is already synced and renamed, and on some file
        // systems directories can't be synced.
        let dir = path.parent().unwrap_or(Path::new("."));
        if let Err(error) = File::open(dir).and_then(|dir| dir.sync_all()) {
            tracing::warn!("Syncing the directory '{}' failed: {error}", dir.display());
        }
        Ok(())
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if !self.is_finished {
            // An error is ignored, because the file may have been removed already.
            let _ = fs::remove_file(&self.target.temporary);
        }
    }
}
