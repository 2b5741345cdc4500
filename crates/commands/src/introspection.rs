//! `COMMAND` and its subcommands: the command table for clients.

use pantala_base::glob;
use pantala_engine::client::{Host, LocalContext};
use pantala_engine::command::{Acl, Command, Flags, for_each_key};
use pantala_resp::{Args, Reply};

use crate::command_docs::{write_docs, write_flags, write_info};
use crate::records::COMMANDS;

/// `COMMAND`: describes every command.
pub fn command(context: &mut LocalContext<'_>, _: &Args<'_>, reply: &mut Reply<'_>) {
    write_all_infos(context.host, reply);
}

/// `COMMAND COUNT`: returns the number of commands, without subcommands.
pub fn count(context: &mut LocalContext<'_>, _: &Args<'_>, reply: &mut Reply<'_>) {
    reply.integer(all(context.host).count() as i64);
}

/// `COMMAND INFO [name ...]`: describes the named commands, with null for an unknown name. Without
/// names, describes all commands.
pub fn info(context: &mut LocalContext<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    if args.len() == 2 {
        return write_all_infos(context.host, reply);
    }
    reply.array(args.len() - 2);
    for name in args.iter().skip(2) {
        match named(context.host, name) {
            Some(command) => write_info(reply, command),
            None => reply.null(),
        }
    }
}

/// `COMMAND DOCS [name ...]`: documents the named commands and omits unknown names. Without names,
/// documents all commands.
pub fn docs(context: &mut LocalContext<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let host = context.host;
    if args.len() == 2 {
        reply.map(all(host).count());
        for command in all(host) {
            write_docs(reply, command);
        }
        return;
    }
    let known = || args.iter().skip(2).filter_map(|name| named(host, name));
    reply.map(known().count());
    for command in known() {
        write_docs(reply, command);
    }
}

/// `COMMAND LIST [FILTERBY MODULE name | ACLCAT category | PATTERN pattern]`: lists the names of
/// commands and subcommands.
pub fn list(context: &mut LocalContext<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let host = context.host;
    if args.len() == 2 {
        return write_names(host, reply, |_| true);
    }
    if args.len() != 5 || !args[2].eq_ignore_ascii_case(b"filterby") {
        return reply.error("ERR syntax error");
    }
    let wanted = &args[4];
    if args[3].eq_ignore_ascii_case(b"module") {
        // There are no modules.
        write_names(host, reply, |_| false);
    } else if args[3].eq_ignore_ascii_case(b"aclcat") {
        let category = Acl::by_name(wanted);
        write_names(host, reply, |command| {
            category.is_some_and(|category| command.acl_categories().contains(category))
        });
    } else if args[3].eq_ignore_ascii_case(b"pattern") {
        write_names(host, reply, |command| glob::matches(wanted, command.full_name.as_bytes(), true));
    } else {
        reply.error("ERR syntax error");
    }
}

/// `COMMAND GETKEYS command [argument ...]`: returns the keys of that call.
pub fn getkeys(context: &mut LocalContext<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    write_keys(context.host, args, reply, false);
}

/// `COMMAND GETKEYSANDFLAGS command [argument ...]`: returns the keys of that call with their
/// access flags.
pub fn getkeysandflags(context: &mut LocalContext<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    write_keys(context.host, args, reply, true);
}

/// `COMMAND HELP`.
pub fn help(_: &mut LocalContext<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    crate::help::write(
        reply,
        args,
        &[
            "(no subcommand)",
            "    Describe every command.",
            "COUNT",
            "    Return the number of commands.",
            "DOCS [<command-name> ...]",
            "    Return the documentation of the named commands, or of all.",
            "GETKEYS <full-command>",
            "    Return the keys of a full command.",
            "GETKEYSANDFLAGS <full-command>",
            "    Return the keys of a full command and its access flags for each.",
            "INFO [<command-name> ...]",
            "    Describe the named commands, or all.",
            "LIST [FILTERBY (MODULE <module-name>|ACLCAT <category>|PATTERN <pattern>)]",
            "    Return the names of the commands.",
        ],
    );
}

