//! A *world* is one server on one disk through several crashes. A *life* is a run of the server
//! between two crashes. A *unit* is the effects of one command or transaction. After each crash,
//! the loaded files must contain all units that were promised to be durable.

use std::path::Path;

use pantala_base::Random;
use pantala_persistence::aof::place::{NewBase, Place};
use pantala_persistence::aof::scan::{End, Stopped, run_all};
use pantala_persistence::aof::writing::{Taken, Writing};
use pantala_persistence::aof::{Check, CommandBase, Commands, Directory, Manifest, Outcome, is_rdb, timestamp};
use pantala_persistence::disk::Disk;
use pantala_persistence::temporary::TemporaryFile;

use crate::disk::{Broken, SimulatedDisk, TEMPORARY_BASE};
use crate::units::{Loaded, base, encode_unit};

const ROOT: &str = "/data";
const PREFIX: &[u8] = b"a.aof";
/// Maximum number of lives of a world.
const LIVES_MAX: u32 = 12;
/// Maximum number of steps of a life, plus one.
const STEPS_MAX: u64 = 60;
/// Limits of the reader of a snapshot.
const DATABASES: u32 = 16;
const STRING_BYTES_MAX: u64 = 1 << 20;
/// With syncs during the writing, a base is synced each time that this number of bytes has been
/// written.
const SYNC_EVERY_BYTES: u64 = 500;

/// Counts of the events in all worlds so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// Crashes of the machine.
    pub crashes: u64,
    /// Crashes of the process alone.
    pub kills: u64,
    /// Failed calls.
    pub faults: u64,
    /// Bases that were installed.
    pub bases: u64,
    /// Those of them that are RDB files.
    pub rdb_bases: u64,
    /// Times that the file was turned off and on again.
    pub turned_on: u64,
    /// Starts that needed `check-aof --fix`.
    pub repairs: u64,
    /// Units that were promised to be durable.
    pub promised: u64,
}

/// When effects are written with checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Checksums {
    Never,
    Always,
    Switched,
}

/// A rewrite in progress.
struct Rewrite {
    /// The snapshot's last unit.
    number: u64,
    /// The offset of the cut in the stream; `None` once the writer has reached it.
    cut: Option<u64>,
    /// The part of the snapshot that is not written yet, as an RDB file.
    text: Vec<u8>,
    /// Translates the snapshot to commands. `None` if the base is an RDB file.
    commands: Option<CommandBase>,
    /// The number of bytes after which the base is synced during the writing.
    sync_every: Option<u64>,
    file: Option<TemporaryFile<SimulatedDisk>>,
    /// `None` while the base is being written. Afterwards the length of the durable base, or the
    /// reason why the base could not be written.
    ended: Option<Result<u64, String>>,
}

/// The world described at the head of this module.
pub struct World<'t> {
    random: Random,
    disk: SimulatedDisk,
    is_ordered: bool,
    checksums: Checksums,
    broken: Option<Broken>,
    /// For each unit, the life that has committed it.
    history: Vec<u32>,
    life: u32,
    /// Units up to this one must survive.
    promised: u64,
    tally: &'t mut Tally,
}

/// The server while it runs.
struct Life {
    place: Place<SimulatedDisk>,
    writing: Writing<SimulatedDisk>,
    /// Whether the files have no base yet (`CONFIG SET appendonly yes`).
    awaits_base: bool,
    is_always: bool,
    has_checksums: bool,
    rewrite: Option<Rewrite>,
    wants_rewrite: bool,
    /// The units of the stream that were not read yet: number and bytes.
    unread: Vec<(u64, Vec<u8>)>,
    read_to: u64,
    end: u64,
    read_before: u64,
    now_s: i64,
}

/// An error of the disk has ended the process, as it does with `appendfsync always`.
struct Exited;

