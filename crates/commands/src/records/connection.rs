//! The records of the commands that concern the client's own connection or other connections.

use pantala_engine::command::{Acl, Argument, Command, Flags, Handler};

use super::{DEPENDS_ON_SUBCOMMAND, flags};

/// The commands of this file.
pub(super) const COMMANDS: &[Command] = &[AUTH, CLIENT, ECHO, HELLO, PING, QUIT, RESET, SELECT];

/// Common fields of the connection commands. They run on the worker, without a shard.
const CONNECTION: Command = Command { group: "connection", acl: Acl::CONNECTION, ..Command::BLANK };

pub(crate) const AUTH: Command = Command {
    name: "auth",
    full_name: "auth",
    summary: "Authenticates the connection",
    since: "1.0.0",
    complexity: "O(N), N: number of the user's passwords",
    history: &[("6.0.0", "Accepts a user name")],
    arity: -2,
    flags: flags![NOSCRIPT, LOADING, STALE, FAST, NO_AUTH, ALLOW_BUSY],
    arguments: &[Argument::string("username").since("6.0.0").optional(), Argument::string("password")],
    secrets: Some(super::secrets::auth),
    handler: Handler::Local(crate::connection::auth),
    ..CONNECTION
};

pub(crate) const CLIENT: Command = Command {
    name: "client",
    full_name: "client",
    summary: "Manages connections",
    since: "2.4.0",
    complexity: DEPENDS_ON_SUBCOMMAND,
    arity: -2,
    acl: Acl::empty(),
    flags: flags![KEEPS_CACHING],
    subcommands: &[
        CLIENT_CACHING,
        CLIENT_DURABILITY,
        CLIENT_GETNAME,
        CLIENT_GETREDIR,
        CLIENT_HELP,
        CLIENT_ID,
        CLIENT_INFO,
        CLIENT_KILL,
        CLIENT_LIST,
        CLIENT_NO_EVICT,
        CLIENT_NO_TOUCH,
        CLIENT_PAUSE,
        CLIENT_REPLY,
        CLIENT_SETINFO,
        CLIENT_SETNAME,
        CLIENT_TRACKING,
        CLIENT_TRACKINGINFO,
        CLIENT_UNBLOCK,
        CLIENT_UNPAUSE,
    ],
    ..CONNECTION
};

pub(crate) const CLIENT_CACHING: Command = Command {
    name: "caching",
    full_name: "client|caching",
    summary: "Tracks the keys of the next command, or doesn't",
    since: "6.0.0",
    complexity: "O(1)",
    arity: 3,
    flags: flags![NOSCRIPT, LOADING, STALE, KEEPS_CACHING],
    arguments: &[Argument::one_of("mode", &[Argument::word("yes", "YES"), Argument::word("no", "NO")])],
    handler: Handler::Local(crate::client::caching),
    ..CONNECTION
};

pub(crate) const CLIENT_GETNAME: Command = Command {
    name: "getname",
    full_name: "client|getname",
    summary: "Returns the name of this connection",
    since: "2.6.9",
    complexity: "O(1)",
    arity: 2,
    flags: flags![NOSCRIPT, LOADING, STALE, KEEPS_CACHING],
    handler: Handler::Local(crate::client::getname),
    ..CONNECTION
};

pub(crate) const CLIENT_GETREDIR: Command = Command {
    name: "getredir",
    full_name: "client|getredir",
    summary: "Returns the ID of the connection that receives the invalidations",
    since: "6.0.0",
    complexity: "O(1)",
    arity: 2,
    flags: flags![NOSCRIPT, LOADING, STALE, KEEPS_CACHING],
    handler: Handler::Local(crate::client::getredir),
    ..CONNECTION
};

pub(crate) const CLIENT_HELP: Command = Command {
    name: "help",
    full_name: "client|help",
    summary: "Returns help on the subcommands",
    since: "5.0.0",
    complexity: "O(1)",
    arity: 2,
    flags: flags![LOADING, STALE, KEEPS_CACHING],
    handler: Handler::Local(crate::client::help),
    ..CONNECTION
};

pub(crate) const CLIENT_ID: Command = Command {
    name: "id",
    full_name: "client|id",
    summary: "Returns the ID of this connection",
    since: "5.0.0",
    complexity: "O(1)",
    arity: 2,
    flags: flags![NOSCRIPT, LOADING, STALE, KEEPS_CACHING],
    handler: Handler::Local(crate::client::id),
    ..CONNECTION
};

