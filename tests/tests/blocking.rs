//! Blocking commands: which client is served, in which order, and that no client stays blocked by
//! mistake. The tests also run on redis-server, to check that they describe Redis's behaviour.

use std::time::{Duration, Instant};

use pantala_tests::waiting::{PATIENCE, pantalas, play, play_together, wait_until_blocked, waiting};
use pantala_tests::{Client, Random, Reply, Server, for_each_backend};

/// Time for which a test checks that a client receives nothing.
const QUIET: Duration = Duration::from_millis(60);

fn info(client: &mut Client, field: &str) -> i64 {
    let text = client.call("INFO clients").text();
    let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    line.and_then(|number| number.trim().parse().ok()).unwrap_or_else(|| panic!("no {field}"))
}

fn words(reply: &Reply) -> String {
    match reply {
        Reply::Array(elements) => elements.iter().map(words).collect::<Vec<_>>().join(" "),
        other => other.text(),
    }
}

/// Asserts that a client has received nothing, because it is still blocked.
#[track_caller]
fn assert_still_blocked(client: &mut Client) {
    assert!(!client.has_reply_within(QUIET), "a blocked client has received something");
}

#[test]
fn clients_are_served_in_the_order_in_which_they_blocked() {
    play(|server| {
        let mut pusher = server.connect();
        let mut clients: Vec<Client> = (1..=9)
            .map(|count| {
                waiting(server, ["BLPOP list 0", "BRPOP other list 0", "BLMPOP 0 2 list third LEFT"][count % 3], count)
            })
            .collect();
        for number in 1..=9 {
            assert_eq!(pusher.call(&format!("RPUSH list {number}")).integer(), 1);
        }
        for (number, client) in clients.iter_mut().enumerate() {
            assert_eq!(words(&client.receive()), format!("list {}", number + 1));
        }
        wait_until_blocked(&mut pusher, 0);
        // One command pushes four elements. The three clients get one each, in the order in which
        // they blocked. The fourth element stays in the list.
        let mut clients: Vec<Client> = (1..=3).map(|count| waiting(server, "BRPOP list 0", count)).collect();
        assert_eq!(pusher.call("RPUSH list a b c d").integer(), 4);
        for (client, element) in clients.iter_mut().zip(["d", "c", "b"]) {
            assert_eq!(words(&client.receive()), format!("list {element}"));
        }
        assert_eq!(words(&pusher.call("LRANGE list 0 -1")), "a");
    });
}

#[test]
fn a_served_client_leaves_the_queues_of_all_its_keys() {
    play(|server| {
        let mut pusher = server.connect();
        for (number, key) in ["a", "b", "c", "d"].iter().enumerate() {
            let mut client = waiting(server, "BLPOP a b c b d 0", 1);
            pusher.call(&format!("LPUSH {key} {number}"));
            assert_eq!(words(&client.receive()), format!("{key} {number}"));
            // The client was served from one key, and no longer waits for the other keys. Elements
            // pushed to the other keys therefore remain until LPOP.
            for other in ["a", "b", "c", "d"] {
                assert_eq!(pusher.call(&format!("LPUSH {other} x")).integer(), 1);
                assert_eq!(pusher.call(&format!("LPOP {other}")).text(), "x");
            }
            wait_until_blocked(&mut pusher, 0);
        }
        // Without blocking, the first key that exists is popped.
        pusher.call("RPUSH d 4");
        pusher.call("RPUSH b 2");
        assert_eq!(words(&pusher.call("BLPOP a b c d 0")), "b 2");
        assert_eq!(words(&pusher.call("BLMPOP 0 2 a d RIGHT COUNT 5")), "d 4");
    });
}

