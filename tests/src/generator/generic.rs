//! Commands on keys of any type.

use super::{Check, DATABASES, Generator, Step, TTL_SLACK_S};

/// Maximum difference of idle times in seconds. It is the duration of the longest test run, because
/// the two servers may differ by as much: in Redis, all keys whose value is the same integer from 0
/// to 9999 share one object, and reading one of these keys resets the idle time of all. Pantala has
/// an idle time for each key (COMPAT.md).
pub(super) const IDLE_SLACK_S: i64 = 24 * 3600;

/// A key's access counter is random, up to 255. Whether a key has a counter is not random.
pub(super) const FREQ_CHECK: Check = Check::Near(255);

impl Generator {
    pub(super) fn generic_command(&mut self) -> Step {
        let name = *self.random.pick(&[
            "COPY",
            "COPY",
            "DEL",
            "EXISTS",
            "EXPIRE",
            "EXPIRE",
            "EXPIREAT",
            "EXPIRETIME",
            "KEYS",
            "MOVE",
            "OBJECT",
            "OBJECT",
            "PERSIST",
            "PEXPIRE",
            "PEXPIRE",
            "PEXPIREAT",
            "PEXPIRETIME",
            "PTTL",
            "RANDOMKEY",
            "RENAME",
            "RENAME",
            "RENAMENX",
            "SCAN",
            "TOUCH",
            "TTL",
            "TTL",
            "TYPE",
            "UNLINK",
        ]);
        let mut args = vec![name.as_bytes().to_vec()];
        let mut check = Check::Exact;
        match name {
            "DEL" | "EXISTS" | "TOUCH" | "UNLINK" => self.some_keys(&mut args),
            "PERSIST" | "TYPE" => args.push(self.key()),
            "TTL" | "EXPIRETIME" => {
                args.push(self.key());
                check = Check::Near(TTL_SLACK_S);
            }
            "PTTL" | "PEXPIRETIME" => {
                args.push(self.key());
                check = Check::Near(TTL_SLACK_S * 1000);
            }
            "EXPIRE" | "PEXPIRE" => {
                args.push(self.key());
                args.push(self.relative_time(if name == "EXPIRE" { 1000 } else { 1 }));
                self.expire_options(&mut args);
            }
            "EXPIREAT" | "PEXPIREAT" => {
                args.push(self.key());
                args.push(self.absolute_time(if name == "EXPIREAT" { 1000 } else { 1 }));
                self.expire_options(&mut args);
            }
            "RENAME" | "RENAMENX" => {
                args.push(self.key());
                args.push(self.key());
            }
            "MOVE" => {
                args.push(self.key());
                args.push(self.database());
            }
            "COPY" => self.copy(&mut args),
            "KEYS" => {
                args.push(self.pattern());
                check = Check::Unordered;
            }
            // The returned key is random. Whether there is a key is not random.
            "RANDOMKEY" => check = Check::Kind,
            "SCAN" => check = self.scan(&mut args),
            _ => check = self.object(&mut args),
        }
        Step::new(args, check)
    }

    fn expire_options(&mut self, args: &mut Vec<Vec<u8>>) {
        for _ in 0..*self.random.pick(&[0, 0, 0, 1, 1, 1, 2, 3]) {
            let word = *self.random.pick(&["NX", "XX", "GT", "LT", "GT", "LT", "ZZ"]);
            args.push(self.word(word));
        }
    }

    /// Returns a database number, occasionally an invalid one.
    pub(super) fn database(&mut self) -> Vec<u8> {
        match self.random.below(12) {
            0 => self
                .random
                .pick(&["16", "-1", "abc", "99999999999999999999", "", "15", "4294967296"])
                .as_bytes()
                .to_vec(),
            _ => self.random.between(0, DATABASES - 1).to_string().into_bytes(),
        }
    }

    fn copy(&mut self, args: &mut Vec<Vec<u8>>) {
        args.push(self.key());
        args.push(self.key());
        for _ in 0..*self.random.pick(&[0, 1, 1, 2, 3]) {
            if self.random.one_in(2) {
                args.push(self.word("REPLACE"));
            } else {
                args.push(self.word("DB"));
                args.push(self.database());
            }
        }
    }

    /// Appends the arguments of SCAN. If the cursor is 0, the test follows it to the end
    /// ([`Check::Walk`]). For any other cursor, only the kind of reply is compared.
    fn scan(&mut self, args: &mut Vec<Vec<u8>>) -> Check {
        args.push(
            self.random
                .pick(&["0", "0", "0", "abc", "-1", "", "99999999999999999999", "18446744073709551615", " 0", "0x"])
                .as_bytes()
                .to_vec(),
        );
        for _ in 0..self.random.below(4) {
            match self.random.below(4) {
                0 => {
                    args.push(self.word("MATCH"));
                    args.push(self.pattern());
                }
                1 => {
                    args.push(self.word("COUNT"));
                    args.push(self.random.pick(&["1", "10", "1000", "0", "-1", "x", ""]).as_bytes().to_vec());
                }
                2 => {
                    args.push(self.word("TYPE"));
                    let kind = *self.random.pick(&["string", "list", "hash", "set", "zset", "stream", "nosuch"]);
                    args.push(self.word(kind));
                }
                _ if self.random.one_in(3) => args.push(self.junk()),
                _ => {}
            }
        }
        if args[1] == b"0" { Check::Walk } else { Check::Kind }
    }

    fn object(&mut self, args: &mut Vec<Vec<u8>>) -> Check {
        let sub = *self.random.pick(&["ENCODING", "ENCODING", "ENCODING", "REFCOUNT", "IDLETIME", "FREQ", "NOSUCH"]);
        args.push(self.word(sub));
        args.push(self.key());
        if self.random.one_in(12) {
            args.push(self.key());
        }
        match sub {
            "IDLETIME" => Check::Near(IDLE_SLACK_S),
            "FREQ" => FREQ_CHECK,
            _ => Check::Exact,
        }
    }
}
