//! A list of strings.

use crate::collection::{Collection, PackedForm};
use crate::pack::{Pack, PackRef};
use crate::{Encoding, OutOfMemory, Value};

/// A list of strings.
#[derive(Debug, PartialEq, Eq)]
pub enum List {
    /// In one piece.
    Packed(Pack),
}

/// A [`List`], to be read.
#[derive(Clone, Copy, Debug)]
pub enum ListView<'a> {
    /// In one piece.
    Packed(PackRef<'a>),
}

impl ListView<'_> {
    /// The encoding that `OBJECT ENCODING` answers.
    pub fn encoding(self) -> Encoding {
        match self {
            ListView::Packed(_) => Encoding::Quicklist,
        }
    }
}

impl Collection for List {
    type View<'a> = ListView<'a>;

    fn empty() -> Self {
        List::Packed(Pack::new())
    }

    fn of(value: &Value) -> Option<&Self> {
        if let Value::List(found) = value { Some(found) } else { None }
    }

    fn of_mut(value: &mut Value) -> Option<&mut Self> {
        if let Value::List(found) = value { Some(found) } else { None }
    }

    fn into_value(self) -> Value {
        Value::List(self)
    }

    fn view(&self) -> ListView<'_> {
        match self {
            List::Packed(pack) => ListView::Packed(pack.as_ref()),
        }
    }

    fn view_packed(form: PackedForm, bytes: &[u8]) -> Option<ListView<'_>> {
        (form == PackedForm::List).then(|| ListView::Packed(PackRef::new(bytes)))
    }

    fn from_packed(form: PackedForm, bytes: Vec<u8>) -> Result<Self, Vec<u8>> {
        if form == PackedForm::List { Ok(List::Packed(Pack::from_vec(bytes))) } else { Err(bytes) }
    }

    fn packed(&self) -> Option<(PackedForm, &[u8])> {
        match self {
            List::Packed(pack) => Some((PackedForm::List, pack.as_ref().as_bytes())),
        }
    }

    fn into_packed(self) -> Option<Vec<u8>> {
        match self {
            List::Packed(pack) => Some(pack.into_vec()),
        }
    }

    fn is_empty(&self) -> bool {
        match self {
            List::Packed(pack) => pack.as_ref().is_empty(),
        }
    }

    fn allocated_bytes(&self) -> usize {
        match self {
            List::Packed(pack) => pack.allocated_bytes(),
        }
    }

    fn try_clone(&self) -> Result<Self, OutOfMemory> {
        match self {
            List::Packed(pack) => Ok(List::Packed(pack.as_ref().to_pack())),
        }
    }
}