/// A transaction or script fills several keys. A client that waits for all of them is served from
/// the key that was filled first, not from the first key of the client's command.
#[test]
fn keys_are_served_in_the_order_in_which_they_became_ready() {
    const SCRIPT: &str = "for i, key in ipairs(KEYS) do redis.call('RPUSH', key, i) end";
    play(|server| {
        let mut pusher = server.connect();
        for keys in [["d", "a", "c", "b"], ["b", "d", "a", "c"], ["c", "b", "d", "a"]] {
            let mut client = waiting(server, "BLPOP a b c d 0", 1);
            pusher.call("MULTI");
            keys.iter().for_each(|key| _ = pusher.call(&format!("RPUSH {key} 1")));
            assert_eq!(pusher.call("EXEC").elements().len(), 4);
            assert_eq!(words(&client.receive()), format!("{} 1", keys[0]));
            assert_eq!(pusher.call("DEL a b c d").integer(), 3);

            let mut client = waiting(server, "BLPOP a b c d 0", 1);
            pusher.command(&[&["EVAL", SCRIPT, "4"], &keys[..]].concat());
            assert_eq!(words(&client.receive()), format!("{} 1", keys[0]));
            assert_eq!(pusher.call("DEL a b c d").integer(), 3);
        }
    });
}

#[test]
fn blocked_pops_of_sorted_sets() {
    play(|server| {
        let mut adder = server.connect();
        let mut clients: Vec<Client> =
            ["BZPOPMIN a z 0", "BZPOPMAX z b 0", "BZMPOP 0 2 b z MAX COUNT 2", "BZPOPMIN z 0"]
                .iter()
                .enumerate()
                .map(|(count, words)| waiting(server, words, count + 1))
                .collect();
        // A list at the key doesn't wake clients that wait for a sorted set, and a sorted set
        // doesn't wake clients that wait for a list.
        assert_eq!(adder.call("RPUSH z x").integer(), 1);
        assert_eq!(adder.call("LPOP z").text(), "x");
        assert_eq!(adder.call("ZADD z 1 one 2 two 3 three 4 four 5 five").integer(), 5);
        for (client, reply) in clients.iter_mut().zip(["z one 1", "z five 5", "z four 4 three 3", "z two 2"]) {
            assert_eq!(words(&client.receive()), reply);
        }
        assert_eq!(adder.call("EXISTS z").integer(), 0);
        wait_until_blocked(&mut adder, 0);

        // Every command that creates the sorted set wakes a client.
        adder.call("ZADD other 1.5 m");
        adder.call("SADD plain p");
        for command in ["RENAME other z", "ZUNIONSTORE z 1 plain", "GEOADD z 0 0 place", "ZINCRBY z 2 m"] {
            let mut client = waiting(server, "BZPOPMIN z 0", 1);
            adder.call(command);
            assert_eq!(words(&client.receive()).split(' ').next(), Some("z"), "{command}");
            assert_eq!(adder.call("EXISTS z").integer(), 0, "{command}");
        }

        let mut client = server.connect();
        client.call("HELLO 3");
        adder.call("ZADD z 1 one 2 two");
        let (_, raw) = client.exchange(b"BZPOPMIN z 0\r\n", 1).remove(0);
        assert_eq!(raw, b"*3\r\n$1\r\nz\r\n$3\r\none\r\n,1\r\n");
        let (_, raw) = client.exchange(b"BZMPOP 0 1 z MIN\r\n", 1).remove(0);
        assert_eq!(raw, b"*2\r\n$1\r\nz\r\n*1\r\n*2\r\n$3\r\ntwo\r\n,2\r\n");
        for command in ["BZPOPMIN z 0.05", "BZPOPMAX z y 0.05", "BZMPOP 0.05 1 z MIN"] {
            let (_, raw) = client.exchange(format!("{command}\r\n").as_bytes(), 1).remove(0);
            assert_eq!(raw, b"_\r\n", "{command}");
        }
        adder.call("SET s x");
        for (command, error) in [
            ("BZPOPMIN z s 0", "WRONGTYPE Operation against a key holding the wrong kind of value"),
            ("BZPOPMAX s -1", "ERR timeout is negative"),
            ("BZMPOP x 0 s MIN", "ERR numkeys should be greater than 0"),
            ("BZMPOP x 1 s MIN", "ERR timeout is not a float or out of range"),
            ("BZMPOP 0 1 s MIN COUNT 0", "ERR count should be greater than 0"),
            ("BZMPOP 0 1 s MID", "ERR syntax error"),
        ] {
            assert_eq!(client.call(command).text(), error, "{command}");
        }
    });
}

