//! Tests of rules, their text form, and their checks. `tests/tests/acl.rs` tests a server, and
//! `tests/tests/acl_differential.rs` compares with redis-server.

use std::sync::LazyLock;

use pantala_base::Random;
use pantala_resp::{ArgRange, Args};

use super::file::parse_file;
use super::*;
use crate::command::{Acl, BeginSearch, Command, FindKeys, Flags, KeySpec};

const SUBS: &[Command] = &[
    Command { name: "get", full_name: "box|get", acl: Acl::READ, ..Command::BLANK },
    Command { name: "set", full_name: "box|set", acl: Acl::ADMIN, ..Command::BLANK },
];

const COUNTED: KeySpec = KeySpec {
    notes: "",
    flags: &["RO", "access"],
    begin: BeginSearch::Index(2),
    find: FindKeys::KeyNum { keynum: 0, first: 1, step: 1 },
};

static COMMANDS: &[Command] = &[
    Command { name: "box", full_name: "box", subcommands: SUBS, ..Command::BLANK },
    Command { name: "copy", full_name: "copy", flags: Flags::WRITE, key_specs: COPY_KEYS, ..Command::BLANK },
    Command {
        name: "get",
        full_name: "get",
        flags: Flags::READONLY.union(Flags::FAST),
        key_specs: READ,
        ..Command::BLANK
    },
    Command { name: "hello", full_name: "hello", flags: Flags::NO_AUTH.union(Flags::FAST), ..Command::BLANK },
    Command { name: "many", full_name: "many", key_specs: MANY_KEYS, ..Command::BLANK },
    Command { name: "ping", full_name: "ping", flags: Flags::FAST, ..Command::BLANK },
    Command { name: "psubscribe", full_name: "psubscribe", flags: Flags::PUBSUB, ..Command::BLANK },
    Command { name: "publish", full_name: "publish", flags: Flags::PUBSUB.union(Flags::FAST), ..Command::BLANK },
    Command { name: "set", full_name: "set", flags: Flags::WRITE, key_specs: WRITTEN, ..Command::BLANK },
];

const READ: &[KeySpec] = &[KeySpec::at(1, &["RO", "access"])];
const WRITTEN: &[KeySpec] = &[KeySpec::at(1, &["OW", "update"])];
const COPY_KEYS: &[KeySpec] = &[KeySpec::at(1, &["RO", "access"]), KeySpec::at(2, &["OW", "insert"])];
const MANY_KEYS: &[KeySpec] = &[KeySpec::at(1, &["OW", "update"]), COUNTED];

static CATALOG: LazyLock<Catalog> = LazyLock::new(|| {
    let absent = Absent { full_name: "save", categories: Acl::ADMIN | Acl::SLOW };
    Catalog::new(COMMANDS, std::iter::once(absent))
});

fn rules(words: &str) -> Rules {
    let mut rules = Rules::new(&CATALOG, false);
    for word in words.split_ascii_whitespace() {
        rules.apply(word.as_bytes()).unwrap_or_else(|error| panic!("{word}: {error}"));
    }
    rules
}

fn text(rules: &Rules) -> String {
    String::from_utf8(rules.text()).expect("text")
}

fn check(rules: &Rules, call: &str) -> Result<(), Denied> {
    let words: Vec<&str> = call.split(' ').collect();
    let mut start = 0;
    let range = |word: &&str| {
        let range = ArgRange::new(start, word.len());
        start += word.len() + 1;
        range
    };
    let ranges: Vec<ArgRange> = words.iter().map(range).collect();
    let command = COMMANDS.iter().find(|known| known.name == words[0]).expect("a command of this test");
    let command = words.get(1).and_then(|sub| command.subcommand(sub.as_bytes())).unwrap_or(command);
    rules.check(command, &Args::new(call.as_bytes(), &ranges))
}

