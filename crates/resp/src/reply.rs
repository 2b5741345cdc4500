//! Replies: values in, bytes out, straight into the connection's output buffer.

use pantala_base::double::{DOUBLE_LEN_MAX, format_double};
use pantala_base::number::{Decimal, INTEGER_LEN_MAX, write_u64_before};

/// Which protocol a connection speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    /// What every connection begins with.
    #[default]
    Resp2,
    /// After `HELLO 3`.
    Resp3,
}

impl Version {
    /// 2 or 3.
    pub const fn number(self) -> u8 {
        match self {
            Self::Resp2 => 2,
            Self::Resp3 => 3,
        }
    }
}

/// Numbers below this have their header line in a table.
const TABLE_LEN: usize = 1_000;
/// Bytes of a table entry: a kind, three digits, a line end, and padding to a power of two, so that the copy is one move.
const ENTRY_LEN: usize = 8;
/// Longest header line: a kind, a number, a line end; and a byte more, for copies of three words.
const HEADER_LEN_MAX: usize = 1 + INTEGER_LEN_MAX + 2 + 1;

/// `?n\r\n` for small n, the kind to be put in. 8 KiB, of which a server touches the few lines that its lengths need.
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

/// Bulks of this length and more ask for their memory instead of taking it for granted: bytes.
const LARGE_BULK_BYTES: usize = 64 * 1024;
/// Bulks of this length and more are worth a look at how they are best copied: bytes.
const LONG_BULK_BYTES: usize = 4 * 1024;
/// From this length on a bulk gets just the memory that it needs, if it is longer than all that is before it: doubling would cost more than the few moves it saves. Among
/// others of its length it doesn't, which would move all of them for each. Bytes.
const EXACT_BULK_BYTES: usize = 1024 * 1024;

/// Appends many bytes, for which there is room.
///
/// A C library copies thousands of bytes with one string instruction, and that takes five times as long on some processors (AMD Zen with
/// `fsrm`) where the destination lies a little above the source within their pages: as a value at the beginning of a page and a reply that begins
/// with its length. Such bytes go in pieces, for which libraries use other instructions. See docs/decisions/0007-large-copies.md.
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

/// An aggregate whose length isn't known yet: made by [`Reply::defer_array`] and its like, filled in by
/// [`Reply::patch`]. Those that lie inside another one have to be filled in first.
#[derive(Debug)]
#[must_use = "the reply is malformed until its length is filled in"]
pub struct Deferred {
    position: usize,
    kind: u8,
    /// Elements on the wire per element counted: 2 for a map that became an array.
    per_element: usize,
}

/// Appends the reply of one command to an output buffer, in the connection's protocol version. What RESP2 doesn't have
/// becomes what Redis sends instead: a map an array of twice the length, a boolean an integer, a double a bulk, and so on.
///
/// It checks no grammar: the caller writes as many elements as it announced. Where the memory for a large bulk is refused, the rest is
/// dropped and [`finish`](Reply::finish) answers an error instead.
#[derive(Debug)]
pub struct Reply<'a> {
    out: &'a mut Vec<u8>,
    version: Version,
    /// Where the reply begins.
    start: usize,
    refused: Refused,
}

/// Whether there will be an error in a reply's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refused {
    No,
    /// A bulk found no memory.
    Memory,
    /// It was given up ([`Reply::give_up`]).
    TooLong,
}

/// The error in place of a reply that was given up since it is longer than its connection may have waiting.
const TOO_LONG: &str = "ERR The reply is longer than client-output-buffer-limit allows";

/// Whether an encoded reply is of a command that gave it up ([`Reply::give_up`]): its connection is to be closed.
#[inline]
pub fn is_given_up(reply: &[u8]) -> bool {
    reply.strip_prefix(b"-").and_then(|error| error.strip_suffix(b"\r\n")) == Some(TOO_LONG.as_bytes())
}

impl<'a> Reply<'a> {
    /// Replies appended to `out`.
    #[inline]
    pub fn new(out: &'a mut Vec<u8>, version: Version) -> Self {
        let start = out.len();
        Self { out, version, start, refused: Refused::No }
    }

    /// Ends a reply that may hold large bulks: when one of them found no memory, an error takes its place.
    #[inline]
    pub fn finish(mut self) {
        if self.refused != Refused::No {
            self.refuse();
        }
    }

    #[cold]
    fn refuse(&mut self) {
        self.out.truncate(self.start);
        match self.refused {
            Refused::TooLong => self.error(TOO_LONG),
            _ => self.error("OOM the allocator refused the memory for this reply"),
        }
    }

    /// Gives the reply up, in the midst of its elements: it is longer than may wait for its connection, which will be closed. [`finish`](Reply::finish) answers an
    /// error in its place.
    #[cold]
    pub fn give_up(&mut self) {
        self.out.truncate(self.start);
        self.refused = Refused::TooLong;
    }

    /// The protocol version that is written.
    #[inline]
    pub fn version(&self) -> Version {
        self.version
    }

