//! The way to send messages to a worker.
//!
//! Most messages are nodes of the worker's mailbox. *Packed* messages, which are short published
//! messages, are in buffers ([`Packed`]), which are in a separate queue. For each buffer, the
//! mailbox contains a [`Message::Packed`], in the order of the queue. Only the last buffer can be
//! open. It takes messages only while its `Message::Packed` is the last message in the mailbox: the
//! sender of any other message closes the buffer. So a published message never overtakes a message
//! that was sent before it, such as the invalidation of a key.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crossbeam::utils::CachePadded;
use pantala_base::mailbox::{Mailbox, Node};

use crate::clients::listener::Listener;
use crate::events::Workers;
use crate::events::pubsub::{Packed, Published};
use crate::shard::message::Message;

/// Maximum capacity that an empty queue of packed messages keeps.
const QUEUE_CAPACITY_MAX: usize = 64;

/// The way to send messages to a worker: its mailbox, and the doorbell that wakes the worker.
pub struct WorkerPort {
    inbox: CachePadded<Inbox>,
    packed: Mutex<VecDeque<Packed>>,
    doorbell: Box<dyn Fn() + Send + Sync>,
}

/// The fields that every send reads.
struct Inbox {
    mailbox: Mailbox<Message>,
    /// Whether the last buffer of packed messages is open. Changes only while the queue is locked.
    is_open: AtomicBool,
}

impl WorkerPort {
    /// Returns a port that calls `doorbell` when a message arrives while the port's worker sleeps.
    /// `doorbell` may be called by any thread at any time and must be cheap.
    pub fn new(doorbell: Box<dyn Fn() + Send + Sync>) -> Self {
        let inbox = Inbox { mailbox: Mailbox::new(), is_open: AtomicBool::new(false) };
        WorkerPort { inbox: CachePadded::new(inbox), packed: Mutex::default(), doorbell }
    }

    /// Sends a message. Rings the doorbell only if the worker sleeps.
    pub fn send(&self, message: Message) {
        let must_ring = self.inbox.mailbox.send(Node::new(message));
        // Relaxed. An open buffer has a `Message::Packed` in the mailbox, and its sender has set
        // `is_open` before it sent this `Message::Packed`. If the `Message::Packed` precedes the
        // message of this call in the mailbox, its send and the send above synchronize, so this
        // thread sees `is_open`. If the `Message::Packed` follows the message, so do the buffer's
        // messages, and the buffer may stay open.
        if self.inbox.is_open.load(Relaxed) {
            self.close_packed();
        }
        if must_ring {
            (self.doorbell)();
        }
    }

    #[cold]
    fn close_packed(&self) {
        let _queue = self.lock_packed();
        self.inbox.is_open.store(false, Relaxed);
    }

    /// Sends a short published message, in the open buffer or in a new one.
    pub fn send_packed(&self, published: &Published) {
        let mut queue = self.lock_packed();
        let is_open = self.inbox.is_open.load(Relaxed);
        if is_open && queue.back_mut().is_some_and(|last| last.push(published)) {
            return;
        }
        let mut packed = Packed::default();
        let has_room = packed.push(published);
        debug_assert!(has_room, "an empty buffer has room");
        queue.push_back(packed);
        self.inbox.is_open.store(true, Relaxed);
        // The queue stays locked, so that the buffers have the same order as their messages in the
        // mailbox.
        let must_ring = self.inbox.mailbox.send(Node::new(Message::Packed));
        drop(queue);
        if must_ring {
            (self.doorbell)();
        }
    }

    /// Takes the messages of a [`Message::Packed`]. Only the worker itself may call this, once for
    /// each `Message::Packed`.
    pub fn take_packed(&self) -> Packed {
        let mut queue = self.lock_packed();
        let packed = queue.pop_front();
        debug_assert!(packed.is_some(), "each message has its buffer");
        if queue.is_empty() {
            self.inbox.is_open.store(false, Relaxed);
            queue.shrink_to(QUEUE_CAPACITY_MAX);
        }
        packed.unwrap_or_default()
    }

    fn lock_packed(&self) -> MutexGuard<'_, VecDeque<Packed>> {
        self.packed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the mailbox. Only the port's worker receives from it.
    pub fn mailbox(&self) -> &Mailbox<Message> {
        &self.inbox.mailbox
    }
}

impl Workers for Arc<[WorkerPort]> {
    fn publish(&self, worker: u32, published: Arc<Published>) {
        self[worker as usize].send(Message::Published(published));
    }

    fn publish_packed(&self, worker: u32, published: &Published) {
        self[worker as usize].send_packed(published);
    }

    fn close_over_limit(&self, subscriber: Listener) {
        self[subscriber.worker as usize].send(Message::OverLimit(subscriber.connection));
    }

    fn show(&self, monitor: Listener, line: Arc<[u8]>) {
        self[monitor.worker as usize].send(Message::Monitored(monitor.connection, line));
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::events::pubsub::Kind;

    fn send_packed(port: &WorkerPort, payload: &[u8]) {
        let channel = b"a".as_slice().into();
        port.send_packed(&Published { kind: Kind::Channel, channel, payload: payload.into(), patterns: Vec::new() });
    }

    /// Receives all messages. Returns the payload of each packed message, and `-` for any other
    /// message.
    fn received(port: &WorkerPort) -> String {
        let mut received = String::new();
        for node in port.mailbox().receive() {
            match node.value {
                Message::Packed => {
                    let packed = port.take_packed();
                    let payloads = packed.runs().flat_map(|run| run.payloads);
                    payloads.for_each(|payload| received.push_str(&String::from_utf8_lossy(payload)));
                }
                _ => received.push('-'),
            }
        }
        received
    }

    #[test]
    fn packed_messages_overtake_no_other() {
        let port = WorkerPort::new(Box::new(|| {}));
        for round in 0..2 {
            port.send(Message::Reload);
            (0..3).for_each(|number| send_packed(&port, &[b'0' + number]));
            port.send(Message::Reload);
            (3..5).for_each(|number| send_packed(&port, &[b'0' + number]));
            port.send(Message::Reload);
            port.send(Message::Reload);
            assert_eq!(received(&port), "-012-34--", "round {round}");
        }
        assert_eq!(received(&port), "");
    }

    #[test]
    fn messages_packed_after_the_mailbox_was_emptied_are_received() {
        let port = WorkerPort::new(Box::new(|| {}));
        send_packed(&port, b"0");
        let mut chain = port.mailbox().receive();
        send_packed(&port, b"1");
        assert!(matches!(chain.next().map(|node| node.value), Some(Message::Packed)));
        assert_eq!(port.take_packed().runs().map(|run| run.payloads.count()).sum::<usize>(), 2);
        assert!(port.mailbox().receive().is_empty());
        send_packed(&port, b"2");
        assert_eq!(received(&port), "2");
    }

    #[test]
    fn many_buffers_keep_their_order() {
        const COUNT: usize = 100_000;
        let port = WorkerPort::new(Box::new(|| {}));
        (0..COUNT).for_each(|number| send_packed(&port, &[b'0' + (number % 10) as u8]));
        assert!(lock_len(&port) > 1);
        let all = received(&port);
        assert!(all.len() == COUNT && all.bytes().enumerate().all(|(at, byte)| byte == b'0' + (at % 10) as u8));
    }

    fn lock_len(port: &WorkerPort) -> usize {
        port.lock_packed().len()
    }
}
