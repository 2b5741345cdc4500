//! Permissions of users and their clients. This module logs denied calls, finds subscribers that
//! have lost a permission, and checks calls for a second time when their shards are held.
//! [`crate::acl`] has the rules.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use pantala_resp::{Args, Reply};

use crate::acl::{Catalog, Context, Denied, LogEntry, Reason, Revoked, Rules, Users};
use crate::clients::client::Client;
use crate::clients::listener::{Kind, Listener};
use crate::command::{Command, SessionView};
use crate::shard::executor::{Call, Runner};
use crate::shard::keyspace::Keyspace;

/// Returns a client's line in `CLIENT LIST` at a Unix time in ms, for `ACL LOG`.
pub type Describe = fn(&Client, i64) -> Vec<u8>;

/// A client and its user's rules after a change. `None` if the client has disconnected or the user
/// was deleted.
pub(crate) struct Changed(Option<(Arc<Client>, Arc<Rules>)>);

/// The users of a keyspace, and the function that describes clients in the log of denied calls.
pub(super) struct Permissions {
    users: Users,
    describe: Describe,
}

impl Permissions {
    /// Returns permissions with the default user only.
    pub(super) fn new(catalog: &'static Catalog, describe: Describe) -> Self {
        Permissions { users: Users::new(catalog), describe }
    }
}

impl Keyspace {
    /// Returns the users and their rules.
    #[inline]
    pub fn users(&self) -> &Users {
        &self.permissions.users
    }

    /// Removes all users except the default user, and sets the commands that rules may name. Must
    /// be called before the first client connects.
    pub fn set_catalog(&mut self, catalog: &'static Catalog, describe: Describe) {
        self.permissions = Permissions::new(catalog, describe);
    }

    /// Adds a denied call of a client to the log.
    pub fn note_denied(
        &self,
        client: &Client,
        denied: Denied,
        context: Context,
        command: &Command,
        args: &Args<'_>,
        now_ms: i64,
    ) {
        let (reason, object) = match denied {
            Denied::Command => (Reason::Command, command.shown_name().as_bytes()),
            Denied::Key(index) => (Reason::Key, args.get(index).unwrap_or_default()),
            Denied::Channel(index) => (Reason::Channel, args.get(index).unwrap_or_default()),
        };
        let user_name = client.user_name(|name| name.to_vec());
        self.note(client, (reason, context), object, user_name, now_ms);
    }

    /// Adds a failed login to the log: the command that the client sent, and the name in it.
    pub fn note_login(&self, client: &Client, context: Context, command: &[u8], name: &[u8], now_ms: i64) {
        self.note(client, (Reason::Auth, context), command, name.to_vec(), now_ms);
    }

    fn note(
        &self,
        client: &Client,
        (reason, context): (Reason, Context),
        object: &[u8],
        user_name: Vec<u8>,
        now_ms: i64,
    ) {
        let client_info = (self.permissions.describe)(client, now_ms).trim_ascii_end().to_vec();
        let object = object.to_vec();
        self.users().note(LogEntry { count: 1, reason, context, object, user_name, at_ms: now_ms, client_info });
    }

    /// Returns the clients of a user that have subscriptions which the user's rules no longer
    /// allow.
    pub fn subscribers_without_permission(&self, revoked: &Revoked) -> Vec<Arc<Client>> {
        let is_denied = |kind: Kind, name: &[u8]| !revoked.rules.allows_channel(name, kind == Kind::Pattern);
        let listeners: HashSet<(u32, u64)> = self
            .pubsub()
            .listeners_where(is_denied)
            .into_iter()
            .map(|listener| (listener.worker, listener.connection))
            .collect();
        let is_denied = |client: &Arc<Client>| {
            let Listener { worker, connection } = client.listener();
            client.is_user(&revoked.user) && listeners.contains(&(worker, connection))
        };
        if listeners.is_empty() { Vec::new() } else { self.clients().all().into_iter().filter(is_denied).collect() }
    }

    /// Returns the rules for a second check of a call whose shards are held. Returns `None` if no
    /// rules have changed since the call's first check, or if the call is from a replica's primary.
    #[inline]
    pub(crate) fn changed_rules(&self, session: &SessionView) -> Option<Changed> {
        if session.permit.epoch() == self.users().epoch() { None } else { self.rules_after_change(session) }
    }

    #[cold]
    fn rules_after_change(&self, session: &SessionView) -> Option<Changed> {
        (!session.of_primary).then(|| Changed(self.rules_of(session.client)))
    }

    /// Checks a call against changed rules, and logs a denial. Returns the reason if the call may
    /// not run: the client has disconnected, or the user has lost the permission.
    #[cold]
    pub(crate) fn refuses(&self, changed: &Changed, call: &Call<'_>, context: Context) -> Option<Denied> {
        let Some((client, rules)) = &changed.0 else { return Some(Denied::Command) };
        let denied = rules.check(call.command, &call.args).err()?;
        self.note_denied(client, denied, context, call.command, &call.args, call.now_ms);
        Some(denied)
    }

    /// Checks a queued call of a transaction of `queued` commands like [`Keyspace::refuses`].
    #[cold]
    pub(crate) fn refuses_queued(&self, changed: &Changed, call: &Call<'_>, queued: usize) -> Option<Denied> {
        let Some((client, _)) = &changed.0 else { return Some(Denied::Command) };
        // As in Redis, the log describes the client as it was when it sent `EXEC`.
        let shown = client.queued.swap(queued as i64, Relaxed);
        let denied = self.refuses(changed, call, Context::Multi);
        client.queued.store(shown, Relaxed);
        denied
    }

    /// Returns the client with an ID and its user's current rules. Returns `None` if the client has
    /// disconnected or the user was deleted.
    pub fn rules_of(&self, client: u64) -> Option<(Arc<Client>, Arc<Rules>)> {
        let client = self.clients().find(client)?;
        let user = client.user().unwrap_or_else(|| Arc::clone(self.users().default_user()));
        (!user.is_deleted()).then(|| (client, user.rules()))
    }
}

impl Runner<'_> {
    /// Checks a call's permissions for a second time, with its shards held, if ACL rules have
    /// changed since the first check. If the call is now denied, logs and returns the denial. So a
    /// revoked permission has no effect once the command that revoked it has been answered: if a
    /// client then writes a key, no client without the permission can read the new value.
    #[inline]
    pub(crate) fn refuses(&self, call: &Call<'_>, context: Context) -> Option<Denied> {
        let changed = self.keyspace.changed_rules(&call.session)?;
        self.keyspace.refuses(&changed, call, context)
    }
}

impl Denied {
    /// Writes the error reply to a denied call.
    #[cold]
    pub(crate) fn reply_to(self, call: &Call<'_>, reply: &mut Vec<u8>) {
        Reply::new(reply, call.session.version).error(&self.message(call.command.full_name));
    }
}
