//! Decides whether a connection may run a command. No other module makes this decision. The
//! decision depends on authentication, the user's permissions, protected commands, `CLIENT PAUSE`,
//! and the restrictions on subscribers. The *owner* (the thread that drives the connection) calls
//! this module before it runs or queues a command.

use std::borrow::Cow;
use std::sync::atomic::Ordering::Relaxed;

use pantala_engine::acl::{Denied, Users};
use pantala_engine::client::{Host, Session};
use pantala_engine::command::{Command, Flags, Handler, TransactionPart};
use pantala_engine::tuning::Tuning;
use pantala_engine::tuning::refusal::Refusals;
use pantala_resp::Args;

/// The error for `DEBUG` if `enable-debug-command` doesn't allow it.
const DEBUG_NOT_ALLOWED: &str = "ERR DEBUG command not allowed. If the enable-debug-command option is set to \"local\", you can run it from a local connection, otherwise you need to set this option in the configuration file, and then restart the server.";

/// The error for `MODULE LOAD`, `LOADEX` and `UNLOAD` if `enable-module-command` doesn't allow
/// them.
const MODULE_NOT_ALLOWED: &str = "ERR MODULE command not allowed. If the enable-module-command option is set to \"local\", you can run it from a local connection, otherwise you need to set this option in the configuration file, and then restart the server.";

/// The error of a replica that serves no stale data.
pub const MASTER_DOWN: &str = "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.";

/// The error for a write while there are too few good replicas.
const NO_REPLICAS: &str = "NOREPLICAS Not enough good replicas to write.";

/// The error for a command before authentication.
pub const NO_AUTH: &str = "NOAUTH Authentication required.";

/// Returns whether the client's commands are restricted. If so, the owner must check each command
/// with [`forbidden`].
#[inline]
pub fn is_restricted(session: &Session, users: &Users) -> bool {
    !session.is_unrestricted(users.epoch()) || session.subscriptions.is_some() || session.observes
}

/// The reason why a client may not run a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forbidden {
    /// The error, with its code.
    pub message: Cow<'static, str>,
    /// The permission that the user's rules deny, if that is the reason.
    pub denied: Option<Denied>,
}

impl From<&'static str> for Forbidden {
    fn from(message: &'static str) -> Self {
        Forbidden { message: message.into(), denied: None }
    }
}

/// Returns why a client may not run a command, or `None` if it may. [`refused`] and
/// [`held_by_pause`] check further reasons.
#[cold]
pub fn forbidden(
    command: &Command,
    args: &Args<'_>,
    session: &Session,
    users: &Users,
    host: &dyn Host,
) -> Option<Forbidden> {
    if command.flags.contains(Flags::PROTECTED)
        && let Some(message) = not_allowed(command, session, host)
    {
        return Some(message.into());
    }
    if !passes_password(command, session, users) {
        return Some(NO_AUTH.into());
    }
    // As in Redis, the permissions of a command that can't be queued aren't checked in an open
    // transaction. The client instead gets the error for a command that a transaction can't
    // contain.
    let is_refused_anyway = session.transaction.is_some()
        && command.flags.contains(Flags::NO_MULTI)
        && !command.flags.contains(Flags::UNQUEUED);
    if !is_refused_anyway && let Err(denied) = session.check(command, args) {
        return Some(Forbidden { message: denied.message(command.shown_name()).into(), denied: Some(denied) });
    }
    if session.observes && command.flags.intersects(Flags::WRITE | Flags::READONLY | Flags::MAY_REPLICATE) {
        return Some("ERR Replica can't interact with the keyspace".into());
    }
    (session.only_listens() && !command.flags.contains(Flags::WHILE_SUBSCRIBED)).then(|| {
        let name = command.shown_name();
        let message = format!(
            "ERR Can't execute '{name}': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed in this context"
        );
        Forbidden { message: message.into(), denied: None }
    })
}

/// Returns why the settings forbid a protected command (`DEBUG`, `MODULE LOAD`), or `None` if they
/// allow it.
fn not_allowed(command: &Command, session: &Session, host: &dyn Host) -> Option<&'static str> {
    if command.flags.contains(Flags::DEBUGS) {
        (!host.debug_allowed(&session.client)).then_some(DEBUG_NOT_ALLOWED)
    } else {
        (!host.modules_allowed(&session.client)).then_some(MODULE_NOT_ALLOWED)
    }
}

/// Returns whether a command may run as far as authentication is concerned: the client has
/// authenticated, or the command doesn't require it.
pub fn passes_password(command: &Command, session: &Session, users: &Users) -> bool {
    command.flags.contains(Flags::NO_AUTH) || !must_log_in(session, users)
}

/// Returns whether a client must authenticate and has not.
pub fn must_log_in(session: &Session, users: &Users) -> bool {
    // `requires_login` is checked too, because the default user's password may have been removed
    // since the client connected. Then no connection needs to authenticate any more.
    !session.is_authenticated() && users.requires_login()
}

/// The error of a write on a read-only replica.
const READ_ONLY: &str = "READONLY You can't write against a read only replica.";

/// The error of a write after a failed snapshot.
const UNSAVED: &str = "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk. \
    Commands that may modify the data set are disabled, because this instance is configured to report errors during \
    writes if RDB snapshotting fails (stop-writes-on-bgsave-error option). Please check the Redis logs for details about \
    the RDB error.";

