//! Divides this host's CPUs between servers and load generator, according to its topology.
//!
//! The two sides share a core only if all CPUs belong to one core. They share a last-level cache or
//! a NUMA node only if separate ones would cost the servers more than [`ROUNDING_MAX`] of their
//! CPUs.

use std::collections::BTreeSet;

use pantala_base::cpus::{List, ranges};
use pantala_base::topology::{Cpu, Topology};

/// Maximum share of the servers' CPUs that is given to the generator only to keep the two sides
/// from sharing a cache or a node.
const ROUNDING_MAX: f64 = 1.0 / 8.0;
/// Maximum share of a host's CPUs that the servers get: 40 of 64.
const SERVER_PART: f64 = 40.0 / 64.0;

/// The CPUs of the servers and of the generator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Split {
    pub(super) server: Vec<usize>,
    pub(super) client: Vec<usize>,
    /// Describes the cores, caches and NUMA nodes that the two sides share. If the servers are on
    /// several NUMA nodes, also names these nodes.
    pub(super) notes: Vec<String>,
}

/// A kind of part, such as a core: its name, and the function that returns the part to which a CPU
/// belongs.
type Part = (&'static str, fn(&Cpu) -> usize);

/// The parts that the two sides should not share, from the smallest to the largest.
const PARTS: [Part; 3] =
    [("core", |cpu: &Cpu| cpu.core), ("last-level cache", |cpu: &Cpu| cpu.cache), ("NUMA node", |cpu: &Cpu| cpu.node)];

/// Divides the CPUs of `topology`. The servers get about `wanted` CPUs, but at most the share
/// [`SERVER_PART`].
pub(super) fn split(topology: &Topology, wanted: usize) -> Split {
    let cpus = &topology.cpus;
    let numbers = |cpus: &[Cpu]| -> Vec<usize> {
        let mut numbers: Vec<usize> = cpus.iter().map(|cpu| cpu.number).collect();
        numbers.sort_unstable();
        numbers
    };
    if cpus.len() < 2 {
        let all = numbers(cpus);
        let note = "servers and generator share the only CPU: their figures measure both".to_owned();
        return Split { server: all.clone(), client: all, notes: vec![note] };
    }
    let target = wanted.min((cpus.len() as f64 * SERVER_PART) as usize).max(1);
    let (server, client) = cpus.split_at(cut(cpus, target));
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

/// Returns how many of the sorted `cpus` the servers get. The number is close to `target`, and the
/// cut is between two nodes, caches or cores.
fn cut(cpus: &[Cpu], target: usize) -> usize {
    for (at, (_, of)) in PARTS.iter().enumerate().rev() {
        let is_boundary = |at: &usize| of(&cpus[at - 1]) != of(&cpus[*at]);
        let below = (1..=target.min(cpus.len() - 1)).rev().find(is_boundary);
        match below {
            Some(below) if (target - below) as f64 <= target as f64 * ROUNDING_MAX => return below,
            // The cut is within a core only if there is no boundary between two cores.
            _ if at == 0 => {
                let above = (target..cpus.len()).find(is_boundary);
                return below.or(above).unwrap_or(target);
            }
            _ => {}
        }
    }
    target
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the topology of a host whose CPUs are `allowed`. `cpu` returns a CPU's node, cache
    /// and core.
    fn of(allowed: impl IntoIterator<Item = usize>, cpu: fn(usize) -> (usize, usize, usize)) -> Topology {
        let cpu = |number| {
            let (node, cache, core) = cpu(number);
            Cpu { node, package: node, cache, core, number }
        };
        let mut cpus: Vec<Cpu> = allowed.into_iter().map(cpu).collect();
        cpus.sort_unstable();
        Topology { cpus }
    }

    /// Two sockets of a Xeon. The two CPUs of a core have distant numbers. Each socket is a node
    /// with one cache.
    fn xeon(number: usize) -> (usize, usize, usize) {
        let core = number % 36;
        (core / 18, core / 18 * 18, core)
    }

    /// An EPYC without SMT: one node with eight caches of eight cores each.
    fn epyc(number: usize) -> (usize, usize, usize) {
        (0, number / 8 * 8, number)
    }

    #[test]
    fn this_host_is_divided() {
        // The topology of a real virtual machine: two CPUs of an EPYC that share the last-level
        // cache.
        let split = split(&of(0..2, |number| (0, 0, number)), 64);
        assert_eq!((split.server, split.client), (vec![0], vec![1]));
        assert_eq!(split.notes[0], "servers and generator share the last-level cache of CPUs 0-1");
    }

    #[test]
    fn sockets_stay_whole() {
        let split = split(&of(0..72, xeon), 72);
        // The servers should get 45 CPUs, but the first socket has only 36. The cut is therefore
        // between two cores.
        assert_eq!(split.server.len(), 44);
        assert!(split.server.contains(&0) && split.server.contains(&36), "{split:?}");
        assert!(split.notes.iter().any(|note| note.contains("2 NUMA nodes: 0,1")), "{split:?}");
        let split = super::split(&of(0..72, xeon), 40);
        assert_eq!((ranges(&split.server), ranges(&split.client)), ("0-17,36-53".into(), "18-35,54-71".into()));
        assert!(split.notes.is_empty(), "{split:?}");
    }

    #[test]
    fn caches_stay_whole() {
        let split = split(&of(0..64, epyc), 43);
        assert_eq!((ranges(&split.server), ranges(&split.client)), ("0-39".into(), "40-63".into()));
        assert_eq!(split.notes, ["servers and generator share the NUMA node of CPUs 0-63"]);
    }

    #[test]
    fn a_cpuset_in_the_middle_of_a_node_is_divided() {
        let split = split(&of(20..30, epyc), 64);
        assert_eq!((ranges(&split.server), ranges(&split.client)), ("20-25".into(), "26-29".into()));
    }

    #[test]
    fn cores_are_never_divided() {
        let siblings = |number| (0, 0, number / 2 * 2);
        let split = split(&of(0..4, siblings), 1);
        assert_eq!((split.server, split.client), (vec![0, 1], vec![2, 3]));
        // If there is only one core, its two CPUs are divided.
        let split = super::split(&of(0..2, siblings), 1);
        assert_eq!((split.server, split.client), (vec![0], vec![1]));
        assert!(split.notes[0].contains("share the core of CPUs 0-1"), "{:?}", split.notes);
        let split = super::split(&of([3], siblings), 1);
        assert_eq!((split.server, split.client, split.notes.len()), (vec![3], vec![3], 1));
    }

    #[test]
    fn a_host_without_sysfs_is_divided_too() {
        let split = split(&Topology::read(|_| None, &[0, 1, 2, 3]), 2);
        assert_eq!((split.server, split.client), (vec![0, 1], vec![2, 3]));
    }
}
