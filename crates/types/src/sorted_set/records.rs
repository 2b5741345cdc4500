//! The members of a large sorted set and their scores: records in chunks of memory. Each record has
//! a stable id.
//!
//! ```text
//! score   8 bytes, little-endian
//! length  1 byte: length of the member, or 255 for a member of more than 254 bytes
//! member  up to 254 bytes; instead of a longer member: 3 unused bytes and its index in `long`
//! ```
//!
//! A record takes a multiple of 8 bytes. The id of a record is its offset in units of 8 bytes. A
//! freed record is kept in a list of free records of its size, and is reused for a record of this
//! size.

/// Unit of record ids, in bytes.
const UNIT_BYTES: usize = 8;
/// Number of bits of a record id that hold the offset within its chunk.
const CHUNK_BITS: u32 = 11;
/// Units per chunk.
const CHUNK_UNITS: usize = 1 << CHUNK_BITS;
/// Bytes per chunk.
const CHUNK_BYTES: usize = CHUNK_UNITS * UNIT_BYTES;
/// Initial bytes of the first chunk.
const FIRST_BYTES: usize = 256;
/// Bytes before a member.
const HEAD_BYTES: usize = 9;
/// Maximum length of a member inside its record.
const SHORT_MAX: usize = 254;
/// The length byte of a member in `long`.
const LONG: u8 = 255;
/// Offset of a long member's index in its record.
const LONG_INDEX_AT: usize = 12;
/// Size of the largest record, in units.
const UNITS_MAX: usize = (HEAD_BYTES + SHORT_MAX).div_ceil(UNIT_BYTES);
/// The id that stands for no record.
pub(super) const NONE: u32 = u32::MAX;
/// Maximum number of chunks. With more, a record's id could be [`NONE`].
const CHUNKS_MAX: usize = (u32::MAX >> CHUNK_BITS) as usize;

/// The records, as described at the head of this module.
#[derive(Clone, Debug)]
pub(super) struct Records {
    chunks: Vec<Vec<u8>>,
    /// For each size in units, the first free record of this size. The first bytes of a free record
    /// hold the id of the next free record.
    free: [u32; UNITS_MAX + 1],
    long: Vec<Box<[u8]>>,
    long_free: Vec<u32>,
    /// Bytes of the chunks and of the long members, as a running sum.
    bytes: usize,
}

impl Records {
    pub(super) fn new() -> Self {
        Records { chunks: Vec::new(), free: [NONE; UNITS_MAX + 1], long: Vec::new(), long_free: Vec::new(), bytes: 0 }
    }

    /// Returns the size of the heap memory in bytes. Takes constant time.
    pub(super) fn allocated_bytes(&self) -> usize {
        self.bytes
            + self.chunks.capacity() * size_of::<Vec<u8>>()
            + self.long.capacity() * size_of::<Box<[u8]>>()
            + self.long_free.capacity() * size_of::<u32>()
    }

    /// Returns a copy without spare capacity.
    pub(super) fn copy(&self) -> Self {
        let mut copy = self.clone();
        copy.bytes = copy.chunks.iter().map(Vec::capacity).sum::<usize>()
            + copy.long.iter().map(|member| member.len()).sum::<usize>();
        copy
    }

    /// Returns a number that exceeds all current ids.
    pub(super) fn ids(&self) -> usize {
        self.chunks.len() << CHUNK_BITS
    }

    #[inline]
    fn record(&self, id: u32) -> &[u8] {
        &self.chunks[(id >> CHUNK_BITS) as usize][(id as usize % CHUNK_UNITS) * UNIT_BYTES..]
    }

    #[inline]
    fn record_mut(&mut self, id: u32) -> &mut [u8] {
        &mut self.chunks[(id >> CHUNK_BITS) as usize][(id as usize % CHUNK_UNITS) * UNIT_BYTES..]
    }

    #[inline]
    pub(super) fn score(&self, id: u32) -> f64 {
        let (bytes, _) = self.record(id).split_first_chunk().expect("a record starts with its score");
        f64::from_le_bytes(*bytes)
    }

