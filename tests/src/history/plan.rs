//! Random plans: the operations that each client sends in a window (see the parent module). There
//! are few keys, so that clients collide.

use super::operation::EXPIRIES_MAX;
use super::{Command, Key, Operation, Script};
use crate::Random;

/// A kind of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `GET` `SET` `INCR` `APPEND` `DEL` of a key.
    Texts,
    /// `SET` of any key.
    Writes,
    /// `MSET`, `MGET`, `DEL` of several keys.
    Several,
    /// `RENAME`.
    Rename,
    /// `RPUSH`, `LPOP`, `LRANGE`.
    Lists,
    /// `LMOVE`.
    Moves,
    /// `BLPOP`, `BLMOVE`, and commands on lists, some of which serve blocked clients. In a
    /// transaction, `BLPOP` and `BLMOVE` don't block.
    Blocking,
    /// `PEXPIRE`, and `MGET`, which shows whether keys have expired.
    Expiring,
    /// `FLUSHALL`, and more often a read of many keys.
    Flush,
    /// `SWAPDB`, and more often a read of many keys.
    Swap,
    /// `PING`. A transaction with a `PING` runs on its client's worker.
    Local,
    /// `MULTI` … `EXEC`.
    Transactions,
    /// `WATCH`, a read, `MULTI` … `EXEC`.
    Watching,
    /// Scripts that declare their keys.
    Scripts,
    /// Scripts that don't declare their keys.
    UndeclaredScripts,
    /// Functions that declare their keys.
    Functions,
    /// Functions that don't declare their keys.
    UndeclaredFunctions,
}

/// All kinds.
pub const ALL: &[Kind] = &[
    Kind::Texts,
    Kind::Several,
    Kind::Rename,
    Kind::Lists,
    Kind::Moves,
    Kind::Blocking,
    Kind::Expiring,
    Kind::Flush,
    Kind::Swap,
    Kind::Transactions,
    Kind::Watching,
    Kind::Scripts,
    Kind::UndeclaredScripts,
    Kind::Functions,
    Kind::UndeclaredFunctions,
];

/// Default kinds of the commands in transactions and scripts. A repeated kind is more frequent.
/// Scripts can't contain blocking commands or other scripts, so they get commands on lists and on
/// strings instead.
pub const WITHIN: &[Kind] = &[
    Kind::Texts,
    Kind::Texts,
    Kind::Texts,
    Kind::Several,
    Kind::Several,
    Kind::Rename,
    Kind::Lists,
    Kind::Lists,
    Kind::Moves,
    Kind::Blocking,
    Kind::Expiring,
    Kind::Flush,
    Kind::Swap,
    Kind::Local,
    Kind::Scripts,
    Kind::Functions,
];

/// A workload.
#[derive(Clone, Copy, Debug)]
pub struct Mix {
    /// Its kinds of work.
    pub kinds: &'static [Kind],
    /// Kinds of the commands within transactions and scripts.
    pub within: &'static [Kind],
    /// Number of clients.
    pub clients: usize,
    /// Approximate number of operations per client.
    pub operations: usize,
    /// Number of keys. The first half of the keys mostly holds strings, and the second half mostly
    /// lists.
    pub keys: usize,
}

/// Plans windows.
pub struct Planner {
    mix: Mix,
    random: Random,
    /// The number of the last value. Every value is unique in its window, so that a reply shows
    /// which write the command has read.
    next_value: u64,
    /// The number of the next TTL in the window.
    next_expiry: u8,
}

/// The first value written. All values have four digits, so that `INCR` can increment them, and so
/// that a longer value reveals an `APPEND`.
const VALUE_MIN: u64 = 1000;

impl Planner {
    /// Returns a planner whose plans are determined by `seed`.
    #[must_use]
    pub fn new(mix: Mix, seed: u64) -> Self {
        Planner { mix, random: Random::from_seed(seed), next_value: 0, next_expiry: 0 }
    }

    /// Returns each client's operations in the next window.
    pub fn plan(&mut self) -> Vec<Vec<Operation>> {
        self.next_expiry = 0;
        (0..self.mix.clients)
            .map(|client| {
                let mut operations = Vec::new();
                while operations.len() < self.mix.operations {
                    self.add(client, &mut operations);
                }
                operations
            })
            .collect()
    }

