//! Published attacks on Redis since 6.0, run on Pantala (see docs/security.md). Attacks by scripts
//! are in `scripts/escapes.rs`.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use pantala_tests::following::{assert_same, follow, info, wait_for_link};
use pantala_tests::server::{free_port, run_to_exit};
use pantala_tests::tls::{Certificates, Tunnel};
use pantala_tests::waiting::eventually;
use pantala_tests::{Backend, Client, Random, Reply, Server, for_all_backends, for_each_backend};
use rustix::process::Signal;

use super::dump::sealed;

mod connections;
mod values;

/// Maximum duration of a command. Even on a busy host, no command of these tests takes this long,
/// unless the attack succeeds.
const COMMAND_MAX: Duration = Duration::from_secs(20);

/// Commands whose numbers, sizes or ACL rules caused an overflow in Redis, each with its CVE. The
/// server must reply to each.
const COMMANDS: &[(&str, &str)] = &[
    ("CVE-2023-22458", "HRANDFIELD hash -9223372036854775808 WITHVALUES"),
    ("CVE-2023-22458", "ZRANDMEMBER zset -9223372036854775808 WITHSCORES"),
    ("CVE-2023-25155", "SRANDMEMBER set -9223372036854775808"),
    ("CVE-2023-25155", "HRANDFIELD hash 9223372036854775807"),
    ("CVE-2022-35977", "SETRANGE string 9223372036854775807 x"),
    ("CVE-2022-35977", "SORT list LIMIT 9223372036854775807 9223372036854775807"),
    ("CVE-2022-35977", "SORT list LIMIT -9223372036854775808 9223372036854775807"),
    ("CVE-2023-28425", "MSETNX new 1 new 2"),
    ("CVE-2023-28856", "HINCRBYFLOAT hash field nan"),
    ("CVE-2023-28856", "HINCRBYFLOAT hash field inf"),
    ("CVE-2023-36824", "COMMAND GETKEYS EVAL return 9223372036854775807 key"),
    ("CVE-2023-36824", "COMMAND GETKEYSANDFLAGS ZUNIONSTORE to 2147483647 key"),
    ("CVE-2023-36824", "COMMAND GETKEYS SORT key STORE"),
    ("CVE-2022-35951", "XAUTOCLAIM stream group consumer 0 0 COUNT 1152921504606846976"),
    ("CVE-2022-31144", "XAUTOCLAIM stream group consumer 0 0 COUNT 100"),
    ("CVE-2024-31227", "ACL SETUSER user (+@all ~*"),
    ("CVE-2024-31227", "ACL SETUSER user ) ("),
    ("CVE-2024-51741", "ACL SETUSER user %R"),
    ("CVE-2024-51741", "ACL SETUSER user (%~a)"),
    ("CVE-2021-32761", "GETBIT string 18446744073709551615"),
    ("CVE-2021-32761", "BITFIELD string SET u63 18446744073709551615 1"),
    ("CVE-2021-32761", "BITPOS string 1 -9223372036854775808 9223372036854775807"),
    ("CVE-2021-29477", "LCS string other IDX MINMATCHLEN 9223372036854775807 WITHMATCHLEN"),
    ("CVE-2021-32625", "LCS string other LEN IDX MINMATCHLEN -9223372036854775808"),
];

#[test]
fn commands_of_attacks_get_replies() {
    for_each_backend(|backend| {
        let mut server = Server::pantala(backend, &[]);
        let mut client = server.connect();
        for setup in [
            "HSET hash field 1 other 2",
            "ZADD zset 1 a 2 b",
            "SADD set a b",
            "RPUSH list 3 1 2",
            "MSET string abcabc other bcbc",
            "XADD stream 1-1 f v",
            "XADD stream 2-1 f v",
            "XGROUP CREATE stream group 0",
            "XREADGROUP GROUP group one STREAMS stream >",
            "XDEL stream 1-1",
        ] {
            assert!(!client.call(setup).is_error(), "{setup}");
        }
        for (number, command) in COMMANDS {
            let begin = Instant::now();
            client.call(command);
            assert!(begin.elapsed() < COMMAND_MAX, "{number}: {command}");
            assert_eq!(client.call("PING"), Reply::Simple("PONG".into()), "{number}: {command}");
        }
        assert_eq!(client.call("GET new"), Reply::bulk("2"), "MSETNX sets a key named twice");
        server.assert_sound();
    });
}

