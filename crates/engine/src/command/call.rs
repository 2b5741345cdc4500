//! The context of a call besides its arguments: the places of its keys, and a view of its
//! connection.

use pantala_resp::Version;

/// The place of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyPlace {
    /// Its hash, by the keyspace's hash function.
    pub hash: u64,
    /// Its shard.
    pub shard: u32,
}

/// A key and its place.
#[derive(Clone, Copy, Debug)]
pub struct Key<'k> {
    /// Its bytes.
    pub bytes: &'k [u8],
    /// Its place.
    pub place: KeyPlace,
}

/// A keyed command's view of its connection. Copied into requests, so it stays small.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionView {
    /// Id of the client.
    pub client: u64,
    /// Selected database.
    pub db: u32,
    /// Protocol version of replies.
    pub version: Version,
    /// `CLIENT NO-TOUCH`.
    pub no_touch: bool,
    /// The connection is the link to the primary, whose commands see expired keys until it deletes
    /// them.
    pub of_primary: bool,
    /// A script runs the command.
    pub in_script: bool,
    /// When its user was last found to be allowed to run the command.
    pub permit: Permit,
}

/// The epoch in which a user was allowed to run a command ([`crate::acl`]), and whether the user
/// was unrestricted. One word, since it is copied into requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Permit(u64);

impl Permit {
    /// Returns the permit of a session in an epoch (below 2^63).
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
