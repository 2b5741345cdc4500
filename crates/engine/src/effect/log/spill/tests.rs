//! Tests of spilling with a disk that is a model. The byte at an offset is a function of the
//! offset, so neither the stream nor the disk is stored.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use pantala_base::{Outgoing, Random};

use super::*;
use crate::effect::log::{Ahead, CutOff, Start};

const KIB: u64 = 1024;
const MIB: u64 = 1024 * KIB;

/// Length of a written chunk in the tests without random lengths.
const CHUNK_BYTES: u64 = 64 * KIB;

const BACKLOG: u64 = MIB;
const UNWRITTEN_MAX: u64 = 20 * MIB;

fn byte_at(offset: u64) -> u8 {
    (offset ^ (offset >> 8).wrapping_mul(31) ^ (offset >> 16).wrapping_mul(17)) as u8
}

fn bytes_of(range: Range<u64>) -> Vec<u8> {
    range.map(byte_at).collect()
}

/// Returns a flag and the callback that sets it.
fn flag() -> (Arc<AtomicBool>, Wake) {
    let flag = Arc::new(AtomicBool::new(false));
    let set = Arc::clone(&flag);
    (flag, Arc::new(move || set.store(true, Relaxed)))
}

struct TestReader {
    id: ReaderId,
    is_woken: Arc<AtomicBool>,
    has_more: bool,
    cut_off: Option<CutOff>,
}

/// A log, its readers, and a thread with a disk.
struct Scene {
    log: Log,
    readers: Vec<TestReader>,
    on_disk: Range<u64>,
    generation: u64,
    is_woken: Arc<AtomicBool>,
    has_task: bool,
    overflows: Vec<u64>,
}

impl Scene {
    fn new(bytes_max: u64) -> Self {
        let mut log = Log::new(&Arc::default());
        log.set_backlog(BACKLOG);
        let (is_woken, wake) = flag();
        log.spill_side().set_thread(wake);
        log.spill_side().set_limits(limits(bytes_max)).settle();
        log.join_discarding();
        let mut scene = Scene {
            log,
            readers: Vec::new(),
            on_disk: 0..0,
            generation: 0,
            is_woken,
            has_task: true,
            overflows: Vec::new(),
        };
        scene.write(0);
        scene
    }

    /// Ends an epoch with `bytes` bytes in one piece.
    fn write(&mut self, bytes: u64) {
        let end = self.log.end;
        self.log.note_epoch_ending();
        let pieces = if bytes == 0 { Vec::new() } else { vec![Piece::Own(bytes_of(end..end + bytes))] };
        self.log.append(pieces).1.settle();
    }

    fn write_chunks(&mut self, bytes: u64) {
        (0..bytes / CHUNK_BYTES).for_each(|_| self.write(CHUNK_BYTES));
    }

    fn join(&mut self, offset: u64, bound: u64) -> usize {
        let (is_woken, wake) = flag();
        let bound = Arc::new(std::sync::atomic::AtomicU64::new(bound));
        let id = self.log.join(Start::At(offset), bound, wake).expect("it is held");
        self.readers.push(TestReader { id, is_woken, has_more: true, cut_off: None });
        self.readers.len() - 1
    }

    /// Reads, and checks the bytes. Returns their number.
    fn read(&mut self, reader: usize, bytes: usize) -> usize {
        let reader = &mut self.readers[reader];
        reader.is_woken.store(false, Relaxed);
        let position = self.log.position(reader.id);
        let mut parts = Vec::new();
        let ahead = self.log.read(reader.id, bytes, &mut parts);
        self.log.free().settle();
        let read: Vec<u8> = parts.iter().flat_map(|part: &Outgoing| part.bytes().to_vec()).collect();
        if let Some(position) = position {
            assert!(read == bytes_of(position..position + read.len() as u64), "wrong bytes at {position}");
        }
        reader.has_more = ahead == Ahead::More;
        if let Ahead::CutOff(why) = ahead {
            reader.cut_off = Some(why);
        }
        read.len()
    }

    /// Takes the next task if the thread was woken or has not waited yet.
    fn take_task(&mut self) -> Option<SpillTask> {
        if !self.has_task && !self.is_woken.swap(false, Relaxed) {
            return None;
        }
        let task = self.log.spill_side().next_task().ok();
        self.has_task = task.is_some();
        task
    }

