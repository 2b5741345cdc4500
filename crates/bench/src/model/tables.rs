//! Prints the output of `model`: written lines, errors, workloads and assumptions.

use std::collections::BTreeMap;
use std::io::{self, Write};

use super::costs::{Costs, Load, Ratio, Written};
use super::law::Law;
use super::lines::{self, Entry, Row};
use super::simulate::{Outcome, Policy};
use super::{Options, files, predicted, predicted_owner};

/// Numbers of workers whose simulated capacities the law is fitted to.
const FITTED: [u32; 7] = [1, 2, 4, 8, 16, 32, 64];
/// If a shard is held for at least this share of the time, the shard's gate counts as the
/// bottleneck.
const FULL: f64 = 0.9;
/// Minimum share of the workers' time that a cause must take to be reported as the bottleneck.
const NOTABLE: f64 = 0.02;

pub(super) fn print(out: &mut impl Write, costs: &Costs, options: &Options) -> io::Result<()> {
    print_lines(out)?;
    print_errors(out, costs, options.seed)?;
    print_owner_errors(out, costs, options.seed)?;
    files::print_errors(out, costs)?;
    print_workloads(out, costs, options)?;
    files::print(out, costs, options)?;
    print_assumptions(out, costs)
}

fn print_lines(out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "Cache lines that a command writes and another worker may have written last:\n")?;
    writeln!(out, "{:<40} {:>6} {:>6} {:>8}", "command", "shard", "entry", "known")?;
    for Row { command, shard, entry, known, which } in lines::rows() {
        let entry = match entry {
            Entry::Nothing => "-",
            Entry::FirstLine => "1",
            Entry::All => "all",
        };
        writeln!(out, "{command:<40} {shard:>6} {entry:>6} {known:>8}  {which}")?;
    }
    writeln!(out)
}

fn print_errors(out: &mut impl Write, costs: &Costs, seed: u64) -> io::Result<()> {
    writeln!(out, "Throughput of two workers relative to one, without sockets, compared with the measurement:\n")?;
    writeln!(out, "{:<12} {:>6} {:>9} {:>6} {:>7}", "keys", "shards", "measured", "model", "error")?;
    let (mut sum, mut count) = (0.0, 0.0);
    for row in &costs.engine.ratios {
        let model = predicted(costs, row, seed);
        let error = model / row.ratio - 1.0;
        let fitted = if row.fitted { "  fitted to this row" } else { "" };
        let Ratio { keys, shards, ratio, .. } = row;
        writeln!(out, "{keys:<12} {shards:>6} {ratio:>9.2} {model:>6.2} {:>6.1}%{fitted}", error * 100.0)?;
        if !row.fitted {
            (sum, count) = (sum + error.abs(), count + 1.0);
        }
    }
    writeln!(out, "mean error of the rows to which nothing was fitted: {:.1}%\n", 100.0 * sum / f64::max(count, 1.0))
}

fn print_owner_errors(out: &mut impl Write, costs: &Costs, seed: u64) -> io::Result<()> {
    let owner = &costs.owner;
    writeln!(
        out,
        "Owner relative to inline, {} workers, {} shards, compared with the measurement:\n",
        owner.workers, owner.shards
    )?;
    writeln!(
        out,
        "{:<16} {:>9} {:>6} {:>7} {:>11} {:>6} {:>7}",
        "workload", "CPU/op", "model", "error", "throughput", "model", "error"
    )?;
    for row in &owner.rows {
        let Some((cpu, rate)) = predicted_owner(costs, row, seed) else { continue };
        let fitted = if row.fitted { "  fitted to this row's CPU/op" } else { "" };
        let (cpu_error, rate_error) = (100.0 * (cpu / row.cpu - 1.0), 100.0 * (rate / row.rate - 1.0));
        writeln!(
            out,
            "{:<16} {:>9.2} {cpu:>6.2} {cpu_error:>6.1}% {:>11.2} {rate:>6.2} {rate_error:>6.1}%{fitted}",
            row.workload, row.cpu, row.rate
        )?;
    }
    writeln!(
        out,
        "MSET of 10 keys (4.59 and 0.17) can't be compared: in the simulation, owners run only commands on one key\n"
    )
}

