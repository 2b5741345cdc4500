//! Tests of the log.

use std::sync::atomic::AtomicUsize;

use super::ends::{ENDS_MAX, LATENESS_RATIO};
use super::*;

/// Length of a chunk in these tests, too long for the tail.
const CHUNK_BYTES: usize = TAIL_BYTES_MAX + 1;

struct Watched {
    log: Log,
    wakes: Arc<AtomicUsize>,
    /// Bytes appended since the log was last restarted, and the offset of the first of them.
    written: Vec<u8>,
    start: u64,
}

impl Watched {
    fn new() -> Self {
        Watched { log: Log::new(&Arc::default()), wakes: Arc::default(), written: Vec::new(), start: 0 }
    }

    fn join(&mut self, start: Start, bytes_max: u64) -> Result<ReaderId, NotHeld> {
        let wakes = Arc::clone(&self.wakes);
        let wake = Arc::new(move || _ = wakes.fetch_add(1, Relaxed));
        self.log.join(start, Arc::new(AtomicU64::new(bytes_max)), wake)
    }

    /// Ends an epoch in which `bytes` bytes were written.
    fn epoch(&mut self, bytes: usize) {
        let written: Vec<u8> = (0..bytes).map(|at| (self.written.len() + at) as u8).collect();
        self.log.note_epoch_ending();
        let pieces = if bytes == 0 { Vec::new() } else { vec![Piece::Own(written.clone())] };
        let (has_started, aftermath) = self.log.append(pieces);
        aftermath.settle();
        if has_started && self.log.places.len() == 1 {
            (self.written, self.start) = (Vec::new(), self.log.end);
        } else {
            self.written.extend(written);
        }
    }

    fn started(&mut self, bytes_max: u64) -> ReaderId {
        let id = self.join(Start::Now, bytes_max).expect("now is always held");
        self.epoch(0);
        id
    }

    /// Reads at least `bytes` bytes, and checks that these bytes were written at the reader's
    /// offset.
    fn read(&mut self, id: ReaderId, bytes: usize) -> (usize, Ahead) {
        let position = self.log.position(id);
        let mut parts = Vec::new();
        let ahead = self.log.read(id, bytes, &mut parts);
        let read: Vec<u8> = parts.iter().flat_map(|part| part.bytes().to_vec()).collect();
        if let Some(position) = position {
            let from = (position - self.start) as usize;
            assert_eq!(read, self.written[from..from + read.len()]);
        }
        self.log.free().settle();
        (read.len(), ahead)
    }

    fn held(&self) -> usize {
        let held = self.log.held();
        (held.end - held.start) as usize
    }
}

#[test]
fn each_reader_reads_all_bytes_from_its_own_position() {
    let mut log = Watched::new();
    let fast = log.started(u64::MAX);
    log.epoch(10);
    let slow = log.join(Start::Now, u64::MAX).expect("now");
    assert_eq!(log.read(slow, 1), (0, Ahead::NotStarted));
    log.epoch(5);
    assert_eq!(log.read(fast, usize::MAX), (15, Ahead::Nothing));
    // A reader does not receive bytes written in the epoch in which it joined.
    assert_eq!(log.read(slow, usize::MAX), (0, Ahead::Nothing));
    for _ in 0..4 {
        log.epoch(CHUNK_BYTES);
        log.epoch(7);
        assert_eq!(log.read(fast, usize::MAX), (CHUNK_BYTES + 7, Ahead::Nothing));
    }
    assert_eq!(log.read(slow, 1), (CHUNK_BYTES, Ahead::More));
    assert_eq!(log.read(slow, 8).1, Ahead::More);
    while log.read(slow, 1).1 == Ahead::More {}
    assert_eq!(log.log.position(slow), log.log.position(fast));
    assert!(log.held() <= TAIL_BYTES_MAX, "{}", log.held());
}

#[test]
fn a_reader_starts_at_its_cut() {
    let mut log = Watched::new();
    let first = log.started(u64::MAX);
    let (late, early) = (log.join(Start::Cut(9), u64::MAX), log.join(Start::Cut(7), u64::MAX));
    let (late, early) = (late.expect("a cut is held"), early.expect("a cut is held"));
    // The end of an epoch before the cut does not start the reader.
    log.epoch(5);
    assert!(log.log.has_joining());
    assert_eq!(log.read(early, 1), (0, Ahead::NotStarted));
    for (cut, bytes, reader) in [(7, 3, early), (9, 4, late)] {
        assert_eq!(log.log.next_cut(), Some(cut));
        let written: Vec<u8> = (0..bytes).map(|at| (log.written.len() + at) as u8).collect();
        log.log.append_to_cut(vec![Piece::Own(written.clone())], cut).settle();
        log.written.extend(written);
        assert_eq!(log.log.position(reader), Some(log.log.end));
    }
    assert_eq!((log.log.next_cut(), log.log.has_joining()), (None, false));
    log.epoch(2);
    assert_eq!(log.read(first, usize::MAX), (14, Ahead::Nothing));
    assert_eq!(log.read(early, usize::MAX), (6, Ahead::Nothing));
    assert_eq!(log.read(late, usize::MAX), (2, Ahead::Nothing));
}

