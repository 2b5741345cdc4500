//! The content of a simulated file: what programs read, what is on disk, and the changes in
//! between.

use std::collections::VecDeque;
use std::ops::Range;

use pantala_base::Random;

/// Size of a block of the device and of a page of the cache, bytes.
pub const BLOCK_BYTES: usize = 64;

/// A change of a file's content.
#[derive(Clone, Debug)]
enum Change {
    /// A write at an offset. If it is cached, it is within one page, and the device doesn't have it
    /// yet.
    Write {
        at: usize,
        bytes: Vec<u8>,
        is_cached: bool,
    },
    Truncate(usize),
}

impl Change {
    /// Returns whether this is a cached write that overlaps these bytes.
    fn is_cached_in(&self, range: &Range<usize>) -> bool {
        matches!(self, Change::Write { at, bytes, is_cached: true }
            if *at < range.end && at + bytes.len() > range.start)
    }
}

/// See the head of this module.
#[derive(Clone, Debug, Default)]
pub struct Content {
    /// The content that programs read.
    pub bytes: Vec<u8>,
    durable: Vec<u8>,
    /// Changes that are not durable, in the order in which they were made. A cached write moves to
    /// the end when it is written back.
    pending: Vec<Change>,
    /// The name under which the file was created.
    pub created_as: String,
}

fn apply(bytes: &mut Vec<u8>, change: &Change) {
    match change {
        Change::Write { at, bytes: written, .. } => write(bytes, *at, written),
        Change::Truncate(len) => bytes.truncate(*len),
    }
}

fn write(bytes: &mut Vec<u8>, at: usize, written: &[u8]) {
    let end = at + written.len();
    if bytes.len() < end {
        bytes.resize(end, 0);
    }
    bytes[at..end].copy_from_slice(written);
}

impl Content {
    /// Returns the empty content of a file that is created under this name.
    pub fn created_as(name: String) -> Self {
        Content { created_as: name, ..Content::default() }
    }

    /// Writes bytes to the cache, page by page.
    pub fn write_cached(&mut self, at: usize, written: &[u8]) {
        write(&mut self.bytes, at, written);
        let mut from = 0;
        while from < written.len() {
            let len = (BLOCK_BYTES - (at + from) % BLOCK_BYTES).min(written.len() - from);
            let bytes = written[from..from + len].to_vec();
            self.pending.push(Change::Write { at: at + from, bytes, is_cached: true });
            from += len;
        }
    }

    /// Writes bytes to the device. Before that, the kernel writes back the pages that the write
    /// replaces.
    pub fn write_direct(&mut self, at: usize, written: &[u8]) {
        self.write_back(at..at + written.len());
        write(&mut self.bytes, at, written);
        self.pending.push(Change::Write { at, bytes: written.to_vec(), is_cached: false });
    }

    /// Writes the cached pages of a range back to the device.
    pub fn write_back(&mut self, range: Range<usize>) {
        self.write_back_if(range, || true);
    }

    /// Loses some of the cached pages of a range, and writes back the others. If the data is
    /// ordered, loses all cached pages after the first one that is lost.
    pub fn fail_to_write_back(&mut self, range: Range<usize>, random: &mut Random, is_ordered: bool) {
        let mut is_kept = true;
        self.write_back_if(range, || {
            is_kept = random.below(2) == 0 && (is_kept || !is_ordered);
            is_kept
        });
        if is_ordered {
            self.pending.retain(|change| !matches!(change, Change::Write { is_cached: true, .. }));
        }
    }

    /// Writes back those cached pages of a range for which `is_kept` returns true, and forgets the
    /// others.
    fn write_back_if(&mut self, range: Range<usize>, mut is_kept: impl FnMut() -> bool) {
        let Some(first) = self.pending.iter().position(|change| change.is_cached_in(&range)) else { return };
        // The cached pages after these can't reach the device earlier.
        let (mut written, mut later, mut device) = (Vec::new(), Vec::new(), Vec::new());
        for mut change in self.pending.drain(first..) {
            let is_in_range = change.is_cached_in(&range);
            match &mut change {
                Change::Write { is_cached, .. } if is_in_range => {
                    *is_cached = false;
                    if is_kept() {
                        written.push(change);
                    }
                }
                Change::Write { is_cached: true, .. } => later.push(change),
                _ => device.push(change),
            }
        }
        self.pending.extend(device.into_iter().chain(written).chain(later));
    }

