//! The command CLIENT: information about the connections of all workers, and subcommands that
//! affect other connections.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use pantala_tests::waiting::{eventually, first_served, pantalas};
use pantala_tests::{Backend, Client, Reply, Server, for_each_backend};

/// Maximum wait for the effect of a command on another connection.
const PATIENCE: Duration = Duration::from_secs(10);

fn start(backend: Backend) -> Server {
    Server::pantala(backend, &["--workers", "3", "--shards", "12"])
}

/// Returns the value of `field=value` in a line of CLIENT LIST.
fn field(line: &str, name: &str) -> String {
    let found = line.split(' ').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
    found.unwrap_or_else(|| panic!("no {name} in {line}")).trim().to_owned()
}

fn lines(client: &mut Client, words: &str) -> Vec<String> {
    client.call(words).text().lines().map(str::to_owned).collect()
}

fn id(client: &mut Client) -> String {
    client.call("CLIENT ID").integer().to_string()
}

#[test]
fn client_list_has_the_fields_of_redis() {
    let Some(reference) = Server::redis(&[]) else { return };
    let names = |server: &Server| {
        let text = server.connect().call("CLIENT INFO").text();
        text.split_whitespace()
            .filter_map(|pair| pair.split_once('='))
            .map(|(name, _)| name.to_owned())
            .collect::<Vec<_>>()
    };
    let right = names(&reference);
    for_each_backend(|backend| {
        let given = names(&start(backend));
        assert_eq!(given[..right.len()], right, "fields of CLIENT INFO; those of later versions may follow");
    });
}

#[test]
fn client_list_lists_all_connections() {
    for_each_backend(|backend| {
        let server = start(backend);
        let mut clients: Vec<Client> = (0..12).map(|_| server.connect()).collect();
        let ids: BTreeSet<String> = clients.iter_mut().map(id).collect();
        assert_eq!(ids.len(), 12, "every connection has its own id");
        clients[3].call("CLIENT SETNAME three");
        clients[3].call("SELECT 5");
        clients[4].call("HELLO 3");
        clients[4].call("GET key");
        let list = lines(&mut clients[0], "CLIENT LIST");
        assert_eq!(list.iter().map(|line| field(line, "id")).collect::<BTreeSet<_>>(), ids);
        let three = list.iter().find(|line| field(line, "name") == "three").expect("three is listed");
        assert_eq!((field(three, "db"), field(three, "cmd")), ("5".into(), "select".into()));
        assert_eq!(field(three, "laddr"), format!("127.0.0.1:{}", server.port()));
        let four = id(&mut clients[4]);
        let line = lines(&mut clients[0], &format!("CLIENT LIST ID {four}"));
        assert_eq!(line.len(), 1);
        assert_eq!(field(&line[0], "resp"), "3");
        assert_eq!(lines(&mut clients[0], "CLIENT LIST TYPE normal").len(), 12);
        assert_eq!(lines(&mut clients[0], "CLIENT LIST TYPE replica").len(), 0);
        assert_eq!(field(&clients[3].call("CLIENT INFO").text(), "name"), "three");
        assert_eq!(field(&list[0], "cmd"), "client|list");
    });
}

/// `qbuf-free` is the free space of the buffer that contains the command. A complete command is in
/// the event loop's buffer, which all clients of the worker share. An incomplete command is copied
/// to the client's own buffer.
#[test]
fn client_list_reports_the_free_query_buffer() {
    const QUERY: &str = "CLIENT INFO\r\n";
    for_each_backend(|backend| {
        let server = start(backend);
        let mut client = server.connect();
        client.send_raw(QUERY.as_bytes());
        let line = client.receive().text();
        let number = |line: &str, name: &str| field(line, name).parse::<usize>().expect("a number");
        assert_eq!(number(&line, "qbuf"), QUERY.len(), "{line}");
        let free = number(&line, "qbuf-free");
        assert!((1..=64 * 1024).contains(&free), "{line}");

        let mut half = server.connect();
        half.call("CLIENT SETNAME half");
        half.send_raw(b"*2\r\n$4\r\nECHO\r\n$50000\r\n");
        half.send_raw(&[b'x'; 20_000]);
        let deadline = Instant::now() + PATIENCE;
        loop {
            let list = lines(&mut client, "CLIENT LIST");
            let line = list.iter().find(|line| field(line, "name") == "half").expect("it is listed");
            let (waiting, free) = (number(line, "qbuf"), number(line, "qbuf-free"));
            if waiting > 20_000 {
                assert!(waiting + free <= number(line, "tot-mem"), "the buffer is the client's memory: {line}");
                break;
            }
            assert!(Instant::now() < deadline, "{line}");
            std::thread::sleep(Duration::from_millis(10));
        }
    });
}

