//! The records of the bitmap commands.

use pantala_engine::command::{Acl, Argument, Command, Flags, Handler, KeySpec, Route};
use pantala_resp::Args;

use super::flags;
use crate::arguments::is_option;

/// The commands of this file.
pub(super) const COMMANDS: &[Command] = &[BITCOUNT, BITFIELD, BITFIELD_RO, BITOP, BITPOS, GETBIT, SETBIT];

/// Common fields of the bitmap commands: their keys determine the shards.
const BITMAP: Command = Command { group: "bitmap", acl: Acl::BITMAP, route: Route::Keys, ..Command::BLANK };

const UNIT: Argument = Argument::one_of("index_unit", &[Argument::word("byte", "BYTE"), Argument::word("bit", "BIT")])
    .since("7.0.0")
    .optional();

const UNIT_ADDED: &[(&str, &str)] = &[("7.0.0", "Options `BYTE`, `BIT`")];

pub(crate) const BITCOUNT: Command = Command {
    name: "bitcount",
    full_name: "bitcount",
    summary: "Counts the set bits in a string or a range of it",
    since: "2.6.0",
    complexity: "O(N), N: length of the range",
    history: UNIT_ADDED,
    arity: -2,
    flags: flags![READONLY],
    key_specs: &[KeySpec::at(1, &["RO", "access"])],
    arguments: &[
        Argument::key("key", 0),
        Argument::block("index", &[Argument::integer("start"), Argument::integer("end"), UNIT]).optional(),
    ],
    handler: Handler::Keyed(crate::bitmap::bitcount),
    ..BITMAP
};

const FIELD_AT: &[Argument] = &[Argument::string("encoding"), Argument::integer("offset")];

const FIELD_WRITES: &[Argument] = &[
    Argument::one_of(
        "wrap_sat_fail",
        &[Argument::word("wrap", "WRAP"), Argument::word("sat", "SAT"), Argument::word("fail", "FAIL")],
    )
    .token("OVERFLOW")
    .optional(),
    Argument::one_of(
        "write_operation",
        &[
            Argument::block(
                "encoding_offset_value",
                &[Argument::string("encoding"), Argument::integer("offset"), Argument::integer("value")],
            )
            .token("SET"),
            Argument::block(
                "encoding_offset_increment",
                &[Argument::string("encoding"), Argument::integer("offset"), Argument::integer("increment")],
            )
            .token("INCRBY"),
        ],
    ),
];

pub(crate) const BITFIELD: Command = Command {
    name: "bitfield",
    full_name: "bitfield",
    summary: "Reads and writes integers of any width at any bit offset of a string",
    since: "3.2.0",
    complexity: "O(1) per operation",
    arity: -2,
    flags: flags![WRITE, DENYOOM],
    key_specs: &[
        KeySpec::at(1, &["RW", "access", "update", "variable_flags"]).note("Only reads if every operation is GET")
    ],
    key_flags: Some(bitfield_key_flags),
    arguments: &[
        Argument::key("key", 0),
        Argument::one_of(
            "operation",
            &[Argument::block("encoding_offset", FIELD_AT).token("GET"), Argument::block("write", FIELD_WRITES)],
        )
        .optional()
        .multiple(),
    ],
    handler: Handler::Keyed(crate::bitmap::bitfield),
    ..BITMAP
};

/// Returns the key flags of a BITFIELD call. As in Redis, they depend only on the names of the
/// operations.
fn bitfield_key_flags(args: &Args<'_>) -> &'static [&'static str] {
    let mut index = 2;
    while let Some(name) = args.get(index) {
        let left = args.len() - index - 1;
        index += if is_option(name, "GET") && left >= 2 {
            3
        } else if is_option(name, "OVERFLOW") && left >= 1 {
            2
        } else {
            return &["RW", "access", "update"];
        };
    }
    &["RO", "access"]
}

pub(crate) const BITFIELD_RO: Command = Command {
    name: "bitfield_ro",
    full_name: "bitfield_ro",
    summary: "Reads integers of any width at any bit offset of a string",
    since: "6.0.0",
    complexity: "O(1) per operation",
    arity: -2,
    flags: flags![READONLY, FAST],
    key_specs: &[KeySpec::at(1, &["RO", "access"])],
    arguments: &[
        Argument::key("key", 0),
        Argument::block("encoding_offset", FIELD_AT).token("GET").optional().multiple_token(),
    ],
    handler: Handler::Keyed(crate::bitmap::bitfield_ro),
    ..BITMAP
};

pub(crate) const BITOP: Command = Command {
    name: "bitop",
    full_name: "bitop",
    summary: "Performs a bitwise operation on strings and stores the result",
    since: "2.6.0",
    complexity: "O(N), N: total length of the sources",
    arity: -4,
    flags: flags![WRITE, DENYOOM],
    key_specs: &[KeySpec::at(2, &["OW", "update"]), KeySpec::all_from(3, 1, &["RO", "access"])],
    arguments: &[Argument::string("operation"), Argument::key("destkey", 0), Argument::key("key", 1).multiple()],
    handler: Handler::Keyed(crate::bitmap::bitop),
    ..BITMAP
};

pub(crate) const BITPOS: Command = Command {
    name: "bitpos",
    full_name: "bitpos",
    summary: "Returns the position of the first set or clear bit in a string or a range of it",
    since: "2.8.7",
    complexity: "O(N), N: length of the range",
    history: UNIT_ADDED,
    arity: -3,
    flags: flags![READONLY],
    key_specs: &[KeySpec::at(1, &["RO", "access"])],
    arguments: &[
        Argument::key("key", 0),
        Argument::integer("bit"),
        Argument::block(
            "index",
            &[Argument::integer("start"), Argument::block("end_index", &[Argument::integer("end"), UNIT]).optional()],
        )
        .optional(),
    ],
    handler: Handler::Keyed(crate::bitmap::bitpos),
    ..BITMAP
};

pub(crate) const GETBIT: Command = Command {
    name: "getbit",
    full_name: "getbit",
    summary: "Returns one bit of a string",
    since: "2.2.0",
    complexity: "O(1)",
    arity: 3,
    flags: flags![READONLY, FAST],
    key_specs: &[KeySpec::at(1, &["RO", "access"])],
    arguments: &[Argument::key("key", 0), Argument::integer("offset")],
    handler: Handler::Keyed(crate::bitmap::getbit),
    ..BITMAP
};

pub(crate) const SETBIT: Command = Command {
    name: "setbit",
    full_name: "setbit",
    summary: "Sets or clears one bit of a string, extending the string if necessary",
    since: "2.2.0",
    complexity: "O(1), unless the string grows",
    arity: 4,
    flags: flags![WRITE, DENYOOM],
    key_specs: &[KeySpec::at(1, &["RW", "access", "update"])],
    arguments: &[Argument::key("key", 0), Argument::integer("offset"), Argument::integer("value")],
    handler: Handler::Keyed(crate::bitmap::setbit),
    ..BITMAP
};
