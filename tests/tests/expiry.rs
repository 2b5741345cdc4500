//! Keys expire on access and by the active cycle (the server's periodic deletion of expired keys),
//! never early. They keep their TTL when they are moved.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use pantala_tests::{Backend, Client, Reply, Server, for_each_backend};

/// Maximum wait for the active cycle to delete expired keys.
const CYCLE_MAX: Duration = Duration::from_secs(30);

fn start(backend: Backend) -> Server {
    Server::pantala(backend, &["--workers", "2", "--shards", "40"])
}

#[test]
fn keys_expire_on_access_and_not_before() {
    for_each_backend(|backend| {
        let server = start(backend);
        let mut client = server.connect();
        client.call("DEBUG SET-ACTIVE-EXPIRE 0");
        let begin = Instant::now();
        let commands: Vec<Vec<String>> =
            (0..200).map(|n| vec!["SET".into(), format!("k{n}"), "v".into(), "PX".into(), "400".into()]).collect();
        client.pipeline(&commands);
        let reads: Vec<Vec<String>> = (0..200).map(|n| vec!["GET".into(), format!("k{n}")]).collect();
        let alive = client.pipeline(&reads).iter().filter(|reply| **reply != Reply::Null).count();
        // On a slow host, the TTLs may have passed by now. The count then proves nothing.
        if begin.elapsed() < Duration::from_millis(400) {
            assert_eq!(alive, 200, "keys expired early");
        }
        std::thread::sleep(Duration::from_millis(600));
        assert_eq!(client.call("DBSIZE"), Reply::Integer(200), "deleted without access or active cycle");
        for (command, reply) in [
            ("GET k0", Reply::Null),
            ("EXISTS k1 k2", Reply::Integer(0)),
            ("TTL k3", Reply::Integer(-2)),
            ("TYPE k4", Reply::Simple("none".into())),
            ("DEL k5", Reply::Integer(0)),
            ("PERSIST k6", Reply::Integer(0)),
            ("EXPIRE k7 100", Reply::Integer(0)),
            ("STRLEN k8", Reply::Integer(0)),
            ("APPEND k9 x", Reply::Integer(1)),
            ("INCR k10", Reply::Integer(1)),
            ("SETNX k11 x", Reply::Integer(1)),
            ("RENAME k12 other", Reply::Error("ERR no such key".into())),
            ("COPY k13 other", Reply::Integer(0)),
            ("MOVE k14 1", Reply::Integer(0)),
            ("GETDEL k15", Reply::Null),
            ("SET k16 v XX", Reply::Null),
            ("RENAMENX k9 k17", Reply::Integer(1)),
            ("TOUCH k18", Reply::Integer(0)),
            ("OBJECT ENCODING k19", Reply::Null),
            ("GETRANGE k20 0 -1", Reply::bulk("")),
            ("SETRANGE k21 1 x", Reply::Integer(2)),
            ("TTL k10", Reply::Integer(-1)),
            ("MSETNX k22 a k23 b", Reply::Integer(1)),
        ] {
            assert_eq!(client.call(command), reply, "{command}");
        }
        let keys = client.call("KEYS *");
        assert_eq!(keys.elements().len(), 6, "KEYS returns expired keys: {keys:?}");
    });
}

/// Returns Lua code that runs for `takes_ms` milliseconds.
fn spin(takes_ms: u32) -> String {
    format!(
        "local function now() local t = redis.call('TIME') return t[1] * 1000 + t[2] / 1000 end \
         local began = now() while now() - began < {takes_ms} do end"
    )
}

/// TTL of the keys in the next test, in ms. It is so long that no key expires during the test, even
/// on a busy host.
const TTL_MS: i64 = 1_000_000;

/// Returns commands that read the time, set a key with a TTL, and read its deadline.
fn deadline_commands(key: &str) -> Vec<Vec<String>> {
    let ttl_ms = TTL_MS.to_string();
    [vec!["TIME"], vec!["SET", key, "v", "PX", &ttl_ms], vec!["PEXPIRETIME", key]]
        .map(|words| words.into_iter().map(str::to_owned).collect())
        .into()
}

/// Returns the difference between TIME's reply and the time that the `SET` of [`deadline_commands`]
/// used (its deadline minus the TTL), ms.
fn age_of_clock(client: &mut Client) -> i64 {
    let time: Vec<i64> =
        client.receive().elements().iter().map(|part| part.text().parse().expect("a number")).collect();
    assert_eq!(client.receive(), Reply::ok());
    time[0] * 1000 + time[1] / 1000 + TTL_MS - client.receive().integer()
}

