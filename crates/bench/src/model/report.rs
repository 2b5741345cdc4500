//! Reads CPU times per operation from the results of `compare`.

use std::io;
use std::path::Path;

use serde::Deserialize;

use super::costs::Costs;

/// The name of the peer whose times are read.
const PEER: &str = "pantala";

/// The parts of `results.json` that the model reads.
#[derive(Deserialize)]
struct Report {
    host: Host,
    rounds: u64,
    seconds: u64,
    workloads: Vec<Workload>,
}

#[derive(Deserialize)]
struct Host {
    began: String,
    load_before: String,
    load_after: String,
}

#[derive(Deserialize)]
struct Workload {
    name: String,
    scale: f64,
    peers: Vec<Peer>,
}

#[derive(Deserialize)]
struct Peer {
    name: String,
    command: Vec<String>,
    summary: Option<Summary>,
}

#[derive(Deserialize)]
struct Summary {
    cpu_us_per_operation: Spread,
}

#[derive(Deserialize)]
struct Spread {
    median: f64,
    min: f64,
    max: f64,
}

/// The workloads of a report: those whose times were used, and the others.
#[derive(Debug, Default)]
pub(super) struct Taken {
    /// The names of the workloads that were used.
    pub(super) modelled: Vec<String>,
    /// The names of the other workloads, with the reasons why they were not used.
    pub(super) unmodelled: Vec<String>,
}

impl Peer {
    fn has_one_worker(&self) -> bool {
        let pairs = self.command.iter().zip(self.command.iter().skip(1));
        pairs.into_iter().any(|(option, value)| option == "--workers" && value == "1")
    }
}

impl Costs {
    /// Replaces the CPU times per operation by those of the peer `pantala` in a `results.json` of
    /// `compare`.
    ///
    /// # Errors
    /// Fails if the file cannot be read or parsed, or contains no usable result. Fails if the peer
    /// `pantala` ran without `--workers 1`: its times would then include contention, which the
    /// model adds itself.
    pub(super) fn take_report(&mut self, path: &Path) -> io::Result<Taken> {
        let wrong = |why: String| io::Error::new(io::ErrorKind::InvalidData, format!("{}: {why}", path.display()));
        let text = std::fs::read(path)
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))?;
        let report: Report = serde_json::from_slice(&text).map_err(|error| wrong(error.to_string()))?;
        let Report { host, rounds, seconds, workloads } = report;
        let mut taken = Taken::default();
        for workload in workloads {
            let Workload { name, scale, peers } = workload;
            if let Some((_, Some(why))) = crate::compare::modelled_workloads().find(|(other, _)| *other == name) {
                taken.unmodelled.push(format!("{name}: {why}"));
                continue;
            }
            let Some(peer) = peers.into_iter().find(|peer| peer.name == PEER) else { continue };
            if !peer.has_one_worker() {
                return Err(wrong(format!("{name}: {PEER} ran without '--workers 1': {}", peer.command.join(" "))));
            }
            let (Some(summary), Some(load)) = (peer.summary, self.workloads.iter_mut().find(|load| load.name == name))
            else {
                continue;
            };
            let Spread { median, min, max } = summary.cpu_us_per_operation;
            load.cpu_us = Some(median);
            load.source = format!(
                "measured: compare, {} ({min:.2} to {max:.2} in {rounds} rounds of {seconds} s, scale {scale}, load {} to {})",
                host.began, host.load_before, host.load_after
            );
            taken.modelled.push(name);
        }
        if taken.modelled.is_empty() {
            return Err(wrong(format!("no workload with results of a peer called '{PEER}'")));
        }
        Ok(taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(workers: &str, peer: &str) -> String {
        let summary = r#"{"cpu_us_per_operation": {"median": 0.5, "min": 0.4, "max": 0.625}, "other": 1}"#;
        let command = format!(r#"["pantala", "--port", "1", "--workers", "{workers}"]"#);
        let peers = format!(
            r#"[{{"name": "redis", "command": [], "summary": null}}, {{"name": "{peer}", "command": {command}, "summary": {summary}}}]"#
        );
        let skipped = format!(r#"[{{"name": "{peer}", "command": {command}, "summary": null}}]"#);
        format!(
            r#"{{"host": {{"began": "one day", "load_before": "1.5", "load_after": "2.5", "cpu": "x"}}, "rounds": 3, "seconds": 1, "workloads": [
                {{"name": "dragonfly-get30", "scale": 0.2, "peers": {peers}}}, {{"name": "mset10", "scale": 0.2, "peers": {skipped}}},
                {{"name": "memory-sets", "scale": 0.2, "peers": {skipped}}}]}}"#
        )
    }

    fn take(text: &str) -> (Costs, io::Result<Taken>) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("results.json");
        std::fs::write(&path, text).unwrap();
        let mut costs = Costs::built_in().unwrap();
        let taken = costs.take_report(&path);
        (costs, taken)
    }

    #[test]
    fn a_report_replaces_what_it_measured() {
        let before = Costs::built_in().unwrap();
        let (costs, taken) = take(&report("1", "pantala"));
        let taken = taken.unwrap();
        assert_eq!(taken.modelled, ["dragonfly-get30"]);
        assert_eq!(taken.unmodelled, ["memory-sets: memory, without a load"]);
        for (load, before) in costs.workloads.iter().zip(&before.workloads) {
            let wanted = if load.name == "dragonfly-get30" { Some(0.5) } else { before.cpu_us };
            assert_eq!(load.cpu_us, wanted, "{}", load.name);
        }
        let source = &costs.load("dragonfly-get30").unwrap().source;
        assert_eq!(source, "measured: compare, one day (0.40 to 0.62 in 3 rounds of 1 s, scale 0.2, load 1.5 to 2.5)");
    }

    #[test]
    fn an_unsuitable_report_is_rejected() {
        for (text, expected) in [
            (report("2", "pantala"), "--workers 1"),
            (report("1", "dragon"), "called 'pantala'"),
            ("{}".to_owned(), "missing field"),
        ] {
            let error = take(&text).1.unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
        let nowhere = Costs::built_in().unwrap().take_report(Path::new("/no/such")).unwrap_err();
        assert!(nowhere.to_string().starts_with("/no/such: "), "{nowhere}");
    }
}
