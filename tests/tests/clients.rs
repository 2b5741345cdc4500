//! Common client software against Pantala: the `redis` crate, redis-cli and redis-benchmark.

use std::time::Duration;

use pantala_tests::client::encode;
use pantala_tests::server::Server;
use pantala_tests::{Backend, Reply, for_each_backend, tool};
use redis::{Commands, Connection, ErrorKind, RedisError, Value};

/// Maximum duration of one redis-cli or redis-benchmark run.
const RUN_MAX: Duration = Duration::from_secs(120);

fn start(backend: Backend) -> Server {
    Server::pantala(backend, &["--workers", "2", "--shards", "40"])
}

fn connection(server: &Server, query: &str) -> Connection {
    let url = format!("redis://127.0.0.1:{}/{query}", server.port());
    redis::Client::open(url).expect("the address is valid").get_connection().expect("it connects")
}

#[test]
fn the_redis_crate_with_both_protocols() {
    for_each_backend(|backend| {
        for (version, query) in [("2", ""), ("3", "?protocol=resp3")] {
            let server = start(backend);
            let mut connection = connection(&server, query);
            let () = connection.set("name", "Pantala").expect("SET");
            let name: String = connection.get("name").expect("GET");
            assert_eq!(name, "Pantala");
            let none: Option<String> = connection.get("nosuch").expect("GET of nothing");
            assert_eq!(none, None);
            let () = connection.mset(&[("a", 1), ("b", 2)]).expect("MSET");
            let values: Vec<Option<i64>> = connection.mget(&["a", "nosuch", "b"]).expect("MGET");
            assert_eq!(values, [Some(1), None, Some(2)]);
            let sum: i64 = connection.incr("a", 41).expect("INCRBY");
            assert_eq!(sum, 42);
            let half: f64 = connection.incr("half", 0.5).expect("INCRBYFLOAT");
            assert!((half - 0.5).abs() < f64::EPSILON);
            let () = connection.set_ex("short", "x", 100).expect("SETEX");
            let ttl: i64 = connection.ttl("short").expect("TTL");
            assert!((99..=100).contains(&ttl));
            let binary: Vec<u8> = (0..=255).collect();
            let () = connection.set("binary", &binary).expect("SET");
            let back: Vec<u8> = connection.get("binary").expect("GET");
            assert_eq!(back, binary);
            let error: RedisError = connection.incr::<_, _, i64>("name", 1).expect_err("no number");
            assert_eq!(error.kind(), ErrorKind::Server(redis::ServerErrorKind::ResponseError), "{error}");
            let hello: Value = redis::cmd("HELLO").query(&mut connection).expect("HELLO");
            assert_eq!(matches!(hello, Value::Map(_)), version == "3", "{hello:?}");
            let mut keys: Vec<String> =
                connection.scan().expect("SCAN").collect::<Result<_, _>>().expect("keys are text");
            keys.sort();
            assert_eq!(keys, ["a", "b", "binary", "half", "name", "short"]);
        }
    });
}

#[test]
fn pipelines_of_the_redis_crate() {
    const COMMANDS: usize = 5000;
    for_each_backend(|backend| {
        let server = start(backend);
        let mut connection = connection(&server, "");
        let mut pipe = redis::pipe();
        for number in 0..COMMANDS {
            pipe.cmd("SET").arg(format!("key:{number}")).arg(number).ignore();
            pipe.cmd("GET").arg(format!("key:{}", number / 2));
        }
        let values: Vec<usize> = pipe.query(&mut connection).expect("the pipeline runs");
        assert_eq!(values, (0..COMMANDS).map(|number| number / 2).collect::<Vec<_>>());
        let count: usize = redis::cmd("DBSIZE").query(&mut connection).expect("DBSIZE");
        assert_eq!(count, COMMANDS);
    });
}

#[test]
fn redis_cli_works() {
    let Some(program) = tool::find("redis-cli") else { return };
    for_each_backend(|backend| {
        let server = start(backend);
        let cli = |args: &[&str], input: &[u8]| {
            let ran = tool::run(&program, server.port(), args, input, RUN_MAX);
            assert!(ran.success, "redis-cli {args:?}: {ran:?}");
            ran.output
        };
        assert_eq!(cli(&["SET", "greeting", "hello world"], b""), "OK\n");
        assert_eq!(cli(&["GET", "greeting"], b""), "hello world\n");
        assert_eq!(cli(&["-3", "GET", "nosuch"], b""), "\n");
        assert_eq!(cli(&["-n", "1", "DBSIZE"], b""), "0\n");
        assert_eq!(cli(&["-x", "SET", "stdin"], b"from input"), "OK\n");
        assert_eq!(cli(&[], b"GET stdin\nINCR n\nINCR n\nNOSUCH\nSELECT 1\nGET n\n").lines().count(), 7);
        assert!(cli(&["INFO", "server"], b"").contains("redis_version:7.0.15"));
        assert!(cli(&["CONFIG", "GET", "maxclients"], b"").contains("10000"));
        assert!(cli(&["-r", "3", "PING"], b"").contains("PONG\nPONG\nPONG"));

        let mut commands = Vec::new();
        for number in 0..20_000 {
            commands.extend(encode(&["SET", &format!("piped:{number}"), &"v".repeat(number % 50)]));
        }
        let piped = cli(&["--pipe"], &commands);
        assert!(piped.contains("errors: 0, replies: 20000"), "{piped}");
        assert_eq!(cli(&["DBSIZE"], b""), "20003\n");
        assert_eq!(cli(&["--scan", "--pattern", "piped:*"], b"").lines().count(), 20_000);
        assert_eq!(cli(&["--scan", "--pattern", "piped:1234?"], b"").lines().count(), 10);
        let big = cli(&["--bigkeys"], b"");
        assert!(big.contains("Sampled 20003 keys"), "{big}");
        let memory = cli(&["--memkeys"], b"");
        assert!(memory.contains("Sampled 20003 keys"), "{memory}");
    });
}

