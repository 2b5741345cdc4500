//! Writes the report: a folder with `report.html`, `report.md` and `results.json`.

mod html;
mod markdown;
mod plots;
mod sweep;

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use super::results::{PeerResult, PresetReport, Ratios, Results, Spread, Summary, WorkloadResult};

/// A column: its heading, and the function that formats a peer's cell.
type Column = (&'static str, fn(&PeerResult, &Summary) -> String);
/// A column of ratios: its heading, and the function that selects a ratio's spread.
type RatioColumn = (&'static str, fn(&Ratios) -> &Spread);

/// The columns of the first table after the peer's name.
const COLUMNS: &[Column] = &[
    ("ops/s", |_, s| rate(s.operations_per_s.median)),
    ("min–max", |_, s| format!("{}–{}", rate(s.operations_per_s.min), rate(s.operations_per_s.max))),
    ("CPU µs/op", |_, s| format!("{:.2}", s.cpu_us_per_operation.median)),
    ("p50 µs", |_, s| microseconds(s.p50_us)),
    ("p99 µs", p99),
    ("p99.9 µs", |_, s| microseconds(s.p99_9_us)),
    ("max µs", |_, s| microseconds(s.max_us)),
    ("in flight", |peer, _| thousands(peer.in_flight_max as f64)),
    ("MB loaded", |peer, _| megabytes(peer.resident_loaded_bytes)),
    ("MB peak", |peer, _| megabytes(peer.resident_peak_bytes)),
    ("hits", |_, s| s.hit_rate.map_or_else(|| "–".into(), |rate| format!("{:.1}%", rate * 100.0))),
    ("gen µs/op", |_, s| format!("{:.2}", s.generator_us_per_operation)),
    ("gen busy", |_, s| format!("{:.0}%", s.generator_wanting * 100.0)),
];

/// The columns of the second table after the names of the two peers.
const RATIO_COLUMNS: &[RatioColumn] = &[
    ("× ops/s", |ratios| &ratios.operations_per_s),
    ("× CPU/op", |ratios| &ratios.cpu_us_per_operation),
    ("× p99", |ratios| &ratios.p99_us),
];

/// The columns of the table for workloads that write files, after the peer's name.
const DISK_COLUMNS: &[&str] = &["bytes/op", "amplification", "time of a copy"];

/// Marks the row of a peer that exceeds the workload's latency limit.
const MISSED: &str = "MISSED";
/// Marks the remark on a peer whose results are invalid.
const INVALID: &str = "INVALID";

/// Explanation of the tables, which follows the tables in every report.
const READING: &[&str] = &[
    "A row shows medians over the rounds, except max, which is the maximum of all rounds. The ratios (×) of two peers are taken within each round, and shown as median (minimum–maximum).",
    "In flight is the maximum number of pending operations: clients × nodes that each is connected to × pipeline. More operations in flight make longer queues. If rows differ in it, compare their latencies only at a fixed rate (--rate-limiting).",
    "gen is the load generator: its CPU time per operation, and the part of the time during which its busiest thread was on a CPU or waited for one. If servers and generator share CPUs, the CPUs limit both.",
    "CPU is user and system time of all threads of all processes of a peer and of their children, between the first request and the last reply.",
    "MB are resident memory, summed over a peer's processes (shared pages count once in each): with the keys loaded before the first round, and at each process's peak.",
    "Bytes of memory-… workloads are resident memory two seconds after the filling, less that after 25,000 requests like the filling's that were rejected (before), divided by the number of collections, members or entries.",
    "disk: bytes that the servers wrote to disks, page cache included, per operation, and per byte that clients sent (for snapshots: of the file); and the time in which a copy of the snapshot was written and synced, as a part of the snapshot's own.",
    "Clients and servers share this host and use loopback: no network is measured, and if they share CPUs, throughput depends on the generator's cost too.",
    "A sweep's rates are parts of the slowest peer's peak, and each peer's own. Latencies count from the time when an operation was due. Context switches (voluntary: a thread waited; involuntary: it lost its CPU), system calls, and wake-ups are those of the server's threads, per operation; the last two are counted in loads of their own, because counting takes CPU time.",
    "A row with errors, lost connections or a process that ended has no figures.",
];

/// Creates the folder, and checks that files can be written to it.
pub(super) fn prepare(out: &Path) -> io::Result<()> {
    fs::create_dir_all(out).map_err(|error| describe_error(out, &error))?;
    put(&out.join("results.json"), b"{}\n")
}

/// Writes all files of the report.
pub(super) fn write(results: &Results, out: &Path) -> io::Result<()> {
    let json = serde_json::to_vec_pretty(results)?;
    put(&out.join("results.json"), &json)?;
    put(&out.join("report.md"), markdown::report(results).as_bytes())?;
    put(&out.join("report.html"), html::report(results)?.as_bytes())
}

fn put(path: &Path, bytes: &[u8]) -> io::Result<()> {
    fs::write(path, bytes).map_err(|error| describe_error(path, &error))
}

fn describe_error(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("the report can't be written: {}: {error}", path.display()))
}

/// Prints the tables of one workload to a terminal.
pub(super) fn print(result: &WorkloadResult, out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "\n{}: {}", result.name, result.parameters)?;
    for Table { head, rows } in tables(result) {
        let rows: Vec<Vec<String>> = std::iter::once(head).chain(rows).collect();
        let width = |at: usize| rows.iter().map(|row| row[at].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..rows[0].len()).map(width).collect();
        for row in &rows {
            let cells = row.iter().zip(&widths).enumerate();
            let cells = cells
                .map(|(at, (cell, width))| if at == 0 { format!("{cell:<width$}") } else { format!("{cell:>width$}") });
            writeln!(out, "{}", cells.collect::<Vec<_>>().join("  "))?;
        }
    }
    for remark in remarks(result) {
        writeln!(out, "  {remark}")?;
    }
    out.flush()
}