/// A command with a TTL computes the deadline from the time at which the command itself starts,
/// even if slow commands ran just before it. This is tested with slow commands of the same
/// pipeline, with slow commands of other clients in the same turn (iteration of the worker's event
/// loop), and with a slow script that is rolled back and rerun.
#[test]
fn deadlines_count_from_when_their_commands_run() {
    /// Duration of the slow commands that run before the command with the TTL, in ms.
    const TAKES_MS: u32 = 300;
    /// Maximum age, when the command with the TTL starts, of the time from which it computes the
    /// deadline, in ms.
    const AGE_MS_MAX: i64 = 50;
    /// Asserts that the age is below the bound in at least one of ten measurements. One is enough:
    /// a busy host can delay the server within some measurements, but if the server used a stale
    /// time, the age would be too high in all of them.
    fn assert_current(layout: &[&str], mut age_ms: impl FnMut() -> i64) {
        let ages: Vec<i64> = (0..10).map(|_| age_ms()).take_while(|age| *age >= AGE_MS_MAX).collect();
        assert!(ages.len() < 10, "{ages:?} ms late on {layout:?}");
    }
    let layouts: [&[&str]; 3] = [
        &["--workers", "1", "--shards", "8"],
        // The script becomes busy, so its worker runs turns for other clients during the script.
        &["--workers", "1", "--shards", "8", "--busy-reply-threshold", "50"],
        &["--workers", "2", "--shards", "8", "--execution", "owner"],
    ];
    for_each_backend(|backend| {
        for layout in layouts {
            let server = Server::pantala(backend, layout);
            let [mut client, mut other] = [(); 2].map(|()| server.connect());
            let spin = spin(TAKES_MS);
            let words = |words: &[&str]| -> Vec<String> { words.iter().map(|&word| word.to_owned()).collect() };
            let before = [
                vec![words(&["EVAL", &spin, "1", "a"])],
                vec![words(&["DEBUG", "SLEEP", "0.3"])],
                vec![words(&["MULTI"]), words(&["EVAL", &spin, "1", "a"]), words(&["SET", "a", "1"]), words(&["EXEC"])],
            ];
            for commands in before {
                assert_current(layout, || {
                    client.send_together(&[&commands[..], &deadline_commands("b")].concat());
                    commands.iter().for_each(|_| assert!(!client.receive().is_error()));
                    age_of_clock(&mut client)
                });
            }
            // Both clients' commands arrive while the script of a third client runs, so the worker
            // runs them in one turn: first the script of `client`, then the commands of `other`.
            let mut first = server.connect();
            assert_current(layout, || {
                first.send(&["EVAL", &spin, "1", "a"]);
                client.send(&["EVAL", &spin, "1", "a"]);
                other.send_together(&deadline_commands("c"));
                let age_ms = age_of_clock(&mut other);
                client.receive();
                first.receive();
                age_ms
            });
            // The script is rolled back when it sets an undeclared key, and then rerun. If the
            // deadline counted from the start of the first run, it would be `TAKES_MS` too early.
            let script = format!(
                "local t = redis.call('TIME') {spin} for i = 1, 4 do redis.call('SET', 'made:' .. i, 1, 'PX', ARGV[1]) end \
                 return {{t[1], t[2], redis.call('PEXPIRETIME', 'made:1')}}"
            );
            assert_current(layout, || {
                let reply = client.command(&["EVAL", &script, "1", "a", &TTL_MS.to_string()]);
                let [seconds, us, at_ms] = reply.elements() else { panic!("{reply:?}") };
                let [seconds, us]: [i64; 2] = [seconds, us].map(|part| part.text().parse().expect("a number"));
                seconds * 1000 + us / 1000 + TTL_MS - at_ms.integer()
            });
        }
    });
}

