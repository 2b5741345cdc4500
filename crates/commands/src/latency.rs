//! `LATENCY`: the recorded slow events ([`pantala_engine::latency`]) and latency histograms of
//! commands.

use std::fmt::Write;
use std::sync::atomic::Ordering::Relaxed;

use pantala_engine::client::LocalContext;
use pantala_engine::keyspace::Keyspace;
use pantala_engine::latency::{self, Series};
use pantala_resp::{Args, Reply};

/// `LATENCY LATEST`.
pub fn latest(context: &mut LocalContext<'_>, _: &Args<'_>, reply: &mut Reply<'_>) {
    let all = context.keyspace.latency().series();
    reply.array(all.len());
    for series in all {
        let latest = series.latest();
        reply.array(4);
        reply.bulk(series.event.as_bytes());
        reply.integer(latest.at_s);
        reply.integer(latest.latency_ms as i64);
        reply.integer(series.max_ms as i64);
    }
}

/// `LATENCY HISTORY event`. The name is case-sensitive, as in Redis.
pub fn history(context: &mut LocalContext<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let Some(series) = find(context.keyspace, args.at(2)) else { return reply.array(0) };
    reply.array(series.samples.len());
    for sample in series.samples {
        reply.array(2);
        reply.integer(sample.at_s);
        reply.integer(sample.latency_ms as i64);
    }
}

/// `LATENCY RESET [event …]`. Names are case-insensitive.
pub fn reset(context: &mut LocalContext<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let is_selected =
        |event: &str| args.len() == 2 || args.iter().skip(2).any(|name| name.eq_ignore_ascii_case(event.as_bytes()));
    reply.integer(context.keyspace.latency().reset(is_selected) as i64);
}

/// `LATENCY GRAPH event`.
pub fn graph(context: &mut LocalContext<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    match find(context.keyspace, args.at(2)) {
        Some(series) => reply.verbatim("txt", draw(&series, context.now_ms / 1000).as_bytes()),
        None => reply.error_bytes(&[b"ERR No samples available for event '", args.at(2), b"'"].concat()),
    }
}

/// `LATENCY DOCTOR`.
pub fn doctor(context: &mut LocalContext<'_>, _: &Args<'_>, reply: &mut Reply<'_>) {
    let tuning = &context.keyspace.tuning;
    let settings = DoctorSettings {
        threshold_ms: tuning.latency_threshold_ms.load(Relaxed),
        slowlog_slower_than_us: tuning.slowlog_slower_than_us.load(Relaxed),
        hz: tuning.hz.load(Relaxed),
    };
    let report = diagnosis(&context.keyspace.latency().series(), &settings, context.now_ms / 1000);
    reply.verbatim("txt", report.as_bytes());
}

/// `LATENCY HELP`.
pub fn help(_: &mut LocalContext<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    crate::help::write(
        reply,
        args,
        &[
            "DOCTOR",
            "    Return a report of slow events, with advice.",
            "GRAPH <event>",
            "    Return a graph of the event's latencies.",
            "HISTOGRAM [<command> ...]",
            "    Return the latency distribution of commands: the number of calls up to each",
            "    limit in microseconds.",
            "HISTORY <event>",
            "    Return the event's samples: Unix time in seconds, latency in milliseconds.",
            "LATEST",
            "    Return the latest and the highest latency of every event.",
            "RESET [<event> ...]",
            "    Delete the samples of these events, or of all.",
        ],
    );
}

fn find(keyspace: &Keyspace, event: &[u8]) -> Option<Series> {
    keyspace.latency().series().into_iter().find(|series| series.event.as_bytes() == event)
}

/// End of the first bucket of `LATENCY HISTOGRAM` in ns, about a microsecond. Each further bucket
/// ends at twice the end of the preceding one.
const HISTOGRAM_FIRST_NS: u64 = 1024;

/// `LATENCY HISTOGRAM [command …]`. A container (a command with subcommands) stands for its
/// subcommands. Unknown commands, and commands without calls, are omitted.
pub fn histogram(context: &mut LocalContext<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let all = context.host.latencies();
    let is = |name: &str, requested: &[u8]| {
        let container = name.split_once('|').map_or("", |(container, _)| container);
        requested.eq_ignore_ascii_case(name.as_bytes()) || requested.eq_ignore_ascii_case(container.as_bytes())
    };
    // Holds references rather than copies, because a client may request one command many times.
    let shown: Vec<_> = if args.len() == 2 {
        all.iter().collect()
    } else {
        // Keeps the order in which the client requested the commands.
        args.iter().skip(2).flat_map(|requested| all.iter().filter(move |(name, _)| is(name, requested))).collect()
    };
    reply.map(shown.len());
    for (name, distribution) in shown {
        reply.bulk(name.as_bytes());
        reply.map(2);
        reply.bulk(b"calls");
        reply.integer(distribution.len() as i64);
        reply.bulk(b"histogram_usec");
        let steps = distribution.by_powers_of_two(HISTOGRAM_FIRST_NS);
        reply.map(steps.len());
        for (end_ns, count) in steps {
            reply.integer((end_ns / 1000) as i64);
            reply.integer(count as i64);
        }
    }
}

