//! Handshakes with an RSA key, whose signatures are made on a thread. The fault `held-handshake`
//! makes this thread wait.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use pantala_tests::server::free_port;
use pantala_tests::tls::{Certificates, Tunnel};
use pantala_tests::waiting::eventually;
use pantala_tests::{Backend, Client, Reply, Server, for_each_backend};
use rustix::process::Signal;

/// Maximum number of handshakes for each thread: the one that it performs, and those that wait.
const UNFINISHED_PER_THREAD: usize = 3;

/// Maximum number of handshake bytes that the server keeps.
const HANDSHAKE_BYTES_MAX: usize = 128 * 1024;

/// Maximum duration of a handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// A time in which a server on a busy host finishes a handshake, unless the handshake is held.
const LONG: Duration = Duration::from_millis(300);

/// Starts a server with one worker, an encrypted port and the certificate `name`.
fn start(backend: Backend, certificates: &Certificates, name: &str) -> (Server, Tunnel, u16) {
    let port = free_port();
    let mut args = certificates.server_args(port, name);
    args.extend(["--tls-auth-clients", "no", "--workers", "1"].map(str::to_owned));
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let server = Server::pantala(backend, &args);
    let tunnel = Tunnel::open(port, certificates.client_config(None), usize::MAX);
    (server, tunnel, port)
}

fn hold(admin: &mut Client, is_held: bool) {
    let permille = if is_held { 1000 } else { 0 };
    assert_eq!(admin.call(&format!("DEBUG FAULT held-handshake {permille}")), Reply::ok());
}

fn clients(admin: &mut Client) -> usize {
    let text = admin.call("CLIENT LIST").text();
    text.lines().count()
}

/// Returns the CPU time of the worker's longest turn, µs.
fn longest_turn_cpu_us(admin: &mut Client) -> u64 {
    let text = admin.call("INFO workers").text();
    let (_, rest) = text.split_once("longest_turn_cpu_us=").expect("it is shown");
    rest.split(|c: char| !c.is_ascii_digit()).next().and_then(|digits| digits.parse().ok()).expect("a number")
}

/// Returns the bytes of a client's first flight.
fn hello(certificates: &Certificates) -> Vec<u8> {
    let name = "localhost".try_into().expect("a name");
    let mut client = rustls::ClientConnection::new(certificates.client_config(None), name).expect("a client");
    let mut bytes = Vec::new();
    client.write_tls(&mut bytes).expect("memory takes everything");
    bytes
}

/// While a thread performs a handshake, the worker serves its other clients. If more clients
/// connect than may wait for the thread, the worker performs their handshakes.
#[test]
fn a_signature_delays_no_other_client() {
    let Some(certificates) = Certificates::make() else { return };
    for_each_backend(|backend| {
        let (mut server, tunnel, _) = start(backend, &certificates, "rsa");
        let mut plain = server.connect();
        hold(&mut plain, true);
        let mut held: Vec<Client> = Vec::new();
        for _ in 0..UNFINISHED_PER_THREAD {
            let mut client = tunnel.connect();
            client.send(&["INCR", "n"]);
            held.push(client);
        }
        eventually("they have arrived", || clients(&mut plain) == UNFINISHED_PER_THREAD + 1);
        std::thread::sleep(LONG);
        for _ in 0..100 {
            assert_eq!(plain.call("PING").text(), "PONG");
        }
        assert_eq!(plain.call("EXISTS n"), Reply::Integer(0), "the thread is held");
        assert_eq!(tunnel.connect().call("PING").text(), "PONG", "the worker performs this handshake");
        hold(&mut plain, false);
        let mut replies: Vec<i64> = held.iter_mut().map(|client| client.receive().integer()).collect();
        replies.sort_unstable();
        assert_eq!(replies, [1, 2, 3]);
        server.assert_sound();
    });
}

