//! The running configuration: `CONFIG GET`, `SET` and `REWRITE`. All threads share one
//! [`ConfigStore`].

use super::directive::State;
use super::host::{Host, OpenDir, System, reason};
use super::jobs::Jobs;
use super::load::{Loaded, normalize};
use super::rewrite::{self, Extent};
use super::settings::{Allowed, Settings};
use super::table::{Found, find, names};
use super::value::{Value, show};
use super::values::Values;
use pantala_base::glob;
use pantala_engine::faults::{self, Fault};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

/// The reason why the server can't apply a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The rejected directive.
    pub directive: &'static str,
    /// The reason, for the client.
    pub reason: String,
}

/// The facts about a `CONFIG SET` that decide whether it may set a directive.
#[derive(Clone, Copy, Debug)]
pub struct Circumstances {
    /// Whether the client is on this host, for `enable-protected-configs local`.
    pub is_local: bool,
    /// Whether the dataset is being loaded.
    pub is_loading: bool,
}

/// Applies a change from the old settings (first argument) to the new settings (second argument).
/// The store's lock is held during the call, so changes don't overlap.
pub type Apply<'a> = &'a dyn Fn(&Settings, &Settings) -> Result<(), Refusal>;

/// A `CONFIG SET` whose directives and values are valid, and the settings that it makes.
pub struct Plan<'p> {
    pairs: &'p [(&'p [u8], &'p [u8])],
    /// The settings before the change.
    pub old: Arc<Settings>,
    /// The settings after the change. `dir` is an absolute path.
    pub new: Settings,
    /// The changed directives.
    pub names: Named,
}

/// The directives that a `CONFIG SET` names, as far as they decide whether it waits for the disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Named {
    /// `dir`.
    pub dir: bool,
    /// Any of `tls-*`.
    pub tls: bool,
    /// `appendonly`.
    pub appendonly: bool,
}

impl Named {
    fn of(targets: &[Found]) -> Self {
        let names = |is_meant: &dyn Fn(&str) -> bool| targets.iter().any(|found| is_meant(found.directive().name));
        Named {
            dir: names(&|name| name == "dir"),
            tls: names(&|name| name.starts_with("tls-")),
            appendonly: names(&|name| name == "appendonly"),
        }
    }
}

impl<'p> Plan<'p> {
    /// Opens the directory that the change makes the working directory, if there is one. Waits for
    /// the disk.
    ///
    /// # Errors
    ///
    /// Redis's error reply.
    pub fn prepare(self) -> Result<Prepared<'p>, String> {
        let open = || {
            faults::hold(Fault::StuckDisk);
            Ok(NewDir { next: OpenDir::open(&self.new.dir)?, former: OpenDir::open(Path::new(".")) })
        };
        let dir = self.names.dir.then(open).transpose();
        let dir = dir.map_err(|error: io::Error| failed("dir", &reason(&error)))?;
        Ok(Prepared { plan: self, dir })
    }
}

/// A `CONFIG SET` that no longer has to wait for the disk.
pub struct Prepared<'p> {
    /// The plan.
    pub plan: Plan<'p>,
    dir: Option<NewDir>,
}

/// A change of the working directory.
struct NewDir {
    next: OpenDir,
    /// The directory to return to if the settings can't be changed, or the error of opening it.
    former: io::Result<OpenDir>,
}

/// The reason why a `CONFIG SET` has set nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotSet {
    /// It failed with this error reply.
    Failed(String),
    /// Another client has changed the settings since the change was planned, so that the files that
    /// were read and the directory that was opened may be the wrong ones.
    Outdated,
}

impl From<String> for NotSet {
    fn from(reply: String) -> Self {
        NotSet::Failed(reply)
    }
}

/// The configuration, shared by all threads.
///
/// In each turn (iteration of its event loop), a worker checks whether
/// [`generation`](Self::generation) has changed, and if so fetches the new
/// [`settings`](Self::settings). The check is an acquire load, which costs as much as a relaxed
/// one.
///
/// A mutex serializes changes. Readers of the settings take another lock, which is held only while
/// the pointer to the settings is copied or replaced, not while a change is applied. Workers take
/// both locks, so no thread waits for the disk while it holds one of them.
pub struct ConfigStore {
    values: Mutex<Values>,
    /// Held while the configuration file is rewritten. Workers take this lock only in a transaction
    /// and for `DEBUG CONFIG-REWRITE-FORCE-ALL`.
    rewriting: Mutex<()>,
    settings: RwLock<Arc<Settings>>,
    generation: AtomicU64,
    file: Option<PathBuf>,
    /// Commands that read or write files.
    pub jobs: Jobs,
}