/// Samples per graph. Further samples start another graph below the first.
const GRAPH_COLUMNS: usize = 80;
/// Lines of a graph.
const GRAPH_ROWS: usize = 4;
/// Each line of the graph has three heights. These are the characters for a sample whose top is at
/// each height.
const GRAPH_STEPS: [char; 3] = ['_', 'o', '#'];

/// Draws the graph of an event with one column per sample. Below each column stands the sample's
/// age, written downwards.
fn draw(series: &Series, now_s: i64) -> String {
    let latencies = || series.samples.iter().map(|sample| sample.latency_ms);
    let (high, low) = (latencies().max().unwrap_or(0), latencies().min().unwrap_or(0));
    let mut picture = format!(
        "{} - high {high} ms, low {low} ms (all time high {} ms)\n{}\n",
        series.event,
        series.max_ms,
        "-".repeat(GRAPH_COLUMNS)
    );
    let columns: Vec<(usize, String)> = series
        .samples
        .iter()
        .map(|sample| {
            let steps = GRAPH_ROWS * GRAPH_STEPS.len();
            let step = (sample.latency_ms - low) as f64 * steps as f64 / (high - low).max(1) as f64;
            ((step as usize).min(steps - 1), age(now_s - sample.at_s))
        })
        .collect();
    for (at, columns) in columns.chunks(GRAPH_COLUMNS).enumerate() {
        if at > 0 {
            picture.push('\n');
        }
        for row in (0..GRAPH_ROWS).rev() {
            let in_row = |(step, _): &(usize, String)| match step.checked_sub(row * GRAPH_STEPS.len()) {
                None => ' ',
                Some(above) => GRAPH_STEPS.get(above).copied().unwrap_or('|'),
            };
            picture.extend(columns.iter().map(in_row));
            picture.push('\n');
        }
        picture.push_str(&" ".repeat(columns.len()));
        picture.push('\n');
        let longest = columns.iter().map(|(_, age)| age.len()).max().unwrap_or(0);
        for line in 0..longest {
            picture
                .extend(columns.iter().map(|(_, age)| age.as_bytes().get(line).map_or(' ', |&byte| char::from(byte))));
            picture.push('\n');
        }
    }
    picture
}

/// Formats an age in the largest unit in which it is at least 1.
fn age(seconds: i64) -> String {
    const MINUTE_S: i64 = 60;
    const HOUR_S: i64 = 60 * MINUTE_S;
    const DAY_S: i64 = 24 * HOUR_S;
    let (count, unit) = if seconds >= DAY_S {
        (seconds / DAY_S, 'd')
    } else if seconds >= HOUR_S {
        (seconds / HOUR_S, 'h')
    } else if seconds >= MINUTE_S {
        (seconds / MINUTE_S, 'm')
    } else {
        (seconds, 's')
    };
    format!("{count}{unit}")
}

/// The settings that `LATENCY DOCTOR` considers.
struct DoctorSettings {
    threshold_ms: u64,
    slowlog_slower_than_us: i64,
    hz: u32,
}

/// If `hz` is below this, `LATENCY DOCTOR` recommends a higher one.
const HZ_ENOUGH: u32 = 100;

fn diagnosis(all: &[Series], settings: &DoctorSettings, now_s: i64) -> String {
    if all.is_empty() && settings.threshold_ms == 0 {
        return "Latency isn't monitored. CONFIG SET latency-monitor-threshold <milliseconds> records every event that takes \
                at least as long.\n"
            .to_owned();
    }
    if all.is_empty() {
        return format!("No event has taken {} ms or more.\n", settings.threshold_ms);
    }
    let mut report = "Slow events:\n\n".to_owned();
    for (at, series) in all.iter().enumerate() {
        let count = series.samples.len() as u64;
        let latencies = || series.samples.iter().map(|sample| sample.latency_ms);
        let mean = latencies().sum::<u64>() / count;
        let deviation = latencies().map(|latency| latency.abs_diff(mean)).sum::<u64>() / count;
        let period_s = (now_s - series.samples[0].at_s).max(1) as f64 / count as f64;
        let _ = writeln!(
            report,
            "{}. {}: in {count} seconds (average {mean} ms, mean deviation {deviation} ms, every {period_s:.2} s). \
             Highest ever: {} ms.",
            at + 1,
            series.event,
            series.max_ms
        );
    }
    report.push_str("\nAdvice:\n\n");
    all.iter().for_each(|series| advise(&mut report, series.event, settings));
    report
}

