//! Client-side caching (`CLIENT TRACKING`). The tests check four properties. Replies and
//! invalidations equal those of redis-server. Caches are never stale, no matter which client
//! writes. The server's table of tracked keys is bounded. The pending output of a client that
//! doesn't read is bounded.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use pantala_tests::client::encode;
use pantala_tests::concurrent::{Body, run_for};
use pantala_tests::waiting::eventually;
use pantala_tests::{Backend, Client, Random, Reply, Server, for_each_backend};

const PATIENCE: Duration = Duration::from_secs(20);

/// Time for which clients cache keys while others write, for each backend and execution.
const CACHING_MAX: Duration = Duration::from_millis(1500);

/// Returns whether this is a message that no command requested.
fn is_unsolicited(reply: &Reply) -> bool {
    match reply {
        Reply::Push(_) => true,
        Reply::Array(items) => items.first().is_some_and(|first| *first == Reply::bulk("message")),
        _ => false,
    }
}

/// Runs one of the sessions below and returns the replies and messages that each client receives. A
/// session lists clients and their commands, in order. `@n` stands for the ID of client n.
fn transcript(server: &Server, script: &[(usize, &str)]) -> Vec<Vec<String>> {
    const CLIENTS: usize = 4;
    // Raises the next client ID, so that no other number in the replies equals a client ID.
    (0..60).for_each(|_| drop(server.connect()));
    let mut clients: Vec<Client> = (0..CLIENTS).map(|_| server.connect()).collect();
    let ids: Vec<i64> = clients.iter_mut().map(|client| client.call("CLIENT ID").integer()).collect();
    let with_ids = |text: &str, forth: bool| {
        ids.iter().enumerate().fold(text.to_owned(), |text, (number, id)| {
            let (name, id) = (format!("@{number}"), id.to_string());
            if forth { text.replace(&name, &id) } else { text.replace(&format!("Integer({id})"), &name) }
        })
    };
    let mut got: Vec<Vec<String>> = vec![Vec::new(); CLIENTS];
    let end = (0..CLIENTS).map(|client| (client, "ECHO end"));
    for (number, command) in script.iter().copied().chain(end) {
        let words: Vec<String> = command.split(' ').map(|word| with_ids(word, true)).collect();
        // The error is ignored, because the connection may have been closed.
        let _ = clients[number].try_send_raw(&encode(&words));
        loop {
            let Ok((reply, _)) = clients[number].try_receive() else {
                got[number].push("closed".into());
                break;
            };
            got[number].push(with_ids(&format!("{reply:?}"), false));
            if !is_unsolicited(&reply) {
                break;
            }
        }
    }
    got
}

