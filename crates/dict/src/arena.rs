//! The type-stable arena: segments (the buckets for a range of hashes), directory blocks (the
//! addresses of segments) and roots (each the address of a directory).
//!
//! Segments, directory blocks and roots are *type-stable*: their memory stays mapped for the life
//! of the process, and never changes its type or size, even when it is freed and used again. A
//! segment is always 512 cache lines of atomic words. A small segment is always 8 lines, and the
//! lines after it belong to other small segments. A directory block of 2^d words always holds
//! directory words or zeros.
//!
//! A thread may follow the addresses in root and directory to a segment while another thread
//! changes, frees or reuses these. At worst it then reads the state of another dictionary, never
//! memory of another type. [`crate::Hint`] is sound because of this.
//!
//! Freed memory returns to pools that all threads share. Segments take most of the memory, so each
//! NUMA node has its own pool of segments. Small segments, directory blocks and roots have one pool
//! each, for all nodes. Each pool has a mutex, which is locked only when memory is taken or freed:
//! when a segment splits, merges or changes between small and large, when a directory is resized,
//! and when a dictionary is created, gets its first entry, is released or is dropped.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

use pantala_base::numa::Node;

use crate::bucket::Bucket;
use crate::memory::{PAGE_BYTES, Usage, discard, map_forever};

/// Address space of a segment, in bytes. A segment uses only the pages that its buckets need.
pub(crate) const SEGMENT_BYTES: usize = 32 * 1024;
/// Cache lines of a segment: the header and the buckets.
pub(crate) const SEGMENT_LINES: usize = SEGMENT_BYTES / size_of::<Bucket>();
/// Size of a small segment, in bytes. A whole page would be many times the size of a dictionary
/// with few keys.
pub(crate) const SMALL_SEGMENT_BYTES: usize = 512;
/// Maximum depth of a directory: 2^24 words, 128 MB, enough for 40 billion entries.
pub(crate) const DIRECTORY_DEPTH_MAX: u32 = if cfg!(any(miri, test)) { 9 } else { 24 };
/// Depth of the smallest directory block: 8 words, which are a cache line.
const BLOCK_DEPTH_MIN: u32 = 3;

const SEGMENT_CHUNK_BYTES: usize = if cfg!(miri) { 8 } else { 2048 } * SEGMENT_BYTES;
const SMALL_CHUNK_BYTES: usize = if cfg!(miri) { 16 } else { 512 } * SMALL_SEGMENT_BYTES;
const BLOCK_CHUNK_BYTES: usize = if cfg!(miri) { 64 * 1024 } else { 1024 * 1024 };
/// Number of roots in a cache line. Memory for single roots is allocated by whole lines.
const ROOTS_PER_LINE: usize = 64 / size_of::<Root>();
const ROOT_CHUNK_BYTES: usize = 64 * 1024;

/// The memory of a segment: [`SEGMENT_LINES`] lines of atomic words, never unmapped. Other small
/// segments follow the lines of a small segment. This type returns references to single lines and
/// never one to all lines, because Miri's cost grows with the number of bytes that a reference
/// covers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct SegmentLines(NonNull<Bucket>);

// SAFETY: atomic words that are never unmapped may be shared and sent at any time.
unsafe impl Send for SegmentLines {}

impl SegmentLines {
    /// # Safety
    ///
    /// `address` is zero, or was returned by [`Self::address`] at some time in this process.
    #[inline(always)]
    pub(crate) unsafe fn from_address(address: usize) -> Option<Self> {
        NonNull::new(core::ptr::with_exposed_provenance_mut(address)).map(Self)
    }

    /// Returns the address, a multiple of [`SMALL_SEGMENT_BYTES`].
    #[inline]
    pub(crate) fn address(self) -> usize {
        self.0.as_ptr().expose_provenance()
    }

    /// Returns line `i`, which is below [`SEGMENT_LINES`].
    #[inline(always)]
    pub(crate) fn line(self, i: usize) -> &'static Bucket {
        // SAFETY: the mask keeps the line within the memory of a large segment. For a small segment
        // it keeps the line within the segment's chunk (see `take_small_segment`). This memory is
        // never unmapped. It consists of atomic words, for which a shared reference is valid at any
        // time.
        unsafe { self.0.add(i & (SEGMENT_LINES - 1)).as_ref() }
    }
}

/// The only word through which other threads reach a dictionary. The word has the address of the
/// directory (64-aligned) and, in the low six bits, the directory's depth. It is zero if there is
/// no directory. The word changes only when the directory moves, which is so rare that roots of
/// dictionaries with different owners may share a cache line.
pub(crate) struct Root(pub(crate) AtomicU64);

