//! Commands built from the arguments that redis-server's `COMMAND DOCS` declares, so that every
//! form of a command occurs. Keys are chosen without regard to the command, so most of them have a
//! value of the wrong type. Numbers include the limits of their ranges, and values may be empty.
//! About one command in six has too few or too many arguments.

use super::generic::{FREQ_CHECK, IDLE_SLACK_S};
use super::hashes::walk_of;
use super::streams::{CLAIM_IDLE_MS, IDLE_MS};
use super::{Check, Generator, Step, TTL_SLACK_S};
use crate::reply::Reply;

/// The groups of commands to build.
const GROUPS: &[&str] =
    &["bitmap", "generic", "geo", "hash", "hyperloglog", "list", "set", "sorted-set", "stream", "string"];

/// Commands that aren't built from declarations: those that need another server, take a second, or
/// must sort a copy (see [`super::sorting`]).
const LEFT_OUT: &[&str] = &["migrate", "pfselftest", "sort", "sort_ro", "wait"];

/// Commands in which a negative count requests random elements with repetitions. The reply then
/// always has as many elements as requested, even if the collection has fewer.
const PICKING: &[&[u8]] = &[b"HRANDFIELD", b"SRANDMEMBER", b"ZRANDMEMBER"];

/// Timeouts of `XREAD` and `XREADGROUP`: invalid or short.
const BLOCKS_MS: &[&str] = &["-1", "x", "1.5", "", "1", "1"];

/// One in this many arguments isn't of the declared kind.
const STRANGE_ONE_IN: usize = 25;
/// Maximum number of repetitions of an argument that may be repeated.
const REPEATED_MAX: usize = 3;

/// A command with its declaration.
pub struct Declared {
    name: Vec<Vec<u8>>,
    arguments: Vec<Argument>,
    check: Check,
}

/// A declared argument.
struct Argument {
    name: String,
    kind: String,
    token: Option<String>,
    flags: Vec<String>,
    parts: Vec<Argument>,
}

impl Argument {
    fn of(reply: &Reply) -> Argument {
        let text = |name: &str| reply.field(name).map(Reply::text);
        Argument {
            name: text("name").unwrap_or_default(),
            kind: text("type").unwrap_or_default(),
            token: text("token"),
            flags: reply.field("flags").map_or(&[][..], Reply::elements).iter().map(Reply::text).collect(),
            parts: arguments_of(reply),
        }
    }

    fn is(&self, flag: &str) -> bool {
        self.flags.iter().any(|own| own == flag)
    }
}

fn arguments_of(reply: &Reply) -> Vec<Argument> {
    reply.field("arguments").map_or(&[][..], Reply::elements).iter().map(Argument::of).collect()
}

/// Returns the commands of data types and keys in a reply of `COMMAND DOCS`, in order of their
/// names.
///
/// # Panics
/// If the reply isn't one of `COMMAND DOCS`.
#[must_use]
pub fn read(docs: &Reply) -> Vec<Declared> {
    let mut found = Vec::new();
    let mut add = |name: &str, doc: &Reply| {
        if !LEFT_OUT.contains(&name) {
            let words = name.split('|').map(|word| word.to_ascii_uppercase().into_bytes()).collect();
            found
                .push((name.to_owned(), Declared { name: words, arguments: arguments_of(doc), check: check_of(name) }));
        }
    };
    for pair in docs.elements().chunks(2) {
        let (name, doc) = (pair[0].text(), &pair[1]);
        if !doc.field("group").is_some_and(|group| GROUPS.contains(&group.text().as_str())) {
            continue;
        }
        match doc.field("subcommands") {
            None => add(&name, doc),
            Some(subcommands) => subcommands.elements().chunks(2).for_each(|pair| add(&pair[0].text(), &pair[1])),
        }
    }
    // The reply is in the order of a hash table with a random seed.
    found.sort_by(|one, two| one.0.cmp(&two.0));
    found.into_iter().map(|(_, declared)| declared).collect()
}

