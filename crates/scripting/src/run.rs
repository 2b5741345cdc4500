//! One run of a script: its access to the server and its outcome.

use pantala_resp::{ArgRange, Args, Version};

use crate::errors::Place;
use crate::random::Random;

/// The outcome of a command that a script has called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Called {
    /// The reply, which may be an error, is in the buffer.
    Replied,
    /// The script must stop. Its changes are rolled back, and it will be rerun.
    Abandoned,
    /// The script was killed before the command ran, and must stop.
    Killed,
}

/// Whether a long-running script may continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interrupt {
    /// The script may continue.
    Continue,
    /// The script must stop: a client has sent `SCRIPT KILL` or `FUNCTION KILL`, or the server is
    /// stopping.
    Kill,
}

/// The server as seen by a script.
pub trait Caller {
    /// Runs a command with at least one argument. Appends its reply in protocol version `version`.
    fn call(&mut self, args: &Args<'_>, version: Version, reply: &mut Vec<u8>) -> Called;

    /// Returns whether the client may run a command, or `None` if the command does not exist.
    fn may_run(&mut self, args: &Args<'_>) -> Option<bool>;

    /// Logs a line at a level in Redis's numbering, 0 (debug) to 3 (warning).
    fn log(&mut self, level: u8, text: &[u8]);

    /// Returns whether the script may continue. Called every [`crate::INTERRUPT_INSTRUCTIONS`]
    /// instructions of the script or of a coroutine, and regularly when the script resumes
    /// coroutines.
    fn interrupt(&mut self) -> Interrupt;

    /// Ends the run. Returns [`Interrupt::Kill`] if `SCRIPT KILL` has replied that the script was
    /// killed. The script then counts as killed.
    fn end(&mut self) -> Interrupt;
}

/// The outcome of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The script returned a value or raised an error. [`crate::State::answer`] writes either.
    Finished,
    /// The script was abandoned ([`Called::Abandoned`]).
    Abandoned,
}

/// The context of a run, for the functions that the script calls. These functions find the context
/// through [`crate::memory::StateContext::run`].
pub(crate) struct Run<'a> {
    pub(crate) caller: &'a mut dyn Caller,
    /// Protocol version, set by `redis.setresp`.
    pub(crate) version: Version,
    pub(crate) random: &'a mut Random,
    /// Set once the run is abandoned or killed. The script must then not continue.
    pub(crate) stopped: Option<Stopped>,
    /// Place in the script at which it was last stopped.
    pub(crate) stopped_at: Option<Place>,
    pub(crate) scratch: &'a mut Scratch,
}

/// The reason why a script must stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stopped {
    Abandoned,
    Killed,
}

/// Buffers that are reused by all calls.
#[derive(Default)]
pub(crate) struct Scratch {
    pub(crate) bytes: Vec<u8>,
    pub(crate) ranges: Vec<ArgRange>,
    pub(crate) reply: Vec<u8>,
}

/// Maximum size of a buffer that is kept between runs, bytes.
const SCRATCH_BYTES_MAX: usize = 64 * 1024;

impl Scratch {
    pub(crate) fn shrink(&mut self) {
        if self.bytes.capacity() > SCRATCH_BYTES_MAX {
            self.bytes = Vec::new();
        }
        if self.reply.capacity() > SCRATCH_BYTES_MAX {
            self.reply = Vec::new();
        }
        if self.ranges.capacity() > SCRATCH_BYTES_MAX / size_of::<ArgRange>() {
            self.ranges = Vec::new();
        }
    }
}

/// Logs a line at a level in Redis's numbering, 0 (debug) to 3 (warning).
pub fn log(level: u8, text: &[u8]) {
    let text = text.escape_ascii();
    match level {
        0 | 1 => tracing::debug!("{text}"),
        2 => tracing::info!("{text}"),
        _ => tracing::warn!("{text}"),
    }
}
