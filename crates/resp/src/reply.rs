//! Encodes replies into the connection's output buffer. Every command handler writes through a
//! [`Reply`].

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use pantala_base::double::{DOUBLE_LEN_MAX, format_double};
use pantala_base::number::{Decimal, INTEGER_LEN_MAX, write_u64_before};

/// The protocol version of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    /// The version of a new connection.
    #[default]
    Resp2,
    /// The version after `HELLO 3`.
    Resp3,
}

impl Version {
    /// Returns 2 or 3.
    pub const fn number(self) -> u8 {
        match self {
            Self::Resp2 => 2,
            Self::Resp3 => 3,
        }
    }
}

/// Header lines with a number less than this are copied from a table.
const TABLE_LEN: usize = 1_000;
/// Size of a table entry in bytes: kind, three digits, line end, padded to a power of two so that a
/// copy is one move.
const ENTRY_LEN: usize = 8;
/// Size of a header line's buffer in bytes: kind, number, line end, and one more byte, so that a
/// copy takes exactly three words.
const HEADER_LEN_MAX: usize = 1 + INTEGER_LEN_MAX + 2 + 1;

/// `?n\r\n` for small n, where the kind replaces `?`. The table takes 8 KB, but a server touches
/// only the cache lines of the lengths that it sends.
static HEADERS: [[u8; ENTRY_LEN]; TABLE_LEN] = {
    let mut table = [[0u8; ENTRY_LEN]; TABLE_LEN];
    let mut n = 0;
    while n < TABLE_LEN {
        let digits = table_digits(n);
        let mut rest = n;
        let mut at = digits;
        while at > 0 {
            table[n][at] = b'0' + (rest % 10) as u8;
            rest /= 10;
            at -= 1;
        }
        table[n][digits + 1] = b'\r';
        table[n][digits + 2] = b'\n';
        n += 1;
    }
    table
};

const fn table_digits(n: usize) -> usize {
    1 + (n >= 10) as usize + (n >= 100) as usize
}

/// Minimum length, in bytes, of a bulk whose memory is allocated fallibly: a failed allocation
/// becomes an error reply.
const LARGE_BULK_BYTES: usize = 64 * 1024;
/// Minimum length, in bytes, of a bulk for which [`append_long`] chooses the way of copying.
const LONG_BULK_BYTES: usize = 4 * 1024;
/// Minimum length, in bytes, of a bulk for which the buffer grows by exactly the bulk's size,
/// because doubling such a buffer could waste much memory. The buffer grows this way only if the
/// bulk is at least as long as all output before it. Without this condition, each of several such
/// bulks in a row would move all earlier bulks.
const EXACT_BULK_BYTES: usize = 1024 * 1024;

/// Appends many bytes. The caller must have reserved the capacity.
///
/// The C library copies thousands of bytes with one string instruction. On some processors (AMD Zen
/// with `fsrm`) this instruction takes five times as long if the destination lies slightly above
/// the source, modulo the page size. An example is a value at the start of a page, copied after the
/// reply's header at the start of another page. Such bytes are copied in pieces, for which the
/// library uses other instructions. See docs/decisions/0007-large-copies.md.
fn append_long(out: &mut Vec<u8>, bytes: &[u8]) {
    const PAGE_BYTES: usize = 4096;
    const NEAR_BYTES: usize = 64;
    const PIECE_BYTES: usize = 2048;
    let end = out.as_ptr().addr().wrapping_add(out.len());
    let above = end.wrapping_sub(bytes.as_ptr().addr()) % PAGE_BYTES;
    if (1..NEAR_BYTES).contains(&above) {
        bytes.chunks(PIECE_BYTES).for_each(|piece| out.extend_from_slice(piece));
    } else {
        out.extend_from_slice(bytes);
    }
}

/// An array, map or set whose length isn't known yet, started by [`Reply::defer_array`],
/// [`Reply::defer_map`] or [`Reply::defer_set`]. [`Reply::patch`] fills in the length. An inner
/// aggregate must be patched before the outer one.
#[derive(Debug)]
#[must_use = "the reply is malformed until its length is filled in"]
pub struct Deferred {
    position: usize,
    kind: u8,
    /// Elements on the wire per counted element: 2 for a map sent as an array.
    per_element: usize,
}

