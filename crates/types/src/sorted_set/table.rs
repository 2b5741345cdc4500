//! A table from members to record ids: extendible hashing over small open-addressing segments.
//!
//! The top bits of a hash are an index into the directory, whose word at this index is the number
//! of a segment. The *depth* of a segment is the number of top bits that the hashes of all its
//! members share. The bits of a hash after these select its *home slot* in the segment, where the
//! search for a member starts. A slot holds the id of a record and a *tag*, one byte of the hash,
//! so a search rarely reads a wrong record.
//!
//! A full segment doubles up to [`SLOTS_MAX`] slots and then splits, so an insertion moves the
//! slots of at most one segment. The directory and the home slots of a segment are in hash order. A
//! scan cursor is therefore a point in the hash range, and stays valid while segments grow, split
//! and merge.

/// Number of slots of the smallest segment.
const SLOTS_MIN: usize = 16;
/// Number of slots at which a segment splits instead of growing.
const SLOTS_MAX: usize = 1024;
/// Maximum depth of a segment. At this depth a full segment grows instead of splitting. This
/// practically never happens, because it requires hundreds of members whose hashes share the top 26
/// bits.
const DEPTH_MAX: u32 = 26;
/// Number of low hash bits that a cursor omits. All hashes that differ only in these bits have the
/// same home slot, even in the deepest segment.
const CURSOR_SHIFT: u32 = 16;
/// Two segments merge if they have fewer members than this in total.
const MERGE_BELOW: usize = SLOTS_MAX / 4;

/// The tag of a free slot.
const EMPTY: u8 = 0;
/// The tag of a removed member's slot. Searches continue past such a slot.
const TOMBSTONE: u8 = 1;
/// The lowest tag of a member.
const TAG_MIN: u8 = 2;

/// Returns the tag of a hash, which is made from the lowest byte. This byte is used neither to
/// select the segment nor to select the slot.
#[inline]
fn tag_of(hash: u64) -> u8 {
    (hash as u8).max(TAG_MIN)
}

#[derive(Clone, Debug, Default)]
struct Segment {
    /// Number of top hash bits that all members share.
    depth: u32,
    len: u32,
    tombstones: u32,
    tags: Box<[u8]>,
    ids: Box<[u32]>,
}

impl Segment {
    fn new(depth: u32, slots: usize) -> Self {
        Segment { depth, len: 0, tombstones: 0, tags: vec![EMPTY; slots].into(), ids: vec![0; slots].into() }
    }

    fn slots(&self) -> usize {
        self.tags.len()
    }

    fn bytes(&self) -> usize {
        self.slots() * (size_of::<u8>() + size_of::<u32>())
    }

    /// Returns whether another member would fill more than 13/16 of the slots, which would make
    /// searches long.
    fn is_full(&self) -> bool {
        (self.len + self.tombstones + 1) as usize * 16 > self.slots() * 13
    }

    #[inline]
    fn home(&self, hash: u64) -> usize {
        ((hash << self.depth) >> (u64::BITS - self.slots().trailing_zeros())) as usize
    }

    #[inline]
    fn find(&self, hash: u64, mut equals: impl FnMut(u32) -> bool) -> Option<usize> {
        let (mask, tag) = (self.slots() - 1, tag_of(hash));
        let mut at = self.home(hash);
        // The loop terminates, because a segment always has empty slots.
        while self.tags[at] != EMPTY {
            if self.tags[at] == tag && equals(self.ids[at]) {
                return Some(at);
            }
            at = (at + 1) & mask;
        }
        None
    }

    /// Adds a new member. The segment must not be full.
    fn insert(&mut self, hash: u64, id: u32) {
        let mask = self.slots() - 1;
        let mut at = self.home(hash);
        while self.tags[at] >= TAG_MIN {
            at = (at + 1) & mask;
        }
        self.tombstones -= u32::from(self.tags[at] == TOMBSTONE);
        self.tags[at] = tag_of(hash);
        self.ids[at] = id;
        self.len += 1;
    }

    fn members(&self) -> impl Iterator<Item = u32> + '_ {
        self.tags.iter().zip(&self.ids).filter(|(tag, _)| **tag >= TAG_MIN).map(|(_, id)| *id)
    }
}

