//! A packed sorted set: member, score, member, score …, in order.
//!
//! An integral score is an integer entry, as in Redis's listpack. Any other score is a string
//! entry: the bytes of an `f32` if the `f32` equals the score, otherwise those of an `f64`. Redis's
//! listpack stores the score as a text of up to 24 characters instead.

use std::cmp::Ordering;

use crate::pack::{Element, OneWay, Pack, PackRef};

/// Maximum magnitude of a score stored as an integer: Redis's limit.
const INTEGER_MAX: f64 = 4_611_686_018_427_387_904.0;

/// Returns the integer that is stored for a score, or `None` if the score isn't stored as an
/// integer. The score -0 becomes 0, as in Redis's listpack.
pub(super) fn integer_of(score: f64) -> Option<i64> {
    (score.abs() <= INTEGER_MAX && score.trunc() == score).then_some(score as i64)
}

/// Returns the score of an entry.
#[inline]
pub(super) fn score_of(element: Element<'_>) -> f64 {
    match element {
        Element::Int(score) => score as f64,
        Element::Bytes(bytes) => match (bytes.try_into(), bytes.try_into()) {
            (Ok(single), _) => f64::from(f32::from_le_bytes(single)),
            (_, Ok(double)) => f64::from_le_bytes(double),
            // Only these two lengths are ever written.
            _ => 0.0,
        },
    }
}

fn insert_score(pack: &mut Pack<OneWay>, at: usize, score: f64) {
    let single = score as f32;
    if let Some(integer) = integer_of(score) {
        pack.insert_int(at, integer);
    } else if f64::from(single) == score {
        pack.insert_bytes(at, &single.to_le_bytes());
    } else {
        pack.insert_bytes(at, &score.to_le_bytes());
    }
}

/// Returns the number of members.
#[inline]
pub(super) fn len(pack: PackRef<'_, OneWay>) -> usize {
    pack.len() / 2
}

/// Returns the position of a member.
#[inline]
pub(super) fn find(pack: PackRef<'_, OneWay>, member: &[u8]) -> Option<usize> {
    pack.find(member, pack.first(), 1)
}

/// Returns the score of the member at a position.
#[inline]
pub(super) fn score_at(pack: PackRef<'_, OneWay>, at: usize) -> f64 {
    score_of(pack.get(pack.next(at)))
}

/// Iterates over members and scores.
pub(super) fn pairs(pack: PackRef<'_, OneWay>) -> impl Iterator<Item = (Element<'_>, f64)> {
    let mut at = pack.first();
    std::iter::from_fn(move || {
        (at < pack.end()).then(|| {
            let member = pack.get(at);
            let score_at = pack.next(at);
            at = pack.next(score_at);
            (member, score_of(pack.get(score_at)))
        })
    })
}

/// Adds a new member.
pub(super) fn insert(pack: &mut Pack<OneWay>, member: &[u8], score: f64) {
    let view = pack.as_ref();
    let mut at = view.first();
    while at < view.end() {
        let score_at = view.next(at);
        let is_before = match score_of(view.get(score_at)).partial_cmp(&score) {
            Some(Ordering::Less) => true,
            Some(Ordering::Greater) | None => false,
            Some(Ordering::Equal) => view.get(at).with_bytes(|other| other < member),
        };
        if !is_before {
            break;
        }
        at = view.next(score_at);
    }
    insert_at(pack, at, member, score);
}

/// Adds a new member that belongs after all others.
pub(super) fn push(pack: &mut Pack<OneWay>, member: &[u8], score: f64) {
    let end = pack.as_ref().end();
    insert_at(pack, end, member, score);
}

fn insert_at(pack: &mut Pack<OneWay>, at: usize, member: &[u8], score: f64) {
    pack.insert(at, member);
    let score_at = pack.as_ref().next(at);
    insert_score(pack, score_at, score);
}

/// Removes `count` members, starting at a rank. The members must exist.
pub(super) fn remove(pack: &mut Pack<OneWay>, rank: usize, count: usize) {
    if let Some(at) = pack.as_ref().nth(rank * 2) {
        pack.remove(at, count * 2);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_round_trip() {
        let scores = [
            0.0,
            1.0,
            -1.0,
            1.5,
            -0.1,
            1e17,
            1e18,
            1e19,
            INTEGER_MAX,
            -INTEGER_MAX,
            INTEGER_MAX * 2.0,
            f64::INFINITY,
            f64::NEG_INFINITY,
            f64::MAX,
            5e-324,
            f64::from(f32::MAX),
            // The bytes of these scores look like digits, but must not become integers.
            f64::from(f32::from_le_bytes(*b"1234")),
            f64::from_le_bytes(*b"12345678"),
        ];
        for score in scores {
            let mut pack = Pack::new();
            insert(&mut pack, b"m", score);
            assert_eq!(score_at(pack.as_ref(), 2).to_bits(), score.to_bits(), "{score:e}");
        }
        let mut pack = Pack::new();
        insert(&mut pack, b"m", -0.0);
        assert!(score_at(pack.as_ref(), 2).is_sign_positive(), "as in a listpack");
    }

    #[test]
    fn members_pushed_in_order_equal_inserted_ones() {
        let (mut pushed, mut inserted) = (Pack::new(), Pack::new());
        for number in 0..300 {
            let (member, score) = (format!("m{number:03}"), f64::from(number / 2) + 0.5);
            push(&mut pushed, member.as_bytes(), score);
            insert(&mut inserted, member.as_bytes(), score);
        }
        assert_eq!(pushed, inserted);
    }

    #[test]
    fn pairs_are_in_order() {
        let mut pack = Pack::new();
        for (member, score) in [("b", 1.0), ("a", 1.0), ("10", 1.0), ("z", -5.5), ("y", f64::INFINITY), ("", 1.0)] {
            insert(&mut pack, member.as_bytes(), score);
        }
        let members: Vec<Vec<u8>> = pairs(pack.as_ref()).map(|(member, _)| member.to_vec()).collect();
        assert_eq!(members, [&b"z"[..], b"", b"10", b"a", b"b", b"y"]);
        assert_eq!(find(pack.as_ref(), b"10"), pack.as_ref().nth(4));
        remove(&mut pack, 1, 3);
        assert_eq!(len(pack.as_ref()), 3);
        assert_eq!(pairs(pack.as_ref()).map(|(_, score)| score).collect::<Vec<_>>(), [-5.5, 1.0, f64::INFINITY]);
    }
}
