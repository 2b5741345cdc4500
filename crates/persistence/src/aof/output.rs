//! The increment (file of effects) that is being written. The writer thread owns it.

use std::io::{self, IoSlice};
use std::ops::Range;

use pantala_base::Outgoing;

use super::checksum::Group;
use super::{filter, timestamp};
use crate::disk::AppendFile;

/// Maximum number of slices of one system call.
const SLICES_MAX: usize = 256;

/// An increment, and the batch of effects to be written to it.
#[derive(Debug)]
pub struct Output<F> {
    /// The increment's file. If there is none, effects are discarded.
    file: Option<F>,
    /// Length of the file up to the last complete batch, bytes.
    len: u64,
    /// Parts of the stream, and annotations (lines with the time), in order.
    parts: Vec<Outgoing>,
    /// The ranges to write: index of the part, and range within it.
    batch: Vec<(usize, Range<usize>)>,
    batch_bytes: u64,
    /// The number of bytes of the batch that have been written.
    done: u64,
    /// Whether batches are written with a checksum (`aof-checksums`).
    has_checksums: bool,
    /// The checksum line of the batch. Empty if the batch has none.
    line: Vec<u8>,
    /// Whether the file has bytes that are not synced.
    is_dirty: bool,
    /// Whether a sync has failed, or written bytes were lost otherwise. If so, another sync may
    /// report success although the data isn't on disk, because the kernel may have dropped the
    /// pages that it could not write.
    is_lost: bool,
    /// The time of the last annotation, Unix time in s.
    annotated_s: i64,
}

impl<F: AppendFile> Output<F> {
    /// Continues a file whose length is `len`.
    pub fn new(file: F, len: u64) -> Self {
        Output { file: Some(file), len, ..Self::none() }
    }

    /// Returns an output that discards all effects, until the first increment is open.
    pub fn none() -> Self {
        Output {
            file: None,
            len: 0,
            parts: Vec::new(),
            batch: Vec::new(),
            batch_bytes: 0,
            done: 0,
            has_checksums: false,
            line: Vec::new(),
            is_dirty: false,
            is_lost: false,
            annotated_s: 0,
        }
    }

    /// Returns whether effects are written rather than discarded.
    pub fn is_open(&self) -> bool {
        self.file.is_some()
    }

    /// Sets whether the next batches are written with a checksum.
    pub fn set_checksums(&mut self, has_checksums: bool) {
        self.has_checksums = has_checksums;
    }

    /// Adds a range of a part of the stream to the batch. The range must consist of complete units
    /// (a unit is the effects of one command, transaction or script). If `now_s` (Unix time in s)
    /// is later than the time of the last annotation, puts an annotation with `now_s` before the
    /// range.
    pub fn add(&mut self, part: Outgoing, range: Range<usize>, now_s: Option<i64>) {
        if !self.is_open() {
            return;
        }
        let kept = filter::kept(&part.bytes()[range.clone()]);
        if kept.is_empty() {
            return;
        }
        if let Some(now_s) = now_s.filter(|now_s| *now_s > self.annotated_s) {
            self.annotated_s = now_s;
            let annotation = timestamp(now_s);
            let whole = 0..annotation.len();
            self.parts.push(annotation.into());
            self.push(whole);
        }
        self.parts.push(part);
        kept.into_iter().for_each(|kept| self.push(range.start + kept.start..range.start + kept.end));
    }

    /// Adds a range of the last part.
    fn push(&mut self, range: Range<usize>) {
        self.batch_bytes += range.len() as u64;
        self.batch.push((self.parts.len() - 1, range));
    }

    /// Returns the number of bytes of the batch that are not written yet.
    pub fn pending_bytes(&self) -> u64 {
        self.batch_bytes - self.done
    }

    /// Returns whether the file has bytes that are not synced.
    pub fn is_dirty(&self) -> bool {
        self.is_dirty
    }

    /// Returns the file's length, bytes.
    pub fn len_bytes(&self) -> u64 {
        self.len
    }

    /// Returns whether a sync has failed, or written bytes were lost otherwise. If so, the file
    /// must not be synced again.
    pub fn is_lost(&self) -> bool {
        self.is_lost
    }

    /// Drops the batch and marks the file as lost. As after a failed sync, no further effects are
    /// written to the file.
    pub fn lose(&mut self) {
        self.drop_batch();
        self.is_lost = true;
    }

    /// Writes the batch. After an error, the caller may call this method again, unless the file is
    /// lost ([`Self::is_lost`]).
    ///
    /// # Errors
    /// The system's error. The file then ends with a complete batch, except if truncating it has
    /// failed too.
    pub fn write(&mut self) -> io::Result<()> {
        let Some(file) = &mut self.file else { return Ok(()) };
        if self.batch.is_empty() {
            return Ok(());
        }
        if self.has_checksums && self.line.is_empty() && self.done == 0 {
            self.line = Group::of(pieces(&self.line, &self.parts, &self.batch)).line();
            self.batch_bytes += self.line.len() as u64;
        }
        while self.done < self.batch_bytes {
            let (mut skipped, mut slices) = (self.done as usize, Vec::with_capacity(self.batch.len().min(SLICES_MAX)));
            for piece in pieces(&self.line, &self.parts, &self.batch) {
                if skipped >= piece.len() {
                    skipped -= piece.len();
                    continue;
                }
                slices.push(IoSlice::new(&piece[skipped..]));
                skipped = 0;
                if slices.len() == SLICES_MAX {
                    break;
                }
            }
            let written = match file.append(&slices) {
                Ok(0) => Err(io::ErrorKind::WriteZero.into()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                other => other,
            };
            match written {
                Ok(written) => {
                    self.done += written as u64;
                    self.is_dirty = true;
                }
                Err(error) => {
                    // Later bytes would follow a gap, which the next start can't load.
                    self.is_lost |= file.has_lost_bytes();
                    // The written part of the batch is removed, because its last command may be
                    // incomplete, which would make the file look damaged.
                    if self.done > 0 && file.truncate(self.len).is_ok() {
                        self.done = 0;
                    }
                    return Err(error);
                }
            }
        }
        self.len += self.batch_bytes;
        self.drop_batch();
        Ok(())
    }

    /// Frees memory that is kept only for later writes.
    pub fn free_spare(&mut self) {
        self.parts.shrink_to_fit();
        self.batch.shrink_to_fit();
        if let Some(file) = &mut self.file {
            file.free_spare();
        }
    }

    /// Syncs the written bytes.
    ///
    /// # Errors
    /// The system's error. Bytes written since the last sync may then be lost, and the file must
    /// not be synced again.
    pub fn sync(&mut self) -> io::Result<()> {
        if self.is_lost {
            return Err(io::Error::other("a sync of the file has failed before"));
        }
        if self.is_dirty
            && let Some(file) = &mut self.file
        {
            file.sync().inspect_err(|_| self.is_lost = true)?;
            self.is_dirty = false;
        }
        Ok(())
    }

    /// Clears the batch.
    pub fn drop_batch(&mut self) {
        self.batch.clear();
        self.parts.clear();
        self.line.clear();
        (self.batch_bytes, self.done) = (0, 0);
    }
}

/// Returns the bytes of a batch, preceded by its checksum line.
fn pieces<'b>(
    line: &'b [u8],
    parts: &'b [Outgoing],
    batch: &'b [(usize, Range<usize>)],
) -> impl Iterator<Item = &'b [u8]> {
    let ranges = batch.iter().map(|(part, range)| &parts[*part].bytes()[range.clone()]);
    std::iter::once(line).chain(ranges)
}
