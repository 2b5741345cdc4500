//! The sandbox (`sandbox yes`): seccomp filters that allow the process only the system calls that
//! the server makes once it has started.
//!
//! Each filter has a list of system calls, after which it is named:
//!
//! | filter | calls in its list | result of a call in the list | result of any other call |
//! | --- | --- | --- | --- |
//! | hostile | calls that only an attacker's code makes ([`hostile`]) | the process is killed | allowed |
//! | hidden | `clone3`, whose flags a filter can't read | `ENOSYS`, so that libc uses `clone` | allowed |
//! | needed | calls that the server makes once it has started, with its arguments ([`needed`]) | allowed | `EPERM` |
//!
//! Hostile calls execute programs, access other processes, or change mounts, identity or the
//! kernel.
//!
//! The kernel applies all filters and takes the strictest result. It caches the result for calls
//! that are allowed regardless of their arguments, so these calls run no filter (since Linux 5.11).

use std::collections::BTreeMap;

use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, apply_filter_all_threads,
};

/// Selects all 32 bits that [`when`] compares.
const WHOLE: u64 = u32::MAX as u64;

/// Flags of `clone` that must not be set, because with these flags the call does more than create a
/// thread.
const NOT_A_THREAD: u64 = (libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWUTS
    | libc::CLONE_PTRACE) as u64;
/// Flag of `clone` that must be set, because with it the call creates a thread.
const THREAD: u64 = libc::CLONE_THREAD as u64;

/// Address families of the server's sockets. Unix and Internet sockets are for clients, other
/// servers, and the host's log and supervisor. libc reads the host's addresses from netlink.
const FAMILIES: [i32; 4] = [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK];

/// Options of `prctl` that the server uses: for names of threads and memory regions, and for
/// timers.
const THREAD_SETTINGS: [i32; 4] = [libc::PR_SET_NAME, libc::PR_GET_NAME, libc::PR_SET_TIMERSLACK, libc::PR_SET_VMA];

/// Requests of `ioctl` that the server uses: whether a file or socket blocks, how many bytes can be
/// read, and whether a file is a terminal.
const REQUESTS: [u64; 3] = [libc::FIONBIO, libc::FIONREAD, libc::TCGETS];

/// The filters in the form that the kernel takes.
#[derive(Debug)]
pub struct Sandbox {
    hostile: BpfProgram,
    hidden: BpfProgram,
    needed: BpfProgram,
}

impl Sandbox {
    /// Builds the filters for this host.
    ///
    /// # Errors
    /// The host's architecture is not supported, or the filters can't be built.
    pub fn new() -> Result<Self, String> {
        Self::of(std::env::consts::ARCH)
    }

    fn of(architecture: &str) -> Result<Self, String> {
        let Ok(target) = TargetArch::try_from(architecture) else {
            return Err(format!("'sandbox yes' is not supported on the architecture {architecture}"));
        };
        let build = |calls, matched, otherwise| -> Result<BpfProgram, BackendError> {
            SeccompFilter::new(calls, otherwise, matched, target)?.try_into()
        };
        let all = || -> Result<Self, BackendError> {
            let unknown = SeccompAction::Errno(libc::ENOSYS as u32);
            let denied = SeccompAction::Errno(libc::EPERM as u32);
            Ok(Sandbox {
                hostile: build(hostile(), SeccompAction::KillProcess, SeccompAction::Allow)?,
                hidden: build(BTreeMap::from([(libc::SYS_clone3, vec![])]), unknown, SeccompAction::Allow)?,
                needed: build(needed()?, SeccompAction::Allow, denied)?,
            })
        };
        all().map_err(|error| format!("'sandbox yes': {error}"))
    }

    /// Applies the filters to all threads, until the process ends.
    ///
    /// # Errors
    /// The kernel doesn't support the filters.
    pub fn enter(&self) -> Result<(), String> {
        // `needed` comes last, because it denies the system call that adds a filter.
        for filter in [&self.hostile, &self.hidden, &self.needed] {
            apply_filter_all_threads(filter)
                .map_err(|error| format!("The kernel doesn't support 'sandbox yes': {error}"))?;
        }
        Ok(())
    }
}

