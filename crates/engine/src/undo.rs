//! What keys were before a script changed them, so that its run can be taken back.
//!
//! A script that holds only the shards of its declared keys may meet another key after it has written. It then has to be run again with all
//! shards, as if it had never begun: whatever it has changed is put back while its shards are still held, so that nobody saw it.
//!
//! Only small values are kept: a script that changes a large one is run with all shards instead, which costs less than a copy. Events
//! (`notify-keyspace-events`) of what it changes are published when the run stands.

use hashbrown::HashMap;
use hashbrown::hash_map::Entry;
use pantala_dict::NewPayload;
use pantala_types::{PackedForm, Value};

use crate::access::{Access, Key};
use crate::db::{Expire, FLAG_RAW, Held, Holds, NewString, fits_inline, payload_of};
use crate::notify::{HeldEvent, hold_events};
use crate::transaction::{HeldWatches, Watches};

/// Largest value in one piece that is kept, bytes: to copy as much takes about 5 µs, as long as a short script with all shards keeps everybody else
/// waiting.
pub const UNDO_STRING_BYTES_MAX: usize = 64 * 1024;

/// Largest value of many pieces that is kept, bytes: a copy takes an allocation for each of them.
pub const UNDO_VALUE_BYTES_MAX: usize = 16 * 1024;

/// Most that is kept for one run, bytes.
pub const UNDO_BYTES_MAX: usize = 1024 * 1024;

/// More would have to be kept than is worth it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLarge;

/// What a key held.
enum Content {
    Int(i64),
    Bytes(Vec<u8>),
    Packed(PackedForm, Vec<u8>),
    Heap(Value),
}

/// What a key was.
struct Image {
    content: Content,
    flags: u8,
    access: u32,
    expire_at_ms: Option<i64>,
}

/// See the head of this module.
#[derive(Default)]
pub struct Undo {
    /// By database and key; `None`: there was no such key.
    images: HashMap<(u32, Box<[u8]>), Option<Image>>,
    /// Who watches those keys (`WATCH`), where anybody does: they hear of what stands, and not of what was put back.
    watches: Vec<(u32, Box<[u8]>, HeldWatches)>,
    /// What happened to keys, in order.
    events: Vec<HeldEvent>,
    bytes: usize,
}

impl Undo {
    /// Remembers what a key of the selected database is, unless it has already. To be called before the key is changed, with its shard held.
    ///
    /// # Errors
    /// [`TooLarge`]: it isn't remembered, and mustn't be changed.
    pub fn note(&mut self, access: &mut Access<'_>, bytes: &[u8]) -> Result<(), TooLarge> {
        let db = access.session().db;
        let Entry::Vacant(vacant) = self.images.entry((db, bytes.into())) else { return Ok(()) };
        let key = Key { bytes, place: access.keyspace().place(bytes) };
        let (image, value_bytes) = match image_of(access, &key)? {
            Some((image, value_bytes)) => (Some(image), value_bytes),
            None => (None, 0),
        };
        let taken = size_of::<Image>() + bytes.len() + value_bytes;
        if self.bytes + taken > UNDO_BYTES_MAX {
            return Err(TooLarge);
        }
        self.bytes += taken;
        vacant.insert(image);
        if let Some(held) = access.shard(key.place.shard).waiters.watches.hold(db, bytes) {
            self.watches.push((db, bytes.into(), held));
        }
        Ok(())
    }

    /// Keeps events of commands of the run back until it stands.
    ///
    /// # Errors
    /// [`TooLarge`]: there are more of them than are kept.
    pub fn hold(&mut self, events: Vec<HeldEvent>) -> Result<(), TooLarge> {
        self.bytes += events.iter().map(HeldEvent::bytes).sum::<usize>();
        self.events.extend(events);
        if self.bytes > UNDO_BYTES_MAX { Err(TooLarge) } else { Ok(()) }
    }

