//! Clients misbehave or reach a limit, or the server is started with invalid arguments. The server
//! reports the error, and continues or exits as it should.

use std::io::Read;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use pantala_tests::client::encode;
use pantala_tests::server::{free_port, pantala_with_file, pantala_with_input, run_to_exit};
use pantala_tests::{Backend, Client, Reply, Server, for_each_backend, tool};
use rustix::process::{Resource, Rlimit, Signal, getrlimit, setrlimit};

/// Maximum wait for an action of the server, on a slow host.
const PATIENCE: Duration = Duration::from_secs(20);
const MIB: u64 = 1 << 20;

/// Waits until `done` returns true.
fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < deadline, "not within {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Returns one field of INFO.
fn info(client: &mut Client, field: &str) -> u64 {
    let text = client.call("INFO").text();
    let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':').map(str::to_owned));
    line.and_then(|value| value.trim().parse().ok()).unwrap_or_else(|| panic!("INFO has no number {field}"))
}

#[test]
fn a_client_that_never_reads_is_closed_at_its_limit() {
    const LIMIT: u64 = 8 * MIB;
    for_each_backend(|backend| {
        let limit = LIMIT.to_string();
        let args = ["--workers", "2", "--shards", "8", "--client-output-buffer-limit", "normal", &limit, "0", "0"];
        let mut server = Server::pantala(backend, &args);
        let mut other = server.connect();
        other.command(&["SET", "big", &"x".repeat(MIB as usize)]);
        let before = server.resident_bytes();
        let mut silent = server.connect();
        silent.call("CLIENT SETNAME silent");
        silent.set_write_timeout(Duration::from_secs(2));
        for _ in 0..400 {
            if silent.try_send_raw(&encode(&["GET", "big"])).is_err() {
                break;
            }
        }
        eventually("the silent client is closed", || !other.call("CLIENT LIST").text().contains("name=silent"));
        let grown = server.resident_bytes().saturating_sub(before);
        // Memory contains replies up to the limit, the replies that one turn (iteration of the
        // event loop) may add before the limit is checked, and the allocator's caches.
        assert!(grown < 100 * MIB, "memory grew by {} MiB", grown / MIB);
        assert_eq!(other.call("PING").text(), "PONG");
        server.assert_sound();
    });
}

#[test]
fn a_client_over_its_soft_limit_is_closed_in_time() {
    for_each_backend(|backend| {
        let args = ["--workers", "1", "--client-output-buffer-limit", "normal", "0", "1mb", "1"];
        let mut server = Server::pantala(backend, &args);
        let mut other = server.connect();
        other.command(&["SET", "big", &"x".repeat(MIB as usize)]);
        let mut silent = server.connect();
        silent.call("CLIENT SETNAME silent");
        silent.send_raw(&encode(&["GET", "big"]).repeat(20));
        eventually("the silent client is closed", || !other.call("CLIENT LIST").text().contains("name=silent"));
        server.assert_sound();
    });
}

/// Without a limit a client may be arbitrarily slow, and receives all replies.
#[test]
fn a_slow_client_gets_everything() {
    const REPLIES: usize = 60;
    for_each_backend(|backend| {
        let server = Server::pantala(backend, &["--workers", "1"]);
        let mut client = server.connect();
        client.command(&["SET", "big", &"x".repeat(MIB as usize)]);
        client.send_raw(&encode(&["GET", "big"]).repeat(REPLIES));
        std::thread::sleep(Duration::from_millis(300));
        for number in 0..REPLIES {
            assert!(client.receive().text().len() == MIB as usize, "reply {number} is short");
        }
    });
}

#[test]
fn ten_thousand_idle_connections() {
    let limit = getrlimit(Resource::Nofile);
    if limit.current < limit.maximum {
        // If the limit can't be raised, the test uses fewer connections, and prints the number of
        // connections below.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    }
    let allowed = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX) as usize;
    let count = 10_000.min(allowed.saturating_sub(600));
    if count < 10_000 {
        tool::skipped(format_args!("10,000 idle connections: {allowed} open files allow {count}"));
    }
    for_each_backend(|backend| {
        let maxclients = (count + 100).to_string();
        let mut server = Server::pantala(backend, &["--workers", "2", "--shards", "40", "--maxclients", &maxclients]);
        let before = server.resident_bytes();
        let mut clients: Vec<Client> = (0..count).map(|_| server.connect()).collect();
        eventually("all are accepted", || info(&mut clients[0], "connected_clients") == count as u64);
        let bytes_each = server.resident_bytes().saturating_sub(before) / count as u64;
        eprintln!("{} idle connections on {}: {bytes_each} bytes each", count, backend.name());
        for client in clients.iter_mut().step_by(7) {
            client.send_raw(b"PING\r\n");
        }
        for client in clients.iter_mut().step_by(7) {
            assert_eq!(client.receive().text(), "PONG");
        }
        drop(clients);
        let mut client = server.connect();
        eventually("all are closed", || info(&mut client, "connected_clients") == 1);
        server.assert_sound();
    });
}

