//! Trimming at the front, and deleting anywhere.
//!
//! Deleted entries are marked, and go with their node; as in Redis, whose nodes' limits they go on counting towards.

use super::id::StreamId;
use super::node::EntryPlace;
use super::ordered::Place;
use super::reading::place_of;
use super::{Stream, node::Node};

/// What a stream is trimmed to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trim {
    /// `MAXLEN`: so many entries.
    Length(u64),
    /// `MINID`: entries of this id or later.
    Id(StreamId),
}

impl Stream {
    /// Removes entries from the front and gives how many. With `approximate` only whole nodes go, and no more than `limit` entries
    /// (0: no limit).
    pub fn trim(&mut self, to: Trim, approximate: bool, limit: u64) -> u64 {
        let mut deleted = 0;
        while let Some(place) = self.nodes.first_place() {
            if matches!(to, Trim::Length(most) if self.figures.length <= most) {
                break;
            }
            let node = self.nodes.get(place);
            let live = u64::from(node.live);
            if limit > 0 && deleted + live > limit {
                break;
            }
            let goes_whole = match to {
                Trim::Length(most) => self.figures.length - live >= most,
                Trim::Id(least) => node.last < least,
            };
            if goes_whole {
                self.remove_node(place);
                self.figures.length -= live;
                deleted += live;
                continue;
            }
            if !approximate {
                deleted += self.trim_node(place, to);
            }
            break;
        }
        if self.figures.length == 0 {
            self.figures.first_id = StreamId::MIN;
        } else if deleted > 0 {
            self.find_first_id();
        }
        deleted
    }

    /// Returns the threshold of an exact trim that leaves the entries that are there: their number,
    /// or the first id, that of a deleted entry included; the last possible id where there is none.
    pub fn threshold_left(&self, to: Trim) -> Trim {
        match to {
            Trim::Length(_) => Trim::Length(self.figures.length),
            Trim::Id(_) => {
                let first = self.nodes.iter().find_map(|node| node.entries().next());
                Trim::Id(first.map_or(StreamId::MAX, |entry| entry.id))
            }
        }
    }

    /// Removes entries from the front of a node.
    fn trim_node(&mut self, place: Place, to: Trim) -> u64 {
        let node = self.nodes.get_mut(place);
        let (excess, least) = match to {
            Trim::Length(most) => (self.figures.length - most, StreamId::MAX),
            Trim::Id(least) => (u64::MAX, least),
        };
        let doomed: Vec<EntryPlace> = node
            .entries()
            .take_while(|entry| entry.id < least)
            .filter(|entry| !entry.deleted)
            .take(usize::try_from(excess).unwrap_or(usize::MAX))
            .map(|entry| entry.place())
            .collect();
        for &place in &doomed {
            node.delete(place);
        }
        self.figures.length -= doomed.len() as u64;
        doomed.len() as u64
    }

    /// Deletes entries and gives how many there were.
    pub fn delete(&mut self, ids: &[StreamId]) -> u64 {
        let mut deleted = 0;
        let mut first_went = false;
        for &id in ids {
            if self.delete_one(id) {
                first_went |= id == self.figures.first_id;
                self.figures.max_deleted_id = self.figures.max_deleted_id.max(id);
                deleted += 1;
            }
        }
        if self.figures.length == 0 {
            if deleted > 0 {
                self.figures.first_id = StreamId::MIN;
            }
        } else if first_went {
            self.find_first_id();
        }
        deleted
    }

    fn delete_one(&mut self, id: StreamId) -> bool {
        let Some((place, entry)) = place_of(&self.nodes, id) else { return false };
        let entry = entry.place();
        let node = self.nodes.get_mut(place);
        if node.live == 1 {
            self.remove_node(place);
        } else {
            node.delete(entry);
        }
        self.figures.length -= 1;
        true
    }

    pub(super) fn remove_node(&mut self, place: Place) {
        let node: Node = self.nodes.remove(place);
        self.node_bytes -= node.allocated_bytes();
    }

    fn find_first_id(&mut self) {
        let mut first = StreamId::MIN;
        self.range(StreamId::MIN, StreamId::MAX, 1, |id, _| first = id);
        self.figures.first_id = first;
    }
}