/// Sessions and their names. The keys share a hash tag, so that the scripts and transactions would
/// work in a cluster.
const SESSIONS: &[(&str, &[(usize, &str)])] = &[
    (
        "CLIENT CACHING in a transaction ends with it",
        &[
            (0, "HELLO 3"),
            (0, "CLIENT TRACKING ON OPTOUT"),
            (0, "MULTI"),
            (0, "GET a{t}"),
            (0, "CLIENT CACHING NO"),
            (0, "GET b{t}"),
            (0, "EXEC"),
            (0, "GET c{t}"),
            (1, "SET a{t} 1"),
            (0, "PING"),
            (1, "SET b{t} 1"),
            (0, "PING"),
            (1, "SET c{t} 1"),
            (0, "PING"),
        ],
    ),
    (
        "replies of the commands",
        &[
            (0, "CLIENT TRACKING"),
            (0, "CLIENT TRACKING maybe"),
            (0, "CLIENT TRACKING maybe BCAST"),
            (0, "CLIENT TRACKING off nonsense"),
            (0, "CLIENT TRACKING on PREFIX"),
            (0, "CLIENT TRACKING on PREFIX a"),
            (0, "CLIENT TRACKING on REDIRECT"),
            (0, "CLIENT TRACKING on REDIRECT x"),
            (0, "CLIENT TRACKING on REDIRECT 0"),
            (0, "CLIENT TRACKING on REDIRECT -1"),
            (0, "CLIENT TRACKING on REDIRECT 123456789"),
            (0, "CLIENT TRACKING on REDIRECT @1 REDIRECT @2"),
            (0, "CLIENT TRACKING on BCAST OPTIN"),
            (0, "CLIENT TRACKING on OPTOUT BCAST"),
            (0, "CLIENT TRACKING on OPTIN OPTOUT"),
            (0, "CLIENT CACHING yes"),
            (0, "CLIENT GETREDIR"),
            (0, "CLIENT TRACKINGINFO"),
            (0, "CLIENT GETREDIR x"),
            (0, "CLIENT CACHING"),
            (0, "CLIENT TRACKING oN rEDIRECT @1 optIN noLOOP"),
            (0, "CLIENT GETREDIR"),
            (0, "CLIENT TRACKINGINFO"),
            (0, "CLIENT CACHING maybe"),
            (0, "CLIENT CACHING no"),
            (0, "CLIENT CACHING yes"),
            (0, "CLIENT TRACKINGINFO"),
            (0, "PING"),
            (0, "CLIENT TRACKINGINFO"),
            (0, "CLIENT TRACKING on BCAST"),
            (0, "CLIENT TRACKING on OPTOUT"),
            (0, "CLIENT TRACKING on"),
            (0, "CLIENT TRACKINGINFO"),
            (0, "CLIENT TRACKING off"),
            (0, "CLIENT TRACKING on OPTOUT"),
            (0, "CLIENT CACHING yes"),
            (0, "CLIENT CACHING no"),
            (0, "HELLO 3"),
            (0, "CLIENT TRACKINGINFO"),
            (0, "CLIENT TRACKING off"),
            (0, "CLIENT TRACKINGINFO"),
            (0, "CLIENT TRACKING on BCAST PREFIX foo PREFIX bar"),
            (0, "CLIENT TRACKING on BCAST PREFIX bare"),
            (0, "CLIENT TRACKING on BCAST PREFIX f"),
            (0, "CLIENT TRACKING on BCAST PREFIX x PREFIX xy"),
            (0, "CLIENT TRACKING on BCAST PREFIX baz NOLOOP"),
            (0, "CLIENT TRACKINGINFO"),
            (0, "RESET"),
            (0, "CLIENT TRACKINGINFO"),
        ],
    ),
    (
        "RESP3: reads and invalidations",
        &[
            (0, "HELLO 3"),
            (1, "HELLO 3"),
            (0, "CLIENT TRACKING on"),
            (1, "CLIENT TRACKING on NOLOOP"),
            (2, "MSET a{t} 1 b{t} 2 c{t} 3 d{t} x"),
            (0, "MGET a{t} b{t} none{t}"),
            (1, "GET a{t}"),
            (1, "STRLEN b{t}"),
            (2, "SET a{t} 1"),
            (2, "SET a{t} 2"),
            (0, "PING"),
            (1, "PING"),
            (2, "SETNX none{t} x"),
            (0, "PING"),
            // A client also receives invalidations for its own changes, after the reply to the
            // change. With NOLOOP, it receives none.
            (0, "GET a{t}"),
            (1, "GET a{t}"),
            (0, "INCR a{t}"),
            (0, "PING"),
            (1, "GET a{t}"),
            (1, "INCR a{t}"),
            (1, "PING"),
            // A command that changes nothing invalidates nothing, and only reads are tracked.
            (0, "HGETALL h{t}"),
            (2, "HSET h{t} f v"),
            (0, "HGET h{t} f"),
            (2, "HSET h{t} f w"),
            (2, "HDEL h{t} nothing"),
            (0, "GETSET b{t} 5"),
            (2, "SET b{t} 6"),
            (0, "LRANGE l{t} 0 -1"),
            (2, "RPUSH l{t} x"),
            (0, "TYPE d{t}"),
            (0, "TTL c{t}"),
            (2, "EXPIRE c{t} 100"),
            (2, "RENAME d{t} e{t}"),
            // RENAME moves a large value without a copy. The source is invalidated first.
            (2, "SETRANGE large{t} 100000 x"),
            (0, "EXISTS large{t} moved{t}"),
            (2, "RENAME large{t} moved{t}"),
            (0, "PING"),
            (0, "EXISTS e{t} f{t}"),
            (2, "COPY e{t} f{t}"),
            (0, "SORT_RO l{t} ALPHA"),
            (2, "DEL l{t} e{t}"),
            (0, "SINTERCARD 2 s{t} u{t}"),
            (2, "SADD u{t} x"),
            (2, "SADD u{t} x"),
            (0, "XREAD COUNT 1 STREAMS x{t} 0"),
            (2, "XADD x{t} 1-1 f v"),
            (0, "OBJECT ENCODING f{t}"),
            (2, "APPEND f{t} x"),
            (0, "GET f{t}"),
            (2, "GETDEL f{t}"),
            (0, "PING"),
            // Tracking ignores databases: a change of the same key in another database also
            // invalidates.
            (0, "GET a{t}"),
            (2, "SELECT 5"),
            (2, "SET a{t} there"),
            (0, "PING"),
            (0, "CLIENT TRACKING off"),
            (2, "SET c{t} off"),
            (0, "PING"),
        ],
    ),
    (
        "emptied databases",
        &[
            (0, "HELLO 3"),
            (1, "HELLO 3"),
            (0, "CLIENT TRACKING on"),
            (1, "CLIENT TRACKING on BCAST NOLOOP PREFIX q"),
            (2, "SUBSCRIBE something"),
            (3, "CLIENT TRACKING on REDIRECT @2"),
            (0, "GET a"),
            (3, "GET b"),
            (3, "FLUSHDB"),
            (0, "FLUSHALL ASYNC"),
            (0, "SET a 1"),
            (0, "MULTI"),
            (0, "FLUSHDB"),
            (0, "FLUSHALL"),
            (0, "GET a"),
            (0, "EXEC"),
            (3, "SELECT 3"),
            (3, "SET a 1"),
            (3, "SWAPDB 0 3"),
            (0, "PING"),
        ],
    ),
    (
        "RESP2: redirection to another connection",
        &[
            (1, "SUBSCRIBE __redis__:invalidate"),
            (0, "CLIENT TRACKING on REDIRECT @1"),
            (3, "CLIENT TRACKING on"),
            (0, "MGET a{t} b{t}"),
            (3, "GET a{t}"),
            (2, "MSET a{t} 1 b{t} 2"),
            (3, "PING"),
            (0, "GET a{t}"),
            (0, "SET a{t} own"),
            (1, "PING"),
            // The client receives invalidations while it has any subscription.
            (1, "PSUBSCRIBE x*"),
            (1, "UNSUBSCRIBE"),
            (0, "GET a{t}"),
            (2, "SET a{t} 3"),
            (1, "PUNSUBSCRIBE"),
            (0, "GET a{t}"),
            (2, "SET a{t} 3"),
            (1, "HELLO 3"),
            (0, "GET a{t}"),
            (2, "SET a{t} 3"),
            (1, "PING"),
            (1, "CLIENT LIST ID @9"),
            (0, "HELLO 3"),
            (0, "GET a{t}"),
            (1, "RESET"),
            (2, "SET a{t} 3"),
            (0, "CLIENT GETREDIR"),
        ],
    ),
    (
        "the redirection's target has disconnected",
        &[
            (1, "SUBSCRIBE __redis__:invalidate"),
            (0, "CLIENT TRACKING on REDIRECT @1"),
            (0, "HELLO 3"),
            (0, "GET a"),
            (0, "GET b"),
            (2, "CLIENT KILL ID @1"),
            (2, "SET a 1"),
            (0, "CLIENT TRACKINGINFO"),
            (2, "SET b 1"),
            (0, "HELLO 2"),
            (0, "GET b"),
            (2, "SET b 1"),
            (0, "CLIENT TRACKINGINFO"),
            (0, "CLIENT TRACKING on"),
            (0, "CLIENT TRACKINGINFO"),
        ],
    ),
    (
        "prefixes",
        &[
            (0, "HELLO 3"),
            (0, "CLIENT TRACKING on BCAST"),
            (1, "HELLO 3"),
            (1, "CLIENT TRACKING on BCAST NOLOOP PREFIX a PREFIX b:"),
            (2, "MSET b:1{t} 1 a2{t} 1 c{t} 1 a1{t} 1 a1{t} 2"),
            (0, "PING"),
            (1, "PING"),
            (1, "SET a own"),
            (0, "PING"),
            (1, "MULTI"),
            (1, "SET a2{t} own"),
            (1, "SET c{t} own"),
            (1, "EXEC"),
            (0, "PING"),
            (1, "PING"),
            (0, "SET x own"),
            (0, "PING"),
            (0, "GET c{t}"),
            (2, "EVAL redis.call('set',KEYS[1],'x');redis.call('del',KEYS[2]) 2 a1{t} a2{t}"),
            (0, "PING"),
            (1, "PING"),
            (1, "CLIENT TRACKING off"),
            (2, "SET a1{t} y"),
            (1, "PING"),
        ],
    ),
    (
        "transactions and scripts",
        &[
            (0, "HELLO 3"),
            (0, "CLIENT TRACKING on"),
            (2, "MSET a{t} 1 b{t} 2"),
            (0, "MULTI"),
            (0, "GET a{t}"),
            (0, "INCR a{t}"),
            (0, "GET a{t}"),
            (0, "GET b{t}"),
            (0, "EXEC"),
            (2, "MULTI"),
            (2, "SET a{t} 5"),
            (2, "SET b{t} 5"),
            (2, "EXEC"),
            (0, "EVAL return{redis.call('get',KEYS[1])} 2 a{t} b{t}"),
            (2, "SET b{t} 6"),
            (2, "SET a{t} 6"),
            (0, "PING"),
            (0, "EVAL return{redis.call('set',KEYS[1],'x')} 2 a{t} b{t}"),
            (2, "SET a{t} 7"),
            (0, "EVAL_RO return{redis.call('ping')} 1 a{t}"),
            (2, "SET a{t} 8"),
            (0, "EVAL_RO return{redis.call('exists',KEYS[1])} 1 a{t}"),
            (2, "EVAL redis.call('set',KEYS[1],'x') 1 a{t}"),
            (0, "EVAL redis.call('get',KEYS[1]);redis.call('set',KEYS[1],'y');return{1} 1 a{t}"),
            (0, "PING"),
            (2, "SET a{t} 9"),
            (0, "PING"),
        ],
    ),
    (
        "CLIENT CACHING",
        &[
            (0, "HELLO 3"),
            (0, "CLIENT TRACKING on OPTIN"),
            (0, "GET a{t}"),
            (0, "CLIENT CACHING yes"),
            (0, "GET b{t}"),
            (0, "GET c{t}"),
            (2, "MSET a{t} 1 b{t} 2 c{t} 3"),
            (0, "CLIENT CACHING yes"),
            (0, "CLIENT ID"),
            (0, "GET a{t}"),
            (2, "SET a{t} 1"),
            (0, "CLIENT CACHING yes"),
            (0, "NOSUCH"),
            (0, "CLIENT TRACKINGINFO"),
            (0, "CLIENT CACHING yes"),
            (0, "MULTI"),
            (0, "GET a{t}"),
            (0, "GET b{t}"),
            (0, "EXEC"),
            (0, "GET c{t}"),
            (2, "MSET a{t} 1 b{t} 2 c{t} 3"),
            (0, "MULTI"),
            (0, "GET a{t}"),
            (0, "CLIENT CACHING yes"),
            (0, "GET b{t}"),
            (0, "EXEC"),
            (0, "CLIENT CACHING yes"),
            (0, "EVAL return{redis.call('get',KEYS[1])} 1 c{t}"),
            (0, "GET d{t}"),
            (2, "MSET a{t} 1 b{t} 2 c{t} 3 d{t} 4"),
            (0, "PING"),
            (0, "CLIENT TRACKING off"),
            (0, "CLIENT TRACKING on OPTOUT"),
            (0, "GET a{t}"),
            (0, "CLIENT CACHING no"),
            (0, "GET b{t}"),
            (0, "GET c{t}"),
            (2, "MSET a{t} 1 b{t} 2 c{t} 3"),
            (0, "PING"),
        ],
    ),
    (
        "NOLOOP and changes by a client's own transactions and scripts",
        &[
            (0, LIBRARY),
            (0, "HELLO 3"),
            (0, "CLIENT TRACKING on BCAST NOLOOP"),
            (1, "HELLO 3"),
            (1, "CLIENT TRACKING on NOLOOP"),
            (2, "SUBSCRIBE __redis__:invalidate"),
            (3, "CLIENT TRACKING on BCAST NOLOOP REDIRECT @2"),
            (0, "SET t own"),
            (3, "PING"),
            (0, "EVAL redis.call('set',KEYS[1],'x');redis.call('get',KEYS[1]) 1 t"),
            (0, "PING"),
            (0, "EVAL redis.call('set','t','x') 0"),
            (0, "PING"),
            (0, "FCALL both 2 t u{t}"),
            (0, "PING"),
            // A script makes the last change of a key.
            (0, "MULTI"),
            (0, "SET t own"),
            (0, "EVAL redis.call('set',KEYS[1],'x') 1 t"),
            (0, "SET u{t} own"),
            (0, "EXEC"),
            (0, "PING"),
            // The client itself makes the last change of a key.
            (0, "MULTI"),
            (0, "FCALL both 2 t u{t}"),
            (0, "SET t own"),
            (0, "EXEC"),
            (0, "PING"),
            (1, "MGET t u{t}"),
            (1, "FCALL both 2 t u{t}"),
            (1, "GET t"),
            (1, "MULTI"),
            (1, "EVAL redis.call('set',KEYS[1],'x');redis.call('get',KEYS[1]) 1 t"),
            (1, "EXEC"),
            (0, "SET t other"),
            (1, "PING"),
            (3, "SET t own"),
            (2, "PING"),
            (3, "EVAL redis.call('set',KEYS[1],'x') 1 t"),
            (2, "PING"),
            (3, "MULTI"),
            (3, "FCALL both 2 t u{t}"),
            (3, "SET u{t} own"),
            (3, "EXEC"),
            (2, "PING"),
        ],
    ),
];

