//! A disk in memory that loses what a file system may lose at a crash.
//!
//! A change of content is *pending* until the file is synced. A change of a name is pending until
//! the name's directory is synced. At a crash, each pending change is kept, dropped or torn:
//!
//! | data | pending writes of a file | example |
//! | --- | --- | --- |
//! | ordered | a prefix of their bytes is kept, in the order in which the device received them | ext4 with `data=ordered` |
//! | unordered | each block is kept or lost; a lost block has old bytes or, if it is new, zeros or random bytes | – |
//!
//! Unordered data occurs on file systems that grow a file before its data is written. The device
//! receives direct writes (`O_DIRECT`) at once, but cached writes only when their pages are written
//! back.
//!
//! Of the pending changes of names, a crash keeps either a prefix or an arbitrary subset. A rename
//! is never torn.
//!
//! A failed sync of a file keeps, drops or tears the file's pending changes as a crash does. The
//! next sync succeeds, as on Linux.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use pantala_base::Random;
use pantala_persistence::disk::Disk;

use crate::content::Content;
use crate::file::SimulatedFile;

const EIO: i32 = 5;
const ENOSPC: i32 = 28;

/// The name of a base that is being written.
pub const TEMPORARY_BASE: &str = "temp-base";

/// A rule that a campaign breaks on purpose. The checks must detect the violation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// Files are not synced.
    FileSync,
    /// Directories are not synced.
    DirectorySync,
    /// The manifest is renamed without being synced before.
    ManifestSync,
    /// A base is renamed without being synced before.
    BaseSync,
    /// Replies are sent after the write, before the sync.
    EarlyReply,
    /// Cached pages are not written back before a direct write.
    WriteBack,
    /// A snapshot is renamed without being synced before.
    SnapshotSync,
    /// A failed sync of a directory is ignored.
    DirectoryError,
    /// A failed sync of a snapshot is repeated.
    SyncRetry,
    /// A failed write of a snapshot is ignored.
    WriteError,
    /// A snapshot is written over the former one.
    InPlace,
    /// The temporary file of a failed snapshot is not removed.
    Leftover,
}

/// A change of names.
#[derive(Clone, Debug)]
enum NameChange {
    Directory(PathBuf),
    Link(PathBuf, usize),
    /// The old name, the new one, and the file.
    Rename(PathBuf, PathBuf, usize),
    Unlink(PathBuf),
}

impl NameChange {
    /// Returns whether a sync of this directory makes the change durable.
    fn touches(&self, directory: &Path) -> bool {
        let is_in = |path: &Path| path.parent() == Some(directory);
        match self {
            NameChange::Directory(path) | NameChange::Link(path, _) | NameChange::Unlink(path) => is_in(path),
            NameChange::Rename(from, to, _) => is_in(from) || is_in(to),
        }
    }
}

/// Names of files and directories.
#[derive(Clone, Debug, Default)]
struct Names {
    directories: BTreeSet<PathBuf>,
    files: BTreeMap<PathBuf, usize>,
}

impl Names {
    fn apply(&mut self, change: &NameChange) {
        match change {
            NameChange::Directory(path) => {
                self.directories.insert(path.clone());
            }
            NameChange::Link(path, file) => {
                self.files.insert(path.clone(), *file);
            }
            NameChange::Rename(from, to, file) => {
                // The creation of the old name may have been dropped.
                if self.files.get(from) == Some(file) {
                    self.files.remove(from);
                }
                self.files.insert(to.clone(), *file);
            }
            NameChange::Unlink(path) => {
                self.files.remove(path);
            }
        }
    }
}

/// Files and names.
#[derive(Debug)]
pub struct State {
    /// Chooses what fails, and what a crash loses.
    pub random: Random,
    /// The files.
    pub contents: Vec<Content>,
    names: Names,
    durable_names: Names,
    pending_names: Vec<NameChange>,
}

/// Behaviour of the disk at crashes and errors.
#[derive(Debug)]
struct Rules {
    broken: Option<Broken>,
    /// Whether a crash keeps a prefix of a file's pending bytes. Otherwise, it keeps an arbitrary
    /// subset of the file's blocks.
    is_ordered: bool,
    /// Whether direct writes are supported.
    has_direct: bool,
    /// The number of calls in a thousand that fail.
    fault_permille: Cell<u64>,
    /// Number of calls until the machine crashes; `None` means that it doesn't.
    calls_left: Cell<Option<u64>>,
    is_crashed: Cell<bool>,
    /// Whether a file has lost pages since the last crash, because they could not be written.
    /// Programs may then read data that isn't on the disk.
    has_lost: Cell<bool>,
    faults: Cell<u64>,
    /// Number of calls that could not remove a file.
    failed_removals: Cell<u64>,
    /// Number of calls that could not sync a directory.
    failed_directory_syncs: Cell<u64>,
    /// Number of files that were renamed.
    renames: Cell<u64>,
}

