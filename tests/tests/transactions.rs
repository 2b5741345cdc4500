//! Transactions: replies (equal to those of redis-server), watches, and isolation over several
//! shards (parts of the key space that workers acquire separately). See also `atomicity.rs`.

use std::time::{Duration, Instant};

use pantala_tests::transcript::{assert_as, assert_as_redis_in_each_form};
use pantala_tests::{Client, Reply, Server, for_each_backend};

/// Arguments with several shards per worker. The keys of one transaction are then in several
/// shards, with different home workers.
const SERVER_ARGS: [&str; 4] = ["--workers", "3", "--shards", "8"];

/// Commands of two clients (0 and 1), each sent after the reply to the previous command.
const SCRIPT: &[(usize, &str)] = &[
    (0, "MULTI"),
    (0, "MULTI"),
    (0, "SET a 1"),
    (0, "INCR b"),
    (0, "LPUSH a x"),
    (0, "MGET a b c"),
    (0, "SELECT 3"),
    (0, "SET c 5"),
    (0, "DBSIZE"),
    (0, "RANDOMKEY"),
    (0, "SELECT 0"),
    (0, "PING"),
    (0, "ECHO x"),
    (0, "BLPOP none 0"),
    (0, "HSET h f v"),
    (0, "HGETALL h"),
    (0, "WATCH a"),
    (0, "EXEC"),
    (0, "EXEC"),
    (0, "DISCARD"),
    (0, "MGET a b c"),
    // An error while queueing aborts the whole transaction.
    (0, "MULTI"),
    (0, "SET a 2"),
    (0, "GET"),
    (0, "EXEC"),
    (0, "MULTI"),
    (0, "NOSUCHCOMMAND"),
    (0, "SET a 2"),
    (0, "EXEC"),
    (0, "MULTI"),
    (0, "EXEC x"),
    (0, "EXEC"),
    (0, "MULTI"),
    (0, "SHUTDOWN NOSAVE"),
    (0, "EXEC"),
    (0, "GET a"),
    (0, "MULTI"),
    (0, "SET a 2"),
    (0, "DISCARD"),
    (0, "GET a"),
    (0, "MULTI"),
    (0, "EXEC"),
    (0, "WATCH"),
    // A watched key is changed by another client, by the client itself, or not at all.
    (0, "WATCH a b"),
    (1, "SET b 7"),
    (0, "MULTI"),
    (0, "GET b"),
    (0, "EXEC"),
    (0, "WATCH a b"),
    (0, "SET a 3"),
    (0, "MULTI"),
    (0, "EXEC"),
    (0, "WATCH a b"),
    (1, "GET a"),
    (1, "SETNX a 5"),
    (1, "DEL none"),
    (0, "MULTI"),
    (0, "GET a"),
    (0, "EXEC"),
    (0, "WATCH a"),
    (0, "UNWATCH"),
    (1, "SET a 4"),
    (0, "MULTI"),
    (0, "GET a"),
    (0, "EXEC"),
    (0, "WATCH a"),
    (1, "SET a 4"),
    (0, "MULTI"),
    (0, "DISCARD"),
    (0, "MULTI"),
    (0, "GET a"),
    (0, "EXEC"),
    // A key of the same name changes in another database.
    (0, "WATCH a"),
    (1, "SELECT 3"),
    (1, "SET a 9"),
    (1, "SELECT 0"),
    (0, "MULTI"),
    (0, "GET a"),
    (0, "EXEC"),
    // Various kinds of changes.
    (0, "WATCH l"),
    (1, "RPUSH l 1 2 3"),
    (0, "MULTI"),
    (0, "EXEC"),
    (0, "WATCH l"),
    (1, "EXPIRE l 100"),
    (0, "MULTI"),
    (0, "EXEC"),
    (0, "WATCH l"),
    (1, "PERSIST l"),
    (0, "MULTI"),
    (0, "EXEC"),
    (0, "WATCH l m"),
    (1, "RENAME l m"),
    (0, "MULTI"),
    (0, "EXEC"),
    (0, "WATCH m"),
    (1, "LPOP m 3"),
    (0, "MULTI"),
    (0, "EXEC"),
    (0, "WATCH bits"),
    (1, "SETBIT bits 7 1"),
    (0, "MULTI"),
    (0, "EXEC"),
    (0, "WATCH bits"),
    (1, "SETBIT bits 6 1"),
    (0, "MULTI"),
    (0, "EXEC"),
    (0, "WATCH bits"),
    (1, "APPEND bits x"),
    (0, "MULTI"),
    (0, "EXEC"),
    (0, "WATCH h"),
    (1, "HSET h f w"),
    (0, "MULTI"),
    (0, "EXEC"),
    (0, "WATCH copy"),
    (1, "COPY h copy"),
    (0, "MULTI"),
    (0, "EXEC"),
    // Whole databases are flushed or swapped.
    (0, "WATCH none"),
    (1, "FLUSHALL"),
    (0, "MULTI"),
    (0, "PING"),
    (0, "EXEC"),
    (0, "SET a 1"),
    (0, "WATCH a"),
    (1, "FLUSHDB"),
    (0, "MULTI"),
    (0, "PING"),
    (0, "EXEC"),
    (0, "SET a 1"),
    (0, "WATCH a"),
    (1, "FLUSHALL"),
    (1, "SET a 1"),
    (0, "MULTI"),
    (0, "PING"),
    (0, "EXEC"),
    (0, "WATCH a none"),
    (1, "SWAPDB 0 5"),
    (0, "MULTI"),
    (0, "PING"),
    (0, "EXEC"),
    (0, "WATCH none"),
    (1, "SWAPDB 0 5"),
    (0, "MULTI"),
    (0, "PING"),
    (0, "EXEC"),
    (0, "WATCH b"),
    (1, "SELECT 6"),
    (1, "SET b x"),
    (1, "SWAPDB 6 0"),
    (1, "SELECT 0"),
    (0, "MULTI"),
    (0, "PING"),
    (0, "EXEC"),
    (0, "WATCH b"),
    (1, "SWAPDB 0 0"),
    (0, "MULTI"),
    (0, "PING"),
    (0, "EXEC"),
    // RESET ends a transaction.
    (0, "MULTI"),
    (0, "GET none"),
    (0, "SUBSCRIBE ch"),
    (0, "UNSUBSCRIBE ch"),
    (0, "RESET"),
    (0, "EXEC"),
    (0, "WATCH b"),
    (0, "RESET"),
    (1, "SET b 8"),
    (0, "MULTI"),
    (0, "GET b"),
    (0, "EXEC"),
    // SSUBSCRIBE is not allowed in a transaction.
    (0, "MULTI"),
    (0, "SSUBSCRIBE s"),
    (0, "SUNSUBSCRIBE s"),
    (0, "EXEC"),
    (1, "PUBSUB SHARDNUMSUB s"),
    // A command that can't be queued is rejected before the memory limit is checked.
    (1, "CONFIG SET maxmemory 1"),
    (0, "MULTI"),
    (0, "SHUTDOWN NOSAVE"),
    (0, "GET b"),
    (0, "EXEC"),
    (1, "CONFIG SET maxmemory 0"),
];

