//! Iteration over the entries: scans, the walk over entries with an expiry, and random picks.
//!
//! A *segment* holds the entries whose hashes share a prefix. The 16 hash bits after the prefix,
//! the *tag*, select an entry's *home bucket*. The *stash* holds the entries for which a segment
//! has no space.
//!
//! A cursor is the top 48 bits of a hash; all entries with smaller hashes have been visited.
//! Segments, buckets and tags are in hash order, so a cursor stays valid while segments grow,
//! shrink, split and merge between two calls. A scan visits every entry that exists from its start
//! to its end, usually once. If segments merge between two calls, their entries' tags lose the last
//! bit. The cursor's position in the merged segment is therefore less exact, and the scan may visit
//! some entries twice, as `SCAN` allows.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::bucket::{EXPIRES_BIT, SLOTS, tag_of};
use crate::dict::Dict;
use crate::entry::{EntryRef, Removed};
use crate::memory::prefetch;
use crate::record::Record;
use crate::segment::{BUCKETS_MAX, Segment, TAG_BITS, TAGS};
use crate::table::Table;

/// Bits of a cursor.
pub(crate) const CURSOR_BITS: u32 = 48;
const CURSOR_MASK: u64 = (1 << CURSOR_BITS) - 1;
/// Sampled entries that are prefetched together, so that their cache misses overlap.
const SAMPLES_IN_FLIGHT: usize = 16;
/// Maximum number of attempts of a random pick to hit a slot in use. After that, the pick takes an
/// entry of the first nonempty bucket after a random position, so entries after a gap are slightly
/// more likely.
const TRIES_MAX: usize = 4096;

/// The part of a scan that visits the entries of one home bucket.
pub(crate) struct Part {
    segment: Segment,
    bucket: usize,
    /// Entries with smaller tags have been visited.
    from_tag: u64,
    /// The cursor of the next part; 0 at the end.
    pub(crate) next: u64,
}

impl Table {
    /// Returns the part of a scan at a cursor; `None` if there are no segments.
    pub(crate) fn part(&self, cursor: u64) -> Option<Part> {
        let h = (cursor & CURSOR_MASK) << (64 - CURSOR_BITS);
        let segment = self.segment(h)?;
        let from_tag = segment.tag(h);
        let bucket = segment.home(from_tag);
        let next_tag = if bucket + 1 == segment.buckets as usize { TAGS } else { segment.first_tag(bucket + 1) };
        Some(Part { segment, bucket, from_tag, next: self.cursor(segment, h, next_tag) })
    }

    /// Returns the cursor that points to a tag of a segment. The tag `TAGS` gives the cursor after
    /// the segment. `h` is any hash of the segment.
    fn cursor(&self, segment: Segment, h: u64, tag: u64) -> u64 {
        let prefix = if segment.depth == 0 { 0 } else { h >> (64 - segment.depth) << (CURSOR_BITS - segment.depth) };
        (prefix + (tag << (CURSOR_BITS - TAG_BITS - segment.depth))) & CURSOR_MASK
    }
}