#[test]
fn client_kill_closes_others() {
    for_each_backend(|backend| {
        let server = start(backend);
        let mut killer = server.connect();
        let mut clients: Vec<Client> = (0..6).map(|_| server.connect()).collect();
        let ids: Vec<String> = clients.iter_mut().map(id).collect();
        assert_eq!(killer.call(&format!("CLIENT KILL ID {}", ids[0])), Reply::Integer(1));
        assert!(clients[0].ends_within(PATIENCE));
        let address = field(&clients[1].call("CLIENT INFO").text(), "addr");
        assert_eq!(killer.call(&format!("CLIENT KILL {address}")), Reply::ok());
        assert!(clients[1].ends_within(PATIENCE));
        let address = field(&clients[2].call("CLIENT INFO").text(), "addr");
        assert_eq!(killer.call(&format!("CLIENT KILL ADDR {address} TYPE normal")), Reply::Integer(1));
        assert!(clients[2].ends_within(PATIENCE));
        assert_eq!(killer.call(&format!("CLIENT KILL ID {} TYPE pubsub", ids[3])), Reply::Integer(0));
        assert_eq!(clients[3].call("PING").text(), "PONG");
        assert_eq!(killer.call("CLIENT KILL USER default"), Reply::Integer(3), "all but the killer");
        for client in &mut clients[3..] {
            assert!(client.ends_within(PATIENCE));
        }
        assert_eq!(killer.call("PING").text(), "PONG");
        assert_eq!(lines(&mut killer, "CLIENT LIST").len(), 1);
        // A client that kills itself receives its reply first.
        assert_eq!(killer.call("CLIENT KILL TYPE normal SKIPME no"), Reply::Integer(1));
        assert!(killer.ends_within(PATIENCE));
        assert_eq!(server.connect().call("PING").text(), "PONG");
    });
}