/// Returns the replies to the script, byte for byte.
fn transcript(server: &Server, version: u8) -> Vec<String> {
    let mut clients = [server.connect(), server.connect()];
    clients[0].call("FLUSHALL");
    if version == 3 {
        clients.iter_mut().for_each(|client| assert!(!matches!(client.call("HELLO 3"), Reply::Error(_))));
    }
    SCRIPT
        .iter()
        .map(|(client, command)| {
            clients[*client].send(&command.split(' ').collect::<Vec<_>>());
            let (_, raw) = clients[*client].receive_raw();
            format!("{client} {command}: {}", raw.escape_ascii())
        })
        .collect()
}

#[test]
fn replies_are_those_of_redis() {
    let Some(reference) = Server::redis(&[]) else { return };
    for execution in ["inline", "owner"] {
        assert_as(&reference, &[&SERVER_ARGS[..], &["--execution", execution]].concat(), transcript);
    }
}

/// Returns a line of `INFO` without its times.
fn counts(line: &str) -> String {
    line.split([',', ':']).filter(|part| !part.starts_with("usec")).collect::<Vec<_>>().join(" ")
}

/// Returns the lines that `INFO` and `MONITOR` show about a transaction. The lines must not depend
/// on which workers run the commands. (With `--execution owner`, these are the workers to which the
/// shards belong.)
fn observed(server: &Server) -> Vec<String> {
    let (mut client, mut monitor, mut blocked) = (server.connect(), server.connect(), server.connect());
    monitor.call("MONITOR");
    blocked.send(&["BLPOP", "list", "0"]);
    await_blocked(&mut client, 1);
    client.call("CONFIG RESETSTAT");
    for command in ["WATCH a", "MULTI", "SET a 1", "LPUSH list x y", "LPUSH a x", "MGET a b list", "exec", "ECHO end"] {
        client.call(command);
    }
    let mut observed = vec![format!("served: {:?}", blocked.receive())];
    loop {
        let line = monitor.receive().text();
        let words = line.split_once("] ").map_or(line.clone(), |(_, words)| words.to_owned());
        if words.contains("ECHO") {
            break;
        }
        // Keeps only the lines of the transaction, because the monitor also shows other commands of
        // this test.
        if ["watch", "multi", "set", "lpush", "mget", "exec"].iter().any(|name| words.to_lowercase().contains(name)) {
            observed.push(words);
        }
    }
    for section in ["commandstats", "errorstats"] {
        let text = client.call(&format!("INFO {section}")).text();
        let ours = |line: &&str| ["exec", "lpush", "mget", "set:", "errorstat"].iter().any(|part| line.contains(part));
        let mut lines: Vec<String> = text.lines().filter(ours).map(counts).collect();
        lines.sort();
        observed.extend(lines);
    }
    observed
}

