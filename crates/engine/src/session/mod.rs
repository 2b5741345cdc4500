//! Sessions. A [`Session`] is the state of a connection, which the connection's worker owns.
//! [`host`] is the server's interface for the commands of the connection.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use pantala_resp::Version;

use crate::acl::{Rules, User, Users};
use crate::clients::client::Client;
use crate::clients::listener::{KINDS, Listener};
use crate::clients::primary::PrimaryLink;
use crate::command::{Permit, SessionView};
use crate::events::pubsub::Subscriptions;
use crate::events::tracking::{Reader, SessionTracking};
use crate::shard::keyspace::Keyspace;
use crate::shard::transaction::{Transaction, Watching};
use crate::tuning::pause::Pause;

pub mod functions;
pub mod host;
pub mod local;
mod permissions;
pub mod replication;
mod tracking;

use host::AllShards;
use permissions::NEVER;
use replication::{Awaited, Following};

/// The state of `CLIENT REPLY`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReplyMode {
    /// Replies are sent.
    #[default]
    On,
    /// No reply is sent, until `CLIENT REPLY ON`.
    Off,
    /// The reply to the next command is not sent (set by `CLIENT REPLY SKIP`).
    SkipNext,
    /// The reply to the current command is not sent.
    Skip,
}

/// The state of a connection. Belongs to the connection's worker.
pub struct Session {
    /// The part that other workers may read.
    pub client: Arc<Client>,
    /// Selected database.
    pub db: u32,
    /// Protocol version of replies.
    pub version: Version,
    /// Whether the client has logged in, or connected while no login was required.
    authenticated: bool,
    user: Arc<User>,
    /// The user's rules as of `user_epoch`.
    rules: Arc<Rules>,
    user_epoch: u64,
    /// The epoch of [`Users`] in which the client may run every command, or [`NEVER`] if it may
    /// not. An epoch ends when any user's rules change.
    unrestricted_epoch: u64,
    /// `CLIENT REPLY`.
    pub reply_mode: ReplyMode,
    /// Whether the connection must be closed after the replies so far have been sent.
    pub close_after_reply: bool,
    /// Subscriptions. `None` if there are none.
    pub subscriptions: Option<Box<Subscriptions>>,
    /// Commands queued since `MULTI`. `None` outside of a transaction.
    pub transaction: Option<Box<Transaction>>,
    /// A cleared transaction, whose memory the next transaction reuses.
    ended_transaction: Option<Box<Transaction>>,
    /// Watched keys.
    pub watching: Option<Box<Watching>>,
    /// Whether the client runs `MONITOR`.
    pub monitors: bool,
    /// Whether the client runs `MONITOR` or is a replica. Such a client may not use the keyspace.
    pub observes: bool,
    /// The output of a client that is a replica (`SYNC`, `PSYNC`): a snapshot and the stream of
    /// effects. `None` for other clients.
    pub follows: Option<Box<dyn Following>>,
    /// Options that the client has sent by `REPLCONF`. The server defines their type.
    pub handshake: Option<Box<dyn Any + Send>>,
    /// A [stamp](crate::effect) above the stamps of all effects that the client's commands have
    /// produced or read. 0 if the client has run no command since the server began to keep the
    /// stream for replicas.
    pub stream_stamp: u64,
    /// The condition for which the connection must block. Set by `WAIT`, `WAITAOF` and `SHUTDOWN`
    /// until the worker blocks the connection.
    pub awaits: Option<Awaited>,
    /// Whether `CLIENT CACHING` was sent and the next command has not run yet.
    pub caching: bool,
    /// The reader that is recorded for each key that commands read; `None` if keys are not tracked.
    /// Derived from `tracking` and `caching`.
    pub reads_as: Option<Arc<Reader>>,
    /// Options of `CLIENT TRACKING`. `None` if tracking is off.
    pub tracking: Option<Box<SessionTracking>>,
    /// Whether `EXEC` is running its commands.
    pub in_exec: bool,
    /// The pause that the last command has started (`CLIENT PAUSE`, `REPLICAOF`), until the worker
    /// takes it. The worker holds back the command's reply.
    pub pause: Option<Box<Pause>>,
    /// Work that a command has left to the worker, because the work needs all shards.
    pub needs_all: Option<AllShards>,
    /// The link to the primary, if this connection is that link.
    pub primary: Option<Box<PrimaryLink>>,
    /// `CLIENT DURABILITY`. The server counts the clients with `always`
    /// ([`Host::note_asks_always`](host::Host::note_asks_always)).
    pub durability: Durability,
}

