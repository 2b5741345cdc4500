//! Protected mode and clients of other hosts, in a network namespace. In the namespace, the
//! loopback interface has additional addresses. To the server, a connection between two of these
//! addresses looks like a connection from another host, because neither is a loopback address. Each
//! test starts itself again in the namespace.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use pantala_tests::namespace::{self, V6};
use pantala_tests::tls::{Certificates, Tunnel};
use pantala_tests::{Backend, Client, Reply, Server, for_each_backend, server};

const PATIENCE: Duration = Duration::from_secs(20);
/// Maximum duration of the tests in the namespace.
const INNER_MAX: Duration = Duration::from_secs(120);

const V4: &str = namespace::V4[0];

/// Runs the test `name` of this module again in a namespace. Returns `true` when that run has
/// passed, or if no namespace can be created: the caller then returns. Returns `false` if the
/// caller is itself that run: it then runs the test's body.
fn is_run_in_namespace(name: &str) -> bool {
    namespace::is_run_inside(&format!("remote_hosts::{name}"), INNER_MAX)
}

/// Sends commands from an address to a port of the same address. Returns the bytes received until
/// the server closes the connection or a line has ended.
fn first_line(address: &str, port: u16) -> String {
    let ip: IpAddr = address.parse().expect("an address");
    let mut stream = std::net::TcpStream::connect(SocketAddr::from((ip, port))).expect("the server listens");
    let peer = stream.local_addr().expect("it is bound").ip();
    assert_eq!(peer, ip, "the client has the address of the server");
    stream.set_read_timeout(Some(PATIENCE)).expect("set a timeout");
    // The server may already have closed the connection.
    let _ = stream.write_all(b"INCR guests\r\n");
    let (mut line, mut byte) = (Vec::new(), [0]);
    while !line.ends_with(b"\r\n") && stream.read(&mut byte).is_ok_and(|length| length == 1) {
        line.push(byte[0]);
    }
    String::from_utf8_lossy(&line).trim_end().to_owned()
}

/// Returns the numbers of connections that were rejected and admitted.
fn connection_counts(admin: &mut Client) -> [u64; 2] {
    let text = admin.call("INFO stats").text();
    ["rejected_connections:", "total_connections_received:"].map(|field| {
        let count = text.lines().find_map(|line| line.strip_prefix(field));
        count.and_then(|count| count.parse().ok()).expect("a number")
    })
}

/// Returns the addresses of the namespace: one, or two if this host has IPv6.
fn addresses() -> Vec<&'static str> {
    let is_there = |address: &&str| std::net::TcpListener::bind((*address, 0)).is_ok();
    let found: Vec<&str> = [V4, V6].into_iter().filter(is_there).collect();
    assert_eq!(found.first(), Some(&V4));
    found
}

#[test]
fn protected_mode_rejects_other_hosts() {
    if is_run_in_namespace("protected_mode_rejects_other_hosts") {
        return;
    }
    // Commands of an administrator, and the first word of the reply that a client of another host
    // gets after each of them.
    let steps = [
        ("PING", "-DENIED"),
        ("CONFIG SET protected-mode no", ":1"),
        ("CONFIG SET protected-mode yes", "-DENIED"),
        ("CONFIG SET requirepass secret", "-NOAUTH"),
        ("CONFIG SET requirepass \"\"", "-DENIED"),
        ("ACL SETUSER default >other", "-NOAUTH"),
        ("ACL SETUSER default off", "-NOAUTH"),
        ("ACL SETUSER default on nopass", "-DENIED"),
        ("ACL SETUSER ann on >pw +@all", "-DENIED"),
    ];
    let check = |server: &Server| {
        let mut admin = server.connect();
        for (command, word) in steps {
            let words: Vec<&str> = command.split(' ').map(|word| word.trim_matches('"')).collect();
            assert!(!admin.command(&words).is_error(), "{command}");
            for address in addresses() {
                admin.call("DEL guests");
                let [rejected, received] = connection_counts(&mut admin);
                let line = first_line(address, server.port());
                let is_rejected = u64::from(word == "-DENIED");
                let expected = [rejected + is_rejected, received + 1 - is_rejected];
                assert_eq!(connection_counts(&mut admin), expected, "{address} after {command}");
                assert_eq!(line.split(' ').next(), Some(word), "{address} after {command}: {line}");
                let is_run = admin.call("EXISTS guests") == Reply::Integer(1);
                assert_eq!(is_run, word == ":1", "{address} after {command}: {line}");
            }
        }
    };
    for_each_backend(|backend| {
        let mut server = Server::pantala(backend, &["--workers", "2", "--loglevel", "verbose"]);
        check(&server);
        assert!(server.log().contains(&format!("Rejected {V4}:")), "{}", server.log());
        server.assert_sound();
        // Clients of this host are accepted at all of its loopback addresses.
        assert_eq!(first_line("127.0.0.1", server.port()), ":1");
        if addresses().len() > 1 {
            assert_eq!(first_line("::1", server.port()), ":2");
        }
    });
    if let Some(redis) = Server::redis(&[]) {
        check(&redis);
    }
}

/// Over TLS, a rejected host receives nothing, and none of its commands runs, although its
/// certificate is valid.
#[test]
fn protected_mode_rejects_other_hosts_over_tls() {
    if is_run_in_namespace("protected_mode_rejects_other_hosts_over_tls") {
        return;
    }
    let Some(certificates) = Certificates::make() else { return };
    for_each_backend(|backend| {
        let port = server::free_port();
        let args = certificates.server_args(port, "server");
        let server = Server::pantala(backend, &args.iter().map(String::as_str).collect::<Vec<_>>());
        let mut admin = server.connect();
        let config = certificates.client_config(Some("client"));
        let tunnel = Tunnel::open_to((V4, port), config, usize::MAX);
        for (mode, is_run) in [("yes", false), ("no", true)] {
            assert_eq!(admin.call(&format!("CONFIG SET protected-mode {mode}")), Reply::ok());
            let mut client = tunnel.connect();
            client.send(&["SET", "guest", "1"]);
            if is_run {
                assert_eq!(client.receive(), Reply::ok());
            } else {
                assert_eq!(client.read_to_end(), b"");
            }
            assert_eq!(admin.call("EXISTS guest") == Reply::Integer(1), is_run, "protected-mode {mode}");
        }
    });
}

/// A server that is bound to one address doesn't listen on the other addresses.
#[test]
fn only_bound_addresses_listen() {
    if is_run_in_namespace("only_bound_addresses_listen") {
        return;
    }
    let server = Server::pantala(Backend::Epoll, &["--bind", "127.0.0.1"]);
    for address in addresses() {
        let ip: IpAddr = address.parse().expect("an address");
        assert!(std::net::TcpStream::connect((ip, server.port())).is_err(), "{address}");
    }
    assert_eq!(server.connect().call("PING").text(), "PONG");
}