#[test]
fn info_and_monitor_show_a_transaction_as_in_redis() {
    let Some(reference) = Server::redis(&[]) else { return };
    let right: Vec<String> = observed(&reference);
    assert!(right.iter().any(|line| line.contains("exec")), "{right:?}");
    for_each_backend(|backend| {
        for execution in ["inline", "owner"] {
            let server = Server::pantala(backend, &[&SERVER_ARGS[..], &["--execution", execution]].concat());
            assert_eq!(observed(&server), right, "{execution}");
        }
    });
}

#[test]
fn a_watched_key_that_expires_aborts_the_transaction() {
    for_each_backend(|backend| {
        let server = Server::pantala(backend, &SERVER_ARGS);
        let mut client = server.connect();
        for expires_before in [false, true] {
            let set = vec!["SET", "k", "v", "PX", "30"];
            if expires_before {
                client.command(&set);
                std::thread::sleep(Duration::from_millis(40));
                client.call("WATCH k");
            } else {
                // SET and WATCH are sent together, so that they run in one turn of the worker. The
                // worker's cached clock doesn't advance within a turn.
                client.send_together(&[set, vec!["WATCH", "k"]]);
                (0..2).for_each(|_| assert_eq!(client.receive(), Reply::ok()));
            }
            std::thread::sleep(Duration::from_millis(40));
            client.call("MULTI");
            client.call("PING");
            let done = client.call("EXEC") != Reply::Null;
            // If the key had already expired at WATCH, it has not changed since, so EXEC runs the
            // commands. If the key expired later, EXEC must abort.
            assert_eq!(done, expires_before);
        }
    });
}

/// Returns the replies to a client and, after each command, the client's last command according to
/// `CLIENT LIST`. Subcommands called `RESET` (as in `SLOWLOG RESET`) must not end a transaction or
/// a subscription, unlike the command `RESET`.
fn last_commands(server: &Server, version: u8) -> Vec<String> {
    let (mut client, mut other) = (server.connect(), server.connect());
    let id = client.call("CLIENT ID").integer();
    client.call(&format!("HELLO {version}"));
    let commands = [
        "MULTI",
        "SET a 1",
        "SLOWLOG RESET",
        "LATENCY RESET",
        "CONFIG RESETSTAT",
        "EXEC",
        "NOSUCH",
        "GET",
        "CLIENT NOSUCH",
        "LPUSH list",
        "PING",
        "MULTI",
        "LATENCY RESET",
        "NOSUCH",
        "EXEC",
        "SUBSCRIBE channel",
        "SLOWLOG RESET",
        "LATENCY RESET",
        "DEBUG SLEEP 0",
        "GET a",
        "UNSUBSCRIBE channel",
        "GET a",
        "RESET",
        "GET a",
    ];
    commands
        .iter()
        .map(|command| {
            let reply = client.call(command);
            let line = other.call(&format!("CLIENT LIST ID {id}")).text();
            let last = line.split(' ').find(|field| field.starts_with("cmd=")).unwrap_or_default().to_owned();
            format!("{command}: {reply:?}, {last}")
        })
        .collect()
}

#[test]
fn last_commands_are_those_of_redis() {
    assert_as_redis_in_each_form(&SERVER_ARGS, last_commands);
}

