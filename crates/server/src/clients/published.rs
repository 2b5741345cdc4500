//! Delivers published messages to this worker's subscribers.
//!
//! A message is added to the output of all its subscribers in the turn (the iteration of the
//! worker's event loop) in which it arrives. But each turn sends to a limited number of subscribers
//! ([`crate::reactor`]), starting with those that have waited longest. A send takes far longer than
//! appending to an output buffer, so without this limit a message to ten thousand subscribers would
//! delay all other clients. If messages arrive faster than they are sent, one send carries several
//! of them. If a subscriber also has pending replies, or has much output, its output is sent in the
//! same turn.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use pantala_engine::pubsub::{Address, Kind, Published};
use pantala_resp::{Reply, Version};
use pantala_runtime::{EventLoop, Outgoing, SharedBytes};
use pantala_session::State;

use super::frozen::Deferred;
use super::{Abandon, Clients};

/// Maximum pending output of a subscriber whose messages may wait for a later turn, bytes. Larger
/// sends would hardly be cheaper per byte.
pub(super) const WAITING_OUTPUT_BYTES_MAX: usize = 16 * 1024;

impl<L: EventLoop, H: Abandon> Clients<'_, L, H> {
    /// Delivers published messages to this worker's subscribers, and clears the list. All messages
    /// in the list must have the same subscribers ([`Published::can_combine_with`]).
    pub fn deliver(&mut self, published: &mut Vec<Arc<Published>>) {
        let Some(first) = published.first() else { return };
        deliver_run(self, first.address(), published.iter().map(|message| &*message.payload));
        published.clear();
    }

    /// Adds a message to the output of a connection. If the connection is frozen because its script
    /// is busy, defers the message instead.
    pub fn add_output(&mut self, index: u32, message: &Outgoing) {
        let is_frozen = self.frozen.holds(index);
        let Some(connection) = &mut self.reactor.connections[index as usize] else { return };
        if connection.state == State::Closing {
            return;
        }
        if is_frozen {
            let copy = match message {
                Outgoing::Own(bytes) => bytes.clone().into(),
                Outgoing::Shared(bytes) => Arc::clone(bytes).into(),
            };
            let deferred = Deferred::Output(connection.socket.token(), copy);
            return self.defer_output(deferred, message.bytes().len());
        }
        // A pending reply must precede the message. So the message, even a long one, is copied, and
        // added after the reply.
        let awaits_answer = connection.awaits_answer();
        match message {
            message if awaits_answer => connection.push_message(message.bytes()),
            Outgoing::Own(bytes) => {
                if connection.output.capacity() == 0 {
                    connection.renew_output(&mut self.reactor.spare);
                }
                connection.output.extend_from_slice(bytes);
            }
            Outgoing::Shared(bytes) => connection.add_shared(bytes),
        }
        if self.closed_over_limit(index, message.bytes().len()) {
            return;
        }
        if awaits_answer {
            self.reactor.touch(index);
        } else {
            self.send_in_its_turn(index);
        }
    }

    /// Queues a connection whose output has grown by a message. If the connection has much output,
    /// the output is sent in this turn.
    fn send_in_its_turn(&mut self, index: u32) {
        let Some(connection) = &mut self.reactor.connections[index as usize] else { return };
        let has_much = connection.socket.is_listed && connection.pending_bytes() > self.limits.alarm.waiting_bytes_max;
        // If clients' memory is limited, each turn must account for the connections whose output
        // has grown.
        if has_much || self.limits.accounting.is_on {
            self.reactor.touch(index);
        } else {
            self.reactor.list(index);
        }
    }
}

/// Delivers the messages of a `Message::Packed` to this worker's subscribers.
pub fn deliver_packed<L: EventLoop, H: Abandon>(clients: &mut Clients<'_, L, H>) {
    let packed = clients.reactor.server.port(clients.reactor.number).take_packed();
    for run in packed.runs() {
        deliver_run(clients, run.address, run.payloads);
    }
}

/// Delivers messages that have the same subscribers. The messages are encoded once for each pattern
/// and protocol version, not for each subscriber.
fn deliver_run<'m, L: EventLoop, H: Abandon>(
    clients: &mut Clients<'_, L, H>,
    address: Address<'_>,
    payloads: impl Iterator<Item = &'m [u8]> + Clone,
) {
    let keyspace = clients.executor.keyspace();
    let mut encoded = Encoded::new(clients.reactor.server.kept_messages());
    keyspace.pubsub().deliver(clients.reactor.number, address, |wanted, pattern| {
        let Some(index) = clients.reactor.find_token(wanted) else { return };
        let Some(connection) = &clients.reactor.connections[index as usize] else { return };
        let version = connection.session.version;
        clients.add_output(index, encoded.of(address, payloads.clone(), pattern, version));
    });
    keyspace.pubsub().count_delivered(clients.reactor.number, address, payloads);
}

