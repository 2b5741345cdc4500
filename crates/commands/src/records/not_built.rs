//! Names of Redis 7.0's commands that Pantala doesn't have yet, so that a client is told so instead of "unknown command".

/// Whether Redis 7.0 has a command of that name (`save`, `cluster|info`; any case) and Pantala doesn't have it yet.
pub fn not_built(name: &[u8]) -> bool {
    let name = name.to_ascii_lowercase();
    NOT_BUILT.binary_search_by(|known| known.as_bytes().cmp(&name)).is_ok()
}

/// Commands and subcommands without a record, sorted by their bytes. A name leaves this list when its record comes.
#[rustfmt::skip] // a name a line would be three screens of nothing
pub(super) static NOT_BUILT: &[&str] = &[
    "acl", "acl|cat", "acl|deluser", "acl|dryrun", "acl|genpass", "acl|getuser", "acl|help", "acl|list",
    "acl|load", "acl|log", "acl|save", "acl|setuser", "acl|users", "acl|whoami", "bgrewriteaof",
    "bgsave",
    "cluster|addslots", "cluster|addslotsrange", "cluster|bumpepoch", "cluster|count-failure-reports",
    "cluster|delslots", "cluster|delslotsrange", "cluster|failover", "cluster|flushslots", "cluster|forget",
    "cluster|meet", "cluster|replicas", "cluster|replicate", "cluster|reset", "cluster|saveconfig",
    "cluster|set-config-epoch", "cluster|setslot", "cluster|slaves", "failover", "lastsave", "module",
    "module|help", "module|list", "module|load", "module|loadex", "module|unload", "psync", "replconf", "replicaof",
    "role",
    "save", "slaveof", "sync", "wait",
];
