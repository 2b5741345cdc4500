//! Receives a snapshot that travels in several flows, between two Pantala servers with
//! `repl-flows`. The link has flow 0. Each other flow has a connection and a thread of its own.
//!
//! Each flow is a complete RDB file, which is checked while it arrives. If a flow fails, all flows
//! end, and the dataset stays as it is.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use pantala_replication::replica::{Payload, flow_request};
use pantala_replication::{FlowForm, Mark};

use super::link::{Attempt, End, Wire};
use super::received::Received;

/// Interval at which the link's thread checks whether the threads of the other flows have ended.
const JOIN_WAIT: Duration = Duration::from_millis(10);

/// The state that all flows of a snapshot share.
pub(super) struct Together {
    /// Whether a flow has failed. The others then end.
    has_failed: AtomicBool,
    /// Number of bytes that all flows have received.
    read_bytes: AtomicU64,
    /// When a flow last received bytes. While a large value is sent in one flow, the others may
    /// receive nothing for long.
    received_at: Mutex<Instant>,
}

impl Together {
    fn new() -> Self {
        let received_at = Mutex::new(Instant::now());
        Together { has_failed: AtomicBool::new(false), read_bytes: AtomicU64::new(0), received_at }
    }

    /// Returns whether a flow has failed.
    pub(super) fn has_failed(&self) -> bool {
        self.has_failed.load(Relaxed)
    }

    /// Adds to the number of received bytes. Returns their new number.
    pub(super) fn count(&self, bytes: u64) -> u64 {
        self.read_bytes.fetch_add(bytes, Relaxed) + bytes
    }

    /// Records that a flow has received bytes.
    pub(super) fn note_received(&self) {
        *self.received_at.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// Returns the time for which no flow has received bytes.
    pub(super) fn silence(&self) -> Duration {
        self.received_at.lock().unwrap_or_else(PoisonError::into_inner).elapsed()
    }
}

/// The announced flows of a snapshot.
#[derive(Clone, Copy, Debug)]
pub(super) struct Announced {
    /// The token with which flows are requested, and the mark at the end of each flow.
    pub(super) token: Mark,
    /// Number of flows, and whether they are compressed.
    pub(super) form: FlowForm,
}

impl Attempt<'_> {
    /// Receives all flows of a snapshot, and checks them. Doesn't change the dataset.
    pub(super) fn receive_flows(&self, wire: &mut Wire, announced: Announced) -> Result<Vec<Received<'_>>, End> {
        let Announced { token, form } = announced;
        let peer = wire.socket.peer()?;
        let together = Arc::new(Together::new());
        wire.join(Some(Arc::clone(&together)));
        wire.set_kept_alive(true);
        let received = std::thread::scope(|scope| {
            let mut threads = Vec::new();
            let mut results = Vec::new();
            for index in 1..form.count {
                let together = &together;
                let run = move || noting_failure(together, self.receive_flow(peer, announced, index, together));
                match std::thread::Builder::new().name("pantala-flow".into()).spawn_scoped(scope, run) {
                    Ok(thread) => threads.push(thread),
                    Err(error) => results.push(noting_failure(together, Err(End::from(error)))),
                }
            }
            let own = self.receive(wire, Payload::until(token), (0, form.is_compressed));
            results.insert(0, noting_failure(&together, own));
            while threads.iter().any(|thread| !thread.is_finished()) {
                std::thread::sleep(JOIN_WAIT);
                if let Err(end) = noting_failure(&together, wire.keep_alive().map_err(End::from)) {
                    results.push(Err(end));
                    break;
                }
            }
            let panicked = |_| Err(End::Failed("the thread of a flow has panicked".to_owned()));
            results.extend(threads.into_iter().map(|thread| thread.join().unwrap_or_else(panicked)));
            results
        });
        wire.set_kept_alive(false);
        wire.join(None);
        let (mut all, mut end) = (Vec::new(), None);
        for result in received {
            match (result, &end) {
                (Ok(received), _) => all.push(received),
                // A flow that ended because another has failed, or the attempt is not wanted.
                (Err(End::Unwanted), Some(_)) => {}
                (Err(other), None | Some(End::Unwanted)) => end = Some(other),
                (Err(End::Failed(_)), Some(End::Failed(_))) => {}
            }
        }
        end.map_or(Ok(all), Err)
    }

    /// Requests a flow on a connection of its own, and receives it.
    fn receive_flow(
        &self,
        peer: SocketAddr,
        Announced { token, form }: Announced,
        index: u32,
        together: &Arc<Together>,
    ) -> Result<Received<'_>, End> {
        let of_flow = |end: End| match end {
            End::Failed(why) => End::Failed(format!("Flow {index} of the snapshot from MASTER: {why}")),
            End::Unwanted => End::Unwanted,
        };
        let is_wanted = || self.is_wanted() && !together.has_failed();
        let stream = self.connect_to(peer, is_wanted).map_err(|error| match is_wanted() {
            true => of_flow(error.into()),
            false => End::Unwanted,
        })?;
        let mut wire = Wire::new(self.encrypt(stream, is_wanted).map_err(of_flow)?);
        wire.join(Some(Arc::clone(together)));
        let (request, mut replies) = flow_request(self.credentials().as_ref(), &token, index);
        wire.socket.write_all(&request).map_err(|error| of_flow(error.into()))?;
        let payload = loop {
            let line = wire.line(self).map_err(of_flow)?;
            if let Some(payload) = replies.handle(&line).map_err(End::Failed).map_err(of_flow)? {
                break payload;
            }
        };
        self.receive(&mut wire, payload, (index, form.is_compressed)).map_err(of_flow)
    }
}

/// Makes the other flows end if this one has failed.
fn noting_failure<R>(together: &Together, result: Result<R, End>) -> Result<R, End> {
    if result.is_err() {
        together.has_failed.store(true, Relaxed);
    }
    result
}
