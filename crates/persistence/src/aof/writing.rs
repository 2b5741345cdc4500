//! Tracks which effects are read, written and durable, for the thread that writes the increments
//! (the files of effects).
//!
//! Each effect has a *stamp*, its place in the order of all changes ([`pantala_engine::effect`]).
//! The *base* is the file with the dataset at one instant that precedes the increments. The *batch*
//! has the effects that were taken from the stream and are not written yet. A file is *lost* if a
//! sync of it has failed, or if it was abandoned because it could not be written.
//!
//! | a stamp is | as soon as each effect with an earlier stamp |
//! | --- | --- |
//! | read | is in the batch or has been written |
//! | durable | is in a synced file, or, if its file was lost, in a base |
//!
//! # A cut
//!
//! A rewrite chooses a position of the stream, the *cut*, and takes a snapshot of the dataset at
//! that position. Effects before the cut belong to the current increment. Effects after the cut
//! belong to the next increment, which [`Writing::rotate`] opens. Before the next increment is
//! listed in the manifest, the current one is made durable. So only the last listed file can be
//! incomplete.
//!
//! In three cases the manifest does not list the next increment until the snapshot has become the
//! base: a sync has failed, there is no base, or the current increment can't be written.
//!
//! In every case, the next increment is made durable before the snapshot becomes the base. The
//! manifest that lists the new base also lists this increment. The files before it become history.

use std::io;
use std::ops::Range;

use pantala_base::Outgoing;

use super::names;
use super::output::Output;
use super::place::{NewBase, Place};
use crate::disk::Disk;

/// The increments that are being written, and how far they are written and durable.
#[derive(Debug)]
pub struct Writing<D: Disk> {
    output: Output<D::File>,
    /// Parts after the cut, read together with parts before it, that belong to the next increment.
    after_cut: Vec<(Outgoing, Range<usize>)>,
    /// Whether [`Self::rotate`] has been called since the last cut, successfully or not. True
    /// before the first cut.
    is_rotated: bool,
    /// The error of opening the next increment. Without that increment, the snapshot can't become
    /// the base.
    rotation_error: Option<String>,
    /// Whether the manifest lacks the current increment. The increment is added when its base is
    /// installed.
    is_unlisted: bool,
    /// Whether effects may be missing on disk until there is a new base, because a sync has failed
    /// or an increment was abandoned.
    awaits_base: bool,
    /// The stamp before which all effects are read.
    read_before: u64,
}

/// Effects that were read from the stream.
#[derive(Debug)]
pub struct Taken {
    /// The bytes of the effects, in parts that consist of complete units (a unit is the effects of
    /// one command, transaction or script).
    pub parts: Vec<Outgoing>,
    /// The offset in the stream after these effects.
    pub end: u64,
    /// The offset of the cut, if there is one.
    pub cut: Option<u64>,
    /// A stamp, if known: after these effects, all effects with earlier stamps have been read.
    pub before: Option<u64>,
    /// The time of the annotation that the file needs before these effects, Unix time in s. `None`
    /// if no annotation is needed.
    pub now_s: Option<i64>,
}

impl<D: Disk> Writing<D> {
    /// Continues a file of length `len`.
    pub fn new(file: D::File, len: u64) -> Self {
        Self::with(Output::new(file, len))
    }

    fn with(output: Output<D::File>) -> Self {
        Writing {
            output,
            after_cut: Vec::new(),
            is_rotated: true,
            rotation_error: None,
            is_unlisted: false,
            awaits_base: false,
            read_before: 0,
        }
    }

    /// Starts at a cut. Effects are discarded until [`Self::rotate`] opens the first increment,
    /// which the manifest lists once its base is installed.
    pub fn at_cut() -> Self {
        Writing { is_rotated: false, ..Self::with(Output::none()) }
    }

    /// Adds effects to the batch. Keeps those after the cut for the next increment.
    pub fn take(&mut self, taken: Taken) {
        let Taken { parts, end, cut, before, now_s } = taken;
        let read_bytes: u64 = parts.iter().map(|part| part.bytes().len() as u64).sum();
        let mut at = end - read_bytes;
        for part in parts {
            let len = part.bytes().len();
            let start = at;
            at += len as u64;
            match cut {
                Some(cut) if cut <= start => self.after_cut.push((part, 0..len)),
                Some(cut) if cut < at => {
                    let split = (cut - start) as usize;
                    self.output.add(part.bytes()[..split].to_vec().into(), 0..split, now_s);
                    self.after_cut.push((part, split..len));
                }
                _ => self.output.add(part, 0..len, now_s),
            }
        }
        // The stamp must not advance while parts after the cut are missing in the batch.
        if let (Some(before), true) = (before, self.after_cut.is_empty()) {
            self.read_before = before;
        }
    }

    /// Returns the number of bytes that were taken and are not written yet.
    pub fn pending_bytes(&self) -> u64 {
        let after_cut: usize = self.after_cut.iter().map(|(_, range)| range.len()).sum();
        self.output.pending_bytes() + after_cut as u64
    }

    /// Returns whether the batch is written, so that more can be taken.
    pub fn is_written(&self) -> bool {
        self.output.pending_bytes() == 0
    }

    /// Returns whether the file has bytes that are not synced.
    pub fn is_dirty(&self) -> bool {
        self.output.is_dirty()
    }

    /// Returns the length of the current increment, bytes.
    pub fn len_bytes(&self) -> u64 {
        self.output.len_bytes()
    }

    /// Returns whether a sync of the current increment has failed, written bytes were lost
    /// otherwise, or the increment was abandoned. In all these cases, the increment must not be
    /// synced again, and a new base is needed.
    pub fn is_lost(&self) -> bool {
        self.output.is_lost()
    }

