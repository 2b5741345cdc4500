//! `SYNC`, `PSYNC`, `REPLCONF`, `ROLE`.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use pantala_base::number::parse_i64;
use pantala_engine::client::{Endpoint, Replicator, Session};
use pantala_engine::effect::log::Start;
use pantala_replication::{Asked, Handshake, Heard, NotContinued, Replica, ReplicaState};
use pantala_resp::Reply;

use super::following::LinkReader;
use super::{Link, Phase};
use crate::host::Server;
use crate::replication::replica::Phase as ReplicaPhase;
use crate::replication::{Replication, Shown};

/// Returns the address of a client's peer, without its port.
fn peer(endpoint: &Endpoint) -> String {
    match endpoint {
        Endpoint::Tcp(address) => address.ip().to_canonical().to_string(),
        Endpoint::Unix(path) => path.clone(),
    }
}

/// Returns what a connection has said by `REPLCONF`.
fn handshake_of(session: &mut Session) -> &mut Handshake {
    let handshake = session.handshake.get_or_insert_with(|| Box::new(Handshake::default()));
    handshake.downcast_mut().expect("only replication stores a handshake")
}

impl Replicator for Server {
    fn sync(&self, session: &mut Session, psync: Option<&[&[u8]]>, reply: &mut Reply<'_>) {
        if session.follows.is_some() {
            return;
        }
        if self.replication().replica.lacks_link() {
            return reply.error("NOMASTERLINK Can't SYNC while not connected with my master");
        }
        let handshake = handshake_of(session).clone();
        if handshake.filter.is_any() && !handshake.finds_mark {
            return reply.error("ERR Filtered replica requires EOF capability");
        }
        let asked = match psync {
            None => None,
            Some([id, offset, ..]) => match parse_i64(offset) {
                Some(offset) => Some(Asked { id, offset }),
                None => return reply.error("ERR value is not an integer or out of range"),
            },
            Some(_) => return reply.error("ERR syntax error"),
        };
        let replica = Replica::new(session.client.id, peer(&session.client.address), handshake, self.monotonic_ms());
        let name = format!("{}:{}", replica.address(), replica.handshake.port);
        tracing::info!("Replica {name} asks for synchronization");
        if let Some(asked) = asked {
            match self.replication().continued(self, asked) {
                Ok(offset) => {
                    if self.replication().attach_continuing(session, replica.clone(), &name, offset) {
                        return;
                    }
                    tracing::info!("Unable to partial resync with replica {name} for lack of backlog");
                    self.replication().syncs.partial_err.fetch_add(1, Relaxed);
                }
                Err(why) => self.replication().log_not_continued(&name, asked, &why),
            }
        }
        if let Err(error) = self.replication().attach_waiting(session, replica, &name, asked.is_none()) {
            reply.error(&format!("ERR the thread of the stream could not be started: {error}"));
        }
    }

    fn configure(&self, session: &mut Session, options: &[&[u8]], reply: &mut Reply<'_>) {
        match handshake_of(session).hear(options) {
            Err(error) => reply.error_bytes(&error.0),
            Ok(Heard::Ok) => reply.ok(),
            Ok(Heard::Ack(offset)) if session.follows.is_some() => {
                self.replication().acked(self, session.client.id, offset);
            }
            Ok(Heard::GetAck) => {
                if let Some(link) = &mut session.primary {
                    link.wants_ack = true;
                }
            }
            Ok(Heard::Ack(_) | Heard::Nothing) => {}
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
        let offset = self.keyspace().journal().held().0.end;
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

    fn acknowledged(&self) -> u64 {
        let end = self.keyspace().journal().held().0.end;
        self.replication().state().replicas.acked(end) as u64
    }

    fn change_id(&self) {
        let mut state = self.replication().state();
        let id = state.new_id();
        state.history.change(id);
    }
}

impl Replication {
    /// Returns the offset at which a replica may continue the stream.
    fn continued(&self, server: &Server, asked: Asked<'_>) -> Result<u64, NotContinued> {
        let (held, is_recorded) = server.keyspace().journal().held();
        let state = self.state();
        state.history.continues(asked, (is_recorded && state.has_backlog).then_some(held))
    }

    fn log_not_continued(&self, name: &str, asked: Asked<'_>, why: &NotContinued) {
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
            NotContinued::BehindSecond(end) => tracing::info!(
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

    /// Attaches a replica that continues at an offset. Returns `false` if the stream is not held
    /// there any more.
    fn attach_continuing(&self, session: &mut Session, mut replica: Replica, name: &str, offset: u64) -> bool {
        let Some(server) = self.server() else { return false };
        let link = Link::new(&server, (replica.client, name.to_owned()), session.listener(), false, Phase::Stream);
        let bound = server.keyspace().journal().replica_bound();
        let Ok(Ok(stream)) = server.keyspace().read_journal(Start::At(offset), bound, Arc::clone(&link.wake)) else {
            return false;
        };
        let behind_bytes = stream.behind_bytes();
        let id = self.state().history.id();
        {
            let mut part = link.part();
            part.stream = Some(stream);
            part.lines = match replica.handshake.knows_shifts {
                true => format!("+CONTINUE {id}\r\n").into_bytes(),
                false => b"+CONTINUE\r\n".to_vec(),
            };
        }
        tracing::info!(
            "Partial resynchronization request from {name} accepted. Sending {behind_bytes} bytes of backlog starting from \
             offset {}.",
            offset + 1
        );
        self.syncs.partial_ok.fetch_add(1, Relaxed);
        replica.state = ReplicaState::Online;
        let wants_no_stream = replica.handshake.wants_no_stream;
        let link = Arc::new(link);
        self.added(&server, replica, Arc::clone(&link));
        session.follow(Box::new(LinkReader::new(server, Arc::clone(&link), wants_no_stream)));
        link.wake();
        true
    }

    /// Attaches a replica that waits for a snapshot.
    fn attach_waiting(&self, session: &mut Session, replica: Replica, name: &str, is_old: bool) -> std::io::Result<()> {
        let Some(server) = self.server() else { return Err(std::io::ErrorKind::Other.into()) };
        server.keyspace().keep_journal(true)?;
        self.syncs.full.fetch_add(1, Relaxed);
        let link =
            Arc::new(Link::new(&server, (replica.client, name.to_owned()), session.listener(), is_old, Phase::Wait));
        let wants_no_stream = replica.handshake.wants_no_stream;
        self.added(&server, replica, Arc::clone(&link));
        session.follow(Box::new(LinkReader::new(Arc::clone(&server), link, wants_no_stream)));
        self.sync_if_due(&server);
        Ok(())
    }

    /// Notes what a replica has acknowledged.
    fn acked(&self, server: &Server, client: u64, offset: i64) {
        let now_ms = server.monotonic_ms();
        let link = {
            let mut state = self.state();
            state.replicas.ack(client, offset, now_ms);
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
        self.look_at_good_replicas(server);
    }
}
