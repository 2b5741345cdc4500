//! Stops scripts that run for too long or must not continue.
//!
//! Lua calls a hook every [`INTERRUPT_INSTRUCTIONS`] instructions. The hook asks the
//! [`Caller`](crate::Caller) whether the script may continue. If not, the script is *stopped*: the
//! hook raises an error. If the script catches the error, the hook raises it again at the next
//! instruction.
//!
//! An ordinary error is not enough, because Lua calls the handler of `xpcall` before it unwinds the
//! stack. An error raised by the hook would therefore run the handler inside the hook, where Lua
//! calls no hook. A handler that loops would then occupy the worker forever. Lua calls no handler
//! for memory errors, so a stopped script gets a memory error ([`throw`]). The error reply for the
//! client is created after the script has ended.
//!
//! Functions that catch errors (`pcall`, `xpcall`, `coroutine.resume`) raise the error again at
//! once ([`raise_again`]). For coroutines the hook alone would not be enough: each coroutine counts
//! its own instructions, so a script with many short coroutines rarely calls the hook. The script
//! is therefore also checked once in [`RESUMES_PER_CHECK`] resumes ([`check_periodically`]).

use std::ffi::c_int;

use mlua_sys::lua51 as ffi;

use crate::lua::{Outcome, Raise, Stack, enter, lua_State};
use crate::memory::StateContext;
use crate::run::{Interrupt, Run, Stopped};
use crate::{INTERRUPT_INSTRUCTIONS, api, errors, register};

/// Number of resumes of coroutines per check. If more than [`INTERRUPT_INSTRUCTIONS`] instructions
/// run between two resumes, the hook checks. A script is therefore checked at least every few
/// million instructions (about 20 ms).
const RESUMES_PER_CHECK: u32 = 16;

/// A size that no allocation can have. It is larger than any block, but small enough that Lua does
/// not reject it with an ordinary error.
const BYTES_OF_NO_BLOCK: usize = isize::MAX as usize + 1;

/// Starts checking the code that runs in this state.
///
/// # Safety
/// The state must be alive, and nothing may be running in it.
pub(crate) unsafe fn watch(state: *mut lua_State) {
    // SAFETY: by the caller's promise. A coroutine keeps the hook that its creator had, and a
    // function may resume a coroutine that its library has created. So all of them use the same
    // hook.
    unsafe {
        StateContext::of(state).is_stopped.set(false);
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

/// Stops the running script or library for the rest of its run. If there is a run, and the place in
/// the script is known, records that place in `run`.
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
/// Lua must have called this function, and no frame in between may hold anything with a destructor.
pub(crate) unsafe fn throw(state: *mut lua_State) -> c_int {
    // SAFETY: by the caller's promise. `allocate` always fails for this size, so this call does not
    // return.
    unsafe { ffi::lua_newuserdata(state, BYTES_OF_NO_BLOCK) };
    unreachable!("no allocation has this size")
}

/// Checks whether the running script or library may continue. If not, stops it.
fn look(stack: Stack<'_>) -> Outcome {
    // SAFETY: called once, and no Lua runs before this function returns.
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

/// The hook. Lua calls it every [`INTERRUPT_INSTRUCTIONS`] instructions, and at every instruction
/// once the script is stopped.
unsafe extern "C-unwind" fn hook(state: *mut lua_State, _: *mut ffi::lua_Debug) {
    // SAFETY: called by Lua with its state. This frame holds nothing with a destructor.
    unsafe {
        enter(state, look);
    }
}

/// Checks the script once in [`RESUMES_PER_CHECK`] resumes of coroutines.
///
/// # Safety
/// As for [`throw`].
pub(crate) unsafe fn check_periodically(state: *mut lua_State) {
    // SAFETY: by the caller's promise.
    unsafe {
        let resumes = &StateContext::of(state).resumes;
        resumes.set(resumes.get().wrapping_add(1));
        if resumes.get().is_multiple_of(RESUMES_PER_CHECK) {
            enter(state, look);
        }
    }
}

/// Raises the error of a stopped script again. Called after every function that catches errors, so
/// that a stopped script cannot continue.
///
/// # Safety
/// As for [`throw`].
pub(crate) unsafe fn raise_again(state: *mut lua_State) {
    // SAFETY: by the caller's promise. `running` is called once, and no Lua runs before this
    // function returns.
    unsafe {
        if StateContext::of(state).is_stopped.get() {
            enter(state, |stack| Err(stop(stack, api::running(stack))));
        }
    }
}
