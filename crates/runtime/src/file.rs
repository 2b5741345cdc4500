//! Files that are written only at their end, such as an append-only file or a snapshot.
//!
//! Large amounts of data bypass the page cache (`O_DIRECT`). These files are not read soon, so a
//! copy in the page cache would cost time, and memory that other programs could use. Small amounts
//! are written through the cache, because a direct write has to wait for the device. A direct write
//! consists of whole blocks, so the incomplete last block of a large amount is written through the
//! cache too.
//!
//! ```text
//! file    ……│ block │ block │ bl              the last block is incomplete
//! staged              │ bl+++ │ +++++ │ +     it is read again, and the new bytes follow
//!                       direct   direct  cached
//! ```
//!
//! The kernel keeps direct and cached writes to one block in order. Before a direct write, it
//! writes back the cached pages that the direct write replaces, and drops them. It does not write
//! back cached pages of earlier blocks. After a crash of the machine, the file could therefore
//! contain the direct write, but zeros in these earlier blocks. To prevent this, this module writes
//! their pages back before each direct write.

use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::{Errno, pwritev};

/// The system's calls on the file of a [`SequentialFile`]. [`File`] makes them; tests of crashes
/// (`crates/persistence/tests/crash`) simulate them.
pub trait RawFile {
    /// Alignment of direct writes in the file and in memory, bytes. It is a multiple of the logical
    /// block size of all common disks.
    const BLOCK_BYTES: usize = 4096;
    /// Minimum length of a direct write, bytes. For a shorter write, waiting for the device costs
    /// more than copying to the page cache.
    const DIRECT_BYTES_MIN: usize = 256 * 1024;
    /// Length of the staging buffer, bytes. It is also the length of the largest direct write. A
    /// longer buffer means fewer waits for the device, but the buffer must fit into the third-level
    /// cache.
    const STAGE_BYTES: usize = 4 * 1024 * 1024;

