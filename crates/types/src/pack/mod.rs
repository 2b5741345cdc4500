//! A pack: a sequence of short strings and integers in one byte string. The entries are encoded
//! like those of Redis's listpack.
//!
//! Small lists, hashes, sets and sorted sets are packs. A pack has a count of two bytes where a
//! listpack has a header of six bytes and an end mark. The entries of a [`TwoWay`] pack are exactly
//! those of a listpack. A [`OneWay`] pack is never read backwards, so its entries omit the length
//! at their end, which saves a byte per entry. All types but lists use [`OneWay`].
//!
//! ```text
//! count       2 bytes, little-endian: number of entries, or 65,535 if they must be counted
//! entry       encoding and data; in a two-way pack also the length of encoding and data
//!             (1 to 5 bytes, read backwards)
//! ```
//!
//! | first byte | entry | bytes of encoding and data |
//! | --- | --- | --- |
//! | `0xxxxxxx` | integer 0 to 127 | 1 |
//! | `10xxxxxx` | string of up to 63 bytes | 1 + length |
//! | `110xxxxx` | integer of 13 bits | 2 |
//! | `1110xxxx` | string of up to 4,095 bytes | 2 + length |
//! | `f0` | string | 5 + length |
//! | `f1` `f2` `f3` `f4` | integer of 16, 24, 32, 64 bits | 3, 4, 5, 9 |
//!
//! Each value has a single encoding: the text of an integer always becomes an integer entry of the
//! smallest size, except by [`Pack::insert_bytes`]. Two values are therefore equal if and only if
//! their entries have equal bytes, and a search compares these bytes.
//!
//! A *position* is the offset of an entry in [`PackRef::as_bytes`]. The position of the end is the
//! length of these bytes. A change leaves the positions before it valid. A wrong position is a bug
//! of the caller: methods panic or return wrong results, but stay sound.

use std::fmt::Debug;
use std::marker::PhantomData;

use crate::OutOfMemory;

mod entry;

pub use entry::Element;
use entry::{END_LENGTH_BYTES_MAX, Head, checked_body_len, integer_bytes, write_end_length};
pub(crate) use entry::{
    Encoded, end_length_bytes, ends_with_length, integer_entry_bytes, splice_entry, write_body, write_entry,
};

/// Bytes before the first entry.
const HEADER_BYTES: usize = 2;
/// The stored count of a pack with at least this many entries, which must be counted.
const COUNT_UNKNOWN: u16 = u16::MAX;

/// The directions in which a pack can be read.
pub trait Direction: Copy + Debug + Eq {
    /// Whether an entry ends with its length, which backward reads need.
    const HAS_LENGTHS: bool;
}

/// The direction of a pack that can be read from both ends, like a listpack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TwoWay;

/// The direction of a pack that can only be read from the first entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OneWay;

impl Direction for TwoWay {
    const HAS_LENGTHS: bool = true;
}

impl Direction for OneWay {
    const HAS_LENGTHS: bool = false;
}

/// A shared view of a pack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackRef<'a, W: Direction = TwoWay> {
    bytes: &'a [u8],
    direction: PhantomData<W>,
}

impl<'a, W: Direction> PackRef<'a, W> {
    /// Returns the pack with these bytes. The bytes must come from a [`Pack`] of the same direction
    /// or from [`PackRef::as_bytes`] of such a pack.
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Self {
        PackRef { bytes, direction: PhantomData }
    }

