//! Client-side caching: sends clients the invalidations of keys that have changed
//! ([`pantala_engine::tracking`]).

use std::sync::atomic::Ordering::Relaxed;

use pantala_engine::client::Listener;
use pantala_engine::message::Message;
use pantala_engine::tracking::{CHANNEL, Invalid, Notification, Reader, Subject};
use pantala_resp::{Reply, Version};
use pantala_runtime::EventLoop;

use super::frozen::Deferred;
use super::{Abandon, Clients, State};

/// The form in which a connection receives invalidations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// A RESP3 push.
    Push,
    /// A message on [`CHANNEL`], in RESP2.
    Message,
}

/// Cache of the last encoded invalidation. It helps because many connections may receive the same
/// invalidation.
#[derive(Default)]
struct Encoded {
    of: Option<(Invalid, Form)>,
    bytes: Vec<u8>,
}

impl Encoded {
    fn of(&mut self, what: &Invalid, form: Form) -> &[u8] {
        let is_there = self.of.as_ref().is_some_and(|(known, known_form)| *known_form == form && known.is_same(what));
        if !is_there {
            self.bytes.clear();
            encode(what, form, &mut self.bytes);
            self.of = Some((what.clone(), form));
        }
        &self.bytes
    }
}

fn encode(what: &Invalid, form: Form, bytes: &mut Vec<u8>) {
    let mut reply = match form {
        Form::Push => {
            let mut reply = Reply::new(bytes, Version::Resp3);
            reply.push(2);
            reply.bulk(b"invalidate");
            reply
        }
        Form::Message => {
            let mut reply = Reply::new(bytes, Version::Resp2);
            reply.array(3);
            reply.bulk(b"message");
            reply.bulk(CHANNEL);
            reply
        }
    };
    match what.names() {
        None => reply.null(),
        Some(names) => {
            reply.array(names.len());
            names.iter().for_each(|name| reply.bulk(name));
        }
    }
}

/// Returns the current address of the client to which a reader redirects invalidations. Returns
/// `None` unless the client is moving or has moved since an invalidation was sent to `former`.
fn moved_to(reader: &Reader, former: Listener) -> Option<Listener> {
    let client = reader.redirect().filter(|client| !client.is_disconnected.load(Relaxed))?;
    let now = client.listener();
    (now != former || now.connection == Listener::MOVING).then_some(now)
}

impl<L: EventLoop, H: Abandon> Clients<'_, L, H> {
    /// Sends invalidations to connections of this worker.
    #[cold]
    pub fn send_invalidations(&mut self, notifications: Vec<Notification>) {
        let mut encoded = Encoded::default();
        for notification in notifications {
            self.send_invalidation(notification, &mut encoded);
        }
    }

    fn send_invalidation(&mut self, notification: Notification, encoded: &mut Encoded) {
        let Notification { connection: wanted, reader, subject } = notification;
        if !reader.is_live() {
            return;
        }
        let index = self.reactor.find_token(wanted);
        let index = index.filter(|index| {
            let connection = self.reactor.connections[*index as usize].as_ref();
            connection.is_some_and(|connection| connection.state != State::Closing)
        });
        let Some(index) = index else {
            if matches!(subject, Subject::Redirected(_)) {
                let former = Listener { worker: self.reactor.number, connection: wanted };
                let (to, subject) = match moved_to(&reader, former) {
                    Some(to) => (to, subject),
                    // The client that should have received the invalidation has disconnected.
                    None => (reader.client().listener(), Subject::Broken),
                };
                let again = vec![Notification { connection: to.connection, reader, subject }];
                self.reactor.server.port(to.worker).send(Message::Invalidations(again));
            }
            return;
        };
        if self.frozen.holds(index) {
            let bytes = match &subject {
                Subject::Invalid(what) | Subject::Redirected(what) => {
                    what.names().map_or(0, |names| names.iter().map(|name| name.len()).sum())
                }
                Subject::Broken => 0,
            };
            let notification = Notification { connection: wanted, reader, subject };
            return self.defer_output(Deferred::Notification(notification), bytes + size_of::<Notification>());
        }
        let Some(connection) = &mut self.reactor.connections[index as usize] else { return };
        let before_bytes = connection.pending_bytes();
        let is_resp3 = connection.session.version == Version::Resp3;
        match subject {
            Subject::Invalid(what) if is_resp3 => connection.push_message(encoded.of(&what, Form::Push)),
            Subject::Redirected(what) if is_resp3 => connection.push_message(encoded.of(&what, Form::Push)),
            Subject::Redirected(what) if connection.session.subscriptions.is_some() => {
                connection.push_message(encoded.of(&what, Form::Message));
            }
            // A RESP2 client could not distinguish the invalidation from a reply, so it isn't sent.
            Subject::Invalid(_) | Subject::Redirected(_) => return,
            Subject::Broken => {
                if !connection.session.tracking.as_ref().is_some_and(|tracking| tracking.is_of(&reader)) {
                    return;
                }
                connection.session.break_redirect();
                if !is_resp3 {
                    return;
                }
                let id = connection.session.tracking.as_ref().map_or(0, |tracking| tracking.redirect());
                let mut bytes = Vec::new();
                let mut reply = Reply::new(&mut bytes, Version::Resp3);
                reply.push(2);
                reply.bulk(b"tracking-redir-broken");
                reply.integer(id as i64);
                connection.push_message(&bytes);
            }
        }
        let added_bytes = connection.pending_bytes() - before_bytes;
        if !self.closed_over_limit(index, added_bytes) {
            self.reactor.touch(index);
        }
    }

    /// Sends this worker's connections the invalidations caused by the worker's last command. If
    /// the executor has pending replies, sends nothing yet, because the invalidations must follow
    /// these replies. In that case, the invalidations are sent after the current window (the list
    /// of parsed commands that runs now).
    #[cold]
    pub fn send_own_invalidations(&mut self) {
        // The command may have served blocked clients, whose own commands may have read a later
        // time. So the clock is read again.
        if self.executor.outbox().take_served() {
            self.reactor.read_clock();
        }
        let notifications = self.executor.outbox().take_invalidations_unless_answers();
        self.send_invalidations(notifications);
    }
}
