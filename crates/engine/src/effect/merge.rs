//! Merges the workers' segments by stamp into one stream, in the form that Redis's replicas
//! receive. [`crate::effect`] defines the terms.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;
use std::sync::Arc;

use pantala_base::{BufferPool, PooledBuffer};

use crate::effect::piece::{Piece, is_worth_pooling};
use crate::effect::segment::{PART_BYTES, Part, SPARE_BYTES, Segment, StampedUnit, append_select};

/// A piece of the merged stream with at least this length in bytes takes no further unit.
const PIECE_BYTES: usize = PART_BYTES;

/// A run of units (consecutive units of one worker) with at least this length in bytes is not
/// copied. Instead the merged stream refers to the memory in which the worker recorded the run.
/// Copying a shorter run costs less than a separate piece.
const SHARED_RUN_BYTES_MIN: usize = 4 * 1024;

/// The units of a worker that are to be merged now, because their epoch has ended.
struct Due {
    worker: usize,
    parts: Vec<Part>,
    /// For each part, its buffer if it contains large units: the merged stream will refer to this
    /// buffer instead of copying the units.
    shared: Vec<Option<Arc<PooledBuffer>>>,
    /// The next part, and the next unit within it.
    at: (usize, usize),
}

impl Due {
    fn of(worker: usize, mut parts: Vec<Part>, pool: &Arc<BufferPool>) -> Self {
        let share = |part: &mut Part| {
            let is_shared =
                is_worth_pooling(&part.bytes) && part.bytes.len() / SHARED_RUN_BYTES_MIN >= part.units.len();
            is_shared.then(|| Arc::new(PooledBuffer::new(std::mem::take(&mut part.bytes), pool)))
        };
        let shared = parts.iter_mut().map(share).collect();
        Due { worker, parts, shared, at: (0, 0) }
    }

    /// Returns the stamp of the next unit, if any, and the worker's number.
    fn head(&self) -> Option<(u64, usize)> {
        let (part, unit) = self.at;
        Some((self.parts.get(part)?.units[unit].stamp, self.worker))
    }

    /// Returns the index of a part, and the range of the next units in this part whose stamps
    /// precede `other`. `other` is the head of another worker.
    fn next_run(&mut self, other: Option<(u64, usize)>) -> (usize, Range<usize>) {
        let (part, from) = self.at;
        let units = &self.parts[part].units;
        let is_earlier = |unit: &StampedUnit| other.is_none_or(|other| (unit.stamp, self.worker) < other);
        let to = from + units[from..].iter().take_while(|unit| is_earlier(unit)).count();
        self.at = if to == units.len() { (part + 1, 0) } else { (part, to) };
        (part, from..to)
    }

    /// Returns whether the merged stream needs no `SELECT` in or before these units, provided that
    /// the stream has selected `db`.
    fn is_within(&self, db: Option<u32>) -> bool {
        let mut units = self.parts.iter().flat_map(|part| &part.units);
        units.all(|unit| Some(unit.first_db) == db && Some(unit.last_db) == db)
    }
}

/// Removes the units with stamps below `end` from the segments. Returns them in ascending order, in
/// pieces of whole units. `selected` is the database that the stream has selected, if known. Memory
/// is taken from `pool`.
pub(crate) fn merge(
    segments: &mut [Segment],
    end: u64,
    selected: &mut Option<u32>,
    pool: &Arc<BufferPool>,
) -> Vec<Piece> {
    let mut due: Vec<Due> = Vec::new();
    for (worker, segment) in segments.iter_mut().enumerate() {
        let parts = segment.take_before(end, pool);
        if !parts.is_empty() {
            due.push(Due::of(worker, parts, pool));
        }
    }
    if let [only] = due.as_mut_slice()
        && only.is_within(*selected)
    {
        return take_whole(only, &mut segments[only.worker], pool);
    }
    let copied = due.iter().flat_map(|due| &due.parts).map(|part| part.bytes.len()).sum();
    let mut merged = Pieces::new(copied, selected, pool);
    let mut heads: BinaryHeap<_> =
        due.iter().enumerate().filter_map(|(index, due)| Some(Reverse((due.head()?, index)))).collect();
    while let Some(Reverse((_, index))) = heads.pop() {
        let other = heads.peek().map(|Reverse((head, _))| *head);
        // Appends the units of this worker that precede the next unit of any other worker.
        let (part, units) = due[index].next_run(other);
        merged.append(&due[index].parts[part], units, due[index].shared[part].as_ref());
        heads.extend(due[index].head().map(|head| Reverse((head, index))));
    }
    let pieces = merged.finish();
    for Due { worker, parts, shared, .. } in due {
        for (mut part, shared) in parts.into_iter().zip(shared) {
            let segment = &mut segments[worker];
            if let Some(buffer) = shared
                && segment.parts.is_empty()
            {
                part.bytes = pool.take(buffer.len());
            }
            segment.keep(part, pool);
        }
    }
    pieces
}