impl<'t> World<'t> {
    /// Creates a world with an empty disk.
    pub fn new(seed: u64, broken: Option<Broken>, tally: &'t mut Tally) -> Self {
        let mut random = Random::from_seed(seed);
        let checksums = [Checksums::Never, Checksums::Always, Checksums::Switched][random.below(3) as usize];
        // Without checksums, the loss of blocks within a value can't be detected.
        let is_ordered = checksums != Checksums::Always || random.below(3) == 0;
        let disk = SimulatedDisk::new(random.next_u64(), Path::new(ROOT), is_ordered, broken);
        World { random, disk, is_ordered, checksums, broken, history: Vec::new(), life: 0, promised: 0, tally }
    }

    /// Runs and crashes the server several times. Returns the first violation, if there is one.
    pub fn run(mut self) -> Result<(), String> {
        let lives = 1 + self.random.below(u64::from(LIVES_MAX));
        for _ in 0..lives {
            self.life += 1;
            let survived = self.live();
            self.tally.faults += self.disk.take_faults();
            survived.map_err(|why| {
                let World { is_ordered, checksums, .. } = &self;
                let files = self.disk.files();
                format!("{why}; ordered {is_ordered}, checksums {checksums:?}, life {}, files {files:?}", self.life)
            })?;
        }
        Ok(())
    }

    fn one_in(&mut self, count: u64) -> bool {
        self.random.below(count) == 0
    }

    /// Runs one life: starts the server, makes it work, and crashes it.
    fn live(&mut self) -> Result<(), String> {
        // The machine may also crash while the server starts.
        let mut life = loop {
            match self.start()? {
                Some(life) => break life,
                None => self.crash(None),
            }
        };
        let faults = [0, 0, 5, 30][self.random.below(4) as usize];
        self.disk.set_faults(faults);
        if self.one_in(2) {
            let calls = self.random.below(80);
            self.disk.crash_after(Some(calls));
        }
        for _ in 0..self.random.below(STEPS_MAX) {
            if self.step(&mut life).is_err() || self.disk.is_crashed() {
                break;
            }
        }
        self.crash(Some(life));
        Ok(())
    }

    /// Crashes the machine, or only the process.
    fn crash(&mut self, life: Option<Life>) {
        // After a failed sync, a process can't detect whether it reads data that isn't on the disk.
        // So in that case the whole machine crashes.
        let is_kill = !self.disk.is_crashed() && !self.disk.has_lost() && self.one_in(3);
        // A process that has crashed removes no temporary file.
        self.disk.stop();
        drop(life);
        if is_kill {
            self.tally.kills += 1;
            self.disk.resume();
        } else {
            self.tally.crashes += 1;
            self.disk.restart();
        }
    }

    /// Loads the files, checks them, and opens them. Returns `None` after a crash.
    fn start(&mut self) -> Result<Option<Life>, String> {
        if self.one_in(4) {
            let calls = self.random.below(12);
            self.disk.crash_after(Some(calls));
        }
        let directory = Directory::new(self.disk.clone(), Path::new(ROOT).join("dir"), PREFIX.to_vec());
        let loaded = self.load(&directory);
        if self.disk.is_crashed() {
            return Ok(None);
        }
        let (manifest, number) = loaded?;
        if number < self.promised {
            return Err(format!("units up to {} were promised, and {number} are there", self.promised));
        }
        let is_always = self.one_in(2);
        let has_checksums = match self.checksums {
            Checksums::Never => false,
            Checksums::Always => true,
            Checksums::Switched => self.one_in(2),
        };
        // The server may start without the append-only file, and turn it on now.
        let awaits_base = self.one_in(6);
        let opened = if awaits_base {
            // In this life the server never syncs the old files. If a torn end was removed, it must
            // not come back after a crash, because this life replaces the effects in it. So the
            // removal is made durable here.
            self.disk.write_back();
            directory
                .create()
                .and_then(|()| directory.check())
                .map(|()| (Place { directory, manifest, others_bytes: 0 }, Writing::at_cut()))
        } else {
            Place::open(directory, &manifest, || (Vec::new(), false))
                .map(|(place, opened)| (place, Writing::new(opened.file, opened.len)))
        };
        if self.disk.is_crashed() {
            return Ok(None);
        }
        let (place, writing) = opened.map_err(|error| format!("no call fails: {error}"))?;
        self.disk.crash_after(None);
        // The history is truncated only after a successful start. During the start, the machine may
        // crash before the removal of a torn end is durable. The disk may then still have effects
        // that were not loaded.
        self.history.truncate(number as usize);
        if !awaits_base {
            // Clients may read all loaded units, so these must survive.
            self.promise(number);
        }
        let mut life = Life {
            place,
            writing,
            awaits_base,
            is_always,
            has_checksums,
            rewrite: None,
            wants_rewrite: false,
            unread: Vec::new(),
            read_to: 0,
            end: 0,
            read_before: number + 1,
            now_s: 0,
        };
        if awaits_base {
            self.snapshot(&mut life, None);
            self.rotate(&mut life);
        }
        Ok(Some(life))
    }