/// A table: column names, and rows with a cell for each column. The first column contains text.
struct Table {
    head: Vec<String>,
    rows: Vec<Vec<String>>,
}

/// Returns a workload's tables. The first has the measured peers, the second their ratios, and the
/// third the written bytes. The second is left out if there are no ratios, and the third if the
/// rounds write no files. Sweeps and workloads that measure memory have other tables.
fn tables(workload: &WorkloadResult) -> Vec<Table> {
    if workload.peers.iter().any(|peer| peer.footprint.is_some()) {
        return footprints(workload);
    }
    if sweep::is_swept(workload) {
        return vec![sweep::table(workload)];
    }
    let measured = || workload.peers.iter().filter_map(|peer| Some((peer, peer.summary.as_ref()?)));
    let rows = measured().map(|(peer, summary)| {
        std::iter::once(peer.name.clone()).chain(COLUMNS.iter().map(|column| column.1(peer, summary))).collect()
    });
    let mut ratios = Vec::new();
    for against in &workload.against {
        for (peer, summary) in measured() {
            ratios.extend(summary.ratios.iter().filter(|ratios| ratios.against == *against).map(|ratios| {
                let cells = RATIO_COLUMNS.iter().map(|column| spread(column.1(ratios)));
                std::iter::once(format!("{} / {against}", peer.name)).chain(cells).collect()
            }));
        }
    }
    let head = |first: &str, others: Vec<&str>| {
        std::iter::once(first).chain(others).map(str::to_owned).collect::<Vec<String>>()
    };
    let mut tables =
        vec![Table { head: head("peer", COLUMNS.iter().map(|column| column.0).collect()), rows: rows.collect() }];
    if !ratios.is_empty() {
        let columns = RATIO_COLUMNS.iter().map(|column| column.0).collect();
        tables.push(Table { head: head("ratio", columns), rows: ratios });
    }
    if workload.writes_files {
        let rows = measured().map(|(peer, summary)| {
            let amplification = spread(&summary.write_amplification);
            let copy = summary.copy_part.as_ref().map_or_else(|| "–".into(), spread);
            vec![peer.name.clone(), thousands(summary.disk_bytes_per_operation), amplification, copy]
        });
        tables.push(Table { head: head("disk", DISK_COLUMNS.to_vec()), rows: rows.collect() });
    }
    tables
}

