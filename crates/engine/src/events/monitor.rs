//! `MONITOR`: connections that receive every command.
//!
//! A thread that has run a command sends the command to the monitors, and only then releases the
//! command's shards, if any. A worker's mailbox keeps the order of messages. So a monitor receives
//! the commands in an order in which they could have run one after the other. Commands of one
//! connection, and commands on one key, appear in the order in which they ran.
//!
//! Without monitors, the check for monitors costs a command one load and one predictable branch.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, PoisonError, RwLock};

use pantala_base::{Clock, SystemClock};
use pantala_resp::{Args, quote};

use crate::command::{Command, Flags};
use crate::events::Events;
use crate::events::notify::are_events_deferred;
use crate::events::pubsub::Listener;
use crate::tuning::{Tuning, WATCHING};

/// Text shown instead of a secret argument.
pub const REDACTED: &[u8] = b"(redacted)";

/// Returns whether an argument of a command is a secret, which no log may show.
pub fn is_secret(command: &Command, args: &Args<'_>, index: usize) -> bool {
    command.secrets.is_some_and(|is_secret| is_secret(args, index))
}

/// The monitors. See the head of this module.
pub struct Monitors {
    count: AtomicUsize,
    listeners: RwLock<Vec<Listener>>,
    clock: SystemClock,
}

impl Monitors {
    /// Returns an empty list.
    pub(crate) fn new() -> Self {
        Monitors { count: AtomicUsize::new(0), listeners: RwLock::default(), clock: SystemClock::new() }
    }

    /// Returns whether there are monitors.
    #[inline]
    pub fn are_there(&self) -> bool {
        // Relaxed: the delivery of the reply to `MONITOR` orders the new count before the client's
        // later commands.
        WATCHING && self.count.load(Relaxed) > 0
    }

    /// Adds a connection.
    pub fn add(&self, tuning: &Tuning, listener: Listener) {
        let mut listeners = self.listeners.write().unwrap_or_else(PoisonError::into_inner);
        listeners.push(listener);
        self.count.store(listeners.len(), Relaxed);
        tuning.set_monitors(!listeners.is_empty());
    }

    /// Removes a connection.
    pub fn remove(&self, tuning: &Tuning, listener: Listener) {
        let mut listeners = self.listeners.write().unwrap_or_else(PoisonError::into_inner);
        listeners.retain(|known| *known != listener);
        self.count.store(listeners.len(), Relaxed);
        tuning.set_monitors(!listeners.is_empty());
    }
}

impl Events {
    /// Sends a command of a client to all monitors, unless the command's flags hide it.
    #[cold]
    pub fn show(&self, command: &Command, args: &Args<'_>, client: u64, db: u32) {
        if command.flags.intersects(Flags::ADMIN | Flags::SKIP_MONITOR) {
            return;
        }
        self.show_from(command, args, &self.address_of(client), db);
    }

    /// Sends to all monitors a command that a script calls, like [`Events::show`]. Sends nothing in
    /// a run that may be rolled back ([`defer_events`]). Such a run starts only while there are no
    /// monitors. A monitor that is added during the run sees none of its commands, as if it had
    /// been added after the run.
    ///
    /// [`defer_events`]: crate::events::notify::defer_events
    #[cold]
    pub fn show_of_script(&self, command: &Command, args: &Args<'_>, db: u32) {
        if !are_events_deferred() && !command.flags.intersects(Flags::ADMIN | Flags::SKIP_MONITOR) {
            self.show_from(command, args, "lua", db);
        }
    }

    /// Sends to all monitors a command that calls a script or function. The caller must call this
    /// before the script runs. Unlike [`Events::show`], ignores flags that hide the command.
    #[cold]
    pub fn show_script(&self, command: &Command, args: &Args<'_>, client: u64, db: u32) {
        self.show_from(command, args, &self.address_of(client), db);
    }

    fn address_of(&self, client: u64) -> String {
        // The client may have disconnected while its command was in flight.
        self.clients().find(client).map_or_else(|| "?:0".to_owned(), |client| client.shown_address())
    }

    fn show_from(&self, command: &Command, args: &Args<'_>, from: &str, db: u32) {
        let now_us = self.monitors().clock.now_us();
        let (seconds, us) = (now_us.div_euclid(1_000_000), now_us.rem_euclid(1_000_000));
        let mut line = format!("+{seconds}.{us:06} [{db} {from}]").into_bytes();
        for (index, arg) in args.iter().enumerate() {
            line.push(b' ');
            quote(&mut line, if is_secret(command, args, index) { REDACTED } else { arg });
        }
        line.extend_from_slice(b"\r\n");
        let line: Arc<[u8]> = line.into();
        for listener in self.monitors().listeners.read().unwrap_or_else(PoisonError::into_inner).iter() {
            self.workers.show(*listener, Arc::clone(&line));
        }
    }
}
