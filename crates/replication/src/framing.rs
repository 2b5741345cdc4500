//! How a snapshot is delimited on a replica's connection.

/// Bytes of the mark behind a snapshot of unknown length.
const MARK_BYTES: usize = 40;

/// See the head of this module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Framing {
    /// Its length comes first.
    Length(u64),
    /// This mark comes first and last: the length isn't known when the snapshot starts.
    Mark([u8; MARK_BYTES]),
}

impl Framing {
    /// Returns a framing by a mark of these digits.
    #[must_use]
    pub fn mark(id: &crate::ReplId) -> Self {
        Framing::Mark(id.as_str().as_bytes().try_into().expect("an ID has as many digits as a mark"))
    }

    /// Returns the bytes before the snapshot.
    #[must_use]
    pub fn header(&self) -> Vec<u8> {
        match self {
            Framing::Length(bytes) => format!("${bytes}\r\n").into_bytes(),
            Framing::Mark(mark) => [b"$EOF:", &mark[..], b"\r\n"].concat(),
        }
    }

    /// Returns the bytes behind the snapshot.
    #[must_use]
    pub fn trailer(&self) -> &[u8] {
        match self {
            Framing::Length(_) => &[],
            Framing::Mark(mark) => mark,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn framings_are_those_of_redis() {
        assert_eq!(Framing::Length(12).header(), b"$12\r\n");
        assert_eq!(Framing::Length(12).trailer(), b"");
        let framing = Framing::Mark([b'a'; MARK_BYTES]);
        assert_eq!(framing.header(), format!("$EOF:{}\r\n", "a".repeat(MARK_BYTES)).as_bytes());
        assert_eq!(framing.trailer(), [b'a'; MARK_BYTES]);
    }
}
