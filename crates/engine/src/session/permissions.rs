//! The user of a session, and what it caches of the user's rules ([`crate::acl`]).

use std::sync::Arc;

use pantala_resp::Args;

use super::Session;
use crate::acl::{Denied, Rules, User, Users};
use crate::command::Command;

/// No epoch of [`Users`].
pub(super) const NEVER: u64 = u64::MAX;

impl Session {
    /// Returns whether it has logged in, or didn't have to.
    #[inline]
    pub fn is_authenticated(&self) -> bool {
        self.authenticated
    }

    /// Returns its user.
    pub fn user(&self) -> &Arc<User> {
        &self.user
    }

    /// Logs it in. `epoch` was read before the user was looked up, so the next command notices a
    /// change since.
    pub fn log_in(&mut self, user: Arc<User>, epoch: u64) {
        self.authenticated = true;
        self.client.set_user(Arc::clone(&user));
        self.rules = user.rules();
        self.user = user;
        self.settle_permissions(epoch);
    }

    /// Makes it the default user's again, as when it connected.
    pub(super) fn log_out(&mut self, users: &Users) {
        let epoch = users.epoch();
        self.log_in(Arc::clone(users.default_user()), epoch);
        self.authenticated = !users.requires_login();
        self.settle_permissions(epoch);
    }

    pub(super) fn settle_permissions(&mut self, epoch: u64) {
        self.user_epoch = epoch;
        let is_unrestricted = self.authenticated && self.rules.is_unrestricted();
        self.unrestricted_epoch = if is_unrestricted { epoch } else { NEVER };
    }

    /// Updates its cached rules. To be called before its permissions are checked. Returns false if
    /// its user was deleted: it may run nothing more.
    #[inline]
    pub fn follow_rules(&mut self, users: &Users) -> bool {
        let epoch = users.epoch();
        self.user_epoch == epoch || self.follow_changed_rules(epoch)
    }

    #[cold]
    fn follow_changed_rules(&mut self, epoch: u64) -> bool {
        if self.user.is_deleted() {
            self.authenticated = false;
            self.unrestricted_epoch = NEVER;
            return false;
        }
        self.rules = self.user.rules();
        self.settle_permissions(epoch);
        true
    }

    /// Returns whether it knows its user's rules as of this epoch of [`Users`].
    pub fn has_followed(&self, epoch: u64) -> bool {
        self.user_epoch == epoch
    }

    /// Returns whether it may run every command, in this epoch of [`Users`].
    #[inline]
    pub fn is_unrestricted(&self, epoch: u64) -> bool {
        self.unrestricted_epoch == epoch
    }

    /// Checks whether its user may run a call, by the rules that it has followed.
    ///
    /// # Errors
    /// Why it is denied.
    pub fn check(&self, command: &Command, args: &Args<'_>) -> Result<(), Denied> {
        if self.is_unrestricted(self.user_epoch) { Ok(()) } else { self.rules.check(command, args) }
    }

    /// Returns the rules that it has followed, for checks of commands that run on its behalf;
    /// `None`: it may run everything.
    pub fn restricting_rules(&self) -> Option<Arc<Rules>> {
        (!self.is_unrestricted(self.user_epoch)).then(|| Arc::clone(&self.rules))
    }

    /// Returns whether its user may use a channel, or subscribe to a pattern, by the present rules.
    pub fn allows_channel(&self, name: &[u8], is_pattern: bool) -> bool {
        self.user.rules().allows_channel(name, is_pattern)
    }
}
