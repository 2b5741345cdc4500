//! What lists, sets, hashes and sorted sets have in common, so that the engine can keep any of them.
//!
//! A small collection is *packed*: bytes that live inside its dictionary entry, as a short string does, with a
//! [`PackedForm`] beside them; reading it costs no further cache miss, and it takes no memory of its own. Anything larger or
//! otherwise built is a [`Value`] on the heap. Commands see neither: they read a [`Collection::View`] and change a
//! [`Collection`], and the engine moves it in and out of the entry.

use crate::{Encoding, OutOfMemory, Value};

/// Longest packed collection that lives inside its entry, bytes: a change copies it, so it stays short.
pub const INLINE_PACKED_BYTES_MAX: usize = 512;

/// What the bytes of a packed collection are. The numbers stand in dictionary entries (user flags).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum PackedForm {
    /// A list: a pack of its elements.
    List = 3,
    /// A hash: a pack of field, value, field, value ….
    Hash = 4,
    /// A sorted set: a pack of member, score, member, score …, in order.
    SortedSet = 5,
    /// A set of integers: the bytes of an intset.
    IntSet = 6,
    /// A set of strings: a pack of its members.
    Set = 7,
}

impl PackedForm {
    /// The form of that number; `None` for those that mean strings.
    #[inline]
    pub fn from_number(number: u8) -> Option<Self> {
        match number {
            3 => Some(PackedForm::List),
            4 => Some(PackedForm::Hash),
            5 => Some(PackedForm::SortedSet),
            6 => Some(PackedForm::IntSet),
            7 => Some(PackedForm::Set),
            _ => None,
        }
    }

    /// The encoding that `OBJECT ENCODING` answers: what Redis would have made of it.
    pub fn encoding(self) -> Encoding {
        match self {
            PackedForm::List => Encoding::Quicklist,
            PackedForm::Hash | PackedForm::SortedSet => Encoding::Listpack,
            PackedForm::IntSet => Encoding::Intset,
            PackedForm::Set => Encoding::Hashtable,
        }
    }

    /// The name that the `TYPE` command answers.
    pub fn type_name(self) -> &'static str {
        match self {
            PackedForm::List => "list",
            PackedForm::Hash => "hash",
            PackedForm::SortedSet => "zset",
            PackedForm::IntSet | PackedForm::Set => "set",
        }
    }
}

/// A list, set, hash, sorted set or stream.
pub trait Collection: Sized + 'static {
    /// The collection, to be read.
    type View<'a>: Copy;

    /// An empty one, in its smallest form.
    fn empty() -> Self;

    /// The collection that a heap value is; `None`: another type.
    fn of(value: &Value) -> Option<&Self>;

    /// As [`Self::of`], to be changed.
    fn of_mut(value: &mut Value) -> Option<&mut Self>;

    /// As a heap value.
    fn into_value(self) -> Value;

    /// To be read.
    fn view(&self) -> Self::View<'_>;

    /// The packed collection of these bytes, to be read; `None`: another type.
    fn view_packed(form: PackedForm, bytes: &[u8]) -> Option<Self::View<'_>>;

    /// The packed collection of these bytes; `Err` gives them back: another type.
    fn from_packed(form: PackedForm, bytes: Vec<u8>) -> Result<Self, Vec<u8>>;

    /// Its bytes where it is packed.
    fn packed(&self) -> Option<(PackedForm, &[u8])>;

    /// Its bytes where it is packed, with the room they have, to be used again.
    fn into_packed(self) -> Option<Vec<u8>>;

    /// Whether nothing is in it. An empty collection is removed with its key (but for a stream).
    fn is_empty(&self) -> bool;

    /// Bytes of heap that it takes, without its own `size_of`. Constant time: it is asked before and after each change.
    fn allocated_bytes(&self) -> usize;

    /// A copy (`COPY`).
    ///
    /// # Errors
    /// [`OutOfMemory`] when the allocator refuses.
    fn try_clone(&self) -> Result<Self, OutOfMemory>;
}
