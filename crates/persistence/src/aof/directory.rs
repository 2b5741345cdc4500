//! The directory of the append-only file, and its manifest.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use super::manifest::{Listed, Manifest, ManifestError};
use super::names;
use crate::disk::{AppendFile, Disk, append_all};

/// The directory of the files.
#[derive(Clone, Debug)]
pub struct Directory<D> {
    disk: D,
    path: PathBuf,
    prefix: Vec<u8>,
}

/// The reason why a manifest could not be read.
#[derive(Debug)]
pub enum Unread {
    /// The system's error.
    Io(io::Error),
    /// The manifest is invalid.
    Wrong(ManifestError),
}

impl<D: Disk> Directory<D> {
    /// Returns the directory at `path`. The names of its files start with `prefix`.
    pub fn new(disk: D, path: PathBuf, prefix: Vec<u8>) -> Self {
        Directory { disk, path, prefix }
    }

    /// Returns the path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the prefix of the files' names.
    pub fn prefix(&self) -> &[u8] {
        &self.prefix
    }

    /// Returns the path of a file in the directory.
    pub fn join(&self, name: &[u8]) -> PathBuf {
        self.path.join(OsString::from_vec(name.to_vec()))
    }

    /// Returns the path of a file beside the directory.
    pub fn beside(&self, name: &str) -> PathBuf {
        self.parent().join(name)
    }

    fn parent(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new("/"))
    }

    /// Creates the directory if it doesn't exist.
    ///
    /// # Errors
    /// The system's error.
    pub fn create(&self) -> io::Result<()> {
        match self.disk.create_directory(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        // The parent is synced even if the directory existed: the process that created the
        // directory may have failed before its sync.
        self.disk.sync_directory(self.parent())
    }

    /// Reads the manifest. Returns an empty one if there is none.
    ///
    /// # Errors
    /// The manifest can't be read or is invalid.
    pub fn read_manifest(&self) -> Result<Manifest, Unread> {
        match self.disk.read(&self.join(&names::manifest(&self.prefix))) {
            Ok(text) => Manifest::parse(&text).map_err(Unread::Wrong),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Manifest::default()),
            Err(error) => Err(Unread::Io(error)),
        }
    }

    /// Replaces the manifest atomically. After an error or a crash, the disk has either the former
    /// or the new manifest.
    ///
    /// # Errors
    /// The system's error.
    pub fn write_manifest(&self, manifest: &Manifest) -> io::Result<()> {
        let temporary = self.join(&names::temporary_manifest(&self.prefix));
        let mut file = self.disk.open(&temporary)?;
        file.truncate(0)?;
        append_all(&mut file, &manifest.text())?;
        file.sync()?;
        self.disk.rename(&temporary, &self.join(&names::manifest(&self.prefix)))?;
        self.sync()
    }

    /// Opens a file for appending. If `is_new`, empties the file, and syncs its content and its
    /// name.
    ///
    /// # Errors
    /// The system's error.
    pub fn open_to_append(&self, name: &[u8], is_new: bool) -> io::Result<D::File> {
        let mut file = self.disk.open(&self.join(name))?;
        if is_new {
            // The file has content from before a crash. This content must not reappear when the
            // file is listed in the manifest.
            if file.size()? > 0 {
                file.truncate(0)?;
                file.sync()?;
            }
            self.sync()?;
        }
        Ok(file)
    }

    /// Checks that a file can be created in the directory. Leaves no file, even after an error. No
    /// other file is touched, so a thread may check the directory while another one writes to it.
    ///
    /// # Errors
    /// The system's error.
    pub fn check(&self) -> io::Result<()> {
        let name = names::probe(&self.prefix);
        let created = self.open_to_append(&name, true).map(drop);
        let removed = self.remove(&name);
        created?;
        match removed {
            // Another thread that checks the directory has removed the file.
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Cuts a file to a length, bytes, and syncs it.
    ///
    /// # Errors
    /// The system's error.
    pub fn truncate(&self, name: &[u8], len: u64) -> io::Result<()> {
        let mut file = self.disk.open(&self.join(name))?;
        file.truncate(len)?;
        file.sync()
    }

    /// Renames a file within the directory or into it.
    ///
    /// # Errors
    /// The system's error.
    pub fn rename(&self, from: &Path, to: &[u8]) -> io::Result<()> {
        self.disk.rename(from, &self.join(to))?;
        self.sync()
    }

    /// Deletes a file.
    ///
    /// # Errors
    /// The system's error.
    pub fn remove(&self, name: &[u8]) -> io::Result<()> {
        self.disk.remove(&self.join(name))
    }

    /// Returns the size of a listed file, bytes; 0 if it can't be read.
    pub fn size_of(&self, listed: &Listed) -> u64 {
        self.disk.size(&self.join(&listed.name)).unwrap_or(0)
    }

    /// Makes the files' names durable.
    ///
    /// # Errors
    /// The system's error.
    pub fn sync(&self) -> io::Result<()> {
        self.disk.sync_directory(&self.path)
    }
}
