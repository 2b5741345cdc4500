//! Stream commands.
//!
//! IDs come from a counter, so that entries have the same IDs on both servers. Values that depend
//! on a server's clock (idle times, delivery times) are far from the thresholds in commands, and
//! are compared as times ([`Check::Times`]). `*` is used only on a separate key, whose entries no
//! command reads.

use super::{Check, Generator, Step};

/// Number of keys that contain most streams.
pub(super) const KEYS: usize = 3;

pub(super) fn key(number: usize) -> Vec<u8> {
    format!("stream:{number}").into_bytes()
}

/// The key whose entries have IDs from the clock.
pub const CLOCK_STREAM: &[u8] = b"stream of the clock";

/// Minimum idle times in ms. Each value matches all entries (0), no entries, or only entries that
/// were claimed with a delivery time long ago.
pub(super) const IDLE_MS: &[&str] =
    &["0", "0", "0", "0", "1000000", "1000000", "2500000000", "9223372036854775807", "-1", "x"];

/// Idle times in ms that XCLAIM sets: less than, between and greater than the values of
/// [`IDLE_MS`].
pub(super) const CLAIM_IDLE_MS: &[&str] = &["0", "2000000000", "3000000000", "9223372036854775807", "-1", "x"];

/// Options of XCLAIM with the arguments that may follow them.
const CLAIM_OPTIONS: &[(&str, &[&str])] = &[
    ("IDLE", CLAIM_IDLE_MS),
    ("TIME", &["0", "1000", "9223372036854775807", "-1", "x"]),
    ("RETRYCOUNT", &["0", "5", "9223372036854775807", "-1", "x"]),
    ("LASTID", &["0-0", "5-5"]),
    ("FORCE", &[]),
    ("FORCE", &[]),
    ("JUSTID", &[]),
    ("NOSUCH", &[]),
];

/// Commands on [`CLOCK_STREAM`]. The empty word is replaced by this key.
const CLOCK_COMMANDS: &[(&[&str], Check)] = &[
    (&["XADD", "", "*", "f", "v"], Check::Kind),
    (&["XADD", "", "MAXLEN", "30", "*", "f", "v"], Check::Kind),
    (&["XADD", "", "NOMKSTREAM", "*", "f", "v", "g", "w"], Check::Kind),
    (&["XTRIM", "", "MAXLEN", "=", "10"], Check::Exact),
    (&["XLEN", ""], Check::Exact),
];

impl Generator {
    pub(super) fn stream_command(&mut self) -> Step {
        self.stream_run = self.stream_run.saturating_sub(1);
        let name = *self.random.pick(&[
            "XACK",
            "XADD",
            "XADD",
            "XADD",
            "XADD",
            "XADD",
            "XADD",
            "XADD",
            "XAUTOCLAIM",
            "XCLAIM",
            "XCLAIM",
            "XDEL",
            "XGROUP",
            "XGROUP",
            "XINFO",
            "XINFO",
            "XLEN",
            "XPENDING",
            "XPENDING",
            "XRANGE",
            "XREAD",
            "XREADGROUP",
            "XREADGROUP",
            "XREADGROUP",
            "XREVRANGE",
            "XSETID",
            "XTRIM",
            "CONFIG",
            "CLOCK",
        ]);
        match name {
            "CONFIG" => return self.node_limits(),
            "CLOCK" => return self.clock_command(),
            "XREAD" | "XREADGROUP" => return self.reading(name),
            "XGROUP" => return self.group_command(),
            "XINFO" => return self.stream_info(),
            _ => {}
        }
        let mut args = vec![name.as_bytes().to_vec(), self.stream_key()];
        let mut check = Check::Exact;
        match name {
            "XADD" => {
                self.trimming(&mut args, 6);
                if self.random.one_in(20) {
                    args.push(self.word("NOMKSTREAM"));
                }
                args.push(self.new_id());
                self.entry_fields(&mut args);
            }
            "XTRIM" => self.trimming(&mut args, 1),
            "XRANGE" | "XREVRANGE" => {
                args.push(self.stream_bound(name == "XRANGE"));
                args.push(self.stream_bound(name != "XRANGE"));
                self.stream_count(&mut args);
            }
            "XDEL" => self.some_ids(&mut args),
            "XACK" => {
                args.push(self.group());
                self.some_ids(&mut args);
            }
            "XSETID" => self.setid(&mut args),
            "XPENDING" => {
                self.pending(&mut args);
                check = Check::Times;
            }
            "XCLAIM" => self.claim(&mut args),
            "XAUTOCLAIM" => self.autoclaim(&mut args),
            _ => {}
        }
        Step::new(args, check)
    }