#[test]
fn maxclients_rejects_as_redis() {
    for_each_backend(|backend| {
        let mut server = Server::pantala(backend, &["--maxclients", "3", "--workers", "2"]);
        let mut clients: Vec<Client> = (0..3).map(|_| server.connect()).collect();
        for client in &mut clients {
            assert_eq!(client.call("PING").text(), "PONG");
        }
        assert_eq!(server.connect().read_to_end(), b"-ERR max number of clients reached\r\n");
        clients.pop();
        eventually("a connection is accepted again", || {
            let mut client = server.connect();
            let _ = client.try_send_raw(b"PING\r\n");
            client.try_receive().is_ok_and(|(reply, _)| reply == Reply::Simple("PONG".into()))
        });
        assert!(info(&mut clients[0], "rejected_connections") >= 1);
        server.assert_sound();
    });
}

#[test]
fn startup_fails_if_the_port_is_in_use() {
    let port = free_port();
    let _holder = TcpListener::bind(("127.0.0.1", port)).expect("the port is free");
    let exit = run_to_exit(&["--port", &port.to_string(), "--bind", "127.0.0.1"], b"");
    assert_eq!(exit.status.code(), Some(1), "{}", exit.output);
    assert!(
        exit.output.contains(&port.to_string()) && exit.output.contains("Address already in use"),
        "{}",
        exit.output
    );
}

/// Kills a server with a connected client, and starts the next server on the same port. Does this
/// `times` times.
fn restart_after_kill(backend: Backend, times: u32) {
    let port = free_port();
    for time in 0..times {
        let server = Server::pantala_at(port, backend, &["--workers", "2", "--shards", "2"])
            .unwrap_or_else(|why| panic!("start {time} of {times}: {why}"));
        let mut client = server.connect();
        assert_eq!(client.call("PING").text(), "PONG");
        server.kill();
    }
}

/// With io_uring, the kernel may close the sockets of a killed process only after the process has
/// exited. A server that is started immediately must nevertheless be able to use the same port.
#[test]
fn the_port_is_free_after_a_kill() {
    for_each_backend(|backend| restart_after_kill(backend, 20));
}

#[test]
#[ignore = "takes half a minute; run by .ci/run"]
fn the_port_is_free_after_two_hundred_kills() {
    for_each_backend(|backend| restart_after_kill(backend, 200));
}

#[test]
fn startup_fails_with_wrong_arguments() {
    for (args, words) in [
        (&["--shards", "0"][..], &["shards"][..]),
        (&["--shards", "100000"], &["shards", "16384"]),
        (&["--shards", "many"], &["shards"]),
        (&["--partitions", "100000"], &["partitions", "16384"]),
        (&["--shards", "8", "--partitions", "7"], &["shards 8", "partitions 7"]),
        (&["--workers", "0"], &["workers"]),
        (&["--workers", "100000"], &["workers", "1024"]),
        (&["--execution", "sideways"], &["execution", "inline", "owner"]),
        (&["--io-backend", "kqueue"], &["io-backend", "epoll"]),
        (&["--pin-threads", "maybe"], &["pin-threads"]),
        (&["--port", "abc"], &["port"]),
        (&["--port", "70000"], &["port"]),
        (&["--maxclients", "0"], &["maxclients"]),
        (&["--databases", "0"], &["databases"]),
        (&["--nosuchdirective", "1"], &["nosuchdirective"]),
        (&["--port"], &["port"]),
        (&["/nosuch/file.conf"], &["/nosuch/file.conf"]),
    ] {
        let exit = run_to_exit(args, b"");
        let code = exit.status.code();
        assert!(matches!(code, Some(1 | 2)), "{args:?}: exit {code:?}\n{}", exit.output);
        assert!(!exit.output.contains("panicked"), "{args:?}: {}", exit.output);
        for word in words {
            assert!(exit.output.contains(word), "{args:?} must name {word:?}:\n{}", exit.output);
        }
    }
}