/// CVE-2022-36021 and CVE-2024-31228: matching some patterns takes exponential time, or unbounded
/// recursion.
#[test]
fn patterns_take_bounded_time_and_stack() {
    for_each_backend(|backend| {
        let mut server = Server::pantala(backend, &[]);
        let mut client = server.connect();
        let key = "a".repeat(64);
        assert_eq!(client.command(&["SET", &key, "1"]), Reply::ok());
        for pattern in ["a*".repeat(60) + "b", "*".repeat(200_000), "a?*".repeat(50_000), "[".repeat(100_000)] {
            let begin = Instant::now();
            client.command(&["KEYS", &pattern]);
            let mut subscriber = server.connect();
            subscriber.command(&["PSUBSCRIBE", &pattern]);
            client.command(&["PUBLISH", &key, "m"]);
            client.command(&["ACL", "SETUSER", "user", "+get", &format!("~{pattern}")]);
            client.command(&["ACL", "DRYRUN", "user", "GET", &key]);
            assert!(begin.elapsed() < COMMAND_MAX, "{} bytes of pattern", pattern.len());
        }
        server.assert_sound();
    });
}

/// CVE-2025-32023: a sparse HyperLogLog whose runs exceed its number of registers.
#[test]
fn a_hyperloglog_with_too_long_runs_is_rejected() {
    for_each_backend(|backend| {
        let mut server = Server::pantala(backend, &[]);
        let mut client = server.connect();
        for runs in [vec![0x7f, 0xff, 0x7f, 0xff, 0x83], vec![0xff; 5000], vec![0x7f], [0x7f, 0xff].repeat(100_000)] {
            let mut value = b"HYLL\x01\0\0\0\0\0\0\0\0\0\0\x80".to_vec();
            value.extend(runs);
            assert_eq!(client.command(&[b"SET".as_slice(), b"hll", &value]), Reply::ok());
            client.call("PFADD hll a b c");
            for command in ["PFCOUNT hll", "PFMERGE to hll", "PFCOUNT hll other"] {
                assert!(client.call(command).is_error(), "{command}");
            }
        }
        server.assert_sound();
    });
}

/// CVE-2021-32675: memory that a client uses before it has authenticated.
#[test]
fn unauthenticated_clients_use_little_memory() {
    for_each_backend(|backend| {
        let mut server = Server::pantala(backend, &["--requirepass", "secret"]);
        for request in ["*11\r\n", "*1\r\n$16385\r\n"] {
            let mut stranger = server.connect();
            stranger.send_raw(request.as_bytes());
            let answer = stranger.read_to_end();
            assert!(answer.starts_with(b"-ERR Protocol error: unauthenticated "), "{request:?}");
        }
        let mut known = server.connect();
        assert_eq!(known.call("AUTH secret"), Reply::ok());
        server.assert_sound();
    });
}

/// For a client that is logged out, `unauthenticated-timeout` counts from the logout, not from the
/// connection.
#[test]
fn a_client_that_is_logged_out_has_time_to_log_in_again() {
    const TIMEOUT: Duration = Duration::from_secs(2);
    for_all_backends(|backend| {
        let args = ["--requirepass", "secret", "--unauthenticated-timeout", "2"];
        let mut server = Server::pantala(backend, &args);
        eventually("the host is fast enough", || {
            let mut client = server.connect();
            assert_eq!(client.call("AUTH secret"), Reply::ok());
            std::thread::sleep(TIMEOUT + Duration::from_millis(200));
            let logged_out = Instant::now();
            let is_open = client.call("RESET").text() == "RESET" && client.is_open_after(TIMEOUT / 4);
            if logged_out.elapsed() >= TIMEOUT {
                return false;
            }
            assert!(is_open && client.call("AUTH secret") == Reply::ok());
            assert_eq!(client.call("RESET").text(), "RESET");
            assert_eq!(client.read_to_end(), b"");
            true
        });
        // A client that no longer needs to log in is not closed.
        eventually("the host is fast enough", || {
            let connected = Instant::now();
            let (mut early, mut admin) = (server.connect(), server.connect());
            assert_eq!(admin.call("AUTH secret"), Reply::ok());
            assert_eq!(admin.command(&["CONFIG", "SET", "requirepass", ""]), Reply::ok());
            if connected.elapsed() >= TIMEOUT {
                assert_eq!(admin.call("CONFIG SET requirepass secret"), Reply::ok());
                return false;
            }
            assert!(early.is_open_after(TIMEOUT + Duration::from_millis(500)));
            true
        });
        server.assert_sound();
    });
}

