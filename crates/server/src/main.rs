//! The `pantala` binary: reads the configuration, starts the workers, and waits until they stop.
#![forbid(unsafe_code)]

use std::process::ExitCode;

/// The allocator of large values, collections, buffers and requests.
/// docs/decisions/0009-hot-path.md has measurements. Dictionary entries have an allocator of their
/// own (`pantala_dict`).
#[global_allocator]
static ALLOCATOR: pantala_base::allocator::Allocator = pantala_base::allocator::Allocator;

fn main() -> ExitCode {
    pantala::startup::main()
}