    /// Returns all bytes of the pack.
    pub fn as_bytes(self) -> &'a [u8] {
        self.bytes
    }

    /// Returns the number of entries. Takes constant time if there are fewer than 65,535.
    #[inline]
    pub fn len(self) -> usize {
        let count = u16::from_le_bytes([self.bytes[0], self.bytes[1]]);
        if count == COUNT_UNKNOWN { self.iter().count() } else { usize::from(count) }
    }

    /// Returns whether there are no entries.
    pub fn is_empty(self) -> bool {
        self.bytes.len() <= HEADER_BYTES
    }

    /// Returns the position of the first entry, or of the end if there are no entries.
    pub fn first(self) -> usize {
        HEADER_BYTES
    }

    /// Returns the position after the last entry.
    pub fn end(self) -> usize {
        self.bytes.len()
    }

    /// Returns the entry at a position.
    #[inline]
    pub fn get(self, at: usize) -> Element<'a> {
        let bytes = &self.bytes[at..];
        let sign_extend = |wide: u64, bits: u32| (wide << (64 - bits)) as i64 >> (64 - bits);
        match bytes[0] {
            first @ 0..=0x7f => Element::Int(i64::from(first)),
            first @ 0x80..=0xbf => Element::Bytes(&bytes[1..1 + usize::from(first & 0x3f)]),
            first @ 0xc0..=0xdf => Element::Int(sign_extend(u64::from(first & 0x1f) << 8 | u64::from(bytes[1]), 13)),
            first @ 0xe0..=0xef => {
                let len = usize::from(first & 0xf) << 8 | usize::from(bytes[1]);
                Element::Bytes(&bytes[2..2 + len])
            }
            0xf0 => {
                let len = u32::from_le_bytes([bytes[1], bytes[2], bytes[3], bytes[4]]) as usize;
                Element::Bytes(&bytes[5..5 + len])
            }
            first => {
                let size = integer_bytes(first);
                let mut wide = [0; 8];
                wide[..size].copy_from_slice(&bytes[1..=size]);
                Element::Int(sign_extend(u64::from_le_bytes(wide), size as u32 * 8))
            }
        }
    }

    /// Returns the size of the encoding and data of the entry at a position.
    #[inline]
    pub(crate) fn body_len(self, at: usize) -> usize {
        let bytes = &self.bytes[at..];
        match bytes[0] {
            0..=0x7f => 1,
            first @ 0x80..=0xbf => 1 + usize::from(first & 0x3f),
            0xc0..=0xdf => 2,
            first @ 0xe0..=0xef => 2 + (usize::from(first & 0xf) << 8 | usize::from(bytes[1])),
            0xf0 => 5 + u32::from_le_bytes([bytes[1], bytes[2], bytes[3], bytes[4]]) as usize,
            first => 1 + integer_bytes(first),
        }
    }

    /// Returns the position after the entry at `at`.
    #[inline]
    pub fn next(self, at: usize) -> usize {
        let len = self.body_len(at);
        at + len + if W::HAS_LENGTHS { end_length_bytes(len) } else { 0 }
    }

    /// Returns the position of the entry before `at`, as [`Self::previous`] does. The pack must be
    /// two-way.
    fn before(self, at: usize) -> usize {
        let (mut len, mut shift, mut end) = (0, 0, at);
        loop {
            end -= 1;
            let byte = self.bytes[end];
            len |= usize::from(byte & 0x7f) << shift;
            shift += 7;
            if byte & 0x80 == 0 {
                return end - len;
            }
        }
    }

    /// Returns the position of the entry with this index, or `None` if there is no such entry.
    /// Walks from the end of the pack if this is nearer and the pack is two-way, otherwise from the
    /// first entry.
    pub fn nth(self, index: usize) -> Option<usize> {
        let len = self.len();
        if index >= len {
            return None;
        }
        if !W::HAS_LENGTHS || index <= len / 2 {
            let mut at = self.first();
            for _ in 0..index {
                at = self.next(at);
            }
            Some(at)
        } else {
            let mut at = self.end();
            for _ in index..len {
                at = self.before(at);
            }
            Some(at)
        }
    }

    /// Returns the position of the first entry equal to `wanted`, starting at the position `from`.
    /// After each compared entry, skips `skip` entries. So with `skip` 1, a search in a pack of
    /// field, value, field, value … compares only fields.
    #[inline]
    pub fn find(self, wanted: &[u8], from: usize, skip: usize) -> Option<usize> {
        self.find_element(Element::of(wanted), from, skip)
    }

    /// Finds an element made by [`Element::of`], as [`Self::find`] finds a string.
    #[inline]
    pub fn find_element(self, element: Element<'_>, from: usize, skip: usize) -> Option<usize> {
        let head = Head::of(element);
        let head = head.as_bytes();
        let tail = match element {
            Element::Int(_) => &[][..],
            Element::Bytes(bytes) => bytes,
        };
        let mut at = from;
        while at < self.end() {
            let rest = &self.bytes[at..];
            if rest.starts_with(head) && rest[head.len()..].starts_with(tail) {
                return Some(at);
            }
            at = self.next(at);
            for _ in 0..skip {
                if at >= self.end() {
                    return None;
                }
                at = self.next(at);
            }
        }
        None
    }

    /// Iterates over all entries in order.
    pub fn iter(self) -> PackIter<'a, W> {
        PackIter { pack: self, front: self.first(), back: self.end() }
    }

    /// Iterates over the entries between two positions.
    pub fn range(self, from: usize, to: usize) -> PackIter<'a, W> {
        PackIter { pack: self, front: from, back: to }
    }

    /// Returns an owned copy.
    pub fn to_pack(self) -> Pack<W> {
        Pack::of(self.bytes.to_vec())
    }

    /// Appends the pack's entries to `out`, encoded for a pack of direction `V`.
    pub(crate) fn write_entries<V: Direction>(self, out: &mut Vec<u8>) {
        let mut at = self.first();
        while at < self.end() {
            let len = self.body_len(at);
            out.extend_from_slice(&self.bytes[at..at + len]);
            if V::HAS_LENGTHS {
                let mut back = [0; END_LENGTH_BYTES_MAX];
                let end_len = write_end_length(len, &mut back);
                out.extend_from_slice(&back[..end_len]);
            }
            at = self.next(at);
        }
    }
}