/// The table described at the head of this module. The table stores ids only. Callers pass closures
/// that compare a record with a member and that compute the hash of a record's member.
#[derive(Clone, Debug)]
pub(super) struct Table {
    directory: Vec<u32>,
    depth: u32,
    segments: Vec<Segment>,
    /// Numbers of unused segments.
    free: Vec<u32>,
    /// Bytes of all slots.
    bytes: usize,
}

impl Table {
    /// Returns an empty table with space for this many members.
    pub(super) fn new(members: usize) -> Self {
        let wanted = (members * 16 / 13 + 2).next_power_of_two();
        let slots = wanted.clamp(SLOTS_MIN, SLOTS_MAX);
        // The table starts with enough segments, so that few of them split while the members are
        // added.
        let depth = (wanted.max(slots) / slots).trailing_zeros().min(DEPTH_MAX);
        let segments: Vec<Segment> = (0..1usize << depth).map(|_| Segment::new(depth, slots)).collect();
        let bytes = segments.iter().map(Segment::bytes).sum();
        Table { directory: (0..1u32 << depth).collect(), depth, segments, free: Vec::new(), bytes }
    }

    /// Returns the size of the heap memory in bytes. Takes constant time.
    pub(super) fn allocated_bytes(&self) -> usize {
        self.bytes
            + self.segments.capacity() * size_of::<Segment>()
            + (self.directory.capacity() + self.free.capacity()) * size_of::<u32>()
    }

    #[inline]
    fn segment_of(&self, hash: u64) -> u32 {
        self.directory[self.word_of(hash)]
    }

    #[inline]
    fn word_of(&self, hash: u64) -> usize {
        // At depth 0 the shift would be by 64 bits, which isn't defined. The directory then has one
        // word.
        hash.checked_shr(u64::BITS - self.depth).unwrap_or(0) as usize
    }

    #[inline]
    pub(super) fn find(&self, hash: u64, equals: impl FnMut(u32) -> bool) -> Option<u32> {
        let segment = &self.segments[self.segment_of(hash) as usize];
        segment.find(hash, equals).map(|at| segment.ids[at])
    }

    /// Adds a new member.
    #[inline]
    pub(super) fn insert(&mut self, hash: u64, id: u32, hash_of: impl Fn(u32) -> u64) {
        while self.segments[self.segment_of(hash) as usize].is_full() {
            self.make_room(hash, &hash_of);
        }
        let segment = self.segment_of(hash);
        self.segments[segment as usize].insert(hash, id);
    }

    /// Removes a member, which must exist.
    pub(super) fn remove(&mut self, hash: u64, id: u32, hash_of: impl Fn(u32) -> u64) {
        let number = self.segment_of(hash);
        let segment = &mut self.segments[number as usize];
        let Some(at) = segment.find(hash, |found| found == id) else { return };
        let next = (at + 1) & (segment.slots() - 1);
        let is_last = segment.tags[next] == EMPTY;
        segment.tags[at] = if is_last { EMPTY } else { TOMBSTONE };
        segment.tombstones += u32::from(!is_last);
        segment.len -= 1;
        let len = segment.len as usize;
        if segment.depth > 0 && len < MERGE_BELOW / 2 {
            self.merge(number, hash, &hash_of);
        } else if segment.depth == 0 && segment.slots() > SLOTS_MIN && len < segment.slots() / 8 {
            let slots = segment.slots() / 4;
            self.rebuild(number, 0, slots.max(SLOTS_MIN), &hash_of);
        }
    }

    /// Makes space for one more member in the segment of a hash.
    #[cold]
    fn make_room(&mut self, hash: u64, hash_of: &impl Fn(u32) -> u64) {
        let number = self.segment_of(hash);
        let (len, slots, depth) = {
            let segment = &self.segments[number as usize];
            (segment.len as usize, segment.slots(), segment.depth)
        };
        if len * 2 < slots {
            // Here many of the used slots are tombstones. A rebuilt segment has no tombstones, so
            // the same number of slots suffices.
            self.rebuild(number, depth, slots, hash_of);
        } else if slots < SLOTS_MAX || depth == DEPTH_MAX {
            self.rebuild(number, depth, slots * 2, hash_of);
        } else {
            self.split(number, hash, hash_of);
        }
    }

