//! What came for this worker and can't be handled yet.

use std::collections::VecDeque;

use pantala_engine::executor::Executor;
use pantala_engine::message::Message;
use pantala_engine::request::Parcel;

use crate::host::Server;

/// See the head of this module.
#[derive(Default)]
pub struct Mail {
    /// Requests of this worker's connections that have brought their shards and not run yet.
    pub brought: VecDeque<Parcel>,
    /// Those that a script has set back: they take their shards again in the next turn.
    pub set_back: Vec<Parcel>,
    /// Messages that came in the midst of a turn, and wait for the next one.
    pub received: Vec<Message>,
    /// How many of them, from the first on, have no shards that could be handed on.
    pub without_shards: usize,
}

impl Mail {
    /// Whether there is any.
    #[inline]
    pub fn is_behind(&self) -> bool {
        !self.received.is_empty() | self.has_requests()
    }

    /// Whether there are requests.
    #[inline]
    pub fn has_requests(&self) -> bool {
        !self.brought.is_empty() | !self.set_back.is_empty()
    }

    /// In the midst of a script that isn't busy yet, or never is: shards that it doesn't hold itself, and that lie with this worker
    /// or were sent to it, don't wait for its end ([`Executor::set_back`]). Nothing else is done for anybody.
    pub fn hand_on_shards(&mut self, server: &Server, number: u32, executor: &mut Executor<'_>) {
        let unseen = self.received.split_off(self.without_shards).into_iter();
        for message in unseen.chain(server.port(number).mailbox().receive().map(|node| node.value)) {
            match message {
                Message::Shard(ownership) => executor.adopt(ownership),
                // With `--execution owner` it may hold shards of other homes.
                Message::Run(parcel) => executor.resume(parcel),
                Message::Brought(parcel) => self.brought.push_back(parcel),
                other => self.received.push(other),
            }
        }
        self.without_shards = self.received.len();
        executor.go_on_within();
        self.brought.extend(executor.take_brought());
        if !self.brought.is_empty() {
            let set_back = executor.set_back(&mut self.brought, server.monotonic_ms());
            self.set_back.extend(set_back);
        }
    }

    /// Has requests that were set back take their shards again.
    #[inline]
    pub fn resume_set_back(&mut self, executor: &mut Executor<'_>) {
        if !self.set_back.is_empty() {
            for parcel in std::mem::take(&mut self.set_back) {
                executor.resume(parcel);
            }
        }
    }
}
