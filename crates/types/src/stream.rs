//! A stream: entries of fields and values, ordered by id, with consumer groups.

use crate::collection::{Collection, PackedForm};
use crate::{Encoding, OutOfMemory, Value};

/// A stream. It never lives inside its dictionary entry, and may be empty.
#[derive(Debug, PartialEq, Eq, Default)]
pub struct Stream {}

impl Stream {
    /// The encoding that `OBJECT ENCODING` answers.
    pub fn encoding(&self) -> Encoding {
        Encoding::Stream
    }
}

impl Collection for Box<Stream> {
    type View<'a> = &'a Stream;

    fn empty() -> Self {
        Box::default()
    }

    fn of(value: &Value) -> Option<&Self> {
        if let Value::Stream(found) = value { Some(found) } else { None }
    }

    fn of_mut(value: &mut Value) -> Option<&mut Self> {
        if let Value::Stream(found) = value { Some(found) } else { None }
    }

    fn into_value(self) -> Value {
        Value::Stream(self)
    }

    fn view(&self) -> &Stream {
        self
    }

    fn view_packed(_: PackedForm, _: &[u8]) -> Option<&Stream> {
        None
    }

    fn from_packed(_: PackedForm, bytes: Vec<u8>) -> Result<Self, Vec<u8>> {
        Err(bytes)
    }

    fn packed(&self) -> Option<(PackedForm, &[u8])> {
        None
    }

    fn into_packed(self) -> Option<Vec<u8>> {
        None
    }

    fn is_empty(&self) -> bool {
        false
    }

    fn allocated_bytes(&self) -> usize {
        size_of::<Stream>()
    }

    fn try_clone(&self) -> Result<Self, OutOfMemory> {
        Ok(Box::default())
    }
}
