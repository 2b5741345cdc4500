//! Byte strings on the heap behind a one-word pointer. The length is stored before the bytes.
//!
//! A `Box<[u8]>` takes two words, of which the second is the length. In a table of millions of
//! short strings, this word would be a quarter of the table's memory.
//!
//! ```text
//! length      1 byte if below 128, otherwise 2 to 10: seven bits per byte, the lowest first;
//!             all but the last have their top bit set
//! bytes
//! ```
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::fmt;
use std::ptr::NonNull;

/// Alignment of every block, in bytes. The owner of a pointer may use its lowest bit as a tag.
pub(crate) const ALIGN: usize = 2;

/// Maximum size of a length, in bytes.
pub(crate) const LEN_BYTES_MAX: usize = 10;

/// A byte string behind a one-word pointer, in the layout described at the head of this module.
pub struct ThinBytes {
    /// Points to a block that `from_parts` allocated: a length and as many initialized bytes.
    /// `self` owns the block.
    at: NonNull<u8>,
}

// SAFETY: a `ThinBytes` is the only owner of its memory, and shared references to it only read, as
// with `Box<[u8]>`.
unsafe impl Send for ThinBytes {}
// SAFETY: as for `Send`.
unsafe impl Sync for ThinBytes {}

impl ThinBytes {
    /// Returns the concatenation of some strings.
    pub fn from_parts(parts: &[&[u8]]) -> Self {
        let len = parts.iter().map(|part| part.len()).sum();
        let mut head = [0; LEN_BYTES_MAX];
        let head_len = write_len(len, &mut head);
        let layout = layout(head_len + len);
        // SAFETY: the layout's size isn't zero, since a length takes at least a byte.
        let Some(at) = NonNull::new(unsafe { alloc(layout) }) else { handle_alloc_error(layout) };
        let mut end = at;
        for part in std::iter::once(&head[..head_len]).chain(parts.iter().copied()) {
            // SAFETY: the parts' lengths add up to the size of the block, so each copy stays inside
            // the block, and `end` is at most one past its last byte; the new memory overlaps no
            // slice.
            unsafe {
                end.copy_from_nonoverlapping(NonNull::from(part).cast(), part.len());
                end = end.add(part.len());
            }
        }
        ThinBytes { at }
    }

    /// Returns the bytes.
    #[inline]
    pub fn as_slice(&self) -> &[u8] {
        let (len, head_len) = self.len();
        // SAFETY: `from_parts` wrote a length and as many bytes after it. The bytes live and don't
        // change as long as `self` is borrowed.
        unsafe { std::slice::from_raw_parts(self.at.add(head_len).as_ptr(), len) }
    }

    /// Returns the bytes, mutably.
    #[inline]
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        let (len, head_len) = self.len();
        // SAFETY: as in `as_slice`; `self` is borrowed exclusively, and owns the bytes.
        unsafe { std::slice::from_raw_parts_mut(self.at.add(head_len).as_ptr(), len) }
    }

    /// Prefetches the first cache line of the block.
    #[inline]
    pub(crate) fn prefetch(&self) {
        pantala_dict::prefetch(self.at.as_ptr());
    }

    /// Returns the size of the heap memory in bytes.
    #[inline]
    pub fn allocated_bytes(&self) -> usize {
        pantala_base::block_bytes(self.layout_bytes())
    }

    /// Returns the size with which the block was allocated, in bytes.
    #[inline]
    fn layout_bytes(&self) -> usize {
        let (len, head_len) = self.len();
        len + head_len
    }

    /// Returns the pointer without freeing the block. [`Self::from_raw`] restores the owner.
    #[inline]
    pub(crate) fn into_raw(self) -> NonNull<u8> {
        let at = self.at;
        std::mem::forget(self);
        at
    }

    /// Returns the owner of the block to which a pointer from [`Self::into_raw`] points.
    ///
    /// # Safety
    /// `at` came from `into_raw`, and no other owner of the block is used while the result lives.
    #[inline]
    pub(crate) unsafe fn from_raw(at: NonNull<u8>) -> Self {
        ThinBytes { at }
    }

    /// Returns the number of bytes, and the size of the length field before them.
    #[inline]
    fn len(&self) -> (usize, usize) {
        // SAFETY: `from_parts` wrote a length here: at least one byte, and another byte after each
        // byte whose top bit is set.
        let mut byte = unsafe { self.at.read() };
        if byte < 0x80 {
            return (usize::from(byte), 1);
        }
        let (mut len, mut bytes) = (usize::from(byte & 0x7f), 1);
        while byte >= 0x80 {
            // SAFETY: as above: the byte before this one has its top bit set.
            byte = unsafe { self.at.add(bytes).read() };
            len |= usize::from(byte & 0x7f) << (7 * bytes);
            bytes += 1;
        }
        (len, bytes)
    }
}