    fn promise(&mut self, number: u64) {
        if number > self.promised {
            self.tally.promised += number - self.promised;
            self.promised = number;
        }
    }

    /// Loads the files. If the disk has unordered data, cuts off a damaged end, as an operator does
    /// with `check-aof --fix`.
    fn load(&mut self, directory: &Directory<SimulatedDisk>) -> Result<(Manifest, u64), String> {
        let manifest = directory.read_manifest().map_err(|unread| format!("{unread:?}"))?;
        let count = manifest.to_load().count();
        let mut loaded = Loaded::new(&self.history);
        for (index, listed) in manifest.to_load().enumerate() {
            let name = listed.name.escape_ascii().to_string();
            let bytes = self.disk.read(&directory.join(&listed.name)).map_err(|error| format!("{name}: {error}"))?;
            loaded.start_file();
            if is_rdb(&bytes) {
                loaded.load_rdb_base(&bytes).map_err(|why| format!("{name}: {why}"))?;
                continue;
            }
            let ran = run_all(0, &mut &bytes[..], &mut loaded);
            // As in the server, all increments after an increment that is cut must be empty.
            let is_last = index + 1 == count
                || index > 0 && manifest.to_load().skip(index + 1).all(|later| directory.size_of(later) == 0);
            let cut_at = match ran {
                Ok(End::Whole) => None,
                Ok(End::Cut(at) | End::CutTransaction(at)) => Some(at),
                Err(Stopped::Damaged(_)) if is_last && !self.is_ordered => {
                    self.tally.repairs += 1;
                    Some(check(&bytes)?)
                }
                Err(stopped) => return Err(format!("{name}: {stopped:?}")),
            };
            if loaded.is_in_base {
                return Err(format!("{name}: the base is incomplete"));
            }
            if let Some(at) = cut_at {
                if !is_last {
                    return Err(format!("{name} is cut at {at} of {} bytes and is not the last file", bytes.len()));
                }
                directory.truncate(&listed.name, at).map_err(|error| format!("no call fails: {error}"))?;
            }
        }
        let number = loaded.number;
        Ok((manifest, number))
    }

    fn step(&mut self, life: &mut Life) -> Result<(), Exited> {
        match self.random.below(12) {
            0..=4 => self.commit(life),
            5..=7 => self.turn(life)?,
            8..=10 => match &life.rewrite {
                Some(_) => self.write_base(life),
                None if life.wants_rewrite || self.one_in(2) => self.cut(life),
                None => {}
            },
            _ => match self.random.below(5) {
                4 if self.one_in(4) => self.turn_off_and_on(life)?,
                0 => life.is_always = self.one_in(2),
                1 if self.checksums == Checksums::Switched => life.has_checksums = self.one_in(2),
                _ => life.now_s += 1,
            },
        }
        Ok(())
    }

