//! ACL rules from arbitrary bytes: as words of `ACL SETUSER`, as an ACL file, and as `user` lines
//! of a configuration. The rules are applied as a whole or not at all, without a panic. Loading the
//! output of `ACL LIST` results in users with the same permissions.

use std::sync::LazyLock;

use pantala_commands::acl::catalog;
use pantala_commands::lookup;
use pantala_engine::acl::{Users, check_line};
use pantala_resp::{Args, Limits, Parser};

/// Calls on which each reloaded user and the original user must agree: both may run a call, or
/// neither may.
const CALLS: [&str; 10] = [
    "GET a",
    "GET ab",
    "SET a b",
    "MSET a 1 ab 2",
    "COPY a ab",
    "SORT a BY x* GET b*",
    "PUBLISH a b",
    "SUBSCRIBE a ab",
    "PSUBSCRIBE a*",
    "FLUSHALL",
];

/// Each of [`CALLS`] as bytes, with the ranges of its words.
static PARSED: LazyLock<Vec<(Vec<u8>, Vec<pantala_resp::ArgRange>)>> = LazyLock::new(|| {
    let parse = |call: &&str| {
        let (mut bytes, mut ranges) = (format!("{call}\r\n").into_bytes(), Vec::new());
        let parsed = Parser::default().parse(&mut bytes, &mut ranges, &Limits::default());
        assert!(matches!(parsed, Ok(Some(_))), "{call}");
        (bytes, ranges)
    };
    CALLS.iter().map(parse).collect()
});

/// Returns, for each user, which of [`CALLS`] the user may run.
fn permissions(users: &Users) -> Vec<(Vec<u8>, Vec<bool>)> {
    let of = |user: &std::sync::Arc<pantala_engine::acl::User>| {
        let rules = user.rules();
        let may = |(bytes, ranges): &(Vec<u8>, Vec<_>)| {
            let args = Args::new(bytes, ranges);
            rules.check(lookup(args.at(0)).expect("a command"), &args).is_ok()
        };
        (user.name().to_vec(), PARSED.iter().map(may).collect())
    };
    users.all().iter().map(of).collect()
}

/// Returns whether loading these lines restores the users. Redis's format is ambiguous if a word in
/// a selector contains a parenthesis, a quote or a backslash.
fn is_listable(lines: &[Vec<u8>]) -> bool {
    lines.iter().all(|line| {
        let Some(first) = line.windows(2).position(|pair| pair == b" (") else { return true };
        let selectors = &line[first..];
        let is_marked = |byte: &u8| matches!(byte, b'"' | b'\'' | b'\\');
        let inner = selectors.windows(2).any(|pair| pair[1] == b'(' && pair[0] != b' ');
        let closing = selectors
            .iter()
            .enumerate()
            .any(|(at, byte)| *byte == b')' && !matches!(selectors.get(at + 1..), Some([] | [b' ', b'(', ..])));
        !inner && !closing && !selectors.iter().any(is_marked) && !has_closing_first_word(selectors)
    })
}

/// Returns whether the first word of a selector ends with a parenthesis.
fn has_closing_first_word(selectors: &[u8]) -> bool {
    selectors.split(|byte| *byte == b' ').any(|word| word.starts_with(b"(") && word.ends_with(b")"))
}

/// Checks that loading the users' lines restores the users.
fn assert_loads_back(users: &Users) {
    let lines = users.lines();
    if !is_listable(&lines) {
        return;
    }
    let again = Users::new(catalog());
    let text = lines.join(&b'\n');
    match again.parse_file(&text, "file") {
        Ok(parsed) => drop(again.replace(parsed)),
        Err(error) => panic!("{error}\n{}", text.escape_ascii()),
    }
    assert_eq!(again.lines(), lines, "{}", text.escape_ascii());
    assert_eq!(permissions(&again), permissions(users), "{}", text.escape_ascii());
}

/// Applies lines of words to users. The first word of a line is the user's name.
fn set_users(users: &Users, text: &[u8]) {
    for line in text.split(|byte| *byte == b'\n') {
        let mut words = line.split(|byte| *byte == b' ');
        let name = words.next().unwrap_or_default();
        let words: Vec<&[u8]> = words.collect();
        let (before, epoch) = (users.lines(), users.epoch());
        if let Err(error) = users.set(name, &words) {
            assert!(!error.is_empty());
            assert_eq!((users.lines(), users.epoch()), (before, epoch), "a rejected change changes nothing");
        }
        if let Ok(checked) = check_line(catalog(), &line.split(|byte| *byte == b' ').collect::<Vec<_>>()) {
            // An error is ignored, because `add_configured` rejects a line with an unknown command,
            // although `check_line` accepts the line.
            let _ = Users::new(catalog()).add_configured(&[checked]);
        }
    }
}

/// Runs the target on one input, and panics on a defect.
pub fn run(data: &[u8]) {
    let Some((&choice, text)) = data.split_first() else { return };
    let users = Users::new(catalog());
    users.set_channels_by_default(choice & 1 != 0);
    if choice & 2 != 0 {
        set_users(&users, text);
    } else {
        match users.parse_file(text, "file") {
            Ok(parsed) => drop(users.replace(parsed)),
            Err(error) => assert!(error.ends_with("no change to the previously active ACL rules was performed")),
        }
    }
    assert_loads_back(&users);
}
