//! The global allocator of the `pantala` binary: mimalloc for small blocks, `mmap` for large ones.
//!
//! A block of at least [`MAPPED_BYTES_MIN`] is a kernel mapping of its own. Such a block grows with
//! `mremap`, which moves page tables instead of bytes. A string, a list or a buffer that doubles
//! therefore never exists in two copies. Freeing such a block returns its memory to the kernel at
//! once. Smaller blocks come from mimalloc, because for them page faults and system calls would
//! cost more than a mapping saves.
//!
//! mimalloc keeps freed memory for later allocations. [`purge`] returns the unused memory of the
//! calling thread's heap to the kernel.
//!
//! Huge pages make large heaps faster and small heaps larger. An empty server touches only a few
//! scattered pages, but each touch would make a whole huge page resident. mimalloc purges only the
//! parts of that page that it has allocated, so the other parts would stay resident. mimalloc is
//! therefore built without huge pages (`no_thp`). [`place_huge_pages`] enables them for a server
//! that has grown, and disables them when it is small again.

use core::alloc::{GlobalAlloc, Layout};
use core::ops::Range;
use core::ptr::{NonNull, null_mut};
use std::sync::OnceLock;

use mimalloc::MiMalloc;
use rustix::mm::{Advice, MapFlags, MremapFlags, ProtFlags, madvise, mmap_anonymous, mremap, munmap};

use crate::block::MAPPED_BYTES_MIN;

/// Minimum alignment of a mapping, in bytes. No supported platform has smaller pages.
const PAGE_BYTES_MIN: usize = 4096;

/// Minimum size of a mimalloc arena, in bytes: 1 GiB.
const ARENA_BYTES_MIN: usize = 1 << 30;

/// Number of bytes at the start of the first arena that have no huge pages with
/// [`HugePages::AfterFirst`]. Huge pages make the unused ends of blocks and of mimalloc's pages
/// resident. For example, a list of 200 MB with elements of 204,800 bytes takes 222 MiB with huge
/// pages and 204 MiB without.
const FIRST_BYTES: usize = 256 * 1024 * 1024;

unsafe extern "C" {
    /// Frees the unused pages of the calling thread's heap; with `force`, returns all unused memory
    /// to the kernel. Defined by mimalloc.
    fn mi_collect(force: bool);
}

/// Returns the unused memory of the calling thread's heap to the kernel. Takes some tens of
/// nanoseconds per 64 KiB page of the heap.
pub fn purge() {
    // SAFETY: may be called at any time, on any thread; the crate `mimalloc` links it.
    unsafe { mi_collect(true) };
}

/// The part of mimalloc's arenas that has huge pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum HugePages {
    /// No part.
    #[default]
    None,
    /// All but the first 256 MiB of the first arena.
    AfterFirst,
    /// All arenas.
    All,
}

/// The first arena. Known since the first call of [`place_huge_pages`].
static FIRST_ARENA: OnceLock<Option<Range<usize>>> = OnceLock::new();

/// Sets which part of mimalloc's arenas has huge pages. Memory that is in huge pages stays in them
/// until it is freed.
///
/// Must be called at the start of the process, and again after memory has grown: mimalloc may then
/// have mapped further arenas, each of a GiB or more. Reads `/proc/self/maps`, which takes some ten
/// microseconds.
pub fn place_huge_pages(part: HugePages) {
    let Ok(maps) = std::fs::read_to_string("/proc/self/maps") else { return };
    let advise = |range: Range<usize>, has_huge_pages: bool| {
        if !range.is_empty() {
            let advice = if has_huge_pages { Advice::LinuxHugepage } else { Advice::LinuxNoHugepage };
            let start = core::ptr::with_exposed_provenance_mut(range.start);
            // SAFETY: the advice doesn't change the contents of memory, so any mapping may receive
            // it. A kernel without huge pages rejects the advice.
            let _ = unsafe { madvise(start, range.len(), advice) };
        }
    };
    let mut arenas: Vec<Range<usize>> = maps.lines().filter_map(large_mapping).collect();
    let first_arena = FIRST_ARENA.get_or_init(|| {
        let block = small_block_address();
        arenas.iter().find(|arena| arena.contains(&block)).cloned()
    });
    // With [`HugePages::AfterFirst`], the first arena consists of two mappings, which may both be
    // too short for [`large_mapping`].
    arenas.extend(first_arena.clone());
    let first = first_arena.as_ref().map_or(0..0, |arena| arena.start..arena.start + FIRST_BYTES);
    for arena in arenas {
        // The kernel may have merged the first arena with the next one. Neighboring mappings with
        // the same properties are merged.
        let is_in_arena = arena.contains(&first.start);
        let (before, after) = if is_in_arena { (first.start, first.end) } else { (arena.start, arena.start) };
        advise(arena.start..before, part > HugePages::None);
        advise(after..arena.end, part > HugePages::None);
    }
    advise(first, part == HugePages::All);
}

