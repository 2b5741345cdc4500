//! Attacks on the state of connections: buffers, blocked clients, encrypted clients, ports.

use std::time::Duration;

use pantala_tests::client::encode;
use pantala_tests::following::info;
use pantala_tests::server::free_port;
use pantala_tests::tls::{Certificates, Tunnel};
use pantala_tests::waiting::{PATIENCE, wait_until_blocked};
use pantala_tests::{Backend, Client, Random, Reply, Server, for_each_backend};

/// Sends bytes in pieces of random lengths.
fn send_in_pieces(client: &mut Client, random: &mut Random, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        let (piece, rest) = bytes.split_at(1 + random.below(bytes.len()));
        client.send_raw(piece);
        bytes = rest;
    }
}

/// CVE-2023-41056 and CVE-2025-49112: query and reply buffers that are resized while they contain
/// bytes. Clients also pause, because the buffers of idle clients shrink.
#[test]
fn buffers_that_grow_and_shrink_keep_their_bytes() {
    const CLIENTS: usize = 6;
    const ROUNDS: usize = 20;
    const MEMBERS: usize = 3000;
    /// Pause of a client. The pause is longer than the time after which Redis shrinks the buffers
    /// of an idle client.
    const IDLE: Duration = Duration::from_millis(2500);
    let mut random = Random::from_seed(Random::seed("buffers that grow and shrink"));
    for_each_backend(|backend| {
        let mut server = Server::pantala(backend, &["--workers", "2"]);
        let mut clients: Vec<Client> = (0..CLIENTS).map(|_| server.connect()).collect();
        let members: Vec<String> =
            (0..MEMBERS).map(|number| format!("{number:05}{}", "m".repeat(random.below(40)))).collect();
        let add = ["ZADD".to_owned(), "zset".to_owned()].into_iter();
        let add: Vec<String> = add.chain(members.iter().flat_map(|name| ["1".to_owned(), name.clone()])).collect();
        assert_eq!(clients[0].command(&add), Reply::Integer(MEMBERS as i64));
        for is_last in [false, true] {
            for (number, client) in clients.iter_mut().enumerate() {
                for _ in 0..ROUNDS {
                    // The lengths are near powers of two, at which buffers grow.
                    let length = (1 << (6 + random.below(15))) + random.below(80) - 40;
                    let (key, value, count) = (format!("key:{number}"), random.bytes(length), random.below(MEMBERS));
                    let range = format!("ZRANGE zset -inf +inf BYSCORE LIMIT 0 {count}");
                    let requests = [
                        encode(&[b"SET", key.as_bytes(), &value]),
                        encode(&range.split(' ').collect::<Vec<_>>()),
                        encode(&["GET", &key]),
                    ];
                    send_in_pieces(client, &mut random, &requests.concat());
                    assert_eq!(client.receive(), Reply::ok());
                    let shown: Vec<String> = client.receive().elements().iter().map(Reply::text).collect();
                    assert_eq!(shown, members[..count]);
                    assert!(client.receive() == Reply::Bulk(value), "{length} bytes were changed");
                }
            }
            if !is_last {
                std::thread::sleep(IDLE);
            }
        }
        server.assert_sound();
    });
}

/// CVE-2026-23479, and a similar defect that Redis 8.10.1 fixed. Several clients are blocked on a
/// key. A command serves some of them, and the others are evicted during this command.
#[test]
fn blocked_clients_are_evicted_while_others_are_served() {
    const CLIENTS: usize = 30;
    const ROUNDS: usize = 5;
    /// Length of another key for which each client waits. The key counts as memory of the client,
    /// which makes the client large enough for eviction.
    const KEY_BYTES: usize = 100_000;
    for_each_backend(|backend| {
        let mut server = Server::pantala(backend, &["--workers", "2", "--shards", "8"]);
        let mut control = server.connect();
        assert_eq!(control.call("CLIENT NO-EVICT on"), Reply::ok());
        for round in 0..ROUNDS {
            control.call("CONFIG SET maxmemory-clients 0");
            let mut waiters: Vec<Client> = (0..CLIENTS)
                .map(|number| {
                    let mut client = server.connect();
                    let long = "k".repeat(KEY_BYTES + number);
                    match round % 3 {
                        0 => client.send(&["BLPOP", "key", &long, "0"]),
                        1 => client.send(&["BLMPOP", "0", "2", &long, "key", "LEFT", "COUNT", "1"]),
                        _ => client.send(&["BZPOPMIN", "key", &long, "0"]),
                    }
                    client
                })
                .collect();
            wait_until_blocked(&mut control, CLIENTS);
            let limit = (KEY_BYTES * (1 + round * 4)).to_string();
            let is_sorted = round % 3 == 2;
            let mut push: Vec<String> = vec![if is_sorted { "ZADD" } else { "RPUSH" }.into(), "key".into()];
            for number in 0..CLIENTS {
                push.extend(is_sorted.then(|| number.to_string()));
                push.push(format!("element:{number}"));
            }
            let set = ["CONFIG", "SET", "maxmemory-clients", &limit].map(str::to_owned).to_vec();
            let replies = control.pipeline(&[set, push]);
            assert_eq!(replies[0], Reply::ok());
            assert_eq!(replies[1], Reply::Integer(CLIENTS as i64));
            // Each client is either served or evicted. None stays blocked.
            let served = waiters.iter_mut().filter_map(|client| client.try_receive().ok()).count();
            let left = control.call(if is_sorted { "ZCARD key" } else { "LLEN key" }).integer() as usize;
            assert!(served + left <= CLIENTS, "{served} served, {left} left");
            control.call("DEL key");
        }
        assert_ne!(info(&server, "stats", "evicted_clients"), "0");
        server.assert_sound();
    });
}

