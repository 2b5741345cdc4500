//! Moves connections between workers, so that a few busy connections use one worker, and many use
//! all (`move-connections`).
//!
//! A worker is *saturated* if it has rarely slept between two turns (iterations of its event loop)
//! for some time: it has more work than it can do. It then gives connections to workers that have
//! time left. A worker with little to do gives its active connections to a worker with a lower
//! number. Fewer wake-ups then serve the same commands, and commands that different connections
//! send one after the other run in that order, as in Redis.

use std::sync::atomic::Ordering::Relaxed;

use pantala_engine::faults::{self, Fault};
use pantala_runtime::{EventLoop, Usage, thread_usage};

use super::Control;
use crate::clients::moving::move_at_random;
use crate::dispatch::Dispatcher;
use crate::host::Server;
use crate::loads::WHOLE_PERMILLE;
use crate::reactor::Reactor;
use crate::reactor::moving::ask_to_leave;

/// Time between two measurements, ms.
const PERIOD_MS: i64 = 2;

/// A period is saturated if at most one in this number of its turns began with a sleep.
const TURNS_PER_SLEEP_MIN: u64 = 4;

/// Number of consecutive saturated periods after which connections move. A short burst of commands
/// lasts for fewer periods.
const SATURATED_PERIODS_MIN: u32 = 8;

/// Time over which the CPU time is averaged, ms.
const AVERAGED_MS: i64 = 50;

/// Minimum part of its time that a worker must have left to receive connections of a saturated
/// worker, per thousand.
const SPARE_PERMILLE_MIN: u32 = 200;

/// A worker that was saturated within this time receives no connections, ms.
const SATURATED_MS: i64 = 20;

/// Minimum and maximum time between two moves from a saturated worker, ms. The time doubles with
/// each move that soon follows another, so that connections don't move back and forth all the time.
const REST_MS: (i64, i64) = (20, 10_000);

/// Time between two decisions of a worker with little to do, ms.
const PACK_EVERY_MS: i64 = 1000;

/// Maximum sum of the CPU times of two workers, per thousand. If the sum is larger, the connections
/// of one are not packed on (moved to) the other. One worker needs about two thirds of the time
/// that two workers need for the same connections.
const PACKED_PERMILLE_MAX: u32 = 750;

/// Maximum number of connections that a worker with little to do moves to another worker at once.
const PACKED_AT_ONCE: usize = 64;

/// On a saturated worker, a connection counts as active if it has received or sent something in the
/// last period or within this time before it, ms.
const ACTIVE_MS: i64 = 20;

/// Maximum number of connections that one call of [`Balance::active`] examines.
const EXAMINED_AT_ONCE: usize = 1024;

/// The measurements of a worker, and when it may move connections again.
#[derive(Default)]
pub struct Balance {
    /// When the current period began, in ms of the monotonic clock.
    began_ms: i64,
    /// The kernel's counters and the number of turns at `began_ms`.
    usage: Usage,
    turns: u64,
    /// Length of the last period, ms. A period is at least as long as the turn in which it ended.
    period_ms: i64,
    /// Average CPU time, per thousand.
    cpu_permille: u32,
    saturated_periods: u32,
    /// When connections may leave a saturated worker again, in ms of the monotonic clock.
    rests_until_ms: i64,
    rest_ms: i64,
    packs_at_ms: i64,
    /// The connection that is examined next.
    next_examined: usize,
}

impl Control {
    /// Measures the worker, and moves connections, if a period has ended. Called at the end of a
    /// turn, before the output of the turn's connections is sent.
    #[inline]
    pub fn balance_if_due<L: EventLoop>(&self, dispatcher: &mut Dispatcher<'_, L>) {
        if dispatcher.clients.reactor.clock.turn_ran_ms >= self.next_balance_ms.get() {
            self.balance(dispatcher);
        }
        if faults::is_set(Fault::MoveConnection) {
            move_at_random(&mut dispatcher.clients);
        }
    }

