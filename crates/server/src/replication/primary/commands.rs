//! The commands of replicas (`SYNC`, `PSYNC`, `REPLCONF`), `ROLE` and `FAILOVER`.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use pantala_base::number::parse_i64;
use pantala_engine::client::{Durability, Endpoint, Failover, OnDisk, Replicator, Session};
use pantala_engine::effect::log::Start;
use pantala_replication::{Handshake, NotContinued, Registration, ReplconfAction, Replica, ReplicaState};
use pantala_resp::Reply;

use super::following::LinkReader;
use super::waits::offset_after;
use super::{Asker, Link, Phase, flows};
use crate::aof;
use crate::host::Server;
use crate::replication::replica::Phase as ReplicaPhase;
use crate::replication::{Place, Replication, Shown, failover, promotion};

/// Returns the address of a client's peer, without its port.
fn peer(endpoint: &Endpoint) -> String {
    match endpoint {
        Endpoint::Tcp(address) => address.ip().to_canonical().to_string(),
        Endpoint::Unix(path) => path.clone(),
    }
}

/// Returns the handshake state of a connection, which `REPLCONF` changes.
fn handshake_of(session: &mut Session) -> &mut Handshake {
    let handshake = session.handshake.get_or_insert_with(|| Box::new(Handshake::default()));
    handshake.downcast_mut().expect("only replication stores a handshake")
}

impl Asker {
    /// Creates the request of a connection that has sent `PSYNC` (with the arguments `psync`) or
    /// `SYNC` (if `psync` is `None`). An error is the complete error reply.
    fn new(server: &Server, session: &mut Session, psync: Option<&[&[u8]]>) -> Result<Asker, &'static str> {
        let handshake = handshake_of(session).clone();
        if handshake.filter.is_any() && !handshake.finds_mark {
            return Err("ERR Filtered replica requires EOF capability");
        }
        let asked = match psync {
            None => None,
            Some([id, offset, ..]) => match parse_i64(offset) {
                Some(offset) => Some((id.to_vec(), offset)),
                None => return Err("ERR value is not an integer or out of range"),
            },
            Some(_) => return Err("ERR syntax error"),
        };
        let replica = Replica::new(session.client.id, peer(&session.client.address), handshake, server.monotonic_ms());
        let name = format!("{}:{}", replica.address(), replica.handshake.port);
        let of = (replica.client, name.clone());
        let link = Arc::new(Link::new(server, of, session.listener(), asked.is_none(), Phase::Wait));
        Ok(Asker { link, replica, name, asked })
    }
}

impl Replicator for Server {
    fn sync(&self, session: &mut Session, psync: Option<&[&[u8]]>, reply: &mut Reply<'_>) {
        if session.follows.is_some() {
            return;
        }
        if let Some([token, index, word]) = psync
            && word.eq_ignore_ascii_case(b"flow")
        {
            if let Err(error) = flows::attach(self, session, token, index) {
                reply.error(error);
            }
            return;
        }
        if let Some([id, _, word, ..]) = psync
            && word.eq_ignore_ascii_case(b"failover")
            && let Err(error) = promotion::take_over(self, id, &session.client)
        {
            return reply.error(error);
        }
        if self.replication().failovers.is_running() {
            return reply.error("NOMASTERLINK Can't SYNC while failing over");
        }
        if self.replication().replica.lacks_link() {
            return reply.error("NOMASTERLINK Can't SYNC while not connected with my master");
        }
        let asker = match Asker::new(self, session, psync) {
            Ok(asker) => asker,
            Err(error) => return reply.error(error),
        };
        tracing::info!("Replica {} asks for synchronization", asker.name);
        let wants_no_stream = asker.replica.handshake.wants_no_stream;
        let link = Arc::clone(&asker.link);
        // A promotion in progress will change the replication ID, so the request must wait for its
        // end.
        let deferred = promotion::defer(self.replication(), asker);
        if let Some(asker) = deferred
            && let Err(error) = self.replication().attach(self, asker)
        {
            return reply.error(&format!("ERR the thread of the stream could not be started: {error}"));
        }
        let Some(server) = self.replication().server() else { return };
        session.follow(Box::new(LinkReader::new(server, Arc::clone(&link), wants_no_stream)));
        link.wake();
        self.replication().sync_if_due(self);
    }