fn check_of(name: &str) -> Check {
    match name {
        "hgetall" => Check::Pairs,
        "hkeys" | "hvals" | "keys" | "sdiff" | "sinter" | "smembers" | "sunion" => Check::Unordered,
        // The elements are random, so only the kind of reply and the number of elements are
        // compared.
        "hrandfield" | "spop" | "srandmember" | "zrandmember" => Check::Length,
        "hscan" | "scan" | "sscan" | "zscan" => Check::Walk,
        "dump" | "randomkey" => Check::Kind,
        _ if name.ends_with("|help") => Check::Kind,
        "object|freq" => FREQ_CHECK,
        "object|idletime" => Check::Near(IDLE_SLACK_S),
        "xinfo|consumers" | "xinfo|groups" | "xinfo|stream" | "xpending" => Check::Times,
        "expiretime" | "ttl" => Check::Near(TTL_SLACK_S),
        "pexpiretime" | "pttl" => Check::Near(TTL_SLACK_S * 1000),
        _ => Check::Exact,
    }
}

impl Generator {
    /// Returns a command built from its declaration, or `None` if there are no declarations.
    pub(super) fn declared_command(&mut self) -> Option<Step> {
        let declared = std::mem::take(&mut self.declared);
        if declared.is_empty() {
            return None;
        }
        let command = self.random.pick(&declared);
        let mut args = command.name.clone();
        for argument in &command.arguments {
            self.argument(&command.name[0], argument, &mut args);
        }
        let words = command.name.len();
        match self.random.below(12) {
            0 if args.len() > words => args.truncate(words + self.random.below(args.len() - words)),
            1 => {
                let more = self.value();
                // Commands of three kinds get no additional argument. In a blocking command, the
                // additional argument would become the timeout. Rank commands accept an additional
                // argument since Redis 7.2. In a command of `PICKING`, the additional argument
                // could become a count that keeps redis-server busy forever.
                let is_fixed = command.arguments.iter().any(|argument| argument.name == "timeout")
                    || [&b"ZRANK"[..], b"ZREVRANK"].contains(&&command.name[0][..])
                    || PICKING.contains(&&command.name[0][..]);
                if !is_fixed {
                    args.push(more);
                }
            }
            _ => {}
        }
        let check = command.check;
        self.declared = declared;
        Some(self.comparable(args, check))
    }

    /// Returns the step for a built command. First removes arguments that would make the results
    /// differ between the two servers.
    fn comparable(&mut self, mut args: Vec<Vec<u8>>, mut check: Check) -> Step {
        match &args[0][..] {
            // `*` stands for an ID from the clock. `+` stands for the last entry, but only since
            // Redis 7.4.
            b"XADD" => args.retain(|arg| arg != b"*"),
            b"XREAD" => args.retain(|arg| arg != b"+"),
            // The removed members are random, so the remaining members differ between servers. The
            // set is therefore deleted.
            b"SPOP" if args.len() > 1 => {
                let next = vec![b"DEL".to_vec(), args[1].clone()];
                self.following.push_back(Step::new(next, Check::Exact));
            }
            _ => {}
        }
        if check == Check::Walk {
            let cursor = if args[0] == b"SCAN" { 1 } else { 2 };
            check = match args.get(cursor) {
                Some(cursor) if cursor == b"0" => walk_of(&args[0]),
                Some(_) => Check::Kind,
                None => Check::Exact,
            };
        }
        Step::new(args, check)
    }

    fn argument(&mut self, of: &[u8], argument: &Argument, args: &mut Vec<Vec<u8>>) {
        // With `any`, the elements found first differ between servers.
        let is_left_out = argument.name == "any" || argument.is("optional") && !self.random.one_in(3);
        if is_left_out {
            return;
        }
        let times = if argument.is("multiple") { self.random.below(REPEATED_MAX) + 1 } else { 1 };
        for time in 0..times {
            if let Some(token) = &argument.token
                && (time == 0 || argument.is("multiple_token"))
            {
                args.push(self.word(token));
            }
            match argument.kind.as_str() {
                // An ID from the clock would differ between the servers.
                "pure-token" if argument.name == "auto_id" => {
                    args.pop();
                    args.push(self.new_id());
                }
                "pure-token" => {}
                "oneof" if !argument.parts.is_empty() => {
                    let part = self.random.pick(&argument.parts);
                    self.argument(of, part, args);
                }
                "block" => argument.parts.iter().for_each(|part| self.argument(of, part, args)),
                _ => {
                    let given = self.given(of, argument);
                    args.push(given);
                }
            }
        }
    }

