//! Runs the real executable for short comparisons of real servers. Asserts structure, never speed.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Maximum time of a comparison in these tests. A comparison normally takes a few seconds.
const RUN_MAX: Duration = Duration::from_secs(120);

/// Returns a `compare` command with default signal dispositions. The tests may run under `nohup`,
/// which ignores signals.
fn compare(out: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new("env");
    command.arg("--default-signal").arg(env!("CARGO_BIN_EXE_pantala-bench"));
    command.arg("compare").args(arguments).arg("--out").arg(out).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn wait(mut child: Child) -> Output {
    let begin = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if begin.elapsed() > RUN_MAX {
            let _ = child.kill();
            panic!("still running: {:?}", child.wait_with_output());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    child.wait_with_output().unwrap()
}

fn results(out: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(out.join("results.json")).unwrap()).unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Returns the processes whose working directory is in `folder`. The servers of a run keep their
/// files there.
fn processes_in(folder: &Path) -> Vec<String> {
    let folder = folder.display().to_string();
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let work = std::fs::read_link(entry.path().join("cwd")).unwrap_or_default();
        // The bench process names the folder in its command line, but does not run in it.
        if work.starts_with(&folder) {
            found.push(format!("{:?}: {}", entry.file_name(), text(&line).replace('\0', " ")));
        }
    }
    found
}

/// Returns the path of redis-server. If it is not installed, fails in CI. Outside of CI, prints a
/// message and returns `None`.
fn redis_server() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|folder| folder.join("redis-server")).find(|file| file.is_file());
    if found.is_none() {
        assert!(
            std::env::var("CI").as_deref() != Ok("true"),
            "CI=true forbids skipping: redis-server is not installed"
        );
        // Writing to stderr directly bypasses the capture of the test's output.
        let _ = writeln!(std::io::stderr(), "SKIPPED: redis-server is not installed");
    }
    found
}

fn assert_measured(row: &Value, rounds: usize) {
    assert_measured_of(row, rounds, 1_000);
}

/// Asserts the fields of a row. `filled` is the number of operations that loaded the keys.
fn assert_measured_of(row: &Value, rounds: usize, filled: u64) {
    assert!(row["invalid"].is_null() && row["skipped"].is_null(), "{row:#}");
    assert_eq!(row["rounds"].as_array().unwrap().len(), rounds);
    let summary = &row["summary"];
    for metric in ["p50_us", "p99_us", "p99_9_us", "max_us"] {
        assert!(summary[metric].as_f64().unwrap() > 0.0, "{metric}: {row:#}");
    }
    for metric in ["operations_per_s", "cpu_us_per_operation"] {
        let at = |name: &str| summary[metric][name].as_f64().unwrap();
        assert!(0.0 < at("min") && at("min") <= at("median") && at("median") <= at("max"), "{metric}: {row:#}");
    }
    let bytes = |name: &str| row[name].as_u64().unwrap();
    assert!(bytes("resident_loaded_bytes") > 1_000_000, "{row:#}");
    assert!(bytes("resident_peak_bytes") >= bytes("resident_loaded_bytes"), "{row:#}");
    assert_eq!(bytes("loaded_keys"), filled);
}

