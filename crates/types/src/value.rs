//! What a dictionary entry points at when its value doesn't fit inside the entry.

use crate::{Encoding, OutOfMemory, RawString};

/// A value on the heap: the payload type of the dictionary.
///
/// A string is here only when it is too large for its entry; later types add variants.
#[derive(Debug, PartialEq, Eq)]
pub enum Value {
    /// A string too large to live inside its dictionary entry.
    String(RawString),
}

impl Value {
    /// The name that the `TYPE` command answers.
    #[must_use]
    pub fn type_name(&self) -> &'static str {
        match self {
            Value::String(_) => "string",
        }
    }

    /// The encoding that `OBJECT ENCODING` answers. A string on the heap is raw whatever its length: had it been short
    /// and unchanged, it would be inside its entry.
    #[must_use]
    pub fn encoding(&self) -> Encoding {
        match self {
            Value::String(_) => Encoding::Raw,
        }
    }

    /// Bytes that this value holds on the heap, without its own `size_of` (which the dictionary's box holds).
    #[must_use]
    pub fn allocated_bytes(&self) -> usize {
        match self {
            Value::String(string) => string.allocated_bytes(),
        }
    }

    /// A copy with buffers of exactly the needed size (COPY).
    ///
    /// # Errors
    /// [`OutOfMemory`] when the allocator refuses.
    pub fn try_clone(&self) -> Result<Value, OutOfMemory> {
        match self {
            Value::String(string) => string.try_clone().map(Value::String),
        }
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
    fn value_is_three_words() {
        assert_eq!(size_of::<Value>(), 24);
    }
}
