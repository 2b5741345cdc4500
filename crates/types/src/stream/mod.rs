//! A stream: a sequence of entries, ordered by id, with consumer groups. An entry consists of
//! fields and values. A group delivers each entry to one of its consumers. A delivered entry is
//! *pending* until it is acknowledged.
//!
//! # Cost
//!
//! | item | bytes |
//! | --- | --- |
//! | [`Stream`] | `size_of::<Stream>()`, less than 210 |
//! | node of up to 100 entries | 72, and one allocation for all entries |
//! | entry with the field names of its node | 1, and for each value 1 and its length |
//! | pending entry | 40 in its group and 16 in its consumer (Redis: about 100) |
//! | consumer | 76 and the name |
//!
//! An integer value takes 1 to 9 bytes in total. (Redis takes 9 bytes instead of 1 per entry, and 1
//! byte more per value.)
//!
//! | contents (`tests/sizes.rs`) | form | bytes of each |
//! | --- | --- | --- |
//! | 100,000 entries of two fields, 13 bytes of values | nodes of 100 | 15.8 |
//! | 100,000 entries pending for a consumer | pending | 57.6 |
//!
//! Appending an entry takes constant time, and so does trimming a whole node at the front. Finding
//! an id takes two binary searches and usually a walk through one node. A group stores the position
//! of the last read, so it finds its next entry without a walk.
//!
//! # Files
//!
//! | file | contents |
//! | --- | --- |
//! | `id` | ids and their texts |
//! | `node` | the entries of one node |
//! | `ordered` | sorted sequences: the nodes of a stream, the pending entries |
//! | `group` | groups and consumers |
//! | `named` | sequences ordered by name: the groups of a stream, the consumers of a group |
//! | `reading` | ranges, and delivery to consumers |
//! | `trim` | trimming and deletion |
//! | `counters` | the counters, and the lag of a group derived from the counters |
//! | `frozen` | the nodes of one instant, for snapshots |
//! | `listpack` | the form in `DUMP` payloads and snapshots |
//! | `radix` | the size of the radix tree that Redis would have |

mod counters;
mod frozen;
mod group;
mod id;
mod listpack;
mod named;
mod node;
mod ordered;
mod radix;
mod reading;
#[cfg(test)]
mod tests;
mod trim;

pub use counters::Counters;
pub(crate) use frozen::CutPart;
pub use group::{Consumer, ENTRIES_READ_UNKNOWN, Group, Pending};
pub use id::{ID_LEN_MAX, IdText, NewId, StreamId};
pub use listpack::{Corrupt, RestoredGroup};
pub use node::Fields;
pub use reading::{AutoClaimed, Claim, Delivered};
pub use trim::Trim;

use crate::collection::{Collection, PackedForm};
use crate::cut::{CutCell, CutId, CutState, PieceMax};
use crate::{Encoding, OutOfMemory, Value};
use frozen::Frozen;
use named::Named;
use node::{Node, room_for};
use ordered::Ordered;

/// Maximum size of an entry, and of a node's listpack under any settings (Redis's
/// `STREAM_LISTPACK_MAX_SIZE`).
const LISTPACK_BYTES_MAX: u64 = 1 << 30;

/// The limits of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeLimits {
    /// `stream-node-max-bytes`: maximum size of a node's listpack in bytes. 0 means 1 GiB, the
    /// maximum of any listpack.
    pub bytes: u64,
    /// `stream-node-max-entries`: maximum number of entries, including deleted ones. 0 means no
    /// limit.
    pub entries: u64,
}

/// The number of a group in its stream, valid while the group exists.
pub type GroupNumber = u32;

/// The reason why an entry wasn't added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AppendError {
    /// There is no id after the stream's last id.
    Exhausted,
    /// The id isn't greater than the stream's last id.
    NotAbove,
    /// The entry exceeds 1 GiB.
    TooLarge,
    /// The allocator failed.
    OutOfMemory,
}

/// A stream. Even a small stream is never stored inside its dictionary entry. Unlike any other
/// collection, a stream may be empty.
#[derive(Debug, Default)]
pub struct Stream {
    nodes: Ordered<Node>,
    /// Heap memory of all nodes in bytes.
    node_bytes: usize,
    counters: Counters,
    groups: Named<Group>,
    /// Heap memory of all groups in bytes.
    group_bytes: usize,
    cut: CutCell<Frozen>,
}

impl Stream {
    /// Returns the encoding that `OBJECT ENCODING` shows.
    pub fn encoding(&self) -> Encoding {
        Encoding::Stream
    }

