//! Set commands.
//!
//! There are three kinds of keys. *Ordinary* sets are also used by other commands and have any
//! members. *Wide* sets have so many integers that some sets exceed `set-max-intset-entries`.
//! *Small* sets have so few integers that they stay sorted, so their order is comparable.

use super::hashes::ALL;
use super::{Check, Generator, Step, words};

/// Number of keys that contain most sets. There are few keys, so that the sets grow and intersect.
pub(super) const KEYS: usize = 4;

/// The only member with a NUL. `SORT … ALPHA` compares members up to the NUL only, and the order of
/// equal members differs between servers.
const WITH_NUL: &[u8] = b"nul\0member";
/// Prefix of the names of small sets.
pub(super) const SMALL_PREFIX: &str = "small set:";

pub(super) fn key(number: usize) -> Vec<u8> {
    format!("set:{number}").into_bytes()
}

/// The kind of keys and members of a command.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Any,
    Wide,
    Small,
}

impl Generator {
    pub(super) fn set_command(&mut self) -> Step {
        let name = *self.random.pick(&[
            "OBJECT",
            "SADD",
            "SADD",
            "SADD",
            "SADD",
            "SADD",
            "SCARD",
            "SDIFF",
            "SDIFFSTORE",
            "SINTER",
            "SINTERCARD",
            "SINTERSTORE",
            "SISMEMBER",
            "SMEMBERS",
            "SMEMBERS",
            "SMISMEMBER",
            "SMOVE",
            "SMOVE",
            "SPOP",
            "SRANDMEMBER",
            "SREM",
            "SREM",
            "SREM",
            "SSCAN",
            "SUNION",
            "SUNIONSTORE",
        ]);
        let kind = *self.random.pick(&[Kind::Any, Kind::Any, Kind::Wide, Kind::Small]);
        let mut args = vec![name.as_bytes().to_vec()];
        let mut check = Check::Exact;
        match name {
            "SINTERCARD" => {
                self.set_cardinality(&mut args, kind);
                return Step::new(args, check);
            }
            "OBJECT" => args.push(self.word("ENCODING")),
            _ => {}
        }
        args.push(self.set_key(kind));
        match name {
            "SADD" | "SREM" => {
                let most = if self.random.one_in(12) { 300 } else { 8 };
                for _ in 0..self.random.below(most) + 1 {
                    args.push(self.member(kind));
                }
            }
            "SISMEMBER" => args.push(self.member(kind)),
            "SMISMEMBER" => {
                for _ in 0..self.random.below(5) + 1 {
                    args.push(self.member(kind));
                }
            }
            "SMEMBERS" if kind != Kind::Small => check = Check::Unordered,
            "SMOVE" => {
                args.push(self.set_key(kind));
                args.push(self.member(kind));
            }
            "SDIFF" | "SINTER" | "SUNION" => {
                self.set_keys(&mut args, kind);
                check = Check::Unordered;
            }
            "SDIFFSTORE" | "SINTERSTORE" | "SUNIONSTORE" => self.set_keys(&mut args, kind),
            "SPOP" => check = self.spop(&mut args),
            "SRANDMEMBER" if self.random.one_in(4) => check = Check::Kind,
            "SRANDMEMBER" => {
                let count = self.pick_count();
                if self.random.one_in(16) {
                    args.push(self.junk());
                }
                check = if count == ALL.as_bytes() { Check::Unordered } else { Check::Length };
                args.push(count);
            }
            "SSCAN" => check = self.collection_scan(&mut args),
            _ => {}
        }
        Step::new(args, check)
    }

    fn set_key(&mut self, kind: Kind) -> Vec<u8> {
        match kind {
            Kind::Any if self.random.one_in(6) => self.key(),
            Kind::Any => key(self.random.below(KEYS)),
            Kind::Wide => format!("wide set:{}", self.random.below(2)).into_bytes(),
            Kind::Small => format!("{SMALL_PREFIX}{}", self.random.below(4)).into_bytes(),
        }
    }

    fn set_keys(&mut self, args: &mut Vec<Vec<u8>>, kind: Kind) {
        for _ in 0..*self.random.pick(&[1, 1, 2, 2, 3]) {
            args.push(self.set_key(kind));
        }
    }

    fn member(&mut self, kind: Kind) -> Vec<u8> {
        match kind {
            Kind::Wide => self.random.below(1000).to_string().into_bytes(),
            // The integers have all widths, so that intsets are widened.
            Kind::Small => match self.random.below(12) {
                0 => (i64::MAX - self.random.below(5) as i64).to_string().into_bytes(),
                1 => self.random.between(-70_000, -69_990).to_string().into_bytes(),
                _ => self.random.between(-20, 20).to_string().into_bytes(),
            },
            Kind::Any => match self.random.below(10) {
                0 => Some(self.value()).filter(|value| !value.contains(&0)).unwrap_or_else(|| WITH_NUL.to_vec()),
                1..=3 => self.random.below(400).to_string().into_bytes(),
                4..=7 => self.random.below(12).to_string().into_bytes(),
                _ => format!("f{}", self.random.below(8)).into_bytes(),
            },
        }
    }

    /// Appends `numkeys key [key …] [LIMIT limit]`.
    fn set_cardinality(&mut self, args: &mut Vec<Vec<u8>>, kind: Kind) {
        let keys = self.random.below(3) + 1;
        args.push(if self.random.one_in(10) { self.integer() } else { keys.to_string().into_bytes() });
        for _ in 0..keys {
            args.push(self.set_key(kind));
        }
        if self.random.one_in(2) {
            args.push(self.word("LIMIT"));
            let limit = self.random.below(12).to_string().into_bytes();
            args.push(if self.random.one_in(6) { self.integer() } else { limit });
        }
    }

    /// Appends `[count]`. If only some members are removed, the remaining members are random, so
    /// the key is then deleted.
    fn spop(&mut self, args: &mut Vec<Vec<u8>>) -> Check {
        if self.random.one_in(12) {
            args.extend([b"3".to_vec(), self.junk()]);
            return Check::Exact;
        }
        if self.random.one_in(4) {
            args.push(self.random.pick(&["0", ALL, "-1", "x", "9223372036854775807"]).as_bytes().to_vec());
            return Check::Unordered;
        }
        let mut next = words("DEL");
        next.push(args[1].clone());
        self.following.push_back(Step::new(next, Check::Exact));
        if self.random.one_in(2) {
            return Check::Kind;
        }
        args.push((self.random.below(30) + 1).to_string().into_bytes());
        Check::Length
    }
}
