//! Presets: named set-ups that reproduce published measurements, as far as one host can.

use super::options::Setup;
use super::preflight::{self, Needs};
use super::results::PresetReport;
use pantala_base::cpus::ranges;

/// A published set-up.
#[derive(Debug)]
pub(super) struct Preset {
    pub(super) name: &'static str,
    source: &'static str,
    /// The machine on which the published server ran.
    machine: &'static str,
    /// Number of CPUs of `machine`.
    pub(super) server_cpus: usize,
    /// The published load generator.
    generator: &'static str,
    /// Values for `--peer`. Dragonfly takes part only if it is installed.
    pub(super) peers: &'static [&'static str],
    /// Number of shards of Pantala, and of processes of a Redis cluster.
    shards: u64,
    pub(super) workloads: &'static [&'static str],
    /// Length of one measurement, in seconds.
    pub(super) seconds: u64,
    /// Differences from the published run that exist on every host.
    missing: &'static str,
}

const DRAGONFLYS_COMMANDS: &[&str] = &["2022-get1", "2022-get30", "2022-set1", "2022-set30"];

/// All presets.
const ALL: &[Preset] = &[
    Preset {
        name: "dragonfly-2022",
        source: "dragonflydb/dragonfly README.md, 2022: Dragonfly and one redis-server",
        machine: "AWS c6gn.16xlarge: 64 Arm cores, one NUMA node",
        server_cpus: 64,
        generator: "memtier_benchmark -t 55 -c 30 -n 200000 on a second c6gn.16xlarge (the threads as in Redis's answer)",
        peers: &["redis", "pantala", "dragonfly"],
        shards: 40,
        workloads: DRAGONFLYS_COMMANDS,
        seconds: 90,
        missing: "rounds end after a time, the published ones after 200,000 requests of each client; SETEX and Memcached are left out",
    },
    Preset {
        name: "redis-2022",
        source: "redis.io blog, '13 years later: does Redis need a new architecture?', 2022: a Redis 7.0 cluster of 40 and Dragonfly",
        machine: "AWS c6gn.16xlarge: 64 Arm cores, one NUMA node",
        server_cpus: 64,
        generator: "on a second c6gn.16xlarge, memtier_benchmark: two of -t 24 -c 1 --cluster-mode for the cluster, -t 55 -c 30 for Dragonfly",
        peers: &["redis-cluster", "pantala", "dragonfly"],
        shards: 40,
        workloads: DRAGONFLYS_COMMANDS,
        seconds: 180,
        missing: "Dragonfly's published rounds end after 200,000 requests of each client",
    },
    Preset {
        name: "elasticache-7.1",
        source: "AWS Database Blog, 'Achieve over 500 million requests per second per cluster with Amazon ElastiCache for Redis 7.1', 2023: one node",
        machine: "AWS r7g.4xlarge: 16 Arm cores",
        server_cpus: 16,
        generator: "500 clients on other machines",
        peers: &["redis", "pantala"],
        shards: 16,
        workloads: &["elasticache"],
        seconds: 60,
        missing: "ElastiCache itself can't be had; redis-server has one thread unless --peer gives it --io-threads",
    },
    Preset {
        name: "enterprise-200m",
        source: "redis.io blog, 'Redis Enterprise Extends Linear Scalability with 200M ops/sec', 2019: one of its 40 nodes",
        machine: "AWS c5.18xlarge: 72 CPUs of two sockets",
        server_cpus: 72,
        generator: "memtier_benchmark --ratio 1:1 --pipeline 9 -d 100 --cluster-mode, 72,000 connections to 40 nodes from 30 c5.9xlarge",
        peers: &["redis-cluster", "pantala"],
        shards: 10,
        workloads: &["enterprise-node"],
        seconds: 60,
        missing: "Redis Enterprise itself, its proxies among it, can't be had: the peer is a Redis cluster of as many shards as a node had; 39 more nodes",
    },
];