    /// Changes the version from the next reply on: `HELLO` answers in the one it switches to.
    pub fn set_version(&mut self, version: Version) {
        self.version = version;
    }

    /// Where the next byte goes: with [`truncate`](Reply::truncate) a reply can be taken back.
    #[inline]
    pub fn position(&self) -> usize {
        self.out.len()
    }

    /// Takes back what was written since `position`.
    pub fn truncate(&mut self, position: usize) {
        self.out.truncate(position);
    }

    /// Bytes that are already encoded.
    #[inline]
    pub fn raw(&mut self, bytes: &[u8]) {
        self.out.extend_from_slice(bytes);
    }

    /// `+OK`.
    #[inline]
    pub fn ok(&mut self) {
        self.out.extend_from_slice(b"+OK\r\n");
    }

    /// A status. `text` holds no line end.
    #[inline]
    pub fn simple(&mut self, text: &str) {
        debug_assert!(!text.contains(['\r', '\n']), "a status is one line");
        self.line(b'+', text.as_bytes());
    }

    /// An error. `text` begins with its code (`ERR …`, `WRONGTYPE …`), without the dash. Line ends at its end are dropped,
    /// others become spaces, as in Redis.
    pub fn error(&mut self, text: &str) {
        self.error_bytes(text.as_bytes());
    }

    /// As [`error`](Reply::error), for a text that quotes what a client sent, which may be any bytes.
    pub fn error_bytes(&mut self, text: &[u8]) {
        let is_line_end = |byte: &u8| matches!(byte, b'\r' | b'\n');
        let first = text.iter().position(|byte| !is_line_end(byte)).unwrap_or(text.len());
        let end = text.iter().rposition(|byte| !is_line_end(byte)).map_or(first, |last| last + 1);
        self.out.reserve(end - first + 3);
        self.out.push(b'-');
        self.out.extend(text[first..end].iter().map(|byte| if is_line_end(byte) { b' ' } else { *byte }));
        self.out.extend_from_slice(b"\r\n");
    }

    /// An integer.
    #[inline]
    pub fn integer(&mut self, value: i64) {
        match usize::try_from(value) {
            Ok(small) if small < TABLE_LEN => self.table_header(b':', small),
            _ => self.long_header(b':', value),
        }
    }

    /// A bulk: any bytes.
    #[inline]
    pub fn bulk(&mut self, bytes: &[u8]) {
        if bytes.len() >= LONG_BULK_BYTES {
            return self.long_bulk(bytes);
        }
        self.out.reserve(bytes.len() + HEADER_LEN_MAX + 2);
        self.header(b'$', bytes.len());
        self.out.extend_from_slice(bytes);
        self.out.extend_from_slice(b"\r\n");
    }

    #[inline(never)]
    fn long_bulk(&mut self, bytes: &[u8]) {
        if bytes.len() >= LARGE_BULK_BYTES && !self.has_room(bytes.len()) {
            return;
        }
        self.out.reserve(bytes.len() + HEADER_LEN_MAX + 2);
        self.header(b'$', bytes.len());
        append_long(self.out, bytes);
        self.out.extend_from_slice(b"\r\n");
    }

    /// Finds the memory for a large bulk, or notes that there is none.
    #[cold]
    fn has_room(&mut self, len: usize) -> bool {
        let needed = len + HEADER_LEN_MAX + 2;
        let (written, capacity) = (self.out.len(), self.out.capacity());
        if capacity - written < needed && written <= capacity / 2 {
            // An allocator that makes it larger would copy all of its memory, written or not.
            let mut larger = Vec::new();
            if written == 0 {
                *self.out = larger;
            } else if larger.try_reserve_exact(written + needed).is_ok() {
                larger.extend_from_slice(self.out);
                *self.out = larger;
            }
        }
        let found = self.refused == Refused::No
            && ((len < EXACT_BULK_BYTES || self.out.len() > len) && self.out.try_reserve(needed).is_ok()
                || self.out.try_reserve_exact(needed).is_ok());
        if !found {
            self.refused = Refused::Memory;
        }
        found
    }

    /// An integer as a bulk.
    #[inline]
    pub fn bulk_integer(&mut self, value: i64) {
        let mut room = Decimal::new();
        self.bulk(room.format_i64(value));
    }

    /// The null of a bulk.
    #[inline]
    pub fn null(&mut self) {
        let null: &[u8] = match self.version {
            Version::Resp2 => b"$-1\r\n",
            Version::Resp3 => b"_\r\n",
        };
        self.out.extend_from_slice(null);
    }

    /// The null of an array.
    #[inline]
    pub fn null_array(&mut self) {
        let null: &[u8] = match self.version {
            Version::Resp2 => b"*-1\r\n",
            Version::Resp3 => b"_\r\n",
        };
        self.out.extend_from_slice(null);
    }

    /// An array: `len` replies follow.
    #[inline]
    pub fn array(&mut self, len: usize) {
        self.header(b'*', len);
    }

    /// A map: `pairs` keys and values follow, in turn.
    #[inline]
    pub fn map(&mut self, pairs: usize) {
        let (kind, per_element) = self.map_kind();
        self.header(kind, pairs * per_element);
    }