/// CVE-2026-130822: a writer is over the limit of all clients' memory and is evicted while its
/// transaction serves blocked clients. The transaction lowers the limit, so that the writer is
/// within the limit when `EXEC` starts.
#[test]
fn a_writer_is_evicted_while_it_serves_blocked_clients() {
    const CLIENTS: usize = 30;
    /// Number of channels to which the writer subscribes. They count as its memory, so only the
    /// writer uses more than the limit.
    const CHANNELS: usize = 30_000;
    const LIMIT: &str = "200000";
    // Each pair has a command that blocks, and a command that serves the blocked client. In the
    // third pair, each served client serves another one.
    let pairs = [
        ("BLPOP key 0", "RPUSH key element"),
        ("BZPOPMIN key 0", "ZADD key 1 NUMBER"),
        ("BLMOVE key next LEFT LEFT 0", "RPUSH key element"),
        ("XREAD BLOCK 0 STREAMS key 0", "XADD key * field value"),
    ];
    for_each_backend(|backend| {
        let mut server = Server::pantala(backend, &["--workers", "2", "--shards", "8"]);
        let mut control = server.connect();
        for (block, serve) in pairs {
            assert_eq!(control.call("CONFIG SET maxmemory-clients 0"), Reply::ok());
            let is_chain = block.starts_with("BLMOVE");
            let mut waiters: Vec<Client> = (0..CLIENTS).map(|_| server.connect()).collect();
            for (number, waiter) in waiters.iter_mut().enumerate() {
                let words = if is_chain && number % 2 == 1 { "BLPOP next 0" } else { block };
                waiter.send(&words.split(' ').collect::<Vec<_>>());
            }
            wait_until_blocked(&mut control, CLIENTS);
            let mut writer = server.connect();
            writer.send(&["HELLO", "3"]);
            writer.receive();
            let channels = (0..CHANNELS).map(|number| number.to_string());
            writer.send(&std::iter::once("SUBSCRIBE".to_owned()).chain(channels).collect::<Vec<_>>());
            (0..CHANNELS).for_each(|_| drop(writer.receive()));
            let mut commands = vec!["MULTI".to_owned(), format!("CONFIG SET maxmemory-clients {LIMIT}")];
            commands.extend((0..CLIENTS).map(|number| serve.replace("NUMBER", &number.to_string())));
            commands.push("EXEC".to_owned());
            let requests: Vec<u8> =
                commands.iter().flat_map(|words| encode(&words.split(' ').collect::<Vec<_>>())).collect();
            writer.send_raw(&requests);
            for waiter in &mut waiters {
                let reply = waiter.receive();
                assert!(!reply.is_error() && reply != Reply::Null, "{block}: {reply:?}");
            }
            assert!(writer.ends_within(PATIENCE), "{block}: the writer is not evicted");
            assert_eq!(control.call("CONFIG GET maxmemory-clients").elements()[1], Reply::bulk(LIMIT));
            control.call("DEL key next");
        }
        assert_eq!(info(&server, "stats", "evicted_clients"), pairs.len().to_string());
        server.assert_sound();
    });
}

/// CVE-2026-81934: a command of an encrypted client kills other clients of the same worker while
/// their decrypted bytes are not yet processed.
#[test]
fn encrypted_clients_kill_others_with_pending_bytes() {
    const CLIENTS: usize = 6;
    const ROUNDS: usize = 20;
    /// Number of PINGs before `CLIENT KILL`, and after it: so many that they fill several TLS
    /// records.
    const PINGS: usize = 5000;
    let Some(certificates) = Certificates::make() else { return };
    for_each_backend(|backend| {
        let tls_port = free_port();
        let args = certificates.server_args(tls_port, "server");
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let mut server = Server::pantala(backend, &[&args[..], &["--workers", "1"]].concat());
        let tunnel = Tunnel::open(tls_port, certificates.client_config(Some("client")), usize::MAX);
        let mut random = Random::from_seed(Random::seed("encrypted clients kill others"));
        for _ in 0..ROUNDS {
            let mut clients: Vec<Client> = (0..CLIENTS).map(|_| tunnel.connect()).collect();
            for client in &mut clients {
                assert_eq!(client.call("PING").text(), "PONG");
            }
            let killer = random.below(CLIENTS);
            for (number, client) in clients.iter_mut().enumerate() {
                let mut bytes = b"PING\r\n".repeat(PINGS);
                if number == killer {
                    bytes.extend_from_slice(b"CLIENT KILL TYPE normal SKIPME yes\r\n");
                }
                bytes.extend(b"PING\r\n".repeat(PINGS));
                // Clients that are killed while they send get an error.
                let _ = client.try_send_raw(&bytes);
            }
            let killer = &mut clients[killer];
            for number in 0..=2 * PINGS {
                let reply = killer.receive();
                assert!(if number == PINGS { reply.integer() > 0 } else { reply.text() == "PONG" }, "{reply:?}");
            }
        }
        assert_eq!(server.connect().call("PING").text(), "PONG");
        server.assert_sound();
    });
}

/// CVE-2026-21863 and CVE-2026-72568: messages of the cluster bus that declare parts beyond the end
/// of the message. Pantala has no cluster bus: its port is not open.
#[test]
fn no_cluster_bus_listens() {
    let port = free_port();
    let server = Server::pantala(Backend::Epoll, &["--cluster-enabled", "yes", "--cluster-port", &port.to_string()]);
    assert!(server.connect().call("CLUSTER NODES").text().contains(&format!("@{port}")));
    assert!(Client::try_tcp(port).is_err(), "the bus listens");
}