/// The errors of a write while the append-only file can't be written.
const DISK_FULL: &str = "MISCONF Errors writing to the AOF file: No space left on device";
const DISK_ERROR: &str = "MISCONF Errors writing to the AOF file: Input/output error";

/// Returns why the server currently rejects a command, or `None` if it doesn't. Checks the reasons
/// in Redis's order. Commands from the server's primary are never rejected. `flags` returns the
/// flags of the call.
pub fn refused(
    refusals: Refusals,
    session: &Session,
    command: &Command,
    flags: impl FnOnce() -> Flags,
) -> Option<&'static str> {
    if session.primary.is_some() {
        return None;
    }
    let transaction =
        session.transaction.as_ref().filter(|_| matches!(command.handler, Handler::Transaction(TransactionPart::Exec)));
    let flags = transaction.map_or_else(flags, |transaction| command.flags | transaction.flags());
    let lacks = |flag: Flags| {
        !flags.contains(flag) || transaction.is_some_and(|transaction| !transaction.common_flags().contains(flag))
    };
    let is_stored = flags.contains(Flags::WRITE);
    let needs_disk = is_stored || command.flags.contains(Flags::NEEDS_DISK);
    if let Some(why) = misconfigured(refusals).filter(|_| needs_disk) {
        Some(why)
    } else if is_stored && refusals.contains(Refusals::NO_REPLICAS) {
        Some(NO_REPLICAS)
    } else if refusals.contains(Refusals::READ_ONLY) && flags.contains(Flags::WRITE) {
        Some(READ_ONLY)
    } else if refusals.contains(Refusals::STALE) && lacks(Flags::STALE) {
        Some(MASTER_DOWN)
    } else if refusals.contains(Refusals::LOADING)
        && ((lacks(Flags::LOADING) && !ends_script(command)) || needs_shards(command))
    {
        Some("LOADING Redis is loading the dataset in memory")
    } else {
        None
    }
}

/// Returns whether a command may be needed to end a running script. Such a command must run even
/// during a load, because the load may be waiting for the script. (In Redis, no script runs during
/// a load.) Three of these commands lack [`Flags::LOADING`]: `SCRIPT KILL`, `FUNCTION KILL` and
/// `FUNCTION STATS`.
fn ends_script(command: &Command) -> bool {
    command.flags.contains(Flags::ALLOW_BUSY)
}

/// Returns whether a command needs shards, although Redis runs it during a load (`WATCH`). The load
/// holds the shards, so the command would have to wait until the load has ended.
fn needs_shards(command: &Command) -> bool {
    matches!(command.handler, Handler::Transaction(TransactionPart::Watch))
}

/// Returns the error for a write while data can't be saved to disk.
fn misconfigured(refusals: Refusals) -> Option<&'static str> {
    if refusals.contains(Refusals::UNSAVED) {
        Some(UNSAVED)
    } else if refusals.contains(Refusals::DISK_FULL) {
        Some(DISK_FULL)
    } else {
        refusals.contains(Refusals::DISK_ERROR).then_some(DISK_ERROR)
    }
}

/// Returns why the server currently rejects a command that a script calls, or `None` if it doesn't.
/// [`is_too_stale_in_script`] is checked earlier. For a client's command, see [`refused`].
pub fn refused_in_script(refusals: Refusals, command: &Command) -> Option<&'static str> {
    let is_write = command.flags.contains(Flags::WRITE);
    if is_write && refusals.contains(Refusals::READ_ONLY) {
        Some(READ_ONLY)
    } else if let Some(why) = misconfigured(refusals).filter(|_| is_write) {
        Some(why)
    } else if is_write && refusals.contains(Refusals::NO_REPLICAS) {
        Some(NO_REPLICAS)
    } else {
        None
    }
}

/// Returns whether the server rejects a command that a script calls, because its data may be stale.
pub fn is_too_stale_in_script(refusals: Refusals, command: &Command) -> bool {
    refusals.contains(Refusals::STALE) && !command.flags.contains(Flags::STALE)
}

/// Returns whether a pause delays this command. `flags` returns the flags of the call.
///
/// Connections of replicas are never paused. `CLIENT PAUSE` also delays the commands that this
/// server receives from its primary, as in Redis. A failover, a promotion or a shutdown causes a
/// pause too. Such a pause delays only writes of clients, not commands from the primary. The pause
/// of a promotion lasts until the link to the primary has ended.
pub fn held_by_pause(
    tuning: &Tuning,
    command: &Command,
    session: &Session,
    now_ms: i64,
    flags: impl FnOnce() -> Flags,
) -> bool {
    let flags = match (&session.transaction, command.handler) {
        (Some(transaction), Handler::Transaction(TransactionPart::Exec)) => command.flags | transaction.flags(),
        _ => flags(),
    };
    if !tuning.is_paused(now_ms) || session.follows.is_some() {
        return false;
    }
    let by_clients = tuning.is_paused_by_clients(now_ms);
    if by_clients && tuning.pause_all.load(Relaxed) {
        return true;
    }
    flags.intersects(Flags::WRITE | Flags::MAY_REPLICATE) && (by_clients || session.primary.is_none())
}
