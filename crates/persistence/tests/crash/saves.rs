//! Snapshots. A *world* is here one server that saves snapshots to one disk, through several
//! crashes. The files are checked after each step and each crash:
//!
//! - The snapshot is exactly one that was saved, or there is none yet.
//! - It is not older than the last one whose success was reported.
//! - A snapshot that has failed is not there, and the previous one is. The exception is a failed
//!   sync of the directory, after which either of them may be there.
//! - A failed snapshot leaves no temporary file, unless the file can't be removed.
//! - What a crash leaves of a temporary file can't be loaded, unless it is a whole snapshot.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use pantala_base::Random;
use pantala_persistence::rdb::{Attributes, Version, Writer};
use pantala_persistence::temporary::TemporaryFile;
use pantala_types::rdb_value::ValueRef;

use crate::disk::{Broken, SimulatedDisk};
use crate::units::{Bytes, read_rdb};

const ROOT: &str = "/data";
/// Maximum number of lives of a world.
const LIVES_MAX: u64 = 12;
/// Maximum number of steps of a life, plus one.
const STEPS_MAX: u64 = 40;
/// With syncs during the writing, a snapshot is synced each time that this number of bytes has been
/// written.
const SYNC_EVERY_BYTES: u64 = 700;

/// Counts of the events in all worlds so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// Crashes of the machine.
    pub crashes: u64,
    /// Crashes of the process alone.
    pub kills: u64,
    /// Crashes that interrupted a snapshot.
    pub interrupted: u64,
    /// Failed calls.
    pub faults: u64,
    /// Snapshots that were reported as saved.
    pub saved: u64,
    /// Snapshots that were reported as failed.
    pub failed: u64,
    /// Snapshots that were aborted.
    pub aborted: u64,
    /// Temporary files that crashes have left.
    pub left: u64,
}

/// A snapshot that is being written.
struct Saving {
    number: u64,
    file: TemporaryFile<SimulatedDisk>,
    /// The path of the file.
    path: PathBuf,
    /// The bytes that are not written yet.
    rest: Vec<u8>,
}

/// The world described at the head of this module.
pub struct SaveWorld<'t> {
    random: Random,
    disk: SimulatedDisk,
    broken: Option<Broken>,
    /// Whether the process has the same number in all lives, as in a container.
    has_one_pid: bool,
    life: u64,
    /// Number of the last snapshot that was started.
    last: u64,
    /// The snapshot that programs see; 0 if there is none.
    visible: u64,
    /// The snapshots that a crash of the machine may leave; 0 stands for none.
    may_remain: BTreeSet<u64>,
    /// Temporary files that could not be removed, or that a crash has left.
    left: BTreeSet<PathBuf>,
    saving: Option<Saving>,
    tally: &'t mut Tally,
}

/// Returns the path of the current snapshot.
fn final_path() -> PathBuf {
    Path::new(ROOT).join("dump.rdb")
}

/// Returns the bytes of a snapshot.
fn snapshot(number: u64) -> Vec<u8> {
    let mut random = Random::from_seed(number);
    let mut out = Bytes::default();
    let mut writer = Writer::new(Version::Redis7_0, number.is_multiple_of(2), true, &mut out);
    writer.aux(b"number", number.to_string().as_bytes());
    // Some snapshots have no key, as after `FLUSHALL`.
    let keys = if number.is_multiple_of(5) { 0 } else { 1 + random.below(12) };
    writer.database(0, keys, 0);
    for key in 0..keys {
        let mut value = vec![0; random.below(if key == 0 { 1500 } else { 120 }) as usize];
        random.fill(&mut value);
        let name = format!("key:{key}");
        writer.entry(name.as_bytes(), ValueRef::String(&value), Attributes::default());
    }
    assert!(writer.finish(), "all bytes are taken");
    out.0
}

/// Returns the number of a snapshot, which must be complete.
fn load(bytes: &[u8]) -> Result<u64, String> {
    let mut number = None;
    let note = |name: &[u8], value: &[u8]| {
        if name == b"number" {
            number = String::from_utf8_lossy(value).parse().ok();
        }
    };
    read_rdb(bytes, note)?;
    let number = number.ok_or("no number")?;
    if bytes == snapshot(number) { Ok(number) } else { Err(format!("not the bytes of snapshot {number}")) }
}

