//! Busy scripts, which have run for longer than `busy-reply-threshold`. A script holds the shards
//! (parts of the key space) of its keys. A command that needs one of these shards gets the reply
//! BUSY. All other commands run, on the script's own worker too.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use pantala_tests::waiting::{eventually, wait_until_blocked};
use pantala_tests::workers::connect_to_worker;
use pantala_tests::{Client, Reply, Server, for_each_backend};
use rustix::process::Signal;

const LAYOUTS: [&[&str]; 3] = [
    &["--workers", "1", "--shards", "8", "--busy-reply-threshold", "50", "--save", ""],
    &["--workers", "3", "--shards", "8", "--busy-reply-threshold", "50", "--save", ""],
    &["--workers", "3", "--shards", "8", "--busy-reply-threshold", "50", "--save", "", "--execution", "owner"],
];

const ENDLESS: &str = "while true do pcall(function() while true do end end) end";
const LIMIT: Duration = Duration::from_secs(30);

fn error(text: &str) -> Reply {
    Reply::Error(text.into())
}

fn busy(kill: &str) -> Reply {
    error(&format!("BUSY Redis is busy running a script. You can only call {kill} KILL or SHUTDOWN NOSAVE."))
}

fn pong() -> Reply {
    Reply::Simple("PONG".into())
}

/// Reads a key until the reply is BUSY.
fn wait_until_busy(client: &mut Client, key: &str, kill: &str) {
    let began = Instant::now();
    while client.command(&["GET", key]) != busy(kill) {
        assert!(began.elapsed() < LIMIT, "no reply is BUSY");
    }
}

/// Lets one test run at a time, because scripts that spin compete for the cores.
static CORES: Mutex<()> = Mutex::new(());

fn each_layout(mut test: impl FnMut(&mut Server)) {
    let _alone = CORES.lock().unwrap_or_else(PoisonError::into_inner);
    for_each_backend(|backend| {
        for layout in LAYOUTS {
            let mut server = Server::pantala(backend, layout);
            test(&mut server);
        }
    });
}

/// Names of keys. Some of these keys are in other shards than `held`, so they can be written while
/// a script with the key `held` runs.
const OTHERS: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

/// Returns the number of [`OTHERS`] that can be written.
fn served(client: &mut Client) -> usize {
    OTHERS.iter().filter(|key| client.command(&["SET", key, "1"]) == Reply::ok()).count()
}

/// Kills the running script and checks the error that its client receives.
fn kill(client: &mut Client, script: &mut Client) {
    assert_eq!(client.call("SCRIPT KILL"), Reply::ok());
    let reply = script.receive();
    assert!(matches!(&reply, Reply::Error(text) if text.starts_with("ERR Script killed by user")), "{reply:?}");
}

#[test]
fn others_are_served_while_a_script_is_busy() {
    each_layout(|server| {
        let mut clients: Vec<Client> = (0..6).map(|_| server.connect()).collect();
        let mut script = server.connect();
        clients[0].call("SET held 1");
        // The commands that follow the script in the pipeline run after the script has ended.
        script.send_together(&[vec!["EVAL", ENDLESS, "1", "held"], vec!["PING"], vec!["GET", "held"]]);
        wait_until_busy(&mut clients[0], "held", "SCRIPT");
        for client in &mut clients {
            assert_eq!(client.call("PING"), pong());
            assert_eq!(client.call("SET held 2"), busy("SCRIPT"));
            assert_eq!(client.call("MSET a 1 held 2 f 1"), busy("SCRIPT"));
            assert_eq!(client.command(&["EVAL", "return redis.call('SET', KEYS[1], 3)", "1", "held"]), busy("SCRIPT"));
            assert_eq!(client.call("FUNCTION KILL"), busy("SCRIPT"));
            assert_eq!(client.call("FUNCTION STATS"), busy("SCRIPT"));
            assert!(served(client) > 0, "no command on another shard runs");
            client.call("MULTI");
            client.call("SET held 3");
            let reply = client.call("EXEC");
            assert!(
                matches!(&reply, Reply::Error(text) if text.starts_with("EXECABORT") && text.contains("BUSY")),
                "{reply:?}"
            );
            assert_eq!(client.call("PING"), pong());
        }
        // New connections are also served, and closed connections leave no state.
        assert_eq!(server.connect().call("PING"), pong());
        drop(clients.pop());
        kill(&mut clients[1], &mut script);
        assert_eq!((script.receive(), script.receive()), (pong(), Reply::bulk("1")));
        for client in &mut clients {
            assert_eq!(client.call("SCRIPT KILL"), error("NOTBUSY No scripts in execution right now."));
            assert_eq!(client.call("GET held"), Reply::bulk("1"));
        }
        assert_eq!(script.call("PING"), pong());
        server.assert_sound();
    });
}

