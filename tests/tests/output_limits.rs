//! Client output buffer limits: how they are parsed, which clients they close and when, and what
//! happens to the commands of such clients.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use pantala_tests::client::{encode, encode_into};
use pantala_tests::transcript::assert_as_redis;
use pantala_tests::{Backend, Client, Reply, Server, for_each_backend};

/// Maximum wait for an action of the server, on a slow host.
const PATIENCE: Duration = Duration::from_secs(20);
const MIB: usize = 1 << 20;
/// A number of bytes that the socket buffers of both sides of a connection can't hold.
const STUCK_BYTES: usize = 16 * MIB;
/// Arguments of a server with a small output limit, whose workers run the commands of their own
/// clients (`inline`).
const SMALL_LIMIT_ARGS: [&str; 6] =
    ["--workers", "2", "--execution", "inline", "--client-output-buffer-limit", "normal 100000 0 0"];

/// Returns servers with a small output limit: one for each backend and each value of `--execution`.
fn servers_with_small_limit() -> Vec<Server> {
    let owners = ["--workers", "2", "--execution", "owner", SMALL_LIMIT_ARGS[4], SMALL_LIMIT_ARGS[5]];
    Backend::all()
        .iter()
        .flat_map(|&backend| [Server::pantala(backend, &SMALL_LIMIT_ARGS), Server::pantala(backend, &owners)])
        .collect()
}

/// Waits until `done` returns true.
fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < deadline, "not within {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn set_limit(client: &mut Client, limit: &str) {
    assert_eq!(client.command(&["CONFIG", "SET", "client-output-buffer-limit", limit]), Reply::ok());
}

/// Returns `omem` of the named client, or `None` if the client is closed.
fn pending_bytes(client: &mut Client, name: &str) -> Option<usize> {
    let list = client.call("CLIENT LIST").text();
    let line = list.lines().find(|line| line.contains(&format!(" name={name} ")))?;
    let value = line.split(' ').find_map(|field| field.strip_prefix("omem="));
    Some(value.expect("CLIENT LIST has omem").parse().expect("a number"))
}

fn used_memory(client: &mut Client) -> usize {
    let text = client.call("INFO memory").text();
    let value = text.lines().find_map(|line| line.strip_prefix("used_memory:")).expect("INFO has it");
    value.trim().parse().expect("a number")
}

/// Connects a client and sets its name. Subscribes it to `channel`, if any.
fn named(server: &Server, name: &str, channel: Option<&str>) -> Client {
    let mut client = server.connect();
    assert_eq!(client.command(&["CLIENT", "SETNAME", name]), Reply::ok());
    if let Some(channel) = channel {
        client.command(&["SUBSCRIBE", channel]);
    }
    client
}

#[test]
fn limits_are_parsed_as_by_redis() {
    assert_as_redis(&[], |server, version| {
        let mut client = server.connect();
        client.call(&format!("HELLO {version}"));
        let mut lines = Vec::new();
        for value in [
            "wrong number",
            "normal 1 2",
            "invalid_class 10mb 10mb 60",
            "master 10mb 10mb 60",
            "normal 10mbs 10mb 60",
            "replica 10mb 10mbs 60",
            "pubsub 10mb 10mb 60s",
            "normal -1 0 0",
            "slave 0 -1 0",
            "pubsub 0 0 -1",
            "pubsub 1 1 1 normal 10mbs 1 1",
            "normal 1 1 1 pubsub 2 2",
            "normal 1mb 2mb 60 replica 3mb 4mb 70 pubsub 5mb 6mb 80",
            "pubsub 1gb 0 0",
            "slave 1k 1kb 1",
            "NORMAL 7mb 0 0",
            "normal 8mb 0 0 normal 9mb 1 2",
            "normal 0 0 0 slave 256mb 64mb 60 pubsub 32mb 8mb 60",
        ] {
            for words in [&["SET", "client-output-buffer-limit", value][..], &["GET", "client-output-buffer-limit"]] {
                client.send(&[&["CONFIG"], words].concat());
                lines.push(format!("{value}: {}", client.receive_raw().1.escape_ascii()));
            }
        }
        lines
    });
}

