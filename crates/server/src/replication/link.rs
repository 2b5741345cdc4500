//! The link thread of a replica. It connects to the primary, performs the handshake and receives a
//! snapshot. When the stream starts, it hands over the socket to a worker. When the link is lost,
//! it connects again.
//!
//! If the dataset is empty and `repl-diskless-load` permits it, a snapshot is loaded while it
//! arrives (`incoming.rs`). Otherwise it is first received to a file or to memory (`received.rs`),
//! possibly over several connections (`flows.rs`).
//!
//! An attempt is plain sequential code, because this thread may block. The stream itself, which is
//! most of the work, is processed by the worker.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use pantala_engine::client::{NewPrimary, PrimaryLink};
use pantala_persistence::rdb::{Check, Reader};
use pantala_replication::FrameReader;
use pantala_replication::replica::{Credentials, Handshake, Header, Identity, Outcome, Payload, Position, Step};

use super::flows::{Announced, Together};
use super::incoming::Incoming;
use super::load::Direct;
use super::received::Received;
use super::relay::Origin;
use super::replica::{Address, Known, Phase, Replica, Transfer, Wanted};
use super::socket::{Socket, is_timeout};
use super::{failover, load};
use crate::config::replica::DisklessLoad;
use crate::config::{ReplicaSettings, Settings};
use crate::host::Server;
use crate::net;
use crate::process;

/// A link that lasts less than this counts as short.
const SHORT_LINK: Duration = Duration::from_secs(1);
/// Number of short links in a row after which the thread waits before it retries.
const SHORT_LINKS_MAX: u32 = 20;
/// Time between two attempts to connect, as in Redis.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// Time between two attempts to connect to the target of a failover, as in Redis.
const FAILOVER_RETRY_AFTER: Duration = Duration::from_millis(100);
/// Maximum time for which a read waits. Then the thread checks whether the attempt is still wanted.
const READ_WAIT: Duration = Duration::from_millis(100);
/// Interval between the empty lines that a replica sends while it receives flows.
const KEPT_ALIVE_EACH: Duration = Duration::from_secs(1);
/// Maximum length of a line of the handshake, bytes.
const LINE_BYTES_MAX: usize = 64 * 1024;

/// The reason for aborting a failover whose target has rejected the `PSYNC`.
const REJECTED: &str = "Failover target rejected psync request";

/// The reason why an attempt has ended.
pub(super) enum End {
    /// An error, which is logged. The thread then retries.
    Failed(String),
    /// `REPLICAOF` has changed the primary, or the server stops.
    Unwanted,
}

impl From<io::Error> for End {
    fn from(error: io::Error) -> Self {
        End::Failed(error.to_string())
    }
}

/// Runs attempts until the server stops.
pub(super) fn run(server: &Weak<Server>) {
    let (mut short_links, mut linked) = (0, Instant::now());
    loop {
        let Some(strong) = server.upgrade() else { return };
        let Some(wanted) = strong.replication().replica.next_attempt(server) else { return };
        let Wanted { primary: address, term, mut known, is_own } = wanted;
        // A lost link is retried at once. After too many consecutive short links, the thread waits
        // before each attempt.
        short_links = if linked.elapsed() < SHORT_LINK { short_links + 1 } else { 0 };
        if short_links > SHORT_LINKS_MAX {
            strong.replication().replica.wait_to_retry(term, RETRY_AFTER);
        }
        let replication = strong.replication();
        if is_own {
            known = failover::own_end(&strong, term);
        }
        let failover = replication.failovers.in_progress();
        let settings = strong.config().settings();
        // If the snapshot may be loaded while it arrives, it has one flow, because flows are
        // received first.
        let flows_max = if load::may_load_directly(&strong) { 1 } else { settings.primary.flows.count };
        let attempt = Attempt { server: &strong, term, known, failover, settings, flows_max };
        match attempt.run(&address) {
            Ok(()) => linked = Instant::now(),
            Err(End::Unwanted) => {}
            Err(End::Failed(why)) => {
                tracing::warn!("{why}");
                if strong.replication().replica.enter(term, Phase::Connect) {
                    let after = if failover.is_some() { FAILOVER_RETRY_AFTER } else { RETRY_AFTER };
                    strong.replication().replica.wait_to_retry(term, after);
                }
            }
        }
    }
}

