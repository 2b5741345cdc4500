//! Each test starts its own executable again, in a second process that an environment variable
//! marks. The second process enters the sandbox, tries a system call, and reports the result by its
//! exit status.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus};

use super::Sandbox;

const TRIED: &str = "PANTALA_SANDBOX_TRIES";

/// Exit codes: the call was denied; the call succeeded.
const DENIED: i32 = 10;
const DONE: i32 = 11;

/// Runs `try_it` in a sandboxed process.
fn sandboxed(test: &str, try_it: impl FnOnce() -> io::Result<()>) -> ExitStatus {
    if std::env::var_os(TRIED).is_some() {
        Sandbox::new().and_then(|sandbox| sandbox.enter()).expect("this host supports it");
        let code = match try_it() {
            Ok(()) => DONE,
            Err(error) if error.raw_os_error() == Some(libc::EPERM) => DENIED,
            Err(error) => panic!("{error}"),
        };
        std::process::exit(code);
    }
    let name = format!("{}::{test}", module_path!().split_once("::").expect("in a crate").1);
    Command::new(std::env::current_exe().expect("the test's executable"))
        .args([name.as_str(), "--exact", "--nocapture"])
        .env(TRIED, "1")
        .status()
        .expect("the test starts again")
}

#[test]
fn programs_are_not_executed() {
    let status = sandboxed("programs_are_not_executed", || Err(Command::new("/bin/true").exec()));
    assert_eq!(status.signal(), Some(libc::SIGSYS), "{status}");
}

#[test]
fn mounts_do_not_change() {
    let status = sandboxed("mounts_do_not_change", || rustix::process::chroot("/").map_err(io::Error::from));
    assert_eq!(status.signal(), Some(libc::SIGSYS), "{status}");
}

#[test]
fn processes_are_not_started() {
    let status = sandboxed("processes_are_not_started", || Command::new("/bin/true").status().map(drop));
    assert_eq!(status.code(), Some(DENIED), "{status}");
}

#[test]
fn files_do_not_change_their_owner() {
    let status = sandboxed("files_do_not_change_their_owner", || std::os::unix::fs::chown("/tmp", None, None));
    assert_eq!(status.code(), Some(DENIED), "{status}");
}

#[test]
fn files_sockets_and_threads_work() {
    let status = sandboxed("files_sockets_and_threads_work", || {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let port = listener.local_addr()?.port();
        let writer = std::thread::spawn(move || TcpStream::connect(("localhost", port))?.write_all(b"x"));
        let mut read = Vec::new();
        listener.accept()?.0.read_to_end(&mut read)?;
        writer.join().expect("no panic")?;
        let folder = std::env::temp_dir().join(format!("pantala-sandbox-{}", std::process::id()));
        std::fs::create_dir(&folder)?;
        std::fs::write(folder.join("a"), &read)?;
        std::fs::rename(folder.join("a"), folder.join("b"))?;
        std::fs::File::open(folder.join("b"))?.sync_all()?;
        rustix::fs::memfd_create("x", rustix::fs::MemfdFlags::CLOEXEC)?;
        std::fs::remove_dir_all(&folder)
    });
    assert_eq!(status.code(), Some(DONE), "{status}");
}

#[test]
fn other_architectures_are_named() {
    let error = Sandbox::of("sparc64").expect_err("not supported");
    assert_eq!(error, "'sandbox yes' is not supported on the architecture sparc64");
}
