//! The receive buffers: a ring of provided buffers, from which the kernel selects.
//!
//! A buffer has one of three owners:
//!
//! - *Kernel*: the buffer is in the ring, and the kernel may write to it.
//! - *Caller*: a completion named the buffer, and the caller holds a chunk of it.
//! - *This module*: one of its functions is moving the buffer from kernel to caller or back.
//!
//! The kernel removes a buffer from the ring before it writes to the buffer, and names the buffer
//! in exactly one completion. So a buffer never has two owners.

use std::alloc::{self, Layout};
use std::io;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};

use io_uring::Submitter;
use io_uring::types::BufRingEntry;
use rustix::mm::{self, MapFlags, ProtFlags};

use crate::Chunk;

/// Bytes of one buffer.
pub(super) const BUFFER_BYTES: usize = 16 * 1024;
/// Distance between the starts of two buffers, bytes. A turn (one iteration of the loop) reads the
/// first few hundred bytes of many buffers. With a distance of 16 KB, a power of two, these bytes
/// would compete for a few sets of the first- and second-level caches.
const BUFFER_STRIDE_BYTES: usize = BUFFER_BYTES + 5 * 64;
/// Initial number of buffers of one loop (1 MB). The number doubles while receives starve, up to
/// [`BUFFERS_MAX`].
pub(super) const BUFFERS_MIN: u16 = 64;
/// Maximum number of buffers of one loop: 64 MB. The kernel requires a power of two.
pub(super) const BUFFERS_MAX: u16 = 4096;
/// The only group of buffers in a loop's ring.
pub(super) const GROUP: u16 = 0;

/// The number by which the next loop identifies the chunks that it lends. Starts at 1, because 0
/// stands for the epoll backend. Relaxed ordering suffices, because the numbers only have to be
/// unique.
static LENDERS: AtomicU32 = AtomicU32::new(1);

const PAGE_BYTES: usize = 4096;
const MASK: u16 = BUFFERS_MAX - 1;

/// The ring and its buffers.
pub(super) struct Buffers {
    /// `BUFFERS_MAX` entries, page-aligned, shared with the kernel.
    ring: NonNull<BufRingEntry>,
    /// Index of the entry for the next buffer that is provided. Wraps to 0 after 65,535.
    tail: u16,
    /// The number by which this loop identifies its chunks. The loop rejects chunks with other
    /// numbers.
    lender: u32,
    /// Number of buffers that the kernel owns. This includes buffers in completions that have not
    /// been read yet.
    provided: u16,
    /// Maximum number of buffers. Less than [`BUFFERS_MAX`] only in tests.
    pub(super) bound: usize,
    /// Start of each buffer, by its number.
    starts: Vec<NonNull<u8>>,
    /// The mappings that contain the buffers, with their lengths in bytes. `Drop` unmaps them.
    slabs: Vec<(NonNull<u8>, usize)>,
}

impl Buffers {
    fn ring_layout() -> Layout {
        let bytes = usize::from(BUFFERS_MAX) * size_of::<BufRingEntry>();
        Layout::from_size_align(bytes, PAGE_BYTES).expect("a small constant size")
    }

