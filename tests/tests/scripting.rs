//! Scripts: replies equal those of redis-server byte for byte, and scripts can't harm the server.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use pantala_tests::transcript::assert_as_redis_in_each_form;
use pantala_tests::{Client, Reply, Server, for_each_backend};
use rustix::process::Signal;

#[path = "scripts/corpus.rs"]
mod corpus;
#[path = "scripts/escapes.rs"]
mod escapes;

use corpus::CORPUS;

/// Arguments with several shards (parts of the key space) per worker. A script's keys are then in
/// several shards, which belong to several workers.
const SERVER_ARGS: [&str; 4] = ["--workers", "3", "--shards", "8"];

/// Commands that create the dataset of the scripts.
const DATA: [&str; 6] =
    ["FLUSHALL", "HSET h f v g w", "SADD s 1 2 3", "ZADD z 1.5 a 2 b", "RPUSH l x y z", "SET k text"];

/// Returns the replies to the corpus, byte for byte.
fn transcript(server: &Server, version: u8) -> Vec<String> {
    let mut client = server.connect();
    client.call("SCRIPT FLUSH");
    for command in DATA {
        client.call(command);
    }
    if version == 3 {
        assert!(!matches!(client.call("HELLO 3"), Reply::Error(_)));
    }
    CORPUS
        .iter()
        .map(|command| {
            client.send(command);
            let (_, raw) = client.receive_raw();
            format!("{command:?}: {}", raw.escape_ascii())
        })
        .collect()
}

#[test]
fn scripts_behave_as_in_redis() {
    assert_as_redis_in_each_form(&SERVER_ARGS, transcript);
}

/// Returns calls of all commands and subcommands of `server` that the server rejects in scripts.
/// Such a call has a wrong number of arguments, or an unknown subcommand, or scripts may not call
/// the command.
fn rejected_calls(server: &Server) -> Vec<Vec<String>> {
    const ARGUMENTS_MAX: usize = 6;
    /// Commands to which Redis 7.2 added an option, so that they accept other numbers of arguments
    /// than in Redis 7.0.
    const LATER: [&str; 2] = ["zrank", "zrevrank"];
    fn add(entry: &Reply, calls: &mut Vec<Vec<String>>) {
        let fields = entry.elements();
        let (arity, subcommands) = (fields[1].integer(), fields[9].elements());
        let name: Vec<String> = fields[0].text().split('|').map(str::to_owned).collect();
        let is_for_clients = fields[2].elements().iter().any(|flag| flag.text() == "noscript");
        for count in name.len()..=ARGUMENTS_MAX {
            let is_accepted = if arity >= 0 { count as i64 == arity } else { count as i64 >= -arity };
            let is_rejected = is_for_clients || !is_accepted || !subcommands.is_empty() && count > 1;
            if is_rejected && !LATER.contains(&name[0].as_str()) {
                let mut call = name.clone();
                call.resize(count, "nosuch".into());
                calls.push(call);
            }
        }
        subcommands.iter().for_each(|sub| add(sub, calls));
    }
    let mut calls = Vec::new();
    server.connect().call("COMMAND").elements().iter().for_each(|entry| add(entry, &mut calls));
    calls
}

/// Calls in scripts are rejected with the same errors as in Redis, for every command of Redis 7.0,
/// even if Pantala doesn't implement the command. If scripts may call such a command, a script gets
/// the same error as a client.
#[test]
fn commands_are_rejected_in_scripts_as_in_redis() {
    let Some(reference) = Server::redis(&[]) else { return };
    let calls = rejected_calls(&reference);
    assert!(calls.len() > 1000, "only {} calls", calls.len());
    for_each_backend(|backend| {
        let server = Server::pantala(backend, &SERVER_ARGS);
        let (mut given, mut right) = (server.connect(), reference.connect());
        let calling = |function: &str, call: &[String]| {
            let script = format!("return {{redis.{function}(unpack(ARGV))}}");
            [&["EVAL".into(), script, "0".into()], call].concat()
        };
        for call in &calls {
            let call = calling("pcall", call);
            assert_eq!(given.command(&call), right.command(&call), "{call:?}");
        }
        for call in [&["LASTSAVE".to_owned()][..], &["module".into(), "Help".into()]] {
            assert_eq!(given.command(&calling("pcall", call)).elements()[0], given.command(call));
            let may_call = calling("acl_check_cmd", call);
            assert_eq!(given.command(&may_call), right.command(&may_call));
        }
    });
}

