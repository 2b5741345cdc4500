//! The model: the state and replies of a single-threaded server. Keys and TTLs are numbers, see
//! [`super::operation`].

use std::collections::VecDeque;
use std::rc::Rc;

use super::operation::EXPIRIES_MAX;
use super::{Command, Event, Key, Operation, record};
use crate::Reply;

/// Value of a key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Value {
    /// A string.
    Text(String),
    /// A list, never empty.
    List(VecDeque<String>),
}

/// An existing key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Entry {
    value: Value,
    /// The number that identifies the key's TTL in the window, or `None` without a TTL.
    expiry: Option<u8>,
}

/// The entry of each key, up to the last existing key.
type Database = Vec<Option<Rc<Entry>>>;

/// Keys that a client watches.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Watched {
    client: usize,
    /// One bit for each key.
    keys: u64,
    /// Whether one of the keys has changed since the `WATCH`.
    is_changed: bool,
}

/// Maximum number of keys of a window: bits of `Watched::keys`.
pub const KEYS_MAX: usize = 64;

/// The whole state. A search creates many states, so copies must be cheap.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct State {
    /// The database that all clients use.
    keys: Database,
    /// The database with which `SWAPDB` exchanges `keys`.
    other: Database,
    /// One bit for each TTL that was set.
    expiries: u64,
    /// Watches, in order of the clients.
    watching: Vec<Watched>,
}

const WRONG_TYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";
const NO_SUCH_KEY: &str = "ERR no such key";
const NO_INTEGER: &str = "ERR value is not an integer or out of range";

impl State {
    /// Returns the state after an event. Returns `None` if a server in this state would have given
    /// another reply.
    #[must_use]
    pub fn after(&self, event: &Event) -> Option<State> {
        let mut next = self.clone();
        next.happens(event).then_some(next)
    }

    fn happens(&mut self, event: &Event) -> bool {
        let reply = &event.reply;
        match &event.operation {
            Operation::One(command) => self.apply(command) == *reply,
            Operation::Watch(keys) => {
                self.watch(event.client, keys);
                *reply == Reply::ok()
            }
            Operation::Exec(commands) => {
                let at = self.watching.binary_search_by_key(&event.client, |watched| watched.client);
                let is_changed = at.is_ok_and(|at| self.watching.remove(at).is_changed);
                if is_changed { *reply == Reply::Null } else { self.all(commands) == *reply }
            }
            Operation::BlockingPop(keys) => self.blocking_pop(keys, reply),
            Operation::BlockingMove(from, to) => self.blocking_move(*from, *to, reply),
            Operation::Expires(_, number) => self.expires(*number),
        }
    }

    /// Expires a TTL: deletes the key that has it. Returns false if no command has set the TTL yet.
    fn expires(&mut self, number: u8) -> bool {
        let has_it = |entry: &Option<Rc<Entry>>| entry.as_ref().is_some_and(|entry| entry.expiry == Some(number));
        if let Some(key) = self.keys.iter().position(has_it) {
            self.put(key, None);
        }
        if let Some(key) = self.other.iter().position(has_it) {
            self.other[key] = None;
            trim(&mut self.other);
        }
        self.expiries & (1 << number) != 0
    }

    fn all(&mut self, commands: &[Command]) -> Reply {
        Reply::Array(commands.iter().map(|command| self.apply(command)).collect())
    }

    /// Applies `BLPOP`. If several keys have elements, the pop may be from any of them, because a
    /// blocked client is served from the key that gets an element first. The reply may be null only
    /// if no key has elements.
    fn blocking_pop(&mut self, keys: &[Key], reply: &Reply) -> bool {
        match reply {
            Reply::Null => keys.iter().all(|key| !matches!(self.value(*key), Some(Value::List(_)))),
            Reply::Error(_) => {
                reply_is(reply, WRONG_TYPE) && keys.iter().any(|key| matches!(self.value(*key), Some(Value::Text(_))))
            }
            Reply::Array(items) => {
                let [Reply::Bulk(name), item] = items.as_slice() else { return false };
                let key = record::key_of(name);
                keys.contains(&key)
                    && matches!(self.value(key), Some(Value::List(_)))
                    && self.apply(&Command::Pop(key)) == *item
            }
            _ => false,
        }
    }

