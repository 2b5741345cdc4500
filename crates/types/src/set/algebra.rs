//! Intersections, unions and differences of sets. A missing key is `None`, which counts as an empty
//! set.
//!
//! A function `each_…` passes the members to a closure, for a reply. The other functions collect
//! the members in a new set, for a STORE command.

use super::{Set, SetView, find};
use crate::collection::Collection;
use crate::member::MemberKey;
use crate::pack::Element;

/// The sets to combine, in the order of their keys.
type Views<'v, 'a> = &'v [Option<SetView<'a>>];

/// A set under construction, for a STORE command or a temporary result. The set is an intset at
/// first, and is converted when a member requires another form.
pub struct SetBuilder {
    set: Set,
    intset_entries_max: usize,
    room: Vec<u8>,
}

impl SetBuilder {
    fn new(intset_entries_max: usize) -> Self {
        SetBuilder { set: Set::empty(), intset_entries_max, room: Vec::new() }
    }

    fn add(&mut self, element: Element<'_>) -> bool {
        self.set.add_element(element, self.intset_entries_max, &mut self.room)
    }
}

/// Maximum number of integers in a temporary intset: the default of `set-max-intset-entries`.
/// Larger temporary results are tables, because each addition to an intset moves half of its
/// integers on average.
const TEMPORARY_INTSET_MAX: usize = 512;

/// Visits at most `limit` members that are in all sets. A `limit` of 0 counts as 1. Returns the
/// number of visited members. Looks up each member of the smallest set in the other sets.
pub fn each_intersection(views: Views<'_, '_>, limit: usize, mut visit: impl FnMut(Element<'_>)) -> usize {
    let Some(mut sets) = views.iter().copied().collect::<Option<Vec<_>>>() else { return 0 };
    sets.sort_by_key(|set| set.len());
    let Some((smallest, others)) = sets.split_first() else { return 0 };
    let (mut found, mut room) = (0, Vec::new());
    smallest.all(|element| {
        if others.iter().all(|other| other.contains_element(element, &mut room)) {
            found += 1;
            visit(element);
        }
        found < limit
    });
    found
}

/// Returns the intersection of all sets.
pub fn intersection(views: Views<'_, '_>, intset_entries_max: usize) -> Set {
    let mut built = SetBuilder::new(intset_entries_max);
    each_intersection(views, usize::MAX, |element| {
        built.add(element);
    });
    built.set
}

/// Returns whether the union fits in a table even if the sets are disjoint.
pub fn union_has_room(views: Views<'_, '_>) -> bool {
    let total = views.iter().flatten().fold(0usize, |total, set| total.saturating_add(set.len()));
    crate::table::has_room(total, 0)
}

/// Visits each member of the union once. Returns the number of members.
pub fn each_union(views: Views<'_, '_>, mut visit: impl FnMut(Element<'_>)) -> usize {
    // A single set is its own union. The union of several sets is collected first, so that no
    // member is visited twice.
    let mut sets = views.iter().flatten();
    if let (Some(only), None) = (sets.next(), sets.next()) {
        only.for_each(visit);
        return only.len();
    }
    let all = union(views, TEMPORARY_INTSET_MAX);
    all.view().for_each(&mut visit);
    all.view().len()
}

/// Returns the union of all sets.
pub fn union(views: Views<'_, '_>, intset_entries_max: usize) -> Set {
    let mut sets: Vec<SetView<'_>> = views.iter().flatten().copied().collect();
    sets.sort_by_key(|set| std::cmp::Reverse(set.len()));
    let mut built = SetBuilder::new(intset_entries_max);
    let Some((largest, others)) = sets.split_first() else { return built.set };
    built.set = match largest {
        // The table is copied, unless the result could be an intset.
        SetView::Table(table) if table.len() > intset_entries_max || has_text(*largest) => {
            Set::Table(Box::new((*table).clone()))
        }
        _ => {
            largest.for_each(|element| {
                built.add(element);
            });
            built.set
        }
    };
    for other in others {
        match (&mut built.set, other) {
            (Set::Table(result), SetView::Table(table)) if result.seed() == table.seed() => {
                // Reuses the hashes that the table stores.
                for (hash, member) in table.iter_hashed() {
                    if result.find(hash, |found| found == member).is_none() {
                        result.insert(hash, member.clone());
                    }
                }
            }
            _ => other.for_each(|element| {
                built.set.add_element(element, intset_entries_max, &mut built.room);
            }),
        }
    }
    built.set
}

/// Returns whether the set has a member that isn't an integer.
fn has_text(set: SetView<'_>) -> bool {
    !set.all(|element| match element {
        Element::Int(_) => true,
        Element::Bytes(bytes) => crate::parse_i64(bytes).is_some(),
    })
}

/// Visits the members of the first set that no other set has. Returns the number of these members.
pub fn each_difference(views: Views<'_, '_>, mut visit: impl FnMut(Element<'_>)) -> usize {
    if let Some(others) = sets_to_search(views) {
        let (mut found, mut room) = (0, Vec::new());
        if let Some(first) = views.first().copied().flatten() {
            first.for_each(|element| {
                if !others.iter().any(|other| other.contains_element(element, &mut room)) {
                    found += 1;
                    visit(element);
                }
            });
        }
        return found;
    }
    let rest = difference(views, TEMPORARY_INTSET_MAX);
    rest.view().for_each(&mut visit);
    rest.view().len()
}

/// Returns the members of the first set that no other set has.
pub fn difference(views: Views<'_, '_>, intset_entries_max: usize) -> Set {
    let mut built = SetBuilder::new(intset_entries_max);
    if sets_to_search(views).is_some() {
        each_difference(views, |element| {
            built.add(element);
        });
        return built.set;
    }
    let mut sets = views.iter().copied();
    let Some(Some(first)) = sets.next() else { return built.set };
    first.for_each(|element| {
        built.add(element);
    });
    for other in sets.flatten() {
        other.for_each(|element| match &mut built.set {
            Set::Table(table) => {
                if let Some(index) = find(table, MemberKey::of_element(element, &mut built.room)) {
                    table.remove(index);
                }
            }
            set => {
                element.with_bytes(|member| set.remove(member));
            }
        });
        if built.set.is_empty() {
            break;
        }
    }
    built.set
}

/// Chooses the cheaper of two ways to compute a difference:
///
/// - Search the other sets for each member of the first set. For this way, returns the other sets,
///   largest first.
/// - Remove all members of the other sets from a copy of the first set. For this way, returns
///   `None`.
///
/// The choice is made as in Redis, because the encoding of a stored difference (`OBJECT ENCODING`)
/// depends on it.
fn sets_to_search<'a>(views: Views<'_, 'a>) -> Option<Vec<SetView<'a>>> {
    let Some(Some(first)) = views.first() else { return Some(Vec::new()) };
    let there = views.iter().flatten();
    let search_work = first.len().saturating_mul(there.clone().count()) / 2;
    let removal_work: usize = there.map(|set| set.len()).sum();
    if search_work > removal_work {
        return None;
    }
    let mut others: Vec<_> = views[1..].iter().flatten().copied().collect();
    others.sort_by_key(|set| std::cmp::Reverse(set.len()));
    Some(others)
}
