//! Clients: who sends commands, and what is kept of those that wait.

pub mod client;
pub mod listener;
pub mod waiter;
pub mod watch;
