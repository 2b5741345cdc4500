//! A hash of fields and values.
//!
//! | form | `OBJECT ENCODING` | what | bytes per field |
//! | --- | --- | --- | --- |
//! | packed | listpack | up to `hash-max-listpack-entries` fields, none longer than `hash-max-listpack-value` | 2 + lengths |
//! | [`Table`] | hashtable | any | 22 to 27 + lengths (the piece of field and value rounded up by the allocator) |
//! | [`Timed`] | listpackex or hashtable | one of the two above, with times for some fields | see there |
//!
//! A packed hash lives inside its dictionary entry while it is short. It becomes a table when a limit is passed, and never
//! goes back, as in Redis.
//!
//! | holds (`tests/sizes.rs`) | form | bytes of each |
//! | --- | --- | --- |
//! | 10 fields of 11 bytes with values of 11 | packed | 24.2 |
//! | 100,000 fields of 11 bytes with values of 11 | Table | 44.5 |
//! | 100,000 fields of 11 bytes with values of 11 | Timed, all with a time | 107.0 |

mod timed;

pub use timed::Timed;

use crate::collection::{Collection, PackedForm};
use crate::pack::{Element, OneWay, Pack, PackRef};
use crate::pair::Pair;
use crate::table::{Table, has_room};
use crate::{Encoding, OutOfMemory, Value};

/// Longest packed hash, bytes: Redis's limit of a listpack.
const PACKED_BYTES_MAX: usize = 1 << 30;

/// When a hash stops being packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HashLimits {
    /// `hash-max-listpack-entries`: most fields.
    pub entries_max: usize,
    /// `hash-max-listpack-value`: longest field or value, bytes.
    pub value_bytes_max: usize,
}

/// A hash of fields and values.
#[derive(Debug, PartialEq, Eq)]
pub enum Hash {
    /// In one piece.
    Packed(Pack<OneWay>),
    /// Any number of fields.
    Table(Box<Table<Pair>>),
    /// With fields that expire.
    Timed(Box<Timed>),
}

