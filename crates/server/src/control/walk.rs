//! A worker's part of the walk over the dataset that encodes a snapshot
//! ([`pantala_engine::snapshot`]). Each turn of the worker (an iteration of its event loop)
//! continues the walk for a limited time.

use std::time::Duration;

use pantala_engine::snapshot::Ahead;
use pantala_runtime::EventLoop;

use super::Control;
use crate::dispatch::Dispatcher;

/// Time after which an idle worker continues a paused walk. The walk pauses if another worker holds
/// a shard, or if the snapshot's thread is too far behind.
const WAIT: Duration = Duration::from_millis(1);

/// The state of a worker's walk.
#[derive(Clone, Copy)]
pub(super) struct Walk {
    /// Number of the last snapshot for which this worker has walked or is still walking.
    number: u64,
    /// Whether the worker must walk further, and whether it can do so at once.
    ahead: Ahead,
}

impl Default for Walk {
    fn default() -> Self {
        Walk { number: 0, ahead: Ahead::Nothing }
    }
}

impl Control {
    /// Continues the walk for a limited time if a snapshot needs it. Otherwise costs a load and two
    /// comparisons.
    #[inline]
    pub fn walk_if_due<L: EventLoop>(&self, dispatcher: &mut Dispatcher<'_, L>) {
        let walk = self.walk.get();
        if walk.number != dispatcher.clients.executor.keyspace().snapshots() || walk.ahead != Ahead::Nothing {
            self.walk(dispatcher);
        }
    }

    #[cold]
    fn walk<L: EventLoop>(&self, dispatcher: &mut Dispatcher<'_, L>) {
        let walker = &mut self.work.borrow_mut().walker;
        let ahead = walker.turn(&mut dispatcher.clients.executor);
        self.walk.set(Walk { number: walker.number(), ahead });
    }

    /// Returns how long the worker's next poll may wait: for `wait`, or less if the walk must
    /// continue.
    #[inline]
    pub fn wait_for_walk(&self, wait: Duration) -> Duration {
        match self.walk.get().ahead {
            Ahead::Nothing => wait,
            Ahead::Later => wait.min(WAIT),
            Ahead::More => Duration::ZERO,
        }
    }
}
