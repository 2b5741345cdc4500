//! The records of the commands that observe the server: `MONITOR`, `SLOWLOG`, `LATENCY`.

use pantala_engine::command::{Argument, Command, Flags, Handler};

use super::{DEPENDS_ON_SUBCOMMAND, flags};

/// The commands of this file.
pub(super) const COMMANDS: &[Command] = &[LATENCY, MONITOR, SLOWLOG];

/// Common fields of these commands.
const WATCHING: Command = Command { group: "server", ..Command::BLANK };

pub(crate) const MONITOR: Command = Command {
    name: "monitor",
    full_name: "monitor",
    summary: "Shows every command that the server runs",
    since: "1.0.0",
    arity: 1,
    flags: flags![ADMIN, NOSCRIPT, LOADING, STALE],
    handler: Handler::Local(crate::watching::monitor),
    ..WATCHING
};

pub(crate) const SLOWLOG: Command = Command {
    name: "slowlog",
    full_name: "slowlog",
    summary: "Manages the log of slow commands",
    since: "2.2.12",
    complexity: DEPENDS_ON_SUBCOMMAND,
    arity: -2,
    subcommands: &[SLOWLOG_GET, SLOWLOG_HELP, SLOWLOG_LEN, SLOWLOG_RESET],
    ..WATCHING
};

pub(crate) const SLOWLOG_GET: Command = Command {
    name: "get",
    full_name: "slowlog|get",
    summary: "Returns the latest entries",
    since: "2.2.12",
    complexity: "O(N), N: number of entries",
    arity: -2,
    flags: flags![ADMIN, LOADING, STALE],
    tips: &["request_policy:all_nodes", "nondeterministic_output"],
    history: &[("4.0.0", "Address and name of the client")],
    arguments: &[Argument::integer("count").optional()],
    handler: Handler::Local(crate::watching::slowlog_get),
    ..WATCHING
};

pub(crate) const SLOWLOG_HELP: Command = Command {
    name: "help",
    full_name: "slowlog|help",
    summary: "Returns help on the subcommands",
    since: "6.2.0",
    complexity: "O(1)",
    arity: 2,
    flags: flags![LOADING, STALE],
    handler: Handler::Local(crate::watching::slowlog_help),
    ..WATCHING
};

pub(crate) const SLOWLOG_LEN: Command = Command {
    name: "len",
    full_name: "slowlog|len",
    summary: "Returns the number of entries",
    since: "2.2.12",
    complexity: "O(1)",
    arity: 2,
    flags: flags![ADMIN, LOADING, STALE],
    tips: &["request_policy:all_nodes", "response_policy:agg_sum", "nondeterministic_output"],
    handler: Handler::Local(crate::watching::slowlog_len),
    ..WATCHING
};

pub(crate) const SLOWLOG_RESET: Command = Command {
    name: "reset",
    full_name: "slowlog|reset",
    summary: "Deletes all entries",
    since: "2.2.12",
    complexity: "O(N), N: number of entries",
    arity: 2,
    flags: flags![ADMIN, LOADING, STALE],
    tips: &["request_policy:all_nodes", "response_policy:all_succeeded"],
    handler: Handler::Local(crate::watching::slowlog_reset),
    ..WATCHING
};

pub(crate) const LATENCY: Command = Command {
    name: "latency",
    full_name: "latency",
    summary: "Returns latency statistics",
    since: "2.8.13",
    complexity: DEPENDS_ON_SUBCOMMAND,
    arity: -2,
    subcommands: &[
        LATENCY_DOCTOR,
        LATENCY_GRAPH,
        LATENCY_HELP,
        LATENCY_HISTOGRAM,
        LATENCY_HISTORY,
        LATENCY_LATEST,
        LATENCY_RESET,
    ],
    ..WATCHING
};

/// Common fields of the subcommands that concern events.
const LATENCY_EVENTS: Command = Command {
    since: "2.8.13",
    complexity: "O(1)",
    arity: 2,
    flags: flags![ADMIN, NOSCRIPT, LOADING, STALE],
    tips: &["nondeterministic_output", "request_policy:all_nodes", "response_policy:special"],
    ..WATCHING
};

pub(crate) const LATENCY_DOCTOR: Command = Command {
    name: "doctor",
    full_name: "latency|doctor",
    summary: "Returns a report of slow events, with advice",
    handler: Handler::Local(crate::latency::doctor),
    ..LATENCY_EVENTS
};

pub(crate) const LATENCY_GRAPH: Command = Command {
    name: "graph",
    full_name: "latency|graph",
    summary: "Returns a graph of the latencies of an event",
    arity: 3,
    arguments: &[Argument::string("event")],
    handler: Handler::Local(crate::latency::graph),
    ..LATENCY_EVENTS
};

pub(crate) const LATENCY_HISTORY: Command = Command {
    name: "history",
    full_name: "latency|history",
    summary: "Returns the latencies of an event with their times",
    arity: 3,
    arguments: &[Argument::string("event")],
    handler: Handler::Local(crate::latency::history),
    ..LATENCY_EVENTS
};

pub(crate) const LATENCY_LATEST: Command = Command {
    name: "latest",
    full_name: "latency|latest",
    summary: "Returns the latest latency of every event",
    handler: Handler::Local(crate::latency::latest),
    ..LATENCY_EVENTS
};

pub(crate) const LATENCY_RESET: Command = Command {
    name: "reset",
    full_name: "latency|reset",
    summary: "Deletes the latencies of events",
    arity: -2,
    tips: &["request_policy:all_nodes", "response_policy:all_succeeded"],
    arguments: &[Argument::string("event").optional().multiple()],
    handler: Handler::Local(crate::latency::reset),
    ..LATENCY_EVENTS
};

pub(crate) const LATENCY_HELP: Command = Command {
    name: "help",
    full_name: "latency|help",
    summary: "Returns help on the subcommands",
    since: "2.8.13",
    complexity: "O(1)",
    arity: 2,
    flags: flags![LOADING, STALE],
    handler: Handler::Local(crate::latency::help),
    ..WATCHING
};

pub(crate) const LATENCY_HISTOGRAM: Command = Command {
    name: "histogram",
    full_name: "latency|histogram",
    summary: "Returns the latency distribution of commands",
    since: "7.0.0",
    complexity: "O(N), N: number of returned commands",
    arity: -2,
    flags: flags![ADMIN, NOSCRIPT, LOADING, STALE],
    tips: &["nondeterministic_output", "request_policy:all_nodes", "response_policy:special"],
    arguments: &[Argument::string("command").optional().multiple()],
    handler: Handler::Local(crate::latency::histogram),
    ..WATCHING
};
