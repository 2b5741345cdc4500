//! Elements of collections: writes them to replies, reads them as numbers, and picks random ones.

use std::collections::HashSet;

use pantala_base::number::parse_i64;
use pantala_base::random::Random;
use pantala_engine::access::Access;
use pantala_engine::command::{Chance, Propagated};
use pantala_resp::{Args, Reply};
use pantala_types::LongDouble;
use pantala_types::pack::Element;

/// Maximum number of elements that a command like `SRANDMEMBER` returns for a negative count. Such
/// a reply may repeat elements, so the size of the collection doesn't bound the reply. Redis has no
/// such limit and continues until it runs out of memory.
pub(crate) const REPEATED_PICKS_MAX: u64 = 1 << 26;

/// Replies with an element.
#[inline]
pub(crate) fn write(element: Element<'_>, reply: &mut Reply<'_>) {
    match element {
        Element::Int(value) => reply.bulk_integer(value),
        Element::Bytes(bytes) => reply.bulk(bytes),
    }
}

/// Returns the element as an integer, if it has the form of one.
#[inline]
pub(crate) fn integer(element: Element<'_>) -> Option<i64> {
    match element {
        Element::Int(value) => Some(value),
        Element::Bytes(bytes) => parse_i64(bytes),
    }
}

/// Returns the element as a number, if it has the form of one.
pub(crate) fn long_double(element: Element<'_>) -> Option<LongDouble> {
    match element {
        Element::Int(value) => Some(LongDouble::from(value)),
        Element::Bytes(bytes) => LongDouble::parse(bytes),
    }
}

/// Calls `run`, which replies with random elements of the collection at the first key (`args[1]`)
/// and changes nothing. Passes `run` a random number generator.
pub(crate) fn reply_at_random(
    access: &mut Access<'_>,
    args: &Args<'_>,
    reply: &mut Reply<'_>,
    chance: Chance,
    run: impl FnOnce(&mut Access<'_>, &Args<'_>, Random, &mut Reply<'_>),
) -> Option<Propagated> {
    let random = access.random(&access.first_key(args, 1), chance.draw());
    run(access, args, random, reply);
    None
}

/// Returns `count` distinct numbers below `bound`, ascending. Each subset is equally likely.
/// `bound` must be at least `count`.
pub(crate) fn distinct_below(random: &mut Random, count: usize, bound: usize) -> Vec<usize> {
    // This is Floyd's algorithm: if the drawn number was chosen before, `newest` is chosen instead.
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
    fn picks_are_distinct_and_uniform() {
        let mut random = Random::from_seed(11);
        let mut counts = [0u32; 10];
        for _ in 0..10_000 {
            let chosen = distinct_below(&mut random, 3, 10);
            assert!(chosen.len() == 3 && chosen.is_sorted_by(|a, b| a < b));
            chosen.iter().for_each(|&index| counts[index] += 1);
        }
        // The expected count of each number is 3,000, with a standard deviation of 46.
        assert!(counts.iter().all(|&n| (2_700..3_300).contains(&n)), "{counts:?}");
        assert_eq!(distinct_below(&mut random, 5, 5), [0, 1, 2, 3, 4]);
        assert!(distinct_below(&mut random, 0, 5).is_empty());
    }
}