    #[inline]
    pub(super) fn set_score(&mut self, id: u32, score: f64) {
        self.record_mut(id)[..UNIT_BYTES].copy_from_slice(&score.to_le_bytes());
    }

    #[inline]
    pub(super) fn member(&self, id: u32) -> &[u8] {
        let record = self.record(id);
        match record[UNIT_BYTES] {
            LONG => &self.long[index_of(record)],
            len => &record[HEAD_BYTES..HEAD_BYTES + usize::from(len)],
        }
    }

    /// Returns whether this many records of any length can be added. Callers check this before they
    /// add the first record.
    #[inline]
    pub(super) fn has_room(&self, records: usize) -> bool {
        /// Minimum number of used bytes in a chunk when the next chunk is added.
        const USED_BYTES_MIN: usize = CHUNK_BYTES - UNITS_MAX * UNIT_BYTES;
        let new = records.saturating_mul(UNITS_MAX * UNIT_BYTES) / USED_BYTES_MIN + 1;
        new <= CHUNKS_MAX.saturating_sub(self.chunks.len())
    }

    /// Adds a record and returns its id.
    ///
    /// # Panics
    /// If there is no room ([`Self::has_room`]).
    pub(super) fn add(&mut self, member: &[u8], score: f64) -> u32 {
        let short = member.len() <= SHORT_MAX;
        let len = if short { HEAD_BYTES + member.len() } else { LONG_INDEX_AT + size_of::<u32>() };
        let id = self.allocate(len.div_ceil(UNIT_BYTES));
        let index = if short { 0 } else { self.add_long(member) };
        let record = self.record_mut(id);
        record[..UNIT_BYTES].copy_from_slice(&score.to_le_bytes());
        if short {
            record[UNIT_BYTES] = member.len() as u8;
            record[HEAD_BYTES..HEAD_BYTES + member.len()].copy_from_slice(member);
        } else {
            record[UNIT_BYTES] = LONG;
            record[LONG_INDEX_AT..LONG_INDEX_AT + size_of::<u32>()].copy_from_slice(&index.to_le_bytes());
        }
        id
    }

    fn add_long(&mut self, member: &[u8]) -> u32 {
        self.bytes += member.len();
        if let Some(index) = self.long_free.pop() {
            self.long[index as usize] = member.into();
            return index;
        }
        self.long.push(member.into());
        (self.long.len() - 1) as u32
    }

    /// Frees a record.
    pub(super) fn remove(&mut self, id: u32) {
        let record = self.record(id);
        let units = match record[UNIT_BYTES] {
            LONG => {
                let index = index_of(record);
                self.bytes -= self.long[index].len();
                self.long[index] = Box::default();
                self.long_free.push(index as u32);
                2
            }
            len => (HEAD_BYTES + usize::from(len)).div_ceil(UNIT_BYTES),
        };
        self.add_free(id, units);
    }

    fn add_free(&mut self, id: u32, units: usize) {
        let next = self.free[units];
        self.record_mut(id)[..size_of::<u32>()].copy_from_slice(&next.to_le_bytes());
        self.free[units] = id;
    }

    /// Returns the id of `units` allocated units: a free record, or new space at the end.
    fn allocate(&mut self, units: usize) -> u32 {
        let id = self.free[units];
        if id != NONE {
            let (next, _) = self.record(id).split_first_chunk().expect("a free record holds the id of the next");
            self.free[units] = u32::from_le_bytes(*next);
            return id;
        }
        let len = units * UNIT_BYTES;
        let room = self.chunks.last().map_or(0, |chunk| CHUNK_BYTES - chunk.len());
        if room < len {
            self.add_chunk(room);
        }
        let number = self.chunks.len() - 1;
        let chunk = &mut self.chunks[number];
        let at = chunk.len();
        if chunk.capacity() - at < len {
            let before = chunk.capacity();
            let wanted = (at * 2).max(FIRST_BYTES).max(at + len).min(CHUNK_BYTES);
            chunk.reserve_exact(wanted - at);
            self.bytes += chunk.capacity() - before;
        }
        chunk.resize(at + len, 0);
        ((number << CHUNK_BITS) | (at / UNIT_BYTES)) as u32
    }

