//! The allocator of the `pantala` binary: mimalloc for small blocks, mappings of their own for
//! large ones.
//!
//! A block of [`MAPPED_BYTES_MIN`] or more is a mapping of the kernel's. It grows by moving page
//! tables instead of bytes (`mremap`), so a string, a list or a buffer that doubles never takes
//! memory twice, and it is returned to the kernel when it is freed. Below that, mappings would cost
//! more than they save: page faults for each block, and a system call for each allocation.
//!
//! mimalloc keeps what was freed for the next allocation. [`purge`] returns it to the kernel, of
//! the calling thread's heap.
//!
//! Huge pages are faster for much memory, and wasted on little: an empty server touches a megabyte
//! here and there, of which they make eight. So mimalloc is built not to ask for them
//! (`no_thp`), and [`place_huge_pages`] has the kernel use them beyond the first memory.

use core::alloc::{GlobalAlloc, Layout};
use core::ptr::{NonNull, null_mut};

use mimalloc::MiMalloc;
use rustix::mm::{Advice, MapFlags, MremapFlags, ProtFlags, madvise, mmap_anonymous, mremap, munmap};

/// Blocks of at least so many bytes (8 MiB) are mappings of their own.
pub const MAPPED_BYTES_MIN: usize = 8 * 1024 * 1024;

/// The least alignment of a mapping, bytes: pages are nowhere smaller.
const PAGE_BYTES_MIN: usize = 4096;

/// Bytes of the arenas from which mimalloc takes memory: at least 1 GiB each.
const ARENA_BYTES_MIN: usize = 1 << 30;

/// Bytes at the beginning of the first arena that have no huge pages: 64 MiB, where small servers
/// live.
const SMALL_BYTES: usize = 64 * 1024 * 1024;

unsafe extern "C" {
    /// Of mimalloc: frees the unused pages of the calling thread's heap; with `force`, returns all
    /// unused memory to the kernel.
    fn mi_collect(force: bool);
}

/// Returns to the kernel what the calling thread's heap doesn't use. Takes some tens of nanoseconds
/// for each page of 64 KiB that the heap holds.
pub fn purge() {
    // SAFETY: may be called at any time, on any thread; the crate `mimalloc` links it.
    unsafe { mi_collect(true) };
}

/// Has the kernel use huge pages for what mimalloc has mapped, beyond the first memory. To be
/// called at the start of the process, and again when its memory has grown by much: mimalloc maps
/// a GiB and more at a time. Asks the kernel for all mappings: takes some ten microseconds.
pub fn place_huge_pages() {
    let Ok(maps) = std::fs::read_to_string("/proc/self/maps") else { return };
    for arena in maps.lines().filter_map(large_mapping) {
        let advise = |from: usize, to: usize, advice| {
            let start = core::ptr::with_exposed_provenance_mut(from);
            // SAFETY: neither advice changes the contents of memory, so any mapping may get it. A kernel
            // without huge pages rejects both.
            let _ = unsafe { madvise(start, to - from, advice) };
        };
        // The first arena, which the first advice cuts in two: its end isn't found again.
        let small_bytes = if arena.contains(&small_block_address()) { SMALL_BYTES } else { 0 };
        advise(arena.start, arena.start + small_bytes, Advice::LinuxNoHugepage);
        advise(arena.start + small_bytes, arena.end, Advice::LinuxHugepage);
    }
}

/// Where a small block lies.
fn small_block_address() -> usize {
    core::ptr::from_ref(&*Box::new(0_u8)).addr()
}

/// The addresses of an anonymous mapping that is as large as an arena, from a line of
/// `/proc/self/maps`.
fn large_mapping(line: &str) -> Option<core::ops::Range<usize>> {
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let range = usize::from_str_radix(start, 16).ok()?..usize::from_str_radix(end, 16).ok()?;
    // Permissions, offset, device, inode; what is behind them is a name.
    let is_anonymous = fields.next() == Some("rw-p") && fields.nth(2) == Some("0") && fields.next().is_none();
    (is_anonymous && range.len() >= ARENA_BYTES_MIN).then_some(range)
}