    /// Replaces a segment by a new segment of this depth and number of slots. Reinserts the
    /// members.
    fn rebuild(&mut self, number: u32, depth: u32, slots: usize, hash_of: &impl Fn(u32) -> u64) {
        let old = std::mem::replace(&mut self.segments[number as usize], Segment::new(depth, slots));
        let new = &mut self.segments[number as usize];
        for id in old.members() {
            new.insert(hash_of(id), id);
        }
        self.bytes = self.bytes + new.bytes() - old.bytes();
    }

    /// Splits the segment of a hash in two. The first hash bit after the segment's `depth` top bits
    /// decides to which half a member belongs.
    fn split(&mut self, number: u32, hash: u64, hash_of: &impl Fn(u32) -> u64) {
        let depth = self.segments[number as usize].depth;
        if depth == self.depth {
            self.directory = self.directory.iter().flat_map(|&word| [word, word]).collect();
            self.depth += 1;
        }
        let slots = self.segments[number as usize].slots();
        let old = std::mem::replace(&mut self.segments[number as usize], Segment::new(depth + 1, slots));
        let mut upper = Segment::new(depth + 1, slots);
        for id in old.members() {
            let hash = hash_of(id);
            let is_upper = hash << depth >> (u64::BITS - 1) == 1;
            let half = if is_upper { &mut upper } else { &mut self.segments[number as usize] };
            half.insert(hash, id);
        }
        self.bytes += upper.bytes();
        let other = match self.free.pop() {
            Some(other) => {
                self.segments[other as usize] = upper;
                other
            }
            None => {
                self.segments.push(upper);
                (self.segments.len() - 1) as u32
            }
        };
        // `words` directory words, starting at `first`, refer to the old segment. The upper half of
        // these words must refer to the new segment.
        let words = 1 << (self.depth - depth);
        let first = self.word_of(hash) & !(words - 1);
        self.directory[first + words / 2..first + words].fill(other);
    }

    /// Merges a segment with its buddy if the two are nearly empty and the buddy wasn't split
    /// again. Buddies are the two halves into which a segment was split.
    #[cold]
    fn merge(&mut self, number: u32, hash: u64, hash_of: &impl Fn(u32) -> u64) {
        let depth = self.segments[number as usize].depth;
        let words = 1 << (self.depth - depth);
        let first = self.word_of(hash) & !(words - 1);
        let buddy = self.directory[first ^ words];
        let (one, two) = (&self.segments[number as usize], &self.segments[buddy as usize]);
        if two.depth != depth || (one.len + two.len) as usize >= MERGE_BELOW {
            return;
        }
        let slots = one.slots().min(SLOTS_MAX);
        let old = std::mem::take(&mut self.segments[buddy as usize]);
        self.rebuild(number, depth - 1, slots, hash_of);
        for id in old.members() {
            self.segments[number as usize].insert(hash_of(id), id);
        }
        self.bytes -= old.bytes();
        self.free.push(buddy);
        let start = first & !words;
        self.directory[start..start + 2 * words].fill(number);
    }

