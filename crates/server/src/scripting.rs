//! Scripts and functions. All workers share the loaded scripts, the function libraries, and one
//! record per worker of the script that the worker is running. Each worker has its own Lua states.

use std::cell::RefCell;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use pantala_base::killable::{Kill, Killable, Snapshot};
use pantala_engine::functions::RunningFunction;
use pantala_scripting::{
    Draft, Existing, Libraries, Library, Script, Scripts, State, already_exists, sha_from, sha_of,
};

/// The error reply to `SCRIPT KILL` and `FUNCTION KILL` if no script is busy.
const NOT_BUSY: &str = "NOTBUSY No scripts in execution right now.";

/// The error reply to `SCRIPT KILL` and `FUNCTION KILL` if the script has written. A kill would
/// leave its changes incomplete.
const UNKILLABLE: &str = "UNKILLABLE Sorry the script already executed write commands against the dataset. You can either wait the script termination or kill the server in a hard way using the SHUTDOWN NOSAVE command.";

/// Run time after which a script can be killed, and after which `FUNCTION STATS` shows a running
/// function, ms. If `busy-reply-threshold` is lower, its value is used instead. Redis has only
/// `busy-reply-threshold`, because it reads no commands until the script is busy. In Pantala,
/// another worker can run `SCRIPT KILL` or `FUNCTION STATS` at any time.
const VISIBLE_MS: i64 = 100;

/// Two thresholds of a script's run time.
#[derive(Clone, Copy, Debug)]
pub struct Thresholds {
    /// Run time after which clients that need the script's shards get the error [`Kind::busy`].
    pub busy_ms: i64,
    /// Run time after which the script can be killed and `FUNCTION STATS` shows it.
    pub visible_ms: i64,
}

impl Thresholds {
    /// Returns the thresholds for a value of `busy-reply-threshold` in ms. With the value 0, a
    /// script is never busy and can't be killed.
    pub fn of(busy_ms: i64) -> Self {
        match busy_ms {
            0 => Thresholds { busy_ms: i64::MAX, visible_ms: i64::MAX },
            busy_ms => Thresholds { busy_ms, visible_ms: busy_ms.min(VISIBLE_MS) },
        }
    }
}

/// The kind of a running script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A script run by `EVAL`, `EVALSHA` or their read-only forms.
    Script,
    /// A function.
    Function,
}

impl Kind {
    /// Returns the command that kills a script of this kind.
    pub fn kill_command(self) -> &'static str {
        match self {
            Kind::Script => "SCRIPT KILL",
            Kind::Function => "FUNCTION KILL",
        }
    }

    /// Returns the error for clients that can't be served while a script of this kind is busy.
    pub fn busy(self) -> &'static str {
        match self {
            Kind::Script => "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
            Kind::Function => {
                "BUSY Redis is busy running a script. You can only call FUNCTION KILL or SHUTDOWN NOSAVE."
            }
        }
    }
}

thread_local! {
    /// The Lua states of this worker, by [`Kind`]. A state is created when it is first needed.
    /// While a script runs in a state, that state is absent from this array.
    static STATES: RefCell<[Option<Box<State>>; 2]> = const { RefCell::new([None, None]) };
    /// Where this worker publishes the memory usage of its Lua states; `None` on threads that are
    /// not workers.
    static STATE_BYTES: RefCell<Option<StateBytes>> = const { RefCell::new(None) };
}

/// Memory usage of a worker's Lua states, bytes, by [`Kind`]. The worker writes it, and all threads
/// read it. Relaxed suffices for statistics.
type StateBytes = Arc<[AtomicU64; 2]>;

/// Takes this thread's Lua state of a kind out of the array, or creates one. The caller must pass
/// the state to [`return_state`] afterwards.
pub fn take_state(kind: Kind) -> Box<State> {
    let kept = STATES.with_borrow_mut(|states| states[kind as usize].take());
    kept.unwrap_or_else(|| {
        Box::new(match kind {
            Kind::Script => State::new(),
            Kind::Function => State::for_functions(),
        })
    })
}

