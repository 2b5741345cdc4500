//! The checks of the fuzz targets: a function per target. The binaries in `tests/fuzz` call these
//! functions with libFuzzer's inputs. They are in a separate workspace, because libFuzzer needs a
//! nightly toolchain. Because the checks are in this crate, a change of an interface fails the
//! build of the workspace, and `cargo test` runs each target on random inputs.
#![forbid(unsafe_code)]

pub mod acl;
pub mod aof;
pub mod config;
mod host;
pub mod login;
pub mod rdb;
pub mod resp;
pub mod restore;
pub mod session;
pub mod tls;

#[cfg(test)]
mod tests;
