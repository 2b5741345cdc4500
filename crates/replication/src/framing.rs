//! The framing of a snapshot on a replica's connection. By the framing, the replica detects the end
//! of the snapshot.

/// Length of the mark after a snapshot of unknown length, bytes.
const MARK_BYTES: usize = 40;

/// The way in which the end of a snapshot is marked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Framing {
    /// The length precedes the snapshot.
    Length(u64),
    /// This mark precedes and follows the snapshot. Used if the length is unknown when the snapshot
    /// starts.
    Mark([u8; MARK_BYTES]),
}

impl Framing {
    /// Returns a framing with a mark that consists of the digits of `id`.
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

    /// Returns the bytes after the snapshot.
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
