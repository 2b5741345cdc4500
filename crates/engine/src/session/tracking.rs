//! `CLIENT TRACKING` and `CLIENT CACHING`.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use crate::clients::client::Client;
use crate::events::tracking::{Options, Reader, SessionTracking};
use crate::session::Session;
use crate::shard::keyspace::Keyspace;

impl Session {
    /// Runs `CLIENT TRACKING ON`. The options must be compatible with each other and with the
    /// current options. Invalidations are redirected to `redirect`, if any. If the options contain
    /// `BCAST` and there are no `prefixes`, the client receives the invalidations of all keys.
    pub fn track(&mut self, keyspace: &Keyspace, options: Options, redirect: Option<Arc<Client>>, prefixes: &[&[u8]]) {
        let (tracking, tuning) = (keyspace.tracking(), &keyspace.tuning);
        let broadcasts = options.contains(Options::BROADCAST);
        let state = self.tracking.get_or_insert_with(|| {
            let reader = Arc::new(Reader::new(&self.client));
            tracking.add(tuning, &reader);
            Box::new(SessionTracking { reader, options, prefixes: BTreeSet::new(), prefix_bytes: 0 })
        });
        state.options = options | Options::ON;
        state.reader.no_loop.store(options.contains(Options::NO_LOOP), Relaxed);
        state.reader.set_redirect(redirect);
        if broadcasts {
            let all = [&b""[..]];
            let prefixes = if prefixes.is_empty() { &all } else { prefixes };
            for prefix in prefixes {
                if state.prefixes.insert((*prefix).into()) {
                    state.prefix_bytes += prefix.len();
                    tracking.add_prefix(tuning, &state.reader, prefix);
                }
            }
        }
        self.publish_tracking();
    }

    /// Runs `CLIENT TRACKING OFF`.
    pub fn untrack(&mut self, keyspace: &Keyspace) {
        if let Some(state) = self.tracking.take() {
            keyspace.tracking().remove(&keyspace.tuning, &state.reader, &state.prefixes);
            self.caching = false;
            self.publish_tracking();
        }
    }

    /// Sets whether `CLIENT CACHING` applies to the next command.
    pub fn set_caching(&mut self, caching: bool) {
        self.caching = caching;
        self.publish_tracking();
    }

    /// Records that the client to which invalidations are redirected has disconnected.
    pub fn break_redirect(&mut self) {
        if let Some(state) = &mut self.tracking {
            state.options |= Options::BROKEN_REDIRECT;
            self.publish_tracking();
        }
    }

    /// Updates [`Session::reads_as`], and makes the tracking state visible to other workers.
    fn publish_tracking(&mut self) {
        let options = self.tracking.as_ref().map_or(Options::empty(), |state| state.options);
        let redirect = self.tracking.as_ref().map_or(-1, |state| state.redirect() as i64);
        let is_left_out = options.contains(Options::BROADCAST)
            || options.contains(Options::OPT_IN) && !self.caching
            || options.contains(Options::OPT_OUT) && self.caching;
        let reader = self.tracking.as_ref().map(|state| &state.reader);
        self.reads_as = reader.filter(|_| !is_left_out).cloned();
        self.client.tracking.store(options.bits(), Relaxed);
        self.client.redirect.store(redirect, Relaxed);
    }
}
