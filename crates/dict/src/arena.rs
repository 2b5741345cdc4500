//! The type-stable arena: segments, directory blocks and roots.
//!
//! Memory of each of the three kinds is mapped for the life of the process and never changes its kind or its size: a
//! segment's memory is ever after 512 buckets of atomic words (8 of a small one, and others' behind them), a directory block of 2^d words holds directory words
//! (or zeros) and nothing else. So a thread that follows a root to a directory to a segment while another thread
//! changes, drops or recycles them reads at worst another dictionary's state, never memory of another kind. That is
//! the whole soundness of [`crate::Hint`].
//!
//! The pools are shared by all threads behind one mutex each; they are asked only when a segment splits or merges or a
//! directory changes its size.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::bucket::Bucket;
use crate::memory::{PAGE_BYTES, Usage, discard, map_forever};

/// Bytes of address space a segment has; it uses the first pages of it.
pub(crate) const SEGMENT_BYTES: usize = 32 * 1024;
/// Cache lines of a segment: the header and its buckets.
pub(crate) const SEGMENT_LINES: usize = SEGMENT_BYTES / size_of::<Bucket>();
/// Bytes of a small segment, for a dictionary of a few keys: a page would be many times what they take.
pub(crate) const SMALL_SEGMENT_BYTES: usize = 512;
/// Largest directory: 2^24 words, 128 MB, enough for 40 billion entries of one dictionary.
pub(crate) const DIRECTORY_DEPTH_MAX: u32 = if cfg!(any(miri, test)) { 9 } else { 24 };
/// Smallest block, as a power of two: a cache line of words.
const BLOCK_DEPTH_MIN: u32 = 3;

const SEGMENT_CHUNK_BYTES: usize = if cfg!(miri) { 8 } else { 2048 } * SEGMENT_BYTES;
const SMALL_CHUNK_BYTES: usize = if cfg!(miri) { 16 } else { 512 } * SMALL_SEGMENT_BYTES;
const BLOCK_CHUNK_BYTES: usize = if cfg!(miri) { 64 * 1024 } else { 1024 * 1024 };
/// Roots that single dictionaries take are cut from lines of so many.
const ROOTS_PER_LINE: usize = 64 / size_of::<Root>();
const ROOT_CHUNK_BYTES: usize = 64 * 1024;

/// A segment's memory: [`SEGMENT_LINES`] lines, mapped for ever. Of a small segment the first few are its own, and those
/// behind them, other small segments', no less atomic words. Not a reference to the whole, but a source of references
/// to lines: Miri pays for every byte that a reference covers, each time one is made.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct SegmentLines(NonNull<Bucket>);

// SAFETY: atomic words, mapped for ever, may be shared and sent at any time.
unsafe impl Send for SegmentLines {}

impl SegmentLines {
    /// # Safety
    ///
    /// `address` is what [`Self::address`] gave at some time in this process's life, or zero.
    #[inline(always)]
    pub(crate) unsafe fn from_address(address: usize) -> Option<Self> {
        NonNull::new(core::ptr::with_exposed_provenance_mut(address)).map(Self)
    }

    /// The address, a multiple of [`SMALL_SEGMENT_BYTES`].
    #[inline]
    pub(crate) fn address(self) -> usize {
        self.0.as_ptr().expose_provenance()
    }

    /// Line `i`, which is below [`SEGMENT_LINES`].
    #[inline(always)]
    pub(crate) fn line(self, i: usize) -> &'static Bucket {
        // SAFETY: the mask keeps the line within the segment's memory, or that of its chunk (see `take_small_segment`),
        // which is mapped for ever and consists of atomic words, for which a shared reference is valid at any time.
        unsafe { self.0.add(i & (SEGMENT_LINES - 1)).as_ref() }
    }
}

/// The one word of a dictionary that other threads know: the directory's address (64-aligned) and its depth in the low
/// six bits; zero when there is none. It changes only where the directory moves, so that roots of dictionaries with
/// different owners share a cache line.
pub(crate) struct Root(pub(crate) AtomicU64);

