//! What all workers share of scripts: those that are known, and those that run.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering::Relaxed};

use pantala_scripting::{Script, Scripts, State, sha_from, sha_of};

/// The answer to `SCRIPT KILL` when no script is busy.
const NOT_BUSY: &str = "NOTBUSY No scripts in execution right now.";

/// The answer to `SCRIPT KILL` when it would leave half of what a script does.
const UNKILLABLE: &str = "UNKILLABLE Sorry the script already executed write commands against the dataset. You can either wait the script termination or kill the server in a hard way using the SHUTDOWN NOSAVE command.";

thread_local! {
    /// The Lua state of this worker: made when it is first needed, not there while a script runs.
    static STATE: RefCell<Option<State>> = const { RefCell::new(None) };
}

/// This thread's Lua state. To be put back.
pub fn take_state() -> State {
    STATE.take().unwrap_or_default()
}

/// Puts this thread's Lua state back.
pub fn put_back_state(state: State) {
    STATE.replace(Some(state));
}

/// The script that a worker runs: told by the worker, read by whoever would end it. Each field stands for itself, so relaxed throughout.
#[derive(Default)]
pub struct Running {
    /// Since when, in the clock that never goes back; 0: none runs.
    since_ms: AtomicI64,
    has_written: AtomicBool,
    is_killed: AtomicBool,
}

impl Running {
    /// A script begins to run.
    pub fn begin(&self, now_ms: i64) {
        self.has_written.store(false, Relaxed);
        self.is_killed.store(false, Relaxed);
        self.since_ms.store(now_ms.max(1), Relaxed);
    }

    /// It has ended.
    pub fn end(&self) {
        self.since_ms.store(0, Relaxed);
    }

    /// It has changed something.
    pub fn write(&self) {
        self.has_written.store(true, Relaxed);
    }

    /// Whether somebody wants it to end.
    pub fn is_killed(&self) -> bool {
        self.is_killed.load(Relaxed)
    }

    /// How long it has run, ms; `None`: none does.
    pub fn runs_ms(&self, now_ms: i64) -> Option<i64> {
        let since_ms = self.since_ms.load(Relaxed);
        (since_ms != 0).then(|| now_ms - since_ms)
    }
}

/// See the head of this module.
pub struct Scripting {
    /// The scripts that are known.
    pub scripts: Scripts,
    running: Box<[Running]>,
}

impl Scripting {
    /// That of a server with so many workers.
    pub fn new(workers: u32) -> Self {
        Scripting { scripts: Scripts::default(), running: (0..workers).map(|_| Running::default()).collect() }
    }

    /// What a worker runs.
    pub fn running(&self, worker: u32) -> &Running {
        &self.running[worker as usize]
    }

    /// Compiles a script and has all workers know it; its SHA-1. The error is the whole error reply.
    pub fn load(&self, body: &[u8]) -> Result<Vec<u8>, Vec<u8>> {
        let sha = sha_of(body);
        if self.scripts.find(&sha).is_none() {
            let script = Arc::new(Script::new(sha, body)?);
            let mut state = take_state();
            // What it had compiled before a flush must not be taken for what is known.
            state.find(&self.scripts, &sha);
            let compiled = state.compile(&script);
            put_back_state(state);
            compiled?;
            self.scripts.add(script);
        }
        Ok(sha.to_vec())
    }

    /// Whether a script of this SHA-1 is known.
    pub fn exists(&self, name: &[u8]) -> bool {
        sha_from(name).is_some_and(|sha| self.scripts.find(&sha).is_some())
    }

    /// Has the scripts end that have run for so long without writing.
    pub fn kill(&self, now_ms: i64, busy_ms: i64) -> Result<(), &'static str> {
        let mut answer = Err(NOT_BUSY);
        for running in &self.running {
            if running.runs_ms(now_ms).is_none_or(|runs_ms| runs_ms < busy_ms) {
                continue;
            }
            if !running.has_written.load(Relaxed) {
                running.is_killed.store(true, Relaxed);
                answer = Ok(());
            } else if answer.is_err() {
                answer = Err(UNKILLABLE);
            }
        }
        answer
    }
}