#[test]
fn redis_cli_knows_the_commands() {
    let Some(program) = tool::find("redis-cli") else { return };
    let server = start(Backend::Epoll);
    let ran = tool::run(&program, server.port(), &["COMMAND", "DOCS", "GET"], b"", RUN_MAX);
    assert!(ran.success && ran.output.contains("summary"), "{ran:?}");
}

/// Runs redis-benchmark. Asserts that it reports no error, and a result for every requested test.
fn benchmark(server: &Server, args: &[&str], tests: &[&str]) {
    let Some(program) = tool::find("redis-benchmark") else { return };
    let mut all = vec!["--csv"];
    all.extend_from_slice(args);
    let ran = tool::run(&program, server.port(), &all, b"", RUN_MAX);
    assert!(
        ran.success && !ran.output.contains("rror") && !ran.errors.contains("rror"),
        "redis-benchmark {args:?}: {ran:?}"
    );
    for test in tests {
        assert!(
            ran.output.lines().any(|line| line.starts_with(&format!("\"{test}"))),
            "{test} is missing: {}",
            ran.output
        );
    }
    assert_eq!(server.connect().call("PING"), Reply::Simple("PONG".into()));
}

#[test]
fn redis_benchmark_runs_without_an_error() {
    const TESTS: &[&str] = &["PING_INLINE", "PING_MBULK", "SET", "GET", "INCR", "MSET (10 keys)"];
    for_each_backend(|backend| {
        let mut server = start(backend);
        for (pipeline, requests) in [("1", "10000"), ("30", "60000")] {
            let args = [
                "-t",
                "ping,set,get,incr,mset",
                "-c",
                "50",
                "-P",
                pipeline,
                "-n",
                requests,
                "-r",
                "100000",
                "-d",
                "64",
            ];
            benchmark(&server, &args, TESTS);
        }
        // A thousand simultaneous connections overflow the listen queue, and some are established
        // only after a second. Because of this delay, only two tests use a thousand connections.
        benchmark(&server, &["-t", "get", "-c", "1000", "-n", "20000"], &["GET"]);
        benchmark(
            &server,
            &["-t", "mset", "-c", "1000", "-P", "30", "-n", "60000", "-r", "100000"],
            &["MSET (10 keys)"],
        );
        benchmark(&server, &["-t", "set,get", "-n", "20000", "--threads", "2", "-3"], &["SET", "GET"]);
        benchmark(
            &server,
            &["-n", "10000", "-r", "1000", "SET", "key:__rand_int__", "__rand_int__", "EX", "100"],
            &["SET key"],
        );
        server.assert_sound();
    });
}

/// Runs the whole matrix on a release build. `.ci/run` runs this test by name.
#[test]
#[ignore = "long: run on a release build by .ci/run"]
fn redis_benchmark_matrix() {
    let Some(program) = tool::find("redis-benchmark") else { return };
    for_each_backend(|backend| {
        let mut server = start(backend);
        for clients in ["50", "1000"] {
            for pipeline in ["1", "30"] {
                let requests = if pipeline == "1" { "100000" } else { "400000" };
                let args = [
                    "-t",
                    "ping,set,get,incr,mset",
                    "-c",
                    clients,
                    "-P",
                    pipeline,
                    "-n",
                    requests,
                    "-r",
                    "1000000",
                    "-d",
                    "256",
                    "-q",
                ];
                let ran = tool::run(&program, server.port(), &args, b"", RUN_MAX);
                assert!(
                    ran.success && !ran.output.contains("rror") && !ran.errors.contains("rror"),
                    "redis-benchmark {args:?}: {ran:?}"
                );
                let results = ran.output.lines().filter(|line| line.contains("requests per second"));
                for line in results {
                    println!("{} -c {clients} -P {pipeline} {line}", backend.name());
                }
            }
        }
        // Without `-t`, redis-benchmark runs all its tests.
        let ran = tool::run(&program, server.port(), &["-n", "20000", "-q"], b"", RUN_MAX);
        let failed = |text: &str| text.contains("rror");
        assert!(ran.success && !failed(&ran.output) && !failed(&ran.errors), "redis-benchmark's default list: {ran:?}");
        assert!(ran.output.contains("MSET (10 keys)"), "the list is complete: {ran:?}");
        server.assert_sound();
    });
}
