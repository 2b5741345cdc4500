//! Runs the commands of a file on the dataset, at startup and for `DEBUG LOADAOF`. All shards are
//! held meanwhile.
//!
//! The handler of each command runs directly on the held shards, as within a transaction. The
//! commands see a time before all deadlines, so nothing expires during the load. As in Redis,
//! expired keys stay until the load ends, because later commands of the file may need them. After
//! the load, they are deleted as usual.

use std::sync::Arc;

use pantala_engine::access::SessionView;
use pantala_engine::client::{Client, Endpoint, Listener, LocalCall, LocalCaller, Session, run_local};
use pantala_engine::command::{Command, Handler};
use pantala_engine::executor::{Call, Executor};
use pantala_engine::ownership::Ownership;
use pantala_engine::routing::add_shards;
use pantala_persistence::aof::scan::Runner;
use pantala_persistence::aof::{Found, Transactions};
use pantala_resp::{ArgRange, Args};

use crate::host::Server;

/// Maximum number of command errors that are logged.
const ERRORS_LOGGED: u64 = 10;

/// Number of replayed commands after which the recorded effects (changes to propagate) are dropped.
/// The file already contains these effects.
const EFFECTS_DROPPED_EVERY: u64 = 1024;

/// A common multiple of the periods after which access words repeat, ms. The *access word* of an
/// entry stores the time of its last access modulo 2^24 s (LRU) or modulo 2^16 min (LFU).
const ACCESS_PERIOD_MS: i64 = 15 * (1 << 24) * 1000;

/// Returns a Unix time in the 1970s, in ms, before all deadlines. Access words have the same value
/// at this time as at `now_ms`.
pub fn time_before_deadlines(now_ms: i64) -> i64 {
    now_ms.rem_euclid(ACCESS_PERIOD_MS)
}

/// The reason why a command could not run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refused {
    /// There is no such command.
    Unknown(Vec<u8>),
    /// A nested `MULTI`, or an `EXEC` without `MULTI`.
    Unexpected(&'static str),
    /// A command that runs a script. Redis 7 and later do not write such commands to the file.
    Script(Vec<u8>),
}

/// A command that could not run, and its offset in the file.
#[derive(Debug)]
pub struct At(pub Refused, pub u64);

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Refused::Unknown(name) => {
                write!(f, "Unknown command '{}' reading the append only file", name.escape_ascii())
            }
            Refused::Unexpected(name) => write!(f, "Unexpected {name}"),
            Refused::Script(name) => write!(
                f,
                "The command '{}' runs a script: rewrite the file by BGREWRITEAOF where it was written",
                name.escape_ascii()
            ),
        }
    }
}

/// The replay of one file's commands.
pub struct Replay<'r, 'k> {
    server: &'r Server,
    executor: &'r mut Executor<'k>,
    /// All shards.
    owned: &'r mut [Ownership],
    session: Session,
    transactions: Transactions,
    /// The commands since `MULTI`, with their bytes and the ranges of their arguments.
    queued: Vec<(&'static Command, Vec<u8>, Vec<ArgRange>)>,
    shards: Vec<u32>,
    reply: Vec<u8>,
    now_ms: i64,
    replayed: u64,
    errors: u64,
}

impl<'r, 'k> Replay<'r, 'k> {
    /// Creates a replay. `owned` must hold all shards. `now_ms` must be a result of
    /// [`time_before_deadlines`].
    pub fn new(server: &'r Server, executor: &'r mut Executor<'k>, owned: &'r mut [Ownership], now_ms: i64) -> Self {
        let nowhere = || Endpoint::Unix("AOF".to_owned());
        let client =
            Client::new(server.keyspace().clients().next_id(), Listener::default(), -1, nowhere(), nowhere(), now_ms);
        let mut session = Session::new(Arc::new(client), server.keyspace().users());
        // As within `EXEC`, no command may block. For example, `SHUTDOWN` is an error.
        session.in_exec = true;
        Replay {
            server,
            executor,
            owned,
            session,
            transactions: Transactions::default(),
            queued: Vec::new(),
            shards: Vec::new(),
            reply: Vec::new(),
            now_ms,
            replayed: 0,
            errors: 0,
        }
    }

