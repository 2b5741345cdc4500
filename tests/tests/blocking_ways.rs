//! For each type of key: all ways to create the key that a client is blocked on, and all ways in
//! which the client's wait ends. The tests also run on redis-server, to check that they describe
//! Redis's behaviour.

use std::time::{Duration, Instant};

use pantala_tests::waiting::{PATIENCE, pantalas, play, wait_until_blocked, waiting};
use pantala_tests::{Client, Reply};

/// Returns the text of a reply, with its aggregates flattened.
fn words(reply: &Reply) -> String {
    match reply {
        Reply::Array(elements) => elements.iter().map(words).collect::<Vec<_>>().join(" "),
        Reply::Null => "null".to_owned(),
        other => other.text(),
    }
}

/// Commands that turn the key `from` into the key `key`, whatever its type.
const WAYS: &[&str] = &["RENAME", "RENAMENX", "COPY", "RESTORE", "MOVE", "SWAPDB"];

fn becomes_key(client: &mut Client, way: &str) {
    match way {
        "RESTORE" => {
            let Reply::Bulk(payload) = client.call("DUMP from") else { panic!("DUMP returns no bulk string") };
            assert_eq!(client.command(&[b"RESTORE", &b"key"[..], b"0", &payload]), Reply::ok());
        }
        "MOVE" | "SWAPDB" => {
            for command in ["MOVE from 1", "SELECT 1", "RENAME from key"] {
                assert!(!client.call(command).is_error(), "{command}");
            }
            let last = if way == "MOVE" { "MOVE key 0" } else { "SWAPDB 0 1" };
            assert!(!client.call(last).is_error(), "{last}");
            client.call("SELECT 0");
        }
        _ => assert!(!client.call(&format!("{way} from key")).is_error(), "{way}"),
    }
}

/// A type of key.
struct Kind {
    /// The command that blocks until `key` has this type.
    waits: &'static str,
    /// The command that creates the key `from` with this type.
    make: &'static str,
    /// The reply to the blocked client.
    gets: &'static str,
    /// Commands that create `key` from `from`, in addition to those for all types.
    stores: &'static [&'static str],
}

const KINDS: &[Kind] = &[
    Kind {
        waits: "BLPOP none key 0",
        make: "RPUSH from 1",
        gets: "key 1",
        stores: &["SORT from STORE key", "LMOVE from key LEFT LEFT"],
    },
    Kind {
        waits: "BZPOPMIN none key 0",
        make: "GEOADD from 0 0 m",
        gets: "key m 3377699720527872",
        stores: &[
            "ZRANGESTORE key from 0 -1",
            "GEOSEARCHSTORE key from FROMLONLAT 0 0 BYRADIUS 9 km",
            "GEORADIUS from 0 0 9 km STORE key",
            "ZUNIONSTORE key 1 from",
            "ZINTERSTORE key 1 from",
            "ZDIFFSTORE key 1 from",
        ],
    },
    Kind { waits: "XREAD BLOCK 0 STREAMS none key 0 0", make: "XADD from 1-1 f v", gets: "key 1-1 f v", stores: &[] },
];

#[test]
fn only_a_key_of_the_right_type_wakes() {
    play(|server| {
        let mut other = server.connect();
        for (number, kind) in KINDS.iter().enumerate() {
            let wrong = &KINDS[(number + 1) % KINDS.len()];
            for way in WAYS.iter().chain(kind.stores) {
                let mut client = waiting(server, kind.waits, 1);
                // A key of another type is created and deleted, which wakes no client.
                if WAYS.contains(way) {
                    other.call(wrong.make);
                    becomes_key(&mut other, way);
                    other.call("DEL key from");
                    wait_until_blocked(&mut other, 1);
                }
                other.call(kind.make);
                if WAYS.contains(way) {
                    becomes_key(&mut other, way);
                } else {
                    assert!(!other.call(way).is_error(), "{way}");
                }
                assert_eq!(words(&client.receive()), kind.gets, "{} by {way}", kind.waits);
                wait_until_blocked(&mut other, 0);
                other.call("FLUSHALL");
            }
        }
    });
}

/// Clients that are blocked on keys that a transaction creates are served when the transaction
/// ends. They get the elements that exist at that time.
#[test]
fn transactions_wake_when_they_end() {
    play(|server| {
        let mut other = server.connect();
        let mut transaction = |commands: &[&str]| {
            other.call("MULTI");
            commands.iter().for_each(|command| assert_eq!(other.call(command).text(), "QUEUED"));
            assert_eq!(other.call("EXEC").elements().len(), commands.len());
        };
        let mut least = waiting(server, "BZPOPMIN none z 0", 1);
        let mut reader = waiting(server, "XREAD BLOCK 0 STREAMS s none $ $", 2);
        let mut popper = waiting(server, "BLMPOP 0 2 none l LEFT COUNT 9", 3);
        // A key that the transaction deletes again wakes no client.
        transaction(&["ZADD z 1 a", "ZREM z a", "RPUSH l x", "DEL l"]);
        wait_until_blocked(&mut server.connect(), 3);
        transaction(&["ZADD z 1 one", "ZADD z 0 zero", "XADD s 1-1 f v", "XADD s 1-2 f w", "RPUSH l a", "LPUSH l b"]);
        assert_eq!(words(&least.receive()), "z zero 0");
        assert_eq!(words(&reader.receive()), "s 1-1 f v 1-2 f w");
        assert_eq!(words(&popper.receive()), "l b a");
        wait_until_blocked(&mut server.connect(), 0);
        assert_eq!(words(&server.connect().call("ZRANGE z 0 -1")), "one");
    });
}

