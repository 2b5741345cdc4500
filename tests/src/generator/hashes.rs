//! Hash commands.
//!
//! There are two kinds of keys. *Ordinary* hashes are also used by other commands. Their fields are
//! arbitrary, so they become hash tables, whose order differs between servers. *Small* hashes have
//! their own keys and stay listpacks, so the order of their fields is comparable.

use super::{Check, Generator, Step};

/// Number of keys of ordinary hashes: few, so that the hashes grow.
pub(super) const KEYS: usize = 4;

/// Number of keys of small hashes, which no other command accesses.
const SMALL_KEYS: usize = 3;

/// A count that exceeds the number of elements of any collection in a stream. With this count, a
/// page or a random selection contains all elements.
pub(super) const ALL: &str = "1000000";

pub(super) fn key(number: usize) -> Vec<u8> {
    format!("hash:{number}").into_bytes()
}

/// Returns how to compare the results of a SCAN command that starts at cursor 0.
pub(super) fn walk_of(name: &[u8]) -> Check {
    if [&b"HSCAN"[..], b"ZSCAN"].contains(&name) { Check::WalkOfPairs } else { Check::Walk }
}

impl Generator {
    pub(super) fn hash_command(&mut self) -> Step {
        let name = *self.random.pick(&[
            "HDEL",
            "HDEL",
            "HEXISTS",
            "HGET",
            "HGET",
            "HGETALL",
            "HINCRBY",
            "HINCRBY",
            "HINCRBYFLOAT",
            "HKEYS",
            "HLEN",
            "HMGET",
            "HMSET",
            "HRANDFIELD",
            "HRANDFIELD",
            "HSCAN",
            "HSCAN",
            "HSET",
            "HSET",
            "HSET",
            "HSET",
            "HSETNX",
            "HSTRLEN",
            "HVALS",
            "OBJECT",
        ]);
        // The result of HINCRBYFLOAT may be longer than a listpack allows.
        let is_small = name != "HINCRBYFLOAT" && self.random.one_in(4);
        let mut args = vec![name.as_bytes().to_vec()];
        if name == "OBJECT" {
            args.push(self.word("ENCODING"));
        }
        args.push(if is_small { self.small_hash_key() } else { self.hash_key() });
        let mut check = Check::Exact;
        match name {
            "HGETALL" if !is_small => check = Check::Pairs,
            "HKEYS" | "HVALS" if !is_small => check = Check::Unordered,
            "HDEL" | "HMGET" => {
                for _ in 0..self.random.below(5) + 1 {
                    args.push(self.field(is_small));
                }
            }
            "HEXISTS" | "HGET" | "HSTRLEN" => args.push(self.field(is_small)),
            "HINCRBY" => {
                args.push(self.field(is_small));
                args.push(self.integer());
            }
            "HINCRBYFLOAT" => {
                args.push(self.field(false));
                args.push(self.float());
            }
            "HSET" | "HMSET" => {
                let most = if self.random.one_in(12) && !is_small { 200 } else { 6 };
                for _ in 0..self.random.below(most) + 1 {
                    args.push(self.field(is_small));
                    args.push(self.field_value(is_small));
                }
            }
            "HSETNX" => {
                args.push(self.field(is_small));
                args.push(self.field_value(is_small));
            }
            "HRANDFIELD" => check = self.random_fields(&mut args),
            "HSCAN" => check = self.collection_scan(&mut args),
            _ => {}
        }
        Step::new(args, check)
    }

    fn hash_key(&mut self) -> Vec<u8> {
        if self.random.one_in(6) { self.key() } else { key(self.random.below(KEYS)) }
    }

    fn small_hash_key(&mut self) -> Vec<u8> {
        format!("small hash:{}", self.random.below(SMALL_KEYS)).into_bytes()
    }

    fn field(&mut self, is_small: bool) -> Vec<u8> {
        match self.random.below(12) {
            0 if !is_small => self.value(),
            1..=5 if !is_small => self.random.below(900).to_string().into_bytes(),
            0..=8 => format!("f{}", self.random.below(10)).into_bytes(),
            _ => self.random.below(6).to_string().into_bytes(),
        }
    }

    fn field_value(&mut self, is_small: bool) -> Vec<u8> {
        match self.random.below(8) {
            0..=2 if !is_small => self.value(),
            // Values near the maximum length in a listpack.
            3 if !is_small => vec![b'v'; 62 + self.random.below(5)],
            0..=4 => self.random.between(-300, 70_000).to_string().into_bytes(),
            _ => {
                let len = self.random.below(20);
                self.random.bytes(len)
            }
        }
    }

    /// Appends `[count [WITHVALUES]]`. The returned fields are random, but their number is not.
    fn random_fields(&mut self, args: &mut Vec<Vec<u8>>) -> Check {
        if self.random.one_in(5) {
            return Check::Kind;
        }
        let count = self.pick_count();
        let is_all = count == ALL.as_bytes();
        args.push(count);
        let with_values = self.random.one_in(2);
        if with_values {
            args.push(self.word("WITHVALUES"));
        }
        if self.random.one_in(16) {
            args.push(self.junk());
        }
        match (is_all, with_values) {
            (true, true) => Check::Pairs,
            (true, false) => Check::Unordered,
            _ => Check::Length,
        }
    }

    /// Returns a count for random picks.
    pub(super) fn pick_count(&mut self) -> Vec<u8> {
        const COUNTS: &[&str] = &["0", "1", "2", "5", "20", "400", "-1", "-3", "-40", ALL, ALL, ALL];
        if self.random.one_in(16) {
            // The negative count in this list is out of range, so the reference rejects it. A large
            // negative count within the range would make the reference build a reply until its
            // memory is exhausted.
            return self
                .random
                .pick(&["x", "", "-9223372036854775808", "9223372036854775808", "1.5"])
                .as_bytes()
                .to_vec();
        }
        self.random.pick(COUNTS).as_bytes().to_vec()
    }

    /// Appends `cursor [MATCH pattern] [COUNT count]`. If the cursor is 0, the test follows it to
    /// the end ([`Check::Walk`]). For any other cursor, only the kind of reply is compared.
    pub(super) fn collection_scan(&mut self, args: &mut Vec<Vec<u8>>) -> Check {
        if self.random.one_in(8) {
            args.push(
                self.random.pick(&["abc", "-1", "", "99999999999999999999", " 0", "0x", "7"]).as_bytes().to_vec(),
            );
            return Check::Kind;
        }
        args.push(b"0".to_vec());
        if self.random.one_in(3) {
            args.push(self.word("MATCH"));
            args.push(self.random.pick(&["*", "f*", "1*", "*[0-5]", "f?", "nosuch"]).as_bytes().to_vec());
        }
        // Walking page by page takes long, so most walks have one page.
        if !self.random.one_in(12) {
            args.push(self.word("COUNT"));
            let counts = ["20", "100", "100", ALL, ALL, ALL, ALL, ALL, ALL, "0", "-1", "x", ""];
            args.push(self.random.pick(&counts).as_bytes().to_vec());
        }
        if self.random.one_in(16) {
            args.push(self.junk());
        }
        walk_of(&args[0])
    }
}
