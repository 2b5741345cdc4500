//! Receives the snapshot of a full sync on a replica, and detects its end.

use crate::FlowForm;
use crate::framing::{COMPRESSION, MARK_BYTES, Mark};

/// The meaning of the line before a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Header {
    /// The primary is alive, but the snapshot isn't ready.
    Waiting,
    /// The snapshot follows.
    Payload(Payload),
    /// The first of several flows follows. The replica requests the other flows on connections of
    /// their own ([`flow_request`](super::flow_request)).
    Flows {
        /// The token, which is also the mark of each flow.
        token: Mark,
        /// Number of flows, and whether they are compressed.
        form: FlowForm,
    },
}

/// A snapshot in transfer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Payload {
    /// The number of bytes of the snapshot that are still missing.
    Length(u64),
    /// A mark follows the snapshot. After the mark, the primary sends nothing until the replica's
    /// first acknowledgement.
    Mark {
        /// The mark.
        mark: Mark,
        /// The last received bytes, which may be part of the mark.
        tail: Vec<u8>,
    },
}

impl Header {
    /// Parses the line before a snapshot, without its line end.
    ///
    /// # Errors
    /// The reason why no snapshot follows, for the log.
    pub fn parse(line: &[u8]) -> Result<Self, String> {
        let shown = line.escape_ascii();
        match line {
            [] => Ok(Header::Waiting),
            [b'-', error @ ..] => Err(format!("MASTER aborted replication with an error: {}", error.escape_ascii())),
            [b'$', b'E', b'O', b'F', b':', mark @ ..] => match mark.try_into() {
                Ok(mark) => Ok(Header::Payload(Payload::until(mark))),
                Err(_) => Err(format!("Bad protocol from MASTER: the mark in '{shown}' has not 40 bytes")),
            },
            [b'$', b'F', b'L', b'O', b'W', b'S', b':', flows @ ..] => {
                let parsed = flows.split_at_checked(MARK_BYTES).and_then(|(token, count)| {
                    let plain = count.strip_suffix(COMPRESSION.as_bytes());
                    let digits = plain.unwrap_or(count).strip_prefix(b":")?;
                    let number = std::str::from_utf8(digits).ok()?.parse().ok()?;
                    let form = FlowForm { count: number, is_compressed: plain.is_some() };
                    Some(Header::Flows { token: token.try_into().ok()?, form })
                });
                parsed.ok_or_else(|| format!("Bad protocol from MASTER: no flows in '{shown}'"))
            }
            [b'$', length @ ..] => {
                let length = std::str::from_utf8(length).ok().and_then(|text| text.parse().ok());
                let length = length.ok_or_else(|| format!("Bad protocol from MASTER: no length in '{shown}'"))?;
                Ok(Header::Payload(Payload::Length(length)))
            }
            _ => Err(format!(
                "Bad protocol from MASTER, the first byte is not '$' (we received '{shown}'), are you sure the host and port are right?"
            )),
        }
    }
}

impl Payload {
    /// Returns the state of a snapshot, or of a flow, that ends with this mark.
    #[must_use]
    pub fn until(mark: Mark) -> Self {
        Payload::Mark { mark, tail: Vec::new() }
    }

    /// Returns the length of the whole snapshot, bytes, if it is known. Must be called before any
    /// part is received.
    #[must_use]
    pub fn length(&self) -> Option<u64> {
        if let Payload::Length(bytes) = self { Some(*bytes) } else { None }
    }

