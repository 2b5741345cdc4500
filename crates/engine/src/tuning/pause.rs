//! Pauses (`CLIENT PAUSE`): which commands are held back, and until when.
//!
//! Before a command runs, it is checked whether a pause holds it back. When a pause starts,
//! commands that have already passed the check may still be in flight. The pausing client receives
//! its reply when these commands have run (`crates/server/src/dispatch/pause.rs`). Until then the
//! pause is *held*: it has no end. When the reply is sent, the pause is *released*: its duration
//! starts.
//!
//! The server starts a *lasting* pause of writes for a failover, a promotion or a shutdown. Clients
//! cannot end a lasting pause. The pause that `REPLICAOF` starts is not lasting.
//!
//! Commands read the atomics of [`Tuning`]. The atomics are written only under the lock of
//! [`Pauses`], so that pauses from several workers do not overwrite each other's end.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{MutexGuard, PoisonError};

use crate::tuning::Tuning;

/// The end of a held pause.
const HELD_MS: i64 = i64::MAX;

/// The current pauses.
#[derive(Default)]
pub(crate) struct Pauses {
    /// Number of held pauses of clients.
    held: u32,
    /// Number of held pauses of clients that hold back all commands.
    held_all: u32,
    /// Whether a released pause of clients holds back all commands, or a pause of 0 ms has made the
    /// pauses in force do so.
    kept_all: bool,
    /// The numbers of the pauses that hold back all commands and have started, but are not held
    /// yet. Each is removed when its pause is held, or when all pauses have ended.
    starting_all: Vec<u64>,
    /// Number of pauses that have started.
    starts: u64,
    /// Number of lasting pauses.
    lasting: u32,
    /// End of the pauses of clients (Unix time, ms; 0: no pause; [`HELD_MS`]: a pause is held).
    until_ms: i64,
    /// The latest end of the pauses that were released while others were held.
    released_until_ms: i64,
    /// Number of times that clients have ended all pauses (`CLIENT UNPAUSE`). A pause that started
    /// before the last of these times has no effect.
    ends: u64,
}

/// A pause whose client has not received the reply yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pause {
    timeout_ms: i64,
    /// Whether the pause holds back all commands.
    all: bool,
    /// [`Pauses::until_ms`] after the pause started.
    until_ms: i64,
    /// [`Pauses::until_ms`] before the pause started.
    before_until_ms: i64,
    /// [`Pauses::starts`] after the pause started.
    number: u64,
    /// [`Pauses::ends`] when the pause started.
    ends: u64,
}

impl Pause {
    /// Returns whether the pause holds back anything after its client has received the reply.
    pub fn lasts(&self) -> bool {
        self.timeout_ms != 0
    }
}

impl Tuning {
    pub(super) fn pauses(&self) -> MutexGuard<'_, Pauses> {
        self.pauses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the ends and the mode of the pauses visible to commands.
    fn publish_pauses(&self, pauses: &Pauses) {
        let all = pauses.kept_all || pauses.held_all > 0 || !pauses.starting_all.is_empty();
        self.pause_all.store(all, Relaxed);
        let until_ms = if pauses.lasting > 0 { HELD_MS } else { pauses.until_ms };
        self.clients_paused_until_ms.store(pauses.until_ms, Relaxed);
        self.paused_until_ms.store(until_ms, Relaxed);
    }

    /// Starts a pause of `timeout_ms` that holds back writes, or all commands if `all` is set. If
    /// another pause is in force, the later end and the stricter mode apply.
    pub fn pause(&self, timeout_ms: i64, all: bool, now_ms: i64) -> Pause {
        let mut pauses = self.pauses();
        let before_until_ms = pauses.until_ms;
        let is_paused = before_until_ms > now_ms;
        if !is_paused {
            pauses.kept_all = false;
            pauses.starting_all.clear();
        }
        pauses.starts += 1;
        let number = pauses.starts;
        match timeout_ms {
            _ if !all => {}
            // A pause of 0 ms is never held. It only makes the pauses in force stricter.
            0 => pauses.kept_all = true,
            _ => pauses.starting_all.push(number),
        }
        // `end_of` returns an end before `HELD_MS` even for a very long timeout. So the pause is
        // not mistaken for a held one.
        let own_until_ms = if timeout_ms == 0 { 0 } else { end_of(timeout_ms, now_ms) };
        pauses.until_ms = if is_paused { own_until_ms.max(before_until_ms) } else { own_until_ms };
        self.publish_pauses(&pauses);
        Pause { timeout_ms, all, until_ms: pauses.until_ms, before_until_ms, number, ends: pauses.ends }
    }