#[test]
fn a_new_user_may_only_log_in() {
    let new = rules("");
    assert_eq!(text(&new), "off resetchannels -@all");
    assert!(!new.accepts(b"") && !new.is_unrestricted());
    assert_eq!(check(&new, "ping"), Err(Denied::Command));
    assert_eq!(check(&new, "hello"), Ok(()));
    assert_eq!(text(&Rules::new(&CATALOG, true)), "off &* -@all");
    let default = Rules::of_default_user(&CATALOG);
    assert_eq!(text(&default), "on nopass ~* &* +@all");
    assert!(default.is_unrestricted() && default.accepts(b"anything"));
}

#[test]
fn passwords() {
    const HASH: &str = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b";
    let mut user = rules("on >secret >other");
    assert!(user.accepts(b"secret") && user.accepts(b"other") && !user.accepts(b"Secret") && !user.accepts(b""));
    assert!(text(&user).contains(HASH) && !text(&user).contains("secret"));
    assert_eq!(user.apply(b"<nosuch"), Err(RuleError::NoSuchPassword));
    assert_eq!(user.apply(b"<other"), Ok(()));
    assert!(!user.accepts(b"other"));
    assert_eq!(user.apply(format!("#{HASH}").as_bytes()), Ok(()), "it is there already");
    assert_eq!(user.password_hashes().len(), 1);
    assert_eq!(user.apply(format!("!{HASH}").as_bytes()), Ok(()));
    for wrong in [&HASH[1..], &HASH.to_uppercase(), &HASH.replace('2', "g")] {
        assert_eq!(user.apply(format!("#{wrong}").as_bytes()), Err(RuleError::BadHash));
    }
    assert!(!rules("off nopass").accepts(b""), "a user that is off cannot log in");
    assert!(rules("on >x nopass").accepts(b"y"));
    assert!(!rules("on nopass resetpass").accepts(b""));
    assert!(!rules("on nopass >x").accepts(b"y"));
}

#[test]
fn commands_subcommands_and_first_arguments() {
    let user = rules("+box|get +ping +set|a +@read -get");
    assert_eq!(check(&user, "box get x"), Ok(()));
    assert_eq!(check(&user, "box set x"), Err(Denied::Command));
    assert_eq!(check(&user, "get k"), Err(Denied::Command));
    assert_eq!(check(&user, "set A"), Err(Denied::Key(1)), "the first argument is case-insensitive");
    assert_eq!(check(&user, "set b"), Err(Denied::Command));
    assert_eq!(check(&rules("+box"), "box set x"), Ok(()));
    assert_eq!(check(&rules("+@all -box|set"), "box set x"), Err(Denied::Command));
    assert_eq!(check(&rules("+set|a +set -set"), "set a"), Err(Denied::Command), "a rule for the command removes it");
    let mut user = rules("");
    for (rule, error) in [
        ("+nosuch", RuleError::UnknownCommand),
        ("-nosuch", RuleError::UnknownCommand),
        ("+@nosuch", RuleError::UnknownCommand),
        ("+box|nosuch", RuleError::UnknownCommand),
        ("+box|get|x", RuleError::FirstArgumentOfSubcommand),
        ("+set|a|b", RuleError::UnknownCommand),
        ("-set|a", RuleError::UnknownCommand),
        ("+set|", RuleError::Syntax),
        ("+set|a b", RuleError::Syntax),
        ("nosuch", RuleError::Syntax),
        ("(+nosuch)", RuleError::UnknownCommand),
        ("(on)", RuleError::Syntax),
    ] {
        assert_eq!(user.apply(rule.as_bytes()), Err(error), "{rule}");
    }
    assert_eq!(text(&user), "off resetchannels -@all", "invalid rules change nothing");
    assert_eq!(user.apply(b"+save"), Ok(()), "a command of Redis without a record");
    assert_eq!((user.allows_absent(b"SAVE"), user.allows_absent(b"nosuch")), (Some(true), None));
}

