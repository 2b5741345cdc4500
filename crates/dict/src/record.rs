//! The layout of a *record*: an entry in memory.
//!
//! ```text
//! head         4 bytes: 24 bits of access word, 2 of payload kind, has-expiry, large,
//!              3 of user flags, 1 of epoch ([`crate::snapshot`])
//! key length   1, 2 or 9 bytes: see below
//! value length 1, 2 or 9 bytes, only for a bytes payload
//! expiry       8 bytes (ms, signed), only if it has one
//! key
//! payload      the bytes, or 8 of integer, or a pointer to the heap value
//! ```
//!
//! | first byte of a length | length |
//! | --- | --- |
//! | `00` to `ee` | the byte |
//! | `ef` | the eight bytes that follow |
//! | `f0` to `ff` | 12 bits: the lower half of the byte, then the next byte |
//!
//! A record in a slab cell never needs the 8-byte form. A record too long for any cell (`large`)
//! lies in memory of the global allocator.

use core::alloc::Layout;
use core::ptr::NonNull;

use crate::bucket::{EXPIRES_BIT, LONG_BIT, SHORT_BYTES_MAX, UNTAGGED_MASK, address_of};
use crate::slab::{CELL_BYTES_MAX, Slab, cell_bytes, class_of};

const ACCESS_MASK: u32 = (1 << 24) - 1;
const EPOCH_SHIFT: u32 = 31;
/// The bits of the head that stay when payload, flags or expiry change: access word and epoch.
const KEPT_MASK: u32 = ACCESS_MASK | 1 << EPOCH_SHIFT;
const KIND_SHIFT: u32 = 24;
const EXPIRES: u32 = 1 << 26;
const LARGE: u32 = 1 << 27;
const USER_SHIFT: u32 = 28;
/// All user flags: three bits.
pub(crate) const USER_FLAGS_MASK: u8 = 0b111;
const HEAD_BYTES: usize = 4;
const EXPIRY_BYTES: usize = 8;
const WORD_BYTES: usize = 8;
/// First byte of an eight-byte length. A smaller first byte is the length itself, a larger one
/// starts a 12-bit length.
const LENGTH_U64: u8 = 0xef;
/// Upper bits of the two bytes of a 12-bit length.
const LENGTH_U12: u16 = 0xf000;
/// The first length that doesn't fit in one byte.
const LENGTH_U12_MIN: usize = LENGTH_U64 as usize;
/// The first length that doesn't fit in 12 bits.
const LENGTH_U64_MIN: usize = 1 << 12;
/// Alignment of a large record.
const LARGE_ALIGN: usize = 8;

/// The kind of a payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Bytes = 0,
    Int = 1,
    Heap = 2,
}

/// A payload to write. The record then owns the pointer to a heap value.
#[derive(Clone, Copy)]
pub(crate) enum RawPayload<'a> {
    Bytes(&'a [u8]),
    Int(i64),
    Heap(NonNull<()>),
}

impl RawPayload<'_> {
    fn kind(&self) -> Kind {
        match self {
            RawPayload::Bytes(_) => Kind::Bytes,
            RawPayload::Int(_) => Kind::Int,
            RawPayload::Heap(_) => Kind::Heap,
        }
    }

    fn len(&self) -> usize {
        match self {
            RawPayload::Bytes(bytes) => bytes.len(),
            RawPayload::Int(_) | RawPayload::Heap(_) => WORD_BYTES,
        }
    }
}

/// The contents of a record without its key.
#[derive(Clone, Copy)]
pub(crate) struct Content<'a> {
    pub(crate) payload: RawPayload<'a>,
    pub(crate) user_flags: u8,
    /// Access word and epoch: see [`kept_bits`].
    pub(crate) kept: u32,
    pub(crate) expire_at_ms: Option<i64>,
}