/// Clients that never authenticate must not use up `maxclients`. Authenticated clients keep their
/// connections.
#[test]
fn unauthenticated_clients_do_not_keep_others_out() {
    const CLIENTS: usize = 6;
    const REJECTED: &[u8] = b"-ERR max number of clients reached\r\n";
    for_each_backend(|backend| {
        // The server has one worker, because several workers might not accept clients in the order
        // in which these connect.
        let args = ["--requirepass", "secret", "--maxclients", "6", "--workers", "1"];
        let mut server = Server::pantala(backend, &args);
        let mut silent: Vec<_> = (0..CLIENTS).map(|_| server.connect()).collect();
        // Waits for longer than the time in which a client may authenticate.
        std::thread::sleep(Duration::from_millis(1200));
        let mut known = Vec::new();
        for mut oldest in silent.drain(..) {
            let mut client = server.connect();
            assert_eq!(client.call("AUTH secret"), Reply::ok());
            assert_eq!(oldest.read_to_end(), b"");
            known.push(client);
        }
        std::thread::sleep(Duration::from_millis(1200));
        assert_eq!(server.connect().read_to_end(), REJECTED);
        for client in &mut known {
            assert_eq!(client.call("PING").text(), "PONG");
        }
        // A client that has been logged out for a second is closed.
        assert_eq!(known[0].call("RESET").text(), "RESET");
        std::thread::sleep(Duration::from_millis(1200));
        let mut last = server.connect();
        assert_eq!(last.call("AUTH secret"), Reply::ok());
        assert_eq!(known[0].read_to_end(), b"");
        drop(known);
        server.assert_sound();
    });
}

/// Like the test above, but several clients connect while the server is stopped, so it accepts them
/// in one turn. For each new client, it must close a different one of the silent clients.
#[test]
fn clients_that_connect_together_get_in() {
    const CLIENTS: usize = 6;
    for_each_backend(|backend| {
        let args = ["--requirepass", "secret", "--maxclients", "6", "--workers", "1"];
        let mut server = Server::pantala(backend, &args);
        let mut silent: Vec<_> = (0..CLIENTS).map(|_| server.connect()).collect();
        std::thread::sleep(Duration::from_millis(1200));
        server.signal(Signal::STOP);
        let mut together: Vec<_> = (0..CLIENTS).map(|_| server.connect()).collect();
        server.signal(Signal::CONT);
        for client in &mut together {
            assert_eq!(client.call("AUTH secret"), Reply::ok());
        }
        for client in &mut silent {
            assert_eq!(client.read_to_end(), b"");
        }
        server.assert_sound();
    });
}

