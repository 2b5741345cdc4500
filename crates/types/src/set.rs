//! A set of strings.

use crate::collection::{Collection, PackedForm};
use crate::pack::{Pack, PackRef};
use crate::{Encoding, OutOfMemory, Value};

/// A set of strings.
#[derive(Debug, PartialEq, Eq)]
pub enum Set {
    /// In one piece.
    Packed(Pack),
}

/// A [`Set`], to be read.
#[derive(Clone, Copy, Debug)]
pub enum SetView<'a> {
    /// In one piece.
    Packed(PackRef<'a>),
}

impl SetView<'_> {
    /// The encoding that `OBJECT ENCODING` answers.
    pub fn encoding(self) -> Encoding {
        match self {
            SetView::Packed(_) => Encoding::Hashtable,
        }
    }
}

impl Collection for Set {
    type View<'a> = SetView<'a>;

    fn empty() -> Self {
        Set::Packed(Pack::new())
    }

    fn of(value: &Value) -> Option<&Self> {
        if let Value::Set(found) = value { Some(found) } else { None }
    }

    fn of_mut(value: &mut Value) -> Option<&mut Self> {
        if let Value::Set(found) = value { Some(found) } else { None }
    }

    fn into_value(self) -> Value {
        Value::Set(self)
    }

    fn view(&self) -> SetView<'_> {
        match self {
            Set::Packed(pack) => SetView::Packed(pack.as_ref()),
        }
    }

    fn view_packed(form: PackedForm, bytes: &[u8]) -> Option<SetView<'_>> {
        (form == PackedForm::Set).then(|| SetView::Packed(PackRef::new(bytes)))
    }

    fn from_packed(form: PackedForm, bytes: Vec<u8>) -> Result<Self, Vec<u8>> {
        if form == PackedForm::Set { Ok(Set::Packed(Pack::from_vec(bytes))) } else { Err(bytes) }
    }

    fn packed(&self) -> Option<(PackedForm, &[u8])> {
        match self {
            Set::Packed(pack) => Some((PackedForm::Set, pack.as_ref().as_bytes())),
        }
    }

    fn into_packed(self) -> Option<Vec<u8>> {
        match self {
            Set::Packed(pack) => Some(pack.into_vec()),
        }
    }

    fn is_empty(&self) -> bool {
        match self {
            Set::Packed(pack) => pack.as_ref().is_empty(),
        }
    }

    fn allocated_bytes(&self) -> usize {
        match self {
            Set::Packed(pack) => pack.allocated_bytes(),
        }
    }

    fn try_clone(&self) -> Result<Self, OutOfMemory> {
        match self {
            Set::Packed(pack) => Ok(Set::Packed(pack.as_ref().to_pack())),
        }
    }
}