#[test]
fn client_pause_delays_commands() {
    for_each_backend(|backend| {
        let server = start(backend);
        let mut admin = server.connect();
        let mut clients: Vec<Client> = (0..6).map(|_| server.connect()).collect();
        for client in &mut clients {
            client.call("SET a 0");
        }
        // Writers wait, and readers don't.
        let begin = Instant::now();
        assert_eq!(admin.call("CLIENT PAUSE 600 WRITE"), Reply::ok());
        for (number, client) in clients.iter_mut().enumerate() {
            if number % 2 == 0 {
                // All commands that are propagated to replicas wait.
                client.send([&["INCR", "a"][..], &["PUBLISH", "channel", "x"], &["PFCOUNT", "nosuch"]][number / 2]);
            } else {
                assert_eq!(client.call("GET a"), Reply::bulk("0"));
            }
        }
        for client in clients.iter_mut().step_by(2) {
            client.receive();
        }
        assert!(begin.elapsed() >= Duration::from_millis(590), "writers didn't wait: {:?}", begin.elapsed());
        assert_eq!(admin.call("GET a"), Reply::bulk("1"));
        // With ALL, every client waits, even one that sends CLIENT UNPAUSE, as in Redis.
        let begin = Instant::now();
        assert_eq!(admin.call("CLIENT PAUSE 700 ALL"), Reply::ok());
        for client in &mut clients {
            client.send(&["GET", "a"]);
            client.send(&["PING"]);
        }
        clients[0].set_read_timeout(Duration::from_millis(50));
        assert!(clients[0].try_receive().is_err() || begin.elapsed() >= Duration::from_millis(690), "ran while paused");
        clients[0].set_read_timeout(PATIENCE);
        for client in &mut clients {
            assert_eq!(client.receive(), Reply::bulk("1"));
            assert_eq!(client.receive().text(), "PONG");
        }
        assert!(begin.elapsed() >= Duration::from_millis(690), "commands didn't wait: {:?}", begin.elapsed());
        // A pause of writes can end early.
        assert_eq!(admin.call("CLIENT PAUSE 60000 WRITE"), Reply::ok());
        clients[0].send(&["INCR", "a"]);
        // A reader doesn't wait for the end of the pause.
        assert_eq!(clients[1].call("GET a"), Reply::bulk("1"));
        assert_eq!(admin.call("CLIENT UNPAUSE"), Reply::ok());
        assert_eq!(clients[0].receive(), Reply::Integer(2));
        // A function without the flag `no-writes` waits for the end of the pause, although FCALL_RO
        // then rejects it.
        let library = "#!lua name=l\nlocal function f() return 1 end redis.register_function('writes', f) \
                       redis.register_function{function_name = 'reads', callback = f, flags = {'no-writes'}}";
        admin.command(&["FUNCTION", "LOAD", library]);
        assert_eq!(admin.call("CLIENT PAUSE 60000 WRITE"), Reply::ok());
        assert_eq!(clients[1].call("FCALL_RO reads 0"), Reply::Integer(1));
        clients[0].send(&["FCALL_RO", "writes", "0"]);
        clients[0].set_read_timeout(Duration::from_millis(50));
        assert!(clients[0].try_receive().is_err(), "replied while writes are paused");
        clients[0].set_read_timeout(PATIENCE);
        assert_eq!(admin.call("CLIENT UNPAUSE"), Reply::ok());
        assert!(clients[0].receive().is_error());
    });
}

/// Lua code that runs for 400 ms.
const SPIN: &str = "local function now() local time = redis.call('TIME') return time[1] * 1000 + time[2] / 1000 end \
                    local stop = now() + 400 while now() < stop do end";

/// Pauses writes, in a transaction or alone.
fn pause_writes(client: &mut Client, in_transaction: bool) {
    if in_transaction {
        client.call("MULTI");
        client.call("CLIENT PAUSE 100000 WRITE");
        assert_eq!(client.call("EXEC"), Reply::Array(vec![Reply::ok()]));
    } else {
        assert_eq!(client.call("CLIENT PAUSE 100000 WRITE"), Reply::ok());
    }
}

/// CLIENT PAUSE replies when all commands that started before the pause have run, however long they
/// take, and the pause's duration counts from that reply. Commands that take long are scripts, and
/// commands that wait for the shards of scripts. In this test, the duration is shorter than the
/// script that is running when CLIENT PAUSE is sent.
#[test]
fn the_duration_of_a_pause_counts_from_its_reply() {
    // Number of tries. On a busy host, the test may read the reply only when half of the pause is
    // over.
    const TRIES: usize = 8;
    let pause = |server: &Server| {
        let [mut script, mut admin, mut writer] = [(); 3].map(|()| server.connect());
        let is_paused = (0..TRIES).any(|_| {
            script.send(&["EVAL", &format!("{SPIN} return 1"), "1", "key"]);
            std::thread::sleep(Duration::from_millis(50));
            assert_eq!(admin.call("CLIENT PAUSE 300 WRITE"), Reply::ok());
            let answered = Instant::now();
            assert_eq!(writer.call("SET key 1"), Reply::ok());
            let took = answered.elapsed();
            script.receive();
            took > Duration::from_millis(200)
        });
        assert!(is_paused, "the pause ended before its reply");
        // If the client disconnects before it gets the reply, the pause still ends 300 ms after the
        // time at which the reply would have been sent. The writer then gets its reply.
        script.send(&["EVAL", &format!("{SPIN} return 1"), "1", "key"]);
        std::thread::sleep(Duration::from_millis(50));
        admin.send(&["CLIENT", "PAUSE", "300", "WRITE"]);
        drop(admin);
        assert_eq!(writer.call("SET key 2"), Reply::ok());
    };
    for mut server in pantalas() {
        pause(&server);
        server.assert_sound();
    }
    if let Some(reference) = Server::redis(&[]) {
        pause(&reference);
    }
}

