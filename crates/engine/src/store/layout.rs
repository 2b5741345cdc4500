//! How a keyspace is divided into shards and partitions.

/// Which thread runs a command whose shard is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Execution {
    /// The worker that parsed the command.
    Inline,
    /// The shard's home: the worker that does the shard's periodic work.
    Owner,
}

/// The layout of a keyspace.
#[derive(Clone, Debug)]
pub struct Layout {
    /// Shards, as users count them: 1 to `SHARDS_MAX`.
    pub shards: u32,
    /// Number of partitions of all shards: at least one per shard, at most `PARTITIONS_MAX`.
    pub partitions: u32,
    /// Databases, 1 to `DATABASES_MAX`.
    pub databases: u32,
    /// Number of workers that are homes of shards, at least 1. These workers have the lowest
    /// numbers.
    pub homes: u32,
    /// Number of all workers, I/O workers included.
    pub workers: u32,
    /// Where commands run.
    pub execution: Execution,
    /// Seed of the hash function. It must be secret, or a client could choose keys that all hash to
    /// one bucket.
    pub seed: u64,
    /// Seed of all visible randomness: random keys and access counters.
    pub random_seed: u64,
}

impl Layout {
    /// Returns the first partition of a shard, or the number of partitions if `shard` is the number
    /// of shards. Shards are contiguous ranges of partitions, as even as possible.
    pub(crate) fn first_partition(&self, shard: u32) -> u32 {
        (u64::from(shard) * u64::from(self.partitions)).div_ceil(u64::from(self.shards)) as u32
    }

    /// Returns the shard of a partition.
    pub(crate) fn shard_of(&self, partition: u32) -> u32 {
        (u64::from(partition) * u64::from(self.shards) / u64::from(self.partitions)) as u32
    }

    /// Returns the home of a partition's shard.
    pub(crate) fn home(&self, partition: u32) -> u32 {
        // Homes have contiguous ranges of shards, so that a worker's shards are neighbours.
        (u64::from(self.shard_of(partition)) * u64::from(self.homes) / u64::from(self.shards)) as u32
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn shards_are_even_groups_of_neighbouring_partitions() {
        for (shards, partitions, homes) in
            [(1, 1, 1), (1, 16, 1), (40, 40, 2), (40, 640, 40), (40, 41, 7), (3, 16_384, 3), (16_384, 16_384, 5)]
        {
            let layout = Layout {
                shards,
                partitions,
                databases: 1,
                homes,
                workers: homes,
                execution: Execution::Inline,
                seed: 1,
                random_seed: 1,
            };
            assert_eq!((layout.first_partition(0), layout.first_partition(shards)), (0, partitions));
            let mut sizes: Vec<u32> = Vec::new();
            for shard in 0..shards {
                let group = layout.first_partition(shard)..layout.first_partition(shard + 1);
                assert!(group.clone().all(|partition| layout.shard_of(partition) == shard), "{layout:?} {shard}");
                assert!(group.clone().all(|partition| layout.home(partition) == layout.home(group.start)));
                sizes.push(group.end - group.start);
            }
            let (least, most) = (sizes.iter().min().expect("a shard"), sizes.iter().max().expect("a shard"));
            assert!(*least >= 1 && most - least <= 1, "{layout:?}: {least} to {most}");
            assert_eq!((layout.home(0), layout.home(partitions - 1)), (0, homes - 1));
        }
    }
}
