//! Results of a comparison: the contents of `results.json`, and the statistics computed from them.

use serde::Serialize;

use super::preflight::Finding;
use super::sweep::Point;
use crate::load::outcome::Outcome;

/// A thread counts as always busy if it is on a CPU or ready to run for this share of the time.
const BUSY: f64 = 0.9;

/// The results of one comparison.
#[derive(Debug, Serialize)]
pub(super) struct Results {
    pub(super) host: Host,
    pub(super) preset: Option<PresetReport>,
    /// The command line.
    pub(super) command: Vec<String>,
    pub(super) server_cpus: Vec<usize>,
    pub(super) client_cpus: Vec<usize>,
    pub(super) client_threads: u32,
    pub(super) seconds: u64,
    pub(super) rounds: u64,
    /// Number of workloads to measure.
    pub(super) workloads_planned: usize,
    pub(super) workloads: Vec<WorkloadResult>,
    /// Whether the run was interrupted before its end.
    pub(super) interrupted: bool,
}

impl Results {
    /// Returns a warning for the top of the reports, if the run was interrupted or workloads are
    /// missing.
    pub(super) fn incomplete(&self) -> Option<String> {
        let (measured, planned) = (self.workloads.len(), self.workloads_planned);
        if self.interrupted {
            Some("The run was interrupted. The measurements until then follow.".to_owned())
        } else {
            (measured < planned).then(|| format!("Not complete: {measured} of {planned} workloads are measured."))
        }
    }
}

/// A published set-up, and how this run differs from it.
#[derive(Clone, Debug, Serialize)]
pub(super) struct PresetReport {
    pub(super) name: &'static str,
    pub(super) source: &'static str,
    /// Sizes that are smaller here than published, and the peers that are left out.
    pub(super) scaled_down: Vec<String>,
    /// Differences from the published run that exist on every host.
    pub(super) differences: Vec<String>,
    /// How CPUs were divided between servers and generator.
    pub(super) placement: Vec<String>,
    /// The host's settings that affect the results.
    pub(super) findings: Vec<Finding>,
}

#[derive(Debug, Serialize)]
pub(super) struct Host {
    pub(super) cpu: String,
    pub(super) cpus: usize,
    pub(super) memory_bytes: u64,
    pub(super) kernel: String,
    /// Scheduling class of all processes of the run.
    pub(super) scheduling: String,
    pub(super) began: String,
    /// Load average of the last minute before the run started.
    pub(super) load_before: String,
    /// Load average of the last minute before the run ended.
    pub(super) load_after: String,
    pub(super) tool: String,
    /// Git's description of the checkout that contains the tool, if there is one: the commit, and
    /// whether files differ from it.
    pub(super) checkout: Option<String>,
}

/// The results of one workload for all peers.
#[derive(Debug, Serialize)]
pub(super) struct WorkloadResult {
    pub(super) name: String,
    pub(super) source: String,
    pub(super) ours: String,
    /// Description of the load. Contains the published size if the size was scaled.
    pub(super) parameters: String,
    pub(super) scale: f64,
    /// Names of the peers that the ratios in the reports refer to.
    pub(super) against: Vec<String>,
    /// Whether the rounds write to files.
    pub(super) writes_files: bool,
    /// The reason why a sweep's system calls and wake-ups were not counted.
    pub(super) uncounted: Option<String>,
    pub(super) peers: Vec<PeerResult>,
}

#[derive(Debug, Default, Serialize)]
pub(super) struct PeerResult {
    pub(super) name: String,
    pub(super) version: String,
    /// Command line of the peer's first process.
    pub(super) command: Vec<String>,
    pub(super) processes: u32,
    pub(super) cluster_mode: bool,
    pub(super) clients: u32,
    /// Maximum number of operations in flight: the product of the number of clients, the number of
    /// nodes to which each client is connected, and the pipeline.
    pub(super) in_flight_max: u64,
    pub(super) notes: Vec<String>,
    /// The reason why the peer was not measured.
    pub(super) skipped: Option<String>,
    /// The reason why the peer's results are invalid.
    pub(super) invalid: Option<String>,
    /// The workload's latency limit in microseconds, if p99 exceeds it.
    pub(super) latency_missed_us: Option<f64>,
    pub(super) loaded_keys: u64,
    /// Resident memory before the first round, with the keys loaded.
    pub(super) resident_loaded_bytes: u64,
    pub(super) resident_peak_bytes: u64,
    /// Memory of collections, for workloads that measure it.
    pub(super) footprint: Option<Footprint>,
    pub(super) rounds: Vec<Round>,
    pub(super) summary: Option<Summary>,
    /// Results at fixed rates, with `--rate-sweep`.
    pub(super) sweep: Vec<Point>,
    /// The latencies of all rounds together. Each pair is a quantile and its latency in
    /// microseconds.
    pub(super) percentiles: Vec<(f64, f64)>,
}

