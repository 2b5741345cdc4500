//! `maxmemory-clients`: which clients are evicted when the total memory of clients exceeds the
//! limit. Redis's own test unit/client-eviction has the same subject, but can only test a server
//! that it has started itself. The tests also run on redis-server.

use std::time::{Duration, Instant};

use pantala_tests::client::{encode, encode_into};
use pantala_tests::following::{follow, info, wait_until_applied};
use pantala_tests::waiting::{PATIENCE, eventually, first_served, pantalas, play, wait_until_blocked};
use pantala_tests::{Backend, Client, Random, Reply, Server, for_each_backend};

const KB: usize = 1024;
const MB: usize = 1024 * KB;
/// The limit in most tests.
const LIMIT: usize = 3_000_000;
/// The limit in tests with small allocations. Servers raise a limit below 128 KiB to 128 KiB.
const SMALL_LIMIT: usize = 200_000;
/// Length of a long reply. A client may exceed the limit by one such reply before it is evicted.
const LONG: usize = 200 * KB;
/// Tolerance for comparing the memory that CLIENT LIST shows with the limit. It is needed for two
/// reasons: the client that runs CLIENT LIST uses memory meanwhile, and each worker may have
/// changes of up to 1 KiB that are not yet in the sum of all workers.
const SLACK: usize = 32 * KB;
/// Number of small allocations, such as watched keys. Whatever is allocated, so many allocations
/// together exceed [`SMALL_LIMIT`].
const SMALL_ALLOCATIONS: usize = 30_000;

/// Sets the limit, in bytes or as a percentage with `%`.
fn set_limit<T: std::fmt::Display + Copy>(client: &mut Client, limit: T) {
    assert_eq!(client.command(&["CONFIG", "SET", "maxmemory-clients", &limit.to_string()]), Reply::ok());
}

/// Returns a client that observes the others and is never evicted.
fn control(server: &Server) -> Client {
    let mut control = server.connect();
    assert_eq!(control.call("CLIENT SETNAME control"), Reply::ok());
    assert_eq!(control.call("CLIENT NO-EVICT on"), Reply::ok());
    control
}

/// Returns the memory of all clients according to `INFO`.
fn used_by_clients(control: &mut Client) -> usize {
    let text = control.call("INFO memory").text();
    let value = text.lines().find_map(|line| line.strip_prefix("mem_clients_normal:")).expect("INFO has the field");
    value.trim().parse().expect("a number")
}

fn named(server: &Server, name: &str) -> Client {
    let mut client = server.connect();
    assert_eq!(client.command(&["CLIENT", "SETNAME", name]), Reply::ok());
    client
}

/// Returns the name and a field of each client whose name has this prefix.
fn fields(control: &mut Client, prefix: &str, field: &str) -> Vec<(String, usize)> {
    let list = control.call("CLIENT LIST").text();
    let value = |line: &str, field: &str| {
        line.split(' ').find_map(|word| word.strip_prefix(field)?.strip_prefix('=')).expect("the field").to_owned()
    };
    list.lines()
        .map(|line| (value(line, "name"), value(line, field).parse().expect("a number")))
        .filter(|(name, _)| name.starts_with(prefix))
        .collect()
}

/// Returns a field of the client of that name, or `None` if there is no such client.
fn field(control: &mut Client, name: &str, field: &str) -> Option<usize> {
    fields(control, name, field).first().map(|(_, value)| *value)
}

fn exists(control: &mut Client, name: &str) -> bool {
    field(control, name, "tot-mem").is_some()
}

/// Returns the start of a command with an argument of this many bytes. The line end of the argument
/// is missing.
fn unfinished(bytes: usize) -> Vec<u8> {
    let mut request = format!("*2\r\n${bytes}\r\n").into_bytes();
    request.resize(request.len() + bytes, b'v');
    request
}

/// Returns a client that uses at least this much memory, in its query buffer.
fn filled(server: &Server, control: &mut Client, name: &str, bytes: usize) -> Client {
    let mut client = named(server, name);
    client.send_raw(&unfinished(bytes));
    eventually("the server has received it", || field(control, name, "qbuf").expect("it is connected") >= bytes);
    client
}

