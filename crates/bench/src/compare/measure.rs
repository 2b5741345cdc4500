//! Runs one workload against all peers (the compared servers). Starts the peers, loads their keys,
//! measures them in rounds, and stops them. In a round, every peer is measured once.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::options::{Rate, Setup};
use super::peers::{Absent, Peer, Ports, Spec, StartParameters, check_interrupted};
use super::process::{Spent, Usage};
use super::report::rate;
use super::results::{PeerResult, Round, WorkloadResult};
use super::say;
use super::trace::{Counts, Tracer, Tracing};
use super::workloads::{Clients, Measured, Needs, Step, Workload, expanded};
use crate::load::control::{Login, Target};
use crate::load::data::Sizes;
use crate::load::keys::{Pattern, Range};
use crate::load::outcome::{Outcome, Sample};
use crate::load::plan::{Amount, CommandPlan, Plan};
use crate::load::template::DATA;
use crate::load::{self, Watch};

/// Length of the unmeasured load before the first round. During this load, buffers grow to their
/// final size.
const WARM_UP: Duration = Duration::from_secs(1);
/// Time without a reply after which a load fails.
const STALL_MAX: Duration = Duration::from_secs(30);
/// Like [`STALL_MAX`], for workloads whose commands take seconds.
const LONG_STALL_MAX: Duration = Duration::from_secs(300);
/// Share of the requested rate that a peer must reach. It is less than 1, because the last
/// operations of a round may get their replies only after the measured time.
const RATE_KEPT: f64 = 0.97;
/// Number of points of a latency curve for each halving of the distance to the quantile 100%.
const CURVE_TICKS_PER_HALF: u32 = 4;

/// The settings that all workloads share.
pub(super) struct Comparison<'a> {
    pub(super) setup: &'a Setup,
    pub(super) seed: u64,
    /// The tracer that counts system calls, or the reason why tracing isn't possible.
    pub(super) tracer: &'a Result<Tracer, String>,
    pub(super) stop: &'a Arc<AtomicBool>,
}

/// A peer and its results so far. `peer` is `None` if the peer takes no part in the workload.
pub(super) struct Entrant {
    peer: Option<Peer>,
    pub(super) result: PeerResult,
}

/// The parameters of one *pass*: one load that drives one peer.
#[derive(Clone, Copy)]
pub(super) struct Pass {
    /// Number of the round, starting at 1. Round 0 is the unmeasured warm-up.
    pub(super) round: u64,
    /// The requested rate. `None` stands for as many operations as the clients can send.
    pub(super) rate_per_s: Option<u64>,
    pub(super) amount: Amount,
}

/// The results of a pass.
pub(super) struct Driven {
    pub(super) round: Round,
    pub(super) peak_bytes: u64,
    /// The counts of system calls and wake-ups, if the pass counts them.
    pub(super) counts: Option<io::Result<Counts>>,
    /// `Err` if a request of the pass failed, or a step after the pass.
    pub(super) verdict: io::Result<()>,
}

