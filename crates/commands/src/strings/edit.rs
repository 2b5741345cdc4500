//! Changing a string in place, wherever the dictionary keeps it. It is `raw` from then on; its time to live stays.

use pantala_engine::access::Key;
use pantala_engine::db::{Db, Expire, Held, Holds, NewString, fits_inline, payload_of};
use pantala_types::{OutOfMemory, RawString, Value};

use super::StringRef;

/// Changes the string that a key holds, or an empty one where the key is missing. The caller has made sure that it holds no
/// other type.
///
/// `work` gives its result, and whether the key counts as changed: otherwise nobody who watches it hears of it (it may be `raw` from now on
/// all the same). When it fails it must have left the string as it was, and nothing has changed.
pub(crate) fn edit<R>(
    db: &mut Db<'_>,
    key: &Key<'_>,
    work: impl FnOnce(&mut RawString) -> Result<(R, bool), OutOfMemory>,
) -> Result<R, OutOfMemory> {
    let mut string = match db.find(key).as_ref().map(Holds::held) {
        None => RawString::default(),
        Some(Held::Bytes(bytes)) => RawString::try_from_slice(bytes)?,
        Some(Held::Int(value)) => StringRef::Int(value).with_bytes(RawString::try_from_slice)?,
        // In place, with the room to grow that it has.
        Some(Held::Heap(_) | Held::Packed(..)) => {
            let done = db.change_heap(key, |value| match value {
                Value::String(string) => Some(work(string)),
                _ => None,
            });
            // The caller has seen a string.
            let (result, is_changed) = done.flatten().unwrap_or(Err(OutOfMemory))?;
            if is_changed {
                db.modified(key);
            }
            return Ok(result);
        }
    };
    let (result, is_changed) = work(&mut string)?;
    let (payload, flags) = payload_of(key, raw(key, &mut string))?;
    db.set_payload_unnoticed(key, payload, flags, Expire::Keep);
    if is_changed {
        db.modified(key);
    }
    Ok(result)
}

/// As [`edit`], for work on the bytes of a string that is made at least `len` bytes long before, with zeros.
pub(crate) fn grow(
    db: &mut Db<'_>,
    key: &Key<'_>,
    len: usize,
    work: impl FnOnce(&mut [u8]) -> bool,
) -> Result<(), OutOfMemory> {
    edit(db, key, |string| {
        if string.len() < len {
            string.try_set_range(len - 1, &[0])?;
        }
        Ok(((), work(string.as_mut_bytes())))
    })
}

/// Stores a string that is `raw`: in the entry where it fits, as it is otherwise.
pub(crate) fn store_raw(
    db: &mut Db<'_>,
    key: &Key<'_>,
    mut string: RawString,
    expire: Expire,
) -> Result<(), OutOfMemory> {
    db.set_string(key, raw(key, &mut string), expire)
}

/// A string to be stored as `raw`; a large one is taken.
fn raw<'a>(key: &Key<'_>, string: &'a mut RawString) -> NewString<'a> {
    if fits_inline(key.bytes, string.len()) {
        NewString::Raw(string.as_bytes())
    } else {
        NewString::Large(std::mem::take(string))
    }
}
