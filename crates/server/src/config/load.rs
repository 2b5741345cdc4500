//! Reads the configuration: the file, then standard input, then the options. If a directive has
//! several lines, the last line wins, with two exceptions: the lines of `save` are combined, and a
//! line of `client-output-buffer-limit` changes only the classes that it names.

use super::DICTIONARIES_MAX;
use super::directive::{Kind, State};
use super::host::{Host, expand, has_wildcards, reason};
use super::quote::{self, split, trim};
use super::settings::{HZ_MAX, HZ_MIN, Settings};
use super::table::{DIRECTIVES, Found, find};
use super::value::Value;
use super::values::Values;
use pantala_engine::acl::{Line, check_line};
use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Maximum nesting of `include`. Redis has no such limit: a file that includes itself overflows
/// Redis's stack.
pub const INCLUDE_DEPTH_MAX: usize = 16;

/// Maximum number of `include` lines that are followed. The limit on nesting does not suffice,
/// because files may include each other many times.
pub const INCLUDES_MAX: usize = 4_096;

/// The sources of the configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sources {
    /// The configuration file.
    pub file: Option<PathBuf>,
    /// Whether to read standard input after the file.
    pub stdin: bool,
    /// Lines made from the command line's options. They follow all other lines.
    pub options: Vec<u8>,
}

/// Defaults that depend on the host.
#[derive(Clone, Copy, Debug)]
pub struct HostDefaults {
    /// Default number of workers.
    pub workers: usize,
    /// Returns the default number of shards for a number of workers.
    pub shards: fn(usize) -> usize,
    /// Returns the default number of partitions for a number of workers and a number of shards.
    pub partitions: fn(usize, usize) -> usize,
}

/// The reason why the configuration can't be read. `Display` writes the text that redis-server
/// prints before it exits with status 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoadError {
    /// A line is wrong.
    Line {
        /// The line's number, from 1.
        number: usize,
        /// The line, trimmed.
        line: Vec<u8>,
        /// The error in the line.
        reason: String,
    },
    /// Lines contradict each other, or a resource that they name is unavailable.
    Whole(String),
    /// A file can't be read.
    Open {
        /// The path of the file, as written.
        path: PathBuf,
        /// The system's error.
        reason: String,
    },
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let title = format_args!("\n*** FATAL CONFIG FILE ERROR (Pantala {}) ***\n", env!("CARGO_PKG_VERSION"));
        match self {
            LoadError::Line { number, line, reason } => {
                let line = String::from_utf8_lossy(line);
                write!(f, "{title}Reading the configuration file, at line {number}\n>>> '{line}'\n{reason}")
            }
            LoadError::Whole(reason) => write!(f, "{title}{reason}"),
            LoadError::Open { path, reason } => {
                write!(f, "Fatal error, can't open config file '{}': {reason}", path.display())
            }
        }
    }
}

impl std::error::Error for LoadError {}

/// A warning about a directive or a value that Redis 7.0 supports and Pantala doesn't.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// The directive.
    pub directive: String,
    /// The complete message for the log.
    pub text: String,
}

/// A `rename-command` line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rename {
    /// The command.
    pub from: Vec<u8>,
    /// The command's new name. If empty, the command is removed.
    pub to: Vec<u8>,
    number: usize,
    line: Vec<u8>,
}

#[cfg(test)]
impl Rename {
    /// Creates a rename for tests.
    pub fn new(from: &[u8], to: &[u8]) -> Self {
        Rename { from: from.to_vec(), to: to.to_vec(), number: 1, line: Vec::new() }
    }
}

/// A configuration that has been read.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// Typed values of the supported directives.
    pub settings: Settings,
    /// Values of all directives.
    pub values: Values,
    /// One warning for each ignored directive, in the order of the directives' last lines.
    pub warnings: Vec<Warning>,
    /// Commands to rename, in order.
    pub renames: Vec<Rename>,
    /// Users, in the order of their lines.
    pub users: Vec<Line>,
    /// Absolute path of the file.
    pub file: Option<PathBuf>,
}

impl Loaded {
    /// Sets the directive `maxclients` to a number of clients that the host allows.
    pub fn limit_clients(&mut self, maxclients: u32) {
        if let Some(found) = find(b"maxclients").filter(|_| maxclients != self.settings.maxclients) {
            self.values.set(found.index, Value::Number(i128::from(maxclients)));
            self.settings = Settings::from_values(&self.values);
        }
    }