#[test]
fn two_servers_a_cluster_and_a_dead_peer() {
    if redis_server().is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (out, dir) = (folder.path().join("out"), folder.path().join("dir"));
    std::fs::create_dir(&dir).unwrap();
    let arguments =
        ["--peer", "redis", "--peer", "redis-cluster:2", "--peer", "floor", "--peer", "dead=/bin/false {port}"];
    let more = ["--workload", "dragonfly-get30", "--workload", "transactions", "--scale", "0.001", "--rounds", "2"];
    let mut command = compare(&out, &arguments);
    command.args(more).args(["--against", "floor", "--test-time", "1", "--dir"]).arg(&dir);
    let output = wait(command.spawn().unwrap());
    assert!(!output.status.success(), "a dead peer makes a row invalid");
    assert!(text(&output.stderr).contains("2 rows are invalid"), "{}", text(&output.stderr));
    let results = results(&out);
    let workloads = results["workloads"].as_array().unwrap();
    let [get, transactions] = workloads.as_slice() else { panic!("{results:#}") };
    let threads = results["client_threads"].as_u64().unwrap();
    let clients = |in_flight_of_each: u64| Value::from(30 * threads * in_flight_of_each);
    let [redis, cluster, floor, dead] = get["peers"].as_array().unwrap().as_slice() else { panic!("{get:#}") };
    [redis, cluster, floor].into_iter().for_each(|row| assert_measured(row, 2));
    assert!(get["parameters"].as_str().unwrap().contains("1000 keys (scaled: 1000000 × 0.001)"), "{get:#}");
    assert!(redis["version"].as_str().unwrap().starts_with("redis "), "{redis:#}");
    assert_eq!((&cluster["processes"], &cluster["cluster_mode"]), (&Value::from(2), &Value::from(true)));
    assert_eq!(redis["summary"]["hit_rate"], 1.0, "{redis:#}");
    assert_eq!(cluster["summary"]["hit_rate"], 1.0, "{cluster:#}");
    let against: Vec<&Value> =
        cluster["summary"]["ratios"].as_array().unwrap().iter().map(|ratios| &ratios["against"]).collect();
    assert_eq!(against, ["redis", "floor"]);
    assert!(cluster["summary"]["ratios"][1]["cpu_us_per_operation"]["median"].as_f64().unwrap() > 0.0, "{cluster:#}");
    assert!(text(&output.stdout).contains("redis / floor ") && !text(&output.stdout).contains("floor / redis"));
    assert_eq!((&redis["in_flight_max"], &cluster["in_flight_max"]), (&clients(30), &clients(60)));
    assert!(redis["summary"]["generator_us_per_operation"].as_f64().unwrap() > 0.0, "{redis:#}");
    assert!(redis["summary"]["generator_wanting"].as_f64().unwrap() > 0.0, "{redis:#}");
    assert!(dead["invalid"].as_str().unwrap().contains("ended at its start"), "{dead:#}");
    let [redis, cluster, ..] = transactions["peers"].as_array().unwrap().as_slice() else { panic!("{transactions:#}") };
    assert_measured(redis, 2);
    assert!(cluster["skipped"].as_str().unwrap().contains("several slots"), "{cluster:#}");
    for name in ["report.html", "report.md"] {
        assert!(std::fs::read_to_string(out.join(name)).unwrap().contains("dragonfly-get30"), "{name}");
    }
    assert_eq!(processes_in(&dir), [""; 0]);
    assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0, "files are left over");
}

#[test]
fn a_peer_that_dies_is_reported_and_the_others_finish() {
    let folder = tempfile::tempdir().unwrap();
    let bench = env!("CARGO_BIN_EXE_pantala-bench");
    // After three seconds the keys are loaded, and the measurement is still running.
    let mortal = format!("mortal=sh -c '{bench} floor --threads 1 --port {{port}} & sleep 3; kill $!; exit 3'");
    let out = folder.path().join("out");
    let arguments = ["--peer", mortal.as_str(), "--peer", "floor", "--workload", "dragonfly-get1", "--scale", "0.001"];
    let mut command = compare(&out, &arguments);
    // The peer's shell and its child are suspended while other peers are measured, so this time
    // does not count for the sleep.
    let output = wait(command.args(["--rounds", "1", "--test-time", "6"]).spawn().unwrap());
    assert!(!output.status.success());
    let results = results(&out);
    let [mortal, floor] = results["workloads"][0]["peers"].as_array().unwrap().as_slice() else {
        panic!("{results:#}")
    };
    let why = mortal["invalid"].as_str().unwrap_or_else(|| panic!("{mortal:#}"));
    assert!(why.contains("exit status: 3"), "{why}");
    assert!(mortal["summary"].is_null());
    assert_measured(floor, 1);
    assert!(std::fs::read_to_string(out.join("report.md")).unwrap().contains("INVALID"));
}