/// A hundred clients start a handshake in the same turn (iteration of the worker's event loop). The
/// turn ends after a few signatures, whether or not a thread performs some of them.
#[test]
fn a_turn_contains_few_signatures() {
    const CLIENTS: usize = 100;
    /// CPU time of 20 signatures with an RSA key of 2048 bits on a slow CPU, µs.
    const TURN_US_MAX: u64 = 20_000;
    let Some(certificates) = Certificates::make() else { return };
    let first = hello(&certificates);
    for_each_backend(|backend| {
        let (mut server, _, port) = start(backend, &certificates, "rsa");
        let mut plain = server.connect();
        plain.call("CONFIG SET latency-monitor-threshold 1000");
        for threads in ["0", "1"] {
            plain.call(&format!("CONFIG SET tls-handshake-threads {threads}"));
            plain.call("CONFIG RESETSTAT");
            server.signal(Signal::STOP);
            let mut sockets: Vec<TcpStream> = (0..CLIENTS)
                .map(|_| {
                    let mut socket = TcpStream::connect(("127.0.0.1", port)).expect("the server listens");
                    socket.write_all(&first).expect("there is room");
                    socket
                })
                .collect();
            server.signal(Signal::CONT);
            for socket in &mut sockets {
                socket.read_exact(&mut [0]).expect("the server's first flight");
            }
            let longest_us = longest_turn_cpu_us(&mut plain);
            assert!((1..TURN_US_MAX).contains(&longest_us), "{threads} threads: {longest_us}");
            drop(sockets);
            eventually("they are closed", || clients(&mut plain) == 1);
        }
        server.assert_sound();
    });
}

/// The signature of an ECDSA key is faster than a hand-over to another thread.
#[test]
fn a_worker_performs_handshakes_with_an_ecdsa_key() {
    let Some(certificates) = Certificates::make() else { return };
    for_each_backend(|backend| {
        let (mut server, tunnel, _) = start(backend, &certificates, "server");
        hold(&mut server.connect(), true);
        assert_eq!(tunnel.connect().call("PING").text(), "PONG");
        assert_eq!(server.threads("pantala-tls"), 0);
        server.assert_sound();
    });
}

/// A client disconnects, is killed, or sends too much, while a thread performs its handshake.
#[test]
fn connections_close_while_a_thread_performs_their_handshakes() {
    let Some(certificates) = Certificates::make() else { return };
    for_each_backend(|backend| {
        let (mut server, tunnel, port) = start(backend, &certificates, "rsa");
        let mut plain = server.connect();
        let first = hello(&certificates);
        for round in 0..3 {
            hold(&mut plain, true);
            let mut socket = TcpStream::connect(("127.0.0.1", port)).expect("the server listens");
            socket.write_all(&first).expect("the server reads");
            eventually("it has arrived", || clients(&mut plain) == 2);
            std::thread::sleep(LONG / 3);
            match round {
                0 => drop(socket),
                1 => {
                    let line = plain.call("CLIENT LIST").text();
                    let own = plain.call("CLIENT ID").integer();
                    let ids = line.lines().filter_map(|line| line.split_whitespace().next()?.strip_prefix("id="));
                    let other = ids.map(|id| id.parse::<i64>().expect("a number")).find(|id| *id != own);
                    let killed = plain.call(&format!("CLIENT KILL ID {}", other.expect("two clients")));
                    assert_eq!(killed, Reply::Integer(1));
                }
                _ => {
                    let more = vec![0; HANDSHAKE_BYTES_MAX + 1];
                    // The server may close the connection before it has received everything.
                    let _ = socket.write_all(&more);
                }
            }
            eventually("the connection is closed", || clients(&mut plain) == 1);
            hold(&mut plain, false);
            assert_eq!(tunnel.connect().call("PING").text(), "PONG");
            eventually("it is closed", || clients(&mut plain) == 1);
        }
        server.assert_sound();
    });
}