/// Takes the bytes of a worker unchanged, because no other worker has units and nothing must be
/// inserted. This is the case with a single worker or a single writer.
fn take_whole(due: &mut Due, segment: &mut Segment, pool: &Arc<BufferPool>) -> Vec<Piece> {
    let mut pieces = Vec::with_capacity(due.parts.len());
    for (mut part, shared) in due.parts.drain(..).zip(due.shared.drain(..)) {
        let piece = match shared {
            Some(buffer) => {
                let all = 0..buffer.len();
                Piece::Part(buffer, all)
            }
            None => Piece::Own(std::mem::take(&mut part.bytes)),
        };
        if segment.parts.is_empty() {
            // The next epoch is likely to need about as much capacity.
            part.bytes = pool.take(piece.len());
        }
        segment.keep(part, pool);
        pieces.push(piece);
    }
    pieces
}

/// The merged stream while it is built.
struct Pieces<'s> {
    done: Vec<Piece>,
    current: Vec<u8>,
    /// Bytes of units that are still to be copied.
    left_bytes: usize,
    selected: &'s mut Option<u32>,
    pool: &'s BufferPool,
}

impl<'s> Pieces<'s> {
    fn new(left_bytes: usize, selected: &'s mut Option<u32>, pool: &'s BufferPool) -> Self {
        let mut pieces = Pieces { done: Vec::new(), current: Vec::new(), left_bytes, selected, pool };
        pieces.reserve();
        pieces
    }

    fn reserve(&mut self) {
        // A stream with few bytes does not need all of the spare capacity.
        let spare_bytes = SPARE_BYTES.min(self.left_bytes);
        self.current = self.pool.take(self.left_bytes.min(PIECE_BYTES) + spare_bytes);
    }

    /// Appends a range of units of a part. Consecutive units of one database are appended together.
    /// `buffer` contains the part's bytes if they are shared.
    fn append(&mut self, part: &Part, units: Range<usize>, buffer: Option<&Arc<PooledBuffer>>) {
        let mut start = part.start_of(units.start);
        let mut appended = start;
        for unit in &part.units[units] {
            if *self.selected != Some(unit.first_db) {
                self.add(part, appended..start, buffer);
                appended = start;
                append_select(&mut self.current, unit.first_db);
            }
            *self.selected = Some(unit.last_db);
            start = unit.end;
            if start - appended + self.current.len() >= PIECE_BYTES {
                self.add(part, appended..start, buffer);
                appended = start;
                self.end_piece();
            }
        }
        self.add(part, appended..start, buffer);
    }

    fn add(&mut self, part: &Part, range: Range<usize>, buffer: Option<&Arc<PooledBuffer>>) {
        match buffer {
            Some(buffer) if range.len() >= SHARED_RUN_BYTES_MIN => {
                self.end_piece();
                self.done.push(Piece::Part(Arc::clone(buffer), range));
            }
            // Shared bytes are not counted in `left_bytes`.
            Some(buffer) => self.current.extend_from_slice(&buffer[range]),
            None => {
                self.left_bytes -= range.len();
                self.current.extend_from_slice(&part.bytes[range]);
            }
        }
    }

    fn end_piece(&mut self) {
        if !self.current.is_empty() {
            let piece = std::mem::take(&mut self.current);
            self.done.push(Piece::Own(piece));
            self.reserve();
        }
    }

    fn finish(mut self) -> Vec<Piece> {
        if self.current.is_empty() {
            self.pool.give(self.current);
        } else {
            self.done.push(Piece::Own(self.current));
        }
        self.done
    }
}

#[cfg(test)]
mod tests {
    use pantala_base::Random;

    use super::*;
    use crate::effect::batch::Batch;
    use crate::effect::segment::Stream;

    fn batch(effects: &[(u32, &str)]) -> Batch {
        let mut batch = Batch::default();
        effects.iter().for_each(|(db, word)| batch.push(*db, &[word.as_bytes()]));
        batch
    }

    fn merge(segments: &mut [Segment], end: u64, selected: &mut Option<u32>) -> Vec<Piece> {
        super::merge(segments, end, selected, &Arc::default())
    }

