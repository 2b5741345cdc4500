//! `CLIENT PAUSE`: since when and until when commands are held back.
//!
//! Each command is looked at before it runs. Those that were let through before may be on their way still when a pause begins: who has asked for it is told when they
//! have run (`server/worker/pause.rs`).

use std::sync::atomic::Ordering::Relaxed;

use crate::tuning::Tuning;

/// A pause that has begun, whose client isn't told yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pause {
    timeout_ms: i64,
    /// Until when it lasts, unix time in ms.
    until_ms: i64,
    /// Until when another one lasted when this one came, and whether that held back all commands.
    before: (i64, bool),
}

impl Tuning {
    /// Begins a pause of so many ms, of writes or of `all` commands. Of two at once the longer and the stricter holds.
    pub fn pause(&self, timeout_ms: i64, all: bool, now_ms: i64) -> Pause {
        let (paused_until_ms, pauses_all) = (self.paused_until_ms.load(Relaxed), self.pause_all.load(Relaxed));
        let is_paused = paused_until_ms > now_ms;
        // Beyond the end of time is for ever.
        let own_until_ms = if timeout_ms == 0 { 0 } else { timeout_ms.saturating_add(now_ms) };
        let until_ms = if is_paused { own_until_ms.max(paused_until_ms) } else { own_until_ms };
        // Two clients that pause at the same instant may each miss the other's: the later store then holds, as if the
        // earlier one had ended.
        self.pause_all.store(all || is_paused && pauses_all, Relaxed);
        self.paused_until_ms.store(until_ms, Relaxed);
        Pause { timeout_ms, until_ms, before: (paused_until_ms, pauses_all) }
    }

    /// Its client is told now: its time counts from here, unless it has ended meanwhile.
    pub fn tell_paused(&self, pause: &Pause, now_ms: i64) {
        let until_ms = pause.timeout_ms.saturating_add(now_ms);
        let longer = |paused_until_ms| (paused_until_ms > now_ms).then(|| until_ms.max(paused_until_ms));
        // An error says that nobody is paused any more: then it stays so.
        let _ = self.paused_until_ms.fetch_update(Relaxed, Relaxed, longer);
    }

    /// Its client is refused: takes it back, unless another came or it was ended meanwhile. Whether it did.
    pub fn take_pause_back(&self, pause: &Pause) -> bool {
        let (until_ms, pauses_all) = pause.before;
        let is_last = self.paused_until_ms.compare_exchange(pause.until_ms, until_ms, Relaxed, Relaxed).is_ok();
        if is_last {
            self.pause_all.store(pauses_all, Relaxed);
        }
        is_last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(tuning: &Tuning) -> (i64, bool) {
        (tuning.paused_until_ms.load(Relaxed), tuning.pause_all.load(Relaxed))
    }

    #[test]
    fn the_time_counts_from_when_the_client_is_told() {
        let tuning = Tuning::new();
        let pause = tuning.pause(100, false, 1000);
        assert_eq!(state(&tuning), (1100, false));
        tuning.tell_paused(&pause, 1090);
        assert_eq!(state(&tuning), (1190, false));
        // A longer one stays.
        tuning.pause(500, false, 1090);
        tuning.tell_paused(&pause, 1100);
        assert_eq!(state(&tuning), (1590, false));
        // What has ended, by its time or by a client, stays ended.
        tuning.tell_paused(&pause, 1590);
        assert_eq!(state(&tuning), (1590, false));
        tuning.paused_until_ms.store(0, Relaxed);
        tuning.tell_paused(&pause, 1500);
        assert_eq!(state(&tuning), (0, false));
    }

    #[test]
    fn a_pause_that_is_taken_back_leaves_what_was() {
        let tuning = Tuning::new();
        let first = tuning.pause(100, false, 1000);
        let second = tuning.pause(200, true, 1000);
        assert!(tuning.take_pause_back(&second));
        assert_eq!(state(&tuning), (1100, false));
        // Another has come meanwhile.
        tuning.pause(300, true, 1000);
        assert!(!tuning.take_pause_back(&first));
        assert_eq!(state(&tuning), (1300, true));
    }
}