/// Commands of several connections arrive together with the script. None is lost or run twice, and
/// replies stay in order.
#[test]
fn commands_that_arrive_with_the_script_run_once_and_in_order() {
    each_layout(|server| {
        let mut clients: Vec<Client> = (0..8).map(|_| server.connect()).collect();
        let mut killer = server.connect();
        clients[0].call("SET held 1");
        let commands = |number: usize| -> Vec<Vec<String>> {
            let key = format!("mine{number}");
            (0..50).map(|_| vec!["INCR".to_owned(), key.clone()]).collect()
        };
        for round in 0..3 {
            // Each client sends so many commands that the other clients' commands arrive while the
            // worker runs the first ones. The worker then receives the commands of several clients
            // in one turn.
            for (number, client) in clients.iter_mut().enumerate() {
                let mut all = commands(number);
                if number == 3 {
                    all.insert(20, ["EVAL", ENDLESS, "1", "held"].map(str::to_owned).to_vec());
                }
                client.send_together(&all);
            }
            wait_until_busy(&mut killer, "held", "SCRIPT");
            let began = Instant::now();
            while killer.call("SCRIPT KILL") != Reply::ok() {
                assert!(began.elapsed() < LIMIT);
            }
            for (number, client) in clients.iter_mut().enumerate() {
                let mut next = round * 50;
                for at in 0..50 + usize::from(number == 3) {
                    match client.receive() {
                        Reply::Integer(got) => {
                            next += 1;
                            assert_eq!(got, next, "client {number}");
                        }
                        Reply::Error(text) if text.contains("killed") && number == 3 => assert_eq!(at, 20),
                        // This client's counter is in the shard that the script holds.
                        Reply::Error(text) if text.starts_with("BUSY") => {}
                        other => panic!("client {number}: {other:?}"),
                    }
                }
                let key = format!("mine{number}");
                client.command(&["SET", &key, &((round + 1) * 50).to_string()]);
            }
        }
    });
}

/// A script becomes busy, is rerun with all shards because of an undeclared key, and becomes busy
/// again. The commands that the worker received together with the script (the script's *window*)
/// run once and in order.
#[test]
fn a_script_that_is_busy_again_in_its_rerun_abandons_its_window_once() {
    const TEXT_BYTES: usize = 10_000;
    const INCREMENTS: usize = 40;
    const ROUNDS: usize = 3;
    let text = "local function now() local t = redis.call('TIME') return t[1] * 1000000 + t[2] end \
                local start = now() \
                while now() - start < 150000 do end \
                redis.call('GET', 'undeclared') \
                return 'done'";
    let _alone = CORES.lock().unwrap_or_else(PoisonError::into_inner);
    for_each_backend(|backend| {
        let mut server = Server::pantala(backend, LAYOUTS[0]);
        let [mut occupier, mut script] = [(); 2].map(|()| server.connect());
        let mut clients: Vec<Client> = (0..4).map(|_| server.connect()).collect();
        for (key, letters) in [("{t}1", "abcdefg"), ("{t}2", "gfdbeca")] {
            occupier.command(&["SET", key, &letters.repeat(TEXT_BYTES / letters.len())]);
        }
        for round in 0..ROUNDS {
            // After the flush the server doesn't know that the script needs all shards.
            occupier.call("SCRIPT FLUSH");
            // This command takes dozens of milliseconds. The worker therefore receives the
            // following commands together, in one turn.
            occupier.send(&["LCS", "{t}1", "{t}2", "LEN"]);
            script.send(&["EVAL", text, "1", "held"]);
            for (number, client) in clients.iter_mut().enumerate() {
                client.send_together(&vec![vec!["INCR".to_owned(), format!("mine{number}")]; INCREMENTS]);
            }
            occupier.receive();
            assert_eq!(script.receive(), Reply::bulk("done"));
            for (number, client) in clients.iter_mut().enumerate() {
                let mut next = 0;
                for _ in 0..INCREMENTS {
                    match client.receive() {
                        Reply::Integer(got) => {
                            next += 1;
                            assert_eq!(got, next, "client {number}, round {round}");
                        }
                        // In its rerun, the script holds all shards.
                        Reply::Error(text) if text.starts_with("BUSY") => {}
                        other => panic!("client {number}: {other:?}"),
                    }
                }
                assert_eq!(client.command(&["DEL", &format!("mine{number}")]), Reply::Integer(i64::from(next > 0)));
            }
        }
        server.assert_sound();
    });
}

