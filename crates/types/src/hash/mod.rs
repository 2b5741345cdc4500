//! A hash of fields and values.
//!
//! | form | `OBJECT ENCODING` | bytes per field |
//! | --- | --- | --- |
//! | packed | listpack | 2 + lengths |
//! | [`Table`] | hashtable | 22 to 27 + lengths, rounded up by the allocator |
//! | [`ExpiringHash`] | listpackex or hashtable | as in the other forms, plus the expiry times |
//!
//! A hash is packed up to `hash-max-listpack-entries` fields if no field or value is longer than
//! `hash-max-listpack-value`. A short packed hash usually lies inside its dictionary entry. A hash
//! that exceeds a limit becomes a table and never converts back, as in Redis. When a field receives
//! a TTL, the hash becomes an [`ExpiringHash`], which holds the fields in one of the other two
//! forms.
//!
//! | contents (`tests/sizes.rs`) | form | bytes of each |
//! | --- | --- | --- |
//! | 10 fields of 11 bytes with values of 11 | packed | 24.2 |
//! | 100,000 fields of 11 bytes with values of 11 | Table | 44.5 |
//! | 100,000 fields of 11 bytes with values of 11 | Expiring, all with a TTL | 107.0 |

mod expiring;

pub use expiring::ExpiringHash;

use crate::collection::{Collection, PackedForm};
use crate::pack::{Element, OneWay, Pack, PackRef};
use crate::pair::Pair;
use crate::table::{Table, has_room};
use crate::{Encoding, OutOfMemory, Value};

/// Maximum size of a packed hash in bytes: Redis's limit of a listpack.
const PACKED_BYTES_MAX: usize = 1 << 30;

/// The limits of a packed hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HashLimits {
    /// `hash-max-listpack-entries`: maximum number of fields.
    pub entries_max: usize,
    /// `hash-max-listpack-value`: maximum length of a field or value, in bytes.
    pub value_bytes_max: usize,
}

/// A hash of fields and values.
#[derive(Debug, PartialEq, Eq)]
pub enum Hash {
    /// The packed form: one byte string.
    Packed(Pack<OneWay>),
    /// A hash table, for any number of fields.
    Table(Box<Table<Pair>>),
    /// A hash of which some fields may expire.
    Expiring(Box<ExpiringHash>),
}

