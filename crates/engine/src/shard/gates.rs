//! Taking free shards. A worker that finds a shard busy spins briefly; it never waits. A shard's
//! *gate* is the atomic word by which threads take it ([`crate::shard::ownership`]).

use std::hint::spin_loop;

use crate::shard::keyspace::{Execution, Keyspace};
use crate::shard::ownership::{Gate, Ownership};
use crate::shard::request::Request;

/// Number of spins on a busy shard before a worker enqueues a request. They last about as long as a
/// command holds a shard: a few hundred nanoseconds. A request would cost about a microsecond
/// (`docs/decisions/0009-hot-path.md`).
const SPINS_MAX: u32 = if cfg!(loom) { 0 } else { 60 };

/// A worker's access to the gates of the shards.
#[derive(Clone, Copy)]
pub(crate) struct Gates<'k> {
    pub(super) keyspace: &'k Keyspace,
    pub(super) worker: u32,
}

impl Gates<'_> {
    /// Returns whether this worker may take a free shard for its connections' commands. With
    /// `--execution owner` only the shard's home may.
    #[inline]
    pub(crate) fn may_take(self, shard: u32) -> bool {
        let keyspace = self.keyspace;
        keyspace.layout().execution == Execution::Inline || keyspace.home(shard) == self.worker
    }

    /// Takes a shard if it is free and this worker may take it. Spins briefly on a busy shard.
    pub(crate) fn take_if_ours(self, shard: u32) -> Option<Ownership> {
        if self.may_take(shard) { take_spinning(self.keyspace.gate(shard)) } else { None }
    }
}

/// Takes a shard. If it is busy, spins briefly, because its owner may be about to free it.
#[inline]
pub(super) fn take_spinning(gate: &Gate<Request>) -> Option<Ownership> {
    gate.try_take().or_else(|| wait_briefly(gate))
}

/// Takes a shard like [`take_spinning`], but stops spinning as soon as `is_needless` returns true.
pub(super) fn take_spinning_unless(gate: &Gate<Request>, is_needless: impl Fn() -> bool) -> Option<Ownership> {
    gate.try_take().or_else(|| wait_unless(gate, is_needless))
}

/// Spins on a busy shard.
#[cold]
#[inline(never)]
pub(super) fn wait_briefly(gate: &Gate<Request>) -> Option<Ownership> {
    wait_unless(gate, || false)
}

fn wait_unless(gate: &Gate<Request>, is_needless: impl Fn() -> bool) -> Option<Ownership> {
    for _ in 0..SPINS_MAX {
        spin_loop();
        if is_needless() {
            return None;
        }
        if !gate.is_held()
            && let Some(ownership) = gate.try_take()
        {
            return Some(ownership);
        }
    }
    None
}
