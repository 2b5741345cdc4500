//! A client's options of `CLIENT TRACKING` and `CLIENT CACHING`.

use std::collections::BTreeSet;
use std::sync::Arc;

use bitflags::bitflags;

use super::Reader;

bitflags! {
    /// Options of `CLIENT TRACKING`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Options: u8 {
        /// Invalidations of all keys with its prefixes.
        const BROADCAST = 1 << 0;
        /// Only keys read after `CLIENT CACHING YES` are tracked.
        const OPT_IN = 1 << 1;
        /// Keys read after `CLIENT CACHING NO` are not tracked.
        const OPT_OUT = 1 << 2;
        /// No invalidations of its own changes.
        const NO_LOOP = 1 << 3;
        /// The client that it redirects to has disconnected. Never an option of the command.
        const BROKEN_REDIRECT = 1 << 4;
        /// It tracks. Never an option of the command.
        const ON = 1 << 5;
    }
}

/// The tracking state of a session. See the head of the parent module.
pub struct SessionTracking {
    pub(crate) reader: Arc<Reader>,
    /// Its options.
    pub options: Options,
    /// The prefixes that it subscribes to.
    pub prefixes: BTreeSet<Box<[u8]>>,
    /// The bytes of those.
    pub(crate) prefix_bytes: usize,
}

impl SessionTracking {
    /// Returns the memory usage of its prefixes, bytes.
    pub fn bytes(&self) -> usize {
        self.prefixes.len() * size_of::<Box<[u8]>>() + self.prefix_bytes
    }

    /// Returns whether `reader` is this client's, since the same `CLIENT TRACKING ON`.
    pub fn is_of(&self, reader: &Arc<Reader>) -> bool {
        Arc::ptr_eq(&self.reader, reader)
    }

    /// Returns the id of the client that it redirects to; 0: none.
    pub fn redirect(&self) -> u64 {
        self.reader.redirect().map_or(0, |client| client.id)
    }
}
