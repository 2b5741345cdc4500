//! A member of a large set: one word. A short member lies entirely within the word.
//!
//! | lowest bits | the rest of the word |
//! | --- | --- |
//! | `0` | address of a [`ThinBytes`] |
//! | `01` | an integer of 62 bits |
//! | `11` | a string of up to 7 bytes: length in bits 2 to 4, contents in the upper 56 bits |
//!
//! A member uses a short form whenever possible. So two short members are equal if and only if
//! their words are equal, and a short member never equals a long one. A set of a million short
//! members needs no memory beyond its table.
#![allow(unsafe_code)]

use std::fmt;
use std::ptr::NonNull;

use crate::pack::Element;
use crate::parse_i64;
use crate::table::{self, Item};
use crate::thin::{self, ThinBytes};

// The tags rely on a spare bit in addresses, and on little-endian words.
const _: () = assert!(thin::ALIGN >= 2 && usize::BITS == 64 && cfg!(target_endian = "little"));

const INT_TAG: usize = 0b01;
const SHORT_TAG: usize = 0b11;
const TAG_MASK: usize = 0b11;
const TAG_BITS: u32 = 2;
/// Maximum length of a string inside a word.
const SHORT_LEN_MAX: usize = 7;

/// The lookup key of a member: the word of a short member, the bytes of a long one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberKey<'a> {
    /// The word of a short member.
    Short(usize),
    /// The bytes of a long member.
    Long(&'a [u8]),
}

impl<'a> MemberKey<'a> {
    /// Returns the key of a string.
    #[inline]
    pub fn of(bytes: &'a [u8]) -> Self {
        match parse_i64(bytes) {
            Some(value) => Self::of_integer(value).unwrap_or(MemberKey::Long(bytes)),
            None => Self::of_text(bytes),
        }
    }

    /// Returns the key of an element. `room` receives the text of an integer too large for a word.
    #[inline]
    pub fn of_element(element: Element<'a>, room: &'a mut Vec<u8>) -> Self {
        match element {
            Element::Bytes(bytes) => Self::of_text(bytes),
            Element::Int(value) => Self::of_integer(value).unwrap_or_else(|| {
                room.clear();
                element.with_bytes(|bytes| room.extend_from_slice(bytes));
                MemberKey::Long(room)
            }),
        }
    }

    /// Returns the word of an integer, or `None` if the integer needs more than 62 bits.
    #[inline]
    fn of_integer(value: i64) -> Option<Self> {
        let shifted = value << TAG_BITS;
        (shifted >> TAG_BITS == value).then_some(MemberKey::Short(shifted as usize | INT_TAG))
    }

    /// Returns the key of a string that isn't an integer.
    #[inline]
    fn of_text(bytes: &'a [u8]) -> Self {
        if bytes.len() > SHORT_LEN_MAX {
            return MemberKey::Long(bytes);
        }
        let mut word = [0; 8];
        word[1..=bytes.len()].copy_from_slice(bytes);
        word[0] = (SHORT_TAG | bytes.len() << TAG_BITS) as u8;
        MemberKey::Short(u64::from_le_bytes(word) as usize)
    }

    /// Returns the key's hash in tables with this seed.
    #[inline]
    pub fn hash(self, seed: u64) -> u32 {
        match self {
            MemberKey::Short(word) => table::hash(seed, &word.to_le_bytes()),
            MemberKey::Long(bytes) => table::hash(seed, bytes),
        }
    }
}

/// A member, in the form described at the head of this module.
pub struct Member {
    /// A word in one of the three forms of the module head. An address comes from
    /// `ThinBytes::into_raw`, and the member owns the block at this address.
    word: NonNull<u8>,
}

// SAFETY: a member is a `ThinBytes`, which is `Send` and `Sync`, or a number.
unsafe impl Send for Member {}
// SAFETY: as for `Send`.
unsafe impl Sync for Member {}

impl Member {
    /// Returns the member with this key.
    #[inline]
    pub fn new(key: MemberKey<'_>) -> Self {
        let word = match key {
            // The word is never zero, because both tags set a bit.
            MemberKey::Short(word) => NonNull::new(std::ptr::without_provenance_mut(word)),
            MemberKey::Long(bytes) => Some(ThinBytes::from_parts(&[bytes]).into_raw()),
        };
        Member { word: word.unwrap_or(NonNull::dangling()) }
    }

    /// Returns whether this is the member with this key.
    #[inline]
    pub fn is(&self, key: MemberKey<'_>) -> bool {
        match key {
            MemberKey::Short(word) => self.address() == word,
            MemberKey::Long(bytes) => self.with_long(|long| long.as_slice() == bytes).unwrap_or(false),
        }
    }

