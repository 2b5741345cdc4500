//! `SLOWLOG`: slow commands, recorded by each worker.
//!
//! Each worker writes to its own list. Only `SLOWLOG` commands contend with the worker for the
//! list's lock. These commands merge the lists by the numbers of the entries, which ascend with
//! time. They do not stop other work.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pantala_resp::Args;

use crate::clients::client::Client;
use crate::command::Command;
use crate::events::monitor::{REDACTED, is_secret};

/// Maximum number of arguments in an entry, as in Redis. If a command has more arguments, the last
/// one of the entry states the number of missing arguments.
const ARGS_MAX: usize = 32;
/// Maximum length of an argument in bytes, as in Redis. A longer argument is truncated, and the
/// number of missing bytes is appended.
pub const ARG_BYTES_MAX: usize = 128;

/// An entry of the slow log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlowCommand {
    /// Number of the entry, ascending with time.
    pub id: u64,
    /// Unix time of the run, in seconds.
    pub at_s: i64,
    /// Duration, µs.
    pub duration_us: i64,
    /// Arguments, truncated and without secrets.
    pub args: Vec<Vec<u8>>,
    /// Address of the client.
    pub address: String,
    /// Name of the client.
    pub name: Vec<u8>,
}

/// The timing of a slow command.
#[derive(Clone, Copy, Debug)]
pub struct SlowRun {
    /// Unix time in seconds.
    pub at_s: i64,
    /// Duration, µs.
    pub duration_us: i64,
    /// The index of an argument of which only the start is left, and the number of missing bytes.
    /// `None`: all arguments are complete. A command that stores a large value takes over the
    /// value's buffer, and leaves only a copy of the value's start for the log.
    pub cut: Option<(usize, usize)>,
}

/// The sender of a slow command.
#[derive(Clone, Copy)]
pub enum Sender<'a> {
    /// The client itself.
    Client(&'a Client),
    /// A script that runs on behalf of the client.
    Script(&'a Client),
}

/// The address shown for a script.
const ADDRESS_OF_SCRIPTS: &str = "?:0";

/// The lists of all workers. See the head of this module.
pub struct SlowLog {
    next_id: AtomicU64,
    /// Entries by worker, the latest first.
    lists: Box<[Mutex<VecDeque<Arc<SlowCommand>>>]>,
}

impl SlowLog {
    /// Returns an empty log.
    pub(crate) fn new(workers: usize) -> Self {
        SlowLog { next_id: AtomicU64::new(0), lists: (0..workers).map(|_| Mutex::default()).collect() }
    }

    /// Records a command of a client or of its script. As in Redis, a script has no address or
    /// name. Keeps the worker's latest `len_max` entries.
    pub fn note(&self, sender: Sender<'_>, command: &Command, args: &Args<'_>, run: SlowRun, len_max: u64) {
        let (client, (address, name)) = match sender {
            Sender::Client(client) => (client, (client.shown_address(), client.names().name.clone())),
            Sender::Script(client) => (client, (ADDRESS_OF_SCRIPTS.to_owned(), Vec::new())),
        };
        let SlowRun { at_s, duration_us, cut } = run;
        let mut args = shortened(command, args);
        if let Some((index, missing)) = cut.filter(|(_, missing)| *missing > 0)
            && let Some(arg) = args.get_mut(index)
        {
            arg.extend_from_slice(format!("... ({missing} more bytes)").as_bytes());
        }
        let mut list = self.list(client.listener().worker as usize);
        // The ID is taken under the list's lock, so IDs ascend within a list. `Relaxed` suffices,
        // because the lock orders the accesses.
        let id = self.next_id.fetch_add(1, Relaxed);
        list.push_front(Arc::new(SlowCommand { id, at_s, duration_us, args, address, name }));
        list.truncate(usize::try_from(len_max).unwrap_or(usize::MAX));
    }

    /// Returns at most `len_max` entries of all workers, the latest first.
    pub fn latest(&self, len_max: u64) -> Vec<Arc<SlowCommand>> {
        let mut all: Vec<_> =
            (0..self.lists.len()).flat_map(|worker| self.list(worker).iter().cloned().collect::<Vec<_>>()).collect();
        all.sort_unstable_by_key(|entry| std::cmp::Reverse(entry.id));
        all.truncate(usize::try_from(len_max).unwrap_or(usize::MAX));
        all
    }

    /// Removes all entries. The numbers of later entries continue those of earlier ones.
    pub fn reset(&self) {
        (0..self.lists.len()).for_each(|worker| self.list(worker).clear());
    }

    fn list(&self, worker: usize) -> MutexGuard<'_, VecDeque<Arc<SlowCommand>>> {
        // After a panic the list is still valid, because it is valid after each step.
        self.lists[worker].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn shortened(command: &Command, args: &Args<'_>) -> Vec<Vec<u8>> {
    let shown = if args.len() > ARGS_MAX { ARGS_MAX - 1 } else { args.len() };
    let shorten = |(index, arg): (usize, &[u8])| {
        if is_secret(command, args, index) {
            return REDACTED.to_vec();
        }
        if arg.len() <= ARG_BYTES_MAX {
            return arg.to_vec();
        }
        let more = format!("... ({} more bytes)", arg.len() - ARG_BYTES_MAX);
        [&arg[..ARG_BYTES_MAX], more.as_bytes()].concat()
    };
    let mut short: Vec<Vec<u8>> = args.iter().take(shown).enumerate().map(shorten).collect();
    if args.len() > shown {
        short.push(format!("... ({} more arguments)", args.len() - shown).into_bytes());
    }
    short
}

#[cfg(test)]
mod tests {
    use super::*;
    use pantala_resp::ArgRange;

    fn short(words: &[Vec<u8>]) -> Vec<Vec<u8>> {
        let (mut bytes, mut ranges) = (Vec::new(), Vec::new());
        for word in words {
            ranges.push(ArgRange::new(bytes.len(), word.len()));
            bytes.extend_from_slice(word);
        }
        shortened(&Command { full_name: "set", ..Command::BLANK }, &Args::new(&bytes, &ranges))
    }

    #[test]
    fn arguments_beyond_the_limit_are_truncated() {
        let words = |count: usize| vec![b"w".to_vec(); count];
        assert_eq!(short(&words(ARGS_MAX)), words(ARGS_MAX));
        let mut longer = words(ARGS_MAX - 1);
        longer.push(b"... (2 more arguments)".to_vec());
        assert_eq!(short(&words(ARGS_MAX + 1)), longer);
        let long = vec![b'x'; ARG_BYTES_MAX];
        assert_eq!(short(std::slice::from_ref(&long)), std::slice::from_ref(&long));
        let cut = [long.as_slice(), b"... (1 more bytes)"].concat();
        assert_eq!(short(&[vec![b'x'; ARG_BYTES_MAX + 1]]), [cut]);
    }
}
