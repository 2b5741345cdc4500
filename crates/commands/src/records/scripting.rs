//! Commands about scripts and functions.

use pantala_engine::command::{
    Acl, Argument, BeginSearch, Command, FindKeys, Flags, Handler, KeySpec, ScriptForm, ScriptNamed, TransactionPart,
};

use super::{DEPENDS_ON_SUBCOMMAND, acl, flags};

/// The commands of this file.
pub(super) const COMMANDS: &[Command] = &[EVAL, EVAL_RO, EVALSHA, EVALSHA_RO, FCALL, FCALL_RO, FUNCTION, SCRIPT];

const SCRIPTING: Command = Command { group: "scripting", ..Command::BLANK };

/// The keys of a script: as many as it says.
const fn script_keys(flags: &'static [&'static str], notes: &'static str) -> KeySpec {
    KeySpec { notes, flags, begin: BeginSearch::Index(2), find: FindKeys::KeyNum { keynum: 0, first: 1, step: 1 } }
}

const WRITING_KEYS: &[&str] = &["RW", "access", "update"];
const READING_KEYS: &[&str] = &["RO", "access"];

/// The remark on keys that may be read and written, and on those that may be read.
const WRITING_NOTE: &str = "We cannot tell how the keys will be used so we assume the worst, RW and UPDATE";
const READING_NOTE: &str = "We cannot tell how the keys will be used so we assume the worst, RO and ACCESS";

const fn runs(named: ScriptNamed, is_read_only: bool) -> Handler {
    Handler::Transaction(TransactionPart::Script(ScriptForm { named, is_read_only }))
}

/// What all that run a script have in common.
const RUNNING: Command = Command {
    complexity: "That of the script",
    arity: -3,
    flags: flags![NOSCRIPT, STALE, SKIP_MONITOR, MAY_REPLICATE, NO_MANDATORY_KEYS],
    acl: acl![SCRIPTING],
    ..SCRIPTING
};

/// What all that run one which only reads have in common.
const READING: Command =
    Command { since: "7.0.0", flags: flags![READONLY, NOSCRIPT, STALE, SKIP_MONITOR, NO_MANDATORY_KEYS], ..RUNNING };

/// What a call gives: its program by some name, keys, and arguments.
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
    handler: runs(ScriptNamed::Text, false),
    ..RUNNING
};

pub(crate) const EVAL_RO: Command = Command {
    name: "eval_ro",
    full_name: "eval_ro",
    summary: "Runs a script that may not write",
    key_specs: &[script_keys(READING_KEYS, READING_NOTE)],
    arguments: BY_TEXT,
    handler: runs(ScriptNamed::Text, true),
    ..READING
};

pub(crate) const EVALSHA: Command = Command {
    name: "evalsha",
    full_name: "evalsha",
    summary: "Runs a script that the server knows",
    since: "2.6.0",
    key_specs: &[script_keys(WRITING_KEYS, "")],
    arguments: BY_SHA,
    handler: runs(ScriptNamed::Sha, false),
    ..RUNNING
};

pub(crate) const EVALSHA_RO: Command = Command {
    name: "evalsha_ro",
    full_name: "evalsha_ro",
    summary: "Runs a script that the server knows, which may not write",
    key_specs: &[script_keys(READING_KEYS, "")],
    arguments: BY_SHA,
    handler: runs(ScriptNamed::Sha, true),
    ..READING
};

pub(crate) const SCRIPT: Command = Command {
    name: "script",
    full_name: "script",
    summary: "Manages the scripts that the server knows",
    since: "2.6.0",
    complexity: DEPENDS_ON_SUBCOMMAND,
    arity: -2,
    subcommands: &[SCRIPT_DEBUG, SCRIPT_EXISTS, SCRIPT_FLUSH, SCRIPT_HELP, SCRIPT_KILL, SCRIPT_LOAD],
    ..SCRIPTING
};

