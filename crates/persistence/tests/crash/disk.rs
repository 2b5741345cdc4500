//! A disk in memory that loses what a file system may lose at a crash.
//!
//! A change of content is *pending* until the file is synced. A change of a name is pending until
//! the name's directory is synced. At a crash, each pending change is kept, dropped or torn:
//!
//! | data | pending writes of a file | example |
//! | --- | --- | --- |
//! | ordered | a prefix of their bytes is kept | ext4 with `data=ordered` |
//! | unordered | each block is kept or lost; a lost block has old, zero or random bytes | – |
//!
//! Unordered data occurs on file systems that grow a file before its data is written.
//!
//! Of the pending changes of names, a crash keeps either a prefix or an arbitrary subset. A rename
//! is never torn.
//!
//! A failed sync of a file keeps, drops or tears the file's pending changes as a crash does. The
//! next sync succeeds, as on Linux.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind, IoSlice};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use pantala_base::Random;
use pantala_persistence::aof::disk::{AppendFile, Disk};

const EIO: i32 = 5;
const ENOSPC: i32 = 28;

/// The name of a base that is being written.
pub const TEMPORARY_BASE: &str = "temp-base";

/// A durability rule that a campaign breaks on purpose. The check of the loaded files must detect
/// the violation.
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
}

/// A change of a file's content.
#[derive(Clone, Debug)]
enum Change {
    Write(usize, Vec<u8>),
    Truncate(usize),
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

#[derive(Clone, Debug, Default)]
struct Content {
    /// The content that programs read.
    bytes: Vec<u8>,
    durable: Vec<u8>,
    pending: Vec<Change>,
    /// The path under which the file was created.
    created_as: PathBuf,
}

fn apply(bytes: &mut Vec<u8>, change: &Change) {
    match change {
        Change::Write(at, written) => {
            let end = at + written.len();
            if bytes.len() < end {
                bytes.resize(end, 0);
            }
            bytes[*at..end].copy_from_slice(written);
        }
        Change::Truncate(len) => bytes.truncate(*len),
    }
}

#[derive(Debug)]
struct State {
    random: Random,
    contents: Vec<Content>,
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
    /// The number of calls in a thousand that fail.
    fault_permille: Cell<u64>,
    /// Number of calls until the machine crashes; `None` means that it doesn't.
    calls_left: Cell<Option<u64>>,
    is_crashed: Cell<bool>,
    /// Whether a sync of a file has failed since the last crash. Programs may then read data that
    /// isn't on the disk.
    has_lost: Cell<bool>,
    faults: Cell<u64>,
}

/// The disk described at the head of this module. Clones refer to the same disk.
#[derive(Clone, Debug)]
pub struct SimulatedDisk(Rc<(RefCell<State>, Rules)>);

/// An open file.
#[derive(Debug)]
pub struct SimulatedFile {
    disk: SimulatedDisk,
    content: usize,
}

fn crashed() -> io::Error {
    ErrorKind::ConnectionAborted.into()
}

impl SimulatedDisk {
    /// Creates an empty disk with the directory `root`.
    pub fn new(seed: u64, root: &Path, is_ordered: bool, broken: Option<Broken>) -> Self {
        let mut names = Names::default();
        names.directories.insert(root.to_owned());
        let state = State {
            random: Random::from_seed(seed),
            contents: Vec::new(),
            names: names.clone(),
            durable_names: names,
            pending_names: Vec::new(),
        };
        let rules = Rules {
            broken,
            is_ordered,
            fault_permille: Cell::new(0),
            calls_left: Cell::new(None),
            is_crashed: Cell::new(false),
            has_lost: Cell::new(false),
            faults: Cell::new(0),
        };
        SimulatedDisk(Rc::new((RefCell::new(state), rules)))
    }

    fn rules(&self) -> &Rules {
        &self.0.1
    }

