//! Memory of the entries: cells of a size class, cut from 64 KB runs that belong to one dictionary.
//!
//! The owner allocates and frees without atomic operations. Masking the low bits of a cell's
//! address gives its run. An allocation takes a freed cell, if there is one. Otherwise it cuts a
//! new cell from a run's unused end, so pages that were never needed never become resident.
//!
//! For cells of at most 128 bytes, the first run of each class is a *small* run of 1 KB. A
//! dictionary of a few keys therefore doesn't take a page per class. Empty runs return to a pool
//! shared by all dictionaries on the same NUMA node. Small runs return to one pool for all nodes.
//! Each slab keeps at most one empty run as a spare. Without the spare, a key that is repeatedly
//! added and removed could take a run from the pool and return it each time.

use core::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

use pantala_base::numa::Node;

use crate::memory::{PAGE_BYTES, Usage, discard, map_forever, page_ceil};

/// Bytes and alignment of a run.
const RUN_BYTES: usize = 64 * 1024;
/// Size of a run's header, in bytes. The header has its own cache line, so that 32-byte cells never
/// straddle lines.
const RUN_HEADER_BYTES: usize = 64;
/// Bytes and alignment of a small run.
const SMALL_RUN_BYTES: usize = 1024;
/// Maximum cell size in small runs, in bytes. At least seven such cells fit.
const SMALL_RUN_CELL_BYTES_MAX: usize = 128;
/// Size of the only mapping of small runs, in bytes. When the whole mapping is in use, dictionaries
/// start with ordinary runs.
const SMALL_RUNS_BYTES: usize = if cfg!(miri) { 256 } else { 64 * 1024 } * SMALL_RUN_BYTES;
/// Runs per mapped chunk: 32 MB.
const CHUNK_RUNS: usize = if cfg!(miri) { 4 } else { 512 };
const HUGE_PAGE_BYTES: usize = 2 * 1024 * 1024;
/// Maximum number of empty runs in a node's pool that stay resident (2 MB).
const WARM_RUNS_MAX: usize = 32;
/// Smallest cell, in bytes. A free cell holds a link of four bytes.
const CELL_BYTES_MIN: usize = 8;
/// Largest cell, in bytes; the global allocator serves longer entries.
pub(crate) const CELL_BYTES_MAX: usize = 4096;
/// Number of size classes.
pub(crate) const CLASSES: usize = 71;

/// Cell sizes by class: multiples of 4 bytes up to 64, of 8 up to 128, of 16 up to 512, then steps
/// of at most an eighth.
static CELL_BYTES: [u16; CLASSES] = {
    let mut sizes = [0; CLASSES];
    let mut class = 0;
    let mut size = CELL_BYTES_MIN;
    while class < CLASSES {
        sizes[class] = size as u16;
        size += class_step(size);
        class += 1;
    }
    assert!(sizes[CLASSES - 1] as usize == CELL_BYTES_MAX);
    sizes
};

const fn class_step(size: usize) -> usize {
    match size {
        0..64 => 4,
        64..128 => 8,
        128..512 => 16,
        512..1024 => 64,
        1024..2048 => 128,
        _ => 256,
    }
}

/// Returns the class of the smallest cell for `size` bytes (at most [`CELL_BYTES_MAX`]).
#[inline]
pub(crate) const fn class_of(size: usize) -> usize {
    match size {
        0..=8 => 0,
        9..=64 => size.div_ceil(4) - 2,
        65..=128 => size.div_ceil(8) + 6,
        129..=512 => size.div_ceil(16) + 14,
        513..=1024 => size.div_ceil(64) + 38,
        1025..=2048 => size.div_ceil(128) + 46,
        _ => size.div_ceil(256) + 54,
    }
}

/// Returns the cell size of a class, in bytes.
#[inline]
pub(crate) fn cell_bytes(class: usize) -> usize {
    usize::from(CELL_BYTES[class])
}