/// Writes a length in the form described at the head of this module. Returns the number of bytes
/// written.
#[inline]
pub(crate) fn write_len(mut len: usize, out: &mut [u8; LEN_BYTES_MAX]) -> usize {
    let mut bytes = 0;
    while len >= 0x80 {
        out[bytes] = len as u8 | 0x80;
        len >>= 7;
        bytes += 1;
    }
    out[bytes] = len as u8;
    bytes + 1
}

/// Reads a length at the start of `bytes`. Returns the length and the number of bytes read.
#[inline]
pub(crate) fn read_len(bytes: &[u8]) -> (usize, usize) {
    let (mut len, mut at) = (0, 0);
    loop {
        let byte = bytes[at];
        len |= usize::from(byte & 0x7f) << (7 * at);
        at += 1;
        if byte < 0x80 {
            return (len, at);
        }
    }
}

/// Returns the layout of a block of `size` bytes.
#[inline]
fn layout(size: usize) -> Layout {
    // The size is valid: a slice has at most `isize::MAX` bytes, and several slices that together
    // exceed this size don't fit in memory.
    Layout::from_size_align(size, ALIGN).expect("strings exceed the address space")
}

impl crate::table::Item for ThinBytes {
    #[inline]
    fn allocated_bytes(&self) -> usize {
        ThinBytes::allocated_bytes(self)
    }
}

impl Drop for ThinBytes {
    #[inline]
    fn drop(&mut self) {
        let layout = layout(self.layout_bytes());
        // SAFETY: `from_parts` allocated the block with this layout, since its length hasn't
        // changed, and `self` is its only owner.
        unsafe { dealloc(self.at.as_ptr(), layout) };
    }
}

impl Clone for ThinBytes {
    fn clone(&self) -> Self {
        Self::from_parts(&[self.as_slice()])
    }
}

impl PartialEq for ThinBytes {
    fn eq(&self, other: &Self) -> bool {
        self.as_slice() == other.as_slice()
    }
}

impl Eq for ThinBytes {}

impl fmt::Debug for ThinBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.as_slice().escape_ascii())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_length_round_trips() {
        for len in [0, 1, 2, 126, 127, 128, 129, 300, 16_383, 16_384, 70_000] {
            let bytes: Vec<u8> = (0..len).map(|at| at as u8).collect();
            let (a, b) = bytes.split_at(len / 3);
            let mut thin = ThinBytes::from_parts(&[a, b]);
            assert_eq!(thin.as_slice(), bytes);
            let head = if len < 128 {
                1
            } else if len < 16_384 {
                2
            } else {
                3
            };
            assert_eq!(thin.layout_bytes(), len + head);
            assert_eq!(thin.at.as_ptr() as usize % ALIGN, 0);
            assert_eq!(thin.clone(), thin);
            if let Some(last) = thin.as_mut_slice().last_mut() {
                *last ^= 0xff;
                assert_ne!(thin.as_slice(), bytes);
            }
            // SAFETY: the pointer comes from `into_raw` in the same line, and nothing else owns the
            // block.
            let thin = unsafe { ThinBytes::from_raw(thin.into_raw()) };
            assert_eq!(thin.as_slice().len(), len);
        }
        assert_eq!(size_of::<Option<ThinBytes>>(), size_of::<usize>());
    }
}
