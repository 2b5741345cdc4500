//! Parses requests: bytes in, commands out. Each connection (in the crate `session`) has one
//! [`Parser`].
//!
//! ```text
//!            '*'                     n > 0                      last bulk
//!   Start ─────────▶ Count ─────────────────▶ BulkHeader ◀──▶ Bulk ─────────▶ complete ─▶ Start
//!     │ other          │ n <= 0
//!     └──▶ Inline ─────┴──────────────────────────────────────────────────────▶ complete ─▶ Start
//! ```
//!
//! A *bulk* is an argument, whose length is in the header line before it: `$5\r\nhello\r\n`. A
//! header line ends at its first `\r`. The parser skips the byte after this `\r`, and the two bytes
//! after a bulk, without checking that they are line ends. An inline command ends at its first
//! `\n`, with or without `\r` before it. A NUL byte in a line hides the rest of the line, so the
//! line's end is never found, and the line is rejected once it exceeds the limit. Redis behaves the
//! same way.

use pantala_base::limits::{
    BULK_UNAUTHENTICATED_MAX, MULTIBULK_MAX, MULTIBULK_UNAUTHENTICATED_MAX, PROTO_INLINE_MAX_SIZE,
    PROTO_MAX_BULK_LEN_DEFAULT,
};
use pantala_base::number::parse_i64;

use crate::args::ArgRange;
use crate::inline::split_line;
use crate::protocol_error::ProtocolError;

/// Length of the line end after a header line and after a bulk, in bytes.
const LINE_END_LEN: usize = 2;

/// Size of Redis's reads, in bytes. Redis checks the length of an inline command only after a read,
/// so a line that arrives complete may exceed the limit by up to this length.
const REDIS_READ_LEN: usize = 16 * 1024;

/// Limits the memory that is reserved in advance for the remaining arguments of a long command. The
/// memory suffices for at most this number of further arguments per argument received.
const TRUST: usize = 8;

/// Maximum capacity for ranges that a parser keeps between commands. A larger vector is freed.
const RANGES_KEPT_MAX: usize = 1_024;

/// Minimum capacity of a list of ranges that is moved to the caller instead of copied. Also the
/// minimum length of a list at which memory for the remaining ranges is reserved in advance.
const RANGES_MOVED_MIN: usize = 16 * 1_024;

/// Limits on the requests of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Longest argument in bytes (`proto-max-bulk-len`).
    pub max_bulk_len: usize,
    /// Whether the client is authenticated. Otherwise a command has at most 10 arguments of 16,384
    /// bytes each.
    pub authenticated: bool,
    /// Longest line whose end hasn't been received, in bytes. Applies to an inline command and to a
    /// `*` or `$` header.
    pub max_inline: usize,
}

impl Limits {
    /// The `max_bulk_len` of the stream that a replica receives from its primary. Arguments in this
    /// stream have no limit. Its only valid inline commands are empty lines, which keep the link
    /// alive.
    pub const PRIMARY_BULK_LEN: usize = usize::MAX;
}

impl Default for Limits {
    fn default() -> Self {
        Self { max_bulk_len: PROTO_MAX_BULK_LEN_DEFAULT, authenticated: true, max_inline: PROTO_INLINE_MAX_SIZE }
    }
}

/// The part of a command that the parser expects next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// The first byte of a command.
    #[default]
    Start,
    /// An inline command's line.
    Inline,
    /// The number of arguments: the line after `*`.
    Count,
    /// An argument's `$` line.
    BulkHeader,
    /// An argument's bytes and line end.
    Bulk,
}

/// The parser of one connection. The head of the crate describes who owns the buffer, the parser
/// and the ranges.
#[derive(Debug, Default)]
pub struct Parser {
    state: State,
    /// Start of the current line or bulk.
    at: usize,
    /// End of the part of the line that was searched for a line end.
    searched: usize,
    /// Arguments not yet parsed, including the current one.
    arguments_left: usize,
    /// Length of the current bulk.
    bulk_len: usize,
    /// Bytes missing from the current bulk and its line end.
    needed: usize,
    /// Ranges of an incomplete command's arguments.
    ranges: Vec<ArgRange>,
}

impl Parser {
    /// Creates a parser.
    pub fn new() -> Self {
        Self::default()
    }

