//! The handshake of a replica with its primary. Takes the primary's lines and returns commands.

use super::{Header, Payload};
use crate::ReplId;
use crate::framing::Mark;
use crate::handshake::{FLOWS_CAPABILITY, LZ4_CAPABILITY};

/// The credentials that a replica uses at its primary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credentials {
    /// `masteruser`; empty means the default user.
    pub user: Vec<u8>,
    /// `masterauth`.
    pub password: Vec<u8>,
}

/// The data that a replica sends about itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// The credentials; `None` means that the replica doesn't authenticate.
    pub credentials: Option<Credentials>,
    /// The replica's port for clients.
    pub port: u16,
    /// Whether this server was the primary and asks the other server to take over as the primary
    /// (`PSYNC … FAILOVER`).
    pub fails_over: bool,
    /// Maximum number of flows in which the replica wants a snapshot. 0 and 1 mean that it
    /// announces no flows.
    pub flows_max: u32,
    /// The address that the replica announces; empty means the address of its socket.
    pub ip: String,
}

/// The position at which a replica could continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// The replication ID.
    pub id: ReplId,
    /// Number of applied bytes of that ID's stream.
    pub offset: u64,
}

/// The next action of the replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Sends these bytes.
    Send(Vec<u8>),
    /// Reads a line and passes it to [`Handshake::handle`].
    Read,
    /// Nothing: the handshake has ended with this outcome.
    Done(Outcome),
}

/// The result of a handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A snapshot follows, then the stream from this position. If the primary doesn't support
    /// `PSYNC`, the position is `None`, and the stream can't be continued later.
    Full(Option<Position>),
    /// The stream follows from the requested position. The primary now has this ID.
    Continues(ReplId),
    /// The primary can't serve replicas yet; the text is its reply.
    NotYet(String),
    /// The attempt failed for this reason.
    Failed(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Ping,
    PingReply,
    /// Waits for replies to the commands in `asked`. The field is the number of missing replies.
    Replies(usize),
    Psync,
    PsyncReply,
    Sync,
    Over,
}

/// The version that a replica states, for Valkey. If no version or an older one is stated, Valkey
/// sends snapshots in the format of Redis 7.2. That format has no TTLs of hash fields, so a full
/// sync of a dataset with such TTLs would always fail.
const VALKEY_VERSION: &[u8] = b"9.0.0";

/// A command whose reply is expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Registration {
    Auth,
    Option(&'static str),
    /// `REPLCONF version`.
    Version,
}

/// The handshake described at the head of the module [`crate::replica`].
#[derive(Debug)]
pub struct Handshake {
    identity: Identity,
    position: Option<Position>,
    state: State,
    asked: Vec<Registration>,
    notes: Vec<String>,
    outcome: Option<Outcome>,
    has_asked: bool,
}

/// Appends a command.
fn command(bytes: &mut Vec<u8>, words: &[&[u8]]) {
    bytes.extend_from_slice(format!("*{}\r\n", words.len()).as_bytes());
    for word in words {
        bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        bytes.extend_from_slice(word);
        bytes.extend_from_slice(b"\r\n");
    }
}

/// Appends the command that sends these credentials.
fn log_in(bytes: &mut Vec<u8>, Credentials { user, password }: &Credentials) {
    if user.is_empty() {
        command(bytes, &[b"AUTH", password]);
    } else {
        command(bytes, &[b"AUTH", user, password]);
    }
}

/// Returns the commands that request a flow of a snapshot on a connection of its own, and the state
/// of their replies.
#[must_use]
pub fn flow_request(credentials: Option<&Credentials>, token: &Mark, index: u32) -> (Vec<u8>, FlowReplies) {
    let mut bytes = Vec::new();
    credentials.into_iter().for_each(|credentials| log_in(&mut bytes, credentials));
    command(&mut bytes, &[b"PSYNC", token, index.to_string().as_bytes(), b"FLOW"]);
    (bytes, FlowReplies { awaits_auth: credentials.is_some(), token: *token })
}

/// The primary's replies to the request of a flow.
#[derive(Clone, Copy, Debug)]
pub struct FlowReplies {
    awaits_auth: bool,
    /// The token of the full sync, which is also the mark of each flow.
    token: Mark,
}

