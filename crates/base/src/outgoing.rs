//! What a send is given: bytes of its own, or bytes that many sends share.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Bytes that many sends share, of any loops. Nothing changes them; their memory is counted for as long as somebody has them.
#[derive(Debug)]
pub struct SharedBytes {
    bytes: Vec<u8>,
    kept_bytes: Arc<AtomicU64>,
}

impl SharedBytes {
    /// Bytes to be shared, counted in `kept_bytes`.
    ///
    /// # Panics
    /// When there are none: a send of nothing is none.
    pub fn new(mut bytes: Vec<u8>, kept_bytes: &Arc<AtomicU64>) -> Arc<Self> {
        assert!(!bytes.is_empty(), "nothing to be shared");
        // They may be kept for long.
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

/// What a send is given.
#[derive(Debug)]
pub enum Outgoing {
    /// Bytes of its own.
    Own(Vec<u8>),
    /// Bytes that other sends have too.
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
    /// The bytes: at one address for as long as this lives, wherever it is moved.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        match self {
            Outgoing::Own(bytes) => bytes,
            Outgoing::Shared(bytes) => bytes,
        }
    }

    /// The memory that is left when they are sent: none of shared ones.
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
    fn shared_bytes_are_counted_once_and_as_long_as_anybody_has_them() {
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
    fn a_buffer_of_ones_own_comes_back_empty_with_its_memory() {
        let buffer = Outgoing::from(vec![1, 2, 3]).into_buffer();
        assert!(buffer.is_empty() && buffer.capacity() >= 3);
    }
}
