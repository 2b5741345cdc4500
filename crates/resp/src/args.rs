//! The arguments of a command: ranges of a buffer, not copies.

use std::ops::Index;

/// Where an argument stands: offset and length in bytes, from the first byte of its command.
///
/// Full words, 16 bytes: in half words a command of 4 GiB, which `proto-max-bulk-len` and `client-query-buffer-limit` can be
/// configured to allow, would overflow, and writing a range is two of about forty instructions per argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArgRange {
    start: usize,
    len: usize,
}

impl ArgRange {
    /// The range of `len` bytes that begins at `start`.
    #[inline]
    pub const fn new(start: usize, len: usize) -> Self {
        Self { start, len }
    }

    /// Offset of the first byte.
    #[inline]
    pub const fn start(self) -> usize {
        self.start
    }

    /// Length in bytes.
    #[inline]
    pub const fn len(self) -> usize {
        self.len
    }

    /// Whether it is the empty argument.
    #[inline]
    pub const fn is_empty(self) -> bool {
        self.len == 0
    }

    /// The same bytes, seen from a buffer that begins `by` bytes earlier.
    #[inline]
    pub const fn shifted(self, by: usize) -> Self {
        Self { start: self.start + by, len: self.len }
    }

    /// Its bytes in `base`. Panics if the range isn't within `base`.
    #[inline(always)]
    pub fn of(self, base: &[u8]) -> &[u8] {
        &base[self.start..][..self.len]
    }
}

/// The arguments of a command, its name included: a buffer and ranges in it. Two fat pointers, freely copied.
///
/// `args[i]` borrows from `args` itself; [`Args::at`] and [`Args::get`] give slices that live as long as the buffer.
#[derive(Clone, Copy)]
pub struct Args<'a> {
    base: &'a [u8],
    ranges: &'a [ArgRange],
}

impl<'a> Args<'a> {
    /// Arguments whose `ranges` lie in `base`.
    #[inline]
    pub const fn new(base: &'a [u8], ranges: &'a [ArgRange]) -> Self {
        Self { base, ranges }
    }

    /// How many there are, the command's name included.
    #[inline]
    pub const fn len(&self) -> usize {
        self.ranges.len()
    }

    /// Whether there are none.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Argument `index`. Panics if there is none: for indexes that the command's arity vouches for.
    #[inline]
    #[track_caller]
    pub fn at(&self, index: usize) -> &'a [u8] {
        self.ranges[index].of(self.base)
    }

    /// Argument `index`, if there is one.
    #[inline]
    pub fn get(&self, index: usize) -> Option<&'a [u8]> {
        Some(self.ranges.get(index)?.of(self.base))
    }

    /// The arguments from `first` on; none if there are no more than that.
    #[inline]
    pub fn tail(&self, first: usize) -> Args<'a> {
        Args { base: self.base, ranges: self.ranges.get(first..).unwrap_or_default() }
    }

    /// One after another.
    #[inline]
    pub fn iter(&self) -> ArgsIter<'a> {
        ArgsIter { base: self.base, ranges: self.ranges.iter() }
    }

    /// Length of all arguments together, in bytes.
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

/// Goes through [`Args`] from either end.
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
    fn views() {
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
        assert_eq!(ranges[0].shifted(2).of(b"abcde"), b"cde");
        assert!(ranges[1].is_empty());
    }
}
