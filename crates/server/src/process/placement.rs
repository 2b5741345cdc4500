//! Places workers on the CPUs of a host with several NUMA nodes (`numa auto`).
//!
//! The *home* of a shard is the worker that does the shard's periodic work. Homes whose CPUs share
//! a last-level cache have consecutive numbers, and the homes of consecutive shards are consecutive
//! workers. With I/O workers, each cache gets the same mix of homes and I/O workers. On a host with
//! one node, workers are not placed by node; only `pin-threads` binds them to CPUs.

use std::io;

use pantala_base::cpus::{ranges, run_on};
use pantala_base::numa::{self, Node};
use pantala_base::topology::Topology;

use super::cpus::allowed_cpus;

/// The settings that decide where workers run.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// Number of workers that are homes of shards. These workers have the lowest numbers.
    pub homes: u32,
    /// Number of I/O workers.
    pub io_workers: u32,
    /// `pin-threads`.
    pub pin_threads: bool,
    /// `numa auto`.
    pub numa: bool,
}

/// The CPUs on which a worker may run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The numbers of the CPUs, ascending.
    pub cpus: Vec<usize>,
    /// The NUMA node of these CPUs; `None` if they belong to several nodes.
    pub node: Option<usize>,
    /// Whether the worker is bound to these CPUs. A worker that isn't bound may run on all CPUs of
    /// the process.
    is_bound: bool,
}

/// The places of all workers.
#[derive(Clone, Debug)]
pub struct Placement {
    topology: Topology,
    places: Vec<Place>,
    /// The reason why workers are not placed by node; `None` if they are placed.
    unplaced: Option<&'static str>,
    /// An error, with the reason, if memory is not placed by node.
    memory: Result<(), String>,
}

impl Placement {
    /// Returns the places of all workers on the CPUs of the process.
    pub fn of_process(wanted: Wanted) -> Self {
        Self::new(Topology::of_host(&allowed_cpus()), wanted)
    }

    /// Returns the places of all workers on the CPUs of `topology`, which must not be empty.
    pub fn new(topology: Topology, wanted: Wanted) -> Self {
        let (cpus, workers) = (topology.cpus.len(), (wanted.homes + wanted.io_workers) as usize);
        let unplaced = if topology.nodes().len() < 2 {
            Some("there is one node")
        } else if !wanted.numa {
            Some("numa is off")
        } else if workers < cpus.div_ceil(2) {
            // Another process probably uses the other CPUs. If that process is another Pantala,
            // both would place their workers on the same caches, and other caches would be idle.
            Some("there are fewer workers than half of the CPUs")
        } else {
            None
        };
        let mut places = vec![Place { cpus: Vec::new(), node: None, is_bound: false }; workers];
        let all = {
            let mut all: Vec<usize> = topology.cpus.iter().map(|cpu| cpu.number).collect();
            all.sort_unstable();
            all
        };
        for (slot, worker) in order(wanted.homes, wanted.io_workers).enumerate() {
            let cpu = &topology.cpus[slot * cpus / workers];
            let bound = match (unplaced, wanted.pin_threads) {
                (None, true) => Some(vec![cpu.number]),
                (None, false) => Some(topology.neighbours(cpu)),
                (Some(_), true) => Some(vec![all[worker % cpus]]),
                (Some(_), false) => None,
            };
            let is_bound = bound.is_some();
            let cpus = bound.unwrap_or_else(|| all.clone());
            let node = topology.node_of(cpus[0]);
            let is_one = cpus.iter().all(|cpu| topology.node_of(*cpu) == node);
            places[worker] = Place { node: node.filter(|_| is_one), cpus, is_bound };
        }
        Placement { topology, places, unplaced, memory: Ok(()) }
    }

    /// Returns a worker's place.
    pub fn place(&self, worker: u32) -> &Place {
        &self.places[worker as usize]
    }

    /// Returns whether workers are placed by node.
    pub fn is_placed(&self) -> bool {
        self.unplaced.is_none()
    }