    /// Runs the command at `offset`, or queues it until `EXEC`.
    fn run_or_queue(&mut self, offset: u64, args: &Args<'_>) -> Result<(), Refused> {
        self.server.snapshots().loading.delay_key(self.server);
        match self.transactions.note(offset, args.at(0)) {
            Found::Start => Ok(()),
            Found::UnexpectedMulti => Err(Refused::Unexpected("MULTI")),
            Found::UnexpectedExec => Err(Refused::Unexpected("EXEC")),
            Found::Alone => {
                let command = resolve(self.server, args)?;
                self.run_command(command, args);
                Ok(())
            }
            Found::Within => {
                let command = resolve(self.server, args)?;
                let (mut bytes, mut ranges) = (Vec::with_capacity(args.len_bytes()), Vec::with_capacity(args.len()));
                for arg in args.iter() {
                    ranges.push(ArgRange::new(bytes.len(), arg.len()));
                    bytes.extend_from_slice(arg);
                }
                self.queued.push((command, bytes, ranges));
                Ok(())
            }
            Found::End => {
                for (command, bytes, ranges) in std::mem::take(&mut self.queued) {
                    self.run_command(command, &Args::new(&bytes, &ranges));
                }
                Ok(())
            }
        }
    }

    fn run_command(&mut self, command: &'static Command, args: &Args<'_>) {
        self.reply.clear();
        match command.handler {
            Handler::Local(_) => {
                let call = LocalCall {
                    command,
                    args: *args,
                    session: &mut self.session,
                    keyspace: self.server.keyspace(),
                    host: self.server,
                    now_ms: self.now_ms,
                    reply_limit: None,
                };
                run_local(call, LocalCaller::File, &mut self.reply);
            }
            Handler::Keyed(_) | Handler::Undetermined(_) => self.run_keyed(command, args),
            Handler::Transaction(_) | Handler::Container => {}
        }
        self.replayed += 1;
        if self.replayed.is_multiple_of(EFFECTS_DROPPED_EVERY) {
            self.executor.recorder().drop_effects();
        }
        if self.reply.first() == Some(&b'-') {
            self.log_error(command);
        }
    }

    fn run_keyed(&mut self, command: &'static Command, args: &Args<'_>) {
        let keyspace = self.server.keyspace();
        // As in Redis, the commands of the file run with the rights of a primary's commands. For
        // example, a propagated `XTRIM` combines an exact threshold with `LIMIT`, which is an error
        // for other clients.
        let session = SessionView { of_primary: true, ..self.session.view() };
        self.shards.clear();
        add_shards(keyspace, &session, command, args, &mut self.shards);
        if self.shards.is_empty() {
            self.shards.push(0);
        }
        self.shards.sort_unstable();
        self.shards.dedup();
        let call = Call {
            command,
            args: *args,
            first_key: None,
            session,
            reads_as: None,
            connection: u64::MAX,
            now_ms: self.now_ms,
        };
        self.executor.runner().run_held(&call, &self.shards, self.owned, &mut self.reply);
    }

    #[cold]
    fn log_error(&mut self, command: &Command) {
        self.errors += 1;
        if self.errors <= ERRORS_LOGGED {
            let error = self.reply.strip_prefix(b"-").unwrap_or(&self.reply).trim_ascii_end().escape_ascii();
            tracing::warn!("'{}' failed while loading the append only file: {error}", command.full_name);
        }
    }
}

impl Runner for Replay<'_, '_> {
    type Error = At;

    fn run(&mut self, offset: u64, args: &Args<'_>) -> Result<(), At> {
        self.run_or_queue(offset, args).map_err(|why| At(why, offset))
    }

    fn open_since(&self) -> Option<u64> {
        self.transactions.open_since()
    }
}

/// Returns the command that these arguments name, if it can be replayed.
fn resolve(server: &Server, args: &Args<'_>) -> Result<&'static Command, Refused> {
    let command = server.renames().resolve(args).map_err(|_| Refused::Unknown(args.at(0).to_vec()))?;
    match command.handler {
        Handler::Transaction(_) | Handler::Container => Err(Refused::Script(args.at(0).to_vec())),
        Handler::Local(_) | Handler::Keyed(_) | Handler::Undetermined(_) => Ok(command),
    }
}
