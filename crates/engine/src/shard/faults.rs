//! Deliberately incorrect ways to run commands. Some tests turn them on, and check that the
//! checkers of the other tests detect them. See [`crate::faults`].

use pantala_resp::{ArgRange, Args};

use crate::faults::stall;
use crate::shard::executor::{Call, Executor, Ran};

/// Number of times that [`Call::run_repeated`] runs a command. It is odd, because an even number of
/// runs of `SWAPDB` would change nothing.
const TIMES: usize = 3;

impl Call<'_> {
    /// Implements [`Fault::TornMset`](crate::faults::Fault::TornMset): runs an `MSET` as two
    /// commands, the first for the first key alone. Returns `None` and does nothing if the first
    /// key's shard is busy, or if there is only one key.
    #[cold]
    pub fn run_torn(&self, executor: &mut Executor<'_>, reply: &mut Vec<u8>) -> Option<Ran> {
        let words: Vec<&[u8]> = self.args.iter().collect();
        let [name, key, value, others @ ..] = words.as_slice() else { return None };
        if others.is_empty() || others.len() % 2 == 1 {
            return None;
        }
        if !self.run_ahead(executor, &[name, key, value]) {
            return None;
        }
        stall();
        let shards: Vec<u32> = others.chunks(2).map(|pair| executor.keyspace().place(pair[0]).shard).collect();
        let mut rest = vec![*name];
        rest.extend_from_slice(others);
        let (bytes, ranges) = joined(&rest);
        Some(executor.run_many(&with_args(self, Args::new(&bytes, &ranges)), &shards, reply))
    }

    /// Implements [`Fault::Repeated`](crate::faults::Fault::Repeated): runs a command several times
    /// in succession, each time as [`Executor::run_many`] does. Keeps the last reply.
    #[cold]
    pub fn run_repeated(&self, executor: &mut Executor<'_>, shards: &[u32], reply: &mut Vec<u8>) -> Ran {
        let before = reply.len();
        for _ in 1..TIMES {
            // A shard is busy, so the command waits for it. It then runs only once more.
            if executor.run_many(self, shards, reply) == Ran::Parked {
                return Ran::Parked;
            }
            reply.truncate(before);
            stall();
        }
        executor.run_many(self, shards, reply)
    }

    /// Runs a command, given by its arguments, immediately on the shard of its first key, and drops
    /// its reply. Returns `false` and does nothing if the shard is busy.
    #[cold]
    pub fn run_ahead(&self, executor: &mut Executor<'_>, words: &[&[u8]]) -> bool {
        let shard = executor.keyspace().place(words[1]).shard;
        let Some(ownership) = executor.try_take(shard) else { return false };
        let (bytes, ranges) = joined(words);
        let mut owned = vec![ownership];
        executor.runner.run_held(&with_args(self, Args::new(&bytes, &ranges)), &[shard], &mut owned, &mut Vec::new());
        executor.release_shards(owned, self.now_ms);
        true
    }
}

fn joined(words: &[&[u8]]) -> (Vec<u8>, Vec<ArgRange>) {
    let (mut bytes, mut ranges) = (Vec::new(), Vec::new());
    for word in words {
        ranges.push(ArgRange::new(bytes.len(), word.len()));
        bytes.extend_from_slice(word);
    }
    (bytes, ranges)
}

fn with_args<'a>(call: &Call<'_>, args: Args<'a>) -> Call<'a> {
    Call {
        command: call.command,
        args,
        first_key: None,
        session: call.session,
        reads_as: None,
        connection: call.connection,
        now_ms: call.now_ms,
    }
}
