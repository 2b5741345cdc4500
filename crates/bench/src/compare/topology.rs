//! Divides this host's CPUs between servers and generator, by its topology.
//!
//! The two sides share a core only if all CPUs are on the same core. They share a last-level cache
//! or a NUMA node only if the servers would otherwise lose more than [`ROUNDING_MAX`] of their
//! CPUs.

use std::collections::BTreeSet;

use crate::cpus::{List, parse};

/// Maximum number of a CPU's caches that are read from sysfs.
const CACHES_MAX: usize = 10;
/// Maximum part of the servers' CPUs to leave to the generator so that no cache or node is shared.
const ROUNDING_MAX: f64 = 1.0 / 8.0;
/// Maximum part of a host's CPUs that servers get: 40 of 64.
const SERVER_PART: f64 = 40.0 / 64.0;

/// A logical CPU. Caches and cores are named by the first CPU that belongs to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Cpu {
    node: usize,
    cache: usize,
    core: usize,
    number: usize,
}

/// CPUs of servers and generator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Split {
    pub(super) server: Vec<usize>,
    pub(super) client: Vec<usize>,
    /// The cores, caches and NUMA nodes that the two sides share, and the servers' NUMA nodes if
    /// there are several.
    pub(super) notes: Vec<String>,
}

/// A part of a machine: its name, and the function that returns a CPU's part.
type Part = (&'static str, fn(&Cpu) -> usize);

/// Parts that are better not shared, from the smallest to the largest.
const PARTS: [Part; 3] =
    [("core", |cpu: &Cpu| cpu.core), ("last-level cache", |cpu: &Cpu| cpu.cache), ("NUMA node", |cpu: &Cpu| cpu.node)];

/// Reads the topology of the CPUs `allowed` from sysfs. `file` returns the contents of a file below
/// `/sys/devices/system`.
pub(super) fn read(file: impl Fn(&str) -> Option<String>, allowed: &[usize]) -> Vec<Cpu> {
    let list = |path: &str| file(path).and_then(|text| parse(text.trim()).ok()).map(|list| list.0);
    let nodes: Vec<(usize, Vec<usize>)> = list("node/online")
        .unwrap_or_default()
        .into_iter()
        .filter_map(|node| Some((node, list(&format!("node/node{node}/cpulist"))?)))
        .collect();
    let first_of = |cpus: Option<Vec<usize>>| cpus.and_then(|cpus| cpus.first().copied());
    let cpu = |number: usize| {
        let folder = format!("cpu/cpu{number}");
        let level = |index: &usize| file(&format!("{folder}/cache/index{index}/level"))?.trim().parse::<u32>().ok();
        let last = (0..CACHES_MAX).filter(|index| level(index).is_some()).max_by_key(level);
        let cache = last.and_then(|index| first_of(list(&format!("{folder}/cache/index{index}/shared_cpu_list"))));
        let package = || first_of(list(&format!("{folder}/topology/core_siblings_list")));
        Cpu {
            node: nodes.iter().find(|(_, cpus)| cpus.contains(&number)).map_or(0, |(node, _)| *node),
            cache: cache.or_else(package).unwrap_or(0),
            core: first_of(list(&format!("{folder}/topology/thread_siblings_list"))).unwrap_or(number),
            number,
        }
    };
    allowed.iter().map(|number| cpu(*number)).collect()
}

/// Divides `cpus`. Servers get about `wanted` of them, but not more than [`SERVER_PART`].
pub(super) fn split(cpus: &[Cpu], wanted: usize) -> Split {
    let mut cpus = cpus.to_vec();
    cpus.sort_unstable();
    let numbers = |cpus: &[Cpu]| -> Vec<usize> {
        let mut numbers: Vec<usize> = cpus.iter().map(|cpu| cpu.number).collect();
        numbers.sort_unstable();
        numbers
    };
    if cpus.len() < 2 {
        let all = numbers(&cpus);
        let note = "servers and generator share the only CPU: their figures measure both".to_owned();
        return Split { server: all.clone(), client: all, notes: vec![note] };
    }
    let target = wanted.min((cpus.len() as f64 * SERVER_PART) as usize).max(1);
    let (server, client) = cpus.split_at(cut(&cpus, target));
    let mut notes = Vec::new();
    for (what, of) in PARTS {
        let all = |side: &[Cpu]| side.iter().map(of).collect::<BTreeSet<usize>>();
        if let Some(shared) = all(server).intersection(&all(client)).next() {
            let members: Vec<Cpu> = cpus.iter().filter(|cpu| of(cpu) == *shared).copied().collect();
            notes.push(format!("servers and generator share the {what} of CPUs {}", ranges(&numbers(&members))));
        }
    }
    let nodes: BTreeSet<usize> = server.iter().map(|cpu| cpu.node).collect();
    if nodes.len() > 1 {
        notes.push(format!("servers are on {} NUMA nodes: {}", nodes.len(), List(nodes.into_iter().collect())));
    }
    Split { server: numbers(server), client: numbers(client), notes }
}

/// Returns the number of the sorted `cpus` that the servers get: about `target`, at a boundary of a
/// node, a cache or a core.
fn cut(cpus: &[Cpu], target: usize) -> usize {
    for (at, (_, of)) in PARTS.iter().enumerate().rev() {
        let is_boundary = |at: &usize| of(&cpus[at - 1]) != of(&cpus[*at]);
        let below = (1..=target.min(cpus.len() - 1)).rev().find(is_boundary);
        match below {
            Some(below) if (target - below) as f64 <= target as f64 * ROUNDING_MAX => return below,
            // A core is divided only if there is no boundary between two cores.
            _ if at == 0 => {
                let above = (target..cpus.len()).find(is_boundary);
                return below.or(above).unwrap_or(target);
            }
            _ => {}
        }
    }
    target
}

/// Formats `0-3,8`.
pub(super) fn ranges(numbers: &[usize]) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// Returns the files of a machine. `cpus` has the siblings and the last-level cache of each
    /// CPU, as sysfs lists them. `nodes` has the CPUs of each node.
    fn tree(cpus: &[(&str, &str)], nodes: &[&str]) -> BTreeMap<String, String> {
        let mut files = BTreeMap::new();
        let mut put = |path: String, text: &str| files.insert(path, format!("{text}\n"));
        for (number, (siblings, cache)) in cpus.iter().enumerate() {
            put(format!("cpu/cpu{number}/topology/thread_siblings_list"), siblings);
            put(format!("cpu/cpu{number}/cache/index0/level"), "1");
            put(format!("cpu/cpu{number}/cache/index0/shared_cpu_list"), siblings);
            put(format!("cpu/cpu{number}/cache/index3/level"), "3");
            put(format!("cpu/cpu{number}/cache/index3/shared_cpu_list"), cache);
        }
        put("node/online".to_owned(), &format!("0-{}", nodes.len() - 1));
        for (number, list) in nodes.iter().enumerate() {
            put(format!("node/node{number}/cpulist"), list);
        }
        files
    }

    fn of(files: &BTreeMap<String, String>, allowed: impl IntoIterator<Item = usize>) -> Vec<Cpu> {
        read(|path| files.get(path).cloned(), &allowed.into_iter().collect::<Vec<_>>())
    }

    /// Two sockets of a Xeon: siblings are far apart, each socket is a node with one cache.
    fn xeon() -> BTreeMap<String, String> {
        let cpus: Vec<(String, &str)> = (0..72)
            .map(|cpu| {
                let core = cpu % 36;
                (format!("{core},{}", core + 36), if core < 18 { "0-17,36-53" } else { "18-35,54-71" })
            })
            .collect();
        let cpus: Vec<(&str, &str)> = cpus.iter().map(|(siblings, cache)| (siblings.as_str(), *cache)).collect();
        tree(&cpus, &["0-17,36-53", "18-35,54-71"])
    }

    /// An EPYC without SMT: eight caches of eight cores, one node.
    fn epyc() -> BTreeMap<String, String> {
        let cpus: Vec<(String, String)> =
            (0..64).map(|cpu| (cpu.to_string(), format!("{}-{}", cpu / 8 * 8, cpu / 8 * 8 + 7))).collect();
        let cpus: Vec<(&str, &str)> = cpus.iter().map(|(own, cache)| (own.as_str(), cache.as_str())).collect();
        tree(&cpus, &["0-63"])
    }

    #[test]
    fn this_host_is_divided() {
        // Recorded: two virtual CPUs of an EPYC that share its last-level cache.
        let cpus = of(&tree(&[("0", "0-1"), ("1", "0-1")], &["0-1"]), 0..2);
        assert_eq!(cpus[1], Cpu { node: 0, cache: 0, core: 1, number: 1 });
        let split = split(&cpus, 64);
        assert_eq!((split.server, split.client), (vec![0], vec![1]));
        assert_eq!(split.notes[0], "servers and generator share the last-level cache of CPUs 0-1");
    }

    #[test]
    fn sockets_stay_whole() {
        let split = split(&of(&xeon(), 0..72), 72);
        // 45 wanted: the first socket's 36 are too few, so the cut is at a core.
        assert_eq!(split.server.len(), 44);
        assert!(split.server.contains(&0) && split.server.contains(&36), "{split:?}");
        assert!(split.notes.iter().any(|note| note.contains("2 NUMA nodes: 0,1")), "{split:?}");
        let split = super::split(&of(&xeon(), 0..72), 40);
        assert_eq!((ranges(&split.server), ranges(&split.client)), ("0-17,36-53".into(), "18-35,54-71".into()));
        assert!(split.notes.is_empty(), "{split:?}");
    }

    #[test]
    fn caches_stay_whole() {
        let split = split(&of(&epyc(), 0..64), 43);
        assert_eq!((ranges(&split.server), ranges(&split.client)), ("0-39".into(), "40-63".into()));
        assert_eq!(split.notes, ["servers and generator share the NUMA node of CPUs 0-63"]);
    }

    #[test]
    fn a_cpuset_in_the_middle_of_a_node_is_divided() {
        let split = split(&of(&epyc(), 20..30), 64);
        assert_eq!((ranges(&split.server), ranges(&split.client)), ("20-25".into(), "26-29".into()));
    }

    #[test]
    fn cores_are_never_divided() {
        let files = tree(&[("0-1", "0-3"), ("0-1", "0-3"), ("2-3", "0-3"), ("2-3", "0-3")], &["0-3"]);
        let split = split(&of(&files, 0..4), 1);
        assert_eq!((split.server, split.client), (vec![0, 1], vec![2, 3]));
        // The siblings of the only core are divided all the same.
        let split = super::split(&of(&files, 0..2), 1);
        assert_eq!((split.server, split.client), (vec![0], vec![1]));
        assert!(split.notes[0].contains("share the core of CPUs 0-1"), "{:?}", split.notes);
        let split = super::split(&of(&files, [3]), 1);
        assert_eq!((split.server, split.client, split.notes.len()), (vec![3], vec![3], 1));
    }

    #[test]
    fn a_host_without_sysfs_is_divided_too() {
        let split = split(&read(|_| None, &[0, 1, 2, 3]), 2);
        assert_eq!((split.server, split.client), (vec![0, 1], vec![2, 3]));
    }
}
