//! The records of the commands for scripts and functions.

use pantala_engine::command::{
    Acl, Argument, BeginSearch, Command, FindKeys, Flags, Handler, KeySpec, ScriptForm, ScriptReference,
    TransactionPart,
};

use super::{DEPENDS_ON_SUBCOMMAND, acl, flags};

/// The commands of this file.
pub(super) const COMMANDS: &[Command] = &[EVAL, EVAL_RO, EVALSHA, EVALSHA_RO, FCALL, FCALL_RO, FUNCTION, SCRIPT];

const SCRIPTING: Command = Command { group: "scripting", ..Command::BLANK };

/// Returns the key specification of a script's keys. The number of keys is itself an argument.
const fn script_keys(flags: &'static [&'static str], notes: &'static str) -> KeySpec {
    KeySpec { notes, flags, begin: BeginSearch::Index(2), find: FindKeys::KeyNum { keynum: 0, first: 1, step: 1 } }
}

const WRITING_KEYS: &[&str] = &["RW", "access", "update"];
const READING_KEYS: &[&str] = &["RO", "access"];

/// The note on the keys of a script that may write.
const WRITING_NOTE: &str = "The script decides how it uses the keys: RW and update is the upper bound";
/// The note on the keys of a script that only reads.
const READING_NOTE: &str = "The script decides how it uses the keys: RO and access is the upper bound";

const fn runs(named: ScriptReference, is_read_only: bool) -> Handler {
    Handler::Transaction(TransactionPart::Script(ScriptForm { named, is_read_only }))
}

/// Common fields of the commands that run a script.
const RUNNING: Command = Command {
    complexity: "That of the script",
    arity: -3,
    flags: flags![NOSCRIPT, STALE, SKIP_MONITOR, MAY_REPLICATE, NO_MANDATORY_KEYS],
    acl: acl![SCRIPTING],
    ..SCRIPTING
};

/// Common fields of the commands that run a read-only script.
const READING: Command =
    Command { since: "7.0.0", flags: flags![READONLY, NOSCRIPT, STALE, SKIP_MONITOR, NO_MANDATORY_KEYS], ..RUNNING };

/// Returns the declared arguments of a call: the script or function, its keys and its arguments.
const fn call(program: &'static str) -> [Argument; 4] {
    [
        Argument::string(program),
        Argument::integer("numkeys"),
        Argument::key("key", 0).optional().multiple(),
        Argument::string("arg").optional().multiple(),
    ]
}

const BY_TEXT: &[Argument] = &call("script");
const BY_SHA: &[Argument] = &call("sha1");
const BY_FUNCTION: &[Argument] = &call("function");

pub(crate) const EVAL: Command = Command {
    name: "eval",
    full_name: "eval",
    summary: "Runs a script",
    since: "2.6.0",
    key_specs: &[script_keys(WRITING_KEYS, WRITING_NOTE)],
    arguments: BY_TEXT,
    handler: runs(ScriptReference::Text, false),
    ..RUNNING
};

pub(crate) const EVAL_RO: Command = Command {
    name: "eval_ro",
    full_name: "eval_ro",
    summary: "Runs a read-only script",
    key_specs: &[script_keys(READING_KEYS, READING_NOTE)],
    arguments: BY_TEXT,
    handler: runs(ScriptReference::Text, true),
    ..READING
};

pub(crate) const EVALSHA: Command = Command {
    name: "evalsha",
    full_name: "evalsha",
    summary: "Runs a cached script",
    since: "2.6.0",
    key_specs: &[script_keys(WRITING_KEYS, "")],
    arguments: BY_SHA,
    handler: runs(ScriptReference::Sha, false),
    ..RUNNING
};

pub(crate) const EVALSHA_RO: Command = Command {
    name: "evalsha_ro",
    full_name: "evalsha_ro",
    summary: "Runs a cached read-only script",
    key_specs: &[script_keys(READING_KEYS, "")],
    arguments: BY_SHA,
    handler: runs(ScriptReference::Sha, true),
    ..READING
};

pub(crate) const SCRIPT: Command = Command {
    name: "script",
    full_name: "script",
    summary: "Manages cached scripts",
    since: "2.6.0",
    complexity: DEPENDS_ON_SUBCOMMAND,
    arity: -2,
    subcommands: &[SCRIPT_DEBUG, SCRIPT_EXISTS, SCRIPT_FLUSH, SCRIPT_HELP, SCRIPT_KILL, SCRIPT_LOAD],
    ..SCRIPTING
};

