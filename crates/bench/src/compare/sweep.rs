//! A sweep over rates: drives every peer (a compared server) at fixed shares of the slowest peer's
//! peak, and at its own peak.
//!
//! The rounds without a rate run first. A peer's peak is its median throughput in these rounds. In
//! the sweep, each operation has a due time, and its latency counts from that time. If a server
//! stalls, the latencies of delayed requests therefore include the delay (no coordinated omission).
//!
//! System calls and wake-ups are counted in separate loads after the rounds, because counting takes
//! CPU time.

use std::io;
use std::time::Duration;

use serde::Serialize;

use super::measure::{Comparison, Entrant, Pass, keeps_rate, print_round};
use super::peers::Peer;
use super::results::{PeerResult, Round, Spread};
use super::trace::{Counts, Tracer};
use super::workloads::Workload;
use crate::load::plan::Amount;

/// The rates of a sweep, in percent of the slowest peer's peak.
const PERCENTS: [u64; 7] = [5, 10, 20, 40, 60, 80, 95];
/// Maximum length of a load in which system calls are counted.
const COUNTED_MAX: Duration = Duration::from_secs(2);

/// The results of a peer at one rate.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Point {
    /// The rate in percent of the slowest peer's peak. `None` stands for the peer's own peak.
    pub(super) percent: Option<u64>,
    /// The rate in operations per second, of all clients together.
    pub(super) rate_per_s: u64,
    pub(super) rounds: Vec<Round>,
    /// Counts of system calls and wake-ups, if the host can count them.
    pub(super) counts: Option<Counts>,
    pub(super) summary: Option<PointSummary>,
}

/// Summary of the rounds at one rate. Each single number is a median over the rounds, except
/// `max_us`.
#[derive(Clone, Debug, Serialize)]
pub(super) struct PointSummary {
    pub(super) operations_per_s: Spread,
    pub(super) cpu_us_per_operation: Spread,
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
    pub(super) p99_9_us: f64,
    /// Maximum latency over all rounds.
    pub(super) max_us: f64,
    /// Context switches per operation in which a thread of the server began to wait.
    pub(super) voluntary_switches: f64,
    pub(super) involuntary_switches: f64,
    /// Ratios to every other peer at the same percentage. The last point of each peer is at the
    /// peer's own peak, and its ratios are to the last points of the other peers.
    pub(super) ratios: Vec<PointRatios>,
}

/// Ratios of a peer to another peer. Each ratio compares results of the same round.
#[derive(Clone, Debug, Serialize)]
pub(super) struct PointRatios {
    /// Name of the other peer.
    pub(super) against: String,
    pub(super) cpu_us_per_operation: Spread,
    pub(super) p99_us: Spread,
    pub(super) p99_9_us: Spread,
}

impl Comparison<'_> {
    /// Drives all valid peers at all rates in rounds. Then counts their system calls.
    pub(super) fn sweep(&self, entrants: &mut [Entrant], workload: &Workload) {
        let Some(slowest) = entrants.iter().filter_map(|entrant| peak(&entrant.result)).min_by(f64::total_cmp) else {
            return;
        };
        for entrant in entrants.iter_mut() {
            if let Some(own) = peak(&entrant.result) {
                entrant.result.sweep = points(slowest, own);
            }
        }
        for round in 1..=self.setup.rounds {
            for at in 0..=PERCENTS.len() {
                for entrant in entrants.iter_mut() {
                    self.turn(entrant, "the sweep", |peer, result| {
                        self.measure_point(peer, result, workload, round, at)
                    });
                }
            }
        }
        let Ok(tracer) = self.tracer else { return };
        for at in 0..=PERCENTS.len() {
            for entrant in entrants.iter_mut() {
                self.turn(entrant, "counting system calls", |peer, result| {
                    self.count(peer, result, workload, tracer, at)
                });
            }
        }
    }

    /// Measures a peer once, at the rate with index `at` in the peer's sweep.
    fn measure_point(
        &self,
        peer: &Peer,
        result: &mut PeerResult,
        workload: &Workload,
        round: u64,
        at: usize,
    ) -> io::Result<()> {
        let Some(point) = result.sweep.get_mut(at) else { return Ok(()) };
        let amount = Amount::Time(Duration::from_secs(self.setup.seconds));
        let pass = Pass { round, rate_per_s: Some(point.rate_per_s), amount };
        let driven = self.drive(peer, workload, &pass, None)?;
        print_round(&format!("{}: round {round}, {} at {}", workload.name, result.name, point.name()), &driven.round);
        point.rounds.push(driven.round);
        driven.verdict
    }

    /// Counts a peer's system calls and wake-ups, at the rate with index `at` in the peer's sweep.
    /// If counting fails, the peer's row stays valid.
    fn count(
        &self,
        peer: &Peer,
        result: &mut PeerResult,
        workload: &Workload,
        tracer: &Tracer,
        at: usize,
    ) -> io::Result<()> {
        let Some(point) = result.sweep.get_mut(at) else { return Ok(()) };
        let amount = Amount::Time(Duration::from_secs(self.setup.seconds).min(COUNTED_MAX));
        let pass = Pass { round: 0, rate_per_s: Some(point.rate_per_s), amount };
        let driven = self.drive(peer, workload, &pass, Some(tracer))?;
        match driven.counts {
            Some(Ok(counts)) => point.counts = Some(Counts { operations: driven.round.load.operations, ..counts }),
            Some(Err(error)) => {
                result.notes.push(format!("system calls and wake-ups at {} are not counted: {error}", point.name()));
            }
            None => {}
        }
        driven.verdict
    }
}