/// Returns the tables of a workload that measures memory.
fn footprints(workload: &WorkloadResult) -> Vec<Table> {
    let measured_footprint = || workload.peers.iter().filter_map(|peer| Some((peer, peer.measured_footprint()?)));
    let rows = measured_footprint().map(|(peer, footprint)| {
        vec![
            peer.name.clone(),
            format!("{:.1}", footprint.each_bytes),
            format!("{} {}", thousands(footprint.count as f64), footprint.what),
            megabytes(footprint.before_bytes),
            megabytes(peer.resident_loaded_bytes),
            megabytes(peer.resident_peak_bytes),
        ]
    });
    let head = ["peer", "bytes each", "of", "MB before", "MB loaded", "MB peak"].map(str::to_owned);
    let mut tables = vec![Table { head: head.to_vec(), rows: rows.collect() }];
    let mut ratios = Vec::new();
    for against in &workload.against {
        for (peer, footprint) in measured_footprint() {
            let of_it = footprint.ratios.iter().filter(|ratio| ratio.against == *against);
            ratios.extend(
                of_it.map(|ratio| vec![format!("{} / {against}", peer.name), format!("{:.3}", ratio.each_bytes)]),
            );
        }
    }
    if !ratios.is_empty() {
        tables.push(Table { head: ["ratio", "× bytes"].map(str::to_owned).to_vec(), rows: ratios });
    }
    tables
}

/// Formats p99, and marks it if it exceeds the workload's latency limit.
fn p99(peer: &PeerResult, summary: &Summary) -> String {
    let time = microseconds(summary.p99_us);
    match peer.latency_missed_us {
        Some(limit_us) => format!("{time} {MISSED} (limit {})", thousands(limit_us)),
        None => time,
    }
}

/// Returns whether a cell or remark marks its row as invalid or as too slow.
fn is_bad(text: &str) -> bool {
    text.contains(MISSED) || text.contains(INVALID)
}

/// Returns the remarks on a workload's tables.
fn remarks(workload: &WorkloadResult) -> Vec<String> {
    let figureless = |name: &&String| workload.peers.iter().any(|peer| peer.name == **name && !peer.is_measured());
    let no_ratios = workload.against.iter().filter(figureless);
    let no_ratios = no_ratios.map(|name| format!("no ratios to {name}: it has no figures here"));
    sweep::remarks(workload).into_iter().chain(workload.peers.iter().flat_map(peer_remarks)).chain(no_ratios).collect()
}

/// Returns the remarks on a peer's results, or the reason why the peer has no results.
fn peer_remarks(peer: &PeerResult) -> Vec<String> {
    let mut remarks = Vec::new();
    if let Some(why) = &peer.invalid {
        remarks.push(format!("{}: {INVALID}: {why}", peer.name));
    } else if let Some(why) = &peer.skipped {
        remarks.push(format!("{}: not measured: {why}", peer.name));
    }
    if let Some(limit_us) = peer.latency_missed_us {
        remarks.push(format!(
            "{}: {MISSED} its latency limit: the workload requires a p99 of at most {} µs, so its throughput doesn't count; `--rate-limiting N` measures at a lower rate, which may keep the limit",
            peer.name,
            thousands(limit_us)
        ));
    }
    remarks.extend(peer.notes.iter().map(|note| format!("{}: {note}", peer.name)));
    if let Some(summary) = &peer.summary {
        if summary.generator_limited > 0 {
            remarks.push(format!(
                "{}: in {} of {} rounds the load generator was the limit: its busiest thread was always on a CPU or waiting for one, and no thread of the server was. The throughput is a lower bound",
                peer.name,
                summary.generator_limited,
                peer.rounds.len()
            ));
        }
        if summary.both_limited > 0 {
            remarks.push(format!(
                "{}: in {} of {} rounds generator and server both were always busy. If they share CPUs, their costs together limit the throughput ({:.2} + {:.2} µs per operation)",
                peer.name,
                summary.both_limited,
                peer.rounds.len(),
                summary.cpu_us_per_operation.median,
                summary.generator_us_per_operation
            ));
        }
        if summary.server_starved >= 0.1 {
            remarks.push(format!(
                "{}: its threads had to wait for a CPU {:.0}% of the time that they were ready to run, because other threads of the server, clients or other programs used it",
                peer.name,
                summary.server_starved * 100.0
            ));
        }
    }
    remarks
}

