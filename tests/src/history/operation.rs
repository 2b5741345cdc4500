//! Operations of clients, and the requests that perform them.

use std::fmt::Write;

use crate::Reply;

/// A key of a window: its index among the [names](super::record::names) of the window's keys.
pub type Key = usize;

/// A command that clients send and that the model can execute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// `GET`
    Get(Key),
    /// `SET`
    Set(Key, String),
    /// `INCR`
    Incr(Key),
    /// `APPEND`
    Append(Key, String),
    /// `DEL`
    Del(Vec<Key>),
    /// `MSET`
    Mset(Vec<(Key, String)>),
    /// `MGET`
    Mget(Vec<Key>),
    /// `RENAME`
    Rename(Key, Key),
    /// `RPUSH` of one element
    Push(Key, String),
    /// `LPOP`
    Pop(Key),
    /// `LRANGE` of all elements
    Range(Key),
    /// `LMOVE` from the left end of one list to the right end of another. In a transaction,
    /// `BLMOVE` is sent instead, which doesn't block there
    Move(Key, Key),
    /// `BLPOP` in a transaction, where it doesn't block: pops from the first existing key
    PopFirst(Vec<Key>),
    /// `PEXPIRE` with [`EXPIRE_MS`]. The number identifies the TTL in its window, and is less than
    /// [`EXPIRIES_MAX`]
    Expire(Key, u8),
    /// `FLUSHALL`, with the number of keys of the window
    Flush(usize),
    /// `SWAPDB 0 1`, with the number of keys of the window
    Swap(usize),
    /// `PING`, which has no key
    Ping,
    /// A script or a function that runs these commands
    Script(Script, Vec<Command>),
}

/// How a script or a function is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Script {
    /// `EVAL` with declared keys.
    Declared,
    /// `EVAL` of a script that the server has cached, without declared keys.
    Undeclared,
    /// `EVAL` of a script that the server hasn't cached. The call declares only the keys of the
    /// script's first command. The number makes the script's text unique.
    Unmet(u64),
    /// `FCALL` of a function of [`library`], with declared keys.
    Function,
    /// `FCALL` of another function of [`library`], without declared keys.
    UndeclaredFunction,
    /// `FCALL` of a function in the library with this number. The call declares only the keys of
    /// its first command. The library is reloaded just before the call, so that the server doesn't
    /// know yet that the function needs more keys. The reload is a separate command, so this kind
    /// of call can't be in a transaction.
    UnmetFunction(usize),
}

/// The script that all calls use. It runs the commands in its first argument and returns their
/// replies.
const RUN: &str = "local replies = {} \
    for i, words in ipairs(cjson.decode(ARGV[1])) do replies[i] = redis.pcall(unpack(words)) end \
    return replies";

/// Returns the library of functions that [`Script::Function`] and [`Script::UndeclaredFunction`]
/// need.
#[must_use]
pub fn library() -> String {
    library_of("history", &["declared", "undeclared"])
}

fn library_of(name: &str, functions: &[&str]) -> String {
    let mut text = format!("#!lua name={name}\nlocal function run(KEYS, ARGV) {RUN} end\n");
    for function in functions {
        let _ = writeln!(text, "redis.register_function('{function}', run)");
    }
    text
}

/// An operation that takes effect at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// A command by itself.
    One(Command),
    /// `WATCH`
    Watch(Vec<Key>),
    /// `MULTI`, commands, `EXEC`
    Exec(Vec<Command>),
    /// `BLPOP`
    BlockingPop(Vec<Key>),
    /// `BLMOVE` from the left end of one list to the right end of another
    BlockingMove(Key, Key),
    /// The TTL with this number, which was set on this key, expires. No client sends this
    /// operation. The expiry deletes the key that now has the TTL, which may be another key after a
    /// `RENAME`
    Expires(Key, u8),
}

/// Timeout of a blocking command, in seconds. Dozens of commands run in this time.
const BLOCKING_S: &str = "0.02";

/// TTL in ms. A few commands run in this time.
pub const EXPIRE_MS: u64 = 3;

/// Maximum number of TTLs set in a window. Each has a bit in the model's state.
pub const EXPIRIES_MAX: u8 = 64;

