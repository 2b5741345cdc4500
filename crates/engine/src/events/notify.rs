//! Keyspace notifications: `notify-keyspace-events`, the classes of events, and their publication.
//!
//! As in Redis, an event is published on up to two channels: `__keyspace@db__:key` with the event's
//! name, and `__keyevent@db__:event` with the key. The writer of a key publishes while it holds the
//! key's shard, and mailboxes keep order. So every subscriber receives the events of a key in the
//! order of its changes.
//!
//! An event of a disabled class costs one load and one predictable branch.

use std::cell::RefCell;
use std::sync::atomic::Ordering::Relaxed;

use crate::events::Events;
use crate::events::pubsub::Kind;
use crate::tuning::{KEPT, Tuning};

/// The class of an event: a bit of [`EventClasses`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum EventClass {
    /// `g`: commands of any type (DEL, EXPIRE, RENAME …).
    Generic = 1,
    /// `$`: commands on strings.
    String = 1 << 1,
    /// `l`: commands on lists.
    List = 1 << 2,
    /// `s`: commands on sets.
    Set = 1 << 3,
    /// `h`: commands on hashes.
    Hash = 1 << 4,
    /// `z`: commands on sorted sets.
    SortedSet = 1 << 5,
    /// `x`: a key expired.
    Expired = 1 << 6,
    /// `e`: a key was evicted.
    Evicted = 1 << 7,
    /// `t`: commands on streams.
    Stream = 1 << 8,
    /// `d`: events of modules. Never published.
    Module = 1 << 9,
    /// `n`: a new key.
    New = 1 << 10,
    /// `m`: a lookup found no key.
    Miss = 1 << 11,
}

/// An event of a key: its class, and its name in Redis's spelling.
#[derive(Debug, PartialEq, Eq)]
pub struct Event(pub EventClass, pub &'static str);

/// The value of `notify-keyspace-events`: which events are published, and on which channels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EventClasses(u32);

/// `K`: events are published on the key's channel.
const KEYSPACE: u32 = 1 << 12;
/// `E`: events are published on the event's channel.
const KEYEVENT: u32 = 1 << 13;
/// `A`: all classes up to `d`.
const ALL: u32 = EventClass::New as u32 - 1;

/// Letters and bits in the order in which Redis writes them. The first [`HIDDEN_BY_ALL`] letters
/// are not written together with `A`.
const LETTERS: [(u8, u32); 14] = [
    (b'g', EventClass::Generic as u32),
    (b'$', EventClass::String as u32),
    (b'l', EventClass::List as u32),
    (b's', EventClass::Set as u32),
    (b'h', EventClass::Hash as u32),
    (b'z', EventClass::SortedSet as u32),
    (b'x', EventClass::Expired as u32),
    (b'e', EventClass::Evicted as u32),
    (b't', EventClass::Stream as u32),
    (b'd', EventClass::Module as u32),
    (b'n', EventClass::New as u32),
    (b'K', KEYSPACE),
    (b'E', KEYEVENT),
    (b'm', EventClass::Miss as u32),
];
/// Number of [`LETTERS`], from the start, that are not written together with `A`.
const HIDDEN_BY_ALL: usize = 11;

impl EventClasses {
    /// Returns the classes of these letters, or `None` if a letter is unknown.
    pub fn parse(letters: &[u8]) -> Option<Self> {
        letters.iter().try_fold(EventClasses(0), |EventClasses(bits), letter| {
            let bit = match letter {
                b'A' => ALL,
                letter => LETTERS.iter().find(|(known, _)| known == letter)?.1,
            };
            Some(EventClasses(bits | bit))
        })
    }

    /// Returns the letters as `CONFIG GET` writes them. As in Redis, `n` is not written together
    /// with `A`.
    pub fn letters(self) -> String {
        let has_all = self.0 & ALL == ALL;
        let written = &LETTERS[if has_all { HIDDEN_BY_ALL } else { 0 }..];
        let letters = written.iter().filter(|(_, bit)| self.0 & bit != 0).map(|(letter, _)| char::from(*letter));
        has_all.then_some('A').into_iter().chain(letters).collect()
    }

    /// Returns the classes as a number, which [`EventClasses::from_bits`] converts back.
    pub fn bits(self) -> u32 {
        self.0
    }

    /// Returns the classes for a number from [`EventClasses::bits`].
    pub fn from_bits(bits: u32) -> Self {
        EventClasses(bits)
    }
}

impl Tuning {
    /// Sets which events are published.
    pub fn set_events(&self, classes: EventClasses) {
        // If neither kind of channel (`K`, `E`) is enabled, nothing is published. All bits are then
        // cleared, so that a test of the class's bit suffices.
        let has_sink = classes.0 & (KEYSPACE | KEYEVENT) != 0;
        let observed = if has_sink { classes.0 } else { 0 };
        let _ = self.events.fetch_update(Relaxed, Relaxed, |events| Some(events & KEPT | observed));
    }
}

thread_local! {
    /// Deferred events, while [`defer_events`] runs on this thread; otherwise `None`. They are
    /// stored by thread and not in the shards (where pending invalidations are), because the code
    /// that raises an event often has no reference to a shard.
    static DEFERRED: RefCell<Option<Vec<DeferredEvent>>> = const { RefCell::new(None) };
}

/// An event that is deferred because the change that raised it may be rolled back (`store::undo`).
#[derive(Debug)]
pub struct DeferredEvent {
    /// Value of `notify-keyspace-events` when the event was raised.
    wanted: u32,
    class: u32,
    event: Box<str>,
    pub(crate) db: u32,
    pub(crate) key: Box<[u8]>,
}

impl DeferredEvent {
    /// Returns the memory usage of the event and its place in a list, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        size_of::<Self>() + self.event.len() + self.key.len()
    }

    /// Returns whether the event is an expiry, which a rollback does not revert.
    pub(crate) fn is_expiry(&self) -> bool {
        self.class == EventClass::Expired as u32
    }

    /// Returns whether the event reports a lookup that found no key. Such an event does not come
    /// from a change that a rollback reverts. A rollback drops it nevertheless, because the rerun
    /// of the script raises it again.
    pub(crate) fn is_miss(&self) -> bool {
        self.class == EventClass::Miss as u32
    }
}

