//! A client of the load: draws operations and schedules them. The driver owns the client's
//! connections: one, or in cluster mode one to each node.

use std::collections::VecDeque;

use pantala_base::Random;

use super::keys::Keys;
use super::plan::Plan;
use super::schedule::Schedule;

/// An operation that has not been sent, or that must be sent again.
#[derive(Clone, Copy, Debug)]
pub(super) struct Operation {
    /// Index of the operation's command.
    pub(super) command: u16,
    /// Number of the operation's first key.
    pub(super) key: u64,
    /// Time from which the operation's latency counts. `None` if the latency counts from the send.
    pub(super) since_ns: Option<u64>,
    /// Whether an ASKING must precede the operation.
    pub(super) asking: bool,
    /// Number of redirections that the operation has followed.
    pub(super) hops: u8,
}

/// Draws operations. The commands take turns according to their weights. Each command draws its own
/// keys.
pub(super) struct Client {
    pub(super) random: Random,
    /// The key generators of the commands, by index of the command.
    pub(super) keys: Vec<Keys>,
    weights: Vec<u32>,
    command: usize,
    /// Number of operations of `command` before the turn of the next command.
    command_left: u32,
    /// Number of operations still to draw. `None` if the run has a time limit.
    left: Option<u64>,
    schedule: Option<Schedule>,
    /// Whether the client is in the driver's list of due times.
    pub(super) scheduled: bool,
    /// An operation that waits because the queue of its node is full, and the index of that node.
    /// Until the queue has room, the client draws no other operation. Otherwise the other nodes
    /// would receive more than their share.
    pub(super) held: Option<(Operation, usize)>,
    /// Index of the client's connection to each node. `None` if there is no such connection.
    pub(super) connections: Vec<Option<usize>>,
    /// The operations that wait for each node. An operation was either drawn while another node's
    /// pipeline was filled, or redirected to this node.
    pub(super) queues: Vec<VecDeque<Operation>>,
}

/// The next step of a client.
pub(super) enum Next {
    Operation(Operation),
    /// No operation is due before this time, in ns.
    Due(u64),
    Nothing,
}

impl Client {
    /// Creates the client that has the number `index` in the run. The run started at `start_ns`.
    pub(super) fn new(plan: &Plan, index: u64, start_ns: u64) -> Self {
        let seed = if plan.distinct_client_seed { plan.seed.wrapping_add(index) } else { plan.seed };
        let keys = plan.commands.iter().map(|c| Keys::new(c.pattern, &plan.range, index, u64::from(plan.clients)));
        Self {
            random: Random::from_seed(seed),
            keys: keys.collect(),
            weights: plan.commands.iter().map(|command| command.weight).collect(),
            command: 0,
            command_left: plan.commands.first().map_or(0, |command| command.weight),
            left: plan.requests_of(index),
            schedule: plan.rate_per_s.map(|rate| Schedule::new(start_ns, rate, index, u64::from(plan.clients))),
            scheduled: false,
            held: None,
            connections: Vec::new(),
            queues: Vec::new(),
        }
    }

    /// Draws the next operation if one is due.
    #[inline]
    pub(super) fn draw(&mut self, now_ns: u64) -> Next {
        if self.left == Some(0) {
            return Next::Nothing;
        }
        let mut since_ns = None;
        if let Some(schedule) = &mut self.schedule {
            let due_ns = schedule.due_ns();
            if due_ns > now_ns {
                return Next::Due(due_ns);
            }
            schedule.advance();
            since_ns = Some(due_ns);
        }
        while self.command_left == 0 {
            self.command = (self.command + 1) % self.weights.len();
            self.command_left = self.weights[self.command];
        }
        self.command_left -= 1;
        if let Some(left) = &mut self.left {
            *left -= 1;
        }
        let key = self.keys[self.command].draw(&mut self.random);
        Next::Operation(Operation { command: self.command as u16, key, since_ns, asking: false, hops: 0 })
    }

    /// Returns whether the client has drawn all its operations.
    pub(super) fn is_done(&self) -> bool {
        self.left == Some(0) && self.held.is_none()
    }

    /// Stops drawing and sending. Returns the number of requests that were redirected but are not
    /// sent again, and so get no reply.
    pub(super) fn stop(&mut self) -> u64 {
        self.left = Some(0);
        self.held = None;
        let waiting = self.queues.iter_mut().flat_map(|queue| queue.drain(..));
        waiting.filter(|operation| operation.hops > 0).count() as u64
    }
}
