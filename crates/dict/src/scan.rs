//! Going through the entries: scans, the expiry's walk, and random picks.
//!
//! A cursor is a point in the hash's range, its top 48 bits: everything below it has been visited. Segments, buckets and
//! tags are in the order of the hash, so a cursor stays exact while segments grow, shrink, split and merge between
//! two calls: an entry that is there throughout a scan is visited, and visited once as long as tags keep their
//! precision (a merge drops a bit of it; then some may be visited twice, as `SCAN` allows).

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
const CURSOR_BITS: u32 = 48;
const CURSOR_MASK: u64 = (1 << CURSOR_BITS) - 1;
/// Entries of a sample that are fetched together, so that their cache misses overlap.
const SAMPLES_IN_FLIGHT: usize = 16;
/// Tries of a random pick before it takes the next entry it comes by, however unfairly.
const TRIES_MAX: usize = 4096;

/// A home bucket's share of a scan.
struct Stop {
    segment: Segment,
    bucket: usize,
    /// Tags below were visited before.
    from_tag: u64,
    /// Where the scan goes on; 0 at the end.
    next: u64,
}

impl Table {
    /// The home bucket that a cursor points into.
    fn stop(&self, cursor: u64) -> Option<Stop> {
        let h = (cursor & CURSOR_MASK) << (64 - CURSOR_BITS);
        let segment = self.segment(h)?;
        let from_tag = segment.tag(h);
        let bucket = segment.home(from_tag);
        let next_tag = if bucket + 1 == segment.buckets as usize { TAGS } else { segment.first_tag(bucket + 1) };
        Some(Stop { segment, bucket, from_tag, next: self.cursor(segment, h, next_tag) })
    }

    /// The cursor at a tag of a segment, `TAGS` being its end; `h` is any hash of the segment's.
    fn cursor(&self, segment: Segment, h: u64, tag: u64) -> u64 {
        let prefix = if segment.depth == 0 { 0 } else { h >> (64 - segment.depth) << (CURSOR_BITS - segment.depth) };
        (prefix + (tag << (CURSOR_BITS - TAG_BITS - segment.depth))) & CURSOR_MASK
    }
}