/// Returns the largest cause of the loss compared with linear scaling.
fn bottleneck(outcome: &Outcome) -> String {
    if outcome.hottest >= FULL {
        return format!("the gate of the hottest shard, held {:.0}% of the time", outcome.hottest * 100.0);
    }
    let causes = [
        (outcome.waiting, "waiting for shards that are held"),
        (outcome.requests, "requests left for holders"),
        (outcome.lines, "cache lines from other cores"),
    ];
    let (part, cause) = causes.into_iter().max_by(|a, b| a.0.total_cmp(&b.0)).unwrap_or((0.0, ""));
    if part < NOTABLE {
        return "none in the server: the cores and the clients limit it".to_owned();
    }
    format!("{cause}, {:.0}% of the time", part * 100.0)
}

const COLUMNS: [&str; 14] = [
    "1 worker", "all", "owner", "law", "of ideal", "Gbit/s", "written", "fetched", "moved", "requests", "lines",
    "waits", "sigma", "kappa",
];

fn print_workloads(out: &mut impl Write, costs: &Costs, options: &Options) -> io::Result<()> {
    let Options { workers, shards, .. } = *options;
    let line_ns = costs.line.there_ns.value;
    writeln!(out, "{shards} shards, {workers} workers, a core each; a line from core to core {line_ns:.0} ns:\n")?;
    write!(out, "{:<16}", "workload")?;
    for column in COLUMNS {
        write!(out, " {column:>8}")?;
    }
    writeln!(out, "  first bottleneck")?;
    for load in &costs.workloads {
        match load.cpu_us {
            Some(cpu_us) => print_workload(out, costs, options, load, cpu_us)?,
            None => writeln!(out, "{:<16} {}", load.name, load.source)?,
        }
    }
    print_unmodelled(out)?;
    writeln!(
        out,
        "\nmillions of operations per second; `owner` with --execution owner, `law` as sigma and kappa have it. Lines of an operation: `written`, of its\n\
         shards and entries as the table above has them, and `fetched`, those that came from another core, mean.\n"
    )
}

/// Prints the workloads of `compare` that are not modelled, by reason.
fn print_unmodelled(out: &mut impl Write) -> io::Result<()> {
    let mut by_reason: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (name, why) in crate::compare::modelled_workloads() {
        if let Some(why) = why {
            by_reason.entry(why).or_default().push(name);
        }
    }
    by_reason.iter().try_for_each(|(why, names)| writeln!(out, "not modelled, {why}: {}", names.join(" ")))
}

fn print_workload(out: &mut impl Write, costs: &Costs, options: &Options, load: &Load, cpu_us: f64) -> io::Result<()> {
    let Options { workers, shards, seed, .. } = *options;
    let disk_mb_per_s = costs.file.there_mb_per_s.value;
    let run_with_file =
        |workers, policy| files::simulate_load(costs, load, cpu_us, disk_mb_per_s, (workers, shards), policy, seed);
    let run = |workers, policy| run_with_file(workers, policy).0;
    let one = run(1, Policy::Inline).operations_per_s;
    let (all, file) = run_with_file(workers, Policy::Inline);
    // `owner` is reported only for commands on one key. In the simulation, the home of a shard (the
    // worker that runs all operations on the shard) works only on its own shards. No home can
    // therefore run a command on shards that have different homes.
    let owner = match load.keys_per_operation {
        1 => format!("{:.2}", run(workers, Policy::Owner).operations_per_s / 1e6),
        _ => "-".to_owned(),
    };
    let points = FITTED.map(|count| (count, run(count, Policy::Inline).operations_per_s / one));
    let law = Law::fit(&points);
    let of_file = file.and_then(|file| files::bottleneck(&file));
    // A throughput that the file's threads limit does not decrease as the law says.
    let peak = law.peak().filter(|peak| *peak < f64::from(workers) && of_file.is_none());
    let Written { shard, writes, entry } = load.written(&lines::rows());
    writeln!(
        out,
        "{:<16} {:>8.3} {:>8.2} {owner:>8} {:>8.2} {:>7.0}% {:>8.0} {:>8.1} {:>8.2} {:>7.0}% {:>7.1}% {:>7.1}% {:>7.1}% {:>8.4} {:>8.5}  {}{}",
        load.name,
        one / 1e6,
        all.operations_per_s / 1e6,
        law.capacity(workers) * one / 1e6,
        100.0 * all.operations_per_s / (one * f64::from(workers)),
        all.operations_per_s * load.bytes * 8.0 / 1e9,
        f64::from(load.keys_per_operation) * (shard + writes * entry),
        all.fetched,
        100.0 * all.moved,
        100.0 * all.requested,
        100.0 * all.lines,
        100.0 * all.waiting,
        law.contention,
        law.coherence,
        of_file.unwrap_or_else(|| bottleneck(&all)),
        peak.map_or(String::new(), |peak| format!("; most at {peak:.0} workers"))
    )
}

