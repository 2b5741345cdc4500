//! A client's options of `CLIENT TRACKING` and `CLIENT CACHING`.

use std::collections::BTreeSet;
use std::sync::Arc;

use bitflags::bitflags;

use super::Reader;

bitflags! {
    /// Options of `CLIENT TRACKING`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Options: u8 {
        /// Sends invalidations of all keys with the given prefixes, even of keys that the client
        /// has not read (`BCAST`).
        const BROADCAST = 1 << 0;
        /// Tracks only keys read after `CLIENT CACHING YES`.
        const OPT_IN = 1 << 1;
        /// Does not track keys read after `CLIENT CACHING NO`.
        const OPT_OUT = 1 << 2;
        /// Sends no invalidations of the client's own changes.
        const NO_LOOP = 1 << 3;
        /// The client to which invalidations are redirected has disconnected. Not an option of the
        /// command.
        const BROKEN_REDIRECT = 1 << 4;
        /// Tracking is on. Not an option of the command.
        const ON = 1 << 5;
    }
}

/// The tracking state of a session. See the head of the parent module.
pub struct SessionTracking {
    pub(crate) reader: Arc<Reader>,
    /// Options of the client.
    pub options: Options,
    /// Prefixes that the client has subscribed to.
    pub prefixes: BTreeSet<Box<[u8]>>,
    /// Total length of these prefixes in bytes.
    pub(crate) prefix_bytes: usize,
}

impl SessionTracking {
    /// Returns the memory usage of the prefixes in bytes.
    pub fn bytes(&self) -> usize {
        self.prefixes.len() * size_of::<Box<[u8]>>() + self.prefix_bytes
    }

    /// Returns whether `reader` is the client's current reader. Returns `false` for a reader from
    /// before a `CLIENT TRACKING OFF`.
    pub fn is_of(&self, reader: &Arc<Reader>) -> bool {
        Arc::ptr_eq(&self.reader, reader)
    }

    /// Returns the ID of the client to which invalidations are redirected, or 0.
    pub fn redirect(&self) -> u64 {
        self.reader.redirect().map_or(0, |client| client.id)
    }
}