    fn end_task(&mut self, SpillTask { generation, kind }: SpillTask) {
        match kind {
            SpillTaskKind::Clear(overflow) => {
                self.overflows.extend(overflow);
                self.on_disk = 0..0;
                self.log.spill_side().note_cleared().settle();
            }
            SpillTaskKind::Write { start, parts, bytes_max } => {
                if self.on_disk.is_empty() {
                    (self.on_disk, self.generation) = (start..start, generation);
                }
                for part in parts {
                    let end = self.on_disk.end + part.len() as u64;
                    assert!(part[..] == bytes_of(self.on_disk.end..end));
                    self.on_disk.end = end;
                }
                self.on_disk.start = self.on_disk.start.max(self.on_disk.end.saturating_sub(bytes_max));
                self.log.spill_side().note_written(generation, self.on_disk.clone()).settle();
            }
            SpillTaskKind::Read { reader, range, buffer } => {
                assert!(buffer.is_empty() && buffer.capacity() as u64 >= range.end - range.start);
                assert_eq!(self.generation, generation, "tasks are in order");
                assert!(self.on_disk.start <= range.start && range.end <= self.on_disk.end && !range.is_empty());
                self.log.spill_side().note_read(generation, (reader, range.start), bytes_of(range)).settle();
            }
        }
    }

    fn work(&mut self) {
        while let Some(task) = self.take_task() {
            self.end_task(task);
        }
    }

    /// Lets the thread and the readers run until they all wait. They run only when they were woken.
    fn catch_up(&mut self) {
        loop {
            self.work();
            let can_read = |reader: &TestReader| reader.has_more || reader.is_woken.load(Relaxed);
            let Some(next) = self.readers.iter().position(can_read) else { return };
            self.read(next, 300_000);
        }
    }

    fn lag(&self, reader: usize) -> u64 {
        self.log.lag_bytes(self.readers[reader].id)
    }
}

fn limits(bytes_max: u64) -> SpillLimits {
    SpillLimits { bytes_max, unwritten_bytes_max: UNWRITTEN_MAX }
}

#[test]
fn a_slow_reader_reads_from_the_disk() {
    let mut scene = Scene::new(1000 * MIB);
    let slow = scene.join(scene.log.end, 4 * MIB);
    for _ in 0..60 {
        scene.write_chunks(MIB);
        scene.work();
        assert!(scene.log.memory_bytes() <= LAG_IN_MEMORY_BYTES + 2 * MIB, "{}", scene.log.memory_bytes());
    }
    assert_eq!(scene.lag(slow), 60 * MIB);
    assert_eq!(scene.log.limited_bytes(scene.readers[slow].id), 0);
    assert_eq!(scene.read(slow, 1), 0, "the worker does not wait for the disk");
    scene.catch_up();
    assert_eq!((scene.lag(slow), scene.readers[slow].cut_off), (0, None));
    assert!(scene.log.memory_bytes() <= BACKLOG + 2 * WRITE_BYTES_MIN, "{}", scene.log.memory_bytes());
    let start = scene.log.held().start;
    assert_eq!(scene.log.end - start, 60 * MIB, "all is still held");
    let late = scene.join(start, 4 * MIB);
    scene.catch_up();
    assert_eq!(scene.lag(late), 0);
}

#[test]
fn a_reader_behind_the_start_of_the_disk_is_cut_off() {
    let mut scene = Scene::new(40 * MIB);
    let (slow, slower) = (scene.join(scene.log.end, u64::MAX), scene.join(scene.log.end, u64::MAX));
    for _ in 0..40 {
        scene.write_chunks(MIB);
        scene.work();
    }
    while scene.lag(slow) > 30 * MIB {
        scene.work();
        scene.read(slow, 100_000);
    }
    scene.write_chunks(5 * MIB);
    scene.work();
    assert!(scene.readers[slower].is_woken.load(Relaxed), "it is woken for the end");
    scene.catch_up();
    assert_eq!((scene.lag(slow), scene.readers[slow].cut_off), (0, None));
    let why = scene.readers[slower].cut_off.expect("its bytes are dropped");
    assert!(why.lag_bytes > why.bytes_max, "{why:?}");
}