/// A pipeline runs while scripts hold all shards, one script directly after the other. When a
/// command of the pipeline waits for shards, the commands after it wait together with it, and not
/// one after the other. Replies keep their order, and each command sees the changes of earlier
/// ones.
#[test]
fn pipelines_beside_wide_scripts_wait_together() {
    const SCRIPTS: i64 = 4;
    const TRIES_MAX: usize = 20;
    // The script runs so long that a pipeline arrives during the script and finds all shards held.
    let wide = "for i = 1, 2000000 do end for i = 1, 50 do redis.call('SET', 'key:' .. i, i) end return redis.call('INCR', 'runs')";
    for_each_backend(|backend| {
        let server = Server::pantala(backend, &["--workers", "2", "--shards", "40"]);
        let mut calling = server.connect();
        // After this run the server knows that the script uses undeclared keys.
        let mut runs = 1;
        assert_eq!(calling.command(&["EVAL", wide, "0"]), Reply::Integer(runs));
        // At least one of these clients belongs to another worker than the script's client. Its
        // commands wait for shards.
        let mut others = [server.connect(), server.connect()];
        let words = |key: u32, words: [&str; 2]| vec![words[0].to_owned(), format!("own:{key}"), words[1].to_owned()];
        let pipeline: Vec<Vec<String>> = (1..=20)
            .flat_map(|key| {
                let name = format!("own:{key}");
                [
                    words(key, ["SET", "a"]),
                    words(key, ["APPEND", "b"]),
                    vec!["GET".into(), name.clone()],
                    vec!["DEL".into(), name],
                ]
            })
            .collect();
        let wanted = [Reply::ok(), Reply::Integer(2), Reply::bulk("ab"), Reply::Integer(1)];
        let wanted: Vec<Reply> = wanted.iter().cycle().take(pipeline.len()).cloned().collect();
        let joined = |client: &mut Client| -> u64 {
            let info = client.call("INFO workers").text();
            info.split("joined=").skip(1).map(|rest| rest.split(',').next().unwrap().parse::<u64>().unwrap()).sum()
        };
        let scripts: Vec<Vec<&str>> = (0..SCRIPTS).map(|_| vec!["EVAL", wide, "0"]).collect();
        for _ in 0..TRIES_MAX {
            calling.send_together(&scripts);
            // Waits until the first of the scripts has run.
            while others[0].call("GET runs") == Reply::bulk(runs.to_string()) {}
            for other in &mut others {
                assert_eq!(other.pipeline(&pipeline), wanted);
            }
            for _ in 0..SCRIPTS {
                runs += 1;
                assert_eq!(calling.receive(), Reply::Integer(runs));
            }
            if joined(&mut calling) > 0 {
                return;
            }
        }
        panic!("no commands of {TRIES_MAX} pipelines waited together");
    });
}

/// Scripts use undeclared keys in different shards, before and after writes. The writes take effect
/// once.
#[test]
fn undeclared_keys_work() {
    for_each_backend(|backend| {
        let server = Server::pantala(backend, &SERVER_ARGS);
        let mut client = server.connect();
        let fill = "for i = 1, 100 do redis.call('INCR', 'made:' .. i) end return redis.call('INCR', KEYS[1])";
        for round in 1..=3 {
            assert_eq!(client.command(&["EVAL", fill, "1", "declared"]), Reply::Integer(round));
            let sum = "local sum = 0 for i = 1, 100 do sum = sum + redis.call('GET', 'made:' .. i) end return sum";
            assert_eq!(client.command(&["EVAL", sum, "0"]), Reply::Integer(100 * round));
        }
        assert_eq!(client.call("DBSIZE"), Reply::Integer(101));
        // Values of every type are rolled back before the second run.
        for command in
            ["RPUSH l 1 2", "HSET h a 1", "SADD s 1 x", "ZADD z 1 a", "XADD x 1-1 a b", "SETEX v 100 1", "SET big 1"]
        {
            client.call(command);
        }
        let big = "redis.call('SETRANGE', 'big', 10000, 'x') redis.call('APPEND', KEYS[1], 'x') redis.call('SET', 'other', 1) return redis.call('STRLEN', KEYS[1])";
        assert_eq!(client.command(&["EVAL", big, "1", "big"]), Reply::Integer(10_002));
        let changes = [
            ("l", "RPUSH", "3", "LLEN", 3),
            ("s", "SADD", "3", "SCARD", 3),
            ("v", "APPEND", "x", "STRLEN", 2),
            ("new", "RPUSH", "3", "LLEN", 1),
        ];
        for (key, change, with, ask, len) in changes {
            let script = format!(
                "redis.call('{change}', KEYS[1], '{with}') redis.call('{change}', KEYS[1] .. 'twin', '{with}') return redis.call('{ask}', KEYS[1])"
            );
            assert_eq!(client.command(&["EVAL", &script, "1", key]), Reply::Integer(len), "{key}");
        }
        assert_eq!(client.call("TTL v"), Reply::Integer(100));
    });
}