/// The header of every run in use.
#[repr(C)]
struct Run {
    /// The next run in the list of runs of this class with free cells. Not used while this run is
    /// full, because a full run isn't in the list.
    next: *mut Run,
    /// The previous run in that list.
    previous: *mut Run,
    /// Offset of the first free cell, or 0. The first four bytes of a free cell are the offset of
    /// the next.
    free: u32,
    /// Offset of the unused end: the first byte that was never part of a cell.
    bump: u32,
    /// Cells in use.
    live: u32,
    /// The run's index in [`Slab::runs`].
    index: u32,
    /// Size of the run, in bytes.
    size_bytes: u32,
    /// Size of each of the run's cells, in bytes.
    cell_bytes: u16,
    class: u16,
}

const _: () = assert!(size_of::<Run>() <= RUN_HEADER_BYTES);
const _: () = assert!(class_of(SMALL_RUN_CELL_BYTES_MAX) < u32::BITS as usize);

impl Run {
    fn is_full(&self) -> bool {
        self.free == 0 && self.bump + u32::from(self.cell_bytes) > self.size_bytes
    }

    /// Returns the run's resident bytes: the pages that ever held a cell, or all of a small run.
    fn touched_bytes(&self) -> usize {
        if self.size_bytes as usize == SMALL_RUN_BYTES { SMALL_RUN_BYTES } else { page_ceil(self.bump as usize) }
    }
}

/// The cells of one dictionary.
pub(crate) struct Slab {
    /// Per class, the first run with free cells. The vector is empty until the first cell is
    /// allocated, so that an empty dictionary is small.
    heads: Vec<*mut Run>,
    /// All runs, unordered, without the spare.
    runs: Vec<*mut Run>,
    spare: *mut Run,
    live_bytes: usize,
    touched_bytes: usize,
    /// Classes that have a small run, one bit each.
    classes_with_small: u32,
    /// Node of the runs, except for small ones.
    node: Node,
}

// SAFETY: the runs belong to this slab alone, and they aren't tied to a thread.
unsafe impl Send for Slab {}

impl Slab {
    pub(crate) const fn new(node: Node) -> Self {
        Self {
            heads: Vec::new(),
            runs: Vec::new(),
            spare: core::ptr::null_mut(),
            live_bytes: 0,
            touched_bytes: 0,
            classes_with_small: 0,
            node,
        }
    }

    /// Returns the node of the runs.
    #[inline]
    pub(crate) fn node(&self) -> Node {
        self.node
    }

    /// Returns the bytes of the cells in use.
    pub(crate) fn live_bytes(&self) -> usize {
        self.live_bytes
    }

    /// Returns the bytes of the pages that ever held a cell: the resident part of the runs.
    pub(crate) fn touched_bytes(&self) -> usize {
        self.touched_bytes
    }

    /// Returns a cell of a class, its contents unspecified, aligned to 4 bytes.
    #[inline]
    pub(crate) fn alloc(&mut self, class: usize) -> NonNull<u8> {
        let mut run = self.heads.get(class).copied().unwrap_or(core::ptr::null_mut());
        if run.is_null() {
            run = self.add_run(class);
        }
        // SAFETY: `run` is a run of this slab with a free cell: the lists hold only such runs, and
        // a new run is empty. Its header is initialized and nothing else refers to it. A free
        // cell's offset is within the run, and its link was written by `free`; the bump offset plus
        // a cell is within the run, because the run isn't full.
        unsafe {
            let header = &mut *run;
            let offset = if header.free != 0 {
                let offset = header.free;
                header.free = run.cast::<u8>().add(offset as usize).cast::<u32>().read();
                offset
            } else {
                let offset = header.bump;
                header.bump += u32::from(header.cell_bytes);
                self.touched_bytes += page_ceil(header.bump as usize) - page_ceil(offset as usize);
                offset
            };
            header.live += 1;
            self.live_bytes += usize::from(header.cell_bytes);
            if header.is_full() {
                self.unlink(run);
            }
            NonNull::new_unchecked(run.cast::<u8>().add(offset as usize))
        }
    }