/// Resident memory of collections.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Footprint {
    /// Name of the counted items: members, entries and the like.
    pub(super) what: &'static str,
    pub(super) count: u64,
    /// Resident memory before the filling. It is read after rejected requests of the same size,
    /// which made the server allocate the memory of the connections.
    pub(super) before_bytes: u64,
    pub(super) each_bytes: f64,
    /// The ratios to every other measured peer.
    pub(super) ratios: Vec<FootprintRatio>,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct FootprintRatio {
    /// Name of the other peer.
    pub(super) against: String,
    pub(super) each_bytes: f64,
}

impl Footprint {
    pub(super) fn new(what: &'static str, count: u64, before_bytes: u64, loaded_bytes: u64) -> Self {
        let each_bytes = (loaded_bytes as f64 - before_bytes as f64) / count as f64;
        Self { what, count, before_bytes, each_bytes, ratios: Vec::new() }
    }
}

/// The results of one measurement.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Round {
    /// Number of the round, starting at 1.
    pub(super) round: u64,
    pub(super) server_cpu_s: f64,
    /// Time during which the server's threads were ready to run but had no CPU.
    pub(super) server_wait_s: f64,
    /// CPU time of the server's busiest thread, as a share of the elapsed time.
    pub(super) server_busy_max: f64,
    /// Time on a CPU plus time in the run queue, as a share of the elapsed time, of the server's
    /// thread for which this share is highest.
    pub(super) server_wanting_max: f64,
    pub(super) server_cpu_us_per_operation: f64,
    /// Number of context switches in which a thread of the server began to wait.
    pub(super) server_voluntary_switches: u64,
    /// Number of context switches in which the kernel took the CPU from a thread of the server.
    pub(super) server_involuntary_switches: u64,
    /// Number of bytes that the server wrote to disks.
    pub(super) server_written_bytes: u64,
    /// Number of bytes that clients sent. In a round that writes a snapshot, the size of the
    /// snapshot.
    pub(super) payload_bytes: u64,
    /// Time in which a copy of the snapshot was written and synced, in seconds.
    pub(super) copy_s: Option<f64>,
    pub(super) hit_rate: Option<f64>,
    pub(super) load: Outcome,
}

/// The side that limited the throughput because one of its threads was always busy. Time in the run
/// queue counts like time on a CPU, because on shared CPUs each side delays the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Limit {
    /// A thread of the generator was always busy, but no thread of the server was.
    Generator,
    /// On each side a thread was always busy: the two sides compete for the CPUs.
    Both,
    Other,
}

impl Round {
    fn limit(&self) -> Limit {
        match (self.load.generator_wanting_max >= BUSY, self.server_wanting_max >= BUSY) {
            (true, false) => Limit::Generator,
            (true, true) => Limit::Both,
            _ => Limit::Other,
        }
    }
}

/// Median, minimum and maximum over the rounds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Spread {
    pub(super) median: f64,
    pub(super) min: f64,
    pub(super) max: f64,
}

impl Spread {
    /// Summarizes values. Returns `None` if there are no values.
    pub(super) fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        let (low, high) = (values[(values.len() - 1) / 2], values[values.len() / 2]);
        Some(Self { median: f64::midpoint(low, high), min, max })
    }
}

