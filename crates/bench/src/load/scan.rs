//! Splits a stream into replies without storing them. Reports only the kind of each reply, and the
//! text of an error.
//!
//! Parsing can stop and resume at any byte. The bytes of a bulk are skipped. For an array or
//! another aggregate, the scanner only counts the values that have not been parsed yet.

/// Maximum number of bytes of an incomplete line that are kept. A longer error text is truncated.
const LINE_KEPT_BYTES_MAX: usize = 1024;

/// A complete reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reply<'a> {
    Value,
    /// A reply without a value.
    Null,
    /// An error, or an array that contains an error. The text excludes the dash and the line end.
    Error(&'a [u8]),
}

/// An error: the first byte that can't be part of a reply.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NoReply(pub(crate) u8);

#[derive(Debug, Default)]
pub(crate) struct Scanner {
    /// Number of values that must still be parsed until the outermost reply is complete, including
    /// the current value. The number is 0 between two replies.
    missing: u64,
    /// Number of bytes of the current bulk that must still be skipped, including its line end.
    skip_bytes: u64,
    /// The start of a line that has not arrived completely.
    line: Vec<u8>,
    /// Text of the first error inside an array or another aggregate.
    nested_error: Option<Vec<u8>>,
    /// Whether the outermost reply is null.
    null: bool,
    /// Whether the outermost reply is a push message, which isn't the reply to a command.
    push: bool,
    /// Whether the current bulk is the text of an error. The first bytes of this text are kept in
    /// `line`.
    error_bulk: bool,
}

