//! The guarantee of SCAN: an iteration returns every key that exists all the time from the first
//! call to the last, even if other keys are added and removed meanwhile. It returns no key that has
//! never existed.

use std::collections::BTreeSet;
use std::time::Duration;

use pantala_tests::concurrent::{Body, run_for};
use pantala_tests::{Backend, Client, Random, Reply, Server, for_each_backend, tool};

/// Maximum number of calls of one iteration. More calls mean that the iteration doesn't end.
const CALLS_MAX: usize = 2_000_000;

fn start(backend: Backend) -> Server {
    Server::pantala(backend, &["--workers", "2", "--shards", "40"])
}

/// Calls SCAN with the options until its cursor is 0 again, and returns the keys. `between` runs
/// between two calls.
fn scan(client: &mut Client, options: &[&str], mut between: impl FnMut()) -> Vec<String> {
    let mut cursor = "0".to_owned();
    let mut found = Vec::new();
    for _ in 0..CALLS_MAX {
        let mut args = vec!["SCAN", &cursor];
        args.extend_from_slice(options);
        let reply = client.command(&args);
        let [next, keys] = reply.elements() else { panic!("SCAN must return a cursor and keys: {reply:?}") };
        found.extend(keys.elements().iter().map(Reply::text));
        cursor = next.text();
        // Some clients parse a cursor as an unsigned 64-bit number, and others as a double. A
        // cursor must survive both.
        let number = cursor.parse::<u64>().expect("a cursor is an unsigned number");
        assert!(number < 1 << 53, "a double doesn't hold the cursor {number}");
        if cursor == "0" {
            return found;
        }
        between();
    }
    panic!("SCAN doesn't end");
}

fn fill(client: &mut Client, prefix: &str, range: std::ops::Range<usize>) {
    let keys: Vec<usize> = range.collect();
    for chunk in keys.chunks(1000) {
        let mut args = vec!["MSET".to_owned()];
        for number in chunk {
            args.extend([format!("{prefix}{number}"), "v".to_owned()]);
        }
        assert_eq!(client.command(&args), Reply::ok());
    }
}

fn remove(client: &mut Client, prefix: &str, range: std::ops::Range<usize>) {
    let keys: Vec<usize> = range.collect();
    for chunk in keys.chunks(1000) {
        let mut args = vec!["DEL".to_owned()];
        args.extend(chunk.iter().map(|number| format!("{prefix}{number}")));
        client.command(&args);
    }
}

#[test]
fn a_quiet_database_is_scanned_exactly_once() {
    for_each_backend(|backend| {
        let server = start(backend);
        let mut client = server.connect();
        fill(&mut client, "key:", 0..10_000);
        for count in ["1", "10", "1000", "100000"] {
            let found = scan(&mut client, &["COUNT", count], || {});
            let unique: BTreeSet<_> = found.iter().collect();
            assert_eq!(unique.len(), 10_000, "COUNT {count}");
            assert_eq!(found.len(), 10_000, "COUNT {count}: a key was returned twice without changes");
        }
        assert_eq!(scan(&mut client, &["MATCH", "key:99?"], || {}).len(), 10);
        assert_eq!(scan(&mut client, &["TYPE", "string", "COUNT", "100"], || {}).len(), 10_000);
        assert_eq!(scan(&mut client, &["TYPE", "list"], || {}).len(), 0);
        assert_eq!(scan(&mut client, &["MATCH", "nosuch*", "COUNT", "500"], || {}).len(), 0);
    });
}

#[test]
fn stable_keys_are_returned_while_the_table_grows_and_shrinks() {
    const STABLE: usize = 3000;
    const PASSING: usize = 60_000;
    let seed = Random::seed("stable_keys_are_returned_while_the_table_grows_and_shrinks");
    for_each_backend(|backend| {
        let server = start(backend);
        let (mut client, mut other) = (server.connect(), server.connect());
        let mut random = Random::from_seed(seed);
        fill(&mut client, "stable:", 0..STABLE);
        for round in 0..6 {
            // During the iteration, the number of keys grows in even rounds and shrinks in odd
            // rounds, in random steps.
            let mut done = 0;
            let grows = round % 2 == 0;
            let found = scan(&mut client, &["COUNT", "20"], || {
                if done < PASSING && random.one_in(3) {
                    let end = (done + random.below(4000) + 1).min(PASSING);
                    if grows {
                        fill(&mut other, "passing:", done..end);
                    } else {
                        remove(&mut other, "passing:", done..end);
                    }
                    done = end;
                }
            });
            if grows {
                fill(&mut other, "passing:", done..PASSING);
            } else {
                remove(&mut other, "passing:", done..PASSING);
            }
            let unique: BTreeSet<&str> = found.iter().map(String::as_str).collect();
            let missing: Vec<_> =
                (0..STABLE).map(|n| format!("stable:{n}")).filter(|key| !unique.contains(key.as_str())).collect();
            assert!(missing.is_empty(), "round {round}: {} stable keys missing, first {}", missing.len(), missing[0]);
            let odd = unique.iter().find(|key| !key.starts_with("stable:") && !key.starts_with("passing:"));
            assert_eq!(odd, None, "a key that never existed");
        }
    });
}

