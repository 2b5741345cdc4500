//! Computes the due times of a client's operations.
//!
//! With `--rate-limiting`, all due times are fixed before the run. Operations are due at even
//! intervals, and the clients take turns. Latency counts from the due time. If a server stalls, the
//! latencies of delayed requests therefore include the delay (no coordinated omission).

/// The due times of one client.
#[derive(Clone, Debug)]
pub(crate) struct Schedule {
    begin_ns: u64,
    /// Rate of all clients together, in operations per second.
    rate_per_s: u64,
    clients: u64,
    /// Number of the client's next operation, among the operations of all clients.
    number: u64,
}

const SECOND_NS: u64 = 1_000_000_000;

impl Schedule {
    /// Creates the schedule of the client `client`, one of `clients` clients. Together they send
    /// `rate_per_s` operations per second, which must not be zero.
    pub(crate) fn new(start_ns: u64, rate_per_s: u64, client: u64, clients: u64) -> Self {
        Self { begin_ns: start_ns, rate_per_s, clients, number: client }
    }

    /// Returns the time at which the next operation is due. The time is computed from the start of
    /// the run, so that rounding errors do not accumulate.
    pub(crate) fn due_ns(&self) -> u64 {
        self.begin_ns + (u128::from(self.number) * u128::from(SECOND_NS) / u128::from(self.rate_per_s)) as u64
    }

    /// Advances to the client's next operation.
    pub(crate) fn advance(&mut self) {
        self.number += self.clients;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_error_adds_up() {
        for (rate_per_s, clients) in [(1u64, 1), (3, 1), (7, 5), (999, 200), (1_000_000_007, 3)] {
            let mut schedule = Schedule::new(500, rate_per_s, 0, clients);
            schedule.number = rate_per_s * 3_600;
            assert_eq!(schedule.due_ns(), 500 + 3_600 * SECOND_NS);
        }
    }

    #[test]
    fn clients_are_out_of_step() {
        let due: Vec<u64> = (0..4).map(|client| Schedule::new(0, 40, client, 4).due_ns()).collect();
        assert_eq!(due, [0, 25_000_000, 50_000_000, 75_000_000]);
        let mut schedule = Schedule::new(0, 40, 1, 4);
        schedule.advance();
        assert_eq!(schedule.due_ns(), 125_000_000);
    }

    #[test]
    fn a_rate_below_one_each_is_kept() {
        // Seven clients together send three operations per second.
        let mut due: Vec<u64> = Vec::new();
        for client in 0..7 {
            let mut schedule = Schedule::new(0, 3, client, 7);
            while schedule.due_ns() < 10 * SECOND_NS {
                due.push(schedule.due_ns());
                schedule.advance();
            }
        }
        due.sort_unstable();
        assert_eq!(due.len(), 30);
        assert!(due.windows(2).all(|pair| (333_333_333..=333_333_334).contains(&(pair[1] - pair[0]))), "{due:?}");
    }
}
