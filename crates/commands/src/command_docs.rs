//! Encodes records for `COMMAND INFO` and `COMMAND DOCS`, in Redis's format.

use pantala_engine::command::{Argument, ArgumentFlags, BeginSearch, Command, FindKeys, KeySpec};
use pantala_resp::Reply;

/// Writes the entry of one command in `COMMAND INFO`: the fields that client libraries use to route
/// and classify the command.
pub fn write_info(reply: &mut Reply<'_>, command: &Command) {
    reply.array(10);
    reply.bulk(command.full_name.as_bytes());
    reply.integer(i64::from(command.arity));
    let flags = command.shown_flags();
    write_flags(reply, flags.names());
    let range = command.legacy_range();
    reply.integer(i64::from(range.first));
    reply.integer(i64::from(range.last));
    reply.integer(i64::from(range.step));
    let categories = command.acl_categories();
    reply.set(categories.names().count());
    for category in categories.names() {
        reply.simple(&format!("@{category}"));
    }
    reply.set(command.tips.len());
    for tip in command.tips {
        reply.bulk(tip.as_bytes());
    }
    reply.set(command.key_specs.len());
    for spec in command.key_specs {
        write_key_spec(reply, spec);
    }
    match command.shown_subcommands() {
        // Redis sends an empty set if there are no subcommands, and an array otherwise.
        [] => reply.set(0),
        subcommands => {
            reply.array(subcommands.len());
            for subcommand in subcommands {
                write_info(reply, subcommand);
            }
        }
    }
}

/// Writes the name of one command and its documentation, for `COMMAND DOCS`.
pub fn write_docs(reply: &mut Reply<'_>, command: &Command) {
    reply.bulk(command.full_name.as_bytes());
    let subcommands = command.shown_subcommands();
    let doc_flags = || command.deprecated.map(|_| "deprecated").into_iter().chain(command.doc_flags.iter().copied());
    let optional_fields = [
        !command.complexity.is_empty(),
        doc_flags().next().is_some(),
        command.deprecated.is_some(),
        command.deprecated.is_some(),
        !command.history.is_empty(),
        !command.arguments.is_empty(),
        !subcommands.is_empty(),
    ];
    reply.map(3 + optional_fields.iter().filter(|present| **present).count());
    write_field(reply, "summary", command.summary);
    write_field(reply, "since", command.since);
    write_field(reply, "group", command.group);
    if !command.complexity.is_empty() {
        write_field(reply, "complexity", command.complexity);
    }
    if doc_flags().next().is_some() {
        reply.bulk(b"doc_flags");
        write_flags(reply, doc_flags());
    }
    if let Some((since, replaced_by)) = command.deprecated {
        write_field(reply, "deprecated_since", since);
        write_field(reply, "replaced_by", replaced_by);
    }
    if !command.history.is_empty() {
        reply.bulk(b"history");
        reply.set(command.history.len());
        for (version, change) in command.history {
            reply.array(2);
            reply.bulk(version.as_bytes());
            reply.bulk(change.as_bytes());
        }
    }
    write_arguments(reply, command.arguments);
    if !subcommands.is_empty() {
        reply.bulk(b"subcommands");
        reply.map(subcommands.len());
        for subcommand in subcommands {
            write_docs(reply, subcommand);
        }
    }
}

/// Writes flags in Redis's format: a set of simple strings.
pub fn write_flags(reply: &mut Reply<'_>, flags: impl Iterator<Item = &'static str> + Clone) {
    reply.set(flags.clone().count());
    for flag in flags {
        reply.simple(flag);
    }
}

fn write_field(reply: &mut Reply<'_>, name: &str, value: &str) {
    reply.bulk(name.as_bytes());
    reply.bulk(value.as_bytes());
}

fn write_number(reply: &mut Reply<'_>, name: &str, value: i32) {
    reply.bulk(name.as_bytes());
    reply.integer(i64::from(value));
}

/// Writes the field `arguments`, unless there are no arguments.
fn write_arguments(reply: &mut Reply<'_>, arguments: &[Argument]) {
    if arguments.is_empty() {
        return;
    }
    reply.bulk(b"arguments");
    reply.array(arguments.len());
    for argument in arguments {
        write_argument(reply, argument);
    }
}

fn write_argument(reply: &mut Reply<'_>, argument: &Argument) {
    let optional_fields = [
        argument.key_spec.is_some(),
        argument.token.is_some(),
        argument.since.is_some(),
        argument.deprecated_since.is_some(),
        argument.flags != ArgumentFlags::empty(),
        !argument.arguments.is_empty(),
    ];
    reply.map(2 + optional_fields.iter().filter(|present| **present).count());
    write_field(reply, "name", argument.name);
    write_field(reply, "type", argument.kind.name());
    if let Some(key_spec) = argument.key_spec {
        write_number(reply, "key_spec_index", i32::from(key_spec));
    }
    if let Some(token) = argument.token {
        write_field(reply, "token", token);
    }
    if let Some(since) = argument.since {
        write_field(reply, "since", since);
    }
    if let Some(since) = argument.deprecated_since {
        write_field(reply, "deprecated_since", since);
    }
    if argument.flags != ArgumentFlags::empty() {
        reply.bulk(b"flags");
        write_flags(reply, argument.flags.names());
    }
    write_arguments(reply, argument.arguments);
}

fn write_key_spec(reply: &mut Reply<'_>, spec: &KeySpec) {
    reply.map(if spec.notes.is_empty() { 3 } else { 4 });
    if !spec.notes.is_empty() {
        write_field(reply, "notes", spec.notes);
    }
    reply.bulk(b"flags");
    write_flags(reply, spec.flags.iter().copied());

    reply.bulk(b"begin_search");
    match spec.begin {
        BeginSearch::Index(index) => {
            write_kind(reply, "index", 1);
            write_number(reply, "index", index);
        }
        BeginSearch::Keyword(keyword, from) => {
            write_kind(reply, "keyword", 2);
            write_field(reply, "keyword", keyword);
            write_number(reply, "startfrom", from);
        }
        BeginSearch::Unknown => write_kind(reply, "unknown", 0),
    }

    reply.bulk(b"find_keys");
    match spec.find {
        FindKeys::Range { last, step, limit } => {
            write_kind(reply, "range", 3);
            write_number(reply, "lastkey", last);
            write_number(reply, "keystep", step);
            write_number(reply, "limit", limit);
        }
        FindKeys::KeyNum { keynum, first, step } => {
            write_kind(reply, "keynum", 3);
            write_number(reply, "keynumidx", keynum);
            write_number(reply, "firstkey", first);
            write_number(reply, "keystep", step);
        }
        FindKeys::Unknown => write_kind(reply, "unknown", 0),
    }
}

/// Starts one half of a key specification (how to begin the search, or how to find the keys): its
/// type, and a map of `fields` fields. The caller writes these fields.
fn write_kind(reply: &mut Reply<'_>, kind: &str, fields: usize) {
    reply.map(2);
    write_field(reply, "type", kind);
    reply.bulk(b"spec");
    reply.map(fields);
}
