//! How a dictionary's entries are distributed over its buckets (`DEBUG HTSTATS`).

use core::ops::AddAssign;

use crate::bucket::SLOTS;

/// Statistics of the tables of one or more dictionaries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Occupancy {
    /// Entries.
    pub entries: usize,
    /// Entries with an expiry.
    pub expiring: usize,
    /// Words of the directory.
    pub directory_words: usize,
    /// Segments.
    pub segments: usize,
    /// `buckets[n]` is the number of buckets with `n` slots in use.
    pub buckets: [usize; SLOTS + 1],
    /// Entries in the stash.
    pub stashed: usize,
}

impl Occupancy {
    /// Returns the number of slots of all buckets.
    pub fn slots(&self) -> usize {
        self.buckets.iter().sum::<usize>() * SLOTS
    }
}

impl AddAssign for Occupancy {
    fn add_assign(&mut self, other: Self) {
        self.entries += other.entries;
        self.expiring += other.expiring;
        self.directory_words += other.directory_words;
        self.segments += other.segments;
        self.buckets.iter_mut().zip(other.buckets).for_each(|(buckets, more)| *buckets += more);
        self.stashed += other.stashed;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Dict, Entry, NewPayload, hash_key};

    #[test]
    fn all_entries_are_found_in_buckets() {
        const KEYS: usize = 5_000;
        let mut dict: Dict<u8> = Dict::new(1);
        assert_eq!(
            dict.occupancy(),
            Occupancy { directory_words: dict.occupancy().directory_words, ..Occupancy::default() }
        );
        for number in 0..KEYS {
            let key = number.to_string();
            match dict.entry(hash_key(1, key.as_bytes()), key.as_bytes()) {
                Entry::Vacant(vacant) => drop(vacant.insert(NewPayload::Int(1), 0, 0, None)),
                Entry::Occupied(_) => unreachable!("each key is new"),
            }
        }
        let found = dict.occupancy();
        let in_buckets: usize = found.buckets.iter().enumerate().map(|(used, buckets)| used * buckets).sum();
        assert_eq!((found.entries, in_buckets + found.stashed, found.expiring), (KEYS, KEYS, 0));
        assert!(found.slots() >= KEYS && found.segments > 1 && found.directory_words >= found.segments);
        let mut twice = found;
        twice += found;
        assert_eq!((twice.entries, twice.slots()), (2 * KEYS, 2 * found.slots()));
    }
}