    /// Returns the words of a stream.
    fn words(merged: &[Piece]) -> Vec<String> {
        let bytes = merged.iter().flat_map(|piece| piece.to_vec()).collect();
        let text = String::from_utf8(bytes).expect("words are text");
        text.split("\r\n").filter(|line| !line.is_empty() && !line.starts_with(['*', '$'])).map(str::to_owned).collect()
    }

    #[test]
    fn units_of_several_streams_are_ordered_by_stamp() {
        let mut streams = [Stream::default(), Stream::default()];
        streams[0].push(1, &batch(&[(0, "a")]));
        streams[0].push(5, &batch(&[(0, "d"), (1, "e")]));
        streams[1].push(3, &batch(&[(1, "b")]));
        streams[1].push(4, &batch(&[(0, "c")]));
        streams[1].push(9, &batch(&[(0, "later")]));
        let mut segments: Vec<Segment> = streams.into_iter().map(|stream| stream.segment).collect();
        let mut selected = None;
        let merged = merge(&mut segments, 9, &mut selected);
        let expected =
            ["SELECT", "0", "a", "SELECT", "1", "b", "SELECT", "0", "c", "MULTI", "d", "SELECT", "1", "e", "EXEC"];
        assert_eq!(words(&merged), expected);
        let rest = merge(&mut segments, 10, &mut selected);
        assert_eq!(words(&rest), ["SELECT", "0", "later"]);
        assert!(segments.iter().all(|segment| segment.is_empty() && segment.len_bytes() == 0));
        assert!(merge(&mut segments, 11, &mut selected).is_empty());
    }

    #[test]
    fn a_single_stream_is_taken_unchanged() {
        for (db, selected, expected) in [(0, 0, "a b c"), (1, 0, "SELECT 1 a b c")] {
            let mut stream = Stream::default();
            for (stamp, word) in (1..).zip(["a", "b", "c", "later"]) {
                stream.push(stamp, &batch(&[(db, word)]));
            }
            let mut segments = [Segment::default(), stream.segment];
            let mut selected = Some(selected);
            assert_eq!(words(&merge(&mut segments, 4, &mut selected)).join(" "), expected);
            assert_eq!(words(&merge(&mut segments, 9, &mut selected)), ["later"]);
            assert!(merge(&mut segments, 9, &mut selected).is_empty());
        }
    }

    #[test]
    fn equal_stamps_are_ordered_by_worker() {
        let mut streams = [Stream::default(), Stream::default(), Stream::default()];
        for (stream, word) in streams.iter_mut().zip(["a", "b", "c"]) {
            for stamp in 1..4 {
                stream.push(stamp, &batch(&[(0, &format!("{word}{stamp}"))]));
            }
        }
        let mut segments: Vec<Segment> = streams.into_iter().map(|stream| stream.segment).collect();
        let merged = merge(&mut segments, 4, &mut Some(0));
        assert_eq!(words(&merged), ["a1", "b1", "c1", "a2", "b2", "c2", "a3", "b3", "c3"]);
    }

    #[test]
    fn deletions_are_units_of_their_own() {
        let mut stream = Stream::default();
        stream.push_each(7, &batch(&[(0, "x"), (2, "y")]));
        assert_eq!(stream.clock(), 8);
        let merged = merge(&mut [stream.segment], 9, &mut Some(0));
        assert_eq!(words(&merged), ["x", "SELECT", "2", "y"]);
    }

    #[test]
    fn pieces_end_with_units() {
        let mut stream = Stream::default();
        let word = "w".repeat(PIECE_BYTES / 3);
        for stamp in 1..=7 {
            stream.push(stamp, &batch(&[(0, &word)]));
        }
        let merged = merge(&mut [stream.segment], 8, &mut Some(0));
        let ends: Vec<usize> = merged.iter().map(|piece| words(std::slice::from_ref(piece)).len()).collect();
        assert_eq!(ends, [1, 3, 3], "the first part has no capacity for a second unit");
    }

