//! Releases shards that a worker holds, or is sent, while it runs a script. Otherwise they would
//! stay unusable until the script ends.
//!
//! There are three kinds: shards deferred to the worker's next turn, or sent to it as their home,
//! which serve their waiting requests at once; shards that requests have gathered for connections
//! of the worker; and shards that keys were evicted from on behalf of a script that had waited.
//!
//! A request that has gathered its shards can't run, since its transaction or script needs the
//! worker. It is *set back*: it releases all its shards, and takes them again from the lowest in
//! the worker's next turn. That costs its places in the gates, and could repeat for ever while
//! scripts follow each other. So each time it waits twice as long before it is set back: sooner or
//! later the script ends first.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::shard::executor::Executor;
use crate::shard::request::{Parcel, Task};

/// How long a request first keeps the shards that it has gathered while its worker runs a script,
/// ms.
const PATIENCE_MS: i64 = 5;

/// The most doublings of that time: to more than an hour.
const DOUBLINGS_MAX: u32 = 20;

/// How long requests for deferred shards are served in the midst of a script, before the script
/// continues until its next check.
const PUT_OFF_TIME_MAX: Duration = Duration::from_millis(1);

/// How often a request was set back, and when it will be next.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Patience {
    times: u32,
    /// By the monotonic clock; `None` until the request is first seen to wait since it gathered its
    /// shards.
    ends_ms: Option<i64>,
}

impl Patience {
    /// Returns whether the patience has run out at that time.
    fn is_over(&mut self, now_ms: i64) -> bool {
        now_ms >= *self.ends_ms.get_or_insert(now_ms + (PATIENCE_MS << self.times))
    }

    fn double(&mut self) {
        *self = Patience { times: (self.times + 1).min(DOUBLINGS_MAX), ends_ms: None };
    }
}

impl Executor<'_> {
    /// As [`Executor::go_on`], in the midst of a script: until no shard is deferred, for a bounded
    /// time.
    pub fn go_on_within(&mut self) {
        let began = Instant::now();
        while self.has_put_off() && began.elapsed() < PUT_OFF_TIME_MAX {
            self.go_on();
        }
    }

    /// Sets back requests that have gathered shards for this worker while it runs a script, if
    /// their patience has run out at `now_ms` (monotonic clock). Returns these, for
    /// [`Executor::resume`] in the worker's next turn. The others stay in `brought`.
    pub fn set_back(&mut self, brought: &mut VecDeque<Parcel>, now_ms: i64) -> Vec<Parcel> {
        let is_set_back = |parcel: &mut Parcel| {
            let request = &mut parcel.value;
            !request.owned.is_empty() && request.patience.is_over(now_ms)
        };
        let (mut set_back, mut stay) = (Vec::new(), VecDeque::new());
        for mut parcel in brought.drain(..) {
            if is_set_back(&mut parcel) {
                let request = &mut parcel.value;
                self.to_free.append(&mut request.owned);
                request.task = Task::Bring;
                request.patience.double();
                set_back.push(parcel);
            } else {
                stay.push_back(parcel);
            }
        }
        *brought = stay;
        self.free_all();
        set_back
    }

    /// Releases the shards that keys were evicted from while others were held
    /// ([`Executor::make_room`]). Must not be called in the midst of a request.
    pub fn free_evicted(&mut self) {
        self.free_all();
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
