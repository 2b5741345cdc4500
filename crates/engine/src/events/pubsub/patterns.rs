//! The subscribed patterns. They are found by name, and iterated in the order in which they were
//! added.
//!
//! A publisher iterates over all patterns for each message. Adding or removing a pattern holds a
//! lock that all publishers need. So both operations must be fast: they take logarithmic time, even
//! if clients add and remove a hundred thousand patterns one by one.

use std::collections::{BTreeMap, HashMap};

use super::{Counts, Name};

/// The subscribed patterns, each with its number of subscribers by worker.
#[derive(Default)]
pub(super) struct Patterns {
    /// Patterns by number.
    known: BTreeMap<u64, (Name, Counts)>,
    numbers: HashMap<Name, u64>,
    /// The last number that was assigned. Numbers are not reused.
    next_number: u64,
}

impl Patterns {
    /// Adds a subscriber of a worker to a pattern.
    pub(super) fn add(&mut self, name: &Name, worker: usize, workers: usize) {
        let number = *self.numbers.entry(Name::clone(name)).or_insert_with(|| {
            self.next_number += 1;
            self.next_number
        });
        let (_, counts) =
            self.known.entry(number).or_insert_with(|| (Name::clone(name), vec![0; workers].into_boxed_slice()));
        counts[worker] += 1;
    }

    /// Removes a subscriber of a worker from a pattern.
    pub(super) fn remove(&mut self, name: &[u8], worker: usize) {
        let Some(number) = self.numbers.get(name) else { return };
        let Some((_, counts)) = self.known.get_mut(number) else { return };
        counts[worker] -= 1;
        if counts.iter().all(|count| *count == 0) {
            self.known.remove(number);
            self.numbers.remove(name);
        }
    }

    /// Returns all patterns with their numbers of subscribers by worker.
    pub(super) fn iter(&self) -> impl Iterator<Item = &(Name, Counts)> {
        self.known.values()
    }

    /// Returns the number of patterns.
    pub(super) fn len(&self) -> usize {
        self.known.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(patterns: &Patterns) -> Vec<(&str, &[u32])> {
        let text = |name| std::str::from_utf8(name).expect("ASCII");
        patterns.iter().map(|(name, counts)| (text(name), &**counts)).collect()
    }

    #[test]
    fn patterns_keep_their_order_while_they_have_subscribers() {
        let mut patterns = Patterns::default();
        let name = |name: &str| Name::from(name.as_bytes());
        for (added, worker) in [("b", 0), ("a", 1), ("b", 1), ("c", 0)] {
            patterns.add(&name(added), worker, 2);
        }
        assert_eq!(all(&patterns), [("b", &[1, 1][..]), ("a", &[0, 1]), ("c", &[1, 0])]);
        for (removed, worker) in [("b", 0), ("a", 1), ("nosuch", 0)] {
            patterns.remove(removed.as_bytes(), worker);
        }
        assert_eq!(all(&patterns), [("b", &[0, 1][..]), ("c", &[1, 0])]);
        patterns.remove(b"b", 1);
        patterns.add(&name("b"), 0, 2);
        assert_eq!(all(&patterns), [("c", &[1, 0][..]), ("b", &[1, 0])]);
        assert_eq!((patterns.len(), patterns.numbers.len()), (2, 2));
    }
}