impl FlowReplies {
    /// Processes a line of the primary, without its line end. Returns the flow's payload once the
    /// primary announces it.
    ///
    /// # Errors
    /// The reason why no flow follows, for the log.
    pub fn handle(&mut self, line: &[u8]) -> Result<Option<Payload>, String> {
        if std::mem::take(&mut self.awaits_auth) {
            let is_accepted = line.first() == Some(&b'+');
            return is_accepted.then_some(None).ok_or_else(|| format!("Unable to AUTH to MASTER: {}", shown(line)));
        }
        match Header::parse(line)? {
            Header::Waiting => Ok(None),
            Header::Payload(payload) if payload == Payload::until(self.token) => Ok(Some(payload)),
            _ => Err(format!("Bad protocol from MASTER: '{}' announces no flow", shown(line))),
        }
    }
}

fn shown(line: &[u8]) -> String {
    line.escape_ascii().to_string()
}

impl Handshake {
    /// Starts a handshake. `position` is the position at which the replica could continue.
    #[must_use]
    pub fn new(identity: Identity, position: Option<Position>) -> Self {
        Handshake {
            identity,
            position,
            state: State::Ping,
            asked: Vec::new(),
            notes: Vec::new(),
            outcome: None,
            has_asked: false,
        }
    }

    /// Returns the lines for the log and removes them.
    pub fn take_notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notes)
    }

    /// Returns the next action.
    pub fn step(&mut self) -> Step {
        let mut bytes = Vec::new();
        match self.state {
            State::Ping => {
                command(&mut bytes, &[b"PING"]);
                self.state = State::PingReply;
            }
            State::Psync => {
                let (id, offset) = match self.position {
                    Some(Position { id, offset }) => (id.to_string(), (offset + 1).to_string()),
                    None => ("?".to_owned(), "-1".to_owned()),
                };
                let words = [&b"PSYNC"[..], id.as_bytes(), offset.as_bytes(), b"FAILOVER"];
                command(&mut bytes, if self.identity.fails_over { &words } else { &words[..3] });
                self.state = State::PsyncReply;
                self.has_asked = true;
            }
            State::Sync => {
                bytes.extend_from_slice(b"SYNC\r\n");
                self.end(Outcome::Full(None));
            }
            State::PingReply | State::Replies(_) | State::PsyncReply => return Step::Read,
            State::Over => {
                let failed = || Outcome::Failed("the handshake is over".to_owned());
                return Step::Done(self.outcome.take().unwrap_or_else(failed));
            }
        }
        Step::Send(bytes)
    }

    fn end(&mut self, outcome: Outcome) {
        self.state = State::Over;
        self.outcome = Some(outcome);
    }

    fn note(&mut self, note: impl Into<String>) {
        self.notes.push(note.into());
    }

    /// Returns whether `PSYNC` was sent. From then on, a failover may have made the other server
    /// the primary. A handshake that fails earlier has changed nothing and may be retried.
    #[must_use]
    pub fn has_asked(&self) -> bool {
        self.has_asked
    }

    /// Processes a line of the primary, without its line end. Returns the next commands to send, if
    /// any.
    pub fn handle(&mut self, line: &[u8]) -> Option<Vec<u8>> {
        match self.state {
            State::PingReply => self.handle_pong(line),
            State::Replies(missing) => {
                self.handle_option_reply(line, missing);
                None
            }
            State::PsyncReply => {
                self.handle_psync_reply(line);
                None
            }
            State::Ping | State::Psync | State::Sync | State::Over => None,
        }
    }

    fn handle_pong(&mut self, line: &[u8]) -> Option<Vec<u8>> {
        // A primary that requires a password rejects the PING. The handshake continues with AUTH.
        let is_alive = line.first() == Some(&b'+')
            || [&b"-NOAUTH"[..], b"-NOPERM", b"-ERR operation not permitted"].iter().any(|it| line.starts_with(it));
        if !is_alive {
            self.end(Outcome::Failed(format!("Error reply to PING from master: '{}'", shown(line))));
            return None;
        }
        self.note("Master replied to PING, replication can continue...");
        let mut bytes = Vec::new();
        if let Some(credentials) = &self.identity.credentials {
            log_in(&mut bytes, credentials);
            self.asked.push(Registration::Auth);
        }
        command(&mut bytes, &[b"REPLCONF", b"listening-port", self.identity.port.to_string().as_bytes()]);
        self.asked.push(Registration::Option("listening-port"));
        if !self.identity.ip.is_empty() {
            command(&mut bytes, &[b"REPLCONF", b"ip-address", self.identity.ip.as_bytes()]);
            self.asked.push(Registration::Option("ip-address"));
        }
        let flows = format!("{FLOWS_CAPABILITY}{}", self.identity.flows_max);
        let words = [
            &b"REPLCONF"[..],
            b"capa",
            b"eof",
            b"capa",
            b"psync2",
            b"capa",
            flows.as_bytes(),
            b"capa",
            LZ4_CAPABILITY.as_bytes(),
        ];
        command(&mut bytes, if self.identity.flows_max > 1 { &words } else { &words[..5] });
        self.asked.push(Registration::Option("capa"));
        command(&mut bytes, &[b"REPLCONF", b"version", VALKEY_VERSION]);
        self.asked.push(Registration::Version);
        self.state = State::Replies(self.asked.len());
        Some(bytes)
    }

    fn handle_option_reply(&mut self, line: &[u8], missing: usize) {
        let asked = self.asked[self.asked.len() - missing];
        if line.first() == Some(&b'-') {
            match asked {
                Registration::Auth => {
                    return self.end(Outcome::Failed(format!("Unable to AUTH to MASTER: {}", shown(line))));
                }
                // Redis doesn't know this option, so nothing is wrong.
                Registration::Version => {}
                Registration::Option(name) => {
                    let reply = shown(line);
                    self.note(format!("(Non critical) Master does not understand REPLCONF {name}: {reply}"));
                }
            }
        }
        if missing > 1 {
            self.state = State::Replies(missing - 1);
            return;
        }
        self.state = State::Psync;
        match self.position {
            Some(Position { id, offset }) => {
                self.note(format!("Trying a partial resynchronization (request {id}:{}).", offset + 1));
            }
            None => self.note("Partial resynchronization not possible (no cached master)"),
        }
    }

    fn handle_psync_reply(&mut self, line: &[u8]) {
        let words: Vec<&[u8]> = line.split(|byte| *byte == b' ').filter(|word| !word.is_empty()).collect();
        match words.as_slice() {
            // The primary keeps the link alive by empty lines while it prepares its reply.
            [] => {}
            [b"+FULLRESYNC", rest @ ..] => {
                let position = match rest {
                    [id, offset] => parse_position(id, offset),
                    _ => None,
                };
                match position {
                    Some(position) => {
                        self.note(format!("Full resync from master: {}:{}", position.id, position.offset));
                        self.end(Outcome::Full(Some(position)));
                    }
                    None => self.end(Outcome::Failed("Master replied with wrong +FULLRESYNC syntax.".to_owned())),
                }
            }
            [b"+CONTINUE", rest @ ..] => self.handle_continue(rest.first().copied()),
            _ if self.identity.fails_over => self.end(Outcome::Failed(format!("Rejected PSYNC: {}", shown(line)))),
            [b"-NOMASTERLINK" | b"-LOADING", ..] => {
                let why = format!("Master is currently unable to PSYNC but should be in the future: {}", shown(line));
                self.end(Outcome::NotYet(why));
            }
            _ => {
                if line.starts_with(b"-ERR") {
                    let reply = shown(line);
                    self.note(format!("Master does not support PSYNC or is in error state (reply: {reply})"));
                } else {
                    self.note(format!("Unexpected reply to PSYNC from master: {}", shown(line)));
                }
                self.note("Retrying with SYNC...");
                self.state = State::Sync;
            }
        }
    }

    fn handle_continue(&mut self, id: Option<&[u8]>) {
        let Some(asked) = self.position else {
            return self.end(Outcome::Failed("Master continues a stream that was not asked for".to_owned()));
        };
        // Primaries without PSYNC2 send no ID.
        match id.map_or(Some(asked.id), ReplId::parse) {
            Some(id) => {
                self.note("Successful partial resynchronization with master.");
                if id != asked.id {
                    self.note(format!("Master replication ID changed to {id}"));
                }
                self.end(Outcome::Continues(id));
            }
            None => self.end(Outcome::Failed("Master replied with wrong +CONTINUE syntax.".to_owned())),
        }
    }
}

