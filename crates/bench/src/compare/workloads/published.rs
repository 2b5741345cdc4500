//! The workloads of the presets, with all sizes as published.

use super::table::{BASE, GET, SET, uniform};
use super::{Clients, Needs, Workload};

/// Base of workloads with the commands of Dragonfly's README. The clients are those of Redis's blog
/// post that answers the README. A single server is driven by 55 threads with 30 clients each. A
/// cluster is driven by two generators, each of 24 threads with one client.
const OF_2022: Workload = Workload {
    source: "redis.io blog, '13 years later: does Redis need a new architecture?', 2022: memtier_benchmark --distinct-client-seed -d 256 --key-maximum 1000000, -t 55 -c 30 for Dragonfly, two of -t 24 -c 1 --cluster-mode for the cluster",
    ours: "all keys are loaded first; one generator has the clients of both memtier_benchmarks",
    clients: Clients::Servers { one: 55 * 30, cluster: 2 * 24 },
    ..BASE
};

/// All workloads that only presets use.
pub(crate) const ALL: &[Workload] = &[
    Workload { name: "2022-get1", commands: &[uniform(GET, 1)], ..OF_2022 },
    Workload { name: "2022-get30", commands: &[uniform(GET, 1)], pipeline: 30, ..OF_2022 },
    Workload { name: "2022-set1", commands: &[uniform(SET, 1)], ..OF_2022 },
    Workload { name: "2022-set30", commands: &[uniform(SET, 1)], pipeline: 30, ..OF_2022 },
    Workload {
        name: "enterprise-node",
        source: "redis.io blog, 'Redis Enterprise Extends Linear Scalability with 200M ops/sec', 2019: memtier_benchmark --ratio 1:1 --pipeline 9 -d 100 --key-minimum 1 --cluster-mode, 10 M keys, latency below 1 ms; a node's part of 72,000 connections to 40 nodes",
        ours: "one node has all keys",
        commands: &[uniform(SET, 1), uniform(GET, 1)],
        numbers: 10_000_000,
        key_minimum: 1,
        data_bytes: 100,
        clients: Clients::Connections(1_800),
        pipeline: 9,
        needs: Needs::ClusterMode,
        latency_max_us: Some(1000.0),
        ..BASE
    },
];