impl Part {
    /// Visits the slots in use whose home is this bucket, starting at `from_tag`.
    pub(crate) fn for_each(&self, mut visit: impl FnMut(&'static AtomicU64)) {
        let mut bucket = self.bucket;
        for _ in 0..self.segment.buckets {
            let line = self.segment.bucket(bucket);
            for slot in &line.slots {
                let word = slot.load(Relaxed);
                if word == 0 {
                    return;
                }
                let tag = tag_of(word);
                if self.segment.home(tag) == self.bucket && tag >= self.from_tag {
                    visit(slot);
                }
            }
            bucket = self.segment.next(bucket);
        }
    }
}

impl<V> Dict<V> {
    /// Visits the entries of at most `max_buckets` buckets (at least one), starting at a cursor.
    /// Returns the next cursor. Cursor 0 starts and ends a scan. The top 16 bits of a cursor are
    /// ignored.
    ///
    /// An entry that exists from the start of a scan to its end is visited, regardless of other
    /// changes.
    pub fn scan(&self, cursor: u64, max_buckets: usize, visit: &mut dyn FnMut(EntryRef<'_, V>)) -> u64 {
        // SAFETY: a slot in use, and the dictionary is borrowed.
        let mut visit = |slot: u64| visit(unsafe { EntryRef::new(Record::from_slot(slot)) });
        let mut cursor = cursor & CURSOR_MASK;
        if cursor == 0 {
            // Entries never move into or out of the stash, so it can be visited at any point.
            self.table.stash.iter().for_each(|slot| visit(slot.load(Relaxed)));
        }
        for _ in 0..max_buckets.max(1) {
            let Some(part) = self.table.part(cursor) else { return 0 };
            part.for_each(|slot| visit(slot.load(Relaxed)));
            cursor = part.next;
            if cursor == 0 {
                break;
            }
        }
        cursor
    }

    /// Visits adjacent entries, starting at a cursor and wrapping around at the end, until it has
    /// visited `count` entries or `max_buckets` buckets. Returns the cursor of the bucket after the
    /// last visited one, or 0 if that was the last bucket of the dictionary. A call that continues
    /// at this cursor skips the unvisited entries of the last visited bucket. If there are fewer
    /// than `count` entries, some may be visited twice.
    ///
    /// With `expiring`, visits only entries with an expiry and reads no other entries. A segment
    /// without such entries is skipped and counts as one bucket.
    ///
    /// Any 64 random bits are a valid cursor, and make the visited entries a random sample. The
    /// lower 48 bits choose the first bucket, the upper 16 the first entry in it. (A sample that
    /// always started at a bucket's first entry would seldom reach the bucket's last entries, which
    /// are the newest.)
    pub fn sample(
        &self,
        cursor: u64,
        max_buckets: usize,
        expiring: bool,
        count: usize,
        visit: &mut dyn FnMut(EntryRef<'_, V>),
    ) -> u64 {
        let (mut left, mut words, mut gathered) = (count, [0; SAMPLES_IN_FLIGHT], 0);
        let mut visit_all = |words: &[u64]| {
            for &word in words {
                // SAFETY: a slot in use, and the dictionary is borrowed.
                visit(unsafe { EntryRef::new(Record::from_slot(word)) });
            }
        };
        let next = self.sample_slots(cursor, max_buckets, expiring, &mut |word| {
            if left > 0 {
                left -= 1;
                // SAFETY: a slot in use leads to a record in use.
                prefetch(unsafe { Record::from_slot(word) }.address());
                words[gathered] = word;
                gathered += 1;
                if gathered == words.len() {
                    visit_all(&words);
                    gathered = 0;
                }
            }
            left > 0
        });
        visit_all(&words[..gathered]);
        next
    }

    /// Visits the slots for [`Self::sample`]. With `expiring`, only the slots of entries with an
    /// expiry are *wanted*; otherwise all slots are. Only wanted slots are passed to `visit`.
    ///
    /// `visit` returns false to end the call. In the stash the call ends at once. In a bucket it
    /// ends after the bucket's last slot, so `visit` must ignore the remaining slots.
    fn sample_slots(&self, cursor: u64, max_buckets: usize, expiring: bool, visit: &mut dyn FnMut(u64) -> bool) -> u64 {
        let is_wanted = |word: u64| !expiring || word & EXPIRES_BIT != 0;
        let mut visit = |word: u64| !is_wanted(word) || visit(word);
        let begin = cursor & CURSOR_MASK;
        let mut choice = cursor >> CURSOR_BITS;
        let (mut cursor, mut is_round) = (begin, false);
        for _ in 0..max_buckets.max(1) {
            if is_round && cursor > begin {
                break;
            }
            if cursor == 0 && !self.table.stash.iter().all(|slot| visit(slot.load(Relaxed))) {
                break;
            }
            let Some(mut part) = self.table.part(cursor) else { return 0 };
            if expiring && part.segment.expiring() == 0 {
                cursor = self.table.cursor(part.segment, cursor << (64 - CURSOR_BITS), TAGS);
            } else {
                // Visits the whole bucket, not only the tags from the cursor on.
                part.from_tag = 0;
                let mut skipped = 0;
                if choice != 0 {
                    let mut entries = 0;
                    part.for_each(|slot| entries += u64::from(is_wanted(slot.load(Relaxed))));
                    skipped = (entries * core::mem::take(&mut choice)) >> (64 - CURSOR_BITS);
                }
                let mut wants_more = true;
                part.for_each(|slot| {
                    let word = slot.load(Relaxed);
                    if skipped > 0 && is_wanted(word) {
                        skipped -= 1;
                    } else {
                        wants_more &= visit(word);
                    }
                });
                cursor = part.next;
                if !wants_more {
                    break;
                }
            }
            // The end was reached (cursor 0). The sample wraps around, unless it has wrapped around
            // before, or has visited everything because it started at 0.
            if cursor == 0 && core::mem::replace(&mut is_round, true) | (begin == 0) {
                break;
            }
        }
        cursor
    }

    /// Visits the entries with an expiry in at most `max_buckets` buckets (at least one), starting
    /// at a cursor. Removes the entries for which `visit` returns true, and passes each of them to
    /// `removed`. Returns the next cursor, like [`Self::scan`]. A segment without such entries
    /// counts as one bucket. Does not read entries without an expiry.
    pub fn walk_expiring(
        &mut self,
        cursor: u64,
        max_buckets: usize,
        visit: &mut dyn FnMut(&EntryRef<'_, V>) -> bool,
        removed: &mut dyn FnMut(Removed<V>),
    ) -> u64 {
        let mut cursor = cursor & CURSOR_MASK;
        if cursor == 0 {
            self.walk_stash(visit, removed);
        }
        let mut words = Vec::new();
        for _ in 0..max_buckets.max(1) {
            let Some(part) = self.table.part(cursor) else { return 0 };
            let h = cursor << (64 - CURSOR_BITS);
            if part.segment.expiring() == 0 {
                cursor = self.table.cursor(part.segment, h, TAGS);
            } else {
                self.walk_bucket(&part, h, &mut words, visit, removed);
                cursor = part.next;
            }
            if cursor == 0 {
                break;
            }
        }
        cursor
    }

    /// Walks one home bucket. Removals move slots, so the slots with an expiry are collected first,
    /// in `words`, which is reused between buckets to save allocations.
    fn walk_bucket(
        &mut self,
        part: &Part,
        h: u64,
        words: &mut Vec<u64>,
        visit: &mut dyn FnMut(&EntryRef<'_, V>) -> bool,
        removed: &mut dyn FnMut(Removed<V>),
    ) {
        words.clear();
        part.for_each(|slot| {
            let word = slot.load(Relaxed);
            if word & EXPIRES_BIT != 0 {
                words.push(word);
            }
        });
        let depth = part.segment.depth;
        let prefix = if depth == 0 { 0 } else { h >> (64 - depth) << (64 - depth) };
        for &word in &*words {
            // SAFETY: the slot was in use above, and since then only other entries were removed.
            let entry = unsafe { EntryRef::new(Record::from_slot(word)) };
            if visit(&entry) {
                // Segment and slot give only the top `depth + TAG_BITS` bits of the hash, which
                // suffice to find the slot again. Removals may have merged segments meanwhile, but
                // a merged segment needs fewer bits.
                let h = prefix | tag_of(word) << (64 - TAG_BITS - depth);
                if let Some(slot) = self.table.slot_of(h, word) {
                    let record = self.table.unhook(h, slot);
                    // SAFETY: unhooked just now from this table of a dictionary of `V`.
                    removed(unsafe { Removed::new(&mut self.table, record) });
                }
            }
        }
    }

    fn walk_stash(&mut self, visit: &mut dyn FnMut(&EntryRef<'_, V>) -> bool, removed: &mut dyn FnMut(Removed<V>)) {
        let mut index = 0;
        while let Some(slot) = self.table.stash.get(index) {
            let word = slot.load(Relaxed);
            // SAFETY: a slot in use, and the dictionary is borrowed.
            let entry = unsafe { EntryRef::new(Record::from_slot(word)) };
            if word & EXPIRES_BIT != 0 && visit(&entry) {
                let slot = NonNull::from(slot);
                // For a slot of the stash, `unhook` ignores the hash. It moves the last slot of the
                // stash to this index, so the loop visits the moved slot next.
                let record = self.table.unhook(0, slot);
                // SAFETY: as in `walk_bucket`.
                removed(unsafe { Removed::new(&mut self.table, record) });
            } else {
                index += 1;
            }
        }
    }

    /// Picks a random entry, uniformly. `random` returns 64 uniform bits. The number of attempts is
    /// bounded, so the pick may be biased if nearly all slots are empty.
    pub fn random(&self, random: &mut dyn FnMut() -> u64) -> Option<EntryRef<'_, V>> {
        let table = &self.table;
        if table.len == 0 {
            return None;
        }
        let stash_len = table.stash.len() as u64;
        if stash_len > 0 && random() % (table.len as u64) < stash_len {
            let slot = &table.stash[(random() % stash_len) as usize];
            // SAFETY: a slot in use, and the dictionary is borrowed.
            return Some(unsafe { EntryRef::new(Record::from_slot(slot.load(Relaxed))) });
        }
        // If there is only one segment, the bucket is picked among its buckets. With several
        // segments, a position below `BUCKETS_MAX` is picked. A position beyond the segment's
        // buckets is rejected, so that all buckets are equally likely.
        let lone = if table.depth == 0 { table.segment(0) } else { None };
        let buckets_max = lone.map_or(BUCKETS_MAX as u64, |segment| segment.buckets);
        for _ in 0..TRIES_MAX {
            let bits = random();
            let segment = table.segment(bits)?;
            // Several directory words may lead to the same segment. The pick is accepted only for
            // the first of them, so that all segments are equally likely.
            let copies = table.depth - segment.depth;
            let is_first = copies == 0 || bits << segment.depth >> (64 - copies) == 0;
            let place = random() as u32;
            let bucket = (u64::from(place >> 3) * buckets_max) >> 29;
            if !is_first || bucket >= segment.buckets {
                continue;
            }
            let slot = segment.bucket(bucket as usize).load(place as usize % SLOTS);
            if slot != 0 {
                // SAFETY: a slot in use, and the dictionary is borrowed.
                return Some(unsafe { EntryRef::new(Record::from_slot(slot)) });
            }
        }
        self.next_from(random() >> (64 - CURSOR_BITS))
    }

    /// Returns an entry at or after a cursor, wrapping around at the end: the last entry of the
    /// first home bucket that has entries. Ignores the stash.
    fn next_from(&self, cursor: u64) -> Option<EntryRef<'_, V>> {
        let mut found = None;
        for mut cursor in [cursor, 0] {
            loop {
                let part = self.table.part(cursor)?;
                part.for_each(|slot| found = Some(slot.load(Relaxed)));
                if let Some(slot) = found {
                    // SAFETY: a slot in use, and the dictionary is borrowed.
                    return Some(unsafe { EntryRef::new(Record::from_slot(slot)) });
                }
                cursor = part.next;
                if cursor == 0 {
                    break;
                }
            }
        }
        None
    }
}
