//! `MONITOR`, `SLOWLOG` and `LATENCY`: compares them with redis-server, and checks their properties
//! with several workers.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use pantala_tests::client::encode;
use pantala_tests::transcript::assert_as_redis_in_each_form;
use pantala_tests::waiting::eventually;
use pantala_tests::{Backend, Client, Reply, Server, for_each_backend, for_each_form};

/// The command that ends a monitored session.
const END: &str = "ECHO the-end";

/// Returns a client in `MONITOR` mode.
fn monitor(server: &Server) -> Client {
    let mut client = server.connect();
    assert_eq!(client.call("MONITOR"), Reply::ok());
    client
}

/// Returns the next line of a monitor, as [`shown`] shows it.
fn line(monitor: &mut Client) -> String {
    shown(&monitor.receive().text())
}

/// Returns a monitor's line without the time and with `addr` in place of an address.
fn shown(line: &str) -> String {
    let (time, rest) = line.split_once(' ').expect("time, and more");
    let (seconds, us) = time.split_once('.').expect("seconds and microseconds");
    assert!(seconds.len() == 10 && us.len() == 6, "{time}");
    let (head, words) = rest.split_once(']').expect("[database address]");
    let (db, address) = head[1..].split_once(' ').expect("a database and an address");
    let address = if address.starts_with("127.0.0.1:") { "addr" } else { address };
    format!("[{db} {address}]{words}")
}

#[test]
fn a_monitor_sees_commands_as_in_redis() {
    let Some(reference) = Server::redis(&[]) else { return };
    let script: &[&[u8]] = &[
        b"SET a b",
        b"set a \"\x00\n\t\r\\\x07\x08\x7f\xff'",
        b"GET",
        b"NOSUCH a",
        b"AUTH x",
        b"AUTH default pw",
        b"HELLO 3 AUTH default pw",
        b"HELLO 2 auth default x SETNAME foo",
        b"CONFIG GET port",
        b"CLIENT LIST",
        b"CLIENT SETNAME nn",
        b"Multi",
        b"SET x 1",
        b"SELECT 3",
        b"GET x",
        b"CONFIG GET port",
        b"MONITOR",
        b"eXec",
        b"MULTI",
        b"DISCARD",
        b"EXEC",
        b"MULTI",
        b"NOSUCH",
        b"EXEC",
        b"WATCH a b",
        b"MULTI",
        b"WATCH a",
        b"EXEC",
        b"UNWATCH",
        b"BLPOP nolist 0.01",
        b"LPUSH a 1",
        b"LPUSH l 1 2",
        b"BLPOP l 0.01",
        b"MSET a 1 b 2",
        b"FLUSHALL",
        b"DBSIZE",
        b"INFO server",
        b"SLOWLOG LEN",
        b"SUBSCRIBE x",
        b"UNSUBSCRIBE x",
        b"OBJECT HELP",
        b"RESET",
        END.as_bytes(),
    ];
    for_each_form(|backend, execution| {
        let subject = Server::pantala(backend, &["--workers", "3", "--shards", "8", "--execution", execution]);
        let [given, right] = [&subject, &reference].map(|server| {
            let (mut monitor, mut client) = (monitor(server), server.connect());
            for command in script {
                client.command(&command.split(|byte| *byte == b' ').collect::<Vec<_>>());
            }
            let mut lines = Vec::new();
            while lines.last().is_none_or(|line: &String| !line.contains("the-end")) {
                lines.push(line(&mut monitor));
            }
            lines
        });
        assert_eq!(given, right);
    });
}