/// A shared view of a [`Hash`](enum@Hash).
#[derive(Clone, Copy, Debug)]
pub enum HashView<'a> {
    /// The packed form: one byte string.
    Packed(PackRef<'a, OneWay>),
    /// A hash table, for any number of fields.
    Table(&'a Table<Pair>),
    /// A hash of which some fields may expire.
    Expiring(&'a ExpiringHash),
}

impl<'a> HashView<'a> {
    /// Returns the encoding that `OBJECT ENCODING` shows.
    pub fn encoding(self) -> Encoding {
        match self {
            HashView::Packed(_) => Encoding::Listpack,
            HashView::Table(_) => Encoding::Hashtable,
            HashView::Expiring(expiring) => match expiring.fields() {
                HashView::Packed(_) => Encoding::ListpackEx,
                _ => Encoding::Hashtable,
            },
        }
    }

    /// Returns the number of fields, including expired ones not yet removed.
    #[inline]
    pub fn len(self) -> usize {
        match self {
            HashView::Packed(pack) => pack.len() / 2,
            HashView::Table(table) => table.len(),
            HashView::Expiring(expiring) => expiring.fields().len(),
        }
    }

    /// Returns whether the new fields among `fields` fit in the hash. Callers check this before
    /// they set the first field.
    #[inline]
    pub fn has_room<'f>(self, fields: impl Iterator<Item = &'f [u8]> + Clone) -> bool {
        has_room(self.len(), fields.clone().count())
            || has_room(self.len(), fields.filter(|field| self.get(field).is_none()).count())
    }

    /// Returns whether there are no fields.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// Returns the value of a field.
    #[inline]
    pub fn get(self, field: &[u8]) -> Option<Element<'a>> {
        match self {
            HashView::Packed(pack) => pack.find(field, pack.first(), 1).map(|at| pack.get(pack.next(at))),
            HashView::Table(table) => find(table, field).map(|index| Element::Bytes(table.get(index).value())),
            HashView::Expiring(expiring) => expiring.fields().get(field),
        }
    }

    /// Prefetches the entries that [`Self::get`] will read, for several fields at once: see
    /// [`Table::prefetch`].
    pub fn prefetch<'f>(self, fields: impl Iterator<Item = &'f [u8]>) {
        if let HashView::Table(table) = self.plain() {
            table.prefetch(fields.map(|field| table.hash(field)));
        }
    }

    /// Returns the field and value at an index less than the length. The order stays the same until
    /// the hash changes. Takes constant time unless the hash is packed.
    pub fn nth(self, index: usize) -> Option<(Element<'a>, Element<'a>)> {
        match self {
            HashView::Packed(pack) => pack.nth(index.checked_mul(2)?).map(|at| (pack.get(at), pack.get(pack.next(at)))),
            HashView::Table(table) => (index < table.len()).then(|| elements(table.get(index))),
            HashView::Expiring(expiring) => expiring.fields().nth(index),
        }
    }

    /// Visits all fields and values. Visits those of a packed hash in insertion order.
    pub fn for_each(self, mut visit: impl FnMut(Element<'a>, Element<'a>)) {
        match self.plain() {
            HashView::Packed(pack) => {
                let mut entries = pack.iter();
                while let (Some(field), Some(value)) = (entries.next(), entries.next()) {
                    visit(field, value);
                }
            }
            HashView::Table(table) => table.iter().map(elements).for_each(|(field, value)| visit(field, value)),
            HashView::Expiring(_) => {}
        }
    }

    /// Returns the number of fields that aren't expired at `now_ms`. Checks all expiry times if any
    /// field is expired.
    pub fn len_at(self, now_ms: i64) -> usize {
        match self {
            HashView::Expiring(expiring) if expiring.has_expired(now_ms) => self.len() - expiring.expired_len(now_ms),
            _ => self.len(),
        }
    }

    /// Visits the fields and values as [`Self::for_each`] does, except those expired at `now_ms`.
    pub fn for_each_at(self, now_ms: i64, mut visit: impl FnMut(Element<'a>, Element<'a>)) {
        if !self.has_expired(now_ms) {
            return self.for_each(visit);
        }
        self.for_each(|field, value| {
            if !field.with_bytes(|field| self.is_expired(field, now_ms)) {
                visit(field, value);
            }
        });
    }

    /// Returns a view of the same fields and values without expiry times.
    #[inline]
    pub fn plain(self) -> HashView<'a> {
        match self {
            HashView::Expiring(expiring) => expiring.fields(),
            plain => plain,
        }
    }

    /// Returns whether any field is expired. Readers must hide expired fields until
    /// [`Hash::expire`] removes them.
    #[inline]
    pub fn has_expired(self, now_ms: i64) -> bool {
        matches!(self, HashView::Expiring(expiring) if expiring.has_expired(now_ms))
    }

    /// Returns a copy without the expired fields.
    ///
    /// # Errors
    /// [`OutOfMemory`] if the copy can't be allocated.
    pub fn without_expired(self, now_ms: i64) -> Result<Hash, OutOfMemory> {
        let mut copy = match self {
            HashView::Packed(pack) => Hash::Packed(pack.to_pack()),
            HashView::Table(table) => Hash::Table(Box::new(table.clone())),
            HashView::Expiring(expiring) => Hash::Expiring(Box::new(expiring.try_clone()?)),
        };
        copy.expire(now_ms, usize::MAX, |_| {});
        Ok(copy)
    }

    /// Returns whether a field is expired at `now_ms`.
    pub fn is_expired(self, field: &[u8], now_ms: i64) -> bool {
        self.expiry(field).is_some_and(|at_ms| at_ms <= now_ms)
    }

    /// Returns a hash with the fields among `fields` that exist and aren't expired, without expiry
    /// times.
    pub fn without_expired_of<'f>(self, fields: impl Iterator<Item = &'f [u8]>, now_ms: i64) -> Hash {
        const LIMITS: HashLimits = HashLimits { entries_max: 128, value_bytes_max: 64 };
        let mut copy = Hash::empty();
        for field in fields.filter(|field| !self.is_expired(field, now_ms)) {
            if let Some(value) = self.get(field) {
                value.with_bytes(|value| copy.set(field, value, LIMITS));
            }
        }
        copy
    }

    /// Returns whether any field has an expiry time.
    pub fn has_expiring_fields(self) -> bool {
        matches!(self, HashView::Expiring(expiring) if expiring.expiring_len() > 0)
    }

    /// Returns the expiry time of a field in Unix milliseconds, or `None` if the field has none.
    pub fn expiry(self, field: &[u8]) -> Option<i64> {
        match self {
            HashView::Expiring(expiring) => expiring.expiry(field),
            _ => None,
        }
    }

    /// Continues a scan, like [`Table::scan`]. A packed hash is visited in one call.
    pub fn scan(self, cursor: u64, visit: &mut dyn FnMut(Element<'_>, Element<'_>)) -> u64 {
        match self.plain() {
            HashView::Packed(_) | HashView::Expiring(_) => {
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
    /// Returns the hash with this pack of fields and values. It becomes a table if it has too many
    /// fields, but not if fields or values are too long, as when Redis loads a hash.
    pub(crate) fn from_pack(pack: Pack<OneWay>, limits: HashLimits) -> Self {
        let mut hash = Hash::Packed(pack);
        if hash.view().len() > limits.entries_max {
            hash.convert(0);
        }
        hash
    }

    /// Converts the hash to a table if fields and values of these lengths don't fit in a packed
    /// hash. Callers pass all lengths of a command before they set the first field, as Redis does.
    pub fn prepare(&mut self, lengths: impl Iterator<Item = usize>, limits: HashLimits) {
        let Hash::Packed(pack) = self.plain_mut() else { return };
        let mut total = pack.as_ref().end();
        for len in lengths {
            total = total.saturating_add(len);
            if len > limits.value_bytes_max || total > PACKED_BYTES_MAX {
                return self.plain_mut().convert(0);
            }
        }
    }

    /// Returns the hash that holds the fields: the inner hash of an [`ExpiringHash`], otherwise
    /// `self`.
    #[inline]
    fn plain_mut(&mut self) -> &mut Hash {
        match self {
            Hash::Expiring(expiring) => &mut expiring.fields,
            plain => plain,
        }
    }

    /// Sets a field and removes its expiry time. Returns whether the field is new.
    #[inline]
    pub fn set(&mut self, field: &[u8], value: &[u8], limits: HashLimits) -> bool {
        if let Hash::Expiring(expiring) = self {
            expiring.clear_expiry(field);
        }
        self.update(field, value, limits)
    }

    /// Sets a field and keeps its expiry time. Returns whether the field is new.
    #[inline]
    pub fn update(&mut self, field: &[u8], value: &[u8], limits: HashLimits) -> bool {
        self.plain_mut().set_plain(field, value, limits)
    }

    #[inline]
    fn set_plain(&mut self, field: &[u8], value: &[u8], limits: HashLimits) -> bool {
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
                // The limit is checked after every write, because it may have been lowered since
                // the last one.
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
            Hash::Expiring(_) => false,
        }
    }

    /// Sets the expiry time of an existing field, in Unix milliseconds.
    pub fn set_expiry(&mut self, field: &[u8], at_ms: i64) {
        if !matches!(self, Hash::Expiring(_)) {
            let fields = std::mem::replace(self, Hash::empty());
            *self = Hash::Expiring(Box::new(ExpiringHash::new(fields)));
        }
        if let Hash::Expiring(expiring) = self {
            expiring.set_expiry(field, at_ms);
        }
    }

    /// Removes the expiry time of a field. Returns whether the field had one.
    pub fn clear_expiry(&mut self, field: &[u8]) -> bool {
        match self {
            Hash::Expiring(expiring) => expiring.clear_expiry(field),
            _ => false,
        }
    }

    /// Removes at most `most` expired fields and calls `removed` with each. Returns the number of
    /// removed fields.
    #[inline]
    pub fn expire(&mut self, now_ms: i64, most: usize, removed: impl FnMut(&[u8])) -> usize {
        match self {
            Hash::Expiring(expiring) => expiring.expire(now_ms, most, removed),
            _ => 0,
        }
    }

    /// Removes a field if it is expired. Returns whether the field was removed.
    pub fn expire_field(&mut self, field: &[u8], now_ms: i64) -> bool {
        match self {
            Hash::Expiring(expiring) => expiring.expire_field(field, now_ms),
            _ => false,
        }
    }

    /// Removes a field. Returns whether the field existed.
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
            Hash::Expiring(expiring) => {
                expiring.clear_expiry(field);
                expiring.fields.remove(field)
            }
        }
    }

    /// Converts a packed hash to a table, with space for `more` additional fields.
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
            Hash::Expiring(expiring) => HashView::Expiring(expiring),
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
            Hash::Table(_) | Hash::Expiring(_) => None,
        }
    }

    fn into_packed(self) -> Option<Vec<u8>> {
        match self {
            Hash::Packed(pack) => Some(pack.into_vec()),
            Hash::Table(_) | Hash::Expiring(_) => None,
        }
    }

    fn is_empty(&self) -> bool {
        match self {
            Hash::Packed(pack) => pack.as_ref().is_empty(),
            Hash::Table(table) => table.is_empty(),
            Hash::Expiring(expiring) => expiring.fields.is_empty(),
        }
    }

    fn allocated_bytes(&self) -> usize {
        match self {
            Hash::Packed(pack) => pack.allocated_bytes(),
            Hash::Table(table) => size_of::<Table<Pair>>() + table.allocated_bytes(),
            Hash::Expiring(expiring) => size_of::<ExpiringHash>() + expiring.allocated_bytes(),
        }
    }

    fn try_clone(&self) -> Result<Self, OutOfMemory> {
        Ok(match self {
            Hash::Packed(pack) => Hash::Packed(pack.as_ref().to_pack()),
            Hash::Table(table) => Hash::Table(table.clone()),
            Hash::Expiring(expiring) => Hash::Expiring(Box::new(expiring.try_clone()?)),
        })
    }
}

#[cfg(test)]
mod tests;
