//! Patterns of keys and channels.

use pantala_base::glob;

/// The form of a pattern. All forms except [`Shape::Glob`] are matched without the glob matcher. In
/// practice, most patterns are prefixes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    /// `*`: any name except the empty one, as in Redis.
    Any,
    /// A name without special bytes.
    Literal,
    /// A number of plain bytes, followed by one star.
    Prefix(usize),
    /// Any other glob.
    Glob,
}

/// A pattern of keys or channels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pattern {
    text: Box<[u8]>,
    shape: Shape,
}

impl Pattern {
    /// Returns the pattern with this text.
    pub(super) fn new(text: &[u8]) -> Self {
        let is_special = |byte: &u8| matches!(byte, b'*' | b'?' | b'[' | b'\\');
        let shape = match text.iter().position(is_special) {
            None => Shape::Literal,
            Some(0) if text == b"*" => Shape::Any,
            Some(at) if text[at..] == *b"*" => Shape::Prefix(at),
            Some(_) => Shape::Glob,
        };
        Pattern { text: text.into(), shape }
    }

    /// Returns the text.
    pub(super) fn text(&self) -> &[u8] {
        &self.text
    }

    /// Returns whether a name matches, with the same result as [`glob::matches`].
    #[inline]
    pub(super) fn matches(&self, name: &[u8]) -> bool {
        match self.shape {
            Shape::Any => !name.is_empty(),
            Shape::Literal => *self.text == *name,
            Shape::Prefix(len) => name.starts_with(&self.text[..len]),
            Shape::Glob => glob::matches(&self.text, name, false),
        }
    }
}

#[cfg(test)]
mod tests {
    use pantala_base::Random;

    use super::*;

    #[test]
    fn special_patterns_match_like_globs() {
        let mut random = Random::from_seed(7);
        let mut word = |alphabet: &[u8], len: u64| -> Vec<u8> {
            (0..random.below(len)).map(|_| alphabet[random.below(alphabet.len() as u64) as usize]).collect()
        };
        let mut hits = 0;
        for _ in 0..20_000 {
            let (text, name) = (word(b"ab*?[]\\", 5), word(b"ab*", 5));
            let found = Pattern::new(&text).matches(&name);
            hits += u32::from(found);
            assert_eq!(found, glob::matches(&text, &name, false), "{} {}", text.escape_ascii(), name.escape_ascii());
        }
        assert!(hits > 500, "{hits} names match");
    }
}