/// A limit is set after a slow subscriber has subscribed. The subscriber stays connected while its
/// output is below the limit. The message that exceeds the limit closes the client and frees its
/// output.
#[test]
fn a_slow_listener_is_closed_by_the_message_that_exceeds_the_limit() {
    const ALLOWED_BYTES: usize = 100_000;
    const MESSAGE_BYTES: usize = 30_000;
    for_each_backend(|backend| {
        let mut server = Server::pantala(backend, &["--workers", "2"]);
        let mut publisher = server.connect();
        let _slow = named(&server, "slow", Some("news"));
        set_limit(&mut publisher, "pubsub 0 0 0");
        let before = used_memory(&mut publisher);
        let payload = "x".repeat(MIB);
        for _ in 0..STUCK_BYTES / MIB {
            assert_eq!(publisher.command(&["PUBLISH", "news", &payload]), Reply::Integer(1));
        }
        // When `omem` has not changed for several ticks of the server's clock, the socket buffers
        // are full and the server sends nothing more.
        let (mut stuck, mut since) = (0, Instant::now());
        eventually("the listener's output is stuck", || {
            let now = pending_bytes(&mut publisher, "slow").expect("a client without a limit stays connected");
            if now != stuck {
                (stuck, since) = (now, Instant::now());
            }
            stuck > MIB && since.elapsed() > Duration::from_millis(350)
        });
        let limit = stuck + ALLOWED_BYTES;
        set_limit(&mut publisher, &format!("pubsub {limit} 0 0"));
        let payload = "x".repeat(MESSAGE_BYTES);
        for number in 1..=ALLOWED_BYTES / MESSAGE_BYTES {
            assert_eq!(publisher.command(&["PUBLISH", "news", &payload]), Reply::Integer(1), "message {number}");
            let least = stuck + number * MESSAGE_BYTES;
            let mut seen = 0;
            eventually("pending output is counted", || {
                seen = pending_bytes(&mut publisher, "slow").expect("a client below its limit stays connected");
                seen >= least
            });
            assert!(seen <= limit, "{seen} bytes are pending, the limit is {limit}");
        }
        publisher.command(&["PUBLISH", "news", &payload]);
        eventually("the listener is closed", || pending_bytes(&mut publisher, "slow").is_none());
        eventually("there are no subscribers", || publisher.command(&["PUBLISH", "news", "x"]) == Reply::Integer(0));
        let after = used_memory(&mut publisher);
        assert!(after < before + STUCK_BYTES / 4, "{before} bytes of memory before, {after} after");
        server.assert_sound();
    });
}

#[test]
fn the_soft_limit_closes_after_its_seconds() {
    const SOFT_SECONDS: u64 = 1;
    for_each_backend(|backend| {
        let mut server = Server::pantala(backend, &["--workers", "2"]);
        let mut other = server.connect();
        let payload = "x".repeat(MIB);
        assert_eq!(other.command(&["SET", "big", &payload]), Reply::ok());
        set_limit(&mut other, &format!("normal 0 1mb {SOFT_SECONDS} pubsub 0 1mb {SOFT_SECONDS}"));
        let _listener = named(&server, "listener", Some("news"));
        let mut reader = named(&server, "reader", None);
        let began = Instant::now();
        reader.send_raw(&encode(&["GET", "big"]).repeat(STUCK_BYTES / MIB));
        for _ in 0..STUCK_BYTES / MIB {
            assert_eq!(other.command(&["PUBLISH", "news", &payload]), Reply::Integer(1));
        }
        let sent = Instant::now();
        let mut open = vec!["listener", "reader"];
        eventually("both are closed", || {
            open.retain(|name| {
                let is_there = pending_bytes(&mut other, name).is_some();
                let took = began.elapsed();
                assert!(is_there || took >= Duration::from_secs(SOFT_SECONDS), "{name} is closed after {took:?}");
                is_there
            });
            open.is_empty()
        });
        // The bound is twice the seconds of the soft limit plus two seconds, although the server
        // checks the limit ten times per second, because the host also runs other tests.
        let took = sent.elapsed();
        assert!(took < Duration::from_secs(2 * SOFT_SECONDS + 2), "closed only after {took:?}");
        server.assert_sound();
    });
}