/// Waits until `seen` returns true. Fails if `child` ends earlier.
fn until(child: &mut Child, what: &str, mut seen: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !seen() {
        assert!(begin.elapsed() < RUN_MAX, "not seen: {what}");
        assert!(child.try_wait().unwrap().is_none(), "ended before {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Sends `signal` to `child`. Asserts that the child reports the interruption and leaves no files
/// in `dir`.
fn interrupted(child: Child, signal: Signal, dir: &Path) -> Output {
    let begin = Instant::now();
    kill_process(Pid::from_child(&child), signal).unwrap();
    let output = wait(child);
    assert!(begin.elapsed() < Duration::from_secs(50), "{signal:?}: it continued");
    let errors = text(&output.stderr);
    assert!(output.status.code() == Some(1) && errors.contains("interrupted"), "{signal:?}: {errors}");
    assert_eq!(processes_in(dir), [""; 0], "{signal:?}");
    assert_eq!(std::fs::read_dir(dir).unwrap().count(), 0, "{signal:?}: files are left over");
    output
}

#[test]
fn signals_stop_everything_and_are_reported() {
    for signal in [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT] {
        let folder = tempfile::tempdir().unwrap();
        let (out, dir) = (folder.path().join("out"), folder.path().join("dir"));
        std::fs::create_dir(&dir).unwrap();
        let arguments = ["--peer", "floor", "--workload", "dragonfly-get1", "--scale", "0.001", "--test-time", "60"];
        let mut child = compare(&out, &arguments).arg("--dir").arg(&dir).spawn().unwrap();
        until(&mut child, "a server", || !processes_in(&dir).is_empty());
        interrupted(child, signal, &dir);
        assert_eq!(results(&out)["interrupted"], true);
    }
}

#[test]
fn an_interruption_while_a_cluster_starts_is_reported() {
    if redis_server().is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (out, dir) = (folder.path().join("out"), folder.path().join("dir"));
    std::fs::create_dir(&dir).unwrap();
    let arguments = ["--peer", "redis-cluster:24", "--workload", "dragonfly-get1", "--scale", "0.001"];
    let mut child = compare(&out, &arguments).arg("--dir").arg(&dir).spawn().unwrap();
    // Slots are assigned when all nodes are ready. The nodes agree a second or more later.
    let has_slots = |entry: &std::path::Path| {
        std::fs::read_to_string(entry.join("23/nodes.conf")).is_ok_and(|text| text.contains("-16383"))
    };
    until(&mut child, "slots", || std::fs::read_dir(&dir).unwrap().flatten().any(|entry| has_slots(&entry.path())));
    let output = interrupted(child, Signal::INT, &dir);
    assert!(!text(&output.stderr).contains("ops/s"), "it was measured already: {}", text(&output.stderr));
    assert_eq!(results(&out)["workloads"][0]["peers"][0]["skipped"], "interrupted while it started");
}

#[test]
fn a_comparison_continues_under_nohup() {
    let folder = tempfile::tempdir().unwrap();
    let (out, dir) = (folder.path().join("out"), folder.path().join("dir"));
    std::fs::create_dir(&dir).unwrap();
    // As under `nohup`, the signal is ignored.
    let script = "trap '' HUP; exec \"$@\"";
    let mut command = Command::new("sh");
    command.args(["-c", script, "sh", env!("CARGO_BIN_EXE_pantala-bench"), "compare", "--out"]).arg(&out);
    command.args(["--peer", "floor", "--workload", "dragonfly-get1", "--scale", "0.001", "--rounds", "1"]);
    command.args(["--test-time", "1", "--dir"]).arg(&dir).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    until(&mut child, "a server", || !processes_in(&dir).is_empty());
    // This closes the read end of the process's stderr.
    drop(child.stderr.take());
    kill_process(Pid::from_child(&child), Signal::HUP).unwrap();
    let output = wait(child);
    assert!(output.status.success(), "{:?}", output.status);
    assert_measured(&results(&out)["workloads"][0]["peers"][0], 1);
}

#[test]
fn a_report_is_written_after_each_workload() {
    let folder = tempfile::tempdir().unwrap();
    let (out, dir) = (folder.path().join("out"), folder.path().join("dir"));
    std::fs::create_dir(&dir).unwrap();
    let workloads = ["--workload", "dragonfly-get1", "--workload", "dragonfly-set1"];
    // The time is long enough to see the first report while the second workload runs. The rate is
    // so low that even the slowest machine reaches it.
    let arguments = ["--peer", "floor", "--scale", "0.001", "--test-time", "4", "--rounds", "1"];
    let mut command = compare(&out, &arguments);
    command.args(workloads).args(["--rate-limiting", "200", "--dir"]).arg(&dir);
    let mut child = command.spawn().unwrap();
    let markdown = || std::fs::read_to_string(out.join("report.md")).unwrap_or_default();
    until(&mut child, "the first report", || markdown().contains("## dragonfly-get1"));
    assert!(markdown().contains("**Not complete: 1 of 2 workloads are measured.**"), "{}", markdown());
    let measured = &results(&out)["workloads"][0];
    assert_measured(&measured["peers"][0], 1);
    let operations = measured["peers"][0]["rounds"][0]["load"]["operations"].as_u64().unwrap();
    // On a slow machine, some operations that are due may still be unsent when the round ends. They
    // are never sent.
    assert!((400..=804).contains(&operations), "{operations} at 200 a second in 4 s");
    assert!(measured["parameters"].as_str().unwrap().ends_with("pipeline 1, 200 operations/s"), "{measured:#}");
    interrupted(child, Signal::INT, &dir);
}

/// Drives the floor responder, which stores nothing, at all rates of a sweep.
#[test]
fn a_sweep_measures_every_rate() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let arguments = ["--rate-sweep", "--peer", "floor", "--peer", "dead=/bin/false {port}", "--rounds", "1"];
    let mut command = compare(&out, &arguments);
    command.args(["--workload", "dragonfly-get1", "--scale", "0.001", "--test-time", "1"]);
    let output = wait(command.spawn().unwrap());
    assert!(text(&output.stderr).contains("1 rows are invalid"), "{}", text(&output.stderr));
    let results = results(&out);
    let workload = &results["workloads"][0];
    let [floor, dead] = workload["peers"].as_array().unwrap().as_slice() else { panic!("{workload:#}") };
    assert_measured(floor, 1);
    assert!(dead["invalid"].is_string() && dead["sweep"].as_array().unwrap().is_empty(), "{dead:#}");
    let peak = floor["summary"]["operations_per_s"]["median"].as_f64().unwrap();
    let points = floor["sweep"].as_array().unwrap();
    let percents: Vec<Option<u64>> = points.iter().map(|point| point["percent"].as_u64()).collect();
    assert_eq!(percents, [Some(5), Some(10), Some(20), Some(40), Some(60), Some(80), Some(95), None]);
    for point in points {
        let rate = point["percent"].as_u64().map_or(peak, |percent| peak * percent as f64 / 100.0);
        assert_eq!(point["rate_per_s"].as_u64().unwrap(), rate as u64);
        let operations = point["rounds"][0]["load"]["operations"].as_f64().unwrap();
        assert!(operations > 0.0 && operations <= rate * 1.05 + 100.0, "{operations} at {rate}: {point:#}");
        let summary = &point["summary"];
        for metric in ["p50_us", "p99_us", "p99_9_us", "max_us", "voluntary_switches"] {
            assert!(summary[metric].as_f64().unwrap() > 0.0, "{metric}: {point:#}");
        }
        assert!(summary["involuntary_switches"].is_number() && summary["cpu_us_per_operation"]["median"].is_number());
        // Either the events of all rates are counted, or a remark states the reason why not.
        let counts = &point["counts"];
        let are_counted = counts["system_calls"].as_u64().is_some_and(|calls| calls > 0);
        assert_eq!(are_counted, workload["uncounted"].is_null(), "{counts:#} {:#}", workload["uncounted"]);
    }
    let markdown = std::fs::read_to_string(out.join("report.md")).unwrap();
    assert!(
        markdown.contains("| own peak: ") && markdown.contains("peak throughput without a fixed rate"),
        "{markdown}"
    );
    let html = std::fs::read_to_string(out.join("report.html")).unwrap();
    assert!(html.contains("p99 latency over operations/s"));
}

/// Runs a preset at a small scale, as on a host that is smaller than the published one.
#[test]
fn a_preset_runs_and_says_what_is_scaled_down() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let arguments = ["--preset", "elasticache-7.1", "--peer", "floor", "--scale", "0.001", "--rounds", "1"];
    let output = wait(compare(&out, &arguments).args(["--test-time", "1"]).spawn().unwrap());
    let errors = text(&output.stderr);
    assert!(output.status.success(), "{errors}");
    assert!(errors.contains("elasticache-7.1: AWS Database Blog") && errors.contains("  load: "), "{errors}");
    let results = results(&out);
    assert_measured_of(&results["workloads"][0]["peers"][0], 1, 3_000);
    let cpus = |name: &str| results[name].as_array().unwrap().clone();
    let available = std::thread::available_parallelism().unwrap().get();
    let shared = cpus("server_cpus").iter().any(|cpu| cpus("client_cpus").contains(cpu));
    assert!(!cpus("server_cpus").is_empty() && shared == (available == 1), "{results:#}");
    let preset = &results["preset"];
    let lines = |name: &str| -> Vec<String> {
        preset[name].as_array().unwrap().iter().map(|line| line.as_str().unwrap().to_owned()).collect()
    };
    let scaled_down = lines("scaled_down");
    for expected in ["3000 keys; published 3000000", "rounds of 1 s", "the peer redis is left out"] {
        assert!(scaled_down.iter().any(|line| line.contains(expected)), "{expected}: {scaled_down:?}");
    }
    assert!(lines("differences")[0].contains("loopback"));
    let settings: Vec<&str> =
        preset["findings"].as_array().unwrap().iter().map(|finding| finding["what"].as_str().unwrap()).collect();
    for setting in ["frequency governor", "interrupts", "net.core.somaxconn", "open files", "mitigations", "load"] {
        assert!(settings.contains(&setting), "{setting}: {settings:?}");
    }
    assert!(std::fs::read_to_string(out.join("report.md")).unwrap().contains("## Preset elasticache-7.1"));
}

#[test]
fn missing_programs_are_reported() {
    let folder = tempfile::tempdir().unwrap();
    let fails = |arguments: &[&str], expected: &str| {
        let output = wait(compare(&folder.path().join("out"), arguments).spawn().unwrap());
        let errors = text(&output.stderr);
        assert!(!output.status.success() && errors.contains(expected), "{arguments:?}: {errors}");
    };
    fails(&["--peer", "redis", "--redis-server", "/no/such"], "the package redis-server");
    // A used port in the range that `--port` accepts.
    let used = (20_000..=40_000).find_map(|port| std::net::TcpListener::bind(("127.0.0.1", port)).ok()).unwrap();
    let port = used.local_addr().unwrap().port();
    let expected = format!("port {port} is in use");
    fails(&["--peer", "floor", "--workload", "dragonfly-get1", "--port", &port.to_string()], &expected);
    let output = wait(compare(Path::new("/dev/null/x"), &["--peer", "floor"]).spawn().unwrap());
    assert!(text(&output.stderr).contains("the report can't be written: /dev/null/x"), "{}", text(&output.stderr));
}

/// redis-server runs the workloads on one key without errors. A cluster peer is skipped for these
/// workloads.
#[test]
fn workloads_on_one_key_run() {
    const WORKLOADS: &[&str] =
        &["hset", "hget", "lpush", "lpush-rpop", "sadd", "sismember", "zadd", "zrange10", "zrank", "xadd"];
    if redis_server().is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let mut command = compare(&out, &["--peer", "redis", "--peer", "redis-cluster:2"]);
    command.args(["--scale", "0.001", "--rounds", "1", "--test-time", "1"]);
    command.args(WORKLOADS.iter().flat_map(|workload| ["--workload", workload]));
    let output = wait(command.spawn().unwrap());
    assert!(output.status.success(), "{}", text(&output.stderr));
    for (workload, name) in results(&out)["workloads"].as_array().unwrap().iter().zip(WORKLOADS) {
        let [redis, cluster] = workload["peers"].as_array().unwrap().as_slice() else { panic!("{workload:#}") };
        assert_eq!(workload["name"], *name);
        assert_measured(redis, 1);
        assert!(cluster["skipped"].as_str().unwrap().contains("one key"), "{cluster:#}");
        assert!(workload["parameters"].as_str().unwrap().contains("1000 members (scaled"), "{workload:#}");
        if *name == "hget" {
            assert_eq!(redis["summary"]["hit_rate"], 1.0, "{redis:#}");
        }
    }
}

/// Tests the workloads with a fixed number of operations per round, whose effect is checked. Also
/// tests `blpop`, which measures deliveries of pushed elements to blocked clients.
#[test]
fn counted_workloads_run() {
    /// Name of the workload, operations that fill the server at scale 0.001, and operations of a
    /// round.
    const WORKLOADS: &[(&str, u64, Option<u64>)] = &[
        ("xreadgroup", 1_000, Some(100)),
        ("xack", 1_000, Some(1_000)),
        ("xadd-xreadgroup-xack", 0, Some(1_000)),
        ("sunionstore", 1_000, Some(5)),
        ("sunionstore-integers", 1_000, Some(5)),
        ("zunionstore", 1_000, Some(5)),
        ("blpop", 0, None),
    ];
    if redis_server().is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let bench = env!("CARGO_BIN_EXE_pantala-bench");
    // This peer is a floor responder, which replies to everything and stores nothing. The
    // comparison does not recognize it, because the peer has another name.
    let hollow = format!("hollow={bench} floor --threads 1 --port {{port}}");
    let mut command = compare(&out, &["--peer", "redis", "--peer", "floor", "--peer", "redis-cluster:2"]);
    command.args(["--peer", &hollow, "--scale", "0.001", "--rounds", "2", "--test-time", "1"]);
    command.args(WORKLOADS.iter().flat_map(|workload| ["--workload", workload.0]));
    let output = wait(command.spawn().unwrap());
    assert!(text(&output.stderr).contains("7 rows are invalid"), "{}", text(&output.stderr));
    for (workload, (name, filled, operations)) in results(&out)["workloads"].as_array().unwrap().iter().zip(WORKLOADS) {
        let [redis, floor, cluster, hollow] = workload["peers"].as_array().unwrap().as_slice() else {
            panic!("{workload:#}")
        };
        assert_eq!(workload["name"], *name);
        assert_measured_of(redis, 2, *filled);
        for round in redis["rounds"].as_array().unwrap() {
            let done = round["load"]["operations"].as_u64().unwrap();
            assert!(operations.map_or(done > 0, |operations| done == operations), "{name}: {done}");
        }
        assert_eq!(floor["skipped"], "stores nothing", "{floor:#}");
        assert!(cluster["skipped"].is_string(), "{cluster:#}");
        let why = hollow["invalid"].as_str().unwrap_or_else(|| panic!("{hollow:#}"));
        assert!(why.contains("not a number") || why.contains("unexpected reply"), "{name}: {why}");
    }
}

/// Tests the workloads that measure the memory of collections, at scale 0.01.
#[test]
fn memory_workloads_run() {
    const WORKLOADS: &[(&str, &str, u64)] = &[
        ("memory-hashes", "hashes", 10_000),
        ("memory-lists", "lists", 10_000),
        ("memory-sets", "sets", 10_000),
        ("memory-zset", "members", 100_000),
        ("memory-zsets", "sorted sets", 10_000),
        ("memory-streams", "entries", 100_000),
    ];
    if redis_server().is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let again = "again=redis-server --port {port} --save ''";
    let mut command =
        compare(&out, &["--peer", "redis", "--peer", again, "--peer", "redis-cluster:2", "--peer", "floor"]);
    command.args(["--peer", "dead=/bin/false {port}", "--scale", "0.01"]);
    command.args(WORKLOADS.iter().flat_map(|workload| ["--workload", workload.0]));
    let output = wait(command.spawn().unwrap());
    assert!(text(&output.stderr).contains("6 rows are invalid"), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("again / redis"));
    let markdown = std::fs::read_to_string(out.join("report.md")).unwrap();
    for (workload, (name, what, count)) in results(&out)["workloads"].as_array().unwrap().iter().zip(WORKLOADS) {
        let [redis, again, cluster, floor, dead] = workload["peers"].as_array().unwrap().as_slice() else {
            panic!("{workload:#}")
        };
        assert_eq!(workload["name"], *name);
        assert!(workload["parameters"].as_str().unwrap().contains(&format!("{count} {what} (scaled")), "{workload:#}");
        let has_measurements = |row: &Value| {
            let footprint = &row["footprint"];
            assert!(
                row["invalid"].is_null() && row["skipped"].is_null() && row["rounds"] == Value::from(Vec::<u8>::new())
            );
            assert_eq!((&footprint["what"], &footprint["count"]), (&Value::from(*what), &Value::from(*count)));
            assert!(footprint["each_bytes"].as_f64().unwrap() > 0.0, "{row:#}");
        };
        has_measurements(redis);
        has_measurements(again);
        let ratio = &again["footprint"]["ratios"][0];
        assert_eq!(ratio["against"], "redis");
        let of_itself = ratio["each_bytes"].as_f64().unwrap();
        assert!((0.8..1.25).contains(&of_itself), "{name}: {of_itself} of the same server's");
        assert_eq!(cluster["skipped"], "the memory of one process is measured");
        assert_eq!(floor["skipped"], "stores nothing");
        assert!(dead["invalid"].is_string() && dead["footprint"].is_null(), "{dead:#}");
        assert!(markdown.contains(&format!("{} {what} |", thousands(*count))), "{markdown}");
    }
}

/// Formats a number as the reports do.
fn thousands(number: u64) -> String {
    format!("{},{:03}", number / 1_000, number % 1_000)
}
