//! Writes a whole keyspace to an RDB file, either at once ([`write_dataset`]) or in parts that
//! several threads encode ([`Head`], [`EntryForm`] and [`Tail`]).

use std::sync::atomic::Ordering::Relaxed;

use pantala_base::crc64::crc64;
use pantala_engine::EntryRef;
use pantala_engine::db::{Held, Holds};
use pantala_engine::eviction::Rank;
use pantala_engine::tuning::Tuning;
use pantala_engine::whole::Whole;
use pantala_types::rdb_value::{self, ValueRef};
use pantala_types::{CutState, Hash, PieceMax, Value, access};

use super::writer::{Attributes, Sink, Version, Writer, append_entry, append_head};
use super::{MAGIC_REDIS, opcode};

/// The content of a file besides the keys, and options for writing the file.
#[derive(Clone, Debug)]
pub struct HeadFields {
    /// Version of Redis that the server emulates.
    pub redis_version: String,
    /// Memory in use, bytes.
    pub used_bytes: u64,
    /// Texts of the function libraries.
    pub libraries: Vec<Vec<u8>>,
    /// Further auxiliary fields.
    pub more: Vec<(&'static str, String)>,
    /// Whether expired keys are written too, because replicas haven't received their deletion.
    pub keeps_expired: bool,
    /// Whether the file is the base of an append-only file.
    pub is_aof_base: bool,
    /// Whether long strings are compressed (`rdbcompression`).
    pub compresses: bool,
    /// Whether the file has a checksum (`rdbchecksum`).
    pub checks: bool,
}

/// The form of access words in a file. As in Redis, a file has idle times if the eviction policy is
/// LRU, access counters if it is LFU, and no access words otherwise.
#[derive(Clone, Copy, Debug)]
enum Access {
    Unwritten,
    Idle,
    Frequency { decay_time_min: u32 },
}

/// Maximum number of elements in a piece of a large collection's cut ([`EntryForm::begin_cut`]).
/// Encoding them takes about 10 µs.
const PIECE_ELEMENTS: usize = 256;

/// Maximum number of nodes in a piece of the cut of a list (whose nodes have 8 KiB by default) or
/// of a stream (4 KiB).
const PIECE_NODES: usize = 4;

/// A piece ends at the latest once its elements have this number of bytes. Compressing them takes
/// about 0.1 ms. A longer element ends its piece.
const PIECE_BYTES: usize = 16 * 1024;

/// How the entries of a file are written. It stays the same for the whole file.
#[derive(Clone, Copy, Debug)]
pub struct EntryForm {
    access: Access,
    compresses: bool,
    keeps_expired: bool,
    now_ms: i64,
}

impl EntryForm {
    /// Returns the form of a file that represents the dataset at `now_ms`, Unix time. With
    /// `compresses`, long strings are compressed if that saves enough space.
    #[must_use]
    pub fn new(tuning: &Tuning, compresses: bool, now_ms: i64) -> Self {
        let access = match tuning.eviction_policy().rank() {
            Some(Rank::Lru) => Access::Idle,
            Some(Rank::Lfu) => Access::Frequency { decay_time_min: tuning.lfu_decay_time_minutes.load(Relaxed) },
            _ => Access::Unwritten,
        };
        EntryForm { access, compresses, keeps_expired: false, now_ms }
    }

    /// Returns this form with another treatment of expired keys: they are written if
    /// `keeps_expired` is true, and omitted otherwise.
    #[must_use]
    pub fn keeping_expired(self, keeps_expired: bool) -> Self {
        EntryForm { keeps_expired, ..self }
    }