    /// Checks the renames in the order in which they will be applied. `exists` returns whether the
    /// server has a command of that name.
    ///
    /// # Errors
    ///
    /// Returns the first line with one of these errors: the command doesn't exist, an earlier line
    /// has renamed it, or the new name is taken.
    pub fn check_renames(&self, exists: impl Fn(&[u8]) -> bool) -> Result<(), LoadError> {
        let mut gone: Vec<Vec<u8>> = Vec::new();
        let mut new: Vec<Vec<u8>> = Vec::new();
        for rename in &self.renames {
            let (from, to) = (rename.from.to_ascii_lowercase(), rename.to.to_ascii_lowercase());
            let fail = |reason: &str| {
                Err(LoadError::Line { number: rename.number, line: rename.line.clone(), reason: reason.into() })
            };
            let is_command = |name: &Vec<u8>| new.contains(name) || exists(name) && !gone.contains(name);
            if !is_command(&from) {
                return fail("No such command in rename-command");
            }
            let taken = to != from && is_command(&to);
            if !to.is_empty() && taken {
                return fail("Target command name already exists");
            }
            new.retain(|name| *name != from);
            gone.push(from);
            if !to.is_empty() {
                new.push(to);
            }
        }
        Ok(())
    }
}

/// Reads the configuration.
///
/// # Errors
///
/// The first error, see [`LoadError`].
pub fn load(sources: &Sources, defaults: HostDefaults, host: &mut dyn Host) -> Result<Loaded, LoadError> {
    let file = sources.file.as_ref().map(|file| host.current_dir().join(file));
    let mut loader = Loader {
        host,
        values: Values::new(),
        asked: Values::new(),
        unserved: Vec::new(),
        warnings: Vec::new(),
        renames: Vec::new(),
        users: Vec::new(),
        includes: 0,
    };
    let mut text = match &file {
        Some(path) => loader.read(path)?,
        None => Vec::new(),
    };
    if sources.stdin {
        end_line(&mut text);
        let input = loader.host.read_stdin();
        text.extend(input.map_err(|error| LoadError::Open { path: "-".into(), reason: reason(&error) })?);
    }
    // The options start on a new line. So without a file, the first option is line 2, as in Redis.
    text.push(b'\n');
    text.extend_from_slice(&sources.options);
    loader.lines(&text, 0)?;
    loader.finish(defaults, file)
}

struct Loader<'a> {
    host: &'a mut dyn Host,
    values: Values,
    /// The configured values of unsupported directives. In `values`, these directives have their
    /// defaults.
    asked: Values,
    /// Lines of unsupported directives, in order. Only the last line of each directive is kept,
    /// except for `loadmodule`.
    unserved: Vec<UnsupportedLine>,
    warnings: Vec<Warning>,
    renames: Vec<Rename>,
    users: Vec<Line>,
    includes: usize,
}

/// A line of a directive that isn't supported.
struct UnsupportedLine {
    /// The index of the directive in the table; `None` for `loadmodule`.
    index: Option<usize>,
    /// The name or alias that the line uses, as the table spells it.
    name: &'static str,
    /// The consequence of ignoring the line, if that is unsafe.
    unsafe_to_ignore: Option<&'static str>,
    number: usize,
    line: Vec<u8>,
}

