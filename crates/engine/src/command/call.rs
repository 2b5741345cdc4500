//! The context of a call besides its arguments: the places of its keys, and a view of its
//! connection.

use pantala_resp::Version;

/// The place of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyPlace {
    /// Hash of the key by the keyspace's hash function.
    pub hash: u64,
    /// Shard of the key.
    pub shard: u32,
}

/// A key and its place.
#[derive(Clone, Copy, Debug)]
pub struct Key<'k> {
    /// Bytes of the key.
    pub bytes: &'k [u8],
    /// Place of the key.
    pub place: KeyPlace,
}

/// A keyed command's view of its connection. Small, because it is copied into requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionView {
    /// ID of the client.
    pub client: u64,
    /// Selected database.
    pub db: u32,
    /// Protocol version of replies.
    pub version: Version,
    /// Whether `CLIENT NO-TOUCH` is on.
    pub no_touch: bool,
    /// Whether the primary or the append-only file has sent the command. Such commands see expired
    /// keys until the primary, or the file, deletes them.
    pub of_primary: bool,
    /// Whether a script runs the command.
    pub in_script: bool,
    /// The last permission check of the command.
    pub permit: Permit,
}

/// The epoch in which a permission check ([`crate::acl`]) succeeded, and whether the user was
/// unrestricted. If the current epoch is the same, no rules have changed since the check. A permit
/// is a single word, because it is copied into requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Permit(u64);

impl Permit {
    /// Returns the permit of a session in an epoch. `epoch` must be below 2^63.
    #[inline]
    pub const fn new(epoch: u64, is_unrestricted: bool) -> Self {
        Permit(epoch << 1 | !is_unrestricted as u64)
    }

    /// Returns the epoch.
    #[inline]
    pub fn epoch(self) -> u64 {
        self.0 >> 1
    }

    /// Returns whether the user was unrestricted.
    #[inline]
    pub fn is_unrestricted(self) -> bool {
        self.0 & 1 == 0
    }
}
