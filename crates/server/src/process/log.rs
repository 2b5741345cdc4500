//! The log, in Redis's layout: `pid:role day month year time level message`.
//!
//! | `loglevel` | sign | `tracing` |
//! | --- | --- | --- |
//! | debug | `.` | `trace!` |
//! | verbose | `-` | `debug!` |
//! | notice | `*` | `info!` |
//! | warning | `#` | `warn!`, `error!` |
//!
//! As in Redis, the log file is opened for each line, so that it can be moved at any time. A line
//! below the configured level costs only the check of a flag, which `tracing` caches at each call
//! site.
//!
//! With `syslog-enabled`, the lines are also sent to syslog.

use super::syslog::Syslog;
use crate::config::LogLevel;
use std::fmt::{self, Write as _};
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::Relaxed};
use std::sync::{PoisonError, RwLock};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;

/// The current level, as [`LogLevel`]. Relaxed: no other data depends on it.
static LEVEL: AtomicU8 = AtomicU8::new(LogLevel::Notice as u8);

/// Whether the server has read its configuration. Until then, lines show the role `C`. Later they
/// show `M` (primary) or `S` (replica).
static IS_SERVING: AtomicBool = AtomicBool::new(false);

/// Whether the server is a replica. Lines then show the role `S`.
static IS_REPLICA: AtomicBool = AtomicBool::new(false);

/// The log file; `None` means standard output.
static FILE: RwLock<Option<PathBuf>> = RwLock::new(None);

/// The sender to syslog; `None` if syslog is not enabled.
static SYSLOG: RwLock<Option<Syslog>> = RwLock::new(None);

/// Starts logging to standard output, at level `notice`. Only the first call in the process has an
/// effect.
pub fn init() {
    let subscriber = tracing_subscriber::registry().with(RedisLayer);
    // An error means that another subscriber is installed already, as in tests.
    let _ = tracing::subscriber::set_global_default(subscriber);
}

/// Sets the level, the file and syslog, once the server has read its configuration. Without a file,
/// lines are written to standard output.
pub fn configure(level: LogLevel, file: Option<PathBuf>, syslog: Option<Syslog>) {
    *FILE.write().unwrap_or_else(PoisonError::into_inner) = file;
    *SYSLOG.write().unwrap_or_else(PoisonError::into_inner) = syslog;
    IS_SERVING.store(true, Relaxed);
    set_log_level(level);
}

/// Sets the role that lines show.
pub fn set_log_role(is_replica: bool) {
    IS_REPLICA.store(is_replica, Relaxed);
}

/// Sets the level.
pub fn set_log_level(level: LogLevel) {
    if LEVEL.swap(level as u8, Relaxed) != level as u8 {
        // Each call site caches whether it is enabled. The caches must be rebuilt.
        tracing::callsite::rebuild_interest_cache();
    }
}

/// Returns the `loglevel` and the sign in log lines for a `tracing` level.
fn class(level: &Level) -> (LogLevel, char) {
    match *level {
        Level::TRACE => (LogLevel::Debug, '.'),
        Level::DEBUG => (LogLevel::Verbose, '-'),
        Level::INFO => (LogLevel::Notice, '*'),
        _ => (LogLevel::Warning, '#'),
    }
}

struct RedisLayer;

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for RedisLayer {
    fn enabled(&self, metadata: &Metadata<'_>, _: Context<'_, S>) -> bool {
        class(metadata.level()).0 as u8 >= LEVEL.load(Relaxed)
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(match LEVEL.load(Relaxed) {
            level if level == LogLevel::Debug as u8 => LevelFilter::TRACE,
            level if level == LogLevel::Verbose as u8 => LevelFilter::DEBUG,
            level if level == LogLevel::Notice as u8 => LevelFilter::INFO,
            _ => LevelFilter::WARN,
        })
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut message = Message::default();
        event.record(&mut message);
        let (level, sign) = class(event.metadata().level());
        let line = format_line(&now(), sign, &message);
        // As in Redis, a line that can't be written is lost, and the server continues.
        let _ = write_line(&line);
        if let Some(syslog) = &*SYSLOG.read().unwrap_or_else(PoisonError::into_inner) {
            let _ = syslog.write(level, &format!("{}{}", message.text, message.fields));
        }
    }
}

