//! `CLIENT PAUSE`: since when and until when commands are held back.
//!
//! Each command is looked at before it runs. Those that were let through before may be on their way still when a pause begins: who has asked for it is told when they
//! have run (`server/worker/pause.rs`).

use std::sync::atomic::Ordering::Relaxed;

use crate::tuning::Tuning;

/// The end of a pause whose client isn't told yet.
const UNTOLD_MS: i64 = i64::MAX;

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

    /// Its client has to wait before it is told: a pause that has just begun lasts until then at least.
    pub fn hold_pause(&self) {
        self.untold_pauses.fetch_add(1, Relaxed);
        self.paused_until_ms.store(UNTOLD_MS, Relaxed);
    }

    /// The client of a held pause is told now: its time counts from here, unless it was ended meanwhile (`CLIENT UNPAUSE`).
    pub fn tell_paused(&self, pause: &Pause, now_ms: i64) {
        let own_until_ms = pause.timeout_ms.saturating_add(now_ms).min(UNTOLD_MS - 1);
        // Of one that another client was told of before, it has the time.
        let until_ms = if pause.until_ms == UNTOLD_MS { own_until_ms } else { own_until_ms.max(pause.until_ms) };
        self.told_until_ms.fetch_max(until_ms, Relaxed);
        self.release_pause();
    }

    /// The client of a held pause is refused: takes it back.
    pub fn take_pause_back(&self, pause: &Pause) {
        let (until_ms, pauses_all) = pause.before;
        if until_ms != UNTOLD_MS {
            self.told_until_ms.fetch_max(until_ms, Relaxed);
            self.pause_all.store(pauses_all, Relaxed);
        }
        self.release_pause();
    }

    /// One held pause less: after the last, it is until when their clients were told.
    fn release_pause(&self) {
        if self.untold_pauses.fetch_sub(1, Relaxed) > 1 {
            return;
        }
        let told_until_ms = self.told_until_ms.swap(0, Relaxed);
        // Anything else is a zero: it was ended.
        let _ = self.paused_until_ms.compare_exchange(UNTOLD_MS, told_until_ms, Relaxed, Relaxed);
    }

    /// Ends all pauses. Whether there was any.
    pub fn end_pause(&self) -> bool {
        self.pause_all.store(false, Relaxed);
        self.told_until_ms.store(0, Relaxed);
        self.paused_until_ms.swap(0, Relaxed) != 0
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
        tuning.hold_pause();
        assert!(tuning.is_paused(5000), "however long that takes");
        tuning.tell_paused(&pause, 5000);
        assert_eq!(state(&tuning), (5100, false));
        // A longer one that its client was told of stays.
        let pause = tuning.pause(10, true, 5000);
        tuning.hold_pause();
        tuning.tell_paused(&pause, 5050);
        assert_eq!(state(&tuning), (5100, true));
        // What a client has ended stays ended.
        let pause = tuning.pause(100, false, 6000);
        tuning.hold_pause();
        assert!(tuning.end_pause());
        tuning.tell_paused(&pause, 6000);
        assert_eq!(state(&tuning), (0, false));
    }

    #[test]
    fn it_lasts_until_all_clients_are_told() {
        let tuning = Tuning::new();
        let first = tuning.pause(300, false, 1000);
        tuning.hold_pause();
        let second = tuning.pause(100, false, 1000);
        tuning.hold_pause();
        tuning.tell_paused(&first, 1010);
        assert!(tuning.is_paused(9000));
        tuning.tell_paused(&second, 1100);
        assert_eq!(state(&tuning), (1310, false));
    }

    #[test]
    fn a_pause_that_is_taken_back_leaves_what_was() {
        let tuning = Tuning::new();
        tuning.pause(100, false, 1000);
        let second = tuning.pause(200, true, 1000);
        tuning.hold_pause();
        tuning.take_pause_back(&second);
        assert_eq!(state(&tuning), (1100, false));
        let only = tuning.pause(200, true, 2000);
        tuning.hold_pause();
        tuning.take_pause_back(&only);
        assert!(!tuning.is_paused(2000));
        // Another has come meanwhile.
        let first = tuning.pause(200, true, 3000);
        tuning.hold_pause();
        let second = tuning.pause(50, false, 3000);
        tuning.hold_pause();
        tuning.tell_paused(&second, 3010);
        tuning.take_pause_back(&first);
        assert!(tuning.is_paused(3059) && !tuning.is_paused(3060));
    }
}