    /// Makes all keys what they were.
    pub fn roll_back(&mut self, access: &mut Access<'_>) {
        self.bytes = 0;
        // What has expired isn't brought back, whether the key or fields of it: that has happened. All else will happen again.
        for held in std::mem::take(&mut self.events) {
            let is_changed = |held: &HeldEvent| self.images.contains_key(&(held.db, held.key.clone()));
            if held.is_expiry() || !held.is_miss() && !is_changed(&held) {
                access.keyspace().publish_held(&held);
            }
        }
        // Putting back is no change: nobody is told of it.
        hold_events(|| {
            for ((db, bytes), image) in self.images.drain() {
                let key = Key { bytes: &bytes, place: access.keyspace().place(&bytes) };
                match image {
                    Some(image) => put_back(access, db, &key, image),
                    None => {
                        access.db_at(db, &key).remove(&key, false);
                    }
                }
            }
        });
        self.release(access, Watches::put_back);
    }

    /// The run stands: whoever watches what it has changed is told, and who listens to events. To be called while its shards are still held.
    pub fn keep(&mut self, access: &mut Access<'_>) {
        self.events.drain(..).for_each(|held| access.keyspace().publish_held(&held));
        self.images.clear();
        self.bytes = 0;
        self.release(access, Watches::let_go);
    }

    fn release(&mut self, access: &mut Access<'_>, how: fn(&mut Watches, u32, &[u8], HeldWatches)) {
        for (db, key, held) in self.watches.drain(..) {
            let shard = access.keyspace().place(&key).shard;
            how(&mut access.shard(shard).waiters.watches, db, &key, held);
        }
    }
}

/// What a key is, and the bytes of its value.
fn image_of(access: &mut Access<'_>, key: &Key<'_>) -> Result<Option<(Image, usize)>, TooLarge> {
    let mut db = access.db(key);
    let Some(entry) = db.find(key) else { return Ok(None) };
    let (content, value_bytes) = match entry.held() {
        Held::Int(value) => (Content::Int(value), 0),
        Held::Bytes(bytes) | Held::Packed(_, bytes) if bytes.len() > UNDO_STRING_BYTES_MAX => return Err(TooLarge),
        Held::Bytes(bytes) => (Content::Bytes(bytes.to_vec()), bytes.len()),
        Held::Packed(form, bytes) => (Content::Packed(form, bytes.to_vec()), bytes.len()),
        Held::Heap(value) => {
            let value_bytes = value.allocated_bytes();
            let is_one_piece = matches!(value, Value::String(_));
            if value_bytes > if is_one_piece { UNDO_STRING_BYTES_MAX } else { UNDO_VALUE_BYTES_MAX } {
                return Err(TooLarge);
            }
            (Content::Heap(value.try_clone().map_err(|_| TooLarge)?), value_bytes)
        }
    };
    let image =
        Image { content, flags: entry.user_flags(), access: entry.access(), expire_at_ms: entry.expire_at_ms() };
    Ok(Some((image, value_bytes)))
}

fn put_back(access: &mut Access<'_>, db: u32, key: &Key<'_>, image: Image) {
    let Image { content, flags, access: access_word, expire_at_ms } = image;
    let kept;
    let (payload, flags) = match content {
        Content::Int(value) => (NewPayload::Int(value), flags),
        Content::Heap(value) => (NewPayload::Heap(value), flags),
        Content::Bytes(bytes) => {
            kept = bytes;
            let string = if flags & FLAG_RAW != 0 { NewString::Raw(&kept) } else { NewString::Bytes(&kept) };
            payload_of(key, string).expect("it is small, and was there before")
        }
        Content::Packed(form, bytes) => {
            kept = bytes;
            if fits_inline(key.bytes, kept.len()) {
                (NewPayload::Bytes(&kept), flags)
            } else {
                (NewPayload::Heap(Value::from_packed(form, kept.clone())), 0)
            }
        }
    };
    let mut db = access.db_at(db, key);
    db.set_payload(key, payload, flags, expire_at_ms.map_or(Expire::Clear, Expire::At));
    if let Some(mut entry) = db.find(key) {
        entry.set_access(access_word);
    }
}
