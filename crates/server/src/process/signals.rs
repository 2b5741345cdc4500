//! Signals: SIGTERM and SIGINT stop the server, and SIGHUP is ignored. Rust's runtime ignores
//! SIGPIPE.

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
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
/// ends the process at once.
///
/// # Errors
///
/// The handlers or the thread can't be created.
pub fn watch(stop: impl Fn(Ending) + Send + 'static) -> io::Result<()> {
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP])?;
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
                _ => {}
            }
        }
    };
    std::thread::Builder::new().name("pantala-signals".into()).spawn(run)?;
    Ok(())
}
