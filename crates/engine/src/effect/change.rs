//! Changes of keys, and the single place that notifies the *sinks* of changes: blocked clients,
//! watches, tracking and the journal.
//!
//! A value can be written only by functions that receive a [`Change`], as an argument or from a
//! closure: [`Db::change_as`](crate::store::db::Db::change_as),
//! [`Db::set_string`](crate::store::db::Db::set_string) and their variants. Lookups return shared
//! views. So a handler cannot write a key without reporting the change. A [`Change`] always means
//! that something has changed. A closure that may leave the value unchanged returns an
//! `Option<Change>`. A function that always writes takes a [`Change`].
//!
//! # Sinks
//!
//! Every change, including expiry, ends in [`commit`]. The kind of the change determines which
//! sinks are notified:
//!
//! | kind | blocked clients | `WATCH` | tracking | journal | typical source |
//! | --- | --- | --- | --- | --- | --- |
//! | nothing, unnoticed | – | – | – | – | `SADD` of an existing member, another encoding |
//! | value | woken | raised | invalidated | the command | every other write |
//! | metadata | – | – | – | the command | `XACK`, `XGROUP SETID` |
//! | group deleted | woken | – | – | the command | `XGROUP DESTROY` |
//! | expired | woken | raised, if the key had not expired when `WATCH` was called | invalidated | `DEL` or `UNLINK` | a lookup |
//! | expired actively | woken by the caller | not raised; `EXEC` checks for expiry itself | invalidated | `DEL` or `UNLINK` | active expiry |
//! | fields found expired | woken | raised | invalidated | `HDEL`s, added by the caller | a lookup |
//! | fields expired actively | woken by the caller | – | invalidated | `HDEL`s, added by the caller | active expiry |
//! | evicted | woken | raised | invalidated | `DEL` or `UNLINK` | `maxmemory` |
//!
//! A *raised* watch makes the `EXEC` of its client fail. Each kind also makes the published copy of
//! the key outdated ([`super::published`]). After the sinks, the change's events
//! are published: `new` first, if a key was added, and `del` last, if the key was deleted with the
//! last element of its collection.
//!
//! The engine updates the counters of keys and bytes where it writes the dictionary. The journal
//! records the client's command, unless the handler passes other commands to
//! [`Access::propagate`](crate::shard::access::Access::propagate).
//!
//! # What it costs
//!
//! Without an active sink, a change costs three loads of the shard's own state, one load of the
//! settings, and one branch.
//!
//! # Examples
//!
//! A function that reports its change:
//!
//! ```
//! use pantala_engine::access::Key;
//! use pantala_engine::db::{Change, Db, Missing, WrongType};
//! use pantala_engine::notify::{Event, EventClass};
//! use pantala_types::{Collection, Set};
//!
//! fn remove_member(db: &mut Db<'_>, key: &Key<'_>, member: &[u8]) -> Result<bool, WrongType> {
//!     let removed = db.change_as(key, Missing::Skip, |set: &mut Set| {
//!         let is_removed = set.remove(member);
//!         (Change::event(&Event(EventClass::Set, "srem")).when(is_removed), is_removed)
//!     })?;
//!     Ok(removed == Some(true))
//! }
//! ```
//!
//! The result of a lookup cannot be written:
//!
//! ```compile_fail,E0599
//! use pantala_engine::access::Key;
//! use pantala_engine::db::Db;
//!
//! fn overwrite(db: &mut Db<'_>, key: &Key<'_>) {
//!     if let Some(mut entry) = db.write(key) {
//!         entry.set_int(7);
//!     }
//! }
//! ```
//!
//! A function that stores a value must receive a [`Change`]:
//!
//! ```compile_fail,E0061
//! use pantala_engine::access::Key;
//! use pantala_engine::db::{Db, Expire, NewString};
//!
//! fn store(db: &mut Db<'_>, key: &Key<'_>) {
//!     let _ = db.set_string(key, NewString::Int(7), Expire::Clear);
//! }
//! ```
//!
//! [`Change::none`] does not suffice:
//!
//! ```compile_fail,E0308
//! use pantala_engine::access::Key;
//! use pantala_engine::db::{Change, Db, Expire, NewString};
//!
//! fn store(db: &mut Db<'_>, key: &Key<'_>) {
//!     let _ = db.set_string(key, NewString::Int(7), Expire::Clear, Change::none());
//! }
//! ```
//!
//! A closure that changes a collection must return a [`Change`]:
//!
//! ```compile_fail,E0308
//! use pantala_engine::access::Key;
//! use pantala_engine::db::{Db, Missing};
//! use pantala_types::Set;
//!
//! fn remove_member(db: &mut Db<'_>, key: &Key<'_>, member: &[u8]) {
//!     let _ = db.change_as(key, Missing::Skip, |set: &mut Set| set.remove(member));
//! }
//! ```

