//! Merges the workers' segments by stamp, and encodes the result as Redis's replication stream.

use crate::effect::batch::encode;
use crate::effect::journal::Segment;

/// A prefix of the merged order, encoded.
#[derive(Debug, Default)]
pub(crate) struct Merged {
    /// `SELECT` where the database changes, `MULTI` and `EXEC` around units of several effects.
    pub(crate) bytes: Vec<u8>,
}

/// Takes the units whose stamps are below `end` out of the segments and encodes them, ascending.
/// `selected` is the database that the stream has selected, as far as is known.
///
/// Equal stamps of two workers are of units that share no shard and no connection: the lower
/// worker's comes first.
pub(crate) fn merge(segments: &mut [Segment], end: u64, selected: &mut Option<u32>) -> Merged {
    let mut order = Vec::new();
    for (worker, segment) in segments.iter().enumerate() {
        let due = segment.units.partition_point(|unit| unit.stamp < end);
        order.extend(segment.units[..due].iter().enumerate().map(|(at, unit)| (unit.stamp, worker, at)));
    }
    order.sort_unstable();
    let mut merged = Merged::default();
    for (_, worker, at) in order {
        append_unit(&mut merged.bytes, &segments[worker], at, selected);
    }
    segments.iter_mut().for_each(|segment| segment.drop_before(end));
    merged
}

fn append_unit(bytes: &mut Vec<u8>, segment: &Segment, at: usize, selected: &mut Option<u32>) {
    let first = at.checked_sub(1).map_or(0, |before| segment.units[before].effects_end);
    let effects = &segment.batch.effects[first..segment.units[at].effects_end];
    let mut start = first.checked_sub(1).map_or(0, |before| segment.batch.effects[before].end);
    let is_several = effects.len() > 1;
    for (number, effect) in effects.iter().enumerate() {
        if *selected != Some(effect.db) {
            *selected = Some(effect.db);
            encode(bytes, 2, [&b"SELECT"[..], effect.db.to_string().as_bytes()].into_iter());
        }
        if is_several && number == 0 {
            encode(bytes, 1, std::iter::once(&b"MULTI"[..]));
        }
        bytes.extend_from_slice(&segment.batch.bytes[start..effect.end]);
        start = effect.end;
    }
    if is_several {
        encode(bytes, 1, std::iter::once(&b"EXEC"[..]));
    }
}

impl Segment {
    fn drop_before(&mut self, end: u64) {
        let due = self.units.partition_point(|unit| unit.stamp < end);
        let Some(last) = due.checked_sub(1).map(|last| self.units[last]) else { return };
        let bytes = self.batch.effects[last.effects_end - 1].end;
        self.units.drain(..due);
        self.batch.effects.drain(..last.effects_end);
        self.batch.bytes.drain(..bytes);
        self.units.iter_mut().for_each(|unit| unit.effects_end -= last.effects_end);
        self.batch.effects.iter_mut().for_each(|effect| effect.end -= bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::effect::batch::Batch;
    use crate::effect::journal::Stream;

    fn batch(effects: &[(u32, &str)]) -> Batch {
        let mut batch = Batch::default();
        effects.iter().for_each(|(db, word)| batch.push(*db, &[word.as_bytes()]));
        batch
    }

    /// The words of a stream.
    fn words(merged: &Merged) -> Vec<String> {
        let text = String::from_utf8(merged.bytes.clone()).expect("words are text");
        text.split("\r\n").filter(|line| !line.is_empty() && !line.starts_with(['*', '$'])).map(str::to_owned).collect()
    }

    #[test]
    fn units_of_several_streams_come_in_the_order_of_their_stamps() {
        let mut streams = [Stream::default(), Stream::default()];
        streams[0].push(1, &batch(&[(0, "a")]));
        streams[0].push(5, &batch(&[(0, "d"), (1, "e")]));
        streams[1].push(3, &batch(&[(1, "b")]));
        streams[1].push(4, &batch(&[(0, "c")]));
        streams[1].push(9, &batch(&[(0, "later")]));
        let mut segments: Vec<Segment> = streams.into_iter().map(Stream::into_segment).collect();
        let mut selected = None;
        let merged = merge(&mut segments, 9, &mut selected);
        let expected =
            ["SELECT", "0", "a", "SELECT", "1", "b", "SELECT", "0", "c", "MULTI", "d", "SELECT", "1", "e", "EXEC"];
        assert_eq!(words(&merged), expected);
        let rest = merge(&mut segments, 10, &mut selected);
        assert_eq!(words(&rest), ["SELECT", "0", "later"]);
        assert!(segments.iter().all(|segment| segment.units.is_empty() && segment.batch.is_empty()));
    }
}
