//! Counts and limits the memory of a Lua state. At the limit an allocation fails, and the script
//! fails with the error "not enough memory".

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error, realloc};
use std::cell::Cell;
use std::ffi::c_void;

use mlua_sys::lua51 as ffi;

use crate::register::Load;
use crate::run::Run;

/// Maximum memory of a Lua state, bytes. Redis has no such limit. With the limit, a table that
/// grows endlessly stops its script and not the server.
pub const STATE_BYTES_MAX: usize = 512 * 1024 * 1024;

/// Alignment of Lua's own allocator.
const ALIGN_BYTES: usize = 16;

/// The memory accounting and the context of a Lua state. Its address never changes, because the
/// state's allocator and every function that Lua calls refer to it.
pub(crate) struct StateContext {
    used_bytes: Cell<usize>,
    limit_bytes: usize,
    /// Number of calls of [`StateContext::suspend`] that have not been reverted. While it is not 0,
    /// allocations do not fail at the limit.
    suspended: Cell<u32>,
    /// The running script, or null.
    pub(crate) run: Cell<*mut Run<'static>>,
    /// The library that is being loaded, or null.
    pub(crate) load: Cell<*mut Load>,
    /// Whether the running script was stopped. A stopped script raises an error wherever it
    /// continues ([`crate::stop`]).
    pub(crate) is_stopped: Cell<bool>,
    /// Number of resumes of coroutines so far ([`crate::stop::check_periodically`]).
    pub(crate) resumes: Cell<u32>,
    /// The `cjson` settings of the running script.
    pub(crate) json: Cell<crate::cjson::Config>,
}

impl StateContext {
    pub(crate) fn new(limit_bytes: usize) -> Box<Self> {
        Box::new(StateContext {
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

    /// Returns the `StateContext` that a state was created with.
    ///
    /// # Safety
    /// The state must live. It must have been created with [`allocate`] and with a `StateContext`
    /// that lives as long.
    pub(crate) unsafe fn of<'a>(state: *mut ffi::lua_State) -> &'a StateContext {
        let mut memory: *mut c_void = std::ptr::null_mut();
        // SAFETY: by the caller's promise. Only shared references to the `StateContext` exist, on
        // one thread.
        unsafe {
            ffi::lua_getallocf(state, &mut memory);
            &*memory.cast::<StateContext>()
        }
    }

    /// Suspends the limit. Required while a frame holds a value that a `longjmp` would leak.
    pub(crate) fn suspend(&self) {
        self.suspended.set(self.suspended.get() + 1);
    }

    /// Reverts one call of [`StateContext::suspend`].
    pub(crate) fn resume(&self) {
        self.suspended.set(self.suspended.get() - 1);
    }

    pub(crate) fn used_bytes(&self) -> usize {
        self.used_bytes.get()
    }

    /// Returns whether the limit is exceeded. Code that pushes values while the limit is suspended
    /// calls this method before each value.
    pub(crate) fn is_full(&self) -> bool {
        self.would_exceed(0)
    }

    /// Returns whether an allocation of `bytes` bytes would exceed the limit.
    pub(crate) fn would_exceed(&self, bytes: usize) -> bool {
        self.used_bytes.get().saturating_add(bytes) > self.limit_bytes
    }
}

/// Returns the layout of a block, or `None` if its size, rounded up to the alignment, exceeds
/// `isize::MAX`.
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
    // SAFETY: `memory` is the context that the state was created with. Lua passes the true size of
    // each block, and never touches a block that it has freed.
    unsafe {
        let memory = &*memory.cast::<StateContext>();
        // Called only for existing blocks, which were allocated with this layout.
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
        // A size without a layout fails even while the limit is suspended. `stop::throw` relies on
        // this.
        let Some(new_layout) = layout_of(new_bytes) else { return std::ptr::null_mut() };
        if grows && memory.suspended.get() == 0 && memory.would_exceed(new_bytes - old_bytes) {
            return std::ptr::null_mut();
        }
        let new = if old_bytes == 0 { alloc(new_layout) } else { realloc(block.cast(), layout(old_bytes), new_bytes) };
        if new.is_null() {
            // The system has no memory. Lua can report that to the script. There are two
            // exceptions: this crate expects success while the limit is suspended, and Lua expects
            // success when a block shrinks.
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

    /// An allocation returns null if it exceeds the limit or the memory of any machine. Lua turns
    /// this into an error of the script.
    #[test]
    fn a_rejected_allocation_is_null_and_is_not_counted() {
        let memory = StateContext::new(1000);
        let context = std::ptr::from_ref(&*memory).cast_mut().cast::<c_void>();
        let allocate = |block, old_bytes, new_bytes| {
            // SAFETY: blocks come from this allocator, with the sizes that are passed.
            unsafe { allocate(context, block, old_bytes, new_bytes) }
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
        let unbounded = StateContext::new(usize::MAX);
        let context = std::ptr::from_ref(&*unbounded).cast_mut().cast::<c_void>();
        // SAFETY: as above.
        let block = unsafe { super::allocate(context, std::ptr::null_mut(), 0, isize::MAX as usize - 4096) };
        assert!(block.is_null());
        assert_eq!((memory.used_bytes(), unbounded.used_bytes()), (0, 0));
    }

    /// Allocating or growing a block to a size without a valid layout returns null, even while the
    /// limit is suspended.
    #[test]
    fn a_block_without_a_layout_is_null() {
        let most_bytes = isize::MAX as usize + 1 - ALIGN_BYTES;
        assert!(layout_of(most_bytes).is_some() && layout_of(most_bytes + 1).is_none());
        let memory = StateContext::new(usize::MAX);
        let context = std::ptr::from_ref(&*memory).cast_mut().cast::<c_void>();
        memory.suspend();
        let allocate = |block, old_bytes, new_bytes| {
            // SAFETY: blocks come from this allocator, with the sizes that are passed.
            unsafe { allocate(context, block, old_bytes, new_bytes) }
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
