//! A hash of fields and values.

use crate::collection::{Collection, PackedForm};
use crate::pack::{Pack, PackRef};
use crate::{Encoding, OutOfMemory, Value};

/// A hash of fields and values.
#[derive(Debug, PartialEq, Eq)]
pub enum Hash {
    /// In one piece.
    Packed(Pack),
}

/// A [`Hash`], to be read.
#[derive(Clone, Copy, Debug)]
pub enum HashView<'a> {
    /// In one piece.
    Packed(PackRef<'a>),
}

impl HashView<'_> {
    /// The encoding that `OBJECT ENCODING` answers.
    pub fn encoding(self) -> Encoding {
        match self {
            HashView::Packed(_) => Encoding::Listpack,
        }
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
        }
    }

    fn into_packed(self) -> Option<Vec<u8>> {
        match self {
            Hash::Packed(pack) => Some(pack.into_vec()),
        }
    }

    fn is_empty(&self) -> bool {
        match self {
            Hash::Packed(pack) => pack.as_ref().is_empty(),
        }
    }

    fn allocated_bytes(&self) -> usize {
        match self {
            Hash::Packed(pack) => pack.allocated_bytes(),
        }
    }

    fn try_clone(&self) -> Result<Self, OutOfMemory> {
        match self {
            Hash::Packed(pack) => Ok(Hash::Packed(pack.as_ref().to_pack())),
        }
    }
}
