//! Temporary files without a name.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crate::config::NEW_FILE_MODE;

/// Opens an empty temporary file without a name in `dir`, so that the system frees the file when it
/// is closed. If the file system supports only files with a name, the name contains `label` and is
/// removed at once.
pub(super) fn unnamed_file(dir: &Path, label: &str) -> io::Result<File> {
    let options = || OpenOptions::new().read(true).write(true).mode(NEW_FILE_MODE).clone();
    if let Ok(file) = options().custom_flags(libc::O_TMPFILE).open(dir) {
        return Ok(file);
    }
    let path = dir.join(format!("temp-{label}-{}", std::process::id()));
    let file = options().create(true).truncate(true).open(&path)?;
    std::fs::remove_file(&path)?;
    Ok(file)
}
