//! The directory of the append-only file.

use pantala_persistence::aof;

use crate::config::Settings;
use crate::disk::SystemDisk;

/// The directory. Paths are absolute, because `CONFIG SET dir` may change the working directory.
pub type Directory = aof::Directory<SystemDisk>;

/// The directory, and the manifest of the files in it.
pub type Place = aof::Place<SystemDisk>;

/// Returns the directory that the settings name.
pub fn directory_of(settings: &Settings) -> Directory {
    Directory::new(SystemDisk::AppendOnly, settings.dir.join(&settings.appenddirname), settings.appendfilename.clone())
}
