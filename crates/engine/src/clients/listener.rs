//! The kinds of subscriptions, and where messages for a connection are sent.

/// The kind of a subscription.
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

/// The address of a connection: its worker, and that worker's token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listener {
    /// Its worker.
    pub worker: u32,
    /// The worker's token for it.
    pub connection: u64,
}