/// CVE-2025-21605: an unauthenticated client sends commands and doesn't read the replies, which
/// fill the server's memory.
#[test]
fn unauthenticated_clients_that_do_not_read_are_closed() {
    /// Number of commands per write, and number of writes. The sockets can buffer only a small part
    /// of the replies.
    const PINGS: usize = 10_000;
    const WRITES: usize = 200;
    /// Maximum memory of a client that stays connected.
    const MEMORY_MAX: usize = 256 * 1024;
    let memory_of = |line: &str| -> usize {
        let field = line.split(' ').find_map(|field| field.strip_prefix("tot-mem=")).expect("the field");
        field.parse().expect("a number")
    };
    for_each_backend(|backend| {
        for requires_login in ["CONFIG SET requirepass secret", "ACL SETUSER default off"] {
            let mut server = Server::pantala(backend, &[]);
            let mut known = server.connect();
            for command in ["ACL SETUSER ann on >pw +@all", requires_login] {
                assert_eq!(known.call(command), Reply::ok());
            }
            // A client that reads its replies may send any number of commands.
            let mut reader = server.connect();
            let pings = vec![vec!["PING"]; PINGS];
            assert!(reader.pipeline(&pings).iter().all(|reply| reply.text() == "NOAUTH Authentication required."));
            for request in ["PING\r\n", "AUTH ann no\r\n", "HELLO 3 AUTH ann no\r\n", "RESET\r\n", "NOSUCH\r\n"] {
                let mut stranger = server.connect();
                stranger.set_receive_buffer(4096);
                stranger.set_write_timeout(COMMAND_MAX);
                let requests = request.repeat(PINGS);
                let is_stopped = (0..WRITES).any(|_| stranger.try_send_raw(requests.as_bytes()).is_err());
                assert!(is_stopped, "{request:?} after {requires_login}");
                // The server may still be running commands that it has received. Or the client
                // can't send more although its pending output is below the limit. The server then
                // reads no more commands, and the client stays connected, with bounded memory.
                eventually("it is closed, or its memory is bounded", || {
                    let list = known.call("CLIENT LIST").text();
                    list.lines().nth(2).is_none_or(|stranger| memory_of(stranger) <= MEMORY_MAX)
                });
                drop(stranger);
                eventually("it is gone", || known.call("CLIENT LIST").text().lines().count() <= 2);
            }
            let log = server.log();
            assert!(log.matches("overcoming of output buffer limits").count() <= 5, "{log}");
            // If no authentication is required, a client is limited only by
            // `client-output-buffer-limit`.
            assert_eq!(known.call("ACL SETUSER default on nopass ~* &* +@all"), Reply::ok());
            assert_eq!(reader.call("PING").text(), "PONG");
            server.assert_sound();
        }
    });
}

/// CVE-2026-27623: empty requests before a command. Empty requests get no reply, however many there
/// are.
#[test]
fn empty_requests_have_no_reply() {
    const EMPTY: &[u8] = b"\r\n\r\n*0\r\n*-1\r\n \r\n";
    for_each_backend(|backend| {
        let mut server = Server::pantala(backend, &[]);
        for rounds in [1, 3, 1000] {
            let mut client = server.connect();
            for request in [&b"*1\r\n$4\r\nPING\r\n"[..], b"PING\r\n"] {
                client.send_raw(&[&EMPTY.repeat(rounds), request].concat());
                assert_eq!(client.receive(), Reply::Simple("PONG".into()));
            }
        }
        server.assert_sound();
    });
}

/// CVE-2025-67733: a line break in a script's reply must not start another reply.
#[test]
fn scripts_inject_no_replies() {
    const TEXT: &str = "ERR a\\r\\n+INJECTED\\r\\n:1\\r\\n\\0\\r\\n+INJECTED\\r\\n";
    for_each_backend(|backend| {
        let server = Server::pantala(backend, &[]);
        let mut client = server.connect();
        for protocol in ["2", "3"] {
            client.call(&format!("HELLO {protocol}"));
            for script in [
                format!("return redis.error_reply('{TEXT}')"),
                format!("return redis.status_reply('{TEXT}')"),
                format!("return {{err = '{TEXT}'}}"),
                format!("return {{ok = '{TEXT}'}}"),
                format!("error({{err = '{TEXT}'}})"),
                format!("error('{TEXT}')"),
                format!("return redis.call('{TEXT}')"),
                format!("return {{double = '{TEXT}'}}"),
                format!("return {{big_number = '{TEXT}'}}"),
                format!("return redis.pcall('SET', 'k', 'v', '{TEXT}')"),
            ] {
                client.command(&["EVAL", &script, "0"]);
                assert_eq!(client.call("PING"), Reply::Simple("PONG".into()), "{script}");
            }
        }
    });
}

/// CVE-2025-27151: the path of the file that `check-aof` checks is very long.
#[test]
fn a_long_path_is_not_found() {
    let path = "x/".repeat(50_000);
    for words in [&["check-aof", &path][..], &["check-aof", "--fix", &path], &["check-rdb", &path]] {
        let exit = run_to_exit(words, b"");
        assert_eq!(exit.status.code(), Some(1), "{}: {}", words[0], exit.output);
    }
}

