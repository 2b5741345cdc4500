//! The files of an append-only file: a base with the dataset at one instant, and increments with
//! effects. This module changes their list (the manifest). If a crash interrupts a change at any
//! point, the files on disk can still be loaded.

use std::io;
use std::path::Path;

use super::directory::Directory;
use super::manifest::Manifest;
use super::names;
use crate::disk::{AppendFile, Disk, append_all};

/// The directory of the append-only file, and its content.
#[derive(Clone, Debug)]
pub struct Place<D> {
    /// The directory.
    pub directory: Directory<D>,
    /// The files in it.
    pub manifest: Manifest,
    /// Size of all files except the last increment, bytes.
    pub others_bytes: u64,
}

/// The last increment, opened when the server starts.
#[derive(Debug)]
pub struct Opened<F> {
    /// The increment.
    pub file: F,
    /// The increment's name.
    pub name: Vec<u8>,
    /// Whether the file was created.
    pub is_new: bool,
    /// The file's length, bytes.
    pub len: u64,
}

/// A file that can become the base. Its content is durable, but its name need not be.
#[derive(Clone, Copy, Debug)]
pub struct NewBase<'p> {
    /// The file's temporary path.
    pub path: &'p Path,
    /// Whether the file is an RDB file.
    pub is_rdb: bool,
    /// The file's size, bytes.
    pub bytes: u64,
}

impl<D: Disk> Place<D> {
    /// Opens the last increment of a manifest. If the manifest has no increment, creates one. If
    /// the manifest is empty, first creates a base. `empty_base` returns the content of this base,
    /// and whether the content is an RDB file.
    ///
    /// # Errors
    /// The system's error.
    pub fn open(
        directory: Directory<D>,
        manifest: &Manifest,
        empty_base: impl FnOnce() -> (Vec<u8>, bool),
    ) -> io::Result<(Self, Opened<D::File>)> {
        directory.create()?;
        let mut next = manifest.clone();
        if next.is_empty() {
            let (text, is_rdb) = empty_base();
            let name = next.replace_base(directory.prefix(), is_rdb);
            let mut file = directory.open_to_append(&name, true)?;
            append_all(&mut file, &text)?;
            file.sync()?;
        }
        let (name, is_new) = match next.increments().last() {
            Some(last) => (last.name.clone(), false),
            None => (next.add_increment(directory.prefix()), true),
        };
        let mut file = directory.open_to_append(&name, is_new)?;
        let len = file.size()?;
        // An earlier process may have been killed and left effects and names that are not durable.
        // They must be durable now, because clients may read these effects from now on. All
        // increments are synced, because an earlier increment may have such effects too: if
        // `add_increment` fails after it has replaced the manifest, the process continues to write
        // to the former increment, although the manifest lists an empty one after it.
        for earlier in next.increments().iter().filter(|listed| listed.name != name) {
            directory.open_to_append(&earlier.name, false)?.sync()?;
        }
        file.sync()?;
        directory.sync()?;
        if next != *manifest {
            directory.write_manifest(&next)?;
        }
        let all_bytes: u64 = next.to_load().map(|listed| directory.size_of(listed)).sum();
        let place = Place { directory, manifest: next, others_bytes: all_bytes.saturating_sub(len) };
        Ok((place, Opened { file, name, is_new, len }))
    }

    /// Opens a new increment and lists it after the last one, which must be durable. `len` is the
    /// length of the last increment, bytes. Returns the new file and its name.
    ///
    /// # Errors
    /// The system's error. The list is then unchanged.
    pub fn add_increment(&mut self, len: u64) -> io::Result<(D::File, Vec<u8>)> {
        let mut next = self.manifest.clone();
        let name = next.add_increment(self.directory.prefix());
        let opened = self.directory.open_to_append(&name, true).and_then(|file| {
            self.directory.write_manifest(&next)?;
            Ok(file)
        });
        let file = self.adopt(next, opened)?;
        self.others_bytes += len;
        Ok((file, name))
    }

    /// Makes a snapshot the base, and moves all increments except the last `kept` to the history
    /// (the files that may be deleted). If `is_new`, the current increment still has its temporary
    /// name. It is then renamed and listed too.
    ///
    /// # Errors
    /// The system's error. The list is then unchanged.
    pub fn install(&mut self, base: NewBase<'_>, is_new: bool, kept: usize) -> io::Result<()> {
        let Place { directory, manifest, .. } = &*self;
        let mut next = manifest.clone();
        let name = next.replace_base(directory.prefix(), base.is_rdb);
        let increment = is_new.then(|| next.add_increment(directory.prefix()));
        next.retire_increments(kept);
        let installed = directory.rename(base.path, &name).and_then(|()| {
            if let Some(increment) = increment {
                directory.rename(&directory.join(&names::temporary_increment(directory.prefix())), &increment)?;
            }
            directory.write_manifest(&next)
        });
        self.adopt(next, installed)?;
        self.others_bytes = base.bytes;
        Ok(())
    }

    /// Makes `next` the list if it was written. After an error, the list on disk may be either
    /// `next` or the former list, so later files must not reuse names from `next`.
    fn adopt<T>(&mut self, next: Manifest, written: io::Result<T>) -> io::Result<T> {
        match written {
            Ok(_) => self.manifest = next,
            Err(_) => self.manifest.skip_numbers_of(&next),
        }
        written
    }
}
