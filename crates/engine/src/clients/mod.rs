//! Clients: who sends commands, and what is kept of those that wait.

pub mod client;