/// Sends a request. Returns whether the server then closes the connection.
fn is_closed(client: &mut Client, request: &[u8]) -> bool {
    // The error is ignored: the server may close the connection before it has received all bytes.
    let _ = client.try_send_raw(request);
    client.ends_within(PATIENCE)
}

#[test]
fn a_too_long_command_is_neither_received_nor_run() {
    play(|server| {
        let mut control = control(server);
        set_limit(&mut control, LIMIT);
        let mut client = named(server, "long");
        let mset = |len: usize| encode(&["MSET", "k", "v", "k2", &"v".repeat(len)]);
        client.send_raw(&mset(1_000_000));
        assert_eq!(client.receive(), Reply::ok());
        assert!(is_closed(&mut client, &mset(LIMIT)));
        assert!(!exists(&mut control, "long"));
        assert_eq!(control.call("STRLEN k2"), Reply::Integer(1_000_000));
        let mut client = named(server, "endless");
        assert!(is_closed(&mut client, &unfinished(LIMIT)));
        assert!(!exists(&mut control, "endless"));
        // CVE-2025-46686: the arguments of a command use memory until it is complete, even if the
        // user may not run it.
        assert_eq!(control.call("ACL SETUSER poor on nopass -@all"), Reply::ok());
        let mut client = named(server, "many");
        assert_eq!(client.call("AUTH poor x"), Reply::ok());
        let request = [&b"*1000000\r\n"[..], &b"$3\r\nGET\r\n".repeat(LIMIT / 9)].concat();
        assert!(is_closed(&mut client, &request));
        assert!(!exists(&mut control, "many"));
    });
}

#[test]
fn queued_commands_of_a_transaction_count() {
    play(|server| {
        let mut control = control(server);
        set_limit(&mut control, LIMIT);
        let mut client = named(server, "multi");
        let value = "v".repeat(LIMIT / 4);
        assert_eq!(client.call("MULTI"), Reply::ok());
        for _ in 0..2 {
            assert_eq!(client.command(&["SET", "k", &value]).text(), "QUEUED");
        }
        assert_eq!(client.call("EXEC"), Reply::Array(vec![Reply::ok(), Reply::ok()]));
        assert_eq!(control.call("DEL k"), Reply::Integer(1));
        let mut request = encode(&["MULTI"]);
        (0..5).for_each(|_| encode_into(&mut request, &["SET", "k", &value]));
        encode_into(&mut request, &["EXEC"]);
        assert!(is_closed(&mut client, &request));
        assert!(!exists(&mut control, "multi"));
        assert_eq!(control.call("EXISTS k"), Reply::Integer(0));
    });
}

#[test]
fn small_allocations_count_too() {
    let watch: fn(usize) -> Vec<u8> = |number| encode(&["WATCH", &number.to_string()]);
    let subscribe: fn(usize) -> Vec<u8> = |number| encode(&["SUBSCRIBE", &number.to_string()]);
    let psubscribe: fn(usize) -> Vec<u8> = |number| encode(&["PSUBSCRIBE", &number.to_string()]);
    let ssubscribe: fn(usize) -> Vec<u8> = |number| encode(&["SSUBSCRIBE", &number.to_string()]);
    let track: fn(usize) -> Vec<u8> =
        |number| encode(&["CLIENT", "TRACKING", "on", "BCAST", "PREFIX", &format!("{number:010}")]);
    let queue: fn(usize) -> Vec<u8> = |number| encode(&[if number == 0 { "MULTI" } else { "PING" }]);
    play(|server| {
        let mut control = control(server);
        set_limit(&mut control, SMALL_LIMIT);
        for (name, request) in [
            ("watch", watch),
            ("subscribe", subscribe),
            ("psubscribe", psubscribe),
            ("ssubscribe", ssubscribe),
            ("track", track),
            ("queue", queue),
        ] {
            let mut client = named(server, name);
            // Replies are read as they arrive, so that unread replies don't cause the eviction.
            let mut sent = 0;
            while sent < SMALL_ALLOCATIONS {
                let request: Vec<u8> = (sent..sent + 100).flat_map(request).collect();
                sent += 100;
                if client.try_send_raw(&request).is_err() || (0..100).any(|_| client.try_receive().is_err()) {
                    break;
                }
            }
            eventually(name, || !exists(&mut control, name));
            assert!(sent > 300, "{name}: closed after only {sent}");
        }
    });
}

