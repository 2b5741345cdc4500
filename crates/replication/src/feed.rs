//! The bytes of one snapshot in flight to several replicas, each at its own position.
//!
//! The readers share the feed's chunks. The feed holds all bytes that its slowest reader hasn't
//! read. When these bytes reach the feed's limit, the writer of the snapshot pauses. So the limit
//! bounds the memory of a snapshot.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use pantala_base::{Outgoing, SharedBytes};

/// A function that wakes a reader without unread bytes. Called when the feed receives more bytes,
/// or when the feed ends.
pub type Wake = Arc<dyn Fn() + Send + Sync>;

/// Identifies a reader in its feed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FeedReader(u64);

/// The state of a feed after a reader has taken bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeedAhead {
    /// No bytes yet. The reader is woken when the feed receives more bytes, or when it ends.
    Nothing,
    /// More bytes.
    More,
    /// No more bytes, because the reader has taken the whole snapshot.
    End,
    /// The snapshot failed.
    Failed,
}

struct Place {
    id: u64,
    at: u64,
    is_waiting: bool,
    wake: Wake,
}

struct Chunk {
    start: u64,
    bytes: Arc<SharedBytes>,
}

/// A feed, see the head of this module.
pub struct Feed {
    chunks: VecDeque<Chunk>,
    end: u64,
    bytes_max: u64,
    /// Whether the snapshot is complete; `None` before its end.
    ended: Option<bool>,
    readers: Vec<Place>,
    last_id: u64,
    held_bytes: Arc<AtomicU64>,
}

impl Feed {
    /// Returns an empty feed that holds at most about `bytes_max` bytes.
    #[must_use]
    pub fn new(bytes_max: u64) -> Self {
        let held_bytes = Arc::default();
        Feed { chunks: VecDeque::new(), end: 0, bytes_max, ended: None, readers: Vec::new(), last_id: 0, held_bytes }
    }

    /// Adds a reader, which starts at the first byte.
    ///
    /// # Panics
    /// If the feed already has bytes.
    pub fn join(&mut self, wake: Wake) -> FeedReader {
        assert_eq!(self.end, 0, "a reader joins after the first byte of the snapshot");
        self.last_id += 1;
        self.readers.push(Place { id: self.last_id, at: 0, is_waiting: true, wake });
        FeedReader(self.last_id)
    }

    /// Removes a reader.
    pub fn leave(&mut self, reader: FeedReader) {
        self.readers.retain(|place| place.id != reader.0);
        self.free();
    }

    /// Returns whether any reader is left. Without readers the snapshot is useless.
    #[must_use]
    pub fn has_readers(&self) -> bool {
        !self.readers.is_empty()
    }

    /// Returns the number of bytes that the slowest reader hasn't read.
    #[must_use]
    pub fn unread_bytes(&self) -> u64 {
        self.end - self.chunks.front().map_or(self.end, |chunk| chunk.start)
    }