/// When the replies of a connection are sent (`CLIENT DURABILITY`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// As `appendfsync` says.
    #[default]
    Default,
    /// After a sync of all effects that the connection's commands have made or read.
    Always,
    /// Without waiting for a sync.
    EverySecond,
}

impl Session {
    /// Returns the session of a new connection.
    pub fn new(client: Arc<Client>, users: &Users) -> Self {
        let epoch = users.epoch();
        let user = Arc::clone(users.default_user());
        let mut session = Session {
            client,
            db: 0,
            version: Version::Resp2,
            authenticated: false,
            rules: user.rules(),
            user,
            user_epoch: epoch,
            unrestricted_epoch: NEVER,
            reply_mode: ReplyMode::On,
            close_after_reply: false,
            subscriptions: None,
            transaction: None,
            ended_transaction: None,
            watching: None,
            monitors: false,
            observes: false,
            follows: None,
            handshake: None,
            stream_stamp: 0,
            awaits: None,
            caching: false,
            reads_as: None,
            tracking: None,
            in_exec: false,
            pause: None,
            needs_all: None,
            primary: None,
            durability: Durability::default(),
        };
        session.set_authenticated(!users.requires_login(), session.client.created_ms);
        session.settle_permissions(epoch);
        session
    }

    /// Starts or ends `MONITOR`.
    pub fn set_monitors(&mut self, keyspace: &Keyspace, monitors: bool) {
        if self.monitors != monitors {
            self.monitors = monitors;
            self.observes = monitors || self.follows.is_some();
            self.client.monitors.store(monitors, Relaxed);
            let listener = self.listener();
            let (all, tuning) = (keyspace.monitors(), &keyspace.tuning);
            if monitors { all.add(tuning, listener) } else { all.remove(tuning, listener) }
        }
    }

    /// Makes the client a replica.
    pub fn follow(&mut self, following: Box<dyn Following>) {
        self.follows = Some(following);
        self.observes = true;
        self.client.is_replica.store(true, Relaxed);
    }

    /// Ends the client's role as a replica, if it has this role.
    pub fn leave_effects(&mut self, keyspace: &Keyspace) {
        if let Some(mut following) = self.follows.take() {
            self.client.is_replica.store(false, Relaxed);
            self.observes = self.monitors;
            following.leave(keyspace);
        }
    }

    /// Makes the connection the link to the primary. The link may run every command. It starts in
    /// `db`, the database that the stream has selected.
    pub fn follow_primary(&mut self, users: &Users, link: PrimaryLink, db: u32) {
        let epoch = users.epoch();
        self.log_in(users.superuser(), epoch);
        self.client.is_primary.store(true, Relaxed);
        self.primary = Some(Box::new(link));
        self.select(db);
    }

    /// Returns the address for messages to the connection.
    pub fn listener(&self) -> Listener {
        self.client.listener()
    }

    /// Ends all subscriptions.
    pub fn leave_channels(&mut self, keyspace: &Keyspace) {
        if let Some(mut subscriptions) = self.subscriptions.take() {
            keyspace.pubsub().leave(&mut subscriptions, self.listener());
            self.publish_subscriptions();
        }
    }

    /// Makes the number of subscriptions visible to other workers.
    pub fn publish_subscriptions(&self) {
        for kind in KINDS {
            let count = self.subscriptions.as_ref().map_or(0, |subscriptions| subscriptions.names(kind).len());
            self.client.subscriptions[kind as usize].store(count as u32, Relaxed);
        }
    }

    /// Returns the memory usage of subscriptions, watches and tracked prefixes in bytes. Excludes
    /// the names of channels and patterns.
    pub fn overhead_bytes(&self) -> usize {
        let listened = self.subscriptions.as_ref().map_or(0, |subscriptions| subscriptions.bytes());
        let watched = self.watching.as_ref().map_or(0, |watching| watching.bytes());
        listened + watched + self.tracking.as_ref().map_or(0, |tracking| tracking.bytes())
    }

    /// Returns whether the client has logged in and the session's cached rules are those of this
    /// epoch of [`Users`]. If so, [`Session::check`] is the only permission check that a command
    /// needs.
    #[inline]
    pub fn knows_rules(&self, epoch: u64) -> bool {
        self.authenticated && self.user_epoch == epoch
    }