/// The properties of a record that decide where its parts lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Shape {
    pub(crate) kind: Kind,
    pub(crate) expires: bool,
    pub(crate) key_len: usize,
    /// Bytes of payload: 8 unless the kind is `Bytes`.
    pub(crate) payload_len: usize,
}

impl Shape {
    fn new(key: &[u8], payload: &RawPayload<'_>, expires: bool) -> Self {
        Self { kind: payload.kind(), expires, key_len: key.len(), payload_len: payload.len() }
    }

    fn expiry_at(self) -> usize {
        let value_length = if self.kind == Kind::Bytes { length_bytes(self.payload_len) } else { 0 };
        HEAD_BYTES + length_bytes(self.key_len) + value_length
    }

    fn key_at(self) -> usize {
        self.expiry_at() + if self.expires { EXPIRY_BYTES } else { 0 }
    }

    fn payload_at(self) -> usize {
        self.key_at() + self.key_len
    }

    /// Returns the size of the record in bytes.
    pub(crate) fn len(self) -> usize {
        self.payload_at() + self.payload_len
    }

    /// Returns where a record of this shape is allocated.
    fn placement(self) -> Placement {
        let len = self.len();
        if len <= CELL_BYTES_MAX { Placement::Cell(class_of(len)) } else { Placement::Large(len) }
    }

    /// Returns the bytes of memory that a record of this shape takes.
    pub(crate) fn allocated_bytes(self) -> usize {
        match self.placement() {
            Placement::Cell(class) => cell_bytes(class),
            Placement::Large(len) => len,
        }
    }
}

/// Where a record is allocated. A record changes in place if its new shape has the same placement.
#[derive(PartialEq, Eq)]
enum Placement {
    /// In a cell of this class.
    Cell(usize),
    /// In a block of the global allocator with this many bytes.
    Large(usize),
}

fn length_bytes(len: usize) -> usize {
    match len {
        0..LENGTH_U12_MIN => 1,
        LENGTH_U12_MIN..LENGTH_U64_MIN => 2,
        _ => 9,
    }
}

/// A pointer to a record in use. Copies refer to the same memory. The dictionary ensures that these
/// pointers are used only while the record lives, and that nothing writes the record during a read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Record(NonNull<u8>);

impl Record {
    /// Returns the record that a slot refers to.
    ///
    /// # Safety
    ///
    /// `slot` isn't zero and was made by [`Self::slot`] from a record that is still in use.
    #[inline(always)]
    pub(crate) unsafe fn from_slot(slot: u64) -> Self {
        // SAFETY: the slot holds the exposed address of a record, which isn't null.
        Self(unsafe { NonNull::new_unchecked(core::ptr::with_exposed_provenance_mut(address_of(slot))) })
    }

    /// Returns the slot for this record, without tag.
    pub(crate) fn slot(self) -> u64 {
        let address = self.0.as_ptr().expose_provenance() as u64;
        assert!(address & !UNTAGGED_MASK == 0 && address & 3 == 0, "an address of more than 48 bits");
        // SAFETY: `self` is in use.
        let shape = unsafe { self.shape() };
        let expires = if shape.expires { EXPIRES_BIT } else { 0 };
        let long = if shape.len() > SHORT_BYTES_MAX { LONG_BIT } else { 0 };
        address | expires | long
    }

    /// Returns the record's address, for prefetching.
    pub(crate) fn address(self) -> *const u8 {
        self.0.as_ptr()
    }

    /// Allocates and writes a record.
    pub(crate) fn create(slab: &mut Slab, key: &[u8], content: Content<'_>) -> Self {
        let Content { payload, user_flags, kept, expire_at_ms } = content;
        let shape = Shape::new(key, &payload, expire_at_ms.is_some());
        let record = Self::allocate(slab, shape);
        // SAFETY: the memory is new, ours, and as long as the shape says.
        unsafe {
            record.write_head(shape, user_flags, kept);
            record.0.add(shape.key_at()).copy_from_nonoverlapping(NonNull::from(key).cast(), key.len());
            record.write_expiry(shape, expire_at_ms);
            record.write_payload(shape, payload);
        }
        record
    }