#[test]
fn keys_are_checked_by_access() {
    let user = rules("+@all %R~r* %W~w* ~b*");
    for (call, found) in [
        ("get r", Ok(())),
        ("get b", Ok(())),
        ("get w", Err(Denied::Key(1))),
        ("set w", Ok(())),
        ("set r", Err(Denied::Key(1))),
        ("copy r w", Ok(())),
        ("copy r r", Err(Denied::Key(2))),
        ("copy w b", Err(Denied::Key(1))),
        // The count of keys is not a number, but the key before the count is still checked.
        ("many r x", Err(Denied::Key(1))),
        ("many w 1 w", Err(Denied::Key(3))),
        ("many w 1 r", Ok(())),
    ] {
        assert_eq!(check(&user, call), found, "{call}");
    }
    assert_eq!(text(&rules("%R~x %W~x")), "off ~x resetchannels -@all");
    assert_eq!(text(&rules("%RW~*")), "off ~* resetchannels -@all");
    let mut user = rules("allkeys");
    assert_eq!(user.apply(b"~x"), Err(RuleError::KeysAfterAll));
    assert_eq!(user.apply(b"%nonsense"), Err(RuleError::KeysAfterAll));
    for wrong in ["%~x", "%RR~x", "%X~x", "%", "~a b", "~a\n"] {
        assert_eq!(rules("").apply(wrong.as_bytes()), Err(RuleError::Syntax), "{wrong:?}");
    }
    assert_eq!(check(&rules("+@all %R"), "get x"), Err(Denied::Key(1)), "no pattern is no key, as in Redis");
}

#[test]
fn channels() {
    let user = rules("+@all &a* &b");
    assert_eq!(check(&user, "publish abc b"), Ok(()));
    assert_eq!(check(&user, "publish c a"), Err(Denied::Channel(1)));
    assert_eq!(check(&user, "psubscribe a* b"), Ok(()));
    assert_eq!(check(&user, "psubscribe ab"), Err(Denied::Channel(1)), "patterns are compared literally");
    assert_eq!(rules("&*").apply(b"&x"), Err(RuleError::ChannelsAfterAll));
    assert!(rules("&a &b").keeps_channels_of(&rules("&b")));
    assert!(rules("allchannels").keeps_channels_of(&rules("&b")));
    assert!(!rules("&a*").keeps_channels_of(&rules("&ab")));
    assert!(!rules("&a").keeps_channels_of(&rules("allchannels")));
}

#[test]
fn one_selector_must_allow_the_whole_call() {
    let mut user = rules("+get ~a*");
    for selector in ["(+set ~b*)", "(+publish &c %R~x)"] {
        user.apply(selector.as_bytes()).expect("a selector");
    }
    assert_eq!(check(&user, "get a"), Ok(()));
    assert_eq!(check(&user, "set b"), Ok(()));
    assert_eq!(check(&user, "get b"), Err(Denied::Key(1)));
    assert_eq!(check(&user, "set a"), Err(Denied::Key(1)));
    assert_eq!(check(&user, "publish c m"), Ok(()));
    assert_eq!(check(&user, "publish d m"), Err(Denied::Channel(1)));
    user.apply(b"clearselectors").expect("a rule");
    assert_eq!(check(&user, "set b"), Err(Denied::Command));
    user.apply(b"reset").expect("a rule");
    assert_eq!(text(&user), "off sanitize-payload resetchannels -@all");
}

