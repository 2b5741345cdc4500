//! Clients: the state that all workers can see, and blocked commands.

pub mod client;
pub mod listener;
pub mod primary;
pub mod waiter;
pub mod watch;
