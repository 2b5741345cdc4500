//! What an entry of the dictionary holds, and in which form a string is put into one.

use pantala_dict::{Dict, EntryRef, NewPayload, Payload};
use pantala_types::collection::{Collection, PackedForm};
use pantala_types::{OutOfMemory, RawString, Value};

use crate::command::Key;

/// User flag of an entry: a short string that Redis would call `raw`, since it came from `APPEND` or `SETRANGE`.
pub const FLAG_RAW: u8 = 1;

/// User flag of an entry: a small integer that Redis would not share with other keys, since `COPY` made it
/// (`OBJECT REFCOUNT` shows it).
pub const FLAG_UNSHARED: u8 = 2;

/// The key holds a value of another type than was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WrongType;

/// What an entry's payload and user flags say of its type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held<'e> {
    /// A string kept as an integer.
    Int(i64),
    /// A string inside the entry.
    Bytes(&'e [u8]),
    /// A packed collection inside the entry.
    Packed(PackedForm, &'e [u8]),
    /// A value on the heap.
    Heap(&'e Value),
}

impl<'e> Held<'e> {
    /// What an entry holds, from its payload and user flags.
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

    /// The name that the `TYPE` command answers.
    pub fn type_name(self) -> &'static str {
        match self {
            Held::Int(_) | Held::Bytes(_) => "string",
            Held::Packed(form, _) => form.type_name(),
            Held::Heap(value) => value.type_name(),
        }
    }

    /// The collection of a type, if it is one.
    #[inline]
    pub fn view<C: Collection>(self) -> Option<C::View<'e>> {
        match self {
            Held::Packed(form, bytes) => C::view_packed(form, bytes),
            Held::Heap(value) => C::of(value).map(C::view),
            Held::Int(_) | Held::Bytes(_) => None,
        }
    }
}

/// An entry of the dictionary, which knows what it holds.
pub trait Holds<'e> {
    /// Returns what it holds.
    fn held(&self) -> Held<'e>;
}

impl<'e> Holds<'e> for EntryRef<'e, Value> {
    #[inline]
    fn held(&self) -> Held<'e> {
        Held::of(self.payload(), self.user_flags())
    }
}

/// A string to be stored.
pub enum NewString<'a> {
    /// As an integer.
    Int(i64),
    /// As bytes.
    Bytes(&'a [u8]),
    /// As bytes that are `raw` whatever their length.
    Raw(&'a [u8]),
    /// As a large string that exists already.
    Large(RawString),
}

impl<'a> NewString<'a> {
    /// The form that Redis chooses for a value that a client sent: an integer where it is one.
    #[inline]
    pub fn encode(bytes: &'a [u8]) -> Self {
        match pantala_types::encode(bytes) {
            pantala_types::Encoded::Int(value) => NewString::Int(value),
            pantala_types::Encoded::Bytes => NewString::Bytes(bytes),
        }
    }
}

/// Whether a string of `len` bytes fits inside the entry of a key.
#[inline]
pub fn fits_inline(key: &[u8], len: usize) -> bool {
    Dict::<Value>::fits_inline(key.len(), len)
}

/// How a string is kept under a key: in the entry where it fits.
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