#[test]
fn stable_keys_are_returned_beside_writers() {
    const STABLE: usize = 2000;
    for_each_backend(|backend| {
        let mut server = start(backend);
        fill(&mut server.connect(), "stable:", 0..STABLE);
        let mut bodies: Vec<Body> = Vec::new();
        for writer in 0..2_usize {
            let mut client = server.connect();
            let prefix = format!("writer{writer}:");
            let mut grows = true;
            bodies.push(Box::new(move || {
                for step in 0..20 {
                    let range = step * 500..(step + 1) * 500;
                    if grows { fill(&mut client, &prefix, range) } else { remove(&mut client, &prefix, range) }
                }
                grows = !grows;
                Ok(())
            }));
        }
        let mut client = server.connect();
        bodies.push(Box::new(move || {
            let found: BTreeSet<String> =
                scan(&mut client, &["COUNT", "100", "MATCH", "stable:*"], || {}).into_iter().collect();
            if found.len() == STABLE {
                Ok(())
            } else {
                Err(format!("{} of {STABLE} stable keys returned", found.len()))
            }
        }));
        run_for(Duration::from_secs(3), bodies).expect("SCAN returns all stable keys");
        server.assert_sound();
    });
}

/// Clients that store a cursor as a double (node-redis 4, `tonumber` in scripts) can complete a
/// scan over many partitions. They get each key once.
#[test]
fn cursors_of_many_partitions_survive_as_doubles() {
    const KEYS: usize = 20_000;
    for_each_backend(|backend| {
        let mut server = Server::pantala(backend, &["--workers", "2", "--partitions", "1024"]);
        let mut client = server.connect();
        fill(&mut client, "key:", 0..KEYS);
        let (mut cursor, mut found) = ("0".to_owned(), 0);
        for call in 0.. {
            assert!(call < 2 * KEYS, "SCAN doesn't end at {cursor}");
            let reply = client.command(&["SCAN", &cursor, "COUNT", "1"]);
            let [next, keys] = reply.elements() else { panic!("not a page: {reply:?}") };
            found += keys.elements().len();
            cursor = next.text().parse::<f64>().expect("a cursor is a number").to_string();
            if cursor == "0" {
                break;
            }
        }
        assert_eq!(found, KEYS);
        let script = "local cursor, found = 0, 0 repeat local page = redis.call('SCAN', cursor) \
                      cursor = tonumber(page[1]) found = found + #page[2] until cursor == 0 return found";
        assert_eq!(client.command(&["EVAL", script, "0"]), Reply::Integer(KEYS as i64));
        server.assert_sound();
    });
}

/// SCAN replies to any number as a cursor, including those that it never returned.
#[test]
fn any_cursor_gets_a_reply() {
    let seed = Random::seed("any_cursor_gets_a_reply");
    for_each_backend(|backend| {
        let mut server = start(backend);
        let mut client = server.connect();
        fill(&mut client, "key:", 0..1000);
        let mut random = Random::from_seed(seed);
        for round in 0..2000 {
            let cursor = random.next_u64() >> random.below(64);
            let reply = client.command(&["SCAN", &cursor.to_string(), "COUNT", "5"]);
            assert_eq!(reply.elements().len(), 2, "round {round}: SCAN {cursor}: {reply:?}");
        }
        server.assert_sound();
    });
}

/// A full iteration returns the same keys as on redis-server, with every option.
#[test]
fn full_iterations_equal_those_of_redis() {
    for_each_backend(|backend| {
        let Some(reference) = Server::redis(&[]) else { return };
        assert!(tool::find("redis-server").is_some());
        let subject = start(backend);
        let (mut given, mut right) = (subject.connect(), reference.connect());
        for client in [&mut given, &mut right] {
            fill(client, "a", 0..500);
            fill(client, "b{tag}", 0..300);
            client.call("SELECT 3");
            fill(client, "other", 0..50);
            client.call("SELECT 0");
        }
        for options in [
            &[][..],
            &["MATCH", "a1*"],
            &["MATCH", "*{tag}[0-9]"],
            &["TYPE", "STRING"],
            &["COUNT", "7", "MATCH", "?5*"],
        ] {
            let sorted = |client: &mut Client| scan(client, options, || {}).into_iter().collect::<BTreeSet<_>>();
            assert_eq!(sorted(&mut given), sorted(&mut right), "{options:?}");
        }
    });
}
