//! Clients: what all workers see of them, and commands that wait.

pub mod client;
pub mod listener;
pub mod waiter;
pub mod watch;
