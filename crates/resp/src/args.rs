//! The arguments of a command, as ranges of a buffer. Commands read them without copying.

use std::ops::Index;

use pantala_base::number::digits_u64;

/// The position of an argument: offset and length in bytes, from the first byte of its command.
///
/// Offset and length are `usize` (16 bytes together). `u32` would overflow on a command of 4 GiB,
/// which `proto-max-bulk-len` and `client-query-buffer-limit` can allow. `u32` would also save only
/// two of about 40 instructions per argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArgRange {
    start: usize,
    len: usize,
}

impl ArgRange {
    /// Returns the range of `len` bytes that starts at `start`.
    #[inline]
    pub const fn new(start: usize, len: usize) -> Self {
        Self { start, len }
    }

    /// Returns the offset of the first byte.
    #[inline]
    pub const fn start(self) -> usize {
        self.start
    }

    /// Returns the length in bytes.
    #[inline]
    pub const fn len(self) -> usize {
        self.len
    }

    /// Returns whether the argument is empty.
    #[inline]
    pub const fn is_empty(self) -> bool {
        self.len == 0
    }

    /// Returns the same bytes as a range of a buffer that starts `by` bytes earlier.
    #[inline]
    pub const fn shifted(self, by: usize) -> Self {
        Self { start: self.start + by, len: self.len }
    }

    /// Returns the bytes of this range in `base`. Panics if the range isn't within `base`.
    #[inline(always)]
    pub fn of(self, base: &[u8]) -> &[u8] {
        &base[self.start..][..self.len]
    }
}

/// The arguments of a command, including its name: a buffer and ranges in it. This type consists of
/// two fat pointers, so copies are cheap.
///
/// `args[i]` borrows from `args` itself; [`Args::at`] and [`Args::get`] return slices that live as
/// long as the buffer.
#[derive(Clone, Copy)]
pub struct Args<'a> {
    base: &'a [u8],
    ranges: &'a [ArgRange],
}

impl<'a> Args<'a> {
    /// Returns the arguments at `ranges` in `base`.
    #[inline]
    pub const fn new(base: &'a [u8], ranges: &'a [ArgRange]) -> Self {
        Self { base, ranges }
    }

    /// Returns the number of arguments, including the command's name.
    #[inline]
    pub const fn len(&self) -> usize {
        self.ranges.len()
    }

    /// Returns whether there are no arguments.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Returns argument `index`, whose presence the command's arity guarantees. Panics if there is
    /// none.
    #[inline]
    #[track_caller]
    pub fn at(&self, index: usize) -> &'a [u8] {
        self.ranges[index].of(self.base)
    }

    /// Returns argument `index`, or `None` if there are fewer arguments.
    #[inline]
    pub fn get(&self, index: usize) -> Option<&'a [u8]> {
        Some(self.ranges.get(index)?.of(self.base))
    }

    /// Returns the first argument, the command's name, as one word with its length in the highest
    /// byte. Returns `None` if there are no arguments or if the name has more than seven bytes.
    /// Also returns `None` in the rare case that the buffer ends less than eight bytes after the
    /// start of the name.
    #[inline]
    pub fn short_name(&self) -> Option<u64> {
        let name = self.ranges.first()?;
        let word = u64::from_le_bytes(*self.base.get(name.start..)?.first_chunk()?);
        let is_short = name.len < size_of::<u64>();
        is_short.then(|| word & ((1 << (8 * name.len)) - 1) | (name.len as u64) << 56)
    }

    /// Returns the arguments from index `first`; empty if there are none.
    #[inline]
    pub fn tail(&self, first: usize) -> Args<'a> {
        Args { base: self.base, ranges: self.ranges.get(first..).unwrap_or_default() }
    }

    /// Iterates over the arguments.
    #[inline]
    pub fn iter(&self) -> ArgsIter<'a> {
        ArgsIter { base: self.base, ranges: self.ranges.iter() }
    }

    /// Returns the bytes of the whole command if they are its canonical RESP array (numbers without
    /// sign or leading zeros, lines and bulks that end in `\r\n`), otherwise `None`. Nearly every
    /// client sends this form. The caller can propagate these bytes without encoding the command
    /// again.
    pub fn as_canonical(&self) -> Option<&'a [u8]> {
        let ends_line = |at: usize| self.base.get(at..at + LINE_END.len()) == Some(LINE_END);
        let mut end = header_bytes(self.ranges.len());
        if self.ranges.is_empty() || self.base.first() != Some(&b'*') || !ends_line(end - LINE_END.len()) {
            return None;
        }
        for range in self.ranges {
            let start = end + header_bytes(range.len);
            // A sign or leading zeros in a header would shift the argument. Arguments of an inline
            // command, and arguments copied into one buffer without headers, also start elsewhere.
            // The parser doesn't check line ends. They are checked here, because readers of the
            // propagated bytes require them.
            if range.start != start || !ends_line(start - LINE_END.len()) || !ends_line(start + range.len) {
                return None;
            }
            end = start + range.len + LINE_END.len();
        }
        self.base.get(..end)
    }

    /// Returns the sum of the lengths of all arguments, in bytes.
    pub fn len_bytes(&self) -> usize {
        self.ranges.iter().map(|range| range.len).sum()
    }
}

impl Index<usize> for Args<'_> {
    type Output = [u8];

    #[inline]
    #[track_caller]
    fn index(&self, index: usize) -> &[u8] {
        self.at(index)
    }
}

