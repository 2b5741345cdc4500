//! How many nodes Redis's radix tree of a stream's node ids would have (`XINFO STREAM`, `radix-tree-nodes`).
//!
//! Redis keeps the ids as keys of 16 bytes, big-endian, in a radix tree that compresses chains. So a tree of more than no keys has a
//! leaf per key, a node per place where keys part, and a node for each chain of bytes between those.

use super::id::StreamId;

const KEY_BYTES: u32 = 16;

/// Nodes of the tree of `keys`, which rise. An empty tree is one node.
pub(super) fn nodes(keys: impl Iterator<Item = StreamId>) -> usize {
    // The places where keys part, from the root down to the last key's leaf, by their depth in bytes.
    let mut parting: Vec<u32> = Vec::new();
    let (mut leaves, mut inner, mut chains) = (0, 0, 0);
    let mut last: Option<u128> = None;
    // A chain leads from a parting's byte, or the root, to the next parting or leaf, unless it is there at once.
    let chain = |from: Option<u32>, to: u32| usize::from(from.map_or(0, |depth| depth + 1) < to);
    for key in keys {
        let key = u128::from(key.ms) << 64 | u128::from(key.seq);
        if let Some(last) = last {
            let shared = (last ^ key).leading_zeros() / 8;
            let mut below = KEY_BYTES;
            // What lies deeper than the place where this key parts is complete.
            while let Some(&depth) = parting.last().filter(|&&depth| depth > shared) {
                parting.pop();
                chains += chain(Some(depth), below);
                below = depth;
            }
            if parting.last() == Some(&shared) {
                chains += chain(Some(shared), below);
            } else {
                inner += 1;
                parting.push(shared);
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
    while let Some(depth) = parting.pop() {
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

    /// As `XINFO STREAM` of redis-server 7.0.15 shows them.
    #[test]
    fn as_redis_counts() {
        assert_eq!(of(&[]), 1);
        assert_eq!(of(&[(1, 1)]), 2);
        assert_eq!(of(&[(1, 1), (1, 2)]), 4);
        assert_eq!(of(&[(1, 1), (2, 1)]), 6);
        assert_eq!(of(&[(1, 1), (1, 2), (2, 1)]), 8);
        assert_eq!(of(&[(1, 1), (1, 2), (2, 1), (2, 2), (300, 2)]), 13);
    }

    /// Against a tree of bytes that is really built.
    #[test]
    fn as_a_tree_of_bytes() {
        let mut random = crate::testing::Random::announced("radix");
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

    /// Nodes of the tree of keys that are alike up to `depth`; a chain begins where it may.
    fn built(keys: &[[u8; 16]], depth: usize, begins: bool) -> usize {
        if depth == 16 {
            return 1;
        }
        let parts: Vec<&[[u8; 16]]> = keys.chunk_by(|a, b| a[depth] == b[depth]).collect();
        match parts.as_slice() {
            [all] => usize::from(begins) + built(all, depth + 1, false),
            parts => 1 + parts.iter().map(|part| built(part, depth + 1, true)).sum::<usize>(),
        }
    }
}