    /// Returns the member's key.
    #[inline]
    pub fn key(&self) -> MemberKey<'_> {
        match self.long_bytes() {
            Some(bytes) => MemberKey::Long(bytes),
            None => MemberKey::Short(self.address()),
        }
    }

    /// Returns the member's contents.
    #[inline]
    pub fn element(&self) -> Element<'_> {
        let word = self.address();
        match word & TAG_MASK {
            INT_TAG => Element::Int(word as i64 >> TAG_BITS),
            SHORT_TAG => {
                let len = (word >> TAG_BITS) & SHORT_LEN_MAX;
                // SAFETY: `self.word` has 8 bytes, and `len` is at most 7, so the bytes after the
                // first one are within the word. The word was made from a number, so all its bytes
                // are initialized and may be read as `u8`. The bytes live as long as `self` is
                // borrowed.
                Element::Bytes(unsafe { std::slice::from_raw_parts((&raw const self.word).cast::<u8>().add(1), len) })
            }
            _ => Element::Bytes(self.long_bytes().unwrap_or_default()),
        }
    }

    #[inline]
    fn address(&self) -> usize {
        self.word.as_ptr().addr()
    }

    #[inline]
    fn is_long(&self) -> bool {
        self.address() & 1 == 0
    }

    /// Passes the heap block to `work`. Returns `None` for a short member.
    #[inline]
    fn with_long<R>(&self, work: impl FnOnce(&ThinBytes) -> R) -> Option<R> {
        self.is_long().then(|| {
            // SAFETY: an even word is an address from `into_raw`. `ManuallyDrop` keeps this
            // temporary second owner from freeing the block, even if `work` panics.
            let long = std::mem::ManuallyDrop::new(unsafe { ThinBytes::from_raw(self.word) });
            work(&long)
        })
    }

    /// Returns the bytes of the heap block, or `None` for a short member.
    #[inline]
    fn long_bytes(&self) -> Option<&[u8]> {
        self.with_long(|long| {
            let bytes: *const [u8] = long.as_slice();
            // SAFETY: the block lives, unchanged, as long as `self` is borrowed, so its bytes may
            // outlive the temporary `long`.
            unsafe { &*bytes }
        })
    }
}

impl Item for Member {
    #[inline]
    fn allocated_bytes(&self) -> usize {
        self.with_long(ThinBytes::allocated_bytes).unwrap_or(0)
    }

    #[inline]
    fn prefetch(&self) {
        if self.is_long() {
            pantala_dict::prefetch(self.word.as_ptr());
        }
    }
}

impl Drop for Member {
    #[inline]
    fn drop(&mut self) {
        if self.is_long() {
            // SAFETY: an even word is an address from `into_raw`; `self` owns the block and isn't
            // used again.
            drop(unsafe { ThinBytes::from_raw(self.word) });
        }
    }
}

impl Clone for Member {
    #[inline]
    fn clone(&self) -> Self {
        Member::new(self.key())
    }
}

impl PartialEq for Member {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        self.is(other.key())
    }
}

impl Eq for Member {}

impl fmt::Debug for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.element().with_bytes(|bytes| write!(f, "\"{}\"", bytes.escape_ascii()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Random;

    fn check(bytes: &[u8], short: bool) {
        let key = MemberKey::of(bytes);
        assert_eq!(matches!(key, MemberKey::Short(_)), short, "{}", bytes.escape_ascii());
        let member = Member::new(key);
        assert_eq!(member.element().to_vec(), bytes);
        assert_eq!(member.allocated_bytes() == 0, short);
        assert!(member.is(key) && member.key() == key);
        assert_eq!(member.clone(), member);
        let mut room = Vec::new();
        assert!(member.is(MemberKey::of_element(Element::of(bytes), &mut room)));
        let longer = [bytes, b"x"].concat();
        assert!(!member.is(MemberKey::of(&longer)));
        assert_ne!(MemberKey::of(&longer).hash(9), key.hash(9));
    }

    #[test]
    fn short_members_fit_in_a_word() {
        for (text, short) in [
            ("", true),
            ("a", true),
            ("\0\0\0\0\0\0\0", true),
            ("\u{7f}234567", true),
            ("1234567x", false),
            ("0", true),
            ("-1", true),
            ("01", true),
            ("-0", true),
            ("12345678901", true),
            // 2^61 - 1, 2^61, -2^61, -2^61 - 1.
            ("2305843009213693951", true),
            ("2305843009213693952", false),
            ("-2305843009213693952", true),
            ("-2305843009213693953", false),
            ("9223372036854775807", false),
            ("-9223372036854775808", false),
        ] {
            check(text.as_bytes(), short);
        }
        assert_eq!(size_of::<Member>(), 8);
    }

    #[test]
    fn bytes_round_trip() {
        let mut random = Random::with_printed_seed("member");
        for _ in 0..if cfg!(miri) { 60 } else { 2000 } {
            let bytes = random.bytes(0, 12);
            let short = bytes.len() <= SHORT_LEN_MAX || parse_i64(&bytes).is_some();
            check(&bytes, short);
        }
        check(&random.bytes(200, 300), false);
    }
}