impl<'t> SaveWorld<'t> {
    /// Creates a world with an empty disk.
    pub fn new(seed: u64, broken: Option<Broken>, tally: &'t mut Tally) -> Self {
        let mut random = Random::from_seed(seed);
        let is_ordered = random.below(2) == 0;
        let disk = SimulatedDisk::new(random.next_u64(), Path::new(ROOT), is_ordered, broken);
        SaveWorld {
            has_one_pid: random.below(2) == 0,
            random,
            disk,
            broken,
            life: 0,
            last: 0,
            visible: 0,
            may_remain: BTreeSet::from([0]),
            left: BTreeSet::new(),
            saving: None,
            tally,
        }
    }

    fn one_in(&mut self, count: u64) -> bool {
        self.random.below(count) == 0
    }

    fn breaks(&self, rule: Broken) -> bool {
        self.broken == Some(rule)
    }

    /// Runs and crashes the server several times. Returns the first violation, if there is one.
    pub fn run(mut self) -> Result<(), String> {
        for _ in 0..1 + self.random.below(LIVES_MAX) {
            self.life += 1;
            let survived = self.live();
            self.tally.faults += self.disk.take_faults();
            survived.map_err(|why| {
                let SaveWorld { life, last, visible, may_remain, .. } = &self;
                let files = self.disk.files();
                format!(
                    "{why}; ordered {}, life {life}, last snapshot {last}, visible {visible}, may remain \
                     {may_remain:?}, files {files:?}",
                    self.disk.is_ordered()
                )
            })?;
        }
        Ok(())
    }

    /// Runs one life: makes the server save, crashes it, and starts it again.
    fn live(&mut self) -> Result<(), String> {
        let faults = [0, 0, 10, 40, 300][self.random.below(5) as usize];
        self.disk.set_faults(faults);
        if self.one_in(2) {
            let calls = self.random.below(60);
            self.disk.crash_after(Some(calls));
        }
        for _ in 0..self.random.below(STEPS_MAX) {
            // A full disk may have room again later.
            if self.one_in(16) {
                self.disk.set_faults(if self.disk.has_faults() { 0 } else { faults });
            }
            self.step()?;
            if self.disk.is_crashed() {
                break;
            }
            self.check_files()?;
        }
        self.crash()
    }

    /// Runs a step of the server.
    fn step(&mut self) -> Result<(), String> {
        let is_written = self.saving.as_ref().map(|saving| saving.rest.is_empty());
        match (is_written, self.random.below(12)) {
            (None, _) => self.begin(),
            (Some(_), 0) => self.abort(),
            (Some(true), _) => return self.finish(),
            (Some(false), _) => self.write(),
        }
        Ok(())
    }

    /// Starts the next snapshot: that of `SAVE` or of `BGSAVE`, which have different temporary
    /// names.
    fn begin(&mut self) {
        self.last += 1;
        let pid = if self.has_one_pid { 1 } else { self.life };
        let name = if self.one_in(2) { format!("temp-{pid}.rdb") } else { format!("temp-{pid}-1.rdb") };
        let path = match self.breaks(Broken::InPlace) {
            true => final_path(),
            false => Path::new(ROOT).join(name),
        };
        let sync_every = self.one_in(2).then_some(SYNC_EVERY_BYTES);
        let removals = self.disk.failed_removals();
        match TemporaryFile::create(self.disk.clone(), path.clone(), sync_every) {
            Ok(file) => {
                self.left.remove(&path);
                self.saving = Some(Saving { number: self.last, file, path, rest: snapshot(self.last) });
            }
            Err(_) => self.note_failed(path, removals),
        }
    }

    /// Aborts the snapshot, as `FLUSHALL` and a shutdown do.
    fn abort(&mut self) {
        let removals = self.disk.failed_removals();
        let Some(Saving { path, file, .. }) = self.saving.take() else { return };
        drop(file);
        self.tally.aborted += 1;
        self.note_removed(path, removals);
    }

