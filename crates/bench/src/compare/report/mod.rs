//! The report: a folder with `report.html`, `report.md` and `results.json`.

mod html;
mod markdown;
mod plots;

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use super::results::{PeerResult, Results, Spread, Summary, WorkloadResult};

/// Headings of a table's columns, and what a summary has in them.
type Column = (&'static str, fn(&PeerResult, &Summary) -> String);

/// A table has these behind the peer's name.
const COLUMNS: &[Column] = &[
    ("ops/s", |_, s| thousands(s.operations_per_s.median)),
    ("min–max", |_, s| format!("{}–{}", thousands(s.operations_per_s.min), thousands(s.operations_per_s.max))),
    ("CPU µs/op", |_, s| format!("{:.2}", s.cpu_us_per_operation.median)),
    ("p50 µs", |_, s| microseconds(s.p50_us)),
    ("p99 µs", |_, s| microseconds(s.p99_us)),
    ("p99.9 µs", |_, s| microseconds(s.p99_9_us)),
    ("max µs", |_, s| microseconds(s.max_us)),
    ("MB loaded", |peer, _| megabytes(peer.resident_loaded_bytes)),
    ("MB peak", |peer, _| megabytes(peer.resident_peak_bytes)),
    ("hits", |_, s| s.hit_rate.map_or_else(|| "–".into(), |rate| format!("{:.1}%", rate * 100.0))),
    ("× ops/s", |_, s| s.ratios.map_or_else(|| "–".into(), |r| spread(&r.operations_per_s))),
    ("× CPU/op", |_, s| s.ratios.map_or_else(|| "–".into(), |r| spread(&r.cpu_us_per_operation))),
    ("× p99", |_, s| s.ratios.map_or_else(|| "–".into(), |r| spread(&r.p99_us))),
];

/// What the figures mean, below every report.
const READING: &[&str] = &[
    "Rows are medians over the rounds; max is of all rounds. The ratios (×) are to the first peer that takes part, each within a round: median (least–greatest).",
    "CPU is user and system time of all threads of all processes of a peer, and of what these started, between the first request and the last answer.",
    "MB are resident memory, summed over a peer's processes (pages that these share count once in each): with the keys loaded before the first round, and at each process's peak.",
    "Clients and servers share this host and talk over loopback: no network is measured, and where they share CPUs, throughput depends on the generator's cost too.",
    "A row with errors, lost connections or a process that ended has no figures.",
];

/// Makes the folder, and sees that it can be written.
pub(super) fn prepare(out: &Path) -> io::Result<()> {
    fs::create_dir_all(out).map_err(|error| told(out, &error))?;
    put(&out.join("results.json"), b"{}\n")
}

/// Writes all files.
pub(super) fn write(results: &Results, out: &Path) -> io::Result<()> {
    let json = serde_json::to_vec_pretty(results)?;
    put(&out.join("results.json"), &json)?;
    put(&out.join("report.md"), markdown::report(results).as_bytes())?;
    put(&out.join("report.html"), html::report(results)?.as_bytes())
}

fn put(path: &Path, bytes: &[u8]) -> io::Result<()> {
    fs::write(path, bytes).map_err(|error| told(path, &error))
}

fn told(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("the report can't be written: {}: {error}", path.display()))
}

/// One workload's table, for a terminal.
pub(super) fn print(result: &WorkloadResult, out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "\n{}: {}", result.name, result.parameters)?;
    let mut rows =
        vec![std::iter::once("peer").chain(COLUMNS.iter().map(|column| column.0)).map(str::to_owned).collect()];
    let mut told = Vec::new();
    for peer in &result.peers {
        rows.extend(cells(peer));
        told.extend(remarks(peer));
    }
    let count = rows[0].len();
    let widths: Vec<usize> =
        (0..count).map(|at| rows.iter().map(|row: &Vec<String>| row[at].chars().count()).max().unwrap_or(0)).collect();
    for row in &rows {
        let cells = row.iter().zip(&widths).enumerate();
        let cells = cells
            .map(|(at, (cell, width))| if at == 0 { format!("{cell:<width$}") } else { format!("{cell:>width$}") });
        writeln!(out, "{}", cells.collect::<Vec<_>>().join("  "))?;
    }
    for remark in told {
        writeln!(out, "  {remark}")?;
    }
    out.flush()
}

/// A peer's row; none without figures.
fn cells(peer: &PeerResult) -> Option<Vec<String>> {
    let summary = peer.summary.as_ref()?;
    let cells = COLUMNS.iter().map(|column| column.1(peer, summary));
    Some(std::iter::once(peer.name.clone()).chain(cells).collect())
}

/// What has to be known beside a peer's figures, or instead of them.
fn remarks(peer: &PeerResult) -> Vec<String> {
    let mut remarks = Vec::new();
    if let Some(why) = &peer.invalid {
        remarks.push(format!("{}: INVALID: {why}", peer.name));
    } else if let Some(why) = &peer.skipped {
        remarks.push(format!("{}: not measured: {why}", peer.name));
    }
    remarks.extend(peer.notes.iter().map(|note| format!("{}: {note}", peer.name)));
    if let Some(summary) = &peer.summary {
        if summary.generator_limited > 0 {
            remarks.push(format!(
                "{}: in {} of {} rounds the load generator was the limit: its busiest thread had no time left, the server's had. The throughput is a lower bound",
                peer.name,
                summary.generator_limited,
                peer.rounds.len()
            ));
        }
        if summary.server_starved >= 0.1 {
            remarks.push(format!(
                "{}: its threads had no CPU {:.0}% of the time that they wanted one: others of its own, clients or other programs had it",
                peer.name,
                summary.server_starved * 100.0
            ));
        }
    }
    remarks
}