    /// Returns the stream's counters.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Returns the number of entries.
    pub fn length(&self) -> u64 {
        self.counters.length
    }

    /// Returns whether the stream has no entries.
    pub fn has_no_entries(&self) -> bool {
        self.counters.length == 0
    }

    /// Returns the number of nodes. Redis's radix tree has a key for each node.
    pub fn nodes_len(&self) -> usize {
        self.nodes.len()
    }

    /// Returns the number of nodes of the radix tree that Redis would have. Visits every node of
    /// the stream.
    pub fn radix_nodes_len(&self) -> usize {
        radix::nodes(self.nodes.iter().map(|node| node.first))
    }

    /// Returns the number of groups.
    pub fn groups_len(&self) -> usize {
        self.groups.len()
    }

    /// Iterates over the groups, ordered by name.
    pub fn groups(&self) -> impl Iterator<Item = &Group> {
        self.groups.iter()
    }

    /// Returns the number of a group, valid while the group exists.
    #[inline]
    pub fn group_number(&self, name: &[u8]) -> Option<GroupNumber> {
        self.groups.number_of(name)
    }

    /// Returns the group with a number.
    ///
    /// # Panics
    /// If there is no such group.
    pub fn group_at(&self, number: GroupNumber) -> &Group {
        &self.groups[number]
    }

    /// Returns the group with a name.
    pub fn group(&self, name: &[u8]) -> Option<&Group> {
        self.groups.get(self.group_number(name)?)
    }

    /// Returns the id that a new entry would get.
    fn next_id(&self, wanted: NewId, now_ms: u64) -> Result<StreamId, AppendError> {
        let last = self.counters.last_id;
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

    /// Appends an entry and returns the entry's id. `now_ms` is Unix time.
    ///
    /// # Errors
    /// [`AppendError`], with entries and counters unchanged.
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
        self.keep_tail();
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
        let counters = &mut self.counters;
        counters.length += 1;
        counters.entries_added = counters.entries_added.wrapping_add(1);
        counters.last_id = id;
        if counters.length == 1 {
            counters.first_id = id;
        }
        Ok(id)
    }

    /// Appends a node with one entry.
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

    /// Removes the last node if all its entries are deleted and its last id is not below `id`, the
    /// id of a new entry. Such a node exists only if `XSETID` has lowered the stream's last id. If
    /// it remained, the nodes would not be in the order of their ids once the new entry is added.
    #[inline]
    fn drop_dead_tail(&mut self, id: StreamId) {
        if self.nodes.last().is_some_and(|tail| tail.live == 0 && tail.last >= id)
            && let Some(place) = self.nodes.last_place()
        {
            self.remove_node(place);
        }
    }

    /// Keeps the last node for the cut, if one runs, before the node changes. (A cut is the nodes
    /// of one instant, for a reader: [`crate::cut`].)
    #[inline]
    fn keep_tail(&mut self) {
        if let (Some(cut), Some(tail)) = (self.cut.get_mut(), self.nodes.last()) {
            cut.before_change(tail);
        }
    }

    /// Starts a cut of the current nodes. A reader of the cut receives `tail` after the nodes.
    pub(crate) fn begin_cut(&self, tail: Vec<u8>) {
        self.cut.begin(Frozen::new(&self.nodes, tail));
    }