    /// A set: `len` replies follow.
    #[inline]
    pub fn set(&mut self, len: usize) {
        self.header(self.set_kind(), len);
    }

    /// A push message: `len` replies follow, the first being its kind. An array in RESP2.
    #[inline]
    pub fn push(&mut self, len: usize) {
        let kind = if self.version == Version::Resp3 { b'>' } else { b'*' };
        self.header(kind, len);
    }

    /// An attribute: `pairs` keys and values follow, then the reply it belongs to. RESP2 has none: nothing is written, and
    /// `false` says that the pairs must be left out.
    #[must_use = "in RESP2 the pairs must be left out"]
    pub fn attribute(&mut self, pairs: usize) -> bool {
        let exists = self.version == Version::Resp3;
        if exists {
            self.header(b'|', pairs);
        }
        exists
    }

    /// A boolean; 1 or 0 in RESP2.
    pub fn boolean(&mut self, value: bool) {
        let text: &[u8] = match (self.version, value) {
            (Version::Resp2, false) => b":0\r\n",
            (Version::Resp2, true) => b":1\r\n",
            (Version::Resp3, false) => b"#f\r\n",
            (Version::Resp3, true) => b"#t\r\n",
        };
        self.out.extend_from_slice(text);
    }

    /// A double, with 17 significant digits as Redis 7.0 prints it; a bulk in RESP2.
    pub fn double(&mut self, value: f64) {
        let mut room = [0; DOUBLE_LEN_MAX];
        let text = format_double(value, &mut room);
        match self.version {
            Version::Resp2 => self.bulk(text),
            Version::Resp3 => self.line(b',', text),
        }
    }

    /// An integer beyond 64 bits, in decimal; a bulk in RESP2.
    pub fn big_number(&mut self, digits: &[u8]) {
        match self.version {
            Version::Resp2 => self.bulk(digits),
            Version::Resp3 => self.line(b'(', digits),
        }
    }

    /// Text with a format of three letters (`txt`, `mkd`; shorter is padded, longer is cut); a bulk in RESP2.
    pub fn verbatim(&mut self, format: &str, bytes: &[u8]) {
        if self.version == Version::Resp2 {
            return self.bulk(bytes);
        }
        let mut prefix = *b"   :";
        for (to, from) in prefix[..3].iter_mut().zip(format.bytes()) {
            *to = from;
        }
        self.header(b'=', prefix.len() + bytes.len());
        self.out.extend_from_slice(&prefix);
        self.out.extend_from_slice(bytes);
        self.out.extend_from_slice(b"\r\n");
    }

    /// An array whose length is told to [`patch`](Reply::patch) when its elements are written.
    pub fn defer_array(&mut self) -> Deferred {
        self.defer(b'*', 1)
    }

    /// As [`defer_array`](Reply::defer_array), for a map; its length is in pairs.
    pub fn defer_map(&mut self) -> Deferred {
        let (kind, per_element) = self.map_kind();
        self.defer(kind, per_element)
    }

    /// As [`defer_array`](Reply::defer_array), for a set.
    pub fn defer_set(&mut self) -> Deferred {
        self.defer(self.set_kind(), 1)
    }

    /// Fills in the length of an aggregate, in elements (pairs for a map). Moves what was written after it by the length of
    /// its header: a pass over memory per aggregate, against counting twice.
    #[expect(clippy::needless_pass_by_value, reason = "taken, so that a length can't be filled in twice")]
    pub fn patch(&mut self, deferred: Deferred, len: usize) {
        let Deferred { position, kind, per_element } = deferred;
        let end = self.out.len();
        self.header(kind, len * per_element);
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
        self.out.reserve(text.len() + 3);
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

    /// Appends the whole table entry, whose length the compiler knows, and cuts it: two instructions instead of a call
    /// of memcpy.
    #[inline]
    fn table_header(&mut self, kind: u8, n: usize) {
        let mut entry = HEADERS[n];
        entry[0] = kind;
        let end = self.out.len() + table_digits(n) + 3;
        self.out.extend_from_slice(&entry);
        self.out.truncate(end);
    }

    /// Writes the line flush right on the stack, and appends it as the table's entries are: by a copy of fixed length, whose
    /// excess is cut.
    fn long_header(&mut self, kind: u8, n: i64) {
        let mut room = [0u8; 2 * HEADER_LEN_MAX];
        room[HEADER_LEN_MAX - 2] = b'\r';
        room[HEADER_LEN_MAX - 1] = b'\n';
        let mut at = write_u64_before(&mut room, HEADER_LEN_MAX - 2, n.unsigned_abs());
        if n < 0 {
            at -= 1;
            room[at] = b'-';
        }
        at -= 1;
        room[at] = kind;
        let end = self.out.len() + HEADER_LEN_MAX - at;
        self.out.extend_from_slice(&room[at..][..HEADER_LEN_MAX]);
        self.out.truncate(end);
    }
}

#[cfg(test)]
#[path = "reply_tests.rs"]
mod tests;