    /// Frees a cell.
    ///
    /// # Safety
    ///
    /// `cell` came from [`Self::alloc`] of this slab, which may have been moved since, and is no
    /// longer used.
    #[inline]
    pub(crate) unsafe fn free(&mut self, cell: NonNull<u8>) {
        let run = run_of(cell);
        // SAFETY: masking a cell's address gives its run, which this slab owns while a cell of the
        // run is in use; the cell is at least four bytes, 4-aligned, and no longer used.
        unsafe {
            let header = &mut *run;
            let was_full = header.is_full();
            cell.cast::<u32>().write(header.free);
            header.free = cell.addr().get() as u32 & (header.size_bytes - 1);
            header.live -= 1;
            self.live_bytes -= usize::from(header.cell_bytes);
            let live = header.live;
            if was_full {
                self.link(run);
            }
            if live == 0 {
                self.drop_run(run);
            }
        }
    }

    /// Pushes a run to the front of its class's list.
    fn link(&mut self, run: *mut Run) {
        // SAFETY: `run` and the head of the list are runs of this slab; no reference to either is
        // alive.
        unsafe {
            let head = &mut self.heads[usize::from((*run).class)];
            (*run).next = *head;
            (*run).previous = core::ptr::null_mut();
            if !head.is_null() {
                (**head).previous = run;
            }
            *head = run;
        }
    }

    /// Removes a run from its class's list.
    fn unlink(&mut self, run: *mut Run) {
        // SAFETY: `run` is in the list, so its neighbors are runs of this slab or null.
        unsafe {
            let (next, previous) = ((*run).next, (*run).previous);
            if !next.is_null() {
                (*next).previous = previous;
            }
            if previous.is_null() {
                self.heads[usize::from((*run).class)] = next;
            } else {
                (*previous).next = next;
            }
        }
    }

    #[cold]
    fn add_run(&mut self, class: usize) -> *mut Run {
        if self.heads.is_empty() {
            self.heads = vec![core::ptr::null_mut(); CLASSES];
        }
        let (run, size_bytes) = match self.take_small(class) {
            Some(run) => (run, SMALL_RUN_BYTES),
            None if self.spare.is_null() => (acquire(self.node), RUN_BYTES),
            None => (core::mem::replace(&mut self.spare, core::ptr::null_mut()), RUN_BYTES),
        };
        // SAFETY: only this slab uses the run now, and its header's memory is writable and aligned.
        unsafe {
            run.write(Run {
                next: core::ptr::null_mut(),
                previous: core::ptr::null_mut(),
                free: 0,
                bump: RUN_HEADER_BYTES as u32,
                live: 0,
                index: self.runs.len() as u32,
                size_bytes: size_bytes as u32,
                cell_bytes: CELL_BYTES[class],
                class: class as u16,
            });
        }
        self.touched_bytes += size_bytes.min(PAGE_BYTES);
        self.runs.push(run);
        self.link(run);
        run
    }

    /// Returns a small run for the first cells of a class. Returns `None` if the cells of the class
    /// are too large, if the class has a small run already, or if no small run is left.
    fn take_small(&mut self, class: usize) -> Option<*mut Run> {
        if cell_bytes(class) > SMALL_RUN_CELL_BYTES_MAX || self.classes_with_small >> class & 1 == 1 {
            return None;
        }
        let run = acquire_small()?;
        self.classes_with_small |= 1 << class;
        Some(run)
    }

    /// Removes an empty run from its list. The run becomes the spare or returns to the pool.
    #[cold]
    fn drop_run(&mut self, run: *mut Run) {
        self.unlink(run);
        // SAFETY: `run` is a run of this slab, and so is the one that takes its place in `runs`.
        unsafe {
            let index = (*run).index as usize;
            self.touched_bytes -= (*run).touched_bytes();
            self.runs.swap_remove(index);
            if let Some(&moved) = self.runs.get(index) {
                (*moved).index = index as u32;
            }
        }
        if is_small(run) {
            // SAFETY: as above.
            self.classes_with_small &= !(1 << unsafe { (*run).class });
        } else if self.spare.is_null() && !self.runs.is_empty() {
            self.spare = run;
            return;
        }
        release(vec![run], self.node);
        if self.runs.is_empty() && !self.spare.is_null() {
            release(vec![self.spare], self.node);
            self.spare = core::ptr::null_mut();
        }
    }
}

