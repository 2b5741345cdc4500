//! Runs Redis's own tests on Pantala (see `pantala_tests::upstream`).
//!
//! | variable | meaning |
//! | --- | --- |
//! | `PANTALA_UPSTREAM_UNITS` | comma-separated units to run (default: all of `tests/upstream/units.txt`) |
//! | `PANTALA_UPSTREAM_AGAINST` | `redis`: run them on redis-server, with empty skip lists, to find out which tests pass there on this host |

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use pantala_tests::upstream::list::{self, Fate, Finding, Mode, Skipped, Unit};
use pantala_tests::upstream::report::Report;
use pantala_tests::upstream::{run, source};
use pantala_tests::{Backend, Server, binary};

/// Number of units that run at the same time. A unit spends most of its time in Tcl, which uses one
/// thread.
const AT_ONCE: usize = 2;
/// A unit is rerun if it has at most this many findings, because a busy machine may cause a few.
const UNSTEADY_MAX: usize = 3;
/// Default number of workers of the server. A unit's skip list may set another number.
const WORKERS: usize = 2;
/// Settings that the suite expects of an external server.
const ARGS: &[&str] = &["--enable-protected-configs", "yes", "--enable-module-command", "yes"];

/// The server under test.
#[derive(Clone, Copy)]
enum Subject {
    Pantala(Backend),
    Redis,
}

impl Subject {
    fn name(self) -> &'static str {
        match self {
            Subject::Pantala(backend) => backend.name(),
            Subject::Redis => "redis-server",
        }
    }

    fn start(self, skipped: &Skipped) -> Option<Server> {
        match self {
            Subject::Pantala(backend) => {
                let workers = skipped.workers.unwrap_or(WORKERS).to_string();
                let args = [&["--workers", &workers, "--shards", "40"], ARGS].concat();
                Some(Server::pantala(backend, &args))
            }
            Subject::Redis => Server::redis(ARGS),
        }
    }

    fn skipped(self, unit: &Unit) -> Skipped {
        match self {
            Subject::Pantala(_) => list::skipped(Mode::External, &unit.name),
            Subject::Redis => Skipped::default(),
        }
    }
}

/// Sums of the results of all units.
#[derive(Default)]
struct Sum {
    passed: usize,
    listed: usize,
    ignored: usize,
    red: Vec<String>,
}

impl Sum {
    fn add(&mut self, unit: &Unit, report: &Report, found: &[Finding]) {
        for outcome in report.outcomes.values() {
            self.passed += outcome.passed;
            self.listed += outcome.failures.len() + outcome.not_run;
            self.ignored += outcome.ignored;
        }
        if !found.is_empty() {
            let lines: Vec<_> = found.iter().map(|finding| format!("    {finding}")).collect();
            self.red.push(format!("{}:\n{}", unit.name, lines.join("\n")));
        }
    }
}

/// Runs one unit on a new server. If there are few findings, a busy machine may have caused them,
/// so the unit runs again. Then only findings that occur in both runs count. Prints the differences
/// between the runs.
fn run_unit(subject: Subject, source: &Path, logs: &Path, unit: &Unit) -> Option<(Report, Vec<Finding>)> {
    let skipped = subject.skipped(unit);
    let mut last: Option<(Report, Vec<Finding>)> = None;
    for attempt in ["", ".again"] {
        let start = Instant::now();
        let mut server = subject.start(&skipped)?;
        let log = logs.join(format!("{}{attempt}.log", unit.name.replace('/', "-")));
        let report = run::run(source, unit, &skipped, &server, &log);
        server.assert_sound();
        let found = list::findings(unit, &skipped, &report);
        eprintln!("{} {}{attempt}: {} s", subject.name(), unit.name, start.elapsed().as_secs());
        let Some((_, before)) = &last else {
            let again = (1..=UNSTEADY_MAX).contains(&found.len());
            last = Some((report, found));
            if again {
                continue;
            }
            break;
        };
        let same = |one: &Finding, two: &Finding| match (one, two) {
            (Finding::Fails(one, _), Finding::Fails(two, _)) => one == two,
            (Finding::Stray(_), Finding::Stray(_)) => true,
            _ => one == two,
        };
        let (twice, once): (Vec<_>, Vec<_>) =
            found.into_iter().partition(|finding| before.iter().any(|other| same(finding, other)));
        let gone = before.iter().filter(|finding| !twice.iter().any(|other| same(finding, other)));
        for finding in once.iter().chain(gone) {
            println!("UNSTEADY, {} {}, in one of two runs: {finding}", subject.name(), unit.name);
        }
        last = Some((report, twice));
    }
    let (mut report, mut found) = last?;
    found.extend(run_alone(subject, source, logs, unit, &skipped, &mut report)?);
    Some((report, found))
}