    /// Creates buffers and registers them with the ring of `submitter`. Before the buffers are
    /// dropped, one of three things must have happened: that ring is closed, the buffers are
    /// unregistered, or ring and buffers are leaked. See `Drop` of [`super::UringLoop`].
    pub(super) fn new(submitter: &Submitter<'_>) -> io::Result<Self> {
        // SAFETY: the layout's size is not zero.
        let memory = unsafe { alloc::alloc_zeroed(Self::ring_layout()) };
        let ring = NonNull::new(memory.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        let mut buffers = Buffers {
            ring,
            lender: LENDERS.fetch_add(1, Ordering::Relaxed),
            tail: 0,
            provided: 0,
            bound: BUFFERS_MAX.into(),
            starts: Vec::new(),
            slabs: Vec::new(),
        };
        // SAFETY: the address is page-aligned and has room for BUFFERS_MAX entries. It stays
        // allocated until `buffers` is dropped, which by this function's contract is after the
        // kernel's last use.
        unsafe { submitter.register_buf_ring_with_flags(ring.as_ptr() as u64, BUFFERS_MAX, GROUP, 0) }?;
        // If this fails for lack of memory, `feed` calls `grow` again as soon as a receive starves.
        buffers.grow();
        Ok(buffers)
    }

    /// Returns the number of buffers that the kernel owns. This many receives can start now and
    /// find a buffer.
    pub(super) fn provided(&self) -> usize {
        self.provided.into()
    }

    /// Doubles the number of buffers. Returns false if the bound is reached or there is no memory.
    pub(super) fn grow(&mut self) -> bool {
        let present = self.starts.len();
        let count = present.max(BUFFERS_MIN.into()).min(self.bound - present);
        if count == 0 {
            return false;
        }
        // The memory is mapped rather than allocated, for two reasons. First, it must be zeroed,
        // because chunks are lent as initialized bytes. Second, pages that no receive touches must
        // cost nothing, because most receives touch only the first of a buffer's four or five
        // pages.
        let bytes = count * BUFFER_STRIDE_BYTES;
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a new mapping at an address that the kernel chooses does not touch an existing
        // one.
        let Ok(slab) = (unsafe { mm::mmap_anonymous(ptr::null_mut(), bytes, access, flags) }) else { return false };
        let Some(slab) = NonNull::new(slab.cast::<u8>()) else { return false };
        self.slabs.push((slab, bytes));
        for index in 0..count {
            // SAFETY: index < count, so the offset is inside the slab.
            let start = unsafe { slab.add(index * BUFFER_STRIDE_BYTES) };
            self.starts.push(start);
            // At most BUFFERS_MAX buffers are ever created, so their numbers fit into 16 bits.
            self.provide((present + index) as u16);
        }
        true
    }

    /// Puts a buffer that has no other owner into the ring.
    fn provide(&mut self, number: u16) {
        let start = self.starts[usize::from(number)];
        assert!(self.provided < BUFFERS_MAX, "a buffer was released twice");
        // SAFETY: the index is below BUFFERS_MAX, so the entry lies inside the ring. The kernel
        // reads only entries between its head and the tail. There are at most as many buffers as
        // entries, and this buffer is not in the ring. So the entry at the tail is outside that
        // range, and nothing else accesses it. The last two bytes of the first entry are the tail,
        // which the setters below do not touch: they write address, length and number only.
        unsafe {
            let entry = &mut *self.ring.as_ptr().add(usize::from(self.tail & MASK));
            entry.set_addr(start.as_ptr() as u64);
            entry.set_len(BUFFER_BYTES as u32);
            entry.set_bid(number);
        }
        self.tail = self.tail.wrapping_add(1);
        self.provided += 1;
        // SAFETY: `tail` computes the address of a field of the first entry, which is initialized
        // (zeroed memory). It is aligned for a u16 and lives as long as the ring. After the
        // registration only this function writes it, and the kernel reads it atomically. Release:
        // the kernel, which loads the tail with acquire, sees the entry's fields.
        unsafe {
            let tail = BufRingEntry::tail(self.ring.as_ptr());
            AtomicU16::from_ptr(tail.cast_mut()).store(self.tail, Ordering::Release);
        }
    }

    /// Lends `len_bytes` of a buffer that a completion named. If there are no bytes, returns the
    /// buffer to the ring and returns `None`.
    pub(super) fn lend(&mut self, number: u16, len_bytes: usize) -> Option<Chunk> {
        assert!(
            usize::from(number) < self.starts.len() && len_bytes <= BUFFER_BYTES,
            "the kernel named a buffer that it was not given"
        );
        self.provided -= 1;
        if len_bytes == 0 {
            self.provide(number);
            return None;
        }
        Some(Chunk { buffer: number.into(), start: 0, len_bytes: len_bytes as u32, lender: self.lender })
    }

    #[expect(clippy::needless_pass_by_value, reason = "the caller's hold ends here")]
    pub(super) fn release(&mut self, chunk: Chunk) {
        assert_eq!(chunk.lender, self.lender, "a chunk of another loop");
        self.provide(chunk.buffer as u16);
    }

    #[inline]
    pub(super) fn bytes(&self, chunk: &Chunk) -> &[u8] {
        assert_eq!(chunk.lender, self.lender, "a chunk of another loop");
        let start = self.starts[chunk.buffer as usize];
        // SAFETY: `lend` of this very object created the chunk, since the lender is equal, and
        // chunks cannot be copied. So the buffer is lent, and the kernel does not write to it. The
        // length is within the buffer, and all bytes are initialized (zeroed, then written by the
        // kernel). The borrow of self excludes `bytes_mut`. The borrow of the chunk excludes
        // `release`.
        unsafe { std::slice::from_raw_parts(start.as_ptr(), chunk.len()) }
    }

    #[inline]
    pub(super) fn bytes_mut(&mut self, chunk: &Chunk) -> &mut [u8] {
        assert_eq!(chunk.lender, self.lender, "a chunk of another loop");
        let start = self.starts[chunk.buffer as usize];
        // SAFETY: as in `bytes`. The exclusive borrow of self excludes every other slice of these
        // buffers.
        unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), chunk.len()) }
    }
}

impl Drop for Buffers {
    fn drop(&mut self) {
        for &(slab, bytes) in &self.slabs {
            // SAFETY: mapped with this length in `grow` and unmapped once. The kernel no longer
            // uses it (contract of `new`).
            let _ = unsafe { mm::munmap(slab.as_ptr().cast(), bytes) };
        }
        // SAFETY: allocated with this layout in `new` and freed once. The kernel no longer uses it
        // (contract of `new`).
        unsafe { alloc::dealloc(self.ring.as_ptr().cast(), Self::ring_layout()) };
    }
}