/// A chunk of memory that is handed out from front to back.
struct Bump {
    next: *mut u8,
    left_bytes: usize,
}

// SAFETY: the pointer is to unused memory that only the holder of the pool's mutex hands out.
unsafe impl Send for Bump {}

impl Bump {
    const fn new() -> Self {
        Self { next: core::ptr::null_mut(), left_bytes: 0 }
    }

    /// Returns `size_bytes` of zeroed memory. If the current chunk has less, maps a new one of at
    /// least `chunk_bytes`, aligned to `align_bytes`. All requested sizes are multiples of a cache
    /// line, so every result is aligned to a cache line.
    fn take(&mut self, size_bytes: usize, chunk_bytes: usize, align_bytes: usize, node: Node) -> NonNull<u8> {
        if self.left_bytes < size_bytes {
            // The rest of the old chunk, less than `size_bytes`, stays unused.
            self.next = map_forever(chunk_bytes.max(size_bytes), align_bytes, Usage::Sparse, node).as_ptr();
            self.left_bytes = chunk_bytes.max(size_bytes);
        }
        let taken = self.next;
        // SAFETY: `size_bytes <= left_bytes`, and that many bytes follow `next` in the chunk.
        self.next = unsafe { taken.add(size_bytes) };
        self.left_bytes -= size_bytes;
        // SAFETY: `taken` lies in a mapping, which isn't at address zero.
        unsafe { NonNull::new_unchecked(taken) }
    }
}

struct Segments {
    free: Vec<SegmentLines>,
    bump: Bump,
}

struct Blocks {
    free: [Vec<&'static [AtomicU64]>; DIRECTORY_DEPTH_MAX as usize + 1],
    bump: Bump,
}

struct FreeRoots {
    single: Vec<&'static Root>,
    groups: Vec<&'static [Root]>,
    bump: Bump,
}

impl FreeRoots {
    /// Returns whole lines of new roots without directories.
    fn cut(&mut self, lines: usize) -> &'static [Root] {
        let count = lines * ROOTS_PER_LINE;
        let start = self.bump.take(count * size_of::<Root>(), ROOT_CHUNK_BYTES, PAGE_BYTES, Node::ANY);
        // SAFETY: zeroed bytes, aligned to a line, never unmapped and handed out only here.
        unsafe { core::slice::from_raw_parts(start.cast::<Root>().as_ptr(), count) }
    }
}

/// The pools of segments, by node.
static SEGMENTS: [Mutex<Segments>; Node::COUNT] =
    [const { Mutex::new(Segments { free: Vec::new(), bump: Bump::new() }) }; Node::COUNT];
static SMALL_SEGMENTS: Mutex<Segments> = Mutex::new(Segments { free: Vec::new(), bump: Bump::new() });
static BLOCKS: Mutex<Blocks> =
    Mutex::new(Blocks { free: [const { Vec::new() }; DIRECTORY_DEPTH_MAX as usize + 1], bump: Bump::new() });
static ROOTS: Mutex<FreeRoots> = Mutex::new(FreeRoots { single: Vec::new(), groups: Vec::new(), bump: Bump::new() });

