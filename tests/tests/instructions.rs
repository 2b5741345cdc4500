//! Instructions per operation, counted by callgrind. The count doesn't depend on the load of the
//! host, so it shows regressions that timings on a busy host hide.
//!
//! The count includes all of the server's code for an operation: event loop, parser, execution,
//! dictionary, reply. It excludes the kernel. `tests/instructions.txt` has the latest counts. A
//! case fails if it exceeds its latest count by more than [`REGRESSION_PERCENT`], or if it exceeds
//! its budget ([`Case::budget`]). Update the file after a change that adds or saves instructions on
//! purpose. The counts are valid for one version of the compiler, on x86-64.

use std::time::Duration;

use pantala_tests::client::encode;
use pantala_tests::{Reply, Server, tool};
use rustix::process::Signal;

/// Maximum increase over the latest count. The limit must allow for builds in different
/// directories, which differ by up to 2.5% for the same commit: symbol names contain the directory,
/// and inlining depends on the order of the names.
const REGRESSION_PERCENT: f64 = 5.0;
/// Number of operations of the shorter run. The longer run has three times as many operations. The
/// count of an operation is computed from the difference between the two runs, which excludes
/// startup and shutdown.
const OPERATIONS: usize = 30_000;
/// Number of keys. All exist before the measured commands.
const KEYS: usize = 1_000;
const VALUE_BYTES: usize = 256;

/// One measured combination of command and pipeline length.
struct Case {
    name: &'static str,
    command: &'static str,
    pipeline: usize,
    /// Maximum number of instructions per operation. Without a budget, many small increases within
    /// [`REGRESSION_PERCENT`] could add up. Budgets may only be lowered.
    budget: f64,
}

impl Case {
    /// Returns the highest accepted count, given the latest count.
    fn limit(&self, last: f64) -> f64 {
        self.budget.min(last * (1.0 + REGRESSION_PERCENT / 100.0))
    }
}

const CASES: &[Case] = &[
    Case { name: "get, pipeline 1", command: "GET", pipeline: 1, budget: 3100.0 },
    Case { name: "set, pipeline 1", command: "SET", pipeline: 1, budget: 3500.0 },
    Case { name: "get, pipeline 30", command: "GET", pipeline: 30, budget: 1550.0 },
    Case { name: "set, pipeline 30", command: "SET", pipeline: 30, budget: 2000.0 },
];

fn request(case: &Case, key: usize) -> Vec<u8> {
    let (key, value) = (format!("key:{:012}", key % KEYS), "v".repeat(VALUE_BYTES));
    if case.command == "GET" { encode(&["GET", &key]) } else { encode(&["SET", &key, &value]) }
}

/// Returns the number of instructions of a server process that runs `operations` operations.
fn instructions(case: &Case, operations: usize) -> u64 {
    let valgrind = tool::find("valgrind").expect("the caller checked for it");
    let args = ["--workers", "1", "--shards", "40", "--hz", "1", "--pin-threads", "no", "--save", ""];
    let words = ["--tool=callgrind", "--callgrind-out-file=/dev/null"];
    let mut server = Server::pantala_under(&valgrind, &words, &args);
    let mut client = server.connect();
    let value = "v".repeat(VALUE_BYTES);
    for key in 0..KEYS {
        assert_eq!(client.command(&["SET", &format!("key:{key:012}"), &value]), Reply::ok());
    }
    for first in (0..operations).step_by(case.pipeline) {
        let batch: Vec<u8> = (first..first + case.pipeline).flat_map(|number| request(case, number * 7)).collect();
        client.send_raw(&batch);
        for _ in 0..case.pipeline {
            assert!(!client.receive().is_error());
        }
    }
    server.signal(Signal::TERM);
    server.wait_exit(Duration::from_secs(60));
    let log = server.log();
    let line = log.lines().find_map(|line| line.split_once("Collected :").map(|(_, count)| count.trim().to_owned()));
    line.and_then(|count| count.parse().ok()).unwrap_or_else(|| panic!("callgrind printed no count:\n{log}"))
}

/// Returns the count of the case in `tests/instructions.txt`, whose lines are `name: count`.
fn last_count(case: &Case) -> f64 {
    let text = include_str!("../instructions.txt");
    let line = text.lines().find_map(|line| line.strip_prefix(case.name)?.strip_prefix(':'));
    line.and_then(|count| count.trim().parse().ok()).unwrap_or_else(|| panic!("{}: no count", case.name))
}

#[test]
#[ignore = "counts a release build: run by .ci/run"]
fn instructions_per_operation_do_not_regress() {
    if cfg!(not(target_arch = "x86_64")) {
        return tool::skipped(format_args!("instruction counts: they are valid for x86-64 only"));
    }
    if tool::find("valgrind").is_none() {
        return;
    }
    let mut worse = Vec::new();
    for case in CASES {
        let (short, long) = (instructions(case, OPERATIONS), instructions(case, 3 * OPERATIONS));
        let per_operation = (long - short) as f64 / (2 * OPERATIONS) as f64;
        let last = last_count(case);
        let change = 100.0 * (per_operation / last - 1.0);
        println!("{}: {per_operation:.0} (last {last:.0}, {change:+.1}%)", case.name);
        let limit = case.limit(last);
        if per_operation > limit {
            worse.push(format!("{}: {per_operation:.0} instead of {last:.0}, limit {limit:.0}", case.name));
        }
    }
    assert!(worse.is_empty(), "too many instructions: {}", worse.join("; "));
}

#[test]
fn recorded_counts_are_within_their_budgets() {
    for case in CASES {
        let (last, budget) = (last_count(case), case.budget);
        assert!(last <= budget, "{}: {last} is recorded, the budget is {budget}", case.name);
        // A count above the budget is rejected, even if the latest count is as high.
        assert!(case.limit(budget) <= budget, "{}", case.name);
    }
}