/// A function that changes two keys. Its code contains no spaces, because these sessions split
/// commands at spaces.
const LIBRARY: &str = "FUNCTION LOAD REPLACE #!lua\tname=tracking\nredis.register_function('both',function(keys)redis.call('set',keys[1],'x')redis.call('set',keys[2],'x')end)";

#[test]
fn sessions_are_those_of_redis() {
    for_each_backend(|backend| {
        for (name, script) in SESSIONS {
            let Some(reference) = Server::redis(&[]) else { return };
            let right = transcript(&reference, script);
            for args in [&["--workers", "1", "--shards", "1"][..], &["--workers", "3", "--shards", "8"]] {
                let given = transcript(&Server::pantala(backend, args), script);
                for (client, (given, right)) in given.iter().zip(&right).enumerate() {
                    let at = given.iter().zip(right).take_while(|(given, right)| given == right).count();
                    let what = format!("{name}, client {client}, {args:?}, after {:?}", &right[..at]);
                    assert_eq!(given.get(at), right.get(at), "{what}");
                }
            }
        }
    });
}

#[test]
fn statistics_and_flags_are_those_of_redis() {
    let Some(reference) = Server::redis(&[]) else { return };
    for_each_backend(|backend| {
        let subject = Server::pantala(backend, &["--workers", "3", "--shards", "8"]);
        let [given, right] = [&subject, &reference].map(|server| {
            let mut clients: Vec<Client> = (0..4).map(|_| server.connect()).collect();
            clients[0].call("FLUSHALL");
            clients[0].call("CLIENT SETNAME zero");
            let id = clients[0].call("CLIENT ID").integer();
            clients[1].call("CLIENT TRACKING on");
            clients[1].call("MGET a b c");
            clients[2].call("CLIENT TRACKING on BCAST PREFIX x: PREFIX y:");
            clients[3].call(&format!("CLIENT TRACKING on REDIRECT {id}"));
            clients[3].call("MGET a d");
            clients[0].call("SET c 1");
            let info = clients[0].call("INFO everything").text();
            let mut seen: Vec<String> =
                info.lines().filter(|line| line.starts_with("tracking_")).map(str::to_owned).collect();
            for client in &mut clients {
                let line = client.call("CLIENT INFO").text();
                let fields = line.split(' ').filter(|field| field.starts_with("flags=") || field.starts_with("redir="));
                seen.extend(fields.map(|field| field.replace(&format!("={id}"), "=zero")));
            }
            seen
        });
        assert_eq!(given, right);
    });
}