use std::sync::atomic::Ordering::Relaxed;

use crate::command::Key;
use crate::effect::blocking::KeyObservers;
use crate::events::Events;
use crate::events::notify::{Event, EventClass};

/// Debug builds check that a command that reports no change has indeed changed nothing. They
/// compare only values of at most this size in bytes.
pub(crate) const CHECKED_BYTES_MAX: usize = 1024;

/// The panic message of debug builds if a command that reported no change has changed a value.
pub(crate) const UNREPORTED_CHANGE: &str = "a command changed a value but reported no change";

/// The message if an [`UndeterminedHandler`](crate::command::UndeterminedHandler) has changed the
/// dataset and returned `None`.
pub(crate) const UNSTATED_CHANGE: &str = "reported that it changed nothing, but changed the dataset";

/// The message if a command has changed the dataset although its record declares neither
/// [`Flags::WRITE`](crate::command::Flags::WRITE) nor
/// [`Flags::MAY_REPLICATE`](crate::command::Flags::MAY_REPLICATE).
pub(crate) const UNDECLARED_CHANGE: &str = "changed the dataset, but has neither flag WRITE nor MAY_REPLICATE";

/// A change of a key. See the head of this module.
#[must_use = "a `Change` must be returned to the function that changes the key, or passed to it"]
#[derive(Debug)]
pub struct Change {
    kind: Kind,
    /// Whether the key was added. The event `new` then precedes the other events.
    is_new: bool,
    /// Whether the key was deleted with its last element. The event `del` then follows the other
    /// events.
    is_deleted: bool,
    events: [Option<&'static Event>; 2],
}

/// The reason why a change notifies fewer sinks than [`Change::event`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Silence {
    /// `PFCOUNT` stored its count. Has no event.
    CachedCount,
    /// `DEBUG POPULATE` created the key. Has no event.
    Populated,
    /// The key comes from a file or a primary. Has no event.
    Loaded,
    /// Data that Redis does not count as the key's value: groups and IDs of a stream. The change is
    /// propagated, but raises no watches, wakes no clients and invalidates no cached keys.
    StreamGroups,
    /// `BITFIELD` extended a string by zeros, and none of its writes succeeded. The change has the
    /// sinks of [`Silence::StreamGroups`].
    Extension,
    /// The same value in another encoding. As in Redis, no sink is notified, and replicas receive
    /// nothing.
    Encoding,
}

/// The kind of a change: the rows of the table at the head of this module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Unnoticed,
    Value,
    Metadata,
    GroupDeleted,
    Expired,
    ExpiredActively,
    FieldsFoundExpired,
    FieldsExpiredActively,
    Evicted,
}

/// Event of hash fields that expired.
const HEXPIRED: &Event = &Event(EventClass::Hash, "hexpired");

impl Change {
    #[inline]
    const fn of(kind: Kind) -> Self {
        Change { kind, is_new: false, is_deleted: false, events: [None, None] }
    }

