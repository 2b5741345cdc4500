//! Scripts that the server knows, by their SHA-1: shared by all workers. What each worker's Lua state has compiled is its own.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, PoisonError, RwLock};

use sha1::{Digest, Sha1};

use crate::shebang::{self, Flags};

/// Digits of a SHA-1.
pub const SHA_LEN: usize = 40;

/// The SHA-1 of a script in lower-case hexadecimal digits.
pub type Sha = [u8; SHA_LEN];

/// A script.
#[derive(Debug)]
pub struct Script {
    /// Its name.
    pub sha: Sha,
    /// What it may do, from its first line.
    pub flags: Flags,
    body: Box<[u8]>,
    /// Where the code begins: behind the first line, if that is for the server.
    code_from: usize,
    /// It was seen to use keys that it hadn't declared.
    is_wide: AtomicBool,
}

impl Script {
    /// A script that isn't in any cache yet.
    ///
    /// # Errors
    /// Its first line isn't for this server: the whole error reply.
    pub fn new(sha: Sha, body: &[u8]) -> Result<Self, Vec<u8>> {
        let (flags, code_from) = shebang::parse(body)?;
        Ok(Script { sha, flags, body: body.into(), code_from, is_wide: AtomicBool::new(false) })
    }

    /// Its code.
    pub fn code(&self) -> &[u8] {
        &self.body[self.code_from..]
    }

    /// All of its text.
    pub fn body(&self) -> &[u8] {
        &self.body
    }

    /// Its SHA-1 as text.
    pub fn name(&self) -> &str {
        std::str::from_utf8(&self.sha).unwrap_or_default()
    }

    /// Whether it is known to use keys that it doesn't declare.
    pub fn is_wide(&self) -> bool {
        self.is_wide.load(Relaxed)
    }

    /// Remembers that it uses keys that it doesn't declare.
    pub fn set_wide(&self) {
        self.is_wide.store(true, Relaxed);
    }

    fn bytes(&self) -> usize {
        // The key in the map, the entry and the allocation's own.
        self.body.len() + size_of::<Self>() + 2 * SHA_LEN
    }
}

/// See the head of this module.
#[derive(Default)]
pub struct Scripts {
    by_sha: RwLock<HashMap<Sha, Arc<Script>>>,
    /// Counts `SCRIPT FLUSH`: a state that has compiled under another count forgets what it has.
    generation: AtomicU64,
    bytes: AtomicU64,
}

impl Scripts {
    /// The script of that name, if it is known.
    pub fn find(&self, sha: &Sha) -> Option<Arc<Script>> {
        self.by_sha.read().unwrap_or_else(PoisonError::into_inner).get(sha).cloned()
    }

    /// Adds a script, and gives the one that is known by its name from now on.
    pub fn add(&self, script: Arc<Script>) -> Arc<Script> {
        let mut by_sha = self.by_sha.write().unwrap_or_else(PoisonError::into_inner);
        let known = by_sha.entry(script.sha).or_insert_with(|| {
            self.bytes.fetch_add(script.bytes() as u64, Relaxed);
            script
        });
        Arc::clone(known)
    }

    /// Forgets all scripts.
    pub fn flush(&self) {
        let mut by_sha = self.by_sha.write().unwrap_or_else(PoisonError::into_inner);
        by_sha.clear();
        self.bytes.store(0, Relaxed);
        self.generation.fetch_add(1, Relaxed);
    }

    /// How often they were forgotten.
    pub fn generation(&self) -> u64 {
        self.generation.load(Relaxed)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.by_sha.read().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes that they take.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }
}

/// The SHA-1 of some bytes.
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

/// A name that a client sent; `None`: it can't be one.
pub fn sha_from(name: &[u8]) -> Option<Sha> {
    let mut sha: Sha = name.try_into().ok()?;
    sha.make_ascii_lowercase();
    Some(sha)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_is_found_until_it_is_flushed() {
        let scripts = Scripts::default();
        let sha = sha_of(b"return 1");
        assert_eq!(&sha, b"e0e1f9fabfc9d4800c877a703b823ac0578ff8db");
        assert!(scripts.find(&sha).is_none());
        let added = scripts.add(Arc::new(Script::new(sha, b"return 1").expect("no first line")));
        let again = scripts.add(Arc::new(Script::new(sha, b"return 1").expect("no first line")));
        assert!(Arc::ptr_eq(&added, &again));
        assert_eq!((scripts.len(), scripts.bytes() > 8), (1, true));
        assert!(scripts.find(&sha_from(b"E0E1F9FABFC9D4800C877A703B823AC0578FF8DB").expect("40 digits")).is_some());
        scripts.flush();
        assert_eq!((scripts.len(), scripts.bytes(), scripts.generation()), (0, 0, 1));
    }
}