    /// Returns whether commands need no special treatment. This requires that the connection stays
    /// open and the client receives every reply. The client must be no monitor, replica or
    /// subscriber, and have no transaction, `CLIENT CACHING` or tracked keys. Ignores permissions.
    #[inline(always)]
    pub fn is_plain(&self) -> bool {
        // Few branches, because the result is true for nearly all commands.
        let differs = self.observes | self.caching | self.close_after_reply;
        !(differs | (self.reply_mode != ReplyMode::On))
            && !(self.subscriptions.is_some() | self.transaction.is_some() | self.reads_as.is_some())
    }

    /// Returns whether the connection may move to another worker between two commands. A connection
    /// must stay if other parts of the server address it through its worker, or if it watches keys.
    pub fn may_move(&self) -> bool {
        let is_listed = self.observes || self.subscriptions.is_some() || self.tracking.is_some();
        let is_bound = self.follows.is_some() || self.primary.is_some() || self.handshake.is_some();
        let is_within = self.transaction.is_some() || self.watching.is_some() || self.in_exec;
        let has_left_work = self.awaits.is_some() || self.pause.is_some() || self.needs_all.is_some();
        !(is_listed | is_bound | is_within | has_left_work | self.close_after_reply)
            && !self.client.killed.load(Relaxed)
            && !self.client.is_pinned()
    }

    /// Returns whether the client may only run commands with the flag `WHILE_SUBSCRIBED`, because
    /// it has subscriptions and uses RESP2, in which messages look like other replies.
    #[inline]
    pub fn only_listens(&self) -> bool {
        self.subscriptions.is_some() && self.version == Version::Resp2
    }

    /// Returns the view of the session for keyed commands.
    #[inline]
    pub fn view(&self) -> SessionView {
        SessionView {
            client: self.client.id,
            db: self.db,
            version: self.version,
            no_touch: self.client.no_touch.load(Relaxed),
            of_primary: self.primary.is_some(),
            in_script: false,
            permit: Permit::new(self.user_epoch, self.unrestricted_epoch != NEVER),
        }
    }

    /// Selects a database. `db` must be below the number of databases.
    pub fn select(&mut self, db: u32) {
        self.db = db;
        self.client.db.store(db, Relaxed);
    }

    /// Makes the session's database visible to other workers again. Called after a script has
    /// selected another database for its own calls.
    pub fn select_shown(&self) {
        self.client.db.store(self.db, Relaxed);
    }

    /// Sets the protocol version of replies.
    pub fn set_version(&mut self, version: Version) {
        self.version = version;
        self.client.resp.store(if version == Version::Resp3 { 3 } else { 2 }, Relaxed);
    }

    /// Starts a transaction.
    pub fn begin_transaction(&mut self) {
        self.transaction = Some(self.ended_transaction.take().unwrap_or_default());
        self.publish_transaction();
    }

    /// Keeps the memory of a transaction that has run, unless it is large.
    pub fn keep_ended(&mut self, mut transaction: Box<Transaction>) {
        if transaction.clear() {
            self.ended_transaction = Some(transaction);
        }
    }

    /// Ends the transaction without running it, and ends the watches.
    pub fn discard(&mut self) {
        self.transaction = None;
        self.watching = None;
        self.publish_transaction();
    }

    /// Makes the number and the memory usage of queued commands visible to other workers.
    pub fn publish_transaction(&self) {
        let queued = self.transaction.as_ref().map_or(-1, |transaction| transaction.queue().len() as i64);
        self.client.queued.store(queued, Relaxed);
        let bytes = self.transaction.as_ref().map_or(0, |transaction| transaction.memory_bytes() as u64);
        self.client.queued_bytes.store(bytes, Relaxed);
    }

    /// Resets the session to the state of a new connection (`RESET`). The caller ends
    /// subscriptions, `MONITOR`, replication and tracking. `CLIENT NO-EVICT` stays set, as in Redis
    /// 7.0.
    pub fn reset(&mut self, users: &Users, now_ms: i64) {
        self.discard();
        self.select(0);
        self.set_version(Version::Resp2);
        self.log_out(users, now_ms);
        // `CLIENT REPLY SKIP` before `RESET` applies to the reply of `RESET`.
        if self.reply_mode != ReplyMode::Skip {
            self.reply_mode = ReplyMode::On;
        }
        self.client.names().name = Vec::new();
        self.client.no_touch.store(false, Relaxed);
    }
}
