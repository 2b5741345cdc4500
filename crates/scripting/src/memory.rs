//! What a Lua state allocates: counted, and refused above a bound, which the script meets as "not enough memory".

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error, realloc};
use std::cell::Cell;
use std::ffi::c_void;

use mlua_sys::lua51 as ffi;

use crate::register::Load;
use crate::run::Run;

/// Most that a Lua state may hold, bytes. Redis has no bound; here an endless table ends its script, not the server.
pub const STATE_BYTES_MAX: usize = 512 * 1024 * 1024;

/// What Lua's own allocator aligns to.
const ALIGN_BYTES: usize = 16;

/// Beside a Lua state, at an address that doesn't change: its allocator has it in hand, and so has every function that Lua calls.
pub(crate) struct Memory {
    used_bytes: Cell<usize>,
    limit_bytes: usize,
    /// How many callers rely on memory not being refused.
    suspended: Cell<u32>,
    /// The script that runs; null between scripts.
    pub(crate) run: Cell<*mut Run<'static>>,
    /// The library that is being loaded; null otherwise.
    pub(crate) load: Cell<*mut Load>,
    /// What runs was stopped: it raises wherever it goes on ([`crate::stop`]).
    pub(crate) is_stopped: Cell<bool>,
    /// Coroutines that were resumed.
    pub(crate) resumes: Cell<u32>,
    /// What that script has set for `cjson`.
    pub(crate) json: Cell<crate::cjson::Config>,
}

impl Memory {
    pub(crate) fn new(limit_bytes: usize) -> Box<Self> {
        Box::new(Memory {
            used_bytes: Cell::new(0),
            limit_bytes,
            suspended: Cell::new(0),
            run: Cell::new(std::ptr::null_mut()),
            load: Cell::new(std::ptr::null_mut()),
            is_stopped: Cell::new(false),
            resumes: Cell::new(0),
            json: Cell::default(),
        })
    }

    /// That of a state made by [`crate::state`].
    ///
    /// # Safety
    /// The state lives and was made with [`allocate`] and a `Memory` that lives as long.
    pub(crate) unsafe fn of<'a>(state: *mut ffi::lua_State) -> &'a Memory {
        let mut memory: *mut c_void = std::ptr::null_mut();
        // SAFETY: by the caller's promise; only read, and from one thread.
        unsafe {
            ffi::lua_getallocf(state, &mut memory);
            &*memory.cast::<Memory>()
        }
    }

    /// From here on nothing is refused: who holds what a `longjmp` would leak has the floor.
    pub(crate) fn suspend(&self) {
        self.suspended.set(self.suspended.get() + 1);
    }

    /// Ends what [`Memory::suspend`] began.
    pub(crate) fn resume(&self) {
        self.suspended.set(self.suspended.get() - 1);
    }

    pub(crate) fn used_bytes(&self) -> usize {
        self.used_bytes.get()
    }

    /// Whether it holds more than it may: what is pushed while memory isn't refused looks here from value to value.
    pub(crate) fn is_full(&self) -> bool {
        self.would_refuse(0)
    }

    /// Whether a state would be refused so many bytes more.
    pub(crate) fn would_refuse(&self, bytes: usize) -> bool {
        self.used_bytes.get().saturating_add(bytes) > self.limit_bytes
    }
}

/// The layout of a block; `None`: there can be none, since its size rounded up to the alignment is above `isize::MAX`.
fn layout_of(bytes: usize) -> Option<Layout> {
    Layout::from_size_align(bytes, ALIGN_BYTES).ok()
}