impl Stop {
    /// Visits the slots in use whose home is the stop's bucket, from its first tag on.
    fn for_each(&self, mut visit: impl FnMut(&'static AtomicU64)) {
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
    /// Visits the entries of at most `max_buckets` buckets (at least one) from a cursor on, and gives the cursor to go
    /// on with. 0 begins and ends; cursors are below 2^48, what is above is ignored.
    ///
    /// An entry that is in the dictionary from the scan's beginning to its end is visited, whatever changes meanwhile.
    pub fn scan(&self, cursor: u64, max_buckets: usize, visit: &mut dyn FnMut(EntryRef<'_, V>)) -> u64 {
        // SAFETY: a slot in use, and the dictionary is borrowed.
        let mut visit = |slot: u64| visit(unsafe { EntryRef::new(Record::from_slot(slot)) });
        let mut cursor = cursor & CURSOR_MASK;
        if cursor == 0 {
            // Entries never move into the stash or out of it, so that its turn may be any.
            self.table.stash.iter().for_each(|slot| visit(slot.load(Relaxed)));
        }
        for _ in 0..max_buckets.max(1) {
            let Some(stop) = self.table.stop(cursor) else { return 0 };
            stop.for_each(|slot| visit(slot.load(Relaxed)));
            cursor = stop.next;
            if cursor == 0 {
                break;
            }
        }
        cursor
    }

    /// Visits neighbours from a cursor on, wrapping round at the end: `count` of them, or as many as
    /// there are in `max_buckets` buckets; with `expiring` only those that have an expiry, and the
    /// others aren't touched (a segment without any counts as one bucket). Returns the cursor to go
    /// on with. Where there are fewer than asked for, those at the cursor may come twice.
    ///
    /// Any 64 random bits are a cursor too, and the visit is then a sample: the lower 48 bits choose
    /// the first bucket, the upper 16 the entry in it to begin with. (Without that choice the last
    /// entries of each bucket, which are the newest, would be sampled less often than the others.)
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

    /// [`Self::sample`], as far as the slots go: `visit` returns whether it wants more.
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
            let Some(mut stop) = self.table.stop(cursor) else { return 0 };
            if expiring && stop.segment.expiring() == 0 {
                cursor = self.table.cursor(stop.segment, cursor << (64 - CURSOR_BITS), TAGS);
            } else {
                // Where in the bucket the cursor points doesn't matter: it is sampled as a whole.
                stop.from_tag = 0;
                let mut skipped = 0;
                if choice != 0 {
                    let mut entries = 0;
                    stop.for_each(|slot| entries += u64::from(is_wanted(slot.load(Relaxed))));
                    skipped = (entries * core::mem::take(&mut choice)) >> (64 - CURSOR_BITS);
                }
                let mut wants_more = true;
                stop.for_each(|slot| {
                    let word = slot.load(Relaxed);
                    if skipped > 0 && is_wanted(word) {
                        skipped -= 1;
                    } else {
                        wants_more = visit(word);
                    }
                });
                cursor = stop.next;
                if !wants_more {
                    break;
                }
            }
            // Begun at its beginning, a round is over at the end.
            if cursor == 0 && core::mem::replace(&mut is_round, true) | (begin == 0) {
                break;
            }
        }
        cursor
    }

    /// Visits the entries that have an expiry in at most `max_buckets` buckets (at least one) from a cursor on, removes
    /// those for which `visit` says so, handing over what is left of each, and gives the cursor to go on with, as
    /// [`Self::scan`]. A segment without such entries counts as one bucket. Entries without an expiry aren't touched.
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
            let Some(stop) = self.table.stop(cursor) else { return 0 };
            let h = cursor << (64 - CURSOR_BITS);
            if stop.segment.expiring() == 0 {
                cursor = self.table.cursor(stop.segment, h, TAGS);
            } else {
                self.walk_bucket(&stop, h, &mut words, visit, removed);
                cursor = stop.next;
            }
            if cursor == 0 {
                break;
            }
        }
        cursor
    }

    /// The walk's part in one home bucket. Removing moves slots about, so they are noted first; `words` is only kept
    /// from bucket to bucket to save allocations.
    fn walk_bucket(
        &mut self,
        stop: &Stop,
        h: u64,
        words: &mut Vec<u64>,
        visit: &mut dyn FnMut(&EntryRef<'_, V>) -> bool,
        removed: &mut dyn FnMut(Removed<V>),
    ) {
        words.clear();
        stop.for_each(|slot| {
            let word = slot.load(Relaxed);
            if word & EXPIRES_BIT != 0 {
                words.push(word);
            }
        });
        let depth = stop.segment.depth;
        let prefix = if depth == 0 { 0 } else { h >> (64 - depth) << (64 - depth) };
        for &word in &*words {
            // SAFETY: the slot was in use above, and since then only others were removed.
            let entry = unsafe { EntryRef::new(Record::from_slot(word)) };
            if visit(&entry) {
                // As much of the hash as the slot tells. It is enough, since removing makes segments only shallower.
                let h = prefix | tag_of(word) << (64 - TAG_BITS - depth);
                if let Some(slot) = self.table.slot_of(h, word) {
                    let record = self.table.unhook(h, slot);
                    // SAFETY: unhooked from this table of a dictionary of `V` just now.
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
                // The hash doesn't matter for what is in the stash. The last one takes the place, and its turn is next.
                let record = self.table.unhook(0, slot);
                // SAFETY: as in `walk_bucket`.
                removed(unsafe { Removed::new(&mut self.table, record) });
            } else {
                index += 1;
            }
        }
    }

    /// An entry picked at random, each as likely as any other; `random` gives 64 even bits. In a dictionary that is
    /// nearly empty for its size the pick may become uneven, so that it ends.
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
        // All segments of a dictionary without many splits have about as many buckets; a lone one says exactly.
        let lone = if table.depth == 0 { table.segment(0) } else { None };
        let buckets_max = lone.map_or(BUCKETS_MAX as u64, |segment| segment.buckets);
        for _ in 0..TRIES_MAX {
            let bits = random();
            let segment = table.segment(bits)?;
            // A segment of less than full depth is come by as often as it has words in the directory: take it for the
            // first of them only.
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

    /// The first entry at a cursor or after it, going on from the beginning.
    fn next_from(&self, cursor: u64) -> Option<EntryRef<'_, V>> {
        let mut found = None;
        for mut cursor in [cursor, 0] {
            loop {
                let stop = self.table.stop(cursor)?;
                stop.for_each(|slot| found = Some(slot.load(Relaxed)));
                if let Some(slot) = found {
                    // SAFETY: a slot in use, and the dictionary is borrowed.
                    return Some(unsafe { EntryRef::new(Record::from_slot(slot)) });
                }
                cursor = stop.next;
                if cursor == 0 {
                    break;
                }
            }
        }
        None
    }
}
