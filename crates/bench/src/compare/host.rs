//! Describes the host for a report.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use super::process::stat_word;
use super::results::Host;

/// Describes the host at the start of the run. The caller sets `load_after` when the run ends.
pub(super) fn look() -> Host {
    let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let names = rustix::system::uname();
    let cpu_info = text("/proc/cpuinfo");
    let cpu = cpu_info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let total_kb =
        text("/proc/meminfo").lines().next().and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
    Host {
        cpu: cpu.map_or_else(|| names.machine().to_string_lossy().into_owned(), |(_, name)| name.to_owned()),
        cpus: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
        memory_bytes: total_kb.unwrap_or_default() * 1024,
        kernel: format!("{} {}", names.sysname().to_string_lossy(), names.release().to_string_lossy()),
        scheduling: scheduling(&text("/proc/self/stat")),
        began: date(std::time::SystemTime::now()),
        load_before: load(),
        load_after: String::new(),
        tool: format!(
            "pantala-bench {}{}",
            env!("CARGO_PKG_VERSION"),
            if cfg!(debug_assertions) { ", debug build" } else { "" }
        ),
        checkout: std::env::current_exe().ok().and_then(|program| checkout(program.parent()?)),
    }
}

/// Environment variables that make git use another repository than that of the working directory.
const GIT_PLACES: [&str; 3] = ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"];

/// Returns git's description of the checkout that contains `folder`. Returns `None` if git isn't
/// installed or there is no checkout.
fn checkout(folder: &Path) -> Option<String> {
    let mut git = Command::new("git");
    git.arg("-C").arg(folder).args(["describe", "--always", "--dirty", "--abbrev=12"]).env("GIT_OPTIONAL_LOCKS", "0");
    // In a git hook, these variables name the hook's repository.
    GIT_PLACES.iter().for_each(|name| _ = git.env_remove(name));
    let output =
        git.stdin(Stdio::null()).stderr(Stdio::null()).output().ok().filter(|output| output.status.success())?;
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    (!text.is_empty()).then_some(text)
}

/// Returns the load average of the last minute.
pub(super) fn load() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().next().unwrap_or("?").to_owned()
}

fn scheduling(stat: &str) -> String {
    // In proc(5), field 19 is the nice value, field 40 the real-time priority and field 41 the
    // policy.
    match (stat_word(stat, 41), stat_word(stat, 40), stat_word(stat, 19)) {
        ("1", priority, _) => format!("SCHED_FIFO, priority {priority}"),
        ("2", priority, _) => format!("SCHED_RR, priority {priority}"),
        (_, _, "0") => "normal".to_owned(),
        (_, _, nice) => format!("normal, nice {nice}"),
    }
}

/// Formats a time as `2026-11-21 19:04 UTC`.
fn date(now: std::time::SystemTime) -> String {
    let seconds = now.duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (days, minutes) = (seconds / 86_400, seconds / 60 % 1_440);
    // Counts years from March. The leap day is then the last day of a year, and each month starts
    // on a fixed day of the year.
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02} UTC", minutes / 60, minutes % 60)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, UNIX_EPOCH};

    #[test]
    fn dates() {
        let at = |seconds| date(UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(at(0), "1970-01-01 00:00 UTC");
        assert_eq!(at(951_782_400), "2000-02-29 00:00 UTC");
        assert_eq!(at(1_798_761_599), "2026-12-31 23:59 UTC");
    }

    #[test]
    fn outside_of_a_checkout_there_is_none() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(checkout(folder.path()), None);
        let git = |arguments: &[&str]| {
            let mut git = Command::new("git");
            git.arg("-C").arg(folder.path()).args(["-c", "user.name=a", "-c", "user.email=b"]).args(arguments);
            GIT_PLACES.iter().for_each(|name| _ = git.env_remove(name));
            git.output().is_ok_and(|output| output.status.success())
        };
        // Without git nothing more can be checked.
        if git(&["init", "-q"]) && git(&["commit", "-q", "--allow-empty", "-m", "x"]) {
            assert_eq!(checkout(folder.path()).unwrap().len(), 12);
        }
    }

    #[test]
    fn this_host_is_described() {
        let host = look();
        assert!(host.cpus > 0 && host.kernel.starts_with("Linux ") && !host.load_before.is_empty(), "{host:?}");
        let stat = |nice: i32, priority: u32, policy: u32| {
            format!("1 (a) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 {nice} 1 0{} 17 0 {priority} {policy} 0", " 0".repeat(16))
        };
        assert_eq!(scheduling(&stat(0, 5, 1)), "SCHED_FIFO, priority 5");
        assert_eq!(scheduling(&stat(-20, 0, 0)), "normal, nice -20");
        assert_eq!(scheduling(&stat(0, 0, 0)), "normal");
    }
}
