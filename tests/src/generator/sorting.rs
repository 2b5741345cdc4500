//! `SORT` and `SORT_RO`, blocking commands (which find data or block only briefly), `DUMP` and
//! `RESTORE`.

use super::{Check, Generator, Step, lists, sets, sorted_sets};

/// The key that `SORT` reads. It is a copy, because sorting a sorted set in Redis converts the set
/// permanently to a skip list.
const COPY: &[u8] = b"copy to sort";

/// Patterns of `BY`.
const PATTERNS: &[&str] = &["key:*", "*", "nosort", "nosuch_*", "h*->f", "hash:*->a", "key:*->x", "->", "*->", "n*"];

impl Generator {
    /// Returns the steps that copy a key, sort the copy, and delete it.
    pub(super) fn sort_command(&mut self) -> Step {
        let source = match self.random.below(8) {
            0..=2 => lists::key(self.random.below(lists::KEYS)),
            3 | 4 => sets::key(self.random.below(sets::KEYS)),
            5 | 6 => sorted_sets::key(self.random.below(sorted_sets::KEYS)),
            _ => self.key(),
        };
        let mut sort = self.sort_of_copy();
        if self.random.one_in(14) {
            let mut bent = sort.clone();
            self.bend(&mut bent);
            // An invalid form of the command is sent only if its key is still the copy.
            if bent.args.get(1).is_none_or(|key| key == COPY) {
                sort = bent;
            }
        }
        self.mix_case(&mut sort.args[0]);
        // Redis's SORT reports a wrong error if an earlier command has set `errno`. So the step
        // before SORT is an HSCAN: Redis sets `errno` to 0 before it parses the cursor.
        self.following.push_back(Step::new(vec![b"HSCAN".to_vec(), COPY.to_vec(), b"x".to_vec()], Check::Exact));
        self.following.push_back(sort);
        self.following.push_back(Step::new(vec![b"DEL".to_vec(), COPY.to_vec()], Check::Exact));
        Step::new(vec![b"COPY".to_vec(), source, COPY.to_vec(), b"REPLACE".to_vec()], Check::Exact)
    }

    fn sort_of_copy(&mut self) -> Step {
        let read_only = self.random.one_in(4);
        let mut args = vec![if read_only { b"SORT_RO".to_vec() } else { b"SORT".to_vec() }, COPY.to_vec()];
        let (mut alpha, mut by, mut limited, mut nosort) = (false, false, false, false);
        for _ in 0..self.random.below(5) {
            match self.random.below(7) {
                0 | 1 => {
                    alpha = true;
                    args.push(self.word("ALPHA"));
                }
                2 => {
                    let order = *self.random.pick(&["ASC", "DESC", "DESC", "SIDEWAYS"]);
                    args.push(self.word(order));
                }
                3 => {
                    by = true;
                    args.push(self.word("BY"));
                    let pattern = *self.random.pick(PATTERNS);
                    nosort |= !pattern.contains('*');
                    args.push(pattern.as_bytes().to_vec());
                }
                4 => {
                    limited = true;
                    args.push(self.word("LIMIT"));
                    args.push(self.small_number());
                    args.push(self.small_number());
                }
                _ => {
                    args.push(self.word("GET"));
                    let pattern = *self.random.pick(&["#", "#", "key:*", "h*->f", "*", "nosuch_*"]);
                    args.push(pattern.as_bytes().to_vec());
                }
            }
        }
        // The order of elements differs between servers if their weights are equal, or if nothing
        // is sorted.
        let is_open = by && (alpha || nosort);
        if !read_only && !is_open && self.random.one_in(4) {
            args.push(self.word("STORE"));
            args.push(lists::key(self.random.below(lists::KEYS)));
        } else if read_only && self.random.one_in(20) {
            args.push(self.word("STORE"));
            args.push(self.key());
        }
        let check = match (is_open, limited) {
            (false, _) => Check::Exact,
            (true, false) => Check::Unordered,
            (true, true) => Check::Length,
        };
        Step::new(args, check)
    }

    fn small_number(&mut self) -> Vec<u8> {
        if self.random.one_in(15) { self.integer() } else { self.random.between(-2, 9).to_string().into_bytes() }
    }