    /// Large units of two workers are handed over in the buffers in which they were recorded. Short
    /// units, and units that are not due, are copied.
    #[test]
    fn large_units_are_handed_over_without_a_copy() {
        let word = |letter: &str, stamp: u64| letter.repeat(10_000) + &stamp.to_string();
        let mut streams = [Stream::default(), Stream::default()];
        for stamp in 1..=40 {
            let letter = ["a", "b"][stamp as usize % 2];
            streams[stamp as usize % 2].push(stamp, &batch(&[(0, &word(letter, stamp))]));
        }
        streams[0].push(41, &batch(&[(1, "short")]));
        streams[1].push(90, &batch(&[(1, &word("later", 90))]));
        let mut segments: Vec<Segment> = streams.into_iter().map(|stream| stream.segment).collect();
        let parts = segments.iter().flat_map(|segment| &segment.parts);
        let memory: Vec<Range<*const u8>> = parts.map(|part| part.bytes.as_ptr_range()).collect();
        let (mut selected, pool) = (Some(0), Arc::default());
        let merged = super::merge(&mut segments, 50, &mut selected, &pool);
        let mut expected: Vec<String> = (1..=40).map(|stamp| word(["a", "b"][stamp as usize % 2], stamp)).collect();
        expected.extend(["SELECT", "1", "short"].map(str::to_owned));
        assert!(words(&merged) == expected, "{:?}", words(&merged).iter().map(String::len).collect::<Vec<_>>());
        let is_in_place = |piece: &&Piece| memory.iter().any(|memory| memory.contains(&piece.as_ptr()));
        assert_eq!(merged.iter().filter(is_in_place).count(), 40);
        let rest = super::merge(&mut segments, 91, &mut selected, &pool);
        assert!(words(&rest) == [word("later", 90)]);
        let spare_bytes = pool.spare_bytes();
        drop((merged, rest));
        assert!(pool.spare_bytes() >= spare_bytes + 400_000, "{spare_bytes}, then {}", pool.spare_bytes());
    }

    /// A worker without new units hands over nothing, even while an earlier unit of the worker
    /// waits.
    #[test]
    fn an_empty_segment_hides_no_later_unit() {
        let (mut stream, mut segments, pool) = (Stream::default(), [Segment::default()], BufferPool::default());
        let large = "l".repeat(PIECE_BYTES + 1);
        stream.push(1, &batch(&[(0, "first")]));
        segments[0].append(&mut stream.segment, &pool);
        assert_eq!(words(&merge(&mut segments, 2, &mut Some(0))), ["first"]);
        stream.push(10, &batch(&[(0, &large)]));
        segments[0].append(&mut stream.segment, &pool);
        assert!(merge(&mut segments, 10, &mut Some(0)).is_empty());
        segments[0].append(&mut stream.segment, &pool);
        stream.push(11, &batch(&[(0, &large)]));
        segments[0].append(&mut stream.segment, &pool);
        assert!(words(&merge(&mut segments, 12, &mut Some(0))) == [large.as_str(), &large]);
    }

    /// Streams of small and large units, merged up to random stamps, equal the units sorted by
    /// stamp.
    #[test]
    fn random_streams_are_merged_in_order() {
        let seed = std::env::var("PANTALA_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
        println!("seed {seed}");
        let mut random = Random::from_seed(seed);
        for _ in 0..40 {
            let workers = 1 + random.below(4) as usize;
            let large = [16, 9_000, 40_000, 300_000][random.below(4) as usize];
            let pool = Arc::default();
            let mut streams: Vec<Stream> = (0..workers).map(|_| Stream::new(&pool)).collect();
            let mut segments: Vec<Segment> = (0..workers).map(|_| Segment::default()).collect();
            let (mut selected, mut expected_db, mut clock) = (Some(0), 0, 0);
            for _ in 0..5 {
                let mut units = Vec::new();
                for _ in 0..random.below(60) {
                    let worker = random.below(workers as u64) as usize;
                    let (len, db) = (1 + random.below(large) as usize, u32::from(random.below(20) == 0));
                    clock += 1 + random.below(2);
                    let word = format!("{clock}-{}", "x".repeat(len));
                    streams[worker].push(clock, &batch(&[(db, &word)]));
                    units.push((db, word));
                    if random.below(8) == 0 {
                        segments[worker].append(&mut streams[worker].segment, &pool);
                    }
                }
                let hand_over =
                    |(segment, stream): (&mut Segment, &mut Stream)| segment.append(&mut stream.segment, &pool);
                segments.iter_mut().zip(&mut streams).for_each(hand_over);
                let mut expected = Vec::new();
                for (db, word) in units {
                    if std::mem::replace(&mut expected_db, db) != db {
                        expected.extend(["SELECT".to_owned(), db.to_string()]);
                    }
                    expected.push(word);
                }
                let mut merged = Vec::new();
                let first = clock.saturating_sub(random.below(50));
                for end in [first, clock + 1] {
                    merged.extend(super::merge(&mut segments, end, &mut selected, &pool));
                }
                assert!(words(&merged) == expected);
                assert!(segments.iter().all(|segment| segment.is_empty() && segment.len_bytes() == 0));
            }
        }
    }
}
