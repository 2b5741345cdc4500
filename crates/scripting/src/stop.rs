//! Ending a script that runs for too long, or that must not go on.
//!
//! Lua calls a hook every so many instructions, which asks whether the script goes on. If not, it is *stopped*: it raises at once, and again at each
//! instruction that it comes to nevertheless, because something has caught that.
//!
//! An ordinary error won't do: Lua calls the handler of `xpcall` where an error is raised, and where that is the hook, without any hook: a handler that
//! doesn't return would keep the worker for good. The one error for which no handler is called is that of memory, so a stopped script meets that
//! ([`throw`]), and what its caller is told is made when it has ended.
//!
//! What catches errors (`pcall`, `xpcall`, `coroutine.resume`) passes it on at once ([`pass_on`]). For coroutines this is not only faster: each counts
//! its own instructions, so a script of many that each do little comes to its hooks rarely. For the same reason it asks every few times that one is
//! resumed, too ([`look_sometimes`]).

use std::ffi::c_int;

use mlua_sys::lua51 as ffi;

use crate::lua::{Outcome, Raise, Stack, enter, lua_State};
use crate::memory::Memory;
use crate::run::{Interrupt, Stopped};
use crate::{INTERRUPT_INSTRUCTIONS, api, errors, register};

/// Coroutines that are resumed between two looks at whether the script goes on. Before and behind each there are fewer instructions than
/// [`INTERRUPT_INSTRUCTIONS`], so that it is looked at every few million of them (some 20 ms).
const RESUMES_PER_LOOK: u32 = 16;

/// What no allocation gets: more than a block may have, and not so much that Lua itself calls it too large, which would be an ordinary error.
const BYTES_OF_NO_BLOCK: usize = isize::MAX as usize + 1;

/// From here on, what runs in this state is looked at.
///
/// # Safety
/// The state lives, and nothing runs in it.
pub(crate) unsafe fn watch(state: *mut lua_State) {
    // SAFETY: by the caller's promise. Coroutines get the hook from who creates them, so it is the same for scripts, functions and libraries.
    unsafe {
        Memory::of(state).is_stopped.set(false);
        ffi::lua_sethook(state, Some(hook), ffi::LUA_MASKCOUNT, INTERRUPT_INSTRUCTIONS);
    }
}

/// Ends what [`watch`] began.
///
/// # Safety
/// As there.
pub(crate) unsafe fn unwatch(state: *mut lua_State) {
    // SAFETY: by the caller's promise.
    unsafe {
        ffi::lua_sethook(state, None, 0, 0);
    }
}

/// Stops a script for good.
pub(crate) fn stop(stack: Stack) -> Raise {
    stack.memory().is_stopped.set(true);
    // SAFETY: as for `Stack`.
    unsafe { ffi::lua_sethook(stack.raw(), Some(hook), ffi::LUA_MASKCOUNT, 1) };
    if let (Some(run), Some(place)) = (api::running(stack), errors::place(stack, 0)) {
        run.stopped_at = Some(place);
    }
    Raise
}

/// Raises the error of memory.
///
/// # Safety
/// Called where Lua has called us; frames between hold nothing that needs dropping.
pub(crate) unsafe fn throw(state: *mut lua_State) -> c_int {
    // SAFETY: by the caller's promise. `allocate` refuses this always, so it doesn't return.
    unsafe { ffi::lua_newuserdata(state, BYTES_OF_NO_BLOCK) };
    unreachable!("no allocation gets that")
}

/// Whether what runs goes on.
fn look(stack: Stack) -> Outcome {
    let memory = stack.memory();
    if !memory.is_stopped.get() {
        let ends = match api::running(stack) {
            Some(run) => {
                let is_killed = run.caller.interrupt() == Interrupt::Kill;
                if is_killed {
                    run.stopped = Some(Stopped::Killed);
                }
                is_killed
            }
            None => register::is_late(stack),
        };
        if !ends {
            return Ok(0);
        }
    }
    Err(stop(stack))
}

/// Called by Lua every so many instructions.
unsafe extern "C-unwind" fn hook(state: *mut lua_State, _: *mut ffi::lua_Debug) {
    // SAFETY: called by Lua with its state; this frame holds nothing.
    unsafe {
        enter(state, look);
    }
}

/// Called where a coroutine is resumed.
///
/// # Safety
/// As for [`throw`].
pub(crate) unsafe fn look_sometimes(state: *mut lua_State) {
    // SAFETY: by the caller's promise.
    unsafe {
        let resumes = &Memory::of(state).resumes;
        resumes.set(resumes.get().wrapping_add(1));
        if resumes.get().is_multiple_of(RESUMES_PER_LOOK) {
            enter(state, look);
        }
    }
}

/// Called behind what catches errors: nothing keeps a stopped script from its end.
///
/// # Safety
/// As for [`throw`].
pub(crate) unsafe fn pass_on(state: *mut lua_State) {
    // SAFETY: by the caller's promise.
    unsafe {
        if Memory::of(state).is_stopped.get() {
            enter(state, |stack| Err(stop(stack)));
        }
    }
}
