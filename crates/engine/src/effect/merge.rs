//! Merges the workers' segments by stamp into one stream, in the form that Redis's replicas
//! receive.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::effect::segment::{Segment, StampedUnit, append_select};

/// Length in bytes from which a piece of the merged stream takes no further unit.
pub(crate) const PIECE_BYTES: usize = 256 * 1024;

/// Spare capacity of a piece, bytes: for the rest of its last unit, and for `SELECT`s.
const SPARE_BYTES: usize = 4 * 1024;

/// Removes the units with stamps below `end` from the segments. Returns them in ascending order, in
/// pieces of whole units. `selected` is the database that the stream has selected, if known.
///
/// Units with equal stamps share neither a shard nor a connection, so their order does not matter.
/// The unit of the worker with the lower number comes first.
pub(crate) fn merge(segments: &mut [Segment], end: u64, selected: &mut Option<u32>) -> Vec<Vec<u8>> {
    if let Some(whole) = take_whole(segments, end, *selected) {
        return vec![whole];
    }
    let due: Vec<(usize, usize)> = segments.iter().map(|segment| segment.due_before(end)).collect();
    let first = |(worker, segment): (usize, &Segment)| Some(Reverse((segment.units.first()?.stamp, worker)));
    let mut heads: BinaryHeap<_> = segments.iter().enumerate().filter_map(first).collect();
    heads.retain(|Reverse((stamp, _))| *stamp < end);
    let mut merged = Pieces::new(due.iter().map(|(_, bytes)| bytes).sum(), selected);
    let mut at = vec![0; segments.len()];
    while let Some(Reverse((_, worker))) = heads.pop() {
        let (segment, from, limit) = (&segments[worker], at[worker], due[worker].0);
        // The units that precede the next unit of another worker.
        let to = match heads.peek() {
            None => limit,
            Some(Reverse(other)) => {
                let is_earlier = |unit: &StampedUnit| (unit.stamp, worker) < *other;
                from + segment.units[from..limit].iter().take_while(|unit| is_earlier(unit)).count()
            }
        };
        merged.append(segment, from, to);
        at[worker] = to;
        if to < limit {
            heads.push(Reverse((segment.units[to].stamp, worker)));
        }
    }
    let pieces = merged.finish();
    segments.iter_mut().zip(due).for_each(|(segment, (units, _))| segment.drop_first(units));
    pieces
}

/// Takes all bytes of a segment unchanged, if no other segment has units and nothing must be
/// inserted. This is the case with a single worker or a single writer.
fn take_whole(segments: &mut [Segment], end: u64, selected: Option<u32>) -> Option<Vec<u8>> {
    let mut filled = segments.iter_mut().filter(|segment| !segment.is_empty());
    let (Some(segment), None) = (filled.next(), filled.next()) else { return None };
    let is_plain = segment.units.last().is_some_and(|last| last.stamp < end)
        && segment.bytes.len() <= PIECE_BYTES
        && segment.units.iter().all(|unit| Some(unit.first_db) == selected && Some(unit.last_db) == selected);
    is_plain.then(|| {
        // The next epoch is likely to need about as much capacity.
        let bytes = std::mem::take(&mut segment.bytes);
        segment.bytes.reserve(bytes.len());
        segment.clear();
        bytes
    })
}

/// The merged stream while it is built.
struct Pieces<'s> {
    done: Vec<Vec<u8>>,
    current: Vec<u8>,
    /// Bytes of units that are still to be appended.
    left_bytes: usize,
    selected: &'s mut Option<u32>,
}

impl<'s> Pieces<'s> {
    fn new(left_bytes: usize, selected: &'s mut Option<u32>) -> Self {
        let mut pieces = Pieces { done: Vec::new(), current: Vec::new(), left_bytes, selected };
        pieces.reserve();
        pieces
    }

    fn reserve(&mut self) {
        // A stream with few bytes does not need all of the spare capacity.
        let spare_bytes = SPARE_BYTES.min(self.left_bytes);
        self.current = Vec::with_capacity(self.left_bytes.min(PIECE_BYTES) + spare_bytes);
    }

    /// Appends a range of units of a segment. Consecutive units of one database are copied
    /// together.
    fn append(&mut self, segment: &Segment, from: usize, to: usize) {
        let mut start = segment.start_of(from);
        let mut copied = start;
        for unit in &segment.units[from..to] {
            if *self.selected != Some(unit.first_db) {
                self.copy(&segment.bytes[copied..start]);
                copied = start;
                append_select(&mut self.current, unit.first_db);
            }
            *self.selected = Some(unit.last_db);
            start = unit.end;
            if self.current.len() + start - copied >= PIECE_BYTES {
                self.copy(&segment.bytes[copied..start]);
                copied = start;
                let piece = std::mem::take(&mut self.current);
                self.done.push(piece);
                self.reserve();
            }
        }
        self.copy(&segment.bytes[copied..start]);
    }

    fn copy(&mut self, bytes: &[u8]) {
        self.left_bytes -= bytes.len();
        self.current.extend_from_slice(bytes);
    }

    fn finish(mut self) -> Vec<Vec<u8>> {
        if !self.current.is_empty() {
            self.done.push(self.current);
        }
        self.done
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::effect::batch::Batch;
    use crate::effect::segment::Stream;

    fn batch(effects: &[(u32, &str)]) -> Batch {
        let mut batch = Batch::default();
        effects.iter().for_each(|(db, word)| batch.push(*db, &[word.as_bytes()]));
        batch
    }

    /// Returns the words of a stream.
    fn words(merged: &[Vec<u8>]) -> Vec<String> {
        let text = String::from_utf8(merged.concat()).expect("words are text");
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
        assert!(segments.iter().all(|segment| segment.is_empty() && segment.bytes.is_empty()));
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
        assert_eq!(ends, [3, 3, 1]);
    }
}