/// Formats a rate as `12,345`, or as `0.31` below 10 operations per second.
pub(super) fn rate(per_s: f64) -> String {
    if per_s < 10.0 { format!("{per_s:.2}") } else { thousands(per_s) }
}

/// Formats a number with separators, such as `12,345`.
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

/// Formats the median with the minimum and the maximum, such as `0.45 (0.41–0.50)`.
fn spread(spread: &Spread) -> String {
    format!("{:.2} ({:.2}–{:.2})", spread.median, spread.min, spread.max)
}

/// Describes a preset and how the run differs from it. Each line has a name and a text.
fn preset_lines(preset: &PresetReport) -> Vec<(&'static str, String)> {
    let several = |name: &'static str, lines: &[String]| lines.iter().map(move |line| (name, line.clone())).collect();
    let lines: [Vec<_>; 4] = [
        vec![("published", preset.source.to_owned())],
        several("scaled down", &preset.scaled_down),
        several("differs", &preset.differences),
        several("CPUs", &preset.placement),
    ];
    lines.concat()
}

/// Returns the table of the host's settings.
fn findings(preset: &PresetReport) -> Table {
    let row = |finding: &super::preflight::Finding| {
        let advice = finding.advice.clone().unwrap_or_else(|| "–".to_owned());
        vec![finding.what.to_owned(), finding.found.clone(), advice]
    };
    let head = ["setting", "found", "advice"].map(str::to_owned).to_vec();
    Table { head, rows: preset.findings.iter().map(row).collect() }
}

/// Describes the host.
fn host_lines(results: &Results) -> Vec<(&'static str, String)> {
    let host = &results.host;
    let cpus = |list: &[usize]| {
        if list.is_empty() { "any".to_owned() } else { pantala_base::cpus::List(list.to_vec()).to_string() }
    };
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
        ("checkout", host.checkout.clone().unwrap_or_else(|| "none".into())),
        ("command", for_shell(&results.command)),
    ]
}

/// Returns every command that was run. Its fields are workload, peer, version, processes, command.
fn commands(results: &Results) -> impl Iterator<Item = [String; 5]> {
    results.workloads.iter().flat_map(|workload| {
        workload.peers.iter().filter(|peer| !peer.command.is_empty()).map(|peer| {
            [
                workload.name.clone(),
                peer.name.clone(),
                peer.version.clone(),
                peer.processes.to_string(),
                for_shell(&peer.command),
            ]
        })
    })
}

