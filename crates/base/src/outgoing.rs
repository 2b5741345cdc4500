//! Bytes to send, owned by one send or shared by many.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Immutable bytes shared by many sends, on any event loop. Their size is part of a global sum
/// until the last owner drops them.
#[derive(Debug)]
pub struct SharedBytes {
    bytes: Vec<u8>,
    kept_bytes: Arc<AtomicU64>,
}

impl SharedBytes {
    /// Returns bytes to share. Adds their length to `kept_bytes` until they are dropped.
    ///
    /// # Panics
    /// If `bytes` is empty, because there are no empty sends.
    pub fn new(mut bytes: Vec<u8>, kept_bytes: &Arc<AtomicU64>) -> Arc<Self> {
        assert!(!bytes.is_empty(), "shared bytes are empty");
        // The bytes may live long, so they must not waste memory.
        bytes.shrink_to_fit();
        kept_bytes.fetch_add(bytes.len() as u64, Relaxed);
        Arc::new(SharedBytes { bytes, kept_bytes: Arc::clone(kept_bytes) })
    }
}

impl Deref for SharedBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for SharedBytes {
    fn drop(&mut self) {
        self.kept_bytes.fetch_sub(self.bytes.len() as u64, Relaxed);
    }
}

/// The bytes of one send.
#[derive(Debug)]
pub enum Outgoing {
    /// Bytes of this send alone.
    Own(Vec<u8>),
    /// Bytes shared with other sends.
    Shared(Arc<SharedBytes>),
}

impl From<Vec<u8>> for Outgoing {
    #[inline]
    fn from(bytes: Vec<u8>) -> Self {
        Outgoing::Own(bytes)
    }
}

impl From<Arc<SharedBytes>> for Outgoing {
    fn from(bytes: Arc<SharedBytes>) -> Self {
        Outgoing::Shared(bytes)
    }
}

impl Outgoing {
    /// Returns the bytes. Their address stays the same while `self` lives, even if it is moved.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        match self {
            Outgoing::Own(bytes) => bytes,
            Outgoing::Shared(bytes) => bytes,
        }
    }

    /// Returns the memory, emptied, for reuse after the send. For shared bytes it returns a buffer
    /// without capacity.
    #[inline]
    pub fn into_buffer(self) -> Vec<u8> {
        match self {
            Outgoing::Own(mut buffer) => {
                buffer.clear();
                buffer
            }
            Outgoing::Shared(_) => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_bytes_are_counted_once_until_the_last_drop() {
        let kept_bytes = Arc::new(AtomicU64::new(0));
        let shared = SharedBytes::new(vec![7; 100], &kept_bytes);
        let sends: Vec<Outgoing> = (0..5).map(|_| Arc::clone(&shared).into()).collect();
        assert!(sends.iter().all(|send| send.bytes().as_ptr() == shared.as_ptr() && send.bytes() == [7; 100]));
        drop(shared);
        assert_eq!(kept_bytes.load(Relaxed), 100);
        assert!(sends.into_iter().all(|send| send.into_buffer().capacity() == 0));
        assert_eq!(kept_bytes.load(Relaxed), 0);
    }

    #[test]
    fn an_owned_buffer_is_returned_empty_with_its_memory() {
        let buffer = Outgoing::from(vec![1, 2, 3]).into_buffer();
        assert!(buffer.is_empty() && buffer.capacity() >= 3);
    }
}