impl Drop for Slab {
    /// Frees all cells at once by returning the runs to the pool.
    fn drop(&mut self) {
        if !self.spare.is_null() {
            self.runs.push(self.spare);
        }
        release(core::mem::take(&mut self.runs), self.node);
    }
}

/// Address of the mapping of small runs. Before the mapping exists, this is an address at the end
/// of the address space, so that no cell appears to lie in the mapping.
// Relaxed: the address is stored under the pool's lock before the first small run is handed out. A
// thread that has a cell of a small run got it, directly or through other threads, after that lock
// was released, so it sees the store. For all other cells, the old and the new address give the
// same result.
static SMALL_RUNS: AtomicUsize = AtomicUsize::new(usize::MAX - SMALL_RUNS_BYTES);

/// Returns whether an address lies in a small run.
#[inline]
fn is_small<T>(address: *mut T) -> bool {
    address.addr().wrapping_sub(SMALL_RUNS.load(Relaxed)) < SMALL_RUNS_BYTES
}

/// Returns the run that a cell lies in.
#[inline]
fn run_of(cell: NonNull<u8>) -> *mut Run {
    let size_bytes = if is_small(cell.as_ptr()) { SMALL_RUN_BYTES } else { RUN_BYTES };
    cell.as_ptr().map_addr(|address| address & !(size_bytes - 1)).cast()
}

/// The runs on one node that no dictionary holds.
struct Pool {
    /// Runs whose pages are still resident.
    warm: Vec<*mut Run>,
    /// Runs whose pages were returned to the kernel.
    cold: Vec<*mut Run>,
    /// The first of the runs that were never used, which are contiguous.
    next: *mut Run,
    /// Number of runs that were never used.
    left: usize,
    /// Whether any chunk was mapped.
    mapped: bool,
}

// SAFETY: the pointers are to unused memory, handed out under the pool's mutex.
unsafe impl Send for Pool {}

/// Small runs that no dictionary holds.
struct SmallPool {
    /// Freed runs.
    free: Vec<*mut Run>,
    /// The first of the runs that were never used, or null before they are mapped.
    next: *mut Run,
    /// Number of runs that were never used.
    left: usize,
}

// SAFETY: as for `Pool`.
unsafe impl Send for SmallPool {}

/// Pools by node.
static POOLS: [Mutex<Pool>; Node::COUNT] = [const {
    Mutex::new(Pool { warm: Vec::new(), cold: Vec::new(), next: core::ptr::null_mut(), left: 0, mapped: false })
}; Node::COUNT];
static SMALL_POOL: Mutex<SmallPool> = Mutex::new(SmallPool { free: Vec::new(), next: core::ptr::null_mut(), left: 0 });