/// Scripts that are rolled back after some calls have succeeded or failed. The reasons differ: one
/// script calls `PUBLISH`, one changes a large value, and the others use an undeclared key. The
/// last script ends with an error.
const ROLLED_BACK: [&str; 7] = [
    "redis.pcall('nosuch') return redis.call('get','undeclared')",
    "redis.pcall('get') return redis.call('get','undeclared')",
    "redis.pcall('subscribe','x') redis.pcall('incr','text') redis.pcall('lpush','text','x') return redis.call('get','undeclared')",
    "redis.call('set',KEYS[1],'v') redis.call('echo','x') for i=1,9 do redis.call('get',KEYS[1]) end return redis.call('get','undeclared')",
    "redis.pcall('debug','error','MINE a') redis.pcall('get',KEYS[1],'b') return redis.call('publish','channel','x')",
    "redis.pcall('nosuch') return redis.call('append','large','x')",
    "redis.pcall('nosuch') redis.call('get','undeclared') return redis.call('lpush','text','x')",
];

/// Runs each script twice and returns the counters of `INFO`.
fn counts_of_scripts(server: &Server, _: u8) -> Vec<String> {
    let mut client = server.connect();
    client.call("FLUSHALL");
    client.call("SET text x");
    client.call("SETRANGE large 100000 x");
    let is_compared = |line: &&str| {
        !line.starts_with("cmdstat_info")
            && ["cmdstat_", "errorstat_", "total_error"].iter().any(|head| line.starts_with(head))
    };
    let without_times =
        |line: &str| line.split(',').filter(|field| !field.starts_with("usec")).collect::<Vec<_>>().join(",");
    let mut lines = Vec::new();
    for script in ROLLED_BACK {
        client.call("SCRIPT FLUSH");
        client.call("CONFIG RESETSTAT");
        for _ in 0..2 {
            client.command(&["EVAL", script, "1", "key"]);
            let info = client.call("INFO all").text();
            let mut counters: Vec<String> = info.lines().filter(is_compared).map(without_times).collect();
            counters.sort();
            lines.push(format!("{script}: {}", counters.join(" ")));
        }
    }
    lines
}

/// The counters of `INFO` equal those of Redis, which runs each script once. A script that is
/// rolled back and rerun therefore counts once, and so do its calls and their errors.
#[test]
fn calls_of_scripts_are_counted_as_in_redis() {
    assert_as_redis_in_each_form(&SERVER_ARGS, counts_of_scripts);
}

/// The undo log (the former values, for a rollback) keeps a part of its memory between runs of
/// scripts. In some rounds, the script changes more keys than fit into this part. The script
/// changes each key twice, with values of many lengths, and then changes a value that is too large
/// for the undo log. When the script is rerun, all keys must have their original values. The next
/// script on that worker must roll back only its own changes.
#[test]
fn many_keys_are_rolled_back() {
    for_each_backend(|backend| {
        let server = Server::pantala(backend, &SERVER_ARGS);
        let mut client = server.connect();
        let script = "for _, key in ipairs(KEYS) do redis.call('APPEND', key, 'a') redis.call('APPEND', key, 'b') end return #KEYS";
        let large = "x".repeat(100_000);
        for (round, count) in [1, 3, 600, 2, 600, 1].into_iter().enumerate() {
            client.call("FLUSHALL");
            let keys: Vec<String> = (0..count).map(|number| format!("k:{number}")).collect();
            let value = |number: usize| if number.is_multiple_of(2) { "x".repeat(number) } else { String::new() };
            for (number, key) in keys.iter().enumerate() {
                if !value(number).is_empty() {
                    client.command(&["SET", key, &value(number)]);
                }
            }
            client.command(&["SET", "large", &large]);
            let number_of_keys = (count + 1).to_string();
            let mut words = vec!["EVAL", script, &number_of_keys];
            words.extend(keys.iter().map(String::as_str).chain(["large"]));
            assert_eq!(client.command(&words), Reply::Integer(count + 1));
            for (number, key) in keys.iter().enumerate() {
                assert_eq!(client.command(&["GET", key]), Reply::bulk(&(value(number) + "ab")), "round {round}: {key}");
            }
            assert_eq!(client.call("STRLEN large"), Reply::Integer(large.len() as i64 + 2), "round {round}");
            assert_eq!(client.call("DBSIZE"), Reply::Integer(count + 1));
        }
    });
}

/// A script that looks up a missing declared key creates the event `keymiss`, which is stored until
/// the script commits. The commit releases the event's memory. Even after many such scripts, the
/// next one therefore has room for its own events, and runs once.
#[test]
fn events_of_earlier_calls_take_no_space() {
    const CALLS: u64 = 3000;
    for_each_backend(|backend| {
        let server = Server::pantala(backend, &["--workers", "1"]);
        let mut client = server.connect();
        client.call("CONFIG SET notify-keyspace-events KEm");
        let key = "k".repeat(1000);
        for _ in 0..CALLS {
            assert_eq!(client.command(&["EVAL", "return redis.call('GET', KEYS[1])", "1", &key]), Reply::Null);
        }
        let misses = client.call("INFO stats").text();
        assert!(misses.contains(&format!("keyspace_misses:{CALLS}\r\n")), "{misses}");
    });
}

