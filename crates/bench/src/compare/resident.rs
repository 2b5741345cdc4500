//! Measures the memory of collections: reads the resident memory before and after a server is
//! filled.
//!
//! Before the first reading, the server receives requests of the same size as those that fill it,
//! on the same number of connections. The server rejects them, because their key holds a string.
//! The first reading therefore already includes the memory that connections and workers need for
//! such requests, and this memory does not count as memory of collections.

use std::io;
use std::time::Duration;

use super::measure::Comparison;
use super::peers::{Peer, check_interrupted};
use super::results::Footprint;
use super::workloads::{Step, Workload};
use crate::load;
use crate::load::plan::{Amount, Plan};
use crate::load::template::{RANDOM, SAME_KEY, SEPARATOR};

/// Minimum number of rejected requests.
const REJECTED: u64 = 25_000;
/// Key of the rejected requests. It holds a string.
const STRING: &str = "a-string";
/// Wait between the filling and the second reading. During this time a server frees memory that
/// does not belong to collections, such as buffers and the old table of a rehash.
const SETTLE: Duration = Duration::from_secs(2);
/// Interval at which the wait checks whether to stop.
const LOOK: Duration = Duration::from_millis(50);

impl Comparison<'_> {
    /// Fills `peer` and measures the memory of the counted items (members, entries and the like),
    /// which are named `what`. Each of the workload's numbers ([`Workload::numbers`]) creates
    /// `each` items. Returns the number of operations that filled the peer, and the memory.
    pub(super) fn fill_and_measure(
        &self,
        peer: &Peer,
        workload: &Workload,
        what: &'static str,
        each: u64,
    ) -> io::Result<(u64, Footprint)> {
        self.run_steps(peer, workload, &[Step::Once("SET a-string 1")])?;
        for step in workload.fill {
            if let Step::Each(text) = step {
                self.send_rejected(self.filling(peer, workload, text))?;
            }
        }
        self.run_steps(peer, workload, &[Step::Once("DEL a-string")])?;
        let before_bytes = peer.resident_bytes().0;
        let operations = self.run_steps(peer, workload, workload.fill)?;
        for _ in 0..SETTLE.as_millis() / LOOK.as_millis() {
            check_interrupted(self.stop)?;
            std::thread::sleep(LOOK);
        }
        let count = workload.numbers_at(self.setup.scale) * each;
        Ok((operations, Footprint::new(what, count, before_bytes, peer.resident_bytes().0)))
    }

    /// Sends requests like those of the plan, but on a key that holds a string. Fails if the server
    /// accepts one of them.
    fn send_rejected(&self, mut plan: Plan) -> io::Result<()> {
        let words = &mut plan.commands[0].words;
        let mut requests = 0;
        for request in words.split_mut(|word| word == SEPARATOR.as_bytes()) {
            request[1] = STRING.into();
            requests += 1;
        }
        for word in words {
            // The key is now fixed, so no key is drawn that `__same_key__` could repeat.
            // `__same_key__` is therefore replaced by `__random__`, which draws a number.
            *word = String::from_utf8_lossy(word).replace(SAME_KEY, RANDOM).into_bytes();
        }
        plan.amount = Amount::Shared(REJECTED.div_ceil(requests));
        let outcome = load::run(&plan, self.stop, &mut ())?;
        check_interrupted(self.stop)?;
        if outcome.operations + outcome.unanswered + outcome.connections_lost > 0 || outcome.errors == 0 {
            let texts = outcome.error_texts.into_keys().collect::<Vec<_>>().join("; ");
            return Err(io::Error::other(format!("some requests on a key of another type were not rejected: {texts}")));
        }
        Ok(())
    }
}
