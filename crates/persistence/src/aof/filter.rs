//! Omits commands that only replicas need from the stream of effects.

use std::ops::Range;

use super::reader::number;

/// The omitted commands. They change nothing in the dataset.
const LEFT_OUT: [&[u8]; 4] = [b"PING", b"PUBLISH", b"SPUBLISH", b"REPLCONF"];

/// Returns the ranges of `part` that belong in the append-only file. `part` is a part of the
/// stream, and must consist of whole commands. Neighbouring commands form one range. Bytes that
/// aren't a command are kept.
#[must_use]
pub fn kept(part: &[u8]) -> Vec<Range<usize>> {
    let (mut ranges, mut start, mut at) = (Vec::new(), 0, 0);
    while let Some((len, is_left_out)) = command(&part[at..]) {
        if is_left_out {
            if start < at {
                ranges.push(start..at);
            }
            start = at + len;
        }
        at += len;
    }
    if start < part.len() {
        ranges.push(start..part.len());
    }
    ranges
}

/// Returns the length of the first command, and whether to omit the command. Returns `None` if
/// there is no whole command.
fn command(input: &[u8]) -> Option<(usize, bool)> {
    if input.first() != Some(&b'*') {
        return None;
    }
    let (count, mut at) = number(input, 0).ok()?;
    let mut is_left_out = false;
    for index in 0..count {
        if input.get(at) != Some(&b'$') {
            return None;
        }
        let (len, start) = number(input, at).ok()?;
        let end = start.checked_add(usize::try_from(len).ok()?)?;
        let word = input.get(start..end)?;
        is_left_out |= index == 0 && LEFT_OUT.iter().any(|name| word.eq_ignore_ascii_case(name));
        at = end + 2;
    }
    (at <= input.len() && at > 0).then_some((at, is_left_out))
}
