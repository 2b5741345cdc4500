//! Views through which callers read and change entries. Each change first passes the entry to the
//! running snapshot, if any ([`crate::snapshot`]). The only exception is a change of the access
//! word (24 bits in which the server records accesses).

use core::marker::PhantomData;
use core::ptr::NonNull;
use core::sync::atomic::AtomicU64;

use crate::record::{Content, Kind, RawPayload, Record, kept_bits};
use crate::snapshot::Reason;
use crate::table::Table;

/// The payload of an entry, borrowed.
#[derive(Debug, PartialEq, Eq)]
pub enum Payload<'a, V> {
    /// A short string, inside the entry.
    Bytes(&'a [u8]),
    /// An integer, inside the entry.
    Int(i64),
    /// Anything else, behind a pointer.
    Heap(&'a V),
}

// Not derived, because a derived implementation would require `V: Clone`. A shared reference is
// `Copy` whether or not `V` is.
impl<V> Clone for Payload<'_, V> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<V> Copy for Payload<'_, V> {}

/// A payload to store.
#[derive(Debug)]
pub enum NewPayload<'a, V> {
    /// A string to store inside the entry. It should fit in a cell of the slab
    /// ([`crate::Dict::fits_inline`]); use `Heap` for a longer one. The entry of a longer string is
    /// allocated by the global allocator, and the process aborts if that allocation fails.
    Bytes(&'a [u8]),
    /// An integer to store inside the entry.
    Int(i64),
    /// Anything else, to store behind a pointer.
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

/// Unboxes a value that [`NewPayload::into_raw`] boxed.
///
/// # Safety
///
/// `value` came from `into_raw` of the same `V`, and the record no longer uses it.
pub(crate) unsafe fn unbox<V>(value: NonNull<()>) -> V {
    // SAFETY: the pointer is that of a leaked box of a `V`, which nothing else unboxes.
    unsafe { *Box::from_raw(value.cast::<V>().as_ptr()) }
}

/// Reads a record's payload.
///
/// # Safety
///
/// The record is in use for `'a` in a dictionary of `V`, and nothing writes it meanwhile.
#[inline]
pub(crate) unsafe fn payload_of<'a, V>(record: Record) -> Payload<'a, V> {
    // SAFETY: the shape gives the place and the number of bytes. The integer or the pointer was
    // written at that place. A heap pointer is that of a live `V`, to which only the entry refers.
    unsafe {
        let (kind, at, len) = record.payload();
        match kind {
            Kind::Bytes => Payload::Bytes(core::slice::from_raw_parts(at.as_ptr(), len)),
            Kind::Int => Payload::Int(at.cast::<i64>().read_unaligned()),
            Kind::Heap => Payload::Heap(at.cast::<NonNull<V>>().read_unaligned().as_ref()),
        }
    }
}

/// A shared view of an entry.
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

    /// Returns the key.
    #[inline]
    pub fn key(&self) -> &'d [u8] {
        // SAFETY: the caller of `new` promised that the record is in use, in a dictionary that is
        // borrowed for `'d`. So nothing frees or writes the record during `'d`. The other methods
        // of this type rely on the same promise.
        unsafe { self.record.key() }
    }

    /// Returns the payload.
    #[inline]
    pub fn payload(&self) -> Payload<'d, V> {
        // SAFETY: as in `key`.
        unsafe { payload_of(self.record) }
    }

    /// Returns the expiry, in Unix milliseconds.
    #[inline]
    pub fn expire_at_ms(&self) -> Option<i64> {
        // SAFETY: as in `key`.
        unsafe { self.record.expire_at_ms() }
    }

    /// Returns the access word, 24 bits.
    #[inline]
    pub fn access(&self) -> u32 {
        // SAFETY: as in `key`.
        unsafe { self.record.access() }
    }

    /// Returns the user flags, 3 bits.
    #[inline]
    pub fn user_flags(&self) -> u8 {
        // SAFETY: as in `key`.
        unsafe { self.record.user_flags() }
    }

    /// Returns the memory of the entry in bytes. Excludes the slot, and the memory that a heap
    /// value owns. A slot has 8 bytes; with its share of the segment's empty slots, it takes about
    /// 9.6 bytes.
    pub fn allocated_bytes(&self) -> usize {
        // SAFETY: as in `key`.
        unsafe { self.record.shape() }.allocated_bytes()
    }
}

/// An exclusive view of an entry.
pub struct EntryMut<'d, V> {
    table: &'d mut Table,
    slot: NonNull<AtomicU64>,
    h: u64,
    values: PhantomData<&'d mut V>,
}

impl<'d, V> EntryMut<'d, V> {
    /// # Safety
    ///
    /// `slot` is in use in `table`, which belongs to a dictionary of `V`; `h` is its key's hash.
    #[inline(always)]
    pub(crate) unsafe fn new(table: &'d mut Table, slot: NonNull<AtomicU64>, h: u64) -> Self {
        Self { table, slot, h, values: PhantomData }
    }