    /// Parses the command at the start of `buf`.
    ///
    /// - `Ok(Some(len))`: a complete command of `len` bytes. The ranges of its arguments have been
    ///   appended to `args` (none for an empty command: `\r\n`, `*0\r\n`, `*-1\r\n`). The next call
    ///   starts at the next command.
    /// - `Ok(None)`: more bytes are needed; nothing was appended. The next call must pass the same
    ///   bytes, at any address, with more bytes after them. Parsed bytes aren't scanned again.
    ///
    /// `buf` changes only when an inline command is complete: its quotes and escapes are removed in
    /// place.
    ///
    /// # Errors
    ///
    /// Returns a [`ProtocolError`] and appends nothing. The caller closes the connection, or calls
    /// [`reset`](Parser::reset) before any other use.
    #[inline]
    pub fn parse(
        &mut self,
        buf: &mut [u8],
        args: &mut Vec<ArgRange>,
        limits: &Limits,
    ) -> Result<Option<usize>, ProtocolError> {
        match self.state {
            State::Start => match buf.first() {
                Some(b'*') => self.start(buf, args, limits),
                Some(_) => {
                    self.state = State::Inline;
                    self.at = 0;
                    self.searched = 0;
                    self.inline(buf, args, limits)
                }
                None => Ok(None),
            },
            State::Inline => self.inline(buf, args, limits),
            State::Count | State::BulkHeader | State::Bulk => self.resume(buf, args, limits),
        }
    }

    /// Returns the number of bytes missing from the current argument, including its line end: at
    /// most `proto-max-bulk-len` + 2, or 0 if unknown. The caller may reserve this many bytes, but
    /// a client may send less than it announced.
    #[inline]
    pub fn needed(&self) -> usize {
        self.needed
    }

    /// Returns whether a command has started but isn't complete.
    #[inline]
    pub fn is_within_command(&self) -> bool {
        self.state != State::Start
    }

    /// Returns the length of the parsed part of the incomplete command, in bytes: its header, its
    /// complete arguments, and the current argument's `$` line if that is complete.
    #[inline]
    pub fn split_bytes(&self) -> usize {
        match self.state {
            State::Start | State::Inline | State::Count => 0,
            State::BulkHeader | State::Bulk => self.at,
        }
    }

    /// Discards the incomplete command.
    pub fn reset(&mut self) {
        *self = Self::default();
    }

    /// Parses a command from its `*`. This is the fast path, for commands that arrived in one
    /// piece: ranges are appended directly to `args`.
    ///
    /// Keeps its state in local variables. In unusual cases (the end of the buffer, a long header,
    /// a limit) it stores the position and calls [`multibulk`](Parser::multibulk).
    #[inline]
    fn start(&mut self, buf: &[u8], args: &mut Vec<ArgRange>, limits: &Limits) -> Result<Option<usize>, ProtocolError> {
        let args_before = args.len();
        let len_max = if limits.authenticated { limits.max_bulk_len } else { 0 };
        let (mut arguments_left, mut at);
        if let Some((count, len)) = short_start(buf)
            && len <= len_max
            && SHORT_START_LEN + len + LINE_END_LEN <= buf.len()
        {
            args.push(ArgRange::new(SHORT_START_LEN, len));
            (arguments_left, at) = (count - 1, SHORT_START_LEN + len + LINE_END_LEN);
        } else {
            let fast = short_header(buf, 0, b'*')
                .filter(|&(count, next)| count > 0 && next <= buf.len())
                .filter(|&(count, _)| limits.authenticated || count <= MULTIBULK_UNAUTHENTICATED_MAX);
            let Some((count, next)) = fast else {
                self.state = State::Count;
                self.at = 0;
                self.searched = 1;
                return self.start_slow(buf, args, args_before, limits);
            };
            (arguments_left, at) = (count, next);
        }
        while arguments_left > 0 {
            let fast = short_header(buf, at, b'$')
                .filter(|&(len, start)| len <= len_max && start + len + LINE_END_LEN <= buf.len());
            let Some((len, start)) = fast else {
                self.expect_bulk_header(at);
                self.arguments_left = arguments_left;
                return self.start_slow(buf, args, args_before, limits);
            };
            args.push(ArgRange::new(start, len));
            at = start + len + LINE_END_LEN;
            arguments_left -= 1;
        }
        Ok(Some(at))
    }

    /// Continues where [`start`](Parser::start) found an unusual case.
    #[cold]
    #[inline(never)]
    fn start_slow(
        &mut self,
        buf: &[u8],
        args: &mut Vec<ArgRange>,
        args_before: usize,
        limits: &Limits,
    ) -> Result<Option<usize>, ProtocolError> {
        let result = self.multibulk(buf, args, limits);
        match result {
            Ok(Some(_)) => self.state = State::Start,
            Ok(None) => self.ranges.extend(args.drain(args_before..)),
            Err(_) => args.truncate(args_before),
        }
        result
    }