pub(crate) const CLIENT_INFO: Command = Command {
    name: "info",
    full_name: "client|info",
    summary: "Returns information about this connection",
    since: "6.2.0",
    complexity: "O(1)",
    arity: 2,
    flags: flags![NOSCRIPT, LOADING, STALE, KEEPS_CACHING],
    tips: &["nondeterministic_output"],
    handler: Handler::Local(crate::client::info),
    ..CONNECTION
};

pub(crate) const CLIENT_KILL: Command = Command {
    name: "kill",
    full_name: "client|kill",
    summary: "Closes connections",
    since: "2.4.0",
    complexity: "O(N), N: number of connections",
    history: &[
        ("2.8.12", "Filters instead of an address"),
        ("2.8.12", "Filter `ID`"),
        ("3.2.0", "Type `master`"),
        ("5.0.0", "Type `replica`; `slave` remains an alias"),
        ("6.2.0", "Filter `LADDR`"),
    ],
    arity: -3,
    flags: flags![ADMIN, NOSCRIPT, LOADING, STALE, KEEPS_CACHING],
    arguments: &[Argument::one_of(
        "filter",
        &[
            Argument::string("ip:port").deprecated_since("2.8.12"),
            Argument::one_of(
                "new-format",
                &[
                    Argument::integer("client-id").token("ID").since("2.8.12").optional(),
                    Argument::one_of(
                        "normal_master_slave_pubsub",
                        &[
                            Argument::word("normal", "NORMAL"),
                            Argument::word("master", "MASTER").since("3.2.0"),
                            Argument::word("slave", "SLAVE"),
                            Argument::word("replica", "REPLICA").since("5.0.0"),
                            Argument::word("pubsub", "PUBSUB"),
                        ],
                    )
                    .token("TYPE")
                    .since("2.8.12")
                    .optional(),
                    Argument::string("username").token("USER").optional(),
                    Argument::string("ip:port").token("ADDR").optional(),
                    Argument::string("ip:port").token("LADDR").since("6.2.0").optional(),
                    Argument::string("yes/no").token("SKIPME").optional(),
                ],
            )
            .multiple(),
        ],
    )],
    handler: Handler::Local(crate::client::kill),
    ..CONNECTION
};

pub(crate) const CLIENT_LIST: Command = Command {
    name: "list",
    full_name: "client|list",
    summary: "Returns information about connections, one line each",
    since: "2.4.0",
    complexity: "O(N), N: number of connections",
    history: &[
        ("2.8.12", "Field `id`"),
        ("5.0.0", "Option `TYPE`"),
        ("6.0.0", "Field `user`"),
        ("6.2.0", "Fields `argv-mem`, `tot-mem`, `laddr`, `redir`; option `ID`"),
        ("7.0.0", "Fields `resp`, `multi-mem`, `rbs`, `rbp`"),
        ("7.0.3", "Field `ssub`"),
    ],
    arity: -2,
    flags: flags![ADMIN, NOSCRIPT, LOADING, STALE, KEEPS_CACHING],
    tips: &["nondeterministic_output"],
    arguments: &[
        Argument::one_of(
            "normal_master_replica_pubsub",
            &[
                Argument::word("normal", "NORMAL"),
                Argument::word("master", "MASTER"),
                Argument::word("replica", "REPLICA"),
                Argument::word("pubsub", "PUBSUB"),
            ],
        )
        .token("TYPE")
        .since("5.0.0")
        .optional(),
        Argument::block("id", &[Argument::integer("client-id").multiple()]).token("ID").since("6.2.0").optional(),
    ],
    handler: Handler::Local(crate::client::list),
    ..CONNECTION
};

pub(crate) const CLIENT_DURABILITY: Command = Command {
    name: "durability",
    full_name: "client|durability",
    summary: "Chooses when the replies to this connection are sent: after its effects are on disk, or before",
    since: "0.1.0",
    complexity: "O(1)",
    arity: 3,
    flags: flags![NOSCRIPT, LOADING, STALE, KEEPS_CACHING],
    arguments: &[Argument::one_of(
        "durability",
        &[
            Argument::word("always", "ALWAYS"),
            Argument::word("everysec", "EVERYSEC"),
            Argument::word("default", "DEFAULT"),
        ],
    )],
    handler: Handler::Local(crate::client::durability),
    ..CONNECTION
};