    /// Returns a blocking command that finds data, or times out soon.
    pub(super) fn waiting_command(&mut self) -> Step {
        let name =
            *self.random.pick(&["BLPOP", "BRPOP", "BLMOVE", "BRPOPLPUSH", "BLMPOP", "BZPOPMIN", "BZPOPMAX", "BZMPOP"]);
        let ordered = name.starts_with("BZ");
        let mut args = vec![name.as_bytes().to_vec()];
        let some_key = |generator: &mut Generator| match ordered {
            _ if generator.random.one_in(12) => generator.key(),
            true => sorted_sets::key(generator.random.below(sorted_sets::KEYS)),
            false => lists::key(generator.random.below(lists::KEYS)),
        };
        if name.ends_with("MPOP") {
            args.push(self.timeout());
            let keys = self.random.below(4) + 1;
            args.push(if self.random.one_in(12) { self.small_number() } else { keys.to_string().into_bytes() });
            (0..keys).for_each(|_| args.push(some_key(self)));
            let end = *self.random.pick(if ordered { &["MIN", "MAX", "LEFT"] } else { &["LEFT", "RIGHT", "MIN"] });
            args.push(self.word(end));
            if self.random.one_in(3) {
                args.push(self.word("COUNT"));
                args.push(self.small_number());
            }
            return Step::new(args, Check::Exact);
        }
        match name {
            "BLMOVE" => {
                args.push(some_key(self));
                args.push(some_key(self));
                for _ in 0..2 {
                    let end = *self.random.pick(&["LEFT", "RIGHT"]);
                    args.push(self.word(end));
                }
            }
            "BRPOPLPUSH" => {
                args.push(some_key(self));
                args.push(some_key(self));
            }
            _ => (0..self.random.below(4) + 1).for_each(|_| args.push(some_key(self))),
        }
        args.push(self.timeout());
        Step::new(args, Check::Exact)
    }

    /// Returns a timeout of 1 or 2 ms, or an invalid one.
    pub(super) fn timeout(&mut self) -> Vec<u8> {
        const TIMEOUTS: &[&str] = &["-1", "abc", "", "1e400", "nan", "-0.1", "inf", "9223372036854775807", "0x1p70"];
        if self.random.one_in(12) {
            return self.random.pick(TIMEOUTS).as_bytes().to_vec();
        }
        self.random.pick(&["0.001", "0.002", "1e-3"]).as_bytes().to_vec()
    }

    /// Returns `DUMP`, or `RESTORE` of valid and invalid payloads. At the end of a stream, each
    /// server also restores the other's payloads of all keys.
    pub(super) fn transfer_command(&mut self) -> Step {
        match self.random.below(4) {
            0 => return Step::new(vec![b"DUMP".to_vec(), self.key()], Check::Kind),
            1 => {}
            _ => {
                if let Some(payload) = self.payload() {
                    return self.restore_command(payload);
                }
            }
        }
        let mut args = vec![b"RESTORE".to_vec(), self.key()];
        args.push(if self.random.one_in(4) { self.integer() } else { b"0".to_vec() });
        args.push(if self.random.one_in(3) { b"\x00\x01a\x0a\x00".to_vec() } else { self.value() });
        for _ in 0..*self.random.pick(&[0, 0, 1, 1, 2]) {
            match self.random.below(5) {
                0 | 1 => args.push(self.word("REPLACE")),
                2 => args.push(self.word("ABSTTL")),
                3 => {
                    let option = *self.random.pick(&["IDLETIME", "FREQ"]);
                    args.push(self.word(option));
                    args.push(self.small_number());
                }
                _ => args.push(self.junk()),
            }
        }
        Step::new(args, Check::Exact)
    }

    /// Returns a payload that one of the servers dumped before.
    pub(super) fn payload(&mut self) -> Option<Vec<u8>> {
        if self.payloads.is_empty() {
            return None;
        }
        let number = self.random.below(self.payloads.len());
        Some(self.payloads[number].clone())
    }

    /// Returns `RESTORE` of a payload, mostly with valid options.
    fn restore_command(&mut self, payload: Vec<u8>) -> Step {
        let mut args = vec![b"RESTORE".to_vec(), self.key()];
        let is_absolute = self.random.one_in(4);
        args.push(match self.random.below(4) {
            0 if is_absolute => self.absolute_time(1),
            0 => self.relative_time(1),
            _ => b"0".to_vec(),
        });
        args.push(payload);
        let mut options = Vec::new();
        if !self.random.one_in(4) {
            options.push(vec![self.word("REPLACE")]);
        }
        if is_absolute {
            options.push(vec![self.word("ABSTTL")]);
        }
        match self.random.below(8) {
            // These idle times are less than the accepted difference.
            0 => options.push(vec![self.word("IDLETIME"), self.random.below(5000).to_string().into_bytes()]),
            1 => options.push(vec![self.word("FREQ"), self.random.below(256).to_string().into_bytes()]),
            2 if self.random.one_in(3) => {
                let (option, bad) =
                    *self.random.pick(&[("IDLETIME", "-1"), ("FREQ", "256"), ("FREQ", "x"), ("NX", "1")]);
                options.push(vec![self.word(option), bad.as_bytes().to_vec()]);
            }
            _ => {}
        }
        self.random.shuffle(&mut options);
        args.extend(options.into_iter().flatten());
        Step::new(args, Check::Exact)
    }
}
