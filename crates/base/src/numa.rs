//! Placement of memory on NUMA nodes.
//!
//! A [`Node`] is a node that memory can be placed on. Few hosts have more than one node. On a host
//! with one node the server uses only [`Node::ANY`], with which [`prefer`] does nothing.

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Maximum number of nodes that memory is placed on. Memory of further nodes is not placed.
pub const NODES_MAX: usize = 16;

/// A node, or no node in particular.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Node(u8);

/// The kernel's numbers of the nodes.
// Relaxed: `nodes` stores a node's number before it returns the node. Other threads get the node
// only from the caller of `nodes`.
static NUMBERS: [AtomicU32; NODES_MAX] = [const { AtomicU32::new(0) }; NODES_MAX];

impl Node {
    /// No node in particular: the kernel places a page on the node of the CPU that first uses it.
    pub const ANY: Node = Node(0);

    /// Number of values that [`Self::index`] returns.
    pub const COUNT: usize = NODES_MAX + 1;

    /// Returns a number below [`Self::COUNT`]; 0 for [`Self::ANY`].
    #[inline]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

#[cfg(not(miri))]
pub use system::{nodes, prefer};

#[cfg(not(miri))]
mod system {
    use super::{NODES_MAX, NUMBERS, Node, Relaxed};
    use core::ptr::null_mut;
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
    use std::io;

    /// Maximum number of nodes of a kernel.
    const NUMBERS_MAX: usize = 1024;
    /// Flags of `get_mempolicy` that the crate `libc` doesn't define. `MPOL_F_NODE` requests a node
    /// instead of a policy, and `MPOL_F_ADDR` the node of the page at an address.
    const OF_PAGE: libc::c_ulong = 1 | 2;
    /// Size of the trial mapping, bytes: one page on all supported platforms.
    const TRIAL_BYTES: usize = 4096;

    /// Returns the nodes with the kernel's numbers `numbers`. Places a page on each node as a
    /// trial. Nodes after the first [`NODES_MAX`] are [`Node::ANY`]. A process may use the nodes of
    /// only one call, because each call overwrites the numbers of earlier calls.
    ///
    /// # Errors
    /// Memory can't be placed on a node: a container may forbid the call, and a cpuset may exclude
    /// the node. The error names the first such node and the system's reason. Also fails if the
    /// process has a memory policy, for example from `numactl`, because that policy must stay in
    /// effect.
    pub fn nodes(numbers: &[usize]) -> Result<Vec<Node>, String> {
        if has_policy() {
            return Err("the process has a memory policy".to_owned());
        }
        let node = |(at, number): (usize, &usize)| {
            if at >= NODES_MAX {
                return Ok(Node::ANY);
            }
            try_out(*number).map_err(|error| format!("node {number}: {error}"))?;
            NUMBERS[at].store(*number as u32, Relaxed);
            Ok(Node(at as u8 + 1))
        };
        numbers.iter().enumerate().map(node).collect()
    }

    /// Makes the kernel prefer `node` for the pages of a mapping that are not in use yet. If the
    /// node has no free memory, the kernel uses another node.
    ///
    /// # Errors
    /// The system's error.
    pub fn prefer(start: *mut u8, len_bytes: usize, node: Node) -> io::Result<()> {
        match node.index().checked_sub(1) {
            Some(at) => prefer_number(start, len_bytes, NUMBERS[at].load(Relaxed) as usize),
            None => Ok(()),
        }
    }

    fn prefer_number(start: *mut u8, len_bytes: usize, number: usize) -> io::Result<()> {
        if number >= NUMBERS_MAX {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        const BITS: usize = libc::c_ulong::BITS as usize;
        let mut mask = [0 as libc::c_ulong; NUMBERS_MAX / BITS];
        mask[number / BITS] = 1 << (number % BITS);
        // SAFETY: the call changes neither the contents of memory nor its addresses, only where the
        // kernel will take further pages from. The kernel subtracts one from the length of the
        // mask, so it reads exactly `NUMBERS_MAX` bits.
        let result = unsafe {
            libc::syscall(
                libc::SYS_mbind,
                start.addr(),
                len_bytes,
                libc::MPOL_PREFERRED as libc::c_ulong,
                mask.as_ptr(),
                NUMBERS_MAX as libc::c_ulong + 1,
                0 as libc::c_ulong,
            )
        };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Returns the number of the node on which the page at `address` lies.
    ///
    /// # Errors
    /// The system's error, for example because nothing is mapped there.
    pub(super) fn node_of(address: *const u8) -> io::Result<usize> {
        let mut number: libc::c_int = 0;
        // SAFETY: with these flags the kernel writes one integer, the page's node. The kernel never
        // writes to the page.
        let result = unsafe {
            libc::syscall(
                libc::SYS_get_mempolicy,
                &raw mut number,
                null_mut::<libc::c_ulong>(),
                0 as libc::c_ulong,
                address.addr(),
                OF_PAGE,
            )
        };
        if result == 0 { Ok(number as usize) } else { Err(io::Error::last_os_error()) }
    }

    /// Returns whether the calling thread has a memory policy.
    fn has_policy() -> bool {
        let mut mode: libc::c_int = libc::MPOL_DEFAULT;
        // SAFETY: without flags and masks, the kernel writes one integer, the mode.
        let result = unsafe {
            libc::syscall(
                libc::SYS_get_mempolicy,
                &raw mut mode,
                null_mut::<libc::c_ulong>(),
                0 as libc::c_ulong,
                null_mut::<u8>(),
                0 as libc::c_ulong,
            )
        };
        result == 0 && mode != libc::MPOL_DEFAULT
    }

    /// Places a page on a node, and checks on which node it lies.
    fn try_out(number: usize) -> io::Result<()> {
        // SAFETY: an anonymous mapping at an address chosen by the kernel overlaps no other
        // mapping.
        let page =
            unsafe { mmap_anonymous(null_mut(), TRIAL_BYTES, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE) }?
                .cast::<u8>();
        let tried = prefer_number(page, TRIAL_BYTES, number).and_then(|()| {
            // SAFETY: the page is mapped, writable, and this function's own.
            unsafe { page.write(1) };
            node_of(page)
        });
        // SAFETY: the mapping made above, to which nothing refers any more.
        let _ = unsafe { munmap(page.cast(), TRIAL_BYTES) };
        match tried? {
            found if found == number => Ok(()),
            found => Err(io::Error::other(format!("the kernel took memory of node {found}"))),
        }
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    /// Every host has node 0, and none has node 1000. A container may forbid the calls.
    #[test]
    fn memory_is_placed_on_a_node() {
        let Ok(nodes) = nodes(&[0]) else { return };
        assert_eq!(nodes, [Node(1)]);
        let mut block = vec![0_u8; 1 << 20];
        let page = block.as_mut_ptr().map_addr(|address| address.next_multiple_of(4096));
        prefer(page, 4096, nodes[0]).expect("preferred");
        prefer(page, 4096, Node::ANY).expect("nothing to do");
        // SAFETY: the page lies within the block.
        unsafe { page.write(1) };
        assert!(system::node_of(page).is_ok());
        assert!(system::node_of(core::ptr::null()).is_err());
        for number in [1000, 16_000] {
            let error = super::nodes(&[0, number]).expect_err("no such node");
            assert!(error.starts_with(&format!("node {number}: ")), "{error}");
        }
    }

    #[test]
    fn nodes_have_indices() {
        assert_eq!((Node::ANY.index(), Node(NODES_MAX as u8).index() + 1), (0, Node::COUNT));
    }
}
