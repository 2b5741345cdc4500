//! Keyspace notifications. For random commands of every family, Pantala and redis-server publish
//! the same events in the same order. Other tests check that events are in the order of changes,
//! that events of expired keys are published in time, and that only the classes in
//! `notify-keyspace-events` are published.

use std::fmt::Debug;
use std::time::{Duration, Instant};

use pantala_tests::client::encode;
use pantala_tests::differential::Pair;
use pantala_tests::generator::{CONNECTIONS, Generator, Step};
use pantala_tests::{Backend, Client, Random, Reply, Server, for_each_backend, for_each_form};

/// Minimum number of commands of the random comparison. The events are compared after every few
/// commands (`COMMANDS_PER_LOOK` or more).
const COMMANDS: usize = 12_000;
const COMMANDS_PER_LOOK: usize = 8;
/// Maximum number of differences shown. The comparison continues after a difference between events,
/// because the data are still equal.
const DIFFERENCES_SHOWN: usize = 6;
/// Channel of the message that marks the end of the events.
const END: &str = "__end__";

const PATIENCE: Duration = Duration::from_secs(20);

/// Returns a client that subscribes to all events of all databases.
fn listener(server: &Server) -> Client {
    let mut client = server.connect();
    for pattern in ["__key*__:*", END] {
        client.call(&format!("PSUBSCRIBE {pattern}"));
    }
    client
}

/// Returns the events since the last call, each as the text `channel message`. To find their end,
/// `publisher` publishes a marker on [`END`], which arrives after them.
fn events(listener: &mut Client, publisher: &mut Client) -> Vec<String> {
    publisher.send(&["PUBLISH", END, ""]);
    publisher.receive();
    let mut events = Vec::new();
    loop {
        let message = listener.receive();
        let [_, _, channel, payload] = message.elements() else { panic!("not a message: {message:?}") };
        if channel.text() == END {
            return events;
        }
        events.push(format!("{} {}", channel.text(), payload.text()));
    }
}

fn set_classes(client: &mut Client, classes: &str) {
    assert_eq!(client.command(&["CONFIG", "SET", "notify-keyspace-events", classes]), Reply::ok());
}

#[test]
fn random_commands_publish_the_events_of_redis() {
    let test = "random_commands_publish_the_events_of_redis";
    // This comparison needs `--execution inline`, the default. With `owner`, pipelined commands on
    // different keys may run in another order, so their events may also be in another order.
    let layouts: [&[&str]; 2] = [&["--workers", "1", "--shards", "1"], &["--workers", "3", "--shards", "40"]];
    let announced = Random::seed(test);
    for args in layouts {
        let Some(reference) = Server::redis(&[]) else { return };
        let subject = Server::pantala(Backend::all()[0], args);
        let seed = Random::seed_of(announced, &args.join(" "));
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let (mut generator, mut random) = (Generator::new(seed, now as i64), Random::from_seed(!seed));
        let mut pair = Pair::new(&subject, &reference);
        let mut sides = [&subject, &reference].map(|server| (listener(server), server.connect()));
        let (mut sent, mut seen) = (0, 0);
        let mut differences = Vec::new();
        while sent < COMMANDS && differences.len() < DIFFERENCES_SHOWN {
            for (_, publisher) in &mut sides {
                set_classes(publisher, "AKEnm");
            }
            let connection = random.below(CONNECTIONS);
            let mut steps = Vec::new();
            while steps.len() < COMMANDS_PER_LOOK || generator.has_following_step() {
                steps.push(Step { connection, ..generator.step() });
            }
            // Leaves out steps whose events have no defined order. During a walk, redis-server
            // deletes expired keys in the order of its hash table.
            steps.retain(|step| !is_walk(step) && !is_sort_by(step));
            sent += steps.len();
            if let Err(found) = pair.run(&steps) {
                panic!("PANTALA_SEED={announced}: {}", found.text);
            }
            let [given, right] = sides.each_mut().map(|(listener, publisher)| events(listener, publisher));
            seen += right.len();
            if given != right {
                let at = given.iter().zip(&right).take_while(|(one, two)| one == two).count();
                let shown = |events: &[String]| events.iter().skip(at).take(4).cloned().collect::<Vec<_>>();
                let commands: Vec<_> =
                    steps.iter().map(|step| step.args.join(&b' ').escape_ascii().to_string()).collect();
                differences.push(format!(
                    "gives   {:?}\nmust be {:?}\n    {}",
                    shown(&given),
                    shown(&right),
                    commands.join("\n    ")
                ));
            }
        }
        assert!(differences.is_empty(), "PANTALA_SEED={announced}: events differ:\n{}", differences.join("\n"));
        assert!(seen > sent / 2, "{seen} events of {sent} commands compare little");
    }
}

