//! Prefetches members of a large value. If several commands of a window (a list of parsed commands)
//! look up members of the same value, the members are prefetched before the first of these commands
//! runs.

use pantala_engine::access::{Key, KeyPlace};
use pantala_engine::command::Command;
use pantala_engine::executor::Call;
use pantala_engine::faults::Fault;
use pantala_resp::Args;
use pantala_runtime::EventLoop;
use pantala_session::State;
use pantala_types::table::PREFETCH_KEYS_MAX;

use super::Runner;
use crate::dispatch::Dispatcher;
use crate::dispatch::window::{Entry, What, Window};

/// Minimum number of consecutive commands on one key for which members are prefetched. Prefetching
/// acquires the shard and finds the key one more time. For fewer commands this costs more than it
/// saves, because only a few cache misses overlap.
const PREFETCH_RUN_MIN: usize = 4;

impl Runner {
    /// Prefetches the members or fields that consecutive commands on one key look up. Returns the
    /// number of these commands: at least one, even if there is nothing to prefetch.
    #[inline]
    pub(super) fn look_ahead<L: EventLoop>(&mut self, d: &mut Dispatcher<'_, L>, window: &Window, at: usize) -> usize {
        match &window.entries[at..] {
            [Entry { what: What::Single(_, place), .. }, Entry { what: What::Single(_, next), .. }, ..]
                if place == next =>
            {
                self.prefetch_members(d, &window.entries[at..], *place, window)
            }
            _ => 1,
        }
    }

    /// Prefetches members or fields for `entries`. At least the first two entries have the key at
    /// `place`. Returns the number of consecutive entries with this key, at most
    /// [`PREFETCH_KEYS_MAX`].
    // Not inlined: inlined code would take registers from commands with nothing to prefetch.
    #[inline(never)]
    fn prefetch_members<L: EventLoop>(
        &mut self,
        d: &mut Dispatcher<'_, L>,
        entries: &[Entry],
        place: KeyPlace,
        window: &Window,
    ) -> usize {
        let is_same = |entry: &&Entry| matches!(entry.what, What::Single(_, other) if other == place);
        let count = entries.iter().take(PREFETCH_KEYS_MAX).take_while(is_same).count();
        let looks_for_member = |command: &Command| command.member_argument().is_some();
        if count < PREFETCH_RUN_MIN || !matches!(entries[0].what, What::Single(first, _) if looks_for_member(first)) {
            return count;
        }
        let (connections, io) = (&d.clients.reactor.connections, &d.clients.reactor.io);
        let mut looking = entries[..count].iter().filter_map(|entry| {
            let What::Single(command, _) = entry.what else { return None };
            let index = command.member_argument()?;
            let connection = connections[entry.connection as usize].as_ref()?;
            // The input may be gone if the connection isn't open.
            let bytes = connection.input.bytes(io).get(entry.begin..entry.end)?;
            let args = Args::new(bytes, window.ranges_of(entry));
            (connection.state == State::Open).then(|| (args.at(1), args.at(index)))
        });
        if let Some((bytes, first)) = looking.next() {
            let members = std::iter::once(first).chain(looking.map(|(_, member)| member));
            d.clients.executor.prefetch_members(entries[0].db, &Key { bytes, place }, members);
        }
        count
    }

    /// Injects [`Fault::Overtaking`]: while the command at `at` waits, runs the command after it.
    #[cold]
    pub(super) fn overtake<L: EventLoop>(&mut self, d: &mut Dispatcher<'_, L>, window: &Window, at: usize) {
        let Some(next) = window.entries.get(at + 1) else { return };
        let Some(connection) = &d.clients.reactor.connections[next.connection as usize] else { return };
        let is_behind = next.connection == window.entries[at].connection && connection.state == State::Parked;
        if let What::Single(command, _) = next.what
            && is_behind
            && Fault::Overtaking.breaks(command)
        {
            let bytes = &connection.input.bytes(&d.clients.reactor.io)[next.begin..next.end];
            let args = Args::new(bytes, window.ranges_of(next));
            let (session, connection) = (connection.session.view(), connection.socket.token());
            let words: Vec<&[u8]> = args.iter().collect();
            let call = Call {
                command,
                args,
                first_key: None,
                session,
                reads_as: None,
                connection,
                now_ms: d.clients.reactor.clock.now_ms,
            };
            call.run_ahead(&mut d.clients.executor, &words);
        }
    }
}
