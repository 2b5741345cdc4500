//! What the clients of a window are to do, at random: few keys, so that they meet.

use super::{Command, Key, Operation, Script};
use crate::Random;

/// A kind of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `GET` `SET` `INCR` `APPEND` `DEL` of a key.
    Texts,
    /// `SET` of any key.
    Writes,
    /// `MSET`, `MGET`, `DEL` of several.
    Several,
    /// `RENAME`.
    Rename,
    /// `RPUSH`, `LPOP`, `LRANGE`.
    Lists,
    /// `BLPOP`, `BLMOVE`, and what they wait for.
    Blocking,
    /// `MULTI` … `EXEC`.
    Transactions,
    /// `WATCH`, a look, `MULTI` … `EXEC`.
    Watching,
    /// Scripts that declare their keys.
    Scripts,
    /// Scripts that don't.
    UndeclaredScripts,
}

/// All kinds.
pub const ALL: &[Kind] = &[
    Kind::Texts,
    Kind::Several,
    Kind::Rename,
    Kind::Lists,
    Kind::Blocking,
    Kind::Transactions,
    Kind::Watching,
    Kind::Scripts,
    Kind::UndeclaredScripts,
];

/// A workload.
#[derive(Clone, Copy, Debug)]
pub struct Mix {
    /// What it is of.
    pub kinds: &'static [Kind],
    /// Clients.
    pub clients: usize,
    /// Operations of each, about.
    pub operations: usize,
    /// Keys: the first half mostly hold strings, the second mostly lists.
    pub keys: usize,
}

/// Plans windows.
pub struct Planner {
    mix: Mix,
    random: Random,
    /// Every value is another, so that a reply tells whose write it saw.
    next_value: u64,
}

/// The first value: numbers of four digits, which `INCR` can count on and `APPEND` make longer.
const VALUE_MIN: u64 = 1000;

impl Planner {
    /// One that replays from its seed.
    #[must_use]
    pub fn new(mix: Mix, seed: u64) -> Self {
        Planner { mix, random: Random::from_seed(seed), next_value: 0 }
    }

    /// What each client does in the next window.
    pub fn plan(&mut self) -> Vec<Vec<Operation>> {
        (0..self.mix.clients)
            .map(|_| {
                let mut operations = Vec::new();
                while operations.len() < self.mix.operations {
                    self.add(&mut operations);
                }
                operations
            })
            .collect()
    }

    fn add(&mut self, operations: &mut Vec<Operation>) {
        let kind = *self.random.pick(self.mix.kinds);
        let operation = match kind {
            Kind::Texts | Kind::Writes | Kind::Several | Kind::Rename | Kind::Lists => {
                Operation::One(self.command(kind))
            }
            Kind::Blocking if self.random.one_in(2) => Operation::One(self.command(Kind::Lists)),
            Kind::Blocking if self.random.one_in(2) => {
                let count = 1 + self.random.below(2);
                Operation::BlockingPop((0..count).map(|_| self.list()).collect())
            }
            Kind::Blocking => Operation::BlockingMove(self.list(), self.list()),
            Kind::Transactions => Operation::Exec(self.commands()),
            Kind::Watching => {
                let keys = self.keys(1, 2);
                operations.push(Operation::Watch(keys.clone()));
                operations.push(Operation::One(Command::Mget(keys)));
                Operation::Exec(self.commands())
            }
            Kind::Scripts => Operation::Script(Script::Declared, self.commands()),
            Kind::UndeclaredScripts if self.random.one_in(2) => Operation::Script(Script::Undeclared, self.commands()),
            Kind::UndeclaredScripts => {
                let number = self.random.next_u64();
                Operation::Script(Script::Unmet(number), self.commands())
            }
        };
        operations.push(operation);
    }

    fn commands(&mut self) -> Vec<Command> {
        let count = 2 + self.random.below(2);
        (0..count)
            .map(|_| {
                let kind = *self.random.pick(&[Kind::Texts, Kind::Texts, Kind::Several, Kind::Lists]);
                self.command(kind)
            })
            .collect()
    }

    fn command(&mut self, kind: Kind) -> Command {
        match (kind, self.random.below(5)) {
            (Kind::Several, 0 | 1) => {
                let keys = self.keys(2, 3);
                Command::Mset(keys.into_iter().map(|key| (key, self.value())).collect())
            }
            (Kind::Several, 2 | 3) => {
                let keys = self.keys(2, self.mix.keys);
                Command::Mget(keys)
            }
            (Kind::Several, _) => Command::Del(self.keys(2, 2)),
            (Kind::Writes, _) => {
                let key = self.random.below(self.mix.keys);
                Command::Set(key, self.value())
            }
            (Kind::Rename, _) => {
                let keys = self.keys(2, 2);
                Command::Rename(keys[0], keys[1])
            }
            (Kind::Lists | Kind::Blocking, 0..3) => Command::Push(self.list(), self.value()),
            (Kind::Lists | Kind::Blocking, 3) => Command::Pop(self.list()),
            (Kind::Lists | Kind::Blocking, _) => Command::Range(self.list()),
            (_, 0) => Command::Get(self.text()),
            (_, 1) => Command::Set(self.text(), self.value()),
            (_, 2) => Command::Incr(self.text()),
            (_, 3) => Command::Append(self.text(), self.value()),
            _ => Command::Del(vec![self.text()]),
        }
    }

    fn value(&mut self) -> String {
        self.next_value = (self.next_value + 1) % (9 * VALUE_MIN);
        (VALUE_MIN + self.next_value).to_string()
    }

    /// Different keys of any kind, so many at least and at most.
    fn keys(&mut self, least: usize, most: usize) -> Vec<Key> {
        let count = self.random.between(least as i64, most as i64) as usize;
        let mut keys: Vec<Key> = (0..self.mix.keys).collect();
        self.random.shuffle(&mut keys);
        keys.truncate(count);
        keys
    }

    fn text(&mut self) -> Key {
        self.random.below(self.mix.keys.div_ceil(2))
    }

    fn list(&mut self) -> Key {
        let first = self.mix.keys / 2;
        first + self.random.below(self.mix.keys - first)
    }
}