/// As in Redis, where output is first written to a reply buffer, 16 KiB of pending output don't
/// count.
#[test]
fn the_first_16_kib_of_output_do_not_count() {
    const LIMITS: &str = "normal 1000 0 0 pubsub 1000 0 0";
    let pantala = |backend: Backend| {
        ["inline", "owner"].map(|execution| {
            Server::pantala(backend, &["--client-output-buffer-limit", LIMITS, "--execution", execution])
        })
    };
    let redis = Server::redis(&["--client-output-buffer-limit", LIMITS]);
    for server in Backend::all().iter().flat_map(|backend| pantala(*backend)).chain(redis) {
        let mut other = server.connect();
        for bytes in [2_000, 16_000, 40_000] {
            let value = "x".repeat(bytes);
            assert_eq!(other.command(&["SET", "key", &value]), Reply::ok());
            let channel = format!("news-{bytes}");
            let (mut reader, mut listener) = (server.connect(), named(&server, "listener", Some(&channel)));
            let (mut queued, mut script) = (server.connect(), server.connect());
            reader.send(&["GET", "key"]);
            queued.send_raw(&[encode(&["MULTI"]), encode(&["GET", "key"]), encode(&["EXEC"])].concat());
            script.send(&["EVAL", "return redis.call('GET', KEYS[1])", "1", "key"]);
            assert_eq!(other.command(&["PUBLISH", &channel, &value]), Reply::Integer(1));
            if bytes < 16 * 1024 {
                assert_eq!(reader.receive().text(), value);
                assert_eq!(script.receive().text(), value);
                assert_eq!([queued.receive().text(), queued.receive().text()], ["OK", "QUEUED"]);
                assert_eq!(queued.receive(), Reply::Array(vec![Reply::bulk(&value)]));
                assert_eq!(listener.receive().elements()[2].text(), value);
            } else {
                for client in [&mut reader, &mut queued, &mut script, &mut listener] {
                    assert!(!client.read_to_end().ends_with(b"x\r\n"), "{bytes} bytes");
                }
            }
        }
    }
}

/// A reply of 16 KiB and the limit's bytes is sent, and a longer one closes the client.
#[test]
fn the_limit_follows_the_first_16_kib() {
    const LIMIT_BYTES: usize = 1000;
    // Before a reply is written, the longest header is assumed.
    const MARGIN_BYTES: usize = 32;
    for_each_backend(|backend| {
        for execution in ["inline", "owner"] {
            let limit = format!("normal {LIMIT_BYTES} 0 0 pubsub {LIMIT_BYTES} 0 0");
            let args = ["--client-output-buffer-limit", &limit, "--execution", execution];
            let server = Server::pantala(backend, &args);
            let mut client = server.connect();
            let allowed_bytes = 16 * 1024 + LIMIT_BYTES;
            let value = "x".repeat(allowed_bytes - MARGIN_BYTES);
            assert_eq!(client.command(&["SET", "key", &value]), Reply::ok());
            assert_eq!(client.call("GET key").text(), value);
            let length = client.command(&["APPEND", "key", &"x".repeat(MARGIN_BYTES)]);
            assert_eq!(length, Reply::Integer(allowed_bytes as i64));
            client.send(&["GET", "key"]);
            assert_eq!(client.read_to_end(), b"");
        }
    });
}

/// If a reply exceeds the limit, none of its bytes is sent, and its memory is freed.
#[test]
fn a_reply_above_the_limit_is_not_sent() {
    const ROUNDS: usize = 20;
    for_each_backend(|backend| {
        let mut server = Server::pantala(backend, &SMALL_LIMIT_ARGS);
        let mut other = server.connect();
        let item = "x".repeat(1000);
        for number in 1..=150 {
            assert_eq!(other.command(&["LPUSH", "list", &item]), Reply::Integer(number));
        }
        let before = used_memory(&mut other);
        for round in 0..ROUNDS {
            let mut client = named(&server, "long", None);
            client.send(&["LRANGE", "list", "0", "-1"]);
            assert_eq!(client.read_to_end(), b"", "round {round}");
        }
        eventually("all are closed", || pending_bytes(&mut other, "long").is_none());
        let after = used_memory(&mut other);
        // Twenty replies of 150 kB were encoded. Fewer than three of them may still be in memory.
        assert!(after < before + 3 * 150_000, "{before} bytes of memory before, {after} after");
        server.assert_sound();
    });
}

/// If the replies of commands that arrive together exceed the limit in total, none is sent. With
/// `--execution owner` this holds only for adjacent commands on one key.
#[test]
fn no_reply_of_a_pipeline_above_the_limit_is_sent() {
    for mut server in servers_with_small_limit() {
        let mut other = server.connect();
        assert_eq!(other.command(&["SET", "big", &"x".repeat(10_000)]), Reply::ok());
        let mut client = named(&server, "pipeline", None);
        let mut requests = Vec::new();
        for number in 0..15 {
            let key = format!("key:{number}");
            for command in [&["SET", &key, "value"][..], &["GET", &key], &["GETDEL", &key], &["GET", "big"]] {
                encode_into(&mut requests, command);
            }
        }
        client.send_raw(&requests);
        assert_eq!(client.read_to_end(), b"");
        eventually("the client is closed", || pending_bytes(&mut other, "pipeline").is_none());
        assert_eq!(other.call("PING").text(), "PONG");
        server.assert_sound();
    }
}

