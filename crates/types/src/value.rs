//! What a dictionary entry points at when its value doesn't fit inside the entry.

use crate::collection::{Collection, PackedForm};
use crate::{Encoding, Hash, List, OutOfMemory, RawString, Set, SortedSet, Stream};

/// A value on the heap: the payload type of the dictionary.
///
/// A string or a packed collection is here only when it is too large for its entry.
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
    /// The heap value that a packed collection becomes where it doesn't fit an entry.
    #[must_use]
    pub fn from_packed(form: PackedForm, bytes: Vec<u8>) -> Value {
        fn value<C: Collection>(form: PackedForm, bytes: Vec<u8>) -> Value {
            // Each form belongs to the type that is asked here.
            C::from_packed(form, bytes).unwrap_or_else(|_| C::empty()).into_value()
        }
        match form {
            PackedForm::List => value::<List>(form, bytes),
            PackedForm::Hash => value::<Hash>(form, bytes),
            PackedForm::SortedSet => value::<SortedSet>(form, bytes),
            PackedForm::IntSet | PackedForm::Set => value::<Set>(form, bytes),
        }
    }

    /// The name that the `TYPE` command answers.
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

    /// The encoding that `OBJECT ENCODING` answers. A string on the heap is raw whatever its length: had it been short
    /// and unchanged, it would be inside its entry.
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

    /// Bytes that this value holds on the heap, without its own `size_of` (which the dictionary's box holds). Constant time.
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

    /// About how many pieces of memory it takes to be freed: what freeing it costs. Constant time.
    #[must_use]
    pub fn pieces(&self) -> usize {
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

    /// Has what commands on these members or fields will read of a large set or hash brought near: see
    /// [`Table::prefetch`](crate::table::Table::prefetch). Other types do nothing.
    pub fn prefetch<'m>(&self, members: impl Iterator<Item = &'m [u8]>) {
        match self {
            Value::Set(set) => set.view().prefetch(members),
            Value::Hash(hash) => hash.view().prefetch(members),
            Value::String(_) | Value::List(_) | Value::SortedSet(_) | Value::Stream(_) => {}
        }
    }

    /// A copy with buffers of exactly the needed size (COPY).
    ///
    /// # Errors
    /// [`OutOfMemory`] when the allocator refuses.
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

    /// The head page's arithmetic, and the dictionary's box: a change of size should be noticed.
    #[test]
    fn value_is_four_words() {
        assert!(size_of::<Value>() <= 32, "{}", size_of::<Value>());
    }
}