    /// Continues an incomplete command. The ranges of its arguments stay in `self.ranges` until the
    /// command is complete. They are thus moved to the caller only once, even if many arguments
    /// arrive in many pieces.
    fn resume(
        &mut self,
        buf: &[u8],
        args: &mut Vec<ArgRange>,
        limits: &Limits,
    ) -> Result<Option<usize>, ProtocolError> {
        let mut ranges = std::mem::take(&mut self.ranges);
        self.reserve(&mut ranges);
        let result = self.multibulk(buf, &mut ranges, limits);
        if let Ok(Some(_)) = result {
            self.state = State::Start;
            if args.is_empty() && ranges.capacity() >= RANGES_MOVED_MIN {
                std::mem::swap(args, &mut ranges);
            } else {
                args.append(&mut ranges);
            }
        }
        if !ranges.is_empty() || ranges.capacity() <= RANGES_KEPT_MAX {
            self.ranges = ranges;
        }
        result
    }

    /// Reserves memory in a long list for the arguments that are left. Announcing a number of
    /// arguments costs the sender nothing, so the reserved number is at most a multiple of the
    /// arguments received.
    fn reserve(&self, ranges: &mut Vec<ArgRange>) {
        let room = ranges.capacity() - ranges.len();
        if ranges.len() >= RANGES_MOVED_MIN && room < self.arguments_left.min(ranges.len()) {
            // If this fails, the list grows later as any vector does.
            let _ = ranges.try_reserve_exact(self.arguments_left.min(ranges.len() * TRUST));
        }
    }

    /// Parses as far as `buf` reaches, in any state but `Start` and `Inline`.
    fn multibulk(
        &mut self,
        buf: &[u8],
        ranges: &mut Vec<ArgRange>,
        limits: &Limits,
    ) -> Result<Option<usize>, ProtocolError> {
        if self.state == State::Count {
            let Some((count, next)) = self.count(buf, limits)? else { return Ok(None) };
            if count == 0 {
                return Ok(Some(next));
            }
            self.arguments_left = count;
            self.expect_bulk_header(next);
        }
        loop {
            if self.state == State::BulkHeader {
                let Some((len, next)) = self.bulk_header(buf, limits)? else { return Ok(None) };
                self.state = State::Bulk;
                self.at = next;
                self.bulk_len = len;
            }
            // The sum can't overflow: a length has at most 63 bits, and an offset fewer. Saturation
            // only guards against a corrupt length.
            let end = self.at.saturating_add(self.bulk_len).saturating_add(LINE_END_LEN);
            if end > buf.len() {
                self.needed = end - buf.len();
                return Ok(None);
            }
            self.needed = 0;
            ranges.push(ArgRange::new(self.at, self.bulk_len));
            self.arguments_left -= 1;
            if self.arguments_left == 0 {
                return Ok(Some(end));
            }
            self.expect_bulk_header(end);
        }
    }

    /// Expects a `$` line at `at`.
    #[inline]
    fn expect_bulk_header(&mut self, at: usize) {
        self.state = State::BulkHeader;
        self.at = at;
        self.searched = at;
    }

    /// Parses the `*` line. Returns its number (0 if negative) and the start of the next line.
    fn count(&mut self, buf: &[u8], limits: &Limits) -> Result<Option<(usize, usize)>, ProtocolError> {
        let Some(end) = self.line_end(buf, b'\r', limits).map_err(|TooLong| ProtocolError::TooBigCount)? else {
            return Ok(None);
        };
        let count = parse_i64(&buf[self.at + 1..end]).ok_or(ProtocolError::InvalidCount)?;
        if count > MULTIBULK_MAX as i64 {
            return Err(ProtocolError::InvalidCount);
        }
        if count > MULTIBULK_UNAUTHENTICATED_MAX as i64 && !limits.authenticated {
            return Err(ProtocolError::UnauthenticatedCount);
        }
        Ok(Some((count.max(0) as usize, end + LINE_END_LEN)))
    }

    /// Parses the `$` line. Returns its length and the start of the bulk.
    fn bulk_header(&mut self, buf: &[u8], limits: &Limits) -> Result<Option<(usize, usize)>, ProtocolError> {
        let (len, next) = match short_header(buf, self.at, b'$').filter(|&(_, next)| next <= buf.len()) {
            Some(found) => found,
            None => match self.long_bulk_header(buf, limits)? {
                Some(found) => found,
                None => return Ok(None),
            },
        };
        if len > limits.max_bulk_len {
            return Err(ProtocolError::InvalidBulkLength);
        }
        if len > BULK_UNAUTHENTICATED_MAX && !limits.authenticated {
            return Err(ProtocolError::UnauthenticatedBulkLength);
        }
        Ok(Some((len, next)))
    }

    /// Parses a `$` line that is incomplete, malformed, or too long for [`short_header`].
    fn long_bulk_header(&mut self, buf: &[u8], limits: &Limits) -> Result<Option<(usize, usize)>, ProtocolError> {
        let Some(end) = self.line_end(buf, b'\r', limits).map_err(|TooLong| ProtocolError::TooBigBulkCount)? else {
            return Ok(None);
        };
        if buf[self.at] != b'$' {
            return Err(ProtocolError::ExpectedDollar(buf[self.at]));
        }
        let len = parse_i64(&buf[self.at + 1..end]).ok_or(ProtocolError::InvalidBulkLength)?;
        let len = usize::try_from(len).map_err(|_| ProtocolError::InvalidBulkLength)?;
        Ok(Some((len, end + LINE_END_LEN)))
    }