/// Once a reply exceeds the limit, later commands don't run. With `--execution owner` this holds
/// only for commands on the same shard.
#[test]
fn commands_after_a_reply_above_the_limit_do_not_run() {
    for server in servers_with_small_limit().into_iter().chain(Server::redis(&SMALL_LIMIT_ARGS[4..])) {
        let mut other = server.connect();
        assert_eq!(other.command(&["SET", "{t}big", &"x".repeat(90_000)]), Reply::ok());
        let mut client = named(&server, "pipeline", None);
        let mut requests = Vec::new();
        for command in ["SET {t}before 1", "GET {t}big", "GET {t}big", "SET {t}after 1", "GET {t}after"] {
            encode_into(&mut requests, &command.split(' ').collect::<Vec<_>>());
        }
        client.send_raw(&requests);
        assert_eq!(client.read_to_end(), b"");
        eventually("the client is closed", || pending_bytes(&mut other, "pipeline").is_none());
        assert_eq!(other.call("MGET {t}before {t}after"), Reply::Array(vec![Reply::bulk("1"), Reply::Null]));
    }
}

/// Commands with an arbitrarily long reply stop once the reply exceeds the output limit.
#[test]
fn an_endless_reply_is_aborted_at_the_limit() {
    const PICKS: i64 = -50_000_000;
    const LIMITS: &str = "normal 100000 0 0 pubsub 200000 0 0";
    let args = ["--client-output-buffer-limit", LIMITS];
    let pantala = |backend: Backend| {
        ["inline", "owner"]
            .map(|execution| Server::pantala(backend, &[&args[..], &["--execution", execution]].concat()))
    };
    for server in Backend::all().iter().flat_map(|backend| pantala(*backend)).chain(Server::redis(&args)) {
        let mut other = server.connect();
        for words in ["HSET hash a 1 b 2", "SADD set a b", "ZADD zset 1 a 2 b"] {
            assert_eq!(other.call(words), Reply::Integer(2), "{words}");
        }
        let keys: Vec<String> = (0..20_000).flat_map(|key| [format!("key:{key}"), String::new()]).collect();
        let words: Vec<&str> = std::iter::once("MSET").chain(keys.iter().map(String::as_str)).collect();
        assert_eq!(other.command(&words), Reply::ok());
        let members: Vec<&str> =
            ["SADD", "members"].into_iter().chain(words.iter().skip(1).step_by(2).copied()).collect();
        assert_eq!(other.command(&members), Reply::Integer(20_000));
        let peak = server.peak_resident_bytes();
        for words in [
            format!("HRANDFIELD hash {PICKS} WITHVALUES"),
            format!("SRANDMEMBER set {PICKS}"),
            format!("ZRANDMEMBER zset {PICKS} WITHSCORES"),
            "KEYS *".to_owned(),
            "SSCAN members 0 COUNT 100000".to_owned(),
        ] {
            let mut client = named(&server, "endless", None);
            client.send(&words.split(' ').collect::<Vec<_>>());
            assert_eq!(client.read_to_end(), b"", "{words}");
            eventually("the client is closed", || pending_bytes(&mut other, "endless").is_none());
        }
        let taken = server.peak_resident_bytes().saturating_sub(peak);
        assert!(taken < 4 * STUCK_BYTES as u64, "{taken} bytes more");
        // No limit applies to replies that a script receives, because they aren't client output.
        let script = "return #redis.call('SRANDMEMBER', 'set', -100000)";
        assert_eq!(other.command(&["EVAL", script, "1", "set"]), Reply::Integer(100_000));
    }
}