fn advise(report: &mut String, event: &str, settings: &DoctorSettings) {
    match event {
        latency::COMMAND => {
            let threshold_us = settings.threshold_ms.saturating_mul(1000);
            if settings.slowlog_slower_than_us < 0
                || settings.slowlog_slower_than_us.unsigned_abs() > threshold_us.max(1)
            {
                let _ = writeln!(
                    report,
                    "- SLOWLOG records only some of these commands. To record all: CONFIG SET slowlog-log-slower-than \
                     {threshold_us}."
                );
            } else {
                report.push_str("- SLOWLOG GET returns these commands.\n");
            }
            report.push_str(
                "- Commands on large values, and those that scan all keys, block other commands on the same keys: split the \
                 values, or use the SCAN family.\n",
            );
        }
        latency::FAST_COMMAND => report.push_str(
            "- Even fast commands were slow: the workers don't get enough CPU time. Use fewer workers than cores, a less \
             loaded machine, or --pin-threads; redis-cli --intrinsic-latency measures the machine.\n",
        ),
        latency::EXPIRE_CYCLE | latency::EXPIRE_DEL => {
            if settings.hz < HZ_ENOUGH {
                report.push_str("- Many keys expire at the same time: a higher hz deletes them in smaller batches.\n");
            }
            report.push_str("- Large values expire: lazyfree-lazy-expire yes frees them in the background.\n");
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pantala_engine::latency::Sample;

    fn series(event: &'static str, samples: &[(i64, u64)]) -> Series {
        Series {
            event,
            max_ms: samples.iter().map(|(_, latency_ms)| *latency_ms).max().unwrap_or(0),
            samples: samples.iter().map(|&(at_s, latency_ms)| Sample { at_s, latency_ms }).collect(),
        }
    }

    /// The expected output is that of redis-server 7.0.15.
    #[test]
    fn graphs_equal_those_of_redis() {
        let picture = draw(&series(latency::COMMAND, &[(1005, 22), (1006, 30), (1007, 42)]), 1009);
        let lines: Vec<&str> = picture.lines().skip(2).collect();
        assert_eq!(lines, ["  #", "  |", " o|", "_||", "   ", "432", "sss"]);
        assert!(picture.starts_with("command - high 42 ms, low 22 ms (all time high 42 ms)\n----"), "{picture}");
        // Two samples with equal latencies, and with ages of different lengths.
        let picture = draw(&series(latency::COMMAND, &[(0, 7), (86_400, 7)]), 90_000);
        let lines: Vec<&str> = picture.lines().skip(2).collect();
        assert_eq!(lines, ["  ", "  ", "  ", "__", "  ", "11", "dh"]);
        assert_eq!([59, 60, 3599, 3600, 86_399, 86_400].map(age), ["59s", "1m", "59m", "1h", "23h", "1d"]);
    }

    #[test]
    fn a_graph_has_at_most_80_columns() {
        let wide = |count: i64| {
            let samples: Vec<_> = (0..count).map(|at_s| (at_s, 1)).collect();
            draw(&series(latency::COMMAND, &samples), 200).lines().map(str::len).skip(2).max()
        };
        assert_eq!((wide(80), wide(81)), (Some(80), Some(80)));
    }

    #[test]
    fn doctor_reports_slow_events_with_advice() {
        let settings =
            |threshold_ms, slowlog_slower_than_us| DoctorSettings { threshold_ms, slowlog_slower_than_us, hz: 10 };
        let one = [series(latency::COMMAND, &[(1000, 20), (1002, 40)])];
        for (all, settings, wanted) in [
            (&one[..0], settings(0, 10_000), "isn't monitored"),
            (&one[..0], settings(5, 10_000), "No event has taken 5 ms"),
            (
                &one[..],
                settings(20, 10_000),
                "command: in 2 seconds (average 30 ms, mean deviation 10 ms, every 2.00 s). Highest ever: 40 ms.",
            ),
            (&one[..], settings(20, 20_000), "SLOWLOG GET returns"),
            (&one[..], settings(20, 20_001), "slowlog-log-slower-than 20000."),
            (&one[..], settings(20, -1), "slowlog-log-slower-than 20000."),
            (&[series(latency::EXPIRE_CYCLE, &[(1, 1)])][..], settings(1, 1), "a higher hz"),
            (&[series(latency::FAST_COMMAND, &[(1, 1)])][..], settings(1, 1), "CPU time"),
        ] {
            let report = diagnosis(all, &settings, 1004);
            assert!(report.contains(wanted), "{wanted}: {report}");
        }
    }
}