    pub(super) fn stream_key(&mut self) -> Vec<u8> {
        if self.random.one_in(8) { self.key() } else { key(self.random.below(KEYS)) }
    }

    pub(super) fn group(&mut self) -> Vec<u8> {
        self.random.pick(&["g", "g", "g", "g", "g", "h", "group\0x", ""]).as_bytes().to_vec()
    }

    pub(super) fn consumer(&mut self) -> Vec<u8> {
        self.random.pick(&["one", "one", "two", "three", "Two", "con sumer\r\n"]).as_bytes().to_vec()
    }

    /// Returns an ID for XADD, mostly greater than all others.
    pub(super) fn new_id(&mut self) -> Vec<u8> {
        if self.random.one_in(12) {
            return self.id();
        }
        self.stream_ms += *self.random.pick(&[0, 0, 1, 1, 1, 2, 40, 1000]);
        let ms = self.stream_ms;
        match self.random.below(5) {
            0 => format!("{ms}-{}", self.random.below(6)),
            1 => format!("{}-1", ms + 1),
            2 => (ms + 1).to_string(),
            _ => format!("{ms}-*"),
        }
        .into_bytes()
    }

    /// Returns an ID that an entry may have, or an arbitrary one.
    pub(super) fn id(&mut self) -> Vec<u8> {
        const ODD: &[&str] = &[
            "0-0",
            "0",
            "-",
            "5-",
            "-5",
            "1-*",
            "18446744073709551615-18446744073709551615",
            "18446744073709551615",
            "18446744073709551616",
            "007-01",
            "1--03",
            "1--3",
            " 1-1",
            "+1-1",
            "1-1\0x",
            "",
            "x",
            "(1",
            "0-1",
        ];
        if self.random.one_in(12) {
            return self.random.pick(ODD).as_bytes().to_vec();
        }
        let ms = self.stream_ms.saturating_sub(*self.random.pick(&[0, 1, 2, 3, 5, 20, 100, 5000]));
        match self.random.below(3) {
            0 => ms.to_string(),
            _ => format!("{ms}-{}", self.random.below(5)),
        }
        .into_bytes()
    }

    /// Returns the start or end of a range.
    fn stream_bound(&mut self, first: bool) -> Vec<u8> {
        match self.random.below(8) {
            0..=3 => if first { "-" } else { "+" }.into(),
            4 => [b"(".to_vec(), self.id()].concat(),
            5 => self.random.pick(&["-", "+", "(", "(-", "(+", "(0-0", "(18446744073709551615"]).as_bytes().to_vec(),
            _ => self.id(),
        }
    }

    fn some_ids(&mut self, args: &mut Vec<Vec<u8>>) {
        let most = if self.random.one_in(8) { 12 } else { 3 };
        for _ in 0..self.random.below(most) + 1 {
            args.push(self.id());
        }
    }

    fn stream_count(&mut self, args: &mut Vec<Vec<u8>>) {
        if self.random.one_in(2) {
            args.push(self.word("COUNT"));
            args.push(self.random.pick(&["1", "2", "3", "10", "150", "0", "-1", "x"]).as_bytes().to_vec());
        }
    }