/// Expired keys are invalidated, both by lookups and by active expiry.
#[test]
fn expired_keys_are_invalidated() {
    for_each_backend(|backend| {
        let server = Server::pantala(backend, &["--workers", "2", "--shards", "4"]);
        let (mut reader, mut all, mut writer) = (server.connect(), server.connect(), server.connect());
        for client in [&mut reader, &mut all] {
            client.call("HELLO 3");
        }
        reader.call("CLIENT TRACKING on NOLOOP");
        all.call("CLIENT TRACKING on BCAST NOLOOP PREFIX b");
        all.call("SET b 1 PX 300");
        writer.call("SET a 1 PX 1000");
        writer.call("HSET h f v g w");
        writer.call("HPEXPIRE h 1000 FIELDS 1 f");
        for command in ["GET a", "HGET h f"] {
            reader.call(command);
        }
        let invalidated: BTreeSet<String> = (0..2).map(|_| format!("{:?}", reader.receive())).collect();
        let wanted = ["a", "h"].map(|key| format!("{:?}", invalidate(&[key])));
        assert_eq!(invalidated, BTreeSet::from(wanted));
        assert_eq!(all.receive(), invalidate(&["b"]));
        // Without active expiry, the key is invalidated when a lookup finds it expired.
        writer.call("DEBUG SET-ACTIVE-EXPIRE 0");
        writer.call("SET a 1 PX 1000");
        reader.call("GET a");
        eventually("the key expires", || writer.call("GET a") == Reply::Null);
        assert_eq!(reader.receive(), invalidate(&["a"]));
    });
}