/// Every blocking command, with `{}` in place of its timeout. The second field is true if the
/// timeout is in seconds, and false if it is in milliseconds.
const TIMED: &[(&str, bool)] = &[
    ("BLPOP a {}", true),
    ("BRPOP a {}", true),
    ("BLMOVE a b LEFT LEFT {}", true),
    ("BRPOPLPUSH a b {}", true),
    ("BLMPOP {} 1 a LEFT", true),
    ("BZPOPMIN a {}", true),
    ("BZPOPMAX a {}", true),
    ("BZMPOP {} 1 a MIN", true),
    ("XREAD BLOCK {} STREAMS s $", false),
    ("XREADGROUP GROUP g c BLOCK {} STREAMS s >", false),
];

#[test]
fn timeouts_are_exact_for_every_command() {
    const WAIT: Duration = Duration::from_millis(20);
    /// Maximum delay of a reply: one tick of the clock that checks timeouts, and the round trip.
    const LATE_MAX: Duration = Duration::from_millis(4);
    /// Number of tries. Even on a loaded machine, the reply is on time in at least one of them.
    const TRIES: usize = 60;
    for server in pantalas() {
        let mut client = server.connect();
        client.call("XGROUP CREATE s g $ MKSTREAM");
        for (command, in_seconds) in TIMED {
            let command = command.replace("{}", if *in_seconds { "0.02" } else { "20" });
            let mut least = PATIENCE;
            for _ in 0..TRIES {
                let began = Instant::now();
                assert_eq!(client.call(&command), Reply::Null, "{command}");
                least = least.min(began.elapsed());
                assert!(least >= WAIT, "{command}: {least:?} is too early");
                if least <= WAIT + LATE_MAX {
                    break;
                }
            }
            assert!(least <= WAIT + LATE_MAX, "{command}: {least:?} at the earliest");
        }
    }
}

#[test]
fn a_thousand_blocked_clients_cost_no_cpu() {
    const CLIENTS: usize = 1000;
    const WATCHED: Duration = Duration::from_secs(1);
    /// Maximum CPU time while all clients are blocked. The server's periodic work takes less. If
    /// the server checked each client every millisecond, it would take much more.
    const CPU_MAX: Duration = Duration::from_millis(30);
    for server in pantalas() {
        let waits = ["BLPOP a b 0", "BZPOPMIN z 100", "XREAD BLOCK 100000 STREAMS s $", "BLMOVE c d LEFT LEFT 0"];
        let clients: Vec<Client> = (0..CLIENTS)
            .map(|number| {
                let mut client = server.connect();
                client.send(&waits[number % waits.len()].split(' ').collect::<Vec<_>>());
                client
            })
            .collect();
        wait_until_blocked(&mut server.connect(), CLIENTS);
        let before = server.cpu_time();
        std::thread::sleep(WATCHED);
        let spent = server.cpu_time() - before;
        eprintln!("{CLIENTS} waiting clients: {spent:?} of CPU in {WATCHED:?}");
        assert!(before > Duration::ZERO, "no CPU time is reported");
        assert!(spent < CPU_MAX, "{spent:?} of CPU in {WATCHED:?}");
        drop(clients);
    }
}

/// For every type of key, a blocked client is unblocked by `CLIENT UNBLOCK`, is killed, or
/// disconnects. Elements that are added afterwards remain for other clients.
#[test]
fn unblocked_and_disconnected_clients_get_nothing_of_any_type() {
    play(|server| {
        let mut other = server.connect();
        other.call("XGROUP CREATE s g $ MKSTREAM");
        let waits = ["BLPOP l m 0", "BZPOPMIN z y 0", "XREADGROUP GROUP g one BLOCK 0 STREAMS s >"];
        for waits in waits {
            for (reason, raw) in [
                ("", &b"*-1\r\n"[..]),
                ("TIMEOUT", b"*-1\r\n"),
                ("ERROR", b"-UNBLOCKED client unblocked via CLIENT UNBLOCK\r\n"),
                ("KILL", b""),
                ("LEAVE", b""),
            ] {
                let mut client = server.connect();
                client.set_read_timeout(PATIENCE);
                let id = client.call("CLIENT ID").integer();
                client.send(&waits.split(' ').collect::<Vec<_>>());
                wait_until_blocked(&mut other, 1);
                match reason {
                    "KILL" => {
                        assert_eq!(other.call(&format!("CLIENT KILL ID {id}")).integer(), 1);
                        assert!(client.ends_within(PATIENCE), "{waits}");
                    }
                    "LEAVE" => drop(client),
                    _ => {
                        assert_eq!(other.call(format!("CLIENT UNBLOCK {id} {reason}").trim_end()).integer(), 1);
                        assert_eq!(client.receive_raw().1, raw, "{waits} {reason}");
                        assert_eq!(client.call("PING").text(), "PONG");
                    }
                }
                wait_until_blocked(&mut other, 0);
            }
        }
        for command in ["RPUSH l x", "ZADD z 1 m", "XADD s 1-1 f v"] {
            assert!(!other.call(command).is_error(), "{command}");
        }
        assert_eq!(words(&other.call("LRANGE l 0 -1")), "x");
        assert_eq!(words(&other.call("ZRANGE z 0 -1")), "m");
        assert_eq!(words(&other.call("XPENDING s g")), "0 null null null");
        assert_eq!(words(&other.call("XREADGROUP GROUP g two STREAMS s >")), "s 1-1 f v");
    });
}