/// `12,345`
fn thousands(number: f64) -> String {
    let digits = format!("{number:.0}");
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn microseconds(number: f64) -> String {
    if number < 100.0 { format!("{number:.1}") } else { thousands(number) }
}

fn megabytes(bytes: u64) -> String {
    format!("{:.0}", bytes as f64 / 1e6)
}

/// `0.45 (0.41–0.50)`
fn spread(spread: &Spread) -> String {
    format!("{:.2} ({:.2}–{:.2})", spread.median, spread.min, spread.max)
}

/// The host in words and figures.
fn host_lines(results: &Results) -> Vec<(&'static str, String)> {
    let host = &results.host;
    let cpus =
        |list: &[usize]| if list.is_empty() { "any".to_owned() } else { crate::cpus::List(list.to_vec()).to_string() };
    vec![
        ("CPU", format!("{} × {}", host.cpus, host.cpu)),
        ("memory", format!("{} MB", thousands(host.memory_bytes as f64 / 1e6))),
        ("kernel", host.kernel.clone()),
        ("scheduling", host.scheduling.clone()),
        ("servers on CPUs", cpus(&results.server_cpus)),
        ("generator", format!("{} threads on CPUs {}", results.client_threads, cpus(&results.client_cpus))),
        ("began", host.began.clone()),
        ("load of the host", format!("{} before, {} after", host.load_before, host.load_after)),
        ("tool", host.tool.clone()),
        ("rounds", format!("{} of {} s each", results.rounds, results.seconds)),
        ("command", results.command.join(" ")),
    ]
}

/// Every command that ran: workload, peer, version, processes, command.
fn commands(results: &Results) -> impl Iterator<Item = [String; 5]> {
    results.workloads.iter().flat_map(|workload| {
        workload.peers.iter().filter(|peer| !peer.command.is_empty()).map(|peer| {
            let quoted = peer.command.iter().map(|word| if word.is_empty() { "\"\"".to_owned() } else { word.clone() });
            [
                workload.name.clone(),
                peer.name.clone(),
                peer.version.clone(),
                peer.processes.to_string(),
                quoted.collect::<Vec<_>>().join(" "),
            ]
        })
    })
}

#[cfg(test)]
mod tests {
    use super::super::results::tests::{peer, round, workload};
    use super::*;

    fn results() -> Results {
        let mut failed = peer("broken <b>", Vec::new());
        failed.invalid = Some("a process ended".into());
        let mut first = peer("a|b", vec![round(1, 1_234_567.0, 2.0, 10.0)]);
        first.percentiles = vec![(0.0, 1.0), (0.5, 2.0), (0.99, 30.0), (1.0, 31.0)];
        first.command = vec!["server".into(), "--save".into(), String::new()];
        let mut workload = workload(vec![first, peer("second", vec![round(1, 10.0, 1.0, 5.0)]), failed]);
        workload.summarize();
        let mut host = super::super::host::look();
        host.load_after = "1.5".into();
        Results {
            host,
            command: vec!["pantala-bench".into(), "compare".into()],
            server_cpus: vec![0, 1],
            client_cpus: Vec::new(),
            client_threads: 2,
            seconds: 5,
            rounds: 1,
            workloads: vec![workload],
            interrupted: true,
        }
    }

    #[test]
    fn numbers_are_readable() {
        assert_eq!([0.0, 999.4, 1000.0, 1_234_567.0].map(thousands), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!([9.99, 100.0, 12_345.6].map(microseconds), ["10.0", "100", "12,346"]);
    }

    #[test]
    fn every_file_tells_every_peer() {
        let results = results();
        let out = tempfile::tempdir().unwrap();
        let folder = out.path().join("a/b");
        prepare(&folder).unwrap();
        write(&results, &folder).unwrap();
        let text = |name: &str| fs::read_to_string(folder.join(name)).unwrap();
        let html = text("report.html");
        for told in [
            "<svg",
            "a|b",
            "broken &lt;b&gt;",
            "a process ended",
            "1,234,567",
            "interrupted",
            "server --save &quot;&quot;",
        ] {
            assert!(html.contains(told), "{told}");
        }
        // Self-contained: nothing is fetched. The name of SVG's namespace is no address.
        assert!(!html.replace("http://www.w3.org/2000/svg", "").contains("http"), "something outside is named");
        let markdown = text("report.md");
        assert!(markdown.contains("a\\|b") && markdown.contains("INVALID: a process ended"), "{markdown}");
        let json: serde_json::Value = serde_json::from_str(&text("results.json")).unwrap();
        assert_eq!(json["workloads"][0]["peers"][1]["summary"]["ratios"]["p99_us"]["median"], 0.5);
        let mut table = Vec::new();
        print(&results.workloads[0], &mut table).unwrap();
        let table = String::from_utf8(table).unwrap();
        assert!(table.contains("INVALID") && table.contains("1,234,567"), "{table}");
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_told() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = prepare(&file.path().join("x")).unwrap_err();
        assert!(error.to_string().contains("can't be written"), "{error}");
        // No room on disk.
        let error = put(Path::new("/dev/full"), b"x").unwrap_err();
        assert!(error.to_string().contains("/dev/full"), "{error}");
    }
}
