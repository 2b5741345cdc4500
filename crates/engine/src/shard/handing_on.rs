//! Shards that a worker has, or is sent, while it runs a script: nobody could use them before that ends, so they are handed on in its midst.
//!
//! Three kinds of them there are: those put off to the worker's next turn, or sent to it as their home, which go on at once with the requests that wait for them; those that
//! requests have brought for connections of the worker; and those that keys were evicted from in front of a script that had waited.
//!
//! A request that has brought its shards can't run: what it is there for needs the worker. It is *set back*: it gives them back, keeps nothing, and takes them again, from the lowest
//! on, when the worker has come to its next turn. That costs it its places in the gates, and where scripts follow each other it could happen again and again. So each time it
//! waits twice as long before it is set back: sooner or later the script ends first.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::shard::executor::Executor;
use crate::shard::request::{Parcel, Task};

/// How long a request first keeps the shards that it has brought while its worker runs a script, ms.
const PATIENCE_MS: i64 = 5;

/// How often that is doubled at most: to more than an hour.
const DOUBLINGS_MAX: u32 = 20;

/// How long the requests that wait for shards put off are served in the midst of a script, before that goes on for as long as it does between two looks.
const PUT_OFF_TIME_MAX: Duration = Duration::from_millis(1);

/// How often a request was set back, and when it is to be next.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Patience {
    times: u32,
    /// In the clock that never goes back; `None`: it wasn't seen to wait since it has its shards.
    ends_ms: Option<i64>,
}

impl Patience {
    /// Whether it has come to its end at that time.
    fn is_over(&mut self, now_ms: i64) -> bool {
        now_ms >= *self.ends_ms.get_or_insert(now_ms + (PATIENCE_MS << self.times))
    }

    fn double(&mut self) {
        *self = Patience { times: (self.times + 1).min(DOUBLINGS_MAX), ends_ms: None };
    }
}

impl Executor<'_> {
    /// As [`Executor::go_on`], in the midst of a script: until nothing is put off, or for some time.
    pub fn go_on_within(&mut self) {
        let began = Instant::now();
        while self.has_put_off() && began.elapsed() < PUT_OFF_TIME_MAX {
            self.go_on();
        }
    }

    /// Sets back requests that have brought shards to this worker, which runs a script at that time (in the clock that never goes back, ms), where they have waited long enough for its end.
    /// Gives them: they are to be gone on with ([`Executor::resume`]) in the worker's next turn. Others stay.
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

    /// Gives back the shards that keys were evicted from while others were held ([`Executor::make_room`]). Not to be called in the midst of a request.
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
