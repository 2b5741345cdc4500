//! Trims a stream at the front, and deletes entries anywhere.
//!
//! A deleted entry is only marked. The memory of the entry is freed with the node. As in Redis, a
//! deleted entry still counts towards the limits of its node.

use super::id::StreamId;
use super::node::EntryPlace;
use super::ordered::Place;
use super::reading::place_of;
use super::{Stream, node::Node};

/// The target of a trim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trim {
    /// `MAXLEN`: keep this number of entries.
    Length(u64),
    /// `MINID`: keep entries with at least this id.
    Id(StreamId),
}

impl Stream {
    /// Removes entries from the front. Returns the number of removed entries. With `approximate`,
    /// removes only whole nodes. Stops before a node whose removal would raise the number of
    /// removed entries above `limit`. A `limit` of 0 means no limit.
    pub fn trim(&mut self, to: Trim, approximate: bool, limit: u64) -> u64 {
        let mut deleted = 0;
        while let Some(place) = self.nodes.first_place() {
            if matches!(to, Trim::Length(most) if self.counters.length <= most) {
                break;
            }
            let node = self.nodes.get(place);
            let live = u64::from(node.live);
            if limit > 0 && deleted + live > limit {
                break;
            }
            let is_whole = match to {
                Trim::Length(most) => self.counters.length - live >= most,
                Trim::Id(least) => node.last < least,
            };
            if is_whole {
                self.remove_node(place);
                self.counters.length -= live;
                deleted += live;
                continue;
            }
            if !approximate {
                deleted += self.trim_node(place, to);
            }
            break;
        }
        if self.counters.length == 0 {
            self.counters.first_id = StreamId::MIN;
        } else if deleted > 0 {
            self.find_first_id();
        }
        deleted
    }

    /// Returns the threshold of an exact trim that keeps exactly the current entries. For `MAXLEN`,
    /// this is the number of entries. For `MINID`, this is the id of the first entry, deleted or
    /// not, or the largest id if there is no entry.
    pub fn remaining_threshold(&self, to: Trim) -> Trim {
        match to {
            Trim::Length(_) => Trim::Length(self.counters.length),
            Trim::Id(_) => {
                let first = self.nodes.iter().find_map(|node| node.entries().next());
                Trim::Id(first.map_or(StreamId::MAX, |entry| entry.id))
            }
        }
    }

    /// Removes entries from the front of a node.
    fn trim_node(&mut self, place: Place, to: Trim) -> u64 {
        self.keep(place);
        let node = self.nodes.get_mut(place);
        let (excess, least) = match to {
            Trim::Length(most) => (self.counters.length - most, StreamId::MAX),
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
        self.counters.length -= doomed.len() as u64;
        doomed.len() as u64
    }

    /// Deletes entries. Returns how many of them existed.
    pub fn delete(&mut self, ids: &[StreamId]) -> u64 {
        let mut deleted = 0;
        let mut first_deleted = false;
        for &id in ids {
            if self.delete_one(id) {
                first_deleted |= id == self.counters.first_id;
                self.counters.max_deleted_id = self.counters.max_deleted_id.max(id);
                deleted += 1;
            }
        }
        if self.counters.length == 0 {
            if deleted > 0 {
                self.counters.first_id = StreamId::MIN;
            }
        } else if first_deleted {
            self.find_first_id();
        }
        deleted
    }

    fn delete_one(&mut self, id: StreamId) -> bool {
        let Some((place, entry)) = place_of(&self.nodes, id) else { return false };
        let entry = entry.place();
        self.keep(place);
        let node = self.nodes.get_mut(place);
        if node.live == 1 {
            self.remove_node(place);
        } else {
            node.delete(entry);
        }
        self.counters.length -= 1;
        true
    }

    /// Keeps a node for the cut, if one runs, before the node changes. (A cut is the nodes of one
    /// instant, for a reader: [`crate::cut`].)
    fn keep(&mut self, place: Place) {
        if let Some(cut) = self.cut.get_mut() {
            cut.before_change(self.nodes.get(place));
        }
    }

    pub(super) fn remove_node(&mut self, place: Place) {
        self.keep(place);
        let node: Node = self.nodes.remove(place);
        self.node_bytes -= node.allocated_bytes();
    }

    fn find_first_id(&mut self) {
        let mut first = StreamId::MIN;
        self.range(StreamId::MIN, StreamId::MAX, 1, |id, _| first = id);
        self.counters.first_id = first;
    }
}
