//! Sorted set commands.

use super::{Check, Generator, Step};

/// Number of keys that contain most sorted sets. The keys numbered below [`SMALL_KEYS`] get few
/// members, so that all encodings occur.
pub(super) const KEYS: usize = 7;
const SMALL_KEYS: usize = 3;
/// Prefix of the keys of lexicographical ranges.
pub(super) const LEX_PREFIX: &[u8] = b"lex:";

pub(super) fn key(number: usize) -> Vec<u8> {
    format!("zset:{number}").into_bytes()
}

impl Generator {
    pub(super) fn sorted_set_command(&mut self) -> Step {
        let check = match self.random.below(20) {
            0..=4 => return self.zadd(),
            5 => return self.pop_members(),
            6..=8 => return self.range_of_members(),
            9 => return self.remove_range(),
            10 | 11 => return self.combine_sorted_sets(),
            12 => return self.pick_members(),
            13 | 14 => return self.lexicographical(),
            _ => Check::Exact,
        };
        let names = ["ZCARD", "ZINCRBY", "ZMSCORE", "ZRANK", "ZREM", "ZREVRANK", "ZSCORE", "ZCOUNT", "OBJECT"];
        let name = *self.random.pick(&names);
        let mut args = vec![name.as_bytes().to_vec()];
        if name == "OBJECT" {
            args.push(self.word("ENCODING"));
        }
        let (key, wide) = self.sorted_set_key();
        args.push(key);
        match name {
            "ZINCRBY" => {
                args.push(self.score());
                args.push(self.scored_member(wide));
            }
            "ZMSCORE" | "ZREM" => {
                for _ in 0..self.random.below(4) + 1 {
                    args.push(self.scored_member(wide));
                }
            }
            "ZRANK" | "ZREVRANK" | "ZSCORE" => args.push(self.scored_member(wide)),
            "ZCOUNT" => self.bounds("BYSCORE", &mut args),
            _ => {}
        }
        Step::new(args, check)
    }

    /// Returns a key, and whether its members are chosen from many.
    fn sorted_set_key(&mut self) -> (Vec<u8>, bool) {
        if self.random.one_in(12) {
            return (self.key(), false);
        }
        let number = self.random.below(KEYS);
        (key(number), number >= SMALL_KEYS)
    }

    fn zadd(&mut self) -> Step {
        let mut args = vec![b"ZADD".to_vec()];
        let (key, wide) = self.sorted_set_key();
        args.push(key);
        let mut incr = false;
        if self.random.one_in(3) {
            for _ in 0..*self.random.pick(&[1, 1, 1, 2, 2, 3]) {
                let option = *self.random.pick(&["NX", "XX", "GT", "LT", "CH", "CH", "INCR"]);
                incr |= option == "INCR";
                args.push(self.word(option));
            }
        }
        let most = *self.random.pick(if wide { &[1, 2, 5, 60] } else { &[1, 1, 2, 5] });
        let pairs = if incr && !self.random.one_in(6) { 1 } else { self.random.below(most) + 1 };
        // In some commands all members get the same score, as lexicographical ranges require.
        let even = self.random.one_in(4);
        for _ in 0..pairs {
            args.push(if even { b"0".to_vec() } else { self.score() });
            args.push(self.scored_member(wide));
        }
        Step::new(args, Check::Exact)
    }

    fn score(&mut self) -> Vec<u8> {
        match self.random.below(12) {
            0 | 1 => self.float(),
            2 => self
                .random
                .pick(&["inf", "-inf", "+inf", "nan", "-0", "1e400", "Infinity", "0x10", " 1"])
                .as_bytes()
                .to_vec(),
            3 => self.integer(),
            4 | 5 => format!("{}.{}", self.random.between(-20, 20), self.random.below(1000)).into_bytes(),
            _ => self.random.between(-20, 20).to_string().into_bytes(),
        }
    }

    fn scored_member(&mut self, wide: bool) -> Vec<u8> {
        let many = if wide { 400 } else { 14 };
        match self.random.below(40) {
            0 => self.value(),
            1 => self.integer(),
            // Members near and above the maximum length in a listpack.
            2 if wide => vec![b'm'; 60 + self.random.below(10)],
            3..=20 => self.random.below(many).to_string().into_bytes(),
            _ => {
                let number = self.random.below(many);
                format!("{}{}", char::from(b'a' + (number % 26) as u8), number / 26).into_bytes()
            }
        }
    }

