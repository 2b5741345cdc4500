//! Stops scripts that run for too long or must not continue.
//!
//! Lua calls a hook every few instructions, which asks the caller whether the script may continue.
//! If not, the script is *stopped*: it raises an error at once, and again at every further
//! instruction that it reaches by catching the error.
//!
//! An ordinary error isn't enough. Lua calls the handler of `xpcall` at the point of the error, and
//! if that is the hook, without any further hooks: a handler that doesn't return would occupy the
//! worker forever. Lua calls no handler only for memory errors, so a stopped script gets one
//! ([`throw`]); the caller's error is made after it has ended.
//!
//! Functions that catch errors (`pcall`, `xpcall`, `coroutine.resume`) raise it again at once
//! ([`pass_on`]). For coroutines this is also necessary: each has its own instruction count, so a
//! script of many short coroutines rarely reaches its hooks. For the same reason it also asks at
//! every few resumes ([`look_sometimes`]).

use std::ffi::c_int;

use mlua_sys::lua51 as ffi;

use crate::lua::{Outcome, Raise, Stack, enter, lua_State};
use crate::memory::Memory;
use crate::run::{Interrupt, Run, Stopped};
use crate::{INTERRUPT_INSTRUCTIONS, api, errors, register};

/// Resumes of coroutines between two checks. Between two resumes there are fewer instructions than
/// [`INTERRUPT_INSTRUCTIONS`], so the script is checked every few million instructions (about 20
/// ms).
const RESUMES_PER_LOOK: u32 = 16;

/// A size that no allocation can have: larger than any block, but small enough that Lua doesn't
/// report it as too large, which would be an ordinary error.
const BYTES_OF_NO_BLOCK: usize = isize::MAX as usize + 1;

/// Starts checking what runs in this state.
///
/// # Safety
/// The state must be alive, and nothing may be running in it.
pub(crate) unsafe fn watch(state: *mut lua_State) {
    // SAFETY: by the caller's promise. Coroutines inherit the hook of their creator, so it must be
    // the same for scripts, functions and libraries.
    unsafe {
        Memory::of(state).is_stopped.set(false);
        ffi::lua_sethook(state, Some(hook), ffi::LUA_MASKCOUNT, INTERRUPT_INSTRUCTIONS);
    }
}

/// Stops checking.
///
/// # Safety
/// As for [`watch`].
pub(crate) unsafe fn unwatch(state: *mut lua_State) {
    // SAFETY: by the caller's promise.
    unsafe {
        ffi::lua_sethook(state, None, 0, 0);
    }
}

/// Stops a script for good: that of this run, if it is one.
pub(crate) fn stop(stack: Stack<'_>, run: Option<&mut Run<'_>>) -> Raise {
    stack.memory().is_stopped.set(true);
    // SAFETY: as for `Stack`.
    unsafe { ffi::lua_sethook(stack.raw(), Some(hook), ffi::LUA_MASKCOUNT, 1) };
    if let (Some(run), Some(place)) = (run, errors::place(stack, 0)) {
        run.stopped_at = Some(place);
    }
    Raise
}

/// Raises a memory error.
///
/// # Safety
/// Lua must have called us, and no frame in between may hold anything with a destructor.
pub(crate) unsafe fn throw(state: *mut lua_State) -> c_int {
    // SAFETY: by the caller's promise. `allocate` always fails for this size, so this doesn't
    // return.
    unsafe { ffi::lua_newuserdata(state, BYTES_OF_NO_BLOCK) };
    unreachable!("no allocation has this size")
}

/// Whether what runs goes on.
fn look(stack: Stack<'_>) -> Outcome {
    // SAFETY: asked once, and no Lua runs before this returns.
    let mut run = unsafe { api::running(stack) };
    if !stack.memory().is_stopped.get() {
        let ends = match &mut run {
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
    Err(stop(stack, run))
}

/// Checks the script. Lua calls this every few instructions.
unsafe extern "C-unwind" fn hook(state: *mut lua_State, _: *mut ffi::lua_Debug) {
    // SAFETY: called by Lua with its state; this frame holds nothing.
    unsafe {
        enter(state, look);
    }
}

/// Checks the script at every few resumes of a coroutine.
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

/// Raises the error of a stopped script again. Runs after every function that catches errors, so
/// that nothing keeps a stopped script alive.
///
/// # Safety
/// As for [`throw`].
pub(crate) unsafe fn pass_on(state: *mut lua_State) {
    // SAFETY: by the caller's promise; the run is asked for once, and no Lua runs before this returns.
    unsafe {
        if Memory::of(state).is_stopped.get() {
            enter(state, |stack| Err(stop(stack, api::running(stack))));
        }
    }
}