/// Returns whether a step walks over all keys. redis-server then deletes the expired keys that it
/// finds, in no defined order.
fn is_walk(step: &Step) -> bool {
    ["scan", "keys", "randomkey"].iter().any(|name| step.args[0].eq_ignore_ascii_case(name.as_bytes()))
}

/// Returns whether a step reads a key for each member of a set, in the order of the server's hash
/// table.
fn is_sort_by(step: &Step) -> bool {
    let is = |word: &[u8], wanted: &str| word.eq_ignore_ascii_case(wanted.as_bytes());
    ["sort", "sort_ro"].iter().any(|name| is(&step.args[0], name)) && step.args.iter().any(|word| is(word, "by"))
}

/// Commands that the generator creates rarely or never. `~` waits until keys with a short TTL have
/// expired.
const SCRIPT: &[&str] = &[
    "SET a 1 PX 40",
    "SET b 1 PX 40",
    "SET c 1 PX 40",
    "SET d 1 PX 40",
    "RPUSH l x",
    "PEXPIRE l 40",
    "SET bitop2 1",
    "SET bitop 1 PX 40",
    "SET sinter 1 PX 40",
    "SET zinter 1 PX 40",
    "SET geo 1 PX 40",
    "SET sorted 1 PX 40",
    "SET renamed 1 PX 40",
    "SET copied 1 PX 40",
    "SET moved 1 PX 40",
    "SET moved2 1 PX 40",
    "SET watched 1 PX 40",
    "WATCH watched",
    "~",
    "MULTI",
    "SET m 1",
    "EXEC",
    "WATCH a",
    "MULTI",
    "SET m 2",
    "EXEC",
    "BITOP or bitop nothing",
    "SINTERSTORE sinter nothing",
    "ZINTERSTORE zinter 1 nothing",
    "GEOSEARCHSTORE geo nothing FROMLONLAT 0 0 BYRADIUS 1 m",
    "SORT nothing STORE sorted",
    "SMOVE nothing moved x",
    "SMOVE bitop2 moved2 x",
    "SET e 1",
    "COPY e copied",
    "RENAME e renamed",
    "GET a",
    "SET b 2",
    "SET c 3 KEEPTTL",
    "DEL d",
    "LPUSH l y",
    "EXISTS nothing",
    "TTL nothing",
    "TYPE nothing",
    "OBJECT ENCODING nothing",
    "GETEX b PERSIST",
    "GETEX b EX 100",
    "GETEX b PERSIST",
    "GETEX b PXAT 1",
    "MULTI",
    "SET x 1",
    "INCR x",
    "SET y 2",
    "RENAME x y",
    "EXEC",
    "COPY y z",
    "COPY y z REPLACE",
    "MOVE z 1",
    "SELECT 1",
    "GET z",
    "SELECT 0",
    "SWAPDB 0 1",
    "GET z",
    "SWAPDB 0 1",
    "RESTORE y 0 junk REPLACE",
    "BLPOP l 0.01",
    "BLMOVE l l2 LEFT RIGHT 0.01",
    "BLPOP nothing 0.01",
    "ZADD zs 1 a 2 b",
    "BZPOPMIN zs 0.01",
    "BZMPOP 0.01 1 zs MAX COUNT 5",
    "SORT l STORE l3",
    "SETBIT bits 7 1",
    "SETBIT bits 7 1",
    "SETBIT bits 700 0",
    "BITFIELD bits SET u8 0 1 GET u8 0",
    "BITFIELD bits SET u8 0 1",
    "PFADD hll a",
    "PFADD hll a",
    "PFMERGE hll2 hll",
    "UNLINK hll hll2",
    "FLUSHALL",
];

/// Asserts that `play` returns the same value for redis-server and for Pantala with each backend
/// and execution. `play` gets a client, and a closure that returns the events since its last call.
/// Active expiry is off.
fn assert_as_redis<T: PartialEq + Debug>(play: impl Fn(&mut Client, &mut dyn FnMut() -> Vec<String>) -> T) {
    let Some(reference) = Server::redis(&[]) else { return };
    for_each_form(|backend, execution| {
        let subject = Server::pantala(backend, &["--workers", "2", "--shards", "8", "--execution", execution]);
        let [given, right] = [&subject, &reference].map(|server| {
            let (mut client, mut listener, mut publisher) = (server.connect(), listener(server), server.connect());
            client.call("FLUSHALL");
            client.call("DEBUG SET-ACTIVE-EXPIRE 0");
            set_classes(&mut client, "AKEnm");
            play(&mut client, &mut || events(&mut listener, &mut publisher))
        });
        assert_eq!(given, right);
    });
}