/// The error of a rewrite if the server was started without a configuration file.
const NO_FILE: &str = "The server is running without a config file";

/// The error for a directive that can't be changed while the dataset is being loaded.
const LOADING: &str = "LOADING Redis is loading the dataset in memory";

/// Minimum of `repl-backlog-size` in `CONFIG SET`, bytes.
const REPL_BACKLOG_BYTES_MIN: i128 = 16 * 1024;

impl ConfigStore {
    /// Creates the store from the configuration read at startup.
    pub fn new(loaded: &Loaded) -> Self {
        ConfigStore {
            values: Mutex::new(loaded.values.clone()),
            rewriting: Mutex::default(),
            jobs: Jobs::default(),
            settings: RwLock::new(Arc::new(loaded.settings.clone())),
            generation: AtomicU64::new(0),
            file: loaded.file.clone(),
        }
    }

    /// Returns the current settings.
    pub fn settings(&self) -> Arc<Settings> {
        Arc::clone(&self.settings.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the number of changes so far. The load is an acquire, so a thread that sees a new
    /// number also sees the settings of that change or of a later one.
    #[inline]
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Returns the path of the configuration file.
    pub fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// Returns names and values of the directives that match any of `patterns`, for `CONFIG GET`.
    /// If a pattern has no wildcards, the name is spelled as in the pattern. An alias follows its
    /// primary name. No name occurs twice.
    pub fn get(&self, patterns: &[&[u8]]) -> Vec<(String, Vec<u8>)> {
        let values = self.lock();
        let mut found: Vec<(String, Vec<u8>)> = Vec::new();
        let mut add = |name: &str, at: Found| {
            if !found.iter().any(|(known, _)| known.eq_ignore_ascii_case(name)) {
                found.push((name.to_string(), show(at.directive().kind, values.at(at.index))));
            }
        };
        for pattern in patterns {
            if !pattern.iter().any(|byte| matches!(byte, b'[' | b'*' | b'?')) {
                if let Some(at) = find(pattern) {
                    add(&String::from_utf8_lossy(pattern), at);
                }
                continue;
            }
            for at in names() {
                if !at.directive().hidden && glob::matches(pattern, at.name().as_bytes(), true) {
                    add(at.name(), at);
                }
            }
        }
        found
    }

    /// Checks the directives and values of a `CONFIG SET` and returns the settings as
    /// [`set`](Self::set) would make them. Changes nothing.
    ///
    /// # Errors
    ///
    /// Redis's error reply, if a directive or a value is wrong.
    pub fn plan<'p>(
        &self,
        pairs: &'p [(&'p [u8], &'p [u8])],
        circumstances: Circumstances,
    ) -> Result<Plan<'p>, String> {
        let (values, old) = (self.lock(), self.settings());
        let (targets, new_values) = changed(pairs, &values, &old, circumstances)?;
        let mut new = settings_after(&old, &targets, &values, &new_values);
        drop(values);
        // As in Redis, no directory has an empty name.
        if !new.dir.as_os_str().is_empty() {
            new.dir = old.dir.join(&new.dir);
        }
        Ok(Plan { pairs, old, new, names: Named::of(&targets) })
    }

    /// Sets all directives of a planned change, or none. Doesn't wait for the disk. `circumstances`
    /// is called when no other change can run.
    ///
    /// # Errors
    ///
    /// The change can't be applied, or must be planned again.
    pub fn set(
        &self,
        prepared: &Prepared<'_>,
        circumstances: impl FnOnce() -> Circumstances,
        apply: Apply<'_>,
    ) -> Result<(), NotSet> {
        let Prepared { plan, dir } = prepared;
        let mut values = self.lock();
        let old = self.settings();
        let (targets, mut new_values) = changed(plan.pairs, &values, &old, circumstances())?;
        let uses_dir = plan.names.dir || plan.names.appendonly;
        if uses_dir && old.dir != plan.old.dir || plan.names.tls && old.tls != plan.old.tls {
            return Err(NotSet::Outdated);
        }
        dir.as_ref().map(|dir| change_dir(&dir.next, &mut new_values)).transpose()?;
        let new = settings_after(&old, &targets, &values, &new_values);
        if let Err(refusal) = apply(&old, &new) {
            tracing::warn!(
                "Failed applying new configuration. Possibly related to new {} setting. Restoring previous settings.",
                refusal.directive
            );
            let returned = dir.as_ref().map(|dir| match &dir.former {
                Ok(former) => former.enter().map_err(|error| reason(&error)),
                Err(error) => Err(reason(error)),
            });
            if let Some(Err(why)) = returned {
                tracing::warn!("Can't return to the directory {}: {why}", old.dir.display());
            }
            return Err(failed(refusal.directive, &refusal.reason).into());
        }
        *values = new_values;
        self.publish(new);
        Ok(())
    }

