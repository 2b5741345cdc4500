//! Orders to the [writer thread](super::writer) of the append-only file.
//!
//! A *base* is a file with the dataset at one instant. A *cut* is the point in the stream of
//! effects (propagated changes) at which a snapshot starts.

use std::collections::VecDeque;
use std::sync::mpsc::Sender;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use pantala_engine::effect::Reader;

use super::rewrite::{Base, Unfinished};
use super::state::lock;

/// An order to the writer thread.
pub enum Order {
    /// The stream was cut at the position of this reader. Effects after the cut belong in a new
    /// increment.
    Cut(Reader),
    /// The snapshot of the last cut has ended: it is on disk, or was aborted, or has failed.
    Base(Result<Base, Unfinished>),
    /// Write and sync all effects committed so far. Then send `true` to the caller if both have
    /// succeeded, and `false` otherwise.
    Sync(Sender<bool>),
    /// Write and sync all effects committed so far, then call this function with `true`. If a write
    /// or sync fails, postpone the call until these effects are on disk. If the thread ends
    /// earlier, call the function with `false`.
    Confirm(Confirm),
    /// Write and sync all effects committed so far, then note that a client no longer asks for
    /// `CLIENT DURABILITY always`.
    Unask,
    /// Write and sync all effects committed so far, then end.
    Stop,
}

/// A function that the writer thread calls, see [`Order::Confirm`].
pub type Confirm = Box<dyn FnOnce(bool) + Send>;

/// The pending orders.
#[derive(Default)]
struct Orders {
    /// Whether the thread was woken because the log has more to read or a setting has changed.
    has_more: bool,
    orders: VecDeque<Order>,
}

/// The inbox of the writer thread.
#[derive(Default)]
pub struct Inbox {
    orders: Mutex<Orders>,
    arrived: Condvar,
}

impl Inbox {
    /// Wakes the thread because the log has more to read or a setting has changed.
    pub fn wake(&self) {
        lock(&self.orders).has_more = true;
        self.arrived.notify_one();
    }

    /// Adds an order and wakes the thread.
    pub fn order(&self, order: Order) {
        lock(&self.orders).orders.push_back(order);
        self.arrived.notify_one();
    }

    /// Waits for an order, a wake-up or the deadline `until`. Returns the orders.
    pub(super) fn wait(&self, until: Option<Instant>) -> VecDeque<Order> {
        let mut orders = lock(&self.orders);
        while !orders.has_more && orders.orders.is_empty() {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            orders = match left {
                Some(Duration::ZERO) => break,
                Some(left) => self.arrived.wait_timeout(orders, left).unwrap_or_else(PoisonError::into_inner).0,
                None => self.arrived.wait(orders).unwrap_or_else(PoisonError::into_inner),
            };
        }
        orders.has_more = false;
        std::mem::take(&mut orders.orders)
    }

    /// Waits until `decide`, which sees the pending orders, returns a value. Calls `decide` again
    /// after each order and wake-up. The orders stay in the inbox.
    pub(super) fn wait_until<T>(&self, decide: impl Fn(&VecDeque<Order>) -> Option<T>) -> T {
        let mut orders = lock(&self.orders);
        loop {
            if let Some(decided) = decide(&orders.orders) {
                return decided;
            }
            orders = self.arrived.wait(orders).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Returns the orders that have arrived.
    pub(super) fn take(&self) -> VecDeque<Order> {
        std::mem::take(&mut lock(&self.orders).orders)
    }
}