    #[cold]
    fn balance<L: EventLoop>(&self, dispatcher: &mut Dispatcher<'_, L>) {
        let reactor = &mut dispatcher.clients.reactor;
        let facts = reactor.server.facts();
        let now_ms = reactor.clock.turn_ran_ms;
        // On a host with several NUMA nodes, a connection stays on the node that receives it.
        let is_alone = facts.workers - facts.first_io_worker < 2 || facts.placement.is_placed();
        if is_alone || !reactor.settings.spreading.move_connections {
            self.work.borrow_mut().balance.packs_at_ms = 0;
            return self.next_balance_ms.set(now_ms + PACK_EVERY_MS);
        }
        self.next_balance_ms.set(now_ms + PERIOD_MS);
        let balance = &mut self.work.borrow_mut().balance;
        let is_saturated = balance.measure(now_ms, reactor.stats.turns.get(), thread_usage());
        reactor.server.loads.record(reactor.number, now_ms, balance.cpu_permille, is_saturated);
        if is_saturated && now_ms >= balance.rests_until_ms {
            if balance.spread(dispatcher, now_ms) {
                balance.rest(now_ms);
            } else {
                balance.rests_until_ms = now_ms + REST_MS.0;
            }
        } else if now_ms >= balance.packs_at_ms {
            // The workers decide one after the other, so that each knows the decisions of the
            // others.
            let (number, workers) = (i64::from(reactor.number), i64::from(facts.workers));
            let is_first = balance.packs_at_ms == 0;
            let phase_ms = number * PACK_EVERY_MS / workers;
            balance.packs_at_ms =
                (now_ms - phase_ms).div_euclid(PACK_EVERY_MS) * PACK_EVERY_MS + PACK_EVERY_MS + phase_ms;
            if !is_first {
                balance.pack(dispatcher, now_ms);
            }
        }
    }
}

impl Balance {
    /// Ends a period. Returns whether the worker is saturated.
    fn measure(&mut self, now_ms: i64, turns: u64, usage: Usage) -> bool {
        let elapsed_ms = (now_ms - self.began_ms).max(1);
        // `CONFIG RESETSTAT` resets the number of turns.
        let (slept, ran) = (usage.sleeps.saturating_sub(self.usage.sleeps), turns.saturating_sub(self.turns));
        let cpu_permille = usage.cpu_us.saturating_sub(self.usage.cpu_us) / elapsed_ms as u64;
        let is_busy = ran > 0 && slept * TURNS_PER_SLEEP_MIN <= ran;
        self.saturated_periods = if is_busy { self.saturated_periods + 1 } else { 0 };
        let weight = elapsed_ms.min(AVERAGED_MS);
        let average = i64::from(self.cpu_permille) * (AVERAGED_MS - weight)
            + cpu_permille.min(WHOLE_PERMILLE.into()) as i64 * weight;
        self.cpu_permille = (average / AVERAGED_MS) as u32;
        (self.began_ms, self.period_ms, self.usage, self.turns) = (now_ms, elapsed_ms, usage, turns);
        self.saturated_periods >= SATURATED_PERIODS_MIN
    }

    /// Delays the next move from this worker.
    fn rest(&mut self, now_ms: i64) {
        let (min_ms, max_ms) = REST_MS;
        let follows = now_ms - self.rests_until_ms < 4 * self.rest_ms;
        self.rest_ms = if follows { (2 * self.rest_ms).min(max_ms) } else { min_ms };
        self.rests_until_ms = now_ms + self.rest_ms;
    }

