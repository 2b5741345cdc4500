//! Reads a file of effects: bytes in, commands and annotations out.
//!
//! The format is a subset of the clients' protocol (arrays of bulk strings) with additional
//! *annotations*: lines that start with `#`. A truncated end and an invalid record are different
//! errors. A truncated end means that a crash has interrupted the writing, so the file may be cut
//! there.
//!
//! A group consists of effects that were written together. If a group has a checksum, it is
//! verified before the first record of the group is returned.

use std::fmt;

use pantala_base::crc64;
use pantala_resp::{ArgRange, Args};

use super::TIMESTAMP;
use super::checksum::{Damaged, Group};

/// Maximum length of a line with a number, bytes: prefix, digits, line end.
const NUMBER_LINE_BYTES_MAX: usize = 32;

/// Maximum length of an annotation, bytes, with its line end.
pub const ANNOTATION_BYTES_MAX: usize = 1024;

/// Maximum number of arguments of a command.
const ARGUMENTS_MAX: i64 = i32::MAX as i64;

/// The result of [`Reader::next_record`].
#[derive(Clone, Copy, Debug)]
pub enum Next<'a> {
    /// A command and its offset, bytes from the start of the file.
    Command(u64, Args<'a>),
    /// An annotation, without its line end, and its offset.
    Annotation(u64, &'a [u8]),
    /// More input is needed ([`Reader::feed`] or [`Reader::end_input`]).
    NeedsInput,
    /// The file ended after a command.
    End,
}

/// The kind of error in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The file ends before or within a number.
    NumberCut,
    /// The file ends within a string. The fields are the numbers of required bytes, line end
    /// included, and of available bytes.
    StringCut(u64, u64),
    /// The file ends within an annotation.
    AnnotationCut,
    /// A record starts with neither `*` nor `#`.
    Start(u8),
    /// A string doesn't start with `$`.
    Prefix(u8),
    /// The number of arguments isn't positive.
    Count(i64),
    /// A length is negative or too large.
    Length(i64),
    /// A line with a number has these bytes instead of a line end.
    LineEnd([u8; 2]),
    /// A string is followed by these bytes instead of a line end.
    StringEnd([u8; 2]),
    /// An annotation is too long.
    LongAnnotation,
    /// The file ends within a group that has a checksum. The fields are the numbers of expected and
    /// of available bytes.
    GroupCut(u64, u64),
    /// The checksum of a group of this many bytes is wrong. The offset of the error is that of the
    /// checksum line.
    Checksum(u64),
    /// A checksum line is damaged.
    ChecksumLine,
}

impl Fault {
    /// Returns whether the error is a truncated end of the file.
    #[must_use]
    pub fn is_truncation(self) -> bool {
        matches!(self, Fault::NumberCut | Fault::StringCut(..) | Fault::AnnotationCut | Fault::GroupCut(..))
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::NumberCut | Fault::AnnotationCut => f.write_str("Unexpected end of file"),
            Fault::StringCut(expected, got) => write!(f, "Expected to read {expected} bytes, got {got} bytes"),
            Fault::Start(got) => write!(f, "Expected prefix '*', got: '{}'", got.escape_ascii()),
            Fault::Prefix(got) => write!(f, "Expected prefix '$', got: '{}'", got.escape_ascii()),
            Fault::Count(count) => write!(f, "A command can't have {count} arguments"),
            Fault::Length(length) => {
                write!(f, "Expected to read string of {length} bytes, which is not in the suitable range")
            }
            Fault::LineEnd([first, second]) | Fault::StringEnd([first, second]) => {
                write!(f, "Expected \\r\\n, got: {first:02x}{second:02x}")
            }
            Fault::LongAnnotation => f.write_str("An annotation is too long"),
            Fault::GroupCut(expected, got) => {
                write!(f, "Expected a group of {expected} bytes with a checksum, got {got} bytes")
            }
            Fault::Checksum(bytes) => {
                write!(f, "Wrong checksum: the group of {bytes} bytes behind this line is damaged")
            }
            Fault::ChecksumLine => f.write_str("A line with a checksum is damaged"),
        }
    }
}

/// An error in a file, with its offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Error {
    /// Offset of the error, bytes from the start of the file.
    pub offset: u64,
    /// The kind of error.
    pub fault: Fault,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (at offset {})", self.fault, self.offset)
    }
}

