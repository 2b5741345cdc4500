//! Replication IDs.

use std::fmt;

use pantala_base::Random;

/// Number of digits of an ID.
const DIGITS: usize = 40;

/// A replication ID: 40 lower-case hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ReplId([u8; DIGITS]);

impl ReplId {
    /// Returns a random ID.
    #[must_use]
    pub fn random(random: &mut Random) -> Self {
        ReplId(std::array::from_fn(|_| b"0123456789abcdef"[(random.next_u64() & 15) as usize]))
    }

    /// Parses an ID of upper-case or lower-case digits.
    #[must_use]
    pub fn parse(text: &[u8]) -> Option<Self> {
        let digits: [u8; DIGITS] = text.try_into().ok()?;
        digits.iter().all(u8::is_ascii_hexdigit).then(|| ReplId(digits.map(|digit| digit.to_ascii_lowercase())))
    }

    /// Returns the digits.
    #[must_use]
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).expect("hexadecimal digits")
    }
}

impl fmt::Display for ReplId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for ReplId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_forty_hexadecimal_digits() {
        let id = ReplId::random(&mut Random::from_seed(7));
        assert_eq!(id.as_str().len(), 40);
        assert_eq!(ReplId::parse(id.as_str().to_uppercase().as_bytes()), Some(id));
        assert_ne!(id, ReplId::random(&mut Random::from_seed(8)));
        let text = id.as_str();
        for wrong in ["", "?", &text[..39], &format!("{text}0"), &format!("{}g", &text[..39])] {
            assert_eq!(ReplId::parse(wrong.as_bytes()), None, "{wrong}");
        }
    }
}