    /// Turns the append-only file off and on again (`CONFIG SET appendonly`). Until there is a new
    /// base, the former files are loaded, which contain what was promised.
    fn turn_off_and_on(&mut self, life: &mut Life) -> Result<(), Exited> {
        if let Some(rewrite) = &mut life.rewrite {
            (rewrite.ended, rewrite.file) = (Some(Err("the file was turned off".to_owned())), None);
        }
        self.turn(life)?;
        life.writing.end(Some(&mut life.place));
        life.unread.clear();
        life.read_to = life.end;
        let directory = life.place.directory.clone();
        let Ok(manifest) = directory.read_manifest() else { return Ok(()) };
        life.place = Place { directory, manifest, others_bytes: 0 };
        (life.writing, life.awaits_base) = (Writing::at_cut(), true);
        self.tally.turned_on += 1;
        self.snapshot(life, None);
        self.rotate(life);
        Ok(())
    }

    /// Commits the units of some writes by clients.
    fn commit(&mut self, life: &mut Life) {
        for _ in 0..1 + self.random.below(4) {
            self.history.push(self.life);
            let number = self.history.len() as u64;
            let mut unit = Vec::new();
            encode_unit(&mut unit, number, self.life);
            life.end += unit.len() as u64;
            life.unread.push((number, unit));
        }
    }

    /// Starts a rewrite: cuts the stream, and takes a snapshot at the cut.
    fn cut(&mut self, life: &mut Life) {
        life.writing.cut();
        life.wants_rewrite = false;
        let end = life.end;
        self.snapshot(life, Some(end));
    }

    fn snapshot(&mut self, life: &mut Life, cut: Option<u64>) {
        let number = self.history.len() as u64;
        let text = base(number, self.history.last().copied().unwrap_or(0));
        let commands = self.one_in(2).then(|| {
            let annotation = (life.now_s > 0).then(|| timestamp(life.now_s));
            CommandBase::new(Commands::new(DATABASES, STRING_BYTES_MAX), annotation, life.has_checksums)
        });
        let sync_every = self.one_in(2).then_some(SYNC_EVERY_BYTES);
        life.rewrite = Some(Rewrite { number, cut, text, commands, sync_every, file: None, ended: None });
    }

    /// Writes a part of the base, or syncs it.
    fn write_base(&mut self, life: &mut Life) {
        let Some(rewrite) = &mut life.rewrite else { return };
        if rewrite.ended.is_some() {
            return;
        }
        let written = match &mut rewrite.file {
            None => {
                let path = Path::new(ROOT).join(TEMPORARY_BASE);
                TemporaryFile::create(self.disk.clone(), path, rewrite.sync_every).map_err(Into::into).map(|file| {
                    rewrite.file = Some(file);
                    None
                })
            }
            Some(file) if rewrite.text.is_empty() => {
                let written = rewrite.commands.as_mut().map_or(Ok(()), |commands| commands.write(None, file));
                written.and_then(|()| Ok(Some(file.sync()?)))
            }
            Some(file) => {
                let len = self.random.below(rewrite.text.len() as u64 + 1) as usize;
                let part: Vec<u8> = rewrite.text.drain(..len).collect();
                let written = match &mut rewrite.commands {
                    Some(commands) => commands.write(Some(&part), file),
                    None => file.write(&part).map_err(Into::into),
                };
                written.map(|()| None)
            }
        };
        match written {
            Ok(None) => {}
            Ok(Some(bytes)) => {
                rewrite.ended = Some(Ok(bytes));
                let _ = rewrite.file.take().map(TemporaryFile::keep);
            }
            Err(failed) => {
                rewrite.ended = Some(Err(failed.to_string()));
                rewrite.file = None;
            }
        }
    }