    /// Returns a value for an argument of one word. Times are in the far future. Offsets in strings
    /// are less than 3000, or invalid.
    fn given(&mut self, of: &[u8], argument: &Argument) -> Vec<u8> {
        if let Some(given) = self.given_to(of, &argument.name) {
            return given;
        }
        match (argument.kind.as_str(), argument.name.as_str()) {
            (_, "timeout") => self.timeout(),
            (_, "seconds") => self.relative_time(1000),
            (_, "milliseconds") => self.relative_time(1),
            (_, "ttl") => b"0".to_vec(),
            (_, "unix-time-seconds") => self.absolute_time(1000),
            ("unix-time", _) => self.absolute_time(1),
            (_, "offset") => self.near_offset(),
            ("key", _) => self.key(),
            _ if self.random.one_in(STRANGE_ONE_IN) => self.junk(),
            (_, "encoding") => self.random.pick(&["u8", "i5", "i64", "u63", "u64", "i0", "", "8"]).as_bytes().to_vec(),
            (_, "operation") => self.random.pick(&["AND", "OR", "XOR", "NOT", "and", "NAND"]).as_bytes().to_vec(),
            (_, "numkeys") => self.random.between(-1, 3).to_string().into_bytes(),
            ("integer", _) => self.integer(),
            ("double", _) => self.float(),
            ("pattern", _) => self.pattern(),
            _ => self.value(),
        }
    }

    /// Returns a value for an argument whose name has a meaning in some commands. Returns `None`
    /// for other arguments.
    fn given_to(&mut self, of: &[u8], name: &str) -> Option<Vec<u8>> {
        let text = |text: &str| text.as_bytes().to_vec();
        Some(match (of, name) {
            // None of these timeouts is infinite.
            (b"XREAD" | b"XREADGROUP", "milliseconds") => text(self.random.pick::<&str>(BLOCKS_MS)),
            (_, "min-idle-time") => text(self.random.pick::<&str>(IDLE_MS)),
            (b"XCLAIM", "ms") => text(self.random.pick::<&str>(CLAIM_IDLE_MS)),
            (_, "count") if PICKING.contains(&of) => self.pick_count(),
            (b"HSCAN" | b"SCAN" | b"SSCAN" | b"ZSCAN", "cursor") if !self.random.one_in(8) => text("0"),
            (b"RESTORE", "seconds") => self.random.below(5000).to_string().into_bytes(),
            (b"RESTORE", "serialized-value") if self.random.one_in(2) => return self.payload(),
            _ if !of.starts_with(b"X") || self.random.one_in(STRANGE_ONE_IN) => return None,
            (_, "key") if self.random.one_in(2) => self.stream_key(),
            (_, "group" | "groupname") => self.group(),
            (_, "consumer" | "consumername") => self.consumer(),
            (b"XADD", "id") => self.new_id(),
            (b"XREADGROUP", "id") if self.random.one_in(2) => text(">"),
            (_, "threshold") if self.random.one_in(2) => self.integer(),
            (_, "id" | "last-id" | "start" | "end" | "threshold") => self.id(),
            _ => return None,
        })
    }

    fn near_offset(&mut self) -> Vec<u8> {
        const REFUSED: &[&str] = &[
            "4294967296",
            "9223372036854775807",
            "9223372036854775808",
            "-1",
            "-0",
            "+1",
            "1.5",
            "",
            "abc",
            "#",
            "#-1",
        ];
        if self.random.one_in(5) {
            return self.random.pick(REFUSED).as_bytes().to_vec();
        }
        self.random.below(3000).to_string().into_bytes()
    }
}