impl std::error::Error for Error {}

/// The reason why a record wasn't read.
pub(super) enum Stop {
    /// The input ends within the record, which has at least `needed` bytes. If the file ends here
    /// too, the error is `fault`, at the offset `at` from the start of the record.
    Short { needed: usize, at: usize, fault: Fault },
    /// The record is invalid at this offset from its start.
    Bad { at: usize, fault: Fault },
}

/// A state machine that reads a file. It must not be used after an error.
#[derive(Debug, Default)]
pub struct Reader {
    /// Input of which the first `at` bytes are consumed.
    buffer: Vec<u8>,
    at: usize,
    /// Offset of the buffer in the file.
    base: u64,
    is_input_over: bool,
    /// Whether any group read so far had a checksum.
    has_checksums: bool,
    /// Number of unread bytes that must be present for the next attempt to read a record.
    wanted: usize,
    /// Number of line ends read within commands.
    lines: u64,
    ranges: Vec<ArgRange>,
}

impl Reader {
    /// Returns a reader of a file from an offset at which a record starts.
    #[must_use]
    pub fn new(offset: u64) -> Self {
        Reader { base: offset, ..Reader::default() }
    }

    /// Adds the next bytes of the file.
    pub fn feed(&mut self, input: &[u8]) {
        self.base += self.at as u64;
        self.buffer.drain(..self.at);
        self.at = 0;
        self.buffer.extend_from_slice(input);
    }

    /// Notes that the file has no more bytes.
    pub fn end_input(&mut self) {
        self.is_input_over = true;
    }

    /// Returns the offset after the last record, bytes from the start of the file.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.base + self.at as u64
    }

    /// Returns the number of line ends read within commands, including those before an error.
    #[must_use]
    pub fn lines(&self) -> u64 {
        self.lines
    }

    /// Reads the next command or annotation.
    ///
    /// # Errors
    /// The file is invalid or truncated at the offset of the error.
    pub fn next_record(&mut self) -> Result<Next<'_>, Error> {
        let unread = self.buffer.len() - self.at;
        if unread == 0 || unread < self.wanted {
            if !self.is_input_over {
                return Ok(Next::NeedsInput);
            }
            if unread == 0 {
                return Ok(Next::End);
            }
        }
        let (start, offset) = (self.at, self.offset());
        self.ranges.clear();
        let input = &self.buffer[start..];
        let found = match input[0] {
            b'#' => annotation(input).and_then(|len| verified(input, len, &mut self.has_checksums)),
            b'*' => command(input, &mut self.ranges),
            other => Err(Stop::Bad { at: 0, fault: Fault::Start(other) }),
        };
        let (at, fault) = match found {
            Ok(len) => {
                (self.at, self.wanted) = (start + len, 0);
                let input = &self.buffer[start..start + len];
                if input[0] == b'#' {
                    return Ok(Next::Annotation(offset, input.trim_ascii_end()));
                }
                self.lines += 1 + 2 * self.ranges.len() as u64;
                return Ok(Next::Command(offset, Args::new(input, &self.ranges)));
            }
            Err(Stop::Short { needed, .. }) if !self.is_input_over => {
                self.wanted = needed;
                return Ok(Next::NeedsInput);
            }
            Err(Stop::Short { at, fault, .. } | Stop::Bad { at, fault }) => (at, fault),
        };
        // Each whole argument has two lines. If an argument is incomplete, its first line, the
        // number, may have been read too.
        let has_length = matches!(fault, Fault::StringCut(..) | Fault::StringEnd(_) | Fault::Length(_));
        self.lines += u64::from(at > 0) + 2 * self.ranges.len() as u64 + u64::from(has_length);
        Err(Error { offset: offset + at as u64, fault })
    }
}

/// Returns the length of an annotation.
fn annotation(input: &[u8]) -> Result<usize, Stop> {
    match input.iter().take(ANNOTATION_BYTES_MAX).position(|byte| *byte == b'\n') {
        Some(end) => Ok(end + 1),
        None if input.len() >= ANNOTATION_BYTES_MAX => Err(Stop::Bad { at: 0, fault: Fault::LongAnnotation }),
        None => Err(Stop::Short { needed: input.len() + 1, at: 0, fault: Fault::AnnotationCut }),
    }
}