    /// Writes the content of all files to disk, but no names. The kernel does this after a while.
    pub fn write_back(&self) {
        for content in &mut self.0.0.borrow_mut().contents {
            content.pending.clear();
            content.durable.clone_from(&content.bytes);
        }
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

    /// Returns whether a sync of a file has failed since the last crash. Programs may then read
    /// data that isn't on the disk.
    pub fn has_lost(&self) -> bool {
        self.rules().has_lost.get()
    }

    /// Returns the number of calls that have failed, and resets it to 0.
    pub fn take_faults(&self) -> u64 {
        self.rules().faults.take()
    }

    /// Runs a call. `work` makes the changes of the call. If the machine crashes within the call,
    /// the changes are pending.
    fn call<T>(&self, work: impl FnOnce(&mut State) -> io::Result<T>) -> io::Result<T> {
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
    fn fault(&self, state: &mut State) -> io::Result<()> {
        let permille = self.rules().fault_permille.get();
        if permille > 0 && state.random.below(1000) < permille {
            self.rules().faults.set(self.rules().faults.get() + 1);
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
            settle(&mut content, &mut state.random, self.rules().is_ordered);
            content.bytes.clone_from(&content.durable);
            *file = contents.len();
            contents.push(content);
        }
        state.contents = contents;
        state.names = state.durable_names.clone();
        let rules = self.rules();
        rules.is_crashed.set(false);
        rules.has_lost.set(false);
        rules.calls_left.set(None);
        rules.fault_permille.set(0);
    }

    /// Returns the names and lengths of all files, for reports.
    pub fn files(&self) -> Vec<(PathBuf, usize)> {
        let state = self.0.0.borrow();
        state.names.files.iter().map(|(path, file)| (path.clone(), state.contents[*file].bytes.len())).collect()
    }

    fn breaks(&self, rule: Broken) -> bool {
        self.rules().broken == Some(rule)
    }
}

/// Makes some of a file's pending changes durable, and forgets the others.
fn settle(content: &mut Content, random: &mut Random, is_ordered: bool) {
    let pending = std::mem::take(&mut content.pending);
    if pending.is_empty() {
        return;
    }
    match random.below(if is_ordered { 3 } else { 6 }) {
        0 => pending.iter().for_each(|change| apply(&mut content.durable, change)),
        1 => {}
        2 => {
            let torn = random.below(pending.len() as u64) as usize;
            pending[..torn].iter().for_each(|change| apply(&mut content.durable, change));
            match &pending[torn] {
                Change::Write(at, bytes) => {
                    let kept = random.below(bytes.len() as u64 + 1) as usize;
                    apply(&mut content.durable, &Change::Write(*at, bytes[..kept].to_vec()));
                }
                Change::Truncate(_) => {}
            }
        }
        _ => settle_blocks(&mut content.durable, &pending, random),
    }
}

/// Keeps some blocks of the pending writes, drops others, and fills the rest with zeros or random
/// bytes. A filled block past the end makes the file longer, as a kept block does.
fn settle_blocks(durable: &mut Vec<u8>, pending: &[Change], random: &mut Random) {
    let block = 1 << (4 + random.below(6));
    let has_zeros = random.below(2) == 0;
    for change in pending {
        let Change::Write(at, bytes) = change else {
            if random.below(2) == 0 {
                apply(durable, change);
            }
            continue;
        };
        let mut from = 0;
        while from < bytes.len() {
            // Blocks are aligned to the file, not to the write.
            let len = (block - (at + from) % block).min(bytes.len() - from);
            match random.below(3) {
                0 => {}
                1 => {
                    let lost = (0..len).map(|_| if has_zeros { 0 } else { random.below(256) as u8 }).collect();
                    apply(durable, &Change::Write(at + from, lost));
                }
                _ => apply(durable, &Change::Write(at + from, bytes[from..from + len].to_vec())),
            }
            from += len;
        }
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
            self.fault(state)?;
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
            state.contents.push(Content { created_as: path.to_owned(), ..Content::default() });
            let change = NameChange::Link(path.to_owned(), state.contents.len() - 1);
            state.names.apply(&change);
            state.pending_names.push(change);
            Ok(state.contents.len() - 1)
        })?;
        Ok(SimulatedFile { disk: self.clone(), content })
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
            Ok(())
        })
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.call(|state| {
            self.fault(state)?;
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

impl SimulatedFile {
    fn change(&self, state: &mut State, change: Change) {
        let content = &mut state.contents[self.content];
        apply(&mut content.bytes, &change);
        content.pending.push(change);
    }
}

impl AppendFile for SimulatedFile {
    fn append(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let (disk, file) = (&self.disk, &*self);
        disk.call(|state| {
            let mut bytes: Vec<u8> = slices.iter().flat_map(|slice| slice.iter().copied()).collect();
            disk.fault(state)?;
            if disk.rules().fault_permille.get() > 0 && state.random.below(10) == 0 {
                bytes.truncate(1 + state.random.below(bytes.len() as u64) as usize);
            }
            let (at, len) = (state.contents[file.content].bytes.len(), bytes.len());
            file.change(state, Change::Write(at, bytes));
            Ok(len)
        })
    }

    fn truncate(&mut self, len: u64) -> io::Result<()> {
        let (disk, file) = (&self.disk, &*self);
        disk.call(|state| {
            disk.fault(state)?;
            if state.contents[file.content].bytes.len() as u64 > len {
                file.change(state, Change::Truncate(len as usize));
            }
            Ok(())
        })
    }

    fn sync(&mut self) -> io::Result<()> {
        let (disk, file) = (&self.disk, &*self);
        disk.call(|state| {
            // Pending changes may or may not survive a crash within this call.
            if disk.is_crashed() {
                return Ok(());
            }
            let State { random, contents, .. } = &mut *state;
            let content = &mut contents[file.content];
            if disk.rules().fault_permille.get() > 0 && random.below(1000) < disk.rules().fault_permille.get() {
                disk.rules().faults.set(disk.rules().faults.get() + 1);
                disk.rules().has_lost.set(true);
                settle(content, random, disk.rules().is_ordered);
                return Err(io::Error::from_raw_os_error(EIO));
            }
            let name = content.created_as.to_string_lossy();
            let is_broken = disk.breaks(Broken::FileSync)
                || (disk.breaks(Broken::ManifestSync) && name.ends_with(".manifest"))
                || (disk.breaks(Broken::BaseSync) && name.ends_with(TEMPORARY_BASE));
            if is_broken {
                return Ok(());
            }
            for change in std::mem::take(&mut content.pending) {
                apply(&mut content.durable, &change);
            }
            Ok(())
        })
    }

    fn size(&self) -> io::Result<u64> {
        self.disk.call(|state| Ok(state.contents[self.content].bytes.len() as u64))
    }
}