/// Closes the subscriber with the token `wanted`, because the messages in flight to the subscriber
/// exceed its output limit. A token identifies a connection of a worker.
pub fn close_subscriber<L: EventLoop, H: Abandon>(clients: &mut Clients<'_, L, H>, wanted: u64) {
    match clients.reactor.find_token(wanted) {
        Some(index) if clients.frozen.holds(index) => clients.frozen.defer(Deferred::OverLimit(wanted)),
        Some(index) => clients.close_over_limit(index),
        None => {}
    }
}

/// Minimum length at which subscribers share one encoded message, bytes. Shorter messages are
/// copied: a copy costs no more than a separate send would, and is sent together with other output.
const SHARED_BYTES_MIN: usize = 16 * 1024;

/// Cache of encoded messages. `pattern` is the pattern of the last subscriber. `bytes` has the
/// messages encoded for this pattern, by protocol version; `None` means that they are not encoded
/// yet.
struct Encoded<'s> {
    pattern: Option<Vec<u8>>,
    bytes: [Option<Outgoing>; 2],
    kept_messages: &'s Arc<AtomicU64>,
}

impl<'s> Encoded<'s> {
    /// Creates an empty cache. The sizes of shared messages are added to `kept_messages`.
    fn new(kept_messages: &'s Arc<AtomicU64>) -> Self {
        Encoded { pattern: None, bytes: [None, None], kept_messages }
    }

    fn of<'m>(
        &mut self,
        address: Address<'_>,
        payloads: impl Iterator<Item = &'m [u8]>,
        pattern: Option<&[u8]>,
        version: Version,
    ) -> &Outgoing {
        if self.pattern.as_deref() != pattern {
            self.pattern = pattern.map(<[u8]>::to_vec);
            self.bytes = [None, None];
        }
        self.bytes[usize::from(version == Version::Resp3)].get_or_insert_with(|| {
            let bytes = encode(address, payloads, pattern, version);
            if bytes.len() < SHARED_BYTES_MIN {
                bytes.into()
            } else {
                SharedBytes::new(bytes, self.kept_messages).into()
            }
        })
    }
}

fn encode<'m>(
    address: Address<'_>,
    payloads: impl Iterator<Item = &'m [u8]>,
    pattern: Option<&[u8]>,
    version: Version,
) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut reply = Reply::new(&mut bytes, version);
    for payload in payloads {
        reply.push(if pattern.is_some() { 4 } else { 3 });
        reply.bulk(match (address.kind, pattern) {
            (_, Some(_)) => b"pmessage",
            (Kind::Shard, None) => b"smessage",
            (_, None) => b"message",
        });
        if let Some(pattern) = pattern {
            reply.bulk(pattern);
        }
        reply.bulk(address.channel);
        reply.bulk(payload);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADDRESS: Address<'static> = Address { kind: Kind::Channel, channel: b"news", patterns: &[] };

    #[test]
    fn a_message_is_encoded_once_for_each_version() {
        let kept_messages = Arc::default();
        let (short, long) = (vec![b'x'; 100], vec![b'x'; SHARED_BYTES_MIN]);
        for (message, is_shared) in [(&short, false), (&long, true)] {
            let mut encoded = Encoded::new(&kept_messages);
            let payloads = || std::iter::once(&message[..]);
            let mut address = |version| encoded.of(ADDRESS, payloads(), None, version).bytes().as_ptr();
            let (two, three) = (address(Version::Resp2), address(Version::Resp3));
            assert!((0..10).all(|_| address(Version::Resp2) == two && address(Version::Resp3) == three));
            assert_ne!(two, three);
            let output = encoded.of(ADDRESS, payloads(), None, Version::Resp2);
            assert_eq!(matches!(output, Outgoing::Shared(_)), is_shared);
        }
    }

    #[test]
    fn messages_are_shared_from_the_minimum_length() {
        let kept_messages = Arc::default();
        let around = encode(ADDRESS, std::iter::once(&b""[..]), None, Version::Resp2).len();
        // The length prefix of this payload has four more digits than that of an empty payload.
        let payload_bytes = SHARED_BYTES_MIN - around - 4;
        for (bytes, is_shared) in [(payload_bytes, true), (payload_bytes - 1, false)] {
            let message = vec![b'x'; bytes];
            let mut encoded = Encoded::new(&kept_messages);
            let output = encoded.of(ADDRESS, std::iter::once(&message[..]), None, Version::Resp2);
            assert_eq!(matches!(output, Outgoing::Shared(_)), is_shared, "{bytes}");
        }
        assert_eq!(kept_messages.load(std::sync::atomic::Ordering::Relaxed), 0, "nobody has them any more");
    }
}
