//! Elements of collections: how they are replied, read as numbers, and picked at random.

use std::collections::HashSet;

use pantala_base::number::parse_i64;
use pantala_base::random::Random;
use pantala_resp::Reply;
use pantala_types::LongDouble;
use pantala_types::pack::Element;

/// Most elements that a negative count may ask for: as many replies can be of a single element, so that nothing else bounds them.
/// Redis has no bound and goes on until its memory is gone.
pub(crate) const REPEATED_PICKS_MAX: u64 = 1 << 26;

/// Replies an element.
#[inline]
pub(crate) fn write(element: Element<'_>, reply: &mut Reply<'_>) {
    match element {
        Element::Int(value) => reply.bulk_integer(value),
        Element::Bytes(bytes) => reply.bulk(bytes),
    }
}

/// The integer that an element is.
#[inline]
pub(crate) fn integer(element: Element<'_>) -> Option<i64> {
    match element {
        Element::Int(value) => Some(value),
        Element::Bytes(bytes) => parse_i64(bytes),
    }
}

/// The number that an element is.
pub(crate) fn long_double(element: Element<'_>) -> Option<LongDouble> {
    match element {
        Element::Int(value) => Some(LongDouble::from(value)),
        Element::Bytes(bytes) => LongDouble::parse(bytes),
    }
}

/// `count` different numbers below `bound` (at least `count`), each set of them equally likely, ascending.
pub(crate) fn distinct_below(random: &mut Random, count: usize, bound: usize) -> Vec<usize> {
    // Floyd's way: a number drawn twice stands for the one that the bound has just let in.
    let mut chosen = HashSet::with_capacity(count);
    for newest in bound - count..bound {
        let drawn = random.below(newest as u64 + 1) as usize;
        if !chosen.insert(drawn) {
            chosen.insert(newest);
        }
    }
    let mut chosen: Vec<usize> = chosen.into_iter().collect();
    chosen.sort_unstable();
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn picks_differ_and_are_even() {
        let mut random = Random::from_seed(11);
        let mut counts = [0u32; 10];
        for _ in 0..10_000 {
            let chosen = distinct_below(&mut random, 3, 10);
            assert!(chosen.len() == 3 && chosen.is_sorted_by(|a, b| a < b));
            chosen.iter().for_each(|&index| counts[index] += 1);
        }
        // 3,000 each, deviation 46.
        assert!(counts.iter().all(|&n| (2_700..3_300).contains(&n)), "{counts:?}");
        assert_eq!(distinct_below(&mut random, 5, 5), [0, 1, 2, 3, 4]);
        assert!(distinct_below(&mut random, 0, 5).is_empty());
    }
}
