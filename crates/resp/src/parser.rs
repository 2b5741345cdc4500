//! Requests: bytes in, commands out.
//!
//! ```text
//!            '*'                     n > 0                      last bulk
//!   Start ─────────▶ Count ─────────────────▶ BulkHeader ◀──▶ Bulk ─────────▶ complete ─▶ Start
//!     │ other          │ n <= 0
//!     └──▶ Inline ─────┴──────────────────────────────────────────────────────▶ complete ─▶ Start
//! ```
//!
//! A header line ends at its first `\r`; the byte after that is taken for the `\n` unseen, and so are the two bytes after a
//! bulk. An inline command ends at its first `\n`, with or without `\r` before it. A NUL byte in a line hides the rest of
//! it: the line never ends and is refused once it is too long. All of that is how Redis behaves.

use pantala_base::limits::{
    BULK_UNAUTHENTICATED_MAX, MULTIBULK_MAX, MULTIBULK_UNAUTHENTICATED_MAX, PROTO_INLINE_MAX_SIZE,
    PROTO_MAX_BULK_LEN_DEFAULT,
};
use pantala_base::number::parse_i64;

use crate::args::ArgRange;
use crate::inline::split_line;
use crate::protocol_error::ProtocolError;

/// Bytes after a bulk and at the end of a header line.
const LINE_END_LEN: usize = 2;

/// How much Redis reads at a time before it looks for a line's end: an inline command that came in one piece may be longer than the
/// limit by that much. Bytes.
const REDIS_READ_LEN: usize = 16 * 1024;

/// Room for ranges that a parser keeps between commands; what a bigger command took is given back.
const RANGES_KEPT_MAX: usize = 1_024;

/// What a connection may send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Longest argument in bytes (`proto-max-bulk-len`).
    pub max_bulk_len: usize,
    /// Whether the connection may run commands: until then at most 10 arguments of 16,384 bytes each.
    pub authenticated: bool,
    /// Longest line in bytes, seen without its end: of an inline command, a `*` or a `$` header.
    pub max_inline: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { max_bulk_len: PROTO_MAX_BULK_LEN_DEFAULT, authenticated: true, max_inline: PROTO_INLINE_MAX_SIZE }
    }
}

/// What the parser reads next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// The first byte of a command.
    #[default]
    Start,
    /// An inline command's line.
    Inline,
    /// The line after `*`.
    Count,
    /// An argument's `$` line.
    BulkHeader,
    /// An argument's bytes and line end.
    Bulk,
}

/// Reads the commands of one connection. See the crate's page for who owns what.
#[derive(Debug, Default)]
pub struct Parser {
    state: State,
    /// Where the line or bulk that is being read begins.
    at: usize,
    /// Up to where that line was searched for its end.
    searched: usize,
    /// Arguments still to come, the one being read included.
    arguments_left: usize,
    /// Length of the bulk being read.
    bulk_len: usize,
    /// Bytes missing for the bulk being read.
    needed: usize,
    /// Arguments of a command that isn't complete.
    ranges: Vec<ArgRange>,
}

impl Parser {
    /// A parser before its first command.
    pub fn new() -> Self {
        Self::default()
    }