    #[inline]
    const fn with_event(kind: Kind, event: &'static Event) -> Self {
        Change { kind, is_new: false, is_deleted: false, events: [Some(event), None] }
    }

    /// Returns `None`: the value is the same, so no sink is notified. Only functions that take a
    /// closure accept it. For small values, debug builds check that the value is indeed the same.
    #[inline]
    pub const fn none() -> Option<Self> {
        None
    }

    /// Returns a change of the key's value with its event.
    #[inline]
    pub const fn event(event: &'static Event) -> Self {
        Change::with_event(Kind::Value, event)
    }

    /// Returns a change that notifies fewer sinks than [`Change::event`], for the given reason.
    /// [`Change::and`] adds an event, if there is one.
    #[inline]
    pub const fn silent(reason: Silence) -> Self {
        Change::of(match reason {
            Silence::CachedCount | Silence::Populated | Silence::Loaded => Kind::Value,
            Silence::StreamGroups | Silence::Extension => Kind::Metadata,
            Silence::Encoding => Kind::Unnoticed,
        })
    }

    /// Returns the deletion of a stream's group: a change of [`Silence::StreamGroups`] that also
    /// wakes clients blocked on the group.
    #[inline]
    pub const fn group_deleted() -> Self {
        Change::of(Kind::GroupDeleted)
    }

    /// Returns the change of a key that a command has added. Another change of the same command
    /// will report the key's value.
    pub(crate) const fn key_added() -> Self {
        Change::of(Kind::Unnoticed).of_new_key(true)
    }

    /// Returns the change of a key that a lookup found expired.
    pub(crate) const fn expired() -> Self {
        Change::with_event(Kind::Expired, &Event(EventClass::Expired, "expired"))
    }

    /// Returns the change of a key that active expiry found expired.
    pub(crate) const fn expired_actively() -> Self {
        Change::with_event(Kind::ExpiredActively, &Event(EventClass::Expired, "expired"))
    }

    /// Returns the change of a hash whose fields a lookup found expired.
    pub(crate) const fn fields_found_expired() -> Self {
        Change::with_event(Kind::FieldsFoundExpired, HEXPIRED)
    }

    /// Returns the change of a hash whose fields active expiry deleted.
    pub(crate) const fn fields_expired_actively() -> Self {
        Change::with_event(Kind::FieldsExpiredActively, HEXPIRED)
    }

    /// Returns the change of an evicted key.
    pub(crate) const fn evicted() -> Self {
        Change::with_event(Kind::Evicted, &Event(EventClass::Evicted, "evicted"))
    }

    /// Adds an event after the existing ones.
    ///
    /// # Panics
    /// If the change has two events already.
    #[inline]
    pub const fn and(mut self, event: &'static Event) -> Self {
        let free = if self.events[0].is_none() { 0 } else { 1 };
        assert!(self.events[free].is_none(), "a change with more than two events");
        self.events[free] = Some(event);
        self
    }

    /// Returns this change if `is_made` is true. Otherwise returns [`Change::none`].
    #[inline]
    pub const fn when(self, is_made: bool) -> Option<Self> {
        if is_made { Some(self) } else { None }
    }

    /// Marks the change as one that added the key, if `is_new` is true.
    #[inline]
    pub(crate) const fn of_new_key(mut self, is_new: bool) -> Self {
        self.is_new |= is_new;
        self
    }

    /// Marks the change as one that deleted the key with its last element, if `is_deleted` is true.
    #[inline]
    pub(crate) const fn of_deleted_key(mut self, is_deleted: bool) -> Self {
        self.is_deleted |= is_deleted;
        self
    }

    /// Returns whether the change counts in `rdb_changes_since_last_save`. As in Redis, expiry and
    /// eviction do not count.
    #[inline]
    pub(crate) const fn is_saved(&self) -> bool {
        matches!(self.kind, Kind::Value | Kind::Metadata | Kind::GroupDeleted)
    }

