//! What was measured, and what is assumed: the model's input.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use serde::Deserialize;

/// All of it; the file beside this one says where each figure comes from.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Costs {
    pub(super) host: String,
    pub(super) engine: Engine,
    pub(super) line: Line,
    /// How long a worker tries to take a shard that is held before it leaves a request there, ns.
    pub(super) spin_ns: f64,
    pub(super) message: Message,
    pub(super) workloads: Vec<Load>,
}

/// The engine without sockets.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Engine {
    /// One operation on one worker, ns.
    pub(super) operation_ns: f64,
    /// Of that, with the shard held, ns.
    pub(super) held_ns: f64,
    /// Two workers' throughput to one's.
    pub(super) ratios: Vec<Ratio>,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct Ratio {
    /// `uniform`, or `zipf` and the exponent.
    pub(super) keys: String,
    pub(super) shards: u32,
    pub(super) ratio: f64,
    /// The model's own constants come from this row: that it agrees says nothing.
    #[serde(default)]
    pub(super) fitted: bool,
}

impl Ratio {
    /// The exponent of its keys; 0: uniform.
    pub(super) fn exponent(&self) -> f64 {
        self.keys.strip_prefix("zipf ").and_then(|text| text.parse().ok()).unwrap_or(0.0)
    }
}

/// A cache line that another core wrote last.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Line {
    /// How long it takes between the cores of the host that was measured, ns.
    pub(super) here_ns: f64,
    /// The same on the machine that is spoken of, ns.
    pub(super) there_ns: f64,
    /// The part of that which a prefetch hides, 0 to 1.
    pub(super) hidden: f64,
    pub(super) source: String,
}

/// A request left for whoever holds a shard, and its answer.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Message {
    /// Making it and reading its answer, ns.
    pub(super) request_ns: f64,
    /// Lines that go from core to core for it, on each side.
    pub(super) lines: f64,
}

/// One workload on one worker, sockets included.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Load {
    pub(super) name: String,
    /// CPU of the server per operation, µs.
    pub(super) cpu_us: f64,
    pub(super) keys: u64,
    /// Zipf's exponent; 0: uniform keys.
    #[serde(default)]
    pub(super) zipf: f64,
    #[serde(default = "one")]
    pub(super) keys_per_operation: u32,
    /// Over the network per operation, both ways.
    pub(super) bytes: f64,
    pub(super) source: String,
}

fn one() -> u32 {
    1
}

impl Costs {
    /// Those that are built in.
    pub(super) fn built_in() -> io::Result<Self> {
        Self::parse(include_str!("costs.json"))
    }

    /// Those of a file.
    pub(super) fn read(path: &Path) -> io::Result<Self> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))?;
        Self::parse(&text)
    }

    fn parse(text: &str) -> io::Result<Self> {
        let costs: Self = serde_json::from_str(text)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, format!("costs: {error}")))?;
        let engine = &costs.engine;
        let sound = 0.0 < engine.held_ns
            && engine.held_ns <= engine.operation_ns
            && (0.0..=1.0).contains(&costs.line.hidden)
            && costs.workloads.iter().all(|load| {
                load.cpu_us * 1000.0 >= engine.held_ns
                    && load.keys > 0
                    && load.keys_per_operation > 0
                    && load.zipf >= 0.0
            });
        if sound { Ok(costs) } else { Err(io::Error::new(io::ErrorKind::InvalidData, "costs: out of range")) }
    }

    /// Takes the CPU time per operation of the peer `pantala` from a `results.json` of `compare`. The names of those taken.
    pub(super) fn take_report(&mut self, path: &Path) -> io::Result<Vec<String>> {
        let text = std::fs::read(path)?;
        let report: Report = serde_json::from_slice(&text)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, format!("{}: {error}", path.display())))?;
        let measured = report.cpu_us();
        let mut taken = Vec::new();
        for load in &mut self.workloads {
            if let Some(cpu_us) = measured.get(&load.name) {
                load.cpu_us = cpu_us.max(self.engine.held_ns / 1000.0);
                load.source = path.display().to_string();
                taken.push(load.name.clone());
            }
        }
        Ok(taken)
    }
}