/// See the head of this module.
pub struct Allocator;

/// Whether a block of this layout is a mapping of its own. A function of the layout alone, so that
/// freeing decides as allocating did.
#[inline(always)]
fn is_mapped(bytes: usize, layout: Layout) -> bool {
    bytes >= MAPPED_BYTES_MIN && layout.align() <= PAGE_BYTES_MIN
}

/// Zeroed pages; null when the kernel refuses.
#[cold]
fn map(bytes: usize) -> *mut u8 {
    // SAFETY: an anonymous mapping at an address of the kernel's choosing overlaps nothing that
    // exists.
    let mapped = unsafe { mmap_anonymous(null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE) };
    mapped.map_or(null_mut(), |start| start.cast())
}

/// # Safety
/// `start` is a mapping of so many bytes made by [`map`] or [`remap`], which nobody uses any more.
#[cold]
unsafe fn unmap(start: *mut u8, bytes: usize) {
    // SAFETY: by the caller's promise. The kernel only refuses where it can't split a mapping: then
    // the memory is lost, and nothing else.
    let _ = unsafe { munmap(start.cast(), bytes) };
}

/// Makes a mapping larger or smaller, wherever there is room for it; null, and nothing has changed,
/// when the kernel refuses.
///
/// # Safety
/// As [`unmap`]; where it succeeds the block is at the new address only.
#[cold]
unsafe fn remap(start: *mut u8, old_bytes: usize, new_bytes: usize) -> *mut u8 {
    // SAFETY: by the caller's promise.
    let moved = unsafe { mremap(start.cast(), old_bytes, new_bytes, MremapFlags::MAYMOVE) };
    moved.map_or(null_mut(), |start| start.cast())
}

// SAFETY: each block is mimalloc's or a mapping by its layout alone (`is_mapped`), and goes back to
// where it came from. Mappings are aligned to pages, at least to `PAGE_BYTES_MIN`, and live until
// they are unmapped. Nothing here unwinds.
unsafe impl GlobalAlloc for Allocator {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if is_mapped(layout.size(), layout) {
            return map(layout.size());
        }
        // SAFETY: the caller's layout, which isn't of zero bytes.
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
        // SAFETY: the block has this layout, so it came from where it is given to.
        unsafe {
            if is_mapped(layout.size(), layout) {
                return unmap(block, layout.size());
            }
            MiMalloc.dealloc(block, layout);
        }
    }

    #[inline]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_bytes: usize) -> *mut u8 {
        // SAFETY: the block has this layout, so it came from where it is given to; the new size
        // isn't zero.
        unsafe {
            if layout.size().max(new_bytes) >= MAPPED_BYTES_MIN {
                return reallocate_large(block, layout, new_bytes);
            }
            MiMalloc.realloc(block, layout, new_bytes)
        }
    }
}

/// [`GlobalAlloc::realloc`], where the block is large before or after.
///
/// # Safety
/// As there.
#[cold]
unsafe fn reallocate_large(block: *mut u8, layout: Layout, new_bytes: usize) -> *mut u8 {
    // SAFETY: by the caller's promises; both blocks have at least the smaller size, and a new one
    // overlaps nothing.
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

    /// Fills a block's bytes by their position, from one on.
    fn fill(block: *mut u8, from: usize, to: usize) {
        for i in from..to {
            // SAFETY: the callers' blocks have `to` bytes.
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

    /// A size that no machine has is rejected, and the block stays.
    #[test]
    fn a_refused_growth_leaves_the_block() {
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
    fn arenas_are_known_by_their_mappings() {
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
        place_huge_pages();
    }

    #[test]
    fn purging_leaves_what_is_in_use() {
        let kept: Vec<Vec<u8>> = (0..1000).map(|i| vec![i as u8; 5000]).collect();
        purge();
        assert!(kept.iter().enumerate().all(|(i, bytes)| bytes.iter().all(|byte| *byte == i as u8)));
    }
}
