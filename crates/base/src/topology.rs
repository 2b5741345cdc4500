//! The CPUs of this host: which of them share a core, a last-level cache, a NUMA node or a package.
//! The kernel describes them in files below `/sys/devices/system`.
//!
//! Only the CPUs that the process may use are considered. Under a cpuset or an affinity mask, the
//! host therefore looks smaller.

use std::collections::BTreeSet;
use std::fmt;

use crate::cpus::parse;

/// Folder that [`Topology::of_host`] reads.
const ROOT: &str = "/sys/devices/system";

/// Environment variable with another folder to read, for tests of other hosts' topologies.
pub const ROOT_ENV: &str = "PANTALA_TOPOLOGY";

/// Maximum number of caches that are read per CPU.
const CACHES_MAX: usize = 10;

/// Minimum level of a cache that counts as a last-level cache even if only one core uses it.
const SHARED_LEVEL: u32 = 3;

/// A logical CPU. The number of a cache or core is that of the first CPU that belongs to it. CPUs
/// are sorted by these fields, the first field first, so CPUs that share the most are neighbors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cpu {
    /// NUMA node, as the kernel numbers it.
    pub node: usize,
    /// Package (socket), as the kernel numbers it.
    pub package: usize,
    /// Last-level cache; the package if no cache counts as a last-level cache.
    pub cache: usize,
    /// Core.
    pub core: usize,
    /// The CPU, as the kernel numbers it.
    pub number: usize,
}

/// The CPUs that a process may use, in the order of [`Cpu`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    /// The CPUs.
    pub cpus: Vec<Cpu>,
}

impl Topology {
    /// Returns the topology of the CPUs `allowed` of this host.
    pub fn of_host(allowed: &[usize]) -> Self {
        let root = std::env::var(ROOT_ENV).unwrap_or_else(|_| ROOT.to_owned());
        Self::read(|path| std::fs::read_to_string(format!("{root}/{path}")).ok(), allowed)
    }

    /// Returns the topology of the CPUs `allowed`. `file` returns the contents of a file below
    /// `/sys/devices/system`. Without these files, all CPUs are cores of one package. If the CPU
    /// lists of the nodes lack one of these CPUs, for example because a list can't be read, all
    /// CPUs belong to node 0. Memory must not be placed on guessed nodes.
    pub fn read(file: impl Fn(&str) -> Option<String>, allowed: &[usize]) -> Self {
        let list = |path: &str| file(path).and_then(|text| parse(text.trim()).ok()).map(|list| list.0);
        let mut nodes: Vec<(usize, Vec<usize>)> = list("node/online")
            .unwrap_or_default()
            .into_iter()
            .filter_map(|node| Some((node, list(&format!("node/node{node}/cpulist"))?)))
            .collect();
        if !allowed.iter().all(|number| nodes.iter().any(|(_, cpus)| cpus.contains(number))) {
            nodes.clear();
        }
        let cpu = |number: usize| {
            let folder = format!("cpu/cpu{number}");
            let value = |name: &str| file(&format!("{folder}/{name}"))?.trim().parse::<u32>().ok();
            let siblings = list(&format!("{folder}/topology/thread_siblings_list")).unwrap_or_default();
            let caches = (0..CACHES_MAX).map_while(|index| Some((value(&format!("cache/index{index}/level"))?, index)));
            let cache = caches.max().and_then(|(level, index)| {
                let sharers = list(&format!("{folder}/cache/index{index}/shared_cpu_list"))?;
                // A cache below `SHARED_LEVEL` that only one core uses doesn't count as a
                // last-level cache. Some hosts list only such caches, and not the one that the
                // cores share.
                (level >= SHARED_LEVEL || sharers.len() > siblings.len().max(1)).then(|| sharers.first().copied())?
            });
            let package = || list(&format!("{folder}/topology/core_siblings_list"))?.first().copied();
            Cpu {
                node: nodes.iter().find(|(_, cpus)| cpus.contains(&number)).map_or(0, |(node, _)| *node),
                // Some virtual machines report -1.
                package: value("topology/physical_package_id").map_or(0, |package| package as usize),
                cache: cache.or_else(package).unwrap_or(0),
                core: siblings.first().copied().unwrap_or(number),
                number,
            }
        };
        let mut cpus: Vec<Cpu> = allowed.iter().map(|number| cpu(*number)).collect();
        cpus.sort_unstable();
        Topology { cpus }
    }