#[test]
fn help_and_version() {
    let help = run_to_exit(&["--help"], b"");
    assert_eq!(help.status.code(), Some(0));
    for word in
        ["--shards", "--partitions", "--workers", "--io-threads", "--execution", "--io-backend", "--pin-threads"]
    {
        assert!(help.output.contains(word), "--help must name {word}:\n{}", help.output);
    }
    let version = run_to_exit(&["--version"], b"");
    assert_eq!(version.status.code(), Some(0));
    assert!(version.output.contains("0.1.0"), "{}", version.output);
    // Test suites of clients search this output for the version.
    assert!(version.output.contains(" v=7.0.15"), "{}", version.output);
}

#[test]
fn configuration_file_overrides_and_input() {
    let get = |client: &mut Client, name: &str| client.command(&["CONFIG", "GET", name]).elements()[1].text();
    let text = "# comment\n\nmaxclients 77\ntimeout 5\nproto-max-bulk-len 2mb\nrequirepass \"a \\x62 'c'\"\nshards 7\n";
    let (server, _) = pantala_with_file(text, &["--maxclients", "88", "--workers", "2"]);
    let mut client = server.connect();
    assert!(client.call("PING").text().starts_with("NOAUTH"));
    assert_eq!(client.command(&["AUTH", "a b 'c'"]), Reply::ok());
    assert_eq!(get(&mut client, "maxclients"), "88", "an argument overrides the file");
    assert_eq!(get(&mut client, "timeout"), "5");
    assert_eq!(get(&mut client, "proto-max-bulk-len"), "2097152");
    assert_eq!(get(&mut client, "shards"), "7");

    let server = pantala_with_input("maxclients 66\ntimeout 3\n", &["--timeout", "4"]);
    let mut client = server.connect();
    assert_eq!(get(&mut client, "maxclients"), "66");
    assert_eq!(get(&mut client, "timeout"), "4");

    let folder = tempfile::tempdir().expect("a folder");
    let included = folder.path().join("more.conf");
    std::fs::write(&included, "timeout 9\nmaxclients 55\n").expect("the file is written");
    let (server, _) = pantala_with_file(&format!("maxclients 44\ninclude {}\ntimeout 8\n", included.display()), &[]);
    let mut client = server.connect();
    assert_eq!(get(&mut client, "maxclients"), "55");
    assert_eq!(get(&mut client, "timeout"), "8");
}

#[test]
fn errors_in_configuration_files_name_the_line() {
    for (text, words) in [
        ("port 0\nnosuchdirective 1\n", &["nosuchdirective", "line 2"][..]),
        ("maxclients many\n", &["maxclients", "line 1"]),
        ("\n\nrequirepass \"open\n", &["requirepass", "line 3"]),
        ("include /nosuch/more.conf\n", &["/nosuch/more.conf"]),
        ("maxclients 1 2\n", &["maxclients"]),
    ] {
        let exit = run_to_exit(&["-"], text.as_bytes());
        assert_eq!(exit.status.code(), Some(1), "{text:?}: {}", exit.output);
        for word in words {
            assert!(exit.output.contains(word), "{text:?} must name {word:?}:\n{}", exit.output);
        }
    }
}

/// A directive of Redis that has no effect in Pantala causes a warning, not an error.
#[test]
fn directives_without_effect_are_logged() {
    let server = Server::pantala(Backend::Epoll, &["--jemalloc-bg-thread", "yes"]);
    assert!(server.log().contains("jemalloc-bg-thread"), "{}", server.log());
    assert_eq!(server.connect().call("PING").text(), "PONG");
}

#[test]
fn startup_logs_the_configuration() {
    for_each_backend(|backend| {
        let server = Server::pantala(backend, &["--workers", "2", "--shards", "12"]);
        let log = server.log();
        for word in [
            env!("CARGO_PKG_VERSION"),
            &server.port().to_string(),
            backend.name(),
            "shards=12",
            "Ready to accept connections",
        ] {
            assert!(log.contains(word), "the log must contain {word:?}:\n{log}");
        }
    });
}