/// Returns the address of a small block, which lies in the first arena.
fn small_block_address() -> usize {
    core::ptr::from_ref(&*Box::new(0_u8)).addr()
}

/// Parses a line of `/proc/self/maps`. Returns the addresses of an anonymous mapping at least as
/// large as an arena.
fn large_mapping(line: &str) -> Option<Range<usize>> {
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let range = usize::from_str_radix(start, 16).ok()?..usize::from_str_radix(end, 16).ok()?;
    // The remaining fields are permissions, offset, device and inode, then a name if there is one.
    let is_anonymous = fields.next() == Some("rw-p") && fields.nth(2) == Some("0") && fields.next().is_none();
    (is_anonymous && range.len() >= ARENA_BYTES_MIN).then_some(range)
}

/// The allocator described at the head of this module.
pub struct Allocator;

/// Returns whether a block of `bytes` bytes with the alignment of `layout` has a mapping of its
/// own. The result depends on size and alignment alone, so that `dealloc` makes the same choice as
/// `alloc`.
#[inline(always)]
fn is_mapped(bytes: usize, layout: Layout) -> bool {
    bytes >= MAPPED_BYTES_MIN && layout.align() <= PAGE_BYTES_MIN
}

/// Returns zeroed pages, or null if the kernel has none.
#[cold]
fn map(bytes: usize) -> *mut u8 {
    // SAFETY: an anonymous mapping at an address chosen by the kernel overlaps no other mapping.
    let mapped = unsafe { mmap_anonymous(null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE) };
    mapped.map_or(null_mut(), |start| start.cast())
}

/// Returns a mapping to the kernel.
///
/// # Safety
/// `start` is a mapping of `bytes` bytes made by [`map`] or [`remap`], and no longer used.
#[cold]
unsafe fn unmap(start: *mut u8, bytes: usize) {
    // SAFETY: by the caller's promise. `munmap` fails only if the kernel can't split a mapping; the
    // memory then leaks.
    let _ = unsafe { munmap(start.cast(), bytes) };
}

/// Resizes a mapping, moving it if necessary. Returns null, with nothing changed, if the kernel
/// fails.
///
/// # Safety
/// `start` is a mapping of `old_bytes` bytes made by [`map`] or [`remap`]. After success the block
/// exists only at the new address.
#[cold]
unsafe fn remap(start: *mut u8, old_bytes: usize, new_bytes: usize) -> *mut u8 {
    // SAFETY: by the caller's promise.
    let moved = unsafe { mremap(start.cast(), old_bytes, new_bytes, MremapFlags::MAYMOVE) };
    moved.map_or(null_mut(), |start| start.cast())
}

// SAFETY: the layout alone decides whether a block is mimalloc's or a mapping (`is_mapped`), so
// each block is freed by the allocator that made it. Mappings are aligned to pages, at least to
// `PAGE_BYTES_MIN`, and live until they are unmapped. No function here unwinds.
unsafe impl GlobalAlloc for Allocator {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if is_mapped(layout.size(), layout) {
            return map(layout.size());
        }
        // SAFETY: the caller's layout, whose size isn't zero.
        unsafe { MiMalloc.alloc(layout) }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if is_mapped(layout.size(), layout) {
            return map(layout.size());
        }
        // SAFETY: as above.
        unsafe { MiMalloc.alloc_zeroed(layout) }
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the block has this layout, so the allocator that made it frees it.
        unsafe {
            if is_mapped(layout.size(), layout) {
                return unmap(block, layout.size());
            }
            MiMalloc.dealloc(block, layout);
        }
    }

    #[inline]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_bytes: usize) -> *mut u8 {
        // SAFETY: the block has this layout, so the allocator that made it resizes it; the new size
        // isn't zero.
        unsafe {
            if layout.size().max(new_bytes) >= MAPPED_BYTES_MIN {
                return reallocate_large(block, layout, new_bytes);
            }
            MiMalloc.realloc(block, layout, new_bytes)
        }
    }
}