/// A [`Hash`], to be read.
#[derive(Clone, Copy, Debug)]
pub enum HashView<'a> {
    /// In one piece.
    Packed(PackRef<'a, OneWay>),
    /// Any number of fields.
    Table(&'a Table<Pair>),
    /// With fields that expire.
    Timed(&'a Timed),
}

impl<'a> HashView<'a> {
    /// The encoding that `OBJECT ENCODING` answers.
    pub fn encoding(self) -> Encoding {
        match self {
            HashView::Packed(_) => Encoding::Listpack,
            HashView::Table(_) => Encoding::Hashtable,
            HashView::Timed(timed) => match timed.fields() {
                HashView::Packed(_) => Encoding::ListpackEx,
                _ => Encoding::Hashtable,
            },
        }
    }

    /// Fields.
    #[inline]
    pub fn len(self) -> usize {
        match self {
            HashView::Packed(pack) => pack.len() / 2,
            HashView::Table(table) => table.len(),
            HashView::Timed(timed) => timed.fields().len(),
        }
    }

    /// Whether these fields fit, as far as they aren't there: to be asked before any is set.
    #[inline]
    pub fn has_room<'f>(self, fields: impl Iterator<Item = &'f [u8]> + Clone) -> bool {
        has_room(self.len(), fields.clone().count())
            || has_room(self.len(), fields.filter(|field| self.get(field).is_none()).count())
    }

    /// Whether there are none.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// The value of a field.
    #[inline]
    pub fn get(self, field: &[u8]) -> Option<Element<'a>> {
        match self {
            HashView::Packed(pack) => pack.find(field, pack.first(), 1).map(|at| pack.get(pack.next(at))),
            HashView::Table(table) => find(table, field).map(|index| Element::Bytes(table.get(index).value())),
            HashView::Timed(timed) => timed.fields().get(field),
        }
    }

    /// Has what [`Self::get`] will read of a large hash brought near, for several fields at once: see [`Table::prefetch`].
    pub fn prefetch<'f>(self, fields: impl Iterator<Item = &'f [u8]>) {
        if let HashView::Table(table) = self.untimed() {
            table.prefetch(fields.map(|field| table.hash(field)));
        }
    }

    /// The field and value of an index below the length, by an order that holds until the hash changes. Constant time but for a
    /// packed hash.
    pub fn nth(self, index: usize) -> Option<(Element<'a>, Element<'a>)> {
        match self {
            HashView::Packed(pack) => pack.nth(index.checked_mul(2)?).map(|at| (pack.get(at), pack.get(pack.next(at)))),
            HashView::Table(table) => (index < table.len()).then(|| elements(table.get(index))),
            HashView::Timed(timed) => timed.fields().nth(index),
        }
    }

    /// All fields and values; of a packed hash in the order in which they came.
    pub fn for_each(self, mut visit: impl FnMut(Element<'a>, Element<'a>)) {
        match self.untimed() {
            HashView::Packed(pack) => {
                let mut entries = pack.iter();
                while let (Some(field), Some(value)) = (entries.next(), entries.next()) {
                    visit(field, value);
                }
            }
            HashView::Table(table) => table.iter().map(elements).for_each(|(field, value)| visit(field, value)),
            HashView::Timed(_) => {}
        }
    }

    /// Fields whose time hasn't come at `now_ms`. Where some may have one that has, it takes a look at all times.
    pub fn len_at(self, now_ms: i64) -> usize {
        match self {
            HashView::Timed(timed) if timed.is_due(now_ms) => self.len() - timed.over_len(now_ms),
            _ => self.len(),
        }
    }

    /// As [`Self::for_each`], without the fields whose time has come at `now_ms`.
    pub fn for_each_at(self, now_ms: i64, mut visit: impl FnMut(Element<'a>, Element<'a>)) {
        if !self.is_due(now_ms) {
            return self.for_each(visit);
        }
        self.for_each(|field, value| {
            let time = field.with_bytes(|field| self.time(field));
            if time.is_none_or(|at_ms| at_ms > now_ms) {
                visit(field, value);
            }
        });
    }

    /// The same without times.
    #[inline]
    pub fn untimed(self) -> HashView<'a> {
        match self {
            HashView::Timed(timed) => timed.fields(),
            untimed => untimed,
        }
    }

    /// Whether there may be fields whose time has come, so that they must not be shown: [`Hash::expire`] takes them out.
    #[inline]
    pub fn is_due(self, now_ms: i64) -> bool {
        matches!(self, HashView::Timed(timed) if timed.is_due(now_ms))
    }

    /// A copy of a hash without the fields whose time has come.
    ///
    /// # Errors
    /// [`OutOfMemory`] when the allocator refuses.
    pub fn without_due(self, now_ms: i64) -> Result<Hash, OutOfMemory> {
        let mut copy = match self {
            HashView::Packed(pack) => Hash::Packed(pack.to_pack()),
            HashView::Table(table) => Hash::Table(Box::new(table.clone())),
            HashView::Timed(timed) => Hash::Timed(Box::new(timed.try_clone()?)),
        };
        copy.expire(now_ms, usize::MAX, |_| {});
        Ok(copy)
    }

    /// Whether any field expires.
    pub fn has_times(self) -> bool {
        matches!(self, HashView::Timed(timed) if timed.times_len() > 0)
    }

    /// When a field expires, unix time in ms; `None`: never.
    pub fn time(self, field: &[u8]) -> Option<i64> {
        match self {
            HashView::Timed(timed) => timed.time(field),
            _ => None,
        }
    }

    /// Goes on with a scan, as [`Table::scan`]; a small hash is shown whole.
    pub fn scan(self, cursor: u64, visit: &mut dyn FnMut(Element<'_>, Element<'_>)) -> u64 {
        match self.untimed() {
            HashView::Packed(_) | HashView::Timed(_) => {
                self.for_each(visit);
                0
            }
            HashView::Table(table) => table.scan(cursor, &mut |pair| {
                let (field, value) = elements(pair);
                visit(field, value);
            }),
        }
    }
}

fn elements(pair: &Pair) -> (Element<'_>, Element<'_>) {
    let (field, value) = pair.split();
    (Element::Bytes(field), Element::Bytes(value))
}