/// Returns whether `EXEC` runs after changes of a watched key. The key `k` is missing in the first
/// database, and exists in the second. If `is_expired` is true, the key in the second database has
/// expired. One client watches `k` in the first database. Another client runs `commands`, some of
/// which swap the databases.
fn runs_after_swap(server: &Server, is_expired: bool, commands: &[&[&str]]) -> bool {
    let (mut client, mut other) = (server.connect(), server.connect());
    for command in ["FLUSHALL", "DEBUG SET-ACTIVE-EXPIRE 0", "SELECT 1", "SET k v"] {
        other.call(command);
    }
    if is_expired {
        other.call("PEXPIRE k 1");
        std::thread::sleep(Duration::from_millis(5));
    }
    client.call("WATCH k");
    other.call("SELECT 0");
    commands.iter().for_each(|command| drop(other.command(command)));
    client.call("MULTI");
    client.call("PING");
    client.call("EXEC") != Reply::Null
}

/// An expired key counts as missing. A missing watched key therefore doesn't change if SWAPDB
/// replaces it with an expired key, or if the expired key is then deleted.
#[test]
fn an_expired_key_does_not_change_a_missing_watched_key() {
    const SWAP: &[&str] = &["SWAPDB", "0", "1"];
    const IN_SCRIPT: &[&str] = &["EVAL", "redis.call('SWAPDB', 0, 1) return redis.call('DEL', KEYS[1])", "1", "k"];
    let play = |server: &Server| {
        for (is_expired, commands, runs) in [
            (true, &[SWAP][..], true),
            (true, &[SWAP, &["GET", "k"]], true),
            (true, &[SWAP, &["DEL", "k"]], true),
            (true, &[IN_SCRIPT], true),
            (true, &[SWAP, SWAP], true),
            (true, &[SWAP, &["FLUSHDB"]], true),
            (true, &[SWAP, &["SET", "k", "new"]], false),
            (true, &[SWAP, &["SET", "k", "new"], &["DEL", "k"]], false),
            (false, &[SWAP], false),
            (false, &[SWAP, SWAP], false),
            (false, &[IN_SCRIPT], false),
        ] {
            assert_eq!(runs_after_swap(server, is_expired, commands), runs, "is expired: {is_expired}, {commands:?}");
        }
    };
    if let Some(reference) = Server::redis(&["--enable-debug-command", "yes"]) {
        play(&reference);
    }
    for_each_backend(|backend| {
        for execution in ["inline", "owner"] {
            let args = [&SERVER_ARGS[..], &["--execution", execution, "--enable-debug-command", "yes"]].concat();
            play(&Server::pantala(backend, &args));
        }
    });
}

#[test]
fn the_queue_of_a_disconnected_client_does_not_run() {
    for_each_backend(|backend| {
        let mut server = Server::pantala(backend, &SERVER_ARGS);
        let mut other = server.connect();
        for round in 0..200 {
            let mut client = server.connect();
            client.call(&format!("WATCH a b c {round}"));
            client.call("MULTI");
            client.call("SET a never");
        }
        assert_eq!(other.call("GET a"), Reply::Null);
        assert_eq!(other.call("SET a 1"), Reply::ok());
        server.assert_sound();
    });
}

/// If clients disconnect before EXEC, the memory of their queued commands and watched keys is freed
/// soon, however large it is.
#[test]
fn disconnecting_before_exec_frees_the_memory() {
    const CLIENTS: usize = 400;
    const LONG_BYTES: usize = 100_000;
    for_each_backend(|backend| {
        let mut server = Server::pantala(backend, &SERVER_ARGS);
        let mut other = server.connect();
        let used = |other: &mut Client| {
            let text = other.call("INFO memory").text();
            let value = text.lines().find_map(|line| line.strip_prefix("mem_clients_normal:")).expect("INFO has it");
            value.trim().parse::<usize>().expect("a number")
        };
        let (before, resident) = (used(&mut other), server.resident_bytes());
        for number in 0..CLIENTS {
            let mut client = server.connect();
            client.command(&["WATCH", &format!("{number}{}", "w".repeat(LONG_BYTES))]);
            client.call("MULTI");
            assert_eq!(client.command(&["SET", "a", &"v".repeat(LONG_BYTES)]).text(), "QUEUED");
        }
        let deadline = Instant::now() + Duration::from_secs(20);
        while !other.call("INFO clients").text().contains("connected_clients:1\r\n") {
            assert!(Instant::now() < deadline, "closed clients are still connected");
            std::thread::sleep(Duration::from_millis(5));
        }
        let after = used(&mut other);
        assert!(after < before + LONG_BYTES, "{before} bytes before, {after} after");
        let taken = server.resident_bytes().saturating_sub(resident) as usize;
        // A leak would be 2 × CLIENTS × LONG_BYTES. The limit isn't 0, because the allocator keeps
        // some freed memory.
        assert!(taken < CLIENTS * LONG_BYTES, "{taken} bytes more are resident");
        assert_eq!(other.call("EXISTS a"), Reply::Integer(0));
        server.assert_sound();
    });
}

