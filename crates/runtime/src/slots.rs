//! A table of values with reusable positions, in which each value has a unique token.

/// Maximum generation. The generation after it is 0. The kernel stores a 64-bit number with each
/// registration and operation. The index takes 32 bits of this number, and the generation 24. The
/// remaining 8 bits are for the kind of operation.
pub(crate) const GENERATION_MAX: u32 = (1 << 24) - 1;

/// Identifies a value of a [`Slots`] by its position and by how often the position was used before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Token {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

impl Token {
    /// Returns the token as a number whose highest 8 bits are 0, for the data of an epoll
    /// registration.
    pub(crate) fn to_bits(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index)
    }

    /// Reverts [`to_bits`](Self::to_bits).
    pub(crate) fn from_bits(bits: u64) -> Token {
        Token { index: bits as u32, generation: (bits >> 32) as u32 }
    }
}

struct Slot<T> {
    generation: u32,
    value: Option<T>,
}

/// The table. The position that became free last is reused first, which keeps the table small and
/// in the CPU caches.
pub(crate) struct Slots<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
}

impl<T> Slots<T> {
    pub(crate) fn new() -> Self {
        Slots { slots: Vec::new(), free: Vec::new() }
    }

    pub(crate) fn insert(&mut self, value: T) -> Token {
        if let Some(index) = self.free.pop() {
            let slot = &mut self.slots[index as usize];
            slot.value = Some(value);
            return Token { index, generation: slot.generation };
        }
        // A value holds a descriptor, and a process has at most a few million of these.
        let index = u32::try_from(self.slots.len()).expect("fewer descriptors than 2^32");
        self.slots.push(Slot { generation: 0, value: Some(value) });
        Token { index, generation: 0 }
    }

    #[inline]
    pub(crate) fn value(&self, token: Token) -> Option<&T> {
        self.slots
            .get(token.index as usize)
            .filter(|slot| slot.generation == token.generation)
            .and_then(|slot| slot.value.as_ref())
    }

    #[inline]
    pub(crate) fn value_mut(&mut self, token: Token) -> Option<&mut T> {
        self.slots
            .get_mut(token.index as usize)
            .filter(|slot| slot.generation == token.generation)
            .and_then(|slot| slot.value.as_mut())
    }

    pub(crate) fn remove(&mut self, token: Token) -> Option<T> {
        let slot = self.slots.get_mut(token.index as usize).filter(|slot| slot.generation == token.generation)?;
        let value = slot.value.take()?;
        slot.generation = (slot.generation + 1) & GENERATION_MAX;
        self.free.push(token.index);
        Some(value)
    }

    /// Returns all values with their tokens.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (Token, &mut T)> {
        self.slots.iter_mut().zip(0..).filter_map(|(slot, index)| {
            let generation = slot.generation;
            let value = slot.value.as_mut()?;
            Some((Token { index, generation }, value))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reused_position_has_another_token() {
        let mut slots = Slots::new();
        let first = slots.insert("a");
        let second = slots.insert("b");
        assert_eq!(slots.remove(first), Some("a"));
        assert_eq!(slots.remove(first), None, "removed twice");
        let third = slots.insert("c");
        assert_eq!(third.index, first.index);
        assert_eq!(slots.value(first), None, "a late token found a value");
        assert_eq!(slots.value_mut(first), None);
        assert_eq!(slots.value(third), Some(&"c"));
        let all: Vec<_> = slots.iter_mut().map(|(token, _)| token).collect();
        assert_eq!(all, [third, second]);
    }
}