/// The summary of a valid peer's rounds.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Summary {
    pub(super) operations_per_s: Spread,
    pub(super) cpu_us_per_operation: Spread,
    /// 50th percentile: the median over the rounds.
    pub(super) p50_us: f64,
    /// 99th percentile: the median over the rounds.
    pub(super) p99_us: f64,
    /// 99.9th percentile: the median over the rounds.
    pub(super) p99_9_us: f64,
    /// Maximum latency over all rounds.
    pub(super) max_us: f64,
    pub(super) hit_rate: Option<f64>,
    /// CPU time of the load generator per operation: the median over the rounds.
    pub(super) generator_us_per_operation: f64,
    /// Time on a CPU plus time in the run queue, as a share of the elapsed time. In each round the
    /// highest share of a generator's thread is taken, and of these the median over the rounds.
    pub(super) generator_wanting: f64,
    /// Number of rounds in which only the generator limited the throughput ([`Limit::Generator`]).
    pub(super) generator_limited: usize,
    /// Number of rounds in which both sides limited the throughput ([`Limit::Both`]).
    pub(super) both_limited: usize,
    /// Time during which the server's threads waited for a CPU, as a share of the time during which
    /// they ran or waited for a CPU.
    pub(super) server_starved: f64,
    /// Number of bytes that the server wrote to disks per operation: the median over the rounds.
    pub(super) disk_bytes_per_operation: f64,
    /// Number of bytes that the server wrote to disks, divided by [`Round::payload_bytes`].
    pub(super) write_amplification: Spread,
    /// Time of a copy of the snapshot, divided by the time in which the server wrote the snapshot.
    pub(super) copy_part: Option<Spread>,
    /// The ratios to every other measured peer.
    pub(super) ratios: Vec<Ratios>,
}

/// Ratios of a peer to another peer. Each ratio compares results of the same round.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Ratios {
    /// Name of the other peer.
    pub(super) against: String,
    pub(super) operations_per_s: Spread,
    pub(super) cpu_us_per_operation: Spread,
    pub(super) p99_us: Spread,
}

impl WorkloadResult {
    /// Computes summaries and ratios. If no peers are named, ratios refer to the first peer that
    /// takes part.
    pub(super) fn summarize(&mut self) {
        if self.against.is_empty() {
            self.against = self
                .peers
                .iter()
                .find(|peer| peer.skipped.is_none())
                .map(|peer| peer.name.clone())
                .into_iter()
                .collect();
        }
        for at in 0..self.peers.len() {
            let summary = self.peers[at].summary(&self.peers);
            self.peers[at].summary = summary;
            let ratios = self.peers[at].footprint_ratios(&self.peers);
            if let Some(footprint) = &mut self.peers[at].footprint {
                footprint.ratios = ratios;
            }
        }
        super::sweep::summarize(&mut self.peers);
    }
}

impl PeerResult {
    pub(super) fn is_measured(&self) -> bool {
        let is_sound = self.skipped.is_none() && self.invalid.is_none();
        is_sound && (!self.rounds.is_empty() || self.footprint.is_some())
    }

    /// Returns the memory of the peer's collections, if it was measured.
    pub(super) fn measured_footprint(&self) -> Option<&Footprint> {
        self.footprint.as_ref().filter(|_| self.is_measured())
    }

    fn footprint_ratios(&self, all: &[Self]) -> Vec<FootprintRatio> {
        let Some(own) = self.measured_footprint() else { return Vec::new() };
        let others = all.iter().filter(|other| other.name != self.name);
        let ratio = |other: &Self| {
            let each_bytes = own.each_bytes / other.measured_footprint()?.each_bytes;
            each_bytes.is_finite().then(|| FootprintRatio { against: other.name.clone(), each_bytes })
        };
        others.filter_map(ratio).collect()
    }

    fn summary(&self, all: &[Self]) -> Option<Summary> {
        if !self.is_measured() {
            return None;
        }
        let over = |of: fn(&Round) -> f64| Spread::of(self.rounds.iter().map(of));
        let median = |of: fn(&Round) -> f64| over(of).map(|spread| spread.median);
        let (cpu_s, wait_s) =
            self.rounds.iter().fold((0.0, 0.0), |sum, round| (sum.0 + round.server_cpu_s, sum.1 + round.server_wait_s));
        Some(Summary {
            operations_per_s: over(|round| round.load.operations_per_s)?,
            cpu_us_per_operation: over(|round| round.server_cpu_us_per_operation)?,
            p50_us: median(|round| round.load.latency.p50_us)?,
            p99_us: median(|round| round.load.latency.p99_us)?,
            p99_9_us: median(|round| round.load.latency.p99_9_us)?,
            max_us: over(|round| round.load.latency.max_us)?.max,
            hit_rate: Spread::of(self.rounds.iter().filter_map(|round| round.hit_rate)).map(|spread| spread.median),
            generator_us_per_operation: median(|round| round.load.generator_us_per_operation())?,
            generator_wanting: median(|round| round.load.generator_wanting_max)?,
            generator_limited: self.limited(Limit::Generator),
            both_limited: self.limited(Limit::Both),
            server_starved: wait_s / (cpu_s + wait_s).max(1e-9),
            disk_bytes_per_operation: median(|round| {
                round.server_written_bytes as f64 / round.load.operations.max(1) as f64
            })?,
            write_amplification: over(|round| round.server_written_bytes as f64 / round.payload_bytes.max(1) as f64)?,
            copy_part: Spread::of(
                self.rounds.iter().filter_map(|round| Some(round.copy_s? / round.load.elapsed_s.max(1e-9))),
            ),
            ratios: all.iter().filter_map(|other| self.ratios(other)).collect(),
        })
    }