#[test]
fn arguments_of_a_blocked_command_count() {
    play(|server| {
        let mut control = control(server);
        let mut waiting = named(server, "waiting");
        waiting.send(&["BLPOP", &"x".repeat(500 * KB), "list", "0"]);
        wait_until_blocked(&mut control, 1);
        eventually("they are counted", || {
            field(&mut control, "waiting", "tot-mem").expect("it is connected") > 500 * KB
        });
        set_limit(&mut control, SMALL_LIMIT);
        assert!(!exists(&mut control, "waiting"));
        wait_until_blocked(&mut control, 0);
        // The evicted client is no longer blocked on the list.
        assert_eq!(control.call("RPUSH list a"), Reply::Integer(1));
        assert_eq!(control.call("LLEN list"), Reply::Integer(1));
        assert!(waiting.ends_within(PATIENCE));
    });
}

/// Commands wait for a shard that a script holds. Their arguments are no longer in the query
/// buffer, but must still count as memory of the client. This is tested for single commands,
/// pipelines, transactions, scripts and watches.
#[test]
fn arguments_of_commands_that_wait_for_their_shards_count() {
    const WORKERS: usize = 3;
    const HELD: &str = "local function now() local time = redis.call('TIME') return time[1] * 1000 + time[2] / 1000 end \
                        local stop = now() + tonumber(ARGV[1]) while now() < stop do end return redis.call('INCR', KEYS[1])";
    /// Time for which the script holds the shard: less than `busy-reply-threshold` (5 s), after
    /// which the server would reject the waiting commands.
    const HELD_MS: u128 = 4500;
    let big = "x".repeat(500 * KB);
    let part = "x".repeat(100 * KB);
    let append = encode(&["APPEND", "held", &part]);
    let requests = [
        ("command", encode(&["APPEND", "held", &big])),
        ("pipeline", append.repeat(5)),
        ("transaction", [encode(&["MULTI"]), append.repeat(5), encode(&["EXEC"])].concat()),
        ("script", encode(&["EVAL", "return redis.call('GET', KEYS[1])", "1", "held", &big])),
        ("watch", encode(&["WATCH", &big, "held"])),
    ];
    for mut server in pantalas() {
        // Each worker gets one observer and, further below, one waiting client of each kind.
        let mut controls: Vec<Client> = (0..WORKERS).map(|_| control(&server)).collect();
        let mut script = server.connect();
        let mut clients: Vec<Client> = Vec::new();
        for (name, _) in &requests {
            clients.extend((0..WORKERS).map(|_| named(&server, name)));
        }
        let before = used_by_clients(&mut controls[0]);
        let began = Instant::now();
        script.send(&["EVAL", HELD, "1", "held", &HELD_MS.to_string()]);
        std::thread::sleep(Duration::from_millis(50));
        for (number, client) in clients.iter_mut().enumerate() {
            client.send_raw(&requests[number / WORKERS].1);
        }
        // The script's own worker serves no client while it runs, so the test uses an observer that
        // another worker serves.
        let number = first_served(&mut controls, Duration::from_millis(300));
        let control = &mut controls[number];
        for (name, _) in &requests {
            eventually(name, || {
                fields(control, name, "tot-mem").iter().filter(|(_, bytes)| *bytes > 500 * KB).count() == 2
            });
        }
        let taken = used_by_clients(control).saturating_sub(before);
        assert!(taken > 2 * requests.len() * 500 * KB, "{taken} bytes more");
        set_limit(control, SMALL_LIMIT);
        for (name, _) in &requests {
            eventually(name, || fields(control, name, "tot-mem").iter().all(|(_, bytes)| *bytes < SMALL_LIMIT));
            assert_eq!(
                fields(control, name, "tot-mem").len(),
                1,
                "{name}: only the client of the blocked worker is left"
            );
        }
        let took = began.elapsed().as_millis();
        assert!(took < HELD_MS, "the script had ended: {took} ms");
        drop(clients);
        assert_eq!(script.receive(), Reply::Integer(1));
        server.assert_sound();
    }
}

