//! `BY` and `GET`: a pattern and an element name a key, or a field of one.

use pantala_engine::access::{Access, Key};
use pantala_engine::db::Holds;
use pantala_types::Hash;
use pantala_types::pack::Element;

use crate::arguments::c_string;
use crate::strings::StringRef;

/// A pattern: `#` is the element itself; in any other its first `*` stands for the element, and what follows `->` behind it is a
/// field of a hash. One without `*` names nothing.
#[derive(Clone, Copy)]
pub(super) enum Pattern<'a> {
    Itself,
    Nothing,
    Key { before: &'a [u8], behind: &'a [u8], field: Option<&'a [u8]> },
}

impl<'a> Pattern<'a> {
    pub(super) fn new(pattern: &'a [u8]) -> Self {
        // Redis looks for its signs in a C string, and takes all that is around them.
        let seen = c_string(pattern);
        if seen == b"#" {
            return Pattern::Itself;
        }
        let Some(star) = seen.iter().position(|&byte| byte == b'*') else { return Pattern::Nothing };
        let (before, behind) = (&pattern[..star], &pattern[star + 1..]);
        let arrow = seen[star + 1..].windows(2).position(|pair| pair == b"->");
        // An arrow at the end is none.
        match arrow.filter(|arrow| star + 1 + arrow + 2 < seen.len()) {
            Some(arrow) => Pattern::Key { before, behind: &behind[..arrow], field: Some(&behind[arrow + 2..]) },
            None => Pattern::Key { before, behind, field: None },
        }
    }

    /// Whether it names keys, which may be in any shard.
    pub(super) fn names_keys(&self) -> bool {
        matches!(self, Pattern::Key { .. })
    }
}

/// Gives `take` the value that a pattern and an element name. `None`: there is none.
pub(super) fn look_up<R>(
    access: &mut Access<'_>,
    pattern: &Pattern<'_>,
    element: &[u8],
    take: impl FnOnce(StringRef<'_>) -> R,
) -> Option<R> {
    let (before, behind, field) = match *pattern {
        Pattern::Itself => return Some(take(StringRef::Bytes(element))),
        Pattern::Nothing => return None,
        Pattern::Key { before, behind, field } => (before, behind, field),
    };
    let bytes = [before, element, behind].concat();
    let key = Key { bytes: &bytes, place: access.keyspace().place(&bytes) };
    let now_ms = access.now_ms();
    let mut db = access.db(&key);
    let entry = db.read(&key)?;
    let held = entry.held();
    match field {
        None => StringRef::of(held).map(take),
        Some(field) => {
            let hash = held.view::<Hash>()?;
            // One whose time has come isn't there.
            if hash.is_due(now_ms) && hash.time(field).is_some_and(|at_ms| at_ms <= now_ms) {
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