    /// Reads a part of the stream. Returns whether there is more.
    fn read(&mut self, life: &mut Life) -> bool {
        let count = self.random.below(life.unread.len() as u64 + 1) as usize;
        let (mut parts, mut part) = (Vec::new(), Vec::new());
        for (number, unit) in life.unread.drain(..count) {
            life.read_to += unit.len() as u64;
            life.read_before = number + 1;
            part.extend_from_slice(&unit);
            if self.random.below(3) == 0 {
                parts.push(std::mem::take(&mut part).into());
            }
        }
        if !part.is_empty() {
            parts.push(part.into());
        }
        life.writing.take(Taken {
            parts,
            end: life.read_to,
            cut: life.rewrite.as_ref().and_then(|rewrite| rewrite.cut),
            before: Some(life.read_before),
            now_s: (life.now_s > 0).then_some(life.now_s),
        });
        !life.unread.is_empty()
    }

    /// Runs one turn of the writer thread.
    fn turn(&mut self, life: &mut Life) -> Result<(), Exited> {
        loop {
            let has_more = if life.writing.is_written() { self.read(life) } else { false };
            let is_due = life.is_always || self.one_in(4);
            let written = life.writing.write(life.has_checksums);
            if written.is_ok() && self.broken == Some(Broken::EarlyReply) {
                self.note_durable(life, Some(life.writing.written_before()));
            }
            match written.and_then(|()| if is_due { life.writing.sync() } else { Ok(None) }) {
                Ok(durable_before) => self.note_durable(life, durable_before),
                Err(_) => {
                    if life.is_always && !life.awaits_base {
                        return Err(Exited);
                    }
                    if !life.writing.is_written() && !life.writing.is_rotated() {
                        life.writing.abandon();
                        continue;
                    }
                    life.wants_rewrite |= life.writing.is_lost();
                    break;
                }
            }
            let cut = life.rewrite.as_ref().and_then(|rewrite| rewrite.cut);
            if cut.is_some_and(|cut| life.read_to >= cut) {
                self.rotate(life);
            } else if !has_more {
                break;
            }
        }
        if life.writing.is_rotated()
            && let Some(rewrite) = life.rewrite.take_if(|rewrite| rewrite.ended.is_some())
        {
            self.install(life, rewrite);
        }
        Ok(())
    }

    fn note_durable(&mut self, life: &mut Life, before: Option<u64>) {
        if let Some(before) = before
            && !life.awaits_base
            && !self.disk.is_crashed()
        {
            self.promise(before.saturating_sub(1));
        }
    }

    fn rotate(&mut self, life: &mut Life) {
        let now_s = (life.now_s > 0).then_some(life.now_s);
        let rotated = life.writing.rotate(Some(&mut life.place), now_s);
        if let Some(rewrite) = &mut life.rewrite {
            rewrite.cut = None;
            if rotated.is_err() {
                rewrite.ended = Some(Err("aborted".to_owned()));
            }
        }
    }

    fn install(&mut self, life: &mut Life, rewrite: Rewrite) {
        let path = Path::new(ROOT).join(TEMPORARY_BASE);
        let installed = rewrite.ended.unwrap_or(Err(String::new())).and_then(|bytes| {
            let base = NewBase { path: &path, is_rdb: rewrite.commands.is_none(), bytes };
            life.writing.install(Some(&mut life.place), base)
        });
        let Ok(durable_before) = installed else {
            let _ = self.disk.remove(&path);
            life.wants_rewrite |= life.awaits_base || life.writing.awaits_base();
            return;
        };
        self.tally.bases += 1;
        self.tally.rdb_bases += u64::from(rewrite.commands.is_none());
        life.awaits_base = false;
        self.note_durable(life, Some(rewrite.number + 1));
        self.note_durable(life, durable_before);
        let history = life.place.manifest.take_history();
        history.iter().for_each(|listed| drop(life.place.directory.remove(&listed.name)));
        let _ = life.place.directory.write_manifest(&life.place.manifest);
    }
}

/// Returns the offset at which `check-aof --fix` cuts a file.
fn check(bytes: &[u8]) -> Result<u64, String> {
    let mut check = Check::new(0, String::new(), None);
    for input in [bytes, &[]] {
        if let Some(Outcome::Read(analysis)) = check.feed(input) {
            return Ok(analysis.ok_up_to);
        }
    }
    Err("the check has no result".to_owned())
}