#[test]
fn timeouts_are_exact_to_the_millisecond() {
    play(|server| {
        for command in ["BLPOP a b 0.05", "BLMOVE a b LEFT LEFT 0.05", "BRPOPLPUSH a b 0.05", "BLMPOP 0.05 1 a LEFT"] {
            let mut client = server.connect();
            let began = Instant::now();
            let (_, raw) = client.exchange(format!("{command}\r\n").as_bytes(), 1).remove(0);
            let took = began.elapsed();
            assert_eq!(raw, b"*-1\r\n", "{command}");
            assert!(took >= Duration::from_millis(50), "{command}: {took:?}");
            // The timeout is much shorter than this bound, which even a loaded machine keeps.
            assert!(took < Duration::from_secs(5), "{command}: {took:?}");
            assert_eq!(client.call("PING").text(), "PONG");
        }
        let mut client = server.connect();
        assert_eq!(info(&mut client, "blocked_clients"), 0);
        assert_eq!(client.call("RPUSH a 1").integer(), 1, "no client is blocked any more");
        for (timeout, wrong) in [("-1", "ERR timeout is negative"), ("x", "ERR timeout is not a float or out of range")]
        {
            assert_eq!(client.call(&format!("BLPOP none {timeout}")).text(), wrong);
        }
    });
}

#[test]
fn client_unblock_unblocks() {
    play(|server| {
        let mut other = server.connect();
        for (reason, raw) in [
            ("", &b"*-1\r\n"[..]),
            (" TIMEOUT", b"*-1\r\n"),
            (" ERROR", b"-UNBLOCKED client unblocked via CLIENT UNBLOCK\r\n"),
        ] {
            let mut client = server.connect();
            let id = client.call("CLIENT ID").integer();
            assert_eq!(other.call(&format!("CLIENT UNBLOCK {id}{reason}")).integer(), 0, "it is not blocked yet");
            client.send(&["BLPOP", "a", "b", "c", "0"]);
            wait_until_blocked(&mut other, 1);
            let line = other.call(&format!("CLIENT LIST ID {id}")).text();
            assert!(line.contains(" flags=b ") && line.contains(" cmd=blpop "), "{line}");
            assert_eq!(other.call(&format!("CLIENT UNBLOCK {id}{reason}")).integer(), 1);
            assert_eq!(client.receive_raw().1, raw);
            assert_eq!(other.call(&format!("CLIENT UNBLOCK {id}{reason}")).integer(), 0);
            wait_until_blocked(&mut other, 0);
            assert_eq!(client.call("RPUSH a 1").integer(), 1);
            assert_eq!(client.call("LPOP a").text(), "1");
        }
    });
}

/// A quadratic comparison of these keys would take minutes, much longer than [`PATIENCE`].
#[test]
fn a_client_blocks_on_very_many_keys() {
    const KEYS: usize = 100_000;
    play(|server| {
        let keys = (0..KEYS).map(|number| format!("list:{number}"));
        let words: Vec<String> =
            ["BLPOP".into()].into_iter().chain(keys.clone()).chain(keys).chain(["0".into()]).collect();
        let mut other = server.connect();
        let mut client = server.connect();
        client.set_read_timeout(PATIENCE);
        client.send(&words);
        wait_until_blocked(&mut other, 1);
        assert_eq!(other.command(&["RPUSH", "list:54321", "1", "2"]).integer(), 2);
        assert_eq!(self::words(&client.receive()), "list:54321 1");
        assert_eq!(other.command(&["DEL", "list:54321"]).integer(), 1);
        // The client blocks on all keys again and disconnects. The server must then remove it from
        // the queue of each key.
        client.send(&words);
        wait_until_blocked(&mut other, 1);
        drop(client);
        wait_until_blocked(&mut other, 0);
        assert_eq!(other.command(&["RPUSH", "list:1", "1"]).integer(), 1);
        assert_eq!(other.call("LLEN list:1").integer(), 1);
    });
}

