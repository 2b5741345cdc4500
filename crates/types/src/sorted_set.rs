//! A sorted set: members ordered by score.

use crate::collection::{Collection, PackedForm};
use crate::pack::{Pack, PackRef};
use crate::{Encoding, OutOfMemory, Value};

/// A sorted set: members ordered by score.
#[derive(Debug, PartialEq, Eq)]
pub enum SortedSet {
    /// In one piece.
    Packed(Pack),
}

/// A [`SortedSet`], to be read.
#[derive(Clone, Copy, Debug)]
pub enum SortedSetView<'a> {
    /// In one piece.
    Packed(PackRef<'a>),
}

impl SortedSetView<'_> {
    /// The encoding that `OBJECT ENCODING` answers.
    pub fn encoding(self) -> Encoding {
        match self {
            SortedSetView::Packed(_) => Encoding::Listpack,
        }
    }
}

impl Collection for SortedSet {
    type View<'a> = SortedSetView<'a>;

    fn empty() -> Self {
        SortedSet::Packed(Pack::new())
    }

    fn of(value: &Value) -> Option<&Self> {
        if let Value::SortedSet(found) = value { Some(found) } else { None }
    }

    fn of_mut(value: &mut Value) -> Option<&mut Self> {
        if let Value::SortedSet(found) = value { Some(found) } else { None }
    }

    fn into_value(self) -> Value {
        Value::SortedSet(self)
    }

    fn view(&self) -> SortedSetView<'_> {
        match self {
            SortedSet::Packed(pack) => SortedSetView::Packed(pack.as_ref()),
        }
    }

    fn view_packed(form: PackedForm, bytes: &[u8]) -> Option<SortedSetView<'_>> {
        (form == PackedForm::SortedSet).then(|| SortedSetView::Packed(PackRef::new(bytes)))
    }

    fn from_packed(form: PackedForm, bytes: Vec<u8>) -> Result<Self, Vec<u8>> {
        if form == PackedForm::SortedSet { Ok(SortedSet::Packed(Pack::from_vec(bytes))) } else { Err(bytes) }
    }

    fn packed(&self) -> Option<(PackedForm, &[u8])> {
        match self {
            SortedSet::Packed(pack) => Some((PackedForm::SortedSet, pack.as_ref().as_bytes())),
        }
    }

    fn into_packed(self) -> Option<Vec<u8>> {
        match self {
            SortedSet::Packed(pack) => Some(pack.into_vec()),
        }
    }

    fn is_empty(&self) -> bool {
        match self {
            SortedSet::Packed(pack) => pack.as_ref().is_empty(),
        }
    }

    fn allocated_bytes(&self) -> usize {
        match self {
            SortedSet::Packed(pack) => pack.allocated_bytes(),
        }
    }

    fn try_clone(&self) -> Result<Self, OutOfMemory> {
        match self {
            SortedSet::Packed(pack) => Ok(SortedSet::Packed(pack.as_ref().to_pack())),
        }
    }
}
