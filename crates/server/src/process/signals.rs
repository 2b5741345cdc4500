//! Signals: SIGTERM and SIGINT stop the server, SIGHUP is ignored, and SIGALRM is logged. Rust's
//! runtime ignores SIGPIPE.

use signal_hook::consts::{SIGALRM, SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::io;

/// Exit code after a second SIGINT.
const SECOND_INTERRUPT: i32 = 1;

/// A signal that stops the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// SIGINT.
    Interrupt,
    /// SIGTERM.
    Terminate,
}

/// Starts a thread that calls `stop` at each SIGTERM and at the first SIGINT. The second SIGINT
/// ends the process at once. SIGALRM has no effect, because redis-server survives it too: Redis's
/// watchdog uses this signal to log a stack trace.
///
/// # Errors
///
/// The handlers or the thread can't be created.
pub fn watch(stop: impl Fn(Ending) + Send + 'static) -> io::Result<()> {
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP, SIGALRM])?;
    let run = move || {
        let mut is_interrupted = false;
        for signal in signals.forever() {
            match signal {
                SIGINT if is_interrupted => {
                    tracing::warn!("You insist... exiting now.");
                    std::process::exit(SECOND_INTERRUPT);
                }
                SIGINT => {
                    is_interrupted = true;
                    tracing::warn!("Received SIGINT scheduling shutdown...");
                    stop(Ending::Interrupt);
                }
                SIGTERM => {
                    tracing::warn!("Received SIGTERM scheduling shutdown...");
                    stop(Ending::Terminate);
                }
                SIGALRM => tracing::warn!("Received SIGALRM, which has no effect."),
                _ => {}
            }
        }
    };
    std::thread::Builder::new().name("pantala-signals".into()).spawn(run)?;
    Ok(())
}