#[test]
fn a_script_that_has_written_ends_only_with_the_server() {
    each_layout(|server| {
        let mut client = server.connect();
        let mut script = server.connect();
        // Even with keyspace events, the script holds only the shard of its key.
        client.call("CONFIG SET notify-keyspace-events KEA");
        script.send(&["EVAL", "redis.call('SET', KEYS[1], 1) while true do end", "1", "held"]);
        wait_until_busy(&mut client, "held", "SCRIPT");
        assert!(matches!(client.call("SCRIPT KILL"), Reply::Error(text) if text.starts_with("UNKILLABLE")));
        assert!(served(&mut client) > 0, "no command on another shard runs");
        assert_eq!(client.call("PING"), pong());
        client.send(&["SHUTDOWN", "NOSAVE"]);
        assert!(server.wait_exit(LIMIT).success());
    });
}

#[test]
fn functions_are_reported_and_killed() {
    each_layout(|server| {
        let mut client = server.connect();
        let text = format!("#!lua name=lib\nredis.register_function('endless', function(keys) {ENDLESS} end)");
        client.command(&["FUNCTION", "LOAD", &text]);
        let mut caller = server.connect();
        caller.send(&["FCALL", "endless", "1", "held", "arg"]);
        wait_until_busy(&mut client, "held", "FUNCTION");
        let stats = client.call("FUNCTION STATS");
        let running = stats.field("running_script").expect("it runs").clone();
        assert_eq!(running.field("name"), Some(&Reply::bulk("endless")));
        let command = ["FCALL", "endless", "1", "held", "arg"].map(Reply::bulk).to_vec();
        assert_eq!(running.field("command"), Some(&Reply::Array(command)));
        assert_eq!(client.call("SCRIPT KILL"), busy("FUNCTION"));
        assert_eq!(client.call("FUNCTION KILL"), Reply::ok());
        assert!(matches!(caller.receive(), Reply::Error(text) if text.starts_with("ERR Script killed by user")));
        assert_eq!(client.call("FUNCTION KILL"), error("NOTBUSY No scripts in execution right now."));
        assert_eq!(client.call("GET held"), Reply::Null);
    });
}

/// Clients of other workers can see and kill a script that is not busy yet. In Redis, clients can
/// do neither before the script is busy.
#[test]
fn scripts_are_killed_before_they_are_busy() {
    const SILENT: Duration = Duration::from_millis(500);
    for_each_backend(|backend| {
        let server = Server::pantala(backend, &["--workers", "2", "--busy-reply-threshold", "60000"]);
        let text = format!("#!lua name=lib\nredis.register_function('endless', function() {ENDLESS} end)");
        server.connect().command(&["FUNCTION", "LOAD", &text]);
        for (call, kill) in [(["EVAL", ENDLESS, "0"], "SCRIPT KILL"), (["FCALL", "endless", "0"], "FUNCTION KILL")] {
            let mut clients: Vec<Client> = (0..8).map(|_| server.connect()).collect();
            let mut caller = server.connect();
            caller.send(&call);
            // Clients of the caller's worker wait until the script has ended, so they are skipped.
            let mut ask = |words: &[&str]| {
                let mut replies = Vec::new();
                clients.retain_mut(|client| {
                    client.send(words);
                    let is_served = client.has_reply_within(SILENT);
                    if is_served {
                        replies.push(client.receive());
                    }
                    is_served
                });
                replies
            };
            if call[0] == "FCALL" {
                let name = Reply::bulk("endless");
                let shows = |stats: &Reply| match stats.field("running_script") {
                    None | Some(Reply::Null) => false,
                    Some(running) => running.field("name") == Some(&name),
                };
                eventually("the function is shown", || ask(&["FUNCTION", "STATS"]).iter().any(shows));
                let not_busy = error("NOTBUSY No scripts in execution right now.");
                assert!(ask(&["SCRIPT", "KILL"]).iter().all(|reply| *reply == not_busy));
            }
            let kill: Vec<&str> = kill.split(' ').collect();
            eventually("it is killed", || ask(&kill).contains(&Reply::ok()));
            assert!(matches!(caller.receive(), Reply::Error(text) if text.starts_with("ERR Script killed by user")));
        }
    });
}