    #[inline(always)]
    fn record(&self) -> Record {
        Table::record(self.slot)
    }

    /// Returns a shared view of the entry.
    #[inline]
    pub fn as_ref(&self) -> EntryRef<'_, V> {
        // SAFETY: the dictionary is borrowed as long as `self` is.
        unsafe { EntryRef::new(self.record()) }
    }

    /// Converts this view to a shared one, which lives as long as the borrow of the dictionary.
    #[inline]
    pub fn into_ref(self) -> EntryRef<'d, V> {
        // SAFETY: this call consumes the exclusive view. For the rest of `'d`, the dictionary can
        // be used only through the result, which is a shared view.
        unsafe { EntryRef::new(self.record()) }
    }

    /// Returns the key.
    #[inline]
    pub fn key(&self) -> &[u8] {
        self.as_ref().key()
    }

    /// Returns the payload.
    #[inline]
    pub fn payload(&self) -> Payload<'_, V> {
        self.as_ref().payload()
    }

    /// Returns the expiry, in Unix milliseconds.
    #[inline]
    pub fn expire_at_ms(&self) -> Option<i64> {
        self.as_ref().expire_at_ms()
    }

    /// Returns the access word, 24 bits.
    #[inline]
    pub fn access(&self) -> u32 {
        self.as_ref().access()
    }

    /// Returns the user flags, 3 bits.
    #[inline]
    pub fn user_flags(&self) -> u8 {
        self.as_ref().user_flags()
    }

    /// Returns the memory of the entry, like [`EntryRef::allocated_bytes`].
    pub fn allocated_bytes(&self) -> usize {
        self.as_ref().allocated_bytes()
    }

    /// Stores the low 24 bits of `access` as the access word.
    #[inline]
    pub fn set_access(&mut self, access: u32) {
        // SAFETY: the entry is exclusively borrowed. This holds in all methods that change it.
        unsafe { self.record().set_access(access) }
    }

    /// Stores the low 3 bits of `flags` as the user flags.
    #[inline]
    pub fn set_user_flags(&mut self, flags: u8) {
        self.table.before_change(self.slot, Reason::Change);
        // SAFETY: as in `set_access`.
        unsafe { self.record().set_user_flags(flags) }
    }

    /// Stores an integer in place of another. Returns `false`, with nothing changed, if the payload
    /// isn't an integer.
    #[inline]
    pub fn set_int(&mut self, value: i64) -> bool {
        self.table.before_change(self.slot, Reason::Change);
        // SAFETY: as in `set_access`; an integer payload is 8 bytes at any alignment.
        unsafe {
            let (kind, at, _) = self.record().payload();
            if kind == Kind::Int {
                at.cast::<i64>().write_unaligned(value);
            }
            kind == Kind::Int
        }
    }

    /// Returns the bytes of a bytes payload, for changes in place; `None` for other kinds.
    #[inline]
    pub fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        self.table.before_change(self.slot, Reason::Change);
        // SAFETY: as in `set_access`; the borrow is `self`'s.
        unsafe {
            let (kind, at, len) = self.record().payload();
            (kind == Kind::Bytes).then(|| core::slice::from_raw_parts_mut(at.as_ptr(), len))
        }
    }

    /// Returns the heap value, for changes in place; `None` for other kinds.
    #[inline]
    pub fn heap_mut(&mut self) -> Option<&mut V> {
        self.table.before_change(self.slot, Reason::Change);
        // SAFETY: as in `set_access`; the pointer is that of a live `V` that only this entry refers
        // to.
        unsafe { self.record().heap().map(|value| value.cast::<V>().as_mut()) }
    }

    /// Stores another payload and user flags. Expiry and access word stay. Returns the former heap
    /// value if there was one.
    ///
    /// Works in place if the entry needs a cell of the same size as before. An entry too long for
    /// any cell changes in place only if its size stays the same. Otherwise the entry moves.
    pub fn replace(&mut self, payload: NewPayload<'_, V>, user_flags: u8) -> Option<V> {
        let expire_at_ms = self.expire_at_ms();
        self.set(payload, user_flags, expire_at_ms)
    }

    /// Replaces the payload as [`Self::replace`] does, and sets or removes the expiry in the same
    /// step.
    pub fn set(&mut self, payload: NewPayload<'_, V>, user_flags: u8, expire_at_ms: Option<i64>) -> Option<V> {
        // SAFETY: as in `set_access`.
        let old = unsafe { self.record().heap() };
        let payload = payload.into_raw();
        self.table.change(self.h, self.slot, Reason::Removal, |record, slab| {
            // SAFETY: as in `set_access`; the record belongs to this slab, and only the slot, which
            // `change` updates, refers to it. The payload can't lie in the record, because the
            // caller can't borrow from the entry during this call.
            unsafe { record.replace(slab, payload, user_flags, expire_at_ms) }
        });
        // SAFETY: a heap pointer in a dictionary of `V` is a boxed `V`, and the record no longer
        // refers to it.
        old.map(|value| unsafe { unbox(value) })
    }

    /// Sets, changes or removes the expiry (Unix milliseconds).
    pub fn set_expire(&mut self, expire_at_ms: Option<i64>) {
        if expire_at_ms.is_none() && self.expire_at_ms().is_none() {
            return;
        }
        self.table.change(self.h, self.slot, Reason::Change, |record, slab| {
            // SAFETY: as in `set`.
            unsafe { record.set_expire(slab, expire_at_ms) }
        });
    }

    /// Removes the entry.
    pub fn remove(self) -> Removed<V> {
        let record = self.table.unhook(self.h, self.slot);
        // SAFETY: unhooked just now from this table of a dictionary of `V`.
        unsafe { Removed::new(self.table, record) }
    }

    /// Removes the entry and returns all of it except the key.
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
        // A payload that is neither bytes nor an integer is a heap value, so the default is never
        // used.
        let payload = payload.unwrap_or(OwnedPayload::Int(0));
        Extracted { payload, user_flags, access, expire_at_ms }
    }
}

