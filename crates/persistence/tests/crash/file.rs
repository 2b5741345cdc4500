//! A simulated file: the server's [`SequentialFile`] over simulated calls. Its blocks and buffers
//! are short, so that short files have many of them.

use std::io::{self, ErrorKind, IoSlice};

use pantala_base::Random;
use pantala_persistence::disk::AppendFile;
use pantala_runtime::{RawFile, SequentialFile};

use crate::content::{BLOCK_BYTES, Content};
use crate::disk::{Broken, SimulatedDisk, State, TEMPORARY_BASE};

/// Unit of the length of a short direct write, bytes.
const SECTOR_BYTES: u64 = 16;

/// The calls on an open file.
#[derive(Debug)]
struct Calls {
    disk: SimulatedDisk,
    content: usize,
}

/// An open file.
#[derive(Debug)]
pub struct SimulatedFile(SequentialFile<Calls>);

impl SimulatedFile {
    /// Opens the file with this index.
    ///
    /// # Errors
    /// The machine has crashed.
    pub fn of(disk: SimulatedDisk, content: usize) -> io::Result<Self> {
        SequentialFile::of(Calls { disk, content }).map(SimulatedFile)
    }
}

impl Calls {
    /// Runs a call that may fail.
    fn change<T>(&self, work: impl FnOnce(&mut Content, &mut Random) -> T) -> io::Result<T> {
        self.disk.call(|state| {
            self.disk.fault(state)?;
            let State { random, contents, .. } = state;
            Ok(work(&mut contents[self.content], random))
        })
    }

    /// Returns how many of `len` units a call writes.
    fn written(&self, len: u64, random: &mut Random) -> u64 {
        if self.disk.has_faults() && random.below(10) == 0 { 1 + random.below(len) } else { len }
    }

    /// Returns whether syncs of this file are omitted on purpose.
    fn omits_sync(&self, content: &Content) -> bool {
        let (disk, name) = (&self.disk, &content.created_as);
        disk.breaks(Broken::FileSync)
            || (disk.breaks(Broken::ManifestSync) && name.ends_with(".manifest"))
            || (disk.breaks(Broken::BaseSync) && name.ends_with(TEMPORARY_BASE))
            || (disk.breaks(Broken::SnapshotSync) && name.ends_with(".rdb"))
    }
}

impl RawFile for Calls {
    const BLOCK_BYTES: usize = BLOCK_BYTES;
    const DIRECT_BYTES_MIN: usize = 4 * BLOCK_BYTES;
    const STAGE_BYTES: usize = 8 * BLOCK_BYTES;

    fn size(&self) -> io::Result<u64> {
        self.disk.call(|state| Ok(state.contents[self.content].bytes.len() as u64))
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.change(|content, _| content.truncate(len as usize))
    }

    fn read_exact_at(&self, bytes: &mut [u8], at: u64) -> io::Result<()> {
        let at = at as usize;
        self.change(|content, _| match content.bytes.get(at..at + bytes.len()) {
            Some(read) => {
                bytes.copy_from_slice(read);
                Ok(())
            }
            None => Err(ErrorKind::UnexpectedEof.into()),
        })?
    }

    fn write_at(&self, slices: &[IoSlice<'_>], at: u64) -> io::Result<usize> {
        self.change(|content, random| {
            let bytes: Vec<u8> = slices.iter().flat_map(|slice| slice.iter().copied()).collect();
            let written = self.written(bytes.len() as u64, random) as usize;
            content.write_cached(at as usize, &bytes[..written]);
            written
        })
    }

    fn write_direct(&self, blocks: &[u8], at: u64) -> io::Result<Option<usize>> {
        if !self.disk.has_direct() {
            return Ok(None);
        }
        assert!(at.is_multiple_of(BLOCK_BYTES as u64) && blocks.len().is_multiple_of(BLOCK_BYTES), "whole blocks");
        assert_eq!(blocks.as_ptr().align_offset(BLOCK_BYTES), 0, "aligned memory");
        self.change(|content, random| {
            let sectors = self.written(blocks.len() as u64 / SECTOR_BYTES, random);
            let written = (sectors * SECTOR_BYTES) as usize;
            content.write_direct(at as usize, &blocks[..written]);
            Some(written)
        })
    }

    fn write_back(&self, from: u64, to: u64) -> io::Result<()> {
        if self.disk.breaks(Broken::WriteBack) {
            return Ok(());
        }
        let range = from as usize..to as usize;
        self.disk.call(|state| {
            let failed = self.disk.fault(state);
            let State { random, contents, .. } = state;
            let content = &mut contents[self.content];
            if failed.is_err() {
                self.disk.note_lost();
                content.fail_to_write_back(range, random, self.disk.is_ordered());
            } else {
                content.write_back(range);
            }
            failed
        })
    }

    fn sync(&self) -> io::Result<()> {
        self.disk.call(|state| {
            // Pending changes may or may not survive a crash within this call.
            if self.disk.is_crashed() {
                return Ok(());
            }
            let failed = self.disk.fault(state);
            let State { random, contents, .. } = state;
            let content = &mut contents[self.content];
            if failed.is_err() {
                self.disk.note_lost();
                content.settle(random, self.disk.is_ordered());
            } else if !self.omits_sync(content) {
                content.sync();
            }
            failed
        })
    }
}

impl AppendFile for SimulatedFile {
    fn append(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.append(slices)
    }

    fn gather(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.gather(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }

    fn free_spare(&mut self) {
        self.0.free_stage();
    }

    fn truncate(&mut self, len: u64) -> io::Result<()> {
        self.0.truncate(len)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.0.sync()
    }

    fn has_lost_bytes(&self) -> bool {
        self.0.has_lost_pages()
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.0.len())
    }
}
