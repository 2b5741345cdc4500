//! The script cache: scripts by SHA-1, shared by all workers. The compiled form of a script is not
//! shared, but belongs to a worker's Lua state.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, PoisonError, RwLock};

use sha1::{Digest, Sha1};

use crate::shebang::{self, Flags};

/// Hexadecimal digits of a SHA-1.
pub const SHA_LEN: usize = 40;

/// A SHA-1 in lower-case hexadecimal digits.
pub type Sha = [u8; SHA_LEN];

/// The text of a script, and its properties.
#[derive(Debug)]
pub struct Script {
    /// SHA-1 of the text.
    pub sha: Sha,
    /// Flags declared in the first line.
    pub flags: Flags,
    body: Box<[u8]>,
    /// Start of the code: 0, or the end of the shebang (the line that declares flags).
    code_from: usize,
    /// Whether the script has used undeclared keys. If so, its later calls hold all shards.
    is_wide: AtomicBool,
}

impl Script {
    /// Creates a script. Does not add it to the cache.
    ///
    /// # Errors
    /// Returns the error reply if the shebang is invalid.
    pub fn new(sha: Sha, body: &[u8]) -> Result<Self, Vec<u8>> {
        let (flags, code_from) = shebang::parse(body)?;
        Ok(Script { sha, flags, body: body.into(), code_from, is_wide: AtomicBool::new(false) })
    }

    /// Returns the code, without the shebang.
    pub fn code(&self) -> &[u8] {
        &self.body[self.code_from..]
    }

    /// Returns the whole text.
    pub fn body(&self) -> &[u8] {
        &self.body
    }

    /// Returns the SHA-1 as text.
    pub fn name(&self) -> &str {
        std::str::from_utf8(&self.sha).unwrap_or_default()
    }

    /// Returns whether the script is known to use undeclared keys.
    pub fn is_wide(&self) -> bool {
        self.is_wide.load(Relaxed)
    }

    /// Records that the script uses undeclared keys.
    pub fn set_wide(&self) {
        self.is_wide.store(true, Relaxed);
    }

    fn bytes(&self) -> usize {
        // `2 * SHA_LEN` covers the map's key, its entry, and the allocator's overhead.
        self.body.len() + size_of::<Self>() + 2 * SHA_LEN
    }
}

/// The script cache.
#[derive(Default)]
pub struct Scripts {
    by_sha: RwLock<HashMap<Sha, Arc<Script>>>,
    /// Number of flushes. When this number has changed, a state drops its compiled scripts.
    generation: AtomicU64,
    bytes: AtomicU64,
}

impl Scripts {
    /// Returns the script with this SHA-1, if it is cached.
    pub fn find(&self, sha: &Sha) -> Option<Arc<Script>> {
        self.by_sha.read().unwrap_or_else(PoisonError::into_inner).get(sha).cloned()
    }

    /// Adds a script, unless a script with the same SHA-1 is cached. Returns the cached script.
    pub fn add(&self, script: Arc<Script>) -> Arc<Script> {
        let mut by_sha = self.by_sha.write().unwrap_or_else(PoisonError::into_inner);
        let known = by_sha.entry(script.sha).or_insert_with(|| {
            self.bytes.fetch_add(script.bytes() as u64, Relaxed);
            script
        });
        Arc::clone(known)
    }

    /// Removes all scripts.
    pub fn flush(&self) {
        let mut by_sha = self.by_sha.write().unwrap_or_else(PoisonError::into_inner);
        by_sha.clear();
        self.bytes.store(0, Relaxed);
        self.generation.fetch_add(1, Relaxed);
    }

    /// Returns the number of flushes.
    pub fn generation(&self) -> u64 {
        self.generation.load(Relaxed)
    }

    /// Returns the number of scripts.
    pub fn len(&self) -> usize {
        self.by_sha.read().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Returns whether the cache is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the memory usage in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }
}

/// Returns the SHA-1 of `bytes`.
pub fn sha_of(bytes: &[u8]) -> Sha {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digest = Sha1::digest(bytes);
    let mut sha = [0; SHA_LEN];
    for (pair, byte) in sha.chunks_exact_mut(2).zip(digest) {
        pair[0] = DIGITS[usize::from(byte >> 4)];
        pair[1] = DIGITS[usize::from(byte & 15)];
    }
    sha
}

/// Parses a SHA-1 sent by a client. Returns `None` if the length is wrong.
pub fn sha_from(name: &[u8]) -> Option<Sha> {
    let mut sha: Sha = name.try_into().ok()?;
    sha.make_ascii_lowercase();
    Some(sha)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_are_found_until_flushed() {
        let scripts = Scripts::default();
        let sha = sha_of(b"return 1");
        assert_eq!(&sha, b"e0e1f9fabfc9d4800c877a703b823ac0578ff8db");
        assert!(scripts.find(&sha).is_none());
        let added = scripts.add(Arc::new(Script::new(sha, b"return 1").expect("no shebang")));
        let again = scripts.add(Arc::new(Script::new(sha, b"return 1").expect("no shebang")));
        assert!(Arc::ptr_eq(&added, &again));
        assert_eq!((scripts.len(), scripts.bytes() > 8), (1, true));
        assert!(scripts.find(&sha_from(b"E0E1F9FABFC9D4800C877A703B823AC0578FF8DB").expect("40 digits")).is_some());
        scripts.flush();
        assert_eq!((scripts.len(), scripts.bytes(), scripts.generation()), (0, 0, 1));
    }
}