/// The heap value and the expiry of a removed entry. The caller decides where and when to drop the
/// heap value.
#[derive(Debug)]
pub struct Removed<V> {
    heap: Option<V>,
    expire_at_ms: Option<i64>,
}

impl<V> Removed<V> {
    /// Frees a record and keeps its heap value.
    ///
    /// # Safety
    ///
    /// The record was unhooked from `table`, which belongs to a dictionary of `V`, and nothing else
    /// refers to it.
    pub(crate) unsafe fn new(table: &mut Table, record: Record) -> Self {
        // SAFETY: the record is valid until `free`; its heap pointer is a boxed `V`, unboxed once,
        // here.
        unsafe {
            let heap = record.heap();
            let expire_at_ms = record.expire_at_ms();
            table.free(record);
            Self { heap: heap.map(|value| unbox(value)), expire_at_ms }
        }
    }

    /// Returns the heap value, if the entry had one.
    pub fn heap(&self) -> Option<&V> {
        self.heap.as_ref()
    }

    /// Returns the heap value, if the entry had one.
    pub fn into_heap(self) -> Option<V> {
        self.heap
    }

    /// Returns the expiry that the entry had, in Unix milliseconds.
    pub fn expire_at_ms(&self) -> Option<i64> {
        self.expire_at_ms
    }
}

/// The payload of an extracted entry.
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
    /// Converts the payload for an insert under another key. Bytes move into `store`, from which
    /// the result borrows them.
    pub fn as_new(self, store: &mut Option<Box<[u8]>>) -> NewPayload<'_, V> {
        match self {
            OwnedPayload::Bytes(bytes) => NewPayload::Bytes(store.insert(bytes)),
            OwnedPayload::Int(value) => NewPayload::Int(value),
            OwnedPayload::Heap(value) => NewPayload::Heap(value),
        }
    }

    /// Returns a view of the payload.
    pub fn payload(&self) -> Payload<'_, V> {
        match self {
            OwnedPayload::Bytes(bytes) => Payload::Bytes(bytes),
            OwnedPayload::Int(value) => Payload::Int(*value),
            OwnedPayload::Heap(value) => Payload::Heap(value),
        }
    }
}

/// A removed entry without its key, for commands that move a value to another key, such as
/// `RENAME`.
#[derive(Debug)]
pub struct Extracted<V> {
    /// The payload.
    pub payload: OwnedPayload<V>,
    /// The user flags.
    pub user_flags: u8,
    /// The access word.
    pub access: u32,
    /// The expiry, in Unix milliseconds.
    pub expire_at_ms: Option<i64>,
}

/// The place of a key: occupied or vacant.
pub enum Entry<'d, V> {
    /// The key exists.
    Occupied(EntryMut<'d, V>),
    /// The key doesn't exist.
    Vacant(VacantEntry<'d, V>),
}

/// The place of a key that doesn't exist.
pub struct VacantEntry<'d, V> {
    pub(crate) table: &'d mut Table,
    pub(crate) h: u64,
    pub(crate) key: &'d [u8],
    pub(crate) bucket: Option<usize>,
    pub(crate) values: PhantomData<&'d mut V>,
}

impl<'d, V> VacantEntry<'d, V> {
    /// Inserts the key, with user flags (3 bits), access word (24 bits) and expiry (Unix
    /// milliseconds).
    #[inline]
    pub fn insert(
        self,
        payload: NewPayload<'_, V>,
        user_flags: u8,
        access: u32,
        expire_at_ms: Option<i64>,
    ) -> EntryMut<'d, V> {
        let kept = kept_bits(access, self.table.epoch);
        let content = Content { payload: payload.into_raw(), user_flags, kept, expire_at_ms };
        let slot = self.table.insert(self.h, self.key, self.bucket, content);
        // SAFETY: the slot was filled just now, under this hash, in a dictionary of `V`.
        unsafe { EntryMut::new(self.table, slot, self.h) }
    }
}
