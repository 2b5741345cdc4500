//! The checks of the fuzz targets: one function per target. The binaries in `tests/fuzz` call these
//! functions with libFuzzer's inputs. Those binaries form a separate workspace, because libFuzzer
//! needs a nightly toolchain. The checks themselves are in this crate, so that `cargo test`
//! compiles them and runs each target on random inputs.
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