    fn allocate(slab: &mut Slab, shape: Shape) -> Self {
        match shape.placement() {
            Placement::Cell(class) => Self(slab.alloc(class)),
            Placement::Large(len) => {
                let layout = large_layout(len);
                // SAFETY: the length isn't zero.
                let memory = NonNull::new(unsafe { std::alloc::alloc(layout) });
                Self(memory.unwrap_or_else(|| std::alloc::handle_alloc_error(layout)))
            }
        }
    }

    /// Frees the record's memory. A heap payload leaks unless the caller has taken it before.
    ///
    /// # Safety
    ///
    /// The record is in use, was made in this slab, and no copy of it is used afterwards.
    pub(crate) unsafe fn free(self, slab: &mut Slab) {
        // SAFETY: in use, by the caller's promise; a large record was allocated with the layout of
        // its shape's length, and every change of a large record's length moves it.
        unsafe {
            if self.is_large() {
                std::alloc::dealloc(self.0.as_ptr(), large_layout(self.shape().len()));
            } else {
                slab.free(self.0);
            }
        }
    }

    /// # Safety
    ///
    /// The record is in use, and nothing writes it during the call or while the result is used. All
    /// readers below require this.
    #[inline(always)]
    unsafe fn head(self) -> u32 {
        // SAFETY: a record starts with its head and is 4-aligned.
        unsafe { self.0.cast::<u32>().read() }
    }

    /// # Safety
    ///
    /// As [`Self::head`].
    pub(crate) unsafe fn is_large(self) -> bool {
        // SAFETY: by the caller's promise.
        unsafe { self.head() & LARGE != 0 }
    }

    /// # Safety
    ///
    /// As [`Self::head`].
    pub(crate) unsafe fn access(self) -> u32 {
        // SAFETY: by the caller's promise.
        unsafe { self.head() & ACCESS_MASK }
    }

    /// # Safety
    ///
    /// As [`Self::head`].
    pub(crate) unsafe fn user_flags(self) -> u8 {
        // SAFETY: by the caller's promise.
        unsafe { (self.head() >> USER_SHIFT) as u8 & USER_FLAGS_MASK }
    }

    /// # Safety
    ///
    /// As [`Self::head`].
    #[inline(always)]
    unsafe fn read_length(self, at: usize) -> (usize, usize) {
        // SAFETY: a length starts at `at` in the record, and its first byte gives its size.
        unsafe {
            let first = self.0.add(at).read();
            match first {
                0..LENGTH_U64 => (usize::from(first), 1),
                LENGTH_U64 => (self.0.add(at + 1).cast::<u64>().read_unaligned() as usize, 9),
                _ => (usize::from(u16::from_be_bytes([first, self.0.add(at + 1).read()]) & !LENGTH_U12), 2),
            }
        }
    }

    /// # Safety
    ///
    /// As [`Self::head`].
    #[inline(always)]
    pub(crate) unsafe fn shape(self) -> Shape {
        // SAFETY: the lengths lie where the head says.
        unsafe {
            let head = self.head();
            let (key_len, key_length_bytes) = self.read_length(HEAD_BYTES);
            let (kind, payload_len) = match head >> KIND_SHIFT & 0b11 {
                0 => (Kind::Bytes, self.read_length(HEAD_BYTES + key_length_bytes).0),
                1 => (Kind::Int, WORD_BYTES),
                _ => (Kind::Heap, WORD_BYTES),
            };
            Shape { kind, expires: head & EXPIRES != 0, key_len, payload_len }
        }
    }