impl Comparison<'_> {
    /// Measures `workload`. If a peer fails, its row contains the reason. After an interruption,
    /// the results so far are kept.
    pub(super) fn run(&self, workload: &Workload, ports: &mut Ports) -> WorkloadResult {
        let mut entrants: Vec<Entrant> =
            self.setup.peers.iter().map(|spec| self.enter(spec, workload, ports)).collect();
        let has_rounds = !matches!(workload.measured, Measured::Resident(..));
        for round in (0..=self.setup.rounds).filter(|_| has_rounds) {
            for entrant in &mut entrants {
                self.turn(entrant, &format!("round {round}"), |peer, result| {
                    self.measure(peer, result, workload, round)
                });
            }
        }
        let sweeps = self.setup.rate == Rate::Sweep;
        if sweeps {
            self.sweep(&mut entrants, workload);
        }
        let mut result = WorkloadResult {
            name: workload.name.to_owned(),
            source: workload.source.to_owned(),
            ours: workload.ours.to_owned(),
            parameters: self.parameters(workload),
            scale: self.setup.scale,
            against: self.setup.against.clone(),
            writes_files: workload.writes_files(),
            uncounted: self.tracer.as_ref().err().filter(|_| sweeps).cloned(),
            peers: entrants.into_iter().map(Entrant::leave).collect(),
        };
        result.summarize();
        result.peers.iter_mut().for_each(|peer| {
            check_latency(workload, peer);
            check_rate(self.setup.rate.fixed(), peer);
        });
        result
    }

    pub(super) fn start_parameters(&self) -> StartParameters<'_> {
        StartParameters { dir: &self.setup.dir, cpus: &self.setup.server_cpus, stop: self.stop }
    }

    /// Starts a peer, loads its keys, and suspends it.
    fn enter(&self, spec: &Spec, workload: &Workload, ports: &mut Ports) -> Entrant {
        let mut result = PeerResult { name: spec.name.clone(), ..PeerResult::default() };
        if check_interrupted(self.stop).is_err() {
            result.skipped = Some("interrupted".into());
            return Entrant { peer: None, result };
        }
        say(&format!("{}: {} starts", workload.name, spec.name));
        let mut peer = match Peer::start(spec, workload, ports, &self.start_parameters()) {
            Ok(peer) => peer,
            Err(absent) => {
                match absent {
                    Absent::Skipped(why) => result.skipped = Some(why),
                    Absent::Failed(error) if error.kind() == io::ErrorKind::Interrupted => {
                        result.skipped = Some("interrupted while it started".into());
                    }
                    Absent::Failed(error) => result.invalid = Some(format!("not started: {error}")),
                }
                print_failure(&result);
                return Entrant { peer: None, result };
            }
        };
        result.command.clone_from(&peer.command);
        result.version.clone_from(&peer.version);
        result.processes = peer.nodes;
        result.cluster_mode = peer.cluster_mode;
        result.clients = workload.clients_at(self.setup.scale, self.setup.threads, peer.nodes);
        let nodes = if peer.cluster_mode { peer.nodes } else { 1 };
        let pushers = if workload.measured == Measured::HandOvers { 1 } else { result.clients };
        let pipeline = workload.pipeline_of(result.clients);
        result.in_flight_max = u64::from(pushers) * u64::from(nodes) * u64::from(pipeline);
        result.notes.append(&mut peer.notes);
        let filled = match workload.measured {
            Measured::Resident(what, each) => {
                self.fill_and_measure(&peer, workload, what, each).map(|(keys, footprint)| {
                    say(&format!("{}: {}: {:.1} bytes each", workload.name, spec.name, footprint.each_bytes));
                    result.footprint = Some(footprint);
                    keys
                })
            }
            _ => self.run_steps(&peer, workload, workload.fill),
        };
        (result.resident_loaded_bytes, result.resident_peak_bytes) = peer.resident_bytes();
        match filled {
            Ok(keys) => result.loaded_keys = keys,
            Err(error) => result.invalid = Some(append_death(&mut peer, &format!("loading the keys: {error}"))),
        }
        print_failure(&result);
        peer.pause(true);
        Entrant { peer: Some(peer), result }
    }

    /// Resumes a suspended peer, calls `drive` to measure it, and suspends it again. If `drive`
    /// fails, the peer's row becomes invalid, except after an interruption.
    pub(super) fn turn(
        &self,
        entrant: &mut Entrant,
        when: &str,
        drive: impl FnOnce(&mut Peer, &mut PeerResult) -> io::Result<()>,
    ) {
        let Entrant { peer: Some(peer), result } = entrant else { return };
        if result.invalid.is_some() || check_interrupted(self.stop).is_err() {
            return;
        }
        peer.pause(false);
        let driven = drive(peer, result);
        peer.pause(true);
        match driven {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => {
                result.invalid = Some(append_death(peer, &format!("{when}: {error}")));
                print_failure(result);
            }
            _ => {}
        }
    }

    /// Measures a peer once. Round 0 is the unmeasured warm-up.
    fn measure(&self, peer: &mut Peer, result: &mut PeerResult, workload: &Workload, round: u64) -> io::Result<()> {
        let driven = match workload.measured {
            Measured::Saves => self.save(peer, workload, round)?,
            Measured::Loads => self.restart(peer, workload, round)?,
            _ => {
                let pass = Pass { round, rate_per_s: self.setup.rate.fixed(), amount: self.amount(workload, round) };
                self.drive(peer, workload, &pass, None)?
            }
        };
        result.resident_peak_bytes = result.resident_peak_bytes.max(driven.peak_bytes);
        if round > 0 {
            print_round(&format!("{}: round {round}, {}", workload.name, result.name), &driven.round);
            result.rounds.push(driven.round);
        }
        driven.verdict
    }

    /// Runs the workload's steps before the pass, then the pass, then the steps after it.
    pub(super) fn drive(
        &self,
        peer: &Peer,
        workload: &Workload,
        pass: &Pass,
        tracer: Option<&Tracer>,
    ) -> io::Result<Driven> {
        self.run_steps(peer, workload, workload.before)?;
        let mut plan = self.plan(peer, workload);
        plan.seed = plan.seed.wrapping_add(pass.round.wrapping_mul(u64::from(plan.clients)));
        plan.rate_per_s = pass.rate_per_s;
        plan.amount = pass.amount;
        let mut account = Account::of(peer, tracer);
        let outcome = load::run(&plan, self.stop, &mut account)?;
        check_interrupted(self.stop)?;
        let verdict = match outcome.trouble() {
            Some(trouble) => Err(io::Error::other(trouble)),
            None => {
                let after = self.run_steps(peer, workload, workload.after);
                after.map(|_| ()).map_err(|error| io::Error::new(error.kind(), format!("after it {error}")))
            }
        };
        let round = measured(pass.round, outcome, &account.spent);
        Ok(Driven { round, peak_bytes: account.peak_bytes, counts: account.counts, verdict })
    }

    /// Returns the length of one measurement. Round 0 is the unmeasured warm-up.
    fn amount(&self, workload: &Workload, round: u64) -> Amount {
        let keys = workload.numbers_at(self.setup.scale);
        match workload.measured {
            Measured::EachNumber => Amount::AllKeys,
            Measured::EveryNumbers(numbers) => Amount::Shared(keys.div_ceil(numbers)),
            Measured::Operations(operations) => Amount::Shared(if round == 0 { 1 } else { operations }),
            _ => Amount::Time(if round == 0 { WARM_UP } else { Duration::from_secs(self.setup.seconds) }),
        }
    }

    pub(super) fn plan(&self, peer: &Peer, workload: &Workload) -> Plan {
        let (minimum, keys) = (workload.key_minimum, workload.numbers_at(self.setup.scale));
        let maximum = minimum + keys - 1;
        let clients = workload.clients_at(self.setup.scale, self.setup.threads, peer.nodes);
        let commands = workload.commands.iter().map(|command| {
            // The patterns in the table are valid: a test parses them.
            let pattern = command.pattern.parse().unwrap_or(Pattern::Uniform);
            let name = command.text.split(' ').next().unwrap_or_default();
            CommandPlan::new(name, &expanded(command.text), pattern, command.weight)
        });
        Plan {
            target: Target::Tcp(peer.addresses[0]),
            login: Login::default(),
            threads: workload.threads_of(self.setup.threads),
            clients,
            pipeline: workload.pipeline_of(clients),
            commands: commands.collect(),
            hand_over: workload.measured == Measured::HandOvers,
            prefix: workload.key_prefix.to_owned(),
            range: Range {
                minimum,
                maximum,
                median: minimum as f64 + (maximum - minimum) as f64 / 2.0,
                stddev: ((maximum - minimum) as f64 / 6.0).max(f64::MIN_POSITIVE),
                zipf_exponent: workload.zipf_exponent,
            },
            sizes: Sizes { minimum: workload.data_bytes, maximum: workload.data_bytes },
            random_data: false,
            expiry_seconds: (1, 1),
            amount: Amount::AllKeys,
            rate_per_s: None,
            cluster: peer.cluster_mode,
            distinct_client_seed: true,
            seed: self.seed,
            cpus: self.setup.client_cpus.clone(),
            stall_max: if let Measured::Operations(_) = workload.measured { LONG_STALL_MAX } else { STALL_MAX },
        }
    }

    /// Describes the load in one line.
    fn parameters(&self, workload: &Workload) -> String {
        let (scale, threads) = (self.setup.scale, workload.threads_of(self.setup.threads));
        let scaled = |what: &str, published: u64, used: u64| {
            if published == used {
                format!("{used} {what}")
            } else {
                format!("{used} {what} (scaled: {published} × {scale})")
            }
        };
        let (published, keys) = (workload.numbers, workload.numbers_at(scale));
        if let Measured::Resident(what, each) = workload.measured {
            let fills = workload.fill.iter().filter(|step| !matches!(step, Step::Count(..)));
            let fill: Vec<&str> = fills.map(Step::text).collect();
            return format!("{}; {}, no other load", fill.join(", "), scaled(what, published * each, keys * each));
        }
        let unit = match workload.measured {
            Measured::Saves => Some("a snapshot in the background a round"),
            Measured::Loads => Some("a restart a round"),
            _ => None,
        };
        if let Some(unit) = unit {
            let (bytes, keys) = (workload.data_bytes, scaled("keys", published, keys));
            return format!("{keys}, values of {bytes} bytes, {unit}; an operation is a key");
        }
        let commands: Vec<String> = workload
            .commands
            .iter()
            .map(|command| format!("{} × {} ({})", command.weight, command.text, command.pattern))
            .collect();
        let clients = workload.clients_at(scale, threads, 1);
        let pipeline = workload.pipeline_of(clients);
        let clients = match workload.clients {
            Clients::Connections(all) => scaled("connections", u64::from(all), u64::from(clients)),
            Clients::Servers { .. } => workload.clients.to_string(),
            _ => count_of(clients, "client"),
        };
        let clients = format!("{clients} on {}", count_of(threads, "thread"));
        if workload.measured == Measured::HandOvers {
            return format!("{}; {clients}, {pipeline} elements pushed at once by another", commands.join(", "));
        }
        let numbered = match (workload.measured, workload.needs) {
            (Measured::Operations(_), _) | (_, Needs::OneKey) => "members",
            _ => "keys",
        };
        let texts = workload.fill.iter().map(Step::text).chain(workload.commands.iter().map(|command| command.text));
        let values = if texts.into_iter().any(|text| text.contains(DATA)) {
            format!(", values of {} bytes", workload.data_bytes)
        } else {
            String::new()
        };
        let round = match workload.measured {
            Measured::EachNumber => format!(", {keys} operations a round"),
            Measured::EveryNumbers(numbers) => format!(", {} operations a round", keys.div_ceil(numbers)),
            Measured::Operations(operations) => format!(", {operations} operations a round"),
            _ => String::new(),
        };
        let rate = match self.setup.rate {
            Rate::Unlimited => String::new(),
            Rate::Fixed(rate) => format!(", {rate} operations/s"),
            Rate::Sweep => ", at rates up to the peaks".to_owned(),
        };
        format!(
            "{}; {}{values}, {clients}, pipeline {pipeline}{round}{rate}",
            commands.join(", "),
            scaled(numbered, published, keys),
        )
    }
}