/// The disk described at the head of this module. Clones refer to the same disk.
#[derive(Clone, Debug)]
pub struct SimulatedDisk(Rc<(RefCell<State>, Rules)>);

fn crashed() -> io::Error {
    ErrorKind::ConnectionAborted.into()
}

impl SimulatedDisk {
    /// Creates an empty disk with the directory `root`.
    pub fn new(seed: u64, root: &Path, is_ordered: bool, broken: Option<Broken>) -> Self {
        let mut names = Names::default();
        names.directories.insert(root.to_owned());
        let mut random = Random::from_seed(seed);
        let has_direct = random.below(4) > 0;
        let state = State {
            random,
            contents: Vec::new(),
            names: names.clone(),
            durable_names: names,
            pending_names: Vec::new(),
        };
        let rules = Rules {
            broken,
            is_ordered,
            has_direct,
            fault_permille: Cell::new(0),
            calls_left: Cell::new(None),
            is_crashed: Cell::new(false),
            has_lost: Cell::new(false),
            faults: Cell::new(0),
            failed_removals: Cell::new(0),
            failed_directory_syncs: Cell::new(0),
            renames: Cell::new(0),
        };
        SimulatedDisk(Rc::new((RefCell::new(state), rules)))
    }

    /// Returns whether direct writes are supported.
    pub fn has_direct(&self) -> bool {
        self.rules().has_direct
    }

    /// Returns whether faults are injected.
    pub fn has_faults(&self) -> bool {
        self.rules().fault_permille.get() > 0
    }

    /// Records that a file has lost pages.
    pub fn note_lost(&self) {
        self.rules().has_lost.set(true);
    }

    /// Returns whether a crash keeps a prefix of a file's pending bytes.
    pub fn is_ordered(&self) -> bool {
        self.rules().is_ordered
    }

    fn rules(&self) -> &Rules {
        &self.0.1
    }

    /// Writes the content of all files to disk, but no names. The kernel does this after a while.
    pub fn write_back(&self) {
        self.0.0.borrow_mut().contents.iter_mut().for_each(Content::repair);
    }

    /// Makes this many calls in a thousand fail.
    pub fn set_faults(&self, permille: u64) {
        self.rules().fault_permille.set(permille);
    }

    /// Makes the machine crash within the call that follows this many calls. `None` means that it
    /// doesn't crash.
    pub fn crash_after(&self, calls: Option<u64>) {
        self.rules().calls_left.set(calls);
    }

    /// Returns whether the machine has crashed. After a crash all calls fail until the restart.
    pub fn is_crashed(&self) -> bool {
        self.rules().is_crashed.get()
    }

    /// Returns whether a file has lost pages since the last crash. Programs may then read data that
    /// isn't on the disk.
    pub fn has_lost(&self) -> bool {
        self.rules().has_lost.get()
    }

    /// Stops the server, whose calls fail from now on.
    pub fn stop(&self) {
        self.rules().is_crashed.set(true);
    }

    /// Returns the number of calls that could not remove a file.
    pub fn failed_removals(&self) -> u64 {
        self.rules().failed_removals.get()
    }

    /// Returns the number of calls that could not sync a directory.
    pub fn failed_directory_syncs(&self) -> u64 {
        self.rules().failed_directory_syncs.get()
    }

    /// Returns the number of files that were renamed.
    pub fn renames(&self) -> u64 {
        self.rules().renames.get()
    }

    /// Returns the content of a file, not as a call of the server.
    pub fn peek(&self, path: &Path) -> Option<Vec<u8>> {
        let state = self.0.0.borrow();
        state.names.files.get(path).map(|file| state.contents[*file].bytes.clone())
    }

    /// Returns the number of calls that have failed, and resets it to 0.
    pub fn take_faults(&self) -> u64 {
        self.rules().faults.take()
    }

    /// Runs a call. `work` makes the changes of the call. If the machine crashes within the call,
    /// the changes are pending.
    pub fn call<T>(&self, work: impl FnOnce(&mut State) -> io::Result<T>) -> io::Result<T> {
        let rules = self.rules();
        if rules.is_crashed.get() {
            return Err(crashed());
        }
        let mut state = self.0.0.borrow_mut();
        match rules.calls_left.get() {
            Some(0) => {
                rules.is_crashed.set(true);
                let _ = work(&mut state);
                return Err(crashed());
            }
            Some(left) => rules.calls_left.set(Some(left - 1)),
            None => {}
        }
        work(&mut state)
    }

    /// Returns an error if this call must fail.
    pub fn fault(&self, state: &mut State) -> io::Result<()> {
        let permille = self.rules().fault_permille.get();
        if permille > 0 && state.random.below(1000) < permille {
            let faults = &self.rules().faults;
            faults.set(faults.get() + 1);
            let number = if state.random.below(2) == 0 { EIO } else { ENOSPC };
            return Err(io::Error::from_raw_os_error(number));
        }
        Ok(())
    }

