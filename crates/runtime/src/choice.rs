//! Chooses the backend of a server, and gives the reason.

use std::fmt;
use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::str::FromStr;
use std::time::{Duration, Instant};

use crate::{Doorbell, Event, EventLoop, Lender, UringLoop};

/// Time limit for the trial of io_uring, which usually takes less than a millisecond.
const TRY_OUT_WAIT: Duration = Duration::from_secs(1);

/// A backend of the event loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Backend {
    /// Completions by io_uring.
    IoUring,
    /// Readiness by epoll.
    Epoll,
}

impl fmt::Display for Backend {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Backend::IoUring => "io_uring",
            Backend::Epoll => "epoll",
        })
    }
}

/// The operator's choice: `--io-backend auto|io_uring|epoll`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Choice {
    /// io_uring if the kernel allows it, epoll otherwise.
    #[default]
    Auto,
    /// io_uring, or an error if it is not available.
    IoUring,
    /// epoll.
    Epoll,
}

impl FromStr for Choice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Choice::Auto),
            "io_uring" => Ok(Choice::IoUring),
            "epoll" => Ok(Choice::Epoll),
            other => Err(format!("'{other}' is not an I/O backend: auto, io_uring or epoll")),
        }
    }
}

/// Environment variable that makes [`probe`] reject io_uring, with the variable's value as the
/// reason. It is for tests of the automatic choice, and for operators who cannot change the command
/// line.
pub const REFUSE_ENV: &str = "PANTALA_REFUSE_IO_URING";

/// Checks that io_uring works on this host, with all features that [`crate::EventLoop`] needs.
///
/// # Errors
/// The reason why io_uring does not work, as a phrase for the log.
pub fn probe() -> Result<(), String> {
    if let Some(reason) = std::env::var_os(REFUSE_ENV) {
        return Err(format!("refused by {REFUSE_ENV}={}", reason.display()));
    }
    try_out().map_err(|error| match error.kind() {
        io::ErrorKind::Unsupported => "this kernel has no io_uring (ENOSYS)".to_owned(),
        io::ErrorKind::PermissionDenied => {
            "not permitted (EPERM): a seccomp profile, or kernel.io_uring_disabled".to_owned()
        }
        io::ErrorKind::InvalidInput => {
            "this kernel's io_uring lacks a feature (EINVAL); Linux 6.1 has them all".to_owned()
        }
        _ => error.to_string(),
    })
}

/// Receives a byte through a loop. This proves that set-up, buffer ring, multishot receive and
/// waiting work. Feature flags and version numbers would not prove it, because a seccomp filter may
/// forbid any of io_uring's three system calls.
fn try_out() -> io::Result<()> {
    let mut event_loop = UringLoop::new(Doorbell::new()?)?;
    let (here, mut there) = UnixStream::pair()?;
    let conn = event_loop.add(here.into())?;
    event_loop.send(conn, vec![b'?']);
    there.write_all(b"!")?;
    let mut events = Vec::new();
    let deadline = Instant::now() + TRY_OUT_WAIT;
    while Instant::now() < deadline {
        event_loop.poll(Some(TRY_OUT_WAIT), &mut events)?;
        for event in events.drain(..) {
            match event {
                Event::Data { chunk, .. } => {
                    event_loop.release(chunk);
                    return Ok(());
                }
                Event::Failed { error, .. } => return Err(error),
                Event::Sent { result, .. } => result?,
                Event::Accepted { .. } | Event::Eof { .. } | Event::Woken => {}
            }
        }
    }
    Err(io::Error::new(io::ErrorKind::TimedOut, "a receive on trial was never completed"))
}

/// Returns the backend for `choice`, with the reason for the log.
///
/// # Errors
/// If io_uring was requested and is not available.
pub fn choose(choice: Choice) -> io::Result<(Backend, String)> {
    match choice {
        Choice::Epoll => Ok((Backend::Epoll, "asked for".to_owned())),
        Choice::IoUring => match probe() {
            Ok(()) => Ok((Backend::IoUring, "asked for".to_owned())),
            Err(reason) => {
                Err(io::Error::new(io::ErrorKind::Unsupported, format!("io_uring can't be used here: {reason}")))
            }
        },
        Choice::Auto => Ok(match probe() {
            Ok(()) => (Backend::IoUring, "the kernel has all of it".to_owned()),
            Err(reason) => (Backend::Epoll, format!("io_uring can't be used here: {reason}")),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_read_as_they_are_written() {
        for (text, choice) in [("auto", Choice::Auto), ("io_uring", Choice::IoUring), ("epoll", Choice::Epoll)] {
            assert_eq!(text.parse(), Ok(choice));
        }
        assert!("iouring".parse::<Choice>().unwrap_err().contains("iouring"));
        assert_eq!(choose(Choice::Epoll).unwrap().0, Backend::Epoll);
    }
}
