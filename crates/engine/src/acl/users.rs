//! All users, and the changes of their rules.
//!
//! All connections of a user share its [`User`]. The user's current rules are behind a lock, which
//! is held only while they are replaced or fetched. The *epoch* is a number that is incremented
//! after each change of any user. So a thread that reads the new epoch also finds the new rules.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use crossbeam::utils::CachePadded;

use super::catalog::Catalog;
use super::file::{Line, line_of, merge_selectors, parse_file};
use super::is_user_name;
use super::log::{AclLog, LogEntry};
use super::rules::Rules;

/// Name of the user of connections that have not logged in.
pub const DEFAULT_USER: &[u8] = b"default";

/// A user and its current rules. See the head of this module.
pub struct User {
    name: Box<[u8]>,
    rules: RwLock<Arc<Rules>>,
    is_deleted: AtomicBool,
}

impl User {
    fn new(name: &[u8], rules: Rules) -> Arc<Self> {
        Arc::new(User { name: name.into(), rules: RwLock::new(Arc::new(rules)), is_deleted: AtomicBool::new(false) })
    }

    /// Returns the name.
    pub fn name(&self) -> &[u8] {
        &self.name
    }

    /// Returns the current rules.
    pub fn rules(&self) -> Arc<Rules> {
        // Each holder replaces one pointer, so a panic leaves no partial change.
        Arc::clone(&self.rules.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn set_rules(&self, rules: Rules) {
        *self.rules.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(rules);
    }

    /// Returns whether the user was deleted. The connections of a deleted user may run no further
    /// command.
    pub fn is_deleted(&self) -> bool {
        self.is_deleted.load(Ordering::Acquire)
    }
}

/// A user whose changed rules may no longer allow all subscriptions of its connections.
pub struct Revoked {
    /// The user.
    pub user: Arc<User>,
    /// The user's new rules.
    pub rules: Arc<Rules>,
}

/// All users. See the head of this module.
pub struct Users {
    /// Number of changes so far. Every command reads this field. It has a cache line of its own, so
    /// that contention for the lock of `log` does not slow down these reads.
    epoch: CachePadded<AtomicU64>,
    catalog: &'static Catalog,
    by_name: Mutex<BTreeMap<Box<[u8]>, Arc<User>>>,
    default: Arc<User>,
    /// Whether `acl-pubsub-default` is `allchannels`.
    channels_by_default: AtomicBool,
    /// Held while a client loads or saves the ACL file.
    files: Mutex<()>,
    log: Mutex<AclLog>,
    /// `acllog-max-len`.
    log_len_max: AtomicU64,
}

impl Users {
    /// Returns a set of users that contains only the default user, unrestricted and without a
    /// password.
    pub fn new(catalog: &'static Catalog) -> Self {
        let default = User::new(DEFAULT_USER, Rules::of_default_user(catalog));
        Users {
            epoch: CachePadded::new(AtomicU64::new(0)),
            catalog,
            by_name: Mutex::new(BTreeMap::from([(DEFAULT_USER.into(), Arc::clone(&default))])),
            default,
            channels_by_default: AtomicBool::new(false),
            files: Mutex::default(),
            log: Mutex::default(),
            log_len_max: AtomicU64::new(128),
        }
    }

    /// Serializes loads and saves of the ACL file, which several threads may run at once. A save
    /// holds the guard while it takes the users' lines and replaces the file. So no save replaces
    /// the file with older lines than those of a save before it. A load holds the guard while it
    /// reads the file and replaces the users. So no load replaces users with those that the file
    /// had before a save.
    pub fn order_files(&self) -> MutexGuard<'_, ()> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of changes so far. Results of checks in an earlier epoch may be
    /// outdated.
    #[inline]
    pub fn epoch(&self) -> u64 {
        // Acquire: pairs with the release of `raise`. A thread that has read an epoch finds rules
        // that are at least as new.
        self.epoch.load(Ordering::Acquire)
    }

    fn raise(&self) {
        // Sequentially consistent: pairs with the fence of `Users::epoch_after`.
        self.epoch.fetch_add(1, Ordering::SeqCst);
    }

    /// Returns the epoch. The caller must have registered a subscription before the call. A thread
    /// that changes rules after this epoch sees the subscription. The thread closes the connection
    /// if the new rules do not allow the subscription.
    pub fn epoch_after(&self) -> u64 {
        std::sync::atomic::fence(Ordering::SeqCst);
        self.epoch()
    }

    /// Returns the commands that rules may name.
    pub fn catalog(&self) -> &'static Catalog {
        self.catalog
    }

    /// Returns a new unrestricted user. The link to a primary runs commands as this user. The list
    /// of users does not contain this user, so no client can log in as it.
    pub fn superuser(&self) -> Arc<User> {
        User::new(b"(superuser)", Rules::of_default_user(self.catalog))
    }

    /// Returns the user of connections that have not logged in.
    pub fn default_user(&self) -> &Arc<User> {
        &self.default
    }

    /// Returns whether new connections must log in before they may run other commands.
    pub fn requires_login(&self) -> bool {
        let rules = self.default.rules();
        !rules.needs_no_password() || !rules.is_on()
    }

    /// Returns the user with a name.
    pub fn find(&self, name: &[u8]) -> Option<Arc<User>> {
        self.lock().get(name).cloned()
    }

    /// Returns all users, sorted by name.
    pub fn all(&self) -> Vec<Arc<User>> {
        self.lock().values().cloned().collect()
    }

    /// Returns the line of each user, as in an ACL file.
    pub fn lines(&self) -> Vec<Vec<u8>> {
        self.all().iter().map(|user| line_of(user.name(), &user.rules())).collect()
    }

    /// Returns the user with this name if it accepts the password.
    pub fn log_in(&self, name: &[u8], password: &[u8]) -> Option<Arc<User>> {
        self.find(name).filter(|user| user.rules().accepts(password))
    }

    /// Sets whether new users and selectors may use all channels (`acl-pubsub-default`).
    pub fn set_channels_by_default(&self, channels_by_default: bool) {
        self.channels_by_default.store(channels_by_default, Ordering::Relaxed);
    }

    fn channels_by_default(&self) -> bool {
        self.channels_by_default.load(Ordering::Relaxed)
    }

    /// Applies all rules to a user, or none if one is invalid. Creates the user if it doesn't
    /// exist. Returns the user if its new rules may no longer allow all subscriptions of its
    /// connections.
    ///
    /// # Errors
    /// The name is invalid, a selector is not closed, or a rule is invalid. Only the first error is
    /// returned, in Redis's words.
    pub fn set(&self, name: &[u8], words: &[&[u8]]) -> Result<Option<Revoked>, Vec<u8>> {
        if !is_user_name(name) {
            return Err(b"Usernames can't contain spaces or null characters".to_vec());
        }
        let merged = merge_selectors(words)
            .map_err(|word| [b"Unmatched parenthesis in acl selector starting at '", word, b"'."].concat())?;
        let mut users = self.lock();
        let old = users.get(name).map(|user| (Arc::clone(user), user.rules()));
        let mut rules = match &old {
            Some((_, rules)) => Rules::clone(rules),
            None => Rules::new(self.catalog, self.channels_by_default()),
        };
        rules.set_channels_by_default(self.channels_by_default());
        for rule in &merged {
            rules.apply(rule).map_err(|error| {
                [b"Error in ACL SETUSER modifier '", rule.as_slice(), b"': ", error.to_string().as_bytes()].concat()
            })?;
        }
        let revoked = match old {
            Some((user, old)) => {
                let keeps_channels = rules.keeps_channels_of(&old);
                user.set_rules(rules);
                (!keeps_channels).then(|| Revoked { rules: user.rules(), user })
            }
            None => {
                users.insert(name.into(), User::new(name, rules));
                None
            }
        };
        self.raise();
        Ok(revoked)
    }

    /// Deletes the users with these names, except the default user. Returns the deleted users.
    pub fn delete(&self, names: &[&[u8]]) -> Vec<Arc<User>> {
        let mut users = self.lock();
        let names = names.iter().filter(|name| **name != DEFAULT_USER);
        let deleted: Vec<_> = names.filter_map(|name| users.remove(*name)).collect();
        self.forget(&deleted);
        deleted
    }

    fn forget(&self, deleted: &[Arc<User>]) {
        for user in deleted {
            user.is_deleted.store(true, Ordering::Release);
        }
        self.raise();
    }

    /// Parses an ACL file with [`parse_file`].
    ///
    /// # Errors
    /// The errors of all lines, in one text.
    pub fn parse_file(&self, text: &[u8], path: &str) -> Result<BTreeMap<Vec<u8>, Rules>, String> {
        parse_file(text, path, self.catalog, self.channels_by_default())
    }

    /// Replaces all users by those of a file. Returns the former users except the default user,
    /// even those that the file defines again. As in Redis, the caller must close the connections
    /// of the returned users. Connections of the default user stay open, and the user's new rules
    /// apply to them.
    pub fn replace(&self, mut new: BTreeMap<Vec<u8>, Rules>) -> Vec<Arc<User>> {
        let mut users = self.lock();
        let rules = new.remove(DEFAULT_USER).unwrap_or_else(|| Rules::of_default_user(self.catalog));
        self.default.set_rules(rules);
        let mut all: BTreeMap<Box<[u8]>, Arc<User>> =
            new.into_iter().map(|(name, rules)| (name.as_slice().into(), User::new(&name, rules))).collect();
        all.insert(DEFAULT_USER.into(), Arc::clone(&self.default));
        let old = std::mem::replace(&mut *users, all);
        let deleted: Vec<_> = old.into_values().filter(|user| !Arc::ptr_eq(user, &self.default)).collect();
        self.forget(&deleted);
        deleted
    }

    /// Creates the users of redis.conf at startup.
    ///
    /// # Errors
    /// A user name is invalid, or a rule is. The error names the invalid rule, its user and the
    /// reason, in Redis's words.
    pub fn add_configured(&self, lines: &[Line]) -> Result<(), String> {
        for line in lines {
            let shown = String::from_utf8_lossy(&line.name);
            if !is_user_name(&line.name) {
                return Err("Spaces not allowed in ACL usernames".to_owned());
            }
            let mut rules = Rules::new(self.catalog, self.channels_by_default());
            if line.name == DEFAULT_USER {
                // As in Redis, the default user already exists, and is reset before its line
                // applies. Unlike new rules, reset rules contain `sanitize-payload`.
                rules.apply(b"reset").map_err(|error| error.to_string())?;
            }
            for rule in &line.rules {
                rules.apply(rule).map_err(|error| {
                    let rule = String::from_utf8_lossy(rule);
                    format!("Error loading ACL rule '{rule}' for the user named '{shown}': {error}")
                })?;
            }
            let mut users = self.lock();
            if line.name == DEFAULT_USER {
                self.default.set_rules(rules);
            } else {
                users.insert(line.name.as_slice().into(), User::new(&line.name, rules));
            }
            self.raise();
        }
        Ok(())
    }

    /// Replaces all passwords of the default user by one (`requirepass`). `None`: any password is
    /// accepted.
    pub fn set_default_password(&self, password: Option<&[u8]>) {
        let _users = self.lock();
        let mut rules = Rules::clone(&self.default.rules());
        rules.set_password(password);
        self.default.set_rules(rules);
        self.raise();
    }

    /// Sets the maximum number of entries in the log (`acllog-max-len`).
    pub fn set_log_len_max(&self, len_max: u64) {
        self.log_len_max.store(len_max, Ordering::Relaxed);
    }

    /// Returns the latest entries of the log, at most `count`.
    pub fn log(&self, count: usize) -> Vec<LogEntry> {
        self.lock_log().latest(count)
    }

    /// Removes all entries of the log.
    pub fn clear_log(&self) {
        self.lock_log().clear();
    }

    /// Adds an event to the log.
    pub(crate) fn note(&self, entry: LogEntry) {
        self.lock_log().add(entry, self.log_len_max.load(Ordering::Relaxed));
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Box<[u8]>, Arc<User>>> {
        // A panic of another holder is ignored: each entry is valid on its own, so the map stays
        // valid.
        self.by_name.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_log(&self) -> MutexGuard<'_, AclLog> {
        // After a panic the log is still valid: at worst it lacks an entry or has one too many.
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
