//! Decides whether the sends of a turn are direct (one system call each) or go through the ring.
//!
//! A turn has these costs:
//!
//! - Ring: the system call that waits also submits the sends. The completions of the sends must not
//!   end this call. If nothing else happens within `PATIENCE_US`, the wait costs a timer, a wake-up
//!   and a second call.
//! - Direct: one `send(2)` for each send, and a wait that ends with the next event.
//!
//! Therefore a loop that sleeps between its turns sends directly, and a loop that is always busy
//! uses the ring ([decision 3](../../../docs/decisions/0003-networking.md)).
//!
//! The loop measures how busy it is by how often it sleeps. This works only while the loop uses the
//! ring: direct sends wake clients sooner, so that under the same load the loop sleeps more often.
//! So the loop probes. During one *stretch* of polls it uses the ring and counts its sleeps. Then
//! it decides for the next stretches.

use crate::rusage;

/// Number of polls in a stretch.
const STRETCH_POLLS: u32 = 256;
/// Number of direct stretches between two probes.
const DIRECT_STRETCHES: u32 = 15;
/// Number of direct stretches between two probes, if the loop slept in more than half of the polls
/// of the last probe. The load is then so low that the next probe can wait.
const DIRECT_STRETCHES_IDLE: u32 = 63;
/// A loop is busy if at most one in this many polls slept.
const BUSY_POLLS_PER_SLEEP: u64 = 8;

/// The pace of a loop. See the head of this module.
#[derive(Debug)]
pub(super) struct Pace {
    polls_left: u32,
    /// Number of direct stretches until the next probe. The ring is used while this is 0.
    direct_stretches: u32,
    /// Voluntary context switches of the thread at the start of the stretch.
    switches: u64,
}

impl Pace {
    /// Returns the initial pace: direct sends, as for an idle loop.
    pub(super) fn new() -> Self {
        Pace { polls_left: STRETCH_POLLS, direct_stretches: 1, switches: 0 }
    }

    /// Returns whether a turn with few sends sends directly.
    #[inline]
    pub(super) fn is_direct(&self) -> bool {
        self.direct_stretches > 0
    }

    /// Counts a poll.
    #[inline]
    pub(super) fn count_poll(&mut self) {
        self.polls_left -= 1;
        if self.polls_left == 0 {
            self.end_stretch(rusage::thread_usage().sleeps);
        }
    }

    #[cold]
    fn end_stretch(&mut self, switches: u64) {
        let slept = switches.saturating_sub(self.switches);
        (self.polls_left, self.switches) = (STRETCH_POLLS, switches);
        if self.direct_stretches > 0 {
            self.direct_stretches -= 1;
        } else if slept * 2 > u64::from(STRETCH_POLLS) {
            self.direct_stretches = DIRECT_STRETCHES_IDLE;
        } else if slept * BUSY_POLLS_PER_SLEEP > u64::from(STRETCH_POLLS) {
            self.direct_stretches = DIRECT_STRETCHES;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs at most `max` stretches, each with `slept` polls that slept. Returns the number of
    /// stretches before the one that changes how the loop sends.
    fn stretches(pace: &mut Pace, slept: u64, max: u32) -> u32 {
        let was_direct = pace.is_direct();
        (0..max)
            .take_while(|_| {
                pace.end_stretch(pace.switches + slept);
                pace.is_direct() == was_direct
            })
            .count() as u32
    }

    #[test]
    fn a_busy_loop_uses_the_ring() {
        let mut pace = Pace::new();
        assert!(pace.is_direct(), "a loop starts idle");
        pace.end_stretch(0);
        let at_bound = u64::from(STRETCH_POLLS) / BUSY_POLLS_PER_SLEEP;
        assert_eq!(stretches(&mut pace, at_bound, 100), 100);
        assert!(!pace.is_direct());
        pace.end_stretch(pace.switches + at_bound + 1);
        assert!(pace.is_direct());
    }

    #[test]
    fn an_idle_loop_sends_directly_and_probes_the_ring() {
        for (slept, direct) in [(STRETCH_POLLS / 4, DIRECT_STRETCHES), (STRETCH_POLLS, DIRECT_STRETCHES_IDLE)] {
            let mut pace = Pace::new();
            pace.end_stretch(0);
            for _ in 0..3 {
                assert!(!pace.is_direct(), "a probe");
                pace.end_stretch(pace.switches + u64::from(slept));
                // The last direct stretch isn't counted: the next probe follows it.
                assert_eq!(stretches(&mut pace, u64::from(slept), 1000), direct - 1);
            }
        }
    }

    #[test]
    fn polls_make_stretches() {
        let mut pace = Pace::new();
        (0..STRETCH_POLLS).for_each(|_| pace.count_poll());
        assert_eq!((pace.polls_left, pace.is_direct()), (STRETCH_POLLS, false));
    }
}