/// Common fields of the commands that manage scripts or functions.
const MANAGEMENT: Command = Command { complexity: "O(1)", flags: flags![NOSCRIPT], acl: acl![SCRIPTING], ..SCRIPTING };

/// Common fields of the commands that manage scripts.
const SCRIPT_SUBCOMMAND: Command = Command { since: "2.6.0", ..MANAGEMENT };

const SCRIPT_DEBUG: Command = Command {
    name: "debug",
    full_name: "script|debug",
    summary: "Sets the debug mode of scripts",
    since: "3.2.0",
    arity: 3,
    arguments: &[Argument::one_of(
        "mode",
        &[Argument::word("yes", "YES"), Argument::word("sync", "SYNC"), Argument::word("no", "NO")],
    )],
    handler: Handler::Local(crate::scripts::debug),
    ..SCRIPT_SUBCOMMAND
};

const SCRIPT_EXISTS: Command = Command {
    name: "exists",
    full_name: "script|exists",
    summary: "Returns whether scripts are cached",
    complexity: "O(N), N: number of given scripts",
    arity: -3,
    tips: &["request_policy:all_shards", "response_policy:agg_logical_and"],
    arguments: &[Argument::string("sha1").multiple()],
    handler: Handler::Local(crate::scripts::exists),
    ..SCRIPT_SUBCOMMAND
};

const SCRIPT_FLUSH: Command = Command {
    name: "flush",
    full_name: "script|flush",
    summary: "Removes all scripts from the cache",
    complexity: "O(N), N: number of cached scripts",
    history: &[("6.2.0", "Options `ASYNC`, `SYNC`")],
    arity: -2,
    tips: &["request_policy:all_nodes", "response_policy:all_succeeded"],
    arguments: &[Argument::one_of("async", &[Argument::word("async", "ASYNC"), Argument::word("sync", "SYNC")])
        .optional()
        .since("6.2.0")],
    handler: Handler::Local(crate::scripts::flush),
    ..SCRIPT_SUBCOMMAND
};

const SCRIPT_HELP: Command = Command {
    name: "help",
    full_name: "script|help",
    summary: "Returns help on the subcommands",
    since: "5.0.0",
    arity: 2,
    flags: flags![LOADING, STALE],
    handler: Handler::Local(crate::scripts::help),
    ..SCRIPT_SUBCOMMAND
};

const SCRIPT_KILL: Command = Command {
    name: "kill",
    full_name: "script|kill",
    summary: "Stops the running script, unless it has written",
    arity: 2,
    flags: flags![NOSCRIPT, ALLOW_BUSY],
    tips: &["request_policy:all_shards", "response_policy:one_succeeded"],
    handler: Handler::Local(crate::scripts::kill),
    ..SCRIPT_SUBCOMMAND
};

const SCRIPT_LOAD: Command = Command {
    name: "load",
    full_name: "script|load",
    summary: "Adds a script to the cache without running it",
    complexity: "O(N), N: length of the script",
    arity: 3,
    flags: flags![NOSCRIPT, STALE],
    tips: &["request_policy:all_nodes", "response_policy:all_succeeded"],
    arguments: &[Argument::string("script")],
    handler: Handler::Local(crate::scripts::load),
    ..SCRIPT_SUBCOMMAND
};

pub(crate) const FCALL: Command = Command {
    name: "fcall",
    full_name: "fcall",
    summary: "Calls a function",
    since: "7.0.0",
    complexity: "That of the function",
    key_specs: &[script_keys(WRITING_KEYS, WRITING_NOTE)],
    arguments: BY_FUNCTION,
    handler: runs(ScriptReference::Function, false),
    ..RUNNING
};

pub(crate) const FCALL_RO: Command = Command {
    name: "fcall_ro",
    full_name: "fcall_ro",
    summary: "Calls a read-only function",
    complexity: "That of the function",
    key_specs: &[script_keys(READING_KEYS, READING_NOTE)],
    arguments: BY_FUNCTION,
    handler: runs(ScriptReference::Function, true),
    ..READING
};

pub(crate) const FUNCTION: Command = Command {
    name: "function",
    full_name: "function",
    summary: "Manages function libraries",
    since: "7.0.0",
    complexity: DEPENDS_ON_SUBCOMMAND,
    arity: -2,
    subcommands: &[
        FUNCTION_DELETE,
        FUNCTION_DUMP,
        FUNCTION_FLUSH,
        FUNCTION_HELP,
        FUNCTION_KILL,
        FUNCTION_LIST,
        FUNCTION_LOAD,
        FUNCTION_RESTORE,
        FUNCTION_STATS,
    ],
    ..SCRIPTING
};