fn invalidate(keys: &[&str]) -> Reply {
    Reply::Push(vec![Reply::bulk("invalidate"), Reply::Array(keys.iter().map(Reply::bulk).collect())])
}

/// Which invalidations a client applies to its cache.
#[derive(Clone, Copy, PartialEq)]
enum Applies {
    All,
    /// Skips one in fifty invalidations, which the test must detect.
    Most,
}

const KEYS: usize = 24;

fn key(number: usize) -> String {
    format!("key:{number}")
}

/// A client with a cache of counters, whose values only increase.
struct Caching {
    client: Client,
    values: HashMap<String, u64>,
    applies: Applies,
    invalidations: usize,
    random: Random,
}

impl Caching {
    fn new(server: &Server, options: &str, applies: Applies, seed: u64) -> Self {
        let mut client = server.connect();
        client.call("HELLO 3");
        assert_eq!(client.call(format!("CLIENT TRACKING on {options}").trim()), Reply::ok());
        Caching { client, values: HashMap::new(), applies, invalidations: 0, random: Random::from_seed(seed) }
    }

    /// Returns the next reply. Applies invalidations that arrive before the reply.
    fn receive(&mut self) -> Reply {
        loop {
            let reply = self.client.receive();
            let Reply::Push(items) = &reply else { return reply };
            assert_eq!(items[0], Reply::bulk("invalidate"));
            self.invalidations += 1;
            if self.applies == Applies::Most && self.invalidations.is_multiple_of(50) {
                continue;
            }
            match &items[1] {
                Reply::Array(keys) => keys.iter().for_each(|key| _ = self.values.remove(&key.text())),
                _ => self.values.clear(),
            }
        }
    }

