//! What can be wrong with a request. After any of these the stream can't be understood any more: the connection gets the
//! error and is closed.

use std::fmt;

/// A violation of the protocol, by Redis's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProtocolError {
    /// More than 64 KiB without the end of an inline command.
    TooBigInline,
    /// More than 64 KiB without the end of a `*` line.
    TooBigCount,
    /// More than 64 KiB without the end of a `$` line.
    TooBigBulkCount,
    /// The number of arguments is no number, or more than `INT_MAX`.
    InvalidCount,
    /// More than 10 arguments before authentication.
    UnauthenticatedCount,
    /// An argument doesn't begin with `$`, but with this byte.
    ExpectedDollar(u8),
    /// An argument's length is no number, negative, or above `proto-max-bulk-len`.
    InvalidBulkLength,
    /// An argument of more than 16,384 bytes before authentication.
    UnauthenticatedBulkLength,
    /// An inline command with an open quote, or with something else than a space after a closing one.
    UnbalancedQuotes,
}

impl ProtocolError {
    /// The error as Redis words it, without the unexpected byte.
    const fn text(self) -> &'static str {
        match self {
            Self::TooBigInline => "too big inline request",
            Self::TooBigCount => "too big mbulk count string",
            Self::TooBigBulkCount => "too big bulk count string",
            Self::InvalidCount => "invalid multibulk length",
            Self::UnauthenticatedCount => "unauthenticated multibulk length",
            Self::ExpectedDollar(_) => "expected '$', got '",
            Self::InvalidBulkLength => "invalid bulk length",
            Self::UnauthenticatedBulkLength => "unauthenticated bulk length",
            Self::UnbalancedQuotes => "unbalanced quotes in request",
        }
    }

    /// Appends the whole reply, `-ERR Protocol error: …\r\n`. The unexpected byte goes out as it came in, only that the
    /// two line-end bytes become spaces.
    pub fn encode(self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"-ERR Protocol error: ");
        out.extend_from_slice(self.text().as_bytes());
        if let Self::ExpectedDollar(got) = self {
            out.push(if matches!(got, b'\r' | b'\n') { b' ' } else { got });
            out.push(b'\'');
        }
        out.extend_from_slice(b"\r\n");
    }
}

impl fmt::Display for ProtocolError {
    /// For the log: the unexpected byte is escaped.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Protocol error: {}", self.text())?;
        match self {
            Self::ExpectedDollar(got) => write!(f, "{}'", got.escape_ascii()),
            _ => Ok(()),
        }
    }
}

impl std::error::Error for ProtocolError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_unexpected_byte_prints_as_in_redis() {
        for (got, expected) in [
            (b'x', &b"-ERR Protocol error: expected '$', got 'x'\r\n"[..]),
            (b'\r', b"-ERR Protocol error: expected '$', got ' '\r\n"),
            (b'\n', b"-ERR Protocol error: expected '$', got ' '\r\n"),
            (b'\'', b"-ERR Protocol error: expected '$', got '''\r\n"),
            (1, b"-ERR Protocol error: expected '$', got '\x01'\r\n"),
            (0xff, b"-ERR Protocol error: expected '$', got '\xff'\r\n"),
        ] {
            let mut out = Vec::new();
            ProtocolError::ExpectedDollar(got).encode(&mut out);
            assert_eq!(out, expected);
        }
        assert_eq!(ProtocolError::ExpectedDollar(0xff).to_string(), r"Protocol error: expected '$', got '\xff'");
        assert_eq!(ProtocolError::InvalidCount.to_string(), "Protocol error: invalid multibulk length");
    }
}