/// What all that manage something have in common.
const MANAGING: Command = Command { complexity: "O(1)", flags: flags![NOSCRIPT], acl: acl![SCRIPTING], ..SCRIPTING };

/// What all that manage scripts have in common.
const OF_SCRIPTS: Command = Command { since: "2.6.0", ..MANAGING };

const SCRIPT_DEBUG: Command = Command {
    name: "debug",
    full_name: "script|debug",
    summary: "Sets whether scripts are debugged",
    since: "3.2.0",
    arity: 3,
    arguments: &[Argument::one_of(
        "mode",
        &[Argument::word("yes", "YES"), Argument::word("sync", "SYNC"), Argument::word("no", "NO")],
    )],
    handler: Handler::Local(crate::scripts::debug),
    ..OF_SCRIPTS
};

const SCRIPT_EXISTS: Command = Command {
    name: "exists",
    full_name: "script|exists",
    summary: "Tells whether the server knows scripts",
    complexity: "O(N), N: number of scripts asked for",
    arity: -3,
    tips: &["request_policy:all_shards", "response_policy:agg_logical_and"],
    arguments: &[Argument::string("sha1").multiple()],
    handler: Handler::Local(crate::scripts::exists),
    ..OF_SCRIPTS
};

const SCRIPT_FLUSH: Command = Command {
    name: "flush",
    full_name: "script|flush",
    summary: "Forgets all scripts",
    complexity: "O(N), N: number of scripts that the server knows",
    history: &[("6.2.0", "`ASYNC` and `SYNC` came")],
    arity: -2,
    tips: &["request_policy:all_nodes", "response_policy:all_succeeded"],
    arguments: &[Argument::one_of("async", &[Argument::word("async", "ASYNC"), Argument::word("sync", "SYNC")])
        .optional()
        .since("6.2.0")],
    handler: Handler::Local(crate::scripts::flush),
    ..OF_SCRIPTS
};

const SCRIPT_HELP: Command = Command {
    name: "help",
    full_name: "script|help",
    summary: "Lists the subcommands",
    since: "5.0.0",
    arity: 2,
    flags: flags![LOADING, STALE],
    handler: Handler::Local(crate::scripts::help),
    ..OF_SCRIPTS
};

const SCRIPT_KILL: Command = Command {
    name: "kill",
    full_name: "script|kill",
    summary: "Ends a script that runs for too long and hasn't written",
    arity: 2,
    flags: flags![NOSCRIPT, ALLOW_BUSY],
    tips: &["request_policy:all_shards", "response_policy:one_succeeded"],
    handler: Handler::Local(crate::scripts::kill),
    ..OF_SCRIPTS
};

const SCRIPT_LOAD: Command = Command {
    name: "load",
    full_name: "script|load",
    summary: "Has the server know a script without running it",
    complexity: "O(N), N: length of the script",
    arity: 3,
    flags: flags![NOSCRIPT, STALE],
    tips: &["request_policy:all_nodes", "response_policy:all_succeeded"],
    arguments: &[Argument::string("script")],
    handler: Handler::Local(crate::scripts::load),
    ..OF_SCRIPTS
};

pub(crate) const FCALL: Command = Command {
    name: "fcall",
    full_name: "fcall",
    summary: "Calls a function",
    since: "7.0.0",
    complexity: "That of the function",
    key_specs: &[script_keys(WRITING_KEYS, WRITING_NOTE)],
    arguments: BY_FUNCTION,
    handler: runs(ScriptNamed::Function, false),
    ..RUNNING
};

pub(crate) const FCALL_RO: Command = Command {
    name: "fcall_ro",
    full_name: "fcall_ro",
    summary: "Calls a function that may not write",
    complexity: "That of the function",
    key_specs: &[script_keys(READING_KEYS, READING_NOTE)],
    arguments: BY_FUNCTION,
    handler: runs(ScriptNamed::Function, true),
    ..READING
};