impl Loader<'_> {
    /// Reads the file at `path`. If `path` has wildcards, reads and concatenates all files that
    /// match.
    fn read(&mut self, path: &Path) -> Result<Vec<u8>, LoadError> {
        let paths =
            if has_wildcards(path.as_os_str().as_bytes()) { expand(self.host, path) } else { vec![path.to_path_buf()] };
        let mut text = Vec::new();
        for path in paths {
            match self.host.read_file(&path) {
                Ok(content) => {
                    end_line(&mut text);
                    text.extend(content);
                }
                Err(error) => return Err(LoadError::Open { path, reason: reason(&error) }),
            }
        }
        Ok(text)
    }

    fn lines(&mut self, text: &[u8], depth: usize) -> Result<(), LoadError> {
        for (number, line) in text.split(|byte| *byte == b'\n').enumerate() {
            let (number, line) = (number + 1, trim(line));
            if line.is_empty() || line[0] == b'#' {
                continue;
            }
            self.line(number, line, depth).map_err(|failure| match failure {
                Failure::Here(reason) => LoadError::Line { number, line: shown(line), reason },
                Failure::Included(error) => error,
            })?;
        }
        Ok(())
    }

    fn line(&mut self, number: usize, line: &[u8], depth: usize) -> Result<(), Failure> {
        let words = split(line).ok_or("Unbalanced quotes in configuration line")?;
        let Some((name, arguments)) = words.split_first() else { return Ok(()) };
        if let Some(found) = find(name) {
            return self.directive(found, arguments, number, line).map_err(Failure::Here);
        }
        let name = name.to_ascii_lowercase();
        match (name.as_slice(), arguments) {
            (b"include", [path]) => return self.include(Path::new(OsStr::from_bytes(path)), depth),
            (b"rename-command", [from, to]) => {
                self.renames.push(Rename { from: from.clone(), to: to.clone(), number, line: line.to_vec() });
            }
            (b"user", [_, ..]) => return self.user(arguments).map_err(Failure::Here),
            (b"loadmodule", [_, ..]) => {
                self.leave(None, "loadmodule", Some("no module would be loaded"), number, line);
            }
            // Redis 7.0 accepts and ignores these directives.
            (b"list-max-ziplist-entries" | b"list-max-ziplist-value" | b"lua-replicate-commands", [_]) => {}
            (b"sentinel", _) => return Err("sentinel directive while not in sentinel mode".into()),
            (name, _) if name.contains(&b'.') => {
                return Err(
                    "Module Configuration detected without loadmodule directive or no ApplyConfig call: aborting"
                        .into(),
                );
            }
            _ => return Err("Bad directive or wrong number of arguments".into()),
        }
        Ok(())
    }

    fn user(&mut self, words: &[Vec<u8>]) -> Result<(), String> {
        let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
        let user = check_line(pantala_commands::acl::catalog(), &words)?;
        if self.users.iter().any(|known| known.name == user.name) {
            let name = String::from_utf8_lossy(&user.name);
            return Err(format!(
                "Error in user declaration '{name}': Duplicate user found. A user can only be defined once in config files"
            ));
        }
        self.users.push(user);
        Ok(())
    }

    fn include(&mut self, path: &Path, depth: usize) -> Result<(), Failure> {
        self.includes += 1;
        if depth >= INCLUDE_DEPTH_MAX {
            return Err(format!("include nests deeper than {INCLUDE_DEPTH_MAX} files").as_str().into());
        }
        if self.includes > INCLUDES_MAX {
            return Err(format!("more than {INCLUDES_MAX} includes").as_str().into());
        }
        let text = self.read(path).map_err(Failure::Included)?;
        self.lines(&text, depth + 1).map_err(Failure::Included)
    }

    fn directive(&mut self, found: Found, words: &[Vec<u8>], number: usize, line: &[u8]) -> Result<(), String> {
        let directive = found.directive();
        // In `--save "900 1"`, a single argument contains all words of the value. As in Redis, an
        // argument with a quote that isn't closed contains no words.
        let split: Vec<Vec<u8>>;
        let words = match words {
            [word] if directive.kind.is_multi_argument() && !word.is_empty() => {
                split = quote::split(word).unwrap_or_default();
                &split
            }
            words => words,
        };
        if directive.state == State::Known {
            let value = self.asked.parse(found.index, words, true)?;
            self.asked.set(found.index, value);
            self.leave(Some(found.index), found.name(), directive.unsafe_to_ignore, number, line);
            return Ok(());
        }
        let value = self.values.parse(found.index, words, true)?;
        if matches!(directive.kind, Kind::Dir) {
            return self.change_dir(found.index, &words[0]);
        }
        self.values.set(found.index, value);
        Ok(())
    }

    /// Records a line of a directive that isn't supported. Replaces an earlier line of the same
    /// directive.
    fn leave(
        &mut self,
        index: Option<usize>,
        name: &'static str,
        unsafe_to_ignore: Option<&'static str>,
        number: usize,
        line: &[u8],
    ) {
        self.unserved.retain(|before| index.is_none() || before.index != index);
        self.unserved.push(UnsupportedLine { index, name, unsafe_to_ignore, number, line: line.to_vec() });
    }

    /// Adds a warning for each directive whose last value isn't supported.
    ///
    /// # Errors
    ///
    /// The first such directive that is unsafe to ignore, unless `ignore-unsupported` is set.
    fn check_unsupported(&mut self) -> Result<(), LoadError> {
        let ignores = self.values.bool("ignore-unsupported");
        for UnsupportedLine { index, name, unsafe_to_ignore, number, line } in std::mem::take(&mut self.unserved) {
            if index.is_some_and(|index| self.asked.at(index) == self.values.at(index)) {
                continue;
            }
            if let Some(meaning) = unsafe_to_ignore {
                if !ignores {
                    let reason = format!(
                        "Directive '{name}' isn't served yet: {meaning}. Remove the line, or start with 'ignore-unsupported yes'"
                    );
                    return Err(LoadError::Line { number, line, reason });
                }
                self.warn(name, format!("Directive '{name}' isn't served yet, and is ignored: {meaning}"));
                continue;
            }
            let default = index.map_or("", |index| DIRECTIVES[index].default);
            let default = if default.is_empty() { "\"\"" } else { default };
            self.warn(
                name,
                format!("Directive '{name}' isn't served yet: the server runs as with its default, {default}"),
            );
        }
        Ok(())
    }

    /// Makes `path` the working directory at once. So, as in Redis, the path of a later `include`
    /// is relative to this directory.
    fn change_dir(&mut self, index: usize, path: &[u8]) -> Result<(), String> {
        self.host.change_dir(Path::new(OsStr::from_bytes(path))).map_err(|error| reason(&error))?;
        let dir = self.host.current_dir();
        self.values.set(index, Value::Text(dir.as_os_str().as_bytes().to_vec()));
        Ok(())
    }

    fn warn(&mut self, directive: &str, text: String) {
        if !self.warnings.iter().any(|warning| warning.directive == directive) {
            self.warnings.push(Warning { directive: directive.into(), text });
        }
    }

    /// Completes the configuration after the last line. Checks that the log file can be opened, and
    /// sets the defaults that depend on the host or on other values.
    fn finish(mut self, defaults: HostDefaults, file: Option<PathBuf>) -> Result<Loaded, LoadError> {
        self.check_unsupported()?;
        normalize(&mut self.values);
        let logfile = self.values.text("logfile");
        if !logfile.is_empty() {
            let path = Path::new(OsStr::from_bytes(logfile));
            let opened = self.host.try_append(path);
            opened.map_err(|error| LoadError::Whole(format!("Can't open the log file: {}", reason(&error))))?;
        }
        let dir = self.host.current_dir();
        self.values.set_default("dir", Value::Text(dir.as_os_str().as_bytes().to_vec()));
        self.values.set_default("workers", number(defaults.workers.max(1)));
        let workers = usize::try_from(self.values.number("workers")).unwrap_or(1);
        self.values.set_default("shards", number((defaults.shards)(workers).max(1)));
        let shards = usize::try_from(self.values.number("shards")).unwrap_or(1);
        // The server starts at most one worker per shard. Any further workers need no partitions.
        let wanted = (defaults.partitions)(workers.min(shards), shards).max(shards);
        // Too many dictionaries prevent startup. Only a configured number of partitions may cause
        // this, so a default that would is reduced.
        let dictionaries = (wanted as i128).saturating_mul(self.values.number("databases"));
        let partitions = if dictionaries > i128::from(DICTIONARIES_MAX) { shards } else { wanted };
        self.values.set_default("partitions", number(partitions));
        let partitions = self.values.number("partitions");
        if partitions < self.values.number("shards") {
            let reason =
                format!("'partitions {partitions}' are too few for 'shards {shards}': each shard has at least one");
            return Err(LoadError::Whole(reason));
        }
        if self.values.bool("daemonize") {
            self.values.set_default("pidfile", Value::Text(PIDFILE_OF_DAEMON.into()));
        }
        // In redis.conf, `io-threads 1` means no additional threads.
        if self.values.number("io-threads") > 1 && self.values.text("execution") != b"owner" {
            self.warn("io-threads", "Directive 'io-threads' has an effect only with 'execution owner'".into());
        }
        let settings = Settings::from_values(&self.values);
        let Loader { values, warnings, renames, users, .. } = self;
        Ok(Loaded { settings, values, warnings, renames, users, file })
    }
}

