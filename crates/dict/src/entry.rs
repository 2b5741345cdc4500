//! Entries as the dictionary's user sees them.

use core::marker::PhantomData;
use core::ptr::NonNull;
use core::sync::atomic::AtomicU64;

use crate::record::{Content, Kind, RawPayload, Record};
use crate::table::Table;

/// What a key holds.
#[derive(Debug, PartialEq, Eq)]
pub enum Payload<'a, V> {
    /// A short string, inside the entry.
    Bytes(&'a [u8]),
    /// An integer, inside the entry.
    Int(i64),
    /// Anything else, behind a pointer.
    Heap(&'a V),
}

// Not derived: a shared reference is copied whether or not `V` can be.
impl<V> Clone for Payload<'_, V> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<V> Copy for Payload<'_, V> {}

/// What a key is to hold.
#[derive(Debug)]
pub enum NewPayload<'a, V> {
    /// A string to be kept inside the entry. One that doesn't [fit](crate::Dict::fits_inline) works, but its entry then
    /// comes from the global allocator, which aborts when it is refused: better a `Heap`.
    Bytes(&'a [u8]),
    /// An integer to be kept inside the entry.
    Int(i64),
    /// Anything else, to be kept behind a pointer.
    Heap(V),
}

impl<'a, V> NewPayload<'a, V> {
    pub(crate) fn into_raw(self) -> RawPayload<'a> {
        match self {
            NewPayload::Bytes(bytes) => RawPayload::Bytes(bytes),
            NewPayload::Int(value) => RawPayload::Int(value),
            NewPayload::Heap(value) => RawPayload::Heap(NonNull::from(Box::leak(Box::new(value))).cast()),
        }
    }
}

/// Takes back the value that [`NewPayload::into_raw`] boxed.
///
/// # Safety
///
/// `value` came from `into_raw` of the same `V`, and the record no longer uses it.
pub(crate) unsafe fn unbox<V>(value: NonNull<()>) -> V {
    // SAFETY: the pointer is of a leaked box of a `V`, which nobody else takes back.
    unsafe { *Box::from_raw(value.cast::<V>().as_ptr()) }
}

/// Reads a record's payload.
///
/// # Safety
///
/// The record is in use for `'a` in a dictionary of `V`, and nobody writes it meanwhile.
#[inline]
pub(crate) unsafe fn payload_of<'a, V>(record: Record) -> Payload<'a, V> {
    // SAFETY: bytes are as many as the shape says; the integer and the pointer were written so; a heap pointer is of a
    // live `V`, which only the entry refers to.
    unsafe {
        let (kind, at, len) = record.payload();
        match kind {
            Kind::Bytes => Payload::Bytes(core::slice::from_raw_parts(at.as_ptr(), len)),
            Kind::Int => Payload::Int(at.cast::<i64>().read_unaligned()),
            Kind::Heap => Payload::Heap(at.cast::<NonNull<V>>().read_unaligned().as_ref()),
        }
    }
}

/// An entry, to be read.
pub struct EntryRef<'d, V> {
    record: Record,
    entries: PhantomData<&'d V>,
}

impl<V> Clone for EntryRef<'_, V> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<V> Copy for EntryRef<'_, V> {}

impl<'d, V> EntryRef<'d, V> {
    /// # Safety
    ///
    /// The record is in use in a dictionary of `V` that is borrowed for `'d`.
    #[inline(always)]
    pub(crate) unsafe fn new(record: Record) -> Self {
        Self { record, entries: PhantomData }
    }

    /// The key.
    #[inline]
    pub fn key(&self) -> &'d [u8] {
        // SAFETY: in use and unwritten for `'d`, by `new`; so in all methods.
        unsafe { self.record.key() }
    }

    /// What it holds.
    #[inline]
    pub fn payload(&self) -> Payload<'d, V> {
        // SAFETY: as in `key`.
        unsafe { payload_of(self.record) }
    }

    /// When it expires: unix time in ms.
    #[inline]
    pub fn expire_at_ms(&self) -> Option<i64> {
        // SAFETY: as in `key`.
        unsafe { self.record.expire_at_ms() }
    }

    /// The access word, 24 bits.
    #[inline]
    pub fn access(&self) -> u32 {
        // SAFETY: as in `key`.
        unsafe { self.record.access() }
    }

    /// The user flags, 3 bits.
    #[inline]
    pub fn user_flags(&self) -> u8 {
        // SAFETY: as in `key`.
        unsafe { self.record.user_flags() }
    }

    /// Bytes of memory of the entry, without its slot (8 bytes over the load, about 9.6) and what a heap value owns.
    pub fn allocated_bytes(&self) -> usize {
        // SAFETY: as in `key`.
        unsafe { self.record.shape() }.allocated_bytes()
    }
}

/// An entry, to be read and changed.
pub struct EntryMut<'d, V> {
    table: &'d mut Table,
    slot: NonNull<AtomicU64>,
    h: u64,
    values: PhantomData<&'d mut V>,
}

