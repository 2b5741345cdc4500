//! Tests of the command table, whose records are written by hand.

use pantala_engine::command::{
    Acl, Argument, ArgumentFlags, ArgumentKind, BeginSearch, Command, FindKeys, Flags, Handler, Route,
};
use pantala_resp::{ArgRange, Args};

use super::unimplemented::{UNIMPLEMENTED, Unimplemented};
use super::*;
use crate::testing_host::LocalTest;

/// Number of commands that `COMMAND COUNT` of redis-server 7.0.15 returns without modules.
const REDIS_COMMANDS: usize = 240;

/// The groups in Redis's `COMMAND DOCS`.
const GROUPS: [&str; 16] = [
    "bitmap",
    "cluster",
    "connection",
    "generic",
    "geo",
    "hash",
    "hyperloglog",
    "list",
    "pubsub",
    "scripting",
    "server",
    "set",
    "sorted-set",
    "stream",
    "string",
    "transactions",
];

/// Iterates over the records of all commands and subcommands, including hidden ones.
fn every_record() -> impl Iterator<Item = &'static Command> {
    COMMANDS.iter().flat_map(|command| std::iter::once(command).chain(command.subcommands))
}

/// Calls `check` with the arguments of a call.
fn with_args<T>(words: &[&[u8]], check: impl FnOnce(&Args<'_>) -> T) -> T {
    let mut base = Vec::new();
    let mut ranges = Vec::new();
    for word in words {
        ranges.push(ArgRange::new(base.len(), word.len()));
        base.extend_from_slice(word);
    }
    check(&Args::new(&base, &ranges))
}

fn is_container(command: &Command) -> bool {
    !command.subcommands.is_empty()
}

#[test]
fn names_are_sorted_and_well_formed() {
    assert!(COMMANDS.is_sorted_by(|one, next| one.name < next.name));
    for command in COMMANDS {
        assert_eq!(command.name, command.full_name);
        assert!(command.subcommands.is_sorted_by(|one, next| one.name < next.name), "{}", command.name);
        for sub in command.subcommands {
            assert_eq!(sub.full_name, format!("{}|{}", command.name, sub.name));
            assert!(sub.subcommands.is_empty(), "{}", sub.full_name);
        }
    }
    for command in every_record() {
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_".contains(&byte);
        assert!(command.name.bytes().all(plain), "{}", command.name);
    }
}

#[test]
fn flag_plain_follows_from_the_record() {
    for command in every_record() {
        let is_constant = matches!(command.route, Route::Keys) && command.complexity == "O(1)";
        let is_plain = is_constant && !command.flags.contains(Flags::FAST);
        assert_eq!(command.flags.contains(Flags::PLAIN), is_plain, "{}", command.full_name);
    }
}

/// Redis's code recognizes these commands by their functions or names. Pantala uses flags in their
/// records instead.
#[test]
fn flags_of_single_commands() {
    let flagged = |flag: Flags| -> Vec<&str> {
        every_record().filter(|command| command.flags.contains(flag)).map(|command| command.full_name).collect()
    };
    let subscribing =
        ["psubscribe", "punsubscribe", "ssubscribe", "subscribe", "sunsubscribe", "unsubscribe"].as_slice();
    for (flag, names) in [
        (Flags::UNQUEUED, ["discard", "exec", "multi", "quit", "reset", "watch"].as_slice()),
        (Flags::DISCARDS, &["discard", "quit", "reset"]),
        (
            Flags::WHILE_SUBSCRIBED,
            &[
                "ping",
                "psubscribe",
                "punsubscribe",
                "quit",
                "reset",
                "ssubscribe",
                "subscribe",
                "sunsubscribe",
                "unsubscribe",
            ],
        ),
        (Flags::UNSUBSCRIBES, &["client|reply", "punsubscribe", "quit", "reset", "sunsubscribe", "unsubscribe"]),
        (Flags::ANSWERS_MESSAGES, subscribing),
        (Flags::MEASURES, &["config|set", "info", "memory|doctor", "memory|stats"]),
        (Flags::ALL_SHARDS_QUEUED, &["client|pause"]),
        (Flags::OTHER_DATABASES, &["copy", "move"]),
    ] {
        assert_eq!(flagged(flag), names, "{flag:?}");
    }
    for command in every_record() {
        let container = command.full_name.split('|').next();
        assert_eq!(command.flags.contains(Flags::KEEPS_CACHING), container == Some("client"), "{}", command.full_name);
        assert_eq!(command.flags.contains(Flags::DEBUGS), container == Some("debug"), "{}", command.full_name);
    }
}

/// Commands whose change also depends on random numbers, the clock, floating-point arithmetic, or
/// the time at which a blocked client is served. Their handlers must state what is propagated.
/// `SET` is not among them, because it is propagated verbatim unless it has a deadline or `GET`.
#[test]
fn undetermined_commands_have_handlers_that_state_what_is_propagated() {
    let undetermined: Vec<&str> = every_record()
        .filter(|command| matches!(command.handler, Handler::Undetermined(_)))
        .map(|command| command.full_name)
        .collect();
    let expected = [
        "blmove blmpop blpop brpop brpoplpush bzmpop bzpopmax bzpopmin",
        "expire expireat getex",
        "hexpire hexpireat hgetex hincrbyfloat hpexpire hpexpireat hrandfield hsetex incrbyfloat",
        "migrate pexpire pexpireat psetex",
        "randomkey restore restore-asking setex spop srandmember",
        "xadd xautoclaim xclaim xreadgroup xtrim zrandmember",
    ]
    .join(" ");
    assert_eq!(undetermined.join(" "), expected);
    // A new command of these kinds must have such a handler.
    for command in every_record().filter(|command| command.flags.contains(Flags::WRITE)) {
        let draws = command.tips.contains(&"nondeterministic_output");
        let blocks = command.flags.contains(Flags::BLOCKING);
        let sets_ttl = ["seconds", "milliseconds"]
            .iter()
            .any(|name| command.arguments.iter().any(|argument| argument.name == *name));
        if matches!(command.handler, Handler::Keyed(_)) {
            assert!(!(draws || blocks || sets_ttl), "{}", command.full_name);
        }
    }
}

#[test]
fn lookup_finds_every_name_ignoring_case() {
    let alternate = |name: &str| -> Vec<u8> {
        let flip = |(at, byte): (usize, u8)| {
            if at % 2 == 0 { byte.to_ascii_uppercase() } else { byte }
        };
        name.bytes().enumerate().map(flip).collect()
    };
    for command in COMMANDS {
        for spelling in [command.name.into(), command.name.to_ascii_uppercase().into(), alternate(command.name)] {
            assert!(std::ptr::eq(lookup(&spelling).unwrap(), command), "{spelling:?}");
            assert!(std::ptr::eq(lookup_full(&spelling).unwrap(), command), "{spelling:?}");
            for sub in command.subcommands {
                assert!(std::ptr::eq(lookup_sub(command, &alternate(sub.name)).unwrap(), sub));
                let shown = lookup_full(&alternate(sub.full_name)).map(|found| found.full_name);
                assert_eq!(shown, (!hides_subcommands(command)).then_some(sub.full_name));
            }
        }
        // Similar names must not be confused with the command's name. The test looks up longer and
        // shorter names, and a name whose bytes all differ in one bit.
        for other in ["x", "\0", " "] {
            let longer = format!("{}{other}", command.name);
            assert!(lookup(longer.as_bytes()).is_none_or(|found| found.name == longer), "{longer:?}");
        }
        let shorter = &command.name[1..];
        assert!(lookup(shorter.as_bytes()).is_none_or(|found| found.name == shorter));
        let without_case: Vec<u8> = command.name.bytes().map(|byte| byte ^ 0x40).collect();
        assert!(lookup(&without_case).is_none());
    }
    assert!(lookup(b"").is_none());
    assert!(lookup(&[b'g'; 1 << 20]).is_none());
    assert!(lookup_full(b"|").is_none() && lookup_full(b"get|").is_none() && lookup_full(b"client|id|x").is_none());
}

/// Returns the minimum number of arguments that the declared syntax allows.
fn fewest(argument: &Argument) -> usize {
    if argument.flags.contains(ArgumentFlags::OPTIONAL) {
        return 0;
    }
    let token = usize::from(argument.token.is_some());
    match argument.kind {
        ArgumentKind::PureToken => 1,
        // One alternative must be chosen, even if each alternative is optional.
        ArgumentKind::OneOf => token + argument.arguments.iter().map(fewest).min().unwrap_or(0).max(1),
        ArgumentKind::Block => token + argument.arguments.iter().map(fewest).sum::<usize>(),
        _ => token + 1,
    }
}

fn is_open(argument: &Argument) -> bool {
    argument.flags != ArgumentFlags::empty() || argument.arguments.iter().any(is_open)
}

#[test]
fn arity_matches_the_declared_arguments() {
    for command in every_record().filter(|command| !is_container(command)) {
        let name_words = 1 + usize::from(command.full_name.contains('|'));
        let wanted = command.arity.unsigned_abs() as usize;
        if command.arguments.is_empty() {
            // Redis declares no arguments for these commands.
            let undeclared = ["command|getkeys", "command|getkeysandflags", "quit", "replconf"];
            let undeclared = undeclared.contains(&command.full_name);
            assert!(undeclared || command.arity as usize == name_words, "{}", command.full_name);
            continue;
        }
        let words = name_words + command.arguments.iter().map(fewest).sum::<usize>();
        // Redis declares at least one source for PFMERGE, and at least one member for GEOHASH and
        // GEOPOS. In fact all of them are optional.
        let declared = wanted + usize::from(["pfmerge", "geohash", "geopos"].contains(&command.full_name));
        assert_eq!(words, declared, "{}", command.full_name);
        // The alternatives of KILL and LIB-NAME have different lengths, so the number of arguments
        // varies without an optional argument.
        let exact = command.arity > 0;
        assert!(!exact || !command.arguments.iter().any(is_open), "{}", command.full_name);
        // Redis declares no options for PSYNC, because only replicas send them.
        let is_open = exact || command.full_name == "psync" || command.arguments.iter().any(is_open);
        assert!(is_open, "{}", command.full_name);
    }
}

#[test]
fn key_specifications_match_flags_arguments_and_route() {
    for command in every_record() {
        let name = command.full_name;
        let mut named = vec![false; command.key_specs.len()];
        mark_key_specs(command.arguments, &mut named);
        // A shard channel has a slot but isn't a key, and its argument isn't declared as a key.
        let is_channel = command.key_specs.first().is_some_and(|spec| spec.flags == ["not_key"]);
        assert!(is_channel || named.iter().all(|named| *named), "{name}: an argument for every key specification");
        if is_channel {
            continue;
        }

        for spec in command.key_specs {
            let access = spec.flags.iter().filter(|flag| ["RW", "RO", "OW", "RM"].contains(flag)).count();
            assert_eq!(access, 1, "{name}");
            let known =
                ["RW", "RO", "OW", "RM", "access", "update", "insert", "delete", "variable_flags", "incomplete"];
            assert!(spec.flags.iter().all(|flag| known.contains(flag)), "{name}");
            assert!(!spec.flags.contains(&"incomplete") || command.own_keys.is_some(), "{name}");
            assert_eq!(spec.flags.contains(&"variable_flags"), command.key_flags.is_some(), "{name}");
            let BeginSearch::Index(first) = spec.begin else {
                // The position of the keyword depends on the call: the keyword follows the
                // mandatory arguments.
                let is_option = |from: i32| (1..=command.arity.abs()).contains(&from);
                assert!(
                    command.own_keys.is_some()
                        || matches!(spec.begin, BeginSearch::Keyword(_, from) if is_option(from)),
                    "{name}"
                );
                continue;
            };
            let (last, step) = match spec.find {
                FindKeys::Range { last, step, .. } => (last, step),
                FindKeys::KeyNum { keynum, first, step } => (keynum.max(first), step),
                FindKeys::Unknown => panic!("{name}: unknown keys without a search"),
            };
            // The sources of PFMERGE, all keys of DEBUG DIGEST-VALUE and the keys of a script are
            // optional.
            let is_script =
                |name: &str| matches!(name, "eval" | "eval_ro" | "evalsha" | "evalsha_ro" | "fcall" | "fcall_ro");
            let may_miss = matches!(name, "pfmerge" | "debug|digest-value") || is_script(name);
            assert!(step >= 1 && first + last.max(0) < command.arity.abs() + i32::from(may_miss), "{name}");
        }
        let changes = command.key_specs.iter().any(|spec| spec.flags[0] != "RO");
        // Exceptions: PFCOUNT reads a key but also caches its result there. XREADGROUP changes its
        // groups, but Redis declares its keys as read. WATCH doesn't access the values. EVAL and
        // FCALL do what their scripts do.
        let is_odd = matches!(name, "pfcount" | "xreadgroup" | "watch" | "eval" | "evalsha" | "fcall");
        if !command.key_specs.is_empty() && !command.flags.contains(Flags::ADMIN) && !is_odd {
            assert_eq!(command.flags.contains(Flags::WRITE), changes, "{name}");
            assert_eq!(command.flags.contains(Flags::READONLY), !changes, "{name}");
        }
        assert!(!command.flags.contains(Flags::WRITE | Flags::READONLY), "{name}");
        // This flag is always derived. A record never sets it.
        assert!(!command.flags.contains(Flags::MOVABLEKEYS), "{name}");

        let has_keys = !command.key_specs.is_empty() && !is_container(command);
        match command.route {
            Route::Keys => assert!(has_keys, "{name}"),
            Route::None => assert!(!has_keys || matches!(command.handler, Handler::Transaction(_)), "{name}"),
            // These routes exist because the key specifications are incomplete.
            Route::All | Route::Custom(_) => {}
        }
        let takes_shards = !matches!(command.route, Route::None);
        assert_eq!(matches!(command.handler, Handler::Keyed(_) | Handler::Undetermined(_)), takes_shards, "{name}");
    }
}

fn mark_key_specs(arguments: &[Argument], named: &mut [bool]) {
    for argument in arguments {
        // SORT declares its patterns as keys.
        let names_keys = argument.kind == ArgumentKind::Key || argument.kind == ArgumentKind::Pattern;
        assert!(argument.key_spec.is_none() || names_keys, "{}", argument.name);
        assert!(argument.key_spec.is_some() || argument.kind != ArgumentKind::Key, "{}", argument.name);
        if let Some(spec) = argument.key_spec {
            named[usize::from(spec)] = true;
        }
        mark_key_specs(argument.arguments, named);
    }
}

#[test]
fn single_keys_are_within_the_arity() {
    for command in every_record() {
        if let Some(index) = command.single_key() {
            assert!(index < command.arity.unsigned_abs() as usize, "{}", command.full_name);
            assert_eq!(command.key_specs.len(), 1);
        }
    }
    assert_eq!(lookup(b"get").unwrap().single_key(), Some(1));
    assert_eq!(lookup_full(b"object|encoding").unwrap().single_key(), Some(2));
    for several in ["mget", "mset", "rename", "lcs", "ping"] {
        assert_eq!(lookup(several.as_bytes()).unwrap().single_key(), None, "{several}");
    }
}

#[test]
fn help_of_client_has_all_subcommands() {
    let client = lookup(b"client").expect("a command");
    let help = LocalTest::new().run("CLIENT HELP");
    for command in client.subcommands {
        let name = command.name.to_uppercase();
        let is_listed = help.split("|+").any(|line| line.split(' ').next() == Some(&name));
        assert!(is_listed, "{name} is missing in {help}");
    }
}

#[test]
fn containers_have_help() {
    for command in COMMANDS.iter().filter(|command| is_container(command)) {
        let help = lookup_sub(command, b"help").unwrap_or_else(|| panic!("{} HELP", command.name));
        assert_eq!(help.arity, 2);
        assert!(command.key_specs.is_empty() && command.arguments.is_empty(), "{}", command.name);
        match command.handler {
            Handler::Container => {
                assert_eq!((command.arity, command.flags.difference(Flags::KEEPS_CACHING)), (-2, Flags::empty()));
            }
            // Only two containers have such a handler. The handler runs for COMMAND without a
            // subcommand, and for DEBUG with a subcommand that has no record.
            Handler::Local(_) => assert!(["command", "debug"].contains(&command.name)),
            Handler::Keyed(_) | Handler::Undetermined(_) | Handler::Transaction(_) => panic!("{}", command.name),
        }
    }
    for command in every_record().filter(|command| !is_container(command)) {
        assert!(!matches!(command.handler, Handler::Container), "{}", command.full_name);
    }
}

#[test]
fn categories_follow_from_flags() {
    for command in every_record() {
        let name = command.full_name;
        let mut implied = Acl::READ | Acl::WRITE | Acl::PUBSUB | Acl::FAST | Acl::SLOW | Acl::BLOCKING;
        // LASTSAVE has the category ADMIN, but not the flag. ADMIN therefore counts as implied only
        // if the flag is set.
        implied.set(Acl::ADMIN, command.flags.contains(Flags::ADMIN));
        assert!(!command.acl.intersects(implied), "{name}: implied by the flags");
        let categories = command.acl_categories();
        assert_ne!(categories.contains(Acl::FAST), categories.contains(Acl::SLOW), "{name}");
        assert_eq!(categories.contains(Acl::WRITE), command.flags.contains(Flags::WRITE), "{name}");
        assert!(!command.flags.contains(Flags::ADMIN) || !command.acl.contains(Acl::DANGEROUS), "{name}");
        assert!(!categories.contains(Acl::ADMIN) || categories.contains(Acl::DANGEROUS), "{name}");
        // A replica must reject a write that takes all shards, like any other write. DEBUG, SAVE
        // and BGSAVE may run on a replica.
        let may_run = command.flags.contains(Flags::PROTECTED) || matches!(name, "bgsave" | "save");
        let is_flagged = command.flags.intersects(Flags::WRITE | Flags::READONLY);
        assert!(may_run || !matches!(command.route, Route::All) || is_flagged, "{name}");
    }
}

/// Parses a version such as `7.0.15`.
fn version(text: &str) -> [u32; 3] {
    let parts: Vec<u32> = text.split('.').map(|part| part.parse().expect("a number")).collect();
    parts.try_into().expect("three parts")
}

#[test]
fn documentation_is_complete() {
    for command in every_record() {
        let name = command.full_name;
        assert!(command.summary.starts_with(|first: char| first.is_ascii_uppercase()), "{name}");
        assert!(!command.summary.ends_with('.'), "{name}");
        assert!(GROUPS.contains(&command.group), "{name}");
        // Redis documents no complexity for these commands.
        assert_eq!(command.complexity.is_empty(), matches!(name, "lolwut" | "monitor" | "psync" | "sync"), "{name}");
        assert!(version(command.since) <= [8, 0, 0], "{name}");
        assert!(command.history.is_sorted_by_key(|(since, _)| version(since)), "{name}");
        for (since, change) in command.history {
            // A change is later than the command. Redis documents two exceptions: an option of
            // ZREVRANGEBYSCORE, and RESTORE-ASKING, whose history is that of RESTORE.
            let before = name == "zrevrangebyscore" && *since == "2.1.6" || name == "restore-asking";
            assert!((before || version(since) > version(command.since)) && !change.is_empty(), "{name}");
        }
        assert!(command.deprecated.is_none_or(|(since, _)| version(since) > version(command.since)), "{name}");
    }
}

#[test]
fn unimplemented_commands_have_no_record() {
    let is_unimplemented = |name: &str| unimplemented(name.as_bytes()).is_some();
    assert!(UNIMPLEMENTED.is_sorted_by(|one, next| one.full_name < next.full_name));
    for Unimplemented { full_name: name, .. } in UNIMPLEMENTED {
        assert!(lookup_full(name.as_bytes()).is_none(), "{name}");
        assert!(is_unimplemented(name) && is_unimplemented(&name.to_ascii_uppercase()));
    }
    assert!(every_record().all(|command| !is_unimplemented(command.full_name)));
    assert!(!is_unimplemented("") && !is_unimplemented("nosuch"));
    let unimplemented_commands = UNIMPLEMENTED.iter().filter(|command| !command.full_name.contains('|')).count();
    let of_7_0 = COMMANDS.iter().filter(|command| version(command.since) < [7, 2, 0]).count();
    assert_eq!(of_7_0 + unimplemented_commands, REDIS_COMMANDS);
}

#[test]
fn set_reads_only_with_get() {
    let flags_of = lookup(b"set").unwrap().key_flags.unwrap();
    assert_eq!(with_args(&[b"set", b"k", b"get"], flags_of), ["OW", "update"]);
    assert_eq!(with_args(&[b"set", b"k", b"v", b"nx", b"GeT"], flags_of), ["RW", "access", "update"]);
}

/// Returns the full name that a call resolves to, or the error.
fn resolved(words: &[&[u8]]) -> String {
    with_args(words, |args| match resolve(args) {
        Ok(command) => command.full_name.to_owned(),
        Err(unresolved) => String::from_utf8_lossy(&unresolved.message(args)).into_owned(),
    })
}

#[test]
fn calls_resolve() {
    assert_eq!(resolved(&[b"GET", b"k"]), "get");
    assert_eq!(resolved(&[b"ping"]), "ping");
    assert_eq!(resolved(&[b"Client", b"getNAME"]), "client|getname");
    assert_eq!(resolved(&[b"command"]), "command");
    assert_eq!(resolved(&[b"mset", b"a", b"b", b"c"]), "mset");
    // The handler of DEBUG replies to unknown subcommands itself, because Redis has no records for
    // DEBUG's subcommands.
    assert_eq!(resolved(&[b"debug", b"sleep", b"0"]), "debug|sleep");
    assert_eq!(resolved(&[b"debug", b"sleep"]), "debug");
    assert_eq!(resolved(&[b"debug", b"nosuch"]), "debug");
}

#[test]
fn errors_equal_those_of_redis() {
    assert_eq!(resolved(&[b"get"]), "ERR wrong number of arguments for 'get' command");
    assert_eq!(resolved(&[b"GET", b"a", b"b"]), "ERR wrong number of arguments for 'get' command");
    assert_eq!(resolved(&[b"client"]), "ERR wrong number of arguments for 'client' command");
    assert_eq!(resolved(&[b"CLIENT", b"Id", b"x"]), "ERR wrong number of arguments for 'client|id' command");
    assert_eq!(resolved(&[b"debug"]), "ERR wrong number of arguments for 'debug' command");
    assert_eq!(resolved(&[b"client", b"Foo"]), "ERR unknown subcommand 'Foo'. Try CLIENT HELP.");
    assert_eq!(resolved(&[b"Foo"]), "ERR unknown command 'Foo', with args beginning with: ");
    let zero = "ERR unknown command 'fo', with args beginning with: 'a' '' ";
    assert_eq!(resolved(&[b"fo\0o", b"a\0b", b""]), zero);
    assert_eq!(resolved(&[b"MODULE", b"UNLOAD", b"x"]), "module|unload");
    let meet = "ERR Pantala doesn't have the command 'cluster|meet' yet";
    assert_eq!(resolved(&[b"CLUSTER", b"Meet", b"127.0.0.1", b"7000"]), meet);
    assert_eq!(resolved(&[b"module", b"load"]), "ERR wrong number of arguments for 'module|load' command");
    assert_eq!(resolved(&[b"MODULE"]), "ERR wrong number of arguments for 'module' command");
    assert_eq!(resolved(&[b"module", b"Foo"]), "ERR unknown subcommand 'Foo'. Try MODULE HELP.");
}

#[test]
fn errors_quote_a_bounded_part_of_the_call() {
    let cut = |words: &[&[u8]]| resolved(words).split("beginning with: ").nth(1).unwrap().to_owned();
    // At most 128 bytes are quoted. 122 bytes with quotes and a space leave three bytes for the
    // next argument, and 125 bytes leave none.
    assert_eq!(cut(&[b"foo", &[b'a'; 122], b"bcde"]), format!("'{}' 'bcd' ", "a".repeat(122)));
    assert_eq!(cut(&[b"foo", &[b'a'; 125], b"b"]), format!("'{}' ", "a".repeat(125)));
    assert_eq!(cut(&[b"foo", &[b'a'; 1000], b"b"]), format!("'{}' ", "a".repeat(128)));
    assert!(resolved(&[&[b'f'; 1000]]).starts_with(&format!("ERR unknown command '{}'", "f".repeat(128))));
    assert!(!resolved(&[&[b'f'; 1000]]).contains(&"f".repeat(129)));
    assert!(resolved(&[b"client", &[b'f'; 1000]]).contains(&format!("'{}'", "f".repeat(128))));
}

#[test]
fn compat_names_every_command() {
    let compat = include_str!("../../../../COMPAT.md");
    let (there, not_yet) = compat.split_once("## Not yet").expect("section exists");
    let spelled = |full_name: &str| format!("`{}`", full_name.replace('|', " ").to_uppercase());
    for command in every_record() {
        let name = spelled(command.full_name);
        let rows = there.lines().filter(|line| line.starts_with(&format!("| {name} "))).count();
        // DEBUG's subcommands have their own section.
        let wanted = usize::from(!command.full_name.starts_with("debug|"));
        assert_eq!(rows, wanted, "{name} in the tables");
        assert!(there.contains(&name), "{name}");
        assert!(!not_yet.contains(&name), "COMPAT.md says that {name} isn't built yet");
    }
    for Unimplemented { full_name: name, .. } in UNIMPLEMENTED {
        assert!(not_yet.contains(&spelled(name)), "{name} in the list of missing commands");
    }
    let listed = not_yet.matches('`').count() / 2;
    assert_eq!(listed, UNIMPLEMENTED.len() + 1, "only one other entry: the unknown-command error");
}
