//! The framing of a snapshot on a replica's connection. By the framing, the replica detects the end
//! of the snapshot.

use crate::FlowForm;

/// Length of the mark after a snapshot of unknown length, bytes.
pub const MARK_BYTES: usize = 40;

/// Follows the number of flows if they are compressed.
pub(crate) const COMPRESSION: &str = ":lz4";

/// Random digits that precede and follow a snapshot of unknown length.
pub type Mark = [u8; MARK_BYTES];

/// The way in which the end of a snapshot is marked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Framing {
    /// The length precedes the snapshot.
    Length(u64),
    /// This mark precedes and follows the snapshot. Used if the length is unknown when the snapshot
    /// starts.
    Mark(Mark),
    /// The same as `Mark`, for the first of several flows. The mark is also the token with which
    /// the replica requests the other flows.
    Flows(Mark, FlowForm),
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
            Framing::Flows(mark, FlowForm { count, is_compressed }) => {
                let compression = if *is_compressed { COMPRESSION } else { "" };
                [b"$FLOWS:", &mark[..], format!(":{count}{compression}\r\n").as_bytes()].concat()
            }
        }
    }

    /// Returns the bytes after the snapshot.
    #[must_use]
    pub fn trailer(&self) -> &[u8] {
        match self {
            Framing::Length(_) => &[],
            Framing::Mark(mark) | Framing::Flows(mark, _) => mark,
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

    #[test]
    fn the_first_flow_announces_the_number_of_flows() {
        let framing = Framing::Flows([b'a'; MARK_BYTES], FlowForm { count: 4, is_compressed: false });
        assert_eq!(framing.header(), format!("$FLOWS:{}:4\r\n", "a".repeat(MARK_BYTES)).as_bytes());
        assert_eq!(framing.trailer(), [b'a'; MARK_BYTES]);
        let framing = Framing::Flows([b'a'; MARK_BYTES], FlowForm { count: 4, is_compressed: true });
        assert_eq!(framing.header(), format!("$FLOWS:{}:4:lz4\r\n", "a".repeat(MARK_BYTES)).as_bytes());
    }
}