impl<'a> PackRef<'a> {
    /// Returns the bytes of all entries, which equal the bytes of a listpack between header and end
    /// mark.
    pub fn entries(self) -> &'a [u8] {
        &self.bytes[HEADER_BYTES..]
    }

    /// Returns the position of the entry before `at`, which must not be the first. If `at` is the
    /// end, returns the position of the last entry.
    pub fn previous(self, at: usize) -> usize {
        self.before(at)
    }

    /// Returns a copy that is only readable forwards.
    pub(crate) fn try_to_one_way(self) -> Result<Pack<OneWay>, OutOfMemory> {
        // The one-way entries fit, because they are smaller than the two-way entries.
        let mut pack = Pack::try_with_capacity(self.entries().len())?;
        self.write_entries::<OneWay>(&mut pack.bytes);
        pack.bytes[..HEADER_BYTES].copy_from_slice(&self.bytes[..HEADER_BYTES]);
        pack.shrink();
        Ok(pack)
    }
}

/// Bytes from an untrusted source that are a valid sequence of entries.
pub(crate) struct CheckedEntries<'a> {
    bytes: &'a [u8],
    count: usize,
    /// Whether every entry has the encoding that a pack uses for its value. (Other writers may use
    /// another one.)
    unique: bool,
}

impl CheckedEntries<'_> {
    /// Returns the number of entries.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Returns a pack of the entries. Reencodes entries whose encoding a pack wouldn't use.
    pub(crate) fn into_pack(self) -> Result<Pack, OutOfMemory> {
        if self.unique {
            return Pack::try_from_entries(self.bytes, self.count);
        }
        let mut pack = Pack::try_with_capacity(self.bytes.len())?;
        for element in <PackRef<'_>>::new(self.bytes).range(0, self.bytes.len()) {
            // The entry is appended without `push_back`, which would also update the count. The
            // count is set once after the loop.
            let end = pack.bytes.len();
            element.with_bytes(|bytes| pack.splice(end, end, Some(Element::of(bytes))));
        }
        pack.set_count(self.count);
        pack.shrink();
        Ok(pack)
    }
}

/// Checks bytes from an untrusted source. Returns `None` if they aren't a series of valid entries.
pub(crate) fn check_entries(bytes: &[u8]) -> Option<CheckedEntries<'_>> {
    let pack = <PackRef<'_>>::new(bytes);
    let (mut at, mut count, mut unique) = (0, 0, true);
    while at < bytes.len() {
        let len = checked_body_len(&bytes[at..])?;
        let mut back = [0; END_LENGTH_BYTES_MAX];
        let end_len = write_end_length(len, &mut back);
        // The body ends within the bytes, so the sum doesn't overflow.
        if !bytes[at + len..].starts_with(&back[..end_len]) {
            return None;
        }
        let element = pack.get(at);
        let shortest = match element {
            Element::Int(_) => element,
            Element::Bytes(text) => Element::of(text),
        };
        unique = unique && shortest == element && bytes[at..].starts_with(Head::of(shortest).as_bytes());
        at += len + end_len;
        count += 1;
    }
    Some(CheckedEntries { bytes, count, unique })
}

/// An iterator over the entries of a pack, from either end if the pack is two-way.
#[derive(Clone, Debug)]
pub struct PackIter<'a, W: Direction = TwoWay> {
    pack: PackRef<'a, W>,
    front: usize,
    back: usize,
}