    /// Appends fields and values, mostly with the same names. Most are short, because an entry of
    /// about 4 KiB crashes redis-server 7.0.15 if the limit of a node's size is lower.
    fn entry_fields(&mut self, args: &mut Vec<Vec<u8>>) {
        let pairs = *self.random.pick(&[1, 2, 2, 2, 2, 3, 20]);
        for number in 0..pairs {
            if pairs == 2 && !self.random.one_in(10) {
                args.push([b"name".to_vec(), b"12".to_vec()][number].clone());
            } else {
                args.push(self.value());
            }
            args.push(self.value());
            if pairs == 20 {
                args.iter_mut().rev().take(2).for_each(|text| text.truncate(60));
            }
        }
        if self.random.one_in(40) {
            args.pop();
        }
    }

    /// Appends MAXLEN or MINID, once in `rarity` calls.
    fn trimming(&mut self, args: &mut Vec<Vec<u8>>, rarity: usize) {
        if !self.random.one_in(rarity) {
            return;
        }
        for _ in 0..if self.random.one_in(20) { 2 } else { 1 } {
            let by_length = self.random.one_in(2);
            let strategy = if by_length { "MAXLEN" } else { "MINID" };
            args.push(self.word(strategy));
            let operator = *self.random.pick(&["", "=", "~", "~", "~~"]);
            if !operator.is_empty() && (operator != "~~" || self.random.one_in(10)) {
                args.push(operator.as_bytes().to_vec());
            }
            if by_length {
                let length = *self.random.pick(&["50", "120", "200", "300", "10", "1", "0", "-1", "x"]);
                args.push(length.as_bytes().to_vec());
            } else {
                args.push(self.id());
            }
        }
        if self.random.one_in(5) {
            args.push(self.word("LIMIT"));
            args.push(self.random.pick(&["0", "1", "10", "100", "150", "-1", "x"]).as_bytes().to_vec());
        }
    }

    fn setid(&mut self, args: &mut Vec<Vec<u8>>) {
        // Most IDs are near the current IDs. After a large jump, no further entries could be added.
        let ms = self.stream_ms + 1;
        args.push(if self.random.one_in(3) {
            self.id()
        } else {
            format!("{ms}-{}", self.random.below(3)).into_bytes()
        });
        if self.random.one_in(3) {
            args.push(self.word("ENTRIESADDED"));
            args.push(self.random.pick(&["0", "1", "10", "1000", "100000", "-1", "x"]).as_bytes().to_vec());
        }
        if self.random.one_in(3) {
            args.push(self.word("MAXDELETEDID"));
            args.push(self.id());
        }
    }

    fn reading(&mut self, name: &str) -> Step {
        let of_group = name == "XREADGROUP";
        let mut args = vec![name.as_bytes().to_vec()];
        if of_group || self.random.one_in(30) {
            args.push(self.word("GROUP"));
            args.push(self.group());
            args.push(if self.random.one_in(20) { b"STREAMS".to_vec() } else { self.consumer() });
        }
        self.stream_count(&mut args);
        if self.random.one_in(if of_group { 6 } else { 40 }) {
            args.push(self.word("NOACK"));
        }
        if self.random.one_in(30) {
            args.push(self.word("BLOCK"));
            args.push(self.random.pick(&["-1", "x", "1.5", "", "1"]).as_bytes().to_vec());
        }
        args.push(self.word("STREAMS"));
        let streams = *self.random.pick(&[1, 1, 1, 2, 3, 10]);
        for _ in 0..streams {
            args.push(if streams == 1 { self.stream_key() } else { key(self.random.below(KEYS)) });
        }
        for _ in 0..streams {
            let special = if of_group { ">" } else { "$" };
            args.push(match self.random.below(6) {
                0 => self.id(),
                1 if of_group => b"0".to_vec(),
                2 if !of_group => b"0".to_vec(),
                3 if self.random.one_in(8) => self.random.pick(&["$", ">"]).as_bytes().to_vec(),
                _ if of_group || self.random.one_in(3) => special.into(),
                _ => self.id(),
            });
        }
        Step::new(args, Check::Exact)
    }