/// Stores a Lua state for the next script of this thread, and publishes its memory usage.
pub fn return_state(kind: Kind, state: Box<State>) {
    STATE_BYTES.with_borrow(|recorded| {
        if let Some(recorded) = recorded {
            recorded[kind as usize].store(state.used_bytes() as u64, Relaxed);
        }
    });
    STATES.with_borrow_mut(|states| states[kind as usize] = Some(state));
}

/// The record of the script that a worker runs. The worker writes it. Other workers read it when a
/// client inspects or kills the script. Accesses are relaxed, except inside [`Killable`].
#[derive(Default)]
pub struct Running {
    /// Start of the latest run, in ms of the monotonic clock. Stored before the run is marked as
    /// started. So a reader that sees a run as started finds here the start of that run, or of a
    /// later one.
    since_ms: AtomicI64,
    /// The state of the run: whether it is in progress, has written or was killed. The mark of
    /// [`Killable`] says whether the run is that of a function.
    run: Killable,
    /// The start, name and command of a run. The start distinguishes the run from later runs. Set
    /// once the run has taken long enough to be shown.
    named: Mutex<Option<(i64, Named)>>,
    /// Memory usage of this worker's Lua states.
    state_bytes: StateBytes,
}

/// The name of a running script or function, and the command that has called it.
#[derive(Clone, Debug)]
pub struct Named {
    /// The SHA-1 of a script, or the name of a function.
    pub name: Vec<u8>,
    /// The words of the command, including its name.
    pub command: Vec<Vec<u8>>,
}

impl Running {
    /// Marks a script as running since `now_ms`.
    pub fn begin(&self, kind: Kind, now_ms: i64) {
        self.since_ms.store(now_ms, Relaxed);
        self.run.start(kind == Kind::Function);
    }

    /// Publishes the name and command of the running script, once it has run long enough to be
    /// shown.
    pub fn publish_name(&self, named: Named) {
        *self.named.lock().unwrap_or_else(PoisonError::into_inner) = Some((self.since_ms.load(Relaxed), named));
    }

    /// Returns the name and command of the current run, if they have been published.
    fn named(&self) -> Option<Named> {
        let named = self.named.lock().unwrap_or_else(PoisonError::into_inner);
        let is_current = |(since_ms, _): &&(i64, Named)| *since_ms == self.since_ms.load(Relaxed);
        named.as_ref().filter(is_current).map(|(_, named)| named.clone())
    }

    /// Ends the run. Also called before a rerun of the script. The run can't be killed afterwards.
    /// Returns whether it was killed before.
    pub fn end(&self) -> bool {
        self.run.end()
    }

    /// Marks the script as having written. Returns `false` if the script was killed before and must
    /// not write.
    #[must_use = "if this is `false`, the script was killed and must change nothing"]
    pub fn write(&self) -> bool {
        self.run.change()
    }

    /// Returns whether the script was killed.
    pub fn is_killed(&self) -> bool {
        self.run.is_killed()
    }

    /// Returns whether the record is that of a script or of a function.
    pub fn kind(&self) -> Kind {
        kind_of(self.run.snapshot())
    }

    /// Returns how long the current script has run, ms; `None` if no script runs.
    pub fn runs_ms(&self, now_ms: i64) -> Option<i64> {
        self.run.snapshot().is_running().then(|| now_ms - self.since_ms.load(Relaxed))
    }

    /// Kills the script if it is of this kind, has run long enough and has not written. Otherwise
    /// returns the error reply to `SCRIPT KILL` or `FUNCTION KILL`.
    fn kill(&self, kind: Kind, now_ms: i64, thresholds: Thresholds) -> Result<(), &'static str> {
        let seen = self.run.snapshot();
        // `since_ms` may already belong to a later run. In that case the run in `seen` has ended,
        // and `self.run.kill` below returns `Kill::Ended`.
        let runs_ms = now_ms - self.since_ms.load(Relaxed);
        if !seen.is_running() || runs_ms < thresholds.visible_ms {
            return Err(NOT_BUSY);
        }
        let of = kind_of(seen);
        if of != kind && runs_ms < thresholds.busy_ms {
            return Err(NOT_BUSY);
        }
        if of != kind && !seen.has_changed() {
            return Err(of.busy());
        }
        match self.run.kill(seen) {
            Kill::Killed => Ok(()),
            Kill::Changed => Err(UNKILLABLE),
            Kill::Ended => Err(NOT_BUSY),
        }
    }
}