/// One attempt to connect to a primary and to follow it.
pub(super) struct Attempt<'s> {
    server: &'s Arc<Server>,
    term: u64,
    known: Option<Known>,
    /// The number of the failover whose target is this primary; `None` if there is no such
    /// failover.
    failover: Option<u64>,
    settings: Arc<Settings>,
    /// Maximum number of flows to request.
    flows_max: u32,
}

impl Attempt<'_> {
    fn replica(&self) -> &Replica {
        &self.server.replication().replica
    }

    pub(super) fn is_wanted(&self) -> bool {
        self.replica().term() == self.term && !self.server.is_stopping()
    }

    fn enter(&self, phase: Phase) -> Result<(), End> {
        if self.replica().enter(self.term, phase) && self.is_wanted() { Ok(()) } else { Err(End::Unwanted) }
    }

    fn timeout(&self) -> Duration {
        Duration::from_secs(self.settings.primary.timeout_s)
    }

    fn run(&self, address: &Address) -> Result<(), End> {
        self.enter(Phase::Connecting)?;
        let Address { host, port } = address;
        tracing::info!("Connecting to MASTER {host}:{port}");
        let stream = self.connect(address)?;
        tracing::info!("MASTER <-> REPLICA sync started");
        self.enter(Phase::Handshake)?;
        let mut wire = Wire::new(self.encrypt(stream, || self.is_wanted())?);
        match self.perform_handshake_or_abort(&mut wire)? {
            Outcome::Failed(why) | Outcome::NotYet(why) => Err(End::Failed(why)),
            Outcome::Continues(id) => {
                let Some(Known { position, db }) = self.known else { return Err(End::Unwanted) };
                let known = Known { position: Position { id, ..position }, db };
                let origin = Origin { known: Some(known), offset: position.offset, asked: Some(position.id) };
                self.hand_over(wire, origin, db)
            }
            Outcome::Full(position) => {
                self.enter(Phase::Sync)?;
                let stream_db = match self.wait_for_payload(&mut wire)? {
                    Start::Single(payload) => self.load(&mut wire, payload, position)?,
                    Start::Flows(announced) => self.load_flows(&mut wire, announced, position)?,
                };
                // A primary without PSYNC sends no offset, so the offset is counted from 0.
                let offset = position.map_or(0, |position| position.offset);
                let known = position.map(|position| Known { position, db: stream_db });
                tracing::info!("MASTER <-> REPLICA sync: Finished with success");
                process::notify(
                    "STATUS=MASTER <-> REPLICA sync: Finished with success. Ready to accept connections in read-write mode.",
                );
                self.hand_over(wire, Origin { known, offset, asked: None }, stream_db)
            }
        }
    }

    /// Waits until the primary announces the start of a snapshot.
    fn wait_for_payload(&self, wire: &mut Wire) -> Result<Start, End> {
        loop {
            match Header::parse(&wire.line(self)?).map_err(End::Failed)? {
                Header::Waiting => {}
                Header::Payload(payload) => return Ok(Start::Single(payload)),
                Header::Flows { token, form } if (2..=self.flows_max).contains(&form.count) => {
                    return Ok(Start::Flows(Announced { token, form }));
                }
                Header::Flows { form, .. } => {
                    let why = format!("Bad protocol from MASTER: {} flows, which were not requested", form.count);
                    return Err(End::Failed(why));
                }
            }
        }
    }

    /// Receives the flows of a snapshot and loads them. Returns the same as [`Attempt::load`].
    fn load_flows(&self, wire: &mut Wire, announced: Announced, position: Option<Position>) -> Result<u32, End> {
        let count = announced.form.count;
        tracing::info!(
            "MASTER <-> REPLICA sync: receiving streamed RDB from master in {count} flows to {}",
            self.place()
        );
        let mut received = self.receive_flows(wire, announced)?;
        self.refuse_empty(&received, position)?;
        let loaded = load::load(self.server, self.term, &mut received, &mut wire.socket);
        let stream_db = loaded.map_err(|why| why.map_or(End::Unwanted, End::Failed))?;
        self.note_flows(count);
        Ok(stream_db)
    }

    /// Returns the name of the place for received snapshots, for the log.
    fn place(&self) -> &'static str {
        if self.is_in_memory() { "memory" } else { "disk" }
    }

    fn is_in_memory(&self) -> bool {
        self.server.config().settings().replica.diskless_load == DisklessLoad::Swapdb
    }

    /// Receives a snapshot and loads it. Returns the database that the stream has selected at the
    /// snapshot's offset.
    fn load(&self, wire: &mut Wire, mut payload: Payload, position: Option<Position>) -> Result<u32, End> {
        let failed = |why: Option<String>| why.map_or(End::Unwanted, End::Failed);
        if load::may_load_directly(self.server) {
            log_start(payload.length(), "parser");
            let mut incoming = Incoming::new(self, wire, payload);
            let loaded = load::load_directly(self.server, self.term, &mut incoming);
            if let Some(End::Unwanted) = incoming.take_end() {
                return Err(End::Unwanted);
            }
            match loaded.map_err(failed)? {
                Direct::Loaded(stream_db) => {
                    self.note_flows(1);
                    return Ok(stream_db);
                }
                // A client has written since the check above, or has changed the setting.
                Direct::NotEmpty => payload = incoming.into_payload(),
            }
        }
        log_start(payload.length(), self.place());
        let mut received = [self.receive(wire, payload, (0, false))?];
        self.refuse_empty(&received, position)?;
        let stream_db = load::load(self.server, self.term, &mut received, &mut wire.socket).map_err(failed)?;
        self.note_flows(1);
        Ok(stream_db)
    }

    /// Records the number of flows of a full sync that has succeeded.
    fn note_flows(&self, count: u32) {
        self.server.replication().syncs.flows_received.store(count.into(), Relaxed);
    }

    /// Publishes how much of a snapshot has been received.
    pub(super) fn show(&self, transfer: Transfer) {
        self.replica().show_transfer(self.term, transfer, self.server.now_ms());
    }

    /// Counts bytes of a snapshot that were loaded.
    pub(super) fn count_loaded(&self, bytes: u64) {
        self.server.snapshots().loading.add_loaded_bytes(bytes);
    }

    /// Rejects a snapshot if `replica-refuse-empty-primary` is set and three conditions hold: the
    /// snapshot is empty, its history (replication ID) isn't that of this server's dataset, and
    /// this server has keys. Such a primary has probably restarted without its data.
    fn refuse_empty(&self, received: &[Received<'_>], position: Option<Position>) -> Result<(), End> {
        if !self.settings.replica.refuses_empty_primary || received.iter().any(|part| part.keys > 0) {
            return Ok(());
        }
        let id_of = |position: Position| position.id;
        let is_same = self.known.map(|known| id_of(known.position)) == position.map(id_of) && position.is_some();
        let keyspace = self.server.keyspace();
        let keys: u64 = (0..keyspace.databases()).map(|db| keyspace.database_size(db).0).sum();
        if is_same || keys == 0 {
            return Ok(());
        }
        Err(End::Failed(format!(
            "MASTER has another history and no keys, this replica has {keys}: the dataset stays as it is \
             (replica-refuse-empty-primary yes)"
        )))
    }

    fn connect(&self, Address { host, port }: &Address) -> Result<TcpStream, End> {
        let failed = |why: String| End::Failed(format!("Unable to connect to MASTER: {why}"));
        let addresses = (host.as_str(), *port).to_socket_addrs().map_err(|error| failed(error.to_string()))?;
        let mut why = "no address".to_owned();
        for address in addresses {
            match self.connect_to(address, || self.is_wanted()) {
                Ok(stream) => return Ok(stream),
                Err(error) => why = error.to_string(),
            }
            if !self.is_wanted() {
                return Err(End::Unwanted);
            }
        }
        Err(failed(why))
    }

    /// Connects to an address of the primary, while `may_wait` returns `true`.
    pub(super) fn connect_to(&self, address: SocketAddr, may_wait: impl Fn() -> bool) -> io::Result<TcpStream> {
        let stream = net::connect(address, &self.settings.replica.source_addr, self.timeout(), may_wait)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(READ_WAIT))?;
        stream.set_write_timeout(Some(self.timeout()))?;
        Ok(stream)
    }

    /// Performs the TLS handshake if the settings require encryption (`tls-replication`), while
    /// `is_wanted` returns `true`.
    pub(super) fn encrypt(&self, stream: TcpStream, is_wanted: impl Fn() -> bool) -> Result<Socket, End> {
        let encryption = self.server.listening().encryption();
        let Some(client) = encryption.as_ref().and_then(|encryption| encryption.links.as_ref()) else {
            return Ok(Socket::plain(stream));
        };
        let started = Instant::now();
        let may_wait = || is_wanted() && started.elapsed() < self.timeout();
        Socket::encrypted(stream, client, may_wait).map_err(|error| match is_wanted() {
            true => End::Failed(format!("Error condition on socket for SYNC: {error}")),
            false => End::Unwanted,
        })
    }

    /// Performs the handshake. In a failover, the reply to `PSYNC` ends the failover, and so does
    /// an error after `PSYNC` was sent.
    fn perform_handshake_or_abort(&self, wire: &mut Wire) -> Result<Outcome, End> {
        let mut handshake = self.handshake();
        let outcome = self.perform_handshake(wire, &mut handshake);
        let Some(number) = self.failover else { return outcome };
        match outcome {
            Ok(Outcome::Continues(_) | Outcome::Full(_)) => failover::succeed(self.server, number),
            Ok(Outcome::Failed(why) | Outcome::NotYet(why)) if handshake.has_asked() => {
                tracing::warn!("{why}");
                failover::abort(self.server, Some(number), REJECTED);
                return Err(End::Unwanted);
            }
            Err(_) if handshake.has_asked() => failover::abort(self.server, Some(number), REJECTED),
            _ => {}
        }
        outcome
    }

    /// Returns the credentials for the primary.
    pub(super) fn credentials(&self) -> Option<Credentials> {
        let ReplicaSettings { user, password, .. } = &self.settings.replica;
        password.as_ref().map(|password| Credentials { user: user.clone(), password: password.clone() })
    }

    fn handshake(&self) -> Handshake {
        let settings = &self.settings;
        let ReplicaSettings { announced_ip, announced_port, .. } = &settings.replica;
        let announced_port = u16::try_from(*announced_port).unwrap_or(0);
        let port = match announced_port {
            0 if settings.tls.replication && settings.tls.port != 0 => settings.tls.port,
            0 => settings.port,
            announced => announced,
        };
        let fails_over = self.failover.is_some();
        let (credentials, flows_max) = (self.credentials(), self.flows_max);
        let identity = Identity { credentials, port, fails_over, flows_max, ip: announced_ip.clone() };
        Handshake::new(identity, self.known.map(|known| known.position))
    }

    fn perform_handshake(&self, wire: &mut Wire, handshake: &mut Handshake) -> Result<Outcome, End> {
        loop {
            for note in handshake.take_notes() {
                tracing::info!("{note}");
            }
            match handshake.step() {
                Step::Send(bytes) => wire.socket.write_all(&bytes)?,
                Step::Done(outcome) => return Ok(outcome),
                Step::Read => {
                    let line = wire.line(self)?;
                    if let Some(bytes) = handshake.handle(&line) {
                        wire.socket.write_all(&bytes)?;
                    }
                }
            }
        }
    }

    /// Receives a snapshot, or a flow of it that may be compressed, to a file or to memory, and
    /// checks it. Doesn't change the dataset.
    pub(super) fn receive(
        &self,
        wire: &mut Wire,
        mut payload: Payload,
        (flow, is_compressed): (u32, bool),
    ) -> Result<Received<'_>, End> {
        let total_bytes = payload.length();
        let received = match self.is_in_memory() {
            true => Received::in_memory(self.server),
            false => Received::in_file(self.server, &self.settings.dir, flow),
        };
        let mut received = received.map_err(End::Failed)?;
        let now_ms = self.server.now_ms();
        let limits = load::limits(self.server);
        let databases = self.server.keyspace().databases();
        let reader = Reader::new(total_bytes, databases, limits.string_bytes_max, self.settings.rdb_checksum);
        let mut stream_db = None;
        let mut report = |_: u64, line: &str| {
            if let Some(db) = line.strip_prefix("AUX FIELD repl-stream-db = '") {
                stream_db = db.trim_end_matches('\'').parse::<u32>().ok();
            }
        };
        let mut check = Check::new(reader, limits, now_ms, &mut report);
        let wrong = |why: String| End::Failed(format!("Bad snapshot from MASTER, the dataset stays as it is: {why}"));
        let (mut is_checked, mut read_bytes) = (false, 0);
        let mut frames = is_compressed.then(FrameReader::default);
        let ended = loop {
            let mut part = Vec::new();
            let is_over = wire.feed(&mut payload, &mut part);
            if let Some(frames) = &mut frames {
                let compressed = std::mem::take(&mut part);
                frames.feed(&compressed, &mut part).map_err(wrong)?;
            }
            if !part.is_empty() {
                if is_checked {
                    return Err(wrong("bytes behind its end".to_owned()));
                }
                is_checked = check.feed(&part).map_err(|error| wrong(error.to_string()))?;
                received.append(&part).map_err(End::Failed)?;
                read_bytes = wire.count(read_bytes, part.len() as u64);
                self.show(Transfer { total_bytes, read_bytes });
            }
            if is_over {
                let is_truncated = frames.is_some_and(|frames| !frames.is_at_end());
                break if is_truncated { Err(wrong("its last frame is incomplete".to_owned())) } else { Ok(()) };
            }
            wire.read(self)?;
        };
        ended?;
        if !is_checked {
            check.feed(&[]).map_err(|error| wrong(error.to_string()))?;
        }
        received.keys = check.findings().keys;
        received.stream_db = stream_db.filter(|db| *db < databases).unwrap_or(0);
        Ok(received)
    }

    fn hand_over(&self, wire: Wire, origin: Origin, db: u32) -> Result<(), End> {
        if !self.server.replication().relay(self.server, self.term, origin) {
            return Err(End::Unwanted);
        }
        let rest = wire.buffer[wire.at..].to_vec();
        let (stream, encrypted) = wire.socket.into_parts();
        stream.set_read_timeout(None)?;
        stream.set_write_timeout(None)?;
        stream.set_nonblocking(true)?;
        let mut link = PrimaryLink::new(self.term, origin.offset, Arc::clone(self.replica().progress()));
        link.receive(&rest, self.server.now_ms());
        let new = NewPrimary { socket: stream.into(), rest, db, link, is_placed: false };
        net::prepare(&new.socket, &self.settings)?;
        self.server.replication().encrypted.put(self.term, encrypted);
        if self.replica().hand_over(self.server, self.term, new) { Ok(()) } else { Err(End::Unwanted) }
    }
}

