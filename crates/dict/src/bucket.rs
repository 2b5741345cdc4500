//! A bucket, one cache line of eight slots, and the search for a tag in it.
//!
//! A slot is a word: 16 bits of the key's hash (the *tag*) and 48 bits of the entry's address. An
//! empty slot is zero. Entries are 4-aligned, which leaves two flag bits. Bit 0 is set if the entry
//! has an expiry. Bit 1 is set if the entry is longer than two cache lines, so that more of its
//! lines should be prefetched. The slots in use precede the empty ones.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Slots in a bucket.
pub(crate) const SLOTS: usize = 8;
/// Flag of a slot: its entry has an expiry.
pub(crate) const EXPIRES_BIT: u64 = 1;
/// Flag of a slot: its entry is longer than [`SHORT_BYTES_MAX`].
pub(crate) const LONG_BIT: u64 = 2;
/// Maximum size of an entry that isn't long, in bytes: two cache lines.
pub(crate) const SHORT_BYTES_MAX: usize = 2 * size_of::<Bucket>();
const TAG_SHIFT: u32 = 48;
const ADDRESS_MASK: u64 = (1 << TAG_SHIFT) - 4;
/// Address and flags of a slot, without its tag.
pub(crate) const UNTAGGED_MASK: u64 = (1 << TAG_SHIFT) - 1;

/// One cache line of slots.
#[repr(C, align(64))]
pub(crate) struct Bucket {
    pub(crate) slots: [AtomicU64; SLOTS],
}

/// Returns the 16 bits of hash in a slot.
#[inline(always)]
pub(crate) const fn tag_of(slot: u64) -> u64 {
    slot >> TAG_SHIFT
}

/// Returns the entry address in a slot.
#[inline(always)]
pub(crate) const fn address_of(slot: u64) -> usize {
    (slot & ADDRESS_MASK) as usize
}

/// Returns the slot with another tag.
#[inline(always)]
pub(crate) const fn with_tag(slot: u64, tag: u64) -> u64 {
    (slot & UNTAGGED_MASK) | (tag << TAG_SHIFT)
}

/// The slots whose tag matched: slot `i` is bit `4 * i + 3`. If the tag is 0, empty slots match
/// too, so the caller must check that the slot isn't zero.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Matches(u32);

impl Matches {
    /// Returns whether no tag matched.
    #[inline(always)]
    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl Iterator for Matches {
    type Item = usize;

    #[inline(always)]
    fn next(&mut self) -> Option<usize> {
        if self.0 == 0 {
            return None;
        }
        let slot = self.0.trailing_zeros() as usize / 4;
        self.0 &= self.0 - 1;
        // The mask never changes the value of `slot`. It lets the compiler omit the check of the
        // bound.
        Some(slot & (SLOTS - 1))
    }
}

impl Bucket {
    #[inline(always)]
    pub(crate) fn load(&self, slot: usize) -> u64 {
        self.slots[slot].load(Relaxed)
    }

    #[inline(always)]
    pub(crate) fn store(&self, slot: usize, word: u64) {
        self.slots[slot].store(word, Relaxed);
    }

    /// Returns whether all slots are in use. A search continues in the next bucket only after a
    /// full one.
    #[inline(always)]
    pub(crate) fn is_full(&self) -> bool {
        self.load(SLOTS - 1) != 0
    }

    /// Returns the number of slots in use. Slots in use precede empty ones.
    #[inline]
    pub(crate) fn used(&self) -> usize {
        (0..SLOTS).position(|i| self.load(i) == 0).unwrap_or(SLOTS)
    }

    /// Empties slot `i` and moves the last slot in use into the gap.
    pub(crate) fn take(&self, i: usize) {
        let last = self.used() - 1;
        self.store(i, self.load(last));
        self.store(last, 0);
    }

