//! For Pantala's commands, the replies to COMMAND equal those of redis-server, except for prose.
//! Summaries, complexities and remarks are Pantala's own.

use std::collections::BTreeMap;

use pantala_tests::{Backend, Client, Reply, Server};

/// Commands of Pantala that Redis 7.0 doesn't have: commands of later versions of Redis, and
/// Pantala's own.
const LATER: &[&str] = &[
    "client|setinfo",
    "client|no-touch",
    "client|durability",
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

/// Fields that differ because a later version added an option to the command (`WITHSCORE` of Redis
/// 7.2).
const LATER_FIELDS: &[&str] =
    &["zrank arity", "zrank arguments", "zrank history", "zrevrank arity", "zrevrank arguments", "zrevrank history"];

/// Fields of COMMAND DOCS that are prose, and so aren't compared.
const PROSE: &[&str] = &["summary", "complexity", "replaced_by"];

/// Starts both servers and connects to each with one version of the protocol.
fn servers(version: &str) -> Option<(Server, Client, Server, Client)> {
    let reference = Server::redis(&[])?;
    let subject = Server::pantala(Backend::Epoll, &["--workers", "1"]);
    let (mut given, mut right) = (subject.connect(), reference.connect());
    given.command(&["HELLO", version]);
    right.command(&["HELLO", version]);
    Some((subject, given, reference, right))
}

/// Returns the names of a server's commands, without those in [`LATER`].
fn names(client: &mut Client) -> Vec<String> {
    let mut names: Vec<String> = client.call("COMMAND LIST").elements().iter().map(Reply::text).collect();
    names.retain(|name| !LATER.contains(&name.as_str()));
    names.sort();
    names
}

/// Formats a reply as readable text, with its sets sorted. The reply contains no subcommands,
/// because callers compare those separately.
fn show(reply: &Reply) -> String {
    match reply {
        Reply::Array(items) | Reply::Map(items) => {
            format!("{}[{}]", reply.kind(), items.iter().map(show).collect::<Vec<_>>().join(" "))
        }
        Reply::Set(items) => {
            let mut items: Vec<String> = items.iter().map(show).collect();
            items.sort();
            format!("set{{{}}}", items.join(" "))
        }
        Reply::Null => "null".into(),
        other => format!("{}:{}", other.kind(), other.text()),
    }
}

/// Collects an entry of COMMAND INFO by field. Flags and categories are sorted, because they are
/// sets, and RESP2 shows a set in any order. Subcommands are listed by name.
fn info_fields(entry: &Reply, into: &mut BTreeMap<String, String>) {
    const FIELDS: [&str; 10] =
        ["name", "arity", "flags", "first", "last", "step", "acl", "tips", "keyspecs", "subcommands"];
    let name = entry.elements()[0].text();
    for (field, value) in FIELDS.iter().zip(entry.elements()) {
        match *field {
            "subcommands" => value.elements().iter().for_each(|sub| info_fields(sub, into)),
            "flags" | "acl" => {
                let mut items: Vec<String> = value.elements().iter().map(show).collect();
                items.sort();
                into.insert(format!("{name} {field}"), format!("{} {}", value.kind(), items.join(" ")));
            }
            "keyspecs" => drop(into.insert(format!("{name} {field}"), key_specs(value))),
            _ => drop(into.insert(format!("{name} {field}"), show(value))),
        }
    }
}

/// Returns key specifications, each with sorted flags.
fn key_specs(specs: &Reply) -> String {
    let sorted = |spec: &Reply| {
        let fields = spec.elements().chunks(2).map(|pair| match pair[0].text().as_str() {
            "flags" => {
                let mut flags: Vec<String> = pair[1].elements().iter().map(Reply::text).collect();
                flags.sort();
                format!("flags={}", flags.join(","))
            }
            // Notes are prose, so their text isn't compared.
            "notes" => "notes".into(),
            name => format!("{name}={}", show(&pair[1])),
        });
        fields.collect::<Vec<_>>().join(" ")
    };
    specs.elements().iter().map(sorted).collect::<Vec<_>>().join("; ")
}

/// Collects COMMAND DOCS without prose, with one line per field. Subcommands have their own
/// entries.
fn docs_fields(name: &str, docs: &Reply, into: &mut BTreeMap<String, String>) {
    for pair in docs.elements().chunks(2) {
        let field = pair[0].text();
        match field.as_str() {
            field if PROSE.contains(&field) => {
                assert!(!pair[1].text().is_empty(), "{name} has no {field}");
                into.insert(format!("{name} {field}"), "some prose".into());
            }
            // Only the versions are compared, because the descriptions are prose.
            "history" => {
                let versions: Vec<String> = pair[1].elements().iter().map(|entry| entry.elements()[0].text()).collect();
                into.insert(format!("{name} history"), versions.join(" "));
            }
            "subcommands" => {
                for sub in pair[1].elements().chunks(2) {
                    docs_fields(&sub[0].text(), &sub[1], into);
                }
            }
            _ => drop(into.insert(format!("{name} {field}"), show(&pair[1]))),
        }
    }
}

/// Compares `given` with `right`, for the commands that `given` has.
fn compare(what: &str, given: &BTreeMap<String, String>, right: &BTreeMap<String, String>) {
    let command = |key: &str| key.split(' ').next().unwrap_or_default().to_owned();
    let built: Vec<String> = given.keys().map(|key| command(key)).collect();
    let mut wrong = Vec::new();
    for (key, value) in given {
        if LATER.contains(&command(key).as_str()) || LATER_FIELDS.contains(&key.as_str()) {
            continue;
        }
        match right.get(key) {
            Some(right) if right == value => {}
            Some(right) => wrong.push(format!("{key}:\n    is      {value}\n    must be {right}")),
            None => wrong.push(format!("{key}: is {value}, must be absent")),
        }
    }
    for (key, value) in right {
        if built.contains(&command(key)) && !given.contains_key(key) {
            wrong.push(format!("{key} is missing, must be {value}"));
        }
    }
    assert!(wrong.is_empty(), "{what} differs in {} places:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn command_info_equals() {
    for version in ["2", "3"] {
        let Some((_subject, mut given, _reference, mut right)) = servers(version) else { return };
        let mut args = vec!["COMMAND".to_owned(), "INFO".to_owned()];
        args.extend(names(&mut given).into_iter().filter(|name| !name.contains('|')));
        assert!(args.len() > 60, "COMMAND LIST returns too few commands: {args:?}");
        let fields = |client: &mut Client| {
            let mut fields = BTreeMap::new();
            for (name, entry) in args[2..].iter().zip(client.command(&args).elements()) {
                assert!(*entry != Reply::Null, "COMMAND INFO {name} is null");
                info_fields(entry, &mut fields);
            }
            fields
        };
        compare(&format!("COMMAND INFO (RESP{version})"), &fields(&mut given), &fields(&mut right));
    }
}

#[test]
fn command_docs_equals_but_for_prose() {
    for version in ["2", "3"] {
        let Some((_subject, mut given, _reference, mut right)) = servers(version) else { return };
        let mut args = vec!["COMMAND".to_owned(), "DOCS".to_owned()];
        args.extend(names(&mut given).into_iter().filter(|name| !name.contains('|')));
        let fields = |client: &mut Client| {
            let mut fields = BTreeMap::new();
            for pair in client.command(&args).elements().chunks(2) {
                docs_fields(&pair[0].text(), &pair[1], &mut fields);
            }
            fields
        };
        compare(&format!("COMMAND DOCS (RESP{version})"), &fields(&mut given), &fields(&mut right));
    }
}

#[test]
fn command_count_equals_the_table() {
    let server = Server::pantala(Backend::Epoll, &["--workers", "1"]);
    let mut client = server.connect();
    let count = client.call("COMMAND COUNT").integer();
    assert_eq!(client.call("COMMAND").elements().len() as i64, count);
    assert_eq!(client.call("COMMAND DOCS").elements().len() as i64, count * 2);
}

/// `COMMAND LIST FILTERBY` returns those commands of redis-server's reply that Pantala has.
#[test]
fn command_list_filters_equal() {
    let Some((_subject, mut given, _reference, mut right)) = servers("2") else { return };
    let ours = names(&mut given);
    for filter in [
        "PATTERN get*",
        "PATTERN *ex*",
        "PATTERN client|*",
        "ACLCAT read",
        "ACLCAT fast",
        "ACLCAT dangerous",
        "ACLCAT connection",
        "ACLCAT keyspace",
    ] {
        let words = format!("COMMAND LIST FILTERBY {filter}");
        let list = |client: &mut Client| {
            let mut names: Vec<String> = client.call(&words).elements().iter().map(Reply::text).collect();
            names.retain(|name| ours.contains(name));
            names.sort();
            names
        };
        assert_eq!(list(&mut given), list(&mut right), "{words}");
    }
}

#[test]
fn keys_of_commands_equal() {
    let Some((_subject, mut given, _reference, mut right)) = servers("2") else { return };
    for words in [
        "GET a",
        "SET a b EX 1 GET",
        "MSET a 1 b 2",
        "MSET a 1 b",
        "MGET a b c",
        "DEL a b",
        "COPY a b DB 1",
        "RENAME a b",
        "LCS a b IDX",
        "OBJECT ENCODING a",
        "OBJECT FREQ a",
        "MEMORY USAGE a SAMPLES 5",
        "EXPIRE a 1 NX",
        "GETEX a PERSIST",
        "PING",
        "CLIENT ID",
        "GET",
        "GET a b",
        "SORT a",
        "nosuch a",
        "SUBSTR a 0 1",
        "TOUCH a b c",
        "MOVE a 1",
        "KEYS *",
        "SPUBLISH channel message",
        "SPUBLISH channel message more",
        "SSUBSCRIBE a b",
        "SUNSUBSCRIBE",
    ] {
        for sub in ["GETKEYS", "GETKEYSANDFLAGS"] {
            let line = format!("COMMAND {sub} {words}");
            assert_eq!(given.call(&line), right.call(&line), "{line}");
        }
    }
}