fn parse_position(id: &[u8], offset: &[u8]) -> Option<Position> {
    let offset = std::str::from_utf8(offset).ok()?.parse::<i64>().ok()?;
    Some(Position { id: ReplId::parse(id)?, offset: u64::try_from(offset).ok()? })
}

#[cfg(test)]
mod tests {
    use pantala_base::Random;

    use super::*;

    fn id(seed: u64) -> ReplId {
        ReplId::random(&mut Random::from_seed(seed))
    }

    /// Runs a handshake against these lines. Returns the sent commands, without framing, and the
    /// outcome: `None` if the handshake needs more lines.
    fn run(identity: Identity, position: Option<Position>, lines: &[&str]) -> (Vec<String>, Option<Outcome>) {
        let mut handshake = Handshake::new(identity, position);
        let (mut sent, mut lines) = (Vec::new(), lines.iter());
        let words = |bytes: &[u8]| {
            let text = String::from_utf8(bytes.to_vec()).expect("text");
            let words = text.split("\r\n").filter(|word| !word.is_empty() && !word.starts_with(['*', '$']));
            words.collect::<Vec<_>>().join(" ")
        };
        loop {
            match handshake.step() {
                Step::Send(bytes) => sent.push(words(&bytes)),
                Step::Done(outcome) => return (sent, Some(outcome)),
                Step::Read => match lines.next() {
                    Some(line) => sent.extend(handshake.handle(line.as_bytes()).map(|bytes| words(&bytes))),
                    None => return (sent, None),
                },
            }
        }
    }