/// The client of a busy script disconnects, is killed, or receives messages while the script runs.
#[test]
fn the_script_s_own_client_waits_until_it_ends() {
    each_layout(|server| {
        let mut client = server.connect();
        let mut script = server.connect();
        script.call("HELLO 3");
        script.call("SUBSCRIBE news");
        let id = script.call("CLIENT ID").integer();
        script.send(&["EVAL", ENDLESS, "1", "held"]);
        wait_until_busy(&mut client, "held", "SCRIPT");
        assert_eq!(client.call("PUBLISH news one"), Reply::Integer(1));
        script.send(&["PING", "behind"]);
        assert_eq!(client.call("PING"), pong());
        client.call("SCRIPT KILL");
        let mut kinds: Vec<&str> = (0..3).map(|_| script.receive().kind()).collect();
        kinds.sort_unstable();
        assert_eq!(kinds, ["bulk", "error", "push"]);
        script.send(&["EVAL", ENDLESS, "1", "held"]);
        wait_until_busy(&mut client, "held", "SCRIPT");
        client.call(&format!("CLIENT KILL ID {id}"));
        assert_eq!(client.call("PING"), pong());
        client.call("SCRIPT KILL");
        assert!(script.ends_within(LIMIT));
        // A client disconnects while its script runs.
        let mut script = server.connect();
        script.send(&["EVAL", ENDLESS, "1", "held"]);
        wait_until_busy(&mut client, "held", "SCRIPT");
        drop(script);
        assert_eq!(client.call("SCRIPT KILL"), Reply::ok());
        let began = Instant::now();
        while client.call("GET held") == busy("SCRIPT") {
            assert!(began.elapsed() < LIMIT);
        }
        server.assert_sound();
    });
}

/// Messages for the client of a busy script are buffered until the script ends, up to the client's
/// output buffer limit. If the messages exceed the limit, the buffer is freed and the client is
/// closed.
#[test]
fn messages_for_the_script_s_own_client_are_bounded() {
    const MESSAGE_BYTES: usize = 100_000;
    const MESSAGES: usize = 1500;
    const TOGETHER: usize = 20;
    each_layout(|server| {
        let [mut client, mut script] = [(); 2].map(|()| server.connect());
        // One client on each worker.
        let mut others = [(); 3].map(|()| server.connect());
        client.command(&["CONFIG", "SET", "client-output-buffer-limit", "pubsub 4mb 0 0"]);
        script.call("HELLO 3");
        script.call("SUBSCRIBE news");
        script.send(&["EVAL", ENDLESS, "1", "held"]);
        wait_until_busy(&mut client, "held", "SCRIPT");
        let before = server.peak_resident_bytes();
        let message = "m".repeat(MESSAGE_BYTES);
        for _ in 0..MESSAGES / TOGETHER {
            client.send_together(&vec![vec!["PUBLISH", "news", &message]; TOGETHER]);
            (0..TOGETHER).for_each(|_| assert_eq!(client.receive(), Reply::Integer(1)));
            // One of these clients belongs to the script's worker. When that worker replies, it has
            // processed all messages.
            assert!(others.iter_mut().all(|other| other.call("PING") == pong()));
        }
        let taken = server.peak_resident_bytes().saturating_sub(before);
        // If all messages were buffered, memory would grow by their total size. Messages in flight
        // and the allocator's unused memory may take up to two thirds of the total size.
        assert!(taken < (MESSAGES * MESSAGE_BYTES * 2 / 3) as u64, "{taken} bytes more");
        assert_eq!(client.call("SCRIPT KILL"), Reply::ok());
        assert!(script.ends_within(LIMIT));
        let began = Instant::now();
        while client.call("PUBLISH news x") != Reply::Integer(0) {
            assert!(began.elapsed() < LIMIT, "it is still subscribed");
        }
        // Output below the limit is buffered and arrives in order.
        let mut script = server.connect();
        script.call("HELLO 3");
        script.call("SUBSCRIBE news");
        script.send(&["EVAL", ENDLESS, "1", "held"]);
        wait_until_busy(&mut client, "held", "SCRIPT");
        for number in 0..30 {
            let long = format!("{number}:{}", &message[..if number % 2 == 0 { 0 } else { MESSAGE_BYTES }]);
            assert_eq!(client.command(&["PUBLISH", "news", &long]), Reply::Integer(1));
        }
        assert_eq!(client.call("SCRIPT KILL"), Reply::ok());
        let received: Vec<String> = (0..31)
            .filter_map(|_| match script.receive() {
                Reply::Push(parts) => Some(parts[2].text()),
                _ => None,
            })
            .collect();
        assert!(
            received.iter().enumerate().all(|(at, text)| text.starts_with(&format!("{at}:"))) && received.len() == 30
        );
        server.assert_sound();
    });
}