impl Entrant {
    /// Stops the peer and records its peak memory in the result.
    fn leave(self) -> PeerResult {
        let Self { peer, mut result } = self;
        if let Some(mut peer) = peer {
            if result.invalid.is_none()
                && let Some(death) = peer.death()
            {
                result.invalid = Some(death);
            }
            result.resident_peak_bytes = result.resident_peak_bytes.max(peer.resident_bytes().1);
            peer.stop();
        }
        if result.skipped.is_none() && result.invalid.is_none() && !result.is_measured() {
            result.skipped = Some("interrupted".into());
        }
        result.percentiles = curve(&result.rounds);
        result
    }
}

/// Measures the server's CPU time between the first request and the last reply, without the opening
/// and closing of connections. Samples the server's memory during the run, because a child process
/// that writes a snapshot or rewrites the append-only file may end before the run does.
struct Account<'a> {
    peer: &'a Peer,
    before: Usage,
    spent: Spent,
    peak_bytes: u64,
    tracer: Option<&'a Tracer>,
    tracing: Option<io::Result<Tracing>>,
    counts: Option<io::Result<Counts>>,
}

impl<'a> Account<'a> {
    fn of(peer: &'a Peer, tracer: Option<&'a Tracer>) -> Self {
        let (before, spent) = (Usage::default(), Spent::default());
        Self { peer, before, spent, peak_bytes: 0, tracer, tracing: None, counts: None }
    }
}

