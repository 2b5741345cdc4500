//! Eviction policies (`maxmemory-policy`).

/// The order in which keys are evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rank {
    /// Longest idle first.
    Lru,
    /// Least frequently used first.
    Lfu,
    /// Nearest deadline first.
    Ttl,
    /// Random.
    Random,
}

/// An eviction policy (`maxmemory-policy`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EvictionPolicy {
    /// Evicts nothing.
    Nothing,
    /// Evicts only keys with a TTL.
    Volatile(Rank),
    /// Evicts keys with or without a TTL.
    All(Rank),
}

/// The ranks, indexed by the two low bits of [`EvictionPolicy::bits`].
const RANKS: [Rank; 4] = [Rank::Lru, Rank::Lfu, Rank::Ttl, Rank::Random];
const EVICTS: u8 = 1 << 2;
const OF_ALL: u8 = 1 << 3;

impl EvictionPolicy {
    pub(crate) const fn bits(self) -> u8 {
        match self {
            EvictionPolicy::Nothing => 0,
            EvictionPolicy::Volatile(rank) => rank as u8 | EVICTS,
            EvictionPolicy::All(rank) => rank as u8 | EVICTS | OF_ALL,
        }
    }

    pub(crate) fn from_bits(bits: u8) -> Self {
        let rank = RANKS[usize::from(bits % EVICTS)];
        match (bits & EVICTS != 0, bits & OF_ALL != 0) {
            (false, _) => EvictionPolicy::Nothing,
            (true, false) => EvictionPolicy::Volatile(rank),
            (true, true) => EvictionPolicy::All(rank),
        }
    }

    /// Returns the order in which keys are evicted, or `None` if nothing is evicted.
    pub fn rank(self) -> Option<Rank> {
        match self {
            EvictionPolicy::Nothing => None,
            EvictionPolicy::Volatile(rank) | EvictionPolicy::All(rank) => Some(rank),
        }
    }

    /// Returns whether only keys with a TTL are evicted.
    pub(crate) fn is_volatile(self) -> bool {
        matches!(self, EvictionPolicy::Volatile(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_round_trip_through_bits() {
        let ranked = RANKS.iter().flat_map(|&rank| [EvictionPolicy::Volatile(rank), EvictionPolicy::All(rank)]);
        for policy in ranked.chain([EvictionPolicy::Nothing]) {
            assert_eq!(EvictionPolicy::from_bits(policy.bits()), policy);
        }
    }
}
