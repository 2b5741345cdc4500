//! Converts values to and from RDB. `DUMP` and snapshots write values, `RESTORE` and loading read
//! them.

use std::sync::atomic::Ordering::Relaxed;

use pantala_types::access::{ACCESS_MAX, lfu_word, lru_clock};
use pantala_types::rdb_value::{Limits, Loaded, ValueRef};
use pantala_types::sorted_set::PackLimits;
use pantala_types::{Collection, Hash, HashLimits, List, OutOfMemory, PackedForm, Set, SortedSet, Value};

use crate::command::Key;
use crate::store::db::{Change, Db, Expire, Held, NewString, Silence};
use crate::tuning::{AccessPolicy, Tuning};

impl<'e> Held<'e> {
    /// Returns the value to write to RDB. In practice the result is always `Some`: a type returns
    /// `None` only for a packed form that it does not have, and this function passes each form to
    /// the type that has it.
    pub fn to_write(self) -> Option<ValueRef<'e>> {
        match self {
            Held::Int(value) => Some(ValueRef::Int(value)),
            Held::Bytes(bytes) => Some(ValueRef::String(bytes)),
            Held::Packed(form, bytes) => match form {
                PackedForm::List => List::view_packed(form, bytes).map(ValueRef::List),
                PackedForm::Hash => Hash::view_packed(form, bytes).map(ValueRef::Hash),
                PackedForm::IntSet | PackedForm::Set => Set::view_packed(form, bytes).map(ValueRef::Set),
                PackedForm::SortedSet => SortedSet::view_packed(form, bytes).map(ValueRef::SortedSet),
            },
            Held::Heap(value) => match value {
                Value::String(string) => Some(ValueRef::String(string.as_bytes())),
                Value::List(list) => Some(ValueRef::List(list.view())),
                Value::Hash(hash) => Some(ValueRef::Hash(hash.view())),
                Value::Set(set) => Some(ValueRef::Set(set.view())),
                Value::SortedSet(set) => Some(ValueRef::SortedSet(set.view())),
                Value::Stream(stream) => Some(ValueRef::Stream(stream)),
            },
        }
    }
}

impl Db<'_> {
    /// Stores a value from RDB, with the given access word (LRU or LFU data), if any. The key
    /// counts as new even if it existed, because Redis deletes its former value first.
    ///
    /// # Errors
    /// [`OutOfMemory`] if the allocator fails. Nothing has changed then.
    pub fn restore(
        &mut self,
        key: &Key<'_>,
        loaded: Loaded<'_>,
        expire: Expire,
        access: Option<u32>,
        change: Change,
    ) -> Result<(), OutOfMemory> {
        let is_over = |at_ms: Option<i64>| at_ms.is_some_and(|at_ms| at_ms <= self.now_ms);
        if self.find_even_expired(key).is_some_and(|entry| is_over(entry.expire_at_ms())) {
            // As in Redis, the former value is deleted without a lookup. So no `expired` event is
            // published, even though the value has expired.
            let lazy = self.store.tuning.lazyfree_lazy_server_del.load(Relaxed);
            self.remove_unseen(key, lazy, Change::silent(Silence::Loaded));
        }
        self.put_loaded(key, loaded, expire, access, change.of_new_key(true))
    }

    /// Stores a value from RDB, as [`Db::restore`] does, even if `expire` has passed: if a primary
    /// continues its history after a restart, its replicas need the deletions of such keys.
    pub(crate) fn put_loaded(
        &mut self,
        key: &Key<'_>,
        loaded: Loaded<'_>,
        expire: Expire,
        access: Option<u32>,
        change: Change,
    ) -> Result<(), OutOfMemory> {
        match loaded {
            Loaded::String(bytes) => self.set_string(key, NewString::encode(&bytes), expire, change)?,
            Loaded::List(list) => self.put(key, list, expire, change),
            Loaded::Hash(hash) => self.put(key, hash, expire, change),
            Loaded::Set(set) => self.put(key, set, expire, change),
            Loaded::SortedSet(set) => self.put(key, set, expire, change),
            Loaded::Stream(stream) => self.put(key, stream, expire, change),
        }
        if let Some(access) = access
            && let Some(mut entry) = self.dict.find_mut(key.place.hash, key.bytes)
        {
            entry.set_access(access);
        }
        Ok(())
    }
}

impl AccessPolicy {
    /// Returns the access word for an idle time (s) or an access counter. The idle time is used
    /// only with LRU, and the counter only with LFU. `now_ms` is Unix time.
    pub fn word_of(self, idle_s: Option<i64>, frequency: Option<u8>, now_ms: i64) -> Option<u32> {
        match self {
            AccessPolicy::Lfu => frequency.map(|frequency| lfu_word(now_ms as u64, frequency)),
            AccessPolicy::Lru => idle_s.map(|idle_s| {
                let at = i64::from(lru_clock(now_ms as u64)).wrapping_sub(idle_s);
                // The access clock wraps, so a time before its start becomes a time near its end.
                let at = if at < 0 { at.wrapping_add(i64::from(ACCESS_MAX)) } else { at };
                at as u32 & ACCESS_MAX
            }),
        }
    }
}

impl Tuning {
    /// Returns the limits of values that are read from RDB, by the current settings.
    pub fn rdb_limits(&self) -> Limits {
        Limits {
            string_bytes_max: self.proto_max_bulk_len.load(Relaxed),
            list_node: self.list_node_limit(),
            hash: HashLimits {
                entries_max: self.hash_max_listpack_entries.load(Relaxed) as usize,
                value_bytes_max: self.hash_max_listpack_value_bytes.load(Relaxed) as usize,
            },
            sorted_set: PackLimits {
                entries: self.zset_max_listpack_entries.load(Relaxed),
                value_bytes: self.zset_max_listpack_value_bytes.load(Relaxed),
            },
            set_intset_entries_max: self.set_max_intset_entries.load(Relaxed) as usize,
        }
    }
}