    /// Reads some keys that are missing from the cache. Then checks that no cached value is less
    /// than the key's value in `written`, the last value that a writer's reply has confirmed.
    fn round(&mut self, written: &[AtomicU64]) -> Result<(), String> {
        let wanted: Vec<String> = (0..6).map(|_| key(self.random.below(KEYS))).collect();
        let missing: Vec<&String> = wanted.iter().filter(|key| !self.values.contains_key(*key)).collect();
        let as_one = self.random.one_in(3);
        let mut commands: Vec<Vec<u8>> = missing.iter().map(|key| encode(&["GET", key])).collect();
        if as_one && !missing.is_empty() {
            let words: Vec<&str> = std::iter::once("MGET").chain(missing.iter().map(|key| key.as_str())).collect();
            commands = vec![encode(&words)];
        }
        self.client.send_raw(&commands.concat());
        let missing: Vec<String> = missing.into_iter().cloned().collect();
        let note = |values: &mut HashMap<String, u64>, key: &String, reply: &Reply| {
            values
                .insert(key.clone(), if *reply == Reply::Null { 0 } else { reply.text().parse().unwrap_or(u64::MAX) });
        };
        if as_one && !missing.is_empty() {
            let reply = self.receive();
            missing.iter().zip(reply.elements()).for_each(|(key, reply)| note(&mut self.values, key, reply));
        } else {
            for key in &missing {
                let reply = self.receive();
                note(&mut self.values, key, &reply);
            }
        }
        // The invalidations of all writes confirmed until now must arrive before the reply to this
        // PING.
        let least: Vec<u64> = written.iter().map(|value| value.load(SeqCst)).collect();
        self.client.send(&["PING"]);
        assert_eq!(self.receive().text(), "PONG");
        for (number, least) in least.iter().enumerate() {
            if let Some(value) = self.values.get(&key(number))
                && value < least
            {
                return Err(format!("{} is {value} in a cache, and was {least} before", key(number)));
            }
        }
        Ok(())
    }
}

