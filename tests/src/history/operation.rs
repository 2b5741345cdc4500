//! What clients do, and how it is sent.

use std::fmt::Write;

use crate::Reply;

/// A key of a window: its index among the window's names.
pub type Key = usize;

/// A command of the model.
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
    /// `LRANGE` of all
    Range(Key),
}

/// How a script is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Script {
    /// Its keys are declared.
    Declared,
    /// None is; the server has met the script before.
    Undeclared,
    /// The first key only is, and the script is one that the server hasn't met: of this number.
    Unmet(u64),
}

/// What takes effect at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// A command by itself.
    One(Command),
    /// `WATCH`
    Watch(Vec<Key>),
    /// `MULTI`, commands, `EXEC`
    Exec(Vec<Command>),
    /// `EVAL` of a script that runs these commands
    Script(Script, Vec<Command>),
    /// `BLPOP`
    BlockingPop(Vec<Key>),
    /// `BLMOVE` from the left of one list to the right of another
    BlockingMove(Key, Key),
}

/// Longest wait of a blocking command, seconds: some dozen commands' time.
const BLOCKING_S: &str = "0.02";

impl Command {
    /// The keys that it touches.
    #[must_use]
    pub fn keys(&self) -> Vec<Key> {
        match self {
            Command::Get(key)
            | Command::Set(key, _)
            | Command::Incr(key)
            | Command::Append(key, _)
            | Command::Push(key, _)
            | Command::Pop(key)
            | Command::Range(key) => vec![*key],
            Command::Del(keys) | Command::Mget(keys) => keys.clone(),
            Command::Mset(pairs) => pairs.iter().map(|(key, _)| *key).collect(),
            Command::Rename(from, to) => vec![*from, *to],
        }
    }

    /// Its words, with the window's names of keys.
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
        }
    }
}

/// Whether a command that was answered so has changed nothing, whatever the keys held.
fn changes_nothing(command: &Command, reply: &Reply) -> bool {
    match (command, reply) {
        (Command::Get(_) | Command::Mget(_) | Command::Range(_), _) | (_, Reply::Error(_)) => true,
        (Command::Del(_), Reply::Integer(count)) => *count == 0,
        (Command::Pop(_), Reply::Null) => true,
        _ => false,
    }
}

impl Operation {
    /// Whether it has changed nothing, whatever the keys held, when it was answered so.
    #[must_use]
    pub fn changes_nothing(&self, reply: &Reply) -> bool {
        match (self, reply) {
            (Operation::One(command), _) => changes_nothing(command, reply),
            (Operation::Exec(commands) | Operation::Script(_, commands), Reply::Array(replies)) => {
                commands.iter().zip(replies).all(|(command, reply)| changes_nothing(command, reply))
            }
            // A transaction that is refused could have been refused at any later moment, too.
            (Operation::Exec(_) | Operation::BlockingPop(_) | Operation::BlockingMove(..), _) => {
                matches!(reply, Reply::Null | Reply::Error(_))
            }
            (Operation::Watch(_) | Operation::Script(..), _) => false,
        }
    }

    /// The keys that it touches.
    #[must_use]
    pub fn keys(&self) -> Vec<Key> {
        match self {
            Operation::One(command) => command.keys(),
            Operation::Watch(keys) | Operation::BlockingPop(keys) => keys.clone(),
            Operation::Exec(commands) | Operation::Script(_, commands) => {
                commands.iter().flat_map(Command::keys).collect()
            }
            Operation::BlockingMove(from, to) => vec![*from, *to],
        }
    }

    /// The commands that make it up, of which the last one's reply is its own.
    #[must_use]
    pub fn requests(&self, names: &[String]) -> Vec<Vec<String>> {
        let over = |command: &str, keys: &[Key]| {
            std::iter::once(command.to_owned()).chain(keys.iter().map(|key| names[*key].clone())).collect::<Vec<_>>()
        };
        match self {
            Operation::One(command) => vec![command.words(names)],
            Operation::Watch(keys) => vec![over("WATCH", keys)],
            Operation::Exec(commands) => {
                let mut requests = vec![vec!["MULTI".to_owned()]];
                requests.extend(commands.iter().map(|command| command.words(names)));
                requests.push(vec!["EXEC".to_owned()]);
                requests
            }
            Operation::Script(script, commands) => vec![script.words(commands, names)],
            Operation::BlockingPop(keys) => {
                let mut words = over("BLPOP", keys);
                words.push(BLOCKING_S.to_owned());
                vec![words]
            }
            Operation::BlockingMove(from, to) => {
                let mut words = over("BLMOVE", &[*from, *to]);
                words.extend(["LEFT", "RIGHT", BLOCKING_S].map(str::to_owned));
                vec![words]
            }
        }
    }
}

impl Script {
    fn words(self, commands: &[Command], names: &[String]) -> Vec<String> {
        let mut text = "local replies = {} \
            for i, words in ipairs(cjson.decode(ARGV[1])) do replies[i] = redis.pcall(unpack(words)) end \
            return replies"
            .to_owned();
        let mut keys: Vec<Key> = commands.iter().flat_map(Command::keys).collect();
        match self {
            Script::Declared => {}
            Script::Undeclared => {
                text.push_str(" -- its keys aren't declared");
                keys.clear();
            }
            Script::Unmet(number) => {
                let _ = write!(text, " -- {number}");
                keys.truncate(1);
            }
        }
        let mut words = vec!["EVAL".to_owned(), text, keys.len().to_string()];
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