/// Messages that a worker can't deliver, because it runs a script, count towards the limits of its
/// subscribers.
#[test]
fn messages_in_flight_to_a_subscriber_are_limited() {
    const MESSAGES: usize = 400;
    let args = ["--client-output-buffer-limit", "pubsub 8mb 0 0"];
    let pantala = |backend: &Backend| Server::pantala(*backend, &[&args[..], &["--workers", "1"]].concat());
    for server in Backend::all().iter().map(pantala).chain(Server::redis(&args)) {
        let mut other = server.connect();
        let (mut long, mut short) = (named(&server, "long", Some("news")), named(&server, "short", Some("weather")));
        let mut by_pattern = named(&server, "pattern", None);
        by_pattern.command(&["PSUBSCRIBE", "n*"]);
        let script = format!(
            "local message = string.rep('x', 1000000) for i = 1, {MESSAGES} do redis.call('PUBLISH', 'news', message) end \
             return redis.call('PUBLISH', 'weather', 'fine')"
        );
        let peak = server.peak_resident_bytes();
        assert_eq!(other.command(&["EVAL", &script, "0"]), Reply::Integer(1));
        let taken = server.peak_resident_bytes().saturating_sub(peak);
        assert!(taken < 150 * MIB as u64, "{taken} bytes more");
        for client in [&mut long, &mut by_pattern] {
            assert!(client.ends_within(PATIENCE));
        }
        assert_eq!(short.receive(), Reply::Array(["message", "weather", "fine"].map(Reply::bulk).to_vec()));
        assert!(server.log().contains("overcoming of output buffer limits"));
        // The worker has delivered all messages, so only new messages count towards the limit.
        let mut again = named(&server, "again", Some("news"));
        assert_eq!(other.call("PUBLISH news last"), Reply::Integer(1));
        assert_eq!(again.receive(), Reply::Array(["message", "news", "last"].map(Reply::bulk).to_vec()));
    }
}

/// Short messages that a worker can't deliver yet take no more memory than they would in the output
/// buffers of redis-server. They are kept until they are delivered, up to the subscriber's output
/// limit.
#[test]
fn short_messages_in_flight_take_little_memory() {
    const MESSAGES: usize = 1_200_000;
    const LIMIT_BYTES: u64 = 32 * MIB as u64;
    let args = ["--client-output-buffer-limit", "pubsub 32mb 0 0"];
    let pantala = |backend: &Backend| Server::pantala(*backend, &[&args[..], &["--workers", "1"]].concat());
    for (listens, channels) in [("SUBSCRIBE news", 1), ("PSUBSCRIBE n*", 1), ("PSUBSCRIBE n*", 10)] {
        for server in Backend::all().iter().map(pantala).chain(Server::redis(&args)) {
            let mut other = server.connect();
            let mut slow = named(&server, "slow", None);
            slow.call(listens);
            let channel = if channels == 1 { "'news'".to_owned() } else { format!("'news' .. i % {channels}") };
            let script = format!("for i = 1, ARGV[1] do redis.call('PUBLISH', {channel}, 'x') end return 1");
            let peak = server.peak_resident_bytes();
            assert_eq!(other.command(&["EVAL", &script, "0", &MESSAGES.to_string()]), Reply::Integer(1));
            eventually("it is closed", || pending_bytes(&mut other, "slow").is_none());
            let taken = server.peak_resident_bytes().saturating_sub(peak);
            assert!(taken < 2 * LIMIT_BYTES, "{listens}, {channels} channels: {taken} bytes more");
        }
    }
}

