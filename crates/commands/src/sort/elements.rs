//! The elements to sort, and their order.

use std::cmp::Ordering;

use pantala_engine::access::{Access, Key};
use pantala_engine::db::Holds;
use pantala_types::pack::Element;
use pantala_types::sorting::sort_part;
use pantala_types::{List, Set, SortedSet, double};

use super::options::Options;
use super::pattern::look_up;
use crate::arguments::c_string;
use crate::errors;
use crate::strings::StringRef;

/// The type of the value that holds the elements.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    /// There is no such key.
    Missing,
    /// A list or a sorted set.
    Ordered,
    Set,
}

impl Source {
    /// Returns the type of a key's value. Fails if the value can't be sorted. The lookup counts as
    /// a read.
    pub(super) fn of(access: &mut Access<'_>, key: &Key<'_>) -> Result<Self, &'static str> {
        let mut db = access.db(key);
        let Some(entry) = db.read(key) else { return Ok(Source::Missing) };
        match entry.held().type_name() {
            "list" | "zset" => Ok(Source::Ordered),
            "set" => Ok(Source::Set),
            _ => Err(errors::WRONG_TYPE),
        }
    }
}

/// The error for an element that isn't a number.
pub(super) struct NotAScore;

/// Byte strings, all in one allocation.
#[derive(Default)]
pub(super) struct Elements {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Elements {
    /// Copies the elements of a key in their own order. If [`Options::unsorted`] is true, copies
    /// only the elements that `LIMIT` selects, in the order of the reply.
    pub(super) fn copy_of(access: &mut Access<'_>, key: &Key<'_>, options: &Options<'_>) -> Self {
        let mut elements = Elements::default();
        let mut db = access.db(key);
        let Some(entry) = db.find(key) else { return elements };
        let held = entry.held();
        if let Some(list) = held.view::<List>() {
            let (start, count) = elements.select(list.len(), options);
            let backward = options.unsorted && options.descending;
            let start = if backward { list.len().saturating_sub(start + 1) } else { start };
            list.visit_count(start, backward, count, |element| elements.push(element));
        } else if let Some(set) = held.view::<Set>() {
            let (start, mut count) = elements.select(set.len(), options);
            let mut index = 0;
            // A set has no order, so `descending` doesn't matter.
            set.all(|element| {
                if index >= start && count > 0 {
                    elements.push(element);
                    count -= 1;
                }
                index += 1;
                count > 0
            });
        } else if let Some(set) = held.view::<SortedSet>() {
            let (start, count) = elements.select(set.len(), options);
            let reverse = options.unsorted && options.descending;
            let ranks = if reverse { set.len() - start - count..set.len() - start } else { start..start + count };
            set.range(ranks, reverse).for_each(|(member, _)| elements.push(member));
        }
        elements
    }

    /// Returns the index of the first element to copy and the number of elements to copy. `len` is
    /// the number of all elements. Reserves space for the copies.
    fn select(&mut self, len: usize, options: &Options<'_>) -> (usize, usize) {
        let range = if options.unsorted { options.range(len) } else { 0..len };
        self.ends.reserve(range.len());
        (range.start, range.len())
    }

    fn push(&mut self, element: Element<'_>) {
        element.with_bytes(|bytes| self.bytes.extend_from_slice(bytes));
        self.ends.push(self.bytes.len());
    }

    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    /// Returns the element with this number.
    pub(super) fn get(&self, number: u32) -> &[u8] {
        let number = number as usize;
        let start = number.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.bytes[start..self.ends[number]]
    }