    /// Restarts the machine after a crash. From now on, programs read the data that is on the disk.
    pub fn restart(&self) {
        let mut state = self.0.0.borrow_mut();
        let state = &mut *state;
        let changes = std::mem::take(&mut state.pending_names);
        let kept_first =
            if state.random.below(2) == 0 { Some(state.random.below(changes.len() as u64 + 1)) } else { None };
        for (index, change) in changes.iter().enumerate() {
            let is_kept = match kept_first {
                Some(kept) => (index as u64) < kept,
                None => state.random.below(2) == 0,
            };
            if is_kept {
                state.durable_names.apply(change);
            }
        }
        let directories = state.durable_names.directories.clone();
        state.durable_names.files.retain(|path, _| path.parent().is_some_and(|parent| directories.contains(parent)));
        // Files without a name are deleted.
        let mut contents = Vec::new();
        for file in state.durable_names.files.values_mut() {
            let mut content = state.contents[*file].clone();
            content.settle(&mut state.random, self.rules().is_ordered);
            content.reload();
            *file = contents.len();
            contents.push(content);
        }
        state.contents = contents;
        state.names = state.durable_names.clone();
        self.rules().has_lost.set(false);
        self.resume();
    }

    /// Starts the process again after a crash of the process.
    pub fn resume(&self) {
        let rules = self.rules();
        rules.is_crashed.set(false);
        rules.calls_left.set(None);
        rules.fault_permille.set(0);
    }

    /// Returns the names and lengths of all files, for reports.
    pub fn files(&self) -> Vec<(PathBuf, usize)> {
        let state = self.0.0.borrow();
        state.names.files.iter().map(|(path, file)| (path.clone(), state.contents[*file].bytes.len())).collect()
    }

    /// Returns whether this rule is broken on purpose.
    pub fn breaks(&self, rule: Broken) -> bool {
        self.rules().broken == Some(rule)
    }
}

impl Disk for SimulatedDisk {
    type File = SimulatedFile;

    fn create_directory(&self, path: &Path) -> io::Result<()> {
        self.call(|state| {
            self.fault(state)?;
            if state.names.directories.contains(path) {
                return Err(ErrorKind::AlreadyExists.into());
            }
            let change = NameChange::Directory(path.to_owned());
            state.names.apply(&change);
            state.pending_names.push(change);
            Ok(())
        })
    }

    fn sync_directory(&self, path: &Path) -> io::Result<()> {
        self.call(|state| {
            if let Err(error) = self.fault(state) {
                let failed = &self.rules().failed_directory_syncs;
                failed.set(failed.get() + 1);
                return if self.breaks(Broken::DirectoryError) { Ok(()) } else { Err(error) };
            }
            if self.is_crashed() || self.breaks(Broken::DirectorySync) {
                return Ok(());
            }
            let changes = std::mem::take(&mut state.pending_names);
            for change in changes {
                if change.touches(path) {
                    state.durable_names.apply(&change);
                } else {
                    state.pending_names.push(change);
                }
            }
            Ok(())
        })
    }

    fn open(&self, path: &Path) -> io::Result<SimulatedFile> {
        let content = self.call(|state| {
            self.fault(state)?;
            if let Some(file) = state.names.files.get(path) {
                return Ok(*file);
            }
            if !path.parent().is_some_and(|parent| state.names.directories.contains(parent)) {
                return Err(ErrorKind::NotFound.into());
            }
            state.contents.push(Content::created_as(path.to_string_lossy().into_owned()));
            let change = NameChange::Link(path.to_owned(), state.contents.len() - 1);
            state.names.apply(&change);
            state.pending_names.push(change);
            Ok(state.contents.len() - 1)
        })?;
        SimulatedFile::of(self.clone(), content)
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        self.call(|state| {
            let file = state.names.files.get(path).ok_or(ErrorKind::NotFound)?;
            Ok(state.contents[*file].bytes.clone())
        })
    }

    fn size(&self, path: &Path) -> io::Result<u64> {
        self.call(|state| {
            let file = state.names.files.get(path).ok_or(ErrorKind::NotFound)?;
            Ok(state.contents[*file].bytes.len() as u64)
        })
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.call(|state| {
            self.fault(state)?;
            let file = *state.names.files.get(from).ok_or(ErrorKind::NotFound)?;
            let change = NameChange::Rename(from.to_owned(), to.to_owned(), file);
            state.names.apply(&change);
            state.pending_names.push(change);
            self.rules().renames.set(self.rules().renames.get() + 1);
            Ok(())
        })
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.call(|state| {
            if self.breaks(Broken::Leftover) {
                return Ok(());
            }
            let failed = &self.rules().failed_removals;
            self.fault(state).inspect_err(|_| failed.set(failed.get() + 1))?;
            if !state.names.files.contains_key(path) {
                return Err(ErrorKind::NotFound.into());
            }
            let change = NameChange::Unlink(path.to_owned());
            state.names.apply(&change);
            state.pending_names.push(change);
            Ok(())
        })
    }
}