    /// Calls `work` with the current settings. No change runs at the same time.
    pub fn while_unchanged<R>(&self, work: impl FnOnce(&Settings) -> R) -> R {
        let _values = self.lock();
        work(&self.settings())
    }

    /// Sets `replicaof` after the command `REPLICAOF`: to the primary's host and port, or to none.
    pub fn note_replica_of(&self, primary: Option<(&str, u16)>) {
        let mut values = self.lock();
        let text = primary.map_or_else(Vec::new, |(host, port)| format!("{host} {port}").into_bytes());
        if let Some(found) = find(b"replicaof") {
            values.set(found.index, Value::Text(text));
        }
        let mut settings = Settings::from_values(&values);
        // Keeps the certificates that were loaded last.
        settings.tls.continue_from(&self.settings().tls);
        self.publish(settings);
    }

    fn publish(&self, settings: Settings) {
        *self.settings.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(settings);
        // Release pairs with the acquire in `generation`: a reader of the new number sees the
        // settings stored above.
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// Writes the current values to the configuration file (`CONFIG REWRITE`). Keeps comments and
    /// the order of lines. `users` returns the lines of the users; they are omitted if there is an
    /// ACL file. The values and users are those at the start of the rewrite, and rewrites don't
    /// overlap. So the last rewrite writes the latest values and users. Waits for the disk.
    ///
    /// # Errors
    ///
    /// The error reply without `ERR `.
    pub fn rewrite(&self, users: impl FnOnce() -> Vec<Vec<u8>>) -> Result<(), String> {
        let file = self.file.as_deref().ok_or(NO_FILE)?;
        match self.rewrite_file(file, users, Extent::Changed) {
            Ok(()) => {
                tracing::warn!("CONFIG REWRITE executed with success.");
                Ok(())
            }
            Err(error) => {
                tracing::warn!("CONFIG REWRITE failed: {}", reason(&error));
                Err(format!("Rewriting config file: {}", reason(&error)))
            }
        }
    }

    /// Writes the values of all directives to the configuration file, including defaults
    /// (`DEBUG CONFIG-REWRITE-FORCE-ALL`). Is otherwise the same as [`rewrite`](Self::rewrite).
    ///
    /// # Errors
    ///
    /// The error reply without `ERR `.
    pub fn rewrite_all(&self, users: impl FnOnce() -> Vec<Vec<u8>>) -> Result<(), String> {
        let written = match self.file.as_deref() {
            Some(file) => self.rewrite_file(file, users, Extent::All).map_err(|error| reason(&error)),
            None => Err(NO_FILE.into()),
        };
        written.map_err(|why| format!("CONFIG-REWRITE-FORCE-ALL failed: {why}"))
    }

    fn rewrite_file(&self, file: &Path, users: impl FnOnce() -> Vec<Vec<u8>>, extent: Extent) -> io::Result<()> {
        let _rewriting = self.rewriting.lock().unwrap_or_else(PoisonError::into_inner);
        let values = self.lock().clone();
        let users = if self.settings().aclfile.is_some() { Vec::new() } else { users() };
        rewrite::rewrite_file(file, &values, &users, extent)
    }

    fn lock(&self) -> MutexGuard<'_, Values> {
        // A change works on a copy of the values, and stores the copy at its end. So the values are
        // consistent even after a panic.
        self.values.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns Redis's error reply for a setting that failed.
fn failed(name: &str, reason: &str) -> String {
    format!("ERR CONFIG SET failed (possibly related to argument '{name}') - {reason}")
}

/// Returns the directives that `pairs` name, and the values with these changes. Fails if a
/// directive or a value is wrong.
fn changed(
    pairs: &[(&[u8], &[u8])],
    values: &Values,
    old: &Settings,
    circumstances: Circumstances,
) -> Result<(Vec<Found>, Values), String> {
    let targets = resolve(pairs, values, old.enable_protected_configs, circumstances)?;
    let mut new_values = values.clone();
    for (found, (_, value)) in targets.iter().zip(pairs) {
        set_one(&mut new_values, *found, value).map_err(|wrong| failed(found.name(), &wrong))?;
    }
    normalize(&mut new_values);
    Ok((targets, new_values))
}

/// Returns the settings with the values `new`, after a `CONFIG SET` of `targets`.
fn settings_after(settings: &Settings, targets: &[Found], old: &Values, new: &Values) -> Settings {
    let mut made = Settings::from_values(new);
    made.tls.note_changes(&settings.tls, &changed_tls_directives(targets, old, new));
    made
}

/// Finds the directives that `pairs` name. Fails if one of them must not be set.
fn resolve(
    pairs: &[(&[u8], &[u8])],
    values: &Values,
    protected: Allowed,
    circumstances: Circumstances,
) -> Result<Vec<Found>, String> {
    let mut targets: Vec<Found> = Vec::with_capacity(pairs.len());
    for (name, value) in pairs {
        let spelled = String::from_utf8_lossy(name);
        let Some(found) = find(name) else {
            return Err(format!("ERR Unknown option or number of arguments for CONFIG SET - '{spelled}'"));
        };
        let directive = found.directive();
        // Some tools read `CONFIG GET *` and set all directives to the values in the reply, except
        // those that Redis fixes at startup. These tools don't know which of Pantala's own
        // directives are fixed. So setting an own directive to its current value must succeed.
        let is_as_it_is = directive.own && show(directive.kind, values.at(found.index)) == *value;
        if directive.immutable && !is_as_it_is {
            return Err(failed(&spelled, "can't set immutable config"));
        }
        if directive.protected && !protected.allows(circumstances.is_local) {
            return Err(failed(&spelled, "can't set protected config"));
        }
        if directive.denied_while_loading && circumstances.is_loading {
            return Err(LOADING.into());
        }
        // As in Redis, a directive and its alias may both be given, and the last one counts.
        if targets.contains(&found) {
            return Err(failed(&spelled, "duplicate parameter"));
        }
        targets.push(found);
    }
    Ok(targets)
}

/// Returns the names of the `tls-*` directives that have new values. A named file or folder counts
/// as new even if its name stays the same, because its content may have changed, as in Redis.
fn changed_tls_directives(targets: &[Found], old: &Values, new: &Values) -> Vec<&'static str> {
    let is_changed = |found: &&Found| {
        let name = found.directive().name;
        let is_path = name.ends_with("-file") || name.ends_with("-dir");
        name.starts_with("tls-") && (is_path || old.at(found.index) != new.at(found.index))
    };
    targets.iter().filter(is_changed).map(|found| found.directive().name).collect()
}

/// Sets one directive from its `CONFIG SET` argument.
fn set_one(values: &mut Values, found: Found, text: &[u8]) -> Result<(), String> {
    let words: Vec<Vec<u8>> = if !found.directive().kind.is_multi_argument() {
        vec![text.to_vec()]
    } else if text.is_empty() {
        Vec::new()
    } else {
        text.split(|byte| *byte == b' ').map(<[u8]>::to_vec).collect()
    };
    let value = values.parse(found.index, &words, false)?;
    if values.is_unsupported_value(found.index, &value) {
        return Err(format!("Pantala doesn't serve '{}' yet: it stays as it is", found.name()));
    }
    // A directive that isn't supported keeps its default and doesn't count as configured.
    if found.directive().state != State::Known {
        let value = raised(found, values.at(found.index), value);
        values.set(found.index, value);
    }
    Ok(())
}

/// Returns the value that `CONFIG SET` stores. As in Redis, a new `repl-backlog-size` is at least
/// [`REPL_BACKLOG_BYTES_MIN`]. A smaller size from the file stays until the value changes.
fn raised(found: Found, old: &Value, new: Value) -> Value {
    match new {
        Value::Number(bytes) if found.directive().name == "repl-backlog-size" && *old != new => {
            Value::Number(bytes.max(REPL_BACKLOG_BYTES_MIN))
        }
        new => new,
    }
}

/// Makes `dir` the working directory, and stores its absolute path in `values`.
fn change_dir(dir: &OpenDir, values: &mut Values) -> Result<(), String> {
    dir.enter().map_err(|error| failed("dir", &reason(&error)))?;
    if let Some(found) = find(b"dir") {
        values.set(found.index, Value::Text(System.current_dir().into_os_string().into_encoded_bytes()));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