/// Increments counters with a random command, and records the values in its reply.
fn write(client: &mut Client, random: &mut Random, written: &[AtomicU64]) {
    let (one, other) = (random.below(KEYS), random.below(KEYS));
    let note = |number: usize, value: &Reply| {
        written[number].fetch_max(value.integer() as u64, SeqCst);
    };
    match random.below(6) {
        0..=2 => {
            let keys: Vec<usize> = (0..5).map(|_| random.below(KEYS)).collect();
            client.send_raw(&keys.iter().flat_map(|number| encode(&["INCR", &key(*number)])).collect::<Vec<u8>>());
            keys.iter().for_each(|number| note(*number, &client.receive()));
        }
        3 => {
            let [one_key, other_key] = [key(one), key(other)];
            let commands = [&["MULTI"][..], &["INCR", &one_key], &["INCR", &other_key], &["EXEC"]];
            client.send_raw(&commands.iter().flat_map(|words| encode(words)).collect::<Vec<u8>>());
            let replies: Vec<Reply> = (0..4).map(|_| client.receive()).collect();
            note(one, &replies[3].elements()[0]);
            note(other, &replies[3].elements()[1]);
        }
        4 => {
            let script = "return {redis.call('incr', KEYS[1]), redis.call('incr', KEYS[2])}";
            let reply = client.command(&["EVAL", script, "2", &key(one), &key(other)]);
            note(one, &reply.elements()[0]);
            note(other, &reply.elements()[1]);
        }
        _ => {
            // The script's key is undeclared.
            let script = format!("return redis.call('incr', '{}')", key(one));
            let reply = client.command(&["EVAL", &script, "0"]);
            note(one, &reply);
        }
    }
}

/// Runs caching clients and writers at the same time.
fn cache(server: &Server, applies: Applies, seed: u64) -> Result<(), String> {
    let written: Vec<AtomicU64> = (0..KEYS).map(|_| AtomicU64::new(0)).collect();
    let written = &written;
    let mut bodies: Vec<Body<'_>> = Vec::new();
    for (number, options) in ["", "", "BCAST", "", "BCAST PREFIX key:1 PREFIX key:2"].iter().enumerate() {
        let mut caching = Caching::new(server, options, applies, seed.wrapping_add(number as u64));
        // With prefixes, the server tracks only keys that start with one of them, and the client
        // may cache only such keys.
        let only = options.contains("PREFIX");
        bodies.push(Box::new(move || {
            if only {
                caching.values.retain(|key, _| key.starts_with("key:1") || key.starts_with("key:2"));
            }
            let done = caching.round(written);
            if only && done.as_ref().is_err_and(|text| !text.starts_with("key:1") && !text.starts_with("key:2")) {
                return Ok(());
            }
            done
        }));
    }
    for number in 0..4 {
        let (mut client, mut random) = (server.connect(), Random::from_seed(!seed.wrapping_add(number)));
        bodies.push(Box::new(move || {
            write(&mut client, &mut random, written);
            Ok(())
        }));
    }
    run_for(CACHING_MAX, bodies)
}

#[test]
fn a_cache_is_never_stale() {
    let seed = Random::seed("a_cache_is_never_stale");
    for_each_backend(|backend| {
        for execution in ["inline", "owner"] {
            let args = ["--workers", "3", "--shards", "8", "--execution", execution];
            let server = Server::pantala(backend, &args);
            cache(&server, Applies::All, seed).unwrap_or_else(|text| panic!("{execution}: {text}"));
        }
    });
}

