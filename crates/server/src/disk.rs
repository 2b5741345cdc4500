//! The operating system's file system, on which snapshots and the append-only file are written.

use std::fs::{self, File};
use std::io::{self, IoSlice};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use pantala_engine::faults::{self, Fault};
use pantala_persistence::disk::{AppendFile, Disk};
use pantala_runtime::SequentialFile;

use crate::config::NEW_FILE_MODE;

/// Mode of a new directory: only the owner may list, add or remove files.
const NEW_DIRECTORY_MODE: u32 = 0o700;

/// The operating system's file system.
#[derive(Clone, Copy, Debug)]
pub enum SystemDisk {
    /// For snapshots.
    Snapshots,
    /// For the append-only file. Tests can make it stick ([`Fault::StuckDisk`]).
    AppendOnly,
}

impl SystemDisk {
    fn hold_if_stuck(self) {
        if matches!(self, SystemDisk::AppendOnly) {
            faults::hold(Fault::StuckDisk);
        }
    }
}

/// An open file that is written at its end.
#[derive(Debug)]
pub struct SystemFile(SequentialFile);

/// Calls `operation`, which changes or syncs files. Tests kill the process before or after it.
fn between_kills<T>(operation: impl FnOnce() -> T) -> T {
    kill_if_hit();
    let outcome = operation();
    kill_if_hit();
    outcome
}

fn kill_if_hit() {
    if faults::hits(Fault::KillAtDisk) {
        let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    }
}

impl AppendFile for SystemFile {
    fn append(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        between_kills(|| self.0.append(slices))
    }

    fn gather(&mut self, bytes: &[u8]) -> io::Result<()> {
        between_kills(|| self.0.gather(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        between_kills(|| self.0.flush())
    }

    fn free_spare(&mut self) {
        self.0.free_stage();
    }

    fn truncate(&mut self, len: u64) -> io::Result<()> {
        between_kills(|| self.0.truncate(len))
    }

    fn sync(&mut self) -> io::Result<()> {
        between_kills(|| self.0.sync())
    }

    fn has_lost_bytes(&self) -> bool {
        self.0.has_lost_pages()
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.0.len())
    }
}

impl Disk for SystemDisk {
    type File = SystemFile;

    fn create_directory(&self, path: &Path) -> io::Result<()> {
        self.hold_if_stuck();
        between_kills(|| fs::DirBuilder::new().mode(NEW_DIRECTORY_MODE).create(path))
    }

    fn sync_directory(&self, path: &Path) -> io::Result<()> {
        if faults::hits(Fault::UnsyncedDirectory) {
            return Err(rustix::io::Errno::IO.into());
        }
        let directory = File::open(path)?;
        match between_kills(|| directory.sync_all()) {
            // Some file systems can't sync a directory. As in Redis, this isn't a failure.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EBADF | libc::EINVAL)) => Ok(()),
            synced => synced,
        }
    }

    fn open(&self, path: &Path) -> io::Result<SystemFile> {
        self.hold_if_stuck();
        between_kills(|| SequentialFile::open(path, NEW_FILE_MODE)).map(SystemFile)
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        fs::read(path)
    }

    fn size(&self, path: &Path) -> io::Result<u64> {
        Ok(fs::metadata(path)?.len())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.hold_if_stuck();
        between_kills(|| fs::rename(from, to))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        between_kills(|| fs::remove_file(path))
    }
}
