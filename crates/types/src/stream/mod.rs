//! A stream: entries of fields and values, ordered by id, with consumer groups.
//!
//! # What it costs
//!
//! | what | bytes |
//! | --- | --- |
//! | [`Stream`] | `size_of::<Stream>()`, below 200 |
//! | node of up to 100 entries | 72, and one allocation of its entries |
//! | entry whose fields are those of its node's first | 1 and, for each value, 1 and its bytes; an integer 1 to 9 (Redis: 9 and, for each value, 1 more) |
//! | pending entry | 40 in its group and 16 in its consumer (Redis: about 100) |
//! | consumer | 88, its name |
//!
//! | holds (`tests/sizes.rs`) | form | bytes of each |
//! | --- | --- | --- |
//! | 100,000 entries of two fields, 13 bytes of values | nodes of 100 | 15.8 |
//! | 100,000 entries that a consumer has | pending | 57.6 |
//!
//! Appending is constant time, as is trimming a node at the front; finding an id is two binary searches and a walk through at
//! most one node. A group remembers where it read last, so that its next entry is found without the walk.
//!
//! # Files
//!
//! | file | holds |
//! | --- | --- |
//! | `id` | ids and their texts |
//! | `node` | the entries of one node |
//! | `ordered` | sorted sequences: the nodes of a stream, the pending entries |
//! | `group` | groups and consumers |
//! | `reading` | ranges, and delivery to consumers |
//! | `trim` | trimming and deleting |
//! | `figures` | the counters, and what they tell of a group's lag |
//! | `listpack` | the form that `DUMP` and snapshots have |
//! | `radix` | how many nodes Redis's radix tree would have |

mod figures;
mod group;
mod id;
mod listpack;
mod node;
mod ordered;
mod radix;
mod reading;
#[cfg(test)]
mod tests;
mod trim;

pub use figures::Figures;
pub use group::{Consumer, ENTRIES_READ_UNKNOWN, Group, Pending};
pub use id::{ID_LEN_MAX, IdText, NewId, StreamId};
pub use listpack::{Corrupt, RestoredGroup};
pub use node::Fields;
pub use reading::{AutoClaimed, Claim, Delivered};
pub use trim::Trim;

use crate::collection::{Collection, PackedForm};
use crate::{Encoding, OutOfMemory, Value};
use node::{Node, room_for};
use ordered::Ordered;

/// No node's listpack grows beyond this, whatever the settings say (Redis's `STREAM_LISTPACK_MAX_SIZE`); nor does an entry.
const LISTPACK_BYTES_MAX: u64 = 1 << 30;

/// How large a node may become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeLimits {
    /// `stream-node-max-bytes`: of its listpack; 0: no limit of its own.
    pub bytes: u64,
    /// `stream-node-max-entries`, deleted ones included; 0: no limit.
    pub entries: u64,
}

/// Why an entry wasn't added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AppendError {
    /// There is no id after the last.
    Exhausted,
    /// The id isn't above all others.
    NotAbove,
    /// More than 1 GiB in one entry.
    TooLarge,
    /// The allocator refused.
    OutOfMemory,
}

/// A stream. It never lives inside its dictionary entry, and may be empty.
#[derive(Debug, Default)]
pub struct Stream {
    nodes: Ordered<Node>,
    /// Bytes of the entries of all nodes.
    node_bytes: usize,
    figures: Figures,
    /// By name.
    groups: Vec<Group>,
    /// Bytes of all that the groups point to.
    group_bytes: usize,
}

impl Stream {
    /// The encoding that `OBJECT ENCODING` answers.
    pub fn encoding(&self) -> Encoding {
        Encoding::Stream
    }

    /// Its counters.
    pub fn figures(&self) -> &Figures {
        &self.figures
    }

    /// Entries that are there.
    pub fn length(&self) -> u64 {
        self.figures.length
    }

    /// Whether it has no entries.
    pub fn has_no_entries(&self) -> bool {
        self.figures.length == 0
    }

    /// Nodes, which are the keys of Redis's radix tree.
    pub fn nodes_len(&self) -> usize {
        self.nodes.len()
    }

    /// Nodes that Redis's radix tree of these keys would have. Takes a look at every node of the stream.
    pub fn radix_nodes_len(&self) -> usize {
        radix::nodes(self.nodes.iter().map(|node| node.first))
    }

    /// The groups, by name.
    pub fn groups(&self) -> &[Group] {
        &self.groups
    }

    /// The number of a group, valid until groups come or go.
    #[inline]
    pub fn group_number(&self, name: &[u8]) -> Option<usize> {
        self.groups.binary_search_by(|group| group.name().cmp(name)).ok()
    }

    /// The group of a name.
    pub fn group(&self, name: &[u8]) -> Option<&Group> {
        self.group_number(name).map(|number| &self.groups[number])
    }

