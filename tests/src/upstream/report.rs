//! Parses the output of Redis's own test suite. The parent module explains the terms, such as
//! *unit* and *ignored*.

use std::collections::BTreeMap;

/// Results of all tests with the same name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Number of passes.
    pub passed: usize,
    /// Message of each failure.
    pub failures: Vec<String>,
    /// Number of times that the suite didn't run the test because the skip list marks it with `!`
    /// or `@`.
    pub not_run: usize,
    /// Number of times that the suite didn't run the test because the server is external (not
    /// started by the suite).
    pub ignored: usize,
}

/// Parsed output of a unit's run.
#[derive(Debug, Default)]
pub struct Report {
    /// Results by the name of the test.
    pub outcomes: BTreeMap<String, Outcome>,
    /// Errors outside of tests: of the code around tests, or of the whole unit. Such an error ends
    /// this code, so the tests that it would have run later have no result.
    pub stray: Vec<String>,
    /// Whether the unit reported its end.
    pub done: bool,
}

impl Report {
    /// Parses the output of the suite.
    #[must_use]
    pub fn parse(output: &str) -> Report {
        let mut report = Report::default();
        let mut lines = output.lines().peekable();
        while let Some(line) = lines.next() {
            // After this line, a summary repeats the failures.
            if line.trim() == "The End" {
                break;
            }
            let Some((verdict, rest)) = line.strip_prefix('[').and_then(|line| line.split_once("]: ")) else {
                continue;
            };
            // The lines up to the next verdict are details of this verdict.
            let mut detail = Vec::new();
            while let Some(more) = lines.next_if(|line| !is_verdict(line) && line.trim() != "The End") {
                detail.push(more.trim_end());
            }
            report.add(verdict, rest, &detail.join("\n"));
        }
        report
    }

    fn add(&mut self, verdict: &str, rest: &str, detail: &str) {
        match verdict {
            "ok" => self.outcome(without_time(rest)).passed += 1,
            "skip" => self.outcome(rest).not_run += 1,
            "ignore" => self.outcome(rest.rsplit_once(": ").map_or(rest, |(name, _)| name)).ignored += 1,
            "err" => match rest.rsplit_once(" in tests/") {
                Some((name, _)) => self.outcome(name).failures.push(detail.trim().into()),
                None => self.stray.push(format!("{rest}\n{detail}")),
            },
            "exception" => self.stray.push(format!("{rest}\n{detail}")),
            _ if verdict.ends_with(" done") => self.done = true,
            // Other lines, such as `ready`, have no result.
            _ => (),
        }
    }

    fn outcome(&mut self, name: &str) -> &mut Outcome {
        self.outcomes.entry(name.trim().to_string()).or_default()
    }

    /// Returns the number of tests that passed, failed, or were excluded by a skip list. Ignored
    /// and lost tests don't count.
    #[must_use]
    pub fn test_count(&self) -> usize {
        self.outcomes.values().map(|outcome| outcome.passed + outcome.failures.len() + outcome.not_run).sum()
    }
}

fn is_verdict(line: &str) -> bool {
    const VERDICTS: &[&str] = &["ok", "err", "exception", "ignore", "skip", "ready"];
    line.strip_prefix('[')
        .and_then(|line| line.split_once("]: "))
        .is_some_and(|(verdict, _)| VERDICTS.contains(&verdict) || verdict.ends_with(" done"))
}

/// Returns `name (12 ms)` without the time.
fn without_time(text: &str) -> &str {
    match text.rsplit_once(" (") {
        Some((name, time)) if time.ends_with(" ms)") => name,
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "\
Cleanup: may take some time... OK
[ready]: 4711
Testing unit/x
[ok]: one (1) (12 ms)
[err]: two [a]: b in tests/unit/x.tcl
Expected 'a' to be equal to 'b'
[not a verdict]: of the same failure
[ok]: twice (0 ms)
[err]: twice in tests/unit/x.tcl
[ignore]: three: with colon: Not supported on external server
[skip]: four
[err]: ERR unknown command
    while executing
[1/1 done]: unit/x (3 seconds)

                   The End

*** [err]: two [a]: b in tests/unit/x.tcl
[err]: no verdict any more in tests/unit/x.tcl
";

    #[test]
    fn every_verdict_is_read() {
        let report = Report::parse(OUTPUT);
        assert!(report.done);
        assert_eq!(report.stray.len(), 1);
        assert!(report.stray[0].contains("unknown command") && report.stray[0].contains("while executing"));
        assert_eq!(report.outcomes["one (1)"].passed, 1);
        let two = &report.outcomes["two [a]: b"];
        assert_eq!((two.passed, two.failures.len()), (0, 1));
        assert!(two.failures[0].ends_with("[not a verdict]: of the same failure"));
        let twice = &report.outcomes["twice"];
        assert_eq!((twice.passed, twice.failures.len()), (1, 1));
        assert_eq!(report.outcomes["three: with colon"].ignored, 1);
        assert_eq!(report.outcomes["four"].not_run, 1);
        assert_eq!(report.outcomes.len(), 5);
        assert_eq!(report.test_count(), 5);
    }

    #[test]
    fn an_end_that_was_not_reached() {
        let report = Report::parse("[ok]: one (1 ms)\n[exception]: Executing test client: I/O error\n    at x\n");
        assert!(!report.done);
        assert_eq!((report.test_count(), report.stray.len()), (1, 1));
    }
}
