//! Complete transactions, and watches that commands of other connections may invalidate.

use super::{Check, Generator, Step, may_be_bent, words};

/// A transaction is built from fewer commands than this.
const QUEUED_MAX: usize = 7;

impl Generator {
    pub(super) fn transaction_command(&mut self) -> Step {
        match self.random.below(8) {
            0 => return Step::new(words("UNWATCH"), Check::Exact),
            1 | 2 => {
                let mut args = words("WATCH");
                for _ in 0..self.random.below(3) + 1 {
                    args.push(self.key());
                }
                return Step::new(args, Check::Exact);
            }
            3 if self.random.one_in(6) => {
                let alone = *self.random.pick(&["EXEC", "DISCARD", "EXEC now", "MULTI 1", "WATCH"]);
                return Step::new(words(alone), Check::Exact);
            }
            _ => {}
        }
        let mut queued = Vec::new();
        for _ in 0..self.random.below(QUEUED_MAX) {
            let mut step = match self.random.below(12) {
                0 => {
                    let mut steps = vec![self.sort_command()];
                    steps.extend(self.following.drain(..));
                    if steps.iter().all(|step| step.check == Check::Exact) {
                        queued.extend(steps);
                    }
                    continue;
                }
                1 => self.waiting_command(),
                2 if self.random.one_in(4) => Step::new(words("MULTI"), Check::Exact),
                2 if self.random.one_in(4) => Step::new(words("WATCH a"), Check::Exact),
                _ => self.data_command(),
            };
            // EXEC has one reply for all commands, so each command's reply must be comparable byte
            // by byte. A command that other steps must follow directly is excluded, because these
            // steps can't be queued with it.
            let is_whole = !self.has_following_step();
            self.following.clear();
            if step.check != Check::Exact || !is_whole {
                continue;
            }
            if self.random.one_in(25) && may_be_bent(&step.args) && step.args[0] != b"XADD" {
                self.bend(&mut step);
            }
            queued.push(step);
        }
        let end = if self.random.one_in(8) { "DISCARD" } else { "EXEC" };
        queued.push(Step::new(words(end), Check::Exact));
        // A series of stream commands (see `stream_run`) continues after the transaction.
        self.following.extend(queued);
        Step::new(words("MULTI"), Check::Exact)
    }
}