/// Logs that a snapshot starts to arrive, as Redis does.
fn log_start(total_bytes: Option<u64>, to: &str) {
    match total_bytes {
        Some(bytes) => tracing::info!("MASTER <-> REPLICA sync: receiving {bytes} bytes from master to {to}"),
        None => tracing::info!("MASTER <-> REPLICA sync: receiving streamed RDB from master with EOF to {to}"),
    }
}

/// The way in which the primary sends a snapshot.
enum Start {
    /// On the link only.
    Single(Payload),
    /// In several flows.
    Flows(Announced),
}

/// The socket, and bytes read from it.
pub(super) struct Wire {
    pub(super) socket: Socket,
    buffer: Vec<u8>,
    /// Number of bytes at the start of the buffer that have been consumed.
    at: usize,
    received_at: Instant,
    /// The state of the flows, while this socket receives one of them.
    together: Option<Arc<Together>>,
    /// When an empty line was last sent, if the primary needs them ([`Wire::keep_alive`]).
    kept_alive_at: Option<Instant>,
}

impl Wire {
    /// Creates the state of a socket from which nothing has been read yet.
    pub(super) fn new(socket: Socket) -> Self {
        Wire { socket, buffer: Vec::new(), at: 0, received_at: Instant::now(), together: None, kept_alive_at: None }
    }

