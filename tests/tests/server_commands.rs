//! CONFIG, INFO, HELLO, MEMORY and DEBUG. Most replies are compared with those of redis-server.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use pantala_tests::server::{free_port, pantala_with_file};
use pantala_tests::transcript::assert_as_redis_in_each_form;
use pantala_tests::waiting::eventually;
use pantala_tests::{Backend, Client, Reply, Server, for_each_backend};

fn start() -> Server {
    Server::pantala(Backend::all()[0], &["--workers", "2", "--shards", "8"])
}

/// Returns names and values of a map, or of an array that represents one.
fn map(reply: &Reply) -> BTreeMap<String, String> {
    let text = |item: &Reply| match item {
        Reply::Array(_) | Reply::Map(_) | Reply::Set(_) | Reply::Null => item.kind().to_owned(),
        other => other.text(),
    };
    reply.elements().chunks(2).map(|pair| (pair[0].text(), text(&pair[1]))).collect()
}

/// Returns the field names of a section of INFO.
fn info_fields(client: &mut Client, section: &str) -> BTreeSet<String> {
    let text = client.command(&["INFO", section]).text();
    text.lines().filter_map(|line| line.split_once(':')).map(|(name, _)| name.to_owned()).collect()
}

#[test]
fn config_get_names_and_defaults_equal() {
    /// Directives that aren't compared: the server's address and directory, directives of features
    /// that Pantala doesn't have, and Pantala's own directives.
    const DIFFER: &[&str] = &[
        "port",
        "dir",
        // The reference is started without save points.
        "save",
        "logfile",
        "pidfile",
        "enable-debug-command",
        "bind",
        "shards",
        "partitions",
        "workers",
        "io-threads",
        "execution",
        "io-backend",
        "pin-threads",
        "numa",
        "sandbox",
        "ignore-unsupported",
        "unauthenticated-timeout",
        "packed-connections",
        "move-connections",
        "replica-refuse-empty-primary",
        "aof-checksums",
        "repl-backlog-disk-size",
        "repl-flows",
        "repl-flows-compression",
        "tls-handshake-threads",
        // These are on by default in Redis. Pantala has no such features.
        "activerehashing",
        "crash-log-enabled",
        "crash-memcheck-enabled",
        "disable-thp",
        "jemalloc-bg-thread",
    ];
    let Some(reference) = Server::redis(&[]) else { return };
    let server = start();
    let given = map(&server.connect().call("CONFIG GET *"));
    let right = map(&reference.connect().call("CONFIG GET *"));
    let mut wrong = Vec::new();
    for (name, right) in &right {
        match given.get(name) {
            _ if DIFFER.contains(&name.as_str()) => {}
            None => wrong.push(format!("{name} is missing")),
            Some(given) if given != right => wrong.push(format!("{name}: gives {given:?}, must be {right:?}")),
            Some(_) => {}
        }
    }
    for name in given.keys().filter(|name| !right.contains_key(*name)) {
        if !DIFFER.contains(&name.as_str()) {
            wrong.push(format!("{name} is not a directive of Redis 7.0"));
        }
    }
    assert!(wrong.is_empty(), "CONFIG GET * differs in {} places:\n{}", wrong.len(), wrong.join("\n"));
}

/// CONFIG SET, its errors, and the resulting values, on both servers.
#[test]
fn config_set_replies_as_redis() {
    let Some(reference) = Server::redis(&[]) else { return };
    let server = start();
    let (mut given, mut right) = (server.connect(), reference.connect());
    for words in [
        "CONFIG SET timeout 100",
        "CONFIG GET timeout",
        "CONFIG SET timeout 5 tcp-keepalive 60",
        "CONFIG GET timeout tcp-keepalive",
        "CONFIG SET timeout 9 tcp-keepalive x",
        "CONFIG GET timeout tcp-keepalive",
        "CONFIG SET proto-max-bulk-len 100mb",
        "CONFIG GET proto-max-bulk-len",
        "CONFIG SET proto-max-bulk-len 1",
        "CONFIG SET proto-max-bulk-len 1zb",
        "CONFIG SET maxclients 500",
        "CONFIG GET maxclients",
        "CONFIG SET hz 100",
        "CONFIG GET hz",
        "CONFIG SET hz 0",
        "CONFIG SET hz 1000",
        "CONFIG GET hz",
        "CONFIG SET loglevel debug",
        "CONFIG GET loglevel",
        "CONFIG SET loglevel loud",
        "CONFIG SET protected-mode no",
        "CONFIG SET protected-mode maybe",
        "CONFIG GET protected-mode",
        "CONFIG SET client-output-buffer-limit \"normal",
        "CONFIG SET client-output-buffer-limit normal",
        "CONFIG SET requirepass secret",
        "CONFIG GET requirepass",
        "CONFIG SET databases 3",
        "CONFIG SET unixsocket /tmp/x",
        "CONFIG SET enable-debug-command yes",
        "CONFIG SET nosuch 1",
        "CONFIG SET timeout 1 timeout 2",
        "CONFIG SET timeout 1 nosuch 2",
        "CONFIG GET timeout",
        "CONFIG SET timeout 1 databases 2",
        "CONFIG GET timeout",
        "CONFIG GET time* nosuch TIMEOUT",
        "CONFIG GET t?meout",
        "CONFIG GET [st]imeout",
        "CONFIG SET lazyfree-lazy-user-del yes",
        "CONFIG GET lazyfree*",
        "CONFIG SET active-expire-effort 11",
        "CONFIG SET active-expire-effort 5",
        "CONFIG GET active-expire-effort",
        "CONFIG REWRITE",
        "CONFIG RESETSTAT",
    ] {
        let sorted = |reply: Reply| match reply {
            Reply::Array(items) => format!("{:?}", map(&Reply::Array(items))),
            other => format!("{other:?}"),
        };
        assert_eq!(sorted(given.call(words)), sorted(right.call(words)), "{words}");
    }
    let limit = |client: &mut Client| {
        let set = client.command(&["CONFIG", "SET", "client-output-buffer-limit", "normal 1mb 512kb 10"]);
        (set, client.call("CONFIG GET client-output-buffer-limit"))
    };
    assert_eq!(limit(&mut given), limit(&mut right));
}