    /// Returns the length, bytes.
    ///
    /// # Errors
    /// The system's error.
    fn size(&self) -> io::Result<u64>;
    /// Cuts or extends the file to a length, bytes.
    ///
    /// # Errors
    /// The system's error.
    fn set_len(&self, len: u64) -> io::Result<()>;
    /// Reads as many bytes as the buffer has.
    ///
    /// # Errors
    /// The system's error.
    fn read_exact_at(&self, bytes: &mut [u8], at: u64) -> io::Result<()>;
    /// Writes bytes through the page cache, possibly not all of them. Returns the number of bytes
    /// written.
    ///
    /// # Errors
    /// The system's error.
    fn write_at(&self, slices: &[IoSlice<'_>], at: u64) -> io::Result<usize>;
    /// Writes whole blocks without the page cache, possibly not all of them. Returns the number of
    /// bytes written, or `None` if the file system doesn't support direct writes.
    ///
    /// # Errors
    /// The system's error.
    fn write_direct(&self, blocks: &[u8], at: u64) -> io::Result<Option<usize>>;
    /// Writes the cached pages of a range back to the device. Doesn't make them durable.
    ///
    /// # Errors
    /// The system's error.
    fn write_back(&self, from: u64, to: u64) -> io::Result<()>;
    /// Makes the content durable.
    ///
    /// # Errors
    /// The system's error.
    fn sync(&self) -> io::Result<()>;
}

impl RawFile for File {
    fn size(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        File::set_len(self, len)
    }

    fn read_exact_at(&self, bytes: &mut [u8], at: u64) -> io::Result<()> {
        FileExt::read_exact_at(self, bytes, at)
    }

    fn write_at(&self, slices: &[IoSlice<'_>], at: u64) -> io::Result<usize> {
        Ok(pwritev(self, slices, at)?)
    }

    fn write_direct(&self, blocks: &[u8], at: u64) -> io::Result<Option<usize>> {
        match pwrite_direct(self, blocks, at) {
            Ok(written) => Ok(Some(written)),
            Err(Errno::INVAL | Errno::OPNOTSUPP) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn write_back(&self, from: u64, to: u64) -> io::Result<()> {
        let flags = libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
        let (from, len) = (from as i64, (to - from) as i64);
        // SAFETY: passes numbers only; the descriptor is open.
        match unsafe { libc::sync_file_range(self.as_raw_fd(), from, len, flags) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }
}

/// A file that is written only at its end. See the head of this module.
#[derive(Debug)]
pub struct SequentialFile<F = File> {
    file: F,
    /// Length of the file, bytes.
    len: u64,
    /// Buffer of the *staged* bytes: first the incomplete last block of the file, then the
    /// *gathered* bytes, which are not written yet. The staged bytes start at [`Self::aligned_at`].
    /// The buffer is allocated when bytes are first gathered, and kept for the next ones until
    /// [`Self::free_stage`] is called.
    stage: Vec<u8>,
    /// Index of the first byte of `stage` whose address is a multiple of
    /// [`BLOCK_BYTES`](RawFile::BLOCK_BYTES).
    aligned_at: usize,
    /// Number of gathered bytes.
    gathered: usize,
    /// Whether to try direct writes. True until the file system rejects one.
    can_bypass: bool,
    /// Offset in the file after which bytes may be only in the page cache.
    cached_from: u64,
    /// Whether the kernel has failed to write back cached pages. It reports such a failure only
    /// once. From then on, all writes and syncs fail: bytes written later would follow a gap.
    has_lost_pages: bool,
}

impl SequentialFile {
    /// Opens a file for writing at its end. If the file doesn't exist, creates it with this mode.
    ///
    /// # Errors
    /// The system's error.
    pub fn open(path: &Path, mode: u32) -> io::Result<Self> {
        // O_APPEND must not be set. A direct write starts at the incomplete last block, before the
        // end of the file, but with O_APPEND the kernel would write at the end.
        Self::of(OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(mode).open(path)?)
    }
}

impl<F: RawFile> SequentialFile<F> {
    /// Continues an open file at its end.
    ///
    /// # Errors
    /// The system's error.
    pub fn of(file: F) -> io::Result<Self> {
        let len = file.size()?;
        Ok(SequentialFile {
            file,
            len,
            stage: Vec::new(),
            aligned_at: 0,
            gathered: 0,
            can_bypass: true,
            cached_from: 0,
            has_lost_pages: false,
        })
    }

    /// Returns the length of the file, bytes. Gathered bytes are not included.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns whether the file is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Writes bytes at the end of the file, possibly not all of them. Returns the number of bytes
    /// written. There must be no gathered bytes.
    ///
    /// # Errors
    /// The system's error, if nothing was written. If a part was written before the error, the
    /// length of that part is returned instead.
    pub fn append(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.check_pages()?;
        let total: usize = slices.iter().map(|slice| slice.len()).sum();
        if total < F::DIRECT_BYTES_MIN || !self.can_bypass {
            let written = self.file.write_at(slices, self.len)?;
            self.len += written as u64;
            return Ok(written);
        }
        let before = self.len;
        let written = slices.iter().try_for_each(|slice| self.gather(slice)).and_then(|()| self.flush());
        self.gathered = 0;
        match (written, (self.len - before) as usize) {
            (Err(error), 0) => Err(error),
            (_, written) => Ok(written),
        }
    }

    /// Adds bytes to the staging buffer, and writes the buffer whenever it is full. [`Self::flush`]
    /// writes the rest.
    ///
    /// # Errors
    /// The system's error. A part of the gathered bytes may have been written.
    pub fn gather(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let start = self.head() + self.gathered;
            if self.gathered == 0 {
                self.stage_head()?;
            }
            let fitting = bytes.len().min(F::STAGE_BYTES - start);
            self.staged(start, start + fitting).copy_from_slice(&bytes[..fitting]);
            self.gathered += fitting;
            bytes = &bytes[fitting..];
            if start + fitting == F::STAGE_BYTES {
                self.flush()?;
            }
        }
        Ok(())
    }

    /// Writes the gathered bytes.
    ///
    /// # Errors
    /// The system's error. A part of the gathered bytes may have been written. The rest is dropped.
    pub fn flush(&mut self) -> io::Result<()> {
        let flushed = self.write_gathered();
        self.gathered = 0;
        flushed
    }

    /// Frees the staging buffer, unless it has gathered bytes. The next large amount of data
    /// allocates it again.
    pub fn free_stage(&mut self) {
        if self.gathered == 0 {
            self.stage = Vec::new();
        }
    }

    /// Cuts the file to a length, bytes. Gathered bytes are dropped.
    ///
    /// # Errors
    /// The system's error.
    pub fn truncate(&mut self, len: u64) -> io::Result<()> {
        self.gathered = 0;
        self.file.set_len(len)?;
        self.len = len;
        self.cached_from = self.cached_from.min(len);
        Ok(())
    }

    /// Makes the content durable. Once a call has failed, later calls may succeed although the
    /// content isn't durable.
    ///
    /// # Errors
    /// The system's error, or an earlier failure to write back pages.
    pub fn sync(&mut self) -> io::Result<()> {
        self.check_pages()?;
        self.file.sync()?;
        self.cached_from = self.len;
        Ok(())
    }

    /// Returns whether the kernel has failed to write back cached pages. Then a part of the file
    /// may be missing on disk, and all writes and syncs fail.
    pub fn has_lost_pages(&self) -> bool {
        self.has_lost_pages
    }

    fn check_pages(&self) -> io::Result<()> {
        match self.has_lost_pages {
            true => Err(io::Error::other("cached pages could not be written back")),
            false => Ok(()),
        }
    }

    /// Returns the length of the incomplete last block of the file, bytes.
    fn head(&self) -> usize {
        (self.len % F::BLOCK_BYTES as u64) as usize
    }

    /// Returns the staged bytes from `start` to `end`.
    fn staged(&mut self, start: usize, end: usize) -> &mut [u8] {
        &mut self.stage[self.aligned_at + start..self.aligned_at + end]
    }

    /// Reads the incomplete last block of the file into the staging buffer.
    fn stage_head(&mut self) -> io::Result<()> {
        if self.stage.is_empty() {
            self.stage = vec![0; F::STAGE_BYTES + F::BLOCK_BYTES];
            self.aligned_at = self.stage.as_ptr().align_offset(F::BLOCK_BYTES);
        }
        let (head, range) = (self.head(), self.aligned_at..self.aligned_at + self.head());
        self.file.read_exact_at(&mut self.stage[range], self.len - head as u64)
    }

    /// Writes back all pages before the offset `start` that may be only in the page cache.
    fn write_back_before(&mut self, start: u64) -> io::Result<()> {
        if self.cached_from >= start {
            return Ok(());
        }
        match self.file.write_back(self.cached_from, start) {
            Ok(()) => self.cached_from = start,
            Err(error) => {
                self.has_lost_pages = true;
                return Err(error);
            }
        }
        Ok(())
    }

    fn write_gathered(&mut self) -> io::Result<()> {
        self.check_pages()?;
        let (head, end) = (self.head(), self.head() + self.gathered);
        let whole = end - end % F::BLOCK_BYTES;
        let mut done = head;
        if self.can_bypass && whole > head {
            let start = self.len - head as u64;
            self.write_back_before(start)?;
            let range = self.aligned_at..self.aligned_at + whole;
            match self.file.write_direct(&self.stage[range], start) {
                Ok(Some(written)) => {
                    done = written.max(head);
                    self.len += (done - head) as u64;
                    self.cached_from = start + written as u64;
                }
                Ok(None) => self.can_bypass = false,
                Err(error) => {
                    // Some file systems extend a file before a write to it fails. If this call
                    // fails too, the next write overwrites the additional bytes.
                    let _ = self.file.set_len(self.len);
                    return Err(error);
                }
            }
        }
        while done < end {
            let range = self.aligned_at + done..self.aligned_at + end;
            let written = match self.file.write_at(&[IoSlice::new(&self.stage[range])], self.len) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                other => other?,
            };
            done += written;
            self.len += written as u64;
        }
        Ok(())
    }
}

/// Writes whole blocks, possibly not all of them, without the page cache. Returns the number of
/// bytes written.
fn pwrite_direct(file: &File, blocks: &[u8], at: u64) -> Result<usize, Errno> {
    let flags = fcntl_getfl(file)?.difference(OFlags::DIRECT);
    fcntl_setfl(file, flags | OFlags::DIRECT)?;
    let written = loop {
        match pwritev(file, &[IoSlice::new(blocks)], at) {
            Err(Errno::INTR) => {}
            other => break other,
        }
    };
    // Can't fail, because the file had these flags before.
    let _ = fcntl_setfl(file, flags);
    written
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    const MODE: u32 = 0o600;
    const BLOCK_BYTES: usize = File::BLOCK_BYTES;
    const DIRECT_BYTES_MIN: usize = File::DIRECT_BYTES_MIN;
    const STAGE_BYTES: usize = File::STAGE_BYTES;

    /// Returns bytes that differ from block to block.
    fn pattern(len: usize, salt: usize) -> Vec<u8> {
        (0..len).map(|at| (at / 7 + at / BLOCK_BYTES + salt) as u8).collect()
    }

    fn append_all(file: &mut SequentialFile, bytes: &[u8]) {
        let (left, right) = bytes.split_at(bytes.len() / 3);
        let mut slices = [IoSlice::new(left), IoSlice::new(right)];
        let mut slices = &mut slices[..];
        while slices.iter().any(|slice| !slice.is_empty()) {
            let written = file.append(slices).unwrap();
            IoSlice::advance_slices(&mut slices, written);
        }
    }

    #[test]
    fn the_content_is_what_was_appended_whatever_the_lengths() {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let path = dir.path().join("file");
        let lens =
            [1, 300_000, 4096, 5000, 2 * STAGE_BYTES, 17, STAGE_BYTES + 1, 3 * STAGE_BYTES - 3, DIRECT_BYTES_MIN];
        let mut expected = Vec::new();
        let mut file = SequentialFile::open(&path, MODE).unwrap();
        for (salt, len) in lens.into_iter().enumerate() {
            let bytes = pattern(len, salt);
            append_all(&mut file, &bytes);
            expected.extend_from_slice(&bytes);
            assert_eq!(file.len(), expected.len() as u64);
            assert!(std::fs::read(&path).unwrap() == expected, "after {len} bytes");
            if salt % 2 == 0 {
                file.free_stage();
                assert_eq!(file.stage.capacity(), 0);
            }
            if salt == 4 {
                // Open the file again, as a restarted process does.
                file = SequentialFile::open(&path, MODE).unwrap();
            }
        }
        file.truncate(5000).unwrap();
        append_all(&mut file, &pattern(STAGE_BYTES, 99));
        expected.truncate(5000);
        expected.extend(pattern(STAGE_BYTES, 99));
        file.sync().unwrap();
        assert!(std::fs::read(&path).unwrap() == expected);
    }

    /// Returns whether all bytes before the incomplete last block have reached the device, or at
    /// least its cache.
    fn has_no_cached_gap(file: &SequentialFile) -> bool {
        file.cached_from + (BLOCK_BYTES as u64) > file.len()
    }

    #[test]
    fn cached_bytes_are_written_back_before_direct_ones() {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let mut file = SequentialFile::open(&dir.path().join("file"), MODE).unwrap();
        for round in 0..3 {
            append_all(&mut file, &pattern(100_000, round));
            assert!(!has_no_cached_gap(&file));
            append_all(&mut file, &pattern(STAGE_BYTES + 10_000, round));
            assert!(has_no_cached_gap(&file) || !file.can_bypass);
        }
        append_all(&mut file, &pattern(100_000, 3));
        file.sync().unwrap();
        assert!(has_no_cached_gap(&file));
        file.truncate(50_000).unwrap();
        assert_eq!(file.cached_from, 50_000);
    }

    #[test]
    fn gathered_bytes_are_written_at_the_latest_by_a_flush() {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let path = dir.path().join("file");
        let mut file = SequentialFile::open(&path, MODE).unwrap();
        let mut expected = Vec::new();
        for salt in 0..150 {
            let bytes = pattern(70_001, salt);
            file.gather(&bytes).unwrap();
            expected.extend_from_slice(&bytes);
            file.free_stage();
        }
        assert!(!file.is_empty() && file.len() < expected.len() as u64);
        file.flush().unwrap();
        assert!(std::fs::read(&path).unwrap() == expected);
    }

    #[test]
    fn without_direct_writes_everything_goes_through_the_cache() {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let path = dir.path().join("file");
        let mut file = SequentialFile::open(&path, MODE).unwrap();
        file.can_bypass = false;
        let bytes = pattern(3 * STAGE_BYTES + 5, 1);
        append_all(&mut file, &bytes);
        append_all(&mut file, &bytes);
        file.gather(&bytes).unwrap();
        file.flush().unwrap();
        assert!(std::fs::read(&path).unwrap() == [&bytes[..], &bytes, &bytes].concat());
        assert_eq!(file.cached_from, 0, "no direct write");
    }

    /// A file whose cached pages can't be written back. As in the kernel, only the first call
    /// reports that.
    struct Unreliable(File, Cell<bool>);

    impl RawFile for Unreliable {
        fn size(&self) -> io::Result<u64> {
            self.0.size()
        }

        fn set_len(&self, len: u64) -> io::Result<()> {
            self.0.set_len(len)
        }

        fn read_exact_at(&self, bytes: &mut [u8], at: u64) -> io::Result<()> {
            RawFile::read_exact_at(&self.0, bytes, at)
        }

        fn write_at(&self, slices: &[IoSlice<'_>], at: u64) -> io::Result<usize> {
            RawFile::write_at(&self.0, slices, at)
        }

        fn write_direct(&self, blocks: &[u8], at: u64) -> io::Result<Option<usize>> {
            RawFile::write_at(&self.0, &[IoSlice::new(blocks)], at).map(Some)
        }

        fn write_back(&self, _: u64, _: u64) -> io::Result<()> {
            if self.1.replace(true) { Ok(()) } else { Err(Errno::IO.into()) }
        }

        fn sync(&self) -> io::Result<()> {
            RawFile::sync(&self.0)
        }
    }

    #[test]
    fn nothing_is_written_after_lost_pages() {
        let mut file = SequentialFile::of(Unreliable(tempfile::tempfile().unwrap(), Cell::new(false))).unwrap();
        file.append(&[IoSlice::new(&pattern(100_000, 0))]).unwrap();
        let bytes = pattern(DIRECT_BYTES_MIN, 1);
        let long = [IoSlice::new(&bytes)];
        assert_eq!(file.append(&long).unwrap_err().raw_os_error(), Some(Errno::IO.raw_os_error()));
        assert!(file.has_lost_pages());
        assert!(file.append(&long).is_err(), "a direct write would follow a gap");
        assert!(file.append(&[IoSlice::new(&bytes[..10])]).is_err());
        assert!(file.gather(&bytes).and_then(|()| file.flush()).is_err());
        assert!(file.sync().is_err());
        assert_eq!(file.len(), 100_000);
    }

    #[test]
    fn a_full_disk_is_an_error_and_nothing_is_counted_as_written() {
        let mut file = SequentialFile::open(Path::new("/dev/full"), MODE).unwrap();
        let bytes = vec![0; DIRECT_BYTES_MIN];
        assert_eq!(file.append(&[IoSlice::new(&bytes)]).unwrap_err().kind(), io::ErrorKind::StorageFull);
        assert_eq!(file.append(&[IoSlice::new(&bytes[..10])]).unwrap_err().kind(), io::ErrorKind::StorageFull);
        assert_eq!(file.len(), 0);
    }
}