    /// Returns a rank or a count: near the ends, or arbitrary.
    fn rank(&mut self) -> Vec<u8> {
        match self.random.below(12) {
            0 => self.integer(),
            1..=4 => format!("-{}", self.random.below(20) + 1).into_bytes(),
            _ => self.random.below(25).to_string().into_bytes(),
        }
    }

    fn bound(&mut self, by: &str) -> Vec<u8> {
        let open = *self.random.pick(&["", "", "("]);
        match by {
            "BYSCORE" => match self.random.below(8) {
                0 => b"-inf".to_vec(),
                1 => b"+inf".to_vec(),
                _ => [open.as_bytes(), &self.score()].concat(),
            },
            "BYLEX" => match self.random.below(8) {
                0 | 1 => b"-".to_vec(),
                2 | 3 => b"+".to_vec(),
                4 => self.scored_member(true),
                _ => [if open.is_empty() { b"[" } else { b"(" }, &self.scored_member(true)[..]].concat(),
            },
            _ => self.rank(),
        }
    }

    fn bounds(&mut self, by: &str, args: &mut Vec<Vec<u8>>) {
        args.push(self.bound(by));
        args.push(self.bound(by));
    }

    fn limit(&mut self, args: &mut Vec<Vec<u8>>) {
        args.push(self.word("LIMIT"));
        args.push(self.rank());
        args.push(self.rank());
    }

    fn range_of_members(&mut self) -> Step {
        let name = *self.random.pick(&[
            "ZRANGE",
            "ZRANGE",
            "ZRANGE",
            "ZRANGESTORE",
            "ZRANGEBYSCORE",
            "ZREVRANGEBYSCORE",
            "ZREVRANGE",
        ]);
        let mut args = vec![name.as_bytes().to_vec()];
        if name == "ZRANGESTORE" {
            args.push(self.sorted_set_key().0);
        }
        args.push(self.sorted_set_key().0);
        let by = match name {
            "ZRANGE" | "ZRANGESTORE" => *self.random.pick(&["", "BYSCORE"]),
            "ZREVRANGE" => "",
            _ => "BYSCORE",
        };
        self.bounds(by, &mut args);
        if matches!(name, "ZRANGE" | "ZRANGESTORE") {
            if !by.is_empty() {
                args.push(self.word(by));
            }
            if self.random.one_in(3) {
                args.push(self.word("REV"));
            }
        }
        if self.random.one_in(if by.is_empty() { 20 } else { 3 }) {
            self.limit(&mut args);
        }
        if self.random.one_in(if name == "ZRANGESTORE" { 20 } else { 2 }) {
            args.push(self.word("WITHSCORES"));
        }
        Step::new(args, Check::Exact)
    }

    fn remove_range(&mut self) -> Step {
        let (name, by) = *self.random.pick(&[("ZREMRANGEBYRANK", ""), ("ZREMRANGEBYSCORE", "BYSCORE")]);
        let mut args = vec![name.as_bytes().to_vec(), self.sorted_set_key().0];
        self.bounds(by, &mut args);
        Step::new(args, Check::Exact)
    }