    /// Returns the numbers of the elements that `LIMIT` selects, in the order of the reply.
    pub(super) fn order(&self, access: &mut Access<'_>, options: &Options<'_>) -> Result<Vec<u32>, NotAScore> {
        // A collection has fewer than 2^32 elements.
        let mut order: Vec<u32> = (0..self.len() as u32).collect();
        if options.unsorted {
            return Ok(order);
        }
        let range = options.range(order.len());
        if !options.alpha {
            let scores = self.scores(access, options)?;
            // Elements with equal scores are ordered by their bytes, so that the order is unique.
            sort_by(&mut order, options.descending, |one, two| {
                let by_score = scores[one as usize].partial_cmp(&scores[two as usize]).unwrap_or(Ordering::Equal);
                by_score.then_with(|| self.get(one).cmp(self.get(two)))
            });
        } else if options.by.is_some() {
            let weights = self.weights(access, options);
            let compare = |one: u32, two: u32| {
                let weight = |number: u32| weights.number_of[number as usize].map(|number| weights.texts.get(number));
                match (weight(one), weight(two)) {
                    (Some(one), Some(two)) => compare(one, two, options),
                    (one, two) => one.is_some().cmp(&two.is_some()),
                }
            };
            if range == (0..order.len()) {
                sort_by(&mut order, options.descending, compare);
            } else {
                // Clients see the order of elements with equal weights, so `sort_part` leaves these
                // in the same order as Redis does.
                sort_part(&mut order, range.clone(), |&one, &two| directed(compare(one, two), options.descending));
            }
        } else {
            sort_by(&mut order, options.descending, |one, two| compare(self.get(one), self.get(two), options));
        }
        order.truncate(range.end);
        order.drain(..range.start);
        Ok(order)
    }

    /// Returns the score of every element.
    fn scores(&self, access: &mut Access<'_>, options: &Options<'_>) -> Result<Vec<f64>, NotAScore> {
        let mut scores = Vec::with_capacity(self.len());
        // Looks up the weights of all elements, even after an element that isn't a number, because
        // the statistics count these lookups.
        let mut all_numbers = true;
        for number in 0..self.len() as u32 {
            let element = self.get(number);
            let score = match &options.by {
                // An element without a weight has score 0.
                Some(by) => look_up(access, by, element, score_of).unwrap_or(Some(0.0)),
                None => score_of(StringRef::Bytes(element)),
            };
            all_numbers &= score.is_some();
            scores.push(score.unwrap_or(0.0));
        }
        if all_numbers { Ok(scores) } else { Err(NotAScore) }
    }

    /// Returns the weight of each element: the text by which it is sorted. An element may have
    /// none.
    fn weights(&self, access: &mut Access<'_>, options: &Options<'_>) -> Weights {
        let mut weights = Weights::default();
        for number in 0..self.len() as u32 {
            let found = options.by.as_ref().and_then(|by| {
                look_up(access, by, self.get(number), |text| {
                    weights.texts.push(match text {
                        StringRef::Int(value) => Element::Int(value),
                        StringRef::Bytes(bytes) => Element::Bytes(bytes),
                    });
                    weights.texts.len() as u32 - 1
                })
            });
            weights.number_of.push(found);
        }
        weights
    }
}

#[derive(Default)]
struct Weights {
    texts: Elements,
    number_of: Vec<Option<u32>>,
}

/// Sorts stably: equal elements keep their order, even if `descending` is true.
fn sort_by(order: &mut [u32], descending: bool, compare: impl Fn(u32, u32) -> Ordering) {
    order.sort_by(|&one, &two| directed(compare(one, two), descending));
}

fn directed(ordering: Ordering, descending: bool) -> Ordering {
    if descending { ordering.reverse() } else { ordering }
}

/// Compares two elements or weights. With the option `STORE`, compares all bytes, as in Redis.
/// Without `STORE`, compares the bytes up to the first zero byte; Redis compares this part by the
/// rules of the locale.
fn compare(one: &[u8], two: &[u8], options: &Options<'_>) -> Ordering {
    if options.store.is_some() { one.cmp(two) } else { c_string(one).cmp(c_string(two)) }
}

/// Parses a text up to its first zero byte, as C's `strtod` does. Skips leading whitespace, returns
/// 0 for an empty text, and rejects underflow.
fn score_of(text: StringRef<'_>) -> Option<f64> {
    let bytes = match text {
        StringRef::Int(value) => return Some(value as f64),
        StringRef::Bytes(bytes) => c_string(bytes),
    };
    if bytes.is_empty() {
        return Some(0.0);
    }
    let start = bytes.iter().position(|byte| !matches!(byte, b' ' | b'\t'..=b'\r')).unwrap_or(bytes.len());
    double::parse_without_underflow(&bytes[start..])
}
