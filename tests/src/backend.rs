//! Pantala's event loops, and which of them this host supports.

use std::sync::OnceLock;

use crate::tool;

/// An event loop of Pantala.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// `--io-backend io_uring`
    IoUring,
    /// `--io-backend epoll`
    Epoll,
}

impl Backend {
    /// Returns the backend's name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Backend::IoUring => "io_uring",
            Backend::Epoll => "epoll",
        }
    }

    /// Returns the backends to test: all that the host supports, or those in `PANTALA_BACKENDS`.
    /// Prints each unsupported backend on standard error, once.
    #[must_use]
    pub fn all() -> &'static [Backend] {
        static ALL: OnceLock<Vec<Backend>> = OnceLock::new();
        ALL.get_or_init(|| {
            let wanted = std::env::var("PANTALA_BACKENDS").unwrap_or_else(|_| "io_uring,epoll".into());
            let mut backends = Vec::new();
            for name in wanted.split(',').map(str::trim) {
                match name {
                    "epoll" => backends.push(Backend::Epoll),
                    "io_uring" => match io_uring_refusal() {
                        None => backends.push(Backend::IoUring),
                        Some(why) => tool::skipped(format_args!("io_uring backend: the kernel rejects a ring: {why}")),
                    },
                    other => panic!("PANTALA_BACKENDS contains {other:?}, which is not a backend"),
                }
            }
            backends
        })
    }
}

/// Returns the reason why this host can't set up a ring of io_uring, or `None` if it can. The
/// kernel is asked, not Pantala, so that the tests fail if Pantala rejects io_uring by mistake.
fn io_uring_refusal() -> Option<String> {
    let ring = io_uring::IoUring::<io_uring::squeue::Entry, io_uring::cqueue::Entry>::builder()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .build(8)
        .map_err(|error| error.to_string());
    ring.err()
}

/// Runs `body` for each backend under test. Prints the backend's name on standard error first.
pub fn for_each_backend(mut body: impl FnMut(Backend)) {
    for backend in Backend::all() {
        eprintln!("-- backend {}", backend.name());
        body(*backend);
    }
}

/// Runs `body` for all backends under test at the same time. Use it only for bodies that wait most
/// of the time. Bodies that use much CPU time would slow each other down, and need
/// [`for_each_backend`].
///
/// # Panics
/// If a body panics. Panics after all bodies have ended.
pub fn for_all_backends(body: impl Fn(Backend) + Sync) {
    std::thread::scope(|scope| {
        let body = &body;
        let scenes: Vec<_> =
            Backend::all().iter().map(|&backend| (backend, scope.spawn(move || body(backend)))).collect();
        let failed: Vec<_> =
            scenes.into_iter().filter_map(|(backend, scene)| scene.join().is_err().then_some(backend.name())).collect();
        assert!(failed.is_empty(), "failed on {}", failed.join(" and "));
    });
}

/// Runs `body` for each backend under test and each execution (`inline`, `owner`). Prints both
/// names on standard error first.
pub fn for_each_form(mut body: impl FnMut(Backend, &str)) {
    for_each_backend(|backend| {
        for execution in ["inline", "owner"] {
            eprintln!("-- execution {execution}");
            body(backend, execution);
        }
    });
}