#[test]
fn disconnected_and_killed_clients_get_nothing() {
    play(|server| {
        let mut pusher = server.connect();
        let first = waiting(server, "BLPOP a b 0", 1);
        let mut second = waiting(server, "BLPOP a b 0", 2);
        let mut third = waiting(server, "BLPOP b a 0", 3);
        drop(first);
        wait_until_blocked(&mut pusher, 2);
        let id = pusher.call("CLIENT LIST").text();
        let id = id
            .lines()
            .filter(|line| line.contains(" flags=b "))
            .map(|line| line.split([' ', '=']).nth(1).unwrap().to_owned())
            .next()
            .unwrap();
        assert_eq!(pusher.call(&format!("CLIENT KILL ID {id}")).integer(), 1);
        assert!(second.ends_within(PATIENCE));
        wait_until_blocked(&mut pusher, 1);
        assert_eq!(pusher.call("RPUSH a 1 2").integer(), 2);
        assert_eq!(words(&third.receive()), "a 1");
        assert_eq!(words(&pusher.call("LRANGE a 0 -1")), "2");
    });
}

#[test]
fn a_disconnect_after_a_long_pipeline_is_detected() {
    /// Length of the pipeline after the blocking command, in bytes. While a client is blocked, the
    /// server reads only a small part of such a long pipeline, so it doesn't reach the end of the
    /// stream.
    const BYTES: usize = 3 * 1024 * 1024;
    play(|server| {
        let mut other = server.connect();
        let mut leaver = waiting(server, "BLPOP list 0", 1);
        leaver.send_raw(&b"PING\r\n".repeat(BYTES / 6));
        drop(leaver);
        wait_until_blocked(&mut other, 0);
        assert_eq!(other.call("RPUSH list x").integer(), 1);
        assert_eq!(other.call("LLEN list").integer(), 1);
    });
}

#[test]
fn commands_after_a_blocking_one_run_once_it_is_served() {
    play(|server| {
        let mut client = server.connect();
        client.send_raw(b"PING\r\nBLPOP a 0\r\nRPUSH b x\r\nECHO done\r\n");
        assert_eq!(client.receive().text(), "PONG");
        let mut other = server.connect();
        wait_until_blocked(&mut other, 1);
        assert_eq!(other.call("EXISTS b").integer(), 0);
        other.call("RPUSH a 1");
        assert_eq!(words(&client.receive()), "a 1");
        assert_eq!(client.receive().integer(), 1);
        assert_eq!(client.receive().text(), "done");
    });
}

#[test]
fn every_command_that_creates_a_list_wakes() {
    play(|server| {
        let mut other = server.connect();
        let scenes: [(&[&str], &str); 7] = [
            (&["RPUSH from x", "RENAME from key"], "key x"),
            (&["RPUSH from x", "RENAMENX from key"], "key x"),
            (&["RPUSH from x", "COPY from key"], "key x"),
            (&["RPUSH from x y", "LMOVE from key RIGHT LEFT"], "key y"),
            (&["SELECT 1", "RPUSH key x", "MOVE key 0"], "key x"),
            (&["SELECT 1", "RPUSH key x", "SWAPDB 0 1"], "key x"),
            (&["SET key string", "DEL key", "SADDX", "LPUSHX key no", "RPUSH key x"], "key x"),
        ];
        for (commands, expected) in scenes {
            let mut client = waiting(server, "BLPOP none key 0", 1);
            for (index, command) in commands.iter().enumerate() {
                other.call(command);
                if index + 1 < commands.len() {
                    assert_eq!(info(&mut other, "blocked_clients"), 1, "woken by {command}");
                }
            }
            other.call("SELECT 0");
            assert_eq!(words(&client.receive()), expected, "{commands:?}");
            other.call("FLUSHALL");
        }
    });
}

/// If a key that a transaction or a script creates expires before the transaction or script ends,
/// no client is served.
#[test]
fn keys_that_expire_before_their_transaction_ends_wake_no_client() {
    const SCRIPT: &str = "redis.call('RPUSH', KEYS[1], 'x') redis.call('PEXPIRE', KEYS[1], 1) \
                          local sum = 0 for number = 1, 1e7 do sum = sum + number end";
    play(|server| {
        let mut other = server.connect();
        let scenes = [
            ("BLPOP key 0", "RPUSH key x", "RPUSH key y", "key y"),
            ("BLMOVE key to LEFT LEFT 0", "RPUSH key x", "RPUSH key y", "y"),
            ("BZPOPMIN key 0", "ZADD key 1 x", "ZADD key 2 y", "key y 2"),
            ("XREAD BLOCK 0 STREAMS key 0", "XADD key 1-1 a x", "XADD key 1-1 a y", "key 1-1 a y"),
        ];
        for (wait, fill, fill_again, expected) in scenes {
            let mut client = waiting(server, wait, 1);
            for command in ["MULTI", fill, "PEXPIRE key 1", "DEBUG SLEEP 0.03", "EXEC"] {
                other.call(command);
            }
            assert_still_blocked(&mut client);
            assert_eq!(info(&mut other, "blocked_clients"), 1, "{wait}");
            other.call(fill_again);
            assert_eq!(words(&client.receive()), expected, "{wait}");
            other.call("FLUSHALL");
        }
        let mut client = waiting(server, "BLPOP key 0", 1);
        other.command(&["EVAL", SCRIPT, "1", "key"]);
        assert_still_blocked(&mut client);
    });
}