pub(crate) const CLIENT_NO_EVICT: Command = Command {
    name: "no-evict",
    full_name: "client|no-evict",
    summary: "Excludes this connection from client eviction",
    since: "7.0.0",
    complexity: "O(1)",
    arity: 3,
    flags: flags![ADMIN, NOSCRIPT, LOADING, STALE, KEEPS_CACHING],
    arguments: &[Argument::one_of("enabled", &[Argument::word("on", "ON"), Argument::word("off", "OFF")])],
    handler: Handler::Local(crate::client::no_evict),
    ..CONNECTION
};

pub(crate) const CLIENT_NO_TOUCH: Command = Command {
    name: "no-touch",
    full_name: "client|no-touch",
    summary: "Stops this connection from updating the access times of keys",
    since: "7.2.0",
    complexity: "O(1)",
    arity: 3,
    flags: flags![NOSCRIPT, LOADING, STALE, KEEPS_CACHING],
    arguments: &[Argument::one_of("enabled", &[Argument::word("on", "ON"), Argument::word("off", "OFF")])],
    handler: Handler::Local(crate::client::no_touch),
    ..CONNECTION
};

pub(crate) const CLIENT_PAUSE: Command = Command {
    name: "pause",
    full_name: "client|pause",
    summary: "Suspends the commands of all clients for some time",
    since: "2.9.50",
    complexity: "O(1)",
    history: &[("6.2.0", "Mode `WRITE`")],
    arity: -3,
    flags: flags![ADMIN, NOSCRIPT, LOADING, STALE, KEEPS_CACHING, ALL_SHARDS_QUEUED],
    arguments: &[
        Argument::integer("timeout"),
        Argument::one_of("mode", &[Argument::word("write", "WRITE"), Argument::word("all", "ALL")])
            .since("6.2.0")
            .optional(),
    ],
    handler: Handler::Local(crate::client::pause),
    ..CONNECTION
};

pub(crate) const CLIENT_REPLY: Command = Command {
    name: "reply",
    full_name: "client|reply",
    summary: "Turns the replies to this connection on or off",
    since: "3.2.0",
    complexity: "O(1)",
    arity: 3,
    flags: flags![NOSCRIPT, LOADING, STALE, KEEPS_CACHING, UNSUBSCRIBES],
    arguments: &[Argument::one_of(
        "on_off_skip",
        &[Argument::word("on", "ON"), Argument::word("off", "OFF"), Argument::word("skip", "SKIP")],
    )],
    handler: Handler::Local(crate::client::reply),
    ..CONNECTION
};

pub(crate) const CLIENT_SETINFO: Command = Command {
    name: "setinfo",
    full_name: "client|setinfo",
    summary: "Sets the name or version of the client library",
    since: "7.2.0",
    complexity: "O(1)",
    arity: 4,
    flags: flags![NOSCRIPT, LOADING, STALE, KEEPS_CACHING],
    tips: &["request_policy:all_nodes", "response_policy:all_succeeded"],
    arguments: &[Argument::one_of(
        "attr",
        &[Argument::string("libname").token("LIB-NAME"), Argument::string("libver").token("LIB-VER")],
    )],
    handler: Handler::Local(crate::client::setinfo),
    ..CONNECTION
};

pub(crate) const CLIENT_SETNAME: Command = Command {
    name: "setname",
    full_name: "client|setname",
    summary: "Sets the name of this connection",
    since: "2.6.9",
    complexity: "O(1)",
    arity: 3,
    flags: flags![NOSCRIPT, LOADING, STALE, KEEPS_CACHING],
    arguments: &[Argument::string("connection-name")],
    handler: Handler::Local(crate::client::setname),
    ..CONNECTION
};

pub(crate) const CLIENT_TRACKING: Command = Command {
    name: "tracking",
    full_name: "client|tracking",
    summary: "Enables or disables client-side caching: invalidation messages for changed keys",
    since: "6.0.0",
    complexity: "O(1); some options take longer",
    arity: -3,
    flags: flags![NOSCRIPT, LOADING, STALE, KEEPS_CACHING],
    arguments: &[
        Argument::one_of("status", &[Argument::word("on", "ON"), Argument::word("off", "OFF")]),
        Argument::integer("client-id").token("REDIRECT").optional(),
        Argument::string("prefix").token("PREFIX").optional().multiple_token(),
        Argument::word("bcast", "BCAST").optional(),
        Argument::word("optin", "OPTIN").optional(),
        Argument::word("optout", "OPTOUT").optional(),
        Argument::word("noloop", "NOLOOP").optional(),
    ],
    handler: Handler::Local(crate::client::tracking),
    ..CONNECTION
};

