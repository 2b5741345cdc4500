//! Adversarial clients must not affect other clients. The tests send floods of commands, reset
//! connections, leave replies unread, and run many commands on one shard (a part of the key space).
//! Another test makes allocations fail.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use pantala_tests::client::encode;
use pantala_tests::{Client, Reply, Server, for_all_backends, for_each_backend};
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use socket2::{Domain, SockAddr, Socket, Type};

const MIB: u64 = 1 << 20;
/// Maximum wait for an action of the server, on a slow host.
const PATIENCE: Duration = Duration::from_secs(20);

/// Returns a connection from 127.0.0.2, which protected mode treats as remote.
fn remote_client(port: u16) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    let address = |ip: [u8; 4], port: u16| SockAddr::from(SocketAddr::from((ip, port)));
    socket.bind(&address([127, 0, 0, 2], 0)).expect("127.0.0.2 is loopback");
    socket.connect(&address([127, 0, 0, 1], port)).expect("the server listens");
    // With a linger time of zero, closing a socket resets its connection.
    socket.set_linger(Some(Duration::ZERO)).expect("a socket lingers");
    socket.into()
}

/// In protected mode, commands of remote clients don't run. This must also hold if a remote client
/// resets its connection before the server reads the client's address. The address is then unknown.
#[test]
fn commands_of_a_remote_client_that_resets_do_not_run() {
    for_each_backend(|backend| {
        let server = Server::pantala(backend, &["--workers", "2"]);
        for number in 0..300 {
            let mut stream = remote_client(server.port());
            // The server may have closed the connection already.
            let _ = stream.write_all(&encode(&["SET", "intruder", &number.to_string()]));
            drop(stream);
        }
        let mut client = server.connect();
        assert_eq!(client.call("DBSIZE"), Reply::Integer(0));
        assert_eq!(client.call("CONFIG SET protected-mode no"), Reply::ok());
        let mut stream = remote_client(server.port());
        stream.write_all(&encode(&["SET", "guest", "1"])).expect("the server reads");
        let deadline = Instant::now() + PATIENCE;
        while client.call("EXISTS guest") != Reply::Integer(1) {
            assert!(Instant::now() < deadline, "without protected mode, the client is still rejected");
            std::thread::sleep(Duration::from_millis(10));
        }
    });
}

/// While a client's commands are paused, further input of the client stays in the kernel and
/// doesn't use the server's memory.
#[test]
fn input_of_a_paused_client_is_not_read() {
    for_each_backend(|backend| {
        let mut server = Server::pantala(backend, &["--workers", "2", "--shards", "8"]);
        let mut other = server.connect();
        let mut flood = server.connect();
        assert_eq!(flood.call("PING").text(), "PONG");
        other.call("CLIENT PAUSE 60000 WRITE");
        let before = server.resident_bytes();
        flood.set_write_timeout(Duration::from_secs(1));
        let piece = encode(&["SET", "key", &"x".repeat(1000)]).repeat(1000);
        let sent = (0..200).take_while(|_| flood.try_send_raw(&piece).is_ok()).count();
        assert!(sent < 200, "200 MB were read from a paused client");
        let grown = server.resident_bytes().saturating_sub(before);
        assert!(grown < 32 * MIB, "memory grew by {} MiB for a paused client", grown / MIB);
        assert_eq!(other.call("CLIENT UNPAUSE"), Reply::ok());
        // After the pause, all commands that were sent run.
        for number in 0..sent * 1000 {
            assert_eq!(flood.receive(), Reply::ok(), "reply {number}");
        }
        server.assert_sound();
    });
}

/// The output limit also applies to replies to commands that another worker runs.
#[test]
fn replies_of_parked_commands_count_against_the_output_limit() {
    for_each_backend(|backend| {
        let args = [
            "--workers",
            "2",
            "--shards",
            "8",
            "--execution",
            "owner",
            "--client-output-buffer-limit",
            "normal 4mb 0 0",
        ];
        let mut server = Server::pantala(backend, &args);
        let mut other = server.connect();
        let keys: Vec<String> = (0..16).map(|number| format!("big:{number}")).collect();
        for key in &keys {
            assert_eq!(other.command(&["SET", key, &"x".repeat(MIB as usize)]), Reply::ok());
        }
        let before = server.resident_bytes();
        // The two clients belong to different workers. So at least one of them sends commands on
        // keys that another worker owns.
        let mut silent: Vec<Client> = (0..2).map(|_| server.connect()).collect();
        for client in &mut silent {
            client.set_write_timeout(Duration::from_secs(1));
            let requests: Vec<u8> = keys.iter().flat_map(|key| encode(&["GET", key])).collect();
            for _ in 0..60 {
                if client.try_send_raw(&requests).is_err() {
                    break;
                }
            }
        }
        let deadline = Instant::now() + PATIENCE;
        while other.call("CLIENT LIST").text().lines().count() > 1 {
            assert!(Instant::now() < deadline, "not closed: {}", other.call("CLIENT LIST").text());
            std::thread::sleep(Duration::from_millis(20));
        }
        let grown = server.resident_bytes().saturating_sub(before);
        // The limit is checked after each window (one batch of the pipeline), so each of the two
        // clients may exceed the limit by the replies of one window. Without the limit they would
        // use 1,920 MiB.
        assert!(grown < 700 * MIB, "memory grew by {} MiB", grown / MIB);
        server.assert_sound();
    });
}

