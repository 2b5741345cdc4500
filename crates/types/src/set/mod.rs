//! A set of strings.
//!
//! | form | `OBJECT ENCODING` | bytes per member |
//! | --- | --- | --- |
//! | [`IntSet`] | intset | 2, 4 or 8 |
//! | packed | hashtable | 1 + length |
//! | [`Table`] | hashtable | 20 to 25; for more than 7 bytes of text also 1 + length, rounded up |
//!
//! A set of at most `set-max-intset-entries` integers is an intset. Any other set is packed if it
//! has at most [`PACKED_MEMBERS_MAX`] members and [`INLINE_PACKED_BYTES_MAX`] bytes, and a table
//! otherwise. An intset or a packed set usually lies inside its dictionary entry while it is short.
//! As in Redis, a set converts only to a form further down in the table above, never back.
//!
//! | contents (`tests/sizes.rs`) | form | bytes of each |
//! | --- | --- | --- |
//! | 20 integers of 10 digits | IntSet | 4.4 |
//! | 20 members of 13 bytes | packed | 14.1 |
//! | 100,000 integers | Table | 20.5 |
//! | 100,000 members of 13 bytes | Table | 34.5 |

mod algebra;
mod intset;

pub use algebra::{
    SetBuilder, difference, each_difference, each_intersection, each_union, intersection, union, union_has_room,
};
pub use intset::{IntSet, IntSetRef};

use crate::collection::{Collection, INLINE_PACKED_BYTES_MAX, PackedForm};
use crate::member::{Member, MemberKey};
use crate::pack::{Element, OneWay, Pack, PackRef};
use crate::table::{Table, has_room};
use crate::{Encoding, OutOfMemory, Value};

/// Maximum number of packed members, which are searched linearly.
pub const PACKED_MEMBERS_MAX: usize = 128;

/// Maximum number of integers in an intset under any settings.
const INTSET_LEN_MAX: usize = 1 << 30;

/// Maximum overhead of a packed member, in bytes.
const PACKED_OVERHEAD_BYTES: usize = 7;

/// A set of strings.
#[derive(Debug, PartialEq, Eq)]
pub enum Set {
    /// Sorted integers.
    IntSet(IntSet),
    /// A few strings in one byte string.
    Packed(Pack<OneWay>),
    /// A hash table, for any number of strings.
    Table(Box<Table<Member>>),
}