#[inline]
fn find(table: &Table<Pair>, field: &[u8]) -> Option<usize> {
    table.find(table.hash(field), |pair| pair.field() == field)
}

impl Hash {
    /// The hash of a pack of field, value …; a table where those are too many. How long they are doesn't matter, as where Redis
    /// loads one.
    pub(crate) fn from_pack(pack: Pack<OneWay>, limits: HashLimits) -> Self {
        let mut hash = Hash::Packed(pack);
        if hash.view().len() > limits.entries_max {
            hash.convert(0);
        }
        hash
    }

    /// To be called with the lengths of all fields and values that a command brings, before the first one is set: a hash that they
    /// don't fit becomes a table, as in Redis.
    pub fn prepare(&mut self, lengths: impl Iterator<Item = usize>, limits: HashLimits) {
        let Hash::Packed(pack) = self.untimed_mut() else { return };
        let mut total = pack.as_ref().end();
        for len in lengths {
            total = total.saturating_add(len);
            if len > limits.value_bytes_max || total > PACKED_BYTES_MAX {
                return self.untimed_mut().convert(0);
            }
        }
    }

    /// The same without times.
    #[inline]
    fn untimed_mut(&mut self) -> &mut Hash {
        match self {
            Hash::Timed(timed) => &mut timed.fields,
            untimed => untimed,
        }
    }

    /// Gives a field a value; it has no time after that. `true`: the field is new.
    #[inline]
    pub fn set(&mut self, field: &[u8], value: &[u8], limits: HashLimits) -> bool {
        if let Hash::Timed(timed) = self {
            timed.clear_time(field);
        }
        self.update(field, value, limits)
    }

    /// Gives a field a value, and leaves it the time that it may have. `true`: the field is new.
    #[inline]
    pub fn update(&mut self, field: &[u8], value: &[u8], limits: HashLimits) -> bool {
        self.untimed_mut().set_untimed(field, value, limits)
    }

    #[inline]
    fn set_untimed(&mut self, field: &[u8], value: &[u8], limits: HashLimits) -> bool {
        if field.len() > limits.value_bytes_max || value.len() > limits.value_bytes_max {
            self.convert(1);
        }
        match self {
            Hash::Packed(pack) => {
                let packed = pack.as_ref();
                let found = packed.find(field, packed.first(), 1);
                match found {
                    Some(at) => {
                        let at = packed.next(at);
                        pack.replace(at, value);
                    }
                    None => {
                        pack.push_back(field);
                        pack.push_back(value);
                    }
                }
                // Also where nothing was added: the limit may be lower than when the others were.
                if pack.as_ref().len() / 2 > limits.entries_max {
                    self.convert(0);
                }
                found.is_none()
            }
            Hash::Table(table) => {
                let hash = table.hash(field);
                match table.find(hash, |pair| pair.field() == field) {
                    Some(index) => table.change(index, |pair| pair.set_value(value)),
                    None => {
                        table.insert(hash, Pair::new(field, value));
                        return true;
                    }
                }
                false
            }
            Hash::Timed(_) => false,
        }
    }

    /// Lets a field that exists expire, unix time in ms.
    pub fn set_time(&mut self, field: &[u8], at_ms: i64) {
        if !matches!(self, Hash::Timed(_)) {
            let fields = std::mem::replace(self, Hash::empty());
            *self = Hash::Timed(Box::new(Timed::new(fields)));
        }
        if let Hash::Timed(timed) = self {
            timed.set_time(field, at_ms);
        }
    }

    /// Lets a field stay. `false`: it had no time.
    pub fn clear_time(&mut self, field: &[u8]) -> bool {
        match self {
            Hash::Timed(timed) => timed.clear_time(field),
            _ => false,
        }
    }

    /// Removes expired fields, at most so many, calls `removed` with each, and returns how many.
    #[inline]
    pub fn expire(&mut self, now_ms: i64, most: usize, removed: impl FnMut(&[u8])) -> usize {
        match self {
            Hash::Timed(timed) => timed.expire(now_ms, most, removed),
            _ => 0,
        }
    }

