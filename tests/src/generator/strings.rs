//! String commands.

use super::{Check, Generator, Step};

impl Generator {
    pub(super) fn string_command(&mut self) -> Step {
        let name = *self.random.pick(&[
            "APPEND",
            "DECR",
            "DECRBY",
            "GET",
            "GET",
            "GET",
            "GETDEL",
            "GETEX",
            "GETRANGE",
            "GETSET",
            "INCR",
            "INCR",
            "INCRBY",
            "INCRBYFLOAT",
            "LCS",
            "MGET",
            "MSET",
            "MSETNX",
            "PSETEX",
            "SET",
            "SET",
            "SET",
            "SET",
            "SETEX",
            "SETNX",
            "SETRANGE",
            "STRLEN",
            "SUBSTR",
        ]);
        let mut args = vec![name.as_bytes().to_vec()];
        match name {
            "GET" | "GETDEL" | "STRLEN" | "INCR" | "DECR" => args.push(self.key()),
            "APPEND" | "GETSET" | "SETNX" => {
                args.push(self.key());
                args.push(self.value());
            }
            "INCRBY" | "DECRBY" => {
                args.push(self.key());
                args.push(self.integer());
            }
            "INCRBYFLOAT" => {
                args.push(self.key());
                args.push(self.float());
            }
            "GETRANGE" | "SUBSTR" => {
                args.push(self.key());
                args.push(self.integer());
                args.push(self.integer());
            }
            "SETRANGE" => {
                args.push(self.key());
                args.push(self.offset());
                args.push(self.value());
            }
            "SETEX" | "PSETEX" => {
                args.push(self.key());
                args.push(self.relative_time(if name == "SETEX" { 1000 } else { 1 }));
                args.push(self.value());
            }
            "SET" => {
                args.push(self.key());
                args.push(self.value());
                self.set_options(&mut args);
            }
            "GETEX" => {
                args.push(self.key());
                self.getex_options(&mut args);
            }
            "LCS" => self.lcs(&mut args),
            "MGET" => self.some_keys(&mut args),
            _ => {
                for _ in 0..self.random.below(6) + 1 {
                    args.push(self.key());
                    args.push(self.value());
                }
            }
        }
        Step::new(args, Check::Exact)
    }

    /// Returns an offset for SETRANGE: small, invalid, or greater than the maximum length of a
    /// string.
    fn offset(&mut self) -> Vec<u8> {
        let text = match self.random.below(12) {
            0 => "536870912".to_owned(),
            1 => "536870911999".to_owned(),
            2 => "-1".to_owned(),
            3 => "9223372036854775807".to_owned(),
            4 => "x".to_owned(),
            _ => self.random.below(60).to_string(),
        };
        text.into_bytes()
    }

    fn set_options(&mut self, args: &mut Vec<Vec<u8>>) {
        let count = match self.random.below(10) {
            0..=4 => 0,
            5..=7 => 1,
            8 => 2,
            _ => 3,
        };
        for _ in 0..count {
            match self.random.below(8) {
                0 | 1 => args.push(self.word("NX")),
                2 => args.push(self.word("XX")),
                3 | 4 => args.push(self.word("GET")),
                5 => args.push(self.word("KEEPTTL")),
                _ => self.time_option(args),
            }
        }
    }

    fn getex_options(&mut self, args: &mut Vec<Vec<u8>>) {
        for _ in 0..*self.random.pick(&[0, 1, 1, 1, 1, 2]) {
            if self.random.one_in(4) {
                args.push(self.word("PERSIST"));
            } else {
                self.time_option(args);
            }
        }
    }

    /// Appends EX, PX, EXAT or PXAT with its time.
    fn time_option(&mut self, args: &mut Vec<Vec<u8>>) {
        let (word, unit_ms, absolute) =
            *self.random.pick(&[("EX", 1000, false), ("PX", 1, false), ("EXAT", 1000, true), ("PXAT", 1, true)]);
        args.push(self.word(word));
        args.push(if absolute { self.absolute_time(unit_ms) } else { self.relative_time(unit_ms) });
    }

    fn lcs(&mut self, args: &mut Vec<Vec<u8>>) {
        args.push(self.key());
        args.push(self.key());
        for _ in 0..*self.random.pick(&[0, 0, 1, 1, 2, 3, 4]) {
            match self.random.below(5) {
                0 => args.push(self.word("LEN")),
                1 | 2 => args.push(self.word("IDX")),
                3 => args.push(self.word("WITHMATCHLEN")),
                _ => {
                    args.push(self.word("MINMATCHLEN"));
                    args.push(self.integer());
                }
            }
        }
    }

    /// Appends one to six keys.
    pub(super) fn some_keys(&mut self, args: &mut Vec<Vec<u8>>) {
        for _ in 0..self.random.below(6) + 1 {
            args.push(self.key());
        }
    }
}