    /// Returns the slots with a tag. Only the owner of the bucket may call it.
    ///
    /// # Safety
    ///
    /// No other thread writes the bucket during the call. (Others may load its words atomically.)
    #[inline(always)]
    pub(crate) unsafe fn matches(&self, tag: u64) -> Matches {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        // SAFETY: SSE2 is part of x86-64; no concurrent writer, by the caller's promise.
        unsafe {
            self.matches_sse2(tag)
        }
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        self.matches_portable(tag)
    }

    /// # Safety
    ///
    /// As [`Self::matches`]. The loads are plain, so a concurrent store would be a data race.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    #[inline(always)]
    unsafe fn matches_sse2(&self, tag: u64) -> Matches {
        use core::arch::x86_64::{
            __m128i, _mm_cmpeq_epi16, _mm_load_si128, _mm_movemask_epi8, _mm_packs_epi16, _mm_set1_epi16,
        };
        let line = self.slots.as_ptr().cast::<__m128i>();
        // SAFETY: the bucket is 64 bytes, 64-aligned: four aligned lanes. By the caller's promise
        // no thread writes, and loads don't race with loads.
        unsafe {
            let wanted = _mm_set1_epi16(tag as i16);
            // `equal` compares all four 16-bit pieces of each word. The mask keeps only the result
            // of the top piece, which is the tag.
            let equal = |lane: usize| _mm_cmpeq_epi16(_mm_load_si128(line.add(lane)), wanted);
            let low = _mm_movemask_epi8(_mm_packs_epi16(equal(0), equal(1))) as u32;
            let high = _mm_movemask_epi8(_mm_packs_epi16(equal(2), equal(3))) as u32;
            Matches((low | high << 16) & 0x8888_8888)
        }
    }

    /// Returns the slots with a tag as [`Self::matches`] does, by atomic loads. Hints call this
    /// function, because another thread may write the bucket meanwhile. In Miri, and on processors
    /// other than x86-64, all searches use this function.
    #[inline(always)]
    pub(crate) fn matches_portable(&self, tag: u64) -> Matches {
        let mut mask = 0;
        for i in 0..SLOTS {
            mask |= u32::from(tag_of(self.load(i)) == tag) << (4 * i + 3);
        }
        Matches(mask)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Random, seed};

    fn bucket(words: [u64; SLOTS]) -> Bucket {
        Bucket { slots: words.map(AtomicU64::new) }
    }

    #[test]
    fn simd_and_portable_agree() {
        let mut random = Random::new(seed("simd_and_portable_agree"));
        for _ in 0..if cfg!(miri) { 50 } else { 100_000 } {
            // The random slots consist of few distinct 16-bit pieces. So pieces outside of the tag
            // often equal the wanted tag, and must not count as matches.
            let pieces = [0, 1, 0x7fff, 0x8000, 0xffff, random.next() & 0xffff];
            let mut piece = || pieces[random.below(6)];
            let words = [(); SLOTS].map(|()| piece() << 48 | piece() << 32 | piece() << 16 | piece());
            let wanted = piece();
            let bucket = bucket(words);
            // SAFETY: the bucket belongs to this thread.
            let fast: Vec<usize> = unsafe { bucket.matches(wanted) }.collect();
            let portable: Vec<usize> = bucket.matches_portable(wanted).collect();
            let plain: Vec<usize> = (0..SLOTS).filter(|&i| words[i] >> 48 == wanted).collect();
            assert_eq!(fast, plain, "{words:x?} {wanted:x}");
            assert_eq!(portable, plain, "{words:x?} {wanted:x}");
        }
    }

    #[test]
    fn take_closes_the_gap() {
        let bucket = bucket([1, 2, 3, 4, 5, 6, 7, 8]);
        assert!(bucket.is_full());
        bucket.take(2);
        assert_eq!([0, 1, 2, 3, 4, 5, 6, 7].map(|i| bucket.load(i)), [1, 2, 8, 4, 5, 6, 7, 0]);
        assert_eq!(bucket.used(), 7);
        bucket.take(6);
        assert_eq!(bucket.used(), 6);
        assert!(!bucket.is_full());
    }
}
