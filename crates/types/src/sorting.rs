//! Sorts elements for `SORT` and the geo searches, and leaves equal elements in the same order as
//! Redis.
//!
//! | function | Redis uses | equal elements |
//! | --- | --- | --- |
//! | [`sort_all`] | glibc's `qsort`, a merge sort | keep their order |
//! | [`sort_part`] | a quicksort of a part | end up in the order that this quicksort yields |
//!
//! [`sort_part`] is the quicksort by Bentley and McIlroy ("Engineering a sort function", Software:
//! Practice and Experience 23, 1993), but skips the halves that aren't needed. Both functions make
//! exactly the comparisons that Redis makes. Every element therefore gets the same index as in
//! Redis, even if a NaN distance makes the order inconsistent.

use std::cmp::Ordering;
use std::ops::Range;

/// Shorter arrays are sorted by insertion. In an array of exactly this length, the middle element
/// is the pivot.
const INSERTION_LEN: usize = 7;
/// Maximum length for which the pivot is the median of three elements. For longer arrays, the pivot
/// is the median of nine.
const PIVOT_OF_THREE_LEN_MAX: usize = 40;

/// Sorts all elements. Equal elements keep their order.
pub fn sort_all<T: Copy>(items: &mut [T], mut compare: impl FnMut(&T, &T) -> Ordering) {
    merge_sort(items, &mut Vec::with_capacity(items.len()), &mut compare);
}

/// Sorts both halves and merges them. `merged` is scratch space for all elements.
fn merge_sort<T: Copy>(items: &mut [T], merged: &mut Vec<T>, compare: &mut impl FnMut(&T, &T) -> Ordering) {
    if items.len() < 2 {
        return;
    }
    let (one, two) = items.split_at_mut(items.len() / 2);
    merge_sort(one, merged, compare);
    merge_sort(two, merged, compare);
    merged.clear();
    let (mut left, mut right) = (&*one, &*two);
    while let ([first, left_rest @ ..], [second, right_rest @ ..]) = (left, right) {
        if compare(first, second).is_gt() {
            merged.push(*second);
            right = right_rest;
        } else {
            merged.push(*first);
            left = left_rest;
        }
    }
    // The rest of the second half is in place already.
    merged.extend_from_slice(left);
    items[..merged.len()].copy_from_slice(merged);
}

/// Moves to the indexes `wanted` the elements that a full sort would place there, in order.
/// Elements that belong before these indexes end up before them, in an unspecified order, and
/// elements that belong after them end up after them.
pub fn sort_part<T>(items: &mut [T], wanted: Range<usize>, mut compare: impl FnMut(&T, &T) -> Ordering) {
    // An explicit stack is used instead of recursion, because clients choose the elements and so
    // could make the recursion deep.
    let mut segments = Vec::new();
    segments.push(0..items.len());
    while let Some(segment) = segments.pop() {
        let part = &mut items[segment.clone()];
        if part.len() < INSERTION_LEN {
            insertion_sort(part, &mut compare);
            continue;
        }
        let (less_len, greater_len) = partition(part, &mut compare);
        let halves = [segment.start..segment.start + less_len, segment.end - greater_len..segment.end];
        let is_wanted = |half: &Range<usize>| half.start < wanted.end && wanted.start < half.end;
        segments.extend(halves.into_iter().filter(|half| half.len() > 1 && is_wanted(half)));
    }
}

fn insertion_sort<T>(items: &mut [T], compare: &mut impl FnMut(&T, &T) -> Ordering) {
    for sorted_len in 1..items.len() {
        let mut at = sorted_len;
        while at > 0 && compare(&items[at - 1], &items[at]).is_gt() {
            items.swap(at - 1, at);
            at -= 1;
        }
    }
}