impl Preset {
    /// Returns the preset called `name`.
    pub(super) fn named(name: &str) -> Result<&'static Self, String> {
        ALL.iter().find(|preset| preset.name == name).ok_or_else(|| {
            let names: Vec<&str> = ALL.iter().map(|preset| preset.name).collect();
            format!("no preset '{name}': {}", names.join(", "))
        })
    }

    /// Returns the number of shards for `cpus` CPUs: the published number, but at most one for each
    /// CPU. With one CPU the number is two, because a cluster needs two.
    pub(super) fn shards_on(&self, cpus: usize) -> u64 {
        self.shards.min((cpus as u64).max(2))
    }

    /// Describes how `setup` differs from the publication, and checks the host's settings.
    pub(super) fn report(&self, setup: &Setup) -> PresetReport {
        let connections =
            setup.workloads.iter().map(|workload| workload.clients_at(setup.scale, setup.threads, 1)).max();
        let mut cpus = [setup.server_cpus.as_slice(), &setup.client_cpus].concat();
        cpus.sort_unstable();
        cpus.dedup();
        let needs =
            Needs { connections: connections.unwrap_or(0).into(), server_cpus: &setup.server_cpus, cpus: &cpus };
        let differences = vec![
            "servers and generator are on one host and use loopback, the published ones a network".to_owned(),
            format!("generator: pantala-bench's, threads: {}; published: {}", setup.threads, self.generator),
            self.missing.to_owned(),
        ];
        PresetReport {
            name: self.name,
            source: self.source,
            scaled_down: self.scaled_down(setup),
            differences,
            placement: setup.placement.clone(),
            findings: preflight::look(&needs),
        }
    }

    /// Describes all sizes that are smaller than published, and names the peers that are left out.
    fn scaled_down(&self, setup: &Setup) -> Vec<String> {
        let mut smaller = Vec::new();
        let own = setup.server_cpus.len();
        if own < self.server_cpus {
            let cpus = ranges(&setup.server_cpus);
            smaller.push(format!("CPUs of servers: {own} ({cpus}); published {}: {}", self.server_cpus, self.machine));
        }
        if setup.shards < self.shards {
            smaller.push(format!("shards, and processes of a cluster: {}; published {}", setup.shards, self.shards));
        }
        for workload in setup.workloads.iter().filter(|_| setup.scale != 1.0) {
            let keys = workload.numbers_at(setup.scale);
            smaller.push(format!("{}: {keys} keys; published {}", workload.name, workload.numbers));
            let clients = [setup.scale, 1.0].map(|scale| workload.clients_at(scale, setup.threads, 1));
            if clients[0] != clients[1] {
                smaller.push(format!("{}: {} connections; published {}", workload.name, clients[0], clients[1]));
            }
        }
        if setup.seconds < self.seconds {
            smaller.push(format!("rounds of {} s; this preset's have {} s", setup.seconds, self.seconds));
        }
        for name in self.peers {
            if setup.peers.iter().all(|peer| peer.name.split(':').next() != Some(name)) {
                smaller.push(format!("the peer {name} is left out"));
            }
        }
        smaller
    }
}

#[cfg(test)]
mod tests {
    use super::super::workloads::{Measured, Workload};
    use super::*;

    #[test]
    fn every_preset_is_complete() {
        for preset in ALL {
            assert_eq!(Preset::named(preset.name).unwrap().source, preset.source);
            assert!(preset.peers.contains(&"pantala") && preset.seconds > 0, "{}", preset.name);
            for name in preset.workloads {
                assert_eq!(Workload::named(name).unwrap().measured, Measured::Time, "{name}");
            }
        }
        let error = Preset::named("x").unwrap_err();
        assert!(error.contains("dragonfly-2022, redis-2022, elasticache-7.1, enterprise-200m"), "{error}");
    }

    #[test]
    fn shards_are_at_most_one_for_each_cpu() {
        let preset = Preset::named("redis-2022").unwrap();
        assert_eq!([1, 2, 8, 40, 64].map(|cpus| preset.shards_on(cpus)), [2, 2, 8, 40, 40]);
    }
}
