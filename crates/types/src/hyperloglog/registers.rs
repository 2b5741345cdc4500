//! Registers: six bits each in a dense HyperLogLog, one byte each in [`Registers`].

use super::REGISTERS;

/// Bits of a register.
const REGISTER_BITS: usize = 6;
const REGISTER_MASK: u32 = (1 << REGISTER_BITS) - 1;
/// Bytes of all registers in dense form.
pub(super) const DENSE_BYTES: usize = REGISTERS * REGISTER_BITS / 8;
/// The number of registers with each value.
pub(super) type Histogram = [u32; 1 << REGISTER_BITS];

/// All registers, one byte each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registers {
    values: Box<[u8]>,
}

impl Default for Registers {
    fn default() -> Self {
        Self::new()
    }
}

impl Registers {
    /// Returns registers that are all zero.
    #[must_use]
    pub fn new() -> Self {
        Registers { values: vec![0; REGISTERS].into_boxed_slice() }
    }

    /// Returns the values of the registers.
    #[must_use]
    pub fn values(&self) -> &[u8] {
        &self.values
    }

    /// Iterates over the nonzero registers: their indexes and values.
    pub(super) fn non_zero(&self) -> impl Iterator<Item = (usize, u8)> {
        self.values.iter().copied().enumerate().filter(|(_, value)| *value != 0)
    }

    /// Returns the approximate number of distinct elements in all merged HyperLogLogs.
    #[must_use]
    pub fn count(&self) -> u64 {
        let mut histogram = [0; 1 << REGISTER_BITS];
        for &value in &self.values {
            histogram[usize::from(value)] += 1;
        }
        super::estimate::estimate(&histogram)
    }

    /// Raises `len` registers, starting at `first`, to at least `value`.
    pub(super) fn raise(&mut self, first: usize, len: usize, value: u8) {
        for register in &mut self.values[first..first + len] {
            *register = value.max(*register);
        }
    }

    pub(super) fn raise_to_dense(&mut self, dense: &[u8]) {
        let (quads, _) = self.values.as_chunks_mut::<4>();
        for (mine, three) in quads.iter_mut().zip(dense.as_chunks::<3>().0) {
            for (mine, theirs) in mine.iter_mut().zip(unpack(*three)) {
                *mine = theirs.max(*mine);
            }
        }
    }

    /// Writes the registers in dense form.
    pub(super) fn pack(&self, dense: &mut [u8]) {
        let (quads, _) = self.values.as_chunks::<4>();
        for (quad, three) in quads.iter().zip(dense.as_chunks_mut::<3>().0) {
            let word = quad.iter().rev().fold(0, |word, &value| word << REGISTER_BITS | u32::from(value));
            three.copy_from_slice(&word.to_le_bytes()[..3]);
        }
    }
}

/// Unpacks four registers from three bytes. The first register is in the lowest bits.
#[inline]
fn unpack(three: [u8; 3]) -> [u8; 4] {
    let word = u32::from_le_bytes([three[0], three[1], three[2], 0]);
    std::array::from_fn(|at| (word >> (REGISTER_BITS * at) & REGISTER_MASK) as u8)
}

/// Raises a register in dense form. Returns whether the register was smaller.
#[inline]
pub(super) fn raise(dense: &mut [u8], index: usize, value: u8) -> bool {
    let at = index / 4 * 3;
    let shift = REGISTER_BITS * (index % 4);
    let word = u32::from_le_bytes([dense[at], dense[at + 1], dense[at + 2], 0]);
    if word >> shift & REGISTER_MASK >= u32::from(value) {
        return false;
    }
    let word = word & !(REGISTER_MASK << shift) | u32::from(value) << shift;
    dense[at..at + 3].copy_from_slice(&word.to_le_bytes()[..3]);
    true
}

/// Counts the registers of each value in dense form.
pub(super) fn histogram(dense: &[u8]) -> Histogram {
    // There are four histograms, one for each of the four registers in three bytes. If adjacent
    // registers are equal, their increments then go to different counters and don't wait for each
    // other.
    let mut parts = [[0u32; 1 << REGISTER_BITS]; 4];
    for three in dense.as_chunks::<3>().0 {
        for (part, value) in parts.iter_mut().zip(unpack(*three)) {
            part[usize::from(value)] += 1;
        }
    }
    std::array::from_fn(|value| parts.iter().map(|part| part[value]).sum())
}