    /// # Safety
    ///
    /// As [`Self::head`].
    #[inline(always)]
    pub(crate) unsafe fn key<'a>(self) -> &'a [u8] {
        // SAFETY: the key lies where the shape says, in memory initialized when the record was
        // made.
        unsafe {
            let shape = self.shape();
            core::slice::from_raw_parts(self.0.as_ptr().add(shape.key_at()), shape.key_len)
        }
    }

    /// Returns whether this is the record of `key`.
    ///
    /// # Safety
    ///
    /// As [`Self::head`].
    #[inline(always)]
    pub(crate) unsafe fn has_key(self, key: &[u8]) -> bool {
        // SAFETY: by the caller's promise. The code below the first `return` is the fast path: the
        // key length takes one byte, and the value length, if any, directly follows.
        unsafe {
            let first = usize::from(self.0.add(HEAD_BYTES).read());
            if first >= LENGTH_U12_MIN {
                return self.key() == key;
            }
            if first != key.len() {
                return false;
            }
            let head = self.head();
            let mut at = HEAD_BYTES + 1;
            if head >> KIND_SHIFT & 0b11 == 0 {
                at += match self.0.add(at).read() {
                    0..LENGTH_U64 => 1,
                    LENGTH_U64 => 9,
                    _ => 2,
                };
            }
            if head & EXPIRES != 0 {
                at += EXPIRY_BYTES;
            }
            same_bytes(core::slice::from_raw_parts(self.0.as_ptr().add(at), key.len()), key)
        }
    }

    /// # Safety
    ///
    /// As [`Self::head`].
    pub(crate) unsafe fn expire_at_ms(self) -> Option<i64> {
        // SAFETY: an expiry lies where the shape says, at any alignment.
        unsafe {
            if self.head() & EXPIRES == 0 {
                return None;
            }
            Some(self.0.add(self.shape().expiry_at()).cast::<i64>().read_unaligned())
        }
    }

    /// Returns the kind, address and length of the payload.
    ///
    /// # Safety
    ///
    /// As [`Self::head`].
    #[inline(always)]
    pub(crate) unsafe fn payload(self) -> (Kind, NonNull<u8>, usize) {
        // SAFETY: the payload lies where the shape says.
        unsafe {
            let shape = self.shape();
            (shape.kind, self.0.add(shape.payload_at()), shape.payload_len)
        }
    }

    /// Returns the pointer of a heap payload; `None` for other kinds.
    ///
    /// # Safety
    ///
    /// As [`Self::head`].
    pub(crate) unsafe fn heap(self) -> Option<NonNull<()>> {
        // SAFETY: a heap payload is a pointer written by `write_payload`, at any alignment.
        unsafe {
            let (kind, at, _) = self.payload();
            (kind == Kind::Heap).then(|| at.cast::<NonNull<()>>().read_unaligned())
        }
    }

    /// # Safety
    ///
    /// The record is in use, and only the caller uses it. All writers below require this.
    pub(crate) unsafe fn set_access(self, access: u32) {
        // SAFETY: by the caller's promise.
        unsafe { self.0.cast::<u32>().write(self.head() & !ACCESS_MASK | access & ACCESS_MASK) }
    }

    /// Returns the epoch bit.
    ///
    /// # Safety
    ///
    /// As [`Self::head`].
    pub(crate) unsafe fn epoch_bit(self) -> u8 {
        // SAFETY: by the caller's promise.
        unsafe { (self.head() >> EPOCH_SHIFT) as u8 }
    }

    /// Sets the epoch bit.
    ///
    /// # Safety
    ///
    /// As [`Self::set_access`].
    pub(crate) unsafe fn set_epoch_bit(self, epoch_bit: u8) {
        let bit = u32::from(epoch_bit & 1) << EPOCH_SHIFT;
        // SAFETY: by the caller's promise.
        unsafe { self.0.cast::<u32>().write(self.head() & !(1 << EPOCH_SHIFT) | bit) }
    }