pub(crate) const CLIENT_TRACKINGINFO: Command = Command {
    name: "trackinginfo",
    full_name: "client|trackinginfo",
    summary: "Returns the tracking state of this connection",
    since: "6.2.0",
    complexity: "O(1)",
    arity: 2,
    flags: flags![NOSCRIPT, LOADING, STALE, KEEPS_CACHING],
    handler: Handler::Local(crate::client::trackinginfo),
    ..CONNECTION
};

pub(crate) const CLIENT_UNBLOCK: Command = Command {
    name: "unblock",
    full_name: "client|unblock",
    summary: "Unblocks a connection that is blocked by a command",
    since: "5.0.0",
    complexity: "O(log N), N: number of connections",
    arity: -3,
    flags: flags![ADMIN, NOSCRIPT, LOADING, STALE, KEEPS_CACHING],
    arguments: &[
        Argument::integer("client-id"),
        Argument::one_of("timeout_error", &[Argument::word("timeout", "TIMEOUT"), Argument::word("error", "ERROR")])
            .optional(),
    ],
    handler: Handler::Local(crate::client::unblock),
    ..CONNECTION
};

pub(crate) const CLIENT_UNPAUSE: Command = Command {
    name: "unpause",
    full_name: "client|unpause",
    summary: "Ends a pause",
    since: "6.2.0",
    complexity: "O(N), N: number of paused clients",
    arity: 2,
    flags: flags![ADMIN, NOSCRIPT, LOADING, STALE, KEEPS_CACHING],
    handler: Handler::Local(crate::client::unpause),
    ..CONNECTION
};

pub(crate) const ECHO: Command = Command {
    name: "echo",
    full_name: "echo",
    summary: "Returns its argument",
    since: "1.0.0",
    complexity: "O(1)",
    arity: 2,
    flags: flags![LOADING, STALE, FAST],
    arguments: &[Argument::string("message")],
    handler: Handler::Local(crate::connection::echo),
    ..CONNECTION
};

pub(crate) const HELLO: Command = Command {
    name: "hello",
    full_name: "hello",
    summary: "Selects the protocol version; optionally authenticates and names the connection",
    since: "6.0.0",
    complexity: "O(1)",
    history: &[("6.2.0", "Without a version, only describes the connection")],
    arity: -1,
    flags: flags![NOSCRIPT, LOADING, STALE, FAST, NO_AUTH, ALLOW_BUSY],
    arguments: &[Argument::block(
        "arguments",
        &[
            Argument::integer("protover"),
            Argument::block("username_password", &[Argument::string("username"), Argument::string("password")])
                .token("AUTH")
                .optional(),
            Argument::string("clientname").token("SETNAME").optional(),
        ],
    )
    .optional()],
    secrets: Some(super::secrets::hello),
    handler: Handler::Local(crate::connection::hello),
    ..CONNECTION
};

pub(crate) const PING: Command = Command {
    name: "ping",
    full_name: "ping",
    summary: "Returns PONG or its argument",
    since: "1.0.0",
    complexity: "O(1)",
    arity: -1,
    flags: flags![FAST, WHILE_SUBSCRIBED, NEEDS_DISK],
    tips: &["request_policy:all_shards", "response_policy:all_succeeded"],
    arguments: &[Argument::string("message").optional()],
    handler: Handler::Local(crate::connection::ping),
    ..CONNECTION
};

pub(crate) const QUIT: Command = Command {
    name: "quit",
    full_name: "quit",
    summary: "Closes the connection",
    since: "1.0.0",
    complexity: "O(1)",
    arity: -1,
    flags: flags![
        NOSCRIPT,
        LOADING,
        STALE,
        FAST,
        NO_AUTH,
        ALLOW_BUSY,
        UNQUEUED,
        DISCARDS,
        WHILE_SUBSCRIBED,
        UNSUBSCRIBES
    ],
    handler: Handler::Local(crate::connection::quit),
    ..CONNECTION
};

pub(crate) const RESET: Command = Command {
    name: "reset",
    full_name: "reset",
    summary: "Resets the state of the connection",
    since: "6.2.0",
    arity: 1,
    handler: Handler::Local(crate::connection::reset),
    ..QUIT
};

pub(crate) const SELECT: Command = Command {
    name: "select",
    full_name: "select",
    summary: "Selects the database of this connection",
    since: "1.0.0",
    complexity: "O(1)",
    arity: 2,
    flags: flags![LOADING, STALE, FAST],
    arguments: &[Argument::integer("index")],
    handler: Handler::Local(crate::connection::select),
    ..CONNECTION
};
