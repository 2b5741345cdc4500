//! Replies of a server, RESP2 and RESP3: parses bytes into values.

use std::fmt;

/// Maximum nesting of a reply.
pub const DEPTH_MAX: usize = 32;

/// One reply.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    /// `+`
    Simple(String),
    /// `-` or `!`, including the error code.
    Error(String),
    /// `:`
    Integer(i64),
    /// `$`
    Bulk(Vec<u8>),
    /// `$-1`, `*-1` or `_`.
    Null,
    /// `*`
    Array(Vec<Reply>),
    /// `%`, with keys and values alternating.
    Map(Vec<Reply>),
    /// `~`
    Set(Vec<Reply>),
    /// `>`
    Push(Vec<Reply>),
    /// `,` as text, because tests compare the digits that were sent.
    Double(String),
    /// `#`
    Boolean(bool),
    /// `(` as text.
    BigNumber(String),
    /// `=`, with its three-letter format.
    Verbatim(String, Vec<u8>),
}

impl Reply {
    /// Returns `+OK`.
    #[must_use]
    pub fn ok() -> Reply {
        Reply::Simple("OK".into())
    }

    /// Returns a bulk string.
    pub fn bulk(text: impl AsRef<[u8]>) -> Reply {
        Reply::Bulk(text.as_ref().to_vec())
    }

    /// Returns whether the reply is an error.
    #[must_use]
    pub fn is_error(&self) -> bool {
        matches!(self, Reply::Error(_))
    }

    /// Returns the text of a simple string, error, bulk, verbatim string, double or big number, or
    /// the digits of an integer.
    ///
    /// # Panics
    /// If the reply is a null, a boolean or an aggregate.
    #[must_use]
    pub fn text(&self) -> String {
        match self {
            Reply::Simple(text) | Reply::Error(text) | Reply::Double(text) | Reply::BigNumber(text) => text.clone(),
            Reply::Bulk(bytes) | Reply::Verbatim(_, bytes) => String::from_utf8_lossy(bytes).into_owned(),
            Reply::Integer(value) => value.to_string(),
            other => panic!("no text in {other:?}"),
        }
    }

    /// Returns the value of an integer.
    ///
    /// # Panics
    /// If the reply isn't an integer.
    #[must_use]
    pub fn integer(&self) -> i64 {
        match self {
            Reply::Integer(value) => *value,
            other => panic!("expected an integer, got {other:?}"),
        }
    }

    /// Returns the elements of an array, set, push or map (keys and values alternating).
    ///
    /// # Panics
    /// If the reply isn't one of these.
    #[must_use]
    pub fn elements(&self) -> &[Reply] {
        match self {
            Reply::Array(items) | Reply::Set(items) | Reply::Map(items) | Reply::Push(items) => items,
            other => panic!("expected an aggregate, got {other:?}"),
        }
    }

    /// Returns the value after `name` in a map, or in an array of alternating names and values.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<&Reply> {
        self.elements().chunks(2).find(|pair| pair.len() == 2 && pair[0].text() == name).map(|pair| &pair[1])
    }

    /// Returns the name of the reply's kind.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Reply::Simple(_) => "simple",
            Reply::Error(_) => "error",
            Reply::Integer(_) => "integer",
            Reply::Bulk(_) => "bulk",
            Reply::Null => "null",
            Reply::Array(_) => "array",
            Reply::Map(_) => "map",
            Reply::Set(_) => "set",
            Reply::Push(_) => "push",
            Reply::Double(_) => "double",
            Reply::Boolean(_) => "boolean",
            Reply::BigNumber(_) => "big number",
            Reply::Verbatim(..) => "verbatim",
        }
    }
}

/// Bytes that are not a reply.
#[derive(Debug, PartialEq, Eq)]
pub struct Malformed(pub String);

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "malformed reply: {}", self.0)
    }
}

/// Parses one reply at the start of `bytes`. Returns the reply and its length, or `None` if more
/// bytes are needed.
///
/// # Errors
/// If no reply starts with these bytes.
pub fn parse(bytes: &[u8]) -> Result<Option<(Reply, usize)>, Malformed> {
    let mut position = 0;
    Ok(parse_at(bytes, &mut position, 0)?.map(|reply| (reply, position)))
}

