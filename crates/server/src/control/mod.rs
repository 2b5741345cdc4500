//! The control of a worker: applies changes of the settings, and does periodic work several times a
//! second.
//!
//! This module calls the [dispatcher](crate::dispatch), which doesn't refer to this module. Each
//! turn of a worker (an iteration of its event loop) calls this module, including turns that run
//! within a long script.

mod balance;
mod cron;
mod purge;
mod walk;

use std::cell::{Cell, RefCell};

use pantala_engine::expire::ActiveExpiry;
use pantala_engine::snapshot::Walker;
use pantala_runtime::EventLoop;

use crate::dispatch::Dispatcher;
use crate::host::Server;
use balance::Balance;
use purge::Watch;
use walk::Walk;

/// The control of a worker. The worker and the code that runs turns within scripts share it.
pub struct Control {
    /// Version number of the settings that the worker has applied.
    settings_generation: Cell<u64>,
    /// Time at which periodic work is next due, in ms of the monotonic clock.
    next_cron_ms: Cell<i64>,
    /// Time at which the worker's load is next measured, in ms of the monotonic clock.
    next_balance_ms: Cell<i64>,
    /// State of the worker's part of the walk over the dataset that encodes a snapshot.
    walk: Cell<Walk>,
    /// State of periodic work. It must not stay borrowed while commands run, because a turn within
    /// a script borrows it too.
    work: RefCell<Work>,
}

#[derive(Default)]
struct Work {
    balance: Balance,
    expiry: ActiveExpiry,
    purges: Watch,
    walker: Walker,
}

impl Control {
    /// Creates the control of a new worker.
    pub fn new(server: &Server) -> Self {
        Control {
            settings_generation: Cell::new(server.config().generation()),
            next_cron_ms: Cell::new(0),
            next_balance_ms: Cell::new(0),
            walk: Cell::default(),
            work: RefCell::default(),
        }
    }

    /// Returns when periodic work is due, in ms of the monotonic clock.
    #[inline]
    pub fn next_cron_ms(&self) -> i64 {
        self.next_cron_ms.get()
    }

    /// Applies the settings if they have changed. Otherwise costs only a load and a comparison.
    #[inline]
    pub fn reload_if_changed<L: EventLoop>(&self, dispatcher: &mut Dispatcher<'_, L>) {
        let generation = dispatcher.clients.reactor.server.config().generation();
        if generation != self.settings_generation.get() {
            self.reload(generation, dispatcher);
        }
    }

    /// Applies the current settings, whose version is `generation` or later.
    #[cold]
    fn reload<L: EventLoop>(&self, generation: u64, dispatcher: &mut Dispatcher<'_, L>) {
        // The generation was read before the settings. So settings that change in between may be
        // applied twice, but are never missed.
        dispatcher.reload();
        self.settings_generation.set(generation);
        self.next_balance_ms.set(0);
        self.limit_tracked(dispatcher);
        dispatcher.clients.reload_memory_accounting();
        dispatcher.memory.look_after(&mut dispatcher.clients);
    }

    /// Keeps the number of tracked keys within its limit.
    fn limit_tracked<L: EventLoop>(&self, dispatcher: &mut Dispatcher<'_, L>) {
        if dispatcher.clients.executor.evictor().limit_tracked() {
            // One call could not evict enough tracked keys, so the next round of periodic work is
            // made due at once.
            self.next_cron_ms.set(0);
        }
    }
}