/// Calls `run`, and defers the events that `run` raises on this thread. Returns the result and
/// these events, which have not been published.
pub fn defer_events<R>(run: impl FnOnce() -> R) -> (R, Vec<DeferredEvent>) {
    DEFERRED.set(Some(Vec::new()));
    let result = run();
    (result, DEFERRED.take().unwrap_or_default())
}

/// Returns whether events of this thread are being deferred.
pub(crate) fn are_events_deferred() -> bool {
    DEFERRED.with_borrow(Option::is_some)
}

impl Events {
    /// Publishes an event of a key if its class is enabled. The caller must hold the key's shard.
    /// Called by `effect::change`, and for misses, which are not changes.
    #[inline]
    pub(crate) fn notify(&self, class: EventClass, event: &str, db: u32, key: &[u8]) {
        // Relaxed: the delivery of the reply to `CONFIG SET` orders the new value before the
        // client's later commands.
        let wanted = self.tuning.events.load(Relaxed);
        if wanted & class as u32 != 0 {
            self.defer_or_publish(wanted, class, event, db, key);
        }
    }

    #[cold]
    fn defer_or_publish(&self, wanted: u32, class: EventClass, event: &str, db: u32, key: &[u8]) {
        let is_deferred = DEFERRED.with_borrow_mut(|deferred| {
            let Some(deferred) = deferred else { return false };
            deferred.push(DeferredEvent { wanted, class: class as u32, event: event.into(), db, key: key.into() });
            true
        });
        if !is_deferred {
            self.publish_event(wanted, event, db, key);
        }
    }

    /// Publishes a deferred event. The caller must hold the key's shard, as when the event was
    /// raised.
    pub(crate) fn publish_deferred(&self, deferred: &DeferredEvent) {
        self.publish_event(deferred.wanted, &deferred.event, deferred.db, &deferred.key);
    }

    fn publish_event(&self, wanted: u32, event: &str, db: u32, key: &[u8]) {
        if wanted & KEYSPACE != 0 {
            let channel = [format!("__keyspace@{db}__:").as_bytes(), key].concat();
            self.pubsub().publish(self, Kind::Channel, &channel, event.as_bytes());
        }
        if wanted & KEYEVENT != 0 {
            let channel = format!("__keyevent@{db}__:{event}");
            self.pubsub().publish(self, Kind::Channel, channel.as_bytes(), key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_are_written_as_redis_writes_them() {
        for (given, written) in [
            ("", ""),
            ("KE$n", "$nKE"),
            ("mKEx", "xKEm"),
            ("gxE", "gxE"),
            ("AKE", "AKE"),
            ("An", "A"),
            ("AKEmn", "AKEm"),
            ("g$lshzxetdnKEm", "AKEm"),
        ] {
            assert_eq!(EventClasses::parse(given.as_bytes()).map(EventClasses::letters).as_deref(), Some(written));
        }
        assert_eq!(EventClasses::parse(b"Kq"), None);
        let all = EventClasses::parse(b"An").expect("known letters");
        assert_eq!(EventClasses::from_bits(all.bits()), all);
        assert_ne!(EventClasses::parse(b"A"), Some(all));
    }

    #[test]
    fn without_a_channel_no_event_is_published() {
        let tuning = Tuning::new();
        for (letters, is_on) in [("A", false), ("K", true), ("AK", true), ("xE", true), ("", false)] {
            tuning.set_events(EventClasses::parse(letters.as_bytes()).expect("known letters"));
            assert_eq!(tuning.events.load(Relaxed) != 0, is_on, "{letters}");
        }
    }
}