#[test]
fn nothing_changes_after_a_pause_is_answered() {
    const WORKERS: usize = 3;
    // Each writer sets its own key, so DBSIZE counts the writers that have run. DBSIZE needs no
    // shard, so it replies even while a script holds all shards.
    let long = format!("{SPIN} redis.call('SET', '{{held}}long', 1) redis.call('SET', ARGV[1], 1)");
    for_each_backend(|backend| {
        for (execution, in_transaction) in [("inline", false), ("inline", true), ("owner", false), ("owner", true)] {
            let args = ["--workers", "3", "--shards", "8", "--execution", execution];
            let mut server = Server::pantala(backend, &args);
            let mut admins: Vec<Client> = (0..WORKERS).map(|_| server.connect()).collect();
            let mut script = server.connect();
            let mut writers: Vec<Client> = (0..4 * WORKERS).map(|_| server.connect()).collect();
            // The script's second key is undeclared. When the script accesses it, the script is
            // rolled back and rerun with all shards.
            script.send(&["EVAL", &long, "1", "{held}long", "undeclared"]);
            std::thread::sleep(Duration::from_millis(50));
            for (number, writer) in writers.iter_mut().enumerate() {
                let key = format!("{{held}}{number}");
                let commands = match number / WORKERS {
                    0 => vec![vec!["SET", &key, "1"]],
                    1 => vec![vec!["SET", &key, "1"], vec!["GET", "other"], vec!["INCR", &key]],
                    2 => vec![vec!["MULTI"], vec!["SET", &key, "1"], vec!["EXEC"]],
                    _ => vec![vec!["EVAL", "return redis.call('SET', KEYS[1], 1)", "1", &key]],
                };
                writer.send_together(&commands);
            }
            // The script's own worker serves no client while it runs, so the pause is sent by an
            // admin that another worker serves.
            let number = first_served(&mut admins, Duration::from_millis(100));
            let admin = &mut admins[number];
            pause_writes(admin, in_transaction);
            let keys = admin.call("DBSIZE");
            std::thread::sleep(Duration::from_millis(1000));
            assert_eq!(admin.call("DBSIZE"), keys, "{execution}, in a transaction: {in_transaction}");
            assert_eq!(admin.call("CLIENT UNPAUSE"), Reply::ok());
            assert_eq!(script.receive(), Reply::Null);
            for (number, writer) in writers.iter_mut().enumerate() {
                let replies = [1, 3, 3, 1][number / WORKERS];
                assert!((0..replies).all(|_| !writer.receive().is_error()), "writer {number}");
            }
            assert_eq!(admin.call("DBSIZE"), Reply::Integer(2 + writers.len() as i64));
            server.assert_sound();
        }
    });
}

/// A script accesses an undeclared key, is rolled back, and waits to be rerun with all shards. If a
/// pause of writes starts while it waits, the rerun starts only after the pause.
#[test]
fn a_rerun_script_waits_until_a_pause_ends() {
    const TRIES: usize = 12;
    for_each_backend(|backend| {
        for execution in ["inline", "owner"] {
            let args = ["--workers", "3", "--shards", "8", "--execution", execution];
            let mut server = Server::pantala(backend, &args);
            let mut script = server.connect();
            let mut admins = [(); 3].map(|()| server.connect());
            let mut held_back = 0;
            for round in 0..TRIES {
                let admin = &mut admins[round % 3];
                let text = format!("{SPIN} redis.call('SET', ARGV[1], {round})");
                script.send(&["EVAL", &text, "1", "held", "undeclared"]);
                std::thread::sleep(Duration::from_millis(100));
                // The worker that runs the script serves its clients only after the script, which
                // is too late. The pause is therefore sent on a connection of each worker in turn.
                pause_writes(admin, round % 2 == 0);
                let keys = admin.call("DBSIZE");
                for _ in 0..6 {
                    assert_eq!(admin.call("DBSIZE"), keys, "round {round}, {execution}");
                    std::thread::sleep(Duration::from_millis(100));
                }
                held_back += usize::from(admin.call("INFO clients").text().contains("blocked_clients:1\r\n"));
                assert_eq!(admin.call("CLIENT UNPAUSE"), Reply::ok());
                assert_eq!(script.receive(), Reply::Null);
                assert_eq!(admin.call("GET undeclared"), Reply::bulk(round.to_string()));
                assert_eq!(admin.call("DEL undeclared"), Reply::Integer(1));
                // On a busy host the script may have ended before the pause started.
                if held_back == 2 {
                    break;
                }
            }
            assert!(held_back > 0, "{execution}: none of {TRIES} scripts was delayed");
            server.assert_sound();
        }
    });
}

