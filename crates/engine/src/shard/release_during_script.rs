//! Releases shards, other than the script's own, that a worker holds or receives while it runs a
//! script. Otherwise these shards would stay unusable until the script ends.
//!
//! Three kinds of shards are released:
//!
//! - shards deferred to the worker's next turn (iteration of its event loop), or sent to the worker
//!   because it is their home: their pending requests are served immediately;
//! - shards that requests have gathered for connections of the worker;
//! - shards from which keys were evicted before the script started, if the script's shards had to
//!   be gathered ([`Evictor::free_evicted`](crate::shard::eviction::Evictor::free_evicted)).
//!
//! A request that has gathered its shards cannot run, because its transaction or script needs the
//! worker. It is *reset*: it releases all its shards, and takes them again in the worker's next
//! turn, starting with the lowest. A reset request loses its places in the gates, so a series of
//! scripts could delay it forever. Therefore each reset doubles the time for which the request then
//! keeps its shards. At some point a script ends within that time, and the request runs.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::shard::executor::Executor;
use crate::shard::keyspace::Keyspace;
use crate::shard::request::{Request, RequestNode, Task};

/// Initial time in ms for which a request keeps its gathered shards while its worker runs a script.
const PATIENCE_MS: i64 = 5;

/// Maximum number of doublings of [`PATIENCE_MS`]. The longest time is more than an hour.
const DOUBLINGS_MAX: u32 = 20;

/// Maximum time for which one check of a running script serves requests for deferred shards.
const DEFERRED_TIME_MAX: Duration = Duration::from_millis(1);

/// The number of times that a request was reset, and the time from which it may be reset next. See
/// the head of this module.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Patience {
    times: u32,
    /// Monotonic time in ms from which the request may be reset. `None` until the worker first sees
    /// it waiting with its shards.
    ends_ms: Option<i64>,
}

impl Patience {
    /// Returns whether the request may be reset.
    fn is_over(&mut self, now_ms: i64) -> bool {
        now_ms >= *self.ends_ms.get_or_insert(now_ms + (PATIENCE_MS << self.times))
    }

    fn double(&mut self) {
        *self = Patience { times: (self.times + 1).min(DOUBLINGS_MAX), ends_ms: None };
    }
}

impl Request {
    /// Notes that the request has arrived at its worker, with its shards or rejected, and that the
    /// worker handles it now. Must be called while the request holds its shards, if it has any.
    pub fn note_arrived(&mut self, keyspace: &Keyspace) {
        if std::mem::take(&mut self.patience).times > 0 {
            keyspace.reset_requests.count(-1);
        }
    }
}

impl Executor<'_> {
    /// Serves the requests of deferred shards while a script runs, until no shard is deferred or a
    /// time limit is reached.
    pub fn serve_deferred_within(&mut self) {
        let began = Instant::now();
        while !self.deferred_shards.is_empty() && began.elapsed() < DEFERRED_TIME_MAX {
            self.serve_deferred();
        }
    }

    /// Resets the requests in `gathered` that hold their shards and may be reset at `now_ms`
    /// (monotonic clock). Called while the worker runs a script. Returns the reset requests, for
    /// [`Executor::resume`] in the worker's next turn. The other requests stay in `gathered`.
    pub fn reset_gathered(&mut self, gathered: &mut VecDeque<RequestNode>, now_ms: i64) -> Vec<RequestNode> {
        let is_reset = |node: &mut RequestNode| {
            let request = &mut node.value;
            !request.owned.is_empty() && request.patience.is_over(now_ms)
        };
        let (mut reset_gathered, mut stay) = (Vec::new(), VecDeque::new());
        for mut node in gathered.drain(..) {
            if is_reset(&mut node) {
                let request = &mut node.value;
                if request.patience.times == 0 {
                    self.keyspace.reset_requests.count(1);
                }
                self.to_free.append(&mut request.owned);
                request.task = Task::Gather;
                request.patience.double();
                reset_gathered.push(node);
            } else {
                stay.push_back(node);
            }
        }
        *gathered = stay;
        self.free_all();
        reset_gathered
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn patience_doubles() {
        let mut patience = Patience::default();
        let mut now_ms = 1000;
        for times in 0..DOUBLINGS_MAX + 5 {
            let lasts_ms = PATIENCE_MS << times.min(DOUBLINGS_MAX);
            assert!(!patience.is_over(now_ms) && !patience.is_over(now_ms + lasts_ms - 1));
            now_ms += lasts_ms;
            assert!(patience.is_over(now_ms) && patience.is_over(now_ms));
            patience.double();
        }
    }
}
