//! Connections move between workers: by their load, and, with a fault, after every command.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use pantala_tests::server::free_port;
use pantala_tests::tls::{Certificates, Tunnel};
use pantala_tests::waiting::eventually;
use pantala_tests::{Client, Reply, Server, for_each_backend};

/// Sets a flag when it is dropped.
struct OnDrop<'f>(&'f AtomicBool);

impl Drop for OnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Returns a field of each worker in `INFO`.
fn of_workers(client: &mut Client, field: &str) -> Vec<u64> {
    let info = client.call("INFO workers").text();
    let name = format!("{field}=");
    info.split(&name).skip(1).map(|rest| rest.split(',').next().expect("a value").parse().expect("a number")).collect()
}

/// Returns the number of times that connections have moved.
fn moves(client: &mut Client) -> u64 {
    of_workers(client, "moved").iter().sum()
}

/// Makes every connection move after each turn in which it takes part. Returns false if the server
/// injects no faults.
fn move_always(client: &mut Client) -> bool {
    client.call("DEBUG FAULT move-connection 1000") == Reply::ok()
}

#[test]
fn a_saturated_worker_gives_connections_to_idle_workers() {
    for_each_backend(|backend| {
        let args = ["--workers", "3", "--packed-connections", "8", "--move-connections", "yes"];
        let mut server = Server::pantala(backend, &args);
        let mut watcher = server.connect();
        assert_eq!(of_workers(&mut watcher, "connections"), [1, 0, 0], "the first connections share a worker");
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            // The clients must end even if the test fails.
            let ends = OnDrop(&is_over);
            for number in 0..6 {
                let mut client = server.connect();
                let is_over = &is_over;
                scope.spawn(move || {
                    // The commands take long, so that the worker always has another one to run,
                    // even if other programs use the CPUs too.
                    client.set_read_timeout(Duration::from_secs(60));
                    client.call(&format!("SETBIT k{number} 40000000 1"));
                    while !is_over.load(Relaxed) {
                        assert_eq!(client.call(&format!("BITCOUNT k{number}")), Reply::Integer(1));
                    }
                });
            }
            eventually("all workers have connections", || {
                of_workers(&mut watcher, "connections").iter().all(|count| *count > 0)
            });
            drop(ends);
        });
        server.assert_sound();
    });
}

#[test]
fn connections_with_little_to_do_share_a_worker() {
    for_each_backend(|backend| {
        let mut server = Server::pantala(backend, &["--workers", "3"]);
        let mut clients: Vec<Client> = (0..9).map(|_| server.connect()).collect();
        clients.iter_mut().for_each(|client| assert_eq!(client.call("PING"), Reply::Simple("PONG".into())));
        assert_eq!(of_workers(&mut clients[0], "connections"), [3, 3, 3], "connections begin spread");
        clients[0].call("CONFIG SET move-connections yes");
        // This connection must stay on its worker, because the subscription refers to that worker.
        clients[1].call("HELLO 3");
        clients[1].call("SUBSCRIBE channel");
        eventually("the first worker has all connections but one", || {
            thread::sleep(Duration::from_millis(20));
            clients.iter_mut().for_each(|client| {
                client.call("GET key");
            });
            let counts = of_workers(&mut clients[0], "connections");
            counts[0] == 8 && counts.iter().sum::<u64>() == 9
        });
        assert_eq!(clients[0].call("PUBLISH channel message"), Reply::Integer(1));
        assert!(clients[1].has_reply_within(Duration::from_secs(10)), "the subscriber gets the message");
        server.assert_sound();
    });
}

#[test]
fn a_connection_keeps_its_state_when_it_moves() {
    for_each_backend(|backend| {
        let mut server = Server::pantala(backend, &["--workers", "3"]);
        let mut client = server.connect();
        if !move_always(&mut client) {
            return;
        }
        client.call("ACL SETUSER alice on >secret +@all ~a* ~b* &*");
        assert_eq!(client.call("AUTH alice secret"), Reply::ok());
        client.call("CLIENT SETNAME mover");
        client.call("HELLO 3");
        client.call("SELECT 3");
        let id = client.call("CLIENT ID");
        let before = moves(&mut client);
        for round in 0..50 {
            assert_eq!(client.call(&format!("SET a{round} {round}")), Reply::ok());
            assert_eq!(client.call(&format!("GET a{round}")), Reply::bulk(round.to_string()));
            assert_eq!(client.call("CLIENT GETNAME"), Reply::bulk("mover"));
            assert_eq!(client.call("CLIENT ID"), id);
            assert!(client.call("GET c").text().starts_with("NOPERM"), "round {round}: alice may not read c");
            // The connection stays on its worker while it watches a key, is within a transaction,
            // is subscribed or is blocked. Afterwards it moves again.
            client.call(&format!("WATCH b{round}"));
            client.call("MULTI");
            client.call(&format!("SET b{round} x"));
            assert_eq!(client.call("EXEC"), Reply::Array(vec![Reply::ok()]), "round {round}");
            client.call("SUBSCRIBE channel");
            client.call("UNSUBSCRIBE channel");
            client.call(&format!("RPUSH alist {round}"));
            assert_eq!(client.call("BLPOP alist 1").elements()[1], Reply::bulk(round.to_string()));
            let info = client.call("CLIENT INFO").text();
            assert!(info.contains("db=3") && info.contains("user=alice") && info.contains("resp=3"), "{info}");
        }
        assert!(moves(&mut client) > before + 100, "the connection has moved");
        server.assert_sound();
    });
}

