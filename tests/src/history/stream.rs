//! Checks the order of a stream of effects against the plans of the clients. A *unit* is the
//! effects of a transaction, or a single effect. After each unit, the stream so far must contain
//! each operation as a whole or not at all. And it must contain the writes of a connection in the
//! order in which they were sent. A *window* is one round of the test, with keys of its own. Each
//! operation writes values that no other operation of its window writes, so a value in an effect
//! shows which operation has caused the effect.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use super::{Command, Operation};
use crate::effects::{Effect, show_effect};

/// Maximum number of windows that are remembered. The stream never lags behind the clients by as
/// many windows.
const WINDOWS_MAX: usize = 2000;

/// The client of an operation, and the operation's index in the client's plan.
type Place = (usize, usize);

/// The plans of a window, and which of their operations have been seen in the stream.
struct Window {
    /// The operation that writes each value.
    values: HashMap<String, Place>,
    /// Whether the stream may contain a connection's commands on different keys in any order
    /// (`--execution owner`). Commands on one key must always keep their order.
    is_by_key: bool,
    /// The last operation of each client that was seen. If `is_by_key`, the last one for each
    /// client and key.
    last: HashMap<(usize, String), usize>,
    /// The unit in which each operation was seen.
    units: HashMap<Place, u64>,
}

#[derive(Default)]
struct Known {
    windows: BTreeMap<u64, Window>,
    /// The number of the last unit.
    unit: u64,
    /// Number of planned values that the stream has contained so far.
    seen: u64,
}

/// Checks the order of a stream (see the module documentation). Clones share the same state.
#[derive(Clone, Default)]
pub struct Order(Arc<Mutex<Known>>);

impl Order {
    /// Registers the plans of a window's clients. `number` is the window's number in
    /// [`names`](super::record::names). With `is_by_key`, only the order of a connection's commands
    /// on the same key is checked.
    pub fn expect(&self, number: u64, plans: &[Vec<Operation>], is_by_key: bool) {
        let mut values = HashMap::new();
        for (client, plan) in plans.iter().enumerate() {
            for (at, operation) in plan.iter().enumerate() {
                written(operation, &mut |value| _ = values.insert(value.to_owned(), (client, at)));
            }
        }
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.windows.insert(number, Window { values, is_by_key, last: HashMap::new(), units: HashMap::new() });
        if known.windows.len() > WINDOWS_MAX {
            known.windows.pop_first();
        }
    }

    /// Checks the next unit of the stream.
    ///
    /// # Errors
    /// If the unit is at a wrong position in the stream.
    pub fn look(&self, unit: &[Effect]) -> Result<(), String> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.unit += 1;
        let number = known.unit;
        for effect in unit {
            known.look_at(effect, number).map_err(|why| format!("unit {number}, {}: {why}", show_effect(effect)))?;
        }
        Ok(())
    }

    /// Returns the number of planned values that the stream has contained so far.
    #[must_use]
    pub fn seen(&self) -> u64 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).seen
    }
}

impl Known {
    fn look_at(&mut self, effect: &Effect, unit: u64) -> Result<(), String> {
        let text: Vec<String> = effect.iter().map(|word| String::from_utf8_lossy(word).into_owned()).collect();
        // In an effect, a value directly follows its key.
        for pair in text.windows(2) {
            let window = pair[0].strip_prefix("window").and_then(|rest| rest.split_once(':')?.0.parse().ok());
            let Some(window) = window.and_then(|number: u64| self.windows.get_mut(&number)) else { continue };
            let Some(&(client, at)) = window.values.get(&pair[1]) else { continue };
            self.seen += 1;
            let before = *window.units.entry((client, at)).or_insert(unit);
            if before != unit {
                return Err(format!("operation {at} of client {client} started in unit {before}"));
            }
            let scope = if window.is_by_key { pair[0].clone() } else { String::new() };
            let last = window.last.entry((client, scope)).or_insert(at);
            if *last > at {
                return Err(format!("operation {at} of client {client} follows its operation {last}"));
            }
            *last = at;
        }
        Ok(())
    }
}

/// Passes the values that an operation writes to `found`.
fn written(operation: &Operation, found: &mut dyn FnMut(&str)) {
    match operation {
        Operation::One(command) => written_by(command, found),
        Operation::Exec(commands) => commands.iter().for_each(|command| written_by(command, found)),
        Operation::Watch(_) | Operation::BlockingPop(_) | Operation::BlockingMove(..) | Operation::Expires(..) => {}
    }
}

fn written_by(command: &Command, found: &mut dyn FnMut(&str)) {
    match command {
        Command::Set(_, value) | Command::Append(_, value) | Command::Push(_, value) => found(value),
        Command::Mset(pairs) => pairs.iter().for_each(|(_, value)| found(value)),
        Command::Script(_, commands) => commands.iter().for_each(|command| written_by(command, found)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn effect(words: &str) -> Effect {
        words.split(' ').map(|word| word.as_bytes().to_vec()).collect()
    }

    fn set(key: usize, value: &str) -> Command {
        Command::Set(key, value.to_owned())
    }

    fn order(is_by_key: bool) -> Order {
        let order = Order::default();
        let pair = Operation::Exec(vec![set(0, "1002"), set(1, "1003")]);
        let plans = [vec![Operation::One(set(0, "1000")), Operation::One(set(1, "1001")), pair]];
        order.expect(7, &plans, is_by_key);
        order
    }

    #[test]
    fn streams_in_order_pass() {
        let order = order(false);
        for unit in ["SET window7:0 1000", "SET window7:1 1001", "SET window7:5 9999", "DEL window7:0", "PING"] {
            assert_eq!(order.look(&[effect(unit)]), Ok(()));
        }
        assert_eq!(order.look(&[effect("SET window7:0 1002"), effect("SET window7:1 1003")]), Ok(()));
        assert_eq!(order.seen(), 4);
    }

    #[test]
    fn later_writes_before_earlier_ones_are_detected() {
        for (is_by_key, is_wrong) in [(false, true), (true, false)] {
            let order = order(is_by_key);
            assert_eq!(order.look(&[effect("SET window7:1 1001")]), Ok(()));
            assert_eq!(order.look(&[effect("SET window7:0 1000")]).is_err(), is_wrong);
        }
    }

    #[test]
    fn torn_transactions_are_detected() {
        let order = order(true);
        assert_eq!(order.look(&[effect("SET window7:0 1002")]), Ok(()));
        assert!(order.look(&[effect("SET window7:1 1003")]).is_err());
    }
}