/// Directives whose arguments may contain passwords.
const SECRETS: [&[u8]; 5] = [b"requirepass", b"masterauth", b"tls-key-file-pass", b"tls-client-key-file-pass", b"user"];

/// Returns a line for an error message, without arguments that may contain passwords.
fn shown(line: &[u8]) -> Vec<u8> {
    let unbalanced = || line.split(u8::is_ascii_whitespace).next().unwrap_or_default().to_vec();
    let name = split(line).and_then(|words| words.into_iter().next()).unwrap_or_else(unbalanced);
    if SECRETS.iter().any(|secret| secret.eq_ignore_ascii_case(&name)) {
        [&name, &b" ..."[..]].concat()
    } else {
        line.to_vec()
    }
}

/// Ends the last line if it has no newline, so that appended text starts a new line.
fn end_line(text: &mut Vec<u8>) {
    if text.last().is_some_and(|last| *last != b'\n') {
        text.push(b'\n');
    }
}

/// Default pid file of a daemon.
const PIDFILE_OF_DAEMON: &str = "/var/run/pantala.pid";

fn number(value: usize) -> Value {
    Value::Number(value as i128)
}

/// Clamps `hz`, which `CONFIG SET` and the file may set out of range.
pub(super) fn normalize(values: &mut Values) {
    let hz = values.number("hz");
    if let Some(found) = find(b"hz")
        && hz != hz.clamp(HZ_MIN, HZ_MAX)
    {
        debug_assert_eq!(DIRECTIVES[found.index].name, "hz");
        values.set(found.index, Value::Number(hz.clamp(HZ_MIN, HZ_MAX)));
    }
}

/// The reason why a line can't be applied: an error in the line itself, or in a file that the line
/// includes.
enum Failure {
    Here(String),
    Included(LoadError),
}

impl From<&str> for Failure {
    fn from(reason: &str) -> Self {
        Failure::Here(reason.into())
    }
}

#[cfg(test)]
mod tests;