/// A disk that writes nothing: the readers on disk are cut off, and the memory is bounded.
#[test]
fn a_slow_disk_ends_spilling() {
    let mut scene = Scene::new(1000 * MIB);
    let slow = scene.join(scene.log.end, 4 * MIB);
    scene.write_chunks(30 * MIB);
    assert!(scene.log.memory_bytes() <= BACKLOG + UNWRITTEN_MAX + 2 * CHUNK_BYTES, "{}", scene.log.memory_bytes());
    scene.catch_up();
    assert!(matches!(scene.overflows[..], [bytes] if bytes > UNWRITTEN_MAX), "{:?}", scene.overflows);
    assert!(scene.readers[slow].cut_off.is_some());
    assert!(scene.log.memory_bytes() <= BACKLOG + 2 * CHUNK_BYTES);
    assert!(matches!(scene.log.spill_side().next_task(), Err(Some(_))), "there is a pause after a failure");
    scene.log.spill_side().set_limits(limits(900 * MIB)).settle();
    scene.write_chunks(5 * MIB);
    scene.catch_up();
    assert!(!scene.log.spill_side().on_disk().is_empty(), "a changed limit ends the pause");
}

/// Bytes that were in memory before the disk was turned on do not count as unwritten.
#[test]
fn a_disk_may_be_turned_on_while_a_reader_is_far_behind() {
    let mut scene = Scene::new(0);
    let slow = scene.join(scene.log.end, u64::MAX);
    scene.write_chunks(3 * UNWRITTEN_MAX);
    scene.log.spill_side().set_limits(limits(1000 * MIB)).settle();
    scene.write_chunks(UNWRITTEN_MAX);
    while scene.log.memory_bytes() > LAG_IN_MEMORY_BYTES + 2 * MIB {
        let task = scene.take_task().expect("there is more to write");
        scene.end_task(task);
    }
    scene.catch_up();
    assert_eq!((scene.lag(slow), scene.readers[slow].cut_off), (0, None));
    scene.write_chunks(UNWRITTEN_MAX);
    assert!(scene.overflows.is_empty() && !scene.log.spill_side().on_disk().is_empty());
    scene.write_chunks(2 * MIB);
    scene.catch_up();
    assert_eq!(scene.overflows.len(), 1, "the limit is the usual one again");
}

/// A reader on disk leaves the thread enough time to write.
#[test]
fn urgent_writes_come_before_reads() {
    let mut scene = Scene::new(1000 * MIB);
    let slow = scene.join(scene.log.end, 4 * MIB);
    scene.write_chunks(19 * MIB);
    scene.work();
    scene.read(slow, 1);
    scene.write_chunks(UNWRITTEN_MAX / 4);
    let mut kinds = Vec::new();
    for _ in 0..5 {
        let task = scene.take_task().expect("reads and writes wait");
        kinds.push(matches!(task.kind, SpillTaskKind::Write { .. }));
        scene.end_task(task);
        scene.read(slow, 300_000);
    }
    assert_eq!(kinds, [true, false, true, false, false], "true: a write");
}

#[test]
fn a_failure_cuts_off_the_readers_on_disk_only() {
    let mut scene = Scene::new(1000 * MIB);
    let (slow, fast) = (scene.join(scene.log.end, 4 * MIB), scene.join(scene.log.end, 4 * MIB));
    for _ in 0..30 {
        scene.write_chunks(MIB);
        scene.catch_up_but(slow);
    }
    scene.read(slow, 1);
    let task = scene.take_task().expect("a read");
    assert!(matches!(task.kind, SpillTaskKind::Read { .. }));
    scene.log.spill_side().note_failed(task.generation).settle();
    scene.catch_up();
    assert!(scene.readers[slow].cut_off.is_some() && scene.readers[fast].cut_off.is_none());
    assert_eq!((scene.log.spill_side().on_disk().is_empty(), scene.on_disk.is_empty()), (true, true));
    let held = scene.log.held();
    assert!(held.end - held.start <= BACKLOG + 2 * CHUNK_BYTES);
    scene.write_chunks(MIB);
    scene.catch_up();
    assert_eq!(scene.lag(fast), 0);
}

impl Scene {
    fn catch_up_but(&mut self, slow: usize) {
        self.work();
        for reader in (0..self.readers.len()).filter(|reader| *reader != slow) {
            while self.read(reader, 100_000) > 0 {}
        }
    }
}

