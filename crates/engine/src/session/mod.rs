//! What a connection has agreed with the server, and what its commands need of the server around them.

pub mod functions;