    fn configure(&self, session: &mut Session, options: &[&[u8]], reply: &mut Reply<'_>) {
        match handshake_of(session).handle(options) {
            Err(error) => reply.error_bytes(&error.0),
            Ok(ReplconfAction::Ok) => reply.ok(),
            Ok(ReplconfAction::Ack(offset, synced)) if session.follows.is_some() => {
                self.replication().acked(self, session.client.id, offset, synced);
            }
            Ok(ReplconfAction::GetAck) => {
                if let Some(link) = &mut session.primary {
                    link.wants_ack = true;
                }
            }
            Ok(ReplconfAction::Ack(..) | ReplconfAction::Nothing) => {}
        }
    }

    fn role(&self, reply: &mut Reply<'_>) {
        if let Some(Shown { primary, phase, offsets, .. }) = self.replication().replica.shown() {
            reply.array(5);
            reply.bulk(b"slave");
            reply.bulk(primary.host.as_bytes());
            reply.integer(i64::from(primary.port));
            reply.bulk(phase.name().as_bytes());
            return reply.integer(if phase == ReplicaPhase::Connected { offsets.0 as i64 } else { -1 });
        }
        let offset = self.keyspace().journal().end_with_pending();
        let state = self.replication().state();
        reply.array(3);
        reply.bulk(b"master");
        reply.integer(offset as i64);
        let online = || state.replicas.iter().filter(|replica| replica.state == ReplicaState::Online);
        reply.array(online().count());
        for replica in online() {
            reply.array(3);
            reply.bulk(replica.address().as_bytes());
            reply.bulk(replica.handshake.port.to_string().as_bytes());
            reply.bulk(replica.acked.to_string().as_bytes());
        }
    }

    fn fail_over(&self, wanted: &Failover<'_>) -> Result<(), String> {
        failover::start(self, wanted)
    }

    fn abort_failover(&self) -> Result<(), String> {
        match self.replication().failovers.is_running() {
            true => {
                failover::abort(self, None, "Failover manually aborted");
                Ok(())
            }
            false => Err("ERR No failover in progress.".to_owned()),
        }
    }

    fn acknowledged(&self, stamp: u64) -> Option<u64> {
        let offset = offset_after(self, stamp)?;
        Some(self.replication().state().replicas.acked(offset) as u64)
    }

    fn on_disk(&self, stamp: u64, durability: Durability) -> OnDisk {
        let aof = &self.snapshots().aof;
        let offset = offset_after(self, stamp);
        OnDisk {
            is_appending: aof.state() != aof::State::Off,
            // If the client's durability makes replies wait for syncs, the reply to `WAITAOF` waits
            // until the effects of the client's commands are on disk. So these effects count as on
            // disk already.
            local: aof.gate().awaits_syncs(durability),
            replicas: offset.map(|offset| self.replication().state().replicas.synced(offset) as u64),
        }
    }

    fn change_id(&self) {
        let mut state = self.replication().state();
        let id = state.new_id();
        state.history.change(id);
    }
}

impl Replication {
    /// Returns the place from which a replica may continue the stream.
    fn continued(&self, server: &Server, asked: Registration<'_>) -> Result<Place, NotContinued> {
        let state = self.state();
        let (held, is_recorded) = self.held(server);
        let offset = state.history.continues(asked, (is_recorded && state.has_backlog).then_some(held))?;
        Ok(Place { offset, id: state.history.id() })
    }

    fn log_not_continued(&self, name: &str, asked: Registration<'_>, why: &NotContinued) {
        let own = self.state().history.clone();
        let asked_id = asked.id.escape_ascii();
        match why {
            NotContinued::Wanted => return tracing::info!("Full resync requested by replica {name}"),
            NotContinued::OtherHistory => tracing::info!(
                "Partial resynchronization not accepted: Replication ID mismatch (Replica asked for '{asked_id}', my replication IDs are \
                 '{}' and '{}')",
                own.id(),
                own.second().map_or_else(|| "0".repeat(40), |(id, _)| id.to_string()),
            ),
            NotContinued::BeyondSecondId(end) => tracing::info!(
                "Partial resynchronization not accepted: Requested offset for second ID was {}, but I can reply up to {end}",
                asked.offset
            ),
            NotContinued::NotHeld(_) => tracing::info!(
                "Unable to partial resync with replica {name} for lack of backlog (Replica request was: {}).",
                asked.offset
            ),
        }
        self.syncs.partial_err.fetch_add(1, Relaxed);
    }