    fn group_command(&mut self) -> Step {
        let sub = *self.random.pick(&[
            "CREATE",
            "CREATE",
            "CREATE",
            "SETID",
            "SETID",
            "CREATECONSUMER",
            "DESTROY",
            "CREATECONSUMER",
            "DELCONSUMER",
            "NOSUCH",
        ]);
        let mut args = vec![b"XGROUP".to_vec(), self.word(sub), self.stream_key(), self.group()];
        match sub {
            "CREATE" | "SETID" => {
                args.push(self.random.pick(&["$", "0", "0", "-", "+"]).as_bytes().to_vec());
                if self.random.one_in(3) {
                    args[4] = self.id();
                }
                for _ in 0..*self.random.pick(&[0, 1, 1, 1, 2, 4]) {
                    if sub == "CREATE" && !self.random.one_in(4) {
                        args.push(self.word("MKSTREAM"));
                    } else {
                        args.push(self.word("ENTRIESREAD"));
                        args.push(self.random.pick(&["0", "3", "100", "-1", "-2", "x"]).as_bytes().to_vec());
                    }
                }
            }
            "DESTROY" => {}
            _ => args.push(self.consumer()),
        }
        Step::new(args, Check::Exact)
    }

    fn stream_info(&mut self) -> Step {
        let sub = *self.random.pick(&["STREAM", "STREAM", "STREAM", "GROUPS", "CONSUMERS", "CONSUMERS", "NOSUCH"]);
        let mut args = vec![b"XINFO".to_vec(), self.word(sub), self.stream_key()];
        if sub == "CONSUMERS" {
            args.push(self.group());
        }
        if sub == "STREAM" && self.random.one_in(2) {
            args.push(self.word("FULL"));
            self.stream_count(&mut args);
        }
        Step::new(args, Check::Times)
    }

    fn pending(&mut self, args: &mut Vec<Vec<u8>>) {
        args.push(self.group());
        if self.random.one_in(4) {
            return;
        }
        if self.random.one_in(3) {
            args.push(self.word("IDLE"));
            args.push(self.random.pick(IDLE_MS).as_bytes().to_vec());
        }
        args.push(self.stream_bound(true));
        args.push(self.stream_bound(false));
        args.push(self.random.pick(&["10", "100", "1", "0", "-1", "x"]).as_bytes().to_vec());
        if self.random.one_in(3) {
            args.push(self.consumer());
        }
    }

    fn claim(&mut self, args: &mut Vec<Vec<u8>>) {
        args.push(self.group());
        args.push(self.consumer());
        args.push(self.random.pick(IDLE_MS).as_bytes().to_vec());
        self.some_ids(args);
        for _ in 0..*self.random.pick(&[0, 0, 1, 1, 2, 3]) {
            let (option, values) = *self.random.pick(CLAIM_OPTIONS);
            args.push(self.word(option));
            if !values.is_empty() {
                args.push(self.random.pick(values).as_bytes().to_vec());
            }
        }
    }

    fn autoclaim(&mut self, args: &mut Vec<Vec<u8>>) {
        args.push(self.group());
        args.push(self.consumer());
        args.push(self.random.pick(IDLE_MS).as_bytes().to_vec());
        args.push(if self.random.one_in(2) { b"-".to_vec() } else { self.stream_bound(true) });
        self.stream_count(args);
        if self.random.one_in(4) {
            args.push(self.word("JUSTID"));
        }
    }

    /// Returns `CONFIG SET` of a limit on the size of nodes.
    fn node_limits(&mut self) -> Step {
        let (name, value) = *self.random.pick(&[
            ("entries", "100"),
            ("entries", "3"),
            ("entries", "0"),
            ("entries", "10"),
            ("bytes", "4096"),
            ("bytes", "0"),
            ("bytes", "200"),
        ]);
        let words = ["CONFIG", "SET", &format!("stream-node-max-{name}"), value];
        Step::new(words.iter().map(|word| word.as_bytes().to_vec()).collect(), Check::Exact)
    }

    /// Returns a command on the stream whose entries have IDs from the clock. The IDs differ
    /// between servers, so only the number of entries is compared.
    fn clock_command(&mut self) -> Step {
        let (words, check) = *self.random.pick(CLOCK_COMMANDS);
        let word = |word: &&str| if word.is_empty() { CLOCK_STREAM.to_vec() } else { word.as_bytes().to_vec() };
        Step::new(words.iter().map(word).collect(), check)
    }
}
