//! A run (of a script) that other threads may kill until it has changed something: one atomic word.
//!
//! | bits | meaning | who sets them |
//! | --- | --- | --- |
//! | the number of the run | tells one run from the next | the runner, in [`Killable::begin`] |
//! | the mark of the run | whatever the runner says of it | the runner, in [`Killable::begin`] |
//! | changed | it has changed something | the runner, unless it is killed |
//! | killed | it must change nothing any more, and end | anyone, unless it has changed something |
//! | runs | it has begun and not ended | the runner |
//!
//! All of them stand in one word, so its modification order decides: of *changed* and *killed* at most one is ever set, and a thread kills the very run that it
//! has looked at or none, since its exchange fails where the number is another.

use crate::sync::{AtomicU64, Ordering};

const RUNS: u64 = 1;
const CHANGED: u64 = 1 << 1;
const KILLED: u64 = 1 << 2;
const MARK: u64 = 1 << 3;
/// Where the number of the run begins. In the bits that are left it doesn't come round: 2⁶⁰ runs.
const NUMBER_SHIFT: u32 = 4;

/// See the head of this module. Belongs to one runner; anyone may look at it and kill.
pub struct Killable {
    word: AtomicU64,
}

/// The outcome of an attempt to kill a run.
#[must_use = "a run that has changed something isn't killed"]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kill {
    /// It is killed: it changes nothing.
    Killed,
    /// It has changed something, and goes on.
    Changed,
    /// It has ended.
    Ended,
}

/// A run as it was when it was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen(u64);

impl Seen {
    /// Whether it had begun and not ended.
    pub fn runs(self) -> bool {
        self.0 & RUNS != 0
    }

    /// Whether it had changed something.
    pub fn has_changed(self) -> bool {
        self.0 & CHANGED != 0
    }

    /// The mark that it had begun with.
    pub fn mark(self) -> bool {
        self.0 & MARK != 0
    }
}

impl Killable {
    /// Nothing runs.
    pub fn new() -> Self {
        Killable { word: AtomicU64::new(0) }
    }

    /// The next run begins. Called by the runner only. Stores before it are visible to every thread that sees this run ([`Killable::see`]).
    pub fn begin(&self, mark: bool) {
        // Relaxed: nobody but the runner changes the number, and a word that doesn't run has nothing else in it that matters.
        let number = (self.word.load(Ordering::Relaxed) >> NUMBER_SHIFT) + 1;
        let mark = if mark { MARK } else { 0 };
        // Not lost by this store: a kill changes the word only while something runs.
        self.word.store(number << NUMBER_SHIFT | mark | RUNS, Ordering::Release);
    }

    /// The run is about to change something. Called by the runner only. Returns `false` if it was killed before: then it must not.
    #[must_use = "a run that was killed must change nothing"]
    pub fn change(&self) -> bool {
        // Relaxed, here and below: what matters is the order of changes of this one word, and no other memory goes by it.
        let mut word = self.word.load(Ordering::Relaxed);
        while word & (CHANGED | KILLED) == 0 {
            match self.word.compare_exchange_weak(word, word | CHANGED, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(now) => word = now,
            }
        }
        word & KILLED == 0
    }

    /// Returns whether the run was killed. Called by the runner only.
    pub fn is_killed(&self) -> bool {
        self.word.load(Ordering::Relaxed) & KILLED != 0
    }

    /// The run ends: from here on nobody can kill it. Called by the runner only, as often as it likes. Returns whether the run was killed.
    pub fn end(&self) -> bool {
        self.word.fetch_and(!RUNS, Ordering::Relaxed) & KILLED != 0
    }

    /// Looks at the run.
    pub fn see(&self) -> Seen {
        // Acquire: pairs with the release in `begin`.
        Seen(self.word.load(Ordering::Acquire))
    }

    /// Kills a run, if it is still the one that was seen, runs, and has changed nothing.
    pub fn kill(&self, seen: Seen) -> Kill {
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
        assert!(!run.see().runs());
        assert_eq!(run.kill(run.see()), Kill::Ended);
        run.begin(true);
        assert!(run.see().runs() && run.see().mark() && !run.see().has_changed());
        let before = run.see();
        assert!(run.change() && run.change());
        assert_eq!((run.kill(before), run.kill(run.see())), (Kill::Changed, Kill::Changed));
        assert!(!run.is_killed());
        assert!(!run.end() && !run.see().runs());
    }

    #[test]
    fn a_killed_run_changes_nothing() {
        let run = Killable::new();
        run.begin(false);
        assert_eq!((run.kill(run.see()), run.kill(run.see())), (Kill::Killed, Kill::Killed));
        assert!(run.is_killed());
        assert!(!run.change() && !run.see().has_changed());
        assert!(run.end() && run.end());
        assert_eq!(run.kill(run.see()), Kill::Ended);
    }

    #[test]
    fn the_next_run_is_not_killed_instead() {
        let run = Killable::new();
        run.begin(false);
        let first = run.see();
        assert!(!run.end());
        assert_eq!(run.kill(first), Kill::Ended);
        run.begin(false);
        assert_eq!(run.kill(first), Kill::Ended);
        assert!(!run.is_killed());
        assert!(run.change());
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::sync::{Arc, thread};

    /// One thread runs twice and changes something each time, two others kill what they see: each run has changed something or was killed, never both and never
    /// neither, and a killer is told of the run that it has seen.
    #[test]
    fn a_run_is_killed_or_has_changed_something() {
        loom::model(|| {
            let run = Arc::new(Killable::new());
            run.begin(false);
            let killers: Vec<_> = (0..2)
                .map(|_| {
                    let run = run.clone();
                    thread::spawn(move || {
                        let seen = run.see();
                        (seen.mark(), run.kill(seen) == Kill::Killed)
                    })
                })
                .collect();
            let mut killed = Vec::new();
            for mark in [false, true] {
                if mark {
                    run.begin(mark);
                }
                let has_changed = run.change();
                killed.push(run.end());
                assert_eq!(has_changed, !killed[usize::from(mark)]);
            }
            let told: Vec<(bool, bool)> = killers.into_iter().map(|killer| killer.join().unwrap()).collect();
            for mark in [false, true] {
                assert_eq!(told.contains(&(mark, true)), killed[usize::from(mark)]);
            }
        });
    }
}
