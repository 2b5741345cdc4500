//! When a client's operations are due.
//!
//! With `--rate-limiting` an operation's time is given before the run begins: number `n` of a client is due `n` intervals after its
//! first. A server that stalls does not postpone it, so its latency counts from then (no coordinated omission).

/// The due times of one client. Copies nothing, counts on.
#[derive(Clone, Debug)]
pub(crate) struct Schedule {
    begin_ns: u64,
    rate_per_s: u64,
    number: u64,
}

const SECOND_NS: u64 = 1_000_000_000;

impl Schedule {
    /// `rate_per_s` (not zero) operations a second for each of `clients` clients, evenly out of step with each other.
    pub(crate) fn new(start_ns: u64, rate_per_s: u64, client: u64, clients: u64) -> Self {
        let phase_ns = u128::from(SECOND_NS) * u128::from(client) / (u128::from(rate_per_s) * u128::from(clients));
        Self { begin_ns: start_ns + phase_ns as u64, rate_per_s, number: 0 }
    }

    /// When the next operation is due. No error adds up: it is computed from the beginning.
    pub(crate) fn due_ns(&self) -> u64 {
        self.begin_ns + (u128::from(self.number) * u128::from(SECOND_NS) / u128::from(self.rate_per_s)) as u64
    }

    /// The due operation is on its way.
    pub(crate) fn advance(&mut self) {
        self.number += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_error_adds_up() {
        for rate_per_s in [1u64, 3, 7, 999, 1_000_000_007] {
            let mut schedule = Schedule::new(500, rate_per_s, 0, 1);
            schedule.number = rate_per_s * 3_600;
            assert_eq!(schedule.due_ns(), 500 + 3_600 * SECOND_NS);
        }
    }

    #[test]
    fn clients_are_out_of_step() {
        let due: Vec<u64> = (0..4).map(|client| Schedule::new(0, 10, client, 4).due_ns()).collect();
        assert_eq!(due, [0, 25_000_000, 50_000_000, 75_000_000]);
        let mut schedule = Schedule::new(0, 10, 1, 4);
        schedule.advance();
        assert_eq!(schedule.due_ns(), 125_000_000);
    }
}