#[test]
fn skipped_invalidations_are_detected() {
    let seed = Random::seed("skipped_invalidations_are_detected");
    let server = Server::pantala(Backend::all()[0], &["--workers", "3", "--shards", "8"]);
    assert!(cache(&server, Applies::Most, seed).is_err(), "stale caches were not detected");
}

fn info(client: &mut Client, field: &str) -> i64 {
    let info = client.call("INFO everything").text();
    let line = info.lines().find_map(|line| line.strip_prefix(field)).expect("a field of INFO");
    line.trim_start_matches(':').parse().expect("a number")
}

#[test]
fn the_table_is_bounded_and_evicted_keys_are_invalidated() {
    const KEYS: usize = 2000;
    for_each_backend(|backend| {
        let args = ["--workers", "2", "--shards", "4", "--tracking-table-max-keys", "100"];
        let server = Server::pantala(backend, &args);
        let (mut reader, mut other) = (server.connect(), server.connect());
        reader.call("HELLO 3");
        reader.call("CLIENT TRACKING on");
        let mut cached = BTreeSet::new();
        let mut invalidated = 0;
        for number in 0..KEYS {
            reader.send(&["GET", &key(number)]);
            while let Reply::Push(items) = reader.receive() {
                cached.remove(&items[1].elements()[0].text());
                invalidated += 1;
            }
            cached.insert(key(number));
        }
        // The client caches exactly the keys in the server's table, unless one invalidation is
        // still in flight.
        assert_eq!(info(&mut other, "tracking_total_keys"), 100);
        assert!((99..=101).contains(&cached.len()), "{} of {invalidated}", cached.len());
        assert_eq!(other.call("CONFIG SET tracking-table-max-keys 7"), Reply::ok());
        // The workers trim the table in several turns.
        eventually("the table shrinks to its limit", || {
            reader.send(&["PING"]);
            while let Reply::Push(items) = reader.receive() {
                cached.remove(&items[1].elements()[0].text());
            }
            (info(&mut other, "tracking_total_keys"), cached.len()) == (7, 7)
        });
        // The server still tracks each key that is left in the cache.
        for key in cached.clone() {
            other.command(&["SET", &key, "x"]);
            assert_eq!(reader.receive(), invalidate(&[&key]));
        }
        assert_eq!(info(&mut other, "tracking_total_items"), 0);
    });
}

#[test]
fn a_client_that_does_not_read_its_invalidations_is_closed() {
    for_each_backend(|backend| {
        let args = ["--workers", "2", "--client-output-buffer-limit", "normal 200000 0 0"];
        let server = Server::pantala(backend, &args);
        let (mut reader, mut writer) = (server.connect(), server.connect());
        reader.call("HELLO 3");
        let id = reader.call("CLIENT ID").integer();
        reader.call("CLIENT TRACKING on BCAST");
        let long = "k".repeat(10_000);
        let deadline = Instant::now() + PATIENCE;
        while !writer.call(&format!("CLIENT LIST ID {id}")).text().is_empty() {
            assert!(Instant::now() < deadline, "the client is still connected");
            for _ in 0..100 {
                writer.command(&["INCR", &long]);
            }
        }
        assert_eq!(info(&mut writer, "tracking_clients"), 0);
        assert_eq!(info(&mut writer, "tracking_total_prefixes"), 0);
    });
}

/// With `REDIRECT`, the target receives the invalidation of each change, no matter which workers
/// serve the reader and the writer.
#[test]
fn redirected_invalidations_come_from_every_worker() {
    for_each_backend(|backend| {
        let server = Server::pantala(backend, &["--workers", "3", "--shards", "8"]);
        let mut target = server.connect();
        let id = target.call("CLIENT ID").integer();
        target.call("SUBSCRIBE __redis__:invalidate");
        let mut writer = server.connect();
        for reader in 0..6 {
            let mut client = server.connect();
            client.call(&format!("CLIENT TRACKING on REDIRECT {id}"));
            let keys: Vec<String> = (0..30).map(|number| format!("{reader}:{number}")).collect();
            keys.iter().for_each(|key| _ = client.command(&["GET", key]));
            let mut invalidated = BTreeSet::new();
            for key in &keys {
                writer.command(&["SET", key, "x"]);
                let message = target.receive();
                invalidated.insert(message.elements()[2].elements()[0].text());
            }
            assert_eq!(invalidated, keys.into_iter().collect());
        }
    });
}
