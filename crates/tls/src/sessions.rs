//! The cache of sessions that clients may resume. Sessions are kept on the server and not in
//! tickets, so that `tls-session-cache-size` and `tls-session-cache-timeout` limit their number and
//! age exactly.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustls::server::StoresServerSessions;

/// If the entries of [`Sessions::order`] without a session outnumber the sessions by more than
/// this, they are removed.
const DEAD_MIN: usize = 64;

/// The cache described at the head of this module. rustls's own cache isn't used, because it
/// searches all its keys whenever a session is taken. With many sessions, resuming one would be
/// slow.
#[derive(Debug)]
pub struct Cache {
    sessions: Mutex<Sessions>,
    count_max: usize,
    timeout: Duration,
    start: Instant,
}

#[derive(Debug, Default)]
struct Sessions {
    /// Each session by its key, with its deadline (time since `start`).
    by_key: HashMap<Vec<u8>, (Duration, Vec<u8>)>,
    /// The keys in the order in which their sessions were added, which is also the order of their
    /// deadlines. Some of these sessions may have been taken or replaced since.
    order: VecDeque<(Duration, Vec<u8>)>,
}

impl Sessions {
    /// Adds a session. Removes the sessions whose deadline has passed, and the oldest sessions if
    /// there are more than `count_max`.
    fn put(&mut self, now: Duration, deadline: Duration, key: Vec<u8>, value: Vec<u8>, count_max: usize) {
        self.by_key.insert(key.clone(), (deadline, value));
        self.order.push_back((deadline, key));
        while let Some((deadline, key)) = self.order.front()
            && (self.by_key.len() > count_max || *deadline <= now)
        {
            if is_current(&self.by_key, *deadline, key) {
                self.by_key.remove(key);
            }
            self.order.pop_front();
        }
        if self.order.len() > 2 * self.by_key.len() + DEAD_MIN {
            self.order.retain(|(deadline, key)| is_current(&self.by_key, *deadline, key));
        }
    }
}

/// Returns whether an entry of [`Sessions::order`] belongs to the current session with this key.
fn is_current(by_key: &HashMap<Vec<u8>, (Duration, Vec<u8>)>, deadline: Duration, key: &[u8]) -> bool {
    by_key.get(key).is_some_and(|(current, _)| *current == deadline)
}

impl Cache {
    /// Creates an empty cache of at most `count_max` sessions, each of which can be resumed for
    /// `timeout`.
    pub fn new(count_max: usize, timeout: Duration) -> Self {
        Cache { sessions: Mutex::default(), count_max, timeout, start: Instant::now() }
    }

    fn sessions(&self) -> MutexGuard<'_, Sessions> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put_at(&self, now: Duration, key: Vec<u8>, value: Vec<u8>) {
        self.sessions().put(now, now.saturating_add(self.timeout), key, value, self.count_max);
    }

    fn get_at(&self, now: Duration, key: &[u8]) -> Option<Vec<u8>> {
        let sessions = self.sessions();
        let (deadline, value) = sessions.by_key.get(key)?;
        (now < *deadline).then(|| value.clone())
    }

    fn take_at(&self, now: Duration, key: &[u8]) -> Option<Vec<u8>> {
        let (deadline, value) = self.sessions().by_key.remove(key)?;
        (now < deadline).then_some(value)
    }
}

impl StoresServerSessions for Cache {
    fn put(&self, key: Vec<u8>, value: Vec<u8>) -> bool {
        self.put_at(self.start.elapsed(), key, value);
        true
    }

    fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.get_at(self.start.elapsed(), key)
    }

    fn take(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.take_at(self.start.elapsed(), key)
    }

    fn can_cache(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn second(now_s: u64) -> Duration {
        Duration::from_secs(now_s)
    }

    #[test]
    fn a_session_is_resumed_until_its_deadline() {
        let cache = Cache::new(4, second(300));
        cache.put_at(second(10), b"key".to_vec(), b"value".to_vec());
        assert_eq!(cache.get_at(second(309), b"key"), Some(b"value".to_vec()));
        assert_eq!(cache.get_at(second(310), b"key"), None);
        assert_eq!(cache.take_at(second(309), b"key"), Some(b"value".to_vec()));
        assert_eq!(cache.get_at(second(309), b"key"), None);
        cache.put_at(second(20), b"key".to_vec(), b"value".to_vec());
        assert_eq!(cache.take_at(second(320), b"key"), None);
        cache.put_at(second(20), b"key".to_vec(), b"value".to_vec());
        cache.put_at(second(400), b"other".to_vec(), b"value".to_vec());
        assert_eq!(cache.sessions().by_key.len(), 1, "sessions are removed after their deadline");
    }

    #[test]
    fn the_oldest_of_too_many_sessions_are_removed() {
        let cache = Cache::new(64, second(300));
        let key = |number: u32| number.to_be_bytes().to_vec();
        (0..1000).for_each(|number| assert!(cache.put(key(number), vec![0; 10])));
        let kept: Vec<u32> = (0..1000).filter(|number| cache.get(&key(*number)).is_some()).collect();
        assert_eq!(kept, (936..1000).collect::<Vec<_>>());
    }

    #[test]
    fn taken_sessions_leave_no_memory_and_room_for_others() {
        let cache = Cache::new(64, second(300));
        let key = |number: u32| number.to_be_bytes().to_vec();
        (0..32).for_each(|number| assert!(cache.put(key(number), vec![0; 10])));
        for number in 32..10_000 {
            assert!(cache.put(key(number), vec![0; 10]));
            assert!(cache.take(&key(number)).is_some());
        }
        let sessions = cache.sessions();
        assert_eq!(sessions.by_key.len(), 32, "those that were not taken");
        assert!(sessions.order.len() <= 2 * 33 + DEAD_MIN);
    }

    #[test]
    fn a_session_that_is_put_again_keeps_its_new_deadline() {
        let cache = Cache::new(64, second(300));
        cache.put_at(second(0), b"key".to_vec(), b"old".to_vec());
        cache.put_at(second(100), b"key".to_vec(), b"new".to_vec());
        cache.put_at(second(350), b"other".to_vec(), b"value".to_vec());
        assert_eq!(cache.get_at(second(350), b"key"), Some(b"new".to_vec()));
    }
}