/// What is read of `results.json`.
#[derive(Deserialize)]
struct Report {
    workloads: Vec<ReportWorkload>,
}

#[derive(Deserialize)]
struct ReportWorkload {
    name: String,
    peers: Vec<ReportPeer>,
}

#[derive(Deserialize)]
struct ReportPeer {
    name: String,
    summary: Option<ReportSummary>,
}

#[derive(Deserialize)]
struct ReportSummary {
    cpu_us_per_operation: ReportSpread,
}

#[derive(Deserialize)]
struct ReportSpread {
    median: f64,
}

impl Report {
    fn cpu_us(self) -> BTreeMap<String, f64> {
        let of = |workload: ReportWorkload| {
            let peer = workload.peers.into_iter().find(|peer| peer.name == "pantala")?;
            Some((workload.name, peer.summary?.cpu_us_per_operation.median))
        };
        self.workloads.into_iter().filter_map(of).collect()
    }
}

/// Cache lines that a command writes and another worker may have written last, on its way through a shard that is free. Held true by
/// the layout asserted in `engine/keyspace.rs` and by `engine`'s test `figures_of_a_command_stand_in_the_gates_line`.
pub(super) const LINES: [(&str, u32, &str); 8] = [
    ("GET", 1, "the shard's gate, with the figures that it counts"),
    ("GET, the key's access time changed", 2, "and the key's entry: at most once a second for each key"),
    ("SET over a value of the same size", 2, "gate and entry"),
    ("SET over one of another size", 4, "and the allocator's slab, and the database's figures"),
    ("SET of a new key, DEL", 5, "and the segment's tags"),
    ("MSET of N keys, EXEC", 1, "for each shard, and N times those of its SETs beyond"),
    ("a request at a shard that is held", 5, "the gate, the request's two, the asker's mailbox, the reply"),
    ("the same, to a worker that sleeps", 6, "and its doorbell, a system call"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn built_in_costs_are_sound_and_name_known_workloads() {
        let costs = Costs::built_in().unwrap();
        for load in &costs.workloads {
            assert!(crate::compare::is_workload(&load.name), "{}", load.name);
        }
        assert!(costs.engine.ratios.iter().any(|row| !row.fitted), "nothing is left to test the model with");
        assert_eq!(costs.engine.ratios[0].exponent(), 0.0);
        assert_eq!(costs.engine.ratios.last().unwrap().exponent(), 0.99);
    }

    #[test]
    fn what_is_out_of_range_is_refused() {
        for (from, to) in [("\"held_ns\": 120.0", "\"held_ns\": 900.0"), ("\"hidden\": 0.88", "\"hidden\": 1.5")] {
            let text = include_str!("costs.json");
            assert!(text.contains(from) && Costs::parse(&text.replace(from, to)).is_err(), "{to}");
        }
        assert!(Costs::parse("{}").is_err());
    }

    #[test]
    fn a_report_replaces_what_it_measured() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("results.json");
        let summary = r#"{"cpu_us_per_operation": {"median": 0.5, "min": 0.4, "max": 0.6}}"#;
        let peers = format!(r#"[{{"name": "redis", "summary": null}}, {{"name": "pantala", "summary": {summary}}}]"#);
        let workloads = format!(
            r#"[{{"name": "dragonfly-get30", "peers": {peers}}}, {{"name": "mset10", "peers": [{{"name": "pantala", "summary": null}}]}}]"#
        );
        std::fs::write(&path, format!(r#"{{"workloads": {workloads}}}"#)).unwrap();
        let mut costs = Costs::built_in().unwrap();
        let before = costs.clone();
        assert_eq!(costs.take_report(&path).unwrap(), ["dragonfly-get30"]);
        for (load, before) in costs.workloads.iter().zip(&before.workloads) {
            let wanted = if load.name == "dragonfly-get30" { 0.5 } else { before.cpu_us };
            assert_eq!(load.cpu_us, wanted, "{}", load.name);
        }
    }
}