impl<'d, V> EntryMut<'d, V> {
    /// # Safety
    ///
    /// `slot` is in use in `table`, which is a dictionary's of `V`; `h` is its key's hash.
    #[inline(always)]
    pub(crate) unsafe fn new(table: &'d mut Table, slot: NonNull<AtomicU64>, h: u64) -> Self {
        Self { table, slot, h, values: PhantomData }
    }

    #[inline(always)]
    fn record(&self) -> Record {
        Table::record(self.slot)
    }

    /// The entry, to be read.
    #[inline]
    pub fn as_ref(&self) -> EntryRef<'_, V> {
        // SAFETY: the dictionary is borrowed as long as `self` is.
        unsafe { EntryRef::new(self.record()) }
    }

    /// The entry, to be read as long as the dictionary is borrowed.
    #[inline]
    pub fn into_ref(self) -> EntryRef<'d, V> {
        // SAFETY: the exclusive borrow ends here; what remains of `'d` is a shared one.
        unsafe { EntryRef::new(self.record()) }
    }

    /// The key.
    #[inline]
    pub fn key(&self) -> &[u8] {
        self.as_ref().key()
    }

    /// What it holds.
    #[inline]
    pub fn payload(&self) -> Payload<'_, V> {
        self.as_ref().payload()
    }

    /// When it expires: unix time in ms.
    #[inline]
    pub fn expire_at_ms(&self) -> Option<i64> {
        self.as_ref().expire_at_ms()
    }

    /// The access word, 24 bits.
    #[inline]
    pub fn access(&self) -> u32 {
        self.as_ref().access()
    }

    /// The user flags, 3 bits.
    #[inline]
    pub fn user_flags(&self) -> u8 {
        self.as_ref().user_flags()
    }

    /// As [`EntryRef::allocated_bytes`].
    pub fn allocated_bytes(&self) -> usize {
        self.as_ref().allocated_bytes()
    }

    /// Stores the access word, of which 24 bits are kept.
    #[inline]
    pub fn set_access(&mut self, access: u32) {
        // SAFETY: the entry is exclusively borrowed; so in all methods that change it.
        unsafe { self.record().set_access(access) }
    }

    /// Stores the user flags, of which 3 bits are kept.
    #[inline]
    pub fn set_user_flags(&mut self, flags: u8) {
        // SAFETY: as in `set_access`.
        unsafe { self.record().set_user_flags(flags) }
    }

    /// Stores another integer where there is one. `false`: the payload is something else, and stays.
    #[inline]
    pub fn set_int(&mut self, value: i64) -> bool {
        // SAFETY: as in `set_access`; an integer payload is 8 bytes at any alignment.
        unsafe {
            let (kind, at, _) = self.record().payload();
            if kind == Kind::Int {
                at.cast::<i64>().write_unaligned(value);
            }
            kind == Kind::Int
        }
    }

    /// The bytes of a bytes payload, to be changed in place.
    #[inline]
    pub fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        // SAFETY: as in `set_access`; the borrow is `self`'s.
        unsafe {
            let (kind, at, len) = self.record().payload();
            (kind == Kind::Bytes).then(|| core::slice::from_raw_parts_mut(at.as_ptr(), len))
        }
    }

    /// The heap value, to be changed in place.
    #[inline]
    pub fn heap_mut(&mut self) -> Option<&mut V> {
        // SAFETY: as in `set_access`; the pointer is of a live `V` that only this entry refers to.
        unsafe { self.record().heap().map(|value| value.cast::<V>().as_mut()) }
    }

    /// Stores another payload and user flags; expiry and access word stay. Gives back a heap value that was there.
    ///
    /// In place when the entry's size class stays the same, else the entry moves.
    pub fn replace(&mut self, payload: NewPayload<'_, V>, user_flags: u8) -> Option<V> {
        let expire_at_ms = self.expire_at_ms();
        self.set(payload, user_flags, expire_at_ms)
    }

    /// As [`Self::replace`], with another expiry, or none, in the same step.
    pub fn set(&mut self, payload: NewPayload<'_, V>, user_flags: u8, expire_at_ms: Option<i64>) -> Option<V> {
        // SAFETY: as in `set_access`.
        let old = unsafe { self.record().heap() };
        let payload = payload.into_raw();
        self.table.change(self.h, self.slot, |record, slab| {
            // SAFETY: as in `set_access`; the record is of this slab, and only the slot, which is patched, names it.
            // The payload can't lie in the record: whoever gave it couldn't borrow from the entry.
            unsafe { record.replace(slab, payload, user_flags, expire_at_ms) }
        });
        // SAFETY: a heap pointer of a dictionary of `V` is a boxed `V`, and the record has forgotten it.
        old.map(|value| unsafe { unbox(value) })
    }

    /// Sets, changes or removes the expiry (unix time in ms).
    pub fn set_expire(&mut self, expire_at_ms: Option<i64>) {
        if expire_at_ms.is_none() && self.expire_at_ms().is_none() {
            return;
        }
        self.table.change(self.h, self.slot, |record, slab| {
            // SAFETY: as in `set`.
            unsafe { record.set_expire(slab, expire_at_ms) }
        });
    }

    /// Removes the entry.
    pub fn remove(self) -> Removed<V> {
        let record = self.table.unhook(self.h, self.slot);
        // SAFETY: taken out of this table of a dictionary of `V` just now.
        unsafe { Removed::new(self.table, record) }
    }

    /// Removes the entry and hands over what it held, whatever its kind.
    pub fn extract(self) -> Extracted<V> {
        let payload = match self.payload() {
            Payload::Bytes(bytes) => Some(OwnedPayload::Bytes(bytes.into())),
            Payload::Int(value) => Some(OwnedPayload::Int(value)),
            Payload::Heap(_) => None,
        };
        let (user_flags, access) = (self.user_flags(), self.access());
        let removed = self.remove();
        let expire_at_ms = removed.expire_at_ms;
        let payload = payload.or(removed.heap.map(OwnedPayload::Heap));
        // One of the two is there: what isn't bytes or an integer is a heap value.
        let payload = payload.unwrap_or(OwnedPayload::Int(0));
        Extracted { payload, user_flags, access, expire_at_ms }
    }
}

