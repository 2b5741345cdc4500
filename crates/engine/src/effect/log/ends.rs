//! The offsets at which former epochs end. [`crate::effect`] defines epoch, unit and stamp.

use std::collections::VecDeque;

/// Maximum number of epochs whose ends are known ([`Ends::offset_after`]).
pub(super) const ENDS_MAX: usize = 1024;

/// Limits which ends may be forgotten. In place of a forgotten end, [`Ends::offset_after`] uses the
/// next known end. The distance (in stamps) from the forgotten end to the next known one is at most
/// the distance from the latter to the newest end, divided by this ratio. So the older the ends,
/// the fewer of them are kept, and [`ENDS_MAX`] ends suffice for all epochs of several years.
pub(super) const LATENESS_RATIO: u64 = 16;

/// The end of an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct End {
    /// All units with stamps below `before` precede `offset` in the log.
    before: u64,
    offset: u64,
}

/// The ends of former epochs, in order. If there are more than [`ENDS_MAX`], some are forgotten.
#[derive(Default)]
pub(super) struct Ends(VecDeque<End>);

impl Ends {
    /// Returns the number of known ends.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// Records the end of an epoch. All units with stamps below `before` precede `offset` in the
    /// log.
    pub(super) fn note(&mut self, before: u64, offset: u64) {
        match self.0.back_mut() {
            // Nothing was written in this epoch, so the last end stands for it too.
            Some(last) if last.offset == offset => last.before = before,
            _ => self.0.push_back(End { before, offset }),
        }
        if self.0.len() > ENDS_MAX {
            self.thin();
        }
    }

    /// Forgets ends that are close to the next end, as [`LATENESS_RATIO`] allows.
    fn thin(&mut self) {
        let newest = self.0.back().map_or(0, |end| end.before);
        let following: Vec<u64> = self.0.iter().skip(1).map(|end| end.before).collect();
        let (mut following, mut kept) = (following.into_iter(), 0);
        self.0.retain(|end| {
            // If this end is forgotten, the next end is returned in place of every end after the
            // last one that was kept.
            let is_spare = following.next().is_some_and(|next| next - kept <= (newest - next) / LATENESS_RATIO);
            kept = if is_spare { kept } else { end.before };
            !is_spare
        });
        if self.0.len() > ENDS_MAX {
            self.0.pop_front();
        }
    }

    /// Returns the offset of the first known end that all units with stamps below `before` precede.
    /// Returns `None` if there is no such end.
    pub(super) fn offset_after(&self, before: u64) -> Option<u64> {
        self.0.get(self.0.partition_point(|end| end.before < before)).map(|end| end.offset)
    }
}