    /// Returns whether effects may be missing on disk: a sync has failed or an increment was
    /// abandoned, and no base has been written since.
    pub fn awaits_base(&self) -> bool {
        self.awaits_base
    }

    /// Returns the stamp before which all effects are written; 0 if it isn't known.
    pub fn written_before(&self) -> u64 {
        if self.is_written() { self.read_before } else { 0 }
    }

    /// Writes the batch, with a checksum if `has_checksums`. After an error, the caller may call
    /// this method again. If the file is lost (a sync of it has failed, or it was abandoned), drops
    /// the batch instead, because it would follow a gap. The next base will contain the batch's
    /// effects.
    ///
    /// # Errors
    /// The system's error.
    pub fn write(&mut self, has_checksums: bool) -> io::Result<()> {
        if self.is_lost() {
            self.output.drop_batch();
            return Ok(());
        }
        self.output.set_checksums(has_checksums);
        let written = self.output.write();
        self.awaits_base |= self.is_lost();
        written
    }

    /// Frees memory that is kept only for later effects.
    pub fn free_spare(&mut self) {
        self.after_cut.shrink_to_fit();
        self.output.free_spare();
    }

    /// Abandons the current increment, which can't be written. As after a failed sync, no further
    /// effect is written to it. Must be called only after a cut and before [`Self::rotate`]. In
    /// that period, all effects of the current increment precede the cut, so the base of that cut
    /// will contain them.
    pub fn abandon(&mut self) {
        self.output.lose();
        self.awaits_base = true;
    }

    /// Syncs the written effects. Returns the stamp before which all effects are durable, if known.
    ///
    /// # Errors
    /// The system's error. The file then counts as lost, and a new base is needed.
    pub fn sync(&mut self) -> io::Result<Option<u64>> {
        self.output.sync().inspect_err(|_| self.awaits_base = true)?;
        Ok((!self.awaits_base && self.is_written()).then_some(self.read_before))
    }

    /// Starts a cut. The next increment is for the effects after the cut.
    pub fn cut(&mut self) {
        self.is_rotated = false;
        self.rotation_error = None;
    }

    /// Returns whether [`Self::rotate`] has been called since the last cut, successfully or not.
    pub fn is_rotated(&self) -> bool {
        self.is_rotated
    }

    /// Opens the next increment and continues with it. All effects before the cut must have been
    /// written. Returns the increment's name.
    ///
    /// # Errors
    /// The system's error. The current increment is then continued, and the snapshot can't become
    /// the base.
    pub fn rotate(&mut self, place: Option<&mut Place<D>>, now_s: Option<i64>) -> io::Result<Vec<u8>> {
        // A lost file lacks effects. If the manifest listed a later file, the effects in that file
        // would be loaded without the missing ones.
        let is_unlisted = self.is_unlisted || self.awaits_base || !self.output.is_open();
        let opened = self.open_next(place, is_unlisted);
        self.is_rotated = true;
        let rotated = match opened {
            Ok((output, name)) => {
                (self.output, self.is_unlisted) = (output, is_unlisted);
                Ok(name)
            }
            Err(error) => {
                // If the base were installed without this increment, the effects since the cut
                // would be lost.
                self.rotation_error = Some(format!("no increment could be opened: {error}"));
                Err(error)
            }
        };
        for (part, range) in std::mem::take(&mut self.after_cut) {
            self.output.add(part, range, now_s);
        }
        rotated
    }

    fn open_next(&mut self, place: Option<&mut Place<D>>, is_unlisted: bool) -> io::Result<(Output<D::File>, Vec<u8>)> {
        let Some(place) = place else { return Err(io::ErrorKind::NotFound.into()) };
        // The directory may have been removed since the server started.
        place.directory.create()?;
        let (file, name) = if is_unlisted {
            let name = names::temporary_increment(place.directory.prefix());
            // A former writer thread may still write to a file of this name, so the name is removed
            // first. An error is ignored, because usually there is no such file.
            let _ = place.directory.remove(&name);
            let opened = place.directory.open_to_append(&name, true);
            // The file may exist although the call has failed, for example because its name could
            // not be synced.
            (opened.inspect_err(|_| drop(place.directory.remove(&name)))?, name)
        } else {
            self.sync()?;
            place.add_increment(self.len_bytes())?
        };
        Ok((Output::new(file, 0), name))
    }

    /// Deletes the current increment if it was to follow the first base, which was never installed.
    /// Must be called after the last write.
    pub fn end(&mut self, place: Option<&mut Place<D>>) {
        // After a lost file, the increment may have the only copy of some effects. It can't be
        // loaded, but an operator may want to read it.
        if self.is_unlisted
            && !self.awaits_base
            && let Some(place) = place
        {
            let _ = place.directory.remove(&names::temporary_increment(place.directory.prefix()));
        }
    }

    /// Makes the snapshot of the last cut the base. Returns the stamp before which all effects are
    /// durable, if known.
    ///
    /// # Errors
    /// The reason why the snapshot did not become the base.
    pub fn install(&mut self, place: Option<&mut Place<D>>, base: NewBase<'_>) -> Result<Option<u64>, String> {
        if let Some(error) = self.rotation_error.take() {
            return Err(error);
        }
        // Once the base is installed, the files before the current increment may be deleted. So
        // this increment must be durable.
        self.sync().map_err(|error| format!("a sync of its increment failed: {error}"))?;
        let Some(place) = place else { return Err("it was turned off".to_owned()) };
        place.install(base, self.is_unlisted, 1).map_err(|error| error.to_string())?;
        (self.awaits_base, self.is_unlisted) = (false, false);
        Ok(self.is_written().then_some(self.read_before))
    }
}