/// Many clients send short commands of all kinds. From the reply to `CLIENT PAUSE` to the end of
/// the pause, none of these commands changes anything.
#[test]
fn commands_in_flight_change_nothing_after_a_pause_is_answered() {
    const WRITERS: usize = 6;
    const MOVERS: usize = 3;
    const ROUNDS: usize = 150;
    for_each_backend(|backend| {
        for execution in ["inline", "owner"] {
            let args = ["--workers", "3", "--shards", "12", "--execution", execution];
            let mut server = Server::pantala(backend, &args);
            let mut admins: Vec<Client> = (0..3).map(|_| server.connect()).collect();
            // With debug assertions, these faults make threads sleep at critical moments. In a
            // build without them DEBUG FAULT returns an error, which the test ignores.
            for fault in ["pause-taking", "pause-holding", "pause-replying"] {
                admins[0].call(&format!("DEBUG FAULT {fault} 30"));
            }
            let is_over = AtomicBool::new(false);
            std::thread::scope(|scope| {
                for writer in 0..WRITERS {
                    let (mut client, is_over) = (server.connect(), &is_over);
                    scope.spawn(move || {
                        for number in 0.. {
                            if is_over.load(Relaxed) {
                                break;
                            }
                            let keys = [0, 1, 2].map(|part| format!("{writer}:{number}:{part}"));
                            let [one, two, three] = keys.each_ref().map(String::as_str);
                            let undeclared = "return redis.call('SET', ARGV[1], redis.call('INCR', KEYS[1]))";
                            client.send_together(&[
                                vec!["SET", one, "1"],
                                vec!["RPUSH", "from", "x", "y"],
                                vec!["MSET", two, "1", three, "1"],
                                vec!["MULTI"],
                                vec!["SET", one, "2"],
                                vec!["APPEND", "appended", "x"],
                                vec!["EXEC"],
                                vec!["EVAL", undeclared, "1", two, &format!("undeclared:{one}")],
                            ]);
                            (0..8).for_each(|_| assert!(!client.receive().is_error()));
                        }
                    });
                }
                for mover in 0..MOVERS {
                    let (mut client, is_over) = (server.connect(), &is_over);
                    scope.spawn(move || {
                        for number in 0.. {
                            if is_over.load(Relaxed) {
                                break;
                            }
                            client.call(&format!("BLMOVE from to:{mover}:{number} LEFT RIGHT 0.5"));
                        }
                    });
                }
                for round in 0..ROUNDS {
                    let admin = &mut admins[round % 3];
                    pause_writes(admin, round % 4 == 3);
                    let keys = admin.call("DBSIZE");
                    for _ in 0..3 {
                        std::thread::sleep(Duration::from_millis(1));
                        assert_eq!(admin.call("DBSIZE"), keys, "round {round}, {execution}");
                    }
                    assert_eq!(admin.call("CLIENT UNPAUSE"), Reply::ok());
                    std::thread::sleep(Duration::from_millis(2));
                }
                is_over.store(true, Relaxed);
            });
            server.assert_sound();
        }
    });
}

