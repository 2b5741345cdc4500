//! Parses sets of CPUs and binds threads to them.

use std::io;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// CPU numbers, ascending, without duplicates.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct List(pub(crate) Vec<usize>);

impl std::fmt::Display for List {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let numbers: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        f.write_str(&numbers.join(","))
    }
}

/// Parses `0,2-5`.
pub(crate) fn parse(text: &str) -> Result<List, String> {
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

/// Returns the CPUs on which the calling thread may run, ascending.
pub(crate) fn allowed() -> Vec<usize> {
    // The call fails on a host with more CPUs than the set holds.
    let Ok(set) = sched_getaffinity(None) else { return Vec::new() };
    (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect()
}

/// Restricts the calling thread, and the threads and processes that it starts, to `cpus`.
pub(crate) fn run_on(cpus: &[usize]) -> io::Result<()> {
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
        })
        .join()
        .unwrap();
    }
}