    fn add(&mut self, client: usize, operations: &mut Vec<Operation>) {
        let kind = *self.random.pick(self.mix.kinds);
        let operation = match kind {
            Kind::Blocking if self.random.one_in(2) => Operation::One(self.command(Kind::Lists)),
            Kind::Blocking if self.random.one_in(2) => {
                let count = 1 + self.random.below(2);
                Operation::BlockingPop((0..count).map(|_| self.list()).collect())
            }
            Kind::Blocking => Operation::BlockingMove(self.list(), self.list()),
            Kind::Transactions => Operation::Exec(self.commands(true)),
            Kind::Watching => {
                let keys = self.keys(1, 2);
                operations.push(Operation::Watch(keys.clone()));
                operations.push(Operation::One(Command::Mget(keys)));
                Operation::Exec(self.commands(true))
            }
            // Each client has its own library, because a client must not call a function of a
            // library that another client is replacing.
            Kind::UndeclaredFunctions if self.random.one_in(2) => {
                Operation::One(Command::Script(Script::UnmetFunction(client), self.commands(false)))
            }
            _ => Operation::One(self.command(kind)),
        };
        operations.push(operation);
    }

    /// Returns the commands of a transaction or a script.
    fn commands(&mut self, is_transaction: bool) -> Vec<Command> {
        let count = 2 + self.random.below(2);
        (0..count)
            .map(|_| {
                let kind = match *self.random.pick(self.mix.within) {
                    kind if is_transaction => kind,
                    Kind::Blocking => Kind::Lists,
                    Kind::Scripts | Kind::UndeclaredScripts | Kind::Functions | Kind::UndeclaredFunctions => {
                        Kind::Texts
                    }
                    kind => kind,
                };
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
            (Kind::Lists, 0..3) => Command::Push(self.list(), self.value()),
            (Kind::Lists, 3) => Command::Pop(self.list()),
            (Kind::Lists, _) => Command::Range(self.list()),
            (Kind::Blocking, 0..3) => {
                let count = 1 + self.random.below(2);
                Command::PopFirst((0..count).map(|_| self.list()).collect())
            }
            (Kind::Moves | Kind::Blocking, _) => Command::Move(self.list(), self.list()),
            (Kind::Expiring, 0..3) if self.next_expiry < EXPIRIES_MAX => {
                self.next_expiry += 1;
                Command::Expire(self.random.below(self.mix.keys), self.next_expiry - 1)
            }
            (Kind::Flush, 0) => Command::Flush(self.mix.keys),
            (Kind::Swap, 0) => Command::Swap(self.mix.keys),
            (Kind::Expiring | Kind::Flush | Kind::Swap, _) => Command::Mget(self.keys(2, self.mix.keys)),
            (Kind::Local, _) => Command::Ping,
            (Kind::Scripts, _) => Command::Script(Script::Declared, self.commands(false)),
            (Kind::UndeclaredScripts, 0..3) => Command::Script(Script::Undeclared, self.commands(false)),
            (Kind::UndeclaredScripts, _) => {
                let number = self.random.next_u64();
                Command::Script(Script::Unmet(number), self.commands(false))
            }
            (Kind::Functions, _) => Command::Script(Script::Function, self.commands(false)),
            (Kind::UndeclaredFunctions, _) => Command::Script(Script::UndeclaredFunction, self.commands(false)),
            (Kind::Transactions | Kind::Watching, _) => unreachable!("no commands"),
            (Kind::Texts, 0) => Command::Get(self.text()),
            (Kind::Texts, 1) => Command::Set(self.text(), self.value()),
            (Kind::Texts, 2) => Command::Incr(self.text()),
            (Kind::Texts, 3) => Command::Append(self.text(), self.value()),
            (Kind::Texts, _) => Command::Del(vec![self.text()]),
        }
    }

    fn value(&mut self) -> String {
        self.next_value = (self.next_value + 1) % (9 * VALUE_MIN);
        (VALUE_MIN + self.next_value).to_string()
    }

    /// Returns different keys of any kind: at least `least` and at most `most`.
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