#[test]
fn unread_output_counts() {
    play(|server| {
        let mut control = control(server);
        set_limit(&mut control, LIMIT);
        assert_eq!(control.command(&["SET", "k", &"v".repeat(LONG)]), Reply::ok());
        let mut client = named(server, "slow");
        assert_eq!(client.call("GET k").text().len(), LONG);
        // Sends GETs one by one without reading replies. Once the sockets are full, the server
        // buffers the replies.
        eventually("it is closed", || {
            let taken = field(&mut control, "slow", "tot-mem");
            assert!(taken.is_none_or(|taken| taken < LIMIT + LONG), "{taken:?} of {LIMIT} taken");
            let _ = client.try_send_raw(&encode(&["GET", "k"]));
            taken.is_none()
        });
        // Sends all GETs at once. The server must not buffer much more than the limit.
        let mut client = named(server, "greedy");
        assert!(is_closed(&mut client, &encode(&["GET", "k"]).repeat(5000)));
        assert_eq!(control.call("PING").text(), "PONG");
    });
}

/// A client pipelines commands with long replies. The client is closed when the replies exceed the
/// limit, before all replies are encoded.
#[test]
fn a_pipeline_of_long_replies_is_stopped_midway() {
    const REPLY_BYTES: usize = MB;
    const COMMANDS: usize = 1000;
    for mut server in pantalas() {
        let mut control = control(&server);
        set_limit(&mut control, LIMIT);
        assert_eq!(control.command(&["SET", "k", &"v".repeat(REPLY_BYTES)]), Reply::ok());
        let before = server.peak_resident_bytes();
        let mut client = named(&server, "pipeline");
        assert!(is_closed(&mut client, &encode(&["GET", "k"]).repeat(COMMANDS)));
        let taken = server.peak_resident_bytes().saturating_sub(before);
        // The bound is a third of all replies, because with `--execution owner` the limit is
        // checked only after a whole window (one batch of the pipeline) has run.
        assert!(taken < (COMMANDS * REPLY_BYTES / 3) as u64, "{taken} bytes more");
        server.assert_sound();
    }
}

#[test]
fn redirected_invalidations_count() {
    play(|server| {
        let mut control = control(server);
        set_limit(&mut control, LIMIT);
        let mut redirected = named(server, "redirected");
        let id = redirected.call("CLIENT ID").text();
        redirected.call("SUBSCRIBE __redis__:invalidate");
        let mut client = server.connect();
        assert_eq!(client.call(&format!("CLIENT TRACKING on REDIRECT {id} BCAST")), Reply::ok());
        let key = "k".repeat(LONG);
        let script = format!("return redis.call('incr', '{key}')");
        let script = client.command(&["SCRIPT", "LOAD", &script]).text();
        // The periodic task that updates the statistics is paused. The eviction must not need it.
        assert_eq!(control.call("DEBUG PAUSE-CRON 1"), Reply::ok());
        eventually("it is closed", || {
            assert!(!client.call(&format!("EVALSHA {script} 0")).is_error());
            let taken = field(&mut control, "redirected", "tot-mem");
            assert!(taken.is_none_or(|taken| taken < LIMIT + LONG), "{taken:?} of {LIMIT} taken");
            taken.is_none()
        });
        assert_eq!(control.call("DEBUG PAUSE-CRON 0"), Reply::ok());
    });
}