    /// Returns a command on ranges of members. These commands have their own keys, whose members
    /// all have one score. With several scores, Redis's reply for a large set depends on the random
    /// levels of its skip list.
    fn lexicographical(&mut self) -> Step {
        let name = *self.random.pick(&[
            "ZADD",
            "ZADD",
            "ZADD",
            "ZLEXCOUNT",
            "ZLEXCOUNT",
            "ZRANGE",
            "ZRANGESTORE",
            "ZRANGEBYLEX",
            "ZREVRANGEBYLEX",
            "ZREMRANGEBYLEX",
        ]);
        let mut args = vec![name.as_bytes().to_vec()];
        if name == "ZRANGESTORE" {
            args.push(self.sorted_set_key().0);
        }
        let number = self.random.below(3);
        args.push([LEX_PREFIX, number.to_string().as_bytes()].concat());
        if name == "ZADD" {
            for _ in 0..self.random.below(if number == 0 { 3 } else { 30 }) + 1 {
                args.push(b"1".to_vec());
                args.push(self.scored_member(number > 0));
            }
            return Step::new(args, Check::Exact);
        }
        self.bounds("BYLEX", &mut args);
        if matches!(name, "ZRANGE" | "ZRANGESTORE") {
            args.push(self.word("BYLEX"));
            if self.random.one_in(3) {
                args.push(self.word("REV"));
            }
        }
        if name != "ZLEXCOUNT" && name != "ZREMRANGEBYLEX" && self.random.one_in(3) {
            self.limit(&mut args);
        }
        if self.random.one_in(20) {
            args.push(self.word("WITHSCORES"));
        }
        Step::new(args, Check::Exact)
    }

    fn pop_members(&mut self) -> Step {
        let name = *self.random.pick(&["ZPOPMIN", "ZPOPMAX", "ZMPOP"]);
        let mut args = vec![name.as_bytes().to_vec()];
        if name != "ZMPOP" {
            args.push(self.sorted_set_key().0);
            if self.random.one_in(2) {
                args.push(self.rank());
            }
            return Step::new(args, Check::Exact);
        }
        self.numbered_keys(&mut args);
        let end = *self.random.pick(&["MIN", "MAX", "MIN", "MAX", "MIN", "MAX", "MID"]);
        args.push(self.word(end));
        if self.random.one_in(2) {
            args.push(self.word("COUNT"));
            args.push(self.rank());
        }
        Step::new(args, Check::Exact)
    }

    /// Appends `numkeys key [key …]`. Returns the number of keys.
    fn numbered_keys(&mut self, args: &mut Vec<Vec<u8>>) -> usize {
        let keys = self.random.below(4) + 1;
        args.push(if self.random.one_in(12) { self.rank() } else { keys.to_string().into_bytes() });
        for _ in 0..keys {
            args.push(self.sorted_set_key().0);
        }
        keys
    }

    fn combine_sorted_sets(&mut self) -> Step {
        let names = ["ZUNION", "ZINTER", "ZDIFF", "ZUNIONSTORE", "ZINTERSTORE", "ZDIFFSTORE", "ZINTERCARD"];
        let name = *self.random.pick(&names);
        let mut args = vec![name.as_bytes().to_vec()];
        if name.ends_with("STORE") {
            args.push(self.sorted_set_key().0);
        }
        let keys = self.numbered_keys(&mut args);
        let mixed = self.random.one_in(15);
        if (mixed || name.starts_with("ZUNION") || name.starts_with("ZINTER")) && name != "ZINTERCARD" {
            if self.random.one_in(3) {
                args.push(self.word("WEIGHTS"));
                for _ in 0..keys {
                    args.push(self.score());
                }
            }
            if self.random.one_in(3) {
                args.push(self.word("AGGREGATE"));
                let kind = *self.random.pick(&["SUM", "MIN", "MAX", "MIN", "MAX", "AVG"]);
                args.push(self.word(kind));
            }
        }
        if self.random.one_in(if name.ends_with("STORE") || name == "ZINTERCARD" { 20 } else { 2 }) {
            args.push(self.word("WITHSCORES"));
        }
        if mixed || (name == "ZINTERCARD" && self.random.one_in(2)) {
            args.push(self.word("LIMIT"));
            args.push(self.rank());
        }
        Step::new(args, Check::Exact)
    }

    /// Returns a command whose reply is random, or in an order that differs between servers.
    fn pick_members(&mut self) -> Step {
        let name = *self.random.pick(&["ZRANDMEMBER", "ZSCAN"]);
        let mut args = vec![name.as_bytes().to_vec(), self.sorted_set_key().0];
        if name == "ZSCAN" {
            let check = self.collection_scan(&mut args);
            return Step::new(args, check);
        }
        if self.random.one_in(2) {
            args.push(self.random.between(-20, 20).to_string().into_bytes());
            if self.random.one_in(2) {
                args.push(self.word("WITHSCORES"));
            }
        }
        Step::new(args, Check::Kind)
    }
}