/// Implements [`GlobalAlloc::realloc`] for a block whose size is large before or after the call.
///
/// # Safety
/// The contract of [`GlobalAlloc::realloc`] holds.
#[cold]
unsafe fn reallocate_large(block: *mut u8, layout: Layout, new_bytes: usize) -> *mut u8 {
    // SAFETY: by the caller's promises. The old and the new block have at least the smaller size,
    // and the new block overlaps nothing.
    unsafe {
        match (is_mapped(layout.size(), layout), is_mapped(new_bytes, layout)) {
            (true, true) => remap(block, layout.size(), new_bytes),
            (false, false) => MiMalloc.realloc(block, layout, new_bytes),
            _ => {
                let new_layout = Layout::from_size_align_unchecked(new_bytes, layout.align());
                let Some(new) = NonNull::new(Allocator.alloc(new_layout)) else { return null_mut() };
                new.as_ptr().copy_from_nonoverlapping(block, layout.size().min(new_bytes));
                Allocator.dealloc(block, layout);
                new.as_ptr()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fills the bytes `from..to` of a block with a pattern of their position.
    fn fill(block: *mut u8, from: usize, to: usize) {
        for i in from..to {
            // SAFETY: each caller's block has at least `to` bytes.
            unsafe { block.add(i).write(i as u8 ^ (i >> 12) as u8) };
        }
    }

    fn is_filled(block: *mut u8, to: usize) -> bool {
        // SAFETY: as above, and written before.
        (0..to).all(|i| unsafe { block.add(i).read() } == i as u8 ^ (i >> 12) as u8)
    }

    #[test]
    fn contents_survive_growing_and_shrinking_across_the_bound() {
        const SIZES: [usize; 7] = [
            100,
            MAPPED_BYTES_MIN - 1,
            MAPPED_BYTES_MIN,
            3 * MAPPED_BYTES_MIN + 5,
            MAPPED_BYTES_MIN + 1,
            MAPPED_BYTES_MIN - 5000,
            10,
        ];
        for align in [1, 16, 4096, 8192] {
            let layout = |bytes| Layout::from_size_align(bytes, align).expect("a power of two");
            // SAFETY: each block is used with the layout that it has.
            unsafe {
                let mut block = Allocator.alloc(layout(SIZES[0]));
                fill(block, 0, SIZES[0]);
                for pair in SIZES.windows(2) {
                    block = Allocator.realloc(block, layout(pair[0]), pair[1]);
                    assert!(!block.is_null() && block.addr().is_multiple_of(align));
                    assert!(is_filled(block, pair[0].min(pair[1])), "{pair:?}");
                    fill(block, pair[0].min(pair[1]), pair[1]);
                }
                Allocator.dealloc(block, layout(SIZES[SIZES.len() - 1]));
            }
        }
    }

    #[test]
    fn zeroed_blocks_are_zero() {
        for bytes in [1000, MAPPED_BYTES_MIN] {
            let layout = Layout::from_size_align(bytes, 8).expect("a power of two");
            // SAFETY: the block has this layout.
            unsafe {
                let block = Allocator.alloc_zeroed(layout);
                assert!((0..bytes).all(|i| block.add(i).read() == 0));
                Allocator.dealloc(block, layout);
            }
        }
    }

    unsafe extern "C" {
        /// Returns the usable size of a block. Defined by mimalloc.
        fn mi_usable_size(block: *const u8) -> usize;
    }

    /// Fails if a new version of mimalloc has other size classes, which [`crate::block`] must
    /// match.
    #[test]
    fn accounted_sizes_are_those_of_mimalloc() {
        for bytes in [32 * 1024, 40_000, 50_000, 70_000, 100_000, 131_073, 200 * 1024, 300_000, 400_000, 524_288] {
            let layout = Layout::from_size_align(bytes, 1).expect("a power of two");
            // SAFETY: the block has this layout and is mimalloc's, because it is not mapped.
            unsafe {
                let block = Allocator.alloc(layout);
                assert_eq!(crate::block_bytes(bytes), mi_usable_size(block), "{bytes}");
                Allocator.dealloc(block, layout);
            }
        }
    }

    /// A size beyond the memory of any machine is rejected, and the block stays valid.
    #[test]
    fn a_failed_growth_keeps_the_block() {
        let layout = Layout::from_size_align(MAPPED_BYTES_MIN, 1).expect("a power of two");
        // SAFETY: the block has this layout, before and after.
        unsafe {
            let block = Allocator.alloc(layout);
            fill(block, 0, 5000);
            assert!(Allocator.realloc(block, layout, 1 << 60).is_null());
            assert!(is_filled(block, 5000));
            Allocator.dealloc(block, layout);
        }
    }

    #[test]
    fn arenas_are_recognized_by_their_mappings() {
        let large = large_mapping("20000000000-20040000000 rw-p 00000000 00:00 0 ");
        assert_eq!(large, Some(0x200_0000_0000..0x200_4000_0000));
        for other in [
            "20000000000-2003ffff000 rw-p 00000000 00:00 0 ",
            "20000000000-20040000000 r--p 00000000 00:00 0 ",
            "20000000000-20040000000 rw-p 00000000 00:00 0    [heap]",
            "20000000000-20040000000 rw-p 00000000 fe:00 7 /some/file",
            "",
        ] {
            assert_eq!(large_mapping(other), None, "{other}");
        }
        for part in [HugePages::None, HugePages::AfterFirst, HugePages::All, HugePages::None] {
            place_huge_pages(part);
        }
    }

    #[test]
    fn purging_keeps_blocks_in_use() {
        let kept: Vec<Vec<u8>> = (0..1000).map(|i| vec![i as u8; 5000]).collect();
        purge();
        assert!(kept.iter().enumerate().all(|(i, bytes)| bytes.iter().all(|byte| *byte == i as u8)));
    }
}