#[test]
fn commands_on_expired_keys_make_the_events_of_redis() {
    assert_as_redis(|client, events| {
        let mut all = Vec::new();
        for command in SCRIPT {
            if *command == "~" {
                std::thread::sleep(Duration::from_millis(60));
                continue;
            }
            client.call(command);
            all.extend(events().into_iter().map(|event| format!("{command}: {event}")));
        }
        all
    });
}

/// `RESTORE` over an expired key. With `REPLACE`, the command doesn't look up the key, so there is
/// no `expired` event.
#[test]
fn restore_over_an_expired_key_makes_the_events_of_redis() {
    assert_as_redis(|client, events| {
        client.call("SET source value");
        let Reply::Bulk(dump) = client.command(&["DUMP", "source"]) else { panic!("no payload") };
        let forms = ["0 @ REPLACE", "100000 @ REPLACE", "1 @ REPLACE ABSTTL", "0 @", "1 @ ABSTTL"];
        forms.map(|form| {
            client.call("DEL key");
            client.call("SET key 1 PX 10");
            std::thread::sleep(Duration::from_millis(20));
            events();
            let words = form.split(' ').map(|word| if word == "@" { &dump[..] } else { word.as_bytes() });
            let restored = client.command(&[&b"RESTORE"[..], b"key"].into_iter().chain(words).collect::<Vec<_>>());
            (form, restored, client.call("GET key"), events())
        })
    });
}

#[test]
fn untouched_keys_and_fields_expire_with_an_event() {
    for_each_backend(|backend| {
        let server = Server::pantala(backend, &["--workers", "2", "--shards", "8", "--hz", "100"]);
        let (mut client, mut listener) = (server.connect(), listener(&server));
        set_classes(&mut client, "Exhg");
        for number in 0..20 {
            client.call(&format!("SET key:{number} x PX 50"));
            client.call(&format!("HSET hash:{number} f x"));
            client.call(&format!("HPEXPIRE hash:{number} 50 FIELDS 1 f"));
        }
        let wanted = |number: usize| {
            [format!("expired key:{number}"), format!("hexpired hash:{number}"), format!("del hash:{number}")]
        };
        let mut wanted: Vec<String> = (0..20).flat_map(wanted).collect();
        let deadline = Instant::now() + PATIENCE;
        while !wanted.is_empty() {
            assert!(Instant::now() < deadline, "no event of {wanted:?}");
            let message = listener.receive();
            let [_, _, channel, key] = message.elements() else { panic!("not a message: {message:?}") };
            let channel = channel.text();
            let event = format!("{} {}", channel.rsplit(':').next().unwrap_or_default(), key.text());
            wanted.retain(|wanted| *wanted != event);
        }
        // No key is left, because a hash is deleted with its last field.
        assert_eq!(client.call("DBSIZE"), Reply::Integer(0));
    });
}

#[test]
fn the_setting_is_parsed_as_in_redis() {
    let Some(reference) = Server::redis(&[]) else { return };
    let subject = Server::pantala(Backend::all()[0], &["--notify-keyspace-events", "Kx"]);
    assert_eq!(subject.connect().call("CONFIG GET notify-keyspace-events").elements()[1], Reply::bulk("xK"));
    let [given, right] = [&subject, &reference].map(|server| {
        let mut client = server.connect();
        let mut replies = Vec::new();
        for classes in ["", "An", "KEA", "KE$n", "mKEx", "g$lshzxetdnKEm", "AKEmn", "Kq", "KE", "A", ""] {
            replies.push(client.command(&["CONFIG", "SET", "notify-keyspace-events", classes]));
            replies.push(client.call("CONFIG GET notify-keyspace-events"));
        }
        replies
    });
    assert_eq!(given, right);
}

/// Many clients set and delete one key. The events arrive in the order in which the key changed:
/// `set`, `del`, `set`, `del` and so on.
#[test]
fn events_of_a_key_come_in_the_order_of_its_changes() {
    const CLIENTS: usize = 6;
    const PAIRS: usize = 400;
    for_each_form(|backend, execution| {
        let server = Server::pantala(backend, &["--workers", "3", "--shards", "4", "--execution", execution]);
        let (mut listener, mut publisher) = (listener(&server), server.connect());
        set_classes(&mut publisher, "Kg$");
        std::thread::scope(|scope| {
            for _ in 0..CLIENTS {
                scope.spawn(|| {
                    let mut client = server.connect();
                    for _ in 0..PAIRS {
                        client.send_raw(&[encode(&["SETNX", "key", "x"]), encode(&["DEL", "key"])].concat());
                        client.receive();
                        client.receive();
                    }
                });
            }
        });
        let events = events(&mut listener, &mut publisher);
        // `set` and `del` alternate, because the key is set only while it is missing, and a DEL
        // publishes an event only if the key exists.
        for pair in events.chunks(2) {
            assert_eq!(pair, ["__keyspace@0__:key set", "__keyspace@0__:key del"]);
        }
        assert!(events.len() >= 2 * PAIRS, "{}", events.len());
    });
}

