//! The `pantala` binary: reads the configuration, starts the workers, waits for the end.
#![forbid(unsafe_code)]

use std::process::ExitCode;

/// Values, buffers and requests come and go at every command; mimalloc measured well below the system's allocator there.
/// Dictionary entries have an allocator of their own (`pantala_dict`).
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    pantala::startup::main()
}
