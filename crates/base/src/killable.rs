//! The state word of a script run. Other threads may kill the run until its first change. The
//! *runner* is the thread that runs the script.
//!
//! | bits | meaning | set by |
//! | --- | --- | --- |
//! | number | distinguishes runs | the runner, in [`Killable::start`] |
//! | mark | a bit that only the runner's caller interprets | the runner, in [`Killable::start`] |
//! | changed | the run has changed data, or is about to | the runner, unless the run is killed |
//! | killed | the run must change nothing and end | any thread, unless *changed* is set |
//! | runs | the run has started and not ended | the runner |
//!
//! All bits share one word, so its modification order decides whether *changed* or *killed* is set
//! first. Once one of these two is set, the other can no longer be set during this run. A kill
//! affects only the run that the killer has seen: if the number has changed since, the killer's
//! compare-and-exchange fails.

use crate::sync::{AtomicU64, Ordering};

const RUNS: u64 = 1;
const CHANGED: u64 = 1 << 1;
const KILLED: u64 = 1 << 2;
const MARK: u64 = 1 << 3;
/// Shift of the run's number. The number has 60 bits, so it can't wrap in practice.
const NUMBER_SHIFT: u32 = 4;

/// The state word described at the head of this module. It belongs to one runner; any thread may
/// read it or kill the run.
pub struct Killable {
    word: AtomicU64,
}

/// The outcome of an attempt to kill a run.
#[must_use = "the run is killed only if this is `Kill::Killed`"]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kill {
    /// The run had changed nothing and is now killed.
    Killed,
    /// The run has changed something and continues.
    Changed,
    /// The run has ended, or no run had started.
    Ended,
}

/// A snapshot of a run's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Snapshot(u64);

impl Snapshot {
    /// Returns whether the run had started and not ended.
    pub fn is_running(self) -> bool {
        self.0 & RUNS != 0
    }

    /// Returns whether the run had changed something.
    pub fn has_changed(self) -> bool {
        self.0 & CHANGED != 0
    }

    /// Returns the mark passed to [`Killable::start`].
    pub fn mark(self) -> bool {
        self.0 & MARK != 0
    }
}

impl Killable {
    /// Returns a state without a run.
    pub fn new() -> Self {
        Killable { word: AtomicU64::new(0) }
    }

    /// Starts the next run. Only the runner may call it. Stores that the runner made before this
    /// call are visible to every thread that sees this run ([`Killable::snapshot`]).
    pub fn start(&self, mark: bool) {
        // Relaxed: only this thread, the runner, changes the number, so it reads its own last
        // store. The other bits don't matter between runs.
        let number = (self.word.load(Ordering::Relaxed) >> NUMBER_SHIFT) + 1;
        let mark = if mark { MARK } else { 0 };
        // This store can't overwrite a kill: a kill changes the word only during a run.
        self.word.store(number << NUMBER_SHIFT | mark | RUNS, Ordering::Release);
    }

    /// Sets *changed*, before the run's first change. Only the runner may call it. Returns `false`
    /// if the run was killed; the run must then change nothing.
    #[must_use = "if this is `false`, the run was killed and must change nothing"]
    pub fn change(&self) -> bool {
        // Relaxed: only the modification order of this word matters. The word guards no other
        // memory. This also holds in `is_killed`, `end` and `kill`.
        let mut word = self.word.load(Ordering::Relaxed);
        while word & (CHANGED | KILLED) == 0 {
            match self.word.compare_exchange_weak(word, word | CHANGED, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(now) => word = now,
            }
        }
        word & KILLED == 0
    }

    /// Returns whether the run was killed. Only the runner may call it.
    pub fn is_killed(&self) -> bool {
        self.word.load(Ordering::Relaxed) & KILLED != 0
    }

    /// Ends the run, so that it can no longer be killed. Returns whether it was killed. Only the
    /// runner may call it; repeated calls are allowed.
    pub fn end(&self) -> bool {
        self.word.fetch_and(!RUNS, Ordering::Relaxed) & KILLED != 0
    }

    /// Returns a snapshot of the run's state.
    pub fn snapshot(&self) -> Snapshot {
        // Acquire: pairs with the release in `start`.
        Snapshot(self.word.load(Ordering::Acquire))
    }

    /// Kills the run that was seen, if it still runs and has changed nothing.
    pub fn kill(&self, seen: Snapshot) -> Kill {
        let mut word = seen.0;
        loop {
            if word & RUNS == 0 || word >> NUMBER_SHIFT != seen.0 >> NUMBER_SHIFT {
                return Kill::Ended;
            }
            if word & CHANGED != 0 {
                return Kill::Changed;
            }
            match self.word.compare_exchange_weak(word, word | KILLED, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Kill::Killed,
                Err(now) => word = now,
            }
        }
    }
}

impl Default for Killable {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_has_changed_something_is_not_killed() {
        let run = Killable::new();
        assert!(!run.snapshot().is_running());
        assert_eq!(run.kill(run.snapshot()), Kill::Ended);
        run.start(true);
        assert!(run.snapshot().is_running() && run.snapshot().mark() && !run.snapshot().has_changed());
        let before = run.snapshot();
        assert!(run.change() && run.change());
        assert_eq!((run.kill(before), run.kill(run.snapshot())), (Kill::Changed, Kill::Changed));
        assert!(!run.is_killed());
        assert!(!run.end() && !run.snapshot().is_running());
    }

    #[test]
    fn a_killed_run_changes_nothing() {
        let run = Killable::new();
        run.start(false);
        assert_eq!((run.kill(run.snapshot()), run.kill(run.snapshot())), (Kill::Killed, Kill::Killed));
        assert!(run.is_killed());
        assert!(!run.change() && !run.snapshot().has_changed());
        assert!(run.end() && run.end());
        assert_eq!(run.kill(run.snapshot()), Kill::Ended);
    }

    #[test]
    fn a_late_kill_spares_the_next_run() {
        let run = Killable::new();
        run.start(false);
        let first = run.snapshot();
        assert!(!run.end());
        assert_eq!(run.kill(first), Kill::Ended);
        run.start(false);
        assert_eq!(run.kill(first), Kill::Ended);
        assert!(!run.is_killed());
        assert!(run.change());
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::sync::{Arc, thread};

    /// One thread runs twice and changes something in each run; two others kill the run that they
    /// see. Each run is either changed or killed, never both, and a killer's result applies to the
    /// run that it saw.
    #[test]
    fn a_run_is_killed_or_has_changed_something() {
        loom::model(|| {
            let run = Arc::new(Killable::new());
            run.start(false);
            let killers: Vec<_> = (0..2)
                .map(|_| {
                    let run = run.clone();
                    thread::spawn(move || {
                        let seen = run.snapshot();
                        (seen.mark(), run.kill(seen) == Kill::Killed)
                    })
                })
                .collect();
            let mut killed = Vec::new();
            for mark in [false, true] {
                if mark {
                    run.start(mark);
                }
                let has_changed = run.change();
                killed.push(run.end());
                assert_eq!(has_changed, !killed[usize::from(mark)]);
            }
            let results: Vec<(bool, bool)> = killers.into_iter().map(|killer| killer.join().unwrap()).collect();
            for mark in [false, true] {
                assert_eq!(results.contains(&(mark, true)), killed[usize::from(mark)]);
            }
        });
    }
}