    /// Returns whether a worker runs on the node of a CPU.
    pub fn is_near(&self, worker: u32, cpu: usize) -> bool {
        let node = self.place(worker).node;
        node.is_some() && node == self.topology.node_of(cpu)
    }

    /// Returns, for each of the first `homes` workers, the NUMA node on which the entries of the
    /// worker's shards are to be allocated. Returns no nodes if workers are not placed, or if
    /// memory can't be placed on all nodes.
    pub fn memory_nodes(&mut self, homes: u32) -> Vec<Node> {
        if self.unplaced.is_some() {
            return Vec::new();
        }
        let numbers = self.topology.nodes();
        match numa::nodes(&numbers) {
            Ok(nodes) => {
                let node = |place: &Place| {
                    let at = numbers.iter().position(|number| place.node == Some(*number));
                    at.map_or(Node::ANY, |at| nodes[at])
                };
                self.places[..homes as usize].iter().map(node).collect()
            }
            Err(reason) => {
                self.memory = Err(reason);
                Vec::new()
            }
        }
    }

    /// Binds the calling thread, which must be the thread of this worker, to the worker's CPUs.
    ///
    /// # Errors
    /// The system's error.
    pub fn bind(&self, worker: u32) -> io::Result<()> {
        let place = self.place(worker);
        if place.is_bound { run_on(&place.cpus) } else { Ok(()) }
    }

    /// Describes the host and the placement, for the log. `quota` is the CPU quota of the cgroup,
    /// as a number of CPUs.
    pub fn describe(&self, quota: Option<f64>) -> String {
        let quota = quota.map_or(String::new(), |quota| format!(", quota of {quota:.1} CPUs"));
        let done = match (self.unplaced, &self.memory) {
            (Some(reason), _) => format!("workers are not placed: {reason}"),
            (None, memory) => {
                let bound = if self.places.iter().all(|place| place.cpus.len() == 1) { "a CPU" } else { "a cache" };
                let memory = match memory {
                    Ok(()) => "entries are on the node of their shard's home".to_owned(),
                    Err(reason) => format!("the kernel places entries ({reason})"),
                };
                format!(
                    "each worker is bound to {bound} of its node, {memory}, connections prefer the node that receives them"
                )
            }
        };
        format!("Topology: {}{quota}; {done}", self.topology)
    }
}

/// Formats a set of CPUs without commas, for a line of `INFO`. For example: `0-3+8`.
pub fn info_ranges(cpus: &[usize]) -> String {
    ranges(cpus).replace(',', "+")
}

/// Returns the workers in the order in which they get CPUs: homes in ascending order, and I/O
/// workers in ascending order, evenly interleaved.
fn order(homes: u32, io_workers: u32) -> impl Iterator<Item = usize> {
    let all = (homes + io_workers) as usize;
    let io_before = move |slot: usize| slot * io_workers as usize / all;
    (0..all).map(move |slot| {
        let io = io_before(slot);
        if io_before(slot + 1) > io { homes as usize + io } else { slot - io }
    })
}

/// Chooses the worker for a new connection. `loads` has each worker's number of connections.
/// Returns an index in `loads`:
///
/// - the first worker, while it has fewer than `packed` connections;
/// - otherwise, with `is_near`, the least loaded of the near workers, if its load exceeds the least
///   load of all workers by at most an eighth;
/// - otherwise, the least loaded of all workers.
pub fn choose(
    loads: impl Iterator<Item = u64> + Clone,
    packed: u64,
    is_near: Option<impl Fn(usize) -> bool>,
) -> Option<usize> {
    if loads.clone().next()? < packed {
        return Some(0);
    }
    let least = loads.clone().enumerate().min_by_key(|(_, load)| *load);
    let Some(is_near) = is_near else { return least.map(|(worker, _)| worker) };
    let (worker, least) = least?;
    let near = loads.enumerate().filter(|(worker, _)| is_near(*worker)).min_by_key(|(_, load)| *load);
    Some(near.filter(|(_, load)| *load <= least + least / 8).map_or(worker, |(near, _)| near))
}

