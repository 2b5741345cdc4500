//! Test support for keyed handlers (handlers that run while their shards are held). Provides shards
//! and an executor, without sockets or other threads.

use pantala_base::number::parse_i64;
use pantala_engine::access::{KeyPlace, SessionView};
use pantala_engine::command::Permit;
use pantala_engine::command::{Command, Route, keys_of};
use pantala_engine::executor::{Call, Executor, Ran};
use pantala_engine::keyspace::{Execution, Keyspace, Layout, WorkerPort};
use pantala_resp::value::parse_reply;
use pantala_resp::{ArgRange, Args, Version};

use crate::records::resolve;

/// Initial time, Unix time in ms.
pub(crate) const START_MS: i64 = 1_700_000_000_000;

pub(crate) struct TestServer {
    pub(crate) keyspace: Keyspace,
    pub(crate) session: SessionView,
    pub(crate) now_ms: i64,
}

impl TestServer {
    pub(crate) fn new(shards: u32) -> Self {
        let layout = Layout {
            shards,
            partitions: shards,
            databases: 16,
            homes: 1,
            workers: 2,
            execution: Execution::Inline,
            seed: 42,
            random_seed: 42,
        };
        let ports = (0..2).map(|_| WorkerPort::new(Box::new(|| {}))).collect();
        let session = SessionView {
            client: 1,
            db: 0,
            version: Version::Resp2,
            no_touch: false,
            of_primary: false,
            in_script: false,
            permit: Permit::default(),
        };
        TestServer { keyspace: Keyspace::new(layout, ports), session, now_ms: START_MS }
    }

    /// Runs a command and returns its encoded reply.
    pub(crate) fn raw(&mut self, arguments: &[&[u8]]) -> Vec<u8> {
        self.raw_on(&mut Executor::new(&self.keyspace, 0), self.now_ms, arguments)
    }

    /// Runs a command on the executor of a worker whose time is `now_ms`.
    pub(crate) fn raw_on(&self, executor: &mut Executor<'_>, now_ms: i64, arguments: &[&[u8]]) -> Vec<u8> {
        let (mut bytes, mut ranges) = (Vec::new(), Vec::new());
        for argument in arguments {
            ranges.push(ArgRange::new(bytes.len(), argument.len()));
            bytes.extend_from_slice(argument);
        }
        let args = Args::new(&bytes, &ranges);
        let command = match resolve(&args) {
            Ok(command) => command,
            Err(unresolved) => return [b"-", unresolved.message(&args).as_slice(), b"\r\n"].concat(),
        };
        let (shards, first_key) = self.route(command, &args);
        let call = Call { command, args, first_key, session: self.session, reads_as: None, connection: 0, now_ms };
        let mut reply = Vec::new();
        let ran = match (first_key, shards.as_slice()) {
            (Some(place), [_]) => executor.run_single(&call, place, &mut reply),
            _ => executor.run_many(&call, &shards, &mut reply),
        };
        assert_eq!(ran, Ran::Done, "no other thread holds a shard");
        let whole = parse_reply(&reply).expect("a well-formed reply").map(|(_, len)| len);
        assert_eq!(whole, Some(reply.len()), "exactly one reply: {}", reply.escape_ascii());
        reply
    }

    fn route(&self, command: &Command, args: &Args<'_>) -> (Vec<u32>, Option<KeyPlace>) {
        let mut shards = Vec::new();
        let mut first_key = None;
        match command.route {
            Route::None => panic!("{} has no keys", command.full_name),
            Route::All => shards.extend(0..self.keyspace.partition_count()),
            Route::Custom(choose) => {
                choose(&self.keyspace, &self.session, args, &mut shards);
                // If the call's keys cannot be found, there are no shards. As in the server, an
                // arbitrary one is taken, because the handler only replies with an error.
                if shards.is_empty() {
                    shards.push(0);
                }
            }
            Route::Keys => {
                let mut keys = Vec::new();
                // If the call's keys cannot be found, an arbitrary key is used, as in the server:
                // the handler only replies with an error.
                if keys_of(command, args, &mut keys).is_err() {
                    keys = vec![1];
                }
                let places: Vec<KeyPlace> = keys.iter().map(|&key| self.keyspace.place(args.at(key))).collect();
                first_key = places.first().copied();
                shards.extend(places.iter().map(|place| place.shard));
            }
        }
        (shards, first_key)
    }

    /// Runs a command given as words separated by spaces. Returns the lines of its reply joined by
    /// spaces, without the lengths of bulk strings.
    pub(crate) fn run(&mut self, command: &str) -> String {
        let words: Vec<&[u8]> = command.split(' ').map(str::as_bytes).collect();
        let reply = self.raw(&words);
        readable(&reply)
    }

    /// Runs a command that replies with an array of bulk strings, and returns them.
    pub(crate) fn list(&mut self, command: &str) -> Vec<String> {
        let reply = self.run(command);
        reply.split(' ').skip(1).map(str::to_owned).collect()
    }

    /// Asserts the reply to each command.
    #[track_caller]
    pub(crate) fn expect(&mut self, script: &[(&str, &str)]) {
        for (command, reply) in script {
            assert_eq!(self.run(command), *reply, "{command}");
        }
    }

    /// Asserts the counters of the selected database.
    #[track_caller]
    pub(crate) fn check_counts(&mut self, keys: u64, expires: u64) {
        assert_eq!(self.keyspace.database_size(self.session.db), (keys, expires), "keys, keys with an expiry");
    }

    pub(crate) fn heap_bytes(&self) -> u64 {
        let shards = 0..self.keyspace.partition_count();
        shards.flat_map(|shard| self.keyspace.database_stats_of_shard(shard)).map(|stats| stats.heap_bytes.get()).sum()
    }

    pub(crate) fn hits_and_misses(&self) -> (u64, u64) {
        let shards = 0..self.keyspace.partition_count();
        shards
            .map(|shard| self.keyspace.shard_stats(shard))
            .fold((0, 0), |(hits, misses), stats| (hits + stats.hits.get(), misses + stats.misses.get()))
    }
}

fn readable(reply: &[u8]) -> String {
    let text = reply.escape_ascii().to_string().replace("\\'", "'");
    let lines = text.split("\\r\\n").filter(|line| !line.is_empty());
    let is_length =
        |line: &&str| line.strip_prefix('$').and_then(|len| parse_i64(len.as_bytes())).is_some_and(|len| len > 0);
    lines.filter(|line| !is_length(line)).collect::<Vec<_>>().join(" ")
}