/// MONITOR shows the commands of a script or function after the call of that script or function.
#[test]
fn a_monitor_sees_scripts_as_in_redis() {
    let Some(reference) = Server::redis(&[]) else { return };
    let library = "#!lua name=l\nredis.register_function('f', function(k) return redis.call('get', k[1]) end)
        redis.register_function{function_name='n', callback=function(k) return redis.call('set', k[1], 1) end, flags={'no-writes'}}";
    let commands: &[&[&str]] = &[
        &["Eval", "redis.call('Set',KEYS[1],'1') return redis.call('get','undeclared')", "1", "a"],
        &["EVAL_RO", "return redis.call('get','x')", "0"],
        &["SCRIPT", "LOAD", "return redis.call('ping')"],
        &["EVALSHA", "b3a02c833904802db9c34a3cf1292eee3246df3c", "0"],
        &["EVALSHA_RO", "b3a02c833904802db9c34a3cf1292eee3246df3c", "0"],
        &["EVALSHA", "nosuch", "0"],
        &["EVAL", "syntax err(", "0"],
        &["EVAL", "return 1", "5"],
        &["EVAL", "return 1", "x"],
        &["EVAL", "return redis.pcall('nosuch')", "0"],
        &["EVAL", "return redis.pcall('set')", "0"],
        &["EVAL", "return redis.pcall('blpop','q',0)", "0"],
        &["EVAL", "return redis.pcall('config','get','x')", "0"],
        &["EVAL", "redis.call('select',3) return redis.call('get','s3')", "0"],
        &["EVAL", "return redis.pcall('xread','block',1,'streams','q','0')", "0"],
        &["EVAL", "return redis.pcall('lpush','a',1)", "0"],
        &["EVAL", "redis.call('publish','c','m') return redis.call('mset','a',1,'b',2)", "0"],
        &["FUNCTION", "LOAD", library],
        &["FCALL", "f", "1", "x"],
        &["FCALL_RO", "f", "1", "x"],
        &["FCALL_RO", "n", "1", "x"],
        &["FCALL", "nosuch", "1", "x"],
        &["MULTI"],
        &["SET", "q", "1"],
        &["EVAL", "return redis.call('get','within')", "0"],
        &["FCALL", "f", "1", "x"],
        &["EXEC"],
        &["ECHO", "the-end"],
    ];
    for_each_form(|backend, execution| {
        let subject = Server::pantala(backend, &["--workers", "3", "--shards", "8", "--execution", execution]);
        let [given, right] = [&subject, &reference].map(|server| {
            let (mut monitor, mut client) = (monitor(server), server.connect());
            client.call("FUNCTION FLUSH");
            client.call("FLUSHALL");
            for command in commands {
                client.command(command);
            }
            let mut lines = Vec::new();
            while lines.last().is_none_or(|line: &String| !line.contains("the-end")) {
                lines.push(line(&mut monitor));
            }
            lines
        });
        assert_eq!(given, right);
    });
}

#[test]
fn a_monitor_is_a_client_as_in_redis() {
    let Some(reference) = Server::redis(&[]) else { return };
    for_each_backend(|backend| {
        let subject = Server::pantala(backend, &["--workers", "2"]);
        let [given, right] = [&subject, &reference].map(|server| {
            let (mut monitor, mut other) = (monitor(server), server.connect());
            let flags = other.call("CLIENT LIST").text();
            let flags = flags.lines().filter(|line| line.contains("flags=O")).count();
            let mut replies = vec![Reply::Integer(flags as i64)];
            replies
                .extend(["GET a", "SET a b", "CLIENT LIST TYPE pubsub", "RESET"].map(|command| monitor.call(command)));
            // As a monitor, the client has seen its own commands. After RESET it must not see any
            // more commands.
            other.call("SET after reset");
            replies.push(monitor.call("GET after"));
            replies
        });
        assert_eq!(given, right);
    });
}