    fn blocking_move(&mut self, from: Key, to: Key, reply: &Reply) -> bool {
        match (self.value(from), self.value(to)) {
            // A client that is already blocked stays blocked if the key becomes a string. Both a
            // null and an error are therefore right.
            (None, _) => *reply == Reply::Null,
            (Some(Value::Text(_)), _) => *reply == Reply::Null || reply_is(reply, WRONG_TYPE),
            (Some(Value::List(_)), Some(Value::Text(_))) => reply_is(reply, WRONG_TYPE),
            (Some(Value::List(_)), _) => self.apply(&Command::Move(from, to)) == *reply,
        }
    }

    /// Runs a command.
    fn apply(&mut self, command: &Command) -> Reply {
        match command {
            Command::Get(key) => self.text(*key),
            Command::Set(key, value) => {
                self.set(*key, value);
                Reply::ok()
            }
            Command::Incr(key) => self.incr(*key),
            Command::Append(key, value) => {
                let mut text = match self.value(*key) {
                    None => String::new(),
                    Some(Value::Text(text)) => text.clone(),
                    Some(Value::List(_)) => return Reply::Error(WRONG_TYPE.into()),
                };
                text.push_str(value);
                let len = text.len();
                self.change(*key, Value::Text(text));
                Reply::Integer(len as i64)
            }
            Command::Del(keys) => Reply::Integer(keys.iter().filter(|key| self.del(**key)).count() as i64),
            Command::Mset(pairs) => {
                pairs.iter().for_each(|(key, value)| self.set(*key, value));
                Reply::ok()
            }
            Command::Mget(keys) => {
                let of = |key: &Key| match self.value(*key) {
                    Some(Value::Text(text)) => Reply::bulk(text),
                    _ => Reply::Null,
                };
                Reply::Array(keys.iter().map(of).collect())
            }
            Command::Rename(from, to) => self.rename(*from, *to),
            Command::Push(key, value) => self.push(*key, value),
            Command::Pop(key) => self.pop(*key),
            Command::Range(key) => match self.value(*key) {
                None => Reply::Array(Vec::new()),
                Some(Value::List(items)) => Reply::Array(items.iter().map(Reply::bulk).collect()),
                Some(Value::Text(_)) => Reply::Error(WRONG_TYPE.into()),
            },
            Command::Move(from, to) => self.move_between(*from, *to),
            Command::PopFirst(keys) => self.pop_first(keys),
            Command::Expire(key, number) => self.expire(*key, *number),
            Command::Flush(count) => {
                (0..*count).for_each(|key| _ = self.del(key));
                self.other.clear();
                Reply::ok()
            }
            Command::Swap(count) => self.swap(*count),
            Command::Ping => Reply::Simple("PONG".into()),
            Command::Script(_, commands) => through_lua(self.all(commands)),
        }
    }

    fn text(&self, key: Key) -> Reply {
        match self.value(key) {
            None => Reply::Null,
            Some(Value::Text(text)) => Reply::bulk(text),
            Some(Value::List(_)) => Reply::Error(WRONG_TYPE.into()),
        }
    }

    fn set(&mut self, key: Key, value: &str) {
        self.put(key, Some(Rc::new(Entry { value: Value::Text(value.to_owned()), expiry: None })));
    }

    /// Sets the value of a key, and keeps the key's TTL.
    fn change(&mut self, key: Key, value: Value) {
        let expiry = self.keys.get(key).and_then(|entry| entry.as_ref()?.expiry);
        self.put(key, Some(Rc::new(Entry { value, expiry })));
    }

    fn del(&mut self, key: Key) -> bool {
        let was_there = self.value(key).is_some();
        if was_there {
            self.put(key, None);
        }
        was_there
    }

    fn incr(&mut self, key: Key) -> Reply {
        let number = match self.value(key) {
            None => 0,
            Some(Value::List(_)) => return Reply::Error(WRONG_TYPE.into()),
            Some(Value::Text(text)) => match text.parse::<i64>() {
                Ok(number) => number,
                Err(_) => return Reply::Error(NO_INTEGER.into()),
            },
        };
        self.change(key, Value::Text((number + 1).to_string()));
        Reply::Integer(number + 1)
    }

    fn rename(&mut self, from: Key, to: Key) -> Reply {
        let Some(Some(entry)) = self.keys.get(from).cloned() else { return Reply::Error(NO_SUCH_KEY.into()) };
        if from != to {
            self.put(from, None);
            self.put(to, Some(entry));
        }
        Reply::ok()
    }

    fn push(&mut self, key: Key, value: &str) -> Reply {
        let mut items = match self.value(key) {
            None => VecDeque::new(),
            Some(Value::Text(_)) => return Reply::Error(WRONG_TYPE.into()),
            Some(Value::List(items)) => items.clone(),
        };
        items.push_back(value.to_owned());
        let len = items.len();
        self.change(key, Value::List(items));
        Reply::Integer(len as i64)
    }

