//! The records of `DUMP`, `MIGRATE`, `RESTORE` and `RESTORE-ASKING`.

use pantala_engine::command::{Acl, Argument, BeginSearch, Command, FindKeys, Flags, Handler, KeySpec, Route};

use super::{acl, flags};

/// The commands of this file.
pub(super) const COMMANDS: &[Command] = &[DUMP, MIGRATE, RESTORE, RESTORE_ASKING];

pub(crate) const DUMP: Command = Command {
    name: "dump",
    full_name: "dump",
    summary: "Returns a serialized value for RESTORE",
    since: "2.6.0",
    complexity: "O(N*M), N: number of elements, M: average size of an element",
    group: "generic",
    arity: 2,
    acl: Acl::KEYSPACE,
    flags: flags![READONLY],
    tips: &["nondeterministic_output"],
    key_specs: &[KeySpec::at(1, &["RO", "access"])],
    arguments: &[Argument::key("key", 0)],
    route: Route::Keys,
    handler: Handler::Keyed(crate::dump::dump),
    ..Command::BLANK
};

pub(crate) const MIGRATE: Command = Command {
    name: "migrate",
    full_name: "migrate",
    summary: "Transfers keys to another server and deletes them here",
    since: "2.6.0",
    complexity: "The sum over all keys of DUMP and DEL here, RESTORE there, and the transfer",
    history: &[
        ("3.0.0", "Options `COPY` and `REPLACE`"),
        ("3.0.6", "Option `KEYS`"),
        ("4.0.7", "Option `AUTH`"),
        ("6.0.0", "Option `AUTH2`"),
    ],
    group: "generic",
    arity: -6,
    acl: acl![KEYSPACE, DANGEROUS],
    flags: flags![WRITE],
    tips: &["nondeterministic_output"],
    key_specs: &[
        KeySpec::at(3, &["RW", "access", "delete"]),
        KeySpec {
            notes: "",
            flags: &["RW", "access", "delete", "incomplete"],
            begin: BeginSearch::Keyword("KEYS", -2),
            find: FindKeys::Range { last: -1, step: 1, limit: 0 },
        },
    ],
    arguments: &[
        Argument::string("host"),
        Argument::integer("port"),
        Argument::one_of("key_or_empty_string", &[Argument::key("key", 0), Argument::word("empty_string", "")]),
        Argument::integer("destination-db"),
        Argument::integer("timeout"),
        Argument::word("copy", "COPY").optional().since("3.0.0"),
        Argument::word("replace", "REPLACE").optional().since("3.0.0"),
        Argument::one_of(
            "authentication",
            &[
                Argument::string("password").token("AUTH").optional().since("4.0.7"),
                Argument::block("username_password", &[Argument::string("username"), Argument::string("password")])
                    .token("AUTH2")
                    .optional()
                    .since("6.0.0"),
            ],
        )
        .optional(),
        Argument::key("key", 1).token("KEYS").optional().multiple().since("3.0.6"),
    ],
    route: Route::Custom(crate::migrate::migrate_shards),
    secrets: Some(super::secrets::migrate),
    handler: Handler::Undetermined(crate::migrate::migrate),
    own_keys: Some(crate::migrate::migrate_keys),
    ..Command::BLANK
};

pub(crate) const RESTORE: Command = Command {
    name: "restore",
    full_name: "restore",
    summary: "Creates a key from a value serialized by DUMP",
    since: "2.6.0",
    complexity: "O(N*M), N: number of elements, M: average size of an element; O(N*M*log(N)) for a sorted set",
    history: &[("3.0.0", "Option `REPLACE`"), ("5.0.0", "Option `ABSTTL`"), ("5.0.0", "Options `IDLETIME` and `FREQ`")],
    group: "generic",
    arity: -4,
    acl: acl![KEYSPACE, DANGEROUS],
    flags: flags![WRITE, DENYOOM],
    key_specs: &[KeySpec::at(1, &["OW", "update"])],
    arguments: &[
        Argument::key("key", 0),
        Argument::integer("ttl"),
        Argument::string("serialized-value"),
        Argument::word("replace", "REPLACE").optional().since("3.0.0"),
        Argument::word("absttl", "ABSTTL").optional().since("5.0.0"),
        Argument::integer("seconds").token("IDLETIME").optional().since("5.0.0"),
        Argument::integer("frequency").token("FREQ").optional().since("5.0.0"),
    ],
    route: Route::Keys,
    handler: Handler::Undetermined(crate::dump::restore),
    ..Command::BLANK
};

pub(crate) const RESTORE_ASKING: Command = Command {
    name: "restore-asking",
    full_name: "restore-asking",
    summary: "Creates a key from a serialized value while its slot migrates between the nodes of a cluster",
    since: "3.0.0",
    doc_flags: &["syscmd"],
    group: "server",
    flags: flags![WRITE, DENYOOM, ASKING],
    ..RESTORE
};