#[test]
fn the_text_of_rules_reproduces_them() {
    const WORDS: [&str; 30] = [
        "on",
        "off",
        "nopass",
        "resetpass",
        ">a",
        ">b",
        "+@all",
        "-@all",
        "+get",
        "-get",
        "+box",
        "-box",
        "+box|get",
        "-box|set",
        "+set|x",
        "+@read",
        "-@read",
        "+@write",
        "-@write",
        "+@fast",
        "-@slow",
        "+@admin",
        "+save",
        "~a*",
        "%R~a*",
        "%W~b",
        "resetkeys",
        "&c",
        "resetchannels",
        "allchannels",
    ];
    let mut random = Random::from_seed(3);
    for round in 0..2_000 {
        let mut one = Rules::new(&CATALOG, false);
        let word = |random: &mut Random| WORDS[random.below(WORDS.len() as u64) as usize];
        for _ in 0..random.below(12) {
            let rule = match random.below(5) {
                0 => format!("(+get ~{})", random.below(3)),
                _ => word(&mut random).to_owned(),
            };
            // Some rules contradict earlier ones and are rejected.
            let _ = one.apply(rule.as_bytes());
        }
        let line = [b"user x ", one.text().as_slice()].concat();
        let users = parse_file(&line, "file", &CATALOG, false).unwrap_or_else(|error| panic!("{round}: {error}"));
        assert_eq!(text(&users[b"x".as_slice()]), text(&one), "round {round}");
    }
}

#[test]
fn acl_files_are_applied_atomically() {
    let users = parse_file(b"\r\nuser a on nopass (+get ~x) (+set\t ~y)\n\n user b \n", "f", &CATALOG, false);
    assert_eq!(users.expect("users").len(), 2);
    let wrong =
        parse_file(b"user a on\nnobody\nuser a\nuser b +x >p <q\nuser c (+get\nuser \x01d\x0b", "f", &CATALOG, false);
    let wrong = wrong.err().expect("errors");
    for part in [
        "f:2 should start with user keyword followed by the username. ",
        "WARNING: Duplicate user 'a' found on line 3. ",
        "f:4: Error in applying operation '+x': Unknown command or category name in ACL. ",
        "f:4: The password you are trying to remove from the user does not exist. ",
        "f:5: Unmatched parenthesis in selector definition.",
        "contains invalid characters. ",
        "WARNING: ACL errors detected, no change to the previously active ACL rules was performed",
    ] {
        assert!(wrong.contains(part), "{part} in {wrong}");
    }
    let words: Vec<&[u8]> = vec![b"a", b"on", b"(+get", b"~x", b")", b"+nosuch"];
    let line = check_line(&CATALOG, &words).expect("a line");
    assert_eq!((line.name.as_slice(), line.rules.len()), (b"a".as_slice(), 3));
    let secret: Vec<&[u8]> = vec![b"a", b"<secret"];
    assert!(!check_line(&CATALOG, &secret).expect_err("no such password").contains("secret"));
}

#[test]
fn changes_raise_the_epoch_and_reach_all_connections_of_a_user() {
    let users = Users::new(&CATALOG);
    let epoch = users.epoch();
    assert!(users.set(b"alice", &[b"on", b">p", b"+get", b"~*"]).is_ok());
    assert!(users.epoch() > epoch);
    assert!(users.log_in(b"alice", b"wrong").is_none() && users.log_in(b"bob", b"p").is_none());
    let alice = users.log_in(b"alice", b"p").expect("the right password");
    assert_eq!(check(&alice.rules(), "get x"), Ok(()));
    let before = users.epoch();
    let wrong = users.set(b"alice", &[b"-get", b"+nosuch"]).err().expect("an error");
    assert!(wrong.starts_with(b"Error in ACL SETUSER modifier '+nosuch'"));
    assert_eq!((users.epoch(), check(&alice.rules(), "get x")), (before, Ok(())), "all rules or none");
    assert!(users.set(b"alice", &[b"-get"]).is_ok());
    assert_eq!(check(&alice.rules(), "get x"), Err(Denied::Command));
    assert_eq!(users.delete(&[b"alice", b"bob", DEFAULT_USER]).len(), 1);
    assert!(alice.is_deleted() && users.find(DEFAULT_USER).is_some());
    users.set_default_password(Some(b"q"));
    assert!(users.requires_login() && users.log_in(DEFAULT_USER, b"q").is_some());
    let replaced = users.parse_file(b"user carol on", "f").expect("a file");
    users.replace(replaced);
    assert!(!users.requires_login(), "a default user that is missing in the file gets its initial rules");
    assert_eq!(users.lines().len(), 2);
}