/// Returns a peer's peak, if the peer is valid so far.
fn peak(result: &PeerResult) -> Option<f64> {
    let rounds = result.rounds.iter().filter(|_| result.is_measured());
    Spread::of(rounds.map(|round| round.load.operations_per_s)).map(|spread| spread.median)
}

/// Returns the points of a peer whose peak is `own` operations per second. `slowest` is the slowest
/// peer's peak.
fn points(slowest: f64, own: f64) -> Vec<Point> {
    let point = |percent: Option<u64>, rate_per_s: f64| Point {
        percent,
        rate_per_s: (rate_per_s as u64).max(1),
        rounds: Vec::new(),
        counts: None,
        summary: None,
    };
    let parts = PERCENTS.iter().map(|percent| point(Some(*percent), slowest * *percent as f64 / 100.0));
    parts.chain([point(None, own)]).collect()
}

/// Computes the summaries of all valid peers at all rates.
pub(super) fn summarize(peers: &mut [PeerResult]) {
    for at in 0..=PERCENTS.len() {
        let summaries: Vec<_> = peers.iter().map(|peer| summary(peer, peers, at)).collect();
        for (peer, summary) in peers.iter_mut().zip(summaries) {
            if let Some(point) = peer.sweep.get_mut(at) {
                point.summary = summary;
            }
        }
    }
}

/// Returns a valid peer's rounds at the rate with index `at` in the peer's sweep.
fn rounds_at(peer: &PeerResult, at: usize) -> Option<&[Round]> {
    peer.sweep.get(at).filter(|_| peer.is_measured()).map(|point| point.rounds.as_slice())
}

fn summary(peer: &PeerResult, all: &[PeerResult], at: usize) -> Option<PointSummary> {
    let rounds = rounds_at(peer, at)?;
    let over = |of: fn(&Round) -> f64| Spread::of(rounds.iter().map(of));
    let median = |of: fn(&Round) -> f64| over(of).map(|spread| spread.median);
    let others = all.iter().filter(|other| other.name != peer.name);
    Some(PointSummary {
        operations_per_s: over(|round| round.load.operations_per_s)?,
        cpu_us_per_operation: over(|round| round.server_cpu_us_per_operation)?,
        p50_us: median(|round| round.load.latency.p50_us)?,
        p99_us: median(|round| round.load.latency.p99_us)?,
        p99_9_us: median(|round| round.load.latency.p99_9_us)?,
        max_us: over(|round| round.load.latency.max_us)?.max,
        voluntary_switches: median(|round| per_operation(round.server_voluntary_switches, round.load.operations))?,
        involuntary_switches: median(|round| per_operation(round.server_involuntary_switches, round.load.operations))?,
        ratios: others.filter_map(|other| ratios(rounds, other, at)).collect(),
    })
}

fn ratios(rounds: &[Round], other: &PeerResult, at: usize) -> Option<PointRatios> {
    let others = rounds_at(other, at)?;
    let over = |of: fn(&Round) -> f64| {
        let ratio = |round: &Round| {
            let other = others.iter().find(|other| other.round == round.round)?;
            Some(of(round) / of(other)).filter(|ratio| ratio.is_finite())
        };
        Spread::of(rounds.iter().filter_map(ratio))
    };
    Some(PointRatios {
        against: other.name.clone(),
        cpu_us_per_operation: over(|round| round.server_cpu_us_per_operation)?,
        p99_us: over(|round| round.load.latency.p99_us)?,
        p99_9_us: over(|round| round.load.latency.p99_9_us)?,
    })
}

