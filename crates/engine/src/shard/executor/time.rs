//! The time that commands see.
//!
//! Workers read the clock once per turn (iteration of the event loop), at different instants. A
//! worker with a newer time may delete an expired key before another worker's time has reached the
//! deadline. Each shard records the time of its last expiry, and every command on the shard sees at
//! least that time. So after a client has found a key expired, it never finds a key with an earlier
//! deadline alive.

use pantala_base::Clock;

use crate::shard::executor::Runner;
use crate::shard::ownership::Ownership;

impl Runner<'_> {
    /// Returns the time that a command on these shards sees, Unix time in ms. `now_ms` is the time
    /// of the command's worker.
    #[inline(always)]
    pub fn time_of(&mut self, now_ms: i64, owned: &mut [Ownership]) -> i64 {
        let (keyspace, mut now_ms) = (self.keyspace, now_ms.max(self.reached_ms));
        for ownership in owned {
            let observers = &mut keyspace.shard(ownership).observers;
            if observers.expired_ms > now_ms {
                now_ms = self.catch_up(now_ms, &mut observers.expired_ms);
            }
        }
        now_ms
    }

    /// Returns the later of `now_ms` and the time of a shard's last expiry (`expired_ms`). If the
    /// system's clock was set back since that expiry, first lowers `expired_ms` to the clock's
    /// time.
    #[cold]
    fn catch_up(&mut self, now_ms: i64, expired_ms: &mut i64) -> i64 {
        *expired_ms = self.clock.now_ms().min(*expired_ms);
        self.reached_ms = now_ms.max(*expired_ms);
        self.reached_ms
    }

    /// Starts a turn, whose time has just been read. Resets the time that the last turn advanced
    /// to, in case the clock was set back.
    #[inline]
    pub fn begin_turn(&mut self) {
        self.reached_ms = i64::MIN;
    }
}