/// A script that changes a large value is rerun with all shards held. Only this call holds all
/// shards. The next call, on a small value, holds only the shard of its key.
#[test]
fn large_values_do_not_widen_a_script_forever() {
    each_layout(|server| {
        let (mut client, mut script) = (server.connect(), server.connect());
        let text = "redis.call('APPEND', KEYS[1], 'x') if ARGV[1] == 'stay' then while true do end end return 1";
        client.command(&["SET", "huge", &"v".repeat(100_000)]);
        client.command(&["SET", "held", &"v".repeat(60_000)]);
        assert_eq!(script.command(&["EVAL", text, "1", "huge", "go"]), Reply::Integer(1));
        assert_eq!(client.call("STRLEN huge"), Reply::Integer(100_001));
        script.send(&["EVAL", text, "1", "held", "stay"]);
        wait_until_busy(&mut client, "held", "SCRIPT");
        assert!(served(&mut client) > 0, "no command on another shard runs");
        client.send(&["SHUTDOWN", "NOSAVE"]);
        assert!(server.wait_exit(LIMIT).success());
    });
}

/// A worker whose script is busy does all its other work: a tracking client receives invalidations,
/// a pause ends, and keys expire and publish their events.
#[test]
fn nothing_is_delayed_while_a_script_is_busy() {
    each_layout(|server| {
        let [mut client, mut reader, mut listener, mut paused, mut script] = [(); 5].map(|()| server.connect());
        reader.call("HELLO 3");
        assert_eq!(reader.call("CLIENT TRACKING ON BCAST"), Reply::ok());
        client.call("CONFIG SET notify-keyspace-events Ex");
        listener.call("SUBSCRIBE __keyevent@0__:expired");
        script.send(&["EVAL", ENDLESS, "1", "held"]);
        wait_until_busy(&mut client, "held", "SCRIPT");
        let other = OTHERS.iter().find(|key| client.command(&["SET", key, "1", "PX", "50"]) == Reply::ok());
        let other = Reply::bulk(other.expect("no command on another shard runs"));
        // One invalidation arrives for the write, and one for the expiry, which no command causes.
        for _ in 0..2 {
            let Reply::Push(invalidation) = reader.receive() else { panic!("no invalidation") };
            assert_eq!(invalidation[1], Reply::Array(vec![other.clone()]));
        }
        let event = listener.receive();
        assert_eq!(event.elements()[2], other);
        // As in Redis, no pause can start during a busy script, but a pause can end.
        assert_eq!(client.call("CLIENT PAUSE 100000 WRITE"), busy("SCRIPT"));
        assert_eq!(paused.command(&["SET", &other.text(), "2"]), Reply::ok());
        kill(&mut client, &mut script);
        let began = Instant::now();
        assert_eq!(client.call("CLIENT PAUSE 500 WRITE"), Reply::ok());
        let reads = format!("#!lua flags=no-writes\n{ENDLESS}");
        script.send(&["EVAL", &reads, "1", "held"]);
        wait_until_busy(&mut client, "held", "SCRIPT");
        assert_eq!(paused.command(&["SET", &other.text(), "3"]), Reply::ok());
        assert!(began.elapsed() >= Duration::from_millis(490), "it was not paused: {:?}", began.elapsed());
        assert_eq!(client.call("GET held"), busy("SCRIPT"));
        kill(&mut client, &mut script);
        server.assert_sound();
    });
}