/// The changes that a script makes before it fails persist. They are applied once, even if the
/// script was rolled back and rerun before it failed.
#[test]
fn changes_of_a_script_before_its_error_persist() {
    let fails =
        ["redis.call('LPUSH', KEYS[1], 1)", "error('mine')", "return redis.error_reply('MINE text')", "nosuch()"];
    for_each_backend(|backend| {
        let server = Server::pantala(backend, &SERVER_ARGS);
        let mut client = server.connect();
        for undeclared in ["", "for i = 1, 20 do redis.call('INCR', 'undeclared:' .. i) end"] {
            for (number, fails) in fails.iter().enumerate() {
                client.call("FLUSHALL");
                let script =
                    format!("redis.call('INCR', KEYS[1]) {undeclared} redis.call('APPEND', KEYS[1], 'x') {fails}");
                assert!(client.command(&["EVAL", &script, "1", "k"]).is_error(), "{script}");
                assert_eq!(client.call("GET k"), Reply::bulk("1x"), "{number}: {script}");
                let wanted = if undeclared.is_empty() { Reply::Null } else { Reply::bulk("1") };
                assert_eq!(client.call("GET undeclared:20"), wanted, "{script}");
            }
        }
    });
}

/// Scripts in a transaction run together with the other commands of the transaction.
#[test]
fn scripts_in_transactions() {
    for_each_backend(|backend| {
        let server = Server::pantala(backend, &SERVER_ARGS);
        let mut client = server.connect();
        client.call("MULTI");
        client.call("SET a 1");
        client.command(&["EVAL", "redis.call('INCR', 'b') return redis.call('INCR', KEYS[1])", "1", "a"]);
        client.call("GET b");
        let wanted = Reply::Array(vec![Reply::ok(), Reply::Integer(2), Reply::bulk("1")]);
        assert_eq!(client.call("EXEC"), wanted);
    });
}

/// Clients kill an endless script that catches all errors, and scripts that do not end because a
/// metamethod of their error runs endlessly.
#[test]
fn endless_scripts_are_killed() {
    const ENDLESS: [&str; 3] = [
        "while true do pcall(function() while true do end end) end",
        "error(setmetatable({}, {__newindex = function() while true do end end}))",
        "error(setmetatable({}, {__index = function() while true do end end}))",
    ];
    for_each_backend(|backend| {
        let server = Server::pantala(backend, &["--workers", "2", "--shards", "4", "--busy-reply-threshold", "100"]);
        for script in ENDLESS {
            let mut busy = server.connect();
            let others: Vec<Client> = (0..4).map(|_| server.connect()).collect();
            busy.send(&["EVAL", script, "0"]);
            let (kills, start) = (AtomicUsize::new(0), Instant::now());
            std::thread::scope(|scope| {
                for mut client in others {
                    let kills = &kills;
                    scope.spawn(move || {
                        while kills.load(Ordering::Relaxed) == 0 {
                            // SCRIPT KILL finds no script before the script has run for the
                            // threshold.
                            let reply = client.call("SCRIPT KILL");
                            if reply == Reply::ok() {
                                kills.fetch_add(1, Ordering::Relaxed);
                            } else {
                                assert!(
                                    matches!(&reply, Reply::Error(text) if text.starts_with("NOTBUSY")),
                                    "{reply:?}"
                                );
                                assert!(
                                    start.elapsed() < Duration::from_secs(30),
                                    "the script is never reported as busy"
                                );
                            }
                        }
                    });
                }
            });
            let reply = busy.receive();
            let is_killed = matches!(&reply, Reply::Error(text) if text.starts_with("ERR Script killed by user"));
            assert!(is_killed, "{script}: {reply:?}");
            assert_eq!(busy.call("PING"), Reply::Simple("PONG".into()));
        }
    });
}

/// A script that has written can't be killed, but a signal still stops the server while such a
/// script runs. If there are save points, the server waits for the script, as Redis does, because
/// the snapshot needs all shards.
#[test]
fn an_endless_script_does_not_prevent_shutdown() {
    for_each_backend(|backend| {
        let mut server = Server::pantala(backend, &["--workers", "1", "--save", ""]);
        let mut client = server.connect();
        client.send(&["EVAL", "redis.call('SET', KEYS[1], 1) while true do end", "1", "k"]);
        // During this sleep, the script starts.
        std::thread::sleep(Duration::from_millis(300));
        server.signal(Signal::TERM);
        assert!(server.wait_exit(Duration::from_secs(30)).success());
    });
}