#[test]
fn a_share_of_maxmemory_is_a_limit() {
    const MAXMEMORY: usize = 6 * MB;
    const PERCENT: usize = 7;
    let maxmemory = MAXMEMORY.to_string();
    let args = ["--maxmemory", &maxmemory, "--maxmemory-clients", "7%"];
    let pantala = |backend: &Backend| Server::pantala(*backend, &[&args[..], &["--workers", "3"]].concat());
    for server in Backend::all().iter().map(pantala).chain(Server::redis(&args)) {
        let mut control = control(&server);
        let limit = MAXMEMORY * PERCENT / 100;
        let _part = filled(&server, &mut control, "part", limit / 3);
        let taken = field(&mut control, "part", "tot-mem").expect("it is connected");
        assert!(taken < limit, "{taken} of {limit}");
        let mut whole = named(&server, "whole");
        assert!(is_closed(&mut whole, &unfinished(limit)));
        assert!(exists(&mut control, "part") && !exists(&mut control, "whole"));
        // The client stays connected without a limit, and with a limit of 100% of `maxmemory`.
        // While `maxmemory` isn't set, a percentage is no limit.
        set_limit(&mut control, 0);
        let _whole = filled(&server, &mut control, "whole", limit);
        set_limit(&mut control, "100%");
        assert!(exists(&mut control, "whole"));
        assert_eq!(control.call("CONFIG SET maxmemory 0"), Reply::ok());
        set_limit(&mut control, "7%");
        assert!(exists(&mut control, "whole"));
        set_limit(&mut control, "100%");
        assert_eq!(control.call(&format!("CONFIG SET maxmemory {MAXMEMORY}")), Reply::ok());
        assert!(exists(&mut control, "whole"));
        set_limit(&mut control, "7%");
        assert!(!exists(&mut control, "whole"));
    }
}

#[test]
fn no_evict_protects_until_it_is_turned_off() {
    play(|server| {
        let mut control = control(server);
        let mut protected = named(server, "protected");
        assert_eq!(protected.call("CLIENT NO-EVICT on"), Reply::ok());
        for number in 0..60 {
            let keys: Vec<String> = (0..100).map(|key| format!("{number}:{key}")).collect();
            let words: Vec<&str> = std::iter::once("WATCH").chain(keys.iter().map(String::as_str)).collect();
            assert_eq!(protected.command(&words), Reply::ok());
        }
        set_limit(&mut control, SMALL_LIMIT);
        eventually("it exceeds the limit", || {
            field(&mut control, "protected", "tot-mem").expect("it is connected") > SMALL_LIMIT
        });
        // The protected client's memory is part of the sum, so the sum exceeds the limit. The next
        // client without protection is evicted, although it uses little memory.
        let mut other = server.connect();
        other.set_read_timeout(PATIENCE);
        assert_eq!(other.read_to_end(), b"");
        assert_eq!(protected.call("PING").text(), "PONG");
        assert_eq!(protected.call("CLIENT NO-EVICT off"), Reply::ok());
        assert!(protected.ends_within(PATIENCE));
        eventually("it is closed", || !exists(&mut control, "protected"));
        assert_eq!(server.connect().call("PING").text(), "PONG");
    });
}

#[test]
fn a_client_that_evicts_itself_receives_its_reply_first() {
    play(|server| {
        let mut control = control(server);
        let mut client = named(server, "large");
        for number in 0..40 {
            let keys: Vec<String> = (0..250).map(|key| format!("{number}:{key}")).collect();
            let words: Vec<&str> = std::iter::once("WATCH").chain(keys.iter().map(String::as_str)).collect();
            assert_eq!(client.command(&words), Reply::ok());
        }
        client.send(&["CONFIG", "SET", "maxmemory-clients", "150000"]);
        assert_eq!(client.read_to_end(), b"+OK\r\n");
        assert!(!exists(&mut control, "large"));
    });
}

/// Two clients each exceed the output buffer limit, and together with a third client they exceed
/// `maxmemory-clients`. The server closes the two clients because of their output buffers. The
/// third client alone is within `maxmemory-clients`, so it must not be evicted.
#[test]
fn an_output_buffer_limit_evicts_no_other_client() {
    let args = ["--maxmemory-clients", "10mb", "--client-output-buffer-limit", "normal 3mb 0 0"];
    let pantala = |backend: &Backend| Server::pantala(*backend, &[&args[..], &["--workers", "3"]].concat());
    for server in Backend::all().iter().map(pantala).chain(Server::redis(&args)) {
        let mut control = control(&server);
        control.command(&["SETRANGE", "k", &(4 * MB).to_string(), "v"]);
        let _buffered = filled(&server, &mut control, "buffered", 4 * MB);
        let mut slow = ["slow1", "slow2"].map(|name| named(&server, name));
        slow.iter_mut().for_each(|client| client.send(&["GET", "k"]));
        for client in &mut slow {
            assert_eq!(client.read_to_end(), b"");
        }
        assert!(exists(&mut control, "buffered"));
        assert!(control.call("INFO stats").text().contains("\r\nevicted_clients:0\r\n"));
    }
}