/// Random writes, readers, limits and failures. A task of the thread is not atomic: it starts in
/// one step and ends in a later one.
#[test]
fn random_readers_receive_the_bytes_at_their_offsets() {
    let given = std::env::var("PANTALA_SEED").ok().and_then(|seed| seed.trim().parse().ok());
    let seed = given.unwrap_or_else(|| Random::from_entropy().next_u64());
    println!("random_readers_receive_the_bytes_at_their_offsets: PANTALA_SEED={seed}");
    let mut random = Random::from_seed(seed);
    let mut scene = Scene::new(30 * MIB);
    let (mut pending, mut from_disk) = (None, 0);
    for _ in 0..6000 {
        match random.below(1000) {
            0..=299 => {
                let bytes = [40, 20_000, 500_000][random.below(3) as usize];
                scene.write(random.below(bytes));
            }
            300..=319 if scene.readers.len() < 6 => {
                let held = scene.log.held();
                let bound = [2 * MIB, u64::MAX][random.below(2) as usize];
                scene.join(held.start + random.below(held.end - held.start + 1), bound);
            }
            320..=599 if !scene.readers.is_empty() => {
                let reader = random.below(scene.readers.len() as u64) as usize;
                let is_on_disk = scene.log.position(scene.readers[reader].id) < Some(scene.log.extent().memory_start);
                let read = scene.read(reader, random.below(600_000) as usize);
                from_disk += u64::from(is_on_disk && read > 0);
            }
            600..=974 => match pending.take() {
                Some(task) => scene.end_task(task),
                None => pending = scene.take_task(),
            },
            975..=984 if !scene.readers.is_empty() => {
                let reader = scene.readers.swap_remove(random.below(scene.readers.len() as u64) as usize);
                scene.log.leave(reader.id).settle();
            }
            985..=989 => {
                let bytes_max = [0, MIB, 10 * MIB, 30 * MIB, 100 * MIB][random.below(5) as usize];
                scene.log.spill_side().set_limits(limits(bytes_max)).settle();
                scene.is_woken.store(true, Relaxed);
            }
            990..=991 => {
                if let Some(task) = pending.take() {
                    scene.log.spill_side().note_failed(task.generation).settle();
                }
            }
            992 => scene.log.reset(random.below(1 << 40)).settle(),
            _ => {}
        }
        // The memory is bounded only while bytes are spilled. Otherwise a reader without a bound
        // keeps everything in memory.
        if scene.log.spill.spills(scene.log.extent()) {
            let readers = (scene.readers.len() as u64 + 1) * (2 * MIB);
            let most = BACKLOG + LAG_IN_MEMORY_BYTES + UNWRITTEN_MAX + readers + MIB;
            assert!(scene.log.memory_bytes() <= most, "{}", scene.log.memory_bytes());
        }
    }
    if let Some(task) = pending {
        scene.end_task(task);
    }
    scene.catch_up();
    for reader in 0..scene.readers.len() {
        assert!(scene.readers[reader].cut_off.is_some() || scene.lag(reader) == 0, "a wake was lost");
    }
    assert!(from_disk > 0, "no reader read from the disk");
}

/// Many bytes that are added at once, by a large value or a smaller backlog, do not mean that the
/// disk is too slow. Bytes that are added while others wait do.
#[test]
fn bytes_added_at_once_are_not_a_slow_disk() {
    const MAX: u64 = 100;
    let spill_at = |steps: &[u64]| {
        let limits = SpillLimits { bytes_max: 1000, unwritten_bytes_max: MAX };
        let mut spill = Spill { limits, ..Spill::default() };
        steps.iter().map(|&bytes| spill.note_unwritten(bytes)).collect::<Vec<_>>()
    };
    assert_eq!(spill_at(&[0, 40, 80, 100, 101]), [false, false, false, false, true]);
    assert_eq!(spill_at(&[0, 10, 300, 290, 100, 0]), [false; 6]);
    assert_eq!(spill_at(&[0, 10, 300, 390, 391]), [false, false, false, false, true]);
    assert_eq!(spill_at(&[0, 10, 300, 600]), [false, false, false, true], "it has not written the first");
    assert_eq!(spill_at(&[0, 300, 40, 340, 0, 40, 80, 101]), [false, false, false, false, false, false, false, true]);
}