#[test]
fn very_many_keys_are_watched_quickly() {
    const KEYS: usize = 100_000;
    /// Maximum CPU time. The expected time is many times shorter, but a comparison of each key with
    /// every other key would take longer.
    const SOON: Duration = Duration::from_secs(4);
    for_each_backend(|backend| {
        let mut server = Server::pantala(backend, &SERVER_ARGS);
        let (mut client, mut other) = (server.connect(), server.connect());
        let keys: Vec<String> = (0..KEYS).map(|number| format!("key:{number}")).collect();
        // Each key is watched twice.
        let words: Vec<&str> = std::iter::once("WATCH").chain(keys.iter().chain(&keys).map(String::as_str)).collect();
        let before = server.cpu_time();
        assert_eq!(client.command(&words), Reply::ok());
        let took = server.cpu_time() - before;
        println!("{backend:?}: {KEYS} keys are watched in {took:?}");
        assert!(took < SOON, "{took:?}");
        for (key, is_watched) in [(&*keys[KEYS - 1], true), ("other", false)] {
            client.command(&words);
            assert_eq!(other.command(&["SET", key, "1"]), Reply::ok());
            client.call("MULTI");
            assert_eq!(client.call("EXEC") == Reply::Null, is_watched, "{key}");
        }
        server.assert_sound();
    });
}

/// A client blocked on a key is served after the whole transaction has run.
#[test]
fn blocked_clients_are_served_after_the_transaction() {
    for_each_backend(|backend| {
        let server = Server::pantala(backend, &SERVER_ARGS);
        let (mut blocked, mut client) = (server.connect(), server.connect());
        blocked.send(&["BLPOP", "l", "0"]);
        await_blocked(&mut client, 1);
        for command in ["MULTI", "LPUSH l a", "LPUSH l b", "DEL l", "LPUSH l c", "EXEC"] {
            client.call(command);
        }
        assert_eq!(blocked.receive(), Reply::Array(vec![Reply::bulk("l"), Reply::bulk("c")]));
        assert_eq!(client.call("EXISTS l"), Reply::Integer(0));
    });
}