impl<'a, W: Direction> Iterator for PackIter<'a, W> {
    type Item = Element<'a>;

    #[inline]
    fn next(&mut self) -> Option<Element<'a>> {
        if self.front >= self.back {
            return None;
        }
        let element = self.pack.get(self.front);
        self.front = self.pack.next(self.front);
        Some(element)
    }
}

impl DoubleEndedIterator for PackIter<'_> {
    fn next_back(&mut self) -> Option<Self::Item> {
        if self.front >= self.back {
            return None;
        }
        self.back = self.pack.previous(self.back);
        Some(self.pack.get(self.back))
    }
}

/// An owned pack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pack<W: Direction = TwoWay> {
    bytes: Vec<u8>,
    direction: PhantomData<W>,
}

impl<W: Direction> Default for Pack<W> {
    fn default() -> Self {
        Self::new()
    }
}

impl<W: Direction> Pack<W> {
    fn of(bytes: Vec<u8>) -> Self {
        Pack { bytes, direction: PhantomData }
    }

    /// Returns an empty pack.
    pub fn new() -> Self {
        Pack::of(vec![0; HEADER_BYTES])
    }

    /// Returns the pack with these bytes, like [`PackRef::new`]. An empty vector becomes an empty
    /// pack.
    pub fn from_vec(mut bytes: Vec<u8>) -> Self {
        if bytes.len() < HEADER_BYTES {
            bytes.clear();
            bytes.resize(HEADER_BYTES, 0);
        }
        Pack::of(bytes)
    }

    /// Returns an empty pack with capacity for this many bytes of entries.
    pub(crate) fn try_with_capacity(bytes: usize) -> Result<Self, OutOfMemory> {
        let mut pack = Pack::of(Vec::new());
        pack.bytes.try_reserve_exact(HEADER_BYTES + bytes)?;
        pack.bytes.resize(HEADER_BYTES, 0);
        Ok(pack)
    }

    /// Returns a pack with a copy of these entries.
    fn try_from_entries(entries: &[u8], count: usize) -> Result<Self, OutOfMemory> {
        let mut pack = Pack::try_with_capacity(entries.len())?;
        pack.bytes.extend_from_slice(entries);
        pack.set_count(count);
        Ok(pack)
    }

    /// Returns the pack's bytes, with their spare capacity.
    pub fn into_vec(self) -> Vec<u8> {
        self.bytes
    }

