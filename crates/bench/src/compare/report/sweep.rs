//! Writes the table, remarks and plots of a sweep (measurements at fixed rates).

use std::io;

use super::super::results::{PeerResult, Spread, WorkloadResult};
use super::super::sweep::{Point, PointRatios, PointSummary, per_operation};
use super::plots::{self, Line, Scale};
use super::{Table, microseconds, rate, spread};

/// A column: its heading, and the function that formats the cell of a peer at a rate.
type Column = (&'static str, fn(&Point, &PointSummary) -> String);

/// The columns after the rate and the peer.
const COLUMNS: &[Column] = &[
    ("ops/s", |_, s| rate(s.operations_per_s.median)),
    ("CPU µs/op", |_, s| format!("{:.2}", s.cpu_us_per_operation.median)),
    ("p50 µs", |_, s| microseconds(s.p50_us)),
    ("p99 µs", |_, s| microseconds(s.p99_us)),
    ("p99.9 µs", |_, s| microseconds(s.p99_9_us)),
    ("max µs", |_, s| microseconds(s.max_us)),
    ("vol. sw./op", |_, s| format!("{:.3}", s.voluntary_switches)),
    ("invol. sw./op", |_, s| format!("{:.3}", s.involuntary_switches)),
    ("sys. calls/op", |point, _| counted(point, |counts| counts.system_calls)),
    ("wake-ups/op", |point, _| counted(point, |counts| counts.wake_ups)),
];

/// A column of ratios: its heading, and the function that selects a ratio's spread.
type RatioColumn = (&'static str, fn(&PointRatios) -> &Spread);

/// The columns of ratios. The table has these columns once for each peer in `against`.
const RATIO_COLUMNS: &[RatioColumn] = &[
    ("CPU/op", |ratios| &ratios.cpu_us_per_operation),
    ("p99", |ratios| &ratios.p99_us),
    ("p99.9", |ratios| &ratios.p99_9_us),
];

/// Formats the number of events per operation, if events were counted.
fn counted(point: &Point, of: fn(&super::super::trace::Counts) -> u64) -> String {
    point
        .counts
        .map_or_else(|| "not counted".into(), |counts| format!("{:.2}", per_operation(of(&counts), counts.operations)))
}

/// Returns whether the workload has a sweep.
pub(super) fn is_swept(workload: &WorkloadResult) -> bool {
    workload.peers.iter().any(|peer| !peer.sweep.is_empty())
}

/// Returns the points of all peers, ordered by rate.
fn points(workload: &WorkloadResult) -> impl Iterator<Item = (&PeerResult, &Point, &PointSummary)> {
    let rates = workload.peers.iter().map(|peer| peer.sweep.len()).max().unwrap_or(0);
    (0..rates).flat_map(|at| {
        workload.peers.iter().filter_map(move |peer| {
            let point = peer.sweep.get(at)?;
            Some((peer, point, point.summary.as_ref()?))
        })
    })
}

/// Returns the table, which has a row for each peer at each rate.
pub(super) fn table(workload: &WorkloadResult) -> Table {
    let mut head: Vec<String> = ["rate", "peer"].map(str::to_owned).to_vec();
    head.extend(COLUMNS.iter().map(|column| column.0.to_owned()));
    for against in &workload.against {
        head.extend(RATIO_COLUMNS.iter().map(|column| format!("× {} of {against}", column.0)));
    }
    let rows = points(workload).map(|(peer, point, summary)| {
        let mut row = vec![format!("{}: {}", point.name(), rate(point.rate_per_s as f64)), peer.name.clone()];
        row.extend(COLUMNS.iter().map(|column| column.1(point, summary)));
        for against in &workload.against {
            let ratios = summary.ratios.iter().find(|ratios| ratios.against == *against);
            let cell = |of: fn(&PointRatios) -> &Spread| ratios.map_or_else(|| "–".into(), |ratios| spread(of(ratios)));
            row.extend(RATIO_COLUMNS.iter().map(|column| cell(column.1)));
        }
        row
    });
    Table { head, rows: rows.collect() }
}

/// Returns remarks on the sweep: the peaks, the missed rates, and the reason why events were not
/// counted.
pub(super) fn remarks(workload: &WorkloadResult) -> Vec<String> {
    if !is_swept(workload) {
        return Vec::new();
    }
    let peak = |peer: &PeerResult| {
        let s = &peer.summary.as_ref()?.operations_per_s;
        Some(format!("{} {} ({}–{})", peer.name, rate(s.median), rate(s.min), rate(s.max)))
    };
    let peaks: Vec<String> = workload.peers.iter().filter_map(peak).collect();
    let mut remarks = vec![format!("peak throughput without a fixed rate, operations/s: {}", peaks.join(", "))];
    for peer in &workload.peers {
        let missed: Vec<String> = peer.sweep.iter().filter(|point| point.is_missed()).map(Point::name).collect();
        if !missed.is_empty() {
            remarks.push(format!(
                "{}: didn't reach the rate in every round at {}, so its latencies there are those of a growing queue",
                peer.name,
                missed.join(", ")
            ));
        }
    }
    remarks.extend(workload.uncounted.iter().map(|why| format!("system calls and wake-ups aren't counted: {why}")));
    remarks
}

/// Plots CPU time and latencies over the rate.
pub(super) fn plots(workload: &WorkloadResult) -> io::Result<Vec<String>> {
    type Metric = fn(&PointSummary) -> f64;
    const METRICS: [(&str, Scale, Metric); 4] = [
        ("CPU of the server over operations/s, µs per operation", Scale::Linear, |s| s.cpu_us_per_operation.median),
        ("p50 latency over operations/s, µs", Scale::Logarithmic, |s| s.p50_us),
        ("p99 latency over operations/s, µs", Scale::Logarithmic, |s| s.p99_us),
        ("p99.9 latency over operations/s, µs", Scale::Logarithmic, |s| s.p99_9_us),
    ];
    let line = |(at, peer): (usize, &PeerResult), metric: Metric| {
        let summaries = peer.sweep.iter().filter_map(|point| point.summary.as_ref());
        let points = summaries.map(|summary| (summary.operations_per_s.median, metric(summary))).collect();
        Line { peer: at, name: peer.name.clone(), points }
    };
    if points(workload).next().is_none() {
        return Ok(Vec::new());
    }
    METRICS
        .into_iter()
        .map(|(title, scale, metric)| {
            let lines = workload.peers.iter().enumerate().map(|peer| line(peer, metric));
            plots::over_rate(title, scale, &lines.filter(|line| !line.points.is_empty()).collect::<Vec<_>>())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::super::results::tests::workload;
    use super::super::super::sweep::tests::swept;
    use super::super::super::trace::Counts;
    use super::*;

    fn result() -> WorkloadResult {
        let mut first = swept("a", 1_000.0, 1_000.0, &[2.0]);
        first.sweep[0].counts = Some(Counts { system_calls: 300, wake_ups: 50, operations: 100 });
        let mut second = swept("b", 1_000.0, 2_000.0, &[3.0]);
        second.sweep[7].rounds[0].load.operations_per_s = 1_500.0;
        let mut workload = workload(vec![first, second]);
        workload.against = vec!["a".into()];
        workload.uncounted = Some("perf is not installed".into());
        workload.summarize();
        workload
    }

    #[test]
    fn there_is_a_row_for_each_peer_at_each_rate() {
        let table = table(&result());
        let rows: Vec<String> = table.rows.iter().map(|row| row.join("; ")).collect();
        assert_eq!(rows.len(), 16);
        assert_eq!(rows[0], "5%: 50; a; 50; 2.00; 0.0; 20.0; 40.0; 0.0; 1.500; 0.250; 3.00; 0.50; –; –; –");
        assert!(rows[1].starts_with("5%: 50; b; 50; 3.00;"), "{}", rows[1]);
        assert!(rows[1].contains("not counted; not counted; 1.50 (1.50–1.50); 1.50 (1.50–1.50)"), "{}", rows[1]);
        assert!(rows[15].starts_with("own peak: 2,000; b; 1,500;"), "{}", rows[15]);
        assert_eq!((table.head.len(), table.head[12].as_str()), (15, "× CPU/op of a"));
    }

    #[test]
    fn missed_rates_and_missing_counts_are_reported() {
        let remarks = remarks(&result());
        assert_eq!(
            remarks[0],
            "peak throughput without a fixed rate, operations/s: a 1,000 (1,000–1,000), b 2,000 (2,000–2,000)"
        );
        assert!(remarks[1].starts_with("b: didn't reach the rate in every round at own peak"), "{}", remarks[1]);
        assert_eq!(remarks[2], "system calls and wake-ups aren't counted: perf is not installed");
    }

    #[test]
    fn cpu_and_latency_are_plotted_over_the_rate() {
        let plots = plots(&result()).unwrap();
        assert_eq!(plots.len(), 4);
        for (plot, title) in plots.iter().zip(["CPU of the server", "p50", "p99 ", "p99.9"]) {
            assert!(plot.contains(title) && plot.matches("<polyline").count() >= 2, "{plot}");
        }
        let mut none = result();
        none.peers.iter_mut().for_each(|peer| peer.invalid = Some("errors".into()));
        none.summarize();
        assert!(super::plots(&none).unwrap().is_empty());
    }
}
