//! The search for an order that explains a history (see the parent module).
//!
//! The algorithm is that of Wing and Gong, with Lowe's extension. It searches depth-first through
//! the orders that the times of the events allow, and memoizes positions. A *position* is the
//! number of events of each client that have happened, and the model's state. If the search reaches
//! a position a second time, it backtracks, because it has already found that no order continues
//! from there. Linearizability is local (Herlihy and Wing): a history is linearizable if, for each
//! group of dependent keys, the events on that group are linearizable. Each group is therefore
//! searched separately.

use std::collections::{BTreeMap, HashSet};
use std::fmt::Write;

use super::model::State;
use super::{Event, Key, Operation};

/// Maximum number of positions in one search. A history of fifty events usually has a few hundred.
pub const POSITIONS_MAX: usize = 200_000;

/// Constraints on an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Each client's events must be in the order in which the client sent them, even if it sent
    /// them without waiting for replies. This constraint connects keys that are otherwise
    /// independent, so all events are searched together.
    Connection,
    /// Each client's events on the same key must be in the order in which the client sent them.
    Key,
}

/// Result of a search.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// An order explains the events.
    Explained,
    /// No order explains the events. The text contains the longest order found.
    Violation(String),
    /// Unknown, because the search visited [`POSITIONS_MAX`] positions.
    Undecided,
}

/// Returns whether the events of a window could have happened one after the other.
#[must_use]
pub fn check(events: &[Event], scope: Scope) -> Verdict {
    let parts = match scope {
        Scope::Connection => vec![(0..events.len()).collect()],
        Scope::Key => parts(events),
    };
    let mut verdict = Verdict::Explained;
    for part in parts {
        let mut search = Search::new(events, &part);
        match search.go(&State::default()) {
            Some(true) => {}
            Some(false) => return Verdict::Violation(search.shown()),
            None => verdict = Verdict::Undecided,
        }
    }
    verdict
}

/// Returns the groups of events on dependent keys, by index. Two keys are dependent if one
/// operation uses both of them. A transaction also uses the keys that its client has watched.
fn parts(events: &[Event]) -> Vec<Vec<usize>> {
    let mut leader: BTreeMap<Key, Key> = BTreeMap::new();
    fn find(leader: &mut BTreeMap<Key, Key>, key: Key) -> Key {
        let above = *leader.entry(key).or_insert(key);
        if above == key { key } else { find(leader, above) }
    }
    let mut watched: BTreeMap<usize, Key> = BTreeMap::new();
    let mut firsts = Vec::new();
    for event in events {
        let mut keys = event.operation.keys();
        match event.operation {
            Operation::Watch(_) => {
                keys.extend(watched.get(&event.client));
                watched.insert(event.client, keys[0]);
            }
            Operation::Exec(_) => keys.extend(watched.remove(&event.client)),
            _ => {}
        }
        for two in keys.windows(2) {
            let (one, other) = (find(&mut leader, two[0]), find(&mut leader, two[1]));
            leader.insert(one, other);
        }
        // Events without keys may be in any group.
        firsts.push(keys.first().copied().unwrap_or_default());
    }
    let mut parts: BTreeMap<Key, Vec<usize>> = BTreeMap::new();
    for (index, first) in firsts.into_iter().enumerate() {
        parts.entry(find(&mut leader, first)).or_default().push(index);
    }
    parts.into_values().collect()
}

struct Search<'e> {
    events: &'e [Event],
    /// Each client's events in the order sent.
    clients: Vec<Vec<usize>>,
    /// The number of events of each client that have happened.
    done: Vec<u8>,
    seen: HashSet<(Vec<u8>, State)>,
    order: Vec<usize>,
    best: Vec<usize>,
}

impl<'e> Search<'e> {
    fn new(events: &'e [Event], part: &[usize]) -> Self {
        let mut by_client: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for &index in part {
            by_client.entry(events[index].client).or_default().push(index);
        }
        let clients: Vec<_> = by_client.into_values().collect();
        let done = vec![0; clients.len()];
        Search { events, clients, done, seen: HashSet::new(), order: Vec::new(), best: Vec::new() }
    }

    /// Returns whether the remaining events can happen from this state. Returns `None` if the
    /// search has reached its limit.
    fn go(&mut self, state: &State) -> Option<bool> {
        if self.order.len() > self.best.len() {
            self.best.clone_from(&self.order);
        }
        let next: Vec<(usize, usize)> = (0..self.clients.len())
            .filter_map(|client| Some((client, *self.clients[client].get(usize::from(self.done[client]))?)))
            .collect();
        // If the reply to event A arrived before event B was sent, A happened before B. Therefore
        // only events that were sent before the earliest reply can be next.
        let Some(first_returned_ns) = next.iter().map(|(_, index)| self.events[*index].returned_ns).min() else {
            return Some(true);
        };
        if self.seen.len() >= POSITIONS_MAX {
            return None;
        }
        if !self.seen.insert((self.done.clone(), state.clone())) {
            return Some(false);
        }
        let mut next: Vec<_> =
            next.into_iter().filter(|(_, index)| self.events[*index].called_ns <= first_returned_ns).collect();
        // The events are tried in the order of their replies, because the event with the earliest
        // reply probably happened first.
        next.sort_unstable_by_key(|(_, index)| self.events[*index].returned_ns);
        let mut possible: Vec<(usize, usize, State)> = next
            .into_iter()
            .filter_map(|(client, index)| Some((client, index, state.after(&self.events[index])?)))
            .collect();
        // If one of the possible events changes nothing whenever it happens, the search chooses
        // only this event, and tries no other possible event in its place. No solution is lost: in
        // every order that contains this event later, it can be moved to this place, because it
        // changes nothing.
        let changes_nothing = |(_, index, after): &(usize, usize, State)| {
            let event = &self.events[*index];
            // The expiry of a TTL also changes nothing if no key has the TTL any more, because no
            // key gets it again.
            event.changes_nothing() || matches!(event.operation, Operation::Expires(..)) && after == state
        };
        if let Some(at) = possible.iter().position(changes_nothing) {
            possible = vec![possible.swap_remove(at)];
        }
        for (client, index, after) in possible {
            self.done[client] += 1;
            self.order.push(index);
            let found = self.go(&after);
            self.order.pop();
            self.done[client] -= 1;
            if found != Some(false) {
                return found;
            }
        }
        Some(false)
    }

    /// Returns a text with the events of the longest order found, and with the remaining events.
    /// None of the remaining events can follow that order.
    fn shown(&self) -> String {
        let mut text = "no order explains this history. The longest order found:\n".to_owned();
        let mut left: Vec<usize> = self.clients.iter().flatten().copied().collect();
        left.retain(|index| !self.best.contains(index));
        left.sort_unstable_by_key(|index| self.events[*index].called_ns);
        for (title, indexes) in [("", &self.best), ("then none of these is possible:\n", &left)] {
            text.push_str(title);
            for index in indexes {
                let Event { client, operation, reply, called_ns, returned_ns } = &self.events[*index];
                let (called_us, returned_us) = (called_ns / 1000, returned_ns / 1000);
                let reply = super::record::readable(reply);
                let _ = writeln!(text, "  {called_us:>7}..{returned_us:<7} client {client}: {operation:?} -> {reply}");
            }
        }
        text
    }
}

#[cfg(test)]
mod tests;