/// Returns the local time in Redis's format.
fn now() -> String {
    jiff::Zoned::now().strftime("%d %b %Y %H:%M:%S.%3f").to_string()
}

fn format_line(time: &str, sign: char, message: &Message) -> String {
    let role = match (IS_SERVING.load(Relaxed), IS_REPLICA.load(Relaxed)) {
        (false, _) => 'C',
        (true, false) => 'M',
        (true, true) => 'S',
    };
    format!("{}:{role} {time} {sign} {}{}\n", std::process::id(), message.text, message.fields)
}

fn write_line(line: &str) -> std::io::Result<()> {
    match FILE.read().unwrap_or_else(PoisonError::into_inner).as_deref() {
        Some(path) => std::fs::OpenOptions::new().append(true).create(true).open(path)?.write_all(line.as_bytes()),
        None => {
            let mut stdout = std::io::stdout().lock();
            stdout.write_all(line.as_bytes())?;
            stdout.flush()
        }
    }
}

/// The message of an event, and the event's other fields in the form ` name=value`.
#[derive(Debug, Default)]
struct Message {
    text: String,
    fields: String,
}

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a String can't fail.
        let _ = if field.name() == "message" {
            write!(self.text, "{value:?}")
        } else {
            write!(self.fields, " {}={value:?}", field.name())
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::SyslogSettings;
    use std::os::unix::net::UnixDatagram;

    #[test]
    fn levels_have_redis_signs() {
        let signs: String = [Level::TRACE, Level::DEBUG, Level::INFO, Level::WARN, Level::ERROR]
            .iter()
            .map(|level| class(level).1)
            .collect();
        assert_eq!(signs, ".-*##");
    }

    #[test]
    fn time_has_redis_format() {
        let time = now();
        let words: Vec<&str> = time.split(' ').collect();
        assert_eq!(words.len(), 4, "{time}");
        assert_eq!(words.iter().map(|word| word.len()).collect::<Vec<_>>(), [2, 3, 4, 12], "{time}");
        assert_eq!(words[3].as_bytes()[8], b'.', "{time}");
    }

    /// All global state is covered by one test, because the tests share the process.
    #[test]
    fn lines_follow_level_and_file() {
        let path = std::env::temp_dir().join(format!("pantala-log-{}", std::process::id()));
        let host = std::env::temp_dir().join(format!("pantala-host-log-{}", std::process::id()));
        for path in [&path, &host] {
            let _ = std::fs::remove_file(path);
        }
        let receiver = UnixDatagram::bind(&host).expect("bound");
        let settings = SyslogSettings { ident: "ident".into(), facility: 16 };
        let subscriber = tracing_subscriber::registry().with(RedisLayer);
        tracing::subscriber::with_default(subscriber, || {
            configure(LogLevel::Notice, Some(path.clone()), Some(Syslog::new(&settings, &host).expect("a socket")));
            tracing::info!(port = 7, "one {}", 1);
            tracing::debug!("too low");
            set_log_level(LogLevel::Debug);
            tracing::trace!("two");
            set_log_level(LogLevel::Warning);
            tracing::info!("too low");
            tracing::error!("three");
            configure(LogLevel::Notice, None, None);
        });
        receiver.set_nonblocking(true).expect("set");
        let mut datagram = [0; 1000];
        let received: Vec<String> = std::iter::from_fn(|| {
            let len = receiver.recv(&mut datagram).ok()?;
            Some(String::from_utf8_lossy(&datagram[..len]).into_owned())
        })
        .collect();
        std::fs::remove_file(&host).expect("removed");
        let text = std::fs::read_to_string(&path).expect("a log");
        std::fs::remove_file(&path).expect("removed");
        let pid = std::process::id();
        // Other tests may log at the same time.
        for expected in [" * one 1 port=7", " . two", " # three"] {
            let line =
                text.lines().find(|line| line.ends_with(expected)).unwrap_or_else(|| panic!("{expected} in {text}"));
            assert!(line.starts_with(&format!("{pid}:M ")), "{line}");
        }
        for (start, end) in [("<133>", ": one 1 port=7"), ("<135>", ": two"), ("<132>", ": three")] {
            let end = format!(" ident[{pid}]{end}");
            assert!(received.iter().any(|line| line.starts_with(start) && line.ends_with(&end)), "{received:?}");
        }
        assert!(!text.contains("too low"), "{text}");
    }
}