/// Locks a pool. Ignores poisoning: no code panics while a pool is inconsistent.
fn lock<T>(pool: &'static Mutex<T>) -> MutexGuard<'static, T> {
    pool.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns a segment with all words zero. Only the caller may store into it, until it is freed.
pub(crate) fn take_segment(node: Node) -> SegmentLines {
    let mut pool = lock(&SEGMENTS[node.index()]);
    if let Some(lines) = pool.free.pop() {
        return lines;
    }
    SegmentLines(pool.bump.take(SEGMENT_BYTES, SEGMENT_CHUNK_BYTES, SEGMENT_BYTES, node).cast())
}

/// Frees a segment of `node` after its owner's last store. All bytes of the segment after the first
/// `used_bytes` must be zero.
pub(crate) fn free_segment(lines: SegmentLines, used_bytes: usize, node: Node) {
    discard_lines(lines, 0, used_bytes);
    lock(&SEGMENTS[node.index()]).free.push(lines);
}

/// Returns a small segment with all words zero. Only the caller may store into it, until it is
/// freed.
pub(crate) fn take_small_segment() -> SegmentLines {
    let mut pool = lock(&SMALL_SEGMENTS);
    if let Some(lines) = pool.free.pop() {
        return lines;
    }
    if pool.bump.left_bytes == 0 {
        // `SegmentLines::line` requires that SEGMENT_BYTES are mapped after the address of every
        // segment, including the last one of the chunk.
        let start = map_forever(SMALL_CHUNK_BYTES + SEGMENT_BYTES, PAGE_BYTES, Usage::Sparse, Node::ANY);
        pool.bump = Bump { next: start.as_ptr(), left_bytes: SMALL_CHUNK_BYTES };
    }
    SegmentLines(pool.bump.take(SMALL_SEGMENT_BYTES, 0, 0, Node::ANY).cast())
}

/// Frees a small segment after its owner's last store.
pub(crate) fn free_small_segment(lines: SegmentLines) {
    for line in 0..SMALL_SEGMENT_BYTES / size_of::<Bucket>() {
        lines.line(line).slots.iter().for_each(|slot| slot.store(0, Relaxed));
    }
    lock(&SMALL_SEGMENTS).free.push(lines);
}

/// Zeroes the pages of a segment from byte `from_bytes` to `to_bytes` (both multiples of a page),
/// and returns them to the kernel.
pub(crate) fn discard_lines(lines: SegmentLines, from_bytes: usize, to_bytes: usize) {
    assert!(from_bytes <= to_bytes && to_bytes <= SEGMENT_BYTES && from_bytes.is_multiple_of(PAGE_BYTES));
    // SAFETY: the range lies in the segment, which is page-aligned within a mapping; the caller
    // owns the segment, and other threads only load from it atomically. The memory consists of
    // atomic words, so changing it behind a shared reference is allowed.
    unsafe {
        let start = lines.0.cast::<u8>().add(from_bytes);
        discard(start, to_bytes - from_bytes);
    }
}

/// Returns a directory block of 2^depth words. The words are zeros or stale directory words, so the
/// caller must store all words before it publishes the block.
pub(crate) fn take_block(depth: u32) -> &'static [AtomicU64] {
    let class = depth.max(BLOCK_DEPTH_MIN);
    let words = 1_usize << class;
    let mut pool = lock(&BLOCKS);
    let block = match pool.free[class as usize].pop() {
        Some(block) => block,
        None => {
            let start = pool.bump.take(words * size_of::<AtomicU64>(), BLOCK_CHUNK_BYTES, PAGE_BYTES, Node::ANY);
            // SAFETY: zeroed bytes, aligned to a line or more, never unmapped and handed out only
            // here.
            unsafe { core::slice::from_raw_parts(start.cast::<AtomicU64>().as_ptr(), words) }
        }
    };
    // Exposes the provenance of the whole block for `free_block`, because the returned slice may be
    // shorter.
    block.as_ptr().expose_provenance();
    &block[..1 << depth]
}

/// Frees a block from [`take_block`], after its owner's last store.
pub(crate) fn free_block(block: &'static [AtomicU64]) {
    let class = block.len().ilog2().max(BLOCK_DEPTH_MIN);
    let words = 1_usize << class;
    let address = core::num::NonZero::new(block.as_ptr().addr());
    let Some(start) = address.map(NonNull::<AtomicU64>::with_exposed_provenance) else { return };
    let size_bytes = words * size_of::<AtomicU64>();
    if size_bytes >= PAGE_BYTES && start.addr().get().is_multiple_of(PAGE_BYTES) {
        // SAFETY: the block is page-aligned, a multiple of the page, never unmapped, and the
        // caller's own.
        unsafe { discard(start.cast(), size_bytes) };
    }
    // SAFETY: `take_block` took a block of `words` words and returned its first `block.len()`
    // words.
    let whole = unsafe { core::slice::from_raw_parts(start.as_ptr(), words) };
    lock(&BLOCKS).free[class as usize].push(whole);
}

/// Returns a root without a directory.
pub(crate) fn take_root() -> &'static Root {
    let mut pool = lock(&ROOTS);
    if let Some(root) = pool.single.pop() {
        return root;
    }
    let roots = pool.cut(1);
    pool.single.extend(&roots[1..]);
    &roots[0]
}

/// Frees a root from [`take_root`]. Hints to it may still be used.
pub(crate) fn free_root(root: &'static Root) {
    root.0.store(0, Relaxed);
    lock(&ROOTS).single.push(root);
}

/// Returns at least `count` adjacent roots without directories. Pages that are never stored to
/// don't become resident.
pub(crate) fn take_roots(count: usize) -> &'static [Root] {
    if count == 0 {
        return &[];
    }
    let lines = count.div_ceil(ROOTS_PER_LINE);
    let mut pool = lock(&ROOTS);
    if let Some(at) = pool.groups.iter().position(|group| group.len() == lines * ROOTS_PER_LINE) {
        return pool.groups.swap_remove(at);
    }
    pool.cut(lines)
}

/// Frees roots from [`take_roots`], after their dictionaries were dropped. Hints to them may still
/// be used.
pub(crate) fn free_roots(group: &'static [Root]) {
    if !group.is_empty() {
        lock(&ROOTS).groups.push(group);
    }
}