    /// Makes this socket receive one of several flows, or ends this.
    pub(super) fn join(&mut self, together: Option<Arc<Together>>) {
        self.together = together;
        self.received_at = Instant::now();
    }

    /// Starts or ends sending an empty line each second. The primary expects acknowledgements once
    /// it has passed all flows to the network, but some may take long to arrive.
    pub(super) fn set_kept_alive(&mut self, is_kept: bool) {
        self.kept_alive_at = is_kept.then(Instant::now);
    }

    /// Sends an empty line if one is due.
    pub(super) fn keep_alive(&mut self) -> io::Result<()> {
        if self.kept_alive_at.is_none_or(|at| at.elapsed() < KEPT_ALIVE_EACH) {
            return Ok(());
        }
        self.kept_alive_at = Some(Instant::now());
        self.socket.write_all(b"\n")
    }

    /// Adds to the number of received bytes of the snapshot. Returns their number in all flows.
    fn count(&self, earlier_bytes: u64, bytes: u64) -> u64 {
        self.together.as_ref().map_or(earlier_bytes + bytes, |together| together.count(bytes))
    }

    /// Returns whether the attempt is no longer wanted, or another flow has failed.
    fn is_unwanted(&self, attempt: &Attempt<'_>) -> bool {
        !attempt.is_wanted() || self.together.as_ref().is_some_and(|together| together.has_failed())
    }