impl Watch for Account<'_> {
    fn begins(&mut self) {
        self.tracing = self.tracer.map(|tracer| tracer.start(&self.peer.threads()));
        self.before = self.peer.usage();
    }

    fn sample(&mut self, _sample: &Sample, _operations: u64) {
        self.peak_bytes = self.peak_bytes.max(self.peer.resident_bytes().1);
    }

    fn ends(&mut self) {
        self.spent = self.peer.spent_since(&self.before);
        self.counts = self.tracing.take().map(|tracing| tracing.and_then(Tracing::end));
    }
}

pub(super) fn measured(round: u64, load: Outcome, spent: &Spent) -> Round {
    Round {
        round,
        server_cpu_s: spent.cpu_s,
        server_wait_s: spent.wait_s,
        server_busy_max: spent.busiest_s / load.elapsed_s,
        server_wanting_max: spent.wanting_s / load.elapsed_s,
        server_cpu_us_per_operation: spent.cpu_s * 1e6 / load.operations.max(1) as f64,
        server_voluntary_switches: spent.voluntary,
        server_involuntary_switches: spent.involuntary,
        server_written_bytes: spent.written_bytes,
        payload_bytes: load.sent_bytes,
        copy_s: None,
        hit_rate: load.hit_rate(),
        load,
    }
}

