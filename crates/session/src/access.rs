//! Which commands a connection may run: authentication, protected commands, and what those who listen may send.

use std::borrow::Cow;
use std::sync::atomic::Ordering::Relaxed;

use pantala_engine::client::{Host, Session};
use pantala_engine::command::{Command, Flags, Handler, TransactionPart};
use pantala_engine::tuning::Tuning;

/// The answer to `DEBUG` where `enable-debug-command` doesn't allow it: all protected commands are `DEBUG`, or `SYNC`.
const DEBUG_NOT_ALLOWED: &str = "ERR DEBUG command not allowed. If the enable-debug-command option is set to \"local\", you can run it from a local connection, otherwise you need to set this option in the configuration file, and then restart the server.";

/// The answer to a command before authentication.
pub const NO_AUTH: &str = "NOAUTH Authentication required.";

/// Whether a client may not run every command: then each is looked at by [`forbidden`].
#[inline]
pub fn is_restricted(session: &Session) -> bool {
    !session.authenticated || session.subscriptions.is_some() || session.monitors
}

/// Why a client may not run a command.
#[cold]
pub fn forbidden(command: &Command, session: &Session, host: &dyn Host) -> Option<Cow<'static, str>> {
    if command.flags.contains(Flags::PROTECTED) && !host.debug_allowed(&session.client) {
        return Some(DEBUG_NOT_ALLOWED.into());
    }
    if !passes_password(command, session, host) {
        return Some(NO_AUTH.into());
    }
    if session.monitors && command.flags.intersects(Flags::WRITE | Flags::READONLY | Flags::MAY_REPLICATE) {
        return Some("ERR Replica can't interact with the keyspace".into());
    }
    (session.only_listens() && !command.flags.contains(Flags::WHILE_SUBSCRIBED)).then(|| {
        let name = command.shown_name();
        format!(
            "ERR Can't execute '{name}': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed in this context"
        )
        .into()
    })
}

/// Whether a client has given its password, as far as this command wants one.
pub fn passes_password(command: &Command, session: &Session, host: &dyn Host) -> bool {
    // A password that was removed since locks nobody out any more.
    session.authenticated || command.flags.contains(Flags::NO_AUTH) || !host.requires_password()
}

/// Returns whether `CLIENT PAUSE` holds this command back. `flags` finds those of the call.
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
    let until = tuning.paused_until_ms.load(Relaxed);
    until > now_ms && (tuning.pause_all.load(Relaxed) || flags.intersects(Flags::WRITE | Flags::MAY_REPLICATE))
}