/// Bytes that arrive while a thread performs the handshake are processed after it. These are
/// invalid, so the client gets an alert after the server's first flight.
#[test]
fn bytes_that_arrive_during_a_handshake_are_not_lost() {
    let Some(certificates) = Certificates::make() else { return };
    for_each_backend(|backend| {
        let (mut server, _, port) = start(backend, &certificates, "rsa");
        let mut plain = server.connect();
        hold(&mut plain, true);
        let mut socket = TcpStream::connect(("127.0.0.1", port)).expect("the server listens");
        socket.write_all(&hello(&certificates)).expect("the server reads");
        std::thread::sleep(LONG);
        // A record of application data that can't be decrypted.
        socket.write_all(&[&[23, 3, 3, 0, 32][..], &[7; 32]].concat()).expect("the server reads");
        std::thread::sleep(LONG);
        hold(&mut plain, false);
        let begin = Instant::now();
        let mut reply = Vec::new();
        match socket.read_to_end(&mut reply) {
            Ok(_) => {}
            Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
        }
        // Without the invalid bytes, the server would wait for the rest of the handshake.
        assert!(begin.elapsed() < HANDSHAKE / 2, "{:?}", begin.elapsed());
        eventually("the connection is closed", || clients(&mut plain) == 1);
        server.assert_sound();
    });
}

/// A record may contain only the start of a message. The thread can't continue with it, and must
/// not try again until more bytes arrive.
#[test]
fn an_incomplete_message_uses_no_cpu_time() {
    /// Maximum CPU time of the waiting server, as a part of the time that passes.
    const SHARE_MAX: f64 = 0.2;
    let Some(certificates) = Certificates::make() else { return };
    for_each_backend(|backend| {
        let (mut server, _, port) = start(backend, &certificates, "rsa");
        let first = hello(&certificates);
        // The same message in two records, the first of which has 14 bytes.
        let message = &first[5..];
        let records = [&message[..14], &message[14..]].map(|part| [&[22, 3, 1, 0, 0], part].concat());
        let records = records.map(|mut record| {
            let length = (record.len() - 5) as u16;
            record[3..5].copy_from_slice(&length.to_be_bytes());
            record
        });
        let mut socket = TcpStream::connect(("127.0.0.1", port)).expect("the server listens");
        socket.write_all(&records[0]).expect("the server reads");
        std::thread::sleep(LONG);
        let before = server.cpu_time();
        std::thread::sleep(LONG);
        let share = (server.cpu_time() - before).as_secs_f64() / LONG.as_secs_f64();
        assert!(share < SHARE_MAX, "{share}");
        socket.write_all(&records[1]).expect("the server reads");
        socket.read_exact(&mut [0]).expect("the server's first flight");
        server.assert_sound();
    });
}

#[test]
fn the_number_of_threads_changes_at_run_time() {
    let Some(certificates) = Certificates::make() else { return };
    for_each_backend(|backend| {
        let (mut server, tunnel, _) = start(backend, &certificates, "rsa");
        let mut plain = server.connect();
        assert_eq!(server.threads("pantala-tls"), 0, "a thread starts with the first handshake");
        let mut open = tunnel.connect();
        assert_eq!(open.call("PING").text(), "PONG");
        assert_eq!(server.threads("pantala-tls"), 1);
        assert_eq!(plain.call("CONFIG SET tls-handshake-threads 3"), Reply::ok());
        for _ in 0..3 {
            assert_eq!(tunnel.connect().call("PING").text(), "PONG");
        }
        assert_eq!(server.threads("pantala-tls"), 3);
        hold(&mut plain, true);
        assert_eq!(plain.call("CONFIG SET tls-handshake-threads 0"), Reply::ok());
        eventually("the threads end", || server.threads("pantala-tls") == 0);
        assert_eq!(tunnel.connect().call("PING").text(), "PONG", "the worker performs this handshake");
        assert_eq!(open.call("PING").text(), "PONG", "connections stay open");
        server.assert_sound();
    });
}