/// Sends `commands` together. Returns the lines up to the line of [`END`], then the replies.
/// Pantala may send the line of a command after the replies to later commands.
fn until_end(monitor: &mut Client, commands: &[&str]) -> Vec<String> {
    let commands = commands.iter().chain(&[END]);
    monitor.send_raw(&commands.flat_map(|words| encode(&words.split(' ').collect::<Vec<_>>())).collect::<Vec<_>>());
    let (mut lines, mut replies) = (Vec::new(), Vec::new());
    while lines.last().is_none_or(|last: &String| !last.ends_with(r#""the-end""#)) {
        let text = monitor.receive().text();
        match text.contains(" [") {
            true => lines.push(shown(&text)),
            false => replies.push(text),
        }
    }
    lines.append(&mut replies);
    lines
}

/// `CLIENT REPLY OFF` and `SKIP` suppress lines as they suppress replies.
#[test]
fn a_monitor_without_replies_receives_no_lines_as_in_redis() {
    assert_as_redis_in_each_form(&["--workers", "2"], |server, version| {
        let hello = format!("HELLO {version}");
        let (mut other, mut late) = (server.connect(), server.connect());
        [&mut other, &mut late].into_iter().for_each(|client| drop(client.call(&hello)));
        late.send_raw(&[encode(&["CLIENT", "REPLY", "OFF"]), encode(&["MONITOR"])].concat());
        eventually("it monitors", || other.call("CLIENT LIST").text().contains("flags=O"));
        other.call("PING during-off");
        late.send(&["CLIENT", "REPLY", "ON"]);
        let mut lines = vec![late.receive().text(), line(&mut late)];
        other.call("PING after-off");
        lines.push(line(&mut late));
        lines.extend(until_end(&mut late, &["GET a", "CLIENT REPLY OFF", "GET b", "GET c", "CLIENT REPLY ON"]));
        late.send(&["CLIENT", "REPLY", "SKIP"]);
        lines.push(line(&mut late));
        other.call("PING during-skip");
        lines.extend(until_end(&mut late, &["GET a"]));
        for skipped in ["GET a", "PING", "CONFIG GET port", "NOSUCH"] {
            lines.extend(until_end(&mut late, &["GET b", "CLIENT REPLY SKIP", skipped, "GET c"]));
            lines.push(late.call("RESET").text());
            [hello.as_str(), "MONITOR"].into_iter().for_each(|words| drop(late.call(words)));
        }
        lines
    });
}

/// Clients on all workers change one shared key and keys of their own. The monitor sees every
/// command once, and each client's commands in order. The values of the shared key match the order
/// of the monitor's lines.
#[test]
fn a_monitor_sees_all_commands_in_a_consistent_order() {
    const CLIENTS: usize = 6;
    const COMMANDS: usize = 300;
    for_each_backend(|backend| {
        let server = Server::pantala(backend, &["--workers", "3", "--shards", "8"]);
        let mut monitor = monitor(&server);
        let replies: Vec<Vec<i64>> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..CLIENTS)
                .map(|number| {
                    let server = &server;
                    scope.spawn(move || {
                        let mut client = server.connect();
                        let mut replies = Vec::new();
                        for round in 0..COMMANDS {
                            let own = encode(&["SET", &format!("own:{number}"), &round.to_string()]);
                            let by = number + 1;
                            let shared = encode(&["INCRBY", "shared", &by.to_string()].map(str::to_owned));
                            client.send_raw(&[own, shared].concat());
                            assert_eq!(client.receive(), Reply::ok());
                            replies.push(client.receive().integer());
                        }
                        replies
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().expect("a client")).collect()
        });
        let (mut shared, mut rounds) = (0, [0; CLIENTS]);
        let mut seen: Vec<Vec<i64>> = vec![Vec::new(); CLIENTS];
        for _ in 0..2 * CLIENTS * COMMANDS {
            let line = line(&mut monitor);
            let words: Vec<&str> = line.split('"').skip(1).step_by(2).collect();
            match words.as_slice() {
                ["SET", key, round] => {
                    let number: usize = key.trim_start_matches("own:").parse().expect("a number");
                    assert_eq!(*round, rounds[number].to_string(), "{line}");
                    rounds[number] += 1;
                }
                ["INCRBY", "shared", by] => {
                    let by: usize = by.parse().expect("a number");
                    shared += by as i64;
                    seen[by - 1].push(shared);
                }
                _ => panic!("{line}"),
            }
        }
        assert_eq!(seen, replies);
    });
}

/// Returns entries of the log. Leaves out IDs, times and durations, and the ports of addresses.
fn entries(client: &mut Client, command: &str) -> Vec<Vec<String>> {
    let entry = |entry: &Reply| {
        let [_, at, _, args, address, name] = entry.elements() else { panic!("not six parts: {entry:?}") };
        assert!(at.integer() > 1_600_000_000, "{at:?}");
        let mut words: Vec<String> = args.elements().iter().map(Reply::text).collect();
        words.push(address.text().split(':').next().unwrap_or_default().to_owned());
        words.push(name.text());
        words
    };
    client.call(command).elements().iter().map(entry).collect()
}

#[test]
fn the_slow_log_is_that_of_redis() {
    let Some(reference) = Server::redis(&[]) else { return };
    for_each_form(|backend, execution| {
        let subject = Server::pantala(backend, &["--workers", "2", "--shards", "4", "--execution", execution]);
        let [given, right] = [&subject, &reference].map(|server| {
            let (mut client, mut other) = (server.connect(), server.connect());
            let mut seen = Vec::new();
            client.call("CONFIG SET slowlog-log-slower-than 0 slowlog-max-len 10");
            client.call("SLOWLOG RESET");
            client.call("CLIENT SETNAME me");
            client.command(&["SET", "k", &"x".repeat(200)]);
            client.call(&format!("LPUSH list {}", vec!["y"; 40].join(" ")));
            for command in
                // The first command times out.
                [
                    "BLPOP none 0.01",
                    "CONFIG SET requirepass x requirepass x",
                    "GET",
                    "NOSUCH",
                    "MULTI",
                    "SET a 1",
                    "LPOP a",
                    "EXEC",
                ]
            {
                client.call(command);
            }
            client.command(&["EVAL", "redis.call('GET', KEYS[1]) return redis.pcall('LPUSH', KEYS[1], 1)", "1", "k"]);
            seen.push(entries(&mut client, "SLOWLOG GET -1"));
            other.send(&["BLPOP", "wait", "0"]);
            while !client.call("INFO clients").text().contains("blocked_clients:1") {
                std::thread::sleep(Duration::from_millis(5));
            }
            client.call("SLOWLOG RESET");
            client.call("RPUSH wait 1");
            other.receive();
            // The blocked command and the command that wakes it may be logged by different workers,
            // so either entry may be first.
            let mut woken = entries(&mut client, "SLOWLOG GET 3");
            woken.sort();
            seen.push(woken);
            client.call("CONFIG SET slowlog-log-slower-than -1");
            client.call("SLOWLOG RESET");
            client.call("SET not logged");
            client.call("CONFIG SET slowlog-log-slower-than 250000");
            let replies = [
                "SLOWLOG LEN",
                "DEBUG SLEEP 0.3",
                "SLOWLOG LEN",
                "GET not",
                "SLOWLOG GET -2",
                "SLOWLOG GET x",
                "SLOWLOG GET 1 2",
                "SLOWLOG FOO",
                "SLOWLOG RESET x",
                "SLOWLOG LEN",
            ];
            let replies = replies.map(|command| client.call(command));
            seen.push(entries(&mut client, "SLOWLOG GET"));
            (seen, replies)
        });
        assert_eq!(given, right);
    });
}

/// All workers add entries to the same slow log. The entries are ordered by their IDs.
#[test]
fn the_slow_log_is_one_over_all_workers() {
    for_each_backend(|backend| {
        let server = Server::pantala(backend, &["--workers", "3", "--shards", "8"]);
        let mut clients: Vec<Client> = (0..6).map(|_| server.connect()).collect();
        clients[0].call("CONFIG SET slowlog-log-slower-than 0 slowlog-max-len 20");
        clients[0].call("SLOWLOG RESET");
        for round in 0..10 {
            for (number, client) in clients.iter_mut().enumerate() {
                client.call(&format!("SET key:{number} {round}"));
            }
        }
        let log = clients[0].call("SLOWLOG GET -1");
        let ids: Vec<i64> = log.elements().iter().map(|entry| entry.elements()[0].integer()).collect();
        assert_eq!(ids.len(), 20);
        assert!(ids.windows(2).all(|pair| pair[0] == pair[1] + 1), "{ids:?}");
        let mut by_key: HashMap<String, usize> = HashMap::new();
        for entry in log.elements() {
            *by_key.entry(entry.elements()[3].elements()[1].text()).or_default() += 1;
        }
        assert!(by_key.len() == 6 && by_key.values().all(|count| *count >= 3), "{by_key:?}");
    });
}

/// With a threshold of 2 ms, the large command of a pipeline is logged, but the short commands
/// around it are not.
#[test]
fn only_the_slow_command_of_a_pipeline_is_logged() {
    let server = Server::pantala(Backend::all()[0], &["--workers", "1", "--slowlog-log-slower-than", "2000"]);
    let mut client = server.connect();
    let members: Vec<String> = (0..200_000).map(|number| format!("member:{number}")).collect();
    let mut batch: Vec<Vec<u8>> = vec![encode(&["SET", "a", "1"]); 20];
    batch.push(encode(&[vec!["SADD".to_owned(), "set".to_owned()], members].concat()));
    batch.extend(vec![encode(&["GET", "a"]); 20]);
    client.send_raw(&batch.concat());
    for _ in 0..batch.len() {
        assert!(!client.receive().is_error());
    }
    // On a busy host, the worker may have been preempted during a plain command, which adds an
    // entry.
    let log = client.call("SLOWLOG GET -1");
    let entry = log.elements().iter().find(|entry| entry.elements()[3].elements()[0] == Reply::bulk("SADD"));
    let entry = entry.unwrap_or_else(|| panic!("no SADD: {log:?}"));
    assert!(entry.elements()[2].integer() >= 2000);
}

/// Returns the commands and their numbers of calls in a reply to `LATENCY HISTOGRAM`, without
/// times. Checks that the last bucket's count is the number of calls.
fn histograms(reply: &Reply) -> Vec<(String, i64)> {
    let one = |pair: &[Reply]| {
        let parts = pair[1].elements();
        let calls = parts[1].integer();
        let counts = parts[3].elements();
        assert_eq!(counts.last().map(Reply::integer), Some(calls), "{reply:?}");
        let ascends = counts.chunks(2).map(|step| step[0].integer()).collect::<Vec<_>>().is_sorted();
        assert!(ascends, "{reply:?}");
        (pair[0].text(), calls)
    };
    // Redis lists subcommands in the order of a hash table.
    let mut all: Vec<_> = reply.elements().chunks(2).map(one).collect();
    all.sort();
    all
}

#[test]
fn latency_statistics_are_those_of_redis() {
    let Some(reference) = Server::redis(&[]) else { return };
    for_each_form(|backend, execution| {
        let subject = Server::pantala(backend, &["--workers", "2", "--shards", "4", "--execution", execution]);
        let [given, right] = [&subject, &reference].map(|server| {
            let mut clients: Vec<Client> = (0..4).map(|_| server.connect()).collect();
            clients[0].call("CONFIG SET latency-tracking yes");
            clients[0].call("CONFIG RESETSTAT");
            for client in &mut clients {
                for command in
                    ["SET a b", "SET c d", "GET a", "HSET f k v", "CLIENT ID", "CLIENT INFO", "GET", "LPUSH a x"]
                {
                    client.call(command);
                }
            }
            let client = &mut clients[0];
            // A blocked command is counted if it is served, but not if it times out.
            client.call("BLPOP none 0.01");
            client.call("BZPOPMIN none 0.01");
            let (mut waiting, mut also_waiting) = (server.connect(), server.connect());
            let id = also_waiting.call("CLIENT ID").integer();
            waiting.send(&["BLPOP", "wait", "0"]);
            also_waiting.send(&["BZPOPMAX", "wait", "0"]);
            while !client.call("INFO clients").text().contains("blocked_clients:2") {
                std::thread::sleep(Duration::from_millis(5));
            }
            client.call("LPUSH wait x");
            waiting.receive();
            assert_eq!(client.call(&format!("CLIENT UNBLOCK {id}")), Reply::Integer(1));
            also_waiting.receive();
            // Commands in a script are counted too.
            let script = "redis.call('GET', KEYS[1]) redis.call('INCR', KEYS[2]) return redis.call('SET', KEYS[3], 1)";
            client.command(&["EVAL", script, "3", "a", "n", "c"]);
            let mut seen = Vec::new();
            for command in ["set", "get nosuch hset", "client", "client|id SET", "nosuch", "zadd", "lpush"] {
                seen.push(histograms(&client.call(&format!("LATENCY HISTOGRAM {command}"))));
            }
            let mut all = histograms(&client.call("LATENCY HISTOGRAM"));
            // `INFO` is left out, because this test polls with it until two clients are blocked.
            all.retain(|(name, _)| !name.starts_with("latency") && !name.starts_with("config") && name != "info");
            seen.push(all);
            let mut replies = Vec::new();
            for percentiles in ["0.0 50.0 100.0", "10.0 50.0 a", "10 101.0", "", "99.999 5", "-1", "50"] {
                replies.push(client.command(&["CONFIG", "SET", "latency-tracking-info-percentiles", percentiles]));
                replies.push(client.call("CONFIG GET latency-tracking-info-percentiles"));
            }
            let info = client.call("INFO latencystats").text();
            let mut shown: Vec<String> =
                info.lines().map(|line| line.split('=').next().unwrap_or_default().to_owned()).collect();
            shown.retain(|line| !line.contains("latency|") && !line.contains("config|"));
            shown.sort();
            client.call("CONFIG SET latency-tracking no");
            replies.push(Reply::Integer(client.call("INFO latencystats").text().lines().count() as i64));
            (seen, replies, shown)
        });
        assert_eq!(given, right);
    });
}

/// Returns the reply to `LATENCY LATEST` without times: the names of events, and whether their
/// values are plausible.
fn latest(reply: &Reply) -> Vec<(String, bool)> {
    let one = |entry: &Reply| {
        let [event, at_s, latest_ms, max_ms] = entry.elements() else { panic!("{entry:?}") };
        let is_plausible = at_s.integer() > 1_700_000_000
            && latest_ms.integer() <= max_ms.integer()
            && (20..5000).contains(&max_ms.integer());
        (event.text(), is_plausible)
    };
    reply.elements().iter().map(one).collect()
}

#[test]
fn latency_events_are_those_of_redis() {
    let Some(reference) = Server::redis(&["--enable-debug-command", "yes"]) else { return };
    for_each_form(|backend, execution| {
        let subject = Server::pantala(
            backend,
            &["--workers", "3", "--shards", "4", "--enable-debug-command", "yes", "--execution", execution],
        );
        let [given, right] = [&subject, &reference].map(|server| {
            // These clients are on all workers.
            let mut clients: Vec<Client> = (0..6).map(|_| server.connect()).collect();
            clients[1].call("HELLO 3");
            let mut replies = Vec::new();
            for command in [
                "CONFIG GET latency-monitor-threshold",
                "CONFIG SET latency-monitor-threshold -1",
                "DEBUG SLEEP 0.03",
                "LATENCY LATEST",
                "LATENCY HISTORY command",
                "LATENCY GRAPH command",
                "LATENCY GRAPH",
                "LATENCY LATEST x",
                "LATENCY NOSUCH",
                "LATENCY RESET",
                "LATENCY RESET a b",
                "CONFIG SET latency-monitor-threshold 20",
            ] {
                replies.extend(clients.iter_mut().take(2).map(|client| client.call(command)));
            }
            for client in &mut clients {
                client.call("DEBUG SLEEP 0.021");
            }
            let mut seen = Vec::new();
            for client in &mut clients {
                // On a busy machine a `PING` may take as long as the threshold.
                let mut all = latest(&client.call("LATENCY LATEST"));
                all.retain(|(event, _)| event == "command");
                seen.push(all);
                let history = client.call("LATENCY HISTORY command");
                let seconds: Vec<i64> =
                    history.elements().iter().map(|sample| sample.elements()[0].integer()).collect();
                assert!(seconds.windows(2).all(|two| two[0] < two[1]) && !seconds.is_empty(), "{history:?}");
                let graph = client.call("LATENCY GRAPH command").text();
                let lines = graph.lines().filter(|line| line.starts_with("command - high ") || line.contains("----"));
                replies.push(Reply::Integer(lines.count() as i64));
                replies.push(client.call("LATENCY HISTORY COMMAND"));
                replies.push(client.call("LATENCY GRAPH COMMAND"));
            }
            reset_latencies(&mut clients, &mut replies);
            (replies, seen)
        });
        assert_eq!(given, right);
    });
}

/// The test doubles the size of a set until deleting the set takes longer than 1 ms, the lowest
/// threshold of the latency monitor.
#[test]
fn keys_that_take_long_to_expire_are_latency_events() {
    const MEMBERS: usize = 200_000;
    const PARTS_MAX: usize = 32;
    for_each_backend(|backend| {
        let server = Server::pantala(backend, &["--workers", "2", "--shards", "4"]);
        let mut client = server.connect();
        client.call("CONFIG SET latency-monitor-threshold 1");
        let add = |client: &mut Client, part: usize| {
            let numbers = part * MEMBERS..(part + 1) * MEMBERS;
            let members: Vec<String> = numbers.map(|number| format!("a-member-of-some-length:{number:050}")).collect();
            let add: Vec<&str> = ["SADD", "set"].into_iter().chain(members.iter().map(String::as_str)).collect();
            assert_eq!(client.command(&add).integer(), MEMBERS as i64);
        };
        let is_recorded = |client: &mut Client, wanted: &str| {
            latest(&client.call("LATENCY LATEST")).into_iter().any(|(event, _)| event == wanted)
        };
        let mut parts = 1;
        loop {
            (0..parts).for_each(|part| add(&mut client, part));
            client.call("PEXPIRE set 1");
            // Active expiry deletes the set. DBSIZE doesn't delete it, because it looks up no key.
            eventually("the set expires", || client.call("DBSIZE") == Reply::Integer(0));
            if is_recorded(&mut client, "expire-del") {
                break;
            }
            parts *= 2;
            assert!(parts <= PARTS_MAX, "{MEMBERS} members times {PARTS_MAX} were deleted within a millisecond");
        }
        // The worker's turn (iteration of the event loop) in which the set was deleted took at
        // least as long as the deletion. The turn's time is recorded at the end of the turn.
        eventually("the turn is recorded as an event", || is_recorded(&mut client, "expire-cycle"));
    });
}

/// The longest turn (iteration of a worker's event loop) since `CONFIG RESETSTAT` is measured only
/// while the latency monitor is on.
#[test]
fn the_longest_turn_is_measured_while_the_latency_monitor_is_on() {
    const TURN_US: u64 = 20_000;
    for_each_backend(|backend| {
        let server = Server::pantala(backend, &["--workers", "1"]);
        let mut client = server.connect();
        let longest_us = |client: &mut Client, field: &str| -> u64 {
            let text = client.call("INFO workers").text();
            let (_, rest) = text.split_once(&format!(",{field}=")).expect("the field");
            rest.split(',').next().expect("a value").parse().expect("a number")
        };
        assert_eq!(client.call("DEBUG SLEEP 0.02"), Reply::ok());
        assert_eq!(longest_us(&mut client, "longest_turn_us"), 0);
        assert_eq!(client.call("CONFIG SET latency-monitor-threshold 1000000"), Reply::ok());
        assert_eq!(client.call("DEBUG SLEEP 0.02"), Reply::ok());
        assert!(longest_us(&mut client, "longest_turn_us") >= TURN_US);
        // A sleeping thread uses no CPU time.
        assert!((1..TURN_US).contains(&longest_us(&mut client, "longest_turn_cpu_us")));
        // On a busy host another turn may take as long.
        eventually("the longest turn is reset", || {
            client.call("CONFIG RESETSTAT");
            longest_us(&mut client, "longest_turn_us") < TURN_US
        });
    });
}

fn reset_latencies(clients: &mut [Client], replies: &mut Vec<Reply>) {
    clients[0].call("LATENCY RESET fast-command expire-cycle");
    replies.push(clients[1].call("CONFIG SET latency-monitor-threshold 100000"));
    replies.push(clients[0].call("LATENCY RESET nosuch COMMAND command"));
    replies.push(clients[1].call("LATENCY RESET"));
    replies.push(clients[0].call("LATENCY LATEST"));
    replies.push(clients[0].call("CONFIG SET latency-monitor-threshold 0"));
}

/// A script that needs more shards than those of its keys is rolled back and rerun. Monitors don't
/// see the rolled-back run.
#[test]
fn monitors_see_commands_of_a_rerun_script_once() {
    for_each_form(|backend, execution| {
        let server = Server::pantala(backend, &["--workers", "1", "--shards", "64", "--execution", execution]);
        let (mut monitor, mut client) = (server.connect(), server.connect());
        monitor.call("MONITOR");
        // At least three of the four undeclared keys are in other shards than the declared key.
        let script = "for i = 0, 3 do redis.call('SET', KEYS[1], i); redis.call('SET', 'made:' .. i, i) end";
        client.command(&["EVAL", script, "1", "declared"]);
        client.call("ECHO end");
        let mut sets = 0;
        loop {
            let line = monitor.receive().text();
            if line.contains("\"ECHO\"") {
                break;
            }
            sets += usize::from(line.contains("\"SET\""));
        }
        assert_eq!(sets, 8, "each SET is shown once");
    });
}

/// Time for which a script holds its key.
const SPIN: Duration = Duration::from_millis(500);
/// Maximum number of attempts. In at least one of them, one of two scripts must wait for the other.
const ATTEMPTS_MAX: usize = 10;

/// The monitor attaches while the script waits for the shard of its declared key.
#[test]
fn a_monitor_attached_while_a_script_waits_sees_its_commands_once() {
    for_each_backend(|backend| {
        let server = Server::pantala(backend, &["--workers", "3", "--shards", "64"]);
        let [mut holder, mut client, mut monitor] = [(); 3].map(|()| server.connect());
        let script = "redis.call('SET', KEYS[1], 0) for i = 0, 3 do redis.call('SET', 'made:' .. i, i) end";
        let spin = format!(
            "local function now() local t = redis.call('TIME') return t[1] + t[2] / 1000000 end \
             local began = now() while now() - began < {} do end",
            SPIN.as_secs_f64()
        );
        let id = client.call("CLIENT ID").integer();
        // While a call waits for its shards, `argv-mem` isn't 0. If the client's call ran before
        // the holder's call, it didn't wait. The test then sends both calls again.
        let is_waiting = |monitor: &mut Client| {
            let line = monitor.call(&format!("CLIENT LIST ID {id}")).text();
            line.contains("cmd=eval") && !line.contains(" argv-mem=0 ")
        };
        let mut attempts = 0;
        loop {
            holder.send(&["EVAL", &spin, "1", "declared"]);
            eventually("the holder runs", || monitor.call("CLIENT LIST").text().contains("cmd=eval"));
            client.send(&["EVAL", script, "1", "declared"]);
            let sent = Instant::now();
            while !is_waiting(&mut monitor) && sent.elapsed() < SPIN {}
            if is_waiting(&mut monitor) {
                break;
            }
            attempts += 1;
            assert!(attempts < ATTEMPTS_MAX, "the script did not wait");
            holder.receive();
            client.receive();
            for connection in [&mut holder, &mut client] {
                connection.call("ECHO again");
            }
        }
        monitor.call("MONITOR");
        holder.receive();
        assert_eq!(client.receive(), Reply::Null);
        client.call("ECHO end");
        let mut seen = Vec::new();
        while !seen.last().is_some_and(|line: &String| line.contains("\"ECHO\"")) {
            seen.push(monitor.receive().text());
        }
        let count = |what: &str| seen.iter().filter(|line| line.contains(what)).count();
        assert_eq!((count("\"EVAL\" \"redis.call"), count("\"SET\"")), (1, 5), "{seen:#?}");
    });
}

/// Returns a number of a command in `INFO commandstats`.
fn counter(client: &mut Client, command: &str, name: &str) -> u64 {
    let text = client.call("INFO commandstats").text();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:")))
        .expect("the command was called");
    let value = line.split(',').find_map(|field| field.strip_prefix(&format!("{name}="))).expect("a counter");
    value.parse().expect("a number")
}

/// The recorded times of scripts, transactions and commands exclude the time for which they wait
/// for a key that another script holds.
#[test]
fn recorded_times_exclude_the_wait_for_a_key() {
    const WAITING: u64 = 3;
    // An iteration takes 2 to 6 ns.
    let spin = |turns: u32| format!("for i = 1, {turns} do end");
    for_each_backend(|backend| {
        let server = Server::pantala(backend, &["--workers", "2", "--shards", "4", "--busy-reply-threshold", "0"]);
        let [mut client, mut holder] = [(); 2].map(|()| server.connect());
        let items: Vec<String> = (0..30_000).rev().map(|number| number.to_string()).collect();
        client.command(&[vec!["RPUSH".to_owned(), "k".to_owned()], items].concat());
        client.call("CONFIG SET slowlog-log-slower-than 20000 latency-monitor-threshold 20");
        let slow = format!("{} return 'slow'", spin(20_000_000));
        let kinds: [Vec<Vec<&str>>; 5] = [
            vec![vec!["EVAL_RO", &slow, "1", "k", "arg"]],
            vec![vec!["EVALSHA", "63143b6f8007b98c53ca2149822777b3566f9241", "1", "k"]],
            vec![vec!["MULTI"], vec!["EVAL_RO", &slow, "1", "k"], vec!["EXEC"]],
            vec![vec!["SORT", "k", "LIMIT", "0", "1"]],
            vec![vec!["MULTI"], vec!["SORT", "k", "LIMIT", "0", "1"], vec!["EXEC"]],
        ];
        client.call("SCRIPT LOAD return");
        let command_of = ["eval_ro", "evalsha", "exec", "sort", "exec"];
        for (commands, name) in kinds.iter().zip(command_of) {
            for reset in ["CONFIG RESETSTAT", "SLOWLOG RESET", "LATENCY RESET"] {
                client.call(reset);
            }
            holder.send(&["EVAL", &spin(60_000_000), "1", "k"]);
            std::thread::sleep(Duration::from_millis(60));
            let mut waiting: Vec<Client> = (0..WAITING).map(|_| server.connect()).collect();
            let sent = Instant::now();
            waiting.iter_mut().for_each(|client| client.send_together(commands));
            assert_eq!(holder.receive(), Reply::Null);
            for client in &mut waiting {
                let last = commands.iter().map(|_| client.receive()).last().expect("some");
                assert!(!last.is_error(), "{last:?}");
            }
            let passed_us = sent.elapsed().as_micros() as u64;
            let (calls, us) = (counter(&mut client, name, "calls"), counter(&mut client, name, "usec"));
            assert_eq!(calls, WAITING, "{name}");
            assert!(us <= passed_us, "{name}: {us} us of work in {passed_us} us");
            let work = commands.iter().find(|words| words.len() > 2).expect("a command with a key");
            let (is_slow, is_script) = (work[0] != "EVALSHA", work[0] == "EVAL_RO");
            let least_us = if work[0] == "SORT" { 300 } else { 25_000 };
            assert_eq!(us >= WAITING * least_us, is_slow, "{name}: {us} us of work");
            let log = entries(&mut client, "SLOWLOG GET");
            let is_logged = |words: &&Vec<String>| work.iter().zip(*words).all(|(wanted, word)| wanted == word);
            let logged = log.iter().filter(is_logged).count() as u64;
            assert!(if is_script { logged == WAITING } else { is_slow || logged == 0 }, "{log:?}");
            let samples = client.call("LATENCY HISTORY command");
            assert!(!is_script || !samples.elements().is_empty(), "{name}: {samples:?}");
        }
    });
}
