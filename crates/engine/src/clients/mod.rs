//! Clients: what all workers see of them, and commands that wait.

pub mod client;
pub mod listener;
pub mod primary;
pub mod waiter;
pub mod watch;
