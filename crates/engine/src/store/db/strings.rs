//! Changes of strings in all forms of storage, in place if possible. A string whose bytes were
//! changed has the encoding `raw`. The functions named `edit_…` keep the key's TTL.

use pantala_base::number::Decimal;
use pantala_dict::NewPayload;
use pantala_types::{OutOfMemory, RawString, Value};

use super::{Change, Db, Expire, FLAG_RAW, Held, Holds, NewString, Silence, fits_inline};
use crate::command::Key;
use crate::effect::change::{CHECKED_BYTES_MAX, UNREPORTED_CHANGE};

/// The reason why a string was not changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EditError {
    /// The key holds a value of another type.
    WrongType,
    /// The allocator failed.
    OutOfMemory,
}

impl From<OutOfMemory> for EditError {
    fn from(_: OutOfMemory) -> Self {
        EditError::OutOfMemory
    }
}

impl Db<'_> {
    /// Changes the string of a key, or an empty string if the key is missing. The caller has
    /// already looked up the key, so this function neither counts a lookup nor touches the key.
    ///
    /// # Errors
    /// If an error is returned, nothing has changed. To ensure this, `work` must leave the string
    /// unchanged if it fails.
    pub fn edit_string<K: Into<Option<Change>>, R>(
        &mut self,
        key: &Key<'_>,
        work: impl FnOnce(&mut RawString) -> Result<(K, R), OutOfMemory>,
    ) -> Result<R, EditError> {
        let db_stats = self.db_stats;
        let mut string = match self.find_mut(key) {
            None => {
                let mut string = RawString::default();
                let (change, result) = checked(&mut string, work)?;
                if let Some(change) = change {
                    self.set_raw(key, string, Expire::Keep, change)?;
                }
                return Ok(result);
            }
            Some(mut entry) => match entry.as_ref().held() {
                Held::Bytes(bytes) => RawString::try_from_slice(bytes)?,
                Held::Int(value) => RawString::try_from_slice(Decimal::new().format_i64(value))?,
                Held::Packed(..) => return Err(EditError::WrongType),
                // A string on the heap is changed in place, and can use its spare capacity.
                Held::Heap(_) => {
                    let Some(Value::String(string)) = entry.heap_mut() else { return Err(EditError::WrongType) };
                    let before = string.allocated_bytes();
                    let done = checked(string, work);
                    db_stats.heap_bytes.sub(before as u64);
                    db_stats.heap_bytes.add(string.allocated_bytes() as u64);
                    let (change, result) = done?;
                    if let Some(change) = change {
                        self.commit(key, change);
                    }
                    return Ok(result);
                }
            },
        };
        let (change, result) = checked(&mut string, work)?;
        // As in Redis, the encoding becomes `raw` even if the string is the same.
        let change = change.unwrap_or(Change::silent(Silence::Encoding));
        self.set_raw(key, string, Expire::Keep, change)?;
        Ok(result)
    }

    /// Changes the bytes of the string of a key, or of an empty string if the key is missing. The
    /// string is first extended with zeros to at least `len_min` bytes. `work` receives the bytes
    /// and the length before the extension. Touches the key. If the string is inside its entry and
    /// not extended, needs only one lookup in the dictionary.
    ///
    /// # Errors
    /// If an error is returned, nothing has changed, and `work` was not called.
    pub fn edit_bytes<K: Into<Option<Change>>, R>(
        &mut self,
        key: &Key<'_>,
        len_min: usize,
        work: impl FnOnce(&mut [u8], usize) -> (K, R),
    ) -> Result<R, EditError> {
        if let Some(mut entry) = self.write_mut(key) {
            let is_in_place = matches!(entry.as_ref().held(), Held::Bytes(bytes) if bytes.len() >= len_min);
            if let Some(bytes) = entry.bytes_mut().filter(|_| is_in_place) {
                let len = bytes.len();
                let before = copy_if_checked(bytes);
                let (change, result) = work(bytes, len);
                let change = change.into();
                assert_unchanged(change.is_none(), before, bytes);
                if entry.user_flags() != FLAG_RAW {
                    entry.set_user_flags(FLAG_RAW);
                }
                if let Some(change) = change {
                    self.commit(key, change);
                }
                return Ok(result);
            }
        }
        self.edit_string(key, |string| {
            let len_before = string.len();
            if len_before < len_min {
                string.try_set_range(len_min - 1, &[0])?;
            }
            Ok(work(string.as_mut_bytes(), len_before))
        })
    }

    /// Replaces the value of a key, which may be missing, by the integer that `work` returns.
    /// Touches the key, and keeps its TTL. If the key holds an integer, needs only one lookup in
    /// the dictionary.
    ///
    /// # Errors
    /// The error that `work` returns. Nothing has changed then.
    #[inline]
    pub fn edit_integer<E>(
        &mut self,
        key: &Key<'_>,
        change: Change,
        work: impl FnOnce(Option<Held<'_>>) -> Result<i64, E>,
    ) -> Result<i64, E> {
        let value = match self.write_mut(key) {
            None => work(None)?,
            Some(mut entry) => {
                let value = work(Some(entry.as_ref().held()))?;
                // User flags describe the former value. If any flag is set, the value is not
                // changed in place.
                if entry.user_flags() == 0 && entry.set_int(value) {
                    self.commit(key, change);
                    return Ok(value);
                }
                value
            }
        };
        // The key is new, or its value could not be changed in place.
        self.set_payload(key, NewPayload::Int(value), 0, Expire::Keep, change);
        Ok(value)
    }

    /// Stores a string with the encoding `raw`, replacing the key's value. Copies the string into
    /// the entry if it fits there. Otherwise stores it without a copy.
    ///
    /// # Errors
    /// [`OutOfMemory`] if the allocator fails. Nothing has changed then.
    pub fn set_raw(
        &mut self,
        key: &Key<'_>,
        string: RawString,
        expire: Expire,
        change: Change,
    ) -> Result<(), OutOfMemory> {
        if fits_inline(key.bytes, string.len()) {
            self.set_string(key, NewString::Raw(string.as_bytes()), expire, change)
        } else {
            self.set_string(key, NewString::Large(string), expire, change)
        }
    }
}

/// Changes a string. Debug builds check that a small string is unchanged if `work` returns no
/// change.
#[inline]
fn checked<K: Into<Option<Change>>, R>(
    string: &mut RawString,
    work: impl FnOnce(&mut RawString) -> Result<(K, R), OutOfMemory>,
) -> Result<(Option<Change>, R), OutOfMemory> {
    let before = copy_if_checked(string.as_bytes());
    let (change, result) = work(string)?;
    let change = change.into();
    assert_unchanged(change.is_none(), before, string.as_bytes());
    Ok((change, result))
}

/// Returns a copy of a small string if this is a debug build.
#[inline]
fn copy_if_checked(bytes: &[u8]) -> Option<Vec<u8>> {
    (cfg!(debug_assertions) && bytes.len() <= CHECKED_BYTES_MAX).then(|| bytes.to_vec())
}

#[inline]
fn assert_unchanged(is_same: bool, before: Option<Vec<u8>>, now: &[u8]) {
    debug_assert!(!is_same || before.is_none_or(|before| before == now), "{UNREPORTED_CHANGE}");
}
