//! The replication history of a dataset: the ID of its stream. If the stream continues a former
//! one, the history also contains the former ID and the offset at which the former stream ended.

use std::ops::Range;

use crate::ReplId;

/// The history of this server's dataset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct History {
    id: ReplId,
    /// The former ID, and the highest offset ([`Registration::offset`]) that a `PSYNC` with this ID
    /// may ask for.
    second: Option<(ReplId, u64)>,
}

/// The arguments of a `PSYNC`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registration<'a> {
    /// The ID, or `?`.
    pub id: &'a [u8],
    /// The number of the next byte that the replica needs, counted from 1.
    pub offset: i64,
}

/// The reason why a replica needs a full sync.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotContinued {
    /// The replica asked for a full sync (`?`).
    Wanted,
    /// The replica's history is a different one.
    OtherHistory,
    /// The replica has sent the former ID and an offset after the end of that history. The number
    /// is the highest offset that a `PSYNC` with the former ID may ask for.
    BeyondSecondId(u64),
    /// The backlog doesn't hold the requested offset. The field has the first and the last offset
    /// that a `PSYNC` may ask for, both inclusive, or `0..0` if there is no backlog.
    NotHeld(Range<u64>),
}

impl History {
    /// Returns a history that continues no former one.
    #[must_use]
    pub fn new(id: ReplId) -> Self {
        History { id, second: None }
    }

    /// Returns the current ID.
    #[must_use]
    pub fn id(&self) -> ReplId {
        self.id
    }

    /// Returns the former ID, and the highest offset ([`Registration::offset`]) that a `PSYNC` with
    /// this ID may ask for.
    #[must_use]
    pub fn second(&self) -> Option<(ReplId, u64)> {
        self.second
    }

    /// Starts another history, which replicas of the current one can't continue. Returns whether
    /// the ID has changed.
    pub fn change(&mut self, id: ReplId) -> bool {
        let former = std::mem::replace(self, History::new(id));
        former.id != id
    }

    /// Continues the history of a primary. `id` is the primary's current ID. The primary has
    /// accepted a `PSYNC` at `offset` with the ID `asked`, which is the current or the former ID of
    /// this history. Returns whether the current ID has changed.
    pub fn follow(&mut self, asked: ReplId, id: ReplId, offset: u64) -> bool {
        let current = self.id;
        if asked != current {
            // `asked` is the former ID. Since the primary has accepted it, the dataset has not
            // changed after the former history ended.
            *self = History::new(asked);
        }
        if id != self.id {
            self.continue_as(id, offset);
        }
        self.id != current
    }

    /// Continues the current history under another ID, because a replica was promoted. The
    /// current history ends at `offset`.
    pub fn continue_as(&mut self, id: ReplId, offset: u64) {
        self.second = Some((self.id, offset + 1));
        self.id = id;
    }

    /// Returns how many bytes of the stream a replica has, if the replica may continue the stream.
    /// It may if this number is in `held`, both ends inclusive: the backlog then still has all
    /// later bytes. `held` is `None` if there is no backlog.
    ///
    /// # Errors
    /// The reason why the replica needs a full sync.
    pub fn continues(&self, asked: Registration<'_>, held: Option<Range<u64>>) -> Result<u64, NotContinued> {
        if asked.id.first() == Some(&b'?') {
            return Err(NotContinued::Wanted);
        }
        let id = ReplId::parse(asked.id).ok_or(NotContinued::OtherHistory)?;
        if id != self.id {
            match self.second {
                Some((second, end)) if second == id => {
                    if asked.offset > end as i64 {
                        return Err(NotContinued::BeyondSecondId(end));
                    }
                }
                _ => return Err(NotContinued::OtherHistory),
            }
        }
        let Some(held) = held else { return Err(NotContinued::NotHeld(0..0)) };
        let has = asked.offset.checked_sub(1).and_then(|has| u64::try_from(has).ok());
        match has {
            Some(has) if held.start <= has && has <= held.end => Ok(has),
            _ => Err(NotContinued::NotHeld(held.start + 1..held.end + 1)),
        }
    }
}

#[cfg(test)]
mod tests {
    use pantala_base::Random;

    use super::*;

    fn id(seed: u64) -> ReplId {
        ReplId::random(&mut Random::from_seed(seed))
    }

    fn asks(history: &History, id: ReplId, offset: i64) -> Result<u64, NotContinued> {
        history.continues(Registration { id: id.as_str().as_bytes(), offset }, Some(10..20))
    }

    #[test]
    fn a_replica_continues_where_the_stream_is_held() {
        let history = History::new(id(1));
        assert_eq!(asks(&history, id(1), 11), Ok(10));
        assert_eq!(asks(&history, id(1), 21), Ok(20));
        for offset in [10, 22, 0, -1, i64::MIN, i64::MAX] {
            assert_eq!(asks(&history, id(1), offset), Err(NotContinued::NotHeld(11..21)), "{offset}");
        }
        assert_eq!(asks(&history, id(2), 11), Err(NotContinued::OtherHistory));
        let asked = Registration { id: b"?", offset: -1 };
        assert_eq!(history.continues(asked, Some(0..20)), Err(NotContinued::Wanted));
        let own = id(1);
        let asked = Registration { id: own.as_str().as_bytes(), offset: 1 };
        assert_eq!(history.continues(asked, None), Err(NotContinued::NotHeld(0..0)));
    }

    #[test]
    fn a_former_id_is_valid_up_to_its_end() {
        let mut history = History::new(id(1));
        history.continue_as(id(2), 15);
        assert_eq!(history.second(), Some((id(1), 16)));
        assert_eq!(asks(&history, id(1), 16), Ok(15));
        assert_eq!(asks(&history, id(1), 17), Err(NotContinued::BeyondSecondId(16)));
        assert_eq!(asks(&history, id(2), 17), Ok(16));
        assert!(history.change(id(3)));
        assert_eq!(asks(&history, id(1), 16), Err(NotContinued::OtherHistory));
        assert_eq!(asks(&history, id(2), 16), Err(NotContinued::OtherHistory));
    }

    #[test]
    fn a_followed_primary_gives_the_history_its_name() {
        let mut history = History::new(id(1));
        assert!(!history.follow(id(1), id(1), 15));
        assert_eq!(history, History::new(id(1)));
        assert!(history.follow(id(1), id(2), 15));
        assert_eq!((history.id(), history.second()), (id(2), Some((id(1), 16))));
        // A promoted server becomes a replica of its former primary again.
        history.continue_as(id(3), 18);
        assert!(history.follow(id(2), id(2), 18));
        assert_eq!(history, History::new(id(2)));
        history.continue_as(id(3), 18);
        assert!(history.follow(id(2), id(4), 18));
        assert_eq!((history.id(), history.second()), (id(4), Some((id(2), 19))));
    }
}