/// A single reply is dropped as soon as it exceeds the limit, not only when it is complete. This
/// holds for all commands that write a long reply. The commands themselves run completely.
#[test]
fn a_reply_is_dropped_while_its_command_runs() {
    const LIMITS: &str = "normal 1000000 0 0 pubsub 1000000 0 0";
    const VALUES: usize = 200;
    let args = ["--client-output-buffer-limit", LIMITS];
    let pantala = |backend: Backend| {
        ["inline", "owner"]
            .map(|execution| Server::pantala(backend, &[&args[..], &["--execution", execution]].concat()))
    };
    let value = "x".repeat(900_000);
    let mget: Vec<&str> = std::iter::once("MGET").chain(std::iter::repeat_n("big", VALUES)).collect();
    let script = format!(
        "redis.call('INCR', 'ran') local one, all = redis.call('GET', 'big'), {{}} \
         for i = 1, {VALUES} do all[i] = one end return all"
    );
    let eval = ["EVAL", &script, "2", "big", "ran"];
    for server in Backend::all().iter().flat_map(|backend| pantala(*backend)).chain(Server::redis(&args)) {
        let mut other = server.connect();
        assert_eq!(other.command(&["SET", "big", &value]), Reply::ok());
        let items: Vec<&str> = ["RPUSH", "list"].into_iter().chain(std::iter::repeat_n(&value[..1000], 100)).collect();
        (0..50).for_each(|_| assert!(!other.command(&items).is_error()));
        let peak = server.peak_resident_bytes();
        let is_closed = |other: &mut Client, client: &mut Client, what: &str| {
            assert_eq!(client.read_to_end(), b"", "{what}");
            eventually(what, || pending_bytes(other, "long").is_none());
        };
        for words in [&mget[..], &["LRANGE", "list", "0", "-1"], &eval] {
            let mut client = named(&server, "long", None);
            client.send(words);
            is_closed(&mut other, &mut client, words[0]);
        }
        // If another client holds the key's shard, the transaction runs on the thread that releases
        // the shard.
        for is_held in [false, true] {
            let mut client = named(&server, "long", None);
            assert_eq!(client.call("MULTI"), Reply::ok());
            (0..VALUES).for_each(|_| assert_eq!(client.call("GET big").text(), "QUEUED"));
            assert_eq!(client.call("INCR ran").text(), "QUEUED");
            let mut holder = server.connect();
            if is_held {
                holder.send(&["EVAL", "for i = 1, 20000000 do local n = i end", "1", "big"]);
                std::thread::sleep(Duration::from_millis(20));
            }
            client.send(&["EXEC"]);
            is_closed(&mut other, &mut client, "EXEC");
        }
        assert_eq!(other.call("GET ran"), Reply::bulk("3"));
        // The long reply is sent to a blocked client.
        let mut client = named(&server, "long", None);
        client.send(&["BLPOP", "queue", "0"]);
        eventually("it is blocked", || other.call("INFO clients").text().contains("\r\nblocked_clients:1\r\n"));
        assert_eq!(other.command(&["RPUSH", "queue", &value.repeat(2)]), Reply::Integer(1));
        is_closed(&mut other, &mut client, "BLPOP");
        assert_eq!(other.call("EXISTS queue"), Reply::Integer(0));
        let taken = server.peak_resident_bytes().saturating_sub(peak);
        assert!(taken < 4 * STUCK_BYTES as u64, "{taken} bytes more");
        let closed = server.log().matches("overcoming of output buffer limits").count();
        assert_eq!(closed, 6);
    }
}

/// Replies with many short elements are dropped when they exceed the limit. This is tested for
/// replies to single commands, and for a transaction whose commands have no keys.
#[test]
fn a_reply_of_short_elements_is_dropped_at_the_limit() {
    const ELEMENTS: usize = 1_000_000;
    const COMMANDS: usize = 3_000;
    const ALLOWED_BYTES: u64 = 16 * MIB as u64;
    let args = ["--client-output-buffer-limit", "normal 1mb 0 0 pubsub 1mb 0 0"];
    for server in Backend::all().iter().map(|backend| Server::pantala(*backend, &args)).chain(Server::redis(&args)) {
        let mut other = server.connect();
        let items: Vec<&str> = ["RPUSH", "list"].into_iter().chain(std::iter::repeat_n("a", 10_000)).collect();
        (0..ELEMENTS / 10_000).for_each(|_| assert!(!other.command(&items).is_error()));
        let transaction = |command: &[&str], count: usize| {
            [encode(&["MULTI"]), encode(command).repeat(count), encode(&["INCR", "ran"]), encode(&["EXEC"])].concat()
        };
        // SORT keeps all elements in memory, which takes more memory than the reply.
        for (what, requests, allowed_bytes) in [
            ("LPOS", encode(&["LPOS", "list", "a", "COUNT", "0"]), ALLOWED_BYTES / 2),
            ("LPOS in a transaction", transaction(&["LPOS", "list", "a", "COUNT", "0"], 5), ALLOWED_BYTES / 2),
            ("SORT", encode(&["SORT", "list", "BY", "nosort", "GET", "none_*"]), 8 * ALLOWED_BYTES),
            ("COMMAND", transaction(&["COMMAND"], COMMANDS), ALLOWED_BYTES),
            ("COMMAND DOCS", transaction(&["COMMAND", "DOCS"], COMMANDS / 10), ALLOWED_BYTES),
            ("PING", transaction(&["PING", &"x".repeat(1000)], COMMANDS), ALLOWED_BYTES),
        ] {
            let peak = server.peak_resident_bytes();
            let mut client = named(&server, "long", None);
            client.send_raw(&requests);
            let received = client.read_to_end();
            assert!(received.len() < MIB, "{what}: {} bytes", received.len());
            eventually(what, || pending_bytes(&mut other, "long").is_none());
            let taken = server.peak_resident_bytes().saturating_sub(peak);
            assert!(taken < allowed_bytes, "{what}: {taken} bytes more");
        }
        // The transactions have run completely.
        assert_eq!(other.call("GET ran"), Reply::bulk("4"));
        let closed = server.log().matches("overcoming of output buffer limits").count();
        assert_eq!(closed, 6);
    }
}