#[test]
fn reset_and_reply_modes() {
    for_each_backend(|backend| {
        let server = start(backend);
        let mut client = server.connect();
        client.call("HELLO 3");
        client.call("SELECT 4");
        client.call("CLIENT SETNAME me");
        assert_eq!(client.call("RESET"), Reply::Simple("RESET".into()));
        let info = client.call("CLIENT INFO").text();
        assert_eq!(
            (field(&info, "db"), field(&info, "name"), field(&info, "resp")),
            ("0".into(), String::new(), "2".into())
        );
        client.send_raw(b"CLIENT REPLY OFF\r\nSET a 1\r\nINCR a\r\nCLIENT REPLY ON\r\nGET a\r\n");
        assert_eq!(client.receive(), Reply::ok());
        assert_eq!(client.receive(), Reply::bulk("2"));
    });
}

/// The CLIENT subcommands of Redis 7.2.
#[test]
fn setinfo_and_no_touch() {
    for_each_backend(|backend| {
        let server = start(backend);
        let mut client = server.connect();
        assert_eq!(client.call("CLIENT SETINFO LIB-NAME lib"), Reply::ok());
        assert_eq!(client.call("CLIENT SETINFO lib-ver 1.2"), Reply::ok());
        let info = client.call("CLIENT INFO").text();
        assert_eq!((field(&info, "lib-name"), field(&info, "lib-ver")), ("lib".into(), "1.2".into()));
        for bad in ["CLIENT SETINFO nosuch x", "CLIENT SETINFO LIB-NAME", "CLIENT SETINFO LIB-NAME a\nb"] {
            assert!(client.call(bad).is_error(), "{bad}");
        }
        assert_eq!(client.call("CLIENT NO-TOUCH on"), Reply::ok());
        assert_eq!(client.call("CLIENT NO-TOUCH off"), Reply::ok());
        assert!(client.call("CLIENT NO-TOUCH maybe").is_error());
    });
}

/// New connections are distributed over all workers. Each worker has some connections, and none has
/// most of them.
#[test]
fn connections_spread_over_workers() {
    const CLIENTS: usize = 90;
    for_each_backend(|backend| {
        let server = start(backend);
        let mut clients: Vec<Client> = (0..CLIENTS).map(|_| server.connect()).collect();
        for client in &mut clients {
            client.call("PING");
        }
        let info = clients[0].call("INFO everything").text();
        // Pantala's own lines: `workerN:connections=…`.
        let counts: Vec<usize> = info
            .lines()
            .filter(|line| line.starts_with("worker") || line.starts_with("pantala_worker"))
            .filter_map(|line| {
                let pairs = line
                    .split([',', ':'])
                    .find_map(|pair| pair.strip_prefix("clients=").or_else(|| pair.strip_prefix("connections=")))?;
                pairs.trim().parse().ok()
            })
            .collect();
        assert_eq!(counts.len(), 3, "INFO lists each worker's connections:\n{info}");
        assert_eq!(counts.iter().sum::<usize>(), CLIENTS);
        assert!(counts.iter().all(|count| (CLIENTS / 6..=CLIENTS / 2).contains(count)), "unevenly spread: {counts:?}");
    });
}

/// If an inline command (a line of text instead of a RESP array) with quoted arguments has to wait,
/// it runs with the same arguments afterwards.
#[test]
fn delayed_quoted_lines_run_as_they_were_sent() {
    for_each_backend(|backend| {
        for execution in ["inline", "owner"] {
            let server = Server::pantala(backend, &["--workers", "2", "--shards", "8", "--execution", execution]);
            let mut client = server.connect();
            for round in 0..20 {
                assert_eq!(server.connect().call("CLIENT PAUSE 60 WRITE").text(), "OK");
                client.send_raw(
                    b"SET a 1\r\nSET b 2\r\nMSET \"x\" \"a\\nb c\" 'y' \"\"\r\nSET k3 v\r\nGET \"x\"\r\nPING\r\n",
                );
                let replies: Vec<_> = (0..6).map(|_| client.receive()).collect();
                assert_eq!(replies[4].text(), "a\nb c", "round {round}, {execution}: {replies:?}");
                assert_eq!(client.call("GET y").text(), "");
                assert_eq!(client.call("DEL a b x y k3").integer(), 5);
            }
        }
    });
}

