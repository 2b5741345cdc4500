//! Random users, rules and calls on Pantala and on redis-server. Both servers must accept the same
//! rules and list them in the same form. They must allow, deny and log the same calls, in
//! `ACL DRYRUN` and when the calls run.
//!
//! Both servers receive the same commands in long pipelines, and every reply is compared.

use std::time::Instant;

use pantala_tests::{Backend, Client, Random, Reply, Server};

/// Minimum number of commands in one pipeline.
const PIPELINE: usize = 2000;

/// Minimum number of replies that the short and the long run compare. `PANTALA_ACL_COMPARISONS`
/// overrides the number of the long run.
const SHORT_RUN: usize = 8_000;
const LONG_RUN: usize = 1_000_000;

/// Users whose rules are set.
const USERS: [&str; 3] = ["u", "V", "w-1"];

/// Patterns of keys and channels.
const PATTERNS: [&str; 21] = [
    "a*", "b*", "?x", "[ab]c", "*", "abc", "a*c", "\\*", "", "[^a]*", "[b-a]x", "[", "a\\", "**", "é*", "A*", "a b",
    "*[", "\"a\"", "'b", "\"ab*",
];

/// Arguments of calls.
const WORDS: [&str; 20] = [
    "a", "ab", "abc", "b", "bx", "ac", "bc", "*", "1", "2", "0", "STREAMS", "STORE", "GET", "BY", "KEYS", "LIMIT",
    "ax", "a*", "COUNT",
];

/// Calls that are run in addition to those of random commands.
const CALLS: [&str; 42] = [
    "GET a",
    "SET a b",
    "MGET a ab",
    "MSET a 1 bx 2",
    "COPY a ab",
    "RENAME a ab",
    "APPEND b x",
    "GETDEL abc",
    "SORT a BY w* GET x*",
    "SORT a",
    "SORT_RO ab",
    "SORT a STORE bc",
    "LMOVE a ab LEFT RIGHT",
    "ZADD bc 1 x",
    "ZRANGESTORE a bc 0 -1",
    "SINTERCARD 2 a ab",
    "OBJECT ENCODING a",
    "MEMORY USAGE a",
    "XINFO STREAM a",
    "KEYS a*",
    "PUBLISH a b",
    "PUBLISH bx y",
    "SPUBLISH ab c",
    "PUBSUB CHANNELS",
    "CONFIG GET maxmemory",
    "CLIENT GETNAME",
    "CLIENT ID",
    "SLOWLOG LEN",
    "ACL WHOAMI",
    "ACL CAT",
    "ECHO a",
    "PING",
    "DBSIZE",
    "COMMAND COUNT",
    "SELECT 1",
    "SCRIPT EXISTS a",
    "FUNCTION LIST",
    "FLUSHALL",
    "MULTI",
    "EXEC",
    "DISCARD",
    "LASTSAVE",
];

/// Scripts that are run, each with its keys.
const SCRIPTS: [(&str, &[&str]); 5] = [
    ("return redis.call('set', KEYS[1], 'v')", &["a"]),
    ("return redis.call('get', KEYS[1])", &["bx"]),
    ("return redis.pcall('publish', 'a', 'v')", &[]),
    ("return redis.acl_check_cmd('set', KEYS[1], 'v') and 1 or 0", &["ab"]),
    ("return redis.acl_check_cmd('config', 'get', 'x') and 1 or 0", &[]),
];

/// Commands of Pantala that Redis 7.0 doesn't have. They belong to categories, so they may appear
/// in the rules that Pantala lists.
const LATER: [&str; 16] = [
    "client|durability",
    "client|no-touch",
    "client|setinfo",
    "hexpire",
    "hexpireat",
    "hexpiretime",
    "hgetdel",
    "hgetex",
    "hpersist",
    "hpexpire",
    "hpexpireat",
    "hpexpiretime",
    "hpttl",
    "hsetex",
    "httl",
    "waitaof",
];

/// The part of a reply that is compared.
#[derive(Clone, Copy)]
enum Compared {
    /// Everything.
    Whole,
    /// A list of rules, some of which Redis lists in the order of a hash table.
    Rules,
    /// The whole reply of `ACL DRYRUN`, unless one of the servers rejects the number of arguments.
    Permission,
    /// Whether the command was allowed to run.
    Denial,
    /// The log, without times and clients.
    Log,
}

/// A command, and the compared part of its reply.
struct Step {
    words: Vec<String>,
    compared: Compared,
}