fn kind_of(seen: Snapshot) -> Kind {
    if seen.mark() { Kind::Function } else { Kind::Script }
}

/// The loaded and the running scripts and functions of the server.
pub struct Scripting {
    /// The loaded scripts.
    pub scripts: Scripts,
    /// The loaded libraries of functions.
    pub libraries: Libraries,
    running: Box<[Running]>,
}

impl Scripting {
    /// Creates the state for a number of workers.
    pub fn new(workers: u32) -> Self {
        Scripting {
            scripts: Scripts::default(),
            libraries: Libraries::default(),
            running: (0..workers).map(|_| Running::default()).collect(),
        }
    }

    /// Makes the calling thread, which must be that of `worker`, publish the memory usage of its
    /// Lua states.
    pub fn attach(&self, worker: u32) {
        STATE_BYTES.set(Some(Arc::clone(&self.running(worker).state_bytes)));
    }

    /// Returns the record of the script that a worker runs.
    pub fn running(&self, worker: u32) -> &Running {
        &self.running[worker as usize]
    }

    /// Compiles a script, adds it to the scripts that all workers share, and returns its SHA-1. If
    /// the script doesn't compile, returns the complete error reply.
    pub fn load(&self, body: &[u8]) -> Result<Vec<u8>, Vec<u8>> {
        let sha = sha_of(body);
        if self.scripts.find(&sha).is_none() {
            let script = Arc::new(Script::new(sha, body)?);
            let mut state = take_state(Kind::Script);
            // The lookup is made for its side effect: if the scripts were flushed, the state drops
            // the scripts that it compiled before.
            state.find(&self.scripts, &sha);
            let compiled = state.compile(&script);
            return_state(Kind::Script, state);
            compiled?;
            self.scripts.add(script);
        }
        Ok(sha.to_vec())
    }

    /// Returns whether a script with this SHA-1 is loaded.
    pub fn exists(&self, name: &[u8]) -> bool {
        sha_from(name).is_some_and(|sha| self.scripts.find(&sha).is_some())
    }

    /// Drops this thread's Lua state for scripts if all scripts were flushed after its creation.
    /// Without this function, a worker that runs no more scripts would never free the state. The
    /// calling thread must be that of `worker`.
    pub fn drop_flushed(&self, worker: u32) {
        let is_old = |state: &mut Box<State>| state.is_flushed(&self.scripts);
        if STATES.with_borrow_mut(|states| states[Kind::Script as usize].take_if(is_old)).is_some() {
            self.running(worker).state_bytes[Kind::Script as usize].store(0, Relaxed);
        }
    }

    /// Returns the memory usage of all Lua states of a kind, bytes.
    pub fn state_bytes(&self, kind: Kind) -> u64 {
        self.running.iter().map(|running| running.state_bytes[kind as usize].load(Relaxed)).sum()
    }

    /// Returns the memory usage of all Lua states, bytes.
    pub fn all_state_bytes(&self) -> u64 {
        self.state_bytes(Kind::Script) + self.state_bytes(Kind::Function)
    }

    /// Returns whether any worker is running a script.
    pub fn is_running(&self) -> bool {
        self.running.iter().any(|running| running.run.snapshot().is_running())
    }

    /// Returns the scripts that have run for at least `min_ms`, each with its run time in ms.
    fn running_for(&self, now_ms: i64, min_ms: i64) -> impl Iterator<Item = (&Running, i64)> {
        let runs = move |running: &Running| running.runs_ms(now_ms).filter(|runs_ms| *runs_ms >= min_ms);
        self.running.iter().filter_map(move |running| Some((running, runs(running)?)))
    }