#[test]
fn signals_and_shutdown_exit_cleanly() {
    type End = fn(&Server);
    let ends: [(&str, End); 4] = [
        ("SIGTERM", |server| server.signal(Signal::TERM)),
        ("SIGINT", |server| server.signal(Signal::INT)),
        ("SHUTDOWN", |server| server.connect().send(&["SHUTDOWN"])),
        ("SHUTDOWN NOSAVE NOW FORCE", |server| server.connect().send(&["SHUTDOWN", "NOSAVE", "NOW", "FORCE"])),
    ];
    for_each_backend(|backend| {
        for (name, end) in ends {
            let folder = tempfile::tempdir().expect("a folder");
            let socket = folder.path().join("socket");
            let pidfile = folder.path().join("pid");
            let args = [
                "--workers",
                "2",
                "--unixsocket",
                socket.to_str().expect("UTF-8"),
                "--pidfile",
                pidfile.to_str().expect("UTF-8"),
            ];
            let mut server = Server::pantala(backend, &args);
            let mut idle = server.connect();
            assert_eq!(idle.call("PING").text(), "PONG");
            assert_eq!(std::fs::read_to_string(&pidfile).expect("there is a pidfile").trim(), server.pid().to_string());
            end(&server);
            let status = server.wait_exit(PATIENCE);
            assert_eq!(status.code(), Some(0), "{name}: {status}\n{}", server.log());
            assert!(idle.read_to_end().is_empty(), "{name}: the connection received bytes");
            assert!(!socket.exists(), "{name}: the socket file is left");
            assert!(!pidfile.exists(), "{name}: the pidfile is left");
            assert!(!server.log().contains("panicked"), "{}", server.log());
        }
    });
}

#[test]
fn a_unix_socket_serves() {
    for_each_backend(|backend| {
        let folder = tempfile::tempdir().expect("a folder");
        let socket = folder.path().join("socket");
        let server =
            Server::pantala(backend, &["--unixsocket", socket.to_str().expect("UTF-8"), "--unixsocketperm", "700"]);
        let mode = std::fs::metadata(&socket).expect("the socket exists").permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        let mut client = Client::unix(&socket);
        assert_eq!(client.call("SET a 1"), Reply::ok());
        assert_eq!(server.connect().call("GET a"), Reply::bulk("1"));
    });
}

/// A server without a password rejects remote clients. As in Redis, 127.0.0.2 counts as remote.
#[test]
fn protected_mode_rejects_remote_clients() {
    let first_bytes = |port: u16| {
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).expect("a socket");
        let address = |ip: [u8; 4], port: u16| socket2::SockAddr::from(std::net::SocketAddr::from((ip, port)));
        socket.bind(&address([127, 0, 0, 2], 0)).expect("127.0.0.2 is loopback");
        socket.connect(&address([127, 0, 0, 1], port)).expect("the server listens");
        socket.set_read_timeout(Some(PATIENCE)).expect("set a timeout");
        let mut stream: std::net::TcpStream = socket.into();
        let _ = std::io::Write::write_all(&mut stream, b"PING\r\n");
        let mut bytes = vec![0; 8];
        let length = stream.read(&mut bytes).unwrap_or(0);
        String::from_utf8_lossy(&bytes[..length]).into_owned()
    };
    for_each_backend(|backend| {
        let server = Server::pantala(backend, &[]);
        assert_eq!(first_bytes(server.port()), "-DENIED ");
        assert_eq!(server.connect().call("CONFIG SET protected-mode no"), Reply::ok());
        assert_eq!(first_bytes(server.port()), "+PONG\r\n");
        let server = Server::pantala(backend, &["--requirepass", "secret"]);
        assert_eq!(first_bytes(server.port()), "-NOAUTH ", "protected mode is off with a password");
    });
}

#[test]
fn idle_clients_time_out() {
    for_each_backend(|backend| {
        let server = Server::pantala(backend, &["--timeout", "2", "--workers", "2"]);
        let mut idle = server.connect();
        let mut half = server.connect();
        half.send_raw(b"*2\r\n$3\r\nGET\r\n");
        let mut busy = server.connect();
        let deadline = Instant::now() + Duration::from_millis(3500);
        while Instant::now() < deadline {
            assert_eq!(busy.call("PING").text(), "PONG");
            std::thread::sleep(Duration::from_millis(100));
        }
        assert!(idle.ends_within(PATIENCE) && half.ends_within(PATIENCE), "idle clients are not closed");
        assert_eq!(busy.call("PING").text(), "PONG");
    });
}

/// Returns the available memory of this host, in bytes.
fn available_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) * 1024
}