/// `CONFIG SET` raises a new size of the backlog to 16 KiB. The start and an unchanged size don't.
#[test]
fn config_set_raises_a_small_backlog_as_redis() {
    let args = ["--repl-backlog-size", "5"];
    let Some(reference) = Server::redis(&args) else { return };
    let (server, get) = (Server::pantala(Backend::all()[0], &args), "CONFIG GET repl-backlog-size");
    let (mut given, mut right) = (server.connect(), reference.connect());
    for size in ["5", "1", "100", "0", "16383", "16384", "16385", "1mb"] {
        let set = format!("CONFIG SET repl-backlog-size {size}");
        for words in [get, &set, get] {
            assert_eq!(given.call(words), right.call(words), "{words}");
        }
        let [given, right] = [&mut given, &mut right].map(|client| client.call("INFO replication").text());
        let of_backlog =
            |text: &str| text.lines().find(|line| line.starts_with("repl_backlog_size:")).map(str::to_owned);
        assert_eq!(of_backlog(&given), of_backlog(&right), "{size}");
    }
}

#[test]
fn config_rewrite_keeps_the_file_and_its_comments() {
    let (server, folder) =
        pantala_with_file("# a remark\ntimeout 5\n\n# another\nmaxclients 100\n", &["--enable-debug-command", "yes"]);
    let mut client = server.connect();
    assert_eq!(client.call("CONFIG SET timeout 7 hz 20"), Reply::ok());
    assert_eq!(client.call("CONFIG REWRITE"), Reply::ok());
    let text = std::fs::read_to_string(folder.path().join("pantala.conf")).expect("the file exists");
    for line in ["# a remark", "# another", "timeout 7", "maxclients 100", "hz 20"] {
        assert!(text.lines().any(|found| found == line), "{line:?} is missing in:\n{text}");
    }
    assert!(!text.contains("timeout 5"), "{text}");
    assert!(text.find("# a remark") < text.find("timeout 7"), "the order changed:\n{text}");
}

/// `DEBUG CONFIG-REWRITE-FORCE-ALL` writes every directive. A server that reads the file has the
/// same configuration.
#[test]
fn a_rewrite_of_all_directives_is_read_again() {
    let (server, folder) = pantala_with_file("hz 20\n", &["--enable-debug-command", "yes"]);
    let mut client = server.connect();
    let set = ["CONFIG", "SET", "save", "", "shutdown-on-sigterm", "force", "maxmemory", "100mb"];
    assert_eq!(client.command(&set), Reply::ok());
    assert_eq!(client.call("DEBUG CONFIG-REWRITE-FORCE-ALL"), Reply::ok());
    let text = std::fs::read_to_string(folder.path().join("pantala.conf")).expect("the file exists");
    for line in ["hz 20", "timeout 0", "activedefrag no", "cluster-node-timeout 15000"] {
        assert!(text.lines().any(|found| found == line), "{line:?} is missing in:\n{text}");
    }
    let (again, _folder) = pantala_with_file(&text, &[]);
    let settings = |client: &mut Client| {
        let mut settings = map(&client.call("CONFIG GET *"));
        assert!(settings.remove("port").is_some());
        settings
    };
    assert_eq!(settings(&mut again.connect()), settings(&mut client));
}