/// Returns the bucket of a size: the logarithm to base 2. To choose which clients to evict, Redis
/// sorts them only by bucket.
fn bucket(bytes: usize) -> u32 {
    (usize::BITS - bytes.leading_zeros()).max(15)
}

/// The limit is lowered step by step while clients of random sizes are connected. Each limit evicts
/// as few clients as necessary, the largest first.
#[test]
fn the_largest_clients_are_evicted_and_no_more_than_necessary() {
    const ROUNDS: usize = 3;
    const CLIENTS: usize = 12;
    let seed = Random::seed("client_eviction");
    play(|server| {
        let mut random = Random::from_seed(seed);
        let mut control = control(server);
        for round in 0..ROUNDS {
            set_limit(&mut control, 0);
            let clients: Vec<Client> = (0..CLIENTS)
                .map(|number| {
                    let bytes = (40 * KB) << random.below(7);
                    filled(server, &mut control, &format!("client{number}"), bytes + random.below(bytes))
                })
                .collect();
            let mut there = fields(&mut control, "client", "tot-mem");
            assert_eq!(there.len(), CLIENTS);
            while there.len() > 1 {
                let taken: usize = fields(&mut control, "", "tot-mem").iter().map(|(_, bytes)| bytes).sum();
                let limit = (taken - random.below(taken / 2)).max(128 * KB);
                set_limit(&mut control, limit);
                let all = fields(&mut control, "", "tot-mem");
                let left: Vec<(String, usize)> =
                    all.iter().filter(|(name, _)| name.starts_with("client")).cloned().collect();
                let gone: Vec<usize> = there
                    .iter()
                    .filter(|(name, _)| !left.iter().any(|(other, _)| other == name))
                    .map(|one| one.1)
                    .collect();
                let taken: usize = all.iter().map(|(_, bytes)| bytes).sum();
                let left_bytes: usize = left.iter().map(|(_, bytes)| bytes).sum();
                let scene = format!("round {round}: limit {limit}, evicted {gone:?}, left {left:?}");
                // `left_bytes` doesn't include `control`, which uses more memory while it runs
                // `CLIENT LIST`.
                assert!(left_bytes < limit, "too few evicted: {scene}");
                if let (Some(smallest), Some(largest)) = (gone.iter().min(), gone.iter().max()) {
                    assert!(taken + largest + SLACK >= limit, "too many evicted: {scene}");
                    assert!(left.iter().all(|(_, bytes)| bucket(*bytes) <= bucket(*smallest)), "{scene}");
                }
                there = left;
                if limit == 128 * KB {
                    break;
                }
            }
            drop(clients);
            set_limit(&mut control, 0);
            eventually("all are closed", || fields(&mut control, "client", "tot-mem").is_empty());
        }
    });
}

/// A command of the replication stream exceeds `maxmemory-clients` of the primary and of its
/// replica. Neither server closes the connection between them.
#[test]
fn links_of_replication_are_not_evicted() {
    for_each_backend(|backend| {
        let args = ["--workers", "2", "--shards", "12", "--maxmemory-clients", "200kb"];
        let (mut primary, mut replica) = (Server::pantala(backend, &args), Server::pantala(backend, &args));
        follow(&replica, &primary);
        let set = "redis.call('SET', 'key', string.rep('x', 3000000))";
        assert_eq!(primary.connect().command(&["EVAL", set, "0"]), Reply::Null);
        wait_until_applied(&replica, &primary);
        assert_eq!(replica.connect().call("STRLEN key"), Reply::Integer(3_000_000));
        let syncs = ["sync_full", "sync_partial_ok"].map(|field| info(&primary, "stats", field));
        assert_eq!(syncs, ["1", "0"], "{}", replica.log());
        for server in [&mut primary, &mut replica] {
            assert_eq!(info(server, "stats", "evicted_clients"), "0");
            server.assert_sound();
        }
    });
}