/// Once a client has found a key expired, it finds all keys with the same deadline expired,
/// although workers read the clock at different instants.
#[test]
fn a_deadline_passes_for_all_keys_at_once() {
    const KEYS: usize = 16;
    const ROUNDS: usize = 60;
    /// Time from the choice of the deadline to the deadline. In this time, the keys are set.
    const AHEAD_MS: i64 = 8;
    for_each_backend(|backend| {
        let server = start(backend);
        let mut setter = server.connect();
        setter.call("DEBUG SET-ACTIVE-EXPIRE 0");
        let reads: Vec<Vec<String>> = (0..KEYS).map(|at| vec!["GET".into(), format!("k{at}")]).collect();
        let many_reads = vec![&*reads; 20].concat();
        let is_over = AtomicBool::new(false);
        let mut violations = Vec::new();
        std::thread::scope(|scope| {
            // One client per worker reads the keys all the time, to find them expired as early as
            // possible.
            for _ in 0..2 {
                let mut finder = server.connect();
                let (reads, is_over) = (&reads, &is_over);
                scope.spawn(move || {
                    while !is_over.load(Relaxed) {
                        finder.pipeline(reads);
                    }
                });
            }
            let mut readers = [server.connect(), server.connect()];
            for round in 0..ROUNDS {
                let time = setter.call("TIME");
                let [seconds, micros] = [0, 1].map(|at| time.elements()[at].text().parse::<i64>().unwrap_or(0));
                let deadline_ms = (seconds * 1000 + micros / 1000 + AHEAD_MS).to_string();
                let set = |at: usize| ["SET", &format!("k{at}"), "v", "PXAT", &deadline_ms].map(str::to_owned).to_vec();
                setter.pipeline(&(0..KEYS).map(set).collect::<Vec<_>>());
                let mut are_missing = false;
                while !are_missing {
                    are_missing = readers.iter_mut().all(|reader| {
                        let replies = reader.pipeline(&many_reads);
                        let first = replies.iter().position(|reply| *reply == Reply::Null).unwrap_or(replies.len());
                        if replies[first..].iter().any(|reply| *reply != Reply::Null) {
                            violations.push(round);
                        }
                        replies.iter().all(|reply| *reply == Reply::Null)
                    });
                }
            }
            is_over.store(true, Relaxed);
        });
        assert!(
            violations.is_empty(),
            "a key was expired, then one with the same deadline was not, in rounds {violations:?}"
        );
    });
}

/// As in Redis, all deadlines in a transaction or a script count from one time, however long it
/// runs.
#[test]
fn a_transaction_or_a_script_sees_one_time() {
    for_each_backend(|backend| {
        for threshold in ["5000", "20"] {
            let server =
                Server::pantala(backend, &["--workers", "1", "--shards", "8", "--busy-reply-threshold", threshold]);
            let mut client = server.connect();
            client.call("MULTI");
            client.call("SET a 1 PX 1000000");
            client.command(&["EVAL", &spin(100), "0"]);
            client.call("SET b 1 PX 1000000");
            client.call("EXEC");
            assert_eq!(client.call("PEXPIRETIME a"), client.call("PEXPIRETIME b"));
            let script = format!(
                "redis.call('SET', KEYS[1], 1, 'PX', 1000000) {} redis.call('SET', KEYS[2], 1, 'PX', 1000000)",
                spin(100)
            );
            client.command(&["EVAL", &script, "2", "c", "d"]);
            assert_eq!(client.call("PEXPIRETIME c"), client.call("PEXPIRETIME d"));
        }
    });
}

#[test]
fn the_active_cycle_deletes_untouched_keys() {
    const KEYS: usize = 20_000;
    for_each_backend(|backend| {
        let mut server = start(backend);
        let mut client = server.connect();
        for (database, ttl_ms) in [("0", "200"), ("5", "500")] {
            client.command(&["SELECT", database]);
            let commands: Vec<Vec<String>> = (0..KEYS)
                .map(|n| vec!["SET".into(), format!("k{n}"), "v".into(), "PX".into(), ttl_ms.into()])
                .collect();
            client.pipeline(&commands);
        }
        client.call("SET stays 1");
        client.call("SET stays:long 1 EX 1000");
        let count = |client: &mut Client, database: &str| {
            client.command(&["SELECT", database]);
            client.call("DBSIZE").integer()
        };
        let deadline = Instant::now() + CYCLE_MAX;
        while count(&mut client, "0") > 0 || count(&mut client, "5") > 2 {
            assert!(
                Instant::now() < deadline,
                "expired keys stay: {} and {}",
                count(&mut client, "0"),
                count(&mut client, "5")
            );
            std::thread::sleep(Duration::from_millis(50));
        }
        assert_eq!(count(&mut client, "5"), 2);
        let info = client.call("INFO stats").text();
        let number = |name: &str| {
            let value = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            value.unwrap_or_else(|| panic!("no {name} in {info}")).trim().parse::<f64>().expect("a number")
        };
        assert_eq!(number("expired_keys"), 2.0 * KEYS as f64);
        let stale_percent = number("expired_stale_perc");
        assert!(stale_percent > 0.0 && stale_percent <= 100.0, "{stale_percent}");
        assert!(number("expire_cycle_cpu_milliseconds") > 0.0, "{info}");
        server.assert_sound();
    });
}

