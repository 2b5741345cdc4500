//! The content of a dictionary entry by type, and the form in which a string is stored.

use pantala_dict::{Dict, EntryRef, NewPayload, Payload};
use pantala_types::collection::{Collection, PackedForm};
use pantala_types::{OutOfMemory, RawString, Value};

use crate::command::Key;

/// User flag of an entry: the value is a short string whose encoding is nevertheless `raw`, because
/// a command such as `APPEND`, `SETBIT` or `PFADD` created it.
pub const FLAG_RAW: u8 = 1;

/// User flag of an entry: the value is a small integer for which Redis would not use its shared
/// object, because `COPY` created it. `OBJECT REFCOUNT` shows the difference.
pub const FLAG_UNSHARED: u8 = 2;

/// Error: the key holds a value of another type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WrongType;

/// The content of an entry, from its payload and user flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held<'e> {
    /// A string stored as an integer.
    Int(i64),
    /// A string inside the entry.
    Bytes(&'e [u8]),
    /// A packed collection inside the entry.
    Packed(PackedForm, &'e [u8]),
    /// A value on the heap.
    Heap(&'e Value),
}

impl<'e> Held<'e> {
    /// Returns the content for a payload and user flags.
    #[inline]
    pub fn of(payload: Payload<'e, Value>, user_flags: u8) -> Self {
        match payload {
            Payload::Int(value) => Held::Int(value),
            Payload::Heap(value) => Held::Heap(value),
            Payload::Bytes(bytes) => match PackedForm::from_number(user_flags) {
                None => Held::Bytes(bytes),
                Some(form) => Held::Packed(form, bytes),
            },
        }
    }

    /// Returns the name that the `TYPE` command replies.
    pub fn type_name(self) -> &'static str {
        match self {
            Held::Int(_) | Held::Bytes(_) => "string",
            Held::Packed(form, _) => form.type_name(),
            Held::Heap(value) => value.type_name(),
        }
    }

    /// Returns the collection, if the content has this type.
    #[inline]
    pub fn view<C: Collection>(self) -> Option<C::View<'e>> {
        match self {
            Held::Packed(form, bytes) => C::view_packed(form, bytes),
            Held::Heap(value) => C::of(value).map(C::view),
            Held::Int(_) | Held::Bytes(_) => None,
        }
    }
}

/// An entry of the dictionary that can return its content.
pub trait Holds<'e> {
    /// Returns the content.
    fn held(&self) -> Held<'e>;
}

impl<'e> Holds<'e> for EntryRef<'e, Value> {
    #[inline]
    fn held(&self) -> Held<'e> {
        Held::of(self.payload(), self.user_flags())
    }
}

/// A string to store, and its form.
pub enum NewString<'a> {
    /// An integer.
    Int(i64),
    /// Bytes.
    Bytes(&'a [u8]),
    /// Bytes with the encoding `raw`, whatever their length.
    Raw(&'a [u8]),
    /// An existing large string.
    Large(RawString),
}

impl<'a> NewString<'a> {
    /// Returns the form that Redis chooses for a client's value: an integer if the bytes represent
    /// one.
    #[inline]
    pub fn encode(bytes: &'a [u8]) -> Self {
        match pantala_types::encode(bytes) {
            pantala_types::Encoded::Int(value) => NewString::Int(value),
            pantala_types::Encoded::Bytes => NewString::Bytes(bytes),
        }
    }
}

/// Returns whether a string of `len` bytes fits inside the entry of a key.
#[inline]
pub fn fits_inline(key: &[u8], len: usize) -> bool {
    Dict::<Value>::fits_inline(key.len(), len)
}

/// Returns the payload for a string, inside the entry if it fits, and the entry's user flags. Fails
/// if the allocator fails.
#[inline]
pub fn payload_of<'v>(key: &Key<'_>, value: NewString<'v>) -> Result<(NewPayload<'v, Value>, u8), OutOfMemory> {
    let (bytes, flags) = match value {
        NewString::Int(value) => return Ok((NewPayload::Int(value), 0)),
        NewString::Large(string) => return Ok((NewPayload::Heap(Value::String(string)), FLAG_RAW)),
        NewString::Bytes(bytes) => (bytes, 0),
        NewString::Raw(bytes) => (bytes, FLAG_RAW),
    };
    if fits_inline(key.bytes, bytes.len()) {
        Ok((NewPayload::Bytes(bytes), flags))
    } else {
        Ok((NewPayload::Heap(Value::String(RawString::try_from_slice(bytes)?)), flags))
    }
}