impl Scanner {
    /// Parses `bytes`, and calls `each` with every complete reply.
    #[inline]
    pub(crate) fn scan(&mut self, mut bytes: &[u8], mut each: impl FnMut(Reply<'_>)) -> Result<(), NoReply> {
        while !bytes.is_empty() {
            if self.skip_bytes > 0 {
                let len = self.skip_bytes.min(bytes.len() as u64) as usize;
                if self.error_bulk && self.line.len() < LINE_KEPT_BYTES_MAX {
                    self.line.extend_from_slice(&bytes[..len]);
                }
                bytes = &bytes[len..];
                self.skip_bytes -= len as u64;
                if self.skip_bytes == 0 {
                    self.bulk_end(&mut each);
                }
                continue;
            }
            let Some(end) = line_end(bytes) else {
                let room = LINE_KEPT_BYTES_MAX.saturating_sub(self.line.len());
                self.line.extend_from_slice(&bytes[..bytes.len().min(room)]);
                return Ok(());
            };
            if self.line.is_empty() {
                self.header(&bytes[..end], &mut each)?;
            } else {
                let mut line = std::mem::take(&mut self.line);
                line.extend_from_slice(&bytes[..end]);
                let result = self.header(&line, &mut each);
                line.clear();
                self.line = line;
                result?;
            }
            bytes = &bytes[end + 1..];
        }
        Ok(())
    }

    /// Handles a complete line, without its `\n`.
    #[inline]
    fn header(&mut self, line: &[u8], each: &mut impl FnMut(Reply<'_>)) -> Result<(), NoReply> {
        let text = line.strip_suffix(b"\r").unwrap_or(line);
        let Some((&kind, text)) = text.split_first() else { return Err(NoReply(b'\r')) };
        let outermost = self.missing == 0;
        if outermost {
            self.missing = 1;
            self.null = false;
            self.push = false;
        }
        match kind {
            b'$' | b'=' | b'!' => match length(text)? {
                None => {
                    self.null = outermost;
                    self.complete(each);
                }
                Some(len) => {
                    self.error_bulk = kind == b'!';
                    self.skip_bytes = len + 2;
                }
            },
            b'+' | b':' | b'#' | b',' | b'(' => self.complete(each),
            b'_' => {
                self.null = outermost;
                self.complete(each);
            }
            b'-' => {
                if outermost {
                    self.missing = 0;
                    each(Reply::Error(text));
                } else {
                    self.nested_error.get_or_insert_with(|| text.to_vec());
                    self.complete(each);
                }
            }
            b'*' | b'~' | b'>' | b'%' | b'|' => {
                let count = length(text)?;
                self.null = outermost && count.is_none();
                self.push |= outermost && kind == b'>';
                let count = count.unwrap_or(0).saturating_mul(if matches!(kind, b'%' | b'|') { 2 } else { 1 });
                // An attribute comes before the reply that it describes, and is not one of the
                // missing replies. `complete` nevertheless subtracts one for it, so one is added
                // here.
                self.missing = self.missing.saturating_add(count + u64::from(kind == b'|'));
                self.complete(each);
            }
            other => return Err(NoReply(other)),
        }
        Ok(())
    }

    fn bulk_end(&mut self, each: &mut impl FnMut(Reply<'_>)) {
        if std::mem::take(&mut self.error_bulk) {
            let text = self.line.strip_suffix(b"\r\n").unwrap_or(&self.line).to_vec();
            self.line.clear();
            self.nested_error.get_or_insert(text);
        }
        self.complete(each);
    }

    /// Records that one missing reply is complete.
    #[inline]
    fn complete(&mut self, each: &mut impl FnMut(Reply<'_>)) {
        self.missing -= 1;
        if self.missing > 0 {
            return;
        }
        if let Some(text) = self.nested_error.take() {
            each(Reply::Error(&text));
        } else if !self.push {
            each(if self.null { Reply::Null } else { Reply::Value });
        }
    }
}

/// Returns the position of the line's `\n`. A plain loop is fastest, because lines have only a few
/// bytes.
#[inline]
fn line_end(bytes: &[u8]) -> Option<usize> {
    bytes.iter().position(|byte| *byte == b'\n')
}

/// Parses the length in a line. Returns `None` for -1.
#[inline]
fn length(text: &[u8]) -> Result<Option<u64>, NoReply> {
    if text == b"-1" {
        return Ok(None);
    }
    if text.is_empty() || text.len() > 18 {
        return Err(NoReply(b'$'));
    }
    let mut len = 0u64;
    for digit in text {
        if !digit.is_ascii_digit() {
            return Err(NoReply(*digit));
        }
        len = len * 10 + u64::from(digit - b'0');
    }
    Ok(Some(len))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(pieces: &[&[u8]]) -> Vec<String> {
        let mut scanner = Scanner::default();
        let mut seen = Vec::new();
        for piece in pieces {
            scanner
                .scan(piece, |reply| {
                    seen.push(match reply {
                        Reply::Value => "value".to_owned(),
                        Reply::Null => "null".to_owned(),
                        Reply::Error(text) => String::from_utf8_lossy(text).into_owned(),
                    });
                })
                .unwrap();
        }
        seen
    }

    /// Every kind of reply, with the report that the test expects for it.
    const STREAM: &[(&[u8], &str)] = &[
        (b"+OK\r\n", "value"),
        (b"$5\r\na\r\nbc\r\n", "value"),
        (b"$0\r\n\r\n", "value"),
        (b"$-1\r\n", "null"),
        (b"*-1\r\n", "null"),
        (b"_\r\n", "null"),
        (b":-12\r\n", "value"),
        (b"-ERR no such thing\r\n", "ERR no such thing"),
        (b"-MOVED 12 127.0.0.1:7000\r\n", "MOVED 12 127.0.0.1:7000"),
        (b"*0\r\n", "value"),
        (b"*3\r\n$-1\r\n*2\r\n+a\r\n:1\r\n$1\r\nx\r\n", "value"),
        (b"*2\r\n+OK\r\n-WRONGTYPE x\r\n", "WRONGTYPE x"),
        (b"%2\r\n+a\r\n:1\r\n+b\r\n*1\r\n_\r\n", "value"),
        (b"~1\r\n#t\r\n", "value"),
        (b",3.5\r\n", "value"),
        (b"(123\r\n", "value"),
        (b"=7\r\ntxt:abc\r\n", "value"),
        (b"!9\r\nSYNTAX ab\r\n", "SYNTAX ab"),
        (b"|1\r\n+ttl\r\n:3\r\n$1\r\nv\r\n", "value"),
        (b">2\r\n+message\r\n$1\r\nv\r\n", ""),
    ];

    #[test]
    fn whole_and_in_pieces_of_any_length() {
        let bytes: Vec<u8> = STREAM.iter().flat_map(|(bytes, _)| bytes.iter().copied()).collect();
        let expected: Vec<&str> = STREAM.iter().map(|(_, seen)| *seen).filter(|seen| !seen.is_empty()).collect();
        for len in 1..=bytes.len() {
            assert_eq!(seen(&bytes.chunks(len).collect::<Vec<_>>()), expected, "pieces of {len} bytes");
        }
    }

    #[test]
    fn consecutive_errors_are_all_reported() {
        assert_eq!(seen(&[b"*1\r\n-A\r\n+OK\r\n-B\r\n"]), ["A", "value", "B"]);
    }

    #[test]
    fn invalid_replies_are_rejected() {
        for bytes in [&b"HTTP/1.1 400\r\n"[..], b"\r\n", b"$x\r\n", b"$\r\n", b"*99999999999999999999\r\n"] {
            assert!(Scanner::default().scan(bytes, |_| ()).is_err(), "{}", bytes.escape_ascii());
        }
    }
}
