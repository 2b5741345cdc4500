//! Scripts that run for too long: who needs what they hold is told so, everybody else is served, on their own worker too.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use pantala_tests::{Client, Reply, Server, for_each_backend};

const LAYOUTS: [&[&str]; 3] = [
    &["--workers", "1", "--shards", "8", "--busy-reply-threshold", "50"],
    &["--workers", "3", "--shards", "8", "--busy-reply-threshold", "50"],
    &["--workers", "3", "--shards", "8", "--busy-reply-threshold", "50", "--execution", "owner"],
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

/// Asks for a key until the answer is that a script is busy.
fn wait_until_busy(client: &mut Client, key: &str, kill: &str) {
    let began = Instant::now();
    while client.command(&["GET", key]) != busy(kill) {
        assert!(began.elapsed() < LIMIT, "nobody is told");
    }
}

/// One test at a time: scripts that spin take the cores from each other.
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

/// Some keys that a script on `held` doesn't hold: they live in other shards, most likely.
const OTHERS: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

#[test]
fn others_are_served_while_a_script_is_busy() {
    each_layout(|server| {
        let mut clients: Vec<Client> = (0..6).map(|_| server.connect()).collect();
        let mut script = server.connect();
        clients[0].call("SET held 1");
        // Behind the script, in the same write: runs when it has ended.
        script.send_together(&[vec!["EVAL", ENDLESS, "1", "held"], vec!["PING"], vec!["GET", "held"]]);
        wait_until_busy(&mut clients[0], "held", "SCRIPT");
        for client in &mut clients {
            assert_eq!(client.call("PING"), pong());
            assert_eq!(client.call("SET held 2"), busy("SCRIPT"));
            assert_eq!(client.call("MSET a 1 held 2 f 1"), busy("SCRIPT"));
            assert_eq!(client.command(&["EVAL", "return redis.call('SET', KEYS[1], 3)", "1", "held"]), busy("SCRIPT"));
            assert_eq!(client.call("FUNCTION KILL"), busy("SCRIPT"));
            assert_eq!(client.call("FUNCTION STATS"), busy("SCRIPT"));
            let served = OTHERS.iter().filter(|key| client.command(&["SET", key, "1"]) == Reply::ok()).count();
            assert!(served > 0, "no other shard is served");
            client.call("MULTI");
            client.call("SET held 3");
            let reply = client.call("EXEC");
            assert!(
                matches!(&reply, Reply::Error(text) if text.starts_with("EXECABORT") && text.contains("BUSY")),
                "{reply:?}"
            );
            assert_eq!(client.call("PING"), pong());
        }
        // New connections are served too, and those that go leave nothing behind.
        assert_eq!(server.connect().call("PING"), pong());
        drop(clients.pop());
        assert_eq!(clients[1].call("SCRIPT KILL"), Reply::ok());
        let reply = script.receive();
        assert!(matches!(&reply, Reply::Error(text) if text.starts_with("ERR Script killed by user")), "{reply:?}");
        assert_eq!((script.receive(), script.receive()), (pong(), Reply::bulk("1")));
        for client in &mut clients {
            assert_eq!(client.call("SCRIPT KILL"), error("NOTBUSY No scripts in execution right now."));
            assert_eq!(client.call("GET held"), Reply::bulk("1"));
        }
        assert_eq!(script.call("PING"), pong());
        server.assert_sound();
    });
}

/// Commands of several connections arrive together with the script: none is lost, doubled or answered out of order.
#[test]
fn what_arrived_with_the_script_runs_once_and_in_order() {
    each_layout(|server| {
        let mut clients: Vec<Client> = (0..8).map(|_| server.connect()).collect();
        let mut killer = server.connect();
        clients[0].call("SET held 1");
        let commands = |number: usize| -> Vec<Vec<String>> {
            let key = format!("mine{number}");
            (0..50).map(|_| vec!["INCR".to_owned(), key.clone()]).collect()
        };
        for round in 0..3 {
            // As many as make the worker busy enough to find them in one turn.
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
                        // The counter lives in the shard that the script holds.
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

#[test]
fn what_has_written_can_only_be_ended_with_the_server() {
    each_layout(|server| {
        let mut client = server.connect();
        let mut script = server.connect();
        script.send(&["EVAL", "redis.call('SET', KEYS[1], 1) while true do end", "1", "held"]);
        wait_until_busy(&mut client, "held", "SCRIPT");
        assert!(matches!(client.call("SCRIPT KILL"), Reply::Error(text) if text.starts_with("UNKILLABLE")));
        assert_eq!(client.call("PING"), pong());
        client.send(&["SHUTDOWN", "NOSAVE"]);
        assert!(server.wait_exit(LIMIT).success());
    });
}

#[test]
fn functions_are_told_of_and_killed() {
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
        let command = ["fcall", "endless", "1", "held", "arg"].map(Reply::bulk).to_vec();
        assert_eq!(running.field("command"), Some(&Reply::Array(command)));
        assert_eq!(client.call("SCRIPT KILL"), busy("FUNCTION"));
        assert_eq!(client.call("FUNCTION KILL"), Reply::ok());
        assert!(matches!(caller.receive(), Reply::Error(text) if text.starts_with("ERR Script killed by user")));
        assert_eq!(client.call("FUNCTION KILL"), error("NOTBUSY No scripts in execution right now."));
        assert_eq!(client.call("GET held"), Reply::Null);
    });
}

/// The client of a busy script goes, or is killed, or listens meanwhile.
#[test]
fn the_script_s_own_connection_waits_for_its_end() {
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
        assert_eq!(kinds.len(), 3);
        script.send(&["EVAL", ENDLESS, "1", "held"]);
        wait_until_busy(&mut client, "held", "SCRIPT");
        client.call(&format!("CLIENT KILL ID {id}"));
        assert_eq!(client.call("PING"), pong());
        client.call("SCRIPT KILL");
        assert!(script.ends_within(LIMIT));
        // One that goes in the midst.
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
