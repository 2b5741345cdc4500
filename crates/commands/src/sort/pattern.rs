//! Patterns of `BY` and `GET`. For each element, a pattern refers to a key or to a field of a hash.

use pantala_engine::access::{Access, Key};
use pantala_engine::db::Holds;
use pantala_types::Hash;
use pantala_types::pack::Element;

use crate::arguments::c_string;
use crate::strings::StringRef;

/// A pattern. `#` refers to the element itself. In any other pattern the element replaces the first
/// `*`, and the part after `->` names a field of a hash. A pattern without `*` refers to nothing.
#[derive(Clone, Copy)]
pub(super) enum Pattern<'a> {
    Itself,
    Nothing,
    Key { before: &'a [u8], after: &'a [u8], field: Option<&'a [u8]> },
}

impl<'a> Pattern<'a> {
    pub(super) fn new(pattern: &'a [u8]) -> Self {
        // Redis searches for `*` and `->` only before the pattern's first zero byte. But the names
        // that it builds also contain the bytes after that zero byte.
        let seen = c_string(pattern);
        if seen == b"#" {
            return Pattern::Itself;
        }
        let Some(star) = seen.iter().position(|&byte| byte == b'*') else { return Pattern::Nothing };
        let (before, after) = (&pattern[..star], &pattern[star + 1..]);
        let arrow = seen[star + 1..].windows(2).position(|pair| pair == b"->");
        // An arrow at the very end of the pattern names no field, so it belongs to the key.
        match arrow.filter(|arrow| star + 1 + arrow + 2 < seen.len()) {
            Some(arrow) => Pattern::Key { before, after: &after[..arrow], field: Some(&after[arrow + 2..]) },
            None => Pattern::Key { before, after, field: None },
        }
    }

    /// Returns whether the pattern refers to keys, which may be in any shard.
    pub(super) fn names_keys(&self) -> bool {
        matches!(self, Pattern::Key { .. })
    }
}

/// Calls `take` with the value that a pattern refers to for an element. Returns `None` if there is
/// no such value.
pub(super) fn look_up<R>(
    access: &mut Access<'_>,
    pattern: &Pattern<'_>,
    element: &[u8],
    take: impl FnOnce(StringRef<'_>) -> R,
) -> Option<R> {
    let (before, after, field) = match *pattern {
        Pattern::Itself => return Some(take(StringRef::Bytes(element))),
        Pattern::Nothing => return None,
        Pattern::Key { before, after, field } => (before, after, field),
    };
    let bytes = [before, element, after].concat();
    let key = Key { bytes: &bytes, place: access.keyspace().place(&bytes) };
    let now_ms = access.now_ms();
    let mut db = access.db(&key);
    let entry = db.read(&key)?;
    let held = entry.held();
    match field {
        None => StringRef::of(held).map(take),
        Some(field) => {
            let hash = held.view::<Hash>()?;
            // An expired field counts as missing.
            if hash.has_expired(now_ms) && hash.is_expired(field, now_ms) {
                return None;
            }
            hash.get(field).map(|value| {
                take(match value {
                    Element::Int(value) => StringRef::Int(value),
                    Element::Bytes(bytes) => StringRef::Bytes(bytes),
                })
            })
        }
    }
}
