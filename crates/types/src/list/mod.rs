//! A list of strings.
//!
//! | form | used | bytes of heap |
//! | --- | --- | --- |
//! | packed | up to [`INLINE_PACKED_BYTES_MAX`] bytes | none: inside the dictionary entry |
//! | [`Quicklist`] | otherwise | 72, plus 32 per node, plus up to 9/8 of the bytes of all entries |
//!
//! A node holds up to 8 KiB of entries by default. A push or pop at either end takes constant time.
//! A change in the middle walks over the nodes from the nearer end, and moves the bytes of at most
//! one node. An element of up to 63 bytes takes 2 bytes more than its length. An integer takes 2 to
//! 10 bytes in total.
//!
//! | contents (`tests/sizes.rs`) | form | bytes of each |
//! | --- | --- | --- |
//! | 20 elements of 13 bytes | packed | 15.1 |
//! | 100,000 elements of 13 bytes | Quicklist | 15.1 |

mod frozen;
mod node;
mod quicklist;
#[cfg(test)]
mod tests;
mod view;

pub use node::{ALONE_BYTES_DEFAULT, NodeLimit};
pub use quicklist::{End, Quicklist};
pub(crate) use view::Run;
pub use view::{ListStats, ListView, resolve, resolve_range};

use crate::collection::{Collection, INLINE_PACKED_BYTES_MAX, PackedForm};
use crate::pack::{Element, Encoded, Pack, PackRef};
use crate::{OutOfMemory, Value};

/// Maximum length of an element, in bytes: the maximum length of an entry of a node, minus some
/// overhead.
pub const ELEMENT_BYTES_MAX: usize = u32::MAX as usize - 1024;

/// A list of strings.
#[derive(Debug)]
pub enum List {
    /// The packed form: one byte string.
    Packed(Pack),
    /// A sequence of nodes.
    Nodes(Box<Quicklist>),
}

/// Compares elements, so two lists of different forms may be equal.
impl PartialEq for List {
    fn eq(&self, other: &Self) -> bool {
        // The elements of one list are collected first. A view passes elements only to a closure,
        // because nodes may be compressed, so the two lists can't be walked together.
        let mut elements = Vec::with_capacity(other.view().len());
        other.view().for_each(|element| elements.push(element.to_vec()));
        let mut elements = elements.into_iter();
        self.view().len() == other.view().len()
            && self.view().all(|element| elements.next().is_some_and(|other| element == Element::of(&other)))
    }
}

impl Eq for List {}

impl List {
    /// Adds an element at an end.
    #[inline]
    pub fn push(&mut self, end: End, value: &[u8], limit: NodeLimit) {
        match self.for_growth(value, limit) {
            List::Packed(pack) => match end {
                End::Left => pack.push_front(value),
                End::Right => pack.push_back(value),
            },
            List::Nodes(list) => list.push(end, value, limit),
        }
    }

    /// Appends all entries of a pack. A long list stores the entries as one node if they are within
    /// the limits of a node.
    pub(crate) fn append(&mut self, entries: PackRef<'_>, limit: NodeLimit) {
        let len = entries.len();
        if len == 0 {
            return;
        }
        let bytes = entries.entries().len();
        if bytes > limit.bytes || len > limit.entries {
            return entries.iter().for_each(|element| element.with_bytes(|bytes| self.push(End::Right, bytes, limit)));
        }
        if let List::Packed(pack) = self {
            let here = pack.as_ref();
            if here.end() + bytes <= INLINE_PACKED_BYTES_MAX.min(limit.bytes) && here.len() + len <= limit.entries {
                return pack.append(entries);
            }
            self.become_nodes(limit);
        }
        if let List::Nodes(list) = self {
            list.append_node(entries);
        }
    }

