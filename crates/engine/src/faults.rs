//! Fault injection for tests. A *fault* is either a pause at a moment that provokes races, or a
//! deliberate violation of isolation or order, which the checkers in the tests must detect
//! (docs/testing.md).
//!
//! Only builds with debug assertions inject faults. In other builds [`hits`] always returns
//! `false`, so the compiler removes the branches that depend on it. `DEBUG FAULT name permille`
//! sets the rate of a fault for the whole process.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crate::command::Command;

/// A fault that can be injected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A thread pauses between taking two shards.
    PauseTaking,
    /// A thread pauses while it holds shards: between the commands of a transaction or a script,
    /// and before the shards are released.
    PauseHolding,
    /// A thread pauses after a command has run and before its reply is sent.
    PauseReplying,
    /// `MSET` sets its first key, releases the key's shard, and then sets the other keys.
    TornMset,
    /// `EXEC` releases its shards before its last command, and acquires that command's shards
    /// again.
    TornExec,
    /// A `SET` that waits for its shard is overtaken by the next `SET` of its connection's
    /// pipeline.
    Overtaking,
    /// `EXEC` doesn't check whether a watched key was changed.
    BlindExec,
    /// The changes of a script are not rolled back before it is rerun with all shards.
    KeptUndo,
    /// A script releases its shards before a command, and acquires them again.
    TornScript,
    /// `FLUSHALL` and `SWAPDB` run three times, with other commands in between.
    Repeated,
    /// A lookup finds a key although it has expired.
    KeptExpired,
    /// A unit of effects is stamped without regard to the clocks of its shards (see
    /// [`crate::effect`]).
    UnorderedEffects,
    /// After another worker has run a request of a connection, the connection's later effects are
    /// stamped without regard to that worker's clock.
    ForgottenClock,
    /// A command's effect is not propagated.
    LostEffect,
    /// A command is propagated as the client sent it, although its handler supplied another form.
    VerbatimForm,
    /// A worker writes no entries of its shards to the running snapshot in this turn (iteration of
    /// its event loop).
    SlowWalk,
    /// A snapshot loses an entry that a command changes before the snapshot has written it.
    UnkeptEntry,
    /// System calls that write, open or rename a file of the append-only file do not return while
    /// the fault is set. The same holds for the replication backlog on disk, the file of a full
    /// sync, and what `CONFIG SET`, `CONFIG REWRITE`, `ACL LOAD` and `ACL SAVE` open.
    StuckDisk,
    /// The process is killed before or after a call that writes, syncs, opens or renames a snapshot
    /// or a file of the append-only file.
    KillAtDisk,
    /// A directory can't be synced.
    UnsyncedDirectory,
    /// The thread of a promotion can't be started.
    NoThread,
    /// Every key that a `GET` reads counts as hot, so its value is published.
    EveryKeyHot,
    /// A published value stays current when its key changes.
    StalePublished,
    /// There is no memory for a snapshot that a replica receives (`repl-diskless-load swapdb`).
    NoMemory,
    /// A load of a dataset pauses at its end, after commands are accepted again, until the server
    /// stops.
    SlowLoadEnd,
    /// A part of the replication backlog can't be read from the disk.
    UnreadableBacklog,
    /// A connection that was served in a turn moves to the next worker.
    MoveConnection,
    /// The threads that perform TLS handshakes wait while the fault is set.
    HeldHandshake,
}

const ALL: [(&str, Fault); 28] = [
    ("pause-taking", Fault::PauseTaking),
    ("pause-holding", Fault::PauseHolding),
    ("pause-replying", Fault::PauseReplying),
    ("torn-mset", Fault::TornMset),
    ("torn-exec", Fault::TornExec),
    ("overtaking", Fault::Overtaking),
    ("blind-exec", Fault::BlindExec),
    ("kept-undo", Fault::KeptUndo),
    ("torn-script", Fault::TornScript),
    ("repeated", Fault::Repeated),
    ("kept-expired", Fault::KeptExpired),
    ("unordered-effects", Fault::UnorderedEffects),
    ("forgotten-clock", Fault::ForgottenClock),
    ("lost-effect", Fault::LostEffect),
    ("verbatim-form", Fault::VerbatimForm),
    ("slow-walk", Fault::SlowWalk),
    ("unkept-entry", Fault::UnkeptEntry),
    ("stuck-disk", Fault::StuckDisk),
    ("kill-at-disk", Fault::KillAtDisk),
    ("unsynced-directory", Fault::UnsyncedDirectory),
    ("no-thread", Fault::NoThread),
    ("every-key-hot", Fault::EveryKeyHot),
    ("stale-published", Fault::StalePublished),
    ("no-memory", Fault::NoMemory),
    ("slow-load-end", Fault::SlowLoadEnd),
    ("unreadable-backlog", Fault::UnreadableBacklog),
    ("move-connection", Fault::MoveConnection),
    ("held-handshake", Fault::HeldHandshake),
];

