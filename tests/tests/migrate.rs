//! `MIGRATE` between Pantala and redis-server, in both directions. The replies, and the server on
//! which each key is at the end, are the same as between two redis-servers. Also tests targets that
//! reject keys, stop midway, or never reply.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use pantala_tests::waiting::pantalas;
use pantala_tests::{Backend, Client, Server, for_each_form};

/// Commands in order. The first letter names the server: the source (`s`), the target (`t`), or the
/// target without a comparison of the reply (`T`). `@` is replaced by host and port of the target.
const SCENES: &[&str] = &[
    // Single keys, then several keys of all types.
    "s SET string value",
    "s SET number 17 PX 100000000",
    "s RPUSH list a b c",
    "s SADD set a b 1",
    "s HSET hash field value",
    "s ZADD zset 1 a 2.5 b",
    "s XADD stream 1-1 field value",
    "s MIGRATE @ string 0 5000",
    "s EXISTS string",
    "t GET string",
    "s MIGRATE @ number 0 5000",
    "t GET number",
    "t OBJECT ENCODING number",
    "s MIGRATE @ \"\" 3 5000 KEYS list set none hash zset stream",
    "s DBSIZE",
    "t DBSIZE",
    "t SELECT 3",
    "t DBSIZE",
    "t LRANGE list 0 -1",
    "t XRANGE stream - +",
    "t ZRANGE zset 0 -1 WITHSCORES",
    "t SELECT 0",
    // Keys that exist on the target are not moved. The other keys of the command are moved.
    "s MSET a 1 b 2 c 3",
    "t SET b there",
    "s MIGRATE @ \"\" 0 5000 KEYS a b c",
    "s MGET a b c",
    "t MGET a b c",
    "s MIGRATE @ b 0 5000 REPLACE",
    "s MGET a b c",
    "t GET b",
    "s SET copied here",
    "s MIGRATE @ copied 0 5000 COPY",
    "s MIGRATE @ copied 0 5000 COPY",
    "s MIGRATE @ copied 0 5000 copy replace",
    "s GET copied",
    "t GET copied",
    // The key doesn't exist, so nothing is sent.
    "s MIGRATE @ none 0 5000",
    "s MIGRATE @ \"\" 0 5000",
    "s MIGRATE @ \"\" 0 5000 KEYS",
    "s MIGRATE @ \"\" 0 5000 KEYS none never",
    // A command names the same key twice.
    "s SET twice 1",
    "s MIGRATE @ \"\" 0 5000 KEYS twice twice",
    "s EXISTS twice",
    "t GET twice",
    // The target has no such database.
    "s SET far 1",
    "s MIGRATE @ far 99 5000",
    "s EXISTS far",
    "t EXISTS far",
    // Commands with an unnecessary password, a wrong one, the right one, and none.
    "s MIGRATE @ far 0 5000 AUTH secret",
    "s EXISTS far",
    "t DEL far",
    "t CONFIG SET requirepass secret",
    // Redis caches the connection to the target, and the next `MIGRATE` on it would need no
    // password. The connections are therefore closed between the commands.
    "T CLIENT KILL TYPE normal",
    "s MIGRATE @ far 0 5000",
    "s MIGRATE @ far 0 5000 AUTH wrong",
    "s MIGRATE @ far 0 5000 AUTH2 default wrong",
    "s EXISTS far",
    "s MIGRATE @ far 0 5000 AUTH2 default secret",
    "T CLIENT KILL TYPE normal",
    "s EXISTS far",
    "s SET far 2",
    "s MIGRATE @ far 0 5000 REPLACE AUTH secret",
    "s EXISTS far",
    "t GET far",
    "t CONFIG SET requirepass nothing",
    // The command is called in a transaction, and by a script that doesn't declare the keys.
    "t CONFIG SET requirepass \"\"",
    "s MSET m 1 n 2",
    "s MULTI",
    "s SET m 3",
    "s MIGRATE @ \"\" 0 5000 KEYS m n",
    "s EXISTS m n",
    "s EXEC",
    "t MGET m n",
    "s MSET o 1 p 2",
    "s EVAL redis.call('SET',KEYS[1],'x');return{redis.call('MIGRATE',ARGV[1],ARGV[2],'',0,5000,'KEYS','o','p')} 1 o @",
    "s EXISTS o p",
    "t MGET o p",
    // Syntax errors, unreachable targets, and the keys that COMMAND GETKEYS finds.
    "s MIGRATE @ a 0",
    "s MIGRATE @ a x 5000",
    "s MIGRATE @ a 0 x",
    "s MIGRATE @ a x x",
    "s MIGRATE @ a 0 5000 FAST",
    "s MIGRATE @ a 0 5000 AUTH",
    "s MIGRATE @ a 0 5000 AUTH2 user",
    "s MIGRATE @ a 0 5000 KEYS b",
    "s MIGRATE 127.0.0.1 1 string 0 100",
    "s MIGRATE 127.0.0.1 1 copied 0 100",
    "s MIGRATE nowhere.invalid 1 copied 0 100",
    "s COMMAND GETKEYS MIGRATE @ a 0 5000",
    "s COMMAND GETKEYS MIGRATE @ \"\" 0 5000 COPY AUTH KEYS KEYS b c",
    "s COMMAND GETKEYS MIGRATE @ a 0 5000 KEYS b c",
    "s COMMAND GETKEYS MIGRATE @ a 0 5000 KEYS",
    "s COMMAND GETKEYS MIGRATE @ \"\" 0 5000 KEYS",
    "s COMMAND GETKEYS MIGRATE @ \"\" 0 5000 AUTH KEYS KEYS",
    "s COMMAND GETKEYS MIGRATE @ \"\" 0 5000 KEYS KEYS",
    "s COMMAND GETKEYSANDFLAGS MIGRATE @ \"\" 0 5000 REPLACE AUTH2 u KEYS KEYS b",
];