/// The worker that owns a flooded shard still serves its own connections.
#[test]
fn a_contended_shard_starves_no_client() {
    for_each_backend(|backend| {
        for execution in ["inline", "owner"] {
            let args = ["--workers", "4", "--shards", "1", "--partitions", "1", "--execution", execution];
            let mut server = Server::pantala(backend, &args);
            let mut patient: Vec<Client> = (0..4).map(|_| server.connect()).collect();
            let stop = AtomicBool::new(false);
            let slowest = std::thread::scope(|scope| {
                for _ in 0..8 {
                    let mut client = server.connect();
                    let stop = &stop;
                    scope.spawn(move || {
                        let requests = encode(&["INCR", "counter"]).repeat(500);
                        while !stop.load(Ordering::Relaxed) {
                            client.send_raw(&requests);
                            (0..500).for_each(|_| drop(client.receive()));
                        }
                    });
                }
                let mut slowest = Duration::ZERO;
                for round in 0..100 {
                    // Each worker serves one of these clients, including the shard's owner.
                    for client in &mut patient {
                        let start = Instant::now();
                        let reply = if round % 2 == 0 { client.call("GET other") } else { client.call("PING") };
                        assert!(!reply.is_error());
                        slowest = slowest.max(start.elapsed());
                    }
                }
                stop.store(true, Ordering::Relaxed);
                slowest
            });
            eprintln!("{} {execution}: the slowest of 400 calls took {slowest:?}", backend.name());
            assert!(slowest < Duration::from_secs(5), "{execution}: a call took {slowest:?}");
            server.assert_sound();
        }
    });
}

/// A client that sends one byte every 400 ms isn't rejected, and does not block other clients.
#[test]
fn a_command_may_arrive_over_several_seconds() {
    for_all_backends(|backend| {
        let mut server = Server::pantala(backend, &["--workers", "1"]);
        let (mut slow, mut other) = (server.connect(), server.connect());
        for byte in b"*1\r\n$4\r\nPING\r\n" {
            slow.send_raw(&[*byte]);
            let start = Instant::now();
            while start.elapsed() < Duration::from_millis(400) {
                assert_eq!(other.call("PING").text(), "PONG");
                std::thread::sleep(Duration::from_millis(50));
            }
        }
        assert_eq!(slow.receive().text(), "PONG");
        server.assert_sound();
    });
}

/// If an allocation fails, the command returns an error and changes nothing. Redis exits in this
/// case.
#[test]
fn a_failed_allocation_is_an_error() {
    for_each_backend(|backend| {
        let mut server = Server::pantala(backend, &["--workers", "1", "--shards", "2"]);
        let mut client = server.connect();
        assert_eq!(client.call("SET key value"), Reply::ok());
        assert_eq!(client.call("SETRANGE large 33554431 x"), Reply::Integer(32 * MIB as i64));
        let pid = Pid::from_raw(server.pid() as i32).expect("a process has an id");
        let status = std::fs::read_to_string(format!("/proc/{}/statm", server.pid())).expect("the server runs");
        let pages: u64 = status.split(' ').next().and_then(|word| word.parse().ok()).expect("its size");
        // With this limit, the process can still allocate buffers, but not a value of half a
        // gigabyte.
        let most = pages * 4096 + 128 * MIB;
        prlimit(Some(pid), Resource::As, Rlimit { current: Some(most), maximum: Some(most) }).expect("a limit");
        // The allocator reserved some address space before the limit was set. A few values fit into
        // it, so the test repeats the command until it fails.
        let refused =
            (0..20).map(|number| client.call(&format!("SETRANGE new:{number} 500000000 x"))).find(Reply::is_error);
        let refused = refused.expect("10 GB in 128 MB");
        assert!(refused.text().starts_with("OOM"), "{refused:?}");
        let grown = client.call("SETRANGE key 500000000 x");
        assert!(grown.is_error() && grown.text().starts_with("OOM"), "{grown:?}");
        assert_eq!(client.call("APPEND key x"), Reply::Integer(6), "small changes still work");
        assert_eq!(client.call("GET key").text(), "valuex");
        let Reply::Integer(keys) = client.call("DBSIZE") else { panic!("DBSIZE counts") };
        assert!(keys < 21, "a rejected command created its key");
        // The same applies to a reply that is too long to allocate, outside and within a
        // transaction.
        let many = format!("MGET{}", " large".repeat(40));
        let refused = client.call(&many);
        assert!(refused.is_error() && refused.text().starts_with("OOM"), "{:.100}", refused.text());
        for (command, reply) in [("MULTI", "OK"), (&many, "QUEUED"), ("GET key", "QUEUED")] {
            assert_eq!(client.call(command).text(), reply);
        }
        let replies = client.call("EXEC");
        assert!(replies.elements()[0].text().starts_with("OOM"));
        assert_eq!(replies.elements()[1].text(), "valuex");
        server.assert_sound();
    });
}