/// Returns the commands that `rename-command` hasn't removed.
fn all(host: &dyn Host) -> impl Iterator<Item = &'static Command> {
    COMMANDS.iter().filter(|command| !host.is_removed(command))
}

/// Returns the command or subcommand with this full name, unless it is hidden from `COMMAND`.
fn named(host: &dyn Host, name: &[u8]) -> Option<&'static Command> {
    let Some(bar) = name.iter().position(|&byte| byte == b'|') else { return host.command(name) };
    let mut subcommands = host.command(&name[..bar])?.shown_subcommands().iter();
    subcommands.find(|sub| sub.name.as_bytes().eq_ignore_ascii_case(&name[bar + 1..]))
}

fn write_all_infos(host: &dyn Host, reply: &mut Reply<'_>) {
    reply.array(all(host).count());
    for command in all(host) {
        write_info(reply, command);
    }
}

fn write_names(host: &dyn Host, reply: &mut Reply<'_>, wanted: impl Fn(&Command) -> bool) {
    let chosen = || {
        let each = all(host).flat_map(|command| std::iter::once(command).chain(command.shown_subcommands()));
        each.filter(|command| wanted(command))
    };
    reply.array(chosen().count());
    for command in chosen() {
        reply.bulk(command.full_name.as_bytes());
    }
}

/// Replies with the keys of the call in `args[2..]`.
fn write_keys(host: &dyn Host, args: &Args<'_>, reply: &mut Reply<'_>, with_flags: bool) {
    let call = args.tail(2);
    let Some(command) = called(host, &call) else {
        return reply.error("ERR Invalid command specified");
    };
    // A specification with the flag `not_key` describes no key. (`SPUBLISH` has one for its
    // channel.)
    if command.key_specs.iter().all(|spec| spec.flags.contains(&"not_key")) {
        return reply.error("ERR The command has no key arguments");
    }
    if !command.accepts(call.len()) {
        return reply.error("ERR Invalid number of arguments specified for command");
    }
    let mut keys = Vec::new();
    let found = for_each_key(command, &call, |index, spec| keys.push((index, spec.flags)));
    if found.is_err() || keys.is_empty() {
        if command.flags.contains(Flags::NO_MANDATORY_KEYS) {
            return reply.array(0);
        }
        return reply.error("ERR Invalid arguments specified for command");
    }
    reply.array(keys.len());
    for (index, flags) in keys {
        if with_flags {
            reply.array(2);
            reply.bulk(&call[index]);
            let flags = command.key_flags.map_or(flags, |flags_of| flags_of(&call));
            write_flags(reply, flags.iter().copied());
        } else {
            reply.bulk(&call[index]);
        }
    }
}