#[cfg(test)]
mod tests {
    use super::*;
    use pantala_base::topology::Cpu;

    /// Two sockets. Each has two caches and four cores with two threads each.
    fn two_sockets() -> Topology {
        let cpu = |number: usize| {
            let core = number % 8;
            Cpu { node: core / 4, package: core / 4, cache: core / 2 * 2, core, number }
        };
        let mut cpus: Vec<Cpu> = (0..16).map(cpu).collect();
        cpus.sort_unstable();
        Topology { cpus }
    }

    fn one_socket() -> Topology {
        let cpus = (0..8).map(|number| Cpu { node: 0, package: 0, cache: number / 4 * 4, core: number, number });
        Topology { cpus: cpus.collect() }
    }

    const AUTO: Wanted = Wanted { homes: 16, io_workers: 0, pin_threads: false, numa: true };

    fn cpus(placement: &Placement) -> Vec<String> {
        placement.places.iter().map(|place| info_ranges(&place.cpus)).collect()
    }

    #[test]
    fn neighbouring_workers_share_a_cache() {
        let placement = Placement::new(two_sockets(), AUTO);
        let caches = ["0-1+8-9", "2-3+10-11", "4-5+12-13", "6-7+14-15"];
        assert_eq!(cpus(&placement), caches.map(|cache| [cache; 4]).concat());
        let nodes: Vec<_> = placement.places.iter().map(|place| place.node).collect();
        assert_eq!(nodes, [[Some(0); 8], [Some(1); 8]].concat());
        assert!(placement.is_placed() && placement.is_near(15, 4) && !placement.is_near(0, 4));
        // A worker for each core.
        let placement = Placement::new(two_sockets(), Wanted { homes: 8, ..AUTO });
        assert_eq!(cpus(&placement), caches.map(|cache| [cache; 2]).concat());
        let placement = Placement::new(two_sockets(), Wanted { homes: 8, pin_threads: true, ..AUTO });
        assert_eq!(cpus(&placement), ["0", "1", "2", "3", "4", "5", "6", "7"]);
        // More workers than CPUs.
        let placement = Placement::new(two_sockets(), Wanted { homes: 32, ..AUTO });
        assert_eq!(cpus(&placement), caches.map(|cache| [cache; 8]).concat());
    }

    #[test]
    fn each_cache_has_shards_and_io() {
        let placement = Placement::new(two_sockets(), Wanted { homes: 12, io_workers: 4, ..AUTO });
        let places = cpus(&placement);
        let (homes, io) = places.split_at(12);
        for cache in ["0-1+8-9", "2-3+10-11", "4-5+12-13", "6-7+14-15"] {
            let count = |places: &[String]| places.iter().filter(|place| *place == cache).count();
            assert_eq!((count(homes), count(io)), (3, 1), "{cache}");
        }
        for (homes, io_workers) in [(1, 0), (1, 1), (1, 7), (5, 3), (64, 1), (40, 24)] {
            let order: Vec<usize> = order(homes, io_workers).collect();
            let (shards, io): (Vec<usize>, Vec<usize>) = order.iter().partition(|worker| **worker < homes as usize);
            assert!(shards.into_iter().eq(0..homes as usize), "{order:?}");
            assert!(io.into_iter().eq(homes as usize..(homes + io_workers) as usize), "{order:?}");
        }
    }