/// What is left of an entry that was removed: a heap value, so that the caller may free it elsewhere.
#[derive(Debug)]
pub struct Removed<V> {
    heap: Option<V>,
    expire_at_ms: Option<i64>,
}

impl<V> Removed<V> {
    /// Frees a record and keeps what it owned.
    ///
    /// # Safety
    ///
    /// The record was unhooked from `table`, which is a dictionary's of `V`, and nothing else names it.
    pub(crate) unsafe fn new(table: &mut Table, record: Record) -> Self {
        // SAFETY: the record is whole until `free`; its heap pointer is a boxed `V`, taken back once, here.
        unsafe {
            let heap = record.heap();
            let expire_at_ms = record.expire_at_ms();
            table.free(record);
            Self { heap: heap.map(|value| unbox(value)), expire_at_ms }
        }
    }

    /// The heap value, if the entry had one.
    pub fn heap(&self) -> Option<&V> {
        self.heap.as_ref()
    }

    /// Takes the heap value, if the entry had one.
    pub fn into_heap(self) -> Option<V> {
        self.heap
    }

    /// When it would have expired: unix time in ms.
    pub fn expire_at_ms(&self) -> Option<i64> {
        self.expire_at_ms
    }
}

/// What an extracted entry held.
#[derive(Debug)]
pub enum OwnedPayload<V> {
    /// A copy of the bytes.
    Bytes(Box<[u8]>),
    /// The integer.
    Int(i64),
    /// The heap value itself.
    Heap(V),
}

impl<V> OwnedPayload<V> {
    /// To be put in under another key.
    pub fn as_new(self, store: &mut Option<Box<[u8]>>) -> NewPayload<'_, V> {
        match self {
            OwnedPayload::Bytes(bytes) => NewPayload::Bytes(store.insert(bytes)),
            OwnedPayload::Int(value) => NewPayload::Int(value),
            OwnedPayload::Heap(value) => NewPayload::Heap(value),
        }
    }

    /// To be looked at.
    pub fn payload(&self) -> Payload<'_, V> {
        match self {
            OwnedPayload::Bytes(bytes) => Payload::Bytes(bytes),
            OwnedPayload::Int(value) => Payload::Int(*value),
            OwnedPayload::Heap(value) => Payload::Heap(value),
        }
    }
}

/// An entry taken out whole, but for its key: for `RENAME` and `MOVE`.
#[derive(Debug)]
pub struct Extracted<V> {
    /// What it held.
    pub payload: OwnedPayload<V>,
    /// Its user flags.
    pub user_flags: u8,
    /// Its access word.
    pub access: u32,
    /// Its expiry: unix time in ms.
    pub expire_at_ms: Option<i64>,
}

/// The place of a key: taken or not.
pub enum Entry<'d, V> {
    /// The key is there.
    Occupied(EntryMut<'d, V>),
    /// The key isn't there.
    Vacant(VacantEntry<'d, V>),
}

/// The place for a key that isn't there.
pub struct VacantEntry<'d, V> {
    pub(crate) table: &'d mut Table,
    pub(crate) h: u64,
    pub(crate) key: &'d [u8],
    pub(crate) bucket: Option<usize>,
    pub(crate) values: PhantomData<&'d mut V>,
}

impl<'d, V> VacantEntry<'d, V> {
    /// Puts the key in, with user flags (3 bits), access word (24 bits) and expiry (unix time in ms).
    #[inline]
    pub fn insert(
        self,
        payload: NewPayload<'_, V>,
        user_flags: u8,
        access: u32,
        expire_at_ms: Option<i64>,
    ) -> EntryMut<'d, V> {
        let content = Content { payload: payload.into_raw(), user_flags, access, expire_at_ms };
        let slot = self.table.insert(self.h, self.key, self.bucket, content);
        // SAFETY: the slot was filled just now, under this hash, in a dictionary of `V`.
        unsafe { EntryMut::new(self.table, slot, self.h) }
    }
}