impl Command {
    /// Returns the keys that the command accesses.
    #[must_use]
    pub fn keys(&self) -> Vec<Key> {
        match self {
            Command::Get(key)
            | Command::Set(key, _)
            | Command::Incr(key)
            | Command::Append(key, _)
            | Command::Push(key, _)
            | Command::Pop(key)
            | Command::Expire(key, _)
            | Command::Range(key) => vec![*key],
            Command::Del(keys) | Command::Mget(keys) | Command::PopFirst(keys) => keys.clone(),
            Command::Flush(count) | Command::Swap(count) => (0..*count).collect(),
            Command::Ping => Vec::new(),
            Command::Script(_, commands) => commands.iter().flat_map(Command::keys).collect(),
            Command::Mset(pairs) => pairs.iter().map(|(key, _)| *key).collect(),
            Command::Rename(from, to) | Command::Move(from, to) => vec![*from, *to],
        }
    }

    /// Returns the command's arguments, with the window's names of keys.
    #[must_use]
    pub fn words(&self, names: &[String]) -> Vec<String> {
        let name = |key: &Key| names[*key].clone();
        let over = |command: &str, keys: &[Key]| {
            std::iter::once(command.to_owned()).chain(keys.iter().map(name)).collect::<Vec<_>>()
        };
        match self {
            Command::Get(key) => over("GET", &[*key]),
            Command::Set(key, value) => vec!["SET".into(), name(key), value.clone()],
            Command::Incr(key) => over("INCR", &[*key]),
            Command::Append(key, value) => vec!["APPEND".into(), name(key), value.clone()],
            Command::Del(keys) => over("DEL", keys),
            Command::Mset(pairs) => {
                let words = pairs.iter().flat_map(|(key, value)| [name(key), value.clone()]);
                std::iter::once("MSET".to_owned()).chain(words).collect()
            }
            Command::Mget(keys) => over("MGET", keys),
            Command::Rename(from, to) => over("RENAME", &[*from, *to]),
            Command::Push(key, value) => vec!["RPUSH".into(), name(key), value.clone()],
            Command::Pop(key) => over("LPOP", &[*key]),
            Command::Range(key) => vec!["LRANGE".into(), name(key), "0".into(), "-1".into()],
            Command::Move(from, to) => with(over("LMOVE", &[*from, *to]), &["LEFT", "RIGHT"]),
            Command::PopFirst(keys) => with(over("BLPOP", keys), &[BLOCKING_S]),
            Command::Expire(key, _) => with(over("PEXPIRE", &[*key]), &[&EXPIRE_MS.to_string()]),
            Command::Flush(_) => vec!["FLUSHALL".into()],
            Command::Swap(_) => ["SWAPDB", "0", "1"].map(str::to_owned).to_vec(),
            Command::Ping => vec!["PING".into()],
            Command::Script(script, commands) => script.words(commands, names),
        }
    }

    /// Returns the command's arguments in a transaction.
    fn queued_words(&self, names: &[String]) -> Vec<String> {
        let words = self.words(names);
        match self {
            Command::Move(..) => [vec!["BLMOVE".to_owned()], with(words[1..].to_vec(), &[BLOCKING_S])].concat(),
            _ => words,
        }
    }

    /// Returns the TTLs that the command has set, according to its reply.
    fn expiries(&self, reply: &Reply) -> Vec<(Key, u8)> {
        match (self, reply) {
            (Command::Expire(key, number), Reply::Integer(1)) => vec![(*key, *number)],
            (Command::Script(_, commands), Reply::Array(replies)) => expiries(commands, replies),
            _ => Vec::new(),
        }
    }
}

fn with(mut words: Vec<String>, more: &[&str]) -> Vec<String> {
    words.extend(more.iter().map(|word| (*word).to_owned()));
    words
}

fn expiries(commands: &[Command], replies: &[Reply]) -> Vec<(Key, u8)> {
    commands.iter().zip(replies).flat_map(|(command, reply)| command.expiries(reply)).collect()
}

/// Returns whether the reply alone, without the contents of the keys, shows that the command has
/// changed nothing.
fn changes_nothing(command: &Command, reply: &Reply) -> bool {
    match (command, reply) {
        (Command::Script(_, commands), Reply::Array(replies)) => all_change_nothing(commands, replies),
        (Command::Script(..), _) => false,
        (Command::Get(_) | Command::Mget(_) | Command::Range(_) | Command::Ping, _) | (_, Reply::Error(_)) => true,
        (Command::Del(_) | Command::Expire(..), Reply::Integer(count)) => *count == 0,
        (Command::Pop(_) | Command::Move(..) | Command::PopFirst(_), Reply::Null) => true,
        _ => false,
    }
}

fn all_change_nothing(commands: &[Command], replies: &[Reply]) -> bool {
    commands.iter().zip(replies).all(|(command, reply)| changes_nothing(command, reply))
}

