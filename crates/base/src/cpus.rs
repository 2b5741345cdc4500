//! Sets of CPUs: parses and formats them, and binds threads to them.

use std::io;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// CPU numbers, ascending, without duplicates.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct List(pub Vec<usize>);

impl std::fmt::Display for List {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let numbers: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        f.write_str(&numbers.join(","))
    }
}

/// Parses a list of CPUs such as `0,2-5`.
///
/// # Errors
/// The text isn't a list of CPUs, or names a CPU that an affinity mask can't hold.
pub fn parse(text: &str) -> Result<List, String> {
    let wrong = || format!("'{text}' is no list of CPUs such as 0,2-5, each below {}", CpuSet::MAX_CPU);
    let number = |text: &str| text.parse::<usize>().ok().filter(|cpu| *cpu < CpuSet::MAX_CPU).ok_or_else(wrong);
    let mut cpus = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (number(first)?, number(last)?);
        if first > last {
            return Err(wrong());
        }
        cpus.extend(first..=last);
    }
    cpus.sort_unstable();
    cpus.dedup();
    Ok(List(cpus))
}

/// Formats ascending numbers as ranges, such as `0-3,8`.
pub fn ranges(numbers: &[usize]) -> String {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for number in numbers {
        match runs.last_mut() {
            Some(run) if run.1 + 1 == *number => run.1 = *number,
            _ => runs.push((*number, *number)),
        }
    }
    let text = |(first, last): &(usize, usize)| {
        if first == last { first.to_string() } else { format!("{first}-{last}") }
    };
    runs.iter().map(text).collect::<Vec<_>>().join(",")
}

/// Returns the CPUs on which the calling thread may run, ascending.
pub fn allowed() -> Vec<usize> {
    // The call fails on a host with more CPUs than the set holds.
    let Ok(set) = sched_getaffinity(None) else { return Vec::new() };
    (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect()
}

/// Restricts the calling thread, and the threads and processes that it starts, to `cpus`.
///
/// # Errors
/// The system's error, or an error if a CPU's number is too large for an affinity mask.
pub fn run_on(cpus: &[usize]) -> io::Result<()> {
    if cpus.iter().any(|cpu| *cpu >= CpuSet::MAX_CPU) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut set = CpuSet::new();
    cpus.iter().for_each(|cpu| set.set(*cpu));
    let list = List(cpus.to_vec());
    sched_setaffinity(None, &set).map_err(|error| io::Error::other(format!("can't run on the CPUs {list}: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read() {
        assert_eq!(parse("3,0-1,1").unwrap().0, [0, 1, 3]);
        assert_eq!(parse("3,0-1").unwrap().to_string(), "0,1,3");
        assert_eq!(ranges(&[0, 1, 3]), "0-1,3");
        for text in ["", "x", "2-1", "1-", "1,,2", "99999999"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_thread_runs_on_its_cpus() {
        let first = allowed()[0];
        std::thread::spawn(move || {
            run_on(&[first]).unwrap();
            assert_eq!(allowed(), [first]);
            assert!(run_on(&[CpuSet::MAX_CPU]).is_err());
        })
        .join()
        .unwrap();
    }
}
