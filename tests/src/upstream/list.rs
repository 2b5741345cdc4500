//! Reads the committed lists of units, and of tests that don't pass (`tests/upstream`). Compares a
//! run with these lists. The parent module explains the terms.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::report::Report;
use crate::binary;

/// A line of `units.txt`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unit {
    /// The unit's name in the suite.
    pub name: String,
    /// Number of tests that redis-server 7.0.15 runs in the mode of the list, or 0 if the number
    /// varies.
    pub tests: usize,
    /// Maximum duration of the unit's run.
    pub limit: Duration,
}

/// How the harness treats a listed test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The test runs, and must fail (no mark).
    Fails,
    /// The test doesn't run, because it would hang or make later tests fail (`!`).
    NotRun,
    /// The unit's run skips the test. The test runs alone, on a server with one worker, and must
    /// pass there (`@`).
    OneWorker,
    /// The suite doesn't reach the test on this server (`-`).
    Absent,
}

/// A listed test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The reason why the test doesn't pass.
    pub reason: String,
    /// How the harness treats the test.
    pub fate: Fate,
}

/// A unit's skip list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Skipped {
    /// The listed tests, by name.
    pub tests: BTreeMap<String, Listed>,
    /// Tags of test blocks that the suite skips (`deny: …`). These blocks set up the server in an
    /// unsupported way, and would abort the unit. The tests in these blocks are listed as
    /// [`Fate::Absent`].
    pub denied_tags: Vec<String>,
    /// Number of workers of the server (`workers: …`), if the unit needs a particular number.
    pub workers: Option<usize>,
}

/// A difference between the lists and a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// A test that isn't listed failed. The fields are the test's name and its failure message.
    Fails(String, String),
    /// A listed test passed.
    Passes(String),
    /// A listed test is not in the unit, or its result doesn't match its mark.
    Unknown(String),
    /// Code outside of tests failed.
    Stray(String),
    /// The unit didn't complete, or exceeded its time limit.
    Died,
    /// The number of tests with a result differs from `units.txt`: some have no result, or there
    /// are more than expected. The fields are the number found and the number expected.
    Count(usize, usize),
}

impl std::fmt::Display for Finding {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Finding::Fails(name, why) => write!(to, "fails: {name}\n        {}", why.replace('\n', "\n        ")),
            Finding::Passes(name) => write!(to, "passes, so remove it from the list: {name}"),
            Finding::Unknown(name) => write!(to, "is listed, but its result doesn't match its mark: {name}"),
            Finding::Stray(what) => write!(to, "failed outside of a test: {}", what.replace('\n', "\n        ")),
            Finding::Died => write!(to, "did not end"),
            Finding::Count(found, expected) => write!(to, "{found} tests instead of {expected}"),
        }
    }
}

/// Compares the report of a unit with the lists.
#[must_use]
pub fn findings(unit: &Unit, skipped: &Skipped, report: &Report) -> Vec<Finding> {
    let mut found: Vec<_> = report.stray.iter().cloned().map(Finding::Stray).collect();
    for (name, outcome) in &report.outcomes {
        match skipped.tests.get(name) {
            None => found.extend(outcome.failures.iter().map(|why| Finding::Fails(name.clone(), why.clone()))),
            Some(listed) if listed.fate == Fate::Fails && outcome.passed > 0 && outcome.failures.is_empty() => {
                found.push(Finding::Passes(name.clone()));
            }
            Some(_) => (),
        }
    }
    for (name, listed) in &skipped.tests {
        let outcome = report.outcomes.get(name);
        let known = match listed.fate {
            Fate::Fails => outcome.is_some_and(|outcome| outcome.passed + outcome.failures.len() > 0),
            Fate::NotRun | Fate::OneWorker => outcome.is_some_and(|outcome| outcome.not_run > 0),
            Fate::Absent => outcome.is_none(),
        };
        if !known {
            found.push(Finding::Unknown(name.clone()));
        }
    }
    if !report.done {
        found.push(Finding::Died);
    }
    let absent = skipped.tests.values().filter(|listed| listed.fate == Fate::Absent).count();
    if unit.tests > 0 && report.test_count() + absent != unit.tests {
        found.push(Finding::Count(report.test_count(), unit.tests.saturating_sub(absent)));
    }
    found
}

