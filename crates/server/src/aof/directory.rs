//! The directory of the append-only file, on the operating system's file system.

use std::fs::{self, File};
use std::io::{self, IoSlice};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use pantala_engine::faults::{self, Fault};
use pantala_persistence::aof;
use pantala_persistence::aof::disk::{AppendFile, Disk};
use pantala_runtime::SequentialFile;

use crate::config::{NEW_FILE_MODE, Settings};

/// Mode of a new directory: only the owner may list, add or remove files.
const NEW_DIRECTORY_MODE: u32 = 0o700;

/// The operating system's file system.
#[derive(Clone, Copy, Debug)]
pub struct SystemDisk;

/// The directory. Paths are absolute, because `CONFIG SET dir` may change the working directory.
pub type Directory = aof::Directory<SystemDisk>;

/// The directory, and the manifest of the files in it.
pub type Place = aof::Place<SystemDisk>;

/// Returns the directory that the settings name.
pub fn directory_of(settings: &Settings) -> Directory {
    Directory::new(SystemDisk, settings.dir.join(&settings.appenddirname), settings.appendfilename.clone())
}

/// An open file of the directory.
#[derive(Debug)]
pub struct SystemFile(SequentialFile);

/// Calls `operation`, which changes or syncs files. Tests kill the process before or after it.
pub(super) fn between_kills<T>(operation: impl FnOnce() -> T) -> T {
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

    fn truncate(&mut self, len: u64) -> io::Result<()> {
        between_kills(|| self.0.truncate(len))
    }

    fn sync(&mut self) -> io::Result<()> {
        between_kills(|| self.0.sync())
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.0.len())
    }
}

impl Disk for SystemDisk {
    type File = SystemFile;

    fn create_directory(&self, path: &Path) -> io::Result<()> {
        faults::hold(Fault::StuckDisk);
        between_kills(|| fs::DirBuilder::new().mode(NEW_DIRECTORY_MODE).create(path))
    }

    fn sync_directory(&self, path: &Path) -> io::Result<()> {
        let directory = File::open(path)?;
        match between_kills(|| directory.sync_all()) {
            // Some file systems can't sync a directory.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(()),
            synced => synced,
        }
    }

    fn open(&self, path: &Path) -> io::Result<SystemFile> {
        faults::hold(Fault::StuckDisk);
        between_kills(|| SequentialFile::open(path, NEW_FILE_MODE)).map(SystemFile)
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        fs::read(path)
    }

    fn size(&self, path: &Path) -> io::Result<u64> {
        Ok(fs::metadata(path)?.len())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        faults::hold(Fault::StuckDisk);
        between_kills(|| fs::rename(from, to))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        between_kills(|| fs::remove_file(path))
    }
}