/// Formats a count, such as `1 thread` and `2 threads`.
fn count_of(count: u32, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// Returns the latency curve of all rounds together. Each element is a quantile and its latency in
/// microseconds.
fn curve(rounds: &[Round]) -> Vec<(f64, f64)> {
    let mut sum = crate::load::tally::histogram();
    // All histograms have the same bounds, so no value is out of range.
    rounds.iter().for_each(|round| sum += &round.load.latency_ns);
    let steps = sum.iter_quantiles(CURVE_TICKS_PER_HALF);
    steps.map(|step| (step.quantile_iterated_to(), step.value_iterated_to() as f64 / 1e3)).collect()
}

/// Compares p99 with the workload's latency limit. If the peer kept the limit, adds a note. If the
/// peer exceeded the limit, records the limit.
fn check_latency(workload: &Workload, peer: &mut PeerResult) {
    let (Some(max_us), Some(summary)) = (workload.latency_max_us, &peer.summary) else { return };
    if summary.p99_us <= max_us {
        peer.notes.push(format!("kept the latency limit of the workload: p99 is at most {max_us:.0} us"));
    } else {
        peer.latency_missed_us = Some(max_us);
    }
}

/// Adds a note to a peer that did not reach the requested rate.
fn check_rate(rate_per_s: Option<u64>, peer: &mut PeerResult) {
    let (Some(rate_per_s), Some(summary)) = (rate_per_s, &peer.summary) else { return };
    if !keeps_rate(rate_per_s, summary.operations_per_s.min) {
        peer.notes.push(format!(
            "didn't reach the rate of {rate_per_s} operations/s in every round, so its latencies are those of a growing queue"
        ));
    }
}

/// Returns whether a peer that served `operations_per_s` reached at least the share [`RATE_KEPT`]
/// of the requested rate.
pub(super) fn keeps_rate(rate_per_s: u64, operations_per_s: f64) -> bool {
    operations_per_s >= rate_per_s as f64 * RATE_KEPT
}

/// Returns `trouble`. If a process of the peer has ended, appends how it ended.
fn append_death(peer: &mut Peer, trouble: &str) -> String {
    // The connections of a killed process close shortly before the kernel reports the end of the
    // process.
    std::thread::sleep(Duration::from_millis(100));
    match peer.death() {
        Some(death) => format!("{trouble}; {death}"),
        None => trouble.to_owned(),
    }
}

fn print_failure(result: &PeerResult) {
    if let Some(why) = result.invalid.as_ref().or(result.skipped.as_ref()) {
        say(&format!("  {}: {why}", result.name));
    }
}

/// Prints the result of a round. `what` names the workload, the round and the peer.
pub(super) fn print_round(what: &str, round: &Round) {
    say(&format!(
        "{what}: {} ops/s, {:.2} us of CPU per operation, p99 {:.0} us",
        rate(round.load.operations_per_s),
        round.server_cpu_us_per_operation,
        round.load.latency.p99_us
    ));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latency_limits_are_compared_with_p99() {
        use super::super::results::tests::{peer, round, workload};
        let mut result =
            workload(vec![peer("a", vec![round(1, 1.0, 1.0, 999.0)]), peer("b", vec![round(1, 1.0, 1.0, 1_001.0)])]);
        result.summarize();
        let enterprise = Workload::named("enterprise").unwrap();
        result.peers.iter_mut().for_each(|peer| check_latency(enterprise, peer));
        assert!(result.peers[0].notes[0].starts_with("kept the latency"), "{result:#?}");
        assert_eq!((result.peers[0].latency_missed_us, result.peers[1].latency_missed_us), (None, Some(1_000.0)));
        result.peers[1].latency_missed_us = None;
        check_latency(Workload::named("flash").unwrap(), &mut result.peers[1]);
        assert_eq!((result.peers[1].latency_missed_us, result.peers[1].notes.len()), (None, 0));
    }

    #[test]
    fn memory_of_a_child_that_ended_is_part_of_the_peak() {
        const CHILD_BYTES: u64 = 40_000_000;
        let _alone = super::super::process::ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let dir = tempfile::tempdir().unwrap();
        // `tail` keeps all bytes in memory until its input ends.
        let script =
            format!("(head -c {CHILD_BYTES} /dev/zero; sleep 5) | tail -c {CHILD_BYTES} > tail; exec sleep 600");
        let peer = Peer::of_shell(&script, dir.path());
        let mut account = Account::of(&peer, None);
        let sample = Sample { at_s: 0.0, operations_per_s: 0.0, p99_us: 0.0 };
        let begin = std::time::Instant::now();
        // Sample until the child has ended.
        while account.peak_bytes < CHILD_BYTES || peer.resident_bytes().1 >= CHILD_BYTES {
            assert!(begin.elapsed() < Duration::from_secs(60), "{} bytes were seen", account.peak_bytes);
            account.sample(&sample, 0);
            std::thread::sleep(Duration::from_millis(10));
        }
        account.sample(&sample, 0);
        assert!(account.peak_bytes >= CHILD_BYTES, "forgotten: {} bytes", account.peak_bytes);
        peer.stop();
    }

    #[test]
    fn a_missed_rate_is_reported() {
        use super::super::results::tests::{peer, round, workload};
        let rounds = vec![round(1, 1_000.0, 1.0, 1.0), round(2, 960.0, 1.0, 1.0)];
        let mut result = workload(vec![peer("a", rounds)]);
        result.summarize();
        let notes_at = |rate_per_s| {
            let mut peer = PeerResult { summary: result.peers[0].summary.clone(), ..PeerResult::default() };
            check_rate(rate_per_s, &mut peer);
            peer.notes.join("")
        };
        assert_eq!((notes_at(None), notes_at(Some(980))), (String::new(), String::new()));
        assert!(notes_at(Some(1_000)).contains("didn't reach the rate of 1000"));
    }
}