    /// Processes received bytes. Appends those that belong to the snapshot to `into`. Returns the
    /// number of bytes used, and whether the snapshot is complete. Any remaining bytes belong to
    /// the stream.
    pub fn feed(&mut self, bytes: &[u8], into: &mut Vec<u8>) -> (usize, bool) {
        match self {
            Payload::Length(left) => {
                let taken = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
                into.extend_from_slice(&bytes[..taken]);
                *left -= taken as u64;
                (taken, *left == 0)
            }
            Payload::Mark { mark, tail } => {
                tail.extend_from_slice(bytes);
                let is_over = tail.ends_with(&mark[..]);
                let ended = tail.len().saturating_sub(MARK_BYTES);
                into.extend(tail.drain(..ended));
                (bytes.len(), is_over)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Receives `bytes` in pieces of `piece` bytes. Returns the snapshot and the remaining bytes.
    fn receive(mut payload: Payload, bytes: &[u8], piece: usize) -> (Vec<u8>, Option<Vec<u8>>) {
        let (mut into, mut at) = (Vec::new(), 0);
        while at < bytes.len() {
            let end = bytes.len().min(at + piece);
            let (taken, is_over) = payload.feed(&bytes[at..end], &mut into);
            at += taken;
            if is_over {
                return (into, Some(bytes[at..].to_vec()));
            }
        }
        (into, None)
    }

    fn payload(line: &str) -> Payload {
        match Header::parse(line.as_bytes()) {
            Ok(Header::Payload(payload)) => payload,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_length_ends_a_snapshot_within_a_read() {
        for piece in [1, 3, 100] {
            let (snapshot, rest) = receive(payload("$5"), b"12345*1\r\n", piece);
            assert_eq!(snapshot, b"12345", "{piece}");
            let rest = rest.expect("it is over");
            assert!(b"*1\r\n".starts_with(&rest), "{piece}");
        }
        assert_eq!(receive(payload("$5"), b"1234", 2), (b"1234".to_vec(), None));
        assert_eq!(payload("$18446744073709551615").length(), Some(u64::MAX));
    }

    #[test]
    fn a_mark_ends_a_snapshot_in_any_pieces() {
        let mark = "0123456789abcdefghijklmnopqrstuvwxyz-+*/";
        for (snapshot, piece) in [("", 1), ("x", 40), ("long enough", 7), ("0123456789", 1), ("a", 1000)] {
            let bytes = [snapshot, mark].concat();
            let (received, rest) = receive(payload(&format!("$EOF:{mark}")), bytes.as_bytes(), piece);
            assert_eq!((received, rest), (snapshot.as_bytes().to_vec(), Some(Vec::new())), "{piece}");
        }
        let cut = [&"x".repeat(100), &mark[..39]].concat();
        assert_eq!(receive(payload(&format!("$EOF:{mark}")), cut.as_bytes(), 9).1, None);
    }

    #[test]
    fn other_lines_are_rejected() {
        assert_eq!(Header::parse(b""), Ok(Header::Waiting));
        let error = |line: &[u8]| Header::parse(line).expect_err("no snapshot follows");
        assert_eq!(error(b"-ERR no"), "MASTER aborted replication with an error: ERR no");
        let flows = format!("$FLOWS:{}:3", "a".repeat(MARK_BYTES));
        for (suffix, is_compressed) in [("", false), (":lz4", true)] {
            let form = FlowForm { count: 3, is_compressed };
            let line = format!("{flows}{suffix}");
            assert_eq!(Header::parse(line.as_bytes()), Ok(Header::Flows { token: [b'a'; MARK_BYTES], form }));
        }
        for count in ["", "3", ":", ":x", ":-1", ":4294967296", "a:3", ":3:", ":3:lz5", ":lz4", "3:lz4"] {
            let line = format!("$FLOWS:{}{count}", "a".repeat(MARK_BYTES));
            assert!(error(line.as_bytes()).contains("no flows"), "{line}");
        }
        assert!(error(b"$FLOWS:short:3").contains("no flows"));
        for line in [&b"$"[..], b"$-1", b"$x", b"$EOF:short", b"+OK", b"*1", b"HTTP/1.1 400 Bad Request"] {
            assert!(error(line).starts_with("Bad protocol from MASTER"), "{}", line.escape_ascii());
        }
    }
}