#[test]
fn a_move_wakes_the_waiter_of_its_destination() {
    play(|server| {
        let mut other = server.connect();
        // The keys are in different shards. To serve a client that waits at one key, the server
        // must also hold the shard of the destination.
        let mut first = waiting(server, "BLMOVE a b LEFT RIGHT 0", 1);
        let mut second = waiting(server, "BRPOPLPUSH b c 0", 2);
        let mut third = waiting(server, "BLPOP c 0", 3);
        assert_eq!(other.call("RPUSH a x").integer(), 1);
        assert_eq!(first.receive().text(), "x");
        assert_eq!(second.receive().text(), "x");
        assert_eq!(words(&third.receive()), "c x");
        assert_eq!(other.call("EXISTS a b c").integer(), 0);
        // If the destination isn't a list, the client receives an error and the element stays for
        // the next waiter.
        other.call("SET s string");
        let mut first = waiting(server, "BLMOVE a s LEFT RIGHT 0", 1);
        let mut second = waiting(server, "BLMOVE a a LEFT RIGHT 0", 2);
        other.call("RPUSH a x");
        assert!(first.receive().text().starts_with("WRONGTYPE "));
        assert_eq!(second.receive().text(), "x");
        assert_eq!(words(&other.call("LRANGE a 0 -1")), "x");
    });
}

#[test]
fn another_type_wakes_no_client() {
    play(|server| {
        let mut other = server.connect();
        let mut client = waiting(server, "BLPOP key 0", 1);
        other.call("SET key string");
        other.call("APPEND key more");
        assert_still_blocked(&mut client);
        assert!(other.call("BLPOP key 0").text().starts_with("WRONGTYPE "));
        other.call("DEL key");
        other.call("RPUSH key x");
        assert_eq!(words(&client.receive()), "key x");
    });
}

#[test]
fn a_thousand_blocked_clients_are_served() {
    play(|server| {
        let mut pusher = server.connect();
        let mut clients = Vec::new();
        for _ in 0..1000 {
            let mut client = server.connect();
            client.set_read_timeout(PATIENCE);
            client.send(&["BLPOP", "list", "0"]);
            clients.push(client);
        }
        wait_until_blocked(&mut pusher, 1000);
        let mut push = Vec::new();
        for number in 0..1000 {
            push.extend(format!("RPUSH list {number}\r\n").into_bytes());
        }
        pusher.exchange(&push, 1000);
        let mut got: Vec<i64> =
            clients.iter_mut().map(|client| words(&client.receive())[5..].parse().unwrap()).collect();
        got.sort_unstable();
        assert_eq!(got, (0..1000).collect::<Vec<_>>());
        wait_until_blocked(&mut pusher, 0);
        assert_eq!(pusher.call("EXISTS list").integer(), 0);
    });
}