/// Two commands wait for a busy script's shards instead of being rejected: `WATCH`, and a `BLMOVE`
/// that is served while its destination is in such a shard. Waiting commands hold no other shard.
#[test]
fn commands_that_wait_for_a_busy_script_hold_no_other_shard() {
    const MOVERS: usize = 12;
    each_layout(|server| {
        let mut client = server.connect();
        let mut script = server.connect();
        let mut movers: Vec<Client> = (0..MOVERS).map(|_| server.connect()).collect();
        for (number, mover) in movers.iter_mut().enumerate() {
            mover.send(&["BLMOVE", &format!("from:{number}"), "to", "LEFT", "RIGHT", "0"]);
        }
        wait_until_blocked(&mut client, MOVERS);
        script.send(&["EVAL", ENDLESS, "1", "to"]);
        wait_until_busy(&mut client, "to", "SCRIPT");
        let free = served(&mut client);
        assert!(free > 0, "no command on another shard runs");
        // A pause needs all shards, and the script holds one of them. The server therefore rejects
        // the pause, and with it the transaction.
        let mut pausing = server.connect();
        pausing.call("MULTI");
        pausing.call("CLIENT PAUSE 100000 ALL");
        let reply = pausing.call("EXEC");
        assert!(
            matches!(&reply, Reply::Error(text) if text.starts_with("EXECABORT") && text.contains("BUSY")),
            "{reply:?}"
        );
        let mut watcher = server.connect();
        watcher.send(&[["WATCH"].as_slice(), &OTHERS, &["to"]].concat());
        let mut pusher = server.connect();
        for number in 0..MOVERS {
            pusher.send(&["RPUSH", &format!("from:{number}"), "x"]);
        }
        std::thread::sleep(Duration::from_millis(200));
        for _ in 0..3 {
            assert_eq!(served(&mut client), free);
            assert_eq!(client.call("FLUSHALL"), busy("SCRIPT"));
            assert_eq!(client.call("CLIENT PAUSE 100000 WRITE"), busy("SCRIPT"));
        }
        kill(&mut client, &mut script);
        assert_eq!(watcher.receive(), Reply::ok());
        // Pushes to a list in the script's shard were rejected.
        let pushed = (0..MOVERS).filter(|_| pusher.receive() == Reply::Integer(1)).count();
        wait_until_blocked(&mut client, MOVERS - pushed);
        assert_eq!(client.call("LLEN to"), Reply::Integer(pushed as i64));
        server.assert_sound();
    });
}

/// A pipeline whose keys are in a busy script's shard waits once, not for each command. This must
/// also hold if the client's worker is the shard's home (the worker to which the shard belongs).
/// Such a worker normally runs the commands without a request.
#[test]
fn a_pipeline_to_a_busy_shard_waits_once() {
    const COMMANDS: u64 = 60;
    let _alone = CORES.lock().unwrap_or_else(PoisonError::into_inner);
    for_each_backend(|backend| {
        let server = Server::pantala(backend, LAYOUTS[2]);
        let mut clients = [0, 1, 2].map(|worker| connect_to_worker(&server, worker));
        let [mut script, mut control] = [(); 2].map(|()| server.connect());
        script.send(&["EVAL", ENDLESS, "1", "held"]);
        wait_until_busy(&mut control, "held", "SCRIPT");
        for client in &mut clients {
            let before = number_of(&mut control, "contended_requests");
            client.send_together(&vec![vec!["INCR", "held"]; COMMANDS as usize]);
            for _ in 0..COMMANDS {
                assert_eq!(client.receive(), busy("SCRIPT"));
            }
            let waits = number_of(&mut control, "contended_requests") - before;
            assert!(waits < COMMANDS / 4, "{waits} of {COMMANDS} commands waited one by one");
        }
        kill(&mut control, &mut script);
    });
}

/// Returns a number from `INFO shards`.
fn number_of(client: &mut Client, field: &str) -> u64 {
    let text = client.call("INFO shards").text();
    let value = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    value.and_then(|value| value.parse().ok()).expect("the field has a number")
}

/// Scripts run at the same time if their keys are in different shards and their clients belong to
/// different workers.
#[test]
fn scripts_run_beside_a_busy_one() {
    each_layout(|server| {
        let mut clients: Vec<Client> = (0..6).map(|_| server.connect()).collect();
        let mut script = server.connect();
        script.send(&["EVAL", ENDLESS, "1", "held"]);
        wait_until_busy(&mut clients[0], "held", "SCRIPT");
        let workers = clients[0].call("CONFIG GET workers").elements()[1].text();
        let mut ran = 0;
        for client in &mut clients {
            for key in OTHERS {
                let reply = client.command(&["EVAL", "return redis.call('INCR', KEYS[1])", "1", key]);
                ran += usize::from(matches!(reply, Reply::Integer(_)));
                assert!(matches!(reply, Reply::Integer(_)) || reply == busy("SCRIPT"), "{reply:?}");
            }
        }
        assert_eq!(ran > 0, workers != "1", "{ran} scripts ran");
        kill(&mut clients[0], &mut script);
    });
}

