//! Short messages in flight to a worker, packed into one buffer.
//!
//! A message that is sent on its own takes some 290 bytes besides its payload: a mailbox node, a
//! reference count and three allocations. For a short message this is ten times the size of its
//! encoded form in the output. A worker may take no messages for long, for example because it runs
//! a script that publishes. So short messages to a worker with many bytes in flight are packed.
//!
//! A *run* is a list of messages that are delivered together ([`Address::can_combine_with`]). Each
//! message is a record. Its first two bytes contain the payload's length, and a bit that is set in
//! the first record of a run. The address follows, but only in the first record of a run. The
//! payload is last. So each further message of a run takes two bytes besides its payload.

use super::{Address, Kind, Name, Published};

/// Maximum length of a buffer, bytes: a power of two, so that a full buffer has no spare capacity.
/// The worker encodes all messages of a buffer at once, so a buffer must not be long. A million
/// messages of one byte, for example, would be 30 MB with their headers.
const PACKED_BYTES: usize = 64 * 1024;

/// Maximum length of a packed message (channel and payload), bytes. Packing a longer message would
/// gain little: sent on its own, it takes at most a tenth more memory than its length, and workers
/// share it.
pub(super) const PACKED_MESSAGE_BYTES_MAX: usize = 4 * 1024;

/// Maximum length of a record besides its channel and its payload, bytes.
const RECORD_BYTES: usize = 7;

/// When a run starts, an equal list of patterns is searched only among this number of the latest
/// lists.
const RECENT_PATTERNS: usize = 8;

/// Messages in the order of publication.
#[derive(Debug, Default)]
pub struct Packed {
    bytes: Vec<u8>,
    /// The address of the last run: its kind, and its channel's place in `bytes`. `None` if no
    /// message can be added to that run.
    last: Option<(Kind, std::ops::Range<usize>)>,
    /// The distinct lists of patterns.
    patterns: Vec<Vec<Name>>,
}

/// Messages of one run.
pub struct Run<'p> {
    /// The receivers of the messages.
    pub address: Address<'p>,
    /// The payloads of the messages.
    pub payloads: Payloads<'p>,
}

/// The payloads of a run.
#[derive(Clone)]
pub struct Payloads<'p> {
    first: Option<&'p [u8]>,
    /// The following records.
    rest: &'p [u8],
}

/// Removes a 16-bit number from the front of `bytes`.
fn take_number(bytes: &mut &[u8]) -> usize {
    let (number, rest) = bytes.split_first_chunk().expect("a record is complete");
    *bytes = rest;
    usize::from(u16::from_le_bytes(*number))
}

/// Removes `len` bytes from the front of `bytes`.
fn take_bytes<'p>(bytes: &mut &'p [u8], len: usize) -> &'p [u8] {
    let (taken, rest) = bytes.split_at(len);
    *bytes = rest;
    taken
}

impl Packed {
    /// Adds a message of at most [`PACKED_MESSAGE_BYTES_MAX`]. Returns `false` if the buffer is
    /// full.
    pub fn push(&mut self, message: &Published) -> bool {
        debug_assert!(message.is_short(), "its lengths may not fit into a record");
        let address = message.address();
        if self.bytes.len() + RECORD_BYTES + address.channel.len() + message.payload.len() > PACKED_BYTES {
            return false;
        }
        let starts = !self.last.as_ref().is_some_and(|(kind, channel)| {
            let last = Address { kind: *kind, channel: &self.bytes[channel.clone()], patterns: &[] };
            last.can_combine_with(address)
        });
        self.push_number(message.payload.len() << 1 | usize::from(starts));
        if starts {
            let patterns = self.number_of(address.patterns);
            self.bytes.push(u8::from(address.kind == Kind::Shard));
            self.push_number(patterns);
            self.push_number(address.channel.len());
            let start = self.bytes.len();
            self.bytes.extend_from_slice(address.channel);
            self.last = address.patterns.is_empty().then_some((address.kind, start..self.bytes.len()));
        }
        self.bytes.extend_from_slice(&message.payload);
        true
    }

    fn push_number(&mut self, number: usize) {
        let number = u16::try_from(number).expect("lengths of short messages and numbers of records are short");
        self.bytes.extend_from_slice(&number.to_le_bytes());
    }