/// A shared view of a [`Set`].
#[derive(Clone, Copy, Debug)]
pub enum SetView<'a> {
    /// Sorted integers.
    IntSet(IntSetRef<'a>),
    /// A few strings in one byte string.
    Packed(PackRef<'a, OneWay>),
    /// A hash table, for any number of strings.
    Table(&'a Table<Member>),
}

impl<'a> SetView<'a> {
    /// Returns the encoding that `OBJECT ENCODING` shows.
    pub fn encoding(self) -> Encoding {
        match self {
            SetView::IntSet(_) => Encoding::Intset,
            SetView::Packed(_) | SetView::Table(_) => Encoding::Hashtable,
        }
    }

    /// Returns the number of members.
    #[inline]
    pub fn len(self) -> usize {
        match self {
            SetView::IntSet(set) => set.len(),
            SetView::Packed(pack) => pack.len(),
            SetView::Table(table) => table.len(),
        }
    }

    /// Returns whether the new members among `members` fit in the set. Callers check this before
    /// they add the first member.
    #[inline]
    pub fn has_room<'m>(self, members: impl Iterator<Item = &'m [u8]> + Clone) -> bool {
        has_room(self.len(), members.clone().count())
            || has_room(self.len(), members.filter(|member| !self.contains(member)).count())
    }

    /// Returns whether there are no members.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// Returns whether the set contains a string.
    #[inline]
    pub fn contains(self, member: &[u8]) -> bool {
        match self {
            SetView::IntSet(set) => crate::parse_i64(member).is_some_and(|value| set.contains(value)),
            SetView::Packed(pack) => pack.find(member, pack.first(), 0).is_some(),
            SetView::Table(table) => find(table, MemberKey::of(member)).is_some(),
        }
    }

    /// Prefetches the entries that [`Self::contains`] will read, for several members at once: see
    /// [`Table::prefetch`].
    pub fn prefetch<'m>(self, members: impl Iterator<Item = &'m [u8]>) {
        if let SetView::Table(table) = self {
            table.prefetch(members.map(|member| MemberKey::of(member).hash(table.seed())));
        }
    }

    /// Returns whether the set contains an element. The element must come from a set or from
    /// [`Element::of`]. `room` is a buffer for the digits of large integers.
    #[inline]
    pub fn contains_element(self, element: Element<'_>, room: &mut Vec<u8>) -> bool {
        match (self, element) {
            (SetView::IntSet(set), Element::Int(value)) => set.contains(value),
            // The bytes may be an integer of more than 62 bits from a table.
            (SetView::IntSet(set), Element::Bytes(bytes)) => {
                crate::parse_i64(bytes).is_some_and(|value| set.contains(value))
            }
            (SetView::Packed(pack), Element::Int(_)) => pack.find_element(element, pack.first(), 0).is_some(),
            (SetView::Packed(pack), Element::Bytes(bytes)) => pack.find(bytes, pack.first(), 0).is_some(),
            (SetView::Table(table), _) => find(table, MemberKey::of_element(element, room)).is_some(),
        }
    }

    /// Returns the member at an index less than the length. The order stays the same until the set
    /// changes. Takes constant time unless the set is packed.
    pub fn nth(self, index: usize) -> Option<Element<'a>> {
        match self {
            SetView::IntSet(set) => (index < set.len()).then(|| Element::Int(set.get(index))),
            SetView::Packed(pack) => pack.nth(index).map(|at| pack.get(at)),
            SetView::Table(table) => (index < table.len()).then(|| table.get(index).element()),
        }
    }

    /// Visits all members. Visits those of an intset in ascending order.
    pub fn for_each(self, mut visit: impl FnMut(Element<'a>)) {
        match self {
            SetView::IntSet(set) => set.iter().for_each(|value| visit(Element::Int(value))),
            SetView::Packed(pack) => pack.iter().for_each(visit),
            SetView::Table(table) => table.iter().for_each(|member| visit(member.element())),
        }
    }

    /// Returns whether all members satisfy `is`. Stops at the first member that doesn't.
    pub fn all(self, mut is: impl FnMut(Element<'a>) -> bool) -> bool {
        match self {
            SetView::IntSet(set) => set.iter().all(|value| is(Element::Int(value))),
            SetView::Packed(pack) => pack.iter().all(is),
            SetView::Table(table) => table.iter().all(|member| is(member.element())),
        }
    }

    /// Continues a scan, like [`Table::scan`]. A small set is visited in one call.
    pub fn scan(self, cursor: u64, visit: &mut dyn FnMut(Element<'_>)) -> u64 {
        match self {
            SetView::Table(table) => table.scan(cursor, &mut |member| visit(member.element())),
            _ => {
                self.for_each(visit);
                0
            }
        }
    }
}

#[inline]
fn find(table: &Table<Member>, key: MemberKey<'_>) -> Option<usize> {
    table.find(key.hash(table.seed()), |member| member.is(key))
}

impl Set {
    /// Returns the set of these integers. The set is an intset if it has at most
    /// `intset_entries_max` members.
    pub(crate) fn from_intset(set: IntSet, intset_entries_max: usize) -> Self {
        let len = set.as_ref().len();
        let mut set = Set::IntSet(set);
        if len > intset_entries_max.min(INTSET_LEN_MAX) {
            set.convert(len, 0);
        }
        set
    }

    /// Adds a string. Returns whether the string is new. Converts an intset to another form if the
    /// string isn't an integer, or if the set then has more than `intset_entries_max` members.
    #[inline]
    pub fn add(&mut self, member: &[u8], intset_entries_max: usize) -> bool {
        match self {
            Set::IntSet(set) => match crate::parse_i64(member) {
                Some(value) => self.add_integer(value, intset_entries_max),
                None => {
                    let len = set.as_ref().len() + 1;
                    self.convert(len, member.len());
                    self.add(member, intset_entries_max)
                }
            },
            Set::Packed(pack) => {
                let packed = pack.as_ref();
                if packed.find(member, packed.first(), 0).is_some() {
                    return false;
                }
                if fits_packed(packed.len() + 1, packed.end() + member.len()) {
                    pack.push_back(member);
                    return true;
                }
                let len = packed.len() + 1;
                self.convert(len, usize::MAX);
                self.add(member, intset_entries_max)
            }
            Set::Table(table) => add_to_table(table, MemberKey::of(member)),
        }
    }

    /// Adds an element of another set, like [`Self::add`]. `room` is a buffer for the digits of
    /// large integers.
    pub fn add_element(&mut self, element: Element<'_>, intset_entries_max: usize, room: &mut Vec<u8>) -> bool {
        match (&mut *self, element) {
            (Set::Table(table), _) => add_to_table(table, MemberKey::of_element(element, room)),
            (Set::IntSet(_), Element::Int(value)) => self.add_integer(value, intset_entries_max),
            (_, Element::Bytes(bytes)) => self.add(bytes, intset_entries_max),
            (_, Element::Int(_)) => element.with_bytes(|bytes| self.add(bytes, intset_entries_max)),
        }
    }

    /// Adds an integer to an intset.
    fn add_integer(&mut self, value: i64, intset_entries_max: usize) -> bool {
        let Set::IntSet(set) = self else { return false };
        if !set.insert(value) {
            return false;
        }
        let len = set.as_ref().len();
        if len > intset_entries_max.min(INTSET_LEN_MAX) {
            self.convert(len, 0);
        }
        true
    }

    /// Removes a string. Returns whether the set contained the string.
    #[inline]
    pub fn remove(&mut self, member: &[u8]) -> bool {
        match self {
            Set::IntSet(set) => crate::parse_i64(member).is_some_and(|value| set.remove(value)),
            Set::Packed(pack) => {
                let packed = pack.as_ref();
                let Some(at) = packed.find(member, packed.first(), 0) else { return false };
                pack.remove(at, 1);
                true
            }
            Set::Table(table) => match find(table, MemberKey::of(member)) {
                Some(index) => table.remove(index).is_some(),
                None => false,
            },
        }
    }

    /// Removes all members.
    pub fn clear(&mut self) {
        if self.has_cut() {
            (0..self.view().len()).rev().for_each(|index| self.remove_nth(index));
        } else {
            *self = Set::empty();
        }
    }

    /// Returns whether a cut runs: a reader is reading the members that the set had at one instant
    /// (see `crate::cut`). Until the cut ends, callers must change the set through its methods and
    /// not replace it by another set.
    #[must_use]
    pub fn has_cut(&self) -> bool {
        matches!(self, Set::Table(table) if table.has_cut())
    }

    /// Removes the member at an index (see [`SetView::nth`]). The last member may move to this
    /// index.
    pub fn remove_nth(&mut self, index: usize) {
        match self {
            Set::IntSet(set) => {
                let value = set.as_ref().get(index);
                set.remove(value);
            }
            Set::Packed(pack) => {
                if let Some(at) = pack.as_ref().nth(index) {
                    pack.remove(at, 1);
                }
            }
            Set::Table(table) => {
                table.remove(index);
            }
        }
    }

    /// Converts the set to a form for strings, with space for `len` members. `next_len` is the
    /// length of the member that will be added next. A `next_len` of `usize::MAX` forces a table.
    fn convert(&mut self, len: usize, next_len: usize) {
        let view = self.view();
        let mut bytes = next_len;
        view.for_each(|element| bytes = bytes.saturating_add(PACKED_OVERHEAD_BYTES + element.len()));
        *self = if fits_packed(len, bytes) {
            let mut pack = Pack::new();
            view.for_each(|element| pack.push_back_element(element));
            Set::Packed(pack)
        } else {
            let mut table = Box::new(Table::with_capacity(len));
            let mut room = Vec::new();
            view.for_each(|element| assert_new(add_to_table(&mut table, MemberKey::of_element(element, &mut room))));
            Set::Table(table)
        };
    }
}

/// Asserts that an added member was new. Called for the members of a set that is converted to
/// another form, which are distinct.
fn assert_new(is_new: bool) {
    debug_assert!(is_new, "a member occurs twice");
}

/// Returns whether `len` members of `bytes` bytes in total may be packed. `bytes` doesn't include
/// the overhead of the last member.
fn fits_packed(len: usize, bytes: usize) -> bool {
    len <= PACKED_MEMBERS_MAX && bytes <= INLINE_PACKED_BYTES_MAX - PACKED_OVERHEAD_BYTES
}

#[inline]
fn add_to_table(table: &mut Table<Member>, key: MemberKey<'_>) -> bool {
    let hash = key.hash(table.seed());
    let is_new = table.find(hash, |member| member.is(key)).is_none();
    if is_new {
        table.insert(hash, Member::new(key));
    }
    is_new
}

impl Collection for Set {
    type View<'a> = SetView<'a>;

    fn empty() -> Self {
        Set::IntSet(IntSet::new())
    }

    fn of(value: &Value) -> Option<&Self> {
        if let Value::Set(found) = value { Some(found) } else { None }
    }

    fn of_mut(value: &mut Value) -> Option<&mut Self> {
        if let Value::Set(found) = value { Some(found) } else { None }
    }

    fn into_value(self) -> Value {
        Value::Set(self)
    }

    fn view(&self) -> SetView<'_> {
        match self {
            Set::IntSet(set) => SetView::IntSet(set.as_ref()),
            Set::Packed(pack) => SetView::Packed(pack.as_ref()),
            Set::Table(table) => SetView::Table(table),
        }
    }

    fn view_packed(form: PackedForm, bytes: &[u8]) -> Option<SetView<'_>> {
        match form {
            PackedForm::IntSet => Some(SetView::IntSet(IntSetRef::new(bytes))),
            PackedForm::Set => Some(SetView::Packed(PackRef::new(bytes))),
            _ => None,
        }
    }

    fn from_packed(form: PackedForm, bytes: Vec<u8>) -> Result<Self, Vec<u8>> {
        match form {
            PackedForm::IntSet => Ok(Set::IntSet(IntSet::from_vec(bytes))),
            PackedForm::Set => Ok(Set::Packed(Pack::from_vec(bytes))),
            _ => Err(bytes),
        }
    }

    fn packed(&self) -> Option<(PackedForm, &[u8])> {
        match self {
            Set::IntSet(set) => Some((PackedForm::IntSet, set.as_ref().as_bytes())),
            Set::Packed(pack) => Some((PackedForm::Set, pack.as_ref().as_bytes())),
            Set::Table(_) => None,
        }
    }

    fn into_packed(self) -> Option<Vec<u8>> {
        match self {
            Set::IntSet(set) => Some(set.into_vec()),
            Set::Packed(pack) => Some(pack.into_vec()),
            Set::Table(_) => None,
        }
    }

    fn is_empty(&self) -> bool {
        self.view().is_empty()
    }

    fn allocated_bytes(&self) -> usize {
        match self {
            Set::IntSet(set) => set.allocated_bytes(),
            Set::Packed(pack) => pack.allocated_bytes(),
            Set::Table(table) => size_of::<Table<Member>>() + table.allocated_bytes(),
        }
    }

    fn try_clone(&self) -> Result<Self, OutOfMemory> {
        Ok(match self {
            Set::IntSet(set) => Set::IntSet(set.clone()),
            Set::Packed(pack) => Set::Packed(pack.as_ref().to_pack()),
            Set::Table(table) => Set::Table(table.clone()),
        })
    }
}

#[cfg(test)]
mod tests;
