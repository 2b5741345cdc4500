//! Memory from the kernel: mapped in large chunks and never unmapped. Unused pages are returned to
//! the kernel but stay mapped.
//!
//! Every mapping lives as long as the process, because hints ([`crate::Hint`]) may read it at any
//! time.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use pantala_base::numa::Node;

/// Unit in which memory is returned to the kernel, in bytes. A kernel with larger pages rejects a
/// request for 4096 bytes; [`discard`] then writes zeros instead.
pub(crate) const PAGE_BYTES: usize = 4096;

/// The expected use of a mapping, for the kernel.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Usage {
    /// The mapping is filled from front to back, so huge pages save TLB misses.
    Dense,
    /// Only scattered pages of the mapping are used, so huge pages would make unused pages
    /// resident.
    Sparse,
}

/// Maps `len_bytes` of zeroed memory, aligned to `align_bytes` (a power of two, at least a page),
/// for the life of the process. If the kernel has no memory, prints a message and aborts the
/// process, as Redis does. If the kernel rejects `node`, each page lies on the node of the CPU that
/// first uses it.
#[cfg(not(miri))]
pub(crate) fn map_forever(len_bytes: usize, align_bytes: usize, usage: Usage, node: Node) -> NonNull<u8> {
    use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

    let reserve_bytes = len_bytes + align_bytes;
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: an anonymous mapping at an address chosen by the kernel overlaps no other mapping.
    let mapped = unsafe { mmap_anonymous(core::ptr::null_mut(), reserve_bytes, protection, flags) };
    let Ok(base) = mapped else { out_of_memory(reserve_bytes) };
    let base = base.cast::<u8>();
    let skip_bytes = base.align_offset(align_bytes);
    // SAFETY: `skip_bytes < align_bytes`, so `base + skip + len` lies within the mapping just made;
    // the two ends that are unmapped belong to the mapping and nothing refers to them. A failed
    // `munmap` only wastes address space, and `madvise` doesn't change contents.
    unsafe {
        let start = base.add(skip_bytes);
        if skip_bytes > 0 {
            let _ = munmap(base.cast(), skip_bytes);
        }
        let _ = munmap(start.add(len_bytes).cast(), align_bytes - skip_bytes);
        let advice = if usage == Usage::Dense { Advice::LinuxHugepage } else { Advice::LinuxNoHugepage };
        let _ = madvise(start.cast(), len_bytes, advice);
        // A failure is ignored: placement is only an optimization, and the server has tested the
        // node at startup.
        let _ = pantala_base::numa::prefer(start, len_bytes, node);
        NonNull::new_unchecked(start)
    }
}

/// Allocates the memory, because Miri can't make the system calls. Records the blocks, because
/// dictionaries hold the addresses only as numbers. Without this record, Miri's leak check would
/// report the blocks as unreachable.
#[cfg(miri)]
pub(crate) fn map_forever(len_bytes: usize, align_bytes: usize, _usage: Usage, _node: Node) -> NonNull<u8> {
    static MAPPED: std::sync::Mutex<Vec<Mapping>> = std::sync::Mutex::new(Vec::new());
    #[expect(dead_code, reason = "only Miri reads it")]
    struct Mapping(NonNull<u8>);
    // SAFETY: the pointer is never used.
    unsafe impl Send for Mapping {}

    let Ok(layout) = core::alloc::Layout::from_size_align(len_bytes, align_bytes) else { out_of_memory(len_bytes) };
    // SAFETY: the callers map chunks of a non-zero constant size.
    let start = NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) }).unwrap_or_else(|| out_of_memory(len_bytes));
    MAPPED.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(Mapping(start));
    start
}

#[cold]
fn out_of_memory(len_bytes: usize) -> ! {
    eprintln!("pantala: out of memory: mmap of {len_bytes} bytes failed");
    std::process::abort()
}

/// Zeroes a range and returns its pages to the kernel.
///
/// # Safety
///
/// `start` is page-aligned and `len_bytes` a multiple of the page. The range lies within a mapping
/// of [`map_forever`]. The caller owns the range; other threads at most read it by atomic loads.
pub(crate) unsafe fn discard(start: NonNull<u8>, len_bytes: usize) {
    #[cfg(not(miri))]
    {
        use rustix::mm::{Advice, madvise};
        // SAFETY: the caller owns the range, and it is a private anonymous mapping: after
        // `LinuxDontNeed` its pages read as zero and stay mapped. A concurrent atomic load sees the
        // old word or zero.
        if unsafe { madvise(start.as_ptr().cast(), len_bytes, Advice::LinuxDontNeed) }.is_ok() {
            return;
        }
    }
    let words = start.cast::<AtomicU64>();
    for i in 0..len_bytes / size_of::<AtomicU64>() {
        // SAFETY: within the range; page-aligned, so aligned for the word; other threads only load
        // atomically.
        unsafe { words.add(i).as_ref() }.store(0, Relaxed);
    }
}

/// Rounds a size in bytes up to whole pages.
pub(crate) const fn page_ceil(len_bytes: usize) -> usize {
    len_bytes.div_ceil(PAGE_BYTES) * PAGE_BYTES
}

/// Bytes of a cache line on all supported machines.
const LINE_BYTES: usize = 64;

/// Prefetches all lines of a `T`. Never faults, whatever the address.
#[inline(always)]
pub fn prefetch_all<T>(address: *const T) {
    for offset in (0..size_of::<T>()).step_by(LINE_BYTES) {
        prefetch(address.wrapping_byte_add(offset));
    }
}

/// Prefetches the line that holds `address`. Never faults, whatever the address.
#[inline(always)]
pub fn prefetch<T>(address: *const T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch doesn't fault and has no architectural effect for any address; SSE is
    // baseline.
    unsafe {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(address.cast());
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    // SAFETY: `prfm` is a hint: it doesn't fault and changes neither registers nor memory.
    unsafe {
        core::arch::asm!("prfm pldl1keep, [{}]", in(reg) address, options(nostack, readonly, preserves_flags));
    }
    #[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
    let _ = address;
}
