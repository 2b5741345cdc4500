//! The heap value of a dictionary entry, for values that don't fit inside the entry.

use crate::collection::{Collection, PackedForm};
use crate::{Encoding, Hash, List, OutOfMemory, RawString, Set, SortedSet, Stream};

/// A value on the heap: the payload type of the dictionary.
///
/// A string or a packed collection is a heap value only if it is too large for its dictionary
/// entry.
#[derive(Debug, PartialEq, Eq)]
pub enum Value {
    /// A string too large to live inside its dictionary entry.
    String(RawString),
    /// A list.
    List(List),
    /// A hash.
    Hash(Hash),
    /// A set.
    Set(Set),
    /// A sorted set.
    SortedSet(SortedSet),
    /// A stream.
    Stream(Box<Stream>),
}

impl Value {
    /// Returns the heap value of a packed collection too large for an entry.
    #[must_use]
    pub fn from_packed(form: PackedForm, bytes: Vec<u8>) -> Value {
        fn value<C: Collection>(form: PackedForm, bytes: Vec<u8>) -> Value {
            // Never fails: each form belongs to the type requested here.
            C::from_packed(form, bytes).unwrap_or_else(|_| C::empty()).into_value()
        }
        match form {
            PackedForm::List => value::<List>(form, bytes),
            PackedForm::Hash => value::<Hash>(form, bytes),
            PackedForm::SortedSet => value::<SortedSet>(form, bytes),
            PackedForm::IntSet | PackedForm::Set => value::<Set>(form, bytes),
        }
    }

    /// Returns the name that `TYPE` shows.
    #[must_use]
    pub fn type_name(&self) -> &'static str {
        match self {
            Value::String(_) => "string",
            Value::List(_) => "list",
            Value::Hash(_) => "hash",
            Value::Set(_) => "set",
            Value::SortedSet(_) => "zset",
            Value::Stream(_) => "stream",
        }
    }

    /// Returns the encoding that `OBJECT ENCODING` shows. A string on the heap counts as raw
    /// whatever its length. (A short and unchanged string is on the heap only if its key leaves too
    /// little room in the entry.)
    #[must_use]
    pub fn encoding(&self) -> Encoding {
        match self {
            Value::String(_) => Encoding::Raw,
            Value::List(list) => list.view().encoding(),
            Value::Hash(hash) => hash.view().encoding(),
            Value::Set(set) => set.view().encoding(),
            Value::SortedSet(set) => set.view().encoding(),
            Value::Stream(stream) => stream.encoding(),
        }
    }

    /// Returns the size of the heap memory that the value owns, in bytes. Excludes
    /// `size_of::<Value>()`, which the dictionary's box counts. Takes constant time.
    #[must_use]
    pub fn allocated_bytes(&self) -> usize {
        match self {
            Value::String(string) => string.allocated_bytes(),
            Value::List(list) => list.allocated_bytes(),
            Value::Hash(hash) => hash.allocated_bytes(),
            Value::Set(set) => set.allocated_bytes(),
            Value::SortedSet(set) => set.allocated_bytes(),
            Value::Stream(stream) => stream.allocated_bytes(),
        }
    }

    /// Returns the approximate number of the value's heap blocks, a measure of the cost of freeing
    /// the value. Takes constant time.
    #[must_use]
    pub fn heap_blocks(&self) -> usize {
        match self {
            Value::String(_) => 1,
            Value::List(list) => list.view().runs(),
            Value::Hash(hash) if hash.view().encoding() == Encoding::Hashtable => hash.view().len(),
            Value::Set(set) if set.view().encoding() == Encoding::Hashtable => set.view().len(),
            Value::SortedSet(set) if set.view().encoding() == Encoding::Skiplist => set.view().len(),
            Value::Hash(_) | Value::Set(_) | Value::SortedSet(_) => 1,
            Value::Stream(stream) => stream.nodes_len(),
        }
    }

    /// Prefetches the memory that commands on these members or fields of a large set or hash will
    /// read: see [`Table::prefetch`](crate::table::Table::prefetch). Does nothing for other types.
    pub fn prefetch<'m>(&self, members: impl Iterator<Item = &'m [u8]>) {
        match self {
            Value::Set(set) => set.view().prefetch(members),
            Value::Hash(hash) => hash.view().prefetch(members),
            Value::String(_) | Value::List(_) | Value::SortedSet(_) | Value::Stream(_) => {}
        }
    }

    /// Returns a copy without spare capacity (`COPY`).
    ///
    /// # Errors
    /// [`OutOfMemory`] if the copy can't be allocated.
    pub fn try_clone(&self) -> Result<Value, OutOfMemory> {
        Ok(match self {
            Value::String(string) => Value::String(string.try_clone()?),
            Value::List(list) => Value::List(list.try_clone()?),
            Value::Hash(hash) => Value::Hash(hash.try_clone()?),
            Value::Set(set) => Value::Set(set.try_clone()?),
            Value::SortedSet(set) => Value::SortedSet(set.try_clone()?),
            Value::Stream(stream) => Value::Stream(stream.try_clone()?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_heap_string_is_raw_and_counts_its_buffer() {
        let mut string = RawString::try_from_slice(&[b'x'; 100]).unwrap();
        string.try_append(b"y").unwrap();
        let value = Value::String(string);
        assert_eq!(value.type_name(), "string");
        assert_eq!(value.encoding(), Encoding::Raw);
        assert_eq!(value.allocated_bytes(), 202);
        let copy = value.try_clone().unwrap();
        assert_eq!(copy, value);
        assert_eq!(copy.allocated_bytes(), 101);
    }

    /// The documentation and the dictionary's box assume this size.
    #[test]
    fn value_is_four_words() {
        assert!(size_of::<Value>() <= 32, "{}", size_of::<Value>());
    }
}