#[test]
fn evicted_clients_are_counted() {
    play(|server| {
        let mut control = control(server);
        let evicted = |control: &mut Client, count: usize| {
            let stats = control.call("INFO stats").text();
            assert!(stats.contains(&format!("\r\nevicted_clients:{count}\r\n")), "not {count}: {stats}");
        };
        let _clients = ["one", "two"].map(|name| filled(server, &mut control, name, MB));
        evicted(&mut control, 0);
        eventually("INFO counts their memory", || {
            let memory = control.call("INFO memory").text();
            let normal =
                memory.lines().find_map(|line| line.strip_prefix("mem_clients_normal:")).expect("INFO has the field");
            normal.trim().parse::<usize>().expect("a number") > 2 * MB
        });
        set_limit(&mut control, SMALL_LIMIT);
        evicted(&mut control, 2);
        assert_eq!(control.call("CONFIG RESETSTAT"), Reply::ok());
        evicted(&mut control, 0);
    });
}

/// One transaction sets the limit, and pushes to a list on which two clients are blocked. The first
/// client is served. The second client is too large, so it is evicted. The test doesn't run on
/// redis-server, because some 7.0 versions crash.
#[test]
fn a_blocked_client_is_evicted_beside_one_that_is_served() {
    for mut server in pantalas() {
        let mut control = control(&server);
        let mut first = named(&server, "first");
        first.send(&["BLPOP", "list", "0"]);
        wait_until_blocked(&mut control, 1);
        let mut second = named(&server, "second");
        second.send(&["BLPOP", "list", "0"]);
        wait_until_blocked(&mut control, 2);
        second.send(&["GET", &"q".repeat(2 * MB)]);
        eventually("it is large", || field(&mut control, "second", "tot-mem").expect("it is connected") > MB);
        for words in ["MULTI", "CONFIG SET maxmemory-clients 131072", "LPUSH list x"] {
            assert!(!control.call(words).is_error());
        }
        assert_eq!(control.call("EXEC"), Reply::Array(vec![Reply::ok(), Reply::Integer(1)]));
        assert_eq!(first.receive(), Reply::Array(vec![Reply::bulk("list"), Reply::bulk("x")]));
        assert!(second.ends_within(PATIENCE));
        assert!(!exists(&mut control, "second"));
        server.assert_sound();
    }
}

/// Many clients allocate and release memory at the same time, and some are evicted. Afterwards the
/// server's sum equals the memory of the remaining clients.
#[test]
fn the_sum_is_right_after_many_evictions() {
    const STORM: Duration = Duration::from_millis(700);
    const ALLOWED: usize = 2 * MB;
    for mut server in pantalas() {
        let mut control = control(&server);
        set_limit(&mut control, ALLOWED);
        assert_eq!(control.command(&["SET", "k", &"v".repeat(100 * KB)]), Reply::ok());
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let server = &server;
                scope.spawn(move || {
                    let mut random = Random::from_seed(thread);
                    let began = Instant::now();
                    while began.elapsed() < STORM {
                        let mut clients: Vec<Client> = (0..5).map(|_| server.connect()).collect();
                        for client in &mut clients {
                            let request = match random.below(4) {
                                0 => encode(&["GET", "k"]).repeat(random.below(40)),
                                1 => unfinished(random.below(MB)),
                                2 => {
                                    [encode(&["MULTI"]), encode(&["SET", "k2", &"v".repeat(random.below(MB))])].concat()
                                }
                                _ => encode(&["SUBSCRIBE", "news"]),
                            };
                            let _ = client.try_send_raw(&request);
                        }
                    }
                });
            }
        });
        eventually("all are closed", || fields(&mut control, "", "tot-mem").len() == 1);
        let evicted = control.call("INFO stats").text();
        assert!(!evicted.contains("\r\nevicted_clients:0\r\n"), "no client was evicted");
        // The limit is the smallest that Redis accepts, so that an error in the sum is as large as
        // possible compared with the limit. `goes` must be the larger client. A receive buffer may
        // be twice as large as its contents, so `goes` sends more than twice the bytes of `stays`.
        // Both clients send everything before the limit is set, because `goes` may be the smaller
        // client until all of its bytes have arrived.
        let _stays = filled(&server, &mut control, "stays", 40 * KB);
        let mut goes = filled(&server, &mut control, "goes", 128 * KB);
        set_limit(&mut control, 128 * KB);
        assert!(goes.ends_within(PATIENCE));
        assert!(exists(&mut control, "stays"));
        server.assert_sound();
    }
}