/// Returns a rule that holds if the lower 32 bits of an argument, masked by `bits`, equal `value`.
fn when(argument: u8, bits: u64, value: u64) -> Result<SeccompRule, BackendError> {
    let operator = SeccompCmpOp::MaskedEq(bits);
    SeccompRule::new(vec![SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, value)?])
}

/// Returns one rule per value. A rule holds if the argument number `argument` has the value of the
/// rule.
fn is_one_of(argument: u8, values: impl IntoIterator<Item = u64>) -> Result<Vec<SeccompRule>, BackendError> {
    values.into_iter().map(|value| when(argument, WHOLE, value & WHOLE)).collect()
}

/// Returns the calls that the server makes once it has started, with rules for their arguments.
fn needed() -> Result<BTreeMap<i64, Vec<SeccompRule>>, BackendError> {
    let mut calls: BTreeMap<i64, Vec<SeccompRule>> =
        [FILES, MEMORY, NETWORK, EVENTS, THREADS, HOST, OLD].concat().into_iter().map(|call| (call, vec![])).collect();
    let own = u64::from(std::process::id());
    let words = |values: &[i32]| values.iter().map(|value| *value as u64).collect::<Vec<_>>();
    calls.extend([
        // Mappings can't be made executable.
        (libc::SYS_mmap, vec![when(2, libc::PROT_EXEC as u64, 0)?]),
        (libc::SYS_mprotect, vec![when(2, libc::PROT_EXEC as u64, 0)?]),
        (libc::SYS_clone, vec![when(0, THREAD | NOT_A_THREAD, THREAD)?]),
        // This filter allows the call, so that the error of the filter `hidden` is returned. If
        // both filters returned an error, the kernel would return the error of the filter that was
        // added last, which is this one.
        (libc::SYS_clone3, vec![]),
        (libc::SYS_tgkill, vec![when(0, WHOLE, own)?]),
        (libc::SYS_prlimit64, is_one_of(0, [0, own])?),
        (libc::SYS_socket, is_one_of(0, words(&FAMILIES))?),
        (libc::SYS_socketpair, is_one_of(0, [libc::AF_UNIX as u64])?),
        (libc::SYS_ioctl, is_one_of(1, REQUESTS)?),
        (libc::SYS_prctl, is_one_of(0, words(&THREAD_SETTINGS))?),
    ]);
    Ok(calls)
}

const FILES: &[i64] = &[
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_preadv,
    libc::SYS_pwritev,
    libc::SYS_openat,
    libc::SYS_close,
    libc::SYS_lseek,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_statfs,
    libc::SYS_fstatfs,
    libc::SYS_fcntl,
    libc::SYS_flock,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_sync_file_range,
    libc::SYS_ftruncate,
    libc::SYS_fallocate,
    // The memory can't be executed, because the filters forbid `execve` and executable mappings.
    libc::SYS_memfd_create,
    libc::SYS_fadvise64,
    libc::SYS_readahead,
    libc::SYS_sendfile,
    libc::SYS_copy_file_range,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_unlinkat,
    libc::SYS_mkdirat,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_readlinkat,
    libc::SYS_getdents64,
    libc::SYS_getcwd,
    libc::SYS_fchdir,
    libc::SYS_umask,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_pipe2,
];

const MEMORY: &[i64] = &[
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_mincore,
    libc::SYS_membarrier,
    libc::SYS_brk,
    libc::SYS_mbind,
    libc::SYS_get_mempolicy,
];

const NETWORK: &[i64] = &[
    libc::SYS_bind,
    libc::SYS_listen,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_connect,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    libc::SYS_setsockopt,
    libc::SYS_getsockopt,
    libc::SYS_sendto,
    libc::SYS_recvfrom,
    libc::SYS_sendmsg,
    libc::SYS_recvmsg,
    libc::SYS_sendmmsg,
    libc::SYS_recvmmsg,
    libc::SYS_shutdown,
];