    /// Returns whether the writer must wait for the slowest reader.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.unread_bytes() >= self.bytes_max
    }

    /// Appends a chunk. Returns functions that wake the readers that were waiting for it.
    pub fn push(&mut self, bytes: Vec<u8>) -> Vec<Wake> {
        let start = self.end;
        self.end += bytes.len() as u64;
        self.chunks.push_back(Chunk { start, bytes: SharedBytes::new(bytes, &self.held_bytes) });
        self.free();
        self.waiting()
    }

    /// Ends the snapshot. Returns functions that wake the readers that were waiting for a chunk.
    pub fn end(&mut self, is_complete: bool) -> Vec<Wake> {
        self.ended.get_or_insert(is_complete);
        self.waiting()
    }

    fn waiting(&mut self) -> Vec<Wake> {
        let wake = |place: &mut Place| std::mem::take(&mut place.is_waiting).then(|| Arc::clone(&place.wake));
        self.readers.iter_mut().filter_map(wake).collect()
    }

    /// Appends a reader's next chunks to `into`, until at least `bytes` bytes are appended or there
    /// are no more. Returns the feed's state after these chunks.
    pub fn read(&mut self, reader: FeedReader, bytes: usize, into: &mut Vec<Outgoing>) -> FeedAhead {
        if self.ended == Some(false) {
            return FeedAhead::Failed;
        }
        let Some(place) = self.readers.iter_mut().find(|place| place.id == reader.0) else { return FeedAhead::Failed };
        let limit = place.at.saturating_add(bytes as u64);
        let first = self.chunks.partition_point(|chunk| chunk.start < place.at);
        for chunk in self.chunks.range(first..) {
            if place.at >= limit {
                break;
            }
            into.push(Arc::clone(&chunk.bytes).into());
            place.at = chunk.start + chunk.bytes.len() as u64;
        }
        let ahead = match self.ended {
            _ if place.at < self.end => FeedAhead::More,
            Some(_) => FeedAhead::End,
            None => FeedAhead::Nothing,
        };
        place.is_waiting = ahead == FeedAhead::Nothing;
        self.free();
        ahead
    }

    fn free(&mut self) {
        let needed_from = self.readers.iter().map(|place| place.at).min().unwrap_or(self.end);
        while let Some(first) = self.chunks.front()
            && first.start + first.bytes.len() as u64 <= needed_from
        {
            self.chunks.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use super::*;

    fn counted() -> (Arc<AtomicUsize>, Wake) {
        let count = Arc::<AtomicUsize>::default();
        let counts = Arc::clone(&count);
        (count, Arc::new(move || _ = counts.fetch_add(1, Relaxed)))
    }

    fn read(feed: &mut Feed, reader: FeedReader, bytes: usize) -> (String, FeedAhead) {
        let mut parts = Vec::new();
        let ahead = feed.read(reader, bytes, &mut parts);
        (parts.iter().map(|part| String::from_utf8_lossy(part.bytes()).into_owned()).collect(), ahead)
    }

    #[test]
    fn readers_read_everything_each_at_its_own_pace() {
        let mut feed = Feed::new(6);
        let ((fast_wakes, fast), (slow_wakes, slow)) = (counted(), counted());
        let (fast, slow) = (feed.join(fast), feed.join(slow));
        for chunk in ["abc", "def"] {
            assert!(!feed.is_full());
            feed.push(chunk.into()).iter().for_each(|wake| wake());
            assert_eq!(read(&mut feed, fast, 100), (chunk.to_owned(), FeedAhead::Nothing));
        }
        assert_eq!((fast_wakes.load(Relaxed), slow_wakes.load(Relaxed)), (2, 1));
        assert!(feed.is_full(), "the slow one has read nothing");
        assert_eq!(read(&mut feed, slow, 1), ("abc".to_owned(), FeedAhead::More));
        assert!(!feed.is_full());
        feed.push(b"gh".into()).iter().for_each(|wake| wake());
        feed.end(true).iter().for_each(|wake| wake());
        assert_eq!(read(&mut feed, fast, 100), ("gh".to_owned(), FeedAhead::End));
        assert_eq!(read(&mut feed, slow, 100), ("defgh".to_owned(), FeedAhead::End));
        assert_eq!(read(&mut feed, slow, 100), (String::new(), FeedAhead::End));
        feed.leave(fast);
        assert!(feed.has_readers());
        feed.leave(slow);
        assert!(!feed.has_readers() && feed.held_bytes.load(Relaxed) == 0);
    }

    #[test]
    fn a_removed_reader_holds_no_chunks() {
        let mut feed = Feed::new(3);
        let (fast, slow) = (feed.join(counted().1), feed.join(counted().1));
        feed.push(b"abc".into());
        assert_eq!(read(&mut feed, fast, 1).1, FeedAhead::Nothing);
        assert!(feed.is_full());
        feed.leave(slow);
        assert!(!feed.is_full());
        assert_eq!(feed.end(false).len(), 1, "the one that waits is woken");
        assert_eq!(read(&mut feed, fast, 1), (String::new(), FeedAhead::Failed));
    }
}