    /// Cuts the file to a length.
    pub fn truncate(&mut self, len: usize) {
        if self.bytes.len() <= len {
            return;
        }
        self.bytes.truncate(len);
        self.pending.retain_mut(|change| match change {
            Change::Write { at, bytes, is_cached: true } => {
                bytes.truncate(len.saturating_sub(*at));
                !bytes.is_empty()
            }
            _ => true,
        });
        self.pending.push(Change::Truncate(len));
    }

    /// Makes the content durable.
    pub fn sync(&mut self) {
        std::mem::take(&mut self.pending).iter().for_each(|change| apply(&mut self.durable, change));
    }

    /// Makes everything that programs read durable, even what a failed sync has lost.
    pub fn repair(&mut self) {
        self.pending.clear();
        self.durable.clone_from(&self.bytes);
    }

    /// Makes programs read what is on disk, after a crash.
    pub fn reload(&mut self) {
        self.bytes.clone_from(&self.durable);
    }

    /// Makes some of the pending changes durable, and forgets the others, as a crash does.
    pub fn settle(&mut self, random: &mut Random, is_ordered: bool) {
        if self.pending.is_empty() {
            return;
        }
        let pending = device_order(std::mem::take(&mut self.pending), random);
        let durable = &mut self.durable;
        match random.below(if is_ordered { 3 } else { 6 }) {
            0 => pending.iter().for_each(|change| apply(durable, change)),
            1 => {}
            2 => {
                let torn = random.below(pending.len() as u64) as usize;
                pending[..torn].iter().for_each(|change| apply(durable, change));
                if let Change::Write { at, bytes, .. } = &pending[torn] {
                    let kept = random.below(bytes.len() as u64 + 1) as usize;
                    if kept > 0 {
                        write(durable, *at, &bytes[..kept]);
                    }
                }
            }
            _ => settle_blocks(durable, &pending, random),
        }
    }
}

/// Returns the changes in the order in which the device may have received them. The kernel writes
/// cached pages back in their order, but at any time.
fn device_order(pending: Vec<Change>, random: &mut Random) -> Vec<Change> {
    let is_cached = |change: &Change| matches!(change, Change::Write { is_cached: true, .. });
    if pending.iter().all(is_cached) {
        return pending;
    }
    let (mut order, mut cached) = (Vec::with_capacity(pending.len()), VecDeque::new());
    for change in pending {
        if is_cached(&change) {
            cached.push_back(change);
        } else {
            order.push(change);
        }
        while !cached.is_empty() && random.below(3) == 0 {
            order.extend(cached.pop_front());
        }
    }
    order.extend(cached);
    order
}

/// Keeps some blocks of the pending writes, drops others, and fills the rest with zeros or random
/// bytes. Only blocks that the file didn't have before are filled: a block that is overwritten has
/// either the old or the new bytes.
fn settle_blocks(durable: &mut Vec<u8>, pending: &[Change], random: &mut Random) {
    let block = 1 << (4 + random.below(6));
    let has_zeros = random.below(2) == 0;
    let mut had = durable.len();
    for change in pending {
        let (at, bytes) = match change {
            Change::Write { at, bytes, .. } => (*at, bytes),
            Change::Truncate(_) => {
                if random.below(2) == 0 {
                    apply(durable, change);
                    had = had.min(durable.len());
                }
                continue;
            }
        };
        let mut from = 0;
        while from < bytes.len() {
            // Blocks are aligned to the file, not to the write.
            let len = (block - (at + from) % block).min(bytes.len() - from);
            match random.below(3) {
                0 => {}
                1 => {
                    let start = (at + from).max(had);
                    let lost: Vec<u8> =
                        (start..at + from + len).map(|_| if has_zeros { 0 } else { random.below(256) as u8 }).collect();
                    if !lost.is_empty() {
                        write(durable, start, &lost);
                    }
                }
                _ => write(durable, at + from, &bytes[from..from + len]),
            }
            from += len;
        }
    }
}