    /// Removes the element at an end and passes it to `take`. Returns `None` if the list is empty.
    #[inline]
    pub fn pop<R>(&mut self, end: End, take: impl FnOnce(Element<'_>) -> R) -> Option<R> {
        let pack = match self {
            List::Packed(pack) => pack,
            List::Nodes(list) => return list.pop(end, take),
        };
        let entries = pack.as_ref();
        if entries.is_empty() {
            return None;
        }
        let at = match end {
            End::Left => entries.first(),
            End::Right => entries.previous(entries.end()),
        };
        let result = take(entries.get(at));
        pack.remove(at, 1);
        Some(result)
    }

    /// Replaces the element at an index (from the front). Returns `false` if there is no such
    /// element.
    pub fn set(&mut self, index: usize, value: &[u8], limit: NodeLimit) -> bool {
        if index >= self.view().len() {
            return false;
        }
        match self.for_growth(value, limit) {
            List::Packed(pack) => {
                if let Some(at) = pack.as_ref().nth(index) {
                    pack.replace(at, value);
                }
            }
            List::Nodes(list) => list.set(index, value, limit),
        }
        true
    }

    /// Inserts a value before the element at an index (from the front), or at the end of the list
    /// if there is no such element.
    pub fn insert(&mut self, index: usize, value: &[u8], limit: NodeLimit) {
        match self.for_growth(value, limit) {
            List::Packed(pack) => {
                let at = pack.as_ref().nth(index).unwrap_or(pack.as_ref().end());
                pack.insert(at, value);
            }
            List::Nodes(list) => list.insert_at(index, value, limit),
        }
    }

    /// Removes `count` elements at an end, or all if there are fewer.
    pub fn trim(&mut self, end: End, count: usize) {
        let pack = match self {
            List::Packed(pack) => pack,
            List::Nodes(list) => return list.trim(end, count),
        };
        let len = pack.as_ref().len();
        let count = count.min(len);
        let first = match end {
            End::Left => 0,
            End::Right => len - count,
        };
        if let Some(at) = pack.as_ref().nth(first) {
            pack.remove(at, count);
        }
    }

    /// Removes at most `most` elements equal to a value, from the front or, if `backward`, from the
    /// back. Returns the number of removed elements.
    pub fn remove_equal(&mut self, value: &[u8], most: usize, backward: bool, limit: NodeLimit) -> usize {
        let wanted = Element::of(value);
        let pack = match self {
            List::Packed(pack) => pack,
            List::Nodes(list) => return list.remove_equal(wanted, most, backward, limit),
        };
        let mut removed = 0;
        let mut at = if backward { pack.as_ref().end() } else { pack.as_ref().first() };
        while removed < most {
            let entries = pack.as_ref();
            if backward {
                if at <= entries.first() {
                    break;
                }
                at = entries.previous(at);
            } else if at >= entries.end() {
                break;
            }
            if entries.get(at) == wanted {
                pack.remove(at, 1);
                removed += 1;
            } else if !backward {
                at = entries.next(at);
            }
        }
        removed
    }

    /// Converts the list, if necessary, to a form that can hold this value.
    #[inline]
    fn for_growth(&mut self, value: &[u8], limit: NodeLimit) -> &mut Self {
        if let List::Packed(pack) = self {
            let entries = pack.as_ref();
            let grown = entries.end() + Encoded::of(Element::of(value)).len();
            let is_full = grown > INLINE_PACKED_BYTES_MAX.min(limit.bytes) || entries.len() >= limit.entries;
            if is_full || value.len() >= limit.alone_bytes {
                self.become_nodes(limit);
            }
        }
        self
    }

    #[cold]
    fn become_nodes(&mut self, limit: NodeLimit) {
        let List::Packed(pack) = self else { return };
        let entries = pack.as_ref();
        let mut list = Quicklist::new(limit);
        if entries.len() <= limit.entries {
            list = Quicklist::from_pack(entries, limit);
        } else {
            // The pack has more entries than a node may have, because the limit was lowered after
            // the list was packed.
            for element in entries.iter() {
                element.with_bytes(|bytes| list.push(End::Right, bytes, limit));
            }
        }
        *self = List::Nodes(Box::new(list));
    }
}

impl Collection for List {
    type View<'a> = ListView<'a>;

    fn empty() -> Self {
        List::Packed(Pack::new())
    }

    fn of(value: &Value) -> Option<&Self> {
        if let Value::List(found) = value { Some(found) } else { None }
    }

    fn of_mut(value: &mut Value) -> Option<&mut Self> {
        if let Value::List(found) = value { Some(found) } else { None }
    }

    fn into_value(self) -> Value {
        Value::List(self)
    }

    fn view(&self) -> ListView<'_> {
        match self {
            List::Packed(pack) => ListView::Packed(pack.as_ref()),
            List::Nodes(list) => ListView::Nodes(list),
        }
    }

    fn view_packed(form: PackedForm, bytes: &[u8]) -> Option<ListView<'_>> {
        (form == PackedForm::List).then(|| ListView::Packed(crate::pack::PackRef::new(bytes)))
    }

    fn from_packed(form: PackedForm, bytes: Vec<u8>) -> Result<Self, Vec<u8>> {
        if form == PackedForm::List { Ok(List::Packed(Pack::from_vec(bytes))) } else { Err(bytes) }
    }

    fn packed(&self) -> Option<(PackedForm, &[u8])> {
        match self {
            List::Packed(pack) => Some((PackedForm::List, pack.as_ref().as_bytes())),
            List::Nodes(_) => None,
        }
    }

    fn into_packed(self) -> Option<Vec<u8>> {
        match self {
            List::Packed(pack) => Some(pack.into_vec()),
            List::Nodes(_) => None,
        }
    }

    fn is_empty(&self) -> bool {
        match self {
            List::Packed(pack) => pack.as_ref().is_empty(),
            List::Nodes(list) => list.len() == 0,
        }
    }

    fn allocated_bytes(&self) -> usize {
        match self {
            List::Packed(pack) => pack.allocated_bytes(),
            List::Nodes(list) => list.allocated_bytes(),
        }
    }

    fn try_clone(&self) -> Result<Self, OutOfMemory> {
        match self {
            List::Packed(pack) => Ok(List::Packed(pack.as_ref().to_pack())),
            List::Nodes(list) => Ok(List::Nodes(Box::new(list.copy()?))),
        }
    }
}