/// Memory handed out from the front of a chunk.
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

    /// `size_bytes` of zeroed memory. Chunks are aligned to `align_bytes` and all sizes asked of one `Bump` are
    /// multiples of it.
    fn take(&mut self, size_bytes: usize, chunk_bytes: usize, align_bytes: usize) -> NonNull<u8> {
        if self.left_bytes < size_bytes {
            // What is left of the old chunk is never used: at most one block less a line.
            self.next = map_forever(chunk_bytes.max(size_bytes), align_bytes, Usage::Sparse).as_ptr();
            self.left_bytes = chunk_bytes.max(size_bytes);
        }
        let taken = self.next;
        // SAFETY: `size_bytes <= left_bytes`, and so many bytes follow `next` in the chunk.
        self.next = unsafe { taken.add(size_bytes) };
        self.left_bytes -= size_bytes;
        // SAFETY: it comes from a mapping, which isn't at address zero.
        unsafe { NonNull::new_unchecked(taken) }
    }
}

struct Segments {
    free: Vec<SegmentLines>,
    bump: Bump,
    small_free: Vec<SegmentLines>,
    small_bump: Bump,
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
    /// Fresh roots without directories, whole lines of them.
    fn cut(&mut self, lines: usize) -> &'static [Root] {
        let count = lines * ROOTS_PER_LINE;
        let start = self.bump.take(count * size_of::<Root>(), ROOT_CHUNK_BYTES, PAGE_BYTES);
        // SAFETY: so many zeroed bytes, aligned to a line, mapped for ever and handed out to nobody else.
        unsafe { core::slice::from_raw_parts(start.cast::<Root>().as_ptr(), count) }
    }
}

static SEGMENTS: Mutex<Segments> =
    Mutex::new(Segments { free: Vec::new(), bump: Bump::new(), small_free: Vec::new(), small_bump: Bump::new() });
static BLOCKS: Mutex<Blocks> =
    Mutex::new(Blocks { free: [const { Vec::new() }; DIRECTORY_DEPTH_MAX as usize + 1], bump: Bump::new() });
static ROOTS: Mutex<FreeRoots> = Mutex::new(FreeRoots { single: Vec::new(), groups: Vec::new(), bump: Bump::new() });

