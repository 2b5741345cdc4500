//! Writes a whole keyspace.

use std::sync::atomic::Ordering::Relaxed;

use pantala_engine::EntryRef;
use pantala_engine::db::Holds;
use pantala_engine::eviction::Rank;
use pantala_engine::whole::Whole;
use pantala_types::rdb_value::ValueRef;
use pantala_types::{Hash, Value, access};

use super::writer::{Attributes, Sink, Version, Writer};

/// What a file holds besides the keys, and how it is written.
#[derive(Clone, Debug)]
pub struct Facts {
    /// Version of Redis that the server behaves as.
    pub redis_version: String,
    /// Memory in use, bytes.
    pub used_bytes: u64,
    /// Texts of the libraries of functions.
    pub libraries: Vec<Vec<u8>>,
    /// Long strings are compressed (`rdbcompression`).
    pub compresses: bool,
    /// A checksum is made (`rdbchecksum`).
    pub checks: bool,
}

/// How access words are written: it depends on the eviction policy, as in Redis.
#[derive(Clone, Copy)]
enum Access {
    Unwritten,
    Idle,
    Frequency { decay_time_min: u32 },
}

/// Writes all that the shards hold, as of the time at which they were taken. Expired keys are left
/// out. Returns the version, and whether the sink has taken everything.
pub fn write_dataset(whole: &mut Whole<'_>, facts: &Facts, sink: &mut dyn Sink) -> (Version, bool) {
    let (now_ms, tuning) = (whole.now_ms(), &whole.keyspace().tuning);
    let access = match tuning.eviction_policy().rank() {
        Some(Rank::Lru) => Access::Idle,
        Some(Rank::Lfu) => Access::Frequency { decay_time_min: tuning.lfu_decay_time_minutes.load(Relaxed) },
        _ => Access::Unwritten,
    };
    let version = if whole.has_expiring_fields() { Version::Redis7_4 } else { Version::Redis7_0 };
    let mut writer = Writer::new(version, facts.compresses, facts.checks, sink);
    let number = |number: u64| number.to_string().into_bytes();
    writer.aux(b"redis-ver", facts.redis_version.as_bytes());
    writer.aux(b"redis-bits", &number(u64::from(usize::BITS)));
    writer.aux(b"ctime", &number((now_ms / 1000) as u64));
    writer.aux(b"used-mem", &number(facts.used_bytes));
    writer.aux(b"aof-base", b"0");
    facts.libraries.iter().for_each(|text| writer.function(text));
    for db in 0..whole.databases() {
        let (keys, expiring) = whole.size(db);
        if keys == 0 {
            continue;
        }
        writer.database(db, keys, expiring);
        whole.for_each(db, &mut |entry| {
            write_entry(&mut writer, entry, access, now_ms);
            writer.is_wanted()
        });
        if !writer.is_wanted() {
            break;
        }
    }
    (version, writer.finish())
}

fn write_entry(writer: &mut Writer<'_>, entry: EntryRef<'_, Value>, access: Access, now_ms: i64) {
    let held = entry.held();
    let value = match held.view::<Hash>() {
        // A hash whose fields have all expired is a missing key.
        Some(hash) if hash.len_at(now_ms) == 0 => return,
        Some(hash) if hash.has_expiring_fields() => Some(ValueRef::ExpiringHash(hash, now_ms)),
        _ => held.to_write(),
    };
    let Some(value) = value else { return };
    let word = entry.access();
    let (idle_s, frequency) = match access {
        Access::Unwritten => (None, None),
        Access::Idle => (Some(u64::from(access::idle_time_s(word, now_ms as u64))), None),
        Access::Frequency { decay_time_min } => (None, Some(access::lfu_decay(word, now_ms as u64, decay_time_min))),
    };
    writer.entry(entry.key(), value, Attributes { expire_at_ms: entry.expire_at_ms(), idle_s, frequency });
}