    fn plain() -> Identity {
        Identity { port: 7000, ..Identity::default() }
    }

    #[test]
    fn flows_are_a_capability() {
        for (flows_max, words) in [(0, ""), (1, ""), (2, " capa pantala-flows:2 capa pantala-lz4")] {
            let (sent, _) = run(Identity { flows_max, ..plain() }, None, &["+PONG"]);
            let expected =
                format!("REPLCONF listening-port 7000 REPLCONF capa eof capa psync2{words} REPLCONF version 9.0.0");
            assert_eq!(sent[1], expected);
        }
    }

    #[test]
    fn a_flow_is_requested_with_the_credentials_of_the_link() {
        let token = [b'a'; 40];
        let (bytes, mut replies) = flow_request(None, &token, 3);
        let psync = format!("*4\r\n$5\r\nPSYNC\r\n$40\r\n{}\r\n$1\r\n3\r\n$4\r\nFLOW\r\n", "a".repeat(40));
        assert_eq!(bytes, psync.as_bytes());
        assert_eq!(replies.handle(b""), Ok(None));
        let line = format!("$EOF:{}", "a".repeat(40));
        assert_eq!(replies.handle(line.as_bytes()), Ok(Some(Payload::until(token))));
        let credentials = Credentials { user: b"replica".to_vec(), password: b"secret".to_vec() };
        let (bytes, mut replies) = flow_request(Some(&credentials), &token, 3);
        assert!(bytes.starts_with(b"*3\r\n$4\r\nAUTH\r\n$7\r\nreplica\r\n$6\r\nsecret\r\n*4\r\n"));
        assert_eq!(replies.handle(b"-WRONGPASS no"), Err("Unable to AUTH to MASTER: -WRONGPASS no".to_owned()));
        let (_, mut replies) = flow_request(Some(&credentials), &token, 3);
        assert_eq!(replies.handle(b"+OK"), Ok(None));
        for wrong in ["-ERR no such flow", "$12", "$EOF:x", "+OK", &format!("$FLOWS:{}:2", "a".repeat(40))] {
            assert!(replies.handle(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_full_sync_without_a_position() {
        let line = format!("+FULLRESYNC {} 1234", id(1));
        let (sent, outcome) = run(plain(), None, &["+PONG", "+OK", "+OK", "-ERR x", "", "", &line]);
        let options = "REPLCONF listening-port 7000 REPLCONF capa eof capa psync2 REPLCONF version 9.0.0";
        assert_eq!(sent, ["PING", options, "PSYNC ? -1"]);
        assert_eq!(outcome, Some(Outcome::Full(Some(Position { id: id(1), offset: 1234 }))));
    }

    #[test]
    fn a_partial_sync_at_the_next_byte() {
        let position = Some(Position { id: id(1), offset: 99 });
        let lines = ["+PONG", "+OK", "+OK", "+OK"];
        let (sent, outcome) = run(plain(), position, &lines);
        assert_eq!((sent.last().map(String::as_str), outcome), (Some(&*format!("PSYNC {} 100", id(1))), None));
        let ends = |reply: String| run(plain(), position, &[&lines[..], &[&*reply]].concat()).1;
        assert_eq!(ends("+CONTINUE".to_owned()), Some(Outcome::Continues(id(1))));
        assert_eq!(ends(format!("+CONTINUE {}", id(2))), Some(Outcome::Continues(id(2))));
        assert!(matches!(ends("+CONTINUE x".to_owned()), Some(Outcome::Failed(_))));
    }

    #[test]
    fn a_failover_sends_its_request_and_never_falls_back_to_sync() {
        let position = Some(Position { id: id(1), offset: 99 });
        let identity = Identity { fails_over: true, ..plain() };
        let lines = ["+PONG", "+OK", "+OK", "+OK", "-ERR unknown command"];
        let (sent, outcome) = run(identity.clone(), position, &lines);
        assert_eq!(sent.last().map(String::as_str), Some(&*format!("PSYNC {} 100 FAILOVER", id(1))));
        assert_eq!(outcome, Some(Outcome::Failed("Rejected PSYNC: -ERR unknown command".to_owned())));
        let (_, outcome) = run(identity, position, &[&lines[..4], &[&*format!("+CONTINUE {}", id(2))]].concat());
        assert_eq!(outcome, Some(Outcome::Continues(id(2))));
    }

    #[test]
    fn only_psync_asks_for_data() {
        let credentials = Some(Credentials { user: Vec::new(), password: b"secret".to_vec() });
        let identity = Identity { credentials, fails_over: true, ..plain() };
        let outcome_of = |lines: &[&str]| {
            let mut handshake = Handshake::new(identity.clone(), None);
            let mut lines = lines.iter();
            loop {
                match handshake.step() {
                    Step::Send(_) => {}
                    Step::Done(outcome) => return (handshake.has_asked(), Some(outcome)),
                    Step::Read => match lines.next() {
                        Some(line) => _ = handshake.handle(line.as_bytes()),
                        None => return (handshake.has_asked(), None),
                    },
                }
            }
        };
        assert_eq!(outcome_of(&["+PONG", "+OK", "+OK", "+OK"]), (false, None));
        assert_eq!(outcome_of(&["+PONG", "+OK", "+OK", "+OK", "+OK"]), (true, None));
        for early in [&["-LOADING"][..], &["+PONG", "-WRONGPASS no"]] {
            assert!(matches!(outcome_of(early), (false, Some(Outcome::Failed(_)))), "{early:?}");
        }
        assert!(matches!(
            outcome_of(&["+PONG", "+OK", "+OK", "+OK", "+OK", "-ERR x"]),
            (true, Some(Outcome::Failed(_)))
        ));
    }

    #[test]
    fn credentials_and_addresses_are_sent_first() {
        let credentials = Some(Credentials { user: b"replica".to_vec(), password: b"secret".to_vec() });
        let identity = Identity { credentials, port: 1, ip: "10.0.0.9".to_owned(), ..plain() };
        let (sent, outcome) = run(identity.clone(), None, &["-NOAUTH Authentication required.", "-WRONGPASS no"]);
        assert!(sent[1].starts_with("AUTH replica secret REPLCONF listening-port 1 REPLCONF ip-address 10.0.0.9"));
        let wrong = "Unable to AUTH to MASTER: -WRONGPASS no".to_owned();
        assert_eq!(outcome, Some(Outcome::Failed(wrong)));
        // The handshake continues if the primary doesn't support an option.
        let (sent, _) = run(identity, None, &["+PONG", "+OK", "-ERR x", "-ERR x", "-ERR x", "-ERR x"]);
        assert_eq!(sent.last().map(String::as_str), Some("PSYNC ? -1"));
    }

    #[test]
    fn errors_end_it() {
        let failed = |lines: &[&str]| match run(plain(), None, lines).1 {
            Some(Outcome::Failed(why) | Outcome::NotYet(why)) => why,
            other => panic!("{other:?}"),
        };
        let with = |reply: &'static str| failed(&["+PONG", "+OK", "+OK", "+OK", reply]);
        assert_eq!(failed(&["-DENIED no"]), "Error reply to PING from master: '-DENIED no'");
        assert!(failed(&[""]).starts_with("Error reply to PING"));
        assert!(with("+FULLRESYNC").contains("syntax"));
        assert!(with("+FULLRESYNC x 1").contains("syntax"));
        assert!(with("+CONTINUE").contains("not asked for"));
        assert!(with("-NOMASTERLINK Can't SYNC while not connected with my master").contains("currently unable"));
        let negative = format!("+FULLRESYNC {} -1", id(1));
        assert!(failed(&["+PONG", "+OK", "+OK", "+OK", &negative]).contains("syntax"));
    }

    #[test]
    fn a_primary_without_psync_gets_sync() {
        let lines = ["+PONG", "-ERR x", "-ERR x", "-ERR x", "-ERR unknown command 'PSYNC'"];
        let (sent, outcome) = run(plain(), None, &lines);
        assert_eq!(sent.last().map(String::as_str), Some("SYNC"));
        assert_eq!(outcome, Some(Outcome::Full(None)));
    }
}