/// `MULTI` and `EXEC` are sent before, during or after a busy script. All commands of the
/// transaction take effect, or none.
#[test]
fn transactions_around_a_busy_script_run_whole_or_not_at_all() {
    let queued = || Reply::Simple("QUEUED".into());
    each_layout(|server| {
        let [mut client, mut killer, mut script] = [(); 3].map(|()| server.connect());
        let busy_begins = |script: &mut Client, killer: &mut Client| {
            script.send(&["EVAL", ENDLESS, "1", "held"]);
            wait_until_busy(killer, "held", "SCRIPT");
        };
        let is_rejected = |reply: Reply| matches!(reply, Reply::Error(text) if text.starts_with("EXECABORT") && text.contains("BUSY"));
        // MULTI is sent before the busy script, EXEC during it.
        client.call("MULTI");
        assert_eq!(client.call("INCR held"), queued());
        busy_begins(&mut script, &mut killer);
        assert_eq!(client.call("INCR held"), queued());
        assert!(is_rejected(client.call("EXEC")));
        kill(&mut killer, &mut script);
        assert_eq!(client.call("GET held"), Reply::Null);
        // Both MULTI and EXEC are sent during the busy script.
        busy_begins(&mut script, &mut killer);
        for command in ["MULTI", "INCR a", "INCR held"] {
            assert!(!client.call(command).is_error());
        }
        assert!(is_rejected(client.call("EXEC")));
        kill(&mut killer, &mut script);
        assert_eq!(client.call("MGET a held"), Reply::Array(vec![Reply::Null, Reply::Null]));
        // MULTI is sent before the busy script, EXEC after it.
        client.call("MULTI");
        assert_eq!(client.call("INCR held"), queued());
        busy_begins(&mut script, &mut killer);
        assert_eq!(client.call("INCR held"), queued());
        kill(&mut killer, &mut script);
        assert_eq!(client.call("INCR held"), queued());
        assert_eq!(client.call("EXEC"), Reply::Array((1..=3).map(Reply::Integer).collect()));
        // MULTI is sent during the busy script, EXEC after it.
        busy_begins(&mut script, &mut killer);
        assert_eq!((client.call("MULTI"), client.call("INCR held")), (Reply::ok(), queued()));
        kill(&mut killer, &mut script);
        assert_eq!(client.call("INCR held"), queued());
        assert_eq!(client.call("EXEC"), Reply::Array(vec![Reply::Integer(4), Reply::Integer(5)]));
        server.assert_sound();
    });
}

/// When SCRIPT KILL replies OK, the script hasn't written, won't write, and isn't rerun. The script
/// of this test tries to act right after the kill: it writes, or uses undeclared keys. To notice
/// that SCRIPT KILL has arrived, the script watches the clock: the commands before SCRIPT KILL take
/// long, and the script's worker runs all of them while the script is interrupted, so the script
/// sees a gap.
#[test]
fn a_killed_script_does_nothing_more() {
    const TEXT_BYTES: usize = 10_000;
    const COMPARISONS: usize = 12;
    const ATTEMPTS: usize = 20;
    let acts =
        ["redis.call('SET', KEYS[1], 1)", "for i = 1, 4 do redis.call('GET', 'other:' .. i) end while true do end"];
    let _alone = CORES.lock().unwrap_or_else(PoisonError::into_inner);
    for_each_backend(|backend| {
        let mut server = Server::pantala(backend, LAYOUTS[0]);
        let [mut client, mut script] = [(); 2].map(|()| server.connect());
        script.set_read_timeout(LIMIT);
        // One comparison takes dozens of milliseconds.
        for (key, letters) in [("{t}1", "abcdefg"), ("{t}2", "gfdbeca")] {
            client.command(&["SET", key, &letters.repeat(TEXT_BYTES / letters.len())]);
        }
        for act in acts {
            let text = format!(
                "local function now() local t = redis.call('TIME') return t[1] * 1000000 + t[2] end \
                 local last = now() \
                 while true do \
                     local next = now() \
                     if next - last > 60000 then {act} return 'not killed' end \
                     last = next \
                 end"
            );
            let mut killed = 0;
            for _ in 0..ATTEMPTS {
                // After the flush the server doesn't know that the script needs more shards than
                // that of its key.
                client.call("SCRIPT FLUSH");
                script.send(&["EVAL", &text, "1", "held"]);
                let began = Instant::now();
                while ![busy("SCRIPT"), Reply::bulk("1")].contains(&client.call("GET held")) {
                    assert!(began.elapsed() < LIMIT, "no reply is BUSY");
                }
                let mut commands = vec![vec!["LCS", "{t}1", "{t}2", "LEN"]; COMPARISONS];
                commands.push(vec!["SCRIPT", "KILL"]);
                let reply = client.pipeline(&commands).pop().expect("a reply for each command");
                if reply == Reply::ok() {
                    killed += 1;
                    let reply = script.receive();
                    assert!(
                        matches!(&reply, Reply::Error(text) if text.starts_with("ERR Script killed by user")),
                        "{reply:?}"
                    );
                    assert_eq!(client.call("GET held"), Reply::Null);
                    if killed == 3 {
                        break;
                    }
                    continue;
                }
                // On a busy host, the script may have ended before the kill.
                if act.contains("while") {
                    let began = Instant::now();
                    while client.call("SCRIPT KILL") != Reply::ok() {
                        assert!(began.elapsed() < LIMIT);
                    }
                }
                script.receive();
                client.call("DEL held");
            }
            assert!(killed > 0, "it was never killed in time");
        }
        server.assert_sound();
    });
}

