//! The directory of the append-only file on the system's disk.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use pantala_persistence::aof;
use pantala_persistence::aof::disk::{AppendFile, Disk};

use crate::config::{NEW_FILE_MODE, Settings};

/// The system's disk.
#[derive(Clone, Copy, Debug)]
pub struct SystemDisk;

/// The directory. Paths are absolute, because `CONFIG SET dir` may change the working directory.
pub type Directory = aof::Directory<SystemDisk>;

/// The files in it.
pub type Place = aof::Place<SystemDisk>;

/// Returns the directory that the settings name.
pub fn directory_of(settings: &Settings) -> Directory {
    Directory::new(SystemDisk, settings.dir.join(&settings.appenddirname), settings.appendfilename.clone())
}

/// One of its files.
#[derive(Debug)]
pub struct SystemFile(File);

impl AppendFile for SystemFile {
    fn append(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.write_vectored(slices)
    }

    fn truncate(&mut self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.0.sync_data()
    }

    /// Creates the directory unless it exists.
    ///
    /// # Errors
    /// The system's.
    pub fn create(&self) -> io::Result<()> {
        match fs::create_dir(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            Err(error) => Err(error),
            Ok(()) => sync_directory(self.path.parent().unwrap_or(Path::new("/"))),
        }
    }

    /// Reads the manifest. Returns an empty one if there is none.
    ///
    /// # Errors
    /// The manifest can't be read or is invalid.
    pub fn read_manifest(&self) -> Result<Manifest, Unread> {
        match fs::read(self.join(&names::manifest(&self.prefix))) {
            Ok(text) => Manifest::parse(&text).map_err(Unread::Wrong),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Manifest::default()),
            Err(error) => Err(Unread::Io(error)),
        }
    }

    /// Replaces the manifest atomically: after an error or a crash the disk has the former or the
    /// new one.
    ///
    /// # Errors
    /// The system's.
    pub fn write_manifest(&self, manifest: &Manifest) -> io::Result<()> {
        let temporary = self.join(&names::temporary_manifest(&self.prefix));
        let mut file =
            OpenOptions::new().write(true).create(true).truncate(true).mode(NEW_FILE_MODE).open(&temporary)?;
        file.write_all(&manifest.text())?;
        file.sync_all()?;
        fs::rename(&temporary, self.join(&names::manifest(&self.prefix)))?;
        self.sync()
    }

    /// Opens a file for appending. A new file (`is_new`) is truncated, and its name is synced.
    ///
    /// # Errors
    /// The system's.
    pub fn open_to_append(&self, name: &[u8], is_new: bool) -> io::Result<File> {
        let mut options = OpenOptions::new();
        options.append(true).create(true).mode(NEW_FILE_MODE);
        let file = options.open(self.join(name))?;
        if is_new {
            file.set_len(0)?;
            self.sync()?;
        }
        Ok(file)
    }

    /// Renames a file within the directory or into it.
    ///
    /// # Errors
    /// The system's.
    pub fn rename(&self, from: &Path, to: &[u8]) -> io::Result<()> {
        fs::rename(from, self.join(to))?;
        self.sync()
    }

    /// Deletes files of the manifest's history.
    pub fn delete(&self, history: &[Listed]) {
        for listed in history {
            let path = self.join(&listed.name);
            tracing::info!("Removing the history file {} in the background", listed.name.escape_ascii());
            if let Err(error) = fs::remove_file(&path) {
                tracing::warn!("Can't remove the file {}: {error}", path.display());
            }
        }
    }

    /// Returns the size of a listed file, bytes; 0 if it can't be read.
    pub fn size_of(&self, listed: &Listed) -> u64 {
        fs::metadata(self.join(&listed.name)).map_or(0, |metadata| metadata.len())
    }

    fn sync(&self) -> io::Result<()> {
        sync_directory(&self.path)
    }
}

impl Disk for SystemDisk {
    type File = SystemFile;

    fn create_directory(&self, path: &Path) -> io::Result<()> {
        fs::create_dir(path)
    }

    fn sync_directory(&self, path: &Path) -> io::Result<()> {
        match File::open(path)?.sync_all() {
            // Some file systems can't sync a directory.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(()),
            synced => synced,
        }
    }

    fn open(&self, path: &Path) -> io::Result<SystemFile> {
        OpenOptions::new().append(true).create(true).open(path).map(SystemFile)
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        fs::read(path)
    }

    fn size(&self, path: &Path) -> io::Result<u64> {
        Ok(fs::metadata(path)?.len())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }
}