    /// If this worker has little to do, starts to move its active connections to a worker with a
    /// lower number that has time for them.
    fn pack<L: EventLoop>(&mut self, dispatcher: &mut Dispatcher<'_, L>, now_ms: i64) {
        let reactor = &mut dispatcher.clients.reactor;
        let (server, first) = (reactor.server, reactor.server.facts().first_io_worker);
        let sum_permille = |worker| cpu_permille(server, worker, now_ms) + self.cpu_permille;
        let has_time = |worker| sum_permille(worker) <= PACKED_PERMILLE_MAX && server.loads.is_calm(worker, now_ms);
        let found = (first..reactor.number).find(|worker| has_time(*worker));
        let Some(to) = found.filter(|_| server.loads.is_calm(reactor.number, now_ms)) else { return };
        let own_permille = self.cpu_permille;
        let mut leaving = 0;
        for index in self.active(reactor, PACK_EVERY_MS) {
            if leaving < PACKED_AT_ONCE && ask_to_leave(reactor, index, to) {
                leaving += 1;
            }
        }
        if leaving > 0 {
            server.loads.pack(to, now_ms, own_permille);
        }
    }

    /// Starts to move connections to the workers that have time left. Moves as many as are needed
    /// to make this worker and those workers equally busy. Returns whether any connection is to
    /// move.
    fn spread<L: EventLoop>(&mut self, dispatcher: &mut Dispatcher<'_, L>, now_ms: i64) -> bool {
        let reactor = &mut dispatcher.clients.reactor;
        let (server, facts) = (reactor.server, reactor.server.facts());
        let mut targets: Vec<(u32, u32)> = (facts.first_io_worker..facts.workers)
            .filter(|worker| *worker != reactor.number && !server.loads.was_saturated(*worker, now_ms, SATURATED_MS))
            .map(|worker| (WHOLE_PERMILLE.saturating_sub(cpu_permille(server, worker, now_ms)), worker))
            .filter(|(spare_permille, _)| *spare_permille >= SPARE_PERMILLE_MIN)
            .collect();
        targets.sort_unstable_by(|one, other| other.cmp(one));
        if targets.is_empty() {
            return false;
        }
        let active = self.active(reactor, ACTIVE_MS + self.period_ms);
        let wanted = leaving_wanted(active.len(), &targets);
        let mut leaving = 0;
        for index in active {
            if leaving < wanted && ask_to_leave(reactor, index, targets[leaving % targets.len()].1) {
                leaving += 1;
            }
        }
        leaving > 0
    }

    /// Returns connections that have received or sent something in the last `within_ms`. Each call
    /// examines only a part of the connections, and the next call continues with the next part.
    fn active<L: EventLoop, H>(&mut self, reactor: &Reactor<'_, L, H>, within_ms: i64) -> Vec<u32> {
        let since_ms = reactor.clock.now_ms - within_ms;
        let all = reactor.connections.len();
        let examined = EXAMINED_AT_ONCE.min(all);
        let begin = if self.next_examined < all { self.next_examined } else { 0 };
        self.next_examined = begin + examined;
        let is_active = |index: &usize| {
            let connection = reactor.connections[*index].as_ref();
            connection.is_some_and(|found| found.session.client.active_ms.load(Relaxed) >= since_ms)
        };
        (begin..begin + examined).map(|at| at % all).filter(is_active).map(|index| index as u32).collect()
    }
}

/// Returns the part of a CPU that a worker uses, per thousand.
fn cpu_permille(server: &Server, worker: u32, now_ms: i64) -> u32 {
    server.loads.cpu_permille(worker, now_ms, server.port(worker).mailbox().is_asleep())
}