/// Waits until `INFO commandstats` has these numbers of calls and failures of a command. Waiting is
/// necessary: if another client's command causes the error of a blocked client, the server may
/// reply to that command before it counts the error.
#[track_caller]
fn wait_for_counters(client: &mut Client, command: &str, calls: u64, failed: u64) {
    let began = Instant::now();
    loop {
        let text = client.call("INFO commandstats").text();
        let line = text.lines().find(|line| line.starts_with(&format!("cmdstat_{command}:"))).unwrap_or_default();
        let has = |field: String| line.split([':', ',']).any(|it| it == field);
        if has(format!("calls={calls}")) && has(format!("failed_calls={failed}")) {
            return;
        }
        assert!(began.elapsed() < PATIENCE, "not {calls} calls, {failed} failed: {line}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn late_errors_count_as_failed_calls() {
    play(|server| {
        let mut other = server.connect();
        other.call("SET string x");
        let mut client = waiting(server, "BLMOVE a string LEFT LEFT 0", 1);
        wait_for_counters(&mut other, "blmove", 1, 0);
        other.call("RPUSH a 1");
        assert!(client.receive().text().starts_with("WRONGTYPE "));
        wait_for_counters(&mut other, "blmove", 1, 1);
        // Commands that run on another worker (`--execution owner`) count too, pipelined or not.
        client.call("LPUSH string x");
        client.exchange(b"LPUSH string x\r\nGET none\r\nLPUSH string y\r\n", 3);
        client.call("BLPOP none 0.001");
        for (command, calls, failed) in [("lpush", 3, 3), ("get", 1, 0), ("blpop", 1, 0)] {
            wait_for_counters(&mut other, command, calls, failed);
        }
        let errors = other.call("INFO errorstats").text();
        assert!(errors.contains("errorstat_WRONGTYPE:count=4"), "{errors}");
    });
}

#[test]
fn a_paused_client_counts_as_blocked() {
    play(|server| {
        let mut other = server.connect();
        assert_eq!(other.call("CLIENT PAUSE 100000 WRITE").text(), "OK");
        let mut client = server.connect();
        let id = client.call("CLIENT ID").integer();
        let leaver = waiting(server, "SET left x", 1);
        client.send(&["BLPOP", "list", "0"]);
        wait_until_blocked(&mut other, 2);
        let line = other.call(&format!("CLIENT LIST ID {id}")).text();
        assert!(line.contains(" flags=b ") && line.contains(" cmd=blpop "), "{line}");
        drop(leaver);
        wait_until_blocked(&mut other, 1);
        assert_eq!(other.call("CLIENT UNPAUSE").text(), "OK");
        // The client is still blocked, so a push to its list serves it.
        other.call("RPUSH list x");
        assert_eq!(words(&client.receive()), "list x");
        assert!(client.call(&format!("CLIENT LIST ID {id}")).text().contains(" flags=N "));
        assert_eq!(other.call("EXISTS left").integer(), 0, "a command of a disconnected client ran");
    });
}

#[test]
fn timeouts_expire_while_writes_are_paused() {
    play_together(|server| {
        let mut other = server.connect();
        // The timeout is two seconds, so the pause starts before it even on a busy host.
        let mut client = waiting(server, "BLPOP list 2", 1);
        let mut second = waiting(server, "BLPOP list 0", 2);
        let list = other.call("CLIENT LIST").text();
        let line = list.lines().rfind(|line| line.contains(" flags=b ")).unwrap();
        let id = line.split([' ', '=']).nth(1).unwrap();
        assert_eq!(other.call("CLIENT PAUSE 100000 WRITE").text(), "OK");
        assert_eq!(client.receive_raw().1, b"*-1\r\n");
        assert_eq!(other.call(&format!("CLIENT UNBLOCK {id}")).integer(), 1);
        assert_eq!(second.receive_raw().1, b"*-1\r\n");
        other.call("CLIENT UNPAUSE");
    });
}

/// Clients push, pop and block at random on several keys. Each element is popped once or remains,
/// and no client stays blocked on a key that has elements.
#[test]
fn elements_are_neither_lost_nor_popped_twice() {
    let seed = Random::seed("elements_are_neither_lost_nor_popped_twice");
    for (number, mut server) in pantalas().into_iter().enumerate() {
        let threads: Vec<_> = (0..6)
            .map(|thread| {
                let client = server.connect();
                let random = Random::from_seed(seed.wrapping_add(number as u64 * 100 + thread));
                std::thread::spawn(move || push_and_wait(client, random, thread))
            })
            .collect();
        let (mut pushed, mut got) = (Vec::new(), Vec::new());
        for thread in threads {
            let (pushes, pops) = thread.join().expect("no thread fails");
            pushed.extend(pushes);
            got.extend(pops);
        }
        let mut client = server.connect();
        wait_until_blocked(&mut client, 0);
        for key in 0..KEYS {
            got.extend(client.call(&format!("LRANGE key:{key} 0 -1")).elements().iter().map(Reply::text));
            client.call(&format!("DEL key:{key}"));
        }
        pushed.sort_unstable();
        got.sort_unstable();
        assert_eq!(pushed, got, "seed {seed}");
        // No blocked client is left in the queue of a key: it would take the pushed element.
        for key in 0..KEYS {
            assert_eq!(client.call(&format!("RPUSH key:{key} x")).integer(), 1);
            assert_eq!(client.call(&format!("LLEN key:{key}")).integer(), 1);
        }
        server.assert_sound();
    }
}

const KEYS: usize = 4;

fn push_and_wait(mut client: Client, mut random: Random, thread: u64) -> (Vec<String>, Vec<String>) {
    client.set_read_timeout(PATIENCE);
    let (mut pushed, mut got) = (Vec::new(), Vec::new());
    for number in 0..1500 {
        let (key, other) = (random.below(KEYS), random.below(KEYS));
        match random.below(9) {
            7 => {
                // `CLIENT UNBLOCK` races with another `CLIENT UNBLOCK` and with a push. Exactly one
                // of the three takes effect.
                let line = client.call("CLIENT LIST").text();
                let waiting = line.lines().find(|line| line.contains(" flags=b ")).unwrap_or_default();
                let id = waiting.split([' ', '=']).nth(1).unwrap_or("0");
                client.call(&format!("CLIENT UNBLOCK {id}"));
            }
            8 => {
                client.call(&format!("RENAMENX key:{key} key:{other}"));
            }
            0..=2 => {
                let element = format!("{thread}:{number}");
                client.call(&format!("{} key:{key} {element}", if random.one_in(2) { "LPUSH" } else { "RPUSH" }));
                pushed.push(element);
            }
            3 => {
                // The element only moves to another key, so it isn't counted.
                client.call(&format!("BLMOVE key:{key} key:{other} LEFT RIGHT 0.01"));
            }
            4 => {
                let reply = client.call(&format!("BLMPOP 0.02 2 key:{key} key:{other} LEFT COUNT 2"));
                if let Reply::Array(elements) = &reply {
                    got.extend(elements[1].elements().iter().map(Reply::text));
                }
            }
            _ => {
                let timeout = if random.one_in(2) { "0.003" } else { "0.05" };
                let reply = client.call(&format!("BLPOP key:{key} key:{other} {timeout}"));
                if let Reply::Array(elements) = &reply {
                    got.push(elements[1].text());
                }
            }
        }
    }
    (pushed, got)
}

/// A client that is closed while its blocking command waits for a shard gets no element.
#[test]
fn a_client_killed_before_it_blocks_takes_no_element() {
    for_each_backend(|backend| {
        let mut server = Server::pantala(backend, &["--workers", "2"]);
        let (mut client, mut holder) = (server.connect(), server.connect());
        let script = "local t = redis.call('TIME') local since = t[1] * 1000 + t[2] / 1000 \
                      repeat t = redis.call('TIME') until t[1] * 1000 + t[2] / 1000 > since + 500";
        holder.send(&["EVAL", script, "1", "k"]);
        std::thread::sleep(Duration::from_millis(100));
        // Some of these clients belong to the worker that doesn't run the script. For such a
        // client, its worker sends the command as a request to the script's worker.
        let mut blocked: Vec<Client> = (0..6).map(|_| server.connect()).collect();
        let ids: Vec<i64> = blocked.iter_mut().map(|client| client.call("CLIENT ID").integer()).collect();
        blocked.iter_mut().for_each(|client| client.send(&["BLPOP", "k", "0"]));
        std::thread::sleep(Duration::from_millis(100));
        for id in ids {
            client.call(&format!("CLIENT KILL ID {id}"));
        }
        assert_eq!(holder.receive(), Reply::Null);
        // The script has ended, so the commands now block on the key. The workers of the closed
        // clients then remove the commands from the queue of the key.
        std::thread::sleep(Duration::from_millis(200));
        assert_eq!(client.call("RPUSH k v"), Reply::Integer(1));
        assert_eq!(client.call("LLEN k"), Reply::Integer(1), "a closed client has received the element");
        server.assert_sound();
    });
}
