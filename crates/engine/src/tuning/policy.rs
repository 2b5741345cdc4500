//! What is evicted where memory is limited (`maxmemory-policy`).

/// By what keys are ranked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rank {
    /// Idle for longest first.
    Lru,
    /// Used least often first.
    Lfu,
    /// Nearest end first.
    Ttl,
    /// Any.
    Random,
}

/// What is evicted (`maxmemory-policy`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EvictionPolicy {
    /// Nothing.
    Nothing,
    /// Keys with a time to live.
    Volatile(Rank),
    /// Any keys.
    All(Rank),
}

/// The bits of policies: the rank's number, and whether there is one, and whether it is of all keys.
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

    /// By what it ranks keys, if it evicts any.
    pub fn rank(self) -> Option<Rank> {
        match self {
            EvictionPolicy::Nothing => None,
            EvictionPolicy::Volatile(rank) | EvictionPolicy::All(rank) => Some(rank),
        }
    }

    /// Whether only keys with a time to live go.
    pub(crate) fn is_volatile(self) -> bool {
        matches!(self, EvictionPolicy::Volatile(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_are_what_their_bits_say() {
        let ranked = RANKS.iter().flat_map(|&rank| [EvictionPolicy::Volatile(rank), EvictionPolicy::All(rank)]);
        for policy in ranked.chain([EvictionPolicy::Nothing]) {
            assert_eq!(EvictionPolicy::from_bits(policy.bits()), policy);
        }
    }
}