/// The active cycle deletes keys only for a bounded time per turn. No client therefore waits for
/// long when hundreds of thousands of keys expire at one moment.
#[test]
fn a_mass_expiry_does_not_stall_clients() {
    const KEYS: usize = 400_000;
    /// Maximum delay of a client. A bounded cycle delays a client for less time, even in a debug
    /// build on a busy host.
    const STALL_MAX: Duration = Duration::from_millis(1500);
    for_each_backend(|backend| {
        let server = start(backend);
        let mut client = server.connect();
        let at =
            std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970").as_millis() + 5000;
        let commands: Vec<Vec<String>> =
            (0..KEYS).map(|n| vec!["SET".into(), format!("k{n}"), "v".into(), "PXAT".into(), at.to_string()]).collect();
        client.pipeline(&commands);
        let mut worst = Duration::ZERO;
        let deadline = Instant::now() + CYCLE_MAX;
        while client.call("DBSIZE").integer() > 0 {
            let begin = Instant::now();
            client.call("GET other");
            worst = worst.max(begin.elapsed());
            assert!(Instant::now() < deadline, "expired keys stay");
        }
        let info = client.call("INFO stats").text();
        assert!(!info.contains("\r\nexpired_time_cap_reached_count:0\r\n"), "no turn reached its bound: {info}");
        eprintln!("longest GET while {KEYS} keys expired: {worst:?}");
        assert!(worst < STALL_MAX, "a GET took {worst:?}");
    });
}

#[test]
fn the_ttl_moves_with_the_key() {
    for_each_backend(|backend| {
        let server = start(backend);
        let mut client = server.connect();
        let near = |reply: &Reply| assert!((9_990..=10_000).contains(&reply.integer()), "{reply:?}");
        client.call("SET a v EX 10000");
        client.call("RENAME a b");
        near(&client.call("TTL b"));
        client.call("COPY b c");
        near(&client.call("TTL c"));
        client.call("COPY b d DB 3");
        client.call("MOVE c 3");
        client.call("SWAPDB 3 4");
        client.call("SELECT 4");
        near(&client.call("TTL c"));
        near(&client.call("TTL d"));
        client.call("SELECT 0");
        client.call("SET plain v");
        client.call("RENAME plain b");
        assert_eq!(client.call("TTL b"), Reply::Integer(-1), "RENAME replaces the target's value and its TTL");
        client.call("SET e v EX 10000");
        client.call("APPEND e w");
        client.call("SETRANGE e 5 x");
        near(&client.call("TTL e"));
        client.call("SET e v KEEPTTL");
        near(&client.call("TTL e"));
        client.call("GETSET e v");
        assert_eq!(client.call("TTL e"), Reply::Integer(-1));
    });
}

/// The TTL of a key counts from the time when the `SET` runs, alone or in a transaction. In this
/// test, the `SET` waits for a script for longer than the TTL.
#[test]
fn ttls_count_from_when_a_command_runs() {
    const TURNS: u64 = 20_000_000;
    let script = "for i = 1, tonumber(ARGV[1]) do end redis.call('INCR', 'some') return redis.call('INCR', 'other')";
    for_each_backend(|backend| {
        let server = Server::pantala(backend, &["--workers", "2", "--shards", "8"]);
        let mut calling = server.connect();
        // At least one of these clients belongs to another worker than the script's client. Its
        // commands wait for the shards.
        let mut others = [server.connect(), server.connect()];
        // On the first call, the server learns that the script uses undeclared keys. It rolls the
        // script back and reruns it, so the script runs twice.
        let began = Instant::now();
        assert_eq!(calling.command(&["EVAL", script, "0", &TURNS.to_string()]), Reply::Integer(1));
        // The number of iterations of the script's loop is chosen so that a later call, which runs
        // only once, takes three times the TTL.
        let turns = TURNS as f64 * 2.0 * 0.9 / began.elapsed().as_secs_f64();
        let long = ["EVAL", script, "0", &format!("{turns:.0}")];
        for transaction in [false, true] {
            calling.send(&long);
            std::thread::sleep(Duration::from_millis(200));
            // PTTL follows in the same pipeline, because the client may receive the reply much
            // later.
            let commands = |name: &str| {
                let set = ["SET", name, "v", "PX", "300"].map(str::to_owned).to_vec();
                let left = ["PTTL", name].map(str::to_owned).to_vec();
                if transaction {
                    vec![vec!["MULTI".to_owned()], set, vec!["EXEC".to_owned()], left]
                } else {
                    vec![set, left]
                }
            };
            for (other, name) in others.iter_mut().zip(["one", "two"]) {
                other.send_together(&commands(name));
            }
            for (other, name) in others.iter_mut().zip(["one", "two"]) {
                let last = commands(name).iter().map(|_| other.receive()).last();
                let left_ms = last.expect("some commands").integer();
                assert!((1..=300).contains(&left_ms), "{name}, transaction: {transaction}: {left_ms} ms left");
            }
            assert!(matches!(calling.receive(), Reply::Integer(_)));
        }
    });
}
