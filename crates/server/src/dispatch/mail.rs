//! Messages and requests that a worker has received but can't process yet. Most wait for the next
//! turn, that is, the next iteration of the worker's event loop.

use std::collections::VecDeque;

use pantala_engine::executor::Executor;
use pantala_engine::message::Message;
use pantala_engine::request::RequestNode;
use pantala_engine::tuning::refusal::Refusals;

use crate::host::Server;

/// The pending messages and requests of a worker.
#[derive(Default)]
pub struct Mail {
    /// Requests of this worker's connections that have received their shards but have not run yet.
    pub gathered: VecDeque<RequestNode>,
    /// Requests that were reset during a script ([`Executor::reset_gathered`]). They have released
    /// their shards and request them again in the next turn.
    pub reset_gathered: Vec<RequestNode>,
    /// Messages that were received during a turn and are processed in the next turn.
    received: Vec<Message>,
    /// Number of messages at the front of `received` that are known to carry no shards, so that
    /// [`Mail::pass_on_shards`] can skip them.
    without_shards: usize,
}

impl Mail {
    /// Returns whether anything is pending.
    #[inline]
    pub fn has_pending_work(&self) -> bool {
        !self.received.is_empty() | self.has_requests()
    }

    /// Returns whether any requests are pending.
    #[inline]
    pub fn has_requests(&self) -> bool {
        !self.gathered.is_empty() | !self.reset_gathered.is_empty()
    }

    /// Removes and returns the received messages.
    pub fn take_received(&mut self) -> Vec<Message> {
        self.without_shards = 0;
        std::mem::take(&mut self.received)
    }

    /// Keeps messages for the next turn. No other messages may be pending.
    pub fn keep_received(&mut self, messages: Vec<Message>) {
        debug_assert!(self.received.is_empty() && self.without_shards == 0, "messages would be lost");
        self.received = messages;
    }

    /// Hands over shards to the workers that have requested them: the shards that this worker holds
    /// or receives in messages, except those of the running script. Called while the script is not
    /// yet busy. Messages that carry no shards are kept for the next turn.
    pub fn pass_on_shards(&mut self, server: &Server, number: u32, executor: &mut Executor<'_>) {
        let unseen = self.received.split_off(self.without_shards).into_iter();
        for message in unseen.chain(server.port(number).mailbox().receive().map(|node| node.value)) {
            match message {
                Message::Shard(ownership) => executor.adopt(ownership),
                // With `--execution owner`, the request may hold shards whose home (the worker that
                // runs their commands) is another worker. The request continues now, so that it
                // doesn't hold these shards until the next turn.
                Message::Run(node) => executor.resume(node),
                Message::Gathered(node) => self.gathered.push_back(node),
                other => self.received.push(other),
            }
        }
        self.without_shards = self.received.len();
        executor.serve_deferred_within();
        self.gathered.extend(executor.outbox().take_gathered());
        if !self.gathered.is_empty() && !keeps_gathered(server) {
            let reset_gathered = executor.reset_gathered(&mut self.gathered, server.monotonic_ms());
            self.reset_gathered.extend(reset_gathered);
        }
    }

    /// Makes the requests in `reset_gathered` acquire their shards again.
    #[inline]
    pub fn resume_reset(&mut self, executor: &mut Executor<'_>) {
        if !self.reset_gathered.is_empty() {
            for node in std::mem::take(&mut self.reset_gathered) {
                executor.resume(node);
            }
        }
    }
}

/// Returns whether requests that a script delays must keep their shards. This is so during a pause
/// or a load. If such a request were reset, it would run only after the pause has come into force,
/// or after the load.
fn keeps_gathered(server: &Server) -> bool {
    let tuning = &server.keyspace().tuning;
    tuning.is_paused(server.now_ms()) || tuning.refusals().contains(Refusals::LOADING)
}