pub(crate) const FUNCTION: Command = Command {
    name: "function",
    full_name: "function",
    summary: "Manages the libraries of functions",
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

/// What all that manage functions have in common.
const OF_FUNCTIONS: Command = Command { since: "7.0.0", ..MANAGING };

/// Where each primary has to be told.
const FOR_ALL_SHARDS: &[&str] = &["request_policy:all_shards", "response_policy:all_succeeded"];

const FUNCTION_DELETE: Command = Command {
    name: "delete",
    full_name: "function|delete",
    summary: "Removes a library",
    arity: 3,
    flags: flags![WRITE, NOSCRIPT],
    tips: FOR_ALL_SHARDS,
    arguments: &[Argument::string("library-name")],
    handler: Handler::Local(crate::functions::delete),
    ..OF_FUNCTIONS
};

const FUNCTION_DUMP: Command = Command {
    name: "dump",
    full_name: "function|dump",
    summary: "Answers all libraries as bytes",
    complexity: "O(N), N: number of functions",
    arity: 2,
    handler: Handler::Local(crate::functions::dump),
    ..OF_FUNCTIONS
};

const FUNCTION_FLUSH: Command = Command {
    name: "flush",
    full_name: "function|flush",
    summary: "Removes all libraries",
    complexity: "O(N), N: number of functions",
    arity: -2,
    flags: flags![WRITE, NOSCRIPT],
    tips: FOR_ALL_SHARDS,
    arguments: &[
        Argument::one_of("async", &[Argument::word("async", "ASYNC"), Argument::word("sync", "SYNC")]).optional()
    ],
    handler: Handler::Local(crate::functions::flush),
    ..OF_FUNCTIONS
};

const FUNCTION_HELP: Command = Command {
    name: "help",
    full_name: "function|help",
    summary: "Lists the subcommands",
    arity: 2,
    flags: flags![LOADING, STALE],
    handler: Handler::Local(crate::functions::help),
    ..OF_FUNCTIONS
};

const FUNCTION_KILL: Command = Command {
    name: "kill",
    full_name: "function|kill",
    summary: "Ends the function that runs",
    arity: 2,
    flags: flags![NOSCRIPT, ALLOW_BUSY],
    tips: &["request_policy:all_shards", "response_policy:one_succeeded"],
    handler: Handler::Local(crate::functions::kill),
    ..OF_FUNCTIONS
};

const FUNCTION_LIST: Command = Command {
    name: "list",
    full_name: "function|list",
    summary: "Tells of the libraries and their functions",
    complexity: "O(N), N: number of functions",
    arity: -2,
    tips: &["nondeterministic_output_order"],
    arguments: &[
        Argument::string("library-name-pattern").token("LIBRARYNAME").optional(),
        Argument::word("withcode", "WITHCODE").optional(),
    ],
    handler: Handler::Local(crate::functions::list),
    ..OF_FUNCTIONS
};

const FUNCTION_LOAD: Command = Command {
    name: "load",
    full_name: "function|load",
    summary: "Adds a library",
    complexity: "O(1), without the time that its code takes",
    arity: -3,
    flags: flags![WRITE, DENYOOM, NOSCRIPT],
    tips: FOR_ALL_SHARDS,
    arguments: &[Argument::word("replace", "REPLACE").optional(), Argument::string("function-code")],
    handler: Handler::Local(crate::functions::load),
    ..OF_FUNCTIONS
};

const FUNCTION_RESTORE: Command = Command {
    name: "restore",
    full_name: "function|restore",
    summary: "Adds the libraries of a dump",
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
    ..OF_FUNCTIONS
};

const FUNCTION_STATS: Command = Command {
    name: "stats",
    full_name: "function|stats",
    summary: "Tells of the function that runs",
    arity: 2,
    flags: flags![NOSCRIPT, ALLOW_BUSY],
    tips: &["nondeterministic_output", "request_policy:all_shards", "response_policy:special"],
    handler: Handler::Local(crate::functions::stats),
    ..OF_FUNCTIONS
};
