//! Sends consecutive single-key commands of a pipeline together. With `--execution owner`, commands
//! are always sent together, because the commands of a shard run on its *home*, the worker to which
//! the shard is assigned. With `--execution inline`, they are sent together only if long scripts
//! have recently held all shards and an earlier command of the connection had to wait. If the
//! commands were then sent one by one, each of them would wait for another script.

use pantala_engine::access::KeyPlace;
use pantala_engine::executor::{Call, Executor};
use pantala_engine::keyspace::{Execution, Keyspace};
use pantala_engine::request::{RequestNode, Step};
use pantala_resp::Args;
use pantala_runtime::EventLoop;
use pantala_session::State;
use pantala_session::access::is_restricted;
use pantala_session::replies::needs_settling;

use super::Runner;
use super::run::may_be_script;
use crate::clients::note_unsynced;
use crate::clients::output_limit;
use crate::dispatch::Dispatcher;
use crate::dispatch::window::{Entry, What, Window};
use crate::stats::Outcome;

impl Runner {
    /// Runs a window (a list of parsed commands) with `--execution owner`. Sends each connection's
    /// consecutive single-key commands to the homes of their shards, in one request per home. The
    /// replies keep the order of the commands. Returns the window, or `None` if a script became
    /// busy and the window was abandoned ([`Runner::run_suspended`]).
    pub(super) fn run_for_homes<L: EventLoop>(
        &mut self,
        d: &mut Dispatcher<'_, L>,
        mut window: Window,
    ) -> Option<Window> {
        let mut at = 0;
        while at < window.entries.len() {
            let entry = &window.entries[at];
            if let Some(command) = may_be_script(entry) {
                window = self.run_suspended(d, window, at, command)?;
                note_unsynced(&mut d.clients, window.entries[at].connection);
                at += 1;
                continue;
            }
            let alike = alike(&window.entries[at..]);
            if alike > 1 && self.send_to_homes(d, &window.entries[at..at + alike], &window) {
                at += alike;
            } else {
                self.run_entry(d, entry, window.ranges_of(entry));
                at += 1;
            }
        }
        Some(window)
    }

    /// Sends consecutive single-key commands of one connection, starting with the entry `at`, as
    /// one request. Does so only if an earlier command of the connection had to wait for its
    /// shards. Returns the number of commands sent; if it is 0, the commands must run one by one.
    #[cold]
    pub(super) fn wait_together<L: EventLoop>(
        &mut self,
        d: &mut Dispatcher<'_, L>,
        window: &Window,
        at: usize,
    ) -> usize {
        let entries = &window.entries[at..];
        let Some(connection) = &mut d.clients.reactor.connections[entries[0].connection as usize] else { return 0 };
        // While a command of the connection waits, the commands after it are held back, so there is
        // nothing to send.
        if connection.state != State::Open || !connection.waits.has_waited {
            return 0;
        }
        let alike = alike(entries);
        if alike < 2 {
            return 0;
        }
        connection.waits.has_waited = false;
        let is_joined = self.send_to_homes(d, &entries[..alike], window);
        d.clients.reactor.stats.joined.add(u64::from(is_joined));
        if is_joined { alike } else { 0 }
    }

