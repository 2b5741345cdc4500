//! The settings for the distribution of connections over workers.

use super::values::Values;

/// How connections are distributed over the workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spreading {
    /// While the first worker has fewer connections than this, it gets each new connection.
    pub packed_connections: u32,
    /// Whether connections move to other workers by their load ([`crate::control`]).
    pub move_connections: bool,
}

impl Spreading {
    /// Reads the settings.
    pub fn new(values: &Values) -> Self {
        Spreading {
            packed_connections: u32::try_from(values.number("packed-connections")).unwrap_or(u32::MAX),
            move_connections: values.bool("move-connections"),
        }
    }
}
