//! The kinds of subscriptions, and the address for messages to a connection.

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

/// The address of a connection. Other threads send messages to this address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Listener {
    /// Worker of the connection.
    pub worker: u32,
    /// The token by which the worker finds the connection.
    pub connection: u64,
}

impl Listener {
    /// The token of a connection that is moving and has not arrived yet. No connection has it.
    pub const MOVING: u64 = u64::MAX - 3;
}