    /// Returns a shared view.
    #[inline]
    pub fn as_ref(&self) -> PackRef<'_, W> {
        PackRef::new(&self.bytes)
    }

    /// Returns the size of the pack's heap memory in bytes.
    pub fn allocated_bytes(&self) -> usize {
        pantala_base::block_bytes(self.bytes.capacity())
    }

    /// Releases the spare capacity.
    pub fn shrink(&mut self) {
        self.bytes.shrink_to_fit();
    }

    /// Appends an entry.
    pub fn push_back(&mut self, value: &[u8]) {
        self.insert(self.bytes.len(), value);
    }

    /// Prepends an entry.
    pub fn push_front(&mut self, value: &[u8]) {
        self.insert(HEADER_BYTES, value);
    }

    /// Inserts an entry at a position, before the entry that is there now, if any.
    pub fn insert(&mut self, at: usize, value: &[u8]) {
        self.splice(at, at, Some(Element::of(value)));
        self.adjust_count(1);
    }

    /// Appends an element made by [`Element::of`].
    pub fn push_back_element(&mut self, element: Element<'_>) {
        let end = self.bytes.len();
        self.splice(end, end, Some(element));
        self.adjust_count(1);
    }

    /// Inserts an entry like [`Self::insert`], but always as a string. If the string is the text of
    /// an integer, [`PackRef::find`] doesn't find the entry.
    pub fn insert_bytes(&mut self, at: usize, value: &[u8]) {
        self.splice(at, at, Some(Element::Bytes(value)));
        self.adjust_count(1);
    }

    /// Inserts an integer, as [`Self::insert`] inserts a string.
    pub fn insert_int(&mut self, at: usize, value: i64) {
        self.splice(at, at, Some(Element::Int(value)));
        self.adjust_count(1);
    }

    /// Replaces the entry at a position.
    pub fn replace(&mut self, at: usize, value: &[u8]) {
        let end = self.as_ref().next(at);
        self.splice(at, end, Some(Element::of(value)));
    }

    /// Removes `count` entries, starting at a position. The entries must exist.
    pub fn remove(&mut self, at: usize, count: usize) {
        let mut end = at;
        for _ in 0..count {
            end = self.as_ref().next(end);
        }
        self.splice(at, end, None);
        self.adjust_count(-(count as isize));
    }

    /// Removes all entries starting at a position and returns them as a pack.
    pub fn split_off(&mut self, at: usize) -> Self {
        let mut tail = Pack::of(Vec::with_capacity(HEADER_BYTES + self.bytes.len() - at));
        tail.bytes.extend_from_slice(&[0; HEADER_BYTES]);
        tail.bytes.extend_from_slice(&self.bytes[at..]);
        self.bytes.truncate(at);
        self.recount();
        tail.recount();
        tail
    }

    /// Appends all entries of another pack.
    pub fn append(&mut self, other: PackRef<'_, W>) {
        self.bytes.extend_from_slice(&other.bytes[HEADER_BYTES..]);
        self.recount();
    }

    fn adjust_count(&mut self, change: isize) {
        let count = u16::from_le_bytes([self.bytes[0], self.bytes[1]]);
        if count == COUNT_UNKNOWN {
            // There were too many entries for a count. After an insertion there are still too many,
            // but after a removal there may be few enough.
            if change <= 0 {
                self.recount();
            }
            return;
        }
        let count = usize::from(count).saturating_add_signed(change);
        self.set_count(count);
    }

    fn recount(&mut self) {
        let count = self.as_ref().iter().count();
        self.set_count(count);
    }

    fn set_count(&mut self, count: usize) {
        let count = u16::try_from(count).unwrap_or(COUNT_UNKNOWN);
        self.bytes[..HEADER_BYTES].copy_from_slice(&count.to_le_bytes());
    }

    /// Replaces the bytes between two positions with an entry, or removes them.
    fn splice(&mut self, from: usize, to: usize, element: Option<Element<'_>>) {
        splice_entry::<W>(&mut self.bytes, from, to, element);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Random;

    /// The number of random packs, the number of changes to each, and the maximum length of an
    /// entry. All three are lower under Miri.
    const PACKS: usize = if cfg!(miri) { 2 } else { 200 };
    const CHANGES: usize = if cfg!(miri) { 60 } else { 120 };
    const LONG_BYTES_MAX: usize = if cfg!(miri) { 300 } else { 20_000 };

    fn text(random: &mut Random) -> Vec<u8> {
        match random.below(4) {
            0 => ((random.next() as i64) >> random.below(64)).to_string().into_bytes(),
            1 => random.bytes(0, 5),
            2 => random.bytes(0, 200),
            _ => {
                let most = if random.one_in(20) { LONG_BYTES_MAX } else { 70 };
                random.bytes(0, most)
            }
        }
    }

    #[test]
    fn integers_take_their_smallest_size() {
        for (value, bytes) in [
            (0, 1),
            (127, 1),
            (-1, 2),
            (128, 2),
            (4095, 2),
            (-4096, 2),
            (4096, 3),
            (-4097, 3),
            (32_767, 3),
            (32_768, 4),
            (8_388_608, 5),
            (i64::from(i32::MIN), 5),
            (i64::from(i32::MAX) + 1, 9),
            (i64::MIN, 9),
            (i64::MAX, 9),
        ] {
            let mut pack = <Pack>::new();
            pack.push_back(value.to_string().as_bytes());
            assert_eq!(pack.as_ref().entries().len(), bytes + 1, "{value}");
            assert_eq!(pack.as_ref().get(2), Element::Int(value));
        }
    }

    /// The expected bytes come from `lpAppend` of redis-server 7.0.15 (`DUMP` of a hash).
    #[test]
    fn entries_equal_those_of_a_listpack() {
        let mut pack = <Pack>::new();
        for value in [&b"f1"[..], b"300", b"", b"-5"] {
            pack.push_back(value);
        }
        let expected = [0x82, b'f', b'1', 3, 0xc1, 0x2c, 2, 0x80, 1, 0xdf, 0xfb, 2];
        assert_eq!(pack.as_ref().entries(), expected);
    }

    fn change_at_random<W: Direction>(random: &mut Random, check: impl Fn(PackRef<'_, W>, &[Vec<u8>])) {
        for _ in 0..PACKS {
            let (mut pack, mut model) = (Pack::<W>::new(), Vec::<Vec<u8>>::new());
            for _ in 0..CHANGES {
                let index = random.below(model.len() as u64 + 1) as usize;
                let at = if index == model.len() { pack.as_ref().end() } else { pack.as_ref().nth(index).unwrap() };
                match random.below(5) {
                    0 if index < model.len() => {
                        let count = 1 + random.below((model.len() - index) as u64) as usize;
                        pack.remove(at, count);
                        model.drain(index..index + count);
                    }
                    1 if index < model.len() => {
                        let value = text(random);
                        pack.replace(at, &value);
                        model[index] = value;
                    }
                    2 if random.below(4) == 0 => {
                        let tail = pack.split_off(at);
                        let rest = model.split_off(index);
                        assert_eq!(tail.as_ref().len(), rest.len());
                        pack.append(tail.as_ref());
                        model.extend(rest);
                    }
                    _ => {
                        let value = text(random);
                        pack.insert(at, &value);
                        model.insert(index, value);
                    }
                }
                assert_eq!(pack.as_ref().len(), model.len());
            }
            let forward: Vec<_> = pack.as_ref().iter().map(Element::to_vec).collect();
            assert_eq!(forward, model);
            for value in &model {
                let found = pack.as_ref().find(value, 2, 0).unwrap();
                assert_eq!(pack.as_ref().get(found).to_vec(), *value);
            }
            check(pack.as_ref(), &model);
        }
    }

    #[test]
    fn random_changes_agree_with_a_plain_model() {
        let mut random = Random::with_printed_seed("pack");
        change_at_random::<TwoWay>(&mut random, |pack, model| {
            let backward: Vec<_> = pack.iter().rev().map(Element::to_vec).collect();
            assert!(backward.iter().eq(model.iter().rev()));
            let one_way = pack.try_to_one_way().unwrap();
            assert!(one_way.as_ref().iter().map(Element::to_vec).eq(model.iter().cloned()));
            assert_eq!(one_way.as_ref().len(), model.len());
        });
        change_at_random::<OneWay>(&mut random, |pack, model| {
            let mut entries = Vec::new();
            pack.write_entries::<TwoWay>(&mut entries);
            let checked = check_entries(&entries).expect("valid listpack entries");
            assert_eq!(checked.count(), model.len());
            let two_way = checked.into_pack().unwrap();
            assert!(two_way.as_ref().iter().map(Element::to_vec).eq(model.iter().cloned()));
        });
    }

    /// A header can't hold a count of more than 65,534, so the entries of such a pack must be
    /// counted. They must not be counted again for each appended entry, which would take minutes.
    #[test]
    #[cfg_attr(miri, ignore = "too many entries")]
    fn many_foreign_entries_are_encoded_in_linear_time() {
        const COUNT: usize = 300_000;
        // A five encoded as a string, which is not the encoding of a pack, followed by ones.
        let mut entries = vec![0x81, b'5', 2];
        entries.extend(std::iter::repeat_n([1, 1], COUNT - 1).flatten());
        let began = std::time::Instant::now();
        let pack = check_entries(&entries).expect("valid listpack entries").into_pack().expect("it fits");
        assert!(began.elapsed().as_secs() < 20, "{:?}", began.elapsed());
        assert_eq!(pack.as_ref().iter().count(), COUNT);
        assert_eq!(pack.as_ref().len(), COUNT);
    }

    #[test]
    fn a_search_with_skip_compares_only_its_own_entries() {
        let mut pack = <Pack>::new();
        for value in [&b"a"[..], b"b", b"b", b"c"] {
            pack.push_back(value);
        }
        let pack = pack.as_ref();
        assert_eq!(pack.find(b"b", pack.first(), 1), pack.nth(2));
        assert_eq!(pack.find(b"c", pack.first(), 1), None);
        assert_eq!(pack.find(b"c", pack.first(), 0), pack.nth(3));
    }

    #[test]
    #[cfg_attr(miri, ignore = "70,000 entries take Miri minutes")]
    fn more_entries_than_the_count_holds() {
        let mut pack = <Pack>::new();
        for _ in 0..70_000 {
            let end = pack.as_ref().end();
            pack.splice(end, end, Some(Element::Int(1)));
        }
        pack.recount();
        assert_eq!(pack.as_ref().len(), 70_000);
        pack.remove(2, 10_000);
        assert_eq!(pack.as_ref().len(), 60_000);
        assert_eq!(pack.as_ref().nth(60_000), None);
    }
}
