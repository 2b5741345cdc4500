//! Decides which replies are sent (`CLIENT REPLY`), and keeps replies and messages in order.

use pantala_base::Lent;
use pantala_engine::client::{ReplyMode, Session};

use crate::connection::{Connection, State};

/// Returns whether the client wants the reply to the command that has just run. Advances the state
/// of `CLIENT REPLY SKIP` by one command.
#[inline]
pub fn replies_wanted(session: &mut Session) -> bool {
    match session.reply_mode {
        ReplyMode::On => true,
        ReplyMode::Off => false,
        // The command that has just run is `CLIENT REPLY SKIP` itself, which has no reply either.
        ReplyMode::SkipNext => {
            session.reply_mode = ReplyMode::Skip;
            false
        }
        ReplyMode::Skip => {
            session.reply_mode = ReplyMode::On;
            false
        }
    }
}

/// Returns whether a command needs more work after its reply: removing the reply
/// ([`replies_wanted`]) or closing the connection.
#[inline]
pub fn needs_settling(session: &Session) -> bool {
    session.reply_mode != ReplyMode::On || session.close_after_reply
}

impl<C: Lent, S> Connection<C, S> {
    /// Removes the reply that starts at `before` in the output, if the client doesn't want it.
    /// Keeps messages, and the bytes of [`Connection::confirmed`].
    #[inline]
    pub fn end_reply(&mut self, before: usize) {
        if !replies_wanted(&mut self.session) {
            self.withdraw_reply(before);
        }
    }

    /// Removes the reply that starts at `before` in the output. Appends the bytes of
    /// [`Connection::confirmed`], which are sent even if replies are suppressed.
    pub fn withdraw_reply(&mut self, before: usize) {
        self.output.truncate(before);
        self.output.extend(std::mem::take(&mut self.confirmed));
    }

    /// Returns whether messages must wait, because a reply that must precede them has not arrived
    /// yet.
    pub fn awaits_answer(&self) -> bool {
        if self.session.in_exec {
            return true;
        }
        match self.state {
            State::Parked => true,
            State::Blocked => self.waits.blocked.as_ref().is_some_and(|blocked| blocked.waiter.is_claimed()),
            State::Open | State::Paused | State::Yielding | State::Syncing | State::Closing => false,
        }
    }

    /// Adds a message. If replies are in flight, the message may refer to their content, so it is
    /// sent after them.
    pub fn push_message(&mut self, bytes: &[u8]) {
        if self.awaits_answer() {
            self.held_messages.extend_from_slice(bytes);
        } else if self.state != State::Closing {
            self.output.extend_from_slice(bytes);
        }
    }

    /// Releases the held messages once the replies before them have arrived.
    #[inline]
    pub fn release_messages(&mut self) {
        if !self.held_messages.is_empty() {
            self.output.append(&mut self.held_messages);
        }
    }

    /// Starts a transaction: messages wait until its reply is complete. The reply starts at
    /// `before` in the output, with the number of its elements.
    pub fn begin_exec(&mut self, before: usize) {
        self.session.in_exec = true;
        self.end_queued_reply(before, false);
    }

    /// Removes the part of a transaction's reply that starts at `before` in the output, if replies
    /// are off. A confirmation of a subscription is kept, unless it is an error. Returns whether
    /// the part is kept.
    ///
    /// As in Redis, `CLIENT REPLY` in a transaction applies to the following elements of its reply,
    /// so the array may have fewer elements than it announces.
    pub fn end_queued_reply(&mut self, before: usize, is_confirmation: bool) -> bool {
        let is_wanted = match self.session.reply_mode {
            // `CLIENT REPLY SKIP` in a transaction applies to the command after the transaction.
            ReplyMode::On | ReplyMode::SkipNext => true,
            ReplyMode::Off | ReplyMode::Skip => is_confirmation && self.output[before..].first() != Some(&b'-'),
        };
        if !is_wanted {
            self.output.truncate(before);
        }
        is_wanted
    }

    /// Ends a transaction, whose reply starts at `before` in the output, and releases the messages
    /// that waited for it. If replies are suppressed now, the remaining part of the reply is sent
    /// nevertheless ([`Connection::withdraw_reply`]).
    pub fn end_exec(&mut self, before: usize) {
        self.session.in_exec = false;
        if self.session.reply_mode == ReplyMode::On {
            self.release_messages();
        } else {
            self.confirmed = self.output.split_off(before);
            self.confirmed.append(&mut self.held_messages);
        }
    }

    /// Ends `CLIENT CACHING`, which applies to one command or transaction.
    #[inline]
    pub fn end_caching(&mut self) {
        if self.session.caching && self.session.transaction.is_none() {
            self.session.set_caching(false);
        }
    }
}