/// A transaction in which a reply exceeds the limit runs completely. Then its connection is closed.
#[test]
fn an_endless_reply_aborts_no_transaction() {
    for_each_backend(|backend| {
        for execution in ["inline", "owner"] {
            let limits =
                ["--client-output-buffer-limit", "normal 100000 0 0 pubsub 100000 0 0", "--execution", execution];
            let mut server = Server::pantala(backend, &limits);
            let mut other = server.connect();
            assert_eq!(other.call("SADD set a b"), Reply::Integer(2));
            let mut client = named(&server, "transaction", None);
            for words in ["MULTI", "INCR before", "SRANDMEMBER set -50000000", "INCR after"] {
                assert!(!client.call(words).is_error());
            }
            client.send(&["EXEC"]);
            // The client reads all bytes that were sent before its connection was closed.
            client.read_to_end();
            eventually("the client is closed", || pending_bytes(&mut other, "transaction").is_none());
            assert_eq!(other.call("MGET before after"), Reply::Array(vec![Reply::bulk("1"), Reply::bulk("1")]));
            server.assert_sound();
        }
    });
}

/// The time above the soft limit restarts from zero when the output has fallen below the limit.
#[test]
fn the_soft_seconds_restart_below_the_limit() {
    const SOFT_SECONDS: u64 = 3;
    // A client is above the limit twice, each time for this long. One of these times is shorter
    // than the limit's seconds, but both together are longer.
    const ABOVE: Duration = Duration::from_millis(2000);
    const TRIES: usize = 8;
    // Several ticks of the server's clock.
    const BELOW: Duration = Duration::from_millis(500);
    // Each reply is smaller than the limit, because Redis checks the limit when it adds a reply.
    const REPLY_BYTES: usize = MIB / 4;
    const REPLIES: usize = STUCK_BYTES / REPLY_BYTES;
    let soft = format!("normal 0 1mb {SOFT_SECONDS}");
    let args = ["--client-output-buffer-limit", &soft];
    let pantala = |backend: &Backend| Server::pantala(*backend, &args);
    std::thread::scope(|scope| {
        for server in Backend::all().iter().map(pantala).chain(Server::redis(&args)) {
            scope.spawn(move || {
                let mut other = server.connect();
                assert_eq!(other.command(&["SET", "big", &"x".repeat(REPLY_BYTES)]), Reply::ok());
                let requests = encode(&["GET", "big"]).repeat(REPLIES);
                // Keeps a client's output above the limit for the time `ABOVE`. Returns `None` if a
                // busy host took so much longer that the server may have closed the client.
                let mut stay_above = |name: &str, client: &mut Client| {
                    let began = Instant::now();
                    client.send_raw(&requests);
                    eventually("output is pending", || pending_bytes(&mut other, name).is_none_or(|bytes| bytes > MIB));
                    std::thread::sleep(ABOVE);
                    let is_open = (0..REPLIES)
                        .all(|_| client.try_receive().is_ok_and(|(reply, _)| reply.text().len() == REPLY_BYTES));
                    let took = began.elapsed();
                    let is_slow = took >= Duration::from_secs(SOFT_SECONDS);
                    assert!(is_open || is_slow, "closed after {took:?}");
                    std::thread::sleep(BELOW);
                    (!is_slow).then_some(())
                };
                let stayed = (0..TRIES).find_map(|number| {
                    let name = format!("reader-{number}");
                    let mut client = named(&server, &name, None);
                    client.set_receive_buffer(MIB);
                    stay_above(&name, &mut client)?;
                    stay_above(&name, &mut client)?;
                    Some((name, client))
                });
                let (name, mut client) = stayed.expect("a host that is fast enough");
                client.send_raw(&requests);
                eventually("the client is closed", || pending_bytes(&mut other, &name).is_none());
            });
        }
    });
}

