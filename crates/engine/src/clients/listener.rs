//! What a connection can subscribe to, and where its messages are sent.

/// What can be listened to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// A channel by its name (`SUBSCRIBE`).
    Channel,
    /// All channels that match a pattern (`PSUBSCRIBE`).
    Pattern,
    /// A shard channel by its name (`SSUBSCRIBE`).
    Shard,
}

/// All kinds, in the order of their numbers.
pub const KINDS: [Kind; 3] = [Kind::Channel, Kind::Pattern, Kind::Shard];

/// Where a listener is: its worker, and that worker's token of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listener {
    /// Its worker.
    pub worker: u32,
    /// The worker's token for it.
    pub connection: u64,
}