    fn pop(&mut self, key: Key) -> Reply {
        let mut items = match self.value(key) {
            None => return Reply::Null,
            Some(Value::Text(_)) => return Reply::Error(WRONG_TYPE.into()),
            Some(Value::List(items)) => items.clone(),
        };
        let first = items.pop_front().unwrap_or_default();
        if items.is_empty() {
            self.put(key, None);
        } else {
            self.change(key, Value::List(items));
        }
        Reply::bulk(first)
    }

    fn move_between(&mut self, from: Key, to: Key) -> Reply {
        match (self.value(from), self.value(to)) {
            (None, _) => Reply::Null,
            (Some(Value::Text(_)), _) | (_, Some(Value::Text(_))) => Reply::Error(WRONG_TYPE.into()),
            (Some(Value::List(items)), _) if from == to => {
                let mut items = items.clone();
                items.rotate_left(1);
                let moved = Reply::bulk(items.back().expect("no list is empty"));
                self.change(from, Value::List(items));
                moved
            }
            _ => {
                let Reply::Bulk(moved) = self.pop(from) else { unreachable!("it is a list") };
                self.push(to, &String::from_utf8_lossy(&moved));
                Reply::Bulk(moved)
            }
        }
    }

    fn pop_first(&mut self, keys: &[Key]) -> Reply {
        let Some(key) = keys.iter().copied().find(|key| self.value(*key).is_some()) else { return Reply::Null };
        match self.pop(key) {
            error @ Reply::Error(_) => error,
            element => Reply::Array(vec![Reply::bulk(record::model_name(key)), element]),
        }
    }

    fn expire(&mut self, key: Key, number: u8) -> Reply {
        assert!(number < EXPIRIES_MAX, "a window has at most {EXPIRIES_MAX} TTLs");
        self.expiries |= 1 << number;
        let Some(value) = self.value(key).cloned() else { return Reply::Integer(0) };
        self.put(key, Some(Rc::new(Entry { value, expiry: Some(number) })));
        Reply::Integer(1)
    }

    /// Swaps the databases. For watches, a key counts as changed if it existed in either database.
    fn swap(&mut self, keys: usize) -> Reply {
        for key in 0..keys {
            if self.keys.get(key).is_some_and(Option::is_some) || self.other.get(key).is_some_and(Option::is_some) {
                self.is_changed(key);
            }
        }
        std::mem::swap(&mut self.keys, &mut self.other);
        Reply::ok()
    }

    fn value(&self, key: Key) -> Option<&Value> {
        Some(&self.keys.get(key)?.as_ref()?.value)
    }

    /// Changes a key and invalidates its watches.
    fn put(&mut self, key: Key, entry: Option<Rc<Entry>>) {
        if key >= self.keys.len() {
            self.keys.resize(key + 1, None);
        }
        self.keys[key] = entry;
        trim(&mut self.keys);
        self.is_changed(key);
    }

    fn is_changed(&mut self, key: Key) {
        for watched in &mut self.watching {
            watched.is_changed |= watched.keys & (1 << key) != 0;
        }
    }

    fn watch(&mut self, client: usize, keys: &[Key]) {
        let at = self.watching.binary_search_by_key(&client, |watched| watched.client).unwrap_or_else(|at| {
            self.watching.insert(at, Watched { client, keys: 0, is_changed: false });
            at
        });
        for key in keys {
            assert!(*key < KEYS_MAX, "a window has at most {KEYS_MAX} keys");
            self.watching[at].keys |= 1 << key;
        }
    }
}

/// Removes deleted keys at the end of a database, so that two equal states compare equal: a deleted
/// key is like one that never existed.
fn trim(database: &mut Database) {
    while database.last().is_some_and(Option::is_none) {
        database.pop();
    }
}

fn reply_is(reply: &Reply, error: &str) -> bool {
    matches!(reply, Reply::Error(text) if text == error)
}

/// Returns a reply as it is after a conversion to Lua and back. Lua's numbers are doubles, so long
/// integers lose their last digits, in Redis too.
fn through_lua(reply: Reply) -> Reply {
    match reply {
        Reply::Integer(number) => Reply::Integer(number as f64 as i64),
        Reply::Array(items) => Reply::Array(items.into_iter().map(through_lua).collect()),
        other => other,
    }
}