/// `io_uring_setup` is missing, because all rings have been created before the sandbox is entered.
const EVENTS: &[i64] = &[
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_ppoll,
    libc::SYS_pselect6,
    libc::SYS_eventfd2,
    libc::SYS_timerfd_create,
    libc::SYS_timerfd_settime,
    libc::SYS_timerfd_gettime,
];

const THREADS: &[i64] = &[
    libc::SYS_futex,
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_set_tid_address,
    libc::SYS_gettid,
    libc::SYS_sched_yield,
    libc::SYS_getpriority,
    libc::SYS_setpriority,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_setaffinity,
    libc::SYS_sched_getparam,
    libc::SYS_sched_getscheduler,
    libc::SYS_getcpu,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_restart_syscall,
    libc::SYS_nanosleep,
    libc::SYS_clock_nanosleep,
    libc::SYS_exit,
    libc::SYS_exit_group,
];

const HOST: &[i64] = &[
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_gettimeofday,
    libc::SYS_getrandom,
    libc::SYS_getpid,
    libc::SYS_getppid,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_getrusage,
    libc::SYS_times,
    libc::SYS_sysinfo,
    libc::SYS_uname,
];

/// Calls that only older architectures have.
#[cfg(not(target_arch = "x86_64"))]
const OLD: &[i64] = &[];
#[cfg(target_arch = "x86_64")]
const OLD: &[i64] = &[
    libc::SYS_open,
    libc::SYS_stat,
    libc::SYS_lstat,
    libc::SYS_access,
    libc::SYS_rename,
    libc::SYS_unlink,
    libc::SYS_mkdir,
    libc::SYS_rmdir,
    libc::SYS_chmod,
    libc::SYS_readlink,
    libc::SYS_poll,
    libc::SYS_select,
    libc::SYS_epoll_wait,
    libc::SYS_eventfd,
    libc::SYS_pipe,
    libc::SYS_dup2,
    libc::SYS_time,
    libc::SYS_getrlimit,
];

/// Returns the calls for which the process is killed.
fn hostile() -> BTreeMap<i64, Vec<SeccompRule>> {
    [
        // Other programs and processes.
        libc::SYS_execve,
        libc::SYS_execveat,
        libc::SYS_ptrace,
        libc::SYS_process_vm_readv,
        libc::SYS_process_vm_writev,
        libc::SYS_process_madvise,
        libc::SYS_pidfd_getfd,
        libc::SYS_kcmp,
        // The view of the file system.
        libc::SYS_mount,
        libc::SYS_umount2,
        libc::SYS_pivot_root,
        libc::SYS_chroot,
        libc::SYS_move_mount,
        libc::SYS_open_tree,
        libc::SYS_fsopen,
        libc::SYS_fsconfig,
        libc::SYS_fsmount,
        libc::SYS_fspick,
        libc::SYS_mount_setattr,
        libc::SYS_open_by_handle_at,
        libc::SYS_setns,
        libc::SYS_unshare,
        // Identity.
        libc::SYS_setuid,
        libc::SYS_setgid,
        libc::SYS_setreuid,
        libc::SYS_setregid,
        libc::SYS_setresuid,
        libc::SYS_setresgid,
        libc::SYS_setfsuid,
        libc::SYS_setfsgid,
        libc::SYS_setgroups,
        libc::SYS_capset,
        libc::SYS_personality,
        // The kernel and the host.
        libc::SYS_bpf,
        libc::SYS_perf_event_open,
        libc::SYS_userfaultfd,
        libc::SYS_init_module,
        libc::SYS_finit_module,
        libc::SYS_delete_module,
        libc::SYS_kexec_load,
        libc::SYS_reboot,
        libc::SYS_swapon,
        libc::SYS_swapoff,
        libc::SYS_acct,
        libc::SYS_quotactl,
        libc::SYS_add_key,
        libc::SYS_request_key,
        libc::SYS_keyctl,
        libc::SYS_clock_settime,
        libc::SYS_settimeofday,
        libc::SYS_adjtimex,
        libc::SYS_sethostname,
        libc::SYS_setdomainname,
    ]
    .into_iter()
    .map(|call| (call, vec![]))
    .collect()
}

#[cfg(test)]
mod tests;
