//! Decodes replies of all RESP2 and RESP3 types that Redis sends, for tests and the load generator.
//!
//! [`parse_reply`] builds a tree; [`reply_len`] only finds the end of a reply, without allocating.
//! These functions keep no state: a reply that arrives in pieces is scanned again from its start.

use pantala_base::limits::REPLY_DEPTH_MAX;
use pantala_base::number::parse_i64;

/// A reply.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// `+`: a status.
    Simple(Vec<u8>),
    /// `-`: an error, without the dash. Also `!`, RESP3's error of arbitrary bytes.
    Error(Vec<u8>),
    /// `:`: an integer.
    Integer(i64),
    /// `$`: any bytes.
    Bulk(Vec<u8>),
    /// `_`, `$-1` or `*-1`.
    Null,
    /// `*`: an array.
    Array(Vec<Value>),
    /// `%`, in wire order.
    Map(Vec<(Value, Value)>),
    /// `~`, in wire order.
    Set(Vec<Value>),
    /// `>`: a message that isn't the reply to a command.
    Push(Vec<Value>),
    /// `|`: an attribute: pairs that describe the reply after them, and that reply.
    Attribute(Vec<(Value, Value)>, Box<Value>),
    /// `#`: true or false.
    Boolean(bool),
    /// `,`: a floating-point number.
    Double(f64),
    /// `(`: the digits.
    BigNumber(Vec<u8>),
    /// `=`: the three letters of the format, and the text.
    Verbatim([u8; 3], Vec<u8>),
}

/// The reason why bytes aren't a valid reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyError {
    /// No reply type starts with this byte.
    UnknownType(u8),
    /// A number, boolean or length is malformed or out of range.
    Malformed,
    /// A line or bulk doesn't end in `\r\n`.
    MissingLineEnd,
    /// The nesting exceeds [`REPLY_DEPTH_MAX`].
    TooDeep,
}

impl std::fmt::Display for ReplyError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::UnknownType(byte) => write!(f, "unknown reply type '{}'", byte.escape_ascii()),
            Self::Malformed => f.write_str("malformed number or length in reply"),
            Self::MissingLineEnd => f.write_str("reply without line end"),
            Self::TooDeep => write!(f, "reply nested deeper than {REPLY_DEPTH_MAX}"),
        }
    }
}

impl std::error::Error for ReplyError {}

/// Parses the reply at the start of `bytes`. Returns the reply and its length in bytes, or `None`
/// if the reply is incomplete.
///
/// # Errors
///
/// Returns a [`ReplyError`] if no further bytes can complete the reply.
pub fn parse_reply(bytes: &[u8]) -> Result<Option<(Value, usize)>, ReplyError> {
    let mut reader = Reader { bytes, at: 0 };
    match reader.value(0) {
        Ok(value) => Ok(Some((value, reader.at))),
        Err(Stop::Incomplete) => Ok(None),
        Err(Stop::Error(error)) => Err(error),
    }
}

/// Returns the length in bytes of the reply at the start of `bytes`, or `None` if the reply is
/// incomplete. Checks the structure only, not the contents of lines.
///
/// # Errors
///
/// Returns a [`ReplyError`] if the end can't be determined.
pub fn reply_len(bytes: &[u8]) -> Result<Option<usize>, ReplyError> {
    let mut reader = Reader { bytes, at: 0 };
    // Nesting needs no stack: an aggregate only adds to the number of replies to skip.
    let mut replies_left = 1u64;
    while replies_left > 0 {
        match reader.skip_one() {
            Ok(inside) => replies_left = (replies_left - 1).saturating_add(inside),
            Err(Stop::Incomplete) => return Ok(None),
            Err(Stop::Error(error)) => return Err(error),
        }
    }
    Ok(Some(reader.at))
}

/// The reason why parsing stopped early.
enum Stop {
    Incomplete,
    Error(ReplyError),
}