    /// The id that an entry would get.
    fn next_id(&self, wanted: NewId, now_ms: u64) -> Result<StreamId, AppendError> {
        let last = self.figures.last_id;
        if last == StreamId::MAX {
            return Err(AppendError::Exhausted);
        }
        let id = match wanted {
            NewId::Given(id) => Some(id),
            NewId::Auto if now_ms > last.ms => Some(StreamId { ms: now_ms, seq: 0 }),
            NewId::Auto => last.next(),
            NewId::AutoSeq(ms) if ms == last.ms => last.seq.checked_add(1).map(|seq| StreamId { ms, seq }),
            NewId::AutoSeq(ms) => Some(StreamId { ms, seq: 0 }),
        };
        id.filter(|&id| id > last).ok_or(AppendError::NotAbove)
    }

    /// Adds an entry at the end and gives its id. `now_ms` is unix time.
    ///
    /// # Errors
    /// See [`AppendError`]: nothing is changed.
    pub fn append<'f>(
        &mut self,
        wanted: NewId,
        now_ms: u64,
        fields: impl ExactSizeIterator<Item = (&'f [u8], &'f [u8])> + Clone,
        limits: &NodeLimits,
    ) -> Result<StreamId, AppendError> {
        let id = self.next_id(wanted, now_ms)?;
        let data_bytes: usize = fields.clone().map(|(field, value)| field.len() + value.len()).sum();
        if data_bytes as u64 > LISTPACK_BYTES_MAX {
            return Err(AppendError::TooLarge);
        }
        let room_bytes = room_for(2 * fields.len(), data_bytes);
        self.drop_dead_tail(id);
        let added = match self.nodes.last_mut().filter(|tail| has_room(tail, data_bytes, limits)) {
            Some(tail) => {
                let before = tail.allocated_bytes();
                let added = tail.append(id, fields, room_bytes);
                self.node_bytes += tail.allocated_bytes() - before;
                added
            }
            None => self.append_node(id, fields, room_bytes),
        };
        added.map_err(|_| AppendError::OutOfMemory)?;
        let figures = &mut self.figures;
        figures.length += 1;
        figures.entries_added = figures.entries_added.wrapping_add(1);
        figures.last_id = id;
        if figures.length == 1 {
            figures.first_id = id;
        }
        Ok(id)
    }

    /// Adds a node with one entry.
    fn append_node<'f>(
        &mut self,
        id: StreamId,
        fields: impl ExactSizeIterator<Item = (&'f [u8], &'f [u8])> + Clone,
        room_bytes: usize,
    ) -> Result<(), OutOfMemory> {
        let mut node = Node::new(id, fields.clone().map(|(name, _)| name), room_bytes)?;
        node.append(id, fields, room_bytes)?;
        if let Some(tail) = self.nodes.last_mut() {
            let before = tail.allocated_bytes();
            tail.seal();
            self.node_bytes -= before - tail.allocated_bytes();
        }
        self.node_bytes += node.allocated_bytes();
        self.push_node(node);
        Ok(())
    }

    /// Removes a last node of nothing but deleted entries, of which the new one's id isn't above: `XSETID` has set the last id back.
    /// So nodes are in the order of their entries, whatever was deleted.
    #[inline]
    fn drop_dead_tail(&mut self, id: StreamId) {
        if self.nodes.last().is_some_and(|tail| tail.live == 0 && tail.last >= id)
            && let Some(place) = self.nodes.last_place()
        {
            self.remove_node(place);
        }
    }

    fn push_node(&mut self, node: Node) {
        let pushed = self.nodes.insert(node);
        debug_assert!(pushed.is_ok(), "its id is above all others");
    }

    /// `XSETID`: the last id, and, where given, the entries ever added and the largest id deleted.
    pub fn set_id(&mut self, last_id: StreamId, entries_added: Option<u64>, max_deleted_id: Option<StreamId>) {
        self.figures.last_id = last_id;
        if let Some(added) = entries_added {
            self.figures.entries_added = added;
        }
        if let Some(id) = max_deleted_id {
            self.figures.max_deleted_id = id;
        }
        // An id may come a second time now: what stood behind the first one's node says nothing of the second's.
        for group in &mut self.groups {
            group.cursor = None;
        }
    }

    /// Adds a group. `false`: there is one of that name.
    pub fn create_group(&mut self, name: &[u8], last_id: StreamId, entries_read: i64) -> bool {
        let Err(at) = self.groups.binary_search_by(|group| group.name().cmp(name)) else { return false };
        let group = Group::new(name, last_id, entries_read);
        self.group_bytes += group.allocated_bytes();
        self.groups.insert(at, group);
        true
    }

    /// Removes a group. `false`: there is none of that name.
    pub fn destroy_group(&mut self, name: &[u8]) -> bool {
        let Some(number) = self.group_number(name) else { return false };
        let group = self.groups.remove(number);
        self.group_bytes -= group.allocated_bytes();
        true
    }

    /// Sets what a group has read up to.
    pub fn set_group_id(&mut self, group: usize, last_id: StreamId, entries_read: i64) {
        let group = &mut self.groups[group];
        group.last_id = last_id;
        group.entries_read = entries_read;
        group.cursor = None;
    }

    /// Lets a group have read up to an id, unless it has read further (`XCLAIM LASTID`), which
    /// returns `false`.
    pub fn raise_group_id(&mut self, group: usize, last_id: StreamId) -> bool {
        let group = &mut self.groups[group];
        let is_raised = last_id > group.last_id;
        if is_raised {
            group.last_id = last_id;
            group.cursor = None;
        }
        is_raised
    }

    /// Adds a consumer. `false`: there is one of that name.
    pub fn create_consumer(&mut self, group: usize, name: &[u8], now_ms: i64) -> bool {
        self.change_group(group, |_, _, group| group.create_consumer(name, now_ms))
    }

    /// Removes a consumer with its pending entries, and gives their number; `None`: there is no such consumer.
    pub fn remove_consumer(&mut self, group: usize, name: &[u8]) -> Option<usize> {
        self.change_group(group, |_, _, group| group.remove_consumer(name))
    }

    /// Removes a pending entry. `false`: there is none.
    pub fn acknowledge(&mut self, group: usize, id: StreamId) -> bool {
        self.change_group(group, |_, _, group| group.acknowledge(id))
    }

    /// Changes a group, keeping the tally.
    #[inline]
    fn change_group<R>(&mut self, group: usize, change: impl FnOnce(&Ordered<Node>, &Figures, &mut Group) -> R) -> R {
        let group = &mut self.groups[group];
        let before = group.allocated_bytes();
        let result = change(&self.nodes, &self.figures, group);
        self.group_bytes = self.group_bytes + group.allocated_bytes() - before;
        result
    }
}