/// Returns how many of a saturated worker's active connections must move to make this worker and
/// the targets equally busy. `targets` has the spare time, per thousand, and the number of each
/// target.
fn leaving_wanted(active: usize, targets: &[(u32, u32)]) -> usize {
    let spare_permille: usize = targets.iter().map(|(spare_permille, _)| *spare_permille as usize).sum();
    let whole_permille = WHOLE_PERMILLE as usize * (targets.len() + 1);
    let nearest = (active * spare_permille + whole_permille / 2) / whole_permille;
    nearest.min(active.saturating_sub(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A worker that measures itself, with the time and the counters of the last measurement.
    #[derive(Default)]
    struct Worker {
        balance: Balance,
        now_ms: i64,
        turns: u64,
        usage: Usage,
    }

    impl Worker {
        /// Runs for a period with these turns, sleeps and CPU time. Returns whether the worker is
        /// saturated.
        fn period(&mut self, ms: i64, turns: u64, sleeps: u64, cpu_us: u64) -> bool {
            self.now_ms += ms;
            self.turns += turns;
            self.usage = Usage { sleeps: self.usage.sleeps + sleeps, cpu_us: self.usage.cpu_us + cpu_us };
            self.balance.measure(self.now_ms, self.turns, self.usage)
        }
    }

    #[test]
    fn a_worker_that_rarely_sleeps_for_some_time_is_saturated() {
        let mut worker = Worker::default();
        let mut is_saturated = |ms, turns, sleeps, cpu_us| {
            let mut after = 0;
            while !worker.period(ms, turns, sleeps, cpu_us) && after < 100 {
                after += 1;
            }
            worker.period(2, 40, 40, 100);
            after + 1 == SATURATED_PERIODS_MIN
        };
        assert!(is_saturated(2, 40, 10, 2000));
        assert!(!is_saturated(2, 40, 11, 2000), "it sleeps before every third turn");
        assert!(is_saturated(6, 40, 0, 2000), "another program uses its CPU too");
        assert!(is_saturated(80, 1, 0, 80_000), "turns may be long");
        assert!(!is_saturated(200, 3, 1, 1000), "it sleeps most of the time");
    }

    #[test]
    fn a_reset_of_the_statistics_is_no_load() {
        let mut worker = Worker { turns: 1000, ..Worker::default() };
        worker.period(2, 0, 0, 0);
        worker.turns = 0;
        worker.period(2, 2, 2, 10);
        assert_eq!(worker.balance.saturated_periods, 0);
    }

    #[test]
    fn the_cpu_time_is_an_average() {
        let mut worker = Worker::default();
        for _ in 0..100 {
            worker.period(2, 40, 40, 1000);
        }
        let half = worker.balance.cpu_permille;
        assert!((400..=500).contains(&half), "{half} of 500");
        worker.period(1000, 1, 1, 0);
        assert_eq!(worker.balance.cpu_permille, 0, "it was idle for longer than the average");
    }

    #[test]
    fn moves_that_follow_each_other_become_rare() {
        let mut balance = Balance::default();
        let mut now_ms = 1_000_000;
        let (min_ms, max_ms) = REST_MS;
        for expected_ms in [min_ms, 2 * min_ms, 4 * min_ms] {
            balance.rest(now_ms);
            assert_eq!(balance.rests_until_ms - now_ms, expected_ms);
            now_ms = balance.rests_until_ms;
        }
        for _ in 0..20 {
            balance.rest(now_ms);
            now_ms = balance.rests_until_ms;
        }
        assert_eq!(balance.rest_ms, max_ms);
        balance.rest(now_ms + 10 * max_ms);
        assert_eq!(balance.rest_ms, min_ms, "after a calm time");
    }

    #[test]
    fn connections_are_divided_by_the_time_that_workers_have_left() {
        assert_eq!(leaving_wanted(8, &[]), 0);
        assert_eq!(leaving_wanted(8, &[(1000, 1)]), 4, "an idle worker gets half of them");
        assert_eq!(leaving_wanted(1, &[(1000, 1)]), 0, "a single connection stays");
        assert_eq!((leaving_wanted(2, &[(990, 1)]), leaving_wanted(4, &[(990, 1)])), (1, 2), "a nearly idle worker");
        assert_eq!(leaving_wanted(30, &[(500, 1)]), 8);
        assert_eq!(leaving_wanted(8, &[(1000, 1); 39]), 7);
    }
}
