//! `DEBUG DIGEST` and `DEBUG DIGEST-VALUE`: a digest of a dataset or of values. The digest equals
//! Redis's bit for bit, so that tests can compare two servers.
//!
//! A digest has 20 bytes, which are zeros at first. A byte string is added to it in one of two
//! ways. `xor` replaces the digest by the exclusive or of the digest and the string's SHA-1, so the
//! order of strings does not matter. `mix` does the same, and then replaces the result by its own
//! SHA-1, so the order of strings matters.
//!
//! `DEBUG DIGEST` skips expired keys. Redis includes them until they are deleted.

use pantala_engine::access::Access;
use pantala_engine::db::{Held, Holds};
use pantala_resp::{Args, Reply};
use pantala_types::stream::StreamId;
use pantala_types::{Hash, List, Set, SortedSet, Stream};
use sha1::{Digest as _, Sha1};

use crate::strings::StringRef;

/// Length of a digest in bytes.
const DIGEST_BYTES: usize = 20;

/// Number of buckets per step of the scan. All shards are held, so nothing else runs between the
/// steps, and the number hardly matters.
const BUCKETS_PER_STEP: usize = 64;

/// Redis's type numbers.
#[derive(Clone, Copy)]
#[repr(u32)]
enum TypeNumber {
    String = 0,
    List = 1,
    Set = 2,
    SortedSet = 3,
    Hash = 4,
    Stream = 6,
}

/// A digest, as defined at the head of this module.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Digest([u8; DIGEST_BYTES]);

impl Digest {
    /// Adds a byte string whose position does not matter, such as a member of a set.
    fn xor(&mut self, piece: &[u8]) {
        let hash = Sha1::digest(piece);
        self.0.iter_mut().zip(hash).for_each(|(byte, other)| *byte ^= other);
    }

    /// Adds a byte string whose position matters, such as an element of a list.
    fn mix(&mut self, piece: &[u8]) {
        self.xor(piece);
        self.0 = Sha1::digest(self.0).into();
    }

    fn mix_type(&mut self, number: TypeNumber) {
        self.mix(&(number as u32).to_be_bytes());
    }

    /// Adds a value. `expires` says whether the value's key has a TTL.
    fn add_value(&mut self, held: Held<'_>, expires: bool) {
        if let Some(string) = StringRef::of(held) {
            self.mix_type(TypeNumber::String);
            string.with_bytes(|bytes| self.mix(bytes));
        } else if let Some(list) = held.view::<List>() {
            self.mix_type(TypeNumber::List);
            list.for_each(|element| element.with_bytes(|bytes| self.mix(bytes)));
        } else if let Some(set) = held.view::<Set>() {
            self.mix_type(TypeNumber::Set);
            set.for_each(|member| member.with_bytes(|bytes| self.xor(bytes)));
        } else if let Some(hash) = held.view::<Hash>() {
            self.mix_type(TypeNumber::Hash);
            hash.for_each(|field, value| {
                let mut pair = Self::default();
                field.with_bytes(|bytes| pair.mix(bytes));
                value.with_bytes(|bytes| pair.mix(bytes));
                self.xor(&pair.0);
            });
        } else if let Some(set) = held.view::<SortedSet>() {
            self.mix_type(TypeNumber::SortedSet);
            let mut buf = [0; pantala_resp::DOUBLE_LEN_MAX];
            for (member, score) in set.iter() {
                let mut pair = Self::default();
                member.with_bytes(|bytes| pair.mix(bytes));
                pair.mix(pantala_resp::format_double(score, &mut buf));
                self.xor(&pair.0);
            }
        } else if let Some(stream) = held.view::<Box<Stream>>() {
            self.mix_type(TypeNumber::Stream);
            // Consumer groups aren't part of the digest.
            stream.range(StreamId::MIN, StreamId::MAX, usize::MAX, |id, fields| {
                self.mix(format!("{}.{}", id.ms, id.seq).as_bytes());
                for (field, value) in fields {
                    field.with_bytes(|bytes| self.mix(bytes));
                    value.with_bytes(|bytes| self.mix(bytes));
                }
            });
        }
        if expires {
            self.xor(b"!!expire!!");
        }
    }

    fn reply(&self, reply: &mut Reply<'_>) {
        let text: String = self.0.iter().map(|byte| format!("{byte:02x}")).collect();
        reply.simple(&text);
    }
}

/// `DEBUG DIGEST`.
pub fn digest(access: &mut Access<'_>, _: &Args<'_>, reply: &mut Reply<'_>) {
    let mut all = Digest::default();
    let held = access.shards();
    for number in 0..access.keyspace().databases() {
        let mut shards = held.clone();
        shards.retain(|&shard| access.keyspace().shard_size(number, shard) > 0);
        if shards.is_empty() {
            continue;
        }
        all.mix(&number.to_be_bytes());
        for &shard in &shards {
            let db = access.db_in(number, shard);
            let mut cursor = 0;
            loop {
                cursor = db.scan(cursor, BUCKETS_PER_STEP, &mut |entry| {
                    let mut digest = Digest::default();
                    digest.mix(entry.key());
                    digest.add_value(entry.held(), entry.expire_at_ms().is_some());
                    all.xor(&digest.0);
                });
                if cursor == 0 {
                    break;
                }
            }
        }
    }
    all.reply(reply);
}

/// `DEBUG DIGEST-VALUE [key …]`: zeros for a missing key.
pub fn digest_value(access: &mut Access<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let mut digests = Vec::with_capacity(args.len() - 2);
    for index in 2..args.len() {
        let key = access.key(args, index);
        let mut digest = Digest::default();
        if let Some(entry) = access.db(&key).find(&key) {
            digest.add_value(entry.held(), entry.expire_at_ms().is_some());
        }
        digests.push(digest);
    }
    reply.array(digests.len());
    digests.iter().for_each(|digest| digest.reply(reply));
}