/// Locks a pool. Ignores poisoning: no code panics while a pool is inconsistent.
fn lock<T>(pool: &'static Mutex<T>) -> MutexGuard<'static, T> {
    pool.lock().unwrap_or_else(PoisonError::into_inner)
}

fn acquire(node: Node) -> *mut Run {
    let mut pool = lock(&POOLS[node.index()]);
    if let Some(run) = pool.warm.pop() {
        return run;
    }
    if let Some(run) = pool.cold.pop() {
        return run;
    }
    if pool.left == 0 {
        let align_bytes = if cfg!(miri) { RUN_BYTES } else { HUGE_PAGE_BYTES };
        // With huge pages the first cell of a run makes the whole run resident. To keep small
        // servers small, the first chunk has no huge pages. Large servers need them: without huge
        // pages, a lookup among 20 M entries misses the TLB at every entry.
        let usage = if pool.mapped { Usage::Dense } else { Usage::Sparse };
        pool.mapped = true;
        pool.next = map_forever(CHUNK_RUNS * RUN_BYTES, align_bytes, usage, node).cast().as_ptr();
        pool.left = CHUNK_RUNS;
    }
    let run = pool.next;
    pool.left -= 1;
    if pool.left > 0 {
        // SAFETY: another run follows in the chunk.
        pool.next = unsafe { run.byte_add(RUN_BYTES) };
    }
    run
}

fn acquire_small() -> Option<*mut Run> {
    let mut pool = lock(&SMALL_POOL);
    if let Some(run) = pool.free.pop() {
        return Some(run);
    }
    if pool.next.is_null() {
        let start = map_forever(SMALL_RUNS_BYTES, PAGE_BYTES, Usage::Sparse, Node::ANY);
        SMALL_RUNS.store(start.as_ptr().expose_provenance(), Relaxed);
        pool.next = start.cast().as_ptr();
        pool.left = SMALL_RUNS_BYTES / SMALL_RUN_BYTES;
    }
    pool.left = pool.left.checked_sub(1)?;
    let run = pool.next;
    if pool.left > 0 {
        // SAFETY: another small run follows in the mapping.
        pool.next = unsafe { run.byte_add(SMALL_RUN_BYTES) };
    }
    Some(run)
}

/// Returns unused runs of `node`, and small runs, to their pools. The pages of small runs stay
/// resident, because several dictionaries share a page.
fn release(mut runs: Vec<*mut Run>, node: Node) {
    if runs.iter().any(|run| is_small(*run)) {
        lock(&SMALL_POOL).free.extend(runs.extract_if(.., |run| is_small(*run)));
    }
    let warm = {
        let mut pool = lock(&POOLS[node.index()]);
        let warm = WARM_RUNS_MAX.saturating_sub(pool.warm.len()).min(runs.len());
        pool.warm.extend_from_slice(&runs[..warm]);
        warm
    };
    // `discard` runs without the lock, because dropping a dictionary of gigabytes must not block
    // other dictionaries.
    let cold = &runs[warm..];
    for run in cold {
        // SAFETY: a run that isn't small is page-aligned and a multiple of the page, lies in a
        // mapping, and is unused.
        unsafe { discard(NonNull::new_unchecked(*run).cast(), RUN_BYTES) };
    }
    if !cold.is_empty() {
        lock(&POOLS[node.index()]).cold.extend_from_slice(cold);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Random, seed};

    #[test]
    fn classes_fit_tightly() {
        for size in 1..=CELL_BYTES_MAX {
            let class = class_of(size);
            assert!(cell_bytes(class) >= size, "{size}");
            assert!(class == 0 || cell_bytes(class - 1) < size, "{size}");
            assert!(cell_bytes(class).is_multiple_of(4));
            assert!(size <= 512 || (cell_bytes(class) - size) * 8 < size, "{size}");
        }
        assert_eq!(class_of(CELL_BYTES_MAX), CLASSES - 1);
    }

    #[test]
    fn cells_are_disjoint_and_counted() {
        let mut random = Random::new(seed("cells_are_disjoint_and_counted"));
        let mut slab = Slab::new(Node::ANY);
        let mut cells: Vec<(NonNull<u8>, usize, u8)> = Vec::new();
        let steps = if cfg!(miri) { 400 } else { 40_000 };
        for step in 0..steps {
            // Grows in the first half, shrinks in the second.
            if cells.is_empty() || random.below(100) < if step < steps / 2 { 70 } else { 30 } {
                let range = if random.below(4) == 0 { CELL_BYTES_MAX - 7 } else { 60 };
                let size = 8 + random.below(range);
                let cell = slab.alloc(class_of(size));
                let mark = random.next() as u8;
                // SAFETY: the cell has at least `size` bytes and is ours.
                unsafe { cell.as_ptr().write_bytes(mark, size) };
                cells.push((cell, size, mark));
            } else {
                let (cell, size, mark) = cells.swap_remove(random.below(cells.len()));
                // SAFETY: `size` bytes were written after the allocation.
                let bytes = unsafe { core::slice::from_raw_parts(cell.as_ptr(), size) };
                assert!(bytes.iter().all(|&b| b == mark), "a cell was overwritten");
                // SAFETY: it came from this slab and is no longer used.
                unsafe { slab.free(cell) };
            }
            let live: usize = cells.iter().map(|c| cell_bytes(class_of(c.1))).sum();
            if step % 64 == 0 {
                assert_eq!(slab.live_bytes(), live);
                assert!(slab.touched_bytes() >= live);
            }
        }
        for (cell, _, _) in cells.drain(..) {
            // SAFETY: as above.
            unsafe { slab.free(cell) };
        }
        assert_eq!((slab.live_bytes(), slab.touched_bytes(), slab.runs.len()), (0, 0, 0));
        assert!(slab.spare.is_null());
    }

    #[test]
    fn a_run_is_used_to_its_end() {
        let mut slab = Slab::new(Node::ANY);
        let class = class_of(2048);
        let room = (RUN_BYTES - RUN_HEADER_BYTES) / 2048;
        let cells: Vec<_> = (0..=room).map(|_| slab.alloc(class)).collect();
        assert_eq!(slab.runs.len(), 2);
        assert_eq!(cells.iter().map(|&c| run_of(c)).filter(|&r| r == run_of(cells[0])).count(), room);
        // SAFETY: from this slab, no longer used.
        unsafe { slab.free(cells[3]) };
        assert_eq!(slab.alloc(class), cells[3], "a full run with a hole comes first");
    }

    /// The first cells of a class come from a small run, later cells from an ordinary run. Both
    /// runs return to the pool when they are empty. The next run of the class is then small again.
    #[test]
    fn the_first_run_of_a_class_is_small() {
        let mut slab = Slab::new(Node::ANY);
        let class = class_of(32);
        let room = (SMALL_RUN_BYTES - RUN_HEADER_BYTES) / 32;
        let mut cells: Vec<_> = (0..=room).map(|_| slab.alloc(class)).collect();
        assert!(cells[..room].iter().all(|&cell| run_of(cell) == run_of(cells[0]) && is_small(cell.as_ptr())));
        assert!(!is_small(cells[room].as_ptr()));
        assert_eq!((slab.runs.len(), slab.touched_bytes()), (2, SMALL_RUN_BYTES + PAGE_BYTES));
        let other = slab.alloc(class_of(64));
        assert!(is_small(other.as_ptr()) && run_of(other) != run_of(cells[0]));
        cells.push(other);
        for cell in cells {
            // SAFETY: from this slab, no longer used.
            unsafe { slab.free(cell) };
        }
        assert_eq!((slab.live_bytes(), slab.touched_bytes(), slab.runs.len(), slab.classes_with_small), (0, 0, 0, 0));
        assert!(is_small(slab.alloc(class).as_ptr()));
    }
    /// Runs freed by a slab of one node are reused only by slabs of this node. The same holds for
    /// segments.
    #[cfg(not(miri))]
    #[test]
    fn memory_stays_on_its_node() {
        // This crate sees two nodes here, but the kernel sees one. The kernel may forbid placement.
        let Ok(nodes) = pantala_base::numa::nodes(&[0, 0]) else { return };
        let class = class_of(2048);
        let mut first = Slab::new(nodes[0]);
        let run = run_of(first.alloc(class));
        drop(first);
        assert_ne!(run_of(Slab::new(nodes[1]).alloc(class)), run);
        assert_eq!(run_of(Slab::new(nodes[0]).alloc(class)), run);

        let roots = crate::Roots::new(2);
        for round in 0..3 {
            let mut dicts = [0, 1].map(|at| roots.dict::<u8>(at, 1, nodes[at]));
            for key in 0..20_000_u32 {
                let key = key.to_le_bytes();
                for dict in &mut dicts {
                    let crate::Entry::Vacant(entry) = dict.entry(crate::hash_key(1, &key), &key) else { continue };
                    entry.insert(crate::NewPayload::Bytes(&key), 0, 0, None);
                }
            }
            let [first, second] = &mut dicts;
            let taken = first.take();
            assert_eq!((taken.len(), first.len(), second.len()), (20_000, 0, 20_000), "round {round}");
            [&taken, second].iter().for_each(|dict| dict.check());
        }
    }
}
