//! `DEBUG POPULATE`: creates many small strings.

use pantala_base::number::Decimal;
use pantala_engine::access::{Access, Key, KeyPlace};
use pantala_engine::db::{Change, Expire, NewString, Silence};
use pantala_types::{OutOfMemory, RawString};

/// Maximum length of a key in bytes; a longer key is truncated. Redis uses a buffer of 128 bytes
/// that ends with a zero byte.
const KEY_LEN_MAX: usize = 127;

/// Maximum length of `value:N` in bytes.
const VALUE_LEN_MAX: usize = b"value:".len() + 20;

/// Number of keys per batch. The dictionary buckets for all keys of a batch are prefetched before
/// its first key is stored.
const AHEAD: usize = 16;

/// Maximum length of a value built on the stack, in bytes.
const SMALL_VALUE_LEN_MAX: usize = 1024;

/// The keys and values to create.
pub(crate) struct Plan<'a> {
    /// Number of keys.
    pub(crate) count: u64,
    /// The part of a key before `:N`.
    pub(crate) prefix: &'a [u8],
    /// Length of each value in bytes. The text `value:N` is truncated to this length, or padded
    /// with zero bytes. 0 keeps the text unchanged.
    pub(crate) value_len: u64,
}

/// A short text on the stack.
#[derive(Clone, Copy)]
struct Text<const N: usize> {
    bytes: [u8; N],
    len: usize,
}

impl<const N: usize> Text<N> {
    const EMPTY: Self = Text { bytes: [0; N], len: 0 };

    /// Appends as many of the bytes as fit.
    fn push(&mut self, bytes: &[u8]) {
        let fits = bytes.len().min(N - self.len);
        self.bytes[self.len..self.len + fits].copy_from_slice(&bytes[..fits]);
        self.len += fits;
    }

    fn numbered(prefix: &[u8], number: u64) -> Self {
        let mut text = Self::EMPTY;
        text.push(prefix);
        text.push(b":");
        text.push(Decimal::new().format_u64(number));
        text
    }

    fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Creates the missing keys. If an allocation fails, the keys created before remain.
pub(crate) fn populate_all(access: &mut Access<'_>, plan: &Plan<'_>) -> Result<(), OutOfMemory> {
    let (keyspace, selected) = (access.keyspace(), access.session().db);
    let mut window = [(Text::<KEY_LEN_MAX>::EMPTY, KeyPlace { hash: 0, shard: 0 }); AHEAD];
    let mut number = 0;
    while number < plan.count {
        let batch = (plan.count - number).min(AHEAD as u64) as usize;
        for (offset, (text, place)) in window[..batch].iter_mut().enumerate() {
            *text = Text::numbered(plan.prefix, number + offset as u64);
            *place = keyspace.place(text.as_bytes());
            keyspace.hint(selected, place.shard).prefetch_bucket(place.hash);
        }
        for (offset, (text, place)) in window[..batch].iter().enumerate() {
            let key = Key { bytes: text.as_bytes(), place: *place };
            create(access, &key, number + offset as u64, plan.value_len)?;
        }
        number += batch as u64;
    }
    Ok(())
}

fn create(access: &mut Access<'_>, key: &Key<'_>, number: u64, value_len: u64) -> Result<(), OutOfMemory> {
    let mut db = access.db(key);
    let text = Text::<VALUE_LEN_MAX>::numbered(b"value", number);
    if value_len == 0 {
        return db.add_string(key, NewString::Bytes(text.as_bytes()), Change::silent(Silence::Populated));
    }
    let mut small = [0; SMALL_VALUE_LEN_MAX];
    let len = usize::try_from(value_len).map_err(|_| OutOfMemory)?;
    let shown = text.as_bytes();
    if let Some(value) = small.get_mut(..len) {
        let shown = &shown[..shown.len().min(len)];
        value[..shown.len()].copy_from_slice(shown);
        return db.add_string(key, NewString::Bytes(value), Change::silent(Silence::Populated));
    }
    if db.exists(key) {
        return Ok(());
    }
    let mut value = Vec::new();
    value.try_reserve_exact(len)?;
    value.extend_from_slice(shown);
    value.resize(len, 0);
    let value = if pantala_engine::db::fits_inline(key.bytes, len) {
        NewString::Bytes(&value)
    } else {
        NewString::Large(RawString::from(value))
    };
    db.set_string(key, value, Expire::Clear, Change::silent(Silence::Populated))
}