/// Runs [`SCENES`] and returns the servers' replies, one line each.
fn play(source: &Server, target: &Server) -> Vec<String> {
    let (mut from, mut to) = (source.connect(), target.connect());
    let address = format!("127.0.0.1 {}", target.port());
    let mut lines = Vec::new();
    for scene in SCENES {
        let (server, command) = scene.split_once(' ').expect("a server and a command");
        let words: Vec<String> = command
            .replace('@', &address)
            .split(' ')
            .map(|word| if word == "\"\"" { "" } else { word }.into())
            .collect();
        let reply = if server == "s" { from.command(&words) } else { to.command(&words) };
        if server != "T" {
            lines.push(format!("{scene} -> {reply:?}"));
        }
    }
    lines
}

#[test]
fn keys_move_as_between_two_redis_servers() {
    let (Some(one), Some(two)) = (Server::redis(&[]), Server::redis(&[])) else { return };
    let right = play(&one, &two);
    for_each_form(|backend, execution| {
        let pantala = || Server::pantala(backend, &["--workers", "2", "--shards", "8", "--execution", execution]);
        let redis = || Server::redis(&[]).expect("started before");
        for (mut source, mut target) in [(pantala(), pantala()), (pantala(), redis()), (redis(), pantala())] {
            let given = play(&source, &target);
            for (given, right) in given.iter().zip(&right) {
                assert_eq!(given, right);
            }
            source.assert_sound();
            target.assert_sound();
        }
    });
}

/// Starts a target, and returns its port. The target reads until it has received `restores`
/// `RESTORE` commands, sends `answer`, waits for the time `wait`, and closes the connection. The
/// target accepts two connections, because Redis may retry once.
fn scripted(restores: usize, answer: &'static str, wait: Duration) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("it is bound").port();
    std::thread::spawn(move || {
        for stream in listener.incoming().take(2).flatten() {
            serve(stream, restores, answer, wait);
        }
    });
    port
}

fn serve(mut stream: TcpStream, restores: usize, answer: &str, wait: Duration) {
    let (mut got, mut read) = (Vec::new(), [0; 4096]);
    while got.windows(7).filter(|window| window == b"RESTORE").count() < restores {
        match stream.read(&mut read) {
            Ok(0) | Err(_) => return,
            Ok(len) => got.extend_from_slice(&read[..len]),
        }
    }
    // The source may have closed the connection.
    let _ = stream.write_all(answer.as_bytes());
    std::thread::sleep(wait);
}