    /// Parses an inline command once its line is complete.
    #[cold]
    fn inline(
        &mut self,
        buf: &mut [u8],
        args: &mut Vec<ArgRange>,
        limits: &Limits,
    ) -> Result<Option<usize>, ProtocolError> {
        // The bytes of a TLS record of type "handshake", version 3.
        if buf.starts_with(&[22, 3]) {
            return Err(ProtocolError::Encrypted);
        }
        let found = self.line_end(buf, b'\n', limits).map_err(|TooLong| ProtocolError::TooBigInline)?;
        let Some(end) = found else { return Ok(None) };
        if end >= limits.max_inline + REDIS_READ_LEN {
            return Err(ProtocolError::TooBigInline);
        }
        let line_len = if end > 0 && buf[end - 1] == b'\r' { end - 1 } else { end };
        if line_len > 0 && limits.max_bulk_len == Limits::PRIMARY_BULK_LEN {
            return Err(ProtocolError::InlineOfPrimary);
        }
        split_line(&mut buf[..line_len], args).map_err(|_| ProtocolError::UnbalancedQuotes)?;
        self.state = State::Start;
        Ok(Some(end + 1))
    }

    /// Returns the end of the line that starts at `self.at`. The search continues where the last
    /// search stopped. Returns `Ok(None)` while the line is incomplete and within the limit. A line
    /// that ends with `\r` is complete once the byte after the `\r` has arrived.
    #[cold]
    fn line_end(&mut self, buf: &[u8], end: u8, limits: &Limits) -> Result<Option<usize>, TooLong> {
        let start = self.searched.min(buf.len());
        let stop = buf[start..].iter().position(|&byte| byte == end || byte == 0);
        self.searched = stop.map_or(buf.len(), |offset| start + offset);
        match buf.get(self.searched) {
            Some(&byte) if byte == end => {
                let complete = end != b'\r' || self.searched + 1 < buf.len();
                Ok(complete.then_some(self.searched))
            }
            _ if buf.len().saturating_sub(self.at) > limits.max_inline => Err(TooLong),
            _ => Ok(None),
        }
    }
}

/// The error for a line that exceeds the limit and whose end hasn't been received.
struct TooLong;

/// Bytes that [`short_start`] parses.
const SHORT_START_LEN: usize = 8;

/// Parses the two numbers of `*n\r\n$m\r\n` as one word. Returns `None` for any other start. Nearly
/// all commands start this way: with at most nine arguments and a name of at most nine bytes.
#[inline]
fn short_start(buf: &[u8]) -> Option<(usize, usize)> {
    const ZEROS: u64 = u64::from_le_bytes(*b"*0\r\n$0\r\n");
    const DIGITS: u64 = 0xf << 8 | 0xf << 40;
    let word = u64::from_le_bytes(*buf.first_chunk::<SHORT_START_LEN>()?) ^ ZEROS;
    let (count, len) = ((word >> 8 & 0xf) as usize, (word >> 40 & 0xf) as usize);
    (word & !DIGITS == 0 && (1..=9).contains(&count) && len <= 9).then_some((count, len))
}

/// Parses the header line of `kind` at `at`. The line must have one to six digits without a leading
/// zero (except `0` itself), and the buffer at least eight bytes from `at` on. Returns the number
/// and the start of the next line, which may be past the end of the buffer. Returns `None` for any
/// other line, valid or not.
///
/// Costs one bounds check per line and one compare per digit. With this function, the parser takes
/// about 40 instructions for a whole argument. An alternative that reads all digits as one word
/// without branches takes 85 instructions for the header line alone, which doubles the time per
/// command. The alternative gains nothing even if the number of digits varies between arguments.
#[inline]
fn short_header(buf: &[u8], at: usize, kind: u8) -> Option<(usize, usize)> {
    let line: &[u8; 8] = buf.get(at..)?.first_chunk()?;
    let mut number = usize::from(line[1].wrapping_sub(b'0'));
    if line[0] != kind || number > 9 {
        return None;
    }
    for (len, byte) in line.iter().enumerate().skip(2) {
        if *byte == b'\r' {
            return Some((number, at + len + LINE_END_LEN));
        }
        let digit = usize::from(byte.wrapping_sub(b'0'));
        if digit > 9 || number == 0 {
            return None;
        }
        number = number * 10 + digit;
    }
    None
}

#[cfg(test)]
#[path = "parser_tests.rs"]
mod tests;