fn await_blocked(client: &mut Client, count: usize) {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let info = client.call("INFO clients").text();
        if info.contains(&format!("blocked_clients:{count}")) {
            return;
        }
        assert!(Instant::now() < deadline, "{info}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A pause of writes delays an EXEC that contains a write. Any other EXEC is not delayed.
#[test]
fn a_pause_of_writes_delays_transactions_that_write() {
    for_each_backend(|backend| {
        let server = Server::pantala(backend, &SERVER_ARGS);
        let (mut writer, mut reader, mut admin) = (server.connect(), server.connect(), server.connect());
        for (client, command) in [(&mut writer, "SET k 1"), (&mut reader, "GET k")] {
            client.call("MULTI");
            client.call(command);
        }
        admin.call("CLIENT PAUSE 100000 WRITE");
        assert!(matches!(reader.call("EXEC"), Reply::Array(_)));
        writer.send(&["EXEC"]);
        std::thread::sleep(Duration::from_millis(100));
        assert_eq!(admin.call("GET k"), Reply::Null);
        admin.call("CLIENT UNPAUSE");
        assert_eq!(writer.receive(), Reply::Array(vec![Reply::ok()]));
    });
}

/// An integer changed in place counts as a changed key.
#[test]
fn counting_changes_a_watched_key() {
    for_each_backend(|backend| {
        let server = Server::pantala(backend, &SERVER_ARGS);
        let (mut watcher, mut other) = (server.connect(), server.connect());
        for change in ["INCR k", "DECRBY k 3", "INCRBYFLOAT k 1.5", "SETBIT k 4 1", "APPEND k x"] {
            other.call("SET k 1");
            watcher.call("WATCH k");
            assert!(!other.call(change).is_error());
            watcher.call("MULTI");
            watcher.call("PING");
            assert_eq!(watcher.call("EXEC"), Reply::Null, "{change}");
        }
    });
}

#[test]
fn client_list_shows_a_broken_watch_and_the_queue() {
    for_each_backend(|backend| {
        let server = Server::pantala(backend, &["--workers", "2", "--shards", "8"]);
        let (mut watcher, mut other) = (server.connect(), server.connect());
        let id = watcher.call("CLIENT ID").integer();
        let mut shown = |field: &str| {
            let line = other.call(&format!("CLIENT LIST ID {id}")).text();
            let found = line.split_whitespace().find_map(|it| it.strip_prefix(&format!("{field}=")).map(str::to_owned));
            found.unwrap_or_else(|| panic!("no {field} in {line}"))
        };
        watcher.call("WATCH key");
        assert_eq!(shown("flags"), "N");
        watcher.call("MULTI");
        watcher.call("SET a b");
        assert_eq!((shown("flags"), shown("multi")), ("x".to_owned(), "1".to_owned()));
        let queued_bytes = shown("multi-mem");
        // The queue takes more memory than the bytes of the arguments.
        assert!(queued_bytes.parse::<u64>().unwrap() > 40);
        server.connect().call("SET key x");
        assert_eq!(shown("flags"), "xd");
        // Once a watch is invalidated, EXEC can't succeed any more, so the server doesn't keep
        // commands that are queued later.
        assert_eq!(watcher.command(&["SET", "c", &"x".repeat(100_000)]).text(), "QUEUED");
        assert_eq!((shown("multi"), shown("multi-mem")), ("1".to_owned(), queued_bytes));
        assert_eq!(watcher.call("EXEC"), Reply::Null);
        assert_eq!((shown("flags"), shown("multi-mem")), ("N".to_owned(), "0".to_owned()));
        watcher.call("MULTI");
        // The memory of the last queue is kept for reuse.
        let kept_bytes = shown("multi-mem");
        watcher.call("NOSUCH");
        assert_eq!(watcher.command(&["SET", "c", &"x".repeat(100_000)]).text(), "QUEUED");
        assert_eq!((shown("multi"), shown("multi-mem")), ("0".to_owned(), kept_bytes));
        assert!(watcher.call("EXEC").text().starts_with("EXECABORT"));
    });
}

/// A script that needs more shards than those of its keys is rolled back and rerun. Only the
/// committed run invalidates watches.
#[test]
fn a_rolled_back_script_invalidates_no_watches() {
    for_each_backend(|backend| {
        let server = Server::pantala(backend, &["--workers", "2", "--shards", "64"]);
        let (mut watcher, mut other) = (server.connect(), server.connect());
        for (first, is_changed) in [("LPUSH", false), ("APPEND", true)] {
            watcher.call("SET watched text");
            watcher.call("WATCH watched");
            // At least three of the four undeclared keys are in other shards than the declared key.
            let script = format!(
                "redis.pcall('{first}', KEYS[1], 'x') for i = 0, 3 do redis.call('SET', 'made:' .. i, 1) end return 1"
            );
            assert_eq!(other.command(&["EVAL", &script, "1", "watched"]), Reply::Integer(1));
            watcher.call("MULTI");
            watcher.call("PING");
            let reply = watcher.call("EXEC");
            assert_eq!(reply == Reply::Null, is_changed, "{first}: {reply:?}");
        }
        // Lua variables are not rolled back, so only the first run, which is rolled back, changes
        // the key.
        let library = "#!lua name=l\nlocal runs = 0\nredis.register_function('f', function(keys) runs = runs + 1 \
                       if runs == 1 then redis.call('APPEND', keys[1], 'x') end \
                       for i = 0, 3 do redis.call('SET', 'made:' .. i, 1) end return runs end)";
        assert_eq!(other.command(&["FUNCTION", "LOAD", library]), Reply::bulk("l"));
        watcher.call("SET watched text");
        watcher.call("WATCH watched");
        assert_eq!(other.command(&["FCALL", "f", "1", "watched"]), Reply::Integer(2));
        watcher.call("MULTI");
        watcher.call("PING");
        assert_ne!(watcher.call("EXEC"), Reply::Null);
    });
}