fn parse_at(bytes: &[u8], position: &mut usize, depth: usize) -> Result<Option<Reply>, Malformed> {
    if depth > DEPTH_MAX {
        return Err(Malformed("nested too deep".into()));
    }
    let Some(line) = line(bytes, position) else { return Ok(None) };
    let Some((&kind, rest)) = line.split_first() else {
        return Err(Malformed("empty line".into()));
    };
    let text = || String::from_utf8_lossy(rest).into_owned();
    let number = || text().parse::<i64>().map_err(|_| Malformed(format!("bad number {:?}", text())));
    let reply = match kind {
        b'+' => Reply::Simple(text()),
        b'-' => Reply::Error(text()),
        b':' => Reply::Integer(number()?),
        b',' => Reply::Double(text()),
        b'(' => Reply::BigNumber(text()),
        b'_' => Reply::Null,
        b'#' => Reply::Boolean(rest == b"t"),
        b'$' | b'=' | b'!' => {
            let length = number()?;
            let Ok(length) = usize::try_from(length) else { return Ok(Some(Reply::Null)) };
            let Some(body) = bytes.get(*position..*position + length + 2) else { return Ok(None) };
            if &body[length..] != b"\r\n" {
                return Err(Malformed("a bulk without its line end".into()));
            }
            *position += length + 2;
            let body = &body[..length];
            match kind {
                b'$' => Reply::Bulk(body.to_vec()),
                b'!' => Reply::Error(String::from_utf8_lossy(body).into_owned()),
                _ if length < 4 => return Err(Malformed("a verbatim string without its format".into())),
                _ => Reply::Verbatim(String::from_utf8_lossy(&body[..3]).into_owned(), body[4..].to_vec()),
            }
        }
        b'*' | b'~' | b'>' | b'%' => {
            let length = number()?;
            let Ok(mut length) = usize::try_from(length) else { return Ok(Some(Reply::Null)) };
            if kind == b'%' {
                length *= 2;
            }
            let mut items = Vec::with_capacity(length.min(1024));
            for _ in 0..length {
                let Some(item) = parse_at(bytes, position, depth + 1)? else { return Ok(None) };
                items.push(item);
            }
            match kind {
                b'*' => Reply::Array(items),
                b'~' => Reply::Set(items),
                b'>' => Reply::Push(items),
                _ => Reply::Map(items),
            }
        }
        other => return Err(Malformed(format!("type byte {:?} in {:?}", other as char, show(line)))),
    };
    Ok(Some(reply))
}

/// Returns the line at `position` without its CR LF, and advances `position` past it. Returns
/// `None` if the line is incomplete.
fn line<'a>(bytes: &'a [u8], position: &mut usize) -> Option<&'a [u8]> {
    let rest = bytes.get(*position..)?;
    let end = rest.windows(2).position(|pair| pair == b"\r\n")?;
    *position += end + 2;
    Some(&rest[..end])
}

/// Formats bytes for display: leaves printable ASCII unchanged, escapes all other bytes, and
/// truncates long values.
#[must_use]
pub fn show(bytes: &[u8]) -> String {
    /// Maximum number of bytes shown of a long value.
    const SHOWN_MAX: usize = 400;
    let mut text =
        bytes.iter().take(SHOWN_MAX).flat_map(|byte| std::ascii::escape_default(*byte)).map(char::from).collect();
    if bytes.len() > SHOWN_MAX {
        text = format!("{text}… ({} bytes)", bytes.len());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_is_read_and_every_truncation_waits() {
        let bytes: &[u8] = b"*9\r\n+OK\r\n-ERR x\r\n:-7\r\n$3\r\na\r\n\r\n$-1\r\n*-1\r\n%1\r\n+k\r\n,1.5\r\n~1\r\n#t\r\n=7\r\ntxt:abc\r\n";
        for end in 0..bytes.len() {
            assert_eq!(parse(&bytes[..end]), Ok(None), "cut at {end}");
        }
        let (reply, length) = parse(bytes).unwrap().unwrap();
        assert_eq!(length, bytes.len());
        assert_eq!(reply.elements().len(), 9);
        assert_eq!(reply.elements()[3], Reply::bulk("a\r\n"));
        assert_eq!(reply.elements()[8], Reply::Verbatim("txt".into(), b"abc".to_vec()));
    }

    #[test]
    fn invalid_bytes_are_rejected() {
        assert!(parse(b"hello\r\n").is_err());
        assert!(parse(b"$3\r\nabcde\r\n").is_err());
        let deep = b"*1\r\n".repeat(DEPTH_MAX + 2);
        assert!(parse(&deep).is_err());
    }
}
