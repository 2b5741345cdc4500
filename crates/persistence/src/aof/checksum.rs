//! Checksums of groups of effects (`aof-checksums`).
//!
//! A group consists of effects that are written together. A *checksum line* before the group has
//! the length of the group, its checksum, and a checksum of the line itself:
//!
//! ```text
//! #CRC:1234:0123456789abcdef:89ab\r\n
//!      │    │                └ CRC16 of the line up to here
//!      │    └ CRC64 of the group
//!      └ length of the group, bytes
//! ```
//!
//! redis-server and redis-check-aof skip lines that start with `#`. Some effects in a file may have
//! no checksum: they were written while the setting was off, or by Redis.

use pantala_base::{crc16, crc64};

/// The prefix of a checksum line.
pub const PREFIX: &[u8; 5] = b"#CRC:";

/// A group of effects, as its checksum line describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    /// Length without the checksum line, bytes.
    pub bytes: u64,
    /// CRC64 of these bytes.
    pub crc: u64,
}

/// The error for a damaged checksum line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damaged;

impl Group {
    /// Describes the group that consists of these parts.
    #[must_use]
    pub fn of<'p>(parts: impl Iterator<Item = &'p [u8]>) -> Self {
        let sum =
            |group: Group, part: &[u8]| Group { bytes: group.bytes + part.len() as u64, crc: crc64(group.crc, part) };
        parts.fold(Group { bytes: 0, crc: 0 }, sum)
    }

    /// Returns the group's checksum line.
    #[must_use]
    pub fn line(self) -> Vec<u8> {
        let mut line = PREFIX.to_vec();
        line.extend_from_slice(format!("{}:{:016x}:", self.bytes, self.crc).as_bytes());
        let check = crc16(&line);
        line.extend_from_slice(format!("{check:04x}\r\n").as_bytes());
        line
    }

    /// Reads an annotation, with its line end. Returns `None` if it is no checksum line.
    ///
    /// An annotation whose first bytes differ from [`PREFIX`] in one bit counts as a damaged
    /// checksum line. If such a line were skipped as unknown, one flipped bit would disable the
    /// check of the group.
    #[must_use]
    pub fn read(line: &[u8]) -> Option<Result<Self, Damaged>> {
        let start = line.get(..PREFIX.len())?;
        let flipped: u32 = start.iter().zip(PREFIX).map(|(byte, right)| (byte ^ right).count_ones()).sum();
        (flipped <= 1).then(|| parse(line).ok_or(Damaged))
    }
}

fn parse(line: &[u8]) -> Option<Group> {
    let mut words = std::str::from_utf8(line.strip_prefix(PREFIX)?).ok()?.split(':');
    let bytes = words.next()?.parse().ok()?;
    let crc = u64::from_str_radix(words.next()?, 16).ok()?;
    let group = Group { bytes, crc };
    // This comparison verifies the line's own checksum. It also rejects other spellings of the same
    // numbers.
    (group.line() == line).then_some(group)
}