    /// Holds a pause that has just started. The pause then lasts until it is released or a client
    /// ends it. Does nothing if a client has already ended the pause.
    pub fn hold_pause(&self, pause: &Pause) {
        let mut pauses = self.pauses();
        if pause.ends == pauses.ends {
            pauses.held += 1;
            pauses.held_all += u32::from(pause.all);
            pauses.starting_all.retain(|number| *number != pause.number);
            pauses.until_ms = HELD_MS;
            self.publish_pauses(&pauses);
        }
    }

    /// Releases a held pause when the reply is sent to its client. The pause's duration counts from
    /// now. Does nothing if a client has ended the pause meanwhile (`CLIENT UNPAUSE`).
    pub fn start_pause_time(&self, pause: &Pause, now_ms: i64) {
        let own_until_ms = end_of(pause.timeout_ms, now_ms);
        // If an earlier pause was held when this pause started, `pause.until_ms` is `HELD_MS`.
        // Otherwise `pause.until_ms` is at least the end of each earlier pause. Those pauses must
        // remain in force.
        let until_ms = if pause.until_ms == HELD_MS { own_until_ms } else { own_until_ms.max(pause.until_ms) };
        let mut pauses = self.pauses();
        if pause.ends == pauses.ends {
            pauses.kept_all |= pause.all;
            self.release_pause(&mut pauses, pause, until_ms);
        }
    }

    /// Releases a held pause as if it had never started. Used if the command that started the pause
    /// is rejected because a busy script holds shards.
    pub fn cancel_pause(&self, pause: &Pause) {
        let mut pauses = self.pauses();
        if pause.ends != pauses.ends {
            return;
        }
        let until_ms = if pause.before_until_ms == HELD_MS { 0 } else { pause.before_until_ms };
        self.release_pause(&mut pauses, pause, until_ms);
    }

    /// Releases a held pause, which then ends at `until_ms`. When no pause is held any more, the
    /// latest end of the released pauses applies to all of them.
    fn release_pause(&self, pauses: &mut Pauses, pause: &Pause, until_ms: i64) {
        pauses.released_until_ms = pauses.released_until_ms.max(until_ms);
        pauses.held -= 1;
        pauses.held_all -= u32::from(pause.all);
        if pauses.held == 0 {
            pauses.until_ms = std::mem::take(&mut pauses.released_until_ms);
        }
        self.publish_pauses(pauses);
    }

    /// Ends all pauses except lasting ones (`CLIENT UNPAUSE`). Returns whether `paused_until_ms`
    /// was set, which is also the case after a pause has expired and during a lasting pause.
    pub fn end_pause(&self) -> bool {
        let mut pauses = self.pauses();
        let was_paused = self.paused_until_ms.load(Relaxed) != 0;
        (pauses.held, pauses.until_ms, pauses.released_until_ms) = (0, 0, 0);
        (pauses.held_all, pauses.kept_all) = (0, false);
        pauses.starting_all.clear();
        pauses.ends += 1;
        self.publish_pauses(&pauses);
        was_paused
    }

    /// Holds back writes until [`Tuning::release_lasting_pause`], even if clients end their pauses.
    /// Used by a failover, a promotion or a shutdown.
    pub fn hold_lasting_pause(&self) {
        let mut pauses = self.pauses();
        pauses.lasting += 1;
        self.publish_pauses(&pauses);
    }

    /// Releases a lasting pause. Pauses of clients continue.
    pub fn release_lasting_pause(&self) {
        let mut pauses = self.pauses();
        pauses.lasting -= 1;
        self.publish_pauses(&pauses);
    }
}