/// An encoder that appends the reply of one command to an output buffer, in the connection's
/// protocol version. For types that RESP2 lacks, the encoder writes the same as Redis: an array of
/// twice the length for a map, an integer for a boolean, a bulk for a double, and so on.
///
/// The encoder doesn't check the grammar: the caller must write as many elements as it announced.
/// If the memory for a large bulk can't be allocated, this bulk and later large bulks are dropped,
/// and [`finish`](Reply::finish) replaces the reply with an error. A reply that exceeds its limit
/// ([`limited`](Reply::limited)) is aborted: the bytes so far, and all later ones, are dropped.
#[derive(Debug)]
pub struct Reply<'a> {
    out: &'a mut Vec<u8>,
    version: Version,
    /// Position of the reply's first byte in `out`.
    start: usize,
    /// Maximum length of `out`, bytes; `None`: no limit. Read only when `out` must grow.
    bytes_max: Option<&'a AtomicU64>,
    failure: Failure,
}

/// The reason why an error will replace the reply, if any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Failure {
    No,
    /// A bulk's memory couldn't be allocated.
    Memory,
    /// The reply exceeded its limit ([`Reply::abort`]).
    TooLong,
}

/// The error that replaces an aborted reply.
const TOO_LONG: &str = "ERR The reply is longer than client-output-buffer-limit allows";

/// Returns whether `reply` is the encoded error of an aborted reply ([`Reply::abort`]). If so, the
/// caller closes the connection.
#[inline]
pub fn is_aborted(reply: &[u8]) -> bool {
    reply.strip_prefix(b"-").and_then(|error| error.strip_suffix(b"\r\n")) == Some(TOO_LONG.as_bytes())
}

impl<'a> Reply<'a> {
    /// Creates an encoder that appends to `out`.
    #[inline]
    pub fn new(out: &'a mut Vec<u8>, version: Version) -> Self {
        Self::limited(out, version, None)
    }

    /// Creates an encoder that aborts the reply ([`abort`](Reply::abort)) when `out` must grow for
    /// an element and would then exceed `bytes_max`. The length of `out` includes the bytes before
    /// the reply. The limit is checked only when `out` must grow, so `out` may become as long as
    /// its capacity, which is at most about twice the limit. `+OK` and errors are always written.
    /// The caller must call [`finish`](Reply::finish).
    #[inline]
    pub fn limited(out: &'a mut Vec<u8>, version: Version, bytes_max: Option<&'a AtomicU64>) -> Self {
        let start = out.len();
        Self { out, version, start, bytes_max, failure: Failure::No }
    }

    /// Ends a reply that may contain large bulks. Replaces the reply with an error if an allocation
    /// failed or the reply was aborted.
    #[inline]
    pub fn finish(mut self) {
        if self.failure != Failure::No {
            self.write_failure();
        }
    }

    #[cold]
    fn write_failure(&mut self) {
        self.out.truncate(self.start);
        match self.failure {
            Failure::TooLong => self.error(TOO_LONG),
            _ => self.error("OOM not enough memory for this reply"),
        }
    }

    /// Aborts a reply that exceeds the connection's output buffer limit: discards the elements
    /// written so far. [`finish`](Reply::finish) discards later elements too and writes an error
    /// instead. The connection is then closed. A caller that can stop should write nothing more to
    /// this reply.
    #[cold]
    pub fn abort(&mut self) {
        self.out.truncate(self.start);
        self.failure = Failure::TooLong;
    }

    /// Returns whether the reply was aborted. A caller with many elements left can then stop.
    #[inline]
    pub fn is_aborted(&self) -> bool {
        self.failure == Failure::TooLong
    }