/// Which servers the suite uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// One server that is already running.
    External,
    /// Servers that the suite starts itself. Some tests start several.
    Own,
}

/// Returns the directory of the committed lists of a mode.
#[must_use]
pub fn folder(mode: Mode) -> PathBuf {
    let folder = binary::workspace_root().join("tests/upstream");
    match mode {
        Mode::External => folder,
        Mode::Own => folder.join("own"),
    }
}

/// Returns the units of `units.txt`, in the order of the file.
///
/// # Panics
/// If the file is missing, or a line of it is malformed.
#[must_use]
pub fn units(mode: Mode) -> Vec<Unit> {
    let path = folder(mode).join("units.txt");
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    parse_units(&text).unwrap_or_else(|line| panic!("{}: wrong line {line:?}", path.display()))
}

/// Parses lines `name tests seconds`. Lines that start with `#` are comments. Fails with the
/// malformed line.
fn parse_units(text: &str) -> Result<Vec<Unit>, &str> {
    let lines = text.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#'));
    lines
        .map(|line| {
            let mut words = line.split_whitespace();
            let (name, tests, limit_s) = (words.next(), words.next(), words.next());
            let unit = || {
                let limit = Duration::from_secs(limit_s?.parse().ok()?);
                Some(Unit { name: name?.into(), tests: tests?.parse().ok()?, limit })
            };
            unit().filter(|_| words.next().is_none()).ok_or(line)
        })
        .collect()
}

/// Returns the skip list of a unit, such as `skipped/type-string.txt` for `unit/type/string`. If
/// there is no file, the list is empty.
///
/// # Panics
/// If the file is malformed.
#[must_use]
pub fn skipped(mode: Mode, unit: &str) -> Skipped {
    let path = skipped_file(&folder(mode), unit);
    let Ok(text) = fs::read_to_string(&path) else { return Skipped::default() };
    parse_skipped(&text).unwrap_or_else(|line| panic!("{}: wrong line {line:?}", path.display()))
}

/// Returns the path of a unit's skip list in `folder`.
#[must_use]
pub fn skipped_file(folder: &Path, unit: &str) -> PathBuf {
    let name = unit.strip_prefix("unit/").unwrap_or(unit).replace('/', "-");
    folder.join("skipped").join(name + ".txt")
}