    /// Reads the command at the head of `buf`.
    ///
    /// `Ok(Some(len))`: it is complete and `len` bytes long; the ranges of its arguments were appended to `args` (none for
    /// an empty command: `\r\n`, `*0\r\n`, `*-1\r\n`), and the next call begins at the next command.
    ///
    /// `Ok(None)`: more bytes are needed, nothing was appended. The next call has to bring the same bytes again, wherever
    /// in memory, and more behind them; what was read isn't read again.
    ///
    /// `buf` changes only when an inline command is complete: its quotes and escapes are taken off in place.
    ///
    /// # Errors
    ///
    /// A [`ProtocolError`], nothing appended: the connection is to be closed. [`reset`](Parser::reset) before any
    /// other use.
    #[inline]
    pub fn parse(
        &mut self,
        buf: &mut [u8],
        args: &mut Vec<ArgRange>,
        limits: &Limits,
    ) -> Result<Option<usize>, ProtocolError> {
        match self.state {
            State::Start => match buf.first() {
                Some(b'*') => self.begin(buf, args, limits),
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

    /// Bytes still missing for the argument being read, its line end included; 0 when that isn't known. The caller may
    /// reserve so much at once; it is at most `proto-max-bulk-len` + 2, but only *promised* by the client.
    #[inline]
    pub fn needed(&self) -> usize {
        self.needed
    }

    /// Whether a command was begun and isn't complete.
    #[inline]
    pub fn is_within_command(&self) -> bool {
        self.state != State::Start
    }

    /// Of the bytes of a begun command, those that whole arguments were found in.
    #[inline]
    pub fn split_bytes(&self) -> usize {
        match self.state {
            State::Start | State::Inline | State::Count => 0,
            State::BulkHeader | State::Bulk => self.at,
        }
    }

    /// Forgets a begun command.
    pub fn reset(&mut self) {
        *self = Self::default();
    }

    /// A command from its `*` on, whose ranges go straight to `args`: the whole way of a command that arrived in one piece.
    ///
    /// Reads on in local variables while everything is usual. At anything else (an end of the buffer, an odd length, a
    /// limit) the place is noted and [`multibulk`](Parser::multibulk) decides.
    #[inline]
    fn begin(&mut self, buf: &[u8], args: &mut Vec<ArgRange>, limits: &Limits) -> Result<Option<usize>, ProtocolError> {
        let args_before = args.len();
        let usual = short_header(buf, 0, b'*')
            .filter(|&(count, next)| count > 0 && next <= buf.len())
            .filter(|&(count, _)| limits.authenticated || count <= MULTIBULK_UNAUTHENTICATED_MAX);
        let Some((count, mut at)) = usual else {
            self.state = State::Count;
            self.at = 0;
            self.searched = 1;
            return self.begin_unusual(buf, args, args_before, limits);
        };
        let len_max = if limits.authenticated { limits.max_bulk_len } else { 0 };
        let mut arguments_left = count;
        while arguments_left > 0 {
            let usual = short_header(buf, at, b'$')
                .filter(|&(len, start)| len <= len_max && start + len + LINE_END_LEN <= buf.len());
            let Some((len, start)) = usual else {
                self.begin_line(at);
                self.arguments_left = arguments_left;
                return self.begin_unusual(buf, args, args_before, limits);
            };
            args.push(ArgRange::new(start, len));
            at = start + len + LINE_END_LEN;
            arguments_left -= 1;
        }
        Ok(Some(at))
    }

    /// Goes on from where [`begin`](Parser::begin) met something unusual.
    #[cold]
    #[inline(never)]
    fn begin_unusual(
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

    /// A begun command goes on; its ranges are kept here until it is complete, so that a command of many arguments in
    /// many pieces moves them once.
    fn resume(
        &mut self,
        buf: &[u8],
        args: &mut Vec<ArgRange>,
        limits: &Limits,
    ) -> Result<Option<usize>, ProtocolError> {
        let mut ranges = std::mem::take(&mut self.ranges);
        let result = self.multibulk(buf, &mut ranges, limits);
        if let Ok(Some(_)) = result {
            self.state = State::Start;
            args.append(&mut ranges);
        }
        if !ranges.is_empty() || ranges.capacity() <= RANGES_KEPT_MAX {
            self.ranges = ranges;
        }
        result
    }

    /// Goes on in any state but `Start` and `Inline`, as far as `buf` reaches.
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
            self.begin_line(next);
        }
        loop {
            if self.state == State::BulkHeader {
                let Some((len, next)) = self.bulk_header(buf, limits)? else { return Ok(None) };
                self.state = State::Bulk;
                self.at = next;
                self.bulk_len = len;
            }
            // Neither sum overflows: a length has at most 63 bits, and an offset lies in memory.
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
            self.begin_line(end);
        }
    }

    /// A `$` line is to be read from `at`.
    #[inline]
    fn begin_line(&mut self, at: usize) {
        self.state = State::BulkHeader;
        self.at = at;
        self.searched = at;
    }

    /// The number in the `*` line, not below 0, and where the line after it begins.
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

    /// The length in the `$` line, and where the line after it begins.
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

    /// The `$` line when it is incomplete, wrong, or unusual.
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

    /// An inline command, once its line is there.
    #[cold]
    fn inline(
        &mut self,
        buf: &mut [u8],
        args: &mut Vec<ArgRange>,
        limits: &Limits,
    ) -> Result<Option<usize>, ProtocolError> {
        let found = self.line_end(buf, b'\n', limits).map_err(|TooLong| ProtocolError::TooBigInline)?;
        let Some(end) = found else { return Ok(None) };
        if end >= limits.max_inline + REDIS_READ_LEN {
            return Err(ProtocolError::TooBigInline);
        }
        let line_len = if end > 0 && buf[end - 1] == b'\r' { end - 1 } else { end };
        split_line(&mut buf[..line_len], args).map_err(|_| ProtocolError::UnbalancedQuotes)?;
        self.state = State::Start;
        Ok(Some(end + 1))
    }

    /// Where the line that begins at `self.at` ends, searching on from where the last search stopped. `Ok(None)`: not yet
    /// there (for `\r`: or its `\n` isn't), and not yet too long.
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

/// A line's end isn't there though it should be.
struct TooLong;

/// The header line of `kind` at `at` when it is one to six digits without a leading zero (but `0` itself), and eight bytes
/// from it on are there: its number, and where the next line begins, which may be past the buffer's end. `None` for
/// anything else, which may still be right.
///
/// One bounds check for the line, then a compare per digit. Reading all digits as one word without branches takes 85
/// instructions per line against about 40 for the whole argument here: twice the time per command, and no gain
/// even where the numbers of digits change from argument to argument.
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