impl Fault {
    /// Returns whether the fault affects this command. Returns `false` for faults that do not
    /// depend on the command. The commands are listed by name here and have no flag in their
    /// records, because only tests need the list.
    #[cold]
    pub fn breaks(self, command: &Command) -> bool {
        let broken: &[&str] = match self {
            Fault::TornMset => &["mset"],
            Fault::Overtaking => &["set"],
            Fault::Repeated => &["flushall", "swapdb"],
            _ => &[],
        };
        broken.contains(&command.full_name)
    }
}

/// The environment variable with the rates at which faults happen from the start of the server.
pub const FAULTS_ENV: &str = "PANTALA_FAULTS";

/// The maximum rate: the fault happens at each opportunity.
const PERMILLE_MAX: u32 = 1000;

/// Upper bound of a pause, µs. It is much longer than a command runs.
const PAUSE_US_MAX: u64 = 400;

/// The rate of each fault, per thousand opportunities.
static PERMILLE: [AtomicU32; ALL.len()] = [const { AtomicU32::new(0) }; ALL.len()];

/// The seed of the next thread's random numbers.
static NEXT_SEED: AtomicU64 = AtomicU64::new(1);

thread_local! {
    static RANDOM: Cell<u64> = Cell::new(NEXT_SEED.fetch_add(0x9e37_79b9_7f4a_7c15, Relaxed));
}

/// Sets the rate of a fault, per thousand opportunities. Returns `false` if no fault has that name,
/// the rate is out of range, or this build injects no faults.
pub fn set(name: &[u8], permille: i64) -> bool {
    let found = ALL.iter().find(|(known, _)| known.as_bytes() == name);
    let permille = u32::try_from(permille).ok().filter(|permille| *permille <= PERMILLE_MAX);
    match (found, permille) {
        (Some((_, fault)), Some(permille)) if cfg!(debug_assertions) => {
            PERMILLE[*fault as usize].store(permille, Relaxed);
            true
        }
        _ => false,
    }
}

/// Sets the rates that the environment variable [`FAULTS_ENV`] names, such as
/// `move-connection=300`, separated by commas. Ignores everything else.
pub fn set_from_environment() {
    let named = std::env::var(FAULTS_ENV).unwrap_or_default();
    for (name, permille) in named.split(',').filter_map(|fault| fault.split_once('=')) {
        set(name.as_bytes(), permille.parse().unwrap_or(-1));
    }
}

/// Returns whether a fault must happen now, at random by its rate.
#[inline(always)]
pub fn hits(fault: Fault) -> bool {
    // Relaxed: it doesn't matter when a thread sees the setting.
    cfg!(debug_assertions) && drawn(PERMILLE[fault as usize].load(Relaxed))
}

/// Returns whether the rate of a fault is above 0.
#[inline(always)]
pub fn is_set(fault: Fault) -> bool {
    // Relaxed: as in `hits`.
    cfg!(debug_assertions) && PERMILLE[fault as usize].load(Relaxed) > 0
}

/// Pauses this thread for a moment if the fault must happen now.
#[inline(always)]
pub fn pause(fault: Fault) {
    if hits(fault) {
        stall();
    }
}

/// Blocks this thread while the rate of the fault is above 0.
#[inline(always)]
pub fn hold(fault: Fault) {
    while is_set(fault) {
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn drawn(permille: u32) -> bool {
    permille > 0 && random() % u64::from(PERMILLE_MAX) < u64::from(permille)
}

/// Lets other threads run: at random, either yields or sleeps for less than `PAUSE_US_MAX`.
#[cold]
pub fn stall() {
    let us = random() % (2 * PAUSE_US_MAX);
    if us < PAUSE_US_MAX {
        std::thread::sleep(Duration::from_micros(us));
    } else {
        std::thread::yield_now();
    }
}

/// Returns the thread's next random number (SplitMix64).
fn random() -> u64 {
    RANDOM.with(|random| {
        random.set(random.get().wrapping_add(0x9e37_79b9_7f4a_7c15));
        let mixed = (random.get() ^ (random.get() >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_set_by_name_within_bounds() {
        assert!(ALL.iter().enumerate().all(|(at, (_, fault))| *fault as usize == at));
        assert!(!hits(Fault::KeptUndo));
        for (name, permille, taken) in
            [("kept-undo", 1000, true), ("kept-undo", 1001, false), ("kept-undo", -1, false), ("nosuch", 1, false)]
        {
            assert_eq!(set(name.as_bytes(), permille), taken && cfg!(debug_assertions), "{name} {permille}");
        }
        assert_eq!(hits(Fault::KeptUndo), cfg!(debug_assertions));
        assert!(!hits(Fault::BlindExec));
        set(b"kept-undo", 0);
    }
}