/// Output that is added and sent in one turn (iteration of the event loop) isn't pending. A client
/// that keeps reading therefore never exceeds the soft limit, whatever the volume.
#[test]
fn a_client_that_keeps_reading_does_not_exceed_the_soft_limit() {
    const LISTENERS: usize = 20;
    const MESSAGES_AT_ONCE: usize = 40;
    const WRITES_AHEAD: usize = 10;
    const DURATION: Duration = Duration::from_millis(3000);
    let last = encode(&["message", "news", "last"]);
    for_each_backend(|backend| {
        let limit = ["--workers", "1", "--client-output-buffer-limit", "pubsub 0 1000 1"];
        let mut server = Server::pantala(backend, &limit);
        std::thread::scope(|scope| {
            for _ in 0..LISTENERS {
                let mut listener = TcpStream::connect(("127.0.0.1", server.port())).expect("the server accepts");
                listener.write_all(&encode(&["SUBSCRIBE", "news"])).expect("the server reads");
                let last = &last;
                scope.spawn(move || {
                    let (mut buffer, mut tail) = (vec![0; MIB], Vec::new());
                    while !tail.ends_with(last) {
                        let count = listener.read(&mut buffer).expect("the listener receives");
                        assert!(count > 0, "it was closed");
                        tail.extend_from_slice(&buffer[..count]);
                        tail.drain(..tail.len().saturating_sub(last.len()));
                    }
                });
            }
            let mut publisher = server.connect();
            eventually("all have subscribed", || {
                publisher.call("PUBSUB NUMSUB news")
                    == Reply::Array(vec![Reply::bulk("news"), Reply::Integer(LISTENERS as i64)])
            });
            let write = encode(&["PUBLISH", "news", &"x".repeat(100)]).repeat(MESSAGES_AT_ONCE);
            let (began, mut ahead) = (Instant::now(), 0);
            while began.elapsed() < DURATION || ahead > 0 {
                if began.elapsed() < DURATION && ahead < WRITES_AHEAD {
                    publisher.send_raw(&write);
                    ahead += 1;
                } else {
                    (0..MESSAGES_AT_ONCE).for_each(|_| drop(publisher.receive()));
                    ahead -= 1;
                }
            }
            publisher.call("PUBLISH news last");
        });
        server.assert_sound();
    });
}

#[test]
fn a_transaction_above_the_limit_runs_to_its_end() {
    for_each_backend(|backend| {
        let mut server = Server::pantala(backend, &SMALL_LIMIT_ARGS);
        let mut other = server.connect();
        let item = "x".repeat(1000);
        for number in 1..=150 {
            assert_eq!(other.command(&["LPUSH", "list", &item]), Reply::Integer(number));
        }
        let mut client = named(&server, "transaction", None);
        assert_eq!(client.call("SET k1 v1"), Reply::ok());
        assert_eq!(client.call("MULTI"), Reply::ok());
        for words in ["SET k2 v2", "GET k2", "LRANGE list 0 -1", "SET k3 v3", "DEL k1"] {
            assert_eq!(client.call(words).text(), "QUEUED");
        }
        client.send(&["EXEC"]);
        assert_eq!(client.read_to_end(), b"");
        eventually("the client is closed", || pending_bytes(&mut other, "transaction").is_none());
        let values = other.call("MGET k1 k2 k3");
        assert_eq!(values, Reply::Array(vec![Reply::Null, Reply::bulk("v2"), Reply::bulk("v3")]));
        server.assert_sound();
    });
}

/// A reply with several streams is below the limit until the header of its last stream is added.
#[test]
fn a_reply_that_only_its_header_makes_too_long_is_dropped() {
    const ENTRIES: usize = 1348;
    const LIMIT: &str = "normal 24888 0 0 pubsub 24888 0 0";
    let args = ["--workers", "1", "--shards", "1", "--client-output-buffer-limit", LIMIT];
    let server = Server::pantala(Backend::all()[0], &args);
    let mut client = server.connect();
    client.call("XADD empty 1-1 a b");
    for id in 1000..1000 + ENTRIES {
        client.command(&["XADD", "s", &format!("{id}-1"), "f", "xxxxxxxxxx"]);
    }
    client.call("XGROUP CREATE empty g $");
    for bytes in 10..30 {
        client.call("COPY s long REPLACE");
        client.call("XGROUP CREATE long g 0");
        client.command(&["XADD", "long", "9998-1", "f", &"x".repeat(bytes)]);
        for read in ["XREAD STREAMS long empty 0 99999-0", "XREADGROUP GROUP g me STREAMS long empty > >"] {
            let mut reader = server.connect();
            let mut calls = encode(&read.split(' ').collect::<Vec<_>>());
            encode_into(&mut calls, &["QUIT"]);
            reader.send_raw(&calls);
            let received = reader.read_to_end();
            assert!(received.is_empty() || received.ends_with(b"+OK\r\n"), "{bytes}: {read}");
            assert!(!received.starts_with(b"*1\r\n+"), "{bytes}: {read}: a reply without its element");
        }
    }
}
