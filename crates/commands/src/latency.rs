//! `LATENCY`: events that took long ([`pantala_engine::latency`]), and how long the calls of each command took.

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

/// `LATENCY HISTORY event`. As in Redis, its name in exactly these letters.
pub fn history(context: &mut LocalContext<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let Some(series) = find(context.keyspace, args.at(2)) else { return reply.array(0) };
    reply.array(series.samples.len());
    for sample in series.samples {
        reply.array(2);
        reply.integer(sample.at_s);
        reply.integer(sample.latency_ms as i64);
    }
}

/// `LATENCY RESET [event …]`, names in any letters.
pub fn reset(context: &mut LocalContext<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let is_asked =
        |event: &str| args.len() == 2 || args.iter().skip(2).any(|asked| asked.eq_ignore_ascii_case(event.as_bytes()));
    reply.integer(context.keyspace.latency().reset(is_asked) as i64);
}

/// `LATENCY GRAPH event`.
pub fn graph(context: &mut LocalContext<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    match find(context.keyspace, args.at(2)) {
        Some(series) => reply.verbatim("txt", drawn(&series, context.now_ms / 1000).as_bytes()),
        None => reply.error_bytes(&[b"ERR No samples available for event '", args.at(2), b"'"].concat()),
    }
}

/// `LATENCY DOCTOR`.
pub fn doctor(context: &mut LocalContext<'_>, _: &Args<'_>, reply: &mut Reply<'_>) {
    let tuning = &context.keyspace.tuning;
    let settings = DoctorsSettings {
        threshold_ms: tuning.latency_threshold_ms.load(Relaxed),
        slowlog_slower_than_us: tuning.slowlog_slower_than_us.load(Relaxed),
        hz: tuning.hz.load(Relaxed),
    };
    let report = diagnosis(&context.keyspace.latency().series(), &settings, context.now_ms / 1000);
    reply.verbatim("txt", report.as_bytes());
}

/// `LATENCY HELP`.
pub fn help(_: &mut LocalContext<'_>, _: &Args<'_>, reply: &mut Reply<'_>) {
    crate::help::write(
        reply,
        "LATENCY",
        &[
            "DOCTOR",
            "    What took long, and what may help, in words.",
            "GRAPH <event>",
            "    A picture of the event's latest latencies.",
            "HISTOGRAM [<command> ...]",
            "    How long calls of commands took: how many no longer than so many",
            "    microseconds.",
            "HISTORY <event>",
            "    The event's latest latencies: time in seconds, milliseconds.",
            "LATEST",
            "    The latest latency of every event, and the longest.",
            "RESET [<event> ...]",
            "    Forgets these events, or all.",
        ],
    );
}

fn find(keyspace: &Keyspace, event: &[u8]) -> Option<Series> {
    keyspace.latency().series().into_iter().find(|series| series.event.as_bytes() == event)
}

/// The first step of `LATENCY HISTOGRAM`, ns: about a microsecond; each further one is twice as long.
const HISTOGRAM_FIRST_NS: u64 = 1024;

