//! The user of a session, and the rules of the user that the session caches ([`crate::acl`]).

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use pantala_resp::Args;

use super::Session;
use crate::acl::{Denied, Rules, User, Users};
use crate::command::Command;

/// A value that is not an epoch of [`Users`].
pub(super) const NEVER: u64 = u64::MAX;

impl Session {
    /// Returns whether the client has logged in, or connected while no login was required.
    #[inline]
    pub fn is_authenticated(&self) -> bool {
        self.authenticated
    }

    /// Sets whether the client is authenticated. If it is not, `otherwise_since_ms` is the Unix
    /// time in ms since which it has been unauthenticated.
    pub(super) fn set_authenticated(&mut self, authenticated: bool, otherwise_since_ms: i64) {
        self.authenticated = authenticated;
        let since_ms = if authenticated { 0 } else { otherwise_since_ms };
        self.client.unauthenticated_since_ms.store(since_ms, Relaxed);
    }

    /// Returns the user.
    pub fn user(&self) -> &Arc<User> {
        &self.user
    }

    /// Logs the client in as a user. The caller must read `epoch` before it looks up the user. A
    /// change after the lookup raises the epoch, so the next command notices the change.
    pub fn log_in(&mut self, user: Arc<User>, epoch: u64) {
        self.set_authenticated(true, 0);
        self.client.set_user(Arc::clone(&user));
        self.rules = user.rules();
        self.user = user;
        self.settle_permissions(epoch);
    }

    /// Logs the client out: the session has the default user, like a new connection.
    pub(super) fn log_out(&mut self, users: &Users, now_ms: i64) {
        // If the client was not authenticated before either, its time without authentication
        // continues and does not restart.
        let since_ms = match self.client.unauthenticated_since_ms.load(Relaxed) {
            0 => now_ms,
            since_ms => since_ms,
        };
        let epoch = users.epoch();
        self.log_in(Arc::clone(users.default_user()), epoch);
        self.set_authenticated(!users.requires_login(), since_ms);
        self.settle_permissions(epoch);
    }

    pub(super) fn settle_permissions(&mut self, epoch: u64) {
        self.user_epoch = epoch;
        let is_unrestricted = self.authenticated && self.rules.is_unrestricted();
        self.unrestricted_epoch = if is_unrestricted { epoch } else { NEVER };
    }

    /// Updates the cached rules. Must be called before permissions are checked. Returns `false` if
    /// the user was deleted. The client may then run no further command.
    #[inline]
    pub fn refresh_rules(&mut self, users: &Users) -> bool {
        let epoch = users.epoch();
        self.user_epoch == epoch || self.follow_changed_rules(epoch)
    }

    #[cold]
    fn follow_changed_rules(&mut self, epoch: u64) -> bool {
        if self.user.is_deleted() {
            self.set_authenticated(false, self.client.created_ms);
            self.unrestricted_epoch = NEVER;
            return false;
        }
        self.rules = self.user.rules();
        self.settle_permissions(epoch);
        true
    }

    /// Returns whether the cached rules are those of this epoch of [`Users`].
    pub fn has_followed(&self, epoch: u64) -> bool {
        self.user_epoch == epoch
    }

    /// Returns whether the client may run every command, in this epoch of [`Users`].
    #[inline]
    pub fn is_unrestricted(&self, epoch: u64) -> bool {
        self.unrestricted_epoch == epoch
    }

    /// Checks by the cached rules whether the user may run a call.
    ///
    /// # Errors
    /// The reason why the call is denied.
    pub fn check(&self, command: &Command, args: &Args<'_>) -> Result<(), Denied> {
        if self.is_unrestricted(self.user_epoch) { Ok(()) } else { self.rules.check(command, args) }
    }

    /// Returns the cached rules, for checks of commands that run on the client's behalf. Returns
    /// `None` if the client may run every command.
    pub fn restricting_rules(&self) -> Option<Arc<Rules>> {
        (!self.is_unrestricted(self.user_epoch)).then(|| Arc::clone(&self.rules))
    }

    /// Returns whether the user may use a channel, or subscribe to a pattern. Uses the user's
    /// current rules instead of the cached ones.
    pub fn allows_channel(&self, name: &[u8], is_pattern: bool) -> bool {
        self.user.rules().allows_channel(name, is_pattern)
    }
}