    /// # Safety
    ///
    /// As [`Self::set_access`].
    pub(crate) unsafe fn set_user_flags(self, flags: u8) {
        let flags = u32::from(flags & USER_FLAGS_MASK) << USER_SHIFT;
        // SAFETY: by the caller's promise.
        unsafe { self.0.cast::<u32>().write(self.head() & !(u32::from(USER_FLAGS_MASK) << USER_SHIFT) | flags) }
    }

    /// Changes payload, user flags and expiry. Works in place if the placement stays the same.
    /// Otherwise frees this record and returns a new one. The caller becomes the owner of the
    /// former heap value.
    ///
    /// # Safety
    ///
    /// As [`Self::set_access`]. The record was made in this slab, and `payload` lies outside it. If
    /// another record is returned, this one is freed and must not be used.
    pub(crate) unsafe fn replace(
        self,
        slab: &mut Slab,
        payload: RawPayload<'_>,
        user_flags: u8,
        expire_at_ms: Option<i64>,
    ) -> Self {
        // SAFETY: in use, and only the caller uses it. A change in place fits the record's memory,
        // since the placement is unchanged. The key moves first, if at all, by a copy that allows
        // overlap; the kept bits of the head were read before, and everything else is overwritten.
        // The new payload lies outside this record, which nothing else may read now.
        unsafe {
            let old = self.shape();
            let kept = self.head() & KEPT_MASK;
            let new =
                Shape { kind: payload.kind(), expires: expire_at_ms.is_some(), payload_len: payload.len(), ..old };
            // Usually only the payload changes, so the shapes are compared before the placements.
            if old == new || old.placement() == new.placement() {
                if old.key_at() != new.key_at() {
                    self.0.add(old.key_at()).copy_to(self.0.add(new.key_at()), old.key_len);
                }
                self.write_head(new, user_flags, kept);
                self.write_expiry(new, expire_at_ms);
                self.write_payload(new, payload);
                return self;
            }
            let record = Self::create(slab, self.key(), Content { payload, user_flags, kept, expire_at_ms });
            self.free(slab);
            record
        }
    }

    /// Sets, changes or removes the expiry. Moves the record as [`Self::replace`] does.
    ///
    /// # Safety
    ///
    /// As [`Self::replace`].
    pub(crate) unsafe fn set_expire(self, slab: &mut Slab, expire_at_ms: Option<i64>) -> Self {
        // SAFETY: as in `replace`; key and payload are adjacent in either shape and move as one
        // piece.
        unsafe {
            let old = self.shape();
            let new = Shape { expires: expire_at_ms.is_some(), ..old };
            let tail_len = old.key_len + old.payload_len;
            let (kept, user_flags) = (self.head() & KEPT_MASK, self.user_flags());
            let tail = self.0.add(old.key_at());
            let target = if old.placement() == new.placement() { self } else { Self::allocate(slab, new) };
            tail.copy_to(target.0.add(new.key_at()), tail_len);
            if target != self {
                self.free(slab);
            }
            target.write_head(new, user_flags, kept);
            target.write_expiry(new, expire_at_ms);
            target
        }
    }

    /// Writes head and lengths.
    ///
    /// # Safety
    ///
    /// The memory is as long as the shape says, and only the caller uses it.
    unsafe fn write_head(self, shape: Shape, user_flags: u8, kept: u32) {
        let mut head = kept & KEPT_MASK | (shape.kind as u32) << KIND_SHIFT;
        head |= u32::from(user_flags & USER_FLAGS_MASK) << USER_SHIFT;
        if shape.expires {
            head |= EXPIRES;
        }
        if matches!(shape.placement(), Placement::Large(_)) {
            head |= LARGE;
        }
        // SAFETY: within the memory, by the caller's promise; 4-aligned.
        unsafe {
            self.0.cast::<u32>().write(head);
            self.write_length(HEAD_BYTES, shape.key_len);
            if shape.kind == Kind::Bytes {
                self.write_length(HEAD_BYTES + length_bytes(shape.key_len), shape.payload_len);
            }
        }
    }

