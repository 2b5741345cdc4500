//! The process and its surroundings: CPUs, limits, log, daemon, supervisor, sockets and signals.
//!
//! [`startup`](crate::startup) calls three functions: [`boot`](boot::boot) first, [`watch_signals`]
//! once the server can be stopped, and [`Cleanup::run`] at exit.

pub mod boot;
pub mod cpus;
pub mod daemon;
pub mod encryption;
pub mod handshakes;
pub mod limits;
pub mod listen;
pub mod log;
pub mod oom;
pub mod placement;
pub mod sandbox;
pub mod signals;
pub mod supervision;
pub mod syslog;
pub mod title;

pub use boot::{Boot, Cleanup, boot};
pub use cpus::{cpu_quota, default_workers};
pub use encryption::{Encryption, Unusable};
pub use handshakes::{Handshake, HandshakeQueue};
pub use limits::{
    RunQueueWait, allocated_resident_bytes, allow_clients, open_files_limit, raise_open_files, resident_bytes,
    thread_cpu_us, yield_to_workers,
};
pub use listen::{Kind, Listener, Listening, listen};
pub use log::{set_log_level, set_log_role};
pub use oom::{adjust_oom_score, change_oom_score};
pub use placement::Placement;
pub use sandbox::Sandbox;
pub use signals::{Ending, watch as watch_signals};
pub use supervision::{notify, supervisor_name};
pub use title::update_title;