    /// Returns the number of rounds in which `limit` was the limit.
    fn limited(&self, limit: Limit) -> usize {
        self.rounds.iter().filter(|round| round.limit() == limit).count()
    }

    fn ratios(&self, other: &Self) -> Option<Ratios> {
        if self.name == other.name || !other.is_measured() {
            return None;
        }
        let over = |of: fn(&Round) -> f64| {
            let ratio = |round: &Round| {
                let other = other.rounds.iter().find(|other| other.round == round.round)?;
                Some(of(round) / of(other)).filter(|ratio| ratio.is_finite())
            };
            Spread::of(self.rounds.iter().filter_map(ratio))
        };
        Some(Ratios {
            against: other.name.clone(),
            operations_per_s: over(|round| round.load.operations_per_s)?,
            cpu_us_per_operation: over(|round| round.server_cpu_us_per_operation)?,
            p99_us: over(|round| round.load.latency.p99_us)?,
        })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(crate) fn round(number: u64, operations_per_s: f64, cpu_us: f64, p99_us: f64) -> Round {
        let mut load = Outcome::empty();
        load.operations_per_s = operations_per_s;
        load.latency.p99_us = p99_us;
        Round {
            round: number,
            server_cpu_s: 3.0,
            server_wait_s: 1.0,
            server_busy_max: 0.5,
            server_wanting_max: 0.5,
            server_cpu_us_per_operation: cpu_us,
            server_voluntary_switches: 0,
            server_involuntary_switches: 0,
            server_written_bytes: 0,
            payload_bytes: 0,
            copy_s: None,
            hit_rate: Some(1.0),
            load,
        }
    }

    pub(crate) fn peer(name: &str, rounds: Vec<Round>) -> PeerResult {
        PeerResult { name: name.into(), rounds, ..PeerResult::default() }
    }

    pub(crate) fn workload(peers: Vec<PeerResult>) -> WorkloadResult {
        WorkloadResult {
            name: "w".into(),
            source: String::new(),
            ours: "x".into(),
            parameters: "p".into(),
            scale: 1.0,
            against: Vec::new(),
            writes_files: false,
            uncounted: None,
            peers,
        }
    }

    #[test]
    fn medians() {
        assert_eq!(Spread::of([]), None);
        assert_eq!(Spread::of([3.0, 1.0, 2.0]), Some(Spread { median: 2.0, min: 1.0, max: 3.0 }));
        assert_eq!(Spread::of([4.0, 1.0, 2.0, 3.0]).unwrap().median, 2.5);
    }

    #[test]
    fn ratios_are_taken_within_a_round() {
        let first = peer("a", vec![round(1, 100.0, 2.0, 10.0), round(2, 50.0, 4.0, 10.0), round(3, 10.0, 1.0, 1.0)]);
        // The second peer has no round 1, so medians over all rounds would compare different
        // rounds.
        let second = peer("b", vec![round(2, 100.0, 1.0, 5.0), round(3, 10.0, 1.0, 2.0)]);
        let mut workload = workload(vec![first, second]);
        workload.summarize();
        let ratios = &workload.peers[1].summary.as_ref().unwrap().ratios[0];
        assert_eq!(ratios.against, "a");
        assert_eq!(ratios.operations_per_s, Spread { median: 1.5, min: 1.0, max: 2.0 });
        assert_eq!(ratios.cpu_us_per_operation, Spread { median: 0.625, min: 0.25, max: 1.0 });
        assert_eq!(ratios.p99_us, Spread { median: 1.25, min: 0.5, max: 2.0 });
        let first = workload.peers[0].summary.as_ref().unwrap();
        assert_eq!(first.ratios[0].operations_per_s, Spread { median: 0.75, min: 0.5, max: 1.0 });
        assert_eq!((workload.against, first.server_starved), (vec!["a".to_owned()], 0.25));
    }

    #[test]
    fn every_pair_has_its_ratios() {
        let one = |name: &str, operations_per_s| peer(name, vec![round(1, operations_per_s, 1.0, 1.0)]);
        let mut workload = workload(vec![one("a", 1.0), one("b", 2.0), one("c", 8.0)]);
        workload.against = vec!["b".into()];
        workload.summarize();
        let of = |at: usize| -> Vec<(&str, f64)> {
            let ratios = &workload.peers[at].summary.as_ref().unwrap().ratios;
            ratios.iter().map(|ratio| (ratio.against.as_str(), ratio.operations_per_s.median)).collect()
        };
        assert_eq!(of(2), [("a", 8.0), ("b", 4.0)]);
        assert_eq!(of(0), [("b", 0.5), ("c", 0.125)]);
        assert_eq!(workload.against, ["b"], "who is named stays");
    }

    #[test]
    fn an_invalid_peer_has_no_summary_and_is_no_measure() {
        let mut first = peer("a", vec![round(1, 1.0, 1.0, 1.0)]);
        first.invalid = Some("errors".into());
        let mut workload = workload(vec![first, peer("b", vec![round(1, 1.0, 1.0, 1.0)])]);
        workload.summarize();
        assert!(workload.peers[0].summary.is_none());
        assert!(workload.peers[1].summary.as_ref().unwrap().ratios.is_empty());
    }

    #[test]
    fn a_skipped_peer_is_no_measure_for_the_others() {
        let mut first = peer("a", Vec::new());
        first.skipped = Some("can't".into());
        let mut workload =
            workload(vec![first, peer("b", vec![round(1, 1.0, 1.0, 1.0)]), peer("c", vec![round(1, 3.0, 1.0, 1.0)])]);
        workload.summarize();
        assert_eq!(workload.against, ["b"]);
        let ratios = &workload.peers[2].summary.as_ref().unwrap().ratios;
        assert_eq!((ratios.len(), ratios[0].against.as_str(), ratios[0].operations_per_s.median), (1, "b", 3.0));
    }

    #[test]
    fn footprints_have_ratios() {
        let measured_footprint = |name: &str, loaded_bytes| {
            let footprint = Some(Footprint::new("sets", 10, 1_000, loaded_bytes));
            PeerResult { footprint, ..peer(name, Vec::new()) }
        };
        let mut broken = measured_footprint("broken", 9_000);
        broken.invalid = Some("errors".into());
        let mut workload = workload(vec![
            broken,
            measured_footprint("a", 3_000),
            measured_footprint("b", 2_500),
            measured_footprint("none", 1_000),
        ]);
        workload.summarize();
        let [broken, a, b, _] = workload.peers.as_slice() else { panic!() };
        assert!(!broken.is_measured() && broken.footprint.as_ref().unwrap().ratios.is_empty());
        assert!(a.is_measured() && a.summary.is_none());
        let ratios = |peer: &PeerResult| -> Vec<(String, f64)> {
            let ratios = &peer.measured_footprint().unwrap().ratios;
            ratios.iter().map(|ratio| (ratio.against.clone(), ratio.each_bytes)).collect()
        };
        assert_eq!(a.measured_footprint().unwrap().each_bytes, 200.0);
        // Ratios to two peers are missing: to the invalid peer, and to the peer whose collections
        // use no memory.
        assert_eq!(ratios(b), [("a".to_owned(), 0.75)]);
        // A decrease of the memory usage is not an error.
        assert_eq!(Footprint::new("sets", 10, 1_000, 900).each_bytes, -10.0);
    }

    #[test]
    fn the_limit_is_the_side_that_was_always_busy() {
        let mut one = round(1, 1.0, 1.0, 1.0);
        assert_eq!(one.limit(), Limit::Other);
        // On shared CPUs, a thread may spend most of its time in the run queue.
        (one.load.generator_busy_max, one.load.generator_wanting_max) = (0.4, 0.95);
        assert_eq!(one.limit(), Limit::Generator);
        one.server_wanting_max = 0.95;
        assert_eq!(one.limit(), Limit::Both);
        one.load.generator_wanting_max = 0.5;
        assert_eq!(one.limit(), Limit::Other);
    }
}