    /// # Safety
    ///
    /// As [`Self::write_head`]; `at` is the offset of a length in the shape.
    unsafe fn write_length(self, at: usize, len: usize) {
        // SAFETY: within the memory, by the caller's promise.
        unsafe {
            match length_bytes(len) {
                1 => self.0.add(at).write(len as u8),
                2 => self.0.add(at).cast::<u16>().write_unaligned((LENGTH_U12 | len as u16).to_be()),
                _ => {
                    self.0.add(at).write(LENGTH_U64);
                    self.0.add(at + 1).cast::<u64>().write_unaligned(len as u64);
                }
            }
        }
    }

    /// # Safety
    ///
    /// As [`Self::write_head`]; the shape says whether there is an expiry.
    unsafe fn write_expiry(self, shape: Shape, expire_at_ms: Option<i64>) {
        if let Some(at_ms) = expire_at_ms {
            // SAFETY: within the memory, by the caller's promise.
            unsafe { self.0.add(shape.expiry_at()).cast::<i64>().write_unaligned(at_ms) }
        }
    }

    /// # Safety
    ///
    /// As [`Self::write_head`]; the payload has the shape's kind and length and lies outside this
    /// record.
    unsafe fn write_payload(self, shape: Shape, payload: RawPayload<'_>) {
        // SAFETY: within the memory and without overlap, by the caller's promise.
        unsafe {
            let at = self.0.add(shape.payload_at());
            match payload {
                RawPayload::Bytes(bytes) => at.copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len()),
                RawPayload::Int(value) => at.cast::<i64>().write_unaligned(value),
                RawPayload::Heap(value) => at.cast::<NonNull<()>>().write_unaligned(value),
            }
        }
    }
}

/// Compares two byte strings of equal length. Keys of 8 to 16 bytes, which are the most common, are
/// compared as two overlapping words without a call. The fewer instructions a lookup takes, the
/// more its cache misses overlap with those of the next lookup.
#[inline(always)]
fn same_bytes(a: &[u8], b: &[u8]) -> bool {
    match (a.first_chunk::<8>(), b.first_chunk::<8>(), a.last_chunk::<8>(), b.last_chunk::<8>()) {
        (Some(a_first), Some(b_first), Some(a_last), Some(b_last)) if a.len() <= 16 => {
            let first = u64::from_ne_bytes(*a_first) ^ u64::from_ne_bytes(*b_first);
            first | (u64::from_ne_bytes(*a_last) ^ u64::from_ne_bytes(*b_last)) == 0
        }
        _ => a == b,
    }
}

/// Returns the bits of a new record's head that later changes preserve: the access word and the
/// table's epoch.
#[inline(always)]
pub(crate) fn kept_bits(access: u32, epoch: u8) -> u32 {
    access & ACCESS_MASK | u32::from(epoch) << EPOCH_SHIFT
}

/// Returns whether key and value fit in one slab cell, with space for an expiry.
pub(crate) fn fits_cell(key_len: usize, value_len: usize) -> bool {
    let shape = Shape { kind: Kind::Bytes, expires: true, key_len, payload_len: value_len };
    key_len <= CELL_BYTES_MAX && value_len <= CELL_BYTES_MAX && shape.len() <= CELL_BYTES_MAX
}

/// Returns the maximum length of a value in a cell with an empty key and space for an expiry.
pub(crate) const fn value_len_max() -> usize {
    CELL_BYTES_MAX - HEAD_BYTES - 1 - 2 - EXPIRY_BYTES
}

fn large_layout(len: usize) -> Layout {
    // SAFETY: the alignment is a power of two. A key and a value are slices in memory whose
    // addresses have 48 bits, so the sum of their lengths plus a few bytes, rounded up, is below
    // `isize::MAX`.
    unsafe { Layout::from_size_align_unchecked(len, LARGE_ALIGN) }
}
