//! What collections take: resident memory before and after a filling.
//!
//! Before the first reading a server gets requests like the filling's, on as many connections, that it refuses: their key is a string. So what connections and workers
//! take for requests of that length and so many words is no collection's.

use std::io;
use std::time::Duration;

use super::measure::Course;
use super::peers::{Peer, heed};
use super::results::Footprint;
use super::workloads::{Step, Workload};
use crate::load;
use crate::load::plan::{Amount, Plan};
use crate::load::template::{RANDOM, SAME_KEY, SEPARATOR};

/// Requests that are refused.
const REFUSED: u64 = 25_000;
/// Their key.
const STRING: &str = "a-string";
/// What a server gives back after the filling (buffers, the table that a rehash has left) is not what its collections take.
const SETTLE: Duration = Duration::from_secs(2);
/// Between two looks whether to stop.
const LOOK: Duration = Duration::from_millis(50);

impl Course<'_> {
    /// Fills `peer` with `workload`'s collections, of which there are `each` for each number, and tells what they take; and how many operations the filling was.
    pub(super) fn fill_and_weigh(
        &self,
        peer: &Peer,
        workload: &Workload,
        what: &'static str,
        each: u64,
    ) -> io::Result<(u64, Footprint)> {
        self.take(peer, workload, &[Step::Once("SET a-string 1")])?;
        for step in workload.fill {
            if let Step::Each(text) = step {
                self.be_refused(self.filling(peer, workload, text))?;
            }
        }
        self.take(peer, workload, &[Step::Once("DEL a-string")])?;
        let before_bytes = peer.resident_bytes().0;
        let operations = self.take(peer, workload, workload.fill)?;
        for _ in 0..SETTLE.as_millis() / LOOK.as_millis() {
            heed(self.stop)?;
            std::thread::sleep(LOOK);
        }
        let count = workload.keys_at(self.setup.scale) * each;
        Ok((operations, Footprint::new(what, count, before_bytes, peer.resident_bytes().0)))
    }

    /// Sends requests like the plan's to a key that is a string.
    fn be_refused(&self, mut plan: Plan) -> io::Result<()> {
        let words = &mut plan.commands[0].words;
        let mut requests = 0;
        for request in words.split_mut(|word| word == SEPARATOR.as_bytes()) {
            request[1] = STRING.into();
            requests += 1;
        }
        for word in words {
            // There is no number before it any more.
            *word = String::from_utf8_lossy(word).replace(SAME_KEY, RANDOM).into_bytes();
        }
        plan.amount = Amount::Shared(REFUSED.div_ceil(requests));
        let outcome = load::run(&plan, self.stop, &mut ())?;
        heed(self.stop)?;
        if outcome.operations + outcome.unanswered + outcome.connections_lost > 0 || outcome.errors == 0 {
            let texts = outcome.error_texts.into_keys().collect::<Vec<_>>().join("; ");
            return Err(io::Error::other(format!("requests on a key of another type were not all refused: {texts}")));
        }
        Ok(())
    }
}
