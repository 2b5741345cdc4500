//! The bytes of the stream that are on disk, in several files. The space of a file is freed when
//! the file is closed.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

/// The number of files into which the allowed bytes are divided. Only whole files are dropped, so
/// at least 15 of 16 parts of the allowed bytes stay on disk.
const FILES: u64 = 16;

/// A file with consecutive bytes of the stream.
#[derive(Debug)]
struct Part {
    start: u64,
    bytes: u64,
    file: File,
}

impl Part {
    fn end(&self) -> u64 {
        self.start + self.bytes
    }
}

/// Consecutive bytes of the stream, in files without a name.
#[derive(Debug, Default)]
pub(super) struct SpillFiles {
    parts: VecDeque<Part>,
    bytes: u64,
}

impl SpillFiles {
    /// Drops all bytes.
    pub(super) fn clear(&mut self) {
        *self = SpillFiles::default();
    }

    /// Returns the range of offsets of the bytes, which is empty if there are none.
    pub(super) fn held(&self) -> Range<u64> {
        match (self.parts.front(), self.parts.back()) {
            (Some(first), Some(last)) => first.start..last.end(),
            _ => 0..0,
        }
    }

    /// Drops the oldest files, so that after a write of `more` bytes at most `bytes_max` bytes are
    /// on disk. `more` must be at most `bytes_max`.
    fn make_room(&mut self, more: u64, bytes_max: u64) {
        while self.bytes + more > bytes_max
            && let Some(oldest) = self.parts.pop_front()
        {
            self.bytes -= oldest.bytes;
        }
    }

    /// Appends bytes of the stream, which start at the offset `start`. If there are files, `start`
    /// must be the end of the last one. Drops the oldest files, so that at most `bytes_max` bytes
    /// are on disk at any time. `open` opens a file.
    ///
    /// # Errors
    /// A file can't be opened or written. The caller must then call [`SpillFiles::clear`].
    pub(super) fn append(
        &mut self,
        start: u64,
        mut bytes: &[u8],
        bytes_max: u64,
        mut open: impl FnMut() -> io::Result<File>,
    ) -> io::Result<()> {
        let file_bytes = (bytes_max / FILES).max(1);
        let mut at = start;
        self.make_room(0, bytes_max);
        while !bytes.is_empty() {
            let room = self.parts.back().map_or(0, |last| file_bytes.saturating_sub(last.bytes));
            let wanted = if room == 0 { file_bytes } else { room };
            let (piece, rest) = bytes.split_at(bytes.len().min(wanted as usize));
            // If there is room in the last file, that file is not dropped, because the file and the
            // piece have at most `file_bytes` bytes together.
            self.make_room(piece.len() as u64, bytes_max);
            if room == 0 || self.parts.is_empty() {
                self.parts.push_back(Part { start: at, bytes: 0, file: open()? });
            }
            let last = self.parts.back_mut().expect("there is a file");
            if last.end() != at {
                return Err(io::Error::other("the bytes do not follow those on disk"));
            }
            last.file.write_all_at(piece, last.bytes)?;
            last.bytes += piece.len() as u64;
            (self.bytes, at, bytes) = (self.bytes + piece.len() as u64, at + piece.len() as u64, rest);
        }
        Ok(())
    }

    /// Appends the bytes of a range of offsets to `into`.
    ///
    /// # Errors
    /// The range is not on disk, or can't be read.
    pub(super) fn read(&self, range: Range<u64>, into: &mut Vec<u8>) -> io::Result<()> {
        let held = self.held();
        if range.start < held.start || range.end > held.end {
            return Err(io::Error::new(io::ErrorKind::NotFound, "the bytes are not on disk"));
        }
        let first = self.parts.partition_point(|part| part.end() <= range.start);
        for part in self.parts.range(first..) {
            let (start, end) = (range.start.max(part.start), range.end.min(part.end()));
            if start >= end {
                break;
            }
            let filled = into.len();
            into.resize(filled + (end - start) as usize, 0);
            part.file.read_exact_at(&mut into[filled..], start - part.start)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