impl<'a> IntoIterator for Args<'a> {
    type Item = &'a [u8];
    type IntoIter = ArgsIter<'a>;

    fn into_iter(self) -> ArgsIter<'a> {
        self.iter()
    }
}

impl<'a> IntoIterator for &Args<'a> {
    type Item = &'a [u8];
    type IntoIter = ArgsIter<'a>;

    fn into_iter(self) -> ArgsIter<'a> {
        self.iter()
    }
}

impl std::fmt::Debug for Args<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.iter().map(|arg| arg.escape_ascii().to_string())).finish()
    }
}

const LINE_END: &[u8] = b"\r\n";

/// Returns the length of a header: type byte, number, line end.
#[inline]
fn header_bytes(number: usize) -> usize {
    let digits = match number {
        // Nearly all numbers are this short, and computing a logarithm would dominate the cost.
        0..10 => 1,
        10..100 => 2,
        100..1000 => 3,
        _ => digits_u64(number as u64),
    };
    b"*".len() + digits + LINE_END.len()
}

/// A double-ended iterator over [`Args`].
#[derive(Clone)]
pub struct ArgsIter<'a> {
    base: &'a [u8],
    ranges: std::slice::Iter<'a, ArgRange>,
}

impl<'a> Iterator for ArgsIter<'a> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        Some(self.ranges.next()?.of(self.base))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.ranges.size_hint()
    }
}

impl<'a> DoubleEndedIterator for ArgsIter<'a> {
    fn next_back(&mut self) -> Option<&'a [u8]> {
        Some(self.ranges.next_back()?.of(self.base))
    }
}

impl ExactSizeIterator for ArgsIter<'_> {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn args_and_ranges_index_the_buffer() {
        let ranges = [ArgRange::new(0, 3), ArgRange::new(3, 0), ArgRange::new(1, 4)];
        let args = Args::new(b"abcde", &ranges);
        assert_eq!((args.len(), args.is_empty(), args.len_bytes()), (3, false, 7));
        assert_eq!((&args[0], args.at(1), args.get(2)), (&b"abc"[..], &b""[..], Some(&b"bcde"[..])));
        assert_eq!(args.get(3), None);
        assert_eq!(args.tail(2).iter().collect::<Vec<_>>(), [b"bcde"]);
        assert!(args.tail(3).is_empty() && args.tail(99).is_empty());
        assert_eq!(args.iter().rev().len(), 3);
        assert_eq!(args.iter().next_back(), Some(&b"bcde"[..]));
        assert_eq!(format!("{args:?}"), r#"["abc", "", "bcde"]"#);
        let name = |base: &[u8], len: usize| Args::new(base, &[ArgRange::new(1, len)]).short_name();
        assert_eq!(name(b".get\r\n$1\r\n", 3), Some(u64::from_le_bytes(*b"get\0\0\0\0\x03")));
        assert_eq!(name(b".get\0\n$1\r\n", 4), Some(u64::from_le_bytes(*b"get\0\0\0\0\x04")));
        assert_eq!(name(b".hgetall\r\n", 7), Some(u64::from_le_bytes(*b"hgetall\x07")));
        assert_eq!(name(b".getrange\r\n", 8), None);
        assert_eq!(name(b".get\r\n$1\r", 3), Some(u64::from_le_bytes(*b"get\0\0\0\0\x03")));
        assert_eq!(name(b".get\r\n$1", 3), None, "seven bytes from its first");
        assert_eq!(ranges[0].shifted(2).of(b"abcde"), b"cde");
        assert!(ranges[1].is_empty());
    }

    #[test]
    fn canonical_commands_are_recognized() {
        let sent = b"*2\r\n$3\r\nGET\r\n$10\r\n0123456789\r\n*1\r\n$4\r\nPING\r\n";
        let ranges = [ArgRange::new(8, 3), ArgRange::new(18, 10)];
        assert_eq!(Args::new(sent, &ranges).as_canonical(), Some(&sent[..30]));
        assert_eq!(Args::new(sent, &ranges).tail(1).as_canonical(), None);
        assert_eq!(Args::new(&sent[..29], &ranges).as_canonical(), None, "it is not whole");
        // A length with a sign or leading zeros, once after the first argument and once before it.
        let late = [ArgRange::new(8, 3), ArgRange::new(19, 10)];
        assert_eq!(Args::new(b"*2\r\n$3\r\nGET\r\n$010\r\n0123456789\r\n", &late).as_canonical(), None);
        let early = [ArgRange::new(9, 3), ArgRange::new(19, 10)];
        assert_eq!(Args::new(b"*02\r\n$3\r\nGET\r\n$10\r\n0123456789\r\n", &early).as_canonical(), None);
        // An inline command, and a command whose arguments were copied into one buffer.
        let inline = [ArgRange::new(0, 3), ArgRange::new(4, 1)];
        assert_eq!(Args::new(b"GET k\r\n", &inline).as_canonical(), None);
        let packed = [ArgRange::new(0, 3), ArgRange::new(3, 1)];
        assert_eq!(Args::new(b"*2\rk", &packed).as_canonical(), None);
        assert_eq!(Args::new(sent, &[]).as_canonical(), None);
        // The parser accepts any bytes as line ends.
        let canonical = &sent[..30];
        for at in [2, 3, 6, 7, 11, 12, 16, 17, 28, 29] {
            let mut wrong = canonical.to_vec();
            wrong[at] = b'x';
            assert_eq!(Args::new(&wrong, &ranges).as_canonical(), None, "{at}");
        }
    }
}