    /// Kills all scripts of this kind that have run long enough and have not written.
    pub fn kill(&self, kind: Kind, now_ms: i64, thresholds: Thresholds) -> Result<(), &'static str> {
        let tried: Vec<_> = self.running.iter().map(|running| running.kill(kind, now_ms, thresholds)).collect();
        // If the results differ, the first of these is returned: a script was killed; a script has
        // written and can't be killed; a script of the other kind is busy.
        let is = |wanted: Result<(), &'static str>| tried.contains(&wanted);
        if is(Ok(())) {
            Ok(())
        } else if is(Err(UNKILLABLE)) {
            Err(UNKILLABLE)
        } else {
            tried.into_iter().find(|tried| *tried != Err(NOT_BUSY)).unwrap_or(Err(NOT_BUSY))
        }
    }

    /// Returns the function that has run longest, if it has run long enough to be shown. Returns
    /// the busy error if a script is busy and there is no such function.
    pub fn running_function(
        &self,
        now_ms: i64,
        thresholds: Thresholds,
    ) -> Result<Option<RunningFunction>, &'static str> {
        let is_function = |running: &(&Running, i64)| running.0.kind() == Kind::Function;
        let visible = self.running_for(now_ms, thresholds.visible_ms).filter(is_function);
        if let Some((running, runs_ms)) = visible.max_by_key(|(_, runs_ms)| *runs_ms) {
            return Ok(running.named().map(|named| RunningFunction {
                name: named.name,
                command: named.command,
                runs_ms,
            }));
        }
        match self.running_for(now_ms, thresholds.busy_ms).next() {
            Some(_) => Err(Kind::Script.busy()),
            None => Ok(None),
        }
    }

    /// Loads a library into this thread's Lua state. An error is a text without an error code.
    fn load_library(&self, draft: Draft) -> Result<Arc<Library>, Vec<u8>> {
        let mut state = take_state(Kind::Function);
        state.drop_old(&self.libraries);
        let functions = state.load(&draft);
        return_state(Kind::Function, state);
        Ok(Arc::new(draft.with(functions?)))
    }

    /// Publishes loaded libraries to all workers, either all or none. An error is a text without an
    /// error code.
    pub(crate) fn add_libraries(&self, added: &[Arc<Library>], existing: Existing, quote: &str) -> Result<(), Vec<u8>> {
        let ids: Vec<u64> = added.iter().map(|library| library.id).collect();
        let is_added = self.libraries.add(added, existing, quote);
        if is_added.is_err() {
            forget(&ids);
        }
        is_added
    }

    /// Loads the libraries of a dump. If one of them fails, keeps none. An error is a text without
    /// an error code.
    pub(crate) fn load_all(&self, texts: &[Vec<u8>]) -> Result<Vec<Arc<Library>>, Vec<u8>> {
        // Detects conflicts among the libraries of the dump. Conflicts with existing libraries are
        // detected when the caller adds the libraries.
        let (apart, mut loaded) = (Libraries::default(), Vec::new());
        for text in texts {
            let one = Draft::new(text).and_then(|draft| self.load_library(draft));
            let fits = one.and_then(|library| {
                loaded.push(Arc::clone(&library));
                apart.add(&[library], Existing::Kept, "'")
            });
            if let Err(why) = fits {
                forget(&loaded.iter().map(|library| library.id).collect::<Vec<_>>());
                return Err(why);
            }
        }
        Ok(loaded)
    }

    pub(crate) fn load_function_library(&self, text: &[u8], replace: bool) -> Result<Vec<u8>, Vec<u8>> {
        let draft = Draft::new(text)?;
        if !replace && self.libraries.table().library(draft.name()).is_some() {
            return Err(already_exists(draft.name(), "'"));
        }
        let name = draft.name().to_vec();
        let library = self.load_library(draft)?;
        let existing = if replace { Existing::Replaced } else { Existing::Kept };
        self.add_libraries(&[library], existing, "'")?;
        Ok(name)
    }
}

/// Drops libraries that this thread has loaded but not published to the other workers.
pub(crate) fn forget(ids: &[u64]) {
    let mut state = take_state(Kind::Function);
    ids.iter().for_each(|id| state.forget_library(*id));
    return_state(Kind::Function, state);
}