    /// Passes the nodes of one piece of the cut to `read`. Passes the tail after the last node.
    pub(crate) fn read_cut(&self, max: PieceMax, read: impl FnMut(CutPart<'_>)) -> CutState {
        self.cut.read(|cut| cut.read(&self.nodes, max, read))
    }

    /// Returns the id of the cut, if one runs.
    pub(crate) fn cut_id(&self) -> Option<CutId> {
        self.cut.id()
    }

    /// Ends the cut, if one runs.
    pub(crate) fn end_cut(&self) {
        self.cut.end();
    }

    fn push_node(&mut self, node: Node) {
        if let Some(cut) = self.cut.get_mut() {
            cut.added(node.first);
        }
        let pushed = self.nodes.insert(node);
        debug_assert!(pushed.is_ok(), "the id isn't above all others");
    }

    /// Sets the last id and, if given, the number of entries ever added and the largest deleted id
    /// (`XSETID`).
    pub fn set_id(&mut self, last_id: StreamId, entries_added: Option<u64>, max_deleted_id: Option<StreamId>) {
        self.counters.last_id = last_id;
        if let Some(added) = entries_added {
            self.counters.entries_added = added;
        }
        if let Some(id) = max_deleted_id {
            self.counters.max_deleted_id = id;
        }
        // If the last id is lowered, a new entry may get the id of a former entry, so the positions
        // that groups have stored are no longer valid.
        self.groups.for_each_mut(|group| group.cursor = None);
    }

    /// Creates a group. Returns `false` if the name exists.
    pub fn create_group(&mut self, name: &[u8], last_id: StreamId, entries_read: i64) -> bool {
        self.add_group(Group::new(name, last_id, entries_read))
    }

    /// Adds a group. Returns `false` if the name exists.
    fn add_group(&mut self, group: Group) -> bool {
        let Err(place) = self.groups.search(group.name()) else { return false };
        self.group_bytes += group.allocated_bytes();
        self.groups.insert(place, group);
        true
    }

    /// Removes a group. Returns whether the group existed.
    pub fn destroy_group(&mut self, name: &[u8]) -> bool {
        let Some(group) = self.groups.search(name).ok().and_then(|place| self.groups.remove(place)) else {
            return false;
        };
        self.group_bytes -= group.allocated_bytes();
        true
    }

    /// Sets the last id that a group has read.
    pub fn set_group_id(&mut self, group: GroupNumber, last_id: StreamId, entries_read: i64) {
        let group = &mut self.groups[group];
        group.last_id = last_id;
        group.entries_read = entries_read;
        group.cursor = None;
    }

    /// Raises the last id that a group has read (`XCLAIM LASTID`). Returns `false`, with nothing
    /// changed, if the group has read this id or a higher one.
    pub fn raise_group_id(&mut self, group: GroupNumber, last_id: StreamId) -> bool {
        let group = &mut self.groups[group];
        let is_raised = last_id > group.last_id;
        if is_raised {
            group.last_id = last_id;
            group.cursor = None;
        }
        is_raised
    }

    /// Creates a consumer. Returns `false` if the name exists.
    pub fn create_consumer(&mut self, group: GroupNumber, name: &[u8], now_ms: i64) -> bool {
        self.change_group(group, |_, _, group| group.create_consumer(name, now_ms))
    }

    /// Removes a consumer with its pending entries. Returns the number of these entries, or `None`
    /// if there is no such consumer.
    pub fn remove_consumer(&mut self, group: GroupNumber, name: &[u8]) -> Option<usize> {
        self.change_group(group, |_, _, group| group.remove_consumer(name))
    }

    /// Removes a pending entry. Returns whether the entry was pending.
    pub fn acknowledge(&mut self, group: GroupNumber, id: StreamId) -> bool {
        self.change_group(group, |_, _, group| group.acknowledge(id))
    }

    /// Changes a group and updates the running sum of the groups' memory.
    #[inline]
    fn change_group<R>(
        &mut self,
        group: GroupNumber,
        change: impl FnOnce(&Ordered<Node>, &Counters, &mut Group) -> R,
    ) -> R {
        let group = &mut self.groups[group];
        let before = group.allocated_bytes();
        let result = change(&self.nodes, &self.counters, group);
        self.group_bytes = self.group_bytes + group.allocated_bytes() - before;
        result
    }
}

/// Returns whether an entry with `data_bytes` of data fits in the last node, by Redis's rule.
#[inline]
fn has_room(tail: &Node, data_bytes: usize, limits: &NodeLimits) -> bool {
    let bytes_max = if limits.bytes == 0 { LISTPACK_BYTES_MAX } else { limits.bytes.min(LISTPACK_BYTES_MAX) };
    let entries = u64::from(tail.live) + u64::from(tail.dead);
    let bytes = (tail.listpack_len_bytes() + data_bytes) as u64;
    bytes < bytes_max && (limits.entries == 0 || entries < limits.entries)
}

impl PartialEq for Stream {
    fn eq(&self, other: &Self) -> bool {
        self.counters == other.counters && self.nodes == other.nodes && self.groups == other.groups
    }
}

impl Eq for Stream {}

impl Clone for Stream {
    /// Returns a copy without spare capacity.
    fn clone(&self) -> Self {
        let (nodes, groups) = (self.nodes.clone(), self.groups.clone());
        Stream {
            node_bytes: nodes.iter().map(Node::allocated_bytes).sum(),
            group_bytes: groups.iter().map(Group::allocated_bytes).sum(),
            counters: self.counters,
            nodes,
            groups,
            cut: CutCell::default(),
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
            + self.groups.allocated_bytes()
            + self.group_bytes
    }

    fn try_clone(&self) -> Result<Self, OutOfMemory> {
        Ok(Box::new(Stream::clone(self)))
    }
}