    /// Returns the NUMA nodes that have at least one of the CPUs, ascending.
    pub fn nodes(&self) -> Vec<usize> {
        self.cpus.iter().map(|cpu| cpu.node).collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// Returns the numbers of the CPUs that share node and last-level cache with `cpu`, ascending.
    /// If all of these belong to one core, as on virtual machines that show a cache for each CPU,
    /// returns the CPUs of the whole node instead.
    pub fn neighbours(&self, cpu: &Cpu) -> Vec<usize> {
        let of_node = || self.cpus.iter().filter(|other| other.node == cpu.node);
        let is_alone = of_node().filter(|other| other.cache == cpu.cache).all(|other| other.core == cpu.core);
        let near = of_node().filter(|other| is_alone || other.cache == cpu.cache);
        let mut numbers: Vec<usize> = near.map(|cpu| cpu.number).collect();
        numbers.sort_unstable();
        numbers
    }

    /// Returns the node of a CPU, or `None` if the topology lacks this CPU.
    pub fn node_of(&self, number: usize) -> Option<usize> {
        self.cpus.iter().find(|cpu| cpu.number == number).map(|cpu| cpu.node)
    }
}

impl fmt::Display for Topology {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = |what: &str, of: fn(&Cpu) -> (usize, usize)| {
            let count = self.cpus.iter().map(of).collect::<BTreeSet<_>>().len();
            format!("{count} {what}{}", if count == 1 { "" } else { "s" })
        };
        write!(
            out,
            "{}, {}, {}, {}, {}",
            count("package", |cpu| (cpu.package, 0)),
            count("NUMA node", |cpu| (cpu.node, 0)),
            count("last-level cache", |cpu| (cpu.node, cpu.cache)),
            count("core", |cpu| (cpu.package, cpu.core)),
            count("CPU", |cpu| (cpu.number, 0))
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::{Path, PathBuf};
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    /// A folder with the files of a host, removed when dropped.
    struct Tree(PathBuf);

    impl Tree {
        fn new() -> Self {
            static NEXT: AtomicU32 = AtomicU32::new(0);
            let number = NEXT.fetch_add(1, Relaxed);
            Tree(std::env::temp_dir().join(format!("pantala-topology-{}-{number}", std::process::id())))
        }

        fn put(&self, path: &str, text: &str) {
            let path = self.0.join(path);
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("created");
            std::fs::write(path, format!("{text}\n")).expect("written");
        }

        /// Writes a CPU: its package, the package's CPUs, the core's CPUs, and its caches as pairs
        /// of a level and the CPUs that share the cache.
        fn cpu(&self, number: usize, package: i32, siblings: [&str; 2], caches: &[(u32, &str)]) {
            let folder = format!("cpu/cpu{number}");
            self.put(&format!("{folder}/topology/physical_package_id"), &package.to_string());
            self.put(&format!("{folder}/topology/core_siblings_list"), siblings[0]);
            self.put(&format!("{folder}/topology/thread_siblings_list"), siblings[1]);
            for (index, (level, sharers)) in caches.iter().enumerate() {
                self.put(&format!("{folder}/cache/index{index}/level"), &level.to_string());
                self.put(&format!("{folder}/cache/index{index}/shared_cpu_list"), sharers);
            }
        }

        fn nodes(&self, lists: &[&str]) {
            self.put("node/online", &if lists.len() == 1 { "0".into() } else { format!("0-{}", lists.len() - 1) });
            for (node, list) in lists.iter().enumerate() {
                self.put(&format!("node/node{node}/cpulist"), list);
            }
        }

        fn read(&self, allowed: impl IntoIterator<Item = usize>) -> Topology {
            let read = |path: &str| std::fs::read_to_string(Path::new(&self.0).join(path)).ok();
            Topology::read(read, &allowed.into_iter().collect::<Vec<_>>())
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn numbers(topology: &Topology) -> Vec<usize> {
        topology.cpus.iter().map(|cpu| cpu.number).collect()
    }

    /// Two sockets of 18 cores with two threads each: the second threads have the highest numbers.
    fn xeon() -> Tree {
        let tree = Tree::new();
        for number in 0..72 {
            let core = number % 36;
            let (package, all) = if core < 18 { (0, "0-17,36-53") } else { (1, "18-35,54-71") };
            let own = format!("{core},{}", core + 36);
            tree.cpu(number, package, [all, &own], &[(1, &own), (1, &own), (2, &own), (3, all)]);
        }
        tree.nodes(&["0-17,36-53", "18-35,54-71"]);
        tree
    }

    /// One socket with eight caches of eight cores, with one or four nodes (BIOS setting NPS).
    fn epyc(nodes: &[&str]) -> Tree {
        let tree = Tree::new();
        for number in 0..64 {
            let (own, cache) = (number.to_string(), format!("{}-{}", number / 8 * 8, number / 8 * 8 + 7));
            tree.cpu(number, 0, ["0-63", &own], &[(1, &own), (1, &own), (2, &own), (3, &cache)]);
        }
        tree.nodes(nodes);
        tree
    }

    #[test]
    fn two_sockets_of_a_xeon() {
        let tree = xeon();
        let topology = tree.read(0..72);
        assert_eq!(topology.to_string(), "2 packages, 2 NUMA nodes, 2 last-level caches, 36 cores, 72 CPUs");
        assert_eq!(numbers(&topology)[..4], [0, 36, 1, 37]);
        assert_eq!(topology.cpus[71], Cpu { node: 1, package: 1, cache: 18, core: 35, number: 71 });
        assert_eq!(crate::cpus::ranges(&topology.neighbours(&topology.cpus[0])), "0-17,36-53");
        assert_eq!((topology.node_of(54), topology.node_of(72)), (Some(1), None));
    }

    #[test]
    fn an_epyc_has_eight_caches() {
        let topology = epyc(&["0-63"]).read(0..64);
        assert_eq!(topology.to_string(), "1 package, 1 NUMA node, 8 last-level caches, 64 cores, 64 CPUs");
        let topology = epyc(&["0-15", "16-31", "32-47", "48-63"]).read(0..64);
        assert_eq!(topology.to_string(), "1 package, 4 NUMA nodes, 8 last-level caches, 64 cores, 64 CPUs");
        assert_eq!(topology.neighbours(&topology.cpus[20]), (16..24).collect::<Vec<_>>());
    }

    #[test]
    fn a_cpuset_in_the_middle_of_a_node() {
        let topology = epyc(&["0-63"]).read(20..30);
        assert_eq!(topology.to_string(), "1 package, 1 NUMA node, 2 last-level caches, 10 cores, 10 CPUs");
        assert_eq!(topology.neighbours(&topology.cpus[0]), [20, 21, 22, 23]);
        // The CPUs of one of the two sockets.
        let topology = xeon().read((18..36).chain(54..60));
        assert_eq!(topology.to_string(), "1 package, 1 NUMA node, 1 last-level cache, 18 cores, 24 CPUs");
        assert_eq!(topology.nodes(), [1]);
    }

    /// No SMT, and one cache for all cores.
    #[test]
    fn a_graviton_is_one_node() {
        let tree = Tree::new();
        for number in 0..64 {
            let own = number.to_string();
            tree.cpu(number, 0, ["0-63", &own], &[(1, &own), (1, &own), (2, &own), (3, "0-63")]);
        }
        tree.nodes(&["0-63"]);
        let topology = tree.read(0..64);
        assert_eq!(topology.to_string(), "1 package, 1 NUMA node, 1 last-level cache, 64 cores, 64 CPUs");
        assert_eq!(numbers(&topology), (0..64).collect::<Vec<_>>());
    }

    /// Cores of an Arm server whose system-level cache is not listed, in a virtual machine without
    /// package numbers.
    #[test]
    fn a_host_that_does_not_list_its_shared_cache() {
        let tree = Tree::new();
        for number in 0..8 {
            let own = number.to_string();
            let all = if number < 4 { "0-3" } else { "4-7" };
            tree.cpu(number, -1, [all, &own], &[(1, &own), (1, &own), (2, &own)]);
        }
        tree.nodes(&["0-3", "4-7"]);
        let topology = tree.read(0..8);
        assert_eq!(topology.to_string(), "1 package, 2 NUMA nodes, 2 last-level caches, 8 cores, 8 CPUs");
        assert_eq!(topology.neighbours(&topology.cpus[5]), [4, 5, 6, 7]);
    }

    /// A virtual machine that shows a socket and a level-3 cache for each CPU.
    #[test]
    fn a_cache_of_one_core_does_not_confine_a_worker() {
        let tree = Tree::new();
        for number in 0..4 {
            let own = number.to_string();
            tree.cpu(number, number as i32, [&own, &own], &[(1, &own), (3, &own)]);
        }
        tree.nodes(&["0-1", "2-3"]);
        let topology = tree.read(0..4);
        assert_eq!(topology.neighbours(&topology.cpus[0]), [0, 1]);
        assert_eq!(topology.neighbours(&topology.cpus[3]), [2, 3]);
    }

    /// A node without CPUs (memory behind CXL) and a damaged file.
    #[test]
    fn nodes_without_cpus_do_not_count() {
        let tree = Tree::new();
        for number in 0..2 {
            let own = number.to_string();
            tree.cpu(number, 0, ["0-1", &own], &[(1, &own), (3, "0-1")]);
        }
        tree.nodes(&["0-1", ""]);
        tree.put("cpu/cpu1/cache/index1/shared_cpu_list", "1-");
        let topology = tree.read(0..2);
        assert_eq!((topology.nodes(), topology.cpus[1].cache), (vec![0], 0));
    }

    /// A container may hide the files of a node.
    #[test]
    fn a_host_with_an_unreadable_list_of_cpus_has_one_node() {
        let tree = xeon();
        std::fs::remove_file(tree.0.join("node/node1/cpulist")).expect("it was there");
        let topology = tree.read(0..72);
        assert_eq!(topology.to_string(), "2 packages, 1 NUMA node, 2 last-level caches, 36 cores, 72 CPUs");
        assert_eq!((topology.node_of(0), topology.node_of(18)), (Some(0), Some(0)));
        // The remaining list has all CPUs of the first socket.
        assert_eq!(tree.read(0..18).nodes(), [0]);
        let tree = xeon();
        tree.put("node/node0/cpulist", "0-");
        assert_eq!((tree.read(0..72).nodes(), tree.read(18..36).nodes()), (vec![0], vec![1]));
    }

    #[test]
    fn a_host_without_these_files_has_one_node() {
        let topology = Topology::read(|_| None, &[3, 1]);
        assert_eq!(topology.to_string(), "1 package, 1 NUMA node, 1 last-level cache, 2 cores, 2 CPUs");
        assert_eq!(numbers(&topology), [1, 3]);
        let topology = Topology::of_host(&crate::cpus::allowed());
        assert!(!topology.nodes().is_empty(), "{topology}");
    }
}