/// No code panics while it holds a pool, so a poisoned pool is whole.
fn lock<T>(pool: &'static Mutex<T>) -> MutexGuard<'static, T> {
    pool.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A segment with all words zero. Only the caller may store into it, until it is freed.
pub(crate) fn take_segment() -> SegmentLines {
    let mut pool = lock(&SEGMENTS);
    if let Some(lines) = pool.free.pop() {
        return lines;
    }
    SegmentLines(pool.bump.take(SEGMENT_BYTES, SEGMENT_CHUNK_BYTES, SEGMENT_BYTES).cast())
}

/// Gives back a segment that its owner doesn't store into any more; its first `used_bytes` may be other than zero.
pub(crate) fn free_segment(lines: SegmentLines, used_bytes: usize) {
    discard_lines(lines, 0, used_bytes);
    lock(&SEGMENTS).free.push(lines);
}

/// As [`take_segment`], a small one.
pub(crate) fn take_small_segment() -> SegmentLines {
    let mut pool = lock(&SEGMENTS);
    if let Some(lines) = pool.small_free.pop() {
        return lines;
    }
    if pool.small_bump.left_bytes == 0 {
        // Behind the chunk's last segment there are as many lines as any segment is taken to have.
        let start = map_forever(SMALL_CHUNK_BYTES + SEGMENT_BYTES, PAGE_BYTES, Usage::Sparse);
        pool.small_bump = Bump { next: start.as_ptr(), left_bytes: SMALL_CHUNK_BYTES };
    }
    SegmentLines(pool.small_bump.take(SMALL_SEGMENT_BYTES, 0, 0).cast())
}

/// Gives back a small segment that its owner doesn't store into any more.
pub(crate) fn free_small_segment(lines: SegmentLines) {
    for line in 0..SMALL_SEGMENT_BYTES / size_of::<Bucket>() {
        lines.line(line).slots.iter().for_each(|slot| slot.store(0, Relaxed));
    }
    lock(&SEGMENTS).small_free.push(lines);
}

/// Makes the pages of a segment in `from_bytes..to_bytes` (multiples of the page) zero and gives them back.
pub(crate) fn discard_lines(lines: SegmentLines, from_bytes: usize, to_bytes: usize) {
    assert!(from_bytes <= to_bytes && to_bytes <= SEGMENT_BYTES && from_bytes.is_multiple_of(PAGE_BYTES));
    // SAFETY: the range lies in the segment, which is page-aligned within a mapping; the caller owns the segment, others
    // only load from it atomically. The memory consists of atomic words, so changing it behind a shared reference is
    // allowed.
    unsafe {
        let start = lines.0.cast::<u8>().add(from_bytes);
        discard(start, to_bytes - from_bytes);
    }
}

/// A directory block of 2^depth words. Its words are zero or stale directory words: the caller stores each of them
/// before it publishes the block.
pub(crate) fn take_block(depth: u32) -> &'static [AtomicU64] {
    let class = depth.max(BLOCK_DEPTH_MIN);
    let words = 1_usize << class;
    let mut pool = lock(&BLOCKS);
    let block = match pool.free[class as usize].pop() {
        Some(block) => block,
        None => {
            let start = pool.bump.take(words * size_of::<AtomicU64>(), BLOCK_CHUNK_BYTES, PAGE_BYTES);
            // SAFETY: so many zeroed bytes, aligned to a line or more, mapped for ever and handed out to nobody else.
            unsafe { core::slice::from_raw_parts(start.cast::<AtomicU64>().as_ptr(), words) }
        }
    };
    // The whole block's provenance, for `free_block` to find again: the slice handed out may be shorter.
    block.as_ptr().expose_provenance();
    &block[..1 << depth]
}

/// Gives back a block from [`take_block`] whose owner doesn't store into it any more.
pub(crate) fn free_block(block: &'static [AtomicU64]) {
    let class = block.len().ilog2().max(BLOCK_DEPTH_MIN);
    let words = 1_usize << class;
    let address = core::num::NonZero::new(block.as_ptr().addr());
    let Some(start) = address.map(NonNull::<AtomicU64>::with_exposed_provenance) else { return };
    let size_bytes = words * size_of::<AtomicU64>();
    if size_bytes >= PAGE_BYTES && start.addr().get().is_multiple_of(PAGE_BYTES) {
        // SAFETY: the block is page-aligned, a multiple of the page, mapped for ever, and the caller's own.
        unsafe { discard(start.cast(), size_bytes) };
    }
    // SAFETY: blocks are handed out with the length of their class or, below the smallest class, cut from it.
    let whole = unsafe { core::slice::from_raw_parts(start.as_ptr(), words) };
    lock(&BLOCKS).free[class as usize].push(whole);
}

/// A root without a directory.
pub(crate) fn take_root() -> &'static Root {
    let mut pool = lock(&ROOTS);
    if let Some(root) = pool.single.pop() {
        return root;
    }
    let roots = pool.cut(1);
    pool.single.extend(&roots[1..]);
    &roots[0]
}

/// Gives back a root of [`take_root`]; hints to it may live on.
pub(crate) fn free_root(root: &'static Root) {
    root.0.store(0, Relaxed);
    lock(&ROOTS).single.push(root);
}

/// At least `count` roots without directories, side by side. Pages of them that are never stored to aren't resident.
pub(crate) fn take_roots(count: usize) -> &'static [Root] {
    let lines = count.div_ceil(ROOTS_PER_LINE);
    let mut pool = lock(&ROOTS);
    if let Some(at) = pool.groups.iter().position(|group| group.len() == lines * ROOTS_PER_LINE) {
        return pool.groups.swap_remove(at);
    }
    pool.cut(lines)
}

/// Gives back roots of [`take_roots`], whose dictionaries are gone; hints to them may live on.
pub(crate) fn free_roots(group: &'static [Root]) {
    lock(&ROOTS).groups.push(group);
}
