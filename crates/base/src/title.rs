//! The title of the process, which `ps` and `/proc/self/cmdline` show.
//!
//! The kernel shows the memory in which it placed the arguments of the process. The strings of the
//! environment directly follow the arguments. [`Title::claim`] moves the environment elsewhere, so
//! that the title can use the memory of the arguments and of the environment.

use std::ffi::{CStr, OsStr, c_char};
use std::os::unix::ffi::OsStrExt;
use std::ptr::NonNull;

/// Maximum length of the title, bytes, as in Redis.
const TITLE_BYTES_MAX: usize = 255;

unsafe extern "C" {
    /// The first argument. Defined by libc.
    static program_invocation_name: *const c_char;
    /// The environment variables, ending with a null pointer. Defined by libc, which replaces the
    /// array when a variable is set.
    static mut environ: *const *const c_char;
}

/// The memory that the kernel shows as the command line of the process.
#[derive(Debug)]
pub struct Title {
    start: NonNull<u8>,
    /// Length of the memory, bytes; the last byte is always zero.
    len: usize,
}

// SAFETY: the memory belongs to this value alone, and lives as long as the process.
unsafe impl Send for Title {}

impl Title {
    /// Takes over the memory of the arguments and of the environment. The environment variables
    /// remain set, at other addresses. `arguments` is the number of arguments, including the
    /// program's name. Afterwards [`std::env::args_os`] returns parts of the title.
    ///
    /// Returns `None` if there are no arguments, if the process has several threads (one of them
    /// may be reading the environment), or if `/proc` can't be read. Also returns `None` from the
    /// second call on.
    pub fn claim(arguments: usize) -> Option<Title> {
        use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
        static IS_CLAIMED: AtomicBool = AtomicBool::new(false);
        let threads = std::fs::read_dir("/proc/self/task").ok()?.count();
        if threads != 1 || arguments == 0 || IS_CLAIMED.swap(true, Relaxed) {
            return None;
        }
        // SAFETY: libc sets both variables before `main`. They are null or point to strings that
        // live as long as the process. The environment ends with a null pointer. There are no other
        // threads.
        let (start, len) = unsafe {
            let start = program_invocation_name;
            if start.is_null() {
                return None;
            }
            let mut end = start;
            // The kernel places the strings directly after each other.
            for _ in 0..arguments {
                end = end.add(CStr::from_ptr(end).to_bytes_with_nul().len());
            }
            let mut variables = environ;
            while !variables.is_null() && !(*variables).is_null() {
                if *variables == end {
                    end = end.add(CStr::from_ptr(end).to_bytes_with_nul().len());
                }
                variables = variables.add(1);
            }
            (start.cast_mut().cast::<u8>(), end.offset_from(start).unsigned_abs())
        };
        // A variable whose name contains an equals sign can't be set again. Its entry stays in the
        // memory of the title and shows parts of the title.
        let is_settable = |name: &OsStr| !name.is_empty() && !name.as_bytes().contains(&b'=');
        for (name, value) in std::env::vars_os().filter(|(name, _)| is_settable(name)) {
            // SAFETY: there are no other threads.
            unsafe { std::env::set_var(name, value) };
        }
        Some(Title { start: NonNull::new(start)?, len })
    }

    /// Sets the title, truncated to the available memory.
    pub fn set(&mut self, title: &[u8]) {
        let shown = &title[..title.len().min(self.len - 1).min(TITLE_BYTES_MAX)];
        // SAFETY: `start` and `len` describe the memory that `claim` took. `shown` is shorter than
        // it and doesn't overlap it.
        unsafe {
            std::ptr::copy_nonoverlapping(shown.as_ptr(), self.start.as_ptr(), shown.len());
            std::ptr::write_bytes(self.start.as_ptr().add(shown.len()), 0, self.len - shown.len());
        }
    }
}
