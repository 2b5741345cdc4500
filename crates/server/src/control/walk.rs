//! One worker's part of a snapshot's walk over the dataset ([`pantala_engine::snapshot`]). Each
//! turn walks for a limited time.

use std::time::Duration;

use pantala_engine::snapshot::Ahead;
use pantala_runtime::EventLoop;

use super::Control;
use crate::dispatch::Dispatcher;

/// Time after which a worker without other work tries to continue the walk, if a shard was held by
/// another worker or the snapshot's thread was too far behind.
const WAIT: Duration = Duration::from_millis(1);

/// The state of a worker's walk.
#[derive(Clone, Copy)]
pub(super) struct Walk {
    /// Number of the snapshot for which the worker walks, or has walked last.
    number: u64,
    /// Whether the worker has more to walk, at once or later.
    ahead: Ahead,
}

impl Default for Walk {
    fn default() -> Self {
        Walk { number: 0, ahead: Ahead::Nothing }
    }
}

impl Control {
    /// Walks for a limited time if a snapshot needs it. Otherwise costs a load and two comparisons.
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

    /// Returns the time that a poll may wait, which is `wait` unless the worker is walking.
    #[inline]
    pub fn wait_for_walk(&self, wait: Duration) -> Duration {
        match self.walk.get().ahead {
            Ahead::Nothing => wait,
            Ahead::Later => wait.min(WAIT),
            Ahead::More => Duration::ZERO,
        }
    }
}
