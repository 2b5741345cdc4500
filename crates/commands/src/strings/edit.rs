//! Changing a string in place, wherever the dictionary keeps it. It is `raw` from then on; its time to live stays.

use pantala_engine::access::Key;
use pantala_engine::db::{Db, Expire, Held, Holds, NewString, fits_inline};
use pantala_types::{OutOfMemory, RawString, Value};

use super::StringRef;

/// Changes the string that a key holds, or an empty one where the key is missing. The caller has made sure that it holds no
/// other type.
///
/// When `work` fails it must have left the string as it was, and nothing has changed.
pub(crate) fn edit<R>(
    db: &mut Db<'_>,
    key: &Key<'_>,
    work: impl FnOnce(&mut RawString) -> Result<R, OutOfMemory>,
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
            return done.flatten().unwrap_or(Err(OutOfMemory));
        }
    };
    let result = work(&mut string)?;
    store_raw(db, key, string, Expire::Keep)?;
    Ok(result)
}

/// As [`edit`], for work on the bytes of a string that is made at least `len` bytes long before, with zeros.
pub(crate) fn grow(
    db: &mut Db<'_>,
    key: &Key<'_>,
    len: usize,
    work: impl FnOnce(&mut [u8]),
) -> Result<(), OutOfMemory> {
    edit(db, key, |string| {
        if string.len() < len {
            string.try_set_range(len - 1, &[0])?;
        }
        work(string.as_mut_bytes());
        Ok(())
    })
}

/// Stores a string that is `raw`: in the entry where it fits, as it is otherwise.
pub(crate) fn store_raw(db: &mut Db<'_>, key: &Key<'_>, string: RawString, expire: Expire) -> Result<(), OutOfMemory> {
    if fits_inline(key.bytes, string.len()) {
        db.set_string(key, NewString::Raw(string.as_bytes()), expire)
    } else {
        db.set_string(key, NewString::Large(string), expire)
    }
}
