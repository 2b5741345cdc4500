//! What a client has asked for with `CLIENT TRACKING` and `CLIENT CACHING`.

use std::collections::BTreeSet;
use std::sync::Arc;

use bitflags::bitflags;

use super::Reader;

bitflags! {
    /// Options of `CLIENT TRACKING`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Options: u8 {
        /// It hears of all keys with its prefixes.
        const BROADCAST = 1 << 0;
        /// Only what is read after `CLIENT CACHING YES` is noted.
        const OPT_IN = 1 << 1;
        /// What is read after `CLIENT CACHING NO` isn't noted.
        const OPT_OUT = 1 << 2;
        /// It hears nothing of what it changes itself.
        const NO_LOOP = 1 << 3;
        /// The client that is told in its place has gone. Never asked for.
        const BROKEN_REDIRECT = 1 << 4;
        /// It tracks. Never asked for.
        const ON = 1 << 5;
    }
}

/// See the head of this module. Belongs to the session.
pub struct SessionTracking {
    pub(crate) reader: Arc<Reader>,
    /// Its options.
    pub options: Options,
    /// What it wants to hear of.
    pub prefixes: BTreeSet<Box<[u8]>>,
    /// Of those.
    pub(crate) prefix_bytes: usize,
}

impl SessionTracking {
    /// Bytes that its prefixes take.
    pub fn bytes(&self) -> usize {
        self.prefixes.len() * size_of::<Box<[u8]>>() + self.prefix_bytes
    }

    /// Whether it is the same client, since the same `CLIENT TRACKING ON`.
    pub fn is_of(&self, reader: &Arc<Reader>) -> bool {
        Arc::ptr_eq(&self.reader, reader)
    }

    /// The client that is told in its place; 0: none.
    pub fn redirect(&self) -> u64 {
        self.reader.redirect().map_or(0, |client| client.id)
    }
}