#[test]
fn moving_connections_can_be_listed_and_killed() {
    for_each_backend(|backend| {
        let mut server = Server::pantala(backend, &["--workers", "3"]);
        let mut watcher = server.connect();
        if !move_always(&mut watcher) {
            return;
        }
        for round in 0..30 {
            let mut client = server.connect();
            let id = client.call("CLIENT ID").integer();
            let killed = thread::spawn(move || {
                // The connection moves after each command, until it is closed.
                while client.try_send_raw(b"PING\r\n").is_ok() && client.try_receive().is_ok() {}
            });
            thread::sleep(Duration::from_millis(round % 5));
            for _ in 0..20 {
                let list = watcher.call("CLIENT LIST").text();
                assert!(list.contains(&format!("id={id} ")), "round {round}: a moving client is listed");
            }
            assert_eq!(watcher.call(&format!("CLIENT KILL ID {id}")), Reply::Integer(1), "round {round}");
            eventually("the client's connection is closed", || killed.is_finished());
            killed.join().expect("the client");
        }
        server.assert_sound();
    });
}

#[test]
fn redirected_invalidations_reach_a_moving_client() {
    for_each_backend(|backend| {
        let mut server = Server::pantala(backend, &["--workers", "3"]);
        let (mut reader, mut writer) = (server.connect(), server.connect());
        if !move_always(&mut writer) {
            return;
        }
        for round in 0..100 {
            let mut target = server.connect();
            target.call("HELLO 3");
            let id = target.call("CLIENT ID").integer();
            // The connection moves to another worker after this command. So it may belong to no
            // worker at the moment when an invalidation is sent to it.
            target.send_raw(b"PING\r\n");
            let track = format!("CLIENT TRACKING ON REDIRECT {id}\r\nGET key{round}\r\n");
            reader.send_raw(track.as_bytes());
            assert_eq!([reader.receive(), reader.receive()], [Reply::ok(), Reply::Null], "round {round}");
            writer.call(&format!("SET key{round} x"));
            let received = [target.receive(), target.receive()];
            let is_there = received.iter().any(|reply| matches!(reply, Reply::Push(_)));
            assert!(is_there, "round {round}: an invalidation is received: {received:?}");
            reader.call("CLIENT TRACKING OFF");
        }
        server.assert_sound();
    });
}

/// A connection is about to move when its script becomes busy. Commands that arrive during the
/// script are not lost.
#[test]
fn a_connection_that_is_about_to_leave_keeps_its_input_during_its_script() {
    const GETS: usize = 5;
    const SPIN: &str = "local function now() local t = redis.call('TIME') return t[1] * 1000 + t[2] / 1000 end \
                        local stop = now() + 300 while now() < stop do end return 'done'";
    for_each_backend(|backend| {
        let mut server = Server::pantala(backend, &["--workers", "3", "--busy-reply-threshold", "20"]);
        let mut client = server.connect();
        client.command(&["SET", "large", &"x".repeat(200_000)]);
        if !move_always(&mut client) {
            return;
        }
        for round in 0..3 {
            client.set_read_timeout(Duration::from_secs(20));
            // After a large reply, the connection lets other connections run. At that moment it is
            // chosen to move, although it has more input.
            client.send_raw("GET large\r\n".repeat(GETS).as_bytes());
            client.send(&["EVAL", SPIN, "0"]);
            thread::sleep(Duration::from_millis(150));
            client.send_raw(b"ECHO first\r\n");
            thread::sleep(Duration::from_millis(50));
            client.send_raw(b"ECHO second\r\n");
            for _ in 0..GETS {
                assert_eq!(client.receive().text().len(), 200_000);
            }
            let replies = [client.receive(), client.receive(), client.receive()];
            assert_eq!(replies, ["done", "first", "second"].map(Reply::bulk), "round {round}");
        }
        server.assert_sound();
    });
}

#[test]
fn no_connection_moves_to_a_worker_that_runs_a_long_command() {
    for_each_backend(|backend| {
        let server = Server::pantala(backend, &["--workers", "2"]);
        let (mut first, mut second) = (server.connect(), server.connect());
        first.call("PING");
        second.call("PING");
        first.call("CONFIG SET move-connections yes");
        first.set_read_timeout(Duration::from_secs(30));
        let spin = "local function now() local t = redis.call('TIME') return t[1] * 1000 + t[2] / 1000 end \
                    local stop = now() + 3000 while now() < stop do end";
        first.send(&["EVAL", spin, "0"]);
        let mut longest = Duration::ZERO;
        let began = Instant::now();
        while began.elapsed() < Duration::from_millis(2500) {
            let sent = Instant::now();
            second.call("PING");
            longest = longest.max(sent.elapsed());
            thread::sleep(Duration::from_millis(10));
        }
        assert!(longest < Duration::from_secs(1), "a PING on the other worker took {longest:?}");
        assert_eq!(first.receive(), Reply::Null);
    });
}

#[test]
fn encrypted_connections_move() {
    let Some(certificates) = Certificates::make() else { return };
    for_each_backend(|backend| {
        let port = free_port();
        let args = certificates.server_args(port, "server");
        let mut args: Vec<&str> = args.iter().map(String::as_str).collect();
        args.extend(["--workers", "3"]);
        let mut server = Server::pantala(backend, &args);
        let mut plain = server.connect();
        if !move_always(&mut plain) {
            return;
        }
        let tunnel = Tunnel::open(port, certificates.client_config(Some("client")), usize::MAX);
        let mut client = tunnel.connect();
        let before = moves(&mut plain);
        for round in 0..100 {
            let value = "v".repeat(1 + round * 700);
            assert_eq!(client.command(&["SET", "key", &value]), Reply::ok(), "round {round}: {}", tunnel.failure());
            assert_eq!(client.command(&["GET", "key"]), Reply::bulk(value), "round {round}");
        }
        assert!(moves(&mut plain) > before + 50, "the encrypted connection has moved");
        server.assert_sound();
    });
}