/// Runs the tests that require one worker, and adds their results to the unit's report.
fn run_alone(
    subject: Subject,
    source: &Path,
    logs: &Path,
    unit: &Unit,
    skipped: &Skipped,
    report: &mut Report,
) -> Option<Vec<Finding>> {
    let mut found = Vec::new();
    let one = Skipped { workers: Some(1), ..Skipped::default() };
    for (name, _) in skipped.tests.iter().filter(|(_, listed)| listed.fate == Fate::OneWorker) {
        let mut server = subject.start(&one)?;
        let log = logs.join(format!("{}.alone.log", unit.name.replace('/', "-")));
        let mut alone = run::run_only(source, unit, name, &server, &log);
        server.assert_sound();
        let outcome = alone.outcomes.remove(name).unwrap_or_default();
        if outcome.passed == 0 || !outcome.failures.is_empty() {
            found.push(Finding::Fails(name.clone(), format!("alone, on one worker: {:?}", outcome.failures)));
        }
        report.outcomes.insert(name.clone(), outcome);
    }
    Some(found)
}

fn run_all(subject: Subject, source: &Path, units: &[Unit]) -> Sum {
    let logs: PathBuf = source::base().join("logs").join(subject.name());
    std::fs::create_dir_all(&logs).expect("the log directory is created");
    let (next, sum) = (AtomicUsize::new(0), Mutex::new(Sum::default()));
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some(unit) = units.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let Some((report, found)) = run_unit(subject, source, &logs, unit) else { return };
                    sum.lock().expect("no panic under this lock").add(unit, &report, &found);
                }
            });
        }
    });
    sum.into_inner().expect("no panic under this lock")
}

#[test]
#[ignore = "long, and fetches a source package: run on a release build by .ci/run"]
fn redis_s_own_tests_pass_or_are_listed() {
    let Some(source) = source::folder() else { return };
    let mut units = list::units(Mode::External);
    if let Ok(names) = std::env::var("PANTALA_UPSTREAM_UNITS") {
        units.retain(|unit| names.split(',').any(|name| name == unit.name));
        assert!(!units.is_empty(), "PANTALA_UPSTREAM_UNITS names no unit of units.txt: {names}");
    }
    // The longest units run first. If a long unit were last, it would run alone at the end.
    units.sort_by_key(|unit| std::cmp::Reverse(unit.limit));
    let subjects: Vec<_> = match std::env::var("PANTALA_UPSTREAM_AGAINST").as_deref() {
        Ok("redis") => vec![Subject::Redis],
        Ok(other) => panic!("PANTALA_UPSTREAM_AGAINST is {other:?}: must be redis"),
        Err(_) => Backend::all().iter().copied().map(Subject::Pantala).collect(),
    };
    let mut red = Vec::new();
    for subject in subjects {
        let start = Instant::now();
        let sum = run_all(subject, &source, &units);
        println!(
            "upstream suite on {}: {} tests passed, {} listed, {} not for an external server, {} of {} units wrong, {} s",
            subject.name(),
            sum.passed,
            sum.listed,
            sum.ignored,
            sum.red.len(),
            units.len(),
            start.elapsed().as_secs(),
        );
        red.extend(sum.red.into_iter().map(|text| format!("{} {text}", subject.name())));
    }
    assert!(red.is_empty(), "{}\n(logs: {})", red.join("\n"), source::base().join("logs").display());
}

/// Runs the units whose tests start their own servers: replication, failover, files, configuration.
/// Such units can't use an external server. They run one at a time, because each uses the whole
/// machine.
#[test]
#[ignore = "long, and fetches a source package: run on a release build by .ci/nightly"]
fn units_that_start_servers_pass_or_are_listed() {
    let workers = WORKERS.to_string();
    let args = ["--workers", &workers, "--shards", "40"];
    let Some(source) = source::own_folder(binary::pantala(), &args) else { return };
    let logs = source::base().join("logs/own");
    std::fs::create_dir_all(&logs).expect("the log directory is created");
    let mut units = list::units(Mode::Own);
    if let Ok(names) = std::env::var("PANTALA_UPSTREAM_UNITS") {
        units.retain(|unit| names.split(',').any(|name| name == unit.name));
    }
    let (start, mut sum) = (Instant::now(), Sum::default());
    for unit in &units {
        let skipped = list::skipped(Mode::Own, &unit.name);
        let run = |attempt| {
            let log = logs.join(format!("{}{attempt}.log", unit.name.replace('/', "-")));
            let report = run::run_own(&source, unit, &skipped, &log);
            let found = list::findings(unit, &skipped, &report);
            (report, found)
        };
        let (mut report, mut found) = run("");
        if (1..=UNSTEADY_MAX).contains(&found.len()) {
            found.iter().for_each(|finding| println!("UNSTEADY, {}: {finding}", unit.name));
            (report, found) = run(".again");
        }
        sum.add(unit, &report, &found);
    }
    let (passed, listed, seconds) = (sum.passed, sum.listed, start.elapsed().as_secs());
    println!("units with their own servers: {passed} tests passed, {listed} listed, {seconds} s");
    assert!(sum.red.is_empty(), "{}\n(logs: {})", sum.red.join("\n"), logs.display());
}