/// No key is deleted while writes are paused. A key that expires in this time is hidden, and is
/// deleted after the pause.
#[test]
fn a_pause_keeps_expired_keys() {
    for_each_backend(|backend| {
        let server = start(backend);
        let mut client = server.connect();
        // On a busy host the key may have expired before the pause starts, so the test tries
        // several times.
        eventually("a key that is there when the pause starts", || {
            client.call("CLIENT UNPAUSE");
            client.call("SET short 1 PX 50");
            client.call("CLIENT PAUSE 100000 WRITE");
            client.call("DBSIZE") == Reply::Integer(1)
        });
        eventually("the key expires", || client.call("GET short") == Reply::Null);
        assert_eq!(client.call("DBSIZE"), Reply::Integer(1));
        client.call("CLIENT UNPAUSE");
        assert_eq!(client.call("GET short"), Reply::Null);
        assert_eq!(client.call("DBSIZE"), Reply::Integer(0));
    });
}

/// A client that connected while a password was required is authenticated when the password is
/// removed.
#[test]
fn a_removed_password_authenticates_waiting_clients() {
    for_each_backend(|backend| {
        let server = start(backend);
        let mut admin = server.connect();
        admin.call("CONFIG SET requirepass secret");
        let mut late = server.connect();
        assert!(late.call("GET a").text().starts_with("NOAUTH"));
        assert_eq!(admin.command(&["CONFIG", "SET", "requirepass", ""]), Reply::ok());
        assert_eq!(late.call("GET a"), Reply::Null);
    });
}

/// A command without a key, `EXEC` and a script run after all earlier commands of their connection,
/// even if those were sent to other workers (`--execution owner`).
#[test]
fn commands_without_keys_run_after_everything_before_them() {
    const KEYS: usize = 40;
    let keys: Vec<String> = (0..KEYS).map(|number| format!("key:{number}")).collect();
    let words = |list: &[&str]| list.iter().map(ToString::to_string).collect::<Vec<_>>();
    let set = |value: &str| keys.iter().map(|key| words(&["SET", key, value])).collect::<Vec<_>>();
    let mget = [words(&["MGET"]), keys.clone()].concat();
    let script = "local all = {} for i = 1, ARGV[1] do all[i] = redis.call('GET', 'key:' .. i - 1) end return all";
    for_each_backend(|backend| {
        for execution in ["inline", "owner"] {
            let server = Server::pantala(backend, &["--workers", "3", "--shards", "40", "--execution", execution]);
            std::thread::scope(|scope| {
                // Other clients keep the same shards busy, in another database, so that requests
                // wait.
                for _ in 0..2 {
                    let mut other = server.connect();
                    let commands = set("other");
                    scope.spawn(move || {
                        other.call("SELECT 1");
                        (0..100).for_each(|_| drop(other.pipeline(&commands)));
                    });
                }
                let mut client = server.connect();
                for round in 0..20 {
                    let value = |part: &str| format!("{part}{round:08}");
                    let [one, two, three] = ["a", "b", "c"].map(value);
                    client.call("FLUSHDB");
                    let commands = [
                        set(&one),
                        vec![words(&["DBSIZE"])],
                        set(&two),
                        vec![words(&["MULTI"]), mget.clone(), words(&["EXEC"])],
                        set(&three),
                        vec![words(&["EVAL", script, "0", &KEYS.to_string()])],
                    ]
                    .concat();
                    let replies = client.pipeline(&commands);
                    let is = |reply: &Reply, value: &str| {
                        reply.elements().len() == KEYS && reply.elements().iter().all(|one| *one == Reply::bulk(value))
                    };
                    assert_eq!(replies[KEYS], Reply::Integer(KEYS as i64));
                    let transaction = &replies[2 * KEYS + 3].elements()[0];
                    assert!(is(transaction, &two), "{execution}: {transaction:?}");
                    assert!(is(&replies[3 * KEYS + 4], &three), "{execution}: {:?}", replies[3 * KEYS + 4]);
                }
            });
        }
    });
}
