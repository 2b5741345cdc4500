//! One run of a script: what it has of the server, and how it ends.

use pantala_resp::{ArgRange, Args, Version};

use crate::errors::Place;
use crate::random::Random;

/// What became of a command that a script has called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Called {
    /// Its reply is in the buffer: an error too, if it was refused.
    Replied,
    /// The script must not go on: what it did is undone, and it will be run again.
    Abandoned,
    /// The script was killed before: the command has not run, and the script must not go on.
    Killed,
}

/// Whether a script that has run for a while goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interrupt {
    /// It does.
    Continue,
    /// Somebody has sent `SCRIPT KILL` (or `FUNCTION KILL`).
    Kill,
}

/// The server, as a script sees it.
pub trait Caller {
    /// Runs a command (at least one argument) and appends its reply in this version of the protocol.
    fn call(&mut self, args: &Args<'_>, version: Version, reply: &mut Vec<u8>) -> Called;

    /// Whether the client may run a command; `None`: there is none of that name.
    fn may_run(&mut self, args: &Args<'_>) -> Option<bool>;

    /// A line for the log, by Redis's number of a level (0 debug to 3 warning).
    fn log(&mut self, level: u8, text: &[u8]);

    /// Called every [`crate::INTERRUPT_INSTRUCTIONS`] instructions of the script or of a coroutine, and every few times that it resumes one.
    fn interrupt(&mut self) -> Interrupt;

    /// Called when the script has come to its end by itself. Whoever has killed it before has been told so: then it hasn't.
    fn end(&mut self) -> Interrupt;
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// With a value or an error, which [`crate::State::answer`] tells.
    Finished,
    /// It was abandoned ([`Called::Abandoned`]).
    Abandoned,
}

/// What the functions that a script calls find, by [`crate::memory::Memory::run`].
pub(crate) struct Run<'a> {
    pub(crate) caller: &'a mut dyn Caller,
    /// `redis.setresp`.
    pub(crate) version: Version,
    pub(crate) random: &'a mut Random,
    /// It was abandoned, or killed: nothing of it goes on.
    pub(crate) stopped: Option<Stopped>,
    /// Where it was when it was stopped, or went on last.
    pub(crate) stopped_at: Option<Place>,
    pub(crate) scratch: &'a mut Scratch,
}

/// Why a script is to end at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stopped {
    Abandoned,
    Killed,
}

/// Buffers that live on from call to call.
#[derive(Default)]
pub(crate) struct Scratch {
    pub(crate) bytes: Vec<u8>,
    pub(crate) ranges: Vec<ArgRange>,
    pub(crate) reply: Vec<u8>,
}

/// Bytes of a scratch buffer that are kept.
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

/// A line for the log, by Redis's number of a level (0 debug to 3 warning).
pub fn log(level: u8, text: &[u8]) {
    let text = text.escape_ascii();
    match level {
        0 | 1 => tracing::debug!("{text}"),
        2 => tracing::info!("{text}"),
        _ => tracing::warn!("{text}"),
    }
}