/// A client that subscribes to the events of its own commands receives the reply to a command
/// before the command's events, whichever worker owns the keys.
#[test]
fn the_reply_precedes_the_events_of_the_clients_own_command() {
    for_each_form(|backend, execution| {
        let server = Server::pantala(backend, &["--workers", "3", "--shards", "8", "--execution", execution]);
        let mut client = server.connect();
        set_classes(&mut client, "AKEm");
        client.call("HELLO 3");
        client.call("PSUBSCRIBE __keyevent*");
        for number in 0..200 {
            let (key, missing) = (format!("l:{number}"), format!("missing:{number}"));
            assert_eq!(client.command(&["LPUSH", &key, "x"]), Reply::Integer(1), "{key}");
            assert_eq!(client.receive().elements()[3], Reply::bulk(&key));
            client.send(&["MGET", &missing, &key]);
            assert!(matches!(client.receive(), Reply::Array(_)), "{key}");
            assert_eq!(client.receive().elements()[3], Reply::bulk(&missing));
        }
        // The clients belong to several workers. A push may therefore serve a blocked client before
        // the client's own worker has registered it as blocked. Even then, the client receives its
        // reply before the `lpop` event.
        let mut others = [(); 3].map(|()| server.connect());
        set_classes(&mut others[0], "El");
        for number in 0..300 {
            let key = format!("w:{number}");
            client.send(&["BLPOP", &key, "0"]);
            if number % 3 == 0 {
                while !others[0].call("INFO clients").text().contains("blocked_clients:1") {}
            }
            others[number % 3].command(&["LPUSH", &key, "x"]);
            let mut seen = Vec::new();
            while seen.len() < 3 {
                seen.push(client.receive());
            }
            let replied = seen.iter().position(|reply| matches!(reply, Reply::Array(_)));
            let popped =
                seen.iter().position(|reply| reply.elements().get(2) == Some(&Reply::bulk("__keyevent@0__:lpop")));
            assert!(replied < popped && popped.is_some(), "{seen:?}");
        }
    });
}

/// Some scripts declare their keys. Others do not, so they are rolled back and rerun with all
/// shards. Each event is published once and in order, even an `expired` event that occurs before
/// the rollback.
#[test]
fn events_of_scripts_are_those_of_redis() {
    let narrow = "redis.call('SET', KEYS[1], ARGV[1]) redis.call('GET', KEYS[2]) redis.call('RPUSH', KEYS[3], 1, 2) redis.call('LPOP', KEYS[3])
        redis.call('DEL', KEYS[1]) redis.call('HSET', KEYS[1], 'f', 1) return redis.call('EXPIRE', KEYS[1], 100)";
    let wide = "redis.call('INCR', KEYS[1]) redis.call('GET', KEYS[2]) redis.call('APPEND', KEYS[3], 'x') redis.call('GET', 'nothing')
        for i = 1, 9 do redis.call('SET', 'undeclared:' .. i, i) end return redis.call('DEL', KEYS[1], 'undeclared:3')";
    let fails = "redis.call('SET', KEYS[1], 1) redis.call('LPUSH', KEYS[1], 1)";
    let Some(reference) = Server::redis(&[]) else { return };
    for_each_form(|backend, execution| {
        let subject = Server::pantala(backend, &["--workers", "2", "--shards", "8", "--execution", execution]);
        let [given, right] = [&subject, &reference].map(|server| {
            let (mut client, mut listener, mut publisher) = (server.connect(), listener(server), server.connect());
            client.call("FLUSHALL");
            client.call("DEBUG SET-ACTIVE-EXPIRE 0");
            set_classes(&mut client, "AKEnm");
            let mut all = Vec::new();
            for script in [narrow, wide, wide, fails] {
                for key in ["two", "three"] {
                    client.call(&format!("SET {key} 1 PX 10"));
                }
                std::thread::sleep(Duration::from_millis(20));
                client.command(&["EVAL", script, "3", "one", "two", "three", "value"]);
                all.push(events(&mut listener, &mut publisher));
            }
            all
        });
        assert_eq!(given, right);
    });
}