/// Lua's allocator.
pub(crate) unsafe extern "C" fn allocate(
    memory: *mut c_void,
    block: *mut c_void,
    old_bytes: usize,
    new_bytes: usize,
) -> *mut c_void {
    // SAFETY: `memory` is what the state was made with; Lua says of each block truly how large it is, and never touches one that it has freed.
    unsafe {
        let memory = &*memory.cast::<Memory>();
        // Of a block that exists: it was allocated with that layout.
        let layout = |bytes| Layout::from_size_align_unchecked(bytes, ALIGN_BYTES);
        if new_bytes == 0 {
            if !block.is_null() && old_bytes > 0 {
                memory.used_bytes.set(memory.used_bytes.get() - old_bytes);
                dealloc(block.cast(), layout(old_bytes));
            }
            return std::ptr::null_mut();
        }
        let old_bytes = if block.is_null() { 0 } else { old_bytes };
        let grows = new_bytes > old_bytes;
        // Even where memory isn't refused: `stop::throw` relies on it.
        let Some(new_layout) = layout_of(new_bytes) else { return std::ptr::null_mut() };
        if grows && memory.suspended.get() == 0 && memory.would_refuse(new_bytes - old_bytes) {
            return std::ptr::null_mut();
        }
        let new = if old_bytes == 0 { alloc(new_layout) } else { realloc(block.cast(), layout(old_bytes), new_bytes) };
        if new.is_null() {
            // The system has none. Lua can say so to the script, but where our code relies on it that memory isn't refused, and where a block only shrinks.
            if grows && memory.suspended.get() == 0 {
                return std::ptr::null_mut();
            }
            handle_alloc_error(new_layout);
        }
        memory.used_bytes.set(memory.used_bytes.get() + new_bytes - old_bytes);
        new.cast()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bound, and what no machine has: null, which Lua makes an error of the script.
    #[test]
    fn what_is_refused_is_null_and_costs_nothing() {
        let memory = Memory::new(1000);
        let hand = std::ptr::from_ref(&*memory).cast_mut().cast::<c_void>();
        let allocate = |block, old_bytes, new_bytes| {
            // SAFETY: blocks come from here, of the sizes that are told.
            unsafe { allocate(hand, block, old_bytes, new_bytes) }
        };
        let block = allocate(std::ptr::null_mut(), 0, 1000);
        assert!(!block.is_null());
        assert!(allocate(std::ptr::null_mut(), 0, 1).is_null(), "one past the bound");
        assert!(allocate(block, 1000, 1001).is_null(), "the block stays as it is");
        assert!((memory.used_bytes(), memory.is_full()) == (1000, false));
        memory.suspend();
        let another = allocate(std::ptr::null_mut(), 0, 1);
        assert!(memory.is_full() && !another.is_null());
        memory.resume();
        allocate(another, 1, 0);
        allocate(block, 1000, 0);
        let unbounded = Memory::new(usize::MAX);
        let hand = std::ptr::from_ref(&*unbounded).cast_mut().cast::<c_void>();
        // SAFETY: as above.
        let block = unsafe { super::allocate(hand, std::ptr::null_mut(), 0, isize::MAX as usize - 4096) };
        assert!(block.is_null());
        assert_eq!((memory.used_bytes(), unbounded.used_bytes()), (0, 0));
    }

    /// What has no layout is refused even where memory isn't, to a new block as to one that grows.
    #[test]
    fn a_block_without_a_layout_is_null() {
        let most_bytes = isize::MAX as usize + 1 - ALIGN_BYTES;
        assert!(layout_of(most_bytes).is_some() && layout_of(most_bytes + 1).is_none());
        let memory = Memory::new(usize::MAX);
        let hand = std::ptr::from_ref(&*memory).cast_mut().cast::<c_void>();
        memory.suspend();
        let allocate = |block, old_bytes, new_bytes| {
            // SAFETY: blocks come from here, of the sizes that are told.
            unsafe { allocate(hand, block, old_bytes, new_bytes) }
        };
        let block = allocate(std::ptr::null_mut(), 0, 100);
        for bytes in [most_bytes + 1, isize::MAX as usize, isize::MAX as usize + 1, usize::MAX] {
            assert!(allocate(std::ptr::null_mut(), 0, bytes).is_null(), "{bytes}");
            assert!(allocate(block, 100, bytes).is_null(), "{bytes}: the block stays as it is");
        }
        assert_eq!(memory.used_bytes(), 100);
        allocate(block, 100, 0);
        assert_eq!(memory.used_bytes(), 0);
    }
}