/// CVE-2025-48367: clients that send only protocol errors do not starve others.
#[test]
fn protocol_errors_do_not_starve_other_clients() {
    for_each_backend(|backend| {
        let mut server = Server::pantala(backend, &["--requirepass", "secret"]);
        let mut client = server.connect();
        assert_eq!(client.call("AUTH secret"), Reply::ok());
        for _ in 0..500 {
            server.connect().send_raw(b"*3\r\nx\r\n");
            let begin = Instant::now();
            assert_eq!(client.call("PING"), Reply::Simple("PONG".into()));
            assert!(begin.elapsed() < COMMAND_MAX);
        }
        server.assert_sound();
    });
}

/// CVE-2021-29478, CVE-2021-32627, CVE-2021-32628 and CVE-2021-32687: encoded values that declare a
/// wrong number of elements or bytes.
#[test]
fn values_with_lying_sizes_are_rejected() {
    // Types of values in the RDB format.
    const SET_INTSET: u8 = 11;
    const HASH_LISTPACK: u8 = 16;
    const ZSET_LISTPACK: u8 = 17;
    /// Length of the listpack below.
    const LISTPACK_BYTES: u32 = 12;
    let mut server = Server::pantala(Backend::Epoll, &[]);
    let mut client = server.connect();
    for count in [1u32, 2, LISTPACK_BYTES, 0x2000_0000, 0x4000_0000, 0x8000_0000, u32::MAX] {
        // Two integers of 16 bits.
        let elements = [1, 0, 2, 0];
        let intset = [&2u32.to_le_bytes()[..], &count.to_le_bytes(), &elements].concat();
        let listpack = [&count.to_le_bytes()[..], &[2, 0, 0x81, b'a', 2, 1, 1, 0xff]].concat();
        for (kind, value) in [(SET_INTSET, &intset), (HASH_LISTPACK, &listpack), (ZSET_LISTPACK, &listpack)] {
            let payload = sealed(&[&[kind, value.len() as u8][..], value].concat());
            let restore: [&[u8]; 5] = [b"RESTORE", b"key", b"0", &payload, b"REPLACE"];
            let reply = client.command(&restore);
            let is_valid = count == if kind == SET_INTSET { 2 } else { LISTPACK_BYTES };
            assert_eq!(reply.is_error(), !is_valid, "type {kind}, {count}: {reply:?}");
        }
    }
    server.assert_sound();
}

/// CVE-2023-45145: the file of a Unix socket never has more permissions than `unixsocketperm`.
#[test]
fn a_unix_socket_has_its_mode_from_the_start() {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("socket");
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let watcher = scope.spawn(|| {
            let mut modes = Vec::new();
            while !is_over.load(Ordering::Relaxed) {
                modes.extend(fs::metadata(&socket).map(|data| data.permissions().mode() & 0o777));
                modes.dedup();
            }
            modes
        });
        let path = socket.to_str().expect("UTF-8");
        for _ in 0..10 {
            let _server = Server::pantala(Backend::Epoll, &["--unixsocket", path, "--unixsocketperm", "700"]);
        }
        is_over.store(true, Ordering::Relaxed);
        assert_eq!(watcher.join().expect("it has watched"), [0o700]);
    });
}

/// CVE-2026-23631: a full sync replaces the dataset while a script runs.
#[test]
fn a_full_sync_waits_for_a_script() {
    for_each_backend(|backend| {
        let primary = Server::pantala(backend, &["--repl-diskless-sync-delay", "0"]);
        let mut replica = Server::pantala(backend, &["--workers", "2", "--busy-reply-threshold", "100"]);
        assert_eq!(primary.connect().call("SET key primary"), Reply::ok());
        assert_eq!(replica.connect().call("SET key replica"), Reply::ok());
        let mut runner = replica.connect();
        runner.send(&[
            "EVAL",
            "for i = 1, 5e6 do if i % 1e5 == 0 then redis.call('GET', KEYS[1]) end end return redis.call('GET', KEYS[1])",
            "1",
            "key",
        ]);
        // `follow` returns when the full sync has ended. The whole script runs either before the
        // sync or after it.
        follow(&replica, &primary);
        let read = runner.receive().text();
        assert!(read == "replica" || read == "primary", "{read}");
        // This script is killed while the sync waits for it.
        let mut endless = replica.connect();
        endless.send(&["EVAL", "while true do redis.call('GET', KEYS[1]) end", "1", "key"]);
        // Waits for longer than `busy-reply-threshold`, after which the script can be killed.
        std::thread::sleep(Duration::from_millis(300));
        // The primary's replication ID changes first, so that the next link needs a full sync.
        assert_eq!(primary.connect().call("DEBUG CHANGE-REPL-ID"), Reply::ok());
        assert_eq!(primary.connect().call("CLIENT KILL TYPE replica").integer(), 1);
        eventually("the sync waits for the script", || info(&replica, "persistence", "loading") == "1");
        assert_eq!(replica.connect().call("SCRIPT KILL"), Reply::ok());
        assert!(endless.receive().is_error());
        wait_for_link(&replica);
        assert_same(&replica, &primary);
        replica.assert_sound();
    });
}

