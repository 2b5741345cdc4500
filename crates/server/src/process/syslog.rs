//! Syslog: sends each line of the log as a datagram to `/dev/log`, in the format of libc's
//! `syslog(3)`.
//!
//! Sending never blocks: if the receiver has no room for a line, the line is lost. libc's function
//! would block the worker instead. Each datagram is sent to the path of the receiver's socket. So
//! if the receiver is restarted, it gets the next line. With a connected socket, it would not.

use crate::config::{LogLevel, SyslogSettings};
use std::io;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};

/// Path of the socket on which syslog listens.
pub const DEV_LOG: &str = "/dev/log";

/// Sends log lines to syslog.
#[derive(Debug)]
pub struct Syslog {
    socket: UnixDatagram,
    path: PathBuf,
    ident: String,
    facility: u8,
}

impl Syslog {
    /// Creates a sender to the socket at `path`.
    ///
    /// # Errors
    /// The system's error.
    pub fn new(settings: &SyslogSettings, path: &Path) -> io::Result<Syslog> {
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        let SyslogSettings { ident, facility } = settings.clone();
        Ok(Syslog { socket, path: path.to_owned(), ident, facility })
    }

    /// Sends a line.
    ///
    /// # Errors
    /// Nothing listens on the socket, or its queue is full.
    pub fn write(&self, level: LogLevel, message: &str) -> io::Result<()> {
        let time = jiff::Zoned::now().strftime("%b %e %H:%M:%S").to_string();
        let line = self.format(level, &time, message);
        self.socket.send_to(line.as_bytes(), &self.path).map(drop)
    }

    /// Returns the datagram for a message: priority, time, program name, process ID and text.
    fn format(&self, level: LogLevel, time: &str, message: &str) -> String {
        let priority = u32::from(self.facility) << 3 | severity(level);
        format!("<{priority}>{time} {}[{}]: {message}", self.ident, std::process::id())
    }
}

/// Returns the syslog severity that Redis uses for lines of a level.
fn severity(level: LogLevel) -> u32 {
    match level {
        LogLevel::Debug => 7,
        LogLevel::Verbose => 6,
        LogLevel::Notice => 5,
        LogLevel::Warning => 4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_those_of_libc() {
        let settings = SyslogSettings { ident: "redis".into(), facility: 16 };
        let log = Syslog::new(&settings, Path::new("/nosuch/log")).expect("a socket");
        let pid = std::process::id();
        let line = log.format(LogLevel::Notice, "Nov  5 01:02:03", "Ready to accept connections");
        assert_eq!(line, format!("<133>Nov  5 01:02:03 redis[{pid}]: Ready to accept connections"));
        assert!(log.format(LogLevel::Warning, "", "").starts_with("<132>"));
        assert!(log.format(LogLevel::Verbose, "", "").starts_with("<134>"));
        assert!(log.format(LogLevel::Debug, "", "").starts_with("<135>"));
        assert!(log.write(LogLevel::Notice, "lost").is_err());
    }

    /// If the receiver reads nothing, lines are lost, but the sender isn't delayed.
    #[test]
    fn a_full_queue_loses_lines_and_a_new_receiver_gets_the_next() {
        let path = std::env::temp_dir().join(format!("pantala-syslog-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let settings = SyslogSettings { ident: "a".into(), facility: 1 };
        let log = Syslog::new(&settings, &path).expect("a socket");
        let receiver = UnixDatagram::bind(&path).expect("bound");
        let lost = (0..100_000).find_map(|_| log.write(LogLevel::Notice, "x").err()).expect("the queue has an end");
        assert_eq!(lost.kind(), io::ErrorKind::WouldBlock);
        drop(receiver);
        std::fs::remove_file(&path).expect("removed");
        let receiver = UnixDatagram::bind(&path).expect("bound again");
        log.write(LogLevel::Warning, "y").expect("sent");
        let mut bytes = [0; 100];
        let len = receiver.recv(&mut bytes).expect("a datagram");
        let line = String::from_utf8_lossy(&bytes[..len]).into_owned();
        assert!(line.starts_with("<12>") && line.ends_with(&format!(" a[{}]: y", std::process::id())), "{line}");
        std::fs::remove_file(&path).expect("removed");
    }
}