/// Commands and categories of both servers.
struct Names {
    /// All commands and subcommands of Redis that Pantala supports.
    commands: Vec<String>,
    /// The commands that are run with random arguments.
    run: Vec<String>,
    /// All commands and subcommands of Redis.
    known: Vec<String>,
    categories: Vec<String>,
}

fn texts(reply: &Reply) -> Vec<String> {
    reply.elements().iter().map(Reply::text).collect()
}

impl Names {
    fn ask(reference: &mut Client, subject: &mut Client) -> Names {
        let categories = texts(&reference.call("ACL CAT"));
        let mut of = |name: &str| texts(&reference.call(&format!("ACL CAT {name}")));
        let mut known: Vec<String> = categories.iter().flat_map(|name| of(name)).collect();
        known.sort();
        known.dedup();
        let served = texts(&subject.call("COMMAND LIST"));
        let is_served = |name: &String| {
            let container = name.split('|').next().unwrap_or_default();
            served.iter().any(|served| served == name || served == container)
        };
        let commands: Vec<String> = known.iter().filter(|name| is_served(name)).cloned().collect();
        let wanted = [of("read"), of("write")].concat();
        let unwanted = [of("blocking"), of("dangerous"), of("admin"), of("scripting"), of("transaction")].concat();
        // Servers check the number of arguments before permissions. Therefore only commands with
        // the same arity on both servers are run.
        let arities = |client: &mut Client| -> Vec<Reply> {
            let question = ["COMMAND", "INFO"].into_iter().chain(commands.iter().map(String::as_str));
            let infos = client.command(&question.collect::<Vec<_>>());
            let arity = |info: &Reply| if *info == Reply::Null { Reply::Null } else { info.elements()[1].clone() };
            infos.elements().iter().map(arity).collect()
        };
        let same: Vec<bool> =
            arities(reference).iter().zip(arities(subject)).map(|(wanted, found)| *wanted == found).collect();
        let is_run = |name: &String| wanted.contains(name) && !unwanted.contains(name);
        let named = commands.iter().zip(same).filter(|(name, is_same)| *is_same && is_run(name));
        let run = named.map(|(name, _)| name.clone()).collect();
        Names { commands, run, known, categories }
    }

    /// Returns a word of a rule.
    fn rule(&self, random: &mut Random) -> String {
        let sign = if random.one_in(2) { "+" } else { "-" };
        match random.below(22) {
            0..=4 => format!("{sign}{}", random.pick(&self.known)),
            5..=7 => format!("{sign}@{}", random.pick(&self.categories)),
            8 => (*random.pick(&["+@all", "-@all", "allcommands", "nocommands"])).to_owned(),
            9 | 10 => format!("~{}", random.pick(&PATTERNS)),
            11 => format!("%{}~{}", random.pick(&["R", "W", "RW", "WR", "rr", "", "x"]), random.pick(&PATTERNS)),
            12 => format!("&{}", random.pick(&PATTERNS)),
            13 => (*random.pick(&["allkeys", "resetkeys", "allchannels", "resetchannels", "~*", "&*"])).to_owned(),
            14 => (*random.pick(&[
                "on",
                "off",
                "nopass",
                "resetpass",
                ">p",
                ">q",
                "<p",
                "reset",
                "clearselectors",
                "#12",
            ]))
            .to_owned(),
            15 => format!("{sign}{}|{}", random.pick(&self.known), random.pick(&["a", "get", "B", "", "1"])),
            16 => format!("{sign}{}", random.pick(&self.known)).to_uppercase(),
            17 => format!("{}{}", random.pick(&["#", "!"]), "0a".repeat(32)),
            18 => format!("{}{sign}@{}", random.pick(&["", "", "%", " "]), random.pick(&["ALL", "Read", "nosuch", ""])),
            19 => (*random.pick(&["ON", "NoPass", "AllKeys", "RESETKEYS", "%R", "%", "~", "&", "+", "-", ">", "+@"]))
                .to_owned(),
            _ => (*random.pick(&["sanitize-payload", "skip-sanitize-payload", "nonsense", "", "(", "+nosuch", "()"]))
                .to_owned(),
        }
    }

    /// Returns the words of `ACL SETUSER` for a user.
    fn set_user(&self, random: &mut Random, user: &str) -> Vec<String> {
        let mut words: Vec<String> = ["ACL", "SETUSER", user].map(str::to_owned).to_vec();
        if random.one_in(3) {
            words.push("reset".to_owned());
        }
        for _ in 0..1 + random.below(8) {
            if !random.one_in(8) {
                words.push(self.rule(random));
                continue;
            }
            let inner: Vec<String> = (0..random.below(4)).map(|_| self.rule(random)).collect();
            let selector = format!("({})", inner.join(" "));
            if random.one_in(4) {
                words.extend(selector.split(' ').map(str::to_owned));
            } else {
                words.push(selector);
            }
        }
        words
    }