    /// Returns the value and attributes to write for an entry; `None` if its key counts as missing.
    fn value<'e>(&self, entry: &EntryRef<'e, Value>) -> Option<(ValueRef<'e>, Attributes)> {
        let now_ms = self.now_ms;
        let expire_at_ms = entry.expire_at_ms();
        if expire_at_ms.is_some_and(|at_ms| at_ms <= now_ms) && !self.keeps_expired {
            return None;
        }
        let held = entry.held();
        let value = match held.view::<Hash>() {
            // A hash whose fields have all expired is a missing key.
            Some(hash) if hash.len_at(now_ms) == 0 => return None,
            Some(hash) if hash.has_expiring_fields() => Some(ValueRef::ExpiringHash(hash, now_ms)),
            _ => held.to_write(),
        };
        let word = entry.access();
        let (idle_s, frequency) = match self.access {
            Access::Unwritten => (None, None),
            Access::Idle => (Some(u64::from(access::idle_time_s(word, now_ms as u64))), None),
            Access::Frequency { decay_time_min } => {
                (None, Some(access::lfu_decay(word, now_ms as u64, decay_time_min)))
            }
        };
        Some((value?, Attributes { expire_at_ms, idle_s, frequency }))
    }

    /// Appends an entry to a part of a file, unless it has expired. Returns whether it was
    /// appended.
    pub fn append(&self, entry: EntryRef<'_, Value>, part: &mut Vec<u8>) -> bool {
        let Some((value, attributes)) = self.value(&entry) else { return false };
        append_entry(&mut rdb_value::Writer::new(part, self.compresses), entry.key(), value, attributes);
        true
    }

    /// Appends the head of an entry and starts a cut of its value ([`rdb_value::begin_cut`]). A
    /// *cut* consists of the elements that a value has at one instant. It can be appended in pieces
    /// ([`EntryForm::append_cut`]) while the value changes. If the entry has expired, or no cut of
    /// its value can be started, appends nothing and returns false.
    pub fn begin_cut(&self, entry: EntryRef<'_, Value>, part: &mut Vec<u8>) -> bool {
        let Some((value, attributes)) = self.value(&entry) else { return false };
        let mut elements = Vec::new();
        let has_begun = rdb_value::begin_cut(value, &mut rdb_value::Writer::new(&mut elements, self.compresses));
        if has_begun {
            append_head(&mut rdb_value::Writer::new(part, self.compresses), entry.key(), value, attributes);
            part.append(&mut elements);
        }
        has_begun
    }

    /// Appends the next piece of a value's cut.
    pub fn append_cut(&self, value: &Value, part: &mut Vec<u8>) -> CutState {
        let Some(value) = Held::Heap(value).to_write() else { return CutState::Lost };
        let elements = match value {
            ValueRef::List(_) | ValueRef::Stream(_) => PIECE_NODES,
            _ => PIECE_ELEMENTS,
        };
        rdb_value::write_cut(
            value,
            PieceMax { elements, bytes: PIECE_BYTES },
            &mut rdb_value::Writer::new(part, self.compresses),
        )
    }

    /// Ends the cut of a value, if one is in progress.
    pub fn end_cut(value: &Value) {
        Held::Heap(value).to_write().into_iter().for_each(rdb_value::end_cut);
    }
}

/// Writes all entries of the shards, as of the time at which the shards were acquired. Omits
/// expired keys, unless `fields.keeps_expired` is true. Returns the version, and whether the sink
/// has taken all bytes.
pub fn write_dataset(whole: &mut Whole<'_>, fields: &HeadFields, sink: &mut dyn Sink) -> (Version, bool) {
    let mut form = EntryForm::new(&whole.keyspace().tuning, fields.compresses, whole.now_ms());
    form.keeps_expired = fields.keeps_expired;
    if fields.keeps_expired {
        whole.show_expired();
    }
    let head = Head::of(whole, fields);
    let version = head.version;
    let mut writer = Writer::after_head(head.to_bytes(&[]), fields.compresses, fields.checks, sink);
    for db in 0..whole.databases() {
        if whole.size(db).0 == 0 {
            continue;
        }
        writer.select(db);
        whole.for_each(db, &mut |entry| {
            if let Some((value, attributes)) = form.value(&entry) {
                writer.entry(entry.key(), value, attributes);
            }
            writer.is_wanted()
        });
        if !writer.is_wanted() {
            break;
        }
    }
    (version, writer.finish())
}