fn print_assumptions(out: &mut impl Write, costs: &Costs) -> io::Result<()> {
    writeln!(out, "Measured on: {}", costs.host)?;
    for load in &costs.workloads {
        let cpu_us = load.cpu_us.map_or("-".to_owned(), |cpu_us| format!("{cpu_us:.2}"));
        writeln!(out, "  {:<16} {cpu_us:>7} us of CPU per operation: {}", load.name, load.source)?;
    }
    writeln!(out, "Constants:")?;
    for (name, input) in costs.inputs() {
        writeln!(out, "  {name:<40} {:>9}  {}", input.value, input.source)?;
    }
    writeln!(out, "  two workers to one: {}", costs.engine.source)?;
    writeln!(out, "  owner to inline: {}", costs.owner.source)?;
    writeln!(out, "Assumed besides:")?;
    writeln!(
        out,
        "- of a shard's lines, a prefetch hides only the gate's; of an entry, it hides all lines that the table counts"
    )?;
    writeln!(
        out,
        "- a command on several keys reserves all its shards when it takes the first: a lower bound for mset10, transactions"
    )?;
    writeln!(out, "- the keys of flash are uniform: the shard of a key doesn't depend on the key's popularity")?;
    writeln!(out, "- the kernel's network path, memory and network card scale with the cores; no worker sleeps")?;
    writeln!(
        out,
        "- the append-only file is not rewritten; the journal's thread and the writer have a core each; recording uses no line that other workers write"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bottlenecks_are_named() {
        let none = Outcome::default();
        assert!(bottleneck(&none).starts_with("none"));
        assert!(bottleneck(&Outcome { hottest: 0.95, waiting: 0.5, ..none }).contains("hottest shard, held 95%"));
        assert!(bottleneck(&Outcome { lines: 0.1, waiting: 0.05, ..none }).starts_with("cache lines"));
        assert!(bottleneck(&Outcome { waiting: 0.1, lines: 0.05, ..none }).starts_with("waiting"));
    }

    #[test]
    fn it_prints_every_workload_and_every_source() {
        let options = Options {
            workers: 4,
            shards: 8,
            costs: None,
            report: None,
            write_costs: None,
            line_ns: None,
            disk_mb_per_s: None,
            sync_ms: None,
            seed: 1,
        };
        let costs = Costs::built_in().unwrap();
        let mut text = Vec::new();
        print(&mut text, &costs, &options).unwrap();
        let text = String::from_utf8(text).unwrap();
        for load in &costs.workloads {
            let rows = text.lines().filter(|line| line.split_whitespace().next() == Some(load.name.as_str())).count();
            let errors = costs.owner.rows.iter().filter(|row| row.workload == load.name).count();
            let of_file = if load.appends { files::ROWS } else { 0 };
            assert_eq!(rows, 2 + errors + of_file, "{}:\n{text}", load.name);
        }
        for (name, why) in crate::compare::modelled_workloads() {
            let is_listed =
                |why: &str| text.lines().any(|line| line.contains(why) && line.split(' ').any(|word| word == name));
            assert!(why.is_none_or(|why| is_listed(&format!("not modelled, {why}: "))), "{name}");
        }
        for (_, input) in costs.inputs() {
            assert!(text.contains(&input.source), "{}", input.source);
        }
        for row in lines::rows() {
            assert!(
                text.lines().any(|line| line.starts_with(row.command) && line.ends_with(row.which)),
                "{}",
                row.command
            );
        }
        assert!(text.contains("8 shards, 4 workers"));
    }
}
