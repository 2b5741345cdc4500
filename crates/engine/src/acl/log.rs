//! `ACL LOG`: denied calls and failed logins, the latest first. Similar events share an entry.

use std::collections::VecDeque;

/// A new event is added to an existing entry of similar events, if there is one among this many
/// latest entries, as in Redis.
const SEARCHED_ENTRIES_MAX: usize = 10;

/// A similar event is added to an entry if at most this time in ms has passed since the entry's
/// latest event.
const SAME_MS_MAX: i64 = 60_000;

/// The kind of the denied object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// A command.
    Command,
    /// A key.
    Key,
    /// A channel.
    Channel,
    /// A login.
    Auth,
}

impl Reason {
    /// Returns the name in the log.
    pub fn name(self) -> &'static str {
        match self {
            Reason::Command => "command",
            Reason::Key => "key",
            Reason::Channel => "channel",
            Reason::Auth => "auth",
        }
    }
}

/// The context of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Context {
    /// A client sent the call.
    TopLevel,
    /// A transaction contains the call.
    Multi,
    /// A script made the call.
    Lua,
}

impl Context {
    /// Returns the name in the log.
    pub fn name(self) -> &'static str {
        match self {
            Context::TopLevel => "toplevel",
            Context::Multi => "multi",
            Context::Lua => "lua",
        }
    }
}

/// An entry of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogEntry {
    /// Number of similar events.
    pub count: u64,
    /// The kind of the denied object.
    pub reason: Reason,
    /// The context of the call.
    pub context: Context,
    /// The command, key or channel. For a login, the command that the client sent.
    pub object: Vec<u8>,
    /// The user. For a login, the name that the client sent.
    pub user_name: Vec<u8>,
    /// Time of the latest event, Unix time in ms.
    pub at_ms: i64,
    /// The client's line in `CLIENT LIST` at that time.
    pub client_info: Vec<u8>,
}

impl LogEntry {
    fn is_like(&self, other: &LogEntry) -> bool {
        (self.reason, self.context) == (other.reason, other.context)
            && (self.at_ms - other.at_ms).abs() <= SAME_MS_MAX
            && self.object == other.object
            && self.user_name == other.user_name
    }
}

/// The log of denied calls and failed logins. See the head of this module.
#[derive(Default)]
pub(super) struct AclLog {
    entries: VecDeque<LogEntry>,
}

impl AclLog {
    /// Adds an event to the entry of similar events. If there is no such entry, adds a new one, and
    /// then keeps only the latest `len_max` entries.
    pub(super) fn add(&mut self, entry: LogEntry, len_max: u64) {
        let alike = self.entries.iter().take(SEARCHED_ENTRIES_MAX).position(|known| known.is_like(&entry));
        let count = alike.and_then(|at| self.entries.remove(at)).map_or(0, |known| known.count);
        self.entries.push_front(LogEntry { count: count + 1, ..entry });
        if count == 0 {
            self.entries.truncate(usize::try_from(len_max).unwrap_or(usize::MAX));
        }
    }

    /// Returns the latest entries, at most `count`.
    pub(super) fn latest(&self, count: usize) -> Vec<LogEntry> {
        self.entries.iter().take(count).cloned().collect()
    }

    /// Removes all entries.
    pub(super) fn clear(&mut self) {
        self.entries.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(object: &str, at_ms: i64) -> LogEntry {
        LogEntry {
            count: 1,
            reason: Reason::Key,
            context: Context::TopLevel,
            object: object.into(),
            user_name: b"alice".to_vec(),
            at_ms,
            client_info: format!("at {at_ms}").into_bytes(),
        }
    }

    fn shown(log: &AclLog) -> Vec<(String, u64, i64)> {
        let show = |entry: LogEntry| (String::from_utf8_lossy(&entry.object).into_owned(), entry.count, entry.at_ms);
        log.latest(usize::MAX).into_iter().map(show).collect()
    }

    #[test]
    fn similar_events_within_a_minute_share_an_entry() {
        let mut log = AclLog::default();
        log.add(event("a", 0), 128);
        log.add(event("b", 1), 128);
        log.add(event("a", SAME_MS_MAX), 128);
        assert_eq!(shown(&log), [("a".into(), 2, SAME_MS_MAX), ("b".into(), 1, 1)]);
        assert_eq!(log.latest(1)[0].client_info, format!("at {SAME_MS_MAX}").into_bytes());
        log.add(event("a", 2 * SAME_MS_MAX + 1), 128);
        assert_eq!(shown(&log).len(), 3, "a millisecond too late");
        log.clear();
        assert_eq!(shown(&log), []);
    }

    #[test]
    fn the_length_is_bounded() {
        let mut log = AclLog::default();
        for number in 0..5 {
            log.add(event(&number.to_string(), 0), 3);
        }
        assert_eq!(shown(&log), [("4".into(), 1, 0), ("3".into(), 1, 0), ("2".into(), 1, 0)]);
        log.add(event("x", 0), 0);
        assert_eq!(shown(&log), []);
    }
}
