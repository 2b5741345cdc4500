//! Reads values from files in forms newer than Redis 7.0: sets in listpacks, streams that store
//! when consumers were last active, and hashes with fields that expire.

use std::borrow::Cow;

use super::read::{EMPTY, element, nonzero_count, read_body, set_new};
use super::read_stream::{Form, of_nodes};
use super::{Dialect, Error, Limits, Loaded, Reader, kind, listpack};
use crate::Collection;
use crate::hash::Hash;
use crate::set::Set;

/// Maximum expiry time of a field, as Unix time in ms. Redis stores 48 bits.
const TIME_MS_MAX: u64 = (1 << 48) - 1;

const BAD_TIME: Error = Error::Corrupt("time of a field");

/// Reads the body of a value of any kind that a file may contain. Omits the fields of a hash that
/// are expired at the Unix time `now_ms`.
///
/// # Errors
/// [`Error`]. [`Error::Empty`] also if all fields of a hash are expired.
pub fn read_newer<'a>(
    kind: u8,
    dialect: Dialect,
    reader: &mut Reader<'a>,
    limits: &Limits,
    now_ms: i64,
) -> Result<Loaded<'a>, Error> {
    let hash = match (kind, dialect) {
        (kind::SET_LISTPACK, _) => return set_of_listpack(reader, limits).map(Loaded::Set),
        (kind::STREAM_LISTPACKS_3, _) => return of_nodes(reader, Form::Active).map(Loaded::Stream),
        (kind::HASH_METADATA_PRE_GA, Dialect::Redis) => expiring_fields(reader, limits, 0, now_ms)?,
        (kind::HASH_METADATA, Dialect::Redis) => {
            let earliest_ms = u64::from_le_bytes(reader.array()?);
            if earliest_ms > TIME_MS_MAX + 1 {
                return Err(BAD_TIME);
            }
            // An expiry time is stored as its difference from the earliest expiry time, plus one. 0
            // means that the field doesn't expire.
            expiring_fields(reader, limits, earliest_ms.wrapping_sub(1), now_ms)?
        }
        (kind::HASH_LISTPACK_EX_PRE_GA, Dialect::Redis) => expiring_listpack(reader, limits, now_ms)?,
        (kind::HASH_LISTPACK_EX, Dialect::Redis) => {
            reader.array::<8>()?;
            expiring_listpack(reader, limits, now_ms)?
        }
        (kind::HASH_METADATA_PRE_GA, Dialect::Valkey) => fields_of_valkey(reader, limits, now_ms)?,
        _ => return read_body(kind, reader, limits),
    };
    if hash.is_empty() { Err(EMPTY) } else { Ok(Loaded::Hash(hash)) }
}

fn set_of_listpack(reader: &mut Reader<'_>, limits: &Limits) -> Result<Set, Error> {
    let pack = listpack::read(&reader.string()?)?;
    let mut set = Set::empty();
    for member in pack.as_ref().iter() {
        if !member.with_bytes(|member| set.add(member, limits.set_intset_entries_max)) {
            return Err(Error::Corrupt("duplicate member"));
        }
    }
    if set.is_empty() { Err(EMPTY) } else { Ok(set) }
}

/// Reads fields, each preceded by its expiry time relative to `base_ms`, or by 0 if the field
/// doesn't expire.
fn expiring_fields(reader: &mut Reader<'_>, limits: &Limits, base_ms: u64, now_ms: i64) -> Result<Hash, Error> {
    let mut fields = Fields::new(now_ms);
    for _ in 0..nonzero_count(reader, 3)? {
        let at_ms = match reader.number()? {
            0 => 0,
            time => base_ms.wrapping_add(time),
        };
        let (field, value) = (element(reader)?, element(reader)?);
        fields.add(&field, &value, at_ms, limits)?;
    }
    fields.finish()
}

/// Reads a listpack of field, value, expiry time, field … An expiry time of 0 means that the field
/// doesn't expire.
fn expiring_listpack(reader: &mut Reader<'_>, limits: &Limits, now_ms: i64) -> Result<Hash, Error> {
    let pack = listpack::read(&reader.string()?)?;
    let mut fields = Fields::new(now_ms);
    let mut iter = pack.as_ref().iter();
    if pack.as_ref().is_empty() {
        return Err(EMPTY);
    }
    while let Some(field) = iter.next() {
        let (Some(value), Some(time)) = (iter.next(), iter.next()) else {
            return Err(Error::Corrupt("fields of a hash"));
        };
        let at_ms = time.with_bytes(crate::parse_i64).and_then(|at_ms| u64::try_from(at_ms).ok()).ok_or(BAD_TIME)?;
        field.with_bytes(|field| value.with_bytes(|value| fields.add(field, value, at_ms, limits)))?;
    }
    fields.finish()
}

/// Reads the fields of a hash as Valkey writes them: field, value and expiry time (8 bytes, or -1
/// if the field doesn't expire).
fn fields_of_valkey(reader: &mut Reader<'_>, limits: &Limits, now_ms: i64) -> Result<Hash, Error> {
    let mut fields = Fields::new(now_ms);
    for _ in 0..nonzero_count(reader, 2 + size_of::<i64>())? {
        let (field, value): (Cow<'_, [u8]>, Cow<'_, [u8]>) = (element(reader)?, element(reader)?);
        let at_ms = match i64::from_le_bytes(reader.array()?) {
            -1 => 0,
            at_ms => u64::try_from(at_ms).map_err(|_| BAD_TIME)?,
        };
        fields.add(&field, &value, at_ms, limits)?;
    }
    fields.finish()
}

/// A hash under construction. Expired fields stay in the hash until [`Fields::finish`] removes
/// them, so that a duplicate of an expired field is found.
struct Fields {
    hash: Hash,
    expired: Vec<Box<[u8]>>,
    now_ms: i64,
}

impl Fields {
    fn new(now_ms: i64) -> Self {
        Fields { hash: Hash::empty(), expired: Vec::new(), now_ms }
    }

    /// Adds a field that expires at `at_ms`, or never if `at_ms` is 0.
    fn add(&mut self, field: &[u8], value: &[u8], at_ms: u64, limits: &Limits) -> Result<(), Error> {
        if at_ms > TIME_MS_MAX {
            return Err(BAD_TIME);
        }
        set_new(&mut self.hash, field, value, limits)?;
        let at_ms = at_ms as i64;
        if at_ms > self.now_ms {
            self.hash.set_expiry(field, at_ms);
        } else if at_ms > 0 {
            self.expired.push(field.into());
        }
        Ok(())
    }

    fn finish(mut self) -> Result<Hash, Error> {
        for field in &self.expired {
            self.hash.remove(field);
        }
        Ok(self.hash)
    }
}