/// A script that catches every error of its commands can be killed. Commands that follow the script
/// in the pipeline get replies.
#[test]
fn endless_loops_around_calls_are_killed() {
    let script =
        "while true do pcall(function() while true do redis.pcall('GET', KEYS[1]) redis.call('nosuch') end end) end";
    each_layout(|server| {
        let [mut client, mut caller] = [(); 2].map(|()| server.connect());
        caller.send_together(&[vec!["EVAL", script, "1", "held"], vec!["PING"]]);
        wait_until_busy(&mut client, "held", "SCRIPT");
        kill(&mut client, &mut caller);
        assert_eq!(caller.receive(), pong());
        let function = script.replace("KEYS", "keys");
        let library = format!("#!lua name=lib\nredis.register_function('endless', function(keys) {function} end)");
        client.command(&["FUNCTION", "LOAD", &library]);
        caller.send_together(&[vec!["FCALL", "endless", "1", "held"], vec!["PING"]]);
        wait_until_busy(&mut client, "held", "FUNCTION");
        assert_eq!(client.call("FUNCTION KILL"), Reply::ok());
        assert!(matches!(caller.receive(), Reply::Error(text) if text.starts_with("ERR Script killed by user")));
        assert_eq!(caller.receive(), pong());
        server.assert_sound();
    });
}

/// Error handlers and coroutines can't prevent a script from being killed. One script has an error
/// handler that Lua calls before it unwinds the stack. Other scripts run many short coroutines.
/// Within one coroutine, the server checks for a kill only after a number of instructions, and each
/// of these coroutines ends before that.
#[test]
fn handlers_of_errors_and_coroutines_are_killed() {
    const HANDLED: &str =
        "return tostring(xpcall(function() while true do end end, function(e) while true do end end))";
    const SCRIPTS: [&str; 8] = [
        HANDLED,
        "return tostring(xpcall(error, function(e) while true do end end))",
        "return xpcall(error, function(e) while true do pcall(function() while true do end end) end end)",
        "return xpcall(function() while true do end end, pcall)",
        "while true do coroutine.wrap(function() \
            xpcall(function() while true do end end, function() while true do end end) end)() end",
        "local function nest(depth) \
            if depth == 6 then for _ = 1, 40000 do end return end \
            for _ = 1, 5000 do pcall(coroutine.wrap(nest), depth + 1) coroutine.resume(coroutine.create(nest), depth + 1) end \
        end nest(1)",
        "local t = {} for i = 1, 1000 do t[i] = function() while true do end end end \
            while true do pcall(table.sort, t, pcall) end",
        "while true do pcall(string.gsub, 'abc', '.', function() while true do end end) \
            load(function() while true do end end) end",
    ];
    let is_killed =
        |reply: &Reply| matches!(reply, Reply::Error(text) if text.starts_with("ERR Script killed by user"));
    each_layout(|server| {
        let [mut client, mut script] = [(); 2].map(|()| server.connect());
        let mut others = [(); 4].map(|()| server.connect());
        others.iter_mut().chain([&mut client, &mut script]).for_each(|client| client.set_read_timeout(LIMIT));
        let mut ends = |script: &mut Client, kill: &str, of: &str| {
            wait_until_busy(&mut client, "held", kill);
            assert_eq!(client.call(&format!("{kill} KILL")), Reply::ok());
            assert!(others.iter_mut().all(|other| other.call("PING") == pong()), "{of}");
            let reply = script.receive();
            assert!(is_killed(&reply), "{of}: {reply:?}");
        };
        for (number, of) in SCRIPTS.iter().enumerate() {
            script.send(&["EVAL", of, "1", "held"]);
            ends(&mut script, "SCRIPT", of);
            let library =
                format!("#!lua name=lib{number}\nredis.register_function('endless{number}', function(keys) {of} end)");
            script.command(&["FUNCTION", "LOAD", &library]);
            script.send(&["FCALL", &format!("endless{number}"), "1", "held"]);
            ends(&mut script, "FUNCTION", of);
        }
        server.assert_sound();
        script.send(&["EVAL", HANDLED, "1", "held"]);
        wait_until_busy(&mut others[0], "held", "SCRIPT");
        server.signal(Signal::TERM);
        assert!(server.wait_exit(LIMIT).success());
    });
}