/// Returns the number of events per operation.
pub(super) fn per_operation(events: u64, operations: u64) -> f64 {
    events as f64 / operations.max(1) as f64
}

impl Point {
    /// Returns the name of the rate, such as `40%` or `own peak`.
    pub(super) fn name(&self) -> String {
        self.percent.map_or_else(|| "own peak".to_owned(), |percent| format!("{percent}%"))
    }

    /// Returns whether the peer missed the rate in at least one round.
    pub(super) fn is_missed(&self) -> bool {
        self.summary.as_ref().is_some_and(|summary| !keeps_rate(self.rate_per_s, summary.operations_per_s.min))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::results::tests::{peer, round};
    use super::*;

    /// Returns a peer with a sweep. `cpu_us` contains the CPU times of its rounds at each rate.
    pub(crate) fn swept(name: &str, slowest: f64, own: f64, cpu_us: &[f64]) -> PeerResult {
        let mut peer = peer(name, vec![round(1, own, 1.0, 1.0)]);
        peer.sweep = points(slowest, own);
        for point in &mut peer.sweep {
            let rate_per_s = point.rate_per_s as f64;
            point.rounds = (1..).zip(cpu_us).map(|(number, us)| round(number, rate_per_s, *us, us * 10.0)).collect();
            for round in &mut point.rounds {
                round.load.operations = 1_000;
                round.load.latency.p99_9_us = round.load.latency.p99_us * 2.0;
                (round.server_voluntary_switches, round.server_involuntary_switches) = (1_500, 250);
            }
        }
        peer
    }

    #[test]
    fn rates_are_parts_of_the_slowest_peak() {
        let points = points(1_000.0, 4_000.0);
        let rates: Vec<(String, u64)> = points.iter().map(|point| (point.name(), point.rate_per_s)).collect();
        let expected = [("5%", 50), ("10%", 100), ("20%", 200), ("40%", 400), ("60%", 600), ("80%", 800), ("95%", 950)];
        let expected = expected.into_iter().chain([("own peak", 4_000)]);
        assert_eq!(rates, expected.map(|(name, rate)| (name.to_owned(), rate)).collect::<Vec<_>>());
        assert_eq!(super::points(0.3, 0.4)[0].rate_per_s, 1);
    }

    #[test]
    fn only_valid_peers_have_a_peak() {
        let mut result = peer("a", vec![round(1, 10.0, 1.0, 1.0), round(2, 30.0, 1.0, 1.0), round(3, 11.0, 1.0, 1.0)]);
        assert_eq!(peak(&result), Some(11.0));
        result.invalid = Some("errors".into());
        assert_eq!((peak(&result), peak(&peer("b", Vec::new()))), (None, None));
    }

    #[test]
    fn points_are_summarized_and_compared() {
        let mut invalid = swept("broken", 1_000.0, 1_000.0, &[1.0]);
        invalid.invalid = Some("errors".into());
        let mut peers = vec![
            swept("a", 1_000.0, 1_000.0, &[2.0, 4.0, 2.0]),
            swept("b", 1_000.0, 2_000.0, &[1.0, 1.0, 2.0]),
            invalid,
        ];
        peers[1].sweep[6].rounds[2].load.operations_per_s = 900.0;
        summarize(&mut peers);
        let summary = peers[1].sweep[0].summary.as_ref().unwrap();
        assert_eq!(summary.cpu_us_per_operation, Spread { median: 1.0, min: 1.0, max: 2.0 });
        assert_eq!((summary.voluntary_switches, summary.involuntary_switches), (1.5, 0.25));
        let [ratios] = summary.ratios.as_slice() else { panic!("{summary:?}") };
        assert_eq!(ratios.against, "a");
        assert_eq!(ratios.cpu_us_per_operation, Spread { median: 0.5, min: 0.25, max: 1.0 });
        assert_eq!(ratios.p99_us.median, 0.5);
        assert_eq!((peers[1].sweep[5].is_missed(), peers[1].sweep[6].is_missed()), (false, true));
        assert!(peers[2].sweep[0].summary.is_none());
    }
}