/// `LATENCY HISTOGRAM [command …]`. A container stands for its subcommands; what is no command, or was never run, is left out.
pub fn histogram(context: &mut LocalContext<'_>, args: &Args<'_>, reply: &mut Reply<'_>) {
    let all = context.host.latencies();
    let is = |name: &str, asked: &[u8]| {
        let container = name.split_once('|').map_or("", |(container, _)| container);
        asked.eq_ignore_ascii_case(name.as_bytes()) || asked.eq_ignore_ascii_case(container.as_bytes())
    };
    let shown: Vec<_> = if args.len() == 2 {
        all
    } else {
        // In the order in which they were asked for.
        args.iter().skip(2).flat_map(|asked| all.iter().filter(move |(name, _)| is(name, asked)).cloned()).collect()
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

/// Samples beside each other in a picture; more stand in another one below.
const GRAPH_COLUMNS: usize = 80;
/// Lines of a picture.
const GRAPH_ROWS: usize = 4;
/// How high a sample can stand in its line.
const GRAPH_STEPS: [char; 3] = ['_', 'o', '#'];

/// The picture of an event: of each sample a column, below it how long ago it was, read downwards.
fn drawn(series: &Series, now_s: i64) -> String {
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

/// How long ago, in the largest unit that it has one of.
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

/// What the doctor looks at besides the events.
struct DoctorsSettings {
    threshold_ms: u64,
    slowlog_slower_than_us: i64,
    hz: u32,
}

/// From this `hz` on there is nothing to be won by more.
const HZ_ENOUGH: u32 = 100;

fn diagnosis(all: &[Series], settings: &DoctorsSettings, now_s: i64) -> String {
    if all.is_empty() && settings.threshold_ms == 0 {
        return "Latency isn't monitored: CONFIG SET latency-monitor-threshold <milliseconds> has everything noted that takes \
                as long.\n"
            .to_owned();
    }
    if all.is_empty() {
        return format!("Nothing has taken {} ms or more.\n", settings.threshold_ms);
    }
    let mut report = "These events took long:\n\n".to_owned();
    for (at, series) in all.iter().enumerate() {
        let count = series.samples.len() as u64;
        let latencies = || series.samples.iter().map(|sample| sample.latency_ms);
        let mean = latencies().sum::<u64>() / count;
        let deviation = latencies().map(|latency| latency.abs_diff(mean)).sum::<u64>() / count;
        let period_s = (now_s - series.samples[0].at_s).max(1) as f64 / count as f64;
        let _ = writeln!(
            report,
            "{}. {}: in {count} seconds (average {mean} ms, mean deviation {deviation} ms, every {period_s:.2} s). The longest \
             ever: {} ms.",
            at + 1,
            series.event,
            series.max_ms
        );
    }
    report.push_str("\nWhat may help:\n\n");
    all.iter().for_each(|series| advise(&mut report, series.event, settings));
    report
}

fn advise(report: &mut String, event: &str, settings: &DoctorsSettings) {
    match event {
        latency::COMMAND => {
            let threshold_us = settings.threshold_ms.saturating_mul(1000);
            if settings.slowlog_slower_than_us < 0
                || settings.slowlog_slower_than_us.unsigned_abs() > threshold_us.max(1)
            {
                let _ = writeln!(
                    report,
                    "- SLOWLOG tells which commands these were, but doesn't note all of them: CONFIG SET \
                     slowlog-log-slower-than {threshold_us}."
                );
            } else {
                report.push_str("- SLOWLOG GET tells which commands these were.\n");
            }
            report.push_str(
                "- Commands on large values, and those that walk all keys, hold up whoever needs the same keys: split the \
                 values, or use the SCAN family.\n",
            );
        }
        latency::FAST_COMMAND => report.push_str(
            "- Even commands that do little took long: the machine doesn't give the workers their cores. Fewer workers than \
             cores, a quieter machine or --pin-threads may help; redis-cli --intrinsic-latency shows what the machine does.\n",
        ),
        latency::EXPIRE_CYCLE | latency::EXPIRE_DEL => {
            if settings.hz < HZ_ENOUGH {
                report.push_str("- Many keys expire at a time: a higher hz removes them in smaller portions.\n");
            }
            report.push_str("- Large values that expire: lazyfree-lazy-expire yes frees them in the background.\n");
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

    /// As redis-server 7.0.15 draws it.
    #[test]
    fn pictures_are_those_of_redis() {
        let picture = drawn(&series(latency::COMMAND, &[(1005, 22), (1006, 30), (1007, 42)]), 1009);
        let lines: Vec<&str> = picture.lines().skip(2).collect();
        assert_eq!(lines, ["  #", "  |", " o|", "_||", "   ", "432", "sss"]);
        assert!(picture.starts_with("command - high 42 ms, low 22 ms (all time high 42 ms)\n----"), "{picture}");
        // All alike, and ages of different lengths.
        let picture = drawn(&series(latency::COMMAND, &[(0, 7), (86_400, 7)]), 90_000);
        let lines: Vec<&str> = picture.lines().skip(2).collect();
        assert_eq!(lines, ["  ", "  ", "  ", "__", "  ", "11", "dh"]);
        assert_eq!([59, 60, 3599, 3600, 86_399, 86_400].map(age), ["59s", "1m", "59m", "1h", "23h", "1d"]);
    }

    #[test]
    fn a_picture_is_as_wide_as_its_bound_and_no_wider() {
        let wide = |count: i64| {
            let samples: Vec<_> = (0..count).map(|at_s| (at_s, 1)).collect();
            drawn(&series(latency::COMMAND, &samples), 200).lines().map(str::len).skip(2).max()
        };
        assert_eq!((wide(80), wide(81)), (Some(80), Some(80)));
    }

    #[test]
    fn the_doctor_says_what_it_sees() {
        let settings =
            |threshold_ms, slowlog_slower_than_us| DoctorsSettings { threshold_ms, slowlog_slower_than_us, hz: 10 };
        let one = [series(latency::COMMAND, &[(1000, 20), (1002, 40)])];
        for (all, settings, wanted) in [
            (&one[..0], settings(0, 10_000), "isn't monitored"),
            (&one[..0], settings(5, 10_000), "Nothing has taken 5 ms"),
            (
                &one[..],
                settings(20, 10_000),
                "command: in 2 seconds (average 30 ms, mean deviation 10 ms, every 2.00 s). The longest ever: 40 ms.",
            ),
            (&one[..], settings(20, 20_000), "SLOWLOG GET tells"),
            (&one[..], settings(20, 20_001), "slowlog-log-slower-than 20000."),
            (&one[..], settings(20, -1), "slowlog-log-slower-than 20000."),
            (&[series(latency::EXPIRE_CYCLE, &[(1, 1)])][..], settings(1, 1), "a higher hz"),
            (&[series(latency::FAST_COMMAND, &[(1, 1)])][..], settings(1, 1), "their cores"),
        ] {
            let report = diagnosis(all, &settings, 1004);
            assert!(report.contains(wanted), "{wanted}: {report}");
        }
    }
}
