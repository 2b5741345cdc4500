//! The file of a snapshot, and the temporary file that replaces it ([`TemporaryFile`]).

use std::path::{Path, PathBuf};

use pantala_persistence::temporary::{Failed, SYNC_EVERY_BYTES, TemporaryFile};

use crate::config::Settings;
use crate::disk::SystemDisk;

/// A snapshot file that is being written.
pub type Unfinished = TemporaryFile<SystemDisk>;

/// The path of a snapshot file, and the temporary path under which the file is written.
#[derive(Clone, Debug)]
pub struct Target {
    path: PathBuf,
    temporary: PathBuf,
    /// Whether the file is also synced during the writing (`rdb-save-incremental-fsync`).
    syncs: bool,
}

impl Target {
    /// Returns the target of a snapshot. The paths are absolute, because `CONFIG SET dir` may
    /// change the working directory. Snapshots that are written at the same time need different
    /// `number`s, so that their temporary paths differ.
    pub fn of(settings: &Settings, number: u32) -> Self {
        let path = super::path_of(settings);
        let temporary = settings.dir.join(match number {
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
    pub fn create(&self) -> Result<Unfinished, Failed> {
        TemporaryFile::create(SystemDisk::Snapshots, self.temporary.clone(), self.syncs.then_some(SYNC_EVERY_BYTES))
    }
}
