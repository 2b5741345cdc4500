//! The file operations by which snapshots and the append-only file are written. The server
//! implements them with the system's files, the crash tests (`tests/crash`) with simulated files.

use std::fmt::Debug;
use std::io::{self, ErrorKind, IoSlice};
use std::path::Path;

/// A file that is written at its end.
pub trait AppendFile {
    /// Writes bytes at the end of the file, possibly not all of them. Returns the number of written
    /// bytes.
    ///
    /// # Errors
    /// The system's error.
    fn append(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize>;
    /// Adds bytes to a buffer, and writes the buffer at the end of the file whenever it is full.
    ///
    /// # Errors
    /// The system's error. A part of the buffer may have been written. The rest is dropped.
    fn gather(&mut self, bytes: &[u8]) -> io::Result<()>;
    /// Writes the buffer of [`Self::gather`].
    ///
    /// # Errors
    /// The system's error. A part of the buffer may have been written. The rest is dropped.
    fn flush(&mut self) -> io::Result<()>;
    /// Frees buffers that are kept only for later writes. Bytes in the buffer of [`Self::gather`]
    /// are kept.
    fn free_spare(&mut self);
    /// Cuts the file to a length, bytes. The buffer of [`Self::gather`] is dropped.
    ///
    /// # Errors
    /// The system's error.
    fn truncate(&mut self, len: u64) -> io::Result<()>;
    /// Makes the content durable. Once a call has failed, later calls may succeed although the
    /// content isn't durable.
    ///
    /// # Errors
    /// The system's error.
    fn sync(&mut self) -> io::Result<()>;
    /// Returns whether bytes that were written since the last sync are known to be lost. Then all
    /// writes and syncs fail.
    fn has_lost_bytes(&self) -> bool;
    /// Returns the length, bytes. Bytes in the buffer of [`Self::gather`] are not included.
    ///
    /// # Errors
    /// The system's error.
    fn size(&self) -> io::Result<u64>;
}

/// Files and directories.
pub trait Disk: Clone + Debug {
    /// An open file.
    type File: AppendFile + Debug;
    /// Creates a directory.
    ///
    /// # Errors
    /// The system's error. An existing directory is an error too.
    fn create_directory(&self, path: &Path) -> io::Result<()>;
    /// Makes the names in a directory durable.
    ///
    /// # Errors
    /// The system's error.
    fn sync_directory(&self, path: &Path) -> io::Result<()>;
    /// Opens a file to append to it. Creates the file if it doesn't exist.
    ///
    /// # Errors
    /// The system's error.
    fn open(&self, path: &Path) -> io::Result<Self::File>;
    /// Returns the content of a file.
    ///
    /// # Errors
    /// The system's error.
    fn read(&self, path: &Path) -> io::Result<Vec<u8>>;
    /// Returns the length of a file, bytes.
    ///
    /// # Errors
    /// The system's error.
    fn size(&self, path: &Path) -> io::Result<u64>;
    /// Renames a file atomically. Replaces an existing file that has the new name.
    ///
    /// # Errors
    /// The system's error.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Deletes a file.
    ///
    /// # Errors
    /// The system's error.
    fn remove(&self, path: &Path) -> io::Result<()>;
}

/// Writes all these bytes at the end of a file.
///
/// # Errors
/// The system's error. A part of the bytes may have been written.
pub fn append_all(file: &mut impl AppendFile, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match file.append(&[IoSlice::new(bytes)]) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(written) => bytes = &bytes[written..],
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
