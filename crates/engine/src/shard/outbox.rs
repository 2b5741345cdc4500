//! The results of a worker's executor, for the worker to take: replies to requests, replies to
//! blocked clients, gathered shards and invalidations. Results for connections of other workers are
//! sent to the mailboxes of these workers. [The crate's page](crate) defines request, turn and
//! waiter.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::clients::waiter::{Waiter, Woken};
use crate::events::tracking::{KeyName, Notification};
use crate::shard::executor::Ran;
use crate::shard::keyspace::Keyspace;
use crate::shard::message::Message;
use crate::shard::request::RequestNode;

/// The results that a worker's executor has for the worker's own connections.
pub struct Outbox<'k> {
    pub(crate) keyspace: &'k Keyspace,
    worker: u32,
    /// Whether blocked clients were served since the last [`Outbox::take_served`].
    pub(crate) has_served: bool,
    /// Replies to requests.
    answers: Vec<RequestNode>,
    /// Requests that have gathered their shards or were rejected.
    gathered: Vec<RequestNode>,
    /// The waiter of the last command, if it blocked.
    blocked: Option<Arc<Waiter>>,
    /// Replies to waiters.
    woken: Vec<Woken>,
    /// Invalidations.
    invalidations: Vec<Notification>,
    /// Changed keys for clients that track prefixes, with the client that last changed each key.
    /// Sent once per turn ([`Outbox::send_prefix_invalidations`]).
    pub(crate) changed: BTreeMap<KeyName, u64>,
}

impl<'k> Outbox<'k> {
    pub(crate) fn new(keyspace: &'k Keyspace, worker: u32) -> Self {
        Outbox {
            keyspace,
            worker,
            has_served: false,
            answers: Vec::new(),
            gathered: Vec::new(),
            blocked: None,
            woken: Vec::new(),
            invalidations: Vec::new(),
            changed: BTreeMap::new(),
        }
    }

    /// Sends a request that has run to the worker of its connection.
    pub(crate) fn answer(&mut self, node: RequestNode) {
        let worker = node.value.worker;
        if worker == self.worker {
            self.answers.push(node);
        } else {
            self.keyspace.port(worker).send(Message::Answer(node));
        }
    }

    /// Sends a request that has gathered its shards, or was rejected, to the worker of its
    /// connection.
    pub(crate) fn send_gathered(&mut self, node: RequestNode) {
        let worker = node.value.worker;
        if worker == self.worker {
            self.gathered.push(node);
        } else {
            self.keyspace.port(worker).send(Message::Gathered(node));
        }
    }

    /// Sends the reply to a claimed waiter to the worker of its connection.
    pub(crate) fn send_woken(&mut self, woken: Woken) {
        let worker = woken.waiter.worker;
        if worker == self.worker {
            self.woken.push(woken);
        } else {
            self.keyspace.port(worker).send(Message::Woken(woken));
        }
    }

    /// Sends invalidations to the worker of their connections.
    pub(crate) fn notify(&mut self, worker: u32, notifications: Vec<Notification>) {
        if worker == self.worker {
            self.invalidations.extend(notifications);
        } else {
            self.keyspace.port(worker).send(Message::Invalidations(notifications));
        }
    }

    /// Returns the replies to this worker's own requests that ran on this worker.
    pub fn take_answers(&mut self) -> Vec<RequestNode> {
        std::mem::take(&mut self.answers)
    }

    /// Returns this worker's own requests that have gathered their shards or were rejected.
    pub fn take_gathered(&mut self) -> Vec<RequestNode> {
        std::mem::take(&mut self.gathered)
    }

    /// Sets the waiter of the last command ([`Outbox::take_blocked`]).
    pub fn set_blocked(&mut self, waiter: Arc<Waiter>) {
        self.blocked = Some(waiter);
    }

    /// Takes the waiter of the last command, after [`Ran::Blocked`].
    pub fn take_blocked(&mut self) -> Option<Arc<Waiter>> {
        self.blocked.take()
    }

    /// Takes the replies to waiters of this worker's own connections.
    pub fn take_woken(&mut self) -> Vec<Woken> {
        std::mem::take(&mut self.woken)
    }

    /// Takes the invalidations for connections of this worker.
    pub fn take_invalidations(&mut self) -> Vec<Notification> {
        std::mem::take(&mut self.invalidations)
    }

    /// Takes the invalidations like [`Outbox::take_invalidations`], or none if a reply is pending
    /// that must precede them.
    pub fn take_invalidations_unless_answers(&mut self) -> Vec<Notification> {
        if self.answers_first() { Vec::new() } else { self.take_invalidations() }
    }

    /// Returns whether there are replies, or requests to run, that must precede invalidations.
    fn answers_first(&self) -> bool {
        !self.answers.is_empty() || !self.woken.is_empty() || !self.gathered.is_empty()
    }

    /// Returns whether [`Outbox::take_answers`], [`Outbox::take_woken`], [`Outbox::take_gathered`]
    /// or [`Outbox::take_invalidations`] would return anything.
    #[inline]
    pub fn has_answers(&self) -> bool {
        // One branch instead of four, because each turn checks often and usually all lists are
        // empty.
        self.answers.len() | self.woken.len() | self.gathered.len() | self.invalidations.len() != 0
    }

    /// Returns the result of a command that has run: [`Ran::DoneWithEvents`] if its worker must
    /// send invalidations or read the clock again, and otherwise [`Ran::Done`].
    #[inline]
    pub fn done(&self) -> Ran {
        if self.invalidations.is_empty() && !self.has_served { Ran::Done } else { Ran::DoneWithEvents }
    }

    /// Returns the result of a command that has run: `done`, unless the command blocked.
    #[inline]
    pub(crate) fn ran(&mut self, blocked: Option<Arc<Waiter>>, done: Ran) -> Ran {
        if blocked.is_none() {
            return done;
        }
        self.blocked = blocked;
        Ran::Blocked
    }

    /// Returns the result of a command whose events were sent, like [`Outbox::ran`].
    pub(crate) fn ran_with_events(&mut self, blocked: Option<Arc<Waiter>>) -> Ran {
        let done = self.done();
        self.ran(blocked, done)
    }

    /// Returns whether blocked clients were served since the last call. Their commands may have
    /// seen a later time than the worker's, so the caller must then read the clock again.
    pub fn take_served(&mut self) -> bool {
        std::mem::take(&mut self.has_served)
    }
}