    /// Writes a part of the snapshot.
    fn write(&mut self) {
        let removals = self.disk.failed_removals();
        let ignores_errors = self.breaks(Broken::WriteError);
        let Some(mut saving) = self.saving.take() else { return };
        let len = self.random.below(saving.rest.len() as u64 + 1) as usize;
        let part: Vec<u8> = saving.rest.drain(..len).collect();
        match saving.file.write(&part) {
            Err(_) if !ignores_errors => {
                let Saving { path, file, .. } = saving;
                drop(file);
                self.note_failed(path, removals);
            }
            _ => self.saving = Some(saving),
        }
    }

    /// Replaces the current snapshot.
    fn finish(&mut self) -> Result<(), String> {
        let Some(Saving { number, mut file, path, .. }) = self.saving.take() else { return Ok(()) };
        let (removals, renames) = (self.disk.failed_removals(), self.disk.renames());
        let directory_failures = self.disk.failed_directory_syncs();
        if self.breaks(Broken::SyncRetry) {
            let _ = file.sync();
        }
        let replaced = file.replace(&final_path());
        if self.disk.renames() > renames {
            self.visible = number;
            self.may_remain.insert(number);
        }
        match replaced {
            Ok(()) => {
                self.may_remain = BTreeSet::from([number]);
                self.tally.saved += 1;
            }
            Err(_) => {
                let is_replaced = self.visible == number && self.disk.failed_directory_syncs() == directory_failures;
                if is_replaced && !self.disk.is_crashed() {
                    return Err(format!("snapshot {number} has failed and has replaced the former one"));
                }
                self.note_failed(path, removals);
            }
        }
        Ok(())
    }

    /// Records a snapshot that was reported as failed. Before it failed, `removals` removals had
    /// failed.
    fn note_failed(&mut self, path: PathBuf, removals: u64) {
        self.tally.failed += u64::from(!self.disk.is_crashed());
        self.note_removed(path, removals);
    }

    fn note_removed(&mut self, path: PathBuf, removals: u64) {
        if self.disk.is_crashed() {
            self.tally.interrupted += 1;
        }
        if self.disk.failed_removals() > removals || self.disk.is_crashed() {
            self.left.insert(path);
        }
    }

    /// Checks the files while the server runs, or after a crash of the process alone.
    fn check_files(&self) -> Result<(), String> {
        let found = self.load()?;
        if found != self.visible {
            return Err(format!("snapshot {found} is there, not {}", self.visible));
        }
        let writing = self.saving.as_ref().map(|saving| &saving.path);
        for (path, _) in self.disk.files() {
            if path != final_path() && Some(&path) != writing && !self.left.contains(&path) {
                return Err(format!("{} was not removed", path.display()));
            }
        }
        Ok(())
    }

    /// Returns the number of the current snapshot; 0 if there is none.
    fn load(&self) -> Result<u64, String> {
        self.disk.peek(&final_path()).map_or(Ok(0), |bytes| load(&bytes))
    }

    /// Crashes the machine, or only the process. Then loads the snapshot.
    fn crash(&mut self) -> Result<(), String> {
        let is_kill = self.one_in(3);
        // A process that has crashed removes no temporary file.
        self.disk.stop();
        if let Some(Saving { path, file, .. }) = self.saving.take() {
            drop(file);
            self.note_removed(path, 0);
        }
        if is_kill {
            self.tally.kills += 1;
            self.disk.resume();
            return self.check_files();
        }
        self.tally.crashes += 1;
        self.disk.restart();
        let found = self.load()?;
        if !self.may_remain.contains(&found) {
            return Err(format!("snapshot {found} is there after a crash"));
        }
        (self.visible, self.may_remain) = (found, BTreeSet::from([found]));
        self.left.clear();
        for (path, _) in self.disk.files() {
            let Some(bytes) = self.disk.peek(&path).filter(|_| path != final_path()) else { continue };
            self.tally.left += 1;
            if read_rdb(&bytes, |_, _| {}).is_ok()
                && let Err(why) = load(&bytes)
            {
                return Err(format!("{} can be loaded, but has {why}", path.display()));
            }
            self.left.insert(path);
        }
        Ok(())
    }
}