/// Returns the record of a call. Does not check the number of arguments.
fn called(host: &dyn Host, call: &Args<'_>) -> Option<&'static Command> {
    let command = host.command(call.get(0)?)?;
    match call.get(1) {
        Some(name) if !command.shown_subcommands().is_empty() => command.subcommand(name),
        _ => Some(command),
    }
}

#[cfg(test)]
mod tests {
    use pantala_resp::{ArgRange, Version};

    use super::*;
    use crate::records::lookup;
    use crate::testing_host::FakeHost;

    /// Returns what `write` encodes, with a space for each line end.
    fn lines(version: Version, write: impl FnOnce(&mut Reply<'_>)) -> String {
        let mut out = Vec::new();
        write(&mut Reply::new(&mut out, version));
        String::from_utf8(out).expect("text").replace("\r\n", " ")
    }

    /// Returns the reply of COMMAND GETKEYS to a call given as words separated by spaces.
    fn keys(call: &str, with_flags: bool) -> String {
        let mut start = 0;
        let words = ["COMMAND", "GETKEYS"].into_iter().chain(call.split(' '));
        let text: String = words.clone().collect();
        let ranges: Vec<ArgRange> = words
            .map(|word| {
                start += word.len();
                ArgRange::new(start - word.len(), word.len())
            })
            .collect();
        let args = Args::new(text.as_bytes(), &ranges);
        lines(Version::Resp3, |reply| write_keys(&FakeHost::default(), &args, reply, with_flags))
    }

    #[test]
    fn getkeys_returns_keys_and_flags() {
        assert_eq!(keys("mset a 1 b", false), "*2 $1 a $1 b ");
        assert_eq!(keys("OBJECT freq a", false), "*1 $1 a ");
        assert_eq!(keys("set a get", true), "*1 *2 $1 a ~2 +OW +update ");
        assert_eq!(keys("set a b get", true), "*1 *2 $1 a ~3 +RW +access +update ");
        assert_eq!(keys("copy a b", true), "*2 *2 $1 a ~2 +RO +access *2 $1 b ~2 +OW +update ");
        assert_eq!(keys("nosuch a", false), "-ERR Invalid command specified ");
        assert_eq!(keys("client nosuch", false), "-ERR Invalid command specified ");
        assert_eq!(keys("ping a", false), "-ERR The command has no key arguments ");
        // COMMAND hides the subcommands of DEBUG.
        assert_eq!(keys("debug object a", false), "-ERR The command has no key arguments ");
        assert_eq!(keys("get a b", false), "-ERR Invalid number of arguments specified for command ");
    }

    #[test]
    fn info_of_a_command_in_both_protocol_versions() {
        let resp3 = "*10 $3 get :2 ~2 +readonly +fast :1 :1 :1 ~3 +@read +@string +@fast ~0 ~1 %3 $5 flags ~2 +RO +access \
                     $12 begin_search %2 $4 type $5 index $4 spec %1 $5 index :1 \
                     $9 find_keys %2 $4 type $5 range $4 spec %3 $7 lastkey :0 $7 keystep :1 $5 limit :0 ~0 ";
        let get = lookup(b"get").unwrap();
        assert_eq!(lines(Version::Resp3, |reply| write_info(reply, get)), resp3);
        let resp2 = resp3.replace('~', "*").replace("%3", "*6").replace("%2", "*4").replace("%1", "*2");
        assert_eq!(lines(Version::Resp2, |reply| write_info(reply, get)), resp2);
    }

    #[test]
    fn subcommands_are_an_array_or_an_empty_set() {
        let end = |name: &[u8]| lines(Version::Resp3, |reply| write_info(reply, lookup(name).unwrap()));
        assert!(end(b"config").starts_with("*10 $6 config :-2 ~0 :0 :0 :0 ~1 +@slow ~0 ~0 *5 *10 $10 config|get :-3 "));
        assert!(end(b"debug").ends_with("~3 +@admin +@slow +@dangerous ~0 ~0 ~0 "));
    }

    #[test]
    fn docs_announce_their_number_of_fields() {
        let getset = lines(Version::Resp3, |reply| write_docs(reply, lookup(b"getset").unwrap()));
        assert!(getset.starts_with("$6 getset %8 $7 summary $"), "{getset}");
        assert!(getset.contains("$9 doc_flags ~1 +deprecated $16 deprecated_since $5 6.2.0 $11 replaced_by $"));
        assert!(getset.ends_with("$9 arguments *2 %3 $4 name $3 key $4 type $3 key $14 key_spec_index :0 %2 $4 name $5 value $4 type $6 string "));
        let lolwut = lines(Version::Resp2, |reply| write_docs(reply, lookup(b"lolwut").unwrap()));
        assert!(lolwut.starts_with("$6 lolwut *8 ") && !lolwut.contains("complexity"), "{lolwut}");
        let debug = lines(Version::Resp2, |reply| write_docs(reply, lookup(b"debug").unwrap()));
        assert!(debug.ends_with("$9 doc_flags *1 +syscmd "), "{debug}");
    }

    #[test]
    fn list_filters_names() {
        let of = |wanted: &dyn Fn(&Command) -> bool| {
            lines(Version::Resp2, |reply| write_names(&FakeHost::default(), reply, wanted))
        };
        assert_eq!(of(&|_| false), "*0 ");
        assert_eq!(of(&|command| command.full_name.starts_with("object|e")), "*1 $15 object|encoding ");
        assert!(!of(&|_| true).contains("debug|"), "subcommands of DEBUG are hidden, as in Redis");
    }
}