/// Common fields of the commands that manage functions.
const FUNCTION_SUBCOMMAND: Command = Command { since: "7.0.0", ..MANAGEMENT };

/// Command tips of a command that cluster clients should send to every primary.
const FOR_ALL_SHARDS: &[&str] = &["request_policy:all_shards", "response_policy:all_succeeded"];

const FUNCTION_DELETE: Command = Command {
    name: "delete",
    full_name: "function|delete",
    summary: "Deletes a library",
    arity: 3,
    flags: flags![WRITE, NOSCRIPT],
    tips: FOR_ALL_SHARDS,
    arguments: &[Argument::string("library-name")],
    handler: Handler::Local(crate::functions::delete),
    ..FUNCTION_SUBCOMMAND
};

const FUNCTION_DUMP: Command = Command {
    name: "dump",
    full_name: "function|dump",
    summary: "Returns all libraries as a serialized payload",
    complexity: "O(N), N: number of functions",
    arity: 2,
    handler: Handler::Local(crate::functions::dump),
    ..FUNCTION_SUBCOMMAND
};

const FUNCTION_FLUSH: Command = Command {
    name: "flush",
    full_name: "function|flush",
    summary: "Deletes all libraries",
    complexity: "O(N), N: number of functions",
    arity: -2,
    flags: flags![WRITE, NOSCRIPT],
    tips: FOR_ALL_SHARDS,
    arguments: &[
        Argument::one_of("async", &[Argument::word("async", "ASYNC"), Argument::word("sync", "SYNC")]).optional()
    ],
    handler: Handler::Local(crate::functions::flush),
    ..FUNCTION_SUBCOMMAND
};

const FUNCTION_HELP: Command = Command {
    name: "help",
    full_name: "function|help",
    summary: "Returns help on the subcommands",
    arity: 2,
    flags: flags![LOADING, STALE],
    handler: Handler::Local(crate::functions::help),
    ..FUNCTION_SUBCOMMAND
};

const FUNCTION_KILL: Command = Command {
    name: "kill",
    full_name: "function|kill",
    summary: "Stops the running function, unless it has written",
    arity: 2,
    flags: flags![NOSCRIPT, ALLOW_BUSY],
    tips: &["request_policy:all_shards", "response_policy:one_succeeded"],
    handler: Handler::Local(crate::functions::kill),
    ..FUNCTION_SUBCOMMAND
};

const FUNCTION_LIST: Command = Command {
    name: "list",
    full_name: "function|list",
    summary: "Returns the libraries and their functions",
    complexity: "O(N), N: number of functions",
    arity: -2,
    tips: &["nondeterministic_output_order"],
    arguments: &[
        Argument::string("library-name-pattern").token("LIBRARYNAME").optional(),
        Argument::word("withcode", "WITHCODE").optional(),
    ],
    handler: Handler::Local(crate::functions::list),
    ..FUNCTION_SUBCOMMAND
};

const FUNCTION_LOAD: Command = Command {
    name: "load",
    full_name: "function|load",
    summary: "Loads a library",
    complexity: "O(1), plus the time to run the library's code",
    arity: -3,
    flags: flags![WRITE, DENYOOM, NOSCRIPT],
    tips: FOR_ALL_SHARDS,
    arguments: &[Argument::word("replace", "REPLACE").optional(), Argument::string("function-code")],
    handler: Handler::Local(crate::functions::load),
    ..FUNCTION_SUBCOMMAND
};

const FUNCTION_RESTORE: Command = Command {
    name: "restore",
    full_name: "function|restore",
    summary: "Restores libraries from a dump",
    complexity: "O(N), N: number of functions in the dump",
    arity: -3,
    flags: flags![WRITE, DENYOOM, NOSCRIPT],
    tips: FOR_ALL_SHARDS,
    arguments: &[
        Argument::string("serialized-value"),
        Argument::one_of(
            "policy",
            &[
                Argument::word("flush", "FLUSH"),
                Argument::word("append", "APPEND"),
                Argument::word("replace", "REPLACE"),
            ],
        )
        .optional(),
    ],
    handler: Handler::Local(crate::functions::restore),
    ..FUNCTION_SUBCOMMAND
};

const FUNCTION_STATS: Command = Command {
    name: "stats",
    full_name: "function|stats",
    summary: "Returns the running function and the numbers of libraries and functions",
    arity: 2,
    flags: flags![NOSCRIPT, ALLOW_BUSY],
    tips: &["nondeterministic_output", "request_policy:all_shards", "response_policy:special"],
    handler: Handler::Local(crate::functions::stats),
    ..FUNCTION_SUBCOMMAND
};