/// The head of a file: everything before its first entry.
#[derive(Clone, Debug)]
pub struct Head {
    /// The version of the file.
    pub version: Version,
    now_ms: i64,
    fields: HeadFields,
    /// Databases that have keys: number of the database, count of keys, count of keys with an
    /// expiry.
    databases: Vec<(u32, u64, u64)>,
}

impl Head {
    /// Returns the head of a file of all current entries of the shards.
    pub fn of(whole: &mut Whole<'_>, fields: &HeadFields) -> Self {
        let version = if whole.has_expiring_fields() { Version::Redis7_4 } else { Version::Redis7_0 };
        let sizes = (0..whole.databases()).map(|db| (db, whole.size(db)));
        let databases = sizes.filter(|(_, (keys, _))| *keys > 0).map(|(db, (keys, expiring))| (db, keys, expiring));
        Head { version, now_ms: whole.now_ms(), fields: fields.clone(), databases: databases.collect() }
    }

    /// Returns the number of keys, including expired ones.
    #[must_use]
    pub fn keys(&self) -> u64 {
        self.databases.iter().map(|(_, keys, _)| keys).sum()
    }

    /// Encodes the head, with `more` auxiliary fields besides its own.
    #[must_use]
    pub fn to_bytes(&self, more: &[(&str, String)]) -> Vec<u8> {
        let mut bytes = MAGIC_REDIS.to_vec();
        bytes.extend_from_slice(format!("{:04}", self.version.number()).as_bytes());
        let mut writer = rdb_value::Writer::new(&mut bytes, self.fields.compresses);
        let mut aux = |name: &str, value: &str| {
            writer.put(&[opcode::AUX]);
            writer.put_string(name.as_bytes());
            writer.put_string(value.as_bytes());
        };
        aux("redis-ver", &self.fields.redis_version);
        aux("redis-bits", &usize::BITS.to_string());
        aux("ctime", &(self.now_ms / 1000).to_string());
        aux("used-mem", &self.fields.used_bytes.to_string());
        self.fields.more.iter().for_each(|(name, value)| aux(name, value));
        more.iter().for_each(|(name, value)| aux(name, value));
        aux("aof-base", if self.fields.is_aof_base { "1" } else { "0" });
        for text in &self.fields.libraries {
            writer.put(&[opcode::FUNCTION]);
            writer.put_string(text);
        }
        for (db, keys, expiring) in &self.databases {
            writer.put(&[opcode::SELECT_DB]);
            writer.put_length((*db).into());
            writer.put(&[opcode::RESIZE_DB]);
            writer.put_length(*keys);
            writer.put_length(*expiring);
        }
        bytes
    }
}

/// Appends the selection of a database to a part of a file. Each part must start with such a
/// selection.
pub fn append_select(db: u32, part: &mut Vec<u8>) {
    let mut writer = rdb_value::Writer::new(part, false);
    writer.put(&[opcode::SELECT_DB]);
    writer.put_length(db.into());
}

/// Computes the end of a file: the end marker, and the checksum of all bytes including the marker.
#[derive(Clone, Copy, Debug)]
pub struct Tail {
    checksum: Option<u64>,
}

impl Tail {
    /// Starts a file, with a checksum or without one.
    #[must_use]
    pub fn new(checks: bool) -> Self {
        Tail { checksum: checks.then_some(0) }
    }

    /// Adds the next bytes of the file to the checksum.
    pub fn add(&mut self, bytes: &[u8]) {
        if let Some(checksum) = &mut self.checksum {
            *checksum = crc64(*checksum, bytes);
        }
    }

    /// Returns the end marker and the checksum.
    #[must_use]
    pub fn to_bytes(mut self) -> Vec<u8> {
        let mut bytes = vec![opcode::END];
        self.add(&bytes);
        bytes.extend_from_slice(&self.checksum.unwrap_or(0).to_le_bytes());
        bytes
    }
}
