//! Compares Pantala with Redis by `pantala-bench compare`. The test checks the structure of the
//! report, never speed.

use std::path::Path;
use std::process::Command;

use pantala_tests::{binary, tool};

/// Runs a comparison with further arguments. Returns the output and the text of `report.md`.
fn compare(out: &Path, arguments: &[&str]) -> (String, String) {
    let mut command = Command::new(binary::pantala_bench());
    command.args(["compare", "--rounds", "2", "--test-time", "1", "--out"]).arg(out).arg("--pantala");
    let ran = command.arg(binary::pantala()).args(arguments).output().expect("it runs");
    let errors = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{arguments:?}: {errors}");
    let report = std::fs::read_to_string(out.join("report.md")).expect("a report");
    (String::from_utf8_lossy(&ran.stdout).into_owned(), report)
}

#[test]
fn pantala_and_redis_are_measured_side_by_side() {
    if tool::find("redis-server").is_none() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let peers = ["--peer", "redis", "--peer", "pantala", "--shards", "4"];
    let workloads = ["--workload", "transactions", "--workload", "enterprise", "--scale", "0.0005"];
    let (_, report) = compare(&folder.path().join("out"), &[peers, workloads].concat());
    for text in ["transactions", "enterprise", "redis 7", "pantala 0", "--cluster-enabled yes"] {
        assert!(report.contains(text), "no '{text}' in:\n{report}");
    }
    for text in ["INVALID", "without cluster mode\n| pantala"] {
        assert!(!report.contains(text), "'{text}' in:\n{report}");
    }
    let results = std::fs::read_to_string(folder.path().join("out/results.json")).expect("results");
    // The workload `enterprise` uses cluster mode. Only Pantala is started with it. Redis is driven
    // as a single server.
    assert_eq!(results.matches("\"cluster_mode\": true").count(), 1, "{results}");
    assert_eq!(results.matches("\"cluster_mode\": false").count(), 3, "{results}");
    let summaries = results.matches("\"operations_per_s\": {").count();
    assert_eq!(
        summaries,
        4 + 4,
        "a summary for each of four rows, and a ratio of each to the other peer's:\n{results}"
    );
}