    /// Adds a chunk. The unused rest of the last chunk, `room` bytes, becomes a free record. The
    /// first chunk starts empty and grows with the set.
    fn add_chunk(&mut self, room: usize) {
        assert!(self.chunks.len() < CHUNKS_MAX, "a sorted set's records exceed 32 GiB");
        let units = room / UNIT_BYTES;
        if let Some(number) = self.chunks.len().checked_sub(1)
            && units > 0
        {
            let chunk = &mut self.chunks[number];
            let at = chunk.len();
            let before = chunk.capacity();
            chunk.resize(CHUNK_BYTES, 0);
            self.bytes += chunk.capacity() - before;
            self.add_free(((number << CHUNK_BITS) | (at / UNIT_BYTES)) as u32, units);
        }
        let chunk = if self.chunks.is_empty() { Vec::new() } else { Vec::with_capacity(CHUNK_BYTES) };
        self.bytes += chunk.capacity();
        self.chunks.push(chunk);
    }
}

/// Returns the index of a long member.
fn index_of(record: &[u8]) -> usize {
    let bytes = &record[LONG_INDEX_AT..LONG_INDEX_AT + size_of::<u32>()];
    u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Random;

    /// Returns the bytes of a copy, which has no spare capacity.
    pub(super) fn counted(records: &Records) -> usize {
        records.copy().bytes
    }

    #[test]
    fn records_keep_members_and_scores() {
        let mut random = Random::with_printed_seed("records");
        let mut records = Records::new();
        let mut model: Vec<(u32, Vec<u8>, f64)> = Vec::new();
        for _ in 0..20_000 {
            if random.below(3) > 0 || model.is_empty() {
                let most = if random.one_in(10) { 600 } else { 40 };
                let (member, score) = (random.bytes(0, most), random.below(1000) as f64 / 7.0);
                model.push((records.add(&member, score), member, score));
            } else {
                let (id, ..) = model.swap_remove(random.below(model.len() as u64) as usize);
                records.remove(id);
            }
        }
        for (id, member, score) in &model {
            assert_eq!((records.member(*id), records.score(*id)), (&member[..], *score));
        }
        let chunks: usize = records.chunks.iter().map(Vec::capacity).sum();
        let long: usize = records.long.iter().map(|member| member.len()).sum();
        assert_eq!(records.bytes, chunks + long);
        assert!(counted(&records) <= records.bytes);
    }

    #[test]
    fn room_ends_at_the_bound() {
        let mut records = Records::new();
        assert!(records.has_room(1_000_000));
        // A chunk is assumed to hold 61 records of 264 bytes, and can hold 62.
        assert!(records.has_room((CHUNKS_MAX - 1) * 61) && !records.has_room(CHUNKS_MAX * 62));
        assert!(!records.has_room(usize::MAX));
        records.chunks.resize(CHUNKS_MAX - 2, Vec::new());
        assert!(records.has_room(61) && !records.has_room(10_000));
        records.chunks.resize(CHUNKS_MAX, Vec::new());
        assert!(!records.has_room(1));
    }

    #[test]
    fn lengths_around_the_longest_short_one() {
        let mut records = Records::new();
        let members: Vec<Vec<u8>> = [0, 1, 7, 8, 253, 254, 255, 256, 100_000].map(|len| vec![b'm'; len]).into();
        let ids: Vec<u32> = members.iter().map(|member| records.add(member, -1.5)).collect();
        for (id, member) in ids.iter().zip(&members) {
            assert_eq!(records.member(*id), member);
        }
        for id in ids {
            records.remove(id);
        }
        let before = records.bytes;
        for member in &members {
            records.add(member, 2.0);
        }
        assert_eq!(records.bytes - before, 255 + 256 + 100_000, "freed space is reused");
    }
}
