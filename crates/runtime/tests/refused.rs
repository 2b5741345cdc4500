//! Tests hosts without io_uring: the automatic choice is epoll, with the reason.

use std::thread;

use pantala_runtime::{Backend, Choice, REFUSE_ENV, choose, probe};

/// Makes the system call `number` fail with `errno` in the calling thread from now on, as the
/// seccomp profile of a container does.
fn forbid(number: libc::c_long, errno: i32) {
    let operation = |code: u32, k: u32, jt: u8, jf: u8| libc::sock_filter { code: code as u16, jt, jf, k };
    let mut filter = [
        // The number of the call is the first word of a filter's input.
        operation(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        operation(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, number as u32, 0, 1),
        operation(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | errno as u32, 0, 0),
        operation(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0, 0),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the call takes only numbers.
    let renounced = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    assert_eq!(renounced, 0);
    // SAFETY: the program and its filter outlive the call, which copies them.
    let installed = unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program) };
    assert_eq!(installed, 0, "{}", std::io::Error::last_os_error());
}

/// Checks the reason of `probe` and the results of `choose` in a thread in which the system call
/// `number` fails with `errno`.
fn refused(number: libc::c_long, errno: i32, expected: &'static str) {
    thread::spawn(move || {
        forbid(number, errno);
        let reason = probe().unwrap_err();
        assert!(reason.contains(expected), "{reason}");
        let (backend, why) = choose(Choice::Auto).unwrap();
        assert_eq!(backend, Backend::Epoll);
        assert!(why.contains(expected), "{why}");
        let error = choose(Choice::IoUring).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        assert_eq!(choose(Choice::Epoll).unwrap().0, Backend::Epoll);
    })
    .join()
    .unwrap();
}

#[test]
fn a_seccomp_profile_forbids_the_set_up() {
    refused(libc::SYS_io_uring_setup, libc::EPERM, "EPERM");
}

#[test]
fn the_kernel_has_none() {
    refused(libc::SYS_io_uring_setup, libc::ENOSYS, "ENOSYS");
}

#[test]
fn the_kernel_lacks_a_feature() {
    refused(libc::SYS_io_uring_setup, libc::EINVAL, "EINVAL");
}

#[test]
fn buffers_can_not_be_registered() {
    refused(libc::SYS_io_uring_register, libc::EINVAL, "EINVAL");
}

#[test]
fn a_profile_forbids_only_the_submission() {
    refused(libc::SYS_io_uring_enter, libc::EPERM, "EPERM");
}

/// Runs in a child process, because all tests of a process share its environment.
#[test]
fn the_environment_forbids() {
    const REASON: &str = "a test wants it so";
    if std::env::var_os(REFUSE_ENV).is_some() {
        assert!(probe().unwrap_err().contains(REASON));
        assert_eq!(choose(Choice::Auto).unwrap().0, Backend::Epoll);
        return;
    }
    let status = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "the_environment_forbids"])
        .env(REFUSE_ENV, REASON)
        .status()
        .unwrap();
    assert!(status.success(), "the child failed: {status}");
}