#[test]
fn info_has_the_fields_of_redis() {
    /// Sections that must have all fields of Redis.
    const SECTIONS: &[&str] =
        &["server", "clients", "memory", "persistence", "stats", "replication", "cpu", "cluster", "errorstats"];
    let Some(reference) = Server::redis(&[]) else { return };
    let server = start();
    let (mut given, mut right) = (server.connect(), reference.connect());
    let mut wrong = Vec::new();
    for section in SECTIONS {
        let given = info_fields(&mut given, section);
        let missing: Vec<String> = info_fields(&mut right, section).difference(&given).cloned().collect();
        if !missing.is_empty() {
            wrong.push(format!("INFO {section} lacks {missing:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));

    let text = given.call("INFO").text();
    for line in ["redis_version:7.0.15", "pantala_version:0.1.0", "role:master", "redis_mode:standalone"] {
        assert!(text.contains(&format!("\r\n{line}\r\n")), "INFO lacks {line}:\n{text}");
    }
    let sections = |client: &mut Client, words: &str| {
        let text = client.call(words).text();
        text.lines().filter(|line| line.starts_with("# ")).map(|line| line.trim().to_owned()).collect::<Vec<_>>()
    };
    for words in ["INFO server clients", "INFO SERVER", "INFO nosuch", "INFO keyspace"] {
        assert_eq!(sections(&mut given, words), sections(&mut right, words), "{words}");
    }
    // The order is the same, apart from Pantala's own sections.
    let known = sections(&mut right, "INFO");
    let ours: Vec<String> = sections(&mut given, "INFO").into_iter().filter(|name| known.contains(name)).collect();
    assert_eq!(ours, known);
    for words in ["INFO commandstats", "INFO everything", "INFO all"] {
        given.call("GET a");
        assert!(given.call(words).text().contains("cmdstat_get:calls="), "{words}");
    }
}

/// Every field of `INFO memory` that isn't 0 on redis-server after these commands isn't 0 on
/// Pantala either.
#[test]
fn fields_of_info_memory_are_counted() {
    /// Fields that are not compared: they describe redis-server's allocator, or vary over time.
    const OTHERS: &[&str] = &["allocator_frag_bytes", "rss_overhead_bytes", "mem_fragmentation_bytes"];
    let Some(reference) = Server::redis(&[]) else { return };
    let server = start();
    let mut nonzero: Vec<BTreeSet<String>> = Vec::new();
    for server in [&server, &reference] {
        let mut client = server.connect();
        client.command(&["EVAL", "return redis.call('SET', KEYS[1], 1)", "1", "k"]);
        client.command(&["FUNCTION", "LOAD", "#!lua name=l\nredis.register_function('f', function() return 1 end)"]);
        let _idle = server.connect().call("PING");
        let text = client.call("INFO memory").text();
        let is_nonzero = |value: &str| value.parse::<f64>().map_or(!value.is_empty(), |number| number != 0.0);
        let fields = text.lines().filter_map(|line| line.trim().split_once(':'));
        nonzero.push(fields.filter(|(_, value)| is_nonzero(value)).map(|(name, _)| name.to_owned()).collect());
    }
    let missing: Vec<&String> =
        nonzero[1].difference(&nonzero[0]).filter(|name| !OTHERS.contains(&name.as_str())).collect();
    assert!(missing.is_empty(), "0 in Pantala alone: {missing:?}");
}

#[test]
fn info_keyspace_and_stats_count() {
    for_each_backend(|backend| {
        let server = Server::pantala(backend, &["--workers", "2", "--shards", "8"]);
        let mut client = server.connect();
        let field = |client: &mut Client, name: &str| {
            let text = client.call("INFO everything").text();
            text.lines().find_map(|line| line.strip_prefix(&format!("{name}:")).map(|value| value.trim().to_owned()))
        };
        for number in 0..10 {
            client.call(&format!("SET k{number} v EX 1000"));
        }
        client.call("SET plain v");
        client.call("SELECT 7");
        client.call("SET other v");
        let keyspace = client.call("INFO keyspace").text();
        assert!(keyspace.contains("\r\ndb0:keys=11,expires=10,avg_ttl="), "{keyspace}");
        assert!(keyspace.contains("\r\ndb7:keys=1,expires=0,avg_ttl=0\r\n"), "{keyspace}");
        client.call("CONFIG RESETSTAT");
        for _ in 0..5 {
            client.call("GET other");
            client.call("GET nosuch");
        }
        client.call("INCR other");
        client.call("NOSUCH");
        assert_eq!(field(&mut client, "keyspace_hits").as_deref(), Some("5"));
        assert_eq!(field(&mut client, "keyspace_misses").as_deref(), Some("5"));
        let get = field(&mut client, "cmdstat_get").expect("GET is counted");
        assert!(get.starts_with("calls=10,") && get.ends_with("rejected_calls=0,failed_calls=0"), "{get}");
        let incr = field(&mut client, "cmdstat_incr").expect("INCR is counted");
        assert!(incr.starts_with("calls=1,") && incr.ends_with("failed_calls=1"), "{incr}");
        assert_eq!(field(&mut client, "errorstat_ERR").as_deref(), Some("count=2"));
        assert_eq!(field(&mut client, "connected_clients").as_deref(), Some("1"));
    });
}

/// Returns the replies to commands (some of which are sent in order to fail), and the counters of
/// `INFO` after each command.
fn counts_of_errors(server: &Server, version: u8) -> Vec<String> {
    let mut client = server.connect();
    client.call(&format!("HELLO {version}"));
    client.call("DEBUG SET-DISABLE-DENY-SCRIPTS 1");
    let (raises, hides) =
        ("return redis.call('debug','error','MINE a')", "redis.pcall('debug','error','MINE a') return 1");
    let commands: [&[&str]; 9] = [
        &["DEBUG", "ERROR", "MINE a"],
        &["DEBUG", "ERROR", "MINE"],
        &["DEBUG", "ERROR"],
        &["MULTI"],
        &["DEBUG", "ERROR", "MINE a"],
        &["EVAL", raises, "0"],
        &["EXEC"],
        &["EVAL", raises, "0"],
        &["EVAL", hides, "0"],
    ];
    let is_compared =
        |line: &&str| ["errorstat", "total_error", "cmdstat_debug", "cmdstat_e"].iter().any(|it| line.starts_with(it));
    let without_times =
        |line: &str| line.split(',').filter(|field| !field.starts_with("usec")).collect::<Vec<_>>().join(",");
    let mut lines = Vec::new();
    client.call("CONFIG RESETSTAT");
    for command in commands {
        let reply = client.command(command);
        let info = server.connect().call("INFO all").text();
        let mut counters: Vec<String> = info.lines().filter(is_compared).map(without_times).collect();
        counters.sort();
        lines.push(format!("{command:?}: {reply:?} {}", counters.join(" ")));
    }
    lines
}

#[test]
fn debug_error_is_not_counted_as_in_redis() {
    assert_as_redis_in_each_form(&["--workers", "2", "--shards", "4"], counts_of_errors);
}

#[test]
fn hello_replies_as_redis() {
    let Some(reference) = Server::redis(&[]) else { return };
    let server = start();
    for version in ["2", "3"] {
        let hello = |server: &Server| {
            let reply = server.connect().command(&["HELLO", version, "SETNAME", "me"]);
            let mut fields: Vec<(String, String)> = reply
                .elements()
                .chunks(2)
                .map(|pair| {
                    (pair[0].text(), if let Reply::Array(_) = pair[1] { "array".into() } else { pair[1].text() })
                })
                .collect();
            fields.retain(|(name, _)| name != "id");
            (reply.kind(), fields)
        };
        assert_eq!(hello(&server), hello(&reference), "HELLO {version}");
    }
}

#[test]
fn memory_usage_is_plausible() {
    let server = start();
    let mut client = server.connect();
    for len in [0_usize, 10, 100, 1000, 100_000, 10_000_000] {
        client.command(&["SET", "key", &"x".repeat(len)]);
        let bytes = client.call("MEMORY USAGE key").integer() as usize;
        assert!((len..=len + len / 4 + 120).contains(&bytes), "a value of {len} bytes reports {bytes}");
    }
    assert_eq!(client.call("MEMORY USAGE nosuch"), Reply::Null);
    assert!(client.call("MEMORY DOCTOR").text().len() > 10);
    assert_eq!(client.call("MEMORY PURGE"), Reply::ok());
    let stats = map(&client.call("MEMORY STATS"));
    let Some(reference) = Server::redis(&[]) else { return };
    let right = map(&reference.connect().call("MEMORY STATS"));
    let missing: Vec<&String> =
        right.keys().filter(|name| !name.starts_with("db.") && !stats.contains_key(*name)).collect();
    assert!(missing.is_empty(), "MEMORY STATS lacks {missing:?}");
}

#[test]
fn debug_populate_fills_and_flush_empties() {
    const KEYS: usize = 300_000;
    let server = start();
    let mut client = server.connect();
    let before = server.resident_bytes();
    assert_eq!(client.command(&["DEBUG", "POPULATE", &KEYS.to_string()]), Reply::ok());
    assert_eq!(client.call("DBSIZE"), Reply::Integer(KEYS as i64));
    assert_eq!(client.call("GET key:0"), Reply::bulk("value:0"));
    assert_eq!(client.command(&["GET", &format!("key:{}", KEYS - 1)]), Reply::bulk(format!("value:{}", KEYS - 1)));
    let each = server.resident_bytes().saturating_sub(before) as usize / KEYS;
    eprintln!("{each} resident bytes per key of DEBUG POPULATE {KEYS}");
    assert!(each < 200, "{each} bytes per key");
    assert_eq!(client.call("DEBUG POPULATE 10 other 50"), Reply::ok());
    assert_eq!(client.call("STRLEN other:3"), Reply::Integer(50));
    assert_eq!(client.call("FLUSHALL"), Reply::ok());
    assert_eq!(client.call("DBSIZE"), Reply::Integer(0));
}

/// `used_memory_peak` includes a peak during which no client sent INFO.
#[test]
fn the_peak_of_memory_is_recorded() {
    const VALUE_BYTES: usize = 20_000_000;
    let server = start();
    let mut client = server.connect();
    client.command(&["SET", "key", &"x".repeat(VALUE_BYTES)]);
    // Waits for longer than the interval at which the periodic task samples the memory.
    std::thread::sleep(Duration::from_millis(2500));
    client.call("DEL key");
    let memory = client.call("INFO memory").text();
    let field = |name: &str| {
        let line = memory.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.and_then(|number| number.parse::<usize>().ok()).unwrap_or_else(|| panic!("no {name} in {memory}"))
    };
    assert!(field("used_memory_peak") > VALUE_BYTES, "{memory}");
    assert!(field("used_memory") < VALUE_BYTES, "{memory}");
}

/// `DEBUG SLEEP` replies after the given number of seconds.
#[test]
fn debug_sleep_sleeps() {
    let server = start();
    let mut client = server.connect();
    let start_time = Instant::now();
    assert_eq!(client.call("DEBUG SLEEP 0.3"), Reply::ok());
    assert!(start_time.elapsed() >= Duration::from_millis(300));
}

/// While `DEBUG SLEEP` runs, no worker serves any client, whatever the client's command is.
#[test]
fn debug_sleep_stops_all_workers() {
    let server = start();
    let mut clients: Vec<Client> = (0..8).map(|_| server.connect()).collect();
    clients.iter_mut().for_each(|client| client.set_read_timeout(Duration::from_millis(50)));
    let mut sleeper = server.connect();
    sleeper.send(&["DEBUG", "SLEEP", "2"]);
    let mut probe = server.connect();
    probe.set_read_timeout(Duration::from_millis(50));
    eventually("the server sleeps", || {
        probe.send(&["GET", "key"]);
        probe.try_receive().is_err()
    });
    for client in &mut clients {
        client.send(&["PING"]);
        assert!(client.try_receive().is_err(), "it is served");
    }
    assert_eq!(sleeper.receive(), Reply::ok());
}

/// `SIGTERM` interrupts `DEBUG SLEEP`, and the server stops as usual.
#[test]
fn a_signal_interrupts_debug_sleep() {
    for_each_backend(|backend| {
        let args = ["--workers", "2", "--shards", "8", "--save", "3600 1"];
        let mut server = Server::pantala(backend, &args);
        let mut sleeper = server.connect();
        assert_eq!(sleeper.call("SET key value"), Reply::ok());
        sleeper.send(&["DEBUG", "SLEEP", "3600"]);
        let mut probe = server.connect();
        probe.set_read_timeout(Duration::from_millis(50));
        let mut is_silent = || {
            probe.send(&["GET", "key"]);
            probe.try_receive().is_err()
        };
        // The server must be silent several times in a row, because a busy host may delay a reply.
        eventually("the server sleeps", || (0..5).all(|_| is_silent()));
        server.signal(rustix::process::Signal::TERM);
        server.wait_exit(Duration::from_secs(5));
        assert!(server.folder().join("dump.rdb").exists(), "{}", server.log());
    });
}

/// Tests `DEBUG LOG` and `DEBUG SET-SKIP-CHECKSUM-VALIDATION` on both servers. After the second
/// command, RESTORE accepts a payload with a wrong checksum, but none with other damage.
#[test]
fn checksums_are_skipped_on_request() {
    let reference = Server::redis(&["--enable-debug-command", "yes"]);
    for server in [Some(start()), reference].iter().flatten() {
        let mut client = server.connect();
        assert_eq!(client.command(&["DEBUG", "LOG", "a marked line"]), Reply::ok());
        assert!(server.log().contains("DEBUG LOG: a marked line"), "{}", server.log());
        client.call("RPUSH list a b");
        let Reply::Bulk(mut payload) = client.call("DUMP list") else { panic!("a payload") };
        *payload.last_mut().expect("a checksum") ^= 1;
        let mut restore = |payload: &[u8]| client.command(&[&b"RESTORE"[..], b"copy", b"0", payload, b"REPLACE"]);
        assert_eq!(restore(&payload).text(), "ERR DUMP payload version or checksum are wrong");
        assert_eq!(server.connect().call("DEBUG SET-SKIP-CHECKSUM-VALIDATION 1"), Reply::ok());
        assert_eq!(restore(&payload), Reply::ok());
        payload[3] = 0xff;
        assert_eq!(restore(&payload).text(), "ERR Bad data format");
        assert_eq!(server.connect().call("DEBUG SET-SKIP-CHECKSUM-VALIDATION 0"), Reply::ok());
        assert_eq!(restore(&payload).text(), "ERR DUMP payload version or checksum are wrong");
    }
}

#[test]
fn time_returns_the_current_time() {
    let server = start();
    let reply = server.connect().call("TIME");
    let seconds: u64 = reply.elements()[0].text().parse().expect("seconds");
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970").as_secs();
    assert!(now.abs_diff(seconds) <= 2);
    assert!(reply.elements()[1].text().parse::<u64>().expect("microseconds") < 1_000_000);
}

/// `FUNCTION FLUSH` works as in Redis, even if no library is loaded. Tools that reset a server send
/// this command.
#[test]
fn an_empty_library_of_functions_is_flushed() {
    const CALLS: &[&str] = &[
        "FUNCTION FLUSH",
        "FUNCTION FLUSH async",
        "FUNCTION FLUSH SYNC",
        "FUNCTION FLUSH now",
        "FUNCTION FLUSH SYNC SYNC",
        "FUNCTION",
    ];
    let server = start();
    let Some(reference) = Server::redis(&[]) else { return };
    for call in CALLS {
        assert_eq!(server.connect().call(call), reference.connect().call(call), "{call}");
    }
}

#[test]
fn statistics_include_other_workers_at_once() {
    let server = start();
    // Connections are distributed evenly over the two workers, so some don't belong to the worker
    // that replies to INFO.
    let mut clients: Vec<Client> = (0..4).map(|_| server.connect()).collect();
    for client in &mut clients {
        client.call("GET a");
        client.call("INCR a b");
    }
    let text = clients[0].call("INFO everything").text();
    let has = |line: &str| assert!(text.contains(line), "{line} is missing in\n{text}");
    has("\r\ncmdstat_get:calls=4,");
    has("rejected_calls=4,failed_calls=0\r\n");
    has("\r\nerrorstat_ERR:count=4\r\n");
}

#[test]
fn renamed_commands_are_listed_by_their_new_names() {
    const RENAMES: &[&str] = &["--rename-command", "GET", "fetch", "--rename-command", "DBSIZE", ""];
    let Some(reference) = Server::redis(RENAMES) else { return };
    let server = Server::pantala(Backend::all()[0], RENAMES);
    let (mut given, mut right) = (server.connect(), reference.connect());
    for command in [
        "COMMAND INFO get fetch FETCH dbsize",
        "COMMAND GETKEYS fetch a",
        "COMMAND GETKEYS get a",
        "COMMAND GETKEYS dbsize",
        "fetch a",
        "get a",
        "dbsize",
    ] {
        assert_eq!(given.call(command), right.call(command), "{command}");
    }
    let lists = |client: &mut Client| {
        let names: BTreeSet<String> = client.call("COMMAND LIST").elements().iter().map(Reply::text).collect();
        ["get", "fetch", "dbsize"].map(|name| names.contains(name))
    };
    assert_eq!(lists(&mut given), lists(&mut right));
}

/// Monitors, errors and helps show the names by which clients call renamed commands.
#[test]
fn renamed_commands_are_shown_by_their_new_names() {
    const RENAMES: &[&str] = &[
        "--rename-command",
        "EXEC",
        "Commit",
        "--rename-command",
        "CONFIG",
        "cfg2",
        "--rename-command",
        "XGROUP",
        "x",
        "--rename-command",
        "WATCH",
        "observe",
    ];
    /// Returns the replies to the commands, and what a monitor shows of them.
    fn transcript(server: &Server) -> (Vec<String>, Vec<String>) {
        let (mut client, mut monitor) = (server.connect(), server.connect());
        assert_eq!(monitor.call("MONITOR"), Reply::ok());
        let mut replies = Vec::new();
        for command in [
            "observe a b",
            "MULTI",
            "SET a 1",
            "SET b 1",
            "commit",
            "MULTI",
            "COMMIT",
            "COMMIT",
            "MULTI",
            "nosuch",
            "coMMit",
            "cfg2 foo",
            "cfg2 HELP",
            "x CREATE a",
            "x foo",
            "x HELP",
            "ECHO end",
        ] {
            client.send(&command.split(' ').collect::<Vec<_>>());
            let line = match client.receive_raw().0 {
                // Pantala describes other subcommands.
                Reply::Array(lines) if command.ends_with("HELP") => format!("{:?}", lines[0]),
                reply => format!("{reply:?}"),
            };
            replies.push(format!("{command}: {line}"));
        }
        let mut shown = Vec::new();
        while shown.last().is_none_or(|line: &String| !line.ends_with(" \"ECHO\" \"end\"")) {
            let line = monitor.receive().text();
            shown.push(line[line.find(']').expect("an address")..].to_owned());
        }
        (replies, shown)
    }
    let Some(reference) = Server::redis(RENAMES) else { return };
    let right = transcript(&reference);
    for_each_backend(|backend| {
        let server = Server::pantala(backend, &[RENAMES, &["--workers", "2", "--shards", "8"]].concat());
        assert_eq!(transcript(&server), right);
    });
}

/// Changes the address on which a server listens, and returns its replies. Checks that clients can
/// connect to the new address but not to the former one, and that connections stay open.
fn change_addresses(server: &Server) -> Vec<Reply> {
    let mut client = server.connect();
    let mut replies = Vec::new();
    let mut set = |directive: &str, value: &str| {
        let reply = client.command(&["CONFIG", "SET", directive, value]);
        assert_eq!(client.call("PING"), Reply::Simple("PONG".into()));
        replies.push(reply);
    };
    let ping = |port: u16| assert_eq!(Client::tcp(port).call("PING"), Reply::Simple("PONG".into()));
    let other = free_port();
    set("port", &other.to_string());
    ping(other);
    assert!(Client::try_tcp(server.port()).is_err(), "the old port still listens");
    let taken = std::net::TcpListener::bind("0.0.0.0:0").expect("a port");
    set("port", &taken.local_addr().expect("its address").port().to_string());
    ping(other);
    // The new addresses may include the old ones, or be a part of them, on the same port. The third
    // value contains an address that the host doesn't have.
    for bind in ["127.0.0.1", "* -::*", "127.0.0.1 192.0.2.1", "127.0.0.1"] {
        set("bind", bind);
        ping(other);
    }
    set("port", "0");
    assert!(Client::try_tcp(other).is_err(), "the server still listens");
    set("port", &server.port().to_string());
    ping(server.port());
    assert_eq!(client.call("CONFIG GET port").elements()[1].text(), server.port().to_string());
    replies.push(client.call("CONFIG GET bind"));
    replies
}

#[test]
fn the_listening_address_changes_at_run_time() {
    let right = Server::redis(&[]).map(|reference| change_addresses(&reference));
    for_each_backend(|backend| {
        let mut server = Server::pantala(backend, &["--workers", "2", "--shards", "8"]);
        let given = change_addresses(&server);
        assert_eq!(given[0], Reply::ok());
        if let Some(right) = &right {
            assert_eq!(&given, right);
        }
        server.assert_sound();
    });
}

/// Sets several directives, and returns the replies. `appendonly` can't be applied, because a file
/// has the name of the directory `appendonlydir`.
fn refused_changes(server: &Server) -> Vec<Reply> {
    let mut client = server.connect();
    let dir = client.call("CONFIG GET dir").elements()[1].text();
    let folder = std::path::Path::new(&dir).join("appendonlydir");
    std::fs::write(&folder, "no directory").expect("written");
    let port = free_port().to_string();
    let mut replies = vec![
        client.command(&[
            "CONFIG",
            "SET",
            "requirepass",
            "secret",
            "port",
            &port,
            "maxmemory",
            "123mb",
            "appendonly",
            "yes",
        ]),
        client.command(&[
            "CONFIG",
            "SET",
            "appendonly",
            "yes",
            "maxclients",
            "77",
            "port",
            &port,
            "requirepass",
            "secret",
        ]),
        client.call("CONFIG GET appendonly"),
        client.call("CONFIG GET maxmemory"),
        client.call("CONFIG GET maxclients"),
        client.call("CONFIG GET requirepass"),
        Reply::Integer(i64::from(client.call("CONFIG GET port").elements()[1].text() == server.port().to_string())),
        Reply::Integer(i64::from(std::net::TcpStream::connect(("127.0.0.1", port.parse().expect("a port"))).is_ok())),
    ];
    // The rejected change must not have set a password, so a new connection needs none.
    replies.push(server.connect().call("GET a"));
    std::fs::remove_file(&folder).expect("it is there");
    let appendonly = client.command(&["CONFIG", "SET", "maxclients", "77", "appendonly", "yes"]);
    replies.extend([appendonly, client.call("CONFIG GET maxclients"), client.call("CONFIG GET appendonly")]);
    replies
}

#[test]
fn config_set_applies_all_or_none() {
    let own = refused_changes(&start());
    let refused = "ERR CONFIG SET failed (possibly related to argument 'appendonly') - Unable to turn on AOF. Check server \
                   logs.";
    assert_eq!(own[..2], [refused, refused].map(|text| Reply::Error(text.into())));
    let Some(reference) = Server::redis(&[]) else { return };
    assert_eq!(own, refused_changes(&reference));
}

/// One command sets the directory and turns the append-only file on. The file is then in the new
/// directory.
#[test]
fn config_set_turns_the_append_only_file_on_in_a_new_directory() {
    let server = Server::pantala(Backend::all()[0], &["--workers", "2", "--enable-protected-configs", "yes"]);
    let folder = tempfile::tempdir().expect("a folder");
    let mut client = server.connect();
    let dir = folder.path().to_str().expect("a UTF-8 path");
    assert_eq!(client.command(&["CONFIG", "SET", "dir", dir, "appendonly", "yes"]), Reply::ok());
    eventually("it has a base", || folder.path().join("appendonlydir/appendonly.aof.manifest").is_file());
}

/// Returns a number of `INFO memory` or of `MEMORY STATS`.
fn number_field(fields: &BTreeMap<String, String>, name: &str) -> u64 {
    let text = fields.get(name).unwrap_or_else(|| panic!("{name} is missing in {fields:?}"));
    text.parse().unwrap_or_else(|_| panic!("{name} is not a number: {text}"))
}

fn info_memory(client: &mut Client) -> BTreeMap<String, String> {
    let text = client.call("INFO memory").text();
    let fields = text.lines().filter_map(|line| line.trim().split_once(':'));
    fields.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// INFO shows the memory of scripts and libraries after they are loaded, before any of them runs.
#[test]
fn info_counts_scripts_and_functions_once_loaded() {
    const SCRIPT: &str = "return redis.call('GET', KEYS[1])";
    const LIBRARY: &str = "#!lua name=mylib\nredis.register_function('f', function() return 1 end)";
    for_each_backend(|backend| {
        let server = Server::pantala(backend, &["--workers", "2", "--shards", "4"]);
        let mut client = server.connect();
        client.command(&["SCRIPT", "LOAD", SCRIPT]);
        let info = info_memory(&mut client);
        let field = |name: &str| number_field(&info, name);
        assert!(field("used_memory_lua") > 10_000, "{info:?}");
        assert_eq!(field("used_memory_vm_eval"), field("used_memory_lua"));
        assert_eq!((field("number_of_cached_scripts"), field("used_memory_vm_functions")), (1, 0));
        assert!(field("used_memory_scripts_eval") > SCRIPT.len() as u64);

        assert_eq!(client.command(&["FUNCTION", "LOAD", LIBRARY]).text(), "mylib");
        let info = info_memory(&mut client);
        let field = |name: &str| number_field(&info, name);
        assert!(field("used_memory_vm_functions") > 10_000, "{info:?}");
        assert_eq!((field("number_of_functions"), field("number_of_libraries")), (1, 1));
        let states = field("used_memory_vm_eval") + field("used_memory_vm_functions");
        assert_eq!(field("used_memory_vm_total"), states);
        assert!(field("used_memory_functions") > LIBRARY.len() as u64);
        let texts = field("used_memory_scripts_eval") + field("used_memory_functions");
        assert_eq!(field("used_memory_scripts"), texts);
        let stats = client.call("MEMORY STATS");
        let stats = stats.elements();
        let caches = |name: &str| {
            let at = stats.iter().position(|field| field.text() == name).expect("the field exists");
            stats[at + 1].clone()
        };
        assert_eq!(caches("lua.caches"), Reply::Integer(field("used_memory_scripts_eval") as i64));
        assert_eq!(caches("functions.caches"), Reply::Integer(field("used_memory_functions") as i64));

        for words in ["SCRIPT FLUSH", "FUNCTION FLUSH"] {
            assert_eq!(client.call(words), Reply::ok());
        }
        let info = info_memory(&mut client);
        for name in
            ["number_of_cached_scripts", "used_memory_scripts_eval", "used_memory_functions", "number_of_functions"]
        {
            assert_eq!(number_field(&info, name), 0, "{name}");
        }
    });
}

#[test]
fn debug_htstats_counts_the_keys_of_a_database() {
    let server = Server::pantala(Backend::Epoll, &["--workers", "2", "--shards", "4"]);
    let mut client = server.connect();
    let empty = "Hash table 0 stats (main hash table):\nNo stats available for empty dictionaries\n";
    assert_eq!(client.call("DEBUG HTSTATS 0").text(), format!("[Dictionary HT]\n{empty}[Expires HT]\n{empty}"));
    assert_eq!(client.call("DEBUG POPULATE 5000"), Reply::ok());
    assert_eq!(client.call("EXPIRE key:1 1000"), Reply::Integer(1));
    let text = client.call("DEBUG HTSTATS 0").text();
    let (keys, expiries) = text.split_once("[Expires HT]\n").expect("there are two parts");
    assert!(keys.starts_with("[Dictionary HT]\n") && keys.contains(" number of elements: 5000\n"), "{text}");
    assert!(keys.contains("of 32 partitions") && expiries.ends_with(" number of elements: 1\n"), "{text}");
    // Each line has a number of used slots, and the number of buckets with that many used slots.
    let lines = keys.lines().skip_while(|line| !line.contains("distribution")).skip(1);
    let pairs = lines.map(|line| line.trim().split_once(": ").expect("slots and buckets"));
    let number = |text: &str| -> usize { text.split(' ').next().and_then(|text| text.parse().ok()).expect("a number") };
    assert_eq!(pairs.map(|(used, buckets)| number(used) * number(buckets)).sum::<usize>(), 5000, "{text}");
    assert!(client.call("DEBUG HTSTATS 1").text().contains(empty));

    let Some(reference) = Server::redis(&[]) else { return };
    let mut right = reference.connect();
    for words in [
        "DEBUG HTSTATS",
        "DEBUG HTSTATS x",
        "DEBUG HTSTATS 16",
        "DEBUG HTSTATS -1",
        "DEBUG HTSTATS 0 full",
        "DEBUG HTSTATS 9",
    ] {
        assert_eq!(client.call(words), right.call(words), "{words}");
    }
    for words in ["DEBUG REPLYBUFFER", "DEBUG REPLYBUFFER x", "DEBUG REPLYBUFFER x 1"] {
        assert_eq!(client.call(words), right.call(words), "{words}");
    }
    // Pantala has no such setting.
    assert_eq!(client.call("DEBUG REPLYBUFFER RESIZING 0"), Reply::ok());
    assert!(client.call("DEBUG REPLYBUFFER RESIZING 1").text().starts_with("ERR Pantala has no reply buffers"));
}

/// Returns the replies to `MODULE` for a library that is missing, with each value of
/// `enable-module-command`.
fn module_replies(server: &Server) -> Vec<String> {
    const CALLS: &[&str] = &[
        "MODULE LOAD",
        "MODULE LOAD /nosuch.so",
        "MODULE LOAD /nosuch.so a b",
        "MODULE LOADEX",
        "MODULE LOADEX /nosuch.so",
        "MODULE LOADEX /nosuch.so CONFIG a",
        "MODULE LOADEX /nosuch.so CONFIG a b CONFIG c d ARGS e",
        "MODULE LOADEX /nosuch.so NOSUCH",
        "MODULE UNLOAD",
        "MODULE UNLOAD nosuch",
        "MODULE UNLOAD nosuch b",
        "MODULE LIST",
        "MODULE NOSUCH",
        "MULTI",
        "MODULE LOAD /nosuch.so",
        "MODULE UNLOAD nosuch",
        "EXEC",
        "COMMAND GETKEYS MODULE LOAD /nosuch.so",
        "ACL DRYRUN default MODULE LOAD /nosuch.so",
    ];
    let mut client = server.connect();
    let mut replies: Vec<String> = CALLS.iter().map(|call| format!("{call}: {:?}", client.call(call))).collect();
    let script = "return redis.pcall('MODULE', 'LOAD', '/nosuch.so')";
    replies.push(format!("{:?}", client.command(&["EVAL", script, "0"])));
    replies
}

#[test]
fn modules_are_rejected_with_the_errors_of_redis() {
    for allowed in ["yes", "no", "local"] {
        let args = ["--enable-module-command", allowed];
        let Some(reference) = Server::redis(&args) else { return };
        let server = Server::pantala(Backend::all()[0], &args);
        let (given, right) = (module_replies(&server), module_replies(&reference));
        assert_eq!(given, right, "{allowed}");
        if allowed == "yes" {
            let log = server.log();
            for line in [
                "Module /nosuch.so failed to load: modules are not supported",
                "Module /nosuch.so failed to load: CONFIG specified without name value pair",
                "Module /nosuch.so failed to load: syntax error in the arguments of LOADEX",
            ] {
                assert!(log.contains(line), "{log}");
            }
        }
    }
}
