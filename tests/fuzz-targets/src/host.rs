//! The files that a configuration can name in a fuzz target.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use pantala::config::Host;

/// A file system in which every name refers to the same file, so that the file may include itself.
/// `None` stands for no files.
pub struct Files<'a>(pub Option<&'a [u8]>);

impl Host for Files<'_> {
    fn read_file(&mut self, _: &Path) -> io::Result<Vec<u8>> {
        self.0.map(<[u8]>::to_vec).ok_or_else(|| ErrorKind::NotFound.into())
    }

    fn read_stdin(&mut self) -> io::Result<Vec<u8>> {
        Ok(Vec::new())
    }

    fn list_dir(&mut self, _: &Path) -> Vec<Vec<u8>> {
        if self.0.is_some() { vec![b"a.conf".to_vec(), b".hidden".to_vec()] } else { Vec::new() }
    }

    fn change_dir(&mut self, _: &Path) -> io::Result<()> {
        Ok(())
    }

    fn current_dir(&mut self) -> PathBuf {
        "/".into()
    }

    fn try_append(&mut self, _: &Path) -> io::Result<()> {
        Ok(())
    }
}