    /// Takes one field out if its time has come. `false`: it hasn't, or there is none.
    pub fn expire_field(&mut self, field: &[u8], now_ms: i64) -> bool {
        match self {
            Hash::Timed(timed) => timed.expire_field(field, now_ms),
            _ => false,
        }
    }

    /// Takes a field out. `false`: it wasn't there.
    #[inline]
    pub fn remove(&mut self, field: &[u8]) -> bool {
        match self {
            Hash::Packed(pack) => {
                let packed = pack.as_ref();
                let Some(at) = packed.find(field, packed.first(), 1) else { return false };
                pack.remove(at, 2);
                true
            }
            Hash::Table(table) => match find(table, field) {
                Some(index) => table.remove(index).is_some(),
                None => false,
            },
            Hash::Timed(timed) => {
                timed.clear_time(field);
                timed.fields.remove(field)
            }
        }
    }

    /// Makes it a table, with room for some fields more.
    fn convert(&mut self, more: usize) {
        let Hash::Packed(pack) = self else { return };
        let view = HashView::Packed(pack.as_ref());
        let mut table = Box::new(Table::with_capacity(view.len() + more));
        view.for_each(|field, value| {
            field.with_bytes(|field| {
                value.with_bytes(|value| table.insert(table.hash(field), Pair::new(field, value)));
            });
        });
        *self = Hash::Table(table);
    }
}

impl Collection for Hash {
    type View<'a> = HashView<'a>;

    fn empty() -> Self {
        Hash::Packed(Pack::new())
    }

    fn of(value: &Value) -> Option<&Self> {
        if let Value::Hash(found) = value { Some(found) } else { None }
    }

    fn of_mut(value: &mut Value) -> Option<&mut Self> {
        if let Value::Hash(found) = value { Some(found) } else { None }
    }

    fn into_value(self) -> Value {
        Value::Hash(self)
    }

    fn view(&self) -> HashView<'_> {
        match self {
            Hash::Packed(pack) => HashView::Packed(pack.as_ref()),
            Hash::Table(table) => HashView::Table(table),
            Hash::Timed(timed) => HashView::Timed(timed),
        }
    }

    fn view_packed(form: PackedForm, bytes: &[u8]) -> Option<HashView<'_>> {
        (form == PackedForm::Hash).then(|| HashView::Packed(PackRef::new(bytes)))
    }

    fn from_packed(form: PackedForm, bytes: Vec<u8>) -> Result<Self, Vec<u8>> {
        if form == PackedForm::Hash { Ok(Hash::Packed(Pack::from_vec(bytes))) } else { Err(bytes) }
    }

    fn packed(&self) -> Option<(PackedForm, &[u8])> {
        match self {
            Hash::Packed(pack) => Some((PackedForm::Hash, pack.as_ref().as_bytes())),
            Hash::Table(_) | Hash::Timed(_) => None,
        }
    }

    fn into_packed(self) -> Option<Vec<u8>> {
        match self {
            Hash::Packed(pack) => Some(pack.into_vec()),
            Hash::Table(_) | Hash::Timed(_) => None,
        }
    }

    fn is_empty(&self) -> bool {
        match self {
            Hash::Packed(pack) => pack.as_ref().is_empty(),
            Hash::Table(table) => table.is_empty(),
            Hash::Timed(timed) => timed.fields.is_empty(),
        }
    }

    fn allocated_bytes(&self) -> usize {
        match self {
            Hash::Packed(pack) => pack.allocated_bytes(),
            Hash::Table(table) => size_of::<Table<Pair>>() + table.allocated_bytes(),
            Hash::Timed(timed) => size_of::<Timed>() + timed.allocated_bytes(),
        }
    }

    fn try_clone(&self) -> Result<Self, OutOfMemory> {
        Ok(match self {
            Hash::Packed(pack) => Hash::Packed(pack.as_ref().to_pack()),
            Hash::Table(table) => Hash::Table(table.clone()),
            Hash::Timed(timed) => Hash::Timed(Box::new(timed.try_clone()?)),
        })
    }
}

#[cfg(test)]
mod tests;
