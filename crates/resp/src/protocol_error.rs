//! Protocol errors in requests. After such an error the rest of the stream is unusable. Therefore
//! the client receives the error, and the connection is closed.

use std::fmt;

/// A violation of the protocol. The texts are those of Redis, except for
/// [`Encrypted`](Self::Encrypted), which Redis doesn't detect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProtocolError {
    /// An inline command exceeds 64 KiB without a line end, or 80 KiB with a line end.
    TooBigInline,
    /// A `*` line exceeds 64 KiB without a line end.
    TooBigCount,
    /// A `$` line exceeds 64 KiB without a line end.
    TooBigBulkCount,
    /// The number of arguments isn't a number, or exceeds `INT_MAX`.
    InvalidCount,
    /// More than 10 arguments before authentication.
    UnauthenticatedCount,
    /// An argument starts with this byte instead of `$`.
    ExpectedDollar(u8),
    /// An argument's length isn't a number, is negative, or exceeds `proto-max-bulk-len`.
    InvalidBulkLength,
    /// An argument of more than 16,384 bytes before authentication.
    UnauthenticatedBulkLength,
    /// The start of a TLS handshake, on a connection in plain text. (Redis waits for a line end.)
    Encrypted,
    /// An inline command with an unclosed quote, or with something other than whitespace after a
    /// closing quote.
    UnbalancedQuotes,
    /// An inline command in the stream of a primary.
    InlineOfPrimary,
}

impl ProtocolError {
    /// Returns the text, without the unexpected byte.
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
            Self::Encrypted => "a TLS handshake on a port without TLS",
            Self::UnbalancedQuotes => "unbalanced quotes in request",
            Self::InlineOfPrimary => "Master using the inline protocol. Desync?",
        }
    }

    /// Appends the whole reply, `-ERR Protocol error: …\r\n`. The unexpected byte is sent
    /// unchanged, except that `\r` and `\n` become spaces.
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
    /// Formats the error for the log; the unexpected byte is escaped.
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
    fn unexpected_byte_is_encoded_as_in_redis() {
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
