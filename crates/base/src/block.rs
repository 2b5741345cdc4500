//! The memory usage of a heap block, for the accounting of values.
//!
//! The allocator rounds sizes up: a block of 200 KiB takes 224 KiB. With huge pages the difference
//! is resident, so `maxmemory` has to count it. For small blocks the difference is only a few
//! percent. It is not counted, because that would cost a rounding for every small value.

/// Minimum size of a block that is accounted with its rounded size, in bytes (32 KiB).
const ROUNDED_BYTES_MIN: usize = 32 * 1024;

/// Maximum size of a block from one of mimalloc's size classes, in bytes (512 KiB). Each range from
/// a power of two to the next has four classes.
const CLASS_BYTES_MAX: usize = 512 * 1024;

/// Unit in which mimalloc allocates blocks above its size classes, in bytes (64 KiB).
const SLICE_BYTES: usize = 64 * 1024;

/// Unit to which the kernel rounds up a block with a mapping of its own, in bytes (4 KiB).
const PAGE_BYTES: usize = 4096;

/// Minimum size of a block with a mapping of its own, in bytes (8 MiB): see `allocator`.
pub const MAPPED_BYTES_MIN: usize = 8 * 1024 * 1024;

/// Returns the memory usage of a block of `bytes` bytes, in bytes: `bytes` itself below 32 KiB,
/// otherwise the rounded size, which is at least `bytes`.
#[inline]
#[must_use]
pub const fn block_bytes(bytes: usize) -> usize {
    if bytes < ROUNDED_BYTES_MIN { bytes } else { large_block_bytes(bytes) }
}

#[cold]
const fn large_block_bytes(bytes: usize) -> usize {
    let unit = if bytes <= CLASS_BYTES_MAX {
        // The largest power of two that is less than `bytes`.
        let power = 1 << (bytes - 1).ilog2();
        power / 4
    } else if bytes < MAPPED_BYTES_MIN {
        SLICE_BYTES
    } else {
        PAGE_BYTES
    };
    match bytes.checked_next_multiple_of(unit) {
        Some(rounded) => rounded,
        None => bytes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_rounded_up_to_size_classes_slices_and_pages() {
        const KIB: usize = 1024;
        for (bytes, expected) in [
            (0, 0),
            (1, 1),
            (32 * KIB - 1, 32 * KIB - 1),
            (32 * KIB, 32 * KIB),
            (32 * KIB + 1, 40 * KIB),
            (100_000, 112 * KIB),
            (200 * KIB, 224 * KIB),
            (512 * KIB, 512 * KIB),
            (512 * KIB + 1, 576 * KIB),
            (1_000_000, 16 * SLICE_BYTES),
            (MAPPED_BYTES_MIN - 1, MAPPED_BYTES_MIN),
            (MAPPED_BYTES_MIN + 1, MAPPED_BYTES_MIN + PAGE_BYTES),
            (usize::MAX, usize::MAX),
        ] {
            assert_eq!(block_bytes(bytes), expected, "{bytes}");
        }
    }
}