    /// Returns the number of a list of patterns: 0 for none, or one more than its index.
    fn number_of(&mut self, patterns: &[Name]) -> usize {
        if patterns.is_empty() {
            return 0;
        }
        let first_recent = self.patterns.len().saturating_sub(RECENT_PATTERNS);
        let found = self.patterns[first_recent..].iter().position(|other| other == patterns);
        let index = found.map_or(self.patterns.len(), |recent| first_recent + recent);
        if index == self.patterns.len() {
            self.patterns.push(patterns.to_vec());
        }
        index + 1
    }

    /// Returns the runs.
    pub fn runs(&self) -> impl Iterator<Item = Run<'_>> {
        let mut rest = &self.bytes[..];
        std::iter::from_fn(move || {
            if rest.is_empty() {
                return None;
            }
            let head = take_number(&mut rest);
            debug_assert!(head & 1 == 1, "a run starts here");
            let kind = if take_bytes(&mut rest, 1) == [0] { Kind::Channel } else { Kind::Shard };
            let patterns = take_number(&mut rest).checked_sub(1).map_or(&[][..], |index| &self.patterns[index]);
            let channel_bytes = take_number(&mut rest);
            let channel = take_bytes(&mut rest, channel_bytes);
            let first = take_bytes(&mut rest, head >> 1);
            let payloads = Payloads { first: Some(first), rest };
            let mut last = payloads.clone();
            last.by_ref().for_each(drop);
            rest = last.rest;
            Some(Run { address: Address { kind, channel, patterns }, payloads })
        })
    }
}

impl<'p> Iterator for Payloads<'p> {
    type Item = &'p [u8];

    fn next(&mut self) -> Option<&'p [u8]> {
        if let Some(first) = self.first.take() {
            return Some(first);
        }
        let mut rest = self.rest;
        if rest.is_empty() {
            return None;
        }
        let head = take_number(&mut rest);
        if head & 1 == 1 {
            return None;
        }
        let payload = take_bytes(&mut rest, head >> 1);
        self.rest = rest;
        Some(payload)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: Kind, channel: &[u8], patterns: &[&str], payload: &[u8]) -> Published {
        let patterns = patterns.iter().map(|pattern| Name::from(pattern.as_bytes())).collect();
        Published { kind, channel: channel.into(), payload: payload.into(), patterns }
    }

    #[test]
    fn messages_come_out_as_they_went_in() {
        use Kind::{Channel, Shard};
        let long = vec![b'x'; PACKED_MESSAGE_BYTES_MAX - 1];
        let many: Vec<String> = (0..2 * RECENT_PATTERNS).map(|number| format!("?{number}")).collect();
        let mut messages = vec![
            (1, message(Channel, b"a", &[], b"1")),
            (0, message(Channel, b"a", &[], b"")),
            (0, message(Channel, b"a", &[], &long)),
            (1, message(Shard, b"a", &[], b"2")),
            (1, message(Channel, b"", &[], b"3")),
            (1, message(Channel, &long, &[], b"4")),
            (1, message(Channel, b"a", &["?", "*"], b"5")),
            (1, message(Channel, b"a", &["?", "*"], b"6")),
            (1, message(Channel, b"a", &["?"], b"7")),
            (1, message(Channel, b"a", &[], b"8")),
        ];
        messages.extend(many.iter().map(|pattern| (1, message(Channel, b"a", &[pattern], b"9"))));
        let mut packed = Packed::default();
        messages.iter().for_each(|(_, message)| assert!(packed.push(message)));
        let mut expected = messages.iter();
        for run in packed.runs() {
            for (number, payload) in run.payloads.enumerate() {
                let (starts, message) = expected.next().expect("as many messages as were added");
                assert_eq!(*starts == 1, number == 0, "{message:?}");
                let Address { kind, channel, patterns } = run.address;
                let expected = (message.kind, &*message.channel, &message.patterns[..], &*message.payload);
                assert_eq!((kind, channel, patterns, payload), expected);
            }
        }
        assert!(expected.next().is_none());
        assert_eq!(packed.patterns.len(), 2 + many.len());
    }

    #[test]
    fn a_full_buffer_takes_no_message() {
        let message = message(Kind::Channel, b"a", &[], b"1");
        let mut packed = Packed::default();
        let count = std::iter::from_fn(|| packed.push(&message).then_some(())).count();
        // The first record takes six bytes more than the others.
        assert_eq!(count, (PACKED_BYTES - RECORD_BYTES - 2 - 6) / 3 + 1);
        assert_eq!(packed.runs().map(|run| run.payloads.count()).collect::<Vec<_>>(), [count]);
    }
}