/// Whether an entry with so many bytes of data goes into the last node, by Redis's rule.
#[inline]
fn has_room(tail: &Node, data_bytes: usize, limits: &NodeLimits) -> bool {
    let bytes_max = if limits.bytes == 0 { LISTPACK_BYTES_MAX } else { limits.bytes.min(LISTPACK_BYTES_MAX) };
    let entries = u64::from(tail.live) + u64::from(tail.dead);
    let bytes = (tail.listpack_len_bytes() + data_bytes) as u64;
    bytes < bytes_max && (limits.entries == 0 || entries < limits.entries)
}

impl PartialEq for Stream {
    fn eq(&self, other: &Self) -> bool {
        self.figures == other.figures && self.nodes == other.nodes && self.groups == other.groups
    }
}

impl Eq for Stream {}

impl Clone for Stream {
    /// A copy without room to spare.
    fn clone(&self) -> Self {
        let (nodes, groups) = (self.nodes.clone(), self.groups.clone());
        Stream {
            node_bytes: nodes.iter().map(Node::allocated_bytes).sum(),
            group_bytes: groups.iter().map(Group::allocated_bytes).sum(),
            figures: self.figures,
            nodes,
            groups,
        }
    }
}

impl Collection for Box<Stream> {
    type View<'a> = &'a Stream;

    fn empty() -> Self {
        Box::default()
    }

    fn of(value: &Value) -> Option<&Self> {
        if let Value::Stream(found) = value { Some(found) } else { None }
    }

    fn of_mut(value: &mut Value) -> Option<&mut Self> {
        if let Value::Stream(found) = value { Some(found) } else { None }
    }

    fn into_value(self) -> Value {
        Value::Stream(self)
    }

    fn view(&self) -> &Stream {
        self
    }

    fn view_packed(_: PackedForm, _: &[u8]) -> Option<&Stream> {
        None
    }

    fn from_packed(_: PackedForm, bytes: Vec<u8>) -> Result<Self, Vec<u8>> {
        Err(bytes)
    }

    fn packed(&self) -> Option<(PackedForm, &[u8])> {
        None
    }

    fn into_packed(self) -> Option<Vec<u8>> {
        None
    }

    fn is_empty(&self) -> bool {
        false
    }

    fn allocated_bytes(&self) -> usize {
        size_of::<Stream>()
            + self.nodes.allocated_bytes()
            + self.node_bytes
            + self.groups.capacity() * size_of::<Group>()
            + self.group_bytes
    }

    fn try_clone(&self) -> Result<Self, OutOfMemory> {
        Ok(Box::new(Stream::clone(self)))
    }
}