    /// Returns the time for which nothing has been received.
    fn silence(&self) -> Duration {
        self.together.as_ref().map_or_else(|| self.received_at.elapsed(), |together| together.silence())
    }

    /// Reads more bytes from the socket. Fails if the attempt is no longer wanted, or if the
    /// primary is silent for too long.
    pub(super) fn read(&mut self, attempt: &Attempt<'_>) -> Result<(), End> {
        self.buffer.drain(..self.at);
        self.at = 0;
        loop {
            self.keep_alive()?;
            match self.socket.read(&mut self.buffer) {
                Ok(0) => return Err(End::Failed("I/O error trying to sync with MASTER: connection lost".to_owned())),
                Ok(bytes) => {
                    attempt.server.stats.link_bytes.fetch_add(bytes as u64, Relaxed);
                    break;
                }
                Err(error) if is_timeout(&error) => {
                    if self.is_unwanted(attempt) {
                        return Err(End::Unwanted);
                    }
                    if self.silence() > attempt.timeout() {
                        return Err(End::Failed("Timeout connecting to the MASTER...".to_owned()));
                    }
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(End::Failed(format!("I/O error trying to sync with MASTER: {error}"))),
            }
        }
        self.received_at = Instant::now();
        self.together.iter().for_each(|together| together.note_received());
        attempt.replica().note_received(attempt.server.now_ms());
        if self.is_unwanted(attempt) { Err(End::Unwanted) } else { Ok(()) }
    }

    /// Returns the next line, without its line break.
    pub(super) fn line(&mut self, attempt: &Attempt<'_>) -> Result<Vec<u8>, End> {
        loop {
            let unread = &self.buffer[self.at..];
            if let Some(len) = unread.iter().position(|byte| *byte == b'\n') {
                let line = unread[..len].strip_suffix(b"\r").unwrap_or(&unread[..len]).to_vec();
                self.at += len + 1;
                return Ok(line);
            }
            if unread.len() > LINE_BYTES_MAX {
                return Err(End::Failed("Bad protocol from MASTER: a line without an end".to_owned()));
            }
            self.read(attempt)?;
        }
    }

    /// Passes the unread bytes of the buffer to `payload`, which appends those of the snapshot to
    /// `into`. Returns whether the snapshot is complete.
    pub(super) fn feed(&mut self, payload: &mut Payload, into: &mut Vec<u8>) -> bool {
        let (taken, is_over) = payload.feed(&self.buffer[self.at..], into);
        self.at += taken;
        is_over
    }
}
