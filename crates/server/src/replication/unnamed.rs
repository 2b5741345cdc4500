//! Temporary files without a name.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crate::config::NEW_FILE_MODE;

/// Number of names that are tried, because a file of another server, or of a server that was
/// killed, may exist.
const NAMES_MAX: u32 = 100;

/// Opens an empty temporary file without a name in `dir`, so that the system frees the file when it
/// is closed. If the file system supports only files with a name, the name contains `label` and is
/// removed at once.
pub(super) fn unnamed_file(dir: &Path, label: &str) -> io::Result<File> {
    let options = || OpenOptions::new().read(true).write(true).mode(NEW_FILE_MODE).clone();
    if let Ok(file) = options().custom_flags(libc::O_TMPFILE).open(dir) {
        return Ok(file);
    }
    // Servers in different containers may have the same process ID and share a directory.
    for number in 0..NAMES_MAX {
        let path = dir.join(format!("temp-{label}-{}-{number}", std::process::id()));
        match options().create_new(true).open(&path) {
            Ok(file) => {
                std::fs::remove_file(&path)?;
                return Ok(file);
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}