/// If the annotation of length `len` is a checksum line, verifies the group after it. Returns
/// `len`.
///
/// An annotation of an unknown kind may be a checksum line with a damaged prefix. It is therefore
/// accepted only under two conditions: it is text, and no group before it had a checksum.
fn verified(input: &[u8], len: usize, has_checksums: &mut bool) -> Result<usize, Stop> {
    let (line, rest) = input.split_at(len);
    let is_text = || line.trim_ascii_end().iter().all(|byte| matches!(byte, b' '..=b'~' | b'\t'));
    let group = match Group::read(line) {
        None if line.starts_with(TIMESTAMP) || (!*has_checksums && is_text()) => return Ok(len),
        None | Some(Err(Damaged)) => return Err(Stop::Bad { at: 0, fault: Fault::ChecksumLine }),
        Some(Ok(group)) => group,
    };
    let group_len = usize::try_from(group.bytes).unwrap_or(usize::MAX);
    match rest.get(..group_len) {
        Some(bytes) if crc64(0, bytes) == group.crc => {
            *has_checksums = true;
            Ok(len)
        }
        Some(_) => Err(Stop::Bad { at: 0, fault: Fault::Checksum(group.bytes) }),
        None => Err(Stop::Short {
            needed: len.saturating_add(group_len),
            at: 0,
            fault: Fault::GroupCut(group.bytes, rest.len() as u64),
        }),
    }
}

/// Reads a command: appends the ranges of its arguments and returns its length.
fn command(input: &[u8], ranges: &mut Vec<ArgRange>) -> Result<usize, Stop> {
    let (count, mut at) = number(input, 0)?;
    if !(1..=ARGUMENTS_MAX).contains(&count) {
        return Err(Stop::Bad { at: 0, fault: Fault::Count(count) });
    }
    for _ in 0..count {
        match input.get(at) {
            None => return Err(Stop::Short { needed: at + 1, at, fault: Fault::NumberCut }),
            Some(b'$') => {}
            Some(&other) => return Err(Stop::Bad { at, fault: Fault::Prefix(other) }),
        }
        let (length, start) = number(input, at)?;
        let whole = usize::try_from(length).ok().filter(|length| *length <= isize::MAX as usize - start - 2);
        let Some(len) = whole else { return Err(Stop::Bad { at, fault: Fault::Length(length) }) };
        let end = start + len;
        match input.get(end..end + 2) {
            None => {
                let fault = Fault::StringCut(len as u64 + 2, (input.len() - start) as u64);
                return Err(Stop::Short { needed: end + 2, at: start, fault });
            }
            Some(b"\r\n") => {}
            Some(other) => return Err(Stop::Bad { at: start, fault: Fault::StringEnd([other[0], other[1]]) }),
        }
        ranges.push(ArgRange::new(start, len));
        at = end + 2;
    }
    Ok(at)
}

/// Reads the number after the prefix at `at`. Returns the number and the start of the next line.
pub(super) fn number(input: &[u8], at: usize) -> Result<(i64, usize), Stop> {
    let line = &input[at + 1..input.len().min(at + NUMBER_LINE_BYTES_MAX)];
    let (sign, digits) = match line.split_first() {
        Some((b'-', digits)) => (-1, digits),
        _ => (1, line),
    };
    let mut value: i64 = 0;
    let mut len = 0;
    while let Some(digit) = digits.get(len).filter(|byte| byte.is_ascii_digit()) {
        value = value.saturating_mul(10).saturating_add(i64::from(digit - b'0'));
        len += 1;
    }
    let end = line.len() - digits.len() + len;
    let bytes = |index: usize| line.get(index).copied().unwrap_or(0);
    match line.get(end..end + 2) {
        Some(b"\r\n") => Ok((sign * value, at + 1 + end + 2)),
        // Waits for both bytes of the line end, so that the error doesn't depend on how the input
        // is split.
        None if line.len() + 1 < NUMBER_LINE_BYTES_MAX => {
            let fault = match line[end..] {
                [] | [b'\r'] => Fault::NumberCut,
                _ => Fault::LineEnd([bytes(end), 0]),
            };
            Err(Stop::Short { needed: at + 1 + end + 2, at, fault })
        }
        _ => Err(Stop::Bad { at, fault: Fault::LineEnd([bytes(end), bytes(end + 1)]) }),
    }
}