/// Parses a skip list. A line `reason: …` starts a group. Each other line is the name of a test,
/// after the mark of the test's [`Fate`], if there is one. `deny: …` and `workers: …` apply to the
/// whole unit, see [`Skipped`]. Lines that start with `#` are comments. Fails with the malformed
/// line.
fn parse_skipped(text: &str) -> Result<Skipped, &str> {
    let mut skipped = Skipped::default();
    let mut reason = None;
    for line in text.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#')) {
        if let Some(text) = line.strip_prefix("reason: ") {
            reason = Some(text);
            continue;
        }
        if let Some(tag) = line.strip_prefix("deny: ") {
            skipped.denied_tags.push(tag.trim().into());
            continue;
        }
        if let Some(number) = line.strip_prefix("workers: ") {
            skipped.workers = Some(number.trim().parse().map_err(|_| line)?);
            continue;
        }
        let (fate, name) = match line.split_at_checked(1) {
            Some(("!", name)) => (Fate::NotRun, name),
            Some(("@", name)) => (Fate::OneWorker, name),
            Some(("-", name)) => (Fate::Absent, name),
            _ => (Fate::Fails, line),
        };
        let listed = Listed { reason: reason.ok_or(line)?.into(), fate };
        if skipped.tests.insert(name.trim().into(), listed).is_some() {
            return Err(line);
        }
    }
    Ok(skipped)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unit(tests: usize) -> Unit {
        Unit { name: "unit/x".into(), tests, limit: Duration::from_secs(60) }
    }

    fn skipped(text: &str) -> Skipped {
        parse_skipped(text).expect("a valid list")
    }

    #[test]
    fn lists_are_read() {
        let list = skipped("# remark\nreason: persistence\none\n!two\n-four\n\nreason: internals\nthree\n@five\n");
        assert_eq!(list.tests.len(), 5);
        assert_eq!(list.tests["five"].fate, Fate::OneWorker);
        assert_eq!((list.denied_tags.len(), list.workers), (0, None));
        assert_eq!(list.tests["one"], Listed { reason: "persistence".into(), fate: Fate::Fails });
        assert_eq!(list.tests["two"], Listed { reason: "persistence".into(), fate: Fate::NotRun });
        assert_eq!(list.tests["four"].fate, Fate::Absent);
        assert_eq!(list.tests["three"].reason, "internals");
        assert_eq!(parse_skipped("without a reason\n"), Err("without a reason"));
        assert_eq!(parse_skipped("reason: x\ntwice\n!twice\n"), Err("!twice"));
        let whole = skipped("deny: needs:debug\ndeny: big\nworkers: 1\n");
        assert_eq!(whole.denied_tags, ["needs:debug", "big"]);
        assert_eq!((whole.workers, whole.tests.len()), (Some(1), 0));
        assert_eq!(parse_skipped("workers: one\n"), Err("workers: one"));
        assert_eq!(parse_units("# r\nunit/x 3 60\n"), Ok(vec![unit(3)]));
        for wrong in ["unit/x 3", "unit/x three 60", "unit/x 3 60 4"] {
            assert_eq!(parse_units(wrong), Err(wrong));
        }
    }

    #[test]
    fn a_run_must_match_the_lists() {
        let done = |text: &str| Report::parse(&format!("{text}[1/1 done]: unit/x (0 seconds)\n"));
        let good = done("[ok]: a (0 ms)\n[err]: b in tests/unit/x.tcl\nwhy\n[skip]: c\n");
        let list = skipped("reason: r\nb\n!c\n");
        assert_eq!(findings(&unit(3), &list, &good), []);
        assert_eq!(findings(&unit(4), &list, &good), [Finding::Count(3, 4)]);
        let unlisted = skipped("reason: r\n!c\n");
        assert_eq!(findings(&unit(3), &unlisted, &good), [Finding::Fails("b".into(), "why".into())]);
        let passing = skipped("reason: r\na\nb\n!c\n");
        assert_eq!(findings(&unit(3), &passing, &good), [Finding::Passes("a".into())]);
        let stale = skipped("reason: r\nb\n!c\ngone\n");
        assert_eq!(findings(&unit(3), &stale, &good), [Finding::Unknown("gone".into())]);
        let not_kept = skipped("reason: r\n!b\n!c\n");
        assert_eq!(findings(&unit(3), &not_kept, &good), [Finding::Unknown("b".into())]);
        let alone = skipped("reason: r\nb\n@c\n");
        assert_eq!(findings(&unit(3), &alone, &good), []);
        let not_left_out = skipped("reason: r\n@b\n!c\n");
        assert_eq!(findings(&unit(3), &not_left_out, &good), [Finding::Unknown("b".into())]);
        let absent = skipped("reason: r\nb\n!c\n-d\n");
        assert_eq!(findings(&unit(4), &absent, &good), []);
        assert_eq!(findings(&unit(3), &absent, &good), [Finding::Count(3, 2)]);
        let there = skipped("reason: r\nb\n!c\n-a\n");
        assert_eq!(findings(&unit(4), &there, &good), [Finding::Unknown("a".into())]);
        let dead = Report::parse("[ok]: a (0 ms)\n");
        assert_eq!(findings(&unit(1), &Skipped::default(), &dead), [Finding::Died]);
        let stray = done("[ok]: a (0 ms)\n[err]: no test\n");
        assert_eq!(findings(&unit(1), &Skipped::default(), &stray), [Finding::Stray("no test\n".into())]);
    }

    #[test]
    fn the_committed_lists_are_valid() {
        for mode in [Mode::External, Mode::Own] {
            let (units, folder) = (units(mode), folder(mode));
            assert!(!units.is_empty());
            let files: Vec<_> = units.iter().map(|unit| skipped_file(&folder, &unit.name)).collect();
            for unit in &units {
                let _ = super::skipped(mode, &unit.name);
            }
            for entry in fs::read_dir(folder.join("skipped")).expect("the folder is there").flatten() {
                assert!(files.contains(&entry.path()), "{} belongs to no unit", entry.path().display());
            }
        }
    }
}
