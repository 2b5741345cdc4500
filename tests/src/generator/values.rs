//! Values, numbers and times of random commands.

use super::Generator;

/// Texts that are almost numbers, and numbers at a limit.
const EDGES: &[&str] = &[
    "0",
    "-0",
    "1",
    "-1",
    "+1",
    "01",
    " 1",
    "1 ",
    "",
    "abc",
    "1.5",
    "-1.5",
    ".5",
    "5.",
    "1e3",
    "1e400",
    "-1e400",
    "inf",
    "-inf",
    "nan",
    "infinity",
    "0x10",
    "9223372036854775807",
    "9223372036854775808",
    "-9223372036854775808",
    "-9223372036854775809",
    "18446744073709551615",
    "99999999999999999999999",
    "4294967296",
    "2147483648",
    "3.0e3",
    "1e-5",
    "0.1",
    "1e17",
    "123456789012345678",
    "5e-324",
    "1.7976931348623157e308",
    "1e4000",
    "9999",
    "10000",
    "--1",
    "1_000",
    "\0",
    "1\0",
];

/// Arguments that replace another one to make a command invalid.
pub(super) const JUNK: &[&str] = &[
    "",
    "abc",
    "1.5",
    "-1",
    "0",
    "9223372036854775807",
    "9223372036854775808",
    "-9223372036854775808",
    " 1",
    "+1",
    "0x10",
    "nan",
    "NX",
    "GET",
    "*",
    "EX",
];

/// One in this many values is huge.
const HUGE_ONE_IN: usize = 400_000;
/// Length of a huge value, in bytes.
const HUGE_BYTES: usize = 10 << 20;

/// Minimum distance in seconds between two different relative times of a stream, and between two
/// different absolute ones. A relative and an absolute time are at least about half of this
/// distance apart (see [`Generator::far_seconds`]).
const FAR_STEP_S: i64 = 100_000;

impl Generator {
    /// Returns a value to store: a short text, a number, binary data, a text near the maximum
    /// length of embstr, or (rarely) a huge text.
    pub(crate) fn value(&mut self) -> Vec<u8> {
        if self.random.one_in(HUGE_ONE_IN) {
            return vec![b'h'; HUGE_BYTES];
        }
        match self.random.below(12) {
            0 | 1 => self.random.between(-200, 20_000).to_string().into_bytes(),
            2 => self.random.pick(EDGES).as_bytes().to_vec(),
            3 => {
                let len = self.random.below(40);
                self.random.bytes(len)
            }
            4 => {
                let len = 38 + self.random.below(12);
                vec![b'e'; len]
            }
            5 => {
                let len = self.random.below(self.value_len_max);
                self.random.bytes(len)
            }
            6 => Vec::new(),
            7 => (self.random.next_u64() as i64).to_string().into_bytes(),
            8 => format!("{}.{}", self.random.between(-999, 999), self.random.below(100_000)).into_bytes(),
            _ => {
                let len = self.random.below(12) + 1;
                (0..len).map(|_| *self.random.pick(b"abcdefxyz ")).collect()
            }
        }
    }

    /// Returns an integer for counters and offsets, mostly valid.
    pub(crate) fn integer(&mut self) -> Vec<u8> {
        match self.random.below(8) {
            0 => self.random.pick(EDGES).as_bytes().to_vec(),
            1 => (self.random.next_u64() as i64).to_string().into_bytes(),
            _ => self.random.between(-30, 30).to_string().into_bytes(),
        }
    }

    /// Returns a number for INCRBYFLOAT.
    pub(crate) fn float(&mut self) -> Vec<u8> {
        match self.random.below(6) {
            0 => self.random.pick(EDGES).as_bytes().to_vec(),
            1 => format!("{}e{}", self.random.between(-99, 99), self.random.between(-12, 12)).into_bytes(),
            2 => self.random.between(-1000, 1000).to_string().into_bytes(),
            _ => format!("{}.{}", self.random.between(-99, 99), self.random.below(1_000_000)).into_bytes(),
        }
    }

    /// Returns an argument that is invalid in most positions, and never a time in the near future.
    pub(crate) fn junk(&mut self) -> Vec<u8> {
        self.random.pick(JUNK).as_bytes().to_vec()
    }

    /// Returns a number of seconds that is far from any other time of the command stream. So the
    /// options GT and LT and the expiry of keys have the same result on two servers, even if one of
    /// them is delayed.
    fn far_seconds(&mut self) -> i64 {
        (self.random.below(1_000_000) as i64 + 1) * FAR_STEP_S + 50_000
    }

    /// Returns an argument for a relative expiry. `unit_ms` is 1 or 1000.
    pub(crate) fn relative_time(&mut self, unit_ms: i64) -> Vec<u8> {
        let value = match self.random.below(16) {
            0 => self.random.between(-100, 0),
            1 => return self.junk_time(),
            _ => self.far_seconds() * 1000 / unit_ms,
        };
        value.to_string().into_bytes()
    }

    /// Returns an argument for an absolute expiry: in the past, or in the far future. `unit_ms` is
    /// 1 or 1000.
    pub(crate) fn absolute_time(&mut self, unit_ms: i64) -> Vec<u8> {
        let value = match self.random.below(10) {
            0 => self.random.between(-5, 0),
            1 => self.random.between(1, 1000),
            2 => (self.start_s - 1000) * 1000 / unit_ms,
            3 => return self.junk_time(),
            _ => (self.start_s + (self.random.below(40) as i64 + 1) * FAR_STEP_S) * 1000 / unit_ms,
        };
        value.to_string().into_bytes()
    }

    /// Returns a time that is rejected, in the past, or so large that computing the deadline could
    /// overflow.
    fn junk_time(&mut self) -> Vec<u8> {
        const TIMES: &[&str] = &[
            "9223372036854775807",
            "9223372036854775808",
            "-9223372036854775808",
            "-9223372036854775807",
            "9223372036854775",
            "9223372036854776",
            "9223370000000000",
            "-9223372036854775",
            "abc",
            "",
            "1.5",
            "+5",
            "0",
        ];
        self.random.pick(TIMES).as_bytes().to_vec()
    }

    /// Returns a pattern for KEYS and SCAN that matches some keys of the stream.
    pub(crate) fn pattern(&mut self) -> Vec<u8> {
        const PATTERNS: &[&str] = &[
            "*",
            "a",
            "?",
            "??",
            "key:*",
            "key:?",
            "k[e-f]y*",
            "[^a]*",
            "[a-c]",
            "[c-a]",
            "{tag}*",
            "*{tag}",
            "*e*",
            "\\*",
            "[",
            "[]",
            "[^",
            "[a",
            "\\",
            "*\\",
            "k?y*:[0-9]*",
            "",
            "**",
            "*?*",
            "{*}*",
            "[\\a]",
            "*\n*",
            "[K]ey",
        ];
        if self.random.one_in(10) {
            let len = self.random.below(6);
            return self.random.bytes(len);
        }
        self.random.pick(PATTERNS).as_bytes().to_vec()
    }
}