    /// Continues a scan from a cursor. The cursor 0 starts a scan. Visits at least `count` members,
    /// or all remaining members if they are fewer. Returns the next cursor, or 0 at the end.
    pub(super) fn scan(
        &self,
        cursor: u64,
        count: usize,
        hash_of: impl Fn(u32) -> u64,
        mut visit: impl FnMut(u32),
    ) -> u64 {
        let mut point = cursor << CURSOR_SHIFT;
        let mut seen = 0;
        loop {
            let segment = &self.segments[self.segment_of(point) as usize];
            let bits = segment.slots().trailing_zeros();
            let from = segment.home(point);
            // The estimated number of slots that hold the remaining number of members.
            let wanted = (count - seen).max(1) * segment.slots() / (segment.len as usize).max(1);
            let to = from.saturating_add(wanted.max(1)).min(segment.slots());
            let mut at = from;
            for step in 0..segment.slots() {
                let tag = segment.tags[at];
                if tag == EMPTY && from + step + 1 >= to {
                    break;
                }
                if tag >= TAG_MIN {
                    let id = segment.ids[at];
                    if (from..to).contains(&segment.home(hash_of(id))) {
                        visit(id);
                        seen += 1;
                    }
                }
                at = (at + 1) & (segment.slots() - 1);
            }
            // The point in the hash range where slot `to` starts. The end of the last segment ends
            // the scan.
            let next = point.checked_shr(u64::BITS - segment.depth).unwrap_or(0) << bits | to as u64;
            let next = if to == segment.slots() {
                (point.checked_shr(u64::BITS - segment.depth).unwrap_or(0) + 1) << bits
            } else {
                next
            };
            point = next.checked_shl(u64::BITS - bits - segment.depth).unwrap_or(0);
            if point == 0 || seen >= count {
                return point >> CURSOR_SHIFT;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::testing::Random;

    /// Returns the hash of a record. In these tests members are their own record ids.
    fn hash_of(id: u32) -> u64 {
        u64::from(id)
            .wrapping_add(7)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_left(29)
            .wrapping_mul(0xbf58_476d_1ce4_e5b9)
    }

    fn check(table: &Table, model: &HashMap<u32, ()>) {
        for &id in model.keys() {
            assert_eq!(table.find(hash_of(id), |found| found == id), Some(id));
        }
        let bytes: usize = table.segments.iter().map(Segment::bytes).sum();
        assert_eq!(table.bytes, bytes);
        assert_eq!(table.directory.len(), 1 << table.depth);
    }

    #[test]
    fn members_are_found_during_growth_and_shrinking() {
        let mut random = Random::with_printed_seed("table");
        let (mut table, mut model) = (Table::new(0), HashMap::new());
        for target in [5_000u64, 100, 40_000, 300, 0, 900] {
            for _ in 0..200_000 {
                let id = random.below(50_000) as u32;
                let wants_more = (model.len() as u64) < target;
                if wants_more && model.insert(id, ()).is_none() {
                    table.insert(hash_of(id), id, hash_of);
                } else if !wants_more && model.remove(&id).is_some() {
                    table.remove(hash_of(id), id, hash_of);
                }
                if model.len() as u64 == target {
                    break;
                }
            }
            check(&table, &model);
        }
        assert!(table.bytes < 100_000, "slots are released: {}", table.bytes);
    }

    #[test]
    fn a_scan_visits_members_that_stay() {
        let mut random = Random::with_printed_seed("table_scan");
        for _ in 0..40 {
            let (mut table, mut model) = (Table::new(0), HashMap::new());
            let stays = random.below(6_000) as u32;
            for id in 0..stays {
                table.insert(hash_of(id), id, hash_of);
            }
            let (mut cursor, mut seen) = (0, HashMap::new());
            loop {
                let count = 1 + random.below(40) as usize;
                cursor = table.scan(cursor, count, hash_of, |id| {
                    seen.insert(id, ());
                });
                if cursor == 0 {
                    break;
                }
                for _ in 0..random.below(300) {
                    let id = stays + random.below(6_000) as u32;
                    if model.insert(id, ()).is_none() {
                        table.insert(hash_of(id), id, hash_of);
                    } else {
                        model.remove(&id);
                        table.remove(hash_of(id), id, hash_of);
                    }
                }
            }
            assert!((0..stays).all(|id| seen.contains_key(&id)), "of {stays}");
        }
    }

    #[test]
    fn without_changes_a_scan_visits_each_once() {
        let mut table = Table::new(10_000);
        for id in 0..10_000 {
            table.insert(hash_of(id), id, hash_of);
        }
        let (mut cursor, mut seen, mut calls) = (0, vec![0; 10_000], 0);
        loop {
            cursor = table.scan(cursor, 10, hash_of, |id| seen[id as usize] += 1);
            calls += 1;
            if cursor == 0 {
                break;
            }
        }
        assert!(seen.iter().all(|&times| times == 1));
        assert!((300..=1_000).contains(&calls), "{calls}");
    }
}