    /// Attaches a replica. If possible, the replica continues the stream; otherwise it waits for a
    /// snapshot.
    ///
    /// # Errors
    /// The thread of the stream can't be started.
    pub(in crate::replication) fn attach(&self, server: &Server, asker: Asker) -> std::io::Result<()> {
        let Asker { link, replica, name, asked } = asker;
        if let Some((id, offset)) = &asked {
            let asked = Registration { id, offset: *offset };
            match self.continued(server, asked) {
                Ok(place) => {
                    let online = Replica { state: ReplicaState::Online, ..replica.clone() };
                    if self.continue_at(server, &link, online, place) {
                        self.syncs.partial_ok.fetch_add(1, Relaxed);
                        self.remove_if_closed(server, &link);
                        return Ok(());
                    }
                    tracing::info!("Unable to partial resync with replica {name} for lack of backlog");
                    self.syncs.partial_err.fetch_add(1, Relaxed);
                }
                Err(why) => self.log_not_continued(&name, asked, &why),
            }
        }
        server.keyspace().keep_journal(true)?;
        self.syncs.full.fetch_add(1, Relaxed);
        self.added(server, replica, Arc::clone(&link), None);
        self.remove_if_closed(server, &link);
        Ok(())
    }

    /// Removes a replica if its connection was closed before the replica was added.
    fn remove_if_closed(&self, server: &Server, link: &Link) {
        if link.part().is_disconnected {
            self.removed(server, link.client);
        }
    }

    /// Adds a replica that continues from `place`. Returns `false` if the stream from there on is
    /// no longer in memory, or if the replication ID has changed.
    fn continue_at(&self, server: &Server, link: &Arc<Link>, replica: Replica, place: Place) -> bool {
        let Place { offset, id } = place;
        let bound = server.keyspace().journal().replica_bound();
        let Ok(Ok(stream)) = server.keyspace().read_journal(Start::At(offset), bound, Arc::clone(&link.wake)) else {
            return false;
        };
        let lag_bytes = stream.lag_bytes();
        let supports_psync2 = replica.handshake.supports_psync2;
        if !self.added(server, replica, Arc::clone(link), Some(place)) {
            server.keyspace().leave_journal(&stream);
            return false;
        }
        let mut part = link.part();
        if part.is_disconnected || matches!(part.phase, Phase::Failed(_)) {
            drop(part);
            server.keyspace().leave_journal(&stream);
            return true;
        }
        part.stream = Some(stream);
        part.phase = Phase::Stream;
        part.lines = match supports_psync2 {
            true => format!("+CONTINUE {id}\r\n").into_bytes(),
            false => b"+CONTINUE\r\n".to_vec(),
        };
        tracing::info!(
            "Partial resynchronization request from {} accepted. Sending {lag_bytes} bytes of backlog starting from \
             offset {}.",
            link.name,
            offset + 1
        );
        true
    }

    /// Records a replica's acknowledgement.
    fn acked(&self, server: &Server, client: u64, offset: i64, synced: i64) {
        let now_ms = server.monotonic_ms();
        // The stream may grow after this read, which does no harm: a correct replica acknowledges
        // only bytes that it has received, and these were in the stream before.
        let end = server.keyspace().journal().held().0.end;
        let link = {
            let mut state = self.state();
            if !state.replicas.ack(client, (offset, synced), end, now_ms) {
                let name = state.replicas.find(client).map_or_else(String::new, |replica| replica.address());
                let wrong = offset.max(synced);
                tracing::warn!(
                    "Replica {name} acknowledges offset {wrong}, beyond the end of the stream, {end}: ignored"
                );
            }
            state.links.iter().find(|link| link.client == client).map(Arc::clone)
        };
        if let Some(link) = link {
            let mut part = link.part();
            if matches!(part.phase, Phase::UntilAck) {
                part.phase = Phase::Stream;
                drop(part);
                link.wake();
            }
        }
        self.answer_waits(server);
        self.check_good_replicas(server);
    }
}