/// Quotes words for a shell.
fn for_shell(words: &[String]) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_@%+=:,./-".contains(&byte);
    let quoted = words.iter().map(|word| {
        if !word.is_empty() && word.bytes().all(plain) {
            word.clone()
        } else {
            format!("'{}'", word.replace('\'', r"'\''"))
        }
    });
    quoted.collect::<Vec<_>>().join(" ")
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
        first.in_flight_max = 9_300;
        let mut third = peer("third", vec![round(1, 20.0, 1.0, 2_000.0)]);
        third.latency_missed_us = Some(1_000.0);
        let mut workload = workload(vec![first, peer("second", vec![round(1, 10.0, 1.0, 5.0)]), failed, third]);
        workload.against = vec!["a|b".into(), "second".into(), "broken <b>".into()];
        workload.summarize();
        let mut host = super::super::host::look();
        host.load_after = "1.5".into();
        Results {
            host,
            preset: Some(PresetReport {
                name: "published",
                source: "a <blog>",
                scaled_down: vec!["CPUs of servers: 1".into()],
                differences: vec!["one host".into()],
                placement: vec!["a cache is shared".into()],
                findings: vec![super::super::preflight::Finding {
                    what: "load",
                    found: "9.0|".into(),
                    advice: Some("stop <it>".into()),
                }],
            }),
            command: ["pantala-bench", "compare", "--peer", "x=s --port {port} --save \"\""]
                .map(str::to_owned)
                .to_vec(),
            server_cpus: vec![0, 1],
            client_cpus: Vec::new(),
            client_threads: 2,
            seconds: 5,
            rounds: 1,
            workloads_planned: 2,
            workloads: vec![workload],
            interrupted: true,
        }
    }

    #[test]
    fn commands_can_be_copied_into_a_shell() {
        let words = ["a-b=1", "", "it's", "$HOME `x` \"y\"", "a\\b", "*", "ü;"].map(str::to_owned);
        let line = format!("printf '%s|' {}", for_shell(&words));
        assert!(line.starts_with("printf '%s|' a-b=1 '' "), "{line}");
        let output = std::process::Command::new("sh").args(["-c", &line]).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), format!("{}|", words.join("|")));
    }

    #[test]
    fn missing_measurements_are_reported_first() {
        let mut results = results();
        let remarks_of = |results: &Results| {
            let texts = [markdown::report(results), html::report(results).unwrap()];
            texts.map(|text| (text.contains("interrupted"), text.contains("1 of 2 workloads are measured")))
        };
        assert_eq!(remarks_of(&results), [(true, false); 2]);
        results.interrupted = false;
        assert_eq!(remarks_of(&results), [(false, true); 2]);
        results.workloads_planned = 1;
        assert_eq!(remarks_of(&results), [(false, false); 2]);
    }

    #[test]
    fn numbers_are_readable() {
        assert_eq!([0.0, 999.4, 1000.0, 1_234_567.0].map(thousands), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!([9.99, 100.0, 12_345.6].map(microseconds), ["10.0", "100", "12,346"]);
        assert_eq!([0.314, 10.0, 12_345.6].map(rate), ["0.31", "10", "12,346"]);
    }

    #[test]
    fn each_file_contains_all_peers() {
        let results = results();
        let out = tempfile::tempdir().unwrap();
        let folder = out.path().join("a/b");
        prepare(&folder).unwrap();
        write(&results, &folder).unwrap();
        let text = |name: &str| fs::read_to_string(folder.join(name)).unwrap();
        let html = text("report.html");
        for expected in [
            "<svg",
            "a|b",
            "broken &lt;b&gt;",
            "a process ended",
            "no ratios to broken &lt;b&gt;: it has no figures here",
            "1,234,567",
            "interrupted",
            "server --save ''",
            "pantala-bench compare --peer 'x=s --port {port} --save &quot;&quot;'",
            "9,300",
            "<td>third / second</td><td>2.00 (2.00–2.00)</td>",
            "<td class=\"bad\">2,000 MISSED (limit 1,000)</td>",
            "<p class=\"bad\">third: MISSED its latency limit",
            "<h2>Preset published</h2>",
            "<td>published</td><td class=\"text\">a &lt;blog&gt;</td>",
            "<td>scaled down</td><td class=\"text\">CPUs of servers: 1</td>",
            "<td class=\"text\">9.0|</td><td class=\"text\">stop &lt;it&gt;</td>",
        ] {
            assert!(html.contains(expected), "{expected}");
        }
        // The file loads nothing from elsewhere. The name of SVG's namespace is never fetched.
        assert!(!html.replace("http://www.w3.org/2000/svg", "").contains("http"), "something outside is named");
        let markdown = text("report.md");
        for expected in [
            "a\\|b",
            "INVALID: a process ended",
            "| second / a\\|b | 0.00",
            "| third / second | 2.00",
            "**2,000 MISSED",
            "## Preset published",
            "- differs: one host\n",
            "| load | 9.0\\| | stop <it> |",
        ] {
            assert!(markdown.contains(expected), "{expected}: {markdown}");
        }
        let json: serde_json::Value = serde_json::from_str(&text("results.json")).unwrap();
        assert_eq!(json["workloads"][0]["peers"][1]["summary"]["ratios"][0]["p99_us"]["median"], 0.5);
        let mut table = Vec::new();
        print(&results.workloads[0], &mut table).unwrap();
        let table = String::from_utf8(table).unwrap();
        for expected in ["INVALID", "1,234,567", "third / a|b ", "third / second ", "MISSED its latency limit"] {
            assert!(table.contains(expected), "{expected}: {table}");
        }
        assert!(!table.contains("second / third"), "not asked for: {table}");
    }

    #[test]
    fn footprints_have_tables_of_their_own() {
        use super::super::results::Footprint;
        let measured_footprint = |name: &str, loaded_bytes| {
            let footprint = Some(Footprint::new("sorted sets", 10_000, 2_000_000, loaded_bytes));
            PeerResult { footprint, resident_loaded_bytes: loaded_bytes, ..peer(name, Vec::new()) }
        };
        let mut broken = peer("c", Vec::new());
        broken.invalid = Some("errors".into());
        let mut result = workload(vec![measured_footprint("a", 7_000_000), measured_footprint("b", 5_000_000), broken]);
        result.against = vec!["a".into(), "c".into()];
        result.summarize();
        let [measurements, ratios] = tables(&result).try_into().unwrap_or_else(|_| panic!("not two"));
        let rows = |table: &Table| table.rows.iter().map(|row| row.join("; ")).collect::<Vec<_>>();
        assert_eq!(
            rows(&measurements),
            ["a; 500.0; 10,000 sorted sets; 2; 7; 0", "b; 300.0; 10,000 sorted sets; 2; 5; 0"]
        );
        assert_eq!(
            (rows(&ratios), ratios.head),
            (vec!["b / a; 0.600".to_owned()], vec!["ratio".to_owned(), "× bytes".to_owned()])
        );
        assert_eq!(remarks(&result), ["c: INVALID: errors", "no ratios to c: it has no figures here"]);
        assert_eq!(plots::of(&result).unwrap().len(), 1);
    }

    #[test]
    fn the_limiting_side_is_reported() {
        let mut one = peer("one", vec![round(1, 1.0, 1.5, 1.0), round(2, 1.0, 1.5, 1.0)]);
        one.rounds[0].load.generator_wanting_max = 0.97;
        one.rounds[1].load.generator_wanting_max = 0.97;
        one.rounds[1].server_wanting_max = 0.97;
        one.rounds.iter_mut().for_each(|round| round.load.generator_cpu_s = 2.5e-6);
        let mut result = workload(vec![one]);
        result.summarize();
        let remarks = peer_remarks(&result.peers[0]).join("\n");
        assert!(remarks.contains("in 1 of 2 rounds the load generator was the limit"), "{remarks}");
        assert!(remarks.contains("in 1 of 2 rounds generator and server both"), "{remarks}");
        assert!(remarks.contains("(1.50 + 2.50 µs per operation)"), "{remarks}");
        assert_eq!(tables(&result)[0].rows[0].last().unwrap(), "97%");
        assert_eq!(tables(&result).len(), 1, "nobody to be held against");
    }

    #[test]
    fn a_folder_that_cannot_be_created_is_reported() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = prepare(&file.path().join("x")).unwrap_err();
        assert!(error.to_string().contains("can't be written"), "{error}");
        // `/dev/full` fails like a full disk.
        let error = put(Path::new("/dev/full"), b"x").unwrap_err();
        assert!(error.to_string().contains("/dev/full"), "{error}");
    }
}
