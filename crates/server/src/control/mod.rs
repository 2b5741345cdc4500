//! Control: what a worker does beside commands, a few times a second or when the settings change.
//!
//! It drives the [dispatcher](crate::dispatch), which knows nothing of it.

mod cron;
mod purge;

use std::cell::{Cell, RefCell};

use pantala_engine::expire::ActiveExpiry;
use pantala_runtime::EventLoop;

use crate::dispatch::Dispatcher;
use crate::host::Server;
use purge::Watch;

/// See the head of this module. Shared with what runs turns within scripts.
pub struct Control {
    /// Which settings the worker goes by.
    settings_generation: Cell<u64>,
    /// In the clock that never goes back.
    next_cron_ms: Cell<i64>,
    /// What periodic work remembers. Nothing borrows it while commands run.
    work: RefCell<Work>,
}

#[derive(Default)]
struct Work {
    expiry: ActiveExpiry,
    purges: Watch,
}

impl Control {
    /// Control of a worker that has just begun.
    pub fn new(server: &Server) -> Self {
        Control {
            settings_generation: Cell::new(server.config().generation()),
            next_cron_ms: Cell::new(0),
            work: RefCell::default(),
        }
    }

    /// When its periodic work is due, in the clock that never goes back.
    #[inline]
    pub fn next_cron_ms(&self) -> i64 {
        self.next_cron_ms.get()
    }

    /// Takes the settings up when they have changed: one load when they haven't.
    #[inline]
    pub fn reload_if_changed<L: EventLoop>(&self, dispatcher: &mut Dispatcher<'_, L>) {
        let generation = dispatcher.clients.reactor.server.config().generation();
        if generation != self.settings_generation.get() {
            self.reload(generation, dispatcher);
        }
    }

    /// Takes up the settings of a generation, or newer ones.
    #[cold]
    fn reload<L: EventLoop>(&self, generation: u64, dispatcher: &mut Dispatcher<'_, L>) {
        // The number was read first: settings newer than it are taken up again, never missed.
        dispatcher.reload();
        self.settings_generation.set(generation);
        self.limit_tracked(dispatcher);
        dispatcher.clients.reload_weighing();
        dispatcher.memory.look_after(&mut dispatcher.clients);
    }

    /// Holds the number of tracked keys below its limit.
    fn limit_tracked<L: EventLoop>(&self, dispatcher: &mut Dispatcher<'_, L>) {
        if dispatcher.clients.executor.limit_tracked() {
            // There are more than one turn puts out: the next one comes at once.
            self.next_cron_ms.set(0);
        }
    }
}