/// Moves elements less than the pivot to the front and greater ones to the end. Returns the number
/// of lesser and of greater elements.
fn partition<T>(items: &mut [T], compare: &mut impl FnMut(&T, &T) -> Ordering) -> (usize, usize) {
    let (len, last) = (items.len(), items.len() - 1);
    items.swap(0, pivot(items, compare));
    // From front to back, the array holds elements equal to the pivot, lesser ones, unvisited ones
    // (from `low` to `high`), greater ones, and again equal ones.
    let (mut equal_low, mut low, mut high, mut equal_high) = (1, 1, last, last);
    loop {
        while low <= high {
            match compare(&items[low], &items[0]) {
                Ordering::Greater => break,
                Ordering::Equal => {
                    items.swap(equal_low, low);
                    equal_low += 1;
                }
                Ordering::Less => {}
            }
            low += 1;
        }
        while low <= high {
            match compare(&items[high], &items[0]) {
                Ordering::Less => break,
                Ordering::Equal => {
                    items.swap(high, equal_high);
                    equal_high -= 1;
                }
                Ordering::Greater => {}
            }
            high -= 1;
        }
        if low > high {
            break;
        }
        items.swap(low, high);
        low += 1;
        high -= 1;
    }
    // Moves the equal elements from both ends to the middle.
    let (less_len, greater_len) = (low - equal_low, equal_high - high);
    let moved = equal_low.min(less_len);
    swap_blocks(items, 0, low - moved, moved);
    let moved = greater_len.min(last - equal_high);
    swap_blocks(items, low, len - moved, moved);
    (less_len, greater_len)
}

/// Swaps `len` elements at one index with those at another.
fn swap_blocks<T>(items: &mut [T], one: usize, two: usize, len: usize) {
    for offset in 0..len {
        items.swap(one + offset, two + offset);
    }
}

/// Returns the index of the pivot.
fn pivot<T>(items: &[T], compare: &mut impl FnMut(&T, &T) -> Ordering) -> usize {
    let len = items.len();
    let (mut first, mut middle, mut last) = (0, len / 2, len - 1);
    if len == INSERTION_LEN {
        return middle;
    }
    let mut median = |one: usize, two: usize, three: usize| {
        let mut compare = |a: usize, b: usize| compare(&items[a], &items[b]);
        // The comparisons are made in the same order as in Redis, because this order decides which
        // of several equal elements becomes the pivot.
        if compare(one, two).is_lt() {
            if compare(two, three).is_lt() {
                two
            } else if compare(one, three).is_lt() {
                three
            } else {
                one
            }
        } else if compare(two, three).is_gt() {
            two
        } else if compare(one, three).is_lt() {
            one
        } else {
            three
        }
    };
    if len > PIVOT_OF_THREE_LEN_MAX {
        let step = len / 8;
        first = median(first, first + step, first + 2 * step);
        middle = median(middle - step, middle, middle + step);
        last = median(last - 2 * step, last - step, last);
    }
    median(first, middle, last)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Random;

    /// Returns numbers, many of them equal, each with its index.
    fn numbers(random: &mut Random) -> Vec<(u64, usize)> {
        let (len, values) = (random.below(300), 1 + random.below(40));
        (0..len as usize).map(|place| (random.below(values), place)).collect()
    }

    #[test]
    fn sorted_and_stable() {
        let mut random = Random::with_printed_seed("sorting");
        for _ in 0..500 {
            let mut items = numbers(&mut random);
            let mut model = items.clone();
            model.sort_by_key(|(number, _)| *number);
            sort_all(&mut items, |one, two| one.0.cmp(&two.0));
            assert_eq!(items, model);
        }
    }

    #[test]
    fn a_sorted_part_equals_that_of_a_full_sort() {
        let mut random = Random::with_printed_seed("sorting a part");
        for _ in 0..2_000 {
            let mut items = numbers(&mut random);
            let mut sorted = items.clone();
            sorted.sort_by_key(|(number, _)| *number);
            let start = random.below(items.len() as u64 + 1) as usize;
            let end = start + random.below((items.len() - start) as u64 + 1) as usize;
            sort_part(&mut items, start..end, |one, two| one.0.cmp(&two.0));
            let values = |items: &[(u64, usize)]| items.iter().map(|(number, _)| *number).collect::<Vec<_>>();
            assert_eq!(values(&items[start..end]), values(&sorted[start..end]));
            items.sort_by_key(|(_, place)| *place);
            assert!(items.iter().enumerate().all(|(place, item)| item.1 == place), "an element is lost");
        }
    }

    /// With an inconsistent order, both functions still terminate and keep all elements.
    #[test]
    fn inconsistent_comparisons_terminate() {
        let mut random = Random::with_printed_seed("contradictions");
        for _ in 0..2_000 {
            let mut items: Vec<usize> = (0..random.below(200) as usize).collect();
            let wanted = 0..items.len() / 3;
            let mut any =
                |_: &usize, _: &usize| [Ordering::Less, Ordering::Equal, Ordering::Greater][random.below(3) as usize];
            sort_part(&mut items, wanted, &mut any);
            sort_all(&mut items, &mut any);
            items.sort_unstable();
            assert!(items.iter().enumerate().all(|(number, item)| number == *item));
        }
    }
}