/// Returns the end of a pause of `timeout_ms` that starts now. The result is never [`HELD_MS`],
/// even for a very long timeout.
fn end_of(timeout_ms: i64, now_ms: i64) -> i64 {
    timeout_ms.saturating_add(now_ms).min(HELD_MS - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(tuning: &Tuning) -> (i64, bool) {
        (tuning.paused_until_ms.load(Relaxed), tuning.pause_all.load(Relaxed))
    }

    #[test]
    fn a_pause_counts_from_its_reply() {
        let tuning = Tuning::new();
        let pause = tuning.pause(100, false, 1000);
        assert_eq!(state(&tuning), (1100, false));
        tuning.hold_pause(&pause);
        assert!(tuning.is_paused(5000), "a held pause has no end");
        tuning.start_pause_time(&pause, 5000);
        assert_eq!(state(&tuning), (5100, false));
        // The earlier pause ends later than this one, so its end stays in force.
        let pause = tuning.pause(10, true, 5000);
        tuning.hold_pause(&pause);
        tuning.start_pause_time(&pause, 5050);
        assert_eq!(state(&tuning), (5100, true));
        // A pause that a client has ended stays ended.
        let pause = tuning.pause(100, false, 6000);
        tuning.hold_pause(&pause);
        assert!(tuning.end_pause());
        tuning.start_pause_time(&pause, 6000);
        assert_eq!(state(&tuning), (0, false));
    }

    #[test]
    fn a_held_pause_lasts_until_all_replies() {
        let tuning = Tuning::new();
        let first = tuning.pause(300, false, 1000);
        tuning.hold_pause(&first);
        let second = tuning.pause(100, false, 1000);
        tuning.hold_pause(&second);
        tuning.start_pause_time(&first, 1010);
        assert!(tuning.is_paused(9000));
        tuning.start_pause_time(&second, 1100);
        assert_eq!(state(&tuning), (1310, false));
    }

    #[test]
    fn a_canceled_pause_restores_the_previous_one() {
        let tuning = Tuning::new();
        tuning.pause(100, false, 1000);
        let second = tuning.pause(200, true, 1000);
        tuning.hold_pause(&second);
        tuning.cancel_pause(&second);
        assert_eq!(state(&tuning), (1100, false));
        let only = tuning.pause(200, true, 2000);
        tuning.hold_pause(&only);
        tuning.cancel_pause(&only);
        assert!(!tuning.is_paused(2000));
        // Another pause has started meanwhile.
        let first = tuning.pause(200, true, 3000);
        tuning.hold_pause(&first);
        let second = tuning.pause(50, false, 3000);
        tuning.hold_pause(&second);
        tuning.start_pause_time(&second, 3010);
        tuning.cancel_pause(&first);
        assert!(tuning.is_paused(3059) && !tuning.is_paused(3060));
    }

    /// A former bug: a pause of all commands was canceled while a pause of writes was held. All
    /// commands then stayed paused.
    #[test]
    fn a_canceled_pause_leaves_the_mode_of_the_others() {
        let tuning = Tuning::new();
        let hold = |timeout_ms, all| {
            let pause = tuning.pause(timeout_ms, all, 1000);
            tuning.hold_pause(&pause);
            pause
        };
        let (writes, all) = (hold(100, false), hold(200, true));
        assert_eq!(state(&tuning), (HELD_MS, true));
        tuning.cancel_pause(&all);
        assert_eq!(state(&tuning), (HELD_MS, false));
        let all = hold(50, true);
        tuning.start_pause_time(&all, 1000);
        assert_eq!(state(&tuning), (HELD_MS, true), "in force until it ends");
        tuning.cancel_pause(&writes);
        assert_eq!(state(&tuning), (1050, true));
        let (all, writes) = (hold(300, true), hold(400, false));
        tuning.start_pause_time(&writes, 1000);
        assert_eq!(state(&tuning), (HELD_MS, true));
        tuning.end_pause();
        tuning.cancel_pause(&all);
        assert_eq!(state(&tuning), (0, false));
    }

    /// A former bug: a pause of all commands and a pause of writes had both started before the
    /// first was held. If the first was then canceled, all commands stayed paused.
    #[test]
    fn a_canceled_pause_leaves_no_mode_behind_if_another_has_started_first() {
        let tuning = Tuning::new();
        let start = |all| tuning.pause(100, all, 1000);
        let (first, second, writes) = (start(true), start(true), start(false));
        [&first, &second, &writes].into_iter().for_each(|pause| tuning.hold_pause(pause));
        tuning.cancel_pause(&first);
        assert_eq!(state(&tuning), (HELD_MS, true));
        tuning.cancel_pause(&second);
        assert_eq!(state(&tuning), (HELD_MS, false));
        tuning.start_pause_time(&writes, 1000);
        assert_eq!(state(&tuning), (1100, false));
    }

    /// A former bug: a pause of 0 ms read the end of a held pause, and stored this end after that
    /// pause was released. This paused the server forever.
    #[test]
    fn pauses_of_several_workers_leave_none_behind() {
        const ROUNDS: i64 = 100_000;
        let tuning = Tuning::new();
        let is_over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Relaxed) {
                    tuning.pause(0, false, 1000);
                }
            });
            for _ in 0..ROUNDS {
                let pause = tuning.pause(1, false, 1000);
                tuning.hold_pause(&pause);
                tuning.start_pause_time(&pause, 1000);
                if tuning.paused_until_ms.load(Relaxed) == HELD_MS {
                    break;
                }
            }
            is_over.store(true, Relaxed);
        });
        assert!(!tuning.is_paused(2000), "until {}", state(&tuning).0);
    }

    #[test]
    fn clients_do_not_end_a_lasting_pause() {
        let tuning = Tuning::new();
        tuning.pause(100, true, 1000);
        tuning.hold_lasting_pause();
        assert_eq!(state(&tuning), (HELD_MS, true));
        assert!(tuning.end_pause());
        assert_eq!(state(&tuning), (HELD_MS, false));
        let own = tuning.pause(100, false, 2000);
        tuning.hold_pause(&own);
        tuning.start_pause_time(&own, 2010);
        assert!(tuning.is_paused(9000));
        tuning.release_lasting_pause();
        assert_eq!(state(&tuning), (2110, false), "the end of the client's pause");
        tuning.hold_lasting_pause();
        tuning.release_lasting_pause();
        assert!(!tuning.is_paused(5000));
    }

    #[test]
    fn a_pause_of_all_commands_ends_during_a_lasting_one() {
        let tuning = Tuning::new();
        tuning.hold_lasting_pause();
        let own = tuning.pause(100, true, 1000);
        tuning.hold_pause(&own);
        assert!(tuning.is_paused_by_clients(9000));
        tuning.start_pause_time(&own, 1010);
        assert!(tuning.is_paused_by_clients(1109) && !tuning.is_paused_by_clients(1110));
        assert!(tuning.is_paused(1110), "writes");
        tuning.release_lasting_pause();
        assert!(!tuning.is_paused(1110));
    }

    #[test]
    fn an_ended_pause_stays_ended() {
        let tuning = Tuning::new();
        tuning.pause(1000, true, 1000);
        tuning.hold_lasting_pause();
        let held = tuning.pause(2000, true, 1000);
        tuning.hold_pause(&held);
        assert!(tuning.end_pause());
        tuning.start_pause_time(&held, 1010);
        tuning.release_lasting_pause();
        assert!(!tuning.is_paused(1010));
        // The pause was ended before it was held.
        let late = tuning.pause(2000, true, 1000);
        assert!(tuning.end_pause());
        tuning.hold_pause(&late);
        tuning.cancel_pause(&late);
        assert!(!tuning.is_paused(1010));
    }

    #[test]
    fn a_pause_beyond_the_end_of_time_is_not_held() {
        let tuning = Tuning::new();
        tuning.pause(i64::MAX, false, 1000);
        let held = tuning.pause(5, false, 1000);
        tuning.hold_pause(&held);
        tuning.start_pause_time(&held, 1000);
        assert!(tuning.is_paused(5000), "the longer pause applies");
    }
}