    /// Returns an encoder with the same version and limit that writes a part of this reply to a
    /// buffer of its own. If the part is aborted, the caller aborts this reply.
    pub fn part<'b>(&self, out: &'b mut Vec<u8>) -> Reply<'b>
    where
        'a: 'b,
    {
        Reply::limited(out, self.version, self.bytes_max)
    }

    /// Returns the protocol version.
    #[inline]
    pub fn version(&self) -> Version {
        self.version
    }

    /// Sets the version of all later elements. `HELLO` calls this before it replies, because its
    /// reply already uses the new version.
    pub fn set_version(&mut self, version: Version) {
        self.version = version;
    }

    /// Returns the position of the next byte. [`truncate`](Reply::truncate) rolls back to it.
    #[inline]
    pub fn position(&self) -> usize {
        self.out.len()
    }

    /// Removes the bytes written since `position`. If these bytes are the whole reply, clears its
    /// failure too.
    pub fn truncate(&mut self, position: usize) {
        self.out.truncate(position);
        if position == self.start {
            self.failure = Failure::No;
        }
    }

    /// Appends encoded bytes.
    #[inline]
    pub fn raw(&mut self, bytes: &[u8]) {
        if self.reserve(bytes.len()) {
            self.out.extend_from_slice(bytes);
        }
    }

    #[inline]
    fn has_room(&self, bytes: usize) -> bool {
        self.out.capacity() - self.out.len() >= bytes
    }

    /// Reserves memory for an element. Returns false if the reply was aborted instead: the caller
    /// then drops the element.
    #[inline]
    fn reserve(&mut self, bytes: usize) -> bool {
        self.has_room(bytes) || self.grow(bytes)
    }

    #[cold]
    #[inline(never)]
    fn grow(&mut self, bytes: usize) -> bool {
        let is_over = self.abort_if_over(bytes);
        if !is_over {
            self.out.reserve(bytes);
        }
        !is_over
    }

    /// Aborts the reply if it would exceed its limit with `bytes` more bytes. Returns whether the
    /// reply was aborted.
    fn abort_if_over(&mut self, bytes: usize) -> bool {
        let is_over = self.bytes_max.is_some_and(|max| (self.out.len() + bytes) as u64 > max.load(Relaxed));
        if is_over {
            self.abort();
        }
        is_over
    }

    /// Writes `+OK`.
    #[inline]
    pub fn ok(&mut self) {
        self.out.extend_from_slice(b"+OK\r\n");
    }

    /// Writes a status. `text` must not contain a line end.
    #[inline]
    pub fn simple(&mut self, text: &str) {
        debug_assert!(!text.contains(['\r', '\n']), "a status with a line end");
        self.line(b'+', text.as_bytes());
    }

    /// Writes an error. `text` starts with its code (`ERR …`, `WRONGTYPE …`), without the dash.
    /// Line ends at its start and end are dropped, others become spaces, as in Redis.
    pub fn error(&mut self, text: &str) {
        self.error_bytes(text.as_bytes());
    }

    /// Writes an error like [`error`](Reply::error), for a text that quotes arbitrary bytes from
    /// the client.
    pub fn error_bytes(&mut self, text: &[u8]) {
        let is_line_end = |byte: &u8| matches!(byte, b'\r' | b'\n');
        let first = text.iter().position(|byte| !is_line_end(byte)).unwrap_or(text.len());
        let end = text.iter().rposition(|byte| !is_line_end(byte)).map_or(first, |last| last + 1);
        self.out.reserve(end - first + 3);
        self.out.push(b'-');
        self.out.extend(text[first..end].iter().map(|byte| if is_line_end(byte) { b' ' } else { *byte }));
        self.out.extend_from_slice(b"\r\n");
    }

    /// Writes an integer.
    #[inline]
    pub fn integer(&mut self, value: i64) {
        match usize::try_from(value) {
            Ok(small) if small < TABLE_LEN => self.table_header(b':', small),
            _ => self.long_header(b':', value),
        }
    }

    /// Writes a bulk of any bytes.
    #[inline]
    pub fn bulk(&mut self, bytes: &[u8]) {
        if bytes.len() >= LONG_BULK_BYTES {
            return self.long_bulk(bytes);
        }
        if !self.reserve(bytes.len() + HEADER_LEN_MAX + 2) {
            return;
        }
        self.header(b'$', bytes.len());
        self.out.extend_from_slice(bytes);
        self.out.extend_from_slice(b"\r\n");
    }

    #[inline(never)]
    fn long_bulk(&mut self, bytes: &[u8]) {
        if bytes.len() >= LARGE_BULK_BYTES && !self.reserve_large(bytes.len()) {
            return;
        }
        if !self.reserve(bytes.len() + HEADER_LEN_MAX + 2) {
            return;
        }
        self.header(b'$', bytes.len());
        append_long(self.out, bytes);
        self.out.extend_from_slice(b"\r\n");
    }

    /// Reserves the memory for a large bulk. If this fails or the bulk exceeds the limit, records
    /// the failure and returns false. Also returns false if the reply failed earlier.
    #[cold]
    fn reserve_large(&mut self, len: usize) -> bool {
        let needed = len + HEADER_LEN_MAX + 2;
        if self.failure != Failure::No || self.abort_if_over(needed) {
            return false;
        }
        let (written, capacity) = (self.out.len(), self.out.capacity());
        if capacity - written < needed && written <= capacity / 2 {
            // A new allocation, because growing the present one might copy all of it, including its
            // unused part.
            let mut larger = Vec::new();
            if written == 0 {
                *self.out = larger;
            } else if larger.try_reserve_exact(written + needed).is_ok() {
                larger.extend_from_slice(self.out);
                *self.out = larger;
            }
        }
        let found = (len < EXACT_BULK_BYTES || self.out.len() > len) && self.out.try_reserve(needed).is_ok()
            || self.out.try_reserve_exact(needed).is_ok();
        if !found {
            self.failure = Failure::Memory;
        }
        found
    }

    /// Writes an integer as a bulk.
    #[inline]
    pub fn bulk_integer(&mut self, value: i64) {
        let mut buf = Decimal::new();
        self.bulk(buf.format_i64(value));
    }

    /// Writes a null bulk.
    #[inline]
    pub fn null(&mut self) {
        let null: &[u8] = match self.version {
            Version::Resp2 => b"$-1\r\n",
            Version::Resp3 => b"_\r\n",
        };
        self.raw(null);
    }

    /// Writes a null array.
    #[inline]
    pub fn null_array(&mut self) {
        let null: &[u8] = match self.version {
            Version::Resp2 => b"*-1\r\n",
            Version::Resp3 => b"_\r\n",
        };
        self.raw(null);
    }

    /// Starts an array; `len` replies follow.
    #[inline]
    pub fn array(&mut self, len: usize) {
        self.header(b'*', len);
    }

    /// Starts a map; `pairs` keys and values follow, alternating.
    #[inline]
    pub fn map(&mut self, pairs: usize) {
        let (kind, per_element) = self.map_kind();
        self.header(kind, pairs * per_element);
    }

    /// Starts a set; `len` replies follow.
    #[inline]
    pub fn set(&mut self, len: usize) {
        self.header(self.set_kind(), len);
    }

    /// Starts a push message, an array in RESP2; `len` replies follow. The first of them is the
    /// kind of the message.
    #[inline]
    pub fn push(&mut self, len: usize) {
        let kind = if self.version == Version::Resp3 { b'>' } else { b'*' };
        self.header(kind, len);
    }

    /// Starts an attribute; `pairs` keys and values follow, then the reply that it describes. RESP2
    /// has no attributes: in RESP2 this writes nothing and returns `false`, and the caller must
    /// skip the pairs.
    #[must_use = "if this is `false`, the pairs must be skipped: RESP2 has no attributes"]
    pub fn attribute(&mut self, pairs: usize) -> bool {
        let exists = self.version == Version::Resp3;
        if exists {
            self.header(b'|', pairs);
        }
        exists
    }

    /// Writes a boolean; 1 or 0 in RESP2.
    pub fn boolean(&mut self, value: bool) {
        let text: &[u8] = match (self.version, value) {
            (Version::Resp2, false) => b":0\r\n",
            (Version::Resp2, true) => b":1\r\n",
            (Version::Resp3, false) => b"#f\r\n",
            (Version::Resp3, true) => b"#t\r\n",
        };
        self.raw(text);
    }

    /// Writes a double with 17 significant digits, as Redis 7.0 does; a bulk in RESP2.
    pub fn double(&mut self, value: f64) {
        let mut buf = [0; DOUBLE_LEN_MAX];
        let text = format_double(value, &mut buf);
        match self.version {
            Version::Resp2 => self.bulk(text),
            Version::Resp3 => self.line(b',', text),
        }
    }

    /// Writes an integer wider than 64 bits, in decimal; a bulk in RESP2.
    pub fn big_number(&mut self, digits: &[u8]) {
        match self.version {
            Version::Resp2 => self.bulk(digits),
            Version::Resp3 => self.line(b'(', digits),
        }
    }

    /// Writes text with a format of three letters (`txt`, `mkd`; padded or truncated to three); a
    /// bulk in RESP2.
    pub fn verbatim(&mut self, format: &str, bytes: &[u8]) {
        if self.version == Version::Resp2 {
            return self.bulk(bytes);
        }
        let mut prefix = *b"   :";
        for (to, from) in prefix[..3].iter_mut().zip(format.bytes()) {
            *to = from;
        }
        if !self.reserve(HEADER_LEN_MAX + prefix.len() + bytes.len() + 2) {
            return;
        }
        self.header(b'=', prefix.len() + bytes.len());
        self.out.extend_from_slice(&prefix);
        self.out.extend_from_slice(bytes);
        self.out.extend_from_slice(b"\r\n");
    }

    /// Starts an array whose length is passed to [`patch`](Reply::patch) after its elements.
    pub fn defer_array(&mut self) -> Deferred {
        self.defer(b'*', 1)
    }

    /// Starts a map like [`defer_array`](Reply::defer_array); its length is in pairs.
    pub fn defer_map(&mut self) -> Deferred {
        let (kind, per_element) = self.map_kind();
        self.defer(kind, per_element)
    }

    /// Starts a set like [`defer_array`](Reply::defer_array).
    pub fn defer_set(&mut self) -> Deferred {
        self.defer(self.set_kind(), 1)
    }

    /// Inserts the header of an aggregate in front of its elements. `len` is the number of elements
    /// (for a map, of pairs). Moving the elements once is cheaper than counting them first.
    #[expect(clippy::needless_pass_by_value, reason = "taken by value, so that a length can't be inserted twice")]
    pub fn patch(&mut self, deferred: Deferred, len: usize) {
        let Deferred { position, kind, per_element } = deferred;
        let end = self.out.len();
        self.header(kind, len * per_element);
        // If the reply was aborted, perhaps by this header, its elements were discarded.
        if self.failure == Failure::TooLong {
            return;
        }
        let header_len = self.out.len() - end;
        self.out[position..].rotate_right(header_len);
    }

    fn defer(&mut self, kind: u8, per_element: usize) -> Deferred {
        Deferred { position: self.out.len(), kind, per_element }
    }

    #[inline]
    fn map_kind(&self) -> (u8, usize) {
        match self.version {
            Version::Resp2 => (b'*', 2),
            Version::Resp3 => (b'%', 1),
        }
    }

    #[inline]
    fn set_kind(&self) -> u8 {
        match self.version {
            Version::Resp2 => b'*',
            Version::Resp3 => b'~',
        }
    }

    #[inline]
    fn line(&mut self, kind: u8, text: &[u8]) {
        if !self.reserve(text.len() + 3) {
            return;
        }
        self.out.push(kind);
        self.out.extend_from_slice(text);
        self.out.extend_from_slice(b"\r\n");
    }

    #[inline]
    fn header(&mut self, kind: u8, n: usize) {
        if n < TABLE_LEN {
            self.table_header(kind, n);
        } else {
            self.long_header(kind, n as i64);
        }
    }

    /// Appends the whole table entry, whose length is a compile-time constant, and truncates the
    /// output to the line: two instructions instead of a call to memcpy. The compiler removes the
    /// copy's own check for room, which the check here implies.
    #[inline]
    fn table_header(&mut self, kind: u8, n: usize) {
        if !self.has_room(ENTRY_LEN) {
            return self.grow_for_header(kind, n as i64);
        }
        let mut entry = HEADERS[n];
        entry[0] = kind;
        let end = self.out.len() + table_digits(n) + 3;
        self.out.extend_from_slice(&entry);
        self.out.truncate(end);
    }

    /// Writes the line right-aligned on the stack. Then appends a fixed number of bytes from the
    /// start of the line and truncates the output, as for a table entry.
    fn long_header(&mut self, kind: u8, n: i64) {
        if !self.has_room(HEADER_LEN_MAX) {
            return self.grow_for_header(kind, n);
        }
        let mut buf = [0u8; 2 * HEADER_LEN_MAX];
        buf[HEADER_LEN_MAX - 2] = b'\r';
        buf[HEADER_LEN_MAX - 1] = b'\n';
        let mut at = write_u64_before(&mut buf, HEADER_LEN_MAX - 2, n.unsigned_abs());
        if n < 0 {
            at -= 1;
            buf[at] = b'-';
        }
        at -= 1;
        buf[at] = kind;
        let end = self.out.len() + HEADER_LEN_MAX - at;
        self.out.extend_from_slice(&buf[at..][..HEADER_LEN_MAX]);
        self.out.truncate(end);
    }

    #[cold]
    #[inline(never)]
    fn grow_for_header(&mut self, kind: u8, n: i64) {
        if self.grow(HEADER_LEN_MAX) {
            self.long_header(kind, n);
        }
    }
}

#[cfg(test)]
#[path = "reply_tests.rs"]
mod tests;