    #[test]
    fn nothing_is_placed_without_need() {
        let placement = Placement::new(one_socket(), Wanted { homes: 8, ..AUTO });
        assert_eq!(cpus(&placement), ["0-7"; 8]);
        assert_eq!((placement.is_placed(), placement.place(7).node), (false, Some(0)));
        assert_eq!(
            placement.describe(Some(2.5)),
            "Topology: 1 package, 1 NUMA node, 2 last-level caches, 8 cores, 8 CPUs, quota of 2.5 CPUs; \
             workers are not placed: there is one node"
        );
        let mut placement = Placement::new(two_sockets(), Wanted { numa: false, ..AUTO });
        assert_eq!((placement.is_placed(), placement.place(0).node, placement.is_near(0, 0)), (false, None, false));
        assert!(placement.describe(None).ends_with("8 cores, 16 CPUs; workers are not placed: numa is off"));
        assert!(placement.memory_nodes(16).is_empty());
        let placement = Placement::new(two_sockets(), Wanted { homes: 7, ..AUTO });
        assert!(placement.describe(None).ends_with("not placed: there are fewer workers than half of the CPUs"));
        // The same placement as without `numa`: one CPU per worker, ascending.
        for topology in [one_socket(), two_sockets()] {
            let placement = Placement::new(topology, Wanted { homes: 3, pin_threads: true, ..AUTO });
            assert_eq!(cpus(&placement), ["0", "1", "2"]);
        }
    }

    #[test]
    fn unplaced_workers_are_not_bound() {
        std::thread::spawn(|| {
            let before = pantala_base::cpus::allowed();
            let cpu = *before.last().expect("a CPU");
            let topology = Topology::read(|_| None, &before);
            let wanted = Wanted { homes: before.len() as u32, ..AUTO };
            Placement::new(topology.clone(), wanted).bind(0).expect("nothing to do");
            assert_eq!(pantala_base::cpus::allowed(), before);
            let placement = Placement::new(topology, Wanted { pin_threads: true, ..wanted });
            placement.bind(wanted.homes - 1).expect("bound");
            assert_eq!(pantala_base::cpus::allowed(), [cpu]);
        })
        .join()
        .expect("the thread");
    }

    #[test]
    fn connections_prefer_their_node_while_loads_are_even() {
        let none: Option<fn(usize) -> bool> = None;
        assert_eq!(choose([3, 1, 1].into_iter(), 0, none), Some(1));
        assert_eq!(choose([3, 1, 1].into_iter(), 3, none), Some(1));
        assert_eq!(choose([3, 1, 1].into_iter(), 4, none), Some(0));
        assert_eq!(choose([].into_iter(), 4, none), None);
        let near = |loads: &[u64]| choose(loads.iter().copied(), 0, Some(|worker| worker >= 2));
        assert_eq!(near(&[0, 0, 0, 0]), Some(2));
        assert_eq!(near(&[0, 0, 1, 0]), Some(3));
        assert_eq!(near(&[0, 0, 1, 1]), Some(0));
        assert_eq!(near(&[7, 7, 8, 9]), Some(0));
        assert_eq!(near(&[8, 8, 9, 9]), Some(2));
        assert_eq!(near(&[8, 8, 10, 10]), Some(0));
        assert_eq!(near(&[1, 0]), Some(1));
    }

    /// In the first part, the network queues of both nodes receive equally many connections: nearly
    /// all connections stay on their node, and the loads differ by at most 2. In the second part,
    /// one node's queue receives all connections: the loads differ by at most about an eighth.
    #[test]
    fn the_spread_stays_even() {
        let mut random = pantala_base::Random::from_seed(1);
        let (mut loads, mut near) = ([0_u64; 64], 0);
        for _ in 0..640 {
            let node = (random.next_u64() % 2) as usize;
            let worker = choose(loads.into_iter(), 0, Some(|worker| worker / 32 == node)).expect("a worker");
            loads[worker] += 1;
            near += usize::from(worker / 32 == node);
        }
        let spread = loads.iter().max().expect("some") - loads.iter().min().expect("some");
        assert!(spread <= 2 && near > 576, "{spread} {near}");
        let mut loads = [0_u64; 64];
        for _ in 0..6400 {
            loads[choose(loads.into_iter(), 0, Some(|worker| worker < 32)).expect("a worker")] += 1;
        }
        let (least, most) = (loads.iter().min().expect("some"), loads.iter().max().expect("some"));
        assert!(most - least <= least / 8 + 1, "{least} to {most}");
    }
}