    /// Returns a call of a command with random arguments.
    fn call(random: &mut Random, commands: &[String]) -> Vec<String> {
        let mut words: Vec<String> = random.pick(commands).split('|').map(str::to_owned).collect();
        for _ in 0..random.below(7) {
            words.push((*random.pick(&WORDS)).to_owned());
        }
        words
    }

    /// Appends the steps of one rule set: the change, the listings, `ACL DRYRUN` calls, and calls
    /// by the user.
    fn steps(&self, random: &mut Random, steps: &mut Vec<Step>) {
        let mut add = |words: Vec<String>, compared| steps.push(Step { words, compared });
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let user = *random.pick(&USERS);
        if random.one_in(20) {
            add(words(&format!("ACL DELUSER {user} nobody")), Compared::Whole);
        }
        add(words("ACL LOG RESET"), Compared::Whole);
        add(self.set_user(random, user), Compared::Whole);
        if random.one_in(2) {
            add(words(&format!("ACL SETUSER {user} on >p")), Compared::Whole);
        }
        add(words("ACL LIST"), Compared::Rules);
        add(words(&format!("ACL GETUSER {user}")), Compared::Rules);
        for _ in 0..12 {
            let call = Self::call(random, &self.commands);
            if !is_known_difference(&call) {
                add([words(&format!("ACL DRYRUN {user}")), call].concat(), Compared::Permission);
            }
        }
        add(words(&format!("AUTH {user} {}", random.pick(&["p", "p", "p", "q"]))), Compared::Whole);
        for _ in 0..8 {
            match random.below(4) {
                0 | 1 => add(words(CALLS[random.below(CALLS.len())]), Compared::Denial),
                2 if random.one_in(3) => {
                    let (script, keys) = random.pick(&SCRIPTS);
                    let mut call = vec!["EVAL".to_owned(), (*script).to_owned(), keys.len().to_string()];
                    call.extend(keys.iter().map(|key| (*key).to_owned()));
                    add(call, Compared::Denial);
                }
                _ => {
                    let call = Self::call(random, &self.run);
                    if !is_known_difference(&call) {
                        add(call, Compared::Denial);
                    }
                }
            }
        }
        // Ends a transaction and logs the user out.
        add(words("RESET"), Compared::Whole);
        add(words("ACL LOG"), Compared::Log);
        if random.one_in(20) {
            add(words("ACL USERS"), Compared::Whole);
        }
    }
}

/// Returns whether one server may allow a call that the other denies. In these calls, Redis checks
/// the permissions of wrong keys (COMPAT.md, "Users"), or checks no keys because the arguments are
/// invalid.
fn is_known_difference(call: &[String]) -> bool {
    let counts = |word: &str| call.iter().filter(|known| *known == word).count();
    match call[0].as_str() {
        "pfmerge" => call.len() == 2,
        // If the number of keys is invalid, Redis checks no key, and the command fails.
        "zunionstore" | "zinterstore" | "zdiffstore" => {
            let keys = call.get(2).and_then(|number| number.parse().ok()).unwrap_or(0);
            !(1..=call.len().saturating_sub(3)).contains(&keys)
        }
        // Redis mistakes the name of the destination for an option.
        "sort" => call.windows(2).any(|pair| pair[0] == "STORE" && pair[1].chars().all(char::is_uppercase)),
        // Redis looks for STORE only after the required arguments.
        "georadius" | "georadiusbymember" => {
            let required = if call[0] == "georadius" { 6 } else { 5 };
            counts("STORE") > 1 || call.iter().take(required).any(|word| word == "STORE")
        }
        "xreadgroup" => counts("STREAMS") > 1,
        _ => false,
    }
}

/// Returns rules as text. Sorts the rules for single commands, because Redis lists them in the
/// order of a hash table. Leaves out the commands in [`LATER`].
fn in_order(text: &str) -> String {
    if text.contains(" (") {
        let selectors = text.split(" (").map(|selector| in_order(selector.trim_end_matches(')')));
        return selectors.collect::<Vec<_>>().join(" (");
    }
    let mut words: Vec<&str> = text.split(' ').collect();
    let first = words.iter().position(|word| word.ends_with("@all")).unwrap_or(words.len());
    let is_single = |word: &&str| (word.starts_with('+') || word.starts_with('-')) && !word.contains('@');
    let single = words.iter().position(is_single).unwrap_or(words.len());
    words[single.max(first)..].sort_unstable();
    words.retain(|word| !LATER.contains(&word.trim_start_matches(['+', '-'])));
    words.join(" ")
}

