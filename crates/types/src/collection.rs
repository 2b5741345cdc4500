//! The interface [`Collection`], through which the engine stores lists, sets, hashes, sorted sets
//! and streams.
//!
//! A small collection is *packed*: stored as one byte string. A packed collection of at most
//! [`INLINE_PACKED_BYTES_MAX`] bytes lies inside its dictionary entry, as a short string does,
//! unless the key is too long. The entry's flags then hold the collection's [`PackedForm`]. Such a
//! collection takes no heap memory, and reading it costs no further cache miss. Any other
//! collection is a [`Value`] on the heap.
//!
//! Commands don't see whether a collection is packed: they read a [`Collection::View`] and change a
//! [`Collection`]. The engine moves the collection into and out of the entry.

use crate::{Encoding, OutOfMemory, Value};

/// Maximum size of a packed collection inside its entry, in bytes. The maximum is small because
/// every change copies the bytes.
pub const INLINE_PACKED_BYTES_MAX: usize = 512;

/// The type of a packed collection. The numbers are stored in dictionary entries (user flags).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum PackedForm {
    /// A list: a pack ([`crate::pack`]) of its elements.
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
    /// Returns the form with this number, or `None` if entries with these user flags hold a string.
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

    /// Returns the encoding that `OBJECT ENCODING` shows: the one that Redis would use.
    pub fn encoding(self) -> Encoding {
        match self {
            PackedForm::List => Encoding::Quicklist,
            PackedForm::Hash | PackedForm::SortedSet => Encoding::Listpack,
            PackedForm::IntSet => Encoding::Intset,
            PackedForm::Set => Encoding::Hashtable,
        }
    }

    /// Returns the name that `TYPE` shows.
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
    /// A shared view of the collection.
    type View<'a>: Copy;

    /// Returns an empty collection in its smallest form.
    fn empty() -> Self;

    /// Returns the collection in a heap value, or `None` if the value has another type.
    fn of(value: &Value) -> Option<&Self>;

    /// Returns the collection in a heap value for changes, or `None` if the value has another type.
    fn of_mut(value: &mut Value) -> Option<&mut Self>;

    /// Converts the collection to a heap value.
    fn into_value(self) -> Value;

    /// Returns a shared view.
    fn view(&self) -> Self::View<'_>;

    /// Returns a view of a packed collection, or `None` if `form` belongs to another type.
    fn view_packed(form: PackedForm, bytes: &[u8]) -> Option<Self::View<'_>>;

    /// Returns the collection with these packed bytes, or `Err(bytes)` if `form` belongs to another
    /// type.
    fn from_packed(form: PackedForm, bytes: Vec<u8>) -> Result<Self, Vec<u8>>;

    /// Returns the form and the bytes of a packed collection, or `None` if the collection isn't
    /// packed.
    fn packed(&self) -> Option<(PackedForm, &[u8])>;

    /// Returns the bytes of a packed collection with their spare capacity, for reuse. Returns
    /// `None` if the collection isn't packed.
    fn into_packed(self) -> Option<Vec<u8>>;

    /// Returns whether there are no elements. The engine deletes the key of an empty collection.
    /// Returns `false` for every stream, because a stream may be empty.
    fn is_empty(&self) -> bool;

    /// Returns the size of the collection's heap memory in bytes, excluding `size_of::<Self>()`.
    /// Implementations must take constant time, because the engine calls this method before and
    /// after each change.
    fn allocated_bytes(&self) -> usize;

    /// Returns a copy (`COPY`).
    ///
    /// # Errors
    /// [`OutOfMemory`] if the copy can't be allocated.
    fn try_clone(&self) -> Result<Self, OutOfMemory>;
}