    /// Returns the names of the change's events, in order.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn event_names(&self) -> Vec<&'static str> {
        let own = self.events.iter().flatten().map(|event| event.1);
        let new = self.is_new.then_some("new");
        new.into_iter().chain(own).chain(self.is_deleted.then_some("del")).collect()
    }

    /// Returns the classes of the change's events.
    #[inline]
    fn classes(&self) -> u32 {
        let class_of = |event: Option<&Event>| event.map_or(0, |Event(class, _)| *class as u32);
        let new = if self.is_new { EventClass::New as u32 } else { 0 };
        let deleted = if self.is_deleted { EventClass::Generic as u32 } else { 0 };
        class_of(self.events[0]) | class_of(self.events[1]) | new | deleted
    }
}

/// Commits a change of a key whose shard is held: notifies the sinks that the change concerns.
#[inline(always)]
pub(crate) fn commit(hub: &Events, observers: &mut KeyObservers, db: u32, key: &Key<'_>, change: Change) {
    if has_sink(hub, observers, &change) {
        commit_to_sinks(hub, observers, db, key, change);
    }
}

/// Returns whether a change concerns any sink.
#[inline(always)]
pub(crate) fn has_sink(hub: &Events, observers: &KeyObservers, change: &Change) -> bool {
    !observers.is_quiet() | hub.tuning.has_observer(change.classes())
}

#[cold]
fn commit_to_sinks(
    hub: &Events,
    observers: &mut KeyObservers,
    db: u32,
    key: &Key<'_>,
    Change { kind, is_new, is_deleted, events }: Change,
) {
    let tuning = &hub.tuning;
    let is_mark = matches!(kind, Kind::Value | Kind::Metadata | Kind::GroupDeleted);
    let classes = Change { kind, is_new, is_deleted, events }.classes();
    if is_mark && observers.is_quiet() && !tuning.has_observer_beside_journal(classes) {
        // At most the journal needs the change. On a primary with replicas, this is the path of
        // most writes.
        observers.pending.is_changed |= tuning.is_journaled();
        return;
    }
    let (bytes, hash) = (key.bytes, key.place.hash);
    let (broadcasts, is_journaled) = (tuning.broadcasts(), tuning.is_journaled());
    observers.watches.published().outdate(db, hash, bytes);
    match kind {
        Kind::Unnoticed => {}
        Kind::Value => {
            observers.note(db, bytes);
            observers.watches.changed(db, bytes);
            observers.tracked.changed(hash, bytes, broadcasts);
            observers.pending.is_changed |= is_journaled;
        }
        Kind::Metadata => observers.pending.is_changed |= is_journaled,
        Kind::GroupDeleted => {
            observers.note(db, bytes);
            observers.pending.is_changed |= is_journaled;
        }
        Kind::Expired => {
            observers.note(db, bytes);
            observers.watches.expired(db, bytes);
            observers.tracked.expired(hash, bytes, broadcasts);
        }
        Kind::ExpiredActively | Kind::FieldsExpiredActively => observers.tracked.expired(hash, bytes, broadcasts),
        Kind::FieldsFoundExpired | Kind::Evicted => {
            observers.note(db, bytes);
            observers.watches.changed(db, bytes);
            observers.tracked.changed(hash, bytes, broadcasts);
        }
    }
    let lazy = match kind {
        Kind::Expired | Kind::ExpiredActively => Some(&tuning.lazyfree_lazy_expire),
        Kind::Evicted => Some(&tuning.lazyfree_lazy_eviction),
        _ => None,
    };
    if let Some(lazy) = lazy.filter(|_| is_journaled) {
        observers.pending.delete(db, bytes, lazy.load(Relaxed));
    }
    if is_new {
        hub.notify(EventClass::New, "new", db, bytes);
    }
    for &Event(class, name) in events.into_iter().flatten() {
        hub.notify(class, name, db, bytes);
    }
    if is_deleted {
        hub.notify(EventClass::Generic, "del", db, bytes);
    }
}