impl Operation {
    /// Returns whether the reply alone, without the contents of the keys, shows that the operation
    /// has changed nothing.
    #[must_use]
    pub fn changes_nothing(&self, reply: &Reply) -> bool {
        match (self, reply) {
            (Operation::One(command), _) => changes_nothing(command, reply),
            (Operation::Exec(commands), Reply::Array(replies)) => all_change_nothing(commands, replies),
            // An aborted transaction would also be aborted at any later moment.
            (Operation::Exec(_) | Operation::BlockingPop(_) | Operation::BlockingMove(..), _) => {
                matches!(reply, Reply::Null | Reply::Error(_))
            }
            (Operation::Watch(_) | Operation::Expires(..), _) => false,
        }
    }

    /// Returns the keys that the operation accesses.
    #[must_use]
    pub fn keys(&self) -> Vec<Key> {
        match self {
            Operation::One(command) => command.keys(),
            Operation::Watch(keys) | Operation::BlockingPop(keys) => keys.clone(),
            Operation::Exec(commands) => commands.iter().flat_map(Command::keys).collect(),
            Operation::BlockingMove(from, to) => vec![*from, *to],
            Operation::Expires(key, _) => vec![*key],
        }
    }

    /// Returns the TTLs that the operation has set, according to its reply: key and number.
    #[must_use]
    pub fn expiries(&self, reply: &Reply) -> Vec<(Key, u8)> {
        match (self, reply) {
            (Operation::One(command), _) => command.expiries(reply),
            (Operation::Exec(commands), Reply::Array(replies)) => expiries(commands, replies),
            _ => Vec::new(),
        }
    }

    /// Returns the operation's commands. The reply of the last one is the operation's reply.
    ///
    /// # Panics
    /// If no client can send the operation.
    #[must_use]
    pub fn requests(&self, names: &[String]) -> Vec<Vec<String>> {
        let over = |command: &str, keys: &[Key]| {
            std::iter::once(command.to_owned()).chain(keys.iter().map(|key| names[*key].clone())).collect::<Vec<_>>()
        };
        match self {
            Operation::One(Command::Script(script @ Script::UnmetFunction(number), commands)) => {
                let name = format!("unmet{number}");
                let load = ["FUNCTION", "LOAD", "REPLACE", &library_of(&name, &[&name])];
                vec![load.map(str::to_owned).to_vec(), script.words(commands, names)]
            }
            Operation::One(command) => vec![command.words(names)],
            Operation::Watch(keys) => vec![over("WATCH", keys)],
            Operation::Exec(commands) => {
                let mut requests = vec![vec!["MULTI".to_owned()]];
                requests.extend(commands.iter().map(|command| command.queued_words(names)));
                requests.push(vec!["EXEC".to_owned()]);
                requests
            }
            Operation::BlockingPop(keys) => vec![with(over("BLPOP", keys), &[BLOCKING_S])],
            Operation::BlockingMove(from, to) => {
                vec![with(over("BLMOVE", &[*from, *to]), &["LEFT", "RIGHT", BLOCKING_S])]
            }
            Operation::Expires(..) => unreachable!("no client sends it"),
        }
    }
}

impl Script {
    fn words(self, commands: &[Command], names: &[String]) -> Vec<String> {
        let declared = match self {
            Script::Declared | Script::Function => commands,
            Script::Undeclared | Script::UndeclaredFunction => &[],
            Script::Unmet(_) | Script::UnmetFunction(_) => &commands[..1],
        };
        let keys: Vec<Key> = declared.iter().flat_map(Command::keys).collect();
        let (command, called) = match self {
            Script::Declared => ("EVAL", RUN.to_owned()),
            Script::Undeclared => ("EVAL", format!("{RUN} -- its keys aren't declared")),
            Script::Unmet(number) => ("EVAL", format!("{RUN} -- {number}")),
            Script::Function => ("FCALL", "declared".to_owned()),
            Script::UndeclaredFunction => ("FCALL", "undeclared".to_owned()),
            Script::UnmetFunction(number) => ("FCALL", format!("unmet{number}")),
        };
        let mut words = vec![command.to_owned(), called, keys.len().to_string()];
        words.extend(keys.iter().map(|key| names[*key].clone()));
        let json: Vec<String> = commands
            .iter()
            .map(|command| {
                let words: Vec<String> = command.words(names).iter().map(|word| format!("\"{word}\"")).collect();
                format!("[{}]", words.join(","))
            })
            .collect();
        words.push(format!("[{}]", json.join(",")));
        words
    }
}
