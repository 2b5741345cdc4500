//! A small file system, for tests of a full disk.

use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

/// A folder, and a small file system in memory that may be mounted there. It is unmounted when the
/// value is dropped.
pub struct SmallDisk(TempDir);

impl SmallDisk {
    /// Returns an empty folder.
    ///
    /// # Panics
    /// If the folder can't be created.
    #[must_use]
    pub fn new() -> Self {
        SmallDisk(tempfile::tempdir().expect("a folder"))
    }

    /// Mounts a file system with these options of `tmpfs`. Returns whether that was possible: only
    /// root may mount a file system.
    #[must_use]
    pub fn mount(&self, options: &str) -> bool {
        let ran = Command::new("mount").args(["-t", "tmpfs", "-o", options, "tmpfs"]).arg(self.path()).status();
        ran.is_ok_and(|status| status.success())
    }

    /// Returns the path of the folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Default for SmallDisk {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.path()).status();
    }
}
