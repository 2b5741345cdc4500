//! The limit on open files, and the resource usage of the process.

use crate::config::host::reason;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::time::{ClockId, clock_gettime};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Minimum number of files that are reserved for purposes other than clients, as in Redis.
const RESERVED_FILES_MIN: u64 = 32;

/// Maximum number of files that a worker opens: its event loop, its doorbell, and its share of
/// listeners and timers.
const FILES_PER_WORKER: u64 = 4;

/// Number of reserved files, which [`raise_open_files`] sets. Relaxed: no other data depends on it.
static RESERVED_FILES: AtomicU64 = AtomicU64::new(RESERVED_FILES_MIN);

/// Returns the current limit on open files, or `u64::MAX` if there is none.
pub fn open_files_limit() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Raises the limit on open files to the number that `maxclients` clients and `workers` workers
/// need. Logs the same lines as Redis. Returns how many clients the limit allows, at most
/// `maxclients`.
///
/// # Errors
///
/// The limit leaves no files for clients. Returns the text to log.
pub fn raise_open_files(maxclients: u32, workers: usize) -> Result<u32, String> {
    let reserved = RESERVED_FILES_MIN.max(RESERVED_FILES_MIN / 2 + FILES_PER_WORKER * workers as u64);
    RESERVED_FILES.store(reserved, Relaxed);
    let needed = u64::from(maxclients) + reserved;
    let before = open_files_limit();
    let Err(error) = raise_to(needed) else {
        if before < needed {
            tracing::info!("Increased maximum number of open files to {needed} (it was originally set to {before}).");
        }
        return Ok(maxclients);
    };
    let limit = open_files_limit();
    let Some(clients) = clients_within(limit, reserved) else {
        return Err(format!(
            "Your current 'ulimit -n' of {limit} is not enough for the server to start. \
             Please increase your open file limit to at least {needed}. Exiting."
        ));
    };
    tracing::warn!("You requested maxclients of {maxclients} requiring at least {needed} max file descriptors.");
    tracing::warn!("Server can't set maximum open files to {needed} because of OS error: {}.", reason(&error));
    tracing::warn!(
        "Current maximum open files is {limit}. maxclients has been reduced to {clients} to compensate for low ulimit. \
         If you need higher maxclients increase 'ulimit -n'."
    );
    Ok(clients)
}

/// Raises the limit for `maxclients` clients, on a running server.
///
/// # Errors
///
/// The limit can't be raised that far. Returns the text for the client.
pub fn allow_clients(maxclients: u32) -> Result<(), String> {
    let reserved = RESERVED_FILES.load(Relaxed);
    raise_to(u64::from(maxclients) + reserved).map_err(|_| {
        let clients = clients_within(open_files_limit(), reserved).unwrap_or(0);
        format!("The operating system is not able to handle the specified number of clients, try with {clients}")
    })
}

/// Returns how many clients the limit allows, or `None` if it allows none.
fn clients_within(limit: u64, reserved: u64) -> Option<u32> {
    limit.checked_sub(reserved).filter(|clients| *clients > 0).map(|clients| u32::try_from(clients).unwrap_or(u32::MAX))
}

/// Raises the limit to `needed`, and the hard limit too if necessary. If that is not allowed,
/// raises the limit to the current hard limit and returns the error.
fn raise_to(needed: u64) -> io::Result<()> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current.is_none_or(|current| current >= needed) {
        return Ok(());
    }
    let raised = maximum.map(|maximum| maximum.max(needed));
    let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: Some(needed), maximum: raised }) else {
        return Ok(());
    };
    if maximum > current {
        // Raises the limit as far as possible. The first error is returned even if this succeeds.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    }
    Err(error.into())
}

/// Lowers the scheduling priority of the calling thread, so that the kernel prefers workers when
/// there are more threads than CPUs. Linux keeps a nice value per thread.
pub fn yield_to_workers() {
    /// A worker gets about ten times the CPU time of a thread whose nice value is higher by this
    /// number.
    const NICER: i32 = 10;
    // Errors are ignored: the thread then does the same work at its previous priority.
    if let Ok(nice) = rustix::process::getpriority_process(None) {
        let _ = rustix::process::setpriority_process(None, nice + NICER);
    }
}

/// The run-queue wait of a thread: the total time for which it was ready to run but had no CPU.
#[derive(Debug)]
pub struct RunQueueWait(File);

impl RunQueueWait {
    /// Opens the scheduler statistics of the calling thread. Returns `None` if the kernel has none.
    pub fn open() -> Option<Self> {
        File::open("/proc/thread-self/schedstat").ok().map(Self)
    }

    /// Returns the total wait so far, or `None` if it can't be read.
    pub fn so_far(&self) -> Option<Duration> {
        let mut text = [0; 64];
        let len = self.0.read_at(&mut text, 0).ok()?;
        // The fields are the time on a CPU and the time in the run queue, both in ns, and the
        // number of time slices.
        let wait = std::str::from_utf8(&text[..len]).ok()?.split_whitespace().nth(1)?;
        Some(Duration::from_nanos(wait.parse().ok()?))
    }
}

/// Returns the CPU time of the calling thread so far, µs.
pub fn thread_cpu_us() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0) / 1_000
}

/// Returns the resident memory of the process, bytes. Returns `None` if `/proc` can't be read.
pub fn resident_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = text.split_whitespace().nth(1)?.parse().ok()?;
    pages.checked_mul(rustix::param::page_size() as u64)
}

/// Returns the resident memory that the process has allocated, bytes. Excludes the pages of the
/// program and its libraries, like Redis's `used_memory`. Returns `None` if `/proc` can't be read.
pub fn allocated_resident_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/statm").ok()?;
    let mut fields = text.split_whitespace().skip(1).map_while(|pages| pages.parse::<u64>().ok());
    let (resident, of_files) = (fields.next()?, fields.next()?);
    resident.checked_sub(of_files)?.checked_mul(rustix::param::page_size() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_do_not_use_reserved_files() {
        assert_eq!(clients_within(100, 32), Some(68));
        assert_eq!(clients_within(33, 32), Some(1));
        assert_eq!(clients_within(32, 32), None);
        assert_eq!(clients_within(u64::MAX, 32), Some(u32::MAX));
    }

    #[test]
    fn waits_in_the_run_queue_only_grow() {
        let wait = RunQueueWait::open().unwrap();
        let before = wait.so_far().unwrap();
        std::thread::yield_now();
        assert!(wait.so_far().unwrap() >= before);
    }

    #[test]
    fn a_sufficient_limit_is_not_raised() {
        let limit = open_files_limit();
        assert!(limit > RESERVED_FILES_MIN);
        assert_eq!(allow_clients(1), Ok(()));
        assert_eq!(open_files_limit(), limit);
    }

    #[test]
    fn resource_usage_is_read() {
        let resident = resident_bytes().expect("/proc tells");
        let allocated = allocated_resident_bytes().expect("/proc tells");
        // The difference is the pages of the program.
        assert!(allocated > 10_000 && allocated + 10_000 < resident, "{allocated} of {resident}");
        let before = thread_cpu_us();
        let mut sum = 0u64;
        while thread_cpu_us() < before + 1_000 {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
        assert!(sum > 0);
    }
}