#[test]
fn a_reader_beyond_its_bound_is_cut_off_and_frees_its_chunks() {
    let mut log = Watched::new();
    let bound = 3 * CHUNK_BYTES as u64;
    let (slow, fast) = (log.started(bound), log.join(Start::Now, bound).expect("now"));
    log.epoch(0);
    for _ in 0..3 {
        log.epoch(CHUNK_BYTES);
        assert_eq!(log.read(fast, usize::MAX), (CHUNK_BYTES, Ahead::Nothing));
    }
    assert_eq!(log.held() as u64, bound);
    assert_eq!(log.log.lag_bytes(slow), bound);
    let wakes = log.wakes.load(Relaxed);
    log.epoch(1);
    let why = CutOff { lag_bytes: bound + 1, bytes_max: bound };
    assert_eq!(log.read(slow, usize::MAX), (0, Ahead::CutOff(why)));
    assert_eq!(log.read(fast, usize::MAX), (1, Ahead::Nothing));
    // Both readers were woken, the slow one although it was not waiting.
    assert_eq!(log.wakes.load(Relaxed), wakes + 2);
    assert!(log.held() <= TAIL_BYTES_MAX);
    assert!(log.log.chunk_bytes.load(Relaxed) <= TAIL_BYTES_MAX as u64);
}

#[test]
fn the_warning_is_called_beyond_its_limit() {
    let mut log = Watched::new();
    let id = log.started(u64::MAX);
    let warnings = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&warnings);
    let warn: Wake = Arc::new(move || _ = counted.fetch_add(1, Relaxed));
    log.log.warn_beyond(id, 10, &warn);
    log.epoch(10);
    assert_eq!(warnings.load(Relaxed), 0);
    // Bytes that workers have handed over count.
    log.log.cut_off(1);
    assert_eq!(warnings.load(Relaxed), 1);
    log.epoch(1);
    assert_eq!(warnings.load(Relaxed), 2);
    assert_eq!(log.read(id, usize::MAX), (11, Ahead::Nothing));
    log.epoch(1);
    assert_eq!(warnings.load(Relaxed), 2);
}

/// A worker counts pending bytes that the reader has already read before the worker warns the
/// reader.
#[test]
fn a_reader_that_is_warned_of_late_is_woken() {
    let mut watched = Watched::new();
    let id = watched.started(u64::MAX);
    let warned = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&warned);
    watched.log.warn_beyond(id, 100, &(Arc::new(move || _ = counter.fetch_add(1, Relaxed)) as Wake));
    watched.epoch(101);
    assert_eq!(watched.read(id, usize::MAX), (101, Ahead::Nothing));
    let (warnings, woken) = (warned.load(Relaxed), watched.wakes.load(Relaxed));
    assert!(watched.log.warn(100).is_empty(), "it is not too far behind");
    assert_eq!(warned.load(Relaxed), warnings);
    watched.log.warn(101).iter().for_each(|wake| wake());
    assert_eq!((warned.load(Relaxed), watched.wakes.load(Relaxed)), (warnings + 1, woken + 1));
}

#[test]
fn the_ends_of_epochs_are_known_while_the_backlog_is_kept() {
    let mut watched = Watched::new();
    watched.started(u64::MAX);
    let _wakes = watched.log.complete(10);
    assert_eq!(watched.log.offset_after(10), Some(watched.log.end), "none is known without a backlog");
    watched.log.join_discarding();
    watched.epoch(0);
    let start = watched.log.end;
    for (bytes, before) in [(5, 20), (0, 30), (7, 40)] {
        watched.epoch(bytes);
        let _wakes = watched.log.complete(before);
    }
    for (before, bytes) in [(0, 5), (20, 5), (21, 5), (30, 5), (31, 12), (40, 12)] {
        assert_eq!(watched.log.offset_after(before), Some(start + bytes), "{before}");
    }
    assert_eq!(watched.log.offset_after(41), None, "its epoch has not ended");
}

#[test]
fn commands_that_change_nothing_do_not_move_the_ends() {
    const PING: &[u8] = b"*1\r\n$4\r\nPING\r\n";
    let mut watched = Watched::new();
    watched.log.join_discarding();
    watched.epoch(0);
    let start = watched.log.end;
    watched.epoch(5);
    for before in [10, 20] {
        watched.log.append(vec![Piece::Control(PING)]).1.settle();
        let _wakes = watched.log.complete(before);
        assert_eq!(watched.log.offset_after(before), Some(start + 5));
    }
    watched.epoch(7);
    let _wakes = watched.log.complete(30);
    assert_eq!(watched.log.offset_after(20), Some(start + 5));
    assert_eq!(watched.log.offset_after(30), Some(start + 12 + 2 * PING.len() as u64));
}