fn in_order_deep(reply: &Reply) -> String {
    match reply {
        Reply::Array(items) | Reply::Map(items) | Reply::Set(items) => {
            items.iter().map(in_order_deep).collect::<Vec<_>>().join(" / ")
        }
        Reply::Null => "null".to_owned(),
        other => in_order(&other.text()),
    }
}

/// Returns the denials in a reply. The reply of `EXEC` may contain several.
fn denials(reply: &Reply) -> String {
    const IN_SCRIPT: &str = "The user executing the script can't";
    const IN_SORT: &str = "denied due to insufficient ACL permissions";
    match reply {
        Reply::Error(text) if text.starts_with("NOPERM") || text.starts_with("EXECABORT") => text.clone(),
        Reply::Error(text) if text.contains(IN_SORT) => text.clone(),
        Reply::Error(text) if text.contains(IN_SCRIPT) => IN_SCRIPT.to_owned(),
        Reply::Array(items) => {
            items.iter().map(denials).filter(|text| text != "allowed").collect::<Vec<_>>().join(" / ")
        }
        _ => "allowed".to_owned(),
    }
}

/// Returns the entries of the log without times and clients.
fn entries(reply: &Reply) -> String {
    let fields = ["count", "reason", "context", "object", "username"];
    let of = |entry: &Reply| fields.map(|name| entry.field(name).map(Reply::text).unwrap_or_default()).join(" ");
    reply.elements().iter().map(of).collect::<Vec<_>>().join(" / ")
}

/// Returns the compared part of both replies, or `None` if they can't be compared.
fn compared(step: &Step, wanted: &Reply, found: &Reply) -> Option<[String; 2]> {
    let both = |show: fn(&Reply) -> String| Some([show(wanted), show(found)]);
    match step.compared {
        Compared::Whole => both(|reply| format!("{reply:?}")),
        Compared::Rules => both(in_order_deep),
        Compared::Log => both(entries),
        Compared::Denial => both(denials),
        Compared::Permission => {
            // Pantala doesn't know the number of arguments of a command that it doesn't implement.
            // Replies about a wrong number of arguments are therefore not compared.
            let is_open = |reply: &Reply| reply.is_error() && reply.text().contains("wrong number of arguments");
            if is_open(wanted) || is_open(found) { None } else { both(|reply| format!("{reply:?}")) }
        }
    }
}

/// Compares at least `count` replies.
fn compare_with_redis(count: usize) {
    let Some(reference) = Server::redis(&[]) else { return };
    let subject = Server::pantala(Backend::Epoll, &["--workers", "1", "--shards", "4"]);
    let (mut right, mut given) = (reference.connect(), subject.connect());
    let names = Names::ask(&mut right, &mut given);
    let mut random = Random::from_seed(Random::seed("acl rules"));
    let begin = Instant::now();
    let (mut total, mut sets) = (0, 0);
    while total < count {
        let mut steps = Vec::new();
        while steps.len() < PIPELINE {
            names.steps(&mut random, &mut steps);
            sets += 1;
        }
        let commands: Vec<Vec<String>> = steps.iter().map(|step| step.words.clone()).collect();
        let (wanted, found) = std::thread::scope(|scope| {
            let wanted = scope.spawn(|| right.pipeline(&commands));
            let found = given.pipeline(&commands);
            (wanted.join().expect("no panic"), found)
        });
        for (at, step) in steps.iter().enumerate() {
            let Some([wanted, found]) = compared(step, &wanted[at], &found[at]) else { continue };
            total += 1;
            if wanted != found {
                let before: Vec<String> =
                    commands[at.saturating_sub(40)..=at].iter().map(|words| format!("{words:?}")).collect();
                panic!("redis-server: {wanted}\nPantala: {found}\nafter {}", before.join("\n"));
            }
        }
    }
    let took = begin.elapsed();
    eprintln!("{sets} rule sets, {total} replies compared with redis-server in {took:.1?}: no difference");
}

#[test]
fn random_rules_and_calls_are_judged_as_by_redis() {
    compare_with_redis(SHORT_RUN);
}

/// Compares `PANTALA_ACL_COMPARISONS` replies (default a million).
#[test]
#[ignore = "takes minutes: run by .ci/nightly"]
fn a_million_random_rules_and_calls_are_judged_as_by_redis() {
    let count = std::env::var("PANTALA_ACL_COMPARISONS").ok().and_then(|text| text.parse().ok());
    compare_with_redis(count.unwrap_or(LONG_RUN));
}
