//! The cache of sessions that clients may resume. The server keeps the sessions itself (instead of
//! sending them in tickets), so that `tls-session-cache-size` and `tls-session-cache-timeout` limit
//! their number and age exactly.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::server::{ServerSessionMemoryCache, StoresServerSessions};

/// rustls's cache. Each stored value is preceded by its deadline, ms since `start`, big-endian.
#[derive(Debug)]
pub struct Cache {
    sessions: Arc<ServerSessionMemoryCache>,
    timeout: Duration,
    start: Instant,
}

impl Cache {
    /// Creates an empty cache.
    pub fn new(count_max: usize, timeout: Duration) -> Self {
        Cache { sessions: ServerSessionMemoryCache::new(count_max), timeout, start: Instant::now() }
    }

    fn put_at(&self, now: Duration, key: Vec<u8>, value: &[u8]) -> bool {
        let deadline = now.saturating_add(self.timeout);
        let mut dated = Vec::with_capacity(8 + value.len());
        dated.extend_from_slice(&u64::try_from(deadline.as_millis()).unwrap_or(u64::MAX).to_be_bytes());
        dated.extend_from_slice(value);
        self.sessions.put(key, dated)
    }

    fn undated(now: Duration, dated: &[u8]) -> Option<Vec<u8>> {
        let (deadline, value) = dated.split_first_chunk::<8>()?;
        (now.as_millis() < u128::from(u64::from_be_bytes(*deadline))).then(|| value.to_vec())
    }
}

impl StoresServerSessions for Cache {
    fn put(&self, key: Vec<u8>, value: Vec<u8>) -> bool {
        self.put_at(self.start.elapsed(), key, &value)
    }

    fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        Self::undated(self.start.elapsed(), &self.sessions.get(key)?)
    }

    fn take(&self, key: &[u8]) -> Option<Vec<u8>> {
        Self::undated(self.start.elapsed(), &self.sessions.take(key)?)
    }

    fn can_cache(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_resumed_until_its_deadline() {
        let cache = Cache::new(4, Duration::from_secs(300));
        let found = |now_s| Cache::undated(Duration::from_secs(now_s), &cache.sessions.get(b"key").expect("kept"));
        assert!(cache.put_at(Duration::from_secs(10), b"key".to_vec(), b"value"));
        assert_eq!(found(309), Some(b"value".to_vec()));
        assert_eq!(found(310), None);
        assert_eq!(cache.take(b"key"), Some(b"value".to_vec()), "the real clock is before the deadline");
        assert_eq!(cache.get(b"key"), None);
    }

    #[test]
    fn the_number_of_sessions_is_bounded() {
        let cache = Cache::new(64, Duration::from_secs(300));
        (0u32..1000).for_each(|key| assert!(cache.put(key.to_be_bytes().to_vec(), vec![0; 10])));
        let kept = (0u32..1000).filter(|key| cache.get(&key.to_be_bytes()).is_some()).count();
        assert!((1..=128).contains(&kept), "{kept} of 1000 are kept");
    }
}