impl From<ReplyError> for Stop {
    fn from(error: ReplyError) -> Self {
        Self::Error(error)
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn value(&mut self, depth: usize) -> Result<Value, Stop> {
        if depth > REPLY_DEPTH_MAX {
            return Err(ReplyError::TooDeep.into());
        }
        let (kind, line) = self.header()?;
        Ok(match kind {
            b'+' => Value::Simple(line.to_vec()),
            b'-' => Value::Error(line.to_vec()),
            b':' => Value::Integer(parse_i64(line).ok_or(ReplyError::Malformed)?),
            b'(' => Value::BigNumber(big_number(line)?.to_vec()),
            b',' => Value::Double(double(line)?),
            b'#' => match line {
                b"t" => Value::Boolean(true),
                b"f" => Value::Boolean(false),
                _ => return Err(ReplyError::Malformed.into()),
            },
            b'_' if line.is_empty() => Value::Null,
            b'_' => return Err(ReplyError::Malformed.into()),
            b'$' | b'*' if line == b"-1" => Value::Null,
            b'$' => Value::Bulk(self.blob(line)?.to_vec()),
            b'!' => Value::Error(self.blob(line)?.to_vec()),
            b'=' => match self.blob(line)? {
                [a, b, c, b':', text @ ..] => Value::Verbatim([*a, *b, *c], text.to_vec()),
                _ => return Err(ReplyError::Malformed.into()),
            },
            b'*' => Value::Array(self.values(line, depth)?),
            b'~' => Value::Set(self.values(line, depth)?),
            b'>' => Value::Push(self.values(line, depth)?),
            b'%' => Value::Map(self.pairs(line, depth)?),
            b'|' => {
                let pairs = self.pairs(line, depth)?;
                Value::Attribute(pairs, Box::new(self.value(depth + 1)?))
            }
            other => return Err(ReplyError::UnknownType(other).into()),
        })
    }

    /// Skips one reply, or the header of an aggregate or attribute. Returns the number of replies
    /// that follow the header and belong to it; 0 for any other reply.
    fn skip_one(&mut self) -> Result<u64, Stop> {
        let (kind, line) = self.header()?;
        match kind {
            b'+' | b'-' | b':' | b'(' | b',' | b'#' | b'_' => Ok(0),
            b'$' | b'*' if line == b"-1" => Ok(0),
            b'$' | b'!' | b'=' => self.blob(line).map(|_| 0),
            b'*' | b'~' | b'>' => Ok(length(line)? as u64),
            b'%' => Ok((length(line)? as u64).saturating_mul(2)),
            b'|' => Ok((length(line)? as u64).saturating_mul(2).saturating_add(1)),
            other => Err(ReplyError::UnknownType(other).into()),
        }
    }

    fn values(&mut self, line: &[u8], depth: usize) -> Result<Vec<Value>, Stop> {
        let len = length(line)?;
        // Reserves nothing for the announced length: the elements may never arrive.
        let mut values = Vec::new();
        for _ in 0..len {
            values.push(self.value(depth + 1)?);
        }
        Ok(values)
    }

    fn pairs(&mut self, line: &[u8], depth: usize) -> Result<Vec<(Value, Value)>, Stop> {
        let len = length(line)?;
        let mut pairs = Vec::new();
        for _ in 0..len {
            pairs.push((self.value(depth + 1)?, self.value(depth + 1)?));
        }
        Ok(pairs)
    }

    /// Returns the type byte and the rest of its line.
    fn header(&mut self) -> Result<(u8, &'a [u8]), Stop> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let end = rest.iter().position(|&byte| byte == b'\n').ok_or(Stop::Incomplete)?;
        let [kind, line @ .., b'\r'] = &rest[..end] else { return Err(ReplyError::MissingLineEnd.into()) };
        self.at += end + 1;
        Ok((*kind, line))
    }

    /// Returns the bytes of the blob whose length `line` holds, without their line end.
    fn blob(&mut self, line: &[u8]) -> Result<&'a [u8], Stop> {
        let len = length(line)?;
        let rest = &self.bytes[self.at..];
        if rest.len() < len.saturating_add(2) {
            return Err(Stop::Incomplete);
        }
        if &rest[len..len + 2] != b"\r\n" {
            return Err(ReplyError::MissingLineEnd.into());
        }
        self.at += len + 2;
        Ok(&rest[..len])
    }
}

fn length(line: &[u8]) -> Result<usize, ReplyError> {
    parse_i64(line).and_then(|len| usize::try_from(len).ok()).ok_or(ReplyError::Malformed)
}

fn big_number(line: &[u8]) -> Result<&[u8], ReplyError> {
    let digits = line.strip_prefix(b"-").unwrap_or(line);
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return Err(ReplyError::Malformed);
    }
    Ok(line)
}

fn double(line: &[u8]) -> Result<f64, ReplyError> {
    // Rust also accepts texts such as `infinity` and `+1`, which no server sends.
    std::str::from_utf8(line).ok().and_then(|text| text.parse().ok()).ok_or(ReplyError::Malformed)
}

#[cfg(test)]
#[path = "value_tests.rs"]
mod tests;