    /// Sends single-key commands of a connection to the homes of their shards. With `--execution
    /// inline`, sends them as one request to the owners of the shards. Returns `false` if the
    /// commands must run one by one, because of a special case.
    fn send_to_homes<L: EventLoop>(&mut self, d: &mut Dispatcher<'_, L>, entries: &[Entry], window: &Window) -> bool {
        let index = entries[0].connection;
        let Some(connection) = &mut d.clients.reactor.connections[index as usize] else { return true };
        if connection.state != State::Open {
            return true;
        }
        if is_restricted(&connection.session, d.clients.executor.keyspace().users())
            || d.clients.reactor.server.paused_until_ms() > d.clients.reactor.clock.now_ms
            || d.clients.executor.keyspace().tuning.refuses()
            || needs_settling(&connection.session)
            || connection.session.transaction.is_some()
            || connection.session.caching
        {
            return false;
        }
        let (keyspace, worker) = (d.clients.executor.keyspace(), d.clients.executor.worker());
        let has_homes = keyspace.layout().execution == Execution::Owner;
        let (view, token) = (connection.session.view(), connection.socket.token());
        let (reads_as, now_ms) = (connection.session.reads_as.as_ref(), d.clients.reactor.clock.now_ms);
        // Pending output counts towards the connection's output limit.
        let reply_bytes_max = match output_limit(connection, &d.clients.reactor.settings).hard_bytes {
            0 => u64::MAX,
            hard_bytes => hard_bytes.saturating_sub(connection.pending_bytes() as u64),
        };
        let new_request = |executor: &mut Executor<'_>| {
            let mut node = executor.spare().request(view, token, now_ms);
            node.value.reads_as = reads_as.cloned();
            node.value.reply_bytes_max = reply_bytes_max;
            node
        };
        let bytes = connection.input.bytes(&d.clients.reactor.io);
        let call_of = |entry: &Entry| {
            let What::Single(command, place) = entry.what else { unreachable!("{SINGLE}") };
            let args = Args::new(&bytes[entry.begin..entry.end], window.ranges_of(entry));
            Call { command, args, first_key: Some(place), session: view, reads_as, connection: token, now_ms }
        };
        // This worker runs its own commands directly, unless keys may have to be evicted or a
        // command must be timed individually. Only commands in requests are timed individually and
        // may evict keys.
        let mut runs_own = has_homes && !keyspace.tuning.is_limited();
        for entry in entries {
            let Call { command, args, .. } = call_of(entry);
            connection.session.client.set_command(command);
            d.clients.tally.count(command, Outcome::Ok);
            if d.stopwatch.times(command, args.len()) {
                d.clients.tally.expect_time();
            }
            runs_own &= !d.stopwatch.times_requests(command, args.len());
        }
        let executor = &mut d.clients.executor;
        let (own, others): (Vec<_>, Vec<_>) =
            (0..).zip(entries).partition(|(_, entry)| runs_own && is_at_home(keyspace, worker, entry));
        let mut requests = 0;
        let mut copy_and_start = |executor: &mut Executor<'_>, copied: Vec<(u32, &Entry)>| {
            let mut by_home: Vec<Option<RequestNode>> = Vec::new();
            by_home.resize_with(if has_homes { keyspace.layout().homes as usize } else { 1 }, || None);
            for (sequence, entry) in copied {
                let (Call { command, args, .. }, place) = (call_of(entry), place_of(entry));
                by_home[if has_homes { keyspace.home(place.shard) as usize } else { 0 }]
                    .get_or_insert_with(|| new_request(executor))
                    .value
                    .push_single(command, &args, place, sequence);
            }
            for request in by_home.into_iter().flatten() {
                requests += 1;
                executor.resume(request);
            }
        };
        // The other workers run their commands meanwhile.
        copy_and_start(executor, others);
        let mut ran = 0;
        if !own.is_empty() {
            let node = new_request(executor);
            let calls = own.iter().map(|(sequence, entry)| (call_of(entry), place_of(entry), *sequence));
            ran = executor.run_at_home(node, calls);
        }
        if ran < own.len() {
            // The shard of the next command is busy. This command and all later ones are sent in
            // requests. None of the later ones may overtake it, because they may have the same key.
            copy_and_start(executor, own[ran..].to_vec());
        }
        let requests = requests + u32::from(ran > 0);
        let end = entries[entries.len() - 1].end;
        connection.input.done(end);
        // Includes the `Step` that the request stores for each command, because a `Step` may be
        // larger than the command itself.
        let argument_bytes = end - entries[0].begin + entries.len() * size_of::<Step>();
        connection.park(requests, argument_bytes);
        connection.waits.has_waited = !has_homes;
        true
    }
}

/// Counts the leading entries that are single-key commands of the first entry's connection.
fn alike(entries: &[Entry]) -> usize {
    let is_alike = |next: &&Entry| next.connection == entries[0].connection && matches!(next.what, What::Single(..));
    entries.iter().take_while(is_alike).count()
}

/// Returns whether an entry is a single-key command whose shard's home is this worker.
fn is_at_home(keyspace: &Keyspace, worker: u32, entry: &Entry) -> bool {
    matches!(entry.what, What::Single(_, place) if keyspace.home(place.shard) == worker)
}

/// The panic message if a caller has passed other commands.
const SINGLE: &str = "the caller has chosen single-key commands";

/// Returns the place of the key of a single-key command.
fn place_of(entry: &Entry) -> KeyPlace {
    let What::Single(_, place) = entry.what else { unreachable!("{SINGLE}") };
    place
}