/// Timeout of `MIGRATE`. Even on a busy host, both sides take much less time.
const TIMEOUT_MS: &str = "1000";
/// Time for which the target keeps the connection open after its reply: none, or longer than
/// `MIGRATE` waits.
const CLOSES: Duration = Duration::ZERO;
const STAYS: Duration = Duration::from_millis(3000);

/// Moves three keys to a [`scripted`] target. Returns the reply to `MIGRATE`, and the keys that are
/// left on the source.
fn moved(client: &mut Client, answer: &'static str, wait: Duration) -> String {
    client.call("FLUSHALL");
    client.call("MSET a 1 b 2 c 3");
    let port = scripted(3, answer, wait).to_string();
    let reply = client.command(&["MIGRATE", "127.0.0.1", &port, "", "0", TIMEOUT_MS, "KEYS", "a", "b", "c"]);
    format!("{answer:?} -> {reply:?}, {:?}", client.call("MGET a b c"))
}

#[test]
fn unacknowledged_keys_stay_on_the_source() {
    let Some(reference) = Server::redis(&[]) else { return };
    // In each answer, the first line is the reply to SELECT, and the next lines are replies to
    // RESTORE.
    let answers: &[(&str, Duration)] = &[
        ("", CLOSES),
        ("", STAYS),
        ("+OK\r\n", STAYS),
        ("+OK\r\n+OK\r\n", CLOSES),
        ("+OK\r\n+OK\r\n", STAYS),
        ("+OK\r\n+OK\r\n-ERR no\r\n", CLOSES),
        ("+OK\r\n+OK\r\n-ERR no\r\n+OK\r\n", CLOSES),
        ("+OK\r\n-ERR one\r\n-ERR two\r\n+OK\r\n", CLOSES),
        ("-ERR which\r\n+OK\r\n+OK\r\n+OK\r\n", CLOSES),
        ("+OK\r\n+OK\r\n+OK\r\n+OK\r\n", CLOSES),
        ("+OK\r\n+OK\r\n+OK\r\n+O", STAYS),
    ];
    let play = |server: &Server| -> Vec<String> {
        let mut client = server.connect();
        answers.iter().map(|(answer, wait)| moved(&mut client, answer, *wait)).collect()
    };
    let mut servers = pantalas();
    std::thread::scope(|scope| {
        let right = scope.spawn(|| play(&reference));
        let given: Vec<_> = servers.iter().map(|server| scope.spawn(|| play(server))).collect();
        let right = right.join().expect("redis-server runs");
        for given in given {
            assert_eq!(given.join().expect("Pantala runs"), right);
        }
    });
    servers.iter_mut().for_each(Server::assert_sound);
}

/// While a worker waits for an unresponsive target, other clients are served. Only clients that
/// need the keys being moved wait.
#[test]
fn other_clients_are_served_while_a_target_does_not_reply() {
    let server = Server::pantala(Backend::Epoll, &["--workers", "2", "--shards", "8"]);
    let mut clients: Vec<Client> = (0..8).map(|_| server.connect()).collect();
    clients[0].call("SET under-way 1");
    let port = scripted(1, "", Duration::from_secs(4)).to_string();
    let sent = Instant::now();
    clients[0].send(&["MIGRATE", "127.0.0.1", &port, "under-way", "0", "2000"]);
    std::thread::sleep(Duration::from_millis(300));
    // Half of the clients belong to the worker that waits for the target, and half to the other
    // worker.
    for (number, client) in clients.iter_mut().enumerate().skip(1) {
        client.set_read_timeout(Duration::from_millis(250));
        client.send(&["SET", &format!("another:{number}"), "2"]);
    }
    let is_served = clients.iter_mut().skip(1).any(|client| client.try_receive().is_ok());
    assert!(is_served && sent.elapsed() < Duration::from_secs(2), "no client ran meanwhile");
    let reply = format!("{:?}", clients[0].receive());
    assert!(reply.contains("IOERR error or timeout reading"), "{reply}");
    assert_eq!(clients[0].call("GET under-way").text(), "1");
}
