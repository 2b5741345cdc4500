//! What the fuzz targets check, each as a function of its input. The binaries in `tests/fuzz` pass
//! these functions inputs of libFuzzer, which needs a nightly toolchain and a workspace of its own.
//! Here a change of an interface fails the build of the workspace, and `cargo test` runs each
//! target on random inputs.
#![forbid(unsafe_code)]

pub mod acl;
pub mod aof;
pub mod config;
pub mod login;
pub mod rdb;
pub mod resp;
pub mod restore;
pub mod session;
pub mod tls;

#[cfg(test)]
mod tests;