/// CVE-2026-56684: encrypted clients are killed while they send commands and receive replies.
#[test]
fn encrypted_clients_can_be_killed_at_any_time() {
    /// Number of `CLIENT KILL` commands. Each closes all other clients.
    const KILLS: usize = 40;
    /// Number of commands in a pipeline.
    const GETS: usize = 20;
    let Some(certificates) = Certificates::make() else { return };
    for_each_backend(|backend| {
        let tls_port = free_port();
        let args = certificates.server_args(tls_port, "server");
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let mut server = Server::pantala(backend, &[&args[..], &["--workers", "2"]].concat());
        let tunnel = Tunnel::open(tls_port, certificates.client_config(Some("client")), usize::MAX);
        let mut control = server.connect();
        assert_eq!(control.command(&["SET", "large", &"x".repeat(200_000)]), Reply::ok());
        let mut random = Random::from_seed(Random::seed("encrypted clients are killed"));
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while !is_over.load(Ordering::Relaxed) {
                        let mut client = tunnel.connect();
                        client.set_read_timeout(COMMAND_MAX);
                        // The loop ends when the client is killed.
                        while !is_over.load(Ordering::Relaxed) {
                            let is_sent = client.try_send_raw(&b"GET large\r\n".repeat(GETS)).is_ok();
                            if !is_sent || !(0..GETS).all(|_| client.try_receive().is_ok()) {
                                break;
                            }
                        }
                    }
                });
            }
            let mut killed = 0;
            for _ in 0..KILLS {
                std::thread::sleep(Duration::from_micros(random.below(20_000) as u64));
                killed += control.call("CLIENT KILL TYPE normal SKIPME yes").integer();
            }
            is_over.store(true, Ordering::Relaxed);
            assert!(killed > 0, "some clients were connected");
            control.call("CLIENT KILL TYPE normal SKIPME yes");
        });
        server.assert_sound();
    });
}

/// Ten thousand failing logins of several clients do not delay another client, and `ACL LOG` stays
/// bounded.
#[test]
fn failing_logins_do_not_starve_other_clients() {
    /// Total of all clients.
    const LOGINS: usize = 10_000;
    const CLIENTS: usize = 4;
    /// Maximum median time of another client's commands, on a busy host.
    const MEDIAN_MAX: Duration = Duration::from_millis(50);
    for_each_backend(|backend| {
        let mut server = Server::pantala(backend, &["--requirepass", "secret", "--workers", "2"]);
        let mut client = server.connect();
        assert_eq!(client.call("AUTH secret"), Reply::ok());
        let fail = |number: usize| {
            let mut attacker: Client = server.connect();
            for login in 0..LOGINS / CLIENTS {
                // Each login has a different name. Otherwise, the server would combine entries of
                // the log.
                let reply = attacker.command(&["AUTH", &format!("user-{number}-{login}"), "wrong"]);
                assert!(reply.text().starts_with("WRONGPASS"), "{reply:?}");
            }
        };
        let mut times = Vec::new();
        std::thread::scope(|scope| {
            let attackers: Vec<_> = (0..CLIENTS).map(|number| scope.spawn(move || fail(number))).collect();
            while attackers.iter().any(|attacker| !attacker.is_finished()) {
                let begin = Instant::now();
                assert_eq!(client.call("PING").text(), "PONG");
                times.push(begin.elapsed());
            }
        });
        times.sort();
        assert!(times[times.len() / 2] < MEDIAN_MAX && times[times.len() - 1] < COMMAND_MAX, "{times:?}");
        assert_eq!(client.call("ACL LOG 1000000").elements().len(), 128, "acllog-max-len");
        server.assert_sound();
    });
}