#[test]
fn the_ends_of_many_epochs_need_bounded_memory() {
    let mut watched = Watched::new();
    watched.log.join_discarding();
    watched.epoch(0);
    let start = watched.log.end;
    for number in 1..=10 * ENDS_MAX as u64 {
        watched.epoch(1);
        let _wakes = watched.log.complete(number);
        assert!(watched.log.ends.len() <= ENDS_MAX);
        assert_eq!(watched.log.offset_after(number), Some(start + number), "the last one is exact");
    }
    let last = 10 * ENDS_MAX as u64;
    for before in 1..=last {
        let offset = watched.log.offset_after(before).expect("all epochs have ended");
        assert!(offset >= start + before, "{before}: the stream up to {offset} has its units");
        let late = offset - (start + before);
        assert!(late <= (last - before) / LATENESS_RATIO, "{before}: {late} epochs late");
    }
}

#[test]
fn unmerged_bytes_count_against_the_bound() {
    let mut log = Watched::new();
    let started = log.started(100);
    log.epoch(40);
    let joining = log.join(Start::Now, 60).expect("now");
    log.log.cut_off(60);
    assert_eq!((log.read(started, 0).1, log.read(joining, 0).1), (Ahead::More, Ahead::NotStarted));
    log.log.cut_off(61);
    assert!(matches!(log.read(started, 0).1, Ahead::CutOff(_)));
    assert!(matches!(log.read(joining, 0).1, Ahead::CutOff(_)));
    assert!(!log.log.is_wanted());
}

#[test]
fn a_reader_starts_at_an_older_offset_that_is_still_held() {
    let mut log = Watched::new();
    log.log.set_backlog(2 * CHUNK_BYTES as u64);
    let first = log.started(u64::MAX);
    log.log.join_discarding();
    let start = log.log.position(first).expect("it has started");
    for _ in 0..5 {
        log.epoch(CHUNK_BYTES);
        log.read(first, usize::MAX);
    }
    log.epoch(3);
    log.read(first, usize::MAX);
    let held = log.log.held();
    assert_eq!(held, start + 3 * CHUNK_BYTES as u64..start + 5 * CHUNK_BYTES as u64 + 3);
    for offset in [held.start, held.start + 1, held.end - 3 - CHUNK_BYTES as u64, held.end - 1, held.end] {
        let id = log.join(Start::At(offset), u64::MAX).expect("it is held");
        let (read, ahead) = log.read(id, usize::MAX);
        assert_eq!((read as u64, ahead), (held.end - offset, Ahead::Nothing));
        log.log.leave(id).settle();
    }
    for offset in [0, held.start - 1, held.end + 1] {
        assert_eq!(log.join(Start::At(offset), u64::MAX), Err(NotHeld(held.clone())));
    }
}

#[test]
fn a_log_without_readers_is_empty_and_its_offsets_end() {
    let mut log = Watched::new();
    log.log.set_backlog(u64::MAX);
    let first = log.started(u64::MAX);
    log.epoch(CHUNK_BYTES);
    log.epoch(9);
    let end = log.log.held().end;
    log.log.leave(first).settle();
    assert_eq!((log.log.held(), log.log.chunk_bytes.load(Relaxed)), (end..end, 0));
    // Bytes that are written now are not recorded.
    assert!(log.join(Start::At(end), u64::MAX).is_err());
    log.epoch(30);
    let second = log.started(u64::MAX);
    assert!(log.join(Start::At(end), u64::MAX).is_err());
    assert_eq!(log.log.position(second), Some(end + 1));
}

#[test]
fn a_discarding_reader_alone_keeps_the_backlog() {
    let mut log = Watched::new();
    log.log.set_backlog(CHUNK_BYTES as u64);
    let keeper = log.log.join_discarding();
    log.epoch(5);
    for _ in 0..4 {
        log.epoch(CHUNK_BYTES);
    }
    let held = log.log.held();
    assert_eq!(held.end - held.start, CHUNK_BYTES as u64);
    let late = log.join(Start::At(held.start), u64::MAX).expect("it is held");
    assert_eq!(log.read(late, usize::MAX), (CHUNK_BYTES, Ahead::Nothing));
    // A reader that doesn't discard keeps no backlog.
    log.log.leave(keeper).settle();
    assert_eq!(log.held(), 0);
    log.log.leave(late).settle();
}

#[test]
fn a_reader_is_woken_once_until_it_has_read_everything() {
    let mut log = Watched::new();
    let id = log.started(u64::MAX);
    assert_eq!(log.wakes.load(Relaxed), 1, "it is woken for its start");
    for _ in 0..3 {
        log.epoch(1);
    }
    assert_eq!(log.wakes.load(Relaxed), 2);
    log.epoch(CHUNK_BYTES);
    assert_eq!(log.read(id, 1).1, Ahead::More);
    log.epoch(1);
    assert_eq!(log.wakes.load(Relaxed), 2);
    assert_eq!(log.read(id, usize::MAX).1, Ahead::Nothing);
    log.epoch(1);
    assert_eq!(log.wakes.load(Relaxed), 3);
}
