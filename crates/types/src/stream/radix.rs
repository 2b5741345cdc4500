//! Computes the size of the radix tree that Redis would have for a stream's node ids
//! (`radix-tree-nodes` in `XINFO STREAM`).
//!
//! Redis stores the ids as big-endian keys of 16 bytes in a radix tree that compresses chains. The
//! tree has a leaf for each key, a node for each branch, and a node for each chain of bytes between
//! leaves and branches.

use super::id::StreamId;

const KEY_BYTES: u32 = 16;

/// Returns the number of nodes of the tree with these ascending keys. An empty tree has one node.
pub(super) fn nodes(keys: impl Iterator<Item = StreamId>) -> usize {
    // The depths, in bytes, of the branches on the path from the root to the leaf of the last key.
    let mut branches: Vec<u32> = Vec::new();
    let (mut leaves, mut inner, mut chains) = (0, 0, 0);
    let mut last: Option<u128> = None;
    // A chain leads from a branch, or from the root, to the next branch or leaf. There is no chain
    // if no bytes are between the two.
    let chain = |from: Option<u32>, to: u32| usize::from(from.map_or(0, |depth| depth + 1) < to);
    for key in keys {
        let key = u128::from(key.ms) << 64 | u128::from(key.seq);
        if let Some(last) = last {
            let shared = (last ^ key).leading_zeros() / 8;
            let mut below = KEY_BYTES;
            // This key shares only its first `shared` bytes with the last one. Later keys are
            // greater, so no later key uses the branches of the last key's path below this depth.
            while let Some(&depth) = branches.last().filter(|&&depth| depth > shared) {
                branches.pop();
                chains += chain(Some(depth), below);
                below = depth;
            }
            if branches.last() == Some(&shared) {
                chains += chain(Some(shared), below);
            } else {
                inner += 1;
                branches.push(shared);
                chains += chain(Some(shared), below);
            }
        }
        leaves += 1;
        last = Some(key);
    }
    if leaves == 0 {
        return 1;
    }
    let mut below = KEY_BYTES;
    while let Some(depth) = branches.pop() {
        chains += chain(Some(depth), below);
        below = depth;
    }
    leaves + inner + chains + chain(None, below)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(ids: &[(u64, u64)]) -> usize {
        nodes(ids.iter().map(|&(ms, seq)| StreamId { ms, seq }))
    }

    /// The expected counts come from `XINFO STREAM` of redis-server 7.0.15.
    #[test]
    fn counts_equal_those_of_redis() {
        assert_eq!(of(&[]), 1);
        assert_eq!(of(&[(1, 1)]), 2);
        assert_eq!(of(&[(1, 1), (1, 2)]), 4);
        assert_eq!(of(&[(1, 1), (2, 1)]), 6);
        assert_eq!(of(&[(1, 1), (1, 2), (2, 1)]), 8);
        assert_eq!(of(&[(1, 1), (1, 2), (2, 1), (2, 2), (300, 2)]), 13);
    }

    /// Compares the computed number with the number of nodes of a tree that is built.
    #[test]
    fn counts_equal_those_of_a_built_tree() {
        let mut random = crate::testing::Random::with_printed_seed("radix");
        for _ in 0..200 {
            let bits = 1 + random.below(30);
            let span = 1 + random.below(1 << bits);
            let mut keys: Vec<StreamId> =
                (0..random.below(60)).map(|_| StreamId { ms: random.below(span), seq: random.below(3) }).collect();
            keys.sort();
            keys.dedup();
            let bytes: Vec<[u8; 16]> =
                keys.iter().map(|key| (u128::from(key.ms) << 64 | u128::from(key.seq)).to_be_bytes()).collect();
            let expected = if keys.is_empty() { 1 } else { built(&bytes, 0, true) };
            assert_eq!(nodes(keys.iter().copied()), expected, "{keys:?}");
        }
    }

    /// Counts the nodes of the tree of keys that share `depth` bytes. With `starts_chain`, a chain
    /// may start here.
    fn built(keys: &[[u8; 16]], depth: usize, starts_chain: bool) -> usize {
        if depth == 16 {
            return 1;
        }
        let parts: Vec<&[[u8; 16]]> = keys.chunk_by(|a, b| a[depth] == b[depth]).collect();
        match parts.as_slice() {
            [all] => usize::from(starts_chain) + built(all, depth + 1, false),
            parts => 1 + parts.iter().map(|part| built(part, depth + 1, true)).sum::<usize>(),
        }
    }
}