#[test]
fn the_largest_value_and_one_byte_more() {
    const LEN: usize = 512 << 20;
    if available_bytes() < 6 << 30 {
        tool::skipped(format_args!("values of 512 MB: less than 6 GB of memory"));
        return;
    }
    for_each_backend(|backend| {
        let mut server = Server::pantala(backend, &["--workers", "1", "--shards", "4"]);
        let mut client = server.connect();
        let mut value = vec![b'v'; LEN];
        value[LEN - 1] = b'e';
        client.send_raw(format!("*3\r\n$3\r\nSET\r\n$3\r\nbig\r\n${LEN}\r\n").as_bytes());
        client.send_raw(&value);
        client.send_raw(b"\r\n");
        assert_eq!(client.receive(), Reply::ok());
        assert_eq!(client.call("STRLEN big"), Reply::Integer(LEN as i64));
        assert_eq!(client.call("GETRANGE big -3 -1"), Reply::bulk("vve"));
        let Reply::Bulk(back) = client.call("GET big") else { panic!("GET returns a bulk string") };
        assert!(back == value, "512 MB was changed");
        drop((back, value));
        for command in ["APPEND big x", "SETRANGE big 536870912 x", "SETRANGE new 536870911 xy"] {
            let reply = client.call(command);
            assert!(
                reply.is_error() && reply.text().starts_with("ERR string exceeds maximum allowed size"),
                "{command}: {reply:?}"
            );
        }
        assert_eq!(client.call("SETRANGE big 536870911 E"), Reply::Integer(LEN as i64));
        assert_eq!(client.call("DEL big"), Reply::Integer(1));
        client.send_raw(format!("*3\r\n$3\r\nSET\r\n$3\r\nbig\r\n${}\r\n", LEN + 1).as_bytes());
        assert_eq!(client.read_to_end(), b"-ERR Protocol error: invalid bulk length\r\n");
        server.assert_sound();
    });
}

/// Clients announce a long bulk string, or very many arguments, and send few bytes. The server
/// allocates memory only for the bytes that have arrived.
#[test]
fn announced_lengths_take_no_memory() {
    for_each_backend(|backend| {
        let mut server = Server::pantala(backend, &["--workers", "1"]);
        let before = server.resident_bytes();
        let mut clients: Vec<Client> = (0..50).map(|_| server.connect()).collect();
        for client in &mut clients {
            client.send_raw(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$536870912\r\nabc");
        }
        let mut many: Vec<Client> = (0..50).map(|_| server.connect()).collect();
        for client in &mut many {
            client.send_raw(b"*1000000\r\n$1\r\na\r\n");
        }
        assert_eq!(server.connect().call("PING").text(), "PONG");
        let grown = server.resident_bytes().saturating_sub(before);
        assert!(grown < 64 * MIB, "100 announcements took {} MiB", grown / MIB);
        server.assert_sound();
    });
}

/// As in Redis, complete arguments don't count towards `client-query-buffer-limit`.
#[test]
fn complete_arguments_do_not_count_as_query_buffer() {
    for_each_backend(|backend| {
        let server = Server::pantala(backend, &["--workers", "1", "--client-query-buffer-limit", "1mb"]);
        let mut client = server.connect();
        let (long, short) = ("x".repeat(400_000), "y".repeat(4000));
        assert_eq!(client.command(&["MSET", "a", &long, "b", &long, "c", &long]), Reply::ok());
        let many: Vec<String> = (0..300).map(|number| format!("key:{number}")).collect();
        let words: Vec<&str> = many.iter().flat_map(|key| [key.as_str(), &short]).collect();
        assert_eq!(client.command(&[&["MSET"], words.as_slice()].concat()), Reply::ok());
        assert_eq!(client.call("STRLEN c").integer(), 400_000);
    });
}

/// A client with an endless request is closed at `client-query-buffer-limit`.
#[test]
fn the_query_buffer_has_a_limit() {
    for_each_backend(|backend| {
        let mut server = Server::pantala(backend, &["--workers", "1", "--client-query-buffer-limit", "2mb"]);
        let mut client = server.connect();
        client.set_write_timeout(Duration::from_secs(5));
        let mut sent = client.try_send_raw(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$536870912\r\n");
        for _ in 0..64 {
            sent = sent.and_then(|()| client.try_send_raw(&vec![b'x'; MIB as usize]));
        }
        assert!(
            sent.is_err() || client.ends_within(PATIENCE),
            "64 MiB of one request were read despite a limit of 2 MiB"
        );
        assert_eq!(server.connect().call("PING").text(), "PONG");
        server.assert_sound();
    });
}
